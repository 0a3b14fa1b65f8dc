"""The command line: the demonstration is honest, explain says all, and errors say what to do."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import cast

import click
import pytest
import torch
from click.testing import CliRunner, Result

import weft
from weft.api.files import demand_writable, write_json
from weft.cli import bench
from weft.cli import explain as explain_command
from weft.cli.command import NewFile
from weft.cli.main import main
from weft.cost import chip
from weft.cost.chip_file import Origin, chip_json
from weft.lab import demo, examples, measure
from weft.lab.workloads import cpu as workloads
from weft.tensor.dtypes import DType
from weft.verify.judge import IndexGap

USER_FILE = """
    import torch


    def layer(x, w, b):
        return torch.relu(x @ w + b)


    def scaled(x):
        return torch.relu(x.float()) * 2


    def layer_inputs():
        return torch.randn(4, 8), torch.randn(8, 6), torch.randn(6)


    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.inner(x)


    class Sized(torch.nn.Module):
        def __init__(self, size):
            super().__init__()


    def make():
        return Linear()


    def ordered(x):
        return x.sort()[0]


    def broken(x):
        return x.nothing


    NUMBER = 3
    relu = torch.relu
    ordered_inputs = 3
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # explain adds the file's folder


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "layers.py"
    path.write_text(textwrap.dedent(USER_FILE))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "demo.json"
    result = CliRunner().invoke(main, ["demo", "--quick", "--json", str(out)])
    assert result.exit_code == 0, result.output
    return result.output, json.loads(out.read_text())


def test_demo_fuses_all_four_functions_and_judges_them_right(quick):
    _, written = quick
    found = {(r["function"], r["dtype"]): r for r in written["results"]}
    expected = dict(zip((e.title for e in examples.EXAMPLES), (1, 1, 1, 2), strict=True))
    assert {key: r["kernels"] for key, r in found.items()} == {
        (title, dtype): count for title, count in expected.items() for dtype in ("float32", "bfloat16")
    }
    for result in found.values():
        assert result["right"]
        assert result["equal"]
        assert result["agrees"]
        # A maximum and sums of exponentials have no number, products and sums do.
        number = result["error_probability"]
        assert number is None or 0 < number < 1e-9
        assert result["rewrites"]["fuse_map_with_reduction"] >= 1
        assert set(result["times"]) == {"eager", "weft", "weft kernels"}
        assert result["runs"] in {"weft", "weft with library matmuls", "PyTorch"}
        assert all(t["median_ms"] >= t["best_ms"] > 0 for t in result["times"].values())
        assert 0 < result["errors"]["weft"]["error"] <= result["errors"]["weft"]["allowed"]
    assert written["setting"]["torch"] == torch.__version__


def test_demo_prints_the_fused_program_the_verdict_and_both_tables(quick):
    output = quick[0].partition("relu(x @ w + b)")[2]  # after the derivation
    assert output.count("t3 += dot(t1,t2)") == 1  # the first function's listing, in the first dtype only
    assert output.count("over finite fields: equal") == 8
    assert output.count("1 kernel; rewrites: ") == 6
    assert output.count("fuse_consecutive_maps ") == 8
    assert "time, ms" in output
    assert "error: largest" in output


def test_demo_fails_where_a_result_is_wrong(monkeypatch):
    def without_bias(fn, inputs):
        return weft.optimize(lambda x, w, b: torch.relu(x @ w), inputs)

    monkeypatch.setattr(examples, "EXAMPLES", examples.EXAMPLES[:1])
    monkeypatch.setattr(demo, "optimize", without_bias)
    result = run("demo", "--quick")
    assert result.exit_code == 1
    assert "relu(x @ w + b) in float32 is not right: weft kernels: error" in result.stderr
    assert "NO" in result.stdout


@pytest.mark.parametrize(
    ("fn", "verdict"),
    [
        (lambda x: torch.sort(x)[0], "NOT what was written"),  # there is no kernel of which it could be shown
        (lambda x: torch.relu(torch.sort(x)[0]), "over finite fields: equal"),
    ],
)
def test_demo_fails_where_pytorch_runs_a_part(monkeypatch, fn, verdict):
    one = examples.ExampleFunction("sorted", lambda _: fn, lambda _: (examples.OperandSpec((4, 6)),))
    monkeypatch.setattr(examples, "EXAMPLES", (one,))
    result = run("demo", "--quick")
    assert result.exit_code == 1
    assert verdict in result.stdout
    assert "left to PyTorch: aten.sort" in result.stderr


BLOCKBUSTER = (workloads.ATTENTION, workloads.LAYERNORM, workloads.RMSNORM)


