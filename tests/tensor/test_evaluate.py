"""The evaluator against PyTorch on random programs, what the field refutes, and the checker."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testkit.tensor.by_pytorch import torch_node
from weft.errors import InvalidProgramError, ShapeError, UnsupportedError
from weft.tensor import FieldDomain, Fp64Domain, evaluate, returned, well_formed
from weft.tensor.axes import Affine, Axis, Space
from weft.tensor.derived import Derived
from weft.tensor.domain import Domain
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import matmul_in_parts, rounded
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Monoid,
    Node,
    Opaque,
    Reduction,
    Reindex,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Arg, Convert, Lit, apply

V = TypeVar("V")
F, INT, B = DType.float32, DType.int64, DType.bool
SPACES = {name: Space(name) for name in "MKN"}
M, K, N = (Axis(name.lower(), space) for name, space in SPACES.items())
M2 = Axis("m2", SPACES["M"])
X, Y, Z = Arg(0), Arg(1), Arg(2)


def use(node: Node, *axes: Axis) -> Use:
    return Use(node.name, axes or node.axes)


def program(*nodes: Node, outputs: tuple[str, ...] = ()) -> TensorProgram:
    inputs = tuple(n for n in nodes if isinstance(n, Input))
    rest = tuple(n for n in nodes if not isinstance(n, Input))
    return TensorProgram(inputs, rest, outputs or (nodes[-1].name,))


def draw(p: TensorProgram, domain: Domain[V], sizes: dict[str, int], seed: int = 0) -> dict[str, V]:
    rng = np.random.default_rng(seed)
    every = p.sizes(sizes)
    return {i.name: domain.random([a.space.size(every) for a in i.axes], i.dtype, rng) for i in p.inputs}


class Maker:
    """Random well-formed programs over axes m, m2, k, n."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sizes = {name: self.rng.choice([1, 2, 3, 5]) for name in SPACES}
        self.nodes: list[Node] = [
            Input("x", (M, K), F),
            Input("w", (K, N), F),
            Input("b", (N,), F),
            Input("i", (M,), INT),
            Constant("c", (), F, 0.75),
            Iota("t", (K,), INT),
        ]

    def pick(self) -> Node:
        return self.rng.choice(self.nodes)

    def relabelled(self, node: Node) -> tuple[Axis, ...]:
        """The node's axes, sometimes with the other iterator of M."""
        swap = self.rng.random() < 0.3
        return tuple({M: M2, M2: M}.get(a, a) if swap else a for a in node.axes)

    def shuffled(self, axes: Any) -> tuple[Axis, ...]:
        order = list(dict.fromkeys(axes))
        self.rng.shuffle(order)
        return tuple(order)

    def elementwise(self, name: str) -> Node:
        exprs = [
            (1, apply("maximum", X, Lit(0)), F),
            (1, apply("div", Lit(1.0), apply("add", Lit(1.0), apply("exp", apply("neg", X)))), F),
            (1, Convert(DType.bfloat16, apply("tanh", X)), F),
            (2, apply("add", X, apply("mul", Y, Lit(0.5))), F),
            (2, apply("sub", X, Y), F),
            (2, apply("lt", X, Y), B),
            (3, apply("where", apply("gt", X, Lit(0.0)), Y, Z), F),
        ]
        arity, expr, dtype = self.rng.choice(exprs)
        args = [self.pick() for _ in range(arity)]
        uses = tuple(Use(a.name, self.relabelled(a)) for a in args)
        axes = [a for u in uses for a in u.axes]
        if self.rng.random() < 0.2:
            axes.append(self.rng.choice([M, K, N]))
        return Elementwise(name, self.shuffled(axes), dtype, expr, uses)

    def contraction(self, name: str) -> Node:
        left, right = self.pick(), self.pick()
        la, ra = self.relabelled(left), self.relabelled(right)
        over = tuple(a for a in dict.fromkeys(la) if a in ra and self.rng.random() < 0.7)
        axes = self.shuffled(a for a in (*la, *ra) if a not in over)
        return Contraction(name, axes, F, Use(left.name, la), Use(right.name, ra), over)

    def reduction(self, name: str) -> Node:
        arg = self.rng.choice([n for n in self.nodes if n.axes])
        over = tuple(a for a in arg.axes if self.rng.random() < 0.5) or arg.axes[:1]
        axes = self.shuffled(a for a in arg.axes if a not in over)
        return Reduction(name, axes, F, self.rng.choice(list(Monoid)), use(arg), over)

    def reindex(self, name: str) -> Node:
        source = self.pick()
        flip = [self.rng.random() < 0.4 for _ in source.axes]
        index = [Affine(((a, -1),), 0, True) if f else Affine.of(a) for a, f in zip(source.axes, flip, strict=True)]
        axes: list[Axis] = list(source.axes)
        for d, axis in enumerate(source.axes):
            if self.rng.random() < 0.2:
                index[d] = Affine((), -self.rng.randrange(self.sizes[axis.space.name]), True)
                axes.remove(axis)
        if self.rng.random() < 0.3:
            axes.append(self.rng.choice([M, K, N]))
        return Reindex(name, self.shuffled(axes), source.dtype, source.name, tuple(index))

    def cast(self, name: str) -> Node:
        arg = self.pick()
        semantic = self.rng.random() < 0.5
        return Cast(name, arg.axes, DType.bfloat16, use(arg), semantic)

    def make(self, count: int) -> TensorProgram:
        for i in range(count):
            kinds = [self.elementwise, self.contraction, self.reduction, self.reindex, self.cast]
            node = self.rng.choice(kinds)(f"v{i}")
            if len(node.axes) <= 4:
                self.nodes.append(node)
        return program(*self.nodes, outputs=tuple(n.name for n in self.nodes))


