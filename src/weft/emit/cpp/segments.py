"""Runs of a loop in which comparisons of indices come out alike, and what is read lies all inside or all beside its dimension.

    for j < n: out[j] = j < 8 ? x[j] : y[j - 8]     ==>     two runs, each of which reads one of the two, element after element

A run ends where an index that grows by 1 in each iteration reaches what it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.emit.cpp.values import Gather, Lazy, Value, resolved
from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, parts

_COMPARE = ("lt", "le", "gt", "ge")
_MOST = 6
"""Conditions that end runs of one loop, at most; of those that hold or fail all along it there may be any number."""


def conditions(works: Sequence[Lazy], axis: Axis) -> list[tuple[Lazy, Apply | None]]:
    """Lists what is alike in each run of a loop over `axis` that computes `works`: comparisons in values, each after those that its
    sides are chosen by; None: that a masked read is of a place. Empty where no masked read has runs.
    """
    found: dict[tuple[Lazy, Apply | None], None] = {}

    def visit(lazy: Lazy) -> None:
        for arg in map(resolved, lazy.args):
            if isinstance(arg, Lazy) and arg.is_spelled and axis in arg.dims:
                visit(arg)
        match lazy.node:
            case _ if lazy.expr is not None:
                whole = reversed(parts(lazy.expr))
                compared = (part for part in whole if isinstance(part, Apply) and part.op in _COMPARE)
                found.update({(lazy, part): None for part in compared if abs(difference(part, lazy, axis) or 0) == 1})
            case Gather(sizes=sizes, memory=memory) if sizes:
                steps = [slope(arg, axis) for arg in lazy.args]
                if set(steps) <= {-1, 0, 1} and (any(steps) or axis in memory.dims):
                    found[lazy, None] = None
            case _:
                pass

    for lazy in works:
        visit(lazy)
    reads = any(isinstance(lazy.node, Gather) for lazy, _ in found)
    ends = [lazy for lazy, part in found if part is not None or any(slope(arg, axis) for arg in lazy.args)]
    return list(found) if reads and len(ends) <= _MOST else []


def slope(value: Value, axis: Axis) -> int | None:
    """Tells by how much an index grows in each iteration of a loop over `axis`, within a run; None where that is not known."""
    value = resolved(value)
    if not isinstance(value, Lazy):
        return None
    if value.is_given:
        return int(value.dims == (axis,))
    return _slope(value.expr, value.args, axis) if value.is_spelled and value.expr is not None else None


def difference(compared: Apply, lazy: Lazy, axis: Axis) -> int | None:
    """Tells by how much the left side of a comparison in `lazy` grows beyond its right side in each iteration."""
    left, right = (_slope(side, lazy.args, axis) for side in compared.args)
    return None if left is None or right is None else left - right


def _slope(expr: Scalar, args: Sequence[Value], axis: Axis) -> int | None:
    match expr:
        case Arg(index):
            return slope(args[index], axis)
        case Lit():
            return 0
        case Convert():
            return None
        case Apply(op, inner):
            steps = [_slope(each, args, axis) for each in inner]
            if not any(steps) and None not in steps:
                return 0
            match op, steps:
                case "add", (int(left), int(right)):
                    return left + right
                case "sub", (int(left), int(right)):
                    return left - right
                case "neg", (int(own),):
                    return -own
                case "where", (_, first, second) if first == second and _is_alike(inner[0], args, axis):
                    return first
                case _:
                    return None


def _is_alike(condition: Scalar, args: Sequence[Value], axis: Axis) -> bool:
    """Tells whether a condition comes out alike all along a run: it does not change, or it is among those that end one."""
    match condition:
        case Arg(index):
            value = resolved(args[index])
            made = value.expr if isinstance(value, Lazy) and value.is_spelled else None
            return _slope(condition, args, axis) == 0 or (
                isinstance(value, Lazy) and made is not None and _is_alike(made, value.args, axis)
            )
        case Lit():
            return True
        case Convert():
            return False
        case Apply(op, inner):
            steps = [_slope(each, args, axis) for each in inner]
            if op in _COMPARE and None not in steps:
                left, right = steps
                return left is not None and right is not None and abs(left - right) <= 1
            return all(step == 0 for step in steps) or (
                op.startswith("logical_") and all(_is_alike(each, args, axis) for each in inner)
            )


def replaced(expr: Scalar, known: Mapping[Scalar, Scalar]) -> Scalar:
    """Returns `expr` with some of its parts exchanged."""
    if expr in known:
        return known[expr]
    match expr:
        case Apply(op, args):
            return Apply(op, tuple(replaced(each, known) for each in args))
        case Convert(dtype, arg):
            return Convert(dtype, replaced(arg, known))
        case Arg() | Lit():
            return expr
