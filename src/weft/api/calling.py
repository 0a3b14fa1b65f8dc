"""The calling convention of a compiled function: which arguments its graph reads, which tensors it holds, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from torch._C._functorch import is_functorch_wrapped_tensor  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture import carries_derivative
from weft.errors import ProgramFileError, ShapeError
from weft.plan import Runner

_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """An argument that is a tensor: what the graph was traced for, as `torch.compile` guards it; of a GPU, which one it is on.

    `marks`: whether PyTorch has it marked as the conjugate or the negative of what is in its memory.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    marks: str

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorLeaf:
        """Describe `tensor`; dimensions without steps have stride 0."""
        steps = tuple(0 if n <= 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        marks = f"{'conjugate ' if tensor.is_conj() else ''}{'negative ' if tensor.is_neg() else ''}"
        return TensorLeaf(tuple(tensor.shape), steps, tensor.dtype, str(tensor.device), marks)

    def __str__(self) -> str:
        return f"{self.marks}{self.dtype} of shape {self.shape}, strides {self.stride} (0: ignored), on {self.device}"


@dataclass(frozen=True, slots=True)
class Plain:
    """A value that is always the same: an argument that the graph was traced for, or a result."""

    value: float | int | bool | str | None


@dataclass(frozen=True, slots=True)
class Leaf:
    """Number `index` of the arguments' leaves."""

    index: int


@dataclass(frozen=True, slots=True)
class HeldConstant:
    """Number `index` of the tensors that the function holds: parameters, buffers, what it closes over."""

    index: int


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """Number `index` of the graph's results."""

    index: int


Given: TypeAlias = Leaf | HeldConstant | Plain
ReturnedValue: TypeAlias = Leaf | HeldConstant | GraphOutput | Plain


@dataclass(frozen=True, slots=True)
class Calling:
    """How a function is called whose one graph is all that it does.

    Attributes:
        structure: of the arguments, as PyTorch's text of it.
        leaves: what each argument must be.
        same: for each, the first that is the same object.
        given: what each placeholder of the graph is given.
        returned: the structure of what the function returns.
        results: its leaves.
    """

    structure: str
    leaves: tuple[TensorLeaf | Plain, ...]
    same: tuple[int, ...]
    given: tuple[Given, ...]
    returned: str
    results: tuple[ReturnedValue, ...]

    def on(self, device: torch.device) -> Calling:
        """Return the calling with its tensors on `device`, which is one GPU where there are several."""
        leaves = [replace(each, device=str(device)) if isinstance(each, TensorLeaf) else each for each in self.leaves]
        return replace(self, leaves=tuple(leaves))

    def calls(self, run: Runner, constants: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Return the function that calls `run`.

        It raises ShapeError for arguments that are others than those that the program was saved for.
        """
        wanted, returned = pytree.treespec_loads(self.structure), pytree.treespec_loads(self.returned)

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves, structure = pytree.tree_flatten((args, kwargs))
            if structure != wanted:
                raise ShapeError(
                    f"called with arguments of the structure {structure}, but saved for {wanted}",
                    todo="nest the arguments as in the call of weft.optimize",
                )
            self._demand(leaves)
            found = run(*(self._value(each, leaves, constants) for each in self.given))
            results = [
                found[r.index] if isinstance(r, GraphOutput) else self._value(r, leaves, constants)
                for r in self.results
            ]
            return pytree.tree_unflatten(results, returned)

        return call

    def _value(self, one: Given, leaves: Sequence[Any], constants: Sequence[torch.Tensor]) -> Any:
        match one:
            case Leaf(index):
                return leaves[index]
            case HeldConstant(index):
                return constants[index]
            case Plain(value):
                return value

    def _demand(self, leaves: Sequence[Any]) -> None:
        first: dict[int, int] = {}
        for number, (leaf, wanted, same) in enumerate(zip(leaves, self.leaves, self.same, strict=True)):
            found = _leaf(leaf)
            if found != wanted or type(getattr(found, "value", 0)) is not type(getattr(wanted, "value", 0)):
                other = (
                    "a tensor with properties that a file cannot hold"
                    if type(leaf) in _TENSORS
                    else type(leaf).__name__
                )
                raise ShapeError(
                    f"argument {number} is {found or other}, but the program was saved for {wanted}",
                    todo="pass such an argument, or save a program that weft.optimize made for this one",
                )
            if isinstance(wanted, TensorLeaf) and first.setdefault(id(leaf), number) != same:
                raise ShapeError(
                    f"arguments {number} and {same} must be the same tensor, and all others different ones",
                    todo="pass the same tensor twice where weft.optimize was given one tensor twice",
                )


def _is_memory(tensor: torch.Tensor) -> bool:
    """Tell whether `tensor` is elements in memory and nothing else: no wrapper of `torch.func`, of no other layout, not
    quantised.

    Nor one that carries a forward-mode derivative, or stands for zeros without memory.
    """
    if is_functorch_wrapped_tensor(tensor) or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    return not (tensor.is_quantized or carries_derivative(tensor) or tensor._is_zerotensor())  # noqa: SLF001 - no public name


def _leaf(value: Any) -> TensorLeaf | Plain | None:
    if type(value) in _TENSORS:
        tensor = cast("torch.Tensor", value)
        return TensorLeaf.of(tensor) if _is_memory(tensor) else None
    return Plain(value) if type(value) in _PLAIN else None


def learned(
    inputs: Sequence[Any], given: Sequence[Any], outputs: Sequence[Any], result: Any
) -> tuple[Calling, tuple[torch.Tensor, ...]]:
    """Learn from one call how a function is called, and the tensors it holds.

    Args:
        inputs: its arguments.
        given: what its graph was called with.
        outputs: what its graph gave.
        result: what it returned.

    Raises:
        ProgramFileError: there is more to the function than its graph.
    """
    leaves, structure = pytree.tree_flatten((tuple(inputs), {}))
    kinds = [_leaf(leaf) for leaf in leaves]
    other = next((type(leaf).__name__ for leaf, kind in zip(leaves, kinds, strict=True) if kind is None), None)
    if other is not None:
        raise ProgramFileError(f"an argument is a {other}, which cannot be written to a file")
    places: dict[int, int] = {}
    same = tuple(places.setdefault(id(leaf), number) for number, leaf in enumerate(leaves))
    held: dict[int, torch.Tensor] = {}

    def source(value: Any) -> Given:
        if not isinstance(value, torch.Tensor):
            return Plain(_plain(value, "the graph is called with"))
        if id(value) in places:
            return Leaf(places[id(value)])
        held.setdefault(id(value), value)
        return HeldConstant(list(held).index(id(value)))

    sources = tuple(map(source, given))
    returned, shape = pytree.tree_flatten(result)
    made = {id(output): number for number, output in enumerate(outputs)}

    def origin(value: Any) -> ReturnedValue:
        if not isinstance(value, torch.Tensor):
            return Plain(_plain(value, "the function returns"))
        if id(value) in made:
            return GraphOutput(made[id(value)])
        if id(value) in places or id(value) in held:
            return source(value)
        raise ProgramFileError("the function returns a tensor that its graph does not compute")

    results = tuple(map(origin, returned))
    try:
        texts = pytree.treespec_dumps(structure), pytree.treespec_dumps(shape)
    except (NotImplementedError, TypeError) as error:
        raise ProgramFileError(
            f"the structure of the arguments or results cannot be written as text: {error}"
        ) from error
    known = tuple(kind for kind in kinds if kind is not None)
    return Calling(texts[0], known, same, sources, texts[1], results), tuple(held.values())


def _plain(value: Any, what: str) -> float | int | bool | str | None:
    if type(value) not in _PLAIN:
        raise ProgramFileError(f"{what} a {type(value).__name__}, which cannot be written to a file")
    return value
