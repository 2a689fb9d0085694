"""python src/snippets/one_plan.py --data 8 --tensor 4

Write one plan as five tools want to be told, and let each tool that is installed read it, with its
parser and with its checks before there is a model. The same with other axes, where the tool has
words for them. Then make each name wrong in turn (its last letter left out), and each value (7 for
a number, a word without its last letter). Prints a line of JSON for each tool.

Recorded with Python 3.12, `--tool "torchtitan 0.2"` in an environment of its own: torchtitan 0.2.2
(installed with --no-deps) and 0.3.0, which bring much more than their parsers; megatron-core
0.19.2, which has Megatron-LM's arguments (0.16.1 has not).
"""

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.utils.checkpoint

from bootcamp.costs.pipeline_schedules import CHUNKS
from bootcamp.costs.plans import Plan

EXAMPLE = Plan(data=8, shard=8, tensor=4, stage=3, micro_batch=2, batch=64, recompute="full")
FIELDS = ("data", "tensor", "context", "pipeline", "micro_batch", "batch", "recompute")
FLOATS = {"bf16": "bfloat16", "fp32": "float32"}
SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}  # torch's
MODEL = {"num-layers": 8, "hidden-size": 512, "num-attention-heads": 8, "lr": 1e-3}
MODEL |= {"seq-length": 1024, "max-position-embeddings": 1024}


