"""Finding the error that eager raises for operands that do not go together, with the user's line.

Fake tensors let some of these through (a matmul of float32 and bfloat16): such a graph runs in PyTorch, which then raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.elementwise import is_elementwise
from weft.capture.recording import by_name
from weft.capture.sizes import in_example, known
from weft.capture.source import location_of
from weft.errors import ShapeError, UnimplementedError, UnsupportedError

# Arguments that are of a type of their own: they say which elements.
_CHOOSING = ("index", "indices", "mask", "attn_mask", "condition")
_PYTORCHS = ("torch", "aten", "prims", "_operator", "math", "builtins")


def refusal(gm: fx.GraphModule, arguments: Sequence[Any], error: BaseException) -> ShapeError | None:
    """Finds the error to raise instead of `error`, with which a run of `gm` on `arguments` ended in PyTorch.

    A run on ones finds out whether eager refuses the operands' kinds, and where: if it ends with the same message, no number
    can be at fault.

    Returns:
        None where the numbers matter (an index out of range), or where a run on ones might do more than compute.
    """
    if type(error) not in (RuntimeError, NotImplementedError) or not all(map(_only_computes, gm.graph.nodes)):
        return None
    ones = [torch.ones_like(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    replayed = _Replayed(gm)
    try:
        with torch.no_grad(), cast("Any", torch.random).fork_rng(devices=()):
            replayed.run(*ones)
    except Exception as again:  # noqa: BLE001 - ones may be no arguments at all for the graph, which says nothing
        if type(again) is type(error) and str(again) == str(error):
            kind = UnimplementedError if isinstance(error, NotImplementedError) else ShapeError
            return kind(str(error), where=location_of(replayed.node))
    return None


def refused_by_eager(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Says why a call on fake tensors of several element types is not compiled: eager refuses it, or gives another
    type; else None.

    Some operations promote their operands, some take half precision with float32, some neither; what weft or fake tensors make of
    one knows nothing of that, and a kernel would read the result as numbers of a type that they are not of. So eager is asked, with
    zeros.
    """
    given_by = {name: value for name, (value, _) in by_name(func, args, kwargs).items() if name not in _CHOOSING}
    named = {name: value for name, value in given_by.items() if name != "target" or not _are_classes(value)}
    kinds = {leaf.dtype for leaf in pytree.tree_leaves(named) if isinstance(leaf, torch.Tensor)}
    promotes = torch.Tag.pointwise in func.tags or is_elementwise(str(func.overloadpacket))
    if len(kinds) < 2 or promotes or func.namespace != "aten":
        return None
    try:
        zeros = pytree.tree_map(_as_zeros, (args, kwargs))
    except UnsupportedError:
        return None
    try:
        with torch.no_grad():
            given = _types(func(*zeros[0], **zeros[1]))
    except (RuntimeError, IndexError) as error:
        said, _, _ = str(error).partition("\n")
        return f"eager refuses it: {said}"
    with torch.inference_mode(False), torch.no_grad():
        traced = _types(func(*args, **kwargs))
    return None if given == traced else f"it gives {', '.join(given)} where PyTorch's tracing has {', '.join(traced)}"


def _are_classes(target: Any) -> bool:
    return isinstance(target, torch.Tensor) and not target.is_floating_point()


def _types(result: Any) -> list[str]:
    return [
        str(leaf.dtype).removeprefix("torch.") for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)
    ]


def _as_zeros(leaf: Any) -> Any:
    """Makes a tensor of zeros for a fake one, laid out as it is, and the example's number for a symbolic one."""
    match leaf:
        case torch.Tensor():
            if not all(map(known, (*leaf.shape, *leaf.stride()))):
                raise UnsupportedError("a size depends on the content of a tensor")
            sizes, strides = [in_example(n) for n in leaf.shape], [in_example(n) for n in leaf.stride()]
            return torch.empty_strided(sizes, strides, dtype=leaf.dtype, device=leaf.device).zero_()
        case torch.SymInt():
            return in_example(leaf)
        case _:
            return leaf


class _Replayed(fx.Interpreter):
    """Knows which node it is at."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.node: fx.Node | None = None
        self.extra_traceback = False  # it would change the message

    def run_node(self, n: fx.Node) -> Any:
        self.node = n
        return super().run_node(n)


def _only_computes(node: fx.Node) -> bool:
    """Tells whether `node` can be run once more without anyone noticing: it is PyTorch's own, and reads nothing but arguments."""
    if node.op == "call_function":
        owner = str(getattr(node.target, "__module__", "")).removeprefix("torch._ops.")
        # A graph that ends early would leave autocast on.
        return owner.partition(".")[0] in _PYTORCHS and not owner.startswith("torch.amp")
    return node.op in ("placeholder", "call_method", "output")
