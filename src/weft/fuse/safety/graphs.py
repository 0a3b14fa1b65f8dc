"""Graphs on pairs: what becomes of each block operator, and of the edges into and out of a map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from weft.block.check import body_types, infer
from weft.block.program import (
    Access,
    BlockNode,
    BlockType,
    Broadcast,
    Collapse,
    Dot,
    Feed,
    Final,
    Graph,
    Iterate,
    Join,
    Map,
    Once,
    Pointwise,
    Stacked,
    sealed,
)
from weft.block.rename import fresh, rename_node, values_of
from weft.block.scope import Scope
from weft.block.walk import operands, pruned, results
from weft.fuse.safety import expressions
from weft.fuse.safety.pairs import ExponentSource, Pair, Terms
from weft.fuse.safety.states import SafeState, safe_state
from weft.fuse.safety.work import PairWork, Policy
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid


def graph_of(
    policy: Policy, graph: Graph, types: dict[str, BlockType], scope: Scope, given: Inputs, plain: frozenset[str]
) -> PairWork:
    """Rewrite `graph` on pairs.

    Args:
        policy: for the whole program.
        graph: as it is.
        types: of its inputs and of what `given` adds to them.
        scope: the maps around it.
        given: what its inputs have become.
        plain: outputs that must be themselves, since what reads them knows no pairs.
    """
    own = infer(graph, types, scope)
    plain |= {n for join in graph.nodes if isinstance(join, Join) for n in (join.first, join.rest)}
    work = PairWork(policy, graph, {**types, **own}, dict(given.values), dict(given.sources))
    work.units = tuple(a for a, around in scope.maps.items() if around.unit)
    for node in graph.nodes:
        _node(work, node, scope, plain)
    for name in graph.outputs:
        if name in plain and not work.types[name].buffered:
            made, dtype = work.plain(work.values[name], work.dims(name)), work.types[name].dtype
            if work.types[made].dtype is DType.float64:  # exponents are, where anything is
                made = work.rounded(made, dtype, work.dims(name))
            work.values[name] = Pair(made)
    return work


@dataclass
class Inputs:
    """What a graph starts from.

    Attributes:
        values: what its inputs have become.
        sources: which exponentials its exponents are of.
        fixed: exponents that are the same in all iterations of the map around, by what they are called outside.
    """

    values: dict[str, Pair] = field(default_factory=dict[str, Pair])
    sources: dict[str, ExponentSource] = field(default_factory=dict[str, ExponentSource])
    fixed: dict[str, str] = field(default_factory=dict[str, str])


def _node(work: PairWork, node: BlockNode, scope: Scope, plain: frozenset[str]) -> None:
    match node:
        case Pointwise():
            work.values[node.name] = expressions.rewritten(work, node)
        case Collapse():
            work.values[node.name] = _collapse(work, node)
        case Dot():
            work.values[node.name] = _dot(work, node)
        case Map():
            _map(work, node, scope, plain)
        case _:  # what knows no pairs reads them as they are
            given = {name: work.values[name] for name in operands(node)}
            read = {name: work.plain(pair, work.dims(name)) for name, pair in given.items() if pair != Pair(name)}
            work.nodes.append(rename_node(node, read))
            work.values |= {name: Pair(name) for name in results(node)}


def _collapse(work: PairWork, node: Collapse) -> Pair:
    pair, dims = work.values[node.arg], work.dims(node.arg)
    if node.monoid is not Monoid.sum:
        pair = Pair(work.plain(pair, dims))
    work.added(pair.terms, (node.over,))
    pair = work.shared(pair, frozenset((node.over,)), dims)
    name = node.name if not pair.terms else work.make(node.name)
    work.nodes.append(replace(node, name=name, arg=work.significand(pair, dims)))
    work.types[name] = work.types[node.name]
    return Pair(name, pair.terms)


def _dot(work: PairWork, node: Dot) -> Pair:
    over, names, terms = frozenset((node.over,)), list[str](), Terms()
    for operand in (node.left, node.right):
        work.added(work.values[operand].terms, over)
        pair = work.shared(work.values[operand], over, work.dims(operand))
        names.append(work.significand(pair, work.dims(operand)))
        terms = work.combined(terms, pair.terms)
    acc = None if node.acc is None else work.plain(work.values[node.acc], work.dims(node.acc))
    name = node.name if not terms else work.make(node.name)
    work.nodes.append(replace(node, name=name, left=names[0], right=names[1], acc=acc))
    work.types[name] = work.types[node.name]
    return work.settled(Pair(name, terms), work.dims(node.name))


# Maps.


def _map(work: PairWork, node: Map, scope: Scope, plain: frozenset[str]) -> None:
    inside = scope.inside(node)
    feeds, given, types = _fed(work, node)
    wanted = frozenset(o.inner for o in node.outputs if not isinstance(o, Final) and o.outer in plain)
    wanted |= frozenset(() if node.guard is None else (node.guard.value,))
    body = graph_of(work.policy, node.body, types, inside, given, wanted)
    outputs: list[Stacked | Final | Once] = []
    for output in node.outputs:
        if isinstance(output, Stacked):
            outputs += _stacked(work, node, body, output)
        elif isinstance(output, Once):
            outputs += _once(work, body, output)
    state, nodes = None, tuple(body.nodes)
    if node.state is not None:
        stacked = frozenset(o.inner for o in outputs if not isinstance(o, Final))
        safe = safe_state(body, stacked, node.state, node.axis, frozenset(given.fixed))
        state, nodes = safe.state, safe.nodes
        outputs += _finals(work, node, body, safe, given.fixed)
    changed = replace(node, inputs=tuple(feeds), body=Graph((), nodes, ()), outputs=tuple(outputs), state=state)
    work.nodes.append(pruned(sealed(changed)))


def _fed(work: PairWork, node: Map) -> tuple[list[Feed], Inputs, dict[str, BlockType]]:
    """Return the feeds of `node` after its inputs were rewritten, and what its body starts from."""
    feeds: list[Feed] = []
    given = Inputs()
    resumed = () if node.state is None else node.state.resume or ()
    taken = fresh(values_of(node.body))
    exponents: dict[tuple[str, Access], str] = {}

    def exponent(name: str, access: Access) -> str:
        seen = access if isinstance(access, Iterate) and access.over in work.types[name].lists else Broadcast()
        if (name, seen) not in exponents:
            inner = exponents[name, seen] = taken("z")
            feeds.append(Feed(name, inner, seen))
            source = work.sources[name]
            if isinstance(seen, Broadcast):
                given.fixed[inner] = name
                given.sources[inner] = source
            else:
                given.sources[inner] = source.renamed(seen.over, node.axis)
        return exponents[name, seen]

    for feed in node.inputs:
        pair = work.values[feed.outer]
        if feed.inner in resumed:
            pair = Pair(work.plain(pair, work.dims(feed.outer)))
        terms = tuple(sorted((exponent(n, feed.access), c) for n, c in pair.terms))
        if pair.significand is None:
            given.values[feed.inner] = Pair(None, terms, pair.dtype)
        else:
            feeds.append(Feed(pair.significand, feed.inner, feed.access))
            given.values[feed.inner] = Pair(feed.inner, terms)
    types = body_types(replace(node, inputs=tuple(feeds)), work.types)
    # The graph that is being rewritten still names the inputs that are no edges any more.
    old = body_types(node, work.types)
    if node.state is not None:
        given.values |= {inner: Pair(inner) for _, inner in node.state.shown}
    return feeds, given, {**old, **types}


def _stacked(work: PairWork, node: Map, body: PairWork, output: Stacked) -> list[Stacked | Final]:
    """Return the outputs for one list: its significands, and its exponents."""
    pair, kind = body.values[output.inner], body.types[output.inner]
    if not pair.terms:
        assert pair.significand is not None
        work.values[output.outer] = Pair(output.outer)
        return [Stacked(output.outer, pair.significand)]
    if kind.buffered:
        lists = [Stacked(work.make(n), n) for n, _ in pair.terms]
    else:
        pair = _for_a_list(body, pair, kind.dims)
        lists = [Stacked(work.make(n), n) for n, _ in pair.terms]
    for each in lists:
        inner = body.types[each.inner]
        work.types[each.outer] = BlockType((node.axis, *inner.lists), inner.dims, inner.dtype)
        work.sources[each.outer] = body.sources[each.inner]
    terms = tuple(sorted((o.outer, c) for o, (_, c) in zip(lists, pair.terms, strict=True)))
    outputs: list[Stacked | Final] = [*lists]
    significand = pair.significand
    if significand is None and not kind.buffered and not pair.dtype:
        work.values[output.outer] = Pair(None, terms)
        return outputs
    if significand is None:
        assert not kind.buffered
        significand = body.significand(pair, kind.dims)
    work.values[output.outer] = Pair(output.outer, terms)
    return [Stacked(output.outer, significand), *outputs]


def _for_a_list(body: PairWork, pair: Pair, dims: tuple[Axis, ...]) -> Pair:
    """Return `pair` with one exponent for all elements along axes where nothing that reads the list can miss what is lost by it."""
    if len(pair.terms) != 1:
        return pair
    source = body.sources[pair.terms[0][0]]
    axes = (source.axes[i] for i in body.policy.lists.get(source.number, ()))
    return body.shared(pair, frozenset(a for a in axes if a in dims), dims)


def _once(work: PairWork, body: PairWork, output: Once) -> list[Once]:
    """Return the outputs for one value of the only iteration: its significand, and its exponents."""
    pair = body.values[output.inner]
    exponents = [Once(work.make(n), n) for n, _ in pair.terms]
    for each in exponents:
        work.types[each.outer], work.sources[each.outer] = body.types[each.inner], body.sources[each.inner]
    terms = tuple(sorted((o.outer, c) for o, (_, c) in zip(exponents, pair.terms, strict=True)))
    if pair.significand is None:
        work.values[output.outer] = Pair(None, terms, pair.dtype)
        return exponents
    work.values[output.outer] = Pair(output.outer, terms)
    return [Once(output.outer, pair.significand), *exponents]


def _finals(
    work: PairWork, node: Map, body: PairWork, safe: SafeState, fixed: Mapping[str, str]
) -> list[Stacked | Final]:
    outputs: list[Stacked | Final] = []
    called = dict(fixed)
    for output in node.outputs:
        if not isinstance(output, Final):
            continue
        outputs.append(output)
        terms = safe.terms_of.get(output.inner, ())
        for component, _ in terms:
            if component not in called:
                name = called[component] = work.make("z")
                outputs.append(Final(name, component))
                found = next(c for c in safe.state.components if c.name == component)
                work.types[name] = BlockType((), found.dims, found.dtype)
                work.sources[name] = body.sources[safe.source_of[component]].shared((node.axis,))
        work.values[output.outer] = Pair(output.outer, tuple(sorted((called[n], c) for n, c in terms)))
    return outputs
