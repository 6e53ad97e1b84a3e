"""The report in a real browser: every plot is drawn, nothing overflows, the console stays silent, both themes work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from helpers.chromium import Chromium, find_chromium
from helpers.example_run import open_run, small_run
from specdeploy.verdict_contract import GateConfig
from specdeploy_client.judging.gate import judge
from specdeploy_client.reporting.report import ReportInput, render_report

EXECUTABLE = find_chromium()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium in PATH (Debian: apt-get install chromium)"),
]
Theme = Literal["light", "dark"]
VIEWS: list[tuple[Theme, int]] = [("light", 400), ("light", 1200), ("dark", 400), ("dark", 1200)]

# Every plot with its size, and its texts that stick out of it by more than a pixel.
PLOTS = """
[...document.querySelectorAll('svg.plot, svg.forest')].map(svg => {
  const area = svg.getBoundingClientRect();
  const outside = [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < area.left - 1 || box.right > area.right + 1
      || box.top < area.top - 1 || box.bottom > area.bottom + 1;
  }).map(text => text.textContent);
  return {width: area.width, height: area.height, outside, label: svg.getAttribute('aria-label')};
})
"""
# Elements wider than the page that no scrolling box holds.
OVERFLOW = """
[...document.querySelectorAll('main *')].filter(element =>
  element.getBoundingClientRect().right > document.documentElement.clientWidth + 1
  && !element.closest('.sheet, nav ul, svg')).map(element => element.outerHTML.slice(0, 120))
"""
# Contrast (WCAG 2.1, relative luminance) of the texts of a selector against their own background.
CONTRAST = """
(selector => {
  const channel = value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const luminance = colour => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(value => channel(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
    return 'white';
  };
  return Math.min(...[...document.querySelectorAll(selector)].map(element => {
    const pair = [luminance(getComputedStyle(element).color), luminance(background(element))];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  }));
})
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    summary, table = small_run(limit=8, interrupted="the server at 127.0.0.1:8001 does not answer any more").build()
    main = ReportInput(summary, None, judge(summary, None, GateConfig(name="test")), table)
    other, records = small_run(seed=1, method="ngram", deployment="demo-ngram").build()
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_report(main, [ReportInput(other, table=records)]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    assert EXECUTABLE is not None
    with Chromium(EXECUTABLE) as opened:
        yield opened


@pytest.mark.parametrize(("theme", "width"), VIEWS)
def test_every_plot_is_drawn_and_nothing_overflows(browser: Chromium, page: Path, theme: Theme, width: int) -> None:
    browser.open(page, width=width, theme=theme)
    plots: list[dict[str, Any]] = browser.evaluate(PLOTS)
    assert len(plots) == page.read_text(encoding="utf-8").count("<svg ")
    assert [plot for plot in plots if plot["width"] < 90 or plot["height"] < 12] == []
    assert [(plot["label"], plot["outside"]) for plot in plots if plot["outside"]] == []
    assert browser.evaluate(OVERFLOW) == []
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.problems == []


def test_the_page_follows_the_theme(browser: Chromium, page: Path) -> None:
    colours = set()
    themes: tuple[Theme, ...] = ("light", "dark")
    for theme in themes:
        browser.open(page, width=1200, theme=theme)
        colours.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(browser: Chromium, page: Path, theme: Theme) -> None:
    """4.5 to 1, what the accessibility guidelines ask of small text; the fields of the heat maps too."""
    browser.open(page, width=1200, theme=theme)
    for selector in (
        "p",
        "td",
        "th",
        ".badge",
        ".action",
        ".heat td.faster small",
        ".heat td.slower small",
        "figcaption span",
    ):
        assert browser.evaluate(f"({CONTRAST})({selector!r})") >= 4.5, selector


def test_an_open_loop_is_drawn_too(browser: Chromium, tmp_path: Path) -> None:
    summary, table = open_run().build()
    path = tmp_path / "open.html"
    path.write_text(render_report(ReportInput(summary, table=table)), encoding="utf-8")
    browser.open(path, width=400, theme="light")
    assert [plot for plot in browser.evaluate(PLOTS) if plot["width"] < 90 or plot["outside"]] == []
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.problems == []


def test_the_checks_notice_what_is_wrong(browser: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        "<main><div style='width: 3000px'>wide</div><p style='color: #999; background: #fff'>faint</p>"
        "<svg class='plot' width='100' height='20'><text x='200' y='10'>out</text></svg></main>"
        "<script>console.error('told'); thrown()</script><img src='http://127.0.0.1:9/x.png'>",
        encoding="utf-8",
    )
    browser.open(path, width=400, theme="light")
    assert browser.evaluate(PLOTS)[0]["outside"] == ["out"]
    assert len(browser.evaluate(OVERFLOW)) == 1
    assert browser.evaluate(f"({CONTRAST})('p')") < 3
    assert not browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    found = " ".join(browser.problems)
    for expected in ("told", "exception", "http://127.0.0.1:9/x.png"):
        assert expected in found, expected
