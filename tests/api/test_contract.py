"""The public contract: what a user can call, and what comes back."""

from __future__ import annotations

import copy
import math
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weft
from weft.verify import Aspect


def relu_linear(x, w, b):
    return torch.relu(x @ w + b)


def inputs(m=33, k=20, n=17):
    return torch.randn(m, k), torch.randn(k, n), torch.randn(n)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, *, scale=1.0):
        return self.second(torch.relu(self.first(x))) * scale


def test_torch_compile_finds_the_backend_by_name():
    before = weft.stats()
    fast = torch.compile(relu_linear, backend="weft")
    given = inputs()
    with torch.no_grad():
        torch.testing.assert_close(fast(*given), relu_linear(*given))
    assert weft.stats().binaries_emitted + weft.stats().cache_hits > before.binaries_emitted + before.cache_hits


def test_a_new_length_costs_no_binary():
    fast = weft.compile(relu_linear)
    with torch.no_grad():
        fast(*inputs(m=600))
        before = weft.stats()
        for m in (700, 801, 5000, 523):
            given = inputs(m=m)
            torch.testing.assert_close(fast(*given), relu_linear(*given), rtol=1e-4, atol=1e-4)
    assert weft.stats().compiles == before.compiles


def test_a_compiled_module_is_a_module_with_the_same_state():
    module = Layers().eval()
    fast = weft.compile(module)
    assert isinstance(fast, nn.Module)
    x = torch.randn(5, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, scale=2.0), module(x, scale=2.0))
        module.first.weight.zero_()  # weights changed in place are seen
        torch.testing.assert_close(fast(x), module(x))


def test_a_program_can_be_asked():
    given = inputs()
    program = weft.optimize(relu_linear, given)
    (kernel,) = program.kernels
    assert kernel.name in kernel.source
    assert kernel.verdict.equal is True
    assert kernel.verdict.agrees
    assert kernel.verdict.error_probability is None, (
        "a maximum is seen under random orders, of which there is no theorem"
    )
    assert {each.kind for each in kernel.verdict.classes} == {Aspect.rational, Aspect.order}
    assert len(kernel.verdict.primes) == 2
    assert kernel.cost.flops >= 2 * 33 * 20 * 17
    assert kernel.schedule.loops
    assert kernel.block_program.graph.nodes
    assert program.fallbacks == ()
    assert [step.rule for step in program.trace][-1] == "fuse_map_with_reduction"
    torch.testing.assert_close(program(*given), relu_linear(*given))


def test_what_is_printed_is_short():
    def partly(x, w):
        return torch.sort(torch.relu(x @ w), 0).values

    program = weft.optimize(partly, (torch.randn(6, 5), torch.randn(5, 4)))
    text = str(program)
    (kernel,) = program.kernels
    for part in (
        "program of 1 kernel",
        kernel.name,
        "reads x, w",
        "verdict: equal",
        "predicted",
        "left to PyTorch: aten.sort",
    ):
        assert part in text
    assert len(text) < 1000
    assert kernel.name in repr(program)
    assert "aten.sort" in repr(program)
    assert max(len(repr(x)) for x in (program, kernel, program.plans[0], *program.trace)) < 200
    lines = str(program.trace).splitlines()
    assert len(lines) == len(program.trace) > 0
    assert all(
        line.startswith(f"{i}. {step.rule} in ")
        for i, (line, step) in enumerate(zip(lines, program.trace, strict=True), 1)
    )
    assert isinstance(program.trace, tuple)
    assert "forall m in range(M):" in str(program.trace[-1].after)
    assert str(program.trace[0].before) != str(program.trace[-1].after)


def test_explain_tells_the_whole_story(tmp_path):
    report = weft.optimize(relu_linear, inputs()).explain()
    text = str(report)
    for title in (
        "captured program", "rewrites", "block program before fusion", "block program after fusion", "schedule", "verdict",
        "fallbacks to PyTorch",
    ):  # fmt: skip
        assert title in text
    assert "forall m in range(M):" in text
    page = report.save(tmp_path / "report.html")
    assert "forall" in page.read_text()
    assert report.save(tmp_path / "report.txt").read_text().strip() == text


