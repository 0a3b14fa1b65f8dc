"""Innermost loops become vector code: one that GCC gives up on takes five to ten times as long."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import weft
from weft.emit import cpp
from weft.emit.cpp.scalar import CTYPE, Text, expression
from weft.emit.kinds import Kind
from weft.run.compiler import find_compiler, flags
from weft.tensor import optable
from weft.tensor.scalar import Apply, Arg

pytestmark = pytest.mark.as_shipped

ROWS, WEIGHTS = (64, 96), (96, 80)


def swiglu(x, w, v):
    h = functional.rms_norm(x, (x.shape[-1],))
    return functional.silu(h @ w) * (h @ v)


def attention(q, k):
    return torch.softmax(q @ k / 7.5, -1)


FUNCTIONS = {
    "softmax": (lambda x: torch.softmax(x, -1), 1),
    "log-softmax": (lambda x: torch.log_softmax(x, -1), 1),
    "LayerNorm": (lambda x: functional.layer_norm(x, (x.shape[-1],)), 1),
    "two quotients": (swiglu, 3),
    "a product's softmax": (attention, 2),
    "rounded twice": (lambda x: (x / 3 + 1).bfloat16().float() / (x.amax(-1, keepdim=True) + 9), 1),
    "a column by a row": (lambda x, w: (x / w[:, 0]).T / w[:64, :1].T, 2),
}


def scalar_loops(text: str) -> list[str]:
    """The loops of a kernel that are to be vector code and are not, as GCC reports; what fills memory with a number is none."""
    include = Path(cpp.__file__).parent
    own = [flag for flag in flags() if flag != "-shared" and not flag.startswith("-Wl") and "lib" not in flag]
    command = [*find_compiler().command, *own, "-fopt-info-vec-optimized", "-x", "c++", "-", "-c", "-o", "/dev/null"]
    done = subprocess.run([*command, "-I", str(include)], input=text, capture_output=True, text=True, check=True)
    vector = {int(line) for line in re.findall(r"<stdin>:(\d+):\d+: optimized: +loop vectorized", done.stderr)}
    lines = text.splitlines()
    found: list[str] = []
    for start in (i + 1 for i, line in enumerate(lines) if line.lstrip().startswith("#pragma omp simd")):
        indent = len(lines[start]) - len(lines[start].lstrip())
        braces = lines[start].endswith("{")
        end = next(i for i in range(start + 1, len(lines)) if not braces or lines[i] == " " * indent + "}")
        fills = re.search(r"= -?[\w.+]+;$", lines[start + 1]) and not braces
        if not fills and not vector.intersection(range(start + 1, end + 2)):
            found.append("\n".join(lines[start : end + 1]))
    return found


def is_gcc() -> bool:
    said = subprocess.run([*find_compiler().command, "--version"], capture_output=True, text=True, check=True)
    return "Free Software Foundation" in said.stdout


@pytest.mark.one_in(4)
@pytest.mark.skipif(not is_gcc(), reason="only GCC reports its vector loops this way; install g++")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_innermost_loop_is_vector_code(name, dtype):
    fn, count = FUNCTIONS[name]
    arguments = [torch.randn(size).to(dtype) for size in (ROWS, WEIGHTS, WEIGHTS)[:count]]
    program = weft.optimize(fn, arguments)
    assert program.kernels
    for kernel in program.kernels:
        assert scalar_loops(kernel.source) == []


def loop_over(row: optable.Row) -> str:
    """A loop that applies `row` to floats, twice: for elements that lie dense and for others, as kernels have it."""
    of_samples: dict[str, Kind] = {"bool": "bool", "int": "int"}
    kinds: list[Kind] = [of_samples.get(sample, "float") for sample in row.samples]
    elements = [f"x{i}[j * s]" for i in range(row.arity)]
    given = [Text(f"weft::is_set({e})" if k == "bool" else e, k) for e, k in zip(elements, kinds, strict=True)]
    found = expression(Apply(row.name, tuple(map(Arg, range(row.arity)))), given)
    arguments = "".join(f", const {CTYPE[k]}* x{i}" for i, k in enumerate(kinds))
    return f"""\
void {row.name}(i64 n, i64 stride, {CTYPE[found.kind]}* out{arguments}) {{
  weft::with_dense(stride == 1, [&](auto dense) {{
    const i64 s = dense ? 1 : stride;
#pragma omp simd
    for (i64 j = 0; j < n; ++j) {{
      out[j] = {found.text};  // {row.name}
    }}
  }});
}}
"""


@pytest.mark.skipif(not is_gcc(), reason="only GCC reports its vector loops this way; install g++")
def test_every_operation_on_floats_and_masks_is_vector_code():
    of_floats = (row for row in optable.PRIMITIVES if "divisor" not in row.samples)
    scalar = scalar_loops(
        '#include "prelude.h"\nusing weft::i64;\nnamespace loops {\n' + "".join(map(loop_over, of_floats)) + "}\n"
    )
    # C's remainder of floats is a loop of its own.
    assert [re.findall(r"// (\w+)", loop) for loop in scalar] == [["fmod"]]


@pytest.mark.skipif(not is_gcc(), reason="only GCC reports its vector loops this way; install g++")
def test_padded_windows_of_channels_that_come_last_are_vector_code():
    x = torch.randn(2, 24, 12, 20).to(memory_format=torch.channels_last)
    for fn in (lambda x: functional.avg_pool2d(x, 3, 1, 1), lambda x: functional.max_pool2d(x, 3, 1, 1)):
        (kernel,) = weft.optimize(fn, (x,)).kernels
        assert scalar_loops(kernel.source) == []


@pytest.mark.skipif(not is_gcc(), reason="only GCC reports its vector loops this way; install g++")
def test_a_scalar_loop_is_seen():
    source = weft.optimize(lambda x: x.exp() + 1, (torch.randn(64),)).kernels[0].source
    assert scalar_loops(source) == []
    assert len(scalar_loops(source.replace("weft::exp(", "__builtin_lgammaf("))) == 1
