"""The rows of `weft bench --models`: models of the package transformers in the sizes that people run, and their inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import CommandError
from weft.lab.whole import builders
from weft.lab.workloads import models

_TORCH: Any = torch  # the type of torch.manual_seed is only partly known
_ATTENTIONS = ("eager", "sdpa")
"""As transformers calls them: attention written out in PyTorch, and `scaled_dot_product_attention`."""

_NONE = ("",)
"""Of models that have no attention to choose."""

_LENGTHS = 4
_CACHES = ("cache", "past_key_values")
"""What transformers calls the cache of keys and values, newer versions first."""

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Call:
    title: str
    build: Callable[[Any, str, bool], nn.Module]
    inputs: Callable[[int, bool, str], Inputs]
    cached: bool = False
    options: Mapping[str, Any] = field(default_factory=lambda: {"use_cache": False})
    attentions: tuple[str, ...] = _ATTENTIONS


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A call of a model with an implementation of attention, in an element type.

    Attributes:
        call: the model and what it is called with.
        attention: "eager" or "sdpa"; "" where there is no choice.
        dtype: of weights and activations.
        small: for a quick test: one layer of width 64, and an eighth of the length.
        device: of weights and inputs, "cpu" or "cuda".
    """

    call: _Call
    attention: str
    dtype: torch.dtype
    small: bool = False
    device: str = "cpu"

    @property
    def name(self) -> str:
        """Title, attention and element type."""
        short = {torch.float32: "fp32", torch.bfloat16: "bf16"}[self.dtype]
        return " ".join(filter(None, (f"{self.call.title}{' (small)' * self.small}", self.attention, short)))

    @property
    def judged(self) -> bool:
        """Tell whether results can be compared: in bf16 routers of experts send tokens elsewhere by a rounding."""
        return self.dtype == torch.float32 or self.call.build not in (builders.mixtral, builders.mixtral_layer)

    @property
    def first_calls(self) -> int:
        """Count the calls that compile: of a cache that grows, the second one too."""
        return 1 + self.call.cached

    def model(self) -> nn.Module:
        """Make the model, with the same weights each time on a device; raises ImportError where `transformers` is missing."""
        _TORCH.manual_seed(0)
        with torch.device(self.device):  # a CPU takes half a minute to draw the weights of a Llama
            model = self.call.build(import_module("transformers"), self.attention, self.small)
        return model.eval().to(self.device, self.dtype)

    def inputs(self, number: int) -> Inputs:
        """Make what the model is called with, by name, other values for each number."""
        return cast(self.call.inputs(number, self.small, self.device), self.dtype, self.device)

    def caller(self, run: Callable[..., Any], model: nn.Module) -> Callable[[Inputs], list[Tensor]]:
        """Make the function that calls `run`, `model` or a compiled one, and gives its tensors of floating point.

        A cache is made for each call of what the inputs hold (`keys`, `values`: a tensor a layer): a step of decoding adds to it.
        """
        if self.call.cached:
            return lambda given: floats(_step(run, model, **given))
        return lambda given: floats(run(**given, **self.call.options))


def floats(found: Any) -> list[Tensor]:
    """List the tensors of floating point of a model's result, those of a cache among them."""
    if isinstance(found, Tensor):
        return [found]
    values: list[Any] = [*found.to_tuple()]
    cache: Any = next((found[name] for name in _CACHES if name in found), None)  # a result may have both names
    for layer in () if cache is None else cache.layers:
        values += layer.keys, layer.values
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def _step(run: Callable[..., Any], model: Any, keys: Sequence[Tensor], values: Sequence[Tensor], **given: Any) -> Any:
    cache = import_module("transformers").DynamicCache(config=model.config)
    name = next(n for n in _CACHES if n in inspect.signature(model.forward).parameters)
    for layer, key, value in zip(cache.layers, keys, values, strict=True):
        layer.dtype, layer.device = key.dtype, key.device
        layer.keys, layer.values, layer.is_initialized = key, value, True
    return run(**given, **{name: cache}, use_cache=True)


def cast(given: Mapping[str, Any], dtype: torch.dtype, device: str | None = None) -> Inputs:
    """Return inputs with those of floating point in `dtype`, on `device` if one is given."""

    def one(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device, dtype if value.is_floating_point() else None)
        return list(map(one, value))

    return {name: one(value) for name, value in given.items()}


def _words(batch: int, length: int, *names: str) -> Callable[[int, bool, str], Inputs]:
    """Make words of `batch` sequences, by `names`, "input_ids" if none; small: of the first 1,000, an eighth as many in each."""

    def inputs(number: int, small: bool, device: str) -> Inputs:
        random = torch.Generator(device).manual_seed(number)
        shape = batch, length // 8 if small else length
        return {
            n: torch.randint(3, _words_of(small), shape, generator=random, device=device)
            for n in names or ("input_ids",)
        }

    return inputs


def _words_of(small: bool) -> int:
    return 1000 if small else 30000


