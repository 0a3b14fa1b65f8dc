"""The error rule: whether an output is as close to fp64 as eager's own.

    e(y) = max |y - ref64|          e(weft) <= 2 e(eager) + 2 eps(dtype) max|ref64|

for each floating output, with the maxima taken over all draws together. Two right programs round
differently, but not by orders: the rule is relative to what eager itself loses in the same dtype,
and never tighter than two roundings of the largest result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import torch

from weft.errors import JudgementError, ReferenceDTypeError, WeftError, named

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Draws(Generic[T]):
    """The results of several random inputs, judged together.

    One draw of an ill-conditioned case is luck: give four or more.

    Raises:
        WeftError: where there is none.
    """

    results: Sequence[T]

    def __post_init__(self) -> None:
        if not self.results:
            raise WeftError("no draws to judge", todo="give Draws at least one result, better four or more")


@dataclass(frozen=True, slots=True)
class IndexGap:
    """How clear each winner of an index output (argmax, topk) is.

    Attributes:
        gap: fp64, of the output's shape: how far the winner's fp64 value is ahead of the
            runner-up's.
        bound: the error that the rule allows for these values (`allowed_error`).
    """

    gap: torch.Tensor
    bound: float


@dataclass(frozen=True, slots=True)
class OutputJudgement:
    """One output under the rule.

    Attributes:
        name: its path in the result: "out", "out[1]", "out['loss'][0]".
        ok: it keeps the rule.
        error: floating: e(weft), inf where NaN or inf are not where eager has them; otherwise how
            many elements differ.
        eager_error: floating: e(eager), else 0.
        bound: the largest error allowed.
        worst: index of the element that decides: the first in the wrong class, else the one with
            the largest error; None for an output that is empty or could not be compared.
        draw: the number of the draw that `worst` is in.
        reason: "" where ok, else what is wrong.
    """

    name: str
    ok: bool
    error: float = 0.0
    eager_error: float = 0.0
    bound: float = 0.0
    worst: tuple[int, ...] | None = None
    draw: int = 0
    reason: str = ""

    def __str__(self) -> str:
        figures = f"error {self.error:.3g}, eager {self.eager_error:.3g}, bound {self.bound:.3g}"
        at = "" if self.worst is None else f", worst at {list(self.worst)} of draw {self.draw}"
        return f"{self.name}: {'ok' if self.ok else 'WRONG'}: {figures}{at}" + (
            f": {self.reason}" if self.reason else ""
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `judge` found; true where every output keeps the rule."""

    outputs: tuple[OutputJudgement, ...]

    @property
    def ok(self) -> bool:
        """True where every output keeps the rule."""
        return all(output.ok for output in self.outputs)

    @property
    def reason(self) -> str:
        """Why not, by output; "" where ok."""
        return "; ".join(f"{o.name}: {o.reason}" for o in self.outputs if not o.ok)

    def check(self) -> Judgement:
        """Returns the judgement itself.

        Raises:
            JudgementError: where it is not `ok`.
        """
        if not self.ok:
            raise JudgementError(f"outputs outside the error rule: {self.reason}\n{self}")
        return self

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "\n".join(map(str, self.outputs)) or "no outputs"


@named("weft.judge")
def judge(out: object, eager: object, reference: object, *, gaps: object = None) -> Judgement:
    """Tells whether `out` keeps the error rule.

    Args:
        out: what weft gave: a tensor, or a nest of tuples, lists and dicts of tensors; or `Draws`
            of such.
        eager: what PyTorch gives for the same inputs in the same dtypes; `Draws` where `out` is.
        reference: the same program on fp64 copies of the inputs (see `reference`); `Draws` where
            `out` is.
        gaps: a result of the same structure, or `Draws` of such, with an `IndexGap` at each index
            output whose near-ties may fall either way and None elsewhere. Without it, integer
            outputs must equal eager's.

    NaN and inf must be exactly where eager has them; those elements, and those where the reference
    is not finite, do not enter the maxima. Structure, shapes and dtypes must be eager's.

    Raises:
        ReferenceDTypeError: where the reference of a floating output is not float64.
        WeftError: where some arguments are `Draws` and others are not, or their numbers differ.
    """
    draws = _draws(out, eager, reference, gaps)
    found: dict[str, list[_Leaf]] = {}
    for number, (mine, theirs, exact, gap) in enumerate(draws):
        _pair("out", mine, theirs, exact, gap, number, found)
    return Judgement(tuple(_judged(name, leaves) for name, leaves in found.items()))


def allowed_error(eager: torch.Tensor, reference: torch.Tensor) -> float:
    """Computes the error that the rule allows for `eager`'s floating values: 2 e(eager) + 2 eps max|reference|."""
    counted = torch.isfinite(eager) & torch.isfinite(reference)
    error = _error(eager, reference, counted)[0]
    return _bound(error, _peak(reference, counted), eager.dtype)


