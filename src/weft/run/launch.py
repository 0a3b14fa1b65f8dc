"""Calling a kernel: its C interface, and a launcher made for one signature.

**The interface.** A kernel is one function

    extern "C" void NAME(const std::int64_t* words)

that reads everything it is told from consecutive 64-bit words, in this order:

1. the address of each input's first element,
2. the address of each output,
3. the run-time sizes, in the order of `KernelSignature.sizes`,
4. the strides of every dimension of every input, input by input, in elements,
5. the number of threads,
6. if the kernel reads where integers say, the address of a 64-bit word that is 0, in which it notes that one of them is no index.

`KernelSignature.words` names them. Outputs are contiguous (row-major), uninitialised,
and overlap neither each other nor an input, but for an output that is an input's memory, whole, where the signature says that it
may be (`KernelSignature.over`). The address of a tensor without elements may be null.
The words are the kernel's for the length of the call only. It runs without Python's global lock.

Why packed words and not one C argument each: ctypes converts each argument by itself, 2.4 us for 20
of them; one `struct.pack` and one argument take 0.6 us. A fresh pack per call also makes calls from
several threads independent.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

import torch

from weft.errors import WrongIndexError
from weft.run import forked
from weft.run.cache import Json
from weft.run.load import NativeFunction
from weft.tensor.dtypes import DType

Launcher: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]
"""Takes the input tensors in order, the outputs that are given, and the sizes that are passed; gives the outputs.

Where an output may be an input's memory (`KernelSignature.over`) it takes that tensor too, as `over`, or None.

Checks nothing: guards did that."""


S = TypeVar("S")


@dataclass(frozen=True, slots=True, eq=False)
class PackedCall:
    """What a call of a C kernel needs, for callers that write the call themselves (`call_lines`) and make no tensors for it.

    Attributes:
        signature: the kernel's interface.
        function: takes the packed words.
        threads: how many each call gets; None: `torch.get_num_threads()`.
    """

    signature: KernelSignature
    function: NativeFunction
    threads: int | None


@dataclass(frozen=True, slots=True)
class Made(Generic[S]):
    """A kernel that can be called, whatever it was made of.

    Attributes:
        launch: takes the input tensors, gives new output tensors.
        signature: the kernel's interface.
        text: what was printed.
        meta: what was kept beside it.
        key: of its entry in the cache.
        from_cache: its text was not printed now.
    """

    launch: Launcher
    signature: S
    text: str
    meta: Mapping[str, Json]
    key: str
    from_cache: bool

    def settle(self) -> None:
        """Wait until what was begun for later calls is there: a GPU's binaries for other lengths."""

    @property
    def packed(self) -> PackedCall | None:
        """Return what calls it without `launch`, where that is possible."""
        return None


class InputSpec(NamedTuple):
    """An input tensor: its name, number of dimensions and element type."""

    name: str
    ndim: int
    dtype: DType


class SizeSpec(NamedTuple):
    """A run-time size: its name, and the input and dimension where it is read at each call; None: the call passes it."""

    name: str
    input: int | None = None
    dim: int = 0


class OutputSpec(NamedTuple):
    """A tensor that the launcher allocates: each dimension a size's name or a number."""

    dims: tuple[str | int, ...]
    dtype: DType


