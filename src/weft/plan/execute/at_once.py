"""Matmuls that are PyTorch's library's before the graph is cut: those that it was measured to be clearly faster at than the model
predicts any kernel to be. Without them the graph is planned once, not again after a trial. Record 0071.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.capture import FASTER_IN_LIBRARY, Captured
from weft.defects import note
from weft.options import current
from weft.phases import phase
from weft.plan.choose.cuts import Cuts
from weft.plan.execute.library import surely_for_the_library
from weft.plan.execute.library_times import LibraryTimes
from weft.plan.execute.regions import Regions
from weft.plan.execute.selections import key_parts
from weft.plan.execute.tried import a_trial_may_follow
from weft.plan.partition.partition import Region
from weft.plan.targets import toolchain
from weft.plan.targets.kept import keep, recalled
from weft.plan.targets.packed import FORMS, unplaced
from weft.tensor.program import TensorProgram


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept: the values, by name, that the calls make which are the library's. Of the same program calls may be numbered
    otherwise.
    """

    names: tuple[str, ...]


_WITH_KEPT = FORMS | {"the library's": _Kept}


@phase("cuts")
def left_at_once(
    captured: Captured, program: TensorProgram, arguments: int, known: Regions, times: LibraryTimes
) -> Mapping[int, str]:
    """Return the ATen calls, by number, that the library gets without a trial, and why; none where nothing is timed.

    Args:
        captured, program: the graph as written, and after the laws.
        arguments: how many it has.
        known: of its regions.
        times: of the library.
    """
    if captured.left or not a_trial_may_follow(captured, arguments, known):
        return {}
    assert captured.program is not None
    parts = key_parts("the library's", unplaced(program)[0], known.example(program))
    parts |= toolchain(known.target).tuning(known.device) | {"written": repr(unplaced(captured.program)[0])}
    kept = None if current().verify == "always" else recalled(parts, _Kept, forms=_WITH_KEPT)
    if kept is not None:
        names = kept[0].names
        return {captured.made_by[name]: FASTER_IN_LIBRARY for name in names if name in captured.made_by}
    try:
        atoms = Cuts(program, known, writes=known.writes).uncut()
        regions = [atom.stage for atom in atoms if isinstance(atom.stage, Region)]
        calls = surely_for_the_library(captured, program, regions, known, times)
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs no kernel
        note(error)
        return {}
    names = tuple(name for name, call in captured.made_by.items() if call in calls)
    keep(parts, _Kept(names), forms=_WITH_KEPT)
    return dict.fromkeys(calls, FASTER_IN_LIBRARY)
