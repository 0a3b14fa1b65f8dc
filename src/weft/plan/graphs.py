"""CUDA graphs: a call's work on the GPU without what it costs the host to start it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def replayed(run: Callable[[], Any]) -> Callable[[], Any]:
    """What `run` has the current GPU do, captured, so that each call does it again; `run` itself was called before.

    Raises:
        RuntimeError: `run` does what cannot be captured: it waits for the GPU, say.
    """
    cuda: Any = torch.cuda  # not fully known to type checkers
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        run()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        results = run()
    return functools.partial(_replay, graph, results)


def _replay(graph: Any, results: Any) -> Any:
    """The graph writes to the results that it made when it was captured: whoever holds it, holds them."""
    graph.replay()
    return results


def capturing() -> bool:
    """Whether the current stream is being captured: nothing may wait for the GPU then, and nothing can be timed."""
    cuda: Any = torch.cuda
    return bool(cuda.is_available() and cuda.is_current_stream_capturing())


def cache_filler(device: torch.device) -> torch.Tensor:
    """A tensor that, once it is written to, leaves nothing else in the second-level cache of `device`."""
    found: Any = vars(torch.cuda)["get_device_properties"](device)
    return torch.empty(2 * max(int(found.L2_cache_size), 1 << 24), dtype=torch.int8, device=device)
