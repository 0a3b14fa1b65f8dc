"""What `weft.optimize` gives: a program that runs, and that can be asked about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Never

import torch

from weft.api.report import Report, report
from weft.capture import Fallback
from weft.fuse import Step
from weft.plan import Kernel, Plan


class Trace(tuple[Step, ...]):
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it; for inference: no gradients are recorded. Other shapes are compiled for as they come."""
        with torch.no_grad():
            return self._call(*args, **kwargs)

    def __str__(self) -> str:
        """Its kernels, and what is left to PyTorch, in a few lines; `explain` tells all."""
        count = len(self.kernels)
        left = [f"left to PyTorch: {fallback}" for fallback in self.fallbacks]
        kernels = f"{count or 'no'} kernel{'' if count == 1 else 's'}"
        return "\n".join(
            (f"program of {kernels}; explain() tells all", *(str(k).replace("\n", "\n  ") for k in self.kernels), *left)
        )

    def __repr__(self) -> str:
        """In one line."""
        return f"<Program: {', '.join(map(repr, self.plans)) or 'computes nothing'}>"

    def __reduce__(self) -> Never:
        """Not pickled: its kernels are loaded into this process."""
        raise TypeError(
            "a program of weft.optimize cannot be pickled, its kernels are loaded into this process: pickle the function or "
            "module and call weft.optimize where it is loaded; the kernels come from the cache there"
        )

    def __deepcopy__(self, memo: object) -> Program:
        """Itself, as of a function."""
        return self

    def __copy__(self) -> Program:
        """Itself, as of a function."""
        return self

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in launch order: a kernel is one launch, one grid, nothing materialised in between."""
        return tuple(k for p in self.plans for k in p.kernels)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """What is left to PyTorch: (operation, reason) pairs, with the user's line where known."""
        return tuple(f for p in self.plans for f in p.fallbacks)

    @property
    def trace(self) -> Trace:
        """Every rewrite: rule, place, program before and after."""
        return Trace(s for p in self.plans for r in p.regions for s in r.trace)

    def explain(self) -> Report:
        """The whole story as text: captured program, rewrites, block programs, schedule, verdict, fallbacks."""
        return report(self.plans)
