"""Printing a launch as C++."""

from __future__ import annotations

from weft.emit import cpp
from weft.phases import phase
from weft.plan.targets.base import Meta
from weft.plan.targets.interface import signature
from weft.plan.targets.launches import LaunchSpec
from weft.run.build import KernelSource


def printed(spec: LaunchSpec, meta: Meta) -> KernelSource:
    """Print the kernel of `spec`, with what is kept beside it; raises UnsupportedError where that cannot be."""
    kept = meta()
    with phase("emit"):
        text = cpp.emit(spec.applied, spec.part, spec.name, spec.dims)
        called = signature(spec.applied, spec.part, spec.name, spec.dims)
    return KernelSource(text, called, (cpp.INCLUDE_DIR,), kept, cpp.shared(text))
