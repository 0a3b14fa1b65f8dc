"""What a graph holds, by name; and its tensors as bytes: each place in memory once, and back with the same strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the elements of `tensor`, which with its shape, strides and type say all of it."""
    once = _once(tensor.detach().resolve_conj().resolve_neg()).cpu().contiguous()
    flat = once.as_strided((once.numel(),), (1,), once.storage_offset())  # of one element the strides may be any
    return flat.view(torch.uint8).numpy().tobytes()


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with each place of the memory of `tensor` once, which shape and strides alone decide.

    Dimensions that stay in one place have one element. If others overlap, the view has all places from the first to the last
    one.
    """
    if 0 in tensor.shape:
        return tensor
    shape = [1 if step == 0 else length for length, step in zip(tensor.shape, tensor.stride(), strict=True)]
    tensor = tensor.as_strided(shape, tensor.stride(), tensor.storage_offset())
    reach = 1
    for length, step in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda each: each[1]):
        if length > 1 and step < reach:
            return tensor.as_strided((_reach(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())
        reach += (length - 1) * step
    return tensor


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Count the elements from the first to the last one of such a tensor."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0


def tensor_of(
    content: bytes, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Make the tensor whose `bytes_of` these are, on `device`, with these strides: a copy of a view has others there."""
    memory = torch.zeros(_reach(shape, stride), dtype=dtype, device=device)
    whole = memory.as_strided(shape, stride)
    places = _once(whole)
    dense = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    places.copy_(dense.view(dtype).reshape(places.shape))
    return whole


def held_by(gm: fx.GraphModule) -> dict[str, Any]:
    """Return what the nodes of `gm` find in it, by name."""
    return {str(n.target): at(gm, str(n.target)) for n in gm.graph.nodes if n.op in ("get_attr", "call_module")}


def at(gm: fx.GraphModule, name: str) -> Any:
    """Return what `gm` has at a dotted `name`."""
    found: Any = gm
    for part in name.split("."):
        found = getattr(found, part)
    return found
