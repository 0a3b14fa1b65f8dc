"""What calls share a binary, and what is refused; signatures and classes survive the cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testkit.run.gpu_kernels import TWICE
from weft.emit.triton import BlockConstant, GridLoop, WholeConstant
from weft.errors import UnsupportedError
from weft.run.gpu import GpuSignature, KernelClass, class_of
from weft.run.gpu.classes import following
from weft.run.gpu.signature import LONGEST
from weft.run.launch import InputSpec, OutputSpec, SizeSpec
from weft.tensor.dtypes import DType

SIZES = {"M": 64, "N": 48}


def test_a_class_says_what_is_divisible_and_which_strides_are_one() -> None:
    kind = class_of(TWICE, [512, 520, 1024], SIZES, [48, 1, 3])
    assert str(kind) == "*fp32:16 *fp32 *fp32:16 i32:16 i32:16 i32:16 =1 i32 =64"
    assert [kind.arguments[i].bytes for i in kind.parameters] == [8, 8, 8, 4, 4, 4, 4]


def test_sizes_of_one_class_share_a_binary() -> None:
    known = class_of(TWICE, [0, 0, 0], {"M": 64, "N": 48}, [48, 1, 1])
    assert known == class_of(TWICE, [16, 32, 512], {"M": 160, "N": 64}, [64, 1, 1])
    for other in (
        class_of(TWICE, [8, 0, 0], {"M": 64, "N": 48}, [48, 1, 1]),
        class_of(TWICE, [0, 0, 0], {"M": 24, "N": 48}, [48, 1, 1]),
        class_of(TWICE, [0, 0, 0], {"M": 64, "N": 48}, [40, 1, 1]),
        class_of(TWICE, [4, 0, 0], {"M": 64, "N": 48}, [48, 1, 1]),
        class_of(TWICE, [0, 0, 0], {"M": 63, "N": 48}, [48, 1, 1]),
        class_of(TWICE, [0, 0, 0], {"M": 64, "N": 16}, [48, 1, 1]),  # another constant
        class_of(TWICE, [0, 0, 0], {"M": 64, "N": 48}, [50, 1, 1]),
        class_of(TWICE, [0, 0, 0], {"M": 64, "N": 48}, [48, 17, 1]),
    ):
        assert other != known


def test_far_elements_have_wide_strides_and_a_size_of_one_is_no_constant() -> None:
    near = class_of(TWICE, [0, 0, 0], {"M": 3, "N": 1}, [2**26, 2**28 - 1, 0])
    assert str(near) == "*fp32:16 *fp32:16 *fp32:16 i32 i32 i32:16 i32 i32:16 =1"
    far = class_of(TWICE, [0, 0, 0], {"M": 4, "N": 1}, [2**26, 1, 0])
    assert str(far) == "*fp32:16 *fp32:16 *fp32:16 i32 i32 i64:16 =1 i64:16 =1"


def test_what_no_kernel_can_take_is_refused() -> None:
    for size in (2**31, 2**31 - 64, LONGEST):  # the end of the last block, or segment, has a number too
        with pytest.raises(UnsupportedError, match=f"31 bits: less than {2**31 - 2**24} of them"):
            class_of(TWICE, [0, 0, 0], {"M": size, "N": 1}, [1, 1, 1])
        with pytest.raises(UnsupportedError, match="31 bits"):
            replace(TWICE, grid=(GridLoop(size, 64),)).demand_sizes(SIZES)
    class_of(TWICE, [0, 0, 0], {"M": LONGEST - 1, "N": 1}, [1, 1, 1])
    with pytest.raises(UnsupportedError, match="N without elements"):
        class_of(TWICE, [0, 0, 0], {"M": 1, "N": 0}, [1, 1, 1])
    complex_input = TWICE.kernel._replace(inputs=(InputSpec("x", 2, DType.complex64), TWICE.kernel.inputs[1]))
    with pytest.raises(UnsupportedError, match="Triton has no complex64"):
        class_of(replace(TWICE, kernel=complex_input), [0, 0, 0], SIZES, [48, 1, 1])
    with pytest.raises(ValueError, match="2 strides for a kernel with 3"):
        class_of(TWICE, [0, 0, 0], SIZES, [48, 1])


def test_a_class_can_be_read_back() -> None:
    kind = class_of(TWICE, [4, 0, 0], {"M": 3, "N": 3}, [2**40, 1, 7])
    assert KernelClass.parse(str(kind)) == kind


@pytest.mark.parametrize(
    ("own", "other", "serves"),
    [
        ("*bf16:16 i32:16 =1", "*bf16:16 i32:16 =1", True),
        ("*bf16 i32 =1", "*bf16:16 i32:16 =1", True),
        ("*bf16:16 i32 =1", "*bf16 i32 =1", False),  # an address that need not be divisible
        ("*bf16 i32:16 =1", "*bf16 i32 =1", False),
        ("*bf16 i64:16 =1", "*bf16 i32:16 =1", True),
        ("*bf16 i32:16 =1", "*bf16 i64:16 =1", False),
        ("*bf16 i32 i32", "*bf16 i32 =1", True),
        ("*bf16 i32 i64:16", "*bf16 i32 =1", False),
        ("*bf16 i32 =1", "*bf16 i32 i32", False),
        ("*bf16 i32 =1", "*bf16 i32 =0", False),
        ("*fp32 i32 =1", "*bf16 i32 =1", False),
        ("*bf16 i32 ~0", "*bf16 i32 ~1", True),  # masks of blocks that are whole
        ("*bf16 i32 ~1", "*bf16 i32 ~0", False),
    ],
)
def test_a_class_that_knows_less_serves_calls_of_one_that_knows_more(own: str, other: str, *, serves: bool) -> None:
    assert KernelClass.parse(own).serves(KernelClass.parse(other)) is serves


@pytest.mark.parametrize(
    ("varying", "starts", "strides", "least"),
    [
        ({"M"}, [0, 0, 0], [48, 1, 1], "*fp32:16 *fp32:16 *fp32:16 i32 i32:16 i32:16 =1 =1 =64"),
        ({"N"}, [0, 4, 0], [48, 1, 1], "*fp32:16 *fp32 *fp32:16 i32:16 i32 i32 =1 =1 =64"),  # a row is as long as N
        ({"N"}, [0, 0, 0], [16 * 48, 1, 1], "*fp32:16 *fp32:16 *fp32:16 i32:16 i32 i32:16 =1 =1 =64"),
        ({"M"}, [0, 0, 0], [1, 64, 1], "*fp32:16 *fp32:16 *fp32:16 i32 i32:16 =1 i32 =1 =64"),  # columns first
        ({"M", "N"}, [0, 0, 0], [48, 1, 16], "*fp32:16 *fp32:16 *fp32:16 i32 i32 i32 =1 i32:16 =64"),
        (set[str](), [0, 0, 0], [48, 1, 1], "*fp32:16 *fp32:16 *fp32:16 i32:16 i32:16 i32:16 =1 =1 =64"),
    ],
)
def test_a_class_for_any_length_knows_what_does_not_follow_from_it(
    varying: set[str], starts: list[int], strides: list[int], least: str
) -> None:
    kind = class_of(TWICE, starts, SIZES, strides)
    places = following(TWICE, SIZES, strides, varying)
    assert str(kind.least(places)) == least
    assert kind.least(places).serves(kind)
    assert kind.least(places).most(places) == kind


def test_a_class_for_any_length_serves_all_of_them() -> None:
    strides = [48, 1, 1]
    found = class_of(TWICE, [0, 0, 0], SIZES, strides).least(following(TWICE, SIZES, strides, {"M", "N"}))
    for m, n in ((1, 33), (64, 50), (17, 64), (4096, 63)):
        assert found.serves(class_of(TWICE, [0, 0, 0], {"M": m, "N": n}, [n, 1, 1]))


def test_masks_are_kept_in_a_binary_for_any_length() -> None:
    signature = replace(TWICE, constants=(*TWICE.constants, WholeConstant("WHOLE", "M", 16)))
    kind = class_of(signature, [0, 0, 0], SIZES, [48, 1, 1])
    least = kind.least(following(signature, SIZES, [48, 1, 1], {"M"}))
    assert [str(each) for each in (*kind.arguments[-2:], *least.arguments[-2:])] == ["=64", "~1", "=64", "~0"]
    assert least.serves(kind)


def test_a_signature_can_be_read_back() -> None:
    kernel = TWICE.kernel._replace(
        sizes=(*TWICE.kernel.sizes, SizeSpec("P")), outputs=(OutputSpec(("M", 3), DType.bfloat16),), given=(0,)
    )
    constants = (*TWICE.constants, WholeConstant("WHOLE_m", "M", 16), WholeConstant("WHOLE_n", "N", 0, 16))
    grid = (GridLoop("P", 4), GridLoop(10, 3))
    signature = replace(TWICE, kernel=kernel, constants=constants, grid=grid, warps=8, stages=3)
    assert GpuSignature.from_json(signature.to_json()) == signature
    assert signature.constants_at({"M": 0, "N": 16, "P": 1}) == (16, 1, 1), "no rows are whole blocks"
    assert (signature.passed, signature.thread_blocks({"M": 1, "N": 1, "P": 9})) == (("P",), 12)


def test_a_signature_says_where_every_size_is() -> None:
    with pytest.raises(ValueError, match=r"\['K', 'Q'\]"):
        replace(TWICE, constants=(BlockConstant("BLOCK_k", "K", 1),), grid=(GridLoop("Q", 1),))
