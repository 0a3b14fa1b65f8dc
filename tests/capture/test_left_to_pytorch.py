"""What capture leaves to PyTorch: single operations, or the graph; why, and on whose line."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from weft.capture import FromArgument, FromProgram, capture
from weft.capture.record import record
from weft.capture.translate import meaning
from weft.options import options as weft_options

HERE = str(Path(__file__))


def line_of(function, text):
    """The line of this file on which `function` says `text`."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_unknown_operation_is_opaque_and_says_where(weft):
    def function(x, w):
        y = x @ w
        y = torch.renorm(y, 2, 0, 1.0)
        return torch.relu(y) * 2

    captured = weft.compare(function, torch.randn(4, 6), torch.randn(6, 3))
    (fallback,) = captured.fallbacks
    assert fallback.operation == "aten.renorm"
    assert fallback.reason == "aten.renorm is not in weft's table of operations yet"
    assert fallback.location.file == HERE
    assert fallback.location.line == line_of(function, "renorm")
    assert fallback.location.code == "y = torch.renorm(y, 2, 0, 1.0)"
    assert "opaque aten.renorm(t0)" in str(captured.program)
    assert str(captured.program).count("contract over") == 1


def test_line_within_a_called_function_and_a_module(weft):
    def inner(x):
        return torch.sort(x, 0).values

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.AvgPool1d(12)

        def forward(self, x):
            y = inner(x) + 1
            return self.gate(y)

    captured = weft.compare(Model(), torch.randn(4, 36))
    first, second = captured.fallbacks
    assert first.location.line == line_of(inner, "sort")
    assert second.location.line == line_of(Model.forward, "self.gate(y)")


def test_module_without_a_line_of_its_own(weft):
    captured = weft.compare(nn.Sequential(nn.ReLU(), nn.AvgPool1d(12)), torch.randn(4, 36))
    (fallback,) = captured.fallbacks
    assert fallback.operation == "aten.avg_pool1d"
    assert fallback.location is None or HERE not in fallback.location.file


def test_views_and_units_around_an_opaque_call(weft):
    def function(x):
        y = torch.sort(x.t().unsqueeze(1), 0).values
        return y.squeeze(1).t() * x, y

    captured = weft.compare(function, torch.randn(4, 6))
    (call,) = captured.calls.values()
    assert call.results[0].kept == (True, False, True)


def test_symbolic_arguments_of_an_opaque_call(weft):
    def function(x):
        return torch.sort(x.reshape(x.shape[1], x.shape[0] * 1).t(), 0)[0] + 1

    torch.compiler.reset()
    compiled = torch.compile(function, backend=weft, dynamic=True)
    with torch.no_grad():
        for shape in ((4, 6), (3, 5)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), function(x), check_dtype=False)
    assert [f.operation for f in weft.only.fallbacks] == ["aten.sort"]
    assert [f.operation for f in weft.only.views] == ["aten.reshape"]


def test_several_results_of_one_call(weft):
    def function(x):
        values, indices = x.sort(dim=1)
        middle, _ = x.kthvalue(2, dim=1)
        return values * 2, indices, middle + 1

    captured = weft.compare(function, torch.randn(4, 6))
    assert [call.name for call in captured.calls.values()] == ["sort_0", "kthvalue_1"]
    assert captured.calls["kthvalue_1"].results[1] is None


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.argmax(), "not several at once"),
        (lambda x: x.repeat(1, 20).topk(65).values, "k is 65, but weft supports only k from 1 to 64"),
        (lambda x: x.view(3, 8) * 2, "splits or merges dimensions"),
        (lambda x: x.view(torch.int32) + 1, "weft's result would be float32[4, 6], PyTorch's is int32[4, 6]"),
        (lambda x: x.round(decimals=1), "weft does not support its argument decimals"),
        (lambda x: x.long() // x.long().abs().clamp(min=1), "by what may be 0"),
        (lambda x: x.long() % (x.long() * 0 + 1), "by what may be 0"),
        (lambda x: torch.div(x, 3.0, rounding_mode="floor"), "floor division of floating-point numbers"),
        (lambda x: x // 3.0, "weft does not compute aten.floor_divide on float32"),
        (lambda x: x.to(torch.uint8).clamp(min=-1), "-1 is out of range for uint8"),
    ],
)
def test_reasons(weft, function, reason):
    weft.run(function, torch.randn(4, 6))
    captured = weft.only
    assert captured.refused is None
    left = (*captured.fallbacks, *captured.views)
    assert any(reason in f.reason for f in left), left


