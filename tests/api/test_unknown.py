"""What weft has no kernels for is a call between kernels: its neighbours keep theirs, and the results are eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor  # no public name

import weft
from testkit.capture.opaque import raise_by, strides_of, write_and_give_strides
from weft.capture import capture
from weft.tensor.program import Opaque


def by_strides(x):
    y = torch.exp(x) * 2
    z = y.t().contiguous()
    seen = torch.as_strided(y[1:], (2, 2), (1, 2)).sin(), torch.as_strided(z, (3, 4), (4, 1)) + 1
    return *seen, torch.as_strided(y, (6, 4), (1, 6), 0), torch.relu(y)


def pooled(x):
    return F.adaptive_avg_pool1d(torch.exp(x).transpose(0, 1)[None], 1).flatten(1) * 2


def packed(x):
    small = (torch.exp(x) * 8).to(torch.uint16)
    return torch.relu(small.to(torch.float32) - 9), small, small


def sparse(x):
    found = torch.relu(x * 2).to_sparse()
    return (found @ torch.exp(x).T) + 1, found.to_dense() * 3


def complex_numbers(x):
    z = torch.view_as_complex(torch.exp(x).view(4, 3, 2))
    return z, z.clone(), torch.exp(z.real)


@pytest.mark.parametrize("function", [by_strides, pooled, packed, sparse, complex_numbers])
def test_neighbours_keep_their_kernels(function):
    x = torch.randn(4, 6)
    program = weft.optimize(function, x)
    assert program.kernels
    found, wanted = program(x), function(x)
    torch.testing.assert_close(found, wanted)
    assert len({t.data_ptr() for t in found}) == len({t.data_ptr() for t in wanted})


def test_an_argument_of_a_type_that_weft_does_not_know():
    x, y = torch.randn(4, 6), torch.arange(5).to(torch.uint16)
    program = weft.optimize(lambda x, y: (torch.softmax(x, -1), y.to(torch.float32).sin(), y, y.clone()), (x, y))
    found = program(x, y)
    assert len(program.kernels) == 2
    assert found[2] is y
    assert found[3] is not y
    torch.testing.assert_close(found[1], y.to(torch.float32).sin())


def test_sizes_that_a_second_way_of_pytorchs_takes():
    def function(x, like):
        return F.interpolate(torch.exp(x), size=like.shape[-2:], mode="bicubic") + like

    torch.compiler.reset()
    compiled = torch.compile(function, backend="weft", dynamic=True, options={"measure": "never"})
    x, before = torch.randn(1, 3, 5, 5), weft.stats()
    with torch.no_grad():
        for height, width in ((7, 8), (9, 6)):
            like = torch.randn(1, 3, height, width)
            torch.testing.assert_close(compiled(x, like), function(x, like))
    assert weft.stats().kernels - before.kernels == 2


def test_tensors_on_several_devices():
    """No GPU is needed to capture: only the kind of the example arguments is looked at."""
    mode, graph = torch._subclasses.FakeTensorMode(), fx.Graph()
    scale, x, other = (graph.placeholder(name) for name in ("scale", "x", "other"))
    for node, shape, device in ((scale, (), "cpu"), (x, (4, 6), "cuda"), (other, (4, 6), "cpu")):
        with mode:
            node.meta["example_value"] = torch.empty(shape, device=device)
    half = graph.call_function(torch.tensor, (0.5,))
    y = graph.call_function(torch.exp, (graph.call_function(torch.mul, (x, half)),))
    there = graph.call_function(torch.sum, (graph.call_function(torch.sin, (other,)),))
    results = graph.call_function(torch.mul, (y, scale)), graph.call_function(torch.add, (y, there)), half
    graph.output(results).meta["example_value"] = ()
    captured = capture(fx.GraphModule({}, graph), [torch.empty(())] * 3)
    assert captured.refused is None
    assert captured.program is not None
    left = [str(call.target.overloadpacket) for call in captured.calls.values()]
    assert left == ["aten.sin", "aten.sum", "aten.mul", "aten.add", "aten.scalar_tensor"]
    assert len([node for node in captured.program.nodes if not isinstance(node, Opaque)]) == 3  # 0.5, a product and exp


def only_numbers(n):
    return torch.arange(n) * 2.0, torch.exp(torch.ones(n, 3) * 2)


def a_number_and_a_tensor(n, x):
    return torch.arange(n) * 2.0 + x, torch.zeros(n, 2).sum(0) + torch.exp(x)


@pytest.mark.parametrize("function", [only_numbers, a_number_and_a_tensor])
def test_lengths_that_only_a_number_says(function):
    torch.compiler.reset()
    compiled = weft.compile(function, measure="never")
    more = (torch.randn(1),) if function is a_number_and_a_tensor else ()
    before = weft.stats()
    with torch.no_grad():
        for n in (7, 9, 30, 2):
            torch.testing.assert_close(compiled(n, *more), function(n, *more))
    assert weft.stats().kernels - before.kernels >= 3


def test_a_write_into_an_argument_by_an_operation_that_weft_does_not_know():
    def function(cache, x):
        old = torch.exp(cache)
        raise_by(cache[1:3], torch.sin(x[:2]))
        return old + 1, torch.softmax(cache, -1)

    given, wanted = torch.randn(4, 6), torch.randn(4, 6)
    program = weft.optimize(function, (given, wanted))
    for _ in range(2):
        cache, x = torch.randn(4, 6), torch.randn(4, 6)
        other = cache.clone()
        torch.testing.assert_close(program(cache, x), function(other, x))
        torch.testing.assert_close(cache, other)
    assert {fallback.operation for fallback in program.fallbacks} == {"weft_tests.raise_by"}


def test_branches_within_autocast():
    def function(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.exp(torch.cond(x.sum() > 0, lambda x, w: x @ w, lambda x, w: x @ w - 1, (torch.tanh(x), w)))

    x, w = torch.randn(4, 6), torch.randn(6, 5)
    program = weft.optimize(function, (x, w))
    assert program.kernels
    for sign in (1, -1):
        found, wanted = program(x.abs() * sign, w), function(x.abs() * sign, w)
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def pairs_beside(x, pair):
    twice = pair * 2
    twice.add_(1)
    return torch.softmax(x, -1), twice, twice.sum(), pair.a.exp() * 3, x.exp() @ pair


def pairs_written(x, pair):
    pair[:2].mul_(3)
    shown = pair.view(-1)
    shown.add_(1)
    return torch.softmax(x, -1), pair, shown


def pairs_alone(x, pair):
    return torch.exp(x), pair * 2, pair.t()


@pytest.mark.parametrize("function", [pairs_beside, pairs_written, pairs_alone])
def test_tensors_made_of_tensors_are_pytorchs(function):
    """Arguments of a class of PyTorch's that stands for several tensors, as quantised weights do."""
    x, pair = torch.randn(5, 8), TwoTensor(torch.randn(8, 8), torch.randn(8, 8))
    own = TwoTensor(pair.a.clone(), pair.b.clone())
    fast = weft.compile(function)
    with torch.no_grad():
        for _ in range(2):
            for mine, eager in zip(fast(x, pair), function(x, own), strict=True):
                assert type(mine) is type(eager)
                for one, other in (
                    ((mine.a, eager.a), (mine.b, eager.b)) if type(eager) is TwoTensor else ((mine, eager),)
                ):
                    torch.testing.assert_close(one, other)
            torch.testing.assert_close(pair.a, own.a)
        program = weft.optimize(function, (x, pair))
    assert program.kernels


def of_transposed(x):
    seen = strides_of(torch.exp(x.t())), strides_of(torch.softmax(x.t(), -1)), strides_of((x.t() @ x).t() * 2)
    return *seen, strides_of(torch.exp(x)[:, ::2]), strides_of((x * 2).expand(3, *x.shape)), strides_of((x.t() + 1)[2:])


def of_what_it_writes(x):
    y, z = torch.exp(x.t()), (x * 2).t()
    return write_and_give_strides(y), write_and_give_strides(z[1:]), y, z


@pytest.mark.parametrize("function", [of_transposed, of_what_it_writes])
@pytest.mark.parametrize("entry", ["optimize", "compile"])
def test_other_libraries_see_the_strides_of_eager(function, entry):
    """A user's kernel may read its operands by their strides, or by those that PyTorch traced."""
    compiled = weft.compile(function, measure="never")
    for shape in ((4, 16), (5, 7), (9, 3)):
        x = torch.randn(shape)
        fast = weft.optimize(function, x) if entry == "optimize" else compiled
        for mine, eager in zip(fast(x), function(x), strict=True):
            torch.testing.assert_close(mine, eager)
