"""What weft cannot do costs one region, not the graph: PyTorch runs that region's own calls."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.capture import translate as capture_calls
from weft.errors import CompilerError, Location, UnsupportedError
from weft.plan.choose import region as regions
from weft.plan.execute.regions import Regions
from weft.run import build as building
from weft.tensor.program import Contraction, TensorProgram

# Defects are planted here: what users see of them, and not the error that the rest of the suite has of any.
pytestmark = pytest.mark.filterwarnings("ignore:weft failed:RuntimeWarning")


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    monkeypatch.setenv("WEFT_DEFECTS", "warn")


def two_products(x, w, v):
    h = torch.relu(x @ w)
    h = torch.sort(h, 0).values
    return torch.sigmoid(h @ v) * 2


INPUTS = (9, 8), (8, 7), (7, 5)


def inputs():
    return tuple(torch.randn(shape) for shape in INPUTS)


def contracts(program: TensorProgram) -> bool:
    return any(isinstance(n, Contraction) for n in program.nodes)


def fails_where(monkeypatch, condition, error):
    """Building a region whose program fulfils `condition` raises `error`."""
    build = regions.build_region

    def failing(selection, *more):
        if condition(selection.program):
            raise error
        return build(selection, *more)

    monkeypatch.setattr("weft.plan.execute.regions.build_region", failing)


@pytest.mark.parametrize(
    "error", [UnsupportedError("no such thing"), RuntimeError("a defect"), RecursionError("too deep"), AssertionError()]
)
def test_a_region_that_fails_goes_to_pytorch_alone(monkeypatch, error):
    def sigmoid(program):
        return "sigmoid" in str(program) or "exp" in str(program)

    fails_where(monkeypatch, sigmoid, error)
    given = inputs()
    program = weft.optimize(two_products, given)
    torch.testing.assert_close(program(*given), two_products(*given))
    assert [k.writes for k in program.kernels]
    left = {f.operation for f in program.fallbacks}
    assert {"aten.sort", "aten.sigmoid"} <= left <= {"aten.sort", "aten.sigmoid", "aten.matmul", "aten.mul"}
    (of_sigmoid,) = [f for f in program.fallbacks if f.operation == "aten.sigmoid"]
    assert "sigmoid(h @ v)" in str(of_sigmoid.location)
    wanted = error.what if isinstance(error, UnsupportedError) else f"weft failed: {type(error).__name__}"
    assert wanted in of_sigmoid.reason
    assert wanted in str(program.explain())


def test_an_error_that_names_a_line_costs_that_line(monkeypatch):
    def function(x, y):
        a = torch.exp(x)
        b = a * y
        return torch.relu(b) + 1

    given = torch.randn(6, 5), torch.randn(6, 5)
    build = regions.build_region

    def failing(selection, *more):
        for node in selection.program.nodes:
            where = getattr(node, "location", None)
            if isinstance(where, Location) and where.code == "b = a * y":
                raise UnsupportedError("not this one", where=where)
        return build(selection, *more)

    monkeypatch.setattr("weft.plan.execute.regions.build_region", failing)
    program = weft.optimize(function, given)
    torch.testing.assert_close(program(*given), function(*given))
    assert [(f.operation, f.reason) for f in program.fallbacks] == [("aten.mul", "not this one")]
    assert len(program.kernels) == 2


def test_a_kernel_that_the_compiler_refuses_costs_its_region(monkeypatch):
    compile_ = building.compile_shared_library

    def refusing(text, *more):
        return compile_(text + "\nnot C++" if "tanh" in text else text, *more)

    monkeypatch.setattr(building, "compile_shared_library", refusing)

    def function(x, w):
        h = torch.sort(torch.relu(x @ w) * 0.125, 0).values
        return torch.tanh(h)

    given = inputs()[:2]
    program = weft.optimize(function, given)
    torch.testing.assert_close(program(*given), function(*given))
    assert [f.operation for f in program.fallbacks] == ["aten.sort", "aten.tanh"]
    assert "the compiler refused a kernel" in program.fallbacks[1].reason
    assert len(program.kernels) == 1


def test_a_compiler_that_refuses_everything_is_an_error():
    with weft.options(compiler="false"), pytest.raises(CompilerError, match="refused"):
        weft.optimize(two_products, inputs())


def test_a_defect_in_the_capture_of_one_operation_costs_that_operation(monkeypatch):
    def broken(builder, arguments):
        raise KeyError("oops")

    monkeypatch.setitem(capture_calls._HANDLERS, "aten.softmax", broken)

    def function(x, w):
        return torch.softmax(torch.relu(x @ w), -1) * 2

    given = inputs()[:2]
    program = weft.optimize(function, given)
    torch.testing.assert_close(program(*given), function(*given))
    (fallback,) = program.fallbacks
    assert fallback.operation == "aten.softmax"
    assert "KeyError" in fallback.reason
    assert len(program.kernels) == 2


def test_regions_that_are_alike_share_their_kernels(monkeypatch):
    def function(x, *weights):
        for w in weights:
            x = torch.sort(torch.relu(x @ w), 0).values * 0.1
        return x

    given = torch.randn(6, 8), *(torch.randn(8, 8) for _ in range(5))
    selected = []
    original = Regions.selection

    def counted(self, region):
        found = original(self, region)
        selected.append(id(found))
        return found

    monkeypatch.setattr(Regions, "selection", counted)
    before = weft.stats()
    program = weft.optimize(function, given)
    torch.testing.assert_close(program(*given), function(*given))
    compiled = weft.stats()
    assert compiled.binaries_emitted + compiled.cache_hits - before.binaries_emitted - before.cache_hits <= 4
    assert len(set(selected)) <= 4
    assert len(program.kernels) >= 5


def test_an_axis_that_one_product_sums_over_may_be_another_ones_batch():
    def function(x, w, v):
        h = torch.relu(x)
        return torch.bmm(h, w), torch.einsum("bmk,bp->mkp", h, v)

    given = torch.randn(4, 5, 6), torch.randn(4, 6, 7), torch.randn(4, 3)
    program = weft.optimize(function, given)
    torch.testing.assert_close(program(*given), function(*given))
    assert program.fallbacks == ()
    assert len(program.kernels) >= 2


def test_a_defect_of_cutting_leaves_regions_as_they_are(monkeypatch):
    def failing(self):
        raise ValueError("a defect")

    monkeypatch.setattr("weft.plan.choose.cuts.Cuts.stages", failing)
    given = inputs()
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="weft failed.*ValueError: a defect"):
        program = weft.optimize(two_products, given, verify="always")  # else a cut that is known would do
    assert len(program.kernels) >= 2
    torch.testing.assert_close(program(*given), two_products(*given))