def test_random_numbers_are_drawn_once_and_in_order(weft):
    def function(x):
        torch.rand(3)
        return F.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(4, 6)
    torch.manual_seed(3)
    wanted = function(x)
    torch.manual_seed(3)
    torch.testing.assert_close(weft.run(function, x), wanted, check_dtype=False)
    assert [call.name for call in weft.only.calls.values()] == ["rand_0", "dropout_1", "rand_like_2"]
    assert all("random" in fallback.reason for fallback in weft.only.fallbacks)


# In-place operations.


def test_writes_that_nobody_sees_become_values(weft):
    def function(x, w):
        y = x @ w
        y += 1
        y.relu_()
        z = y.to(torch.bfloat16)
        z.mul_(x[:, :3])
        return F.silu(z, inplace=True), y

    x, w = torch.randn(4, 6), torch.randn(6, 3)
    found = weft.run(function, x, w)
    torch.testing.assert_close(found, function(x, w), rtol=0.05, atol=0.05, check_dtype=False)
    captured = weft.only
    assert captured.fallbacks == ()
    assert [type(r) for r in captured.results] == [FromProgram, FromProgram]
    dtypes = [captured.program.values()[o].dtype.name for o in captured.program.outputs]
    assert dtypes == ["bfloat16", "float32"]


def test_write_into_another_element_type_is_a_cast(weft):
    def function(x):
        y = (x * 2).to(torch.bfloat16)
        y.copysign_(x)
        return y

    weft.run(function, torch.randn(4, 6))
    values = weft.only.program.values()
    (call,) = weft.only.calls.values()
    assert values[call.results[0].value].dtype.name == "float32"
    assert values[weft.only.program.outputs[0]].dtype.name == "bfloat16"


def write_input(x):
    x.add_(1)
    return x, x * 2


def write_view(x):
    y = x * 2
    y[0].add_(1)
    return y.sum(0)


def write_shared(x):
    y = x * 2
    z = y.t()
    y.add_(1)
    return z * 1


def write_through_a_view(x):
    x.view(-1)[3:5] += 1
    x[:, 2] = 7.0
    return x.t() @ x


def write_with_indices(x):
    x.index_copy_(0, torch.ones(1, dtype=torch.long), x[:1] * 2)
    return x + 1


@pytest.mark.parametrize(
    ("function", "changed"),
    [
        (write_input, True),
        (write_view, False),
        (write_shared, False),
        (write_through_a_view, True),
        (write_with_indices, True),
    ],
)
def test_writes_that_others_see_are_values_too(weft, function, changed):
    x = torch.randn(4, 6)
    other = x.clone()
    found = weft.run(function, x)
    torch.testing.assert_close(found, function(other), check_dtype=False)
    torch.testing.assert_close(x, other)
    assert weft.only.refused is None
    assert [argument for argument, _ in weft.only.writes] == [0] * changed


def test_a_number_that_python_made_a_tensor_of(weft):
    def function(x):
        y = x * 2
        y[1:3] = 5.7
        return y * torch.tensor(2.0)

    assert {f.operation for f in weft.compare(function, torch.randn(4, 6)).fallbacks} == set()


def write_out(x):
    y = torch.empty(4, 6)
    torch.mul(x, 2, out=y)
    return y


