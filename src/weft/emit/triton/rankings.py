"""Rankings: rounds of "the first that is left" over what was first so far and a block of elements.

A float and its place are one integer, a key: the greatest of the keys is what comes first, and which element that is, at once.
Integers fill a word of their own; they take two reductions a round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from weft.block.program import Rank
from weft.emit.kinds import kind_of
from weft.emit.triton.body import Body
from weft.emit.triton.frame import spread
from weft.emit.triton.scalar import Text, coerced, number
from weft.emit.triton.text import call
from weft.emit.triton.values import Tile
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType

_KEY = '''
@triton.jit
def weft_key(value, place, LARGEST: tl.constexpr, NAN_FIRST: tl.constexpr):
    """Integers that grow with how early elements come: the value's order, 31 bits of its place, and whether it is -0."""
    bits = tl.cast(value, tl.int32, bitcast=True)
    low = ((2147483647 - place) << 1) | tl.cast(bits == -2147483648, tl.int64)
    bits = tl.where(value == 0.0, 0, bits)
    order = bits ^ ((bits >> 31) & 2147483647)
    if not LARGEST:
        order = ~order
    order = tl.where(value != value, 2147483647 if NAN_FIRST else -2147483647, order)
    key = (tl.cast(order, tl.int64) << 32) | low
    return tl.where(place == 9223372036854775807, -9223372036854775808, key)
'''

_RANKED = '''
@triton.jit
def weft_ranked(key, LARGEST: tl.constexpr, NAN_FIRST: tl.constexpr):
    """The value that a key was made of."""
    order = tl.cast(key >> 32, tl.int32)
    missing = key == -9223372036854775808
    nan = order == (2147483647 if NAN_FIRST else -2147483647)
    if not LARGEST:
        order = ~order
    bits = tl.where((key & 1) != 0, -2147483648, order ^ ((order >> 31) & 2147483647))
    value = tl.where(nan, float("nan"), tl.cast(bits, tl.float32, bitcast=True))
    return tl.where(missing, -float("inf") if LARGEST else float("inf"), value)
'''

_PLACE = '''
@triton.jit
def weft_place(key):
    """The place that a key was made of."""
    return tl.where(key == -9223372036854775808, 9223372036854775807, 2147483647 - ((key >> 1) & 2147483647))
'''

_FIRST = '''
@triton.jit
def weft_first(held, keys, RANKED: tl.constexpr, MANY: tl.constexpr, lane, COUNT: tl.constexpr):
    """The greatest COUNT of the keys `held`, in order, and `keys`: along the last axis of either, where it is RANKED or MANY."""
    there = tl.max(keys, len(keys.shape) - 1) if MANY else keys
    found = held
    if not RANKED:
        found = tl.maximum(held, there)
    else:
        last: tl.constexpr = len(held.shape) - 1
        better = there > tl.min(tl.where(lane < COUNT, held, 9223372036854775807), last)
        if last > 0:
            better = tl.max(tl.cast(better, tl.int32), None) > 0
        if better:
            found = tl.full(held.shape, -9223372036854775808, tl.int64)
            for i in range(COUNT):
                there = tl.max(keys, last) if MANY else keys
                best = tl.maximum(tl.max(held, last), there)
                wide = tl.expand_dims(best, last) if last > 0 else best
                found = tl.where(lane == i, wide, found)
                held = tl.where(held == wide, -9223372036854775808, held)
                keys = tl.where(keys == (wide if MANY else best), -9223372036854775808, keys)
    return found
