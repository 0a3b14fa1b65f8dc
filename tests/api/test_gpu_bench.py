"""Measuring on a GPU, without one: what is timed and judged, what a candidate or process that fails costs, what is written."""

from __future__ import annotations

import io
import json
import math
import sys
import textwrap
from functools import partial

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

import weft
from weft.cli.main import main
from weft.lab.demo import Checked
from weft.lab.gpu import bench as gpu_bench
from weft.lab.gpu import bench as gpu_targets
from weft.lab.gpu import peers as gpu_peers
from weft.lab.gpu import worker as gpu_worker
from weft.lab.gpu.clock import Clock, Rates, Replay, alternate
from weft.lab.gpu.row import RowError, RowResult, Session, measure, warm
from weft.lab.gpu.workers import BenchWorker, LostError, WatchedWorker, compile_all
from weft.lab.measure import PeerTiming
from weft.lab.workloads.gpu import ROWS
from weft.options import current
from weft.run import stats

BY_NAME = {row.name: row for row in ROWS}
RATES = Rates(1e12, {"bfloat16": 1e14})


# Timing.


class Stated(Clock):
    """Says for each replay what it holds, once it was waited for."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.waited = 0

    def one(self, replay):
        name, times = replay.out
        self.ran.append(name)
        number = self.ran.count(name) - 1

        def read() -> float:
            assert self.waited >= len(self.ran)
            return times[number % len(times)]

        return read

    def wait(self) -> None:
        self.waited = len(self.ran)


def stated(**times):
    return {name: Replay(lambda: None, (name, each)) for name, each in times.items()}


def test_candidates_take_turns_and_the_median_counts():
    clock = Stated()
    found = alternate(stated(a=[1e-3], b=[2e-3, 4e-3, 9e-3]), clock, rounds=30, seconds=math.inf)
    assert found["a"] == PeerTiming(1.0, 1.0, 30)
    assert found["b"] == PeerTiming(4.0, 2.0, 30)
    assert clock.ran[-60:] == (["a", "b", "b", "a"] * 15)


@pytest.mark.parametrize(("seconds", "rounds"), [(30.0, 30), (12.0, 12), (1.0, 10)])
def test_slow_candidates_are_timed_in_fewer_rounds(seconds, rounds):
    found = alternate(stated(a=[0.4], b=[0.6]), Stated(), rounds=30, seconds=seconds)
    assert {each.rounds for each in found.values()} == {rounds}


def test_the_floor_is_the_slower_of_bytes_and_products():
    rates = Rates(1e9, {"bfloat16": 1e12, "float8_e4m3fn": 4e12})
    assert rates.floor(1e6, 1e6, "bfloat16") == pytest.approx(1e-3)
    assert rates.floor(1e3, 4e12, "bfloat16") == pytest.approx(4.0)
    assert rates.floor(1e3, 4e12, "float8_e4m3fn") == pytest.approx(1.0)
    assert rates.floor(1e3, 4e12, "float32") == pytest.approx(4.0)  # a type that was not measured


def session(name, clock=None, tried=None, **failed):
    row = BY_NAME[name]
    return Session(row, row.example.quick, clock or Clock(), ([] if tried is None else tried).append, failed)


def substitute(monkeypatch, **calls):
    """Lets what is called by these names compute something else."""
    true = gpu_peers.candidate
    monkeypatch.setattr(gpu_peers, "candidate", lambda row, name: calls[name] if name in calls else true(row, "eager"))


def test_a_row_is_judged_and_timed_beside_its_peers(monkeypatch):
    substitute(monkeypatch)
    found = measure(session("Q1"), ("weft", "eager", "inductor"), RATES, 12)
    assert found.right
    assert set(found.times) == {"weft", "eager", "inductor"}
    assert set(found.errors) == {"weft", "inductor"}
    assert all(t.rounds == 12 for t in found.times.values())
    peers = {name: found.times[name].median_ms for name in ("eager", "inductor")}
    assert found.peer == min(peers, key=peers.__getitem__)
    assert found.ratio == found.times["weft"].median_ms / min(peers.values())
    moved = 2 * 32 * 64 + 64 * 48 + 4 * 48 + 2 * 32 * 48
    assert found.floor_ms == pytest.approx(1e3 * max(moved / 1e12, 2 * 32 * 64 * 48 / 1e14))
    assert found.over_floor == found.times["weft"].median_ms / found.floor_ms
    assert RowResult.read(json.loads(json.dumps(found.written()))) == found


def test_a_candidate_that_fails_is_listed_and_ends_nothing(monkeypatch):
    def refuses(*_):
        raise NotImplementedError("no kernel\nfor this")

    substitute(monkeypatch, inductor=refuses)
    tried: list[str] = []
    found = measure(
        session("V3", tried=tried, flex="took a process with it"), ("weft", "eager", "inductor", "flex"), RATES, 3
    )
    assert found.failed == {"flex": "took a process with it", "inductor": "NotImplementedError: no kernel"}
    assert set(found.times) == {"weft", "eager"}
    assert found.right
    assert "flex" not in tried
    assert tried.count("inductor") == 1


def test_without_eager_nothing_can_be_judged(monkeypatch):
    substitute(monkeypatch, eager=lambda x: x.nothing)
    with pytest.raises(RowError, match="eager fails: AttributeError"):
        measure(session("V3"), ("weft", "eager"), RATES, 3)


def test_where_weft_fails_the_row_says_so_and_has_its_peers(monkeypatch):
    substitute(monkeypatch, weft=lambda x: x.nothing)
    found = measure(session("V3"), ("weft", "eager"), RATES, 3)
    assert not found.right
    assert set(found.times) == {"eager"}
    assert math.isnan(found.ratio)
    assert found.written()["ratio"] is None
    assert gpu_bench.line(found).startswith("V3: no time of weft's; weft failed: AttributeError")
    assert gpu_bench.complaints([found]) == [f"V3 is not right: weft: {found.failed['weft']}"]


def test_a_wrong_result_is_no_result_and_a_wrong_peer_no_peer(monkeypatch):
    substitute(monkeypatch, weft=lambda x: x.var(-1), inductor=lambda x: torch.zeros(len(x)))
    found = measure(session("V3"), ("weft", "eager", "inductor"), RATES, 3)
    assert not found.right
    assert not found.errors["inductor"].right
    assert found.peer == "eager"
    assert "WRONG: error" in gpu_bench.line(found)


class Idle(Clock):
    """As a graph that captured nothing: its replays leave results as they are."""

    def ready(self, call, inputs):
        return Replay(lambda: None, call(*inputs))


@pytest.mark.parametrize("name", ["V3", "R1"])
def test_a_replay_that_does_nothing_is_seen(monkeypatch, name):
    substitute(monkeypatch)
    row = session(name, clock=Clock())
    true, row.clock = row.clock, Idle()
    ready = row.clock.ready
    row.clock.ready = lambda call, inputs: (ready if call is row.calls["weft"] else true.ready)(call, inputs)
    substitute(monkeypatch, weft=partial(BY_NAME[name].fn))
    found = measure(row, ("weft", "eager"), RATES, 3)
    assert not found.errors["weft"].right


def test_what_is_compiled_beforehand_runs_once(monkeypatch):
    calls: list[str] = []
    substitute(monkeypatch, weft=lambda x: calls.append(current().measure), inductor=lambda x: x.nothing)
    with weft.options(measure="auto"):
        answer = warm(session("V3"), ("weft", "inductor"))
    assert calls == ["never"]  # beside other processes no time says anything
    assert list(answer["seconds"]) == ["weft"]
    assert list(answer["failed"]) == ["inductor"]


# Processes.

FAKE = """
    import json, os, sys, time

    def say(what):
        print(json.dumps(what), flush=True)

    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if request["what"] == "setting":
            say({"trying": "copies"})
            say({"setting": {"weft": "1", "torch": "2", "triton": "3", "device": "none"},
                 "rates": {"copy": 1e12, "matrix": {"bfloat16": 1e14}}})
            continue
        for name in request["names"]:
            if name in request.get("skip", {}):
                continue
            say({"trying": name})
            if (request["row"], name) == ("V1", "weft"):
                sys.exit("a bad access")
            if (request["row"], name) == ("V3", "inductor"):
                time.sleep(60)
            if (request["row"], name) == ("V6", "eager"):
                say({"broken": "RuntimeError: device"})
                sys.exit()
        if request["what"] == "compile":
            say({"seconds": {name: 1.0 for name in request["names"]}, "failed": {}})
        elif request["row"] == "I1":
            say({"error": "eager fails"})
        else:
            times = {n: {"median_ms": 1.0, "best_ms": 1.0, "rounds": 3} for n in request["names"] if n not in request["skip"]}
            right = {"error": 0.0, "eager_error": 0.0, "allowed": 1.0, "right": True, "reason": ""}
            say({"found": {"row": request["row"], "group": "variance", "size": "", "dtype": "float32", "times": times,
                 "errors": {n: right for n in times if n != "eager"}, "failed": request["skip"], "floor_ms": 0.5,
                 "runs": "weft"}})
