"""Rule 7: what it makes, that it computes the same, and what the driver offers beside rule 6."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from testkit.block import paper
from testkit.block.normal import signature
from testkit.block.programs import MUL, matmul
from testkit.fuse import peelable
from testkit.fuse.paper_rules import EXP, MADE, K, M, N, W, X, after, inner, tensors
from testkit.fuse.same import assert_same, run
from testkit.fuse.shuffle import shuffled
from testkit.schedules import random_schedule
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Graph, Map
from weft.block.ranges import First
from weft.block.walk import results, spaces
from weft.errors import ScheduleError
from weft.fuse import Site
from weft.fuse.extend_map import extend_map, extensible
from weft.fuse.merge_maps import are_siblings, feeds_only_by_iteration, merge_maps
from weft.fuse.peel_first_iteration import peel_first_iteration
from weft.fuse.rule import apply_at, graph_at
from weft.fuse.safety import make_safe
from weft.pipeline import EXTENSION, fuse
from weft.schedule import apply
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.passes import Conditioning
from weft.tensor.program import TensorProgram, Use

FUSED = {name: fuse(lower(make()), checked=True) for name, make in paper.EXAMPLES.items()}
ATTENTION = canonical(FUSED["attention"].alternatives[0].program)


def test_attention_with_its_first_block_of_l_peeled_off() -> None:
    """The scores are made together with the first block of L, and kept for the others."""
    assert (
        listing(ATTENTION)
        == """\
forall m in range(M):
  forall l in first(L):
    for n in range(N):
      for d in range(D):
        t1 = load(Q[m,d])
        t2 = load(KT[n,d])
        t3 += dot(t1,t2)
      t4 = exp(t3*DD**(-0.5))
      store(t4,I1[m,n])
      t5 += row_sum(t4)
      t6 = load(VT[l,n])
      t7 += dot(t4,t6)
    t8 = 1/t5
    t9 = row_scale(t7,t8)
    store(t9,O[m,l])
  forall l in rest(L):
    for n in range(N):
      t10 = load(I1[m,n])
      t11 = load(VT[l,n])
      t12 += dot(t10,t11)
    t13 = row_scale(t12,t8)
    store(t13,O[m,l])"""
    )


def test_a_loop_with_state_goes_on_from_its_first_iteration() -> None:
    """RMSNorm's last extension is of the loop over K, which adds up."""
    text = listing(FUSED["rmsnorm"].alternatives[1].program)
    assert "    for k in first(K):\n" in text
    assert "    t15 = t14\n    for k in rest(K):\n" in text
    assert "forall k in" not in text


# The same results.


def variants(graph: Graph, body: Graph) -> set[str]:
    """Which of rule 6's variants it is: how maps of `graph` meet those of the first iteration, `body`."""
    moved = {n.name for n in graph.nodes if isinstance(n, Map)}
    made = {name for n in body.nodes for name in results(n)}
    loops = [n for n in body.nodes if isinstance(n, Map)]
    found: set[str] = set()
    for one, other in ((a, b) for a in loops if a.name in moved for b in loops if b.name not in moved):
        if feeds_only_by_iteration(body, one, other):
            found.add("a")
        if are_siblings(body, one, other):
            shared = {(f.outer, f.access) for f in one.inputs} & {(f.outer, f.access) for f in other.inputs}
            found |= {"c" if name in made else "b" for name, _ in shared}
    return found


def sites(program: TensorProgram):
    """Every graph on the way of `program` through the driver in which a first iteration can be peeled off, with the result."""
    lowered = lower(program)
    for before in (lowered, *(s.after for s in fuse(lowered, checked=True).steps)):
        for path in peelable.paths(before):
            found = peel_first_iteration.rewrite(Site(before, path))
            if found is not None:
                yield before, path, apply_at(before, path, found)


