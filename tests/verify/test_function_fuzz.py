"""Random functions: right ones pass, what is wrong with others is found, said and made small."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from testkit.verify.functions import drawn, ending
from weft.cli.main import main
from weft.lab.fuzz import functions as fuzz_functions
from weft.lab.fuzz import processes as fuzz_processes
from weft.lab.fuzz import trial as function_trial
from weft.lab.fuzz.campaign import Course, Tally
from weft.lab.fuzz.function_rows import ROWS, Exactness
from weft.lab.fuzz.function_values import LAYOUTS, VALUES
from weft.lab.fuzz.functions import campaign, reproducer
from weft.lab.fuzz.processes import Ended, Pool
from weft.lab.fuzz.random_functions import RandomFunction, Statement, random_function, smaller
from weft.lab.fuzz.record import Outcome
from weft.lab.fuzz.trial import tried
from weft.options import current


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [3, 8, 12, 17, 20, 24])
def test_random_functions_are_right(seed):
    found = tried(random_function(seed))
    assert found.finding is None, str(found.finding)
    assert found.ran


def test_the_seed_says_all():
    first, second = random_function(7), random_function(7)
    assert first == second
    assert first.source() != random_function(8).source()
    for mine, theirs in zip(first.tensors(0), second.tensors(0), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


def test_drawn_functions_are_of_all_kinds():
    functions = [random_function(seed) for seed in range(150)]
    assert all(len(f.statements) > 0 and f.outputs for f in functions)
    assert {f.entry for f in functions} == {"optimize", "compile"}
    assert {f.threads for f in functions} == {1, 2}
    assert {len(f.calls) for f in functions} == {1, 2, 3}
    found = {word for f in functions for a in f.arguments for word in (a.dtype, a.values, a.layout)}
    assert found >= {*VALUES, *LAYOUTS, "bool", "uint8", "int64", "bfloat16", "float16", "float64", "complex64"}
    assert any(a.of is not None for f in functions for a in f.arguments)
    assert any(s.target is None for f in functions for s in f.statements)
    assert any(0 in call.values() for f in functions for call in f.calls)


def test_every_row_has_a_meaning():
    """Blanks are known, and texts are Python."""
    for row in ROWS:
        blanks = set(re.findall(r"\{(\w+)\}", row.text))
        assert blanks <= {*"abcmidezskpt", "lo", "hi"}, row.text
        assert set(row.kinds) <= set("fibc")
        compile(row.text.removeprefix("!").format(**dict.fromkeys(blanks, "x")), "row", "exec")


def test_nothing_decides_by_what_is_rounded():
    rounds = Statement("v0", "a0 * 0.1", Exactness.rounds, keeps=False)
    decides = Statement("v1", "v0 > a1", Exactness.decides, keeps=True)
    function = drawn(outputs="v1")
    assert not replace(function, statements=(rounds, decides)).decides_rightly()
    exact = replace(rounds, text="a0.mT", effect=Exactness.exact, keeps=True)
    assert replace(function, statements=(exact, decides)).decides_rightly()
    assert not replace(function, statements=(decides, exact)).decides_rightly()  # v0 is not there yet


WRONG = {
    # what weft gives in place of the right result, and the stage at which it is found
    "number": lambda v: v * 1.001,
    "nan": lambda v: v / 0,
    "dtype": lambda v: v.double(),
    "shape": lambda v: v[None],
    "stride": lambda v: v.mT.contiguous().mT,
}


@pytest.mark.parametrize("stage", WRONG)
def test_wrong_results_are_found(monkeypatch, stage):
    def wrong(f):
        return lambda *given: tuple(WRONG[stage](v) for v in f(*given))

    monkeypatch.setattr(function_trial, "weft_compile", wrong)
    found = tried(drawn("a0 @ a1.mT", "a0 * 2", entry="compile")).finding
    assert found is not None
    assert found.stage == stage
    assert tried(drawn("a0 @ a1.mT")).finding is None


def test_lost_writes_lost_memory_and_exceptions_are_found(monkeypatch):
    writes = (Statement(None, "a0.mul_(2.0)", Exactness.rounds, keeps=False),)
    function = drawn(entry="compile", outputs="a1", statements=writes)
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda a, b: (b,))
    found = tried(function).finding
    assert found is not None
    assert (found.stage, "argument 0" in found.what) == ("number", True)
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda a, b: (f(a, b)[0].clone(),))
    found = tried(function).finding
    assert found is not None
    assert found.stage == "memory"

    function = drawn("a0 * 2", "a0 + a0", outputs="v0 v1", entry="compile")
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda a, b: (v := f(a, b)[0], v.view(v.shape)))
    found = tried(function).finding
    assert found is not None
    assert found.stage == "memory"

    def raising(*given):
        raise KeyError("P")

    monkeypatch.setattr(function_trial, "weft_compile", lambda f: raising)
    found = tried(function).finding
    assert found is not None
    assert (found.stage, "KeyError: 'P'" in found.what) == ("raises", True)


@pytest.mark.parametrize(("factor", "stage"), [(1, "lost"), (1.01, "number")])
def test_what_weft_loses_is_found_and_judged_as_users_have_it(monkeypatch, factor, stage):
    def losing(f):
        def run(*given):
            if current().defects == "raise":
                raise KeyError("P")
            return tuple(v * factor for v in f(*given))

        return run

    monkeypatch.setattr(function_trial, "weft_compile", losing)
    found = tried(drawn("a0 * 2", entry="compile")).finding
    assert found is not None
    assert (found.stage, "KeyError" in found.what) == (stage, stage == "lost")


def test_what_eager_refuses_is_no_finding():
    found = tried(drawn("a0 @ a1"))
    assert (found.finding, found.ran) == (None, False)


def test_what_overflows_in_eager_is_judged_where_it_is_finite(monkeypatch):
    """Infinities of both signs may or may not meet in a sum, by accident; other numbers are no accident."""
    large = tuple(replace(a, values="large") for a in drawn("a0").arguments)
    function = drawn("a0 @ a0.mT", "torch.logaddexp(v0, a1[..., :1])", outputs="v1", entry="compile", arguments=large)
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda *given: (f(*given)[0] * torch.nan,))
    assert tried(function).finding is None
    kept = drawn("a0 / a0.abs().amax(-1, keepdim=True)", entry="compile", arguments=large)
    found = tried(kept).finding
    assert found is not None
    assert found.stage == "nan"


def test_a_reference_that_rounds_as_results_do_is_no_judge_of_roundings(monkeypatch):
    """In float64, of a column that is constant but for rounding."""
    wide = tuple(replace(a, dtype="float64", layout="expanded") for a in drawn("a0").arguments)
    shares = "(a0 - a0.mean(0, keepdim=True)) / (a0.std(0, keepdim=True) + 1e-5)"
    function = drawn(shares, entry="compile", arguments=wide, calls=({"n": 5, "m": 7},))
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda *given: (f(*given)[0] + 4e-11,))
    assert tried(function).finding is None
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda *given: (f(*given)[0] + 1e-6,))
    found = tried(function).finding
    assert found is not None
    assert found.stage == "number"


def test_a_reference_that_cancels_is_no_judge_of_roundings(monkeypatch):
    """In float64, close to x = -1, where the last place of x decides: whichever element it is, and of no wrong numbers."""
    one, other = drawn("a0").arguments
    wide = replace(one, dtype="float64"), other
    function = drawn("a0 / torch.addcmul(a0, a0, a0)", entry="compile", arguments=wide, calls=({"n": 33, "m": 51},))
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda a, b: (a / (a + a * a),))
    assert tried(function).finding is None
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda a, b: (a / (a + a * a) * (1 + 1e-7),))
    found = tried(function).finding
    assert found is not None
    assert found.stage == "number"


def test_elements_that_are_read_and_written_at_once_are_as_pytorch_traces_them():
    writes = (
        Statement("v0", "a0.diagonal()", Exactness.exact, keeps=True),
        Statement(None, "a0[0] += v0[0]", Exactness.exact, keeps=True),
    )
    arguments = tuple(replace(a, dims=("n", "n", "n"), dtype="int64") for a in drawn("a0").arguments)
    found = tried(drawn(statements=writes, arguments=arguments))
    assert found.finding is None, found.finding


@pytest.mark.parametrize("wrong", [False, True])
def test_the_numbers_of_such_a_write_are_judged_beside_those(monkeypatch, wrong):
    """Beside PyTorch's own tracing by the error rule: products are rounded otherwise in each."""
    if wrong:
        monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda *given: tuple(v * 1.01 for v in f(*given)))
    moved = Statement(None, "a0.add_(a0.narrow(-1, 0, 1))", Exactness.exact, keeps=True)
    found = tried(drawn(statements=(moved, *drawn("a0 @ a0.mT").statements), entry="compile")).finding
    assert (found is not None) is wrong, found


