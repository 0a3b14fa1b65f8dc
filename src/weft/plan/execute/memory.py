"""Whose memory the results of a plan may lie in, where laws or PyTorch made one value of several."""

from __future__ import annotations

from collections.abc import Mapping

from weft.capture import Captured
from weft.tensor.dtypes import DType
from weft.tensor.program import Input, Node, Opaque, TensorProgram


def is_theirs(captured: Captured, program: TensorProgram, index: int) -> bool:
    """Tells whether laws replaced an output by a tensor that PyTorch holds or makes, which may lie in an argument's memory."""
    assert captured.program is not None
    name = program.outputs[index]
    return name != captured.program.outputs[index] and isinstance(program.values()[name], Input | Opaque)


def made_of_the_same(captured: Captured, program: TensorProgram) -> dict[str, tuple[str, ...]]:
    """Maps results of PyTorch's calls to the outputs in whose memory they must not lie: those made of the same values
    as they are.

    A call that copies in eager (`reshape` of a transpose) may find nothing to do where weft has laid its operand out otherwise.
    """
    values = program.values()
    known = {name: _origins(values, name) for name in program.outputs if values[name].dtype is not DType.unknown}
    found: dict[str, tuple[str, ...]] = {}
    for name, own in known.items():
        node = values[name]
        if isinstance(node, Opaque) and not captured.calls[node.call].pinned:
            seen = tuple(other for other in known if other != name and not known[other].isdisjoint(own))
            found |= {name: seen} if seen else {}
    return found


def is_seen_since_laws(captured: Captured, program: TensorProgram, index: int) -> bool:
    """Tells whether laws made an output, which weft computes, one with a value that PyTorch looks at in another output."""
    assert captured.program is not None
    before, now = captured.program.values(), program.values()
    own = [captured.program.outputs[index], program.outputs[index]]
    others = [
        pair
        for pair in zip(captured.program.outputs, program.outputs, strict=True)
        if isinstance(now[pair[1]], Opaque) and pair[1] != own[1]
    ]
    return any(own[1] in _origins(now, new) and own[0] not in _origins(before, old) for old, new in others)


def owner(captured: Captured, values: Mapping[str, Node], name: str) -> str:
    """Finds the value whose memory the value `name` is, where weft itself had PyTorch look at that otherwise."""
    node = values[name]
    while isinstance(node, Opaque) and captured.calls[node.call].look:
        node = values[node.uses[0]]
    return node.name


def _origins(values: Mapping[str, Node], name: str) -> set[str]:
    """Names the value, and what PyTorch's calls made it of."""
    found, waiting = {name}, [name]
    while waiting:
        node = values[waiting.pop()]
        if isinstance(node, Opaque):
            new = set(node.uses) - found
            found |= new
            waiting += new
    return found
