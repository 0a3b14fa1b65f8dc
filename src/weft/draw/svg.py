"""Prints diagrams and plots as SVG: text that scales, in the colours of the page it stands on."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as ET

from weft.draw.picture import Diagram, Line

RULES = """
text{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:currentColor}
path{fill:none;stroke:var(--device);stroke-width:1.4}path.chip{stroke:var(--chip)}
path.dotted{stroke-dasharray:1.5 3;stroke-width:2.4}
line{stroke:currentColor;stroke-width:.7;stroke-dasharray:3 3;opacity:.45}
rect.function{fill:currentColor;fill-opacity:.06;stroke:currentColor;stroke-width:.8}
rect.loop{fill:none;stroke:currentColor;stroke-width:1;stroke-dasharray:6 4;opacity:.6}
circle{fill:var(--device)}circle.chip{fill:var(--chip)}text.chip{fill:var(--chip)}text.title{font-weight:bold}
"""
"""What classes look like: a page that holds pictures gives the colours `--device` and `--chip`."""

STYLE = f"""
svg{{--chip:#b85c00;--device:currentColor;color:#1b1b1f;background:#fff}}
@media (prefers-color-scheme:dark){{svg{{--chip:#ffa657;color:#e6e6ea;background:#16161a}}}}
{RULES}"""
"""Of a picture in a file of its own."""


def svg(diagram: Diagram, style: str = STYLE) -> str:
    """Print `diagram` as an SVG document with `style` in it; "" leaves colours to the page."""
    root = root_of(diagram.width, diagram.height, diagram.title, described(diagram))
    if style:
        ET.SubElement(root, "style").text = " ".join(style.split("\n")).strip()
    for box in diagram.boxes:
        found = add(root, "rect", {"class": box.role}, x=box.x, y=box.y, width=box.width, height=box.height, rx=4)
        ET.SubElement(found, "title").text = box.title
    for separator in diagram.separators:
        add(root, "line", {}, x1=separator.x, y1=separator.y, x2=separator.x + separator.width, y2=separator.y)
    for line in diagram.lines:
        classes = f"{line.level.value}{' dotted' if line.dotted else ''}"
        ET.SubElement(root, "path", {"class": classes, "d": _way(line)})
    for dot in diagram.dots:
        add(root, "circle", {"class": dot.level.value}, cx=dot.x, cy=dot.y, r=2.6)
    for text in diagram.texts:
        attributes = {"class": text.role, "font-size": str(text.font.value)}
        add(root, "text", attributes, x=text.x, y=text.y).text = text.text
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode") + "\n"


def message(text: str) -> str:
    """Print a line of text as a picture, where there is nothing to draw."""
    root = root_of(len(text) * 7.4 + 20, 30, text, "")
    add(root, "text", {"font-size": "12"}, x=10, y=20).text = text
    return ET.tostring(root, encoding="unicode")


def described(diagram: Diagram) -> str:
    """Say in words what each column of functions does, for readers who do not see the picture."""
    columns = ("; ".join(step.title for step in column.steps) for column in diagram.columns.functions)
    return ". ".join(f"{i}: {text}" for i, text in enumerate(columns, 1))


def root_of(width: float, height: float, title: str, description: str) -> ET.Element:
    """Begin a picture of this size in pixels, with what readers hear of it."""
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {_number(width)} {_number(height)}",
            "width": _number(width),
            "height": _number(height),
            "role": "img",
        },
    )
    ET.SubElement(root, "title").text = title
    if description:
        ET.SubElement(root, "desc").text = description
    return root


def add(root: ET.Element, tag: str, attributes: Mapping[str, str], **numbers: float) -> ET.Element:
    """Add an element to `root`."""
    return ET.SubElement(root, tag, {**attributes, **{name: _number(value) for name, value in numbers.items()}})


def _way(line: Line) -> str:
    """Write a way: straight where it is level, else a curve that leaves and arrives level."""
    (x, y), *others = line.points
    parts = [f"M{_number(x)} {_number(y)}"]
    for a, b in others:
        if b == y:
            parts.append(f"H{_number(a)}")
        else:
            middle = _number((x + a) / 2)
            parts.append(f"C{middle} {_number(y)} {middle} {_number(b)} {_number(a)} {_number(b)}")
        x, y = a, b
    return "".join(parts)


def _number(value: float) -> str:
    """Write at most one digit after the point."""
    return f"{value:.1f}".removesuffix(".0")
