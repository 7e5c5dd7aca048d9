"""Running out of memory, told apart from every other error."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from harness.errors import OutOfMemory

SIGNS = (
    "can't allocate memory",  # torch's allocator on CPUs
    "CUDA error: out of memory",  # outside torch's allocator
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""In the messages of errors without a type of their own."""


def within_memory(work: Callable[[], None], microbatch_seqs: int) -> None:
    """Do work that may not fit, and free what it held when it did not.

    Parameters
    ----------
    microbatch_seqs
        Sequences per forward pass, which the error carries.

    Raises
    ------
    OutOfMemory
        The memory of the device or of this machine ran out.
    """
    try:
        return work()
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        why = str(error).partition("\n")[0] or type(error).__name__
    # Only here is the error gone, and with it the frames that kept tensors alive.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise OutOfMemory(f"{why} (micro-batch of {microbatch_seqs} sequences)", microbatch_seqs)


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(sign in str(error) for sign in SIGNS)
