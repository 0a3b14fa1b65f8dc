"""draw: programs as pictures, and what is said of them as pages.

In: a block program, with places or without; sections of a report. Out: `diagram`, its neural circuit diagram (FlashAttention on a
Napkin, section 2), a form with positions, which `svg` prints; `configuration`, the tables of a concrete schedule (section A.5);
`plain` and `page.page`, which print sections as text or HTML.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.draw.configuration import configuration
    from weft.draw.diagram import at_whole, diagram, diagrams
    from weft.draw.document import Picture, Prose, Section, ShownRewrite, SourceCode, Table, plain
    from weft.draw.picture import Diagram
    from weft.draw.svg import svg

__all__ = [
    "Diagram",
    "Picture",
    "Prose",
    "Section",
    "ShownRewrite",
    "SourceCode",
    "Table",
    "at_whole",
    "configuration",
    "diagram",
    "diagrams",
    "plain",
    "svg",
]

export_lazily(__name__)
