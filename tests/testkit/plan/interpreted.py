"""Modules of this package that need Triton's interpreter, each run in a process that has it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from testkit.processes.running import ran


def interpreted(module: str, *arguments: str, cache: Path, timeout: float = 900) -> Any:
    """Run `testkit.plan.MODULE` with these arguments, and return what the last line that it prints says as JSON.

    Raises AssertionError with the end of its standard error where it fails.
    """
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "WEFT_JUDGE": "off",
        "WEFT_CACHE_DIR": str(cache),
    }
    done = ran(["-m", f"testkit.plan.{module}", *arguments], environment, timeout=timeout)
    return json.loads(done.stdout.splitlines()[-1])
