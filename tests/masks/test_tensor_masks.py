"""Functions with masks that are tensors: what is left out changes no result, whatever the mask is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch

import weft

INF = math.inf
Tensor = torch.Tensor


def filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT * 0.125).masked_fill(~mask, -INF), -1) @ v


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.where(mask, q @ k.mT * 0.125, -INF)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights / weights.sum(-1, keepdim=True)) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 0.125 + torch.where(mask, 0.0, -INF), -1) @ v


def also_causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT * 0.125).masked_fill(~(mask & causal), -INF), -1) @ v


def log_sums(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.logsumexp((q @ k.mT).masked_fill(~mask, -INF), -1) + v[..., :1, 0]


def means(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    kept = torch.where(mask, q[..., :1] + k[..., 0].unsqueeze(-2), 0.0)
    return kept.sum(-1) / mask.sum(-1) + v[..., :1, 0]


def of_pytorch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Calls PyTorch's own, which gives 0 for rows without a key: each row is asked whether it has one."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def multiplied(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = torch.exp(q @ k.mT * 0.125) * mask
    return (weights / weights.sum(-1, keepdim=True)) @ v


def multiplied_below_the_maximum(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT * 0.125
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * mask.to(q.dtype)
    return (weights / weights.sum(-1, keepdim=True)) @ v


def log_sums_of_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.log((torch.exp(q @ k.mT) * mask).sum(-1)) + v[..., :1, 0]


def means_of_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q[..., :1] + k[..., 0].unsqueeze(-2)) * mask).sum(-1) / mask.sum(-1) + v[..., :1, 0]


PRODUCTS = (multiplied, multiplied_below_the_maximum, log_sums_of_products, means_of_products)
FUNCTIONS = (filled, written_out, biased, also_causal, log_sums, means, of_pytorch, *PRODUCTS)


def in_blocks(rows: int, columns: int, share: float, size: int = 64) -> Tensor:
    cells = torch.rand(-(-rows // size), -(-columns // size)) < share
    return cells.repeat_interleave(size, 0).repeat_interleave(size, 1)[:rows, :columns]


def first_half_empty(rows: int, columns: int) -> Tensor:
    found = torch.ones(rows, columns, dtype=torch.bool)
    found[: rows // 2] = False
    return found


def near(rows: int, columns: int, width: int) -> Tensor:
    return (torch.arange(rows)[:, None] - torch.arange(columns)).abs() <= width


def of_first(rows: int, columns: int, width: int) -> Tensor:
    return (torch.arange(rows)[:, None] < width) | (torch.arange(columns) < width)


MASKS: Mapping[str, Callable[[int, int], Tensor]] = {
    "1 % at random": lambda r, c: torch.rand(r, c) < 0.01,
    "half at random": lambda r, c: torch.rand(r, c) < 0.5,
    "10 % at random": lambda r, c: torch.rand(r, c) < 0.1,
    "window": lambda r, c: near(r, c, 20),
    "dilated": lambda r, c: near(r, c, 40) & ((torch.arange(r)[:, None] - torch.arange(c)) % 2 == 0),
    "longformer": lambda r, c: near(r, c, 20) | of_first(r, c, 20),
    "bigbird": lambda r, c: near(r, c, 20) | of_first(r, c, 20) | in_blocks(r, c, 0.1, 32),
    "causal": lambda r, c: torch.ones(r, c, dtype=torch.bool).tril(c - r),
    "prefix": lambda r, c: torch.ones(r, c, dtype=torch.bool).tril() | (torch.arange(c) < 300),
    "documents": lambda r, c: torch.arange(r)[:, None] * 5 // r == torch.arange(c) * 5 // c,
    "10 % of blocks": lambda r, c: in_blocks(r, c, 0.1),
    "checkerboard": lambda r, c: (torch.arange(r)[:, None] + torch.arange(c)) % 2 == 0,
    "checkerboard of blocks": lambda r, c: (torch.arange(r)[:, None] // 300 + torch.arange(c) // 300) % 2 == 0,
    "empty rows": first_half_empty,
    "all": lambda r, c: torch.ones(r, c, dtype=torch.bool),
    "nothing": lambda r, c: torch.zeros(r, c, dtype=torch.bool),
}


def guarded(program: weft.Program) -> bool:
    return any("everywhere" in str(kernel.block_program) for kernel in program.kernels)


def demand_as_eager(program: weft.Program, f: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    exact = f(*(t.double() if t.is_floating_point() else t for t in inputs))
    judgement = weft.judge(program(*inputs), f(*inputs), exact)
    assert judgement.ok, judgement


def drawn(rows: int, columns: int, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(*shape, n, 16, dtype=dtype) for n in (rows, columns, columns)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_mask(f: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    q, k, v = drawn(401, 1033, (2, 3))
    program = weft.optimize(f, (q, k, v, MASKS["all"](401, 1033)))
    assert guarded(program)
    for mask in MASKS.values():
        demand_as_eager(program, f, (q, k, v, mask(401, 1033).contiguous()))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("f", [filled, of_pytorch], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(2, 1, 257, 701), (1, 3, 257, 701), (2, 3, 257, 701), (2, 1, 1, 701), (257, 1)])
def test_masks_of_batches_heads_and_keys(f: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    q, k, v = drawn(257, 701, (2, 3))
    program = weft.optimize(f, (q, k, v, torch.rand(shape) < 0.5))
    assert guarded(program)
    for share in (0.0, 0.01, 0.5, 1.0):
        demand_as_eager(program, f, (q, k, v, torch.rand(shape) < share))
    for place in (slice(None, 300), slice(400, None)):
        mask = torch.zeros(shape, dtype=torch.bool)
        mask[..., place] = True
        demand_as_eager(program, f, (q, k, v, mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_that_are_added(dtype: torch.dtype) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * 0.125 + bias, -1) @ v

    torch.manual_seed(0)
    q, k, v = drawn(200, 901, dtype=dtype)
    for share in (0.1, 0.5, 1.0):
        bias = torch.randn(200, 901, dtype=dtype).masked_fill(~in_blocks(200, 901, share), -INF)
        program = weft.optimize(f, (q, k, v, bias))
        assert guarded(program)
        demand_as_eager(program, f, (q, k, v, bias))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("length", [1, 2, 63, 255, 256, 257, 4099])
def test_lengths(length: int) -> None:
    torch.manual_seed(0)
    q, k, v = drawn(min(length, 300), length)
    mask = in_blocks(len(q), length, 0.3, 50)
    demand_as_eager(weft.optimize(filled, (q, k, v, mask)), filled, (q, k, v, mask))


def test_strides() -> None:
    torch.manual_seed(0)
    q, k, v = drawn(300, 700)
    program = weft.optimize(filled, (q, k, v, torch.rand(700, 300).mT < 0.5))
    for mask in (
        in_blocks(700, 300, 0.3).mT,
        in_blocks(600, 1400, 0.3)[::2, ::2],
        in_blocks(1, 700, 0.3).expand(300, 700),
    ):
        demand_as_eager(program, filled, (q, k, v, mask))


def test_documents() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Tensor:
        same = document[:, None] == document
        return torch.softmax((q @ k.mT * 0.125).masked_fill(~same, -INF), -1) @ v

    torch.manual_seed(0)
    q, k, v = drawn(900, 900)
    document = torch.arange(900) // 250
    program = weft.optimize(f, (q, k, v, document))
    assert guarded(program)
    for each in (document, torch.randint(0, 3, (900,)), torch.zeros(900, dtype=torch.int64)):
        demand_as_eager(program, f, (q, k, v, each))


def test_what_a_mask_excludes_lets_no_nan_through_where_its_block_is_left_out() -> None:
    torch.manual_seed(0)
    q, k, v = drawn(100, 900)
    mask = torch.ones(100, 900, dtype=torch.bool)
    mask[:, 300:] = False
    v[600:] = math.nan
    assert weft.optimize(filled, (q, k, v, mask))(q, k, v, mask).isfinite().all()


def zeros_filled(weights: Tensor, mask: Tensor) -> Tensor:
    return weights.masked_fill(~mask, 0)


SPELLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a bool": lambda weights, mask: weights * mask,
    "a float": lambda weights, mask: weights * mask.float(),
    "of the type of the weights": lambda weights, mask: mask.to(weights.dtype) * weights,
    "ones and zeros": lambda weights, mask: weights * torch.where(mask, 1.0, 0.0),
    "the opposite taken from one": lambda weights, mask: weights * (1 - (~mask).float()),
}


def averaged(keep: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        weights = keep(torch.exp(q @ k.mT), mask)
        return (weights / weights.sum(-1, keepdim=True)) @ v

    return f


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_product_with_a_mask_is_the_program_of_a_choice(name: str) -> None:
    """The judge, whose inputs overflow eager's exponentials, passes both."""
    torch.manual_seed(0)
    q, k, v = drawn(128, 512)
    mask = in_blocks(128, 512, 0.3)
    with weft.options(judge="always", defects="raise"):
        chosen, product = (weft.optimize(averaged(f), (q, k, v, mask)) for f in (zeros_filled, SPELLINGS[name]))
    assert len(product.kernels) == 1
    assert not product.fallbacks
    assert guarded(product)
    assert [str(kernel.block_program) for kernel in product.kernels] == [str(k.block_program) for k in chosen.kernels]
    assert [kernel.cost for kernel in product.kernels] == [kernel.cost for kernel in chosen.kernels]


