"""Progress: events in their order, a line on a terminal that is removed again, and silence everywhere else."""

from __future__ import annotations

import os
import pty
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import weft
from testkit.block import programs
from testkit.processes.running import ran
from weft.plan.choose.select import select
from weft.plan.progress import (
    CandidateBuilt,
    CandidateTimed,
    PieceWeighed,
    ProgressEvent,
    RegionDone,
    RegionStarted,
    following,
    terminal,
)
from weft.plan.targets.candidates import Example
from weft.plan.targets.triton import rounds
from weft.plan.targets.triton.rounds import compiled
from weft.target import Target
from weft.tensor.dtypes import DType

ERASED = "\x1b[2K"


def two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two regions, with a call of PyTorch's between."""
    return torch.sort(torch.relu(x @ w), 0).values + 1


def test_events_come_in_order() -> None:
    heard: list[ProgressEvent] = []
    with following(heard.append):
        weft.optimize(two, (torch.randn(6, 5), torch.randn(5, 4)), judge="off", verify="always")
    weighed = [event for event in heard if isinstance(event, PieceWeighed)]
    assert len(weighed) >= 2
    assert heard[: len(weighed)] == weighed
    first, built, done, *rest = heard[len(weighed) :]
    assert (first, done) == (RegionStarted(1, 2), RegionDone(1, 2))
    assert isinstance(built, CandidateBuilt)
    assert 0 < built.seconds < 1
    assert [type(event) for event in rest] == [RegionStarted, CandidateBuilt, RegionDone]
    assert rest[-1] == RegionDone(2, 2)


def test_nobody_hears_of_what_comes_after() -> None:
    heard: list[ProgressEvent] = []
    with following(heard.append):
        pass
    weft.optimize(two, (torch.randn(6, 5), torch.randn(5, 4)), judge="off")
    assert not heard


def test_what_threads_compile_is_told_to_the_observer_of_who_began_them(tmp_path: Path) -> None:
    """Triton's candidates are compiled side by side; one that is refused is not told of."""
    program = programs.linear_relu(DType.bfloat16)
    selection = select(program, Example({"M": 64, "N": 64, "K": 64}, {}, 1, Target("cuda", "90")))
    chosen = selection.chosen
    impossible = replace(chosen, schedule=replace(chosen.schedule, warps=3))
    heard: list[tuple[ProgressEvent, int]] = []
    with weft.options(cache_dir=tmp_path), following(lambda event: heard.append((event, threading.get_ident()))):
        compiled(program, (impossible, chosen), selection.example)
    ((event, thread),) = heard
    assert event == CandidateBuilt(chosen.name, chosen.cost.predicted_seconds)
    assert thread != threading.get_ident()


def test_what_is_timed_is_told() -> None:
    nothing: Any = None
    timing: Any = SimpleNamespace(measured=lambda ready, best: 1e-3 if ready.candidate.name == "right" else "it failed")
    timed = rounds.Rounds(nothing, nothing, nothing)
    heard: list[ProgressEvent] = []
    with following(heard.append):
        for name in ("right", "wrong"):
            candidate: Any = SimpleNamespace(name=name)
            timed.time(rounds.Ready(candidate, []), timing)
    assert heard == [CandidateTimed(1e-3)]