def test_what_is_not_supported_runs_in_pytorch_with_its_reason():
    def partly(x, w):
        return torch.renorm(x @ w, 2, 0, 1.0) + 1

    given = torch.randn(6, 5), torch.randn(5, 4)
    program = weft.optimize(partly, given)
    torch.testing.assert_close(program(*given), partly(*given))
    (fallback,) = program.fallbacks
    operation, reason = fallback
    assert "renorm" in operation
    assert "table" in reason
    assert "test_contract.py" in str(fallback)
    assert len(program.kernels) == 2  # what stands around it is still compiled


def test_several_outputs_of_a_nest():
    def several(x, w):
        y = x @ w
        return {"y": y, "parts": (torch.relu(y), y.sum(-1))}

    given = torch.randn(9, 5), torch.randn(5, 12)
    program = weft.optimize(several, given)
    found, wanted = program(*given), several(*given)
    torch.testing.assert_close(found, wanted)
    assert program.fallbacks == ()


def test_sliced_and_transposed_inputs_are_views():
    def views(x, w):
        return torch.relu(x[:, 2:7] @ w.T)

    given = torch.randn(9, 11), torch.randn(6, 5)
    program = weft.optimize(views, given)
    torch.testing.assert_close(program(*given), views(*given))
    assert (len(program.kernels), program.fallbacks) == (1, ())


def test_flipped_inputs():
    def flipped(x, y):
        return x.flip(0) * 2 + y

    given = torch.randn(9, 11), torch.randn(9, 11)
    torch.testing.assert_close(weft.optimize(flipped, given)(*given), flipped(*given))


def test_a_sum_over_a_batch():
    def summed(x, y):
        return (x @ y).sum(0)

    given = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    program = weft.optimize(summed, given)
    torch.testing.assert_close(program(*given), summed(*given))
    assert program.fallbacks == ()


def test_batches_and_means():
    def normalised(x, w):
        y = torch.matmul(x, w)
        return y - y.mean(-1, keepdim=True)

    given = torch.randn(3, 4, 10, 5), torch.randn(5, 7)
    program = weft.optimize(normalised, given)
    torch.testing.assert_close(program(*given), normalised(*given))
    assert program.fallbacks == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(4, 3).t(),
        lambda: torch.randn(4, 6)[:, ::2],
        lambda: torch.randn(1, 6).expand(4, 6),
    ],
)
def test_results_lie_in_memory_as_eagers(make):
    def double(x):
        return x * 2 + 1, torch.relu(x)

    x = make()
    with torch.no_grad():
        found, wanted = weft.compile(double)(x), double(x)
    assert [t.stride() for t in found] == [t.stride() for t in wanted]
    torch.testing.assert_close(found, wanted)


def test_values_that_laws_merge_still_reach_pytorch():
    def merged(x):
        return (x * 2).t(), (x * 2)[1:], (x * 2).reshape(3, -1)

    x = torch.randn(4, 6)
    torch.testing.assert_close(weft.optimize(merged, (x,))(x), merged(x))


def test_a_reshape_takes_no_call():
    def mean(x):
        return x.reshape(2, 3, 4).mean(-1)

    x = torch.randn(2, 12)
    program = weft.optimize(mean, (x,))
    torch.testing.assert_close(program(x), mean(x))
    assert program.fallbacks == ()
    assert "views that PyTorch makes, without a copy" not in dict(program.explain().sections)
    assert len(program.kernels) == 1


def test_options_by_torch_compile():
    fast = torch.compile(relu_linear, backend="weft", options={"threads": 1})
    given = inputs()
    with torch.no_grad():
        torch.testing.assert_close(fast(*given), relu_linear(*given))


