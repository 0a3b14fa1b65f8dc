"""Operations that a library of PyTorch's runs by design: weft makes no kernels for them, and fuses what lies around them."""

from __future__ import annotations

_CONVOLUTIONS = (
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
)
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_ORDERING = ("sort", "argsort", "msort")
_SOLVERS = ("linalg_solve_triangular", "triangular_solve")
_TRANSFORMS = ("fft_fft", "fft_fft2", "fft_fftn", "fft_ifft", "fft_ifft2", "fft_ifftn", "fft_irfft", "fft_rfft")
_GROUPED = ("_grouped_mm",)

LIBRARY = frozenset(
    (
        *(f"aten.{name}" for name in (*_CONVOLUTIONS, *_RECURRENT, *_ORDERING, *_SOLVERS, *_TRANSFORMS, *_GROUPED)),
        "transformers.grouped_mm_fallback",
    )
)
"""By the names of their packets: convolutions, recurrent layers, sorting, triangular systems, Fourier transforms, and matmuls of
groups of many rows.
"""


FASTER_IN_LIBRARY = "PyTorch's library was measured to be faster"
"""Why PyTorch runs a matmul that weft has kernels for."""


def unsupported(packet: str, *, for_some: bool) -> str:
    """Say why weft has no kernel for a call of `packet`; `for_some`: with other arguments it would have one."""
    if packet in LIBRARY:
        return "PyTorch's library runs it, with weft's kernels around it"
    if for_some:
        return f"weft compiles {packet} for some arguments, not for these"
    return f"{packet} is not in weft's table of operations yet"
