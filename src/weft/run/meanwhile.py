"""Work in Python that forked children do while this process does something else; a thread takes what they give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from weft.run.spread import spreading

T = TypeVar("T")

_SECONDS = 60.0


class Meanwhile(Generic[T]):
    """Tasks spread over children (`weft.run.spread`). Children end when their work is done, whether or not somebody asks for it, or
    with the thread that began them: what they have not given by then is lost.
    """

    def __init__(
        self, tasks: Sequence[Callable[[], object]], taken: Callable[[Any], T], seconds: float = _SECONDS
    ) -> None:
        """Begin. After so many `seconds` the children are ended.

        Args:
            tasks: what is done; what they give is pickled.
            taken: is called with what a task gave, in a thread with the options that are in force now; returns the result.
            seconds: for all of them.

        Raises:
            OSError, RuntimeError: there is no further file or thread to be had.
        """
        self._taken = taken
        self._until = time.monotonic() + seconds
        self._found: dict[int, T] = {}
        self._came = threading.Condition()
        self._over = not tasks
        if tasks:
            held = ExitStack()
            coming = held.enter_context(spreading(tasks, seconds))
            run = partial(copy_context().run, self._read, held, coming)
            reader = threading.Thread(target=run, name="weft-meanwhile", daemon=True)
            try:
                reader.start()
            except RuntimeError:
                held.close()
                raise

    def _read(self, held: ExitStack, coming: Iterator[tuple[int, object]]) -> None:
        try:
            with held:
                for number, each in coming:
                    found = self._taken(each)
                    with self._came:
                        self._found[number] = found
                        self._came.notify_all()
        finally:
            with self._came:
                self._over = True
                self._came.notify_all()

    def result(self, number: int) -> T | None:
        """Wait for what a task gave; None where it failed, or its child died or took too long."""
        with self._came:
            self._came.wait_for(lambda: number in self._found or self._over, self._left)
            return self._found.get(number)

    def wait(self) -> None:
        """Wait until all has been taken."""
        with self._came:
            self._came.wait_for(lambda: self._over, self._left)

    @property
    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())
