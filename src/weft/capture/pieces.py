"""Nodes of a graph that PyTorch runs unchanged, because their calls cannot be recorded one by one.

A run without data shows what such a call gives and mostly what it writes into; of Triton kernels it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._higher_order_ops import triton_kernel_wrap  # no public name
from torch._ops import HigherOrderOperator  # no public name
from torch.utils import _python_dispatch  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.calls import version_of
from weft.capture.inplace import InPlaceCalls
from weft.capture.memory import Piece
from weft.capture.sizes import expression
from weft.capture.tape import Tape
from weft.errors import UnsupportedError

_wrap: Any = triton_kernel_wrap
_KERNEL = _wrap.triton_kernel_wrapper_mutation
"""A Triton kernel of the user's: without data nothing runs, and no tensor says that it was written into."""


def record_as_it_stands(
    node: fx.Node,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
    tape: Tape,
    in_place: InPlaceCalls,
) -> Any:
    """Records a node of the graph as one call into PyTorch, and returns what that gives without data.

    Args:
        node: the node; Dynamo found an example of what it gives.
        function: what it calls.
        args: the arguments by position.
        kwargs: those by name.
        error: why the calls that it consists of cannot be recorded.
        tape: where it is recorded.
        in_place: records it where it writes into its arguments.

    Raises:
        UnsupportedError: a result is a view of a tensor that was there before.
        Exception: PyTorch cannot run it without data.
    """
    name, example = _name_of(node), node.meta.get("example_value")
    args, kwargs = pytree.tree_map(tape.without_data, (tuple(args), dict(kwargs)))
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    before, forms = [version_of(leaf) for leaf in given], [_form_in_memory(leaf) for leaf in given]
    with cast("Any", _python_dispatch)._disable_current_modes():  # noqa: SLF001 - no public name
        try:
            result = tape.on_fakes(function, tuple(args), dict(kwargs))
        except Exception:
            if example is None:
                raise
            result = example
    if [_form_in_memory(leaf) for leaf in given] != forms:
        raise UnsupportedError(f"{name} changes the shape of an argument", where=tape.location)
    written = [leaf for leaf, version in zip(given, before, strict=True) if version_of(leaf) != version]
    written += may_write(function, args, kwargs, result)
    target = Piece(name, function, _said(node, error), _autocasts())
    if written:
        each_once = list({id(leaf): leaf for leaf in written}.values())
        in_place.effect(target, tuple(args), dict(kwargs), each_once, () if result is None else result)
        return result
    held = tape.held((tuple(args), kwargs))
    leaves = pytree.tree_leaves(result)
    fresh = list(map(tape.is_fresh, leaves))
    if any(new and tape.shows_known_memory(leaf) for new, leaf in zip(fresh, leaves, strict=True)):
        raise UnsupportedError(f"{name} returns a view of a tensor", where=tape.location)
    slots = tuple(tape.add(leaf) if new else None for new, leaf in zip(fresh, leaves, strict=True))
    for new, leaf in zip(fresh, leaves, strict=True):
        if new:
            tape.memory.own(leaf)
    tape.append(target, held, slots)
    return result


def _name_of(node: fx.Node) -> str:
    target: Any = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", node.name))


def _said(node: fx.Node, error: Exception) -> str:
    """Says to a user why PyTorch runs `node`."""
    if isinstance(node.target, HigherOrderOperator):
        return "it is a higher-order operation: it calls functions"
    return error.what if isinstance(error, UnsupportedError) else f"{type(error).__name__}: {error}".splitlines()[0]


def _autocasts() -> tuple[tuple[str, torch.dtype], ...]:
    """Lists the kinds of devices on which autocast is on, each with its element type."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)


def _form_in_memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Describes what a write leaves as it is, and a change of shape in place does not."""
    return tuple(map(expression, (*tensor.shape, *tensor.stride())))


def may_write(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> list[torch.Tensor]:
    """Finds the arguments that a call may write into, though a run without data left them as they are.

    That is what a Triton kernel of the user's stores to, as PyTorch finds in it; where such kernels are within a function that is
    called, or where the call gives no tensor, so that there is no other use in it: every tensor.
    """
    given = [leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    if function is _KERNEL:
        own = kwargs["kwargs"]
        names = _wrap.get_mutated_tensors(
            kwargs["kernel_idx"], kwargs["constant_args_idx"], own, kwargs["tma_descriptor_metadata"]
        )
        return [own[name] for name in names if isinstance(own[name], torch.Tensor)]
    gives = any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result))
    return given if not gives or any(map(_has_kernel, _functions((tuple(args), dict(kwargs))))) else []


def _functions(arguments: Any) -> Iterator[fx.GraphModule]:
    """Yields the graphs that a call is called with."""
    return (leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, fx.GraphModule))


def _has_kernel(gm: fx.GraphModule) -> bool:
    inner = (module for module in gm.modules() if isinstance(module, fx.GraphModule))
    return any(node.target is _KERNEL for module in inner for node in module.graph.nodes)
