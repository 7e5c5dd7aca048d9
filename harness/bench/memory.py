"""Memory of a call, to the byte and reproducibly: live tensor bytes, not the process's size.

Resident memory depends on the allocator and on what ran before; its peak never falls again. On CPU
every operator is therefore watched: a storage counts from the operator that makes it until it is
freed, which is what ``torch.cuda.max_memory_allocated`` counts on CUDA. Checked against the
system's own count: where glibc was told to return every block (``MALLOC_MMAP_THRESHOLD_=65536``),
resident memory grew by the same within 2%; otherwise it was off by as much as a factor of ten.
Not seen on CPU: scratch memory inside one operator, and what is allocated outside torch.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
MAX_COPY_BYTES = 1 << 30
"""Most memory that the measurement of memory bandwidth takes."""


class Memory(NamedTuple):
    """Bytes of tensors around one call."""

    base: int
    """Alive before the call and used by it: weights, optimiser state, the batch."""
    peak: int
    """Most alive at one time during the call, ``base`` included."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensor storages while operators run inside the context.

    A storage that is first met as the input of an operator lived before the context: it enters
    ``base``, and the peak so far as well. Views share a storage and count once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.base = self.live = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._finalizers: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; count the storages that it is the first to use or to make."""
        for tensor in _tensors((args, kwargs)):
            if size := self._enter(tensor):
                self.base += size
                self.live += size
                self.peak += size
        made = func(*args, **(kwargs or {}))
        for tensor in _tensors(made):
            self.live += self._enter(tensor)
        self.peak = max(self.peak, self.live)
        return made

    def __exit__(self, *exc: Any) -> None:
        """Stop counting; storages that are freed later change nothing."""
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        for finalizer in self._finalizers:
            finalizer.detach()

    def _enter(self, tensor: Tensor) -> int:
        """Return by how many bytes a storage is new or has grown."""
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key not in self._sizes:
            self._sizes[key] = 0
            self._finalizers.append(weakref.finalize(storage, self._leave, key))
        grown = size - self._sizes[key]
        self._sizes[key] = size
        return grown

    def _leave(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def memory_of(call: Callable[[], object], device: torch.device) -> Memory:
    """Run ``call`` once and return its memory.

    On CUDA the bytes alive before are those of the whole process, so ``base`` is taken from the
    operators there too, in a second run.
    """
    gc.collect()
    with LiveBytes() as counted:
        call()
    if device.type != "cuda":
        return Memory(counted.base, counted.peak)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return Memory(counted.base, counted.base + torch.cuda.max_memory_allocated() - before)


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be taken on the device; None where the system does not tell.

    On CPU the smaller of what the machine has free and what the control group still allows.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    told = (machine_bytes(MEMINFO), cgroup_bytes(CGROUP))
    return min((found for found in told if found is not None), default=None)


def machine_bytes(meminfo: Path) -> int | None:
    """``MemAvailable`` of a file like /proc/meminfo; None where it cannot be read."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return found[0] if found else None


def cgroup_bytes(folder: Path) -> int | None:
    """``memory.max`` minus ``memory.current``, never negative; None without a limit.

    Control groups of version 2 only: those have these two files, and ``max`` for no limit.
    """
    try:
        limit, used = (
            int((folder / name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
    except (OSError, ValueError):
        return None
    return max(0, limit - used)


def synchroniser(device: torch.device) -> Callable[[], object]:
    """Return what waits for the device: nothing to wait for on CPU."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def copy_bytes_per_s(
    n_elements: int, n_buffers: int, dtype: torch.dtype, device: torch.device, passes: int = 5
) -> float:
    """Memory bandwidth of this process: bytes read and written per second by plain copies.

    ``n_buffers`` tensors of ``n_elements`` are copied one onto the next, so that the working set is
    that of a residual state: what fits a cache there fits it here. Best of ``passes``.
    """
    size = n_elements * dtype.itemsize
    count = max(2, min(n_buffers, MAX_COPY_BYTES // size))
    buffers = [torch.ones(n_elements, dtype=dtype, device=device) for _ in range(count)]
    wait, best = synchroniser(device), float("inf")
    for _ in range(passes + 1):
        wait()
        begin = time.perf_counter()
        for source, target in zip(buffers, (*buffers[1:], buffers[0]), strict=True):
            target.copy_(source)
        wait()
        best = min(best, time.perf_counter() - begin)
    return 2 * size * count / best
