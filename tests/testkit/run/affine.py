"""A small kernel that keeps to the interface of weft.run.launch, written by hand."""

from __future__ import annotations

from weft.run.launch import InputSpec, KernelSignature, OutputSpec, SizeSpec
from weft.tensor.dtypes import DType

F32 = DType.float32


# out[i, j] = a[i, j] * b[j, i] + c[j]; also counts[0] = threads
AFFINE_TEXT = """
#include <cstdint>
extern "C" void affine(const std::int64_t* w) {
  const float *a = (const float*)w[0], *b = (const float*)w[1], *c = (const float*)w[2];
  float* out = (float*)w[3];
  std::int64_t* counts = (std::int64_t*)w[4];
  const std::int64_t m = w[5], n = w[6], a0 = w[7], a1 = w[8], b0 = w[9], b1 = w[10], c0 = w[11];
  counts[0] = w[12];
#pragma omp parallel for num_threads(w[12])
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      out[i * n + j] = a[i * a0 + j * a1] * b[j * b0 + i * b1] + c[j * c0];
}
"""


AFFINE = KernelSignature(
    name="affine",
    inputs=(InputSpec("a", 2, F32), InputSpec("b", 2, F32), InputSpec("c", 1, F32)),
    sizes=(SizeSpec("m", 0, 0), SizeSpec("n", 1, 0)),
    outputs=(OutputSpec(("m", "n"), F32), OutputSpec((1,), DType.int64)),
)
