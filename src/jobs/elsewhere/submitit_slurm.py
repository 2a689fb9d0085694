"""python src/jobs/elsewhere/submitit_slurm.py, on a machine from which sbatch works

A site changes: partition, time, what a node has. submitit writes the sbatch file, with one task for
each rank, and calls `rank` in each of them; CLUSTER = "local" starts them on this machine instead.
"""

import subprocess
import sys
from pathlib import Path

import submitit

NODES, PROCESSES = 2, 2
CLUSTER = "slurm"
PARTITION = {"slurm_partition": "debug", "slurm_srun_args": ["--kill-on-bad-exit"]}
SCRIPT = Path(__file__).resolve().parents[2] / "_train_ddp.py"
FLAGS = ["--steps", "20", "--global-batch", "32"]


def rank(flags: list[str]) -> None:
    """One rank: torchrun's variables, from those of the scheduler."""
    submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    subprocess.run([sys.executable, SCRIPT, *FLAGS, *flags], check=True)


def executor(folder: Path, cluster: str = CLUSTER, **settings) -> submitit.AutoExecutor:
    """What submits the job. folder: for its logs, on a disk that all nodes share."""
    chosen = submitit.AutoExecutor(folder, cluster=cluster)
    job = {"nodes": NODES, "tasks_per_node": PROCESSES, "cpus_per_task": 1, "timeout_min": 30}
    chosen.update_parameters(name="train-ddp", **{**job, **PARTITION, **settings})
    return chosen


if __name__ == "__main__":
    job = executor(Path("logs/submitit")).submit(rank, sys.argv[1:])
    print(f"job {job.job_id}: {job.paths.folder}")
    print(job.results())
