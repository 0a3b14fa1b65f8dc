"""A third target, as proof that a target is a folder and a line: kernels are NumPy text, arrays hold valid elements only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from weft.block import program as b
from weft.block.check import body_types, infer
from weft.block.scope import Scope
from weft.emit.calls import Dims, list_dims, size_names
from weft.emit.frame import KernelFrame
from weft.emit.ranges import BlockText, block_at, describe, digit_of, iterations
from weft.emit.text import Names, Spelling, minus, plus, times
from weft.emit.triton.text import RESERVED, Writer
from weft.plan.targets import Built, LaunchSpec, Toolchain
from weft.plan.targets.interface import signature
from weft.run.cache import Json
from weft.run.key import cache_key
from weft.run.launch import dense, make_python_launcher
from weft.schedule import KernelNodes
from weft.target import CPU, Target
from weft.tensor.axes import Axis, Space
from weft.tensor.domain import looked_up
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.optable import row
from weft.tensor.order import Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar

D = Fp64Domain()  # floats are carried in float64, integers in int64
_NEW = Axis("new", Space("new", 1))
Tensors = Sequence[torch.Tensor]

_NAMES = ("D", "DType", "Monoid", "Order", "ceil_div", "found", "joined", "row")
_HEAD = f"import numpy as np\nfrom numpy import inf, nan\nfrom {__name__} import {', '.join(_NAMES)}\n\n\n"
__all__ = ["D", "DType", "Monoid", "NumPy", "Order", "ceil_div", "emit", "found", "joined", "loaded", "row"]


def ceil_div(size: int, tile: int) -> int:
    return -(-size // tile)


def joined(one: Any, two: Any) -> Any:
    """Join two arrays along the last axis, the second's rows repeated as the first has them."""
    return np.concatenate((one, np.broadcast_to(two, (*one.shape[:-1], two.shape[-1]))), -1)


def found(array: Any, *index: Any, masked: Sequence[int] = ()) -> Any:
    """Read an array at integers; those that are no indices stand for the nearest, and nobody is told, or in dimensions that are
    masked for 0.
    """
    kind = {"f": DType.float64, "b": DType.bool}.get(array.dtype.kind, DType.int64)
    return looked_up(D, array, index, masked, kind)


@dataclass(frozen=True)
class Value:
    """An array by the text for it: `axes` in its order, of which `dims` are an item's; a list's are as long as their spaces."""

    text: str
    axes: tuple[Axis, ...]
    dims: tuple[Axis, ...]


def emit(program: b.BlockProgram, kernel: KernelNodes, name: str, dims: Dims) -> str:
    """Print one launch as `def NAME(reads, writes, sizes)`; arguments as of the other emitters, None for an axis of size 1."""
    types = infer(program.graph, dict(program.inputs), Scope({}, applied=True))
    names = Names(f"{RESERVED} np inf nan {' '.join(_NAMES)} {name}")
    given = {n: names.make(n) for n in (*kernel.reads, *kernel.writes)}
    sizes, out = {s: names.make(s) for s in size_names(program, kernel)}, Writer(1)
    whole: dict[str, Value] = {}
    for each, own in given.items():
        text = f"{own}[{', '.join('0' if a is None else ':' for a in dims[each])}]" if None in dims[each] else own
        whole[each] = Value(text, tuple(a for a in dims[each] if a is not None), types[each].dims)
    body = Body(names, sizes, out, {}, Scope({}, applied=True), types, dict(whole))
    body.run(b.Graph((), kernel.nodes, ()))
    for each in kernel.writes:
        if not types[each].buffered:
            out.line(f"{whole[each].text}[...] = {body.values[each].text}")
    return "\n".join([f"{_HEAD}def {name}({', '.join((*given.values(), *sizes.values()))}):", *out.lines, ""])


class _Spelling(Spelling):
    """Python's quotients are rounded down where sizes are negative, too: no loop has fewer than no blocks."""

    def whole_blocks(self, size: str, tile: str) -> str:
        return f"max({size}, 0) // ({tile}) * ({tile})"


