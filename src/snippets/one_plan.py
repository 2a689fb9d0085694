"""python src/snippets/one_plan.py --data 8 --tensor 4

Write one plan as five tools want to be told, and let the parser of each tool that is installed read
it. Then, of each name in turn, leave the last letter out. Prints a line of JSON for each tool.

Recorded with Python 3.12: torchtitan 0.2.2 (installed with --no-deps) and 0.3.0, which bring much
more than their parsers; megatron-core 0.19.2, which has Megatron-LM's arguments (0.16.1 has not).
"""

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from importlib.metadata import version
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.utils.checkpoint

from bootcamp.costs.plans import Plan

EXAMPLE = Plan(data=8, tensor=4, stage=3, micro_batch=2, batch=64, recompute="full")
FLOATS = {"bf16": "bfloat16", "fp32": "float32"}
MODEL = {"num-layers": 8, "hidden-size": 512, "num-attention-heads": 8, "lr": 1e-3}
MODEL |= {"seq-length": 1024, "max-position-embeddings": 1024}


def as_pytorch(plan: Plan) -> str:
    """Return lines for _train_fsdp_tp.py: its mesh, an empty line, what happens to each block."""
    shape, axis = (plan.data, plan.tensor), '("data", "tensor")'
    lines = [
        "from functools import partial",
        "from torch.distributed.fsdp import MixedPrecisionPolicy",
    ]
    lines += [
        f"mesh = init_device_mesh(device.type, mesh_shape={shape}, mesh_dim_names={axis})",
        "",
    ]
    dtypes = f"param_dtype=torch.{FLOATS[plan.precision]}, reduce_dtype=torch.float32"
    lines += [f"policy = MixedPrecisionPolicy({dtypes})", "for block in model[1:-1]:"]
    if plan.recompute == "full":
        again = "torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False"
        lines += [f"    block.forward = partial({again})"]
    shard = f'mesh=mesh["data"], reshard_after_forward={plan.stage == 3}, mp_policy=policy)'
    return "\n".join([*lines, f"    fully_shard(block, {shard}", f"fully_shard(model, {shard}"])


