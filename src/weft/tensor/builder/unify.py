"""Which dimensions are the same index set: union-find over spaces, by what operations demand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from weft.tensor.axes import Axis, Space


@dataclass(frozen=True, slots=True)
class Sliced:
    """A space that has `times` elements for each one of `[start:stop:step]` of the space `source`; and `plus` and those of
    `others` more.
    """

    source: Space
    start: int | None = None
    stop: int | None = None
    step: int = 1
    times: int = 1
    plus: int = 0
    others: tuple[Space, ...] = ()


@dataclass(frozen=True, slots=True)
class _Class:
    """What is known of a class of unified spaces."""

    hint: int
    fixed: bool
    shown: bool
    sliced: tuple[Sliced, ...]
    pinned: bool = False
    length: Any = None


class Spaces:
    """Provisional spaces and axes, each space a class of its own until an operation demands more.

    Equal sizes alone never unify: the `hint` of a space, its size in the example, is only looked at
    to refuse a demand that the example contradicts.
    """

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._classes: dict[str, _Class] = {}
        self._axes = 0
        # Of each unification: the class that went, the one that stayed, and that as it was before. A pin is of one with itself.
        self._done: list[tuple[str, str, _Class]] = []

    @property
    def unified(self) -> int:
        """The number of unifications and pins so far."""
        return len(self._done)

    def undo(self, unified: int) -> None:
        """Take back all but the first `unified` of these."""
        while len(self._done) > unified:
            gone, stayed, before = self._done.pop()
            self._parent[gone] = gone
            self._classes[stayed] = before

    def space(self, hint: int, *, fixed: bool = False, shown: bool = False, sliced: Sliced | None = None) -> Space:
        """Make a fresh space that has `hint` elements in the example.

        Always so if the program says it (`fixed`), unless a tensor shows its size at run time (`shown`), or it is `sliced`.
        """
        name = str(len(self._parent))
        self._parent[name] = name
        self._classes[name] = _Class(hint, fixed, shown, () if sliced is None else (sliced,))
        return Space(name)

    def axis(self, space: Space) -> Axis:
        """Make a fresh axis over `space`."""
        self._axes += 1
        return Axis(str(self._axes), space)

    def root(self, space: Space) -> str:
        """Return the name that all members of a class share."""
        name = space.name
        while self._parent[name] != name:
            name = self._parent[name]
        return name

    def hint(self, space: Space) -> int:
        """Return the size in the example."""
        return self._of(space).hint

    def fixed(self, space: Space) -> bool:
        """Tell whether the program alone says the size.

        A number in the program that a tensor's size must equal is no more than that size: where the tensor is of another size,
        PyTorch traces the program anew, with another number.
        """
        found = self._of(space)
        return found.pinned or (found.fixed and not found.shown)

    def pin(self, space: Space) -> None:
        """Fix the size to a number of the program, whatever tensors show, because something else was made from that number."""
        root = self.root(space)
        self._done.append((root, root, self._classes[root]))
        self._classes[root] = replace(self._classes[root], pinned=True)

    def tell(self, space: Space, length: Any) -> None:
        """Note the size as whoever builds the program writes it, a number or an expression; the first one stays."""
        root = self.root(space)
        if self._classes[root].length is None:
            self._classes[root] = replace(self._classes[root], length=length)

    def length(self, space: Space) -> Any:
        """Return what was told of the size; None where nothing was."""
        return self._of(space).length

    def sliced(self, space: Space) -> tuple[Sliced, ...]:
        """Return the rules by which the size follows from other spaces' sizes."""
        return self._of(space).sliced

    def unify(self, first: Space, second: Space) -> bool:
        """Make the two one; False, and nothing happens, where the example contradicts it."""
        old, new = sorted((self.root(first), self.root(second)), key=int)
        a, b = self._classes[old], self._classes[new]
        if a.hint != b.hint:
            return False
        if old != new:
            self._done.append((new, old, a))
            self._parent[new] = old
            pinned, length = a.pinned or b.pinned, b.length if a.length is None else a.length
            self._classes[old] = _Class(
                a.hint, a.fixed or b.fixed, a.shown or b.shown, a.sliced + b.sliced, pinned, length
            )
        return True

    def _of(self, space: Space) -> _Class:
        return self._classes[self.root(space)]
