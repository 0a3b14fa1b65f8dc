"""What is planned for the benchmark list, and the seconds that planning takes: nothing is compiled, checked or run.

    python benchmarks/plans.py [--target cuda:90] [--only ROW ...] [--texts DIR [--against DIR]] [--json FILE]

Each row of `weft bench`, or of `weft bench --device cuda` for another target than this CPU, is planned with an empty cache in each
of its element types, ahead of time. A row of the table has the seconds of the calling thread in which cuts and candidates were
found and chosen, and of each region the family of the candidate that was chosen. `--texts` keeps the text of every kernel, one file
a row, its names numbered in order of appearance; `--against` says which rows' texts are others than those that another version of
weft left in that folder, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import weft
from weft.api.files import write_json
from weft.lab.measure import setting
from weft.lab.workloads.cpu import SUITE
from weft.lab.workloads.gpu import ROWS
from weft.plan.choose import region
from weft.plan.execute import plan as executable
from weft.plan.execute import regions
from weft.plan.targets.cpp import toolchain as cpp
from weft.plan.targets.triton.build import Printed
from weft.run.build import Binary
from weft.verify import Verdict

_WORD = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"[ \t]*(//|#).*|\"\"\".*?\"\"\"")


def main() -> int:
    """Print the table; 1 where texts are others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", help="cpu, or a GPU that need not be here, as cuda:90")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="rows by name; all of them otherwise")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="a folder to keep the kernels' texts in")
    parser.add_argument("--against", type=Path, metavar="DIR", help="a folder that another version kept them in")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    others: list[str] = []
    for row, text in planned(given.target, given.only):
        rows.append(row)
        name = f"{row['row']}, {row['dtype']}"
        sys.stdout.write(f"{1e3 * row['seconds']:8.0f} ms  {name}: {', '.join(row['chosen']) or 'no kernel'}\n")
        sys.stdout.flush()
        file = re.sub(r"\W+", "-", name) + ".txt"
        if given.texts is not None:
            given.texts.mkdir(parents=True, exist_ok=True)
            (given.texts / file).write_text(text, encoding="utf-8")
        if given.against is not None and (given.against / file).read_text(encoding="utf-8") != text:
            others.append(name)
    total = sum(row["seconds"] for row in rows)
    families = Counter(re.sub(r"\d+", "n", origin) for row in rows for origin in row["chosen"])
    sys.stdout.write(f"{total:.1f} s for {len(rows)} rows; {dict(families.most_common())}\n")
    sys.stdout.writelines(f"other texts: {name}\n" for name in others)
    if given.json is not None:
        summary = {"seconds": total, "rows": len(rows), "families": families}
        arguments = {"target": given.target, "only": given.only}
        here = asdict(setting())
        write_json(given.json, {"setting": here, "arguments": arguments, "summary": summary, "rows": rows})
    return 1 if others else 0


def planned(target: str, only: list[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a row of the table and its kernels' texts for each example and element type."""
    for example in SUITE if target == "cpu" else (row.example for row in ROWS):
        if only and example.title not in only:
            continue
        for dtype in example.dtypes:
            regions._remembered.clear()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - each row is planned as the first one
            function = example.make(example.full)
            if isinstance(function, torch.nn.Module):
                function = function.to(dtype).eval()
            with tempfile.TemporaryDirectory() as folder, torch.no_grad(), only_planned() as (seconds, made):
                inputs = example.inputs(example.full, dtype, 0)
                with suppress(PlannedError):
                    weft.optimize(function, inputs, target=target, cache_dir=folder, judge="off")
            row = {
                "row": example.title,
                "dtype": str(dtype).removeprefix("torch."),
                "seconds": sum(seconds),
                "chosen": [each.origin for each in made],
                "kernels": sum(len(each.kernels) for each in made),
            }
            yield row, "\n".join(_numbered(kernel.made.text) for each in made for kernel in each.kernels)


@contextmanager
def only_planned() -> Generator[tuple[list[float], list[region.CompiledRegion]]]:
    """Stops compilers and checks; gives the seconds that planning takes, and the regions that were planned."""
    seconds: list[float] = []
    made: list[region.CompiledRegion] = []
    built = region.build_region

    def noted(*args: Any, **options: Any) -> region.CompiledRegion:
        found = built(*args, **options)
        made.append(found)
        return found

    def printed(_: Mapping[str, str], emit: Callable[[], Any]) -> Binary:
        source = emit()
        return Binary(_no_call, source.signature, source.text, source.meta, "", False, Path(), _no_call)

    agreed = Verdict(True, None, "not checked", agrees=True)
    with ExitStack() as stack:
        for owner, name in ((regions.Regions, "stages"), (regions.Regions, "selection")):
            stack.enter_context(mock.patch.object(owner, name, _timed(getattr(owner, name), seconds)))
        stack.enter_context(mock.patch.object(regions, "build_region", noted))
        stack.enter_context(mock.patch.object(cpp, "build", printed))
        stack.enter_context(mock.patch.object(cpp, "start", return_value=None))
        stack.enter_context(mock.patch.object(region, "verify", return_value=agreed))
        stack.enter_context(mock.patch.object(Printed, "assembled", return_value=None))
        stack.enter_context(mock.patch.object(executable, "running", side_effect=PlannedError))
        yield seconds, made


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Appends what the outermost call takes of the thread's time: planning a cut selects for its regions."""

    def call(*args: Any) -> Any:
        if seconds and seconds[-1] < 0:
            return function(*args)
        begin = time.thread_time()
        seconds.append(-1.0)
        try:
            return function(*args)
        finally:
            seconds[-1] = time.thread_time() - begin

    return call


class PlannedError(BaseException):
    """A graph is planned. Nothing catches it on the way: neither weft nor PyTorch goes on."""


def _no_call(*_: Any) -> Any:
    raise AssertionError("nothing is compiled here")


def _numbered(text: str) -> str:
    """Returns the text without comments, each word in it the number of the first place where it occurs."""
    words: dict[str, str] = {}
    return _WORD.sub(lambda found: words.setdefault(found[0], f"w{len(words)}"), _COMMENT.sub("", text))


if __name__ == "__main__":
    raise SystemExit(main())
