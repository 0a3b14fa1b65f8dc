"""What a launcher must know of a printed Triton kernel: its tensors and sizes, its constants, its grid, Triton's options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

from weft.emit.triton import BlockConstant, GridLoop, WholeConstant
from weft.errors import UnsupportedError
from weft.run.cache import Json
from weft.run.launch import KernelSignature

LONGEST = 2**31 - 2**24
"""Sizes are less: Triton kernels number elements with 31 bits, those behind the end too that a last block would have, or the last
of some hundred segments, each of which is whole blocks of at most 2**13."""

FAR = 2**28
"""Where a dimension of an input reaches so many elements, offsets may need more than 31 bits: all strides are passed with 64."""

# So many dimensions that reach less far add up to less than 2**31.
_MOST_NEAR = 7

ConstexprArgument: TypeAlias = BlockConstant | WholeConstant
"""A `tl.constexpr` argument: its `name`, the `space` whose size decides it, and `of(sizes)`, its value."""

_CONSTANTS = {kind.__name__: kind for kind in (BlockConstant, WholeConstant)}


@dataclass(frozen=True, slots=True)
class GpuSignature:
    """A printed Triton kernel's interface.

    Its arguments, in order: pointers to the inputs, to the outputs; the sizes; the strides of every dimension of every input;
    the constants. Its one-dimensional grid has as many thread blocks as the loops in `grid` have blocks, multiplied.

    Attributes:
        kernel: tensors and sizes, as for a kernel on a CPU.
        constants: in the order of the arguments.
        grid: loops on the grid, the size of each a name in `kernel.sizes` or a number.
        warps, stages: Triton's num_warps and num_stages.
        early: its thread blocks may take their places while the kernel before it still runs: they wait for its end themselves.
        shapes: of each input its dimensions, each a name in `kernel.sizes` or a number.
    """

    kernel: KernelSignature
    constants: tuple[ConstexprArgument, ...] = ()
    grid: tuple[GridLoop, ...] = ()
    warps: int = 4
    stages: int = 1
    early: bool = False
    shapes: tuple[tuple[str | int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for a size that no argument says, or dimensions other than the inputs'."""
        known = {size.name for size in self.kernel.sizes}
        asked = [*(c.space for c in self.constants), *(g.size for g in self.grid if isinstance(g.size, str))]
        asked += [n for shape in self.shapes for n in shape if isinstance(n, str)]
        if unknown := [name for name in asked if name not in known]:
            raise ValueError(f"sizes that are read nowhere: {unknown}")
        if [len(shape) for shape in self.shapes] != [each.ndim for each in self.kernel.inputs]:
            raise ValueError(f"dimensions {self.shapes} of inputs {self.kernel.inputs}")

    @property
    def name(self) -> str:
        """Name of the kernel's function."""
        return self.kernel.name

    @property
    def passed(self) -> tuple[str, ...]:
        """The sizes that no input shows: a call passes them, last, in this order."""
        return self.kernel.passed

    @property
    def over(self) -> tuple[tuple[int, int], ...]:
        """Which outputs may be the memory of which inputs, by place."""
        return self.kernel.over

    @property
    def stride_count(self) -> int:
        """The number of strides that the kernel is called with."""
        return sum(each.ndim for each in self.kernel.inputs)

    def reaches_far(self, sizes: Mapping[str, int], strides: Sequence[int]) -> bool:
        """Tells whether offsets in an input may need more than 31 bits; `strides` as `class_of` takes them."""
        lengths = [n if isinstance(n, int) else sizes[n] for shape in self.shapes for n in shape]
        many = any(len(shape) > _MOST_NEAR for shape in self.shapes)
        return many or any(n * stride >= FAR for n, stride in zip(lengths, strides, strict=True))

    def sizes_of(self, values: Sequence[int]) -> dict[str, int]:
        """Returns the sizes by name, from their values in order."""
        return {size.name: value for size, value in zip(self.kernel.sizes, values, strict=True)}

    def demand_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raises UnsupportedError for a size of `LONGEST` or more, be it one of the program's own numbers."""
        own = [g.size for g in self.grid] + [n for shape in self.shapes for n in shape]
        if any(n >= LONGEST for n in (*sizes.values(), *(n for n in own if isinstance(n, int)))):
            raise UnsupportedError(
                f"sizes {dict(sizes)}: Triton kernels number elements with 31 bits: less than {LONGEST} of them"
            )

    def constants_at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the constants' values.

        Raises:
            UnsupportedError: a block that covers a space is to have no elements.
        """
        empty = [c.space for c in self.constants if isinstance(c, BlockConstant) and sizes[c.space] < 1]
        if empty:
            raise UnsupportedError(f"{', '.join(empty)} without elements, where a block covers all of them")
        return tuple(c.of(sizes) for c in self.constants)

    def thread_blocks(self, sizes: Mapping[str, int]) -> int:
        """Counts the thread blocks of the grid; 0: nothing is to be launched."""
        lengths = [g.size if isinstance(g.size, int) else sizes[g.size] for g in self.grid]
        return math.prod(-(-n // g.block) for n, g in zip(lengths, self.grid, strict=True))

    def to_json(self) -> Json:
        """Returns the signature as JSON, for the meta of a cache entry."""
        return {
            "kernel": self.kernel.to_json(),
            "constants": [[type(c).__name__, asdict(c)] for c in self.constants],
            "grid": [[g.size, g.block] for g in self.grid],
            "warps": self.warps,
            "stages": self.stages,
            "early": self.early,
            "shapes": [list(shape) for shape in self.shapes],
        }

    @staticmethod
    def from_json(text: Json) -> GpuSignature:
        """Reads the signature that `to_json` wrote. KeyError, TypeError or ValueError otherwise."""
        found = cast("dict[str, Any]", text)
        return GpuSignature(
            kernel=KernelSignature.from_json(found["kernel"]),
            constants=tuple(_CONSTANTS[kind](**fields) for kind, fields in found["constants"]),
            grid=tuple(GridLoop(size, block) for size, block in found["grid"]),
            warps=int(found["warps"]),
            stages=int(found["stages"]),
            early=bool(found["early"]),
            shapes=tuple(tuple(shape) for shape in found["shapes"]),
        )
