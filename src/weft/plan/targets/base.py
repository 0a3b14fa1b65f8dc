"""`Toolchain`: what weft asks of a target; each target's folder has a subclass.

`Target` names a target, in options, keys and files. Its toolchain does all that differs from target to target; nothing else in weft
asks which target it is. A class must say how a kernel is built; what it does not override is as on a CPU.

A warm start asks its toolchain for kernels that were built before, so modules of toolchains import what chooses, prints and judges
where it is used.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import torch

from weft import cost
from weft.cost import Machine
from weft.errors import ProgramFileError, TargetError
from weft.options import current
from weft.run.cache import Json
from weft.run.key import source_hash
from weft.run.launch import Made
from weft.target import Target
from weft.tensor.dtypes import DType
from weft.tensor.passes import Setting

if TYPE_CHECKING:
    from weft.block.program import BlockProgram
    from weft.cost import Cost
    from weft.cost.chip import Chip
    from weft.plan.targets.bench import Bench, Judged, Serving
    from weft.plan.targets.candidates import Candidate, Example, Leading, Selection, Ways
    from weft.plan.targets.launches import LaunchSpec
    from weft.schedule import Schedule

Meta: TypeAlias = Callable[[], Mapping[str, Json]]
"""What is kept beside a kernel that is printed now: its verdict."""

Refused: TypeAlias = Callable[["Candidate"], "str | None"]
"""Why the kernels of a candidate may not run; None where they may."""


class Assembly(Protocol):
    """Machine code for one class of calls: `binary`, and `assembly`, its text."""

    @property
    def binary(self) -> bytes: ...
    @property
    def assembly(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel, and for a target whose binaries are made call by call, the one for calls like the example."""

    made: Made[Any]
    assembled: Callable[[], Assembly] | None = None


