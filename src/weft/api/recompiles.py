"""Warnings about a value that PyTorch makes a constant although it changes from call to call, so that each call compiles."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any, cast

import torch

from weft.errors import Location
from weft.options import current
from weft.tracer import InstructionTranslator, guard_failures

OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
"""Where files lie that are none of the user's."""
_TIMES = 8
"""Compiles for as many values of one thing are said; it is PyTorch's own limit, past which it would give up."""
_LOOKED_AT = 64
# What PyTorch notes of a trace that does not serve: "0/3: pos == 5  # x[:, pos] = k  # file.py:4 in step (...)", and of a size.
_FIXED = re.compile(
    r"^\d+/\d+: (?P<what>.+?) == (?P<value>[^\n]+?)\s+# (?P<text>.*?)\s+# (?P<file>[^\n]+?):(?P<line>\d+) in "
)
_SIZE = re.compile(r"^\d+/\d+: tensor '(?P<what>.+)' size mismatch at index (?P<dim>\d+)\. expected (?P<value>\d+),")
_GLOBAL = re.compile(r"G\['(\w+)'\]")
_said: set[tuple[str, str, int, str]] = set()


def say_what_is_fixed() -> None:
    """Warn, once for each, where the function that Dynamo is tracing now was traced for eight values of one thing.

    Does nothing outside of a trace, and where each size is to be traced for itself.
    """
    code = traced_function()
    if code is None:
        return
    values, places = _fixed(cast("Any", guard_failures)[code][-_LOOKED_AT:], code)
    for what, found in values.items():
        said = (code.co_filename, code.co_name, code.co_firstlineno, what)
        if len(found) + 1 >= _TIMES and said not in _said:
            _said.add(said)
            place = places[what]
            message = (
                f"weft compiles {code.co_name} again for each value of {what}, {len(found) + 1} so far ({', '.join(found)} "
                f"and another): PyTorch makes it a constant at {place}. {_todo(what, found)}"
            )
            warnings.warn_explicit(message, RuntimeWarning, place.file, place.line)


def traced_function() -> CodeType | None:
    """Return the code of the function that Dynamo is tracing now; None outside of a trace."""
    try:
        return cast("Any", InstructionTranslator.current_tx()).output.root_tx.f_code
    except AttributeError:
        return None


def _fixed(failures: Iterable[str], code: CodeType) -> tuple[dict[str, list[str]], dict[str, Location]]:
    """Collect by what is fixed the values that were, each once, and where."""
    values: dict[str, list[str]] = {}
    places: dict[str, Location] = {}
    for failure in failures:
        fixed, size = _FIXED.match(failure), _SIZE.match(failure)
        if fixed is not None:
            what, value = _GLOBAL.sub(r"\1", fixed["what"]), fixed["value"]
            # PyTorch shortens the path, to its last so many letters.
            path = code.co_filename if code.co_filename.endswith(fixed["file"].removeprefix("...")) else fixed["file"]
            places[what] = Location(path, int(fixed["line"]), fixed["text"])
        elif size is not None and current().dynamic:
            what, value = f"{size['what']}.shape[{size['dim']}]", size["value"]
            places[what] = Location(code.co_filename, code.co_firstlineno, "")
        else:
            continue
        found = values.setdefault(what, [])
        if value not in found:
            found.append(value)
    return values, places


def _todo(what: str, values: Iterable[str]) -> str:
    if ".shape[" in what:
        return "A size that becomes a Python number (int(x.shape[0]), len of a list) is a constant: compute with x.shape itself."
    kinds: set[type]
    try:
        kinds = {type(ast.literal_eval(value)) for value in values}
    except (ValueError, SyntaxError):
        kinds = {object}
    if kinds <= {int, float}:
        argument = "as a tensor" if what.isidentifier() else "as an argument, or as a tensor"
        return f"Pass it {argument} (torch.tensor({what.rpartition('.')[2]})); ends of slices may be numbers."
    return "Compile one function for each value, or compute what depends on it outside."
