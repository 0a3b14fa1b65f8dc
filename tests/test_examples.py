"""Each example runs by itself at small size, says that it is right, and loses nothing that it need not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testkit.processes.running import ran

FOLDER = Path(__file__).parents[1] / "examples"
SAYS = {
    "attention": ("causal   kernels: 1;", "sink     kernels: 1;"),
    "generation": ("the same as eager's",),
    "mixture": ("right;",),
    "serving": ("PyTorch ran meanwhile: 1", "compiled while serving: 0"),
    "vision": ("right;", "left to PyTorch: aten.conv2d\n"),
}

STARTS = ("serving",)
"""The examples that start a process which compiles."""


def test_each_example_is_in_the_index() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert SAYS.keys() == {path.stem for path in FOLDER.glob("*.py")}
    assert all(f"({name}.py)" in index for name in SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str, tmp_path: Path) -> None:
    done = ran(
        [str(FOLDER / f"{name}.py"), "--small"],
        os.environ | {"WEFT_CACHE_DIR": str(tmp_path)},
        as_shipped=name in STARTS,
    )
    assert "Warning" not in done.stderr
    for text in SAYS[name]:
        assert text in done.stdout
