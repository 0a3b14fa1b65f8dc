"""Bad input: a clear error that names what, where in the user's file, and what to do; or what eager does."""

from __future__ import annotations

import copy
import inspect
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.errors import (
    ArgumentError,
    CacheFolderError,
    CacheFolderWarning,
    CompilerError,
    FileError,
    LeftToPyTorchWarning,
    MissingFileError,
    NoReportError,
    ShapeError,
    TargetError,
    UnimplementedError,
    UnknownOptionError,
    UnsupportedError,
)

HERE = Path(__file__).name


def relu_linear(x, w, b):
    y = x @ w
    return torch.relu(y + b)


def inputs(m=4, k=8, n=6, *, inner=None):
    return torch.randn(m, k), torch.randn(inner or k, n), torch.randn(n)


@pytest.mark.parametrize("target", ["tpu", "cuda", "cuda:x0", "hip:90", "cpu:0x", ""])
def test_a_target_that_is_not_there(target):
    with pytest.raises(TargetError) as caught:
        weft.optimize(relu_linear, inputs(), target=target)
    assert repr(target) in str(caught.value)
    assert "what to do" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("cude:90", '"cuda:90"'),
        ("CPU", '"cpu"'),
        ("gfx942", '"hip:gfx942"'),
        ("hip:942", '"hip:gfx942"'),
        ("sm_90", '"cuda:90"'),
        ("gpu", '"cuda:80" or "cuda:90" or "cuda:100"'),
        ("cuda:9x", '"cuda:90"'),
    ],
)
def test_a_target_that_is_almost_one(target, meant):
    with pytest.raises(TargetError) as caught:
        weft.optimize(relu_linear, inputs(), target=target)
    assert "did you mean " in caught.value.todo
    assert meant in caught.value.todo


X = torch.ones(2, 3)
# What a type checker would refuse before it is run.
loose: Any = weft


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: loose.optimize(3, (X,)), "the first argument of weft.optimize is of type int (3)"),
        (lambda: loose.optimize(None, (X,)), "not a function or module"),
        (lambda: loose.compile(X), "the first argument of weft.compile is of type Tensor"),
        (lambda: loose.compile(None), "of type NoneType"),
        (lambda: loose.compile(torch.nn.Linear), "pass an instance: weft.compile(Linear(...))"),
        (lambda: loose.optimize(torch.nn.ReLU, (X,)), "pass an instance: weft.optimize(ReLU(...), inputs)"),
        (lambda: loose.equivalent(torch.relu, torch.nn.ReLU, (X,)), "weft.equivalent(fn_a, ReLU(...), inputs)"),
        (loose.compile, "missing a required argument: 'model'\n"),
        (loose.compile, "what to do: call it as weft.compile(model, **options)"),
        (lambda: loose.optimize(torch.relu), "call it as weft.optimize(fn, example_inputs, target=None, **options)"),
        (lambda: loose.stats(3), "weft.stats cannot be called like this: too many positional arguments"),
        (lambda: loose.options(3), "call it as weft.options(**changes)"),
        (loose.load, "call it as weft.load(path, device=None)"),
        (lambda: loose.judge(X), "weft.judge cannot be called like this: missing a required argument: 'eager'"),
        (lambda: loose.equivalent(torch.relu, torch.relu), "weft.equivalent cannot be called like this"),
        (lambda: loose.equivalent(torch.relu, "relu", (X,)), "the second argument of weft.equivalent is of type str"),
        (lambda: loose.equivalent(3, torch.relu, (X,)), "the first argument of weft.equivalent"),
        (lambda: loose.optimize(torch.relu, 3), "the example inputs are of type int"),
        (lambda: loose.optimize(torch.relu, None), "the example inputs are of type NoneType"),
        (lambda: loose.optimize(torch.relu, {"x": X}), "the example inputs are of type dict"),
        (lambda: loose.optimize(torch.relu, "x"), "the example inputs are of type str"),
        (lambda: loose.optimize(torch.relu, X.numpy()), "the example inputs are of type ndarray"),
        (lambda: loose.equivalent(torch.relu, torch.relu, {X}), "the example inputs are of type set"),
        (lambda: loose.load(3), "the path to load is of type int"),
        (lambda: loose.load(b"p.weft"), "the path to load is of type bytes"),
        (lambda: loose.load("p\0"), "the path to load contains a null byte"),
        (lambda: loose.optimize(torch.relu, (X,)).save(None), "the path to save to is of type NoneType"),
        (lambda: loose.optimize(torch.relu, (X,)).explain().save(3), "the path to save the report to"),
    ],
)
def test_arguments_of_another_kind(call, says):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    assert says in str(caught.value)
    assert HERE in str(caught.value)
    assert "what to do: " in str(caught.value)


