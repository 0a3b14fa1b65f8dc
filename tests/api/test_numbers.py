"""Numbers of Python's that are others at each call: positions, lengths. One compile, or a warning that says why not."""

from __future__ import annotations

import functools
import inspect
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.utils import counters

import weft
from weft.api import tracing
from weft.options import current

pytestmark = pytest.mark.as_shipped

CACHE = torch.randn(1, 2, 32, 16, generator=torch.Generator().manual_seed(0))
ROW = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(1))


def read(x, pos):
    return x[:, :, pos] * 2


def read_at_several(x, pos):
    return x[..., pos, pos // 2] * 2 + x[0, None, 1, pos : pos + 1, None, pos]


def read_from_the_end(x, pos):
    return x[:, 0, -pos, :pos] * 2


def write(x, pos):
    x[:, :, pos] = ROW
    return x.sum(-1)


def write_a_number(x, pos):
    x[0, ..., pos, :3] = 1.5
    return x * 2


def write_one_element(x, pos):
    x[0, 1, pos, pos // 3] = 2
    return x * 2


def add_in_place(x, pos):
    x[:, :, pos] += ROW
    return x * 2


def decode(cache, pos):
    cache[:, :, pos] = ROW
    seen = cache[:, :, : pos + 1]
    return torch.softmax(ROW[:, :, None] @ seen.mT / 4, -1) @ seen


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "fn",
    [read, read_at_several, read_from_the_end, write, write_a_number, write_one_element, add_in_place, decode],
)
def test_a_position_among_indices_is_a_number_of_the_run(fn):
    torch.compiler.reset()
    fast = weft.compile(fn)
    own, other = CACHE.clone(), CACHE.clone()
    graphs, binaries = [], []
    with torch.no_grad():
        for pos in range(3, 14):
            torch.testing.assert_close(fast(own, pos), fn(other, pos))
            torch.testing.assert_close(own, other, rtol=0, atol=0)
            graphs.append(counters["stats"]["unique_graphs"])
            binaries.append(weft.stats().binaries_emitted)
    assert graphs[1:] == [graphs[1]] * 10  # once for the first position, once for all others
    assert binaries[1:] == [binaries[1]] * 10


def test_the_backend_by_name_and_optimize_keep_positions_too():
    torch.compiler.reset()
    graphs = []
    program = weft.optimize(read, (CACHE, 3))
    fast = torch.compile(read, backend="weft")
    with torch.no_grad():
        for pos in range(4, 12):
            torch.testing.assert_close(program(CACHE, pos), read(CACHE, pos))
            torch.testing.assert_close(fast(CACHE, pos), read(CACHE, pos))
            graphs.append(counters["stats"]["unique_graphs"])
    assert len(program.plans) == 2
    assert graphs[1:] == [graphs[1]] * 7


def test_other_backends_trace_as_they_did():
    graphs = []

    def backend(gm, example):
        graphs.append([n.target for n in gm.graph.nodes if n.op == "call_function"])
        return gm.forward

    torch.compiler.reset()
    fast = torch.compile(read, backend=backend)
    for pos in (3, 4):
        fast(CACHE, pos)
    assert len(graphs) == 2
    assert not any(torch.select in targets for targets in graphs)


def test_an_index_that_eager_refuses_is_refused():
    fast = weft.compile(lambda x, pos: x[0, 0, 0, 0, pos] * 2)
    for pos in (3, 4, 5):
        with pytest.raises((IndexError, weft.errors.ShapeError)):
            fast(CACHE, pos)
    fast = weft.compile(read)
    with torch.no_grad():
        for pos in (3, 4):
            fast(CACHE, pos)
        with pytest.raises((IndexError, weft.errors.ShapeError)):
            fast(CACHE, 99)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = 0

    def forward(self, x):
        self.position += 1
        return x[:, :, self.position] * 2


def by_list(x, pos):
    return x[:, [0, 1], pos] * 2


def by_name(x, name):
    return x * len(name)


def of_fixed_size(x):
    return x * [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14][int(x.shape[2])]


def sized(pos):
    return CACHE[:, :, :pos].clone()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("make", "arguments", "said"),
    [
        (
            lambda: by_list,
            lambda i: (CACHE, i),
            ["by_list", "value of pos", "x[:, [0, 1], pos] * 2", "torch.tensor(pos)"],
        ),
        (lambda: by_name, lambda i: (CACHE, "a" * i), ["by_name", "value of name", "len(name)", "'aaa'"]),
        (Counting, lambda i: (CACHE,), ["forward", "value of self.position", "self.position += 1", "as an argument"]),
        (lambda: of_fixed_size, lambda i: (sized(i),), ["of_fixed_size", "x.shape[2]", "number of Python's"]),
    ],
    ids=["argument", "string", "attribute", "size"],
)
def test_a_value_that_is_fixed_again_and_again_is_said_once(make, arguments, said):
    torch.compiler.reset()
    fast = weft.compile(make())
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for call in range(11):
            fast(*arguments(call + 2))
            assert len(caught) == (call >= 7)
    (warning,) = caught
    assert issubclass(warning.category, RuntimeWarning)
    assert warning.filename == __file__
    assert all(part in str(warning.message) for part in (*said, f"{__file__}:")), warning.message


def test_nothing_is_said_where_each_size_is_to_be_traced():
    torch.compiler.reset()
    fast = weft.compile(lambda x: x * 2, dynamic=False)
    with torch.no_grad():
        for size in range(2, 14):
            fast(sized(size))
    assert current().dynamic


def test_backends_of_others_need_not_be_hashable():
    """PyTorch's own wrapper around Inductor is not hashable either."""

    class Plain:
        def __hash__(self):
            raise TypeError

        def __call__(self, gm, example_inputs):
            return gm.forward

    torch.compiler.reset()
    found = torch.compile(read, backend=Plain())(CACHE, 3)
    assert torch.equal(found, read(CACHE, 3))


def test_backends_of_others_may_have_any_attribute():
    """Themselves among them: what a backend wraps is looked for in a few layers only."""

    class Wrapping:
        def __init__(self, depth=0):
            self.depth = depth

        @property
        def func(self):
            assert self.depth < 1000, "looked for without end"
            return Wrapping(self.depth + 1)

        def __call__(self, gm, example_inputs):
            return gm.forward

    torch.compiler.reset()
    found = torch.compile(read, backend=Wrapping())(CACHE, 3)
    assert torch.equal(found, read(CACHE, 3))


def test_this_version_of_pytorch_is_known():
    """One that is not known is not patched: read its `OutputGraph.create_proxy`, run this file, and add it to `tracing._KNOWN`."""
    assert tracing.keeps_numbers(), f"weft does not know PyTorch {torch.__version__}"


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0", "3.0.0a0+git1234", "main"])
def test_a_version_that_is_not_known_is_left_as_it_is(version, monkeypatch):
    plain = inspect.unwrap(OutputGraph.create_proxy)
    monkeypatch.setattr(OutputGraph, "create_proxy", plain)
    monkeypatch.setattr(tracing, "keeps_numbers", functools.partial(tracing.keeps_numbers, version))
    tracing._keep_numbers()
    assert OutputGraph.create_proxy is plain
    torch._dynamo.reset()
    fast, x = weft.compile(read), CACHE.clone()
    for pos in (3, 5):
        assert torch.equal(fast(x, pos), read(x, pos))
    torch._dynamo.reset()
