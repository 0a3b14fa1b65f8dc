"""What a new process does for one figure of `weft bench --first-calls`: a first call, timed. It prints a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from weft.api.backend import backend
from weft.lab.first.rows import named
from weft.phases import spent
from weft.run import stats

_TORCH: Any = torch  # the type of torch.compile is only partly known


def answer(name: str, device: str, compiler: str, imported: tuple[float, float]) -> None:
    """Call a row for the first time and print what that took.

    Args:
        name: of the row.
        device: "cpu" or "cuda".
        compiler: a backend of `torch.compile`.
        imported: wall and processor seconds of importing weft as a backend, or Dynamo alone; a part of the first call.
    """
    warnings.simplefilter("ignore")
    subject = named(name, device).make(device)
    with torch.no_grad():
        for number in range(subject.calls):
            subject.call(subject.function, number)
        _wait(device)
        wall, processor, own = time.perf_counter(), used(), time.process_time()
        compiled = _TORCH.compile(subject.function, backend=backend if compiler == "weft" else compiler)
        for number in range(subject.calls):
            subject.call(compiled, number)
        _wait(device)
        wall, processor = time.perf_counter() - wall, used() - processor
        others = processor - (time.process_time() - own)
    found: dict[str, Any] = {"wall": wall + imported[0], "processor": processor + imported[1], "imported": imported}
    if compiler == "weft":
        found["phases"] = {name: asdict(each) for name, each in spent().items()}
        found["others"] = others
        found["stats"] = asdict(stats.snapshot())
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # compilers that stay for more work would be waited for


def used() -> float:
    """Return the processor seconds of this process and of all that it has started, ended or not."""
    own = os.times()
    ended = own.user + own.system + own.children_user + own.children_system
    return ended + sum(_seconds(child) for child in below(os.getpid()))


def below(number: int) -> Iterator[int]:
    """Yield the processes that a process has started and that run, and those that they have."""
    with suppress(OSError):
        for task in Path(f"/proc/{number}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                yield int(child)
                yield from below(int(child))


def _seconds(number: int) -> float:
    with suppress(OSError, ValueError):
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
