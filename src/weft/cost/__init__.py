"""cost: what an applied program moves and computes, and how long that takes.

In: a block program with places, the sizes, and a `Machine`. Out: `traffic`, bytes and floating-point
operations in closed form, equal to what the interpreter counts; and `estimate`, for each kernel a
`Cost` with the time no schedule can improve on and the time that is predicted; `closed_form`, what a kernel moves and holds with
sizes and blocks as symbols, and the fewest transfers for any memory; `concrete_schedule`, what it takes of a described `Chip`, and
`ranked`, how chips compare; `read_chip` reads a
chip that was measured. Nothing is run.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.cost.chip_file import read_chip
    from weft.cost.chips import CHIPS, chip
    from weft.cost.closed import ClosedForm, closed_form
    from weft.cost.concrete import ConcreteSchedule, concrete_schedule
    from weft.cost.corrections import Corrections, corrected, correcting, dependents, fused_at, in_levels
    from weft.cost.estimate import cost_of, estimate, total
    from weft.cost.gpu_bounds import Bounds, Breakdown, Cycles
    from weft.cost.gpu_bytes import DeviceBytes, device_bytes
    from weft.cost.gpu_limits import Resources, least_registers, resources, unfit, unfit_registers
    from weft.cost.gpu_model import Launch, estimate_gpu, launches_of
    from weft.cost.gpus import Gpu, gpu, published_chip
    from weft.cost.kernel_cost import Cost
    from weft.cost.least import least_seconds
    from weft.cost.machine import Machine, MemoryLevel
    from weft.cost.ranking import ChipTime, ranked
    from weft.cost.traffic import Traffic, by_kernel, on_chip_bytes, traffic

__all__ = [
    "CHIPS",
    "Bounds",
    "Breakdown",
    "ChipTime",
    "ClosedForm",
    "ConcreteSchedule",
    "Corrections",
    "Cost",
    "Cycles",
    "DeviceBytes",
    "Gpu",
    "Launch",
    "Machine",
    "MemoryLevel",
    "Resources",
    "Traffic",
    "by_kernel",
    "chip",
    "closed_form",
    "concrete_schedule",
    "corrected",
    "correcting",
    "cost_of",
    "dependents",
    "device_bytes",
    "estimate",
    "estimate_gpu",
    "fused_at",
    "gpu",
    "in_levels",
    "launches_of",
    "least_registers",
    "least_seconds",
    "on_chip_bytes",
    "published_chip",
    "ranked",
    "read_chip",
    "resources",
    "total",
    "traffic",
    "unfit",
    "unfit_registers",
]

export_lazily(__name__)
