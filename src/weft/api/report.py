"""`explain`: every decision, as text or as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weft.api.files import path_of, replacing
from weft.api.sections import sections
from weft.cost.chip import Chip
from weft.draw import Prose, Section, plain
from weft.plan import Plan


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What weft did, part by part; `str` prints it, `save` writes it."""

    parts: tuple[Section, ...]

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """The title of each part, and its content as plain text: "" of pictures."""
        return tuple((part.title, part.text) for part in self.parts)

    def __str__(self) -> str:
        return plain(self.parts)

    def __repr__(self) -> str:
        """Describe the report in one line, which says how to read it."""
        return f'<Report of {len(self.parts)} parts: print it, or save it as a page with save("report.html")>'

    def _repr_html_(self) -> str:
        """Give notebooks the page that `save` writes."""
        return self._page()

    def _page(self) -> str:
        from weft.draw.page import page  # templates and colours, which `import weft` does without

        return page(self.parts, "What weft made of your function")

    def save(self, path: str | Path) -> Path:
        """Write the report to `path`: a page where the name ends in .html, else plain text.

        The page stands alone, and has more than the text: diagrams, the kernels' sources, and the programs before and after each
        rewrite.

        Raises:
            ArgumentError: `path` is none.
            MissingFileError: its folder is not there; a FileNotFoundError, too.
            FileError: it is a folder, or cannot be written; an OSError, too.
        """
        path = path_of(path, "the path to save the report to")
        is_page = path.suffix.lower() in (".html", ".htm")
        text = self._page() if is_page else f"{self}\n"
        with replacing(path) as new:
            new.write_text(text, encoding="utf-8")
        return path


def report(plans: Sequence[Plan], chip: Chip | None = None) -> Report:
    """Write the report of the plans of one function; kernels are laid out on `chip`, by default on the target's own."""
    found: list[Section] = []
    for number, plan in enumerate(plans, 1):
        of = f" (graph {number} of {len(plans)})" if len(plans) > 1 else ""
        found += [replace(each, title=each.title + of) for each in sections(plan, chip)]
    if not plans:
        nothing = "no graph was captured: the function does nothing that weft could compile"
        found.append(Section("captured program", (Prose(nothing),), level=1))
    return Report(tuple(found))
