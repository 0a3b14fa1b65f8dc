"""The operations that random functions are made of: a table, one row each.

A row's text is a statement's right side, or where it begins with "!" a statement that writes into `{a}`. In braces:

    a            a value of a kind that the row takes
    b, c         values of the same kind, often `a` itself or one of its shape
    m, i         a bool, an integer value
    d, e         dimensions of `a`
    s, k, z      a number of the kind of `a`; 1 to 3; a divisor
    lo, hi       bounds of a slice
    p            an order of the dimensions of `a`
    t            a floating type: T.float32; in the fp64 reference T.float32 is float64

What eager refuses is drawn again, so that rows need no conditions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Exactness(Enum):
    """What an operation does to the exactness of its operands.

    Two right programs round differently. So what decides, where a small difference becomes a large one, may only read values that
    both have exactly: arguments, what is picked or moved of them, integers.
    """

    exact = "as exact as the operands"
    rounds = "rounded"
    decides = "asks for exact operands; exact"


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One operation.

    Attributes:
        text: of the statement, see the module.
        kinds: of `a`: letters of "f" (floating), "i" (integer), "b" (bool), "c" (complex).
        effect: on exactness.
        weight: how often it is drawn, beside others.
    """

    text: str
    kinds: str
    effect: Exactness
    weight: float = 1.0

    @property
    def writes(self) -> bool:
        """True for a statement that writes into `a`."""
        return self.text.startswith("!")


