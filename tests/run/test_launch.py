"""The C interface: words in order, strides as they are, sizes as they come."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from weft.errors import CompilerError
from weft.run.build import KernelSource
from weft.run.compiler import compile_shared_library
from weft.run.launch import InputSpec, KernelSignature, Launcher, OutputSpec, SizeSpec, make_launcher
from weft.run.load import NativeFunction, load
from weft.tensor.dtypes import DType

F32 = DType.float32


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, affine_source: KernelSource) -> Path:
    path = tmp_path_factory.mktemp("library") / "affine.so"
    path.write_bytes(compile_shared_library(affine_source.text))
    return path


@pytest.fixture(scope="module")
def affine(library: Path, affine_source: KernelSource) -> Launcher:
    return make_launcher(affine_source.signature, load(library, "affine"))


def recorder(signature: KernelSignature) -> tuple[NativeFunction, dict[str, int]]:
    """A stand-in for a kernel that keeps the words of its last call, by name."""
    seen: dict[str, int] = {}

    def function(words: bytes) -> None:
        seen.update(zip(signature.words, struct.unpack(f"{len(words) // 8}q", words), strict=True))

    return function, seen


def test_the_words_are_in_the_order_that_is_documented(affine_source: KernelSource) -> None:
    signature = affine_source.signature
    assert signature.words == (
        *("input a", "input b", "input c", "output 0", "output 1", "size m", "size n"),
        *("stride a 0", "stride a 1", "stride b 0", "stride b 1", "stride c 0", "threads"),
    )
    function, seen = recorder(signature)
    a, b, c = torch.zeros(10, 7)[::2, 1:4], torch.zeros(5, 3).T, torch.zeros(9)[::3]
    out, counts = make_launcher(signature, function, threads=3)(a, b, c)
    assert seen == {
        "input a": a.data_ptr(),
        "input b": b.data_ptr(),
        "input c": c.data_ptr(),
        "output 0": out.data_ptr(),
        "output 1": counts.data_ptr(),
        "size m": 5,
        "size n": 3,
        "stride a 0": 14,
        "stride a 1": 1,
        "stride b 0": 1,
        "stride b 1": 3,
        "stride c 0": 3,
        "threads": 3,
    }


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (130, 7), (0, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_kernel_by_hand(affine: Launcher, shape: tuple[int, int], transposed: bool) -> None:
    m, n = shape
    a = torch.randn(n, m).T if transposed else torch.randn(m, n)
    b = torch.randn(m, n).T if transposed else torch.randn(n, m)
    c = torch.randn(2 * n)[::2]
    out, counts = affine(a, b, c)
    torch.testing.assert_close(out, a * b.T + c)
    assert (out.dtype, counts.dtype) == (torch.float32, torch.int64)
    assert out.stride() == torch.empty(m, n).stride()
    assert counts.tolist() == [torch.get_num_threads()]


def test_outputs_of_two_calls_are_apart(affine: Launcher) -> None:
    a, b, c = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    first, _ = affine(a, b, c)
    kept = first.clone()
    second, _ = affine(a + 1, b, c)
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


def test_calls_from_several_threads(affine: Launcher) -> None:
    inputs = [(torch.randn(n, 3), torch.randn(3, n), torch.randn(3)) for n in range(1, 41)]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda each: affine(*each)[0], inputs * 5))
    for (a, b, c), out in zip(inputs * 5, outputs, strict=True):
        torch.testing.assert_close(out, a * b.T + c)


def test_a_default_device_does_not_move_the_outputs(affine: Launcher) -> None:
    a, b, c = torch.randn(2, 3), torch.randn(3, 2), torch.randn(3)
    with torch.device("meta"):
        out, _ = affine(a, b, c)
    torch.testing.assert_close(out, a * b.T + c)


@pytest.mark.parametrize("dims", [(), (3,), ("n",), ("n", 2), (0, "n"), ("n", "n", 3), (2, 0, 4)])
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.unknown])
def test_outputs_are_as_empty_gives_them(dims: tuple[str | int, ...], dtype: DType) -> None:
    signature = KernelSignature("f", (InputSpec("x", 1, dtype),), (SizeSpec("n", 0, 0),), (OutputSpec(dims, dtype),))
    launch = make_launcher(signature, recorder(signature)[0])
    for n in (0, 1, 5):
        kind: torch.dtype = getattr(torch, dtype.name)
        [out] = launch(torch.zeros(n, dtype=kind))
        expected = torch.empty([n if dim == "n" else int(dim) for dim in dims], dtype=kind)
        assert (out.shape, out.stride(), out.dtype) == (*(expected.shape, expected.stride(), expected.dtype),)


def test_scalars_no_sizes_and_no_outputs() -> None:
    signature = KernelSignature("f", (InputSpec("x", 0, F32),), (), ())
    function, seen = recorder(signature)
    x = torch.tensor(1.0)
    assert make_launcher(signature, function, threads=1)(x) == ()
    assert seen == {"input x": x.data_ptr(), "threads": 1}


def test_names_of_sizes_need_not_be_names_of_variables() -> None:
    signature = KernelSignature(
        "f", (InputSpec("class", 2, F32),), (SizeSpec("x.0 rows", 0, 1),), (OutputSpec(("x.0 rows",), F32),)
    )
    [out] = make_launcher(signature, recorder(signature)[0])(torch.zeros(2, 6))
    assert out.shape == (6,)


def test_an_output_that_is_given_is_written_into() -> None:
    """The second launch of two that write parts of one tensor: it gives back the tensor that it got."""
    signature = KernelSignature(
        "f",
        (InputSpec("x", 1, F32),),
        (SizeSpec("n", 0, 0),),
        (OutputSpec(("n",), F32), OutputSpec((2,), F32)),
        given=(1,),
    )
    function, seen = recorder(signature)
    begun = torch.zeros(2)
    made, same = make_launcher(signature, function, threads=1)(torch.zeros(3), begun)
    assert same is begun
    assert made.shape == (3,)
    assert (seen["output 0"], seen["output 1"]) == (made.data_ptr(), begun.data_ptr())
    assert KernelSignature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


def test_an_output_may_be_the_memory_of_an_input() -> None:
    outputs = (OutputSpec(("n",), F32), OutputSpec(("n",), F32))
    signature = KernelSignature("f", (InputSpec("x", 1, F32),), (SizeSpec("n", 0, 0),), outputs, over=((1, 0),))
    function, seen = recorder(signature)
    launch, x = make_launcher(signature, function, threads=1), torch.zeros(3)
    made, same = launch(x, over=x)
    assert same is x
    assert (seen["output 0"], seen["output 1"]) == (made.data_ptr(), x.data_ptr())
    assert all(each is not x for each in launch(x))
    assert KernelSignature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


@pytest.mark.parametrize(
    "signature",
    [
        KernelSignature("f", (InputSpec("x", 1, F32),), (), (), given=(0,)),
        KernelSignature("f", (InputSpec("x", 1, F32),), (), (OutputSpec((2,), F32),) * 2, over=((0, 0), (1, 0))),
        KernelSignature("f", (InputSpec("x", 1, F32),), (SizeSpec("n", 0, 1),), ()),
        KernelSignature("f", (InputSpec("x", 1, F32),), (SizeSpec("n", 1, 0),), ()),
        KernelSignature("f", (InputSpec("x", 2, F32),), (SizeSpec("n", 0, 0), SizeSpec("n", 0, 1)), ()),
        KernelSignature("f", (InputSpec("x", 1, F32),), (), (OutputSpec(("n",), F32),)),
    ],
)
def test_a_signature_that_cannot_be_launched(signature: KernelSignature) -> None:
    with pytest.raises(ValueError, match=r"not there|twice|nowhere"):
        make_launcher(signature, recorder(signature)[0])


def test_a_signature_comes_back_from_json(affine_source: KernelSource) -> None:
    signature = affine_source.signature
    assert KernelSignature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


def test_a_loaded_function_outlives_its_file(library: Path, affine_source: KernelSource, tmp_path: Path) -> None:
    path = tmp_path / "copy.so"
    path.write_bytes(library.read_bytes())
    launch = make_launcher(affine_source.signature, load(path, "affine"))
    (tmp_path / "junk").write_bytes(b"junk")
    (tmp_path / "junk").replace(path)  # as another process renames its own in
    a, b, c = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    torch.testing.assert_close(launch(a, b, c)[0], a * b.T + c)
    path.unlink()
    torch.testing.assert_close(launch(a, b, c)[0], a * b.T + c)


def test_what_cannot_be_loaded(library: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.so").write_bytes(b"junk")
    with pytest.raises(OSError, match=r"junk\.so"):
        load(tmp_path / "junk.so", "affine")
    with pytest.raises(CompilerError, match="no function linear"):
        load(library, "linear")


def test_one_openmp_runtime_in_the_process(affine: Launcher) -> None:
    affine(torch.randn(64, 64), torch.randn(64, 64), torch.randn(64))
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    assert len({path for path in mapped if "libgomp" in path}) == 1


def test_a_size_that_no_input_shows_is_passed_last() -> None:
    signature = KernelSignature(
        "f",
        (InputSpec("x", 1, F32),),
        (SizeSpec("m"), SizeSpec("n", 0, 0)),
        (OutputSpec(("m",), F32), OutputSpec(("n",), F32)),
        given=(1,),
    )
    function, seen = recorder(signature)
    made, given = make_launcher(signature, function, threads=1)(torch.zeros(5), torch.zeros(5), 3)
    assert made.shape == (3,)
    assert (seen["size m"], seen["size n"]) == (3, 5)
    assert seen["output 1"] == given.data_ptr()
    assert KernelSignature.from_json(json.loads(json.dumps(signature.to_json()))) == signature
