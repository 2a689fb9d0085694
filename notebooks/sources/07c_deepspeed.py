# %% [markdown]
# # 07c DeepSpeed: ZeRO as a configuration
#
# **29 minutes**, on any machine, after lesson 07. The ranks are CPU cores, even where there are
# GPUs: this lesson counts and compares. Without DeepSpeed its cells do nothing.
#
# After this lesson you can read a DeepSpeed configuration, say what its stages hold and really
# send, save so that others can load, and find a default that changes the training.
#
# ## The question
#
# Many programs reach ZeRO through DeepSpeed: they have a file of settings, often copied from
# another project. Does such a program train what one process trains? And does it hold and send what
# the formulas of lesson 07 say?

# %%
import torch
from IPython.display import display

from bootcamp import (
    Table,
    available,
    check,
    claim,
    launch,
    plots,
    predict,
    script_diff,
    variant,
    warm_up,
)
from bootcamp.paths import SRC
from bootcamp_lessons import excerpts, sharding_tables
from bootcamp_lessons.labs import known_programs

warm_up()
RANKS = 4
PROVEN = {"device": "cpu", "quiet": True, **check.settings(RANKS)}
MLP = {"model": "mlp", "device": "cpu", "quiet": True, **check.settings(2)}
DEEPSPEED = available("deepspeed", fetch=True)
if not DEEPSPEED:
    print("DeepSpeed is not installed, so its cells do nothing: make install GROUPS=deepspeed")
    print("What they show on another machine: slides/kit/expected/*/07c_deepspeed.md")

# %% [markdown]
# ## The idea
#
# `deepspeed.initialize` wraps model and optimizer into an **engine**, which owns the backward pass,
# the reduction of gradients, the step, and setting gradients to zero. What it does is in the
# configuration, a dictionary or a file. `stage` chooses between ZeRO-1, ZeRO-2 and ZeRO-3.
#
# The optimizer works on a **copy** of its part, 4 bytes more for each parameter. In 16-bit training
# that is the float32 copy, which is among the paper's 12 bytes. In float32 it is a waste.
#
# ## Predict
#
# By the paper ZeRO-3 sends 1.5 times as many numbers as ZeRO-2. Here is this course's GPT, with
# DeepSpeed's default limits, counted as NCCL sends.

# %%
guess_ratio = predict(
    "deepspeed_sent",
    "How many times as many numbers does DeepSpeed's ZeRO-3 send as its ZeRO-2?",
    unit="times",
)
guess_ratio

# %% [markdown]
# Below is the configuration that tutorials print. Gradients are reduced in buckets, as with DDP
# (lesson 04d); sizes count numbers, not bytes. With AdamW in float32 DeepSpeed keeps 4 + 4 + 12 =
# 20 bytes for each parameter.

# %%
PRINTED = SRC / "snippets" / "deepspeed_as_printed.py"
guess_scatter = predict(
    "deepspeed_reduce_scatter",
    'How many times as many bytes does a rank send with `"reduce_scatter": False`?',
    unit="times",
)
guess_fp16 = predict(
    "deepspeed_fp16",
    "Where float16 is accepted, how many of the first four steps change the parameters?",
    unit="steps",
)
guess_zero = predict(
    "deepspeed_zero_grad",
    "A loop has two micro-batches a step, and `optimizer.zero_grad()` before each backward pass. "
    "With how many of ZeRO-1, ZeRO-2 and ZeRO-3 does this change nothing?",
    unit="stages",
)
guess_bf16 = predict(
    "known_bf16", 'How many bytes are the 20 with `"bf16": {"enabled": True}`?', unit="bytes"
)
display(excerpts.piece(PRINTED, "PRINTED = {", "STEPS"))
display(guess_scatter, guess_fp16, guess_zero, guess_bf16)

# %% [markdown]
# ## What changes
#
# By default DeepSpeed leaves small parameters unsharded in ZeRO-3; the `threshold` of 0 shards them
# too.

# %%
script_diff("zero")

# %% [markdown]
# ## Run it
#
# In a script that also counts its collectives.

# %%
runs = {}
for stage in (1, 2, 3) if DEEPSPEED else ():
    script = sharding_tables.make_counting_script("zero")
    runs[f"ZeRO-{stage}"] = launch(script, RANKS, stage=stage, optimizer="adamw", **PROVEN)

# %% [markdown]
# ## Read the measurement
#
# ### Bytes of each kind

