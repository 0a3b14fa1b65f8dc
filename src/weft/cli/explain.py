"""`weft explain FILE.py:NAME`: finding, calling and explaining a user's function."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click
import torch

from weft.api.optimize import optimize
from weft.api.program import Program
from weft.api.targets import chip_for, target_for
from weft.cli.command import NewFile, reporting
from weft.cost import read_chip
from weft.errors import CommandError, Location, UnknownOptionError, WeftError
from weft.tensor.dtypes import DType

_DTYPES: dict[str, torch.dtype] = {kind.name: getattr(torch, kind.name) for kind in DType if not kind.is_foreign}


@click.command()
@click.argument("what", metavar="FILE.py:NAME")
@click.option("--shapes", help='One shape for each argument: "512x1024,1024x1024,1024".')
@click.option(
    "--dtype",
    type=click.Choice(list(_DTYPES)),
    help="Of arguments and, if floating, of the module  [default: float32, or as given]",
)
@click.option(
    "--target",
    help='"cpu", "cuda", or a GPU that need not be here: "cuda:90", "hip:gfx942"  [default: where the arguments are]',
)
@click.option(
    "--chip",
    metavar="NAME|FILE.json",
    help='Lay kernels out on this chip: "H100 SXM", or what `weft doctor --measure` wrote  [default: the target\'s GPU]',
)
@click.option("--save", type=NewFile(), help="Write the report here (.html: a page).")
@reporting
def explain(
    what: str, shapes: str | None, dtype: str | None, target: str | None, chip: str | None, save: Path | None
) -> None:
    """Compile one function or module of a file, and print every decision: rewrites, programs, verdicts, costs.

    NAME is a function, a module, a module's class that needs no arguments, or a function without parameters that makes a
    module. Its arguments are random tensors of --shapes; without it, the file's NAME_inputs or INPUTS: the arguments, or a
    function that returns them.
    """
    if target is not None:
        target_for(target, ())  # before anything is run
    on = None if chip is None else read_chip(chip) if chip.endswith(".json") else chip_for(chip)
    file, name = _split(what)
    module = _load(file)
    fn = _function(module, file, name)
    inputs = _random(fn, name, shapes, dtype) if shapes is not None else _inputs(module, file, name, fn)
    if dtype is not None:
        inputs = tuple(_cast(value, _DTYPES[dtype]) for value in inputs)
        fn = fn.to(_DTYPES[dtype]) if isinstance(fn, torch.nn.Module) and _DTYPES[dtype].is_floating_point else fn
    report = _compiled(fn, file, name, inputs, target).explain(on)
    click.echo(str(report))
    if save is not None:
        click.echo(f"\nwritten to {report.save(save)}")


def _split(target: str) -> tuple[Path, str]:
    """Split the target into the file and the name in it."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise CommandError(
            f"{target!r} does not name a file and a function",
            where="the argument FILE.py:NAME",
            todo="write the file, a colon and the name: weft explain layers.py:attention",
        )
    if not Path(file).is_file():
        raise CommandError(f"there is no file {file!r}", where="the argument FILE.py:NAME", todo="correct the path")
    return Path(file), name


def _load(file: Path) -> ModuleType:
    """Run the file as a module; its own folder is where its imports are found, as when Python runs it."""
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
            f"{file} cannot be imported", file, error, "correct the file: Python must be able to run it"
        ) from error
    return module


def _raised(what: str, file: Path, error: Exception, todo: str) -> CommandError:
    """Make the error that the user's code raised, with the line of the file that it comes from."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file.resolve()]
    where: Location | str = Location(own[-1].filename, own[-1].lineno or 0, own[-1].line or "") if own else str(file)
    if isinstance(error, SyntaxError) and error.filename is not None:
        where = Location(error.filename, error.lineno or 0, (error.text or "").strip())
    return CommandError(f"{what}: {type(error).__name__}: {error}", where=where, todo=todo)


def _function(module: ModuleType, file: Path, name: str) -> Callable[..., Any]:
    """Find the function or module called `name`."""
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
            f"the class {name} cannot be instantiated without arguments: it takes {', '.join(needed)}",
            where=str(file),
            todo="write a function without parameters that makes one, and name that",
        )
    if not inspect.isclass(found) and _signature(found).parameters:
        return found
    try:
        made = found()
    except Exception as error:  # a user's code may raise anything
        raise _raised(f"{name}() fails", file, error, "correct it, or name another function") from error
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
    """Name the parameters that have to be given."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = _signature(of).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _random(fn: Callable[..., Any], name: str, text: str, dtype: str | None) -> tuple[torch.Tensor, ...]:
    """Draw random arguments of the shapes in `text`: normally distributed, whole numbers from 1 to 9, or true and false."""
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
    kind = _DTYPES[dtype or "float32"]
    if kind.is_floating_point:
        return tuple(torch.randn(shape, generator=random).to(kind) for shape in shapes)
    low, high = (0, 2) if kind == torch.bool else (1, 10)
    return tuple(torch.randint(low, high, shape, generator=random).to(kind) for shape in shapes)


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise UnknownOptionError(
            f"{text!r} is not a shape",
            where="--shapes",
            todo='separate sizes by x and shapes by commas: "512x1024,1024x1024,1024"',
        )
    return tuple(map(int, text.split("x")))


def _inputs(module: ModuleType, file: Path, name: str, fn: Callable[..., Any]) -> tuple[Any, ...]:
    """Find the arguments that the file itself gives: NAME_inputs or INPUTS, a value or a function that makes it."""
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    holder = next((h for h in (f"{name}_inputs", "INPUTS") if hasattr(module, h)), None)
    if holder is None and not _required(called):
        return ()
    if holder is None:
        raise CommandError(
            f"no example arguments for {name}: it takes {', '.join(_required(called))}",
            where=str(file),
            todo=f'give --shapes "512x1024,..." (one for each), or define {name}_inputs or INPUTS in the file',
        )
    value: Any = getattr(module, holder)
    if callable(value) and not isinstance(value, torch.Tensor):
        try:
            value = value()
        except Exception as error:  # a user's code may raise anything
            raise _raised(f"{holder}() fails", file, error, "correct it, or give --shapes") from error
    if isinstance(value, torch.Tensor):
        return (value,)
    if not isinstance(value, tuple | list):
        raise CommandError(
            f"{holder} is or returns a {type(value).__name__}",
            where=str(file),
            todo="make it a tensor, or a tuple of the arguments",
        )
    return tuple(cast("Sequence[Any]", value))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _compiled(fn: Callable[..., Any], file: Path, name: str, inputs: tuple[Any, ...], target: str | None) -> Program:
    """Compile the program; where eager PyTorch cannot run `fn` on these inputs either, its error is raised."""
    # PyTorch logs the traceback of shapes that it refuses; what is shown instead names the user's line.
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return optimize(fn, inputs, target)
    except WeftError:
        raise
    except Exception:
        try:
            with torch.no_grad():
                fn(*inputs)
        except Exception as error:  # a user's code may raise anything
            what = f"{name} fails on these arguments"
            raise _raised(what, file, error, "correct it, or give it other arguments") from error
        raise
    finally:
        log.setLevel(level)
