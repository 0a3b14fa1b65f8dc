"""Planted defects at the sizes that a GPU's kernels are judged at: in a remainder, in one block, in a part of a split sum.

The sizes are chosen for the binaries that are compiled for a GPU; what a wrong kernel would give there is worked out here, with the
elements changed that it would get wrong, or without those that it would leave out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import weft
from testkit.verify.emitted import right
from weft.block.places import Place
from weft.block.ranges import Segment
from weft.block.walk import maps
from weft.plan.execute import regions
from weft.plan.judge.sizes import sizes_for
from weft.verify.cases import cases
from weft.verify.emitted import ErrorTally
from weft.verify.fitted import points
from weft.verify.regimes import reduced_spaces


def decode(x, wq, wk, wv, keys, values):
    """Computes a token of grouped-query attention: sizes of its parts are so many times the heads, which most parts have not."""
    h = x * torch.rsqrt((x.float() ** 2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)
    q = (h @ wq.T).view(16, 1, 64)
    keys = torch.cat([keys, (h @ wk.T).view(4, 1, 64)], 1)
    values = torch.cat([values, (h @ wv.T).view(4, 1, 64)], 1)
    k, v = (t[:, None].expand(4, 4, -1, 64).reshape(16, -1, 64) for t in (keys, values))
    p = torch.softmax((q @ k.mT).float() / 8, -1).to(x.dtype)
    return p @ v, keys, values


def product(x, w):
    return torch.relu(x @ w)


FUNCTIONS = {
    "decode": (decode, ((1, 1024), (1024, 1024), (256, 1024), (256, 1024), (4, 1023, 64), (4, 1023, 64))),
    "remainders": (product, ((300, 1000), (1000, 500))),
}


@pytest.fixture(scope="module", params=FUNCTIONS)
def judged(request, tmp_path_factory):
    """Gives what each region of a function is judged by, with its sizes."""
    function, shapes = FUNCTIONS[request.param]
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regions, "demand", lambda judged, region: found.append((judged, region)) or "right")
        inputs = tuple(torch.randn(shape).bfloat16() for shape in shapes)
        folder = tmp_path_factory.mktemp("cache")
        program = weft.optimize(function, inputs, target="cuda:90", effort="none", cache_dir=folder)
    assert not program.fallbacks
    return [(each, region, sizes_for(each, region)) for each, region in found if region.kernels]


@dataclass(frozen=True)
class Defect:
    """Describes what a kernel gets wrong: a stretch of a space, given how long that is; None where there is no such stretch."""

    kind: str
    space: str
    tile: int
    count: int = 1

    def stretch(self, size: int) -> slice | None:
        """Returns the elements that are wrong, or left out, of `size`."""
        blocks = -(-size // self.tile)
        match self.kind:
            case "remainder":
                return slice(size // self.tile * self.tile, size) if size % self.tile and blocks > 1 else None
            case "second block":
                return slice(self.tile, 2 * self.tile) if blocks > 1 else None
            case _:
                each = -(-blocks // self.count) * self.tile
                last = (size - 1) // each
                return slice(last * each, size) if last else None


def defects_of(judged, region):
    """Lists the defects that loops of a region may have in calls of the example's size."""
    found = {}
    for node in (m for kernel in region.kernels for m in maps(kernel.block_program.graph)):
        space, tile = judged.names.get(node.axis.space.name), node.tile or 1
        if space is None or tile == 1 or node.place not in {Place.grid, Place.loop} or node.unit:
            continue
        kinds = [Defect("second block", space, tile), Defect("remainder", space, tile)]
        if isinstance(node.range, Segment):
            kinds.append(Defect("last part", space, tile, node.range.count))
        found |= dict.fromkeys(kinds)
    example = judged.sizes
    return [each for each in found if each.stretch(example[each.space]) is not None]


def results_with(defect, judged, case):
    """Returns what a kernel with a defect gives: where the space is one of a result, other numbers; else without what it sums."""
    program, stretch = judged.written, defect.stretch(judged.written.sizes(case.sizes)[defect.space])
    if stretch is None:
        return right(case)
    if defect.space in reduced_spaces(program):
        inputs = {n.name: without(case.inputs[n.name], n, defect.space, stretch) for n in program.inputs}
        return right(replace(case, inputs=inputs, known={}))
    values, made = program.values(), []
    for name, found in zip(program.outputs, right(case), strict=True):
        dims = [d for d, a in enumerate(values[name].axes) if a.space.name == defect.space]
        wrong = found.copy()
        for dim in dims:  # it takes the first block's for its own
            place = tuple(stretch if d == dim else slice(None) for d in range(found.ndim))
            first = tuple(
                slice(0, stretch.stop - stretch.start) if d == dim else slice(None) for d in range(found.ndim)
            )
            wrong[place] = found[first][tuple(slice(0, n) for n in wrong[place].shape)]
        made.append(wrong)
    return tuple(made)


def without(values, node, space, stretch):
    """Returns the elements of an input, 0 along a stretch of a space."""
    found = values.copy()
    for dim, axis in enumerate(node.axes):
        if axis.space.name == space:
            found[tuple(stretch if d == dim else slice(None) for d in range(found.ndim))] = 0
    return found


def drawn(judged, chosen):
    """Draws what a region is judged on; its references are worked out once for all defects."""
    return list(cases(judged.written, chosen.far, chosen.near, 0, 1, chosen.layout))


def verdict(judged, drawn, results):
    tally = ErrorTally(judged.written)
    for case in drawn:
        with np.errstate(all="ignore"):
            tally.add(case, results(case))
        if tally.wrong:
            break
    return tally.verdict()


def test_defects_of_every_loop_are_found(judged):
    met = []
    for each, region, chosen in judged:
        examples = drawn(each, chosen)
        assert verdict(each, examples, right) is None
        for defect in defects_of(each, region):
            assert verdict(each, examples, lambda case, d=defect, j=each: results_with(d, j, case)), defect
            met.append(defect.kind)
    assert "second block" in met
    assert {"remainder", "last part"} & set(met)


def test_sizes_are_a_part_of_the_examples(judged):
    """Shows that the judge takes less where the example's sizes are large and the binary is not for these alone."""
    for each, _, chosen in judged:
        own = points(each.written, each.written.sizes(each.sizes))
        assert own < 1 << 20 or min(points(each.written, sizes) for sizes in chosen.near) <= own // 3
