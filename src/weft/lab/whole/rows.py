"""The rows of `weft bench --models`: models of the package transformers in the sizes that people run, and their inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import CommandError
from weft.lab.workloads import models

_TORCH: Any = torch  # the type of torch.manual_seed is only partly known
_ATTENTIONS = ("eager", "sdpa")
"""As transformers calls them: attention written out in PyTorch, and `scaled_dot_product_attention`."""

_LENGTHS = 4
_CACHES = ("cache", "past_key_values")
"""What transformers calls the cache of keys and values, newer versions first."""

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Call:
    title: str
    build: Callable[[Any, str, bool], nn.Module]
    inputs: Callable[[int, bool], Inputs]
    cached: bool = False


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A call of a model with an implementation of attention, in an element type.

    Attributes:
        call: the model and what it is called with.
        attention: "eager" or "sdpa".
        dtype: of weights and activations.
        small: for a quick test: one layer of width 64, and an eighth of the length.
    """

    call: _Call
    attention: str
    dtype: torch.dtype
    small: bool = False

    @property
    def name(self) -> str:
        """Title, attention and element type."""
        short = {torch.float32: "fp32", torch.bfloat16: "bf16"}[self.dtype]
        return f"{self.call.title}{' (small)' * self.small} {self.attention} {short}"

    @property
    def first_calls(self) -> int:
        """Count the calls that compile: of a cache that grows, the second one too."""
        return 1 + self.call.cached

    def model(self) -> nn.Module:
        """Make the model, with the same weights each time; raises ImportError where `transformers` is missing."""
        _TORCH.manual_seed(0)
        return self.call.build(import_module("transformers"), self.attention, self.small).eval().to(self.dtype)

    def inputs(self, number: int) -> Inputs:
        """Make what the model is called with on a CPU, by name, other values for each number."""
        return cast(self.call.inputs(number, self.small), self.dtype)

    def caller(self, run: Callable[..., Any], model: nn.Module) -> Callable[[Inputs], list[Tensor]]:
        """Make the function that calls `run`, `model` or a compiled one, and gives its tensors of floating point.

        A cache is made for each call of what the inputs hold (`keys`, `values`: a tensor a layer): a step of decoding adds to it.
        """
        if self.call.cached:
            return lambda given: floats(_step(run, model, **given))
        plain = {} if self.call.build is _bert else {"use_cache": False}
        return lambda given: floats(run(**given, **plain))


def floats(found: Any) -> list[Tensor]:
    """List the tensors of floating point of a model's result, those of a cache among them."""
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


def cast(given: Mapping[str, Any], dtype: torch.dtype) -> Inputs:
    """Return inputs with those of floating point in `dtype`."""

    def one(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        return list(map(one, value))

    return {name: one(value) for name, value in given.items()}


def _bert(hub: Any, attention: str, small: bool) -> nn.Module:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    config = hub.BertConfig(attn_implementation=attention, **(sizes if small else {}))
    return hub.BertModel(config, add_pooling_layer=False)


def _gpt2(hub: Any, attention: str, small: bool) -> nn.Module:
    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 2}
    return hub.GPT2LMHeadModel(hub.GPT2Config(attn_implementation=attention, **(sizes if small else {})))


def _llama(hub: Any, attention: str, small: bool) -> nn.Module:
    return hub.LlamaForCausalLM(hub.LlamaConfig(attn_implementation=attention, **_decoder(1024, 2816, small)))


def _mixtral(hub: Any, attention: str, small: bool) -> nn.Module:
    return hub.MixtralForCausalLM(hub.MixtralConfig(attn_implementation=attention, **_decoder(512, 1408, small)))


def _decoder(width: int, inner: int, small: bool) -> dict[str, int]:
    """Return the sizes of four layers with heads of 64, four of which share their keys; small: of one layer with four of 16."""
    width, inner, layers, head = (64, 96, 1, 16) if small else (width, inner, 4, 64)
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": width // head,
        "num_key_value_heads": width // head // 4,
    }


def _words(batch: int, length: int) -> Callable[[int, bool], Inputs]:
    """Make words of `batch` sequences; small: an eighth as many in each."""

    def inputs(number: int, small: bool) -> Inputs:
        random = torch.Generator().manual_seed(number)
        return {"input_ids": torch.randint(3, 30000, (batch, length // 8 if small else length), generator=random)}

    return inputs


def _token(layers: int, heads: int, cached: int, small_heads: tuple[int, int]) -> Callable[[int, bool], Inputs]:
    """Make one new token of one sequence, and a cache of at most `cached` tokens, of another length in each call.

    Args:
        layers, heads, cached: of the cache; heads are 64 wide.
        small_heads: how many there are in the small model's one layer, and how wide; its cache has an eighth of the tokens.
    """

    def inputs(number: int, small: bool) -> Inputs:
        random = torch.Generator().manual_seed(number)
        length = (cached // 8 if small else cached) - number % _LENGTHS
        count, width = small_heads if small else (heads, 64)
        lists = {
            name: [torch.randn(1, count, length, width, generator=random) for _ in range(1 if small else layers)]
            for name in ("keys", "values")
        }
        return {"input_ids": torch.randint(3, 30000, (1, 1), generator=random), **lists}

    return inputs


_CALLS = (
    _Call("BERT-base 1x128", _bert, _words(1, 128)),
    _Call("BERT-base 8x128", _bert, _words(8, 128)),
    _Call("GPT-2 1x256", _gpt2, _words(1, 256)),
    # The model's table of positions ends at 1,024.
    _Call("GPT-2 1x1 after 1023", _gpt2, _token(12, 12, 1023, (2, 32)), cached=True),
    _Call("Llama 4 layers 1x256", _llama, _words(1, 256)),
    _Call("Llama 4 layers 1x1 after 1024", _llama, _token(4, 4, 1024, (1, 16)), cached=True),
    _Call("Mixtral 4 layers 1x256", _mixtral, _words(1, 256)),
)


def rows(*, small: bool = False) -> Iterator[ModelRow]:
    """Yield all rows; `small`: of models with one layer of width 64, for a quick test.

    Mixtral is in fp32 alone: in bf16 its routers send tokens to other experts by a rounding, so that results cannot be compared.
    """
    for dtype in (torch.float32, torch.bfloat16):
        for call in _CALLS:
            if dtype == torch.float32 or call.build is not _mixtral:
                yield from (ModelRow(call, attention, dtype, small) for attention in _ATTENTIONS)


def chosen(only: Sequence[str], *, small: bool = False) -> list[ModelRow]:
    """Choose the rows whose name contains one of `only`; all where that is empty.

    Raises:
        CommandError: there is none, or the package transformers is missing.
    """
    if not models.here():
        raise CommandError(models.MISSING, where="--models", todo="pip install transformers")
    every = list(rows(small=small))
    found = [row for row in every if not only or any(text.lower() in row.name.lower() for text in only)]
    if not found:
        names = ", ".join(dict.fromkeys(row.call.title for row in every))
        raise CommandError(f"no row's name contains {' or '.join(only)}", where="--only", todo=f"there are: {names}")
    return found
