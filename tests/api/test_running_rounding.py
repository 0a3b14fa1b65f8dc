"""options(rounding="running"): rows quantised into a product in one pass, the error beside eager's and the exact form's."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from testkit.afresh import chosen_afresh
from testkit.api.quantised import FUNCTIONS, exact, operands
from testkit.walk import share
from weft.api.program import Program
from weft.block.program import Load
from weft.block.walk import maps
from weft.plan.choose import select
from weft.tensor.program import TensorProgram
from weft.verify.judge import Draws

NAMES = (
    "int8",
    "int8_both",
    "float8",
    "float8_both",
    "float8_wide_range",
    "float8_scaled",
    "float8_without_zeros",
    "uint8_with_zero_points",
)
LONG = 4100
"""Many blocks of the loop, whatever the schedule."""
RISING = torch.arange(1, LONG + 1) / LONG
"""What rows are multiplied by so that their maxima grow from block to block."""


def compiled(name: str, inputs: tuple[torch.Tensor, ...], rounding: str = "running", threads: int = 1) -> Program:
    program = weft.optimize(FUNCTIONS[name], inputs, rounding=rounding, threads=threads)
    assert program.fallbacks == ()
    assert all(k.verdict.agrees for k in program.kernels)
    return program


def section(program: Program, title: str) -> str:
    return dict(program.explain().sections)[title]


def errors(found: torch.Tensor, truth: torch.Tensor) -> float:
    return (found.double() - truth).abs().max().item()


# One pass.


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", share(["int8", "float8", "float8_scaled", "uint8_with_zero_points"], 2))
def test_one_kernel_with_one_loop_that_reads_each_element_of_a_row_once(name):
    torch.manual_seed(0)
    x, *rest = operands(name, 33, LONG, 40, torch.float32)
    program = compiled(name, (x, *rest))
    (kernel,) = program.kernels
    assert "which use the scale so far" in kernel.verdict.reason
    along = [m for m in maps(kernel.block_program.graph) if m.axis.space.name == "K" and m.state is not None]
    assert len(along) == 1
    (loop,) = along
    assert (
        len([n for n in loop.body.nodes if isinstance(n, Load) and loop.axis in n.dims and n.name.startswith("x")]) == 1
    )
    assert len([m for m in maps(compiled(name, (x, *rest), "exact").kernels[0].block_program.graph) if m.state]) > 1


@pytest.mark.parametrize("name", ["int8", "float8_both"])
@pytest.mark.parametrize("rounding", ["exact", "running"])
def test_explain_says_which_form_runs_and_what_the_other_would_take(name, rounding):
    torch.manual_seed(0)
    program = compiled(name, operands(name, 33, 700, 40, torch.float32), rounding)
    lines = section(program, "candidates").splitlines()
    running = [line for line in lines if line.startswith("one loop that rounds at the scale so far")]
    predicted = [line for line in running if " ms predicted" in line]
    assert predicted
    assert [line for line in lines if line not in running and " ms predicted" in line]
    (chosen,) = (line for line in lines if "; chosen: " in line)
    assert (chosen in running) is (rounding == "running")
    if rounding == "exact":
        assert all('options(rounding="running") allows it' in line for line in predicted)
        assert "chains of reductions" not in dict(program.explain().sections)
    else:
        assert "rounded at the scale so far" in section(program, "chains of reductions")


def test_explain_says_why_there_is_no_running_form():
    def beyond(x, w):
        return (x / (x.abs().amax(-1, keepdim=True) / 1000.0)).to(torch.float8_e4m3fn).to(x.dtype) @ w

    program = weft.optimize(beyond, (torch.randn(9, 70), torch.randn(70, 9)), rounding="running")
    assert "at most 1000 steps, and some of these are clipped" in section(program, "candidates")
    assert "which use the scale so far" not in program.kernels[0].verdict.reason


# Off by default.


@pytest.mark.parametrize("name", ["int8", "float8_both"])
def test_without_the_option_the_kernel_is_what_it_is_without_the_form(name):
    torch.manual_seed(0)
    inputs = operands(name, 33, 700, 40, torch.float32)
    running = compiled(name, inputs)
    default = compiled(name, inputs, "exact")
    assert default.kernels[0].source != running.kernels[0].source

    def never(program: TensorProgram, *, running: bool = False):
        return chains(program)

    chains = select.chains
    with chosen_afresh() as patch:
        patch.setattr(select, "chains", never)
        before = compiled(name, inputs, "exact")
    assert "scale so far" in section(default, "candidates")
    assert "scale so far" not in section(before, "candidates")
    assert [k.source for k in before.kernels] == [k.source for k in default.kernels]
    assert torch.equal(before(*inputs), default(*inputs))


# Errors.


@pytest.mark.parametrize("name", share(NAMES, 3))
def test_beside_products_without_rounding_both_forms_and_eager_are_equally_far(name):
    """The product of what was there is what one quantises for. Of rising rows most is rounded at a scale that is too small."""
    torch.manual_seed(0)
    x, *rest = operands(name, 33, LONG, 40, torch.float32)
    x = x * RISING
    truth = exact(name, (x, *rest))
    assert isinstance(truth, torch.Tensor)
    unrounded = products(name, x, *rest)
    eager = errors(FUNCTIONS[name](x, *rest), unrounded)
    found = {form: compiled(name, (x, *rest), form)(x, *rest) for form in ("exact", "running")}
    assert errors(found["exact"], unrounded) == pytest.approx(eager, rel=0.05)
    assert errors(found["running"], unrounded) < 2 * eager
    assert errors(found["running"], truth) < 3 * eager
    assert errors(found["running"], truth) > 100 * errors(found["exact"], truth)


def products(name: str, x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    """The product in fp64 that the function stands for, nothing rounded."""
    x = x.double()
    match name, rest:
        case "float8_scaled", (columns,):
            return x @ w.double().t() * columns.double()
        case "int8_both", (columns,):
            return x @ w.double() * columns.double()
        case "uint8_with_zero_points", (zero, columns):
            return x @ (w.double() - zero.double()) * columns.double()
        case _:
            return x @ w.double()


def judged(name: str, dtype: torch.dtype, shape, rounding: str = "running", inner: int = LONG):
    torch.manual_seed(0)
    draws = [operands(name, 33, inner, 40, dtype) for _ in range(4)]
    draws = [(shape(x).to(dtype), *rest) for x, *rest in draws]
    program = compiled(name, draws[0], rounding)
    found, eager = ([f(*d) for d in draws] for f in (program, FUNCTIONS[name]))
    return weft.judge(Draws(found), Draws(eager), Draws([exact(name, d) for d in draws]))


def rising(x: torch.Tensor) -> torch.Tensor:
    return x * RISING


def greatest_first(x: torch.Tensor) -> torch.Tensor:
    """The largest of each row in its first block."""
    x = x.clone()
    x[:, 0] = 2 * x.abs().amax(-1)
    return x


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["int8", "float8"])
def test_the_error_rule_decides_for_the_exact_form(name):
    """In fp32 the rule sees every rounding that is another one; where none is, or eager's own are as large, it accepts."""
    assert judged(name, torch.float32, rising, "exact").ok
    assert not judged(name, torch.float32, rising).ok
    assert judged(name, torch.float32, greatest_first).ok
    assert judged(name, torch.bfloat16, lambda x: x).ok


