"""Lesson 08's roofline of communication.

A row has `axis` (FSDP, tensor, pipeline), `name`, `ratio` (computing over sending, by formula),
`reached` (share of what a rank computes alone), `source`, and `run`, where it was measured here.
"""

from bootcamp.costs import hardware, model_shapes, overlap, sharding, traffic
from bootcamp.costs.published import table as published_table
from bootcamp.experiments import claims
from bootcamp.launcher import simulated_hosts
from bootcamp.launcher.launch import launch
from bootcamp.table import Table
from bootcamp_lessons import sharded

ROOFS = {"FSDP": overlap.hidden, "tensor": overlap.in_turn, "pipeline": overlap.in_turn}
LINK = "50mbit"
SAMPLES = (4, 16, 64)  # of a rank
STEPS = 4
VTRAIN = ("batch", "sequence_length", "layers", "hidden", "gpus")
VTRAIN_VOCABULARY = 50257


def published() -> Table:
    """Rows of published tables of which GPU, link and sizes are known. F: the best product."""
    rows = [*_mosaicml(), *_others(), *_vtrain()]
    return Table(
        rows, "Published runs: FLOP/s as a share of those of the GPU's best matrix product"
    )


def _mosaicml() -> list[dict]:
    """FSDP of MPT models, where all is in one host or the network is known."""
    rows = []
    for row in published_table("mosaicml_mpt"):
        hosts = int(row["gpus"]) > 8
        network = "1600 Gbps" in row["published_section"] and 200e9
        if row["published_sharding"] != "FULL_SHARD" or (hosts and not network):
            continue
        gpu = hardware.gpu(row["gpu"])
        tokens = int(row["micro_batch"]) * int(row["sequence_length"])
        rate = min(gpu.bus, network) if hosts else gpu.bus
        how = {"reduced": 2 if row["published_mp_mode"] == "PURE" else 4}
        how["recompute"] = row["recompute"] == "full"
        ratio = overlap.fsdp(tokens, gpu.peak * gpu.reached, rate, **how)
        name = f"MPT {row['published_model']}, {row['gpus']} {gpu.name}"
        reached = float(row["published_hfu_percent"]) / 100 / gpu.reached
        rows.append(_row("FSDP", name, ratio, reached, row["source"].split()[0]))
    return rows


def _others() -> list[dict]:
    """FSDP between hosts on slower links; ZeRO-3 on many GPUs."""
    a100 = hardware.gpu("A100-80GB")
    best = a100.peak * a100.reached
    (ibm,) = (row for row in published_table("ibm_fsdp_hsdp") if row["row_id"] == "ibm_70B_A100")
    tokens = int(ibm["micro_batch"]) * int(ibm["sequence_length"])
    ratio = overlap.fsdp(tokens, best, 400e9 / 8, recompute=True)
    reached = float(ibm["published_hfu_percent"]) / 100 / a100.reached
    source = ibm["source"].partition(" (")[0]
    rows = [_row("FSDP", "Llama 2 70B, 128 A100", ratio, reached, source)]
    (zero,) = (row for row in published_table("ptdp_table2_zero3") if row["method"] == "ZeRO-3")
    tokens = int(zero["micro_batch"]) * int(zero["sequence_length"])
    ratio = overlap.fsdp(tokens, best, 8 * 25e9, recompute=True)  # Selene: 200 Gbit/s for each GPU
    reached = 1e12 * float(zero["published_tflops_per_gpu"]) / best
    return [*rows, _row("FSDP", "GPT 175B, 768 A100", ratio, reached, zero["source"])]