'''

_FIRST_WHOLE = '''
@triton.jit
def weft_first_whole(held, places, keys, numbers, RANKED: tl.constexpr, MANY: tl.constexpr, lane, COUNT: tl.constexpr,
                     LARGEST: tl.constexpr, WORST: tl.constexpr):
    """`weft_first` for integers with their places: values and places."""
    if not LARGEST:
        held = ~held
        keys = ~keys
    held = tl.where(places == 9223372036854775807, -9223372036854775808, held)
    keys = tl.where(numbers == 9223372036854775807, -9223372036854775808, keys)
    numbers = numbers + tl.zeros_like(keys)
    if not RANKED:
        there = tl.max(keys, len(keys.shape) - 1) if MANY else keys
        wide = tl.expand_dims(there, len(keys.shape) - 1) if MANY and len(keys.shape) > 1 else there
        at = tl.where(keys == wide, numbers, 9223372036854775807)
        at = tl.min(at, len(keys.shape) - 1) if MANY else at
        earlier = (there > held) | ((there == held) & (at < places))
        found = tl.where(earlier, there, held)
        place = tl.where(earlier, at, places)
    else:
        last: tl.constexpr = len(held.shape) - 1
        found = tl.full(held.shape, -9223372036854775808, tl.int64)
        place = tl.full(held.shape, 9223372036854775807, tl.int64)
        for i in range(COUNT):
            there = tl.max(keys, last) if MANY else keys
            best = tl.maximum(tl.max(held, last), there)
            wide = tl.expand_dims(best, last) if last > 0 else best
            at = tl.where(keys == (wide if MANY else best), numbers, 9223372036854775807)
            at = tl.min(at, last) if MANY else at
            at = tl.minimum(tl.min(tl.where(held == wide, places, 9223372036854775807), last), at)
            wide_at = tl.expand_dims(at, last) if last > 0 else at
            found = tl.where(lane == i, wide, found)
            place = tl.where(lane == i, wide_at, place)
            held = tl.where(places == wide_at, -9223372036854775808, held)
            places = tl.where(places == wide_at, 9223372036854775807, places)
            gone = numbers == (wide_at if MANY else at)
            keys = tl.where(gone, -9223372036854775808, keys)
            numbers = tl.where(gone, 9223372036854775807, numbers)
    if not LARGEST:
        found = ~found
    return tl.where(place == 9223372036854775807, WORST, found), place
'''

_FUNCTIONS = {
    "weft_key": _KEY,
    "weft_ranked": _RANKED,
    "weft_place": _PLACE,
    "weft_first": _FIRST,
    "weft_first_whole": _FIRST_WHOLE,
}

NAMES = tuple(_FUNCTIONS)
"""What the functions are called."""


def functions(text: str) -> list[str]:
    """List the definitions, line by line, of the functions here that `text` calls."""
    called = dict.fromkeys(re.findall(r"\bweft_\w+", text))
    return "".join(_FUNCTIONS[name] + "\n" for name in called if name in _FUNCTIONS).splitlines()


def rank(body: Body, node: Rank) -> None:
    """Print the two results of `node`, a ranking in `body`'s graph: values and places."""
    frame, kind = body.frame, kind_of(node.dtype)
    rows = tuple(a for a in node.dims if a != node.rank)
    values, places, arg, numbers = (body.item(name) for name in (*node.acc, node.arg, node.numbers))
    frame.location([node.location])
    if node.rank is not None:  # lanes beyond a ranking's last hold nothing
        places = body.filled(node.places, places, float("inf"), (node.rank,))
    if node.over is not None and (node.over == node.rank or frame.lanes[node.over].whole):
        numbers = body.filled(node.places, numbers, float("inf"), (node.over,))

    def pair(value: Tile, place: Tile, last: Axis | None) -> list[str]:
        dims = rows if last is None else (*rows, last)
        text = coerced(Text(value.computed, value.kind), kind)
        return [body.aligned(text, value.dims, dims), body.aligned(place.text, place.dims, dims)]

    so_far, new = pair(values, places, node.rank), pair(arg, numbers, node.over)
    dims = rows if node.rank is None else (*rows, node.rank)
    lane = "None" if node.rank is None else spread(frame.lanes[node.rank].index, dims, (node.rank,))
    shape = [str(node.rank is not None), str(node.over is not None), lane, str(node.count)]
    order = [str(node.order.largest), str(node.order.nan_first)]
    if kind == "float":
        held, keys = (frame.hold(call("weft_key", *each, *order), "keys") for each in (so_far, new))
        first = frame.hold(call("weft_first", held, keys, *shape), "first")
        found = [frame.hold(call("weft_ranked", first, *order), node.name)]
        found.append(frame.hold(call("weft_place", first), node.places))
    else:
        found = [frame.names.make(node.name), frame.names.make(node.places)]
        worst = number(node.order.worst, "int")
        frame.out.line(f"{', '.join(found)} = {call('weft_first_whole', *so_far, *new, *shape, order[0], worst)}")
    body.values[node.name] = Tile(found[0], dims, node.dtype, node.dtype)
    body.values[node.places] = Tile(found[1], dims, DType.int64, DType.int64)


PRINTERS: Mapping[type, Callable[[Body, Any], None]] = {Rank: rank}
"""What prints the operators of this module."""


def _demand_numbers(node: Rank) -> None:
    """Raise UnsupportedError for a ranking of bools."""
    if kind_of(node.dtype) == "bool":
        raise UnsupportedError("a ranking of bools", where=node.location)


DEMANDS: Mapping[type, Callable[[Any], None]] = {Rank: _demand_numbers}
"""What is demanded of the operators of this module."""
