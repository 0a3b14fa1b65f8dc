"""Writes docs/guide/operations.md from tables and the campaign: `PYTHONPATH=src:tests python -m testkit.opinfo.page`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from testkit.opinfo.campaign import RESULTS
from weft.capture.creation import CREATION
from weft.capture.elementwise import ALIASES
from weft.capture.joins import JOINS
from weft.capture.lookups import LOOKUPS
from weft.capture.matmuls import MATMULS
from weft.capture.parts import TAKEN_APART
from weft.capture.picks import PICKS
from weft.capture.reductions import REDUCTIONS
from weft.capture.scans import SCANS
from weft.capture.views import VIEWS
from weft.tensor.optable import DERIVED, MASK_ATEN, PRIMITIVES

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "operations.md"

_HEAD = """# Operations

What weft computes in kernels of its own, and what PyTorch's own samples say of it. This page is generated: `PYTHONPATH=src:tests
python -m testkit.opinfo.page` writes it from the tables in `src/weft/capture/` and `src/weft/tensor/optable/`, and from
`tests/testkit/opinfo/results.json`; a test compares. An operation that is not here, or that is here and has arguments which weft
does not take, runs in PyTorch between weft's kernels, with a reason: `program.explain()` and `program.fallbacks` show it.
"""

_ABOUT = {
    "Elementwise": "One row each in the operation table, or an expression over rows.",
    "Other names": "Of operations that have a row.",
    "Products": "Contractions.",
    "Reductions and normalisations": "As the reductions and elementwise operations that they consist of.",
    "Scans": "Sums, products, extrema and logarithms of sums of exponentials of all elements up to each.",
    "Views and copies": "Another look at the same elements; no kernel where a stride can say it.",
    "Joined tensors": "Of one length along a dimension: a digit of the index chooses among them.",
    "New tensors": "Made where they are read.",
    "Composite": "Recorded as the calls that they consist of, for the arguments for which that is worth it.",
    "Lookups": "Reads where integers say: rows of a table, elements of rows, indexing by tensors of integers.",
    "Picks": "Of one place in each row that weft computes: sums of which one term is not 0.",
}


def groups() -> dict[str, tuple[str, ...]]:
    """The ATen operations that weft translates, for some of their arguments at least, by what becomes of them."""
    rows = {name for row in (*PRIMITIVES, *DERIVED) for name in row.aten} | set(MASK_ATEN)
    found = {
        "Elementwise": rows,
        "Other names": set(ALIASES),
        "Products": set(MATMULS),
        "Reductions and normalisations": set(REDUCTIONS),
        "Scans": set(SCANS),
        "Views and copies": set(VIEWS),
        "Joined tensors": set(JOINS),
        "New tensors": set(CREATION),
        "Composite": set(TAKEN_APART),
        "Lookups": set(LOOKUPS),
        "Picks": {name.rpartition(".")[0] for name in PICKS},
    }
    seen: set[str] = set()
    for title, names in found.items():
        found[title] = names - seen
        seen |= names
    return {title: tuple(sorted(names)) for title, names in found.items()}


def render(results: Mapping[str, Any]) -> str:
    """The page."""
    return "\n".join([_HEAD, *_operations(), *_samples(results), *_reasons(results["entries"])]).rstrip() + "\n"


def load() -> dict[str, Any]:
    """Reads what the last campaign gave."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def _operations() -> Iterable[str]:
    found = groups()
    yield f"## {sum(map(len, found.values()))} ATen operations\n"
    for title, names in found.items():
        yield f"### {title}\n\n{_ABOUT[title]}\n"
        yield _wrapped(f"`{name.removeprefix('aten.')}`" for name in names) + "\n"


def _wrapped(words: Iterable[str]) -> str:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 118:
            lines.append("")
        lines[-1] += f"{word} "
    return "\n".join(line.rstrip() for line in lines)


def _samples(results: Mapping[str, Any]) -> Iterable[str]:
    entries = results["entries"]
    totals = Counter[str]()
    for found in entries.values():
        totals.update(found["counts"])
    yield f"""## PyTorch's own samples

PyTorch keeps a database of its operations with sample arguments, which its tests are made of.

    PYTHONPATH=src:tests python -m testkit.opinfo.campaign --write tests/testkit/opinfo/results.json

runs every sample of the entries that weft has anything to do with, or that inference uses, in fp32, bf16, int64 and bool: as
the database makes it, with gaps in memory, and the first few also with NaN, infinities and the ends of a type's range, by way
of `torch.compile`, and with symbolic sizes. Floating results keep the error rule against fp64, integers and masks are equal,
NaN and infinities lie where eager has them; shape, type, strides, shared memory and what becomes of the inputs are eager's.
`--ops NAME` runs one entry alone, that of an operation which was added, say; the file keeps the others.

Taken {results["date"]} with PyTorch {results["torch"]}: {results["how"]}.
{len(entries)} entries, {totals.total()} samples: {totals["weft"]} ran in weft's kernels alone, {totals["partly"]} in part,
{totals["pytorch"]} in PyTorch with a reason, {totals["wrong"]} were wrong, {totals["crash"]} failed; {totals["skipped"]} are
refused by eager itself.

| entry | weft | in part | PyTorch | kernels for |
| --- | ---: | ---: | ---: | --- |"""
    for name, found in sorted(entries.items()):
        counts = found["counts"]
        numbers = " | ".join(str(counts.get(kind, 0)) for kind in ("weft", "partly", "pytorch"))
        yield f"| {name} | {numbers} | {', '.join(found['kernels'])} |"


def _reasons(entries: Mapping[str, Any]) -> Iterable[str]:
    """Each reason once, with the number of samples and the operations that it was given for."""
    counts, operations = Counter[str](), dict[str, set[str]]()
    for found in entries.values():
        for line, count in found["left to PyTorch"].items():
            operation, _, reason = line.partition(": ")
            reason = reason or operation
            reason = re.sub(r"^aten\.\w+ (is not in weft's table of operations yet)", r"\1", reason)
            reason = re.sub(r"^weft compiles aten\.\w+ for", "weft compiles it for", reason)
            counts[reason] += count
            operations.setdefault(reason, set()).add(operation.removeprefix("aten."))
    yield """
## Left to PyTorch

Why, for how many samples, and which operations. `graph` is all that a sample calls.

| reason | samples | operations |
| --- | ---: | --- |"""
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        named = sorted(operations[reason])
        shown = ", ".join(named[:12]) + (f" and {len(named) - 12} more" if len(named) > 12 else "")
        yield f"| {reason.replace('|', chr(92) + '|')} | {count} | {shown} |"


if __name__ == "__main__":
    PAGE.write_text(render(load()), encoding="utf-8")
