"""One launch as a Triton function: what it is called with, its grid, its constants; and what Triton asks of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.block.check import infer
from weft.block.places import Place
from weft.block.program import BlockNode, BlockProgram, BlockType, Dot, Graph, Map, Once, Pointwise
from weft.block.room import reach
from weft.block.scope import Scope as Around
from weft.block.size import begins_of
from weft.block.walk import every, maps
from weft.emit.calls import Dims, grid_chain, size_names, written_strides
from weft.emit.ranges import BlockText, describe, grid_blocks
from weft.emit.text import Names, is_word
from weft.emit.triton import loops, prelude, rankings
from weft.emit.triton.body import Body
from weft.emit.triton.frame import Constant, Frame
from weft.emit.triton.legality import demand_legal
from weft.emit.triton.scalar import Exact, jumps
from weft.emit.triton.text import RESERVED, Writer, call
from weft.emit.triton.values import Global, MadeList, Value
from weft.schedule import Granularity, KernelNodes
from weft.target import Target
from weft.tensor.axes import Axis

GRANULARITY = Granularity(matmul=16, depth_bytes=32, ahead=True)
"""What Triton asks of blocks on every target: `tl.dot` takes no smaller ones."""


@dataclass(frozen=True, slots=True)
class GridLoop:
    """A loop on the grid: one thread block for each `block` elements of `size`, the name of a size or a number."""

    size: str | int
    block: int


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A printed launch, and what its launcher must know.

    The function's arguments, in order: pointers to `reads`, to `writes`; the sizes named in `sizes`; the strides, in elements,
    of every dimension of every read; the `constants`. Writes are contiguous and overlap nothing, but one that is a read's memory
    (`schedule.overwriting`). Its one-dimensional grid has as many thread blocks as the `grid` loops have blocks, multiplied; no
    grid loop means one.

    Attributes:
        text: a Python module.
        name: of the function in it.
        constants: what it is compiled for, by the sizes.
        early: its thread blocks may take their places while the kernel before it still runs: they wait for its end themselves.
    """

    text: str
    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: tuple[str, ...]
    constants: tuple[Constant, ...]
    grid: tuple[GridLoop, ...]
    early: bool


def emit(
    program: BlockProgram,
    kernel: KernelNodes,
    name: str,
    dims: Dims,
    target: Target | None = None,
    *,
    tf32: bool = False,
    stages: int = 1,
) -> TritonKernel:
    """Prints one launch as a Triton kernel.

    Args:
        program: applied (`schedule.apply`) at this granularity.
        kernel: one of `schedule.kernels(program)`.
        name: of the function.
        dims: for each tensor read or written, its dimensions in memory order; None for one of size 1.
        target: a GPU, whose own conversions are used where they are weft's; None: the text is good for all that have its types.
        tf32: matmuls of float32 may round their factors to tf32, 10 bits behind the point.
        stages: iterations of a pipelined loop whose loads are in flight at a time.

    Raises:
        UnsupportedError: Triton kernels cannot do it (`demand_legal`).
    """
    demand_legal(program, kernel, target)
    types = infer(program.graph, dict(program.inputs), Around({}, applied=True))
    names = Names(" ".join([RESERVED, *prelude.NAMES, *rankings.NAMES]))
    names.make(name)
    pointers = {n: names.make(n) for n in (*kernel.reads, *kernel.writes)}
    sizes = size_names(program, kernel)
    spelled = {s: names.make(s) for s in sizes}
    inner = list(every(kernel.nodes))
    around = {m.axis: m for m in maps(Graph((), kernel.nodes, ()))}
    frame = Frame(names, spelled, Writer(1), around, tf32, _exact(inner), stages)
    parameters = [*pointers.values(), *spelled.values()]
    values: dict[str, Value] = {}
    for n in kernel.reads:
        values[n], strides = _read(names, pointers[n], types[n], dims[n])
        parameters += strides
    places = {
        n: _written(frame, pointers[n], types[n], written_strides(n, types[n], dims[n], frame.size))
        for n in kernel.writes
    }
    first = kernel.nodes[0]
    chain = grid_chain(first) if isinstance(first, Map) and first.place is Place.grid else []
    values |= {n: MadeList(places.pop(n)) for n in kernel.writes if types[n].buffered}
    top = Body(frame, {}, Around({}, applied=True), Graph((), kernel.nodes, ()), types, values)
    early = prelude.starts_early(target)
    if early:
        # Before the first thread block can end: who waits for this kernel relies on it having waited for those before.
        frame.out.line(call("weft_after_others"))
    grid = _grid(frame, top, chain, places) if chain else _serial(top, places)
    parameters += [f"{c.name}: tl.constexpr" for c in frame.constants]
    text = _module(name, [f"def {name}({', '.join(parameters)}):", *frame.out.lines], frame, target)
    return TritonKernel(text, name, kernel.reads, kernel.writes, sizes, tuple(frame.constants), tuple(grid), early)


def _exact(nodes: Sequence[BlockNode]) -> Exact:
    """Tells what is computed as exactly as eager does.

    Where something is rounded to few numbers, the last bit of a quotient may be seen. Beside matmuls exponentials take most of the
    time, and are summed and multiplied; elsewhere memory does.
    """
    jumping = any(isinstance(n, Pointwise) and jumps(n.expr) for n in nodes)
    return Exact(jumping, not any(isinstance(n, Dot) for n in nodes))


