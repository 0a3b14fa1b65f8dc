"""Tensors whose memory is not their elements: negatives, conjugates, zeros, other layouts, wrappers; at first and later calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

import weft
from weft.errors import ShapeError

pt: Any = torch  # its names without stubs
# PyTorch's own forward-mode derivatives script their decompositions; its own nested tensors call themselves a prototype.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]


def negative(*shape):
    """A view that PyTorch marks as the negative of its memory."""
    return torch.randn(*shape, dtype=torch.complex64).conj().imag


def work(a):
    return torch.exp(a) * 2


class Named(torch.Tensor):
    pass


class Holds(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.register_buffer("held", held)

    def forward(self, x):
        return torch.exp(x * self.held)


def same(found, wanted):
    assert type(found) is type(wanted)
    assert (found.layout, found.is_neg(), found.is_conj()) == (wanted.layout, wanted.is_neg(), wanted.is_conj())
    torch.testing.assert_close(found, wanted)


KINDS = {
    "negative": lambda: negative(6),
    "a part of a negative": lambda: negative(4, 9)[1:, 3:].mT,
    "zeros": lambda: pt._efficientzerotensor((6,)),
    "named": lambda: torch.randn(6).as_subclass(Named),
    "two": lambda: TwoTensor(torch.randn(6), torch.randn(6)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_at_the_first_and_at_later_calls(kind):
    other, plain = KINDS[kind](), torch.randn(KINDS[kind]().shape)
    with torch.no_grad():
        fast = weft.compile(work)
        same(fast(other), work(other))
        fast = weft.compile(work)
        for argument in (plain, KINDS[kind](), plain):
            same(fast(argument), work(argument))
        same(Kept(plain)(other), work(other))


class Kept:
    """What `weft.optimize` made for an example."""

    def __init__(self, example):
        self.program = weft.optimize(work, (example,))
        assert self.program.kernels

    def __call__(self, argument):
        return self.program(argument)


@pytest.mark.parametrize(
    "layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, "mkldnn", "jagged", "quantised"]
)
def test_other_layouts_at_the_first_and_at_later_calls(layout):
    plain = torch.randn(4, 6).relu()
    match layout:
        case "mkldnn":
            other, read = plain.to_mkldnn(), torch.Tensor.to_dense
        case "jagged":
            other = torch.nested.nested_tensor([plain, plain[:2]], layout=torch.jagged)
            read = torch.Tensor.values
        case "quantised":
            other, read = torch.quantize_per_tensor(plain, 0.1, 3, torch.qint8), torch.Tensor.dequantize
        case _:
            other, read = plain.to_sparse(layout=layout), torch.Tensor.to_dense

    def doubled(a):
        return a.dequantize() * 2 if a.is_quantized else a + a

    fast = weft.compile(doubled)
    with torch.no_grad():
        for argument in (other, plain, other):
            found, wanted = fast(argument), doubled(argument)
            assert found.layout is wanted.layout
            torch.testing.assert_close(
                *((t if layout == "quantised" else read(t)) if argument is other else t for t in (found, wanted))
            )


@pytest.mark.parametrize(
    "function",
    [
        lambda a: torch.exp(torch.view_as_complex(a).conj().imag) * 2,
        lambda a: torch.exp(pt._neg_view(a + 1)[1:].mT @ a[1:]),
        lambda a: (pt._neg_view(a + 1), a * 2, pt._neg_view(a)),
        lambda a: (pt._neg_view(a).view(-1) + 1, pt._neg_view(a).clone(), pt._neg_view(a).reshape(2, -1)),
        lambda a: torch.cat([pt._neg_view(a), a * 2]).sum(0),
        lambda a: (torch.view_as_complex(a * 2).conj(), (torch.view_as_complex(a).conj() * 2).real + 1),
        lambda a: torch.exp(a + pt._efficientzerotensor((4, 2))),
        lambda a: torch.exp(a @ pt._efficientzerotensor((2, 2)) + 1),
    ],
)
def test_marks_made_inside(function):
    argument = torch.randn(4, 2)
    found, wanted = weft.optimize(function, (argument,))(argument), function(argument)
    for one, other in zip(*((t,) if isinstance(t, torch.Tensor) else t for t in (found, wanted)), strict=True):
        same(one, other)


def test_a_mark_costs_no_more_than_the_copy_that_clears_it():
    program = weft.optimize(lambda a: torch.softmax(a @ a.mT, -1) @ a, (negative(5, 7),))
    assert program.kernels
    assert {operation for operation, _ in program.fallbacks} <= {"aten.clone", "aten.mT"}


def test_on_a_gpu_the_same_calls_are_pytorchs():
    here, there = (weft.optimize(work, (negative(6),), target=target) for target in ("cpu", "cuda:90"))
    assert there.kernels
    assert [f.operation for f in there.fallbacks] == [f.operation for f in here.fallbacks] == ["aten.clone"]


def test_held_tensors_and_their_exchange():
    module, x = Holds(negative(6)), torch.randn(6)
    fast = weft.compile(module)
    same(fast(x), module(x))
    module.held = torch.randn(6)
    same(fast(x), module(x))
    module.held = negative(6)
    same(fast(x), module(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.add_(1),
        lambda n: (n.mul_(2), n * 3),
        lambda n: n[1:3].copy_(n[3:5] * 2),
        lambda n: (n[2:].fill_(3), n.exp()),
        lambda n: n.copy_(torch.exp(n)),
    ],
)
def test_writes_into_negatives(change):
    first = torch.randn(6, dtype=torch.complex64)
    memory = [first, first.clone()]
    eager, fast = (m.conj().imag for m in memory)
    change(eager)
    weft.compile(change)(fast)
    same(fast, eager)
    torch.testing.assert_close(memory[1].imag, memory[0].imag)


@torch.library.custom_op("weft_tests::unlike_its_fake", mutates_args=())
def unlike_its_fake(a: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(a.clone()).conj().imag


@unlike_its_fake.register_fake
def _(a: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[:-1])


def test_a_call_that_gives_a_mark_which_tracing_does_not_know():
    a = torch.randn(6, 2)
    same(weft.compile(lambda a: work(unlike_its_fake(a)))(a), work(unlike_its_fake(a)))


def test_forward_mode_derivatives_at_first_and_at_later_calls():
    x, direction = torch.randn(6), torch.randn(6)
    early = weft.compile(work)
    program = weft.optimize(work, (x,))
    early(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, direction)
        wanted = forward_ad.unpack_dual(work(dual)).tangent
        for call in (early, weft.compile(work), program):
            call(x)
            torch.testing.assert_close(forward_ad.unpack_dual(call(dual)).tangent, wanted)


@pytest.mark.parametrize("gradients", [True, False])
def test_transforms_inside_and_outside(gradients):
    weight, x = torch.randn(5, 5), torch.randn(4, 5)

    def loss(row):
        return torch.softmax(row @ weight, -1).square().sum()

    def inside(a):
        return torch.vmap(torch.func.grad(loss))(a) * 2, torch.func.jvp(torch.sigmoid, (a,), (a,))[1]

    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(weft.compile(inside)(x), inside(x))
        fast = weft.compile(loss)
        fast(x[0])
        torch.testing.assert_close(torch.vmap(fast)(x), torch.vmap(loss)(x))
        torch.testing.assert_close(torch.func.grad(fast)(x[0]), torch.func.grad(loss)(x[0]))


def test_a_saved_program_takes_what_it_was_saved_for(tmp_path):
    marked, plain = pt._neg_view(torch.randn(6)), torch.randn(6)
    of_plain = weft.load(weft.optimize(work, (plain,)).save(tmp_path / "plain"))
    of_marked = weft.load(weft.optimize(work, (marked,)).save(tmp_path / "marked"))
    same(of_marked(marked), work(marked))
    others = [marked, pt._efficientzerotensor((6,)), plain.to_sparse(), torch.nested.nested_tensor([plain])]
    for other in others:
        with pytest.raises(ShapeError, match="the program was saved for"):
            of_plain(other)
    with pytest.raises(ShapeError, match="saved for negative"):
        of_marked(plain)
    with pytest.raises(ShapeError, match="properties that a file cannot hold"):
        torch.vmap(of_plain)(torch.randn(3, 6))
    with forward_ad.dual_level(), pytest.raises(ShapeError, match="properties that a file cannot hold"):
        of_plain(forward_ad.make_dual(plain, plain))
