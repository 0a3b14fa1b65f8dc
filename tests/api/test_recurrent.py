"""Recurrent layers are calls of the graph, in their place, with kernels around them; other backends see Dynamo as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo import config

import weft

LAYERS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


class Tagger(nn.Module):
    def __init__(self, layer: type[nn.LSTM | nn.GRU | nn.RNN], **more: bool) -> None:
        super().__init__()
        self.layer = layer(8, 16, 2, batch_first=True, **more)
        self.norm = nn.LayerNorm(32 if more.get("bidirectional") else 16)

    def forward(self, x):
        out, _ = self.layer(torch.tanh(x) * 2)
        return torch.softmax(self.norm(out), -1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("compiled", [weft.compile, lambda model: torch.compile(model, backend="weft")])
@pytest.mark.parametrize("layer", LAYERS)
def test_what_is_around_a_recurrent_layer_runs_in_kernels(layer, compiled):
    torch.manual_seed(0)
    model = Tagger(LAYERS[layer], bidirectional=layer == "GRU").eval()
    before = weft.stats().kernels
    fast = compiled(model)
    with torch.no_grad():
        for batch, length in ((2, 5), (3, 9), (1, 1)):
            x = torch.randn(batch, length, 8)
            torch.testing.assert_close(fast(x), model(x))
    assert weft.stats().kernels > before
    assert not config.allow_rnn


def test_the_layer_is_what_is_left():
    model = Tagger(nn.LSTM).eval()
    with torch.no_grad():
        program = weft.optimize(model, (torch.randn(2, 5, 8),))
    assert [left.operation for left in program.fallbacks] == ["aten.lstm"]
    assert program.kernels


def test_other_backends_trace_as_before():
    graphs = list[torch.fx.GraphModule]()

    def other(graph, _):
        graphs.append(graph)
        return graph.forward

    model = Tagger(nn.LSTM).eval()
    with torch.no_grad():
        torch.compile(model, backend=other)(torch.randn(2, 5, 8))
    assert not any("lstm" in str(node.target) for graph in graphs for node in graph.graph.nodes)
