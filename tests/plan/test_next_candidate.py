"""A candidate that the judge refuses loses to the next one, and not the whole region to PyTorch."""

import warnings

import pytest
import torch

import weft
from testkit.block import paper
from testkit.tensor.rewritten import renamed
from weft.emit import cpp
from weft.errors import LeftToPyTorchWarning, WrongKernelError
from weft.pipeline import WRITTEN
from weft.plan.choose.region import build_region
from weft.plan.choose.select import select
from weft.plan.execute import selections
from weft.plan.judge import judging
from weft.plan.targets.candidates import Example


@pytest.fixture(autouse=True)
def _judged(monkeypatch):
    monkeypatch.setenv("WEFT_JUDGE", "first")


def optimized(fn, *inputs, **options):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        program = weft.optimize(fn, inputs, defects="warn", **options)
    return program, [w for w in heard if issubclass(w.category, LeftToPyTorchWarning)]


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


QKV = tuple(torch.randn(40, 16) for _ in range(3))


def first_wrong(monkeypatch, count):
    """Has the kernels of the first candidates wrong, so many; gives the texts that were printed."""
    emit, texts = cpp.emit, []

    def faulty(*args, **kwargs):
        text = emit(*args, **kwargs)
        if text not in texts:
            texts.append(text)
        if texts.index(text) >= count:
            return text
        assert "= weft::decay(" in text
        return text.replace("= weft::decay(", "= weft::decay(0.5f * ")

    monkeypatch.setattr(cpp, "emit", faulty)
    return texts


@pytest.mark.parametrize("count", [1, 2])
def test_the_next_candidate_takes_the_place_of_a_wrong_one(count, monkeypatch, tmp_path):
    """The last of three keeps every rounding."""
    first_wrong(monkeypatch, count)
    program, heard = optimized(attention, *QKV, cache_dir=tmp_path)
    assert (program.fallbacks, heard) == ((), [])
    (found,) = [each for plan in program.plans for each in plan.regions]
    refused = [each.origin for each in found.considered if "is wrong on hard inputs" in each.reason]
    assert len(refused) == count
    assert found.origin not in refused
    assert (found.origin == WRITTEN.origin) == (count == 2)
    torch.testing.assert_close(program(*QKV), attention(*QKV))
    assert "is wrong on hard inputs" in str(program.explain())


def masked_shares(s, w, v):
    p = torch.exp(s) * w
    return p / p.sum(-1, keepdim=True) @ v


def weighted_mean(s, m, v):
    p = s * m
    return (p / p.sum(-1, keepdim=True)) @ v


def mean_by_sizes(s, m, v):
    p = m * s.abs()
    return (p / p.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("function", [masked_shares, weighted_mean, mean_by_sizes])
@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
@pytest.mark.parametrize("count", [37, 300])
def test_what_a_law_loses_at_some_magnitudes_has_a_kernel_without_it(function, kind, count, tmp_path):
    s, m, v = torch.rand(37, count) + 0.1, (torch.rand(37, count) < 0.6).to(kind), torch.randn(count, 19)
    program, heard = optimized(function, s, m, v, cache_dir=tmp_path)
    assert (len(program.kernels), program.fallbacks, heard) == (1, (), [])
    for scale, by in ((1.0, 1.0), (1e-25, 1e-10), (80.0, 1.0)):
        given = s * scale, (m * by if kind.is_floating_point else m), v * by
        exact = function(*(t.double() if t.is_floating_point() else t for t in given))
        assert weft.judge(program(*given), function(*given), exact).ok


def test_another_process_takes_the_next_candidate_at_once(monkeypatch, tmp_path):
    texts = first_wrong(monkeypatch, 1)
    monkeypatch.setattr(selections, "_remembered", {})  # else nothing is kept in this folder
    first, _ = optimized(attention, *QKV, cache_dir=tmp_path)
    monkeypatch.setattr(selections, "_remembered", {})
    monkeypatch.setattr(selections, "select", None)
    monkeypatch.setattr(judging, "wrong_of", None)
    count = len(texts)
    second, heard = optimized(attention, *QKV, cache_dir=tmp_path)
    assert (second.fallbacks, heard) == ((), [])
    assert [k.key for k in second.kernels] == [k.key for k in first.kernels]
    assert len(texts) == count


def test_where_all_of_a_few_candidates_are_wrong_pytorch_runs_it(monkeypatch, tmp_path):
    first_wrong(monkeypatch, 99)
    program, heard = optimized(attention, *QKV, cache_dir=tmp_path)
    assert program.kernels == ()
    assert "is wrong on hard inputs" in program.fallbacks[0].reason
    assert len(heard) <= 1
    torch.testing.assert_close(program(*QKV), attention(*QKV), rtol=0, atol=0)


def test_a_wrong_candidate_is_raised_where_defects_are(monkeypatch, tmp_path):
    first_wrong(monkeypatch, 1)
    with pytest.raises(WrongKernelError, match="wrong on hard inputs"):
        weft.optimize(attention, QKV, cache_dir=tmp_path, defects="raise")


def test_the_next_candidate_may_be_of_an_equal_region_with_other_names(tmp_path):
    """The first is selected for the first region of its form, the next for the one that is built."""
    program, other = paper.attention(), renamed(paper.attention(), "other_{}".format, lambda space: space)
    sizes = {space.name: 8 for space in program.spaces()}
    examples = [Example(sizes, {n.name: len(n.axes) - 1 for n in each.inputs}, 1) for each in (program, other)]
    wrong = []

    def demand(made):
        if wrong:
            return "right"
        wrong.append(made.origin)
        raise WrongKernelError("the first is wrong")

    def instead(refused):
        return select(other, examples[1], refused=refused)

    with weft.options(cache_dir=tmp_path, defects="warn"):
        made = build_region(select(program, examples[0]), demand=demand, instead=instead)
    assert made.origin not in wrong
    assert made.program == other
