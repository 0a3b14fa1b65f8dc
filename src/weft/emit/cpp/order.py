"""Which of several loops is the innermost."""

from __future__ import annotations

from collections.abc import Callable

from weft.tensor.axes import Axis

# A loop goes inside another only where its blocks are this many times as long: else the order of an item's axes, which is that of
# memory more often than not, is kept.
_FAR = 16
# Elements of a vector of floats: a loop over so many that lie side by side need not be longer.
_VECTOR = 16


def arranged(axes: tuple[Axis, ...], most: Callable[[Axis], str], dense: Axis | None = None) -> tuple[Axis, ...]:
    """Orders loops over `axes`, outermost first: as given, but with the longest blocks innermost if they are far longer.

    Vector code needs a long innermost loop: of points in space, 3 coordinates each, it is the one over points. Of 1,024 words with
    heads of 64 it is the one over a head, where an item lies along that.

    Args:
        axes: of an item.
        most: the most elements that a block of each has, as text; where that is no number, its loop stays where it is.
        dense: the axis along which elements that the loops store lie side by side, if any: it is the innermost where its blocks
            fill a vector.
    """
    if dense is not None and most(dense).isdigit() and int(most(dense)) >= _VECTOR:
        return (*(a for a in axes if a != dense), dense)
    sizes = [int(most(a)) if most(a).isdigit() else 0 for a in axes]
    longest = max(sizes, default=0)
    if not sizes or not sizes[-1] or longest < _FAR * sizes[-1]:
        return axes
    place = sizes.index(longest)
    return (*axes[:place], *axes[place + 1 :], axes[place])
