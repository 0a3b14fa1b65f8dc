"""The command line: `weft demo`, `weft explain FILE.py:NAME`, `weft bench`, `weft fuzz`."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

import click
import torch
from rich.console import Console

from weft.api import demo as study
from weft.api import examples, workloads
from weft.api.derivation import DERIVED, Compiled, Derived, show
from weft.api.measure import setting, settle
from weft.api.optimize import optimize
from weft.api.program import Program
from weft.errors import Location, UnknownOptionError, WeftError
from weft.run.compiler import find_compiler

P = ParamSpec("P")
R = TypeVar("R")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_WIDTH = 152
# More than this many processes ready to run before it begins, and a benchmark's times say little.
_QUIET = 0.5


class CommandError(WeftError, ValueError):
    """What the command line names is not there, or cannot be used as it is."""

    advice = "see `weft --help`"


class _Refused(click.ClickException):
    """An error of weft's as click shows it: whole, without a traceback."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Write it to standard error."""
        click.echo(f"weft: {self.message}", file=file, err=True)


def _reporting(command: Callable[P, R]) -> Callable[P, R]:
    """`command` with an option --debug; errors that weft explains come without a traceback unless it is given."""

    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(command)
    def run(*args: Any, debug: bool, **kwargs: Any) -> Any:
        caller = Location.of_caller()
        try:
            return cast("Callable[..., Any]", command)(*args, **kwargs)
        except WeftError as error:
            if error.where == caller:  # the line that called this command is none of the user's
                error.where = None
            if debug:
                raise
            raise _Refused(str(error)) from error

    return cast("Callable[P, R]", run)


def _version() -> str:
    try:
        return version("weft")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="weft")
def main() -> None:
    """Plain PyTorch turned into a few fused, verified kernels."""


@main.command()
@click.option("--quick", is_flag=True, help="Small sizes, few rounds, without Inductor.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results here.")
@click.option(
    "--derivation", type=click.Choice(sorted(DERIVED)), help="Only this derivation, with every program on the way."
)
@_reporting
def demo(quick: bool, out: Path | None, derivation: str | None) -> None:
    """Derive attention step by step; compile four functions in fp32 and bf16; show what was fused, checked, time and error.

    Exits with 1 where a result is wrong, or where anything was left to PyTorch.
    """
    console = _console()
    find_compiler()  # before anything is printed
    settle()
    derived = _derived(console, derivation or "attention", every=derivation is not None)
    if derivation is None:
        console.print()
        _study(examples.EXAMPLES, 3 if quick else 20, out, quick=quick, derived=derived)
    elif out is not None:
        _write(out, {"setting": asdict(setting(_version())), "derivation": asdict(derived)})
    if not derived.right:
        click.echo(f"{derived.function} is not right", err=True)
        raise SystemExit(1)


def _derived(console: Console, name: str, *, every: bool) -> Derived:
    """Derive and show the example of the paper with this name."""
    compiled = Compiled.of(name)
    found = compiled.found()
    show(console, compiled, found, every=every)
    return found


@main.command()
@click.option("--rounds", type=click.IntRange(min=1), default=50, show_default=True, help="Timed calls of each peer.")
@click.option("--quick", is_flag=True, help="Small sizes, few rounds, without Inductor: to see that it works.")
@click.option(
    "--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write each result here as it comes."
)
@click.option("--only", multiple=True, metavar="TEXT", help="Functions with this in their name; may be given again.")
@click.option("--resume", is_flag=True, help="Keep the results that the --json file has, and measure what it lacks.")
@_reporting
def bench(rounds: int, quick: bool, out: Path | None, only: tuple[str, ...], resume: bool) -> None:
    """Time the papers' functions beside eager PyTorch, Inductor and, for attention, PyTorch's own kernel; judge all errors.

    Exits with 1 where a result is wrong. What is left to PyTorch is listed.
    """
    chosen = [e for e in workloads.SUITE if not only or any(text.lower() in e.title.lower() for text in only)]
    if not chosen:
        titles = ", ".join(e.title for e in workloads.SUITE)
        raise CommandError(
            f"no function's name contains {' or '.join(only)}", where="--only", todo=f"there are: {titles}"
        )
    if resume and out is None:
        raise CommandError("there is no file to resume", where="--resume", todo="give --json FILE too")
    before = _results(out) if resume and out is not None and out.exists() else []
    _study(chosen, 3 if quick else rounds, out, quick=quick, derived=None, before=before)


