"""GPUs: Triton text, a binary for each class of calls, schedules that are timed where the GPU is here."""

from weft.plan.targets.triton.toolchain import TritonGpu

__all__ = ["TritonGpu"]
