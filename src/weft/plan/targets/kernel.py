"""A kernel: one launch, one grid, and everything that can be asked about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.plan.targets.base import Assembly
from weft.run.launch import Launcher, Made
from weft.target import CPU, Target

if TYPE_CHECKING:
    from weft.block.program import BlockProgram
    from weft.cost import Cost
    from weft.schedule import Schedule
    from weft.verify import Verdict

NOT_JUDGED = "not judged"


def counted(texts: Iterable[str]) -> list[str]:
    """Write each of `texts` once, in order, with how often it is there: `weft_m_0 x 5`."""
    return [f"{text} x {times}" if times > 1 else text for text, times in Counter(texts).items()]


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One kernel of a compiled program.

    Attributes:
        block_program: the applied program that it is printed from; of a split, all of it.
        schedule: what `block_program` was given.
        cost_of: works out `cost`.
        verdict: of `block_program` (with small tiles) against the tensor program of its region, after the laws.
        reads, writes: values of the tensor program.
        made: its text, its interface, and what it was compiled to.
        launch: takes the tensors read and those sizes, gives the tensors written.
        target: what it is compiled for.
        assembled: on a GPU, gives what it was compiled to for calls like the example.
        judged: in words, that its code is right on hard inputs, or why it was not judged (docs/internals/judge.md).
    """

    block_program: BlockProgram
    schedule: Schedule
    cost_of: Callable[[], Cost]
    verdict: Verdict
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    made: Made[Any]
    launch: Launcher
    target: Target = CPU
    assembled: Callable[[], Assembly] | None = None
    judged: str = NOT_JUDGED

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.made.signature.name

    @property
    def source(self) -> str:
        """The whole translation unit, or Triton module."""
        return self.made.text

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of spaces of that program whose sizes no tensor read shows."""
        return self.made.signature.passed

    @property
    def over(self) -> tuple[tuple[int, int], ...]:
        """Which outputs may be the memory of which inputs, by place (`KernelSignature.over`)."""
        return self.made.signature.over

    @property
    def from_cache(self) -> bool:
        """Tell whether the kernel was loaded from the cache, not emitted and compiled now."""
        return self.made.from_cache

    @property
    def key(self) -> str:
        """Key of the kernel's entry in the cache."""
        return self.made.key

    @property
    def cost(self) -> Cost:
        """Bytes, operations, floor and prediction, at the example sizes."""
        return self.cost_of()

    @property
    def binary(self) -> bytes | None:
        """For a GPU: the cubin or hsaco for calls like the example; None on a CPU, whose library is an entry of the cache."""
        return None if self.assembled is None else self.assembled().binary

    @property
    def assembly(self) -> str | None:
        """For a GPU: PTX, or AMD's assembly, of `binary`."""
        return None if self.assembled is None else self.assembled().assembly

    def __str__(self) -> str:
        origin = "from the cache" if self.from_cache else "compiled now"
        names = f"reads {', '.join(self.reads) or 'nothing'}; writes {', '.join(self.writes)}; {origin}"
        return f"kernel {self.name}\n{names}\nverdict: {self.verdict}\njudged: {self.judged}\ncost: {self.cost}"

    def __repr__(self) -> str:
        """Leaves out source and program, which are pages."""
        return f"<Kernel {self.name}: reads {', '.join(self.reads)}; writes {', '.join(self.writes)}>"
