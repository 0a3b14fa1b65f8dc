"""Calls of nested graphs: what `torch.compiler.nested_compile_region` marks, which a graph of Dynamo's calls once for each use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx
from torch._higher_order_ops import invoke_subgraph  # no public name

_INVOKE: Any = invoke_subgraph


def calls_nested_graph(node: fx.Node) -> bool:
    """Tells whether a node calls a nested graph, with the arguments that follow the graph and its name."""
    return node.op == "call_function" and node.target is _INVOKE


def every_node(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """Yields the nodes of a graph, and of the nested graphs that it calls, each graph once."""
    yield from gm.graph.nodes
    calls: list[Any] = list(filter(calls_nested_graph, gm.graph.nodes))
    nested: set[str] = {str(node.args[0].target) for node in calls}
    for name in sorted(nested):
        yield from every_node(gm.get_submodule(name))  # pyright: ignore[reportArgumentType]