@dataclass
class Body(KernelFrame[Writer]):
    """A graph being printed: one iteration of a loop, an update, or the top of a kernel."""

    scope: Mapping[Axis, BlockText]
    around: Scope
    types: Mapping[str, b.BlockType]
    values: dict[str, Value]
    spelling: ClassVar[Spelling] = _Spelling("min", "max", "//", "ceil_div")

    def hold(self, text: str, wish: str) -> str:
        self.out.line(f"{(name := self.names.make(wish))} = {text}")
        return name

    def leave(self, condition: str) -> None:
        raise AssertionError(condition)

    def run(self, graph: b.Graph) -> None:
        """Print `graph`."""
        for node in graph.nodes:
            match node:
                case b.Map():
                    self.loop(node)
                case b.Buffer():
                    self.values[node.name] = self.room(node.name)
                case b.Load() if node.indices:
                    self.look_up(node)
                case b.Load(name, memory, at, dims):
                    part = self.part(memory, at, dims)
                    self.values[name] = replace(part, text=self.hold(part.text, name))
                case b.Store(memory, value, at):
                    part = self.part(memory, at, self.values[value].dims)
                    self.out.line(f"{part.text} = {self.aligned(value, part.axes)}")
                case b.Rank():
                    self.rank(node)
                case b.Fill() | b.Stage():
                    self.values[node.name] = self.values[node.arg]
                case _:
                    text, dims = self.operator(node)
                    self.values[node.name] = Value(self.hold(text, node.name), dims, dims)

    def operator(self, node: b.BlockNode) -> tuple[str, tuple[Axis, ...]]:
        match node:
            case b.Pointwise():
                text = _expression(node.expr, [self.aligned(a, node.dims) for a in node.args])
                shape = " ".join(f"{self.scope[a].valid}," for a in node.dims)
                return f"np.broadcast_to({_carried(text, node.dtype)}, ({shape}))", node.dims
            case b.Dot():
                left, right = self.values[node.left], self.values[node.right]
                letter = {a: "abcdefgh"[i] for i, a in enumerate(dict.fromkeys((*left.dims, *right.dims)))}
                one, two, out = ("".join(letter[a] for a in dims) for dims in (left.dims, right.dims, node.dims))
                kind = "float64" if node.dtype.is_float else "int64"
                text = f'np.einsum("{one},{two}->{out}", {left.text}, {right.text}, dtype=np.{kind})'
                return text if node.acc is None else f"{self.aligned(node.acc, node.dims)} + {text}", node.dims
            case b.Collapse():
                dims = self.values[node.arg].dims
                text = f"D.reduce(Monoid.{node.monoid.name}, {self.values[node.arg].text}, [{dims.index(node.over)}])"
                return text, tuple(a for a in dims if a != node.over)
            case b.Index():
                base, valid = self.scope[node.axis].base, self.scope[node.axis].valid
                return f"np.asarray({base})" if node.unit else f"np.arange({base}, {plus(base, valid)})", node.dims
            case b.Bounded():
                last = f"{self.size(node.space)} - 1"
                return f"np.clip({self.aligned(node.arg, node.dims)}, 0, {last})", node.dims
            case b.Literal():
                return _carried(repr(node.value), node.dtype), ()
            case b.Extent():
                size = self.size(node.space) if node.axis is None else self.scope[node.axis].valid
                return _carried(size, node.dtype), ()
            case _:
                raise AssertionError(node)

    def rank(self, node: b.Rank) -> None:
        kept = tuple(a for a in node.dims if a != node.rank)
        ends, pairs = (node.rank or _NEW, node.over or _NEW), zip(node.acc, (node.arg, node.numbers), strict=True)
        sides = [", ".join(self.aligned(n, (*kept, a)) for n, a in zip(pair, ends, strict=True)) for pair in pairs]
        found = self.hold(f"D.ranked(joined({sides[0]}), joined({sides[1]}), {node.count}, {node.order!r})", node.name)
        dims = kept if node.rank is None else (*kept, node.rank)
        last = "[..., 0]" if node.rank is None else ""
        self.values |= {n: Value(f"{found}[{i}]{last}", dims, dims) for i, n in enumerate((node.name, node.places))}

    def aligned(self, item: str | Value, dims: tuple[Axis, ...]) -> str:
        """Spell an item with one dimension for each axis of `dims`, of size 1 where it lacks it."""
        value = self.values[item] if isinstance(item, str) else item
        if value.axes == dims:
            return value.text
        order = [value.axes.index(a) for a in dims if a in value.axes]
        return f"{value.text}.transpose({order})[{', '.join(':' if a in value.axes else 'None' for a in dims)}]"

    def part(self, memory: str, at: Sequence[b.Subscript], dims: tuple[Axis, ...]) -> Value:
        """Return the item with axes `dims` that lies in `memory` at `at`."""
        whole, own, index = self.values[memory], dict(zip(self.types[memory].lists, at, strict=True)), list[str]()
        for axis in whole.axes:
            digits = (times(str(f), digit_of(self.scope[d.axis].base, d, self.spelling)) for f, d in own[axis].terms)
            first = plus(*digits, str(own[axis].offset))
            along = [a for a in own[axis].axes if a in dims]
            block = f"{first}:{plus(first, self.scope[along[0]].valid)}" if along else first
            index.append(block if own[axis].index is None else ":")
        axes = tuple(a for axis in whole.axes for a in own[axis].axes if a in dims)
        return Value(f"{whole.text}[{', '.join(index) or '...'}]", axes, dims)

    def look_up(self, node: b.Load) -> None:
        """Print a load by indices: of the part of the memory that lies along the other axes."""
        own = dict(zip(self.types[node.memory].lists, node.at, strict=True))
        whole, index, masked = self.part(node.memory, node.at, node.dims), list[str](), list[int]()
        for axis in self.values[node.memory].axes:
            if (said := own[axis].index) is not None:
                masked += [len(index)] if node.masked else []
                index.append(self.aligned(node.indices[said], node.dims))
            elif along := [a for a in own[axis].axes if a in node.dims]:
                count = f"np.arange({self.scope[along[0]].valid})"
                index.append(self.aligned(Value(count, tuple(along), tuple(along)), node.dims))
        shape = " ".join(f"{self.scope[a].valid}," for a in node.dims)
        text = f"np.broadcast_to(found({', '.join((whole.text, *index))}, masked={masked}), ({shape}))"
        self.values[node.name] = Value(self.hold(text, node.name), node.dims, node.dims)

    def room(self, name: str) -> Value:
        """Reserve memory for what loops store or one hands out, each axis as long as its space."""
        kind, axes = self.types[name], list_dims(self.types[name])
        shape = " ".join(f"{self.size(a.space)}," for a in axes)
        return Value(self.hold(f"D.full(({shape}), 0, DType.{kind.dtype.name})", name), axes, kind.dims)

    def loop(self, node: b.Map) -> None:
        state = node.state
        once = {o.outer: self.room(o.outer) for o in node.outputs if isinstance(o, b.Once)}
        carried: list[Value] = []
        for number, c in enumerate(() if state is None else state.components):
            shape = " ".join(f"{self.scope[a].valid if a in self.scope else self.size(a.space)}," for a in c.dims)
            start = f"D.full(({shape}), {c.init!r}, DType.{c.dtype.accumulator.name})"
            if state is not None and state.resume is not None:
                outer = next(f.outer for f in node.inputs if f.inner == state.resume[number])
                start = self.aligned(outer, c.dims)
            carried.append(Value(self.hold(start, c.name), c.dims, c.dims))
        scope, around = {**self.scope, node.axis: self.head(node)}, self.around.inside(node)
        types = infer(node.body, body_types(node, self.types), around)
        fed = {f.inner: self.values[f.outer] for f in node.inputs}
        inner = replace(self, scope=scope, around=around, types=types, values=fed)
        inner.run(node.body)
        if state is not None:
            fed = dict(zip(state.update.inputs, [*carried, *(inner.values[f] for f in state.feeds)], strict=True))
            update = replace(inner, types={}, values=fed)
            update.run(state.update)
            made = [update.aligned(o, v.axes) for o, v in zip(state.update.outputs, carried, strict=True)]
            self.out.line(f"{', '.join(v.text for v in carried)}, = {', '.join(made)},")
        for output in node.outputs:
            if isinstance(output, b.Once):
                self.out.line(f"{once[output.outer].text} = {inner.aligned(output.inner, once[output.outer].axes)}")
        self.out.depth -= 1
        if state is not None:
            finish = replace(self, types={}, values=dict(zip(state.finish.inputs, carried, strict=True)))
            finish.run(state.finish)
            self.values |= {o.outer: finish.values[o.inner] for o in node.outputs if isinstance(o, b.Final)}
        self.values |= once

    def head(self, node: b.Map) -> BlockText:
        """Print the head of a loop, and go inside; returned is its current block."""
        found, block = iterations(self, node, self.scope), str(node.tile)
        self.out.comment(describe(node))
        base = self.names.make(node.axis.name)
        if node.place is b.Place.whole:
            block = f"max({minus(found.only.stop, found.only.first)}, 1)"
        stop = self.names.make(f"{base}_stop")
        runs = "".join(f"({run.first}, {run.last}, {run.stop}), " for run in found.runs)
        steps = f"[(b, stop) for first, last, stop in ({runs}) for b in range(first, last, {block})]"
        self.out.line(f"for {base}, {stop} in {steps}:")
        self.out.depth += 1
        return block_at(self, node, found.most, stop, base, block)


