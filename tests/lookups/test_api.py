"""Embeddings, gathers and indexing by tensors in kernels, beside eager: shapes, types, layouts, indices that are none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.errors import WrongIndexError


def check(
    function: Callable[..., torch.Tensor], *args: torch.Tensor, kernels: int = 1, judged: bool = True
) -> weft.Program:
    """All of it is in so many kernels, verified and judged, and gives what eager gives, laid out as there."""
    program = weft.optimize(function, args, judge="always")
    assert not program.fallbacks
    assert len(program.kernels) == kernels
    assert all(k.verdict.agrees for k in program.kernels)
    assert not judged or {k.judged for k in program.kernels} == {"right on hard inputs"}
    found, wanted = program(*args), function(*args)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert found.stride() == wanted.stride()
    return program


W, X = torch.randn(11, 6), torch.randn(7, 9, 6)
SPECIAL = torch.tensor([float("nan"), float("inf"), -0.0, 1.0])
ROWS, ENDS = torch.tensor([3, 0, 6, 6, 2]), torch.tensor([-9, 8, 0, -1, 3])
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "embedding": (lambda w, i: torch.nn.functional.embedding(i, w), (W, torch.randint(0, 11, (4, 5)))),
    "embedding, padded": (lambda w, i: torch.nn.functional.embedding(i, w, padding_idx=2), (W, torch.randint(0, 11, (4,)))),
    "embedding of one column": (lambda w, i: torch.nn.functional.embedding(i, w), (W[:, :1], ROWS)),
    "embedding of a transposed table": (lambda w, i: torch.nn.functional.embedding(i, w.t()), (W.t().contiguous(), ROWS)),
    "index_select": (lambda x, i: torch.index_select(x, 1, i), (X, ROWS)),
    "index_select by one": (lambda x, i: torch.index_select(x, -1, i), (X, torch.tensor(4))),
    "rows": (lambda x, i: x[i], (X, ENDS[2:])),
    "the middle": (lambda x, i: x[:, i], (X, ENDS)),
    "the last": (lambda x, i: x[..., i], (X, ROWS - 6 * (ROWS > 3))),
    "pairs": (lambda x, i, j: x[i, j], (X, ROWS, ENDS)),
    "pairs apart": (lambda x, i, j: x[i, :, j], (X, ROWS, ROWS % 6)),
    "pairs apart, behind others": (lambda x, i, j: x[:, i, :, j], (torch.randn(3, 7, 4, 6), ROWS, ROWS % 6)),
    "a table of pairs": (lambda x, i, j: x[:, i, j], (X, ENDS, torch.randint(-6, 6, (4, 1)))),
    "all": (lambda x, i, j: x[i, j, i % 6], (X, ROWS, ENDS)),
    "a diagonal": (lambda x: x[torch.arange(6), :, torch.arange(6)], (X,)),
    "gather": (lambda x, i: torch.gather(x, 1, i), (X, torch.randint(0, 9, (7, 4, 6)))),
    "gather of less": (lambda x, i: torch.gather(x, 1, i), (X, torch.randint(0, 9, (3, 4, 2)))),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), (X, torch.randint(0, 9, (1, 4, 6)))),
    "a part of it": (lambda x, i: x[i][:, 2], (X, ROWS)),
    "parts of it": (lambda x, i: x[i][..., :3] - x[i][..., 3:], (X, ROWS)),
    "by what is computed": (lambda x, i: x[(i * 3) % 7], (X, ROWS)),
    "NaN and infinities": (lambda x, i: x[i] * 2, (SPECIAL, torch.tensor([0, 1, 2, 0]))),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(name: str) -> None:
    function, args = FUNCTIONS[name]
    check(function, *args)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.bool], ids=str)
def test_element_types(dtype: torch.dtype, index: torch.dtype) -> None:
    table = (W * 3).to(dtype)
    check(lambda w, i: torch.nn.functional.embedding(i, w), table, ROWS.to(index))
    check(lambda w, i: w[i], table, ROWS.to(index))


def test_an_embedding_a_sum_and_a_normalisation_are_one_kernel() -> None:
    def first(ids, w, positions, scale, shift):
        x = torch.nn.functional.embedding(ids, w) + positions
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), scale, shift)

    ids, w = torch.randint(0, 50, (3, 16)), torch.randn(50, 24)
    program = check(first, ids, w, torch.randn(16, 24), torch.randn(24), torch.randn(24))
    # Once for a row's first element, about which its mean is taken, and once for all of the row.
    assert program.kernels[0].source.count("weft::place(") == 2


def test_gathered_rows_feed_a_matmul() -> None:
    check(lambda x, i, w: x[i] @ w, torch.randn(9, 20), torch.tensor([8, 0, 3, 3]), torch.randn(20, 17))
    check(lambda x, w, i: x @ w[i], torch.randn(5, 4), torch.randn(9, 20), torch.tensor([8, 0, 3, 3]))


def test_what_a_kernel_makes_is_looked_up_in_after_it() -> None:
    check(lambda x, i: torch.softmax(x, -1)[i], X, ROWS, kernels=2)
    check(lambda x, i: x[i][:, i], X, ROWS, kernels=2)


def _indices(data: st.DataObject, size: int, shape: tuple[int, ...]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.tensor(data.draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count))).reshape(
        shape
    )


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_shapes(data: st.DataObject) -> None:
    """Indices of one to three dimensions, at random places, that broadcast."""
    shape = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    x = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    dims = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=3))
    wanted = tuple(data.draw(st.lists(st.sampled_from([2, 3]), max_size=2)))
    indices: list[torch.Tensor | None] = []
    for dim in range(max(dims) + 1):
        own = tuple(1 if data.draw(st.booleans()) else n for n in wanted)[data.draw(st.integers(0, len(wanted))) :]
        indices.append(_indices(data, shape[dim], own) if dim in dims else None)
    given_ = [i for i in indices if i is not None]

    def function(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        rest = iter(tensors)
        return x[tuple(slice(None) if i is None else next(rest) for i in indices)] + 1

    program = weft.optimize(function, (x, *given_))
    assert not program.fallbacks
    torch.testing.assert_close(program(x, *given_), function(x, *given_), rtol=0, atol=0)


LOOKUPS: dict[str, Callable[..., torch.Tensor]] = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x) + 1,
    "index_select": lambda x, i: torch.index_select(x, 0, i) + 1,
    "index": lambda x, i: x[i] + 1,
    "index of columns": lambda x, i: x[:, i] + 1,
    "gather": lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, 11)) + 1,
    "computed": lambda x, i: x[i * 1] + 1,
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_what_is_no_index_raises_eagers_error(name: str) -> None:
    """And the next call, whose indices are right, is weft's."""
    function, x = LOOKUPS[name], torch.randn(11, 11)
    right = torch.tensor([0, 10, 3])
    program = weft.optimize(function, (x, right))
    assert not program.fallbacks
    for wrong in (11, -12, 2**40, -(2**62)):
        bad = torch.tensor([0, wrong, 3])
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            function(x, bad)
        with pytest.raises(wanted.type, match=re.escape(str(wanted.value).splitlines()[0])):
            program(x, bad)
    before = weft.stats()
    torch.testing.assert_close(program(x, right), function(x, right))
    assert weft.stats() == before


