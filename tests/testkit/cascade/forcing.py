"""Programs of the derived loops: at tests' sizes the cost model may prefer to go over a row twice, since it stays in a cache."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from testkit.afresh import chosen_afresh
from weft.plan.choose import select

CHEAPEST = select._cheapest


def one_loop(found):
    """The cheapest of the derived loops, or of all."""
    return CHEAPEST([c for c in found if c.origin.startswith("one loop")] or found)


def derived(program):
    """Tells whether a derived loop is in a program."""
    return any(title.startswith("chains of reductions") for title, _ in program.explain().sections)


@contextmanager
def derived_loops(choice=one_loop) -> Generator[None]:
    """Builds the derived loop of what is compiled inside, where there is one, or what another `choice` takes; afresh."""
    with chosen_afresh() as patch:
        patch.setattr(select, "_cheapest", choice)
        yield