def _module(name: str, function: Sequence[str], frame: Frame, target: Target | None) -> str:
    """Returns the module with the lines of `function`, and what it calls."""
    mergers = [line for _, lines in frame.mergers.values() for line in lines]
    text = "\n".join([*mergers, *function])
    return "\n".join([
        f'"""{name}, printed by weft."""', "", "import triton", "import triton.language as tl", "",
        *prelude.functions(text, target), *rankings.functions(text), *mergers, "", "@triton.jit", *function, "",
    ])  # fmt: skip


def _read(names: Names, base: str, kind: BlockType, dims: Sequence[Axis | None]) -> tuple[Global, list[str]]:
    """Describes the tensor at `base`, whose strides are parameters: returned with their names.

    They are as wide as they are passed, and offsets with them: 64 bits in a loop cost registers, and order among its matmuls.
    """
    known = {a: names.make(f"{base}_s{i}") for i, a in enumerate(dims) if a is not None}
    strides = [names.make(f"{base}_s{i}") if a is None else known[a] for i, a in enumerate(dims)]
    return Global(base, kind.dtype, tuple(known[a] for a in kind.lists)), strides


def _written(frame: Frame, base: str, kind: BlockType, strides: Mapping[Axis, str]) -> Global:
    """Describes the tensor at `base`. Its strides, products of sizes, are made 64 bits wide, so that offsets in large
    tensors are.
    """
    wide: dict[Axis, str] = {}
    for axis, stride in strides.items():
        if stride.isdigit() and _stays_near(axis, int(stride)):
            wide[axis] = stride
            continue
        first, *rest = stride.split(" * ")
        text = " * ".join([f"tl.cast({first}, tl.int64)", *rest])
        wide[axis] = frame.hold(text, f"{base}_by_{axis.name.split('.')[-1]}")
    return Global(base, kind.dtype, tuple(wide[a] for a in kind.lists))


def _stays_near(axis: Axis, stride: int) -> bool:
    """Tells whether all elements of a written tensor along `axis` lie within 31 bits, whatever the sizes of the run: sizes do.

    A stride that is a number has dimensions of fixed size behind it alone, so that offsets in these come to less than it.
    """
    return stride == 1 or (axis.space.fixed is not None and axis.space.fixed * stride < _FAR)


# The first offset that 31 bits do not hold.
_FAR = 2**31


def _serial(top: Body, places: Mapping[str, Global]) -> list[GridLoop]:
    """Prints a launch without a grid: one thread block does it all."""
    loops.run(top)
    for name, memory in places.items():
        top.stored(memory, top.item(name), ())
    return []


def _grid(frame: Frame, top: Body, chain: Sequence[Map], places: Mapping[str, Global]) -> list[GridLoop]:
    """Prints the nested grid loops as one: thread block number `program` has one block of each."""
    limits: list[GridLoop] = []
    frame.out.line("program = tl.program_id(0)")
    scope: dict[Axis, BlockText] = {}
    counts: list[str] = []
    for node in chain:
        frame.out.comment(f"grid {describe(node)}")
        loop = _blocks(node, frame.loops)
        limits.append(loop)
        size = str(loop.size) if isinstance(loop.size, int) else frame.sizes[loop.size]
        count = frame.spelling.blocks_of(size, str(loop.block))
        counts.append(count if is_word(count) else frame.hold(count, f"{node.axis.name}_blocks"))
    # The longest first: what is left when multiprocessors run out of thread blocks is short.
    for node, block in grid_blocks(frame, chain, counts, _grows):
        scope[node.axis] = block
        frame.enter(node, block)
    _levels(top, chain, list(scope.values()), places)
    return limits


def _grows(node: Map) -> bool:
    """Tells whether later iterations of `node` have more to do: a loop in them goes from the beginning to beside their block."""
    beside = (m.range.bounds(m.axis.space, m.tile) for m in maps(node.body) if node.axis in m.range.beside)
    return any(node.axis in begins_of(each.stop) and not begins_of(each.start) for each in beside)


def _blocks(node: Map, loops: Mapping[Axis, Map]) -> GridLoop:
    """Returns how many blocks `node` has at most."""
    assert node.tile is not None
    if node.range.one_block:
        return GridLoop(1, 1)
    most = reach(node, loops)
    assert most is not None, node
    return GridLoop(most if isinstance(most, int) else most.name, node.tile)


def _levels(top: Body, chain: Sequence[Map], steps: Sequence[BlockText], places: Mapping[str, Global]) -> None:
    """Prints what a thread block does: the body of the last of the grid's loops."""
    body, scope, given = top, dict[Axis, BlockText](), places
    *outer, last = chain
    for node, step in zip(outer, steps, strict=False):
        scope[node.axis] = step
        body = loops.entered(body, node, dict(scope))
        given = {o.inner: given[o.outer] for o in node.outputs if isinstance(o, Once)}
    made = loops.iteration(body, last, {**scope, last.axis: steps[-1]}, {})
    for output in last.outputs:
        if isinstance(output, Once):
            made.stored(given[output.outer], made.item(output.inner), ())
