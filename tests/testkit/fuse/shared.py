"""Random programs of exponentials over square matrices, which read one operand by its rows and by its columns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from testkit.block.programs import F32, MUL, tensor
from testkit.fuse.exponentials import DIV, EXP
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Contraction, Elementwise, Monoid, Node, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Scalar, apply

SQUARE = Space("M")
A, B, C = (Axis(n, SQUARE) for n in "abc")
SUB = apply("sub", Arg(0), Arg(1))
X, Y, MASK = tensor("x", A, B), tensor("y", A, B), tensor("mask", A, B, dtype=DType.bool)


@dataclass
class Maker:
    """A program that grows: `logits` are what exponentials are taken of, `weights` what came of that."""

    rng: random.Random
    nodes: list[Node] = field(default_factory=list)
    logits: list[str] = field(default_factory=lambda: ["x", "y"])
    weights: list[str] = field(default_factory=list)

    def add(self, expr: Scalar, *uses: Use, axes: Sequence[Axis] = (A, B)) -> str:
        self.nodes.append(Elementwise(f"t{len(self.nodes)}", tuple(axes), F32, expr, uses))
        return self.nodes[-1].name

    def along(self, monoid: Monoid, value: str, over: Axis) -> Use:
        """A reduction of all elements along `over`."""
        kept = (A,) if over is B else (B,)
        self.nodes.append(Reduction(f"t{len(self.nodes)}", kept, F32, monoid, Use(value, (A, B)), (over,)))
        return Use(self.nodes[-1].name, kept)

    def of(self, values: Sequence[str]) -> Use:
        return Use(self.rng.choice(values), (A, B))

    def product(self, left: str, right: str) -> str:
        self.nodes.append(Contraction(f"t{len(self.nodes)}", (A, B), F32, Use(left, (A, C)), Use(right, (C, B)), (C,)))
        return self.nodes[-1].name

    def normalised(self, value: str, over: Axis) -> str:
        return self.add(DIV, Use(value, (A, B)), self.along(Monoid.sum, value, over))

    def softmax(self, over: Axis) -> str:
        """Shifted by the maximum or not, its first part masked or not."""
        value = self.rng.choice(self.logits)
        if self.rng.random() < 0.8:
            value = self.add(SUB, Use(value, (A, B)), self.along(Monoid.max, value, over))
        raised = self.add(EXP, Use(value, (A, B)))
        if self.rng.random() < 0.2:
            raised = self.add(apply("where", Arg(0), Lit(0.0), Arg(1)), Use("mask", (A, B)), Use(raised, (A, B)))
        return self.normalised(raised, over)

    def step(self) -> None:
        over, kind = self.rng.choice((A, B)), self.rng.randrange(9)
        if kind == 0:
            self.logits.append(self.product(self.rng.choice(self.logits), self.rng.choice(self.logits)))
        elif kind == 1:
            self.logits.append(self.add(SUB, self.of(self.logits), Use(self.rng.choice(self.logits), (B, A))))
        elif kind < 5 or not self.weights:
            self.weights.append(self.softmax(over))
        elif kind == 5:
            self.weights.append(self.product(self.rng.choice(self.weights), self.rng.choice(self.weights)))
        elif kind == 6:
            self.weights.append(self.add(MUL, self.of(self.weights), self.of(self.weights)))
        elif kind == 7:
            self.weights.append(self.normalised(self.rng.choice(self.weights), over))
        else:
            chosen = apply("where", Arg(0), Arg(1), Arg(2))
            self.weights.append(self.add(chosen, Use("mask", (A, B)), self.of(self.weights), self.of(self.weights)))


def random_program(rng: random.Random) -> TensorProgram:
    """Two softmaxes or more, and what is made of them."""
    maker = Maker(rng)
    maker.weights += [maker.softmax(rng.choice((A, B))) for _ in range(2)]
    for _ in range(rng.randint(1, 3)):
        maker.step()
    read = {u.value for n in maker.nodes for u in _uses(n)}
    outputs = tuple(n.name for n in maker.nodes if n.name not in read)
    return TensorProgram((X, Y, MASK), tuple(maker.nodes), outputs)


def _uses(node: Node) -> tuple[Use, ...]:
    match node:
        case Elementwise():
            return node.args
        case Contraction():
            return (node.left, node.right)
        case Reduction():
            return (node.arg,)
        case _:
            raise AssertionError(node)


def numbers(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Inputs whose rows, or whose columns, differ by up to 1e30, lie far from 0, or are the least number that there is."""
    found: dict[str, np.ndarray] = {"mask": rng.random((size, size)) < 0.4}
    far = 10.0 ** rng.uniform(-15, 15, (size, 1))
    for name in ("x", "y"):
        x = rng.standard_normal((size, size))
        lowest = np.where(rng.random((size, size)) < 0.7, np.finfo(np.float32).min, x)
        kinds = (x, 30 * x, 1e4 * x, far * x, (far * x).T, x + 1e4 * rng.standard_normal((size, 1)), lowest)
        found[name] = kinds[rng.integers(len(kinds))].astype(np.float32).astype(np.float64)
    return found
