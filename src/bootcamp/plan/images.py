"""Convolutional networks under data parallelism, as TensorFlow's and Horovod's tables train them.

published/cnns.csv has their parameters and multiply-adds. Float32. Standard library only.
"""

from bootcamp.plan import links, tables
from bootcamp.plan.hardware import Cluster
from bootcamp.plan.kernels import longer
from bootcamp.plan.setting import Plan
from bootcamp.plan.stacks import Constants

FILLS = 8  # samples at which half of a GPU's speed is reached


def seconds(model: str, cluster: Cluster, plan: Plan, c: Constants) -> tuple[float, float]:
    """(compute, exposed all-reduce) of a step. A backward takes twice its forward's products."""
    row = next(row for row in tables.table("cnns") if row["model"] == model)
    flops = 3 * 2 * float(row["gflops"]) * 1e9 * plan.micro_batch
    fills = plan.micro_batch / (plan.micro_batch + FILLS)
    compute = flops / (cluster.gpu.peak_fp32 * c.images * fills)
    group = links.groups(plan)["data"]
    size = 4e6 * float(row["millions"])
    reduce = links.seconds("all-reduce", size, group, cluster, c)
    return compute, longer(2 / 3 * compute, reduce) - 2 / 3 * compute


def peak_bytes(model: str) -> float:
    """Of parameters, gradients and the momentum of SGD in float32."""
    row = next(row for row in tables.table("cnns") if row["model"] == model)
    return 12e6 * float(row["millions"])
