"""A graph of Dynamo's as bytes, for another process: its nodes, sizes and guards, and what its arguments look like; no elements.

PyTorch's own pickler knows its fake tensors, symbols and environments of sizes (`torch.fx._graph_pickler`, which has no public
name); the nodes are written here, since that pickler refuses fake tensors that are views, which only intermediate values are.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # no public name
from torch.fx import _graph_pickler  # no public name
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # no public name
from torch.fx.node import map_aggregate
from torch.utils._mode_utils import no_dispatch  # no public name
from torch.utils._sympy.printers import PythonPrinter  # no public name

from weft.capture import RuntimeNumber
from weft.capture.sizes import expression
from weft.capture.source import location_of
from weft.errors import UnsupportedError

_PICKLER: Any = _graph_pickler
_MAP: Any = map_aggregate
_BASE: Any = _PICKLER.GraphPickler
_SLICES: Any = getattr(_PICKLER, "patch_pytree_map_over_slice", nullcontext)
"""What PyTorch's pickler works inside; PyTorch 2.11 has no such thing."""
_OPTIONS: Any = _PICKLER.Options(ops_filter=None)
_CONTENT = 4096
"""Bytes up to which a tensor that the graph holds (`torch.tensor([1, 2, 3])` in the user's code) is sent with its elements."""


@dataclass(frozen=True, slots=True)
class NodeNumber:
    """Node number `index`, among the arguments of a later one."""

    index: int


@dataclass(frozen=True, slots=True)
class NodeForm:
    """A node: what `fx.Graph.create_node` is given, and where the user wrote it.

    Of a placeholder also what Dynamo found: `example`, and `item`, the symbol of the number that a tensor stands for.
    """

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    line: tuple[str, int] | None
    example: Any
    item: Any


@dataclass(frozen=True, slots=True)
class GraphForm:
    """A graph module: its nodes, and what they find by name: tensors, graphs, numbers."""

    nodes: tuple[NodeForm, ...]
    held: Mapping[str, Any]

    @staticmethod
    def of(gm: fx.GraphModule) -> GraphForm:
        """Describe `gm`."""
        places = {node: NodeNumber(index) for index, node in enumerate(gm.graph.nodes)}

        def ref(leaf: Any) -> Any:
            return places[leaf] if isinstance(leaf, fx.Node) else leaf

        def sent(value: Any) -> Any:
            return _MAP(value, ref)

        nodes: list[NodeForm] = []
        held: dict[str, Any] = {}
        for node in gm.graph.nodes:
            where = location_of(node)
            line = None if where is None else (where.file, where.line)
            example = node.meta.get("example_value") if node.op == "placeholder" else None
            target = _PICKLER._OpPickleData.pickle(node.target, _OPTIONS)  # noqa: SLF001 - no public name
            item = getattr(example, "item_memo", None)
            nodes.append(NodeForm(node.op, node.name, target, sent(node.args), sent(node.kwargs), line, example, item))
            if node.op in ("get_attr", "call_module"):
                found = _attribute(gm, str(node.target))
                held[str(node.target)] = GraphForm.of(found) if isinstance(found, fx.GraphModule) else found
        return GraphForm(tuple(nodes), held)

    def made(self, token: Any) -> fx.GraphModule:
        """Make the graph module again; `token` is what PyTorch's forms are read with."""
        root = torch.nn.Module()
        for name, value in self.held.items():
            *path, last = name.split(".")
            place = root
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, torch.nn.Module())
                place = getattr(place, part)
            setattr(place, last, value.made(token) if isinstance(value, GraphForm) else value)
        graph = fx.Graph()
        made: list[fx.Node] = []

        def given(leaf: Any) -> Any:
            return made[leaf.index] if isinstance(leaf, NodeNumber) else leaf

        for form in self.nodes:
            args, kwargs = _MAP(form.args, given), _MAP(form.kwargs, given)
            node = graph.create_node(form.op, form.target.unpickle(token), args, kwargs, form.name)
            if form.line is not None:
                node.meta["stack_trace"] = f'File "{form.line[0]}", line {form.line[1]}, in graph'
            if form.op == "placeholder":
                node.meta["example_value"] = form.example
                if form.item is not None:
                    form.example.item_memo = form.item
            made.append(node)
        return fx.GraphModule(root, graph)