class SavedText(Protocol):
    """What a file holds of a kernel beside its binaries."""

    @property
    def text(self) -> str: ...
    @property
    def signature(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def binaries(self) -> tuple[tuple[str, ...], ...]: ...


@dataclass(frozen=True)
class Toolchain(ABC):
    """All that weft does for one target.

    Attributes:
        target: its name.
        kinds: the kinds of targets (`Target.kind`) that the class is for.
        architectures: for messages, names of targets that are tested; `kinds` where there is one of each.
        passes: the class of targets that passes name (`Pass.kinds`).
        doubles: kernels compute in float64, so that what PyTorch carries in it on a CPU is carried so.
        fine: kernels may end between a matmul and what makes its operands: each thread block would make these again.
        inputs_in_caches: inputs may lie in any level of the memory that has room for them; else they come from the last one.
        any_order: loops that multiply nothing may be nested in any order, by their lengths.
        may_refuse: kernels may refuse a call when they run (a size, a driver, memory), which PyTorch then runs.
        crosses: kernels can be made on a machine that does not have the target.
        times: more schedules (`Ways.many`) are found, and timed where the target is here.
        recalls: kernels that were built before are had by their keys (`recalled`), so that plans of whole graphs can be kept.
        library_share: PyTorch's library is tried for matmuls where kernels take more than this share of eager's time.
    """

    target: Target

    kinds: ClassVar[tuple[str, ...]]
    architectures: ClassVar[tuple[str, ...]] = ()
    passes: ClassVar[str] = "cpu"
    doubles: ClassVar[bool] = True
    fine: ClassVar[bool] = False
    inputs_in_caches: ClassVar[bool] = True
    any_order: ClassVar[bool] = False
    may_refuse: ClassVar[bool] = False
    times: ClassVar[bool] = False
    recalls: ClassVar[bool] = False
    crosses: ClassVar[bool] = False
    library_share: ClassVar[float] = 0.95

    @classmethod
    def knows(cls, target: Target) -> bool:
        """Tells whether there is such an architecture."""
        return not target.arch

    def environment(self) -> dict[str, str]:
        """Returns what every binary depends on beside its kernel, by name, for keys: weft, options, a compiler if there is one.

        Raises:
            CompilerError: there should be a compiler, and is none.
        """
        return {"weft": source_hash(), "machine": str(self.target), "options": current().key()}

    def tuning(self, device: torch.device | None) -> dict[str, str]:
        """Returns what choices that are timed on `device` depend on, by name, beside options and what binaries depend on."""
        del device
        return {}

    def warm(self) -> None:
        """Makes ready for `build`, which will be asked soon, where that goes on meanwhile."""
        return

    def load(self) -> None:
        """Imports what `ways` and `demand_legal` run, before children are forked that call them: else each child does."""
        importlib.import_module("weft.plan.targets.ways")

    @abstractmethod
    def build(self, spec: LaunchSpec, meta: Meta) -> Built:
        """Builds one launch: from the cache, else printed and compiled.

        Raises:
            UnsupportedError: it cannot be printed.
            CompilerError: there is no compiler, or it refused the kernel.
        """

    def started(self, selection: Selection, device: torch.device | None, meta: Meta) -> Iterator[object]:
        """Begins to build what `tuned` and `build` will ask for first, where that goes on meanwhile, while what is yielded is held.

        Args:
            selection: what is chosen among.
            device: where candidates may be timed, if anywhere.
            meta: of the chosen candidate, as for `build`.

        Raises:
            As `build`.
        """
        del selection, device, meta
        yield from ()

    def go_on(self, ahead: Sequence[object]) -> Leading | None:
        """Does the part of `tuned` that has compilers work again, when it is done for several regions before any is built.

        Args:
            ahead: what `started` yielded for a region.

        Returns:
            the candidate that leads, whose program is likely to be taken; None where none was timed.

        Raises:
            WeftError: no candidate can be built.
        """
        del ahead
        return None

    def begun_for(self, specs: Sequence[LaunchSpec], made: Sequence[Made[Any]]) -> Iterator[Callable[[], object]]:
        """Begins to build what other calls of kernels need than those that they were built for; yielded is what waits for it, to be
        held until then.

        Args:
            specs: the launches, with the example of these calls.
            made: what was built of each.
        """
        del specs, made
        yield from ()

    def begin_any_length(
        self, specs: Sequence[LaunchSpec], made: Sequence[Made[Any]], varying: Collection[str]
    ) -> None:
        """Begins to build what calls of other lengths need, and waits for nothing; arguments as of `begun_for`.

        varying: the spaces whose lengths change, by name.
        """
        del specs, made, varying

    def recalled(self, key: str) -> Built | None:
        """Reads a kernel that was built before from the cache, by its key there; None where it cannot be had so."""
        del key
        return None

    def demand_legal(self, applied: BlockProgram) -> None:
        """Raises UnsupportedError where no kernels can be made of `applied`: asked before anything is printed."""
        del applied

    def runs_on(self, where: Target) -> bool:
        """Tells whether weft can call its kernels with tensors that live at `where`."""
        return where == self.target

    def demand_running(self) -> None:
        """Raises TargetError where weft has no kernels for the target, or does not run them on tensors that live there."""
        if not self.runs_on(self.target):
            raise TargetError(
                f"weft compiles kernels for {self.target}, but does not run them",
                todo="nothing: PyTorch runs this; weft.optimize(..., target=...) gives the kernels' text and binary",
            )

    # What the model knows.

    def machine(self, threads: int) -> Machine:
        """Describes the machine for the cost model; `threads` are those of a CPU."""
        return Machine.here(threads)

    def chip(self) -> Chip | None:
        """Returns the chip whose published figures stand for the target; None where schedules of columns are not for it.

        Raises:
            TargetError: it is a GPU of which weft has no figures.
        """
        return None

    def costs(self, example: Example, applied: BlockProgram, schedule: Schedule) -> tuple[Cost, ...]:
        """Estimates the cost of each launch of a program with places; `schedule` is what gave them."""
        del schedule
        return cost.estimate(applied, example.sizes, self.machine(example.threads), example.innermost, example.masks)

    def narrow_matmuls(self) -> bool:
        """Tells whether kernels multiply 16 and 8 bits with units that the machine has for them."""
        return True

    # Schedules.

    def setting(self, lengths: Mapping[str, int] | None = None) -> Setting:
        """Returns what passes depend on: which are for the target, and what its units multiply.

        `lengths` are those of loops that may be nested in any order.
        """
        if not self.narrow_matmuls():
            return Setting(self.passes, lengths=lengths, doubles=self.doubles)
        machine = self.machine(1)
        wide, narrow, eighths = map(machine.matrix_rate, (DType.float32, DType.bfloat16, DType.float8_e4m3fn))
        faster = {DType.bfloat16: narrow > wide, DType.float8_e4m3fn: eighths > narrow}
        units = frozenset(dtype for dtype, is_faster in faster.items() if is_faster)
        return Setting(self.passes, units, lengths, self.doubles)

    def ways(self, fused: BlockProgram, example: Example) -> Ways:
        """Returns the ways to schedule `fused`."""
        from weft.plan.targets.ways import RuleWays

        return RuleWays(self, fused, example)

    def tuned(
        self,
        selection: Selection,
        device: torch.device | None,
        refused: Refused,
        anew: Callable[[], Selection],
        ahead: Sequence[object] = (),
    ) -> Selection:
        """Returns `selection` with the candidate to build: by default the one that the model chose.

        Args:
            selection: what to choose among.
            device: where candidates may be timed, if anywhere.
            refused: why a candidate may not run.
            anew: selects again, for candidates that were not kept.
            ahead: what `started` yielded.
        """
        del device, refused, anew, ahead
        return selection

    # Judging.

    def unjudged(self, device: torch.device | None) -> str:
        """Says why kernels cannot be run here to be judged; empty where they can."""
        del device
        return ""

    def bench(self, device: torch.device | None) -> Bench:
        """Makes a place where kernels are run to be judged."""
        from weft.plan.targets.bench import Bench

        del device
        return Bench()

    def points(self) -> tuple[int, int]:
        """Returns how many elements to judge at: at each of many small sizes, and where loops have several blocks."""
        from weft.verify.fitted import FAR, MANY

        return MANY, FAR

    def serving(self, judged: Judged, kernels: Sequence[Any], *, congruent: bool) -> Serving | None:
        """Tells what sizes the kernels' binaries serve; None where any.

        `congruent` asks for sizes that leave the same rest as the example's where that matters to a binary.
        """
        del judged, kernels, congruent
        return None

    # Files.

    def manifest(self) -> dict[str, Json]:
        """Returns what a program in a file needs of the machine that loads it."""
        return {"features": []}

    def demand_fit(self, path: Path, manifest: Mapping[str, Any], torch_version: str) -> None:
        """Raises ProgramFileError or TargetError where a program with this `manifest` does not run on this machine."""
        del path, manifest, torch_version

    def place(self, device: str | torch.device | None) -> torch.device:
        """Chooses the device on which a program that was loaded runs: of several GPUs, which one.

        Raises:
            TargetError: it does not run there.
        """
        try:
            torch.device(device or "cpu")
        except (RuntimeError, TypeError) as error:
            raise TargetError(
                f"there is no device {device!r}", todo='name one as PyTorch does, such as "cuda:1"'
            ) from error
        return torch.device("cpu")

    def saved(self, made: Any, put: Callable[[bytes], str]) -> tuple[tuple[str, ...], ...]:
        """Puts a kernel's binaries into an archive; `put` names what it adds. Raises ProgramFileError where it cannot be."""
        del made, put
        raise ProgramFileError(f"kernels for {self.target} cannot be saved", todo="compile the program where it runs")

    def restored(self, saved: SavedText, files: Mapping[str, bytes], *, compiles: bool = True) -> Built:
        """Restores what `saved` was of, from the archive's members. Raises TargetError where it cannot be loaded.

        Without `compiles`, calls that need another binary than those in the archive and the cache raise NotBuiltError.
        """
        del files, compiles
        raise ProgramFileError(f"kernels for {self.target} cannot be loaded: {saved.key}")
