"""Search of hyperparameters, by arm and size.

Pure core: the ``tune`` block (:mod:`~harness.tuning.config`), what is searched
(:mod:`~harness.tuning.cells`, :mod:`~harness.tuning.space`), which values come next
(:mod:`~harness.tuning.bracket`), laws across sizes (:mod:`~harness.tuning.transfer`), and chosen
values back into the grid (:mod:`~harness.tuning.apply`).
"""
