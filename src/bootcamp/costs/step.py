"""Seconds of a step, part by part: `Step(model, cluster, plan, constants).parts()`.

A layer takes its kernels, or the host's launches where they take longer. Tensor and context
parallelism wait for their collectives in each layer; FSDP's go on beside the compute; a pipeline
waits for its slowest stage and its bubble (bootcamp.costs.pipeline_schedules). A ring sends the
same over each of its edges: inside a host over the GPUs' own links, between hosts over the host's
network, which the rings of a host's ranks share.
"""

from functools import cached_property, partial
from math import log2

from bootcamp.costs import layer_cut, sharding, traffic
from bootcamp.costs.fitted_constants import Constants
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.kernels import Kernels, Passes
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.plans import Plan
from bootcamp.costs.sharding import Group, split_by_link

BACKWARD_LAUNCHES = 1.8  # times as long as the forward's: autograd launches about twice the kernels
ADAM = 30  # bytes for each parameter: four float32 read, three written, the 16 bit copy written
CONTENTION = 0.3  # seconds of products that a second on a host's bus takes: multiprocessors, memory
IN_HOST, BETWEEN_HOSTS = 30e-6, 15e-6  # seconds: of a call, and of each doubling of the hosts
HALF_SPEED_BATCH = 8  # micro-batch at which a GPU reaches half of its speed in convolutions
# {has a batch norm: reads and writes of each convolution's output, forward and backward}
PASSES_OVER_OUTPUT = {"yes": 14, "no": 6}


