"""One binary for all lengths, batches and strides of a class; sizes 0 and 1 are classes of their own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import weft
from testkit.walk import WALK_ALL
from weft.lab.workloads.cpu import SUITE
from weft.verify.judge import Draws

LENGTHS = (32, 33, 2, 97, 3, 250, 47, 131, 601, 1021)
FORMS = ("row-major", "transposed", "sliced", "offset", "expanded")
# Each takes a compiler's second or two a kernel: a few are always tried, all with WALK_ALL=1 in the environment.
SHARE = (
    "relu(x @ w + b)",
    "((x @ w) ** 2).sum(-1)",
    "two-layer MLP module",
    "attention",
    "LayerNorm + matmul",
    "softmax",
)
WALKED = [e for e in SUITE if e.title in SHARE or WALK_ALL]
# Of the share, the first example alone is tried in every form.
CASES = [
    pytest.param(example, form, id=f"{example.title}-{form}")
    for example in WALKED
    for form in FORMS
    if WALK_ALL or form == "row-major" or example.title == SHARE[0]
]


def at_length(example, length):
    """The example's quick sizes with another length: of the sequence where there are heads, else the number of rows."""
    sizes = list(example.quick)
    sizes[{4: 2, 6: 4}.get(len(sizes), 0)] = length
    return tuple(sizes)


def laid_out(x, form):
    """Lays the same numbers (but for "expanded") out otherwise in memory."""
    match form:
        case "transposed":
            return x.mT.contiguous().mT if x.ndim > 1 else x
        case "sliced":
            return torch.stack((x, x + 9), -1)[..., 0]
        case "offset":
            return torch.cat((x.new_zeros(7), x.flatten()))[7:].view(x.shape)
        case "expanded":
            return x[:1].expand(x.shape) if x.ndim > 1 else x
        case _:
            return x


