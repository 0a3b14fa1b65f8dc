"""What guarded loops ask, in the loop and beforehand: of which inputs, what is idle in them, and on whose blocks it depends."""

from __future__ import annotations

from math import inf

import pytest

from testkit.emit.triton_guards import guarded
from testkit.masks.guarded import MASKED
from weft.masks import questions

IDLE = {"weighted without": True, "biased": -inf, "documents": None}
OF_COLUMNS = ("for each column",)


@pytest.mark.parametrize("beforehand", [False, True])
@pytest.mark.parametrize("name", MASKED)
def test_what_is_asked_is_the_same_in_the_loop_and_beforehand(name: str, *, beforehand: bool) -> None:
    (asked,) = questions(guarded(name, beforehand=beforehand).program)
    assert set(asked.inputs.values()) == {IDLE.get(name, False)}
    assert asked.beforehand == beforehand
    assert asked.loop.guard is not None
    assert asked.loop.axis in asked.axes
    in_rows = beforehand or name != "documents"  # what is of a row is loaded outside of the loop
    assert len(asked.axes) == (1 if name in OF_COLUMNS or not in_rows else 2)
    if name == "documents" and beforehand:
        assert set(asked.inputs) == {"of_row", "of_column"}


@pytest.mark.parametrize("name", ["sums", "weighted"])
def test_each_segment_of_a_loop_asks(name: str) -> None:
    (asked,) = questions(guarded(name, beforehand=True, split=True).program)
    assert set(asked.inputs.items()) == {("mask", False)}
