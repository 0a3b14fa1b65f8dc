"""The safety net: if weft fails, PyTorch runs the function, with one warning and a file that reproduces the failure."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import torch
from torch.fx.graph_module import _format_import_block  # pyright: ignore[reportPrivateUsage] - no public name
from torch.package.importer import sys_importer

from weft import capture
from weft.capture import location_of
from weft.defects import is_defect
from weft.errors import DefectError, LeftToPyTorchWarning, Location, WeftError
from weft.options import current
from weft.plan import Runner, has_written, warn
from weft.run.cache import CacheFolder

_NUMBER = re.compile(r"\d+")
_said: set[str] = set()
_FILE = '''"""weft fails here and should not: {error}

{trace}
Run it with `python {name}`. Please report it; the inputs are random, of the same shapes, strides and element types; integers are 1.
"""

{imports}
import weft


def like(shape, stride, dtype, device):
    reach = sum((n - 1) * s for n, s in zip(shape, stride)) + 1 if 0 not in shape else 0
    if dtype == torch.bool:
        memory = torch.rand(reach, device=device) < 0.5
    elif dtype.is_floating_point or dtype.is_complex:
        memory = torch.randn(reach, device=device)
    else:  # where to read, perhaps: 1 is nearly always inside
        memory = torch.ones(reach, device=device)
    return memory.to(dtype).as_strided(shape, stride)


{graph}

torch.manual_seed(0)
arguments = [
{arguments}
]
graph = Graph()
with torch.no_grad(), weft.options(defects="raise", measure="never"):
    print("PyTorch:", graph(*arguments))
    print("weft:", weft.compile(graph)(*arguments))
print("weft did not fail: with this version, on this machine and on these numbers there is nothing to report")
'''


def say(gm: torch.fx.GraphModule, arguments: Sequence[Any], error: Exception) -> None:
    """Warns that weft failed at `gm` and PyTorch runs what it concerns, once for each cause; the warning names a reproducer.

    Raises:
        Exception: `error`, where the option `defects` says so.
    """
    if not is_defect(error):
        warn("this call", error)
        return
    if current().defects == "raise":
        raise error
    cause = _NUMBER.sub(
        "#", "".join(traceback.format_exception_only(error)) + str(traceback.extract_tb(error.__traceback__)[-1:])
    )
    if cause not in _said:
        _said.add(cause)
        found = defect(gm, arguments, error)
        place = found.where if isinstance(found.where, Location) else Location(__file__, 0)
        message = str(found).replace("weft failed:", "weft failed, and PyTorch runs this part:", 1)
        warnings.warn_explicit(message, LeftToPyTorchWarning, place.file, place.line)


def defect(gm: torch.fx.GraphModule, arguments: Sequence[Any], error: Exception) -> DefectError:
    """Makes the error to raise, or to warn of, for the failure `error` of weft's at `gm`; it names a file that shows it again."""
    where = next(
        (line for n in gm.graph.nodes if n.op not in ("placeholder", "output") and (line := location_of(n))), None
    )
    what = error.what if isinstance(error, WeftError) else "".join(traceback.format_exception_only(error)).strip()
    said = f"weft failed: {what}"
    path = None
    with suppress(
        OSError, RuntimeError, WeftError
    ):  # without a folder, or of a graph that has no text, there is no file
        path = reproducer(gm, arguments, error)
    return DefectError(said, where=where, reproducer="" if path is None else str(path))


def reproducer(gm: torch.fx.GraphModule, arguments: Sequence[Any], error: Exception) -> Path:
    """Writes a Python file that runs `gm` on arguments like these, in PyTorch and in weft, to the cache folder.

    Returns:
        Its path; the same for the same graph.
    """
    code = gm.graph.python_code("self")
    lines = ["class Graph(torch.nn.Module):", *_state(gm), *(f"    {line}" for line in code.src.strip().splitlines())]
    graph = "\n".join(line.rstrip() for line in lines)
    names = [n for n in gm.graph.nodes if n.op == "placeholder"]
    given = "\n".join(f"    {_like(a)},  # {n.name}" for n, a in zip(names, arguments, strict=False))
    key = sha256(f"{graph}{given}".encode()).hexdigest()[:16]
    folder = CacheFolder(current().cache_dir).path / "reproducers"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"defect_{key}.py"
    shown = "".join(traceback.format_exception(error)).replace("\\", "/").replace('"""', "'''")
    text = _FILE.format(
        error=type(error).__name__,
        trace=shown,
        name=path.name,
        imports=_format_import_block(code.globals | {"torch": torch}, sys_importer),
        graph=graph,
        arguments=given,
    )
    path.write_text(text, encoding="utf-8")
    return path


def _state(gm: torch.fx.GraphModule) -> list[str]:
    """Writes the constructor, where the graph holds tensors."""
    held = [
        (n.target, getattr(gm, n.target, None)) for n in gm.graph.nodes if n.op == "get_attr" and "." not in n.target
    ]
    tensors = [(name, value) for name, value in dict(held).items() if isinstance(value, torch.Tensor)]
    if not tensors:
        return []
    made = [f"        self.register_buffer({name!r}, {_like(value)})" for name, value in tensors]
    return ["    def __init__(self):", "        super().__init__()", *made, ""]


def _like(argument: Any) -> str:
    """Writes Python for an argument like this one."""
    match argument:
        case torch.Tensor():
            shape, stride = (tuple(map(_number, sizes)) for sizes in (argument.shape, argument.stride()))
            return f'like({shape}, {stride}, {argument.dtype}, "{argument.device}")'
        case torch.SymInt() | torch.SymFloat():
            return repr(_number(argument))
        case _:
            return repr(argument)


def _number(size: Any) -> Any:
    return cast("Any", size).node.hint if isinstance(size, torch.SymInt | torch.SymFloat) else size


def safe(run: Runner, gm: torch.fx.GraphModule, eager: Runner) -> Runner:
    """Guards `run`, which stands for `gm`: where it fails and PyTorch does not, PyTorch runs this call and all later ones.

    Errors of PyTorch's own are raised as they are; if eager refuses the operands, they become a ShapeError that names the
    user's line. A graph that had written into an argument when it failed does not run again: the failure is raised. Nor does
    one that PyTorch ran in place of weft, which may have written.
    """
    state = [run]

    def call(*arguments: Any) -> Sequence[Any]:
        try:
            return state[0](*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, PyTorch decides what becomes of the call
            failure = error
        try:
            if state[0] is eager or has_written(failure) or _was_in(eager, failure):
                raise failure
            traceback.clear_frames(failure.__traceback__)  # PyTorch may need the memory of what they hold
            results = eager(*arguments)
        except RuntimeError as error:
            refused = capture.refusal(gm, arguments, error)
            if refused is None:
                raise
            raise refused from error
        say(gm, arguments, failure)
        state[0] = eager
        return results

    return call


def _was_in(eager: Runner, failure: Exception) -> bool:
    """Tells whether `failure` was raised while `eager` ran."""
    code = getattr(eager, "__code__", None)
    return code is not None and any(frame.f_code is code for frame, _ in traceback.walk_tb(failure.__traceback__))
