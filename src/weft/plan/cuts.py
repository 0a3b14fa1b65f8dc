"""Which regions become one: two that follow each other are joined where the cost model says that it pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.plan.partition import Call, Region, Stage, apart, before_products, before_reductions, joined, partition
from weft.plan.select import Selection
from weft.tensor.program import Contraction, Reduction, TensorProgram

# A join must be predicted to save this share: the model is a model, and two kernels are what is known to work.
_GAIN = 0.1
# But where the second contracts what the first reduces along, the first has whole rows in one kernel as it is: a join takes
# no loop off the grid. It saves a launch and the list between; where that is a product's, as large as all that is read, it is left
# only where it is predicted clearly slower. A list of rows that are only normalised is small beside the product that reads it.
_LOSS = 0.1
# Fusing looks at every pair of operators, again after every rewrite: beyond this many, a join costs more to find than it saves.
_MOST_NODES, _MOST_CONTRACTIONS = 40, 4


@dataclass
class Cuts:
    """The stages of `program`, with the selection for each region.

    Attributes:
        prepare: the selection for a region, at the example's sizes; raises where there is none.
        known, apart: what was found out before of regions, and of pairs that stay apart; by id, with what has that id.
    """

    program: TensorProgram
    prepare: Callable[[Region], Selection]
    known: dict[int, tuple[Region, Selection | None]] = field(
        default_factory=dict[int, "tuple[Region, Selection | None]"]
    )
    apart: dict[tuple[int, int], tuple[Region, Region]] = field(
        default_factory=dict[tuple[int, int], tuple[Region, Region]]
    )

    def stages(self) -> tuple[Stage, ...]:
        """The stages in order, after every join that pays: the cuts between contractions are where kernels may end, not must."""
        stages = tuple(part for stage in partition(self.program) for part in self._possible(stage))
        while (better := self._joined(stages)) is not None:
            stages = better
        return stages

    def _possible(self, stage: Stage) -> tuple[Stage, ...]:
        """`stage`, or where it has no candidate, in parts that may have one; on a GPU also where the parts are faster."""
        if isinstance(stage, Call):
            return (stage,)
        whole = self._known(stage)
        cut = self._operands_apart(stage, whole)
        if whole is not None or len(cut) > 1:
            return cut
        for split in (apart, before_reductions):
            parts = split(self.program, stage)
            if len(parts) > 1:
                return tuple(piece for part in parts for piece in self._possible(part))
        return (stage,)

    def _operands_apart(self, stage: Region, whole: Selection | None) -> tuple[Stage, ...]:
        """`stage`, or what its products read and its products: each program of a GPU makes its operands again."""
        if whole is not None and not whole.example.target.is_gpu:
            return (stage,)
        parts = before_products(self.program, stage)
        known = [self._known(part) for part in parts] if len(parts) > 1 else [None]
        if any(each is None for each in known):
            return (stage,)
        seconds = sum(each.chosen.cost.predicted_seconds for each in known if each is not None)
        return parts if whole is None or seconds < whole.chosen.cost.predicted_seconds else (stage,)

    def _joined(self, stages: Sequence[Stage]) -> tuple[Stage, ...] | None:
        makers = {name: s for s in stages if isinstance(s, Region) for name in s.results}
        for second in stages:
            if isinstance(second, Call):
                continue
            firsts = {id(makers[name]): makers[name] for name in second.uses if name in makers}
            for first in firsts.values():
                if (id(first), id(second)) in self.apart:
                    continue
                found = joined(self.program, stages, first, second)
                if found is not None and self._pays(first, second, found):
                    return found
                if found is not None:
                    self.apart[id(first), id(second)] = first, second
        return None

    def _pays(self, first: Region, second: Region, found: Sequence[Stage]) -> bool:
        size = len(first.program.nodes) + len(second.program.nodes)
        products = [n for r in (first, second) for n in r.program.nodes if isinstance(n, Contraction)]
        if size > _MOST_NODES or len(products) > _MOST_CONTRACTIONS:
            return False
        names = {n.name for n in first.program.nodes} | {n.name for n in second.program.nodes}
        region = next(s for s in found if isinstance(s, Region) and {n.name for n in s.program.nodes} == names)
        parts = [self._known(r) for r in (first, second)]
        whole = self._known(region)
        if whole is None or any(p is None for p in parts):
            return whole is not None  # what cannot run apart has no other way
        if _contracts_what_is_reduced(first.program, second.program):
            apart = sum(p.chosen.cost.predicted_seconds for p in parts if p is not None)
            products_first = any(isinstance(n, Contraction) for n in first.program.nodes)
            return whole.chosen.cost.predicted_seconds < (1 + (_LOSS if products_first else 0.0)) * apart
        return whole.work_seconds < (1 - _GAIN) * sum(p.work_seconds for p in parts if p is not None)

    def _known(self, region: Region) -> Selection | None:
        if id(region) not in self.known:
            try:
                found = self.prepare(region)
            except Exception:  # noqa: BLE001 - no join then; where a region fails that is no join, building it says why
                found = None
            self.known[id(region)] = region, found
        return self.known[id(region)][1]


def _contracts_what_is_reduced(first: TensorProgram, second: TensorProgram) -> bool:
    """Whether a contraction of `second` runs along a space that a reduction of `first` runs along."""
    reduced = {a.space for n in first.nodes if isinstance(n, Reduction) for a in n.over}
    return any(a.space in reduced for n in second.nodes if isinstance(n, Contraction) for a in n.over)
