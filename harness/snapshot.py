"""The code that runs execute: a copy of it at submission, and what it is called.

:func:`take_snapshot` copies the packages harness, recipes and analysis, and the recipe packages of
other people that a sweep uses, into ``results/<sweep>/code/<sha12>/``. Workers get that folder
before everything else on their import path (:func:`import_environment`), so that editing code while
jobs wait changes nothing. Knows neither torch nor Lightning at import. Limits: libraries are named
in ``environment.txt``, not copied; a recipe defined in a notebook has no file to copy.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, Protocol

from harness.paths import SweepPaths

PACKAGES = ("harness", "recipes", "analysis")
TRAINING = ("harness", "recipes")
"""Those that can change a loss."""
FACTS, DIFF, ENVIRONMENT = "snapshot.json", "dirty.diff", "environment.txt"
MAX_FOREIGN_BYTES = 64 * 2**20
"""Packages of other people above this size are named in the snapshot but not copied."""
MAX_UNTRACKED_BYTES = 2**20
"""Untracked files above this size are named in the snapshot, but are not in its diff."""
NAMED_CELLS = 3
SHA_DIGITS = 12
GIT_TIMEOUT_S = 30.0
_ROOT = Path(__file__).resolve().parent.parent
_CODE = re.compile(rf"\bcode([0-9a-f]{{{SHA_DIGITS}}})$")

Files = dict[str, bytes]
"""Content by path relative to the folder that is on the import path."""


def take_snapshot(paths: SweepPaths, recipe_names: Sequence[str]) -> Path:
    """Copy the code as it is now into the sweep's folder; equal code is copied once.

    Safe when several do it at once. A copy that somebody has altered since is set aside, and
    replaced.

    Parameters
    ----------
    recipe_names
        Recipes of the sweep: registered names, or ``package.module:Class``.

    Returns
    -------
    Path
        The folder to put first on the import path of workers.

    Raises
    ------
    RecipeError
        A recipe is unknown.
    OSError
        The sweep's folder cannot be written; nothing half-written is left.
    """
    theirs, left_out = _foreign_parts(recipe_names)
    parts = {**{name: _package(_ROOT / name, name) for name in PACKAGES}, **theirs}
    files = {at: content for part in parts.values() for at, content in part.items()}
    sha = _sha(files)
    target = paths.code / sha
    if not _is_intact(target, sha):
        facts = {**_facts_of(parts, left_out), "sha": sha}
        about = {
            FACTS: (json.dumps(facts, indent=2) + "\n").encode(),
            ENVIRONMENT: "".join(f"{line}\n" for line in _installed()).encode(),
            DIFF: _dirty_diff() if facts["dirty"] else b"",
        }
        _publish({**files, **{at: content for at, content in about.items() if content}}, target)
    return target


def import_environment(snapshot: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables that make Python import the snapshot before anything else.

    ``PYTHONSAFEPATH`` is as important as ``PYTHONPATH``: without it ``python -m`` looks into the
    current directory first, which is the live checkout as a rule. What the submitting process
    imports from its own ``PYTHONPATH`` or current directory stays importable, after the snapshot.
    """
    given = os.environ if environ is None else environ
    later = [entry for entry in given.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if sys.path and sys.path[0] in ("", os.getcwd()):
        later.append(os.getcwd())
    entries = [str(snapshot), *(os.path.abspath(entry) for entry in later)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(entries)), "PYTHONSAFEPATH": "1"}


@functools.cache
def code_version() -> str:
    """Version of isoloss with the commit it was changed from, and a hash of its training code.

    ``0.1.0+g373df6ac1234.dirty.code8f3a9b2c1d4e``: ``dirty`` says that a source file was changed or
    added since the commit; ``code`` is equal exactly where harness and recipes are.
    """
    return str(_facts()["code_version"])


def code_facts() -> dict[str, Any]:
    """What the code of this process is: from its snapshot's own file, else from git.

    Returns
    -------
    dict
        ``code_version``, ``commit`` (None outside git), ``branch``, ``dirty`` (None outside git),
        ``code_sha`` (of harness and recipes) and ``snapshot`` (its name; None outside one).
    """
    facts = _facts()
    names = ("code_version", "commit", "branch", "dirty", "code_sha")
    return {**{name: facts.get(name) for name in names}, "snapshot": facts.get("sha")}


@functools.cache
def _facts() -> dict[str, Any]:
    parts = {name: _package(_ROOT / name, name) for name in TRAINING}
    return _stored_facts() or _live_facts(_code_sha(parts))


