"""Guarded loops: which iterations have something to do.

Where a launch before has found that out, the loop goes over these alone: the bits of one integer are those of 64 blocks, and each
iteration takes the least that is left. So loads are known ahead, and a loop is pipelined as one over every block is.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from weft.block.guard import Guard
from weft.block.program import Load, Map
from weft.block.ranges import EVERY_BLOCK
from weft.block.walk import asked
from weft.emit.kinds import kind_of
from weft.emit.ranges import BlockText, Iterations, block_at
from weft.emit.text import minus, plus, times
from weft.emit.triton.body import Body
from weft.emit.triton.scalar import number
from weft.emit.triton.text import call
from weft.emit.triton.values import Global

_TOGETHER = 64


def known_before(body: Body, node: Map) -> tuple[Global, Load] | None:
    """Return where it lies which iterations of `node`, a loop in `body`'s graph, have something to do, if that is in memory."""
    first, _ = asked(node)
    in_one_run = node.range == EVERY_BLOCK or node.range.segment is not None
    if node.guard is None or node.runs_once or node.tile is None or not in_one_run or len(first) != 1:
        return None
    outer = {f.inner: f.outer for f in node.inputs}
    match first[0]:
        case Load(memory=memory, dims=(), indices=()) as load if not node.guard.idle:
            found = body.values.get(outer.get(memory, ""))
            return (found, load) if isinstance(found, Global) else None
        case _:
            return None


def busy(body: Body, guard: Guard) -> str:
    """Spell the condition that `guard`, which asks a value of `body`, does not leave an iteration out."""
    item = body.item(guard.value)
    mask, said = body.frame.mask(item.dims), list[str]()
    for each, alike in guard.left_out:
        text = f"{item.computed} != {number(each, item.kind)}"
        if item.dims:
            text = f"({text}) & ({mask})" if mask else text
            text = f"{call('tl.max', f'({text}).to(tl.int32)')} != 0"
        said.append(text if alike else f"not ({text})")
    return said[0] if len(said) == 1 else " and ".join(f"({each})" for each in said)


@contextmanager
def busy_iterations(
    body: Body, node: Map, found: Iterations, flags: tuple[Global, Load], options: Sequence[str]
) -> Generator[BlockText]:
    """Print what stands around an iteration of those that `flags` say have something to do; yielded is the current block."""
    frame, run, block = body.frame, found.only, str(node.tile)
    memory, load = flags
    group, left, step = (frame.names.make(f"{node.axis.name}_{what}") for what in ("group", "left", "step"))
    base = frame.names.make(node.axis.name)
    count = frame.hold(frame.spelling.blocks_of(minus(run.last, run.first), block), f"{base}_blocks")
    lanes = call("tl.arange", "0", str(_TOGETHER))
    with frame.out.block(f"for {group} in range(0, {count}, {_TOGETHER})"):
        numbers = frame.hold(f"{group} + {lanes}", f"{base}_numbers")
        starts = frame.hold(plus(run.first, times(numbers, block)), f"{base}_starts")
        at = replace(body, scope={**body.scope, node.axis: BlockText(starts, "1", "1")})
        where = at.address(memory, load.at, ())
        marked = frame.hold(call("tl.load", where, f"mask={numbers} < {count}", "other=0"), f"{base}_busy")
        guard = node.guard
        assert guard is not None
        kind = kind_of(load.dtype)
        tests = [f"({marked} {'!=' if alike else '=='} {number(each, kind)})" for each, alike in guard.left_out]
        chosen = frame.hold(" & ".join(tests), f"{base}_done")
        frame.out.line(f"{left} = {call('tl.sum', f'{chosen}.to(tl.int64) << {lanes}')}")
        steps = call("tl.range", "0", call("tl.sum", f"{chosen}.to(tl.int32)"), "1", *options)
        with frame.out.block(f"for {step} in {steps}"):
            first = frame.hold(call("weft_first_bit", left), f"{base}_first")
            place = times(f"({plus(group, first)})", block)
            frame.out.line(f"{base} = {plus(run.first, place)}")
            frame.out.line(f"{left} = {left} & ({left} - 1)")
            current = block_at(frame, node, found.most, run.stop, base, block)
            frame.enter(node, current)
            yield current
