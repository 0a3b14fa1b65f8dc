"""Calls that write, recorded as calls that give new values.

What is written into a whole tensor is its value from then on. A write into a part of a tensor that the graph made gives that tensor
anew, each element of the part or not. Into memory that was there before PyTorch writes (`Effect`), and where a call writes into
several arguments, or not into its first: that gives anew the tensors whose memory it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.calls import draws, functional_of, is_empty, written_by
from weft.capture.describe import packed
from weft.capture.memory import STRIDED, Effect, Written, storage_of
from weft.capture.parts import PARTS
from weft.capture.recording import Meaning
from weft.capture.sizes import expression
from weft.capture.stores import STORES
from weft.capture.tape import Tape
from weft.capture.written_parts import with_part
from weft.errors import UnsupportedError

_ATEN: Any = torch.ops.aten
_UNWRITTEN = frozenset(
    f"aten.{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)
"""Operations that give memory as it is."""
InParts: TypeAlias = Callable[[OpOverload[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Records a call as those that it consists of, and returns what they give; or records nothing, and returns NotImplemented."""


class InPlaceCalls:
    """Records calls that write.

    Attributes:
        tape: where they are recorded.
        meaning: what weft makes of a call.
    """

    def __init__(self, tape: Tape, meaning: Meaning) -> None:
        self.tape = tape
        self.meaning = meaning

    def record(
        self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], in_parts: InParts
    ) -> Any:
        """Records a call of an operation whose schema says that it writes, and returns what it gives.

        Args:
            func: the operation.
            args: its arguments by position.
            kwargs: those by name.
            in_parts: records the same operation without the write, as the operations that it consists of.

        Raises:
            UnsupportedError: what is written may be the memory of others, or changes its shape where others see it.
        """
        if func is _ATEN.detach_.default:
            return args[0]  # no gradients are recorded here
        func, args = self._with_a_number(func, args)
        functional = functional_of(func, args)
        if functional is None:
            return self.effect(func, args, kwargs, written_by(func, args, kwargs))
        try:
            target = cast("torch.Tensor", args[0])
            place = self.tape.memory.place(target)
            if torch.Tag.inplace_view in func.tags:
                self._reshape(functional, target, args, kwargs)
            elif is_empty(target):
                pass  # there is nothing to write
            elif func is _ATEN.copy_.default and self._same(target, args[1]):
                pass  # as Python has it in x[0] += y: what has been added to is then put where it already is
            elif self._rather_in_place(func, functional, target, args):
                self.tape.memory.may_write(target)
                self._write_into(target, func, args[1:], kwargs, in_parts)
            else:
                self.tape.memory.may_write(target)
                self._replace(func, functional, target, args, kwargs, in_parts)
                if place.steps:
                    self._write_into(target, _ATEN.copy_.default, (target,), {}, in_parts)
                else:
                    self.tape.memory.wrote(target)
                self.tape.memory.current(target)
        except UnsupportedError as error:
            raise UnsupportedError(error.what, where=self.tape.location) from error
        return self.tape.on_fakes(func, args, kwargs)

    def effect(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], written: Sequence[torch.Tensor], result: Any = None
    ) -> Any:
        """Records a call that writes into `written`, some of its arguments, as one that gives what they look into anew.

        result: what it gives without data; None where that is to be found out.

        Raises:
            UnsupportedError: what is written may be the memory of others, or a result is a view.
        """
        if torch.Tag.inplace_view in getattr(op, "tags", ()):
            raise UnsupportedError(f"{op} changes the shape of an argument", where=self.tape.location)
        for tensor in written:
            self.tape.memory.may_write(tensor)
        places = [self.tape.memory.place(tensor) for tensor in written]
        bases = list({id(place.base): place.base for place in places}.values())
        numbers = [next(i for i, base in enumerate(bases) if base is place.base) for place in places]
        stands = {id(tensor): Written(i) for i, tensor in enumerate(written)}

        def held(leaf: Any) -> Any:
            return stands[id(leaf)] if id(leaf) in stands else self.tape.placeheld(leaf)

        before = self.tape.held((tuple(bases), tuple(place.arguments for place in places)))
        given = before + tuple(pytree.tree_map(held, (args, kwargs)))
        result = self.tape.on_fakes(op, tuple(args), kwargs) if result is None else result
        fresh = {i: leaf for i, leaf in enumerate(pytree.tree_leaves(result)) if self.tape.is_fresh(leaf)}
        if any(map(self.tape.shows_known_memory, fresh.values())):
            raise UnsupportedError(f"{op} returns a view of the tensor that it writes into", where=self.tape.location)
        looks = tuple((number, place.calls) for number, place in zip(numbers, places, strict=True))
        target = Effect(op, looks, tuple(map(packed, bases)), tuple(fresh))
        into = self.tape.inputs.get(id(bases[0])) if len(bases) == 1 and not fresh else None
        slots = [self.tape.new_slot(base) for base in bases]
        for leaf in fresh.values():
            slots.append(self.tape.add(leaf))
            self.tape.memory.own(leaf)
        self.tape.append(target, (given, {}), tuple(slots), into)
        for base in bases:
            self.tape.memory.wrote(base)
            self.tape.memory.current(base)
        return result

    def _with_a_number(
        self, func: OpOverload[..., Any], args: tuple[Any, ...]
    ) -> tuple[OpOverload[..., Any], tuple[Any, ...]]:
        """Turns a call that fills with what Python made of a number into one that fills with the number."""
        if func in {_ATEN.fill_.Tensor, _ATEN.copy_.default}:
            tensor, value = self.tape.numbers.get(id(args[1]), (None, None))
            if tensor is args[1] and not self.tape.memory.written(args[1]):
                return _ATEN.fill_.Scalar, (args[0], value)
        return func, args

    def _same(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Tells whether both are the same elements of the same tensor."""
        if not (self.tape.knows(target) and self.tape.knows(source)):
            return False
        forms = [(t.dtype, *map(expression, (*t.shape, *t.stride(), t.storage_offset()))) for t in (target, source)]
        memory = self.tape.memory
        return memory.place(target).base is memory.place(source).base and forms[0] == forms[1]

    def _rather_in_place(
        self, func: OpOverload[..., Any], functional: OpOverload[..., Any], target: torch.Tensor, args: tuple[Any, ...]
    ) -> bool:
        """Tells whether PyTorch had better write: there is nothing to compute, or nothing that weft can."""
        place, packet = self.tape.memory.place(target), str(func.overloadpacket)
        if not place.steps and id(target) not in self.tape.inputs:
            return False
        if packet == "aten.copy_":
            source = self.tape.memory.place(args[1]).base if isinstance(args[1], torch.Tensor) else None
            return bool(place.steps) or id(source) in self.tape.inputs
        if packet in {"aten.fill_", "aten.zero_"}:
            return bool(place.steps)
        if str(functional) in STORES:
            return True
        known = self.meaning(str(functional.overloadpacket)) is not None or str(functional) in PARTS
        return not (known or draws(func, args, {}))

    # The three ways in which a call with a functional form is recorded.

    def _replace(
        self,
        func: OpOverload[..., Any],
        functional: OpOverload[..., Any],
        target: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        in_parts: InParts,
    ) -> None:
        """Makes the result of `functional` the value of `target`."""
        made = self._copied(args[1], target) if func is _ATEN.copy_.default else NotImplemented
        if made is NotImplemented:
            given = (self._begun(target), *args[1:]) if str(functional) in STORES else args
            made = in_parts(functional, given, kwargs)
        if isinstance(made, torch.Tensor) and (made.dtype, made.shape) == (target.dtype, target.shape):
            self.tape.renew(target, _ATEN.clone.default, ((self.tape.placeheld(made),), {}))
            return
        held = self.tape.held((args, kwargs))
        fake: torch.Tensor = self.tape.on_fakes(functional, args, kwargs)
        if fake.dtype == target.dtype:
            self.tape.renew(target, functional, held)
            return
        self.tape.memory.own(fake)
        slot = self.tape.renew(fake, functional, held)
        self.tape.renew(target, _ATEN.to.dtype, ((slot, target.dtype), {}))

    def _copied(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        """Records what `target` is once `source` has been copied into it."""
        if source.dtype != target.dtype:
            source = self.tape.record(_ATEN.to.dtype, (source, target.dtype), {})
        if source.shape != target.shape:
            source = self.tape.record(_ATEN.expand.default, (source, target.shape), {})
        return source

    def _write_into(
        self,
        target: torch.Tensor,
        op: OpOverload[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        in_parts: InParts,
    ) -> None:
        """Records `op`, in place on `target`, as a change of the tensor whose memory that is.

        Raises:
            UnsupportedError: on a copy of that tensor, the views that lead to `target` need not exist.
        """
        place = self.tape.memory.place(target)
        base, into = place.base, self.tape.inputs.get(id(place.base))
        if into is None and self._anew(target, op, args, kwargs, in_parts):
            return
        looks = [str(call.overloadpacket) for call, _ in place.calls]
        row_major = packed(base)
        if into is None and not row_major and not STRIDED.issuperset(looks):
            raise UnsupportedError(f"{op} writes into a reshaped tensor that is not contiguous")
        bases, looks, given, named = self.tape.held(((base,), (place.arguments,), tuple(args), kwargs))
        held: Any = (bases, looks, (Written(0), *given), named), {}
        self.tape.renew(base, Effect(op, ((0, place.calls),), (row_major,)), held, into)
        self.tape.memory.wrote(base)
        self.tape.memory.current(base)

    def _anew(
        self,
        target: torch.Tensor,
        op: OpOverload[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        in_parts: InParts,
    ) -> bool:
        """Records anew the tensor into a part of which `op` writes; False, and nothing is recorded, where that is not known."""
        place, undo = self.tape.memory.place(target), self.tape.mark()
        try:
            value = self._put(op, args, target)
            if value is None:
                value = self._stored(op, (target, *args), kwargs, in_parts)
            whole = self._begun(place.base)
            made = NotImplemented if value is None else with_part(self.tape, whole, place.steps, value, in_parts)
            if made is NotImplemented:
                self.tape.undo(undo)
                return False
            self.tape.renew(place.base, _ATEN.clone.default, ((self.tape.placeheld(made),), {}))
        except UnsupportedError:
            self.tape.undo(undo)
            return False
        self.tape.memory.wrote(place.base)
        self.tape.memory.current(place.base)
        return True

    def _begun(self, base: torch.Tensor) -> torch.Tensor:
        """Returns `base`, or where nothing was written into it yet, zeros: what it holds is read by nothing that means anything."""
        slot = self.tape.placeheld(base)
        made = next((call for call in reversed(self.tape.calls) if slot in call.results), None)
        if made is None or made.packet not in _UNWRITTEN:
            return base
        zero = self.tape.record(_ATEN.full.default, ((), 0), {"dtype": base.dtype, "device": base.device})
        return self.tape.record(_ATEN.expand.default, (zero, base.shape), {})

    def _put(self, op: OpOverload[..., Any], args: Sequence[Any], target: torch.Tensor) -> torch.Tensor | None:
        """Records what `op` puts in place of `target`, whatever that is; None where it is something else."""
        kind = {"dtype": target.dtype, "device": target.device}
        match str(op), args:
            case "aten.copy_.default", (torch.Tensor() as source, *_):
                return self._copied(source, target)
            case "aten.fill_.Scalar", (value,):
                made = self.tape.record(_ATEN.full.default, ((), value), kind)
            case "aten.zero_.default", _:
                made = self.tape.record(_ATEN.full.default, ((), 0), kind)
            case _:
                return None
        return self.tape.record(_ATEN.expand.default, (made, target.shape), {})

    @staticmethod
    def _stored(
        op: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], in_parts: InParts
    ) -> torch.Tensor | None:
        """Records what the first argument is once `op` has stored a few elements in it; None where that is PyTorch's to do."""
        functional = functional_of(op, args)
        made = in_parts(functional, args, kwargs) if functional is not None and str(functional) in STORES else None
        return made if isinstance(made, torch.Tensor) else None

    def _reshape(
        self, functional: OpOverload[..., Any], target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Records an in-place call that changes how a tensor looks at its memory, as squeeze_ does.

        Raises:
            UnsupportedError: others look at that memory, or the caller sees it.
        """
        if id(target) in self.tape.inputs:
            raise UnsupportedError(f"{functional} in place changes the shape of an input")
        place, storage = self.tape.memory.place(target), storage_of(target)
        if not place.steps and self.tape.is_shared(target):
            self._set_apart(target)
            place = self.tape.memory.place(target)
        held = self.tape.held((args, kwargs))
        if place.steps and storage_of(self.tape.on_fakes(functional, args, kwargs)) != storage:
            raise UnsupportedError(f"{functional} in place on memory that several tensors share")
        self.tape.memory.looked(target, functional, args, kwargs)
        self.tape.renew(target, functional, held)

    def _set_apart(self, tensor: torch.Tensor) -> None:
        """Makes `tensor`, which others look into, a view too: of one that keeps its shape, into which they look from now on."""
        held = self.tape.placeheld(tensor)
        with self.tape.unrecorded():
            base = tensor.detach()
        self.tape.append(_ATEN.detach.default, ((held,), {}), (self.tape.add(base),))
        self.tape.memory.stand_in(tensor, base)
