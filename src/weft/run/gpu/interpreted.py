"""Kernels in Triton's interpreter, on CPU tensors: used if TRITON_INTERPRET=1 is set."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from weft.errors import CompilerError, WrongIndexError
from weft.run.gpu.signature import GpuSignature
from weft.run.gpu.worker import loaded
from weft.run.launch import Launcher, make_python_launcher
from weft.run.scratch import private_folder

# What a kernel calls that begins before the one before it has ended.
_AFTER_OTHERS = "weft_after_others"
# What it calls where an index must be one.
_DEMAND = "weft_demand"
# The interpreter changes Triton's language for the length of a call.
_one_at_a_time = threading.RLock()


def is_asked_for() -> bool:
    """Tell whether kernels are to be interpreted."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def make_interpreted(
    text: str, signature: GpuSignature, allocate: Callable[..., torch.Tensor] = torch.empty
) -> Launcher:
    """Make a launcher that has Triton's interpreter run the kernel: slowly, on the inputs' device.

    Args:
        text: the printed module.
        signature: of the kernel in it.
        allocate: makes outputs as `torch.empty` does.

    Raises:
        CompilerError: Triton is missing.
        ValueError: the signature reads what is not there.
    """
    mend_floats()
    function = _function(text, signature.name)

    def call(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> None:
        signature.demand_sizes(sizes)
        if grid := signature.thread_blocks(sizes):
            strides = [s for t in inputs for s in t.stride()]
            constants = dict(zip((c.name for c in signature.constants), signature.constants_at(sizes), strict=True))
            with _one_at_a_time:
                _run(function, grid, [*inputs, *outputs, *sizes.values(), *strides], constants)

    return make_python_launcher(signature.kernel, call, allocate)


def _run(function: Any, grid: int, arguments: Sequence[Any], constants: Mapping[str, int]) -> None:
    """Interpret a call; of what the interpreter raises, weft's own error alone is told."""
    try:
        function[(grid,)](*arguments, **constants)
    except Exception as error:
        if isinstance(error.__cause__, WrongIndexError):
            raise error.__cause__ from None
        raise


def _demand(holds: Any) -> None:
    if not bool(np.all(holds.handle.data)):
        raise WrongIndexError("an index is out of range")


@functools.cache
def mend_floats() -> None:
    """Make the interpreter's floats those of a GPU.

    The interpreter rounds a fused multiplication and addition twice. In bfloat16 it truncates instead of rounding, and
    multiplies bit patterns as integers. In types of 8 bits it takes infinities and NaN for numbers, and rounds half away from
    zero; an NVIDIA GPU saturates numbers that are too large to the largest one.
    """
    try:
        interpreter: Any = import_module("triton.runtime.interpreter")
        language: Any = import_module("triton.language")
    except ModuleNotFoundError:
        return  # loading the kernel says so
    bfloat16 = language.bfloat16
    kept = {language.float8e4nv: torch.float8_e4m3fn, language.float8e5: torch.float8_e5m2}
    convert: Any = interpreter._convert_float  # noqa: SLF001 - there is no other way in
    dot, fma = interpreter.InterpreterBuilder.create_dot, interpreter.InterpreterBuilder.create_fma

    def converted(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source in kept:
            wide = _numbers(torch.as_tensor(np.array(data)).view(kept[source]).float())
            if target == bfloat16:
                return convert(wide, language.float32, target, rounding)
            return wide.astype(np.float16 if target == language.float16 else np.float32)
        numbers = torch.as_tensor(np.array(data, dtype=np.float32)) if target in kept or target == bfloat16 else None
        if numbers is None:
            return convert(data, source, target, rounding)
        if target == bfloat16:
            return _numbers(numbers.to(torch.bfloat16).view(torch.int16)).view(np.uint16)
        most = torch.finfo(kept[target]).max
        return _numbers(numbers.clamp(-most, most).to(kept[target]).view(torch.uint8))

    def matmul(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        def wide(side: Any) -> Any:
            if side.dtype.scalar != bfloat16:
                return side
            numbers = (side.data.astype(np.uint32) << 16).view(np.float32)
            return interpreter.TensorHandle(numbers, language.float32)

        return dot(self, wide(a), wide(b), *rest)

    def added(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.dtype.scalar != language.float32:
            return fma(self, x, y, z)
        once = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(once.astype(np.float32), language.float32)

    interpreter._convert_float = converted  # noqa: SLF001 - there is no other way in
    interpreter.InterpreterBuilder.create_dot = matmul
    interpreter.InterpreterBuilder.create_fma = added


def _numbers(tensor: torch.Tensor) -> Any:
    """View a tensor as numpy has it."""
    return np.asarray(tensor)


def _function(text: str, name: str) -> Any:
    """Load the Triton function of a module."""
    path = private_folder() / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
    try:
        module = loaded(text, path)
    except ModuleNotFoundError as error:
        raise CompilerError(
            f"Triton cannot be used: {error}", todo="install Triton 3.6 or newer: pip install 'weft[gpu]'"
        ) from error
    if hasattr(module, _AFTER_OTHERS):
        setattr(module, _AFTER_OTHERS, lambda: None)  # nothing runs beside it, and there is no such instruction
    if hasattr(module, _DEMAND):
        setattr(module, _DEMAND, _demand)  # assertions are left out here
    return getattr(module, name)
