"""The derivations of RedFuser's cases (appendix A.2), of products, and of three that have no single product, as golden texts and as
algebra.

G, H, the update of an iteration (equation 16) and the merge of segments (11) are worked out from the paper's G and H by SymPy,
and compared with what is printed.
"""

from __future__ import annotations

import functools
import importlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from testkit.cascade.programs import captured, prepared
from testkit.tensor.rewritten import rewritten
from weft.cascade import folds
from weft.cascade.centres import Decomposition
from weft.cascade.chain import Result
from weft.cascade.formulas import ReductionFormula, formulas
from weft.lab.workloads import cpu as workloads
from weft.lab.workloads import reductions as rows
from weft.tensor.program import Elementwise, TensorProgram
from weft.tensor.scalar import Arg, apply

sympy: Any = importlib.import_module("sympy")  # which PyTorch needs, and has no stubs
GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Case:
    """A chain of the paper's.

    Attributes:
        function, shapes: in plain PyTorch, and of what.
        results, read: what its reductions, in order, and what it reads are called in the paper.
        factors: (G, H) by result, as the paper has them, where one product is enough.
    """

    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    results: tuple[str, ...]
    read: tuple[str, ...]
    factors: dict[str, tuple[str, str]]


def routing(x, w):
    return torch.softmax(x @ w, -1)


def plain_attention(q, k, v):
    return torch.softmax(q @ k.T, -1) @ v


def scaled(a, w):
    return (a * 448 * a.abs().amax(-1, keepdim=True)) @ w


def sum_and_sum(a, w):
    """b, which is a * w, shares the axis of a."""
    return (a * w * a.sum(-1, keepdim=True)).sum(-1)


def product_below_the_greatest(x):
    return (x / x.abs().amax(-1, keepdim=True)).prod(-1)


def product_of_shares(x, w):
    return (torch.softmax(x, -1) * w).prod(-1)


CASES = {
    "attention": Case(
        workloads.attention,
        ((9, 16), (7, 16), (7, 5)),
        ("m", "t", "O"),
        ("P", "V"),
        {"m": ("P/4", "0"), "t": ("exp(P/4)", "exp(-m)"), "O": ("exp(P/4)*V", "exp(-m)/t")},
    ),
    "attention_without_scale": Case(
        plain_attention,
        ((9, 16), (7, 16), (7, 5)),
        ("m", "t", "O"),
        ("P", "V"),
        {"m": ("P", "0"), "t": ("exp(P)", "exp(-m)"), "O": ("exp(P)*V", "exp(-m)/t")},
    ),
    "routing": Case(
        routing,
        ((9, 16), (16, 7)),
        ("m", "t"),
        ("s",),
        {"m": ("s", "0"), "t": ("exp(s)", "exp(-m)")},
    ),
    "scaled_matmul": Case(
        scaled,
        ((9, 16), (16, 7)),
        ("m", "c"),
        ("A", "absA", "W"),
        {"m": ("absA", "0"), "c": ("A*W", "448*m")},
    ),
    "sum_and_sum": Case(sum_and_sum, ((9, 16), (9, 16)), ("s", "t"), ("a", "w"), {"s": ("a", "1"), "t": ("a*w", "s")}),
    "variance": Case(rows.variance, ((9, 16),), ("s", "v"), ("x", "L"), {"s": ("x", "1")}),
    "inertia": Case(
        rows.inertia, ((9, 16), (9, 16, 3)), ("c", "M", "I"), ("m", "r"), {"c": ("m*r", "1"), "M": ("m", "1")}
    ),
    "layernorm_matmul": Case(
        workloads.layernorm_matmul,
        ((9, 16), (16, 7)),
        ("s", "v", "O"),
        ("x", "L", "W"),
        {"s": ("x", "1")},
    ),
    "product_below_the_greatest": Case(
        product_below_the_greatest, ((9, 16),), ("m", "p"), ("x", "absx"), {"m": ("absx", "0"), "p": ("x", "1/m")}
    ),
    "product_of_shares": Case(
        product_of_shares,
        ((9, 16), (9, 16)),
        ("m", "t", "p"),
        ("w", "x"),
        {"m": ("x", "0"), "t": ("exp(x)", "exp(-m)"), "p": ("exp(x)*w", "exp(-m)/t")},
    ),
}
NAMES = tuple(CASES)


@functools.cache
def program(name: str) -> TensorProgram:
    case = EXPANDED[name]
    return prepared(captured(case.function, *(torch.rand(shape) for shape in case.shapes)))


