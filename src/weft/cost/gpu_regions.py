"""The code of one thread block of a GPU's grid, as regions between loops: what it loads, multiplies, computes and stores."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.block.ranges import Part
from weft.cost.load_places import At, PartOfList
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class LoadedItem:
    """A block that is loaded.

    Attributes:
        name: of the list that it is an item of.
        elements: lanes, padding included.
        matmuls: it is read by matmuls of blocks; others: by other code, so that it is in registers too.
        within: it is read inside loops of the region that loads it.
        spread: bytes that memory moves for each one of it: more than 1 where few of its elements lie beside one another.
        width: bytes that a thread loads at once: fewer than 16 where rows are no multiple of that, or narrower.
        at: axes whose blocks decide where it lies, each with how many elements in a row lie at the same place.
        reads: the part of the list that is loaded in all.
    """

    name: str
    elements: int
    dtype: DType
    matmuls: bool
    others: bool
    within: bool
    spread: float = 1.0
    width: int = 16
    at: At = ()
    reads: PartOfList = ()

    @property
    def bytes(self) -> int:
        """Bytes of the block, padding included."""
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A block that is stored.

    Attributes:
        elements: lanes, padding included.
        dtype: of an element.
        spread: bytes that memory moves for each one of it, as of `LoadedItem`; 1 for what stays in shared memory.
        width: bytes that a thread stores at once.
    """

    elements: int
    dtype: DType
    spread: float = 1.0
    width: int = 16

    @property
    def bytes(self) -> int:
        """Bytes of the block, padding included."""
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class Matmul:
    """A matmul of blocks: lanes of its rows, columns and depth; what its operands are multiplied as.

    Attributes:
        made: bytes of each operand that the kernel computes, (rows', columns'); 0 for one that is loaded.
        loaded: each operand that is loaded, None for one that is computed.
        turned: the operand lies in memory with its dimensions in the other order than the matmul has them.
    """

    rows: int
    columns: int
    depth: int
    dtype: DType
    made: tuple[int, int]
    loaded: tuple[LoadedItem | None, LoadedItem | None]
    turned: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class BlockReduction:
    """A reduction of a block.

    Attributes:
        results: lanes of its result; over: lanes that each one is made of.
        beside: of `results`, those that lie side by side in the memory that the block is loaded from; 1 where those that are
            reduced do, or where a matmul made the block.
        bytes: of an element of that memory.
        multiplied: a matmul made the block, or what it was made of element by element.
    """

    results: int
    over: int
    beside: int = 1
    bytes: int = 4
    multiplied: bool = False


@dataclass
class LoopWork:
    """Code between loops.

    Attributes:
        loop: it is one iteration of a loop; else that of the thread block, once.
        together: iterations that run as one, whose loads are in flight at once.
        pipelined: as many iterations as the launch has stages may have their loads in flight.
        runs: how often one thread block runs it, on average; entries: how often it gets to the loop.
        vectors: (lanes, cycles for each) of the elementwise work.
        reductions: those of blocks.
        stores: blocks that are stored.
        inner: loops inside.
        held: the most bytes of registers that blocks take in it at once; across: of these, what is there before and after all its
            iterations, and is neither read nor changed in them.
        axis: of the loop.
        part: which iterations of its range the loop has: those of several loops over one range lie at different places.
        busy: the share of runs that do anything, of a loop that asks in each run whether it does.
    """

    loop: bool
    runs: float
    entries: float
    together: int = 1
    pipelined: bool = False
    loads: list[LoadedItem] = field(default_factory=list[LoadedItem])
    matmuls: list[Matmul] = field(default_factory=list[Matmul])
    vectors: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    reductions: list[BlockReduction] = field(default_factory=list[BlockReduction])
    stores: list[StoredItem] = field(default_factory=list[StoredItem])
    inner: list[LoopWork] = field(default_factory=list["LoopWork"])
    held: int = 0
    across: int = 0
    axis: Axis | None = None
    part: Part = Part.all
    busy: float = 1.0

    def all(self) -> list[LoopWork]:
        """List this region and those inside."""
        return [self, *(r for inner in self.inner for r in inner.all())]


@dataclass(frozen=True, slots=True)
class ThreadBlockWork:
    """What one thread block does.

    Attributes:
        thread_blocks: of the grid.
        body: its code.
        held: the most bytes of blocks that are in its registers at once.
        largest: lanes of its largest block.
        grid: loops of the grid, outermost first, with how many blocks each has: the last one's are numbered in a row.
    """

    thread_blocks: int
    body: LoopWork
    held: int
    largest: int
    grid: tuple[tuple[Axis, int], ...] = ()
