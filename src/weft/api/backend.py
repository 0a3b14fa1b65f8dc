"""weft as a backend of torch.compile, found by its entry point.

What only choosing kernels needs, `capture.capture` and `plan.plan`, is imported where the cache has no plan of a graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from weft import capture, plan
from weft.api.background.asked import ask_for, in_background, timed_in_background
from weft.api.kept_plans import KeptGraph
from weft.api.known import called_with, remember, served
from weft.api.losses import say_what_is_lost
from weft.api.net import safe, say
from weft.api.recompiles import say_what_is_fixed
from weft.api.tracing import guard_forward_derivatives, traced_for
from weft.capture import ArgumentPlace, Captured, runnable
from weft.defects import is_defect, noticed
from weft.errors import ArgumentError, CacheFolderError, LeftToPyTorchWarning, UnknownOptionError
from weft.options import current
from weft.options import options as in_force
from weft.phases import phase
from weft.plan import Plan, Runner, changing_sizes, counted, faster, home, warn
from weft.plan.targets import toolchain
from weft.run import stats
from weft.stack import roomy
from weft.target import Target

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")


@traced_for
def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **more: Any,
) -> Callable[..., Any]:
    """Compile one graph of Dynamo's: `torch.compile(fn, backend="weft", options={"threads": 1})`.

    `options` are fields of `weft.options`; of torch.compile's modes "reduce-overhead" is one, others ask for nothing that weft
    does otherwise.

    Never fails where eager works: what cannot be compiled runs in PyTorch, and a missing compiler is a warning. Only an option
    or mode that does not exist and a cache folder that is not safe are errors.
    """
    if options is not None and not isinstance(cast("Any", options), Mapping):
        raise ArgumentError(
            f"the options of torch.compile are of type {type(options).__name__}",
            todo='give a dict: options={"threads": 1}',
        )
    if mode is not None and mode not in _MODES:
        raise ArgumentError(f"torch.compile has no mode {mode!r}", todo=f"its modes are {', '.join(_MODES)}")
    known = {"mode": mode} if mode == "reduce-overhead" else {}
    return fastest(gm, example_inputs, {**known, **(options or {}), **more})


def fastest(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any],
    noted: Callable[[Runner, Runner], None] | None = None,
) -> Runner:
    """Compile as `backend` does; `noted` is told what runs, and what of PyTorch's would."""
    with in_force(**options), noticed() as defects, phase("other"):
        eager = in_pytorch(gm)
        try:
            elsewhere, kept = in_background(gm, example_inputs), KeptGraph.of(gm, example_inputs)
            made = planned_before(kept, eager)
            if made is None and elsewhere:
                run = ask_for(gm, example_inputs, eager)
                if noted is not None:
                    noted(run, eager)
                return safe(run, gm, eager)
            if made is not None:
                run = timed_in_background(
                    gm, example_inputs, made, eager, faster(made, eager, changing_sizes(gm), kept)
                )
            else:
                doubles = toolchain(home(example_inputs)).doubles
                captured = capture.capture(gm, example_inputs, doubles=doubles, guarded=True)
                known = served(captured)
                if known is not None:
                    return _as_before(gm, known, eager, noted)
                made = compile_graph(gm, example_inputs, captured=captured)
                keep_plan(kept, captured, made, defects)
                run = timed_in_background(
                    gm, example_inputs, made, eager, faster(made, eager, changing_sizes(gm), kept)
                )
                remember(captured, made, run)
            run = replayed(made, run, example_inputs, gm)
            if not defects:
                say_what_is_lost(gm, made, example_inputs)
        except (CacheFolderError, UnknownOptionError, LeftToPyTorchWarning):
            raise  # the user's own setting, and only the user can mend it; or a warning that is to be an error
        except Exception as error:  # noqa: BLE001 - whatever is wrong, eager still runs; and it is said
            stats.count("fallbacks")
            if is_defect(error):
                defects.append(error)
            else:
                warn("this graph", error)
            run = eager
        if defects:
            say(gm, example_inputs, defects[0])
        if noted is not None:
            noted(run, eager)
        return safe(run, gm, eager)


