"""Concrete schedules in reports: the tables say what the schedule says, and a report says where there is none, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.cost import ConcreteSchedule, chip, concrete_schedule
from weft.cost.chip import OnChip
from weft.cost.concrete.columns import Engine
from weft.draw import Table, configuration, plain
from weft.draw.document import Section
from weft.draw.page import page
from weft.errors import ArgumentError, TargetError
from weft.schedule import kernels


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / 8, -1) @ v


def compiled(target: str) -> weft.Program:
    q, k, v = (torch.randn(64, 4096, 64, dtype=torch.bfloat16) for _ in range(3))
    return weft.optimize(attention, (q, k, v), target=target, effort="none", judge="off")


@pytest.fixture(scope="module")
def program() -> weft.Program:
    return compiled("cuda:90")


@pytest.fixture(scope="module")
def schedule(program: weft.Program) -> ConcreteSchedule:
    (region,) = program.plans[0].regions
    (part,) = kernels(region.kernels[0].block_program)
    return concrete_schedule(part, chip("H200 SXM"), region.sizes)


@pytest.fixture(scope="module")
def tables(schedule: ConcreteSchedule) -> list[Table]:
    """Variables, what fits, columns, what overlaps."""
    return [each for each in configuration(schedule) if isinstance(each, Table)]


def number(cell: str) -> float:
    return float(cell.replace(",", "") or 0)


def column(table: Table, name: str) -> list[str]:
    return [row[table.head.index(name)] for row in table.rows]


def test_variables_add_up_to_what_fits(schedule: ConcreteSchedule, tables: list[Table]) -> None:
    variables, room, *_ = tables
    for row, memory in zip(room.rows, (OnChip.registers, OnChip.shared), strict=True):
        of_it = [v for v in variables.rows if v[variables.head.index("place")] == memory.value]
        for place in (-2, -1):
            assert sum(number(v[place]) for v in of_it) == number(row[1 if place == -2 else 2])
        assert number(row[-1]) == pytest.approx(schedule.fits(memory), abs=0.005)
    whole = 227 * 1024
    assert number(room.rows[1][3]) == whole
    assert number(room.rows[1][-1]) == pytest.approx(
        (whole - number(room.rows[1][1])) / number(room.rows[1][2]), abs=0.005
    )
    said = plain((Section("", configuration(schedule)),))
    assert f"{schedule.groups} warpgroups compute" in said


def test_sizes_name_their_axes(tables: list[Table]) -> None:
    """Of a block of a matrix unit the unit says the size; of the queries each warpgroup has 128 rows."""
    sizes = dict(zip(column(tables[0], "variable"), column(tables[0], "size"), strict=True))
    (queries,) = (axis for axis in sizes["q"].split(" x ") if axis.endswith(" 128"))
    assert sizes["q"].split(" x ") == [queries, sizes["q"].split(" x ")[1]]
    assert queries in sizes["s, a state"]
    layouts = column(tables[0], "layout")
    for size, layout in zip(column(tables[0], "size"), layouts, strict=True):
        if layout in ("right operand", "result of a matmul"):
            assert all(part.isdigit() for part in size.split(" x ")), size


def test_columns_add_up_to_an_iteration(schedule: ConcreteSchedule, tables: list[Table]) -> None:
    (loop,) = (name for name in schedule.loops if name)
    *_, columns, overlap = tables
    own = [row for row in columns.rows if row[0] == loop]
    for unit in (Engine.matrix, Engine.vector, Engine.special, Engine.shared):
        cycles = sum(number(row[columns.head.index(unit.value)]) for row in own)
        assert cycles == pytest.approx(schedule.cycles(loop)[unit], rel=0.01)
    assert sum(number(row[-1]) for row in own) == schedule.moved(loop)
    every, without = overlap.rows
    assert (every[0], every[1], without[1]) == (loop, "all", "without shared memory")
    assert number(every[overlap.head.index("at once")]) == round(schedule.busiest(loop))
    assert number(every[overlap.head.index("cycles in turn")]) == round(sum(schedule.cycles(loop).values()))
    registers = (Engine.matrix, Engine.vector, Engine.special)
    assert number(without[overlap.head.index("TFLOP/s")]) == pytest.approx(
        schedule.flops_per_second(loop, registers) / 1e12, rel=0.01
    )
    assert without[overlap.head.index("warpgroups")] == str(schedule.pipelines(loop, registers))


def test_a_report_has_it_beside_the_closed_form(program: weft.Program, tables: list[Table], tmp_path: Path) -> None:
    titles = [title for title, _ in program.explain().sections]
    (at,) = (i for i, title in enumerate(titles) if title.startswith("concrete schedule of"))
    assert titles[at].endswith("on H200 SXM")
    assert titles[at - 1].startswith("transfers of")
    text = dict(program.explain().sections)[titles[at]]
    assert all(str(table) in text for table in tables)
    written = program.explain().save(tmp_path / "report.html").read_text()
    assert written.count("<table>") == len(tables)


def test_a_chip_that_the_user_names(program: weft.Program) -> None:
    on_cpu = weft.optimize(lambda x: x + 1, (torch.randn(64, 128),), target="cpu", judge="off")
    assert "== transfers of" in str(on_cpu.explain())
    assert "== concrete schedule" not in str(on_cpu.explain())
    text = str(program.explain(chip="A100 SXM"))
    assert "on A100 SXM\n" in text
    assert "warps compute" in text
    assert program.explain(chip("A100 SXM")).sections == program.explain("A100 SXM").sections
    wrong: Any = 90
    with pytest.raises(TargetError, match="no chip 'H900'"):
        program.explain("H900")
    with pytest.raises(ArgumentError, match=r"the chip is .*90"):
        program.explain(wrong)


def test_where_there_is_none_it_says_why(program: weft.Program) -> None:
    """In one line: a chip without units for it, a target without figures, an operator without columns."""

    def why(found: weft.Report) -> str:
        (text,) = (text for title, text in found.sections if title.startswith("concrete schedule"))
        return text

    assert why(compiled("cuda:86").explain()) == "none: weft has no published figures of a chip for cuda:86"
    assert why(program.explain("Xeon Platinum 8480+")) == "none: Xeon Platinum 8480+ has no thread blocks"
    ranked = weft.optimize(
        lambda x: torch.topk(x, 3), (torch.randn(64, 128),), target="cuda:90", effort="none", judge="off"
    )
    assert why(ranked.explain()).startswith("none: ")
    assert "has no columns yet" in why(ranked.explain())


def test_a_table_is_text_in_columns_and_escaped_on_a_page() -> None:
    table = Table("<t>", ("", "long", "n"), (("a", "<b>", "1"), ("", "cc", "1,000")), numbers=1)
    assert str(table).splitlines() == ["<t>:", "     long      n", "  a  <b>       1", "     cc    1,000"]
    text = page((Section("s", (table,)),), "p")
    assert "<b>" not in text
    assert text.count("&lt;b&gt;") == 1
    assert '<th scope="col" class="number">n</th>' in text
    assert '<td class="number">1,000</td>' in text
