"""The rules of a grid that are computed: ``ladder``, ``depth_width`` and ``iso_flops``.

Each is a dimension of the product like a zip group, ``iso_flops`` two: budgets and sizes. What
shapes share (heads, vocabulary, tied head) is taken from ``base``, so no other rule may vary it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import Field, PositiveFloat, ValidationError

from harness.config import Budget, Strict
from harness.corpora import CorpusInfo
from harness.errors import DataError
from harness.fields import BUDGET, TASK, Point, Reader, Setting, value_of
from harness.iso_flops import KEY as ISO
from harness.iso_flops import Batch, Growth
from harness.problems import explain, show
from harness.shapes import Backbone, Count, ModelShape, ShapeError, depth_width, ladder
from harness.tasks import build_task
from harness.tasks import get as get_task
from harness.yaml12 import Document, Loc, dotted

S = TypeVar("S", bound=Strict)
Ratio = Annotated[float, Field(ge=0.01, le=10_000)]
Size = Annotated[float, Field(ge=1000, le=1e13)]
_SHARED = ("model.n_kv_heads", "model.qk_norm", "model.tied_head", "data.corpus")


class Ladder(Strict):
    """Shapes of geometrically spaced sizes at one aspect."""

    start: Size = Field(alias="from")
    """Parameters of the first rung."""
    to: Size
    """Parameters of the last rung."""
    rungs: int = Field(ge=1, le=100)
    """Sizes, both ends included."""
    aspect: float = Field(ge=1, le=10_000)
    """d_model / n_layers, kept as near as whole heads and layers allow."""
    count: Count = "total"
    """total: all parameters of the backbone. non_embedding: without embedding and head."""


class DepthWidth(Strict):
    """Shapes of one size and compute over heads per layer and width per layer."""

    params: Size
    """Parameters of every cell."""
    width_per_layer: list[Ratio] = Field(min_length=1, max_length=30)
    """Columns: d_model / n_layers."""
    heads_per_layer: list[Ratio] = Field(min_length=1, max_length=30)
    """Rows: n_heads / n_layers; the width of a head follows."""
    count: Count = "total"
    """total: all parameters of the backbone. non_embedding: without embedding and head."""
    flops: PositiveFloat | None = None
    """Training FLOPs of every run; default: those of train.budget in base."""


class IsoFlops(Strict):
    """Every size at every compute, in steps that meet it within 1%."""

    budgets: list[PositiveFloat] = Field(min_length=1)
    """Training FLOPs, the variant's own included."""
    sizes: Any
    """A list of shapes such as {n_layers: 4, d_model: 64}, or {ladder: {…}}."""
    batch: Any = None
    """Default: train.batch_tokens, or less where it would leave fewer than 100 steps. fixed: never
    less. {tokens: …, at_flops: …, exponent: …}: grows with compute."""


@dataclass
class Generated:
    """What the computed rules add to a grid."""

    dimensions: list[list[list[Setting]]] = field(default_factory=list)
    """Alternatives of each dimension; each sets one or several fields."""
    batch: Batch = "fixed"
    """How the batches of ``iso_flops`` follow size and budget."""


def read_generated(
    reader: Reader, value: dict[str, Any], base: Point, describe: Callable[[str], CorpusInfo]
) -> Generated:
    """Read ``ladder``, ``depth_width`` and ``iso_flops``; mistakes go to ``reader.problems``.

    Parameters
    ----------
    value
        The grid.
    base
        Its base, from which the shapes take what they share.
    describe
        Looks a corpus up, for its vocabulary.
    """
    generated = Generated()
    shapes = _Shapes(reader, base, describe)
    for key, read in (("ladder", shapes.ladder), ("depth_width", shapes.depth_width)):
        if key in value:
            generated.dimensions.append(read(value[key], (key,)))
    if ISO in value:
        generated.dimensions += _iso_flops(shapes, value[ISO], generated)
    generated.dimensions = [d for d in generated.dimensions if d]
    return generated


