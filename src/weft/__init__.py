"""weft: plain PyTorch turned into a few fused, verified kernels.

`weft.compile(fn)` or `torch.compile(fn, backend="weft")` compiles lazily; `weft.optimize(fn, inputs)` now, and can be asked why.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from weft import errors
from weft.garbage import uncollected
from weft.lazy import export_lazily
from weft.options import options

with uncollected():
    import_module("weft.run.cache")  # which makes its entries a kind of PyTorch's cache artifacts

if TYPE_CHECKING:
    from weft.api import (
        Program,
        Report,
        block_mask,
        compile,  # noqa: A004 - as torch.compile
        dense_mask,
        equivalent,
        load,
        optimize,
        ready,
    )
    from weft.run.stats import snapshot as stats
    from weft.verify import Draws, Judgement, Verdict, judge

try:
    __version__ = version("weft")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Draws",
    "Judgement",
    "Program",
    "Report",
    "Verdict",
    "__version__",
    "block_mask",
    "compile",
    "dense_mask",
    "equivalent",
    "errors",
    "judge",
    "load",
    "optimize",
    "options",
    "ready",
    "stats",
]

export_lazily(__name__)
