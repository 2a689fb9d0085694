"""Seconds of a step, part by part: `Step(model, cluster, plan, constants).parts()`.

A layer takes its kernels, or the host's launches where they take longer. Tensor and context
parallelism wait for their collectives in each layer; FSDP's go on beside the compute; a pipeline
waits for its slowest stage and its bubble (bootcamp.costs.pipeline_schedules).
"""

from functools import cached_property
from math import ceil

from bootcamp.costs import context, experts, links, sharding
from bootcamp.costs.fitted_constants import Constants
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.kernels import Kernels, Passes
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.plans import Plan

BACKWARD_LAUNCHES = 1.8  # times as long as the forward's: autograd launches about twice the kernels
ADAM = 30  # bytes for each parameter: four float32 read, three written, the 16 bit copy written


class Step:
    """A step of a plan, which must have passed setting.check; all in seconds."""

    def __init__(self, model: Model, cluster: Cluster, plan: Plan, c: Constants):
        self.model, self.cluster, self.plan, self.constants = model, cluster, plan, c
        self.kernels, self.groups = Kernels(cluster.gpu, model, plan, c), links.groups(plan)
        # parameters of a rank: of a layer, of its experts that ranks share, of the ends, and all
        # of the fullest stage
        split = plan.tensor, plan.expert
        self.layer, self.shared = model.layer_parameters(*split), model.divided_parameters(*split)
        embedding = model.embedding_parameters(plan.tensor)
        self.ends = embedding * (1 if model.tied else 2)
        self.deep, _ = layers_of_stage(model.layers, plan.pipeline)
        self.numbers = self.deep * self.layer + (self.ends if plan.pipeline == 1 else embedding)

    def parts(self) -> dict[str, float]:
        """What each part adds; together they are the step."""
        model, plan, c, kernels = self.model, self.plan, self.constants, self.kernels
        busy = sum(self.waits.values(), kernels.layer)
        launch = c.launch * (0.5 if plan.compiled else 1)
        forward = longer(busy.forward, launch)
        backward = longer(busy.backward, BACKWARD_LAUNCHES * launch)
        again = kernels.recomputed(forward)
        gather, reduce = self._sharded(self.layer, self.shared) if plan.each_time else (0.0, 0.0)
        regather = 0.0 if plan.keep_gathered else gather
        layer = longer(forward, gather) + longer(backward + again, regather + reduce)
        head = longer(kernels.head + self.waits["tensor"].forward, c.ends)
        deep, shallow = layers_of_stage(model.layers, plan.pipeline * plan.virtual)
        deep, shallow = deep * plan.virtual, shallow + deep * (plan.virtual - 1)
        # each tensor rank hands over its part (arXiv:2104.04473, 4.1)
        handed = 2 * kernels.tokens * model.hidden / plan.tensor
        hops = links.hand_over(handed, self.groups["pipeline"], self.cluster, c)
        stages = (deep * layer, shallow * layer + kernels.embedding, shallow * layer + head)
        whole, bubble = pipeline(stages, hops, plan)
        layers = deep * plan.micro_batches
        exposed = layers * (layer - forward - backward - again)
        exchanged = {axis: layers * sum(passes) for axis, passes in self.waits.items()}
        stalls = layers * (forward + backward - sum(busy))
        filling = 2 * (plan.pipeline - 1) * hops[1]
        return {
            "compute": whole - bubble - filling - sum(exchanged.values()) - exposed - stalls,
            "host": stalls,
            **exchanged,
            "data": exposed + self._gradients(deep * (backward + again)),
            "pipeline": filling,
            "bubble": bubble,
            "optimizer": self._optimizer(),
        }

    def of_one_layer(self) -> dict[str, float]:
        """A layer by itself, without head and optimizer: both passes of one micro-batch."""
        device, waits = self.kernels.layer, self.waits["tensor"]
        again = self.kernels.recomputed(device.forward + waits.forward)
        return {"compute": sum(device) + again, "tensor": sum(waits)}

    @cached_property
    def waits(self) -> dict[str, Passes]:
        """{axis: what a layer's passes wait for it}, for one micro-batch."""
        model, plan, tokens = self.model, self.plan, self.kernels.tokens
        tensor = 2 * self._collective("all-reduce", 2 * tokens * model.hidden, "tensor")
        if plan.asynchronous:  # in as many pieces as ranks, each beside the product before it
            tensor /= plan.tensor
        heads = model.key_heads / plan.tensor
        keys = context.keys_bytes(tokens * plan.context, heads, model.of_head, number=2)
        gathered = self._collective("all-gather", keys, "context")
        rows = experts.rows_bytes(tokens, model.hidden, model.chosen, number=2)
        routed = 2 * self._collective("all-to-all", rows, "expert") if model.experts > 1 else 0.0
        return {
            "tensor": Passes(tensor, tensor),
            "context": Passes(gathered, 2 * gathered),
            "expert": Passes(routed, routed),
        }

    def _collective(self, kind: str, size: float, axis: str) -> float:
        return links.seconds(kind, size, self.groups[axis], self.cluster, self.constants)

    def _exchange(self, kind: str, size: float, of_experts: float, axis: str) -> float:
        """A collective of a rank's parameters; an expert has replicas on fewer ranks."""
        fewer = links.replicas(self.groups[axis], self.plan)
        own = links.seconds(kind, of_experts, fewer, self.cluster, self.constants)
        return self._collective(kind, size - of_experts, axis) + own

    def _sharded(self, numbers: float, of_experts: float = 0.0) -> tuple[float, float]:
        """FSDP gathers so many parameters, and reduces their gradients."""
        wide = self.plan.reduce_bytes
        gather = self._exchange("all-gather", 2 * numbers, 2 * of_experts, "shard")
        return gather, self._exchange("reduce-scatter", wide * numbers, wide * of_experts, "shard")

    def _gradients(self, backward: float) -> float:
        """Waiting for gradients, and for parameters that ZeRO has updated.

        FSDP's are counted with the layers: here it waits for the embedding before the first layer
        and after the last backward of each micro-batch, and for the rows of HSDP. backward: the
        last one, beside which they are reduced.
        """
        plan, alone = self.plan, 0.0
        strategy = ("ddp", "zero1", "zero2", "hsdp")[plan.stage]
        wide = plan.reduce_bytes / 2
        calls = sharding.collectives(strategy, plan.sharing, plan.pipeline > 1, wide)
        if plan.each_time:
            calls, alone = calls[3:], plan.micro_batches * sum(self._sharded(self.ends))
        total = 0.0
        for axis, kind, share in calls:
            # the rows of HSDP hold the same experts
            of_experts = 2 * self.deep * self.shared * share * (axis == "shard")
            total += self._exchange(kind, 2 * self.numbers * share, of_experts, axis)
        if plan.overlap:
            total = longer(backward, total) - backward
        if plan.pipeline > 1 and self.model.tied:  # the first and the last stage share the matrix
            pair = links.Group(2, self.groups["pipeline"].stride)
            size = 2 * self.ends
            total += links.seconds("all-reduce", size, pair, self.cluster, self.constants)
        return total + alone

    def _optimizer(self) -> float:
        """The parameters that a rank updates."""
        plan, numbers = self.plan, self.numbers
        if plan.stage:
            numbers = (numbers + self.deep * self.shared * (plan.expert - 1)) / plan.sharing
        return ADAM * numbers / self.kernels.bandwidth + self.constants.fixed


def layers_of_stage(layers: int, stages: int) -> tuple[int, int]:
    """Layers of the fullest stage, and of the first and the last.

    Where layers do not divide, embedding and head count as one each (arXiv:2407.21783).
    """
    deep = ceil(layers / stages)
    return deep, deep - 1 if stages > 1 and layers % stages else deep


def pipeline(stages: tuple[float, ...], hops: tuple[float, float], plan: Plan):
    """(seconds of all micro-batches through a pipeline, how much of them is its bubble).

    stages: seconds of both passes of a micro-batch in a middle, the first and the last rank. hops:
    of a hand-over when the pipeline is full, and when it fills or drains. With
    1F1B a step is one micro-batch through every rank, and the slowest rank's period for each other
    one; a rank waits for what it is sent twice in a period, the first and the last once. Several
    stages on a rank shorten the first part (arXiv:2104.04473, section 2.2), and a split backward to
    a third; ZB-V has both (arXiv:2401.10241).
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


def longer(one: float, other: float, sharpness: int = 5) -> float:
    """The longer of two times that go on side by side, and a little more where they are close."""
    most = max(one, other)
    if most <= 0:
        return 0.0
    return most * ((one / most) ** sharpness + (other / most) ** sharpness) ** (1 / sharpness)