def _stored_facts() -> dict[str, Any] | None:
    """What the snapshot that this code runs in says of itself; None outside one."""
    try:
        stored = json.loads((_ROOT / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored if isinstance(stored, dict) and "code_version" in stored else None


def _code_sha(parts: Mapping[str, Files]) -> str:
    return _sha({at: content for name in TRAINING for at, content in parts[name].items()})


def _live_facts(code_sha: str) -> dict[str, Any]:
    found = _git_facts()
    local = [f"g{found['commit'][:SHA_DIGITS]}"] if found["commit"] else []
    local += ["dirty"] if found["dirty"] else []
    try:
        base = version("isoloss")
    except PackageNotFoundError:
        base = "unknown"
    told = f"{base}+{'.'.join([*local, f'code{code_sha}'])}"
    return {"code_version": told, "code_sha": code_sha, **found}


def _facts_of(parts: Mapping[str, Files], left_out: Mapping[str, str]) -> dict[str, Any]:
    """Facts of the code that was read, which may be younger than the code that was imported."""
    return {
        **(_stored_facts() or _live_facts(_code_sha(parts))),
        "parts": {name: _sha(files) for name, files in parts.items()},
        "left_out": dict(left_out),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
    }


def _package(folder: Path, at: str) -> Files:
    """Content of a package's files; caches, hidden files and editors' copies are left out."""
    files: Files = {}
    for path in _listed(folder):
        with contextlib.suppress(FileNotFoundError):  # an editor's scratch file, gone again
            files[f"{at}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return files


def _listed(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name != "__pycache__"
            and not here.resolve().is_relative_to((here / name).resolve())  # a link to a parent
        ]
        found += [here / n for n in names if not n.startswith(".") and not _is_derived(n)]
    return [path for path in found if path.is_file()]


def _is_derived(name: str) -> bool:
    return name.endswith((".pyc", ".pyo", "~"))


def _sha(files: Files) -> str:
    lines = (f"{at}\0{hashlib.sha256(files[at]).hexdigest()}\n" for at in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:SHA_DIGITS]


def _foreign_parts(recipe_names: Iterable[str]) -> tuple[dict[str, Files], dict[str, str]]:
    """Sources of other people's recipes by import name, and why some cannot be copied."""
    names = [name for name in recipe_names if not (_ROOT / "recipes" / f"{name}.py").is_file()]
    if not names:
        return {}, {}
    from recipes.base import Residual, get

    modules = {
        base.__module__
        for name in names
        for base in get(name).__mro__
        if issubclass(base, Residual) and base.__module__.partition(".")[0] not in PACKAGES
    }
    parts: dict[str, Files] = {}
    left_out: dict[str, str] = {}
    for module in sorted(modules):
        name, file = _source_of(module)
        if name in parts:
            continue
        if file is None or not file.is_file() or module == "__main__":
            left_out[name] = "it has no file that can be imported"
        elif not file.name.startswith("__init__."):
            at = Path(*name.split(".")).with_name(file.name)
            parts[name] = {at.as_posix(): file.read_bytes()}
        elif sum(path.stat().st_size for path in _listed(file.parent)) > MAX_FOREIGN_BYTES:
            left_out[name] = f"it is larger than {MAX_FOREIGN_BYTES // 2**20} MiB"
        else:
            parts[name] = _package(file.parent, name.replace(".", "/"))
    return parts, left_out


def _source_of(module: str) -> tuple[str, Path | None]:
    """Name and file of the outermost package (or module) of an imported module.

    Namespace packages have no file: what lies inside them is a package of its own.
    """
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        name = ".".join(names[:depth])
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            return name, Path(file)
    return module, None


def _is_intact(target: Path, sha: str) -> bool:
    if not (target / FACTS).is_file():
        return False
    own = (FACTS, DIFF, ENVIRONMENT)
    files = {path.relative_to(target).as_posix(): path for path in _listed(target)}
    return _sha({at: path.read_bytes() for at, path in files.items() if at not in own}) == sha


def _publish(files: Files, target: Path) -> None:
    """Write a folder under a scratch name and rename it; whoever comes first wins."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex[:SHA_DIGITS]}")
    try:
        for at, content in files.items():
            path = scratch / at
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(path.stat().st_mode & ~0o222)
        if target.exists() and not _is_intact(target, target.name):
            with contextlib.suppress(FileNotFoundError):  # somebody else has just mended it
                target.rename(f"{scratch}.damaged")
        scratch.rename(target)
    except OSError:
        if not _is_intact(target, target.name):
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _installed() -> list[str]:
    """Distributions on the import path with their versions, sorted; the first of a name counts."""
    found: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return [f"{name}=={found[name]}" for name in sorted(found)]


def _git(*arguments: str, index: Path | None = None) -> bytes | None:
    """Output of git in the folder of the packages; None when it fails or is absent."""
    hidden = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    environ = {key: value for key, value in os.environ.items() if key not in hidden}
    environ |= {"GIT_OPTIONAL_LOCKS": "0"}
    if index is not None:
        environ["GIT_INDEX_FILE"] = str(index)
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), "-c", "core.quotePath=false", *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=environ,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _git_facts() -> dict[str, Any]:
    """Commit, branch, and what was changed since; nothing where git does not track this code."""
    facts: dict[str, Any] = {"commit": None, "branch": None, "dirty": None, "untracked": []}
    if _git("ls-files", "--error-unmatch", "--", "harness/__init__.py") is None:
        return facts
    what = ("--porcelain=v2", "--branch", "--untracked-files=all", "-z", "--", *PACKAGES)
    entries = os.fsdecode(_git("status", *what) or b"").split("\0")
    told = dict(entry[2:].split(" ", 1) for entry in entries if entry.startswith("# branch."))
    commit, branch = told.get("branch.oid"), told.get("branch.head")
    if commit is None or commit == "(initial)":
        return facts
    return {
        "commit": commit,
        "branch": None if branch == "(detached)" else branch,
        "dirty": any(entry and not entry.startswith("#") for entry in entries),
        "untracked": [entry[2:] for entry in entries if entry.startswith("? ")],
    }


def _dirty_diff() -> bytes:
    """What turns the commit's packages into those here, untracked files included; empty if clean.

    Untracked files are entered in a copy of git's index, so that the user's own stays as it is.
    """
    if _stored_facts():
        return (_ROOT / DIFF).read_bytes() if (_ROOT / DIFF).is_file() else b""
    # Plain names: the user's own settings of git must not make a diff that `git apply` refuses.
    plain = ("--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        own = os.fsdecode(_git("rev-parse", "--git-path", "index") or b"").rstrip("\n")
        try:
            shutil.copyfile(_ROOT / own, index)
        except OSError:
            return _git("diff", "HEAD", *plain, *prefixes, "--", *PACKAGES) or b""
        listed = _git("ls-files", "--others", "--exclude-standard", "-z", "--", *PACKAGES)
        names = [name for name in os.fsdecode(listed or b"").split("\0") if name]
        small = [n for n in names if _size(_ROOT / n) <= MAX_UNTRACKED_BYTES]
        if small:
            _git("add", "--intent-to-add", "--", *small, index=index)
        return _git("diff", "HEAD", *plain, *prefixes, "--", *PACKAGES, index=index) or b""


def _size(path: Path) -> float:
    try:
        return path.stat().st_size
    except OSError:  # gone since it was listed
        return float("inf")


class Trained(Protocol):
    """What :func:`mixed_code` must know of a run (``harness.records.RunRecord``)."""

    @property
    def status(self) -> str:
        """Only ``done`` and ``diverged`` runs count."""

    @property
    def cell(self) -> str:
        """What its seeds share."""

    @property
    def code_version(self) -> str | None:
        """As :func:`code_version` gave it."""


def mixed_code(records: Iterable[Trained]) -> list[str]:
    """Say which cells hold seeds that were trained by different code; empty if none does.

    At most :data:`NAMED_CELLS` cells are named. Versions that tell the same hash of harness and
    recipes are one, whatever the commit.
    """
    versions: dict[str, dict[str, str]] = {}
    for record in records:
        if record.status in ("done", "diverged") and record.code_version:
            code = _CODE.search(record.code_version)
            key = code[1] if code else record.code_version
            versions.setdefault(record.cell, {}).setdefault(key, record.code_version)
    mixed = {cell: found.values() for cell, found in versions.items() if len(found) > 1}
    if not mixed:
        return []
    named = [f"{cell} ({', '.join(sorted(mixed[cell]))})" for cell in list(mixed)[:NAMED_CELLS]]
    more = len(mixed) - len(named)
    named += [f"and {more} more"] if more else []
    cells = "1 cell" if len(mixed) == 1 else f"{len(mixed)} cells"
    return [
        f"seeds of {cells} were trained by different code: {'; '.join(named)}. If a change between "
        "them can change a loss, move the older runs' folders away and run the grid again."
    ]
