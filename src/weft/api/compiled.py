"""What weft.compile returns: torch.compile with the weft backend, without a limit on recompiles, and with eager's errors."""

from __future__ import annotations

import functools
import inspect
import logging
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Never, cast

import torch

from weft.api.backend import backend, fastest
from weft.api.background.asked import Asked, keep_asked
from weft.api.background.serving import DeferredGraph
from weft.api.compile import torch_compile
from weft.api.given import demand_traceable
from weft.api.recompiles import OWN
from weft.api.tracing import traced_for
from weft.errors import (
    LeftToPyTorchWarning,
    Location,
    NoReportError,
    ShapeError,
    UnimplementedError,
    UnsupportedError,
    WeftError,
)
from weft.options import current
from weft.plan import Runner, Trial, backend_is_forced, is_default
from weft.tracer import BackendCompilerFailed, OptimizedModule, TorchDynamoException, config

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (int, float, bool, str, type(None))
_MOST = 256
"""Sets of arguments that are known; past it, arguments that change with each call would only cost memory."""


@dataclass(eq=False)
class Watched:
    """weft's backend with these options for one function, and the trials that it gave.

    Attributes:
        options: fields of `weft.options`.
        direct: the arguments, as `_form` gives them, for which the function itself is called.
        open: False once a graph runs otherwise than in PyTorch, or without a trial.
        asked: its graphs that are compiled in the background.
    """

    options: Mapping[str, Any]
    direct: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])
    open: bool = True
    func: Callable[..., Any] = backend
    asked: Asked = field(default_factory=list["weakref.ref[DeferredGraph]"])
    _trials: list[Trial] = field(default_factory=list[Trial])

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Returns what runs in place of a graph."""
        return fastest(gm, example_inputs, self.options, self._note)

    def _note(self, run: Runner, eager: Runner) -> None:
        if isinstance(run, DeferredGraph):
            self.asked.append(weakref.ref(run))
        if isinstance(run, Trial):
            self._trials.append(run)
        elif run is not eager or torch.is_grad_enabled():
            self.open = False  # weft's kernels untried; or PyTorch, but weft where no gradients are asked for

    def __reduce__(self) -> tuple[Any, ...]:
        """Gives copies, and what a pickle gives, trials of their own."""
        return Watched, (self.options,)

    def is_direct(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Tells whether the function itself is to be called with these arguments; not where it is traced into another graph."""
        if torch.compiler.is_compiling() or backend_is_forced():
            return False
        return _form(args, kwargs) in self.direct

    def learn(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Notes arguments that the function was called with, if PyTorch won all trials so far."""
        if (
            torch.compiler.is_compiling() or not is_default()
        ):  # by another stance PyTorch may have run it without a trial
            return
        chosen = [run is trial.eager for trial in tuple(self._trials) for run in tuple(trial.chosen.values())]
        self.open = self.open and all(chosen) and len(self.direct) < _MOST
        form = _form(args, kwargs)
        if self.open and chosen and form is not None:
            self.direct.add(form)


def _form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Returns what tells arguments apart that may be faster or slower than others; None where there are more than
    tensors and numbers.
    """
    form: list[Any] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = cast("type[Any]", type(value))
        if kind in _TENSORS:
            tensor = cast("torch.Tensor", value)
            if tensor.is_nested:
                return None  # it has no sizes
            form += (tensor.shape, tensor.dtype)
        elif kind in _PLAIN:
            form += (kind, value)
        else:
            return None
    return (*form, *kwargs) if kwargs else tuple(form)


# Lengths that are seen once are compiled for that length, then for all lengths; sizes 0 and 1 are classes of their own. With
# several dimensions, dtypes and layouts that is more variants than PyTorch's own limit of 8, past which it would run eager.
_VARIANTS = 256


def compiled(model: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Make what `weft.compile` returns for a `model` that can be called, with `options`, which are in force."""
    watched = Watched(options)
    try:
        inner = dynamo_compile(model, watched)
    except UnsupportedError as error:
        _say_left(error)
        return model
    if isinstance(inner, OptimizedModule):
        object.__setattr__(inner, "__class__", CompiledModule)
        inner.forward = direct_or(translating(inner.forward, cast("torch.nn.Module", model)), model, watched)
        keep_asked(inner.forward, watched.asked)
        _say_where_reports_are(inner)
        return inner
    made = functools.wraps(model)(direct_or(translating(inner, model), model, watched))
    keep_asked(made, watched.asked)
    _say_where_reports_are(made)
    return made


def _say_where_reports_are(made: Callable[..., Any]) -> None:
    """Give `made`, a function or module, an `explain` that raises NoReportError, unless it has one of the user's."""
    if not hasattr(made, "explain"):
        vars(made)["explain"] = explain


def explain(*args: Any, **kwargs: Any) -> Never:
    """Raise NoReportError, in place of saying that a function has no such attribute."""
    del args, kwargs
    raise NoReportError(
        "what weft.compile returns has no explain(): each call decides what is compiled, by its arguments"
    )


def _say_left(error: UnsupportedError) -> None:
    """Warn, at the user's line, that PyTorch runs all of what was to be compiled."""
    place = error.where if isinstance(error.where, Location) else Location(__file__, 0)
    warnings.warn_explicit(
        f"weft leaves this function or module to PyTorch: {error}", LeftToPyTorchWarning, place.file, place.line
    )


class CompiledModule(OptimizedModule):
    """A compiled module; a copy, or what a pickle gives, translates errors too."""

    def _initialize(self) -> None:
        super()._initialize()
        self.forward = translating(self.forward, self._orig_mod)
        _say_where_reports_are(self)


def dynamo_compile(model: Callable[..., Any], with_backend: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with torch.compile, with room for every class of shapes. Raises UnsupportedError for what it cannot take at all."""
    demand_traceable(model)
    # None: compiled for the sizes that are seen first, then for all sizes; weft's kernels are for all sizes from the start.
    settings: dict[str, Any] = {"backend": traced_for(with_backend), "dynamic": None if current().dynamic else False}
    if "recompile_limit" in inspect.signature(torch_compile).parameters:
        settings |= {"recompile_limit": _VARIANTS, "isolate_recompiles": True}
    else:  # before PyTorch 2.13: a limit for the whole process
        config.recompile_limit = max(config.recompile_limit, _VARIANTS)
    return torch_compile(model, **settings)


def direct_or(inner: Callable[..., Any], model: Callable[..., Any], watched: Watched) -> Callable[..., Any]:
    """Call `inner`, but `model` itself for arguments of which it is known that this is faster."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if watched.direct and watched.is_direct(args, kwargs):
            return model(*args, **kwargs)
        if any(map(_without_strides, args)) or (kwargs and any(map(_without_strides, kwargs.values()))):
            return model(*args, **kwargs)
        result = inner(*args, **kwargs)
        if watched.open:
            watched.learn(args, kwargs)
        return result

    return call


def _without_strides(argument: Any) -> bool:
    """Tell whether it is a nested tensor without strides, or holds such: PyTorch's guards would end the process."""
    match argument:
        case torch.Tensor():
            return argument.is_nested and argument.layout is torch.strided
        case list() | tuple():
            return any(map(_without_strides, cast("Sequence[Any]", argument)))
        case dict():
            return any(map(_without_strides, cast("dict[Any, Any]", argument).values()))
        case _:
            return False


def translating(inner: Callable[..., Any], model: Callable[..., Any]) -> Callable[..., Any]:
    """Call `inner`; where tracing fails before any of the user's code ran, eager decides what happens."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except TorchDynamoException as error:
            failure = error
        if isinstance(failure, BackendCompilerFailed) and isinstance(failure.inner_exception, WeftError):
            raise failure.inner_exception from None
        if _code_ran(failure):
            raise failure
        return eagerly(model, args, kwargs)

    without_log_inside(call)
    return call


_MODULES = str(Path("torch", "nn", "modules", "module.py"))
_SILENT: set[CodeType] = set()


def without_log_inside(function: Callable[..., Any]) -> None:
    """Silence PyTorch's own log of a call that tracing refused inside `function`, which says itself what is wrong."""
    own = inspect.unwrap(function)
    assert isinstance(own, FunctionType)
    _SILENT.add(own.__code__)


def _outside(record: logging.LogRecord) -> bool:
    """Tell whether a record is logged outside of all functions that report the failure themselves."""
    del record
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in _SILENT:
            return False
        frame = frame.f_back
    return True


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_outside)


def eagerly(model: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `model(*args, **kwargs)`; a RuntimeError of eager's own becomes a ShapeError that names the user's line.

    A NotImplementedError becomes an UnimplementedError, which is one too; an error of another class stays as it is.
    """
    try:
        return model(*args, **kwargs)
    except RuntimeError as error:
        kinds = {RuntimeError: ShapeError, NotImplementedError: UnimplementedError}
        if type(error) not in kinds:
            raise
        raise kinds[type(error)](str(error), where=_user_line(error)) from error


def _code_ran(error: BaseException) -> bool:
    """Tell whether a part of the function had already run, so that running it again would repeat its effects."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    frames = [code for code in codes if not code.co_filename.endswith(_MODULES)]  # the way into a module's forward
    entry = next((i for i, code in enumerate(frames) if code.co_name == "compile_wrapper"), None)
    if entry is None or entry + 1 >= len(frames):
        return True
    return not frames[entry + 1].co_filename.endswith(str(Path("_dynamo", "convert_frame.py")))


def _user_line(error: BaseException) -> Location | None:
    """Find the innermost line of `error` that is neither PyTorch's nor weft's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(OWN)]
    return Location(own[-1].filename, own[-1].lineno or 0, own[-1].line or "") if own else None
