"""Small programs that end with an error of the index; tools/errors.py runs them.

PROGRAMS: entry -> a program and its ranks. COMMANDS: entry -> a shell command that says the error
on stderr, and the program that it starts.
"""

BEGIN = "import torch, os\nimport torch.distributed as dist\n"
JOIN = f'{BEGIN}dist.init_process_group("gloo")\nrank = dist.get_rank()\n'
DDP = "torch.nn.parallel.DistributedDataParallel"
STORE = "from datetime import timedelta\nfrom torch.distributed import TCPStore\n"
TRAIN = "import torch\nnet = torch.nn.Linear(4, 4)\nx = torch.ones(4, 4)\n"
LOAD = "import torch\nfrom torch.utils.data import DataLoader\n"
SHARD = f"{JOIN}from torch.distributed.device_mesh import init_device_mesh\n"
SHARD += "from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard\n"
SHARD += 'mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))\n'
SCALER = f'{TRAIN}optimizer = torch.optim.SGD(net.parameters())\nscaler = torch.GradScaler("cpu")\n'
DATASET = "class Data(list):\n    def __getitem__(self, index):\n        {}\n"
DATASET += "for batch in DataLoader(Data(range(4)), batch_size=2, num_workers={}):\n    pass"
RECOMPUTED = f"""{TRAIN}
from torch.utils.checkpoint import checkpoint
calls = []


def block(x):
    calls.append(0)
    return net(x[: len(calls)]).sum()


checkpoint(block, x.requires_grad_(), use_reentrant=False).backward()"""