@dataclass(frozen=True, slots=True)
class TensorForm:
    """An argument that is a tensor, without its elements.

    Attributes:
        shape, stride, dtype, device: its own.
        memory: a number for the storage that it lies in, which other arguments may lie in too.
        offset: of its first element there.
        marks: whether it is marked as a conjugate, and as a negative.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    memory: int
    offset: int
    marks: tuple[bool, bool]

    @property
    def end(self) -> int:
        """Bytes of its storage up to its last element."""
        if 0 in self.shape:
            return self.offset * self.dtype.itemsize
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (self.offset + last + 1) * self.dtype.itemsize


def forms_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Describe the arguments of a graph: tensors by what they look like, numbers as they are.

    Raises:
        UnsupportedError: one is something else, or a tensor that is more than elements in memory.
    """
    memory: dict[int, int] = {}

    def form(argument: Any) -> Any:
        match argument:
            case torch.Tensor() if argument.layout is torch.strided and not isinstance(argument, FakeTensor):
                storage = argument.untyped_storage()
                number = memory.setdefault(storage.data_ptr() or -1 - len(memory), len(memory))
                place = tuple(argument.shape), tuple(argument.stride()), argument.dtype, str(argument.device), number
                marks = argument.is_conj(), argument.is_neg()
                return TensorForm(*place, cast("int", argument.storage_offset()), marks)
            case torch.SymInt() | torch.SymFloat():
                return cast("Any", argument).node.hint
            case bool() | int() | float() | None:
                return argument
            case _:
                raise UnsupportedError(f"an argument of the graph is a {type(argument).__name__}")

    return tuple(map(form, arguments))


def tensors_of(forms: Sequence[Any]) -> tuple[Any, ...]:
    """Make arguments that look like these; their elements are whatever is in memory, which is taken when they are written."""
    ends: dict[int, int] = {}
    for each in forms:
        if isinstance(each, TensorForm):
            ends[each.memory] = max(ends.get(each.memory, 0), each.end)
    storages: dict[int, torch.UntypedStorage] = {}

    def made(form: Any) -> Any:
        if not isinstance(form, TensorForm):
            return form
        if form.memory not in storages:
            storages[form.memory] = torch.UntypedStorage(ends[form.memory], device=form.device)
        tensor = torch.empty(0, dtype=form.dtype, device=form.device)
        tensor.set_(storages[form.memory], form.offset, form.shape, form.stride)
        tensor = tensor.conj() if form.marks[0] else tensor
        return vars(torch)["_neg_view"](tensor) if form.marks[1] else tensor  # no public name

    return tuple(map(made, forms))


@dataclass(frozen=True, slots=True)
class Received:
    """A graph in another process.

    Attributes:
        gm: the graph; its placeholders have Dynamo's fake tensors.
        shapes: the environment of its sizes, with PyTorch's guards and those that were added since.
        guards: how many of them PyTorch checks at each call.
        whole: whether all tensors that it holds came with their elements.
    """

    gm: fx.GraphModule
    shapes: ShapeEnv
    guards: int
    whole: bool

    def conditions(self) -> tuple[RuntimeNumber, ...]:
        """List what must be true of a call's sizes, beside what PyTorch checks.

        Raises:
            UnsupportedError: arguments of the graph do not tell.
        """
        nodes = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        numbers = [(i, n.meta["example_value"]) for i, n in enumerate(nodes)]
        sizes = [(i, each) for i, each in numbers if isinstance(each, torch.SymInt)]
        # Two sizes that are found to be equal have one symbol from then on; that they are is told of those that they had.
        places = {str(cast("Any", each).node._expr): i for i, each in sizes}  # noqa: SLF001 - no public name
        places |= {str(expression(each)): i for i, each in sizes}
        added: list[Any] = [guard.expr for guard in self.shapes.guards[self.guards :]]
        names = [sorted(map(str, expr.free_symbols)) for expr in added]
        if self.shapes.deferred_runtime_asserts or not places.keys() >= {name for each in names for name in each}:
            raise UnsupportedError("weft relies on more about its sizes than arguments tell")
        texts: list[str] = [cast("Any", PythonPrinter()).doprint(expr) for expr in added]
        return tuple(
            RuntimeNumber(text, tuple((name, places[name]) for name in each))
            for text, each in dict(zip(texts, names, strict=True)).items()
        )


