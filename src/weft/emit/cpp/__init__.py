"""emit.cpp: C++ for one launch of an applied block program.

In: the program, a launch's operators, and the order of dimensions of each tensor it reads and writes. Out: a translation unit
with one function that keeps to the C interface of `weft.run.launch`. Loops become `for` loops over valid elements (so that
a `Fill` prints nothing), grid loops one OpenMP region, pointwise work one loop nest per item, matmuls calls of the prelude.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.emit.cpp.kernel import emit, list_dims, size_names
    from weft.emit.cpp.legality import demand_legal
    from weft.emit.cpp.shared import shared
    from weft.emit.cpp.text import INCLUDE_DIR

__all__ = ["INCLUDE_DIR", "demand_legal", "emit", "list_dims", "shared", "size_names"]

export_lazily(__name__)
