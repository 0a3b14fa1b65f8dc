"""fuse: Blockbuster's rules and driver (sections 3 and 4).

In: a block program as lowered, every operation a kernel of its own. Out: the snapshots of its fusion and the trace, one
`Step` per rewrite with the programs before and after. One file per rule, named after its law; no rule knows which workload
it looks at, what the sizes are, or which emitter follows.
"""

from weft.fuse.driver import EXTENSION, PRIORITY, RULES_IN_PLANS, RULES_THAT_KEEP_PRECISION, Fusion, Snapshot, fuse
from weft.fuse.rule import Conditioning, Rule, Site, Step

__all__ = [
    "EXTENSION",
    "PRIORITY",
    "RULES_IN_PLANS",
    "RULES_THAT_KEEP_PRECISION",
    "Conditioning",
    "Fusion",
    "Rule",
    "Site",
    "Snapshot",
    "Step",
    "fuse",
]