def derivation(case: Case, of: TensorProgram) -> tuple[Decomposition, tuple[ReductionFormula, ...]]:
    """The one chain of `of`, and its formulas with the paper's names."""
    found = folds(of)
    assert found.refused == ()
    (one,) = found.decompositions
    names = dict(zip((link.node for link in one.chain.links), case.results, strict=True))
    read = [o.value for o in one.chain.operands if not isinstance(o, Result)]
    names |= dict(zip(read, case.read, strict=True))
    return one, formulas(one, names)


def written(case: Case, of: TensorProgram) -> str:
    """The derivation as text; the chain's axis is called l."""
    one, found = derivation(case, of)
    return "\n".join(map(str, found)).replace(f" over {one.chain.over} of", " over l of") + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_derivation_is_the_golden_one(name):
    assert written(CASES[name], program(name)) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_names_and_order_of_the_program_do_not_matter(name, seed):
    other = rewritten(program(name), random.Random(seed))
    assert other != program(name)
    assert written(CASES[name], other) == written(CASES[name], program(name))


# As algebra.


def symbol(text: str) -> Any:
    """A printed expression; x' is x_new."""
    text = text.replace("'", "_new")
    names = {
        n: sympy.Symbol(n, positive=True) for n in re.findall(r"[A-Za-z_]\w*", text) if n not in ("exp", "log", "sqrt")
    }
    return sympy.sympify(text, locals=names)


def same(one: Any, other: Any) -> bool:
    return sympy.simplify(one - other) == 0


def at(expr: Any, results: tuple[str, ...], suffix: str) -> Any:
    """`expr` with the results of another time, or of a segment."""
    return expr.subs({symbol(r): symbol(r + suffix) for r in results}, simultaneous=True)


WITH_FACTORS = tuple((name, result) for name, case in CASES.items() for result in case.factors)


def formula(name: str, result: str) -> ReductionFormula:
    (found,) = [f for f in derivation(CASES[name], program(name))[1] if f.result == result]
    return found


@pytest.mark.parametrize(("name", "result"), WITH_FACTORS)
def test_g_and_h_are_the_papers(name, result):
    found, (data, factor) = formula(name, result), CASES[name].factors[result]
    assert found.data is not None
    assert found.result_factor is not None
    assert same(symbol(found.data), symbol(data))
    assert same(symbol(found.result_factor), symbol(factor))


@pytest.mark.parametrize("name", NAMES)
def test_only_those_reductions_are_one_product(name):
    found = derivation(CASES[name], program(name))[1]
    assert {f.result for f in found if f.data is not None} == set(CASES[name].factors)


def parts(text: str, result: str) -> tuple[str, str, str]:
    """The operator, what becomes of the prior result, and what each element of the block adds, of an update."""
    whole = re.fullmatch(
        rf"{result}' = (?:(max)\((.*), max over \S+ of (.*)\)|(.*) [+*] (sum|product) over \S+ of (.*))", text
    )
    assert whole is not None, text
    operator, prior, element, other, added, combined = whole.groups()
    return operator or added, prior or other, element or combined


@pytest.mark.parametrize(("name", "result"), WITH_FACTORS)
def test_the_update_is_equation_16(name, result):
    """d(m) = d(m - 1) * H(d(m - 1)) ** -1 * H(d(m))  +  G(x) * H(d(m)), of the paper's G and H; in a product H once an element."""
    case = CASES[name]
    found, (data, factor) = formula(name, result), map(symbol, case.factors[result])
    operator, prior, element = parts(found.update, result)
    after = at(factor, case.results, "'")
    if operator == "product":
        assert same(symbol(prior), symbol(result) * (after / factor) ** symbol("count"))
        assert same(symbol(element), data * after)
    elif operator == "max":
        assert same(symbol(prior), symbol(result) - factor + after)
        assert same(symbol(element), data + after)
    else:
        assert same(symbol(prior), symbol(result) / factor * after)
        assert same(symbol(element), data * after)


