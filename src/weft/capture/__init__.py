"""capture: Dynamo's graph of a PyTorch callable becomes a tensor program.

In: a `torch.fx.GraphModule` as Dynamo hands it to a backend. Out: `Captured`: the tensor program, which
placeholder each of its inputs is, the PyTorch calls behind its opaque nodes, how the graph's results
come of it, and a reason, with the user's line, for everything that is left to PyTorch. Capture never
raises: what it cannot take is `Captured.refused`.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.capture.calls import may_view
    from weft.capture.captured import (
        UNFLATTEN,
        Captured,
        Fallback,
        FixedLayout,
        FromArgument,
        FromNothing,
        FromProgram,
        FromSizes,
        GraphResult,
        MemoryLayout,
        OpaqueCall,
        Operand,
        RuntimeNumber,
        Told,
        in_order,
        laid_out,
        without_units,
    )
    from weft.capture.flags import as_read, carries_derivative
    from weft.capture.graph import capture
    from weft.capture.library import FASTER_IN_LIBRARY
    from weft.capture.memory import Effect, Piece, Written, apart
    from weft.capture.nested import every_node, runnable
    from weft.capture.operations import operation
    from weft.capture.outline import ArgumentPlace, Outline, serves
    from weft.capture.refusal import refusal
    from weft.capture.refused import PLAIN, refused_at_once
    from weft.capture.source import location_of

__all__ = [
    "FASTER_IN_LIBRARY",
    "PLAIN",
    "UNFLATTEN",
    "ArgumentPlace",
    "Captured",
    "Effect",
    "Fallback",
    "FixedLayout",
    "FromArgument",
    "FromNothing",
    "FromProgram",
    "FromSizes",
    "GraphResult",
    "MemoryLayout",
    "OpaqueCall",
    "Operand",
    "Outline",
    "Piece",
    "RuntimeNumber",
    "Told",
    "Written",
    "apart",
    "as_read",
    "capture",
    "carries_derivative",
    "every_node",
    "in_order",
    "laid_out",
    "location_of",
    "may_view",
    "operation",
    "refusal",
    "refused_at_once",
    "runnable",
    "serves",
    "without_units",
]

export_lazily(__name__)