def test_a_fixed_size_is_part_of_what_a_kernel_is():
    def shifted(x):
        return x + torch.arange(x.shape[-1])

    for width in (5, 6, 5):
        x = torch.randn(4, width)
        torch.testing.assert_close(weft.optimize(shifted, (x,))(x), shifted(x))


def test_narrow_integers_wrap():
    def wraps(a):
        return (a + 1) > 0, (a * 2).float()

    a = torch.tensor([2**31 - 1, 5, -7], dtype=torch.int32)
    torch.testing.assert_close(weft.optimize(wraps, (a,))(a), wraps(a))


def test_rows_columns_and_depth_may_be_axes_of_one_space():
    def attention(x):
        return torch.softmax((x @ x.T).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf), -1)

    x = torch.randn(4, 6)
    program = weft.optimize(attention, (x,))
    torch.testing.assert_close(program(x), attention(x))


def test_the_same_inputs_give_the_same_bits():
    given = inputs(300, 1000, 65)
    program = weft.optimize(relu_linear, given)
    first = program(*given)
    assert all(torch.equal(first, program(*given)) for _ in range(5))


def test_a_derived_function_is_the_same_kernel_as_the_named_one():
    def named(x, w):
        return F.silu(x @ w)

    def spelled(x, w):
        y = x @ w
        return y / (1 + torch.exp(-y))

    given = torch.randn(9, 5), torch.randn(5, 12)
    one, other = (weft.optimize(f, given).kernels[0].source for f in (named, spelled))
    assert _without_comments(one) == _without_comments(other)


def _without_comments(source: str) -> list[str]:
    return [line for line in source.splitlines() if not line.strip().startswith("//")]


def hand_written_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


