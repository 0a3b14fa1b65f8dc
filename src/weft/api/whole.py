"""Capturing a function as one tensor program over its arguments, exactly as written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CellType, CodeType, FunctionType
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree  # no public name

from weft.api.compiled import dynamo_compile, translating
from weft.api.optimize import own_code
from weft.capture import Captured, FromProgram, capture, every_node
from weft.capture.arguments import dtype_of
from weft.capture.captured import OpaqueCall, Operand
from weft.errors import UnsupportedError
from weft.plan import default_stance
from weft.tensor.axes import Axis, Space
from weft.tensor.laws import remove_dead
from weft.tensor.program import Input, Iota, Opaque, TensorProgram
from weft.tensor.rename import with_values
from weft.tracer import config as dynamo_config
from weft.tracer import counters
from weft.verify.inputs import literals
from weft.verify.moves import Calls, refuse_unless_moves

_SOME = 3


@dataclass(frozen=True, slots=True)
class Whole:
    """A function, traced.

    Attributes:
        program: it as a program, its inputs named after the arguments ("argument 0"); None where it is none.
        calls: what its opaque operations call, by name: they move elements, and nothing else.
        reason: why it is no program, in words.
        returns: how what it returns is put together, and what of it is no tensor.
        numbers: those that stand in it, also where it is no program.
        bounds: those among them that bound an index: of slices, and whole numbers beside indices.
        writes: it writes into its arguments.
    """

    program: TensorProgram | None
    reason: str
    returns: tuple[str, ...]
    numbers: tuple[float | int, ...]
    bounds: frozenset[int] = frozenset()
    writes: bool = False
    calls: Calls = field(default_factory=dict[str, OpaqueCall])


def argument(place: int) -> str:
    """Name the positional argument number `place` as programs and messages do."""
    return f"argument {place}"


def whole(fn: Callable[..., Any], inputs: tuple[Any, ...], which: str) -> Whole:
    """Trace `fn`, running it once on `inputs`.

    Args:
        which: "first" or "second", for messages.
    """
    trace = _Trace(fn, inputs, which)
    try:
        program, returns = trace.program()
    except UnsupportedError as error:
        filled = tuple(_filled(x) for x in inputs)
        if any(x is not y for x, y in zip(inputs, filled, strict=True)):
            return whole(fn, filled, which)  # what has no elements is captured with some
        return Whole(None, error.what, (), trace.numbers(None), trace.bounds(None), trace.writes)
    return Whole(program, "", returns, trace.numbers(program), trace.bounds(program), calls=trace.calls)


def _filled(x: Any) -> Any:
    """Fill a tensor without elements: with some along each dimension that has none."""
    return x.new_ones([size or _SOME for size in x.shape]) if isinstance(x, torch.Tensor) and not x.numel() else x


class _Trace:
    """One run of a function under Dynamo."""

    def __init__(self, fn: Callable[..., Any], inputs: tuple[Any, ...], which: str) -> None:
        self._fn, self._inputs, self._which = fn, inputs, which
        self._modules: list[torch.fx.GraphModule] = []
        self._graphs: list[tuple[Captured, Sequence[Any]]] = []
        self._made: list[Sequence[Any]] = []

    @property
    def writes(self) -> bool:
        """True where arguments are written into."""
        return any(captured.writes for captured, _ in self._graphs)

    @property
    def calls(self) -> Calls:
        """The calls of opaque operations, on values as the program names them."""
        if not self._graphs:
            return {}
        captured, example = self._graphs[0]
        name = _names(captured, _argument_names(self._inputs, example))

        def renamed(leaf: Any) -> Any:
            return replace(leaf, value=name(leaf.value)) if isinstance(leaf, Operand) else leaf

        def call(old: OpaqueCall) -> OpaqueCall:
            parts = (old.args, dict(old.kwargs), old.results)
            args, kwargs, results = pytree.tree_map(renamed, parts, is_leaf=lambda x: isinstance(x, Operand))
            return replace(old, args=args, kwargs=kwargs, results=results)

        return {key: call(old) for key, old in captured.calls.items()}

    def numbers(self, program: TensorProgram | None) -> tuple[float | int, ...]:
        """List the numbers in the calls of the graphs (bounds of slices among them), those that operations of the program have,
        and those that Python's own code may decide by.
        """
        found = [*(literals(program) if program is not None else ()), *numbers_of_code(self._fn)]
        for module in self._modules:
            for node in every_node(module):
                found += _numbers((node.args, node.kwargs))
        return tuple(dict.fromkeys(found))

    def bounds(self, program: TensorProgram | None) -> frozenset[int]:
        """Return the numbers that bound indices."""
        nodes = [node for module in self._modules for node in every_node(module)]
        leaves: list[Any] = [x for node in nodes for x in pytree.tree_leaves((node.args, node.kwargs))]
        found = {abs(v) for x in leaves if isinstance(x, slice) for v in _numbers(x) if isinstance(v, int)}
        if program is not None and any(isinstance(n, Iota) for n in program.nodes):
            found |= {abs(v) for v in literals(program) if isinstance(v, int)}
        return frozenset(found)

    def program(self) -> tuple[TensorProgram, tuple[str, ...]]:
        """Return the program, and what is returned in words.

        Raises:
            UnsupportedError: it is not one, or not one over its arguments alone.
        """

        def collect(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
            return self._collected(gm, example)

        breaks = sum(counters["graph_break"].values())
        # Numbers of Python stay numbers, whatever was traced before: as symbols they would be no numbers of the function.
        numbers = cast("Any", dynamo_config).patch(automatic_dynamic_shapes=False, specialize_int=True)
        with default_stance(), torch.no_grad(), numbers:
            returned = translating(dynamo_compile(own_code(self._fn), collect), self._fn)(*self._inputs)
        if len(self._graphs) > 1 or sum(counters["graph_break"].values()) > breaks:
            raise UnsupportedError(
                f"the {self._which} function is not one graph: something in it breaks PyTorch's tracing (`if` on data, print)"
            )
        leaves, structure = pytree.tree_flatten(returned)
        if any(all(made is not leaf for leaf in leaves) for found in self._made for made in found):
            raise UnsupportedError(
                f"the {self._which} function branches in Python on a value that it computed (`if` on data)"
            )
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise UnsupportedError(f"the {self._which} function returns no tensor")
        if not self._graphs:
            program = TensorProgram((), (), ())
            results = [self._argument_or_constant(leaf) for leaf in leaves]
        else:
            captured, example = self._whole_graph()
            program = _named(captured, _argument_names(self._inputs, example))
            results = [self._result(leaf, captured) for leaf in leaves]
        words = tuple(r if isinstance(r, str) else "a tensor" for r in results)
        return self._returning(program, results), (str(structure), *words)

    def _collected(self, gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        self._modules.append(gm)
        self._graphs.append((capture(gm, example), example))

        def run(*args: Any) -> Sequence[Any]:
            self._made.append(gm.forward(*args))
            return self._made[-1]

        return run

    def _whole_graph(self) -> tuple[Captured, Sequence[Any]]:
        captured, example = self._graphs[0]
        if captured.writes:
            raise UnsupportedError(f"the {self._which} function writes into its arguments")
        if captured.program is None or not _only_moves(captured, captured.program):
            every = (*captured.fallbacks, *captured.views, *filter(None, (captured.refused,)))
            left = "; ".join(map(str, dict.fromkeys(every))) or "PyTorch runs a part of it"
            raise UnsupportedError(f"the {self._which} function is not captured whole: {left}")
        return captured, example

    def _argument_or_constant(self, leaf: Any) -> int | str:
        """Return the place of an argument that is returned as it is; words for what is no tensor."""
        if not isinstance(leaf, torch.Tensor):
            return f"constant {leaf!r}"
        place = next((i for i, x in enumerate(self._inputs) if x is leaf), None)
        if place is None:
            raise UnsupportedError(f"the {self._which} function returns a tensor that its program does not compute")
        return place

    def _result(self, leaf: Any, captured: Captured) -> FromProgram | int | str:
        """Describe one thing that the function returned; what is no result of its graph Dynamo puts in itself."""
        made = next((captured.results[i] for i, x in enumerate(self._made[0]) if x is leaf), None)
        given = any(x is leaf for x in self._inputs)
        return made if isinstance(made, FromProgram) and not given else self._argument_or_constant(leaf)

    def _returning(self, program: TensorProgram, results: Sequence[FromProgram | int | str]) -> TensorProgram:
        """Return `program` with the tensors among `results` as its outputs, arguments among them."""
        inputs = {n.name: n for n in program.inputs}
        outputs: list[str] = []
        dims: list[tuple[Axis | None, ...]] = []
        for result in results:
            if isinstance(result, FromProgram):
                outputs.append(program.outputs[result.index])
                dims.append(program.output_dims[result.index])
            elif isinstance(result, int):
                node = inputs.setdefault(argument(result), _input(argument(result), self._inputs[result]))
                outputs.append(node.name)
                dims.append(node.dims or node.axes)
        made = replace(program, inputs=tuple(inputs.values()), outputs=tuple(outputs), output_dims=tuple(dims))
        return remove_dead(made)


def numbers_of_code(fn: Any) -> Iterator[float | int]:
    """List the numbers that stand in a function's code, and those that it holds: `if x.shape[0] > 17` is in no graph."""
    if isinstance(fn, torch.nn.Module):
        yield from _numbers([v for m in fn.modules() for v in vars(m).values() if isinstance(v, int | float)])
        fn = getattr(type(fn), "forward", None)  # TorchScript's class has none
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, FunctionType):
        return
    codes: list[CodeType] = [fn.__code__]
    while codes:
        code = codes.pop()
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
        yield from _numbers([c for c in code.co_consts if isinstance(c, int | float | tuple)])
        yield from _numbers([fn.__globals__.get(name) for name in code.co_names])
    held = [cell.cell_contents for cell in fn.__closure__ or () if cell != CellType()]
    yield from _numbers([*held, *(fn.__defaults__ or ())])


