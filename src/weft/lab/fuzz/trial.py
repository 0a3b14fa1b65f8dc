"""One random function through a public entry point, beside eager and fp64: every result, written argument, type and layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias, cast

import torch

from weft.api.compile import compile as weft_compile
from weft.api.optimize import optimize
from weft.errors import ShapeError, UnsupportedError
from weft.lab.fuzz.accidents import OfCopies, Overlaps, described, out_of_range, traced
from weft.lab.fuzz.compared import (
    FP64_BOUNDS,
    ROOM,
    ResultTensors,
    as_near,
    beyond,
    comparable,
    other_strides,
    shared,
    without_masked,
)
from weft.lab.fuzz.function_values import StandIn, generator, stand_in
from weft.lab.fuzz.nudged import UNITS, nudged
from weft.lab.fuzz.random_functions import REFUSALS, RandomFunction, kind_of
from weft.options import options
from weft.verify.judge import Draws, judge

# How many draws the error rule is asked about, in turn: over few, of a function that gives one number, eager may just be lucky.
_DRAWS = (1, 4, 32)
# How many other roundings of the arguments say how far the reference moves. In each every element is another one: none is missed.
_NUDGES = 4
# Of which types arguments are moved as well: others are exact in the type that is computed in.
_MOVED = (torch.float64, torch.float32)
# What a region is left to PyTorch for where weft itself failed.
_FAILED = ("weft failed", "the scheduled program", "the laws on tensor programs")

Function = Callable[..., object]
_Every: TypeAlias = tuple[Sequence[ResultTensors], Sequence[ResultTensors], Sequence[ResultTensors | None]]
"""Results of weft, of eager and in fp64, of each draw."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is wrong with a function.

    Attributes:
        stage: one of "raises", "structure", "dtype", "shape", "stride", "memory", "number", "nan", "integer"; "lost":
            weft failed, or its judge refused a kernel, and PyTorch gave the user right results; or "time", "crash" from outside.
        what: in words, with call and output.
    """

    stage: str
    what: str


class _RefusedError(Exception):
    """PyTorch cannot trace the function."""


class _WrongError(Exception):
    def __init__(self, stage: str, what: str) -> None:
        super().__init__(what)
        self.stage, self.what = stage, what


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one function.

    Attributes:
        finding: what is wrong; None where nothing is.
        ran: whether eager runs it at all.
        kernels: how many weft's program has, where it is known.
        judged: calls whose results fp64 has judged.
    """

    finding: Failure | None
    ran: bool = True
    kernels: int = 0
    judged: int = 0


def tried(function: RandomFunction) -> Tried:
    """Calls `function` as it says, through weft and eagerly, and compares.

    Whatever fails in weft is a finding. Where that is all that there is, the function is tried again as users have it: PyTorch runs
    what weft lost, and the results must be right.
    """
    found = _tried(function, defects="raise")
    if found.finding is None or found.finding.stage not in ("raises", "fallback"):
        return found
    as_users_have_it = _tried(function, defects="warn")
    return replace(as_users_have_it, finding=as_users_have_it.finding or Failure("lost", found.finding.what))


def _tried(function: RandomFunction, *, defects: Literal["raise", "warn"]) -> Tried:
    torch.set_num_threads(function.threads)
    torch.compiler.reset()
    with warnings.catch_warnings(), options(measure="never", defects=defects):
        warnings.simplefilter("ignore")
        return _Trial(function, tells_of_losses=defects == "raise").run()