@pytest.mark.parametrize(("name", "result"), WITH_FACTORS)
def test_the_merge_is_equation_11(name, result):
    """Each segment's result, by the H of its own results, times the H of both segments' results together."""
    case = CASES[name]
    found, (_, factor) = formula(name, result), map(symbol, case.factors[result])
    text, (operator, _, _) = found.merge.removeprefix(f"{result}' = "), parts(found.update, result)
    after = at(factor, case.results, "'")
    before = {s: at(factor, case.results, f"_{s}") for s in (1, 2)}
    if operator == "max":
        sides = text.removeprefix("max(").removesuffix(")").split(", ")
        wanted = [symbol(f"{result}_{s}") - before[s] + after for s in (1, 2)]
    elif operator == "product":
        sides = [text]
        wanted = [sympy.prod(symbol(f"{result}_{s}") * (after / before[s]) ** symbol(f"count_{s}") for s in (1, 2))]
    else:
        sides = [text]
        wanted = [sum(symbol(f"{result}_{s}") / before[s] * after for s in (1, 2))]
    assert all(same(symbol(side), want) for side, want in zip(sides, wanted, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_corrects_the_first_and_nothing_is_kept_of_the_last(name):
    found = derivation(CASES[name], program(name))[1]
    assert found[0].correct is None
    assert [f.keep for f in found] == [True] * (len(found) - 1) + [False]


@pytest.mark.parametrize("name", NAMES)
def test_a_correction_is_what_depends_on_earlier_results(name):
    """A correction belongs to each result that is one product with earlier results in it, and to no other."""
    case = CASES[name]
    for found in derivation(case, program(name))[1]:
        factor = case.factors.get(found.result, ("", "1"))[1]
        assert (found.correct is not None) == bool(symbol(factor).free_symbols)


@pytest.mark.parametrize("name", NAMES)
def test_terms_add_up_to_the_element(name):
    """F, as printed, is the sum of the terms' H * G; of an extremum it is the one term's H + G."""
    for found in derivation(CASES[name], program(name))[1]:
        terms = [(symbol(h), symbol(g)) for h, g in found.terms]
        extremum = found.update.startswith(f"{found.result}' = max(")
        assert same(symbol(found.element), sum(h + g if extremum else h * g for h, g in terms))


# Sums of several products: each is moved by the binomial theorem.


EXPANDED = {
    **CASES,
    "entropy": Case(rows.entropy, ((9, 16),), ("m", "t", "e"), ("x",), {}),
}


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("variance", "v"),
        ("inertia", "I"),
        ("layernorm_matmul", "v"),
        ("layernorm_matmul", "O"),
        ("entropy", "e"),
    ],
)
def test_what_is_kept_of_a_sum_of_products_is_the_sum_with_new_results(name, result):
    """Over three elements that have been seen: S[..] are sums over these, and what they add up to is that of F(x, d')."""
    case = EXPANDED[name]
    _, every = derivation(case, program(name))
    (found,) = [f for f in every if f.result == result]
    kept = found.update.removeprefix(f"{result}' = ").removesuffix(" + sum of the block's F(x, d')")
    elements = [{symbol(v): symbol(f"{v}_{i}") for v in case.read if v != "L"} for i in range(3)]

    def over_all(text: str) -> Any:
        return sum(symbol(text).subs(e, simultaneous=True) for e in elements)

    sums = {f"sum{i}": over_all(text) for i, text in enumerate(re.findall(r"S\[(.*?)\]", kept))}
    numbers = iter(sums)
    outside = symbol(re.sub(r"S\[.*?\]", lambda _: next(numbers), kept))
    found_sum = outside.subs({symbol(n): s for n, s in sums.items()}, simultaneous=True)
    wanted = at(over_all(found.element), case.results, "'")
    assert same(found_sum, wanted)


PRODUCT_OR_SUM = (apply("mul", Arg(0), Arg(1)), apply("add", Arg(0), Arg(1)))


def swapped(of: TensorProgram) -> TensorProgram:
    """`of` with the operands of every product and sum of two values the other way round."""

    def node(each: object) -> object:
        if isinstance(each, Elementwise) and each.expr in PRODUCT_OR_SUM:
            return replace(each, args=each.args[::-1])
        return each

    return replace(of, nodes=tuple(map(node, of.nodes)))


def test_the_order_of_operands_changes_no_factor():
    """a * w * s as s * (w * a), whose operands are found in another order."""
    other = swapped(program("sum_and_sum"))
    assert other != program("sum_and_sum")
    one = folds(other).decompositions[0]
    names = {link.node: n for link, n in zip(one.chain.links, ("s", "t"), strict=True)}
    last = formulas(one, names)[-1]
    assert last.data is not None
    assert last.result_factor is not None
    assert same(symbol(last.data), symbol("a*w"))
    assert same(symbol(last.result_factor), symbol("s"))
