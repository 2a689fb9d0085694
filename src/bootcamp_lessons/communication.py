"""Lesson 08d's roofline of communication: published runs, and some measured here.

A row has `axis` (FSDP, tensor, pipeline), `name`, `ratio` (computing over sending, by formula),
`reached` (share of what a rank computes alone), `source`, and `run`, where it was measured here.
"""

from bootcamp.costs import hardware, overlap, planner
from bootcamp.costs.pipeline_schedules import bubble_by_formula
from bootcamp.costs.published import table as published_table
from bootcamp.experiments import claims
from bootcamp.launcher import simulated_hosts
from bootcamp.launcher.launch import launch
from bootcamp.table import Table
from bootcamp_lessons import sharding_tables

LINK = "100mbit"
SAMPLES = (4, 16, 32)  # of a rank
HOW = {"device": "cpu", "steps": 3, "quiet": True}
LINKED = {"hosts": 2, "link": LINK}


def published() -> Table:
    """List published runs of which GPU, link and sizes are known."""
    caption = "Published runs: FLOP/s as a share of those of the GPU's best matrix product"
    return Table([*_mosaicml(), *_others(), *_vtrain()], caption)


def _mosaicml() -> list[dict]:
    """FSDP of MPT models, where all is in one host or the network is known."""
    rows = []
    for row in published_table("mosaicml_mpt"):
        hosts = int(row["gpus"]) > 8
        network = "1600 Gbps" in row["published_section"] and 200e9
        if row["published_sharding"] != "FULL_SHARD" or (hosts and not network):
            continue
        gpu = hardware.gpu(row["gpu"])
        name = f"MPT {row['published_model']}, {row['gpus']} {gpu.name}"
        how = {"recompute": row["recompute"] == "full"}
        how["reduced"] = 2 if row["published_mp_mode"] == "PURE" else 4
        reached = float(row["published_hfu_percent"]) / 100 / gpu.reached
        rate = min(gpu.bus, network) if hosts else gpu.bus
        rows.append(_fsdp(row, name, gpu, rate, reached, row["source"].split()[0], **how))
    return rows


def _others() -> list[dict]:
    """FSDP between hosts on slower links; ZeRO-3 on many GPUs of Selene, each with 200 Gbit/s."""
    a100, how = hardware.gpu("A100-80GB"), {"recompute": True}
    (ibm,) = (row for row in published_table("ibm_fsdp_hsdp") if row["row_id"] == "ibm_70B_A100")
    (zero,) = (row for row in published_table("ptdp_table2_zero3") if row["method"] == "ZeRO-3")
    of_ibm = float(ibm["published_hfu_percent"]) / 100 / a100.reached
    of_zero = 1e12 * float(zero["published_tflops_per_gpu"]) / (a100.peak * a100.reached)
    source = ibm["source"].partition(" (")[0]
    return [
        _fsdp(ibm, "Llama 2 70B, 128 A100", a100, 400e9 / 8, of_ibm, source, **how),
        _fsdp(zero, "GPT 175B, 768 A100", a100, 8 * 25e9, of_zero, zero["source"], **how),
    ]


def _fsdp(row, name: str, gpu, rate: float, reached: float, source: str, **how) -> dict:
    tokens = int(row["micro_batch"]) * int(row["sequence_length"])
    ratio = overlap.fsdp_ratio(tokens, gpu.peak * gpu.reached, rate, **how)
    return _row("FSDP", name, ratio, reached, source)


def _vtrain() -> list[dict]:
    """Tensor and pipeline parallelism of Megatron-DeepSpeed, all computed twice (recomputed)."""
    rows, source = [], "vTrain, arXiv:2312.12391"
    for row in published_table("vtrain_single") + published_table("vtrain_multi"):
        case = planner.read(row)
        model, plan, gpu = case.shape, case.plan, case.cluster.gpu
        of_token = model.flops_of_token() + model.recomputed_of_token(plan.recompute)
        flops = plan.batch * model.sequence * of_token / plan.ranks
        best, seconds = gpu.peak * gpu.reached, float(row["published_milliseconds"]) / 1e3
        reached = flops / seconds / best
        name = f"GPT, width {model.hidden}, {plan.tensor} x {plan.data} x {plan.pipeline}"
        if plan.pipeline > 1:
            ratio = 1 / bubble_by_formula("1f1b", plan.pipeline, plan.micro_batches)
            rows.append(_row("pipeline", name, ratio, reached, source))
        elif plan.tensor > 1:
            ratio = overlap.tensor_ratio(model.hidden, plan.tensor, best, 150e9, recompute=True)
            rows.append(_row("tensor", name, ratio, reached, source))
    return rows


def _row(axis: str, name: str, ratio: float, reached: float, source: str) -> dict:
    row = {"axis": axis, "name": name, "ratio": ratio, "roof": roof(axis, ratio)}
    return row | {"reached": reached, "source": source, "run": None}


def roof(axis: str, ratio: float) -> float:
    """Return the most that is reached: FSDP sends while it computes, the others in turn."""
    share = overlap.share_if_at_once if axis == "FSDP" else overlap.share_if_in_turn
    return share(ratio)


def measured() -> Table:
    """Measure FSDP over a slow link, if possible, and a pipeline; CPU ranks send in turn."""
    rate, rows = 1e6 / 8 * float(LINK.removesuffix("mbit")), []
    alone = {n: launch("gpu", 1, global_batch=n, **HOW).seconds_per_step for n in SAMPLES}
    most = max(SAMPLES)

    def add(axis: str, name: str, ratio: float, seconds: float, run) -> None:
        row = _row(axis, name, ratio, seconds / run.seconds_per_step, "here")
        rows.append(row | {"roof": overlap.share_if_in_turn(ratio), "run": run})

    if not simulated_hosts.why_not():
        sent = sharding_tables.calculate_sent_bytes("fsdp", "gpt", "tiny", 2)
        for samples, seconds in alone.items():
            run = launch("fsdp", 2, global_batch=2 * samples, **HOW, **LINKED)
            add("FSDP", f"{samples} samples", seconds / (sent / rate), seconds, run)
    for parts in (1, 2, 8):
        run = launch("pp", 2, global_batch=most, micro_batches=parts, schedule="gpipe", **HOW)
        ratio = 1 / bubble_by_formula("gpipe", 2, parts)
        add("pipeline", f"{parts} micro-batch{'es' * (parts > 1)}", ratio, alone[most] / 2, run)
    return Table(rows, f"Measured here; FSDP: two hosts and a link of {LINK}")


def more_tokens() -> claims.Claim:
    """Test the claim that more samples on a rank hide the link better, if hosts can be made."""
    name = "communication_more_tokens_on_a_rank"
    few, many, _ = SAMPLES
    says = f"Over {LINK}, FSDP trains more samples/s with {many} on a rank than with {few}."
    if why_not := simulated_hosts.why_not():
        return claims.untested(name, says, why_not)
    trials = (claims.trial("fsdp", 2, global_batch=2 * n, **HOW, **LINKED) for n in (many, few))
    return claims.faster(name, says, *trials, supported="The bytes of a step stay the same.")
