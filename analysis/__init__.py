"""From records to a report: collect, fit, compare, draw, tabulate.

Imports neither torch nor lightning nor mlflow, so a report is built on a laptop. One way only:
``collect`` (one row per run) -> ``cells`` (one point per arm and size) -> ``fit`` and ``compare``
-> ``tables`` and ``figures`` -> ``report``. Words are those of ``harness``: arm, cell, size, run.
"""
