"""A process that finds its plan in the cache imports what runs it, and nothing that chooses kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

import weft
from weft.api.kept_plans import FORMS
from weft.capture import operation
from weft.plan.targets.packed import packed

_PROGRAM = """
import json
import sys
from dataclasses import asdict

import torch
import weft

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
x = torch.randn(2, 5, 16)
with torch.no_grad():
    imported = [name for name in sys.modules if name.partition(".")[0] == "weft"]
    found = torch.compile(layer, backend="weft")(x)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "weft"]
    torch.testing.assert_close(found, layer(x))
print(json.dumps([imported, loaded, asdict(weft.stats())]))
"""

_READ = """
from weft.api.kept_plans import FORMS
from weft.plan.targets.packed import unpacked
from torch._ops import OpOverload

print(unpacked({data!r}, OpOverload, FORMS).name())
"""

_MOST = 145
"""Modules of weft in a warm start: about ten more than there were when this was written. One more that imports what chooses brings
dozens.
"""

_CHOOSING = frozenset(
    f"weft.{name}"
    for name in (
        *("fuse", "pipeline", "plan.choose", "plan.judge", "capture.record", "capture.translate", "plan.execute.plan"),
        *("block.lower", "schedule.apply", "verify.field_check", "cost.chips", "emit.cpp.kernel", "emit.triton.kernel"),
        *("draw", "api.report", "lab", "cli"),
    )
)
"""Rooms, and files of others, that a warm start has no use for."""


def _printed(program: str, cache: Path) -> str:
    """Run `program` in a new process, and return what it prints."""
    environment = {**os.environ, "WEFT_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _process(cache: Path) -> tuple[list[str], list[str], dict[str, int]]:
    imported, loaded, stats = json.loads(_printed(_PROGRAM, cache))
    return imported, loaded, stats


def test_a_warm_start_imports_what_it_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    imported, chose, stats = _process(tmp_path)
    assert len(imported) < 20
    assert stats["kernels"]
    assert _CHOOSING.intersection(chose) > {"weft.fuse", "weft.plan.choose", "weft.emit.cpp.kernel"}
    imported, loaded, again = _process(tmp_path)
    assert len(imported) < 20
    assert (again["kernels"], again["fallbacks"]) == (stats["kernels"], stats["fallbacks"])
    assert _CHOOSING.isdisjoint(loaded)
    assert len(loaded) <= _MOST < len(chose)


def test_reading_a_plan_registers_wefts_own_operation(tmp_path: Path) -> None:
    """A call that checks indices may stay PyTorch's; nothing that captures graphs, where it is made, is imported."""
    data = packed(operation("weft::in_range"), FORMS)
    assert _printed(_READ.format(data=data), tmp_path) == "weft::in_range\n"


_LOADED = """
import sys

import torch
import weft

imported = [name for name in sys.modules if name.startswith("torch._dynamo")]
program = weft.load(sys.argv[1])
x = torch.linspace(-2.0, 2.0, 48).view(4, 12)
torch.testing.assert_close(program(x), torch.softmax(x, -1) * 2)
print(len(imported), len([name for name in sys.modules if name.startswith("torch._dynamo")]))
"""


def test_a_saved_program_runs_without_pytorch_s_tracer(tmp_path: Path) -> None:
    """Nor does `import weft` import it, which takes as long as PyTorch itself."""
    path = weft.optimize(lambda x: torch.softmax(x, -1) * 2, torch.randn(4, 12)).save(tmp_path / "program.weft")
    done = subprocess.run([sys.executable, "-c", _LOADED, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0"]


_AT_ONCE = """
import threading

import torch
import weft

x = torch.randn(8, 16)
barrier, found = threading.Barrier(4), []


def work(made):
    barrier.wait()
    try:
        found.append(made())
    except Exception as error:
        found.append(error)


makers = (
    lambda: weft.compile(lambda x: torch.softmax(x, -1))(x),
    lambda: weft.optimize(lambda x: torch.relu(x).sum(-1), x)(x),
    lambda: weft.equivalent(torch.relu, lambda x: x.clamp(min=0), (x,)),
    lambda: torch.compile(torch.sin, backend="eager")(x),
)
threads = [threading.Thread(target=work, args=(made,)) for made in makers]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print([type(each).__name__ for each in found if isinstance(each, Exception)], len(found))
"""


def test_threads_may_import_the_tracer_at_the_same_time(tmp_path: Path) -> None:
    """Its own imports are circular: two threads that import it by themselves fail."""
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _AT_ONCE], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.split() == ["[]", "4"], done.stderr
