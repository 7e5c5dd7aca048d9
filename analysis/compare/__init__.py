"""Arms against the baseline: iso-loss multipliers, their intervals, their sensitivity."""
