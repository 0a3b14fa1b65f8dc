"""Stores at indices, counts by comparison and writes into parts in kernels, beside eager: shapes, types, indices that are none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import weft

INF, NAN = float("inf"), float("nan")


def check(function: Callable[..., Any], *args: torch.Tensor, kernels: int | None = 1) -> weft.Program:
    """All of it is in so many kernels, verified and judged, and gives what eager gives, laid out as there."""
    program = weft.optimize(function, args, judge="always")
    assert not program.fallbacks
    assert kernels is None or len(program.kernels) == kernels
    assert all(k.verdict.agrees for k in program.kernels)
    assert {k.judged for k in program.kernels} == {"right on hard inputs"}
    found, wanted = program(*args), function(*args)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert found.stride() == wanted.stride()
    return program


X, ROWS, TWO = torch.randn(7, 9, 6), torch.tensor([3, 0, 6, 6, 2]), torch.tensor([6, 2])
EACH, SOURCE = torch.randint(0, 9, (7, 4, 6)), torch.randn(7, 4, 6)
ONE, LAST = torch.randint(0, 9, (7, 1, 6)), torch.tensor([8])
W = torch.randn(20, 5)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "one_hot": (lambda i: functional.one_hot(i, 7), (ROWS,)),
    "one_hot of a table": (lambda i: functional.one_hot(i, 9).float() * 2, (EACH,)),
    "one_hot, multiplied": (lambda i, w: functional.one_hot(i, 20).float() @ w, (ROWS, W)),
    "scatter_add": (lambda x, i, y: x.scatter_add(1, i, y), (X, EACH, SOURCE)),
    "scatter_add of more": (lambda x, i, y: x.scatter_add(1, i[:, :3], y), (X, EACH, SOURCE)),
    "scatter_add of one": (lambda x, i, y: (x * 2).scatter_add(1, i, y) + 1, (X, ONE, SOURCE)),
    "scatter_add to the last": (lambda x, i, y: x.scatter_add(-1, i, y), (X, torch.randint(0, 6, (7, 9, 3)), torch.randn(7, 9, 3))),
    "scatter of a number": (lambda x, i: x.scatter(1, i, 0.5) * 2, (X, EACH)),
    "scatter of one": (lambda x, i, y: x.scatter(1, i, y), (X, ONE, SOURCE)),
    "scatter_reduce": (lambda x, i, y: x.scatter_reduce(1, i, y, "amax"), (X, EACH, SOURCE)),
    "scatter_reduce without itself": (lambda x, i, y: x.scatter_reduce(1, i, y, "amin", include_self=False), (X, EACH, SOURCE)),
    "scatter_reduce to a sum": (lambda x, i, y: x.scatter_reduce(1, i, y, "sum"), (X, EACH, SOURCE)),
    "index_add": (lambda x, i, y: x.index_add(0, i, y), (X, TWO, torch.randn(2, 9, 6))),
    "index_add, scaled": (lambda x, i, y: x.index_add(0, i, y, alpha=-3), (X, TWO, torch.randn(2, 9, 6))),
    "index_copy of one": (lambda x, i, y: x.index_copy(1, i, y), (X, LAST, torch.randn(7, 1, 6))),
    "index_fill": (lambda x, i: x.index_fill(0, i, -INF).exp(), (X, TWO)),
    "index_put, added": (lambda x, i, y: x.index_put((i,), y, accumulate=True), (X, TWO - 7, torch.randn(2, 9, 6))),
    "index_put at one": (lambda x, i, y: x.index_put((i,), y), (X, torch.tensor(-2), torch.randn(9, 6))),
    "index_put of pairs": (lambda x, i, j, y: x.index_put((i, j), y, accumulate=True), (X, TWO, TWO - 4, torch.randn(2, 6))),
    "index_put of one pair": (lambda x, i, y: x.index_put((i, torch.tensor(3)), y), (X, TWO, torch.randn(6))),
    "index_put of elements": (lambda x, i, y: (x * 2).index_put((i, i, i % 6), y), (X, TWO, torch.randn(2))),
    "scatter_reduce to a product": (lambda x, i, y: x.scatter_reduce(1, i, y, "prod", include_self=False), (X, EACH, SOURCE)),
    "index_put of a number": (lambda x, i: (x * 1).index_put((i,), torch.tensor(2.0)), (X, TWO)),
    "a mask": (lambda x, m: (x * 2).index_put((m,), torch.tensor(0.0)), (X, X > 0)),
    "a mask of rows": (lambda x, m: (x * 2).index_put((m,), torch.tensor(0.0)), (X, X[..., 0] > 0)),
    "select_scatter": (lambda x, y: torch.select_scatter(x * 2, y, 1, -2), (X, torch.randn(7, 6))),
    "slice_scatter of one": (lambda x, y: torch.slice_scatter(x * 2, y, 1, 3, 4), (X, torch.randn(7, 1, 6))),
    "slice_scatter of all": (lambda x, y: torch.slice_scatter(x * 2, y * 3, 1), (X, torch.randn(7, 9, 6))),
    "slice_scatter of rows that lie apart": (lambda x, y: torch.slice_scatter(x[0].T, y, 0, 1, 3), (X, torch.randn(2, 9))),
    "index_put of rows that lie apart": (lambda x, i, y: x[0].T.index_put((i,), y), (X, ROWS - 4, torch.randn(5, 9))),
    "histc": (lambda x: torch.histc(x, 10, -1, 1.5), (X,)),
    "histc of integers": (lambda i: torch.histc(i.float(), bins=9, min=0, max=8), (EACH,)),
    "NaN and infinities stored": (lambda x, i, y: x.index_add(0, i, y), (X[0, :, 0], TWO, torch.tensor([NAN, -INF]))),
    "NaN counted": (lambda x: torch.histc(x, 4, 0, 1), (torch.tensor([NAN, 0.2, INF, 1.0, -0.0, -INF, 2.0]),)),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(name: str) -> None:
    function, args = FUNCTIONS[name]
    check(function, *args)


@pytest.mark.parametrize("step", [1, 2])
def test_a_slice_of_columns_that_lie_side_by_side_lies_as_eagers(step: int) -> None:
    def stored(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x.T, y, 1, 1, 1 + 2 * step, step)

    args = torch.randn(6, 9), torch.randn(9, 2)
    found, wanted = weft.optimize(stored, args)(*args), stored(*args)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_what_has_no_elements_has_a_say_in_how_a_join_lies(layout: torch.memory_format) -> None:
    def joined(x: torch.Tensor, none: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, none, x], 1)

    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    args = x, torch.empty(2, 0, 4, 5).contiguous(memory_format=layout)
    found, wanted = weft.optimize(joined, args)(*args), joined(*args)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("name", ["scatter", "index_copy", "index_put"])
def test_of_several_with_one_index_the_last_stays(name: str) -> None:
    stores: dict[str, Callable[..., torch.Tensor]] = {
        "scatter": lambda x, i, y: x.scatter(0, i[:, None].expand(2, 6), y),
        "index_copy": lambda x, i, y: x.index_copy(0, i, y),
        "index_put": lambda x, i, y: x.index_put((i,), y),
    }
    check(stores[name], torch.randn(7, 6), torch.tensor([4, 4]), torch.randn(2, 6))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_element_types(dtype: torch.dtype, index: torch.dtype) -> None:
    x, y = (3 * torch.randn(7, 6)).to(dtype), (3 * torch.randn(2, 6)).to(dtype)
    check(lambda x, i, y: x.index_add(0, i, y), x, TWO.to(index), y)
    check(lambda x, i, y: x.index_put((i,), y), x, torch.tensor([-3]).to(index), y[:1])


def test_a_router_is_few_kernels_with_no_store_among_them() -> None:
    """Weights of the first experts, where a row has them: what chooses them and what spreads them join."""

    def router(x, w):
        weights, experts = (x @ w).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        return torch.zeros(x.shape[0], w.shape[1]).scatter(1, experts, weights)

    program = weft.optimize(router, (torch.randn(11, 16), torch.randn(16, 8)))
    assert not program.fallbacks
    x, w = torch.randn(11, 16), torch.randn(16, 8)
    torch.testing.assert_close(program(x, w), router(x, w))


STORES: dict[str, Callable[..., torch.Tensor]] = {
    "one_hot": lambda x, i: functional.one_hot(i, 11).float() + x[0],
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(3, 11), 2.0) + 1,
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(3, 11), x) + 1,
    "index_add": lambda x, i: x.index_add(0, i[:2], x[:2]) + 1,
    "index_copy": lambda x, i: x.index_copy(0, i[:2], x[:2]) + 1,
    "index_fill": lambda x, i: x.index_fill(1, i[:2], 2.0) + 1,
    "index_put": lambda x, i: x.index_put((i[:2],), x[:2], accumulate=True) + 1,
}


@pytest.mark.parametrize("name", STORES)
def test_what_is_no_index_raises_eagers_error(name: str) -> None:
    """And the next call, whose indices are right, is weft's."""
    function, x = STORES[name], torch.randn(11, 11)
    right = torch.tensor([0, 10, 3])
    program = weft.optimize(function, (x, right))
    assert not program.fallbacks
    for wrong in (11, -12, 2**40, -(2**62)):
        bad = torch.tensor([0, wrong, 3])
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            function(x, bad)
        with pytest.raises(wanted.type, match=re.escape(str(wanted.value).splitlines()[0])):
            program(x, bad)
    torch.testing.assert_close(program(x, right), function(x, right))


