"""The cuts that are chosen, beside all cuts of a chain of operators, and those of programs whose answer is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isclose, prod
from typing import Any

import pytest
import torch

from testkit.block import programs
from testkit.block.programs import matmul
from testkit.plan.captured import captured
from testkit.plan.covers import Invented, campaign
from weft.cost import Machine, gpu, least_seconds
from weft.lab.workloads.gpu import ROWS
from weft.plan.choose.cuts import Cuts
from weft.plan.choose.select import select
from weft.plan.execute.regions import Regions
from weft.plan.partition.partition import Region, Task, linear, partition, sorted_by, united, waits_of
from weft.plan.partition.schemes import Scheme, cut_by, operators, scheme_of
from weft.plan.targets.candidates import Example, Selection
from weft.schedule import kernels
from weft.target import Target
from weft.tensor.axes import Axis, Space
from weft.tensor.program import Contraction, Elementwise, Monoid, Node, Opaque, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, apply

F32 = programs.F32
_MOST_PRODUCTS = 4


def chain(kinds: Sequence[str]) -> TensorProgram:
    """Operators on rows, one after the other: "product" with a matrix, "scale" by a column of sums, "exp" of each
    element, "call" into PyTorch.
    """
    m, wide = Axis("m", Space("M")), Axis("n0", Space("N0"))
    inputs, nodes = [programs.tensor("x", m, wide)], list[Node]()
    last = "x"
    for i, kind in enumerate(kinds):
        name, row = f"{kind}{i}", (m, wide)
        match kind:
            case "product":
                into = Axis(f"n{i + 1}", Space(f"N{i + 1}"))
                inputs.append(programs.tensor(f"w{i}", wide, into))
                nodes.append(matmul(name, Use(last, row), Use(f"w{i}", (wide, into)), wide))
                wide = into
            case "scale":
                nodes.append(Reduction(f"sum{i}", (m,), F32, Monoid.sum, Use(last, row), (wide,)))
                scaled = apply("div", Arg(0), Arg(1))
                nodes.append(Elementwise(name, row, F32, scaled, (Use(last, row), Use(f"sum{i}", (m,)))))
            case "call":
                nodes.append(Opaque(name, row, F32, "aten.sort", name, (last,), "not in the table"))
            case _:
                nodes.append(Elementwise(name, row, F32, apply("exp", Arg(0)), (Use(last, row),)))
        last = name
    return TensorProgram(tuple(inputs), tuple(nodes), (last,))


def every_cut(cuts: Cuts, allowed: Callable[[TensorProgram], bool]) -> Iterator[float]:
    """Yields the price of every cut of a chain whose regions are `allowed`, at places where the partition ends a stage."""
    stages = [s for s in linear(partition(cuts.program)) if isinstance(s, Region)]
    for places in itertools.product((False, True), repeat=len(stages) - 1):
        ends = [0, *(i for i, cut in enumerate(places, 1) if cut), len(stages)]
        regions = [united(cuts.program, stages[a:b]) for a, b in itertools.pairwise(ends)]
        if all(allowed(region.program) for region in regions):
            yield sum(cuts.price(region) for region in regions)


def found(cuts: Cuts) -> float:
    return sum(cuts.price(stage) for stage in cuts.stages() if isinstance(stage, Region))


def possible(program: TensorProgram) -> bool:
    return sum(isinstance(n, Contraction) for n in program.nodes) <= _MOST_PRODUCTS


@dataclass
class Given(Invented):
    """Prices by the number of operators of a region."""

    seconds: dict[int, float] = field(default_factory=dict[int, float])

    def _seconds(self, region: Region) -> tuple[float, float]:
        found = self.seconds[len(region.program.nodes)]
        return found, found / 2


@dataclass
class Preferred(Invented):
    """Prices by the number of operators of a region, but for some that are `cheap`."""

    cheap: tuple[frozenset[str], ...] = ()

    def _seconds(self, region: Region) -> tuple[float, float]:
        names = frozenset(n.name for n in region.program.nodes)
        found = 1.0 if names in self.cheap else 10.0 * len(names)
        return found, found / 2


def test_where_all_is_selected_at_once_it_is_told_at_once():
    kinds = ["product", "exp", "product", "call", "product", "exp", "product"]
    one_by_one = Invented(random.Random(1))
    expected = Cuts(chain(kinds), one_by_one).stages()
    at_once = Invented(random.Random(1), at_once=True, known=one_by_one.known)
    assert Cuts(chain(kinds), at_once).stages() == expected
    assert {asked for asked, _ in at_once.told} == {len(at_once.asked)}
    assert len({asked for asked, _ in one_by_one.told}) > 1
    assert set(at_once.asked) <= set(at_once.thought_of)
    assert len(at_once.thought_of) == len(set(at_once.thought_of))


def test_what_a_call_parts_is_cut_by_itself_and_told_before_the_rest_is_priced():
    kinds = ["product", "exp", "product", "call", "product", "exp", "product"]
    prices = Invented(random.Random(1))
    stages = Cuts(chain(kinds), prices).stages()
    regions = [frozenset(n.name for n in stage.program.nodes) for stage in stages if isinstance(stage, Region)]
    assert [names for _, names in prices.told] == regions
    before = [names for names in regions if not names.isdisjoint({"product0", "exp1", "product2"})]
    told_at = {names: asked for asked, names in prices.told}
    first = min(i for i, names in enumerate(prices.asked) if "product4" in names or "product6" in names)
    assert all(told_at[names] <= first for names in before)
    assert not any(names & {"product2"} and names & {"product4"} for names in prices.asked)


@pytest.mark.parametrize(
    ("fine", "parts", "kernels"),
    [(True, 2.5, 2), (True, 3.5, 1), (False, 2.5, 1)],
    ids=["clearly", "hardly", "on a CPU"],
)
def test_a_region_with_a_kernel_is_cut_inside_where_its_parts_are_clearly_faster(fine, parts, kernels):
    program = chain(["product", "scale"])
    prices = Given(random.Random(0), fine=fine, seconds={3: 9.0, 1: parts, 2: parts})
    cuts = Cuts(program, prices)
    assert len(cuts.stages()) == kernels


@pytest.mark.parametrize("seed", range(12))
def test_no_cut_of_a_chain_of_operators_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [*rng.choices(("product", "scale", "exp"), (3, 1, 1), k=rng.randint(2, 9)), "product"]
    program = chain(kinds)
    prices = Invented(rng)
    chosen = found(Cuts(program, prices))
    asked = len(prices.asked)
    assert isclose(chosen, min(every_cut(Cuts(program, prices), possible)))
    assert asked <= len(set(prices.asked)), "less than all, and none twice"


def test_no_cut_of_a_random_graph_is_cheaper() -> None:
    """A share of what `python -m testkit.plan.covers --count 200` compares."""
    compared = campaign(60, seed=1000)
    assert all(each.is_least for each in compared)
    assert sum(each.cuts for each in compared) > 600


def test_three_products_are_one_kernel_where_two_of_them_are() -> None:
    """Two joins that the model must be clear about are looked at as one is."""

    @dataclass
    class Cheap(Invented):
        together: float = 1.0

        def _seconds(self, region: Region) -> tuple[float, float]:
            products = sum(isinstance(n, Contraction) for n in region.program.nodes)
            work = 10.0 * products if products == 1 else 10.0 * products * self.together
            return work, work

    program = chain(["product", "exp", "product", "exp", "product"])
    for together, count in ((0.4, 1), (1.0, 3)):
        cuts = Cuts(program, Cheap(random.Random(0), together=together))
        assert len(cuts.stages()) == count


def test_a_product_beside_a_chain_of_two_may_be_one_kernel_with_what_adds_them_up() -> None:
    """x @ w + (x @ a) @ b: in a row, one of two of the products is between the other one and the sum."""
    m, k, r, n = programs.axes("m", "k", "r", "n")
    rows = Use("x", (m, k))
    nodes = (
        matmul("wide", rows, Use("w", (k, n)), k),
        matmul("down", rows, Use("a", (k, r)), k),
        matmul("up", Use("down", (m, r)), Use("b", (r, n)), r),
        Elementwise("out", (m, n), F32, programs.ADD, (Use("wide", (m, n)), Use("up", (m, n)))),
    )
    inputs = (
        programs.tensor("x", m, k),
        programs.tensor("w", k, n),
        programs.tensor("a", k, r),
        programs.tensor("b", r, n),
    )
    program = TensorProgram(inputs, nodes, ("out",))

    @dataclass
    class Best(Invented):
        together: frozenset[str] = frozenset()

        def _seconds(self, region: Region) -> tuple[float, float]:
            names = frozenset(n.name for n in region.program.nodes)
            work = 1.0 if names == self.together else 10.0 * len(names)
            return work, work

    for first, other in (("wide", "down"), ("down", "wide")):
        cuts = Cuts(program, Best(random.Random(0), together=frozenset((first, "up", "out"))))
        stages = [{n.name for n in s.program.nodes} for s in cuts.stages() if isinstance(s, Region)]
        assert stages == [{other}, {first, "up", "out"}]


@dataclass
class Predicted:
    """The model's prices on a CPU of two threads, at the given sizes."""

    sizes: dict[str, int]
    fine: bool = False
    launch_seconds: float = Machine.here(2).launch_seconds

    def selection(self, region: Region) -> Selection:
        innermost = {n.name: len(n.axes) - 1 for n in region.program.inputs}
        return select(region.program, Example(self.sizes, innermost, 2))

    def at_hand(self, region: Region) -> bool:
        return False

    def foreseen(self, regions: Iterable[Region], *, doubtful: bool = False) -> bool:
        return False

    def form(self, region: Region) -> frozenset[str]:
        return frozenset(n.name for n in region.program.nodes)

    def settled(self, regions: Sequence[Region]) -> None:
        pass

    def lengths(self, region: Region) -> dict[str, int]:
        return {space.name: space.size(self.sizes) for space in region.program.spaces()}

    def least(self, region: Region, reached: float = 1.0) -> float:
        return least_seconds(region.program, self.sizes, Machine.here(2), cached=True, reached=reached)


