"""A share of the campaign, what its checks see, and that the committed page is the tables'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from testkit.opinfo import check as checking
from testkit.opinfo.check import Outcome, check
from testkit.opinfo.database import Case, cases, entries, name_of
from testkit.opinfo.page import PAGE, groups, load, render
from weft.api.backend import compile_graph


def case_of(entry: str, dtype: str, layout: str, number: int) -> Case:
    op = next(op for op in entries() if name_of(op) == entry)
    return next(case for case in cases(op, getattr(torch, dtype), layout) if case.number == number)


SHARE = [
    ("abs", "float32", "contiguous", 0),
    ("add", "bfloat16", "noncontiguous", 3),
    ("addmm", "bfloat16", "contiguous", 0),
    ("amax", "int64", "contiguous", 13),
    ("amin", "float32", "noncontiguous", 8),
    ("cat", "float32", "contiguous", 1),
    ("clamp", "int64", "contiguous", 2),
    ("cumsum", "bfloat16", "contiguous", 0),
    ("div trunc_rounding", "int64", "contiguous", 2),
    ("index_select", "bool", "contiguous", 0),
    ("log_softmax", "bfloat16", "noncontiguous", 1),
    ("masked_fill", "bool", "contiguous", 0),
    ("matmul", "float32", "noncontiguous", 5),
    ("heaviside", "bfloat16", "contiguous", 1),
    ("isin", "float32", "contiguous", 1),
    ("linalg.cross", "float32", "contiguous", 1),
    ("nn.functional.binary_cross_entropy_with_logits", "bfloat16", "contiguous", 3),
    ("nn.functional.channel_shuffle", "float32", "noncontiguous", 1),
    ("nn.functional.dropout", "float32", "contiguous", 2),
    ("nn.functional.huber_loss", "float32", "contiguous", 1),
    ("nn.functional.pixel_shuffle", "float32", "contiguous", 4),
    ("nn.functional.smooth_l1_loss", "bfloat16", "contiguous", 1),
    ("nn.functional.soft_margin_loss", "float32", "contiguous", 1),
    ("rot90", "float32", "noncontiguous", 3),
    ("nn.functional.embedding", "float32", "contiguous", 1),
    ("nn.functional.layer_norm", "float32", "noncontiguous", 1),
    ("nonzero", "float32", "contiguous", 3),
    ("pow", "int64", "contiguous", 1),
    ("sum", "bool", "contiguous", 6),
    ("to", "float32", "compiled", 0),
    ("transpose", "float32", "contiguous", 2),
    ("where", "int64", "noncontiguous", 2),
    ("zero_", "float32", "contiguous", 0),
]
# Each was wrong, or an error of weft's, once.
FOUND = [
    ("abs", "int64", "special", 0),
    ("addcdiv", "float32", "special", 1),
    ("addcmul", "float32", "special", 1),
    ("addcmul", "float32", "symbolic", 2),
    ("exp2", "float32", "special", 0),
    ("addmv", "int64", "contiguous", 1),
    ("mean", "float32", "special", 1),
    ("nn.functional.softsign", "int64", "special", 0),
    ("quantile", "float32", "contiguous", 0),
    ("ravel", "float32", "noncontiguous", 0),
    ("remainder", "float32", "special", 2),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("entry", "dtype", "layout", "number"), [*SHARE, *FOUND])
def test_sample_is_right_or_left_to_pytorch_with_a_reason(entry: str, dtype: str, layout: str, number: int) -> None:
    outcome = check(case_of(entry, dtype, layout, number))
    assert not outcome.bad, outcome
    assert outcome.kind in ("weft", "partly", "pytorch")
    assert outcome.kind == "weft" or outcome.reasons


def planted(change: Callable[[list[torch.Tensor]], Any], monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Judges a plan whose results, and inputs, `change` sees before the user does."""

    def compiled(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        plan = compile_graph(gm, inputs)

        class Changed:
            fallbacks, kernels = plan.fallbacks, plan.kernels

            @staticmethod
            def run(*tensors: torch.Tensor) -> Any:
                return change([*plan.run(*tensors), *tensors])

        return Changed

    monkeypatch.setattr(checking, "compile_graph", compiled)
    return check(case_of("softmax", "float32", "contiguous", 1))


def fails(_: list[torch.Tensor]) -> Any:
    raise RuntimeError("planted")


def changes_its_input(tensors: list[torch.Tensor]) -> Any:
    tensors[1].add_(1)
    return tensors[:1]


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (lambda t: t[:1], "weft", ""),
        (lambda t: [t[0] * 1.0001], "wrong", "bound"),
        (lambda t: [t[0].where(t[0] < t[0].max(), torch.nan)], "wrong", "nan"),
        (lambda t: [t[0].double()], "wrong", "dtype"),
        (lambda t: [t[0].t().contiguous().t()], "wrong", "strides"),
        (lambda t: [t[1].copy_(t[0])], "wrong", "shares memory"),
        (lambda t: [t[0], t[0]], "wrong", "2 tensors"),
        (changes_its_input, "wrong", "an input is changed"),
        (fails, "crash", "planted"),
    ],
)
def test_checks_see_what_is_wrong(
    change: Callable[[list[torch.Tensor]], Any], kind: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = planted(change, monkeypatch)
    assert outcome.kind == kind
    assert reason in "".join(outcome.reasons)


def test_page_is_what_the_tables_and_the_results_say() -> None:
    page, samples = (f"PYTHONPATH=src:tests python -m testkit.opinfo.{name}" for name in ("page", "campaign"))
    said = f"run: {page}; where an operation was added, before that: {samples} --ops NAME --write tests/testkit/opinfo/results.json"
    assert PAGE.read_text(encoding="utf-8") == render(load()), said


def test_operations_are_pytorchs_and_enough() -> None:
    names = [name for group in groups().values() for name in group]
    assert len(names) == len(set(names)) >= 150
    from_others = ("transformers.grouped_mm_fallback",)  # that library's own name for aten._grouped_mm
    unknown = [n for n in names if not hasattr(torch.ops.aten, n.removeprefix("aten.")) and n not in from_others]
    assert unknown == []


def test_results_have_nothing_wrong_and_a_reason_for_what_is_left() -> None:
    for name, found in load()["entries"].items():
        counts = found["counts"]
        assert not counts.get("wrong"), name
        assert not counts.get("crash"), name
        assert found["left to PyTorch"] or not counts.get("pytorch"), name
