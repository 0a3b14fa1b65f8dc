"""Faults planted in printed kernels: every one that changes a result must be stopped before it serves.

`PYTHONPATH=src:tests python -m testkit.emit.planted --help` is the campaign. A fault is a change of a kernel's text: one rule, at
one line where it matches. The changed text takes the emitter's place, so that all of `weft.optimize` or `weft.compile` runs. Each
fault runs in a process of its own, twice: as it is, to see whether it changes any result, and judged, to see what a user gets.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import weft
from testkit.emit.planted_programs import PERIOD, PROGRAMS, Planted, Tensors
from weft.emit import cpp, triton
from weft.run import compiler

# What a child may take, and one in Triton's interpreter; and how far beyond eager's error a result is wrong.
_SECONDS, _INTERPRETED, _MARGIN = 120, 600, 64


@dataclass(frozen=True)
class Rule:
    """A way to go wrong: wherever `pattern` matches in a line, `instead` is what a faulty emitter would print."""

    kind: str
    pattern: str
    instead: str


@dataclass(frozen=True)
class Fault:
    """One fault: in which program's kernels, of what kind, a line before and after it, and its number in the text.

    Of two outputs that change places it is the first one's line.
    """

    program: str
    kind: str
    number: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.program}, {self.kind}, line {self.number}:\n  - {self.before.strip()}\n  + {self.after.strip()}"


_BEGINS = re.compile(r'extern "C" void|def weft_\w+_\d+\(')
"""The first line of a kernel that is to serve; those that a tuner tries have other names."""

_ITEM = r"[\w.]+(?:\[[^\]]*\])?"
CPP: tuple[Rule, ...] = (
    Rule("lost rescale", rf"= ({_ITEM}) \* ({_ITEM});", r"= \1;"),
    Rule("lost rescale", r"= weft::(?:decay|exp)\(.*\);", "= 1.0f;"),
    Rule("lost divisor", rf"weft::over\(({_ITEM}), .*?\);", r"\1;"),
    Rule("wrong axis", r"\b(\w+)\[i \* ([\w ]+) \+ j\]", r"\1[j * \2 + i]"),
    Rule("wrong axis", r"\((float|double)\)K\b", r"(\1)M"),
    Rule("one value for all rows", r"\b(s\d*|t\d+(?:_\d)?)\[i\]( - |\)|;|,)", r"\1[0]\2"),
    Rule("one row for all rows", r"(x\w*)\[i \* ", r"\1[0 * "),
    Rule("off-by-one bound", r"(_len = weft::min_index\(\d+, .*\));", r"\1 - 1;"),
    Rule("off-by-one bound", r"for \(i64 (\w+) = 0; \1 < (\w+);", r"for (i64 \1 = 0; \1 < \2 - 1;"),
    Rule("off-by-one bound", r"for \(i64 (\w+) = 0;", r"for (i64 \1 = 1;"),
    Rule("off-by-one bound", r"weft::(in_lanes|in_chains)\((\w+),", r"weft::\1(\2 - 1,"),
    Rule("off-by-one bound", r"(\w+)_len, (\w+)_len, (\w+)_len\)", r"\1_len, \2_len, \3_len - 1)"),
    Rule("last block left out", r"; (\w+) < (\w+); \1 \+= (\d{2,})\)", r"; \1 + \3 < \2; \1 += \3)"),
    Rule("last block left out", r"; (\w+) < (\d+); \1 \+= 1\)", r"; \1 < \2 - 1; \1 += 1)"),
    Rule("end of a block not cut", r"_len = weft::min_index\((\d+), .*\);", r"_len = \1;"),
    Rule("dropped mask", r"const bool (\w+) = .*;", r"const bool \1 = true;"),
    # Not what chooses the memory of a level of sums.
    Rule("dropped mask", r"= (?!from |to )(\w+|\([^?]*\)) \? ([^:]+) : (?!.*::).*;", r"= \2;"),
    Rule("mask one off", r"(const bool \w+ = .*) <= ", r"\1 < "),
    Rule("mask one off", r"(= \(.*) <= (.*\) \? )", r"\1 < \2"),
    Rule("wrong stride", r"\* (\w+)_s0\b", r"* \1_s1"),
    Rule("wrong stride", r"\* (\w+)_s1\b", r"* \1_s0"),
    Rule("wrong stride", r"= dense \? 1 : \w+;", "= 1;"),
    Rule("wrong stride", r"\[i \* K \+ j\]", "[i * M + j]"),
    Rule(
        "state not reset",
        r"^(\s*)(\w+\[.*\] = (?:0\.0f?|-3\.40\S+|-1\.79\S+|-WEFT_INFINITY|INT64_MAX);)",
        r"\1if (program == 0) \2",
    ),
    Rule("state not reset", r"^(\s*)((?:float|double|i64|int64_t) s\d* = \S+;)", r"\1static thread_local \2"),
    Rule("state not reset", r", k\d* > 0, ", ", true, "),
    Rule("state reset each time", r", k\d* > 0, ", ", false, "),
    Rule("state reset each time", r", true, (s|t)", r", false, \1"),
    Rule("state not carried on", r"^(\s*)(s\d*(?:\[i\])?) = (\w+);", r"\1(void)\3;"),
    Rule("wrong start", r"fill_lanes\((\w+), -WEFT_INFINITY\)", r"fill_lanes(\1, 0.0f)"),
    Rule("wrong start", r"= -3\.4028234663852886e\+38f;", "= 0.0f;"),
    Rule("wrong order", r"weft::maximum\(", "weft::minimum("),
    Rule("wrong order", r"weft::rank<true,", "weft::rank<false,"),
    Rule("wrong constant", r"\b0\.(125|25|5)f", "0.75f"),
    Rule("store left out", r"^(\s*)(t\d+_\d+|weft_out\w*)(\[.*\]) = (\w+);", r"\1(void)\4;"),
)
"""For C++."""

TRITON: tuple[Rule, ...] = (
    Rule("lost rescale", r"= (\w+) \* (\w+(?:\[.*?\])?)$", r"= \1"),
    Rule("lost rescale", r"= weft_decay\((\w+)\)$", r"= \1 * 0 + 1.0"),
    Rule("lost divisor", r"= (\w+) / \w+(?:\[.*?\])?$", r"= \1"),
    Rule(
        "block exponent for a row's",
        r"= tl\.reduce\((\w+), 1, weft_reduce_max\)",
        r"= tl.reduce(\1, 1, weft_reduce_max) * 0 + tl.max(tl.max(\1, 1), 0)",
    ),
    Rule("one value for all rows", r" - (s\d*)\[:, None\]", r" - tl.max(\1, 0)"),
    Rule("off-by-one bound", r"(\w+_len = min\(\d+, .*)\)$", r"\1 - 1)"),
    Rule("off-by-one bound", r"\((\w+_i) < (\w+)\)", r"(\1 < \2 - 1)"),
    Rule("last block left out", r"in range\((\w+), (\w+), (\w+)\)", r"in range(\1, \2 - \3, \3)"),
    Rule("last block left out", r"tl\.range\(0, (\d+), 1", r"tl.range(0, \1 - 1, 1"),
    Rule("end of a block not cut", r"_ok = \((\w+) < \w+\)", r"_ok = (\1 < 1000000)"),
    Rule("dropped mask", r"= tl\.where\(([\w\[\]:, &]*_ok[\w\[\]:, &]*), (\w+), .*\)$", r"= \2"),
    Rule("dropped mask", r"= tl\.where\((\w+), (\w+), .*\)$", r"= \2 + 0 * \1"),
    Rule("mask one off", r" <= ", " < "),
    Rule("wrong stride", r"(\w+_i\S*) \* (\w+)_s0\b", r"\1 * \2_s1"),
    Rule("wrong stride", r"(\w+_i\S*) \* (\w+)_s1\b", r"\1 * \2_s0"),
    Rule("wrong stride", r"\+ m\d* \* (\w+)_s0", r"+ m * \1_s1"),
    Rule("wrong axis", r"tl\.cast\(K, tl\.float32\)", "tl.cast(M, tl.float32)"),
    Rule("wrong axis", r"axis=1\)", "axis=0)"),
    Rule("state not carried on", r"^(\s+)(s\d*) = (s\d+)$", r"\1\2 = \2"),
    Rule("wrong start", r"tl\.full\((.*), float\('-inf'\)", r"tl.full(\1, 0.0"),
    Rule("wrong start", r"tl\.full\((.*), 0\.0,", r"tl.full(\1, 1.0,"),
    Rule("wrong order", r"tl\.maximum\(s", "tl.minimum(s"),
    Rule("wrong constant", r"\* 0\.\d+", "* 0.75"),
)
"""For Triton."""


def faults(program: str, text: str, rules: Sequence[Rule]) -> Iterator[Fault]:
    """The faults of a kernel's text: each rule at the first and the last line where it matches, and swapped outputs."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if _BEGINS.match(line)), len(lines))
    for rule in rules:
        met: list[Fault] = []
        for i, line in enumerate(lines[begin:], begin):
            after = re.sub(rule.pattern, rule.instead, line, count=1)
            if after != line and not line.lstrip().startswith(("//", "#", "def ", '"')):
                met.append(Fault(program, rule.kind, i, line, after))
        yield from dict.fromkeys((*met[:1], *met[-1:]))
    yield from _swapped(program, lines)


