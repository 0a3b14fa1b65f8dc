"""The checker of tensor programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, assert_never

from weft.errors import InvalidProgramError
from weft.tensor import optable
from weft.tensor.axes import Axis, Space
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
    axes_of,
    reads,
    uses,
)
from weft.tensor.scalar import Apply, Arg, Scalar, parts


def well_formed(program: TensorProgram) -> None:
    """Checks that `program` means something.

    Each value is assigned once, before its uses; the axes of a result are distinct; a use has one
    axis per axis of its value, over the same space; what an operation runs over is in its result or
    summed; expressions are over the operation table; a space's name names one space.

    Raises:
        InvalidProgramError: with the first node that breaks a rule, and the rule.
    """
    values: dict[str, Node] = {}
    spaces: dict[str, Space] = {}
    for node in (*program.inputs, *program.nodes):
        if node.name in values:
            _fail(node.name, f"{node.name} is assigned twice", "a value is assigned once")
        if isinstance(node, Input) and node not in program.inputs:
            _fail(node.name, "an input among the nodes", "inputs are listed as inputs")
        _check_axes(node, spaces)
        for name in uses(node):
            if name not in values:
                what = f"{node.name} uses {name}, which is not defined before it"
                _fail(node.name, what, "a value is defined before its uses")
        _check(node, values)
        values[node.name] = node
    _check_outputs(program, values)


def _fail(node: str, what: str, condition: str) -> NoReturn:
    raise InvalidProgramError(what, node=node, condition=condition)


def _distinct(node: Node, axes: Sequence[Axis], what: str) -> None:
    if len(set(axes)) != len(axes):
        _fail(node.name, f"{what} of {node.name} repeats an axis", "axes are distinct")


def _check_axes(node: Node, spaces: dict[str, Space]) -> None:
    _distinct(node, node.axes, "the result")
    for axis in axes_of(node):
        if spaces.setdefault(axis.space.name, axis.space) != axis.space:
            what = f"{node.name} runs over another space called {axis.space.name}"
            _fail(node.name, what, "a space's name names one space")


def _check_use(node: Node, use: Use, values: Mapping[str, Node]) -> None:
    own = values[use.value].axes
    if len(use.axes) != len(own):
        what = f"{node.name} uses {use}, whose value has {len(own)} axes"
        _fail(node.name, what, "a use has one axis per axis of its value")
    for axis, defined in zip(use.axes, own, strict=True):
        if axis.space != defined.space:
            what = f"{node.name} reads {use.value}'s {defined.space.name} with axis {axis}"
            what += f" over {axis.space.name}"
            _fail(node.name, what, "a use's axis runs over the value's space")


def _check_cover(node: Node, read: Iterable[Axis], over: tuple[Axis, ...] = ()) -> None:
    """Checks that every axis that is read is in the result or summed."""
    for axis in read:
        if axis not in node.axes and axis not in over:
            what = f"{node.name} reads along {axis}, which is neither in its result nor summed"
            _fail(node.name, what, "what is read is in the result or summed")


def _check_over(node: Contraction | Reduction) -> None:
    _distinct(node, (*node.axes, *node.over), "the result and what is summed")
    if not node.over and isinstance(node, Reduction):
        _fail(node.name, f"{node.name} reduces over nothing", "a reduction has an axis to reduce")


def _check(node: Node, values: Mapping[str, Node]) -> None:
    match node:
        case Input() | Constant() | Extent() | Iota():
            _check_source(node)
        case Elementwise():
            for use in node.args:
                _check_use(node, use, values)
                _check_cover(node, use.axes)
            _check_expr(node.name, node.expr, len(node.args))
        case Contraction():
            _check_contraction(node, values)
        case Reduction():
            _check_reduction(node, values)
        case Scan():
            _check_scan(node, values)
        case Ranking():
            _check_ranking(node, values)
        case Reindex():
            _check_reindex(node, values)
        case Lookup():
            _check_lookup(node, values)
        case Cast():
            _check_use(node, node.arg, values)
            _check_cover(node, node.arg.axes)
        case Opaque():
            pass
        case _:
            assert_never(node)


def _check_source(node: Input | Constant | Extent | Iota) -> None:
    if isinstance(node, Input):
        if node.dims and tuple(a for a in node.dims if a is not None) != node.axes:
            _fail(node.name, f"{node.name}'s dims are not its axes", "dims are axes and units")
    elif len(node.axes) != (1 if isinstance(node, Iota) else 0):
        what = f"{node.name} has {len(node.axes)} axes"
        _fail(node.name, what, "constants and extents have rank 0, an iota has rank 1")


def _check_reduction(node: Reduction, values: Mapping[str, Node]) -> None:
    _check_use(node, node.arg, values)
    _check_over(node)
    _check_cover(node, node.arg.axes, node.over)
    if not set(node.arg.axes) >= {*node.axes, *node.over}:
        what = f"{node.name} has an axis that {node.arg} does not read along"
        _fail(node.name, what, "a reduction's axes are its argument's")


def _check_scan(node: Scan, values: Mapping[str, Node]) -> None:
    for use in node.args:
        _check_use(node, use, values)
        _distinct(node, use.axes, "what is scanned")
        if set(node.axes) != set(use.axes) or node.over not in node.axes:
            what = f"{node.name} has other axes than {use}, or runs along none of them"
            _fail(node.name, what, "a scan's axes are its arguments', and it runs along one of them")
    for expr in node.element:
        _check_expr(node.name, expr, len(node.args))
    for expr in node.merge.parts:
        _check_expr(node.name, expr, 2 * node.merge.size)
    sizes = {node.merge.size, len(node.merge.begin), len(node.element), len(node.kinds)}
    if len(sizes) > 1 or not node.args or node.result not in range(node.merge.size):
        what = f"{node.name} has states of {node.merge.size} components, and others"
        _fail(node.name, what, "a scan's states have the same components, of which it gives one")


def _check_ranking(node: Ranking, values: Mapping[str, Node]) -> None:
    _check_use(node, node.arg, values)
    _distinct(node, (*node.axes, node.over), "the result and what is ranked")
    _distinct(node, node.arg.axes, "what is ranked")
    if node.rank is not None and (node.rank not in node.axes or node.rank.space.fixed is None):
        _fail(
            node.name,
            f"{node.name} has no axis {node.rank} of fixed size",
            "a ranking's axis is its result's, of fixed size",
        )
    if {*node.axes, node.over} - {node.rank} != set(node.arg.axes):
        what = f"{node.name} has other axes than {node.arg}"
        _fail(node.name, what, "a ranking's axes are its argument's but one, and its rank")


def _check_contraction(node: Contraction, values: Mapping[str, Node]) -> None:
    _check_use(node, node.left, values)
    _check_use(node, node.right, values)
    _check_over(node)
    left, right = set(node.left.axes), set(node.right.axes)
    _check_cover(node, (*node.left.axes, *node.right.axes), node.over)
    for axis in node.over:
        if axis not in left or axis not in right:
            what = f"{node.name} sums over {axis}, which is not in both operands"
            _fail(node.name, what, "a contraction sums over axes of both operands")
    for axis in node.axes:
        if axis not in left | right:
            what = f"{node.name} has axis {axis}, which no operand has"
            _fail(node.name, what, "an axis of a contraction is in an operand")


def _check_reindex(node: Reindex, values: Mapping[str, Node]) -> None:
    if len(node.index) != len(values[node.source].axes):
        what = f"{node.name} has {len(node.index)} indices into {node.source}, which has"
        what += f" {len(values[node.source].axes)} axes"
        _fail(node.name, what, "a reindexing has one index per axis of its source")
    for index in node.index:
        axes = tuple(a for a, _ in index.terms)
        _distinct(node, axes, f"index {index}")
        _check_cover(node, axes)
        if any(c == 0 for _, c in index.terms):
            _fail(node.name, f"index {index} has coefficient 0", "coefficients are not 0")


def _check_lookup(node: Lookup, values: Mapping[str, Node]) -> None:
    own = values[node.source].axes
    if len(node.index) != len(own):
        what = f"{node.name} has {len(node.index)} indices into {node.source}, which has {len(own)} axes"
        _fail(node.name, what, "a lookup has one index per axis of its source")
    along = tuple(a for a in node.along if a is not None)
    _distinct(node, along, f"what goes along {node.source} in {node.name}")
    if len(along) == len(own):
        _fail(node.name, f"no value says where {node.name} reads {node.source}", "a lookup reads where values say")
    for index, axis in zip(node.index, own, strict=True):
        if isinstance(index, Axis):
            if index.space != axis.space:
                what = f"{node.name} goes along {node.source}'s {axis.space.name} with axis {index}"
                _fail(node.name, what, "an axis goes along a dimension of its own space")
            continue
        _check_use(node, index, values)
        if values[index.value].dtype.kind != "int":
            _fail(node.name, f"{index} is {values[index.value].dtype}", "an index is an integer")
    read = {*along, *(a for use in reads(node) for a in use.axes)}
    _check_cover(node, read)
    if not read >= set(node.axes):
        _fail(node.name, f"{node.name} has an axis that no index has", "a lookup's axes are those of its indices")


def _check_expr(name: str, expr: Scalar, arity: int) -> None:
    for part in parts(expr):
        match part:
            case Arg(index) if not 0 <= index < arity:
                what = f"{name} reads argument {index} of {arity}"
                _fail(name, what, "an expression reads the arguments there are")
            case Apply(op, args) if len(args) != optable.row(op).arity:
                what = f"{name} applies {op} to {len(args)} arguments"
                _fail(name, what, "an operation has as many arguments as its row")
            case _:
                pass


def _check_outputs(program: TensorProgram, values: Mapping[str, Node]) -> None:
    for name in program.outputs:
        if name not in values:
            _fail(name, f"output {name} is not defined", "an output is a value")
    if program.output_dims and len(program.output_dims) != len(program.outputs):
        _fail("", "not one entry of output_dims per output", "output_dims has one entry per output")
    for name, dims in zip(program.outputs, program.output_dims, strict=False):
        if {a for a in dims if a is not None} != set(values[name].axes):
            _fail(name, f"{name}'s output_dims are not its axes", "dims are axes and units")