class Step:
    """The seconds of a step of a plan, which must have passed plans.check."""

    def __init__(self, model: Model, cluster: Cluster, plan: Plan, c: Constants):
        self.model, self.cluster, self.plan, self.constants = model, cluster, plan, c
        self.kernels, self.groups = Kernels(cluster.gpu, model, plan, c), plan.groups
        self._seconds = partial(collective_seconds, cluster=cluster, c=c)
        # a rank's parameters: of a layer, its shared experts, the ends, all of the fullest stage
        self.layer = model.block.parameters(plan.tensor, plan.expert)
        self.shared = model.shared_expert_parameters(plan.tensor, plan.expert)
        self.ends = model.end_parameters(plan.tensor)
        self.deep, _ = layer_cut.layers_of_stage(model.layers, plan.pipeline)
        alone = plan.pipeline == 1
        ends = self.ends if alone else model.embedding_parameters(plan.tensor)
        self.numbers = self.deep * self.layer + ends
        strategy, wide = sharding.OF_STAGE[plan.stage], plan.reduce_bytes / 2
        self.calls = sharding.collectives(strategy, plan.sharing, not alone, wide)

    def parts(self) -> dict[str, float]:
        """Return the seconds that each part adds; together they are the step."""
        model, plan, c, kernels = self.model, self.plan, self.constants, self.kernels
        busy = sum(self.waits.values(), kernels.layer)
        launch = c.launch * (0.5 if plan.compile else 1)
        forward = side_by_side(busy.forward, launch)
        backward = side_by_side(busy.backward, BACKWARD_LAUNCHES * launch)
        again = kernels.recompute_seconds(forward)
        layer = forward + backward + again
        if plan.each_time:
            gather, _, reduce = self._state_seconds(self.calls[:3], self.layer, self.shared)
            regathers = not plan.keep_gathered
            sent = (2 * regathers + plan.reduce_bytes) * self.layer
            layer = self._beside(backward + again, regathers * gather + reduce, sent)
            layer += self._beside(forward, gather, 2 * self.layer)
        head = side_by_side(kernels.head() + self.waits["tensor"].forward, c.ends)
        deep, shallow = layer_cut.layers_of_stage(model.layers, plan.pipeline * plan.virtual)
        deep, shallow = deep * plan.virtual, shallow + deep * (plan.virtual - 1)
        # each tensor rank hands over its part (arXiv:2104.04473, 4.1)
        handed = 2 * kernels.tokens * model.hidden / plan.tensor
        hops = hand_over_seconds(handed, self.groups["pipeline"], self.cluster, c)
        stages = (deep * layer, shallow * layer + kernels.embedding(), shallow * layer + head)
        whole, bubble = pipeline_seconds(stages, hops, plan)
        layers = deep * plan.micro_batches
        exposed = layers * (layer - forward - backward - again)
        exchanged = {axis: layers * sum(passes) for axis, passes in self.waits.items()}
        stalls = layers * (forward + backward - sum(busy))
        filling = 2 * (plan.pipeline - 1) * hops[1]
        updated = self.numbers
        if plan.stage:
            updated = (updated + self.deep * self.shared * (plan.expert - 1)) / plan.sharing
        return {
            "compute": whole - bubble - filling - sum(exchanged.values()) - exposed - stalls,
            "host": stalls,
            **exchanged,
            "data": exposed + self._gradient_seconds(deep * (backward + again)),
            "pipeline": filling,
            "bubble": bubble,
            "optimizer": ADAM * updated / kernels.bandwidth + c.fixed,
        }

    def layer_parts(self) -> dict[str, float]:
        """Return a layer's, without head and optimizer: both passes of one micro-batch."""
        device, waits = self.kernels.layer, self.waits["tensor"]
        again = self.kernels.recompute_seconds(device.forward + waits.forward)
        return {"compute": sum(device) + again, "tensor": sum(waits)}

    @cached_property
    def waits(self) -> dict[str, Passes]:
        """Return {axis: how long a layer's passes wait for it}, for one micro-batch."""
        waits = dict.fromkeys(("tensor", "context", "expert"), Passes(0.0, 0.0))
        calls = traffic.list_layer_collectives(self.model, self.plan)
        for axis, kind, size, forward, backward in calls:
            each = self._seconds(kind, size, self.groups[axis])
            waits[axis] += Passes(forward * each, backward * each)
        if self.plan.async_tensor:  # in as many pieces as ranks, each beside the product before it
            waits["tensor"] *= 1 / self.plan.tensor
        return waits

    def _beside(self, compute: float, sending: float, sent: float) -> float:
        """Seconds of products beside a collective that sends so many bytes."""
        slower = min(sending, CONTENTION * sent / self.cluster.gpu.bus)
        return side_by_side(compute + slower, sending)

    def _state_seconds(self, calls: list, numbers: float, of_experts: float = 0.0) -> list[float]:
        """Seconds of collectives of a rank's parameters; an expert has replicas on fewer ranks."""
        found = []
        for axis, kind, share in calls:
            own = of_experts * share * (axis == "shard")  # the rows of HSDP hold the same experts
            rest = self._seconds(kind, 2 * (numbers * share - own), self.groups[axis])
            experts = self._seconds(kind, 2 * own, self.groups["shard of experts"])
            found.append(rest + experts)
        return found

    def _gradient_seconds(self, backward: float) -> float:
        """Seconds of waiting for gradients, and for parameters that ZeRO has updated.

        FSDP's are counted with the layers: here it waits for the embedding before the first layer
        and after the last backward of each micro-batch, and for the rows of HSDP. backward: the
        last one, beside which they are reduced.
        """
        plan, calls, alone = self.plan, self.calls, 0.0
        if plan.each_time:
            gather, _, reduce = self._state_seconds(calls[:3], self.ends)
            calls, alone = calls[3:], plan.micro_batches * (gather + reduce)
        total = sum(self._state_seconds(calls, self.numbers, self.deep * self.shared))
        if plan.overlap:
            total = self._beside(backward, total, plan.reduce_bytes * self.numbers) - backward
        if plan.pipeline > 1 and self.model.tied:  # the first and the last stage share the matrix
            pair = Group(2, self.groups["pipeline"].stride)
            total += self._seconds("all-reduce", 2 * self.ends, pair)
        return total + alone


