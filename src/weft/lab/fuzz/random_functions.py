"""Random PyTorch functions and what they are called with: of every element type, odd values, odd layouts, shared memory.

A function is drawn statement by statement and run eagerly while it is drawn, so that it has a meaning at its first sizes. All of it
follows from its seed.
"""

from __future__ import annotations

import linecache
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from weft.lab.fuzz.function_rows import MASKS, ROWS, Exactness, FunctionRow
from weft.lab.fuzz.function_values import LAYOUTS, VALUES, VIEWS, StandIn, generator

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
COMPLEX = ("complex64", "complex128")
ENTRIES = ("optimize", "compile")

_MOST_ELEMENTS, _MOST_DIMS = 1 << 14, 5
_TRIES = 40
_NAME = re.compile(r"\b[av]\d+\b")
# What eager raises for operands that an operation is not for.
REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class RandomArgument:
    """One tensor that a function is called with.

    Attributes:
        dims: sizes, or names of sizes that a call chooses.
        dtype: its name in torch.
        values, layout: rows of `VALUES` and `LAYOUTS`.
        of: an argument before it that it is a view of, its layout then a row of `VIEWS`.
    """

    name: str
    dims: tuple[str | int, ...]
    dtype: str
    values: str
    layout: str
    of: str | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """`target = text`, or where there is no target, `text`.

    Attributes:
        effect: on exactness.
        keeps: whether of exact operands the result is exact; of integers it always is.
    """

    target: str | None
    text: str
    effect: Exactness
    keeps: bool

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that stand in the text."""
        return tuple(_NAME.findall(self.text))

    def __str__(self) -> str:
        return self.text if self.target is None else f"{self.target} = {self.text}"


@dataclass(frozen=True, slots=True)
class RandomFunction:
    """A function, how it is entered and what it is called with.

    Attributes:
        calls: the sizes by name of each call, in order.
        threads: of PyTorch.
        entry: the public function that compiles it, one of `ENTRIES`.
    """

    seed: int
    arguments: tuple[RandomArgument, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    calls: tuple[Mapping[str, int], ...]
    threads: int
    entry: str

    def source(self) -> str:
        """Writes the text of the function, which is called f."""
        names = ", ".join(a.name for a in self.arguments)
        result = ", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")
        lines = [f"def f({names}):", *(f"    {s}" for s in self.statements), f"    return {result}"]
        return "\n".join(lines) + "\n"

    def made(self, *, wide: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """Makes the function itself; `wide` for the reference, where T.float16 and others are float64."""
        text, file = self.source(), f"<function {self.seed}{' wide' if wide else ''}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        scope = namespace(wide=wide)
        exec(compile(text, file, "exec"), scope)  # noqa: S102
        return scope["f"]

    def tensors(
        self, call: int, draw: int = 0, *, wide: bool = False, instead: StandIn | None = None
    ) -> list[torch.Tensor]:
        """Draws arguments for call number `call`: new ones each time, but equal for equal numbers.

        `wide` ones are in fp64; `instead` puts finite numbers in place of infinities and NaN.
        """
        made: dict[str, torch.Tensor] = {}
        for number, argument in enumerate(self.arguments):
            if argument.of is not None:
                made[argument.name] = VIEWS[argument.layout](made[argument.of])
                continue
            shape = tuple(self.calls[call][d] if isinstance(d, str) else d for d in argument.dims)
            numbers = generator(self.seed, number, call, draw)
            dtype = getattr(torch, argument.dtype)
            values = VALUES[argument.values](shape, dtype, numbers)
            values = _wide(values) if wide else values
            if instead is not None:
                values = instead(values, numbers)
            made[argument.name] = LAYOUTS[argument.layout](values)
        return list(made.values())

    def masks(self) -> bool:
        """Tells whether a statement may leave operands out by a mask."""
        return any(word in s.text for s in self.statements for word in MASKS)

    def decides_rightly(self) -> bool:
        """Tells whether all that decides reads exact values alone, and every name is known where it is read."""
        exact = {a.name: True for a in self.arguments}
        for statement in self.statements:
            if not all(name in exact for name in statement.reads):
                return False
            known = all(exact[name] for name in statement.reads)
            if statement.effect is Exactness.decides and not known:
                return False
            if statement.target is not None:
                exact[statement.target] = known and statement.keeps
            elif not (known and statement.keeps):
                exact = dict.fromkeys(exact, False)  # whoever shares the memory is not known here
        return all(name in exact for name in self.outputs)


def namespace(*, wide: bool = False) -> dict[str, Any]:
    """Returns what a function's text may name."""
    types = {name: torch.float64 if wide else getattr(torch, name) for name in FLOATS}
    return {"torch": torch, "F": functional, "T": SimpleNamespace(**types)}