class KernelSignature(NamedTuple):
    """All that a launcher needs to know of a kernel.

    Attributes:
        name: the C function.
        inputs: tensors, in the order of the launcher's arguments.
        sizes: names distinct.
        outputs: tensors that a call gives.
        given: places of outputs that a call takes, after the inputs, and does not allocate: an earlier launch wrote a part of them.
        looks_up: the kernel reads where integers say.
        over: (output, input), by place: the output may be the memory of the input, of as many elements and contiguous, which is
            overwritten then.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    sizes: tuple[SizeSpec, ...]
    outputs: tuple[OutputSpec, ...]
    given: tuple[int, ...] = ()
    looks_up: bool = False
    over: tuple[tuple[int, int], ...] = ()

    @property
    def passed(self) -> tuple[str, ...]:
        """The sizes that no input shows: a call passes them, last, in this order."""
        return tuple(size.name for size in self.sizes if size.input is None)

    @property
    def words(self) -> tuple[str, ...]:
        """The meaning of each word of a call, in order.

        `input N`, `output I`, `size N`, `stride N D`, `threads`, `wrong`, where N is a
        name, I and D count from 0.
        """
        return (
            *(f"input {each.name}" for each in self.inputs),
            *(f"output {index}" for index in range(len(self.outputs))),
            *(f"size {each.name}" for each in self.sizes),
            *(f"stride {each.name} {dim}" for each in self.inputs for dim in range(each.ndim)),
            "threads",
            *(("wrong",) if self.looks_up else ()),
        )

    def to_json(self) -> Json:
        """Returns the signature as JSON, for the meta of a cache entry."""
        return {
            "name": self.name,
            "inputs": [[each.name, each.ndim, each.dtype.name] for each in self.inputs],
            "sizes": [[each.name, each.input, each.dim] for each in self.sizes],
            "outputs": [[list(each.dims), each.dtype.name] for each in self.outputs],
            "given": list(self.given),
            "looks_up": self.looks_up,
            "over": [list(each) for each in self.over],
        }

    @staticmethod
    def from_json(text: Json) -> KernelSignature:
        """Reads the signature that `to_json` wrote. KeyError, TypeError or ValueError otherwise."""
        found = cast("dict[str, Any]", text)
        return KernelSignature(
            name=found["name"],
            inputs=tuple(InputSpec(name, ndim, DType[kind]) for name, ndim, kind in found["inputs"]),
            sizes=tuple(SizeSpec(name, index, dim) for name, index, dim in found["sizes"]),
            outputs=tuple(OutputSpec(tuple(dims), DType[kind]) for dims, kind in found["outputs"]),
            given=tuple(found["given"]),
            looks_up=found["looks_up"],
            over=tuple((output, read) for output, read in found["over"]),
        )


def make_launcher(
    signature: KernelSignature,
    function: NativeFunction,
    threads: int | None = None,
    allocate: Callable[..., torch.Tensor] = torch.empty_strided,
    flag: Callable[[], ctypes.c_int64] = ctypes.c_int64,
) -> Launcher:
    """Makes a launcher for `function`: straight-line Python, written for this signature.

    Args:
        signature: the kernel's interface.
        function: the kernel's C function.
        threads: how many threads each call gets; None: `torch.get_num_threads()` at each call. One in a process that was
            forked off one with threads.
        allocate: makes outputs as `torch.empty_strided` does.
        flag: makes the word in which a call notes that an integer is no index, which is raised after the call.

    Raises:
        ValueError: the signature reads a dimension that is not there, or names a size that it does
            not read.
    """
    check(signature)
    scope: dict[str, Any] = {
        "function": function,
        "pack": packing(signature),
        # The names of element types are torch's own.
        **{f"dtype{i}": getattr(torch, each.dtype.name) for i, each in enumerate(signature.outputs)},
        **called_by_name(threads, allocate, flag),
    }
    text = _launcher_text(signature, threads_vary=threads is None)
    exec(compile(text, f"<launcher of {signature.name}>", "exec"), scope)  # noqa: S102 - our own text
    forked.at_most_one_thread_in_children(scope["launch"])
    return scope["launch"]


def called_by_name(
    threads: int | None,
    allocate: Callable[..., torch.Tensor] = torch.empty_strided,
    flag: Callable[[], ctypes.c_int64] = ctypes.c_int64,
) -> dict[str, Any]:
    """Returns what the lines of `allocation` and `call_lines` name. Arguments as those of `make_launcher`."""
    return {
        "allocate": allocate,
        "cpu": torch.device("cpu"),
        "flag": flag,
        "address": ctypes.addressof,
        "WrongIndexError": WrongIndexError,
        "threads": torch.get_num_threads if threads is None else threads,
    }


def packing(signature: KernelSignature) -> Callable[..., bytes]:
    """Returns what packs the words of a call."""
    return struct.Struct(f"{len(signature.words)}q").pack


def make_python_launcher(
    signature: KernelSignature,
    function: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], Mapping[str, int]], None],
    allocate: Callable[..., torch.Tensor] = torch.empty,
) -> Launcher:
    """Makes a launcher for a kernel that is a Python function, on the inputs' device.

    Args:
        signature: the kernel's interface.
        function: takes the inputs, the outputs, and every size by name; an output is an input only as the signature says.
        allocate: makes outputs as `torch.empty` does.

    Raises:
        ValueError: the signature reads what is not there.
    """
    check(signature)

    places = {output for output, _ in signature.over}

    def launch(*arguments: Any, over: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        inputs = arguments[: len(signature.inputs)]
        given = dict(zip(signature.given, arguments[len(inputs) :], strict=False))
        passed = iter(arguments[len(inputs) + len(given) :])
        sizes = {
            s.name: next(passed) if s.input is None else int(inputs[s.input].shape[s.dim]) for s in signature.sizes
        }
        device = next((t.device for t in (*inputs, *given.values())), torch.device("cpu"))
        outputs: list[torch.Tensor] = []
        for index, each in enumerate(signature.outputs):
            shape = [d if isinstance(d, int) else sizes[d] for d in each.dims]
            # The names of element types are torch's own.
            kind = getattr(torch, each.dtype.name)
            own = given.get(index, over if index in places else None)
            outputs.append(allocate(shape, dtype=kind, device=device) if own is None else own)
        function(inputs, outputs, sizes)
        return tuple(outputs)

    return launch


def dense(allocate: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Makes of `allocate`, which takes strides, one that makes dense tensors as `torch.empty` does."""

    def made(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:  # noqa: ARG001 - as torch.empty
        return allocate(shape, [math.prod(max(n, 1) for n in shape[d + 1 :]) for d in range(len(shape))], dtype)

    return made


def check(signature: KernelSignature) -> None:
    """Raises ValueError where the signature reads what is not there."""
    for name, index, dim in signature.sizes:
        if index is not None and not (0 <= index < len(signature.inputs) and 0 <= dim < signature.inputs[index].ndim):
            raise ValueError(f"size {name} is read from dimension {dim} of input {index}: not there")
    if not set(signature.given) <= set(range(len(signature.outputs))):
        raise ValueError(f"outputs {signature.given} are given, of {len(signature.outputs)}: not there")
    if len({output for output, _ in signature.over}) > 1:
        raise ValueError(f"an output may be an input's memory twice, of which a call is given one: {signature.over}")
    known = {name for name, _, _ in signature.sizes}
    if len(known) != len(signature.sizes):
        raise ValueError(f"a size is named twice: {signature.sizes}")
    for dims, _ in signature.outputs:
        unknown = [dim for dim in dims if isinstance(dim, str) and dim not in known]
        if unknown:
            raise ValueError(f"sizes that are read nowhere: {unknown}")


def _launcher_text(signature: KernelSignature, *, threads_vary: bool) -> str:
    """Writes the source of `launch`. Its variables are numbered, so that any name of a size will do."""
    inputs = [f"x{index}" for index in range(len(signature.inputs))]
    size_of = {name: f"n{index}" for index, (name, _, _) in enumerate(signature.sizes)}
    given = [f"y{index}" for index in signature.given]
    passed = [size_of[name] for name in signature.passed]
    lines = [f"def launch({', '.join([*inputs, *given, *passed, *over_parameter(signature)])}):"]
    read, strides = sizes_and_strides(signature, size_of)
    lines += read
    outputs = [f"y{index}" for index in range(len(signature.outputs))]
    made = [allocation(dims, size_of, f"dtype=dtype{i}, device=cpu") for i, (dims, _) in enumerate(signature.outputs)]
    lines += allocated(signature, made)
    addresses = [f"{tensor}.data_ptr()" for tensor in (*inputs, *outputs)]
    count = "threads()" if threads_vary else "threads"
    words = [*addresses, *size_of.values(), *strides, count]
    lines += [f"    {line}" for line in call_lines(signature, words, "function", "pack")]
    lines.append(f"    return {tuple_of(outputs)}")
    return "\n".join(lines)


def call_lines(signature: KernelSignature, words: Sequence[str], function: str, pack: str) -> list[str]:
    """Writes the call of a kernel.

    Args:
        signature: the kernel's interface.
        words: Python text for each word of the call up to the number of threads, in order.
        function, pack: what the kernel and the `packing` of its words are called; other names are those of `called_by_name`.
    """
    if not signature.looks_up:
        return [f"{function}({pack}({', '.join(words)}))"]
    return [
        "wrong = flag()",
        f"{function}({pack}({', '.join([*words, 'address(wrong)'])}))",
        "if wrong.value: raise WrongIndexError('an index is out of range')",
    ]


def sizes_and_strides(signature: KernelSignature, size_of: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Writes lines that read the sizes that inputs show and all strides; returned with the strides' variables. Inputs
    are x0, x1, ...
    """
    lines: list[str] = []
    strides: list[str] = []
    for index, (_, ndim, _) in enumerate(signature.inputs):
        read = {dim: size_of[name] for name, source, dim in signature.sizes if source == index}
        if read:
            lines.append(unpacked([read.get(dim, "_") for dim in range(ndim)], f"x{index}.shape"))
        if ndim:
            own = [f"s{index}_{dim}" for dim in range(ndim)]
            lines.append(unpacked(own, f"x{index}.stride()"))
            strides += own
    return lines, strides


def over_parameter(signature: KernelSignature) -> list[str]:
    """Writes the parameter of a launcher that takes the memory for the output that may lie where an input does."""
    return ["over=None"] if signature.over else []


def allocated(signature: KernelSignature, allocations: Sequence[str]) -> list[str]:
    """Writes lines that allocate the outputs y0, y1, ... that a call is not given; `allocations`: of each output."""
    over = {output for output, _ in signature.over}
    return [
        f"    y{index} = {text} if over is None else over" if index in over else f"    y{index} = {text}"
        for index, text in enumerate(allocations)
        if index not in signature.given
    ]


def unpacked(names: Sequence[str], value: str) -> str:
    """Writes the line that gives `names` the items of `value`."""
    return f"    {tuple_of(names)} = {value}"


def tuple_of(items: Sequence[str]) -> str:
    """Writes the tuple of `items`."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def allocation(dims: Sequence[str | int], size_of: Mapping[str, str], rest: str) -> str:
    """Writes a call of `allocate` (`torch.empty_strided`, 0.4 us faster than `torch.empty`) with contiguous strides and `rest`."""
    sizes = [size_of[dim] if isinstance(dim, str) else str(dim) for dim in dims]
    return f"allocate({tuple_of(sizes)}, {tuple_of(contiguous(sizes))}, {rest})"


def contiguous(sizes: Sequence[str]) -> list[str]:
    """Writes the strides of a contiguous tensor with these sizes, each a name or a number.

    PyTorch's contiguous strides step over a dimension of size 0 as over one of size 1.
    """
    strides: list[str] = []
    for position in range(len(sizes)):
        inner = sizes[position + 1 :]
        number = math.prod(int(size) or 1 for size in inner if size.isdigit())
        names = [f"({size} or 1)" for size in inner if not size.isdigit()]
        strides.append("*".join([*names, *([str(number)] if number != 1 or not names else [])]))
    return strides
