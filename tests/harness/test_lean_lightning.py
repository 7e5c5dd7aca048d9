"""A worker starts without what training never uses."""

from __future__ import annotations

import subprocess
import sys

UNUSED = ("scipy.signal", "matplotlib", "transformers", "torchvision")


def test_a_worker_imports_nothing_for_metrics_that_it_never_takes() -> None:
    code = (
        "import sys, harness.worker\n"
        f"print([name for name in {UNUSED!r} if name in sys.modules])\n"
        "import scipy.signal, importlib.metadata as about\n"
        "print(about.version('scipy') == scipy.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[]", "True"]
