"""The laws of a table for reading: each by itself, isoFLOP minima side by side, predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from analysis.collect import compact
from analysis.estimates import Interval, ratio_parts
from analysis.fit.allocation import AllocationFit
from analysis.fit.broken import BrokenFit
from analysis.fit.joint import JointFit
from analysis.fit.power import PowerFit
from analysis.fit.shared import SharedFit
from analysis.intake.fit_table import TableFits
from analysis.intake.options import SHOWN
from analysis.law_fit import LawFit, describe

MOST_BUDGETS = 12
"""Budgets printed."""
MOST_BLOCKS = 2
"""Laws of single arms that are printed in full; of more, one line each (all with --json)."""


def law_blocks(fits: TableFits) -> Iterator[list[str]]:
    """Each fit printed as a block; laws of many arms as one line each."""
    by_arm = {name: law for name, law in fits.laws.items() if "[" in name}
    if len(by_arm) > MOST_BLOCKS:
        yield list(_one_line_each(by_arm))
    for name, law in fits.laws.items():
        if name not in by_arm or len(by_arm) <= MOST_BLOCKS:
            yield _block(fits, name, law)


def _block(fits: TableFits, name: str, law: LawFit) -> list[str]:
    # The exclusions stand above, with the rows that were read.
    kept = [line for line in describe(law).splitlines() if not line.startswith("  excluded ")]
    lines = [f"{_title(name)}: {kept[0]}", *kept[1:]]
    if isinstance(law, BrokenFit):
        lines.append(f"  break       {law.text}")
    if fits.published is not None and isinstance(law, JointFit | PowerFit):
        lines.append(f"  published   {fits.published.text}")
    if isinstance(law, JointFit):
        lines += _efficiency_lines(fits)
    return lines


def _one_line_each(laws: Mapping[str, LawFit]) -> Iterator[str]:
    first = next(iter(laws.values()))
    yield f"{first.law} for each variant; {first.method}"
    for name, law in laws.items():
        at = law.parameters["alpha"]
        ends = "" if at.low is None or at.high is None else f" [{at.low:.4f}, {at.high:.4f}]"
        doubts = "".join(f"; {note.partition(':')[0]}" for note in law.notes)
        yield (
            f"  {name.partition('[')[2][:-1]}: alpha {law.value('alpha'):.4f}{ends}, A "
            f"{law.value('A'):.5g}, E {law.value('E'):.4g}; {law.n_points} points, "
            f"{law.rms_nats:.3g} nats rms{doubts}"
        )


def isoflop_lines(fits: TableFits) -> Iterator[str]:
    """The exponent of N* by every method, and each budget's minimum."""
    found = fits.isoflop
    if found is None:
        return
    yield "isoFLOP minima, N* = k C^a by method:"
    for method, fit in found.fits.items():
        law = fit.n_law
        value = "no law" if law is None else _law_text(law)
        yield f"  {method:<11} {value}; {len(fit.minima)} budgets, {len(fit.refused)} refused"
    joint = fits.laws.get("joint")
    if isinstance(joint, JointFit):
        a = joint.value("beta") / (joint.value("alpha") + joint.value("beta"))
        yield f"  {'joint law':<11} a = beta/(alpha+beta) = {a:.4f}"
    yield from _budget_lines(fits)
    yield from (f"  doubt       {note}" for note in found.notes[:SHOWN])
    if len(found.notes) > SHOWN:
        yield f"  doubt       {len(found.notes) - SHOWN} more like these (all with --json)"


