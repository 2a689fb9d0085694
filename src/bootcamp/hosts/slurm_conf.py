"""The files of a small Slurm site: slurm.conf and what belongs beside it.

What a real site has and this one has not is named where it is switched off. Written for Slurm 22.05
and newer (Debian 12); each option is explained in slurm.conf(5).
"""

import time
from pathlib import Path

from bootcamp.launcher import simulated_hosts

CONFIGURATION = Path("/etc/slurm")  # where Slurm's commands look without being told
SPOOL = Path("/var/spool")
LOGS = Path("/run/log")
PROGRAMS = Path("/run/bin")  # first in the PATH of jobs
GPUS = Path("/run/gpus")
MUNGE_KEY = Path("/etc/munge/munge.key")
MUNGE_SOCKET = Path("/run/munge/munge.socket.2")
FOLDERS = (Path("/run"), SPOOL, CONFIGURATION, MUNGE_KEY.parent)  # nobody else sees these
PARTITIONS = {
    "main": "Default=YES PriorityTier=10 PreemptMode=OFF",
    # their jobs make room for those of the other two: at once, or told by their --signal before.
    # A job without one gets TERM instead: what ends of it within the grace has failed, and is over
    "spare": "PriorityTier=1 GraceTime=0",
    "warned": "PriorityTier=1 GraceTime=30",
    "urgent": "PriorityTier=20 PreemptMode=OFF",
}

SLURM_CONF = """\
ClusterName=bootcamp
SlurmctldHost={controller}({controller_address})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation={spool}/slurmctld
SlurmdSpoolDir={spool}/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/slurmd-%n.log
ReturnToService=2
MpiDefault=none
SwitchType=switch/none

# a real site tracks, binds and limits processes with cgroups, and keeps accounts in a database
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides

# whole CPUs are given away; jobs of spare and warned make room for the others
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
FirstJobId={first_job}
SchedulerParameters=requeue_delay=1,bf_interval=1,sched_interval=2

# a site waits longer: here a lesson would wait
KillWait=5
BatchStartTimeout=10
CompleteWait=0
SlurmdTimeout=30
InactiveLimit=0
TaskProlog={configuration}/task_prolog
{gres}
NodeName={nodes} CPUs={cpus} RealMemory={memory} State=UNKNOWN{node_gres}
{partitions}
"""

# hosts made on one machine share its cores: the ranks of each begin with another one
TASK_PROLOG = """\
#!/bin/sh
echo export BOOTCAMP_FIRST_CORE=$((${BOOTCAMP_FIRST_CORE:-0} + ${SLURM_NODEID:-0}))
"""


def write(hosts: int, cpus: int, gpus: int, user: int) -> None:
    """Write the site's files and make its folders, in a file system that nobody else sees.

    cpus, gpus: of each host, as Slurm counts them; they need not exist. user: as whom the daemons
    and the jobs run.
    """
    names = [simulated_hosts.name(host) for host in range(hosts)]
    for daemon in ("slurmctld", *(f"slurmd-{name}" for name in names)):
        (SPOOL / daemon).mkdir()
    gres = node_gres = ""
    if gpus:
        gres, node_gres = "GresTypes=gpu", f" Gres=gpu:{gpus}"
        lines = [f"Name=gpu File={GPUS}/nvidia{gpu}\n" for gpu in range(gpus)]
        (CONFIGURATION / "gres.conf").write_text("".join(lines))
    partitions = [
        f"PartitionName={name} Nodes=ALL MaxTime=60 State=UP {options}"
        for name, options in PARTITIONS.items()
    ]
    text = SLURM_CONF.format(
        controller=names[0],
        controller_address=simulated_hosts.address(0),
        user=user,
        spool=SPOOL,
        logs=LOGS,
        first_job=1_000_000 + int(time.time()) % 9_000_000,  # records of two clusters in one folder
        configuration=CONFIGURATION,
        gres=gres,
        nodes=",".join(names),
        cpus=cpus,
        memory=1000,
        node_gres=node_gres,
        partitions="\n".join(partitions),
    )
    (CONFIGURATION / "slurm.conf").write_text(text)
    (CONFIGURATION / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    prolog = CONFIGURATION / "task_prolog"
    prolog.write_text(TASK_PROLOG)
    prolog.chmod(0o755)
