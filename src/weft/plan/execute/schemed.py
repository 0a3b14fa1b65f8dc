"""A graph that is to be cut as the option `scheme` says: which of the schemes is for it, and what that leaves to PyTorch."""

from __future__ import annotations

from collections.abc import Callable

from weft.capture import Captured
from weft.errors import SchemeError
from weft.options import current
from weft.plan.execute.laws import after_laws
from weft.plan.partition.schemes import SHOWN, Scheme, operators, tag_of
from weft.target import Target

_ASKED = "the fusion scheme leaves it to PyTorch"


def as_asked(captured: Captured, target: Target, own: Callable[[], str]) -> tuple[Captured, Scheme | None]:
    """Find the scheme for a graph among those that the option `scheme` gives.

    Args:
        captured: the graph, which has a program.
        target: of its kernels.
        own: chooses a scheme for the graph; asked only where none is for it, to tell the user.

    Returns:
        The graph captured again without the calls that the scheme leaves to PyTorch, and the scheme: the first that was printed for
        this program, or for none in particular; None where the option is not set.

    Raises:
        SchemeError: all of them are for other graphs.
    """
    asked = current().scheme
    if asked is None:
        return captured, None
    for scheme in map(Scheme.read, asked.split()):
        made = _leaving(captured, scheme)
        if made is not None and scheme.tag in ("", tag_of(after_laws(made, target).program)):
            return made, scheme
    program = after_laws(captured, target).program
    raise SchemeError(
        f'the fusion scheme "{asked}" is not for this graph, which has {len(operators(program))} operators, '
        f"calls 0 to {max(captured.made_by.values(), default=0)} and the tag {tag_of(program)}",
        where=next((place for n in program.nodes if (place := getattr(n, "location", None)) is not None), None),
        todo=f"give one scheme for each graph of the function, with spaces between them{_suggested(own)}; {SHOWN}",
    )


def _suggested(own: Callable[[], str]) -> str:
    """Say which scheme weft chooses for the graph; nothing where it cannot choose, which is no news to who asks for another one."""
    try:
        return f': for this one weft chooses "{own()}"'
    except Exception:  # noqa: BLE001 - whatever it is, the user's scheme is what is wrong
        return ""


def _leaving(captured: Captured, scheme: Scheme) -> Captured | None:
    """Capture the graph again without the calls that `scheme` leaves to PyTorch; None where it has no such calls."""
    if not scheme.left:
        return captured
    if captured.leaving is None or not set(scheme.left) <= {*captured.made_by.values()}:
        return None
    return captured.leaving(dict.fromkeys(scheme.left, _ASKED))
