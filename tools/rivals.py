"""What another planner says of the same rows, for tools/accuracy.py, where it is installed.

mlsysim (Harvard, Machine Learning Systems; pip install mlsysim) gives a step of 3D parallelism by
formula, with an efficiency of one half unless it is told another.
"""

from functools import cache

from bootcamp.plan.rows import Case


@cache
def _fleet(name: str):
    """mlsysim's cluster with GPUs nearest to ours."""
    from mlsysim import Systems

    kinds = {"A100": "Training_1K_A100", "B200": "Training_1K_B200"}
    return getattr(Systems.Clusters, kinds.get(name.split()[0], "Training_512_H100"))


def mlsysim_seconds(case: Case) -> float:
    """Seconds of a step by mlsysim's DistributedModel; nan for what it cannot describe."""
    import mlsysim
    from mlsysim import Models
    from mlsysim.solvers import DistributedModel

    shape, plan, cluster = case.shape, case.plan, case.cluster
    if not cluster.gpu.name.startswith(("A100", "H100", "B200")) or plan.context > 1:
        return float("nan")
    per_host = min(cluster.per_host, cluster.gpus)
    fleet, parameter = _fleet(cluster.gpu.name), Models.Language.GPT3.parameters.units
    rate = cluster.host_bytes / cluster.per_host * mlsysim.ureg("byte/second")
    fleet = fleet.model_copy(
        update={
            "node": fleet.node.model_copy(update={"accelerators_per_node": per_host}),
            "count": cluster.gpus // per_host,
            "fabric": fleet.fabric.model_copy(update={"bandwidth": rate}),
        }
    )
    sizes = {"layers": shape.layers, "hidden_dim": shape.hidden, "heads": shape.heads}
    sizes |= {"vocab_size": shape.vocabulary, "training_ops": None}
    sizes["inference_flops"] = 2 * shape.computed * Models.Language.GPT3.inference_flops.units
    sizes["parameters"] = shape.parameters * parameter
    model = Models.Language.GPT3.model_copy(update=sizes)
    try:
        found = DistributedModel().solve(
            model,
            fleet,
            batch_size=plan.batch,
            tp_size=plan.tensor,
            pp_size=plan.pipeline,
            v_stages=plan.virtual,
            microbatch_count=plan.micro_batches,
            zero_stage=plan.stage,
            activation_recomputation=plan.recompute == "full",
            overlap_comm=plan.overlap,
            seq_len=shape.sequence,
        )
    except ValueError:
        return float("nan")
    return found.step_latency_total.to("second").magnitude
