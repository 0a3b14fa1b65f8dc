"""Where the numbers that PyTorch traced as symbols are found at each call of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils._sympy.printers import PythonPrinter  # no public name

from weft.capture.captured import MemoryLayout, RuntimeNumber, Told
from weft.capture.sizes import expression, number_or_expression, symbolic
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis, Space
from weft.tensor.builder import Builder, Ref


class Symbols:
    """What is known of the numbers of one graph.

    Attributes:
        arguments: by name of a symbol, which argument of the graph it is.
        contents: by symbol, the input whose only element it is.
        axes: by SymPy's expression of a size, an axis that is as long.
    """

    def __init__(self) -> None:
        self.arguments: dict[str, int] = {}
        self.contents: dict[Any, Ref] = {}
        self.axes: dict[Any, Axis] = {}

    def see(self, builder: Builder, ref: Ref, shape: Sequence[Any]) -> None:
        """Notes how long the axes of a tensor are, and which are as long as symbolic sizes that no earlier tensor has."""
        for axis, size in zip(ref.dims, shape, strict=True):
            if axis is not None:
                builder.tell(axis, number_or_expression(size))
                if symbolic(size):
                    self.axes.setdefault(expression(size), axis)

    def sizes(self, builder: Builder) -> Iterator[tuple[Space, RuntimeNumber]]:
        """Lists the spaces of the finished program whose sizes follow from numbers that the graph is called with, or never change.

        A size that is the same at each call is one that PyTorch traced the graph for, and guards.
        """
        for space, length in builder.lengths():
            if isinstance(length, int):
                yield space, RuntimeNumber(str(length), ())
            elif {str(s) for s in length.free_symbols} <= set(self.arguments):
                yield space, self._number_of(length, {})

    def number(self, value: Any, told: Mapping[str, Told]) -> RuntimeNumber:
        """Says what a number of PyTorch's comes to at each call.

        told: where those of its symbols are found that no argument of the graph is.

        Raises:
            UnsupportedError: that is nowhere.
        """
        expr = expression(value)
        if not {str(s) for s in expr.free_symbols} <= {*self.arguments, *told}:
            raise UnsupportedError(f"{expr} depends on the content of a tensor")
        return self._number_of(expr, told)

    def layout(self, fake: torch.Tensor) -> MemoryLayout | None:
        """Says how a tensor lies in memory in eager; None where only the content of a tensor tells."""

        def known(size: int | torch.SymInt) -> RuntimeNumber | int:
            return self.number(size, {}) if isinstance(size, torch.SymInt) else size

        try:
            return MemoryLayout(
                tuple(map(known, fake.shape)), tuple(map(known, fake.stride())), known(fake.storage_offset())
            )
        except UnsupportedError:
            return None

    def _number_of(self, expr: Any, told: Mapping[str, Told]) -> RuntimeNumber:
        """Says what SymPy's expression of the graph's numbers comes to at each call."""
        symbols = sorted(str(s) for s in expr.free_symbols)
        text = str(cast("Any", PythonPrinter()).doprint(expr))
        places: dict[str, int | Told] = {**told, **self.arguments}
        return RuntimeNumber(text, tuple((name, places[name]) for name in symbols))
