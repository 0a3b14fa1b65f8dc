"""What all of one kernel's printing shares: identifiers, lines, sizes, constants of the launch, blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from weft.block.places import Place
from weft.block.program import Map
from weft.block.ranges import EVERY_BLOCK, Part
from weft.emit.frame import KernelFrame
from weft.emit.ranges import BlockText
from weft.emit.text import Spelling
from weft.emit.triton.scalar import NOTHING_EXACT, Exact
from weft.emit.triton.text import SPELLING, Writer
from weft.emit.triton.values import Lanes
from weft.schedule import power_of_two
from weft.tensor.axes import Axis


@dataclass(frozen=True, slots=True)
class BlockConstant:
    """A constant of the launch: the least power of two that is at least the size of `space`, and at least `least`."""

    name: str
    space: str
    least: int

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return the value, given the size of each space by name."""
        return max(self.least, power_of_two(sizes[self.space]))


@dataclass(frozen=True, slots=True)
class WholeConstant:
    """A constant of the launch: whether blocks of `tile` elements cover `space` without a rest; 0 for a `BlockConstant` of `least`.

    Where they do the compiler drops the masks of such blocks, so there is one binary for each class of sizes.
    """

    name: str
    space: str
    tile: int
    least: int = 1

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return 1 where blocks of `tile` cover `space` without a remainder, else 0, given the size of each space by name."""
        tile = self.tile or BlockConstant(self.name, self.space, self.least).of(sizes)
        return int(sizes[self.space] % tile == 0)


Constant: TypeAlias = BlockConstant | WholeConstant
"""What a kernel is compiled anew for, as a function of the sizes."""


@dataclass
class Frame(KernelFrame[Writer]):
    """One kernel being printed.

    Attributes:
        tf32: matmuls of float32 may round their factors to tf32.
        exact: what is computed as exactly as eager does.
        stages: iterations of a pipelined loop whose loads are in flight at a time.
        lanes: for the axis of each loop entered so far, the elements of its current block.
        constants: what is known of the sizes when the kernel is launched.
        dividing: for the axis of a loop entered so far, a number of elements: where it divides the size of the axis's space, each
            block of the loop has as many.
    """

    spelling: ClassVar[Spelling] = SPELLING
    tf32: bool = False
    exact: Exact = NOTHING_EXACT
    stages: int = 1
    lanes: dict[Axis, Lanes] = field(default_factory=dict[Axis, Lanes])
    constants: list[Constant] = field(default_factory=list[Constant])
    dividing: dict[Axis, int] = field(default_factory=dict[Axis, int])

    def hold(self, text: str, wish: str = "part") -> str:
        """Give the expression `text` a new name."""
        name = self.names.make(wish)
        self.out.line(f"{name} = {text}")
        return name

    def leave(self, condition: str) -> None:
        """End the thread block where `condition` holds."""
        with self.out.block(f"if {condition}"):
            self.out.line("return")

    def extent(self, node: Map, most: str) -> str:
        """Return the number of lanes of a block of `node`, where it has at most `most` elements."""
        space = node.axis.space
        if most.isdigit():
            return str(max(node.least, power_of_two(int(most))))
        assert most == self.size(space), node
        known = next((c.name for c in self.constants if isinstance(c, BlockConstant) and c.space == space.name), None)
        if known is not None:
            return known
        name = self.names.make(f"BLOCK_{node.axis.name}")
        self.constants.append(BlockConstant(name, space.name, node.least))
        return name

    def enter(self, node: Map, step: BlockText) -> None:
        """Print the lanes of the current block of `node`; its `step` says how many are valid."""
        count = self.extent(node, step.most)
        index = self.hold(f"tl.arange(0, {count})", f"{node.axis.name}_i")
        valid = None
        if step.valid != count:
            inside, whole = f"{index} < {step.valid}", self._all_whole(node, count)
            if whole is not True:
                valid = self.hold(f"({inside}) | ({whole} == 1)" if whole else inside, f"{node.axis.name}_ok")
        whole = node.place is not Place.whole and node.range.left is Part.full
        self.lanes[node.axis] = Lanes(count, index, valid, whole)

    def _all_whole(self, node: Map, count: str) -> str | bool:
        """Tell whether each block of `node` has all `count` lanes: the name of a constant that says so, or what is known of it."""
        tile: int | None = None
        outer = node.range.through
        if outer is not None:
            around = self.dividing.get(outer)
            fits = node.tile and around and around % node.tile == 0
            tile = around if node.place is Place.whole else node.tile if fits else None
        elif node.range.aligned:
            tile = 0 if node.place is Place.whole and node.range == EVERY_BLOCK else node.tile
        if tile:
            self.dividing[node.axis] = tile
        space = node.axis.space
        least = 1 if tile else self._padded(count)
        if tile is None or least is None or (tile and count != str(tile)):
            return False
        if space.fixed is not None:
            return tile > 0 and space.fixed % tile == 0
        for known in self.constants:
            if isinstance(known, WholeConstant) and (known.space, known.tile, known.least) == (space.name, tile, least):
                return known.name
        self.constants.append(WholeConstant(self.names.make(f"WHOLE_{node.axis.name}"), space.name, tile, least))
        return self.constants[-1].name

    def _padded(self, count: str) -> int | None:
        """Return the fewest lanes of the block that the constant `count` counts: matmuls of other loops may have asked for them.

        None where it is no such constant.
        """
        return next((c.least for c in self.constants if isinstance(c, BlockConstant) and c.name == count), None)

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
