"""Pointwise work, reductions within items and stores, printed as loop nests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from weft.block.program import Collapse, Extent, Index, Literal, Pointwise
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.order import arranged
from weft.emit.cpp.phases import Phases, phases
from weft.emit.cpp.plan import Nest, Put, Work, crossing, overwritten, plan, rounded_by_stores
from weft.emit.cpp.scalar import (
    CTYPE,
    HELD,
    Text,
    coerced,
    combined,
    expression,
    loaded,
    number,
    reduction_clause,
    stored,
)
from weft.emit.cpp.values import Gather, IndexPlace, ItemMemory, Lazy, Panel, Value, resolved
from weft.emit.kinds import Kind, kind_of
from weft.emit.ranges import Scope
from weft.emit.text import is_word, plus, stripped, times
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Convert

_INDICES = ("i", "j")
# Elements of a row that lanes add up in one chain each (the prelude's kChain * kLanes).
_CHAINED = 512


def run(frame: Frame, scope: Scope, stores: Sequence[Put], reductions: Sequence[Lazy] = ()) -> None:
    """Print the nests that do `stores` and compute `reductions`, whose results then lie in memory."""
    reductions = [r for r in reductions if r.memory is None]
    kept = [_keep(frame, scope, lazy) for lazy in reductions if not _grows(scope, lazy)]
    nests = plan([*stores, *kept], reductions, lambda axes: in_loops(scope, axes))
    later: list[Put] = []
    for work in overwritten(nests):
        assert work.store is not None
        target = work.store.target
        aside = _fresh(frame, f"{target.base}_next", target.dtype, target.dims, scope)
        later.append(Put(target, aside))
        work.store = Put(aside, work.store.value)
    for nest, lazy in crossing(nests):
        store = _keep(frame, scope, lazy)
        nest.works.append(Work(in_loops(scope, store.target.dims), (lazy,), store=store))
    for nest in nests:
        _Printer(frame, scope, nest).print()
    if later:
        run(frame, scope, later)


def in_loops(scope: Scope, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Sort the axes of an item in the order of the loops over them, outermost first."""
    return arranged(axes, lambda axis: scope[axis].most)


def in_place(frame: Frame, scope: Scope, lazy: Lazy, dims: tuple[Axis, ...]) -> Put:
    """Make the store that puts `lazy` in memory of its element type: in scratch, its last axis innermost, or a variable.

    Where it is to be part of a list that lies the same way, it is put there at once.
    """
    home = lazy.home
    if home is not None and home.dtype is lazy.dtype and dims and home.strides[dims[-1]] == "1":
        return Put(home, lazy, (lazy,))
    return Put(_fresh(frame, lazy.node.name, lazy.dtype, dims, scope), lazy, (lazy,))


def fill(frame: Frame, scope: Scope, memory: ItemMemory, value: float) -> None:
    """Print loops that set every valid element of `memory` to `value`."""
    depth = len(memory.dims)
    names = _indices(depth)
    index = dict(zip(memory.dims, names, strict=True))
    for place, axis in enumerate(memory.dims):
        if place == depth - 1:
            frame.out.line("#pragma omp simd")
        name = index[axis]
        frame.out.line(f"for (i64 {name} = 0; {name} < {scope[axis].valid}; ++{name})")
        frame.out.depth += 1
    frame.out.line(
        stored(_at(memory, index), memory.dtype, Text(number(value, kind_of(memory.dtype)), kind_of(memory.dtype)))
    )
    frame.out.depth -= depth


def _fresh(frame: Frame, wish: str, dtype: DType, dims: tuple[Axis, ...], scope: Scope) -> ItemMemory:
    """Reserve scratch for an item; for one without axes, a variable, declared here."""
    if dims:
        return frame.array(wish, dtype, dims, scope)
    return variable(frame, wish, dtype, None)


