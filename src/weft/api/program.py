"""`Program`, which `weft.optimize` returns: it runs, and says how it was made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeAlias

import torch

from weft.api.calling import Calling
from weft.api.files import path_of
from weft.api.save import read, save
from weft.api.targets import chip_for
from weft.capture import Fallback
from weft.cost.chip import Chip
from weft.errors import ProgramFileError, named
from weft.plan import Kernel, Plan
from weft.tensor.passes import Change

if TYPE_CHECKING:
    from weft.api.report import Report

Saved: TypeAlias = tuple[Calling, tuple[torch.Tensor, ...]]
"""How the first plan of a program is called, and the tensors it holds."""


class Trace(tuple[Change[Any], ...]):
    """The rewrites of a program, in order: prints as numbered lines. A step's programs `before` and `after` print as listings."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"{i}. {step}" for i, step in enumerate(self, 1)) or "no rewrites"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A compiled function.

    Attributes:
        plans: one per graph that Dynamo found: more than one where the function breaks the graph, and one more for each class
            of shapes that it is called with later.
    """

    plans: Sequence[Plan]
    _call: Callable[..., Any]
    _calling: Saved | ProgramFileError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it; for inference: no gradients are recorded. Other shapes are compiled for as they come."""
        with torch.no_grad():
            return self._call(*args, **kwargs)

    def __str__(self) -> str:
        """List its kernels, and what is left to PyTorch, in a few lines; `explain` tells all."""
        count = len(self.kernels)
        left = [f"left to PyTorch: {fallback}" for fallback in self.fallbacks]
        kernels = f"{count or 'no'} kernel{'' if count == 1 else 's'}"
        return "\n".join(
            (
                f"program of {kernels}; explain() says what was done",
                *(str(k).replace("\n", "\n  ") for k in self.kernels),
                *left,
            )
        )

    def __repr__(self) -> str:
        """Describe the program in one line."""
        return f"<Program: {', '.join(map(repr, self.plans)) or 'computes nothing'}>"

    def __reduce__(self) -> Never:
        """Refuse to be pickled: the kernels are loaded into this process."""
        raise TypeError(
            "a program of weft.optimize cannot be pickled, its kernels are loaded into this process: write it with program.save "
            "and read it with weft.load; or pickle the function or module and call weft.optimize where it is loaded"
        )

    def __deepcopy__(self, memo: object) -> Program:
        """Return the program itself, as for a function."""
        return self

    def __copy__(self) -> Program:
        """Return the program itself, as for a function."""
        return self

    def save(self, path: str | Path) -> Path:
        """Write what was compiled for the example inputs to a file that `weft.load` runs, where no compiler needs to be.

        It holds kernels as machine code with their sources, programs and proofs, the calls left to PyTorch by name, and the tensors
        that the function holds: parameters, buffers, what it closes over.

        Args:
            path: of the file; one that is there is replaced.

        Returns:
            The path.

        Raises:
            ArgumentError: `path` is none.
            MissingFileError: its folder is not there, or a kernel's library is gone from the cache; a FileNotFoundError, too.
            FileError: it is a folder, or cannot be written; an OSError, too.
            ProgramFileError: there is more to the function than one graph and these: Python between graphs, objects that it
                changes, arguments that are no tensors, numbers or text; or all of it, or a call with an argument that has no
                text, is left to PyTorch. It says which.
        """
        if isinstance(self._calling, ProgramFileError):
            raise self._calling
        return save(path_of(path, "the path to save to"), self.plans[0], *self._calling)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in launch order: a kernel is one launch, one grid, nothing materialised in between."""
        return tuple(k for p in self.plans for k in p.kernels)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The operations left to PyTorch: (operation, reason) pairs, with the user's line where known."""
        return tuple(f for p in self.plans for f in p.fallbacks)

    @property
    def trace(self) -> Trace:
        """Every rewrite: rule, place, program before and after."""
        from weft.pipeline import replayed  # what a program that is only run has no use for

        return Trace(c for p in self.plans if p.trace for c in replayed(p.captured.program, p.trace))

    @property
    def scheme(self) -> str:
        """Which operators share a kernel, as the option `scheme` takes it: one code for each graph that has kernels."""
        return " ".join(p.scheme for p in self.plans if p.scheme)

    def explain(self, chip: str | Chip | None = None) -> Report:
        """Tell the whole story as text: captured program, rewrites, block programs, schedule, verdict, fallbacks.

        Args:
            chip: on which kernels are laid out as concrete schedules: the name of a published one (`weft.cost.CHIPS`), or one that
                `weft.cost.read_chip` read. None: that of the target, if it is a GPU.

        Raises:
            TargetError: weft knows no chip of that name.
            ArgumentError: `chip` is neither a name nor a chip.
        """
        from weft.api.report import report  # which draws

        return report(self.plans, chip_for(chip))


@named("weft.load")
def load(path: str | Path, device: str | torch.device | None = None) -> Program:
    """Load the program that `Program.save` wrote: it runs without tracing, tuning or a compiler.

    A file holds machine code and the names of PyTorch's operations: whoever made it decides what calling the program does,
    and loading a CPU's library runs code of its maker's. Load files of those whom you would let run a program as you. The
    description of how the parts go together is JSON, not a pickle.

    Args:
        path: of the file.
        device: where it runs and what it holds goes, for a program for a GPU: such as "cuda:1"; "cuda" or None: the GPU that is
            current now. Whatever is current later, it runs there.

    Raises:
        ArgumentError: `path` is none.
        MissingFileError: it is not there; a FileNotFoundError, too.
        FileError: it is a folder, or cannot be read; an OSError, too.
        ProgramFileError: it is no such file, or damaged; or another version of weft, or for a CPU of PyTorch, made it.
        TargetError: it is for another machine: no such GPU is here, or the CPU lacks instructions. It says which.

    A call raises ShapeError for arguments of other shapes, strides, element types or devices than those it was saved for.
    """
    found = read(path_of(path, "the path to load"), device)
    return Program(
        (found.plan,), found.calling.calls(found.plan.run, found.constants), (found.calling, found.constants)
    )
