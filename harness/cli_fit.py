"""Commands for tables of runs: `isoloss fit` reads anybody's, `isoloss export` writes ours."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.cli_common import RESULTS, Results, SweepArgument, find_sweep
from harness.errors import IsolossError

if TYPE_CHECKING:
    from analysis.intake.options import Asymptote, FitOptions, Role, TableOptions

COLUMN_PANEL = "Columns (found by their names where not given)"
ROW_PANEL = "Rows"
FIT_PANEL = "Fits"


def _column(flag: str, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        flag, metavar="COLUMN", help=what, rich_help_panel=COLUMN_PANEL
    )
    return option


Source = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="A csv, tsv, json lines or parquet file with one row a run, an export of Weights & "
        "Biases, or mlflow:URI#EXPERIMENT.",
    ),
]
Text = str | None
N = Annotated[Text, _column("--n", "Parameters; COLUMN*1e6 gives a unit.")]
D = Annotated[Text, _column("--d", "Training tokens.")]
C = Annotated[Text, _column("--c", "Training FLOPs; without one, C = 6 N D.")]
Loss = Annotated[Text, _column("--loss", "Final loss, nats per token.")]
Ppl = Annotated[Text, _column("--ppl", "Perplexity, in place of the loss.")]
Variant = Annotated[Text, _column("--variant", "Name of the variant.")]
Seed = Annotated[Text, _column("--seed", "Seed; runs of one seed and size are paired.")]
Size = Annotated[Text, _column("--size", "Name of the size.")]
Eval = Annotated[Text, _column("--eval", "Evaluation set; one table may hold one.")]
Status = Annotated[Text, _column("--status", "finished, running, crashed, failed, diverged.")]
Time = Annotated[Text, _column("--time", "Training time, seconds.")]
Cluster = Annotated[
    Text, _column("--cluster", "Run, where rows are checkpoints: not independent; 'none'.")
]
Variants = Annotated[
    Text,
    typer.Option(
        metavar="A,B,C",
        help="Loss columns of a wide table, one per variant.",
        rich_help_panel=COLUMN_PANEL,
    ),
]
Delimiter = Annotated[Text, typer.Option(help="Between fields.", rich_help_panel=ROW_PANEL)]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION",
        help="column=value, also != < <= > >=; rows that miss one are not read. Repeatable.",
        rich_help_panel=ROW_PANEL,
    ),
]
DropHighest = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="K",
        help="Exclude the K highest losses: a rule to declare before looking.",
        rich_help_panel=ROW_PANEL,
    ),
]
LastCheckpoint = Annotated[
    bool,
    typer.Option(
        "--last-checkpoint", help="Keep the last row of each run.", rich_help_panel=ROW_PANEL
    ),
]
Baseline = Annotated[
    Text, typer.Option(metavar="VARIANT", help="Compared with.", rich_help_panel=FIT_PANEL)
]
Convention = Annotated[
    Text,
    typer.Option(
        "--flop-convention",
        metavar="TEXT",
        help="How C was counted, in words.",
        rich_help_panel=FIT_PANEL,
    ),
]
LawName = Annotated[
    Literal["auto", "power", "joint", "isoflop", "broken"],
    typer.Option(help="auto: whatever the table carries.", rich_help_panel=FIT_PANEL),
]
Objective = Annotated[
    Literal["huber", "mse"],
    typer.Option(
        help="Of the joint law: Huber on ln L, or squares of L.", rich_help_panel=FIT_PANEL
    ),
]
Delta = Annotated[
    float, typer.Option(help="Huber threshold, natural log.", rich_help_panel=FIT_PANEL)
]
AsymptoteText = Annotated[
    str,
    typer.Option(
        "--asymptote",
        metavar="0|free|NATS",
        help="E of the laws of compute.",
        rich_help_panel=FIT_PANEL,
    ),
]
Bootstrap = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Bootstraps of the joint law; 0: intervals from curvature.",
        rich_help_panel=FIT_PANEL,
    ),
]
Level = Annotated[
    float, typer.Option(help="Confidence level of intervals.", rich_help_panel=FIT_PANEL)
]
Published = Annotated[
    Text,
    typer.Option(
        metavar="A=..,B=..,E=..,alpha=..,beta=..",
        help="Test whether a published point is the minimum.",
        rich_help_panel=FIT_PANEL,
    ),
]
ExtrapolateTo = Annotated[
    float | None,
    typer.Option(
        metavar="FLOPS", help="Carry the laws to this compute.", rich_help_panel=FIT_PANEL
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Write report.html, tables, figures, fits here."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    for command in (fit, export):
        app.command()(command)


def fit(
    table: Source,
    n: N = None,
    d: D = None,
    c: C = None,
    loss: Loss = None,
    ppl: Ppl = None,
    variant: Variant = None,
    seed: Seed = None,
    size: Size = None,
    evaluation: Eval = None,
    status: Status = None,
    time: Time = None,
    cluster: Cluster = None,
    variants: Variants = None,
    delimiter: Delimiter = None,
    where: Where = None,
    drop_highest: DropHighest = 0,
    last_checkpoint: LastCheckpoint = False,
    baseline: Baseline = None,
    convention: Convention = None,
    law: LawName = "auto",
    objective: Objective = "huber",
    delta: Delta = 1e-3,
    asymptote: AsymptoteText = "0",
    bootstrap: Bootstrap = 0,
    level: Level = 0.95,
    published: Published = None,
    extrapolate_to: ExtrapolateTo = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Fit scaling laws and compare variants, for anybody's table of runs; needs no training extra.

    Example: isoloss fit runs.csv --variant method --baseline prenorm
    """
    from analysis.intake.options import FitOptions, TableOptions

    columns: dict[Role, str | None] = {"n": n, "d": d, "c": c, "loss": loss, "ppl": ppl}
    columns |= {"variant": variant, "seed": seed, "size": size, "eval": evaluation}
    columns |= {"status": status, "time": time, "cluster": cluster}
    table_options = TableOptions(
        columns={role: name for role, name in columns.items() if name is not None},
        variants=tuple(part.strip() for part in variants.split(",")) if variants else (),
        delimiter=_delimiter(delimiter),
        where=tuple(where or ()),
        drop_highest=drop_highest,
        last_checkpoint=last_checkpoint,
        baseline=baseline,
        flop_convention=convention,
    )
    fit_options = FitOptions(
        law=law,
        objective=objective,
        delta=_within(delta, "--delta", 0, math.inf),
        asymptote=_asymptote(asymptote),
        bootstrap=bootstrap,
        level=_within(level, "--level", 0, 1),
        published=_point(published, law) if published else None,
        extrapolate_to=extrapolate_to and _within(extrapolate_to, "--extrapolate-to", 0, math.inf),
    )
    _fit(table, table_options, fit_options, as_json, output)


