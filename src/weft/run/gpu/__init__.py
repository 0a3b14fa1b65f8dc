"""From printed Triton text to a launch on a GPU, without Triton at run time.

In: a Python module with a Triton kernel, its `GpuSignature`, a target. Out: a launcher (`build_gpu`). Triton compiles in processes
of its own (`assemble`), for the class that a call is of (`classes`); binaries are entries of the cache. On a warm start nothing is
compiled and Triton is not imported: `driver` loads and starts binaries through the CUDA driver. `side_by_side` compiles
many.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.run.gpu.assemble import ASSEMBLY_SECONDS, Assembled, Job, assemble, begun, side_by_side, warm
    from weft.run.gpu.build import (
        GpuBinary,
        GpuSource,
        build_gpu,
        exact_binaries,
        gpu_parts,
        recalled_gpu,
        restored_gpu,
    )
    from weft.run.gpu.classes import KernelClass, class_of
    from weft.run.gpu.interpreted import is_asked_for as interpreter_is_asked_for
    from weft.run.gpu.signature import GpuSignature

__all__ = [
    "ASSEMBLY_SECONDS",
    "Assembled",
    "GpuBinary",
    "GpuSignature",
    "GpuSource",
    "Job",
    "KernelClass",
    "assemble",
    "begun",
    "build_gpu",
    "class_of",
    "exact_binaries",
    "gpu_parts",
    "interpreter_is_asked_for",
    "recalled_gpu",
    "restored_gpu",
    "side_by_side",
    "warm",
]

export_lazily(__name__)
