"""All models: `PYTHONPATH=src:tests python -m testkit.models.campaign [NAME ...] [--only WORD ...] [--base] [--lengths N ...]
[--device cuda | --target cuda:90] [--json FILE] [--resume]`.

Each model with each attention that transformers has for it, in fp32 and bf16: its forward at three lengths, held to the error rule;
`generate` with a growing and with a static cache, in fp32, where the tokens must be eager's. No exception, no warning of weft's, no
graph without a program, kernels in every model. `--base`: the models of `base.py` instead, in the sizes that people run. With
`--device cuda` on a GPU that is here; with `--target` each forward is compiled for that GPU instead, at the three lengths; it need
not be here. Tokens that a router of experts sends to one or another by a rounding are left out, with those after them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from testkit.models.base import BASE
from testkit.models.check import ALL, CACHES, LENGTHS, Outcome, for_a_gpu, forward, generated
from testkit.models.zoo import MODELS
from weft.lab.measure import setting

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Case = tuple[str, Callable[[], Outcome]]


def cases(names: list[str], target: str | None, device: str, lengths: Sequence[int]) -> Iterator[Case]:
    """Yield every case, with its name."""
    for name in names:
        for attention in ALL[name].attentions:
            for text, dtype in DTYPES.items():
                what = f"{name} {attention} {text}"
                if target is not None:
                    yield f"{what} {target}", lambda n=name, a=attention, d=dtype: for_a_gpu(n, a, d, target, lengths)
                    continue
                yield what, lambda n=name, a=attention, d=dtype: forward(n, a, d, device=device, lengths=lengths)
            if ALL[name].generates and target is None:
                for cache in CACHES:
                    run = lambda n=name, a=attention, c=cache: generated(n, a, torch.float32, c, device, lengths[:2])  # noqa: E731
                    yield f"{name} {attention} generate, {cache} cache", run


def outcome_of(run: Callable[[], Outcome]) -> Outcome:
    """Run a case; an exception is wrong."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the campaign reports it and goes on
        return Outcome([f"{type(error).__name__}: {str(error)[:300]}"])


def kept(file: Path | None, lengths: Sequence[int]) -> dict[str, Outcome]:
    """Read what an earlier run of these lengths wrote; nothing where there is no file. SystemExit where it had others."""
    if file is None or not file.exists():
        return {}
    written = json.loads(file.read_text())
    if written.get("lengths") != list(lengths):
        sys.exit(f"{file} has other lengths: {written.get('lengths')}")
    return {name: Outcome(**each) for name, each in written["cases"].items()}


def numbers(outcome: Outcome) -> list[str]:
    """List the columns of the table that are numbers."""
    return [str(outcome.graphs), str(outcome.kernels), str(sum(outcome.left.values())), f"{outcome.seconds:.0f}"]


def main() -> int:
    """Run the cases, print a table; 1 where one is wrong."""
    parser = argparse.ArgumentParser(prog="models.campaign")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose name has all of these words")
    parser.add_argument("--base", action="store_true", help="models in the sizes that people run")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="N")
    parser.add_argument("--target")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="written after each case")
    parser.add_argument("--resume", action="store_true", help="keep what the file has, and run what it lacks")
    given = parser.parse_args()
    found = kept(given.json, given.lengths) if given.resume else {}
    names = given.names or [*(BASE if given.base else MODELS)]
    for name, run in cases(names, given.target, given.device, given.lengths):
        if not set(given.only) <= set(name.replace(",", "").split()) or name in found:
            continue
        outcome = found[name] = outcome_of(run)
        torch.compiler.reset()
        sys.stderr.write(f"{name}: {'; '.join(numbers(outcome))}: {outcome.wrong or 'right'}\n")
        if given.json:
            record = {
                "setting": asdict(setting()),
                "lengths": given.lengths,
                "cases": {n: asdict(o) for n, o in found.items()},
            }
            given.json.write_text(json.dumps(record, indent=1))
    table = Table("case", "graphs", "kernels", "left to PyTorch", "s", "wrong")
    for name, outcome in found.items():
        table.add_row(name, *numbers(outcome), "; ".join(outcome.wrong) or "nothing")
    Console(width=160).print(table)
    return int(any(o.wrong for o in found.values()))


if __name__ == "__main__":
    sys.exit(main())