# Special rows.


SPECIAL = (
    lambda row: row.mul_(0.0),
    lambda row: row[3].fill_(math.inf),
    lambda row: row[-4].fill_(-math.inf),
    lambda row: row[-5].fill_(math.nan),
    lambda row: row.mul_(1e-38),
    lambda row: row[:-1].fill_(0.0),
    lambda row: row.mul_(1e30),
    lambda row: row[len(row) // 2 :].mul_(1e-30),
)
"""What is done to rows; infinities and NaN are met after a finite scale, too."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "rows", "inner", "kernels"),
    [
        *share(((n, 8, LONG, 1) for n in NAMES if n != "float8_scaled"), 3),
        *share((("int8", 2, 65536, 2), ("float8", 2, 65536, 2)), 2),
    ],
)
def test_rows_of_zeros_infinities_and_nan_are_eagers(name, rows, inner, kernels):
    """Two long rows have segments, which are merged; where the right operand is converted, that may be a kernel of its own."""
    torch.manual_seed(0)
    x, *rest = operands(name, rows, inner, 8, torch.float32)
    program = compiled(name, (x, *rest), threads=4)
    assert len(program.kernels) >= kernels
    for first in range(0, 8, rows):
        changed = x.clone()
        for row, change in zip(changed, SPECIAL[first : first + rows], strict=True):
            change(row)
        found, eager = program(changed, *rest), FUNCTIONS[name](changed, *rest)
        assert torch.equal(found.isnan(), eager.isnan())
        assert torch.equal(found.isinf(), eager.isinf())
        for one, other in zip(found, eager, strict=True):
            if other.isfinite().all():
                torch.testing.assert_close(one, other, rtol=0.0, atol=0.15 * other.abs().max().item())


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("kind", "threads"), [("int8", 1), ("int8", 4), ("float8_e4m3fn", 1), ("float8_e5m2", 1)])
def test_without_the_scale_after_it_a_row_that_has_none_is_eagers(kind, threads):
    """int8 of NaN is 0, and so is the product; nothing makes it NaN again. In fp8 numbers it is NaN."""
    dtype = getattr(torch, kind)
    most = 127 if kind == "int8" else torch.finfo(dtype).max

    def steps(x, w):
        x = x / (x.abs().amax(-1, keepdim=True) / most)
        return (x.round().clamp(-127, 127) if kind == "int8" else x).to(dtype).to(w.dtype) @ w

    torch.manual_seed(0)
    x, w = torch.randn(4, LONG), torch.randn(LONG, 24)
    x[0], x[1, 7], x[2, -7] = 0.0, math.inf, math.nan
    program = weft.optimize(steps, (x, w), rounding="running", threads=threads)
    assert "which use the scale so far" in program.kernels[0].verdict.reason
    found, eager = program(x, w), steps(x, w)
    torch.testing.assert_close(found[:3], eager[:3], rtol=0.0, atol=0.0, equal_nan=True)
    assert eager[:3].isnan().all() if kind != "int8" else eager.isfinite().all()
    assert found[3].isfinite().all()


def test_what_is_quantised_may_be_a_result_too():
    """Then it is rounded at the last scale, as eager does; only what the product reads is not."""

    def quantised(x, w):
        scale = x.abs().amax(-1, keepdim=True) / 448.0
        q = (x / scale).to(torch.float8_e4m3fn)
        return q.float(), scale, (q.to(x.dtype) @ w) * scale

    torch.manual_seed(0)
    x, w = torch.randn(9, LONG) * RISING, torch.randn(LONG, 24) / 64
    program = weft.optimize(quantised, (x, w), rounding="running")
    assert program.fallbacks == ()
    (q, scale, y), (wanted, wide, eager) = program(x, w), quantised(x, w)
    assert torch.equal(q, wanted)
    assert torch.equal(scale, wide)
    assert errors(y, eager.double()) < 0.1 * eager.abs().max()


@pytest.mark.parametrize("name", ["int8", "float8"])
def test_a_first_block_of_zeros_costs_nothing(name):
    """Then one block that has the row's maximum: the same roundings as eager's, so the same numbers."""
    torch.manual_seed(0)
    x, w = operands(name, 9, LONG, 24, torch.float32)
    x[:, : LONG - 40] = 0.0
    found, eager = compiled(name, (x, w))(x, w), FUNCTIONS[name](x, w)
    torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-6)
    assert eager.abs().max() > 0.01


def test_of_few_rows_the_segments_are_merged():
    torch.manual_seed(0)
    x, w = torch.randn(2, 65536), torch.randn(65536, 8) / 256
    x *= torch.arange(1, 65537) / 65536
    program = compiled("float8", (x, w), threads=4)
    assert len(program.kernels) == 2
    eager = FUNCTIONS["float8"](x, w)
    assert errors(program(x, w), eager.double()) < 2 * errors(eager, x.double() @ w.double())


def test_weft_compile_takes_it_too():
    torch.manual_seed(0)
    x, w = operands("float8", 33, LONG, 40, torch.float32)
    x = x * RISING
    with weft.options(rounding="running", measure="never"):
        fast = weft.compile(FUNCTIONS["float8"])
        found = fast(x, w)
    exactly = weft.compile(FUNCTIONS["float8"], measure="never")(x, w)
    truth = exact("float8", (x, w))
    assert isinstance(truth, torch.Tensor)
    assert errors(found, truth) > 100 * errors(exactly, truth)
