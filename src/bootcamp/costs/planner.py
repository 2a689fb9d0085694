"""The planner's answer to one plan: seconds, tokens, MFU, peak and what limits.

MFU counts the model's FLOPs with attention in full, as if not causal, over the GPU's dense peak in
16 bit (Chowdhery et al., arXiv:2204.02311, appendix B); HFU adds what is computed again.
"""

from dataclasses import dataclass, field
from functools import cache

from bootcamp.costs import convolutional, fitted_constants, memory
from bootcamp.costs.fitted_constants import Constants
from bootcamp.costs.hardware import GB, Cluster
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.plan_table import Workload
from bootcamp.costs.plans import Plan
from bootcamp.costs.step import Step

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

    peak_bytes: float
    limit: str
    seconds: float | None = None
    tokens: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    parts: dict[str, float] = field(default_factory=dict)


def answer(case: Workload, constants: Constants | None = None) -> Answer:
    """Answer a row of a table. constants: those of its table by default."""
    gpu, plan = case.cluster.gpu, case.plan
    c = constants or fitted_constants.constants(case.stack, gpu.name, case.method)
    if case.image_model:
        parts = convolutional.seconds(case.image_model, case.cluster, plan, c)
        parts = {part: c.anchor * seconds for part, seconds in parts.items()}
        seconds, held = sum(parts.values()), convolutional.peak_bytes(case.image_model)
        limit = limits(parts, held, gpu.memory)
        return Answer(held, limit, seconds, plan.micro_batch / seconds, parts=parts)
    if case.shape is None:
        return Answer(case.states_bytes, "memory" if case.states_bytes > gpu.memory else "")
    if case.one_layer:
        parts = Step(case.shape, case.cluster, plan, c).of_one_layer()
        held = memory.layer_bytes(case.shape, plan)
        return Answer(held, "compute", c.anchor * sum(parts.values()), parts=parts)
    return of_plan(case.shape, case.cluster, plan, c)


def of_plan(model: Model, cluster: Cluster, plan: Plan, c: Constants) -> Answer:
    """Answer a plan that can be."""
    gpu = cluster.gpu
    step = Step(model, cluster, plan, c).parts()
    parts = {part: c.anchor * seconds for part, seconds in step.items()}
    seconds, held = sum(parts.values()), memory.peak(model, plan, c.reserved)
    tokens = plan.batch * model.sequence / seconds / cluster.gpus
    mfu = tokens * model.flops_of_token() / gpu.peak
    hfu = mfu + tokens * model.recomputed_of_token(plan.recompute) / gpu.peak
    limit = limits(parts, held, gpu.memory)
    return Answer(held, limit, seconds, tokens, mfu, hfu, parts)


@cache
def unseen(model: Model, cluster: Cluster, plan: Plan) -> Answer:
    """Answer a plan by the constants of a stack never seen."""
    return of_plan(model, cluster, plan, fitted_constants.constants("", cluster.gpu.name))


def limits(parts: dict[str, float], held: float, memory: float) -> str:
    """What to look at first: memory where it does not fit, else the part that costs most."""
    if held > memory:
        return f"memory: {held / GB:.1f} GB do not fit {memory / GB:.0f} GB"
    if parts["compute"] >= ENOUGH * sum(parts.values()):
        return "compute"
    return WORDS[max(WORDS, key=lambda name: parts.get(name, 0.0))]
