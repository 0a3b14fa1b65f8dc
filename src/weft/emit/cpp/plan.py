"""Which loop nests compute a group of values: as few as their dependences and axes allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.block.one_hot import OneHot
from weft.emit.cpp.values import Gather, ItemMemory, Lazy, Panel, Value, resolved
from weft.tensor.axes import Axis
from weft.tensor.scalar import Convert


@dataclass(eq=False, slots=True)
class Put:
    """Put `value` where `target` is; `keeps`: the values that are to be read from there afterwards."""

    target: ItemMemory
    value: Value
    keeps: tuple[Lazy, ...] = ()


@dataclass(eq=False, slots=True)
class Work:
    """One thing that a nest does at every element of `order`'s axes: compute a value, or store one.

    Attributes:
        reads: what it reads, copies looked through.
    """

    order: tuple[Axis, ...]
    reads: tuple[Value, ...]
    lazy: Lazy | None = None
    store: Put | None = None

    @property
    def collapsed(self) -> Axis | None:
        """The axis that it reduces over."""
        return None if self.lazy is None else self.lazy.over

    @property
    def leaves_array(self) -> bool:
        """True for a reduction over an axis that is not the innermost: its results grow side by side, in an array."""
        return self.collapsed is not None and self.collapsed != self.order[-1]


@dataclass(eq=False, slots=True)
class Nest:
    """Loops over `order`, outermost first, and what they do: each work belongs to a depth, that of its own axes.

    With `one_hot`, the loop over its row has one iteration at most, the one that it says; what it reduces goes `into` memory that
    has a value already, if that is given.
    """

    order: tuple[Axis, ...]
    works: list[Work] = field(default_factory=list[Work])
    one_hot: OneHot[Value] | None = None
    into: ItemMemory | None = None

    def holds(self, axes: Iterable[Axis]) -> bool:
        """Tells whether `axes` are those of the outer loops."""
        wanted = frozenset(axes)
        return frozenset(self.order[: len(wanted)]) == wanted


Arrange: TypeAlias = Callable[[tuple[Axis, ...], Axis | None], tuple[Axis, ...]]
"""Gives the axes of an item in the order of the loops over them, told along which one it is filled side by side, if any."""


def plan(stores: Sequence[Put], reductions: Sequence[Lazy], arrange: Arrange) -> list[Nest]:
    """Plans nests, in order, that do all of `stores` and compute all of `reductions`.

    A work joins the first nest that is not before anything it depends on and whose outer loops run over its axes; values
    that a later nest reads are marked by `crossing`. Stores that have nothing to do with a reduction are not joined to it where
    they go along what they store, and it does not.
    """
    works = gather(stores, reductions, arrange)
    along = _stores_along(works, arrange)
    return [*_nests([w for w in works if w not in along]), *_nests(along)]


def _nests(works: Sequence[Work]) -> list[Nest]:
    """Joins works in as few nests as their dependences and orders allow."""
    orders = _orders(works)
    nests: list[Nest] = []
    place: dict[Lazy, int] = {}
    for work in works:
        first = 0
        for value in work.reads:
            if isinstance(value, Lazy) and value in place:
                first = max(first, place[value])
        index = next((i for i in range(first, len(nests)) if nests[i].holds(work.order)), None)
        if index is None:
            nests.append(Nest(next(o for o in orders if Nest(o).holds(work.order))))
            index = len(nests) - 1
        work.order = nests[index].order[: len(work.order)]
        nests[index].works.append(work)
        if work.lazy is not None:
            place[work.lazy] = index + 1 if work.leaves_array else index
    return nests


def _stores_along(works: Sequence[Work], arrange: Arrange) -> list[Work]:
    """Orders the loops of stores; returned are works that have nests of their own, because their stores go another way than those
    of the rest, with which they share nothing.

    A reduction goes along what it reduces, and what is stored with it does too.
    """
    own: list[Work] = []
    reduces = any(w.collapsed is not None for w in works)
    for group in _apart(works) if reduces else [works]:
        summed = any(w.collapsed is not None for w in group)
        turned = False
        for work in group:
            if work.store is not None:
                target = work.store.target
                work.order = arrange(target.dims, None if summed else _dense(target))
                turned |= work.order != arrange(target.dims, None)
        if reduces and turned:
            own += group
    return own


def _apart(works: Sequence[Work]) -> list[Sequence[Work]]:
    """Parts works that share no value and no memory."""
    groups: list[tuple[set[object], list[Work]]] = []
    for work in works:
        keys: set[object] = {v.base if isinstance(v, ItemMemory) else v for v in work.reads}
        if work.lazy is not None:
            keys |= {work.lazy, *_memory_of(work.lazy)}
        if work.store is not None:
            keys.add(work.store.target.base)
        joined = [g for g in groups if not g[0].isdisjoint(keys)]
        groups = [g for g in groups if g not in joined]
        groups.append((keys.union(*(g[0] for g in joined)), [*(w for g in joined for w in g[1]), work]))
    return [group for _, group in groups]


def _memory_of(lazy: Lazy) -> tuple[str, ...]:
    """Returns what `lazy` looks up elements of."""
    return (lazy.node.memory.base,) if isinstance(lazy.node, Gather) else ()


def crossing(nests: Sequence[Nest]) -> list[tuple[Nest, Lazy]]:
    """Lists the values that a later nest than their own reads, and no store keeps."""
    own = {w.lazy: nest for nest in nests for w in nest.works if w.lazy is not None and not w.leaves_array}
    kept = {lazy for nest in nests for w in nest.works if w.store is not None for lazy in w.store.keeps}
    found: dict[Lazy, Nest] = {}
    for nest in nests:
        for work in nest.works:
            for value in work.reads:
                if isinstance(value, Lazy) and value in own and own[value] is not nest and value not in kept:
                    found[value] = own[value]
    return [(nest, lazy) for lazy, nest in found.items()]


def overwritten(nests: Sequence[Nest]) -> list[Work]:
    """Lists the stores into memory that a later nest still reads."""
    found: list[Work] = []
    for index, nest in enumerate(nests):
        later = [w for n in nests[index + 1 :] for w in n.works]
        stores = [w for w in nest.works if w.store is not None]
        found += [w for w in stores if w.store is not None and any(reads(o, w.store.target) for o in later)]
    return found


def reads(work: Work, memory: ItemMemory) -> bool:
    """Tells whether `work` reads from the same place as `memory`."""
    return any(isinstance(v, ItemMemory) and v.base == memory.base for v in work.reads)


def users(works: Sequence[Work]) -> Mapping[Lazy, list[Work]]:
    """Maps each value to the works that read it."""
    found: dict[Lazy, list[Work]] = {}
    for work in works:
        for value in work.reads:
            if isinstance(value, Lazy):
                found.setdefault(value, []).append(work)
    return found


def rounded_by_stores(works: Sequence[Work]) -> frozenset[Lazy]:
    """Finds values that a cast rounds and nothing reads but stores as numbers of that type: these round them."""
    found: set[Lazy] = set()
    for lazy, readers in users(works).items():
        expr = lazy.expr
        targets = {w.store.target.dtype if w.store is not None else None for w in readers}
        if isinstance(expr, Convert) and expr.dtype.is_float and targets == {expr.dtype}:
            found.add(lazy)
    return frozenset(found)


def gather(stores: Sequence[Put], reductions: Sequence[Lazy], arrange: Arrange) -> list[Work]:
    """Lists every work that the stores and reductions need, each after what it reads."""
    works: list[Work] = []
    seen: set[Lazy] = set()

    def need(value: Value) -> None:
        if not isinstance(value, Lazy) or not value.is_work or value in seen:
            return
        seen.add(value)
        inner = tuple(resolved(a) for a in value.args)
        for each in inner:
            need(each)
        works.append(Work(arrange(_order(value), None), inner, lazy=value))

    for lazy in reductions:
        need(resolved(lazy))
    for store in stores:
        value = resolved(store.value)
        need(value)
        works.append(Work((), (value,), store=store))
    return works


def _dense(target: ItemMemory) -> Axis | None:
    """Returns the axis along which elements of an item are known to lie side by side."""
    return next((axis for axis in target.dims if target.strides[axis] == "1"), None)


def _order(lazy: Lazy) -> tuple[Axis, ...]:
    """Returns the axes that a loop computing `lazy` runs over: its own, or for a reduction those of its argument."""
    if lazy.over is None:
        return lazy.dims
    arg = lazy.args[0]
    return () if isinstance(arg, Panel) else arg.dims


def _orders(works: Sequence[Work]) -> list[tuple[Axis, ...]]:
    """Lists the loop orders that are needed: those of stores before others, none that is the outer part of another."""
    found: list[tuple[Axis, ...]] = []
    for work in sorted(works, key=lambda w: (-len(w.order), w.store is None)):
        if not any(Nest(order).holds(work.order) for order in found):
            found.append(work.order)
    return found
