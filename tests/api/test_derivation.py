"""Derivations are shown step by step and end in what runs; explain says what was weighed and what was left out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

import weft
from testkit.afresh import chosen_afresh
from weft.api.left_out import left_out
from weft.api.report import report
from weft.cli.main import main
from weft.plan import CompiledRegion
from weft.plan.choose import select
from weft.plan.targets.compiled import Considered

GOLDEN = Path(__file__).parents[1] / "fuse" / "golden"


def loops(listing: str) -> list[str]:
    """The loops of a listing, whatever their variables are called: how deep each is, and whether it is parallel."""
    return re.findall(r"^( *(?:forall|for)) \w+ in range", listing, re.MULTILINE)


def shown(name: str, tmp_path: Path):
    out = tmp_path / "derivation.json"
    result = CliRunner().invoke(main, ["demo", "--derivation", name, "--json", str(out)])
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads(out.read_text())["derivation"]


def programs(output: str) -> list[str]:
    """The programs that were printed, without their indentation."""
    lines = [line[8:] if line.startswith(" " * 8) else "" for line in output.splitlines()]
    return [part for part in re.split(r"\n\n+", "\n".join(lines).strip("\n")) if "in range" in part]


def compiled(fn, *shapes) -> CompiledRegion:
    program = weft.optimize(fn, tuple(torch.randn(s) for s in shapes))
    (region,) = program.plans[0].regions
    return region


def attention(q, k, v):
    return torch.softmax(q @ k.T, -1) @ v


def layernorm(x, w):
    return F.layer_norm(x, (x.shape[-1],)) @ w


def centred(x, w):
    return (x - x.mean(-1, keepdim=True)) @ w


def linear(x, w):
    return torch.relu(x @ w)


def test_attention_is_derived_in_numbered_steps_down_to_the_kernel_that_runs(tmp_path):
    output, found = shown("attention", tmp_path)
    steps = re.findall(r"^ +(\d+)\. rule (\d)  (\w+) +in (.+)$", output, re.MULTILINE)
    assert [int(number) for number, *_ in steps] == list(range(1, len(found["steps"]) + 1))
    assert [(number, name) for _, number, name, _ in steps if name in ("swap_scale_dot", "extend_map")] == [
        ("4", "swap_scale_dot"), ("6", "extend_map")
    ]  # fmt: skip
    assert {place for *_, place in steps} == {"the top level", "n", "n > m", "n > d"}
    # The program before fusion, after each step, and made safe.
    listings = programs(output)
    assert len(listings) == len(steps) + 3 - found["same_program"]  # what runs is shown where it is another
    listings = listings[: len(steps) + 2]
    assert loops(listings[-2]) == loops((GOLDEN / "attention_17.txt").read_text())
    assert ["row_max" in text for text in listings] == [False] * (len(listings) - 1) + [True]
    # The law took the maximum away.
    assert output.index("= max over") < output.index("law cancel_shifts") < output.index("as a block program")
    assert output.count("= max over") == 1
    assert (found["kernels"], found["right"], found["exponentials"], found["cancelling"]) == (1, True, 1, [])
    assert found["same_program"] == ("made from: the program above" in output)
    assert 0 < found["error"] <= found["allowed"]
    assert f"snapshot after {found['snapshots'][0]} steps" in output


def test_layernorm_reaches_the_papers_program_which_is_not_what_runs(tmp_path):
    output, found = shown("layernorm", tmp_path)
    listings = programs(output)
    assert loops(listings[len(found["steps"])]) == loops((GOLDEN / "layernorm_22.txt").read_text())
    assert found["cancelling"] == ["expand_sums", "swap_shift_dot"]
    assert not found["same_program"]
    # Statistics and product about the running mean, or after a loop for the mean: what is predicted to be faster here.
    assert loops(listings[-1]).count("    for") <= 2
    assert found["right"]
    # With a mean of 1e4, raw moments have no correct digit left; the kernels are as good as eager.
    assert found["far"]["derived"] is None or found["far"]["derived"] > 100 * found["far"]["eager"]
    assert found["far"]["kernels"] <= 2 * found["far"]["eager"]
    assert "ill-conditioned. With a mean of 10000" in output


def test_rmsnorm_reaches_the_papers_program(tmp_path):
    output, found = shown("rmsnorm", tmp_path)
    assert loops(programs(output)[len(found["steps"])]) == loops((GOLDEN / "rmsnorm_26.txt").read_text())
    assert found["right"]
    assert found["kernels"] <= 2
    assert "1 exponential stays as written" in output


def test_a_derivation_that_does_not_hold_fails(monkeypatch):
    def without_scale(fn, inputs):
        return weft.optimize(attention, inputs)

    monkeypatch.setattr("weft.lab.derivation.optimize", without_scale)
    result = CliRunner().invoke(main, ["demo", "--derivation", "attention"])
    assert result.exit_code == 1
    assert "NOT right" in result.stdout
    assert "attention is not right" in result.stderr


@pytest.mark.parametrize(
    ("fn", "shapes", "says"),
    [
        (
            layernorm,
            ((6, 8), (8, 5)),
            ("law expand_sums would apply", "rule 5 (swap_shift_dot) would match in m after"),
        ),
        (centred, ((6, 8), (8, 5)), ("rule 5 (swap_shift_dot) would match in m: Swap the first row shift",)),
        (linear, ((6, 8), (8, 5)), ()),
        (attention, ((256, 64),) * 3, ()),
    ],
)
def test_what_cancels_is_left_out_with_its_reason(fn, shapes, says):
    # Of the graph as written: in the region's own program differences are taken about an element of the row.
    (plan,) = weft.optimize(fn, tuple(torch.randn(shape) for shape in shapes)).plans
    assert plan.program is not None
    lines = left_out(plan.program)
    assert len(lines) == len(says) + bool(says)
    assert all(line.startswith(text) for line, text in zip(lines, says, strict=False))
    assert not says or "inaccurate far from zero" in lines[-1]


def test_explain_lists_every_candidate_and_what_the_chosen_one_began_with():
    with chosen_afresh() as patch:
        patch.setattr(select, "_CLOSE", 1.0)
        program = weft.optimize(attention, [torch.randn(256, 64) for _ in "qkv"], threads=1)
    (region,) = program.plans[0].regions
    known = dict(report(program.plans).sections)
    lines = known["candidates"].splitlines()
    assert [line.partition(":")[0] for line in lines] == [c.origin for c in region.considered]
    (chosen,) = [line for line in lines if line.endswith("chosen: the lowest predicted time")]
    assert chosen.startswith(region.origin)
    shares = [float(m[1]) for line in lines if (m := re.search(r"; ([\d.e+]+) times the chosen one's", line))]
    assert len(shares) >= 2
    assert min(shares) >= 1
    assert region.origin != region.considered[0].origin  # one that began without the shift
    assert "max over" not in known["tensor program after the law of shifts"]
    assert "row_max" not in known["block program before fusion"]  # what the trace starts from
    assert "row_max" in known["block program after fusion"]
    assert known["left out"].startswith("nothing")
    plan = program.plans[0]
    refused = replace(region, considered=(*region.considered, Considered("another", None, "no room for it")))
    assert dict(report([replace(plan, regions=(refused,))]).sections)["candidates"].endswith("another: no room for it")


def test_explain_shows_no_law_that_was_not_used():
    titles = [title for title, _ in weft.optimize(linear, (torch.randn(6, 8), torch.randn(8, 5))).explain().sections]
    assert "candidates" in titles
    assert "tensor program after the law of shifts" not in titles
