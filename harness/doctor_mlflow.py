"""What `isoloss doctor` says of MLflow's store, without importing MLflow."""

from __future__ import annotations

import os
import socket
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import IsolossError
from harness.filesystem import filesystem_of
from harness.findings import Finding
from harness.paths import SweepPaths
from harness.tracking import check_uri, shown_uri, sqlite_path

ANSWER_S = 5.0
"""How long a server may take to answer."""
WITHOUT = "Runs go on without it; `isoloss sync` fills it later."
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def examine_mlflow(results: Path) -> Finding:
    """Check the store that ``MLFLOW_TRACKING_URI`` names, or the one in the results folder."""
    local = SweepPaths(results.resolve() / "any").mlflow_db
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{local}"
    try:
        check_uri(uri)
        database = sqlite_path(uri)
    except IsolossError as error:
        return Finding("FAIL", "mlflow", str(error))
    if database is not None:
        return _file(database)
    if uri.startswith(("http://", "https://")):
        return _server(uri)
    return _database(uri)


def _file(database: Path) -> Finding:
    place = filesystem_of(database.parent)
    if place.is_network:
        text = (
            f"{database} lies on {place.type}, where SQLite's locks are not safe: it is filled "
            "afterwards (isoloss sync). For a live view set MLFLOW_TRACKING_URI to a server."
        )
        return Finding("note", "mlflow", text)
    if not database.exists():
        return Finding("ok", "mlflow", f"{database} is made by the first run")
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=5)) as store:
            store.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        text = f"{database}: {error}. Move it away; `isoloss sync` makes it anew from the records."
        return Finding("FAIL", "mlflow", text)
    return Finding("ok", "mlflow", f"{database}, a local store")


def _server(uri: str) -> Finding:
    shown = shown_uri(uri)
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    health = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/health"
    try:
        with urllib.request.urlopen(health, timeout=ANSWER_S):
            return Finding("ok", "mlflow", f"{shown} answers")
    except urllib.error.HTTPError as error:
        if error.code < 500:  # a proxy or a managed server that knows no such page
            return Finding("ok", "mlflow", f"{shown} answers (HTTP {error.code} to /health)")
        reason = f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
    return _away(shown, reason)


def _database(uri: str) -> Finding:
    shown, parts = shown_uri(uri), urlsplit(uri)
    port = parts.port or PORTS.get(parts.scheme.partition("+")[0])
    if parts.hostname is None or port is None:
        return Finding("note", "mlflow", f"{shown}: not checked")
    try:
        socket.create_connection((parts.hostname, port), timeout=ANSWER_S).close()
    except OSError as error:
        return _away(shown, str(error))
    return Finding("ok", "mlflow", f"{shown}: {parts.hostname} accepts connections at {port}")


def _away(shown: str, reason: str) -> Finding:
    text = (
        f"{shown} does not answer within {ANSWER_S:.0f} s ({reason}). Start it, or mend or unset "
        f"MLFLOW_TRACKING_URI. {WITHOUT}"
    )
    return Finding("FAIL", "mlflow", text)
