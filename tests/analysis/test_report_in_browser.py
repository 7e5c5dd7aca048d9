"""The report in a real browser: it opens offline, shows every figure, and fits its window."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from analysis.report import report
from tests.analysis.synthetic_sweep import World, build_sweep

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")

# Put at the end of a copy of the page; what it finds comes back in the title.
MEASURE = """<script>
window.addEventListener("load", () => {
  const images = [...document.images];
  document.title = [
    document.documentElement.scrollWidth <= window.innerWidth ? "fits" : "overflows",
    images.length,
    images.filter(image => image.complete && image.naturalWidth > 0).length,
  ].join(" ");
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arms = {"standard": 1.0, "full": 1.3, "block(block_size=4)": 1.2}
    world = World(multipliers=arms, seeds=(0,))
    return report(build_sweep(tmp_path_factory.mktemp("sweep"), world)).report_path


def title_after_rendering(page: Path, width: int) -> str:
    copy = page.with_name("measured.html")
    copy.write_text(page.read_text("utf-8") + MEASURE, "utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update"]
    done = subprocess.run(
        [
            str(BROWSER),
            *flags,
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={page.parent / 'profile'}",
            f"--window-size={width},900",
            "--virtual-time-budget=5000",
            "--dump-dom",
            copy.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found, done.stderr[-2000:]
    return found.group(1)


@pytest.mark.parametrize("width", [1200, 500])
def test_the_report_shows_every_figure_offline_and_fits_the_window(page: Path, width: int) -> None:
    verdict, n_images, n_shown = title_after_rendering(page, width).split()
    assert verdict == "fits"
    assert int(n_images) == int(n_shown) >= 11
