"""plan: from a captured graph to the kernels that run in its place.

In: what `capture` gave, and example arguments. Out: a `Plan`: regions cut where one kernel ends, each lowered, fused, scheduled,
checked and built; PyTorch calls between them; and the callable that runs it all. What weft cannot do stays in PyTorch, with
its reason.
"""

from weft.plan.candidates import Considered, Example
from weft.plan.executable import Plan, plan
from weft.plan.graphed import in_graphs
from weft.plan.home import home, of_device
from weft.plan.instead import warn
from weft.plan.kernel import Kernel
from weft.plan.lost import mostly_left
from weft.plan.measured import Measured
from weft.plan.region import CompiledRegion, compile_region
from weft.plan.runner import Runner, has_written
from weft.plan.trial import Trial, changing_sizes, faster, measured_before
from weft.plan.writes import described

__all__ = [
    "CompiledRegion",
    "Considered",
    "Example",
    "Kernel",
    "Measured",
    "Plan",
    "Runner",
    "Trial",
    "changing_sizes",
    "compile_region",
    "described",
    "faster",
    "has_written",
    "home",
    "in_graphs",
    "measured_before",
    "mostly_left",
    "of_device",
    "plan",
    "warn",
]
