"""The order of sizes, where it is known whatever the numbers are, and bounds that say nothing twice."""

from __future__ import annotations

from functools import lru_cache

from weft.block.size import Begin, Compound, Elements, Op, Size, Valid, at_least, at_most

_DEEPEST = 12
"""Parts of parts of a size that are looked at."""


def larger(left: Size, right: Size) -> Size:
    """Return the larger of two sizes: one of them where it is known which."""
    if known_at_most(left, right):
        return right
    return left if known_at_most(right, left) else at_least(left, right)


def smaller(left: Size, right: Size) -> Size:
    """Return the smaller of two sizes: one of them where it is known which."""
    if known_at_most(left, right):
        return left
    return right if known_at_most(right, left) else at_most(left, right)


def known_at_most(left: Size, right: Size) -> bool:
    """Tell whether it is known that `left` is at most `right`, for all sizes and blocks."""
    return _at_most(left, right, _DEEPEST)


@lru_cache(maxsize=1 << 14)
def _at_most(left: Size, right: Size, deep: int) -> bool:
    if left == right:
        return True
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    if deep == 0:
        return False
    below = left <= 0 if isinstance(left, int) else False
    return (below and _natural(right)) or _by_left(left, right, deep - 1) or _by_right(left, right, deep - 1)


def _by_left(left: Size, right: Size, deep: int) -> bool:
    match left:
        case Compound(Op.at_most, args):
            return any(_at_most(each, right, deep) for each in args)
        case Compound(Op.at_least, args):
            return all(_at_most(each, right, deep) for each in args)
        case Compound(Op.minus, (whole, int(less))) if less >= 0:
            return _at_most(whole, right, deep)
        case Compound(Op.plus, (start, Compound(Op.whole_blocks, (Compound(Op.minus, (stop, begin)), _)))) if (
            begin == start
        ):
            # Whole blocks from a place end at most where the elements do: at `stop`, which is at least `start` there.
            return _at_most(stop, right, deep) and _at_most(start, right, deep)
        case Compound(Op.whole_blocks, (size, _)):
            return _at_most(size, right, deep)
        case _:
            return False


def _by_right(left: Size, right: Size, deep: int) -> bool:
    match right:
        case Compound(Op.at_most, args):
            return all(_at_most(left, each, deep) for each in args)
        case Compound(Op.at_least, args):
            return any(_at_most(left, each, deep) for each in args)
        case Compound(Op.plus, args):
            return any(
                _at_most(left, each, deep) and all(map(_natural, (*args[:i], *args[i + 1 :])))
                for i, each in enumerate(args)
            )
        case _:
            return False


def _natural(size: Size) -> bool:
    """Tell whether `size` is at least 0 for all sizes and blocks."""
    match size:
        case int():
            return size >= 0
        case Compound(Op.minus, (Compound(Op.plus, (Begin(axis), Valid(other))), 1)):
            return axis == other  # a block has an element
        case Compound(Op.minus, (stop, start)):
            return known_at_most(start, stop)
        case Compound(Op.at_least, args):
            return any(map(_natural, args))
        case Compound(Op.blocks_of | Op.whole_blocks, (of, _)):
            return _natural(of)
        case Compound(_, args):
            return all(map(_natural, args))
        case Elements() | _:
            return True
