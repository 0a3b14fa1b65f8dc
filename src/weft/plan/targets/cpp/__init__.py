"""The CPU: C++ text, one shared library a kernel, OpenMP threads."""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.plan.targets.cpp.toolchain import Cpp

__all__ = ["Cpp"]

export_lazily(__name__)
