"""Tensors with a part of them replaced: the views that lead to the part, gone back one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree  # no public name

from weft.capture.describe import dense
from weft.capture.memory import Look
from weft.capture.tape import Tape

_ATEN: Any = torch.ops.aten
_PUT = {
    "aten.select.int": _ATEN.select_scatter.default,
    "aten.slice.Tensor": _ATEN.slice_scatter.default,
}
"""By overload of a view of a part: the call that puts the part back."""


def _back(step: Look, whole: torch.Tensor) -> tuple[Any, tuple[Any, ...]] | None:
    """Finds the call that leads from a view of all elements of `whole` back to it, and its further arguments; None without one."""
    match str(step.call):
        case "aten.alias.default" | "aten.detach.default":
            return _ATEN.alias.default, ()
        case "aten.permute.default":
            plain = [dim % whole.ndim for dim in step.args[0]]
            return _ATEN.permute.default, ([plain.index(dim) for dim in range(whole.ndim)],)
        case "aten.t.default" | "aten.transpose.int":
            return step.call, step.args
        case "aten.unsqueeze.default":
            return _ATEN.select.int, (step.args[0], 0)
        case "aten.squeeze.dim" | "aten.unflatten.int" | "aten.view.default":
            return _ATEN.reshape.default, (list(whole.shape),)
        case _:
            return None


def with_part(
    tape: Tape,
    whole: torch.Tensor,
    steps: Sequence[Look],
    part: torch.Tensor,
    in_parts: Callable[..., Any],
) -> Any:
    """Records `whole` with `part` in place of what the views `steps` show of it; NotImplemented where one has no way back.

    Args:
        tape: where it is recorded.
        whole: a known tensor.
        steps: views, each of what the one before shows.
        part: of the shape and element type of what the last one shows.
        in_parts: records a call as those that it consists of, or returns NotImplemented.
    """
    if not steps:
        return part
    step, *rest = steps
    put, back = _PUT.get(str(step.call)), _back(step, whole)
    if step.kwargs or (put is None and back is None):
        return NotImplemented
    if rest:
        shown = pytree.tree_leaves(tape.record(step.call, (whole, *step.args), {}))[step.result]
        part = with_part(tape, shown, rest, part, in_parts)
        if part is NotImplemented:
            return NotImplemented
    if put is not None:
        if not dense(whole):  # a view, or zeros expanded: its elements alone count
            whole = tape.record(_ATEN.clone.default, (whole,), {"memory_format": torch.contiguous_format})
        return in_parts(put, (whole, part, *step.args), {})
    assert back is not None
    return tape.record(back[0], (part, *back[1]), {})
