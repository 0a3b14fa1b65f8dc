"""A graph of Dynamo's as text that says all that its plan depends on: the key under which that plan is kept.

Only graphs of fixed sizes have such a text, whose functions are PyTorch's own and which hold no large tensors. A text that said too
little would give a graph another one's kernels, so whatever is not known to be said whole has none.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any, cast

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket  # no public name
from torch._subclasses.fake_tensor import FakeTensor  # no public name
from torch.fx.node import _get_qualified_name  # pyright: ignore[reportPrivateUsage] - no public name
from torch.utils import _pytree as pytree  # no public name

from weft.api.background.graphs import forms_of
from weft.api.held import at, bytes_of
from weft.capture import PLAIN, location_of
from weft.errors import UnsupportedError
from weft.options import current

_MOST_BYTES = 4096
"""Bytes of a tensor that a graph holds, up to which its elements are a part of the text."""
_ROOTS = ("torch", "_operator", "math")
"""Modules whose functions a version of PyTorch and Python says all about."""
_SAID_OTHERWISE = frozenset(("cache_dir", "log", "progress", "defects", "compile"))
"""Options on which no plan depends."""
_ATOMS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_NUMBERS = frozenset((int, float, bool, complex, str, type(None)))
_SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool


def graph_text(gm: fx.GraphModule, arguments: Sequence[Any]) -> str | None:
    """Write all that the plan of a graph depends on in this version of weft and on this machine; None where that has no text.

    Args:
        gm: the graph; its placeholders carry Dynamo's fake tensors.
        arguments: what Dynamo calls the backend with.
    """
    try:
        if any(type(each) not in PLAIN for each in arguments):
            return None
        lines = [*_lines(gm), repr(forms_of(arguments)), *_settings()]
    except (UnsupportedError, AttributeError):  # AttributeError: a function is not found by its name
        return None
    return "\n".join(lines)


def _settings() -> Iterator[str]:
    """Say how PyTorch and weft are set."""
    options = current()
    yield repr({f.name: getattr(options, f.name) for f in fields(options) if f.name not in _SAID_OTHERWISE})
    state: Any = cast("Any", torch)._C._dynamo.guards.GlobalStateGuard()  # noqa: SLF001 - no public name
    yield repr(state.__getstate__())
    cuda = torch.backends.cuda
    attention = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
    modes = torch.is_inference_mode_enabled(), str(torch.get_default_device()), torch.get_float32_matmul_precision()
    yield repr((attention, cast("Any", torch).backends.mkldnn.enabled, modes))


def _lines(gm: fx.GraphModule) -> Iterator[str]:
    places = {node: number for number, node in enumerate(gm.graph.nodes)}
    for node in gm.graph.nodes:
        example = node.meta.get("example_value")
        if any(isinstance(leaf, _SYMBOLIC) for leaf in pytree.tree_leaves(example)):
            raise UnsupportedError("a number that only a call tells")
        match node.op:
            case "placeholder":
                what = _placeholder(example)
            case "get_attr":
                what = _tensor(at(gm, str(node.target)))
            case "call_function":
                what = _function(node.target)
            case "call_method" | "output":
                what = str(node.target)
            case _:
                raise UnsupportedError(f"a node that is a {node.op}")
        given = f"{_value(node.args, places)} {_value(node.kwargs, places)}"
        yield f"{node.name} = {node.op} {what} {given} {location_of(node)!r}"


def _placeholder(example: Any) -> str:
    if not isinstance(example, FakeTensor) or example.layout is not torch.strided:
        raise UnsupportedError("an input that is no plain tensor")
    if any(isinstance(size, _SYMBOLIC) for size in (*example.shape, *example.stride(), example.storage_offset())):
        raise UnsupportedError("a size that only a call tells")
    return repr((_look(example), example.requires_grad, example.is_conj(), example.is_neg()))


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), str(tensor.dtype), str(tensor.device)


def _tensor(held: Any) -> str:
    plain = type(held) in PLAIN and not isinstance(held, FakeTensor) and held.layout is torch.strided
    if not plain or held.numel() * held.element_size() > _MOST_BYTES:
        raise UnsupportedError("something that the graph holds and that is no small tensor")
    return repr((_look(held), held.requires_grad, sha256(bytes_of(held)).hexdigest()))


def _function(target: Any) -> str:
    """Name a function by which it is found again; raises UnsupportedError, or AttributeError, for one that is not PyTorch's."""
    if isinstance(target, OpOverload):
        if target.namespace != "aten":
            raise UnsupportedError("an operation that is not PyTorch's own")
        return f"operation {target.name()}"
    if isinstance(target, HigherOrderOperator | OpOverloadPacket):
        raise UnsupportedError("an operation on graphs")
    name = cast("Any", _get_qualified_name)(target)
    root, *path = name.split(".")
    found: Any = sys.modules[root] if root in _ROOTS else builtins
    for part in path if root in _ROOTS else (root, *path):
        found = getattr(found, part)
    if found is not target:
        raise UnsupportedError("a function that is not found by its name")
    return name


def _value(value: Any, places: Mapping[fx.Node, int]) -> str:
    """Write an argument of a call, such that 1, True, 1.0 and "1" differ."""
    kind = cast("type[Any]", type(value))
    if kind in _NUMBERS:
        return repr(value)
    if isinstance(value, fx.Node):
        return f"%{places[value]}"
    if isinstance(value, _ATOMS):
        return str(value)
    if value is ...:
        return "..."
    if isinstance(value, slice):
        bounds = cast("slice[Any, Any, Any]", value)
        return f"slice{_value((bounds.start, bounds.stop, bounds.step), places)}"
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return f"{{{', '.join(f'{_value(name, places)}={_value(each, places)}' for name, each in pairs)}}}"
    if isinstance(value, tuple | list):
        inside = ", ".join(_value(each, places) for each in cast("Sequence[Any]", value))
        return f"{kind.__name__}({inside})"
    raise UnsupportedError(f"an argument of type {kind.__name__}")
