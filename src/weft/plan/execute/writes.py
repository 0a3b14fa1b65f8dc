"""Graphs that write into their arguments: which writes can be made in place, in which order, and which cannot.

A write gives a value, as everything does. Where that value is a part of an argument written anew, as one row of a cache is, it
is the argument itself that is written into, in place, if all that reads its old content can run before; otherwise a copy of it.
What an argument holds in the end is copied into it after all else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from weft.capture import Captured, Effect, OpaqueCall, Piece, Written, apart, may_view
from weft.plan.execute.runner import Runner
from weft.plan.partition.partition import Task, TorchCall, sorted_by, waits_of
from weft.tensor.program import Opaque, Reindex, TensorProgram, uses


def with_writes_in_place(
    captured: Captured, program: TensorProgram, stages: Sequence[Task]
) -> tuple[tuple[Task, ...], frozenset[str]]:
    """Orders the stages so that as many writes as possible are in place; returned with the names of those calls.

    A write is, where its first argument is the memory of a placeholder by then, and whatever reads the old content, or may be
    a view of it, comes before.
    """
    memory = _Memory(captured, program)
    waits = waits_of(stages)
    ordered, chosen = tuple(range(len(stages))), frozenset[str]()
    for number, stage in enumerate(stages):
        call = captured.calls[stage.name] if isinstance(stage, TorchCall) else None
        if call is None or call.into is None or not memory.is_placeholders(call, chosen):
            continue
        old = memory.old(call)
        if old is None:
            continue
        readers = [i for i, s in enumerate(stages) if old.intersection(s.uses) and not memory.is_apart(s, call)]
        own = (*waits[:number], waits[number].union(readers), *waits[number + 1 :])
        late = any(ordered.index(reader) > ordered.index(number) for reader in readers)
        found = sorted_by(own) if late else ordered
        if found is not None:
            waits, ordered, chosen = own, found, chosen | {call.name}
    return tuple(stages[number] for number in ordered), chosen


def written_over(captured: Captured, program: TensorProgram) -> dict[str, tuple[str, ...]]:
    """Maps each call that can write into an argument in place to the values, by name, that may be the memory as it was before:
    what it writes over, and views of that.
    """
    memory, found = _Memory(captured, program), dict[str, tuple[str, ...]]()
    for name in dict.fromkeys(n.call for n in program.nodes if isinstance(n, Opaque)):
        call = captured.calls[name]
        if call.into is not None and memory.is_placeholders(call, found):
            old = memory.old(call)
            if old is not None:
                found[name] = tuple(sorted(old, key=program.places.__getitem__))
    return found


class _Memory:
    """What may be whose memory, in a program with writes."""

    def __init__(self, captured: Captured, program: TensorProgram) -> None:
        self.captured, self.program = captured, program
        self.nodes = {n.name: n for n in program.nodes if isinstance(n, Opaque)}
        self.inputs = {n.name: i for n, i in zip(program.inputs, captured.arguments, strict=True)}
        # What each call that writes into an argument writes over: the first value that it reads.
        self.bases = {n.call: n.uses[0] for n in self.nodes.values() if captured.calls[n.call].into is not None}

    def is_placeholders(self, call: OpaqueCall, chosen: Collection[str]) -> bool:
        """Tells whether what `call` writes into is the memory of the placeholder that it is to be the content of."""
        base = self.bases[call.name]
        node = self.nodes.get(base)
        if node is None:
            return self.inputs.get(base) == call.into
        return node.call in chosen and self.captured.calls[node.call].into == call.into

    def old(self, call: OpaqueCall) -> frozenset[str] | None:
        """Names the values that may be the memory that `call` writes into, before it does; None if somebody reads the old
        content when all is done, or what is written would be read while it changes.
        """
        same = {self.bases[call.name]}
        for node in self.program.nodes:  # in the order in which they are made
            match node:
                case Opaque() if node.call != call.name and not self._goes_out(node.call):
                    same |= {node.name} if self._may_view(node, same) else set()
                case Reindex(source=source) if source in same:
                    same.add(node.name)
                case _:
                    pass
        of_call = next(n for n in self.nodes.values() if n.call == call.name)
        return None if same.intersection((*self.program.outputs, *of_call.uses[1:])) else frozenset(same)

    def _may_view(self, node: Opaque, same: Collection[str]) -> bool:
        """Tells whether `node` may be the memory of one of these values, or a view of it."""
        target = self.captured.calls[node.call].target
        if isinstance(target, Effect):
            return node.uses[0] in same
        if isinstance(target, Piece):
            return False
        return may_view(target) and not set(same).isdisjoint(node.uses)

    def is_apart(self, stage: Task, call: OpaqueCall) -> bool:
        """Tells whether the stage is `call` itself, or a view that goes out, and so need not come before it."""
        return isinstance(stage, TorchCall) and (stage.name == call.name or self._goes_out(stage.name))

    def _goes_out(self, name: str) -> bool:
        """Tells whether the results of a call go out as views of memory, whose content is to be the last, and nothing else."""
        if not self.captured.calls[name].pinned:
            return False
        made = [n.name for n in self.nodes.values() if n.call == name]
        readers = [reader for value in made for reader in self.program.readers.get(value, ())]
        return all(isinstance(r, Opaque) and self.captured.calls[r.call].pinned for r in readers)


def last_values(captured: Captured, program: TensorProgram, chosen: Collection[str]) -> dict[int, int]:
    """Maps placeholders to the output of `program` that must be copied into each in the end, unless it is its memory already."""
    calls = {n.name: n.call for n in program.nodes if isinstance(n, Opaque)}

    def there(argument: int, output: int) -> bool:
        call = calls.get(program.outputs[output])
        return call is not None and call in chosen and captured.calls[call].into == argument

    return {argument: output for argument, output in captured.writes if not there(argument, output)}


def once_only(captured: Captured, program: TensorProgram, chosen: Collection[str]) -> frozenset[str]:
    """Finds those of the writes in place `chosen` after which the graph cannot run again from its beginning, with what
    it then finds.

    It can, where each write into an argument only replaces elements, whatever they were (`x[i] = y`), and nothing but the next
    write reads the argument before the last one: the second run writes the same again.
    """
    nodes = [n for n in program.nodes if isinstance(n, Opaque) and n.call in chosen]
    found, used = set[str](), {value for node in program.nodes for value in uses(node)}
    # A view that is handed out shows the memory, whatever is in it when it is made; PyTorch makes its own.
    views = {n.name for n in program.nodes if isinstance(n, Opaque) and captured.calls[n.call].pinned} - used
    for argument in {captured.calls[n.call].into for n in nodes}:
        own = [n for n in nodes if captured.calls[n.call].into == argument]
        bases = {n.uses[0] for n in own}
        allowed = {(n.name, n.uses[0]) for n in own if n.uses.count(n.uses[0]) == 1}
        readers = [node for node in program.nodes if node.name not in views]
        read = any(value in bases and (node.name, value) not in allowed for node in readers for value in uses(node))
        if read or bases.intersection(program.outputs) or not all(_replaces(captured.calls[n.call]) for n in own):
            found |= {n.call for n in own}
    return frozenset(found)


_REPLACING = frozenset({"copy_", "fill_", "zero_", "index_copy_", "index_fill_", "index_put_", "masked_fill_"})


def _replaces(call: OpaqueCall) -> bool:
    """Tells whether a write gives elements values in which their old ones have no part."""
    if not isinstance(call.target, Effect):
        return False
    _, _, (first, *args), kwargs = call.args
    name = str(call.target.overloadpacket).removeprefix("aten.")
    accumulates = kwargs.get("accumulate", len(args) > 2 and args[2]) if name == "index_put_" else False
    return name in _REPLACING and first == Written(0) and accumulates is False


def guarded(captured: Captured, run: Runner, eager: Runner) -> Runner:
    """Runs `run`, but `eager` for arguments of which one that is written into shares memory with another."""
    written = [argument for argument, _ in captured.writes]
    if not written:
        return run

    def call(*arguments: Any) -> Sequence[Any]:
        given = (*arguments, *captured.constants)
        return run(*arguments) if apart(given, written) else eager(*arguments)

    return call


def described(captured: Captured, program: TensorProgram, chosen: Collection[str]) -> list[str]:
    """Says to a user what is written into which argument, and how."""
    names = {index: node.name for node, index in zip(program.inputs, captured.arguments, strict=True)}
    copied = last_values(captured, program, chosen)
    found: list[str] = []
    for argument, _ in captured.writes:
        calls = [c for c in captured.calls.values() if c.into == argument]
        parts = [f"{c.target.overloadpacket} {'in place' if c.name in chosen else 'on a copy'}" for c in calls]
        parts += ["copied into it as a whole at the end"] if argument in copied else []
        found.append(f"{names.get(argument, 'a tensor of the function')}: {', '.join(parts)}")
    return found
