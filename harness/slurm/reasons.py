"""Why a job waits, in words, and whether it will ever start as it is.

Slurm's reasons are those of its ``job_reasons`` page and of ``squeue``'s manual. A limit on what
runs at once (``QOSMaxGRESPerUser``, ``AssocGrp…``) passes; a limit on one job (``…PerJob``) does
not. An unknown reason counts as passing: a job that is cancelled for nothing loses its age.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HELD = "release it (scontrol release JOB)"
ASKS_TOO_MUCH = "lower it in the slurm block, cancel, and run again"
CHOOSE = "choose another in the slurm block, cancel, and run again"


@dataclass(frozen=True)
class Waiting:
    """One pending reason."""

    text: str
    """In words, with Slurm's own: ``waits for a free slot (Resources)``."""
    never: bool
    """Whether nothing but the user can make it start."""


PASSING = (
    (r"none|", "waits to be looked at by the scheduler"),
    (r"priority", "waits behind jobs of higher priority"),
    (r"resources|nodes required .*", "waits for a free slot"),
    (r"dependency", "waits for other jobs to end first"),
    (r"begintime", "waits for its start time, which a requeue sets some minutes ahead"),
    (r"jobarraytasklimit", "waits for tasks of its own array (array_parallelism)"),
    (r"licenses", "waits for licences"),
    (r"reservation", "waits for its reservation to begin"),
    (r"partitiondown", "the partition is down: waits until the administrators open it"),
    (r"partitioninactive", "the partition is inactive: waits until the administrators open it"),
    (r"reqnodenotavail.*", "waits for nodes that are reserved, drained or down"),
    (r"nodedown|node ?fail.*|frontenddown", "its node failed: waits for another"),
    (r"cleaning|prolog", "its nodes are being cleaned up or prepared"),
    (r"burstbuffer.*|bb.*", "waits for the burst buffer"),
    (r"power.*", "waits for electrical power within the cluster's cap"),
    (r"(assoc|qos)grp.*(minutes|mins).*", "the account's budget of minutes is used up"),
    (r"(assoc|qos)grp.*", "waits while the account or QOS uses all that it may at once"),
    (r"(qos|assoc)?max(submit)?jobs?(peruser|peraccount|peracct)?(limit)?", "you run all you may"),
    (r"(assoc|qos)max.*per(user|account|acct).*", "waits while you use all that you may at once"),
    (r"(association|qos)(job|resource|time)limit", "waits within the limits of the account or QOS"),
    (r"qosusagethreshold", "the QOS's usage threshold is reached: waits for it to decay"),
    (r"accountingpolicy", "waits within the limits of the account"),
)
"""Reasons that pass by themselves: pattern of the whole lower-case reason, and what it means."""

FINAL = (
    (r"partitiontimelimit", "asks for more time than the partition allows", ASKS_TOO_MUCH),
    (r"partitionnodelimit", "asks for more (or fewer) nodes than the partition has", ASKS_TOO_MUCH),
    (r"partitionconfig", "asks for what no node of the partition has", ASKS_TOO_MUCH),
    (r"badconstraints", "asks for nodes that do not exist", ASKS_TOO_MUCH),
    (r".*per_?job.*|.*maxwall.*", "asks for more than one job may have here", ASKS_TOO_MUCH),
    (r"maxmemperlimit", "asks for more memory than one job may have", ASKS_TOO_MUCH),
    (r"qosmin.*", "asks for less than the QOS demands", "raise it in the slurm block"),
    (r"dependencyneversatisfied", "a job that it depends on failed", "cancel it and run again"),
    (r"invalidaccount|accountnotallowed", "the account may not run here", CHOOSE),
    (r"invalidqos|qosnotallowed", "the QOS may not be used here", CHOOSE),
    (r"resv(invalid|deleted)|reservationdeleted|invalidreservation", "no such reservation", CHOOSE),
    (r"deadline", "cannot end before its deadline", "cancel it and run again"),
    (r"jobheldadmin", "an administrator holds it", "ask them, then " + HELD),
    (r"jobhelduser|job requeued in held state", "it is held", HELD),
    (r"launch failed.*", "its node could not launch it and it is held", HELD),
    (r"jobholdmaxrequeue", "it was requeued too often and is held", HELD),
)
"""Reasons that only the user can end: pattern, what is wrong, what to do."""


def waiting(reason: str) -> Waiting:
    """Put a pending reason of squeue's into words.

    Parameters
    ----------
    reason
        As squeue prints it (``%r`` or ``%R``), with or without parentheses.
    """
    bare = reason.strip().removeprefix("(").removesuffix(")")
    plain = bare.lower()
    suffix = f" ({bare})" if bare else ""
    for pattern, wrong, remedy in FINAL:
        if re.fullmatch(pattern, plain):
            return Waiting(f"will never start as it is: {wrong}{suffix}: {remedy}", never=True)
    for pattern, meaning in PASSING:
        if re.fullmatch(pattern, plain):
            return Waiting(meaning + suffix, never=False)
    return Waiting(f"waits{suffix}", never=False)
