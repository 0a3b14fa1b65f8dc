"""Walks the operation table: every column of every row."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weft.errors import InvalidProgramError
from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.field import ExactValue, FieldDomain
from weft.tensor.field_arithmetic import FieldArithmetic
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.optable import DERIVED, PRIMITIVES, DerivedRow, Row
from weft.tensor.optable.formulas import formula
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply

ROWS = pytest.mark.parametrize("row", PRIMITIVES, ids=lambda r: r.name)
FINITE = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1.0, -3.0, 1e3, -1e3]
WHOLE = [0, 1, -1, 2, -3, 7, 63, 64, -64, 2**53 + 1, 2**63 - 1, 1 - 2**63]
WHOLE_ROWS = [r for r in PRIMITIVES if "int" in r.samples]
NUMBERS = [*FINITE, float("inf"), float("-inf"), float("nan")]


def draw(samples: str, rng: np.random.Generator, size: int = 40) -> np.ndarray:
    if samples == "bool":
        return rng.integers(0, 2, size).astype(bool)
    values = 2.0 * rng.standard_normal(size)
    match samples:
        case "int":
            return rng.integers(-9, 10, size)
        case "divisor":
            return rng.integers(1, 9, size) * rng.choice([-1, 1], size)
        case "positive":
            return np.abs(values) + 0.05
        case "nonnegative":
            return np.abs(values)
        case "nonzero":
            return np.where(np.abs(values) < 0.05, 0.5, values)
        case "small":
            return np.tanh(values) * 0.9
        case _:
            assert samples == "real"
            return values


def arguments(row: Row | DerivedRow, rng: np.random.Generator) -> list[np.ndarray]:
    return [draw(s, rng) for s in row.samples]


def grid(row: Row | DerivedRow) -> list[np.ndarray]:
    """Every combination of special values."""
    special = {"bool": [False, True], "int": WHOLE, "divisor": [n for n in WHOLE if n]}
    values = [np.array(special.get(s, NUMBERS)) for s in row.samples]
    return [g.ravel() for g in np.meshgrid(*values)]


def eager(name: str, *args: np.ndarray, **parameters: Any) -> np.ndarray:
    packet = getattr(torch.ops.aten, name.removeprefix("aten."))
    return packet(*(torch.from_numpy(a.copy()) for a in args), **parameters).numpy()


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(
        ours.astype(np.float64), theirs.astype(np.float64), rtol=1e-13, atol=1e-15, equal_nan=True
    )


def test_names_are_unique() -> None:
    names = [r.name for r in (*PRIMITIVES, *DERIVED)]
    packets = [a for r in (*PRIMITIVES, *DERIVED) for a in r.aten]
    assert optable.MASK_ATEN.keys() - packets == {"aten.logical_xor"}
    assert len(set(names)) == len(names)
    assert len(set(packets)) == len(packets)
    assert len(PRIMITIVES) >= 30


def test_aten_names_exist_and_find_their_row() -> None:
    for row in (*PRIMITIVES, *DERIVED):
        for name in row.aten:
            assert hasattr(torch.ops.aten, name.removeprefix("aten."))
            found = optable.primitive(name) or optable.derived(name)
            assert found is row
    assert optable.primitive("aten.mm") is None
    assert optable.derived("aten.mm") is None
    with pytest.raises(InvalidProgramError, match="softmax"):
        optable.row("softmax")


@pytest.mark.parametrize(("aten", "name"), optable.MASK_ATEN.items())
def test_mask_operations(aten: str, name: str) -> None:
    row = optable.row(name)
    masks = [m.ravel() for m in np.meshgrid(*[np.array([False, True])] * row.arity)]
    assert np.array_equal(row.meaning(*masks), eager(aten, *masks))


@ROWS
def test_meaning_is_torchs(row: Row) -> None:
    rng = np.random.default_rng(1)
    if row in WHOLE_ROWS:
        return  # test_integer_rows_are_exact_beyond_the_floats
    with np.errstate(all="ignore"):
        for args in (arguments(row, rng), grid(row)):
            ours = row.meaning(*args)
            for name in row.aten:
                same(ours, eager(name, *args))
            assert (ours.dtype == np.bool_) == (row.result == "bool")


@ROWS
def test_meaning_on_integers(row: Row) -> None:
    if not row.closed:
        with np.errstate(all="ignore"):
            assert row.meaning(*[np.array([3])] * row.arity).dtype == np.float64
        return
    values = [np.arange(-3, 4) if s in ("real", "int", "positive") else np.array([-3, -1, 2]) for s in row.samples]
    if row.name == "where":
        values[0] = np.array([False, True])
    args = [g.ravel() for g in np.meshgrid(*values)]
    ours = row.meaning(*args)
    assert ours.dtype.kind in "ib"
    assert np.array_equal(ours, eager(row.aten[0], *args) if row.aten else truncated(*args))


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return torch.div(torch.from_numpy(a), torch.from_numpy(b), rounding_mode="trunc").numpy()


@pytest.mark.parametrize("row", WHOLE_ROWS, ids=lambda r: r.name)
def test_integer_rows_are_exact_beyond_the_floats(row: Row) -> None:
    args = grid(row)
    wanted = eager(row.aten[0], *args) if row.aten else truncated(*args)
    ours = row.meaning(*args)
    assert ours.dtype == np.int64
    assert np.array_equal(ours, wanted)


@ROWS
def test_interval_contains_the_samples(row: Row) -> None:
    rng = np.random.default_rng(2)
    inner = [[draw(s, rng, 8).astype(np.float64) for s in row.samples] for _ in range(60)]
    inner += [[draw(s, rng, 1).astype(np.float64) for s in row.samples] for _ in range(60)]
    special = [[np.append(draw(s, rng, 3).astype(np.float64), [0.0, 1.0]) for s in row.samples] for _ in range(20)]
    if row in WHOLE_ROWS:
        special = []
    infinite = [[np.append(draw(s, rng, 2).astype(np.float64), 1.0 if s == "bool" else np.inf) for s in row.samples]]
    infinite = [] if row in WHOLE_ROWS else infinite
    widths = []
    for args in (*inner, *special, *infinite):
        low, high = row.interval(*((float(a.min()), float(a.max())) for a in args))
        with np.errstate(all="ignore"):
            values = row.meaning(*[g.ravel() for g in np.meshgrid(*args)]).astype(np.float64)
        values = values[~np.isnan(values)]
        assert low <= high
        assert np.all(values >= low), (args, low)
        assert np.all(values <= high), (args, high)
        widths.append(high - low)
    if row.name not in ("isnan", "eq", "ne", "logical_and", "logical_or", "logical_not"):
        finite = [draw(s, rng, 1).astype(np.float64) for s in row.samples]
        low, high = row.interval(*((float(a[0]), float(a[0])) for a in finite))
        assert high - low <= 1e-12 * max(1.0, abs(high)), "a point has a point's bounds"


def test_intervals_decide() -> None:
    at = {r.name: r.interval for r in PRIMITIVES}
    assert at["lt"]((0, 1), (2, 3)) == at["gt"]((2, 3), (0, 1)) == (1, 1)
    assert at["lt"]((2, 3), (0, 2)) == at["ge"]((0, 1), (2, 3)) == (0, 0)
    assert at["le"]((0, 1), (1, 2)) == at["ge"]((1, 2), (0, 1)) == (1, 1)
    assert at["le"]((1, 2), (0, 1)) == at["eq"]((0, 1), (1, 2)) == (0, 1)
    assert at["eq"]((1, 1), (1, 1)) == at["ne"]((0, 1), (2, 2)) == (1, 1)
    assert at["logical_and"]((1, 1), (2, 3)) == at["logical_or"]((0, 1), (1, 1)) == (1, 1)
    assert at["logical_not"]((0, 0)) == at["logical_not"](at["logical_not"]((5, 5))) == (1, 1)
    assert at["where"]((1, 1), (0, 1), (5, 6)) == (0, 1)
    assert at["where"]((0, 0), (0, 1), (5, 6)) == (5, 6)
    assert at["isinf"]((0, 1)) == (0, 0)
    assert at["pow"]((-2, 1), (2, 2))[0] == 0.0
    assert at["sin"]((0, 4))[1] == 1.0
    assert at["sin"]((3, 4))[1] < 0.2


@ROWS
def test_templates_name_every_argument(row: Row) -> None:
    for template in (row.cpp, row.triton):
        assert set(re.findall(r"\{(\d+)\}", template)) == {str(i) for i in range(row.arity)}
    tree = ast.parse(row.triton.format("a", "b", "c"), mode="eval")
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert names <= {"a", "b", "c", "tl", "float"} | set(re.findall(r"\bweft_\w+", row.triton))
    assert not isinstance(tree.body, ast.Name)


def test_cpp_templates_compile(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler is not None, "a C++ compiler is what weft needs"
    arity = {r.name: r.arity for r in PRIMITIVES}
    lines = ["namespace weft {"]
    for name in sorted({name for r in PRIMITIVES for name in re.findall(r"weft::(\w+)\(", r.cpp)}):
        number = "long" if optable.row(name) in WHOLE_ROWS else "float"
        result = "bool" if optable.row(name).result == "bool" else number
        lines.append(f"{result} {name}({', '.join([number] * arity[name])});")
    lines.append("}")
    for row in PRIMITIVES:
        number = "long" if row in WHOLE_ROWS else "float"
        kinds = ["bool" if s == "bool" else number for s in row.samples]
        head = ", ".join(f"{k} x{i}" for i, k in enumerate(kinds))
        result = "bool" if row.result == "bool" else number
        body = row.cpp.format(*(f"x{i}" for i in range(row.arity)))
        lines.append(f"{result} row_{row.name}({head}) {{ return {body}; }}")
    source = tmp_path / "rows.cpp"
    source.write_text("\n".join(lines))
    command = [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wconversion", "-Werror", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@ROWS
def test_rounding_is_what_becomes_of_floats(row: Row) -> None:
    rng = np.random.default_rng(4)
    args = arguments(row, rng)
    values = row.meaning(*args)
    match row.rounding:
        case "exact":
            assert row.closed
            assert values.dtype.kind in "ib" or row.name == "fmod"
        case "chooses":
            floats = [np.abs(a) for a in args if a.dtype.kind == "f"]
            assert np.logical_or.reduce([np.abs(values) == a for a in floats]).all()
        case "steps":
            assert np.array_equal(values, np.rint(values))
        case "rounds" | "function":
            assert row.result == "same"
            assert not np.array_equal(values, np.rint(values))
    if row.exact_at is not None:
        found = float(row.meaning(np.asarray(row.exact_at)))
        assert row.rounding == "function"
        assert found == round(found)


@ROWS
def test_costs_follow_from_what_a_row_is_made_of(row: Row) -> None:
    """Calls of a library cost more than an addition, on a CPU and on a GPU; what only selects or compares does not on a CPU."""
    called = row.rounding == "function"
    assert (row.cpu > 1 and row.gpu > 8) if called else row.cpu >= 1 and row.gpu >= 1
    if row.result == "bool" or row.rounding in ("chooses", "steps"):
        assert (row.cpu, row.gpu <= 2) == (1.0, True)


@ROWS
def test_field_meaning_is_a_function(row: Row) -> None:
    """Deterministic in the seed, of the right shape, dependent on every argument."""
    assert not isinstance(row.field, str) or hasattr(FieldArithmetic, row.field)
    kinds = [DType.bool if s == "bool" else DType.float32 for s in row.samples]
    result = DType.bool if row.result == "bool" else DType.float32
    expr = Apply(row.name, tuple(Arg(i) for i in range(row.arity)))

    def run(seed: int, other: int | None = None) -> tuple[FieldDomain, Any]:
        domain, rng = FieldDomain(seed), np.random.default_rng(7)
        args = [domain.random((50,), k, rng) for k in kinds]
        if other is not None:
            args[other] = domain.random((50,), kinds[other], rng)
        shaped = [
            domain.lift(lambda a, i=i: a.reshape([50 if i == j else 1 for j in range(2)]), a)
            for i, a in enumerate(args[:1])
        ]
        return domain, domain.elementwise(expr, [*shaped, *args[1:]], result)

    domain, value = run(5)
    assert domain.shape(value) == ((50, 50) if row.arity > 1 else (50, 1))
    assert isinstance(value, ExactValue) == (row.result == "bool")
    assert domain.equal(value, run(5)[1])
    for i in range(row.arity):
        # Random elements are never NaN, infinite or equal.
        constant = row.name in ("isnan", "isinf", "eq", "ne")
        assert domain.equal(value, run(5, i)[1]) == constant


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((r.name, {}) for r in DERIVED if r.name not in ("clamp", "threshold", "masked_fill")),
    ("clamp", {"min": -0.5}),
    ("clamp", {"max": 0.5}),
    ("clamp", {"min": -0.5, "max": 0.5}),
    ("clamp_min", {"min": 0.25}),
    ("clamp_max", {"max": 0.25}),
    ("hardtanh", {"min_val": -2.0, "max_val": 0.5}),
    ("leaky_relu", {"negative_slope": 0.3}),
    ("threshold", {"threshold": 0.3, "value": 7.0}),
    ("elu", {"alpha": 1.3, "scale": 1.1, "input_scale": 0.7}),
    ("softplus", {"beta": 2.0, "threshold": 1.5}),
    ("gelu", {"approximate": "tanh"}),
    ("rsub", {"alpha": 3}),
    ("addcmul", {"value": 0.5}),
    ("addcdiv", {"value": 0.5}),
]
NEEDS = {"clamp_min": {"min": 0.0}, "clamp_max": {"max": 0.0}}


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=str)
def test_derived_is_torchs(name: str, parameters: dict[str, Any]) -> None:
    row = next(r for r in DERIVED if r.name == name)
    rng = np.random.default_rng(5)
    expr = row.expand(*(Arg(i) for i in range(row.arity)), **parameters)
    assert names(expr) <= {r.name for r in PRIMITIVES}
    domain = Fp64Domain()
    for args in (arguments(row, rng), grid(row)):
        theirs = eager(row.aten[0], *args, **(NEEDS.get(name, {}) | parameters))
        ours = domain.elementwise(expr, args, DType.float64)
        if name == "tan":
            # PyTorch rounds or saturates these otherwise at infinities and zeros; finite is what counts.
            keep = np.isfinite(theirs) & np.logical_and.reduce([np.abs(a) < 100 for a in args])
            ours, theirs = ours[keep], theirs[keep]
        np.testing.assert_allclose(ours, theirs, rtol=3e-13, atol=1e-14, equal_nan=True)


def names(expr: Scalar) -> set[str]:
    match expr:
        case Apply(op, args):
            return {op}.union(*map(names, args))
        case Convert(_, inner):
            return names(inner)
        case _:
            return set()


def test_masked_fill_is_torchs() -> None:
    x, mask = np.array([1.0, np.nan, 3.0, -np.inf]), np.array([True, True, False, False])
    fill = next(r for r in DERIVED if r.name == "masked_fill").expand(Arg(0), Arg(1), Arg(2))
    value = np.array(-np.inf)
    ours = Fp64Domain().elementwise(fill, [x, mask, value], DType.float64)
    np.testing.assert_array_equal(ours, eager("aten.masked_fill", x, mask, value))


def test_expansion_checks_its_arguments() -> None:
    relu = next(r for r in DERIVED if r.name == "relu")
    assert relu.expand(Arg(0)) == apply("maximum", Arg(0), Lit(0))
    with pytest.raises(TypeError, match="relu takes 1"):
        relu.expand(Arg(0), Arg(1))
    with pytest.raises(TypeError):
        relu.expand(Arg(0), slope=1.0)


@pytest.mark.parametrize("row", [r for r in PRIMITIVES if r.arity == 2], ids=lambda r: r.name)
def test_commutative_rows_are_those_whose_arguments_can_be_swapped(row: Row) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, 200) * 1.0, rng.integers(-3, 4, 200) * 1.0
    if "bool" in row.samples:
        a, b = a > 0, b > 0
    with np.errstate(all="ignore"):
        same = np.array_equal(row.meaning(a, b), row.meaning(b, a), equal_nan=True)
    assert same == row.commutative


def test_a_formula_works_out_what_numbers_alone_decide_and_leaves_arguments() -> None:
    names = {"x": Arg(0), "y": Lit(0.0), "value": 1}
    assert formula("x * (1.0 / sqrt(4.0))", names) == apply("mul", Arg(0), Lit(0.5))
    assert formula("x * log(y)", names) == apply("mul", Arg(0), apply("log", Lit(0.0)))
    assert formula("half = x / 2; half if value == 1 else value * x", names) == apply("div", Arg(0), Lit(2))
    assert formula("x >= y or not x", names) == formula("logical_or(ge(x, y), logical_not(x))", names)
    for text in ("x @ x", "x.y", "x = 1; import y; x", "x < 1 < y", "x = 1", "", "unknown", "exp(1.0) * x"):
        with pytest.raises(TypeError):
            formula(text, names)


@pytest.mark.parametrize(
    ("build", "shown", "why"),
    [
        ("x * lgo(x)", '"x * lgo(x)"', r"no operation is called 'lgo' \(did you mean log\?\)"),
        ("x * exp(x, x)", '"x * exp(x, x)"', "exp takes 1 argument, not 2"),
        ("half = x / 2\nwhere(x, half)", '"half = x / 2 where(x, half)"', "where takes 3 arguments, not 2"),
        ("x * width", '"x * width"', "nothing is called 'width'; there is pi, inf, x, alpha"),
        ("x ** 2", '"x ** 2"', "none of what a formula may hold"),
        ("x +", '"x +"', "invalid syntax"),
        (lambda x, alpha: apply("exp", x, x), "the function .*<lambda>", "exp takes 1 argument, not 2"),
    ],
)
def test_a_wrong_formula_is_an_error_that_names_row_and_formula(build: Any, shown: str, why: str) -> None:
    row = DerivedRow("twice", (), ("real",), build, (("alpha", 1.0),), integers=build)
    for integral in (False, True):
        with pytest.raises(TypeError) as error:
            row.expand(Arg(0), integral=integral)
        assert str(error.value).startswith("row 'twice' of the operation table has a wrong formula, ")
        assert re.search(shown if shown.startswith("the") else re.escape(shown), str(error.value))
        assert re.search(why, str(error.value))
        assert "Correct the row: a formula reads x, y and z" in str(error.value)