def pipeline_seconds(stages: tuple[float, ...], hops: tuple[float, float], plan: Plan):
    """Return the seconds of all micro-batches through a pipeline, and its bubble's.

    stages: of both passes of a micro-batch in a middle, the first and the last rank. hops: of a
    hand-over when the pipeline is full, and when it fills or drains. With 1F1B a step is one
    micro-batch through every rank, and the slowest rank's period for each other one; a rank waits
    for its neighbours twice in a period, the first and the last once. Several stages on a rank
    shorten the first part (arXiv:2104.04473, section 2.2), and a split backward to a third; ZB-V
    has both (arXiv:2401.10241).
    """
    (middle, first, last), (hop, filling) = stages, hops
    p, m = plan.pipeline, plan.micro_batches
    if p == 1:
        return m * (first + last - middle), 0.0
    hop *= plan.virtual
    period = max(last + hop, first + hop, middle + 2 * hop if p > 2 else 0.0)
    through = first + middle * (p - 2)
    through /= {"zero-bubble": 3, "zb-v": 6}.get(plan.schedule, plan.virtual)
    filling *= 2 * (p - 1)
    whole = through + last + (m - 1) * period + filling
    return whole, whole - m * max(stages) - filling


def network_seconds(row: dict, cluster: Cluster, plan: Plan, c: Constants) -> dict[str, float]:
    """Predict {"compute", "data"} of a convolutional network in float32 under data parallelism.

    row: of published/cnns.csv. data: the all-reduce that outlasts the backward pass, which takes
    twice the multiply-adds of the forward pass.
    """
    multiply_adds = (float(row["gflops"]) - float(row["saved_gflops"])) * 1e9
    utilization = plan.micro_batch / (plan.micro_batch + HALF_SPEED_BATCH)
    speed = cluster.gpu.peak_fp32 * c.clock * c.images * utilization
    arithmetic = 3 * 2 * multiply_adds / speed
    elements_moved = PASSES_OVER_OUTPUT[row["normed"]] * float(row["million_outputs"]) * 1e6
    compute = plan.micro_batch * (arithmetic + 4 * elements_moved / (cluster.gpu.hbm * c.memory))
    gradient_bytes, group = 4e6 * float(row["millions"]), plan.groups["shard"]
    reduce = collective_seconds("all-reduce", gradient_bytes, group, cluster, c)
    return {"compute": compute, "data": side_by_side(2 / 3 * compute, reduce) - 2 / 3 * compute}


def collective_seconds(
    kind: str, size: float, group: Group, cluster: Cluster, c: Constants
) -> float:
    """Return the seconds of one collective of `size` bytes, as ring_bytes counts them."""
    if group.ranks == 1 or not size:
        return 0.0
    sent = split_by_link(kind, size, group, cluster.per_host)
    hosts = group.ranks / group.count_in_host(cluster.per_host)
    inside = sum(sent.values()) / (cluster.gpu.bus * c.bus)
    sharing = min(cluster.per_host, cluster.gpus)  # ranks that share their host's network
    outside = sharing * sent["between"] / (cluster.host_bytes * c.network)
    return IN_HOST + BETWEEN_HOSTS * log2(hosts) + max(inside, outside)


def hand_over_seconds(
    size: float, group: Group, cluster: Cluster, c: Constants
) -> tuple[float, float]:
    """Seconds to the next pipeline rank: if all send; for one pair, while it fills or drains."""
    if group.ranks == 1:
        return 0.0, 0.0
    full = filling = cluster.gpu.bus * c.bus
    if group.stride >= cluster.per_host:
        share = cluster.host_bytes / min(cluster.per_host, cluster.gpus)
        full, filling = share * c.network, share * c.filling
    return c.hop + size / full, c.hop + size / filling


def side_by_side(one: float, other: float) -> float:
    """Return the longer of two simultaneous times, and a little more where they are close."""
    most = max(one, other)
    return most * ((one / most) ** 5 + (other / most) ** 5) ** (1 / 5) if most > 0 else 0.0
