"""plan: from a captured graph to the kernels that run in its place.

In: what `capture` gave, and example arguments. Out: a `Plan`: regions cut where one kernel ends, each lowered, fused, scheduled,
checked and built; PyTorch calls between them; and the callable that runs it all. What weft cannot do stays in PyTorch, with
its reason.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.plan.choose.region import compile_region
    from weft.plan.execute.instead import warn
    from weft.plan.execute.made import Plan, size_class
    from weft.plan.execute.plan import plan
    from weft.plan.execute.runner import Runner, has_written
    from weft.plan.execute.writes import described
    from weft.plan.measure.graphed import in_graphs
    from weft.plan.measure.lost import mostly_left
    from weft.plan.measure.measured import Measured
    from weft.plan.measure.stance import backend_is_forced, default_stance, is_default, may_compile, nearest
    from weft.plan.measure.trial import Trial, changing_sizes, faster, measured_before
    from weft.plan.targets.candidates import Example
    from weft.plan.targets.compiled import CompiledRegion, Considered
    from weft.plan.targets.home import gpu_of, home, of_device
    from weft.plan.targets.kernel import Kernel, counted

__all__ = [
    "CompiledRegion",
    "Considered",
    "Example",
    "Kernel",
    "Measured",
    "Plan",
    "Runner",
    "Trial",
    "backend_is_forced",
    "changing_sizes",
    "compile_region",
    "counted",
    "default_stance",
    "described",
    "faster",
    "gpu_of",
    "has_written",
    "home",
    "in_graphs",
    "is_default",
    "may_compile",
    "measured_before",
    "mostly_left",
    "nearest",
    "of_device",
    "plan",
    "size_class",
    "warn",
]

export_lazily(__name__)
