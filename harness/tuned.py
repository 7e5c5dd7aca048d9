"""Values that a search chose, by arm and size: ``results/<sweep>/tuned.yaml``.

Written by ``isoloss tune``, read by ``plan``, ``run`` and ``report``. One row per arm and size; its
key is a hash of all that a run is but its seed and the searched fields. Knows neither torch nor
Optuna.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML

from harness.errors import DataError
from harness.records import write_text_atomically
from harness.yaml12 import parse_yaml

KEY_DIGITS = 12


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TunedCell(_Part):
    """Chosen values of one arm at one size."""

    key: str
    """:func:`cell_key` of its runs."""
    arm: str
    cell: str
    """Label of arm, shape and budget."""
    values: dict[str, Any]
    """By dotted path, such as ``train.lr``."""
    by: Literal["search", "transfer"]
    """search: the best of its own trials. transfer: the arm's law of smaller sizes."""
    flops: float
    """Training FLOPs of one of its runs."""
    n_params: int
    loss_nats: float | None = None
    """Loss of the best trial; null where the values were transferred."""
    trials: int = 0
    """Finished trials, pruned ones included."""
    interior: dict[str, bool] = Field(default_factory=dict)
    """By numeric path: whether worse values were tried on either side of the best."""
    notes: tuple[str, ...] = ()
    """What to know before trusting the values, such as an optimum at the edge of its range."""


class TransferLaw(_Part):
    """``value* = coefficient * x ** exponent`` of one arm, fitted over its searched sizes."""

    arm: str
    path: str
    over: Literal["flops", "n_params"]
    coefficient: float
    exponent: float
    exponent_interval: tuple[float, float] | None = None
    """95%; null below three sizes."""
    x: tuple[float, ...]
    """FLOPs or parameters of the searched sizes."""
    best: tuple[float, ...]
    """Best value at each of them."""
    notes: tuple[str, ...] = ()


class Tuned(_Part):
    """Everything that a search of one sweep chose."""

    sweep: str
    method: str
    """bracket, tpe, random or cmaes."""
    searched: tuple[str, ...]
    """Dotted paths, sorted."""
    seed: int
    """Seed of all trials; none of the sweep's own."""
    optuna: str
    """Version of Optuna: searches of one seed differ between versions."""
    cells: tuple[TunedCell, ...]
    transfer: tuple[TransferLaw, ...] = ()

    def cell(self, key: str) -> TunedCell | None:
        """The row of one arm and size."""
        return self._by_key.get(key)

    @property
    def _by_key(self) -> dict[str, TunedCell]:
        return {cell.key: cell for cell in self.cells}


def cell_key(
    config: Mapping[str, Any], searched: Collection[str], corpus_sha256: str, recipe_revision: int
) -> str:
    """Hash all that a run is but its seed and the searched fields: 12 hex digits.

    Parameters
    ----------
    config
        A run's configuration as JSON (``RunConfig.model_dump(mode="json")``), before any value was
        tuned.
    searched
        Dotted paths that are left out.
    """
    kept: dict[str, Any] = {k: v for k, v in config.items() if k != "seed"}
    for path in searched:
        section, _, name = path.partition(".")
        if section == "residual":
            options = {k: v for k, v in kept["residual"]["options"].items() if k != name}
            kept["residual"] = {**kept["residual"], "options": options}
        else:
            kept[section] = {k: v for k, v in kept[section].items() if k != name}
    kept["data"] = {k: v for k, v in kept["data"].items() if k != "corpus"}
    about = {"config": kept, "corpus": corpus_sha256, "revision": recipe_revision}
    text = json.dumps(about, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def write_tuned(path: Path, tuned: Tuned) -> None:
    """Write the chosen values as YAML, atomically."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(tuned.model_dump(mode="json"), text)
    write_text_atomically(path, text.getvalue())


def read_tuned(path: Path) -> Tuned | None:
    """Read chosen values; None when nothing was tuned yet.

    Raises
    ------
    DataError
        The file is there but is not what ``isoloss tune`` writes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return Tuned.model_validate(parse_yaml(text, str(path)).value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise DataError(
            f"{path}: not tuned values ({where}: {first['msg']}). "
            "Move the file away and tune the grid again; finished trials are kept."
        ) from error
