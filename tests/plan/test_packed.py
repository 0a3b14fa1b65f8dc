"""Frozen data as text and back: what is equal in Python but told apart by programs comes back as what it was."""

from __future__ import annotations

from testkit.block.programs import linear_relu
from testkit.tensor.numbers import APART
from weft.plan.targets.packed import PackedAs, packed, unpacked
from weft.tensor.dtypes import DType
from weft.tensor.program import Constant, TensorProgram
from weft.tensor.scalar import Lit


def test_numbers_come_back_with_their_types_and_signs() -> None:
    """Bare, in tuples, which are equal where Python takes the numbers to be, and in nodes."""
    nodes = tuple(Constant(f"c{i}", (), DType.float32, value) for i, value in enumerate(APART))
    program = TensorProgram((), nodes, tuple(node.name for node in nodes))
    everything = (APART, tuple((value,) for value in APART), tuple(map(Lit, APART)), program)
    assert repr(unpacked(packed(everything), tuple)) == repr(everything)


def test_what_is_shared_is_written_once_and_shared_again() -> None:
    """Wherever it was made: equal programs are one again."""
    first, second = unpacked(packed((linear_relu(), linear_relu())), tuple)
    assert first == linear_relu()
    assert first is second


class _Named:
    """What has no form of its own: it is written as its name and a number."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_values_made_while_writing_are_not_taken_for_each_other() -> None:
    """Each is made, written and dropped, so that Python gives the next its place in memory."""
    named = PackedAs(_Named, lambda value: ("named", (value.number, "of", ("many", value.number))), lambda row: row)
    everything = tuple(_Named(number) for number in range(100))
    again = unpacked(packed(everything, {"named": named}), tuple, {"named": named})
    assert again == tuple(("named", (number, "of", ("many", number))) for number in range(100))
