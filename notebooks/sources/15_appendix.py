# %% [markdown]
# # 15 Appendix: older programs, and Megatron-core
#
# **25 minutes**, on any machine, after lessons 02, 04, 06c and 08. Not a lesson: read the section
# that matches your program.
#
# ## What to write today
#
# | you find | write | lesson |
# |---|---|---|
# | `nn.DataParallel` | `DistributedDataParallel` | 03, 04 |
# | `torch.cuda.amp.autocast()` | `torch.autocast("cuda")`; `GradScaler` is in `torch.amp` | 02b |
# | `checkpoint(...)` without `use_reentrant` | `checkpoint(..., use_reentrant=False)` | 02b |
# | `find_unused_parameters=True` by habit | leave it out until DDP asks for it | 04d |
# | `NCCL_ASYNC_ERROR_HANDLING` | `TORCH_NCCL_ASYNC_ERROR_HANDLING`, on by default | 04e |
# | `torch.distributed._tensor` | `torch.distributed.tensor` | 06c |
# | PiPPy, `torch.distributed.pipeline.sync` | `torch.distributed.pipelining` | 06b |
# | fairscale's `FullyShardedDataParallel` | `fully_shard` | 07 |
# | `FSDP.state_dict_type` | `get_model_state_dict(..., options=StateDictOptions(...))` | 07b |
# | `torch.jit.trace`, `torch.jit.script` | `torch.export`, or `torch.compile` | 11 |
#
# The sections below are about what takes more than a line: what the code looks like, what it does
# where it still runs, and what to write instead.

# %%
import textwrap
from importlib.util import find_spec

from IPython.display import display

from bootcamp import Table, available, check, launch, run_command, script_diff
from bootcamp_lessons import excerpts
from bootcamp_lessons.excerpts import SNIPPETS

# %% [markdown]
# ## One program spawns its ranks
#
# `torch.multiprocessing.spawn` starts the ranks as children of the program. It passes the rank as
# the first argument. Everything else, the world size too, is passed on by hand.

# %%
spawning = SNIPPETS / "start_with_spawn.py"
excerpts.show_snippet(spawning.name)
print(run_command(["python", str(spawning), "--ranks", "2"]))

# %% [markdown]
# Each child imports the program again, which is why the start is under `if __name__ == "__main__"`.
# The ranks meet at a file here. Many programs use a fixed port (`MASTER_PORT="12355"`) instead, and
# two of those on one machine collide. `spawn` knows one machine only and restarts nothing.
#
# **Today:** write the script for one rank and start it with `torchrun` (lesson 04).
#
# ## `torch.distributed.launch`
#
# The predecessor of torchrun. It adds `--local-rank` to the script's command line; a script that
# does not know the flag fails.

# %%
old = ["python", "-m", "torch.distributed.launch", "--standalone", "--nproc-per-node", "2"]
if find_spec("torch.distributed.launch"):
    program, one = str(SNIPPETS / "start_with_torchrun.py"), {"OMP_NUM_THREADS": "1"}
    printed = run_command([*old, program], env=one)
    print(printed)
    assert "FutureWarning" in printed, "it is no longer deprecated"
    for rank in range(2):
        assert f"rank {rank} of 2: the ranks' numbers add up to 1" in printed, "they never met"
        assert f"arguments: ['--local-rank={rank}']" in printed, "the flag has another form"
else:
    print("This version of torch no longer has it.")

# %% [markdown]
# Look at the warning, and at the arguments that the ranks got.
#
# **Today:** `torchrun`, and `int(os.environ["LOCAL_RANK"])` in place of the flag.
#
# ## A process group that is destroyed while DDP still uses it
#
# Free the model before its process group: `del model, loss`, then `destroy_process_group(group)`.
# The other order is a race with a thread of gloo; in programs that went on afterwards it hung in 25
# of 150 launches. Before the last line of a script it does not matter: 40 of 40 such runs ended.
#
# ## Apex
#
# NVIDIA's Apex had mixed precision before PyTorch did. Many READMEs install it so:
#
# ```
# git clone https://github.com/NVIDIA/apex
# cd apex
# pip install -v --no-cache-dir --global-option="--cpp_ext" --global-option="--cuda_ext" ./
# ```
#
# From pip 25.3 on the answer is `no such option: --global-option`. (Today it is
# `--no-build-isolation --config-settings "--build-option=--cuda_ext"`, and takes the CUDA toolkit.)
# But `apex.amp` was removed from the package in May 2025, so with a current Apex
# `from apex import amp` fails. So port the program, as the exercise of lesson 02b does:

# %%
script_diff(SNIPPETS / "amp_from_apex.py", parent=SNIPPETS / "apex_loop.py")

