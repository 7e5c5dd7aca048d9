"""Bad tables: one clear message each, exit code 2, nothing written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.collect import collect
from analysis.intake.options import BadTable, TableOptions
from analysis.intake.read import MAX_ROWS
from analysis.intake.table import read_table
from harness.cli import main
from tests.analysis.synthetic_sweep import World, build_sweep

DATA = Path(__file__).resolve().parent.parent / "data"
GOOD = "n_params,tokens,loss\n1e8,1e9,3.5\n2e8,2e9,3.2\n4e8,4e9,3.0\n"
ARMS = "method,n_params,tokens,loss\nbaseline,1e8,2e9,3.5\nmine,1e8,2e9,3.4\n"

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isoloss", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return call


BAD: dict[str, tuple[str, list[str], list[str]]] = {
    "missing column of losses": (
        "n_params,tokens,note\n1e8,1e9,a\n2e8,2e9,b\n",
        [],
        ["no column of losses", "--loss", "Columns: n_params, tokens, note"],
    ),
    "missing column of sizes": ("run,loss\na,3\nb,2\n", [], ["no column of N", "--n, --d, --c"]),
    "option names no column": (GOOD, ["--loss", "los"], ["no column 'los' (--loss)", "'loss'?"]),
    "text in numbers": (
        GOOD.replace("2e8", "two"),
        [],
        ["line 3", "'n_params'", "must hold a number", "'two'"],
    ),
    "decimal comma": (
        "n_params;tokens;loss\n1e8;1e9;3,5\n2e8;2e9;3.2\n",
        [],
        ["line 2", "'3,5'", "decimal comma"],
    ),
    "NaN loss": (GOOD.replace("3.2", "nan"), [], ["line 3: no loss", "'loss'", "--status"]),
    "empty loss": (GOOD.replace("3.2", ""), [], ["line 3: no loss", "'loss'", "--where"]),
    "no N": (GOOD.replace("2e8", ""), [], ["line 3: no N", "'n_params'"]),
    "duplicate rows": (
        GOOD + "2e8,2e9,3.2\n",
        [],
        ["line 5: repeats an earlier row", "line 3", "a run counts once"],
    ),
    "one size only": (
        "n_params,tokens,loss\n1e8,1e9,3.5\n1e8,1e9,3.4\n1e8,1e9,3.6\n",
        [],
        ["all 3 runs have one size (N = 1e+08, D = 1e+09", "at least 3 sizes"],
    ),
    "negative loss": (GOOD.replace("3.2", "-3.2"), [], ["line 3", "must be positive", "-3.2"]),
    "zero loss": (GOOD.replace("3.2", "0"), [], ["line 3", "a loss must be positive", "got 0"]),
    "perplexity as loss": (
        GOOD.replace("3.2", "38.7"),
        [],
        ["line 3", "38.7 nats", "--ppl 'loss'"],
    ),
    "N not positive": (GOOD.replace("2e8", "-2e8"), [], ["line 3: N", "positive, got -2e+08"]),
    "D is infinite": (GOOD.replace("2e9", "inf"), [], ["line 3: D", "positive, got inf"]),
    "mixed evaluation sets": (
        "eval_set,n_params,tokens,loss\nc4,1e8,1e9,3.5\nc4,2e8,2e9,3.2\npile,4e8,4e9,3.0\n",
        [],
        ["evaluation sets are not comparable", "c4 (2), pile (1)", "--where 'eval_set=c4'"],
    ),
    "wrong delimiter": (
        GOOD,
        ["--delimiter", ";"],
        ["delimiter ';'", "one column, 'n_params,tokens,loss'", "--delimiter ','"],
    ),
    "uneven rows": (GOOD + "8e8,8e9\n", [], ["3 columns in the header", "line 5 (2)"]),
    "empty file": ("", [], ["is empty"]),
    "header only": ("n_params,tokens,loss\n", [], ["has a header but no row"]),
    "C in another unit": (
        "n_params,tokens,flops,loss\n1e8,1e9,0.6,3.5\n2e8,2e9,2.4,3.2\n",
        [],
        ["line 2, line 3: C = 0.6 but 6 N D = 6e+17", "100x apart", "--c 'COLUMN*1e15'"],
    ),
    "checkpoints of one run": (
        "run,n_params,tokens,loss\na,1e8,1e9,3.5\na,1e8,2e9,3.2\nb,2e8,2e9,3.0\n",
        [],
        ["line 2, line 3: several checkpoints of one run (run 'a')", "--cluster", "--last-check"],
    ),
    "no baseline among variants": (
        ARMS.replace("baseline", "theirs"),
        [],
        ["which of the variants is the baseline?", "theirs, mine"],
    ),
    "unknown baseline": (ARMS, ["--baseline", "pre"], ["no variant 'pre'", "baseline, mine"]),
    "unknown status": (
        "status,n_params,tokens,loss\nfine,1e8,1e9,3\ndone,2e8,2e9,2\n",
        [],
        ["line 2", "'fine', which is no known status"],
    ),
    "nothing finished": (
        "state,n_params,tokens,loss\ncrashed,1e8,1e9,\nrunning,2e8,2e9,3\n",
        [],
        ["no run can be used: 1 crashed, 1 not finished"],
    ),
    "condition without a row": (
        GOOD,
        ["--where", "n_params=7"],
        ["no row is left", "n_params holds 1e8, 2e8, 4e8"],
    ),
    "condition on no column": (GOOD, ["--where", "size=7"], ["no column 'size'"]),
    "columns unlike each other": (
        "n_params,tokens,mine,flop_rate\n1e8,1e9,3.1,2e12\n2e8,2e9,3.0,2e12\n",
        [],
        ["unlike each other", "flop_rate about 2e+12", "--variants"],
    ),
    "two columns of one name": (
        "n_params,tokens,loss,loss\n1e8,1e9,3,3\n",
        [],
        ["two columns are named 'loss'"],
    ),
    "damaged json lines": ('{"N": 1}\n{"N": \n', [], ["line 2: is not JSON"]),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_table_gives_one_clear_message(fault: str, tmp_path: Path, cli: Cli) -> None:
    text, options, expected = BAD[fault]
    table = tmp_path / "runs.csv"
    table.write_text(text)
    output = tmp_path / "out"
    code, out, err = cli("fit", str(table), *options, "-o", str(output))
    assert code == 2
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith(f"{table}: ")
    for part in expected:
        assert part in lines[0]
    assert not output.exists()


def test_every_fault_is_found_in_one_pass(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "eval_set,n_params,tokens,flops,loss\n"
        "c4,1e8,1e9,6e17,3.5\nc4,2e8,2e9,2.4e18,abc\npile,4e8,4e9,1,3.0\n"
        "c4,0,8e9,1e18,2.9\nc4,1e8,1e9,6e17,3.5\nc4,5e8,5e9,1.5e19,\n"
    )
    with pytest.raises(BadTable) as bad:
        read_table(str(table), TableOptions(columns={"seed": "sed"}))
    named = ("'sed'", "'abc'", "line 7: no loss", "line 5: N", "line 6: repeats", "c4 (", "units?")
    for part in named:
        assert sum(part in problem for problem in bad.value.problems) == 1, part
    assert len(bad.value.problems) == len(named)


def test_a_run_that_diverged_or_failed_needs_no_loss(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "status,n_params,tokens,loss\ndone,1e8,1e9,3.5\ndone,2e8,2e9,3.2\n"
        "diverged,4e8,4e9,nan\nFailed,4e8,4e9,\ndone,4e8,4e9,diverged\n"
    )
    reasons = read_table(str(table), TableOptions()).runs["excluded_because"]
    assert [reason for reason in reasons if reason] == ["diverged", "failed", "diverged"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"n_params,loss\n1e8,3\n2e8,\xe9\n", "line 3: is not UTF-8 (byte 0xe9)"),
        ("n_params,loss\n1e8,3\n".encode("utf-16"), "line 1: is not UTF-8"),
        (b"\x1f\x8b\x08\x00abc", "is compressed with gzip"),
        (b"PK\x03\x04abc", "is a spreadsheet"),
        (b"PAR1 and then nothing", "is a damaged parquet file"),
        (b"n_params,loss\n1e8,\x003\n", "null bytes"),
    ],
)
def test_what_is_no_text_is_named(content: bytes, expected: str, tmp_path: Path, cli: Cli) -> None:
    table = tmp_path / "runs.csv"
    table.write_bytes(content)
    code, _, err = cli("fit", str(table))
    assert code == 2
    assert expected in err


def test_what_is_no_file_is_named(tmp_path: Path, cli: Cli) -> None:
    code, _, err = cli("fit", str(tmp_path))
    assert (code, "is a directory" in err) == (2, True)
    code, _, err = cli("fit", str(tmp_path / "none.csv"))
    assert (code, err) == (2, f"{tmp_path / 'none.csv'}: no such file\n")
    code, _, err = cli("fit", f"mlflow:sqlite:///{tmp_path}/none.db#x")
    assert (code, "no such database" in err) == (2, True)


def test_a_table_of_steps_is_refused_with_the_way_out(tmp_path: Path, cli: Cli) -> None:
    table = tmp_path / "steps.csv"
    table.write_text("run,n_params,tokens,loss\n" + "a,1e8,1e9,3.5\n" * 1_000_000)
    code, _, err = cli("fit", str(table))
    assert code == 2
    assert (
        f"has about 1,000,000 rows; a table of runs has one row a run (at most {MAX_ROWS:,})" in err
    )
    assert "--last-checkpoint --cluster" in err
    assert len(err.strip().splitlines()) == 1


def test_sweeps_of_two_corpora_are_not_one_table(tmp_path: Path, cli: Cli) -> None:
    runs = collect(build_sweep(tmp_path, World(seeds=(0,))))
    runs.loc[3, "corpus_sha256"] = "other"
    runs.to_csv(tmp_path / "both.csv", index=False)
    code, _, err = cli("fit", str(tmp_path / "both.csv"))
    assert code == 2
    assert "column 'corpus_sha256' holds cccccccccccc (23), other (1)" in err


def test_published_data_of_mixed_counts_is_refused(cli: Cli) -> None:
    code, _, err = cli("fit", str(DATA / "porian2024" / "isoflop_points.csv"))
    assert code == 2
    assert "column 'val' holds train (692), val (472)" in err
    assert "ways of counting" in err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--asymptote", "high"], "--asymptote: must be 0, free, or nats"),
        (["--level", "95"], "--level: must be between 0 and 1"),
        (["--delta", "0"], "--delta: must be above 0"),
        (["--published", "A=1,B=2"], "--published: E, alpha, beta missing"),
        (["--published", "A=x"], "--published A: must be a number"),
        (["--delimiter", "abc"], "--delimiter: one character"),
        (["--law", "joint"], "nothing can be fitted"),
        (["--law", "cubic"], "cubic"),
    ],
)
def test_a_bad_option_is_named(options: list[str], expected: str, tmp_path: Path, cli: Cli) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(GOOD)
    code, out, err = cli("fit", str(table), *options)
    assert code == 2
    assert out == ""
    assert expected in err
