"""Campaigns in parts: what a file keeps, how a campaign goes on from it, and how it ends early."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Iterator

import pytest
from click.testing import CliRunner

from weft.cli.main import main
from weft.errors import CommandError
from weft.lab.fuzz import programs as fuzz
from weft.lab.fuzz import record as fuzz_record
from weft.lab.fuzz.campaign import Course, Tally, run
from weft.lab.fuzz.record import Outcome, record

OF = {"kind": "functions", "seed": 3, "count": 6}


def outcomes(seeds: Iterator[int]) -> Generator[Outcome]:
    """Yield an outcome of every seed: 4 is wrong."""
    for seed in seeds:
        stage = "number" if seed == 4 else None
        yield Outcome(
            seed, stage, "is wrong" if stage else "", "def f" if stage else "", {"kernels": 2}, 0.5, minimal=object()
        )


def part(path, seeds=range(3, 9), **course) -> tuple[Tally, list[int]]:
    """One run of the campaign, and the seeds that it tried."""
    tried: list[int] = []

    def noted(left: Iterator[int]) -> Generator[Outcome]:
        for outcome in outcomes(left):
            tried.append(outcome.seed)
            yield outcome

    with record(path, OF) as kept:
        return run("some", seeds, noted, Course(record=kept, **course)), tried


def test_a_campaign_goes_on_where_its_file_ends(tmp_path):
    path = tmp_path / "campaign"
    assert part(path, range(3, 6))[1] == [3, 4, 5]
    with path.open("a") as file:
        file.write('{"seed": 6, "sta')  # a process that was killed
    tally, tried = part(path)
    assert tried == [6, 7, 8]
    assert (tally.seeds, tally.counts["kernels"], [str(f) for f in tally.failures]) == (
        6, 12, ["seed 4, number: is wrong\n\ndef f"],
    )  # fmt: skip
    header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert header["arguments"] == OF
    assert [line["seed"] for line in lines] == [3, 4, 5, 6, 7, 8]
    assert all(line["commit"] == header["commit"] and line["seconds"] == 0.5 for line in lines)
    assert part(path)[1] == []


def test_every_outcome_is_in_the_file_at_once(tmp_path):
    path = tmp_path / "campaign"
    with record(path, OF) as kept:
        for number, outcome in enumerate(outcomes(iter(range(3)))):
            kept.add(outcome)
            assert len(path.read_text().splitlines()) == number + 2


def test_another_commit_is_said_and_kept(tmp_path, monkeypatch):
    path = tmp_path / "campaign"
    part(path, range(3, 5))
    monkeypatch.setattr(fuzz_record, "commit", lambda: "f00")
    with record(path, OF) as kept:
        assert "goes on with commit f00" in kept.said[-1]
        kept.add(Outcome(7))
    assert json.loads(path.read_text().splitlines()[-1])["commit"] == "f00"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"arguments": {**OF, "seed": 4}}], "other arguments: seed 4 (now 3)"),
        ([{"seed": 3}], "no results of `weft fuzz`"),
        ([{"arguments": OF}, {"seed": 3}], "no results of `weft fuzz`"),
        ([[]], "no results of `weft fuzz`"),
    ],
)
def test_a_file_of_something_else_is_refused_as_it_is(tmp_path, lines, said):
    path = tmp_path / "campaign"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    before = path.read_text()
    with pytest.raises(CommandError) as refusal, record(path, OF):
        pass
    assert said in str(refusal.value)
    assert path.read_text() == before


def test_two_campaigns_do_not_write_one_file(tmp_path):
    with (
        record(tmp_path / "campaign", OF),
        pytest.raises(CommandError, match="another campaign"),
        record(tmp_path / "campaign", OF),
    ):
        pass


def test_no_seed_begins_after_the_limit(tmp_path):
    tally, tried = part(tmp_path / "campaign", minutes=0.0)
    assert (tried, tally.seeds, tally.stopped) == ([], 0, "after 0 minutes")


def test_an_interrupt_ends_a_campaign_with_what_it_has(tmp_path):
    def interrupted(left: Iterator[int]) -> Generator[Outcome]:
        yield from outcomes(itertools.islice(left, 2))
        raise KeyboardInterrupt

    with record(tmp_path / "campaign", OF) as kept:
        tally = run("some", range(3, 9), interrupted, Course(record=kept))
    assert (tally.seeds, len(tally.failures), tally.interrupted) == (2, 1, True)
    assert "interrupted" in [*tally.table().columns[1].cells]
    assert part(tmp_path / "campaign")[1] == [5, 6, 7, 8]


def test_the_command_goes_on(tmp_path, monkeypatch):
    command = ["fuzz", "--kind", "programs", "--count", "2", "--resume", str(tmp_path / "campaign")]
    first = CliRunner().invoke(main, command)
    assert (first.exit_code, first.exception) == (0, None)
    monkeypatch.setattr(fuzz, "random_program", None)  # nothing is left to draw
    second = CliRunner().invoke(main, command)
    assert (second.exit_code, second.output) == (0, second.stderr + first.output)
    assert "has 2 seeds" in second.stderr
    other = CliRunner().invoke(main, [*command, "--seed", "1"])
    assert (other.exit_code, "seed 0 (now 1)" in other.stderr) == (2, True)
