"""Mutants of placed programs, drawn and put through what guards a kernel.

`PYTHONPATH=src:tests python -m testkit.mutants.campaign --help`. Of each placed program as many mutants are drawn as asked for, the
fixed operators in turn. One that the checker refuses is counted, and another one drawn: a mutant counts that is well formed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from testkit.mutants.fates import Fate, Subject
from testkit.mutants.operators import OPERATORS, Mutant, mutants
from testkit.mutants.reasons import why
from testkit.mutants.subjects import of_the_benchmark, random_subjects


@dataclass
class Tally:
    """What has become of the mutants so far.

    Attributes:
        fates: how many of each operator had each fate.
        survivors: mutants that change a result and that nothing stops.
        equivalent: of those that change none, by reason; those without one by None.
    """

    fates: Counter[tuple[str, Fate]] = field(default_factory=Counter[tuple[str, Fate]])
    survivors: list[str] = field(default_factory=list[str])
    equivalent: dict[str | None, list[str]] = field(default_factory=dict[str | None, list[str]])

    @property
    def formed(self) -> int:
        """Count those that were well formed."""
        return sum(count for (_, fate), count in self.fates.items() if fate is not Fate.malformed)

    @property
    def unexplained(self) -> list[str]:
        """Mutants that change no result for no known reason."""
        return self.equivalent.get(None, [])

    def add(self, subject: Subject, mutant: Mutant) -> Fate:
        """Puts one mutant through the guards."""
        fate, said = subject.fate(mutant.program)
        self.fates[mutant.operator, fate] += 1
        if fate is Fate.survives:
            self.survivors.append(f"{subject.name}: {mutant}: {said}")
        elif fate is Fate.equivalent:
            self.equivalent.setdefault(why(subject, mutant), []).append(f"{subject.name}: {mutant}")
        return fate


def drawn(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    """Yields the mutants of a subject in a random order in which the operators take turns."""
    by_operator: dict[str, list[Mutant]] = {name: [] for name in OPERATORS}
    for mutant in mutants(subject.applied):
        by_operator[mutant.operator].append(mutant)
    for each in by_operator.values():
        rng.shuffle(each)
    queues = [each for each in by_operator.values() if each]
    while queues:
        for queue in queues:
            yield queue.pop()
        queues = [queue for queue in queues if queue]


def examine(subject: Subject, count: int, rng: random.Random, tally: Tally, seconds: float = math.inf) -> None:
    """Tries `count` well-formed mutants of a subject, or as many as it has, or as fit into so many seconds."""
    fate, said = subject.fate(subject.applied)
    if fate is not Fate.equivalent:
        raise AssertionError(f"{subject.name} is not right as it is: {fate.value}: {said}")
    begun = time.process_time()
    for mutant in drawn(subject, rng):
        count -= tally.add(subject, mutant) is not Fate.malformed
        if count <= 0 or time.process_time() - begun > seconds:
            return


def report(tally: Tally) -> Iterator[str]:
    """Yields the lines that say what became of all."""
    for operator in OPERATORS:
        found = {fate: tally.fates[operator, fate] for fate in Fate}
        yield f"{operator:24}" + "".join(f"{found[fate]:8} {fate.name}" for fate in Fate)
    yield f"{tally.formed} well-formed mutants"
    for reason, which in sorted(tally.equivalent.items(), key=lambda each: -len(each[1])):
        yield f"{len(which):5} change no result: {reason or 'NO REASON KNOWN'}"
        yield from (f"        {each}" for each in which[: 1 if reason else None])
    yield from (f"SURVIVES {each}" for each in tally.survivors)


def main() -> int:
    """Runs the campaign; 1 where a mutant survives that changes a result, or changes none for no known reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=25, help="well-formed mutants of a program")
    parser.add_argument("--random", type=int, default=40, help="random programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="rows of the benchmark; none: all of them")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the processor, for one program")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tally, begun = Tally(), time.monotonic()
    seeds = range(1000 * given.seed, 1000 * given.seed + given.random)
    for subject in chain(of_the_benchmark(tuple(given.only)), random_subjects(seeds)):
        if time.monotonic() - begun > 60 * given.minutes:
            sys.stdout.write("out of time\n")
            break
        before, seconds = tally.formed, time.process_time()
        known, unknown = len(tally.survivors), len(tally.unexplained)
        examine(subject, given.each, random.Random(f"{given.seed} {subject.name}"), tally, given.seconds)
        sys.stdout.write(f"{subject.name}: {tally.formed - before} mutants, {time.process_time() - seconds:.1f} s\n")
        sys.stdout.writelines(f"    {each}\n" for each in (*tally.survivors[known:], *tally.unexplained[unknown:]))
        sys.stdout.flush()
    sys.stdout.writelines(f"{line}\n" for line in report(tally))
    if given.json is not None:
        fates = {f"{operator}: {fate.value}": count for (operator, fate), count in tally.fates.items()}
        found = {
            "fates": fates,
            "survivors": tally.survivors,
            "equivalent": {str(k): v for k, v in tally.equivalent.items()},
        }
        given.json.write_text(json.dumps(found, indent=1))
    return 1 if tally.survivors or None in tally.equivalent else 0


if __name__ == "__main__":
    raise SystemExit(main())
