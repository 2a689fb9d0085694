"""Seconds of collectives on a cluster: which ranks form a group, and what carries its bytes.

A ring sends the same over each of its edges (bootcamp.costs.sharding), inside a host over the
GPUs' own links, between hosts over the host's network, which the rings of a host's ranks share.
"""

from math import log2
from typing import NamedTuple

from bootcamp.costs.fitted_constants import Constants
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.plans import Plan
from bootcamp.costs.sharding import ring_bytes

IN_HOST, BETWEEN_HOSTS = 30e-6, 15e-6  # seconds: of a call, and of each doubling of the hosts


class Group(NamedTuple):
    """ranks ranks, each `stride` numbers after the one before."""

    ranks: int
    stride: int

    def in_host(self, cluster: Cluster) -> int:
        """How many of its ranks are on one host."""
        return max(1, min(self.ranks, cluster.per_host // self.stride))


def groups(plan: Plan) -> dict[str, Group]:
    """{axis: the group of a rank}, tensor ranks nearest to each other."""
    t, c, d = plan.tensor, plan.context, plan.data
    shard = plan.shard * c if plan.shard else d * c
    return {
        "tensor": Group(t, 1),
        "context": Group(c, t),
        "data": Group(d * c, t),
        "shard": Group(shard, t),
        "replicate": Group(d * c // shard, t * shard),
        "expert": Group(plan.expert, t),
        "pipeline": Group(plan.pipeline, t * c * d),
    }


def replicas(group: Group, plan: Plan) -> Group:
    """The ranks of a data-parallel group that hold the same experts as this one."""
    shared = min(plan.expert, group.ranks)
    return Group(group.ranks // shared, group.stride * shared)


def bytes_sent(kind: str, size: float, group: Group, cluster: Cluster) -> dict[str, float]:
    """{"inside", "between"}: bytes that a rank sends, and its share of what leaves its host."""
    n, local = group.ranks, group.in_host(cluster)
    sent = ring_bytes(kind, size, n)
    leaving = 0.0 if local == n else sent / local
    if kind == "all-to-all" and n > 1:  # what is for other hosts, from each of the ranks
        leaving = sent * (n - local) / (n - 1)
    return {"inside": sent - leaving, "between": leaving}


def seconds(kind: str, size: float, group: Group, cluster: Cluster, c: Constants) -> float:
    """Of one collective of `size` bytes. kind: a key of RING.

    size: the whole tensor's; of an all-to-all what one rank hands in.
    """
    if group.ranks == 1 or not size:
        return 0.0
    sent, hosts = bytes_sent(kind, size, group, cluster), group.ranks / group.in_host(cluster)
    inside = sum(sent.values()) / (cluster.gpu.bus * c.bus)
    sharing = min(cluster.per_host, cluster.gpus)  # ranks that share their host's network
    outside = sharing * sent["between"] / (cluster.host_bytes * c.network)
    return IN_HOST + BETWEEN_HOSTS * log2(hosts) + max(inside, outside)


def hand_over(size: float, group: Group, cluster: Cluster, c: Constants) -> tuple[float, float]:
    """Seconds in which a rank sends `size` bytes to its neighbour: in a full pipeline, else.

    While a pipeline fills and drains, one pair of stages at a time is waited for.
    """
    if group.ranks == 1:
        return 0.0, 0.0
    if group.stride < cluster.per_host:
        inside = c.hop + size / (cluster.gpu.bus * c.bus)
        return inside, inside
    share = cluster.host_bytes / min(cluster.per_host, cluster.gpus)
    return c.hop + size / (share * c.network), c.hop + size / (share * c.filling)
