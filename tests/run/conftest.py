"""A small kernel that keeps to the interface of weft.run.launch, written by hand; another module in place of Triton."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.run.affine import AFFINE, AFFINE_TEXT
from weft.run.build import KernelSource


@pytest.fixture(scope="session")
def affine_source() -> KernelSource:
    """The kernel as emit would give it."""
    return KernelSource(AFFINE_TEXT, AFFINE, meta={"schedule": "grid(m)"})


@pytest.fixture
def other_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that stands where Triton is looked for."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "triton").mkdir()
    return tmp_path / "triton" / "__init__.py"
