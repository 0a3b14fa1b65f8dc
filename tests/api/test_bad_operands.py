"""Operands that do not go together: eager's error, at the user's line."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import weft
from weft.errors import (
    ShapeError,
    UnsupportedError,
)

HERE = Path(__file__).name


def refused(function, *given):
    with pytest.raises((RuntimeError, IndexError)) as caught:
        function(*given)
    return caught.value


WRONG_TYPES = {
    "mm": lambda x: x @ x.bfloat16(),
    "mm of fp32 and fp64": lambda x: torch.mm(x, x.double()),
    "bmm": lambda x: torch.bmm(x[None], x[None].half()),
    "linear": lambda x: F.linear(x, x.long()),
    "addmm": lambda x: torch.addmm(x[0].bfloat16(), x, x),
    "dot": lambda x: torch.dot(x[0], x[0].double()),
    "a matmul of masks": lambda x: (x > 0) @ (x > 1),
    "a float as an index": lambda x: x[x],
    "gather": lambda x: torch.gather(x, 0, x),
    "another device": lambda x: x + torch.empty(4, 4, device="meta"),
    "a difference of masks": lambda x: (x > 0) - (x > 1),
    "bits of floats": lambda x: x & 1,
    "a mean of integers": lambda x: x.long().mean(),
    "0 as a divisor": lambda x: x.long() // 0,
    "a tensor with 0 as a divisor": lambda x: x.long() % (x.long() * 0),
    "a negative power": lambda x: x.long() ** -1,
    "a number that the type lacks": lambda x: x.to(torch.int8).clamp(max=300),
    "a float that scales integers": lambda x: torch.add(x.long(), x.long(), alpha=2.5),
    "lerp": lambda x: torch.lerp(x, x.double(), 0.5),
    "a condition that is no mask": lambda x: torch.where(x, x, x),
}


@pytest.mark.parametrize("what", WRONG_TYPES)
def test_types_and_devices_that_cannot_work_say_what_eager_says(what):
    function, x = WRONG_TYPES[what], torch.randn(4, 4)
    wanted = refused(function, x)
    torch.compiler.reset()
    with torch.no_grad():
        found = refused(weft.compile(function), x)
        early = refused(lambda x: weft.optimize(function, (x,))(x), x)
    assert str(wanted).splitlines()[0] in str(found)
    assert str(wanted).splitlines()[0] in str(early)
    if isinstance(found, ShapeError):
        assert HERE in str(found)
    else:  # the call itself raised, from the user's line
        assert type(found) is type(wanted)


def mixed_product(x, y):
    hot = torch.relu(x)
    return hot @ y


def mixed_bias(x, y):
    hot = torch.relu(x)
    return F.linear(x, hot, y[0])


def mixed_norm(x, y):
    hot = torch.relu(x)
    return F.layer_norm(hot, (4,), hot[0], y[0])


def mixed_sum(x, y):
    hot = torch.relu(x)
    return torch.addmm(y, hot, x)


def sum_on_devices(x, y):
    hot = torch.relu(x)
    return torch.exp(hot) + y


NO_PAIRS = {
    "product": (mixed_product, torch.bfloat16),
    "product with integers": (mixed_product, torch.int64),
    "bias": (mixed_bias, torch.bfloat16),
    "norm": (mixed_norm, torch.float64),
    "norm with integers": (mixed_norm, torch.int64),
    "sum": (mixed_sum, torch.float64),
    "devices": (sum_on_devices, torch.device("meta")),
}


WAYS = [(what, how) for what in NO_PAIRS for how in ("optimize", "compile", "untimed")]
# Other devices PyTorch's tracing refuses before weft sees them.
BACKEND = [(what, "backend") for what in NO_PAIRS if what != "devices"]


@pytest.mark.parametrize(("what", "how"), [*WAYS, *BACKEND])
def test_operands_that_do_not_go_together_name_the_line(what, how, capfd):
    function, kind = NO_PAIRS[what]
    given = torch.randn(4, 4), torch.ones(4, 4).to(kind)
    wanted = refused(function, *given)
    call = {
        "optimize": lambda *xs: weft.optimize(function, xs)(*xs),
        "compile": weft.compile(function),
        "backend": torch.compile(function, backend="weft"),
        "untimed": weft.compile(function, measure="never"),
    }[how]
    torch.compiler.reset()
    with torch.no_grad(), pytest.raises(ShapeError) as caught:
        call(*given)
    assert caught.value.what == str(wanted)
    line = inspect.getsource(function).splitlines()[-1].strip()
    assert HERE in str(caught.value.where)
    assert str(caught.value.where).endswith(f": {line}")
    assert "element types and devices agree" in caught.value.todo
    assert "Traceback" not in capfd.readouterr().err


def pick(x, i):
    return torch.gather(torch.relu(x), 0, i) @ x


def divide(x, i):
    return torch.relu(x) + 6 // (9 - i)


@pytest.mark.parametrize("pick", [pick, divide])
def test_a_number_that_eager_refuses_is_not_an_error_of_types(pick):
    x, i = torch.randn(4, 4), torch.full((4, 4), 9)
    wanted = refused(pick, x, i)
    with torch.no_grad():
        found = refused(weft.compile(pick), x, i)
    assert type(found) is type(wanted) is RuntimeError
    assert str(found) == str(wanted)


def test_ones_that_are_no_arguments_leave_the_error_as_it_is():
    def looked_up(ids, table, y):
        return torch.relu(F.embedding(ids, table)) @ y

    given = torch.zeros(4, dtype=torch.int64), torch.randn(1, 4), torch.randn(4, 4).bfloat16()
    wanted = refused(looked_up, *given)
    with torch.no_grad():
        found = refused(weft.compile(looked_up), *given)
    assert type(found) is type(wanted) is RuntimeError
    assert str(found) == str(wanted)


def test_what_writes_for_a_second_time_is_not_run_again():
    def counted(x, y):
        x.add_(1)
        return x @ y

    x = torch.zeros(4, 4)
    with torch.no_grad(), pytest.raises(ShapeError):
        weft.compile(counted)(x, torch.ones(4, 4).half())
    assert torch.equal(x, torch.ones(4, 4))


def test_what_pytorch_cannot_trace_but_runs_names_the_line():
    x, y = torch.randn(4, 4), torch.empty(4, 4, device="meta")
    with pytest.raises(UnsupportedError, match="found at least two devices, cpu and meta") as caught:
        weft.optimize(mixed_product, (x, y))
    assert "return hot @ y" in str(caught.value.where)
    assert "Hint" not in str(caught.value)
    with torch.no_grad():
        assert weft.compile(mixed_product)(x, y).shape == mixed_product(x, y).shape


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_what_an_operation_refuses_in_tracing_is_said_in_its_own_words():
    """Eager takes bytes as a condition, with a warning; PyTorch's tracing does not."""

    def chosen(condition, x):
        return torch.where(condition, x, 0.0)

    given = torch.tensor([0, 1, 1], dtype=torch.uint8), torch.randn(3)
    with pytest.raises(UnsupportedError, match=r"cannot trace this: expected predicate to be bool, got torch\.uint8\n"):
        weft.optimize(chosen, given)
    torch.testing.assert_close(weft.compile(chosen)(*given), chosen(*given))
