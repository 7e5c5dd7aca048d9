"""The command `eval`: measures trained language models, and stores what it finds with the runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import cli_tools as tools
from harness.cli_common import RESULTS, AsJson, Results, elsewhere, find_named_run, find_sweep
from harness.errors import MissingExtraError
from harness.evaluation.base import (
    CODE_CORPUS,
    DEFAULT_CORPORA,
    DEFAULT_TOKENS,
    Entry,
    Settings,
)
from harness.paths import SweepPaths

if TYPE_CHECKING:
    from rich.console import Console

    from harness.evaluation.runner import Measured, Subject, Unevaluated
    from harness.records import PlannedRun


Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|GRID",
        help="SWEEP/RUN, a run by the first digits of its id, or its folder; or a grid file or "
        "sweep: all its finished runs.",
    ),
]
Asked = Annotated[
    list[str] | None,
    typer.Option(
        "--evaluation",
        "-e",
        metavar="NAME[:ARGUMENT]",
        help="What to measure; may be repeated. Default: domains, human_eval, code_cloze. "
        "Others: domains:CORPUS, code_cloze:PART, lm_eval:TASK.",
    ),
]
OfEachRun = Annotated[
    str,
    typer.Option(
        metavar="last|all|N,N",
        help="Of each run: its last, all that were kept (execution.n_checkpoints), or those of "
        "given steps.",
    ),
]
Tokens = Annotated[int, typer.Option(min=1, help="domains: tokens of each corpus.")]
Corpora = Annotated[
    list[str] | None,
    typer.Option(
        "--corpus",
        metavar="NAME_OR_FOLDER",
        help=f"domains: a corpus beside {' and '.join(DEFAULT_CORPORA)}; may be repeated.",
    ),
]
CodeCorpus = Annotated[
    str, typer.Option(metavar="NAME_OR_FOLDER", help="code_cloze: where the code comes from.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Examples of each evaluation at most; not of domains.")
]
IncludePath = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="lm_eval: folder of further task files.")
]
FewShot = Annotated[
    int | None,
    typer.Option(min=0, help="lm_eval: examples before each question; default: the task's."),
]
Force = Annotated[bool, typer.Option("--force", help="Measure again what has a result already.")]


def evaluate(
    target: Target,
    evaluations: Asked = None,
    checkpoints: OfEachRun = "last",
    tokens: Tokens = DEFAULT_TOKENS,
    corpora: Corpora = None,
    code_corpus: CodeCorpus = CODE_CORPUS,
    limit: Limit = None,
    include_path: IncludePath = None,
    num_fewshot: FewShot = None,
    force: Force = False,
    results: Results = RESULTS,
    as_json: AsJson = False,
) -> None:
    """Measure trained language models: bits per byte by domain, code, and tasks of lm_eval.

    Results are stored with each run and join its record, the report and MLflow. The same command
    again does what is missing; Ctrl-C leaves what was measured.

    Example: isoloss eval quickstart

    Example: isoloss eval quickstart/3f2a -e domains:pysrc --checkpoints all
    """
    from harness.evaluation.runner import parse_checkpoints, survey

    chosen = parse_checkpoints(checkpoints)
    paths, runs = _target(target, results)
    settings = Settings(
        tokens=tokens,
        corpora=(*DEFAULT_CORPORA, *(corpora or ())),
        code_corpus=code_corpus,
        limit=limit,
        include_path=include_path,
        num_fewshot=num_fewshot,
    )
    console = tools.console()
    with console.status("Opening corpora; the first time, they are built"):
        entries = _entries(evaluations, settings)
    subjects, refused = survey(paths, runs, entries, chosen, force=force)
    stopped = False
    try:
        subjects, failed = _measure(subjects, console, quiet=as_json)
        refused += failed
    except KeyboardInterrupt:
        stopped = True
        subjects, refused = survey(paths, runs, entries, chosen)
    if as_json:
        from harness.evaluation.shown import results_json

        print(json.dumps(results_json(paths.root.name, subjects, refused), indent=2))
    else:
        _show(console, subjects, entries, refused)
        _say_what_next(console, paths, results, stopped=stopped)
    raise typer.Exit(1 if refused or stopped else 0)


def _say_what_next(console: Console, paths: SweepPaths, results: Path, *, stopped: bool) -> None:
    following = " ".join(["isoloss report", paths.root.name, *elsewhere(results)])
    text = "Stopped; what was measured is stored. The same command goes on."
    console.print(text if stopped else f"Next: {following}", markup=False, highlight=False)


def _target(target: str, results: Path) -> tuple[SweepPaths, list[PlannedRun]]:
    """Runs that are asked for: one, or all of a sweep."""
    from harness.records import read_manifest

    sweep = target.rstrip("/").rpartition("/")[0]
    in_sweep = bool(sweep) and not Path(target).is_file()
    if in_sweep and (Path(sweep).name == "runs" or find_sweep(sweep, results).manifest.exists()):
        paths, run = find_named_run(target, results)
        return paths, [run]
    paths = find_sweep(target, results)
    if in_sweep and not paths.manifest.exists() and not Path(sweep).is_dir():
        paths = find_sweep(sweep, results)  # SWEEP/RUN of a sweep that does not exist
    return paths, read_manifest(paths).runs


def _entries(asked: Sequence[str] | None, settings: Settings) -> list[Entry]:
    """What to measure; of the default ones, those whose packages are installed."""
    from harness.evaluation import available, entries_of, get

    if asked:
        return entries_of(asked, settings)
    found = []
    for name in available():
        try:
            found += entries_of([name], settings) if get(name).default else []
        except MissingExtraError as error:
            print(f"note: {name} is left out: {error}", file=sys.stderr)
    return found


def _measure(
    subjects: Sequence[Subject], console: Console, *, quiet: bool
) -> tuple[list[Subject], list[Unevaluated]]:
    """Measure what is missing, with a line for each result and a bar on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from harness.evaluation.runner import evaluate_all
    from harness.evaluation.shown import measured_text

    n_missing = sum(len(subject.missing) for subject in subjects)
    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=n_missing)

        def report(measured: Measured) -> None:
            bar.advance(task)
            run, result = measured.run, measured.result
            if quiet:
                return
            number = int(bar.tasks[0].completed)
            text = measured_text(measured.entry, result.metrics)
            bar.console.print(
                f"[{number}/{n_missing}] {run.cell} seed {run.config['seed']} step {result.step} "
                f"{result.name}: {text} ({measured.seconds:.1f} s)",
                markup=False,
                highlight=False,
            )

        return evaluate_all(subjects, report)


def _show(
    console: Console,
    subjects: Sequence[Subject],
    entries: Sequence[Entry],
    refused: Sequence[Unevaluated],
) -> None:
    from harness.evaluation.shown import means_table, result_table

    if subjects:
        console.print(result_table(subjects, entries))
        means = means_table(subjects, entries)
        if means is not None:
            console.print("")
            console.print(means)
    for item in refused:
        line = f"not evaluated: {item.run.run_id} {item.run.cell}: {item.reason}"
        console.print(line, markup=False, highlight=False)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval")(evaluate)
