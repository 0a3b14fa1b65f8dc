"""Verdicts of scheduled programs: worked out where a kernel is not in the cache with one, by children ahead of time where there are
some that have nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from weft.block.program import BlockProgram
from weft.cascade import Approximation
from weft.errors import VerificationError
from weft.options import current
from weft.phases import phase
from weft.plan.targets.candidates import Candidate
from weft.run.cache import Json
from weft.run.meanwhile import Meanwhile
from weft.tensor.program import TensorProgram
from weft.verify import Verdict, verify


class VerdictsAhead:
    """Verdicts that children work out while this process times and judges.

    What they are given is a guess: what is asked for and was not begun, whoever asks works out.
    """

    def __init__(self, likely: Sequence[tuple[TensorProgram, Candidate]]) -> None:
        """Begin with the verdicts of these candidates, each for the program beside it.

        Raises:
            OSError, RuntimeError: there is no further file or thread to be had.
        """
        self._likely = likely
        tasks = [partial(_verified, p, each.applied, each.approximation) for p, each in likely]
        self._made: Meanwhile[Verdict] = Meanwhile(tasks, lambda found: found)

    @phase("field check")
    def of(self, program: TensorProgram, applied: BlockProgram) -> Verdict | None:
        """Wait for the verdict of `applied`; None where none was begun, or its child failed."""
        asked = (n for n, (p, each) in enumerate(self._likely) if each.applied is applied and p is program)
        number = next(asked, None)
        return None if number is None else self._made.result(number)


class CheckedCandidate:
    """The verdict of one candidate, computed at most once, and only when a kernel is not in the cache with it."""

    def __init__(
        self,
        program: TensorProgram,
        applied: BlockProgram,
        approximation: Approximation | None = None,
        ahead: VerdictsAhead | None = None,
    ) -> None:
        """`ahead`: what others have begun."""
        self.program, self.applied, self.approximation, self.ahead = program, applied, approximation, ahead
        self.known: Verdict | None = None

    def verdict(self) -> Verdict:
        """Return the verdict; raises VerificationError where the program is refuted or could not be run, which leaves
        it no licence.
        """
        if self.known is None and self.ahead is not None:
            self.known = self.ahead.of(self.program, self.applied)
        if self.known is None:
            self.known = _verified(self.program, self.applied, self.approximation)
        return _licensed(self.known)

    def meta(self) -> dict[str, Json]:
        """Return the verdict as it is kept beside a kernel; raises as `verdict`."""
        return {"verdict": self.verdict().to_json()}

    def of(self, meta: Mapping[str, Json]) -> Verdict:
        """Return the verdict of a kernel that may come from the cache, with what was kept beside it; raises as `verdict`."""
        if current().verify == "always" or self.known is not None:
            return self.verdict()
        try:
            return _licensed(Verdict.from_json(meta["verdict"]))
        except (LookupError, TypeError, ValueError):
            return self.verdict()  # nothing that can be read was kept beside it


def _verified(program: TensorProgram, applied: BlockProgram, rounding: Approximation | None) -> Verdict:
    trials, seed = current().verify_trials, current().seed
    if rounding is None:
        return verify(program, applied, trials, seed)
    found = verify(rounding.program, rounding.without(applied), trials, seed)
    return replace(found, reason=f"{found.reason}; checked without the roundings, which use the scale so far")


def _licensed(verdict: Verdict) -> Verdict:
    if not verdict.agrees:
        raise VerificationError(f"the scheduled program does not compute what was written: {verdict}")
    return verdict