def packed_graph(gm: fx.GraphModule) -> bytes:
    """Write a graph. Raises an exception of any kind for what cannot be written, such as an operation of an unknown library."""
    with io.BytesIO() as stream, _SLICES():
        pickler = _GraphPickler(stream, _OPTIONS)
        pickler.dump((GraphForm.of(gm), pickler.token))
        return stream.getvalue()


def unpacked_graph(data: bytes) -> Received:
    """Make a graph of what `packed_graph` wrote; raises as that does."""
    shapes = ShapeEnv()
    state = _PICKLER._UnpickleState(FakeTensorMode(shape_env=shapes))  # noqa: SLF001 - no public name
    with io.BytesIO(data) as stream, _SLICES():
        form, token = _PICKLER._GraphUnpickler(stream, state).load()  # noqa: SLF001
    gm = form.made(token)
    return Received(gm, shapes, len(shapes.guards), _all_whole(form))


def _all_whole(form: GraphForm) -> bool:
    return all(
        _all_whole(each) if isinstance(each, GraphForm) else not isinstance(each, torch.Tensor) or _is_small(each)
        for each in form.held.values()
    )


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() <= _CONTENT


def _attribute(gm: fx.GraphModule, name: str) -> Any:
    found: Any = gm
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _held(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str, numbers: Any) -> torch.Tensor:
    """Make a tensor that the graph holds: with its elements, or with zeros."""
    tensor = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=device).zero_()
    return tensor if numbers is None else tensor.copy_(torch.tensor(numbers, dtype=dtype).reshape(tensor.shape))


def _view(
    shape: Sequence[Any], stride: Sequence[Any], offset: Any, dtype: torch.dtype, device: torch.device, state: Any
) -> Any:
    """Make a fake tensor in the place of one that is a view, of what does not matter to the graph."""
    with no_dispatch():
        memory = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="meta")
        if not isinstance(offset, int) or offset:
            memory = memory.as_strided(tuple(shape), tuple(stride), offset)
        return FakeTensor(state.fake_mode, memory, device)


def _number(kind: type, data: Any, state: Any) -> Any:
    del state
    return kind(data._to_sym_node())  # noqa: SLF001 - no public name


class _GraphPickler(_BASE):
    """PyTorch's pickler, without the elements of large tensors, and with symbols of other kinds than integers."""

    def __init__(self, stream: io.BytesIO, options: Any) -> None:
        _BASE.__init__(self, stream, options)
        self.token: Any = self._unpickle_state

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.SymFloat | torch.SymBool):
            return _number, (type(obj), _PICKLER._SymNodePickleData(cast("Any", obj).node), self.token)  # noqa: SLF001 - no public name
        if isinstance(obj, torch.Tensor) and not isinstance(obj, FakeTensor):
            if obj.layout is not torch.strided:
                raise pickle.PicklingError(f"the graph holds a tensor of layout {obj.layout}")
            numbers = cast("Any", obj.detach()).tolist() if _is_small(obj) else None
            return _held, (tuple(obj.shape), tuple(obj.stride()), obj.dtype, str(obj.device), numbers)
        if isinstance(obj, FakeTensor) and cast("Any", obj)._is_view() and not obj.requires_grad:  # noqa: SLF001
            place = tuple(obj.shape), tuple(obj.stride()), obj.storage_offset(), obj.dtype, obj.fake_device
            return _view, (*place, self.token)
        return _BASE.reducer_override(self, obj)