class Bar(terminal.ProgressLine):
    """Notes what would be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[str] = []

    def _draw(self) -> None:
        self.drawn.append(self._said())


def test_what_the_line_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "AFTER", 0)
    line = Bar()
    for event in (
        PieceWeighed(), RegionStarted(1, 2), CandidateBuilt("a", 2e-3), CandidateBuilt("b", 1e-3), CandidateBuilt("a", 2e-3),
        CandidateTimed(4e-3), CandidateTimed(5e-3), RegionDone(1, 2), RegionStarted(2, 2),
    ):  # fmt: skip
        line(event)
    assert line.drawn == [
        "choosing what becomes one kernel: 1 piece weighed",
        "0 of 2 regions done",
        "0 of 2 regions done, 1 candidate compiled, best predicted 2 ms",
        "0 of 2 regions done, 2 candidates compiled, best predicted 1 ms",
        "0 of 2 regions done, 2 candidates compiled, best predicted 1 ms",
        "0 of 2 regions done, 2 candidates compiled, best measured 4 ms",
        "0 of 2 regions done, 2 candidates compiled, best measured 4 ms",
        "1 of 2 regions done, 2 candidates compiled, best measured 4 ms",
        "1 of 2 regions done",
    ]


def test_nothing_is_drawn_at_first_in_a_child_or_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Bar()
    line(RegionStarted(1, 1))
    assert not line.drawn
    monkeypatch.setattr(terminal, "AFTER", 0)
    own = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(terminal.os, "getpid", lambda: own + 1)
        line(RegionDone(1, 1))
    assert not line.drawn
    line(RegionDone(1, 1))
    assert line.drawn
    line.close()
    line(RegionDone(1, 1))
    assert len(line.drawn) == 1


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Bar):
        def _draw(self) -> None:
            super()._draw()
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(terminal, "AFTER", 0)
    line = Gone()
    line(RegionStarted(1, 1))
    line(RegionDone(1, 1))
    assert len(line.drawn) == 1


SCRIPT = """
    import multiprocessing, os, sys
    import torch
    import weft
    from weft.plan.progress import terminal

    terminal.AFTER = float(sys.argv[1])

    def two(x, w):
        return torch.sort(torch.relu(x @ w), 0).values + 1

    def work(how):
        inputs = torch.randn(6, 5), torch.randn(5, 4)
        match how:
            case "optimize":
                weft.optimize(two, inputs)
            case "compile":
                weft.compile(two, measure="never")(*inputs)
            case "backend":
                torch.compile(two, backend="weft", options={"measure": "never"})(*inputs)
            case "worker":
                child = multiprocessing.get_context("spawn").Process(target=work, args=("optimize",))
                child.start()
                child.join()
                assert child.exitcode == 0

    if __name__ == "__main__":
        work(sys.argv[2])
        print("done")
"""


def on_terminal(folder: Path, after: float, how: str, **variables: str) -> str:
    """Run the script with standard error on a pseudo-terminal, and return what that showed."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while found := os.read(ours, 4096):
                shown.append(found)
        except OSError:  # closed at the other end
            return

    reader = threading.Thread(target=read)
    reader.start()
    environment = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "80",
        "WEFT_CACHE_DIR": str(folder / "cache"),
        **variables,
    }
    try:
        done = ran([str(script), str(after), how], environment, stderr=theirs, timeout=300)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    assert done.stdout == "done\n", b"".join(shown)
    return b"".join(shown).decode()


@pytest.mark.parametrize("how", ["optimize", "compile", "backend"])
def test_a_terminal_shows_it_and_is_clean_again(how: str, tmp_path: Path) -> None:
    shown = on_terminal(tmp_path, 0, how)
    for text in (
        "pieces weighed",
        "0 of 2 regions done",
        "1 of 2 regions done, 1 candidate compiled, best predicted",
        "2 of 2 regions done",
    ):
        assert text in shown
    _, cleared, left = shown.rpartition(ERASED)
    assert cleared
    assert "region" not in left
    assert "\x1b[?25h" in shown  # the cursor is back


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("after", "how", "variables"),
    [
        (1000, "optimize", {}),
        (0, "optimize", {"WEFT_PROGRESS": "0"}),
        (0, "optimize", {"TERM": "dumb"}),
        (0, "optimize", {"LOCAL_RANK": "1"}),
        (0, "worker", {}),
    ],
    ids=["quick", "off", "dumb", "rank", "worker"],
)
def test_a_terminal_shows_nothing(after: float, how: str, variables: dict[str, str], tmp_path: Path) -> None:
    assert on_terminal(tmp_path, after, how, **variables) == ""


def test_a_file_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "FORCE_COLOR": "1", "WEFT_CACHE_DIR": str(tmp_path / "cache")}
    done = ran([str(tmp_path / "script.py"), "0", "optimize"], environment, timeout=300)
    assert (done.stdout, done.stderr) == ("done\n", "")