class _Trial:
    """One function, compiled once, and what its calls have shown."""

    def __init__(self, function: RandomFunction, *, tells_of_losses: bool) -> None:
        self.function, self.tells_of_losses = function, tells_of_losses
        self.plain, self.wide = function.made(), function.made(wide=True)
        self.kernels = self.judged = 0

    def run(self) -> Tried:
        """Runs all calls, up to the first that is wrong."""
        try:
            expected = self._eager(0, 0)
        except REFUSALS:
            return Tried(None, ran=False)
        try:
            compiled = self._compiled()
            for call in range(len(self.function.calls)):
                if call:
                    try:
                        expected = self._eager(call, 0)
                    except REFUSALS:
                        continue  # what eager refuses at these sizes, weft may refuse or not
                self._call(compiled, call, expected)
        except _RefusedError:
            return Tried(None, ran=False)
        except _WrongError as wrong:
            return Tried(Failure(wrong.stage, wrong.what), kernels=self.kernels, judged=self.judged)
        return Tried(None, kernels=self.kernels, judged=self.judged)

    def _compiled(self) -> Function:
        if self.function.entry == "compile":
            return weft_compile(self.plain)
        try:
            program = optimize(self.plain, self.function.tensors(0))
        except Exception as error:
            if isinstance(error, UnsupportedError) and not self._traceable():
                raise _RefusedError from error
            raise _WrongError("raises", f"optimize raises {_said(error)}") from error
        self.kernels = len(program.kernels)
        for fallback in program.fallbacks:
            if self.tells_of_losses and fallback.reason.startswith(_FAILED):
                raise _WrongError("fallback", f"{fallback.operation} is left to PyTorch: {fallback.reason}")
        return program

    def _traceable(self) -> bool:
        """Tells whether PyTorch itself can trace the function whole: `optimize` must."""
        try:
            cast("Any", torch).compile(self.plain, backend="eager", fullgraph=True)(*self.function.tensors(0))
        except Exception:  # noqa: BLE001 - whatever PyTorch raises
            return False
        return True

    def _eager(self, call: int, draw: int) -> tuple[ResultTensors, list[torch.Tensor]]:
        """Runs eager, and returns its results, and the arguments after the call."""
        given = self.function.tensors(call, draw)
        return self.plain(*given), given

    def _weft(self, compiled: Function, call: int, draw: int) -> tuple[ResultTensors, list[torch.Tensor]] | None:
        """Runs weft likewise; None where a program made for some sizes says that it is not for these."""
        given = self.function.tensors(call, draw)
        try:
            results = compiled(*given)
        except ShapeError:
            if self.function.entry == "optimize" and self.function.calls[call] != self.function.calls[0]:
                return None
            raise
        except Exception as error:
            raise _WrongError("raises", f"call {call} raises {_said(error)}") from error
        if not isinstance(results, tuple):
            raise _WrongError("structure", f"call {call} gives {type(results).__name__}, eager a tuple")
        several = cast("tuple[object, ...]", results)
        tensors = tuple(r for r in several if isinstance(r, torch.Tensor))
        if len(tensors) != len(several):
            raise _WrongError("structure", f"call {call} gives what is no tensor, eager tensors")
        return tensors, given

    def _call(self, compiled: Function, call: int, expected: tuple[ResultTensors, list[torch.Tensor]]) -> None:
        found = self._weft(compiled, call, 0)
        if found is None:
            return
        _same_form(found, expected, call)
        self._same_numbers(compiled, call, found, expected)
        if other_strides(found[0], [expected[0]]) is not None:
            also = (each(self.plain, self.function.tensors(call)) for each in (traced, described))
            different = other_strides(found[0], [expected[0], *(k[: len(found[0])] for k in also if k is not None)])
            if different is not None:
                raise _WrongError("stride", f"call {call}, {different}")
        _same_memory(found, expected, call)

    def _same_numbers(
        self,
        compiled: Function,
        call: int,
        found: tuple[ResultTensors, list[torch.Tensor]],
        expected: tuple[ResultTensors, list[torch.Tensor]],
    ) -> None:
        """Raises where numbers differ by more than the error rule allows."""
        every: _Every = [(*found[0], *found[1])], [self._of_copies(call, 0)], [self._reference(call, 0, expected)]
        wrong = self._judged(every, call)
        for first, end in pairwise(_DRAWS):
            if wrong is None or wrong.stage != "number":
                break
            for draw in range(first, end):
                more, eager = self._weft(compiled, call, draw), self._eager(call, draw)
                if more is None:
                    break
                every[0].append((*more[0], *more[1]))
                every[1].append(self._of_copies(call, draw))
                every[2].append(self._reference(call, draw, eager))
            wrong = self._judged(every, call)
        if wrong is not None and wrong.stage == "nan" and self.function.masks():
            every = self._unmasked(every, call)
            wrong = self._judged(every, call)
        if wrong is not None and wrong.stage == "nan":
            wrong = self._judged(self._in_range(every, call), call)
        if wrong is not None and wrong.stage in ("number", "integer"):
            wrong = self._judged(self._but_roundings(every, call), call) and wrong
        if wrong is not None and self._reads_what_it_writes(call):
            as_traced = self._as_traced(every, call)
            wrong = None if as_traced is None else self._judged(as_traced, call)
        if wrong is not None:
            raise wrong

    def _but_roundings(self, every: _Every, call: int) -> _Every:
        """Returns results of each draw; eager's, of those that are as near to the reference as it is to itself where arguments and
        the results of operations are rounded otherwise.

        Of float64 the reference itself rounds as the results do, and its error is not in the rule's bound; of others eager may be
        lucky, in the one element that is worst conditioned, or where all elements of a row are one number.
        """
        rows: list[ResultTensors] = []
        for draw, (found, eager, exact) in enumerate(zip(*every, strict=True)):
            moved = [other for other in (self._nudged(call, draw, n) for n in range(_NUDGES)) if other is not None]
            if exact is None or len(moved) < _NUDGES:
                rows.append(found)
                continue
            others = zip(*moved, strict=True)
            rows.append(
                tuple(
                    e if f.dtype in ROOM and as_near(f, x, near) else f
                    for f, e, x, near in zip(found, eager, exact, others, strict=True)
                )
            )
        return rows, every[1], every[2]

    def _of_copies(self, call: int, draw: int) -> ResultTensors:
        """Returns eager's results and arguments, of operands of which no two elements lie in one place.

        PyTorch's median reads beyond the end of operands that repeat elements: its results are then whatever lies there.
        """
        with OfCopies():
            results, given = self._eager(call, draw)
        return *results, *given

    def _nudged(self, call: int, draw: int, number: int) -> ResultTensors | None:
        """Computes results and arguments in fp64 where each argument's element, and each operation's result, is another by its last
        place, up or down."""
        given: list[torch.Tensor] = []
        for place, tensor in enumerate(self.function.tensors(call, draw, wide=True)):
            dtype = getattr(torch, self.function.arguments[place].dtype, torch.int64)
            signs = torch.randint(2, tensor.shape, generator=generator(call, draw, number, place)) * 2 - 1
            given.append(tensor * (1 + signs.double() * UNITS[dtype]) if dtype in _MOVED else tensor)

        plain, copies = self.function.tensors(call, draw), [tensor.clone() for tensor in given]
        try:
            operations = nudged(lambda: self.plain(*plain), lambda: self._in_fp64(copies), number)
            return self._in_fp64(given) if operations is None else operations
        except REFUSALS:
            return None

    def _as_traced(self, every: _Every, call: int) -> _Every | None:
        """Returns results of each draw, beside PyTorch's own tracing instead of eager's; None where PyTorch cannot trace it.

        Where eager reads and writes elements at once, its results are an accident of the order in which it goes over these.
        """
        plain: list[ResultTensors] = []
        wide: list[ResultTensors | None] = []
        for draw in range(len(every[0])):
            results = traced(self.plain, self.function.tensors(call, draw))
            if results is None:
                return None
            with _doubles():
                exact = traced(self.wide, self.function.tensors(call, draw, wide=True))
            plain.append(results)
            wide.append(exact if exact is not None and _fits(exact, results) else None)
        return every[0], plain, wide

    def _reads_what_it_writes(self, call: int) -> bool:
        """Tells whether a call of eager's writes into memory that it reads elsewhere, or into an element more than once."""
        noted = Overlaps()
        with noted:
            self._eager(call, 0)
        return noted.found

    def _in_range(self, every: _Every, call: int) -> _Every:
        """Returns results of each draw, 0 where they depend on a number that is out of range in eager and in fp64 is not.

        In sums of such numbers infinities of both signs meet or do not, as their order and fused multiplications have it.
        """
        rows: list[tuple[ResultTensors, ResultTensors, ResultTensors | None]] = []
        for draw, (found, eager, exact) in enumerate(zip(*every, strict=True)):
            hidden = None if exact is None else self._out_of_range(call, draw)
            if exact is None or hidden is None:
                rows.append((found, eager, exact))
                continue
            owed = [beyond(e, x) & ~f.isnan() for f, e, x in zip(found, eager, exact, strict=True)]
            kept = [
                tuple(t.masked_fill(out & ~o, 0) for t, out, o in zip(each, hidden, owed, strict=True))
                for each in (found, eager, exact)
            ]
            rows.append((kept[0], kept[1], kept[2]))
        return [f for f, _, _ in rows], [e for _, e, _ in rows], [x for _, _, x in rows]

    def _out_of_range(self, call: int, draw: int) -> tuple[torch.Tensor, ...] | None:
        """Tells which elements of results and arguments depend on such a number; None where that cannot be said."""

        def plain() -> ResultTensors:
            results, given = self._eager(call, draw)
            return *results, *given

        try:
            return out_of_range(plain, lambda: self._in_fp64(self.function.tensors(call, draw, wide=True)))
        except REFUSALS:
            return None

    def _in_fp64(self, given: list[torch.Tensor]) -> ResultTensors:
        """Computes results and arguments of the function in fp64, also where it makes tensors without saying of which type."""
        with _doubles():
            return *self.wide(*given), *given

    def _unmasked(self, every: _Every, call: int) -> _Every:
        """Returns results of each draw without the NaN of operands that a mask excludes: weft owes none of them.

        Where eager is NaN and weft is not, and the result is the same for any finite numbers in place of infinities and NaN, it
        does not depend on these, and is that. Where it is the same for any huge ones of their sign in place of infinities, these
        saturate something (a clamp, the shares of a softmax); where it is out of range for all of them, it depends on infinities
        of one sign.
        """
        results: list[ResultTensors] = []
        references: list[ResultTensors | None] = []
        for draw, (found, eager, exact) in enumerate(zip(*every, strict=True)):
            finite = self._otherwise(call, draw, eager, 2, huge=False)
            huge = self._otherwise(call, draw, eager, 6, huge=True)
            if exact is None or not finite or not huge:
                results.append(eager)
                references.append(exact)
                continue
            made = [without_masked(*each) for each in zip(found, eager, exact, finite, huge, strict=True)]
            results.append(tuple(e for e, _ in made))
            references.append(tuple(x for _, x in made))
        return every[0], results, references

    def _otherwise(self, call: int, draw: int, eager: ResultTensors, count: int, *, huge: bool) -> list[ResultTensors]:
        """Computes each result in fp64 with other numbers in place of infinities and NaN; empty where that has no meaning."""
        found = [self._reference(call, draw, (eager, []), stand_in(i, huge=huge)) for i in range(count)]
        known = [results for results in found if results is not None]
        return list(zip(*known, strict=True)) if len(known) == count else []

    def _reference(
        self, call: int, draw: int, eager: tuple[ResultTensors, list[torch.Tensor]], instead: StandIn | None = None
    ) -> ResultTensors | None:
        """Computes results and arguments in fp64; None where that has no meaning."""
        try:
            with OfCopies():
                results = self._in_fp64(self.function.tensors(call, draw, wide=True, instead=instead))
        except REFUSALS:
            return None
        return results if _fits(results, (*eager[0], *eager[1])) else None

    def _judged(
        self,
        every: _Every,
        call: int,
    ) -> _WrongError | None:
        """Says what is wrong with the numbers of one call; None where nothing is."""
        kept = [
            (found, eager, exact)
            for found, eager, exact in zip(*every, strict=True)
            if exact is not None and all(a.shape == b.shape for a, b in zip(found, eager, strict=True))
        ]
        if not kept:
            return None
        self.judged += 1
        rows = [[comparable(*each) for each in zip(*row, strict=True)] for row in kept]
        judgement = judge(*(Draws([tuple(each[i] for each in row) for row in rows]) for i in range(3)))
        for number, output in enumerate(judgement.outputs):
            exact_type = kept[0][1][number].dtype in (torch.float64, torch.complex128)
            if not output.ok and not (exact_type and output.error <= FP64_BOUNDS * output.bound):
                count = len(kept[0][0]) - len(self.function.arguments)
                name = f"output {number}" if number < count else f"argument {number - count} after it"
                integer = kind_of(kept[0][1][number]) in "ib"
                stage = "integer" if integer else "nan" if "where eager gives" in output.reason else "number"
                return _WrongError(stage, f"call {call}, {name}: {output}")
        return None


