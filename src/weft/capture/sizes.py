"""Facts about sizes."""

from __future__ import annotations

from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true  # no public name

_UNKNOWN = 97
"""Stands for sizes that the content of tensors decides: the program is the same whatever it is."""


def symbolic(size: Any) -> bool:
    """Tells whether a size is known only when the program runs; as typed, a size is always an int."""
    return not isinstance(size, int)


def expression(size: Any) -> Any:
    """Returns what tells sizes apart, without a guard: the number, or SymPy's expression of a symbolic one."""
    return size.node.expr if symbolic(size) else size


def number_or_expression(size: Any) -> Any:
    """Returns what `expression` does, with a number where a symbol turned out to be one."""
    found = expression(size)
    return int(found) if getattr(found, "is_Integer", False) else found


def hint(size: Any) -> int:
    """Returns a size in the example; at least 2 for one that is symbolic.

    A dimension has an axis or has none, which cannot depend on the inputs: one whose size is 1 or 0 for these inputs only has
    one, and counts as 2 long. If that is wrong, it is found when a result's shape is compared with PyTorch's. It is 1 where the
    graph's guards say so: `(n // 4 == 1)`, say, of what was stacked with something of size 1.
    """
    if isinstance(size, int):
        return size
    example = in_example(size)
    return 1 if example == 1 and statically_known_true(size == 1) else max(example, 2)


def in_example(size: Any) -> int:
    """Returns a size, or a stride, in the example."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    if found is not None:
        return int(found)
    return int(size.node.expr.subs(dict.fromkeys(size.node.expr.free_symbols, _UNKNOWN)))


def known(size: Any) -> bool:
    """Tells whether a size is known in the example: it does not depend on the content of a tensor."""
    return isinstance(size, int) or size.node.hint is not None
