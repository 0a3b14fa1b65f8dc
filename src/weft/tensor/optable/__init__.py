"""The operation table: one row per elementwise operation, with everything weft can do with it.

`row(name)` is a primitive, the only thing that `Apply.op` may name. `primitive(aten)` and
`derived(aten)` find rows by ATen overload packet ("aten.silu"); a derived row expands into
primitives at capture. `MASK_ATEN` holds ATen operations that mean another primitive where every
argument is bool.
"""

from __future__ import annotations

from weft.errors import InvalidProgramError
from weft.tensor.optable.derived import DERIVED
from weft.tensor.optable.primitive import PRIMITIVES
from weft.tensor.optable.row import Array, DerivedRow, Interval, Row, Samples

__all__ = [
    "DERIVED",
    "MASK_ATEN",
    "PRIMITIVES",
    "Array",
    "DerivedRow",
    "Interval",
    "Row",
    "Samples",
    "derived",
    "primitive",
    "row",
]

_ROWS = {r.name: r for r in PRIMITIVES}
_PRIMITIVE_BY_ATEN = {name: r for r in PRIMITIVES for name in r.aten}
_DERIVED_BY_ATEN = {name: r for r in DERIVED for name in r.aten}

MASK_ATEN = {
    "aten.bitwise_and": "logical_and",
    "aten.bitwise_or": "logical_or",
    "aten.bitwise_not": "logical_not",
    "aten.bitwise_xor": "ne",
    "aten.logical_xor": "ne",
}


def row(name: str) -> Row:
    """Returns the primitive called `name`.

    Raises:
        InvalidProgramError: the table has no such row.
    """
    found = _ROWS.get(name)
    if found is None:
        raise InvalidProgramError(f"no operation is called {name!r}", condition="operations are rows of the table")
    return found


def primitive(aten: str) -> Row | None:
    """Returns the primitive that the ATen overload packet means, if one does."""
    return _PRIMITIVE_BY_ATEN.get(aten)


def derived(aten: str) -> DerivedRow | None:
    """Returns the derived row that the ATen overload packet means, if one does."""
    return _DERIVED_BY_ATEN.get(aten)
