"""Blocks of well-known models, captured: right at several sizes of one graph, and known what is left to PyTorch."""

from __future__ import annotations

import pytest
import torch

from testkit.api.models import MODELS
from testkit.capture.collector import Collector

VIEWS = {"aten.view", "aten.reshape", "aten.flatten", "aten.slice"}
LEFT = {
    "llama": {"aten.cat"},
    "gpt2": set[str](),
    "bert": set[str](),
    "vit": {"aten.conv2d", "aten.cat"},
    "t5": set[str](),
    "experts": {"aten.topk", "aten.scatter"},
    "scan": {"aten.sort"},
}


def cast(values, dtype):
    return [v.to(dtype) if v.is_floating_point() else v for v in values]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"experts"}))  # scatter and topk want eager's own types
def test_one_graph_is_right_at_several_sizes(name, dtype):
    module, inputs = MODELS[name]
    model, collector = module().to(dtype).eval(), Collector()
    reference = module().double().eval()
    reference.load_state_dict(model.state_dict())
    torch.compiler.reset()
    compiled = torch.compile(model, backend=collector, dynamic=True)
    with torch.no_grad():
        for batch, steps in ((5, 6), (7, 9), (6, 11)):
            given = cast(inputs(batch, steps), dtype)
            found, wanted = compiled(*given), reference(*cast(given, torch.float64))
            torch.testing.assert_close(found, wanted, check_dtype=False, rtol=1e-5, atol=1e-5)
    assert len(collector.graphs) == 1
    assert {f.operation for f in collector.only.fallbacks} <= VIEWS | LEFT[name]
