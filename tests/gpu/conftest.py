"""Tests that run kernels on a GPU, where PyTorch has one: `PYTHONPATH=src:tests python -m pytest -q tests/gpu`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

_FOLDER = Path(__file__).parent
_WAY_BACK = "PyTorch has no GPU here; where it has: PYTHONPATH=src:tests python -m pytest -q tests/gpu"


def pytest_configure(config: pytest.Config) -> None:
    """Prints failures in a few lines each, where these tests are asked for by themselves."""
    if any(Path(given.partition("::")[0]).resolve() == _FOLDER for given in config.args):
        config.option.tbstyle = "short"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a GPU these tests are skipped. Warnings of other libraries on that machine are no failures of weft's."""
    for item in items:
        if _FOLDER in Path(item.path).parents:
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason=_WAY_BACK))
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def _untuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The schedule that the model puts first, unless a test asks for more: what is right does not depend on it."""
    monkeypatch.setenv("WEFT_EFFORT", os.environ.get("GPU_TESTS_EFFORT", "none"))
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
