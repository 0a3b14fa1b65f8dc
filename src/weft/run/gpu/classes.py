"""The class of a call: what Triton compiles for, beside the text. One binary serves every call of a class.

A class says of each pointer whether its address is divisible by 16 bytes, of each size and stride whether it is divisible by 16;
which strides are 1 (a constant then, so that reads of neighbours are wide); whether blocks are whole; whether strides have 64 bits,
in which kernels then compute offsets, or 32; and it has the constants' values. Sizes stay run-time arguments. A binary of a class
that knows less serves calls of one that knows more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.emit.triton import WholeConstant
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


_DIVISIBLE = 16
"""By which Triton wants to know whether numbers are divisible."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel as Triton compiles for it.

    Attributes:
        kind: "*fp32" and the like, "i32", "i64"; "constexpr" for one that is part of the binary.
        divisible: by 16.
        value: of a constant.
        whole: whether that constant says that blocks are whole: 0 is right where they are, too.
    """

    kind: str
    divisible: bool = False
    value: int | None = None
    whole: bool = False

    def __str__(self) -> str:
        sign = "~" if self.whole else "="
        return f"{sign}{self.value}" if self.value is not None else f"{self.kind}{':16' if self.divisible else ''}"

    @staticmethod
    def parse(text: str) -> Argument:
        """Reads the argument that `str` wrote."""
        if text.startswith(("=", "~")):
            return Argument("constexpr", value=int(text[1:]), whole=text[0] == "~")
        kind, _, divisible = text.partition(":")
        return Argument(kind, divisible == "16")

    def serves(self, other: Argument) -> bool:
        """Tells whether what is compiled for this argument is right for the `other` too: it knows less of it."""
        if self.value is not None:
            return self == other or (self.whole and other.whole and self.value == 0)
        wider = self.kind == other.kind or (self.kind == "i64" and other.kind == "i32")
        divisible = other.divisible if other.value is None else other.value % _DIVISIBLE == 0
        return (wider or other.value is not None) and (divisible or not self.divisible)

    def where(self, *, multiple: bool) -> Argument:
        """Returns what is known of it where a length that it depends on is a `multiple` of all that is asked, or is any length."""
        if self.value is None:
            return replace(self, divisible=multiple)
        return replace(self, value=int(multiple)) if self.whole else self

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

    def least(self, places: Collection[int]) -> KernelClass:
        """Returns the class of calls like these whatever the lengths are that the arguments at `places` depend on."""
        return KernelClass(
            tuple(a.where(multiple=False) if place in places else a for place, a in enumerate(self.arguments))
        )

    def most(self, places: Collection[int]) -> KernelClass:
        """Returns the class of calls like these whose lengths are multiples of all that the arguments at `places` ask."""
        return KernelClass(
            tuple(a.where(multiple=True) if place in places else a for place, a in enumerate(self.arguments))
        )

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
        Argument(_pointer(each.dtype), address % _DIVISIBLE == 0)
        for each, address in zip(tensors, addresses, strict=True)
    ]
    numbers = [sizes[size.name] for size in signature.kernel.sizes]
    signature.demand_sizes(sizes)
    if len(strides) != signature.stride_count:
        raise ValueError(f"{len(strides)} strides for a kernel with {signature.stride_count}")
    wide = signature.reaches_far(sizes, strides)
    return KernelClass((
        *pointers,
        *(Argument("i32", n % _DIVISIBLE == 0) for n in numbers),
        *(_stride(stride, wide=wide) for stride in strides),
        *(
            Argument("constexpr", value=value, whole=isinstance(constant, WholeConstant))
            for constant, value in zip(signature.constants, signature.constants_at(sizes), strict=True)
        ),
    ))  # fmt: skip


def following(
    signature: GpuSignature, sizes: Mapping[str, int], strides: Sequence[int], varying: Collection[str]
) -> frozenset[int]:
    """Returns the places of the arguments that depend on lengths which change: these, strides that follow from them, and
    whether blocks cover them.

    Args:
        signature: of the kernel.
        sizes, strides: of a call, as `class_of` takes them. A stride that is a multiple of the length of a dimension inside it is
            taken to be one whatever that length is, as in a dense tensor; what else it is a multiple of stays known.
        varying: the names of these lengths.
    """
    kernel, found = signature.kernel, set[int]()
    place = len(kernel.inputs) + len(kernel.outputs)
    found.update(number for number, size in enumerate(kernel.sizes, place) if size.name in varying)
    place, given = place + len(kernel.sizes), iter(strides)
    for shape in signature.shapes:
        own = [next(given) for _ in shape]
        inside = [(step, sizes[n]) for n, step in zip(shape, own, strict=True) if isinstance(n, str) and n in varying]
        for number, stride in enumerate(own, place):
            known = stride
            for length in (length for step, length in inside if step < stride):
                known = known // length if length and known % length == 0 else 1
            if known != stride and known % _DIVISIBLE:
                found.add(number)
        place += len(shape)
    found.update(number for number, each in enumerate(signature.constants, place) if each.space in varying)
    return frozenset(found)


def _pointer(dtype: DType) -> str:
    if dtype not in _POINTEES:
        raise UnsupportedError(f"Triton has no {dtype.name}")
    return f"*{_POINTEES[dtype]}"


def _stride(stride: int, *, wide: bool) -> Argument:
    if stride == 1:
        return Argument("constexpr", value=1)
    return Argument("i64" if wide else "i32", stride % _DIVISIBLE == 0)
