"""Guards: which iterations of a loop with a state leave it as it is."""

from __future__ import annotations

from dataclasses import dataclass

from weft.tensor.scalar import Apply, Arg, ExactNumbers, Lit, Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Guard(ExactNumbers):
    """An iteration is left out where all valid elements of the body's value `value` are `idle`."""

    value: str
    idle: float | bool

    @property
    def is_idle(self) -> Scalar:
        """The condition that an element, `Arg(0)`, is."""
        if isinstance(self.idle, bool):
            return Arg(0) if self.idle else Apply("logical_not", (Arg(0),))
        return Apply("eq", (Arg(0), Lit(self.idle)))
