"""The figures of a search: brackets per field, values along compute, the gain due to tuning.

Chooses what can be drawn; drawing itself is in ``figures``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matplotlib.figure import Figure

from analysis.estimates import Interval
from analysis.figures.forest import ForestBar, ForestData, ForestRow, forest_figure, forest_hover
from analysis.figures.lr_brackets import (
    field_label,
    lr_brackets_figure,
    lr_brackets_hover,
)
from analysis.figures.style import ArmStyle, caption
from analysis.figures.tuned_values import (
    tuned_values_data,
    tuned_values_figure,
    tuned_values_hover,
)
from analysis.page.drawn import Drawn
from analysis.page.numerals import ratio_text
from analysis.page.wording import convention_sentence
from analysis.tuning.brackets import trial_brackets
from analysis.tuning.types import Tuning, TuningGain


def tuning_figures(
    tuning: Tuning, baseline: str, styles: Mapping[str, ArmStyle], convention: str
) -> list[Drawn]:
    """Draw what a search found; each figure states the FLOP convention."""
    drawn = [*_gains(tuning, baseline, styles), *_brackets(tuning, baseline, styles)]
    drawn += _values(tuning, styles)
    for item in drawn:
        counted = [f"{len(tuning.trials)} trials, seed {tuning.tuned.seed}."]
        caption(item.figure, [*counted, convention_sentence(convention)])
    return drawn


def _brackets(tuning: Tuning, baseline: str, styles: Mapping[str, ArmStyle]) -> Iterator[Drawn]:
    for path, data in trial_brackets(tuning, baseline).items():
        stem = "" if path == "train.lr" else f"_{path.replace('.', '_')}"
        name = field_label(path)
        others = (
            " Where other fields were searched as well, the lowest loss at each value."
            if len(tuning.tuned.searched) > 1
            else ""
        )
        yield Drawn(
            f"lr_brackets{stem}",
            "Learning-rate brackets" if path == "train.lr" else f"Brackets of {name}",
            f"Losses of the trials by {name}, one seed each.{others} A lowest loss at the edge of "
            "the values tried is no optimum: the arm may be under-tuned there.",
            lr_brackets_figure(data, styles),
            hover=lr_brackets_hover(data),
            folded=path != "train.lr",
        )


def _values(tuning: Tuning, styles: Mapping[str, ArmStyle]) -> Iterator[Drawn]:
    data = tuned_values_data(tuning)
    if not data.drawable:
        return
    laws = ""
    if tuning.laws:
        laws = " Lines: one power law per arm over its searched sizes, dashed where extrapolated."
    yield Drawn(
        "tuned_values",
        "Tuned values along compute",
        f"The values that the runs use.{laws} Trials are single runs, so a step of the search is "
        "the least that a value is uncertain by.",
        tuned_values_figure(data, styles),
        hover=tuned_values_hover(data),
    )


def _gains(tuning: Tuning, baseline: str, styles: Mapping[str, ArmStyle]) -> Iterator[Drawn]:
    data = gains_forest(tuning.gains, baseline)
    if data.drawable:
        yield Drawn(
            "tuning_gain",
            "Multipliers at equal and at own best values",
            "Filled: every arm at its own best values. Open: every arm at the baseline's. Numbers "
            "at the right: the factor between both that is due to tuning, before correction for "
            "several arms.",
            gains_figure(data, styles),
            hover=forest_hover(data),
        )


def gains_figure(data: ForestData, styles: Mapping[str, ArmStyle]) -> Figure:
    """The forest with a heading over the numbers at its right."""
    figure = forest_figure(data, styles)
    figure.axes[0].annotate(
        "due to tuning", (1.01, 1.0), xycoords="axes fraction", va="bottom", fontsize=7.5
    )
    return figure


def gains_forest(gains: tuple[TuningGain, ...], baseline: str) -> ForestData:
    """Two bars per arm, the arm that gains most by tuning first."""
    order = sorted(gains, key=lambda gain: (gain.due.estimate is None, -(gain.due.estimate or 0)))
    rows = tuple(
        ForestRow(
            gain.arm,
            (_bar("own", gain.own), _bar("equal", gain.equal)),
            (),
            "same values" if gain.verdict == "same values" else ratio_text(gain.due),
        )
        for gain in order
    )
    values = [1.0, *(bar.estimate for row in rows for bar in row.bars if bar.estimate is not None)]
    return ForestData(
        baseline,
        rows,
        (min(values) / 2, max(values) * 2),
        ("at own best values", "at the baseline's values"),
    )


def _bar(name: str, ratio: Interval) -> ForestBar:
    return ForestBar(name, ratio.estimate, ratio.low, ratio.high)
