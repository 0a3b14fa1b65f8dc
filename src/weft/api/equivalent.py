"""weft.equivalent: whether two functions compute the same."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree  # no public name

from weft import verify
from weft.api.compile import torch_compile
from weft.api.given import callable_of, demand_fits, inputs_of
from weft.api.optimize import Inputs, own_code
from weft.api.whole import Whole, argument, whole
from weft.capture import every_node
from weft.errors import UnsupportedError, named
from weft.plan import default_stance
from weft.tensor.program import Input, TensorProgram
from weft.tracer import TensorPropertySource
from weft.verify.seeds import Numbers, Tensors
from weft.verify.separate import Apart, Search, Side
from weft.verify.written import as_written, finest, what_differs

_UNTRACED = (RuntimeError, ValueError, TypeError, AttributeError)


def decided_by_sizes(
    fn: Callable[..., Any], inputs: tuple[Any, ...], tried: Mapping[int, Collection[int]]
) -> str | None:
    """Traces `fn` with symbols for sizes, running it once, and finds a decision that all sizes tried have alike.

    Args:
        fn: a function that is one graph.
        inputs: its example.
        tried: by size in the example, the others at which the function was called.

    Returns:
        The decision in words; None where there is none, or it cannot be traced so.
    """
    found: list[str] = []

    def collect(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        found.extend(_decisions(gm, example, tried))
        return gm.forward

    try:
        with default_stance(), torch.no_grad():
            torch_compile(own_code(fn), backend=collect, dynamic=True)(*inputs)
    except _UNTRACED:
        return None
    return next(iter(found), None)


def _decisions(gm: torch.fx.GraphModule, example: Sequence[Any], tried: Mapping[int, Collection[int]]) -> Iterator[str]:
    every: list[Any] = [s for x in example for s in (x.shape if isinstance(x, torch.Tensor) else (x,))]
    sizes: list[Any] = [s for s in every if isinstance(s, torch.SymInt)]
    traced: Any = sizes[0].node.shape_env if sizes else None
    given: dict[Any, int] = {}
    for symbol, size in [(s.node.expr, s.node.hint) for s in sizes]:  # int(s) would decide what it is
        sources = traced.var_to_sources.get(symbol, ())
        if any(isinstance(source, TensorPropertySource) for source in sources):  # numbers stay as they are given
            given[symbol] = int(size)
    choices = [given | {symbol: other} for symbol, size in given.items() for other in tried.get(size, ())]
    guards: list[Any] = traced.guards if sizes else []
    for expr in (guard.expr for guard in guards):
        # Symbols that none of the arguments has as a size follow from others, mostly as a reshape demands.
        if expr.free_symbols <= given.keys() and not any(bool(expr.subs(choice)) is False for choice in choices):
            yield str(expr.subs({symbol: f"size_of_{size}" for symbol, size in given.items()}))
    most = max((size for others in tried.values() for size in others), default=0)
    for node in every_node(gm):  # what is computed of sizes, without a decision: min(len(x), 64)
        if isinstance(node.meta.get("example_value"), torch.SymInt | torch.SymFloat | torch.SymBool):
            leaves: list[Any] = pytree.tree_leaves((node.args, node.kwargs))
            numbers = [x for x in leaves if type(x) is int]
            yield from (f"{node.name} of a size and {n}" for n in numbers if n >= most)


# A size that the program itself says stays as it is; up to here that is cheap to check.
_LARGEST_FIXED = 64
# Tensors of at most so many elements are shown in words.
_SHOWN = 8


@named("weft.equivalent")
def equivalent(fn_a: Callable[..., Any], fn_b: Callable[..., Any], example_inputs: Inputs) -> verify.Verdict:
    """Tells whether two functions compute the same, as functions over the real numbers, special values included.

    Args:
        fn_a, fn_b: functions or modules with the same arguments.
        example_inputs: positional arguments for both; tensors that share no memory. Other values and other sizes of tensors are
            tried, too: both functions are run, on copies, a few hundred times. What is no tensor stays as it is, and the reason
            says so.

    Returns:
        A verdict. `equal` is True only where each class of what the functions hold has an argument (`classes`). It is False where
        an input tells them apart, which `separates` holds by name ("argument 0"), made as small as it could be, and `reason` shows.
        It is None where no such input was found and yet something has no argument, a function cannot be captured whole, or it
        decides something by a size, alike at all sizes tried; the reason says what agrees, and up to what. What is rounding is no
        difference: sums in another order, or constants such as 1 / 3. Casts to fewer bits than the results have are no rounding,
        but part of the function.

    Raises:
        ArgumentError: a function cannot be called, or `example_inputs` are no arguments.
        ShapeError: eager refuses these inputs.
    """
    fn_a = callable_of(fn_a, "the first argument of weft.equivalent", "weft.equivalent({}, fn_b, inputs)")
    fn_b = callable_of(fn_b, "the second argument of weft.equivalent", "weft.equivalent(fn_a, {}, inputs)")
    inputs = inputs_of(example_inputs, "weft.equivalent(fn_a, fn_b")
    for fn in (fn_a, fn_b):
        demand_fits(fn, inputs, "weft.equivalent")
    first, second = whole(fn_a, inputs, "first"), whole(fn_b, inputs, "second")
    if first.returns and second.returns and first.returns != second.returns:
        return verify.Verdict(False, None, f"the first returns {first.returns}, the second {second.returns}")
    search, apart = _searched((fn_a, fn_b), (first, second), inputs)
    if search is not None and apart is not None:
        return _refuted(search, apart, inputs)
    if search is not None and search.random:
        said = "a function gives other results on the same inputs (random numbers, the time), so nothing follows for equality"
        return verify.Verdict(None, None, said)
    for each in (first, second):
        if each.program is None:
            return verify.Verdict(None, None, each.reason + _tried(search))
    verdict = _checked(first, second, search)
    held = [f"{argument(i)} = {x!r}" for i, x in enumerate(inputs) if not isinstance(x, torch.Tensor)]
    if held:
        verdict = replace(verdict, reason=f"{verdict.reason}; where {', '.join(held)}, as given")
    if not verdict.equal or search is None:
        return verdict
    decisions = (decided_by_sizes(fn, inputs, search.sizes) for fn in (fn_a, fn_b))
    decided = next(filter(None, decisions), None)
    if decided is None:
        return verdict
    doubt = f"they were not run at the sizes at which a function takes another branch: {decided}"
    return replace(verdict, equal=None, error_probability=None, reason=f"{verdict.reason}; {doubt}")


def _searched(
    functions: tuple[Callable[..., Any], Callable[..., Any]], wholes: tuple[Whole, Whole], inputs: tuple[Any, ...]
) -> tuple[Search | None, Apart | None]:
    """Searches for an input that tells the functions apart: the search, and what it found; None where they cannot be
    run again and again.
    """
    places = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    tensors = [inputs[i] for i in places]
    dense = all(type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided for x in tensors)
    if any(w.writes for w in wholes) or not dense or not tensors or any(map(_is_odd, tensors)):
        return None, None
    try:
        own = [copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else fn for fn in functions]
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None, None  # a module that cannot be copied, whose state running it may change
    runs = [_runner(fn, inputs, places) for fn in own]
    written = _as_written(wholes)
    first, second = (
        Side(run, None if w.calls else program) for run, program, w in zip(runs, written, wholes, strict=True)
    )
    numbers = Numbers.of([*wholes[0].numbers, *wholes[1].numbers])
    bounds = wholes[0].bounds | wholes[1].bounds
    search = Search((first, second), [argument(i) for i in places], numbers, bounds)
    given = tuple(x.detach().cpu().clone() for x in tensors)
    state = torch.get_rng_state()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of inputs that nobody gave
            return search, search.search(given)
    finally:
        torch.set_rng_state(state)


def _runner(
    fn: Callable[..., Any], inputs: tuple[Any, ...], places: Sequence[int]
) -> Callable[[Tensors], Sequence[Any]]:
    wide = _in_fp64(fn)

    def run(tensors: Tensors) -> Sequence[Any]:
        given = list(inputs)
        widened = any(x.dtype is torch.float64 is not inputs[i].dtype for i, x in zip(places, tensors, strict=True))
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor.to(inputs[place].device)
        return pytree.tree_leaves((wide if widened else fn)(*given))

    return run


def _is_odd(x: torch.Tensor) -> bool:
    """Tells whether eager computes nearly nothing on such tensors, or the search has no numbers for them."""
    return x.is_quantized or x.is_meta or x.is_complex() or (x.is_floating_point() and x.dtype.itemsize == 1)


def _in_fp64(fn: Any, depth: int = 2) -> Any:
    """Copies a function with the tensors and modules that it holds (its own, or its closure's) in float64."""
    if isinstance(fn, torch.nn.Module):
        return copy.deepcopy(fn).double()
    if isinstance(fn, torch.Tensor):
        return fn.detach().double() if fn.is_floating_point() else fn
    if not isinstance(fn, FunctionType) or not depth:
        return fn
    held = (torch.nn.Module, torch.Tensor, FunctionType)
    cells = tuple(
        CellType(_in_fp64(cell.cell_contents, depth - 1))
        if cell != CellType() and isinstance(cell.cell_contents, held)
        else cell
        for cell in fn.__closure__ or ()
    )
    defaults = tuple(_in_fp64(x, depth - 1) if isinstance(x, held) else x for x in fn.__defaults__ or ())
    made = FunctionType(fn.__code__, fn.__globals__, fn.__name__, defaults, cells if fn.__closure__ else None)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


def _as_written(wholes: tuple[Whole, Whole]) -> tuple[TensorProgram | None, TensorProgram | None]:
    """Returns both programs, with casts that keep less than their results do rounding in both."""
    programs = [w.program for w in wholes if w.program is not None]
    kept = finest(programs)
    first, second = (None if w.program is None else as_written(w.program, kept) for w in wholes)
    return first, second


def _checked(first: Whole, second: Whole, search: Search | None) -> verify.Verdict:
    """Checks over finite fields two functions that no input was found to tell apart."""
    one, other = _as_written((first, second))
    assert one is not None
    assert other is not None
    try:
        calls = (first.calls, second.calls)
        shapes = (_own_shapes((one, other)),) if any(calls) else _shapes((one, other))
    except UnsupportedError as error:
        return verify.Verdict(None, None, error.what + _tried(search))
    verdict = verify.equivalent(one, other, shapes, calls=calls)
    if verdict.equal is False:
        own = _own_shapes((one, other))
        if own not in shapes and all(size <= _LARGEST_FIXED for shape in own.values() for size in shape):
            verdict = verify.equivalent(one, other, [own], calls=calls)
            alone = "at the sizes given, and not at others: one of them contains a size as a number (x.shape[-1])"
            verdict = replace(verdict, reason=f"{verdict.reason}; {alone}")
    if verdict.equal is False:
        said = f"no law makes them equal{_tried(search)}. They differ by {what_differs(one, other)}"
        return verify.Verdict(None, None, said, classes=verdict.classes, primes=verdict.primes)
    if not verdict.agrees:
        return verdict
    doubt = _doubt(search)
    if verdict.equal and doubt:
        return replace(verdict, equal=None, error_probability=None, reason=f"{verdict.reason}; {doubt}")
    return verdict


def _doubt(search: Search | None) -> str:
    """Says what speaks against calling functions equal that agree over finite fields."""
    if search is None:
        return "they were not run on special inputs"
    if search.beyond:
        return f"sizes beyond {max(search.beyond)} were not tried: they take too much memory"
    if search.poles:
        return "where something is divided by 0, they give infinities of different signs"
    if search.in_eager_alone:
        return f"eager PyTorch gives {search.in_eager_alone} where exact numbers agree: rounding may explain it"
    return ""


def _tried(search: Search | None) -> str:
    return "" if search is None else f", and none of {search.tried} inputs tells them apart"


def _refuted(search: Search, apart: Apart, inputs: tuple[Any, ...]) -> verify.Verdict:
    """Returns the verdict False, with the input that shows it."""
    separates = dict(zip(search.names, apart.inputs, strict=True))
    several = "" if apart.result == 0 else f", in result {apart.result}"
    place = "" if not apart.at else f" at {list(apart.at)}"
    given = "; ".join(f"{name} = {_shown(x)}" for name, x in separates.items())
    said = f"the first gives {apart.first}, the second {apart.second}{place}{several}, where {given}"
    del inputs
    return verify.Verdict(False, None, said, separates=separates)


def _shown(x: torch.Tensor) -> str:
    """Shows a tensor in few words."""
    if x.numel() <= _SHOWN:
        return str(x.numpy().tolist()) if x.dtype is not torch.bfloat16 else str(x.float().numpy().tolist())
    flat = x.reshape(-1)
    same = bool((flat == flat[0]).all())
    return f"{flat[0].item()} in all of {list(x.shape)}" if same else f"a tensor of {list(x.shape)}"


def _shapes(programs: tuple[TensorProgram, TensorProgram]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Chooses small shapes for all inputs, sizes different where the example's are, so that both programs take them.

    Where a program speaks of sizes itself, the example's are used.
    """
    examples = _own_shapes(programs)
    if any(p.derived or any(s.fixed is not None for s in p.spaces()) for p in programs):
        if max((size for shape in examples.values() for size in shape), default=0) > _LARGEST_FIXED:
            raise UnsupportedError(
                f"a program contains sizes as numbers: use example inputs with sizes of at most {_LARGEST_FIXED}"
            )
        return (examples,)
    order = sorted({size for shape in examples.values() for size in shape})

    return tuple(
        {name: tuple(base + order.index(size) for size in shape) for name, shape in examples.items()} for base in (2, 5)
    )


def _own_shapes(programs: tuple[TensorProgram, TensorProgram]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the example's tensors, a size for each axis."""
    inputs: dict[str, Input] = {n.name: n for p in programs for n in p.inputs}
    return {name: tuple(axis.space.example or 1 for axis in n.axes) for name, n in inputs.items()}
