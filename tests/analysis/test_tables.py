from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from analysis.compare.sensitivity import SensitivityRow
from analysis.estimates import Interval
from analysis.fit.rescaled import RescaledArm
from analysis.page.comparison_tables import curve_table, rescaled_table, sensitivity_table
from analysis.page.numerals import estimate_texts, first_of_a_kind, listed, number, ratio_cell
from analysis.page.sweep_tables import exclusions_table, runs_table
from analysis.page.table import Cell, Table, save_tables, to_csv, to_html, to_latex, to_markdown

AWKWARD = Table(
    "awkward_one",
    "50% & more",
    ("a|b", "loss ±", "x^2"),
    (
        (Cell("[1.2, 1.3] <i>", "x_1"), Cell("2.5", "± 0.1"), Cell("-0.25")),
        (Cell("*\\{~$#}"), Cell("–"), Cell("1e-3")),
    ),
    ({"a": 'say "hi", all', "b": math.nan}, {"a": "second", "b": 1 / 3}),
    "Loss: nats > 0.",
)
ENGINE = shutil.which("tectonic") or shutil.which("pdflatex") or shutil.which("lualatex")


def test_csv_keeps_every_digit_and_leaves_nan_empty() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(AWKWARD))))
    assert rows[0] == {"a": 'say "hi", all', "b": ""}
    assert float(rows[1]["b"]) == 1 / 3


def test_markdown_columns_line_up_and_pipes_are_escaped() -> None:
    lines = to_markdown(AWKWARD).splitlines()
    assert r"a\|b" in lines[0]
    assert len({len(line) for line in lines}) == 1
    assert set(lines[1]) <= set("|- ")


def test_html_escapes_every_text() -> None:
    assert to_html(AWKWARD).count("&lt;i&gt;") == 1


def test_latex_escapes_and_puts_numbers_to_the_right() -> None:
    text = to_latex(AWKWARD)
    assert r"% \caption{50\% \& more. Loss: nats $>$ 0.}" in text
    assert r"% \label{tab:awkward-one}" in text
    assert r"\begin{tabular}{lrr}" in text
    assert r"{}[1.2, 1.3] $<$i$>$, x\_1" in text
    assert r"2.5 $\pm$ 0.1" in text
    assert "$-$0.25" in text
    assert "1e-3" in text
    assert r"{}*\textbackslash{}\{\~{}\$\#\}" in text


def test_latex_is_balanced_whatever_it_holds() -> None:
    body = to_latex(AWKWARD)
    bare = re.sub(r"\\[\\{}&%$#_]", "", "\n".join(body.splitlines()[3:]))
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert len({row.rindex(r"\\") for row in rows}) == 1
    assert [body.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert body.isascii()


@pytest.mark.skipif(ENGINE is None, reason="needs a TeX engine")
def test_latex_compiles(tmp_path: Path) -> None:
    head = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "t.tex").write_text(head + to_latex(AWKWARD) + "\\end{document}\n")
    command = [str(ENGINE), "t.tex"]
    if "tectonic" not in str(ENGINE):
        command.insert(1, "-interaction=nonstopmode")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_every_format_is_written(tmp_path: Path) -> None:
    save_tables([AWKWARD], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "awkward_one.csv",
        "awkward_one.md",
        "awkward_one.tex",
    }


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        (Interval(estimate=1.2384, low=1.187, high=1.2949, method="m"), ("1.24", "[1.19, 1.29]")),
        (Interval(estimate=1.2, low=1e-30, high=4e45, method="m"), ("1.20", "[too wide]")),
        (Interval(estimate=1.2, method="m", reason="unbounded"), ("1.20", "[no interval]")),
        (Interval(estimate=None, method="m", reason="one size"), ("undefined", "")),
        (None, ("–", "")),
    ],
)
def test_a_multiplier_shows_what_it_carries(
    interval: Interval | None, shown: tuple[str, str]
) -> None:
    cell = ratio_cell(interval)
    assert (cell.main, cell.detail) == shown


