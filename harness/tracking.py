"""Where the MLflow mirror lives, and how it is kept: the tracking URI, its store, its mode.

Called before workers start, so it never imports MLflow into the calling process. How a database is
built is in ``harness.mirror_database``; what is sent, in ``harness.mirror``.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode

from harness.errors import IsolossError, MissingExtraError
from harness.filesystem import filesystem_of
from harness.mirror_database import StoreAway, ensure_schema, ensure_sqlite
from harness.paths import SweepPaths

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""Database dialects that MLflow can open directly."""
SERVERS = ("http", "https", "databricks")
"""Schemes behind which a server owns the database and the artifacts."""
LIBPQ = ("postgresql", "postgresql+psycopg2", "postgresql+psycopg")
"""Schemes whose driver hands the query of a URI to PostgreSQL's own library."""
LIBPQ_LIMITS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""End a connection whose other end is silent within a minute; the default is hours."""
PASSWORD = re.compile(r"(://[^/@:]*):[^/@]*@")


def tracking_uri(paths: SweepPaths) -> str:
    """Return the tracking URI of a sweep: ``MLFLOW_TRACKING_URI``, or the local store.

    Returns
    -------
    str
        ``http(s)://...`` or a database URI; with an absolute path for sqlite.

    Raises
    ------
    IsolossError
        The URI is of a kind that cannot be used.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{paths.mlflow_db.resolve()}"
    check_uri(uri)
    database = sqlite_path(uri)
    return uri if database is None else f"sqlite:///{database}"


def create_store(paths: SweepPaths) -> str:
    """Return the tracking URI of a sweep, with a usable store behind it.

    The local store is built, or migrated to the installed MLflow's schema, once, whoever comes
    first; so is an empty database that ``MLFLOW_TRACKING_URI`` names. A store that is away is no
    error: the mirror tries again. Takes seconds once, then milliseconds.

    Returns
    -------
    str
        As from :func:`tracking_uri`.

    Raises
    ------
    IsolossError
        The URI is of a kind that cannot be used, or the store cannot be built.
    MissingExtraError
        MLflow is not installed.
    """
    if find_spec("mlflow") is None:
        raise MissingExtraError("sync", "train", "mlflow")
    uri = tracking_uri(paths)
    try:
        ensure_store(uri, paths.root.parent)
    except StoreAway:
        return uri
    return uri


def ensure_store(uri: str, results: Path) -> None:
    """Make sure that a database has the schema of the installed MLflow; servers see to their own.

    Parameters
    ----------
    uri
        From :func:`tracking_uri`.
    results
        Folder where the processes that may build a store wait for each other.

    Raises
    ------
    StoreAway
        The database does not answer.
    IsolossError
        It cannot be used as it is.
    """
    if is_server(uri):
        return
    database = sqlite_path(uri)
    if database is not None:
        ensure_sqlite(database)
    else:
        ensure_schema(patient(uri), shown_uri(uri), results)


def mirror_mode(paths: SweepPaths, mode: str) -> tuple[str, str | None]:
    """Decide how a sweep's mirror is kept up to date.

    Parameters
    ----------
    mode
        As the grid declares it: ``direct`` (a process beside the workers), ``sync`` (nothing
        beside them, ``isoloss sync`` later), ``off``.

    Returns
    -------
    tuple of str and (str or None)
        The mode to use, and why when it is another than declared.

    Raises
    ------
    IsolossError
        The tracking URI is of a kind that cannot be used.
    """
    if mode != "direct":
        return mode, None
    database = sqlite_path(tracking_uri(paths))
    where = filesystem_of(database.parent) if database else None
    if where is None or not where.is_network:
        return mode, None
    return "sync", (
        f"MLflow's store {database} lies on a network file system ({where.type}, mounted at "
        f"{where.mount}), where SQLite's locks are not safe: no mirror runs beside the workers. "
        f"Afterwards: isoloss sync {paths.root}; or set MLFLOW_TRACKING_URI to a server."
    )


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


def shown_uri(uri: str) -> str:
    """A tracking URI as messages may show it: without its password."""
    return PASSWORD.sub(r"\1:***@", uri)


def patient(uri: str) -> str:
    """A tracking URI with the driver that is installed, and whose connections end in silence.

    SQLAlchemy 2.1 takes ``postgresql:`` for psycopg, 2.0 for psycopg2: the one that is there is
    named. Limits that the URI sets itself are kept.
    """
    scheme, colon, rest = uri.partition(":")
    if scheme.lower() not in LIBPQ:
        return uri
    if scheme == "postgresql":
        scheme = next((s for s in LIBPQ[1:] if find_spec(s.partition("+")[2])), scheme)
    place, _, query = rest.partition("?")
    missing = {k: v for k, v in LIBPQ_LIMITS.items() if f"{k}=" not in query}
    limits = "&".join(part for part in (query, urlencode(missing)) if part)
    return f"{scheme}{colon}{place}?{limits}"
