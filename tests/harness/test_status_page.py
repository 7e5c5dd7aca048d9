"""The status page: the terminal's facts in one file that opens anywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.common_step import CommonStep
from harness.overview import Overview, Surroundings, overview
from harness.paths import SweepPaths
from harness.slurm.types import Place
from harness.status import RunState
from harness.status_page import PageWriter, bar, page
from tests.harness.sweep_folders import planned_run

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
STATUSES = ("done", "running", "queued", "planned", "diverged", "failed", "cancelled")
NEVER = Place("7_1", "pending", "will never start as it is: asks for too much (X): lower it", True)
EXTRAS = {
    "running": {
        "step": 30,
        "loss_nats": 2.5,
        "step_time_s": 0.5,
        "attempts": 2,
        "holder": "node3, job 1_2",
        "silent_s": 45.0,
    },
    "queued": {"place": NEVER},
    "failed": {"reason": "failed: RuntimeError: <script>alert(1)</script>"},
}


def states_of(arm: str) -> list[RunState]:
    return [
        RunState(planned_run(arm, seed), status, **EXTRAS.get(status, {}))  # type: ignore[arg-type]
        for seed, status in enumerate(STATUSES)
    ]


@pytest.fixture
def states() -> list[RunState]:
    return [*states_of("standard"), *states_of("a<b>c")]


def view(states: list[RunState]) -> Overview:
    common = CommonStep("n_layers=4", 0.5, (30, 30), 2, {"standard": 2.3456, "a<b>c": 2.4567})
    around = Surroundings(
        sweep="depth",
        at=1_796_000_000.0,
        lease_s=60.0,
        breaker="3 runs failed alike",
        scheduler="Slurm answers",
    )
    return overview(states, common, around)


class Reader(HTMLParser):
    """Texts, and every address that a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(" ".join(data.split()))


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


def test_the_page_says_what_the_terminal_says(states: list[RunState]) -> None:
    text = " ".join(read(page(view(states), states)).words)
    for fact in (
        *("depth", "2 done, 2 running, 2 queued, 2 planned, 2 diverged, 2 failed, 2 cancelled"),
        *("Slurm answers", "Will not start: 2 runs: asks for too much (X): lower it (job 7_1)"),
        *("Held back: 3 runs failed alike", "no sign of life for 45 s from node3, job 1_2"),
        *("2.3456", "2.4567", "n_layers=4 at step 30 (50% of the budget)"),
        *("2 failed: RuntimeError: <script>alert(#)</script>", "30 of 60"),
    ):
        assert fact in text, fact


def test_it_refers_to_nothing_outside_and_escapes_what_it_is_given(states: list[RunState]) -> None:
    reader = read(page(view(states), states))
    assert reader.addresses == []
    assert reader.tags.count("script") == 1
    assert "b" not in reader.tags
    assert "a<b>c" in reader.words


def test_it_reloads_itself_until_the_sweep_has_ended(states: list[RunState]) -> None:
    assert 'http-equiv="refresh"' in page(view(states), states)
    ended = [state for state in states if state.ended]
    assert 'http-equiv="refresh"' not in page(view(ended), ended)


def test_the_parts_of_a_bar_fill_it(states: list[RunState]) -> None:
    parts = bar(view(states).total)
    assert [part.status for part in parts] == list(STATUSES)
    assert sum(part.percent for part in parts) == pytest.approx(100)
    assert [part.count for part in parts] == [2] * 7


def test_a_sweep_of_one_arm_has_one_row(states: list[RunState]) -> None:
    alone = [state for state in states if state.run.arm == "standard"]
    assert page(view(alone), alone).count('role="img"') == 1
    assert page(view(states), states).count('role="img"') == 3


def test_it_is_written_at_most_every_ten_seconds_but_always_at_the_end(
    tmp_path: Path, states: list[RunState]
) -> None:
    paths = SweepPaths(tmp_path)
    writer = PageWriter(paths)
    writer.write(view(states), states)
    paths.status_page.unlink()
    writer.write(view(states), states)
    assert not paths.status_page.exists()
    ended = [state for state in states if state.ended]
    writer.write(view(ended), ended)
    assert paths.status_page.exists()


def test_a_page_that_cannot_be_written_is_no_error(tmp_path: Path, states: list[RunState]) -> None:
    paths = SweepPaths(tmp_path)
    paths.status_page.mkdir()
    PageWriter(paths).write(view(states), states)
    assert list(tmp_path.iterdir()) == [paths.status_page]


# Put at the end of a copy of the page; what it finds comes back in the title.
MEASURE = """<script>
window.addEventListener("load", () => {
  const cell = document.querySelector(".arms td:first-child").getBoundingClientRect();
  document.title = [
    document.documentElement.scrollWidth <= window.innerWidth ? "fits" : "overflows",
    Math.round(cell.width), document.getElementById("age").textContent.includes("ago"),
  ].join(" ");
});
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [1200, 500])
def test_it_fits_the_window_of_a_real_browser(
    tmp_path: Path, states: list[RunState], width: int
) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(view(states), states) + MEASURE, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    done = subprocess.run(
        [
            str(BROWSER),
            *flags,
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900",
            "--virtual-time-budget=3000",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found, done.stderr[-2000:]
    verdict, arm_width, aged = found.group(1).split()
    assert (verdict, aged) == ("fits", "true")
    assert int(arm_width) >= 150
