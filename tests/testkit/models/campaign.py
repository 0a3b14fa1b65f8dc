"""All models: `PYTHONPATH=src:tests python -m testkit.models.campaign [NAME ...] [--only WORD ...]
[--device cuda | --target cuda:90] [--json FILE]`.

Each model with each attention that transformers has for it, in fp32 and bf16: its forward at three lengths, held to the error rule;
`generate` with a growing and with a static cache, in fp32, where the tokens must be eager's. No exception, no warning of weft's, no
graph without a program, kernels in every model. With `--device cuda` on a GPU that is here; with `--target` each forward is
compiled for that GPU instead, at the three lengths; it need not be here. Tokens that a router of experts sends to one or
another by a rounding are left out, with those after them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from testkit.models.check import CACHES, Outcome, for_a_gpu, forward, generated
from testkit.models.zoo import MODELS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Case = tuple[str, Callable[[], Outcome]]


def cases(names: list[str], target: str | None, device: str) -> Iterator[Case]:
    """Every case, with its name."""
    for name in names:
        for attention in MODELS[name].attentions:
            for text, dtype in DTYPES.items():
                what = f"{name} {attention} {text}"
                if target is not None:
                    yield f"{what} {target}", lambda n=name, a=attention, d=dtype: for_a_gpu(n, a, d, target)
                    continue
                yield what, lambda n=name, a=attention, d=dtype: forward(n, a, d, device=device)
            if MODELS[name].generates and target is None:
                for cache in CACHES:
                    run = lambda n=name, a=attention, c=cache: generated(n, a, torch.float32, c, device)  # noqa: E731
                    yield f"{name} {attention} generate, {cache} cache", run


def outcome_of(run: Callable[[], Outcome]) -> Outcome:
    """Runs a case; an exception is wrong."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the campaign reports it and goes on
        return Outcome([f"{type(error).__name__}: {str(error)[:300]}"])


def main() -> int:
    """Runs the cases, prints a table; 1 where one is wrong."""
    parser = argparse.ArgumentParser(prog="models.campaign")
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose name has all of these words")
    parser.add_argument("--target")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    table = Table("case", "graphs", "kernels", "left to PyTorch", "s", "wrong")
    found: dict[str, Outcome] = {}
    for name, run in cases(given.names, given.target, given.device):
        if not set(given.only) <= set(name.replace(",", "").split()):
            continue
        outcome = found[name] = outcome_of(run)
        torch.compiler.reset()
        numbers = (outcome.graphs, outcome.kernels, sum(outcome.left.values()), f"{outcome.seconds:.0f}")
        sys.stderr.write(f"{name}: {'; '.join(map(str, numbers))}: {outcome.wrong or 'right'}\n")
        table.add_row(name, *map(str, numbers), "; ".join(outcome.wrong) or "nothing")
    Console(width=160).print(table)
    if given.json:
        given.json.write_text(json.dumps({n: asdict(o) for n, o in found.items()}, indent=1))
    return int(any(o.wrong for o in found.values()))


if __name__ == "__main__":
    sys.exit(main())
