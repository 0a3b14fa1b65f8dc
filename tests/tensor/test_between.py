"""The law of memory between kernels: values that eager rounds lie in memory rounded, and are computed with all their bits."""

from __future__ import annotations

from dataclasses import replace

from testkit.tensor.forms import EXP, casts, kinds
from weft.pipeline import normalize
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.laws import drop_precision_casts, in_one_memory, merge_equal, part, round_between_kernels
from weft.tensor.program import Cast, Elementwise, Monoid, TensorProgram
from weft.tensor.scalar import Apply, Arg

BF16, F32 = DType.bfloat16, DType.float32


def chain() -> TensorProgram:
    """Make `sum(exp(exp(x)))` in bfloat16, in eager's roundings."""
    b = Builder()
    x = b.input("x", (4, 4), BF16)
    return b.finish([b.reduce(Monoid.sum, b.elementwise(EXP, [b.elementwise(EXP, [x])]), [1])])


def test_what_lost_its_casts_is_noted_and_reductions_are_not() -> None:
    program = drop_precision_casts(chain())
    first, second = (n.name for n in program.nodes if isinstance(n, Elementwise))
    assert dict(program.rounded) == {first: BF16, second: BF16}


def test_parts_that_share_a_value_agree_on_its_type_in_memory() -> None:
    program = normalize(chain())
    first, *others = (n.name for n in program.nodes)
    maker, reader = part(program, (first,), (first,)), part(program, others, program.outputs)
    assert maker.rounded == reader.rounded[:1] == ((first, BF16),)
    made, read = round_between_kernels(maker), round_between_kernels(reader)
    assert kinds(made) == ["Elementwise", "Cast"]
    assert casts(made) == [("bfloat16", True)]
    assert [n.dtype for n in read.inputs] == [BF16]
    assert kinds(read) == kinds(reader)  # nothing else is rounded
    assert not made.rounded
    assert not read.rounded


def test_a_value_that_something_reads_with_all_its_bits_keeps_them() -> None:
    b = Builder()
    x = b.input("x", (4, 4), F32)
    wide = b.elementwise(EXP, [x])
    narrow = b.elementwise(EXP, [b.cast(wide, BF16)])
    program = drop_precision_casts(b.finish([b.reduce(Monoid.sum, narrow, [1]), b.reduce(Monoid.max, wide, [1])]))
    first = next(n.name for n in program.nodes if isinstance(n, Elementwise))
    assert first not in dict(program.rounded)


def test_equal_values_of_which_one_is_read_with_all_its_bits_keep_them() -> None:
    b = Builder()
    x, y = b.input("x", (4, 4), BF16), b.input("y", (4, 4), BF16)
    rounded = b.elementwise(EXP, [x])
    wide = b.elementwise(EXP, [b.cast(x, F32)], F32)
    kept = b.reduce(Monoid.max, b.elementwise(EXP, [wide], F32), [1])
    program = b.finish([b.reduce(Monoid.sum, b.elementwise(EXP, [b.elementwise(EXP, [rounded])]), [1]), kept, y])
    dropped = drop_precision_casts(program)
    first, *_ = (n.name for n in dropped.nodes if isinstance(n, Elementwise))
    assert first in dict(dropped.rounded)
    assert first not in dict(merge_equal(dropped).rounded)


def test_a_matmul_reads_what_lies_in_memory_without_a_cast() -> None:
    b = Builder()
    x, w, v = (b.input(name, (4, 4), BF16) for name in ("x", "w", "v"))
    made = b.matmul(x, w)
    program = normalize(b.finish([b.matmul(b.elementwise(EXP, [b.elementwise(EXP, [made])]), v)]))
    _, *others = (n.name for n in program.nodes)
    reader = part(program, others, program.outputs)
    assert round_between_kernels(reader).inputs[0].dtype is BF16
    cast = next(n for n in program.nodes if isinstance(n, Cast) and not n.semantic)
    behind = part(program, others[others.index(cast.name) :], program.outputs)
    assert (cast.arg.value, BF16) in behind.rounded
    read = round_between_kernels(behind)
    assert [n.dtype for n in read.inputs] == [BF16, BF16]
    assert kinds(behind) == ["Cast", *kinds(read)]  # the cast has nothing to do where memory is so


def residual() -> TensorProgram:
    """Make a sum that a matmul reads, and its result plus the same sum, in bfloat16, in eager's roundings."""
    b = Builder()
    x, y, w = (b.input(name, (4, 4), BF16) for name in ("x", "y", "w"))
    total = b.elementwise(Apply("add", (Arg(0), Arg(1))), [x, y])
    return b.finish([b.elementwise(Apply("add", (Arg(0), Arg(1))), [b.matmul(total, w), total])])


def test_a_value_and_what_a_matmul_reads_of_it_lie_in_one_memory() -> None:
    program = normalize(residual())
    cast = next(n for n in program.nodes if isinstance(n, Cast) and not n.semantic)
    made = part(program, (cast.arg.value, cast.name), (cast.arg.value, cast.name))
    assert in_one_memory(made) == {cast.arg.value: cast.name}
    stored = round_between_kernels(made)
    assert stored.outputs == (cast.name,)
    assert kinds(stored) == ["Elementwise", "Cast"]


def test_values_apart_in_type_or_in_order_lie_apart() -> None:
    program = normalize(residual())
    cast = next(n for n in program.nodes if isinstance(n, Cast) and not n.semantic)
    names = cast.arg.value, cast.name
    made = part(program, names, names)
    assert not in_one_memory(replace(made, rounded=()))
    assert not in_one_memory(part(program, names, names[1:]))
    turned = replace(cast, axes=cast.axes[::-1])
    assert not in_one_memory(replace(made, nodes=tuple(turned if n is cast else n for n in made.nodes)))
