"""Functions that merge two states, which scans of a kernel call."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.kinds import Kind
from weft.emit.text import Names, stripped
from weft.emit.triton.frame import Frame
from weft.emit.triton.scalar import Text, coerced, expression
from weft.tensor.merge import StateMerge


def merger(frame: Frame, merge: StateMerge, kinds: Sequence[Kind]) -> str:
    """Name the function of the kernel's module that merges states whose components are computed as `kinds`; it is printed once."""
    key = (merge, tuple(kinds))
    known = frame.mergers.get(key)
    if known is not None:
        return known[0]
    name = frame.names.make("weft_merge")
    taken = Names("")
    parameters = [taken.make(f"{side}{i}") for side in ("left", "right") for i in range(merge.size)]
    lines = list[str]()

    def hold(text: str) -> str:
        held = taken.make("part")
        lines.append(f"    {held} = {text}")
        return held

    args = [Text(text, kind) for text, kind in zip(parameters, (*kinds, *kinds), strict=True)]
    made = [
        stripped(coerced(expression(part, args, hold, exact=frame.exact), kind))
        for part, kind in zip(merge.parts, kinds, strict=True)
    ]
    head = ["", "@triton.jit", f"def {name}({', '.join(parameters)}):"]
    frame.mergers[key] = name, [*head, *lines, f"    return {', '.join(made)}", ""]
    return name
