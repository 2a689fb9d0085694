"""What other planners say of the same rows, for tools/accuracy.py, where they are installed.

mlsysim (Harvard, Machine Learning Systems; pip install mlsysim) gives a step of 3D parallelism by
formula, with an efficiency of one half unless it is told another. llm-analysis (Cheng Li; pip
install llm-analysis, and fire) divides FLOPs by the peak and an efficiency, for which it advises
one half; it adds neither bubble nor communication.
"""

import importlib.metadata
import logging
import math
from functools import cache

from bootcamp.costs.planner import Workload


@cache
def _fleet(name: str):
    """mlsysim's cluster with GPUs nearest to ours."""
    from mlsysim import Systems

    kinds = {"A100": "Training_1K_A100", "B200": "Training_1K_B200"}
    return getattr(Systems.Clusters, kinds.get(name.split()[0], "Training_512_H100"))


def mlsysim_seconds(case: Workload) -> float:
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
    flop = Models.Language.GPT3.inference_flops.units
    sizes["inference_flops"] = 2 * shape.matrix_parameters * flop
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


def llm_analysis_seconds(case: Workload) -> float:
    """Seconds of a step by llm-analysis; nan for what it cannot describe."""
    logging.disable(logging.WARNING)  # it logs each part of each answer
    from llm_analysis import analysis, config

    shape, plan, gpu = case.shape, case.plan, case.cluster.gpu
    device = config.get_gpu_config_by_name("a100-sxm-80gb")
    device.peak_fp16_TFLOPS, device.mem_per_GPU_in_GB = gpu.peak / 1e12, 1e6
    ranks = config.ParallelismConfig(plan.tensor, plan.pipeline, plan.data * plan.context)
    recompute = {"full": "FULL", "selective": "SELECTIVE"}.get(plan.recompute, "NONE")
    try:
        model = config.ModelConfig(
            name="",
            num_layers=shape.layers,
            n_head=shape.heads,
            hidden_dim=shape.hidden,
            vocab_size=shape.vocabulary,
            max_seq_len=shape.sequence,
            num_key_value_heads=shape.key_heads,
            ffn_embed_dim=shape.inner,
            moe_num_experts=shape.experts,
            moe_top_k=shape.chosen,
        )
        found = analysis.LLMAnalysis(
            model, device, parallelism_config=ranks, flops_efficiency=0.5
        ).training(
            batch_size_per_gpu=plan.micro_batch,
            gradient_accumulation_steps=plan.micro_batches,
            seq_len=shape.sequence,
            activation_recomputation=getattr(analysis.ActivationRecomputation, recompute),
            ds_zero=analysis.DSZeRO(plan.stage),
            mlp_gated_linear_units=shape.gated,
        )
    except (AssertionError, ValueError, ZeroDivisionError):
        return math.nan
    return found["latency_per_iter"] / plan.context


RIVALS = {"mlsysim": mlsysim_seconds, "llm-analysis": llm_analysis_seconds}
WITHOUT = {name: f"not installed: pip install {name}" for name in RIVALS}


def versions() -> dict[str, str | None]:
    """{rival: its version}, None where it is not installed."""
    found = {}
    for name in RIVALS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
