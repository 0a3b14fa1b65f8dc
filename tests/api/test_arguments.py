"""What goes into a compiled function or module, and what comes out: state, arguments and results of every kind."""

from __future__ import annotations

import copy
import functools
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import weft


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


@dataclass
class Record:
    tensor: torch.Tensor
    factor: int = 2


def close(found, wanted) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def layers() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()


class TestState:
    def test_weights_that_change(self):
        model, x = layers(), torch.randn(3, 8)
        fast = weft.compile(model)
        with torch.no_grad():
            fast(x)
            model[0].weight.data.copy_(torch.randn(8, 8))
            assert close(fast(x), model(x))
            fast.load_state_dict({name: value * 2 for name, value in fast.state_dict().items()})
            assert close(fast(x), model(x))
            model[0].weight = nn.Parameter(torch.randn(8, 8))
            assert close(fast(x), model(x))
            model[0].weight.data = torch.randn(8, 8).T
            assert close(fast(x), model(x))

    def test_tied_weights(self):
        model: Any = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
        x = torch.randn(3, 8)
        model[2].weight = model[0].weight
        fast = weft.compile(model)
        with torch.no_grad():
            fast(x)
            model[0].weight.mul_(2)
            assert close(fast(x), model(x))

    def test_a_cache_that_the_model_writes(self):
        class Cached(nn.Module):
            cache: torch.Tensor

            def __init__(self):
                super().__init__()
                self.register_buffer("cache", torch.zeros(16, 8))
                self.project = nn.Linear(8, 8)

            def forward(self, x, place: int):
                self.cache[place : place + x.shape[0]] = self.project(x)
                return torch.softmax(x @ self.cache.T, -1) @ self.cache

        model = Cached().eval()
        plain, fast = copy.deepcopy(model), weft.compile(model)
        with torch.no_grad():
            for place in range(4):
                x = torch.randn(1, 8)
                assert close(fast(x, place), plain(x, place))
                assert close(model.cache, plain.cache)

    def test_hooks_and_modes(self):
        model: Any = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
        model[0].register_forward_hook(lambda module, given, found: torch.mul(found, 2))
        plain, fast, x = copy.deepcopy(model), weft.compile(model), torch.randn(30, 8)
        with torch.no_grad():
            for mode in (False, True, False):
                fast.train(mode)
                plain.train(mode)
                assert model.training is mode
                torch.manual_seed(1)
                found = fast(x)
                torch.manual_seed(1)
                assert close(found, plain(x))
            assert close(model[2].running_mean, plain[2].running_mean)

    def test_a_new_hook_is_seen_after_a_reset(self):
        model, x = layers(), torch.randn(3, 8)
        fast = weft.compile(model)
        with torch.no_grad():
            fast(x)
            model[0].register_forward_hook(lambda module, given, found: torch.mul(found, 2))
            torch.compiler.reset()
            assert close(fast(x), model(x))

    def test_copies_have_weights_of_their_own(self):
        model, x = layers(), torch.randn(3, 8)
        fast = weft.compile(model)
        with torch.no_grad():
            before = fast(x)
            copies = copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))
            model[0].weight.zero_()
            assert not close(fast(x), before)
            for each in copies:
                assert close(each(x), before)
                with pytest.raises(weft.errors.ShapeError):
                    each(torch.randn(3, 9))

    def test_a_program_is_not_pickled_and_says_what_to_do(self):
        program = weft.optimize(lambda x: x * 2 + 1, torch.randn(4))
        with pytest.raises(TypeError, match=r"call weft\.optimize where it is loaded"):
            pickle.dumps(program)
        assert copy.deepcopy(program) is copy.copy(program) is program


