"""Checks of what users pass to weft's functions; the error says what the function takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch

from weft.errors import ArgumentError, UnsupportedError

_ALONE = (str, bytes, Mapping, set, frozenset)
"""What can be iterated over, but is no list of arguments."""


def callable_of(fn: Any, called: str, use: str) -> Callable[..., Any]:
    """Returns `fn`, the argument `called` so, as what can be traced; of a class that is no module, a function that
    makes an instance.

    Args:
        fn: a function, a module, or another callable.
        called: of which argument errors speak.
        use: how it is handed over, with "{}" in its place.

    Raises:
        ArgumentError: it cannot be called, or it is the class of a module, which PyTorch's tracing would change.
    """
    if not callable(fn):
        raise ArgumentError(
            f"{called} is {kind_of(fn)}, not a function or module",
            todo="pass the function itself, fn, not what it returns, fn(x)",
        )
    if not isinstance(fn, type):
        return fn
    made = cast("Callable[..., Any]", fn)
    if issubclass(fn, torch.nn.Module):
        raise ArgumentError(
            f"{called} is the class {fn.__name__}, not a module",
            todo=f"pass an instance: {use.format(f'{fn.__name__}(...)')}",
        )

    @functools.wraps(made, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        return made(*args, **kwargs)

    return make


def demand_traceable(fn: Callable[..., Any]) -> None:
    """Raises an UnsupportedError where PyTorch's tracing takes nothing of `fn`: it is TorchScript."""
    if isinstance(fn, torch.jit.ScriptModule | torch.ScriptMethod):
        raise UnsupportedError(
            "PyTorch cannot trace TorchScript (torch.jit.script, torch.jit.trace, torch.jit.load)",
            todo="compile the module or function that it was made from",
        )


def inputs_of(example_inputs: Any, function: str) -> tuple[Any, ...]:
    """Gives the positional arguments that `example_inputs` is: a single tensor stands for one.

    Raises:
        ArgumentError: it is no list of arguments.
    """
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    array = hasattr(example_inputs, "__array__")
    if array or isinstance(example_inputs, _ALONE) or not isinstance(example_inputs, Iterable):
        one = "x" if array or not isinstance(example_inputs, Mapping) else "inputs['x']"
        raise ArgumentError(
            f"the example inputs are {kind_of(example_inputs)}, not the function's arguments",
            todo=f"give them as a tuple, in the function's order: {function}, ({one}, ...))",
        )
    return tuple(cast("Iterable[Any]", example_inputs))


def demand_fits(fn: Callable[..., Any], inputs: Sequence[Any], function: str) -> None:
    """Refuse arguments that `fn` does not take so many of.

    Raises:
        ArgumentError: there are too few of them, or too many.
    """
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):  # it says nothing of its arguments
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise ArgumentError(
            f"{name}{signature} cannot be called with {len(inputs)} arguments: {error}",
            todo=f"give {function} the example inputs as a tuple of what {name} takes, in its order",
        ) from None


def kind_of(value: Any) -> str:
    """Says of which type `value` is, for an error's text, with the value itself where that is short."""
    text = repr(value)
    shown = f" ({text})" if len(text) <= 40 else ""
    return f"of type {type(value).__name__}{shown}"
