"""Passes as data: what a rewrite of programs is, one application of it, and a program with the applications that made it.

Laws on tensor programs, rules and passes on block programs are all such; `weft.pipeline` lists them in order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar

from weft.tensor.dtypes import DType

A = ParamSpec("A")
P = TypeVar("P")
R = TypeVar("R")

Path: TypeAlias = tuple[str, ...]
"""The names of the maps that lead from the top-level graph to an inner one; () is the top level."""


class Conditioning(Enum):
    """What a law that holds for real numbers does to rounded ones."""

    exact = "exact"
    """The same operations on the same elements, in the same order: nothing is rounded differently."""

    rounding = "rounding"
    """Rounds elsewhere; the bound on the relative error is as before, up to a small factor."""

    cancels = "cancels"
    """Subtracts numbers that may be far larger than their difference: the relative error has no bound."""


class Bears(Enum):
    """What magnitudes of inputs a program bears after a pass, without overflow or underflow."""

    as_before = "as before"
    """All that it bore before the pass."""

    checked = "checked"
    """Perhaps fewer: `weft.verify.Ranges` compares the candidate with the program as written before it is chosen."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What passes depend on beside the program.

    Attributes:
        kind: of the target, as the target itself names it.
        units: element types that the machine multiplies faster than the next wider ones.
        lengths: of spaces, by name, where loops may be nested in any order; else None.
        doubles: the target computes in float64, so that what PyTorch carries in it on a CPU is carried so.
        plain: how many exponentials may stay as written when others become pairs; None: any number.
        orders: of results by number, the order in which eager has their dimensions in memory.
        inputs: names that stay when values are renamed.
    """

    kind: str = "cpu"
    units: frozenset[DType] = frozenset()
    lengths: Mapping[str, int] | None = None
    doubles: bool = True
    plain: int | None = None
    orders: tuple[tuple[int, tuple[int, ...]], ...] = ()
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pass(Generic[A, R]):
    """A rewrite of programs that keeps what they compute; called, it is applied.

    Attributes:
        name: the law's name, unique.
        rewrite: gives the program after it, of the program before and the step's arguments; an equal one where nothing changes.
        on: what it rewrites.
        conditioning: what it does to floating-point results.
        bears: what it does to the range of inputs.
        kinds: of the targets that it is for; all of them where empty.
        needs: element types that the machine must have units for (`Setting.units`).
        takes: the attributes of `Setting` that are its arguments.
    """

    name: str
    rewrite: Callable[A, R]
    on: Literal["tensor", "block"]
    conditioning: Conditioning
    bears: Bears = Bears.as_before
    kinds: tuple[str, ...] = ()
    needs: tuple[DType, ...] = ()
    takes: tuple[str, ...] = ()

    def __call__(self, *args: A.args, **kwargs: A.kwargs) -> R:
        """Apply the pass."""
        return self.rewrite(*args, **kwargs)

    def again(self, program: Any, step: Step) -> Any:
        """Apply the pass as `step` did."""
        rewrite: Callable[..., Any] = self.rewrite
        return rewrite(program, *step.arguments)

    def applies(self, setting: Setting) -> bool:
        """Tell whether the pass is for this setting."""
        return (not self.kinds or setting.kind in self.kinds) and setting.units.issuperset(self.needs)

    @property
    def says(self) -> str:
        """Describe the pass in one sentence: the first line of its function's docstring."""
        return inspect.cleandoc(self.rewrite.__doc__ or self.name).splitlines()[0].rstrip(".")


def tensor_pass(
    conditioning: Conditioning = Conditioning.exact, bears: Bears = Bears.as_before, **data: Any
) -> Callable[[Callable[A, R]], Pass[A, R]]:
    """Make a function on tensor programs a pass of the same name; `data` are further attributes."""
    return lambda rewrite: Pass(rewrite.__name__, rewrite, "tensor", conditioning, bears, **data)


def block_pass(
    conditioning: Conditioning = Conditioning.exact, bears: Bears = Bears.as_before, **data: Any
) -> Callable[[Callable[A, R]], Pass[A, R]]:
    """Make a function on block programs a pass of the same name; `data` are further attributes."""
    return lambda rewrite: Pass(rewrite.__name__, rewrite, "block", conditioning, bears, **data)


@dataclass(frozen=True, slots=True)
class Step:
    """One application of a pass: all that is needed to apply it again.

    Attributes:
        rule: the pass's name.
        place: the graph that a rule rewrote, at its first match there; None where the pass rewrote the whole program.
        arguments: of the pass, beside the program.
    """

    rule: str
    place: Path | None = None
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        where = "the whole program" if self.place is None else " > ".join(self.place) or "the top level"
        return f"{self.rule} in {where}"


@dataclass(frozen=True, slots=True)
class Change(Step, Generic[P]):
    """A step with the programs before and after it."""

    before: P = field(kw_only=True)
    after: P = field(kw_only=True)

    @property
    def step(self) -> Step:
        """The step alone."""
        return Step(self.rule, self.place, self.arguments)

    def __str__(self) -> str:
        return str(self.step)

    def __repr__(self) -> str:
        """Leave out the programs, which are pages."""
        return f"<Change: {self}>"


@dataclass(frozen=True, slots=True)
class Rewritten(Generic[P]):
    """A program, and the steps that made it."""

    program: P
    steps: tuple[Step, ...] = ()

    def under(self, passes: Iterable[Pass[..., Any]], setting: Setting) -> Rewritten[Any]:
        """Apply those of `passes` that are for `setting`, in order; each that changes the program is a step."""
        made: Any = self.program
        steps = list(self.steps)
        for each in passes:
            if each.applies(setting):
                step = Step(each.name, None, tuple(getattr(setting, name) for name in each.takes))
                after = each.again(made, step)
                if after is not made and after != made:
                    steps.append(step)
                made = after
        return Rewritten(made, tuple(steps))