@pytest.mark.parametrize("f", PRODUCTS, ids=lambda f: f.__name__)
def test_blocks_that_a_factor_makes_zero_are_not_read(f: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    q, k, v = drawn(512, 2048)
    few = torch.zeros(512, 2048, dtype=torch.bool)
    few[:, :128] = True
    programs = [weft.optimize(f, (q, k, v, mask)) for mask in (few, torch.ones_like(few))]
    sparse, dense = ([kernel.cost for kernel in program.kernels] for program in programs)
    assert sum(cost.flops for cost in sparse) < sum(cost.flops for cost in dense) / 2
    assert sum(cost.bytes_read for cost in sparse) < sum(cost.bytes_read for cost in dense)


@pytest.mark.parametrize("keep", [zeros_filled, *SPELLINGS.values()], ids=["a choice", *SPELLINGS])
def test_what_is_kept_far_below_what_is_excluded_is_not_lost(keep: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The running maximum is of what a mask keeps: 100 below what it excludes, exponentials are lost in fp32, and not in eager."""
    torch.manual_seed(0)
    q, k, v = drawn(128, 512)
    mask = in_blocks(128, 512, 0.5, 16)
    program = weft.optimize(averaged(keep), (q, k, v, mask))
    q, k = 0.25 + 0.01 * torch.randn(128, 16), -5 + 0.1 * torch.randn(512, 16)
    k[::3], mask[:, ::3] = 20.0, False
    demand_as_eager(program, averaged(keep), (q, k, v, mask))


@pytest.mark.parametrize("dim", [0, 1])
def test_data_that_are_subtracted_from_minus_infinity_are_excluded_by_nothing(dim: int) -> None:
    """-inf - -inf is NaN: the first operand is no mask of the second, and no block is left out for it."""

    def f(a: Tensor, b: Tensor) -> Tensor:
        return torch.logsumexp(a - b, dim)

    torch.manual_seed(0)
    a, b = torch.randn(64, 512), torch.randn(64, 512)
    program = weft.optimize(f, (a, b))
    assert program.kernels
    a[:40], a[40:, :300] = -INF, -INF
    torch.testing.assert_close(program(a, b), f(a, b), rtol=1e-5, atol=1e-5)
    b[:20, :7] = -INF
    assert f(a, b).isnan().any()
    torch.testing.assert_close(program(a, b), f(a, b), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_long_loops_on_a_gpu_are_told_beforehand() -> None:
    q, k, v = (t.bfloat16() for t in drawn(1024, 1024, (2, 4)))
    program = weft.optimize(filled, (q, k, v, torch.rand(1024, 1024) < 0.5), target="cuda:90", effort="none")
    first, second, *_ = program.kernels
    assert "beforehand" in str(second.schedule)
    assert "weft_first_bit" in second.source
    assert "store" in first.source
    assert all(kernel.verdict.agrees for kernel in program.kernels)


def test_short_loops_on_a_gpu_ask_by_themselves() -> None:
    q, k, v = (t.bfloat16() for t in drawn(64, 64))
    program = weft.optimize(filled, (q, k, v, torch.rand(64, 64) < 0.5), target="cuda:90", effort="none")
    assert not any("beforehand" in str(kernel.schedule) for kernel in program.kernels)


def only_log_sums(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.logsumexp((q @ k.mT).masked_fill(~mask, -INF), -1)


@pytest.mark.parametrize(("share", "one_loop"), [(0.02, True), (1.0, False)])
def test_a_loop_that_leaves_blocks_out_is_chosen_where_the_example_has_empty_ones(
    share: float, *, one_loop: bool
) -> None:
    """Two loops that keep the scores of a row leave nothing out; they are faster where there is nothing to leave out."""
    torch.manual_seed(0)
    q, k, mask = torch.randn(300, 33), torch.randn(517, 33), in_blocks(300, 517, share)
    program = weft.optimize(only_log_sums, (q, k, mask), threads=2)
    assert guarded(program) == one_loop
    for other in (mask, ~mask, torch.rand(300, 517) < 0.01):
        demand_as_eager(program, only_log_sums, (q, k, other))


def masked_operand(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, 0.0) @ w


def multiplied_operand(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
    return (x * mask) @ w


@pytest.mark.parametrize("f", [masked_operand, multiplied_operand])
@pytest.mark.parametrize("shape", [(512, 1024, 256), (130, 517, 65)])
def test_a_matmul_leaves_empty_blocks_of_its_left_operand_out(
    f: Callable[..., Tensor], shape: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    rows, depth, columns = shape
    x, w = torch.randn(rows, depth), torch.randn(depth, columns)
    mask = in_blocks(rows, depth, 0.1)
    program = weft.optimize(f, (x, w, mask))
    assert guarded(program)
    for other in (mask, ~mask, torch.zeros_like(mask), torch.rand(rows, depth) < 0.5):
        demand_as_eager(program, f, (x, w, other))


@pytest.mark.parametrize("kept", [0, 1, 5, 515])
def test_few_columns_that_are_kept_for_all_rows(kept: int) -> None:
    """A cache at its first tokens: the class of its mask says that no share of blocks is busy."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.mT * 0.125).masked_fill(~mask, -math.inf), -1) @ v

    q, k, v = torch.randn(2, 1, 64), torch.randn(2, 515, 64), torch.randn(2, 515, 64)
    given = q, k, v, (torch.arange(515) < kept)[None]
    with weft.options(defects="raise"):
        program = weft.optimize(attention, given)
    assert program.kernels
    assert not program.fallbacks
    exact = attention(q.double(), k.double(), v.double(), given[3])
    assert weft.judge(program(*given), attention(*given), exact).ok


def exponentials_by_sums(x: Tensor) -> Tensor:
    return torch.exp(x) @ x.sum(0)


def weighed_by_norms(x: Tensor) -> Tensor:
    return torch.relu(x) @ x.norm(dim=0)


def by_sums_of_others(x: Tensor) -> Tensor:
    return torch.exp(x) @ torch.exp(-x).sum(0)


def by_the_greater_sum(x: Tensor) -> Tensor:
    return torch.exp(x) @ torch.maximum(x.sum(0), x.sum(0) * 2)


def softmax_of_its_own(x: Tensor) -> Tensor:
    return torch.softmax(x, -1) @ x.mT


@pytest.mark.parametrize(
    "f", [exponentials_by_sums, weighed_by_norms, by_sums_of_others, by_the_greater_sum, softmax_of_its_own]
)
def test_what_is_as_infinite_as_the_mask_is_not_left_out(f: Callable[..., Tensor]) -> None:
    """0 times a sum of the same tensor's numbers is NaN where these are -inf, and is so in eager."""
    torch.manual_seed(0)
    x = torch.randn(20, 70)
    program = weft.optimize(f, (x,))
    assert program.kernels
    assert not program.fallbacks
    assert not guarded(program)
    masked = x.clone()
    masked[:, 3:40] = -INF
    for given in (x, masked):
        found, eager = program(given), f(given)
        assert torch.equal(found.isnan(), eager.isnan())
        assert weft.judge(found.nan_to_num(), eager.nan_to_num(), f(given.double()).nan_to_num()).ok
