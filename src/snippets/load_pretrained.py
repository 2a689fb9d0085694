"""torchrun --standalone --nproc-per-node 2 src/snippets/load_pretrained.py --folder tuned

Writes a GPT in the names and shapes of Hugging Face's GPT-2, safetensors and config.json, and loads
it into ranks of FSDP2: every rank reads the file, or rank 0 reads it and broadcasts. Each rank
prints by how many bytes its memory grew at most, and how far outputs are from the original's. Rank
0 saves the model back, and loads it with one mistake at a time.
"""

import argparse
import ctypes
import gc
import json
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import state_dict as named
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bootcamp import machine
from bootcamp.train import data, models
from bootcamp.train.models import gpt

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
folder = parser.parse_args().folder
LAYERS, WIDTH, HEADS, CONTEXT = 4, 512, 8, 64
gpt.SIZES["few"] = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "context": CONTEXT}
SIZE = argparse.Namespace(model="gpt", size="few", dtype="float32", seed=0)
CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu",
    "tie_word_embeddings": False,
    "vocab_size": 256,
    "n_positions": CONTEXT,
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "bos_token_id": None,
    "eos_token_id": None,
}
# of a block: theirs, ours, whether theirs is transposed (GPT-2's Conv1D)
OF_BLOCK = (
    ("ln_1.weight", ["attention_norm.weight"], False),
    ("ln_1.bias", ["attention_norm.bias"], False),
    ("attn.c_attn.weight", [f"attention.{of}.weight" for of in ("query", "key", "value")], True),
    ("attn.c_proj.weight", ["attention.out.weight"], True),
    ("ln_2.weight", ["mlp_norm.weight"], False),
    ("ln_2.bias", ["mlp_norm.bias"], False),
    ("mlp.c_fc.weight", ["up.weight"], True),
    ("mlp.c_fc.bias", ["up.bias"], False),
    ("mlp.c_proj.weight", ["down.weight"], True),
    ("mlp.c_proj.bias", ["down.bias"], False),
)
AROUND = {
    "transformer.wte.weight": "embedding.byte.weight",
    "transformer.wpe.weight": "embedding.position.weight",
    "transformer.ln_f.weight": "head.norm.weight",
    "transformer.ln_f.bias": "head.norm.bias",
    "lm_head.weight": "head.scores.weight",
}


def pair_names():
    """Yield (theirs, ours, whether it is transposed) of all blocks, and of what is around them."""
    for theirs, ours in AROUND.items():
        yield theirs, [ours], False
    for n in range(LAYERS):
        for theirs, ours, transposed in OF_BLOCK:
            yield f"transformer.h.{n}.{theirs}", [f"block{n}.{name}" for name in ours], transposed


def to_theirs(state):
    """Our parameters under their names. Their attention has biases; ours are zero."""
    content = {}
    for theirs, ours, transposed in pair_names():
        whole = torch.cat([state[name] for name in ours])
        content[theirs] = whole.T.contiguous() if transposed else whole
        if ".attn." in theirs:
            content[theirs.replace("weight", "bias")] = torch.zeros(len(whole))
    return content


def to_ours(content, mistaken=None):
    """Their parameters under our names. mistaken: a matrix that is not transposed."""
    state = {}
    for theirs, ours, transposed in pair_names():
        whole = content[theirs]
        if transposed and not theirs.endswith(f"{mistaken}.weight"):
            whole = whole.T.contiguous()
        state |= dict(zip(ours, whole.chunk(len(ours)), strict=True))
    return state


def load(way):
    """The model in shards over all ranks, with the file's parameters."""
    with torch.device("meta"):
        model = models.build(SIZE)
    for stage in model:
        fully_shard(stage, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    once = way == "rank 0 broadcasts"
    state = to_ours(load_file(FILE)) if rank == 0 or not once else {}
    options = named.StateDictOptions(full_state_dict=True, broadcast_from_rank0=once)
    named.set_model_state_dict(model, state, options=options)
    return model


def load_plain(mistaken=None, left_out=None, strict=True):
    """The model in one process."""
    model = models.build(argparse.Namespace(**{**vars(SIZE), "seed": 1}))
    state = to_ours(load_file(FILE), mistaken)
    model.load_state_dict({k: v for k, v in state.items() if k != left_out}, strict=strict)
    return model


def measure_growth(way):
    """The loaded model, and by how many bytes this process grew at most; on Linux."""
    gc.collect()
    dist.barrier()
    if FORGET.exists():
        FORGET.write_text("5")  # the peak begins anew: proc(5)
    before = machine.process_peak_bytes()
    model = load(way)
    return model, machine.process_peak_bytes() - before if FORGET.exists() else None


def apart(model):
    """How far outputs are from the original's, in their size."""
    with torch.no_grad():
        return ((model(inputs) - outputs).norm() / outputs.norm()).item()


# M_MMAP_THRESHOLD of glibc (mallopt(3)): pages of a tensor that is freed go back at once
if hasattr(libc := ctypes.CDLL(None), "mallopt"):
    libc.mallopt(-3, 64 * 1024)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
inputs, _ = data.Corpus(context=CONTEXT).batch(torch.arange(2))

FILE, FORGET = folder / "model.safetensors", Path("/proc/self/clear_refs")
if rank == 0:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    save_file(to_theirs(models.build(SIZE).state_dict()), FILE, {"format": "pt"})
dist.barrier()
load("rank 0 broadcasts")  # what torch loads at its first use
found = {
    "rank": rank,
    "model": FILE.stat().st_size,
    "largest": 4 * 4 * WIDTH**2,
    "grown": {},
    "apart": {},
}
with torch.no_grad():
    outputs = models.build(SIZE)(inputs)
for way in ("every rank reads", "rank 0 broadcasts"):
    model, found["grown"][way] = measure_growth(way)
    found["apart"][way] = apart(model)
    full = named.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = named.get_model_state_dict(model, options=full)  # rank 0 alone gets it
    del model
    if rank == 0:
        save_file(to_theirs(state), folder / "again.safetensors", {"format": "pt"})
        found["saved_back"] = (folder / "again.safetensors").read_bytes() == FILE.read_bytes()
    del state
MISTAKES = {
    f"{name} not transposed": {"mistaken": name}
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
}
MISTAKES["a name left out"] = {"left_out": "block0.up.weight"}
MISTAKES["a name left out, strict=False"] = {"left_out": "block0.up.weight", "strict": False}
for name, mistake in MISTAKES.items() if rank == 0 else ():
    try:
        found["apart"][name] = apart(load_plain(**mistake))
    except RuntimeError as error:
        found["apart"][name] = str(error).split("\n\t")[1].partition(": copying")[0]
print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