def refuse_dependents(
    reader: Reader, value: dict[str, Any], base: Point, varied: Iterable[Setting]
) -> None:
    """Refuse rules that vary what the computed shapes take from base."""
    keys = _keys_of_shapes(value)
    for setting in varied:
        for key, needed in keys.items():
            if setting.path in needed and setting.value != value_of(base, setting.path):
                place = f"{dotted(key)} (line {reader.problems.document.line(key)})"
                rule = f"the shapes of {place} follow the {setting.path} of base"
                reader.problems.add(
                    setting.loc[:-1], f"{rule}, which this varies. Write one grid per value."
                )


def declared_ratios(document: Document, point: Point) -> dict[str, float]:
    """The ratios that a run's cell of ``depth_width`` was declared with; {} for other runs."""
    shape = point.get("model.n_layers")
    if shape is None or shape.loc[0] != "depth_width":
        return {}
    column, row = zip(shape.loc[1::2], shape.loc[2::2], strict=True)
    declared = document.value["depth_width"]
    return {str(name): float(declared[name][i]) for name, i in (column, row)}


def _keys_of_shapes(value: dict[str, Any]) -> dict[Loc, tuple[str, ...]]:
    """Where shapes are computed, and the fields that they take from base."""
    found: dict[Loc, tuple[str, ...]] = {}
    if "ladder" in value:
        found["ladder",] = ("model.head_dim", *_SHARED)
    if "depth_width" in value:
        found["depth_width",] = _SHARED
    sizes = value[ISO].get("sizes") if isinstance(value.get(ISO), dict) else None
    if isinstance(sizes, dict):
        found[ISO, "sizes", "ladder"] = ("model.head_dim", *_SHARED)
    return found


@dataclass
class _Shapes:
    """Reads declarations of shapes."""

    reader: Reader
    base: Point
    describe: Callable[[str], CorpusInfo]

    def ladder(self, value: Any, loc: Loc) -> list[list[Setting]]:
        """One alternative per rung; none after a mistake."""
        asked = self.read(value, loc, Ladder)
        if asked is None or not (backbone := self._backbone(asked.count)):
            return []
        if asked.rungs > 1 and asked.to <= asked.start:
            rule = f"must be greater than from, {asked.start:g}, got {asked.to:g}"
            return self._fail((*loc, "to"), f"{rule}. Swap the two, or ask for one rung.")
        try:
            shapes = ladder(asked.start, asked.to, asked.rungs, asked.aspect, backbone)
        except ShapeError as error:
            return self._fail(loc, f"{error}.")
        names = ("n_layers", "d_model", "d_ff")
        return [self._row(shape, names, (*loc, "rungs", i)) for i, shape in enumerate(shapes)]

    def depth_width(self, value: Any, loc: Loc) -> list[list[Setting]]:
        """One alternative per cell, the widths fastest; none after a mistake."""
        asked = self.read(value, loc, DepthWidth)
        if asked is None or not (backbone := self._backbone(asked.count)):
            return []
        columns, rows = asked.width_per_layer, asked.heads_per_layer
        try:
            shapes = depth_width(asked.params, columns, rows, backbone)
        except ShapeError as error:
            return self._fail(loc, f"{error}.")
        budget = self._compute(asked, loc)
        names = ("n_layers", "d_model", "d_ff", "head_dim")
        places = [
            (*loc, "width_per_layer", j, "heads_per_layer", i)
            for i in range(len(rows))
            for j in range(len(columns))
        ]
        return [
            [*self._row(shape, names, place), *budget]
            for shape, place in zip(shapes, places, strict=True)
        ]

    def _compute(self, asked: DepthWidth, loc: Loc) -> list[Setting]:
        if asked.flops is not None:
            return self.reader.setting(BUDGET, {"flops": asked.flops}, (*loc, "flops"))
        budget = value_of(self.base, BUDGET)
        if isinstance(budget, Budget) and budget.kind != "flops":
            rule = f"compares shapes at one compute, and base.train.budget is of {budget.kind}"
            self._fail(loc, f"{rule}. Add flops: … here.")
        return []

    def _backbone(self, count: Count) -> Backbone | None:
        """What the shapes share; None where the corpus is unknown, which is told elsewhere."""
        settings = {path.rpartition(".")[2]: value_of(self.base, path) for path in _SHARED}
        try:
            vocab_size = self._vocab_size(str(settings.pop("corpus")))
        except DataError:
            self.reader.tainted.update(("model", "train"))
            return None
        head_dim = value_of(self.base, "model.head_dim")
        if head_dim is None or None in (settings["qk_norm"], settings["tied_head"]):
            return None  # a mistake in base, told there
        return Backbone(vocab_size=vocab_size, head_dim=head_dim, count=count, **settings)

    def _vocab_size(self, corpus: str) -> int:
        task = value_of(self.base, TASK)
        if not isinstance(task, str):
            return self.describe(corpus).vocab_size
        beside = {path.partition(".")[2]: s.value for path, s in self.base.items()}
        known = get_task(task).Options.model_fields
        options = {name: beside[name] for name in known if name in beside}
        try:
            return build_task(task, options).vocab_size
        except ValidationError as error:
            raise DataError(str(error)) from error  # told where the data are resolved

    def _row(self, shape: ModelShape, names: Sequence[str], loc: Loc) -> list[Setting]:
        return [
            setting
            for name in names
            for setting in self.reader.setting(f"model.{name}", getattr(shape, name), loc)
        ]

    def _fail(self, loc: Loc, message: str) -> list[list[Setting]]:
        self.reader.problems.add(loc, message)
        self.reader.tainted.update(("model", "train"))
        return []

    def read(self, value: Any, loc: Loc, kind: type[S]) -> S | None:
        """Check a declaration; None after a mistake, which is noted."""
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            known = [info.alias or name for name, info in kind.model_fields.items()]
            seen: dict[Loc, str] = {}
            for item in error.errors(include_url=False):
                seen.setdefault((*loc, *item["loc"]), explain(item, known))
            for place, message in seen.items():
                self._fail(place, message)
            return None


