"""Concrete schedules, against the configuration tables of FlashAttention on a Napkin (A.5.2 and A.5.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import weft
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost import ConcreteSchedule, chip, concrete_schedule
from weft.cost.chip import Chip, MatrixUnit, OnChip
from weft.cost.concrete.columns import Engine
from weft.cost.concrete.variables import Arrangement
from weft.errors import UnsupportedError
from weft.schedule import KernelNodes, Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.dtypes import DType

F16, E4M3 = DType.float16, DType.float8_e4m3fn
KIB = 1024
WIDTH = 128
SIZES = {"M": 4096, "N": 4096, "K": WIDTH, "D": WIDTH}
PAPER = (Engine.matrix, Engine.vector, Engine.special)
"""What the paper counts: it leaves out shared memory."""


def placed(program: BlockProgram, **levels: tuple[LevelPlace, int]) -> KernelNodes:
    """Place the loops whose names are given; others cover their spaces at once."""
    own = [(m.name, levels.get(m.name, (LevelPlace.whole, 0))) for m in maps(program.graph)]
    applied = apply(program, Schedule(tuple((n, LoopSchedule((Level(*level),))) for n, level in own)))
    (part,) = kernels(applied)
    return part


def fused(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> BlockProgram:
    """Return the fused program of the one region of `fn`."""
    program = weft.optimize(fn, args, target="cuda:90", effort="none", judge="off")
    (region,) = program.plans[0].regions
    return region.fused


def attention(narrow: torch.dtype) -> KernelNodes:
    """Place attention over queries m and keys n whose first matmul is of `narrow`, the second of half precision."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q.half() @ k.half().T, -1) @ v

    q, k, v = (torch.randn(n, WIDTH, dtype=torch.float16) for n in (512, 1024, 1024))
    program = fused(attend, q.to(narrow), k.to(narrow), v)
    return placed(program, m=(LevelPlace.grid, 32), n=(LevelPlace.loop, 16))


def ampere() -> Chip:
    """Return the A100 with the block of its matrix unit that the paper takes: 32 x 8 by 8 x 16 (Table 2)."""
    known = chip("A100 SXM")
    return replace(known, matrix={F16: replace(known.matrix[F16], rows=32, depth=8, columns=16)})


def hopper() -> Chip:
    """Return the H100 with the blocks that the paper takes: 64 x 128 by 128 x 32 in FP8, 64 x 8 by 8 x 16 in FP16 (Table 4)."""
    known = chip("H100 SXM")
    narrow = replace(known.matrix[E4M3], rows=64, depth=128, columns=32)
    half = replace(known.matrix[F16], rows=64, depth=8, columns=16)
    return replace(known, matrix={E4M3: narrow, F16: half})


@pytest.fixture(scope="module")
def on_ampere() -> ConcreteSchedule:
    """Attention of half precision throughout, in the least blocks."""
    return concrete_schedule(attention(torch.float16), ampere(), SIZES, computed=F16)


@pytest.fixture(scope="module")
def on_hopper() -> ConcreteSchedule:
    """Attention with queries and keys of 8 bits; of values 16 rows are loaded at once, as in Table 4."""
    return concrete_schedule(attention(torch.float8_e4m3fn), hopper(), SIZES, computed=F16, streams={"v": 16})


def table(found: ConcreteSchedule) -> dict[tuple[OnChip, Arrangement, bool], list[int]]:
    """Return the values of each variable by where it lies, how, and whether the thread block has it once."""
    listed: dict[tuple[OnChip, Arrangement, bool], list[int]] = {}
    for v in found.variables:
        listed.setdefault((v.kind.memory, v.kind.layout, v.kind.shared), []).append(v.values)
    return {key: sorted(values) for key, values in listed.items()}


