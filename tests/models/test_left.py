"""Nothing of the families of models is left to PyTorch but what its libraries run by design: captured only, at one length."""

from __future__ import annotations

import logging

import pytest
import torch

from testkit.capture.collector import Collector
from testkit.models.zoo import MODELS
from testkit.walk import WALK_ALL

FEW = ("mixtral", "gpt2", "whisper")


ELSEWHERE = ("lstm",)
"""Of a recurrent layer the collector gets no graph."""


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function:DeprecationWarning")  # of BLOOM's, while it is traced
@pytest.mark.parametrize("name", [n for n in MODELS if n not in ELSEWHERE] if WALK_ALL else FEW)
def test_nothing_is_left_but_what_a_library_runs_by_design(name: str) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    torch.compiler.reset()
    model, collector = MODELS[name].build("eager").eval(), Collector()
    with torch.no_grad():
        torch.compile(model, backend=collector)(**MODELS[name].inputs(2, 16))
    assert all(graph.program is not None for graph in collector.graphs)
    assert not [f for graph in collector.graphs for f in graph.fallbacks if not f.is_by_design]
