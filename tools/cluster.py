"""python3 tools/cluster.py

Install what a simulated cluster needs (bootcamp/hosts/slurm.py): Slurm, munge, ip and tc, from
Debian's or Ubuntu's own packages, as root. Nothing of it is started or stays enabled: the course
starts its own daemons, in memory, when a lesson needs them. Exit code 3 where this machine can't
have it, with a sentence that says why. Standard library only.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge", "tc": "iproute2"}
SERVICES = ("slurmctld", "slurmd", "munge")
POLICY = Path("/usr/sbin/policy-rc.d")  # what packages ask before they start a service
WHERE = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def missing() -> list[str]:
    """The packages whose programs are not here."""
    wanted = [name for program, name in PACKAGES.items() if not shutil.which(program, path=WHERE)]
    return list(dict.fromkeys(wanted))


def why_not(packages: list[str]) -> str | None:
    """Why this can't install them, and what would; None if it can."""
    install = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if sys.platform != "linux":
        return "A cluster on one machine needs Linux; the lesson shows recorded runs here."
    if not shutil.which("apt-get"):
        return f"No apt-get here: install Slurm and munge ({', '.join(packages)} on Debian)."
    if os.getuid() != 0:
        return f"Only root may install packages: sudo {install}"
    return None


@contextlib.contextmanager
def no_service_starts():
    """Let no package start its service; a policy that the machine has of its own stays."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def install(packages: list[str]) -> int:
    """Install the packages and disable their services; apt-get's exit code."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
    )
    with no_service_starts():
        for command in commands:
            print(" ".join(command), flush=True)
            if code := subprocess.run(command, env=env, stdout=subprocess.DEVNULL).returncode:
                return code
    if shutil.which("systemctl"):
        subprocess.run(["systemctl", "disable", "--quiet", *SERVICES], stderr=subprocess.DEVNULL)
    return 0


def main() -> int:
    """Install what is missing."""
    packages = missing()
    if not packages:
        print("Slurm and munge are here.")
        return 0
    if why := why_not(packages):
        print(why)
        return 3
    return install(packages)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(main())
