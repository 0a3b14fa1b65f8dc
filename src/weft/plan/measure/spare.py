"""Arguments for calls that are repeated: each call finds what the first one found."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ALIGNED = 64
"""Bytes: PyTorch aligns what it allocates to as many, and kernels may differ by how their operands are aligned."""


@dataclass(frozen=True, slots=True, eq=False)
class Spare:
    """Arguments of a graph, with copies of those that it writes into.

    Arguments that lie in one storage with one that is written into lie so here too, in a copy of what they span of it.

    Attributes:
        arguments: what to call the graph with.
        memory: the copies, each with what it is a copy of.
    """

    arguments: tuple[Any, ...]
    memory: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    def restore(self) -> None:
        """Writes what the user's tensors hold into the copies; on a GPU, on its current stream."""
        with torch.no_grad():
            for copy, own in self.memory:
                copy.copy_(own)

    def left(self, results: Sequence[Any]) -> list[Any]:
        """Returns a call's results and the arguments that lie where it writes, as it leaves them."""
        if not self.memory:
            return list(results)
        kept = [r.clone() if isinstance(r, torch.Tensor) else r for r in results]  # the next call writes there
        return kept + [argument.clone() for argument in self.written]

    @property
    def written(self) -> list[torch.Tensor]:
        """The arguments that lie where a call writes."""
        places = {copy.untyped_storage().data_ptr() for copy, _ in self.memory}
        tensors = [a for a in self.arguments if isinstance(a, torch.Tensor) and a.layout is torch.strided]
        return [a for a in tensors if a.untyped_storage().data_ptr() in places]


def spare(arguments: Sequence[Any], written: Collection[int]) -> Spare:
    """Puts copies in the place of those `arguments` whose numbers are `written`.

    Raises:
        OutOfMemoryError: a GPU has no room for the copies.
    """
    found, memory = list(arguments), list[tuple[torch.Tensor, torch.Tensor]]()
    groups: dict[tuple[torch.device, int], list[int]] = {}
    for index, argument in enumerate(arguments):
        if _has_plain_memory(argument):
            storage = argument.untyped_storage()
            groups.setdefault((storage.device, storage.data_ptr()), []).append(index)
        elif index in written:
            found[index] = argument.clone()
            memory.append((found[index], argument))
    for group in groups.values():
        if not set(written).isdisjoint(group):
            copies, pair = _copied([arguments[index] for index in group])
            memory.append(pair)
            for index, copy in zip(group, copies, strict=True):
                found[index] = copy
    return Spare(tuple(found), tuple(memory))


def _has_plain_memory(argument: Any) -> bool:
    plain = type(argument) in (torch.Tensor, torch.nn.Parameter)
    return plain and argument.layout is torch.strided and not argument.is_quantized


def _copied(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Copies tensors of one storage, so that the copies lie to one another as these; returned with the bytes of both."""
    spans = [_span(tensor) for tensor in tensors]
    start = min(first for first, _ in spans) // _ALIGNED * _ALIGNED
    size = max(end for _, end in spans) - start
    own = _over(tensors[0].untyped_storage(), torch.uint8, start, (size,), (1,))
    copy = own.clone()
    made = [
        _as(each, _over(copy.untyped_storage(), each.dtype, first - start, each.shape, each.stride()))
        for each, (first, _) in zip(tensors, spans, strict=True)
    ]
    return made, (copy, own)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the bytes of the storage from the first element to the end of the last one."""
    width = tensor.element_size()
    first = int(tensor.storage_offset()) * width
    if not tensor.numel():
        return first, first
    last: int = sum((int(size) - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * width


def _over(
    storage: torch.UntypedStorage, dtype: torch.dtype, start: int, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    return empty.set_(storage, start // dtype.itemsize, tuple(shape), tuple(strides))


def _as(tensor: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """Returns `copy` with the conjugate and negative bits of `tensor`, whose memory it copies."""
    copy = copy.conj() if tensor.is_conj() else copy
    return vars(torch)["_neg_view"](copy) if tensor.is_neg() else copy  # no public name
