"""A fold: several reductions of a tensor program along the same axes as one loop with a joint state, in the words of that program.

The room of cascades derives folds; lowering gives each its nest of maps. The axes of all items are those of the tensor program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.block.program import BlockNode, State
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.program import Cast, Node, TensorProgram, Use, uses


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


def in_order(program: TensorProgram, folds: Sequence[Fold], at_matmuls: Mapping[str, Cast]) -> Iterator[Node | Fold]:
    """Yields what there is to lower, each after what it reads."""
    if not folds:
        yield from (n for n in program.nodes if n.name not in at_matmuls)
        return
    values = program.values()
    maker = {value: fold for fold in folds for value, _ in fold.makes}

    def reads(of: Node | Fold) -> Iterator[str]:
        for name in (u.value for _, u in of.args) if isinstance(of, Fold) else uses(of):
            cast = at_matmuls.get(name)
            yield name if cast is None else cast.arg.value

    wanted: dict[str, None] = {}
    todo = list(program.outputs)
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted[name] = None
            todo += reads(maker.get(name) or values[name])
    rest: list[Node | Fold] = [n for n in program.nodes if n.name in wanted and n.name not in maker]
    rest += [f for f in folds if any(value in wanted for value, _ in f.makes)]
    ready = {n.name for n in program.inputs}
    while rest:
        each = next((e for e in rest if ready.issuperset(reads(e))), None)
        if each is None:
            raise UnsupportedError("loops that make several results would have to run before each other")
        rest.remove(each)
        ready.update((value for value, _ in each.makes) if isinstance(each, Fold) else (each.name,))
        yield each
