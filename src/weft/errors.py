"""Every error that weft raises: what is wrong, where, and what to do."""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Frames of these packages are never "the user's line".
_INTERNAL = ("weft", "torch", "click", "contextlib", "dataclasses", "functools", "importlib", "threading")


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's source: its file, its number (from 1) and, where known, its text."""

    file: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}: {self.code}" if self.code else place

    @classmethod
    def of_caller(cls) -> Location | None:
        """Find the innermost line on the stack that belongs to neither weft nor PyTorch, if any."""
        frame = inspect.currentframe()
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _INTERNAL:
                file, line = frame.f_code.co_filename, frame.f_lineno
                return cls(file, line, linecache.getline(file, line, frame.f_globals).strip())
            frame = frame.f_back
        return None


class WeftError(Exception):
    """Base of all. `what` is wrong; `where`, by default the user's line; `todo`, what to do.

    A subclass states in `advice` what to do when the place that raises it knows nothing better.
    """

    advice: ClassVar[str] = "please report this with the program that caused it"

    def __init__(self, what: str, *, where: Location | str | None = None, todo: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where: Location | str | None = Location.of_caller() if where is None else where
        self.todo: str = self.advice if todo is None else todo

    def __str__(self) -> str:
        where = [f"  where: {self.where}"] if self.where is not None else []
        return "\n".join([self.what, *where, *self.details(), f"  what to do: {self.todo}"])

    def details(self) -> list[str]:
        """List lines that a subclass adds between the place and the advice."""
        return []


class LeftToPyTorchWarning(RuntimeWarning):
    """PyTorch runs a call, a graph, or what takes most of its time; warned of once for each function and cause.

    To silence it: `warnings.filterwarnings("ignore", category=weft.errors.LeftToPyTorchWarning)`.
    """


class CacheFolderWarning(RuntimeWarning):
    """weft cannot write to the cache folder, so each process compiles again; warned of once for each folder."""


class UnknownOptionError(WeftError, ValueError):
    """An option, or a WEFT_* variable, does not exist or has an invalid value."""

    advice = "correct the option; weft.options lists them all"


class SchemeError(UnknownOptionError):
    """A fusion scheme is not possible, or is for another graph than the one that is compiled. Also an UnknownOptionError."""

    advice = "leave the option scheme out: weft then chooses which operators share a kernel"


class TargetError(WeftError, ValueError):
    """The target is unknown, or a program for it was called on a machine without it."""

    advice = 'use target=None (where the inputs are), "cpu", "cuda" or an architecture such as "cuda:90"'


class ShapeError(WeftError, RuntimeError):
    """Shapes, dtypes or devices do not fit, in eager PyTorch either; a RuntimeError, as in eager."""

    advice = "make the shapes, element types and devices agree as eager PyTorch demands"


class UnimplementedError(ShapeError, NotImplementedError):
    """Eager PyTorch does not implement an operation for operands of this element type or device."""

    advice = "convert the operands to a type that eager PyTorch takes"


class CompilerError(WeftError):
    """The compiler is missing, or rejected a kernel. Has the `command`, its `output`, and the rejected `kernel`."""

    advice = "install a C++17 compiler, or name one in WEFT_CXX"

    def __init__(
        self,
        what: str,
        *,
        command: str = "",
        output: str = "",
        kernel: str = "",
        where: Location | str | None = None,
        todo: str | None = None,
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.command = command
        self.output = output
        self.kernel = kernel

    def details(self) -> list[str]:
        command = [f"  command: {self.command}"] if self.command else []
        return command + [f"  | {line}" for line in self.output.splitlines()]


class CacheFolderError(WeftError):
    """Others can write to the cache folder, and so could run code as this user."""

    advice = "remove the others' permission to write, or name another folder in WEFT_CACHE_DIR"


class DefectError(WeftError):
    """weft itself failed. `reproducer`: the path of a Python file that reproduces the failure; empty if there is none."""

    advice = "nothing is required, since PyTorch computes the results; please report the failure"

    def __init__(
        self, what: str, *, reproducer: str = "", where: Location | str | None = None, todo: str | None = None
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.reproducer = reproducer

    def details(self) -> list[str]:
        return [f"  reproducer: {self.reproducer}"] if self.reproducer else []


class WrongKernelError(WeftError):
    """A kernel gives wrong results on hard inputs, crashes, or does not end; it never served. A bug in weft."""

    advice = "nothing: PyTorch runs this part; please report it"


class UnsupportedError(WeftError):
    """weft does not compile something; weft catches the error and makes it a fallback's reason."""

    advice = "nothing: this part runs in PyTorch; program.fallbacks lists it"


class NotBuiltError(UnsupportedError):
    """A kernel has no binary yet for calls like this one, which nobody is to wait for; weft catches the error, and PyTorch runs the
    call.
    """

    advice = "nothing: another process makes it meanwhile"


class WrongIndexError(WeftError, IndexError):
    """A kernel met an integer that is no index of what it reads. PyTorch runs such a call instead, and raises its own error."""

    advice = "give indices that are less than the size of the dimension that they index"


class RefusedByEagerError(UnsupportedError):
    """Eager refuses a call, or tracing does not know its result; weft catches the error, and PyTorch runs the graph."""

    advice = "nothing: PyTorch runs this graph, and says what is wrong with it"


class ProgramFileError(WeftError, ValueError):
    """A file of `weft.load` is damaged, or made by something else, another weft or for another machine; or none can be saved."""

    advice = "save the program again, with program.save, on the machine where it is to run"


class InvalidProgramError(WeftError):
    """The checker found a malformed program. Names the `node` and the `condition` it violates."""

    advice = "this is a bug in weft; report it with the program's text"

    def __init__(
        self,
        what: str,
        *,
        node: str = "",
        condition: str = "",
        where: Location | str | None = None,
        todo: str | None = None,
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.node = node
        self.condition = condition

    def details(self) -> list[str]:
        parts = (("node", self.node), ("violated", self.condition))
        return [f"  {name}: {text}" for name, text in parts if text]


class ScheduleError(WeftError):
    """A schedule does not fit its program: it names a loop that does not exist, or an impossible size."""

    advice = "give each loop levels with positive sizes; print the program to see its loops"


class VerificationError(WeftError):
    """A program is refuted, or no verdict could be reached, so it must not run."""

    advice = "let PyTorch run this part, and report the program"


class RefutedError(VerificationError):
    """weft changed what is computed before it made any kernel: a defect, of a law."""

    advice = "nothing: PyTorch runs this graph; please report it"


class JudgementError(WeftError, AssertionError):
    """weft.judge found an output outside the error rule; raised by `Judgement.check` in tests."""

    advice = "compare the output with eager and with fp64 at the named element"


class ReferenceDTypeError(WeftError, TypeError):
    """A reference for weft.judge is not float64 for a floating output, or not an integer for an integer output."""

    advice = "run the same program on fp64 copies of the inputs: weft.verify.judge.reference(fn, inputs)"


class ArgumentError(WeftError, TypeError):
    """An argument of one of weft's functions is of the wrong kind: a number for a function, a dict for inputs."""

    advice = "see the function's documentation, for example help(weft.optimize)"


class NoReportError(WeftError, AttributeError):
    """What `weft.compile` returned is asked for the report that only a program of `weft.optimize` has."""

    advice = (
        'weft.optimize(f, inputs).explain() tells what is done for such inputs; or compile with log="debug" and call it once, '
        "which writes the report of each graph on standard error"
    )


class FileError(WeftError, OSError):
    """A file cannot be read or written: it is a folder, permission is denied, or the disk is full. Also an OSError."""

    advice = "check permissions and free space there, or name another file"


class MissingFileError(FileError, FileNotFoundError):
    """A file to load, or the folder of a file to write, does not exist."""

    advice = "correct the path"


class CommandError(WeftError, ValueError):
    """The command line names something that does not exist or cannot be used."""

    advice = "see `weft --help`"


def named(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a public function: called with arguments that it does not have, its ArgumentError says `name`, not that of the code."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        shown = signature.replace(parameters=bare, return_annotation=signature.empty)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                what = f"{name} cannot be called like this: {error}"
                raise ArgumentError(what, todo=f"call it as {name}{shown}") from None
            return function(*args, **kwargs)

        return call

    return mark