def spectrum(x, c):
    y = torch.exp(x) * 2
    z = torch.fft.rfft(y)
    z = z * c
    size = z.abs()
    return torch.softmax(size, -1) + 1, z


def turned_beside_a_view(x):
    y = torch.exp(x)
    z = y[0]
    y.transpose_(0, 1)
    y.add_(z.sum())
    z.mul_(2)
    return z, y * 1, torch.softmax(y, -1)


def turned_twice(x):
    y = torch.exp(x)
    z = y[1:3]
    y.t_().unsqueeze_(0)
    z.add_(1)
    return torch.softmax(y, -1), z * 2


@pytest.mark.parametrize("function", [turned_beside_a_view, turned_twice])
def test_a_tensor_that_others_look_into_changes_its_shape(weft, function):
    captured = weft.compare(function, torch.randn(4, 6))
    assert {fallback.operation for fallback in captured.fallbacks} <= {"aten.copy_"}


def test_a_call_that_writes_into_other_arguments_is_a_call(weft):
    captured = weft.compare(write_out, torch.randn(4, 6))
    empty, product = captured.fallbacks
    assert (empty.operation, product.operation) == ("aten.empty", "aten.mul")
    assert product.reason == "it writes into its arguments"
    assert product.location.line == line_of(write_out, "mul")


def test_only_the_calls_that_touch_complex_numbers_are_left(weft):
    x, c = torch.randn(4, 6), torch.randn(4, dtype=torch.complex64)
    weft.compare(spectrum, x, c)
    captured = weft.only
    assert captured.program is not None
    assert [f.operation for f in captured.fallbacks] == ["aten.fft_rfft", "aten.mul", "aten.abs"]
    assert all(f.reason == "PyTorch runs operations on complex64" for f in captured.fallbacks)
    assert [f.location.line for f in captured.fallbacks] == [
        line_of(spectrum, text) for text in ("rfft", "z * c", "z.abs()")
    ]


def turned(x, angles):
    """Rotary embeddings in complex numbers: the product lies as its operand does, heads inside of words."""
    pairs = torch.view_as_complex(x.transpose(1, 2).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(3)


def turned_and_copied(x, angles):
    pairs = torch.view_as_complex(x.transpose(1, 2).unflatten(-1, (-1, 2))) * torch.polar(angles, angles)
    return torch.view_as_real(pairs.flatten(2)), pairs.reshape(2, -1).real


@pytest.mark.parametrize("function", [turned, turned_and_copied])
def test_complex_numbers_that_lie_in_another_order_cost_no_graph(weft, function):
    captured = weft.compare(function, torch.randn(2, 5, 3, 8), torch.randn(5, 4))
    assert captured.refused is None
    assert captured.program is not None
    assert all(f.reason == "PyTorch runs operations on complex64" for f in captured.fallbacks)


@pytest.mark.parametrize("function", [torch.vdot, torch.linalg.vecdot, torch.var, torch.linalg.vector_norm])
def test_parts_of_real_numbers_are_not_those_of_complex_ones(weft, function):
    x, y = (torch.randn(6, dtype=torch.complex64) for _ in range(2))
    given = (x,) if function in (torch.var, torch.linalg.vector_norm) else (x, y)
    weft.compare(lambda *given: torch.exp(torch.view_as_real(function(*given) + 0j)), *given)


def test_slice_that_is_everything_by_chance(weft):
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x[:4] * 2, backend=weft, dynamic=True)
    with torch.no_grad():
        for rows in (4, 6):
            assert compiled(torch.randn(rows, 3)).shape == (4, 3)
    assert "only at some sizes" in weft.only.views[0].reason


def test_gradients_are_left_to_pytorch(weft):
    layer = nn.Linear(6, 3)
    x = torch.randn(4, 6)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend=weft)
    compiled(x).sum().backward()
    assert layer.weight.grad is not None
    assert weft.only.refused.reason.startswith("gradients are asked for")
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert weft.graphs[-1].refused is None


