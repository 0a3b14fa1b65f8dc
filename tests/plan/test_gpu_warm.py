"""When Triton is imported elsewhere: while kernels are chosen, and not where nothing will be compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.plan.execute import regions
from weft.plan.targets.triton import toolchain
from weft.run.gpu import workers
from weft.target import Target

H200 = Target("cuda", "90")


def test_triton_is_imported_while_kernels_are_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """And not where what was chosen before is kept."""
    done: list[str] = []
    ask = workers.ask
    monkeypatch.setattr("weft.run.gpu.warm", lambda target: done.append(f"import for {target}"))
    monkeypatch.setattr(regions, "laws_refuted", lambda *_: done.append("choose"))
    monkeypatch.setattr(workers, "ask", lambda *job: (done.append("compile"), ask(*job))[1])
    for _ in range(2):
        weft.optimize(torch.exp, (torch.randn(64, 48),), target="cuda:90", effort="none", cache_dir=str(tmp_path))
    assert done[:3] == ["import for cuda:90", "choose", "compile"]
    assert set(done[3:]) <= {"compile"}


def test_triton_is_not_imported_elsewhere_for_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Target] = []
    monkeypatch.setattr("weft.run.gpu.warm", done.append)
    toolchain.TritonGpu(H200).warm()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    toolchain.TritonGpu(H200).warm()
    assert done == [H200]
