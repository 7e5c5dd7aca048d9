"""How an error of one rank reaches the owner of the run as what it was.

Ranks report through the store that they share with their owner, in the order in which they fail. An
error of the run itself counts before the broken connections that it leaves the others with; when
there are only broken connections, a rank was killed, by the scheduler, the kernel or a dying node,
and that says nothing about the run.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from harness import errors
from harness.errors import IsolossError, OutOfMemory

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

PLAIN_ERRORS = ("CheckpointError", "DataError", "IsolossError", "LeaseLost")
"""Errors that are raised again as what they were, from their message alone."""
LOST_PEER_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")
LOST_PEER_SIGNS = ("gloo/transport", "closed by peer", "reset by peer", "Broken pipe")
"""In the RuntimeErrors of gloo."""


class RankFailed(RuntimeError):
    """A rank raised an error of the run's own."""


class RankKilled(RuntimeError):
    """A rank ended without a word; the run may go on from its checkpoint."""


def report(store: TCPStore, rank: int, error: BaseException) -> None:
    """Tell the owner of the run about an error."""
    message, kind = " ".join(str(error).split()), type(error).__name__
    broken = isinstance(error, RuntimeError) and any(sign in message for sign in LOST_PEER_SIGNS)
    about = {
        "rank": rank,
        "type": kind,
        "message": message,
        "lost_peer": broken or kind in LOST_PEER_TYPES,
        "errno": getattr(error, "errno", None),
        "filename": getattr(error, "filename", None),
        "microbatch_seqs": getattr(error, "microbatch_seqs", None),
    }
    store.set(f"failure/{store.add('failures', 1)}", json.dumps(about))


def first_error(store: TCPStore, size: int) -> Exception | None:
    """First error that was reported, as it was raised; None without any.

    Parameters
    ----------
    size
        Number of ranks.
    """
    reports: list[dict[str, Any]] = []
    while store.check([f"failure/{len(reports) + 1}"]):
        reports.append(json.loads(store.get(f"failure/{len(reports) + 1}")))
    own = [about for about in reports if not about["lost_peer"]]
    if own:
        return _restored(own[0], size)
    if reports:
        first = reports[0]
        return RankKilled(f"process {first['rank']} of {size} lost another: {first['message']}")
    return None


def _restored(about: dict[str, Any], size: int) -> Exception:
    kind, message = about["type"], about["message"]
    if kind == "OutOfMemory":
        return OutOfMemory(message, about["microbatch_seqs"])
    if about["errno"] is not None:
        return OSError(about["errno"], os.strerror(about["errno"]), about["filename"])
    if kind in PLAIN_ERRORS:
        error: IsolossError = getattr(errors, kind)(message)
        return error
    return RankFailed(f"{kind}: {message} (process {about['rank']} of {size})")
