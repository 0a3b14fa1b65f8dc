"""The law of memory between kernels: what one writes and another reads has the type that the program as written rounds it to."""

from __future__ import annotations

from dataclasses import replace

from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.laws.draft import past_casts
from weft.tensor.laws.names import fresh
from weft.tensor.passes import Conditioning, tensor_pass
from weft.tensor.program import Cast, TensorProgram, Use
from weft.tensor.rename import with_uses


@tensor_pass(Conditioning.rounding)
def round_between_kernels(program: TensorProgram) -> TensorProgram:
    """Reads and writes in their narrow types the values that `program`, a part of a graph, shares with other parts.

        rounded: a, c to bfloat16
        a: float32 = input               a: bfloat16 = input
        c = a + x               ==>      c = a + x
        d = sum of c                     d = sum of c
        return c, d                      return semantic bfloat16(c), d

    Half of the bytes go from one kernel to the next, and the sum is of what was not rounded. An output that is another one
    rounded is that one's memory too (`in_one_memory`): it is no output any more.
    Condition: every other part does the same, since `rounded` says so of a value wherever it is read. Conditioning: rounds where
    the program as written does, at no other place.
    """
    if not program.rounded:
        return program
    types = dict(program.rounded)
    values = program.values()
    inputs = tuple(replace(n, dtype=types.get(n.name, n.dtype)) for n in program.inputs)
    narrow = {n.name: n.dtype for n in inputs if n.name in types}

    def past(use: Use) -> Use:
        """Return `use` of an input without a cast to the type that it has now."""
        *_, last = past_casts(use, values, lambda cast: narrow.get(cast.arg.value) is cast.dtype)
        return last

    nodes = [with_uses(n, past) for n in program.nodes]
    same, taken, written = in_one_memory(program), set(values), dict[str, Cast]()
    left = tuple(name for name in program.outputs if name not in same)
    for name in dict.fromkeys(left):
        node = values[name]
        if name in types and name not in narrow:
            written[name] = Cast(fresh(name, taken), node.axes, types[name], Use(name, node.axes), semantic=True)
    outputs = tuple(written[name].name if name in written else name for name in left)
    made = replace(program, inputs=inputs, nodes=(*nodes, *written.values()), outputs=outputs, rounded=())
    return remove_dead(made)


def in_one_memory(program: TensorProgram) -> dict[str, str]:
    """Maps outputs of `program`, a part of a graph, that are rounded in memory to the outputs that are the same, rounded."""
    types, values = dict(program.rounded), program.values()
    found = dict[str, str]()
    for name in dict.fromkeys(program.outputs):
        match values[name]:
            case Cast(axes=axes, dtype=dtype, arg=arg) if arg.value in program.outputs and arg.axes == axes:
                if types.get(arg.value) is dtype and values[arg.value].axes == axes:
                    found.setdefault(arg.value, name)
            case _:
                pass
    return found
