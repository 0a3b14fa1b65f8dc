"""One sample through torch.compile and weft, beside eager and fp64."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # no public name
from torch.utils import _pytree as pytree  # no public name

from testkit.opinfo.database import Case, tensors_of
from weft.api.backend import compile_graph
from weft.plan import Plan
from weft.verify.judge import judge

Kind = Literal["weft", "partly", "pytorch", "wrong", "crash", "skipped"]
"""All in weft's kernels; some; none, and right; not what eager gives; an error that eager does not have; eager has one."""

_SEED = 42
"""Set before every run; the database's entries that draw random numbers set the same one within."""

DEFECTS = ("weft failed", "capture failed", "the laws on tensor programs", "does not compute what was written")
"""Reasons that speak of an error of weft's, not of what it does not do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a sample: its kind, and why."""

    kind: Kind
    reasons: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """True where somebody must look at it."""
        return self.kind in ("wrong", "crash") or any(d in reason for reason in self.reasons for d in DEFECTS)


def check(case: Case) -> Outcome:
    """Runs `case` eagerly, compiled and in fp64, and compares."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _check(case)


def _check(case: Case) -> Outcome:
    call, given = _function(case)
    own, seen = _copies(given), _copies(given)
    try:
        torch.manual_seed(_SEED)
        wanted = call(*own)
    except Exception as error:  # noqa: BLE001 - whatever eager refuses is no sample
        return Outcome("skipped", (f"eager: {type(error).__name__}",))
    plans: list[Plan] = []
    try:
        found = _run(case, call, seen, plans)
    except Exception as error:  # noqa: BLE001 - an error that eager does not have is the finding
        return Outcome("crash", (f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"[:300],))
    reasons = tuple(_general(f) for plan in plans for f in plan.fallbacks)
    wrong = _difference(_of_ties(case, given, found, wanted), wanted, _reference(case, given, wanted), seen, own)
    if wrong:
        return Outcome("wrong", (wrong, *reasons))
    if not plans:
        return Outcome("pytorch", ("Dynamo leaves it to PyTorch",))
    kernels = any(plan.kernels for plan in plans)
    if not reasons:
        return Outcome(
            "weft" if kernels else "pytorch", () if kernels else ("nothing to compute: views, or no elements",)
        )
    return Outcome("partly" if kernels else "pytorch", reasons)


def _function(case: Case) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Writes the sample as a user would, a plain function of its tensors; returned with the tensors."""
    tensors: list[torch.Tensor] = []
    known: dict[str, Any] = {"__name__": __name__, "op": case.op.get_op()}

    def text(value: Any) -> str:
        match value:
            case torch.Tensor():
                tensors.append(value)
                return f"t{len(tensors) - 1}"
            case list():
                return f"[{', '.join(map(text, value))}]"
            case tuple() if type(value) is tuple:
                return f"({''.join(f'{text(item)}, ' for item in value)})"
            case dict():
                return f"{{{', '.join(f'{key!r}: {text(item)}' for key, item in value.items())}}}"
            case _:
                known[f"c{len(known)}"] = value
                return f"c{len(known) - 1}"

    arguments = [text(value) for value in case.args] + [f"{key}={text(value)}" for key, value in case.kwargs.items()]
    names = ", ".join(f"t{i}" for i in range(len(tensors)))
    exec(f"def call({names}): return op({', '.join(arguments)})", known)
    return known["call"], tensors


def _run(case: Case, call: Callable[..., Any], tensors: list[torch.Tensor], plans: list[Plan]) -> Any:
    """Runs the case in weft; the plans that were run go to `plans`."""
    if case.layout in ("contiguous", "noncontiguous"):
        graph = _graph(call, tensors)
        plan = compile_graph(graph, tensors)
        if not any("capture failed" in f.reason for f in plan.fallbacks):
            plans.append(plan)
            torch.manual_seed(_SEED)
            return plan.run(*tensors)
        # What the call does depends on the content of tensors: Dynamo cuts such a function into several graphs.
    torch.manual_seed(_SEED)
    return _compiled(call, case.layout == "symbolic", plans)(*tensors)


