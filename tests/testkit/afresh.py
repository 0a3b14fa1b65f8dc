"""Choices made anew: neither what this process nor what the cache remembers is taken, and nothing is left there for other tests."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from weft.plan.execute import selections
from weft.plan.targets import kept


class _Nowhere:
    """A cache folder that keeps no choice."""

    def lookup(self, *_: object, **__: object) -> None:
        """Nothing is there."""

    def store(self, *_: object, **__: object) -> None:
        """Nothing is kept."""


@contextmanager
def chosen_afresh() -> Generator[pytest.MonkeyPatch]:
    """Inside, kernels and cuts are chosen as the code now says; gives what patches that code. Binaries are shared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selections, "_remembered", {})
        patch.setattr(kept, "CacheFolder", _Nowhere)
        yield patch
