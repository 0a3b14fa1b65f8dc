"""`weft bench --models`: what is called, what is measured of it, and what is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from weft.cli.main import main
from weft.errors import CommandError
from weft.lab.measure import PeerTiming
from weft.lab.whole import measured as measuring
from weft.lab.whole.measured import ModelResult
from weft.lab.whole.memory import most_allocated
from weft.lab.whole.profiled import part_of
from weft.lab.whole.rows import ModelRow, chosen, rows
from weft.lab.whole.tables import complaints, line, tables
from weft.lab.workloads import models


def result(row: str, own: float, peer: float, plain: float = 2.0, **more: object) -> ModelResult:
    times = {n: PeerTiming(ms, ms, 3) for n, ms in (("weft", own), ("Inductor", peer), ("eager", plain))}
    return ModelResult(row, times, **more)  # pyright: ignore[reportArgumentType]


def test_each_row_has_both_attentions_and_types_but_mixtures():
    names = [row.name for row in rows()]
    assert len(names) == len(set(names)) == 7 * 4 - 2 + 3 * 2
    assert {"ResNet-50 2 fp32", "U-Net 2 bf16", "LSTM 4x128 fp32"} <= set(names)
    assert {"BERT-base 8x128 eager bf16", "GPT-2 1x1 after 1023 sdpa fp32"} <= set(names)
    assert not any("Mixtral" in name and "bf16" in name for name in names)


@pytest.mark.parametrize("row", [r for r in rows("cuda", small=True) if r.attention != "eager"], ids=lambda r: r.name)
def test_the_rows_of_a_gpu_can_be_called(row: ModelRow):
    row = replace(row, device="cpu")
    model = row.model()
    with torch.no_grad():
        found = row.caller(model, model)(row.inputs(0))
    assert all(each.dtype == torch.bfloat16 for each in found)
    assert all(each.isfinite().all() for each in found)


def test_a_name_that_no_row_has_is_an_error():
    with pytest.raises(CommandError, match="no row's name contains nothing"):
        chosen(["nothing"])


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(models, "here", lambda: False)
    with pytest.raises(CommandError, match="transformers"):
        chosen([])


def test_a_step_adds_one_token_to_the_cache_and_leaves_its_inputs():
    (row,) = chosen(["Llama 4 layers 1x1 after 1024 (small) eager fp32"], small=True)
    model = row.model()
    given = row.inputs(1)
    (length,) = {each.shape[2] for each in given["keys"]}
    assert length != row.inputs(0)["keys"][0].shape[2]
    call = row.caller(model, model)
    with torch.no_grad():
        logits, keys, values = call(given)
        again = call(given)
    assert logits.shape[:2] == (1, 1)
    assert keys.shape[2] == values.shape[2] == length + 1
    torch.testing.assert_close(keys[:, :, :length], given["keys"][0])
    torch.testing.assert_close([logits, keys, values], again)


def test_parts_of_the_time_by_the_names_of_operations():
    parts = {part_of(n) for n in ("aten::addmm", "aten::_scaled_dot_product_flash_attention_for_cpu")}
    assert parts == {"library"}
    assert part_of("weft: f") == "kernels"
    assert part_of("aten::cat") == "other"
    kernels = "nvjet_sm90_tst_192x128", "void cutlass::Kernel2<x>", "sm80_xmma_gemm_f32f32", "fmha_cutlassF"
    assert {part_of(n, "cuda") for n in kernels} == {"library"}
    assert part_of("void at::native::elementwise_kernel<128, 4>", "cuda") == "other"
    assert result("a", 1, 1, share={"library": 0.5, "kernels": 0.3, "other": 0.2}).covered == pytest.approx(0.6)
    assert math.isnan(ModelResult("a").covered)


def test_tables_show_ratios_means_and_what_failed(capsys):
    share = {"library": 0.5, "kernels": 0.4, "other": 0.1}
    found = [
        result("a sdpa fp32", 1.0, 2.0, share=share, others={"aten::cat": 0.001}),
        result("b sdpa fp32", 2.0, 1.0, share=share, wrong="far off"),
        ModelResult("c fp32", failed="it broke"),
    ]
    assert line(found[0]) == "a sdpa fp32: 1.00 ms beside Inductor's 2.00 (0.50) and eager's 2.00 (0.50)"
    assert line(found[2]) == "c fp32: it broke"
    assert complaints(found) == ["c fp32: it broke", "b sdpa fp32: far off"]
    each, parts, first, means = tables(found)
    assert each.row_count == parts.row_count == first.row_count == 3
    assert [list(column.cells) for column in means.columns][1] == ["1.00", "0.80 (least)"]


def test_a_call_that_was_not_timed_has_no_ratio():
    one = ModelResult("a bf16", {"weft": PeerTiming(1.0, 1.0, 3)})
    assert math.isnan(one.ratio("Inductor"))
    assert "nan" in line(one)


def test_inductors_better_mode_counts():
    times = {name: PeerTiming(ms, ms, 3) for name, ms in (("weft", 2.0), ("Inductor", 4.0), ("Inductor, tuned", 2.5))}
    both = ModelResult("a sdpa bf16", times)
    assert both.best_ratio == 0.8
    assert "tuned 2.50 (0.80)" in line(both)
    without = ModelResult("a sdpa bf16", {name: times[name] for name in ("weft", "Inductor")})
    assert without.best_ratio == 0.5
    assert "tuned" not in line(without)


def test_memory_is_the_most_at_once():
    x = torch.ones(1000)
    assert (
        2 * 4000 <= most_allocated(lambda: ((x + 1) + 1) + 1) < 2 * 4000 + 100
    )  # PyTorch makes tensors of the numbers
    assert most_allocated(lambda: None) == 0


def test_what_is_written_is_read_back():
    one = result("a fp32", 1.0, 2.0, share={"library": 1.0}, others={"aten::cat": 0.1})
    assert ModelResult.read(json.loads(json.dumps(measuring.asdict(one)))) == one


def test_a_process_that_fails_gives_its_last_line(monkeypatch):
    (row,) = chosen(["BERT-base 1x128 sdpa fp32"])
    monkeypatch.setattr(measuring, "_PROCESS", "raise SystemExit('it broke')")
    assert measuring.measured(row, 1) == ModelResult(row.name, failed="it broke")


def test_the_command_measures_small_models(tmp_path):
    out = tmp_path / "models.json"
    arguments = ["bench", "--models", "--quick", "--device", "cpu", "--only", "BERT-base 1x128 (small) sdpa fp32"]
    arguments += "--peers", "all"
    done = CliRunner().invoke(main, [*arguments, "--json", str(out)])
    assert not done.exit_code, done.output
    (one,) = [ModelResult.read(each) for each in json.loads(out.read_text())["results"]]
    assert one.times.keys() == {"weft", "Inductor", "Inductor, tuned", "eager"}
    assert sum(one.share.values()) == pytest.approx(1)
    assert not one.wrong
    assert one.peaks.keys() == one.times.keys() == one.first.keys()
    assert one.phases
    assert not one.left
    assert one.fallbacks == 0
    assert min(one.peaks.values()) >= 16 * 64 * 4, "the result at the least"
    again = CliRunner().invoke(main, [*arguments, "--json", str(out), "--resume"])
    assert not again.exit_code, again.output
    assert [ModelResult.read(each) for each in json.loads(out.read_text())["results"]] == [one]
