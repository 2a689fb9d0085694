"""Convolutional networks under data parallelism, as TensorFlow's and Horovod's tables train them.

published/cnns.csv has their parameters and multiply-adds, and those that Winograd's algorithm saves
in convolutions of stride 1: 3 of 4 with 3 x 3, 16 of 25 with 5 x 5 (arXiv:1509.09308). Float32.
"""

from bootcamp.costs import links, published
from bootcamp.costs.fitted_constants import Constants
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.model_shapes import plain_name
from bootcamp.costs.plans import Plan
from bootcamp.costs.step import longer

FILLS = 8  # samples at which half of a GPU's speed is reached
# times that a convolution's output is read or written between convolutions, forward and backward:
# with a batch norm, and with a bias alone
BETWEEN = {"yes": 14, "no": 6}


def find(name: str) -> str:
    """Return the name of a network of cnns.csv, however it is spelled; "" for any other model."""
    known = {plain_name(row["model"]): row["model"] for row in published.table("cnns")}
    return known.get(plain_name(name), "")


def _row(model: str) -> dict[str, str]:
    return next(row for row in published.table("cnns") if row["model"] == model)


def seconds(model: str, cluster: Cluster, plan: Plan, c: Constants) -> dict[str, float]:
    """{"compute", "data"} of a step. A backward takes twice its forward's products."""
    row = _row(model)
    products = float(row["gflops"]) - float(row["saved_gflops"])
    fills = plan.micro_batch / (plan.micro_batch + FILLS)
    each = 3 * 2 * products * 1e9 / (cluster.gpu.peak_fp32 * c.images * fills)
    numbers = BETWEEN[row["normed"]] * float(row["million_outputs"]) * 1e6
    compute = plan.micro_batch * (each + 4 * numbers / (cluster.gpu.hbm * c.memory))
    size = 4e6 * float(row["millions"])
    reduce = links.seconds("all-reduce", size, links.groups(plan)["data"], cluster, c)
    return {"compute": compute, "data": longer(2 / 3 * compute, reduce) - 2 / 3 * compute}


def peak_bytes(model: str) -> float:
    """Of parameters, gradients and the momentum of SGD in float32."""
    return 12e6 * float(_row(model)["millions"])
