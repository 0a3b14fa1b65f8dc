"""The roofline of a machine, with points for kernels: operations per byte against operations per second, both logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from weft.draw.svg import add, root_of

_LEFT, _TOP, _WIDTH, _HEIGHT = 70.0, 34.0, 520.0, 260.0


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A kernel, or what was measured: what it is called, its operations, the bytes that it moves, and the seconds it takes."""

    name: str
    flops: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Operations in a second."""
        return self.flops / self.seconds


def roofline(points: Sequence[RooflinePoint], bytes_per_second: float, flops: float, title: str) -> str:
    """Print the plot as SVG without colours of its own; points without operations or times have no place in it."""
    shown = [p for p in points if p.flops > 0 and p.bytes > 0 and 0 < p.seconds < math.inf]
    ridge = flops / bytes_per_second
    xs = [ridge, *(p.intensity for p in shown)]
    ys = [flops, *(p.rate for p in shown)]
    left, right = math.floor(math.log10(min(xs))) - 1, math.ceil(math.log10(max(xs))) + 1
    low, high = math.floor(math.log10(min(ys))) - 1, math.ceil(math.log10(max(ys)))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - left) / (right - left)
        up = (math.log10(y) - low) / (high - low)
        return _LEFT + _WIDTH * across, _TOP + _HEIGHT * (1 - up)

    said = "; ".join(f"{p.name}: {p.intensity:.3g} operations per byte, {p.rate:.3g} per second" for p in shown)
    root = root_of(_LEFT + _WIDTH + 20, _TOP + _HEIGHT + 46 + 16 * len(shown), title, said)
    _axes(root, left, right, low, high)
    # The roof: from where memory alone would give the lowest rate shown, or the left edge, to the ridge, and on.
    begin = max(10.0**left, 10.0**low / bytes_per_second)
    corners = [at(begin, begin * bytes_per_second), at(ridge, flops), at(10.0**right, flops)]
    way = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    ET.SubElement(root, "path", {"class": "device", "d": way})
    add(root, "text", {"font-size": "12", "class": "title"}, x=_LEFT, y=18).text = title
    for i, point in enumerate(shown):
        x, y = at(point.intensity, point.rate)
        add(root, "circle", {"class": "chip"}, cx=x, cy=y, r=4)
        add(root, "text", {"font-size": "10", "class": "chip"}, x=x + 6, y=y - 5 - 11 * (i % 2)).text = str(i + 1)
        legend = f"{i + 1}: {point.name}: {point.intensity:.3g} flops/byte, {point.rate / 1e9:.4g} GFLOP/s"
        add(root, "text", {"font-size": "10"}, x=_LEFT, y=_TOP + _HEIGHT + 50 + 16 * i).text = legend
    return ET.tostring(root, encoding="unicode")


def _axes(root: ET.Element, left: int, right: int, low: int, high: int) -> None:
    """Draw the grid, its numbers and what they count."""
    for exponent in range(left, right + 1):
        x = _LEFT + _WIDTH * (exponent - left) / (right - left)
        add(root, "line", {}, x1=x, y1=_TOP, x2=x, y2=_TOP + _HEIGHT)
        add(root, "text", {"font-size": "10"}, x=x - 12, y=_TOP + _HEIGHT + 14).text = _power(exponent)
    for exponent in range(low, high + 1):
        y = _TOP + _HEIGHT * (1 - (exponent - low) / (high - low))
        add(root, "line", {}, x1=_LEFT, y1=y, x2=_LEFT + _WIDTH, y2=y)
        add(root, "text", {"font-size": "10"}, x=_LEFT - 34, y=y + 3).text = _power(exponent)
    text = "flops per byte of memory traffic (across), flops per second (up)"
    add(root, "text", {"font-size": "10"}, x=_LEFT, y=_TOP + _HEIGHT + 30).text = text


def _power(exponent: int) -> str:
    return f"1e{exponent}"
