"""Kernels that Triton's interpreter runs, judged as on a GPU: a tensor's memory on the device, inputs drawn and compared there.

    TRITON_INTERPRET=1 PYTHONPATH=src:tests python -m testkit.plan.judged_as_on_a_gpu

The device is the CPU. Prints a line of JSON: of each function what is said of its kernels, and of one with each fault.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.plan.execute import regions
from weft.plan.judge import bench
from weft.plan.targets.bench import Judged
from weft.plan.targets.compiled import CompiledRegion
from weft.plan.targets.triton import GpuBench, TritonGpu
from weft.verify import cases

HERE = torch.device("cpu")


def layer(x: Tensor, w: Tensor) -> Tensor:
    """Mix rows by a matmul and a softmax."""
    return torch.softmax(torch.relu(x @ w), -1)


def joined(x: Tensor, index: Tensor) -> Tensor:
    """Look rows up beside others."""
    return torch.cat([x[index], x], 0) * 2


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "layer": (layer, (torch.randn(20, 48).bfloat16(), torch.randn(48, 40).bfloat16())),
    "joined": (joined, (torch.randn(20, 30), torch.randint(0, 20, (7,)))),
}


def last_row(values: dict[str, Tensor], found: tuple[Tensor, ...]) -> None:
    """Get the last row of a result wrong."""
    del values
    found[0][-1] += 1


def input_written(values: dict[str, Tensor], found: tuple[Tensor, ...]) -> None:
    """Write to an input."""
    del found
    next(iter(values.values())).view(torch.uint8).as_strided((1,), (1,)).add_(1)


def beside(values: dict[str, Tensor], found: tuple[Tensor, ...]) -> None:
    """Write behind a result."""
    del values
    found[0].as_strided((1,), (1,), found[0].storage_offset() + found[0].numel()).zero_()


FAULTS = (last_row, input_written, beside)


def _said(function: Callable[..., Any], inputs: tuple[Tensor, ...], fault: Callable[..., None] | None) -> str:
    launched: Callable[..., Any] = bench.__dict__["_launched"]

    def wrong(judged: Judged, region: CompiledRegion, case: cases.Case, values: dict[str, Tensor], place: Any) -> Any:
        given = dict(values)
        found = launched(judged, region, case, values, place)
        if fault is not None:
            fault(given, found)
        return found

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(bench, "_launched", wrong)
        program = weft.optimize(function, inputs, target="cuda:90", effort="none", judge="always", cache_dir=folder)
    return " ".join([k.judged for k in program.kernels] or [f.reason for f in program.fallbacks])


def main() -> None:
    """Print what is said of each function, with each fault."""
    demand = regions.demand
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), weft.options(defects="warn"):
        warnings.simplefilter("ignore")
        patch.setattr(cases, "ON_DEVICE", 0)
        patch.setattr(cases, "DRAWN_THERE", 0)
        patch.setattr(TritonGpu, "bench", lambda *_: GpuBench(HERE))
        patch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
        patch.setattr(regions, "demand", lambda judged, region: demand(replace(judged, device=HERE), region))
        found = {
            "layer": {"right": _said(*FUNCTIONS["layer"], None)},
            "joined": {"right": _said(*FUNCTIONS["joined"], None)}
            | {fault.__name__: _said(*FUNCTIONS["joined"], fault) for fault in FAULTS},
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
