"""Which regions become one, and what little work runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch

import weft
from testkit.block import paper, programs
from testkit.emit import special
from weft.cost import Machine, least_seconds
from weft.errors import UnsupportedError
from weft.plan.choose.cuts import Cuts
from weft.plan.choose.select import select
from weft.plan.partition.partition import Region, Task, partition
from weft.plan.targets.candidates import Example, Selection
from weft.plan.targets.choose import off_the_grid
from weft.schedule import LevelPlace, kernels
from weft.tensor.program import Contraction, Elementwise, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, apply

MACHINE = Machine.here(2)


@dataclass
class Predicted:
    """The cost model's prices on a CPU where every size is `size`; joined products are predicted to take `seconds` times what they
    do, and regions of which `impossible` is true have no kernel."""

    program: TensorProgram
    size: int
    seconds: float = 1.0
    impossible: Callable[[TensorProgram], bool] = lambda _: False
    fine: bool = False
    launch_seconds: float = MACHINE.launch_seconds

    def selection(self, region: Region) -> Selection:
        if self.impossible(region.program):
            raise UnsupportedError("no kernel")
        innermost = {n.name: len(n.axes) - 1 for n in region.program.inputs}
        found = select(region.program, Example(self.sizes, innermost, 2))
        if sum(isinstance(n, Contraction) for n in region.program.nodes) < 2:
            return found
        cost = replace(found.chosen.cost, predicted_seconds=found.chosen.cost.predicted_seconds * self.seconds)
        return replace(found, chosen=replace(found.chosen, cost=cost))

    def at_hand(self, region: Region) -> bool:
        return False

    def foreseen(self, regions: Iterable[Region], *, doubtful: bool = False) -> bool:
        return False

    def form(self, region: Region) -> frozenset[str]:
        return frozenset(n.name for n in region.program.nodes)

    def settled(self, regions: Sequence[Region]) -> None:
        pass

    def lengths(self, region: Region) -> dict[str, int]:
        return {space.name: self.size for space in region.program.spaces()}

    def least(self, region: Region, reached: float = 1.0) -> float:
        return least_seconds(region.program, self.sizes, MACHINE, cached=True, reached=reached) * min(1.0, self.seconds)

    @property
    def sizes(self) -> dict[str, int]:
        return {s.name: self.size for s in self.program.spaces()}


def stages(program: TensorProgram, size: int, seconds: float = 1.0) -> tuple[Task, ...]:
    return Cuts(program, Predicted(program, size, seconds)).stages()


@pytest.mark.parametrize("size", [2, 7, 64, 130, 513])
def test_rows_that_are_reduced_and_then_contracted_stay_in_one_kernel(size):
    assert len(partition(paper.attention())) == 2
    assert len(stages(paper.attention(), size)) == 1


def test_but_not_where_that_is_predicted_clearly_slower():
    assert len(stages(paper.attention(), 130, seconds=2.0)) == 2


@pytest.mark.parametrize("size", [64, 513])
def test_rows_that_are_only_contracted_are_joined_for_a_clear_gain_alone(size):
    assert not any(isinstance(n, Reduction) for n in programs.two_layers().nodes)
    assert len(stages(programs.two_layers(), size)) == 2
    assert len(stages(programs.two_layers(), size, seconds=0.1)) == 1


def test_rows_that_no_kernel_can_hold_are_made_by_one_and_reduced_by_another():
    """softmax(x @ w) of rows too long to stay on chip beside their product: no region of both has a kernel."""
    program = special.softmax()

    def impossible(region: TensorProgram) -> bool:
        return {Contraction, Reduction} <= {type(n) for n in region.nodes}

    first, second = Cuts(program, Predicted(program, 64, impossible=impossible)).stages()
    assert isinstance(first, Region)
    assert isinstance(second, Region)
    assert [n.name for n in first.program.nodes] == ["s"]
    assert [n.name for n in second.program.nodes] == ["top", "e", "sum", "out"]
    assert second.uses == first.results == ("s",)


def test_results_of_rows_are_added_up_by_a_kernel_of_their_own_where_one_cannot_do_both():
    m, n = programs.axes("m", "n")
    rows = Reduction("rows", (m,), programs.F32, Monoid.sum, paper.Use("x", (m, n)), (n,))
    whole = Reduction("whole", (), programs.F32, Monoid.sum, paper.Use("rows", (m,)), (m,))
    program = TensorProgram((programs.tensor("x", m, n),), (rows, whole), ("whole",))
    prices = Predicted(program, 64, impossible=lambda region: len(region.nodes) > 1)
    assert [s.results for s in Cuts(program, prices).stages()] == [("rows",), ("whole",)]


def weighted_row(after: int = 0) -> TensorProgram:
    """A row by a matrix, times the sum of what that gives, and that by so many matrices `after` it."""
    k, n, m = programs.axes("k", "n", "m")
    use, numbers = paper.Use, range(after)
    return TensorProgram(
        (programs.tensor("x", k), programs.tensor("w", k, n), *(programs.tensor(f"v{i}", n, m) for i in numbers)), (
        Contraction("s", (n,), programs.F32, use("x", (k,)), use("w", (k, n)), (k,)),
        Reduction("sum", (), programs.F32, Monoid.sum, use("s", (n,)), (n,)),
        Elementwise("out", (n,), programs.F32, programs.MUL, (use("s", (n,)), use("sum", ()))),
        *(Contraction(f"p{i}", (m,), programs.F32, use("out", (n,)), use(f"v{i}", (n, m)), (n,)) for i in numbers),
    ), ("out", *(f"p{i}" for i in numbers)))  # fmt: skip


def test_a_matrix_is_not_left_to_one_thread_for_the_sum_of_a_row() -> None:
    """The loop of both has a state, so it is not on the grid: cut, where that is what takes the time, and only there."""
    assert len(stages(weighted_row(), 64)) == 1
    first, second = stages(weighted_row(), 2048)
    assert isinstance(first, Region)
    assert isinstance(second, Region)
    assert [n.name for n in first.program.nodes] == ["s"]
    assert [n.name for n in second.program.nodes] == ["sum", "out"]


def test_matrices_after_such_a_row_do_not_keep_it_on_one_thread() -> None:
    """Each of them sums along the row, which else is a reason to keep it beside them."""
    first, *_ = stages(weighted_row(after=3), 1024)
    assert isinstance(first, Region)
    assert [n.name for n in first.program.nodes] == ["s"]


def single_query() -> TensorProgram:
    """A dot product of two vectors, and a third times it: no loop is around both."""
    m, n = programs.axes("m", "n")
    x, y, v = programs.tensor("x", m), programs.tensor("y", m), programs.tensor("v", n)
    use = paper.Use
    return TensorProgram((x, y, v), (
        Contraction("dot", (), programs.F32, use("x", (m,)), use("y", (m,)), (m,)),
        Elementwise("out", (n,), programs.F32, programs.MUL, (use("v", (n,)), use("dot", ()))),
    ), ("out",))  # fmt: skip


def test_little_work_takes_one_launch_and_much_work_the_grid():
    few, many = (select(single_query(), Example({"M": n, "N": n}, {"x": 0, "y": 0, "v": 0}, 2)) for n in (64, 1 << 22))
    assert len(kernels(few.chosen.applied)) == 1
    assert len(kernels(many.chosen.applied)) == 2
    alone = off_the_grid(many.chosen.schedule)
    assert [[level.size for level in loop.levels] for _, loop in alone.loops] == [
        [level.size for level in loop.levels] for _, loop in many.chosen.schedule.loops
    ]
    assert not any(level.place is LevelPlace.grid for _, loop in alone.loops for level in loop.levels)


def test_a_value_of_indices_alone_that_is_also_a_result_is_a_region_of_its_own_on_a_gpu() -> None:
    """Every region that reads such a value makes it itself, and then nothing of this one is left to be cut."""

    def masked(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.arange(16)[:, None] >= torch.arange(16)[None, :]
        return x.masked_fill(~kept, 0.0), kept

    program = weft.optimize(masked, (torch.randn(4, 16, 16),), target="cuda:90")
    assert len(program.kernels) == 2
    assert not program.fallbacks


def test_what_lies_between_passes_is_cut_further_where_it_has_no_kernel() -> None:
    """Vectors that are looked up and read along both axes of a mask, which a softmax between two matmuls reads."""

    def masked(ids: torch.Tensor, place: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        row, i = torch.arange(8)[:, None, None], torch.arange(1024)
        same = ids[row, i[None, :, None]] == ids[row, i[None, None, :]]
        seen = place[row, i[None, None, :]] <= place[row, i[None, :, None]]
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=(same & seen)[:, None])

    ids = torch.randint(0, 3, (8, 1024))
    program = weft.optimize(masked, (ids, ids, torch.randn(8, 4, 1024, 64)), target="cuda:90", judge="off")
    assert not program.fallbacks


@dataclass
class Heard(Predicted):
    """Prices that note which regions were asked for, and before which others these were told."""

    def __post_init__(self) -> None:
        self.told: list[set[str]] = []
        self.asked: list[set[str]] = []

    def selection(self, region: Region) -> Selection:
        self.asked.append({n.name for n in region.program.nodes})
        return super().selection(region)

    def foreseen(self, regions: Iterable[Region], *, doubtful: bool = False) -> bool:
        if not self.asked:
            self.told += [{n.name for n in region.program.nodes} for region in regions]
        return False


@pytest.mark.parametrize("possible", [True, False])
def test_regions_that_are_cut_where_they_have_no_kernel_are_told_before_any_is_asked_for(possible):
    """A mask of a matmul's result is made with it; in a kernel of its own where there is none that makes both."""
    m, n, k = programs.axes("m", "n", "k")
    product = programs.matmul("s", Use("x", (m, k)), Use("w", (k, n)), k)
    mask = Elementwise("mask", (m, n), programs.F32, apply("exp", Arg(0)), (Use("b", (m, n)),))
    both = Elementwise(
        "out", (m, n), programs.F32, apply("add", Arg(0), Arg(1)), (Use("s", (m, n)), Use("mask", (m, n)))
    )
    inputs = programs.tensor("x", m, k), programs.tensor("w", k, n), programs.tensor("b", m, n)
    program = TensorProgram(inputs, (product, mask, both), ("out",))
    whole = {"s", "mask", "out"}

    def impossible(region: TensorProgram) -> bool:
        return not possible and {node.name for node in region.nodes} == whole

    prices = Heard(program, 64, impossible=impossible, fine=True)
    atoms = Cuts(program, prices).atoms()
    assert prices.told == [whole]
    assert prices.asked == [whole]
    names = [{n.name for n in atom.stage.program.nodes} for atom in atoms if isinstance(atom.stage, Region)]
    assert names == ([whole] if possible else [{"mask"}, {"s", "out"}])


