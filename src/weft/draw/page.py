"""Reports as one self-contained HTML page: nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from importlib import import_module
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from pygments import highlight
from pygments.formatters import HtmlFormatter

from weft.draw.document import Section
from weft.draw.svg import RULES

# Without types that a checker could follow.
_lexers: Any = import_module("pygments.lexers")


def page(sections: Sequence[Section], title: str) -> str:
    """Print `sections` as a page called `title`."""
    environment = Environment(
        loader=PackageLoader("weft.draw", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Any = environment.filters
    filters |= {"highlighted": highlighted, "compared": compared}
    light, dark = (_colours(style) for style in ("friendly", "github-dark"))
    template = environment.get_template("report.html.jinja")
    # Pygments and the printer of pictures escape what they print; all else is escaped by the template.
    return template.render(sections=sections, title=title, picture_rules=RULES, light=light, dark=dark)


def highlighted(text: str, language: str) -> str:
    """Print source code as HTML, escaped."""
    return highlight(text, _lexers.get_lexer_by_name(language), _formatter("friendly"))


def compared(before: object, after: object) -> Iterator[tuple[str, str]]:
    """Yield the lines of both programs in order, each with its sign: "-" before, "+" after, " " both."""
    old, new = str(before).splitlines(), str(after).splitlines()
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from ((" ", line) for line in old[a:b])
        else:
            yield from (("-", line) for line in old[a:b])
            yield from (("+", line) for line in new[c:d])


def _colours(style: str) -> str:
    formatter: Any = _formatter(style)
    return str(formatter.get_style_defs(".code"))


def _formatter(style: str) -> HtmlFormatter[Any]:
    return HtmlFormatter(style=style, nowrap=True)
