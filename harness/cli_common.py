"""What the files of the command line share: arguments, and how a sweep is found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.paths import SweepPaths, sweep_paths

SweepArgument = Annotated[
    str, typer.Argument(metavar="GRID", help="A grid file, or the name of a sweep that was run.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
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


def elsewhere(results: Path) -> list[str]:
    """The option that a next command needs to find results outside the default folder."""
    return [] if results == RESULTS else [f"--results {results}"]