def _swapped(program: str, lines: Sequence[str]) -> Iterator[Fault]:
    """Two results of one type in each other's place: what is stored to one pointer goes to another."""
    outputs = [i for i, line in enumerate(lines) if re.match(r"  (float|double|int64_t|bool)\* const \w+ = \(", line)]
    stores = [i for i, line in enumerate(lines) if line.lstrip().startswith("tl.store(")]
    for found, pattern in ((outputs, r"words\[(\d+)\]"), (stores, r"tl\.store\((\w+) \+")):
        for one, other in pairwise(found):
            here, there = (re.search(pattern, lines[i]) for i in (one, other))
            if here and there and lines[one].split("*")[0] == lines[other].split("*")[0]:
                after = lines[one][: here.start(1)] + there.group(1) + lines[one][here.end(1) :]
                yield Fault(program, "swapped outputs", one, lines[one], after)


def planted(fault: Fault, text: str) -> str:
    """`text`, a kernel of a program, with the fault, where it belongs there; two outputs change places."""
    lines = text.splitlines()
    served = any(map(_BEGINS.match, lines))
    if not served or fault.number >= len(lines) or lines[fault.number] != fault.before:
        return text
    lines[fault.number] = fault.after
    if fault.kind == "swapped outputs":
        for i, line in enumerate(lines):
            if i > fault.number and (found := _their(fault, line)) is not None:
                lines[i] = found
                break
    return "\n".join(lines) + "\n"


