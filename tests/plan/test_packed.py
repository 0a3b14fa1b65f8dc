"""Frozen data as text and back: what is equal in Python but told apart by programs comes back as what it was."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from testkit.block.programs import linear_relu
from testkit.tensor.numbers import APART
from weft.plan.targets.packed import FORMS, PackedAs, TextForms, packed, unpacked
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
    forms = FORMS | {"named": named}
    again = unpacked(packed(everything, forms), tuple, forms)
    assert again == tuple(("named", (number, "of", ("many", number))) for number in range(100))


def test_the_forms_that_are_named_exist() -> None:
    for module in FORMS.modules:
        assert importlib.import_module(module)
    for name in FORMS.classes:
        assert FORMS.name(FORMS.named(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "subprocess.Popen",
        "weft.tensor.program.replace",  # a function
        "weft.tensor.program.Location",  # another module's
        "weft.tensor.program.Node",  # no dataclass
        "weft.tensor.program.No",
        "weft.plan.targets.kernel.Kernel",
        "",
    ],
)
def test_nothing_else_can_be_read(name: str) -> None:
    with pytest.raises(LookupError):
        FORMS.named(name)


def test_what_has_no_form_is_not_written() -> None:
    with pytest.raises(TypeError, match="TextForms has no form in text"):
        packed(TextForms())


def test_reading_imports_the_forms_that_it_finds() -> None:
    data = packed(Constant("c", (), DType.float32, 1.0))
    program = f"""
import sys
from weft.plan.targets.packed import unpacked
from weft.tensor.program import Constant
assert "weft.block.program" not in sys.modules and "weft.tensor.merge" in sys.modules
assert unpacked({data!r}, Constant).value == 1.0
assert "weft.block.program" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
