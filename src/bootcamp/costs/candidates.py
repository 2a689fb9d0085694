"""Every plan of a model on a cluster: `candidates(model, cluster, batch=512)`."""

from itertools import product

from bootcamp.costs.hardware import Cluster
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.setting import Plan, check


def candidates(model: Model, cluster: Cluster, batch: int, contexts: bool = False) -> list[Plan]:
    """Return the possible plans of powers of two along tensor (in a host) and pipeline.

    contexts: along context too.
    """
    powers = [2**i for i in range(cluster.gpus.bit_length())]
    inside = [tensor for tensor in powers if tensor <= cluster.per_host]
    found = []
    for tensor, pipeline, context in product(inside, powers, powers if contexts else (1,)):
        data, left = divmod(cluster.gpus, tensor * pipeline * context)
        if not data or left or batch % data:
            continue
        for micro, recompute in product((1, 2, 4, 8), ("none", "selective op", "full")):
            plan = Plan(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                stage=3 if pipeline == 1 else 1,
                micro_batch=micro,
                batch=batch,
                sequence=tensor > 1,
                recompute=recompute,
                compiled=True,
            )
            if possible(model, cluster, plan):
                found.append(plan)
    return found


def possible(model: Model, cluster: Cluster, plan: Plan) -> bool:
    """Whether a plan can be, and its micro-batches fill the pipeline."""
    try:
        check(model, cluster, plan)
    except ValueError:
        return False
    return plan.micro_batches >= plan.pipeline
