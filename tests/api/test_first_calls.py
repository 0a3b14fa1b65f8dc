"""What first calls take: whose figures count for what, and what is said of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

import pytest
import torch
from click.testing import CliRunner

from weft import phases
from weft.cli import first_calls as command
from weft.cli.main import main
from weft.errors import CommandError
from weft.lab.first import compared, memory, process
from weft.lab.first import rows as first_rows
from weft.lab.first.compared import FirstCalls, first_calls, read_files
from weft.lab.first.rows import READING, chosen, named, subjects
from weft.lab.first.tables import complaints, further_layers, line, mean, tables
from weft.lab.whole import rows as rows_of_models
from weft.lab.workloads import models


def spent(name: phases.Phase) -> phases.Spent:
    return phases.spent().get(name, phases.Spent())


def test_a_second_counts_for_the_innermost_phase():
    outer, inner = spent("trial"), spent("judge")
    with phases.phase("trial"):
        time.sleep(0.02)
        with phases.phase("judge"):
            time.sleep(0.1)
        time.sleep(0.02)
    assert 0.04 <= spent("trial").wall - outer.wall < 0.1
    assert spent("judge").wall - inner.wall >= 0.1
    assert (spent("trial").times - outer.times, spent("judge").times - inner.times) == (1, 1)


def test_a_phase_ends_by_an_error():
    before = spent("trial").times
    with pytest.raises(ZeroDivisionError), phases.phase("trial"):
        raise ZeroDivisionError
    time.sleep(0.05)
    again = spent("trial")
    with phases.phase("judge"):
        pass
    assert spent("trial") == again
    assert again.times == before + 1


def run(wall: float, **more: object) -> dict[str, object]:
    return {"wall": wall, "processor": 2 * wall, **more}


def own(wall: float, compiles: int, choices: int) -> dict[str, object]:
    taken = {"candidates": {"wall": 1.0, "processor": 1.5, "times": choices}}
    return run(wall, imported=(0.5, 0.5), others=2.0, phases=taken, stats={"compiles": compiles})


def test_medians_of_processes_that_take_turns(monkeypatch):
    order = list[str]()
    walls = {"weft": iter([(4.0, 1.0), (6.0, 2.0), (5.0, 3.0)]), "inductor": iter([(10.0, 4.0)] * 3)}

    def runs(name, device, compiler, processes):
        order.append(compiler)
        if compiler == "eager":
            assert processes == 1
            return iter([run(0.5)])
        cold, warm = next(walls[compiler])
        if compiler == "inductor":
            return iter([run(cold), run(warm)])
        return iter([own(cold, 3, 2), own(warm, 0, 0)])

    monkeypatch.setattr(compared, "_runs", runs)
    (subject,) = chosen(["log-softmax fp32"], "cpu")
    found = first_calls(subject, "cpu", 3)
    assert order == ["weft", "inductor", "eager", "eager", "inductor", "weft", "weft", "inductor", "eager"]
    assert found.cold == {"weft": (5.0, 10.0), "inductor": (10.0, 20.0), "eager": (0.5, 1.0)}
    assert found.warm["weft"] == (2.0, 4.0)
    assert (found.ratio(), found.ratio(warm=True)) == (0.5, 0.5)
    assert (found.compiles, found.choices) == ((3, 0), (2, 0))
    assert found.phases["Dynamo"] == (5.0 - 1.0 - 0.5, 10.0 - 1.5 - 0.5 - 2.0)
    assert FirstCalls.read(json.loads(json.dumps(found.written()))) == found
    assert "5.00 s beside Inductor's 10.00 (0.50)" in line(found)
    assert complaints([found]) == []


def test_before_the_first_row_both_compilers_have_read_their_files(monkeypatch):
    asked = []

    def runs(name, device, compiler, processes):
        asked.append((compiler, processes))
        row = named(name, device).make(device)
        assert row.call(row.function, 0).shape == (64, 64)
        raise compared._FailedError("out of luck")
        yield

    monkeypatch.setattr(compared, "_runs", runs)
    read_files("cpu")
    assert asked == [("weft", 1), ("inductor", 1)]
    assert READING not in {s.name for s in subjects("cpu")}


def test_what_a_second_process_does_again_is_complained_of():
    found = FirstCalls("row", compiles=(3, 1), choices=(2, 0))
    assert complaints([found]) == ["row: a second process compiled 1 times and chose 0 times"]


def test_a_compiler_that_fails_has_no_figure_and_the_others_have(monkeypatch):
    monkeypatch.setattr(compared, "_PROCESS", "import sys; print('out of luck', file=sys.stderr); sys.exit(3)")
    (subject,) = chosen(["log-softmax fp32"], "cpu")
    found = first_calls(subject, "cpu", 1)
    assert found.failed == dict.fromkeys(("weft", "inductor", "eager"), "out of luck")
    assert math.isnan(found.ratio())
    assert line(found).startswith("log-softmax fp32: weft: out of luck")
    assert tables([found])[0].row_count == 1


def test_a_further_layer_is_what_it_takes_beside_the_tracer():
    def of(layers: int, weft: float, eager: float) -> FirstCalls:
        return FirstCalls("m", "BERT", layers, {"weft": (weft, weft), "eager": (eager, eager)})

    ((family, wall, _),) = further_layers([of(2, 10.0, 1.0), of(6, 12.0, 2.0)])
    assert (family, wall) == ("BERT", 0.25)


def test_the_mean_leaves_out_what_is_lacking():
    assert mean([2.0, 8.0, math.nan]) == pytest.approx(4.0)
    assert math.isnan(mean([]))


def test_rows_have_names_of_their_own():
    for device in ("cpu", "cuda"):
        names = [s.name for s in subjects(device)]
        assert len(names) == len(set(names))
    with pytest.raises(CommandError):
        chosen(["no such row"], "cpu")


def test_each_row_can_be_made():
    for subject in chosen(["LoRA", "two-layer", ", 2 layers"], "cpu"):
        if subject.missing:
            pytest.skip(subject.missing)
        made = subject.make("cpu")
        with torch.no_grad():
            made.call(made.function, 0)


@pytest.mark.skipif(not models.here(), reason=models.MISSING)
def test_a_gpus_rows_are_whole_models_too_whose_caches_grow(monkeypatch):
    calls = (rows_of_models.ModelRow(c, "sdpa", torch.float32, small=True) for c in rows_of_models._CALLS if c.cached)
    monkeypatch.setattr(first_rows, "whole_models", lambda device: calls)
    found = [s.make("cpu") for s in subjects("cuda") if s.title.endswith("1x1 after 1024 sdpa")]
    assert len(found) == 1
    seen = list[int]()

    def run(**given):
        seen.append(
            next(value for name, value in given.items() if name in ("cache", "past_key_values")).get_seq_length()
        )
        return found[0].function(**given)

    with torch.no_grad():
        for _ in range(2):  # as PyTorch runs it, and compiled: the cache is a new one
            for number in range(found[0].calls):
                found[0].call(run, number)
    assert seen == [128, 127] * 2


def test_the_time_of_processes_that_were_started_counts():
    before = process.used()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert 0.05 <= process.used() - before < 5


def test_the_command_writes_rows_and_goes_on_where_it_stopped(monkeypatch, tmp_path):
    asked, read = list[str](), list[str]()

    def measured(subject, device, processes):
        asked.append(subject.name)
        return FirstCalls(subject.name, cold={"weft": (1.0, 1.0), "inductor": (2.0, 2.0)}, choices=(1, 1))

    monkeypatch.setattr(command, "first_calls", measured)
    monkeypatch.setattr(command, "read_files", read.append)
    path = str(tmp_path / "first.json")
    given = ["bench", "--first-calls", "--device", "cpu", "--json", path, "--resume"]
    first = CliRunner().invoke(main, [*given, "--only", "log-softmax fp32"])
    assert (first.exit_code, asked) == (1, ["log-softmax fp32"]), first.output
    again = CliRunner().invoke(main, [*given, "--only", "log-softmax"])
    assert asked == ["log-softmax fp32", "log-softmax bf16"]
    assert read == ["cpu", "cpu"]
    assert "log-softmax bf16: a second process compiled 0 times and chose 1 times" in again.output
    assert len(json.loads((tmp_path / "first.json").read_text())["results"]) == 2


_TREE = """
import subprocess, sys, time
depth = int(sys.argv[1])
held = bytearray(b"x") * 40_000_000
if depth:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[2], str(depth - 1), sys.argv[2]], stdout=subprocess.PIPE)
    child.stdout.read(1)
