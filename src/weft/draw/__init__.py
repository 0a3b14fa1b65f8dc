"""draw: programs as pictures, and what is said of them as pages.

In: a block program, with places or without. Out: `diagram`, its neural circuit diagram (FlashAttention on a Napkin, section 2), a
form with positions; `svg`, which prints it.
"""

from weft.draw.diagram import at_whole, diagram, diagrams
from weft.draw.picture import Diagram
from weft.draw.svg import svg

__all__ = ["Diagram", "at_whole", "diagram", "diagrams", "svg"]