STARTING = {
    "group_twice": (f'{JOIN}dist.init_process_group("gloo")', 1),
    "no_backend": (f'{BEGIN}dist.init_process_group("mpi")', 1),
    "not_in_main": ('import pickle\npickle.loads(b"c__main__\\nNet\\n.")', 1),
    "not_in_group": (f"{JOIN}dist.get_group_rank(dist.new_group([0]), 5)", 1),
    "sampler_rank": (
        "from torch.utils.data.distributed import DistributedSampler\n"
        "DistributedSampler(range(8), num_replicas=4, rank=4)",
        1,
    ),
    "no_such_interface": (f'import os\nos.environ["GLOO_SOCKET_IFNAME"] = "eth7"\n{JOIN}', 1),
    "too_few_came": (
        f'{STORE}TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=1), wait_for_workers=True)',
        1,
    ),
    "store_wait": (
        f'{STORE}TCPStore("127.0.0.1", 0, 1, True).wait(["done"], timedelta(seconds=1))',
        1,
    ),
    "rendezvous_unreachable": (
        f'{STORE}TCPStore("127.0.0.1", 9, 2, False, timedelta(seconds=1))',
        1,
    ),
}
COLLECTIVES = {
    "output_size": (f"{JOIN}dist.all_gather([torch.ones(3)], torch.ones(4))", 1),
    "wrong_rank_of_list": (f"{JOIN}dist.gather(torch.ones(1))", 1),
    "not_a_tensor": (f"{JOIN}dist.all_reduce(1.0)", 1),
    "type_not_reduced": (f"{JOIN}dist.all_reduce(torch.ones(1, dtype=torch.int16))", 2),
    "monitored_barrier": (
        f"{JOIN}import time\nfrom datetime import timedelta\n"
        "time.sleep(3) if rank else dist.monitored_barrier(timeout=timedelta(seconds=1))",
        2,
    ),
    "inputs_exhausted": (
        f"{JOIN}from torch.distributed.algorithms.join import Join\n"
        f"model = {DDP}(torch.nn.Linear(1, 1))\n"
        "with Join([model], throw_on_early_termination=True):\n"
        "    for _ in range(1 + rank):\n        model(torch.ones(1, 1)).sum().backward()",
        2,
    ),
}
DEVICE_AND_DATA = {
    "iterable_and_sampler": (
        f"{LOAD}from torch.utils.data import IterableDataset\n"
        "class Stream(IterableDataset):\n    def __iter__(self):\n        yield 1\n"
        "DataLoader(Stream(), shuffle=True)",
        1,
    ),
    "no_cuda_in_torch": ('import torch\ntorch.ones(1, device="cuda")', 1),
    "worker_gone": (LOAD + DATASET.format("import os; os._exit(3)", 1), 1),
    "too_many_files": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "files = [open(__file__) for _ in range(99)]",
        1,
    ),
}
SPAWN = "import torch.multiprocessing as mp\n\n\n{}\n\n\nif __name__ == '__main__':\n    {}"
TRAINING = {
    "changed_in_place": (
        f"{TRAIN}y = torch.sigmoid(net(x))\nloss = y.sum()\ny += 1\nloss.backward()",
        1,
    ),
    "backward_twice": (f"{TRAIN}loss = net(x).square().sum()\nloss.backward()\nloss.backward()", 1),
    "loss_without_graph": (f"{TRAIN}net.requires_grad_(False)(x).sum().backward()", 1),
    "recomputed_differently": (RECOMPUTED, 1),
    "unscaled_halves": (
        f"{SCALER}net.half()\nscaler.scale(net(x.half()).sum()).backward()\nscaler.step(optimizer)",
        1,
    ),
    "nothing_to_unscale": (f"{SCALER}scaler.scale(x)\nscaler.step(optimizer)", 1),
    "unscaled_twice": (
        f"{SCALER}scaler.scale(net(x).sum()).backward()\n"
        "scaler.unscale_(optimizer)\nscaler.unscale_(optimizer)",
        1,
    ),
    "types_differ": (f"{TRAIN}net.bfloat16()(x)", 1),
    "not_finite": (
        f"{TRAIN}(net(x) / 0).sum().backward()\n"
        "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)",
        1,
    ),
    "fused_kernel_missing": ("import amp_C", 1),
    "flash_attention": ("import flash_attn", 1),
    "sync_batchnorm_on_cpu": (f"{JOIN}{DDP}(torch.nn.SyncBatchNorm(4))", 1),
    "batch_of_one": ("import torch\ntorch.nn.BatchNorm1d(4)(torch.ones(1, 4))", 1),
    "nothing_to_average": (f"{JOIN}{DDP}(torch.nn.ReLU())", 1),
    "devices_mixed": (
        f"{JOIN}{DDP}(torch.nn.Sequential(torch.nn.Linear(1, 1), "
        'torch.nn.Linear(1, 1, device="meta")))',
        1,
    ),
    "inside_the_wrapper": (f"{JOIN}{DDP}(torch.nn.Linear(1, 1)).in_features", 1),
}
SHARDING = {
    "fsdp_needs_gpu": (f"{SHARD}FullyShardedDataParallel(torch.nn.Linear(4, 4))", 1),
    "fsdp_scalar": (
        f"{SHARD}net = torch.nn.Linear(4, 4)\nnet.gate = torch.nn.Parameter(torch.tensor(1.0))\n"
        "fully_shard(net, mesh=mesh)",
        1,
    ),
    "fsdp_started": (
        f"{SHARD}net = torch.nn.Sequential(torch.nn.Linear(4, 4))\nfully_shard(net[0], mesh=mesh)\n"
        "net[0](torch.ones(1, 4))\nfully_shard(net, mesh=mesh)\nnet(torch.ones(1, 4))",
        1,
    ),
    "mesh_too_large": (f'{SHARD}init_device_mesh("cpu", (4,))', 1),
    "mesh_names": (f'{SHARD}mesh["replicate"]', 1),
    "pipeline_stages": (
        f"{JOIN}from torch.distributed.pipelining import PipelineStage, Schedule1F1B\n"
        'stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"))\n'
        "Schedule1F1B(stage, 1, loss_fn=torch.nn.functional.mse_loss)",
        2,
    ),
}
STATE = f"{TRAIN}state = net.state_dict()\n"
CHECKPOINTS = {
    "pointer_not_file": (
        "import safetensors.torch, tempfile\nfile = tempfile.NamedTemporaryFile('w')\n"
        "print('version https://git-lfs', file=file, flush=True)\n"
        "safetensors.torch.load_file(file.name)",
        1,
    ),
    "weights_only": (
        "import argparse, io, torch\nfile = io.BytesIO()\n"
        "torch.save(argparse.Namespace(lr=1), file)\nfile.seek(0)\ntorch.load(file)",
        1,
    ),
    "dcp_names": (
        "import tempfile, torch\nimport torch.distributed.checkpoint as dcp\n"
        "folder = tempfile.mkdtemp()\ndcp.save({'a': torch.ones(4)}, checkpoint_id=folder)\n"
        "dcp.load({'b': torch.ones(4)}, checkpoint_id=folder)",
        1,
    ),
    "shapes_of_checkpoint": (f"{STATE}torch.nn.Linear(8, 4).load_state_dict(state)", 1),
    "names_of_checkpoint": (f"{STATE}torch.nn.Sequential(net).load_state_dict(state)", 1),
    "prefix_wanted": (
        f"{JOIN}net = torch.nn.Linear(1, 1)\n{DDP}(net).load_state_dict(net.state_dict())",
        1,
    ),
    "compiled_prefix": (f"{TRAIN}net.load_state_dict(torch.compile(net).state_dict())", 1),
    "optimizer_groups": (
        f"{TRAIN}both = torch.optim.SGD(net.parameters()).state_dict()\n"
        "torch.optim.SGD([net.weight]).load_state_dict(both)",
        1,
    ),
    "tensors_shared": (
        "import torch\nfrom safetensors.torch import save_file\nx = torch.ones(4)\n"
        "save_file({'a': x, 'b': x}, 'tied.safetensors')",
        1,
    ),
    "folder_missing": ("import torch\ntorch.save({}, 'no/such/folder/model.pt')", 1),
}
TOOLS = {
    "ds_batch": (
        "from deepspeed.runtime.config import DeepSpeedConfig\n"
        "DeepSpeedConfig({'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 4, "
        "'gradient_accumulation_steps': 4})",
        1,
    ),
    "ds_precision": (
        "from deepspeed.runtime.config import DeepSpeedConfig\n"
        "DeepSpeedConfig({'train_batch_size': 1, 'fp16': {'enabled': True}, "
        "'bf16': {'enabled': True}})",
        1,
    ),
    "pl_gpus": ("from lightning import Trainer\nTrainer(accelerator='gpu', devices=2)", 1),
    "acc_state": (
        "from accelerate import Accelerator\nAccelerator(cpu=True)\n"
        "Accelerator(cpu=True, mixed_precision='bf16')",
        1,
    ),
    "hvd_not_started": ("import horovod.torch as hvd\nhvd.rank()", 1),
}
PROGRAMS = STARTING | COLLECTIVES | DEVICE_AND_DATA | TRAINING | SHARDING | CHECKPOINTS | TOOLS

