"""weft: plain PyTorch turned into a few fused, verified kernels.

`weft.compile(fn)` or `torch.compile(fn, backend="weft")` compiles lazily; `weft.optimize(fn, inputs)` now, and can be asked why.
"""

from importlib.metadata import PackageNotFoundError, version

from weft import errors
from weft.garbage import uncollected

with uncollected():  # it imports PyTorch's tracer
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
    from weft.options import options
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
