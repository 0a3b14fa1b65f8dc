"""What the tests of capture share: a backend that keeps what was captured and runs it in fp64."""

from __future__ import annotations

import pytest

from testkit.capture.collector import Collector


@pytest.fixture
def weft() -> Collector:
    return Collector()
