"""What is sent to the process that compiles, and back: a graph that is captured alike there, and a plan that runs alike here."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from testkit.api.models import MODELS
from weft.api.backend import compile_graph
from weft.api.background import server
from weft.api.background.ambience import Ambience
from weft.api.background.graphs import forms_of, packed_graph, tensors_of, unpacked_graph
from weft.api.background.messages import GraphRequest, Reply
from weft.api.background.plans import packed_plan, unpacked_plan
from weft.api.background.server import Server
from weft.capture import capture
from weft.errors import UnsupportedError
from weft.options import current, options

Graph = tuple[torch.fx.GraphModule, Sequence[Any]]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))


def graphs(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> list[Graph]:
    """The graphs that Dynamo finds in a call, with their arguments."""
    found: list[Graph] = []

    def backend(gm: torch.fx.GraphModule, arguments: Sequence[Any]) -> Callable[..., Any]:
        found.append((gm, arguments))
        return gm.forward

    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    return found


def constants(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, 2.0, 4.0]) + torch.tensor(3)


def cast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.softmax(x @ x.mT, -1)


def with_number(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax(x * scale, -1)


CASES = {
    "attention": (lambda q, k: torch.softmax(q @ k.mT, -1) @ k, (torch.randn(5, 3), torch.randn(7, 3))),
    "constants": (constants, (torch.randn(4, 3),)),
    "autocast": (cast, (torch.randn(4, 3),)),
    "number": (with_number, (torch.randn(4, 3), 0.5)),
    "views": (lambda x: x.view(x.shape[0], -1, 3).transpose(0, 1) + 1, (torch.randn(4, 6),)),
    "writes": (lambda x: x.add_(1).mul(2), (torch.randn(4, 3),)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CASES)
def test_a_graph_is_captured_there_as_it_is_here(name: str, dynamic: bool | None) -> None:
    function, inputs = CASES[name]
    ((gm, arguments),) = graphs(function, *inputs, dynamic=dynamic)
    received = unpacked_graph(packed_graph(gm))
    there = tensors_of(pickle.loads(pickle.dumps(forms_of(arguments))))
    with torch.no_grad():
        own, its = capture(gm, arguments), capture(received.gm, there)
    assert own.program is not None
    assert its.program is not None
    assert repr(its.program) == repr(own.program)
    assert its.results == own.results
    assert its.writes == own.writes
    lines = [[getattr(n, "location", None) for n in each.nodes] for each in (own.program, its.program)]
    assert lines[0] == lines[1]
    assert all(condition.value(arguments) for condition in received.conditions())


def test_what_weft_relies_on_beyond_pytorchs_guards_is_said() -> None:
    """Sizes that PyTorch would take to be other ones are told apart."""
    ((gm, _),) = graphs(lambda x: x * 2, torch.randn(4, 6), dynamic=True)
    received = unpacked_graph(packed_graph(gm))
    sizes = [n.meta["example_value"] for n in received.gm.graph.nodes if n.op == "placeholder"]
    assert received.conditions() == ()
    assert sizes[0] != 7
    assert sizes[1] % 3 == 0
    found = received.conditions()
    assert [all(c.value((m, n)) for c in found) for m, n in ((4, 6), (7, 6), (4, 7), (5, 9))] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_models_graph_is_captured_there_as_it_is_here(name: str) -> None:
    module, inputs = MODELS[name]
    ((gm, arguments),) = graphs(module().eval(), *inputs(5, 6), dynamic=True)
    received = unpacked_graph(packed_graph(gm))
    with torch.no_grad():
        own, its = capture(gm, arguments), capture(received.gm, tensors_of(forms_of(arguments)))
    assert own.program is not None
    assert repr(its.program) == repr(own.program)


@pytest.mark.parametrize("name", CASES)
def test_a_plan_runs_here_as_it_was_made_there(name: str) -> None:
    function, inputs = CASES[name]
    ((gm, arguments),) = graphs(function, *inputs)
    received = unpacked_graph(packed_graph(gm))
    with torch.no_grad():
        made = compile_graph(received.gm, tensors_of(forms_of(arguments)))
        assert made.kernels
        plan = unpacked_plan(packed_plan(made, received.gm, whole=received.whole), gm, gm.forward)
        copies = [[a.clone() if isinstance(a, torch.Tensor) else a for a in arguments] for _ in range(2)]
        found, same, wanted = plan.run(*copies[0]), made.run(*copies[1]), gm.forward(*arguments)
    assert [k.name for k in plan.kernels] == [k.name for k in made.kernels]
    for one, twin, other in zip((*found, *copies[0]), (*same, *copies[1]), (*wanted, *arguments), strict=True):
        torch.testing.assert_close(one, twin, rtol=0, atol=0)
        torch.testing.assert_close(one, other, rtol=0.05, atol=1e-5)


def test_a_large_tensor_of_the_graph_is_sent_without_its_elements_and_stays_the_users() -> None:
    gm = _holding(torch.randn(64, 64))
    assert len(packed_graph(gm)) < 64 * 64 * 4
    received = unpacked_graph(packed_graph(gm))
    assert not received.whole
    x = torch.randn(64, 64)
    made = compile_graph(received.gm, [torch.empty(64, 64)])
    plan = unpacked_plan(packed_plan(made, received.gm, whole=False), gm, gm.forward)
    torch.testing.assert_close(plan.run(x)[0], gm.forward(x)[0])


def test_a_copy_of_a_large_tensor_that_is_not_there_is_refused() -> None:
    gm = _holding(torch.randn(64, 64), copied=True)
    received = unpacked_graph(packed_graph(gm))
    made = compile_graph(received.gm, [torch.empty(64, 64)])
    with pytest.raises(UnsupportedError, match="large tensor"):
        packed_plan(made, received.gm, whole=received.whole)


def _holding(table: torch.Tensor, *, copied: bool = False) -> torch.fx.GraphModule:
    """A graph of the form of Dynamo's, that holds a tensor; `copied`: as `torch.tensor(...)` in the user's code is."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    held = graph.get_attr("table")
    if copied:
        held = graph.call_function(torch.ops.aten.lift_fresh.default, (held,))
    soft = graph.call_function(torch.softmax, (x, -1))
    graph.output((graph.call_function(torch.add, (soft, held)),))
    root = nn.Module()
    root.register_buffer("table", table)
    gm = torch.fx.GraphModule(root, graph)
    mode = torch._subclasses.FakeTensorMode()
    x.meta["example_value"] = mode.from_tensor(torch.empty(64, 64))
    return gm


