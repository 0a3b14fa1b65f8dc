"""Element types, and eager's promotion between them (no torch here: capture and run translate)."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type: (name, kind, bits). Kinds: "float", "int", "bool", and "foreign", which PyTorch alone computes with.

    A value of a foreign type is an input or comes of an opaque operation, and nothing but opaque operations reads it.
    """

    float64 = ("float64", "float", 64)
    float32 = ("float32", "float", 32)
    bfloat16 = ("bfloat16", "float", 16)
    float16 = ("float16", "float", 16)
    float8_e4m3fn = ("float8_e4m3fn", "float", 8)
    float8_e5m2 = ("float8_e5m2", "float", 8)
    int64 = ("int64", "int", 64)
    int32 = ("int32", "int", 32)
    int16 = ("int16", "int", 16)
    int8 = ("int8", "int", 8)
    uint8 = ("uint8", "int", 8)
    bool = ("bool", "bool", 8)
    float8_e4m3fnuz = ("float8_e4m3fnuz", "foreign", 8)
    float8_e5m2fnuz = ("float8_e5m2fnuz", "foreign", 8)
    float8_e8m0fnu = ("float8_e8m0fnu", "foreign", 8)
    complex64 = ("complex64", "foreign", 64)
    complex128 = ("complex128", "foreign", 128)
    unknown = ("unknown", "foreign", 64)
    """Of a value that the program has no words for: another element type, layout or device, or no tensor at all."""

    @property
    def kind(self) -> str:
        """ "float", "int", "bool" or "foreign"."""
        return self.value[1]

    @property
    def bytes(self) -> int:
        """Bytes per element in memory."""
        return self.value[2] // 8

    @property
    def is_float(self) -> bool:
        """True for every floating type."""
        return self.kind == "float"

    @property
    def is_foreign(self) -> bool:
        """True for types that only opaque operations read and make."""
        return self.kind == "foreign"

    @property
    def is_kept(self) -> bool:
        """True for floats that are only kept: what computes with them casts them first, as eager has no arithmetic on them."""
        return self.is_float and self.bytes == 1

    @property
    def eps(self) -> float:
        """Distance from 1 to the next number; 0 for integers and bool."""
        return _EPS.get(self.name, 0.0)

    @property
    def exponents(self) -> tuple[int, int]:
        """Returns the powers of 2 from the first of which up to, and without, the second normal numbers of a float lie."""
        return _EXPONENTS[self.name]

    @property
    def least_normal(self) -> float:
        """The least positive number of full precision; 0 for integers and bools."""
        return 2.0 ** self.exponents[0] if self.is_float else 0.0

    @property
    def lowest(self) -> float:
        """The least number of fp32 and fp64: every other exceeds it, and its difference to itself is 0, which -inf's is not."""
        return _LOWEST[self.name]

    @property
    def accumulator(self) -> DType:
        """The type that arithmetic and sums over this type are carried in: fp32 or wider (the error rule), int64 for integers.

        Sums, products and bits of int64 are those of a narrower integer modulo its number of values: a cast at the end wraps.
        """
        if self.kind == "int":
            return DType.int64
        return DType.float32 if self.is_float and self.bytes < 4 else self

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest integer of an integer type or of bool; floats have none.

        Raises:
            ValueError: for a floating type.
        """
        if self.is_float:
            raise ValueError(f"{self} is not an integer type")
        bits = self.value[2]
        if self is DType.bool:
            return 0, 1
        return (0, 2**bits - 1) if self is DType.uint8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def wraps(self, value: int) -> int:
        """Returns the integer of this integer type that is `value` modulo the number of its values."""
        low, high = self.bounds
        return (value - low) % (high - low + 1) + low

    def __str__(self) -> str:
        return self.name


_EXPONENTS = {
    "float64": (-1022, 1024),
    "float32": (-126, 128),
    "bfloat16": (-126, 128),
    "float16": (-14, 16),
    "float8_e4m3fn": (-6, 9),
    "float8_e5m2": (-14, 16),
}
_LOWEST = {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}
_EPS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