def test_numbers_without_a_value_are_a_dash_and_half_open_intervals_say_so() -> None:
    assert (number(None, ".2f"), number(math.nan, ".2f"), number(0.5, ".2f")) == ("–", "–", "0.50")
    half = Interval(estimate=1.7, low=0.0, high=None, method="m")
    assert estimate_texts(half, ".2f") == ("1.70", "[0.00, inf]")


def test_a_rounded_zero_has_no_minus() -> None:
    assert (number(-1e-9, "+.4f"), number(-1e-9, ".2f")) == ("+0.0000", "0.00")
    small = Interval(estimate=-1e-6, low=-0.5, high=1e-9, method="m")
    assert estimate_texts(small, "+.3f") == ("+0.000", "[-0.500, +0.000]")


def test_notes_of_one_kind_are_told_once() -> None:
    notes = ["differs: at 1", "other: x", "differs: at 2", "differs: at 3"]
    assert first_of_a_kind(notes) == ["differs: at 1; 2 more like it", "other: x"]


def test_a_pinned_e_has_one_row_though_arms_differ_in_their_lowest_loss() -> None:
    def row(arm: str, nats: str) -> SensitivityRow:
        ratio = Interval(estimate=1.2, low=1.1, high=1.3, method=arm)
        label = f"E = {nats} nats (15% of the lowest loss)"
        return SensitivityRow(kind="E", label=label, ratio=ratio, n_sizes=4)

    table = sensitivity_table({"a": (row("a", "0.36"),), "b": (row("b", "0.37"),)})
    assert [[cell.main for cell in cells] for cells in table.cells] == [
        ["E at 15% of the lowest loss", "1.20", "1.20"]
    ]
    assert [r["choice"] for r in table.raw] == [
        "E = 0.36 nats (15% of the lowest loss)",
        "E = 0.37 nats (15% of the lowest loss)",
    ]


def test_efficiency_has_both_factors_with_their_ends() -> None:
    one = Interval(estimate=1.5, low=1.2, high=1.9, method="m")
    none = Interval(estimate=1.1, method="m", reason="unbounded")
    table = rescaled_table({"new": RescaledArm(one, none)})
    assert [cell.main for cell in table.cells[0]] == ["new", "1.50", "1.10"]
    assert table.raw[0] == {
        "arm": "new", "rho_n": 1.5, "rho_n_low": 1.2, "rho_n_high": 1.9,
        "rho_d": 1.1, "rho_d_low": None, "rho_d_high": None,
    }  # fmt: skip


def test_long_lists_are_cut() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdefgh"), most=4) == "a, b, c and 5 more"


def test_exclusions_are_counted_by_arm_and_kind_of_reason() -> None:
    runs = pd.DataFrame(
        {
            "run_id": ["r1", "r2", "r3", "r4"],
            "arm": ["a", "a", "b", "b"],
            "status": ["diverged", "diverged", "failed", "done"],
            "excluded_because": ["diverged after step 12", "diverged after step 9", "failed", None],
        }
    )
    table = exclusions_table(runs)
    assert [(row["arm"], row["n_runs"]) for row in table.raw] == [("a", 2), ("b", 1)]
    assert [cell.main for cell in table.cells[0]] == ["a", "2", "diverged after step 12", "r1, r2"]


def test_runs_of_a_foreign_table_need_no_column_of_ours() -> None:
    runs = pd.DataFrame({"run_id": ["1"], "arm": ["a"], "loss_nats": [2.5]})
    assert runs_table(runs).raw[0]["wall_s"] is None
    assert [cell.main for cell in runs_table(runs).cells[0]][5:8] == ["2.5000", "–", "–"]


def test_a_refused_curve_and_an_arm_without_rows_leave_no_trace() -> None:
    assert curve_table({"a": "no overlap"}).raw == ()
    assert sensitivity_table({"a": ()}).raw == ()