def variable(frame: Frame, wish: str, dtype: DType, value: float | None) -> ItemMemory:
    """Declare a variable for an item without axes."""
    name, kind = frame.names.make(wish), kind_of(dtype)
    start = "" if value is None else f" = {number(value, kind)}"
    frame.out.line(f"{CTYPE[kind]} {name}{start};")
    return ItemMemory(name, HELD[kind], {}, (), variable=True, owned=True)


def _keep(frame: Frame, scope: Scope, lazy: Lazy) -> Put:
    """Make the store that puts `lazy` where later nests read it, in the type it is computed in."""
    dims = in_loops(scope, lazy.dims)
    return Put(_fresh(frame, lazy.node.name, lazy.dtype.accumulator, dims, scope), lazy, (lazy,))


def _grows(scope: Scope, lazy: Lazy) -> bool:
    """Tell whether this is a reduction whose results grow in an array of their own, wherever it is computed."""
    arg = lazy.args[0]
    if not isinstance(lazy.node, Collapse) or isinstance(arg, Panel):
        return False
    return in_loops(scope, arg.dims)[-1:] != (lazy.node.over,)


def _indices(depth: int) -> list[str]:
    """Name element numbers: i, j for a block."""
    outer = [f"i{level}" for level in range(depth - len(_INDICES))]
    return [*outer, *_INDICES[max(0, len(_INDICES) - depth) :]]


def _at(memory: ItemMemory, index: Mapping[Axis, str], unit: Mapping[str, str] | None = None) -> str:
    """Spell the element of an item; `unit` gives other names to some strides."""
    if memory.variable:
        return memory.base
    strides = unit or {}
    offset = plus(*(times(index[a], strides.get(memory.strides[a], memory.strides[a])) for a in memory.dims))
    return f"{memory.base}[{offset}]"


