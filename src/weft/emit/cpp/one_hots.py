"""One-hot reductions: a loop along what is reduced goes to the one row that each element counts in, and combines it there.

for m, n: s[n] = max(s[n], i[m] == n ? e[m] : -inf)     becomes     for m: n = i[m];  if (n is a row) s[n] = max(s[n], e[m])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.block.one_hot import MadeOf, one_hot
from weft.block.program import Collapse
from weft.emit.cpp.plan import Nest, Put, gather, reads
from weft.emit.cpp.values import Lazy, Panel, Value, resolved
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg


def nests_of(stores: Sequence[Put], reductions: Sequence[Lazy]) -> Iterator[tuple[Nest, Put | None]]:
    """Yield a nest for each one-hot reduction that `stores` and `reductions` need, which leaves its results in an array; and the
    store that it does by the way, where that combines the results with what is there before, and nothing else reads them.
    """
    works = gather(stores, reductions, lambda axes, _: axes)
    for lazy in [w.lazy for w in works if w.lazy is not None and w.lazy.memory is None]:
        found = _nest(lazy)
        if found is not None:
            alone = sum(lazy in w.reads for w in works) == 1
            store = next((s for s in stores if alone and _combines(s, lazy)), None)
            if store is not None and sum(reads(w, store.target) for w in works) != 1:
                store = None  # what else reads what is there before wants it as it is
            found.into = None if store is None else store.target
            yield found, store


def _combines(store: Put, lazy: Lazy) -> bool:
    """Tell whether `store` combines a reduction with what is there before, as the reduction itself combines elements."""
    value, node, target = resolved(store.value), lazy.node, store.target
    if not isinstance(value, Lazy) or not isinstance(node, Collapse):
        return False
    same = value.expr == Apply(node.monoid.value, (Arg(0), Arg(1))) and target.dtype is lazy.dtype.accumulator
    return (
        same and [resolved(a) for a in value.args] == [target, lazy] and value.dtype is lazy.dtype and not store.keeps
    )


def _nest(lazy: Lazy) -> Nest | None:
    """Return the nest of a one-hot reduction; None of anything else, and where it reads another reduction."""
    node, arg = lazy.node, lazy.args[0] if lazy.args else None
    if not isinstance(node, Collapse) or not isinstance(arg, Lazy):
        return None
    chosen = one_hot(resolved(arg), node.over, node.monoid, _element)
    if chosen is None:
        return None
    said = {a for value in chosen.read for a in _element(value).dims}
    before = [a for a in arg.dims if a in said and a != node.over]
    after = [a for a in arg.dims if a not in (*said, node.over, chosen.row)]
    order = (*before, node.over, chosen.row, *after)

    def arrange(axes: tuple[Axis, ...], _: Axis | None) -> tuple[Axis, ...]:
        return tuple(a for a in order if a in axes)

    nest = Nest(order, gather((), (lazy,), arrange), chosen)
    for work in nest.works:  # each stands where all its axes have a loop around it
        work.order = next(order[:depth] for depth in range(len(order) + 1) if {*work.order} <= {*order[:depth]})
    others = any(w.collapsed is not None for w in nest.works if w.lazy is not lazy)
    return None if others else nest


def _element(value: Value) -> MadeOf[Value]:
    """Say what a value is made of; a panel, which nothing but a matmul reads, is taken for one number."""
    value = resolved(value)
    match value:
        case Panel():
            return MadeOf((), DType.float32)
        case Lazy(counts=(axis, False)):
            return MadeOf(value.dims, value.dtype, counts=axis)
        case Lazy():
            return MadeOf(value.dims, value.dtype, value.expr, value.args)
        case _:
            return MadeOf(value.dims, value.dtype)