def _fit(
    source: str, table: TableOptions, options: FitOptions, as_json: bool, output: Path | None
) -> None:
    """Read, fit, print; files only after everything else has gone well."""
    from analysis.intake.fit_table import fit_table
    from analysis.intake.printed import fits_text
    from analysis.intake.saved import fits_as_json, save_fits
    from analysis.intake.table import read_table

    if output is not None and output.exists() and not output.is_dir():
        raise IsolossError(f"{output}: is a file; --output names a folder")
    found = fit_table(read_table(source, table), options)
    print(fits_as_json(found) if as_json else fits_text(found))
    if output is not None:
        written = save_fits(found, output)
        if not as_json:
            print(f"\n{written}")


def export(
    grid: SweepArgument,
    results: Results = RESULTS,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: standard output."),
    ] = None,
    kind: Annotated[
        Literal["csv", "parquet"] | None,
        typer.Option("--format", help="Default: by the file's name, else csv."),
    ] = None,
) -> None:
    """Write a sweep as one tidy table, a row per run, excluded ones with their reason.

    Example: isoloss export quickstart -o quickstart.csv
    """
    from analysis.collect import collect

    chosen = kind or ("parquet" if output and output.suffix == ".parquet" else "csv")
    if output is None and chosen == "parquet":
        raise IsolossError("export: parquet is not for the terminal; give a file with -o FILE")
    runs = collect(find_sweep(grid, results))
    if chosen == "csv":
        text = runs.to_csv(index=False)
        if output is None:
            print(text, end="")
            return
        content = text.encode()
    else:
        buffer = io.BytesIO()
        runs.to_parquet(buffer, index=False)
        content = buffer.getvalue()
    _write(output or Path(), content)
    print(f"{output}: {len(runs)} runs, {int(runs['excluded_because'].notna().sum())} excluded")


def _write(path: Path, content: bytes) -> None:
    """Replace a file at once, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)


def _delimiter(text: str | None) -> str | None:
    if text is None:
        return None
    named = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
    mark = named.get(text, text)
    if len(mark) != 1:
        raise IsolossError(f"--delimiter: one character, or tab, comma, semicolon; got {text!r}")
    return mark


def _within(value: float, name: str, low: float, high: float) -> float:
    if not low < value < high:
        limit = f"above {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise IsolossError(f"{name}: must be {limit}, got {value:g}")
    return value


def _asymptote(text: str) -> Asymptote:
    if text == "free":
        return "free"
    value = _number(text, "--asymptote", "0, free, or nats per token")
    if not 0 <= value < math.inf:
        raise IsolossError(f"--asymptote: must be 0 or above, got {text}")
    return value


def _point(text: str, law: str) -> dict[str, float]:
    """``A=482.01,B=2085.43,...`` as numbers by symbol, all that the law has."""
    needed = ("A", "E", "alpha") if law == "power" else ("A", "B", "E", "alpha", "beta")
    found: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = part.partition("=")
        if not sign:
            wanted = ",".join(f"{name}=.." for name in needed)
            raise IsolossError(f"--published: write {wanted}; got {part!r}")
        found[name.strip()] = _number(value, f"--published {name.strip()}", "a number")
    missing = [name for name in needed if name not in found]
    if missing:
        raise IsolossError(f"--published: {', '.join(missing)} missing")
    return found


def _number(text: str, name: str, wanted: str) -> float:
    convert: Callable[[str], float] = float
    try:
        return convert(text)
    except ValueError:
        raise IsolossError(f"{name}: must be {wanted}, got {text!r}") from None
