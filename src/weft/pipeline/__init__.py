"""pipeline: every pass of weft in order, families of candidates, and traces that can be applied again.

In: a tensor program. Out: block programs without places, each with the steps that made it. `order` is the one file that lists
passes; what selects, explains, derives or fuzzes runs them as that file has them.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.pipeline.families import Family, snapshots
    from weft.pipeline.order import (
        AFTER_FUSION,
        DERIVED,
        DERIVED_LAWS,
        EXTENSION,
        GRAPH,
        IN_NUMBERS,
        INSTEAD,
        LAWS,
        ONE_LOOP,
        PASSES,
        PRIORITY,
        REGION,
        ROUNDING_LOOP,
        RULES_IN_PLANS,
        RULES_THAT_KEEP_PRECISION,
        SNAPSHOTS,
        WRITTEN,
        cancel_shifts,
        fuse,
        normalize,
    )
    from weft.pipeline.trace import replayed

__all__ = [
    "AFTER_FUSION",
    "DERIVED",
    "DERIVED_LAWS",
    "EXTENSION",
    "GRAPH",
    "INSTEAD",
    "IN_NUMBERS",
    "LAWS",
    "ONE_LOOP",
    "PASSES",
    "PRIORITY",
    "REGION",
    "ROUNDING_LOOP",
    "RULES_IN_PLANS",
    "RULES_THAT_KEEP_PRECISION",
    "SNAPSHOTS",
    "WRITTEN",
    "Family",
    "cancel_shifts",
    "fuse",
    "normalize",
    "replayed",
    "snapshots",
]

export_lazily(__name__)
