"""weft.equivalent: whether two functions compute the same, as algebra."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree  # no public name

from weft import verify
from weft.api.compile import dynamo_compile, translating
from weft.api.given import callable_of, inputs_of
from weft.api.optimize import Inputs, own_code
from weft.capture import Captured, FromProgram, capture
from weft.errors import UnsupportedError, WeftError, named
from weft.tensor.laws import normalize
from weft.tensor.program import Input, TensorProgram
from weft.tensor.rename import with_values

# A size that the program itself says stays as it is; up to here that is cheap to check.
_LARGEST_FIXED = 64


@dataclass(frozen=True, slots=True)
class _Whole:
    """A function as one tensor program: inputs named after the arguments; and how what it returns is put together."""

    program: TensorProgram
    returns: tuple[str, ...]


@named("weft.equivalent")
def equivalent(fn_a: Callable[..., Any], fn_b: Callable[..., Any], example_inputs: Inputs) -> verify.Verdict:
    """Tells whether two functions compute the same, as algebra: checked over finite fields, not run on numbers.

    Args:
        fn_a, fn_b: functions or modules with the same arguments, which are all the tensors they read.
        example_inputs: positional arguments for both; tensors that share no memory.

    Returns:
        A verdict: equal, which is shown, with the probability of error, for all sizes, or where one of them has a size of at most
        64 as a number, for those of the example, as the reason says; refuted, which numbers show too; or None, undecided, with the
        reason: either is not wholly captured, or no law makes them equal and yet numbers do not tell them apart by more than the
        rounding of constants (`x / 3` and `x * (1 / 3)`: constants are taken as the exact numbers that floats are). Laws of sums,
        products, quotients and exponentials are known, those of other functions (tanh, sqrt) and of maxima under sums and products
        are not. A comparison shows only where random numbers make it choose.

    Raises:
        ArgumentError: a function cannot be called, or `example_inputs` are no arguments.
        ShapeError: eager refuses these inputs.
    """
    fn_a = callable_of(fn_a, "the first argument of weft.equivalent", "weft.equivalent({}, fn_b, inputs)")
    fn_b = callable_of(fn_b, "the second argument of weft.equivalent", "weft.equivalent(fn_a, {}, inputs)")
    inputs = inputs_of(example_inputs, "weft.equivalent(fn_a, fn_b")
    try:
        first, second = _whole(fn_a, inputs, "first"), _whole(fn_b, inputs, "second")
        shapes = _shapes((first.program, second.program))
    except UnsupportedError as error:
        return verify.Verdict(None, None, error.what)
    if first.returns != second.returns:
        return verify.Verdict(False, None, f"the first returns {first.returns}, the second {second.returns}")
    verdict = verify.equivalent(first.program, second.program, shapes)
    if verdict.equal is not False:
        return verdict
    own = _own_shapes((first.program, second.program))
    if own not in shapes and all(size <= _LARGEST_FIXED for shape in own.values() for size in shape):
        there = verify.equivalent(first.program, second.program, [own])
        if there.equal:
            alone = "at the sizes given, and not at others: one of them has a size as a number (x.shape[-1])"
            return replace(there, reason=f"{there.reason}; {alone}")
    return _not_refuted_by_rounding(verdict, first.program, second.program, shapes)


def _not_refuted_by_rounding(
    refuted: verify.Verdict,
    first: TensorProgram,
    second: TensorProgram,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
) -> verify.Verdict:
    """The verdict `refuted`, or undecided where numbers do not tell the programs apart either."""
    types = [[p.values()[name].dtype for name in p.outputs] for p in (first, second)]
    if types[0] != types[1]:
        return refuted
    try:
        found = verify.alike_on_numbers(first, second, shapes)
    except (WeftError, ValueError, IndexError, KeyError, ArithmeticError):
        return refuted  # by the field alone, which is enough
    if not found.alike:
        return refuted
    return verify.Verdict(
        None,
        None,
        f"no law makes them equal, and random numbers do not tell them apart: they differ by {found.largest:.1e} of the largest "
        f"result at most, which rounding explains. What differs is {found.differs}",
    )


def _whole(fn: Callable[..., Any], inputs: tuple[Any, ...], which: str) -> _Whole:
    """`fn` as one tensor program.

    Raises:
        UnsupportedError: it is not one, or not one over its arguments alone.
    """
    graphs: list[tuple[Captured, Sequence[Any]]] = []
    made: list[Sequence[Any]] = []

    def collect(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        graphs.append((capture(gm, example), example))

        def run(*args: Any) -> Sequence[Any]:
            made.append(gm.forward(*args))
            return made[-1]

        return run

    with torch.no_grad():
        returned = translating(dynamo_compile(own_code(fn), collect), fn)(*inputs)
    if not graphs:
        raise UnsupportedError(
            f"the {which} function has PyTorch compute nothing: {_given_back(returned, inputs)}; what is computed is compared"
        )
    if len(graphs) > 1:
        raise UnsupportedError(
            f"the {which} function is {len(graphs)} graphs, not one: something in it breaks PyTorch's tracing"
        )
    captured, example = graphs[0]
    if captured.writes:
        raise UnsupportedError(f"the {which} function writes into its arguments")
    if captured.program is None or captured.calls:
        every = (*captured.fallbacks, *captured.views, *filter(None, (captured.refused,)))
        left = "; ".join(map(str, dict.fromkeys(every)))
        raise UnsupportedError(f"the {which} function is not captured whole: {left}")
    # What a function returns besides what its graph gives (arguments, constants) Dynamo puts in itself.
    leaves, structure = pytree.tree_flatten(returned)
    results = [_result(leaf, made[0], inputs, captured, which) for leaf in leaves]
    return _named(captured, captured.program, results, _argument_names(inputs, example), str(structure))


def _given_back(returned: Any, inputs: tuple[Any, ...]) -> str:
    """What a function without operations returned, in words."""
    places = {id(x): i for i, x in enumerate(inputs)}
    leaves = pytree.tree_leaves(returned)
    kinds = (f"argument {places[id(x)]} as it is" if id(x) in places else type(x).__name__ for x in leaves)
    return f"it returns {' and '.join(kinds) or 'nothing'}"


def _result(
    leaf: Any, made: Sequence[Any], inputs: tuple[Any, ...], captured: Captured, which: str
) -> FromProgram | str:
    """One thing that a function returned: an output of its program, the name of an argument, or what it is otherwise."""
    if not isinstance(leaf, torch.Tensor):
        return f"constant {leaf!r}"
    place = next((i for i, x in enumerate(inputs) if x is leaf), None)
    if place is not None:
        return f"argument {place}"
    found = next((captured.results[i] for i, x in enumerate(made) if x is leaf), None)
    if not isinstance(found, FromProgram):
        raise UnsupportedError(f"the {which} function returns a tensor that its program does not make")
    return found


def _argument_names(inputs: tuple[Any, ...], example: Sequence[Any]) -> dict[int, str]:
    """For each of the graph's placeholders the name of the argument that it is, where it is one."""
    places = {x.data_ptr(): i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    if len(places) != sum(isinstance(x, torch.Tensor) for x in inputs):
        raise UnsupportedError("two arguments share memory")
    found = ((i, places.get(x.data_ptr())) for i, x in enumerate(example) if isinstance(x, torch.Tensor))
    return {i: f"argument {place}" for i, place in found if place is not None}


def _named(
    captured: Captured,
    program: TensorProgram,
    results: Sequence[FromProgram | str],
    names: Mapping[int, str],
    structure: str,
) -> _Whole:
    own = {node.name: names.get(index) for node, index in zip(program.inputs, captured.arguments, strict=True)}
    if None in own.values():
        raise UnsupportedError("a function reads tensors that are not its arguments")

    def name(value: str) -> str:
        return own.get(value) or value

    program = normalize(program)
    made = [r.index for r in results if isinstance(r, FromProgram)]
    whole = replace(
        program,
        inputs=tuple(replace(n, name=name(n.name)) for n in program.inputs),
        nodes=tuple(with_values(n, name) for n in program.nodes),
        outputs=tuple(name(program.outputs[i]) for i in made),
        output_dims=tuple(program.output_dims[i] for i in made),
    )
    rest = (r if isinstance(r, str) else "a result" for r in results)
    return _Whole(whole, (structure, *rest))


def _shapes(programs: tuple[TensorProgram, TensorProgram]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Small shapes for all inputs, sizes different where the example's are, so that both programs take them.

    Where a program speaks of sizes itself, the example's are used.
    """
    examples = _own_shapes(programs)
    if any(p.derived or any(s.fixed is not None for s in p.spaces()) for p in programs):
        if max((size for shape in examples.values() for size in shape), default=0) > _LARGEST_FIXED:
            raise UnsupportedError(f"a program speaks of sizes itself: give examples of at most {_LARGEST_FIXED}")
        return (examples,)
    order = sorted({size for shape in examples.values() for size in shape})
    return tuple(
        {name: tuple(base + order.index(size) for size in shape) for name, shape in examples.items()} for base in (2, 5)
    )


def _own_shapes(programs: tuple[TensorProgram, TensorProgram]) -> dict[str, tuple[int, ...]]:
    """The shapes of the example's tensors, a size for each axis."""
    inputs: dict[str, Input] = {n.name: n for p in programs for n in p.inputs}
    return {name: tuple(axis.space.example or 1 for axis in n.axes) for name, n in inputs.items()}
