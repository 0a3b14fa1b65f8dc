"""Modules of this package that need Triton's interpreter, each run in a process that has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def interpreted(module: str, *arguments: str, cache: Path, timeout: float = 900) -> Any:
    """Run `testkit.plan.MODULE` with these arguments, and return what the last line that it prints says as JSON.

    Raises AssertionError with the end of its standard error where it fails.
    """
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "WEFT_JUDGE": "off",
        "WEFT_CACHE_DIR": str(cache),
    }
    script = [sys.executable, "-m", f"testkit.plan.{module}", *arguments]
    done = subprocess.run(script, check=False, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
