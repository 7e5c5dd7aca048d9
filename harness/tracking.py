"""Where the MLflow mirror lives: the tracking URI, and the local store that is built once.

Called before workers start, so it never imports MLflow into the calling process. What is sent there
is decided in ``harness.mirror_view`` and sent by ``harness.mirror``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import IsolossError, MissingExtraError
from harness.paths import SweepPaths

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""Database dialects that MLflow can open directly."""
SERVERS = ("http", "https", "databricks")
"""Schemes behind which a server owns the database and the artifacts."""
LOCK_PATIENCE_S = 180.0
"""How long to wait for another process that builds the store; a build takes seconds."""
BUILD_PATIENCE_S = 600.0
"""How long one build or migration may take."""
REVISION = re.compile(r"^(down_)?revision(?:: str)? = [\"'](\w+)[\"']", re.MULTILINE)
BUILD = (
    "import sys; from mlflow import MlflowClient; MlflowClient(sys.argv[1]).search_experiments()"
)


def create_store(paths: SweepPaths) -> str:
    """Return the tracking URI of a sweep, with a usable store behind it.

    ``MLFLOW_TRACKING_URI`` wins when set. Otherwise the store is ``mlflow.db`` in the results
    folder: built, or migrated to the installed MLflow's schema, in a scratch copy under a file lock
    and put in place by a rename. Two processes that open a missing database at once would leave it
    unusable for good (hydraflow issue 245). Takes seconds once, then milliseconds.

    Returns
    -------
    str
        ``http(s)://...`` or a database URI with an absolute path.

    Raises
    ------
    IsolossError
        The URI is of a kind that cannot be used, or the store cannot be built.
    MissingExtraError
        MLflow is not installed.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise MissingExtraError("sync", "train", "mlflow")
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{paths.mlflow_db.resolve()}"
    check_uri(uri)
    database = sqlite_path(uri)
    if database is None:
        return uri
    _build_once(database)
    return f"sqlite:///{database}"


def check_uri(uri: str) -> None:
    """Refuse a tracking URI that MLflow's mirror cannot use.

    Raises
    ------
    IsolossError
        A folder (``file:`` or a bare path): MLflow 3.13 and later refuse those.
    """
    scheme = uri.partition(":")[0].partition("+")[0].lower()
    if scheme in DATABASES or scheme in SERVERS:
        return
    raise IsolossError(
        f"MLflow tracking URI '{uri}': a folder cannot be a store (MLflow dropped the file store "
        "in 3.13). Set MLFLOW_TRACKING_URI to a database (sqlite:////absolute/path/mlflow.db, "
        "postgresql://...) or a server (http://host:port), or unset it to use mlflow.db in the "
        "results folder."
    )


def sqlite_path(uri: str) -> Path | None:
    """Absolute path of the database file behind a sqlite URI; None for any other URI."""
    if not uri.startswith("sqlite"):
        return None
    path = uri.partition(":///")[2]
    if not path or path.startswith(":memory:"):
        raise IsolossError(
            f"MLflow tracking URI '{uri}': no database file. Write sqlite:////absolute/path/mlflow.db."
        )
    return Path(path).resolve()


def is_server(uri: str) -> bool:
    """Whether a server, not this process, chooses where artifacts go."""
    return uri.partition(":")[0].lower() in SERVERS


def _build_once(database: Path) -> None:
    if _is_current(database):
        return
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(database.with_name(f"{database.name}.lock"), timeout=LOCK_PATIENCE_S):
            if not _is_current(database):
                _build(database)
    except Timeout as error:
        raise IsolossError(
            f"{database}: another process has been building the MLflow store for over "
            f"{LOCK_PATIENCE_S:.0f} s. Find it and end it, or run with MLflow switched off."
        ) from error
    except OSError as error:
        raise IsolossError(f"{database}: cannot create the MLflow store ({error}).") from error


def _is_current(database: Path) -> bool:
    found = _schema_revision(database)
    return found is not None and found == installed_revision()


def _schema_revision(database: Path) -> str | None:
    """Read the schema revision of a store; None when it is missing or empty."""
    if not database.exists() or not database.stat().st_size:
        return None
    try:
        with closing(
            sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=20)
        ) as store:
            row = store.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise IsolossError(
            f"{database}: not an MLflow store ({error}). Move it away; the mirror is rebuilt "
            "from the run folders by: isoloss sync GRID"
        ) from error
    return str(row[0]) if row else None


def installed_revision() -> str:
    """Newest schema revision that the installed MLflow knows, read from its migration files.

    The head is the one revision that no other migration builds on. Asking MLflow itself would
    import it, which takes seconds.
    """
    folder = _mlflow_package() / "store" / "db_migrations" / "versions"
    revisions: set[str] = set()
    parents: set[str] = set()
    for file in folder.glob("*.py"):
        for down, revision in REVISION.findall(file.read_text(encoding="utf-8")):
            (parents if down else revisions).add(revision)
    heads = revisions - parents
    if len(heads) != 1:
        raise IsolossError(f"{folder}: expected one newest MLflow schema, found {sorted(heads)}.")
    return heads.pop()


def _mlflow_package() -> Path:
    spec = importlib.util.find_spec("mlflow")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _build(database: Path) -> None:
    """Build or migrate the store in a scratch file, then rename: readers never see half of one."""
    scratch = database.with_name(f".{database.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    url = f"sqlite:///{scratch}"
    try:
        if _schema_revision(database) is None:
            _run_mlflow(database, "-c", BUILD, url)
        else:
            _copy(database, scratch)
            _run_mlflow(database, "-m", "mlflow", "db", "upgrade", url)
        scratch.replace(database)
    finally:
        scratch.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _run_mlflow(database: Path, *arguments: str) -> None:
    """Run MLflow in a process of its own, in the results folder; its log shows only on failure."""
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=database.parent,
        env={**os.environ, **quiet},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_PATIENCE_S,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise IsolossError(
            f"{database}: MLflow could not build or migrate its store ({last}). Move the file "
            "away; the mirror is rebuilt from the run folders by: isoloss sync GRID"
        )
