"""A call's own results are compared with eager's before weft's kernels are taken."""

import warnings

import pytest
import torch

import weft
from weft.api import net
from weft.emit import cpp
from weft.errors import LeftToPyTorchWarning
from weft.plan.measure import clock
from weft.plan.measure.first_call import wrong_results
from weft.plan.measure.spare import spare


@pytest.fixture(autouse=True)
def _judged(monkeypatch):
    monkeypatch.setenv("WEFT_JUDGE", "first")


def compared(mine, eager, *arguments, written=()):
    given = spare(arguments, written)
    found, theirs = (each.results or () for each in clock.first_calls((mine, eager), given))
    return wrong_results(found, theirs, eager, given)


def eager(x, y):
    return [torch.softmax(x, -1), x.argmax(-1), y > 0]


X, Y = torch.randn(40, 300), torch.randn(7)


def other_rounding(x, y):
    wide = torch.softmax(x.double(), -1).float()
    return [wide, x.argmax(-1), y > 0]


def changed(place, change):
    def mine(x, y):
        found = eager(x, y)
        found[place] = change(found[place].clone())
        return found

    return mine


def with_nan(t):
    t[3, 3] = torch.nan
    return t


def one_off(t):
    t[3, 3] += 1e-3
    return t


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (eager, None),
        (other_rounding, None),
        (changed(0, one_off), "result 0: error 0.001"),
        (changed(0, with_nan), "result 0: NaN or infinity where"),
        (changed(0, lambda t: t.double()), "result 0 differs from eager's in shape or element type"),
        (changed(1, lambda t: (t + 1) % 300), "result 1: 100.0% of the elements differ"),
        (changed(2, lambda t: ~t), "result 2: 100.0%"),
        (lambda x, y: eager(x, y)[:2], "2 results, where eager gives 3"),
    ],
)
def test_what_no_rounding_explains_is_wrong(mine, said):
    found = compared(mine, eager, X, Y)
    assert (found is None) if said is None else (found or "").startswith(said), found


def test_fp64_decides_who_is_right():
    """Eager in float32 loses what a kernel keeps: the kernel is not wrong."""
    x = torch.full((4, 1000), 12345.678) + torch.randn(4, 1000) * 1e-3

    def raw(x):
        return [(x * x).mean(-1) - x.mean(-1) ** 2]

    def centred(x):
        return [((x.double() - x.double().mean(-1, keepdim=True)) ** 2).mean(-1).float()]

    assert compared(centred, raw, x) is None
    assert "error" in (compared(raw, lambda x: [x.var(-1, correction=0)], x) or "")


@pytest.mark.parametrize("instead", [7.0, torch.inf, torch.nan])
def test_infinities_are_compared_too(instead):
    """Finds what is left of a mask that was dropped, or has the wrong sign; a NaN may come of a state that is corrected."""
    lower = torch.ones(40, 300, dtype=torch.bool).tril()

    def masked(x):
        return [x.masked_fill(~lower, -torch.inf)]

    def wrong(x):
        return [x.masked_fill(~lower, instead)]

    found = compared(wrong, masked, X)
    assert (found is None) if instead != instead else "differ from the infinity" in (found or "")


def test_one_infinity_that_rounding_decides_is_not_wrong():
    def one(value):
        return lambda x: [torch.cat((x.reshape(-1), x.new_full((1,), value)))]

    assert compared(one(1e8), one(torch.inf), X) is None


def test_what_is_written_is_compared_too():
    x = torch.randn(50)

    def add(x):
        x.add_(1)
        return []

    def add_more(x):
        x.add_(1.01)
        return []

    before = x.clone()
    assert compared(add, add, x, written=(0,)) is None
    assert "result 0: error" in (compared(add_more, add, x, written=(0,)) or "")
    assert torch.equal(x, before)


def test_what_fails_in_its_first_call_is_left_to_whoever_times_it():
    def fails(*_):
        raise ValueError("no")

    given = spare((X, Y), ())
    kernels = clock.first_calls((fails, eager), given)
    assert [each.results is None for each in kernels] == [True, False]
    assert isinstance(clock.measure(kernels, given).failure, ValueError)
    with pytest.raises(ValueError, match="no"):
        clock.measure(clock.first_calls((eager, fails), given), given)


@pytest.fixture
def wrong_at_long_rows(monkeypatch):
    """Softmax whose kernels pass the judge at small sizes, and are wrong at long rows."""
    net._said.clear()
    emit = cpp.emit

    def wrong(*args, **kwargs):
        text = emit(*args, **kwargs)
        assert "weft::decay(" in text
        return text.replace("weft::decay(", "weft::decay((K > 9000 ? 0.5f : 1.0f) * ")

    monkeypatch.setattr(cpp, "emit", wrong)
    return lambda x: torch.softmax(x, -1)


def test_what_was_timed_without_a_judge_is_compared_with_one(wrong_at_long_rows, tmp_path):
    x = torch.randn(3, 10000)
    weft.compile(wrong_at_long_rows, measure="auto", cache_dir=tmp_path, judge="off")(x)
    with warnings.catch_warnings(record=True) as heard, weft.options(defects="warn"):
        warnings.simplefilter("always")
        weft.compile(wrong_at_long_rows, measure="auto", cache_dir=tmp_path)(x)
    assert "are wrong: result 0" in str(heard[-1].message)


def test_a_user_gets_eagers_results_and_hears_of_it(wrong_at_long_rows, tmp_path):
    x = torch.randn(3, 10000)
    with warnings.catch_warnings(record=True) as heard, weft.options(defects="warn"):
        warnings.simplefilter("always")
        fast = weft.compile(wrong_at_long_rows, measure="auto", cache_dir=tmp_path)
        for _ in range(2):
            torch.testing.assert_close(fast(x), torch.softmax(x, -1), rtol=0, atol=0)
    (said,) = [w for w in heard if issubclass(w.category, LeftToPyTorchWarning)]
    assert "the results of weft_m_0 are wrong: result 0: error" in str(said.message)
    assert "reproducer" in str(said.message)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_a_graph_that_names_its_types_has_a_third_opinion(kind):
    weight = torch.randn(300, 8).to(kind)

    def plain(x):
        return [(x.to(kind) @ weight).float()]

    x = torch.randn(40, 300).to(kind)
    assert compared(plain, plain, x) is None
    assert compared(lambda x: [(x.double() @ weight.double()).float()], plain, x) is None
    assert "error" in (compared(lambda x: [plain(x)[0] + 1.0], plain, x) or "")