print("ready", flush=True)
time.sleep(0.6)
"""


@pytest.mark.parametrize(("depth", "least", "most"), [(0, 40e6, 70e6), (2, 120e6, 190e6)])
def test_memory_is_that_of_all_processes_at_once(depth, least, most):
    with subprocess.Popen(
        [sys.executable, "-c", _TREE, str(depth), _TREE], stdout=subprocess.PIPE, text=True
    ) as started:
        peak, processes = memory.watched(started)
    assert least < peak < most
    assert processes == depth + 1


def test_memory_is_measured_for_each_compiler_and_weft_may_take_so_much(monkeypatch, tmp_path):
    found = {"weft": 5_500_000_000, "inductor": 4_000_000_000, "eager": 3_000_000_000}
    asked = list[str]()
    monkeypatch.setattr(memory, "watched", lambda process: (process.wait(), (found[asked[-1]], 2))[1])

    def command(name, device, compiler):
        asked.append(compiler)
        return [sys.executable, "-c", "raise SystemExit(0)"]

    monkeypatch.setattr(memory, "command", command)
    path = tmp_path / "memory.json"
    given = ["bench", "--first-memory", "--device", "cpu", "--only", "log-softmax fp32", "--json", str(path)]
    done = CliRunner().invoke(main, given)
    assert asked == ["weft", "inductor", "eager"]
    assert (done.exit_code, "compiling takes 2.50 GB beyond eager" in done.output) == (1, True), done.output
    assert json.loads(path.read_text())["memory"][0]["peaks"] == found
    found["weft"] = 4_900_000_000
    assert CliRunner().invoke(main, given).exit_code == 0
    monkeypatch.setattr(memory, "command", lambda *_: [sys.executable, "-c", "raise SystemExit('out of luck')"])
    failed = CliRunner().invoke(main, given)
    assert failed.exit_code == 1
    assert "weft: out of luck" in failed.output


_IMPORT = """
import gc, torch
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
import weft
print(len(full), gc.isenabled())
"""


def test_importing_collects_no_garbage_and_leaves_collecting_on():
    done = subprocess.run([sys.executable, "-c", _IMPORT], check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["0", "True"]


def test_what_weft_imports_is_in_the_clock():
    clocked, _, after = compared._PROCESS.partition("from weft.lab.first.process import answer")
    assert after
    listed = f"{clocked}\nbefore = set(sys.modules)\nimport weft.lab.first.process\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", listed, "", "", "weft"], capture_output=True, text=True, check=True)
    late = [name for name in done.stdout.split() if name.startswith("weft.")]
    assert "weft.lab.first.process" in late
    # The examples that rows are made of know how results are judged: no first call asks for that.
    assert all(name.startswith(("weft.lab", "weft.verify")) for name in late), late


def test_imports_are_a_part_of_the_first_call():
    script = "from weft.lab.first.process import answer\nanswer('softmax fp32', 'cpu', 'eager', (100.0, 200.0))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["wall"] > 100
    assert found["processor"] > 200


def test_caches_of_all_compilers_are_in_the_folder_that_is_empty(tmp_path):
    found = compared.environment(str(tmp_path))
    for name in ("WEFT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert found[name].startswith(str(tmp_path))
