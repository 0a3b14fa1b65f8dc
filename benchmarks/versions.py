"""Times the kernels of the CPU's benchmark list beside those that another version of weft makes for it, alternating in one run.

    python benchmarks/versions.py OTHER/src [--only ROW ...] [--rounds N] [--json FILE]

Each version runs in a process of its own, with a cache of its own, and compiles the schedule that it predicts to be fastest. Both
are given the same random operands. A round calls each of them twice and times the second call; every other round begins with the
other version. A row of the table has both medians in ms, this version's over the other's, and the ratio of the best times: where
the two ratios disagree the machine was busy. Name this version's own folder to see how far ratios scatter. Exits with 1 where an
element of a result differs by more than 0.03 and 3 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import weft
from weft.api.files import write_json
from weft.lab.measure import setting
from weft.lab.workloads.cpu import SUITE

_POOL = 4
_LEAST, _SECONDS = 12, 10.0
"""Rounds that there are at least, and seconds after which no further one begins."""
_HERE = Path(weft.__file__).parents[1]
_COMPARED = 1 << 17
"""The elements of a result of which every seventh is compared."""
_FAR = 0.03


def main() -> int:
    """Print the table; 1 where results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder that holds the other version's package")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="rows by name; all of them otherwise")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return _serve()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        versions = [Version(path, Path(folder) / str(i)) for i, path in enumerate((given.other.resolve(), _HERE))]
        try:
            for number, dtype in listed(given.only):
                rows.append(compared(versions, number, dtype, given.rounds))
                _show(rows[-1])
        finally:
            for each in versions:
                each.close()
    ratios = [row["ratio"] for row in rows]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    sys.stdout.write(f"this version / the other over {len(rows)} rows: geometric mean {mean:.3f}\n")
    if given.json is not None:
        write_json(given.json, {"setting": asdict(setting()), "geometric_mean": mean, "rows": rows})
    return int(any(row["differs"] for row in rows))


def listed(only: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each row's place in the list, and its element types."""
    for number, example in enumerate(SUITE):
        if not only or example.title in only:
            for dtype in example.dtypes:
                yield number, str(dtype).removeprefix("torch.")


class Version:
    """A process in which one version of weft compiles and is timed."""

    def __init__(self, source: Path, cache: Path) -> None:
        cache.mkdir(mode=0o700)
        environment = {**os.environ, "PYTHONPATH": str(source), "WEFT_CACHE_DIR": str(cache)}
        command = [sys.executable, __file__, str(source), "--serve"]
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, **what: object) -> None:
        """Send a request; `answer` waits for what becomes of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return what was asked for; raises RuntimeError where the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a version's process ended; its traceback is above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compared(versions: list[Version], number: int, dtype: str, rounds: int) -> dict[str, Any]:
    """Compile one row in both versions, and time them in turn."""
    for each in versions:
        each.ask(make=number, dtype=dtype)
    kernels = [each.answer() for each in versions]
    results = []
    for each in versions:
        each.ask(results=True)
        results.append(each.answer())
    times: list[list[float]] = [[], []]
    begin = time.perf_counter()
    for turn in range(rounds + 2):
        if turn > _LEAST and time.perf_counter() - begin > _SECONDS:
            break
        for side in (0, 1) if turn % 2 else (1, 0):
            time.sleep(0.01)  # the threads of the one before wait for work, and take processor time for that
            versions[side].ask(time=(turn // 2) % _POOL)
            times[side].append(versions[side].answer())
    other, this = ([*kept[2:]] for kept in times)
    pairs = zip(*results, strict=True)
    return {
        "row": SUITE[number].title,
        "dtype": dtype,
        "kernels": kernels,
        "other_ms": statistics.median(other),
        "this_ms": statistics.median(this),
        "ratio": statistics.median(this) / statistics.median(other),
        "best": min(this) / min(other),
        "differs": any(
            not torch.allclose(torch.tensor(a), torch.tensor(b), _FAR, _FAR, equal_nan=True) for a, b in pairs
        ),
    }


def _show(row: dict[str, Any]) -> None:
    name = f"{row['row']}, {row['dtype']}"
    differs = "  results differ" if row["differs"] else ""
    sys.stdout.write(
        f"{row['other_ms']:9.3f} {row['this_ms']:9.3f} {row['ratio']:6.2f} {row['best']:6.2f}  {name}{differs}\n"
    )
    sys.stdout.flush()


def _serve() -> int:
    program: Any = None
    inputs: list[list[torch.Tensor]] = []
    for line in sys.stdin:
        match json.loads(line):
            case {"make": number, "dtype": dtype}:
                program, inputs = _made(SUITE[number], getattr(torch, dtype))
                answer: object = len(program.kernels)
            case {"results": _}:
                given = program(*inputs[0])
                every = given if isinstance(given, tuple) else (given,)
                answer = [each.detach().double().flatten()[:_COMPARED:7].tolist() for each in every]
            case {"time": which}:
                program(*inputs[which])
                begin = time.perf_counter()
                program(*inputs[which])
                answer = 1e3 * (time.perf_counter() - begin)
            case request:
                raise ValueError(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


def _made(example: Any, dtype: torch.dtype) -> tuple[Any, list[list[torch.Tensor]]]:
    torch.manual_seed(0)
    function = example.make(example.full)
    if isinstance(function, torch.nn.Module):
        function = function.to(dtype).eval()
    inputs = [example.inputs(example.full, dtype, number) for number in range(_POOL)]
    return weft.optimize(function, inputs[0], judge="off"), inputs


if __name__ == "__main__":
    with torch.no_grad():
        raise SystemExit(main())
