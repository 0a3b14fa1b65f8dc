"""Operations of PyTorch, each against eager with ordinary and odd arguments; all of them weft's unless it says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

X = (4, 6)
CUBE = (3, 4, 5)
PAIRED: Any = ([1, 2], [0, 2])  # PyTorch takes pairs too, its annotation does not say so
SPLITS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "chunk": (lambda x: torch.chunk(x, 2, -1), (X,)),
    "chunk with a rest": (lambda x: [c * 2 for c in x.chunk(4, 1)], (X,)),
    "split": (lambda x: x.split(4, 1), (X,)),
    "split by sizes": (lambda x: torch.split(x, [1, 2, 3], -1), (X,)),
    "only some parts": (lambda x: x.split([1, 2, 3], -1)[1] + 1, (X,)),
    "tensor_split": (lambda x: torch.tensor_split(x, 4, dim=1), (X,)),
    "tensor_split at": (lambda x: torch.tensor_split(x, (1, 4), dim=1), (X,)),
    "hsplit": (lambda x: torch.hsplit(x, 3), (X,)),
    "unbind": (lambda x: [p.exp() for p in torch.unbind(x, -1)], (X,)),
    "unpacking": (lambda x: x.unbind(0)[0] * x.unbind(0)[2], ((3, 4),)),
    "narrow": (lambda x: x.narrow(-1, 2, 3).exp(), (X,)),
    "movedim": (lambda x: x.movedim(0, -1) + 1, (CUBE,)),
    "flip": (lambda x: x.flip(0, -1) + 1, (CUBE,)),
    "T and mT": (lambda x: x.mT @ x, (CUBE,)),
    "expand and repeat": (lambda x: x[:, None].expand(4, 2, 6) + x.unsqueeze(1).repeat(1, 2, 1), (X,)),
    "repeat_interleave": (lambda x: x.unsqueeze(1).repeat_interleave(3, dim=1) + 1, (X,)),
    "squeeze": (lambda x: x.squeeze() + x.squeeze(1)[..., 0] + x.squeeze((1, 3)), ((4, 1, 6, 1),)),
    "ravel of rows": (lambda x: x.unsqueeze(0).flatten(0, 1) * 2, (X,)),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij")[0] * 2, ((3,), (4,))),
    "broadcast_tensors": (lambda x, y: torch.broadcast_tensors(x, y)[1] * 2, (X, (6,))),
}
REDUCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "sum": (lambda x: (x.sum(), x.sum(-1), x.sum((0, -1), keepdim=True), x.sum(())), (CUBE,)),
    "mean": (lambda x: (x.mean(), x.mean(1), x.mean((0, 2), keepdim=True)), (CUBE,)),
    "amax": (lambda x: (x.amax(), x.amax(1), x.amin((0, -1), keepdim=True)), (CUBE,)),
    "max": (lambda x: (x.max(), x.min(), x.max(1).values, x.min(-1, keepdim=True)[0]), (CUBE,)),
    "prod": (lambda x: (x.prod(), x.prod(-1, keepdim=True)), (CUBE,)),
    "any": (lambda x: ((x > 1).any(), (x > 1).any(-1, keepdim=True), x.any(0)), (CUBE,)),
    "all": (lambda x: ((x > -1).all(), (x > -1).all((0, 1)), x.all(-1)), (CUBE,)),
    "var": (lambda x: (x.var(), x.var(-1), x.var((0, -1), correction=0, keepdim=True)), (CUBE,)),
    "var, unbiased": (lambda x: (x.var(unbiased=False), x.var(1, unbiased=True, keepdim=True)), (CUBE,)),
    "std": (lambda x: (x.std(), x.std(-1), x.std((0, -1), correction=2, keepdim=True)), (CUBE,)),
    "var_mean": (lambda x: (*torch.var_mean(x, -1), *torch.std_mean(x, (0, 1), keepdim=True)), (CUBE,)),
    "norm": (lambda x: (x.norm(), x.norm(dim=-1), x.norm(1, -1, True), x.norm(3.0, 0)), (CUBE,)),
    "vector_norm": (
        lambda x: [torch.linalg.vector_norm(x, p, -1) for p in (0, 1, 2, 0.5, float("inf"), -float("inf"))],
        (CUBE,),
    ),
    "linalg.norm": (lambda x: torch.linalg.norm(x, dim=-1, keepdim=True), (CUBE,)),
    "normalize": (lambda x: F.normalize(x, dim=-1), (CUBE,)),
    "logsumexp": (lambda x: (x.logsumexp(-1), x.logsumexp((0, 1), keepdim=True)), (CUBE,)),
    "softmax": (lambda x: (x.softmax(0), F.softmin(x, -1), F.log_softmax(x, 1)), (CUBE,)),
    "count_nonzero": (lambda x: x.relu().count_nonzero(-1), (CUBE,)),
    "nansum": (lambda x: (torch.where(x > 0, torch.nan, x).nansum(-1), x.nansum()), (CUBE,)),
    "aminmax": (lambda x: (*x.aminmax(dim=-1, keepdim=True), *torch.aminmax(x)), (CUBE,)),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, dim=-1), (CUBE, CUBE)),
    "losses": (lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y, reduction="sum")), (X, X)),
}
PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "outer": (torch.outer, ((3,), (4,))),
    "dot": (lambda x, y: (torch.dot(x, y), torch.vdot(x, y), torch.inner(x, y)), ((5,), (5,))),
    "mv": (torch.mv, (X, (6,))),
    "addmv": (lambda b, m, v: (torch.addmv(b, m, v), torch.addmv(b, m, v, beta=0, alpha=2)), ((4,), X, (6,))),
    "addr": (lambda b, x, y: torch.addr(b, x, y, beta=0.5), (X, (4,), (6,))),
    "addbmm": (lambda b, x, y: torch.addbmm(b, x, y, alpha=2), ((3, 4), (2, 3, 5), (2, 5, 4))),
    "baddbmm": (lambda b, x, y: torch.baddbmm(b, x, y, beta=2), ((2, 3, 4), (2, 3, 5), (2, 5, 4))),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=PAIRED), (CUBE, (4, 2, 5))),
    "inner": (torch.inner, (CUBE, (2, 5))),
    "vecdot": (torch.linalg.vecdot, (CUBE, CUBE)),
    "multi_dot": (lambda x, y: torch.linalg.multi_dot((x, y, x)), (X, (6, 4))),
}
NORMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), (CUBE, (5,), (5,))),
    "layer_norm of two": (lambda x: F.layer_norm(x, (4, 5), eps=0.1), (CUBE,)),
    "rms_norm": (lambda x, w: (F.rms_norm(x, (5,), w), F.rms_norm(x, (4, 5), eps=0.1)), (CUBE, (5,))),
    "batch_norm": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v * v, w, b) + F.batch_norm(x, m, v * v),
        (CUBE, (4,), (4,), (4,), (4,)),
    ),
    "batch_norm of the batch": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True) + F.batch_norm(x, None, None, training=True),
        (CUBE, (4,), (4,)),
    ),
    "glu": (lambda x: (F.glu(x), F.glu(x, 0)), (X,)),
}
POINTWISE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "activations": (
        lambda x: [f(x) for f in (F.celu, F.hardshrink, F.softshrink, F.selu, F.softsign, F.tanhshrink, F.logsigmoid)],
        (X,),
    ),
    "clamps": (lambda x, y: (x.clamp(min=y), x.clamp(y, y + 1), x.clamp_max(y), x.clip(-1, 1)), (X, (6,))),
    "in place": (lambda x, y: (x * 2).clamp_(min=y).add_(1).mul_(y).masked_fill_(x > 1, 0.0), (X, (6,))),
    "nan_to_num": (lambda x: (x.nan_to_num(), torch.log(x.relu()).nan_to_num(0.0, neginf=-9.0)), (X,)),
    "extrema": (lambda x, y: (torch.fmax(x, y), torch.fmin(x, y), torch.maximum(x, y)), (X, (6,))),
    "logarithms": (lambda x, y: (torch.logaddexp(x, y), torch.logaddexp(x, x), torch.xlogy(y, x * x)), (X, (6,))),
    "logit": (lambda x: (torch.logit(x.sigmoid()), torch.logit(x, 0.1), torch.frac(x), torch.sgn(x)), (X,)),
    "angles": (lambda x: (torch.sinc(x), torch.sinc(x - x), torch.deg2rad(x), torch.rad2deg(x)), (X,)),
    "linspace": (lambda x: (x * torch.linspace(-1, 1, 6), x[0, 0] + torch.linspace(0.1, 7, 11)), (X,)),
    "diagonals": (lambda x: (torch.diag_embed(x), torch.diag_embed(x, 1, 0, 2), torch.diag(x[0], -2)), (X,)),
    "take": (lambda x: torch.take(x, torch.tensor([[0, -1], [3, 5]])), (X,)),
    "tests": (lambda x: (x.isfinite(), x.isposinf(), x.isneginf(), x.isnan() | ~(x > 0)), (X,)),
    "prelu": (F.prelu, (CUBE, (4,))),
    "float_power": (lambda x: torch.float_power(x.abs(), 2), (X,)),
}
EINSUMS = {
    "ij,jk->ik": ((3, 4), (4, 5)),
    "ij,jk": ((3, 4), (4, 5)),
    "ij,kj->ki": ((3, 4), (5, 4)),
    "bhqd,bhkd->bhqk": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bqhd,bkhd->bhqk": ((2, 4, 3, 5), (2, 6, 3, 5)),
    "bhqk,bkhd->bqhd": ((2, 3, 4, 6), (2, 6, 3, 5)),
    "...ij,...jk->...ik": ((2, 3, 4), (2, 4, 5)),
    "...ij,jk": ((2, 3, 4), (4, 5)),
    "i,j->ij": ((3,), (4,)),
    "ij->": ((3, 4),),
    "...i->...": ((2, 3, 4),),
    "ij,ij->": ((3, 4), (3, 4)),
    "ij,ij->ij": ((3, 4), (3, 4)),
    "ij,k->i": ((3, 4), (5,)),
    "bij,bjk,bkl->bil": ((2, 3, 4), (2, 4, 5), (2, 5, 3)),
    "bij,bjk->ik": ((2, 3, 4), (2, 4, 5)),
    "bsgd,bstgd->bgst": ((2, 3, 4, 5), (2, 3, 6, 4, 5)),
    "ij,jk->ki": ((1, 4), (4, 5)),
    "bi,bi->b": ((3, 1), (3, 4)),
    "nd, d -> n": ((3, 4), (4,)),
}


def tensors(shapes, dtype=torch.float32):
    return [torch.randn(shape).to(dtype) for shape in shapes]


OWN = [(name, case, torch.float32) for group in (SPLITS, POINTWISE, PRODUCTS) for name, case in group.items()]
ROUNDED = [(name, case, torch.bfloat16) for group in (REDUCTIONS, NORMS) for name, case in group.items()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("case", "dtype"), [pytest.param(case, dtype, id=name) for name, case, dtype in OWN + ROUNDED])
def test_operation_is_right_and_wefts_own(weft, case, dtype):
    function, shapes = case
    captured = weft.compare(function, *tensors(shapes, dtype))
    assert captured.fallbacks == ()
    assert all("shares memory" in f.reason for f in captured.views), captured.views


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name) for group in (SPLITS, REDUCTIONS, NORMS) for name, case in group.items()]
)
def test_operation_is_right_at_any_size(weft, case):
    function, shapes = case
    torch.compiler.reset()
    compiled = torch.compile(function, backend=weft, dynamic=True)
    with torch.no_grad():
        inputs = tensors(shapes)
        torch.testing.assert_close(compiled(*inputs), function(*inputs), check_dtype=False, atol=1e-5, rtol=1e-4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum(weft, equation, dynamic):
    captured = weft.compare(lambda *xs: torch.einsum(equation, *xs), *tensors(EINSUMS[equation]), dynamic=dynamic)
    assert captured.fallbacks == ()


@pytest.mark.parametrize("equation", ["ii", "ij,jj->i"])
def test_diagonals_of_einsum_are_left(weft, equation):
    shapes = ((4, 4),) * (1 + equation.count(","))
    captured = weft.compare(lambda *xs: torch.einsum(equation, *xs), *tensors(shapes))
    assert [f.reason for f in captured.fallbacks] == ["it takes a diagonal: an operand has the same index twice"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_eye(weft, dtype):
    captured = weft.compare(
        lambda x: (x @ torch.eye(6, dtype=x.dtype), torch.eye(3, 5, dtype=dtype)), torch.randn(4, 6)
    )
    assert captured.fallbacks == ()


def test_group_norm_runs_over_views(weft):
    x, w, b = torch.randn(2, 6, 5), torch.randn(6), torch.randn(6)
    captured = weft.compare(lambda x, w, b: F.group_norm(x, 3, w, b), x, w, b)
    assert captured.fallbacks == captured.views == ()


def test_infinities_and_nan(weft):
    x = torch.tensor([[-torch.inf, -torch.inf], [torch.inf, 1.0], [torch.nan, 1.0], [-torch.inf, 2.0]])

    def function(x):
        return x.logsumexp(-1), x.norm(dim=-1), x.any(-1), x.amax(-1), x.var(-1), x.softmax(-1)

    for found, wanted in zip(weft.run(function, x), function(x), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True, check_dtype=False)


@pytest.mark.filterwarnings("ignore:var", "ignore:std")
def test_variances_of_too_few(weft):
    x = torch.randn(1, 6)

    def function(x):
        return x.var(0), x.var(0, correction=0), x.var(1, correction=9), x.std(1, correction=6)

    for found, wanted in zip(weft.run(function, x), function(x), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True, check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_reductions_of_integers(weft, dtype):
    x = torch.randint(0, 3, CUBE).to(dtype)
    weft.compare(lambda x: (x.sum(-1), x.any(0), x.all(), x.float().var(-1), x.sum(dtype=torch.float32)), x)


def test_a_program_of_its_own_stays_whole(weft):
    lstm = torch.nn.LSTM(4, 5, batch_first=True)
    captured = weft.run(lstm, torch.randn(2, 3, 4)) and weft.graphs
    assert {f.operation for c in captured for f in c.fallbacks} <= {"aten.lstm", "graph"}
