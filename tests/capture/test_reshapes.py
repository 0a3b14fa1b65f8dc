"""Dimensions split and merged: views that PyTorch makes of values as they lie, without a copy that eager does not make."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch.utils._sympy.functions import FloorDiv

from weft.capture.reshapes import Digits, common_digits
from weft.pipeline import normalize
from weft.tensor.program import Contraction, Elementwise, Opaque, Reindex
from weft.tensor.scalar import Arg


def copies(captured):
    """The operations that only repeat a value in another order."""
    return [n for n in captured.program.nodes if isinstance(n, Elementwise) and n.expr == Arg(0)]


def heads(x, w):
    batch, steps, _ = x.shape
    return (x @ w).view(batch, steps, -1, 4).transpose(1, 2)


def many_heads(x, w, out):
    batch, steps, _ = x.shape
    q, k, v = (heads(x, each) for each in w)
    mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    return mixed.transpose(1, 2).reshape(batch, steps, -1) @ out


@pytest.mark.parametrize("dynamic", [False, True])
def test_heads_are_views_and_one_copy_puts_them_in_order(weft, dynamic):
    x, w, out = torch.randn(3, 5, 6), torch.randn(3, 6, 8), torch.randn(8, 6)
    captured = weft.compare(many_heads, x, w, out, dynamic=dynamic)
    assert captured.fallbacks == captured.views == ()
    assert [str(call.target) for call in captured.calls.values()] == ["aten.flatten.using_ints"]
    assert len(copies(captured)) == 1  # the kernel that makes the heads writes them so, and no other one copies


def test_one_program_serves_other_batches_and_lengths(weft):
    torch.compiler.reset()
    compiled = torch.compile(many_heads, backend=weft, dynamic=True)
    w, out = torch.randn(3, 6, 8), torch.randn(8, 6)
    with torch.no_grad():
        for batch, steps in ((2, 5), (3, 7), (2, 12)):
            x = torch.randn(batch, steps, 6)
            torch.testing.assert_close(compiled(x, w, out), many_heads(x, w, out), check_dtype=False)
    assert len(weft.graphs) == 1


VIEWED = {
    "steps first": (
        lambda x: torch.sort(x.transpose(0, 1).view(5, 3, 2, 4).permute(1, 2, 0, 3), 0).values * 2,
        (3, 5, 8),
    ),
    "computed": (lambda x: torch.sort((x + 1).transpose(0, 1).view(5, 3, 2, 4), 0).values * 2, (3, 5, 8)),
    "merged back": (
        lambda x: torch.sort((x + 1).transpose(0, 2).transpose(0, 2).view(15, 8), 0).values * 2,
        (3, 5, 8),
    ),
    "split in two places": (
        lambda x: torch.sort((x + 1).view(2, 3, 5, 2, 4).transpose(1, 3), 0).values * 2,
        (6, 5, 8),
    ),
    "another call": (lambda x: torch.sort((x + 1).permute(2, 0, 1), 0).values * 2, (3, 5, 8)),
    "of size 1": (lambda x: torch.sort((x + 1).permute(2, 0, 1), -1).values * 2, (3, 1, 8)),
}


@pytest.mark.parametrize("name", VIEWED)
def test_what_pytorch_reads_is_not_put_in_order_first(weft, name):
    function, shape = VIEWED[name]
    captured = weft.compare(function, torch.randn(shape))
    assert any(isinstance(n, Opaque) for n in captured.program.nodes)
    assert copies(captured) == []


def test_strides_that_only_eager_has_are_a_copy_not_an_error(weft):
    # A computed tensor of weft's is in the order of its own axes: eager's is in that of the operand's memory.
    weft.compare(lambda x: (x.t() + 1).t().view(-1) * 2, torch.randn(4, 6))
    weft.compare(lambda x: torch.view_as_complex((x.permute(1, 2, 0) + 1).contiguous()).abs(), torch.randn(2, 3, 4))


# Dimensions that repeat memory, merged: views, no copy.


def repeated(x, times, dim=1):
    shape = list(x.shape)
    return (
        x.unsqueeze(dim + 1)
        .expand(*shape[: dim + 1], times, *shape[dim + 1 :])
        .reshape(*shape[:dim], shape[dim] * times, *shape[dim + 1 :])
    )


def attention(q, k, v):
    scores = (q @ k.mT * 0.3).masked_fill(torch.ones(q.shape[2], k.shape[2]).triu(1) > 0, -torch.inf)
    return torch.softmax(scores, -1) @ v


def grouped(q, k, v):
    return attention(q, repeated(k, 4), v.repeat_interleave(4, dim=1))


def turned(q, k, angles):
    q = q * angles.cos() + q.flip(-1) * angles.sin()
    return torch.softmax(q @ repeated(k, 3).mT, -1), q


X, Y, Q = (2, 3, 5, 6), (2, 12, 5, 6), (2, 12, 4, 6)
SPLIT = {
    "elementwise": (lambda x, y: repeated(x, 4) * y + 1, X, Y),
    "interleaved": (lambda x, y: x.repeat_interleave(4, 1) * y + 1, X, Y),
    "causal attention": (grouped, Q, X, X),
    "one head of keys": (grouped, (2, 4, 4, 6), (2, 1, 5, 6), (2, 1, 5, 6)),
    "every head its own": (lambda q, k, v: attention(q, repeated(k, 1), repeated(v, 1)), Q, Y, Y),
    "one batch": (grouped, (1, 8, 5, 6), (1, 2, 5, 6), (1, 2, 5, 6)),
    "a mask a head": (lambda x, y, m: (y @ repeated(x, 4).mT + m).softmax(-1), X, Q, (2, 12, 4, 5)),
    "one mask": (lambda x, y, m: (y @ repeated(x, 4).mT + m).softmax(-1), X, Q, (2, 1, 4, 5)),
    "a slope a head": (lambda x, y, m: y @ repeated(x, 4).mT * m[:, None, None], X, Q, (12,)),
    "numbered heads": (lambda x: repeated(x, 4) * torch.arange(12)[:, None, None], X),
    "its own numbers": (lambda x: repeated(x, 4) * torch.arange(x.shape[1] * 4)[:, None, None], X),
    "computed heads": (lambda x, y: repeated(x.exp(), 4) * (y + 1).relu().flip(1), X, Y),
    "turned queries": (turned, (2, 6, 4, 8), (2, 2, 5, 8), (4, 8)),
    "some heads": (lambda x, y: repeated(x, 4) * y[:, 1:13], X, (2, 14, 5, 6)),
    "expanded heads": (lambda x, y: repeated(x, 4) * y.expand(2, 12, 5, 6), X, (2, 1, 5, 6)),
    "products of both": (lambda x, y: repeated(x, 4) @ repeated(y, 4).mT, X, X),
    "einsum": (lambda x, y: torch.einsum("bhmd,bhnd->bmhn", repeated(x, 4), y), X, Q),
    "einsum over heads": (lambda x, y: torch.einsum("bhmd,bhnd->mbn", repeated(x, 4), y), X, Q),
    "the last dimension": (lambda x, y: x.repeat_interleave(4, -1) * y, X, (2, 3, 5, 24)),
    "the first": (lambda x, y: repeated(x, 2, 0) + y, X, (4, 3, 5, 6)),
    "twice": (lambda x, y: repeated(repeated(x, 2), 3) * y, X, (2, 18, 5, 6)),
    "sums over heads": (lambda x: repeated(x, 4).sum(1), X),
    "means over heads": (lambda x: repeated(x, 4).mean((1, 2), keepdim=True), X),
    "softmax over heads": (lambda x, y: torch.softmax(repeated(x, 4) * y, 1), X, Y),
    "sums beside heads": (lambda x: repeated(x, 4).amax(-1, keepdim=True) - repeated(x, 4).sum((0, -1))[None, ..., None], X),
    "slices beside heads": (lambda x, y: repeated(x, 4)[:, :, 1:3].flip(-1)[:, :, 0] * y[:, :, 0], X, Y),
    "another type": (lambda x, y: repeated(x, 4).to(torch.float64) * y, X, Y),
    "results in another order": (lambda x: (repeated(x, 4) * 2).transpose(1, 2), X),
    "results twice": (lambda x: ((y := repeated(x, 4) * 2), y.clone(), y.transpose(1, 2).clone()), X),
    "repeated and returned": (lambda x: repeated(x, 4), X),
    "a view of it": (lambda x: (repeated(x, 4) * 2).view(2, 3, 4, 5, 6).sum(2), X),
}  # fmt: skip
PLAIN = {
    "a part of the heads": (lambda x, y: repeated(x, 4)[:, 2:5] * y[:, 2:5], X, Y),
    "heads backwards": (lambda x: repeated(x, 4).flip(1) + 1, X),
    "two ways to merge": (lambda x, y: repeated(x, 4) * repeated(y, 2), X, (2, 6, 5, 6)),
    "heads as rows": (lambda x, w: repeated(x, 4).transpose(1, 2) @ w, X, (6, 3)),
    "a product over heads": (lambda x, w: repeated(x, 4).transpose(1, 2).flatten(2) @ w, X, (72, 3)),
    "tiles": (lambda x, y: x[None].expand(4, 3, 5).reshape(12, 5) * y, (3, 5), (12, 5)),
    "a call of PyTorch's": (lambda x, y: torch.sort(repeated(x, 4), 1).values * y, X, Y),
    "a call of PyTorch's on views": (lambda x: torch.sort(repeated(x, 4)[:, :, 1:].transpose(1, 2), -1).values, X),
}


def rotated(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def cached(q, keys, k):
    """Keys with rotated halves behind those of a cache, each for several queries, as rotary embeddings ask for."""
    keys = torch.cat([keys, k + rotated(k)], 2)
    return keys, (q + rotated(q)) @ repeated(keys, 4).mT


@pytest.mark.parametrize("dynamic", [False, True])
def test_keys_of_two_halves_are_not_written_for_each_of_their_queries(weft, dynamic):
    """Make the halves alone one axis in memory: merged heads stay as they are, and are not repeated."""
    captured = weft.compare(cached, torch.randn(2, 12, 4, 6), torch.randn(X), torch.randn(2, 3, 1, 6), dynamic=dynamic)
    assert captured.fallbacks == ()
    assert [n for n in copies(captured) if n.axes] == []


def packed_heads(x, w, cos, sin, gated):
    """Queries and keys that one product makes, each turned by halves of a head, with values or a gate of as many columns."""
    q, k, rest = (x @ w).chunk(3, -1)
    q, k = (each.view(2, 5, 2, 8).transpose(1, 2) for each in (q, k))
    q, k = (each * cos + rotated(each) * sin for each in (q, k))
    shares = torch.softmax(q @ k.mT, -1)
    return (shares, rest.sigmoid()) if gated else shares @ rest.view(2, 5, 2, 8).transpose(1, 2)


@pytest.mark.parametrize(("gated", "count"), [(True, 4), (False, 3)])
def test_halves_of_a_part_of_a_product_are_not_multiplied_again(weft, gated, count):
    """Make all by one matmul where all parts are read in split dimensions; else each part is one, its halves views of that."""
    given = torch.randn(2, 5, 6), torch.randn(6, 48), torch.randn(5, 8), torch.randn(5, 8), gated
    captured = weft.compare(packed_heads, *given)
    assert captured.fallbacks == ()
    products = [n for n in normalize(captured.program).nodes if isinstance(n, Contraction)]
    assert len(products) == count  # one projection or three, scores, and their product with values


def test_of_a_product_of_which_one_row_is_split_the_others_are_not_multiplied(weft):
    captured = weft.compare(lambda x, w: (x @ w)[:, -1].view(2, 4, 8) * 2, torch.randn(2, 5, 6), torch.randn(6, 32))
    (product,) = (n for n in normalize(captured.program).nodes if isinstance(n, Contraction))
    assert [a.space.fixed or a.space.example for a in product.axes] == [2, 32]


@pytest.mark.parametrize("sorts", [False, True])
def test_a_copy_in_another_order_is_made_where_its_operand_is(weft, sorts):
    """Make no view of an operand first where a copy is needed in any case: a kernel would write it for the copy to read."""

    def function(x):
        made = (x * 2 + 1).permute(1, 0, 2, 3).reshape(x.shape[1] * x.shape[0], -1)
        return torch.sort(made, -1).values if sorts else made

    captured = weft.compare(function, torch.randn(2, 3, 4, 5))
    looks = {n.name for n in captured.program.nodes if isinstance(n, Opaque)}
    assert all(use.value not in looks for n in copies(captured) for use in n.args)


AT_ANY_SIZE = (
    "elementwise",
    "causal attention",
    "a slope a head",
    "its own numbers",
    "einsum",
    "twice",
    "means over heads",
)


@pytest.mark.parametrize(("name", "dynamic"), [*((n, False) for n in SPLIT), *((n, True) for n in AT_ANY_SIZE)])
def test_merged_dimensions_that_repeat_memory_are_split_where_they_are_met(weft, name, dynamic):
    function, *shapes = SPLIT[name]
    captured = weft.compare(function, *(torch.randn(shape) for shape in shapes), dynamic=dynamic)
    assert captured.fallbacks == ()
    # PyTorch only looks at results: at their own memory, in the order of their axes.
    assert {str(call.target) for call in captured.calls.values()} <= {"aten.flatten.using_ints"}


@pytest.mark.parametrize(("name", "dynamic"), [(n, i % 2 == 1) for i, n in enumerate(PLAIN)])
def test_where_they_cannot_be_split_they_are_repeated_as_in_eager(weft, name, dynamic):
    function, *shapes = PLAIN[name]
    captured = weft.compare(function, *(torch.randn(shape) for shape in shapes), dynamic=dynamic)
    assert any(str(call.target) == "aten.flatten.using_ints" for call in captured.calls.values())
    assert {f.operation for f in captured.fallbacks} <= {"aten.sort", "aten.view"}


def test_what_is_only_read_is_not_copied(weft):
    q, k = torch.randn(2, 12, 4, 6), torch.randn(2, 3, 5, 6)
    captured = weft.compare(grouped, q, k, k)
    assert copies(captured) == []


def test_results_that_eager_makes_apart_do_not_share_memory(weft):
    x = torch.randn(2, 3, 5, 6)
    one, other, third = weft.run(SPLIT["results twice"][0], x)
    for a, b in ((one, other), (one, third), (other, third)):
        assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def test_one_program_serves_other_heads_batches_and_lengths(weft):
    torch.compiler.reset()
    compiled = torch.compile(grouped, backend=weft, dynamic=True)
    with torch.no_grad():
        for batch, heads, keys in ((2, 3, 5), (3, 2, 7), (2, 5, 9)):
            q, k = torch.randn(batch, 4 * heads, 6, 8), torch.randn(batch, heads, keys, 8)
            torch.testing.assert_close(compiled(q, k, k), grouped(q, k, k), check_dtype=False)
    assert len(weft.graphs) == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "shape", "kept"),
    [
        (lambda x: x.view(x.shape[0], 2, 4) * 2, (6, 8), [0, None, None]),
        (lambda x: x.view(-1, 3, x.shape[1]) * 2, (6, 8), [None, None, 1]),
        (lambda x: x.view(6, 2, 2, 3) * 2, (6, 2, 6), [0, 1, None, None]),
        (lambda x: x.view(8, 6) * 2, (6, 8), [None, None]),
        (lambda x: x.view(4, 3, x.shape[2]) * 2, (3, 4, 3), [None, None, 2]),
    ],
    ids=["rows", "columns", "both", "none", "as long but elsewhere"],
)
def test_a_reshape_keeps_the_dimensions_that_it_leaves_as_they_are(weft, function, shape, kept, dynamic):
    """So that a program is the same, whether PyTorch traced numbers or symbols."""
    captured = weft.compare(function, torch.randn(shape), dynamic=dynamic)
    (source,) = captured.program.inputs
    (node,) = (n for n in captured.program.nodes if isinstance(n, Opaque | Reindex))
    own = [a.space for a in source.axes]
    assert [own.index(a.space) if a.space in own else None for a in node.axes] == kept


# Every spelling, read through.


def rearranged(x):
    """Rearrange as einops does by "b (h d) t -> (b h) t d"."""
    b, c, t = x.shape
    return x.reshape(b, c // 4, 4, t).permute(0, 1, 3, 2).reshape(-1, t, 4)


THROUGH = {
    "view": (lambda x: x.view(6, 2, 4, 5).exp(), (6, 8, 5)),
    "a size left out": (lambda x: x.view(6, -1, 4, 5).exp(), (6, 8, 5)),
    "reshape": (lambda x: x.reshape(6, -1, 4, 5).softmax(2), (6, 8, 5)),
    "unflatten": (lambda x: x.unflatten(1, (-1, 4)).softmax(2), (6, 8, 5)),
    "unflatten in three": (lambda x: x.unflatten(1, (-1, 2, 2)).softmax(2), (6, 8, 5)),
    "flatten": (lambda x: x.flatten(1).exp(), (6, 8, 5)),
    "flatten and sum": (lambda x: x.flatten(1).sum(1), (6, 8, 5)),
    "all of it": (lambda x: x.reshape(-1).exp(), (6, 8, 5)),
    "contiguous and view": (lambda x: x.transpose(1, 2).contiguous().view(6, -1).exp(), (6, 8, 5)),
    "einops": (lambda x: rearranged(x).softmax(-1), (6, 8, 5)),
    "there and back": (lambda x: x.flatten(0, 1).exp().view(x.shape).sum(1), (6, 8, 5)),
    "there and back another way": (lambda x: x.flatten(0, 1).exp().view(-1, 4, 5).sum(1), (6, 8, 5)),
    "split and merge at once": (lambda x: x.reshape(6 * 2, 4 * 5).softmax(-1), (6, 8, 5)),
    "turned": (lambda x: x.permute(2, 0, 1).reshape(5, 6, 2, 4).softmax(-1), (6, 8, 5)),
    "with gaps": (lambda x: x[:, ::2].reshape(6, 2, 2, 5).exp(), (6, 8, 5)),
    "a part of it": (lambda x: x.view(6, 2, 4, 5)[:, 1].softmax(1), (6, 8, 5)),
    "last first": (lambda x: x.view(6, 2, 4, 5).flip(1).softmax(2), (6, 8, 5)),
    "of size 1": (lambda x: x.view(1, 6, 1, 2, 4, 5, 1).softmax(4), (6, 8, 5)),
    "one row": (lambda x: x.view(-1, 4, 5).softmax(1), (1, 8, 5)),
    "both ways": (lambda x: (x.exp() + 1, x.exp().view(6, 2, 4, 5).sum(2)), (6, 8, 5)),
    "one for each channel": (lambda x, c: x.view(6, 2, 4, 5).exp().view(6, 8, 5) * c[:, None], (6, 8, 5), (8,)),
    "rows of a product": (lambda x, w: (x.view(-1, 5) @ w).view(6, 8, 3).relu(), (6, 8, 5), (5, 3)),
    "columns of a product": (lambda x, w: (x @ w).view(6, 8, 2, 3).softmax(-1), (6, 8, 5), (5, 6)),
    "columns thrice": (
        lambda x, w: sum(each.unflatten(-1, (2, 3)).softmax(-1) for each in (x @ w).chunk(3, -1)),
        (6, 8, 5),
        (5, 18),
    ),
    "heads of a part": (lambda x, w: (x @ w).view(6, 8, 3, 2, 3).unbind(2)[1].softmax(-1), (6, 8, 5), (5, 18)),
    "groups": (lambda x: torch.nn.functional.group_norm(x, 2), (6, 8, 5)),
    "batches of windows": (
        lambda x: x.view(2, 2, 4, 3, 2, 5).permute(0, 1, 3, 2, 4, 5).reshape(-1, 8, 5).softmax(1),
        (2, 8, 6, 5),
    ),
    "repeated and split": (lambda x: x[:, :, None].expand(6, 8, 4, 5).reshape(6, 8, 2, 2, 5).softmax(2), (6, 8, 5)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "dynamic"), [(n, d) for n in THROUGH for d in (False, True)])
def test_reshapes_are_read_through(weft, name, dynamic):
    function, *shapes = THROUGH[name]
    captured = weft.compare(function, *(torch.randn(shape) for shape in shapes), dynamic=dynamic)
    assert captured.fallbacks == ()
    if not dynamic:  # by sizes that are read at each call, nothing can be split
        assert captured.views == ()
    assert {str(call.target) for call in captured.calls.values() if call.look} <= {
        "aten.flatten.using_ints",
        "aten.unflatten.int",
    }


def test_reshapes_of_sources_in_any_memory(weft):
    for source in (torch.randn(8, 6).t(), torch.randn(12, 16)[::2, ::2], torch.randn(6, 1).expand(6, 8)):
        captured = weft.compare(lambda x: (x.reshape(6, 2, 4).softmax(-1), x.reshape(-1).exp()), source)
        assert captured.fallbacks == captured.views == ()


@pytest.mark.parametrize(
    ("old", "new", "split", "runs"),
    [
        ((4, 6), (2, 12), [[2, 2], [6]], [1, 2]),
        ((4, 6), (24,), [[4], [6]], [2]),
        ((24,), (4, 1, 6), [[4, 6]], [1, 0, 1]),
        ((24,), (2, 3, 4), [[2, 3, 4]], [1, 1, 1]),
        ((2, 3, 8), (6, 2, 4), [[2], [3], [2, 4]], [2, 1, 1]),
        ((), (1, 1), [], [0, 0]),
        (("s", 12), ("s", 3, 4), [["s"], [3, 4]], [1, 1, 1]),
        (("s", "t"), ("s*t",), [["s"], ["t"]], [2]),
        (("s*t",), ("s", "t"), [["s", "t"]], [1, 1]),
        (("t", "s"), ("t", "s//8", 2, 4), [["t"], ["s//8", 2, 4]], [1, 1, 1, 1]),
        (("s//4", 4), ("s",), [["s//4"], [4]], [2]),
        (("s", "t", 4), ("s", "2*t", 2), [["s"], ["t"], [2, 2]], [1, 2, 1]),
    ],
)
def test_digits_that_shapes_share(old, new, split, runs):
    found = common_digits([size(n) for n in old], [size(n) for n in new])
    assert found == Digits([[size(n) for n in each] for each in split], runs)


@pytest.mark.parametrize(
    ("old", "new"), [((4, 6), (6, 4)), ((9, 4), (6, 6)), (("s", "t"), ("t", "s")), ((None, 4), (8,))]
)
def test_shapes_that_share_no_digits(old, new):
    assert common_digits([size(n) for n in old], [size(n) for n in new]) is None


def size(text):
    """A number, or an expression of PyTorch's in symbols."""
    if not isinstance(text, str):
        return text
    sympy: Any = import_module("sympy")  # its types are only partly known
    symbols = {name: sympy.Symbol(name, integer=True, positive=True) for name in "st"}
    name, _, divisor = text.partition("//")
    return FloorDiv(symbols[name], int(divisor)) if divisor else sympy.sympify(text, locals=symbols)
