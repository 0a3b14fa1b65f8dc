"""Every sample of the database through weft: `PYTHONPATH=src:tests python -m testkit.opinfo.campaign --help`.

`--write tests/testkit/opinfo/results.json` keeps what became of the samples; `testkit.opinfo.page` makes the page of operations
from it. With `--ops` only the entries named are run, and take the place of what the file had of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from testkit.opinfo.check import check
from testkit.opinfo.database import DTYPES, FEW, LAYOUTS, cases, entries, name_of, share

RESULTS = Path(__file__).parent / "results.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign; 1 where a sample is wrong, crashes, or a reason speaks of an error of weft's."""
    known = {str(d).removeprefix("torch."): d for d in DTYPES}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", help="entries, by name, separated by commas; all that weft has anything to do with")
    parser.add_argument("--dtypes", default=",".join(known))
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--most", type=int, default=10**6, help="samples of one entry, dtype and layout")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th entry from the i-th")
    parser.add_argument(
        "--write", type=Path, help="the file of results to put these into: tests/testkit/opinfo/results.json"
    )
    parser.add_argument(
        "--add", action="store_true", help="to what the file has of an entry, of other layouts; else in its place"
    )
    given = parser.parse_args(argv)
    os.environ.setdefault("WEFT_MEASURE", "never")
    logging.disable(logging.ERROR)  # PyTorch reports there what it then raises
    first, step = map(int, given.part.split("/"))
    wanted = given.ops.split(",") if given.ops else None
    chosen = [op for op in entries() if not wanted or op.name in wanted or name_of(op) in wanted]
    unknown = set(wanted or ()) - {name for op in chosen for name in (op.name, name_of(op))}
    if unknown:
        parser.error(f"PyTorch's database has no entry called {', '.join(sorted(unknown))}")
    written = json.loads(given.write.read_text("utf-8")) if given.write and given.write.exists() else {"entries": {}}
    results: dict[str, Any] = written["entries"]
    how = "every sample" if given.most >= 10**6 else f"{given.most} samples"
    how = f"{how} of one entry, type and layout ({', '.join(given.layouts.split(','))})"
    written |= {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "how": f"{written['how']}; {how}" if given.add and "how" in written else how,
        "torch": torch.__version__,
    }
    bad = 0
    for op in chosen[first::step]:
        most = share(op)
        if most is None:
            continue
        start = time.perf_counter()
        before = results.get(name_of(op)) if given.add else None
        for line in _entry(
            op, [known[d] for d in given.dtypes.split(",")], given.layouts.split(","), min(most, given.most), results
        ):
            bad += 1
            print(f"  BAD {line}", flush=True)
        found = results[name_of(op)] = _together(before, results[name_of(op)]) if before else results[name_of(op)]
        print(f"{name_of(op)}: {found.get('counts')} {time.perf_counter() - start:.1f} s", flush=True)
        if given.write:
            given.write.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    totals = Counter[str]()
    for found in results.values():
        totals.update(found["counts"])
    print(f"{len(results)} entries, {totals.total()} samples: {dict(totals)}; {bad} to look at")
    return 1 if bad else 0


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Combines what became of both lots of samples of an entry."""
    reasons = Counter[str](one["left to PyTorch"]) + Counter[str](other["left to PyTorch"])
    return {
        "counts": dict(sorted((Counter[str](one["counts"]) + Counter[str](other["counts"])).items())),
        "kernels": sorted({*one["kernels"], *other["kernels"]}),
        "left to PyTorch": dict(sorted(reasons.items())),
    }


def _entry(
    op: Any, dtypes: Sequence[torch.dtype], layouts: Sequence[str], most: int, results: dict[str, Any]
) -> Iterator[str]:
    """Runs one entry, adds what became of its samples to `results`, and gives a line for each that is bad."""
    counts, reasons, kernels, told = Counter[str](), Counter[str](), set[str](), set[str]()
    for dtype in dtypes:
        for layout in layouts:
            limit = min(most, FEW) if layout in ("special", "compiled", "symbolic") else most
            for case in cases(op, dtype, layout):
                if case.number >= limit:
                    break
                outcome = check(case)
                counts[outcome.kind] += 1
                if outcome.kind in ("weft", "partly"):
                    kernels.add(str(dtype).removeprefix("torch."))
                if outcome.kind in ("partly", "pytorch"):
                    reasons.update(set(outcome.reasons))
                line = outcome.kind + "; ".join(outcome.reasons)
                if outcome.bad and line not in told:
                    told.add(line)
                    yield f"{case}: {outcome.kind}: {'; '.join(outcome.reasons)}"
    results[name_of(op)] = {
        "counts": dict(sorted(counts.items())),
        "kernels": sorted(kernels),
        "left to PyTorch": dict(sorted(reasons.items())),
    }


if __name__ == "__main__":
    sys.exit(main())
