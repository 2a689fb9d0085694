"""Lessons 07c and 13b: programs from elsewhere as variants of scripts, and their tables."""

import json
import re
from pathlib import Path

from bootcamp.costs import sharding, traffic
from bootcamp.costs.model_shapes import course_model, layers
from bootcamp.launcher.launch import Options, available, launch
from bootcamp.paths import REFERENCE, SRC
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons import excerpts, sharding_tables

BUILD_LINE = "model = models.build(args).to(device)"
# ResNet-50 in float64: BatchNorm magnifies rounding. The fewest steps whose update has a momentum.
RESNET = {"model": "resnet50", "dtype": "float64", "steps": 2, "global_batch": 8}
LIGHTNING = REFERENCE / "13b_known_programs" / "lightning.json"
PLANS = LIGHTNING.with_name("configurations.json")
# Lightning's strategy -> (its idea, this course's bare script or program)
STRATEGIES = {
    "ddp": ("starts its own command line again for each rank", "_train_ddp.py"),
    "ddp_spawn": ("spawns ranks, which import the program again", "snippets/start_with_spawn.py"),
    "ddp_fork": ("forks ranks: what is loaded stays loaded", "bootcamp/launcher/forkserver.py"),
    "ddp_notebook": ("ddp_fork by another name, for notebooks", "bootcamp/launcher/forkserver.py"),
    "fsdp": ("FullyShardedDataParallel, version 1", "_train_fsdp.py"),
    **{f"deepspeed_stage_{stage}": (f"ZeRO-{stage}", "_train_zero.py") for stage in (1, 2, 3)},
    "dp": ("nn.DataParallel; removed in 2.0", "_train_dp.py"),
    "horovod": ("Horovod, learning rate times ranks; removed in 2.0", "_train_horovod.py"),
    "ddp, num_nodes=2": ("waits for the ranks of a second host", "_train_lightning.py"),
}
BUCKET_LINE = '"reduce_bucket_size": 2**20,'
BUCKETS = ('"allgather_bucket_size": 2**20,', '"overlap_comm": False,')
LOOK = """first = checkpoint.load(context, model, optimizer)
sizes = lambda: [b.nbytes for each in optimizer.ipg_buckets.values() for b in each.buffer]
look = lambda _: print('{"reserved":', sum(sizes()), "}")
next(model.parameters()).register_post_accumulate_grad_hook(look)"""
SAVING = {
    "import deepspeed  # noqa: E402": """\
import deepspeed
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint""",
    "run.finish()": """\
folder = context.run_dir / "deepspeed"
model.save_checkpoint(folder)  # every rank
with deepspeed.zero.GatheredParameters(list(model.parameters())):
    held = {name: value.detach().clone() for name, value in model.module.named_parameters()}
if rank == 0:
    found = get_fp32_state_dict_from_zero_checkpoint(str(folder))
    apart = max((found.pop(name) - held[name]).abs().max().item() for name in held)
    print(f'{{"apart": {apart}, "other names": {len(found)}}}')
run.finish()""",
}


def sent_table(runs: dict[str, Run]) -> Table:
    """Table what a rank sends in a step, counted and by formula, for striped, tp and ddp."""
    rows = []
    for name, run in runs.items():
        between = layers(run.config["model"], run.config["size"])[1:-1]
        numbers = sum(sum(layer.numbers) for layer in between)
        tokens, sent = run.steps[0].tokens, run.ranks[0].sent_bytes_per_step
        row = {"run": name, "layers' parameters": numbers, "tokens": tokens}
        row |= {"kB by formula": predict_sent_bytes(run) / 1e3, "kB counted": sent and sent / 1e3}
        rows.append(row | {"bytes per 10⁶": 1e6 * predict_sent_bytes(run) / numbers / tokens})
    return Table(rows, "Sent by a rank in a step; last: per 10⁶ (parameters × tokens)")


def predict_sent_bytes(run: Run) -> float:
    """Return the bytes that a rank of striped, tp or ddp sends in a step with gloo, in float32."""
    if run.config["strategy"].startswith("ddp"):
        return run.predicted_sent_bytes_per_step
    model, batch = course_model(run.config["model"], run.config["size"]), run.config["global_batch"]
    if run.config["strategy"].startswith("tp"):
        calls = traffic.tensor_calls(model, batch)
    else:
        nbytes = 4 * batch * model.sequence * model.hidden  # of a layer's input, or output
        calls = {(kind, nbytes): model.layers for kind in ("all-gather", "all-reduce")}
    return sharding.bytes_of_calls(calls, run.world, sharding.GLOO)


def cut_along_time() -> Path:
    """Write DataParallel by hand that cuts dimension 1, which is time in the course's batches."""
    cut, joined = "shards = inputs.chunk({})", "loss = models.loss(torch.cat({}), targets)"
    pairs = (cut, "args.replicas"), (joined, "outputs")
    changes = {line.format(what): line.format(f"{what}, dim=1") for line, what in pairs}
    return variant("dp_by_hand", "dp_along_time", changes)