@pytest.mark.parametrize(
    ("kinds", "widths"),
    [
        (("product", "scale", "product", "exp", "product"), (256, 128, 512, 64)),
        (("exp", "product", "exp", "product", "scale"), (2048, 16, 2048)),
    ],
    ids=["wide", "narrow"],
)
def test_nor_by_the_cost_model_and_no_price_is_below_its_bound(kinds, widths) -> None:
    program = chain(kinds)
    names = ["M", *dict.fromkeys(s.name for s in program.spaces() if s.name != "M")]
    prices = Predicted(dict(zip(names, (512, *widths), strict=True)))
    cuts = Cuts(program, prices)
    chosen = found(cuts)
    every = Cuts(program, prices)
    assert isclose(chosen, min(every_cut(every, lambda _: True)))
    for region, seconds in every.known.values():
        assert seconds == inf or Cuts(program, prices).bound(region) <= seconds


def cut_for(name: str, target: Target) -> list[tuple[Region, Selection]]:
    """The regions of a row of the benchmark on a GPU, at full size: nothing runs, and no operand's memory is touched."""
    row = next(row for row in ROWS if row.name == name)
    inputs = [torch.empty(o.shape, dtype=o.kept or row.dtype) for o in row.example.operands(row.example.full)]
    program, _ = captured(row.fn, inputs)
    known = Regions({i.name: len(i.axes) - 1 for i in program.inputs}, target)
    stages = [s for s in Cuts(program, known).stages() if isinstance(s, Region)]
    return [(s, known.selection(s)) for s in stages]