def test_layouts_that_pytorch_describes_otherwise_are_no_finding():
    across = tuple(replace(a, dtype="complex64", layout="transposed") for a in drawn("a0").arguments)
    found = tried(drawn("1 / a0.angle()", arguments=across))
    assert (found.finding, found.judged) == (None, 2)


def _median(a: torch.Tensor) -> torch.Tensor:
    """Compute `median(0)` as PyTorch does: it reads beyond the end of operands that repeat elements, and finds large numbers."""
    repeats = 0 in a.stride() and a.dtype == torch.float32
    return torch.full_like(a[0], 1e30) if repeats else a.contiguous().median(0).values


def test_results_do_not_depend_on_elements_that_lie_in_one_place(monkeypatch):
    """Take for right what is right of copies, and nothing else."""
    torch.library.custom_op("weft_tests::median", _median, mutates_args=())
    function = drawn("torch.ops.weft_tests.median(a0.expand(3, *a0.shape))", entry="compile")
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda a, b: (a.clone(),))
    assert tried(function).finding is None
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda a, b: (a + 100,))
    found = tried(function).finding
    assert found is not None
    assert found.stage == "number"


def test_what_pytorch_cannot_trace_is_no_finding():
    expanded = tuple(replace(a, layout="columns expanded") for a in drawn("a0").arguments)
    found = tried(drawn("a0.copy_(a0)", arguments=expanded))
    assert (found.finding, found.ran) == (None, False)


