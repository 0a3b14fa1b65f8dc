"""What a core takes for a product of blocks, by the prelude's ways, beside what the model of CPUs predicts.

    PYTHONPATH=src:benchmarks python benchmarks/products.py [--json FILE] [--rounds N]

Each way is timed in one thread, on zeros, with all operands in the core's caches: on a staged panel; on a block that lies along its
columns or along its depth, in one piece or in rows of 1024 elements; and the staging, which is none where a panel of fp32 lies
ready. The figure is the best of some rounds. The table says by which factor the model is off, as geometric means over shapes of
more than 4096 products. `weft.cost.cpu_cycles` has its constants from here.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch

from weft.api.files import write_json
from weft.cost import Machine
from weft.cost.cpu_cycles import cycles_of
from weft.cost.cpu_work import BlockCopy, BlockProduct
from weft.emit.cpp import INCLUDE_DIR
from weft.lab.measure import setting
from weft.run.compiler import find_compiler, flags
from weft.tensor.dtypes import DType

_WAYS = ("on a panel", "along columns", "along depth", "staged, along columns", "staged, along depth")
_ROWS, _SIDES = (1, 4, 8, 32, 256), (8, 16, 64, 256)
_FAR = 1024
# Products that one measurement does, about, and the least of a shape that counts in the table.
_WORK, _LEAST = 4e6, 16**3


@dataclass(frozen=True, slots=True)
class Timed:
    """A shape: what it took and what is predicted, in seconds; `far`: elements from row to row, 0 where they lie side by side."""

    way: str
    dtype: str
    rows: int
    columns: int
    depth: int
    far: int
    seconds: float
    predicted: float


def library() -> ctypes.CDLL:
    """Compile products.cpp with the flags that kernels have, and load it."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "products.so")
        text = Path(__file__).with_suffix(".cpp")
        command = [*find_compiler().command, f"-I{INCLUDE_DIR}", "-o", str(made), str(text), *flags()]
        subprocess.run(command, check=True)
        found = ctypes.CDLL(str(made))
    found.product_seconds.restype = ctypes.c_double
    found.product_seconds.argtypes = [ctypes.c_int, ctypes.c_int, *(5 * [ctypes.c_int64])]
    return found


def predicted(way: int, dtype: DType, lengths: tuple[int, int, int], far: int, machine: Machine) -> float:
    """Predict the seconds of one core."""
    _, columns, depth = lengths
    if way > 2:
        work, worked = BlockCopy(dtype, turned=way == 4), (depth, columns)
    else:
        row = None if way == 0 else "row"
        work = BlockProduct((0, 1, 2), dtype, panel=way == 0, across=way == 1, plain=False, turned=False, row=row)
        worked = lengths
    beside = columns if way == 1 else depth
    return cycles_of(work, worked, {"row": max(beside, far)}, machine) * machine.cycle_seconds


def timed(rounds: int) -> Iterator[Timed]:
    """Time all shapes."""
    found, machine = library(), Machine.here(1)
    for half, dtype in enumerate((DType.float32, DType.bfloat16)):
        for (way, name), far in product(enumerate(_WAYS), (0, _FAR)):
            if way == 0 and far:
                continue
            for rows, columns, depth in product(_ROWS if way < 3 else (1,), _SIDES, _SIDES):
                times = max(1, int(_WORK / (rows * columns * depth + 1000)))
                shape = rows, columns, depth
                best = min(found.product_seconds(half, way, *shape, far, times) for _ in range(rounds))
                yield Timed(name, str(dtype), *shape, far, best, predicted(way, dtype, shape, far, machine))


def table(found: Sequence[Timed]) -> str:
    """Print, for each way, by which factor predictions are off."""
    lines = [f"{'':24}{'':10}{'':>6}{'rate':>12}{'predicted / measured':>24}{'scatter':>10}"]
    for way, dtype, far in dict.fromkeys((e.way, e.dtype, e.far) for e in found):
        own = [e for e in found if (e.way, e.dtype, e.far) == (way, dtype, far)]
        large = [e for e in own if e.rows * e.columns * e.depth >= _LEAST or way.startswith("staged")]
        logs = [math.log(e.predicted / e.seconds) for e in large]
        best = max(e.rows * e.columns * e.depth / e.seconds for e in own)
        mean, scatter = math.exp(statistics.mean(logs)), math.exp(statistics.stdev(logs))
        lines.append(f"{way:24}{dtype:10}{far or '':>6}{best / 1e9:10.1f} G{mean:24.2f}{scatter:10.2f}")
    return "\n".join(lines)


def main() -> int:
    """Time, print the table, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = list(timed(given.rounds))
    sys.stdout.write(table(found) + "\n")
    if given.json is not None:
        write_json(given.json, {"setting": asdict(setting()), "shapes": [asdict(each) for each in found]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