def _graph(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The graph that Dynamo makes of `call`, made without Dynamo: a tenth of the time."""
    graph, mode = torch.fx.Graph(), FakeTensorMode()
    made: dict[int, torch.fx.Node] = {}
    for tensor in tensors:
        if id(tensor) not in made:
            node = made[id(tensor)] = graph.placeholder(f"t{len(made)}")
            node.meta["example_value"] = mode.from_tensor(tensor)
    graph.output(graph.call_function(call, tuple(made[id(tensor)] for tensor in tensors)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _compiled(call: Callable[..., Any], dynamic: bool, plans: list[Plan]) -> Callable[..., Any]:
    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        plans.append(compile_graph(gm, example_inputs))
        return plans[-1].run

    torch.compiler.reset()
    return torch.compile(call, backend=backend, dynamic=dynamic)


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of the same numbers and strides, in memory of their own; tensors that are one stay one."""
    made: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if id(tensor) not in made:
            made[id(tensor)] = _copy(tensor)
    return [made[id(tensor)] for tensor in tensors]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        return tensor.clone()
    size = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1 if tensor.numel() else 0
    whole = tensor.detach().as_strided((size,), (1,)).clone()
    copy = whole.as_strided(tensor.shape, tensor.stride(), 0)
    return torch.nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else copy


def _reference(case: Case, given: Sequence[torch.Tensor], wanted: Any) -> list[torch.Tensor]:
    """The floating results in fp64; eager's own where the operation has no fp64 form, or draws random numbers."""
    eager = tensors_of(wanted)
    floats = (torch.float32, torch.bfloat16, torch.float16)

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.detach().clone().double()
        return torch.float64 if leaf in floats and isinstance(leaf, torch.dtype) else leaf

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(_SEED)
        args, kwargs = pytree.tree_map(widen, (case.args, case.kwargs))
        exact = tensors_of(case.op(*args, **kwargs))
    except Exception:  # noqa: BLE001 - there is no fp64 form then
        exact = eager
    finally:
        torch.set_default_dtype(default)
    random = "drop" in case.entry or any(a.shape != b.shape for a, b in zip(exact, eager, strict=False))
    if len(exact) != len(eager) or random:
        exact = eager
    pairs = zip(exact, eager, strict=True)
    return [a.double() if b.is_floating_point() and not a.is_complex() else b for a, b in pairs]


def _of_ties(case: Case, given: Sequence[torch.Tensor], found: Any, wanted: Any) -> Any:
    """Replaces the places of a top-k by eager's where ours are others of the same values: PyTorch promises no order of ties."""
    ours, theirs = tensors_of(found), tensors_of(wanted)
    if (
        not case.entry.startswith("topk")
        or len(ours) != len(theirs)
        or not ours[0].ndim
        or ours[1].shape != theirs[1].shape
    ):
        return found
    dims = [a for a in (*case.args[2:3], case.kwargs.get("dim")) if isinstance(a, int)]
    dim = dims[0] if dims else -1
    picked, places = given[0].gather(dim, ours[1]), ours[1].sort(dim).values
    same = torch.equal(picked.double().nan_to_num(7e300), theirs[0].double().nan_to_num(7e300))
    once = bool((places.diff(dim=dim) > 0).all())
    return (ours[0], theirs[1]) if same and once and ours[1].dtype == theirs[1].dtype else found


def _difference(
    found: Any, wanted: Any, exact: list[torch.Tensor], seen: list[torch.Tensor], own: list[torch.Tensor]
) -> str:
    """In what the results are not eager's; "" where in nothing."""
    ours, theirs = tensors_of(found), tensors_of(wanted)
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors, eager {len(theirs)}"
    others = [_plain(x) for x in pytree.tree_leaves(found)] != [_plain(x) for x in pytree.tree_leaves(wanted)]
    if others:
        return "another number"
    unjudged = [i for i, t in enumerate(theirs) if t.is_complex() or t.layout != torch.strided]
    for i in unjudged:
        if theirs[i].is_complex() and not torch.equal(*(torch.view_as_real(t[i]).nan_to_num() for t in (ours, theirs))):
            return "another complex number"
    keep = [i for i in range(len(theirs)) if i not in unjudged]
    judgement = judge(
        [_excused(ours[i], theirs[i], exact[i]) for i in keep], [theirs[i] for i in keep], [exact[i] for i in keep]
    )
    if not judgement.ok:
        return judgement.reason
    for i in keep:
        if _steps(ours[i]) != _steps(theirs[i]):
            return f"strides {ours[i].stride()} of shape {tuple(ours[i].shape)}, eager {theirs[i].stride()}"
    if _shared(ours, seen) != _shared(theirs, own):
        return "shares memory with other tensors than eager's"
    changed = judge(seen, own, [t.double() if t.is_floating_point() else t for t in own if t.layout == torch.strided])
    return "" if changed.ok else "an input is changed"


def _excused(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Our result with eager's elements where eager's own fp64 says NaN, infinite or not as we do, and eager does not.

    PyTorch's fp32 GELU of infinity, for one, is NaN where its fp64, bf16 and a shorter tensor's are infinite.
    """
    if not theirs.is_floating_point() or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return ours
    right, wrong = torch.ones_like(ours, dtype=torch.bool), torch.zeros_like(ours, dtype=torch.bool)
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        right &= kind(ours) == kind(exact)
        wrong |= kind(theirs) != kind(exact)
    return torch.where(right & wrong, theirs, ours)


def _plain(leaf: Any) -> Any:
    """A leaf that is no tensor, so that NaN equals NaN."""
    return None if isinstance(leaf, torch.Tensor) else str(leaf)


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides that matter."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1] if tensor.numel() else []


def _shared(results: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[list[int]]:
    """For each result the numbers of the tensors, inputs and earlier results, whose memory it is."""
    every = [t for t in (*inputs, *results) if t.layout == torch.strided]
    places = [t.untyped_storage().data_ptr() for t in every]
    count = len(every) - len(results)
    return [[j for j in range(count + i) if places[j] == places[count + i] != 0] for i in range(len(results))]


def _general(fallback: Any) -> str:
    """A reason without the sizes of the one sample."""
    text = f"{fallback.operation}: {fallback.reason}"
    text = re.sub(r"\[[-\d, ]*\]", "[..]", text)
    return re.sub(r"(?<![\w.])-?\d+(\.\d+)?(e-?\d+)?\b(?![\w])", "N", text)
