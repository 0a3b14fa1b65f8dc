"""Functions that write into what they are given: caches, buffers, statistics. What they write is there once per call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import weft
from testkit.api.random_writes import difference, function
from testkit.capture.collector import Collector
from weft.api.backend import compile_graph
from weft.plan.execute.writes import written_over
from weft.tensor.program import Reindex


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def copies(tensors):
    """Tensors of the same numbers and strides."""
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in tensors]


def sharing(tensors):
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [[a == b for b in places] for a in places]


def planned(fn, plans):
    """`fn` compiled, without a trial; the plans go to `plans`."""

    def backend(gm, example):
        plans.append(compile_graph(gm, example))
        return plans[-1].run

    torch.compiler.reset()
    return torch.compile(fn, backend=backend)


def compared(fn, *inputs, calls=3):
    """Holds weft against eager over several calls: results, inputs, and which of them share memory; gives the one plan."""
    plans = []
    own, other = copies(inputs), copies(inputs)
    fast = planned(fn, plans)
    with torch.no_grad():
        for _ in range(calls):
            found, wanted = fast(*own), fn(*other)
            found, wanted = (r if isinstance(r, tuple) else (r,) for r in (found, wanted))
            torch.testing.assert_close((*found, *own), (*wanted, *other))
            assert sharing([*found, *own]) == sharing([*wanted, *other])
    (plan,) = plans
    assert plan.kernels, plan.fallbacks
    return plan


# A cache of keys and values.

STEP = (rand(1, 4, 1, 64), rand(1, 4, 1, 64, seed=1), rand(1, 4, 1, 64, seed=2))
CACHES = (rand(1, 4, 32, 64, seed=3), rand(1, 4, 32, 64, seed=4))


def by_slice(q, k, v, keys, values):
    keys[:, :, 5:6] = k
    values[:, :, 5:6] = v
    return attention(q, keys, values)


def by_select(q, k, v, keys, values):
    keys[:, :, 5] = k[:, :, 0]
    values[:, :, 5] = v[:, :, 0]
    return attention(q, keys, values)


def by_index_copy(q, k, v, keys, values, place):
    keys.index_copy_(2, place, k)
    values.index_copy_(2, place, v)
    return attention(q, keys, values)


def by_index_put(q, k, v, keys, values, place):
    keys[:, :, place] = k
    values[:, :, place] = v
    return attention(q, keys, values)


def given_back(q, k, v, keys, values):
    keys[:, :, 5:6] = k
    values.transpose(1, 2)[:, 5:6] = v.transpose(1, 2)
    return attention(q, keys, values), keys, values.transpose(1, 2), keys[:, :, :6]


@pytest.mark.parametrize(
    ("fn", "more"),
    [
        (by_slice, ()),
        (by_select, ()),
        (given_back, ()),
        (by_index_copy, (torch.tensor([5]),)),
        (by_index_put, (torch.tensor([5]),)),
    ],
)
def test_a_cache_is_written_in_place_and_attention_is_weft_s(fn, more):
    plan = compared(fn, *STEP, *CACHES, *more)
    assert len(plan.in_place) == 2
    assert len(plan.kernels) == 1


def test_only_the_row_is_written():
    plans = []
    fast = planned(by_slice, plans)
    q, k, v, keys, values = copies((*STEP, *CACHES))
    with torch.no_grad():
        fast(q, k, v, keys, values)
        keys.fill_(7.0)
        before, version = keys.clone(), keys._version
        fast(q, k, v, keys, values)
    assert keys._version == version + 1, "one write"
    before[:, :, 5:6] = k
    assert torch.equal(keys, before)


def test_a_place_that_grows():
    def step(q, k, v, keys, values, place):
        keys[:, :, place : place + 1] = k
        values[:, :, place : place + 1] = v
        return attention(q, keys[:, :, : place + 1], values[:, :, : place + 1])

    torch.compiler.reset()
    fast = weft.compile(step)
    (keys, values), (keys_2, values_2) = copies(CACHES), copies(CACHES)
    with torch.no_grad():
        for place in range(2, 9):
            q, k, v = (rand(1, 4, 1, 64, seed=10 * place + i) for i in range(3))
            torch.testing.assert_close(fast(q, k, v, keys, values, place), step(q, k, v, keys_2, values_2, place))
            torch.testing.assert_close([keys, values], [keys_2, values_2], rtol=0, atol=0)
    q, k, v = (rand(1, 4, 1, 64, seed=i) for i in range(3))
    assert len(weft.optimize(step, (q, k, v, keys, values, 8)).kernels) == 1


# What is read before and after.


def old_and_new(x, y):
    old = x.sum(0)
    x[2] = y[1]
    return x.sum(0) * old, x.t()


def appended_afterwards(x, y):
    made = torch.softmax(y @ x.t(), -1) @ x
    x[1] = y[0]
    return made


def old_row_in_the_result_of_new_ones(x, y):
    row = x[1] * 2
    x[1] = y[0]
    return y @ x.t() * row.sum(), x[1]


def swapped(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x + y


def a_view_lives_on(x, y):
    view = x.t()
    first = view * 2
    x.add_(y)
    return view * 3, first, view


def copies_stay(x, y):
    kept = x.clone()
    kept[0] = 1.0
    x[0] = 1.0
    again = x.clone()
    return kept, x * 1, again, again.t(), kept * y


def rolled(x, y):
    x.copy_(torch.cat([x[1:], y[:1]]))
    return x.mean(0)


def many(x, y):
    x[1] += 1
    x[:, 2:4] *= 3
    x[2, 3] = 5
    x[x > 1] = 0.5
    x.view(-1)[3:5].add_(y[0, :2])
    return x.sum(0), x.view(-1)


def of_its_own(x, y):
    made = x * 2
    made[0].add_(1)
    turned = made.t()
    made.mul_(y)
    return turned, made, made.view(-1)[3:]


def whole(x, y):
    x.add_(y)
    y.mul_(2)
    return torch.exp(x) * y, x


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("fn", "layout"),
    [
        (old_and_new, "dense"),
        (appended_afterwards, "gaps"),
        (old_row_in_the_result_of_new_ones, "dense"),
        (swapped, "turned"),
        (a_view_lives_on, "dense"),
        (copies_stay, "turned"),
        (rolled, "gaps"),
        (many, "dense"),
        (of_its_own, "dense"),
        (whole, "turned"),
    ],
)
def test_reads_see_what_was_there_then(fn, layout):
    x, y = rand(4, 6), rand(4, 6, seed=1)
    match layout:
        case "turned":
            x, y = rand(6, 4).t(), rand(6, 4, seed=1).t()
        case "gaps":
            x, y = rand(4, 12)[:, ::2], rand(8, 12, seed=1)[::2, ::2]
        case _:
            pass
    compared(fn, x, y)


@pytest.mark.parametrize("seed", [5, 7, 42, 45])
def test_random_functions_do_as_eager_does(seed):
    """More of them: `python -m testkit.api.random_writes`."""
    assert not difference(seed), function(seed)


def test_a_write_that_old_content_waits_for_comes_later():
    plan = compared(appended_afterwards, rand(4, 6), rand(4, 6, seed=1))
    assert plan.in_place, "the kernel before it reads what was there"
    assert not compared(a_view_lives_on, rand(4, 6), rand(4, 6, seed=1)).in_place


def sorted_factors(x, y):
    """Read before and after the write in one connected part, as deep in the graph."""
    before = (x * torch.sort(y).values) @ y.t()
    x[1:3] = y[:2]
    return before + x @ y.t()


def sorted_factors_of_a_view(x, y):
    seen = x.t()
    before = y @ (seen * torch.sort(y.t()).values)
    x[1:3] = y[:2]
    return before + y @ x.t()


@pytest.mark.parametrize("fn", [sorted_factors, sorted_factors_of_a_view])
def test_no_kernel_is_cut_so_that_a_write_copies(fn):
    plan = compared(fn, rand(4, 6), rand(4, 6, seed=1))
    assert len(plan.in_place) == 1
    assert {f.operation for f in plan.fallbacks} == {"aten.sort"}


def test_views_of_what_is_written_over_are_the_old_content_too():
    def views(x, y):
        rows = x[1:].t()
        sums = rows.sum(0)
        x[0] = y[0]
        return sums, x * 2

    collector = Collector()
    collector.run(views, rand(4, 6), rand(4, 6, seed=1))
    captured = collector.only
    assert captured.program is not None
    (old,) = written_over(captured, captured.program).values()
    made = captured.program.values()
    assert captured.program.inputs[0].name in old
    assert any(isinstance(made[name], Reindex) for name in old)


def test_results_that_laws_merge_do_not_share_memory():
    def twice(x):
        return x * 2 + 1, x * 2 + 1

    compared(twice, rand(4, 6))


# Once per call.


@pytest.mark.parametrize("measure", ["auto", "never"])
def test_an_effect_happens_once_per_call(measure, tmp_path):
    def count(counter, x):
        counter.add_(1)
        x[0] += 1
        return torch.exp(x) * counter

    for _ in range(2):  # the second time what was measured is known
        torch.compiler.reset()
        fast = weft.compile(count, measure=measure, cache_dir=tmp_path)
        counter, x = torch.zeros(1), torch.zeros(4, 6)
        with torch.no_grad():
            for call in range(1, 5):
                fast(counter, x)
                assert (counter.item(), x[0, 0].item(), x[1, 0].item()) == (call, call, 0)


def test_optimize_runs_it_once():
    def count(counter):
        counter.add_(1)
        return torch.exp(counter)

    counter = torch.zeros(4)
    program = weft.optimize(count, (counter,))
    assert counter.tolist() == [1] * 4
    program(counter)
    assert counter.tolist() == [2] * 4


def test_a_graph_that_pytorch_runs_writes_once_too():
    def refused(counter):
        counter.add_(1)
        return torch.fft.rfft(counter)

    torch.compiler.reset()
    counter = torch.zeros(4)
    with torch.no_grad():
        weft.compile(refused)(counter)
    assert counter.tolist() == [1] * 4


def test_buffers_and_running_statistics():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
            self.mean: torch.Tensor
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.mean.copy_(x.mean(0))
            self.mean.mul_(0.5)
            return torch.relu(self.norm(self.linear(x))) + self.mean

    torch.manual_seed(0)
    model = Model()
    other = copy.deepcopy(model)
    assert weft.optimize(copy.deepcopy(model), (rand(8, 6),)).fallbacks == ()
    torch.compiler.reset()
    fast = weft.compile(model)
    with torch.no_grad():
        for seed in range(3):
            x = rand(8, 6, seed=seed)
            torch.testing.assert_close(fast(x), other(x))
            torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()))


# Arguments that share memory.


def test_arguments_that_overlap_are_left_to_pytorch():
    def fn(x, y):
        x.add_(1)
        return x * y

    plans = []
    fast = planned(fn, plans)

    def both(pick):
        own, other = torch.arange(12.0), torch.arange(12.0)
        with torch.no_grad():
            torch.testing.assert_close(fast(*pick(own)), fn(*pick(other)))
        assert torch.equal(own, other)

    both(lambda b: (b[:5], b[5:10]))
    assert plans[0].kernels, "one tensor, but no element is in both"
    both(lambda b: (b[:5], b[2:7]))  # with the same kernels: Dynamo does not ask for them again
    both(lambda b: (b[2:7], b[:5]))
    both(lambda b: (b[:5], b[:5]))
    assert len(plans) == 1 or not plans[1].kernels


def test_arguments_that_overlap_at_once_say_so():
    def fn(x, y):
        x.add_(1)
        return x * y

    b = torch.arange(12.0)
    torch.compiler.reset()
    (fallback,) = weft.optimize(fn, (b[:5], b[2:7])).fallbacks
    assert "shares memory with another one" in fallback.reason


def test_gradients_through_what_is_written_are_pytorch_s():
    def fn(x, w):
        x.copy_(w * 2)
        return x.detach() + 1

    torch.compiler.reset()
    x, w = torch.zeros(5), torch.ones(5, requires_grad=True)
    weft.compile(fn)(x, w)
    x.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2] * 5


def test_equivalence_of_what_writes_is_undecided():
    def fn(x):
        x.add_(1)
        return x * 2

    assert weft.equivalent(fn, fn, (torch.randn(4),)).equal is None


def test_explain_says_what_is_written():
    text = str(weft.optimize(by_slice, copies((*STEP, *CACHES))).explain())
    assert "writes into arguments" in text
    assert "keys: aten.copy_ in place" in text