def planned_before(kept: KeptGraph | None, eager: Runner) -> Plan | None:
    """Return the plan of a graph that another process made and kept; None where there is none."""
    made = None if kept is None else kept.plan(eager)
    if made is not None:
        say_what_is_fixed()
        guard_forward_derivatives()
        _count(made, eager)
    return made


def keep_plan(kept: KeptGraph | None, captured: Captured, made: Plan, defects: Sequence[Exception]) -> None:
    """Keep what became of a captured graph for other processes, unless something failed that may go well there."""
    if kept is not None and not defects and made.captured.lacking == captured.lacking:
        kept.keep(made)


def _as_before(
    gm: torch.fx.GraphModule,
    known: tuple[Runner, tuple[ArgumentPlace, ...], int],
    eager: Runner,
    noted: Callable[[Runner, Runner], None] | None,
) -> Runner:
    """Run `gm`, a graph with a size of 1 or 0, with the kernels of one for all sizes."""
    guard_forward_derivatives()
    run, places, kernels = known
    stats.count("kernels", kernels)
    if current().log != "none":
        sys.stderr.write("weft: calls with sizes 0 or 1 use the kernels for all sizes\n")
    if noted is not None:
        noted(run, eager)
    return safe(called_with(run, places), gm, eager)


def replayed(made: Plan, run: Runner, example_inputs: Sequence[Any], gm: torch.fx.GraphModule) -> Runner:
    """Return `run`, replayed from CUDA graphs where the option `mode` asks for that."""
    return plan.in_graphs(made, run, example_inputs, changing_sizes(gm)) if current().mode == "reduce-overhead" else run


@roomy
def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    target: Target | None = None,
    captured: Captured | None = None,
    *,
    tried: bool = True,
) -> Plan:
    """Make the plan of one graph, for `target` or where its inputs live; `captured`, if that is done.

    With `tried`, matmuls that PyTorch's library is clearly faster at are its own: a trial will compare the plan with PyTorch.

    Raises:
        CompilerError: there is no working compiler.
    """
    say_what_is_fixed()
    guard_forward_derivatives()
    eager = in_pytorch(gm)
    captured = captured or capture.capture(
        gm, example_inputs, doubles=toolchain(target or home(example_inputs)).doubles
    )
    made = plan.plan(captured, example_inputs, eager, target, tried=tried)
    _count(made, eager)
    return made


def _count(made: Plan, eager: Runner) -> None:
    lacking = [fallback for fallback in made.fallbacks if not fallback.is_faster]
    stats.count("fallbacks", len(lacking) or int(made.run == eager))
    stats.count("kernels", len(made.kernels))
    _log(made)


def in_pytorch(gm: torch.fx.GraphModule) -> Runner:
    """Return the function that runs `gm` as it is.

    Dynamo's graphs write that function when they are first called; until then `forward` is one that calls the module as a whole,
    which takes microseconds, and prints on standard error what fails.
    """
    gm = runnable(gm)
    getattr(gm, "real_recompile", gm.recompile)()
    return gm.forward


def _log(made: Plan) -> None:
    """Say on standard error what was compiled, as the option `log` asks."""
    level = current().log
    if level == "none":
        return
    names = ", ".join(counted(f"{k.name}{' (cached)' if k.from_cache else ''}" for k in made.kernels)) or "nothing"
    left = "; ".join(counted(map(str, made.fallbacks))) or "nothing"
    sys.stderr.write(f"weft: compiled {names}; left to PyTorch: {left}\n")
    if level == "debug":
        from weft.api.report import report  # what draws, which else only `explain` needs

        sys.stderr.write(f"{report([made])}\n")
