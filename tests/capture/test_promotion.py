"""Operands of every pair of element types: what capture makes of them has eager's type and eager's numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from testkit.capture.collector import Collector
from testkit.walk import WALK_ALL
from weft.tensor.dtypes import DType
from weft.tensor.optable import DERIVED, MASK_ATEN, PRIMITIVES

DTYPES = tuple(getattr(torch, d.name) for d in DType if not d.is_foreign and not d.is_kept)
FORMS = ("tensors", "second without dimensions", "first without dimensions", "number second", "number first")
ATEN = sorted(
    {name.removeprefix("aten.") for r in (*PRIMITIVES, *DERIVED) if r.arity == 2 for name in r.aten}
    | {name.removeprefix("aten.") for name in MASK_ATEN if name != "aten.bitwise_not"}
)
DIVIDE = ("div", "remainder", "fmod", "floor_divide")
UNARY = sorted({name.removeprefix("aten.") for r in (*PRIMITIVES, *DERIVED) if r.arity == 1 for name in r.aten})
REASONS = {
    "-1 is not a number of type uint8",
    "it divides integers by what may be 0, for which PyTorch raises an error",
    *(f"weft does not compute aten.floor_divide on {d}" for d in DType if d.is_float),
}
Operand = torch.Tensor | float


def numbers(dtype: torch.dtype, name: str, *, second: bool) -> torch.Tensor:
    """Few numbers that every element type has nearly, and the extreme ones of integers where nothing traps."""
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True, False, True])
    if dtype.is_floating_point:
        return torch.tensor([0.5, 3.0, 1.25, 2.0, 5.5, 1.0] if second else [2.5, -1.5, 0.75, -3.0, 4.0, 0.0]).to(dtype)
    if name == "pow":
        return torch.tensor([2, 0, 1, 3, 5, 7] if second else [3, -2, 0, 1, -1, 5]).to(dtype)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if name == "floor_divide":  # of floats it is PyTorch's, and here that computes in fp64, where nothing overflows
        low, high = 0, 100
    if second:
        return torch.tensor([3, 1, 2, 7, 5, 4] if name in DIVIDE else [3, -1, high, 7, low, 4]).to(dtype)
    return torch.tensor([5, -7, high, low, 0, 100]).to(dtype)


def pairs(name: str, form: str) -> Iterator[tuple[Operand, Operand]]:
    """Operands of a call, of every pair of types where both are tensors."""
    if form in ("tensors", "second without dimensions", "first without dimensions"):
        for one, other in itertools.product(DTYPES, DTYPES):
            a, b = numbers(one, name, second=False), numbers(other, name, second=True)
            yield a[0] if form.startswith("first") else a, b[0] if form.startswith("second") else b
        return
    for dtype in DTYPES:
        for number in (True, 3, 2.5, *(() if dtype == torch.bool else (-1,))):
            if form == "number second":
                yield numbers(dtype, name, second=False), number
            else:
                yield number, numbers(dtype, name, second=True)


def works(function: Callable[..., Any], *operands: Operand) -> bool:
    """Tells whether eager does it: what eager refuses is not captured."""
    try:
        function(*operands)
    except (RuntimeError, TypeError):
        return False
    return True


def same(found: torch.Tensor, wanted: torch.Tensor, dtype: DType) -> bool:
    """Eager's type; its numbers, up to a few roundings."""
    if f"torch.{dtype.name}" != str(wanted.dtype) or found.shape != wanted.shape:
        return False
    if not wanted.dtype.is_floating_point:
        return torch.equal(found.to(wanted.dtype), wanted)
    eps, biggest = torch.finfo(wanted.dtype).eps, torch.finfo(wanted.dtype).max
    rounded = torch.where(found.abs() > biggest, found.sign() * float("inf"), found.double())
    return bool(torch.allclose(rounded, wanted.double(), rtol=4 * eps, atol=16 * eps, equal_nan=True))


def check(weft: Any, function: Callable[..., Any], calls: list[tuple[Operand, ...]]) -> set[str]:
    """One graph that makes all `calls`; the reasons of those that were left to PyTorch."""
    calls = [c for c in calls if works(function, *c)]
    if not calls:
        return set()
    tensors = [tuple(o for o in c if isinstance(o, torch.Tensor)) for c in calls]

    def everything(given: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        for call, mine in zip(calls, given, strict=True):
            rest = iter(mine)
            made.append(function(*(next(rest) if isinstance(o, torch.Tensor) else o for o in call)))
        return made

    found, wanted = weft.run(everything, tensors), everything(tensors)
    program = weft.only.program
    assert program is not None, weft.only.refused
    types = {n.name: n.dtype for n in (*program.inputs, *program.nodes)}
    dtypes = [types[program.outputs[r.index]] for r in weft.only.results]
    wrong = [(call, f, w, d) for call, f, w, d in zip(calls, found, wanted, dtypes, strict=True) if not same(f, w, d)]
    assert not wrong, f"{len(wrong)} of {len(calls)}: {wrong[:5]}"
    return {f.reason for f in weft.only.fallbacks}


def walk(weft: Any, name: str, share: int) -> set[str]:
    """A binary operation on every `share`-th pair of types, in every form; the reasons of what was left to PyTorch."""
    calls = [c for form in FORMS for c in pairs(name, form)]
    # The types of fake tensors are wrong here: PyTorch makes bool ** True a bool, and says that it is int64.
    calls = [c for c in calls if not (name == "pow" and c[1] is True and torch.bool == getattr(c[0], "dtype", None))]
    with np.errstate(all="ignore"):
        return check(weft, getattr(torch.ops.aten, name), calls[len(name) % share :: share])


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", ATEN)
def test_binary_rows_on_pairs_of_types(weft: Any, name: str) -> None:
    """Every seventh pair, other ones for each operation; `python tests/capture/test_promotion.py` takes all."""
    assert walk(weft, name, 7) <= REASONS


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["add", "lt"])
def test_every_pair_of_types_promotes_as_in_eager(weft: Any, name: str) -> None:
    """Every third pair; with WALK_ALL=1 every one."""
    assert walk(weft, name, 1 if WALK_ALL else 3) <= REASONS


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", UNARY)
def test_unary_rows_on_every_type(weft: Any, name: str) -> None:
    packet = getattr(torch.ops.aten, name)
    with np.errstate(all="ignore"):
        reasons = check(weft, packet, [(numbers(d, name, second=False),) for d in DTYPES])
    assert reasons <= {"weft does not compute sign with a result of type bool"}


if __name__ == "__main__":
    for each in ATEN:
        print(each, walk(Collector(), each, 1))