def _carried(text: str, dtype: DType, *, rounded: bool = False) -> str:
    return f"D.convert(np.asarray({text}), DType.{dtype.name}, {rounded})"


def _expression(expr: Scalar, args: Sequence[str]) -> str:
    match expr:
        case Arg(index):
            return args[index]
        case Lit(value):
            return repr(value)
        case Apply(op, inner):
            return f'row("{op}").meaning({", ".join(_expression(each, args) for each in inner)})'
        case Convert(dtype, inner):
            return _carried(_expression(inner, args), dtype, rounded=True)


def loaded(text: str, name: str) -> Callable[[Tensors, Tensors, Mapping[str, int]], None]:
    """Load a printed function, to be called with tensors read, tensors written, and sizes by name."""
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)

    def call(read: Tensors, written: Tensors, sizes: Mapping[str, int]) -> None:
        arrays = [_array(t) for t in written]
        with np.errstate(all="ignore"):
            scope[name](*map(_array, read), *arrays, *sizes.values())
        for tensor, made in zip(written, arrays, strict=True):
            tensor.copy_(torch.from_numpy(made))

    return call


def _array(tensor: torch.Tensor) -> Any:
    wide = torch.float64 if tensor.is_floating_point() else torch.bool if tensor.dtype is torch.bool else torch.int64
    return tensor.to(wide, copy=True).contiguous().numpy()


@dataclass(frozen=True)
class NumPy(Toolchain):
    """NumPy functions for tensors of the CPU."""

    kinds = ("numpy",)

    def build(self, spec: LaunchSpec, meta: Callable[[], Mapping[str, Json]]) -> Built:
        text = emit(spec.applied, spec.part, spec.name, spec.dims)
        called = signature(spec.applied, spec.part, spec.name, spec.dims)
        start = partial(make_python_launcher, called, loaded(text, spec.name))
        made: Any = SimpleNamespace(
            launch=start(), launching=lambda allocate: start(dense(allocate)), signature=called, text=text, meta=meta(),
            key=cache_key(spec.key_parts | self.environment()), from_cache=False, packed=None,
        )  # fmt: skip
        return Built(made)

    def runs_on(self, where: Target) -> bool:
        return where == CPU