def _results(path: Path) -> list[study.Outcome]:
    """What an earlier run wrote."""
    try:
        return [study.Outcome.read(each) for each in json.loads(path.read_text(encoding="utf-8"))["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} holds no results of this benchmark: {type(error).__name__}: {error}",
            where=str(path),
            todo="name a file that `weft bench --json` wrote, or leave --resume out",
        ) from error


@main.command()
@click.option("--count", type=click.IntRange(min=1), default=200, show_default=True, help="How many programs.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first; then one more each."
)
@click.option("--operations", type=click.IntRange(min=1), help="About how many in each program  [default: 3 to 10]")
@click.option("--compiled", is_flag=True, help="Also build each program's kernels and judge their results.")
@_reporting
def fuzz(count: int, seed: int, operations: int | None, compiled: bool) -> None:
    """Check random programs: every rewrite, random schedules and, if asked, kernels, each beside what was written.

    Exits with 1 where one computes something else; prints its seed, and the smallest program that fails alike.
    """
    from weft.api.fuzz import campaign

    tally = campaign(
        count, seed, compiled=compiled, operations=operations, show=lambda failure: click.echo(f"{failure}\n", err=True)
    )
    _console().print(tally.table())
    if tally.failures:
        raise SystemExit(1)


def _study(
    chosen: Sequence[examples.Example],
    rounds: int,
    out: Path | None,
    *,
    quick: bool,
    derived: Derived | None,
    before: Sequence[study.Outcome] = (),
) -> None:
    """Run examples, print what was found, write it to `out` as it comes; exit with 1 unless all is right.

    With a derivation this is a demonstration: what was fused is shown too, and nothing may be left to PyTorch.
    """
    console = _console()
    here = setting(_version())
    console.print(f"weft {here.weft}, PyTorch {here.torch}, {here.threads} threads of {here.processor}\n")
    if derived is None and here.load > _QUIET:
        console.print(f"The machine is busy (load {here.load}): times will say little.\n")
    found = [*before]
    more = {} if derived is None else {"derivation": asdict(derived)}
    for outcome in study.outcomes(chosen, rounds, quick=quick, known={o.row for o in before}):
        found.append(outcome)
        if derived is not None:
            study.show(console, outcome, with_listing=len(found) == 1)
            console.print()
        else:
            console.print(f"measured {', '.join(outcome.row)}: weft / best peer {outcome.ratio:.2f}")
        if out is not None:
            _write(out, {"setting": asdict(here), "results": [each.written() for each in found], **more})
    _concluded(console, found, parts=derived is None)


def _concluded(console: Console, found: Sequence[study.Outcome], *, parts: bool) -> None:
    """Print the tables; exit with 1 where something is wrong. With `parts` PyTorch may run some: that is listed."""
    for table in study.tables(found):
        console.print(table)
    if parts:
        console.print(study.summary(found))
        for outcome in found:
            if outcome.fallbacks:
                console.print(
                    f"left to PyTorch in {', '.join(outcome.row)}: {'; '.join(dict.fromkeys(outcome.fallbacks))}"
                )
    wrong = list(study.complaints(found, parts=parts))
    for line in wrong:
        click.echo(line, err=True)
    if wrong:
        raise SystemExit(1)


def _console() -> Console:
    """Standard output; where it is not a terminal, wide enough that no table is folded."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def _write(path: Path, found: Mapping[str, object]) -> None:
    beside = path.with_name(f"{path.name}.new")  # whoever stops the command finds whole results
    try:
        beside.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> CommandError:
    return CommandError(
        f"{path} cannot be written: {error.strerror}", where=str(path), todo="name a file in a folder that is there"
    )


@main.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--shapes", help='One shape for each argument: "512x1024,1024x1024,1024".')
@click.option(
    "--dtype", type=click.Choice(sorted(_DTYPES)), help="Of arguments and module  [default: float32, or as given]"
)
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here (.html: a page).")
@_reporting
def explain(target: str, shapes: str | None, dtype: str | None, save: Path | None) -> None:
    """Compile one function or module of a file, and print every decision: rewrites, programs, verdicts, costs.

    NAME is a function, a module, a module's class that needs no arguments, or a function without parameters that makes a
    module. Its arguments are random tensors of --shapes; without it, the file's NAME_inputs or INPUTS: the arguments, or a
    function that gives them.
    """
    file, name = _split(target)
    module = _load(file)
    fn = _function(module, file, name)
    inputs = _random(fn, name, shapes, dtype) if shapes is not None else _inputs(module, file, name, fn)
    if dtype is not None:
        inputs = tuple(_cast(value, _DTYPES[dtype]) for value in inputs)
        fn = fn.to(_DTYPES[dtype]) if isinstance(fn, torch.nn.Module) else fn
    report = _compiled(fn, file, name, inputs).explain()
    click.echo(str(report))
    if save is not None:
        try:
            click.echo(f"\nwritten to {report.save(save)}")
        except OSError as error:
            raise _unwritable(save, error) from error


def _split(target: str) -> tuple[Path, str]:
    """The file and the name in it."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise CommandError(
            f"{target!r} does not say which function of which file",
            where="the argument FILE.py:NAME",
            todo="write the file, a colon and the name: weft explain layers.py:attention",
        )
    if not Path(file).is_file():
        raise CommandError(f"there is no file {file!r}", where="the argument FILE.py:NAME", todo="correct the path")
    return Path(file), name


def _load(file: Path) -> ModuleType:
    """The file, run as a module; its own folder is where its imports are found, as when Python runs it."""
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"explained_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise CommandError(f"{file} is not Python source", where=str(file), todo="name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything
        raise _raised(
            f"{file} cannot be imported", file, error, "mend the file: python must be able to run it"
        ) from error
    return module