def test_arguments_lie_in_memory_there_as_they_do_here() -> None:
    whole = torch.randn(6, 8)
    given = (whole[1:3], whole[:, ::2], torch.randn(3).conj(), torch.zeros(2, 0), 3, None, whole.t())
    made = tensors_of(pickle.loads(pickle.dumps(forms_of(given))))
    for one, other in zip(given, made, strict=True):
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert one.storage_offset() == other.storage_offset()
    storages = [a.untyped_storage().data_ptr() for a in made if isinstance(a, torch.Tensor)]
    assert storages[0] == storages[1] == storages[4] != storages[2]


def test_an_argument_that_is_no_tensor_and_no_number_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Generator"):
        forms_of([torch.Generator()])


def test_settings_of_a_call_are_in_force_there(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SOME_VARIABLE", "1")
    monkeypatch.chdir(tmp_path)
    with options(threads=3, cache_dir="here"), torch.autocast("cpu", torch.float16), torch.no_grad():
        found = pickle.loads(pickle.dumps(Ambience.here()))
    monkeypatch.delenv("SOME_VARIABLE")
    monkeypatch.setenv("ANOTHER", "2")
    default = Ambience.here()
    with found.in_force():
        assert Ambience.here() == found
        assert current().threads == 3
        assert current().cache_dir == str(tmp_path / "here")
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    with default.in_force():
        assert Ambience.here() == default


def test_a_graph_is_not_served_by_one_that_holds_another_large_tensor() -> None:
    """Neither came with its elements, so nothing there tells them apart."""
    server, answers = Server(), list[Reply]()
    ambience = Ambience.here(current().replace(measure="never"))
    for number, rows in enumerate((5, 1)):
        x, table = torch.randn(rows, 1500), torch.randn(1500)
        if rows > 1:
            torch._dynamo.mark_dynamic(x, 0)
        ((gm, arguments),) = graphs(lambda x, table: torch.softmax(x, -1) * table, x, table)
        node = next(
            n
            for n in gm.graph.nodes
            if n.op == "placeholder" and getattr(n.meta["example_value"], "shape", ()) == (1500,)
        )
        gm.register_buffer("table", table)
        with gm.graph.inserting_before(node):
            node.replace_all_uses_with(gm.graph.get_attr("table"))
        gm.graph.erase_node(node)
        gm.recompile()
        forms = forms_of([each for each in arguments if each is not table])
        with torch.no_grad():
            answers.append(server.answer(GraphRequest(number, packed_graph(gm), forms, ambience, frozenset((0, 1)))))
    assert [answer.failure for answer in answers] == [None, None]
    assert [answer.known for answer in answers] == [None, None]


def test_a_tensor_without_elements_is_sent() -> None:
    received = unpacked_graph(packed_graph(_holding(torch.empty(0, 3))))
    assert [each.shape for each in received.gm.state_dict().values()] in ([], [(0, 3)])
    assert received.whole


@pytest.mark.parametrize("name", ["mine.twice", "aten.relu.mine"])
def test_an_operator_that_this_process_lacks_is_named(name: str, monkeypatch) -> None:
    def missing(_: bytes) -> None:
        found: Any = torch.ops
        for part in name.split("."):
            found = getattr(found, part)

    monkeypatch.setattr(server, "unpacked_graph", missing)
    with pytest.raises(UnsupportedError, match=f"torch.ops.{name} is known to your process alone"):
        server._received(b"")