def test_no_gradients_within_the_function(weft):
    layer = nn.Linear(6, 3)

    def function(x):
        with torch.no_grad():
            return layer(x)

    torch.compiler.reset()
    found = torch.compile(function, backend=weft)(torch.randn(4, 6))
    assert not found.requires_grad
    assert weft.only.refused is None
    assert torch.is_grad_enabled()


def test_autocast_becomes_casts(weft):
    def function(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ w

    captured = weft.compare(function, torch.randn(4, 6), torch.randn(6, 3))
    assert captured.fallbacks == ()
    text = str(captured.program)
    assert text.count("precision cast of x[") == 1
    assert text.count("precision cast of w[") == 1
    assert captured.program.values()[captured.program.outputs[0]].dtype.name == "bfloat16"


# What goes out.


def test_results_keep_their_structure(weft):
    def function(x, w):
        y = x @ w
        return {"y": y, "same": [y, (x, None)], "n": 3, "twice": y * 2}

    x, w = torch.randn(4, 6), torch.randn(6, 3)
    found = weft.run(function, x, w)
    wanted = function(x, w)
    assert list(found) == list(wanted)
    assert found["same"][1][0] is x
    assert found["same"][0] is found["y"]
    torch.testing.assert_close(found["twice"], wanted["twice"], check_dtype=False)


def test_outputs_that_share_memory_still_do(weft):
    def function(x):
        y = x * 3
        y -= x
        return y, y.t(), x.t(), x.view(-1)[1:], (x + 1).t()

    x = torch.randn(4, 6)
    weft.compare(function, x)
    captured = weft.only
    assert sorted(captured.calls) == ["slice_4", "t_2", "t_7", "view_3"]
    assert all(call.pinned for call in captured.calls.values())
    y = x * 2
    (out,) = captured.calls["t_7"].run({"t1": y}, (x,)).values()
    assert out.data_ptr() == y.data_ptr()
    assert out.stride() == (1, 6)
    assert captured.fallbacks == ()
    assert all("shares memory" in view.reason for view in captured.views)


def test_outputs_of_their_own_are_copies(weft):
    def function(x):
        y = x * 2
        return x.clone(), y, y.clone()

    captured = weft.compare(function, torch.randn(4, 6))
    assert len(set(captured.program.outputs)) == 3
    assert not set(captured.program.outputs) & {i.name for i in captured.program.inputs}


def test_sizes_and_constants_as_results(weft):
    def function(x):
        return x * 2, x.shape[0] * 2 + 1, None, x

    found = weft.run(function, torch.randn(4, 6), dynamic=True)
    assert found[1:3] == (9, None)


# What is not Dynamo's.


def test_nothing_is_raised_for_a_foreign_graph():
    gm = fx.symbolic_trace(lambda x: x + 1)
    with weft_options(defects="warn"):
        captured = capture(gm, [torch.randn(3)])
    assert captured.program is None
    assert captured.refused is not None
    assert captured.refused.reason.startswith("capture failed: KeyError")


def test_replay_leaves_no_trace_behind(weft):
    graphs = []

    def keep(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    def function(x):
        torch.set_grad_enabled(False)
        return x + 1

    torch.compiler.reset()
    torch.compile(function, backend=keep)(torch.randn(3))
    torch.set_grad_enabled(True)
    first, second = record(graphs[0], meaning), record(graphs[0], meaning)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert [c.packet for c in first.calls] == [c.packet for c in second.calls] == ["aten.add"]


def test_arguments_are_found_by_position(weft):
    def function(x, w):
        return F.dropout(w.contiguous(), training=False), x * 2

    x, w = torch.randn(4, 6), torch.randn(3)
    found = weft.run(function, x, w)
    assert found[0] is w
    assert weft.only.results == (FromArgument(0), FromProgram(0, (0, 1)))
    assert weft.only.arguments == (0, 1)