class TestEquivalent:
    def test_equal(self):
        verdict = weft.equivalent(
            lambda x, y: (x + y) * x, lambda x, y: x * x + y * x, (torch.randn(5, 6), torch.randn(5, 6))
        )
        assert verdict.equal is True
        assert verdict
        assert verdict.error_probability is not None
        assert verdict.error_probability < 1e-9

    def test_a_size_as_a_number_is_equal_at_that_size(self):
        x = torch.randn(6, 16)
        verdict = weft.equivalent(lambda x: x.mean(-1), lambda x: x.sum(-1) / x.shape[-1], (x,))
        assert verdict.equal is True
        assert "at the sizes given" in verdict.reason
        assert weft.equivalent(lambda x: x.mean(-1), lambda x: x.sum(-1) / 17, (x,)).equal is False

    def test_different(self):
        given = torch.randn(5, 5), torch.randn(5, 5)
        assert weft.equivalent(lambda x, y: x @ y, lambda x, y: y @ x, given).equal is False
        assert weft.equivalent(lambda x, y: x @ y, lambda x, y: x @ y.T, given).equal is False

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (lambda x, y: (x + y, x), lambda x, y: (x + y, y)),
            (lambda x, y: (x + y, 1), lambda x, y: (x + y, 2)),
            (lambda x, y: (x + y, x - y, x + y), lambda x, y: (x + y, x - y, x - y)),
            (lambda x, y: (x + y).sum(-1), lambda x, y: (x + y).sum(-1, keepdim=True)),
            (lambda x, y: x + y, lambda x, y: (x + y).T),
            (lambda x, y: x + y, lambda x, y: (x + y)[None]),
            (lambda x, y: x + y, lambda x, y: (x + y).double()),
            (lambda x, y: x + y, lambda x, y: x * 2),
        ],
    )
    def test_results_are_compared_one_by_one(self, one, other):
        given = torch.randn(4, 4), torch.randn(4, 4)
        assert weft.equivalent(one, one, given).equal is True
        assert weft.equivalent(one, other, given).equal is False

    def test_an_argument_that_is_not_read(self):
        given = torch.randn(4), torch.randn(5)
        assert weft.equivalent(lambda x, y: x + x, lambda x, y: x * 2, given).equal is True

    @pytest.mark.parametrize(
        ("one", "other", "said"),
        [
            (lambda x: x / 3, lambda x: x * (1 / 3), "constants: the second alone has 0.3333333333333333"),
            (lambda x: x * 0.1, lambda x: x / 10, "the first alone has 0.1"),
            (lambda x: torch.softmax(x / math.sqrt(3), -1), lambda x: torch.softmax(x * 3**-0.5, -1), "0.577"),
            (hand_written_gelu, lambda x: F.gelu(x, approximate="tanh"), "the first alone has 0.7978845608"),
            (torch.tanh, lambda x: 1 - 2 / (torch.exp(2 * x) + 1), "operations: the first alone has tanh"),
            (lambda x: torch.relu(x) * 2, lambda x: torch.relu(x * 2), "the order or the number"),
            (lambda x: x > 0.1, lambda x: 10 * x > 1.0000000001, "constants"),
        ],
    )
    def test_what_rounding_explains_is_undecided_and_says_what_differs(self, one, other, said):
        for first, second in ((one, other), (other, one)):
            verdict = weft.equivalent(first, second, (torch.randn(5, 7),))
            assert verdict.equal is None
            assert verdict.error_probability is None
        assert said in weft.equivalent(one, other, (torch.randn(5, 7),)).reason
        assert weft.equivalent(one, one, (torch.randn(5, 7),)).equal is True

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (lambda x: x / 3, lambda x: x * 0.33333),
            (lambda x: x * 1.5, lambda x: x * 1.5 + 1e-9),
            (F.gelu, lambda x: F.gelu(x, approximate="tanh")),
            (lambda x: torch.where(x > 0, x / 3, x * 1e9), lambda x: torch.where(x > 0, x * 0.3333, x * 1e9)),
            (lambda x: x > 0.1, lambda x: x >= 0.1),
            (lambda x: torch.tanh(x).double(), lambda x: torch.tanh(x).double() * (1 + 1e-10)),
            (lambda x: torch.log(x / 3), lambda x: torch.log(x * (1 / 3)).nan_to_num()),
            (lambda x: (x * 0.1 > 0).long(), lambda x: (x / 10 > 0).long() + 1),
        ],
    )
    def test_what_rounding_does_not_explain_is_refuted(self, one, other):
        assert weft.equivalent(one, other, (torch.randn(5, 7),)).equal is False

    def test_a_function_may_compute_nothing(self):
        given = torch.randn(3), torch.randn(3)
        assert weft.equivalent(lambda x, y: (y, x), lambda x, y: (y * 1, x), given).equal is True
        assert weft.equivalent(lambda x, y: (y, x), lambda x, y: (x, y), given).equal is False
        assert weft.equivalent(lambda x, y: (y, x), lambda x, y: x + 1, given).equal is False
        assert weft.equivalent(lambda x, y: [], lambda x, y: x, given).equal is False
        verdict = weft.equivalent(lambda x, y: [], lambda x, y: [], given)
        assert verdict.equal is None
        assert "the first function returns no tensor" in verdict.reason

    def test_what_separates_two_functions_is_small_and_shown(self):
        verdict = weft.equivalent(lambda x: torch.where(x * 2 == 3, 1.0, x), lambda x: x, (torch.randn(5, 7),))
        assert verdict.equal is False
        assert verdict.separates is not None
        assert verdict.separates["argument 0"].tolist() == [[1.5]]
        assert verdict.reason == "the first gives 1, the second 1.5 at [0, 0], where argument 0 = [[1.5]]"

    def test_modules_are_told_apart_though_they_read_their_weights(self):
        layer = torch.nn.Linear(4, 3)
        without = weft.equivalent(layer, lambda x: F.linear(x, layer.weight), (torch.randn(5, 4),))
        assert without.equal is False, "weights that a function holds are float64 where its arguments are"
        other = copy.deepcopy(layer)
        torch.nn.init.ones_(other.bias)
        assert weft.equivalent(layer, other, (torch.randn(5, 4),)).equal is False
        assert weft.equivalent(layer, copy.deepcopy(layer), (torch.randn(5, 4),)).equal is None

    def test_a_function_of_random_numbers_is_not_judged(self):
        verdict = weft.equivalent(lambda x: x + torch.rand_like(x), lambda x: x, (torch.randn(5),))
        assert verdict.equal is None
        assert "other results on the same inputs" in verdict.reason

    def test_the_functions_and_the_state_of_random_numbers_are_left_as_they_were(self):
        layer, x = torch.nn.BatchNorm1d(4), torch.randn(5, 4)
        assert layer.running_mean is not None
        before, mean = torch.get_rng_state(), layer.running_mean.clone()
        verdict = weft.equivalent(lambda x: x * 2, lambda x: x + x, (x,))
        assert verdict.equal is True
        assert torch.equal(torch.get_rng_state(), before)
        weft.equivalent(layer.eval(), lambda x: x * 2, (x,))
        assert torch.equal(layer.running_mean, mean)

    def test_undecided(self):
        verdict = weft.equivalent(
            lambda x: torch.sort(x, 0).values, lambda x: torch.sort(x, 0).values, (torch.randn(5),)
        )
        assert verdict.equal is None
        assert not verdict
        assert "sort" in verdict.reason


