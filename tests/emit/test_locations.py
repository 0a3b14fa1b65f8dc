"""Comments that name the user's lines: one where the line changes, and one more where a block or another comment comes between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.emit.cpp import frame as cpp
from weft.emit.cpp import text as cpp_text
from weft.emit.frame import KernelFrame
from weft.emit.text import Names
from weft.emit.triton import frame as triton
from weft.emit.triton import text as triton_text
from weft.errors import Location

ONE, OTHER = Location("model.py", 7, "a + b"), Location("model.py", 8)
FRAMES: dict[str, Callable[[], KernelFrame]] = {
    "cpp": lambda: cpp.Frame(Names(""), {}, cpp_text.Writer(1)),
    "triton": lambda: triton.Frame(Names(""), {}, triton_text.Writer(1)),
}


@pytest.fixture(params=FRAMES)
def frame(request: pytest.FixtureRequest) -> KernelFrame:
    return FRAMES[request.param]()


def printed(frame: KernelFrame) -> list[str]:
    """The lines without indentation, comments as the number of the line that they name."""
    return [line.rpartition("model.py:")[2][0] if "model.py" in line else line.strip() for line in frame.out.lines]


def test_a_line_is_named_once_where_nothing_comes_between(frame: KernelFrame) -> None:
    for location, code in ((ONE, "a"), (ONE, "b"), (None, "c"), (ONE, "d"), (OTHER, "e"), (ONE, "f")):
        frame.location([location])
        frame.out.line(code)
    assert printed(frame) == ["7", "a", "b", "c", "d", "8", "e", "7", "f"]


def test_several_lines_are_named_together(frame: KernelFrame) -> None:
    for locations in ([ONE, OTHER, ONE], [ONE, OTHER], [OTHER], [ONE, OTHER]):
        frame.location(locations)
        frame.out.line("code")
    assert printed(frame) == ["7", "8", "code", "code", "8", "code", "7", "8", "code"]


def test_it_is_named_again_in_a_block_and_after_it(frame: KernelFrame) -> None:
    frame.location([ONE])
    frame.out.line("before")
    for _ in range(2):
        with frame.out.block("for"):
            frame.location([ONE])
            frame.out.line("inside")
            frame.location([ONE])
    frame.location([ONE])
    frame.out.line("after")
    lines = [line for line in printed(frame) if line != "}"]
    opened = lines[2]
    assert lines == ["7", "before", opened, "7", "inside", opened, "7", "inside", "7", "after"]


def test_it_is_named_again_after_a_block_that_names_none(frame: KernelFrame) -> None:
    frame.location([ONE])
    with frame.out.block("for"):
        frame.out.line("inside")
    frame.location([ONE])
    assert [line for line in printed(frame) if line == "7"] == ["7", "7"]


def test_it_is_named_again_after_another_comment(frame: KernelFrame) -> None:
    frame.location([ONE])
    frame.out.line("before")
    frame.out.comment("n over N: all of it at once")
    frame.location([ONE])
    frame.out.line("after")
    assert [line for line in printed(frame) if line == "7"] == ["7", "7"]
