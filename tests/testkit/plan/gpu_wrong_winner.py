"""A fault planted in the candidates that a tuner finds fastest, which Triton's interpreter runs: what `test_judging` looks at.

`python gpu_wrong_winner.py WRONG ...`, with TRITON_INTERPRET=1: so many of the fastest are wrong. Nothing is timed: the likeliest
is called the fastest. Prints as JSON what became of each.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from testkit.afresh import chosen_afresh
from weft.emit import triton
from weft.errors import LeftToPyTorchWarning
from weft.plan.targets.candidates import Candidate, Selection
from weft.plan.targets.triton import rounds, tune
from weft.plan.targets.triton import toolchain as gpus


def squashed(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


class Timing(rounds.CandidateTimer):
    """Times nothing: candidates take as long as there were ones before them."""

    def __init__(self, *_: Any) -> None:
        self.count = 0

    def measured(self, ready: rounds.Ready, best: float) -> float:
        """So many seconds."""
        self.count += 1
        return float(self.count)


def planted(patch: pytest.MonkeyPatch, wrong: int) -> None:
    """Has a tuner run without a GPU, and the printed kernels of so many of its fastest candidates compute something else."""
    tuned, emit = tune.tuned, triton.emit
    texts: list[str] = []

    def here(selection: Selection, _: Any, refused: Any, *rest: Any) -> Selection:
        return tuned(selection, torch.device("cuda", 0), refused, *rest)

    def faulty(*args: Any, **given: Any) -> Any:
        kernel = emit(*args, **given)
        if "stages" not in given:  # printed to be looked at
            return kernel
        if kernel.text not in texts:
            texts.append(kernel.text)
        if texts.index(kernel.text) >= wrong:
            return kernel
        assert "= weft_tanh(" in kernel.text
        return replace(kernel, text=kernel.text.replace("= weft_tanh(", "= 0.5 * weft_tanh("))

    def nothing(program: Any, tried: list[Candidate], *_: Any, **__: Any) -> list[list[Any]]:
        return [[] for _ in tried]

    patch.setattr(tune, "_JUDGED", 2)
    patch.setattr(gpus, "_MANY_INTERPRETED", 1 << 8)
    patch.setattr(gpus.TritonGpu, "points", lambda _: (gpus._MANY_INTERPRETED, 1 << 10))
    patch.setattr("weft.plan.targets.triton.tuned", here)
    patch.setattr(triton, "emit", faulty)
    patch.setattr(rounds, "compiled", nothing)
    patch.setattr(rounds, "CandidateTimer", Timing)
    patch.setattr(rounds, "alone_on", lambda _: nullcontext())
    patch.setattr(torch.cuda, "device", lambda _: nullcontext())
    patch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")


def tried(wrong: int, folder: str) -> dict[str, Any]:
    """Tell what became of the kernels where so many of the fastest are wrong."""
    x = torch.randn(5000)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        planted(patch, wrong)
        program = weft.optimize(
            squashed, (x,), target="cuda:90", judge="first", effort="quick", defects="warn", cache_dir=folder
        )
        found = program(x)
    return {
        "kernels": len(program.kernels),
        "fallbacks": [each.reason for each in program.fallbacks],
        "error": float((found - squashed(x)).abs().max()),
        "warned": [str(w.message) for w in heard if issubclass(w.category, LeftToPyTorchWarning)],
        "candidates": dict(program.explain().sections).get("candidates", "").splitlines(),
    }


def main(wrong: list[int]) -> list[dict[str, Any]]:
    """Tell what became of each."""
    outcomes: list[dict[str, Any]] = []
    for number in wrong:
        with tempfile.TemporaryDirectory() as folder, chosen_afresh():
            outcomes.append(tried(number, folder))
    return outcomes


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main([int(each) for each in sys.argv[1:]])) + "\n")
