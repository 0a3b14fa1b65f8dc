"""Inputs at small sizes for kernels that are judged: cases of all regimes, and the sizes that are cheap enough to run.

A `Case` knows the results that its program has on its inputs: in fp64, as eager rounds them, and as others may round them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from weft.tensor.arrays import is_numpys
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Contraction, Input, Lookup, Node, Opaque, Reduction, TensorProgram
from weft.verify.accidents import AccidentalDomain
from weft.verify.drawer import Drawer, TorchDrawer
from weft.verify.eager import (
    AlikeRoundedDomain,
    EagerDomain,
    FlushedDomain,
    MaskedDomain,
    MaskedEagerDomain,
    MaskedRandomlyRoundedDomain,
    NudgedEagerDomain,
    PoleDomain,
    RandomlyRoundedDomain,
    eagerly,
)
from weft.verify.exact import ExactDomain
from weft.verify.fitted import AT_MOST, points
from weft.verify.inputs import deciding, indices_below, reads_inside
from weft.verify.regimes import REGIMES, RowLayout, drawn, labels, layout_of, reduced_spaces
from weft.verify.torch_array import TorchArray
from weft.verify.wide import WideDomain

# A reference of so many operations is worked out on the GPU that runs the kernels: below them its launches take longer.
ON_DEVICE = 1 << 18
# So many elements of one regime are drawn there: of fewer, numpy's take less time than some dozen launches.
DRAWN_THERE = 1 << 15
# How many regimes of inputs that are no floats have all kinds of them.
OF_INTEGERS = 5
# How many times what runs that round at random are off by a kernel may be off.
ROOM = 4.0
# Of a long sum so many steps may be rounded alike: blocks whose chains are no longer, and sums of such.
_ALIKE = 32
# The number of the first case with such a sum, which no other has; the regime of its elements, which are equal: each step of
# one long chain would round alike.
_OF_LONG = 1 << 20
_CONSTANT = [regime.name for regime in REGIMES].index("constant rows")


@dataclass(frozen=True, eq=False)
class Case:
    """One call of the kernels.

    Attributes:
        program: what they must compute.
        sizes: by name of the space.
        inputs: by name: float64 arrays of numbers that the types hold, int64, bool.
        layout: where rows are.
        regime: of inputs without rows.
        device: where its references are worked out, in arrays of PyTorch's; None: by numpy.
        known: what has been worked out.
        begin: the regime of the first row of inputs with rows; that of the others if it is not given.
        long: its sums are long, and may be no single chains of additions.
    """

    program: TensorProgram
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array]
    layout: RowLayout
    regime: int
    device: torch.device | None = None
    known: dict[tuple[str, int], tuple[Array, ...]] = field(default_factory=dict[tuple[str, int], "tuple[Array, ...]"])
    begin: int | None = None
    long: bool = False

    @property
    def _alike(self) -> float:
        return _ALIKE if self.long else math.inf

    def forget(self) -> None:
        """Gives up all arrays; what is asked for again is worked out again."""
        for name in ("placed", "exact", "eager", "unmasked", "of_poles", "flushed", "accidental", "rounded_alike"):
            self.__dict__.pop(name, None)
        self.known.clear()
        if isinstance(self.inputs, _Inputs):
            self.inputs.forget()

    @cached_property
    def placed(self) -> Mapping[str, Array]:
        """The inputs where references are worked out."""
        return {name: self._place(v) for name, v in self.inputs.items()}

    def _place(self, values: Array) -> Array:
        return TorchArray.of(values, self.device) if self.device is not None and is_numpys(values) else values

    @cached_property
    def exact(self) -> tuple[Array, ...]:
        """The results in fp64; of a program that computes in it, more exact than its kernels."""
        kinds = (node.dtype for node in (*self.program.inputs, *self.program.nodes))
        return self._evaluated(ExactDomain() if DType.float64 in kinds else Fp64Domain())

    @cached_property
    def eager(self) -> tuple[Array, ...]:
        """The results as eager rounds them."""
        return self.in_order(0)

    @cached_property
    def unmasked(self) -> tuple[Array, ...]:
        """The results in fp64 where 0 times anything is 0."""
        return self._evaluated(MaskedDomain())

    @cached_property
    def of_poles(self) -> tuple[Array, ...]:
        """Gives the infinity that a result may be where quotients by 0 decide that it is no number; else NaN."""
        made = self._evaluated(PoleDomain())
        return tuple(np.where(np.abs(v) >= PoleDomain.LARGE**0.5, np.copysign(np.inf, v), np.nan) for v in made)

    @cached_property
    def flushed(self) -> tuple[Array, ...]:
        """The results in fp64 where numbers below the normal ones are 0, as units for products of 16 bits take them."""
        kinds = {n.name: n.dtype for n in self.program.inputs}
        inputs = {
            name: np.where(np.abs(v) < kinds[name].least_normal, 0.0, v) if kinds[name].is_float else v
            for name, v in self.placed.items()
        }
        return self._evaluated(FlushedDomain(), inputs)

    def in_order(self, order: int, *, masked: bool = False) -> tuple[Array, ...]:
        """Returns the results as eager rounds them, with sums in another order."""

        domain = (MaskedEagerDomain if masked else EagerDomain)(order)
        key = "masked, in order" if masked else "order", order
        domain.place = self._place
        return self._once(key, lambda: eagerly(self.program, self.placed, self.sizes, domain))

    @cached_property
    def accidental(self) -> tuple[Array, ...]:
        """Returns for each element whether an accident of roundings or of the order of sums decides whether it is a number."""

        def made(poison: float) -> tuple[Array, ...]:
            domain = AccidentalDomain(most_terms(self.program, self.sizes), poison)
            return self._evaluated(domain, watch=domain.begin)

        pairs = zip(made(np.nan), made(0.0), self.exact, strict=True)
        return tuple(
            (np.isnan(with_nan) & ~np.isnan(with_0)) | (np.isfinite(exact) & ~np.isfinite(with_nan))
            if with_nan.dtype.kind == "f"
            else np.zeros_like(with_nan, dtype=np.bool_)
            for with_nan, with_0, exact in pairs
        )

    def nudged(self, way: int) -> tuple[Array, ...]:
        """Returns the results as eager rounds them, with sums exact, or off by the most in a `way` (`NudgedEagerDomain`)."""

        def made() -> tuple[Array, ...]:
            domain = NudgedEagerDomain(way)
            domain.place = self._place
            return eagerly(self.program, self.placed, self.sizes, domain)

        return self._once(("nudged", way), made)

    def rounded(self, number: int, *, masked: bool = False) -> tuple[Array, ...]:
        """Returns the results where each operation rounds at random."""

        def made() -> tuple[Array, ...]:
            domain = MaskedRandomlyRoundedDomain if masked else RandomlyRoundedDomain
            return self._off(domain(number, alike=self._alike))

        return self._once(("masked and rounded" if masked else "rounded", number), made)

    def wide(self, number: int = 0) -> tuple[Array, ...] | None:
        """Returns the results, worked out with more range than fp64 has and given as fp64, where 0 times anything is 0; None where
        that would take minutes.

        Args:
            number: of a run in which each operation rounds at random; 0: exact.
        """
        if points(self.program, self.sizes) > AT_MOST:
            return None

        def made() -> tuple[Array, ...]:
            eps = max((n.dtype.accumulator.eps for n in self.program.inputs if n.dtype.is_float), default=0.0)
            domain = WideDomain(number or None, eps)
            given = {name: domain.given(_on_host(v)) for name, v in self.inputs.items()}
            with np.errstate(all="ignore"):
                found = evaluate(self.program, given, domain, sizes=dict(self.sizes))
            return tuple(self._place(domain.told(each)) for each in found)

        with suppress(MemoryError):
            return self._once(("wide", number), made)
        return None

    def coarsely_rounded(self, number: int) -> tuple[Array, ...]:
        """Returns the results where each operation rounds at random, by as much as those of a GPU that are the least exact."""
        return self._off(RandomlyRoundedDomain(number, ROOM, self._alike))

    @cached_property
    def rounded_alike(self) -> tuple[Array, ...]:
        """The results where all operations round in one direction."""
        return self._off(AlikeRoundedDomain(self._alike))

    def _off(self, domain: RandomlyRoundedDomain) -> tuple[Array, ...]:
        kinds = {n.name: n.dtype for n in self.program.inputs}
        given = {name: domain.given(v, kinds[name]) for name, v in self.placed.items()}
        return self._evaluated(domain, given, domain.begin)

    def _evaluated(
        self,
        domain: Fp64Domain,
        inputs: Mapping[str, Array] | None = None,
        watch: Callable[[Node], None] | None = None,
    ) -> tuple[Array, ...]:
        """Evaluates the program on its inputs, or on others that are placed as they are."""
        domain.place = self._place
        with np.errstate(all="ignore"):
            given = self.placed if inputs is None else inputs
            return evaluate(self.program, given, domain, sizes=dict(self.sizes), watch=watch)

    def _once(self, key: tuple[str, int], made: Callable[[], tuple[Array, ...]]) -> tuple[Array, ...]:
        if key not in self.known:
            self.known[key] = made()
        return self.known[key]

    def groups(self, output: int) -> Array:
        """Returns for each element of an output a number that stands for the regimes of the rows that it is computed from; with one
        element along axes that have no rows.
        """
        return self._once(("groups", output), lambda: (self._groups(output),))[0]

    def placed_groups(self, output: int) -> Array:
        """Returns the same where references are worked out."""
        return self._once(("placed groups", output), lambda: (self._place(self.groups(output)),))[0]

    def _groups(self, output: int) -> Array:
        axes = self.program.values()[self.program.outputs[output]].axes
        shape = tuple(a.space.size(self.sizes) for a in axes)
        begin = self.regime if self.begin is None else self.begin
        found = np.full((1,) * len(shape), self.regime if len(self.layout.rows) < len(self.inputs) else 0)
        for place, space in enumerate(self.layout.slots):
            dim = next((d for d, a in enumerate(axes) if a.space.name == space), None)
            if dim is not None:
                own = labels(shape[dim], begin) + 1
                found = found + own.reshape([-1 if d == dim else 1 for d in range(len(shape))]) * BASE ** (place + 1)
        return found


BASE = len(REGIMES) + 1
"""The number of a group has a digit to this base for the inputs without rows, and one for each slot of rows."""


def said(group: int) -> str:
    """Names the regimes of a group in words."""
    places: list[int] = []
    while group:
        group, last = divmod(group, BASE)
        places.append(last)
    own = [REGIMES[n - 1].name for n in places[1:] if n]
    rest = [REGIMES[places[0]].name] if places and (places[0] or not own) else []
    return " beside ".join(dict.fromkeys(own + rest)) or REGIMES[0].name


def _on_host(values: Array) -> Array:
    return values if is_numpys(values) else np.asarray(values)


def most_terms(program: TensorProgram, sizes: Mapping[str, int]) -> int:
    """Returns how many terms the longest sum of the program has at `sizes`."""
    sums = (n.over for n in program.nodes if isinstance(n, Contraction | Reduction))
    return max((math.prod(a.space.size(sizes) for a in over) for over in sums), default=1)


def cases(
    program: TensorProgram,
    far: Sequence[Mapping[str, int]],
    near: Sequence[Mapping[str, int]],
    seed: int,
    draws: int = 1,
    layout: RowLayout | None = None,
    device: torch.device | None = None,
    after: int = 0,
) -> Iterator[Case]:
    """Yields inputs of all regimes.

    Args:
        program: without opaque operations.
        far: choices of sizes of all its spaces that take long: one case each.
        near: others; used in turn, each at least once. Inputs without rows are of each regime once.
        seed: of the numbers.
        draws: of each regime of inputs without rows.
        layout: of the inputs' rows; `layout_of(program)` by default.
        device: where references of many operations are worked out, if not by numpy.
        after: so many draws are left out, with the sizes that are `far`: they were taken before.

    Returns:
        the cases, in a fixed order.
    """
    layout = layout or layout_of(program)
    alone = any(n.name not in layout.rows for n in program.inputs)
    kinds = _kinds(program, near, layout)
    drawing = _Drawing(program, layout, seed, device, kinds, kinds if alone else 1)
    each = kinds if alone else len(near)
    begin, end = (max(each * n, len(near)) if n and near else 0 for n in (after, draws))
    wanted = [(sizes, number, 0) for number, sizes in enumerate(far) if not after]
    for place, sizes in enumerate(near):  # those of the same sizes one after another
        own = (number for number in range(begin, end) if number % len(near) == place)
        wanted += [(sizes, len(far) + number, number) for number in own]
    yield from filter(None, (drawing.case(*each) for each in wanted))


def long_cases(
    program: TensorProgram,
    every: Sequence[Mapping[str, int]],
    seed: int,
    layout: RowLayout,
    device: torch.device | None,
) -> Iterator[Case]:
    """Yields a case of equal elements for each choice of sizes at which a sum is long; arguments as those of `cases`."""
    drawing = _Drawing(program, layout, seed, device, len(REGIMES), 1)
    made = (drawing.case(sizes, _OF_LONG + number, _CONSTANT, long=True) for number, sizes in enumerate(every))
    yield from filter(None, made)


def _kinds(program: TensorProgram, near: Sequence[Mapping[str, int]], layout: RowLayout) -> int:
    """Counts the regimes of inputs without rows that differ: of large ones that are no floats, these are few."""
    floats = any(n.dtype.is_float and n.name not in layout.rows for n in program.inputs)
    small = any(points(program, sizes) < ON_DEVICE for sizes in near)
    return len(REGIMES) if floats or small else OF_INTEGERS


class _Inputs(Mapping[str, Array]):
    """Inputs by name, those `held`; once these are forgotten, they are drawn again when they are asked for."""

    def __init__(self, drawn: Callable[[], Mapping[str, Array]], held: Mapping[str, Array]) -> None:
        self._drawn = drawn
        self._held: Mapping[str, Array] | None = held

    @property
    def _all(self) -> Mapping[str, Array]:
        if self._held is None:
            self._held = self._drawn()
        return self._held

    def forget(self) -> None:
        """Gives up the numbers."""
        self._held = None

    def __getitem__(self, name: str) -> Array:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


class _Drawing:
    """Draws the inputs of cases.

    Rows of large inputs are drawn once for several cases of the same sizes, where these have rows of all regimes in any case: one
    case more is for other inputs, which have no rows.
    """

    def __init__(
        self, program: TensorProgram, layout: RowLayout, seed: int, device: torch.device | None, kinds: int, alike: int
    ) -> None:
        """Takes how many regimes inputs without rows are of in turn, and how many cases may have the same rows."""
        self._kinds, self._alike = kinds, alike
        self._program, self._layout, self._seed, self._device = program, layout, seed, device
        self._reduced = reduced_spaces(program)
        self._looks_up = any(isinstance(n, Lookup) for n in program.nodes)
        self._rows: tuple[object, Mapping[str, Array]] | None = None

    def case(self, sizes: Mapping[str, int], number: int, turn: int, *, long: bool = False) -> Case | None:
        """Draws a case; None where no indices were found that are there: eager raises an error."""
        regime = turn % self._kinds
        large = points(self._program, sizes) >= ON_DEVICE
        shared = large and not long and all(sizes[slot] >= len(REGIMES) for slot in self._layout.slots)
        device = self._device if large else None
        begin = 0 if shared else regime

        def drawn() -> dict[str, Array] | None:
            rng = np.random.default_rng((self._seed, number))
            rows = self._shared(sizes, turn // self._alike, device) if shared else dict[str, Array]()
            alone = [n for n in self._program.inputs if n.name not in rows]
            inputs = {**rows, **self._filled(alone, sizes, regime, rng, device)}
            if self._looks_up and not _with_indices(self._program, inputs, sizes, rng):
                return None
            return {n.name: inputs[n.name] for n in self._program.inputs}

        found = drawn()
        if found is None:
            return None
        inputs = _Inputs(lambda: drawn() or {}, found)
        return Case(self._program, sizes, inputs, self._layout, regime, device, begin=begin, long=long)

    def _shared(self, sizes: Mapping[str, int], turn: int, device: torch.device | None) -> Mapping[str, Array]:
        """Draws the inputs that have rows, or finds them as drawn last."""
        key = (*sorted(sizes.items()), turn)
        if self._rows is None or self._rows[0] != key:
            self._rows = None  # there is room for one
            own = [n for n in self._program.inputs if n.name in self._layout.rows]
            rng = np.random.default_rng((self._seed, turn, *sizes.values()))
            self._rows = key, self._filled(own, sizes, 0, rng, device)
        return self._rows[1]

    def _filled(
        self,
        nodes: Sequence[Input],
        sizes: Mapping[str, int],
        regime: int,
        rng: np.random.Generator,
        device: torch.device | None,
    ) -> dict[str, Array]:
        first = self._program.inputs[:1]

        def drawer(node: Input) -> Drawer:
            count = math.prod(a.space.size(sizes) for a in node.axes)
            regimes = len(REGIMES) if node.name in self._layout.rows else 1
            return Drawer(rng) if device is None or count < DRAWN_THERE * regimes else TorchDrawer(rng, device)

        return {
            n.name: drawn(n, sizes, self._layout, regime, drawer(n), self._reduced, first=(n,) == first) for n in nodes
        }


def _with_indices(
    program: TensorProgram,
    inputs: dict[str, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
) -> bool:
    """Puts indices that are there among `inputs`, whose integers decide where the program reads; False where none were found.

    An index may be computed of them: then smaller ones may do. One that is made of sizes alone is there, or none is.
    """
    indexing = deciding((program,))
    for part in (1, 2, 4, 1 << 20):
        for name, spaces in indexing.items():
            lengths = [max(1, space.size(sizes) // part) for space in spaces]
            inputs[name] = indices_below(lengths, inputs[name].shape, rng)
        if reads_inside(program, inputs, sizes):
            return True
    return False


def has_meaning(program: TensorProgram) -> bool:
    """Tells whether all of `program` can be evaluated."""
    return not any(isinstance(n, Opaque) or n.dtype.is_foreign for n in (*program.inputs, *program.nodes))
