"""A process that compiles or measures rows of `weft bench --device cuda`, one request a line on standard input.

    python -m weft.lab.gpu.worker --device cuda

Answers are lines of JSON on what was standard output: `{"trying": name}` before a candidate runs, then one with
what was asked for, or `{"error": why}`. After `{"broken": why}` the process is of no more use. What libraries print goes to
standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from weft.lab.gpu.clock import Clock, CudaClock, Rates, rates
from weft.lab.gpu.row import RowError, Session, measure, said, warm
from weft.lab.measure import MadeBy, first_line, processor, settle
from weft.lab.workloads.gpu import ROWS
from weft.run.key import source_hash

_CUDA: Any = torch.cuda


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetting(MadeBy):
    """Where and when rows were measured; `source` is the hash of weft's own files."""

    device: str
    driver: str
    cuda: str
    triton: str
    source: str


def setting(device: str) -> GpuSetting:
    """Describe this machine, now."""
    driver = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return GpuSetting(
        device=_CUDA.get_device_name() if device == "cuda" else processor(),
        driver=first_line(driver) or "unknown",
        cuda=str(vars(torch.version).get("cuda")),
        triton=_triton(),
        source=source_hash(),
    )


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"


def answer(request: Mapping[str, Any], clock: Clock, trying: Callable[[str], None], *, small: bool) -> dict[str, Any]:
    """Answer a request.

    Args:
        request: {"what": "setting"}; or {"what": "compile" or "measure", "row", "names"}, and for "measure" what it takes besides.
        clock: times calls.
        trying: told what is about to run.
        small: at small sizes.
    """
    if request["what"] == "setting":
        trying("copies and matmuls, for floors")
        return {"setting": asdict(setting(clock.device)), "rates": asdict(rates(clock, small=small))}
    row = next(row for row in ROWS if row.name == request["row"])
    session = Session(row, row.sizes(small=small), clock, trying, dict(request.get("skip", {})))
    if request["what"] == "compile":
        return warm(session, request["names"])
    return {"found": measure(session, request["names"], Rates(**request["rates"]), request["rounds"]).written()}


def main() -> None:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

        def say(what: Mapping[str, Any]) -> None:
            answers.write(f"{json.dumps(what)}\n")
            answers.flush()

        clock: Clock = CudaClock() if arguments.device == "cuda" else Clock()
        settle()
        say({"ready": True})
        for line in sys.stdin:
            try:
                say(answer(json.loads(line), clock, lambda name: say({"trying": name}), small=arguments.small))
            except RowError as error:
                say({"error": str(error)})
            except Exception as error:  # noqa: BLE001 - whatever it is, whoever asked says so and goes on with another process
                say({"broken": said(error)})
                return


if __name__ == "__main__":
    main()
