"""Calls that need not go through PyTorch's tracing: where PyTorch as it is won every trial, the function itself is called.

What a function of a few microseconds costs under torch.compile is mostly the way in: guards and wrappers, ten microseconds. A
function may always be called as it is; that this is also the fastest is known of arguments that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from weft.api.backend import backend, fastest
from weft.plan import Runner, Trial

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (int, float, bool, str, type(None))
_MOST = 256
"""Sets of arguments that are known; past it, arguments that change with each call would only cost memory."""


@dataclass(eq=False)
class Watched:
    """weft's backend with these options for one function, and the trials that it gave.

    Attributes:
        options: fields of `weft.options`.
        direct: the arguments, as `_form` gives them, for which the function itself is called.
        open: False once a graph runs otherwise than in PyTorch, or without a trial.
    """

    options: Mapping[str, Any]
    direct: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])
    open: bool = True
    func: Callable[..., Any] = backend
    _trials: list[Trial] = field(default_factory=list[Trial])

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Returns what runs in place of a graph."""
        return fastest(gm, example_inputs, self.options, self._note)

    def _note(self, run: Runner, eager: Runner) -> None:
        if isinstance(run, Trial):
            self._trials.append(run)
        elif run is not eager or torch.is_grad_enabled():
            self.open = False  # weft's kernels untried; or PyTorch, but weft where no gradients are asked for

    def __reduce__(self) -> tuple[Any, ...]:
        """Gives copies, and what a pickle gives, trials of their own."""
        return Watched, (self.options,)

    def is_direct(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Tells whether the function itself is to be called with these arguments; not where it is traced into another graph."""
        return not torch.compiler.is_compiling() and _form(args, kwargs) in self.direct

    def learn(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Notes arguments that the function was called with, if PyTorch won all trials so far."""
        if torch.compiler.is_compiling():
            return
        chosen = [run is trial.eager for trial in tuple(self._trials) for run in tuple(trial.chosen.values())]
        self.open = self.open and all(chosen) and len(self.direct) < _MOST
        form = _form(args, kwargs)
        if self.open and chosen and form is not None:
            self.direct.add(form)


def _form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Returns what tells arguments apart that may be faster or slower than others; None where there are more than
    tensors and numbers.
    """
    form: list[Any] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = cast("type[Any]", type(value))
        if kind in _TENSORS:
            tensor = cast("torch.Tensor", value)
            if tensor.is_nested:
                return None  # it has no sizes
            form += (tensor.shape, tensor.dtype)
        elif kind in _PLAIN:
            form += (kind, value)
        else:
            return None
    return (*form, *kwargs) if kwargs else tuple(form)