def test_attention_on_ampere(on_ampere: ConcreteSchedule) -> None:
    """Tables 2 and 3: 18,880 bytes of registers a warp, 13 warps. Streams have 2048 values: with d = 128 the paper's 1024 is
    a slip.
    """
    registers, shared = OnChip.registers, OnChip.shared
    assert table(on_ampere) == {
        (registers, Arrangement.left, False): [256, 4096],  # F; A, the queries
        (registers, Arrangement.rows, False): [32, 32, 32, 256, 4096],  # D, three of a row; J; E, the output
        (registers, Arrangement.right, False): [128],  # G
        (registers, Arrangement.result, False): [512],  # H
        (shared, Arrangement.memory, True): [2048, 2048],  # B, keys and then values; C, keys turned
        (shared, Arrangement.rows, False): [512, 512],  # I, K
    }
    assert on_ampere.bytes(registers) == 18_880
    assert on_ampere.bytes(shared) == 2048
    assert on_ampere.fits(registers) == pytest.approx(13.89, abs=0.01)
    assert (on_ampere.groups, on_ampere.blocks.group, on_ampere.producers) == (13, 32, 0)


def test_attention_on_hopper(on_hopper: ConcreteSchedule) -> None:
    """Table 4: 33.25 KB of shared memory and 40.75 KB of registers a warpgroup, 12 KB a thread block; six compute, two are left."""
    registers, shared = OnChip.registers, OnChip.shared
    assert on_hopper.bytes(shared, shared=True) == 12 * KIB
    assert on_hopper.bytes(shared) == 33.25 * KIB
    assert on_hopper.bytes(registers) == 40.75 * KIB
    assert on_hopper.fits(registers) == pytest.approx(6.28, abs=0.01)
    # 227 KB of a thread block; the paper's 6.50 is of the 228 KB of a multiprocessor.
    assert on_hopper.fits(shared) == pytest.approx(6.47, abs=0.01)
    assert (on_hopper.groups, on_hopper.producers, on_hopper.blocks.group) == (6, 2, 128)


def test_cycles_on_hopper(on_hopper: ConcreteSchedule) -> None:
    """Table 5 and the text after it: 2304 cycles, 9.99 TFLOP/s of a multiprocessor, 1.32 PFLOP/s, 9.76 GB/s and 1.29 TB/s."""
    cycles = on_hopper.cycles("n")
    assert cycles[Engine.matrix] == 2304
    assert on_hopper.busiest("n", PAPER) == 2304
    each = on_hopper.flops_per_second("n", PAPER)
    assert each == pytest.approx(9.99e12, rel=1e-3)
    assert each * on_hopper.chip.multiprocessors == pytest.approx(1.32e15, rel=2e-3)
    needed = on_hopper.bandwidth("n", PAPER)
    assert needed == pytest.approx(9.76e9, rel=1e-3)
    assert needed * on_hopper.chip.multiprocessors == pytest.approx(1.29e12, rel=2e-3)
    # The paper's pipelines keep matrix units busy: three groups at different columns do, and there are six.
    assert on_hopper.pipelines("n", PAPER) == 3
    # What the paper leaves out: rows go through shared memory for each piece, six times the cycles of the matrix units.
    assert cycles[Engine.shared] > 6 * cycles[Engine.matrix]


def test_exponentials_and_sums_wait_for_nothing_else(on_hopper: ConcreteSchedule) -> None:
    """Table 5: per piece of 8 keys and thread half a cycle of exponentials, and of multiplications with additions."""
    threads = on_hopper.groups * on_hopper.blocks.group
    pieces = 32 / 8
    keys = sum(w.amount for c in on_hopper.columns if "n by 8" in c.inside for w in c.work if w.unit is Engine.special)
    # One exponential for each key, and one for the rescaling of each piece.
    assert keys / on_hopper.blocks.group == pieces * (8 + 1)
    added = [w.amount for c in on_hopper.columns if c.what.endswith("is added") for w in c.work]
    assert added == [on_hopper.blocks.group * pieces * WIDTH]
    assert added[0] / 256 * on_hopper.groups == threads * pieces * 0.5


