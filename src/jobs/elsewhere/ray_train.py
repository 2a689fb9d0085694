"""python src/jobs/elsewhere/ray_train.py, on a machine of a Ray cluster (or alone: Ray starts here)

A site changes: SCALING (such as use_gpu=True), and where the records go.
Ray starts one worker process for each rank and gives it torchrun's environment.
"""

import subprocess
import sys
from pathlib import Path

import ray
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

NODES, PROCESSES = 2, 2
SCRIPT = Path(__file__).resolve().parents[2] / "_train_ddp.py"
FLAGS = ["--steps", "20", "--global-batch", "32"]
SCALING = ScalingConfig(num_workers=NODES * PROCESSES, resources_per_worker={"CPU": 1})


def rank(config: dict) -> None:
    """One rank: the script makes a process group of its own, in the place of Ray's."""
    dist.destroy_process_group()
    subprocess.run([sys.executable, SCRIPT, *FLAGS, *config["flags"]], check=True)


def trainer(storage: Path, flags: list[str] = ()) -> TorchTrainer:
    """The job. storage: a folder that all nodes share. flags: more of the script's."""
    return TorchTrainer(
        rank,
        train_loop_config={"flags": list(flags)},
        scaling_config=SCALING,
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(name="train-ddp", storage_path=str(storage)),
    )


if __name__ == "__main__":
    ray.init()
    print(trainer(Path("logs").resolve(), sys.argv[1:]).fit())