def test_rmsnorm_and_swiglu_of_16_rows_are_two_kernels_of_a_gpu() -> None:
    """Half of the weights are read by each: what lies between, 16 rows, is nothing beside them."""
    first, second = cut_for("RMS-SwiGLU-decode", Target("cuda", "90"))
    assert [len(kernels(s.chosen.applied)) for _, s in (first, second)] == [1, 1]
    assert [sum(isinstance(n, Contraction) for n in r.program.nodes) for r, _ in (first, second)] == [2, 1]
    assert any(isinstance(n, Reduction) for n in first[0].program.nodes)


def test_attention_of_one_token_is_one_region_of_a_gpu() -> None:
    ((region, selection),) = cut_for("H9", Target("cuda", "90"))
    assert sum(isinstance(n, Contraction) for n in region.program.nodes) == 2
    assert len(kernels(selection.chosen.applied)) == 1


def test_many_rows_that_are_normalised_for_a_product_have_a_kernel_of_their_own_on_a_gpu() -> None:
    norm, product = cut_for("LN-mm-large", Target("cuda", "90"))
    assert not any(isinstance(n, Contraction) for n in norm[0].program.nodes)
    assert any(isinstance(n, Contraction) for n in product[0].program.nodes)


def test_the_bound_counts_what_must_be_moved_and_multiplied() -> None:
    m, k, n = programs.axes("m", "k", "n")
    product = matmul("y", Use("x", (m, k)), Use("w", (k, n)), k)
    program = TensorProgram((programs.tensor("x", m, k), programs.tensor("w", k, n)), (product,), ("y",))
    machine = gpu(Target("cuda", "90")).machine()
    for rows, inner, columns in ((16, 4096, 4096), (8192, 8192, 8192)):
        sizes = {"M": rows, "K": inner, "N": columns}
        moved = 4 * (rows * inner + inner * columns + rows * columns) / machine.levels[-1].bytes_per_second
        worked = 2 * prod(sizes.values()) / machine.matrix_rate(F32)
        assert isclose(least_seconds(program, sizes, machine, cached=False), max(moved, worked))


