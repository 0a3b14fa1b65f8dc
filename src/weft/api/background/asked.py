"""Asking for a graph's kernels, or for their times, from within Dynamo's call, and waiting for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import fx

from weft.api.given import callable_of
from weft.api.recompiles import say_what_is_fixed
from weft.api.tracing import guard_forward_derivatives
from weft.capture import refused_at_once
from weft.errors import CompilerError, named
from weft.options import current
from weft.plan import Plan, Runner, Trial, changing_sizes, gpu_of, measured_before, warn
from weft.run.cache import CacheFolder

if TYPE_CHECKING:
    from weft.api.background.serving import DeferredGraph

Asked: TypeAlias = list["weakref.ref[DeferredGraph]"]
"""The graphs of one compiled function that are, or were, compiled or timed in the background."""
_ASKED = "weft_asked"
_SHARE = 4
"""The part of a GPU's free memory that the arguments of a graph may take again in the other process: a quarter."""


def in_background(gm: fx.GraphModule, arguments: Sequence[Any]) -> bool:
    """Tell whether a graph is to be compiled in the background.

    Not where that was not asked for, for a graph that PyTorch runs anyhow, which costs nothing to find out, and where the other
    process could not do it (`_elsewhere`).
    """
    return current().compile == "background" and refused_at_once(gm, arguments) is None and _elsewhere(arguments)


def _elsewhere(arguments: Sequence[Any]) -> bool:
    """Tell whether another process can do it: on a GPU it needs memory for arguments like these, and what is replayed from CUDA
    graphs is never swapped.
    """
    device = gpu_of(arguments)
    if device is None:
        return True
    needed = sum(a.numel() * a.element_size() for a in arguments if isinstance(a, torch.Tensor) and a.device == device)
    free, _ = cast("Any", torch.cuda).mem_get_info(device)
    return current().mode != "reduce-overhead" and needed <= free // _SHARE


def timed_in_background(
    gm: fx.GraphModule, arguments: Sequence[Any], made: Plan, eager: Runner, compiled: Runner
) -> Runner:
    """Return what runs a graph that has kernels here: where that was asked for, these kernels untimed, while the other
    process finds out what is fastest: of kernels on a GPU too, and whether PyTorch, or the library's matmuls between them, are.

    What is on no trial runs as it is, but on a GPU. The trial is made at a call, as without the option, where it takes no time,
    since its times are known, and where the other process cannot do it.

    Args:
        gm, arguments: the graph, and what it is called with.
        made: the plan of it.
        eager: runs it in PyTorch.
        compiled: runs that, on trial or not, or PyTorch where it has no kernels.
    """
    on_gpu = gpu_of(arguments) is not None
    if current().compile == "blocking" or not made.kernels or not _elsewhere(arguments):
        return compiled
    if not isinstance(compiled, Trial) and not on_gpu:
        return compiled
    # On a GPU in the background nobody waits for binaries for other calls either, which the other process makes.
    asks = current().compile == "background" and on_gpu
    if isinstance(compiled, Trial) and not compiled.changing and not asks:
        known = measured_before(made)
        if known is not None and not known.is_to_be_repeated:
            return compiled
    try:
        sent, forms = _packed(gm, arguments)
    except Exception:  # noqa: BLE001 - PyTorch's pickler raises errors of many kinds
        return compiled
    return _deferred(gm, eager, sent, forms, made, compiled)


def ask_for(gm: fx.GraphModule, arguments: Sequence[Any], eager: Runner) -> Runner:
    """Ask for kernels for a graph, and return what runs it: PyTorch now, and what was chosen once that is known.

    Where the graph cannot be sent to another process PyTorch runs it for good, with a warning.

    Raises:
        CacheFolderError: the cache folder is not safe.
    """
    say_what_is_fixed()
    guard_forward_derivatives()
    CacheFolder()
    try:
        sent, forms = _packed(gm, arguments)
    except Exception as error:  # noqa: BLE001 - PyTorch's pickler raises errors of many kinds
        from weft.api.background.messages import RequestFailure

        what = f"this graph cannot be compiled in the background: {RequestFailure.of(error).what}"
        warn("this graph", CompilerError(what, todo='nothing: PyTorch runs it; or compile it with compile="blocking"'))
        return eager
    return _deferred(gm, eager, sent, forms)


def _packed(gm: fx.GraphModule, arguments: Sequence[Any]) -> tuple[bytes, tuple[Any, ...]]:
    """Write a graph and what its arguments look like; what does it is imported here."""
    from weft.api.background.graphs import forms_of, packed_graph

    return packed_graph(gm), forms_of(arguments)


def _deferred(
    gm: fx.GraphModule,
    eager: Runner,
    sent: bytes,
    forms: tuple[Any, ...],
    made: Plan | None = None,
    compiled: Runner | None = None,
) -> DeferredGraph:
    """Make what serves a graph that is asked for; what talks with the other process is imported here."""
    from weft.api.background.ambience import Ambience
    from weft.api.background.serving import DeferredGraph

    return DeferredGraph(gm, eager, sent, forms, Ambience.here(), changing_sizes(gm), made, compiled)


@named("weft.ready")
def ready(f: Callable[..., Any], timeout: float | None = None) -> bool:
    """Wait until all that calls of `f` have asked for in the background is compiled, timed and serves, or has failed.

    `weft.stats()` counts both. What was not asked for in the background is ready at once; of a function that `torch.compile` made,
    all that this process asked for is waited for.

    Args:
        f: what `weft.compile`, or `torch.compile` with the backend "weft", returned.
        timeout: seconds to wait at most; None: as long as it takes.

    Returns:
        Whether nothing is left to wait for.

    Raises:
        ArgumentError: `f` cannot be called.
    """
    from weft.api.background.requests import QUEUE, wait

    f = callable_of(f, "the first argument of weft.ready", "weft.ready({})")
    kept = [found for each in (f, getattr(f, "forward", None)) if (found := getattr(each, _ASKED, None)) is not None]
    if not kept:
        return wait(QUEUE.pending(), timeout)
    graphs = [each() for each in tuple(cast("Asked", kept[0]))]
    return wait([pending for graph in graphs if graph is not None for pending in graph.asked], timeout)


def keep_asked(f: Callable[..., Any], asked: Asked) -> None:
    """Let `ready(f)` know the graphs of `f`."""
    setattr(f, _ASKED, asked)
