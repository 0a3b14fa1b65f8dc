"""weft's options: a frozen record, each field mirrored by one environment variable.

In order of strength: the innermost `with options(...)`, then the environment, then the default. Whatever depends on an option asks
`current()`: options are never passed on. Work that is put off to a later call keeps those in force, and puts them in force `again`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from weft.errors import Location, UnknownOptionError, named

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OptionKind:
    """What an option accepts: in words, as text of a variable, as a Python value, and whether it may be None."""

    accepts: str
    parse: Callable[[str], object]
    """Text of an environment variable to a value; ValueError where it cannot be read."""
    allows: Callable[[object], bool]
    optional: bool = False
    """Whether a Python value may be None; a variable is then unset."""


def _integer(low: int, *, optional: bool = False) -> OptionKind:
    def allows(value: object) -> bool:
        if value is None:
            return optional
        return isinstance(value, int) and not isinstance(value, bool) and value >= low

    return OptionKind(f"an integer of at least {low}", int, allows, optional)


def _choice(*names: str) -> OptionKind:
    return OptionKind(" or ".join(f'"{name}"' for name in names), str, lambda value: value in names)


def _read_truth(text: str) -> bool:
    match text.lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
        case _:
            raise ValueError(text)


SCHEME = r"0[xX]([0-9a-fA-F]+(?::[0-9a-fA-F]+)*)(?:\+([0-9a-fA-F]+))?(?:~(\d+(?:,\d+)*))?(?:@([0-9a-fA-F]{6}))?"
"""What a fusion scheme looks like: its words, what is made again, calls left to PyTorch, its tag."""


def _is_schemes(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, str) and bool(value.split()) and all(re.fullmatch(SCHEME, each) for each in value.split())


_SCHEMES = OptionKind(
    'a fusion scheme as `explain` prints it, such as "0x00e3", or several with spaces between them',
    str,
    _is_schemes,
    optional=True,
)
_YES_NO = OptionKind("true or false", _read_truth, lambda value: isinstance(value, bool))
_TEXT = OptionKind("text", str, lambda value: value is None or isinstance(value, str), optional=True)


def _option(default: T, kind: OptionKind, doc: str, *, variable: str = "", in_key: bool = False) -> T:
    metadata = {"kind": kind, "doc": doc, "variable": variable, "in_key": in_key}
    made: Any = field(default=default, metadata=metadata)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options. Raises UnknownOptionError for a value that the option cannot have."""

    cache_dir: str | None = _option(
        None, _TEXT, "folder of the persistent cache; None: the platform's user cache folder"
    )
    compiler: str | None = _option(
        None,
        _TEXT,
        "C++ compiler, words split as in a shell; None: CXX, then c++, g++, clang++",
        variable="WEFT_CXX",
        in_key=True,
    )
    threads: int | None = _option(
        None,
        _integer(1, optional=True),
        "threads of a CPU kernel; None: torch.get_num_threads() at run time",
        in_key=True,
    )
    verify: Literal["always", "cached"] = _option(
        "cached",
        _choice("always", "cached"),
        '"cached": a verdict may come from the cache entry; "always": prove it again',
    )
    judge: Literal["off", "first", "always"] = _option(
        "first",
        _choice("off", "first", "always"),
        'kernels run on hard inputs before they serve: "first": where the cache has no verdict; "always": each time; "off": no',
    )
    verify_trials: int = _option(2, _integer(1), "random evaluations over a finite field for one verdict", in_key=True)
    dynamic: bool = _option(
        True, _YES_NO, "after a second size, PyTorch traces once for all sizes; false: again for each size", in_key=True
    )
    seed: int = _option(0, _integer(0), "seed of every random choice weft makes", in_key=True)
    measure: Literal["auto", "never"] = _option(
        "auto",
        _choice("auto", "never"),
        '"auto": the first call of what `weft.compile` made is timed against PyTorch, and the faster runs; "never": weft does',
    )
    compile: Literal["blocking", "first", "background"] = _option(
        "blocking",
        _choice("blocking", "first", "background"),
        '"blocking": a first call compiles, tunes and times; "first": it compiles, another process times; "background": it runs '
        "in PyTorch, and another process compiles and times",
    )
    effort: Literal["none", "quick", "full"] = _option(
        "quick",
        _choice("none", "quick", "full"),
        "how many schedules of a GPU's kernels are compiled and timed: the one predicted to be fastest, a few, many",
    )
    tune_seconds: int | None = _option(
        None, _integer(1, optional=True), "stop compiling and timing schedules of a region after so many seconds"
    )
    mode: Literal["default", "reduce-overhead"] = _option(
        "default",
        _choice("default", "reduce-overhead"),
        '"reduce-overhead": on a GPU, calls are replayed from CUDA graphs, one for each set of sizes; results are copied',
    )
    brgemm: Literal["auto", "off"] = _option(
        "auto", _choice("auto", "off"), "libtorch's blocked matmuls in kernels", in_key=True
    )
    float32_products: Literal["torch", "ieee", "tf32"] = _option(
        "torch",
        _choice("torch", "ieee", "tf32"),
        'float32 matmuls on a GPU: "ieee", or with factors rounded to "tf32"; "torch": as PyTorch is set at compilation',
        in_key=True,
    )
    rounding: Literal["exact", "running"] = _option(
        "exact",
        _choice("exact", "running"),
        '"running": a chain that rounds by its own scale may round at the scale so far, in one pass; "exact": never',
        in_key=True,
    )
    scheme: str | None = _option(
        None,
        _SCHEMES,
        "which operators share a kernel, as `explain` prints it; a graph takes the first that is for it; None: weft chooses",
    )
    log: Literal["none", "info", "debug"] = _option(
        "none", _choice("none", "info", "debug"), "what weft says on standard error"
    )
    progress: bool = _option(
        True, _YES_NO, "compiling that takes over 2 s shows how far it is on standard error, if that is a terminal"
    )
    defects: Literal["warn", "raise"] = _option(
        "warn",
        _choice("warn", "raise"),
        'where weft itself fails: "warn": PyTorch runs, and a warning names a file that reproduces it; "raise": it is an error',
    )
    debug_checks: bool = _option(False, _YES_NO, "run the checker after every rewrite")

    def __post_init__(self) -> None:
        for entry in fields(self):
            value: object = getattr(self, entry.name)
            if isinstance(value, Path):
                value = str(value)
                object.__setattr__(self, entry.name, value)
            if not _kind(entry).allows(value):
                raise _bad_value(f'the option "{entry.name}"', value, _kind(entry))

    def replace(self, **changes: object) -> Options:
        """Return these options with `changes`; UnknownOptionError for a name or value there is not."""
        _check_names(changes)
        loose: dict[str, Any] = changes
        return replace(self, **loose)

    def key(self) -> str:
        """Write stable text for cache keys: the options on which a cached kernel or verdict depends.

        That is compiler, threads, verify_trials, dynamic, seed, brgemm, float32_products and rounding. Left out, since an entry
        is as good under another value of them: cache_dir, verify, judge, measure, compile, effort, tune_seconds, mode, scheme,
        log, progress, defects, debug_checks.
        """
        in_key = sorted(entry.name for entry in fields(self) if entry.metadata["in_key"])
        return ";".join(f"{name}={getattr(self, name)!r}" for name in in_key)


