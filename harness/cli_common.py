"""What the files of the command line share: arguments, and how a sweep is found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import IsolossError
from harness.paths import SweepPaths, sweep_paths

if TYPE_CHECKING:
    from harness.records import PlannedRun

SweepArgument = Annotated[
    str, typer.Argument(metavar="GRID", help="A grid file, or the name of a sweep that was run.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
NamedRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="SWEEP/RUN, a run by the first digits of its id; or a run's folder."
    ),
]
Results = Annotated[Path, typer.Option("--results", help="Folder of all sweeps.")]
RESULTS = Path("results")


def find_sweep(grid: str, results: Path) -> SweepPaths:
    """Paths of a sweep, given its grid file, its folder, or its name."""
    path = Path(grid)
    if path.is_dir() and (path / "manifest.json").exists():
        return SweepPaths(path.resolve())
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        from harness.yaml12 import sweep_name

        return sweep_paths(results, sweep_name(path))
    return sweep_paths(results, grid)


def find_named_run(name: str, results: Path) -> tuple[SweepPaths, PlannedRun]:
    """Sweep and run behind ``SWEEP/RUN``, or behind the path of a run's folder.

    Parameters
    ----------
    name
        A sweep as for :func:`find_sweep` and the first digits of an id; or a folder in which a run
        has left its files.

    Raises
    ------
    IsolossError
        The name has no run in it, or no run or several match.
    """
    from harness.records import read_manifest
    from harness.status import find_run

    folder = Path(name)
    if folder.parent.name == "runs" and folder.is_dir():
        paths, digits = SweepPaths(folder.resolve().parent.parent), folder.resolve().name
    else:
        sweep, _, digits = name.rstrip("/").rpartition("/")
        if not (sweep and digits):
            raise IsolossError(
                f"{name}: names no run. Write SWEEP/RUN, a run by the first digits of its id; "
                f"`isoloss status {name} --runs` lists them."
            )
        paths = find_sweep(sweep, results)
    return paths, find_run(paths, read_manifest(paths), digits)


def elsewhere(results: Path) -> list[str]:
    """The option that a next command needs to find results outside the default folder."""
    return [] if results == RESULTS else [f"--results {results}"]
