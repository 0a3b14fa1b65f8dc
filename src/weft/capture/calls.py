"""Facts about a call: from its schema, and from its arguments."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch._C import DispatchKey  # no public name
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.recording import by_name
from weft.capture.sizes import expression

_ATEN: Any = torch.ops.aten
_ARRANGEMENTS = ("aten.broadcast_tensors", "aten.tensor_split", "aten.unsafe_chunk")


def _types(func: OpOverload[..., Any]) -> list[str]:
    return [str(argument.type) for argument in cast("Any", func)._schema.arguments]  # noqa: SLF001 - no public name


def functional_of(func: OpOverload[..., Any], args: tuple[Any, ...]) -> OpOverload[..., Any] | None:
    """Finds the operation that returns what `func` writes into its first argument; None without one, or if it writes
    into others.
    """
    name = str(func.overloadpacket)
    schema = cast("Any", func)._schema  # noqa: SLF001 - no public name
    base = getattr(_ATEN, name.removeprefix("aten.").removesuffix("_"), None)
    functional = getattr(base, cast("Any", func)._overloadname, None)  # noqa: SLF001 - no public name
    if base is not None and functional is None:  # under another name: transpose_, and transpose.int
        functional = next((f for f in (getattr(base, n) for n in base.overloads()) if _types(f) == _types(func)), None)
    others = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments[1:])
    if not name.endswith("_") or functional is None or others or not isinstance(args[0], torch.Tensor):
        return None
    return functional


def written_by(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Lists the tensors that a call writes into, each once: as its schema says, and running statistics, of which none does."""
    schema = cast("Any", func)._schema  # noqa: SLF001 - no public name
    names = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if keeps_statistics(func, args, kwargs):
        names += ["running_mean", "running_var"]
    named = by_name(func, args, kwargs)
    leaves = pytree.tree_leaves([named[name][0] for name in names if name in named])
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())


def may_view(func: OpOverload[..., Any]) -> bool:
    """Tells whether what a call gives may be a view of an argument, or the argument: what PyTorch composes may give one back."""
    returns = cast("Any", func)._schema.returns  # noqa: SLF001 - no public name
    viewing = any(r.alias_info is not None for r in returns)
    return viewing or func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)


def version_of(tensor: torch.Tensor) -> int:
    """Counts how often PyTorch wrote into the memory of a tensor; 0 where it does not count."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - no public name


def is_empty(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor has no elements, whatever the inputs."""
    return any(expression(n) == 0 for n in tensor.shape)


def is_complex(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_complex()


def is_number(leaf: Any) -> bool:
    """Tells whether a constant is what PyTorch makes of a number of Python's."""
    return type(leaf) is torch.Tensor and leaf.ndim == 0 and not leaf.is_complex()


def keeps_statistics(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tells whether a call writes into running statistics, which its schema does not say."""
    named = {name: value for name, (value, _) in by_name(func, args, kwargs).items()}
    kept = named.get("running_mean") is not None or named.get("running_var") is not None
    return kept and bool(named.get("training", named.get("use_input_stats", named.get("train", True))))


def is_composite(func: OpOverload[..., Any]) -> bool:
    """Tells whether PyTorch has the call only as calls of other operations.

    Where it has a second way in Python, for tracing, eager takes the other, whose numbers are not always the same: an
    interpolation multiplies infinities by 0 in one of them only. Arrangements of tensors are the same either way.
    """
    in_python = DispatchKey.CompositeImplicitAutograd in cast("Any", func).py_kernels
    if in_python and str(func.overloadpacket) not in _ARRANGEMENTS:
        return False
    return consists_of_others(func)


def consists_of_others(func: Any) -> bool:
    """Tells whether PyTorch has a call as calls of other operations, in C++ or in Python."""
    try:
        return isinstance(func, OpOverload) and cast("Any", func)._can_decompose()  # noqa: SLF001 - no public name
    except RuntimeError:  # only TorchScript knows it
        return False


def draws(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tells whether a call draws from a generator. Dropout does so only where it drops something."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    named = {name: value for name, (value, _) in by_name(func, args, kwargs).items()}
    probability = named.get("p", named.get("dropout_p"))
    return named.get("train") is not False and probability != 0


def form_of(leaf: Any) -> Any:
    return (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else None
