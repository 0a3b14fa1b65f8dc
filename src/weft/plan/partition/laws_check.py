"""Checking, for each captured graph, that the laws on tensor programs did not change what is computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft.errors import RefutedError, VerificationError
from weft.phases import phase
from weft.plan.partition.by_value import agree_by_value
from weft.tensor.program import Cast, Input, Node, Opaque, TensorProgram, axes_of
from weft.verify import Verdict, equivalent

# Elements that one operation may run over where it is checked: more take longer than the check is worth.
_LARGEST = 1 << 18
_LEAST_SIZES = (3, 8, 20, 70)


@phase("field check")
def laws_refuted(written: TensorProgram, program: TensorProgram) -> VerificationError | None:
    """Returns why `program`, what the laws made of `written`, must not run; None where it agrees over finite fields.

    Results of PyTorch's calls are inputs of the check, and operands of the calls are outputs. Casts between floats are taken
    for the identity, as no field has roundings: that the laws keep the right roundings rests on their own tests. Other casts
    must be the same in both. Sizes are small where slices allow that, else the example's; where those are large too, nothing
    is checked.
    """
    calls = [n.name for n in program.nodes if isinstance(n, Opaque)]
    before, after = (_comparable(p, calls) for p in (written, program))
    if before == after or next(_sizes(before), None) is None or agree_by_value(before, after, _agree):
        return None
    verdict = _verdict(before, after)
    if verdict.agrees:
        return None
    if verdict.equal is False:
        return RefutedError(f"the laws on tensor programs changed what is computed: {verdict}")
    if written.derived:
        return None  # a slice may leave no such size anything to read
    said = f"it could not be checked that the laws on tensor programs keep what is computed: {verdict}"
    return VerificationError(said)


def _agree(before: TensorProgram, after: TensorProgram) -> bool:
    return next(_sizes(before), None) is not None and _verdict(before, after).agrees


def _verdict(before: TensorProgram, after: TensorProgram) -> Verdict:
    """Compares the two at the smallest sizes at which they can be run; there are some that can be tried."""
    undecided: list[Verdict] = []
    for sizes in _sizes(before):
        shapes = {n.name: tuple(a.space.size(sizes) for a in n.axes) for n in before.inputs}
        verdict = equivalent(before, after, [shapes], sizes=sizes, claim=False)
        if verdict.agrees or verdict.equal is False:
            return verdict
        undecided.append(verdict)
    return undecided[0]


def _comparable(program: TensorProgram, calls: list[str]) -> TensorProgram:
    """Returns `program` without opaque operations and roundings: their results inputs, what those in `calls` read outputs."""
    opaque = {n.name: n for n in program.nodes if isinstance(n, Opaque)}
    values = program.values()
    read = tuple(name for call in calls for name in opaque[call].uses)
    dims = (*program.output_dims, *(values[name].axes for name in read)) if program.output_dims else ()
    return replace(
        program,
        inputs=(*program.inputs, *(Input(n.name, n.axes, n.dtype) for n in opaque.values())),
        nodes=tuple(_unrounded(n, values) for n in program.nodes if n.name not in opaque),
        outputs=(*program.outputs, *read),
        output_dims=dims,
    )


def _unrounded(node: Node, values: Mapping[str, Node]) -> Node:
    floats = isinstance(node, Cast) and node.dtype.is_float and values[node.arg.value].dtype.is_float
    return replace(node, semantic=False) if isinstance(node, Cast) and floats else node


def _sizes(program: TensorProgram) -> Iterator[dict[str, int]]:
    """Yields choices of sizes of all spaces that agree with what slices leave, small ones first, the example's last."""
    free = [s for s in program.spaces() if s.name not in program.following]
    choices = [{s.name: s.fixed or least + i % 3 for i, s in enumerate(free)} for least in _LEAST_SIZES]
    choices.append({s.name: s.fixed or s.example or 3 for s in free})
    for choice in choices:
        sizes = program.sizes(choice)
        known = all(s.name in sizes for s in program.spaces())
        if known and program.consistent(sizes) and 0 not in sizes.values() and _affordable(program, sizes):
            yield sizes


def _affordable(program: TensorProgram, sizes: Mapping[str, int]) -> bool:
    every = (*program.inputs, *program.nodes)
    return all(math.prod(a.space.size(sizes) for a in axes_of(n)) <= _LARGEST for n in every)