def random_sizes(program: BlockProgram, rng: random.Random) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes and blocks that divide them; some loops have one block."""
    blocks = {s.name: rng.randint(1, 3) for s in spaces(program)}
    return {s: b * rng.choice((1, 2, 3)) for s, b in blocks.items()}, blocks


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(25))
def test_random_programs_compute_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for before, _, peeled in sites(peelable.random_program(rng)):
        check(peeled)
        check(canonical(peeled))
        sizes, blocks = random_sizes(before, rng)
        assert_same(before, peeled, sizes, blocks)
        assert_same(before, canonical(peeled), sizes, blocks)


def test_random_programs_are_of_every_kind() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(25):
        for before, path, peeled in sites(peelable.random_program(random.Random(seed))):
            first = graph_at(peeled.graph, path).nodes[0]
            assert isinstance(first, Map)
            assert first.range == First()
            kinds.update(variants(graph_at(before.graph, path), first.body))
            kinds["state" if first.state is not None else "unit" if first.unit else "parallel"] += 1
    assert set(kinds) >= {"a", "b", "state", "unit", "parallel"}


def test_a_list_that_the_graph_makes_is_read_by_both() -> None:
    """Variant (c), as for rule 6: (e @ w) * sum(e), e = exp(x), before the maps over k are fused."""
    program = half_fused()
    path = (program.graph.nodes[0].name,)
    found = peel_first_iteration.rewrite(Site(program, path))
    assert found is not None
    (first, *_) = found.graph.nodes
    assert isinstance(first, Map)
    assert "c" in variants(graph_at(program.graph, path), first.body)
    peeled = apply_at(program, path, found)
    check(peeled)
    for n in (1, 2, 6):
        assert_same(program, peeled, {"M": 4, "K": 6, "N": n}, {"M": 2, "K": 3, "N": min(n, 2)})


def half_fused() -> BlockProgram:
    e = paper.each("e", (M, K), EXP, Use("x", (M, K)))
    product = matmul("z", Use("e", (M, K)), Use("w", (N, K)), K)
    scaled = paper.each("out", (M, N), MUL, Use("z", (M, N)), Use("t", (M,)))
    site = inner(tensors(e, paper.row_sum("t", "e", M, K), product, scaled, inputs=(X, W), outputs=("out",)))
    dot, scale = (n for n in site.graph.nodes if isinstance(n, Map) and n.axis.space == N.space)
    return apply_at(site.program, site.path, merge_maps(site.graph, dot, scale))


@pytest.mark.parametrize("name", [*paper.EXAMPLES, "shared_parent"])
def test_every_step_to_an_alternative_computes_the_same(name: str) -> None:
    rng = random.Random(name)
    for alternative in fuse(lower(MADE[name]()), checked=True).alternatives:
        for step in alternative.steps:
            blocks = {s.name: rng.randint(1, 3) for s in spaces(step.before)}
            sizes = {space: size * rng.randint(2, 3) for space, size in blocks.items()}
            assert_same(step.before, step.after, sizes, blocks)


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_computes_the_same(seed: int) -> None:
    """Blocks that do not divide the sizes, one block, a single element; several levels; padding is poison."""
    rng = random.Random(seed)
    lowered = lower(peelable.random_program(rng))
    for alternative in fuse(lowered, checked=True).alternatives:
        program = canonical(alternative.program)
        for _ in range(4):
            try:
                applied = apply(program, random_schedule(program, rng, (1, 2, 3, 5, 8)))
            except ScheduleError:
                continue
            sizes = {s.name: rng.choice((1, 2, 3, 4, 7, 8, 9)) for s in spaces(lowered)}
            numbers = np.random.default_rng(seed)
            given = {n: numbers.standard_normal([a.space.size(sizes) for a in k.lists]) for n, k in lowered.inputs}
            (before,), (found,) = (interpret(p, given, sizes, Fp64Domain(), sizes)[0] for p in (lowered, applied))
            np.testing.assert_allclose(found, before, rtol=1e-9, atol=1e-9)


# The driver.


@pytest.mark.parametrize(("name", "beside"), [("attention", [1]), ("layernorm", [1]), ("rmsnorm", [1, 2])])
def test_each_extension_has_an_alternative(name: str, beside: list[int]) -> None:
    fusion = FUSED[name]
    assert [a.beside for a in fusion.alternatives] == beside
    for alternative in fusion.alternatives:
        shared, extended = fusion.snapshots[alternative.beside - 1], fusion.snapshots[alternative.beside]
        assert alternative.steps[0].rule == "peel_first_iteration"
        assert alternative.steps[0].before == shared.program
        assert alternative.steps[0].place == fusion.steps[shared.steps].place
        assert [s.rule for s in alternative.steps[1:]] == [
            s.rule for s in fusion.steps[shared.steps + 1 : extended.steps]
        ]
        for one, other in zip(alternative.steps, alternative.steps[1:], strict=False):
            assert one.after == other.before
        assert alternative.steps[-1].after == alternative.program


def test_no_alternative_without_an_extension() -> None:
    lowered = lower(paper.attention())
    assert fuse(lowered, extend=()).alternatives == ()
    assert fuse(lowered, instead=()).alternatives == ()
    assert fuse(lowered, instead=()).snapshots == FUSED["attention"].snapshots


@pytest.mark.parametrize("name", paper.EXAMPLES)
def test_writing_it_otherwise_changes_nothing(name: str) -> None:
    expected = [signature(a.program) for a in FUSED[name].alternatives]
    for seed in range(8):
        other = fuse(shuffled(paper.initial(name), random.Random(seed)))
        assert [signature(a.program) for a in other.alternatives] == expected


def test_what_the_rule_does_to_rounding() -> None:
    assert (peel_first_iteration.number, peel_first_iteration.conditioning) == (7, Conditioning.exact)
    assert peel_first_iteration not in EXTENSION


@pytest.mark.parametrize("name", MADE)
def test_it_fires_just_where_rule_6_does(name: str) -> None:
    lowered = lower(MADE[name]())
    for program in (lowered, after(lowered), *(s.after for s in fuse(lowered).steps)):
        for path in peelable.paths(program):
            site = Site(program, path)
            peeled = peel_first_iteration.rewrite(site) is not None
            assert peeled == (extensible(site.graph) is not None)  # one map is extended, not several inside one another
            assert not peeled or extend_map.rewrite(site) is not None


# Numerical safety after it.


@pytest.mark.parametrize("make", [paper.attention, peelable.one_query, peelable.peeled_softmax, MADE["shared_parent"]])
def test_pairs_compute_the_same(make) -> None:
    rng = random.Random(make.__name__)
    lowered = lower(make())
    for alternative in fuse(lowered, checked=True).alternatives:
        safe = make_safe(alternative.program).program
        check(safe)
        for _ in range(4):
            sizes, blocks = random_sizes(lowered, rng)
            (before,), (found,) = (run(p, Fp64Domain(), sizes, blocks) for p in (lowered, safe))
            np.testing.assert_allclose(found, before, rtol=1e-6, atol=1e-9)


def test_large_scores_do_not_overflow_in_a_peeled_loop() -> None:
    safe = make_safe(ATTENTION)
    assert (safe.converted, safe.plain) == (1, 0)
    sizes, blocks = {"M": 2, "N": 6, "D": 1, "L": 6}, {"M": 2, "N": 2, "D": 1, "L": 2}
    numbers = np.random.default_rng(0)
    given = {
        "q": np.full((2, 1), 100.0),
        "kt": 50 * numbers.standard_normal((6, 1)),
        "vt": numbers.standard_normal((6, 6)),
    }
    (found,), _ = interpret(safe.program, given, sizes, Fp64Domain(), blocks)
    scores = given["q"] @ given["kt"].T
    assert scores.max() > 1000
    weights = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True) @ given["vt"].T, rtol=1e-9)
