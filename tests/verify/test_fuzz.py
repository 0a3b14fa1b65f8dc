"""Random programs: right ones pass, whatever is made of them, and each planted defect is found and made small."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from click.testing import CliRunner

from testkit.walk import WALK_ALL
from weft.block.program import BlockProgram, Graph, Map, Pointwise, sealed
from weft.cli.main import main
from weft.errors import UnsupportedError
from weft.fuse.rule import Rewrite
from weft.lab.fuzz import programs as fuzz
from weft.lab.fuzz import rules as fuzz_rules
from weft.lab.fuzz.programs import campaign
from weft.lab.fuzz.random_programs import minimised, random_program
from weft.lab.fuzz.record import Outcome
from weft.pipeline import EXTENSION, PRIORITY
from weft.schedule import Schedule
from weft.tensor.program import Elementwise, Extent, TensorProgram
from weft.tensor.scalar import Apply, Arg, Scalar
from weft.tensor.wellformed import well_formed


def _named(tally, what):
    """Returns the counts that begin with `what: `, by the rest of their names."""
    start = f"{what}: "
    return Counter({name.removeprefix(start): n for name, n in tally.counts.items() if name.startswith(start)})


def test_random_programs_pass_and_every_rule_fires():
    tally = campaign(range(60))
    assert not tally.failures, str(tally.failures[0])
    assert tally.seeds == 60
    assert tally.counts["snapshots"] > tally.seeds - _named(tally, "refused").total()
    assert tally.counts["schedules"] > 80
    rules = (*PRIORITY, *EXTENSION)
    fired = set(_named(tally, "rule"))
    assert {rule.name for rule in rules if rule.number is not None} <= fired, (
        "random programs hold what the paper's rules match"
    )
    assert fired <= {rule.name for rule in rules}


def test_compiled_random_programs_keep_the_error_rule():
    tally = campaign(range(59, 67 if WALK_ALL else 63), operations=1, compiled=True)
    assert not tally.failures, str(tally.failures[0])
    assert tally.counts["kernels"] >= tally.seeds // 2


def test_the_seed_says_all():
    texts = {str(random_program(random.Random(7))) for _ in range(3)}
    assert len(texts) == 1
    assert str(random_program(random.Random(8))) not in texts


@pytest.mark.parametrize("seed", range(0, 300, 50))
def test_programs_are_well_formed(seed):
    for own in range(seed, seed + 50):
        program = random_program(random.Random(own))
        well_formed(program)
        assert 2 <= len(program.nodes) <= 20
        assert program.outputs


# Defects: what is changed (module, name), and into what.


def scale_forgotten(op: str, *args: Scalar) -> Scalar:
    """Rule 4 leaves the product as it is: its scale is gone."""
    del op
    return args[0]


def shift_forgotten(op: str, *args: Scalar) -> Scalar:
    """Rule 5 adds nothing to the product of what was shifted."""
    return args[1] if op == "add" else Apply(op, args)


def feed_dropped(graph: Graph, first: Map, second: Map) -> Rewrite:
    """Merged maps lose the last value that they read."""
    rewrite = import_module("weft.fuse.merge_maps").merge_maps(graph, first, second)
    nodes = [
        sealed(replace(n, inputs=n.inputs[:-1])) if isinstance(n, Map) and n.name == first.name else n
        for n in rewrite.graph.nodes
    ]
    return replace(rewrite, graph=replace(rewrite.graph, nodes=tuple(nodes)))


def first_function_forgotten(first: Pointwise, second: Pointwise) -> Pointwise:
    """Rule 9 keeps the second function alone."""
    place = second.args.index(first.name)
    item = next(n for n in first.args)
    return replace(second, args=(*second.args[:place], item, *second.args[place + 1 :]))


def list_of_others_gone(graph: Graph, name: str, reader: Map) -> bool:
    """Merging drops a list although others read it."""
    return True


def padding_left(program: BlockProgram, schedule: Schedule) -> BlockProgram:
    """Nothing is put where blocks are not full."""
    del schedule
    return program


DEFECTS: dict[str, tuple[str, str, Callable[..., Any], int, str]] = {
    "rule 4 forgets the scale": ("weft.fuse.swap_scale_dot", "apply", scale_forgotten, 10, "swap_scale_dot"),
    "rule 5 forgets the shift": ("weft.fuse.swap_shift_dot", "apply", shift_forgotten, 0, "swap_shift_dot"),
    "rule 1 drops a feed": ("weft.fuse.fuse_consecutive_maps", "merge_maps", feed_dropped, 0, "InvalidProgramError"),
    "rule 9 forgets a function": (
        "weft.fuse.fuse_consecutive_elementwise", "_composed", first_function_forgotten, 2, "consecutive_elementwise",
    ),
    "a list is lost": ("weft.fuse.merge_maps", "_only_for", list_of_others_gone, 0, "InvalidProgramError"),
    "edges are not padded": ("weft.schedule.apply", "prepare_operands", padding_left, 0, "padding along"),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(monkeypatch, defect):
    module, name, change, seed, said = DEFECTS[defect]
    monkeypatch.setattr(import_module(module), name, change)
    failure = first_failure(seed)
    assert said in failure.what
    assert len(failure.minimal.nodes) <= 3
    assert str(failure).startswith(f"seed {failure.seed}, {failure.stage}: ")
    assert str(failure.minimal) in str(failure)


def test_each_application_of_a_rule_is_checked_and_none_raises_a_false_alarm():
    tally = fuzz_rules.campaign(900 if WALK_ALL else 40, seed=37)
    assert not tally.failures, str(tally.failures[0])
    assert tally.counts["applications"] == _named(tally, fuzz_rules.APPLIED).total() >= 40
    assert {
        "split_elementwise",
        "schedule",
        "fuse_consecutive_maps",
        "fuse_map_with_reduction",
    } <= set(_named(tally, fuzz_rules.APPLIED))
    assert "applications" in [*tally.table().columns[0].cells]


@pytest.mark.parametrize(("defect", "seed"), [("rule 4 forgets the scale", 86), ("rule 9 forgets a function", 37)])
def test_a_wrong_rule_is_found_at_the_step_that_it_makes(monkeypatch, defect, seed):
    module, name, change, _, said = DEFECTS[defect]
    monkeypatch.setattr(import_module(module), name, change)
    monkeypatch.setattr(fuzz, "minimised", lambda program, fails: program)
    (failure,) = fuzz_rules.campaign(1, seed).failures
    assert failure.stage == "step"
    assert failure.what.startswith(f"{'fuse_' if said.startswith('consecutive') else ''}{said}: output ")


def test_a_wrong_law_is_found(monkeypatch):
    def dropping(program: TensorProgram) -> TensorProgram:
        *others, last = program.nodes
        if isinstance(last, Elementwise) and last.expr != Arg(0) and last.dtype.is_float:
            last = replace(last, expr=Arg(0), args=last.args[:1])
        return replace(program, nodes=(*others, last))

    monkeypatch.setattr(fuzz_rules, "LAWS", {"drops": dropping})
    monkeypatch.setattr(fuzz, "minimised", lambda program, fails: program)
    tally = fuzz_rules.campaign(1, 37)
    assert tally.failures
    assert tally.failures[0].stage == "law"
    assert "drops: the laws on tensor programs changed what is computed" in tally.failures[0].what


def first_failure(seed: int) -> Outcome:
    for own in range(seed, seed + 20):
        tally = campaign([own])
        if tally.failures:
            return tally.failures[0]
    pytest.fail("not found in 20 programs")


def test_wrong_kernels_are_found(monkeypatch):
    compile_region = fuzz.compile_region

    def wrong(*args):
        region = compile_region(*args)
        changed = (replace(k, launch=lambda *t, k=k: [x * 1.001 for x in k.launch(*t)]) for k in region.kernels)
        return replace(region, kernels=tuple(changed))

    monkeypatch.setattr(fuzz, "compile_region", wrong)
    monkeypatch.setattr(fuzz, "minimised", lambda program, fails: program)
    (failure,) = campaign([59], operations=1, compiled=True).failures
    assert failure.stage == "kernel"
    assert "times the bound" in failure.what


def test_what_is_refused_is_counted_not_a_failure(monkeypatch):
    def refuse(program):
        raise UnsupportedError("the contraction t3 has no axis")

    monkeypatch.setattr(fuzz, "lower", refuse)
    tally = campaign(range(2))
    assert not tally.failures
    assert _named(tally, "refused") == {"lower: the contraction .. has no axis": 2}


def test_a_failing_program_becomes_small():
    """Whatever holds a division of two values fails: one is left, and nothing else but the number of elements it may read."""

    def divides(program: TensorProgram) -> bool:
        return any(isinstance(n, Elementwise) and n.expr == Apply("div", (Arg(0), Arg(1))) for n in program.nodes)

    programs = [p for s in range(30) if divides(p := random_program(random.Random(s)))]
    assert len(programs) > 3
    for program in programs:
        small = minimised(program, divides)
        well_formed(small)
        assert divides(small)
        assert [type(n) for n in small.nodes if not isinstance(n, Extent)] == [Elementwise]
        assert len(small.outputs) == 1


def test_the_command_prints_the_table_and_fails_where_a_program_does(monkeypatch):
    good = CliRunner().invoke(main, ["fuzz", "--kind", "programs", "--count", "2", "--seed", "10"])
    assert (good.exit_code, good.exception) == (0, None)
    assert "fuse_consecutive_maps" in good.output
    monkeypatch.setattr(import_module("weft.fuse.swap_scale_dot"), "apply", scale_forgotten)
    seed = first_failure(10).seed
    bad = CliRunner().invoke(main, ["fuzz", "--kind", "programs", "--count", "1", "--seed", str(seed)])
    assert bad.exit_code == 1
    assert f"seed {seed}, snapshot" in bad.stderr
    assert "smallest program that fails so" in bad.stderr


@pytest.mark.parametrize(
    ("kind", "option"), [("rules", "--jobs"), ("programs", "--seconds"), ("functions", "--operations")]
)
def test_an_option_of_another_kind_is_refused(kind, option):
    found = CliRunner().invoke(main, ["fuzz", "--kind", kind, "--count", "1", option, "2"])
    assert found.exit_code == 2
    assert f"does not apply to {kind}" in found.stderr
