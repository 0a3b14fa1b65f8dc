"""weft.errors says what, where and what to do; weft.options holds and guards the options."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re
import threading
from dataclasses import fields
from pathlib import Path

import pytest

import weft
from weft import errors
from weft.errors import CompilerError, InvalidProgramError, Location, WeftError
from weft.options import Options, again, current, from_environment, options, variable_of

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WeftError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_says_what_where_and_what_to_do(kind: type[WeftError]) -> None:
    error = kind("the axis is lost")  # this line is the user's
    what, where, todo = str(error).splitlines()
    assert what == "the axis is lost"
    assert where.startswith(f"  where: {__file__}:")
    assert where.endswith("# this line is the user's")
    assert todo == f"  what to do: {kind.advice}"
    assert kind is WeftError or kind.advice != WeftError.advice
    assert kind.__doc__


def test_every_error_that_a_user_meets_is_in_one_module() -> None:
    for module in pkgutil.walk_packages(weft.__path__, "weft."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    waiting, found = [WeftError], set[type[WeftError]]()
    while waiting:
        found.add(waiting[-1])
        waiting += waiting.pop().__subclasses__()
    assert {kind for kind in found if kind.__module__.startswith("weft")} == set(ERRORS)


def test_an_error_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "guide" / "troubleshooting.md").read_text()
    assert [kind.__name__ for kind in ERRORS if kind is not WeftError and f"\n## {kind.__name__}\n" not in page] == []


def test_an_error_shows_what_it_carries() -> None:
    where = Location("net.py", 7, "return x @ w")
    error = CompilerError("no", command="c++ a.cpp", output="a.cpp:1:\nbad", where=where, todo="go")
    assert str(error).splitlines() == [
        "no",
        "  where: net.py:7: return x @ w",
        "  command: c++ a.cpp",
        "  | a.cpp:1:",
        "  | bad",
        "  what to do: go",
    ]
    text = str(InvalidProgramError("no", node="Map(i)", condition="padding holds 0"))
    assert "  node: Map(i)\n  violated: padding holds 0\n" in text


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ShapeError, RuntimeError),
        (errors.UnknownOptionError, ValueError),
        (errors.JudgementError, AssertionError),
        (errors.NoReportError, AttributeError),
    ],
)
def test_an_error_is_also_what_python_expects(kind: type, builtin: type) -> None:
    assert issubclass(kind, builtin)


def test_an_error_survives_pickling() -> None:
    error = CompilerError("no", command="c++", output="bad", where="here", todo="go")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is CompilerError
    assert str(again) == str(error)


def test_the_defaults_are_valid_and_documented() -> None:
    assert all(getattr(Options(), entry.name) == entry.default for entry in fields(Options))
    assert all(entry.metadata["doc"] for entry in fields(Options))


def test_options_nest_and_end() -> None:
    before = current()
    with options(threads=3) as outer:
        assert current() is outer
        with options(seed=5, threads=None):
            assert (current().threads, current().seed) == (None, 5)
        with pytest.raises(ZeroDivisionError), options(seed=6):
            raise ZeroDivisionError
        assert current() == before.replace(threads=3)
    assert current() == before


def test_a_scope_does_not_leak_into_another_thread() -> None:
    seen: list[int | None] = []
    with options(threads=3):
        thread = threading.Thread(target=lambda: seen.append(current().threads))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cache_dir", "a b", "a b"),
        ("compiler", "ccache g++", "ccache g++"),
        ("threads", "4", 4),
        ("verify", "always", "always"),
        ("verify_trials", "9", 9),
        ("dynamic", "No", False),
        ("seed", "0", 0),
        ("judge", "always", "always"),
        ("brgemm", "off", "off"),
        ("float32_products", "tf32", "tf32"),
        ("rounding", "running", "running"),
        ("scheme", "0x00e3 0x1:2+4~3,7@9f2c1a", "0x00e3 0x1:2+4~3,7@9f2c1a"),
        ("log", "debug", "debug"),
        ("progress", "0", False),
        ("defects", "raise", "raise"),
        ("debug_checks", "1", True),
    ],
)
def test_each_option_has_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    assert variable_of(name) == ("WEFT_CXX" if name == "compiler" else f"WEFT_{name.upper()}")
    monkeypatch.setenv(variable_of(name), text)
    assert getattr(from_environment(), name) == value
    monkeypatch.setenv(variable_of(name), "")
    monkeypatch.delenv("CXX", raising=False)
    assert getattr(from_environment(), name) == getattr(Options(), name)


def test_cxx_is_honoured_below_weft_cxx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++")
    assert from_environment().compiler == "clang++"
    monkeypatch.setenv("WEFT_CXX", "g++-12")
    assert from_environment().compiler == "g++-12"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"thread": 2}, ['no option "thread"', "did you mean threads?"]),
        ({"zzz": 2}, ['no option "zzz"', "there are: cache_dir, compiler,"]),
        ({"threads": 0}, ['"threads" cannot be 0', "an integer of at least 1, or None"]),
        ({"verify_trials": None}, ['"verify_trials" cannot be None', "an integer of at least 1"]),
        ({"seed": True}, ['"seed" cannot be True']),
        ({"dynamic": 1}, ['"dynamic" cannot be 1', "true or false"]),
        ({"log": "loud"}, ["\"log\" cannot be 'loud'", '"none" or "info" or "debug"']),
    ],
)
def test_a_wrong_option_is_refused_at_once(changes: dict[str, object], words: list[str]) -> None:
    for attempt in (options, Options().replace):
        with pytest.raises(errors.UnknownOptionError) as caught:
            attempt(**changes)
        text = str(caught.value)
        assert [word for word in [*words, __file__] if word not in text] == []


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("WEFT_THREADS", "many", ["WEFT_THREADS cannot be 'many'", "an integer of at least 1"]),
        ("WEFT_THREADS", "-1", ["WEFT_THREADS cannot be '-1'"]),
        ("WEFT_THREADS", "None", ["give it an integer of at least 1, or unset it\n"]),
        ("WEFT_TUNE_SECONDS", "none", ["give it an integer of at least 1, or unset it\n"]),
        ("WEFT_SEED", "None", ["give it an integer of at least 0\n"]),
        ("WEFT_DYNAMIC", "maybe", ["WEFT_DYNAMIC cannot be 'maybe'", "true or false"]),
        ("WEFT_VERIFY", "never", ["WEFT_VERIFY cannot be 'never'", '"always" or "cached"']),
        ("WEFT_THREDS", "2", ['no environment variable "WEFT_THREDS"', "WEFT_THREADS"]),
    ],
)
def test_a_wrong_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, words: list[str]
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(errors.UnknownOptionError) as caught:
        current()
    where = f"where: the environment variable {variable}\n"
    assert [word for word in [*words, where] if word not in f"{caught.value}\n"] == []


def test_a_path_is_text(tmp_path: Path) -> None:
    with options(cache_dir=tmp_path):
        assert current().cache_dir == str(tmp_path)


def test_the_key_holds_what_a_kernel_depends_on_and_nothing_else() -> None:
    base = Options()
    other: dict[str, object] = {
        "compiler": "g++",
        "threads": 3,
        "verify_trials": 5,
        "dynamic": False,
        "seed": 8,
        "brgemm": "off",
        "float32_products": "tf32",
        "rounding": "running",
    }
    free: dict[str, object] = {
        "cache_dir": "x",
        "verify": "always",
        "judge": "off",
        "measure": "never",
        "compile": "background",
        "effort": "full",
        "tune_seconds": 7,
        "mode": "reduce-overhead",
        "scheme": "0x00e3",
        "log": "info",
        "progress": False,
        "defects": "raise",
        "debug_checks": True,
    }
    assert set(other) | set(free) == {entry.name for entry in fields(Options)}
    assert base.replace(**free).key() == base.key()
    keys = {base.key()} | {base.replace(**{name: value}).key() for name, value in other.items()}
    assert len(keys) == 1 + len(other)


def test_work_that_was_put_off_has_the_options_of_then() -> None:
    with options(threads=3):
        chosen = current()
    with options(threads=2):
        with again(chosen):
            assert current() is chosen
        assert current().threads == 2


def test_options_are_asked_for_and_not_passed_on() -> None:
    """One way for an option to reach what depends on it: only what is put off, or done in another process, keeps them."""
    package = Path(weft.__file__).parent
    passing = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\boptions?: Options\b", path.read_text(encoding="utf-8"))
    ]
    assert sorted(passing) == ["api/background/ambience.py", "plan/measure/trial.py"]
