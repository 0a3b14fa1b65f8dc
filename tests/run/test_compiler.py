"""Finding the compiler, running it, and what it says when it cannot."""

from __future__ import annotations

import ctypes
import platform
import time
from pathlib import Path

import pytest
import torch

from weft.errors import CompilerError
from weft.options import options
from weft.run import scratch
from weft.run.compiler import Compiler, compile_shared_library, find_compiler, flags

pytestmark = pytest.mark.as_shipped

GOOD = 'extern "C" int seven() { return 7; }'


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _no_compiler_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("WEFT_CXX", raising=False)


def test_no_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerError) as error:
        find_compiler()
    assert "c++, g++, clang++" in error.value.what
    assert "apt install g++" in error.value.todo
    assert "WEFT_CXX" in error.value.todo


def test_the_compilers_on_path_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for count, name in enumerate(["clang++", "g++", "c++"]):
        path = program(tmp_path / name)
        monkeypatch.setenv("PATH", f"{tmp_path}:{tmp_path}/{count}")  # another PATH, another look
        assert find_compiler() == Compiler((str(path),))


def test_a_compiler_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    wrapper, mine = program(tmp_path / "ccache"), program(tmp_path / "my-c++")
    monkeypatch.setenv("CXX", "ccache g++ -m64")
    assert find_compiler().command == (str(wrapper), "g++", "-m64")
    with options(compiler=str(mine)):
        assert find_compiler() == Compiler((str(mine),))


@pytest.mark.parametrize("name", ["no-such-c++", "'unfinished", " "])
def test_a_compiler_that_is_named_but_cannot_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXX", name)
    with pytest.raises(CompilerError) as error:
        find_compiler()
    assert name in error.value.what or name.isspace()


def test_a_library_is_made(tmp_path: Path) -> None:
    (tmp_path / "seven.h").write_text(GOOD)
    library = tmp_path / "seven.so"
    library.write_bytes(compile_shared_library('#include "seven.h"\n', [tmp_path]))
    assert ctypes.CDLL(str(library)).seven() == 7


def test_the_same_source_gives_the_same_bytes() -> None:
    assert compile_shared_library(GOOD) == compile_shared_library(GOOD)


def test_nan_and_inf_keep_their_meaning() -> None:
    assert not {"-ffast-math", "-Ofast", "-ffinite-math-only"} & set(flags())


@pytest.mark.parametrize(
    ("name", "gcc"),
    [("clang++", False), ("clang++-19", False), ("g++", True), ("x86_64-linux-gnu-g++-12", True), ("icpx", False)],
)
@pytest.mark.skipif(platform.system() != "Linux", reason="elsewhere g++ may be a name for Clang")
def test_no_flag_is_one_that_clang_refuses(tmp_path: Path, name: str, *, gcc: bool) -> None:
    """It passes over optimisations of GCC's that it knows by name, and none of them by a value."""
    (tmp_path / "c++").symlink_to(program(tmp_path / name))
    with options(compiler=str(tmp_path / "c++")):
        given = flags()
    valued = {flag.partition("=")[0] for flag in given if flag.startswith("-f") and "=" in flag}
    assert ("-fno-gcse" in given) == gcc
    assert valued == {"-ffp-contract", *(["-fira-region"] if gcc else [])}


def test_the_openmp_runtime_is_pytorchs_where_it_brings_one() -> None:
    package = Path(torch.__path__[0])
    bundled = [*package.glob("lib/libgomp*.so*"), *package.parent.glob("torch.libs/libgomp*.so*")]
    assert [flag for flag in flags() if "libgomp" in flag] == [str(path) for path in bundled[:1]]


def test_a_refused_source_shows_the_command_and_the_output() -> None:
    with pytest.raises(CompilerError) as error:
        compile_shared_library("int f() { return not_there; }\n")
    assert "not_there" in error.value.output
    assert "kernel.cpp:1" in error.value.output
    assert str(find_compiler()) in error.value.command
    assert "-O2" in error.value.command
    assert "not_there" in str(error.value)


def test_of_a_long_output_the_first_and_the_last_lines_are_shown() -> None:
    source = "\n".join(f"#warning line {number}" for number in range(200)) + "\n#error the end\n"
    with pytest.raises(CompilerError) as error:
        compile_shared_library(source)
    lines = error.value.output.splitlines()
    assert len(lines) == 41
    assert "line 0" in lines[0]
    assert "lines left out" in lines[30]


def test_a_compiler_that_hangs_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    child = f"(sleep 1; touch {tmp_path}/outlived) & touch {started}; sleep 30"
    slow = program(tmp_path / "slow", f"#!/bin/sh\n{child}\n")
    begin = time.monotonic()
    with (
        options(compiler=str(slow)),
        pytest.raises(CompilerError, match=r"not finished after 0\.5 s"),
    ):
        compile_shared_library(GOOD, seconds=0.5)
    assert time.monotonic() - begin < 10
    assert started.exists()
    time.sleep(max(0.0, begin + 1.5 - time.monotonic()))
    assert not (tmp_path / "outlived").exists()


def test_no_room_for_the_compilers_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "ROOM_BYTES", 1 << 62)
    with pytest.raises(CompilerError, match=r"no folder") as error:
        compile_shared_library(GOOD)
    assert "TMPDIR" in error.value.todo