# %%
shapes = sharding_tables.parameter_shapes()
psi = sum(torch.Size(shape).numel() for shape in shapes)
each = {name: sharding_tables.calculate_state(run, psi, len(shapes)) for name, run in runs.items()}
sharding_tables.compare_state(runs, each, f"Bytes on rank 0 of {RANKS}")

# %% [markdown]
# *During* the step ZeRO-1's gradients are as large as the formula says: the table counts them after
# each rank has kept only its part. Gradient accumulation (lesson 02b) tells stages 1 and 2 apart. A
# small program on two ranks measures in a step of two micro-batches, whenever the backward pass has
# computed another gradient:

# %%
if DEEPSPEED:
    seen = launch(SRC / "snippets" / "zero_accumulate.py", 2, device="cpu", quiet=True)
    rows = []
    for held in excerpts.parse_printed(seen):
        half = len(held["looks"]) // 2
        row = {"stage": held["stage"], "most in the first pass": max(held["looks"][:half])}
        row |= {"at its end": held["ends"][0], "most in the second": max(held["looks"][half:])}
        rows.append(row | {"at the end": held["ends"][1]})
    display(Table(rows, f"Bytes of gradients on rank 0; all of them are {held['whole']:,}"))

# %% [markdown]
# **ZeRO-1** keeps all gradients, adds the second micro-batch's, and reduces and cuts them once.
# **ZeRO-2** cuts each one as soon as it is computed, and so reduces in *every* micro-batch: more
# traffic, and with many ranks less memory. With two, a rank holds its half twice in the second
# micro-batch, and one complete gradient besides: more than ZeRO-1.
#
# ### Traffic

# %%
if DEEPSPEED:
    sent = {
        stage: sharding_tables.sent_bytes_per_parameter(run, psi) for stage, run in runs.items()
    }
    display(guess_ratio.score(sent["ZeRO-3"] / sent["ZeRO-2"]))
    display(sharding_tables.compare_volumes(runs, psi))

# %% [markdown]
# - **ZeRO-1 and ZeRO-2** ask for an all-reduce, although a reduce-scatter would do: 3ψ, with the
#   all-gather. That is this version's default (`use_multi_rank_bucket_allreduce`).
# - **ZeRO-3** gathers everything *once*. Its thresholds, a billion parameters, limit what it may
#   keep from the forward to the backward pass, and our model is smaller. With
#   `stage3_max_live_parameters`, `stage3_max_reuse_distance` and `stage3_prefetch_bucket_size` at 0
#   it frees and gathers again.
#
# So know the thresholds before you believe a figure. And the printed keys, one changed at a time:

# %%
if DEEPSPEED:
    keys = ["allgather_partitions", "reduce_scatter", "use_multi_rank_bucket_allreduce"]
    changes = [{}, *({key: False} for key in [*keys, "overlap_comm"])]
    changes += [{"reduce_bucket_size": 2**13}]
    rows = [known_programs.try_settings(each, stage=2, **MLP) for each in changes]
    sent = [row["sent (NCCL)"] for row in rows]
    display(guess_scatter.score(sent[2] / sent[0], how="By formula from the collectives"))
    display(Table(rows, "Calls and bytes of a rank in a step of ZeRO-2 with the MLP, two ranks"))
    found = claim.equal(
        "known_bucket_cuts_no_tensor",
        "With buckets smaller than its matrices, each tensor is an all-reduce of its own.",
        rows[-1]["all-reduce"],
        len(sharding_tables.parameter_shapes("mlp")),
        kind="count",
        supported="A bucket is no upper limit: a larger tensor goes alone, and is not cut.",
    )
    alike = claim.equal(
        "deepspeed_reduce_scatter",
        'With `"reduce_scatter": False` a rank sends as much as with `True`.',
        sent[2],
        sent[0],
    )
    reserved = claim.equal(
        "deepspeed_buckets_reserved",
        "However small the model, a rank reserves two buckets of 5e8 numbers of 4 bytes.",
        rows[0]["buckets"],
        2 * 5e8 * 4,
        kind="memory",
    )
    display(alike, found, reserved)

