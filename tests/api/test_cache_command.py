"""`weft cache`: shows what is there, and removes nothing that is not weft's."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import weft
from weft.cli.main import main
from weft.plan import Measured
from weft.plan.measure.clock import Timing
from weft.run.cache import CacheFolder, Json
from weft.run.key import cache_key, environment_parts

DAY = 24 * 3600.0
OTHER = "0" * 64


@pytest.fixture(scope="module")
def kernel() -> tuple[str, dict[str, bytes], CacheFolder]:
    """A real kernel: its key and files, and the folder that it lies in."""
    folder = CacheFolder()
    with weft.options(cache_dir=str(folder.path)):
        key = weft.optimize(lambda x, w: torch.relu(x @ w) * 7, (torch.randn(4, 6), torch.randn(6, 5))).kernels[0].key
    entry = folder.lookup(key)
    assert entry is not None
    return key, {name: path.read_bytes() for name, path in entry.files.items()}, folder


@pytest.fixture
def folder(kernel, tmp_path: Path, monkeypatch) -> Path:
    """A folder with that kernel, a measurement of another source, and things of the user's."""
    key, files, of = kernel
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    known = of.lookup(key)
    made = CacheFolder()
    made.store(key, files, known.meta, parts=known.parts)
    made.store(OTHER, {}, {"weft": 0.5, "eager": 1.0}, parts={"trial": "weft against PyTorch", "weft": "older"})
    (made.path / "notes.txt").write_text("mine")
    (made.path / ("f" * 64)).mkdir()
    (made.path / ("f" * 64) / "photo.jpg").write_text("mine too")
    return made.path


def run(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, ["cache", *map(str, arguments)], input=answer)


def test_path_is_the_folder_in_force(folder):
    assert run("path").stdout == f"{folder}\n"


def test_list_names_each_entry(folder, kernel):
    found = json.loads(run("list", "--json").stdout)
    assert [row["key"] for row in found] == sorted([kernel[0], OTHER])
    rows = {row["key"]: row for row in found}
    assert rows[kernel[0]]["name"].startswith("weft_")
    assert rows[kernel[0]]["bytes"] == sum(map(len, kernel[1].values()))
    assert "contract" in rows[kernel[0]]["program"] or "dot" in rows[kernel[0]]["program"]
    assert rows[OTHER]["name"] == "measurement"
    assert all(row["written"] and row["used"] for row in found)
    table = run("list").stdout
    assert kernel[0][:12] in table
    assert f"2 entries in {folder}" in table


def test_list_says_when_an_entry_was_used(folder, kernel):
    manifest = folder / kernel[0] / "manifest.json"
    os.utime(manifest, (0, 0))
    assert next(r for r in json.loads(run("list", "--json").stdout) if r["key"] == kernel[0])["used"][:4] == "1970"
    CacheFolder(folder).lookup(kernel[0])
    assert next(r for r in json.loads(run("list", "--json").stdout) if r["key"] == kernel[0])["used"][:4] > "1970"


def test_show_prints_verdict_parts_and_source(folder, kernel):
    shown = run("show", kernel[0][:16]).stdout
    assert "verdict: equal" in shown
    assert kernel[1]["kernel.cpp"].decode().strip() in shown
    for title in ("== program", "== schedule", "== compiler", "torch: "):
        assert title in shown
    assert "== source" not in run("show", kernel[0], "--no-source").stdout
    assert "eager: 1.0" in run("show", OTHER[:20]).stdout


@pytest.mark.parametrize(
    ("start", "says"),
    [("", "there is no entry"), ("../x", "there is no entry"), ("9" * 64, "`weft cache list`")],
)
def test_show_refuses_what_is_no_entry(folder, start, says):
    result = run("show", start)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "what to do:" in result.stderr


def test_show_refuses_an_ambiguous_or_damaged_key(folder):
    CacheFolder(folder).store("0" * 63 + "1", {})
    start = OTHER[:20]  # with which no kernel's key begins
    assert f"2 entries begin with '{start}'" in run("show", start).stderr
    (folder / OTHER / "manifest.json").write_text("{}")
    assert "is damaged: manifest.json is not what was written" in run("show", OTHER).stderr