# %% [markdown]
# `amp.initialize` asked for a model on a CUDA device, so no CPU has run the old lines.
# `amp.scale_loss` divided the gradients again at the end of its block; now `unscale_` or `step`
# does. bf16 needs no scaler. The levels still appear in many arguments and papers:
#
# | Apex | matrix products | parameters | loss scale | today |
# |---|---|---|---|---|
# | O0 | float32 | float32 | none | `_train_gpu.py` |
# | O1 | fp16 | float32 | dynamic | `torch.autocast` and `GradScaler`: `_train_amp.py` |
# | O2 | fp16 | fp16, and float32 copies | dynamic | FSDP's `MixedPrecisionPolicy` |
# | O3 | fp16 | fp16 | none | `model.half()`; in bf16: `_train_gpu.py --dtype bfloat16` |
#
# O1 replaced PyTorch's functions by ones that cast their inputs; sums, softmax and losses stayed in
# float32. O2 cast the model itself, except for BatchNorm, and gave the optimizer float32 copies of
# the parameters. FSDP comes closest today: its shards stay float32, and it computes with 16-bit
# parameters while they are gathered.
#
# `apex.parallel.DistributedDataParallel` is `torch.nn.parallel.DistributedDataParallel` today, and
# `apex.parallel.convert_syncbn_model` is `torch.nn.SyncBatchNorm.convert_sync_batchnorm` (lesson
# 04d).
#
# ## Megatron-core
#
# Many large models were trained with NVIDIA's Megatron, whose layers come as a package of their
# own, Megatron-core. It is not outdated, but its style is older than DTensors: its layers replace
# those of the model, where `_train_tp.py` of lesson 06c keeps them and cuts their parameters.

# %%
script_diff("megatron")

# %% [markdown]
# Each layer gets the complete matrix from `init_method` and keeps its own part. The all-reduce of
# the input's gradient is written out, once for query, key and value, by
# `copy_to_tensor_model_parallel_region`; Megatron's own attention has these three in one matrix.
# The loss, `vocab_parallel_cross_entropy`, works on scores that are split over the vocabulary.
#
# Its layers run on CPU ranks. Its pipeline schedules, default attention and sequence parallelism
# ask for CUDA devices. The import takes some seconds.

# %%
if available("megatron", fetch=True):
    display(*check.prove("megatron", 2, device="cpu"))
else:
    print("Megatron-core is not installed here. make install GROUPS=megatron tries again.")

# %% [markdown]
# ## FSDP1: the class `FullyShardedDataParallel`
#
# The class wraps a model, where `fully_shard` (lessons 07 and 08) changes it in place. Its shards
# are plain tensors, one flat piece for each wrapped unit, and nothing in them says that they are
# parts. That makes two mistakes possible which `fully_shard` excludes. This is hybrid sharding
# with it:

# %%
hybrid = SNIPPETS / "hybrid_shard.py"
excerpts.piece(hybrid, "how = {", 'found["warnings"]')

# %% [markdown]
# ### Wrapped in DDP as well
#
# Four ranks, in rows of two. `numbers` is how many parameters a rank holds, `changed` how many of
# them have other values after `DistributedDataParallel(...)`, and `equals_rank_0s` whether they are
# now those of rank 0.


# %%
def tell(**flags):
    """What each of four ranks of the program printed."""
    return excerpts.parse_printed(launch(hybrid, 4, device="cpu", quiet=True, **flags))


def columns(ranks, *names):
    return Table([{name: rank[name] for name in names} for rank in ranks])


right, wrapped = tell(), tell(in_ddp=True)
assert all(rank["apart_from_rank_0"] == 0 for rank in right), "hybrid sharding itself is broken"
print(wrapped[0]["error"])
columns(wrapped, "rank", "numbers", "changed", "equals_rank_0s")

# %% [markdown]
# DDP begins by giving every rank the parameters of rank 0. But ranks 1 and 3 hold *another part* of
# the model, and DDP has overwritten it: in each row half of the model is gone, and the other half
# is there twice. The error comes later and for another reason: DDP's hooks expect gradients of the
# shard's size. Hybrid sharding averages over the replicas by itself. Nothing is wrapped around it.
#
# ### Without a mesh
#
# Without `device_mesh=`, a row is as long as the host has devices of this kind: on CPU ranks, one.
# `ranks_of_a_copy` is how many ranks hold one copy of the model in parts, `apart_from_rank_0` how
# far a rank's parameters are from rank 0's at the end.

# %%
alone = tell(without_mesh=True)
assert all(rank["apart_from_rank_0"] > 0 for rank in alone[1:]), "they were synchronised"
print(*(textwrap.fill(each, 96) for each in alone[0]["warnings"]), sep="\n")
columns(alone, "rank", "ranks_of_a_copy", "apart_from_rank_0")

# %% [markdown]
# Four trainings, each on a quarter of the batch, that exchange nothing, and only a warning shows
# it.
#
# **Today:** `fully_shard(model, mesh=mesh)` with a named 2-D mesh. There a shard is a DTensor, and
# DDP around it fails at once (lesson 08).
#
# ## Sources
#
# - PyTorch documentation: *torch.multiprocessing*, *torch.distributed.launch*, *torchrun (Elastic
#   Launch)*, *FullyShardedDataParallel*, *fully_shard*.
# - NVIDIA, *Apex* documentation, `apex.amp` (the levels), and github.com/NVIDIA/apex, the commits
#   of May 2025 (its removal). pip, *Changelog*, 25.3. Megatron-core documentation,
#   `tensor_parallel`.
# - Shoeybi et al., *Megatron-LM*, 2019, arXiv:1909.08053.
