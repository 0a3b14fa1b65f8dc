"""Regions that have no kernels, and those of which it follows that they have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.plan.partition.partition import Region
from weft.tensor.program import Contraction, Lookup, Ranking, Reduction, Scan, TensorProgram, uses


@dataclass(frozen=True, slots=True)
class RegionValues:
    """What a region computes.

    Attributes:
        program: the region's.
        values: the names of all that it computes; results: of what it hands on.
    """

    program: TensorProgram
    values: frozenset[str]
    results: frozenset[str]

    @staticmethod
    def by(region: Region) -> RegionValues:
        """Lists what `region` computes."""
        return RegionValues(region.program, frozenset(n.name for n in region.program.nodes), frozenset(region.results))

    def holds(self, other: RegionValues) -> bool:
        """Tells whether it computes all that `other` does, and more, and hands all of its results on.

        What `other` reads it reads too, or makes element by element.
        """
        if not (other.values < self.values and other.results <= self.results):
            return False
        return _summed(self.program).isdisjoint(node.name for node in other.program.inputs)


def _summed(program: TensorProgram) -> set[str]:
    """Returns the values of `program` that are made of whole rows, as reductions, matmuls and scans are, or are made of such."""
    found = set[str]()
    for node in program.nodes:
        if isinstance(node, Contraction | Reduction | Scan | Ranking | Lookup) or not found.isdisjoint(uses(node)):
            found.add(node.name)
    return found


@dataclass
class RefusedRegions:
    """Regions that were found to have no kernels.

    One that holds such a region has none either: kernels of it, without what only its other results need, would be kernels of that
    region. It need not be so where results of the smaller region stay inside: a list that is handed on must be made as a whole.
    Attention over long rows has kernels, and its first half has none. Nor where what the smaller one reads is reduced before: then
    each thread block has whole rows, which it would not have otherwise (RMSNorm of 512 columns, and three matmuls).
    """

    _found: list[RegionValues] = field(default_factory=list[RegionValues])

    def add(self, region: Region) -> None:
        """Hears of a region that was refused."""
        made = RegionValues.by(region)
        if not self.follows(made):
            self._found.append(made)

    def follows(self, made: RegionValues) -> bool:
        """Tells whether what is known says that a region which computes `made` has no kernels."""
        return any(made.holds(each) for each in self._found)


def following(regions: Sequence[Region]) -> list[frozenset[int]]:
    """Lists for each region the others, by number, each of which refused says that it has no kernels."""
    made = [RegionValues.by(region) for region in regions]
    return [frozenset(n for n, other in enumerate(made) if each.holds(other)) for each in made]
