"""What all of one kernel's printing shares: identifiers, lines, sizes, constants of the launch, blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from weft.block.program import Map
from weft.block.ranges import EVERY_BLOCK
from weft.block.room import Room, known, lanes_for, room_of
from weft.emit.frame import KernelFrame
from weft.emit.kinds import Kind
from weft.emit.ranges import BlockText
from weft.emit.text import Spelling
from weft.emit.triton.scalar import NOTHING_EXACT, Exact
from weft.emit.triton.text import SPELLING, Writer
from weft.emit.triton.values import Lanes
from weft.tensor.axes import Axis
from weft.tensor.merge import StateMerge


@dataclass(frozen=True, slots=True)
class BlockConstant:
    """A constant of the launch: the lanes of a block with room for `space`, of which its target asks at least `least`."""

    name: str
    space: str
    least: int

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return the value, given the size of each space by name."""
        return lanes_for(sizes[self.space], self.least)


@dataclass(frozen=True, slots=True)
class WholeConstant:
    """A constant of the launch: whether blocks of `tile` elements, 0: of a `BlockConstant`'s, cover `space` without a rest.

    Where they do the compiler drops the masks of such blocks, so there is one binary for each class of sizes.
    """

    name: str
    space: str
    tile: int
    least: int = 1

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return 1 where blocks of `tile` cover `space` without a remainder, else 0, given the size of each space by name."""
        tile = self.tile or lanes_for(sizes[self.space], self.least)
        return int(sizes[self.space] % tile == 0)


Constant: TypeAlias = BlockConstant | WholeConstant
"""What a kernel is compiled anew for, as a function of the sizes."""


@dataclass
class Frame(KernelFrame[Writer]):
    """One kernel being printed.

    Attributes:
        tf32: matmuls of float32 may round their factors to tf32.
        loops: all of the kernel's, by axis.
        exact: what is computed as exactly as eager does.
        stages: iterations of a pipelined loop whose loads are in flight at a time.
        lanes: for the axis of each loop entered so far, the elements of its current block.
        constants: what is known of the sizes when the kernel is launched.
        dividing: for the axis of a loop entered so far, a number of elements: where it divides the size of the axis's space, each
            block of the loop has as many.
        mergers: for each way to merge states of such kinds its function's name, and its lines.
    """

    spelling: ClassVar[Spelling] = SPELLING
    loops: Mapping[Axis, Map] = field(default_factory=dict[Axis, Map])
    tf32: bool = False
    exact: Exact = NOTHING_EXACT
    stages: int = 1
    lanes: dict[Axis, Lanes] = field(default_factory=dict[Axis, Lanes])
    constants: list[Constant] = field(default_factory=list[Constant])
    dividing: dict[Axis, int] = field(default_factory=dict[Axis, int])
    mergers: dict[tuple[StateMerge, tuple[Kind, ...]], tuple[str, list[str]]] = field(
        default_factory=dict[tuple[StateMerge, tuple[Kind, ...]], tuple[str, list[str]]]
    )

    def hold(self, text: str, wish: str = "part") -> str:
        """Give the expression `text` a new name."""
        name = self.names.make(wish)
        self.out.line(f"{name} = {text}")
        return name

    def hold_all(self, text: str, wishes: Sequence[str]) -> list[str]:
        """Give each part of the tuple `text` a new name."""
        names = [self.names.make(wish) for wish in wishes]
        self.out.line(f"{', '.join(names)} = {text}")
        return names

    def leave(self, condition: str) -> None:
        """End the thread block where `condition` holds."""
        with self.out.block(f"if {condition}"):
            self.out.line("return")

    def extent(self, node: Map) -> str:
        """Return the number of lanes of a block of `node`: a number, or the name of a constant of the launch."""
        room = room_of(node, self.loops)
        assert room is not None, node
        if isinstance(room, int):
            return str(room)
        wanted = (room.space.name, room.least)
        known = (c.name for c in self.constants if isinstance(c, BlockConstant) and (c.space, c.least) == wanted)
        name = next(known, None)
        if name is None:
            name = self.names.make(f"BLOCK_{node.axis.name}")
            self.constants.append(BlockConstant(name, *wanted))
        return name

    def enter(self, node: Map, step: BlockText) -> None:
        """Print the lanes of the current block of `node`; its `step` says how many are valid."""
        count = self.extent(node)
        index = self.hold(f"tl.arange(0, {count})", f"{node.axis.name}_i")
        valid = None
        if step.valid != count:
            inside, whole = f"{index} < {step.valid}", self._all_whole(node)
            if whole is not True:
                valid = self.hold(f"({inside}) | ({whole} == 1)" if whole else inside, f"{node.axis.name}_ok")
        self.lanes[node.axis] = Lanes(count, index, valid, node.full)

    def _all_whole(self, node: Map) -> str | bool:
        """Tell whether each block of `node` has all its lanes: the name of a constant that says so, or what is known of it."""
        room, tile = room_of(node, self.loops), known(node.most, self.loops)
        outer, space = node.range.through, node.axis.space
        if outer is not None:
            around = self.dividing.get(outer)
            tile = tile if isinstance(tile, int) and around and around % tile == 0 else None
        elif not node.range.aligned or (node.tile is None and node.range != EVERY_BLOCK):
            tile = None
        if isinstance(tile, int):
            self.dividing[node.axis] = tile
            if tile != room:
                return False
            if space.fixed is not None:
                return space.fixed % tile == 0
            asked = (tile, 1)
        elif isinstance(room, Room) and tile is not None:
            asked = (0, room.least)
        else:
            return False
        for each in self.constants:
            if isinstance(each, WholeConstant) and (each.space, each.tile, each.least) == (space.name, *asked):
                return each.name
        self.constants.append(WholeConstant(self.names.make(f"WHOLE_{node.axis.name}"), space.name, *asked))
        return self.constants[-1].name

    def mask(self, dims: Sequence[Axis], axes: Sequence[Axis] | None = None) -> str:
        """Spell the mask of the valid elements of an item with axes `dims`, looking at `axes` only; "" where all are."""
        masks = [
            spread(lanes.valid, dims, (a,))
            for a in dims
            if (axes is None or a in axes) and (lanes := self.lanes[a]).valid is not None
        ]
        return " & ".join(masks)


def spread(text: str | None, dims: Sequence[Axis], has: Sequence[Axis]) -> str:
    """Spell the tensor `text`, whose axes `has` are in the order of `dims`, with a dimension of size 1 for each other axis."""
    assert text is not None
    if len(has) == len(dims) or not has:
        return text
    return f"{text}[{', '.join(':' if a in has else 'None' for a in dims)}]"
