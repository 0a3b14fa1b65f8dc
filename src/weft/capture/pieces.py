"""What a call that PyTorch runs as it stands writes into, as far as a run without data does not show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops import triton_kernel_wrap  # no public name
from torch.utils import _pytree as pytree  # no public name

_wrap: Any = triton_kernel_wrap
_KERNEL = _wrap.triton_kernel_wrapper_mutation
"""A Triton kernel of the user's: without data nothing runs, and no tensor says that it was written into."""


def may_write(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> list[torch.Tensor]:
    """The arguments that a call may write into, though a run without data left them as they are.

    That is what a Triton kernel of the user's stores to, as PyTorch finds in it; where such kernels are within a function that is
    called, or where the call gives no tensor, so that there is no other use in it: every tensor.
    """
    given = [leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    if function is _KERNEL:
        own = kwargs["kwargs"]
        names = _wrap.get_mutated_tensors(
            kwargs["kernel_idx"], kwargs["constant_args_idx"], own, kwargs["tma_descriptor_metadata"]
        )
        return [own[name] for name in names if isinstance(own[name], torch.Tensor)]
    gives = any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result))
    return given if not gives or any(map(_has_kernel, _functions((tuple(args), dict(kwargs))))) else []


def _functions(arguments: Any) -> Iterator[fx.GraphModule]:
    """The graphs that a call is called with."""
    return (leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, fx.GraphModule))


def _has_kernel(gm: fx.GraphModule) -> bool:
    inner = (module for module in gm.modules() if isinstance(module, fx.GraphModule))
    return any(node.target is _KERNEL for module in inner for node in module.graph.nodes)
