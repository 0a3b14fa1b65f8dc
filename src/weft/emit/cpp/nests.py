"""Pointwise work, reductions within items and stores, printed as loop nests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from weft.block.one_hot import OneHot
from weft.block.program import Collapse, Extent, Index, Literal, Pointwise
from weft.emit.cpp.copies import Copies, Head
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.one_hots import nests_of
from weft.emit.cpp.phases import Phases, phases
from weft.emit.cpp.places import fill, fresh, in_loops, keep, spelled_at
from weft.emit.cpp.plan import Nest, Put, Work, crossing, overwritten, plan, rounded_by_stores
from weft.emit.cpp.scalar import (
    CTYPE,
    Text,
    bits,
    coerced,
    combined,
    expression,
    loaded,
    number,
    reduction_clause,
    stored,
)
from weft.emit.cpp.segments import conditions, difference, replaced, slope
from weft.emit.cpp.values import Gather, IndexPlace, ItemMemory, Lazy, Panel, Value, resolved
from weft.emit.kinds import Kind, kind_of
from weft.emit.ranges import Scope
from weft.emit.text import factor, is_word, minus, plus, stripped
from weft.tensor.axes import Axis
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert

# Elements of a row that lanes add up in one chain each (the prelude's kChain * kLanes).
_CHAINED = 512
# Elements that one number adds up, where other loops are inside: more are added up in lanes by turns.
_IN_TURN = 32


def run(frame: Frame, scope: Scope, stores: Sequence[Put], reductions: Sequence[Lazy] = ()) -> None:
    """Print the nests that do `stores` and compute `reductions`, whose results then lie in memory."""
    for nest, done in list(nests_of(stores, reductions)):
        _Printer(frame, scope, nest).print()
        stores = [store for store in stores if store is not done]
    reductions = [r for r in reductions if r.memory is None]
    kept = [keep(frame, scope, lazy) for lazy in reductions if not _grows(scope, lazy)]
    nests = plan([*stores, *kept], reductions, lambda axes, dense: in_loops(scope, axes, dense))
    later: list[Put] = []
    for work in overwritten(nests):
        assert work.store is not None
        target = work.store.target
        aside = fresh(frame, f"{target.base}_next", target.dtype, target.dims, scope)
        later.append(Put(target, aside))
        work.store = Put(aside, work.store.value)
    for nest, lazy in crossing(nests):
        store = keep(frame, scope, lazy)
        nest.works.append(Work(in_loops(scope, store.target.dims), (lazy,), store=store))
    for nest in nests:
        _Printer(frame, scope, nest).print()
    if later:
        run(frame, scope, later)


def _grows(scope: Scope, lazy: Lazy) -> bool:
    """Tell whether this is a reduction whose results grow in an array of their own, wherever it is computed."""
    arg = lazy.args[0]
    if not isinstance(lazy.node, Collapse) or isinstance(arg, Panel):
        return False
    return in_loops(scope, arg.dims)[-1:] != (lazy.node.over,)


class _Printer(Copies):
    """One nest being printed."""

    def __init__(self, frame: Frame, scope: Scope, nest: Nest) -> None:
        super().__init__(frame, scope, nest)
        self.out = frame.out
        self.inside: dict[Lazy, str] = {}
        self.narrow: dict[ItemMemory, str] = {}
        self.begin = "0"
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
        if self.nest.into is not None:
            lazy.memory = self.nest.into
            return
        dims = tuple(a for a in work.order if a != lazy.node.over)
        lazy.memory = fresh(self.frame, lazy.node.name, lazy.dtype.accumulator, dims, self.scope)
        fill(self.frame, self.scope, lazy.memory, lazy.node.monoid.identity)

    def _inner_strides(self, works: Sequence[Work]) -> list[str]:
        """List the strides, known at run time only, along the innermost loop: it vectorises well where they are 1."""
        if not self.nest.order:
            return []
        inner = self.nest.order[-1]
        memories = [v for w in works for v in w.reads if isinstance(v, ItemMemory)]
        gathers = [(w, w.lazy.node) for w in works if w.lazy is not None and isinstance(w.lazy.node, Gather)]
        memories += [node.memory for _, node in gathers]
        found = [m.strides[inner] for m in memories if inner in m.dims]
        for work, node in gathers:
            pairs = zip(work.reads, node.strides, strict=True) if node.sizes else ()
            found += [stride for index, stride in pairs if not isinstance(index, Panel) and inner in index.dims]
        return list(dict.fromkeys(stride for stride in found if not stride.isdigit()))

    def _level(self, works: Sequence[Work], depth: int) -> None:
        """Print the body of loop number `depth`, the outermost one's being 1: statements and inner loops, stores at the end."""
        order = phases(works, depth)
        outside, known = dict(self.local), dict(self.inside)
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
        self.local, self.inside = outside, known

    def _inner(self, order: Phases, time: int, depth: int) -> None:
        """Print loop number `depth` + 1, over what belongs to `time`."""
        works = order.loop(time)
        axis = self.nest.order[depth]
        if self.nest.one_hot is not None and axis == self.nest.one_hot.row:
            self._at_row(works, depth, self.nest.one_hot)
            return
        if depth == len(self.nest.order) - 2 and self._copied(works, axis, self.nest.order[-1]):
            return
        sums = [w for w in works if w.collapsed == axis and not w.leaves_array and len(w.order) == depth + 1]
        innermost = all(len(w.order) == depth + 1 for w in works)
        lanes = [w for w in sums if innermost and w.lazy is not None and _carried(w.lazy) != "int"]
        clauses, results, arrays, grown = self._begin_sums(sums, lanes, axis)
        self.local.update(results | arrays)
        runs = conditions([w.lazy for w in works if w.lazy is not None], axis) if innermost and not sums else []
        if runs:
            self._in_runs(works, depth, runs)
            return
        name, valid = self.index[axis], self.scope[axis].valid
        if innermost and not sums:
            works = self._moves(works, axis, "0")
        if innermost and not lanes:
            self.out.line(" ".join(["#pragma omp simd", *clauses]))
        head = f"for (i64 {name} = 0; {name} < {valid}; ++{name})"
        if lanes:
            head = f"weft::{'in_chains' if grown else 'in_lanes'}({valid}, [&](i64 {name}, i64 lane) __attribute__((always_inline))"
            self.narrow = self._narrow(works, axis)
        flush = f", [&] {{ {' '.join(f'weft::move_lanes({a}, {b});' for a, b in grown.values())} }}" if grown else ""
        last = (
            "}"
            if not lanes
            else f"}}{flush});"
            if not self.narrow
            else f"}}{flush}, [&](i64 start, i64 first, i64 count) {{"
        )
        with self.out.block(head, last):
            self._level(works, depth + 1)
        if self.narrow:
            self._put_lanes(name)
        for value, array in arrays.items():
            assert isinstance(value, Lazy)
            assert isinstance(value.node, Collapse)
            held = ", ".join(grown.get(value, (array.text.split("[")[0],)))
            whole = f"weft::{value.node.monoid.name}_of_lanes({held})"
            self.out.line(f"const {CTYPE[results[value].kind]} {results[value].text} = {whole};")
        self.local.update(results)

    def _at_row(self, works: Sequence[Work], depth: int, chosen: OneHot[Value]) -> None:
        """Print loop number `depth` + 1, of which `chosen` says the one iteration that does something, if there is one."""
        name, block = self.index[chosen.row], self.scope[chosen.row]
        args = [self._value(a) if a in chosen.read else Text("", "int") for a in chosen.args]
        index = stripped(coerced(expression(chosen.index, args), "int"))
        self.out.line(f"const i64 {name} = weft::row_of({index}, {block.base});")
        with self.out.block(f"if ((uint64_t){name} < (uint64_t){factor(block.valid)})"):
            self._level(works, depth + 1)

    def _begin_sums(
        self, sums: Sequence[Work], lanes: Sequence[Work], axis: Axis
    ) -> tuple[list[str], dict[Value, Text], dict[Value, Text], dict[Value, tuple[str, str]]]:
        """Declare what `sums` over `axis` are added up in: those in `lanes` beside each other, others one after the other.

        Returns:
            the clauses of a vector loop; by sum, its name; the element of its lanes, if it has any; the longer sums beside these.
        """
        clauses: list[str] = []
        results, arrays, grown = dict[Value, Text](), dict[Value, Text](), dict[Value, tuple[str, str]]()
        for work in sums:
            assert work.lazy is not None
            node, kind = work.lazy.node, _carried(work.lazy)
            assert isinstance(node, Collapse)
            name, start = self.frame.names.make(node.name), number(node.monoid.identity, kind)
            results[work.lazy] = Text(name, kind)
            adds = node.monoid is Monoid.sum and kind != "int"
            if work in lanes:
                array = self._lanes(f"{name}_lanes", kind, start)
                arrays[work.lazy] = Text(f"{array}[lane]", kind)
                if adds and self._more_than(_CHAINED, axis):
                    grown[work.lazy] = self._lanes(f"{name}_sums", kind, start), array
            elif adds and self._more_than(_IN_TURN, axis):
                array = self._lanes(f"{name}_lanes", kind, start)
                arrays[work.lazy] = Text(f"{array}[{self.index[axis]} % weft::kLanes]", kind)
            else:
                self.out.line(f"{CTYPE[kind]} {name} = {start};")
                clauses.append(reduction_clause(node.monoid, kind, name))
        return clauses, results, arrays, grown

    def _in_runs(self, works: Sequence[Work], depth: int, runs: Sequence[tuple[Lazy, Apply | None]]) -> None:
        """Print loop number `depth` + 1, the innermost one, in runs in each of which the conditions `runs` come out alike."""
        axis = self.nest.order[depth]
        name, valid = self.index[axis], self.scope[axis].valid
        start, more = self.frame.names.make(f"{axis.name}_run"), self.frame.names.make("more")
        inside, known = dict(self.inside), dict(self.known)
        with self.out.block(f"for (i64 {start} = 0, {more}; {start} < {valid}; {start} += {more})"):
            self.index[axis] = self.begin = start
            self.out.line(f"{more} = weft::min_index({valid} - {start}, weft::kBeside);")
            ends = dict.fromkeys(end for lazy, compared in runs for end in self._decided(lazy, compared, axis))
            for value, limit in ends:
                self.out.line(f"{more} = weft::min_index({more}, weft::steps_below({value}, {limit}));")
            self.index[axis] = name
            works = self._moves(works, axis, start)
            self.out.line("#pragma omp simd")
            with self.out.block(f"for (i64 {name} = {start}; {name} < {start} + {more}; ++{name})"):
                self._level(works, depth + 1)
        self.inside, self.known, self.runs = inside, known, {}

    def _decided(self, lazy: Lazy, compared: Apply | None, axis: Axis) -> list[tuple[str, str]]:
        """Declare a local for a condition, as it is from here on; returned is what must stay below what for it to stay so."""
        if compared is None:
            assert isinstance(lazy.node, Gather)
            name = self.frame.names.make(f"{lazy.node.name}_inside")
            self.out.line(f"const bool {name} = {self._within(lazy.node, lazy.args)};")
            self.runs[lazy] = self._run_of(lazy, lazy.node, axis, name)
            steps = [(slope(a, axis), self._value(a).text, n) for a, n in zip(lazy.args, lazy.node.sizes, strict=True)]
            growing = [(stripped(text), end) for step, text, size in steps if step == 1 for end in ("0", size)]
            return growing + [(end, f"{text} + 1") for step, text, size in steps if step == -1 for end in ("0", size)]
        left, right = (stripped(coerced(self._spelled(lazy, side), "int")) for side in compared.args)
        name = self.frame.names.make(f"{lazy.node.name}_known")
        self.out.line(f"const bool {name} = {stripped(self._spelled(lazy, compared).text)};")
        self.known[lazy] = {**self.known.get(lazy, {}), compared: name}
        beyond = " + 1" if compared.op in ("le", "gt") else ""
        if difference(compared, lazy, axis) == 1:
            return [(left, f"{right}{beyond}")]
        return [(right, left if beyond else f"{left} + 1")]

    def _run_of(self, lazy: Lazy, node: Gather, axis: Axis, inside: str) -> Head:
        """Declare where `lazy` reads from here on, as long as all is `inside` or nothing."""
        at, step = self.frame.names.make(f"{node.name}_run"), self.frame.names.make(f"{node.name}_step")
        pairs = [(slope(a, axis), self.unit.get(s, s)) for a, s in zip(lazy.args, node.strides, strict=True)]
        along = [self.unit.get(s, s) for s in (node.memory.strides[a] for a in node.memory.dims if a == axis)]
        whole = plus(*(stride for by, stride in pairs if by == 1), *along)
        back = plus(*(stride for by, stride in pairs if by == -1))
        text = whole if back == "0" else minus(whole, back)
        offset = self._offset(lazy, node)
        self.out.line(f"const auto* const {at} = weft::there_or_nothing({inside}, {node.memory.base}, {offset});")
        self.out.line(f"const i64 {step} = {inside} ? {text} : 1;")
        return Head(at, step)

    def _more_than(self, count: int, axis: Axis) -> bool:
        """Tell whether a block of `axis` can have more elements than `count`."""
        most = self.scope[axis].most
        return not most.isdigit() or int(most) > count

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
            self.out.line(f"weft::store_lanes(&{spelled_at(target, first)}, {array} + first, count);")
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
            if work.lazy is not None and len(work.order) > depth:
                steady = (a for a in map(resolved, work.lazy.args) if isinstance(a, Lazy) and here.issuperset(a.dims))
                for value in (a for a in steady if a.is_spelled and a not in self.local):
                    self._let(value, value.node.name, self._value(value))
                if isinstance(work.lazy.node, Gather):
                    self._hoist_places(work.lazy, work.lazy.node, here)

    def _hoist_places(self, lazy: Lazy, node: Gather, here: frozenset[Axis]) -> None:
        """Declare a local for whether `lazy` reads at a place, where inner loops do not change that."""
        args = [resolved(a) for a in lazy.args]
        known = [a for a in args if a in self.local or (isinstance(a, Lazy) and (a.is_given or a.is_spelled))]
        inside = [a for a in known if not isinstance(a, Panel) and here.issuperset(a.dims)]
        if node.sizes and len(inside) == len(args) and lazy not in self.inside:
            name = self.frame.names.make(f"{node.name}_inside")
            self.out.line(f"const bool {name} = {self._within(node, lazy.args)};")
            self.inside[lazy] = name

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
                known = self.known.get(lazy, {})
                expr = replaced(expr, {part: Arg(len(args) + number) for number, part in enumerate(known)})
                args += [Text(name, "bool") for name in known.values()]
                made = expression(expr, args, self._steady(work))
                self._let(lazy, name, Text(stripped(coerced(made, kind)), kind))
            case Collapse(monoid=monoid):
                self._accumulate(work, lazy, monoid)
            case IndexPlace(name=name, size=size):
                index = stripped(coerced(self._value(lazy.args[0]), "int"))
                self._let(lazy, name, Text(f"weft::place({index}, {size}, wrong)", "int"))
            case Gather():
                self._let(lazy, lazy.node.name, self._gathered(lazy, lazy.node))
            case Index() | Literal() | Extent():
                raise AssertionError(lazy.node)
        if lazy in self.buffers:
            at = spelled_at(self.buffers[lazy], self.index)
            self.out.line(stored(at, self.buffers[lazy].dtype, self.local[lazy]))

    def _gathered(self, lazy: Lazy, node: Gather) -> Text:
        """Spell the element that lies where the arguments of `lazy` say, read only where each of them is a place."""
        memory = node.memory
        if lazy in self.runs:
            head, inner = self.runs[lazy], self.nest.order[-1]
            return loaded(f"{head.at}[({self.index[inner]} - {self.begin}) * {head.step}]", memory.dtype)
        found = loaded(f"{memory.base}[{self._offset(lazy, node)}]", memory.dtype)
        if not node.sizes:
            return found
        inside = self.inside.get(lazy) or self._within(node, lazy.args)
        return Text(f"{inside} ? {found.text} : {number(0, found.kind)}", found.kind)

    def _let(self, lazy: Lazy, wish: str, made: Text) -> None:
        """Declare a local for the current element of `lazy`."""
        local = self.frame.names.make(wish)
        self.out.line(f"const {CTYPE[made.kind]} {local} = {made.text};")
        self.local[lazy] = Text(local, made.kind)

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
            at = spelled_at(lazy.memory, self.index)
            step = combined(monoid, coerced(loaded(at, lazy.memory.dtype), kind), value, kind)
            self.out.line(stored(at, lazy.memory.dtype, Text(step, kind)))
        else:
            name = self.local[lazy].text
            self.out.line(f"{name} = {combined(monoid, name, value, kind)};")

    def _put(self, stores: Sequence[Put]) -> None:
        """Print the stores of one depth: all values are there before the first is written."""
        moved = [s for s in stores if s.target in self.moved]
        stores = [s for s in stores if s not in moved]
        values = [self._value(s.value) for s in stores]
        if moved and len(moved) + len(stores) > 1:
            self._set_aside(moved)
        if len(stores) > 1:
            variables = {s.target.base for s in stores if s.target.variable}
            values = [self._held(v, variables) for v in values]
        for store, value in zip(stores, values, strict=True):
            if store.target in self.narrow:
                self.out.line(f"{self.narrow[store.target]}[lane] = {stripped(coerced(value, 'float'))};")
                continue
            self.out.line(stored(spelled_at(store.target, self.index, self.unit), store.target.dtype, value))
        for target in (s.target for s in moved):
            at = spelled_at(target, self.index, self.unit)
            self.out.line(f"{bits(at, target.dtype)} = {bits(self.moved[target], target.dtype)};")

    def _held(self, value: Text, variables: Container[str]) -> Text:
        """Declare a local for `value`, unless it is a name that keeps what it stands for."""
        if is_word(value.text) and value.text not in variables:
            return value
        name = self.frame.names.make("value")
        self.out.line(f"const {CTYPE[value.kind]} {name} = {value.text};")
        return Text(name, value.kind)


def _widened(value: Text, kind: Kind) -> Text:
    """Widen an argument of an operation to what it is computed in: in fp64 all of it is, not only from the first fp64
    argument on.
    """
    return Text(coerced(value, kind), kind) if (value.kind, kind) == ("float", "double") else value


def _carried(lazy: Lazy) -> Kind:
    """Return the kind that a reduction is computed in: bools are counted as integers."""
    return kind_of(lazy.dtype.accumulator) if lazy.dtype.is_float else "int"
