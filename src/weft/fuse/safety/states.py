"""State on pairs: components that share an exponent move together when it does (the appendix's addition of pairs)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from weft.block.program import BlockNode, Component, Graph, Map, Pointwise, State
from weft.block.references import Carrying, joined, share
from weft.block.rename import fresh, rename_node
from weft.block.walk import operands, results
from weft.fuse.safety.pairs import FIRST, SECOND, Pair, Terms
from weft.fuse.safety.work import PairWork
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import apply


@dataclass(frozen=True, slots=True)
class SafeState:
    """The state of a map on pairs.

    Attributes:
        state: components are the significands, and the exponents.
        nodes: the body's operators.
        terms_of: for each component that is a significand, its exponent: components, and what is the same in all iterations.
        source_of: for each component that is an exponent, the body's exponent that it follows.
    """

    state: State
    nodes: tuple[BlockNode, ...]
    terms_of: dict[str, Terms]
    source_of: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Group:
    """Components whose exponents move together: `source` of the body, `name` of the state, for each of `members` so many times."""

    source: str
    name: str
    members: dict[int, int]
    dims: tuple[Axis, ...]


def safe_state(body: PairWork, stacked: frozenset[str], state: State, axis: Axis, fixed: Collection[str]) -> SafeState:
    """Rewrite `state` for the rewritten values that it is fed.

        l = l + sum(e)              becomes      z' = max(z, t);  l = l * exp(z - z') + s * exp(t - z');  z = z'

    where s * exp(t) is what sum(e) has become. All components that are fed pairs of one exponent share z; where it is t several
    times, the differences count as often. Where nothing but they reads the significands, those are made with exponent z' at once
    (the identity holds for any exponent), in the update.

    Args:
        body: the map's body, rewritten.
        stacked: values of the body that leave it in lists.
        state: as it was.
        axis: the map's.
        fixed: exponents that are the same in all iterations, and so need not move.
    """
    monoids = state.monoids
    pairs: list[Pair] = []
    for place, feed in enumerate(state.feeds):
        added = monoids is not None and monoids[place] is Monoid.sum and state.resume is None
        pairs.append(_to_add_up(body, feed, axis, fixed) if added else _plain(body, feed))
    fed = [body.significand(p, body.dims(f)) for p, f in zip(pairs, state.feeds, strict=True)]
    if monoids is None or not any(p.terms for p in pairs):
        return SafeState(replace(state, feeds=tuple(fed)), tuple(body.nodes), {}, {})
    groups = _groups(body, state, pairs, fixed)
    made = _Builder(body, stacked, state, monoids, tuple(fed), groups).build()
    for component, pair in zip(state.components, pairs, strict=True):
        constant = tuple(t for t in pair.terms if t[0] in fixed)
        made.terms_of[component.name] = (*made.terms_of.get(component.name, ()), *constant)
    return made


def _plain(body: PairWork, feed: str) -> Pair:
    return Pair(body.plain(body.values[feed], body.dims(feed)))


def _to_add_up(body: PairWork, feed: str, axis: Axis, fixed: Collection[str]) -> Pair:
    """Return the pair of `feed`, with at most one exponent that differs between iterations along `axis`."""
    pair = body.values[feed]
    if len(_moving(pair, fixed)) > 1:
        return _plain(body, feed)
    body.added(pair.terms, (axis,))
    return replace(pair, terms=tuple(t if t[0] in fixed else body.positive(*t) for t in pair.terms))


def _moving(pair: Pair, fixed: Collection[str]) -> Terms:
    return tuple(t for t in pair.terms if t[0] not in fixed)


def _groups(body: PairWork, state: State, pairs: list[Pair], fixed: Collection[str]) -> tuple[_Group, ...]:
    members: dict[str, dict[int, int]] = {}
    for place, pair in enumerate(pairs):
        for name, count in _moving(pair, fixed):
            members.setdefault(name, {})[place] = count
    make = fresh(_names(state))
    return tuple(_Group(source, make("z"), places, body.dims(source)) for source, places in members.items())


def _names(state: State) -> set[str]:
    graphs = (state.update, state.merge, state.finish)
    return {n for g in graphs for n in (*g.inputs, *(r for node in g.nodes for r in results(node)))}


@dataclass
class _Builder:
    body: PairWork
    stacked: frozenset[str]
    state: State
    monoids: tuple[Monoid, ...]
    fed: tuple[str, ...]
    groups: tuple[_Group, ...]

    def __post_init__(self) -> None:
        self.make = fresh(_names(self.state) | {g.name for g in self.groups})
        self.components = {c.name: c for c in self.state.components}
        self.place = {name: place for place, name in enumerate(self.components)}
        self.group_of = {name: g for g in self.groups for name, i in self.place.items() if i in g.members}
        self.real: DType = self.body.policy.real

    def build(self) -> SafeState:
        exponents = tuple(Component(g.name, g.dims, self.real, self.body.policy.lowest) for g in self.groups)
        names = (*self.components, *(g.name for g in self.groups))
        update, feeds, left = self._update(names)
        state = State(
            (*self.state.components, *exponents), feeds, update, self._merge(names), Graph(names, (), names), None
        )
        terms_of: dict[str, Terms] = {n: ((g.name, g.members[self.place[n]]),) for n, g in self.group_of.items()}
        return SafeState(state, left, terms_of, {g.name: g.source for g in self.groups})

    def _update(self, names: tuple[str, ...]) -> tuple[Graph, tuple[str, ...], tuple[BlockNode, ...]]:
        """Return the update graph, what it is fed, and the operators that stay in the body."""
        nodes: list[BlockNode] = []
        inputs: dict[str, str] = {}  # from the body to the update
        left = list(self.body.nodes)

        def take(name: str) -> str:
            if name not in inputs:
                inputs[name] = self.make(name)
            return inputs[name]

        moved: dict[str, str] = {}  # what is made in the update instead of in the body
        running: dict[str, str] = {}
        for group in self.groups:
            top = running[group.name] = self.make("z")
            nodes.append(Pointwise(top, joined(FIRST, SECOND), (group.name, take(group.source)), group.dims, self.real))
            followers = self._followers(group)
            if followers:
                moved[group.source] = top
                for each in followers:
                    left.remove(each)
                    moved |= {r: self.make(r) for r in results(each)}
                    inner = {n: moved.get(n) or take(n) for n in (*operands(each), *results(each))}
                    nodes.append(rename_node(each, inner))

        def part(name: str) -> str:
            fed, group = self.fed[self.place[name]], self.group_of.get(name)
            value = moved.get(fed) or take(fed)
            if group is None or group.source in moved:
                return value
            return self._rescaled(nodes, name, value, (take(group.source), running[group.name]), self.make)

        old = {name: name for name in names}
        new = self._carrying(nodes, self.make).updated(self.components, old, running, part)
        graph = Graph((*names, *inputs.values()), tuple(nodes), (*new.values(), *running.values()))
        return graph, tuple(inputs), tuple(left)

    def _carrying(self, nodes: list[BlockNode], make: Callable[[str], str]) -> Carrying[str, str]:
        """Write significands with `nodes`."""

        def rescaled(name: str, side: Mapping[str, str], new: Mapping[str, str]) -> str:
            group = self.group_of.get(name)
            if group is None:
                return side[name]
            return self._rescaled(nodes, name, side[name], (side[group.name], new[group.name]), make)

        def added(name: str, one: str, other: str) -> str:
            component, monoid = self.components[name], self.monoids[self.place[name]]
            made = make(name)
            both = apply(monoid.value, FIRST, SECOND)
            nodes.append(Pointwise(made, both, (one, other), component.dims, component.dtype))
            return made

        return Carrying(rescaled, added)

    def _rescaled(
        self, nodes: list[BlockNode], name: str, value: str, ends: tuple[str, str], make: Callable[[str], str]
    ) -> str:
        """Bring `value`, a significand, from the first of two exponents to the second: one factor for all that share it."""
        group, component = self.group_of[name], self.components[name]
        expr = share(FIRST, SECOND, group.members[self.place[name]])
        factor = Pointwise(make("f"), expr, ends, group.dims, self.real)
        known = next((n for n in nodes if isinstance(n, Pointwise) and replace(n, name=factor.name) == factor), None)
        if known is None:
            nodes.append(factor)
            known = factor
        made = make(value)
        nodes.append(Pointwise(made, apply("mul", FIRST, SECOND), (value, known.name), component.dims, component.dtype))
        return made

    def _followers(self, group: _Group) -> list[BlockNode]:
        """List the body's operators that depend on the exponent, where all that they make is for the group; else none."""
        found: list[BlockNode] = []
        made = {group.source}
        for each in self.body.nodes:
            if made.intersection(operands(each)):
                if isinstance(each, Map):
                    return []
                found.append(each)
                made.update(results(each))
        made.discard(group.source)
        mine = {self.fed[i] for i in group.members}
        others = {self.fed[i] for i in range(len(self.fed)) if i not in group.members}
        others |= {g.source for g in self.groups}
        others |= self.stacked
        if made & others or group.source in self.stacked or not mine <= made:
            return []
        return found

    def _merge(self, names: tuple[str, ...]) -> Graph:
        """Combine the states of two runs of iterations: the greater exponent, and both parts brought to it."""
        make = fresh(set())
        left, right = ({n: make(f"{n}_{side}") for n in names} for side in ("left", "right"))
        nodes: list[BlockNode] = []
        tops: dict[str, str] = {}
        for group in self.groups:
            top = tops[group.name] = make("z")
            ends = (left[group.name], right[group.name])
            nodes.append(Pointwise(top, joined(FIRST, SECOND), ends, group.dims, self.real))
        new = self._carrying(nodes, make).merged(self.components, left, right, tops)
        return Graph((*left.values(), *right.values()), tuple(nodes), (*new.values(), *tops.values()))
