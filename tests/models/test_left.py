"""What is left to PyTorch of each family of models, by name: captured only, at one length."""

from __future__ import annotations

import logging

import pytest
import torch

from testkit.capture.collector import Collector
from testkit.models.zoo import MODELS
from testkit.walk import WALK_ALL

_EXPERTS = {"transformers.grouped_mm_fallback", "aten.sort"}
LEFT: dict[str, set[str]] = {
    "mixtral": _EXPERTS,
    "qwen2_moe": _EXPERTS,
    "vit": {"aten.conv2d", "aten.cat"},
    "clip": {"aten.conv2d", "aten.cat"},
    "gpt_neox": {"aten.cat"},
    "whisper": {"aten.conv1d"},
    "swin": {"aten.conv2d", "aten.pad", "aten.roll"},
}
"""Of other families nothing is."""
FEW = ("mixtral", "gpt2", "whisper")


@pytest.mark.parametrize("name", MODELS if WALK_ALL else FEW)
def test_no_more_is_left_than_is_known(name: str) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    torch.compiler.reset()
    model, collector = MODELS[name].build("eager").eval(), Collector()
    with torch.no_grad():
        torch.compile(model, backend=collector)(**MODELS[name].inputs(2, 16))
    left = {fallback.operation for graph in collector.graphs for fallback in graph.fallbacks}
    assert all(graph.program is not None for graph in collector.graphs)
    assert left <= LEFT.get(name, set())
