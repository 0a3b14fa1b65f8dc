"""State on pairs: components that share an exponent move together when it does (the appendix's addition of pairs)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from weft.block.program import BlockNode, Component, Graph, Map, Pointwise, State, operands, results
from weft.block.rename import fresh, rename_node
from weft.fuse.safety.pairs import FIRST, SECOND, Pair, Terms
from weft.fuse.safety.work import Work
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
        exponent_of: for each component that is a significand, its exponent's component.
        source_of: for each component that is an exponent, the body's exponent that it follows.
    """

    state: State
    nodes: tuple[BlockNode, ...]
    exponent_of: dict[str, str]
    source_of: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Group:
    """Components with one exponent: `source` of the body, `name` of the state."""

    source: str
    name: str
    members: tuple[int, ...]
    dims: tuple[Axis, ...]


def safe_state(body: Work, stacked: frozenset[str], state: State) -> SafeState:
    """`state` for what the values that it is fed have become.

        l = l + sum(e)              becomes      z' = max(z, t);  l = l * exp(z - z') + s * exp(t - z');  z = z'

    where s * exp(t) is what sum(e) has become. All components that are fed pairs of one exponent share z. Where nothing but
    they reads the significands, those are made with exponent z' at once (the identity holds for any exponent), in the update.

    Args:
        body: the map's body, rewritten.
        stacked: values of the body that leave it in lists.
        state: as it was.
    """
    monoids = state.monoids
    pairs = [body.values[f] for f in state.feeds]
    for place, feed in enumerate(state.feeds):
        if monoids is None or monoids[place] is not Monoid.sum or state.resume is not None:
            pairs[place] = Pair(body.plain(pairs[place], body.dims(feed)))
    fed = [body.significand(p, body.dims(f)) for p, f in zip(pairs, state.feeds, strict=True)]
    if monoids is None or not any(p.terms for p in pairs):
        return SafeState(replace(state, feeds=tuple(fed)), tuple(body.nodes), {}, {})
    groups = _groups(body, state, pairs)
    return _Builder(body, stacked, state, monoids, tuple(fed), groups).build()


def _groups(body: Work, state: State, pairs: list[Pair]) -> tuple[_Group, ...]:
    members: dict[Terms, list[int]] = {}
    for place, pair in enumerate(pairs):
        if pair.terms:
            members.setdefault(pair.terms, []).append(place)
    make = fresh(_names(state))
    found: list[_Group] = []
    for terms, places in members.items():
        source = body.single(terms)
        found.append(_Group(source, make("z"), tuple(places), body.dims(source)))
    return tuple(found)


def _names(state: State) -> set[str]:
    graphs = (state.update, state.merge, state.finish)
    return {n for g in graphs for n in (*g.inputs, *(r for node in g.nodes for r in results(node)))}


@dataclass
class _Builder:
    body: Work
    stacked: frozenset[str]
    state: State
    monoids: tuple[Monoid, ...]
    fed: tuple[str, ...]
    groups: tuple[_Group, ...]

    def __post_init__(self) -> None:
        self.make = fresh(_names(self.state) | {g.name for g in self.groups})
        self.names = tuple(c.name for c in self.state.components)
        self.group_of = {i: g for g in self.groups for i in g.members}
        self.real: DType = self.body.policy.real

    def build(self) -> SafeState:
        exponents = tuple(Component(g.name, g.dims, self.real, self.body.policy.lowest) for g in self.groups)
        names = (*self.names, *(g.name for g in self.groups))
        update, feeds, left = self._update(names)
        state = State(
            (*self.state.components, *exponents), feeds, update, self._merge(names), Graph(names, (), names), None
        )
        exponent_of = {self.names[i]: g.name for i, g in self.group_of.items()}
        return SafeState(state, left, exponent_of, {g.name: g.source for g in self.groups})

    def _update(self, names: tuple[str, ...]) -> tuple[Graph, tuple[str, ...], tuple[BlockNode, ...]]:
        """The update graph, what it is fed, and the operators that stay in the body."""
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
            greater = apply("maximum", FIRST, SECOND)
            nodes.append(Pointwise(top, greater, (group.name, take(group.source)), group.dims, self.real))
            followers = self._followers(group)
            if followers:
                moved[group.source] = top
                for each in followers:
                    left.remove(each)
                    moved |= {r: self.make(r) for r in results(each)}
                    inner = {n: moved.get(n) or take(n) for n in (*operands(each), *results(each))}
                    nodes.append(rename_node(each, inner))
        outs: list[str] = []
        for place, component in enumerate(self.state.components):
            group = self.group_of.get(place)
            fed = self.fed[place]
            value = moved.get(fed) or take(fed)
            old = component.name
            if group is not None:
                top = running[group.name]
                old = self._rescaled(nodes, component, old, group.name, top, group.dims)
                if group.source not in moved:
                    value = self._rescaled(nodes, component, value, take(group.source), top, group.dims)
            combine = apply(self.monoids[place].value, FIRST, SECOND)
            outs.append(self.make(component.name))
            nodes.append(Pointwise(outs[-1], combine, (old, value), component.dims, component.dtype))
        outs += [running[g.name] for g in self.groups]
        graph = Graph((*names, *inputs.values()), tuple(nodes), tuple(outs))
        return graph, tuple(inputs), tuple(left)

    def _rescaled(
        self,
        nodes: list[BlockNode],
        component: Component,
        value: str,
        old: str,
        new: str,
        dims: tuple[Axis, ...],
        make: Callable[[str], str] | None = None,
    ) -> str:
        """`value`, a significand with exponent `old`, with exponent `new`: the factor is one for all that share it."""
        make = make or self.make
        factor = Pointwise(make("f"), apply("decay", apply("sub", FIRST, SECOND)), (old, new), dims, self.real)
        known = next((n for n in nodes if isinstance(n, Pointwise) and replace(n, name=factor.name) == factor), None)
        if known is None:
            nodes.append(factor)
            known = factor
        name = make(value)
        nodes.append(Pointwise(name, apply("mul", FIRST, SECOND), (value, known.name), component.dims, component.dtype))
        return name

    def _followers(self, group: _Group) -> list[BlockNode]:
        """The body's operators that depend on the exponent, where all that they make is for the group; else none."""
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
        """The state of two runs of iterations together: the greater exponent, and both parts brought to it."""
        make = fresh(set())
        left, right = tuple(make(f"{n}_left") for n in names), tuple(make(f"{n}_right") for n in names)
        nodes: list[BlockNode] = []
        count = len(self.names)
        tops: list[str] = []
        for place, group in enumerate(self.groups):
            ends = (left[count + place], right[count + place])
            tops.append(make("z"))
            nodes.append(Pointwise(tops[-1], apply("maximum", FIRST, SECOND), ends, group.dims, self.real))
        outs: list[str] = []
        for place, component in enumerate(self.state.components):
            parts = [left[place], right[place]]
            group = self.group_of.get(place)
            if group is not None:
                index = self.groups.index(group)
                for side, ends in enumerate((left, right)):
                    old, top = ends[count + index], tops[index]
                    parts[side] = self._rescaled(nodes, component, parts[side], old, top, group.dims, make)
            combine = apply(self.monoids[place].value, FIRST, SECOND)
            outs.append(make(component.name))
            nodes.append(Pointwise(outs[-1], combine, tuple(parts), component.dims, component.dtype))
        return Graph((*left, *right), tuple(nodes), (*outs, *tops))