# %% [markdown]
# - **`allgather_partitions`** is read nowhere in DeepSpeed 0.19.8.
# - **`reduce_scatter`** scatters nothing: both ways all-reduce. Without
#   `use_multi_rank_bucket_allreduce` each part is reduced to the rank that owns it; under NCCL that
#   is a third less.
# - **5e8** reserves 4 GB on each GPU, 2 GB in 16 bits, half of it for `overlap_comm`. (A CPU needs
#   no memory for what nobody writes.)
#
# ### The loop
#
# As tutorials print it, with float inputs and `inputs.to(model.local_rank)`. What stops it is
# fixed, one error after the other. Then, in float32, what `optimizer.zero_grad()` changes:

# %%
if DEEPSPEED:
    tried = excerpts.parse_printed(launch(PRINTED, 2, device="cpu", quiet=True))
    unmoved = sum(row["before backward, 2"] == 0 for row in tried[6:])
    display(Table(tried[:6], "Changed in addition to the rows above; loss apart from float32's"))
    display(Table(tried[6:], "Apart from no zero_grad: where it is called, micro-batches a step"))
    display(guess_fp16.score(tried[3]["steps"], within=0), guess_zero.score(unmoved, within=0))
    found = claim.equal(
        "deepspeed_zero_grad",
        "With one micro-batch a step, zero_grad beside the engine changes nothing.",
        sum(row[where] for row in tried[6:] for where in row if where.endswith("1")),
        0,
        kind="count",
        supported="Not even between backward and step, which would stop a torch optimizer.",
    )
    display(found)

# %% [markdown]
# - **float16** is refused on a CPU without instructions for it. (torch computes it, slowly: so the
#   second row overrules DeepSpeed.) **`model.local_rank`** is a GPU's number; `model.device` is
#   right everywhere. Inputs are cast with `auto_cast` alone.
# - **The loss scale** begins at 65,536, and no float16 is above 65,504: with a loss in float16 the
#   gradients are infinite, and the step is left out. After the second one the scale is halved. So
#   compute the loss in float32.
# - **`zero_grad`** is the engine's, at the end of its step. Before each micro-batch it deletes what
#   ZeRO-1 and ZeRO-3 have so far. ZeRO-2 has it in its part already.
#
# ### 16 bits and offload

# %%
clip = '"gradient_clipping": 0.0,'
enabled = variant("zero", "zero_bf16", {clip: f'{clip}\n"bf16": {{"enabled": True}},'})
if DEEPSPEED:
    scripts = {"float32": "zero", "bf16": enabled}
    narrow = {name: launch(script, 2, stage=3, **MLP) for name, script in scripts.items()}
    numbers = sum(torch.Size(shape).numel() for shape in sharding_tables.parameter_shapes("mlp"))
    state = {name: 2 * sharding_tables.state_bytes(run) / numbers for name, run in narrow.items()}
    print("bytes for each parameter:", {name: round(size, 2) for name, size in state.items()})
    display(guess_bf16.score(state["bf16"]))
    found = claim.equal(
        "known_bf16_is_2_2_12",
        "In bf16 DeepSpeed keeps 2 + 2 + 12 = 16 bytes for each parameter.",
        state["bf16"],
        16,
        within=0.001,
        kind="memory",
    )
    display(found)

# %% [markdown]
# It saves a fifth, not half: the optimizer keeps its float32 copy and two moments. FSDP2 keeps 16
# as well, 4 + 4 + 8 (lesson 07). More entries of the configuration:
#
# - `"offload_optimizer": {"device": "cpu"}` keeps the state in main memory and steps on the CPU
#   (Ren et al., 2021), `"offload_param"` adds the parameters. FSDP2 offers no such choice:
#   `CPUOffloadPolicy()` offloads parameters, gradients and state.
# - **ZeRO++** (Wang et al., 2023) saves traffic: quantized gathers and gradients, and a second copy
#   of the shards inside each host.
#
# ### Saving
#
# `engine.save_checkpoint(folder)` has to be called **on all ranks**: each writes the part that it
# holds. Only DeepSpeed reads these files, so it brings a converter. (In the folder it is a program
# too, `zero_to_fp32.py`.) The script with these lines at its end:

# %%
saves = variant("zero", "zero_saves", known_programs.SAVING)
if DEEPSPEED:
    saved = launch(saves, 2, stage=3, **MLP)
    files = sorted((saved.folder / "deepspeed").rglob("*.pt"))
    display(Table([{"file": path.name, "bytes": path.stat().st_size} for path in files]))
    (converted,) = excerpts.parse_printed(saved)
    found = claim.equal(
        "known_converted_checkpoint",
        "The state dict that the converter makes of two ranks' parts is the model, bit for bit.",
        converted["apart"] + converted["other names"],
        0,
        kind="count",
    )
    display(found)

