"""Matmuls of blocks and staged copies, printed as calls of the prelude."""

from __future__ import annotations

from collections.abc import Sequence

from weft.block.program import Dot, Layout, Stage
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.scalar import element
from weft.emit.cpp.values import ItemMemory, Panel
from weft.emit.ranges import Scope
from weft.emit.text import factor
from weft.errors import InvalidProgramError
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


def free_axis(dims: Sequence[Axis], over: Axis) -> Axis | None:
    """Return the axis of an operand that is not contracted, if it has one."""
    return next((a for a in dims if a != over), None)


def stage(frame: Frame, scope: Scope, node: Stage, source: ItemMemory) -> ItemMemory | Panel:
    """Print a copy of `source` to scratch, dense, in the layout that the node names."""
    row, column = (None, *node.dims)[-2:]
    assert column is not None
    if node.layout is Layout.rows:
        target = frame.array(node.name, source.dtype, node.dims, scope)
        lines = "1" if row is None else target.strides[row]
        to = f"{target.base}, {scope[column].most if row is None else lines}"
        frame.out.line(
            f"weft::stage_rows({to}, {_strided(source, row, column)}, {_valid(scope, row)}, {_valid(scope, column)});"
        )
        return target
    k, n = (column, None) if row is None else (row, column)
    ctype = element(source.dtype)
    count = f"weft::panel_elements<{ctype}>({scope[k].most}, {'1' if n is None else scope[n].most})"
    to = frame.scratch(node.name, ctype, count)
    panel = Panel(frame.names.make(f"{to}_panel"), source.dtype, k, n)
    frame.out.line(
        f"const auto {panel.base} = weft::stage_panel({to}, {_strided(source, k, n)}, {_valid(scope, k)}, {_valid(scope, n)});"
    )
    return panel


def dot(
    frame: Frame, scope: Scope, node: Dot, left: ItemMemory, right: ItemMemory | Panel, target: ItemMemory, add: str
) -> None:
    """Print `target = left * right`, or `+=` where the expression `add` is true."""
    frame.has_matmuls = True
    frame.location([node.location])
    m = free_axis(left.dims, node.over)
    n = right.n if isinstance(right, Panel) else free_axis(right.dims, node.over)
    if isinstance(right, Panel) and right.k != node.over:
        raise InvalidProgramError("a panel is staged along another axis than the matmul contracts", node=node.name)
    base = f"&{target.base}" if target.variable else target.base
    base = f"(uint64_t*){base}" if target.dtype is DType.int64 else base
    rows, columns = _stride(target, m), _stride(target, n)
    sizes = ", ".join(_valid(scope, a) for a in (m, n, node.over))
    a = _strided(left, m, node.over)
    if left.dtype is not right.dtype or (n is not None and columns != "1"):
        b = (
            f"weft::panel_reader({right.base})"
            if isinstance(right, Panel)
            else f"weft::reader({_strided(right, node.over, n)})"
        )
        frame.out.line(f"weft::dot_anyhow({base}, {rows}, {columns}, {add}, {a}, {b}, {sizes});")
        return
    ldc = rows if m is not None else _valid(scope, n)
    if isinstance(right, Panel):
        frame.out.line(f"weft::dot_strided({base}, {ldc}, {add}, {a}, {right.base}, {sizes});")
    else:
        frame.out.line(
            f"weft::dot_direct_strided({base}, {ldc}, {add}, {a}, {_strided(right, node.over, n)}, {sizes});"
        )


def _strided(memory: ItemMemory, first: Axis | None, second: Axis | None) -> str:
    return f"{memory.base}, {_stride(memory, first)}, {_stride(memory, second)}"


def _stride(memory: ItemMemory, axis: Axis | None) -> str:
    return "0" if axis is None else factor(memory.strides[axis])


def _valid(scope: Scope, axis: Axis | None) -> str:
    return "1" if axis is None else scope[axis].valid
