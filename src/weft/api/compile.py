"""weft.compile: looks at what it is given; `weft.api.compiled` makes what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar, overload

import torch

from weft.api.given import callable_of
from weft.errors import UnknownOptionError, named
from weft.options import Options, current
from weft.options import options as in_force
from weft.run.spread import processors

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)

_FEW = 2
_OPTIONS = frozenset(entry.name for entry in fields(Options))
# torch.compile's own type is not fully known to type checkers.
torch_compile: Callable[..., Any] = vars(torch)["compile"]


@overload
def compile(model: M, **options: Any) -> M: ...  # noqa: A001 - the public name, as torch.compile
@overload
def compile(model: Callable[P, R], **options: Any) -> Callable[P, R]: ...  # noqa: A001
@named("weft.compile")
def compile(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:  # noqa: A001
    """Compile a function or module, lazily, per class of shapes; it never fails where eager works.

    Args:
        model: a function or `torch.nn.Module` of ordinary PyTorch. A module comes back as a module with the same state; TorchScript
            comes back as it is, with a LeftToPyTorchWarning.
        options: fields of `weft.options`, in force whenever this callable compiles.

    Returns:
        What computes the same. Sizes are arguments of the kernels: after the second one a new length is not compiled again.

    Raises:
        ArgumentError: at once, for what cannot be called, and for a module's class, of which an instance is meant.
        UnknownOptionError: at once, for an option that does not exist.
        ShapeError: when called with shapes that eager refuses too; it names the user's line.
        CacheFolderError: when called, where the cache folder is not safe.
    """
    model = callable_of(model, "the first argument of weft.compile", "weft.compile({})")
    theirs = [name for name in options if name in inspect.signature(torch_compile).parameters and name not in _OPTIONS]
    if theirs:
        raise UnknownOptionError(
            f'weft.compile has no option "{theirs[0]}": it is one of torch.compile',
            todo=f'use torch.compile(fn, backend="weft", {theirs[0]}=...)',
        )
    with in_force(**options):  # an unknown option is an error now, not at the first call
        waits = current().compile != "background"
        # With two processors, each of two processes that import PyTorch side by side takes nearly as long as both in turn.
        if not waits and processors() > _FEW:
            _start()
        from weft.api.compiled import compiled  # which imports PyTorch's tracer

        if not waits:
            _start()
        return compiled(model, options)


def _start() -> None:
    """Start the process that compiles, if that was not done: it will be needed soon."""
    from weft.api.background.requests import QUEUE

    QUEUE.start()
