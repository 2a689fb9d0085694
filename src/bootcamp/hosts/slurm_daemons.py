"""python -P src/bootcamp/hosts/slurm_daemons.py HOSTS CPUS GPUS BINDS

Configure a Slurm site on simulated hosts and hold it. slurm.py starts this, reads a line when the
site is up, and enters the hosts to run commands.

Two processes. The outer one waits until there is something to read on its input, the process that
started it has gone, or the inner one has ended. The inner one is the first of a process namespace:
when it ends, the kernel kills every other process in there. What the daemons write lies on a disk
in memory that only their mount namespace has. So nothing is left, whatever ended it.

Slurm's daemons start jobs as the user who sent them, which only root of a machine can do for
several users. An ordinary user becomes root of a user namespace to make the hosts, and himself
again in a second one to run the daemons, which then start his own jobs and nobody else's.

The configuration is for Slurm 22.05 and newer (Debian 12); slurm.conf(5) explains each option.
"""

import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.launcher import forkserver, simulated_hosts
from bootcamp.launcher.simulated_hosts import MS_BIND, MS_PRIVATE, MS_REC, HostsError, mount

CLONE_NEWPID, CLONE_NEWIPC = 0x20000000, 0x08000000  # <sched.h>
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8  # <sys/mount.h>
SECONDS_TO_START = 30
READY = "ready\n"
CONFIGURATION = Path("/etc/slurm")  # where Slurm's commands look by default
SPOOL = Path("/var/spool")
LOGS = Path("/run/log")
PROGRAMS = Path("/run/bin")  # first in the PATH of jobs
GPUS = Path("/run/gpus")
MUNGE_KEY = Path("/etc/munge/munge.key")
MUNGE_SOCKET = Path("/run/munge/munge.socket.2")
FOLDERS = (Path("/run"), SPOOL, CONFIGURATION, MUNGE_KEY.parent)  # nobody else sees these

SLURM_CONF = """\
ClusterName=bootcamp
SlurmctldHost={controller}({controller_address})
SlurmUser={user}
SlurmdUser={user}
AuthInfo=cred_expire=5
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldLogFile=/run/log/slurmctld.log
SlurmdLogFile=/run/log/slurmd-%n.log
ReturnToService=2

# a real site tracks, binds and limits processes with cgroups, and keeps accounts in a database
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{binding}
TaskPluginParam=autobind=cores
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides

# whole CPUs are given away; jobs of spare make room for the others at once
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
FirstJobId={first_job}
SchedulerParameters=requeue_delay=1,bf_interval=1,sched_interval=2

# a site waits longer: here a lesson would wait
KillWait=5
BatchStartTimeout=10
SlurmdTimeout=30
TaskProlog=/etc/slurm/task_prolog
GresTypes=gpu
NodeName={hosts} CPUs={cpus} RealMemory=1000 Gres=gpu:{gpus}
PartitionName=DEFAULT Nodes=ALL MaxTime=60
PartitionName=main Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=urgent PriorityTier=20 PreemptMode=OFF
PartitionName=spare PriorityTier=1 GraceTime=0
"""

# hosts made on one machine share its cores: the ranks of each begin with another one
TASK_PROLOG = """\
#!/bin/sh
echo export BOOTCAMP_FIRST_CORE=$((${BOOTCAMP_FIRST_CORE:-0} + ${SLURM_NODEID:-0}))
"""


def start_site(count: int, cpus: int, gpus: int, binds: int, user: tuple[int, int]) -> None:
    """Make the hosts, start munge and Slurm. Raises HostsError unless every host is idle soon.

    cpus, gpus: of each host. binds: whether a task gets cores. user: user and group of the jobs.
    """
    hosts = simulated_hosts.make(count, None)
    write_configuration(count, cpus, gpus, binds, user[0])
    MUNGE_KEY.write_bytes(secrets.token_bytes(128))
    MUNGE_KEY.chmod(0o600)
    forkserver.install_shims(PROGRAMS)
    warm = ["-P", forkserver.__file__, str(PROGRAMS)]
    start_daemon(sys.executable, warm, hosts[0])
    start_daemon("munged", ["--foreground", "--force"], hosts[0], user)  # whoever "/" belongs to
    wait_until(MUNGE_SOCKET.exists)
    start_daemon("slurmctld", ["-D", "-c"], hosts[0], user)
    for host in hosts:
        start_daemon("slurmd", ["-D"], host, user)
    ask = ["sinfo", "--noheader", "--states=idle", "--partition=main", "--format=%D"]
    how = {"capture_output": True, "text": True, **place_on(hosts[0], user)}
    wait_until(lambda: subprocess.run(ask, **how).stdout.strip() == str(count))