def test_bench_times_and_judges_the_papers_functions_beside_their_peers(monkeypatch, tmp_path):
    monkeypatch.setattr(workloads, "SUITE", BLOCKBUSTER)
    monkeypatch.setattr(demo, "DTYPES", (torch.float32,))
    out = tmp_path / "bench.json"
    result = run("bench", "--quick", "--json", out)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())["results"]
    assert [(r["function"], r["size"]) for r in found] == [
        ("attention", "1x2x256x64"), ("LayerNorm + matmul", "32x64x48"), ("RMSNorm + SwiGLU", "32x64x48")
    ]  # fmt: skip
    own = ["weft", "weft kernels"]
    assert [list(r["times"]) for r in found] == [["eager", "SDPA", *own], ["eager", *own], ["eager", *own]]
    assert 0 < found[0]["errors"]["SDPA"]["error"] <= found[0]["errors"]["SDPA"]["allowed"]
    assert all(most >= r["kernels"] > 0 for r, most in zip(found, (1, 2, 2), strict=True))
    assert "weft / best peer over 3 rows: geometric mean" in result.output


def test_bench_resumes_after_the_rows_that_its_file_has(monkeypatch, tmp_path):
    monkeypatch.setattr(workloads, "SUITE", BLOCKBUSTER)
    monkeypatch.setattr(demo, "DTYPES", (torch.float32,))
    out = tmp_path / "bench.json"
    run("bench", "--quick", "--only", "layernorm", "--json", out)
    first = json.loads(out.read_text())["results"]
    assert [r["function"] for r in first] == ["LayerNorm + matmul"]
    result = run("bench", "--quick", "--only", "norm", "--resume", "--json", out)
    assert result.exit_code == 0, result.output
    both = json.loads(out.read_text())["results"]
    assert both[:1] == first
    assert [r["function"] for r in both[1:]] == ["RMSNorm + SwiGLU"]
    assert result.stdout.count("measured ") == 1


def test_bench_lists_what_is_left_to_pytorch_and_fails_only_where_a_result_is_wrong(monkeypatch):
    one = examples.ExampleFunction(
        "sorted", lambda _: lambda x: torch.relu(torch.sort(x)[0]), lambda _: (examples.OperandSpec((4, 6)),)
    )
    monkeypatch.setattr(workloads, "SUITE", (one,))
    monkeypatch.setattr(demo, "DTYPES", (torch.float32,))
    result = run("bench", "--quick")
    assert result.exit_code == 0, result.output
    assert "left to PyTorch in sorted" in result.stdout
    monkeypatch.setattr(demo, "optimize", lambda fn, inputs: weft.optimize(lambda x: torch.sort(x)[0], inputs))
    result = run("bench", "--quick")
    assert result.exit_code == 1
    assert "sorted in float32 is not right: weft kernels: error" in result.stderr
    monkeypatch.undo()
    monkeypatch.setattr(workloads, "SUITE", (one,))
    monkeypatch.setattr(demo, "DTYPES", (torch.float32,))
    monkeypatch.setattr(demo, "compiled_by_weft", lambda fn: lambda x: torch.sort(x)[0])
    result = run("bench", "--quick")
    assert result.exit_code == 1
    assert "sorted in float32 is not right: weft: error" in result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--only", "nothing"), "no function's name contains nothing"),
        (("--resume",), "--json"),
        (("--resume", "--json", "FILE"), "does not hold results"),
    ],
)
def test_bench_says_what_it_cannot_do(options, says, tmp_path):
    other = tmp_path / "other.json"
    other.write_text("[]")
    result = run("bench", "--quick", *(other if o == "FILE" else o for o in options))
    assert result.exit_code == 2
    assert says in result.stderr
    assert "what to do" in result.stderr


