"""Serving: caches that grow, slide or hold int8, weights that are loaded anew, the modes of torch.compile, exported programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft
from weft.errors import ArgumentError

COMPILE: Any = torch.compile


class Layer(nn.Module):
    """Compute causal attention over all that is there, and a residual."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Gives what is like `x`, of batch, length and width."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def _compiles(steps: int, step: Callable[[int], None]) -> list[int]:
    """Count the kernels that each step compiled."""
    found: list[int] = []
    for number in range(steps):
        before = weft.stats().compiles
        step(number)
        found.append(weft.stats().compiles - before)
    return found


def test_twenty_shapes_of_batches() -> None:
    layer = Layer().eval()
    fast = weft.compile(layer)

    def step(number: int) -> None:
        x = torch.randn(2 + number * 7 % 5, 5 + number * 11 % 17, 32)
        _close(fast(x), layer(x))

    with torch.inference_mode():
        compiled = _compiles(20, step)
    assert not any(compiled[3:])


def test_a_cache_that_slides() -> None:
    def attend(q: Tensor, new: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        keys = torch.cat((keys, new), 1)[:, -6:]
        return torch.softmax(q @ keys.mT, -1) @ keys, keys

    fast = weft.compile(attend)
    caches = [torch.randn(2, 3, 16)] * 2

    def step(_: int) -> None:
        q, new = torch.randn(2, 1, 16), torch.randn(2, 1, 16)
        (found, caches[0]), (wanted, caches[1]) = fast(q, new, caches[0]), attend(q, new, caches[1])
        _close(found, wanted)
        assert torch.equal(*caches)

    with torch.inference_mode():
        compiled = _compiles(12, step)
    assert not any(compiled[6:])


def _kept(x: Tensor) -> tuple[Tensor, Tensor]:
    """Give rows as int8, and the scale of each."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def test_a_cache_of_int8() -> None:
    def attend(q: Tensor, new: Tensor, rows: Tensor, scales: Tensor, place: int) -> Tensor:
        rows[:, place : place + 1], scales[:, place : place + 1] = _kept(new)
        keys = rows[:, : place + 1].float() * scales[:, : place + 1]
        return torch.softmax(q @ keys.mT / 4, -1) @ keys

    fast = weft.compile(attend)
    mine, theirs = ((torch.zeros(2, 24, 16, dtype=torch.int8), torch.zeros(2, 24, 1)) for _ in range(2))

    def step(place: int) -> None:
        q, new = torch.randn(2, 1, 16), torch.randn(2, 1, 16)
        _close(fast(q, new, *mine, place), attend(q, new, *theirs, place))

    with torch.inference_mode():
        compiled = _compiles(20, step)
    assert all(map(torch.equal, mine, theirs))
    assert not any(compiled[3:])


def test_weights_that_are_loaded_anew_cost_no_compile() -> None:
    layer, second, third = (Layer().eval() for _ in range(3))
    fast, x = weft.compile(layer), torch.randn(2, 10, 32)
    with torch.no_grad():
        _close(fast(x), layer(x))
        before = weft.stats().compiles
        layer.load_state_dict(second.state_dict())
        _close(fast(x), second(x))
        layer.load_state_dict(third.state_dict(), assign=True)
        _close(fast(x), third(x))
    assert weft.stats().compiles == before


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "means",
    [
        {"fullgraph": True},
        {"dynamic": True},
        {"dynamic": False},
        {"mode": "default"},
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune-no-cudagraphs"},
    ],
    ids=str,
)
def test_what_torch_compile_is_told(means: dict[str, Any]) -> None:
    layer = Layer().eval()
    fast = COMPILE(layer, backend="weft", **means)
    with torch.inference_mode():
        before = weft.stats().kernels
        for length in (10, 11, 13):
            x = torch.randn(2, length, 32)
            _close(fast(x), layer(x))
    assert weft.stats().kernels > before


def test_a_mode_that_does_not_exist_is_an_error() -> None:
    """Inductor says so as well; a slip of the pen would ask for nothing, and nobody would hear of it."""
    fast = COMPILE(torch.relu, backend="weft", mode="max-autotunee")
    with pytest.raises(Exception, match="no mode 'max-autotunee'"):
        fast(torch.randn(3))


def test_only_what_can_be_called_is_ready() -> None:
    with pytest.raises(ArgumentError, match=r"the first argument of weft\.ready is of type int"):
        weft.ready(cast("Any", 3))


def test_what_is_torch_compiles_own_is_refused_with_a_word() -> None:
    with pytest.raises(weft.errors.UnknownOptionError, match=r"fullgraph.*torch\.compile"):
        weft.compile(Layer(), fullgraph=True)
    with pytest.raises(weft.errors.UnknownOptionError, match="max-autotune"):
        weft.compile(Layer(), mode="max-autotune")
    fast = COMPILE(Layer().eval(), backend="weft", options={"triton.cudagraphs": True})
    with pytest.raises(Exception, match=r'no option "triton\.cudagraphs"'), torch.no_grad():
        fast(torch.randn(2, 10, 32))


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # PyTorch's own, while it decomposes
@pytest.mark.parametrize("decomposed", [True, False])
def test_exported_programs(decomposed: bool) -> None:
    layer, x = Layer().eval(), torch.randn(2, 10, 32)
    with torch.no_grad():
        sizes = {"x": {1: torch.export.Dim("length", min=2, max=64)}}
        program = torch.export.export(layer, (x,), dynamic_shapes=sizes)
        module = (program.run_decompositions() if decomposed else program).module()
        assert not weft.optimize(module, (x,)).fallbacks
        fast = COMPILE(module, backend="weft")
        for length in (10, 7, 9):
            _close(fast(x[:, :length]), layer(x[:, :length]))


def test_several_models_of_one_form_share_binaries() -> None:
    layers = [Layer().eval() for _ in range(3)]
    x = torch.randn(2, 10, 32)
    with torch.inference_mode():
        compiled = _compiles(3, lambda number: _close(weft.compile(layers[number])(x), layers[number](x)))
    assert not any(compiled[1:])


def test_autocast_inside_of_inference_mode() -> None:
    layer, x = Layer().eval(), torch.randn(2, 10, 32)
    with torch.inference_mode():
        fast = weft.compile(layer)
        plain = fast(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, wanted = fast(x), layer(x)
        exact = layer.double()(x.double())
        assert weft.judge([found], [wanted], [exact]).ok
        layer.float()
        _close(plain, layer(x))
        assert torch.equal(fast(x), plain)
