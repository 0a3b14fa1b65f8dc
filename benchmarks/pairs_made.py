"""Pairs on disk: drawn, compiled and packed, an archive for each workload, so that they can be run where nothing can be compiled.

NAME.tar.xz     workload.json   what was drawn of how many, and what made it
                pairs.jsonl     a pair a line: program, schedule, prediction, what that was made of, launches
                kernels.json    for a GPU, by digest: how a kernel is called and loaded
                DIGEST.cubin    its binary; DIGEST.py: its text
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from pairs_space import Pair, PairSpace, written
from pairs_workloads import OperandView, problem

from weft.api.files import replacing
from weft.errors import WeftError
from weft.lab.measure import MadeBy
from weft.lab.workloads.gpu import Workload
from weft.plan.targets import launch_specs, toolchain
from weft.plan.targets.triton.build import Printed, printed
from weft.run.gpu import Assembled, GpuBinary, GpuSignature, GpuSource, restored_gpu, side_by_side
from weft.run.gpu.build import triton_version
from weft.target import CPU, Target

_COMPILING = 20.0
_WORKERS = 2


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """A launch of a pair: `launch(*tensors named reads, *tensors named begun, *sizes)` gives the tensors named writes.

    Attributes:
        kernel: its digest; empty for a CPU.
    """

    kernel: str
    reads: tuple[str, ...]
    begun: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class MadePair:
    """A line of pairs.jsonl.

    Attributes:
        candidate: where the fused program comes from; `program`: its digest.
        schedule: as `pairs_space.written` gives it.
        drawn, random: as of `pairs_space.Pair`.
        predicted: seconds; `breakdown`: what they are made of, as `PairSpace.breakdown` gives it.
        launches: in order; none for a CPU, where kernels are compiled when they are timed.
        results: what the function returns, by the names that launches give.
    """

    candidate: str
    program: str
    schedule: Mapping[str, Any]
    drawn: str
    random: bool
    predicted: float
    breakdown: Sequence[Mapping[str, Any]]
    launches: tuple[PackedLaunch, ...]
    results: tuple[str, ...]

    @staticmethod
    def of(found: Mapping[str, Any]) -> MadePair:
        """Read a line."""
        own: dict[str, Any] = dict(found)
        own["launches"] = tuple(PackedLaunch(**{**each, **_tuples(each)}) for each in found["launches"])
        own["results"] = tuple(found["results"])
        return MadePair(**own)


def _tuples(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is a list in JSON as tuples."""
    return {name: tuple(cast("list[Any]", value)) for name, value in found.items() if isinstance(value, list)}


@dataclass(frozen=True)
class Archive:
    """What a file holds.

    Attributes:
        about: workload.json.
        inputs: of every pair's launches.
        kernels: by digest, the JSON of kernels.json.
        files: the other members.
    """

    about: Mapping[str, Any]
    pairs: Sequence[MadePair]
    inputs: Sequence[OperandView]
    kernels: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, bytes]

    @property
    def target(self) -> Target:
        """What it was compiled for."""
        return Target.parse(self.about["target"])

    def kernel(self, digest: str) -> GpuBinary:
        """Restore a GPU's kernel: it is loaded with its first call, and nothing is compiled."""
        known = self.kernels[digest]
        source = GpuSource(self.files[f"{digest}.py"].decode(), GpuSignature.from_json(known["signature"]))
        assembled = Assembled.from_json(known["assembled"], self.files[f"{digest}.cubin"], "")
        return restored_gpu(source, self.target, [assembled], digest)


