"""What a joint fit must say against itself."""

from __future__ import annotations

from analysis.estimates import BadValue, Interval
from analysis.law_fit import Certificate


def check_settings(*, delta: float, level: float, replicates: int) -> None:
    """Refuse settings that mean nothing.

    Raises
    ------
    BadValue
        delta not positive, level outside (0, 1), or one to 99 replicates.
    """
    if not delta > 0:
        raise BadValue(f"delta must be positive (natural log), got {delta}")
    if not 0 < level < 1:
        raise BadValue(f"level must lie between 0 and 1, got {level}")
    if replicates != 0 and replicates < 100:
        raise BadValue(f"percentile intervals need at least 100 replicates, got {replicates}")


def doubts(
    certificate: Certificate, e_interval: Interval, failed: int, replicates: int
) -> tuple[str, ...]:
    """Notes on E, bounds, competing minima and failed replicates."""
    notes = [_e_note(e_interval)] if _e_unknown(e_interval) else []
    notes += [_bound_note(name) for name in certificate.at_bound]
    if certificate.competitors:
        nearest = certificate.competitors[0]
        above = nearest.objective / certificate.objective - 1
        notes.append(
            f"competing_minimum: another law fits within {100 * above:.2g}% of the objective; "
            "see the certificate"
        )
    if failed:
        notes.append(
            f"bootstrap_replicates_failed: {failed} of {replicates} replicates held too few "
            "distinct points for the law and were left out"
        )
    return tuple(notes)


def _e_unknown(interval: Interval) -> bool:
    return not interval.bounded or interval.low == 0


def _e_note(interval: Interval) -> str:
    span = "any value" if interval.high is None else f"0 to {interval.high:.2f} nats"
    return (
        f"e_not_identified: {span} for E fits about as well ({100 * interval.level:g}% profile "
        "interval); extrapolations depend on it, so add larger models or budgets, or pin E"
    )


def _bound_note(name: str) -> str:
    symbol = name.split("[")[0]
    if symbol == "E":
        return "e_at_zero: the best E is 0; the other intervals hold for that E"
    if symbol in "AB":
        axis = "N" if symbol == "A" else "D"
        return f"no_effect_of_{axis.lower()}: the best {name} is 0; loss does not fall with {axis}"
    return f"exponent_at_bound: {name} lies at the edge of what is allowed"
