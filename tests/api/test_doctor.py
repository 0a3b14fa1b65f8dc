"""`weft doctor` finds what is wrong, says what to do, and fails only where weft cannot work."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import weft
from weft.cli import doctor as doctor_module
from weft.cli.main import main
from weft.options import Options, variable_of
from weft.run import scratch
from weft.run.cache import CacheFolder
from weft.target import Target
from weft.verify import Verdict


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def findings(*arguments: str) -> dict[str, dict[str, str]]:
    out = json.loads(run("--json", *arguments).stdout)
    return {finding["name"]: finding for finding in out["findings"]}


@pytest.fixture
def without_kernel(monkeypatch):
    """The compile, which takes seconds, left out."""
    monkeypatch.setattr(doctor_module, "_LOOKS", tuple(look for look in doctor_module._LOOKS if look[0] != "kernel"))


def test_all_is_well_here_and_a_kernel_was_proved_and_run():
    result = run()
    assert result.exit_code == 0, result.output
    assert "fail" not in {line[:5].strip() for line in result.stdout.splitlines()}
    for said in (
        "ok    kernel, check: equal",
        "ok    kernel, run: relu(x @ w + b) in 1 kernel",
        "ok    kernel, again: from the cache",
        f"torch: {torch.__version__}",
        "option seed: 0 (default)",
        "option cache_dir: '",
        "-march=native",
    ):
        assert said in result.stdout, said


def test_json_says_the_same_and_where_options_come_from(without_kernel, monkeypatch):
    monkeypatch.setenv("WEFT_THREADS", "1")
    monkeypatch.delenv("WEFT_CXX", raising=False)
    monkeypatch.setenv("CXX", "c++")
    found = findings()
    assert found["option threads"]["found"] == "1 (WEFT_THREADS)"
    assert found["option compiler"]["found"] == "'c++' (CXX)"
    assert {f"option {entry.name}" for entry in fields(Options)} <= set(found)
    assert found["threads"]["found"].startswith("1 (the option threads says so")
    assert all(finding["state"] in {"ok", "warn", "fail"} for finding in found.values())
    assert all(finding["todo"] for finding in found.values() if finding["state"] != "ok")


@pytest.mark.parametrize(("judge", "state"), [("first", "ok"), ("off", "warn")])
def test_it_says_whether_kernels_are_judged(judge, state, monkeypatch):
    monkeypatch.setenv("WEFT_JUDGE", judge)
    assert findings()["kernel, judge"]["state"] == state


def test_without_a_compiler_it_fails_and_says_what_to_install(monkeypatch):
    monkeypatch.setenv("WEFT_CXX", "no-such-compiler")
    result = run()
    assert result.exit_code == 1
    assert "fail  compiler: the C++ compiler 'no-such-compiler'" in result.stdout
    assert "fail  kernel: " in result.stdout
    assert "what to do: correct or unset that name" in result.stdout


def test_a_compiler_that_does_not_run(without_kernel, monkeypatch, tmp_path: Path):
    (tmp_path / "cxx").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cxx").chmod(0o700)
    monkeypatch.setenv("WEFT_CXX", str(tmp_path / "cxx"))
    assert findings()["compiler"]["state"] == "fail"


def test_a_wrong_kernel_and_one_that_is_not_proved_fail(monkeypatch):
    monkeypatch.setattr(doctor_module, "optimize", lambda _, inputs: weft.optimize(lambda x, w, b: x @ w + b, inputs))
    found = findings()
    assert found["kernel, run"]["state"] == "fail"
    assert run().exit_code == 1
    undecided, refuted = Verdict(None, None, "could not be run"), Verdict(False, None, "differs")
    assert doctor_module._checked(undecided).state == doctor_module._checked(refuted).state == "fail"
    assert doctor_module._checked(Verdict(None, None, "agrees up to constants", agrees=True)).state == "ok"


def test_what_pytorch_runs_is_no_kernel(monkeypatch):
    monkeypatch.setattr(doctor_module, "optimize", lambda _, inputs: weft.optimize(torch.sort, inputs[0]))
    found = findings()["kernel, check"]
    assert (found["state"], found["found"][:15]) == ("fail", "PyTorch runs it")


def test_a_wrong_option_fails_alone(monkeypatch):
    monkeypatch.setenv("WEFT_THREADS", "many")
    found = findings()
    assert found["options"]["state"] == "fail"
    assert "an integer of at least 1" in found["options"]["todo"]
    assert "compiler" not in found


def test_a_folder_of_others_fails(without_kernel, monkeypatch, tmp_path: Path):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    found = findings()["cache"]
    assert found["state"] == "fail"
    assert "chmod 700" in found["todo"]
    tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_written_to_warns(without_kernel, monkeypatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    result = run()
    assert result.exit_code == 0
    assert "warn  cache: " in result.stdout
    assert "every process compiles again" in result.stdout


def test_the_folder_is_counted_with_what_is_damaged(without_kernel, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    for digit in "ab":
        CacheFolder().store(digit * 64, {"kernel.so": b"x" * 2**20})
    next((tmp_path / ("a" * 64)).glob("*.so")).write_bytes(b"")
    found = findings()["cache"]
    assert found["state"] == "ok"
    assert ": 1 entry, 1.0 MiB, 1 more that are damaged" in found["found"]
    monkeypatch.setattr(doctor_module, "_MANY_BYTES", 2**19)
    assert findings()["cache"]["todo"] == "run `weft cache clear --older-than 30d`"


def test_no_room_for_temporary_files_fails(without_kernel, monkeypatch):
    monkeypatch.setattr(scratch, "ROOM_BYTES", 2**80)
    assert findings()["temporary files"]["state"] == "fail"


def test_more_threads_than_processors_and_no_brgemm_warn(without_kernel, monkeypatch):
    monkeypatch.setenv("WEFT_THREADS", str(len(os.sched_getaffinity(0)) + 1))
    monkeypatch.setenv("WEFT_BRGEMM", "off")
    found = findings()
    assert found["threads"]["state"] == "warn"
    assert found["brgemm"]["state"] == "warn"
    assert found["option brgemm"]["found"] == f"'off' ({variable_of('brgemm')})"


def test_a_pytorch_without_the_product_warns(without_kernel, monkeypatch, tmp_path: Path):
    (tmp_path / "prelude.h").write_text('f32 = (Float)dlsym(torch, "no_such_symbol");')
    monkeypatch.setattr(doctor_module, "INCLUDE_DIR", tmp_path)
    found = findings()["brgemm"]
    assert (found["state"], found["found"].rpartition(": ")[2]) == ("warn", "f32")


def test_what_cannot_be_looked_at_does_not_hide_the_rest(monkeypatch):
    def broken():
        raise KeyError("lost")

    monkeypatch.setattr(doctor_module, "_LOOKS", (("first", broken), ("GPU", doctor_module._gpu)))
    found = findings()
    assert found["first"] == {
        "name": "first", "state": "fail", "found": "KeyError: 'lost'", "todo": "report this with the whole output"
    }  # fmt: skip
    assert "GPU" in found


@pytest.mark.parametrize(
    ("target", "triton", "state", "says"),
    [
        ("cuda:90", True, "ok", "makes Triton kernels for it"),
        ("cuda:90", False, "warn", "Triton is missing"),
        ("cuda:70", True, "warn", "8.0"),
        ("hip:gfx942", True, "warn", "does not run them"),
    ],
)
def test_a_gpu_is_said_to_have_kernels_where_it_has(monkeypatch, target, triton, state, says):
    kind, _, architecture = target.partition(":")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(doctor_module, "of_device", lambda _: Target(kind, architecture))
    monkeypatch.setattr(doctor_module, "find_spec", lambda _: object() if triton else None)
    (found,) = doctor_module._gpu()
    assert (found.name, found.state) == ("GPU", state)
    assert "a GPU" in found.found
    assert says in found.found
