"""The system packages of a real Slurm: which they are, whether they are here, how to get them.

``python -m tests.slurm.install`` installs them (Debian or Ubuntu, as root, some 10 s); with
``--list`` it only names them. Standard library only, so that it runs before the environment is
built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "munge"),
    # Not mariadb-server: it would set up a database of the machine's own, slowly.
    *("slurmdbd", "mariadb-server-core", "mariadb-client-core"),
)
TOOLS = (
    *("slurmctld", "slurmd", "sbatch", "squeue", "munged"),
    *("slurmdbd", "sacct", "mariadbd", "mariadb-install-db"),
)
SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
"""Where Debian puts the daemons; an ordinary user's PATH often lacks it."""
HOW = "python -m tests.slurm.install (as root), or .ci/run"


def find(tool: str) -> str | None:
    """Path of a program of Slurm's, munge's or MariaDB's; None where it is not installed."""
    return shutil.which(tool, path=os.pathsep.join((os.environ.get("PATH", ""), *SBIN)))


def missing() -> list[str]:
    """Programs that a test cluster needs and that are not here."""
    return [tool for tool in TOOLS if find(tool) is None]


def main() -> int:
    """Install the packages, or list them."""
    if "--list" in sys.argv[1:]:
        print(*PACKAGES)
        return 0
    if os.geteuid() != 0:
        print(f"needs root: sudo apt-get install {' '.join(PACKAGES)}", file=sys.stderr)
        return 2
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("install", "-y", "-q", "--no-install-recommends", *PACKAGES)
    for command in (("update", "-q"), install):
        subprocess.run(("apt-get", *command), env=environment, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
