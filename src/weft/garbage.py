"""Python's collection of cycles, put off where thousands of objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

_seen = {"frozen": False}
"""Whether objects were found frozen before: to find out, Python counts them, 20 ms for a million."""


@contextmanager
def uncollected() -> Generator[None]:
    """Stop the collection of cycles until the block ends, for a second or so.

    Each full collection looks at all that PyTorch's modules hold, for 0.3 s, and importing PyTorch's tracer sets off several.
    What was made meanwhile counts as old from then on: else the first new object would have Python look at all of that.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not _frozen():  # what the user froze stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _frozen() -> bool:
    _seen["frozen"] = _seen["frozen"] or gc.get_freeze_count() > 0
    return _seen["frozen"]
