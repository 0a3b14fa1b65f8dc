"""Calls that draw random numbers run in the order in which they are written, whatever runs between them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import weft
from testkit.block import programs
from testkit.block.paper import each
from testkit.plan.covers import Invented, compared, random_graph
from testkit.plan.schemes import any_scheme
from testkit.walk import share
from weft.errors import SchemeError
from weft.plan.choose.cuts import Cuts
from weft.plan.partition.partition import Task, TorchCall, in_order, linear, partition
from weft.plan.partition.schemes import Scheme, as_launched, cut_by, encode, operators, scheme_of
from weft.tensor.axes import Axis, Space
from weft.tensor.program import Opaque, TensorProgram, Use
from weft.tensor.scalar import Arg, apply

M = Axis("m", Space("M"))


def call(name: str, *reads: str, always: bool = True) -> Opaque:
    return Opaque(name, (M,), programs.F32, "aten.rand_like", name, reads, "it draws random numbers", always=always)


def in_turn(program: TensorProgram, stages: Sequence[Task]) -> bool:
    """Tell whether each stage comes after what it reads, and the calls in the order of the program."""
    there = {n.name for n in program.inputs}
    for stage in stages:
        if not there.issuperset(stage.uses):
            return False
        there.update(stage.results)
    drawn = [n.call for n in program.nodes if isinstance(n, Opaque) and n.always]
    return [s.name for s in stages if isinstance(s, TorchCall) and s.name in drawn] == list(dict.fromkeys(drawn))


def test_a_call_waits_for_all_results_of_the_one_before_it() -> None:
    first = [Opaque(name, (M,), programs.F32, "aten.dropout", "a", ("x",), "", always=True) for name in ("a0", "a1")]
    program = TensorProgram(
        (programs.tensor("x", M),), (*first, call("b", "x"), call("s", "x", always=False), call("c", "a1")), ("b", "c")
    )
    assert program.turns == {"b": ("a0", "a1"), "c": ("b",)}


@pytest.mark.parametrize("seed", range(60))
def test_every_order_of_stages_keeps_the_turns(seed: int) -> None:
    rng = random.Random(seed)
    program = random_graph(rng, calls=4, turns=True)
    stages = list(partition(program))
    assert in_turn(program, stages)
    assert in_turn(program, linear(stages))
    rng.shuffle(stages)
    assert in_turn(program, in_order(stages))
    assert in_turn(program, as_launched(program, stages))
    assert in_turn(program, Cuts(program, Invented(rng)).stages())


@pytest.mark.parametrize("seed", range(20))
def test_the_cover_is_the_cheapest_of_those_that_keep_the_turns(seed: int) -> None:
    rng = random.Random(seed)
    assert compared(random_graph(rng, 8, calls=3, turns=True), Invented(rng)).is_least


def test_schemes_keep_the_turns_or_are_refused() -> None:
    rng = random.Random(2)
    cuts = refused = 0
    for _ in range(40):
        program = random_graph(rng, calls=3, turns=True)
        for _ in range(10):
            try:
                cut = cut_by(any_scheme(rng, len(operators(program))), program)
            except SchemeError as error:
                refused += "turn" in str(error)
                continue
            cuts += 1
            assert in_turn(program, cut)
            assert cut_by(Scheme.read(scheme_of(program, cut).text(len(operators(program)))), program) == cut
    assert cuts > 40
    assert refused


def test_kernels_that_cannot_wait_for_a_turn_are_an_error_that_says_so() -> None:
    """The sum would have to run before the first call, and after the second one."""
    w = programs.tensor("w", M)
    before = each("before", (M,), apply("neg", Arg(0)), Use("w", (M,)))
    behind = each("behind", (M,), apply("exp", Arg(0)), Use("b", (M,)))
    program = TensorProgram(
        (programs.tensor("x", M), w), (before, call("a", "before"), call("b", "x"), behind), ("a", "behind")
    )
    own = [operator[0].name for operator in operators(program)]
    with pytest.raises(SchemeError, match=r"#\d \(b\) has its turn after #\d \(a\)"):
        cut_by(encode([{"before": 0, "behind": 0, "a": 1, "b": 2}[name] for name in own]), program)


def text(rng: random.Random) -> str:
    """A function of three matrices that draws random numbers, multiplies, and writes into its first argument."""
    values = ["x", "y", "z"]
    lines = list[str]()
    for place in range(rng.randint(4, 11)):
        a, b = rng.choice(values[-5:]), rng.choice(values[-5:])
        form = rng.choice(
            (
                "{a} @ {b} / 8",
                "({a} @ {b} / 8).relu()",
                "{a} + {b}",
                "torch.softmax({a}, -1)",
                "torch.rand_like({a})",
                "torch.randn(8, 8) * {a}",
                "torch.dropout({a}, 0.4, True)",
                "torch.rand(8, 1) * {b}",
                "torch.randint(0, 5, (8, 8)) + {b}",
                "x.copy_({a} * 0.5)",
                "y[2:4].normal_().sum() + {a}",
            )
        )
        lines.append(f"    v{place} = {form.format(a=a, b=b)}")
        values.append(f"v{place}")
    outputs = [*rng.sample(values[3:], 2), values[-1]]
    return "\n".join(["def f(x, y, z):", *lines, f"    return {', '.join(outputs)}"])


def results(function: Callable[..., Any], seed: int) -> tuple[torch.Tensor, ...]:
    """Return what `function` gives and leaves in its arguments, from a seed; and what is drawn next."""
    generator = torch.Generator().manual_seed(seed)
    given = [torch.randn(8, 8, generator=generator) for _ in range(3)]
    torch.manual_seed(seed)
    return (*function(*given), *given, torch.rand(3))


@pytest.mark.parametrize("seed", share(range(96), 16))
def test_what_is_drawn_is_what_eager_draws(seed: int) -> None:
    said = text(random.Random(seed))
    scope = {"torch": torch}
    exec(said, scope)
    function: Any = scope["f"]
    program = weft.optimize(function, tuple(torch.randn(8, 8) for _ in range(3)))
    for again in range(2):
        found, wanted = results(program, again), results(function, again)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, msg=lambda m: f"{said}\n{m}")