def _iso_flops(shapes: _Shapes, value: Any, generated: Generated) -> Iterator[list[list[Setting]]]:
    """Yield the dimension of budgets and the one of sizes."""
    asked = shapes.read(value, (ISO,), IsoFlops)
    if asked is None:
        return
    reader = shapes.reader
    yield [
        reader.setting(BUDGET, {"flops": budget}, (ISO, "budgets", i))
        for i, budget in enumerate(asked.budgets)
    ]
    yield _sizes(shapes, asked.sizes, (ISO, "sizes"))
    generated.batch = _batch(shapes, asked.batch)


def _sizes(shapes: _Shapes, value: Any, loc: Loc) -> list[list[Setting]]:
    if isinstance(value, dict) and list(value) == ["ladder"]:
        return shapes.ladder(value["ladder"], (*loc, "ladder"))
    if not isinstance(value, list) or not value:
        rule = "must be a list of shapes such as {n_layers: 4, d_model: 64}, or {ladder: {…}}"
        shapes.reader.problems.add(loc, f"{rule}, got {show(value)}.")
        shapes.reader.tainted.add("model")
        return []
    rows = [shapes.reader.settings(row, (*loc, i), "model.") for i, row in enumerate(value)]
    first = {setting.path for setting in rows[0]}
    for i, row in enumerate(rows):
        own = {setting.path for setting in row}
        if own != first and own and first:
            rule = f"sets {_names(own)} and the first size {_names(first)}"
            shapes.reader.problems.add((*loc, i), f"{rule}. Set the same fields in every size.")
    return rows if all(rows) else []


def _names(paths: Iterable[str]) -> str:
    return ", ".join(sorted(path.rpartition(".")[2] for path in paths))


def _batch(shapes: _Shapes, value: Any) -> Batch:
    if value is None or value == "fixed":
        return "fixed" if value else None
    if isinstance(value, dict):
        return shapes.read(value, (ISO, "batch"), Growth) or "fixed"
    rule = "must be fixed, or {tokens: …, at_flops: …, exponent: …}"
    shapes.reader.problems.add((ISO, "batch"), f"{rule}, got {show(value)}.")
    return "fixed"
