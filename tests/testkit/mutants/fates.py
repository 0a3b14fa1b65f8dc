"""What becomes of a mutant: which guard of a kernel stops it, or that none does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import combinations

import numpy as np

from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.program import BlockProgram
from weft.errors import WeftError
from weft.lab.fuzz.programs import TameNumbers, inputs_of
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.program import TensorProgram
from weft.verify import verify
from weft.verify.cases import Case, cases, has_meaning
from weft.verify.eager import EagerDomain
from weft.verify.emitted import ErrorTally
from weft.verify.fitted import FAR, fitted
from weft.verify.regimes import layout_of
from weft.verify.sizes import freed, small_tiles
from weft.verify.subject import FAILURES

_CLOSE = 1.0e-9
# Of a call on hard inputs: tiles are small, so that few operations have all edges.
_OPERATIONS = 1 << 13


class Fate(Enum):
    """Which guard stops a mutant: the checker of forms, the check over finite fields, the judge; or none."""

    malformed = "refused by the checker"
    refuted = "refuted over finite fields"
    judged = "wrong on hard inputs"
    equivalent = "changes no result"
    survives = "SURVIVES: changes a result"


@dataclass(frozen=True)
class Subject:
    """A tensor program and a placed program that computes it."""

    name: str
    program: TensorProgram
    applied: BlockProgram

    @cached_property
    def free(self) -> TensorProgram:
        """The program with symbols for sizes that are mere numbers, as the check runs it."""
        return freed(self.program, self.applied).program

    @cached_property
    def sizes(self) -> Sequence[Mapping[str, int]]:
        """Sizes at which results are compared in fp64: those of the check, which reach every edge, and larger ones."""
        found = verify(self.program, self.applied).sizes
        assert found, f"{self.name} cannot be checked"
        larger = {n: 2 * s + 3 for n, s in found[-1].items() if n not in self.free.following}
        fixed = {s.name: s.fixed for s in self.free.spaces() if s.fixed is not None}
        taken = self.free.sizes({**larger, **fixed})
        usable = 0 not in taken.values() and self.free.consistent(taken) and math.prod(taken.values()) < FAR
        return (*found, taken) if usable else tuple(found)

    @cached_property
    def hard(self) -> list[Case]:
        """Calls on inputs of all regimes, in numbers; none where PyTorch runs operations inside."""
        if not has_meaning(self.free):
            return []
        layout = layout_of(self.free)
        wanted = {n: s for n, s in self.sizes[-1].items() if n not in self.free.following}
        sizes = fitted(self.free, wanted, layout, _OPERATIONS)
        return [] if sizes is None else list(cases(self.free, (), (sizes,), 0))

    def wrong(self, applied: BlockProgram) -> str | None:
        """Says what the judge finds in `applied`, run in the machine's arithmetic by the interpreter; None: nothing.

        The tiles are small ones; the judge's rules and inputs are those that printed kernels are held against.
        """
        tally = ErrorTally(self.free)
        for case in self.hard:
            tally.add(case, in_machine_arithmetic(self.free, applied, case))
            if tally.wrong:
                break
        return tally.verdict()

    def differs(self, applied: BlockProgram) -> str | None:
        """Says where `applied` gives another result in fp64; None where it does not."""
        for where, numbers, wanted, room in self.exact:
            try:
                with np.errstate(all="ignore"):
                    found, _ = interpret(applied, numbers, where, TameNumbers())
            except FAILURES as error:
                return f"fails at {dict(where)}: {error}"
            for place, (a, b) in enumerate(zip(wanted, found, strict=True)):
                if a.shape != b.shape or not np.allclose(a, b, rtol=_CLOSE, atol=room, equal_nan=True):
                    return f"output {place} at {dict(where)}"
        return None

    @cached_property
    def exact(self) -> list[tuple[Mapping[str, int], Mapping[str, Array], Sequence[Array], float]]:
        """Inputs at each size, the results that are right, and by how much others may differ."""
        made: list[tuple[Mapping[str, int], Mapping[str, Array], Sequence[Array], float]] = []
        for number, where in enumerate(self.sizes):
            numbers = inputs_of(self.free, where, TameNumbers(), np.random.default_rng(number))
            with np.errstate(all="ignore"):
                wanted = evaluate(self.free, numbers, TameNumbers(), sizes=dict(where))
                every = replace(self.free, outputs=tuple(n.name for n in self.free.nodes), output_dims=())
                values = evaluate(every, numbers, TameNumbers(), sizes=dict(where))
            largest = max(
                [1.0, *(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in values if v.dtype.kind == "f")]
            )
            made.append((where, numbers, wanted, 1e-11 * largest))
        return made

    @cached_property
    def symmetric(self) -> bool:
        """Tell whether results are the same where two tensors of one type are exchanged, and what else is theirs is not."""
        where, numbers, wanted, room = self.exact[0]
        kinds = {n.name: (n.dtype, tuple(a.space for a in n.axes)) for n in self.free.inputs}
        for one, other in combinations(kinds, 2):
            if kinds[one] == kinds[other]:
                exchanged = {**numbers, one: numbers[other], other: numbers[one]}
                with np.errstate(all="ignore"):
                    found = evaluate(self.free, exchanged, TameNumbers(), sizes=dict(where))
                if all(
                    np.allclose(a, b, rtol=_CLOSE, atol=room, equal_nan=True)
                    for a, b in zip(wanted, found, strict=True)
                ):
                    return True
        return False

    def fate(self, mutant: BlockProgram) -> tuple[Fate, str]:
        """Puts a mutant through what guards a kernel; returned with what the guard says."""
        try:
            check(mutant)
        except (WeftError, *FAILURES) as error:
            return Fate.malformed, str(error)
        try:
            verdict = verify(self.program, mutant)
            if not verdict.agrees:
                return Fate.refuted, verdict.reason
            free = freed(self.program, mutant)
            small = small_tiles(free.applied, free.reach, free.most)
            wrong = self.wrong(small)
        except FAILURES as error:  # as in a plan: a region that cannot be checked has no licence
            return Fate.refuted, f"{type(error).__name__}: {error}"
        if wrong is not None:
            return Fate.judged, wrong
        different = self.differs(small) or self.differs(free.applied)
        return (Fate.equivalent, "") if different is None else (Fate.survives, different)


def in_machine_arithmetic(program: TensorProgram, applied: BlockProgram, case: Case) -> list[Array]:
    """Runs `applied` on a case as a kernel computes it: float32 and what is rounded on the way, not fp64."""
    kinds = {n.name: n.dtype for n in program.inputs}
    narrow = {
        name: v.astype(np.float32) if kinds[name].is_float and kinds[name] is not DType.float64 else v
        for name, v in case.inputs.items()
    }
    with np.errstate(all="ignore"):
        found, _ = interpret(applied, narrow, dict(case.sizes), EagerDomain())
    values = program.values()
    dtypes = (values[name].dtype for name in program.outputs)
    return [rounded_to(v, dtype) for v, dtype in zip(found, dtypes, strict=True)]


def rounded_to(values: Array, dtype: DType) -> Array:
    """Returns results as they lie in memory: float64 numbers that `dtype` holds, int64 or bool."""
    if not dtype.is_float:
        return values
    domain = EagerDomain()
    return domain.convert(values, dtype, semantic=True).astype(np.float64)