def _wide(values: torch.Tensor) -> torch.Tensor:
    if values.is_complex():
        return values.to(torch.complex128)
    return values.double() if values.is_floating_point() else values


def random_function(seed: int) -> RandomFunction:
    """Draws the function with this seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Drawing(seed).function()


class _Drawing:
    """One function that is being drawn, and the values that it has so far at its first sizes."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(f"{seed} function")
        self.values: dict[str, torch.Tensor] = {}
        self.exact: dict[str, bool] = {}
        self.statements: list[Statement] = []

    def function(self) -> RandomFunction:
        """Draws all of it."""
        rng = self.rng
        calls = self._calls()
        arguments = self._arguments()
        drawn = RandomFunction(self.seed, arguments, (), (), calls, rng.choice((1, 1, 2)), rng.choice(ENTRIES))
        self.values = dict(zip((a.name for a in arguments), drawn.tensors(0), strict=True))
        self.exact = dict.fromkeys(self.values, True)
        threads = torch.get_num_threads()
        for _ in range(rng.randint(2, 7)):
            self._statement()
        torch.set_num_threads(threads)
        return replace(drawn, statements=tuple(self.statements), outputs=self._outputs())

    def _outputs(self) -> tuple[str, ...]:
        """Chooses the last value, others that nothing reads, now and then one that something reads, or an argument."""
        rng = self.rng
        read = {name for s in self.statements for name in s.reads}
        made = [s.target for s in self.statements if s.target is not None]
        unread = [name for name in made if name not in read]
        names = unread[-3:] or list(self.values)[:1]
        others = [name for name in self.values if name not in names]
        return (*names, *rng.sample(others, min(len(others), rng.choice((0, 0, 0, 1)))))

    def _calls(self) -> tuple[dict[str, int], ...]:
        rng = self.rng

        def size(small: float) -> int:
            if rng.random() < small:
                return rng.choice((0, 1, 1))
            return rng.choice((2, 3, 4, 5, 6, 7, 8, 9, 9, 16, 17, 33))

        calls = [{name: size(0.08) for name in "nmk"}]
        for _ in range(rng.choice((0, 1, 1, 2))):
            same = rng.random() < 0.3
            calls.append(dict(calls[0]) if same else {name: size(0.25) for name in "nmk"})
        return tuple(calls)

    def _arguments(self) -> tuple[RandomArgument, ...]:
        rng = self.rng
        main = rng.choices((FLOATS, INTEGERS, COMPLEX), (8, 2, 1))[0]
        dtype = rng.choice(main) if rng.random() < 0.5 else main[0]
        dims = self._dims(rng.choice((1, 2, 2, 2, 3, 3, 4)))
        found: list[RandomArgument] = []
        for number in range(rng.choice((1, 2, 2, 3, 3))):
            name = f"a{number}"
            if found and rng.random() < 0.12:
                found.append(replace(rng.choice(found), name=name, layout=rng.choice(list(VIEWS)), of=found[0].name))
                found[-1] = replace(found[-1], dims=(), dtype=found[0].dtype)
                continue
            own = dtype if rng.random() < 0.7 else rng.choice((*FLOATS, *INTEGERS, "bool", "int64", *COMPLEX[:1]))
            shape = dims if rng.random() < 0.6 else self._dims(rng.choice((0, 1, 2, len(dims))))
            layout = rng.choice(list(LAYOUTS)) if rng.random() < 0.35 else "dense"
            values = rng.choice(list(VALUES)) if rng.random() < 0.5 else "normal"
            found.append(RandomArgument(name, shape, own, values, layout))
        return tuple(found)

    def _dims(self, rank: int) -> tuple[str | int, ...]:
        rng = self.rng
        square = rng.random() < 0.25
        dims = [rng.choice(("n", "m", "k", "n", "m", rng.choice((1, 2, 3, 8)))) for _ in range(rank)]
        return (*dims[:-2], dims[-1], dims[-1]) if square and rank > 1 else tuple(dims)

    def _statement(self) -> None:
        """Draws statements until one has a meaning."""
        for _ in range(_TRIES):
            name = self._operand()
            kind = kind_of(self.values[name])
            rows = [
                row for row in ROWS if kind in row.kinds and (self.exact[name] or row.effect is not Exactness.decides)
            ]
            row = self.rng.choices(rows, [r.weight for r in rows])[0]
            text = self._filled(row, name, kind)
            if text is not None and self._taken(row, text):
                return

    def _operand(self) -> str:
        names = list(self.values)
        return self.rng.choices(names, [1 + i for i in range(len(names))])[0]

    def _filled(self, row: FunctionRow, name: str, kind: str) -> str | None:
        """Returns the row's text with its blanks filled in; None where there is nothing for one of them."""
        rng, value = self.rng, self.values[name]
        alike = [n for n, v in self.values.items() if kind_of(v) == kind and v.dtype == value.dtype] or [name]
        same = [n for n in alike if self.values[n].shape == value.shape]

        def other() -> str:
            pick = rng.random()
            return name if pick < 0.25 else rng.choice(same) if pick < 0.65 else rng.choice(alike)

        rank = value.dim()
        order = list(range(rank))
        rng.shuffle(order)
        numbers = ("0", "1", "2", "-1", "3") if kind in "ib" else ("0.0", "1.0", "-2.0", "0.5")
        if kind == "f" and row.effect is Exactness.rounds:
            numbers = (*numbers, "0.1", "1e-3", "1e4")
        blanks: dict[str, Callable[[], str | None]] = {
            "a": lambda: name,
            "b": other,
            "c": other,
            "m": lambda: self._of_kind("b", value),
            "i": lambda: self._of_kind("i", value),
            "d": lambda: str(rng.randrange(-rank, rank)) if rank else "0",
            "e": lambda: str(rng.randrange(-rank, rank)) if rank else "0",
            "s": lambda: rng.choice(("True", "False")) if kind == "b" else rng.choice(numbers),
            "k": lambda: rng.choice("1123"),
            "z": lambda: rng.choice(("2", "3", "8")) if kind == "i" else rng.choice(("2.0", "8.0", "0.3")),
            "lo": lambda: rng.choice(("1", "-1", "-2", "2")),
            "hi": lambda: rng.choice(("1", "-1", "2", "3")),
            "p": lambda: ", ".join(map(str, order)) or "()",
            "t": lambda: f"T.{rng.choice(FLOATS)}",
        }
        text = row.text.removeprefix("!")
        filled = {blank: blanks[blank]() for blank in dict.fromkeys(re.findall(r"\{(\w+)\}", text))}
        if None in filled.values():
            return None
        return text.format(**filled)

    def _of_kind(self, kind: str, like: torch.Tensor) -> str | None:
        """Chooses a value of the kind, if there is one, preferably of the same shape."""
        names = [n for n, v in self.values.items() if kind_of(v) == kind]
        same = [n for n in names if self.values[n].shape == like.shape]
        return self.rng.choice(same or names) if names else None

    def _taken(self, row: FunctionRow, text: str) -> bool:
        """Takes the statement if it has a meaning: then it is one of the function's."""
        target = None if row.writes else f"v{len(self.statements)}"
        statement = Statement(target, text, row.effect, row.effect is not Exactness.rounds)
        known = all(self.exact[name] for name in statement.reads)
        if row.effect is Exactness.decides and not known:
            return False
        scope = {**namespace(), **self.values}
        try:
            exec(str(statement), scope)  # noqa: S102
        except REFUSALS:
            return False
        if target is None:
            self._written(statement, known)
            self.statements.append(statement)
            return True
        value: object = scope[target]
        if not isinstance(value, torch.Tensor) or value.numel() > _MOST_ELEMENTS or value.dim() > _MOST_DIMS:
            return False
        keeps = statement.keeps or kind_of(value) in "ib"
        self.statements.append(replace(statement, keeps=keeps))
        self.values[target], self.exact[target] = value, known and keeps
        return True

    def _written(self, statement: Statement, known: bool) -> None:
        """Makes values that share memory with the one that is written no more exact than what was written."""
        written = self.values[statement.reads[0]]
        if known and (statement.keeps or kind_of(written) in "ib"):
            return
        memory = written.untyped_storage().data_ptr()
        for name, value in self.values.items():
            if value.untyped_storage().data_ptr() == memory:
                self.exact[name] = False


