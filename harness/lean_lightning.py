"""Lightning without what training never uses: every module that needs it imports it from here.

Lightning imports torchmetrics, and torchmetrics whatever optional package it finds installed:
SciPy's signal processing, Matplotlib, transformers. They are half of a worker's start (2 of 4 s).
While Lightning is imported those packages count as not installed; what imports them itself still
gets them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from typing import Any

from lightning_utilities.core import imports

UNUSED = frozenset(
    {"matplotlib", "nltk", "regex", "requests", "scipy", "torchvision", "transformers"}
)
"""Packages for metrics of sound, images and text."""


@contextlib.contextmanager
def _not_installed(names: frozenset[str]) -> Iterator[None]:
    """Let torchmetrics' search for optional packages miss some."""

    def version(name: str) -> Any:
        if name in names:
            raise PackageNotFoundError(name)
        return looks["_version"](name)

    def package_available(name: str) -> bool:
        return name not in names and looks["package_available"](name)

    blind = {"_version": version, "package_available": package_available}
    # What another version of Lightning looks with instead only costs the time.
    looks = {name: vars(imports)[name] for name in blind if name in vars(imports)}
    vars(imports).update({name: blind[name] for name in looks})
    try:
        yield
    finally:
        vars(imports).update(looks)


with _not_installed(UNUSED):
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

__all__ = [
    "Callback",
    "CheckpointIO",
    "ClusterEnvironment",
    "DDPStrategy",
    "LightningModule",
    "Trainer",
    "_SignalConnector",
]
