"""A small kernel that keeps to the interface of weft.run.launch, written by hand."""

from __future__ import annotations

import pytest

from testkit.run.affine import AFFINE, AFFINE_TEXT
from weft.run.build import KernelSource


@pytest.fixture(scope="session")
def affine_source() -> KernelSource:
    """The kernel as emit would give it."""
    return KernelSource(AFFINE_TEXT, AFFINE, meta={"schedule": "grid(m)"})
