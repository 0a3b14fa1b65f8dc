"""Graphs that PyTorch runs as they are, where that shows without recording them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree  # no public name
from torch.utils._python_dispatch import is_traceable_wrapper_subclass  # no public name

from weft.capture.captured import Captured, Fallback
from weft.capture.flags import forward_derivatives
from weft.capture.source import location_of
from weft.errors import Location

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The kinds of tensors that are what they seem: other subclasses may mean anything."""


def refused_at_once(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Captured | None:
    """Tells why PyTorch runs a graph, where that shows without recording it; None where it does not. Arguments as of `capture`."""
    wanted, where = gradient_line(gm)
    if wanted:
        return refused("gradients are asked for, and weft makes forward kernels only", where)
    if forward_derivatives():
        return refused("forward-mode derivatives are asked for, and weft makes forward kernels only", None)
    for example in example_inputs:
        if (
            isinstance(example, torch.Tensor)
            and type(example) not in PLAIN
            and not is_traceable_wrapper_subclass(example)
        ):
            return refused(f"an input is a {type(example).__name__}, not a plain tensor", None)
        if isinstance(example, torch.Tensor) and (example.is_mkldnn or example.is_nested or example.is_quantized):
            return refused(f"an input is a tensor of layout {example.layout} and type {example.dtype}", None)
        if isinstance(example, torch.Tensor) and example._is_zerotensor():  # noqa: SLF001 - no public name
            return refused(
                "an input is a tensor of zeros without memory, which PyTorch's tracing cannot tell from others", None
            )
    return None


def gradient_line(gm: fx.GraphModule) -> tuple[bool, Location | None]:
    """Tells whether gradients may be asked for through a result of `gm`, and which line makes it."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    for node in output.all_input_nodes:
        leaves = pytree.tree_leaves(node.meta.get("example_value"))
        wanted = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if wanted and node.op != "placeholder":
            return True, location_of(node)
    return False, None


def refused(reason: str, where: Location | None) -> Captured:
    """Tells that PyTorch runs a graph, why, and what line of the user's is the reason."""
    fallback = Fallback("graph", reason, where)
    return Captured(None, fallbacks=(fallback,), refused=fallback)
