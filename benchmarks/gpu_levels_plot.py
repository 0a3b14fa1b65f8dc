"""The plots of docs/measurements/gpu-levels.md, from what gpu_levels.py wrote: `draw`. Needs Matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu_levels
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colours that are told apart without seeing red or green (Okabe and Ito), and in print by their markers.
_LEVELS = {"thread": ("#D55E00", "o"), "warp": ("#E69F00", "s"), "block": ("#0072B2", "^"), "row": ("#009E73", "D")}
_FORMS = {"apart": "-", "in turn": "--", "whole": "-"}
_MODEL = {"linewidth": 0.8, "linestyle": ":", "markersize": 3, "fillstyle": "none"}
# The same measurements make the same bytes.
_METADATA = {"Date": None, "Creator": None}
mpl.rcParams.update({"svg.hashsalt": "weft", "svg.fonttype": "none", "font.size": 8, "font.family": "sans-serif"})


def draw(held: Mapping[str, Any], folder: Path) -> None:
    """Write `gpu-levels.svg` and `gpu-waves.svg` into `folder`, each from what the file has of its section."""
    rows = [cell for cell in held["cells"] if cell["function"] != "attention" and "eager_us" in cell]
    waves = [cell for cell in held["cells"] if cell["function"] == "attention" and "eager_us" in cell]
    if rows:
        _saved(levels(rows), folder / "gpu-levels.svg")
    if waves:
        _saved(running(waves[0]), folder / "gpu-waves.svg")


def _saved(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="svg", metadata=_METADATA)


def levels(cells: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot section 5.3: for each function and number of rows, time beside the unfused launches', by length of a row."""
    panels = list(dict.fromkeys((cell["function"], cell["sizes"][0]) for cell in cells))
    figure = Figure((4.2 * ((len(panels) + 1) // 2), 6.4), layout="constrained")
    all_axes = figure.subplots(2, (len(panels) + 1) // 2, squeeze=False, sharex=True)
    for (function, count), axes in zip(panels, all_axes.T.flat, strict=False):
        own = [cell for cell in cells if (cell["function"], cell["sizes"][0]) == (function, count)]
        _panel(axes, own)
        axes.set_title(f"{function}, {count} rows, fp32")
    figure.legend(*all_axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _panel(axes: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    lines: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for cell in cells:
        some = gpu_levels.best(cell)
        base = some.get(("", "unfused", 1))
        for (level, form, _), point in some.items() if base is not None else ():
            if level:
                ratio, model = point["us"] / base["us"], point["predicted_us"] / base["predicted_us"]
                lines.setdefault((level, form), []).append((cell["sizes"][1], ratio, model))
    for level, (colour, marker) in _LEVELS.items():
        for form, style in _FORMS.items():
            if (level, form) in lines:
                widths, ratios, models = zip(*sorted(lines[level, form]), strict=True)
                axes.plot(widths, ratios, style, color=colour, marker=marker, markersize=4, label=f"{level}, {form}")
                axes.plot(widths, models, color=colour, marker=marker, **_MODEL)
    axes.plot([], [], color="black", label="predicted", **_MODEL)
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    widths = sorted({cell["sizes"][1] for cell in cells})
    axes.set_xticks(widths, [str(n) for n in widths])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("elements of a row")
    axes.set_ylabel("time / time of the unfused launches")


def running(cell: Mapping[str, Any]) -> Figure:
    """Plot section 5.4: time by waves, of running states and of segments held whole."""
    figure = Figure((6.4, 3.8), layout="constrained")
    axes: Axes = figure.subplots()
    for form, label, colour, marker in (
        ("in turn", "incremental", *_LEVELS["block"]),
        ("whole", "non-incremental", *_LEVELS["thread"]),
    ):
        for key, name, style in (
            ("us", label, {"linestyle": "-", "markersize": 4}),
            ("predicted_us", f"{label}, predicted", _MODEL),
        ):
            points = sorted((p["waves"], p[key], n) for (_, f, n), p in gpu_levels.best(cell).items() if f == form)
            if points:
                waves, times, counts = zip(*points, strict=True)
                axes.plot(waves, times, color=colour, marker=marker, label=name, **style)
                if key == "us":
                    for wave, time, count in zip(waves, times, counts, strict=True):
                        axes.annotate(str(count), (wave, time), (0, 5), textcoords="offset points", ha="center")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("waves per multiprocessor: programs of the grid / 132 (beside points: segments of the keys)")
    axes.set_ylabel("us")
    batch, heads, queries, keys, width = cell["sizes"]
    axes.set_title(f"attention, {batch} x {heads} heads of {width}, {queries} queries and {keys} keys, fp16")
    axes.legend(frameon=False)
    return figure