# %% [markdown]
# ## Prove it
#
# The stages with AdamW.

# %%
base = check.baseline(optimizer="adamw", **check.settings(RANKS))
as_printed = variant("zero", "zero_as_printed", known_programs.print_settings())
if DEEPSPEED:
    runs["ZeRO-2 as printed"] = launch(as_printed, RANKS, stage=2, optimizer="adamw", **PROVEN)
sharding_tables.list_proofs([(name, check.same_training(runs[name], base)) for name in runs])

# %% [markdown]
# ## Break it
#
# Somebody leaves out one line of the configuration that "only switches something off". Nothing
# raises.

# %%
alone = check.baseline(optimizer="sgd", **check.settings(RANKS))
unclipped = variant("zero", "zero_default", {clip: ""})
if DEEPSPEED:
    broken = launch(unclipped, 2, stage=2, optimizer="sgd", **PROVEN)
    display(check.compare(broken, alone))
    plots.show(plots.loss_curves(alone, broken))

# %% [markdown]
# Samples, initial parameters and the loss of the first step are right. From the second step on the
# training is a different one. What could do that, and how would you find out?
#
# <details><summary>Answer</summary>
#
# Data and forward pass are right, so the *update* is not. In DeepSpeed 0.19.8 `gradient_clipping`
# is 1.0 if the line is missing, as in the tutorials: whenever the norm of all gradients together is
# above 1, they are scaled down to 1. A guess is tested by making the same fault on purpose where
# you know every line: add clipping to the *baseline*.
# </details>

# %%
step = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()"
clipping = variant("gpu", "gpu_clips", {"optimizer.step()": step})
clipped = launch(clipping, 1, optimizer="sgd", **PROVEN)
assert check.compare(clipped, alone).failed, "the gradients' norm should be above 1 here"
if DEEPSPEED:
    display(check.same_training(broken, clipped))

# %% [markdown]
# With clipping the baseline follows the broken run: found. AdamW would have hidden most of it,
# since it divides by the size of the gradients.
#
# ## Exercises
#
# ### First: what stays on the GPU?
#
# `bytes_on_gpu(config, ranks)` reads a configuration of stage 1, 2 or 3 and returns how many bytes
# of state a rank keeps on its GPU for each parameter of the model. Look for `stage`, for `bf16`,
# and for an optimizer that is offloaded.

# %%
from bootcamp import exercise


def bytes_on_gpu(config, ranks):
    # your turn: return bytes for each parameter
    ...


print(exercise.check("bytes_on_gpu", bytes_on_gpu))

# %% [markdown]
# `exercise.solution("bytes_on_gpu")` shows a solution.
#
# ### Second: how many samples at once?
#
# Activations depend on the micro-batch. A configuration names at least one of `train_batch_size`
# and `train_micro_batch_size_per_gpu`, and perhaps `gradient_accumulation_steps`. DeepSpeed takes
# one accumulation step where nothing says otherwise. `samples_at_once(config, ranks)` returns the
# micro-batch of a rank.

# %%


def samples_at_once(config, ranks):
    # your turn: return a number of samples
    ...


print(exercise.check("samples_at_once", samples_at_once))

# %% [markdown]
# `exercise.solution("samples_at_once")` shows a solution.
#
# ## When to use it and when not
#
# - **DeepSpeed** has offload to main memory and to disk, and a configuration that many programs
#   share. **FSDP2** is in PyTorch, works on DTensors, and combines with tensor parallelism (lesson
#   08).
# - **Its checkpoint**: to go on with DeepSpeed. For everybody else, the converted one.
# - Write down every setting that touches the update, clipping first, also where it is the default.
#
# ## Sources
#
# - Rajbhandari et al., *ZeRO*, 2019, arXiv:1910.02054: the stages, 2 + 2 + 12 bytes.
# - Ren et al., *ZeRO-Offload: Democratizing Billion-Scale Model Training*, 2021, arXiv:2101.06840.
# - Wang et al., *ZeRO++: Extremely Efficient Collective Communication for Giant Model Training*,
#   2023, arXiv:2306.10209.
# - DeepSpeed documentation: *DeepSpeed Configuration JSON*, *ZeRO*, *Model Checkpointing*; the
#   source of version 0.19.8 for its defaults.
