"""What compiling depends on beside the graph: PyTorch's settings, weft's options and the environment, at the call that asked."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.options import Options, again, current

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Ambience:
    """Settings of a call.

    Attributes:
        options: weft's; the cache folder with its full path.
        gradients: whether they are recorded.
        autocast: for each kind of device, whether autocast is on, and its element type.
        dtype: of new tensors.
        precision: of float32 matmuls.
        threads: of PyTorch's own operations.
        deterministic: whether PyTorch may use deterministic algorithms only, and whether it only warns where there is none.
        environment: the variables of the process.
    """

    options: Options
    gradients: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    dtype: torch.dtype
    precision: str
    threads: int
    deterministic: tuple[bool, bool]
    environment: Mapping[str, str]

    @staticmethod
    def here(options: Options | None = None) -> Ambience:
        """Return the settings in force now, or with these `options`; the other process waits for all that it is asked."""
        options = (options or current()).replace(compile="blocking")
        if options.cache_dir is not None:
            options = options.replace(cache_dir=str(Path(options.cache_dir).expanduser().absolute()))
        return Ambience(
            options,
            torch.is_grad_enabled(),
            tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.get_num_threads(),
            (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            dict(os.environ),
        )

    @contextmanager
    def in_force(self) -> Generator[None]:
        """Put the settings in force, in a process that has none of its own to restore but gradients and autocast."""
        for name in os.environ.keys() - self.environment.keys():
            del os.environ[name]
        os.environ.update(self.environment)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.precision)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        deterministic, warns = self.deterministic
        modes: Any = torch
        modes.use_deterministic_algorithms(deterministic, warn_only=warns)
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            for kind, on, dtype in self.autocast:
                if on:
                    stack.enter_context(torch.autocast(kind, dtype))
            stack.enter_context(again(self.options))
            yield
