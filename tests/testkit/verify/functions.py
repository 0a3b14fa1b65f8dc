"""Functions for the tests of campaigns: made of statements, or such that they end their process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from weft.lab.fuzz import trial as function_trial
from weft.lab.fuzz.function_rows import Exactness
from weft.lab.fuzz.random_functions import RandomArgument, RandomFunction, Statement


def drawn(*texts: str, outputs: str = "v0", entry: str = "optimize", **changes: object) -> RandomFunction:
    """A function of two matrices, of these statements."""
    statements = [Statement(f"v{i}", text, Exactness.rounds, keeps=False) for i, text in enumerate(texts)]
    arguments = tuple(RandomArgument(name, ("n", "m"), "float32", "normal", "dense") for name in ("a0", "a1"))
    calls = ({"n": 4, "m": 5}, {"n": 3, "m": 1})
    return replace(RandomFunction(0, arguments, tuple(statements), tuple(outputs.split()), calls, 1, entry), **changes)


def ending(seed: int) -> RandomFunction:
    """Draws functions of which weft crashes (0) or hangs (1); 2 cannot even be drawn."""

    def crash(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGFPE)

    if seed == 2:
        crash()
    function_trial.weft_compile = [crash, lambda _: time.sleep(100)][seed]
    return drawn("a0 * 2", seed=seed, entry="compile")