def wide(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def called(function, given):
    with torch.no_grad():
        out = function(*given)
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize(("example", "form"), CASES)
def test_one_binary_for_all_lengths_of_a_class(example, form, tmp_path):
    eager = example.make(example.quick)
    exact = copy.deepcopy(eager).double() if isinstance(eager, nn.Module) else eager
    draws: list[tuple[tuple[torch.Tensor, ...], ...]] = []
    emitted: dict[int, int] = {}
    with weft.options(cache_dir=str(tmp_path)):
        fast = weft.compile(eager, cache_dir=str(tmp_path))
        for number, length in enumerate((*LENGTHS, 1, 0, 1, 0, 33)):
            sizes = at_length(example, length)
            given = tuple(laid_out(x, form) for x in example.inputs(sizes, torch.float32, number))
            before = weft.stats().binaries_emitted
            out = called(fast, given)
            emitted[number] = weft.stats().binaries_emitted - before
            wanted = called(eager, given)
            assert [o.shape for o in out] == [o.shape for o in wanted]
            if length > 1:
                draws.append((out, wanted, called(exact, tuple(map(wide, given)))))
    later = {n: count for n, count in emitted.items() if n not in (0, len(LENGTHS), len(LENGTHS) + 1)}
    assert not any(later.values()), later
    assert emitted[0] <= 3  # one for each kernel
    if example.gaps is None:
        weft.judge(*(Draws([d[i] for d in draws]) for i in range(3))).check()


def attend(q, k, v, new_k, new_v):
    k, v = torch.cat((k, new_k), -2), torch.cat((v, new_v), -2)
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v, k, v


def attend_cached(q, cache, length):
    k, v = cache[0][:, :, :length], cache[1][:, :, :length]
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def test_a_cache_that_grows_by_one_token_is_compiled_twice():
    fast = weft.compile(attend)
    k = v = torch.randn(1, 2, 5, 16)
    graphs, compiles = [], []
    for _ in range(50):
        q, new_k, new_v = torch.randn(3, 1, 2, 1, 16)
        with torch.no_grad():
            out, k_, v_ = fast(q, k, v, new_k, new_v)
            wanted, k, v = attend(q, k, v, new_k, new_v)
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close((k_, v_), (k, v))
        graphs.append(counters["stats"]["unique_graphs"])
        compiles.append(weft.stats().compiles)
    assert graphs[3:] == [graphs[3]] * 47  # k and v are one tensor at first, which is a class of its own
    assert compiles[3:] == [compiles[3]] * 47


def test_a_part_of_a_cache_whose_length_is_a_number_is_compiled_twice():
    fast = weft.compile(attend_cached)
    cache = torch.randn(2, 1, 2, 64, 16)
    graphs = []
    for length in range(3, 53):
        q = torch.randn(1, 2, 1, 16)
        with torch.no_grad():
            torch.testing.assert_close(fast(q, cache, length), attend_cached(q, cache, length), rtol=1e-4, atol=1e-4)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[2:] == [graphs[2]] * 48


def test_more_classes_than_pytorch_allows_are_compiled_all_the_same():
    """PyTorch's own limit is 8 variants of a function; past it, it would run eager for good and hardly say so."""

    def function(x, y):
        return torch.relu(x + y) * 2

    fast = weft.compile(function)
    sizes = [((a, b), (c, d)) for a in (1, 4) for b in (1, 5) for c in (1, 4) for d in (1, 5)]
    calls = [(first, second, dtype) for first, second in sizes[::2] for dtype in (torch.float32, torch.bfloat16)]
    for first, second, dtype in calls:
        x, y = torch.randn(first, dtype=dtype), torch.randn(second, dtype=dtype)
        with torch.no_grad():
            torch.testing.assert_close(fast(x, y), function(x, y))
    assert counters["stats"]["unique_graphs"] > 8
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for first, second, dtype in calls:
            x, y = torch.randn(first, dtype=dtype), torch.randn(second, dtype=dtype)
            torch.testing.assert_close(fast(x, y), function(x, y))


def test_a_program_does_not_depend_on_what_was_planned_before():
    """Plan a function after the same lines were traced with other sizes, of which Dynamo would make symbols."""

    def planned(width):
        q, k, v = torch.randn(3, 2, 8, width)
        program = weft.optimize(lambda q, k, v: attend_cached(q, (k[None], v[None]), 8), (q[None], k, v))
        return [kernel.source for kernel in program.kernels]

    first = planned(16)
    assert planned(32) != first
    assert planned(16) == first


def test_explain_says_which_sizes_are_fixed_and_why():
    def function(x, y):
        return (x * torch.arange(7.0)).sum(-1) + y[:, 0]

    text = str(weft.optimize(function, (torch.randn(9, 7), torch.randn(9, 1))).explain())
    assert "== sizes" in text
    section = text.split("== sizes")[1].split("\n\n", maxsplit=1)[0]
    assert "x: M × K" in section
    assert "y: M × 1" in section
    assert "read at each call: M" in section
    assert "dimensions of size 1 are broadcast" in section


def _after_a_cache(cache: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Attend to a cache and own rows, whose positions are made before the two are joined."""
    positions = torch.arange(cache.shape[0] + own.shape[0])
    queries = torch.arange(own.shape[0]) + cache.shape[0]
    joined = torch.cat((cache, own))
    scores = (own @ joined.mT).masked_fill(positions > queries[:, None], -torch.inf)
    return torch.softmax(scores, -1) @ joined


SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "positions in a cache that grows": _after_a_cache,
    "one more": lambda cache, own: torch.arange(cache.shape[0] + 1)[:, None] * own[0] + cache[0],
    "twice as many": lambda cache, own: torch.ones(2 * cache.shape[0] + 3, 8) * cache.sum(0) + own[0],
}


@pytest.mark.parametrize("name", SUMS)
def test_a_size_may_be_a_sum_of_others(name: str) -> None:
    """Make no call of PyTorch's for a range as long as two tensors that are joined later, or as one and some more."""
    function = SUMS[name]
    before = weft.stats()
    compiled = weft.compile(function, dynamic=True, measure="never")
    for length, rows in ((7, 3), (20, 2), (33, 5)):
        cache, own = torch.randn(length, 8), torch.randn(rows, 8)
        torch.testing.assert_close(compiled(cache, own), function(cache, own))
    assert weft.stats().fallbacks == before.fallbacks