def test_every_public_function_is_called_by_its_public_name():
    functions = [name for name in weft.__all__ if inspect.isfunction(getattr(weft, name))]
    assert {"compile", "optimize", "load", "equivalent", "judge", "options", "stats"} <= set(functions)
    for name in functions:
        with pytest.raises(ArgumentError, match=rf"^weft\.{name} cannot be called like this: too many positional"):
            getattr(loose, name)(*range(9))


def test_refusing_a_class_leaves_it_as_it_is():
    before = dict(vars(torch.nn.ReLU))
    with pytest.raises(ArgumentError):
        weft.compile(torch.nn.ReLU)
    assert dict(vars(torch.nn.ReLU)) == before


class Doubled:
    def __init__(self, x):
        self.y = torch.relu(x) * 2


def test_a_class_that_is_no_module_makes_what_it_makes_in_eager():
    made = weft.compile(Doubled)(X)
    assert type(made) is Doubled
    assert torch.equal(made.y, X * 2)
    assert weft.compile(int)("3") == 3
    assert "__call__" not in vars(Doubled)  # as PyTorch's own compilation of a class would have it
    assert torch.equal(weft.optimize(Doubled, (X,))(X).y, X * 2)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        torch.jit.script,
        lambda module: torch.jit.trace(module, X),
        lambda module: torch.jit.freeze(torch.jit.script(module.eval())),
        lambda module: torch.jit.script(module).forward,
    ],
    ids=["script", "trace", "freeze", "method"],
)
def test_torchscript_runs_as_it_is_and_says_why_it_has_no_kernel(make):
    module = make(torch.nn.Softmax(-1))
    with pytest.warns(LeftToPyTorchWarning, match="TorchScript") as said:
        fast = weft.compile(module)
    assert torch.equal(fast(X), torch.softmax(X, -1))
    assert len(said) == 1
    assert said[0].filename == __file__
    assert "what to do: compile the module or function that it was made from" in str(said[0].message)
    with pytest.raises(UnsupportedError, match="TorchScript") as caught:
        weft.optimize(module, (X,))
    assert HERE in str(caught.value.where)
    assert "TorchScript" in weft.equivalent(module, lambda x: torch.softmax(x, -1), (X,)).reason


@pytest.fixture(scope="module")
def program() -> weft.Program:
    return weft.optimize(torch.exp, (X,))


WRITERS: dict[str, Any] = {
    "program": lambda program, path: program.save(path),
    "text": lambda program, path: program.explain().save(path),
    "page": lambda program, path: program.explain().save(path),
}


@pytest.mark.parametrize("what", WRITERS)
def test_files_that_cannot_be_written(program, what, tmp_path):
    name = {"program": "p.weft", "text": "r.txt", "page": "r.html"}[what]
    (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    for path, kind, says in (
        (tmp_path / name, FileError, f"{tmp_path / name} is a folder, not a file"),
        (str(tmp_path / "gone" / name), MissingFileError, f"there is no folder {tmp_path / 'gone'}"),
        (tmp_path / "file" / name, MissingFileError, f"there is no folder {tmp_path / 'file'}"),
        (tmp_path / ("n" * 300 + name), FileError, "cannot be written: File name too long"),
        (Path("/proc") / name, FileError, f"/proc/{name} cannot be written: "),
    ):
        with pytest.raises(kind) as caught:
            WRITERS[what](program, path)
        assert isinstance(caught.value, FileNotFoundError if kind is MissingFileError else OSError)
        assert says in caught.value.what
        assert HERE in str(caught.value.where)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file", name])


@pytest.mark.parametrize("what", WRITERS)
def test_files_are_replaced_whole_and_links_stay(program, what, tmp_path):
    target, link = tmp_path / "target", tmp_path / ("link.html" if what == "page" else "link")
    target.write_text("old")
    link.symlink_to(target)
    assert WRITERS[what](program, link) == link
    assert link.is_symlink()
    assert target.stat().st_size > 100
    assert len(list(tmp_path.iterdir())) == 2


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "file").touch()
    for path, kind, says in (
        (tmp_path / "gone.weft", MissingFileError, f"there is no file {tmp_path / 'gone.weft'}"),
        (tmp_path / "file" / "p.weft", MissingFileError, "there is no file"),
        (tmp_path, FileError, f"{tmp_path} is a folder, not a file"),
        (tmp_path / ("n" * 300), FileError, "cannot be read: File name too long"),
    ):
        with pytest.raises(kind) as caught:
            weft.load(path)
        assert says in caught.value.what
        assert HERE in str(caught.value.where)
        assert "what to do: " in str(caught.value)


