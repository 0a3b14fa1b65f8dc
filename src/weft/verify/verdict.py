"""What a check found, and what of it a theorem stands behind: the verdict.

Two things are told apart. `Verdict.agrees` is the licence to run: every check that was made agreed. `Verdict.equal` is the claim,
and it is True only where for every class of operations that the programs hold there is an argument why agreement means that they
are equal (`Shown`); `error_probability` is a number only where a theorem bounds the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Aspect(Enum):
    """The classes of what programs hold; for each there is an argument of its own, or none."""

    rational = "sums, products and quotients"
    exponentials = "exponentials"
    order = "maxima and comparisons"
    functions = "functions without laws"
    integers = "integers and booleans"
    casts = "casts that round"
    special = "infinities and NaN"
    constants = "comparisons with constants"
    lookups = "lookups"
    slices = "sizes beyond those checked"


@dataclass(frozen=True, slots=True)
class Shown:
    """What was shown of one class.

    Attributes:
        kind: the class.
        shown: what was shown of it, in words.
        decides: whether there is an argument that programs which agree are equal, as far as this class goes.
        bound: the probability that wrong programs agree; a number only where a theorem gives one.
    """

    kind: Aspect
    shown: str
    decides: bool
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found.

    Attributes:
        equal: True only where every class has an argument; False: refuted; None: agrees up to what `reason` says, or could not be
            run.
        error_probability: how likely a wrong program is to be called equal, at most; a number only where a theorem bounds the
            whole.
        reason: in words.
        sizes: the sizes at which it was checked.
        classes: what the programs hold, and what was shown of each class.
        primes: the primes drawn for this verdict; with them and the seed it can be computed again.
        agrees: every check that was made agreed: the licence to run. True wherever `equal` is.
        separates: an input that tells the two programs apart, by name, where one was found.
    """

    equal: bool | None
    error_probability: float | None
    reason: str
    sizes: tuple[Mapping[str, int], ...] = ()
    classes: tuple[Shown, ...] = ()
    primes: tuple[int, ...] = ()
    agrees: bool = False
    separates: Mapping[str, Any] | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return self.equal is True

    def __str__(self) -> str:
        return f"{self.claim}: {self.reason}"

    @property
    def claim(self) -> str:
        """The claim in a few words."""
        if self.equal is False:
            return "refuted"
        if self.equal is None:
            return "agrees, but is not shown equal" if self.agrees else "undecided"
        if self.error_probability is None:
            return "equal (without a bound on the probability of error)"
        return f"equal (wrong with probability at most {self.error_probability:.1e})"

    def to_json(self) -> dict[str, Json]:
        """Returns all of it but `separates`, as JSON."""
        return {
            "equal": self.equal,
            "agrees": self.agrees,
            "error_probability": self.error_probability,
            "reason": self.reason,
            "sizes": [dict(sizes) for sizes in self.sizes],
            "classes": [[each.kind.name, each.shown, each.decides, each.bound] for each in self.classes],
            "primes": list(self.primes),
        }

    @staticmethod
    def from_json(kept: Json) -> Verdict:
        """Reads what `to_json` gave.

        Raises:
            LookupError, TypeError, ValueError: it is something else.
        """
        found = cast("Mapping[str, Any]", kept)
        if not isinstance(found["agrees"], bool) or found["equal"] not in (True, False, None):
            raise ValueError("no verdict")
        return Verdict(
            equal=found["equal"],
            error_probability=found["error_probability"],
            reason=str(found["reason"]),
            sizes=tuple(dict(sizes) for sizes in found["sizes"]),
            classes=tuple(Shown(Aspect[kind], *rest) for kind, *rest in found["classes"]),
            primes=tuple(found["primes"]),
            agrees=found["agrees"],
        )


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Combines the verdicts of several programs into one that holds of all of them; undecided where there are none."""
    if not verdicts:
        return Verdict(None, None, "nothing was checked")
    worst = next((v for v in verdicts if v.equal is False), next((v for v in verdicts if not v.equal), verdicts[0]))
    bounds = [v.error_probability for v in verdicts]
    known = [b for b in bounds if b is not None]
    return Verdict(
        equal=worst.equal,
        error_probability=min(1.0, sum(known)) if worst.equal and len(known) == len(bounds) else None,
        reason=worst.reason,
        classes=tuple(_unique(shown for v in verdicts for shown in v.classes)),
        primes=tuple(_unique(prime for v in verdicts for prime in v.primes)),
        agrees=all(v.agrees for v in verdicts),
    )


def _unique(items: Iterable[Any]) -> Iterable[Any]:
    return dict.fromkeys(items)
