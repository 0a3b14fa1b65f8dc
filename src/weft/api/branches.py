"""Decisions that functions make by the sizes of their arguments: at other sizes they may compute something else.

`x.sum() if len(x) < 50 else 2 * x.sum()` is one graph at 12 elements, which says nothing of the 50. PyTorch notes each such
decision where sizes are symbols; here it is asked whether it would have been another one at any of the sizes that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.source import TensorPropertySource  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.api.compile import torch_compile
from weft.api.optimize import own_code

_UNTRACED = (RuntimeError, ValueError, TypeError, AttributeError)


def decided_by_sizes(
    fn: Callable[..., Any], inputs: tuple[Any, ...], tried: Mapping[int, Collection[int]]
) -> str | None:
    """Traces `fn` with symbols for sizes, running it once, and finds a decision that all sizes tried have alike.

    Args:
        fn: a function that is one graph.
        inputs: its example.
        tried: by size in the example, the others at which the function was called.

    Returns:
        The decision in words; None where there is none, or it cannot be traced so.
    """
    found: list[str] = []

    def collect(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        found.extend(_decisions(gm, example, tried))
        return gm.forward

    try:
        with torch.no_grad():
            torch_compile(own_code(fn), backend=collect, dynamic=True)(*inputs)
    except _UNTRACED:
        return None
    return next(iter(found), None)


def _decisions(gm: torch.fx.GraphModule, example: Sequence[Any], tried: Mapping[int, Collection[int]]) -> Iterator[str]:
    every: list[Any] = [s for x in example for s in (x.shape if isinstance(x, torch.Tensor) else (x,))]
    sizes: list[Any] = [s for s in every if isinstance(s, torch.SymInt)]
    traced: Any = sizes[0].node.shape_env if sizes else None
    given: dict[Any, int] = {}
    for symbol, size in [(s.node.expr, s.node.hint) for s in sizes]:  # int(s) would decide what it is
        sources = traced.var_to_sources.get(symbol, ())
        if any(isinstance(source, TensorPropertySource) for source in sources):  # numbers stay as they are given
            given[symbol] = int(size)
    choices = [given | {symbol: other} for symbol, size in given.items() for other in tried.get(size, ())]
    guards: list[Any] = traced.guards if sizes else []
    for expr in (guard.expr for guard in guards):
        # Symbols that none of the arguments has as a size follow from others, mostly as a reshape demands.
        if expr.free_symbols <= given.keys() and not any(bool(expr.subs(choice)) is False for choice in choices):
            yield str(expr.subs({symbol: f"size_of_{size}" for symbol, size in given.items()}))
    most = max((size for others in tried.values() for size in others), default=0)
    for node in gm.graph.nodes:  # what is computed of sizes, without a decision: min(len(x), 64)
        if isinstance(node.meta.get("example_value"), torch.SymInt | torch.SymFloat | torch.SymBool):
            leaves: list[Any] = pytree.tree_leaves((node.args, node.kwargs))
            numbers = [x for x in leaves if type(x) is int]
            yield from (f"{node.name} of a size and {n}" for n in numbers if n >= most)
