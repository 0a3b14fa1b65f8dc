"""What a key depends on, and on nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from weft.errors import CompilerError
from weft.options import options
from weft.run import key
from weft.run.compiler import Compiler


def test_the_source_hash_sees_names_and_bytes_of_every_source(tmp_path: Path) -> None:
    hashes: list[str] = []

    def look() -> str:
        key.source_hash.cache_clear()
        hashes.append(key.source_hash(tmp_path))
        return hashes[-1]

    (tmp_path / "emit").mkdir()
    (tmp_path / "a.py").write_text("1")
    look()
    (tmp_path / "emit" / "prelude.h").write_text("2")
    look()
    (tmp_path / "emit" / "prelude.h").write_text("3")
    look()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    before = look()
    assert len(set(hashes)) == 4
    (tmp_path / "notes.txt").write_text("no source")
    os.utime(tmp_path / "b.py", (0, 0))
    assert look() == before


def test_the_source_hash_is_of_this_package() -> None:
    key.source_hash.cache_clear()
    package = Path(sys.modules["weft.options"].__file__ or "").parent
    assert key.source_hash() == key.source_hash(package)
    assert len(key.source_hash()) == 64


def test_another_compiler_behind_the_same_name_is_another(tmp_path: Path) -> None:
    program = tmp_path / "c++"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    compiler = Compiler((str(program), "-m64"))
    first = key.toolchain_identity(compiler)
    assert first.endswith(" -m64")
    program.write_text("#!/bin/sh\n# newer\n")
    key.toolchain_identity.cache_clear()
    assert key.toolchain_identity(compiler) != first


def test_only_what_native_code_depends_on_tells_machines_apart() -> None:
    cpu = ["vendor_id : A\n", "model name : x\n", "cpu MHz : 1\n", "flags : sse avx2\n", "\n"]
    same = [line.replace("MHz : 1", "MHz : 2") for line in cpu]
    less = [line.replace("avx2", "") for line in cpu]
    assert key._first_cpu(cpu) == key._first_cpu(same) == key._first_cpu([*cpu, "flags : other\n"])
    assert key._first_cpu(cpu) != key._first_cpu(less)


def test_options_are_part_of_the_key() -> None:
    with options(brgemm="off"):
        off = key.environment_parts()
    with options(brgemm="auto"):
        assert key.cache_key(key.environment_parts()) != key.cache_key(off)


def test_a_missing_compiler_is_said_before_anything_is_looked_up() -> None:
    with options(compiler="no-such-c++"), pytest.raises(CompilerError):
        key.environment_parts()
