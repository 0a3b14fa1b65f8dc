"""Chains of reductions as one loop, fused and safe, without places: what the levels of a reduction tree are counted on."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from testkit.pipeline.candidates import candidates
from weft.block.program import BlockProgram
from weft.block.walk import maps, spaces
from weft.capture import capture
from weft.pipeline import ONE_LOOP, SNAPSHOTS, normalize
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule
from weft.tensor.program import TensorProgram

HEAD = 64
"""The width of a head of BERT-base."""


def statistics(x):
    """Computes what safe softmax divides by, and the maximum that it subtracts."""
    most = x.amax(-1, keepdim=True)
    return most[:, 0], torch.exp(x - most).sum(-1)


def attention(q, k, v):
    return torch.softmax(q @ k.T / 8, -1) @ v


def variance(x):
    return ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)


def captured(function: Callable[..., object], *args: torch.Tensor) -> TensorProgram:
    """The tensor program of `function`."""
    torch.compiler.reset()
    found: list[TensorProgram] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        program = capture(gm, example_inputs).program
        assert program is not None
        found.append(program)
        return gm.forward

    torch.compile(function, backend=backend, dynamic=True, fullgraph=True)(*args)
    return found[0]


def one_loop(program: TensorProgram) -> BlockProgram:
    """`program` with its chains of reductions each in one loop, by the algebra of cascades."""
    return candidates(ONE_LOOP, normalize(program))[-1]


def pairs(program: TensorProgram) -> BlockProgram:
    """`program` with exponentials as pairs of a number and an exponent, by Blockbuster's rules."""
    return candidates(SNAPSHOTS, normalize(program))[-1]


@functools.cache
def made(name: str) -> BlockProgram:
    """The program of one of the chains: "attention in half" is in fp16, by way of pairs; all others are in fp32."""
    rows = torch.zeros(5, 7)
    match name:
        case "statistics":
            return one_loop(captured(statistics, rows))
        case "variance":
            return one_loop(captured(variance, rows))
        case "attention":
            return one_loop(captured(attention, torch.zeros(5, 4), torch.zeros(7, 4), torch.zeros(7, 3)))
        case "attention in half":
            q, k, v = (torch.zeros(n, HEAD, dtype=torch.float16) for n in (5, 7, 7))
            return pairs(captured(attention, q, k, v))
        case _:
            raise KeyError(name)


def reducing(program: BlockProgram) -> str:
    """The name of the loop of the chain: that with the most components."""
    return max(maps(program.graph), key=lambda m: 0 if m.state is None else len(m.state.components)).name


def sizes_of(program: BlockProgram, rows: int, along: int) -> dict[str, int]:
    """Sizes of the spaces of `program`: its rows, elements along the chain, and a few of everything else."""
    chain = next(m for m in maps(program.graph) if m.name == reducing(program))
    first = next(maps(program.graph))
    own = {chain.axis.space.name: along, first.axis.space.name: rows}
    return {s.name: own.get(s.name, 3) for s in spaces(program) if s.fixed is None}


def schedule(program: BlockProgram, rows: int, levels: tuple[Level, ...], *, peel: bool = False) -> Schedule:
    """The chain's loop in `levels`, its rows on the grid, `rows` in a block; every other loop is one block."""
    chain = reducing(program)
    first = program.graph.nodes[0].name

    def of(name: str) -> LoopSchedule:
        if name == chain:
            return LoopSchedule(levels, peel)
        return LoopSchedule((Level(LevelPlace.grid, rows) if name == first else Level(LevelPlace.whole),))

    return Schedule(tuple((m.name, of(m.name)) for m in maps(program.graph)))