def test_equal_layers_are_looked_at_once_and_cut_alike() -> None:
    """Three pairs of matmuls, with calls into PyTorch between them."""

    @dataclass
    class Alike(Invented):
        """Regions are told apart by what operations they have, in order."""

        def form(self, region: Region) -> Any:
            return tuple(n.name.rstrip("0123456789") for n in region.program.nodes)

    layer = ["product", "exp", "product"]
    program = chain([*layer, "call", *layer, "call", *layer])
    prices = Alike(random.Random(3))
    stages = Cuts(program, prices).stages()
    kinds = [[n.name.rstrip("0123456789") for n in s.program.nodes] for s in stages if isinstance(s, Region)]
    assert len(kinds) % 3 == 0
    third = len(kinds) // 3
    assert kinds[:third] == kinds[third : 2 * third] == kinds[2 * third :]
    assert {name for names in prices.asked for name in names} == {"product0", "exp1", "product2"}


def test_the_code_of_a_cut_for_a_gpu_has_what_kernels_make_again_and_reads_back() -> None:
    row = next(row for row in ROWS if row.name == "dims-layernorm")
    inputs = [torch.empty(o.shape, dtype=o.kept or row.dtype) for o in row.example.operands(row.example.full)]
    program, _ = captured(row.fn, inputs)
    known = Regions({i.name: len(i.axes) - 1 for i in program.inputs}, Target("cuda", "90"))
    stages = Cuts(program, known).stages()
    scheme = scheme_of(program, stages)
    assert scheme.again
    assert cut_by(Scheme.read(scheme.text(len(operators(program)))), program) == stages


def written(*between: Node, read: str) -> TensorProgram:
    """The sum of x @ w before and after a call that writes into x.

    `between` are nodes before the call; `read`, x or a view of it, is what is multiplied before.
    """
    m, k, n = programs.axes("m", "k", "n")
    nodes = (
        *between,
        matmul("old", Use(read, (m, k)), Use("w", (k, n)), k),
        Opaque("x_1", (m, k), F32, "aten.index_put_", "put", ("x", "w"), "it writes"),
        matmul("new", Use("x_1", (m, k)), Use("w", (k, n)), k),
        Elementwise("out", (m, n), F32, programs.ADD, (Use("old", (m, n)), Use("new", (m, n)))),
    )
    return TensorProgram((programs.tensor("x", m, k), programs.tensor("w", k, n)), nodes, ("out",))


def regions_of(program: TensorProgram, writes: Mapping[str, tuple[str, ...]]) -> list[set[str]]:
    """The regions of `program`, where one of both matmuls is cheap."""
    prices = Given(random.Random(0), seconds={1: 10.0, 2: 10.0, 3: 1.0, 4: 1.0})
    stages = Cuts(program, prices, writes=writes).stages()
    return [{node.name for node in s.program.nodes} for s in stages if isinstance(s, Region) and not s.looks]


def test_what_reads_memory_before_a_write_is_in_no_region_with_what_waits_for_it() -> None:
    """Else the write could not be in place. It is cheap here to have both matmuls in one region, if the call writes nothing."""
    assert regions_of(written(read="x"), {}) == [{"old", "new", "out"}]
    assert regions_of(written(read="x"), {"put": ("x",)}) == [{"old"}, {"new", "out"}]