def _pictures(batch: int, size: int = 224) -> Callable[[int, bool, str], Inputs]:
    """Make pictures of `size` by `size`; small: two of them."""

    def inputs(number: int, small: bool, device: str) -> Inputs:
        random = torch.Generator(device).manual_seed(number)
        return {"pixel_values": torch.randn(2 if small else batch, 3, size, size, generator=random, device=device)}

    return inputs


def _token(
    layers: int, heads: int, cached: int, small_heads: tuple[int, int], *, batch: int = 1, width: int = 64
) -> Callable[[int, bool, str], Inputs]:
    """Make one new token of `batch` sequences, and a cache of at most `cached` tokens, of another length in each call.

    Args:
        layers, heads, cached, width: of the cache and its heads.
        small_heads: how many there are in the small model's one layer, and how wide; its cache has an eighth of the tokens.
    """

    def inputs(number: int, small: bool, device: str) -> Inputs:
        random = torch.Generator(device).manual_seed(number)
        length = (cached // 8 if small else cached) - number % _LENGTHS
        count, wide = small_heads if small else (heads, width)
        # A GPU draws its own: a cache of many sequences is gigabytes.
        shape, each = (batch, count, length, wide), range(1 if small else layers)
        lists = {
            name: [torch.randn(shape, generator=random, device=device) for _ in each] for name in ("keys", "values")
        }
        words = torch.randint(3, _words_of(small), (batch, 1), generator=random, device=device)
        return {"input_ids": words, **lists}

    return inputs


_CALLS = (
    _Call("BERT-base 1x128", builders.bert, _words(1, 128), options={}),
    _Call("BERT-base 8x128", builders.bert, _words(8, 128), options={}),
    _Call("GPT-2 1x256", builders.gpt2, _words(1, 256)),
    # The model's table of positions ends at 1,024.
    _Call("GPT-2 1x1 after 1023", builders.gpt2, _token(12, 12, 1023, (2, 32)), cached=True),
    _Call("Llama 4 layers 1x256", builders.llama, _words(1, 256)),
    _Call("Llama 4 layers 1x1 after 1024", builders.llama, _token(4, 4, 1024, (1, 16)), cached=True),
    _Call("Mixtral 4 layers 1x256", builders.mixtral, _words(1, 256)),
    _Call("ResNet-50 2", builders.resnet, _pictures(2), options={}, attentions=_NONE),
    _Call("U-Net 2", builders.unet, _pictures(2, 128), options={}, attentions=_NONE),
    _Call("LSTM 4x128", builders.lstm, _words(4, 128), options={}, attentions=_NONE),
)


_GPU_CALLS = (
    _Call("BERT-base 8x512", builders.bert, _words(8, 512), options={}),
    _Call("GPT-2 8x1024", builders.gpt2, _words(8, 1024)),
    _Call("T5-small 8x512", builders.t5, _words(8, 512, "input_ids", "decoder_input_ids")),
    _Call("ViT-base 16", builders.vit, _pictures(16), options={}),
    _Call("Llama-3-8B 4 layers 1x2048", builders.llama_8b, _words(1, 2048)),
    *(
        _Call(
            f"Llama-3-8B 4 layers {batch}x1 after 4096",
            builders.llama_8b,
            _token(4, 8, 4096, (1, 16), batch=batch, width=128),
            cached=True,
        )
        for batch in (1, 8, 64)
    ),
    _Call("Mixtral layer 1x1024", builders.mixtral_layer, _words(1, 1024)),
    _Call("ResNet-50 16", builders.resnet, _pictures(16), options={}, attentions=_NONE),
    _Call("U-Net 16", builders.unet, _pictures(16, 128), options={}, attentions=_NONE),
    _Call("LSTM 16x256", builders.lstm, _words(16, 256), options={}, attentions=_NONE),
)


def rows(device: str = "cpu", *, small: bool = False) -> Iterator[ModelRow]:
    """Yield all rows for "cpu" or "cuda"; `small`: of models with one layer of width 64, for a quick test.

    A GPU's are in bf16. On a CPU Mixtral is in fp32 alone, so that its results can be compared.
    """
    if device != "cpu":
        for call in _GPU_CALLS:
            yield from (ModelRow(call, attention, torch.bfloat16, small, device) for attention in call.attentions)
        return
    for dtype in (torch.float32, torch.bfloat16):
        for call in _CALLS:
            if dtype == torch.float32 or call.build is not builders.mixtral:
                yield from (ModelRow(call, attention, dtype, small) for attention in call.attentions)


def chosen(only: Sequence[str], device: str = "cpu", *, small: bool = False) -> list[ModelRow]:
    """Choose the rows for `device` whose name contains one of `only`; all where that is empty.

    Raises:
        CommandError: there is none, or the package transformers is missing.
    """
    if not models.here():
        raise CommandError(models.MISSING, where="--models", todo="pip install transformers")
    every = list(rows(device, small=small))
    found = [row for row in every if not only or any(text.lower() in row.name.lower() for text in only)]
    if not found:
        names = ", ".join(dict.fromkeys(row.call.title for row in every))
        raise CommandError(f"no row's name contains {' or '.join(only)}", where="--only", todo=f"there are: {names}")
    return found