def _their(fault: Fault, line: str) -> str | None:
    pattern = r"words\[(\d+)\]" if "words[" in fault.before else r"tl\.store\((\w+) \+"
    own, new, here = (re.search(pattern, each) for each in (fault.before, fault.after, line))
    if own is None or new is None or here is None or here.group(1) != new.group(1):
        return None
    return line[: here.start(1)] + own.group(1) + line[here.end(1) :]


@contextmanager
def printed(change: Callable[[str], str]) -> Generator[None]:
    """Emitters whose kernels have another text."""
    of_cpu, of_gpu = cpp.emit, triton.emit

    def on_gpu(*args: Any, **keywords: Any) -> Any:
        kernel = of_gpu(*args, **keywords)
        return replace(kernel, text=change(kernel.text))

    cpp.emit, triton.emit = lambda *args: change(of_cpu(*args)), on_gpu
    try:
        yield
    finally:
        cpp.emit, triton.emit = of_cpu, of_gpu


def run(name: str, entry: str, target: str | None, judging: str, folder: Path, *, few: bool) -> dict[str, Any]:
    """Calls a program as a user would; `few` of the calls that it may have.

    Returns:
        wrong: the first call with a wrong result, if any, in words; warned: what was warned of; refused: why candidates were not
        taken, where that can be asked.
    """
    program = PROGRAMS[name]
    torch.use_deterministic_algorithms(mode=True)  # fills what nobody has written with NaN
    given: dict[str, Any] = {"cache_dir": folder, "judge": judging, "effort": "none"}
    refused: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if entry == "optimize":
            on = {} if target is None else {"target": target}
            called = weft.optimize(program.fn, program.example(), **on, **given)
            refused = [c.reason for p in called.plans for r in p.regions for c in r.considered if c.seconds is None]
        else:
            called = weft.compile(program.fn, **given)
            called(*program.example())
        wrong = next(
            (w for args in program.calls(few=few) if (w := wrong_in(program, called, args)) is not None),
            None,
        )
    warned = [str(w.message) for w in said if "weft" in str(w.message)]
    return {"wrong": wrong, "warned": warned, "refused": refused}