class _Printer:
    """One nest being printed."""

    def __init__(self, frame: Frame, scope: Scope, nest: Nest) -> None:
        self.frame, self.scope, self.nest = frame, scope, nest
        self.out = frame.out
        names = _indices(len(nest.order))
        self.index = dict(zip(nest.order, names, strict=True))
        self.local: dict[Value, Text] = {}
        self.buffers: dict[Lazy, ItemMemory] = {}
        self.unit: dict[str, str] = {}
        self.narrow: dict[ItemMemory, str] = {}
        self.unrounded = rounded_by_stores(nest.works)

    def print(self) -> None:
        """Print the nest, and note where its values lie."""
        works = self.nest.works
        nodes = [w.lazy.node for w in works if w.lazy is not None]
        self.frame.location([n.location for n in nodes if isinstance(n, Pointwise | Collapse | Gather)])
        for work in works:
            if work.leaves_array:
                self._start_array(work)
        strides = self._inner_strides(works)
        if strides:
            condition = " && ".join(f"{s} == 1" for s in strides)
            with self.out.block(f"weft::with_dense({condition}, [&](auto dense)", "});"):
                for stride in strides:
                    self.unit[stride] = self.frame.names.make(f"{stride}_in")
                    self.out.line(f"const i64 {self.unit[stride]} = dense ? 1 : {stride};")
                self._level(works, 0)
        else:
            self._level(works, 0)
        for work in works:
            for lazy in () if work.store is None else work.store.keeps:
                assert work.store is not None
                lazy.memory = work.store.target

    def _start_array(self, work: Work) -> None:
        lazy = work.lazy
        assert lazy is not None
        assert isinstance(lazy.node, Collapse)
        dims = tuple(a for a in work.order if a != lazy.node.over)
        lazy.memory = _fresh(self.frame, lazy.node.name, lazy.dtype.accumulator, dims, self.scope)
        fill(self.frame, self.scope, lazy.memory, lazy.node.monoid.identity)

    def _inner_strides(self, works: Sequence[Work]) -> list[str]:
        """List the strides, known at run time only, along the innermost loop: it vectorises well where they are 1."""
        if not self.nest.order:
            return []
        inner = self.nest.order[-1]
        memories = [v for w in works for v in w.reads if isinstance(v, ItemMemory)]
        memories += [w.lazy.node.memory for w in works if w.lazy is not None and isinstance(w.lazy.node, Gather)]
        found = (m.strides[inner] for m in memories if inner in m.dims)
        return list(dict.fromkeys(stride for stride in found if not stride.isdigit()))

    def _level(self, works: Sequence[Work], depth: int) -> None:
        """Print the body of loop number `depth`, the outermost one's being 1: statements and inner loops, stores at the end."""
        order = phases(works, depth)
        outside = dict(self.local)
        self._hoist(works, depth)
        if depth == len(self.nest.order):
            self._load(works)
        for lazy, rest in order.buffered.items():
            wish = f"{lazy.node.name}_row"
            self.buffers[lazy] = self.frame.array(wish, lazy.dtype.accumulator, rest, self.scope)
        for time in range(order.last + 1):
            if time > 0:
                self._inner(order, time, depth)
            for work in order.statements(time):
                self._compute(work)
        self._put([w.store for w in order.stores if w.store is not None])
        self.local = outside

    def _inner(self, order: Phases, time: int, depth: int) -> None:
        """Print loop number `depth` + 1, over what belongs to `time`."""
        works = order.loop(time)
        axis = self.nest.order[depth]
        sums = [w for w in works if w.collapsed == axis and not w.leaves_array and len(w.order) == depth + 1]
        innermost = all(len(w.order) == depth + 1 for w in works)
        lanes = [w for w in sums if innermost and w.lazy is not None and _carried(w.lazy) != "int"]
        clauses: list[str] = []
        results: dict[Value, Text] = {}
        arrays: dict[Value, Text] = {}
        grown: dict[Value, tuple[str, str]] = {}
        for work in sums:
            assert work.lazy is not None
            node, kind = work.lazy.node, _carried(work.lazy)
            assert isinstance(node, Collapse)
            name = self.frame.names.make(node.name)
            start = number(node.monoid.identity, kind)
            results[work.lazy] = Text(name, kind)
            if work in lanes:
                array = self._lanes(f"{name}_lanes", kind, start)
                arrays[work.lazy] = Text(f"{array}[lane]", kind)
                if self._long(axis) and node.monoid is Monoid.sum and kind == "float":
                    grown[work.lazy] = self._lanes(f"{name}_sums", kind, start), array
            else:
                self.out.line(f"{CTYPE[kind]} {name} = {start};")
                clauses.append(reduction_clause(node.monoid, kind, name))
        self.local.update(results | arrays)
        if innermost and not lanes:
            self.out.line(" ".join(["#pragma omp simd", *clauses]))
        name, valid = self.index[axis], self.scope[axis].valid
        head = f"for (i64 {name} = 0; {name} < {valid}; ++{name})"
        if lanes:
            head = f"weft::{'in_chains' if grown else 'in_lanes'}({valid}, [&](i64 {name}, i64 lane)"
            self.narrow = self._narrow(works, axis)
        flush = f", [&] {{ {' '.join(f'weft::move_lanes({a}, {b});' for a, b in grown.values())} }}" if grown else ""
        last = "}" if not lanes else f"}}{flush});" if not self.narrow else f"}}{flush}, [&](i64 start, i64 count) {{"
        with self.out.block(head, last):
            self._level(works, depth + 1)
        if self.narrow:
            self._put_lanes(name)
        for value, array in arrays.items():
            assert isinstance(value, Lazy)
            assert isinstance(value.node, Collapse)
            held = grown[value][0] if value in grown else array.text.removesuffix("[lane]")
            whole = f"weft::{value.node.monoid.name}_of_lanes({held})"
            self.out.line(f"const {CTYPE[results[value].kind]} {results[value].text} = {whole};")
        self.local.update(results)

    def _long(self, axis: Axis) -> bool:
        """Tell whether a lane adds up more elements of a block of `axis` than are good in one chain."""
        most = self.scope[axis].most
        return not most.isdigit() or int(most) > _CHAINED

    def _lanes(self, wish: str, kind: Kind, start: str) -> str:
        """Declare an array for the partial results of lanes."""
        array = self.frame.names.make(wish)
        self.out.line(f"{CTYPE[kind]} {array}[weft::kLanes];")
        self.out.line(f"weft::fill_lanes({array}, {stripped(start)});")
        return array

    def _narrow(self, works: Sequence[Work], axis: Axis) -> dict[ItemMemory, str]:
        """Declare arrays for the lanes of what the loop over `axis` stores as dense fp8 or 16-bit floats."""
        found: dict[ItemMemory, str] = {}
        for work in works:
            target = None if work.store is None else work.store.target
            if (
                target is not None
                and target.dtype.is_float
                and target.dtype.bytes < 4
                and target.strides.get(axis) == "1"
            ):
                found[target] = self.frame.names.make(f"{target.base}_lanes")
                self.out.line(f"float {found[target]}[weft::kLanes];")
        return found

    def _put_lanes(self, name: str) -> None:
        """Put what lanes hold, after so many elements; closes the loop."""
        first = {a: "start" if i == name else i for a, i in self.index.items()}
        self.out.depth += 1
        for target, array in self.narrow.items():
            self.out.line(f"weft::store_lanes(&{_at(target, first)}, {array}, count);")
        self.out.depth -= 1
        self.out.line("});")
        self.narrow = {}

    def _hoist(self, works: Sequence[Work], depth: int) -> None:
        """Declare locals for the elements of vectors that inner loops read but do not run over."""
        here = frozenset(self.nest.order[:depth])
        for work in works:
            for value in work.reads if len(work.order) > depth else ():
                if (
                    isinstance(value, ItemMemory)
                    and frozenset(value.dims) == here
                    and not value.variable
                    and value not in self.local
                ):
                    text = self._value(value)
                    name = self.frame.names.make(f"{value.base}_at")
                    self.out.line(f"const {CTYPE[text.kind]} {name} = {text.text};")
                    self.local[value] = Text(name, text.kind)

    def _load(self, works: Sequence[Work]) -> None:
        """Declare locals for elements that are read several times: selected or not, they are loaded and widened once."""
        counted = Counter(v for w in works for v in w.reads if isinstance(v, ItemMemory) and not v.variable)
        for value, count in counted.items():
            if count > 1 and value not in self.local:
                text = self._value(value)
                name = self.frame.names.make(f"{value.base}_at")
                self.out.line(f"const {CTYPE[text.kind]} {name} = {text.text};")
                self.local[value] = Text(name, text.kind)

    def _compute(self, work: Work) -> None:
        lazy = work.lazy
        assert lazy is not None
        match lazy.node:
            case Pointwise(name=name, expr=expr):
                kind = kind_of(lazy.dtype)
                args = [_widened(self._value(a), kind) for a in lazy.args]
                if isinstance(expr, Convert) and lazy in self.unrounded:
                    expr = expr.arg
                made = expression(expr, args, self._steady(work))
                self._let(lazy, name, Text(stripped(coerced(made, kind)), kind))
            case Collapse(monoid=monoid):
                self._accumulate(work, lazy, monoid)
            case IndexPlace(name=name, size=size):
                index = stripped(coerced(self._value(lazy.args[0]), "int"))
                self._let(lazy, name, Text(f"weft::place({index}, {size}, wrong)", "int"))
            case Gather(name=name, memory=memory, strides=strides):
                places = (times(self._value(a).text, s) for a, s in zip(lazy.args, strides, strict=True))
                offset = plus(*places, *self._along(memory))
                self._let(lazy, name, loaded(f"{memory.base}[{offset}]", memory.dtype))
            case Index() | Literal() | Extent():
                raise AssertionError(lazy.node)
        if lazy in self.buffers:
            at = _at(self.buffers[lazy], self.index)
            self.out.line(stored(at, self.buffers[lazy].dtype, self.local[lazy]))

    def _let(self, lazy: Lazy, wish: str, made: Text) -> None:
        """Declare a local for the current element of `lazy`."""
        local = self.frame.names.make(wish)
        self.out.line(f"const {CTYPE[made.kind]} {local} = {made.text};")
        self.local[lazy] = Text(local, made.kind)

    def _along(self, memory: ItemMemory) -> list[str]:
        """Spell how far the current element of an item lies from its first, axis by axis."""
        return [times(self.index[a], self.unit.get(memory.strides[a], memory.strides[a])) for a in memory.dims]

    def _steady(self, work: Work) -> frozenset[int]:
        """Return the arguments of what `work` computes that are the same all along the innermost loop; none where it
        stands outside.
        """
        if work.lazy is None or len(work.order) < len(self.nest.order):
            return frozenset()
        inner = work.order[-1:]
        args = enumerate(map(resolved, work.lazy.args))
        return frozenset(i for i, a in args if not isinstance(a, Panel) and not set(inner) <= set(a.dims))

    def _accumulate(self, work: Work, lazy: Lazy, monoid: Monoid) -> None:
        kind = _carried(lazy)
        value = coerced(self._value(lazy.args[0]), kind)
        if work.leaves_array:
            assert lazy.memory is not None
            at = _at(lazy.memory, self.index)
            step = combined(monoid, coerced(loaded(at, lazy.memory.dtype), kind), value, kind)
            self.out.line(stored(at, lazy.memory.dtype, Text(step, kind)))
        else:
            name = self.local[lazy].text
            self.out.line(f"{name} = {combined(monoid, name, value, kind)};")

    def _put(self, stores: Sequence[Put]) -> None:
        """Print the stores of one depth: all values are there before the first is written."""
        values = [self._value(s.value) for s in stores]
        if len(stores) > 1:
            variables = {s.target.base for s in stores if s.target.variable}
            values = [self._held(v, variables) for v in values]
        for store, value in zip(stores, values, strict=True):
            if store.target in self.narrow:
                self.out.line(f"{self.narrow[store.target]}[lane] = {stripped(coerced(value, 'float'))};")
                continue
            self.out.line(stored(_at(store.target, self.index, self.unit), store.target.dtype, value))

    def _held(self, value: Text, variables: Container[str]) -> Text:
        """Declare a local for `value`, unless it is a name that keeps what it stands for."""
        if is_word(value.text) and value.text not in variables:
            return value
        name = self.frame.names.make("value")
        self.out.line(f"const {CTYPE[value.kind]} {name} = {value.text};")
        return Text(name, value.kind)

    def _value(self, value: Value) -> Text:
        """Spell the current element of `value`."""
        value = resolved(value)
        if value in self.local:
            return self.local[value]
        match value:
            case ItemMemory():
                return loaded(_at(value, self.index, self.unit), value.dtype)
            case Lazy(node=Index(axis=axis, unit=True)):
                return Text(self.scope[axis].base, "int")
            case Lazy(node=Index(axis=axis)):
                return Text(f"({self.scope[axis].base} + {self.index[axis]})", "int")
            case Lazy(node=Literal(value=literal, dtype=dtype)):
                return Text(number(literal, kind_of(dtype)), kind_of(dtype))
            case Lazy(node=Extent(space=space, dtype=dtype, axis=axis)):
                size = self.frame.size(space) if axis is None else self.scope[axis].valid
                return Text(coerced(Text(size, "int"), kind_of(dtype)), kind_of(dtype))
            case Lazy() if value in self.buffers:
                return loaded(_at(self.buffers[value], self.index), self.buffers[value].dtype)
            case Lazy() | Panel():
                raise AssertionError(value)


def _widened(value: Text, kind: Kind) -> Text:
    """Widen an argument of an operation to what it is computed in: in fp64 all of it is, not only from the first fp64
    argument on.
    """
    return Text(coerced(value, kind), kind) if (value.kind, kind) == ("float", "double") else value


def _carried(lazy: Lazy) -> Kind:
    """Return the kind that a reduction is computed in: bools are counted as integers."""
    return kind_of(lazy.dtype.accumulator) if lazy.dtype.is_float else "int"