@pytest.mark.parametrize("brgemm", ["auto", "off"])
def test_products_without_the_librarys(brgemm):
    given = inputs(70, 130, 90)
    with weft.options(brgemm=brgemm):
        program = weft.optimize(relu_linear, given)
    torch.testing.assert_close(program(*given), relu_linear(*given), rtol=1e-4, atol=1e-4)


def test_log_says_what_was_compiled(capfd):
    with weft.options(log="info"):
        weft.optimize(relu_linear, inputs())
    assert "weft: compiled weft_" in capfd.readouterr().err


def test_log_counts_what_has_one_name(capfd):
    """Layers that are alike have one kernel, and one reason why PyTorch runs a part of each."""

    def layers(x):
        for _ in range(3):
            x = torch.softmax(torch.sort(x, 0).values, -1)
        return x

    with weft.options(log="info", measure="auto"), torch.no_grad():
        weft.compile(layers)(torch.randn(24, 24))
    compiled, timed, *_ = (line for line in capfd.readouterr().err.splitlines() if line.startswith("weft: "))
    assert re.fullmatch(r"weft: compiled weft_\w+( \(cached\))? x 3; left to PyTorch: aten\.sort: .* x 3", compiled)
    assert re.match(r"weft: weft_\w+ x 3: ", timed)


def test_a_wrong_law_is_refuted_before_it_runs(monkeypatch):
    """A law that drops an addition: nothing is compiled, PyTorch runs the graph, and it is said why."""
    import importlib
    from dataclasses import replace

    from weft.tensor.passes import tensor_pass
    from weft.tensor.program import Elementwise
    from weft.tensor.scalar import Apply, Arg

    executable = importlib.import_module("weft.plan.execute.laws")

    @tensor_pass()
    def wrong(made):
        plus = Apply("add", (Arg(0), Arg(1)))
        nodes = (replace(n, expr=Arg(0)) if isinstance(n, Elementwise) and n.expr == plus else n for n in made.nodes)
        return replace(made, nodes=tuple(nodes))

    monkeypatch.setattr(executable, "GRAPH", (*executable.GRAPH, wrong))
    given = inputs()
    with weft.options(defects="warn"), warnings.catch_warnings():
        warnings.simplefilter("ignore", weft.errors.LeftToPyTorchWarning)  # users hear of it once
        program = weft.optimize(relu_linear, given)
    assert program.kernels == ()
    assert "refuted" in program.fallbacks[0].reason
    torch.testing.assert_close(program(*given), relu_linear(*given))