@pytest.mark.parametrize("device", ["cdua", "cuda:x", 3.5])
def test_a_device_that_is_none(program, tmp_path, device):
    program.save(tmp_path / "p.weft")
    with pytest.raises(TargetError, match=f"there is no device {device!r}"):
        loose.load(tmp_path / "p.weft", device=device)


def test_a_program_whose_kernels_were_cleared_from_the_cache(tmp_path):
    cleared = weft.optimize(torch.exp, (X,), cache_dir=tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(MissingFileError, match=r"there is no file .*\.so") as caught:
        cleared.save(tmp_path / "p.weft")
    assert "call weft.optimize again" in caught.value.todo


def test_options_of_torch_compile():
    with pytest.raises(UnknownOptionError, match=r"one of torch\.compile") as caught:
        loose.compile(torch.relu, fullgraph=True)
    assert 'torch.compile(fn, backend="weft", fullgraph=...)' in caught.value.todo
    options: Any = 3
    with pytest.raises(Exception, match=r"the options of torch\.compile are of type int"):
        torch.compile(lambda x: x * 2, backend="weft", options=options)(X)


def test_a_missing_compiler(tmp_path):
    with (
        pytest.raises(CompilerError, match="no-such-compiler") as caught,
        weft.options(compiler="no-such-compiler", cache_dir=str(tmp_path)),
    ):
        weft.optimize(relu_linear, inputs())
    assert "WEFT_CXX" in str(caught.value)


def test_without_a_compiler_a_lazy_compile_warns_and_runs_in_pytorch(tmp_path):
    fast = weft.compile(relu_linear, compiler="no-such-compiler", cache_dir=str(tmp_path))
    given = inputs()
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="no-such-compiler"):
        found = fast(*given)
    torch.testing.assert_close(found, relu_linear(*given))


@pytest.mark.parametrize("how", ["optimize", "compile"])
def test_shapes_that_cannot_work_say_what_eager_says(how):
    given = inputs(inner=5)
    with pytest.raises(RuntimeError) as eager:
        relu_linear(*given)
    with pytest.raises(ShapeError) as caught, torch.no_grad():
        weft.optimize(relu_linear, given) if how == "optimize" else weft.compile(relu_linear)(*given)
    assert str(eager.value) in str(caught.value)
    assert HERE in str(caught.value)
    assert "y = x @ w" in str(caught.value)


def test_a_module_with_a_forward_of_its_own_says_what_eager_says():
    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, x):
            return torch.relu(self.linear(x))

    with torch.no_grad(), pytest.raises(ShapeError, match="3x9 and 8x4") as caught:
        weft.compile(Wide())(torch.randn(3, 9))
    assert "self.linear(x)" in str(caught.value)


def test_a_shape_error_is_as_catchable_as_eagers():
    def careful(x, w):
        try:
            return x @ w
        except RuntimeError:
            return x

    x = torch.randn(3, 4)
    with torch.no_grad():
        assert weft.compile(careful)(x, torch.randn(5, 6)) is x


