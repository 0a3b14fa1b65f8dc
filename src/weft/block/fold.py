"""A fold: several reductions of a tensor program along the same axes as one loop with a joint state, in the words of that program.

The room of cascades derives folds; lowering gives each its nest of maps. The axes of all items are those of the tensor program.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.block.program import BlockNode, State
from weft.tensor.axes import Axis
from weft.tensor.program import Use


@dataclass(frozen=True, slots=True)
class Fold:
    """One loop over `over`, for each element of `axes`; a nest over several axes, in which inner states are merged into outer ones.

    Attributes:
        axes: free axes: every value that the fold makes has exactly these.
        over: the axes that all its reductions run along.
        args: what it reads of the program, bound to `axes` and `over`, and the name that this has in `body` and `after`.
        body: operators of an iteration: what the state is fed.
        state: of the loop; its projections are its components, by name, and these are what `after` reads.
        after: operators that follow the loop.
        makes: (value of the program, value of `after` or component).
    """

    axes: tuple[Axis, ...]
    over: tuple[Axis, ...]
    args: tuple[tuple[str, Use], ...]
    body: tuple[BlockNode, ...]
    state: State
    after: tuple[BlockNode, ...]
    makes: tuple[tuple[str, str], ...]
