"""The CPU: C++ text, one shared library a kernel, OpenMP threads."""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.plan.targets.cpp.bench import ChildBench
    from weft.plan.targets.cpp.printed import printed
    from weft.plan.targets.cpp.toolchain import Cpp

__all__ = ["ChildBench", "Cpp", "printed"]

export_lazily(__name__)