class TestGradients:
    def test_calls_that_need_them_run_in_pytorch(self):
        model, x = layers(), torch.randn(4, 8)
        plain, fast = copy.deepcopy(model), weft.compile(model)
        for each in (fast, plain):
            each(x).square().sum().backward()
        assert close(model[0].weight.grad, plain[0].weight.grad)
        with torch.no_grad():
            assert close(fast(x), plain(x))
        with torch.inference_mode():
            assert close(fast(x), plain(x))
        fast(x).square().sum().backward()
        assert close(model[0].weight.grad, 2 * plain[0].weight.grad)

    def test_of_an_argument(self):
        x = torch.randn(4, requires_grad=True)
        weft.compile(lambda x: (x * 2).exp().sum())(x).backward()
        assert close(x.grad, 2 * (2 * x).exp())


class TestWithPyTorch:
    def test_exported_programs(self):
        model, x = layers(), torch.randn(4, 8)
        rows = torch.export.Dim("rows", min=2, max=64)
        module = torch.export.export(model, (x,), dynamic_shapes=({0: rows},)).module()
        fast, before = weft.compile(module), weft.stats().fallbacks
        with torch.no_grad():
            for given in (x, torch.randn(7, 8)):
                assert close(fast(given), model(given))
        assert weft.stats().fallbacks == before
        assert len(weft.optimize(module, (x,)).kernels) == 1

    @pytest.mark.parametrize(
        ("inner", "outer"),
        [
            (weft.compile, functools.partial(torch.compile, backend="eager")),
            (functools.partial(torch.compile, backend="weft"), weft.compile),
            (weft.compile, weft.compile),
        ],
    )
    def test_nested(self, inner, outer):
        within, x = inner(lambda x: torch.relu(x) * 2), torch.randn(4, 4)
        assert close(outer(lambda x: within(x) + 1)(x), torch.relu(x) * 2 + 1)

    def test_graph_breaks(self):
        @torch.compiler.disable
        def disabled(x) -> Any:
            return x * float(x.sum())

        def broken(x):
            y: Any = disabled(x * 2 + 1)
            torch._dynamo.graph_break()
            return y.exp() * 2 if y.sum() > 0 else y - 1

        x = torch.randn(4, 4) / 100
        assert close(weft.compile(broken)(x), broken(x))
        assert close(weft.compile(broken)(-9 - x), broken(-9 - x))
        with pytest.raises(Exception, match="disable"):
            torch.compile(broken, backend="weft", fullgraph=True)(x)
        assert close(torch.compile(lambda x: x * 2 + 1, backend="weft", fullgraph=True)(x), x * 2 + 1)

    def test_an_interrupt_while_compiling_leaves_all_usable(self, monkeypatch):
        def interrupted(*args, **kwargs):
            raise KeyboardInterrupt

        def fn(x):
            return torch.sin(x) * 2.125 + x

        fast, x = weft.compile(fn), torch.randn(5)
        with monkeypatch.context() as patch:
            patch.setattr("weft.run.build.compile_shared_library", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fast(x)
        before = weft.stats()
        assert close(fast(x), fn(x))
        assert weft.stats().fallbacks == before.fallbacks
        assert weft.stats().binaries_emitted == before.binaries_emitted + 1
        torch.compiler.reset()
        assert close(fast(x), fn(x))


class TestArguments:
    def test_by_keyword_with_defaults_and_none(self):
        def fn(x, *, y, scale=2.0, more=None, name="a"):
            total = x * scale + y
            total = total if more is None else total + more
            total = -total if name == "b" else total
            return {"total": total, "nested": (total * 2, [total + 1]), "n": 3, "name": name, "none": None}

        fast, x, y = weft.compile(fn), torch.randn(4, 4), torch.randn(4, 4)
        every: tuple[dict[str, Any], ...] = ({}, {"scale": 3.0}, {"scale": 5}, {"more": x}, {"name": "b"})
        for given in every:
            found: Any = fast(x, y=y, **given)
            wanted: Any = fn(x, y=y, **given)
            assert close(found["total"], wanted["total"])
            assert close(found["nested"][1][0], wanted["nested"][1][0])
            assert {k: found[k] for k in ("n", "name", "none")} == {k: wanted[k] for k in ("n", "name", "none")}

    def test_structures(self):
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        pair = weft.compile(lambda p: Pair(p.one * 2, p.other + 1))(Pair(x, y))
        assert isinstance(pair, Pair)
        assert close(pair.one, x * 2)
        record = weft.compile(lambda r: Record(r.tensor * r.factor, r.factor + 1))(Record(x, 3))
        assert isinstance(record, Record)
        assert close(record.tensor, x * 3)
        assert record.factor == 4
        named = weft.compile(lambda d: {k: v * 2 + 1 for k, v in d.items()})({"b": x, "a": y})
        assert list(named) == ["b", "a"]
        assert close(named["b"], x * 2 + 1)

    def test_any_number_of_them(self):
        def total(*args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
            return sum(args, torch.zeros(4)) * 2 + kwargs["z"]

        fast = weft.compile(total)
        x, y = torch.randn(4), torch.randn(4)
        assert close(fast(x, y, z=x), (x + y) * 2 + x)
        assert close(fast(x, y, x, z=y), (x + y + x) * 2 + y)

    def test_callables(self):
        class Layer:
            def __init__(self):
                self.w = torch.randn(4, 4)

            def apply(self, x):
                return torch.relu(x @ self.w)

        layer, x, w = Layer(), torch.randn(4, 4), torch.randn(4, 4)
        fast = weft.compile(layer.apply)
        assert close(fast(x), layer.apply(x))
        layer.w = torch.randn(4, 4)
        assert close(fast(x), layer.apply(x))
        assert close(weft.compile(functools.partial(lambda a, b, k: a * k + b, k=3))(x, w), x * 3 + w)
        closed = weft.compile(lambda x: x * w + 1)
        assert close(closed(x), x * w + 1)
        w.mul_(3)
        assert close(closed(x), x * w + 1)

    @pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
    def test_without_elements(self, shape):
        fast, x, y = weft.compile(lambda x: (x * 2).sum(-1) + 1), torch.randn(shape), torch.randn(3, 4)
        for given in (x, y, x):
            assert close(fast(given), (given * 2).sum(-1) + 1)

    def test_without_memory(self):
        found = weft.compile(lambda x: x * 2 + 1)(torch.empty(4, 3, device="meta"))
        assert (found.device.type, found.shape) == ("meta", (4, 3))


def several_of_one(x):
    y = x * 2 + 1
    return y, y, y.T, y[0]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x,
        lambda x: (x, x),
        lambda x: (x.T, x * 2),
        lambda x: (x[1:], x + 1),
        lambda x: x.add_(1),
        lambda x: (x.add_(1).T, x * 2),
        lambda x: x.view(16),
        lambda x: (x * 2).T.contiguous().view(-1),
        several_of_one,
    ],
)
def test_results_share_memory_as_eagers_do(fn):
    one, other = (torch.arange(16.0).view(4, 4) for _ in range(2))
    found, wanted = weft.compile(fn)(one), fn(other)
    found, wanted = (each if isinstance(each, tuple) else (each,) for each in (found, wanted))
    assert torch.equal(one, other)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(found, wanted, strict=True))
    assert sharing(one, *found) == sharing(other, *wanted)


def sharing(*tensors: torch.Tensor) -> list[list[tuple[bool, bool]]]:
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [
        [(a is b, p == q) for b, q in zip(tensors, places, strict=True)] for a, p in zip(tensors, places, strict=True)
    ]


def test_results_that_are_no_tensors():
    def fn(x):
        return x * 2, x.shape[0], "s", x.dtype, None, 3.5

    x = torch.randn(4)
    found = weft.compile(fn)(x)
    assert found[1:] == fn(x)[1:]
    assert close(found[0], x * 2)


@pytest.mark.parametrize(
    ("function", "sizes"),
    [(lambda x: (x * 2 + 1, x * 2 + 1), (4, 5)), (lambda x: (x.sum(0) + 1, x.sum(1) + 1), (1, 1))],
    ids=["computed twice", "equal at size 1"],
)
def test_results_that_are_equal_share_no_memory(function, sizes):
    with weft.options(measure="never"):
        one, other = weft.compile(function)(torch.ones(sizes))
    before = other.clone()
    one.add_(1)
    assert torch.equal(other, before)
