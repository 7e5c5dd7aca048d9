"""Tensors that lie in row shards over the processes of one run: taking them apart and together.

A sharded parameter is a DTensor of FSDP2: process i holds rows ``i ceil(R / P)`` up to the next
multiple, the last processes fewer or none. Ordinary tensors pass through every function as they
are. Knows torch only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The rows that lie here, sharing memory with the sharded tensors."""
    with torch.no_grad():
        return [x.to_local() if isinstance(x, DTensor) else x for x in tensors]


def assembled(tree: Any) -> Any:
    """Replace every sharded tensor of a tree by the whole one, in the memory of the first process.

    The others, which take part in turn, get an empty tensor. Every process must call it.
    """
    return tree_map(_assemble, tree)


def _assemble(x: Any) -> Any:
    if not isinstance(x, DTensor):
        return x
    whole = x.full_tensor()
    return whole.cpu() if dist.get_rank() == 0 else whole.new_empty(0)


def resharded(state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """State of an optimiser with each tensor of a parameter's shape sharded as that parameter is.

    Parameters
    ----------
    state
        A ``state_dict`` of whole tensors; one of unsharded parameters comes back as it is.
    """
    owners = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {
        index: {name: _shard(value, owners[index]) for name, value in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": entries}


def _shard(value: Any, owner: Tensor) -> Any:
    if not isinstance(owner, DTensor) or value.shape != owner.shape:
        return value
    here = value.to(owner.device)
    shards = distribute_tensor(here, owner.device_mesh, owner.placements, src_data_rank=None)
    return shards.clone()  # or the whole tensor would live on behind the view of its rows


def by_matrix(
    function: Callable[[Tensor], Tensor], rows_NRC: Tensor, like: Tensor, n_rows: int
) -> Tensor:
    """Apply a function of whole matrices to the rows that lie here.

    Every process receives all rows of its share of the matrices, transforms those, and sends the
    rows back where they belong: no work is done twice.

    Parameters
    ----------
    function
        [matrices, n_rows, columns] to the same shape, matrix by matrix; zero to zero.
    rows_NRC
        [matrices, rows here, columns]; whole matrices where ``like`` is not sharded.
    like
        One of the matrices, as it is sharded.
    n_rows
        Rows of a whole matrix.
    """
    if not isinstance(like, DTensor):
        return function(rows_NRC)
    group = like.device_mesh.get_group()
    size = dist.get_world_size(group)
    n, held, columns = rows_NRC.shape
    share, most = -(-n // size), -(-n_rows // size)
    sent = rows_NRC.new_zeros(size * share, most, columns)
    sent[:n, :held] = rows_NRC
    blocks = _swap(sent, group).view(size, share, most, columns)
    whole = blocks.transpose(0, 1).reshape(share, size * most, columns)
    back = torch.zeros_like(whole)
    back[:, :n_rows] = function(whole[:, :n_rows])
    blocks = back.view(share, size, most, columns).transpose(0, 1).contiguous()
    return _swap(blocks, group).view(size * share, most, columns)[:n, :held]


def _swap(blocks: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send the i-th of P equal parts to process i, and receive one from each."""
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received
