"""Arrays of PyTorch's that numpy's functions take, so that references of large cases are worked out on the GPU that is judged.

The domains of numbers are written once, in numpy. Its protocols (NEP 13 and 18) hand each function that is called with a
`TorchArray` to the tables here. They hold what PyTorch computes as numpy does: the same types, roundings to nearest even, the same
NaN, infinities and numbers below the normal ones; functions such as exp to an ulp or two, as versions of numpy differ as well. What
is not in the tables is computed by numpy on a copy. None of this runs a kernel of weft's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.lib.mixins
import torch

from weft.tensor.arrays import Array, is_numpys
from weft.verify.torch_products import multiplied

_TYPES = {
    np.dtype(name): getattr(torch, name)
    for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_NAMES = {ours: theirs for theirs, ours in _TYPES.items()}
Call = Callable[..., torch.Tensor]
_torch: Any = torch  # of some of its functions the types are not known


class TorchArray(numpy.lib.mixins.NDArrayOperatorsMixin):
    """A tensor with numpy's interface, as far as the judge's references use it.

    Attributes:
        tensor: of a type that numpy has, on any device; never a view that something else writes to.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @staticmethod
    def of(values: Array, device: torch.device) -> Array:
        """Copies an array to a device; what repeats in it is copied once. To who calls numpy's functions the result is an array."""
        return TorchArray(_moved(values, device)).array

    @property
    def array(self) -> Array:
        """Returns the same, as what numpy's functions take."""
        return cast("Array", self)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the element type, as numpy calls it."""
        return _NAMES[self.tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the sizes."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """Counts the dimensions."""
        return self.tensor.ndim

    @property
    def size(self) -> int:
        """Counts the elements."""
        return self.tensor.numel()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        """Copies the elements to numpy's memory."""
        del copy
        found = self.tensor.cpu().numpy()
        return found if dtype is None else found.astype(cast("Any", dtype))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Computes one of numpy's ufuncs, or its reduction: here where PyTorch has the same, else on a copy."""
        out = kwargs.pop("out", (None,))[0]
        made = None
        if method == "__call__" and kwargs.keys() <= {"dtype"}:
            made = _called(ufunc.__name__, self.tensor.device, inputs, kwargs.get("dtype"))
        elif method == "reduce" and isinstance(inputs[0], TorchArray):
            made = _reduced(ufunc.__name__, inputs[0].tensor, **kwargs)
        elif (method, ufunc.__name__) == ("at", "maximum"):
            most, places, values = inputs
            each = isinstance(places, tuple)  # of a slice, and places
            where = cast("tuple[Any, ...]", places)[1] if each else places
            if isinstance(where, TorchArray) and isinstance(values, TorchArray):
                return _greatest_at(most if each else most[None], where.tensor, values.tensor)
        if made is None:
            made = self._elsewhere(getattr(ufunc, method), inputs, kwargs)
        if out is None:
            return made
        if isinstance(out, TorchArray):
            out.tensor = made.tensor.to(out.tensor.dtype).broadcast_to(out.tensor.shape)
        else:
            out[...] = np.asarray(made)
        return out

    def __array_function__(self, func: Callable[..., Any], types: object, args: Any, kwargs: Any) -> Any:
        """Computes one of numpy's other functions, likewise."""
        del types
        own = _FUNCTIONS.get(func.__name__)
        made = None if own is None else own(self.tensor.device, *args, **kwargs)
        return self._elsewhere(func, args, kwargs) if made is None else made

    def _elsewhere(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Has numpy compute it on copies, and puts what it gives here."""

        def there(value: Any) -> Any:
            if isinstance(value, TorchArray):
                return np.asarray(value)
            return _mapped(there, value)

        def here(value: Any) -> Any:
            found: Any = np.asarray(cast("Any", value)) if isinstance(value, np.generic) else value
            if is_numpys(found) and found.dtype in _TYPES:
                return TorchArray.of(found, self.tensor.device)
            return _mapped(here, value)

        return here(func(*there(tuple(args)), **{name: there(value) for name, value in kwargs.items()}))

    # What is called on arrays themselves.

    def astype(self, dtype: Any, order: str = "K", *, copy: bool = True) -> TorchArray | Array:
        """Converts; to float16 in one rounding, as numpy does. What PyTorch has no type for is numpy's."""
        del order, copy
        if np.dtype(dtype) not in _TYPES:
            return np.asarray(self).astype(dtype)
        kind = _TYPES[np.dtype(dtype)]
        if kind is torch.float16 and self.tensor.dtype is torch.float64:
            return TorchArray(_to_half(self.tensor))
        return TorchArray(self.tensor.to(kind))

    def in_bfloat16(self) -> TorchArray:
        """Rounds to bfloat16 by way of float32, as PyTorch does; the result is carried in float64."""
        return TorchArray(self.tensor.float().to(torch.bfloat16).double())

    def view(self, dtype: Any) -> TorchArray:
        """Reads the bits as those of another type of the same width."""
        return TorchArray(self.tensor.contiguous().view(_TYPES[np.dtype(dtype)]))

    def transpose(self, *order: Any) -> TorchArray:
        """Permutes the dimensions."""
        return TorchArray(self.tensor.permute(_listed(*order)))

    def reshape(self, *shape: Any) -> TorchArray:
        """Returns the elements in another shape."""
        return TorchArray(self.tensor.reshape(_listed(*shape)))

    def sum(self, axis: Any = None) -> TorchArray:
        """Sums up."""
        return np.add.reduce(cast("Any", self), axis=tuple(range(self.ndim)) if axis is None else axis)

    def any(self) -> bool:
        """Tells whether an element is true."""
        return bool(self.tensor.any())

    def all(self) -> bool:
        """Tells whether all elements are true."""
        return bool(self.tensor.all())

    def min(self) -> Any:
        """Returns the least element, a number."""
        return np.asarray(self).min()

    def max(self) -> Any:
        """Returns the greatest element, a number."""
        return np.asarray(self).max()

    def __str__(self) -> str:
        return str(np.asarray(self))

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def __getitem__(self, index: Any) -> TorchArray:
        """Reads as numpy does, without masks: first what slices leave, then what integers and arrays of them pick of that."""
        given = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
        rest = self.ndim - sum(1 for p in given if p is not None and p is not Ellipsis)
        every = [q for p in given for q in ((slice(None),) * rest if p is Ellipsis else (p,))]
        sizes = iter(self.shape)
        cut = [None if p is None else _forwards(p, next(sizes)) for p in every]
        turned = [d for d, p in enumerate(every) if _backwards(p)]
        found = self.tensor[tuple(cut)]
        found = found.flip(turned) if turned else found
        picks = [slice(None) if p is None or isinstance(p, slice) else _picking(p, found.device) for p in every]
        if any(isinstance(p, torch.Tensor) for p in picks):  # beside an array numpy takes an integer for an array too
            picks = [_torch.tensor([p], device=found.device) if isinstance(p, int) else p for p in picks]
        return TorchArray(found[tuple(picks)])

    def uniform(self, rng: np.random.Generator) -> TorchArray:
        """Draws float64 numbers in -1..1, as many as there are elements here."""
        own = torch.Generator(self.tensor.device).manual_seed(int(rng.integers(1 << 62)))
        drawn = torch.empty(self.tensor.shape, dtype=torch.float64, device=self.tensor.device)
        return TorchArray(drawn.uniform_(-1.0, 1.0, generator=own))

    def multiplied_in(self, order: Array, other: TorchArray) -> TorchArray:
        """Computes (.., m, k) by (.., k, n), adding the terms in `order`, one after another, each rounded to the elements' type."""
        places = _torch.from_numpy(order).to(self.tensor.device)
        left = self.tensor.movedim(-1, 0).index_select(0, places).unsqueeze(-1)
        right = other.tensor.movedim(-2, 0).index_select(0, places).unsqueeze(-2)
        shape = (*_torch.broadcast_shapes(left.shape[1:-2], right.shape[1:-2]), left.shape[-2], right.shape[-1])
        total = torch.zeros(shape, dtype=self.tensor.dtype, device=self.tensor.device)
        for one, two in zip(left.unbind(0), right.unbind(0), strict=True):
            total = torch.addcmul(total, one, two)
        return TorchArray(total)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies `function` to what a tuple or a list holds; what is neither stays."""
    if isinstance(value, tuple):
        return tuple(map(function, cast("tuple[Any, ...]", value)))
    return list(map(function, cast("list[Any]", value))) if isinstance(value, list) else value


def _listed(*given: Any) -> list[int]:
    """Lists numbers that are given one by one, or together in a row."""
    return [
        int(n) for each in given for n in (cast("Sequence[Any]", each) if isinstance(each, tuple | list) else (each,))
    ]


def _forwards(part: Any, size: int) -> Any:
    """Returns a slice as PyTorch takes it, one of negative step as the same elements the other way round; all for an integer."""
    if _backwards(part):
        numbers = range(*part.indices(size))
        return slice(numbers[-1], numbers[0] + 1, -part.step) if numbers else slice(0, 0)
    return cast("Any", part) if isinstance(part, slice) else slice(None)


def _picking(part: Any, device: torch.device) -> torch.Tensor | int:
    """Returns an integer of an index, or an array of them, as PyTorch takes it."""
    if not np.ndim(part):
        return int(part)
    return part.tensor if isinstance(part, TorchArray) else _moved(np.asarray(part), device)


def _backwards(part: Any) -> bool:
    return isinstance(part, slice) and cast("Any", part).step is not None and cast("Any", part).step < 0


def _moved(values: Array, device: torch.device) -> torch.Tensor:
    """Copies an array; where it only repeats elements, these."""
    dims = zip(values.strides, values.shape, strict=True)
    compact = values[tuple(slice(0, 1) if step == 0 and size else slice(None) for step, size in dims)]
    copied = _torch.from_numpy(np.array(compact, order="C")).to(device)
    return copied.broadcast_to(values.shape)


def _to_half(values: torch.Tensor) -> torch.Tensor:
    """Rounds float64 to float16 once: PyTorch does it by way of float32, whose rounding may make a tie of what is none."""
    near = values.float()
    off = values - near.double()
    tied = (near.contiguous().view(torch.int32) & 0xFFF == 0) & (off != 0) & near.isfinite()
    towards = torch.nextafter(near, torch.copysign(torch.full_like(near, math.inf), off.float()))
    return torch.where(tied, towards, near).half()


# Ufuncs.


def _of_numbers(function: Call) -> Call:
    """Refuses bools, which numpy computes with otherwise."""

    def checked(*tensors: torch.Tensor) -> torch.Tensor:
        return NotImplemented if any(t.dtype is torch.bool for t in tensors) else function(*tensors)

    return checked


def _of_floats(function: Call) -> Call:
    """Refuses what is not a float."""

    def checked(*tensors: torch.Tensor) -> torch.Tensor:
        return function(*tensors) if all(t.is_floating_point() for t in tensors) else NotImplemented

    return checked


def _isfinite(v: torch.Tensor) -> torch.Tensor:
    """Tells what PyTorch's own function tells, in two launches in place of four."""
    return _torch.lt(v.abs(), math.inf) if v.is_floating_point() else torch.isfinite(v)


def _sign(v: torch.Tensor) -> torch.Tensor:
    """Keeps NaN, as numpy does and PyTorch does not."""
    return torch.where(v.isnan(), v, torch.sign(v)) if v.is_floating_point() else torch.sign(v)


_CALLS: dict[str, Call] = {
    **{name: _of_numbers(getattr(torch, name)) for name in ("add", "multiply", "subtract", "negative", "maximum", "minimum")},
    **{name: _of_numbers(getattr(torch, name)) for name in ("fmax", "fmin", "floor", "ceil", "trunc", "square")},
    **{name: _of_floats(getattr(torch, name)) for name in ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "tanh", "sin", "cos")},
    **{name: getattr(torch, name) for name in ("less", "less_equal", "greater", "greater_equal", "not_equal")},
    **{name: getattr(torch, name) for name in ("logical_and", "logical_or", "logical_not", "logical_xor")},
    **{name: getattr(torch, name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "right_shift": _of_numbers(torch.bitwise_right_shift),
    **{name: getattr(torch, name) for name in ("isnan", "isinf", "signbit")},
    "isfinite": _isfinite,
    "equal": torch.eq,
    "divide": _of_floats(torch.true_divide),
    "invert": torch.bitwise_not,
    "power": _of_floats(torch.pow),
    "copysign": _of_floats(torch.copysign),
    "absolute": _of_numbers(torch.abs),
    "positive": _of_numbers(torch.clone),
    "rint": _of_floats(torch.round),
    "sign": _of_numbers(_sign),
}  # fmt: skip


def _operand(value: Any, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    if isinstance(value, TorchArray):
        return value.tensor.to(kind)
    if is_numpys(value) and value.ndim:
        return _moved(value, device).to(kind)
    # Beside the elements: with a number of the host's PyTorch multiplies by its reciprocal, and takes other ways to a power.
    number: Any = cast("Any", value).item() if isinstance(value, np.ndarray | np.generic) else value
    return _number(number, kind, device)


def _number(number: complex, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a tensor of no dimensions, made once for all that ask for it: nothing here writes to an operand."""
    key = repr(number), kind, device  # -0.0 is another one than 0.0, and NaN the same as NaN
    found = _numbers.get(key)
    if found is None:
        if len(_numbers) >= _MOST_NUMBERS:
            _numbers.clear()
        found = _numbers[key] = torch.full((), number, dtype=kind, device=device)
    return found


_numbers: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}
# So many numbers are kept: on a GPU each takes half a kilobyte.
_MOST_NUMBERS = 512


def _operands(inputs: Sequence[Any], device: torch.device, dtype: object = None) -> list[torch.Tensor] | None:
    """Returns the operands in the type that numpy computes in; None where PyTorch has no such type."""
    if dtype is None and all(isinstance(v, TorchArray) for v in inputs):
        tensors = [cast("TorchArray", v).tensor for v in inputs]
        if all(t.dtype is tensors[0].dtype for t in tensors):
            return tensors
    shaped: list[Any] = [v.dtype if isinstance(v, TorchArray) or (is_numpys(v) and v.ndim) else v for v in inputs]
    common = np.result_type(*shaped) if dtype is None else np.dtype(cast("Any", dtype))
    return [_operand(v, _TYPES[common], device) for v in inputs] if common in _TYPES else None


def _called(name: str, device: torch.device, inputs: Sequence[Any], dtype: object) -> TorchArray | None:
    """Computes an elementwise ufunc or a matmul; None where the tables have none that is numpy's."""
    tensors = None if name not in _CALLS and name not in _PRODUCTS else _operands(inputs, device, dtype)
    if tensors is None or any(t.dtype is torch.float16 for t in tensors):
        return None
    made = _PRODUCTS[name](*tensors) if name in _PRODUCTS else _CALLS[name](*tensors)
    return None if made is NotImplemented else TorchArray(made)


def _erf(v: torch.Tensor) -> Any:
    return _torch.special.erf(v.double())


_PRODUCTS: dict[str, Call] = {"matmul": multiplied, "erf (vectorized)": _erf}


def _reduced(
    name: str, v: torch.Tensor, axis: Any = 0, initial: Any = None, keepdims: bool = False
) -> TorchArray | None:
    """Reduces over dimensions that have elements; None where the tables have nothing that is numpy's."""
    dims = list(range(v.ndim)) if axis is None else _listed(axis)
    if v.dtype in (torch.bool, torch.float16) or name not in _REDUCTIONS or any(v.shape[d] == 0 for d in dims):
        return None
    wide = torch.int64 if not v.is_floating_point() and name == "add" else v.dtype
    made = _REDUCTIONS[name](v.to(wide), dims, keepdims) if dims else v.to(wide)
    if initial is not None and not (name == "add" and initial == 0):
        made = _CALLS[name](made, _number(initial, made.dtype, v.device))
    return TorchArray(made)


def _greatest_at(most: Array, places: torch.Tensor, values: torch.Tensor) -> None:
    """Computes np.maximum.at for rows of numpy's, of which each of a row's `values` has a place; only as many as the rows have come
    back.
    """
    rows = values.reshape(most.shape[0], -1)
    shape = values.shape[-places.ndim :] if places.ndim else ()
    own = torch.full(most.shape, -math.inf, dtype=values.dtype, device=values.device)
    found = own.scatter_reduce(1, places.broadcast_to(shape).reshape(1, -1).expand_as(rows), rows, "amax")
    np.maximum(most, found.cpu().numpy(), out=most)


_REDUCTIONS: dict[str, Call] = {
    "add": torch.sum,
    "maximum": torch.amax,
    "minimum": torch.amin,
}


# Numpy's other functions: of the device, and what the function takes; None where numpy is to compute it.


def _where(device: torch.device, mask: Any, *branches: Any) -> TorchArray | None:
    tensors = _operands(branches, device) if branches else None
    if tensors is None:
        return None
    return TorchArray(_torch.where(_operand(mask, torch.bool, device), *tensors))


def _broadcast_to(device: torch.device, array: TorchArray, shape: Any) -> TorchArray:
    del device
    return TorchArray(array.tensor.broadcast_to(shape))


def _maximum_of(
    device: torch.device,
    values: TorchArray,
    axis: Any = None,
    *,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> TorchArray | None:
    """Computes np.max; what `where` leaves out is `initial`."""
    v = values.tensor
    if where is not True:
        v = torch.where(_operand(where, torch.bool, device), v, _number(cast("float", initial), v.dtype, device))
    return _reduced("maximum", v, axis, initial, keepdims)


def _clip(device: torch.device, values: TorchArray, low: Any, high: Any) -> TorchArray | None:
    found = _called("maximum", device, (values, low), None)
    return None if found is None else _called("minimum", device, (found, high), None)


def _nan_to_num(device: torch.device, values: TorchArray, **ends: float) -> TorchArray:
    del device
    return TorchArray(_torch.nan_to_num(values.tensor, **ends))


def _like(value: float) -> Callable[..., TorchArray]:
    def made(device: torch.device, array: TorchArray, dtype: Any = None) -> TorchArray:
        kind = array.tensor.dtype if dtype is None else _TYPES[np.dtype(dtype)]
        return TorchArray(torch.full(array.shape, value, dtype=kind, device=device))

    return made


def _joined(function: Call) -> Callable[..., TorchArray | None]:
    def made(device: torch.device, arrays: Sequence[Any], axis: int = 0) -> TorchArray | None:
        tensors = _operands(arrays, device)
        return None if tensors is None else TorchArray(function(tensors, axis))

    return made


def _result_type(device: torch.device, *arrays: Any) -> np.dtype[Any]:
    del device
    return np.result_type(*[cast("Any", v).dtype if isinstance(v, TorchArray) else v for v in arrays])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": _where,
    "broadcast_to": _broadcast_to,
    "max": _maximum_of,
    "clip": _clip,
    "nan_to_num": _nan_to_num,
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "concatenate": _joined(torch.cat),
    "stack": _joined(torch.stack),
    "result_type": _result_type,
}