def _vtrain() -> list[dict]:
    """Tensor and pipeline parallelism of Megatron-DeepSpeed, all computed twice (recomputed)."""
    a100 = hardware.gpu("A100-80GB")
    best, rows = a100.peak * a100.reached, []
    for row in published_table("vtrain_single") + published_table("vtrain_multi"):
        batch, text, layers, width, gpus = (int(row[name]) for name in VTRAIN)
        split = [int(row[axis]) for axis in ("tensor", "data", "pipeline")]
        done = 96 * batch * text * layers * width**2
        done *= 1 + text / (6 * width) + VTRAIN_VOCABULARY / (16 * layers * width)
        reached = done / (float(row["published_milliseconds"]) / 1e3) / gpus / best
        name = f"GPT, width {width}, {split[0]} x {split[1]} x {split[2]}"
        if split[2] > 1:
            micro = batch // split[1] // int(row["micro_batch"])
            ratio = overlap.pipeline(split[2], micro)
            rows.append(_row("pipeline", name, ratio, reached, "vTrain, arXiv:2312.12391"))
        elif split[0] > 1:
            ratio = overlap.tensor(width, split[0], best, 150e9, recompute=True)
            rows.append(_row("tensor", name, ratio, reached, "vTrain, arXiv:2312.12391"))
    return rows


def _row(axis: str, name: str, ratio: float, reached: float, source: str, run=None) -> dict:
    roof = ROOFS[axis](ratio)
    row = {"axis": axis, "name": name, "ratio": ratio, "roof": roof, "reached": reached}
    return row | {"source": source, "run": run}


def measured() -> Table:
    """Measure two ranks on two hosts with a slow link, if possible, and a pipeline on one.

    On CPU ranks nothing is sent while they compute, so the roof is that of `in_turn`.
    """
    same = {"device": "cpu", "steps": STEPS, "quiet": True}
    link = {"hosts": 2, "link": LINK}
    rate, rows = 1e6 / 8 * float(LINK.removesuffix("mbit")), []
    alone = {n: launch("gpu", 1, global_batch=n, **same) for n in SAMPLES}
    sent = sharded.sends("fsdp", "gpt", "tiny", 2)
    for samples, one in alone.items() if not simulated_hosts.why_not() else ():
        run = launch("fsdp", 2, global_batch=2 * samples, **same, **link)
        seconds = one.seconds_per_step
        ratio = seconds / (sent / rate)
        reached = seconds / run.seconds_per_step
        rows.append(_row("FSDP", f"{samples} samples", ratio, reached, "here", run))
    most = SAMPLES[1]
    half = alone[most].seconds_per_step / 2
    if not simulated_hosts.why_not():
        run = launch("tp", 2, global_batch=most, **same, **link)
        gpt = model_shapes.ours()
        sent = sharding.bytes_of_calls(traffic.tensor_calls(gpt, most), 2, sharding.GLOO)
        ratio, name = half / (sent / rate), f"width {gpt.hidden}"
        rows.append(_row("tensor", name, ratio, half / run.seconds_per_step, "here", run))
    most = SAMPLES[2]
    half = alone[most].seconds_per_step / 2
    for parts in (1, 2, 8):
        run = launch("pp", 2, global_batch=most, micro_batches=parts, schedule="gpipe", **same)
        name, ratio = f"{parts} micro-batches", overlap.pipeline(2, parts)
        rows.append(_row("pipeline", name, ratio, half / run.seconds_per_step, "here", run))
    for row in rows:
        row["roof"] = overlap.in_turn(row["ratio"])
    return Table(rows, f"Measured here; FSDP and tensor: two hosts and a link of {LINK}")


def more_tokens() -> claims.Claim:
    """The claim that more samples on a rank hide the link better; untested without hosts."""
    name = "communication_more_tokens_on_a_rank"
    few, *_, many = SAMPLES
    says = f"Over a link of {LINK}, FSDP trains more samples a second with {many} on a rank than "
    says += f"with {few}."
    if why_not := simulated_hosts.why_not():
        return claims.untested(name, says, why_not)
    how = {"device": "cpu", "steps": STEPS, "hosts": 2, "link": LINK}
    trials = (claims.trial("fsdp", 2, global_batch=2 * samples, **how) for samples in (many, few))
    return claims.faster(name, says, *trials, supported="The bytes of a step stay the same.")
