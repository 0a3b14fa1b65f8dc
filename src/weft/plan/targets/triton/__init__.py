"""GPUs: Triton text, a binary for each class of calls, schedules that are timed where the GPU is here."""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.plan.targets.triton.bench import GpuBench
    from weft.plan.targets.triton.build import assembled_for, begin_any_length, called, printed, tf32_allowed
    from weft.plan.targets.triton.select import GpuWays
    from weft.plan.targets.triton.serving import BinaryServing
    from weft.plan.targets.triton.toolchain import TritonGpu
    from weft.plan.targets.triton.tune import go_on, started, tuned

__all__ = [
    "BinaryServing",
    "GpuBench",
    "GpuWays",
    "TritonGpu",
    "assembled_for",
    "begin_any_length",
    "called",
    "go_on",
    "printed",
    "started",
    "tf32_allowed",
    "tuned",
]

export_lazily(__name__)
