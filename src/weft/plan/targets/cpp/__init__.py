"""The CPU: C++ text, one shared library a kernel, OpenMP threads."""

from weft.plan.targets.cpp.toolchain import Cpp

__all__ = ["Cpp"]