# Under [kinds of `a`, effect, weight] a row a line.
_TABLE = """
# One operand, element by element.
[f rounds 0.5]
torch.exp({a})
torch.tanh({a})
torch.sigmoid({a})
F.gelu({a})
F.silu({a})
F.softplus({a})
F.elu({a})
torch.log({a}.abs() + 1)
torch.log1p({a}.abs())
torch.sqrt({a}.abs())
torch.rsqrt({a}.abs() + 1)
torch.sin({a})
torch.cos({a})
torch.erf({a})
torch.expm1({a})
torch.atan({a})
torch.reciprocal({a})
{a} ** 2
{a}.square()
torch.logit({a}.sigmoid(), eps=1e-6)
[fi exact 0.5]
-{a}
{a}.abs()
F.relu({a})
{a}.clamp(-2, 3)
{a}.clamp(min={s})
torch.nan_to_num({a})
[f decides 0.4]
torch.floor({a})
torch.ceil({a})
torch.round({a})
torch.trunc({a})
{a}.frac()
[fi decides 0.4]
torch.sign({a})
{a} > {s}
{a} == {s}
{a} != {a}
{a}.bool()
{a}.logical_not()
[f decides 0.4]
torch.isnan({a})
torch.isinf({a})
torch.isfinite({a})
torch.signbit({a})
[f decides 0.3]
torch.nan_to_num({a}).clamp(-99, 99).to(torch.int64)
{a}.heaviside({b})
[fib rounds 0.8]
{a}.to({t})
{a}.to(T.float32)
[ib exact 0.6]
{a}.to(torch.int32)
{a}.long()
{a}.to(torch.uint8)
{a}.to(torch.int8)
~{a}
[i exact 0.6]
{a} * 3 + 1
{a} % {z}
{a} // {z}
{a} & 7
{a} ^ 5
{a} >> 1
{a} << 2
{a} ** 2
[fi rounds 1.0]
{a} * {s}
{a} + {s}
{s} - {a}
{a} / {z}
{a} * {a}.shape[{d}]
{a} / {a}.shape[{d}]

# Two operands and more.
[fi rounds 2.0]
{a} + {b}
{a} - {b}
{a} * {b}
[f rounds 1.0]
{a} / ({b}.abs() + 1)
{a} / {b}
torch.addcmul({a}, {b}, {c})
torch.lerp({a}, {b}, 0.3)
[f rounds 0.3]
torch.hypot({a}, {b})
torch.atan2({a}, {b})
torch.logaddexp({a}, {b})
{a} - {a}.mT
[fi exact 1.0]
torch.maximum({a}, {b})
torch.minimum({a}, {b})
torch.where({m}, {a}, {b})
[fib exact 0.7]
torch.where({m}, {a}, 0)
{a}.masked_fill({m}, {s})
torch.where({a} == {a}, {a}, {b})
[fi decides 0.6]
{a} < {b}
{a} >= {b}
{a} == {b}
{a} != {b}
[ib exact 0.6]
{a} & {b}
{a} | {b}
{a} ^ {b}
torch.logical_and({a}, {b})
torch.logical_xor({a}, {b})

# Reductions, scans, rankings.
[fi rounds 1.0]
{a}.sum({d})
{a}.sum()
{a}.sum({d}, keepdim=True)
{a}.sum(({d}, {e}))
{a}.clamp(-2, 2).prod({d})
{a}.cumsum({d})
[f rounds 0.8]
{a}.mean({d})
{a}.mean()
{a}.var({d})
{a}.std({d}, correction=0)
{a}.var(({d}, {e}), keepdim=True)
torch.logsumexp({a}, {d})
torch.linalg.vector_norm({a}, dim={d})
{a}.norm(dim={d}, keepdim=True)
{a}.norm(p=1, dim={d})
{a}.clamp(-2, 2).cumprod({d})
torch.logcumsumexp({a}, {d})
[fi exact 0.8]
{a}.amax({d})
{a}.amin({d}, keepdim=True)
{a}.max()
{a}.max({d}).values
{a}.aminmax(dim={d}).min
[fi decides 0.5]
{a}.argmax({d})
{a}.argmin({d}, keepdim=True)
{a}.argmax()
[fi exact 0.4]
{a}.topk({k}, {d}).values
{a}.sort({d}).values
{a}.cummax({d}).values
{a}.median({d}).values
[b exact 0.6]
{a}.any({d})
{a}.all({d})
{a}.sum({d})
{a}.any()
{a}.cumsum({d})
{a}.to(T.float32).mean({d})

# Matmuls.
[f rounds 2.0]
{a} @ {b}
{a} @ {b}.mT
{a} @ {a}
{a} @ {a}.mT
{a}.mT @ {b}
({a} + 1) @ {b}.transpose(-1, -2)
[f rounds 0.5]
torch.einsum('...ij,...kj->...ik', {a}, {b})
F.linear({a}, {b})
torch.outer({a}, {b})
torch.bmm({a}, {b})
[f rounds 0.5]
F.scaled_dot_product_attention({a}.clamp(-1e4, 1e4), {b}.clamp(-1e4, 1e4), {c})
F.scaled_dot_product_attention({a}.clamp(-1e4, 1e4), {b}.clamp(-1e4, 1e4), {b}, is_causal=True)
[i exact 0.2]
{a} @ {b}
torch.einsum('...ij,...kj->...ik', {a}, {b})

# Softmax and norms.
[f rounds 1.2]
torch.softmax({a}, {d})
torch.log_softmax({a}, {d})
torch.softmax({a} * {s}, {d})
[f rounds 0.6]
torch.softmax({a}.masked_fill({m}, float('-inf')), {d})
torch.exp({a} - {a}.amax({d}, keepdim=True))
[f rounds 0.5]
F.layer_norm({a}, {a}.shape[-1:])
F.layer_norm({a}, {a}.shape[-2:])
F.rms_norm({a}, {a}.shape[-1:])
F.normalize({a}, dim={d})
({a} - {a}.mean({d}, keepdim=True)) / ({a}.std({d}, keepdim=True) + 1e-5)
F.group_norm({a}, 1)
F.avg_pool1d({a}, 2)
F.cosine_similarity({a}, {b}, dim={d})

# Views.
[fibc exact 0.6]
{a}.mT
{a}.transpose({d}, {e})
{a}.permute({p})
{a}.movedim({d}, {e})
{a}.unsqueeze({d})
{a}.squeeze()
{a}.squeeze({d})
{a}.flatten()
{a}.flatten({d}, {e})
{a}.reshape(-1)
{a}.reshape(1, -1)
{a}.unflatten({d}, (-1, 1))
{a}.expand({k}, *{a}.shape)
{a}[None].expand({k}, *[-1] * {a}.dim())
{a}.contiguous()
{a}.clone()
{a}.detach()
[fibc exact 0.6]
{a}[{lo}:]
{a}[:{hi}]
{a}[..., {lo}:]
{a}[..., :{hi}]
{a}[..., ::2]
{a}[0]
{a}[..., -1]
{a}[..., 64:]
{a}.narrow({d}, 0, 1)
{a}.select({d}, 0)
{a}.diagonal(dim1={d}, dim2={e})
{a}.unfold({d}, 2, 1)
{a}.flip({d})
{a}.roll({k}, {d})
{a}.chunk(2, {d})[0]
{a}.split({k}, {d})[-1]
{a}.unbind({d})[0]
{a}.tril()
{a}.triu({k})

# Several into one, picking, new tensors.
[fibc exact 0.6]
torch.cat(({a}, {b}), {d})
torch.stack(({a}, {b}), {d})
torch.cat(({a}, {a}), {d})
[fi exact 0.3]
torch.cat(({a}, {a}[..., 64:]), -1)
F.pad({a}, (1, 2))
{a}.repeat({k}, *[1] * ({a}.dim() - 1))
[fib exact 0.3]
{a}.repeat_interleave({k}, {d})
F.pad({a}, ({k}, 0), value={s})
{a}.tile(2)
[fib exact 0.4]
{a}[{i}.abs().flatten() % max({a}.shape[0], 1)]
{a}.index_select({d}, {i}.abs().flatten() % {a}.shape[{d}])
{a}.gather({d}, {i}.long().abs() % {a}.shape[{d}])
torch.take_along_dim({a}, {a}.long().abs().clamp(max=0), {d})
F.embedding({i}.long().abs() % {a}.shape[0], {a})
[i exact 0.5]
F.one_hot({a}.long().abs() % 8, 8)
F.one_hot({a}.long().clamp(0, 4))
torch.bincount({a}.flatten().abs() % 5)
[fib exact 0.3]
torch.arange({a}.shape[{d}])
torch.zeros_like({a})
torch.ones({a}.shape[{d}], {k})
torch.full_like({a}, {s})
{a}.new_zeros({a}.shape[{d}], 3)
torch.eye({a}.shape[{d}])
torch.tensor({s})
torch.tensor([1.0, {s}, 3.0])
torch.tensor([])
torch.ones({a}.shape[-1], {a}.shape[-1], dtype=torch.bool).tril()
torch.linspace(0, 1, {a}.shape[{d}])
[fi exact 0.3]
{a}.as_strided(({k},), (1,))
torch.stack(torch.broadcast_tensors({a}, {b}))
{a}.view(-1)

# Complex numbers.
[c exact 2.0]
{a}.real
{a}.imag
{a}.conj()
{a}.conj().imag
torch.view_as_real({a})
{a}.mH
-{a}
[c rounds 1.0]
{a} * {b}
{a} + {b}
{a}.abs()
{a}.angle()
{a} @ {b}
torch.exp({a})
{a}.sum({d})
[f exact 0.2]
torch.complex({a}, {b})
torch.view_as_complex({a})
torch.polar({a}.abs(), {b})

# Writes.
[fi rounds 0.5]
!{a}.add_({b})
!{a}.mul_({s})
!{a}.sub_({b})
!{a}[0] += {b}[0]
!{a}.cumsum_({d})
[f rounds 0.3]
!{a}.exp_()
!{a}.tanh_()
!{a}.div_(2)
!{a}.addcmul_({b}, {c})
[fib exact 0.4]
!{a}.copy_({b})
!{a}.zero_()
!{a}.fill_({s})
!{a}[0] = {s}
!{a}[..., {lo}:] = {b}[..., {lo}:]
!{a}[:, 0] = {s}
!{a}.masked_fill_({m}, {s})
!{a}[{m}] = {s}
!{a}.index_fill_({d}, torch.zeros(1, dtype=torch.long), {s})
!{a}.index_copy_(0, torch.arange({b}.shape[0]), {b})
!{a}.index_put_(({i}.long().abs().flatten() % {a}.shape[0],), {b}[0])
!{a}.scatter_({d}, {i}.long().abs() % {a}.shape[{d}], {s})
!{a}.clamp_(-1, 1)
!{a}.neg_()
"""


def _rows() -> Iterator[FunctionRow]:
    kinds, effect, weight = "", Exactness.exact, 1.0
    for line in _TABLE.splitlines():
        if line.startswith("["):
            kinds, name, number = line.strip("[]").split()
            effect, weight = Exactness[name], float(number)
        elif line and not line.startswith("#"):
            yield FunctionRow(line, kinds, effect, weight)


ROWS = tuple(_rows())

MASKS = ("is_causal", "masked_fill", "torch.where", ".tril(", ".triu(")
"""In the text of a row that may leave operands out by a mask."""