"""


@pytest.fixture
def fake(tmp_path):
    file = tmp_path / "worker.py"
    file.write_text(textwrap.dedent(FAKE))
    return partial(BenchWorker, [str(file)])


def test_a_candidate_that_costs_its_process_is_skipped(fake):
    watched = WatchedWorker(fake)
    request = {"what": "measure", "row": "V1", "names": ["weft", "eager"]}
    answer = watched.without_what_breaks(request, 20.0)
    assert list(answer["found"]["times"]) == ["eager"]
    assert answer["found"]["failed"].keys() == {"weft"}
    assert answer["found"]["failed"]["weft"].startswith("its process ended with 1: a bad access")
    answer = watched.without_what_breaks({**request, "row": "V3", "names": ["weft", "eager", "inductor"]}, 2.0)
    assert answer["found"]["failed"] == {"inductor": "took more than 2 s"}
    assert list(answer["found"]["times"]) == ["weft", "eager"]
    with pytest.raises(LostError, match="RuntimeError: device"):
        watched.without_what_breaks({**request, "row": "V6"}, 20.0)
    assert watched.ask({"what": "setting"}, 20.0)["rates"]["copy"] == 1e12  # by a new one
    watched.close()


def test_several_processes_compile_and_each_failure_costs_one_row(fake):
    said: dict[str, dict] = {}
    rows = ["V1", "V3", "V6", "V8", "I3"]
    requests = [{"what": "compile", "row": row, "names": ["weft"]} for row in rows]
    compile_all(fake, requests, 2, 30.0, 10.0, lambda request, answer: said.update({request["row"]: answer}))
    assert list(said.pop("V1")) == ["error"]
    assert said == {row: {"seconds": {"weft": 1.0}, "failed": {}} for row in rows[1:]}
    compile_all(fake, requests, 2, 0.0, 10.0, lambda *_: pytest.fail("after the time"))


def test_a_worker_that_does_not_start_is_said():
    worker = BenchWorker(["-c", "raise SystemExit('no such module')"])
    with pytest.raises(LostError, match="ended with 1: no such module"):
        worker.ask({"what": "setting"}, 20.0)


# All of it.


def order(monkeypatch, fake, *rows, **more):
    monkeypatch.setattr(gpu_bench.BenchRequest, "worker", lambda _: fake())
    return gpu_bench.BenchRequest([BY_NAME[row] for row in rows], device="cpu", small=True, **more)


@pytest.fixture
def console():
    return Console(width=200, record=True, file=io.StringIO())


def test_results_are_written_as_they_come_and_resumed(monkeypatch, fake, tmp_path, console):
    out = tmp_path / "gpu.json"
    first = gpu_bench.run(order(monkeypatch, fake, "V8", "V1", "I1"), [], out, console)
    written = json.loads(out.read_text())
    assert [r["row"] for r in written["results"]] == ["V1", "V8", "I1"]  # in the order of the tables
    assert written["setting"]["torch"] == "2"
    assert [each.right for each in first] == [False, True, False]
    assert first[2].failed == {"all": "eager fails"}
    assert first[1].ratio == 1.0
    assert first[1].over_floor == 2.0
    again = gpu_bench.run(order(monkeypatch, fake, "V8", "V1", "I8"), first, out, console)
    assert [each.row for each in again] == ["V1", "V8", "I1", "I8"]
    said = console.export_text()
    assert [said.count(f"{row}: ") for row in ("V8", "V1", "I8")] == [
        1,
        2,
        1,
    ]  # a row that is right is not measured again
    assert gpu_bench.run(order(monkeypatch, fake, "V8", again=True), again, out, console)
    assert "V8: 1000 us, 1.00 x eager, 2.00 x floor (weft" in console.export_text()


def test_no_row_begins_after_the_time(monkeypatch, fake, console):
    assert gpu_bench.run(order(monkeypatch, fake, "V8", seconds=0.0), [], None, console) == []
    measured, moments = gpu_bench._measured, iter([0.0, 1.0, 11.0])
    monkeypatch.setattr(gpu_bench.time, "monotonic", lambda: next(moments))
    found = gpu_bench.run(order(monkeypatch, fake, "V8", "I3", seconds=10.0), [], None, console)
    assert [each.row for each in found] == ["V8"]
    assert measured is gpu_bench._measured
    assert "stopped after 10 s, before I3" in console.export_text()


def test_rows_are_compiled_beforehand_where_asked(monkeypatch, fake, console):
    gpu_bench.run(order(monkeypatch, fake, "V1", "V8", workers=2), [], None, console)
    said = console.export_text()
    assert "compiled V8: weft 1.0 s, inductor 1.0 s" in said
    assert "compiled V1: weft: its process ended with 1: a bad access" in said
    assert said.index("compiled V8") < said.index("V8: ")


def test_a_real_process_measures_a_small_row_on_this_cpu(tmp_path, console):
    out = tmp_path / "gpu.json"
    order = gpu_bench.BenchRequest([BY_NAME["V1"]], peers="eager", device="cpu", small=True, rounds=3)
    (found,) = gpu_bench.run(order, [], out, console)
    assert found.right, found
    assert found.runs in {"weft", "PyTorch"}
    assert set(found.times) == {"weft", "eager"}
    assert (found.kernels, found.fallbacks) == (1, 0)
    assert found.judged == "all"
    setting = json.loads(out.read_text())["setting"]
    assert setting["torch"] == torch.__version__
    assert len(setting["source"]) == 64


@pytest.mark.parametrize(
    ("more", "runs"),
    [
        ({"kernels": 2}, "weft"),
        ({"kernels": 2, "fallbacks": 1}, "weft, in part PyTorch"),
        ({"kernels": 2, "fallbacks": 1, "library": 1}, "weft with library matmuls, in part PyTorch"),
        ({"kernels": 2, "slower": 1}, "PyTorch"),
        ({"fallbacks": 7}, "PyTorch"),
    ],
)
def test_a_row_says_what_runs(monkeypatch, more, runs):
    def compiles(x):
        for name, times in more.items():
            stats.count(name, times)
            more[name] = 0  # once
        return x.var(-1, correction=0)

    substitute(monkeypatch, weft=compiles)
    assert measure(session("V3"), ("weft", "eager"), RATES, 3).runs == runs


def test_requests_are_answered_in_lines_of_json(monkeypatch):
    tried: list[str] = []
    answer = gpu_worker.answer({"what": "setting"}, Clock(), tried.append, small=True)
    assert answer["rates"]["copy"] > 0
    assert {"bfloat16", "float8_e4m3fn"} == set(answer["rates"]["matrix"])
    assert tried


# What is to be reached.


def test_groups_meet_their_goals_where_every_row_is_there_and_none_is_above():
    members = [row.name for row in ROWS if row.group == "speculation and prompt"]
    assert len(members) == 12

    def stands(ratios, group="speculation and prompt"):
        return next(each for each in gpu_targets.reached(ratios) if each.group == group)

    good = dict.fromkeys(members, 0.85)
    assert stands(good).met
    assert not stands({**good, "MHA-spec-b1": 1.11}).met
    assert stands({**good, "MHA-spec-b1": 1.11}).above == ("MHA-spec-b1",)
    assert not stands(dict.fromkeys(members, 0.95)).met  # no row is above, but their mean
    assert not stands(dict.fromkeys(members[1:], 0.5)).met
    assert stands(dict.fromkeys(members[1:], 0.5)).lacking == (members[0],)
    assert math.isnan(stands({}).mean)
    everything = dict.fromkeys((row.name for row in ROWS if row.group), 0.7)
    assert stands(everything, "all").met
    assert not stands(everything, "inertia").met
    assert stands({"V1": 0.5, "V3": 2.0}, "variance").mean == pytest.approx(1.0)


def test_tables_show_rows_goals_and_what_is_above(console):
    times = {"weft": PeerTiming(0.123, 0.1, 3), "eager": PeerTiming(0.1, 0.1, 3)}
    errors = {"weft": Checked(0.0, 0.0, 1.0, True, "")}
    wrong = {"weft": Checked(2.0, 0.0, 1.0, False, "error 2")}
    found = [
        RowResult("H7", "decode", "", "bfloat16", times, errors, floor_ms=0.05, runs="weft", failed={"flex": "no"}),
        RowResult("H9", "decode", "", "bfloat16", times, wrong, floor_ms=0.05, runs="weft"),
    ]
    for table in gpu_bench.tables(found):
        console.print(table)
    said = console.export_text()
    assert said.count("1.23") >= 2
    assert "100*" in said  # the best peer
    assert "2.46" in said
    assert "1.03 each" in said
    assert "H7 1.23; without H9, MHA-inc-b1" in said  # a wrong result is none
    assert gpu_bench.complaints(found) == ["H9 is not right: error 2"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--only", "nothing"), "no row's name contains nothing"),
        (("--resume",), "--json"),
        (("--only", "V1"), "there is no GPU"),
    ],
)
def test_bench_says_what_it_cannot_do_on_a_gpu(monkeypatch, options, says):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(main, ["bench", "--device", "cuda", *options])
    assert result.exit_code == 2
    assert says in result.stderr
    assert "what to do" in result.stderr


def test_bench_prints_what_a_file_has_without_a_gpu(monkeypatch, fake, tmp_path, console):
    out = tmp_path / "gpu.json"
    gpu_bench.run(order(monkeypatch, fake, "V8"), [], out, console)
    asked = ["bench", "--device", "cuda", "--resume", "--seconds", "0", "--json", str(out)]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    assert "mean 0.85" in result.stdout


def test_names_are_taken_whole_before_they_are_parts():
    assert [row.name for row in gpu_bench.chosen(["q1"], every=False)] == ["Q1"]
    assert [row.name for row in gpu_bench.chosen(["mqa-inc", "V3"], every=False)] == ["V3", "MQA-inc-b1", "MQA-inc-b8"]
    assert len(gpu_bench.chosen([], every=False)) == 61
    assert gpu_bench.chosen([], every=True) == list(ROWS)
    assert sys.modules["weft.lab.gpu.bench"] is gpu_bench