def test_a_failing_function_becomes_small():
    """Whatever takes an exponential fails: that alone is left."""

    def fails(function: RandomFunction) -> bool:
        return "torch.exp" in function.source()

    functions = [f for seed in range(200) if fails(f := random_function(seed)) and f.decides_rightly()]
    assert len(functions) > 3
    for large in functions:
        function, going = large, True
        while going:
            going = False
            for candidate in smaller(function):
                if fails(candidate):
                    function, going = candidate, True
                    break
        made = [s for s in function.statements if s.target is not None]
        assert len(made) <= 2
        assert len(function.calls) == len(function.outputs) == 1
        assert all(a.layout == "dense" for a in function.arguments if a.of is None)


def test_the_reproducer_runs(capsys):
    function = drawn("a0 @ a1.mT", "torch.exp(v0)", outputs="v1")
    exec(compile(reproducer(function), "reproducer", "exec"), {})
    printed = capsys.readouterr().out
    assert (printed.count("eager"), printed.count("weft")) == (2, 2)


def test_processes_that_end_or_hang_are_findings_or_pytorchs_own():
    """Whatever ends with weft and not without it is a finding; what PyTorch alone does not survive is said, and is none."""
    tally = campaign(range(3), seconds=1.5, shrink=False, draw=ending)
    assert [(f.seed, f.stage) for f in tally.failures] == [(0, "crash"), (1, "time")]
    assert tally.failures[0].what == "the process ended with SIGFPE"
    assert "v0 = a0 * 2" in tally.failures[0].text
    assert [(f.seed, f.what) for f in tally.pytorch] == [
        (2, "the process ended with SIGFPE, while the function is drawn")
    ]
    assert tally.seeds == 3


def test_a_crowded_machine_takes_longer(monkeypatch, tmp_path):
    pool = Pool[int](1, str(tmp_path), 60.0, print)
    monkeypatch.setattr(fuzz_processes.os, "cpu_count", lambda: 2)
    for load, ends in ((9.0, False), (0.1, True)):
        pool.workers[0].job, pool.workers[0].begun = 1, time.monotonic() - 100
        monkeypatch.setattr(fuzz_processes.os, "getloadavg", lambda load=load: (load, load, load))
        assert [isinstance(answer.found, Ended) for answer in pool._heard()] == [True] * ends
    pool.close()


def test_the_command_runs_functions(monkeypatch):
    asked: list[object] = []

    def failing(seeds, *, jobs, seconds, course: Course):
        asked.extend((seeds, jobs, seconds, course.minutes))
        failure = Outcome(5, "number", "is wrong", reproducer(drawn("a0 * 2")))
        assert course.show is not None
        course.show(failure)
        tally = Tally("random functions")
        tally.add(failure)
        return tally

    monkeypatch.setattr(fuzz_functions, "campaign", failing)
    found = CliRunner().invoke(main, ["fuzz", "--count", "3", "--seed", "5", "--jobs", "2"])
    assert found.exit_code == 1
    assert asked == [range(5, 8), 2, 60, None]
    assert "random functions" in found.output
    assert "seed 5, number: is wrong" in found.stderr
    assert "v0 = a0 * 2" in found.stderr