def test_only_indexing_counts_from_the_end() -> None:
    x, i = torch.randn(11, 11), torch.tensor([0, -1, 3])
    program = weft.optimize(LOOKUPS["index"], (x, i))
    torch.testing.assert_close(program(x, i), LOOKUPS["index"](x, i))
    program = weft.optimize(LOOKUPS["embedding"], (x, i.abs()))
    with pytest.raises(IndexError, match="index out of range in self"):
        program(x, i)


def test_compiled_calls_raise_it_too() -> None:
    function = weft.compile(LOOKUPS["embedding"])
    x, i = torch.randn(11, 11), torch.tensor([0, 10, 3])
    for _ in range(3):
        torch.testing.assert_close(function(x, i), LOOKUPS["embedding"](x, i))
        with pytest.raises(IndexError, match="index out of range in self"):
            function(x, i + 1)


def test_indices_are_looked_at_where_something_depends_on_their_elements() -> None:
    """A choice depends on what it does not choose; nothing depends on what is dropped, read for its shape, or sliced away."""
    x, y, right, wrong = torch.randn(10, 4), torch.randn(3, 4), torch.tensor([0, 3, 9]), torch.tensor([0, 3, 99])

    def unchosen(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(3)[:, None] < 2, x.index_select(0, i), y)

    def dropped(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = x.index_select(0, i)
        return y + found.shape[0]

    def sliced(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, i)[:2] + y[:2]

    with pytest.raises(IndexError):
        weft.optimize(unchosen, (x, right, y))(x, wrong, y)
    for function in (dropped, sliced):
        torch.testing.assert_close(weft.optimize(function, (x, right, y))(x, wrong, y), function(x, right, y))


def test_an_argument_is_not_written_to_twice() -> None:
    """Raise where a kernel meets a wrong index after a write: PyTorch cannot run the graph again."""

    def function(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x[i] * y

    x, y = torch.randn(5, 3), torch.zeros(2, 3)
    program = weft.optimize(function, (x, torch.tensor([1, 2]), y.clone()))
    with pytest.raises(IndexError):
        program(x, torch.tensor([1, 5]), y)
    assert y.max() <= 1


def test_any_number_of_indices_and_of_rows_is_one_program() -> None:
    function = weft.compile(lambda x, i: torch.nn.functional.embedding(i, x) * 2, dynamic=True)
    function(torch.randn(10, 4), torch.randint(0, 10, (5,)))
    before = weft.stats().compiles
    for rows, count in ((10, 7), (23, 5), (100, 300)):
        x, i = torch.randn(rows, 4), torch.randint(0, rows, (count,))
        torch.testing.assert_close(function(x, i), x[i] * 2)
        with pytest.raises(IndexError):
            function(x, i + rows)
    assert weft.stats().compiles == before


def _packed(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Compare tokens of the same sequence, as masks of packed sequences do."""
    batch, own = torch.arange(x.shape[0])[:, None, None], torch.arange(x.shape[1])
    return (x[batch, own[:, None]] == x[batch, own]) & (i[batch, own] > 0)


SINGLE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a mask of packed sequences": _packed,
    "nothing else is indexed": lambda x, i: x[torch.arange(1)] + 1,
    "repeated": lambda x, i: x[torch.zeros(4, dtype=torch.long)] * i,
    "apart": lambda x, i: x[:, None][torch.zeros(3, dtype=torch.long), :, i[0, :3]] + 1,
}


@pytest.mark.parametrize("name", SINGLE)
def test_the_only_row_is_known(name: str) -> None:
    """Read without a check what the constant 0 names in a dimension of size 1."""
    function = SINGLE[name]
    x, i = torch.randn(1, 11), torch.randint(0, 2, (1, 11))
    program = weft.optimize(function, (x, i))
    assert not program.fallbacks
    torch.testing.assert_close(program(x, i), function(x, i))


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_nothing_and_single_rows(rows: int, count: int) -> None:
    function = weft.compile(lambda x, i: torch.nn.functional.embedding(i, x) * 2, dynamic=True)
    x, i = torch.randn(rows, 4), torch.zeros(count, dtype=torch.int64)
    if count and not rows:
        with pytest.raises((IndexError, RuntimeError)):
            function(x, i)
        return
    torch.testing.assert_close(function(x, i), torch.nn.functional.embedding(i, x) * 2)
    if rows and count:
        with pytest.raises(IndexError):
            function(x, i - 1)


LEFT: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor, str]] = {
    "sparse": (
        lambda x, i: torch.nn.functional.embedding(i, x, sparse=True) + 1,
        torch.tensor([1, 2]),
        "weft does not support its argument sparse",
    ),
    "max_norm": (
        lambda x, i: torch.nn.functional.embedding(i, x, max_norm=1.0) + 1,
        torch.tensor([1, 2]),
        "it writes into a part of a tensor",
    ),
    "a dimension of size 1": (
        lambda x, i: x[:, :1][:, i] + 1,
        torch.tensor([0, 0]),
        "a dimension of size 1 has one index",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_pytorch(name: str) -> None:
    function, index, reason = LEFT[name]
    x = torch.randn(11, 11)
    program = weft.optimize(function, (x.clone(), index))
    assert [reason in str(each) for each in program.fallbacks] == [True]
    torch.testing.assert_close(program(x.clone(), index), function(x.clone(), index))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "index", [torch.rand(11) > 0.5, torch.randint(0, 2, (11,), dtype=torch.uint8)], ids=["bools", "bytes"]
)
def test_masks_are_pytorchs(index: torch.Tensor) -> None:
    x, before = torch.randn(11, 11), weft.stats().kernels
    compiled = weft.compile(lambda x, i: x[i], measure="never")
    torch.testing.assert_close(compiled(x, index), x[index])
    assert weft.stats().kernels == before


def test_a_saved_program_says_what_is_wrong(tmp_path) -> None:
    x, i = torch.randn(11, 11), torch.tensor([0, 10, 3])
    weft.optimize(LOOKUPS["embedding"], (x, i)).save(tmp_path / "program.weft")
    program = weft.load(tmp_path / "program.weft")
    torch.testing.assert_close(program(x, i), LOOKUPS["embedding"](x, i))
    with pytest.raises(IndexError, match="an index is out of range") as caught:
        program(x, i + 1)
    assert isinstance(caught.value, WrongIndexError)