@dataclass(eq=False)
class Making:
    """The pairs of a workload while they are drawn and compiled.

    Attributes:
        kernels: what became of each kernel, by digest.
        files: of these.
        failed: how many pairs could not be compiled, by reason.
        tried: candidates that were compiled, by identity.
    """

    space: PairSpace
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    failed: Counter[str] = field(default_factory=Counter[str])
    tried: set[int] = field(default_factory=set[int])

    def drawn(self, every: Sequence[Pair], count: int, seed: int) -> list[MadePair]:
        """Draw `count` of `every` that can be compiled: half of the likeliest, and if too many of these fail the next in rank;
        half of the rest.
        """
        best, rest = self.space.draw(every, count, seed)
        next_best = (replace(pair, drawn="best") for pair in sorted(rest, key=lambda pair: pair.predicted))
        found = list(self._taken(chain(best, next_best), (count + 1) // 2))
        found += self._taken(iter(rest), count - len(found))
        return found + list(self._taken(iter(best), count - len(found)))

    def _taken(self, source: Iterator[Pair], count: int) -> Iterator[MadePair]:
        untried = (pair for pair in source if id(pair.candidate) not in self.tried)
        while count > 0 and (batch := list(islice(untried, count))):
            self.tried |= {id(pair.candidate) for pair in batch}
            for pair, made in zip(batch, side_by_side([partial(self.made, e) for e in batch], _WORKERS), strict=True):
                if isinstance(made, WeftError):
                    self.failed[f"{pair.drawn}: {made.what.splitlines()[0][:100]}"] += 1
                    continue
                count -= 1
                yield self.line(pair, made)

    def made(self, pair: Pair) -> list[Printed]:
        """Compile the kernels of a pair, and return those for a GPU; raises WeftError."""
        chosen, own = pair.candidate, self.space.problem
        specs = launch_specs(own.program, chosen.applied, chosen.schedule, own.example)
        if self.space.target == CPU:
            for spec in specs:
                toolchain(CPU).build(spec, dict)
            return []
        found = [printed(spec) for spec in specs]
        for each in found:
            each.assembled(_COMPILING)
        return found

    def line(self, pair: Pair, made: Sequence[Printed]) -> MadePair:
        """Describe a pair whose kernels are compiled."""
        chosen, outputs = pair.candidate, self.space.problem.outputs
        return MadePair(
            chosen.origin,
            pair.program,
            written(chosen.schedule),
            pair.drawn,
            pair.random,
            pair.predicted,
            self.space.breakdown(chosen),
            tuple(map(self.launch, made)),
            tuple(chosen.applied.graph.outputs[number] for number in outputs),
        )

    def launch(self, made: Printed) -> PackedLaunch:
        """Describe a launch, and keep its kernel."""
        part, known = made.spec.part, self.space.problem.example.sizes
        sizes = tuple(known[name] for name in made.binary.signature.passed)
        return PackedLaunch(self.kept(made), part.reads, part.begun, part.writes, sizes)

    def kept(self, made: Printed) -> str:
        """Keep the kernel of a launch, once; returns its digest."""
        assembled = made.assembled()
        known = {"signature": made.binary.signature.to_json(), "assembled": assembled.to_json()}
        text = made.binary.text.encode()
        digest = hashlib.sha256(json.dumps(known).encode() + text + assembled.binary).hexdigest()[:20]
        self.kernels[digest] = known
        self.files |= {f"{digest}.py": text, f"{digest}.cubin": assembled.binary}
        return digest


def make(workload: Workload, target: Target, each: int, seed: int, path: Path, *, name: str, small: bool) -> str:
    """Draw and compile the pairs of `workload`, write them to `path`, and say in a line what there is."""
    sizes = workload.sizes(small=small)
    own = problem(workload, sizes, target)
    space = PairSpace(own, target)
    every = space.all(each, seed)
    making = Making(space)
    pairs = making.drawn(every, each, seed)
    about = {
        **asdict(MadeBy()),
        "triton": triton_version(),
        "target": str(target),
        "workload": name,
        "sizes": sizes,
        "dtype": str(workload.dtype).removeprefix("torch."),
        "seed": seed,
        "feasible": len(every),
        "random": sum(pair.random for pair in every),
        "programs": len(space.fused),
        "failed": dict(making.failed),
        "inputs": [asdict(each) for each in own.inputs],
    }
    lines = "".join(json.dumps(asdict(pair)) + "\n" for pair in pairs)
    members = {
        "workload.json": json.dumps(about, indent=1),
        "pairs.jsonl": lines,
        "kernels.json": json.dumps(making.kernels),
    }
    _pack(path, {**{n: text.encode() for n, text in members.items()}, **dict(sorted(making.files.items()))})
    return (
        f"{name}: {len(pairs)} of {len(every)} pairs ({about['random']} random) of {about['programs']} programs, "
        f"{len(making.kernels)} kernels, {making.failed.total()} did not compile, "
        f"{1e6 * every[0].predicted:.0f} to {1e6 * every[-1].predicted:.0f} us, {path.stat().st_size >> 10} KiB"
    )


def _pack(path: Path, members: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, tarfile.open(new, "w:xz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def unpack(path: Path) -> Archive:
    """Read what `make` wrote."""
    files: dict[str, bytes] = {}
    with tarfile.open(path, "r:xz") as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            assert content is not None
            files[entry.name] = content.read()
    about: dict[str, Any] = json.loads(files.pop("workload.json"))
    lines = files.pop("pairs.jsonl").decode().splitlines()
    inputs = [OperandView(**{**each, **_tuples(each)}) for each in about["inputs"]]
    pairs = [MadePair.of(json.loads(line)) for line in lines]
    return Archive(about, pairs, inputs, json.loads(files.pop("kernels.json")), files)