def write_configuration(hosts: int, cpus: int, gpus: int, binds: int, user: int) -> None:
    """Write the site's files and make its folders, in a file system that nobody else sees."""
    names = list(map(simulated_hosts.name, range(hosts)))
    for daemon in ("slurmctld", *(f"slurmd-{name}" for name in names)):
        (SPOOL / daemon).mkdir()
    head = {"controller": names[0], "controller_address": simulated_hosts.address(0), "user": user}
    binding = "affinity" if binds else "none"
    head |= {"hosts": ",".join(names), "cpus": cpus, "gpus": gpus, "binding": binding}
    # another number for each cluster: their records are in one folder
    head["first_job"] = 1_000_000 + int(time.time()) % 9_000_000
    (CONFIGURATION / "slurm.conf").write_text(SLURM_CONF.format(**head))
    devices = [f"Name=gpu File={GPUS}/nvidia{gpu}\n" for gpu in range(gpus)]
    (CONFIGURATION / "gres.conf").write_text("".join(devices))
    (CONFIGURATION / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    prolog = CONFIGURATION / "task_prolog"
    prolog.write_text(TASK_PROLOG)
    prolog.chmod(0o755)


def start_daemon(name: str, arguments: list[str], host: dict, user=(0, 0)) -> None:
    """Start a program that ends with the process namespace. It writes into a file of its own."""
    path = shutil.which(name, path=simulated_hosts.SEARCH)
    log = LOGS / f"{Path(name).name}-{host['name']}.out"
    with open(log, "ab") as out:
        how = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        subprocess.Popen([path, *arguments], start_new_session=True, **how, **place_on(host, user))


def place_on(host: dict, user: tuple[int, int]) -> dict:
    """Return arguments of Popen for a program on a host, run as this user and group."""

    def enter() -> None:
        linux.enter(host["pid"])
        if user[0]:  # from root of a user namespace to the user who made it, in one within it
            simulated_hosts.enter_user_namespace(*user)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return {"cwd": "/", "preexec_fn": enter}


def wait_until(ready) -> None:
    """Wait until `ready()` is true. Raises HostsError with the ends of all logs."""
    deadline = time.monotonic() + SECONDS_TO_START
    while not ready():
        if time.monotonic() > deadline:
            logs = sorted(LOGS.glob("*"))
            ends = "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in logs)
            raise HostsError(f"Slurm did not start within {SECONDS_TO_START} s.\n{ends}")
        time.sleep(0.02)


def hold_site(hosts: int, cpus: int, gpus: int, binds: int, user: tuple[int, int]) -> None:
    """Start the site in this process namespace, say so, and keep it. Raises HostsError, OSError."""
    linux.die_with_parent()
    mount("none", "/", "none", MS_REC | MS_PRIVATE)  # nothing gets out
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for folder in FOLDERS:
        mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=755")
    for folder in (LOGS, MUNGE_SOCKET.parent, GPUS):
        folder.mkdir()
    for gpu in range(gpus):
        device = GPUS / f"nvidia{gpu}"
        device.touch()
        mount(os.devnull, device, "none", MS_BIND)  # Slurm takes it for a GPU's device file
    start_site(hosts, cpus, gpus, binds, user)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps daemons and orphans
    print(READY, end="", flush=True)
    while True:
        signal.pause()


def main() -> None:
    """Fork the inner process, wait for a reason to end it, and end it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's stop button
    user = os.getuid(), os.getgid()
    try:
        client = os.pidfd_open(os.getppid())
        simulated_hosts.enter_new_namespaces()
        linux.call("unshare", CLONE_NEWPID | CLONE_NEWIPC)
        if (inner := os.fork()) == 0:
            hold_site(*map(int, sys.argv[1:]), user)
    except (HostsError, OSError) as error:
        sys.exit(str(error))
    select.select([sys.stdin, client, os.pidfd_open(inner)], [], [])
    os.kill(inner, signal.SIGKILL)
    os.waitpid(inner, 0)  # the kernel has ended everything when this returns


if __name__ == "__main__":
    main()
