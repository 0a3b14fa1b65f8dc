"""Writes the tables of docs/measurements/cascades-levels.md: `PYTHONPATH=src:tests python -m testkit.cost.levels`.

Every number is counted on applied block programs; the tests hold the same counts against the interpreter's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testkit.cost import chains
from testkit.cost.whole import longest_whole
from weft.block.program import BlockProgram
from weft.cost import Corrections, corrected, on_chip_bytes, traffic
from weft.schedule import Level, LevelPlace, apply

PAGE = Path(__file__).resolve().parents[3] / "docs" / "measurements" / "cascades-levels.md"
STRATEGIES = ("intra-thread", "intra-warp", "intra-block", "inter-block")
ROWS = (1024, 2048, 4096, 8192)
CAPACITIES = (100 << 10, 227 << 10)
"""Bytes of shared memory that a block can have: of an A10 (100 KB), and of an H100 or H200 (227 KB)."""
TILE, BLOCK, KEYS = 128, 64, 512
"""Queries of a tile, keys of a block of the incremental form, keys of all."""
SEGMENTS = (32, 64, 128, 256, 512)
BATCH, HEADS, QUERIES, UNITS = 8, 12, 512, 132
"""BERT-base, and the multiprocessors of an H100 or H800."""


def lengths(size: int) -> tuple[int, ...]:
    """Elements of a row, and the outputs of each level of its tree: two blocks of four warps of 32 threads."""
    return (size, 256, 8, 2, 1)


def in_segments(count: int, tile: int) -> tuple[Level, ...]:
    """So many segments, each block by block; one segment is no split."""
    own = (Level(LevelPlace.loop, tile),)
    return (Level(LevelPlace.split, count), *own) if count > 1 else own


def fused_at_level(name: str, size: int, level: int) -> BlockProgram:
    """The chain with a segment for each output of a level, of one block each."""
    outputs = lengths(size)[level]
    program = chains.made(name)
    return apply(program, chains.schedule(program, TILE, in_segments(outputs, size // outputs)))


def attention(keys: int, tile: int) -> BlockProgram:
    """BERT-base attention of a tile of queries, with segments of so many keys in blocks of `tile`."""
    program = chains.made("attention in half")
    return apply(program, chains.schedule(program, TILE, in_segments(KEYS // keys, tile), peel=True))


@functools.cache
def bert_sizes() -> dict[str, int]:
    """Sizes of one head: one tile of queries."""
    program = chains.made("attention in half")
    given = chains.sizes_of(program, TILE, KEYS)
    return {name: size if size in (TILE, KEYS) else chains.HEAD for name, size in given.items()}


@dataclass(frozen=True)
class Segment:
    """A row of the table of section 5.4, for one tile of queries.

    Attributes:
        keys: of a segment.
        blocks: CTAs of the whole problem.
        waves: of them.
        bytes: on chip, of the incremental form and of the other.
        corrections: of a tile of queries, likewise.
    """

    keys: int
    blocks: int
    bytes: tuple[int, int]
    corrections: tuple[Corrections, Corrections]

    @property
    def waves(self) -> float:
        return self.blocks / UNITS


def segments() -> Iterator[Segment]:
    """The table of section 5.4."""
    for keys in SEGMENTS:
        forms = attention(keys, min(keys, BLOCK)), attention(keys, keys)
        one, other = (on_chip_bytes(form, bert_sizes()) for form in forms)
        few, many = (corrected(form, traffic(form, bert_sizes())) for form in forms)
        blocks = BATCH * HEADS * (QUERIES // TILE) * (KEYS // keys)
        yield Segment(keys, blocks, (one, other), (few, many))


def longest(capacity: int) -> int:
    """Keys of the longest segment that the form without corrections can hold."""
    program = chains.made("attention in half")
    schedule = chains.schedule(program, TILE, (Level(LevelPlace.loop, BLOCK),))
    return longest_whole(program, schedule, chains.reducing(program), bert_sizes(), capacity)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def levels_table() -> str:
    """Section 5.3: outputs corrected for each row, by level."""
    rows: list[Sequence[object]] = []
    for level, name in enumerate(STRATEGIES, 1):
        row: list[object] = [name, lengths(ROWS[0])[level]]
        for chain, size in (*(("statistics", size) for size in ROWS), ("attention", ROWS[0])):
            program = fused_at_level(chain, size, level)
            row.append(corrected(program, traffic(program, chains.sizes_of(program, TILE, size))).outputs)
        rows.append(row)
    return table(("fused", "outputs", *(f"softmax {size}" for size in ROWS), f"attention {ROWS[0]}"), rows)


def segments_table() -> str:
    """Section 5.4: both forms at each segment length."""

    def fits(size: int) -> str:
        return ", ".join(f"{c >> 10} KB" for c in CAPACITIES if size <= c) or "no"

    def useful(of: Corrections) -> int:
        return of.outputs + of.running

    rows = (
        (s.keys, KEYS // s.keys, s.blocks, f"{s.waves:.1f}", *(v for i in (0, 1) for v in (
            f"{s.bytes[i]:,}", fits(s.bytes[i]), useful(s.corrections[i]))))
        for s in segments()
    )  # fmt: skip
    form = ("bytes", "fits", "corrections")
    head = ("keys", "segments", "blocks", "waves", *form, *(f"{name}, whole" for name in form))
    return table(head, rows)


def longest_table() -> str:
    """The longest segments."""
    return table(("on chip", "longest segment held whole"), ((f"{c >> 10} KB", longest(c)) for c in CAPACITIES))


TABLES = {"levels": levels_table, "segments": segments_table, "longest": longest_table}


def written(text: str) -> str:
    """The page `text` with its tables as they are counted now."""
    for name, made in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        text, found = re.subn(
            f"{begin}.*?{end}", lambda _, b=begin, m=made, e=end: f"{b}\n{m()}\n\n{e}", text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"{PAGE} has {found} places for the table {name!r}")
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
