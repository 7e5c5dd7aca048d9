"""One of two processes that train a list of runs together, one after the other.

``python -m tests.harness.two_ranks FOLDER RANK PORT`` reads ``plan.json`` of the folder and writes
``seen-RANK.json``: what the process saw of every run. Starting two interpreters costs more than a
dozen such runs, so tests share them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch.distributed.tensor import DTensor

from harness import training
from harness.config import Execution
from harness.distributed import join
from harness.launch.ranks import PARTING_S, rank_environment
from harness.lean_lightning import Callback, LightningModule, Trainer
from harness.paths import SweepPaths
from harness.records import PlannedRun
from harness.stop import StopSignal


class Entry(BaseModel):
    """One run, and what one of the two processes asks for on the way."""

    name: str
    run: PlannedRun
    execution: Execution
    attempt: int = 1
    folder: str = ""
    """Sweep to train in; the entry's name when empty."""
    asking_rank: int = 0
    stop_at: int | None = None
    """Step after which that process, and no other, is asked to stop."""
    lost_at: int | None = None
    """Step after which it, and no other, finds the run in other hands."""


class Seen(BaseModel):
    """What one process saw of a run."""

    losses: list[float] = []
    grad_norms: list[float] = []
    steps: int = 0
    error: str | None = None
    local_share: float = 0.0
    """Numbers of parameters and optimiser state that lie here, as a share of all."""


class AskedAt(StopSignal):
    """Is asked to stop, or loses the run, after a number of looks, one a step."""

    def __init__(self, stop_at: int | None, lost_at: int | None) -> None:
        super().__init__()
        self.stop_at, self.lost_at, self.looks = stop_at, lost_at, 0

    def __bool__(self) -> bool:
        self.looks += 1
        self.lost = self.lost_at is not None and self.looks >= self.lost_at
        return self.stop_at is not None and self.looks >= self.stop_at


class Witness(Callback):
    """Notes what a training step gave in this process."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(outputs, Mapping)
        self.seen.losses.append(outputs["loss_nats"].item())
        self.seen.grad_norms.append(outputs["grad_norm"].item())
        self.seen.steps = trainer.global_step
        if trainer.global_step == 1:
            self.seen.local_share = local_share(trainer, pl_module)


def local_share(trainer: Trainer, module: LightningModule) -> float:
    """Share of all numbers of parameters and optimiser state that lie in this process."""
    parts = trainer.optimizers[0].parts  # type: ignore[attr-defined]
    states = [value for part in parts for state in part.state.values() for value in state.values()]
    tensors = [*module.parameters(), *(value for value in states if value.ndim)]
    here = sum(x.to_local().numel() if isinstance(x, DTensor) else x.numel() for x in tensors)
    return here / sum(x.numel() for x in tensors)


def execute(entry: Entry, folder: Path, rank: int) -> Seen:
    """Train one run of the plan in this process."""
    seen, asks = Seen(), rank == entry.asking_rank
    paths = SweepPaths(folder / (entry.folder or entry.name)).run(entry.run.run_id)
    if rank == 0:
        paths.attempt(entry.attempt).mkdir(parents=True)
    dist.barrier()
    stop = AskedAt(entry.stop_at if asks else None, entry.lost_at if asks else None)
    callbacks = training._callbacks
    training._callbacks = lambda *given: [Witness(seen), *callbacks(*given)]  # type: ignore[list-item]
    try:
        training.train(entry.run, "test", paths, entry.execution, stop, entry.attempt)
    except Exception as error:
        seen.error = f"{type(error).__name__}: {error}"
    finally:
        training._callbacks = callbacks
    return seen


def run_pair(folder: Path, entries: Sequence[Entry]) -> dict[str, tuple[Seen, Seen]]:
    """Train the entries in two processes; return what both saw, by name."""
    plan = [entry.model_dump(mode="json") for entry in entries]
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "tests.harness.two_ranks", str(folder)]
    environment = rank_environment(Execution(devices=2), store.port)
    pair = [
        subprocess.Popen([*command, str(rank), str(store.port)], env=environment, text=True)
        for rank in range(2)
    ]
    try:
        codes = [process.wait(timeout=200) for process in pair]
    finally:
        for process in pair:
            process.kill()
            process.wait(PARTING_S)
    assert codes == [0, 0]
    texts = [(folder / f"seen-{rank}.json").read_text(encoding="utf-8") for rank in range(2)]
    both = [[Seen.model_validate(seen) for seen in json.loads(text)] for text in texts]
    return {entry.name: (left, right) for entry, left, right in zip(entries, *both, strict=True)}


def main() -> None:
    """Join the other process and work through the plan."""
    folder, rank, port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    join(rank, 2, dist.TCPStore("127.0.0.1", port, is_master=False))
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    seen = [execute(Entry.model_validate(entry), folder, rank) for entry in plan]
    text = json.dumps([each.model_dump() for each in seen])
    (folder / f"seen-{rank}.json").write_text(text, encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