def test_clear_asks_and_removes_only_what_is_weft_s(folder):
    refused = run("clear", answer="n\n")
    assert refused.exit_code == 1
    assert len(list(CacheFolder(folder).entries())) == 2
    result = run("clear", answer="y\n")
    assert result.exit_code == 0
    assert "removed 2 of 3 entries" in result.stdout
    assert "files that weft did not write" in result.stdout
    assert sorted(p.name for p in folder.rglob("*") if p.name[0] != ".") == ["f" * 64, "notes.txt", "photo.jpg"]


def test_clear_by_age_keeps_what_was_used(folder, kernel):
    then = time.time() - 31 * DAY
    os.utime(folder / OTHER / "manifest.json", (then, then))
    assert "removed 0" not in run("clear", "--older-than", "30d", "--yes").stdout
    assert [entry.key for entry in CacheFolder(folder).entries()] == [kernel[0]]
    (folder / ("f" * 64) / "photo.jpg").unlink()
    (folder / ("f" * 64)).rmdir()
    assert "nothing to remove" in run("clear", "--older-than", "4w", "--yes").stdout


def test_clear_forgets_measurements_alone(folder, kernel):
    assert run("clear", "--measurements", "--yes").stdout == f"removed 1 of 1 entry of {folder}\n"
    assert [entry.key for entry in CacheFolder(folder).entries()] == [kernel[0]]
    assert "nothing to remove" in run("clear", "--measurements", "--yes").stdout


def test_show_says_what_is_in_doubt_about_a_measurement(folder):
    measured = Measured(Timing(0.0597, 0.8), Timing(0.01075, 0.1), load=2.0, cores=64)
    CacheFolder(folder).store(OTHER, {}, measured.written(), parts={"trial": "weft against PyTorch"})
    shown = run("show", OTHER).stdout
    assert "PyTorch runs: weft 59.7 ms ± 80%, PyTorch 10.75 ms ± 10%" in shown
    assert "other processes kept the machine busy; the next process measures again" in shown


@pytest.mark.parametrize("age", ["soon", "30", "-3d", "9" * 30 + "w"])
def test_clear_refuses_what_is_no_age(folder, age):
    result = run("clear", f"--older-than={age}", "--yes")
    assert result.exit_code == 2
    assert "--older-than" in result.stderr
    assert len(list(CacheFolder(folder).entries())) == 2


def test_verify_checks_every_byte(folder, kernel):
    (folder / ("f" * 64) / "photo.jpg").unlink()
    (folder / ("f" * 64)).rmdir()
    assert run("verify").exit_code == 0
    [library] = (folder / kernel[0]).glob("*.so")
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)
    result = run("verify")
    assert result.exit_code == 1
    assert f"{kernel[0]}: kernel.so is not what was written\n1 whole, 1 damaged" in result.stdout


def test_stats_counts_by_kind_and_source(folder):
    found = json.loads(run("stats", "--json").stdout)
    assert [found[k] for k in ("path", "kernels", "measurements", "damaged", "of other sources")] == [
        str(folder), 1, 1, 1, 1
    ]  # fmt: skip
    assert found["bytes"] == CacheFolder(folder).size()
    assert "measurements: 1\n" in run("stats").stdout


def test_kernels_for_gpus_and_their_binaries(folder):
    kernel: dict[str, Json] = {"signature": {"kernel": {"name": "twice"}}, "meta": {}}
    CacheFolder(folder).store("a" * 64, {"kernel.py": b"import triton"}, kernel, parts={"program": "2 x"})
    files = {"kernel.cubin": b"\x7fELF", "kernel.ptx": b".visible .entry twice()"}
    parts = {"class": "*fp32:16 i32"}
    made: dict[str, Json] = {"assembled": {"name": "twice", "target": "cuda:90"}}
    CacheFolder(folder).store("b" * 64, files, made, parts=parts)
    found = {row["key"]: (row["name"], row["program"]) for row in json.loads(run("list", "--json").stdout)}
    text, binary = "a" * 64, "b" * 64
    assert (found[text], found[binary]) == (("twice", "2 x"), ("twice, cuda:90", "*fp32:16 i32"))
    assert "== source\nimport triton\n" in run("show", text).stdout
    assert "== assembly\n.visible .entry twice()\n" in run("show", binary).stdout
    assert "== assembly" not in run("show", binary, "--no-source").stdout
    counts = json.loads(run("stats", "--json").stdout)
    assert (counts["kernels"], counts["binaries for GPUs"], counts["measurements"]) == (2, 1, 1)


