"""What one kernel costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """What one kernel costs.

    Attributes:
        bytes_read, bytes_written: what crosses between global memory and blocks: an element that is
            loaded twice counts twice.
        flops: floating-point operations.
        unique_bytes: of the kernel's inputs and outputs, each element once.
        floor_seconds: `unique_bytes` and `flops` at the machine's rates as the model has them,
            whichever takes longer: what no schedule can improve on.
        predicted_seconds: for this schedule.
        device_read, device_written: bytes between a GPU's memory and its second-level cache, which is empty before
            (`weft.cost.gpu_bytes`); 0 where they were not asked for, and on a CPU.
        thread_blocks: of the launch with most of them; 0 on a CPU.
    """

    bytes_read: int
    bytes_written: int
    flops: int
    unique_bytes: int
    floor_seconds: float
    predicted_seconds: float
    device_read: int = 0
    device_written: int = 0
    thread_blocks: int = 0

    def __str__(self) -> str:
        return (
            f"reads {_bytes(self.bytes_read)}, writes {_bytes(self.bytes_written)} "
            f"({_bytes(self.unique_bytes)} once), {self.flops:,} flops; "
            f"predicted {self.predicted_seconds * 1e3:.3g} ms, "
            f"floor {self.floor_seconds * 1e3:.3g} ms"
        )


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
