"""cascade: chains of dependent reductions as one loop with a small carried state (RedFuser).

In: a tensor program. Out: folds, the loops of its chains (carried state, update, merge, what follows), for lowering; and for every
chain that has none the reduction and the condition that stand against it. Found by algebra on what was written: nothing here
knows the name of any chain.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.cascade.approximation import Approximation
    from weft.cascade.find import Chains, FoundChains, RefusedReduction, chains, folds
    from weft.cascade.formulas import ReductionFormula, formulas
    from weft.cascade.interchange import sums_outside

__all__ = [
    "Approximation",
    "Chains",
    "FoundChains",
    "ReductionFormula",
    "RefusedReduction",
    "chains",
    "folds",
    "formulas",
    "sums_outside",
]

export_lazily(__name__)