def wrong_in(program: Planted, called: Callable[..., Any], args: Tensors) -> str | None:
    """Says in words what is wrong with the results of one call; None: nothing."""
    found, eager = _tensors(called(*args)), _tensors(program.fn(*args))
    exact = _tensors(program.fn(*(a.double() if a.is_floating_point() else a for a in args)))
    for number, (mine, its, best) in enumerate(zip(found, eager, exact, strict=True)):
        where = f"result {number} of {[tuple(a.shape) for a in args]}"
        if mine.shape != its.shape or mine.dtype is not its.dtype:
            return f"{where}: {mine.dtype} {tuple(mine.shape)}"
        if not its.is_floating_point():
            if not torch.equal(mine, its):
                return f"{where}: {int((mine != its).sum())} integers differ"
            continue
        for rows in range(min(PERIOD, its.shape[0])) if its.ndim else (0,):
            own, eagers, exacts = (
                e[rows::PERIOD] if e.ndim else e for e in (mine.double(), its.double(), best.double())
            )
            if not _close(own, eagers, exacts, torch.finfo(its.dtype).eps):
                return f"{where}: rows {rows}, {rows + PERIOD} .."
    return None


def _close(mine: torch.Tensor, its: torch.Tensor, best: torch.Tensor, eps: float) -> bool:
    """The error rule with a wide margin, since there is one draw; float64 has no better reference than eager's own."""
    special = ~its.isfinite()
    if not torch.equal(mine[special], its[special]) and not bool((mine[special].isnan() & its[special].isnan()).all()):
        return False
    errors = [(each - best)[~special].abs() for each in (mine, its)]
    if not errors[0].numel():
        return True
    bound = _MARGIN * (errors[1].max() + max(eps, 1e-13) * best[~special].abs().max())
    return bool((errors[0] <= bound).all())


def _tensors(out: Any) -> Tensors:
    return (out,) if isinstance(out, torch.Tensor) else tuple(out)


