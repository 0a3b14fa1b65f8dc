"""Campaigns of rules on random programs: every application of a law, a fusion rule or a pass, checked by itself.

Where `weft.lab.fuzz.programs` looks at snapshots and schedules, here each step has a check of its own, so that many of
them show whether the checks raise false alarms: laws on tensor programs as captured graphs are checked
(`weft.plan.partition.laws_check`), steps of fusion in the interpreter over a field and in fp64, and a schedule as regions are
(`weft.verify.verify`).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Generator, Iterator, Mapping

from weft.block.copies import canonical
from weft.block.lower import lower
from weft.errors import ScheduleError, UnsupportedError
from weft.lab.fuzz.campaign import Course, Tally, run
from weft.lab.fuzz.programs import ProgramTrial, examined
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.lab.fuzz.record import Outcome
from weft.pipeline import AFTER_FUSION, DERIVED_LAWS, GRAPH, RULES_IN_PLANS, WRITTEN, fuse
from weft.plan.partition.laws_check import laws_refuted
from weft.tensor.laws import centre_at_an_element
from weft.tensor.passes import Pass, Step
from weft.tensor.program import TensorProgram
from weft.verify import verify

LAWS: Mapping[str, Pass[..., TensorProgram]] = {
    each.name: each for each in (*GRAPH, centre_at_an_element, *DERIVED_LAWS, *WRITTEN.before) if not each.takes
}
"""Laws by name; each is tried on the program as it is drawn, and on what the laws before it made."""


APPLIED = "applied"
"""What counts of applications begin with."""


def campaign(count: int | None, seed: int = 0, *, course: Course | None = None) -> Tally:
    """Apply rules to random programs until they were applied `count` times, and check each application.

    Args:
        count: of applications, None for as many as there is time for; the program that brings them to it is still done whole.
        seed: of the first program; then one more each.
        course: limit of time, and where results go.

    Returns:
        Counts of how often each law, rule or pass changed a program; of refusals by reason.
    """

    def outcomes(left: Iterator[int]) -> Generator[Outcome]:
        return examined(left, lambda program, own, counts, _: _first_wrong(program, own, counts))

    def enough(tally: Tally) -> bool:
        return count is not None and tally.counts["applications"] >= count

    return run("applications of rules, each checked", itertools.count(seed), outcomes, course, enough=enough)


def _first_wrong(program: TensorProgram, seed: int, counts: Counter[str]) -> tuple[str, str] | None:
    """Return the stage and what is wrong of the first application that its check does not pass."""
    rng = random.Random(f"{seed} choices")
    for stage, applications in (
        ("law", _laws(program)),
        ("step", _steps(program, rng)),
        ("schedule", _schedules(program, rng)),
    ):
        try:
            for name, wrong in applications:
                counts.update(("applications", f"{APPLIED}: {name}"))
                if wrong is not None:
                    return stage, f"{name}: {wrong}"
        except (UnsupportedError, ScheduleError) as refusal:
            counts[f"refused: {stage}: {type(refusal).__name__}"] += 1
        except Exception as error:  # noqa: BLE001 - whatever a rule raises is a finding
            return stage, f"{type(error).__name__}: {getattr(error, 'what', error)}"
    return None


def _laws(program: TensorProgram) -> Iterator[tuple[str, str | None]]:
    """Yield each law on the program, and on what those before it made; with what its check says against it."""
    made = program
    for name, law in LAWS.items():
        for before in dict.fromkeys((program, made)):
            after = law(before)
            if after != before:
                refuted = laws_refuted(before, after)
                yield name, None if refuted is None else refuted.what
            if before is made:
                made = after


def _steps(program: TensorProgram, rng: random.Random) -> Iterator[tuple[str, str | None]]:
    """Yield each step of fusion, with all rules and with those of plans; peeling, and the passes for numbers."""
    lowered = lower(program)
    blocks = {s.name: rng.choice((1, 2, 3)) for s in program.spaces() if s.fixed is None}
    trial = ProgramTrial(program, {name: size * rng.choice((1, 2, 3)) for name, size in blocks.items()}, rng, blocks)
    fused, plain = fuse(lowered, checked=True), fuse(lowered, RULES_IN_PLANS, (), checked=True)
    for step in (*fused.steps, *plain.steps):
        yield step.rule, trial.difference(step.after)
    for alternative in fused.alternatives:
        yield alternative.steps[0].rule, trial.difference(alternative.program)
    for snapshot in (*fused.snapshots, *plain.snapshots):
        made = snapshot.program
        for each in AFTER_FUSION:
            after = each.again(made, Step(each.name))
            if after != made:
                yield each.name, trial.difference(after)
            made = after


def _schedules(program: TensorProgram, rng: random.Random) -> Iterator[tuple[str, str | None]]:
    """Yield a random schedule, checked as a region's is."""
    _, applied = fitting_schedule(canonical(fuse(lower(program), RULES_IN_PLANS, ()).last), rng)
    verdict = verify(program, applied)
    yield "schedule", None if verdict.agrees else str(verdict)
