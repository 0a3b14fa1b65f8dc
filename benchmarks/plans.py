"""What is planned for the benchmark list, and the seconds that planning takes: nothing is compiled, checked or run.

    python benchmarks/plans.py [--target cuda:90] [--models] [--only ROW ...]
        [--texts DIR [--against DIR]] [--json FILE] [--beside FILE]

Each row of `weft bench`, or of `weft bench --device cuda` for another target than this CPU, is planned with an empty cache in each
of its element types, ahead of time; `--models`: the models of `weft bench --first-calls`, or on a GPU those of its `--models`. A
row of the table has the seconds of the calling thread in which cuts and candidates were found and chosen, and of each region the
family of the candidate that was chosen. `--texts` keeps the text of every kernel, one file a row, its names numbered in order of
appearance; `--against` says which rows' texts are others than those that another version of weft left in that folder, and exits
with 1 if there are any. `--beside` takes the `--json` of another version, and says which rows have other kernels, what each version
predicts of them, and how long both planned.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import weft
from weft.api.files import write_json
from weft.lab.measure import setting
from weft.lab.whole.rows import chosen
from weft.lab.workloads.cpu import SUITE
from weft.lab.workloads.gpu import ROWS
from weft.lab.workloads.models import MODELS as SMALL
from weft.plan.choose import checked, region, select
from weft.plan.execute import plan as executable
from weft.plan.execute import regions, selections
from weft.plan.targets.candidates import Selection
from weft.plan.targets.cpp import toolchain as cpp
from weft.plan.targets.triton.build import Printed
from weft.run.build import Binary
from weft.schedule.apply import Placing
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
    parser.add_argument("--beside", type=Path, metavar="FILE", help="the JSON of another version")
    parser.add_argument("--models", action="store_true", help="plan whole models instead of the list")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    others: list[str] = []
    for row, text in planned(given.target, given.only, models=given.models):
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
    if given.beside is not None:
        before = {
            (row["row"], row["dtype"]): row for row in json.loads(given.beside.read_text(encoding="utf-8"))["rows"]
        }
        sys.stdout.writelines(compared([(before.get((row["row"], row["dtype"])), row) for row in rows]))
    return 1 if others else 0


def compared(rows: Sequence[tuple[dict[str, Any] | None, dict[str, Any]]]) -> Iterator[str]:
    """Yield lines that say how rows differ from those of another version; None where it has no such row."""
    both = [(old, new) for old, new in rows if old is not None]
    for old, new in both:
        if old["chosen"] != new["chosen"] or old["predicted"] != new["predicted"]:
            seconds = f"{1e6 * sum(old['predicted']):.2f} -> {1e6 * sum(new['predicted']):.2f} us predicted"
            yield f"{new['row']}, {new['dtype']}: {seconds}, {len(old['chosen'])} -> {len(new['chosen'])} regions\n"
    for what in ("seconds", "priced", "placed"):
        old_sum, new_sum = (sum(row[what] for row in side) for side in zip(*both, strict=True))
        yield f"{what}: {old_sum:.1f} -> {new_sum:.1f} in {len(both)} rows\n"


def planned(target: str, only: list[str], *, models: bool = False) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a row of the table and its kernels' texts for each example and element type, or for each model."""
    for row, dtype, function, inputs in _models(target, only) if models else _examples(target, only):
        selections._remembered.clear()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - each row is planned as the first one
        with tempfile.TemporaryDirectory() as folder, torch.no_grad(), only_planned() as found, suppress(PlannedError):
            weft.optimize(function, inputs, target=target, cache_dir=folder, judge="off")
        made = found.made
        told = {
            "row": row,
            "dtype": str(dtype).removeprefix("torch."),
            "seconds": sum(found.seconds),
            "chosen": [each.origin for each in made],
            "kernels": sum(len(each.kernels) for each in made),
            "predicted": found.predicted,
            "priced": found.counted["priced"],
            "placed": found.counted["placed"],
        }
        yield told, "\n".join(_numbered(kernel.made.text) for each in made for kernel in each.kernels)