def vary(plan: Plan) -> dict[str, Plan]:
    """Return plans of as many ranks with an axis more, or with another one."""
    if plan.data % 2 or plan.context > 1 or plan.pipeline > 1:
        return {}
    half = replace(plan, data=plan.data // 2, shard=plan.data // 2, pipeline=2)
    plans = {"2 replicas": replace(plan, shard=half.data)}
    plans["context"] = replace(plan, context=plan.tensor, tensor=1)
    return plans | {n: replace(half, schedule=n, virtual=CHUNKS[n]) for n in SCHEDULES}


def has_no(what: str, wanted: bool) -> None:
    if wanted:
        raise LookupError(f"this tool has no {what}")


def as_pytorch(plan: Plan) -> str:
    """Return lines for _train_fsdp_tp.py: its mesh, an empty line, what happens to each block.

    With a pipeline, model has this rank's blocks, and parts are all stages.
    """
    replicas, shards = plan.data // plan.shard, plan.shard * plan.context
    axes = {"pipeline": plan.pipeline, "replicate": replicas}
    axes = {name: size for name, size in axes.items() if size > 1}
    axes |= {"data": shards, "tensor": plan.tensor}
    lines = [
        "from functools import partial",
        "from torch.distributed.fsdp import MixedPrecisionPolicy",
        f"mesh = {mesh_of(axes)}",
        "",
    ]
    dtypes = f"param_dtype=torch.{FLOATS[plan.precision]}, reduce_dtype=torch.float32"
    lines += [f"policy = MixedPrecisionPolicy({dtypes})", "for block in model[1:-1]:"]
    if plan.recompute == "full":
        again = "torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False"
        lines += [f"    block.forward = partial({again})"]
    over = 'mesh["replicate", "data"]' if "replicate" in axes else 'mesh["data"]'
    shard = f"mesh={over}, reshard_after_forward={plan.stage == 3}, mp_policy=policy)"
    lines += [f"    fully_shard(block, {shard}", f"fully_shard(model, {shard}"]
    if plan.context > 1:
        lines += ["from torch.distributed.tensor.experimental import context_parallel"]
        axes = {"pipeline": plan.pipeline, "rows": plan.data, "context": plan.context}
        lines += [f"texts = {mesh_of({**axes, 'tensor': plan.tensor})}"]
        cut = 'texts["context"], buffers=[inputs, targets], buffer_seq_dims=[1, 1]'
        lines += [f"cut = context_parallel({cut})  # with cut: a step"]
    if plan.pipeline > 1:
        schedule = f"Schedule{SCHEDULES[plan.schedule]}"
        mine = {"1f1b": "[rank]", "interleaved": f"[rank, {plan.pipeline} + rank]"}
        mine["zb-v"] = f"[rank, {2 * plan.pipeline - 1} - rank]"
        lines += [f"from torch.distributed.pipelining import PipelineStage, {schedule}"]
        lines += ['rank, group = mesh["pipeline"].get_local_rank(), mesh["pipeline"].get_group()']
        stage = f"parts[k], k, num_stages={plan.pipeline * plan.virtual}, device=device"
        lines += [f"stages = [PipelineStage({stage}, group=group) for k in {mine[plan.schedule]}]"]
        each = "stages" if plan.virtual > 1 else "stages[0]"
        lines += [f"schedule = {schedule}({each}, n_microbatches={plan.micro_batches})"]
    return "\n".join(lines)


def mesh_of(axes: dict[str, int]) -> str:
    names = json.dumps([*axes])[1:-1]
    shape = f"mesh_shape={tuple(axes.values())}, mesh_dim_names=({names})"
    return f"init_device_mesh(device.type, {shape})"


def titan_settings(plan: Plan) -> dict:
    reshard = "always" if plan.stage == 3 else "never"
    together = plan.micro_batches if plan.pipeline > 1 else 1
    axes = {
        "data_parallel_replicate_degree": plan.data // plan.shard,
        "context_parallel_degree": plan.context,
        "pipeline_parallel_degree": plan.pipeline,
    }
    axes = {name: size for name, size in axes.items() if size > 1}
    if plan.pipeline > 1:
        axes["pipeline_parallel_microbatch_size"] = plan.micro_batch
        axes["pipeline_parallel_schedule"] = SCHEDULES[plan.schedule]
    return {
        "training": {
            "local_batch_size": plan.micro_batch * together,
            "global_batch_size": plan.batch,
            "mixed_precision_param": FLOATS[plan.precision],
        },
        "parallelism": {
            "data_parallel_shard_degree": plan.shard,
            "fsdp_reshard_after_forward": reshard,
            "tensor_parallel_degree": plan.tensor,
            **axes,
        },
        "activation_checkpoint": {"mode": plan.recompute},
    }


def as_toml(plan: Plan) -> str:
    lines = []
    for section, values in titan_settings(plan).items():
        lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    return "\n".join(lines)


def as_titan_flags(plan: Plan) -> str:
    """Return what 0.3 takes. Recomputation is chosen in Python there, where the model is."""
    sections = [(s, each) for s, each in titan_settings(plan).items() if "checkpoint" not in s]
    flags = [f"--{s}.{k} {v}" for s, values in sections for k, v in values.items()]
    return "\n".join(["--training.disable_cuda_graphs"] * (plan.pipeline > 1) + flags)


def as_megatron(plan: Plan) -> str:
    has_no(f"{plan.schedule} schedule", plan.schedule not in ("1f1b", "interleaved"))
    flags = [f"--tensor-model-parallel-size {plan.tensor}"]
    flags += [f"--micro-batch-size {plan.micro_batch}", f"--global-batch-size {plan.batch}"]
    kind = {2: "optim_grads", 3: "optim_grads_params"}[plan.stage]
    flags += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {kind}"]
    flags += ["--use-distributed-optimizer", "--ckpt-format fsdp_dtensor"]
    axes = {
        "num-distributed-optimizer-instances": plan.data // plan.shard,
        "context-parallel-size": plan.context,
        "pipeline-model-parallel-size": plan.pipeline,
        "num-virtual-stages-per-pipeline-rank": plan.virtual,
    }
    flags += [f"--{name} {size}" for name, size in axes.items() if size > 1]
    if plan.recompute == "full":
        flags += ["--recompute-granularity full", "--recompute-method uniform"]
        flags += ["--recompute-num-layers 1"]
    return "\n".join(flags + ["--bf16"] * (plan.precision == "bf16"))


def as_deepspeed(plan: Plan) -> str:
    """Without the batch: 0.19.8 takes all ranks for data there, those of the tensor axis too."""
    has_no("pipeline in its JSON, but PipelineModule in Python", plan.pipeline > 1)
    has_no("replicas of shards: MiCS was removed", plan.shard < plan.data)
    has_no("context ranks beside tensor ranks", plan.context > 1 < plan.tensor)
    settings = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
        "zero_optimization": {"stage": plan.stage},
    }
    axes = {"tensor_parallel": {"autotp_size": plan.tensor}}
    if plan.context > 1:
        axes = {"data_parallel_size": plan.data, "sequence_parallel_size": plan.context}
    return json.dumps(settings | axes | {"bf16": {"enabled": plan.precision == "bf16"}}, indent=1)