def test_examples_have_new_operands_for_each_number_and_products_of_variance_1():
    for example in workloads.SUITE:
        one, other = (example.inputs(example.quick, torch.float32, number) for number in (1, 2))
        assert all(not torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for example in (*examples.EXAMPLES[:3], workloads.RMSNORM):
        x, *weights = example.inputs((64, 512, 512), torch.float32, 1)
        assert all(abs((x @ w).std() - 1) < 0.1 for w in weights if w.ndim == 2)


def test_experts_that_nearly_tie_may_change_places():
    route = next(e for e in workloads.SUITE if e.title == "routing to experts (R1)")
    x, w = route.inputs((64, 32, 16), torch.float32, 0)
    w[:, 1] = w[:, 0]  # experts 0 and 1 tie in every row
    assert route.gaps is not None
    _, gap = cast("tuple[None, IndexGap]", route.gaps(x, w))
    shares, experts = workloads.route(x, w)
    swapped = torch.where(experts < 2, 1 - experts, experts)
    exact = workloads.route(x.double(), w.double())
    tied = (experts == 0) | (experts == 1)
    assert (gap.gap[tied] <= gap.bound).any()
    assert weft.judge((shares, swapped), (shares, experts), exact, gaps=(None, gap)).ok
    assert not weft.judge((shares, experts.flip(-1)), (shares, experts), exact, gaps=(None, gap)).ok


def test_python_m_weft_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["weft", "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("weft", run_name="__main__")
    assert left.value.code == 0
    assert "Usage: weft" in capsys.readouterr().out


def test_a_missing_compiler_is_said_before_anything_runs():
    with weft.options(compiler="no-such-compiler"):
        result = run("demo", "--quick")
    assert result.exit_code == 2
    assert "no-such-compiler" in result.stderr
    assert "what to do" in result.stderr
    assert "where" not in result.stderr  # no line of the user's is to blame
    assert "fused" not in result.stdout


def test_explain_prints_every_section(file):
    result = run("explain", f"{file}:layer", "--shapes", "4x8,8x6,6")
    assert result.exit_code == 0, result.output
    for title in ("captured program", "rewrites", "block program after fusion", "schedule", "fallbacks to PyTorch"):
        assert f"== {title}" in result.stdout
    assert "verdict: equal" in result.stdout


def test_explain_for_a_gpu_that_is_not_here(file):
    result = run("explain", f"{file}:layer", "--shapes", "32x64,64x48,48", "--target", "cuda:90")
    assert result.exit_code == 0
    assert "target cuda:90" in result.stdout or "grid" in result.stdout
    refused = run("explain", f"{file}:layer", "--target", "cude:90")
    assert refused.exit_code == 2
    assert 'did you mean "cuda:90"?' in refused.stderr
    assert "Traceback" not in refused.output


def test_explain_for_a_chip(file, tmp_path):
    shapes = ("--shapes", "32x64,64x48,48", "--target", "cuda:90")
    named = run("explain", f"{file}:layer", *shapes, "--chip", "A100 SXM")
    assert "on A100 SXM\n" in named.stdout
    written = tmp_path / "here.json"
    measured = replace(chip("A100 SXM"), name="A100 here")
    written.write_text(json.dumps(chip_json(measured, {}, Origin("published"), date="2026-01-01", machine="a rack")))
    assert "on A100 here\n" in run("explain", f"{file}:layer", *shapes, "--chip", written).stdout
    refused = run("explain", f"{file}:layer", *shapes, "--chip", "A1")
    assert refused.exit_code == 2
    assert "no chip 'A1'" in refused.stderr
    assert "A100 SXM" in refused.stderr


def test_explain_takes_inputs_from_the_file_and_casts_them(file):
    assert "x: float32" in run("explain", f"{file}:layer").stdout
    assert "x: bfloat16" in run("explain", f"{file}:layer", "--dtype", "bfloat16").stdout


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, kind.name) for name in ("layer",) for kind in (DType.float64, DType.float16)),
        *(("scaled", kind.name) for kind in (DType.int64, DType.uint8, DType.bool, DType.float8_e5m2)),
    ],
)
def test_explain_takes_every_type_that_weft_compiles(file, name, dtype):
    shapes = "4x8,8x6,6" if name == "layer" else "4x8"
    result = run("explain", f"{file}:{name}", "--shapes", shapes, "--dtype", dtype)
    assert result.exit_code == 0, result.output
    assert f"x: {dtype}" in result.stdout
    assert "verdict: equal" in result.stdout


def test_explain_knows_the_types_that_weft_knows():
    [option] = [o for o in explain_command.explain.params if o.name == "dtype"]
    assert list(cast("click.Choice[str]", option.type).choices) == [k.name for k in DType if not k.is_foreign]


@pytest.mark.parametrize("name", ["Linear", "make"])
def test_explain_makes_the_module_and_saves_the_report(file, name, tmp_path):
    page = tmp_path / "report.html"
    result = run("explain", f"{file}:{name}", "--shapes", "5x8", "--dtype", "bfloat16", "--save", page)
    assert result.exit_code == 0, result.output
    assert "inner_weight: bfloat16" in result.stdout
    assert "<html " in page.read_text()
    assert f"written to {page}" in result.stdout


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("layr", (), ("has no 'layr'", "did you mean layer?")),
        ("NUMBER", (), ("of type int", "torch.nn.Module")),
        ("relu", (), ("not written in Python", "a function that calls it")),
        ("Sized", (), ("takes size", "without parameters")),
        ("broken", (), ("it takes x", "--shapes")),
        ("broken", ("--shapes", "4"), ("AttributeError", "layers.py:40: return x.nothing")),
        ("ordered", (), ("ordered_inputs is or returns a int", "tuple of the arguments")),
        ("layer", ("--shapes", "4x8,8x6"), ("--shapes gives 2 shapes", "x, w, b")),
        ("layer", ("--shapes", "4x8,8by6,6"), ("'8by6' is not a shape", "512x1024")),
        ("layer", ("--shapes", "4x8,9x6,6"), ("cannot be multiplied (4x8 and 9x6)", "layers.py:6: return torch.relu")),
    ],
)
def test_explain_says_what_is_wrong_and_what_to_do(file, name, options, says):
    result = run("explain", f"{file}:{name}", *options)
    assert result.exit_code == 2
    assert all(text in result.stderr for text in (*says, "where:", "what to do:")), result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/no/such/folder/a.html", "there is no folder /no/such/folder"),
        ("/proc/a.html", "/proc/a.html cannot be written"),
        ("/proc", "/proc is a folder, not a file"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [("explain", "layers.py:layer", "--save"), ("demo", "--quick", "--json"), ("bench", "--quick", "--json")],
    ids=" ".join,
)
def test_files_to_be_written_are_tried_before_any_work(monkeypatch, command, path, says):
    for module, name in ((bench, "settle"), (bench, "find_compiler"), (bench, "_study"), (explain_command, "_load")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("work was done"))
    result = run(*command, path)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert f"where: {command[-1]}" in result.stderr
    assert "what to do: " in result.stderr