HOROVOD = "import torch, horovod.torch as hvd\nhvd.init()\n"
FLAG = "import argparse\nflags = argparse.ArgumentParser()\nflags.add_argument('--local_rank')\n"
PYTHON = "python {program}"
TORCHRUN = "torchrun --standalone --nproc-per-node 2 {program}"
HOROVODRUN = "horovodrun --gloo -np 2 python {program}"
COMMANDS = {  # entry -> a shell command, and the program that it starts
    "child_failed": (TORCHRUN, "[][0]"),
    "aborted": (TORCHRUN, "import os\nos.abort()"),
    "crashed": (TORCHRUN, "import ctypes\nctypes.string_at(0)"),
    "local_rank_flag": (
        "python -m torch.distributed.launch {program} 2>&1 | grep usage: -A 1 >&2",
        f"{FLAG}flags.parse_args()",
    ),
    "spawned_failed": (
        PYTHON,
        SPAWN.format("def train(rank):\n    [][0]", "mp.spawn(train, nprocs=2)"),
    ),
    "cannot_pickle": (
        PYTHON,
        SPAWN.format("def main():\n    mp.spawn(lambda rank: rank, nprocs=1)", "main()"),
    ),
    "collectives_differ": (
        f"TORCH_DISTRIBUTED_DEBUG=DETAIL {TORCHRUN} 2>&1 | grep '^.rank0' | tail -4 >&2",
        f"{JOIN}dist.all_reduce(torch.ones(1)) if rank else dist.broadcast(torch.ones(1), 0)",
    ),
    "ready_twice": (
        PYTHON,
        "import os\nos.environ |= dict(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', "
        f"MASTER_PORT='29571')\n{JOIN}"
        "from torch.utils.checkpoint import checkpoint\n"
        "class Twice(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.net = torch.nn.Linear(4, 4)\n    def forward(self, x):\n"
        "        for _ in range(2):\n"
        "            x = checkpoint(self.net, x, use_reentrant=True)\n        return x\n"
        f"model = {DDP}(Twice(), find_unused_parameters=True)\n"
        "model(torch.ones(4, 4, requires_grad=True)).sum().backward()",
    ),
    "worker_killed": (PYTHON, LOAD + DATASET.format("import os; os.kill(os.getpid(), 9)", 1)),
    "worker_raised": (PYTHON, LOAD + DATASET.format("return [][index]", 1)),
    "samples_of_different_shapes": (
        PYTHON,
        LOAD + DATASET.format("return torch.ones(index + 1)", 0),
    ),
    "compile_failed": (
        PYTHON,
        "import torch\n\n\ndef backend(graph, inputs):\n    raise ValueError('no code')\n\n\n"
        "torch.compile(torch.sin, backend=backend)(torch.ones(4))",
    ),
    "graph_break": (
        PYTHON,
        "import torch\n\n\ndef step(x):\n    torch._dynamo.graph_break()\n    return x\n\n\n"
        "torch.compile(step, fullgraph=True)(torch.ones(4))",
    ),
    "launcher_missing": ("PATH=/nowhere; torchrun {program}", ""),
    "ssh": ("ssh -o BatchMode=yes -p 9 127.0.0.1", ""),
    "hvd_mismatched": (
        f"{HOROVODRUN} 2>&1 | grep Mismatched | tail -n 1 >&2",
        f"{HOROVOD}hvd.allreduce(torch.ones(10 + hvd.rank()), name='loss')",
    ),
    "hvd_ended": (HOROVODRUN, f"{HOROVOD}[][hvd.rank()]"),
}