def test_a_part_of_a_stage_whose_matmuls_share_nothing_is_one_region_where_it_has_a_kernel() -> None:
    """Eight branches and then their sum are more than one stage holds: the first has branches that nothing in it joins."""
    m, k, n = programs.axes("m", "k", "n")
    use, branches = paper.Use, range(8)
    nodes: list[Contraction | Elementwise] = []
    for i in branches:
        nodes.append(Contraction(f"p{i}", (m, n), programs.F32, use("x", (m, k)), use(f"w{i}", (k, n)), (k,)))
        last = f"p{i}"
        for step in range(9):
            operands = (use(last, (m, n)), use(last, (m, n)))
            nodes.append(Elementwise(last := f"p{i}_{step}", (m, n), programs.F32, programs.MUL, operands))
    total = "p0_8"
    for i in branches[1:]:
        operands = (use(total, (m, n)), use(f"p{i}_8", (m, n)))
        nodes.append(Elementwise(total := f"sum{i}", (m, n), programs.F32, programs.MUL, operands))
    inputs = (programs.tensor("x", m, k), *(programs.tensor(f"w{i}", k, n) for i in branches))
    program = TensorProgram(inputs, tuple(nodes), (total,))
    cut = stages(program, 64)
    made = [node.name for stage in cut if isinstance(stage, Region) for node in stage.program.nodes]
    assert sorted(made) == sorted(node.name for node in nodes)
    assert len(cut) == len(partition(program)) < len(branches)
