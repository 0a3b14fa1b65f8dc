"""Whether a graph of Dynamo's has to do with gradients, which weft does not compute."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree  # no public name

from weft.capture.source import location_of
from weft.errors import Location


def differentiates(gm: fx.GraphModule) -> bool:
    """Tells whether the graph itself computes derivatives (`torch.func.grad`): in inference mode nothing is recorded for them."""
    return any(getattr(n.target, "__name__", "") == "_grad_increment_nesting" for n in gm.graph.nodes)


def gradient_line(gm: fx.GraphModule) -> tuple[bool, Location | None]:
    """Tells whether gradients may be asked for through a result of `gm`, and which line makes it."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    for node in output.all_input_nodes:
        leaves = pytree.tree_leaves(node.meta.get("example_value"))
        wanted = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if wanted and node.op != "placeholder":
            return True, location_of(node)
    return False, None


def gradients_possible(gm: fx.GraphModule) -> bool:
    """Tells whether gradients may be recorded on the way, also where no result asks for them."""
    on = torch.is_grad_enabled() or any(
        n.op == "call_function" and "set_grad_enabled" in str(n.target) and True in n.args for n in gm.graph.nodes
    )
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    return on and any(isinstance(e, torch.Tensor) and e.requires_grad for e in examples)
