"""Calls that a trial makes begin where the user's call would; what a graph writes into is a copy."""

from __future__ import annotations

import warnings

import pytest
import torch

import weft
from weft.api.backend import compile_graph
from weft.plan.measure import clock, trial
from weft.plan.measure.spare import spare


def test_copies_are_restored_to_what_the_users_tensors_hold():
    x, y = torch.arange(6.0), torch.ones(3)
    found = spare((x, y, 7), (0,))
    assert found.arguments[1] is y
    assert found.arguments[2] == 7
    for _ in range(2):
        found.arguments[0].add_(1)
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
        found.restore()
        assert torch.equal(found.arguments[0], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.complex64, torch.bool])
def test_tensors_of_one_storage_lie_so_in_the_copy(dtype):
    whole = torch.arange(480).reshape(4, 120).to(dtype)
    views = whole[1, 10:40], whole[1:3, ::3], whole.T[5], whole[3], torch.zeros(2)
    found = spare(views, (0,)).arguments
    assert found[4] is views[4]
    for own, copy in zip(views[:4], found, strict=False):
        assert torch.equal(own, copy)
        assert own.stride() == copy.stride()
        assert own.data_ptr() % 64 == copy.data_ptr() % 64
        assert copy.data_ptr() - found[0].data_ptr() == own.data_ptr() - views[0].data_ptr()
        assert copy.untyped_storage().data_ptr() == found[0].untyped_storage().data_ptr()
    found[1].zero_()
    assert torch.equal(whole, torch.arange(480).reshape(4, 120).to(dtype))


def test_what_memory_means_is_kept():
    x = torch.randn(4, dtype=torch.complex64)
    for own in (x.conj(), x.conj().imag):
        copy = spare((own,), (0,)).arguments[0]
        assert (copy.is_conj(), copy.is_neg()) == (own.is_conj(), own.is_neg())
        assert torch.equal(copy, own)


@pytest.mark.parametrize("made", [lambda: torch.zeros(0, 3), lambda: torch.zeros(3, 2)[:, 1:], lambda: torch.tensor(2)])
def test_empty_tensors_views_and_scalars(made):
    own = made()
    found = spare((own,), (0,))
    found.restore()
    assert torch.equal(found.arguments[0], own)
    assert found.arguments[0].stride() == own.stride()


@pytest.mark.parametrize("made", [lambda x: x.to_sparse(), torch.nn.Parameter])
def test_other_kinds_of_tensors(made):
    own = made(torch.eye(3))
    found = spare((own,), (0,))
    with torch.no_grad():
        found.arguments[0].mul_(2)
        found.restore()
        assert torch.equal(found.arguments[0].to_dense(), own.to_dense())


def append(k, keys, length):
    """Raises where `length` runs past the end of `keys`."""
    at = torch.arange(k.shape[1]) + length
    length.add_(k.shape[1])
    keys.index_copy_(1, at, k)
    return torch.softmax(k @ keys.transpose(1, 2), -1) @ keys


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_counter_stands_where_it_stood_in_each_call_of_the_trial(measured, mode):
    with mode():
        fast = weft.compile(append)
        own, others = ((torch.zeros(2, 8, 16), torch.tensor(0)) for _ in range(2))
        for step in range(4):
            k = torch.randn(2, 2, 16)
            torch.testing.assert_close(fast(k, *own), append(k, *others))
            torch.testing.assert_close(own, others)
            assert own[1] == 2 * (step + 1)


