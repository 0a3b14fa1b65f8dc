"""PyTorch's own database of operations and sample arguments, and what of it weft has anything to do with."""

from __future__ import annotations

import math
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils import _pytree as pytree  # no public name
from torch.utils._python_dispatch import TorchDispatchMode  # no public name

from weft.capture.parts import TAKEN_APART
from weft.capture.translate import meaning

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
LAYOUTS = ("contiguous", "noncontiguous", "special", "compiled", "symbolic")
"""Tensors as the database makes them; with gaps. Of the first few samples also: with infinities, NaN and numbers at the ends
of the type's range in place of theirs; by way of torch.compile; the same with symbolic sizes."""

NOT_SPECIAL = ("std_mean", "var_mean")
"""Whether PyTorch's mean beside a variance is infinite or NaN depends on where among the numbers an infinite one is."""

SPECIAL = {
    "float": (
        float("nan"),
        1.5,
        float("-inf"),
        -0.0,
        88.75,
        0.0,
        float("inf"),
        -104.0,
        1e-40,
        -1.0,
        0.5,
        3e38,
        2.5,
        -3e38,
    ),
    "int": (0, -(2**63), 1, 2**63 - 1, -1, 2, 7, -7, 2**31, -(2**31) - 1, 63, 2**53 + 1),
}

SOME, FEW = 24, 3

UNSET = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
)
"""Entries whose results are whatever the memory holds."""

DRAWN = ("pca_lowrank", "svd_lowrank")
"""Entries that draw random numbers and compute with them: there is no fp64 result to compare with."""

INFERENCE = frozenset(
    """
    addbmm addmv addr all any argmax argmin argsort atan2 bernoulli bitwise_left_shift bitwise_right_shift broadcast_tensors
    bucketize cat celu chunk column_stack combinations contiguous copysign cosh count_nonzero cummax cumprod cumsum
    diag diag_embed diagonal dsplit dstack einsum erfc expand_copy fliplr flipud float_power floor_divide fmax fmin
    fmod frac gather gradient heaviside histc hsplit hstack hypot index_add index_copy index_fill index_put index_select inner
    isclose isfinite isin isneginf isposinf isreal kron ldexp linalg.norm linalg.vector_norm linspace logaddexp logaddexp2
    logcumsumexp logit logsumexp masked_scatter masked_select matrix_exp median meshgrid movedim msort multinomial nan_to_num
    nanmean nansum narrow narrow_copy native_layer_norm nn.functional.adaptive_avg_pool2d nn.functional.avg_pool2d
    nn.functional.batch_norm nn.functional.bilinear nn.functional.celu nn.functional.conv1d nn.functional.conv2d
    nn.functional.cosine_similarity nn.functional.cross_entropy nn.functional.dropout nn.functional.embedding
    nn.functional.embedding_bag nn.functional.glu nn.functional.group_norm nn.functional.hardshrink nn.functional.instance_norm
    nn.functional.interpolate nn.functional.kl_div nn.functional.l1_loss nn.functional.mse_loss nn.functional.nll_loss
    nn.functional.one_hot nn.functional.pad nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.prelu
    nn.functional.scaled_dot_product_attention nn.functional.selu nn.functional.smooth_l1_loss nn.functional.softshrink
    nonzero norm outer polar quantile rad2deg ravel repeat repeat_interleave roll rot90 scatter scatter_add scatter_reduce
    searchsorted select_scatter sgn signbit sinc sinh slice_scatter sort split split_with_sizes stack std std_mean sum_to_size
    swapaxes take take_along_dim tensor_split tensordot tile topk trace trapezoid tril tril_indices triu triu_indices unbind
    unfold uniform unique var var_mean vdot view_copy vsplit vstack where xlogy zero_
    """.split()  # noqa: SIM905 - a hundred quotation marks say nothing
)
"""Entries that code around transformers uses and that weft may leave to PyTorch: these too must be right."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One sample: `call(*tensors)` is what a user would write.

    Attributes:
        entry: of the database: its name, and its variant.
        dtype: of the sample's tensors.
        layout: one of LAYOUTS.
        number: of the sample, from 0.
        op: the entry; `args` and `kwargs` are what it is called with.
    """

    entry: str
    dtype: torch.dtype
    layout: str
    number: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.entry} {str(self.dtype).removeprefix('torch.')} {self.layout} sample {self.number}"


@cache
def entries() -> list[Any]:
    """The whole database, in its own order."""
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        # PyTorch's test tools name it as the base class of their own tests; nothing of that is used here.
        stand_in = types.ModuleType("expecttest")
        vars(stand_in)["TestCase"] = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db  # no public name
    return list(op_db)


def name_of(op: Any) -> str:
    """An entry's name with its variant: "max reduction_no_dim"."""
    return f"{op.name} {op.variant_test_name}".strip()


def share(op: Any) -> int | None:
    """Counts the samples to take of an entry, for one dtype and layout; None for an entry that is not weft's affair.

    All, where weft has a handler or a row for every ATen operation that the entry's first samples call, or inference uses it;
    SOME, where it has one for some of the operations.
    """
    if op.name in (*UNSET, *DRAWN):
        return None
    known = [_translated(packet) for packet in _packets(op)]
    if op.name in INFERENCE or (known and all(known)):
        return 10**6
    return SOME if any(known) else None


def _translated(packet: str) -> bool:
    return meaning(packet) is not None or packet in TAKEN_APART


def cases(op: Any, dtype: torch.dtype, layout: str) -> Iterator[Case]:
    """The samples of one entry for one dtype and layout, made from a fixed seed."""
    if dtype not in op.supported_dtypes("cpu") or (layout == "special" and op.name in NOT_SPECIAL):
        return
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo  # no public name

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, made in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
            sample = made.noncontiguous() if layout == "noncontiguous" else made
            if layout == "special":
                # An operation that sums overflows or not in the order in which it does so, and products of bf16 matrices take
                # subnormal numbers for 0, PyTorch's own too, from some size on: no such numbers there.
                pointwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo)
                sample = made.transform(lambda leaf, every=pointwise: _special(leaf, every))
            yield Case(name_of(op), dtype, layout, number, op, (sample.input, *sample.args), dict(sample.kwargs))


def _special(leaf: Any, every: bool) -> Any:
    """A tensor of the same shape and strides with numbers of SPECIAL, all or those of an ordinary magnitude."""
    if (
        not isinstance(leaf, torch.Tensor)
        or leaf.layout != torch.strided
        or leaf.dtype is torch.bool
        or leaf.is_complex()
    ):
        return leaf
    numbers = SPECIAL["float" if leaf.is_floating_point() else "int"]
    if not every:
        numbers = tuple(n for n in numbers if not math.isfinite(n) or n == 0 or 1e-6 < abs(n) < 1e6)
    if not leaf.is_floating_point() and leaf.dtype is not torch.int64:
        return leaf
    order = torch.randint(len(numbers), leaf.shape)
    made = torch.empty_like(leaf)
    made.copy_(torch.tensor(numbers, dtype=torch.float64 if leaf.is_floating_point() else torch.int64)[order])
    return made


class _Packets(TorchDispatchMode):
    """Collects the names of the ATen calls that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def _packets(op: Any) -> set[str]:
    found = _Packets()
    for dtype in DTYPES:
        for case in cases(op, dtype, "contiguous"):
            if case.number == 3:
                break
            try:
                with torch.inference_mode(), found:
                    op(*case.args, **case.kwargs)
            except Exception:  # noqa: BLE001 - the database has entries for other devices too
                continue
    return found.names


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
