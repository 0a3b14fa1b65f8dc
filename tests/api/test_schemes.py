"""The option `scheme`: what `explain` prints, given back, gives the same kernels; other codes give other cuts."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from unittest import mock

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import weft
from weft.errors import Location, SchemeError, UnknownOptionError, UnsupportedError
from weft.plan import CompiledRegion
from weft.plan.execute import regions
from weft.plan.partition.partition import Region


def layer(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x @ w, -1) @ v
    return torch.nn.functional.layer_norm(y, y.shape[-1:]) @ v.T


def inputs(rows: int = 40) -> tuple[torch.Tensor, ...]:
    numbers = torch.Generator().manual_seed(rows)
    return tuple(torch.randn(shape, generator=numbers) for shape in ((rows, 32), (32, 48), (48, 24)))


def not_chosen() -> AbstractContextManager[object]:
    """Fails where weft chooses between cuts."""
    return mock.patch.object(regions, "Cuts", side_effect=AssertionError("cuts are chosen"))


def test_what_explain_prints_gives_the_same_kernels_and_nothing_is_chosen() -> None:
    first = weft.optimize(layer, inputs())
    scheme = first.scheme
    assert f"fusion scheme: {scheme}" in str(first.explain())
    assert f'scheme="{scheme}"' in str(first.explain())
    with not_chosen():
        again = weft.optimize(layer, inputs(), scheme=scheme)
        with weft.options(scheme=scheme):
            third = weft.optimize(layer, inputs())
    for program in (again, third):
        assert program.scheme == scheme
        assert [k.key for k in program.kernels] == [k.key for k in first.kernels]
        assert all(k.from_cache for k in program.kernels)
    torch.testing.assert_close(again(*inputs(70)), layer(*inputs(70)), atol=1e-4, rtol=1e-4)


def test_the_report_numbers_operators_and_names_their_kernels() -> None:
    program = weft.optimize(lambda x: torch.sort(x.exp(), 0).values.sin(), (torch.randn(6, 7),))
    text = str(program.explain())
    section = text[text.index("== fusion scheme") :]
    assert "#1 (" in section
    assert ": kernel 1" in section
    assert ": PyTorch" in section
    assert ": kernel 3" in section


def test_another_code_cuts_elsewhere_and_is_right() -> None:
    """Every operator a kernel by itself: bits that change at each."""
    whole = weft.optimize(layer, inputs())
    count = len(re.findall(r"^[01]+  #\d+ \(", str(whole.explain()), re.MULTILINE))
    code = f"0x{int(('01' * count)[:count], 2):x}"
    program = weft.optimize(layer, inputs(), scheme=code)
    assert len(program.kernels) > len(whole.kernels)
    assert not program.fallbacks
    assert program.scheme != whole.scheme
    torch.testing.assert_close(program(*inputs()), layer(*inputs()), atol=1e-4, rtol=1e-4)
    with not_chosen():
        again = weft.optimize(layer, inputs(), scheme=program.scheme)
    assert [k.key for k in again.kernels] == [k.key for k in program.kernels]


def test_a_scheme_is_an_option_of_torch_compile_and_serves_other_sizes() -> None:
    scheme = weft.optimize(layer, inputs()).scheme
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="weft", options={"scheme": scheme, "measure": "never"})
    with not_chosen():
        for rows in (40, 41, 90):
            torch.testing.assert_close(compiled(*inputs(rows)), layer(*inputs(rows)), atol=1e-4, rtol=1e-4)


def test_a_function_of_two_graphs_takes_two_schemes() -> None:
    def parted(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        torch._dynamo.graph_break()
        return (y.exp() * 2).sum(0)

    x = torch.randn(30, 20)
    first = weft.optimize(parted, (x,))
    one, two = first.scheme.split()
    with not_chosen():
        again = weft.optimize(parted, (x,), scheme=f"{two} {one}")
    assert again.scheme == first.scheme
    with pytest.raises(SchemeError, match=f'the fusion scheme "{one}" is not for this graph, .* tag {two[-6:]}'):
        weft.optimize(parted, (x,), scheme=one)


def sized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1) * x.shape[0]


def test_the_error_at_a_second_shape_prints_the_scheme_of_its_graph() -> None:
    """The first graph holds the number of rows, and the second one does not: another program."""
    given = {rows: (torch.randn(rows, 8), torch.randn(8, 8)) for rows in (5, 6, 7)}
    first = weft.optimize(sized, given[5]).scheme
    torch.compiler.reset()
    compiled = torch.compile(sized, backend="weft", options={"scheme": first, "measure": "never"})
    compiled(*given[5])
    before = weft.stats()
    with pytest.raises(BackendCompilerFailed) as caught:
        compiled(*given[6])
    assert weft.stats().compiles == before.compiles
    assert "WEFT_LOG=debug, for torch.compile and weft.compile too" in str(caught.value)
    (second,) = re.findall(r'for this one weft chooses "(\S+)"', str(caught.value))
    assert second.partition("@")[2] != first.partition("@")[2]
    torch.compiler.reset()
    compiled = torch.compile(sized, backend="weft", options={"scheme": f"{first} {second}", "measure": "never"})
    with not_chosen():
        for each in given.values():
            torch.testing.assert_close(compiled(*each), sized(*each), atol=1e-4, rtol=1e-4)


def test_where_weft_can_choose_no_scheme_the_error_prints_none() -> None:
    refusing = mock.patch.object(regions.Regions, "scheme_of", side_effect=UnsupportedError("none"))
    with refusing, pytest.raises(SchemeError, match="with spaces between them; without the option"):
        weft.optimize(layer, inputs(), scheme="0x0@123456")


def test_calls_that_a_scheme_leaves_to_pytorch_are_left() -> None:
    """Call 0 of the graph is the matmul with w."""
    with not_chosen():
        program = weft.optimize(layer, inputs(), scheme="0xffff~0")
    assert [f.operation for f in program.fallbacks] == ["aten.matmul"]
    assert "the fusion scheme leaves it to PyTorch" in str(program.fallbacks[0])
    assert len(program.kernels) == 1
    torch.testing.assert_close(program(*inputs()), layer(*inputs()), atol=1e-4, rtol=1e-4)
    again = weft.optimize(layer, inputs(), scheme=program.scheme)
    assert again.scheme == program.scheme
    assert "~0@" in again.scheme
    with pytest.raises(SchemeError, match="is not for this graph"):
        weft.optimize(layer, inputs(), scheme="0x0~99")


def failing(error: Exception) -> AbstractContextManager[object]:
    """Fails to build what computes with the first matmul, unless PyTorch runs that."""
    built = regions.Regions.built

    def build(self: regions.Regions, region: Region) -> CompiledRegion:
        if "t0" in {n.name for n in region.program.nodes}:
            raise error
        return built(self, region)

    return mock.patch.object(regions.Regions, "built", build)


def test_what_weft_left_to_pytorch_since_it_failed_is_left_again() -> None:
    with failing(UnsupportedError("it cannot be", where=Location(__file__, 1))):
        first = weft.optimize(layer, inputs())
    assert first.fallbacks
    assert "~" in first.scheme
    with not_chosen():
        again = weft.optimize(layer, inputs(), scheme=first.scheme)
    assert again.scheme == first.scheme
    assert [f.operation for f in again.fallbacks] == [f.operation for f in first.fallbacks]
    assert [k.key for k in again.kernels] == [k.key for k in first.kernels]


def test_a_kernel_that_cannot_be_is_an_error_and_not_left_to_pytorch() -> None:
    with (
        failing(UnsupportedError("it cannot be")),
        pytest.raises(SchemeError, match="that weft cannot make: #1") as caught,
    ):
        weft.optimize(layer, inputs(), scheme="0x1ffff")
    assert "it cannot be" in str(caught.value)
    assert "test_schemes.py" in str(caught.value)


def test_errors_say_what_and_where_and_what_to_do() -> None:
    with pytest.raises(UnknownOptionError, match="cannot be '0xz'") as caught:
        weft.options(scheme="0xz")
    assert "give it a fusion scheme as `explain` prints it" in str(caught.value)
    with pytest.raises(UnknownOptionError, match="cannot be ''"):
        weft.compile(layer, scheme="")
    with pytest.raises(SchemeError, match="is not for this graph, which has") as caught:
        weft.optimize(layer, inputs(), scheme="0x0@123456")
    assert "test_schemes.py" in str(caught.value)
    assert "what to do: give one scheme for each graph" in str(caught.value)
    with pytest.raises(SchemeError, match="has 61 bits"):
        weft.compile(layer, scheme="0x1000000000000000")(*inputs())
    torch.compiler.reset()
    with pytest.raises(BackendCompilerFailed, match="is not for this graph"):
        torch.compile(layer, backend="weft", options={"scheme": "0x0@123456"})(*inputs())


def test_a_scheme_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SCHEME", "0x0@123456")
    with pytest.raises(SchemeError):
        weft.optimize(layer, inputs())
    monkeypatch.setenv("WEFT_SCHEME", "")
    assert weft.optimize(layer, inputs()).scheme


def test_a_saved_program_keeps_its_scheme(tmp_path) -> None:
    program = weft.optimize(layer, inputs())
    assert weft.load(program.save(tmp_path / "layer.weft")).scheme == program.scheme
