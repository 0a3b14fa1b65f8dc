"""The paper's three derivations (section 5): step by step, listing by listing, in whatever way the program is written."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from testkit.block import paper
from testkit.block.normal import signature
from testkit.fuse.listings import form
from testkit.fuse.shuffle import shuffled
from weft.block.listing import listing
from weft.fuse import Fusion
from weft.pipeline import fuse

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
"""The listings after a step, as the paper prints them but for what docs/internals/errata.md says."""

MAPS, SIBLINGS, REDUCTION = "fuse_consecutive_maps", "fuse_sibling_maps", "fuse_map_with_reduction"
TITLES = {
    "attention": [
        *[MAPS] * 6,  # 1-6: fuse M-maps
        "swap_scale_dot",  # 7
        REDUCTION,  # 8
        *[MAPS] * 4,  # 9-12: three N-maps, one L-map
        "fuse_consecutive_elementwise",  # 13
        *[REDUCTION] * 2,  # 14-15
        "extend_map",  # 16
        MAPS,  # 17
    ],
    "layernorm": [
        *[MAPS] * 7,  # 1-7: fuse M-maps
        "swap_scale_dot",  # 8
        "swap_shift_dot",  # 9
        *[REDUCTION] * 2,  # 10-11
        *[MAPS] * 5,  # 12-17: four N-maps by rule 1, the K-maps by rules 1 and 2
        SIBLINGS,
        *[REDUCTION] * 2,  # 18-19
        SIBLINGS,  # 20
        "extend_map",  # 21
        SIBLINGS,  # 22
    ],
    "rmsnorm": [
        *[MAPS] * 8,  # 1-8: fuse M-maps
        "duplicate_mapped_scale",  # 9
        *["swap_scale_dot"] * 2,  # 10-11
        REDUCTION,  # 12
        *[MAPS] * 6,  # 13-18: five K-maps, one D-map
        *[REDUCTION] * 2,  # 19-20
        SIBLINGS,  # 21
        REDUCTION,  # 22
        "extend_map",  # 23
        MAPS,  # 24
        "extend_map",  # 25
        SIBLINGS,  # 26
    ],
}
"""The rules that the titles of the steps name."""

SNAPSHOTS = {"attention": [15, 17], "layernorm": [20, 22], "rmsnorm": [22, 24, 26]}
FUSED = {name: fuse(paper.initial(name), checked=True) for name in paper.EXAMPLES}


@pytest.mark.parametrize("name", paper.EXAMPLES)
def test_the_steps_are_the_papers(name):
    assert [s.rule for s in FUSED[name].steps] == TITLES[name]
    assert len(FUSED[name].steps) == {"attention": 17, "layernorm": 22, "rmsnorm": 26}[name]


@pytest.mark.parametrize("name", paper.EXAMPLES)
def test_snapshots_are_taken_where_the_paper_takes_them(name):
    fusion = FUSED[name]
    assert [s.steps for s in fusion.snapshots] == SNAPSHOTS[name]
    for snapshot in fusion.snapshots:
        assert snapshot.program == fusion.steps[snapshot.steps - 1].after
    assert fusion.last == fusion.steps[-1].after


def test_every_listing_of_the_paper_is_here():
    assert len(GOLDEN) == 29
    assert Counter(path.stem.split("_")[0] for path in GOLDEN) == {"attention": 8, "layernorm": 9, "rmsnorm": 12}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_program_after_each_listing(path):
    name, step = path.stem.split("_")
    assert form(listing(FUSED[name].steps[int(step) - 1].after)) == form(path.read_text())


def test_forms_tell_listings_apart():
    forms = {path.stem: form(path.read_text()) for path in GOLDEN}
    assert len(set(forms.values())) == len(forms)
    text = (GOLDEN[0].parent / "attention_17.txt").read_text()
    same = text.replace("t4", "t40").replace("O[", "Out[")
    assert form(same) == form(text)
    for old, new in (("row_sum", "row_max"), ("t6 = load(VT[l,n])", "t6 = load(VT[n,l])"), ("dot(t4,t6)", "dot(t6,t4)"),
                     ("for d", "forall d"), ("range(D)", "range(N)"), ("1/t5", "t5/1")):  # fmt: skip
        assert old in text
        assert form(text.replace(old, new)) != form(text)


def _counts(fusion: Fusion) -> tuple[Counter[str], list[int]]:
    return Counter(s.rule for s in fusion.steps), [s.steps for s in fusion.snapshots]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", paper.EXAMPLES)
def test_writing_it_otherwise_changes_nothing(name):
    """100 times: nodes in another order, operands swapped, everything renamed."""
    expected, final = _counts(FUSED[name]), signature(FUSED[name].last)
    seen: set[str] = set()
    for seed in range(100):
        program = shuffled(paper.initial(name), random.Random(seed))
        seen.add(listing(program))
        other = fuse(program)
        assert _counts(other) == expected, seed
        assert signature(other.last) == final, seed
    assert len(seen) > 90
