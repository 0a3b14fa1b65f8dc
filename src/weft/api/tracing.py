"""Dynamo's tracing for weft: an integer among several indices stays a run-time number, and recurrent layers are calls.

PyTorch's indexing asks a symbolic number among several indices (`x[:, pos]`) for its value, and what is traced is for that value
alone: another position would be another compile, for good. Where the number is the only index (`x[pos]`), Dynamo itself reads it as
`torch.select`, which keeps it. For graphs that go to weft, and for no other, numbers among several indices are traced so too.

Dynamo by default traces no function that uses a layer of `torch.nn.LSTM`, `GRU` or `RNN`: all of it runs in PyTorch, without a
word. It can (`torch._dynamo.config.allow_rnn`), and such a layer becomes one call of the graph, which weft leaves to PyTorch.

Dynamo has no public place for either: methods of its `OutputGraph` and `VariableBuilder` are wrapped when this module is imported,
but only under versions of PyTorch whose methods are known to be what the wrappers take them for. Under another one nothing is
wrapped: results are the same, such a number is a constant of what is compiled (`weft.api.recompiles` says so, and `weft doctor`),
and functions with recurrent layers run in PyTorch.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import fx
from torch._guards import TracingContext

from weft.tracer import (
    AttributeMutationExisting,
    GlobalStateSource,
    GuardBuilder,
    InstructionTranslator,
    OutputGraph,
    ValueMutationExisting,
    builder,
    config,
)

_KNOWN = (2, 11), (2, 13)
"""The first and the last version of PyTorch whose `OutputGraph.create_proxy` was read and tested (`tests/api/test_numbers.py`)."""

B = TypeVar("B", bound=Callable[..., Any])
_MARK = "_weft_keeps_numbers"
_LAYERS = ("compiler_fn", "__wrapped__", "func")
"""Where PyTorch's wrappers, and partial functions, hold what they call."""
_MOST_LAYERS = 16
"""Other libraries' backends may have any attribute, themselves among them (a mock has all)."""
_INDEXING = (operator.getitem, operator.setitem)


def traced_for(backend: B) -> B:
    """Marks `backend` as weft's: indices in its graphs stay run-time arguments."""
    setattr(backend, _MARK, True)
    return backend


def changes_objects() -> bool:
    """Tell whether the function that Dynamo is tracing now changes objects of Python's: calls of its graph alone would not."""
    effects: Any = cast("Any", InstructionTranslator.current_tx()).output.side_effects
    kinds = (AttributeMutationExisting, ValueMutationExisting)
    return any(isinstance(v.mutation_type, kinds) and effects.is_modified(v) for v in effects.id_to_variable.values())


def guard_forward_derivatives() -> None:
    """Lets Dynamo trace anew where forward-mode derivatives are asked for, which it does not guard by itself.

    To be called while a backend compiles; elsewhere there are no guards, and nothing happens.
    """
    tracing = TracingContext.try_get()
    if tracing is not None:
        tracing.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(cast("Any", GuardBuilder).DUAL_LEVEL))


def _is_wefts(compiler: Any) -> bool:
    for _ in range(_MOST_LAYERS):
        if compiler is None:
            return False
        if getattr(compiler, _MARK, False) is True:  # an attribute: other libraries' backends need not be hashable
            return True
        compiler = next((getattr(compiler, name) for name in _LAYERS if hasattr(compiler, name)), None)
    return False


def _selecting(graph: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns `args` of an indexing, with the tensor viewed at those indices that are numbers; None where PyTorch must
    read them itself.

    It has where no index is a number of the run, where one is a tensor, a list or a mask, which moves dimensions, and where
    Dynamo must see that the tensor itself begins to need gradients.
    """
    seen, key, *value = args
    items: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    numbers = [isinstance(_example(item), torch.SymInt) for item in items]
    taking = [item is not None and item is not ... for item in items]  # not ==, which a proxy traces
    plain = [
        not takes or number or type(item) in (int, slice)
        for takes, number, item in zip(taking, numbers, items, strict=True)
    ]
    tensor = _example(seen)
    if not any(numbers) or not all(plain) or not isinstance(tensor, torch.Tensor):
        return None
    if any(getattr(_example(v), "requires_grad", False) for v in value):
        return None
    dots = [i for i, item in enumerate(items) if item is ...]
    others = tensor.ndim - sum(taking)
    if others < 0 or len(dots) > 1:
        return None  # PyTorch says what is wrong
    dims = [sum(taking[:i]) + (others if dots and i > dots[0] else 0) for i in range(len(items))]
    for item, number, dim in reversed(list(zip(items, numbers, dims, strict=True))):
        if number:
            view = graph.create_proxy("call_function", torch.select, (seen, dim, item), {})
            seen = cast("Any", builder).wrap_fx_proxy(graph.current_tx, view).as_proxy()
    return seen, tuple(item for item, number in zip(items, numbers, strict=True) if not number), *value


def _example(value: Any) -> Any:
    return value.node.meta.get("example_value") if isinstance(value, fx.Proxy) else None


def keeps_numbers(version: str = torch.__version__) -> bool:
    """Tells whether Dynamo of this version of PyTorch is made to keep numbers among several indices."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and _KNOWN[0] <= (int(found[1]), int(found[2])) <= _KNOWN[1]


def _keep_numbers() -> None:
    """Lets Dynamo trace indices as this module says, if its version is known."""
    if not keeps_numbers():
        return
    create: Any = OutputGraph.create_proxy

    @functools.wraps(create)
    def creating(self: Any, kind: Any, target: Any, args: Any, kwargs: Any, **more: Any) -> Any:
        if any(target is known for known in _INDEXING) and _is_wefts(self.compiler_fn):
            args = _selecting(self, args) or args
        return create(self, kind, target, args, kwargs, **more)

    cast("Any", OutputGraph).create_proxy = creating


def _allow_recurrent() -> None:
    """Let Dynamo trace functions that use recurrent layers, if its version is known."""
    if not keeps_numbers():
        return
    wrap: Any = builder.VariableBuilder.wrap_module

    @functools.wraps(wrap)
    def wrapping(self: Any, value: Any) -> Any:
        if not isinstance(value, torch.nn.RNNBase) or not _is_wefts(self.tx.output.compiler_fn):
            return wrap(self, value)
        with cast("Any", config).patch(allow_rnn=True):
            return wrap(self, value)

    cast("Any", builder.VariableBuilder).wrap_module = wrapping


_keep_numbers()
_allow_recurrent()