def inverse(perm: torch.Tensor) -> torch.Tensor:
    """Inverts a permutation as the mixtures of experts in transformers do."""
    inv = torch.empty_like(perm)
    inv[perm] = torch.arange(perm.size(0))
    return inv


@pytest.mark.parametrize("size", [1, 2, 65, 600, 5000])
def test_a_permutation_is_inverted_by_a_kernel(size: int) -> None:
    program = check(inverse, torch.randperm(size), kernels=None)
    assert any("weft::row_of(" in kernel.source for kernel in program.kernels) or size <= 2
    sorted_twice = torch.randperm(size).sort().indices
    assert torch.equal(program(sorted_twice), inverse(sorted_twice))
    assert torch.equal(program(sorted_twice - size), inverse(sorted_twice))


def test_one_binary_inverts_permutations_of_any_length() -> None:
    compiled = weft.compile(inverse, dynamic=True)
    known = list[int]()
    for size in (300, 320, 700, 4097):
        perm = torch.randperm(size)
        assert torch.equal(compiled(perm), inverse(perm))
        known.append(weft.stats().compiles)
    assert known[1:] == known[-1:] * 3, "Dynamo asks for one length first, and for any then"


X500, X200 = torch.randn(500, 10), torch.randn(200, 10)
ANY, ROWS500, INTEGERS = torch.randint(0, 200, (900,)), torch.randn(900, 10), torch.randint(-9, 9, (900, 10))
X3, PAIRS = torch.randn(3, 200, 4), torch.randperm(2000)
POSITIVE, SPECIAL = ROWS500[:, 0].exp(), torch.tensor([0.0, INF, NAN] * 300)
TO, IN_ROWS = INTEGERS[:200], torch.randint(0, 50, (30, 70))
MANY: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "index_put": (lambda x, i, y: (x * 2).index_put((i,), y) + 1, (X500, torch.randperm(500)[:300], X500[:300])),
    "index_put of int32": (lambda x, i, y: x.index_put((i,), y), (X500, torch.randperm(500, dtype=torch.int32), X500 * 2)),
    "from the end": (lambda x, i, y: x.index_put((i,), y), (X500[:, 0], torch.randperm(500)[:90] - 500, X200[:90, 1])),
    "computed rows": (lambda x, i, y: x.index_put((i,), y.exp()).sum(1), (X200, torch.randperm(200), X200 * 3)),
    "a number": (lambda x, i: x.index_put((i,), torch.tensor(2.0)), (X500, torch.randperm(500)[:200])),
    "a row": (lambda x, i, y: x.index_put((i,), y), (X500, torch.randperm(500)[:200], X500[0])),
    "pairs": (lambda x, i, j, y: x.index_put((i, j), y), (X200, PAIRS // 10, PAIRS % 10, X200.flatten())),
    "along the second": (lambda x, i, y: torch.ops.aten.index_put(x, [None, i], y), (X3, torch.randperm(200), X3 * 2)),
    "index_put, added": (lambda x, i, y: x.index_put((i,), y, accumulate=True), (X200, ANY - 200, ROWS500)),
    "a number added": (lambda x, i: x.index_put((i,), torch.tensor(2), accumulate=True), (TO, ANY)),
    "index_add": (lambda x, i, y: x.index_add(0, i, y, alpha=2), (X200, ANY, ROWS500)),
    "index_add of integers": (lambda x, i, y: x.index_add(0, i, y), (TO, ANY, INTEGERS)),
    "index_add of bytes": (lambda x, i, y: x.index_add(0, i, y), (TO.byte(), ANY, INTEGERS.byte())),
    "index_add of bf16": (lambda x, i, y: x.index_add(0, i, y), (0 * X200.bfloat16(), ANY[:200], X200.bfloat16())),
    "index_copy": (lambda x, i, y: x.index_copy(1, i, y), (X3, torch.randperm(200), X3 * 2)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 3.0), (X500, torch.randperm(500)[:200] - 500)),
    "scatter of rows": (lambda x, i, y: x.scatter(0, i[:, None].expand(-1, 10), y), (X200, torch.randperm(200), X200 * 2)),
    "scatter of a number in rows": (lambda x, i: x.scatter(-1, i, 2.0), (torch.randn(30, 50), IN_ROWS)),
    "scatter_add of rows": (lambda x, i, y: x.scatter_add(0, i[:, None].expand(-1, 10), y), (X200, ANY, ROWS500)),
    "scatter_add of numbers": (lambda x, i, y: x.scatter_add(0, i, y), (X200[:, 0], ANY, ROWS500[:, 0])),
    "scatter_reduce, amax": (lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), (X200[:, 0], ANY, ROWS500[:, 0])),
    "scatter_reduce, amin": (lambda x, i, y: x.scatter_reduce(0, i, y, "amin"), (INTEGERS[:200, 0], ANY, INTEGERS[:, 0])),
    "scatter_reduce, prod": (lambda x, i, y: x.scatter_reduce(0, i, y, "prod"), (X200[:, 0], ANY, POSITIVE)),
    "histc": (lambda x: torch.histc(x, 64, -1, 1).cumsum(0), (torch.randn(1000),)),
    "infinities and NaN": (lambda x, i, y: x.index_add(0, i, y), (X200[:, 0], ANY, SPECIAL)),
    "zeros": (lambda x, i, y: x.index_add(0, i, y).reciprocal(), (torch.full((200,), -0.0), ANY[:90].clamp(max=99), X200[:90, 0])),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_many_rows_are_stored_by_kernels(name: str) -> None:
    function, args = MANY[name]
    program = check(function, *args, kernels=None)
    assert any("weft::row_of(" in kernel.source for kernel in program.kernels), "pairs are compared"