@pytest.mark.parametrize("how", ["optimize", "compile", "options"])
def test_an_unknown_option(how):
    call = {
        "optimize": lambda: weft.optimize(relu_linear, inputs(), thread=2),
        "compile": lambda: weft.compile(relu_linear, thread=2),
        "options": lambda: weft.options(thread=2),
    }[how]
    with pytest.raises(UnknownOptionError, match="thread") as caught:
        call()
    assert "threads" in str(caught.value)


def test_an_unsafe_cache_folder(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(CacheFolderError) as caught, weft.options(cache_dir=str(folder)):
        weft.optimize(relu_linear, inputs())
    assert str(folder) in str(caught.value)
    assert "chmod" in str(caught.value) or "WEFT_CACHE_DIR" in str(caught.value)


def test_an_unsafe_cache_folder_stops_a_lazy_compile_too(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    fast = weft.compile(relu_linear, cache_dir=str(folder))
    with pytest.raises(CacheFolderError), torch.no_grad():
        fast(*inputs())


@pytest.mark.parametrize("how", ["optimize", "compile"])
def test_a_cache_folder_that_cannot_be_written_to_is_said_once(monkeypatch, tmp_path, how):
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "file" / "cache"))

    def twice():
        for _ in range(2):
            fast = weft.optimize(relu_linear, inputs()) if how == "optimize" else weft.compile(relu_linear)
            fast(*inputs())
            torch.compiler.reset()

    with torch.no_grad(), pytest.warns(CacheFolderWarning, match="file/cache cannot be written to: Not a dir") as said:
        twice()
    assert [each.filename for each in said] == [__file__]
    assert "what to do: name a folder that you may write to in WEFT_CACHE_DIR" in str(said[0].message)


@pytest.mark.parametrize("shape", [(0, 8, 6), (4, 0, 6), (4, 8, 0), (0, 0, 0)])
@pytest.mark.parametrize("how", ["optimize", "compile"])
def test_empty_tensors_give_what_eager_gives(shape, how):
    given = torch.randn(shape[0], shape[1]), torch.randn(shape[1], shape[2]), torch.randn(shape[2])
    with torch.no_grad():
        wanted = relu_linear(*given)
        found = (weft.optimize(relu_linear, given) if how == "optimize" else weft.compile(relu_linear))(*given)
    assert found.shape == wanted.shape
    assert torch.equal(found, wanted)


def test_what_is_compiled_at_its_calls_says_where_reports_are() -> None:
    module: Any = weft.compile(torch.nn.ReLU())
    compiled: tuple[Any, ...] = (weft.compile(torch.relu), module, copy.deepcopy(module))
    for asked in compiled:
        for _ in range(2):  # before a call, and after one
            with pytest.raises(NoReportError, match=r"has no explain\(\)") as caught:
                asked.explain(chip="H100 SXM")
            assert "weft.optimize(f, inputs).explain()" in str(caught.value)
            assert HERE in str(caught.value)
            asked(torch.ones(2))


def test_an_explain_of_the_users_own_is_theirs() -> None:
    class Model(torch.nn.ReLU):
        def explain(self) -> str:
            return "a model"

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    vars(function)["explain"] = lambda: "a function"
    compiled: tuple[Any, ...] = (weft.compile(Model()), weft.compile(function))
    assert [each.explain() for each in compiled] == ["a model", "a function"]


def test_gradients_run_in_pytorch_and_say_so():
    x, w, b = inputs()
    w.requires_grad_()
    weft.compile(relu_linear)(x, w, b).sum().backward()
    assert w.grad is not None


def test_nothing_warns_where_all_is_well():
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        weft.compile(relu_linear)(*inputs())


@pytest.mark.parametrize("compiled", [weft.compile, lambda f: lambda x: weft.optimize(f, (x,))(x)])
def test_what_eager_does_not_implement_is_a_not_implemented_error(compiled):
    def y(x):
        return torch.special.bessel_y0(x) + 1

    with pytest.raises(NotImplementedError, match="bessel_y0"):
        y(torch.randn(30, 30).half())
    with pytest.raises(NotImplementedError, match="bessel_y0") as caught:
        compiled(y)(torch.randn(30, 30).half())
    assert isinstance(caught.value, UnimplementedError)
    assert "bessel_y0(x) + 1" in str(caught.value)
