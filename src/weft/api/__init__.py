"""api: the contract with users.

In: a PyTorch function or module. Out: a compiled callable (`compile`, the `weft` backend of torch.compile), or a `Program` that
can be run and asked (`optimize`): kernels, fallbacks, trace, explain. Options and errors are `weft.options`, `weft.errors`.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.api.background.asked import ready
    from weft.api.block_masks import block_mask, dense_mask
    from weft.api.compile import compile  # noqa: A004 - the public name, as torch.compile
    from weft.api.equivalent import equivalent
    from weft.api.optimize import optimize
    from weft.api.program import Program, load
    from weft.api.report import Report

__all__ = [
    "Program",
    "Report",
    "block_mask",
    "compile",
    "dense_mask",
    "equivalent",
    "load",
    "optimize",
    "ready",
]

export_lazily(__name__)