def test_published_blocks() -> None:
    """With the blocks that PTX has, 16 x 16 by 16 x 8, one more warp fits."""
    found = concrete_schedule(attention(torch.float16), chip("A100 SXM"), SIZES, computed=F16)
    assert (found.groups, found.bytes(OnChip.registers)) == (14, 18_624)


def test_blocks_are_multiples_of_what_units_and_transfers_ask(on_ampere: ConcreteSchedule) -> None:
    """Section 5.1: 128 bytes lie side by side; section 5.2: blocks of matrix units."""
    multiples = {axis.space.name: n for axis, n in on_ampere.blocks.multiples.items()}
    assert multiples == {"M": 32, "N": 16, "K": 64, "D": 64}
    with pytest.raises(UnsupportedError, match="n: of 16"):
        concrete_schedule(attention(torch.float16), ampere(), SIZES, computed=F16, given={"n": 24})


def test_a_larger_block_takes_more(on_ampere: ConcreteSchedule) -> None:
    """BlockSizes are given by the names of loops."""
    found = concrete_schedule(attention(torch.float16), ampere(), SIZES, computed=F16, given={"n": 32})
    assert found.bytes(OnChip.shared, shared=True) == 2 * on_ampere.bytes(OnChip.shared, shared=True)
    assert (
        found.cycles("n")[Engine.matrix] / found.groups == 2 * on_ampere.cycles("n")[Engine.matrix] / on_ampere.groups
    )


def test_a_matmul_keeps_its_result_in_the_unit() -> None:
    """Figure 24: streams come through shared memory, and nothing goes row by row."""

    def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w + b)

    program = fused(linear, *(torch.randn(*s, dtype=torch.float16) for s in ((256, 128), (128, 512), (512,))))
    part = placed(program, m=(LevelPlace.grid, 32), n=(LevelPlace.grid, 64), k=(LevelPlace.loop, 64))
    found = concrete_schedule(part, ampere(), {"M": 256, "K": 128, "N": 512}, computed=F16)
    registers, shared = OnChip.registers, OnChip.shared
    assert table(found) == {
        (registers, Arrangement.result, False): [32 * 64],
        (registers, Arrangement.left, False): [32 * 8],
        (registers, Arrangement.right, False): [8 * 16],
        (shared, Arrangement.memory, False): [32 * 64],
        (shared, Arrangement.memory, True): [64, 64 * 64],
    }
    assert found.flops("k") == found.groups * 2 * 32 * 64 * 64


def test_what_a_chip_cannot_multiply_is_said() -> None:
    """An A100 without its units, and a CPU, whose threads form no blocks."""
    with pytest.raises(UnsupportedError, match=r"A100.*no unit that multiplies blocks of float16"):
        concrete_schedule(attention(torch.float16), replace(chip("A100 SXM"), matrix={}), SIZES, computed=F16)
    with pytest.raises(UnsupportedError, match=r"Xeon.*has no thread blocks"):
        concrete_schedule(attention(torch.float16), chip("Xeon Platinum 8480+"), SIZES, computed=F16)


def test_a_chip_without_units_for_8_bits_multiplies_them_as_half_precision() -> None:
    part, known = attention(torch.float8_e4m3fn), chip("A100 SXM")
    narrow, wide = (concrete_schedule(p, known, SIZES, computed=F16) for p in (part, attention(torch.float16)))
    assert narrow.cycles("n")[Engine.matrix] / narrow.groups == wide.cycles("n")[Engine.matrix] / wide.groups


def test_a_unit_with_larger_blocks_needs_more_registers(on_ampere: ConcreteSchedule) -> None:
    """Nothing of the tables is a constant."""
    known = ampere()
    wide = replace(known, matrix={F16: MatrixUnit(2048, 32, 16, 32, 32)})
    found = concrete_schedule(attention(torch.float16), wide, SIZES, computed=F16)
    assert found.bytes(OnChip.registers) == on_ampere.bytes(OnChip.registers) + 2 * (256 + 384 + 512 + 256)
