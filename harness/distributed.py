"""Several processes of one run: who they are, what they agree on, and how Lightning shares a run.

One process stays what it was: every function here passes a single process's values through. Nothing
is detected: neither the scheduler nor the environment decides what a process is, since Lightning's
guesses about Slurm go wrong in allocations, containers and packed jobs. Numbers that decide
anything (loss, gradient norm, flags) are equal on all processes bit for bit; processors of
different kinds in one run are outside that promise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from harness.config import Execution
from harness.errors import IsolossError
from harness.lean_lightning import ClusterEnvironment, DDPStrategy
from harness.model import Transformer
from harness.sharding import assembled

Answer = TypeVar("Answer")
PATIENCE = timedelta(minutes=30)
"""After so long without the others a process gives up, so that nothing waits for ever."""


@dataclass(frozen=True)
class Ranks:
    """The processes of one run, seen from one of them."""

    rank: int = 0
    """Number of this one."""
    size: int = 1
    """How many there are."""
    per_node: int = 1
    """How many on each node; ranks are numbered node by node."""

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def rows(self, n: int) -> slice:
        """Sequences of a global batch of ``n`` that this process trains on."""
        share = n // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def mean(self, value: Tensor) -> Tensor:
        """Mean of a tensor over all processes."""
        if self.size == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.size

    def sums(self, *values: float) -> list[float]:
        """Sum each value over all processes."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def summed(self, value: Tensor) -> Tensor:
        """Sum a tensor on the processor over all processes."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def largest(self, value: float) -> float:
        """Largest value of any process."""
        return self._reduced([value], dist.ReduceOp.MAX)[0]

    def any(self, *flags: bool) -> list[bool]:
        """Whether each flag is raised on any process."""
        return [bool(flag) for flag in self._reduced(flags, dist.ReduceOp.MAX)]

    def _reduced(self, values: Any, how: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        numbers = torch.tensor([float(value) for value in values], dtype=torch.float64)
        dist.all_reduce(numbers, how)
        return numbers.tolist()

    def told(self, ask: Callable[[], Answer]) -> Answer:
        """What ``ask`` returns on the first process, which alone asks."""
        if self.size == 1:
            return ask()
        answer = [ask() if self.first else None]
        dist.broadcast_object_list(answer)
        return answer[0]  # type: ignore[return-value]


def join(rank: int, size: int, store: Any) -> None:
    """Make this process one of those that meet at ``store``; to be called once a process.

    Tensors of the processor travel by gloo, those of CUDA devices by NCCL.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)


def ranks_of(execution: Execution) -> Ranks:
    """Processes that a run executes in.

    Raises
    ------
    IsolossError
        The run asks for several, but this process was not started as one of them.
    """
    size = execution.devices * execution.nodes
    if size == 1:
        return Ranks()
    if not dist.is_initialized() or dist.get_world_size() != size:
        raise IsolossError(
            f"a run of {size} processes was started in one that is not one of them; "
            "start it by harness.launch.ranks"
        )
    ranks = Ranks(dist.get_rank(), size, execution.devices)
    if torch.cuda.is_available():
        torch.cuda.set_device(ranks.rank % ranks.per_node)
    return ranks


class RankEnvironment(ClusterEnvironment):
    """Tells Lightning which process it is in."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks

    @property
    def creates_processes_externally(self) -> bool:
        """Lightning starts no process."""
        return True

    @property
    def main_address(self) -> str:
        """Unused: the processes have met before."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Unused."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Never chosen by guessing."""
        return False

    def world_size(self) -> int:
        """Number of processes."""
        return self.ranks.size

    def set_world_size(self, size: int) -> None:
        """Nothing to set."""

    def global_rank(self) -> int:
        """Number of this process."""
        return self.ranks.rank

    def set_global_rank(self, rank: int) -> None:
        """Nothing to set."""

    def local_rank(self) -> int:
        """Number of this process on its node."""
        return self.ranks.rank % self.ranks.per_node

    def node_rank(self) -> int:
        """Number of its node."""
        return self.ranks.rank // self.ranks.per_node


class ReplicatedStrategy(DDPStrategy):
    """Every process holds the whole model; gradients are averaged (``ddp``).

    Unused parameters are looked for at every step: recipes may have some, and it keeps the buckets
    in which gradients travel as they are. Buckets rebuilt after the first step, as DDP does
    otherwise, would make a resumed run add in another order than an undisturbed one.
    """

    def __init__(self) -> None:
        super().__init__(find_unused_parameters=True, broadcast_buffers=False)


class ShardedStrategy(DDPStrategy):
    """Parameters, gradients and optimiser state lie in shards (``fsdp``), by FSDP2.

    Lightning's own strategies for it refuse CPUs or fp64, and save in their own formats; this one
    shards the model where DDP would wrap it, after precision and device are set, and hands out
    whole tensors for checkpoints, which then fit any number of processes. Every process holds the
    whole model once, before it is sharded.
    """

    def configure_ddp(self) -> None:
        """Shard every sublayer by itself, and what is left with the model."""
        assert self.lightning_module is not None
        model = self.lightning_module.model
        assert isinstance(model, Transformer)
        scalars = [name for name, parameter in model.named_parameters() if not parameter.ndim]
        if scalars:
            raise IsolossError(
                f"execution.strategy: fsdp cannot shard the scalar parameters {', '.join(scalars)} "
                "of this recipe. Use strategy: ddp."
            )
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        for sublayer in model.sublayers:
            fully_shard(sublayer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole parameters, on the first process."""
        return assembled(super().lightning_module_state_dict())  # type: ignore[no-any-return]


def strategy_of(execution: Execution) -> DDPStrategy:
    """Build Lightning's strategy for a run of several processes."""
    return ShardedStrategy() if execution.strategy == "fsdp" else ReplicatedStrategy()


def accumulating(strategy: object, last: bool) -> AbstractContextManager[None]:
    """Hold back the exchange of gradients until the last micro-batch, where gradients are whole."""
    if last or not isinstance(strategy, ReplicatedStrategy):
        return nullcontext()
    return strategy.block_backward_sync()


def whole_model(
    model: Transformer, ranks: Ranks, build: Callable[[], Transformer]
) -> Transformer | None:
    """The model on the first process, for passes that it makes alone; None on the others.

    Every process must call it. A sharded model is assembled into a new one.
    """
    if not isinstance(model, FSDPModule):
        return model if ranks.first else None
    like = next(model.parameters())
    state = assembled(model.state_dict())
    if not ranks.first:
        return None
    replica = build().to(like.device, like.dtype)
    replica.load_state_dict(state)
    return replica


def release(model: Transformer) -> None:
    """Free the parameters that a pass without gradients has gathered."""
    if isinstance(model, FSDPModule):
        model.reshard()