def reference(
    fn: Callable[..., object], inputs: Sequence[object], kwargs: Mapping[str, object] | None = None
) -> object:
    """Computes `fn` in fp64, without gradients: the third argument of `judge`.

    Floating tensors, a module's too, are copied to float64, and new tensors that `fn` makes
    without a dtype are float64. A cast to a narrower type that `fn` itself writes stays.

    Args:
        fn: a function, or a `torch.nn.Module`, which is copied and not changed.
        inputs: positional arguments: tensors, nests of tensors, anything else is passed as it is.
        kwargs: keyword arguments, likewise.
    """
    wide = deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            return wide(
                *(_widened(value) for value in inputs),
                **{name: _widened(value) for name, value in (kwargs or {}).items()},
            )
    finally:
        torch.set_default_dtype(default)


# One output of one draw, and what is wrong with it before any number is compared.


@dataclass(frozen=True, slots=True)
class _Leaf:
    draw: int
    mismatch: str = ""
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # weft, eager, reference
    gap: IndexGap | None = None


def _draws(*given: object) -> Iterator[tuple[object, ...]]:
    """Yields one tuple per draw, with None where no gaps are given."""
    several = [cast("Draws[object]", g) for g in given if isinstance(g, Draws)]
    if not several:
        return iter([given])
    counts = {len(draws.results) for draws in several}
    if any(g is not None and not isinstance(g, Draws) for g in given[:3]) or len(counts) != 1:
        raise WeftError(
            "out, eager and reference are not the same number of draws",
            todo="wrap each in Draws, with one result for each random input",
        )
    if given[3] is not None and not isinstance(given[3], Draws):
        raise WeftError("gaps are given once for several draws", todo="wrap them in Draws too")
    (count,) = counts
    columns = [cast("Draws[object]", g).results if isinstance(g, Draws) else [None] * count for g in given]
    return iter(zip(*columns, strict=True))


def _pair(
    name: str,
    out: object,
    eager: object,
    exact: object,
    gap: object,
    draw: int,
    found: dict[str, list[_Leaf]],
) -> None:
    """Walks the results together and adds their leaves to `found` by path."""
    mine, theirs, wide = _children(out), _children(eager), _children(exact)
    if theirs is None and mine is None and wide is None:
        found.setdefault(name, []).append(_leaf(name, out, eager, exact, gap, draw))
        return
    if theirs is None or mine is None or wide is None or not mine.keys() == theirs.keys() == wide.keys():
        what = ", ".join(
            f"{who} {_shape_of(value)}" for who, value in (("weft", out), ("eager", eager), ("fp64", exact))
        )
        found.setdefault(name, []).append(_Leaf(draw, f"the structures differ: {what}"))
        return
    inner = _children(gap) or {}
    for key, value in mine.items():
        _pair(f"{name}[{key!r}]", value, theirs[key], wide[key], inner.get(key), draw, found)


def _children(value: object) -> dict[object, object] | None:
    """Returns the parts of a tuple, list or dict by key; None for a leaf."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, tuple | list):
        return dict(enumerate(cast("Sequence[object]", value)))
    return None


def _shape_of(value: object) -> str:
    children = _children(value)
    return type(value).__name__ if children is None else f"{type(value).__name__} of {list(children)}"


def _leaf(name: str, out: object, eager: object, exact: object, gap: object, draw: int) -> _Leaf:
    out, eager, exact = _numbers(out), _numbers(eager), _numbers(exact)
    if not isinstance(eager, torch.Tensor) or not isinstance(out, torch.Tensor):
        same = type(out) is type(eager) and (out is eager or (not isinstance(out, torch.Tensor) and out == eager))
        return _Leaf(draw, "" if same else f"weft gives {_brief(out)}, eager {_brief(eager)}")
    if not isinstance(exact, torch.Tensor):
        raise ReferenceDTypeError(f"the reference of {name} is {_brief(exact)}, not a tensor")
    if out.dtype != eager.dtype:
        return _Leaf(draw, f"dtype {out.dtype}, eager gives {eager.dtype}")
    if out.shape != eager.shape:
        return _Leaf(draw, f"shape {list(out.shape)}, eager gives {list(eager.shape)}")
    if exact.shape != eager.shape:
        return _Leaf(draw, f"shape {list(out.shape)}, the fp64 reference has {list(exact.shape)}")
    if eager.dtype.is_complex:
        return _Leaf(draw, f"the error rule says nothing of {eager.dtype}")
    if eager.dtype.is_floating_point != (exact.dtype == torch.float64) or exact.dtype.is_complex:
        wanted = "torch.float64" if eager.dtype.is_floating_point else "an integer type or bool"
        raise ReferenceDTypeError(
            f"the reference of {name} is {exact.dtype}, but the output is {eager.dtype}: it must be {wanted}"
        )
    tensors = (out.detach().cpu(), eager.detach().cpu(), exact.detach().cpu())
    return _Leaf(draw, "", tensors, gap if isinstance(gap, IndexGap) else None)


def _numbers(value: object) -> object:
    """Returns a Python float as a tensor, anything else as it is."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value