def titan_settings(plan: Plan) -> dict:
    reshard = "always" if plan.stage == 3 else "never"
    return {
        "training": {
            "local_batch_size": plan.micro_batch,
            "global_batch_size": plan.batch,
            "mixed_precision_param": FLOATS[plan.precision],
        },
        "parallelism": {
            "data_parallel_shard_degree": plan.data,
            "fsdp_reshard_after_forward": reshard,
            "tensor_parallel_degree": plan.tensor,
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
    return "\n".join(f"--{s}.{k} {v}" for s, values in sections for k, v in values.items())


def as_megatron(plan: Plan) -> str:
    flags = [f"--tensor-model-parallel-size {plan.tensor}"]
    flags += [f"--micro-batch-size {plan.micro_batch}", f"--global-batch-size {plan.batch}"]
    kind = {2: "optim_grads", 3: "optim_grads_params"}[plan.stage]
    flags += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {kind}"]
    flags += ["--use-distributed-optimizer", "--ckpt-format fsdp_dtensor"]
    if plan.recompute == "full":
        flags += ["--recompute-granularity full", "--recompute-method uniform"]
        flags += ["--recompute-num-layers 1"]
    return "\n".join(flags + ["--bf16"] * (plan.precision == "bf16"))


def as_deepspeed(plan: Plan) -> str:
    settings = {
        "train_batch_size": plan.batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
        "zero_optimization": {"stage": plan.stage},
        "tensor_parallel": {"autotp_size": plan.tensor},
    }
    return json.dumps(settings | {"bf16": {"enabled": plan.precision == "bf16"}}, indent=1)


def as_accelerate(plan: Plan) -> str:
    lines = ["distributed_type: FSDP", f"num_processes: {plan.ranks}", "fsdp_config:"]
    lines += ["  fsdp_version: 2", f"  fsdp_reshard_after_forward: {plan.stage == 3}"]
    lines += [f"  fsdp_activation_checkpointing: {plan.recompute == 'full'}", "parallelism_config:"]
    lines += [f"  parallelism_config_dp_shard_size: {plan.data}"]
    lines += [f"  parallelism_config_tp_size: {plan.tensor}"]
    return "\n".join([*lines, f"mixed_precision: {plan.precision.replace('fp32', 'no')}"])


def read_pytorch(text: str, plan: Plan) -> dict:
    """Run the lines on rank 0 of imagined ranks, with a small model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    names = {"device": torch.device("cpu"), "model": model, "torch": torch}
    exec(text, names | {"init_device_mesh": init_device_mesh, "fully_shard": fully_shard})
    model(torch.zeros(4, 64))
    group = model[1]._get_fsdp_state()._fsdp_param_group
    mesh = model[1].weight.device_mesh._get_root_mesh()
    again = getattr(model[1].forward, "func", None) is torch.utils.checkpoint.checkpoint
    return {
        "data": mesh["data"].size(),
        "tensor": mesh["tensor"].size(),
        "stage": 3 if group.post_forward_mesh_info else 2,
        "precision": precision(group.mp_policy.param_dtype),
        "recompute": "full" if again else "none",
    }


def precision(dtype) -> str:
    return {v: k for k, v in FLOATS.items()}[str(dtype).removeprefix("torch.")]


def understood_by_titan(config) -> dict:
    train, axes = config.training, config.parallelism
    return {
        "data": axes.data_parallel_shard_degree,
        "tensor": axes.tensor_parallel_degree,
        "stage": 3 if axes.fsdp_reshard_after_forward != "never" else 2,
        "micro_batch": train.local_batch_size,
        "batch": train.global_batch_size,
        "precision": precision(train.mixed_precision_param),
    }


def read_toml(text: str, plan: Plan) -> dict:
    from torchtitan.config import ConfigManager

    with file_of(text, ".toml") as name:
        config = ConfigManager().parse_args(["--job.config_file", name])
    return understood_by_titan(config) | {"recompute": config.activation_checkpoint.mode}


def read_titan_flags(text: str, plan: Plan) -> dict:
    from torchtitan.config import ConfigManager

    start = ["--module", "llama3", "--config", "llama3_debugmodel"]
    return understood_by_titan(ConfigManager().parse_args(start + text.split()))


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
    return {
        "data": args.data_parallel_size,
        "tensor": args.tensor_model_parallel_size,
        "stage": sharding or int(args.use_distributed_optimizer),
        "micro_batch": args.micro_batch_size,
        "batch": args.global_batch_size,
        "precision": "bf16" if args.bf16 else "fp32",
        "recompute": args.recompute_granularity or "none",
    }


def read_deepspeed(text: str, plan: Plan) -> dict:
    """As deepspeed.initialize reads it: the tensor axis first, then what is left for the data."""
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    if not comm.is_initialized():
        comm.init_distributed("fake", auto_mpi_discovery=False, verbose=False)
    settings = json.loads(text)
    tensor = settings.get("tensor_parallel", {}).get("autotp_size", 0) or 1
    data = plan.ranks // tensor
    axes = SimpleNamespace(get_data_parallel_world_size=lambda: data)
    config = DeepSpeedConfig(settings, axes)
    return {
        "data": data,
        "tensor": config.tensor_parallel_config.autotp_size or 1,
        "stage": config.zero_config.stage,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "batch": config.train_batch_size,
        "precision": "bf16" if config.bfloat16_config.enabled else "fp32",
    }


def read_accelerate(text: str, plan: Plan) -> dict:
    """As accelerate launch reads it: it hands the plan to the script as environment variables."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    with file_of(text, ".yaml") as name:
        arguments = ["--config_file", name, "--main_process_port", "0", "train.py"]
        args, *_ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    told, axes = prepare_multi_gpu_env(args), "PARALLELISM_CONFIG_"
    stages = {"2 true": 3, "2 false": 2}
    sharding = f"{told.get('FSDP_VERSION')} {told.get('FSDP_RESHARD_AFTER_FORWARD')}"
    return {
        "data": int(told.get(axes + "DP_SHARD_SIZE", 1)),
        "tensor": int(told.get(axes + "TP_SIZE", 1)),
        "stage": stages.get(sharding, "version 1's"),
        "precision": told["ACCELERATE_MIXED_PRECISION"].replace("no", "fp32"),
        "recompute": "full" if told.get("FSDP_ACTIVATION_CHECKPOINTING") == "true" else "none",
    }


@contextlib.contextmanager
def file_of(text: str, suffix: str):
    with tempfile.NamedTemporaryFile("w", suffix=suffix) as file:
        file.write(text)
        file.flush()
        yield file.name


# tool -> (package, the plan in its words, what its parser understands, how a name looks)
TOOLS = {
    "PyTorch": ("torch", as_pytorch, read_pytorch, r"(\w+)=(?!=)"),
    "torchtitan 0.2": ("torchtitan", as_toml, read_toml, r"(?m)^\[?(\w+)(?:\]| =)"),
    "torchtitan 0.3": ("torchtitan", as_titan_flags, read_titan_flags, r"(?m)^--([\w.]+)"),
    "Megatron": ("megatron-core", as_megatron, read_megatron, r"(?m)^--([\w-]+)"),
    "DeepSpeed": ("deepspeed", as_deepspeed, read_deepspeed, r'"(\w+)":'),
    "Accelerate": ("accelerate", as_accelerate, read_accelerate, r"(?m)^ *(\w+):"),
}


def ask(read, text: str, plan: Plan) -> tuple[dict | None, str]:
    """Return what a parser understands, or None and its refusal."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return read(text, plan), ""
    except (Exception, SystemExit) as refusal:
        lines = re.findall(r"[^\n│╭╰─]*[Uu]nrecogni[sz]ed[^\n│╭╰─]*", said.getvalue())
        return None, f"{type(refusal).__name__}: {lines[-1] if lines else refusal}".strip()


def misspell(text: str, name: str) -> dict[str, str]:
    """Return {name: the text without the last letter of it, where it stands last}."""
    ends = {found[1]: found.end(1) for found in re.finditer(name, text)}
    return {found: text[: end - 1] + text[end:] for found, end in ends.items()}


def examine(tool: str, plan: Plan) -> dict:
    """Return what a tool's parser understands, and which misspelled names it refuses."""
    package, as_text, read, name = TOOLS[tool]
    text = as_text(plan)
    row = {"tool": tool, "text": text}
    understood, refusal = ask(read, text, plan)
    if refusal:
        return row | {"refusal": refusal}
    row |= {"version": version(package), "understood": understood}
    row |= {"refusals": {}, "swallowed": {}}
    for wrong, changed in misspell(text, name).items():
        found, refusal = ask(read, changed, plan)
        if refusal:
            row["refusals"][wrong] = refusal
        else:
            row["swallowed"][wrong] = {k: v for k, v in found.items() if v != understood[k]}
    taken = [f"{key}: {value}" for each in row["swallowed"].values() for key, value in each.items()]
    row |= {"names": len(row["refusals"]) + len(row["swallowed"])}
    return row | {
        "accepted": len(row["swallowed"]),
        "then it takes": ", ".join(taken) or "the plan",
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    for field in ("data", "tensor", "stage", "micro_batch", "batch", "recompute", "precision"):
        value = getattr(EXAMPLE, field)
        arguments.add_argument(f"--{field.replace('_', '-')}", type=type(value), default=value)
    arguments.add_argument("--tool", choices=TOOLS, action="append", help="these only")
    settings = vars(arguments.parse_args())
    tools, plan = settings.pop("tool") or TOOLS, Plan(**settings)
    if plan.stage not in (2, 3) or plan.precision not in FLOATS:
        arguments.error(
            f"--stage {plan.stage} --precision {plan.precision}: expected 2 or 3, bf16 or fp32"
        )
    torch.distributed.init_process_group("fake", rank=0, world_size=plan.ranks)
    for tool in tools:
        print(json.dumps(examine(tool, plan)), flush=True)


if __name__ == "__main__":
    main()
