"""Products of float32 on a GPU: rounded to tf32 only where PyTorch's setting, or the option, allows it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch

from weft.options import options
from weft.plan.targets.triton.build import tf32_allowed


@pytest.fixture(autouse=True)
def _setting() -> Generator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("setting", "allowed"), [("highest", False), ("high", True)])
def test_pytorchs_setting_decides(setting: str, allowed: bool) -> None:
    torch.set_float32_matmul_precision(setting)
    assert tf32_allowed() is allowed


@pytest.mark.parametrize("setting", ["highest", "high"])
@pytest.mark.parametrize(("wanted", "allowed"), [("ieee", False), ("tf32", True)])
def test_the_option_decides_where_it_says_something(setting: str, wanted: str, allowed: bool) -> None:
    torch.set_float32_matmul_precision(setting)
    with options(float32_products=wanted):
        assert tf32_allowed() is allowed