def test_of_many_rows_with_one_index_the_last_stays() -> None:
    x, y, index = torch.randn(100, 3), torch.randn(700, 3), torch.randint(0, 100, (700,))
    wanted = x.clone()
    for place, row in zip(index.tolist(), y, strict=True):
        wanted[place] = row
    assert torch.equal(weft.optimize(lambda x, i, y: x.index_put((i,), y), (x, index, y))(x, index, y), wanted)


@pytest.mark.parametrize("wrong", [50, -1, 2**40])
def test_of_many_indices_in_rows_one_that_is_none_raises_eagers_error(wrong: int) -> None:
    def marked(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.scatter(1, index, 2.0)

    x, bad = torch.randn(30, 50), IN_ROWS.clone()
    program = weft.optimize(marked, (x, IN_ROWS))
    bad[3, 5] = wrong
    with pytest.raises(RuntimeError) as wanted:
        marked(x, bad)
    with pytest.raises(RuntimeError, match=re.escape(str(wanted.value).splitlines()[0])):
        program(x, bad)


@pytest.mark.parametrize("wrong", [300, -301, 2**40, -(2**62)])
def test_of_many_indices_one_that_is_none_raises_eagers_error(wrong: int) -> None:
    perm = torch.randperm(300)
    program = weft.optimize(inverse, (perm,))
    assert not program.fallbacks
    bad = perm.clone()
    bad[7] = wrong
    with pytest.raises(IndexError) as wanted:
        inverse(bad)
    with pytest.raises(IndexError, match=re.escape(str(wanted.value).splitlines()[0])):
        program(bad)
    assert torch.equal(program(perm), inverse(perm))


def test_many_stores_and_counts_are_pytorchs_with_a_reason() -> None:
    """To compare all with all would take a thousand times as long. What is around them are kernels."""
    x, i = torch.randn(1000, 40), torch.randint(0, 40, (1000, 30))
    program = weft.optimize(lambda x, i, y: (x * 2).scatter_add(1, i, y) + 1, (x, i, torch.randn(1000, 30)))
    (left,) = program.fallbacks
    assert left.operation == "aten.scatter_add"
    assert "more than" in left.reason
    assert len(program.kernels) == 2
    (left,) = weft.optimize(lambda x: torch.histc(x * 2, 100_000, 0, 1) + 1, (x,)).fallbacks
    assert "comparisons" in left.reason


def test_rows_that_leave_the_cache_are_added_by_pytorch() -> None:
    """A kernel goes over all memory once more; not where many rows meet."""
    x, y = torch.randn(5000, 100), torch.randn(12_000, 100)
    for most, operations in ((5000, ["aten.index_add"]), (3000, [])):
        index = torch.randint(0, most, (12_000,))
        program = weft.optimize(lambda x, i, y: x.index_add(0, i, y), (x[:most], index, y))
        assert [f.operation for f in program.fallbacks] == operations


# Writes into parts of what a graph makes.


def row(x, y):
    x = x * 2
    x[:, 1] = y
    return x + 1


def rows(x, y):
    x = x * 2
    x[:, 2:5] = y[:, None]
    return x + 1


def numbers(x, y):
    x = x * 2
    x[:, ::3] = -INF
    x[..., 4:].fill_(0.5)
    x[2:].zero_()
    return x + y[:, None]


def part(x, y):
    x = x * 2
    x[:, 3:6] = y[:, None] + x[:, :3]
    return x + 1


def added(x, y):
    x = x * 2
    x[:, 2] += y
    x[1:, 2:4] *= 2
    return x


def turned(x, y):
    x = x * 2
    x.transpose(0, 1)[2] = y
    x.transpose(1, 2).unsqueeze(0)[0, :, 1, 4:] = 3
    return x


def begun(x, y):
    made = torch.empty_like(x)
    made[:, :4] = y[:, None]
    made[:, 4:] = 1
    return made * x


def seen(x, y):
    x = x * 2
    view = x[:, 1:]
    x[:, 3] = y
    return view.sum(1)


def columns(x, y):
    x, i = x * 2, torch.tensor([3, -2])
    x[:, i] = y[:, None] + x[:, i]
    return x


def where_a_mask_holds(x, y):
    """Write into a row where a mask holds, as Longformer does into its mask."""
    x = x * 2
    first = x[:, 0]
    first[y > 0] = 5.0
    first.mul_(3)
    first[y < -1] = -INF
    return x.sum(1), first


def at_few_places(x, y):
    x, at = x * 2, torch.tensor([[1], [0], [15], [3], [2], [7], [7]])
    x[:, 2].scatter_(1, at, 7.0)
    x[0].index_fill_(0, torch.tensor([4, -1]), 1.0)
    return x


STORED = (where_a_mask_holds, at_few_places)
PARTS = {f.__name__: f for f in (row, columns, rows, numbers, part, added, turned, begun, seen, *STORED)}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_written_into(name: str) -> None:
    function, args = PARTS[name], (torch.randn(7, 9, 16), torch.randn(7, 16))
    program = weft.optimize(function, args)
    assert not program.fallbacks
    torch.testing.assert_close(program(*args), function(*args))


def test_what_comes_in_is_written_into_in_place() -> None:
    """A row of a cache costs a row."""

    def step(cache, at, y):
        cache.index_copy_(1, at, y * 2)
        return cache.sum(1)

    cache, y = torch.randn(3, 40, 8), torch.randn(3, 1, 8)
    program = weft.optimize(step, (cache.clone(), torch.tensor([5]), y))
    assert [f.operation for f in program.fallbacks] == ["aten.index_copy_"]
    mine, theirs = cache.clone(), cache.clone()
    torch.testing.assert_close(program(mine, torch.tensor([7]), y), step(theirs, torch.tensor([7]), y))
    torch.testing.assert_close(mine, theirs)
