"""Databases behind the MLflow mirror: built or migrated once, whoever comes first.

Processes that open a missing database at once would leave it unusable for good (hydraflow issue
245), so one builds it while the others wait. MLflow itself runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import IsolossError
from harness.lease import acquire

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

LOCK_PATIENCE_S = 180.0
"""How long to wait for another process that builds the store; a build takes seconds."""
LOCK_PAUSE_S = 0.2
"""Pause between two looks whether it is done."""
BUILD_PATIENCE_S = 600.0
"""How long one build or migration may take."""
ADVISORY_KEY = int.from_bytes(hashlib.sha256(b"isoloss: MLflow schema").digest()[:7], "big")
"""PostgreSQL's advisory lock that a builder holds; per database."""
REVISION = re.compile(r"^(down_)?revision(?:: str)? = [\"'](\w+)[\"']", re.MULTILINE)
STORE_VARIABLE = "ISOLOSS_MLFLOW_STORE"
"""Hands a URI to the building process unseen by others, as it may hold a password."""
BUILD = (
    "import os; from mlflow import MlflowClient; "
    f"MlflowClient(os.environ['{STORE_VARIABLE}']).search_experiments()"
)


class StoreAway(IsolossError):
    """The database behind MLflow does not answer."""


def ensure_sqlite(database: Path) -> None:
    """Build a sqlite store, or migrate it to the installed MLflow's schema, unless it is current.

    That happens in a scratch copy, put in place by a rename: readers never see half of a store.

    Raises
    ------
    IsolossError
        The file is no MLflow store, or it cannot be built.
    """
    if _is_current(database):
        return
    try:
        with _alone(database.with_name(f".{database.name}.build"), str(database)):
            if not _is_current(database):
                _build(database)
    except OSError as error:
        raise IsolossError(f"{database}: cannot create the MLflow store ({error}).") from error


def ensure_schema(uri: str, shown: str, results: Path) -> None:
    """Create MLflow's tables in an empty database of a server such as PostgreSQL.

    A database with the schema of another MLflow is refused, not migrated: others may use it.

    Parameters
    ----------
    uri
        Database URI, possibly with a password.
    shown
        The same for messages.
    results
        Folder for the lease of builders where the database offers no lock.

    Raises
    ------
    StoreAway
        The database does not answer.
    IsolossError
        Its driver is not installed, or its schema is another one.
    """
    with _connected(uri, shown) as connection:
        if _has_schema(connection, shown):
            return
        with _alone_in(connection, shown, results):
            if not _has_schema(connection, shown):
                _run_mlflow(shown, results, uri, "-c", BUILD)


@contextmanager
def _connected(uri: str, shown: str) -> Iterator[Connection]:
    from sqlalchemy.exc import SQLAlchemyError

    engine = _engine(uri, shown)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection
    except SQLAlchemyError as error:
        text = " ".join(str(error).split("\n")[0].split())
        raise StoreAway(f"MLflow at {shown} does not answer ({text})") from error
    finally:
        engine.dispose()


def _engine(uri: str, shown: str) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return create_engine(uri)
    except ModuleNotFoundError as error:
        raise IsolossError(
            f"MLflow tracking URI '{shown}': its driver is not installed: no module named "
            f"'{error.name}'. For PostgreSQL: pip install psycopg2-binary"
        ) from error
    except (SQLAlchemyError, ValueError) as error:
        raise IsolossError(f"MLflow tracking URI '{shown}': {error}") from error


def _has_schema(connection: Connection, shown: str) -> bool:
    """Whether the database has the installed MLflow's schema; False for an empty one."""
    from sqlalchemy import inspect, text

    if not inspect(connection).has_table("alembic_version"):
        return False
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found is None or found == installed_revision():
        return found is not None
    raise IsolossError(
        f"MLflow at {shown}: its schema ({found}) is not that of the installed MLflow "
        f"({installed_revision()}). Others may use this database, so it is left as it is: install "
        "the MLflow that made it, or, after a backup, run: mlflow db upgrade URI"
    )


@contextmanager
def _alone_in(connection: Connection, shown: str, results: Path) -> Iterator[None]:
    """Wait until no other process builds the tables."""
    from sqlalchemy import text

    if connection.dialect.name != "postgresql":
        with _alone(results / ".mlflow.build", shown):
            yield
        return
    ask = text(f"SELECT pg_try_advisory_lock({ADVISORY_KEY})")
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while not connection.execute(ask).scalar():
        _wait(deadline, shown)
    yield
    connection.execute(text(f"SELECT pg_advisory_unlock({ADVISORY_KEY})"))


@contextmanager
def _alone(terms: Path, store: str) -> Iterator[None]:
    """Wait until no other process holds the lease."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while (lease := acquire(terms)) is None:
        _wait(deadline, store)
    try:
        yield
    finally:
        lease.end("ended")


def _wait(deadline: float, store: str) -> None:
    if time.monotonic() > deadline:
        raise IsolossError(
            f"{store}: another process has been building the MLflow store for over "
            f"{LOCK_PATIENCE_S:.0f} s. Find it and end it, or run with MLflow switched off."
        )
    time.sleep(LOCK_PAUSE_S)


def _is_current(database: Path) -> bool:
    found = _schema_revision(database)
    return found is not None and found == installed_revision()


def _schema_revision(database: Path) -> str | None:
    """Read the schema revision of a sqlite store; None when it is missing or empty."""
    if not database.exists() or not database.stat().st_size:
        return None
    try:
        with closing(
            sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=20)
        ) as store:
            row = store.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise StoreAway(f"MLflow at {database} does not answer ({error})") from error
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
    url, name, folder = f"sqlite:///{scratch}", str(database), database.parent
    try:
        if _schema_revision(database) is None:
            _run_mlflow(name, folder, url, "-c", BUILD)
        else:
            _copy(database, scratch)
            _run_mlflow(name, folder, url, "-m", "mlflow", "db", "upgrade", url)
        scratch.replace(database)
    finally:
        scratch.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _run_mlflow(store: str, folder: Path, uri: str, *arguments: str) -> None:
    """Run MLflow in a process of its own, in ``folder``; its log shows only on failure."""
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1", STORE_VARIABLE: uri}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_PATIENCE_S,
        )
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        last = f"not within {BUILD_PATIENCE_S:.0f} s"
    else:
        if not done.returncode:
            return
    raise IsolossError(
        f"{store}: MLflow could not build or migrate its store ({last}). Where it is a file, move "
        "it away; the mirror is rebuilt from the run folders by: isoloss sync GRID"
    )
