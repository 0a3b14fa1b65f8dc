"""Times the tests that two versions of weft have in common, in files taken at random, each version in its own checkout.

    python benchmarks/test_time.py OTHER [--share 0.25] [--jobs 2] [--timeout SECONDS] [--json FILE]

OTHER is the root of a checkout of the other version, whose tests are listed first; of those files that this version still has,
a share is taken, the same for the same seed, and of them the tests whose names both versions have. pytest runs them with `--jobs`
workers, first the other version's, then this one's, in new processes with empty caches. What is said: seconds of both, of the
wall and of processors, and how many tests were compared, renamed or failed. Both need the same environment; run it on a machine
that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.lab.measure import setting

_HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest.

    Attributes:
        wall: seconds until it ended.
        processors: seconds that it and its processes used.
        status: pytest's exit status; 1 if tests failed.
        said: its last line, with how many passed.
    """

    wall: float
    processors: float
    status: int
    said: str


def main() -> None:
    """Compares, and exits with 1 where this version's tests did not all pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of the other version")
    parser.add_argument("--share", type=float, default=0.25, help="of the test files, those taken")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of files")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one run of pytest")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    other = given.other.resolve()
    files = [f for f in _files(other) if (_HERE / f).exists()]
    taken = random.Random(given.seed).sample(files, max(1, round(given.share * len(files))))
    before, now = (_listed(root, taken) for root in (other, _HERE))
    common = sorted(before & now)
    runs = {name: _timed(root, common, given.jobs, given.timeout) for name, root in (("other", other), ("this", _HERE))}
    for name, run in runs.items():
        sys.stdout.write(f"{name}: {run.wall:.0f} s, processors {run.processors:.0f} s; {run.said}\n")
    ratio = {k: getattr(runs["this"], k) / getattr(runs["other"], k) for k in ("wall", "processors")}
    missing = len(before - now)
    sys.stdout.write(
        f"this / other: {ratio['wall']:.2f} (processors {ratio['processors']:.2f}) over {len(common)} tests of "
        f"{len(taken)} files; {missing} tests of these files have another name or are gone\n"
    )
    if given.json is not None:
        found = {"tests": len(common), "missing": missing, "files": sorted(taken), "ratio": ratio}
        runs_said = {name: asdict(run) for name, run in runs.items()}
        given.json.write_text(json.dumps({"setting": asdict(setting()), **found, **runs_said}, indent=1) + "\n")
    sys.exit(runs["this"].status != 0)


def _files(root: Path) -> list[str]:
    """Returns the test files of a checkout by their path in it, but those that need a GPU."""
    found = (f.relative_to(root) for f in (root / "tests").rglob("test_*.py"))
    return sorted(str(f) for f in found if f.parts[1] != "gpu")


def _environment(root: Path, caches: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    return {**kept, "PYTHONPATH": str(root / "src"), "WEFT_CACHE_DIR": caches, "PYTHONDONTWRITEBYTECODE": "1"}


def _listed(root: Path, files: list[str]) -> set[str]:
    """Returns the names of the tests in these files that a plain run of this checkout takes."""
    with tempfile.TemporaryDirectory() as caches:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
        run = subprocess.run(
            command, cwd=root, env=_environment(root, caches), capture_output=True, text=True, check=False
        )
    if run.returncode != 0:
        sys.exit(f"{root}: pytest could not list the tests:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
    return {line for line in run.stdout.splitlines() if "::" in line}


def _timed(root: Path, names: list[str], jobs: int, limit: float) -> Run:
    """Runs these tests of a checkout, with no cache that an earlier run filled."""
    with tempfile.TemporaryDirectory() as caches:
        listed = Path(caches) / "names"
        listed.write_text("\n".join(names))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            str(jobs),
            "--dist",
            "worksteal",
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        used, begun = _used(), time.perf_counter()
        run = subprocess.run(
            [*command, f"@{listed}"],
            cwd=root,
            env=_environment(root, caches),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        wall = time.perf_counter() - begun
    lines = run.stdout.strip().splitlines() or run.stderr.strip().splitlines() or ["nothing"]
    return Run(wall, _used() - used, run.returncode, lines[-1])


def _used() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    main()