def freeze_batch_norm(script: str) -> Path:
    """Write a script whose BatchNorm layers use their running statistics unchanged."""
    built = BUILD_LINE.removesuffix(".to(device)") if script == "cpu" else BUILD_LINE
    return variant(script, f"{script}_frozen", {built: f"{built}.eval()"})


def add_sync_batch_norm(script: str = "fsdp") -> Path:
    """Add the SyncBatchNorm of _train_ddp_sync_batchnorm to a script."""
    text = (SRC / "_train_ddp_sync_batchnorm.py").read_text()
    of_class = text[text.index("class SyncBatchNorm") : text.index("args, context")]
    swap = text[text.index("for module in model") : text.index("model = Distributed")]
    imported, flags = "import torch.distributed as dist", "args, context = config.parse("
    flags += "own_flags=flags.SHARDING)"
    changes = {
        imported: f"{imported}\nfrom torch.distributed.nn.functional import all_reduce",
        flags: of_class + flags,
        "model = models.build(args)": f"model = models.build(args)\n{swap.rstrip()}",
    }
    return variant(script, f"{script}_sync_batchnorm", changes)


def print_settings(**changed) -> dict[str, str]:
    """Return the changes that give _train_zero.py the sizes and keys that tutorials print."""
    text = excerpts.piece(excerpts.SNIPPETS / "deepspeed_as_printed.py", '"allgather_p', "    },")
    text += "".join(f'\n"{name}": {value},' for name, value in changed.items())
    return {**dict.fromkeys(BUCKETS, ""), BUCKET_LINE: text}


def try_settings(changed: dict, **flags) -> dict:
    """Return a row: what two ranks with these settings call, send and reserve in a step."""
    changes = {**print_settings(**changed), LOOK.partition("\n")[0]: LOOK}
    run = launch(sharding_tables.make_counting_script("zero", changes, "zero_settings"), 2, **flags)
    calls = {call: n for call, n in run.collective_counts().items() if call[1] > 8}  # not a flag
    row = {"changed": ", ".join(f'"{name}": {value}' for name, value in changed.items()) or "-"}
    names = "all-reduce", "reduce", "all-gather"
    row |= {name: sum(n for (kind, _), n in calls.items() if kind == name) for name in names}
    row["largest reduced"] = max(size for kind, size in calls if "reduce" in kind)
    row["sent (NCCL)"] = sharding.bytes_of_calls(calls, 2, {**sharding.RING, "reduce": 1})
    row["sent (counted)"] = run.ranks[0].sent_bytes_per_step
    return row | {"buckets": excerpts.parse_printed(run)[0]["reserved"]}


def strategies(here: bool = False) -> Table:
    """Table Lightning's strategies as recorded; here: run them where Lightning is installed.

    All but ddp_spawn. Of the two optimizers, the one whose losses are further from one process's.
    """
    found, rows, measured = json.loads(LIGHTNING.read_text()), [], []
    if here and available("lightning", fetch=True):
        script, options = "lightning_strategies.py", Options(framework="lightning")
        run = launch(excerpts.SNIPPETS / script, 1, quiet=True, options=options)
        measured = sorted(excerpts.parse_printed(run), key=lambda row: row.get("loss_apart", 0.0))
    for name, row in {each["name"]: each for each in found["rows"] + measured}.items():
        result = re.split(r"\. (?=[A-Z])", row.get("refusal", ""))[0]
        result = result or f"{row['processes']} processes, losses {row['loss_apart']:.1g} apart"
        idea, script = STRATEGIES[name]
        rows.append({"strategy": name, "idea": idea, "here": script, "on two CPUs": result})
    where = "run here; ddp_spawn " if measured else ""
    where += f"recorded on {found['machine']['cpu']}, Lightning {found['lightning']}"
    return Table(rows, f"Trainer(strategy=..., accelerator='cpu'): {where}")


def read_plan(**flags) -> dict[str, dict]:
    """Return {tool: what one_plan.py says of it}; as recorded, for tools that are not here."""
    run = launch(excerpts.SNIPPETS / "one_plan.py", 1, device="cpu", quiet=True, **flags)
    found = {row["tool"]: row | {"where": "here"} for row in excerpts.parse_printed(run)}
    known = {row["tool"]: {**row, "where": "recorded"} for row in json.loads(PLANS.read_text())}
    return known | {tool: row for tool, row in found.items() if "version" in row}


def write_plan(lines: str) -> Path:
    """Write the script of FSDP and tensors, with the lines of a plan in place of its own."""
    mesh, blocks = lines.split("\n\n")
    changes = {
        "mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)": mesh
    }
    changes |= {f'fully_shard({each}, mesh=mesh["data"])': "" for each in ("block", "model")}
    return variant("fsdp_tp", "one_plan", {**changes, "for block in model[1:-1]:": blocks})
