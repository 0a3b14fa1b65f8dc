"""What the tests stand on: which cases a run takes, and programs in processes of their own."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Sequence

import pytest

from testkit.processes import running
from testkit.processes.running import ran
from testkit.walk import spread


@pytest.mark.parametrize("sizes", [(2, 3), (8, 2, 2), (2, 8, 3), (5, 5), (1, 7)])
@pytest.mark.parametrize("one_in", [2, 3, 4])
def test_a_share_of_cases_has_every_value_of_each_parameter(sizes: Sequence[int], one_in: int) -> None:
    """Every so many-th has not: of two values that alternate, every second case has one."""
    cases = [dict(zip("abc", values, strict=False)) for values in itertools.product(*map(range, sizes))]
    kept = spread(cases, one_in)
    assert len(set(kept)) == len(kept) == -(-len(cases) // one_in)
    assert kept == sorted(kept)
    for place, size in enumerate(sizes):
        assert len({cases[each]["abc"[place]] for each in kept}) == min(size, len(kept))


def test_of_cases_that_are_all_alike_it_is_every_nth() -> None:
    assert spread([{"a": number} for number in range(10)], 4) == [0, 4, 8]
    assert spread([], 4) == []


@pytest.fixture(params=["fork", "new"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either way to run a program."""
    monkeypatch.setattr(running, "WALK_ALL", request.param == "new")
    return request.param


def test_a_program_has_what_it_was_given_and_gives_what_it_said(way: str, tmp_path) -> None:
    program = """if True:
        import atexit, os, sys, __main__
        value = 3
        atexit.register(lambda: print("at the end", __main__.value))
        print(sys.argv[1:], os.environ["OF_A_TEST"], "PATH" in os.environ, os.getcwd())
        print("wrong", file=sys.stderr)
        print(sys.stdin.read() == "")
        sys.exit(3)
    """
    (tmp_path / "module.py").write_text(program)
    given = {"OF_A_TEST": "1", "PYTHONPATH": str(tmp_path)}
    for name in (["-c", program], ["-m", "module"], [str(tmp_path / "module.py")]):
        done = ran([*name, "a", "b c"], given, folder=tmp_path, status=3)
        said = done.stdout.splitlines()
        assert said == [f"['a', 'b c'] 1 False {tmp_path}", "True", "at the end 3"]
        assert done.stderr == "wrong\n"
    assert "OF_A_TEST" not in os.environ


def test_a_program_that_fails_hangs_or_is_killed_is_said(way: str) -> None:
    with pytest.raises(AssertionError, match="ended with 1") as error:
        ran(["-c", "print('before'); 1 / 0"])
    assert "before" in str(error.value)
    assert "ZeroDivisionError" in str(error.value)
    assert ran(["-c", "import os; os.kill(os.getpid(), 9)"], status=None).returncode == -9
    with pytest.raises(subprocess.TimeoutExpired):
        ran(["-c", "import time; time.sleep(100)"], timeout=0.5)


def test_programs_share_nothing(way: str) -> None:
    ran(["-c", "import weft; weft.of_a_test = 1"])
    assert ran(["-c", "import weft; print(hasattr(weft, 'of_a_test'))"]).stdout == "False\n"
    assert ran(["-W", "error", "-c", "import warnings; warnings.warn('a')"], status=1).stderr.endswith(
        "UserWarning: a\n"
    )