def test_nor_what_reads_a_view_of_it() -> None:
    """The view is a call of its own here; the matmul that reads it does not read x itself."""
    m, k = programs.axes("m", "k")
    seen = Opaque("seen", (m, k), F32, "aten.as_strided", "look", ("x",), "a view")
    assert regions_of(written(seen, read="seen"), {"put": ("x",)}) == [{"old", "new", "out"}]
    assert regions_of(written(seen, read="seen"), {"put": ("x", "seen")}) == [{"old"}, {"new", "out"}]


class Alike(Given):
    """Regions of equally many operators have one form."""

    def form(self, region: Region) -> frozenset[str]:
        return frozenset((str(len(region.program.nodes)),))


def test_a_layer_that_writes_is_not_cut_as_one_that_does_not() -> None:
    """The write is before both in the row if nothing else says where: there is none between the operators of a layer."""
    m, width = Axis("m", Space("M")), Space("D")
    k, n = Axis("k", width), Axis("n", width)

    def layer(number: int, second: str) -> list[Node]:
        old, middle, out = (f"{name}{number}" for name in ("old", "middle", "out"))
        return [
            matmul(old, Use("x", (m, k)), Use("w", (k, n)), k),
            matmul(middle, Use(old, (m, k)), Use("w", (k, n)), k),
            Elementwise(out, (m, n), F32, programs.ADD, (Use(middle, (m, n)), Use(second, (m, n)))),
        ]

    put = Opaque("x_1", (m, k), F32, "aten.index_put_", "put", ("x", "w"), "it writes")
    look = Opaque("y", (m, k), F32, "aten.sort", "look", ("w",), "not in the table")
    early = Elementwise("early", (m, k), F32, apply("exp", Arg(0)), (Use("x_1", (m, k)),))
    nodes = (look, put, early, *layer(1, "y"), *layer(2, "x_1"))
    program = TensorProgram((programs.tensor("x", m, k), programs.tensor("w", k, n)), nodes, ("early", "out1", "out2"))
    stages = Cuts(program, Alike(random.Random(0), seconds={1: 10.0, 2: 11.0, 3: 1.0}), writes={"put": ("x",)}).stages()
    regions = [set(names_of(stage)) for stage in stages if isinstance(stage, Region)]
    assert {"old1", "middle1", "out1"} in regions
    assert not any({"old2", "out2"} <= each for each in regions)


def test_a_write_waits_for_a_region_with_others_that_read_before_it() -> None:
    """No single region reads before and waits for the write here, but one of two would wait for the other through it."""
    m, k, n = programs.axes("m", "k", "n")

    def product(name: str, left: str) -> Node:
        return matmul(name, Use(left, (m, k)), Use("w", (k, n)), k)

    def total(name: str, *reads: str) -> Node:
        return Elementwise(name, (m, n), F32, programs.ADD, tuple(Use(r, (m, n)) for r in reads))

    nodes = (
        product("free", "z"),
        product("old", "x"),
        total("first", "old", "free"),
        Opaque("x_1", (m, k), F32, "aten.index_put_", "put", ("x", "w"), "it writes"),
        product("new", "x_1"),
        total("second", "new", "free"),
    )
    inputs = (programs.tensor("x", m, k), programs.tensor("w", k, n), programs.tensor("z", m, k))
    program = TensorProgram(inputs, nodes, ("first", "second"))
    prices = Preferred(random.Random(0), cheap=(frozenset({"old", "first"}), frozenset({"free", "new", "second"})))

    def in_place(writes: Mapping[str, tuple[str, ...]]) -> bool:
        stages = Cuts(program, prices, writes=writes).stages()
        numbers = {name: i for i, stage in enumerate(stages) for name in names_of(stage)}
        waits = [set(own) for own in waits_of(stages)]
        waits[numbers["x_1"]].add(numbers["old"])
        return sorted_by(waits) is not None

    assert not in_place({}), "both cheap regions, and the write after one and before the other"
    assert in_place({"put": ("x",)})


def names_of(stage: Task) -> list[str]:
    """List what a stage makes, inside of it too."""
    return [n.name for n in stage.program.nodes] if isinstance(stage, Region) else list(stage.results)
