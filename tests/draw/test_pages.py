"""Reports as pages: one file that stands alone, escapes what it prints, and says what the text says."""

from __future__ import annotations

import html
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import weft
from weft.draw import Picture, Prose, Section, ShownRewrite, SourceCode, plain
from weft.draw.page import compared, page
from weft.draw.roofline import RooflinePoint, roofline
from weft.lab.screenshots import chromium


class Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def partly(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x @ w)
    z = torch.sort(y, 0).values
    return z + 1


@pytest.fixture(scope="module")
def report() -> weft.Report:
    return weft.optimize(partly, (torch.randn(6, 5), torch.randn(5, 4))).explain()


@pytest.fixture(scope="module")
def read(report: weft.Report, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(report.save(tmp_path_factory.mktemp("page") / "report.html").read_text())


def test_a_page_stands_alone_and_is_well_formed(read: Reader) -> None:
    assert not read.open
    for tag, attributes in read.tags:
        for name in ("src", "href"):
            assert not (attributes.get(name) or "").startswith(("http", "//")), (tag, attributes)
    assert not re.search(r"@import|url\(", "".join(read.words))


def test_a_page_has_all_that_the_text_has_and_more(read: Reader, report: weft.Report) -> None:
    text = re.sub(r"\s+", " ", "".join(read.words))
    for title, content in report.sections:
        assert title in text
        for line in content.splitlines():
            assert re.sub(r"\s+", " ", line).strip() in text
    tags = [tag for tag, _ in read.tags]
    assert tags.count("svg") >= 4  # the roofline, and before and after fusion of two regions
    assert "ins" in tags
    assert "del" in tags
    assert "extern" in text  # a source


def test_a_prompt_and_a_notebook_show_a_report_as_it_can_be_read(report: weft.Report, tmp_path: Path) -> None:
    assert len(repr(report)) < 120
    assert "print it" in repr(report)
    assert report._repr_html_() == report.save(tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_report_begins_with_a_summary(report: weft.Report) -> None:
    title, text = report.sections[0]
    assert title == "summary"
    assert str(report).startswith("== summary\n2 kernels for 2 regions on cpu; 1 operation is left to PyTorch")
    assert len(text.splitlines()) <= 12
    lines = partly.__code__.co_firstlineno
    assert f"region 1 (test_pages.py: {lines + 1}):" in text
    assert f"region 2 (test_pages.py: {lines + 3}):" in text
    assert "sort" in text
    assert "predicted" in text
    titles = [each for each, _ in report.sections]
    assert len(titles) == len(set(titles))  # kernels of the same name are told apart
    mine = dict(report.sections)["your lines, and the regions that compute them"].splitlines()
    assert [line.split("->")[1].strip() for line in mine] == ["region 1", "PyTorch", "region 2"]


def test_a_page_works_by_keyboard_on_a_phone_and_in_the_dark(read: Reader) -> None:
    found = [(tag, attributes) for tag, attributes in read.tags]
    assert ("a", {"class": "skip", "href": "#report"}) in found
    assert any(tag == "main" and a.get("id") == "report" for tag, a in found)
    assert any(a.get("name") == "viewport" and "width=device-width" in (a.get("content") or "") for _, a in found)
    assert all("tabindex" in a for tag, a in found if tag == "pre")
    style = "".join(read.words)
    for rule in ("prefers-color-scheme:dark", ":focus-visible", "@media print", "overflow-x:auto"):
        assert rule in style


def test_what_a_page_prints_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    contents = (
        Prose(evil), SourceCode(f"// {evil}", "cpp"), ShownRewrite(evil, evil, f"{evil}\n{evil}"),
        Picture(evil, lambda: roofline([RooflinePoint(evil, 1e9, 1e8, 1.0)], 1e9, 1e10, evil)),
    )  # fmt: skip
    text = page((Section(evil, contents),), evil)
    assert evil not in text
    assert text.count("&lt;script&gt;") >= 7


def test_sections_print_as_text() -> None:
    sections = (
        Section("first", (Prose("a"), SourceCode("b", "cpp"), ShownRewrite("1. c", "d", "e"))),
        Section("pictures", (Picture("f", str),)),
    )
    assert [each.text for each in sections] == ["a\n1. c", ""]
    assert plain(sections) == "== first\na\n1. c"


def test_a_comparison_has_every_line_of_both() -> None:
    found = list(compared("a\nb\nc", "a\nx\nc\nd"))
    assert [line for sign, line in found if sign != "+"] == ["a", "b", "c"]
    assert [line for sign, line in found if sign != "-"] == ["a", "x", "c", "d"]


def test_points_of_a_roofline_lie_below_the_roof() -> None:
    """One point at the ridge, at half the rate: right below the corner of the roof."""
    picture = roofline([RooflinePoint("k", 10.0, 1.0, 2.0e-9)], 1e9, 1e10, "t")
    (corner,) = re.findall(r"L([\d.]+) ([\d.]+)L", picture)
    (point,) = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture)
    assert abs(float(corner[0]) - float(point[0])) < 0.2
    assert float(point[1]) > float(corner[1])


@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_the_page_without_complaint(report: weft.Report, tmp_path: Path, width: int) -> None:
    """No message on its console, with all unfolded; and only boxes scroll sideways, on a phone too."""
    browser = chromium()
    if browser is None:
        pytest.skip("there is no Chromium here: make browser installs one (Debian, Ubuntu)")
    path = report.save(tmp_path / "report.html")
    # In a frame of that width: windows of browsers have a least one.
    tried = tmp_path / "tried.html"
    tried.write_text(
        f'<iframe id="f" style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(path.read_text())}"></iframe>'
        "<script>onload = () => { const d = document.getElementById('f').contentDocument;"
        "d.getElementById('unfold').click(); const e = d.documentElement;"
        "document.title = [d.querySelectorAll('details:not([open])').length, e.scrollWidth, e.clientWidth].join(); }</script>"
    )
    flags = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'u'}",
    )
    done = subprocess.run(
        [browser, *flags, "--virtual-time-budget=3000", "--dump-dom", tried.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    (said,) = re.findall(r"<title>(\d+,\d+,\d+)</title>", done.stdout)
    folded, needed, had = map(int, said.split(","))
    assert folded == 0
    assert 0 < needed <= had
    assert width - 20 <= had <= width  # but for a bar to scroll down by


def test_a_page_is_small(report: weft.Report, tmp_path: Path) -> None:
    assert report.save(tmp_path / "report.html").stat().st_size < 400_000
