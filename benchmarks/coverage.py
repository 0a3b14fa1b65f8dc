"""Which part of which models runs in kernels: `PYTHONPATH=src:tests python benchmarks/coverage.py FILE.json [NAME ...]`.

Each model of `testkit.models.zoo`, small and with random weights, is compiled and called at one length in fp32. Results go to
FILE.json after each, and are printed as a table: graphs, kernels, what is left to PyTorch by name, and whether the error rule is
kept. What a library runs by design (`weft.capture.library`) is told apart from what is lost. Names that FILE.json has are not run
again.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from testkit.models.campaign import outcome_of
from testkit.models.check import Outcome, forward
from testkit.models.zoo import MODELS
from weft.api.files import write_json
from weft.capture.library import LIBRARY
from weft.lab.measure import setting

_LENGTH = 16


def covered(name: str) -> dict[str, Any]:
    """Run a model; its outcome as JSON, calls left to PyTorch by name, those by design and others."""
    torch.compiler.reset()
    attention = MODELS[name].attentions[-1]
    found: Outcome = outcome_of(lambda: forward(name, attention, torch.float32, draws=1, lengths=(_LENGTH,)))
    kinds: dict[str, dict[str, int]] = {"by design": {}, "lost": {}}
    for text, count in found.left.items():
        operation = text.partition(":")[0]
        kind = kinds["by design" if operation in LIBRARY else "lost"]
        kind[operation] = kind.get(operation, 0) + count
    numbers = {
        "graphs": found.graphs,
        "kernels": found.kernels,
        "wrong": found.wrong,
        "seconds": round(found.seconds, 1),
    }
    return {"attention": attention, **numbers, **kinds}


def table(results: dict[str, Any]) -> str:
    """Write results as a table in Markdown."""
    lines = [
        "| model | graphs | kernels | a library's by design | lost | by the error rule |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in sorted(results.items()):
        left = (", ".join(f"{n} {op}" for op, n in sorted(each[kind].items())) or "-" for kind in ("by design", "lost"))
        cells = name, each["graphs"], each["kernels"], *left, "; ".join(each["wrong"]) or "right"
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    """Run the models that the file lacks; 1 where one is wrong."""
    path, *names = sys.argv[1:]
    logging.getLogger("transformers").setLevel(logging.ERROR)
    out = Path(path)
    results: dict[str, Any] = json.loads(out.read_text())["results"] if out.exists() else {}
    here = asdict(setting())
    for name in (name for name in names or MODELS if name not in results):
        results[name] = covered(name)
        write_json(out, {"setting": here, "length": _LENGTH, "results": results})
    sys.stdout.write(f"{table(results)}\n")
    return int(any(each["wrong"] for each in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