def _brief(value: object) -> str:
    return f"a tensor in {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)


def _judged(name: str, leaves: list[_Leaf]) -> OutputJudgement:
    wrong = next((leaf for leaf in leaves if leaf.mismatch), None)
    if wrong is not None:
        return OutputJudgement(name, ok=False, error=math.inf, draw=wrong.draw, reason=wrong.mismatch)
    compared = [(leaf, leaf.tensors) for leaf in leaves if leaf.tensors is not None]
    if not compared:
        return OutputJudgement(name, ok=True)
    dtypes = {eager.dtype for _, (_, eager, _) in compared}
    if len(dtypes) > 1:
        raise WeftError(f"the draws of {name} have different dtypes", todo="judge each dtype on its own")
    if dtypes.pop().is_floating_point:
        return _judged_floats(name, compared)
    return _judged_integers(name, compared)


_Compared = list[tuple[_Leaf, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]


@dataclass(slots=True)
class _Maxima:
    """The largest errors so far and where they are."""

    error: float = -1.0
    eager_error: float = 0.0
    peak: float = 0.0
    worst: tuple[int, ...] | None = None
    draw: int = 0
    eager_is: torch.dtype = field(default=torch.float64)


def _judged_floats(name: str, compared: _Compared) -> OutputJudgement:
    most = _Maxima()
    for leaf, (given, theirs, exact) in compared:
        out, eager = given.double(), theirs.double()  # of 8 bits PyTorch compares nothing
        misplaced = _misplaced(out, eager)
        if misplaced is not None:
            what = f"weft gives {out[misplaced].item()} where eager gives {eager[misplaced].item()}"
            return OutputJudgement(name, False, math.inf, worst=misplaced, draw=leaf.draw, reason=what)
        counted = torch.isfinite(eager) & torch.isfinite(exact)
        error, worst = _error(out, exact, counted)
        if worst is not None and error > most.error:
            most.error, most.worst, most.draw = error, worst, leaf.draw
        most.eager_error = max(most.eager_error, _error(eager, exact, counted)[0])
        most.peak = max(most.peak, _peak(exact, counted))
        most.eager_is = theirs.dtype
    error, bound = max(0.0, most.error), _bound(most.eager_error, most.peak, most.eager_is)
    reason = "" if error <= bound else f"error {error:.3g} is {_times(error, bound)} the bound of {bound:.3g}"
    return OutputJudgement(name, error <= bound, error, most.eager_error, bound, most.worst, most.draw, reason)


def _judged_integers(name: str, compared: _Compared) -> OutputJudgement:
    count, worst, draw, reason = 0, None, 0, ""
    for leaf, (out, eager, exact) in compared:
        if leaf.gap is None:
            differs, right = out != eager, eager
        else:
            differs, right = (out != exact) & (leaf.gap.gap.cpu() > leaf.gap.bound), exact
        found = int(differs.sum())
        if found and worst is None:
            worst, draw = _first(differs), leaf.draw
            reason = f"{out[worst].item()} where {right[worst].item()} is right"
        count += found
    return OutputJudgement(name, count == 0, float(count), worst=worst, draw=draw, reason=reason)


def _misplaced(out: torch.Tensor, eager: torch.Tensor) -> tuple[int, ...] | None:
    """Finds the first element where one has a NaN or an infinity and the other does not have the same."""
    for here in (torch.isnan, torch.isposinf, torch.isneginf):
        differs = here(out) != here(eager)
        if bool(differs.any()):
            return _first(differs)
    return None


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in mask.nonzero()[0])


def _error(values: torch.Tensor, exact: torch.Tensor, counted: torch.Tensor) -> tuple[float, tuple[int, ...] | None]:
    """Computes max |values - exact| over the elements that count, and where; (0, None) where none does."""
    if not bool(counted.any()):
        return 0.0, None
    distance = torch.where(counted, (values.double() - exact).abs(), -1.0)
    flat = int(distance.argmax())
    place = torch.unravel_index(torch.tensor(flat), distance.shape)
    return float(distance.flatten()[flat]), tuple(int(i) for i in place)


def _peak(exact: torch.Tensor, counted: torch.Tensor) -> float:
    return float(exact[counted].abs().max()) if bool(counted.any()) else 0.0


def _bound(eager_error: float, peak: float, dtype: torch.dtype) -> float:
    return 2.0 * eager_error + 2.0 * torch.finfo(dtype).eps * peak


def _times(error: float, bound: float) -> str:
    return f"{error / bound:.3g} times" if bound else "beyond"


def _widened(value: object) -> object:
    """Returns `value` with its floating tensors as detached float64 copies, and other tensors copied."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        return copy.double() if copy.is_floating_point() else copy
    if isinstance(value, Mapping):
        return {key: _widened(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, tuple | list):
        items = [_widened(item) for item in cast("Sequence[object]", value)]
        if isinstance(value, list):
            return items
        make = getattr(cast("object", value), "_make", tuple)  # a named tuple stays one
        return make(items)
    return value
