"""fuse: Blockbuster's rules and driver (sections 3 and 4).

In: a block program as lowered, every operation a kernel of its own. Out: the snapshots of its fusion and the trace, one
`Change` per rewrite with the programs before and after. One file per rule, named after its law; `weft.pipeline` has their
order. No rule knows which workload it looks at, what the sizes are, or which emitter follows.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.fuse.driver import Fusion, Snapshot, fused_by
    from weft.fuse.rule import Rule, Site

__all__ = ["Fusion", "Rule", "Site", "Snapshot", "fused_by"]

export_lazily(__name__)
