"""GPUs: Triton text, a binary for each class of calls, schedules that are timed where the GPU is here."""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.plan.targets.triton.toolchain import TritonGpu

__all__ = ["TritonGpu"]

export_lazily(__name__)
