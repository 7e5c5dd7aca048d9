"""What a test cluster looks like: its settings, and the text of Slurm's configuration files.

Written for Slurm 22.05 (Debian 12). Nodes have as many CPUs, as much memory and as many GPUs as
the settings say, whatever the machine has: nothing is pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Character devices that any Linux has: Slurm only looks whether each GPU's file is one of its own.
FAKE_GPUS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


@dataclass(frozen=True)
class Settings:
    """What a cluster looks like.

    Partitions: ``main`` (default), ``urgent``, whose jobs preempt and requeue those of ``main``,
    and what ``extra`` adds.
    """

    nodes: int = 2
    cpus: int = 8
    """Per node."""
    memory_mb: int = 8000
    """Per node; a booking, not a limit."""
    gpus: int = 0
    """Per node, made up."""
    accounting: bool = False
    """slurmdbd and MariaDB, so that sacct answers: 3 s more to start."""
    max_array_size: int = 1001
    min_job_age_s: int = 300
    """How long squeue and scontrol know a job that ended."""
    kill_wait_s: int = 2
    """Between SIGTERM and SIGKILL at the time limit."""
    slurmd_timeout_s: int = 10
    """Silence after which a node is DOWN."""
    requeue_delay_s: int = 5
    """How long a requeued job waits at least; 5 is the least."""
    message_timeout_s: int = 10
    """How long a command waits for the controller's answer."""
    preempt_mode: str = "REQUEUE"
    extra: str = ""
    """More lines of slurm.conf."""

    def node_names(self) -> list[str]:
        """Names of the nodes: ``node1`` and so on."""
        return [f"node{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True)
class Site:
    """Where one cluster lives."""

    folder: Path
    host: str
    user: str
    ports: Mapping[str, int]
    """By daemon: slurmctld, slurmdbd, mariadb, and each node."""

    @property
    def munge_socket(self) -> Path:
        """Socket of this cluster's munged."""
        return self.folder / "munge" / "socket"


def slurm_conf(settings: Settings, site: Site) -> str:
    """Text of slurm.conf."""
    return "\n".join((_daemons(settings, site), _scheduling(settings), _nodes(settings, site)))


def _daemons(settings: Settings, site: Site) -> str:
    folder = site.folder
    return f"""\
ClusterName=test
SlurmctldHost={site.host}(127.0.0.1)
SlurmctldPort={site.ports["slurmctld"]}
SlurmUser={site.user}
SlurmdUser={site.user}
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a requeued job waits before it may start (default 120)
AuthInfo=socket={site.munge_socket},cred_expire={settings.requeue_delay_s}
MessageTimeout={settings.message_timeout_s}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
GresTypes=gpu
# the nodes are what this file says, not what slurmd finds on the machine
SlurmdParameters=config_overrides
KillWait={settings.kill_wait_s}
SlurmdTimeout={settings.slurmd_timeout_s}
ReturnToService=2
InactiveLimit=0
MinJobAge={settings.min_job_age_s}
{_accounting(site) if settings.accounting else "JobAcctGatherType=jobacct_gather/none"}"""


def _scheduling(settings: Settings) -> str:
    # The defaults are for large clusters: batch_sched_delay 3 s, sched_interval 60 s, bf_interval
    # 30 s. With these a job starts within a second.
    return f"""\
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
PreemptType=preempt/partition_prio
PreemptMode={settings.preempt_mode}
PriorityType=priority/basic
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1
MaxArraySize={settings.max_array_size}"""


def _accounting(site: Site) -> str:
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={site.ports["slurmdbd"]}
AccountingStoragePass={site.munge_socket}
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2"""


def _nodes(settings: Settings, site: Site) -> str:
    gres = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
    lines = [
        f"NodeName={name} NodeHostname={site.host} NodeAddr=127.0.0.1 Port={site.ports[name]}"
        f" CPUs={settings.cpus} RealMemory={settings.memory_mb}{gres}"
        for name in settings.node_names()
    ]
    lines += [
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 State=UP",
        "PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 State=UP",
        settings.extra,
    ]
    return "\n".join(lines) + "\n"


def gres_conf(settings: Settings) -> str:
    """Text of gres.conf."""
    return "".join(f"Name=gpu File={path}\n" for path in FAKE_GPUS[: settings.gpus])


def slurmdbd_conf(site: Site, password: str) -> str:
    """Text of slurmdbd.conf."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={site.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={site.ports["slurmdbd"]}
SlurmUser={site.user}
LogFile={site.folder}/log/slurmdbd.log
PidFile={site.folder}/run/slurmdbd.pid
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={site.ports["mariadb"]}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
CommitDelay=1
"""
