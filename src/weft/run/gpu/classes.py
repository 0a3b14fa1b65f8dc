"""The class of a call: what Triton compiles for, beside the text. One binary serves every call of a class.

A class says of each pointer whether its address is divisible by 16 bytes, of each size and stride whether it is divisible by 16,
and which strides are 1 (a constant then, so that reads of neighbours are wide); whether strides have 64 bits, in which kernels then
compute offsets, or 32; and it has the constants' values. Sizes stay run-time arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.errors import UnsupportedError
from weft.run.gpu.signature import GpuSignature
from weft.tensor.dtypes import DType

_POINTEES = {
    DType.float64: "fp64",
    DType.float32: "fp32",
    DType.bfloat16: "bf16",
    DType.float16: "fp16",
    DType.float8_e4m3fn: "fp8e4nv",
    DType.float8_e5m2: "fp8e5",
    DType.int64: "i64",
    DType.int32: "i32",
    DType.int16: "i16",
    DType.int8: "i8",
    DType.uint8: "u8",
    DType.bool: "i1",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel as Triton compiles for it.

    Attributes:
        kind: "*fp32" and the like, "i32", "i64"; "constexpr" for one that is part of the binary.
        divisible: by 16.
        value: of a constant.
    """

    kind: str
    divisible: bool = False
    value: int | None = None

    def __str__(self) -> str:
        return f"={self.value}" if self.value is not None else f"{self.kind}{':16' if self.divisible else ''}"

    @staticmethod
    def parse(text: str) -> Argument:
        """Reads the argument that `str` wrote."""
        if text.startswith("="):
            return Argument("constexpr", value=int(text[1:]))
        kind, _, divisible = text.partition(":")
        return Argument(kind, divisible == "16")

    def serves(self, other: Argument) -> bool:
        """Tells whether what is compiled for this argument is right for the `other` too: it knows less of it."""
        if self.value is not None:
            return self == other
        wider = self.kind == other.kind or (self.kind == "i64" and other.kind == "i32")
        divisible = other.divisible if other.value is None else other.value % 16 == 0
        return (wider or other.value is not None) and (divisible or not self.divisible)

    @property
    def bytes(self) -> int:
        """Bytes of the binary's parameter; 0 for a constant, which is none."""
        return 0 if self.value is not None else 4 if self.kind == "i32" else 8


@dataclass(frozen=True, slots=True)
class KernelClass:
    """What calls that share a binary have in common: each argument of the kernel, in order. Prints as a line of text."""

    arguments: tuple[Argument, ...]

    def __str__(self) -> str:
        return " ".join(map(str, self.arguments))

    @staticmethod
    def parse(text: str) -> KernelClass:
        """Reads the class that `str` wrote. ValueError otherwise."""
        return KernelClass(tuple(Argument.parse(word) for word in text.split()))

    def serves(self, other: KernelClass) -> bool:
        """Tells whether a binary of this class is right for calls of the `other` too."""
        return all(own.serves(its) for own, its in zip(self.arguments, other.arguments, strict=True))

    @property
    def parameters(self) -> tuple[int, ...]:
        """The places of the arguments that the binary takes: all but constants."""
        return tuple(place for place, each in enumerate(self.arguments) if each.value is None)


def class_of(
    signature: GpuSignature, addresses: Sequence[int], sizes: Mapping[str, int], strides: Sequence[int]
) -> KernelClass:
    """Returns the class of a call.

    Args:
        signature: of the kernel.
        addresses: of the inputs, then of the outputs, in bytes.
        sizes: by name.
        strides: of every dimension of every input, input by input, in elements.

    Raises:
        UnsupportedError: a size of `signature.LONGEST` or more, or of 0 where a block covers the space; a type that Triton has not.
    """
    tensors = [*signature.kernel.inputs, *signature.kernel.outputs]
    pointers = [
        Argument(_pointer(each.dtype), address % 16 == 0) for each, address in zip(tensors, addresses, strict=True)
    ]
    numbers = [sizes[size.name] for size in signature.kernel.sizes]
    signature.demand_sizes(sizes)
    if len(strides) != signature.stride_count:
        raise ValueError(f"{len(strides)} strides for a kernel with {signature.stride_count}")
    wide = signature.reaches_far(sizes, strides)
    return KernelClass((
        *pointers,
        *(Argument("i32", n % 16 == 0) for n in numbers),
        *(_stride(stride, wide=wide) for stride in strides),
        *(Argument("constexpr", value=value) for value in signature.constants_at(sizes)),
    ))  # fmt: skip


def _pointer(dtype: DType) -> str:
    if dtype not in _POINTEES:
        raise UnsupportedError(f"Triton has no {dtype.name}")
    return f"*{_POINTEES[dtype]}"


def _stride(stride: int, *, wide: bool) -> Argument:
    if stride == 1:
        return Argument("constexpr", value=1)
    return Argument("i64" if wide else "i32", stride % 16 == 0)
