"""Block programs: how blocks of data move through a computation (Blockbuster, sections 2 and 5).

In: a tensor program, which `lower` turns into its unfused block program, operation by operation.
Out: `BlockProgram`, the one form that all later rooms rewrite, schedule, judge and print; with its
checker (`check`) and its text (`listing`).
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.block.check import check, infer
    from weft.block.copies import canonical
    from weft.block.listing import listing
    from weft.block.lower import lower
    from weft.block.program import BlockProgram, BlockType, Graph, Map

__all__ = [
    "BlockProgram",
    "BlockType",
    "Graph",
    "Map",
    "canonical",
    "check",
    "infer",
    "listing",
    "lower",
]

export_lazily(__name__)