@given(st.integers(0, 10**9))
def test_random_programs_agree_with_pytorch(seed: int) -> None:
    maker = Maker(seed)
    p = maker.make(7)
    well_formed(p)
    domain = Fp64Domain()
    inputs = draw(p, domain, maker.sizes, seed)
    ours = evaluate(p, inputs, domain)
    sizes = {a: maker.sizes[a.space.name] for a in (M, M2, K, N)}
    values = {name: torch.from_numpy(v) for name, v in inputs.items()}
    for node in p.nodes:
        values[node.name] = torch_node(node, values, sizes)
    for name, value in zip(p.outputs, ours, strict=True):
        theirs = values[name].double().numpy()
        assert value.shape == theirs.shape
        np.testing.assert_allclose(value.astype(float), theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


@given(st.integers(0, 10**9))
def test_random_programs_run_over_every_domain(seed: int) -> None:
    maker = Maker(seed)
    p = maker.make(6)
    shapes = [
        run_shapes(p, Fp64Domain(), maker.sizes),
        run_shapes(p, FieldDomain(seed), maker.sizes),
    ]
    assert shapes[0] == shapes[1]
    field = FieldDomain(seed)
    inputs = draw(p, field, maker.sizes)
    again = FieldDomain(seed)
    for a, b in zip(evaluate(p, inputs, field), evaluate(p, inputs, again), strict=True):
        assert field.equal(a, b)


def run_shapes(p: TensorProgram, domain: Domain[V], sizes: dict[str, int]) -> list[tuple[int, ...]]:
    return [domain.shape(v) for v in evaluate(p, draw(p, domain, sizes), domain)]


# Planted changes


def linear(**change: Any) -> TensorProgram:
    """relu(x @ w + b), or what `change` makes of it, over square spaces that a wrong axis fits."""
    x, w, b = Input("x", (M, M2), F), Input("w", (M, M2), F), Input("b", (M,), F)
    j = Axis("j", SPACES["M"])
    left, right = change.get("left", (M, M2)), change.get("right", (M2, j))
    t = Contraction("t", (M, j), F, Use("x", left), Use("w", right), (M2,))
    expr = change.get("expr", apply("maximum", apply("add", X, Y), Lit(0)))
    y = Elementwise("y", (M, j), F, expr, (use(t), Use("b", (change.get("bias", j),))))
    s = Reduction("s", (M,), F, change.get("monoid", Monoid.sum), Use("y", (M, j)), (j,))
    return program(x, w, b, t, y, s)


J = Axis("j", SPACES["M"])
PLANTED: list[dict[str, Any]] = [
    {"expr": apply("maximum", X, Lit(0))},
    {"expr": apply("add", X, Y)},
    {"expr": apply("maximum", apply("sub", X, Y), Lit(0))},
    {"expr": apply("add", apply("maximum", X, Lit(0)), Y)},
    {"bias": M},
    {"left": (M2, M)},
    {"right": (J, M2)},
    {"monoid": Monoid.max},
    {"monoid": Monoid.prod},
]


@pytest.mark.parametrize("change", PLANTED, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_planted_changes_are_refuted(change: dict[str, Any], seed: int) -> None:
    domain = FieldDomain(seed)
    original, changed = linear(), linear(**change)
    well_formed(changed)
    inputs = draw(original, domain, {"M": 4}, seed)
    (want,), (got,) = (evaluate(p, inputs, domain) for p in (original, changed))
    assert domain.equal(want, evaluate(linear(), inputs, domain)[0])
    assert not domain.equal(want, got)


def attention(*, shift: bool, late: bool = False, monoid: Monoid = Monoid.sum) -> TensorProgram:
    """Causal self-attention: queries m, keys m2, width k. `late` divides after the product with v."""
    q, k, v = (Input(name, (M, K), F) for name in "qkv")
    i = Iota("i", (M,), INT)
    s = Contraction("s", (M, M2), F, Use("q", (M, K)), Use("k", (M2, K)), (K,))
    causal = apply("where", apply("le", Y, Z), apply("mul", X, Lit(0.125)), Lit(float("-inf")))
    masked = Elementwise("masked", (M, M2), F, causal, (use(s), Use("i", (M2,)), Use("i", (M,))))
    top = Reduction("top", (M,), F, Monoid.max, use(masked), (M2,))
    expr, args = apply("exp", X), (use(masked),)
    if shift:
        expr, args = apply("exp", apply("sub", X, Y)), (use(masked), use(top))
    e = Elementwise("e", (M, M2), F, expr, args)
    total = Reduction("total", (M,), F, monoid, use(e), (M2,))
    p = Elementwise("p", (M, M2), F, apply("div", X, Y), (use(e), use(total)))
    o = Contraction("o", (M, K), F, use(e if late else p), Use("v", (M2, K)), (M2,))
    y = Elementwise("y", (M, K), F, apply("div", X, Y), (use(o), use(total)))
    return program(q, k, v, i, s, masked, top, e, total, p, o, *([y] if late else []))


@pytest.mark.parametrize("seed", range(5))
def test_attention_many_ways(seed: int) -> None:
    domain = FieldDomain(seed)
    forms = [attention(shift=shift, late=late) for shift in (False, True) for late in (False, True)]
    inputs = draw(forms[0], domain, {"M": 6, "K": 3}, seed)
    values = [evaluate(p, inputs, domain)[0] for p in forms]
    assert all(domain.equal(values[0], v) for v in values[1:])
    wrong = evaluate(attention(shift=True, monoid=Monoid.max), inputs, domain)[0]
    assert not domain.equal(values[0], wrong)


def test_attention_in_numbers() -> None:
    domain = Fp64Domain()
    p = attention(shift=True)
    inputs = draw(p, domain, {"M": 6, "K": 3})
    q, k, v = (torch.from_numpy(inputs[n]) for n in "qkv")
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.125)
    for form in (p, attention(shift=False)):
        np.testing.assert_allclose(evaluate(form, inputs, domain)[0], want.numpy(), rtol=1e-9, atol=1e-9)


# Single forms


def test_slices_diagonals_and_windows() -> None:
    n, c, s, w = Space("n"), Space("c"), Space("s"), Space("w", 2)
    i, j, k, d = Axis("i", n), Axis("j", c), Axis("k", s), Axis("d", w)
    x = Input("x", (i,), F)
    y = Input("y", (i, Axis("i2", n)), F)
    nodes: list[Node] = [
        Reindex("cut", (j,), F, "x", (Affine(((j, 1),), 1),)),
        Reindex("step", (k,), F, "x", (Affine(((k, -2),), 0, True),)),
        Reindex("window", (j, d), F, "x", (Affine(((j, 1), (d, 1))),)),
        Reindex("diagonal", (i,), F, "y", (Affine.of(i), Affine.of(i))),
        Reindex("row", (i,), F, "y", (Affine((), -1, True), Affine.of(i))),
        Extent("length", (), INT, n),
        Elementwise("mean", (), F, apply("div", X, Y), (Use("total", ()), Use("length", ()))),
    ]
    nodes.insert(-1, Reduction("total", (), F, Monoid.sum, Use("x", (i,)), (i,)))
    derived = (Derived(c, n, 1, None), Derived(s, n, None, None, -2))
    outputs = ("cut", "step", "window", "diagonal", "row", "mean")
    p = TensorProgram((x, y), tuple(nodes), outputs, derived=derived)
    well_formed(p)
    for size in (5, 6):
        a, b = np.random.default_rng(0).standard_normal((2, size, size))
        a = a[0]
        got = evaluate(p, {"x": a, "y": b}, Fp64Domain())
        window = np.lib.stride_tricks.sliding_window_view(a, 2)
        for ours, want in zip(got, (a[1:], a[::-2], window, np.diagonal(b), b[-2], a.mean()), strict=True):
            np.testing.assert_allclose(ours, want)


def test_dimensions_of_size_one() -> None:
    x = Input("x", (M, N), F, dims=(None, M, None, N))
    y = Elementwise("y", (N, M), F, apply("neg", X), (use(x),))
    p = TensorProgram((x,), (y,), ("y",), output_dims=((M, None, N),))
    well_formed(p)
    a = np.random.default_rng(0).standard_normal((1, 3, 1, 4))
    for given_x in (a, a[0, :, 0]):
        out = evaluate(p, {"x": given_x}, Fp64Domain())
        assert out[0].shape == (4, 3)
        np.testing.assert_array_equal(returned(p, out, Fp64Domain())[0], -a[0].reshape(3, 1, 4))
    with pytest.raises(ShapeError, match=r"dimension 2 of x has size 2, not 1"):
        evaluate(p, {"x": np.zeros((1, 3, 2, 4))}, Fp64Domain())


@pytest.mark.parametrize("sizes", [{"M": 0}, {"M": 1}])
def test_empty_spaces(sizes: dict[str, int]) -> None:
    out = evaluate(linear(), draw(linear(), Fp64Domain(), sizes), Fp64Domain())[0]
    assert out.shape == (sizes["M"],)
    p = program(Input("x", (M,), F), Reduction("s", (), F, Monoid.sum, Use("x", (M,)), (M,)))
    assert evaluate(p, {"x": np.zeros(0)}, Fp64Domain())[0] == 0.0


@pytest.mark.parametrize("dtype", [DType.bfloat16, DType.float16, DType.float32])
def test_semantic_casts_round_as_pytorch(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000) * 10.0 ** rng.integers(-45, 39, 4000)
    x = np.append(x, [np.inf, -np.inf, np.nan, 0.0, -0.0, 65504.0, 65520.0, 3.4e38, 1.00390625, 1.01171875])
    want = torch.from_numpy(x).to(getattr(torch, dtype.name)).double().numpy()
    np.testing.assert_array_equal(rounded(x, dtype), want)
    domain = Fp64Domain()
    assert np.array_equal(domain.convert(x, dtype, False), x, equal_nan=True)
    for target in (DType.int32, DType.uint8, DType.bool):
        y = np.array([-3.7, 2.5, 0.0, 0.3, 100.9]) if target is not DType.uint8 else np.array([3.7, 0.2])
        want = torch.from_numpy(y).to(getattr(torch, target.name)).numpy()
        np.testing.assert_array_equal(domain.convert(y, target, True), want.astype(np.int64))


def test_integers_wrap() -> None:
    x, want = np.array([100, 127, -128]), np.array([100, 127, -128], np.int8) * np.int8(3)
    assert Fp64Domain().elementwise(apply("mul", X, Lit(3)), [x], DType.int8).tolist() == want.tolist()


def test_opaque_needs_a_handler() -> None:
    rows = Space("rows")
    o = Opaque("o", (Axis("r", rows),), F, "aten.sort", "sort_1", ("x",), "order is not a formula")
    p = program(Input("x", (M,), F), o, Elementwise("y", o.axes, F, apply("neg", X), (use(o),)))
    well_formed(p)
    x = np.array([3.0, 1.0, 2.0])
    with pytest.raises(UnsupportedError, match=r"aten\.sort"):
        evaluate(p, {"x": x}, Fp64Domain())
    out = evaluate(p, {"x": x}, Fp64Domain(), opaque=lambda node, values: np.sort(values[0]))
    assert out[0].tolist() == [-1.0, -2.0, -3.0]


def test_input_errors() -> None:
    p = linear()
    good = draw(p, Fp64Domain(), {"M": 3})
    for name, value, message in (
        ("x", np.zeros((3, 4)), "runs over M, whose size is 3, but has 4"),
        ("b", np.zeros(4), "axis 0 of b"),
        ("b", np.zeros((3, 1)), "has 1 axes"),
    ):
        with pytest.raises(ShapeError, match=message):
            evaluate(p, good | {name: value}, Fp64Domain())
    with pytest.raises(ShapeError, match="'w'"):
        evaluate(p, {"x": good["x"]}, Fp64Domain())
    fixed = program(Input("x", (Axis("f", Space("f", 3)),), F))
    with pytest.raises(ShapeError, match="whose size is 3"):
        evaluate(fixed, {"x": np.zeros(4)}, Fp64Domain())


def test_unknown_sizes_and_indices_out_of_range() -> None:
    free = program(Iota("t", (N,), INT))
    with pytest.raises(InvalidProgramError, match="the size of N"):
        evaluate(free, {}, Fp64Domain())
    assert evaluate(free, {}, Fp64Domain(), sizes={"N": 3})[0].tolist() == [0, 1, 2]
    for index in (Affine(((M, 1),), 1), Affine(((M, 1),), -1), Affine(((M, -1),)), Affine((), 3)):
        p = program(Input("x", (M,), F), Reindex("y", (M,), F, "x", (index,)))
        with pytest.raises(InvalidProgramError, match="of 3 elements"):
            evaluate(p, {"x": np.zeros(3)}, Fp64Domain())


# The checker

XW = (Input("x", (M, K), F), Input("w", (K, N), F))
XX = (Use("x", (M, K)),)


def one(*nodes: Node) -> Callable[[], TensorProgram]:
    return lambda: program(*XW, *nodes)


def contraction(axes: tuple[Axis, ...], left: tuple[Axis, ...], right: tuple[Axis, ...], *over: Axis) -> Node:
    return Contraction("bad", axes, F, Use("x", left), Use("w", right), over)


ILL: dict[str, tuple[str, Callable[[], TensorProgram]]] = {
    "twice": ("assigned twice", one(Constant("x", (), F, 1.0))),
    "undefined": ("not defined before", one(Elementwise("bad", (M,), F, X, (Use("z", (M,)),)))),
    "input": ("among the nodes", lambda: TensorProgram(XW, (Input("bad", (M,), F),), ("bad",))),
    "repeat": ("repeats an axis", one(Elementwise("bad", (M, M), F, Lit(1.0), ()))),
    "name": ("another space called M", one(Iota("bad", (Axis("m", Space("M", 3)),), INT))),
    "rank": ("has 2 axes", one(Elementwise("bad", (M,), F, X, (Use("x", (M,)),)))),
    "space": ("reads x's K", one(Elementwise("bad", (M, N), F, X, (Use("x", (M, N)),)))),
    "cover": ("neither in its result", one(Elementwise("bad", (M,), F, X, XX))),
    "argument": ("argument 1 of 1", one(Elementwise("bad", (M, K), F, Y, XX))),
    "row": ("'softmax'", one(Elementwise("bad", (M, K), F, apply("softmax", X), XX))),
    "arity": ("applies add to 1", one(Elementwise("bad", (M, K), F, apply("add", X), XX))),
    "over": ("not in both operands", one(contraction((K, N), (M, K), (K, N), M))),
    "both": ("repeats an axis", one(contraction((M, N, K), (M, K), (K, N), K))),
    "extra": ("no operand has", one(contraction((M, N, M2), (M, K), (K, N), K))),
    "lost": ("neither in its result", one(contraction((M,), (M, K), (K, N), K))),
    "nothing": ("over nothing", one(Reduction("bad", (M, K), F, Monoid.sum, XX[0], ()))),
    "reduced": ("does not read along", one(Reduction("bad", (M, N), F, Monoid.sum, XX[0], (K,)))),
    "index": ("1 indices into x", one(Reindex("bad", (M,), F, "x", (Affine.of(M),)))),
    "zero": ("coefficient 0", one(Reindex("bad", (M, K), F, "x", (Affine.of(M), Affine(((K, 0),)))))),
    "free": ("neither in", one(Reindex("bad", (M,), F, "x", (Affine.of(M), Affine.of(K))))),
    "cast": ("neither in", one(Cast("bad", (M,), F, XX[0], True))),
    "constant": ("has 1 axes", one(Constant("bad", (M,), F, 1.0))),
    "iota": ("has 2 axes", one(Iota("bad", (M, K), INT))),
    "dims": ("dims are not its axes", one(Input("bad", (M, N), F, dims=(N, None, M)))),
    "output": ("output bad", lambda: program(*XW, outputs=("bad",))),
    "output dims": ("output_dims are not", lambda: replace(program(*XW, outputs=("x",)), output_dims=((M,),))),
}


@pytest.mark.parametrize("name", ILL)
def test_ill_formed_programs_are_refused(name: str) -> None:
    message, make = ILL[name]
    with pytest.raises(InvalidProgramError, match=message) as caught:
        well_formed(make())
    assert caught.value.node in ("bad", "x", "")


def test_well_formed_programs_pass() -> None:
    for p in (linear(), attention(shift=True), attention(shift=False, late=True)):
        well_formed(p)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sums_in_fp64_are_equally_exact_along_each_dimension(dim: int):
    """Terms of few values round alike at each step: one after another, thousands of them are off by hundreds of units."""
    terms = 1 / np.sqrt(np.random.default_rng(0).integers(0, 4, (3, 4, 4096)) + 1.0)
    moved = np.ascontiguousarray(np.moveaxis(terms, 2, dim))
    exact = np.array([[math.fsum(row) for row in rows] for rows in terms])
    found = Fp64Domain().reduce(Monoid.sum, moved, (dim,))
    assert np.abs(found - exact).max() <= 8 * 2.0**-53 * exact.max()


@pytest.mark.parametrize(
    ("left", "right"),
    [((26, 171), (171, 119)), ((2, 3, 2000), (2000, 700)), ((3, 1, 70), (3, 70, 4001)), ((9, 7), (7, 5))],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_a_product_in_parts_is_the_product(left, right, dtype):
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, shape).astype(dtype) for shape in (left, right))
    found = matmul_in_parts(a, np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2))
    assert found.dtype == dtype
    assert np.array_equal(found, np.matmul(a, b))
