"""The report in a real browser: it opens offline, shows every figure, and fits its window."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.page.report import ReportResult
from harness.paths import SweepPaths

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")

WIDTHS = (1280, 390)

# Put at the end of a copy of the page; what it finds goes to the page around it.
MEASURE = """<script>
window.addEventListener("load", () => {
  document.querySelectorAll("section details").forEach(part => { part.open = true; });
  const shown = element => element.checkVisibility();
  const images = [...document.images];
  const targets = [...document.querySelectorAll(".drawing i")];
  const off = targets.filter(target => {
    const at = target.getBoundingClientRect();
    const image = target.parentElement.querySelector("img").getBoundingClientRect();
    const [x, y] = [at.x + at.width / 2, at.y + at.height / 2];
    return !(x >= image.left && x <= image.right && y >= image.top && y <= image.bottom);
  });
  const links = [...document.querySelectorAll('a[href^="#"]')];
  const visible = [...document.querySelectorAll(".toc a")].filter(shown);
  parent.postMessage({
    width: window.innerWidth,
    fits: document.documentElement.scrollWidth <= window.innerWidth,
    images: images.length,
    images_shown: images.filter(image => image.complete && image.naturalWidth > 0).length,
    narrow: images.filter(image => image.getBoundingClientRect().width < 250).length,
    targets: targets.length,
    targets_off: off.length,
    targets_mute: targets.filter(target => !target.getAttribute("aria-label")).length,
    unfocusable: targets.filter(target => {
      target.focus();
      return document.activeElement !== target;
    }).length,
    dead_links: links.map(link => link.hash.slice(1)).filter(id => !document.getElementById(id)),
    contents: document.querySelectorAll(".toc.side a").length,
    contents_open: visible.length,
    requests: performance.getEntriesByType("resource")
      .map(entry => entry.name).filter(name => !name.startsWith("data:")),
  }, "*");
});
</script>"""

AROUND = """<!doctype html><body><script>
const found = [];
window.addEventListener("message", event => {{
  found.push(event.data);
  if (found.length === {n}) document.body.textContent = "MEASURED" + JSON.stringify(found) + "END";
}});
</script>{frames}</body>"""


@pytest.fixture(scope="module")
def measured(finished: tuple[SweepPaths, ReportResult]) -> Mapping[int, Mapping[str, Any]]:
    """What the page is like at every width, in one run of the browser."""
    page = finished[1].report_path
    page.with_name("measured.html").write_text(page.read_text("utf-8") + MEASURE, "utf-8")
    frames = "".join(
        f'<iframe src="measured.html" width="{width}" height="900" style="border:0"></iframe>'
        for width in WIDTHS
    )
    around = page.with_name("around.html")
    around.write_text(AROUND.format(n=len(WIDTHS), frames=frames), "utf-8")
    return {int(result["width"]): result for result in rendered(around)}


def rendered(page: Path) -> list[dict[str, Any]]:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000"]
    flags += [f"--user-data-dir={page.parent / 'profile'}", "--window-size=1900,1000"]
    done = subprocess.run(
        [str(BROWSER), *flags, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r"MEASURED(\[.*\])END</body>", done.stdout)
    assert found, done.stderr[-2000:]
    results: list[dict[str, Any]] = json.loads(html.unescape(found.group(1)))
    return results


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_its_window_and_shows_every_figure(
    measured: Mapping[int, Mapping[str, Any]], width: int
) -> None:
    page = measured[width]
    assert page["fits"]
    assert page["images"] == page["images_shown"] >= 5
    assert page["narrow"] == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_asked_of_the_network(
    measured: Mapping[int, Mapping[str, Any]], width: int
) -> None:
    assert measured[width]["requests"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_values_lie_on_their_image_and_can_be_reached(
    measured: Mapping[int, Mapping[str, Any]], width: int
) -> None:
    page = measured[width]
    assert page["targets"] >= 30
    assert (page["targets_off"], page["targets_mute"], page["unfocusable"]) == (0, 0, 0)


def test_contents_lead_somewhere_open_beside_the_page_and_folded_on_a_phone(
    measured: Mapping[int, Mapping[str, Any]],
) -> None:
    desk, phone = (measured[width] for width in WIDTHS)
    assert desk["dead_links"] == phone["dead_links"] == []
    assert desk["contents_open"] == desk["contents"] >= 15
    assert phone["contents_open"] == 0