def _only_moves(captured: Captured, program: TensorProgram) -> bool:
    """Tell whether what PyTorch runs of it moves elements, and nothing else."""
    nodes = [n for n in program.nodes if isinstance(n, Opaque)]
    try:
        for node in nodes:
            refuse_unless_moves(captured.calls[node.call], node)
    except (UnsupportedError, KeyError):
        return False
    return captured.refused is None and {n.call for n in nodes} == set(captured.calls)


def _numbers(value: Any) -> Iterator[float | int]:
    match value:
        case bool():
            return
        case int() | float():
            yield value
        case slice():
            bounds = cast("slice[Any, Any, Any]", value)
            yield from _numbers((bounds.start, bounds.stop, bounds.step))
        case tuple() | list():
            for each in cast("Sequence[Any]", value):
                yield from _numbers(each)
        case dict():
            yield from _numbers(tuple(cast("dict[Any, Any]", value).values()))
        case _:
            return


def _argument_names(inputs: tuple[Any, ...], example: Sequence[Any]) -> dict[int, str]:
    """Map each of the graph's placeholders to the name of the argument that it is, where it is one."""
    tensors = {i: x for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    filled = [x for x in tensors.values() if x.numel()]
    if len({x.data_ptr() for x in filled}) != len(filled):
        raise UnsupportedError("two arguments share memory")
    found: dict[int, str] = {}
    for index, x in enumerate(example):
        if isinstance(x, torch.Tensor):
            place = next((i for i, y in tensors.items() if _same(x, y)), None)
            if place is not None:
                found[index] = argument(place)
    return found


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether a placeholder of a graph is this argument; empty ones have no memory to tell them by."""
    return one is other or (bool(one.numel()) and one.data_ptr() == other.data_ptr())


def _named(captured: Captured, names: Mapping[int, str]) -> TensorProgram:
    """Return the program of `captured`, its inputs named after the arguments."""
    program = captured.program
    assert program is not None
    name = _names(captured, names)
    return replace(
        program,
        inputs=tuple(replace(n, name=name(n.name)) for n in program.inputs),
        nodes=tuple(with_values(n, name) for n in program.nodes),
        outputs=tuple(map(name, program.outputs)),
        output_dims=program.output_dims or tuple(program.values()[n].axes for n in program.outputs),
    )


def _names(captured: Captured, names: Mapping[int, str]) -> Callable[[str], str]:
    """Return the function that names the values of a program whose inputs are named after the arguments."""
    program = captured.program
    assert program is not None
    own = {node.name: names.get(index) for node, index in zip(program.inputs, captured.arguments, strict=True)}
    if None in own.values():
        raise UnsupportedError("a function reads tensors that are not its arguments")
    return lambda value: own.get(value) or value


def _input(name: str, x: torch.Tensor) -> Input:
    """Make the input for an argument that is returned as it is, and read nowhere."""
    dims = tuple(
        None if size == 1 else Axis(f"d{dim}", Space(f"{name}, dimension {dim}", example=size))
        for dim, size in enumerate(x.shape)
    )
    return Input(name, tuple(a for a in dims if a is not None), dtype_of(x.dtype), dims)