def kind_of(value: torch.Tensor) -> str:
    """Returns the letter of its kind in `function_rows`."""
    if value.is_complex():
        return "c"
    return "f" if value.is_floating_point() else "b" if value.dtype is torch.bool else "i"


# Making a function smaller.


def smaller(function: RandomFunction) -> list[RandomFunction]:
    """Lists functions with less in them, those first that are much smaller; not all of them have a meaning."""
    found: list[RandomFunction] = []
    if len(function.calls) > 1:
        found += [replace(function, calls=(function.calls[i],)) for i in range(len(function.calls))]
        found += [replace(function, calls=function.calls[:-1])]
    found += [replace(function, outputs=(name,)) for name in function.outputs if len(function.outputs) > 1]
    found += [_without(function, number) for number in reversed(range(len(function.statements)))]
    found += [each for number in reversed(range(len(function.statements))) for each in _bypassed(function, number)]
    found += [replace(function, threads=1)] if function.threads > 1 else []
    found += _plainer(function)
    sized = [
        {name: min(size, most) for name, size in call.items()} for most in (2, 3, 5) for call in function.calls[:1]
    ]
    if len(function.calls) == 1:
        found += [replace(function, calls=(call,)) for call in sized if call != function.calls[0]]
    return [pruned for each in found if (pruned := _pruned(each)) != function and pruned.decides_rightly()]


