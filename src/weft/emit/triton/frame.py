"""What all of one kernel's printing shares: identifiers, lines, sizes, constants of the launch, blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.block.program import Map, Place
from weft.block.ranges import Part
from weft.emit.ranges import Step, part_of
from weft.emit.text import Names
from weft.emit.triton.text import Writer, at_least, at_most, blocks_of, whole_blocks
from weft.emit.triton.values import Lanes
from weft.errors import Location, UnsupportedError
from weft.tensor.axes import Axis, Space

# The least of rows, columns and depth that tl.dot takes, for every type and target.
_LEAST_OF_PRODUCTS = 16


@dataclass(frozen=True, slots=True)
class BlockConstant:
    """A constant of the launch: the least power of two that is at least the size of `space`, and at least `least`."""

    name: str
    space: str
    least: int

    def of(self, sizes: Mapping[str, int]) -> int:
        """Its value, given the size of each space by name."""
        return max(self.least, power_of_two(sizes[self.space]))


@dataclass
class Frame:
    """One kernel being printed.

    Attributes:
        names, sizes: identifiers, and those of the run-time sizes.
        in_products: axes of items that products of blocks read or make.
        lanes: for the axis of each loop entered so far, the elements of its current block.
        constants: blocks that cover a space whose size is known when the kernel is launched.
    """

    names: Names
    sizes: Mapping[str, str]
    in_products: frozenset[Axis]
    out: Writer = field(default_factory=lambda: Writer(1))
    lanes: dict[Axis, Lanes] = field(default_factory=dict[Axis, Lanes])
    constants: list[BlockConstant] = field(default_factory=list[BlockConstant])

    def size(self, space: Space) -> str:
        """The number of elements of `space`."""
        return str(space.fixed) if space.fixed is not None else self.sizes[space.name]

    def at_most(self, left: str, right: str) -> str:
        """The smaller of two sizes."""
        return at_most(left, right)

    def at_least(self, left: str, right: str) -> str:
        """The larger of two sizes."""
        return at_least(left, right)

    def blocks_of(self, size: str, tile: str) -> str:
        """How many blocks of `tile` elements `size` elements make."""
        return blocks_of(size, tile)

    def whole_blocks(self, size: str, tile: str) -> str:
        """The elements of `size` that lie in whole blocks of `tile`."""
        return whole_blocks(size, tile)

    def hold(self, text: str, wish: str = "part") -> str:
        """A new name for the expression `text`."""
        name = self.names.make(wish)
        self.out.line(f"{name} = {text}")
        return name

    def extent(self, node: Map, most: str) -> str:
        """How many lanes a block of `node` has, where it has at most `most` elements.

        Raises:
            UnsupportedError: `most` is neither a number nor the size of the loop's space.
        """
        space = node.axis.space
        # Lists go between loops over all of a space, in registers: their blocks have the same number of lanes.
        axes = (
            (a for a in self.in_products if a.space == space)
            if most == self.size(space)
            else self.in_products & {node.axis}
        )
        least = _LEAST_OF_PRODUCTS if any(axes) else 1
        if most.isdigit():
            return str(max(least, power_of_two(int(most))))
        if most != self.size(space):
            raise UnsupportedError(
                f"loop {node.name!r} covers {most} elements at once: no constant is known to hold them"
            )
        known = next((c.name for c in self.constants if c.space == space.name), None)
        if known is not None:
            return known
        name = self.names.make(f"BLOCK_{node.axis.name}")
        self.constants.append(BlockConstant(name, space.name, least))
        return name

    def enter(self, node: Map, step: Step) -> None:
        """Print the lanes of the current block of `node`; its `step` says how many are valid."""
        count = self.extent(node, step.most)
        index = self.hold(f"tl.arange(0, {count})", f"{node.axis.name}_i")
        valid = None if step.valid == count else self.hold(f"{index} < {step.valid}", f"{node.axis.name}_ok")
        whole = node.place is not Place.whole and part_of(node) is Part.full
        self.lanes[node.axis] = Lanes(count, index, valid, whole)

    def mask(self, dims: Sequence[Axis], axes: Sequence[Axis] | None = None) -> str:
        """The mask of the valid elements of an item with axes `dims`, looking at `axes` only; "" where all are."""
        masks = [
            spread(lanes.valid, dims, (a,))
            for a in dims
            if (axes is None or a in axes) and (lanes := self.lanes[a]).valid is not None
        ]
        return " & ".join(masks)

    def location(self, locations: Sequence[Location | None]) -> None:
        """A comment that says which of the user's lines the next lines compute."""
        for each in dict.fromkeys(str(place) for place in locations if place is not None):
            self.out.comment(each)


def spread(text: str | None, dims: Sequence[Axis], has: Sequence[Axis]) -> str:
    """The tensor `text`, whose axes `has` are in the order of `dims`, with a dimension of size 1 for each other axis."""
    assert text is not None
    if len(has) == len(dims) or not has:
        return text
    return f"{text}[{', '.join(':' if a in has else 'None' for a in dims)}]"


def power_of_two(number: int) -> int:
    """The least power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
