"""Graphs: operators in order, each a statement; items are tensors of registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.block.program import (
    BlockNode,
    BlockType,
    Bounded,
    Buffer,
    Collapse,
    Dot,
    Extent,
    Fill,
    Graph,
    Index,
    Literal,
    Load,
    Map,
    Pointwise,
    Store,
)
from weft.block.scope import Scope as Around
from weft.block.subscripts import Subscript
from weft.block.walk import copied
from weft.emit.kinds import kind_of
from weft.emit.ranges import Scope, digit_of
from weft.emit.text import is_word, plus, stripped, times
from weft.emit.triton.frame import Frame, spread
from weft.emit.triton.prelude import combiner
from weft.emit.triton.scalar import COMPUTED, Text, cast, coerced, element, expression, number
from weft.emit.triton.text import bracketed, call
from weft.emit.triton.values import Global, MadeList, Tile, Value
from weft.schedule import added_apart, multiplied
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Convert, arguments, exactly_equal


@dataclass
class Body:
    """A graph being printed: one iteration of a loop, an update, or the top of a kernel.

    Attributes:
        scope: current blocks of the loops around, as text.
        around: the same loops as the checker sees them; `types`: of the graph's values.
        values: what each name stands for.
        places: where indices lie in a dimension, by the names of an index and of the dimension's size.
    """

    frame: Frame
    scope: Scope
    around: Around
    graph: Graph
    types: Mapping[str, BlockType]
    values: dict[str, Value]
    places: dict[tuple[str, str], Tile] = field(default_factory=dict[tuple[str, str], Tile])

    def operator(self, node: BlockNode) -> None:
        """Print what `node` computes."""
        match node:
            case Pointwise():
                self._pointwise(node)
            case Dot():
                self._dot(node)
            case Collapse():
                self._collapse(node)
            case Index(name, axis, unit):
                base, lane = self.scope[axis].base, self.frame.lanes[axis].index
                text = cast(base, DType.int64) if unit else plus(base, cast(lane, DType.int64))
                self._define(name, text, node.dims, DType.int64)
            case Literal(name, value, dtype):
                kind = kind_of(dtype)
                self._define(name, cast(number(value, kind), COMPUTED[kind]), (), dtype, float(value))
            case Extent(name, space, dtype, axis):
                size = self.frame.size(space) if axis is None else self.scope[axis].valid
                self._define(name, cast(size, COMPUTED[kind_of(dtype)]), (), dtype)
            case Bounded(name, arg, space):
                self.values[name] = self.place(arg, self.frame.size(space))
            case Buffer(name):
                self.values[name] = MadeList(None)
            case Load():
                self._load(node)
            case Fill(name, arg, value):
                self.values[name] = self.filled(name, self.item(arg), value, None)
            case _:  # where a copy lies is the compiler's to choose
                same = copied(node)
                assert same is not None, node
                self.values[node.name] = self.item(same)

    def item(self, name: str) -> Tile:
        """Return the item called `name`: a scalar that the kernel is given is loaded now, if it was not."""
        value = self.values[name]
        if isinstance(value, Global):
            value = self._loaded(name, value, (), ())
        assert isinstance(value, Tile), name
        return value

    def store(self, node: Store) -> None:
        """Print what `node` does: a list that is made by one iteration in all stays in registers, too."""
        target, value, at = self.values[node.memory], self.item(node.value), node.at
        if isinstance(target, MadeList):
            target.at, target.item = at, value
            if target.place is None:
                return
            target = target.place
        assert isinstance(target, Global), node.memory
        self.stored(target, value, at)

    def stored(self, target: Global, value: Tile, at: tuple[Subscript, ...]) -> None:
        """Print a store of `value` in `target` at `at`."""
        wanted = kind_of(target.dtype)
        text = coerced(Text(value.text, value.kind), wanted)
        if target.dtype.is_kept and value.held is not target.dtype:
            text = cast(value.computed, target.dtype)
        if not value.dims:
            text = text if is_word(text) else self.frame.hold(stripped(text), "value")
        mask = self.frame.mask(value.dims)
        where = self.address(target, at, value.dims)
        self.frame.out.line(call("tl.store", where, stripped(text), *([f"mask={mask}"] if mask else [])))

    def aligned(self, text: str, has: tuple[Axis, ...], dims: tuple[Axis, ...]) -> str:
        """Return the tensor `text` with axes `has` made to go with the axes `dims`: turned, and with dimensions of size 1."""
        order = tuple(a for a in dims if a in has)
        if order != has:
            turn = ", ".join(str(has.index(a)) for a in order)
            text = call("tl.permute", text, f"({turn})")
        return spread(text, dims, order)

    def shape(self, dims: tuple[Axis, ...]) -> str:
        """Spell the shape of an item with these axes."""
        return bracketed([self.frame.lanes[a].count for a in dims])

    # The operators.

    def _define(
        self,
        name: str,
        text: str,
        dims: tuple[Axis, ...],
        dtype: DType,
        pad: float | None = None,
        held: DType | None = None,
    ) -> Tile:
        tile = Tile(self.frame.hold(stripped(text), name), dims, held or COMPUTED[kind_of(dtype)], dtype, pad)
        self.values[name] = tile
        return tile

    def _load(self, node: Load) -> None:
        memory = self.values[node.memory]
        if isinstance(memory, MadeList):
            self.values[node.name] = self._whole(node, memory)
            return
        assert isinstance(memory, Global), node.memory
        axes = self.types[node.memory].lists
        sizes = [self.frame.size(a.space) for a, s in zip(axes, node.at, strict=True) if s.index is not None]
        if node.masked:
            places = tuple(map(self.item, node.indices))
            inside = [self._inside(place, size, node.dims) for place, size in zip(places, sizes, strict=True)]
        else:
            places = tuple(self.place(name, size) for name, size in zip(node.indices, sizes, strict=True))
            inside = [f"({size} > 0)" for size in sizes if not size.isdigit()]
        self._loaded(node.name, memory, node.at, node.dims, places, inside)

    def _inside(self, index: Tile, size: str, dims: tuple[Axis, ...]) -> str:
        """Spell where an index is one of a dimension of `size` elements, for an item with axes `dims`."""
        text = self.aligned(index.text, index.dims, dims)
        return f"({text} >= 0) & ({text} < {size})"

    def place(self, name: str, size: str) -> Tile:
        """Return where the index called `name` lies in a dimension of `size` elements: checked once, outside of inner loops."""
        index = self.item(name)
        key = index.text, size
        if key not in self.places:
            text = call("weft_index", index.text, size, self.frame.mask(index.dims) or "1")
            tile = Tile(self.frame.hold(text, f"{name}_at"), index.dims, DType.int64, DType.int64)
            self.places[key] = tile
        return self.places[key]

    def _whole(self, node: Load, memory: MadeList) -> Tile:
        """Return all of a list that is in registers, as the item that `node` reads."""
        assert memory.item is not None
        assert memory.at is not None
        pairs = [(made.plain, read.plain) for made, read in zip(memory.at, node.at, strict=True)]
        axes = {made: read for made, read in pairs if made is not None and read is not None}
        return replace(memory.item, dims=tuple(axes.get(a, a) for a in memory.item.dims))

    def _loaded(
        self,
        name: str,
        memory: Global,
        at: tuple[Subscript, ...],
        dims: tuple[Axis, ...],
        places: Sequence[Tile] = (),
        inside: Sequence[str] = (),
    ) -> Tile:
        """Load an item: elements that the block does not have are 0; any value would do, and most readers fill in this one.

        places: where its elements lie, which are read `inside` alone.
        """
        where = self.address(memory, at, dims, places)
        mask = " & ".join([*filter(None, [self.frame.mask(dims)]), *inside])
        kind = kind_of(memory.dtype)
        if kind == "bool":
            where, kind = call("weft_bytes", where), "int"
        text = call("tl.load", where, *([f"mask={mask}", f"other={number(0, kind)}"] if mask else []))
        if memory.dtype is not DType.bool:
            return self._define(name, text, dims, memory.dtype, 0.0, memory.dtype)
        lying = self.frame.hold(text, name)
        self._define(name, f"{lying} != 0", dims, memory.dtype, 0.0, memory.dtype)
        self.values[name] = tile = replace(self.item(name), bytes=lying)
        return tile

    def address(
        self, memory: Global, at: tuple[Subscript, ...], dims: tuple[Axis, ...], places: Sequence[Tile] = ()
    ) -> str:
        """Spell pointers to the elements of the item with axes `dims` that lies in `memory` at `at`, or where `places` say."""
        blocks, lanes, offsets = dict[Axis, list[str]](), dict[Axis, str](), list[str]()
        apart: list[str] = []
        for subscript, stride in zip(at, memory.strides, strict=True):
            if subscript.index is not None:
                place = places[subscript.index]
                apart.append(times(self.aligned(place.text, place.dims, dims), stride))
            for factor, digit in subscript.terms:
                first = digit_of(self.scope[digit.axis].base, digit, self.frame.spelling)
                if first != "0":
                    blocks.setdefault(digit.axis, []).append(times(first, str(factor), stride))
                if digit.axis in dims:
                    index = spread(self.frame.lanes[digit.axis].index, dims, (digit.axis,))
                    step = times(str(factor), stride)
                    lanes[digit.axis] = index if step == "1" else f"{index} * {step}"
            if subscript.offset:
                offsets.append(times(str(subscript.offset), stride))
        # What belongs to a block by loops from the outermost, so that each loop adds its own to what is known before it; lanes
        # added up by themselves: they are the same for all blocks, so the compiler does it before the loop.
        offsets += [text for axis in self.scope for text in blocks.get(axis, ())]
        within = " + ".join(lanes[a] for a in dims if a in lanes)
        return plus(memory.base, *offsets, *([f"({within})" if len(lanes) > 1 else within] if lanes else []), *apart)

    def _pointwise(self, node: Pointwise) -> None:
        args = [self.item(a) for a in node.args]
        if node.expr == Arg(0) and args[0].dtype is node.dtype and self._is_part(args[0], node.dims):
            # A dimension for its one segment would only have values change their threads before they are stored.
            self.values[node.name] = args[0]
            return
        self.frame.location([node.location])
        expr, held = node.expr, None
        if isinstance(expr, Convert) and expr.dtype is node.dtype and node.dtype.is_kept:
            expr, held = expr.arg, node.dtype
        fewer = [len(t.dims) < len(node.dims) for t in args]
        texts = [
            Text(
                self.aligned(t.computed, t.dims, node.dims),
                t.kind,
                few,
                "" if t.bytes is None else self.aligned(t.bytes, t.dims, node.dims),
            )
            for t, few in zip(args, fewer, strict=True)
        ]
        made = expression(expr, texts, self.frame.hold, exact=self.frame.exact)
        kind = kind_of(node.dtype)
        text = coerced(made, kind)
        read = {a for i in arguments(node.expr) for a in args[i].dims}
        if not read.issuperset(node.dims):
            text = call("tl.broadcast_to", cast(text, COMPUTED[kind]), self.shape(node.dims))
        elif not read and not arguments(node.expr):
            text = cast(text, COMPUTED[kind])
        text = text if held is None else cast(text, held)
        pad = self.types[node.name].pad if node.name in self.types else None
        self._define(node.name, text, node.dims, node.dtype, pad, held)

    def _is_part(self, tile: Tile, dims: tuple[Axis, ...]) -> bool:
        """Tell whether `dims` are those of `tile`, in this order, and the axis of the segments one of which was made here."""
        segments = {n.range.segment[0] for n in self.graph.nodes if isinstance(n, Map) and n.range.segment is not None}
        kept = tuple(a for a in dims if a not in segments)
        return kept == tile.dims and len(kept) < len(dims) and all(self.frame.lanes[a].count == "1" for a in segments)

    def filled(self, name: str, tile: Tile, value: float, axes: tuple[Axis, ...] | None) -> Tile:
        """Return `tile` with `value` in the lanes that are not valid, of `axes` or of all."""
        mask = self.frame.mask(tile.dims, axes)
        if not mask or exactly_equal(tile.pad, value):
            return tile
        other, held = number(value, tile.kind), tile.held
        if held.is_kept and value != 0.0:
            held = DType.float32
        if tile.kind == "float":
            other = call("tl.cast", other, element(held))
        text = call("tl.where", mask, tile.text if held is tile.held else tile.computed, other)
        return Tile(self.frame.hold(text, name), tile.dims, held, tile.dtype, value if axes is None else None)

    def combinable(self, name: str, tile: Tile, over: Axis, identity: float) -> Tile:
        """Return `tile` with the identity in the lanes that a block the program knows to be whole has beyond its elements."""
        lanes = self.frame.lanes[over]
        return self.filled(name, tile, identity, (over,)) if lanes.whole and lanes.valid is not None else tile

    def _collapse(self, node: Collapse) -> None:
        tile = self.combinable(node.name, self.item(node.arg), node.over, node.monoid.identity)
        self.frame.location([node.location])
        # Bools are counted as integers.
        dtype = DType.int64 if tile.kind == "bool" else tile.dtype.accumulator
        text = coerced(Text(tile.computed, tile.kind), kind_of(dtype))
        where = str(tile.dims.index(node.over))
        reduced = (
            call("tl.sum", stripped(text), f"axis={where}")
            if node.monoid is Monoid.sum
            else call("tl.reduce", stripped(text), where, combiner(node.monoid))
        )
        dims = tuple(a for a in tile.dims if a != node.over)
        pad = self.types[node.name].pad if node.name in self.types else None
        self._define(node.name, reduced, dims, dtype, pad)

    def _dot(self, node: Dot) -> None:
        left, right = (self.combinable(node.name, self.item(n), node.over, 0.0) for n in (node.left, node.right))
        acc = None if node.acc is None else self.item(node.acc)
        added = None if acc is None else self.aligned(acc.computed, acc.dims, node.dims)
        self.frame.location([node.location])
        larger, smaller = (left, right) if len(left.dims) >= len(right.dims) else (right, left)
        if len(smaller.dims) == 1:
            # The larger one's own order: to turn it would move what was just loaded between threads.
            first, second = larger.computed, self.aligned(smaller.computed, smaller.dims, larger.dims)
            text = call("tl.sum", f"{first} * {second}", f"axis={larger.dims.index(node.over)}")
            text = self.aligned(text, tuple(a for a in larger.dims if a != node.over), node.dims)
            text = text if added is None else f"{added} + {text}"
        else:
            text = self._matmul(node, left, right, added)
        self._define(node.name, text, node.dims, node.dtype.accumulator)

    def _matmul(self, node: Dot, left: Tile, right: Tile, added: str | None) -> str:
        first, second = (left, right) if node.dims[0] in left.dims else (right, left)
        given = multiplied(left.dtype, right.dtype)
        apart = added_apart(given[0], tf32=self.frame.tf32)
        rows, columns = node.dims
        sides = [
            self.aligned(t.text if t.held is dtype else cast(t.text, dtype), t.dims, order)
            for t, dtype, order in zip(
                (first, second),
                given if first is left else given[::-1],
                ((rows, node.over), (node.over, columns)),
                strict=True,
            )
        ]
        options = [] if apart or added is None else [f"acc={added}"]
        match given[0]:
            case DType.float32 if apart:
                # The last option, which has no other meaning here, keeps Triton from making one chain of all blocks.
                options += ['input_precision="ieee"', "max_num_imprecise_acc=1"]
            case DType.float32:
                options.append('input_precision="tf32"')
            case DType.int8:
                options.append("out_dtype=tl.int32")
            case dtype if dtype.is_kept:
                options.append(f"max_num_imprecise_acc={_together(self.frame.lanes[node.over].count)}")
            case _:
                pass
        text = call("tl.dot", *sides, *options)
        text = cast(text, DType.int64) if given[0] is DType.int8 else text
        return f"{added} + {text}" if apart and added is not None else text


def _together(depth: str) -> str:
    """Spell how many products of 8 bits Hopper's unit may add up by itself, which it does to 13 bits: all there are, at
    most 128.
    """
    most = 128
    return str(min(most, int(depth))) if depth.isdigit() else f"({most} if {depth} > {most} else {depth})"