_SCOPED: ContextVar[Options | None] = ContextVar("weft_options", default=None)


def variable_of(name: str) -> str:
    """Name the environment variable that mirrors the option `name`."""
    entry = next(entry for entry in fields(Options) if entry.name == name)
    return entry.metadata["variable"] or f"WEFT_{name.upper()}"


def from_environment() -> Options:
    """Read the options as the WEFT_* variables state them; an empty variable counts as unset.

    Raises UnknownOptionError, naming the variable, for one that does not exist or cannot be read.
    """
    stated = sorted((k, v) for k, v in os.environ.items() if k.startswith("WEFT_") or k == "CXX")
    return _from_variables(tuple(stated))


def current() -> Options:
    """Return the options in force here: of the innermost `with options(...)`, else the environment's.

    A thread begins with the environment's: a `with` speaks for its own thread and task only.
    """
    scoped = _SCOPED.get()
    return from_environment() if scoped is None else scoped


@named("weft.options")
def options(**changes: object) -> AbstractContextManager[Options]:
    """Change the options in force inside `with options(threads=2): ...`; scopes nest.

    They are those of calls inside that compile. What `weft.compile` returns has them for good where they are given to it.

    Raises UnknownOptionError at once for a name there is not or a value it cannot have.
    """
    Options().replace(**changes)
    return _scope(changes)


@contextmanager
def again(chosen: Options) -> Generator[None]:
    """Put options in force that were in force before, for work that was put off: `again(current())` at that time."""
    token = _SCOPED.set(chosen)
    try:
        yield
    finally:
        _SCOPED.reset(token)


@contextmanager
def _scope(changes: dict[str, object]) -> Generator[Options]:
    with again(current().replace(**changes)):
        yield current()


@lru_cache(maxsize=16)
def _from_variables(stated: tuple[tuple[str, str], ...]) -> Options:
    names = {variable_of(entry.name): entry for entry in fields(Options)}
    changes: dict[str, object] = {}
    for variable, text in stated:
        if variable == "CXX":  # weaker than WEFT_CXX, which sorts after it and so overwrites it
            changes["compiler"] = text or None
        elif variable not in names:
            raise _unknown("environment variable", variable, list(names))
        elif text:
            changes[names[variable].name] = _read(variable, text, _kind(names[variable]))
    return Options().replace(**changes)


def _read(variable: str, text: str, kind: OptionKind) -> object:
    where = f"the environment variable {variable}"
    try:
        value = kind.parse(text)
    except ValueError as error:
        raise _bad_value(where, text, kind, where=where) from error
    if not kind.allows(value):
        raise _bad_value(where, text, kind, where=where)
    return value


def _kind(entry: Field[Any]) -> OptionKind:
    return entry.metadata["kind"]


def _check_names(changes: dict[str, object]) -> None:
    known = [entry.name for entry in fields(Options)]
    for name in changes:
        if name not in known:
            raise _unknown("option", name, known)


def _unknown(what: str, name: str, known: list[str]) -> UnknownOptionError:
    near = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
    where: Location | str | None = f"the {what} {name}" if what != "option" else None
    return UnknownOptionError(f'weft has no {what} "{name}"', where=where, todo=hint)


def _bad_value(what: str, value: object, kind: OptionKind, where: str | None = None) -> UnknownOptionError:
    """Make the error; `where`: the variable, where it is one's value, which no text can make None."""
    none = ", or None" if where is None else ", or unset it"
    todo = f"give it {kind.accepts}{none if kind.optional else ''}"
    return UnknownOptionError(f"{what} cannot be {value!r}", where=where, todo=todo)