def _raised(what: str, file: Path, error: Exception, todo: str) -> CommandError:
    """The error that the user's code raised, with the line of the file that it comes from."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file.resolve()]
    where: Location | str = Location(own[-1].filename, own[-1].lineno or 0, own[-1].line or "") if own else str(file)
    if isinstance(error, SyntaxError) and error.filename is not None:
        where = Location(error.filename, error.lineno or 0, (error.text or "").strip())
    return CommandError(f"{what}: {type(error).__name__}: {error}", where=where, todo=todo)


def _function(module: ModuleType, file: Path, name: str) -> Callable[..., Any]:
    """The function or module called `name`."""
    if not hasattr(module, name):
        known = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        near = get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(known) or 'no functions'}"
        raise CommandError(f"{file} has no {name!r}", where=str(file), todo=hint)
    found: Any = getattr(module, name)
    if not callable(found) or (isinstance(found, type) and not issubclass(found, torch.nn.Module)):
        kind = "a class, but of no module" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise CommandError(f"{name} is {kind}", where=str(file), todo="name a function or a torch.nn.Module")
    if isinstance(found, torch.nn.Module):
        return found
    if inspect.isclass(found) and (needed := _required(found)):
        raise CommandError(
            f"the class {name} cannot be made without arguments: it takes {', '.join(needed)}",
            where=str(file),
            todo="write a function without parameters that makes one, and name that",
        )
    if not inspect.isclass(found) and _signature(found).parameters:
        return found
    try:
        made = found()
    except Exception as error:  # a user's code may raise anything
        raise _raised(f"{name}() fails", file, error, "mend it, or name another function") from error
    # A function without parameters that gives no module is itself what is to be explained.
    return made if isinstance(made, torch.nn.Module) else found


def _signature(of: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(of)
    except ValueError as error:
        raise CommandError(
            f"{of!r} is not written in Python", where="the argument FILE.py:NAME", todo="name a function that calls it"
        ) from error


def _required(of: Callable[..., Any]) -> list[str]:
    """Names of the parameters that have to be given."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = _signature(of).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _random(fn: Callable[..., Any], name: str, text: str, dtype: str | None) -> tuple[torch.Tensor, ...]:
    """Random arguments, normally distributed, of the shapes in `text`."""
    shapes = [_shape(part.strip()) for part in text.split(",")]
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        _signature(called).bind(*shapes)
    except TypeError as error:
        takes = ", ".join(_signature(called).parameters) or "none"
        raise UnknownOptionError(
            f"--shapes gives {len(shapes)} {'shape' if len(shapes) == 1 else 'shapes'}, but {name} takes: {takes}",
            where=f"--shapes {text!r}",
            todo="give one shape for each argument, separated by commas",
        ) from error
    random = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=random) for shape in shapes]
    return tuple(t.to(_DTYPES[dtype or "float32"]) for t in made)


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise UnknownOptionError(
            f"{text!r} is not a shape",
            where="--shapes",
            todo='write lengths with an x between them, and a comma between shapes: "512x1024,1024x1024,1024"',
        )
    return tuple(map(int, text.split("x")))


def _inputs(module: ModuleType, file: Path, name: str, fn: Callable[..., Any]) -> tuple[Any, ...]:
    """The arguments that the file itself gives: NAME_inputs or INPUTS, a value or a function that makes it."""
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    holder = next((h for h in (f"{name}_inputs", "INPUTS") if hasattr(module, h)), None)
    if holder is None and not _required(called):
        return ()
    if holder is None:
        raise CommandError(
            f"nothing says with which arguments to call {name}: it takes {', '.join(_required(called))}",
            where=str(file),
            todo=f'give --shapes "512x1024,..." (one for each), or define {name}_inputs or INPUTS in the file',
        )
    value: Any = getattr(module, holder)
    if callable(value) and not isinstance(value, torch.Tensor):
        try:
            value = value()
        except Exception as error:  # a user's code may raise anything
            raise _raised(f"{holder}() fails", file, error, "mend it, or give --shapes") from error
    if isinstance(value, torch.Tensor):
        return (value,)
    if not isinstance(value, tuple | list):
        raise CommandError(
            f"{holder} gives a {type(value).__name__}",
            where=str(file),
            todo="let it be a tensor, or a tuple of the arguments",
        )
    return tuple(cast("Sequence[Any]", value))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _compiled(fn: Callable[..., Any], file: Path, name: str, inputs: tuple[Any, ...]) -> Program:
    """The program; where eager PyTorch cannot run `fn` on these inputs either, its error."""
    # PyTorch logs the traceback of shapes that it refuses; what is shown instead names the user's line.
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return optimize(fn, inputs)
    except WeftError:
        raise
    except Exception:
        try:
            with torch.no_grad():
                fn(*inputs)
        except Exception as error:  # a user's code may raise anything
            what = f"{name} fails on these arguments"
            raise _raised(what, file, error, "mend it, or give it other arguments") from error
        raise
    finally:
        log.setLevel(level)