def test_buffers_captured_tensors_and_views_of_one_tensor_too(measured):
    places, both = torch.tensor(0), torch.zeros(2, 3, 4)

    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.tensor(0))

        def forward(self, x):
            keys, values = both[0], both[1]
            keys.index_copy_(0, places + self.seen, torch.exp(x)[None])
            values.index_copy_(0, places + self.seen, torch.tanh(x)[None])
            self.seen.add_(1)
            return torch.exp(keys) * values

    places.resize_(1).zero_()
    model = Cached()
    with torch.no_grad():
        fast, x = weft.compile(model), torch.randn(4)
        for step in range(3):
            found = fast(x)
            assert int(model.seen) == step + 1
            torch.testing.assert_close(found, torch.exp(both[0]) * both[1])
            torch.testing.assert_close(both[1, : step + 1], torch.tanh(x).expand(step + 1, 4))
        assert not both[:, 3:].any()


def test_the_state_of_random_numbers_is_none_of_the_trials_business():
    before = torch.get_rng_state()
    given = spare((), ())
    clock.measure(clock.first_calls([lambda: [torch.rand(3)]] * 2, given), given)
    assert torch.equal(torch.get_rng_state(), before)


def failing_in_trials(monkeypatch, *, at: int) -> None:
    """weft's kernels raise in the call number `at` of each candidate of theirs; the user's call comes later."""
    own = trial.first_calls

    def first_calls(runs, given, known=None):
        calls: list[int] = []

        def failing(*arguments):
            calls.append(1)
            if len(calls) == at:
                raise IndexError("a defect of weft's")
            return runs[0](*arguments)

        return own((failing, *runs[1:]), given, known)

    monkeypatch.setattr(trial, "first_calls", first_calls)


def warned_of(what, fast, x, fn):
    """The warnings of three calls of `fast`, which does as `fn`."""
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(fast(x), fn(x))
    assert all(what in str(each.message) for each in said)
    return said


@pytest.mark.parametrize("at", [1, 3])
def test_where_kernels_fail_in_a_trial_pytorch_runs_and_that_is_said(measured, monkeypatch, at):
    failing_in_trials(monkeypatch, at=at)
    fast, before = weft.compile(lambda x: torch.exp(x) * 3.25), weft.stats()
    x = torch.randn(5)
    assert len(warned_of("a defect of weft's", fast, x, lambda x: torch.exp(x) * 3.25)) == 1
    after = weft.stats()
    assert (after.slower, after.fallbacks) == (before.slower + 1, before.fallbacks + 1)


def test_where_the_trial_itself_fails_pytorch_runs_too(measured, monkeypatch):
    def broken(candidates, given):
        raise ZeroDivisionError("a defect of the trial")

    monkeypatch.setattr(trial, "measure", broken)
    fast, x = weft.compile(lambda x: torch.exp(x) * 3.5), torch.randn(5)
    assert len(warned_of("a defect of the trial", fast, x, lambda x: torch.exp(x) * 3.5)) == 1


def test_where_pytorch_refuses_too_the_user_hears_pytorch_once_and_may_go_on(measured):
    def picked(x, at):
        return torch.exp(x).index_select(0, at) * 2

    fast, x = weft.compile(picked), torch.randn(4)
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises((IndexError, RuntimeError), match="out of range"):
                fast(x, torch.tensor([9]))
        torch.testing.assert_close(fast(x, torch.tensor([3])), picked(x, torch.tensor([3])))


def test_arguments_that_overlap_decide_nothing_for_those_that_do_not(measured, monkeypatch):
    """PyTorch runs them, whatever is faster elsewhere."""
    found: list[trial.Trial] = []

    def compiled(gm, example):
        made = trial.faster(compile_graph(gm, example), gm.forward, trial.changing_sizes(gm))
        assert isinstance(made, trial.Trial)
        found.append(made)
        return gm.forward

    def shifted(x, y):
        x.add_(1)
        return (x * y,)

    with torch.no_grad():
        torch.compile(shifted, backend=compiled)(torch.ones(8), torch.ones(8))
        memory = torch.ones(9)
        assert found[0](memory[:8], memory[1:])[0].tolist() == [4.0] * 7 + [2.0]
        assert not found[0].chosen
        found[0](torch.ones(8), torch.ones(8))
        assert found[0].chosen