def _without(function: RandomFunction, number: int) -> RandomFunction:
    statements = function.statements
    return replace(function, statements=(*statements[:number], *statements[number + 1 :]))


def _bypassed(function: RandomFunction, number: int) -> list[RandomFunction]:
    """Lists functions with one operand of a statement in place of its result."""
    statement = function.statements[number]
    if statement.target is None:
        return []

    def with_(operand: str) -> RandomFunction:
        name = re.compile(rf"\b{statement.target}\b")
        kept = _without(function, number)
        statements = tuple(replace(s, text=name.sub(operand, s.text)) for s in kept.statements)
        outputs = tuple(dict.fromkeys(operand if o == statement.target else o for o in kept.outputs))
        return replace(kept, statements=statements, outputs=outputs)

    return [with_(operand) for operand in dict.fromkeys(statement.reads)]


def _plainer(function: RandomFunction) -> list[RandomFunction]:
    """Lists functions with one argument each without one of its oddities."""
    found: list[RandomFunction] = []
    for number, argument in enumerate(function.arguments):
        plain = ("values", "normal"), ("layout", "dense"), ("dtype", "float32")
        changes: Sequence[tuple[str, object]] = plain if argument.of is None else ()
        for name, value in changes:
            if getattr(argument, name) != value and (name != "dtype" or argument.dtype in FLOATS):
                changed = replace(argument, **{name: value})
                arguments = (*function.arguments[:number], changed, *function.arguments[number + 1 :])
                found.append(replace(function, arguments=arguments))
    return found


def _pruned(function: RandomFunction) -> RandomFunction:
    """Removes statements and arguments that nothing needs; writes stay where they write to what is needed."""
    needed = set(function.outputs)
    kept: list[Statement] = []
    for statement in reversed(function.statements):
        if statement.target is None or statement.target in needed:
            needed.update(statement.reads)
            kept.append(statement)
    for argument in reversed(function.arguments):
        if argument.name in needed and argument.of is not None:
            needed.add(argument.of)
    arguments = tuple(a for a in function.arguments if a.name in needed) or function.arguments[:1]
    return replace(function, statements=tuple(reversed(kept)), arguments=arguments)
