"""One launch as a C++ function: what it is called with, its grid, its scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from weft.block.check import body_types, infer
from weft.block.one_hot import one_hots
from weft.block.places import Place
from weft.block.program import BlockProgram, BlockType, Graph, Map, Once
from weft.block.scope import Scope as Around
from weft.block.walk import maps
from weft.emit.calls import Dims, grid_chain, list_dims, size_names, written_strides
from weft.emit.cpp import loops, nests
from weft.emit.cpp.body import Body
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.legality import demand_legal
from weft.emit.cpp.plan import Put
from weft.emit.cpp.scalar import element
from weft.emit.cpp.text import RESERVED, Writer
from weft.emit.cpp.values import ItemMemory, ListMemory, Value
from weft.emit.ranges import BlockText, bounds, describe, grid_blocks
from weft.emit.text import Names, times
from weft.schedule import KernelNodes
from weft.tensor.axes import Axis


def emit(program: BlockProgram, kernel: KernelNodes, name: str, dims: Dims) -> str:
    """Prints the translation unit of one launch.

    Args:
        program: applied (`schedule.apply`).
        kernel: one of `schedule.kernels(program)`.
        name: the C function, `extern "C" void NAME(const int64_t* words)`. The words, in order: addresses of
            `kernel.reads`, of `kernel.writes`; sizes in the order of `size_names`; strides in elements of every dimension of
            every read; the number of threads; the address of an integer, in which a kernel that reads where indices say notes that
            one of them is none. Writes are contiguous and overlap nothing, but one that is a read's memory
            (`schedule.overwriting`).
        dims: for each tensor read or written, its dimensions in memory order; None for one of size 1.

    Raises:
        UnsupportedError: C++ kernels cannot do it (`demand_legal`), or it ranks elements that are not numbered as they lie.
    """
    function, more = _function(program, kernel, name, dims)
    headers = ["prelude.h", *sorted(more)]
    return "\n".join([*(f'#include "{h}"' for h in headers), "", "using weft::i64;", function])


def _function(program: BlockProgram, kernel: KernelNodes, own: str, dims: Dims) -> tuple[str, set[str]]:
    """Prints the function `own`; returned with the headers that it needs besides the prelude."""
    demand_legal(program, kernel)
    types = infer(program.graph, dict(program.inputs), Around({}, applied=True))
    names, out = Names(RESERVED), Writer(1)
    pointers = _pointers(out, names, kernel, types)
    sizes = size_names(program, kernel)
    spelled = {s: names.make(s) for s in sizes}
    word = len(kernel.reads) + len(kernel.writes)
    out.lines += [f"  const i64 {spelled[s]} = words[{word + i}];" for i, s in enumerate(sizes)]
    word += len(sizes)
    frame = Frame(names, spelled, Writer(1), given=[*pointers.values(), *spelled.values()])
    values, memories = dict[str, Value](), dict[str, ListMemory]()
    for name in kernel.reads:
        strides: dict[Axis, str] = {}
        for place, axis in enumerate(dims[name]):
            if axis is not None:
                strides[axis] = names.make(f"{pointers[name]}_s{place}")
                out.line(f"const i64 {strides[axis]} = words[{word}];")
                frame.given.append(strides[axis])
            word += 1
        if types[name].buffered:
            memories[name] = _list(pointers[name], types[name], strides)
        else:
            values[name] = _scalar(pointers[name], types[name])
    places: dict[str, ItemMemory] = {}
    for name in kernel.writes:
        strides = written_strides(name, types[name], dims[name], frame.size)
        if types[name].buffered:
            memories[name] = _list(pointers[name], types[name], strides)
        else:
            places[name] = _scalar(pointers[name], types[name])
    top = Body(frame, {}, Around({}, applied=True), Graph((), kernel.nodes, ()), types, values, memories=memories)
    first = kernel.nodes[0]
    begin = len(out.lines)
    if isinstance(first, Map) and first.place is Place.grid:
        out.line(f"const int threads = (int)words[{word}];")
        _grid(frame, out, top, first, places)
    else:
        _serial(frame, out, top, places)
    out.lines[begin:begin] = _checked(frame, word + 1)
    text = "\n".join(["", f'extern "C" void {own}(const int64_t* words) {{', *out.lines, "}", ""])
    return text, frame.headers


def _checked(frame: Frame, word: int) -> list[str]:
    """Prints where a kernel that reads where indices say notes one that is none; of what has no elements it reads nothing."""
    if not frame.looked_up:
        return []
    made = Writer(1)
    made.line(f"i64* const wrong = (i64*)words[{word}];")
    empty = " || ".join(f"{size} == 0" for size in frame.looked_up if not size.isdigit())
    if empty:
        with made.block(f"if ({empty})"):
            made.line("*wrong = 1;")
            made.line("return;")
    return made.lines


def _scalar(pointer: str, kind: BlockType) -> ItemMemory:
    """Describes the tensor without axes at `pointer`."""
    return ItemMemory(pointer, kind.dtype, {}, ())


def _list(pointer: str, kind: BlockType, strides: Mapping[Axis, str]) -> ListMemory:
    """Describes the tensor at `pointer`."""
    return ListMemory(pointer, kind.dtype, tuple(strides[a] for a in kind.lists), ("0",) * len(kind.lists))


def _pointers(out: Writer, names: Names, kernel: KernelNodes, types: Mapping[str, BlockType]) -> dict[str, str]:
    """Declares a pointer for each tensor."""
    found: dict[str, str] = {}
    for place, name in enumerate((*kernel.reads, *kernel.writes)):
        found[name] = names.make(name)
        kind = f"{'const ' if place < len(kernel.reads) else ''}{element(types[name].dtype)}*"
        out.line(f"{kind} const {found[name]} = ({kind})words[{place}];")
    return found


def _serial(frame: Frame, out: Writer, top: Body, places: Mapping[str, ItemMemory]) -> None:
    """Prints a launch without a grid: one thread does it all."""
    loops.run(top)
    puts = [Put(memory, top.values[name]) for name, memory in places.items()]
    if puts:
        nests.run(frame, {}, puts)
    out.lines += _scratch(frame, 1)
    out.lines += frame.out.lines


def _scratch(frame: Frame, depth: int) -> list[str]:
    """Prints the declarations of the memory that one thread works in."""
    made = Writer(depth)
    if frame.allocations:
        bytes_ = [f"weft::scratch_bytes<{a.ctype}>({a.count})" for a in frame.allocations]
        made.line(f"weft::Scratch scratch({' + '.join(bytes_)});")
    for a in frame.allocations:
        made.line(f"{a.ctype}* const {a.name} = scratch.take<{a.ctype}>({a.count});")
    if frame.has_matmuls:
        made.line("weft::Products products;")
    return made.lines


def _grid(frame: Frame, out: Writer, top: Body, first: Map, places: Mapping[str, ItemMemory]) -> None:
    """Prints the parallel region: one iteration of a flat loop for each block of the nested grid maps."""
    chain = grid_chain(first)
    counts: list[str] = []
    for node in chain:
        out.comment(f"grid {describe(node)}")
        counts.append(frame.names.make(f"{node.axis.name}_blocks"))
    frame.out.depth = 3
    scope = dict[Axis, BlockText]()
    for count, (node, block) in zip(counts, grid_blocks(frame, chain, counts, lambda _: False), strict=True):
        extent = frame.spelling.blocks_of(bounds(frame, node, scope).most, str(node.tile))
        out.line(f"const i64 {count} = {extent};")
        scope[node.axis] = block
    _levels(top, chain, list(scope.values()), places)
    out.line(f"const int team = weft::team(threads, {times(*counts)}, {_work(frame, top, first)});")
    # Each thread has its own copies: of a variable that threads share, and that a function in the kernel sees by reference, GCC
    # does not know that loops leave it as it is.
    out.line(f"#pragma omp parallel num_threads(team) firstprivate({', '.join(frame.given)})")
    with out.block(""):
        out.lines += _scratch(frame, 2)
        # Beside spans and under guards programs differ in length: who is done takes the next, which changes no result.
        uneven = any(m.range.beside or m.guard is not None for m in maps(Graph((), (first,), ())))
        out.line(f"#pragma omp for schedule({'dynamic' if uneven else 'static'})")
        with out.block(f"for (i64 program = 0; program < {times(*counts)}; ++program)"):
            out.lines += frame.out.lines


def _work(frame: Frame, top: Body, first: Map) -> str:
    """Counts the elements that the kernel works on: of each chain of maps the product of the sizes, where no other has
    those too. What is reduced in one row of a block has no rows.
    """
    found = _chains(first, body_types(first, top.types), top.around.inside(first))
    chains = {tuple(sorted(frame.size(a.space) for a in chain if a not in rows)): None for chain, rows in found}
    largest = [one for one in chains if not any(Counter(one) < Counter(other) for other in chains)]
    return " + ".join(times("1.0", *chain) for chain in largest)


def _chains(
    node: Map, given: Mapping[str, BlockType], around: Around
) -> list[tuple[tuple[Axis, ...], frozenset[Axis]]]:
    """Lists the axes along each way from `node`, of whose body the inputs are `given`, down to a map that holds none, and the rows
    of what that one reduces in one row.
    """
    types = infer(node.body, given, around)
    inner = [m for m in node.body.nodes if isinstance(m, Map)]
    below = [each for m in inner for each in _chains(m, body_types(m, types), around.inside(m))]
    return [((node.axis, *chain), rows) for chain, rows in below] or [
        ((node.axis,), frozenset(one_hots(node.body, types).values()))
    ]


def _levels(top: Body, chain: Sequence[Map], steps: Sequence[BlockText], places: Mapping[str, ItemMemory]) -> None:
    """Prints what a program does: the body of the last of the grid's loops."""
    body, scope, given = top, dict[Axis, BlockText](), places
    *outer, last = chain
    for node, step in zip(outer, steps, strict=False):
        scope[node.axis] = step
        body = loops.entered(body, node, dict(scope))
        given = {o.inner: given[o.outer] for o in node.outputs if isinstance(o, Once)}
    loops.iteration(body, last, {**scope, last.axis: steps[-1]}, given, {})


__all__ = ["Dims", "emit", "list_dims", "size_names"]
