"""Times the GPU's benchmark list beside what another version of weft, or another effort, makes of it, alternating in one run.

    PYTHONPATH=src python benchmarks/gpu_versions.py OTHER/src [--efforts quick quick] [--only ROW ...] [--together] [--json FILE]

Each version runs in a process of its own, with an empty cache of its own, and compiles and tunes as for any user. Then both
are timed in turn as the tuner times candidates: CUDA graphs, the second-level cache emptied. A row has both medians in us,
this version's over the other's, the seconds of both first calls, how many kernels each has compiled, and the schedules taken.
`--together`: both compile at the same time, which takes less time and says less about first calls. `--skip` leaves out so many
rows at the beginning; no row is begun after `--seconds`. Exits with 1 where results differ, or a row failed.
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
from pathlib import Path
from typing import Any

import torch

import weft
from weft.lab.workloads.gpu import ROWS

_ROUNDS, _POOL, _FAR = 5, 2, 0.03
_COMPARED = 1 << 17
_HERE = Path(weft.__file__).parents[1]


class Version:
    """A process in which one version of weft compiles and is timed."""

    def __init__(self, source: Path, cache: Path, effort: str) -> None:
        cache.mkdir(mode=0o700)
        paths = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "WEFT_CACHE_DIR": str(cache), "WEFT_EFFORT": effort}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(source), "--serve"],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, **what: object) -> Any:
        """Send a request and return the answer; raises RuntimeError where the process has ended."""
        self.send(**what)
        return self.answer()

    def send(self, **what: object) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to a request; raises RuntimeError where the process has ended."""
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


def compared(versions: list[Version], name: str, *, together: bool) -> dict[str, Any]:
    """Compile one row in both versions, at the same time if `together`, and time them in turn."""
    if together:
        for each in versions:
            each.send(make=name)
        made = [each.answer() for each in versions]
    else:
        made = [each.ask(make=name) for each in versions]
    wrong = next((each["error"] for each in made if "error" in each), "")
    if wrong:
        return {"row": name, "error": wrong}
    times: list[list[float]] = [[], []]
    for turn in range(_ROUNDS):
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side].append(versions[side].ask(time=turn % _POOL))
    other, this = map(statistics.median, times)
    pairs = zip(*(each["results"] for each in made), strict=True)
    far = any(not torch.allclose(torch.tensor(a), torch.tensor(b), _FAR, _FAR, equal_nan=True) for a, b in pairs)
    (before, now) = made
    return {
        "row": name,
        "other_us": 1e6 * other,
        "this_us": 1e6 * this,
        "ratio": this / other,
        "first_seconds": [before["seconds"], now["seconds"]],
        "compiles": [before["compiles"], now["compiles"]],
        "schedules": [before["schedules"], now["schedules"]],
        "differs": far,
    }


def _serve() -> int:
    from weft.plan.targets import graphs

    filler = graphs.cache_filler(torch.device("cuda"))
    program: Any = None
    inputs: list[Any] = []
    for line in sys.stdin:
        match json.loads(line):
            case {"make": name}:
                answer, program, inputs = _made(name)
            case {"time": which}:
                run = graphs.replayed(lambda program=program, own=inputs[which]: program(*own))
                graphs.awake(filler)
                answer = statistics.median(graphs.replay_times(run, filler, 15))
            case request:
                raise ValueError(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


def _made(name: str) -> tuple[Any, Any, list[Any]]:
    workload = next(each for each in ROWS if each.name == name)
    torch.manual_seed(0)
    try:
        inputs = [workload.inputs(workload.sizes(small=False), number, "cuda") for number in range(_POOL)]
        before, begin = weft.stats(), time.perf_counter()
        program = weft.optimize(workload.fn, inputs[0], judge="off")
        given = program(*inputs[0])
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        every = given if isinstance(given, tuple) else (given,)
        results = [each.detach().double().flatten()[:_COMPARED:7].tolist() for each in every]
        compiles = weft.stats().compiles - before.compiles
        schedules = [str(kernel.schedule) for kernel in program.kernels]
    except Exception as error:  # noqa: BLE001 - the other rows are measured all the same
        return {"error": f"{type(error).__name__}: {error}"[:200]}, None, []
    return {"results": results, "seconds": seconds, "compiles": compiles, "schedules": schedules}, program, inputs


def main() -> int:
    """Print the table; 1 where results differ or a row failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder that holds the other version's package")
    parser.add_argument("--efforts", nargs=2, default=["quick", "quick"], metavar=("OTHER", "THIS"))
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="take one row of so many")
    parser.add_argument("--together", action="store_true", help="compile both at the same time")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return _serve()
    rows: list[dict[str, Any]] = []
    ends = time.monotonic() + given.seconds
    names = [each.name for each in ROWS if (each.group and not given.only) or each.name in given.only]
    with tempfile.TemporaryDirectory() as folder:
        sources = zip((given.other.resolve(), _HERE), given.efforts, strict=True)
        versions = [Version(path, Path(folder) / str(i), effort) for i, (path, effort) in enumerate(sources)]
        for name in names[given.skip :: given.every]:
            if time.monotonic() > ends:
                break
            rows.append(compared(versions, name, together=given.together))
            sys.stdout.write(f"{json.dumps(rows[-1])}\n")
            sys.stdout.flush()
        for each in versions:
            each.close()
    return _summary(rows, given)


def _summary(rows: list[dict[str, Any]], given: argparse.Namespace) -> int:
    right = [row for row in rows if "error" not in row]
    if right:
        mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in right))
        most = max(row["compiles"][1] for row in right)
        first = [sum(row["first_seconds"][side] for row in right) for side in (0, 1)]
        sys.stdout.write(
            f"this / other over {len(right)} rows: geometric mean {mean:.3f}; first calls {first[0]:.0f} -> {first[1]:.0f} s; "
            f"compiled at most {most} for a row\n"
        )
        if given.json is not None:
            text = {
                "efforts": given.efforts,
                "geometric_mean": mean,
                "rows": rows,
                "device": torch.cuda.get_device_name(),
            }
            given.json.write_text(json.dumps(text, indent=1), encoding="utf-8")
    return int(any("error" in row or row["differs"] for row in rows))


if __name__ == "__main__":
    with torch.no_grad():
        raise SystemExit(main())