@pytest.mark.parametrize("command", [("path",), ("list",), ("clear", "--yes"), ("verify",), ("stats",), ("show", "a")])
def test_a_folder_of_others_is_refused(folder, command):
    folder.chmod(0o770)
    result = run(*command)
    assert result.exit_code == 2
    assert "chmod 700" in result.stderr
    assert "Traceback" not in result.output


def test_export_and_import_carry_entries(folder, kernel, tmp_path, monkeypatch):
    key, files, _ = kernel
    tmp_path.chmod(0o700)
    made = run("export", tmp_path / "saved")
    assert f"exported 2 entries of {folder} to" in made.stdout
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "other"))
    found = run("import", tmp_path / "saved")
    assert found.exit_code == 0
    assert "imported 1 entry into" in found.stdout  # the other's key is not that of what it was made of
    assert "passed over: 1 entry" in found.stdout
    assert "not be found" not in found.stdout
    arrived = CacheFolder().lookup(key)
    assert arrived is not None
    assert {name: path.read_bytes() for name, path in arrived.files.items()} == files
    assert "0 entries into" in run("import", tmp_path / "saved").stdout


def test_export_takes_the_entries_that_are_named_or_were_used(folder, kernel, tmp_path):
    key = kernel[0]
    assert "exported 1 entry" in run("export", tmp_path / "one", key[:10]).stdout
    assert run("export", tmp_path / "none", "abc").exit_code == 2
    os.utime(folder / key / "manifest.json", (0, 0))
    assert "exported 1 entry" in run("export", tmp_path / "new", "--used-since", "12h").stdout
    assert "exported 0 entries" in run("export", tmp_path / "old", key, "--used-since", "12h").stdout
    assert "--used-since" in run("export", tmp_path / "bad", "--used-since", "soon").stderr


def test_import_names_what_does_not_fit_this_machine(folder, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    here = environment_parts()
    for changed in ({"weft": "older"}, {"machine": "another", "torch": "1.0"}, {}):
        parts = {**here, **changed, "program": "p"}
        CacheFolder().store(cache_key(parts), {}, parts=parts)
    run("export", tmp_path / "saved")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "other"))
    said = run("import", tmp_path / "saved").stdout
    assert (
        "2 entries will not be found here: another processor, another version of PyTorch, another version of weft"
        in said
    )


def test_import_refuses_what_others_may_have_written(folder, tmp_path, monkeypatch):
    run("export", tmp_path / "saved")
    (tmp_path / "saved").chmod(0o666)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "other"))
    refused = run("import", tmp_path / "saved")
    assert refused.exit_code == 2
    assert "can be written to by others" in refused.stderr
    assert not (tmp_path / "other").exists() or not list(CacheFolder().entries())
    assert "imported 1 entry" in run("import", "--trust", tmp_path / "saved").stdout


def test_a_file_without_its_end_is_said_to_be_so(folder, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    run("export", tmp_path / "saved")
    data = (tmp_path / "saved").read_bytes()
    (tmp_path / "saved").write_bytes(data[:-5])
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "other"))
    assert "the file's end is missing" in run("import", tmp_path / "saved").stdout


def test_an_unwritable_place_is_said(folder, tmp_path):
    assert run("export", tmp_path / "no" / "saved").exit_code == 2
    assert run("export", tmp_path).exit_code == 2
    assert run("import", tmp_path / "none").exit_code == 2
