"""Which components of a loop's state are simply accumulated, `t5 += dot(t1,t2)` in a listing; and whether that rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from weft.block.program import Collapse, Dot, Final, Graph, Map, Pointwise, State
from weft.block.walk import operands, results
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, parts


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The update of one component on its own: `node` combines it with what the body feeds.

    Attributes:
        component: its index.
        node: the node of the update graph; its operands are the component and feeds.
        fed: the inputs of the update graph that it reads, but for the component.
        after: the index of the body's node that makes the last feed; None where none makes any.
        inline: the body's node that makes the feed, where nothing else reads it.
    """

    component: int
    node: Pointwise | Dot
    fed: tuple[str, ...]
    after: int | None
    inline: Pointwise | Collapse | Dot | None


def steps(node: Map) -> Iterator[Accumulation]:
    """Yield the components of `node`'s state that one operation updates, in which no other has part."""
    if node.state is None:
        return
    names = [c.name for c in node.state.components]
    feeds = dict(zip(node.state.update.inputs[len(names) :], node.state.feeds, strict=True))
    made = {n: i for i, child in enumerate(node.body.nodes) for n in results(child)}
    for i, child in _alone(node.state):
        fed = tuple(n for n in operands(child) if n != names[i])
        if set(fed) <= set(feeds):
            after = max((made[feeds[f]] for f in fed if feeds[f] in made), default=None)
            inline = None
            if isinstance(child, Pointwise) and after is not None:
                inline = _inline(node, feeds[fed[0]], after, child)
            yield Accumulation(i, child, fed, after, inline)


def _alone(state: State) -> Iterator[tuple[int, Pointwise | Dot]]:
    """Yield the components that a node combines by a monoid, or a dot adds to, and that only it reads."""
    update = state.update
    reads = Counter([*(n for child in update.nodes for n in operands(child)), *update.outputs])
    made = {n: child for child in update.nodes for n in results(child)}
    for i, (own, out) in enumerate(zip(state.components, update.outputs, strict=True)):
        if reads[own.name] != 1 or reads[out] != 1:
            continue
        match made.get(out):
            case Dot() as child if child.acc == own.name:
                yield i, child
            case Pointwise(_, Apply("add" | "mul" | "maximum" | "minimum", pair)) as child if (
                set(pair) == {Arg(0), Arg(1)} and own.name in child.args and len(child.args) == 2
            ):
                yield i, child
            case _:
                pass


def _inline(node: Map, feed: str, at: int, into: Pointwise) -> Pointwise | Collapse | Dot | None:
    """Return the body's node that makes `feed`, where its only use is to be accumulated."""
    child = node.body.nodes[at]
    if not isinstance(child, Pointwise | Collapse | Dot) or uses(node)[feed] != 1:
        return None
    # A result whose axes are not the component's in order is turned or repeated: it needs a name.
    fits = len(into.dims) <= 1 if isinstance(child, Collapse) else child.dims == into.dims
    return child if fits else None


def uses(node: Map) -> Counter[str]:
    """Count how often each value of `node`'s body is used."""
    state = () if node.state is None else (*node.state.feeds, *(node.state.resume or ()))
    handed = (o.inner for o in node.outputs if not isinstance(o, Final))
    return Counter([*(n for c in node.body.nodes for n in operands(c)), *handed, *state])


def adds_floats(merge: Graph) -> bool:
    """Tell whether `merge` makes a sum that is rounded: not of maxima, rankings and integers."""
    return any(
        isinstance(node, Pointwise)
        and node.dtype.is_float
        and any(isinstance(part, Apply) and part.op in ("add", "sub") for part in parts(node.expr))
        for node in merge.nodes
    )


def rounds_to_bytes(update: Graph) -> bool:
    """Tell whether `update` rounds to 8 bits what it adds."""
    return any(
        isinstance(node, Pointwise)
        and any(
            isinstance(part, Convert) and part.dtype.bytes == 1 and part.dtype is not DType.bool
            for part in parts(node.expr)
        )
        for node in update.nodes
    )
