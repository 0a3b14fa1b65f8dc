"""The arguments of one recorded call, by the names of ATen's schema, as the builder wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch._ops import OpOverload  # no public name

from weft.capture.recording import Call, Slot, by_name
from weft.capture.sizes import expression
from weft.errors import Location, UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.builder import Builder, Number, Ref, SizeOrAxis
from weft.tensor.dtypes import DType

_FOREVER = 2**63 - 1
_MOST_TERMS = 8
"""A size is a sum of so many others at most: each is read where it is worked out."""


def dtype_of(dtype: torch.dtype) -> DType:
    """Returns weft's name for an element type.

    Raises:
        UnsupportedError: weft has none.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DType.__members__:
        raise UnsupportedError(f"weft does not support the element type {name}")
    return DType[name]


class Arguments:
    """A call's arguments and results.

    The methods raise UnsupportedError where an argument is of another kind than asked for; above
    all, where it is a symbolic size, whose value no program may depend on.

    Attributes:
        builder: collects the program's nodes.
        call: the recorded call.
        location: the user's line.
        fake: the first result, without data.
        inputs: the axis that is as long as each symbolic size that a tensor so far has.
        contents: the input that holds each symbolic number that is the content of one.
    """

    def __init__(
        self,
        builder: Builder,
        call: Call,
        fakes: Mapping[Slot, torch.Tensor],
        refs: Mapping[Slot, Ref],
        inputs: Mapping[Any, Axis],
        contents: Mapping[Any, Ref],
    ) -> None:
        self.builder = builder
        self.call = call
        self.location: Location | None = call.location
        self._fakes = fakes
        self._refs = refs
        self._inputs = inputs
        self.contents = contents
        assert isinstance(call.target, OpOverload)  # no handler is asked for another
        found = by_name(call.target, call.args, call.kwargs)
        self._values = {name: value for name, (value, _) in found.items()}
        self._defaults = {name: default for name, (_, default) in found.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names in ATen's schema, in order."""
        return tuple(self._values)

    @property
    def fake(self) -> torch.Tensor:
        """The first result."""
        return self._fakes[next(s for s in self.call.results if s is not None)]

    @property
    def dtype(self) -> DType:
        """The element type of the first result."""
        return dtype_of(self.fake.dtype)

    def has(self, name: str) -> bool:
        """Tells whether there is such an argument, and it is not None."""
        return self._values.get(name) is not None

    def given(self, name: str) -> bool:
        """Tells whether the argument is something else than its default."""
        value = self._values[name]
        return isinstance(value, Slot) or value != self._defaults[name]

    def plain(self, name: str) -> Any:
        """Returns the argument as it was recorded."""
        return self._values[name]

    def fake_of(self, name: str) -> torch.Tensor:
        """Returns a tensor argument, without data."""
        return self._fakes[self._slot(name)]

    def ref(self, name: str) -> Ref:
        """Reads a tensor argument."""
        return self._refs[self._slot(name)]

    def at(self, slot: Slot) -> Ref:
        """Reads a tensor that is a part of an argument."""
        return self._refs[slot]

    def maybe_ref(self, name: str) -> Ref | None:
        """Reads a tensor argument, None where it is None."""
        return self.ref(name) if self.has(name) else None

    def refs(self, name: str) -> tuple[Ref, ...]:
        """Reads a list of tensors."""
        value = self._values[name]
        if not isinstance(value, list | tuple):
            raise UnsupportedError(f"its argument {name} is {type(value).__name__}")
        slots = cast("Sequence[Any]", value)
        if not all(isinstance(slot, Slot) for slot in slots):
            raise UnsupportedError(f"{name} is not made of tensors")
        return tuple(self._refs[slot] for slot in slots)

    def number(self, name: str) -> Number:
        """Reads a Python number."""
        return cast("Number", self._kind(name, (bool, int, float)))

    def integer(self, name: str) -> int:
        """Reads a Python integer."""
        return cast("int", self._kind(name, (int,)))

    def bound(self, name: str) -> int | None:
        """Reads an end of a slice: an integer, None where it is missing or "as far as it goes"."""
        found = self.integer(name) if self.has(name) else None
        return None if found == _FOREVER else found

    def flag(self, name: str) -> bool:
        """Reads a Python bool; False where the overload has no such argument."""
        return name in self._values and bool(self._kind(name, (bool,)))

    def dims(self, name: str) -> list[int] | None:
        """Reads dimensions, one or several; None where it is None or the overload has no such argument."""
        if not self.has(name):
            return None
        value = self._values[name]
        found = list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]
        if not all(isinstance(dim, int) for dim in found):
            raise UnsupportedError(f"{name} is not made of plain integers")
        return found

    def element(self, name: str) -> DType | None:
        """Reads an element type, None where it is None or the overload has no such argument."""
        return dtype_of(cast("torch.dtype", self._values[name])) if self.has(name) else None

    def is_size(self, size: Any) -> bool:
        """Tells whether an input is as long as the symbolic `size`, whatever the inputs' sizes."""
        return expression(size) in self._inputs

    def axis(self, size: Any) -> Axis:
        """Finds an axis of an input, or of an earlier result, that is as long as the symbolic `size` whatever the inputs' sizes.

        Where there is none, the size may be a sum of some: a new axis is as long as these together.
        """
        return self.axis_of(expression(size))

    def axis_of(self, expr: Any) -> Axis:
        """Finds the `axis` of a size given as SymPy's expression."""
        found = self._inputs.get(expr)
        found = self._together(expr) if found is None else found
        if found is None:
            raise UnsupportedError(f"{expr} is not the size of any tensor before it, nor a sum of some")
        return found

    def _together(self, expr: Any) -> Axis | None:
        """Makes an axis as long as several, and a number of elements more; None where `expr` is no such sum."""
        terms: dict[Any, Any] = dict(getattr(expr, "as_coefficients_dict", dict[Any, Any])())
        plus = terms.pop(1, 0)
        counted = all(term in self._inputs and count.is_Integer and count > 0 for term, count in terms.items())
        if not terms or not counted or int(plus) != plus or plus < 0 or sum(terms.values()) > _MOST_TERMS:
            return None
        axes = [self._inputs[term] for term, count in terms.items() for _ in range(int(count))]
        return self.builder.longer_axis(axes, int(plus))

    def size(self, size: Any) -> SizeOrAxis:
        """Returns a size for the builder: a number, or the axis of a tensor that is as long."""
        return size if isinstance(size, int) else self.axis(size)

    def _slot(self, name: str) -> Slot:
        return cast("Slot", self._kind(name, (Slot,)))

    def _kind(self, name: str, kinds: tuple[type, ...]) -> Any:
        value = self._values[name]
        if not isinstance(value, kinds):
            words = "a symbolic size" if isinstance(value, torch.SymInt) else type(value).__name__
            raise UnsupportedError(f"its argument {name} is {words}")
        return value


Handler: TypeAlias = Callable[[Builder, Arguments], Ref | tuple[Ref, ...]]
"""Makes the nodes of one call and returns its first result, or all; UnsupportedError leaves it to PyTorch."""
