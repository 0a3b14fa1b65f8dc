"""The laws on random programs: they keep the value; normal forms are final, and read only views of inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume, event, given, reject, settings
from hypothesis import strategies as st

from testkit.tensor.forms import kinds, run
from testkit.tensor.random_programs import write
from weft.errors import InvalidProgramError
from weft.pipeline import normalize
from weft.tensor.domain import Domain
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import drop_precision_casts, inline_reindexing, merge_equal, remove_dead, views
from weft.tensor.program import Cast, Input, Node, Reindex, TensorProgram

BF16, F32, F64 = DType.bfloat16, DType.float32, DType.float64


def _unrounded(program: TensorProgram) -> TensorProgram:
    """`program` with all its casts between floats made precision casts, which round nothing."""
    floats = {n.name for n in program.values().values() if n.dtype.is_float}

    def mild(node: Node) -> Node:
        is_float = isinstance(node, Cast) and node.dtype.is_float and node.arg.value in floats
        return replace(node, semantic=False) if is_float else node

    return replace(program, nodes=tuple(mild(n) for n in program.nodes))


@settings(max_examples=300)
@given(st.data())
def test_a_built_program_and_its_normal_form_are_what_eager_computes(data: st.DataObject) -> None:
    writer, program, expected = write(data, F64)
    inputs = {name: value.numpy() for name, value in writer.inputs.items()}
    for form in (program, normalize(program)):
        for ours, theirs in zip(run(form, inputs, Fp64Domain()), expected, strict=True):
            assert ours.shape == tuple(theirs.shape)
            assert np.allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-9)


def _same(domain: Domain[Any], a: Any, b: Any) -> bool:
    """Tell whether values are equal: in a field exactly, numbers up to the rounding of their largest."""
    if isinstance(domain, FieldDomain):
        return domain.equal(a, b)
    scale = float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0))
    return np.allclose(a, b, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


@settings(max_examples=300)
@given(st.data(), st.sampled_from((F32, BF16)))
def test_laws_keep_the_value_at_any_sizes(data: st.DataObject, dtype: DType) -> None:
    """At sizes other than the example's, in numbers and in a field."""
    _, program, _ = write(data, dtype)
    shown = {a.space for n in program.inputs for a in n.axes if a.space.fixed is None}
    sizes = {s.name: data.draw(st.integers(3, 5)) for s in sorted(shown, key=lambda s: s.name)}
    assume(program.consistent(program.sizes(sizes)))
    event(f"moved: {sum(isinstance(n, Reindex) for n in program.nodes)}")
    rng = np.random.default_rng(0)
    laws = (remove_dead, merge_equal, inline_reindexing, drop_precision_casts, normalize)
    forms = [_unrounded(law(program)) for law in laws]

    def check(domain: Domain[Any]) -> None:
        shapes = {n.name: [a.space.size(sizes) for a in n.axes] for n in program.inputs}
        inputs = {name: domain.random(shape, dtype, rng) for name, shape in shapes.items()}
        try:
            expected = run(program, inputs, domain)
        except InvalidProgramError:
            reject()  # an index that the example allowed, and these sizes do not
        for form in forms:
            for before, after in zip(expected, run(form, inputs, domain), strict=True):
                assert domain.shape(before) == domain.shape(after)
                assert _same(domain, before, after), f"{program}\n\n{form}"

    check(Fp64Domain())
    check(FieldDomain(0))


@settings(max_examples=150)
@given(st.data())
def test_normal_forms_are_final_and_read_only_views_of_inputs(data: st.DataObject) -> None:
    program = normalize(write(data, BF16)[1])
    assert sorted(kinds(normalize(program))) == sorted(kinds(program))
    values = program.values()
    stuck = [n for n in program.nodes if isinstance(n, Reindex)]
    deep = [n for n in stuck if not isinstance(values[n.source], Input)]
    assert all(isinstance(values[n.source], Reindex) for n in deep)
    event(f"views: {len(stuck)}, of views: {len(deep)}")


@settings(max_examples=150)
@given(st.data())
def test_views_are_offsets_and_strides(data: st.DataObject) -> None:
    """Each view's input is read through numpy's strides from the memory of its source."""
    writer, program, expected = write(data, F64)
    normal = normalize(program)
    viewed, found = views(normal)
    inputs = {name: value.numpy() for name, value in writer.inputs.items()}
    sizes: dict[str, int] = {}
    for node in program.inputs:
        for axis, size in zip(node.dims, inputs[node.name].shape, strict=True):
            if axis is not None:
                sizes[axis.space.name] = size
    sizes = program.sizes(sizes)
    for view in found:
        source = inputs[view.source]
        flat, strides = source.reshape(-1), [s // 8 for s in source.strides]
        shape = [axis.space.size(sizes) for axis in view.axes]
        at = np.full(shape, view.offset(source.shape, strides))
        for place, (size, step) in enumerate(zip(shape, view.strides(strides), strict=True)):
            along = [-1 if i == place else 1 for i in range(len(shape))]
            at = at + step * np.arange(size).reshape(along)
        inputs[view.name] = flat[at]
    if not any(isinstance(n, Reindex) for n in viewed.nodes):
        event(f"views: {len(found)}")
        for ours, theirs in zip(run(viewed, inputs, Fp64Domain()), expected, strict=True):
            assert np.allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-9)
