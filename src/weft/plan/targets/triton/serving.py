"""The sizes that a GPU's binary serves: it is compiled for a class of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.emit.triton import WholeConstant
from weft.errors import UnsupportedError
from weft.plan.targets.bench import Judged
from weft.plan.targets.lying import DIVISIBLE, as_lies
from weft.run.gpu import GpuBinary
from weft.run.gpu.signature import ConstexprArgument


class BinaryServing:
    """Tells at which sizes the binary serves that calls like the example use, so that nothing is compiled to be judged."""

    def __init__(self, judged: Judged, kernels: Sequence[GpuBinary], *, congruent: bool) -> None:
        """`congruent` keeps what is left of a size when divided by 16, and with that whether any stride is divisible."""
        self._judged, self._first = judged, kernels[0]
        self._example, self._congruent = judged.sizes, congruent
        self._constants: dict[str, list[ConstexprArgument]] = {}
        for c in (c for each in kernels for c in each.signature.constants):
            if c.space in judged.names:
                self._constants.setdefault(judged.names[c.space], []).append(c)
        self._known: dict[tuple[str, int], bool] = {}
        self._least: dict[tuple[str, int], int] = {}

    def at_least(self, name: str, size: int) -> int:
        """Returns the least size of a space from `size` on that the binary may serve; the example's where there is none near."""
        key = name, size
        if key not in self._least:
            self._least[key] = self._found(name, size)
        return self._least[key]

    def _found(self, name: str, size: int) -> int:
        """Looks for what `at_least` returns."""
        example = self._example.get(name)
        if example is None:
            return size
        if any(rule.others and name in (s.name for s in rule.sources) for rule in self._judged.written.derived):
            return example  # what it makes together with others is of the example's class, whichever of them it is chosen for
        own = [(c, self._example[each]) for each in self._with(name) for c in self._constants.get(each, ())]
        values = [c.of({c.space: its}) for c, its in own]
        # Blocks have powers of two of elements: that size is one.
        widest = max([DIVISIBLE, *(c.tile for c, _ in own if isinstance(c, WholeConstant)), *values])
        for least in (size, *(value // 2 + 1 for value in values)):
            for n in range(max(least, min(example, 2)), max(least, 2) + 2 * widest):
                if self._takes(name, n):
                    return n
        return example

    def _with(self, name: str) -> list[str]:
        """Lists the space and those whose sizes follow from its own, as far as the example has them."""
        found = [name]
        for rule in self._judged.written.derived:
            if not rule.others and rule.source.name in found and rule.space.name in self._example:
                found.append(rule.space.name)
        return found

    def _takes(self, name: str, size: int) -> bool:
        """Tells whether the binary serves this size of a space, and what follows from it."""
        if not self._is_like(size, name):
            return False
        if (name, size) not in self._known:
            sizes = self._judged.written.sizes({name: size})
            self._known[name, size] = all(self._is_like(sizes[each], each) for each in self._with(name))
        return self._known[name, size]

    def _is_like(self, size: int, name: str) -> bool:
        example, own = self._example[name], self._constants.get(name, ())
        if size < min(example, 2) or any(c.of({c.space: size}) != c.of({c.space: example}) for c in own):
            return False
        if self._congruent:
            return size % DIVISIBLE == example % DIVISIBLE
        return (size % DIVISIBLE == 0) == (example % DIVISIBLE == 0)

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Tells whether calls of these sizes are of a class that was compiled for."""
        made = self._first
        own = {name: sizes[its] for name, its in self._judged.names.items()}
        shapes = [[n if isinstance(n, int) else own[n] for n in shape] for shape in made.signature.shapes]
        names = [each.name for each in made.signature.kernel.inputs]
        lying = self._judged.lying
        strides = [as_lies(shape, lying[name].strides) for shape, name in zip(shapes, names, strict=True)]
        try:
            kind = made.class_for(own, strides)
        except UnsupportedError:
            return False
        return any(each.kind.serves(kind) for each in made.assembled)