def in_a_child(work: Callable[[], Any], target: str | None) -> Any:
    """Runs `work` in a process forked off this one; returned is its result, or in words how that ended."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as answer:
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(BaseException):
                signal.alarm(_SECONDS if target is None else _INTERPRETED)
                quiet = os.open(os.devnull, os.O_WRONLY)
                os.dup2(quiet, 2)
                try:
                    answer.write(json.dumps(work()))
                except Exception:  # noqa: BLE001 - it is the answer
                    answer.write(json.dumps(f"raised {traceback.format_exc(limit=-2)}"))
                answer.flush()
                code = 0
            os._exit(code)
        _, status = os.waitpid(child, 0)
        answer.seek(0)
        text = answer.read()
    ended = os.waitstatus_to_exitcode(status)
    if ended < 0:
        return "does not end" if -ended == signal.SIGALRM else f"ended by signal {-ended}"
    return json.loads(text) if text else f"ended with {ended}"


def every_fault(name: str, target: str | None, choices: Path, *, few: bool) -> list[Fault]:
    """The faults that there are for a program; what weft chose for it is left in the folder `choices`."""

    def work() -> list[dict[str, Any]]:
        found: list[Fault] = []
        rules = CPP if target is None else TRITON

        def note(text: str) -> str:
            found.extend(faults(name, text, rules))
            return text

        with printed(note), tempfile.TemporaryDirectory() as folder:
            if run(name, "optimize", target, "off", Path(folder), few=few)["wrong"] is not None:
                raise AssertionError(f"{name} is wrong as it is")
            for entry in {each.parent for each in Path(folder).glob("*/chosen.*")}:
                shutil.copytree(entry, choices / entry.name, dirs_exist_ok=True)
        return [asdict(f) for f in dict.fromkeys(found)]

    found = in_a_child(work, target)
    assert not isinstance(found, str), f"{name}: {found}"
    return [Fault(**each) for each in found]


def tried(
    program: str, plant: Callable[[str], str], entry: str, target: str | None, folder: Path, judging: str, *, few: bool
) -> dict[str, Any]:
    """Tries a fault, which `plant` puts into a text, in a cache folder.

    Returns:
        changes: how it shows where nothing stops it, in words; None: it changes no result that was tried. user: what the user gets.
    """
    with printed(plant):
        alone = in_a_child(lambda: run(program, entry, target, "off", folder, few=few), target)
        changes = alone if isinstance(alone, str) else alone["wrong"]
        if changes is None:
            return {"changes": None, "user": None}
        user = in_a_child(lambda: run(program, entry, target, judging, folder, few=few), target)
    return {"changes": changes, "user": user}


def stopped(outcome: Mapping[str, Any]) -> bool:
    """Tells whether the user got right results: another candidate's, or PyTorch's and one warning for each cause."""
    user = outcome["user"]
    if not isinstance(user, dict) or user["wrong"] is not None:
        return False
    return len(set(user["warned"])) == len(user["warned"])


def chosen(target: str | None, count: int, choices: Path, names: Sequence[str] = ()) -> Iterator[Fault]:
    """`count` faults, as evenly of each program and of each kind as there are: another kind from each program in turn."""
    left = {name: every_fault(name, target, choices, few=target is not None) for name in names or PROGRAMS}
    taken = Counter[str]()
    while count and any(left.values()):
        for found in left.values():
            if found and count:
                fault = min(found, key=lambda f: taken[f.kind])
                found.remove(fault)
                taken[fault.kind] += 1
                count -= 1
                yield fault


SHARE = (
    ("softmax", "lost rescale", 1),
    ("LayerNorm", "one value for all rows", 0),
    ("causal attention", "mask one off", 0),
    ("masked attention", "dropped mask", 0),
    ("sum of all", "last block left out", 0),
    ("softmax of columns, a view", "wrong stride", 0),
    ("topk", "wrong order", 0),
)
"""The faults that the tests plant: of a program and a kind, the first, or the one with that number."""


def planted_first(program: str, kind: str, number: int) -> Callable[[str], str]:
    """Plants the fault with that number among those of its kind that a text has."""

    def plant(text: str) -> str:
        found = [f for f in faults(program, text, CPP) if f.kind == kind]
        return planted(found[number], text) if number < len(found) else text

    return plant


def share() -> Iterator[dict[str, Any]]:
    """Yields what becomes of each fault of `SHARE`."""
    for program, kind, number in SHARE:
        with tempfile.TemporaryDirectory() as folder:
            plant = planted_first(program, kind, number)
            outcome = tried(program, plant, "optimize", None, Path(folder), "first", few=True)
        yield {"program": program, "kind": kind, **outcome, "stopped": stopped(outcome)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign; 1 where a fault that changes a result was not stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", help="cuda:90, in Triton's interpreter (with TRITON_INTERPRET=1); else C++")
    parser.add_argument(
        "--count", type=int, default=100, help="faults to plant; those that change no result are planted in vain"
    )
    parser.add_argument("--programs", nargs="*", default=[], metavar="NAME", help="of these programs; of all otherwise")
    parser.add_argument("--json", action="store_true", help="print every outcome as JSON, one a line")
    parser.add_argument("--judge", default="first", choices=("off", "first", "always"))
    parser.add_argument("--share", action="store_true", help="only the few that the tests plant")
    parser.add_argument("--level", default="-Og", help="of the C++ compiler's optimisation; kernels of users have -O2")
    given = parser.parse_args(argv)
    compiler.LEVEL = given.level
    tally, bad, few = Counter[str](), 0, given.target is not None
    if given.share:
        sys.stdout.write(json.dumps(list(share())) + "\n")
        return 0
    choices = Path(tempfile.mkdtemp())
    for number, fault in enumerate(chosen(given.target, given.count, choices, given.programs)):
        entry = "compile" if number % 3 == 2 and given.target is None else "optimize"
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(choices, folder, dirs_exist_ok=True)
            plant = partial(planted, fault)
            outcome = tried(fault.program, plant, entry, given.target, Path(folder), given.judge, few=few)
        what = "changes nothing" if outcome["changes"] is None else "stopped" if stopped(outcome) else "NOT STOPPED"
        tally[what] += 1
        bad += what == "NOT STOPPED"
        if given.json:
            sys.stdout.write(json.dumps({"fault": asdict(fault), **outcome, "entry": entry, "what": what}) + "\n")
        elif what == "NOT STOPPED":
            sys.stdout.write(f"{what} ({entry}): {fault}\n  changes: {outcome['changes']}\n  user: {outcome['user']}\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps(tally) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("WEFT_MEASURE", "never")
    raise SystemExit(main())