def prediction_lines(fits: TableFits) -> Iterator[str]:
    """What the laws say at the compute that was asked for, each beyond its data marked so."""
    target = fits.options.extrapolate_to
    if target is None:
        return
    yield f"At {compact(target)} FLOPs (asked for; beyond the data it is extrapolation):"
    for arm, curve in (fits.analysis.curves if fits.analysis else {}).items():
        if isinstance(curve, str):
            continue
        beyond = curve.extrapolated
        if beyond is None or not beyond.compute:
            yield f"  {arm}: within the measured range, see above"
        else:
            yield (
                f"  {arm}: multiplier {beyond.rho_low[-1]:.3g} to {beyond.rho_high[-1]:.3g} over "
                f"pinned E of {min(beyond.asymptotes):.3g} to {max(beyond.asymptotes):.3g} nats, "
                f"with its bands {beyond.low[-1]:.3g} to {beyond.high[-1]:.3g}"
            )
    for name, law in fits.laws.items():
        if isinstance(law, JointFit):
            yield from _allocation_lines(law, target)
        elif isinstance(law, SharedFit):
            where = "" if law.inside(C=target) else ", extrapolated"
            losses = {arm: float(law.loss(arm, np.array(target))) for arm in law.log_coefficients}
            listed = ", ".join(f"{arm} {loss:.4f}" for arm, loss in losses.items())
            yield f"  shared exponent, E = {law.asymptote:.4g}: L = {listed} nats{where}"
        elif isinstance(law, PowerFit | BrokenFit) and law.variable == "C":
            where = "" if law.inside(C=target) else ", extrapolated"
            yield f"  {_title(name)}: L = {float(law.predict(target)):.4f} nats{where}"


def _efficiency_lines(fits: TableFits) -> Iterator[str]:
    for arm, factors in fits.rescaled.items():
        if arm != fits.table.baseline:
            yield (
                f"  efficiency  {arm}: {_factor_text(factors.rho_n)} in parameters, "
                f"{_factor_text(factors.rho_d)} in tokens"
            )


def _factor_text(factor: Interval) -> str:
    said = " ".join(ratio_parts(factor)).strip()
    return f"{said} ({factor.reason})" if factor.estimate is None else said


def _law_text(law: AllocationFit) -> str:
    at = law.parameters["a"]
    if at.estimate is None:
        return f"a undefined ({at.reason})"
    ends = f" [{at.low:.4f}, {at.high:.4f}]" if at.low is not None and at.high is not None else ""
    return f"a = {at.estimate:.4f}{ends}"


def _budget_lines(fits: TableFits) -> Iterator[str]:
    if fits.isoflop is None:
        return
    by_budget: dict[float, dict[str, str]] = {}
    for method, fit in fits.isoflop.fits.items():
        for at in fit.minima:
            by_budget.setdefault(at.flops, {})[method] = compact(at.n_star)
        for flops, _ in fit.refused:
            by_budget.setdefault(flops, {})[method] = "refused"
    methods = list(fits.isoflop.fits)
    yield f"  {'budget':<11} " + " ".join(f"{'N* ' + method:>12}" for method in methods)
    kept = [(c, at) for c, at in sorted(by_budget.items()) if set(at.values()) != {"refused"}]
    for flops, found in kept[:MOST_BUDGETS]:
        cells = " ".join(f"{found.get(method, '-'):>12}" for method in methods)
        yield f"  {compact(flops):<11} {cells}"
    if len(kept) > MOST_BUDGETS:
        yield f"  {len(kept) - MOST_BUDGETS} more budgets (all with --json)"
    if len(kept) < len(by_budget):
        yield f"  {len(by_budget) - len(kept)} budgets refused by every method: {_reason(fits)}"


def _reason(fits: TableFits) -> str:
    """Why, for the first that was refused."""
    if fits.isoflop is None:
        return ""
    reasons = [why for fit in fits.isoflop.fits.values() for _, why in fit.refused]
    return reasons[0] if reasons else ""


def _allocation_lines(law: JointFit, target: float) -> Iterator[str]:
    for arm in law.arms or (None,):
        n, d = law.optimum(np.array([target]), arm)
        loss = float(law.predict(n, d, arm)[0])
        where = "" if law.inside(N=float(n[0]), D=float(d[0])) else ", extrapolated"
        label = f" of {arm}" if arm else ""
        yield (
            f"  joint law{label}: N* = {compact(float(n[0]))}, D* = {compact(float(d[0]))}, "
            f"L = {loss:.4f} nats{where}"
        )


def _title(name: str) -> str:
    kind, _, arm = name.partition("[")
    words = {"joint": "Joint law", "shared": "Shared exponent", "power": "Power law"}
    title = words.get(kind, "Broken power law")
    return f"{title} of {arm[:-1]}" if arm else title
