"""Functions on integers of 8 bits and fp8 numbers, with their operands."""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.verify.judge import reference

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def to_bytes(x):
    """Integers from -127 to 127, and what one step of each row is worth."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def to_float8(x, kind=E4, largest=448.0):
    scale = x.abs().amax(-1, keepdim=True) / largest
    return (x / scale).to(kind), scale


def int8_weight_only(x, w):
    return x @ w.to(x.dtype)


def int8(x, w):
    q, scale = to_bytes(x)
    return (q.to(x.dtype) @ w) * scale


def int8_both(x, w, columns):
    q, scale = to_bytes(x)
    return (q.to(x.dtype) @ w.to(x.dtype)) * scale * columns


def int8_in_integers(x, w, columns):
    q, scale = to_bytes(x)
    return torch.ops.aten._int_mm(q, w) * scale * columns


def uint8_with_zero_points(x, w, zero, columns):
    q, scale = to_bytes(x)
    return (q.to(x.dtype) @ (w.to(x.dtype) - zero)) * scale * columns


def float8(x, w):
    q, scale = to_float8(x)
    return (q.to(x.dtype) @ w) * scale


def float8_both(x, w):
    q, scale = to_float8(x)
    return (q.to(x.dtype) @ w.to(x.dtype)) * scale


def float8_wide_range(x, w):
    q, scale = to_float8(x, E5, 57344.0)
    return (q.to(x.dtype) @ w) * scale


def float8_scaled(x, w, columns):
    q, scale = to_float8(x)
    return torch.ops.aten._scaled_mm(q, w.t(), scale.float(), columns, out_dtype=x.dtype)


def float8_without_zeros(x, w):
    """A scale that is never 0, as libraries write it."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
    return ((x / scale).clamp(-448.0, 448.0).to(E4).to(x.dtype) @ w) * scale


def there_and_back(x):
    q, scale = to_float8(x)
    return q.to(x.dtype) * scale


def normed(x, w):
    """A norm, then quantisation of what it gives, then the product."""
    return float8(torch.nn.functional.rms_norm(x, (x.shape[-1],)), w)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def operands(name: str, rows: int, inner: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, w = torch.randn(rows, inner).to(dtype), (torch.randn(inner, columns) * inner**-0.5).to(dtype)
    scales = (torch.rand(columns) * 0.01 + 0.01).to(dtype)
    return {
        "int8_weight_only": lambda: (x, bytes_of(inner, columns)),
        "int8_both": lambda: (x, bytes_of(inner, columns), scales),
        "int8_in_integers": lambda: (x, bytes_of(inner, columns), scales),
        "uint8_with_zero_points": lambda: (
            x,
            bytes_of(inner, columns).to(torch.uint8),
            torch.randint(100, 150, (columns,), dtype=torch.uint8),
            scales,
        ),
        "float8_both": lambda: (x, w.to(E4)),
        "float8_scaled": lambda: (x, w.t().contiguous().to(E4), torch.rand(1, columns)),
        "there_and_back": lambda: (x,),
    }.get(name, lambda: (x, w))()


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    f.__name__: f
    for f in (
        int8_weight_only,
        int8,
        int8_both,
        int8_in_integers,
        uint8_with_zero_points,
        float8,
        float8_both,
        float8_wide_range,
        float8_scaled,
        float8_without_zeros,
        there_and_back,
        normed,
    )
}


def exact(name: str, inputs: tuple[torch.Tensor, ...]) -> object:
    """The function in fp64; PyTorch's products of bytes and of fp8 numbers have no wider form but their parts."""
    if name == "int8_in_integers":
        return reference(int8_both, inputs)
    if name == "float8_scaled":
        x, w, columns = inputs
        return reference(lambda x, w, columns: float8_both(x, w.t()) * columns, (x, w.double(), columns))
    return reference(FUNCTIONS[name], inputs)
