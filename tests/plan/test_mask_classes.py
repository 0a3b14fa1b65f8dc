"""Classes of masks: what an example has, what is drawn for them, what the model makes of them, and what is remembered by them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from testkit.emit.triton_guards import guarded
from testkit.masks.guarded import MASKED
from weft.cost import estimate_gpu, launches_of
from weft.masks import EDGES, NONE, Sparsity, classed, share_of, typical
from weft.plan.choose.select import looked_at_closely, select
from weft.plan.execute.selections import form_of
from weft.plan.execute.sparsity import class_of, classes_of
from weft.plan.targets.candidates import Example
from weft.plan.targets.packed import packed, unpacked
from weft.plan.targets.triton import rounds, tune
from weft.plan.targets.triton.drawn import as_masks, in_blocks
from weft.schedule import Schedule
from weft.target import Target

H200 = Target("cuda", "90")


def longformer(n: int) -> torch.Tensor:
    i, j, width = torch.arange(n)[:, None], torch.arange(n), math.isqrt(n)
    return ((i - j).abs() <= width) | (i < width) | (j < width)


def window(n: int) -> torch.Tensor:
    i, j = torch.arange(n)[:, None], torch.arange(n)
    return (i - j).abs() <= 1.5 * math.sqrt(n)


def squares(n: int, share: float) -> torch.Tensor:
    busy = torch.rand(-(-n // 64), -(-n // 64)) < share
    return busy.repeat_interleave(64, 0).repeat_interleave(64, 1)[:n, :n]


def sparsity(*, true: int, false: int) -> Sparsity:
    """Make the class of a mask whose blocks are of such shares, whatever their size, and none is full."""
    return Sparsity((true,) * 6, (false,) * 6, (NONE,) * 6, (NONE,) * 6)


def test_a_few_full_blocks_are_not_lost() -> None:
    torch.manual_seed(0)
    few = class_of(squares(4096, 0.1))
    assert few.all_true[3] == few.true[3] == few.true[0], "all blocks that have something to do are full"
    assert few.false[3] == 0


@pytest.mark.parametrize("n", [512, 2048, 4096])
def test_what_is_typical_is_what_a_causal_mask_has(n: int) -> None:
    causal = class_of(torch.ones(n, n, dtype=torch.bool).tril())
    assert (causal.true, causal.all_true) == (typical(n).true, typical(n).all_true)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 7), (130, 517), (1024,), (2, 64, 64)])
def test_shares_are_those_of_blocks(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    mask = torch.rand(shape) < 0.02
    rows = mask.reshape(-1, *(1, *shape)[-2:])
    for place, edge in enumerate(EDGES):
        blocks = [b for each in rows for r in each.split(edge, 0) for b in r.split(edge, 1)]
        assert class_of(mask).true[place] == classed(sum(bool(b.any()) for b in blocks) / len(blocks))
        assert class_of(mask).false[place] == classed(sum(not bool(b.all()) for b in blocks) / len(blocks))
        assert class_of(mask).all_true[place] == classed(sum(bool(b.all()) for b in blocks) / len(blocks))
        assert class_of(mask).all_false[place] == classed(sum(not bool(b.any()) for b in blocks) / len(blocks))


def test_only_bools_with_elements_have_a_class() -> None:
    given = {"a": torch.ones(4, 4), "b": torch.ones(0, 4, dtype=torch.bool), "c": torch.tensor(data=True)}
    assert classes_of({**given, "d": torch.ones(4, 4, dtype=torch.bool)}).keys() == {"d"}


def test_a_share_lies_between_those_of_smaller_and_of_larger_blocks() -> None:
    shares = typical(4096).busy(idle=False)
    found = [share_of(shares, rows, columns) for rows, columns in ((1, 1), (16, 16), (16, 64), (64, 64), (128, 512))]
    assert found == sorted(found)
    assert found[1] == shares[1]
    assert found[-1] == shares[-1]


@pytest.mark.parametrize("n", [512, 700, 2048])
def test_masks_are_drawn_with_the_shares_of_their_class(n: int) -> None:
    torch.manual_seed(0)
    for mask in (longformer(n), window(n), ~longformer(n), squares(n, 0.1), torch.ones(n, n, dtype=torch.bool).tril()):
        wanted = class_of(mask)
        some, every = wanted.busy(idle=False), wanted.full(idle=False)
        drawn = [class_of(in_blocks((n, n), some, every, torch.device("cpu"))) for _ in range(8)]
        found = [(each.busy(idle=False), each.full(idle=False)) for each in drawn]
        mean, said = torch.tensor(found).mean(0), torch.tensor((some, every))
        assert (mean - said).abs().max() <= (0.1 if n > 1000 else 0.2), (some, every, mean)
        # Where few blocks are busy or full, about as few are.
        assert n < 1000 or ((mean < 1.6 * said + 0.02) & (said < 1.6 * mean + 0.02)).all(), (some, every, mean)


def test_a_few_false_elements_are_drawn_in_most_blocks_that_have_one():
    """Blocks that are drawn all True have a loop without a mask: what is timed would be faster than what is called."""
    given = torch.rand(1024, 1024) >= 1 / 2048
    kind = class_of(given)
    for edge, wanted in ((64, 0.7), (128, 0.95)):
        blocks = in_blocks((1024, 1024), kind.busy(False), kind.full(False), torch.device("cpu"))
        open_ = ~blocks.unflatten(1, (-1, edge)).unflatten(0, (-1, edge)).transpose(1, 2).flatten(2).all(-1)
        assert open_.float().mean() > wanted, edge


@pytest.mark.parametrize("beforehand", [False, True])
@pytest.mark.parametrize("name", MASKED)
def test_what_is_drawn_for_a_guarded_loop_has_empty_blocks(name: str, *, beforehand: bool) -> None:
    torch.manual_seed(0)
    idle = MASKED[name][1]
    program = guarded(name, beforehand=beforehand).program
    kinds = {"mask": torch.bool, "bias": torch.float32, "of_row": torch.int64, "of_column": torch.int64}
    inputs = {
        n: torch.zeros(1024 if len(kind.lists) == 1 else (1024, 1024)).to(kinds[n])
        for n, kind in program.inputs
        if n in kinds
    }
    # Of columns alone nothing is typical: a layer's bias leaves nothing out.
    padded = {n: class_of(torch.arange(1024) < 700) for n, each in inputs.items() if each.dim() == 1}
    as_masks({}, [program], padded)  # of what is not among them, nothing is exchanged
    as_masks(inputs, [program], padded)
    for each in inputs.values():
        if not each.is_floating_point() and each.dtype is not torch.bool:
            assert (each.diff() >= 0).all() or not beforehand
            continue
        busy = each != idle
        assert 0 < busy.float().mean() < 0.9
        if each.dim() == 2:
            assert class_of(busy).true[3] > 0, "blocks of 64 are empty, some of them"


def test_candidates_are_timed_on_such_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(rounds, "cache_filler", lambda device: torch.empty(1, device=device))
    program, case = MASKED["weighted without"][0](), guarded("weighted without", beforehand=True)
    innermost = {n.name: None for n in program.inputs}
    sparse = Example(dict.fromkeys(case.sizes, 1024), innermost, 1, H200, {"mask": class_of(~longformer(1024))})
    timer = rounds.CandidateTimer(program, sparse, torch.device("cpu"), [case.program])
    found, wanted = class_of(timer.inputs["mask"]).false, sparse.masks["mask"].false
    assert all(abs(a - b) <= 1 for a, b in zip(found, wanted, strict=True)), (found, wanted)
    plain = rounds.CandidateTimer(program, sparse, torch.device("cpu"))
    assert class_of(plain.inputs["mask"]).false[3] == 0, "random elements leave no block empty"


def seconds(name: str, masks: Mapping[str, Sparsity], *, beforehand: bool) -> float:
    case = guarded(name, beforehand=beforehand)
    sizes = dict.fromkeys(case.sizes, 1024)
    return sum(c.predicted_seconds for c in estimate_gpu(case.program, sizes, H200, Schedule(()), masks=masks))


@pytest.mark.parametrize("beforehand", [False, True])
def test_a_guarded_loop_costs_what_its_busy_iterations_do(*, beforehand: bool) -> None:
    dense, sparse = sparsity(true=0, false=0), sparsity(true=8, false=0)
    every = seconds("weighted", {"mask": dense}, beforehand=beforehand)
    few = seconds("weighted", {"mask": sparse}, beforehand=beforehand)
    assert few < 0.5 * every
    assert seconds("weighted", {"mask": sparsity(true=0, false=8)}, beforehand=beforehand) == every
    assert seconds("weighted without", {"mask": sparsity(true=0, false=8)}, beforehand=beforehand) == pytest.approx(
        few, rel=0.01
    )
    assert seconds("weighted", {}, beforehand=beforehand) < every, "without an example, what is typical"


@pytest.mark.parametrize("beforehand", [False, True])
def test_a_masked_sum_reads_of_its_data_what_is_busy_and_all_of_its_mask(*, beforehand: bool) -> None:
    case = guarded("sums", beforehand=beforehand)
    sizes, masks = dict.fromkeys(case.sizes, 1024), {"mask": sparsity(true=8, false=0)}
    costs = [launch.counted.loaded for launch in launches_of(case.program, sizes, masks=masks)]
    assert sum(each.get("x", 0) for each in costs) == 1024**2 * 4 / 16
    assert sum(each.get("mask", 0) for each in costs) >= 1024**2


def test_loops_for_full_blocks_are_compared_right_after_the_likeliest() -> None:
    program = MASKED["weighted"][0]()
    sizes = {space.name: 8192 for space in program.spaces()} | {"D": 64, "K": 64}
    some, none = (Sparsity((4,) * 6, (1,) * 6, (full,) * 6, (1,) * 6) for full in (4, NONE))
    found = []
    for kind in (some, none):
        selection = looked_at_closely(select(program, Example(sizes, {}, 1, H200, {"mask": kind})))
        found.append((selection.chosen, *(selection.others or ())))
    first, *others = tune._each_once(found[0], 7)
    # It has as many thread blocks as the first one, and those with fewer or more are likelier than the others with as many.
    assert first.cost.thread_blocks == others[0].cost.thread_blocks
    assert (first.schedule.apart, others[0].schedule.apart) == (frozenset(), others[0].schedule.beforehand)
    ways = [each for each in found[0] if each.applied is others[0].applied]
    assert len({(each.schedule.warps, each.schedule.stages) for each in ways}) == len(ways) > 1
    assert not any(each.schedule.apart for each in found[1])


def test_the_class_belongs_to_what_is_remembered() -> None:
    program = MASKED["weighted"][0]()
    sizes, innermost = {s.name: 64 for s in program.spaces()}, {n.name: None for n in program.inputs}
    plain = Example(sizes, innermost, 1, H200)
    sparse = Example(sizes, innermost, 1, H200, {"mask": class_of(longformer(512))})
    assert plain.kind != sparse.kind
    assert form_of(program, plain) != form_of(program, sparse)
    assert unpacked(packed(sparse), Example) == sparse
