"""A small Triton kernel that keeps to the interface of weft.run.gpu, written by hand, and the job that compiles it."""

from __future__ import annotations

from weft.emit.triton import BlockConstant, GridLoop
from weft.run.gpu import GpuSignature, GpuSource, Job, class_of
from weft.run.launch import InputSpec, KernelSignature, OutputSpec, SizeSpec
from weft.target import Target
from weft.tensor.dtypes import DType

F32 = DType.float32

# out[i, j] = 2 x[i, j] + b[j]
TEXT = '''"""Twice a matrix plus a row."""

import triton
import triton.language as tl


@triton.jit
def twice(x, b, out, M, N, x_s0, x_s1, b_s0, BLOCK_n: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.arange(0, BLOCK_n)
    ok = (i < M)[:, None] & (j < N)[None, :]
    rows, columns = i[:, None] * x_s0, j[None, :] * x_s1
    value = tl.load(x + rows + columns, mask=ok, other=0.0)
    more = tl.load(b + j * b_s0, mask=j < N, other=0.0)
    tl.store(out + i[:, None] * tl.cast(N, tl.int64) + j[None, :], 2 * value + more[None, :], mask=ok)
'''

TWICE = GpuSignature(
    kernel=KernelSignature(
        name="twice",
        inputs=(InputSpec("x", 2, F32), InputSpec("b", 1, F32)),
        sizes=(SizeSpec("M", 0, 0), SizeSpec("N", 0, 1)),
        outputs=(OutputSpec(("M", "N"), F32),),
    ),
    constants=(BlockConstant("BLOCK_n", "N", 1),),
    grid=(GridLoop("M", 16),),
    shapes=(("M", "N"), ("N",)),
)

SOURCE = GpuSource(TEXT, TWICE, {"schedule": "grid(m)"})

H100 = Target("cuda", "90")
KIND = class_of(TWICE, [0, 0, 0], {"M": 64, "N": 48}, [48, 1, 3])
JOB = Job(TEXT, "twice", KIND, H100)