def test_the_help_imports_no_command():
    """`weft --help` prints a line for each command, and imports none of them, nor the tracer, which took two seconds."""
    code = "import sys; from weft.cli.main import main; main(['--help'], standalone_mode=False); print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, modules = done.stdout.split("Commands:\n")[1], done.stdout.splitlines()
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert f"  {name} " in told
    assert "weft.cli.main" in modules
    assert not {"weft.cli.bench", "weft.cli.doctor", "torch._dynamo"} & set(modules)


def test_a_command_that_is_misspelt_is_told_what_was_meant():
    assert "Did you mean 'bench'?" in run("benc").output
    assert "No such command 'nosuch'" in run("nosuch").output


def test_every_option_that_names_a_file_is_tried_first():
    context = click.Context(main)
    commands = [main.get_command(context, name) for name in main.list_commands(context)]
    options = [o for command in commands if command for o in command.params if isinstance(o, click.Option)]
    assert [o.name for o in options if isinstance(o.type, click.Path | click.File)] == []
    assert len([o for o in options if isinstance(o.type, NewFile)]) == 5


def test_a_file_that_is_tried_stays_as_it_is(tmp_path):
    there, gone = tmp_path / "there.json", tmp_path / "gone.json"
    there.write_text("old")
    for path in (there, gone):
        demand_writable(path)
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]
    assert there.read_text() == "old"


def test_a_pipe_is_written_to(tmp_path):
    read, write = os.pipe()
    write_json(Path(f"/dev/fd/{write}"), {"a": 1})
    os.close(write)
    with os.fdopen(read) as pipe:
        assert json.load(pipe) == {"a": 1}


@pytest.mark.parametrize(("text", "line"), [("def f(:\n", 1), ("import torch\n\nf = 1 / 0\n", 3)])
def test_explain_names_the_line_of_a_file_that_cannot_be_imported(tmp_path, text, line):
    path = tmp_path / "bad.py"
    path.write_text(text)
    result = run("explain", f"{path}:f")
    assert result.exit_code == 2
    assert f"bad.py:{line}: " in result.stderr


@pytest.mark.parametrize("target", ["layers.py", "no_such_file.py:layer", "layers.py:1f"])
def test_explain_refuses_a_target_that_is_not_there(target):
    result = run("explain", target)
    assert result.exit_code == 2
    assert "FILE.py:NAME" in result.stderr


def test_debug_lets_the_exception_through(file):
    result = run("explain", f"{file}:layr", "--debug")
    assert isinstance(result.exception, weft.errors.WeftError)


def test_compare_alternates_and_times_only_the_second_call(monkeypatch):
    clock = [0.0]
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])

    def candidate(name: str, seconds: float):
        def call(number: int) -> None:
            again = bool(calls) and calls[-1] == (name, number)
            slow = 9.0 if again and number == 1 else seconds  # one outlier among the three rounds
            clock[0] += slow if again else 100.0
            calls.append((name, number))

        return call

    times = measure.compare({"a": candidate("a", 2.0), "b": candidate("b", 3.0)}, lambda i: (i,), rounds=3, pool=3)
    assert times["a"] == measure.PeerTiming(median_ms=2000.0, best_ms=2000.0, rounds=3)
    assert times["b"].median_ms == 3000.0
    timed = calls[6:]  # after the round of the pool that warms up
    assert [name for name, _ in timed] == [*"aabb", *"bbaa", *"aabb"]
    assert [number for _, number in timed] == [0] * 4 + [1] * 4 + [2] * 4
    clock[0] = 0.0
    assert measure.compare({"b": candidate("b", 3.0)}, lambda i: (i,), rounds=50, pool=1, seconds=9.0)["b"].rounds == 10