def as_accelerate(plan: Plan) -> str:
    has_no("pipeline beside FSDP", plan.pipeline > 1)
    lines = ["distributed_type: FSDP", f"num_processes: {plan.ranks}", "fsdp_config:"]
    lines += ["  fsdp_version: 2", f"  fsdp_reshard_after_forward: {plan.stage == 3}"]
    lines += [f"  fsdp_activation_checkpointing: {plan.recompute == 'full'}", "parallelism_config:"]
    lines += [f"  parallelism_config_dp_shard_size: {plan.shard}"]
    lines += [f"  parallelism_config_tp_size: {plan.tensor}"]
    axes = {"dp_replicate": plan.data // plan.shard, "cp": plan.context}
    lines += [f"  parallelism_config_{n}_size: {size}" for n, size in axes.items() if size > 1]
    return "\n".join([*lines, f"mixed_precision: {plan.precision.replace('fp32', 'no')}"])


def read_pytorch(text: str, plan: Plan) -> dict:
    """Run the lines on rank 0 of imagined ranks, with a small model, and look at what it became."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    names = {"device": torch.device("cpu"), "model": model, "torch": torch, "parts": [model] * 9}
    names |= {what: torch.zeros(2, 1024) for what in ("inputs", "targets")}
    names |= {"init_device_mesh": init_device_mesh, "fully_shard": fully_shard}
    exec(text, names)
    block, shards = model[1], model[1].weight.device_mesh
    with names.get("cut", contextlib.nullcontext()):
        context = 1024 // names["inputs"].shape[1]
    dtype = model(torch.zeros(4, 64)).dtype
    again = getattr(block.forward, "func", None) is torch.utils.checkpoint.checkpoint
    found = {
        "data": shards.size() // context,
        "shard": shards.size(-1) // context,
        "tensor": names["mesh"]["tensor"].size(),
        "context": context,
        "stage": 3 if isinstance(block.weight, DTensor) else 2,  # still sharded after its forward?
        "precision": precision(dtype),
        "recompute": "full" if again else "none",
    }
    if "schedule" in names:
        schedule, stage = names["schedule"], names["stages"][0]
        found |= {"schedule": schedule_of(type(schedule).__name__.removeprefix("Schedule"))}
        found |= {"pipeline": stage.group_size, "virtual": stage.num_stages // stage.group_size}
        found["micro_batches"] = schedule._n_microbatches  # which has no public name
    return found


def precision(dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return {v: k for k, v in FLOATS.items()}.get(name, name)


def schedule_of(name: str) -> str:
    return {v: k for k, v in SCHEDULES.items()}.get(name, name)


def understood_by_titan(config, plan: Plan, **more) -> dict:
    from torchtitan.distributed import ParallelDims

    train, axes = config.training, config.parallelism
    reshard = axes.fsdp_reshard_after_forward
    ranks = {
        "dp_replicate": axes.data_parallel_replicate_degree,
        "dp_shard": axes.data_parallel_shard_degree,
        "cp": axes.context_parallel_degree,
        "tp": axes.tensor_parallel_degree,
        "pp": axes.pipeline_parallel_degree,
    }
    mesh = ParallelDims(**ranks, ep=1, world_size=plan.ranks, **more)
    pipeline = {
        "schedule": schedule_of(axes.pipeline_parallel_schedule),
        "micro_batch": axes.pipeline_parallel_microbatch_size,
        "micro_batches": train.local_batch_size // axes.pipeline_parallel_microbatch_size,
    }
    return {
        "data": mesh.dp_replicate * mesh.dp_shard,
        "shard": mesh.dp_shard,
        "tensor": mesh.tp,
        "context": mesh.cp,
        "pipeline": mesh.pp,
        "stage": {"always": 3, "never": 2}.get(reshard, reshard),
        "batch": train.global_batch_size,
        "precision": precision(train.mixed_precision_param),
    } | (pipeline if mesh.pp > 1 else {"micro_batch": train.local_batch_size})


def read_toml(text: str, plan: Plan) -> dict:
    from torchtitan.config import ConfigManager

    with file_of(text, ".toml") as name:
        config = ConfigManager().parse_args(["--job.config_file", name])
    found = understood_by_titan(config, plan, etp=1)
    return found | {"recompute": config.activation_checkpoint.mode}


def read_titan_flags(text: str, plan: Plan) -> dict:
    from torchtitan.config import ConfigManager

    start = ["--module", "llama3", "--config", "llama3_debugmodel"]
    return understood_by_titan(ConfigManager().parse_args(start + text.split()), plan)


def read_megatron(text: str, plan: Plan) -> dict:
    from megatron.training.arguments import parse_args, validate_args

    os.environ |= {"WORLD_SIZE": str(plan.ranks), "RANK": "0"}
    sys.argv[1:] = [*text.split(), *(f"--{name}={value}" for name, value in MODEL.items())]
    args = parse_args()
    h100 = SimpleNamespace(major=9)  # it asks for the GPU, and there may be none
    with patch("torch.cuda.get_device_properties", return_value=h100):
        validate_args(args)
    stages = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    sharding = args.use_megatron_fsdp and stages[args.data_parallel_sharding_strategy]
    virtual = args.virtual_pipeline_model_parallel_size or 1
    return {
        "data": args.data_parallel_size,
        "shard": args.data_parallel_size // args.num_distributed_optimizer_instances,
        "tensor": args.tensor_model_parallel_size,
        "context": args.context_parallel_size,
        "pipeline": args.pipeline_model_parallel_size,
        "virtual": virtual,
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "stage": sharding or int(args.use_distributed_optimizer),
        "micro_batch": args.micro_batch_size,
        "batch": args.global_batch_size,
        "precision": "bf16" if args.bf16 else "fp32",
        "recompute": args.recompute_granularity or "none",
    }


def read_deepspeed(text: str, plan: Plan) -> dict:
    """As deepspeed.initialize reads it, and its engine then takes all ranks by the tensor axis."""
    from deepspeed import comm, ops
    from deepspeed.runtime.config import DeepSpeedConfig

    if not comm.is_initialized():
        ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled, for minutes
        comm.init_distributed("fake", auto_mpi_discovery=False, verbose=False)
    settings, mesh = json.loads(text), None
    if "sequence_parallel_size" in settings and "data_parallel_size" in settings:
        shape = settings["data_parallel_size"], settings["sequence_parallel_size"]
        mesh = comm.initialize_mesh_device(shape, ("data_parallel", "sequence_parallel"))
    config = DeepSpeedConfig(settings, mesh_device=mesh)
    tensor = config.tensor_parallel_config.autotp_size or 1
    data = config.world_size // tensor
    return {
        "data": data,
        "tensor": tensor,
        "context": plan.ranks // tensor // data,
        "stage": config.zero_config.stage,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "micro_batches": config.gradient_accumulation_steps,
        "precision": "bf16" if config.bfloat16_config.enabled else "fp32",
    }


def read_accelerate(text: str, plan: Plan) -> dict:
    """As accelerate launch reads it, and a rank's Accelerator() the variables that it is handed."""
    from accelerate import DistributedType, FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    with file_of(text, ".yaml") as name:
        arguments = ["--config_file", name, "--main_process_port", "0", "train.py"]
        args, *_ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    told = prepare_multi_gpu_env(args)
    tensor = "accelerate.parallelism_config.TorchTensorParallelConfig"  # it asks for transformers
    with patch.dict(os.environ, told), patch(tensor):
        axes, fsdp = ParallelismConfig(), FullyShardedDataParallelPlugin()
    rank = {"distributed_type": DistributedType.FSDP, "is_fsdp2": fsdp.fsdp_version == 2}
    rank |= {"num_processes": args.num_processes, "multi_device": False, "is_main_process": True}
    axes._validate_accelerator(SimpleNamespace(**rank))
    return {
        "data": axes.data_parallel_size,
        "shard": axes.dp_shard_size,
        "tensor": axes.tp_size,
        "context": axes.cp_size,
        "stage": 3 if fsdp.reshard_after_forward else 2,
        "precision": told["ACCELERATE_MIXED_PRECISION"].replace("no", "fp32"),
        "recompute": "full" if fsdp.activation_checkpointing else "none",
    }


@contextlib.contextmanager
def file_of(text: str, suffix: str):
    with tempfile.NamedTemporaryFile("w", suffix=suffix) as file:
        file.write(text)
        file.flush()
        yield file.name


# tool -> (package, the plan in its words, what its parser understands, how a name and a value look)
TOOLS = {
    "PyTorch": (
        "torch",
        as_pytorch,
        read_pytorch,
        r"(\w+)=(?!=)",
        r"(\w*\d|True|False)(?=[,)])",
    ),
    "torchtitan 0.2": ("torchtitan", as_toml, read_toml, r"(?m)^\[?(\w+)(?:\]| =)", r'= "?(\w+)'),
    "torchtitan 0.3": ("torchtitan", as_titan_flags, read_titan_flags, r"--([\w.]+)", r" (\w+)"),
    "Megatron": ("megatron-core", as_megatron, read_megatron, r"--([\w-]+)", r" (\w+)"),
    "DeepSpeed": ("deepspeed", as_deepspeed, read_deepspeed, r'"(\w+)":', r": (\w+)"),
    "Accelerate": ("accelerate", as_accelerate, read_accelerate, r"(\w+):", r": (\w+)"),
}


def ask(read, text: str, plan: Plan) -> tuple[dict | None, str]:
    """Return what a parser understands, or None and how its refusal begins."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return read(text, plan), ""
    except (Exception, SystemExit) as refusal:
        words = "[Uu]nrecogni[sz]ed|Error parsing|invalid choice"
        lines = re.findall(rf"[^\n│╭╰─]*(?:{words})[^\n│╭╰─]*", said.getvalue())
        text = lines[-1] if lines else str(refusal)
        text = re.sub(r"/\S+/tmp\w+", "plan", text)  # the file, whose name changes
        return None, " ".join(f"{type(refusal).__name__}: {text}".split())[:100]


def spoil(text: str, name: str, value: str) -> Iterator[tuple[str, str, str]]:
    """Yield each name, and the beginning of each value's line, with the text where it is wrong."""
    for kind, pattern in {"names": name, "values": value}.items():
        for found in re.finditer(pattern, text):
            start, end = found.span(1)
            wrong = "7" if found[1].isdigit() else found[1][:-1]
            line = re.sub(r"\d+", "", text[:start].rpartition("\n")[2]).strip()
            what = found[1] if kind == "names" else line
            yield kind, what, text[:start] + wrong + text[end:]


def examine(tool: str, plan: Plan) -> dict:
    """Return what a tool understands, what it has no word for, and what it refuses."""
    package, as_text, read, *patterns = TOOLS[tool]
    row = {"tool": tool, "more": {}}
    tried, swallowed = {"names": {}, "values": {}}, []
    for axis, each in {"": plan, **vary(plan)}.items():
        try:
            text = as_text(each)
        except LookupError as lacking:
            row["more"][axis] = {"words": str(lacking)}
            continue
        understood, refusal = ask(read, text, each)
        if refusal:
            return row | {"refusal": refusal}
        if axis:
            *_, words = (line for line in text.splitlines() if line not in row["text"].splitlines())
            row["more"][axis] = {"words": words.strip(), "understood": understood}
        else:
            row |= {"text": text, "version": version(package), "understood": understood}
        for kind, what, changed in spoil(text, *patterns):
            if what not in tried[kind]:
                found, refusal = ask(read, changed, each)
                apart = found and {k: v for k, v in found.items() if v != understood[k]}
                tried[kind][what] = refusal or apart
                if apart and not axis:
                    *_, word = re.findall(r"[\w.-]*\w", what)
                    taken = ", ".join(f"{name}: {value}" for name, value in apart.items())
                    swallowed.append({"wrong": f"{kind[:-1]} {word}", "understood": taken})
    for kind, answers in tried.items():
        accepted = sum(isinstance(answer, dict) for answer in answers.values())
        row |= {kind: len(answers), f"{kind} accepted": accepted, f"wrong {kind}": answers}
    return row | {"swallowed": swallowed}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    known = {"stage": (2, 3), "precision": FLOATS, "schedule": SCHEDULES}
    for field in (*FIELDS, *known):
        value = getattr(EXAMPLE, field)
        how = {"type": type(value), "choices": known.get(field), "default": value}
        arguments.add_argument(f"--{field.replace('_', '-')}", **how)
    arguments.add_argument("--shard", type=int, help="ranks that share a replica's states; all")
    arguments.add_argument("--tool", choices=TOOLS, action="append", help="these only")
    settings = vars(arguments.parse_args())
    tools, shard = settings.pop("tool") or TOOLS, settings.pop("shard") or settings["data"]
    virtual = CHUNKS[settings["schedule"]] if settings["pipeline"] > 1 else 1
    plan = Plan(**settings, shard=shard, virtual=virtual)
    if plan.data % shard or plan.batch % (plan.data * plan.micro_batch):
        arguments.error(f"--data {plan.data}: no multiple of --shard, or no divisor of the batch")
    torch.distributed.init_process_group("fake", rank=0, world_size=plan.ranks)
    for tool in tools:
        print(json.dumps(examine(tool, plan)), flush=True)


if __name__ == "__main__":
    main()