def _same_form(
    found: tuple[ResultTensors, list[torch.Tensor]],
    expected: tuple[ResultTensors, list[torch.Tensor]],
    call: int,
) -> None:
    """Raises where results are others than eager's in number, element type or shape."""
    mine, theirs = found[0], expected[0]
    if len(mine) != len(theirs):
        raise _WrongError("structure", f"call {call} gives {len(mine)} results, eager {len(theirs)}")
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        name = f"call {call}, output {number}:"
        if a.dtype != b.dtype:
            raise _WrongError("dtype", f"{name} {a.dtype}, eager gives {b.dtype}")
        if a.shape != b.shape:
            raise _WrongError("shape", f"{name} {list(a.shape)}, eager gives {list(b.shape)}")


def _same_memory(
    found: tuple[ResultTensors, list[torch.Tensor]],
    expected: tuple[ResultTensors, list[torch.Tensor]],
    call: int,
) -> None:
    """Raises where results share memory with arguments in another way than eager's, or with one another and eager's do not."""
    for number, (a, b) in enumerate(zip(found[0], expected[0], strict=True)):
        name = f"call {call}, output {number}:"
        if shared(a, found[1]) != shared(b, expected[1]):
            raise _WrongError(
                "memory",
                f"{name} shares memory with arguments {shared(a, found[1])}, eager's {shared(b, expected[1])}",
            )
        others = set(shared(a, found[0][:number])) - set(shared(b, expected[0][:number]))
        if others and a.numel():
            raise _WrongError("memory", f"{name} lies in the memory of outputs {sorted(others)}, and eager's does not")


@contextmanager
def _doubles() -> Generator[None]:
    """Makes new tensors of floating point in fp64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def _fits(results: ResultTensors, plain: ResultTensors) -> bool:
    """Tells whether results in fp64 stand beside those of the function as it is."""
    return all(a.shape == b.shape and kind_of(a) == kind_of(b) for a, b in zip(results, plain, strict=True))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:600]}"
