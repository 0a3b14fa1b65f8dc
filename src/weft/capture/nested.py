"""Calls of nested graphs: what `torch.compiler.nested_compile_region` marks, which a graph of Dynamo's calls once for each use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

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


_runnable: WeakKeyDictionary[fx.GraphModule, fx.GraphModule] = WeakKeyDictionary()


def runnable(gm: fx.GraphModule) -> fx.GraphModule:
    """Returns a graph that computes what `gm` does and calls nested graphs as modules; `gm` itself where it calls none.

    PyTorch 2.11 does not run its own calls of them where gradients are recorded.
    """
    if not any(map(calls_nested_graph, gm.graph.nodes)):
        return gm
    if gm not in _runnable:
        graph = fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        made = fx.GraphModule(gm, graph)
        for node in filter(calls_nested_graph, graph.nodes):
            node.target = _called
            inner: Any = node.args[0]
            setattr(made, str(inner.target), runnable(gm.get_submodule(str(inner.target))))  # pyright: ignore[reportArgumentType]
        made.recompile()
        _runnable[gm] = made
    return _runnable[gm]


def _called(graph: fx.GraphModule, name: str, *operands: Any) -> Any:
    del name
    return graph(*operands)