_Planned: TypeAlias = tuple[str, torch.dtype, Callable[..., Any], tuple[Any, ...]]


def _models(target: str, only: list[str]) -> Iterator[_Planned]:
    """Yield the models of a target, whose weights lie in the memory of this machine; of a cache that grows, the first step."""
    if target == "cpu":
        for small in SMALL:
            if not only or any(name in small.title for name in only):
                yield small.title, torch.float32, *_called(small.made(), small.inputs(), {})
        return
    for row in chosen(only, "cuda"):
        here = replace(row, device="cpu")
        model = here.model()
        yield row.name, row.dtype, *_flat(here.caller(model, model), here.inputs(0))


def _called(
    model: Callable[..., Any], given: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function of tensors that calls `model`, and these tensors."""
    return _flat(lambda values: model(**values, **options)[0], given)


def _flat(call: Callable[[Any], Any], given: Mapping[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function of the tensors in `given`, a cache's among them, that calls `call` with all of it; and these tensors."""
    leaves, tree = tree_flatten(dict(given))
    where = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def flat(*values: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, value in zip(where, values, strict=True):
            filled[place] = value
        return call(tree_unflatten(filled, tree))

    return flat, tuple(leaves[place] for place in where)


def _examples(target: str, only: list[str]) -> Iterator[_Planned]:
    for example in SUITE if target == "cpu" else (row.example for row in ROWS):
        if only and example.title not in only:
            continue
        for dtype in example.dtypes:
            function = example.make(example.full)
            if isinstance(function, torch.nn.Module):
                function = function.to(dtype).eval()
            yield example.title, dtype, function, tuple(example.inputs(example.full, dtype, 0))


@dataclass
class Found:
    """What is planned: seconds that it takes, regions, what is predicted of each, and how many programs are priced and placed."""

    seconds: list[float] = field(default_factory=list[float])
    made: list[region.CompiledRegion] = field(default_factory=list[region.CompiledRegion])
    predicted: list[float] = field(default_factory=list[float])
    counted: Counter[str] = field(default_factory=Counter[str])


@contextmanager
def only_planned() -> Generator[Found]:
    """Stops compilers and checks; gives what is planned."""
    found = Found()
    built = region.build_region

    def noted(selection: Selection, *args: Any, **options: Any) -> region.CompiledRegion:
        made = built(selection, *args, **options)
        found.made.append(made)
        found.predicted.append(selection.chosen.cost.predicted_seconds)
        return made

    def counting(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            found.counted[what] += 1
            return function(*args, **options)

        return call

    def printed(_: Mapping[str, str], emit: Callable[[], Any]) -> Binary:
        source = emit()
        return Binary(_no_call, source.signature, source.text, source.meta, "", False, Path(), _no_call)

    agreed = Verdict(True, None, "not checked", agrees=True)
    with ExitStack() as stack:
        for owner, name in ((regions.Regions, "stages"), (regions.Regions, "selection")):
            stack.enter_context(mock.patch.object(owner, name, _timed(getattr(owner, name), found.seconds)))
        stack.enter_context(mock.patch.object(select, "price", counting("priced", select.price)))
        stack.enter_context(mock.patch.object(Placing, "apply", counting("placed", Placing.apply)))
        stack.enter_context(mock.patch.object(regions, "build_region", noted))
        stack.enter_context(mock.patch.object(cpp, "build", printed))
        stack.enter_context(mock.patch.object(cpp, "start", return_value=None))
        stack.enter_context(mock.patch.object(checked, "verify", return_value=agreed))
        stack.enter_context(mock.patch.object(Printed, "assembled", return_value=None))
        stack.enter_context(mock.patch.object(executable, "running", side_effect=PlannedError))
        yield found


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
