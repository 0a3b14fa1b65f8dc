"""Random functions that write into their arguments and their views, beside eager.

PYTHONPATH=src:tests python -m testkit.api.random_writes 0 500
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import torch

from weft.api.backend import compile_graph
from weft.plan import Plan

_VIEWS = {
    2: ("{a}.t()", "{a}[1]", "{a}[1:3]", "{a}[:, 1:]", "{a}[:, 0]", "{a}.unsqueeze(0).squeeze(0)", "{a}.reshape(-1)"),
    1: ("{a}[1:]", "{a}[::2]", "{a}.detach()"),
}
_VALUES = (
    *("{a} * {b}", "torch.exp(-{a}.abs()) + {b}", "{a} - {b}.sum(-1, keepdim=True)", "torch.softmax({a}, -1)"),
    *("torch.cumsum({a}, 0)", "{a}.clone()", "{a} @ {a}.t() @ {b}"),
)
_WRITES = (
    *(
        "{a}.add_(1)",
        "{a}.mul_(0.5)",
        "{a}.copy_({b})",
        "{a}.tanh_()",
        "{a}.sub_({b})",
        "{a}.zero_()",
        "{a}.cumsum_(0)",
    ),
    *("{a}[0] = 2.0", "{a}[1] += 1", "{a}[-1] = {b}[0]", "{a}.masked_fill_({b} > 0.3, 0.1)", "{a}.clamp_(-1, 1)"),
    "{a}.index_fill_(0, torch.zeros(1, dtype=torch.long), 0.7)",
    "{a}.index_copy_(0, torch.ones(1, dtype=torch.long), {b}[:1])",
)


def function(seed: int) -> str:
    """The text of a function `fn(x, y, v)` of two matrices of 4 by 6 and a vector of 6."""
    draw = random.Random(seed)
    tensors = {"x": torch.zeros(4, 6), "y": torch.zeros(4, 6), "v": torch.zeros(6)}
    lines: list[str] = []
    while len(lines) < 3 + seed % 6:
        a = draw.choice(list(tensors))
        b = draw.choice([name for name, t in tensors.items() if t.shape == tensors[a].shape])
        kind = draw.random()
        choices = _WRITES if kind > 0.55 else _VALUES if kind > 0.3 else _VIEWS[tensors[a].ndim]
        text = draw.choice(choices).format(a=a, b=b)
        name = f"t{len(lines)}"
        line = text if choices is _WRITES else f"{name} = {text}"
        trial = {other: t.clone() for other, t in tensors.items()}
        try:
            exec(line, {"torch": torch}, trial)
        except (RuntimeError, IndexError):
            continue  # of no meaning for these shapes
        if min(trial.get(name, tensors[a]).shape) > 1:
            tensors = trial
            lines.append(line)
    results = [*draw.sample(list(tensors), 2), list(tensors)[-1]]
    lines.append(f"return {', '.join(r if draw.random() < 0.7 else f'{r} * 2' for r in results)}")
    return "\n    ".join(("def fn(x, y, v):", *lines))


def arguments(seed: int) -> list[torch.Tensor]:
    """Two matrices, one of them as it lies in memory turned or with gaps, and a vector."""
    draw = torch.Generator().manual_seed(seed)
    turned = torch.randn(6, 4, generator=draw).t() if seed % 3 == 0 else torch.randn(4, 6, generator=draw)
    gaps = torch.randn(8, 12, generator=draw)[::2, ::2] if seed % 4 == 0 else torch.randn(4, 6, generator=draw)
    return [turned, gaps, torch.randn(6, generator=draw)]


def difference(seed: int) -> str:
    """In what weft's function number `seed` differs from eager's over two calls; "" where in nothing, or eager has an error."""
    known: dict[str, Any] = {"torch": torch}
    exec(function(seed), known)
    fn = known["fn"]
    given = arguments(seed)
    own, other, exact = ([torch.empty_strided(t.shape, t.stride()).copy_(t) for t in given] for _ in range(3))
    exact = [t.double() for t in exact]
    plans: list[Plan] = []

    def backend(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Any:
        plans.append(compile_graph(gm, example))
        return plans[-1].run

    torch.compiler.reset()
    fast = torch.compile(fn, backend=backend, dynamic=seed % 3 == 1)
    with torch.no_grad():
        for _ in range(2):
            try:
                wanted = (*fn(*other), *other)
                reference = (*fn(*exact), *exact)
            except RuntimeError:
                return ""
            found = (*fast(*own), *own)
            for a, b, c in zip(found, wanted, reference, strict=True):
                if (a - c).abs().max() > 2 * (b - c).abs().max() + 1e-5 * c.abs().max():
                    return f"{a} is not {b}"
            if _sharing(found) != _sharing(wanted):
                return "other tensors share memory"
    failed = [f for plan in plans for f in plan.fallbacks if "weft failed" in f.reason or "capture failed" in f.reason]
    return "; ".join(map(str, failed))


def _sharing(tensors: Sequence[torch.Tensor]) -> list[list[bool]]:
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [[a == b for b in places] for a in places]


def main(first: int, end: int) -> int:
    """Functions number `first` to `end`; 1 where one differs."""
    bad = 0
    for seed in range(first, end):
        found = difference(seed)
        if found:
            bad += 1
            print(f"{seed}: {found}\n{function(seed)}", flush=True)
    print(f"{end - first} functions, {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
