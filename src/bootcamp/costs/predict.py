"""One plan's answer: seconds, tokens, MFU, peak and what limits, `predict.answer(case)`.

MFU counts the model's FLOPs with attention in full, as if not causal, over the GPU's dense peak in
16 bit (Chowdhery et al., arXiv:2204.02311, appendix B); HFU adds what is computed again.
"""

from dataclasses import dataclass

from bootcamp.costs import images, kernels, memory, stacks, step
from bootcamp.costs.hardware import GB
from bootcamp.costs.rows import Workload
from bootcamp.costs.stacks import Constants

ENOUGH = 0.7  # a step that computes for this share of its time is limited by compute
WORDS = {
    "host": "launches from the host",
    "tensor": "tensor-parallel collectives",
    "context": "context-parallel collectives",
    "expert": "all-to-all of the experts",
    "data": "gradients and parameters on the links",
    "pipeline": "links between pipeline stages",
    "bubble": "the pipeline's bubble",
    "optimizer": "the optimizer",
}


@dataclass(frozen=True)
class Answer:
    """seconds: of a step. tokens: a second and GPU; samples for images. peak_bytes: of the fullest
    rank. parts: {part: seconds}. None where the row does not say enough."""

    seconds: float | None
    tokens: float | None
    mfu: float | None
    hfu: float | None
    peak_bytes: float
    limit: str
    parts: dict[str, float]


def answer(case: Workload, constants: Constants | None = None) -> Answer:
    """What the planner says of a case. constants: those of its table by default."""
    of_case = (case.stack, case.cluster.gpu.name, case.method)
    c = constants or stacks.constants(*of_case)
    if case.image_model:
        return _of_images(case, c)
    if case.shape is None:
        held = case.held or sum(memory.states(case.parameters, case.plan).values())
        limit = "memory" if held > case.cluster.gpu.memory else ""
        return Answer(None, None, None, None, held, limit, {})
    if case.one_layer:
        return _of_a_layer(case, c)
    shape, plan, gpu = case.shape, case.plan, case.cluster.gpu
    parts = step.seconds(shape, case.cluster, plan, c)
    seconds = parts.total * c.anchor
    tokens = plan.batch * shape.sequence / seconds / case.cluster.gpus
    mfu = tokens * shape.flops_of_token() / gpu.peak
    again = {"selective op": "none"}.get(plan.recompute, plan.recompute)
    hfu = mfu + tokens * shape.recomputed_of_token(again) / gpu.peak
    held = memory.peak(shape, plan, c.reserved)
    named = {name: value * c.anchor for name, value in vars(parts).items()}
    return Answer(seconds, tokens, mfu, hfu, held, limits(named, held, gpu.memory), named)


def limits(parts: dict[str, float], held: float, memory: float) -> str:
    """What to look at first: memory where it does not fit, else the part that costs most."""
    if held > memory:
        return f"memory: {held / GB:.1f} GB do not fit {memory / GB:.0f} GB"
    if parts["compute"] >= ENOUGH * sum(parts.values()):
        return "compute"
    return WORDS[max(WORDS, key=lambda name: parts[name])]


def _of_images(case: Workload, c: Constants) -> Answer:
    compute, exposed = images.seconds(case.image_model, case.cluster, case.plan, c)
    seconds = c.anchor * (compute + exposed)
    most = "compute" if compute >= ENOUGH * (compute + exposed) else WORDS["data"]
    parts = {"compute": c.anchor * compute, "data": c.anchor * exposed}
    held = images.peak_bytes(case.image_model)
    return Answer(seconds, case.plan.micro_batch / seconds, None, None, held, most, parts)


def _of_a_layer(case: Workload, c: Constants) -> Answer:
    """A layer by itself, without head and optimizer: forward and backward of one micro-batch."""
    shape, plan, cluster = case.shape, case.plan, case.cluster
    device = kernels.layer(cluster.gpu, shape, plan, c)
    waits = step.layer_waits(shape, cluster, plan, c)["tensor"]
    again = step.recomputed(shape, cluster, plan, c, device.forward + waits.forward)
    parts = {"compute": sum(device) + again, "tensor": sum(waits)}
    held = memory.layer_bytes(shape, plan)
    return Answer(c.anchor * sum(parts.values()), None, None, None, held, "compute", parts)
