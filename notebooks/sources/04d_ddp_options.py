# %% [markdown]
# # 04d DDP's options: buckets, hooks, and what changes the training
#
# **40 minutes**, on any machine, after lesson 04. Sections marked (optional) are not included.
#
# After this lesson you can choose DDP's options for a reason, compress what it sends and say what
# that does to the result, train with ranks that have unequal amounts of work, and keep BatchNorm
# from changing the training.

# %% [markdown]
# ## The question
#
# Lesson 04 wrapped a model in `DistributedDataParallel` and was done. What can be set there? Where
# does "the same training as one process" stop being true?

# %%
from IPython.display import display

from bootcamp import (
    Options,
    Table,
    available,
    check,
    claim,
    default_ranks,
    exercise,
    gpu_count,
    launch,
    plots,
    predict,
    script_diff,
    trial,
    variant,
    warm_up,
)
from bootcamp_lessons import ddp_depth
from bootcamp_lessons.diagrams import ddp as diagrams
from bootcamp_lessons.excerpts import SNIPPETS, find_waiting_lines, parse_printed, show_snippet

warm_up()  # loads PyTorch in the background
RANKS = max(2, min(8, default_ranks()))
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
BATCH = 16 * RANKS
print(f"{RANKS} ranks on {'GPUs' if DEVICE == 'cuda' else 'CPU cores'}, {BATCH} samples a step.")

# %% [markdown]
# ## The idea
#
# DDP averages gradients while the backward pass goes on. A gradient that is ready is copied into a
# **bucket**, a piece of memory that holds many gradients side by side. A full bucket goes to a
# **communication hook**: a function that gets the bucket and returns it averaged over the ranks.
# The usual hook is one all-reduce. Look at where each option takes effect.

# %%
plots.show(diagrams.way_of_a_bucket())

# %% [markdown]
# ## Predict
#
# 1. **PowerSGD** is a hook that sends two thin matrices instead of a gradient matrix: in place of
#    *n* × *m* numbers a product of *n* × *r* and *r* × *m* numbers that approximates it. With *r* =
#    1 that is one column and one row. The model is the course's second one, a toy MLP that predicts
#    a byte from those before it, at size small: three matrices of 1024 × 1024 weights, two of 1024
#    × 256, one of 256 × 16, and 4,352 biases, which are sent as they are.
# 2. Two ranks; rank 0 has one batch more than rank 1. DDP's `join` lets rank 0 finish. In that last
#    batch rank 0's own gradient is 1.
# 3. A network for images has **BatchNorm** layers: each subtracts the mean of the batch and divides
#    by its standard deviation. Two ranks train it for 5 steps under DDP, which averages the
#    gradients; each rank's layers see the rank's own images. One process trains it with the whole
#    batch.

# %%
guess_powersgd = predict(
    "ddp_options_powersgd",
    "1. PowerSGD with r = 1 instead of complete gradients: by what factor does a rank send less?",
    unit="times",
)
guess_join = predict("ddp_options_join", "2. What is the averaged gradient of that last batch?")
guess_norm = predict(
    "ddp_options_batch_norm",
    "3. In how many of the 5 steps do both have the same loss, to six digits after the point?",
    unit="steps",
)
display(guess_powersgd, guess_join, guess_norm)

# %% [markdown]
# ## What changes
#
# One script has the options of DDP as flags.

# %%
script_diff("ddp_options")

# %% [markdown]
# - `bucket_cap_mb` is the size in MiB at which a bucket counts as full.
# - `gradient_as_bucket_view` stores the gradients in the buckets themselves.
# - `static_graph` promises that every step uses the same parameters in the same way.
# - `register_comm_hook(state, hook)` sets the hook. `bf16_compress` shows how one is made: cast
#   the numbers to 16 bits, start an all-reduce, and return a **future**, a promise of the result,
#   so that the backward pass goes on meanwhile. The `then` part runs when the sum has arrived.
#
# None of this averages parameters.

# %% [markdown]
# ## Run it
#
# A bucket that is sent early can travel while the backward pass computes. The argument against many
# small ones is the fixed cost of each all-reduce. It shows where a step has little to compute: the
# toy MLP with one sample a rank, and either one bucket for everything or one for each parameter.

# %%
little = {"device": DEVICE, "steps": 30, "global_batch": RANKS, "model": "mlp"}
claim.faster(
    "ddp_one_bucket_beats_many_small_ones",
    "Where a step computes little, one bucket is over 1.1 times as fast as one a parameter.",
    trial("ddp_options", RANKS, bucket_mb=25, **little),
    trial("ddp_options", RANKS, bucket_mb=1e-6, **little),
    by=1.1,
    otherwise="Here the fixed cost of an all-reduce is lost among the other costs of a step.",
)

# %% [markdown]
# ## Read the measurement
#
# ### Bucket size
#
# Given explicitly, a cap of 25 MiB holds for the first bucket too; by default that takes 1 MiB. A
# parameter is never cut: one that is larger than the cap makes its bucket larger. For a large model
# on GPUs, measure sizes from some MiB to some hundred.
#
# ### Gradients stored in the buckets
#
# By default a gradient exists twice: in `parameter.grad`, and in its bucket.
# `src/snippets/ddp_bucket_memory.py` counts the memory behind both; shared memory counts once.

# %%
small = {"ranks": 2, "device": "cpu", "quiet": True}
memory_script = SNIPPETS / "ddp_bucket_memory.py"
copied, viewed = (
    parse_printed(launch(memory_script, bucket_view=view, **small))[0] for view in (False, True)
)
claim.equal(
    "ddp_bucket_view_saves_a_copy",
    "With gradient_as_bucket_view, gradients and buckets together take half the memory.",
    1e6 * viewed["together"],
    1e6 * copied["together"] / 2,
    kind="memory",
)

# %% [markdown]
# The option is off by default. With it a gradient is a view of a bucket, and code that calls
# `.detach_()` on it fails. `optimizer.zero_grad()` is fine.

# %% [markdown]
# ### Communication hooks
#
# Now the form in which gradients travel: as they are (`none`), in 16 bits (`fp16`, `bf16`), or as
# two thin matrices (`powersgd`). We use SGD, whose steps are proportional to the gradients, and
# seed 1: with seed 0, rounding alone puts one ReLU on the other side of zero, and the exact hook
# fails the proof.

# %%
mlp = {"model": "mlp", "size": "small", "optimizer": "sgd", "steps": 8, "seed": 1}
mlp["global_batch"] = BATCH
hooks = {
    hook: launch("ddp_options", RANKS, device="cpu", hook=hook, quiet=True, **mlp)
    for hook in ("none", "fp16", "bf16", "powersgd")
}
exact = check.baseline(**mlp)
compared = ddp_depth.compare_with_baseline(hooks, exact)
assert compared.column("same training") == ["yes", "no", "no", "no"]
compared

# %% [markdown]
# - `none` differs by rounding. fp16 keeps 11 significant bits and bf16 keeps 8: compare how far
#   their losses are off. The parameters order the two less clearly, since fp16 also has a smallest
#   and a largest number: the hook divides by the world size *before* it sends, so that no sum
#   exceeds 65,504, but small gradients may become zero. bf16 has the range of fp32.
# - Both hooks add in 16 bits too, so the error grows with the ranks. Large runs often reduce
#   gradients in float32 for this reason.
# - PowerSGD trains differently: it leaves a part of each gradient out and adds it to the next one
#   (error feedback).
#
# "Not the same" does not mean "worse": only longer runs and the loss on other data can show that.
# It means that equality can no longer find mistakes. Find those first, without a hook.

# %%
sent = {hook: run.ranks[0]["sent_bytes_per_step"] for hook, run in hooks.items()}
claim.equal(
    "ddp_16_bits_send_half",
    "The bf16 hook sends half of a ring all-reduce in fp32.",
    sent["bf16"],
    hooks["none"].predicted_sent_bytes_per_step / 2,
    within=0.02,
)

# %% [markdown]
# Is sending less faster? Inside one machine CPU ranks exchange bytes through memory, and
# compressing costs arithmetic.

# %%
claim.faster(
    "ddp_compressing_costs_time_on_one_host",
    "Between CPU ranks of one machine, complete gradients are faster than PowerSGD with r = 4.",
    trial("ddp_options", RANKS, device="cpu", hook="none", **mlp),
    trial("ddp_options", RANKS, device="cpu", hook="powersgd", powersgd_rank=4, **mlp),
    otherwise="Here the saved bytes weigh as much as the arithmetic that saves them.",
)

# %% [markdown]
# PowerSGD sends the first two steps complete: training is sensitive at its start, and DDP
# rearranges its buckets after the first step. The record counts neither the first step nor the
# last, so one complete step is in its mean. Without it, a rank should send one column and one row
# of each matrix, and the biases.

# %%
from argparse import Namespace

from bootcamp.train import models

model = models.build(Namespace(model="mlp", size="small", seed=0, dtype="float32"))
numbers = sum(sum(p.shape) if p.dim() > 1 else p.numel() for p in model.parameters())
measured = thin = 2 * (RANKS - 1) / RANKS * 4 * numbers  # a ring, 4 bytes a number
if sent["none"]:
    counted = mlp["steps"] - 2
    measured = (sent["powersgd"] * counted - sent["none"]) / (counted - 1)
    print(f"counted {measured / 1e3:.1f} kB a step, by formula {thin / 1e3:.1f} kB")
guess_powersgd.score(hooks["none"].predicted_sent_bytes_per_step / measured)

# %% [markdown]
# With gloo, use PowerSGD with one bucket only (a large `bucket_cap_mb`, given explicitly). It
# starts further all-reduces when a result arrives, and gloo's results arrive in its own threads:
# with two buckets under way ranks may start them in different order, and hang or add up the wrong
# numbers. In a hook of your own, start one collective for each bucket, in the hook itself.
#
# ## Prove it
#
# Bucket size, views and static graph must change nothing but time and memory.

# %%
options = {"bucket_mb": 0.2, "bucket_view": True, "static_graph": True}
display(*check.prove("ddp_options", RANKS, device=DEVICE, **options))

# %% [markdown]
# ## Uneven inputs: `join`
#
# Every rank must call the same collectives. What if one has more batches than another, because the
# data did not divide? Below, rank 0 has one batch more than rank 1. First without `join`: which
# rank waits where?

# %%
join_script = SNIPPETS / "ddp_join.py"
show_snippet("ddp_join.py")
patience = Options(hang_seconds=3)
alone = launch(join_script, without_join=True, options=patience, raises=False, **small)
assert alone.status == "failed", "ranks with unequally many batches did not hang"
print(find_waiting_lines(alone, join_script))

# %% [markdown]
# Rank 0 waits in the backward pass of its last batch, for rank 1's gradients. Rank 1 has none left:
# it waits at the end of the epoch. Without a launcher that watches, both wait until the group's
# timeout. Now with `join`:

# %%
for divide_by_present in (True, False):
    joined = launch(join_script, divide_by_present=divide_by_present, **small)
    last = joined.output(0).strip().splitlines()[-1]
    print(f"divide_by_initial_world_size={not divide_by_present}: {last}")
    assert last.endswith("1" if divide_by_present else "0.5"), "join averaged otherwise"
guess_join.score(float(last.split()[-1]))

# %% [markdown]
# Within `join` a rank that has ended answers the others' collectives with zeros until all have
# ended; then one of the ranks that trained longest sends its parameters to all. So the last
# gradient is (1+0)/2: by default `join` divides by all ranks, and each *sample* keeps its weight.
# With `divide_by_initial_world_size=False` it divides by the number that still train, and each
# *step* keeps its size.
#
# `join` answers DDP's own collectives only. One of yours in the loop, such as the mean of the loss
# in this course's scripts, hangs as before. Often it is simpler to give all ranks equally many
# batches.

# %% [markdown]
# ## Averaging weights is something else: local SGD (optional)
#
# DDP does not average the models. It averages **gradients**, in every step, before the optimizer.
# The method that averages parameters is **local SGD**: each rank trains alone, and every *p* steps
# the ranks average their parameters.

# %%
plots.show(diagrams.averages())
script_diff("local_sgd")

# %% [markdown]
# With *p* = 1 both average in every step, one the gradients, the other the parameters after the
# step. Is that the same?

# %%
toy = {"model": "mlp", "steps": 12, "global_batch": BATCH}
runs, bases = {}, {}
for optimizer, every in (("sgd", 1), ("sgd", 8), ("adamw", 1)):
    name = f"{optimizer}, every {every}"
    how = {"optimizer": optimizer, "average_every": every, "quiet": True}
    runs[name] = launch("local_sgd", RANKS, device="cpu", **how, **toy)
    bases[name] = check.baseline(optimizer=optimizer, **toy)
compared = ddp_depth.compare_with_baseline(runs, bases)
assert compared.column("same training") == ["yes", "no", "no"]
compared

# %% [markdown]
# - **SGD, *p* = 1** is the baseline, within rounding. SGD with momentum is linear, so the mean of
#   the ranks' new parameters is what the mean gradient would have given.
# - **AdamW, *p* = 1** is not. AdamW divides by the root of squared gradients, and the mean of such
#   quotients is not the quotient of the means.
# - ***p* = 8** drifts: from its second step on, a rank's gradient is taken at parameters that
#   only that rank has. The gain is in the column of sent bytes. With 12 steps the last averaging
#   came after the eighth, so the ranks ended with different models: which one would you save?
#
# DiLoCo adds an outer optimizer that treats the averaged change as a gradient.

# %% [markdown]
# ## A layer that looks across the batch: BatchNorm
#
# Dividing a batch over ranks changes nothing as long as each sample is computed by itself. In
# BatchNorm it is not: mean and deviation are those of the rank's share. So DDP trains something
# different from one process, although no gradient is wrong. On GPUs the fix is one line, before the
# model is wrapped:
#
# ```python
# model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
# model = DistributedDataParallel(model, device_ids=[local_rank])
# ```
#
# By hand it is a class that takes its sums over all ranks:

# %%
script_diff("ddp_sync_batchnorm")

# %% [markdown]
# `all_reduce` from `torch.distributed.nn.functional` is differentiable: its backward pass is an
# all-reduce too. The mean depends on every rank's images, so the gradient must come back from every
# rank. The model is a thin ResNet-50 on small synthetic images.

# %%
images = {"model": "resnet50", "global_batch": 16, "optimizer": "sgd", "steps": 5}
double = {"dtype": "float64", **images}
one_process = check.baseline(**double)
statistics = {
    "BatchNorm per rank": launch("ddp", 2, device="cpu", quiet=True, **double),
    "BatchNorm synchronised": launch("ddp_sync_batchnorm", 2, device="cpu", quiet=True, **double),
}
per_rank = statistics["BatchNorm per rank"].losses
same = [abs(a - b) < 1e-6 for a, b in zip(per_rank, one_process.losses, strict=True)]
print(guess_norm.score(sum(same), within=0))
compared = ddp_depth.compare_with_baseline(statistics, one_process, tolerance=1e-6)
assert compared.column("same training") == ["no", "yes"]
compared

# %% [markdown]
# The first loss is off already: the forward pass normalises by another mean. (torch's own layer
# runs on accelerators only.) Is it wrong to normalise per rank? With 32 images on a rank the
# statistics are good enough, and Goyal et al. (2017) define it so on purpose, since the loss then
# does not depend on the number of ranks. It hurts when a rank has few images, as in detection or
# segmentation. Then synchronise, or use a norm that does not look across the batch.
#
# ### Why float64? (optional)
#
# The *same* batches in one process, with the images in reverse order. In exact arithmetic nothing
# changes.

# %%
take = "inputs, targets = batches(step)"
flipped = "inputs, targets = (tensor.flip(0) for tensor in batches(step))"
reordered = variant("cpu", "cpu_reordered", {take: flipped})
apart = {}
for dtype in ("float32", "float64"):
    backwards = launch(reordered, 1, dtype=dtype, quiet=True, **images)
    pairs = zip(backwards.losses, check.baseline(dtype=dtype, **images).losses, strict=True)
    apart[dtype] = [abs(a - b) for a, b in pairs]
assert max(apart["float64"]) < 1e-6, "even in float64 the order matters"
rows = [
    {"step": n, "float32": a, "float64": b}
    for n, (a, b) in enumerate(zip(*apart.values(), strict=True))
]
Table(rows, "How far apart the losses are, step by step")

# %% [markdown]
# Sums in a different order are rounded differently. Untrained ResNets with BatchNorm on few images
# magnify such a difference from step to step, so in float32 a correct run may look wrong. In
# float64 the same growth starts nine digits lower.

# %% [markdown]
# ## The frameworks on top: Lightning and Accelerate (optional)
#
# **Accelerate** prepares model and optimizer and leaves the loop to you. **Lightning** takes the
# loop: you write what a step is, its Trainer does the rest. Underneath, both use the same DDP.

# %%
script_diff("accelerate")

# %% [markdown]
# `Accelerator()` joins the process group, and knows rank and world size from the same environment
# variables. `prepare(model)` moves it to a device and wraps it in DDP, `prepare(optimizer)` wraps
# it (for mixed precision and accumulation). Hidden are the backend, the timeout, DDP's options.
#
# A trap: `accelerate launch --cpu --num_processes 2` starts *one* process unless MPI is set up,
# without a warning. With torchrun there are two: let the program print the group's world size.

# %%
script_diff("lightning")

# %% [markdown]
# The loop is gone: the Trainer moves the batch and calls `zero_grad`, `backward` and `step`. It
# also wraps the model, puts in a `DistributedSampler` unless told otherwise, and does what
# `barebones=True` switches off: logging, checkpoints, progress bar. Under plain `python` a Trainer
# with `devices=2` starts the missing process itself; under torchrun it starts none.
#
# `devices` are those of one host. Over several, `num_nodes` says how many there are, though
# torchrun has told each rank. So the last runs are on two hosts, simulated as in lesson 08, with a
# rank on each. What comes of the second, in which `num_nodes` is missing?

# %%
from bootcamp.launcher import simulated_hosts

frameworks = [name for name in ("accelerate", "lightning") if available(name, fetch=True)]
for name in {"accelerate", "lightning"} - set(frameworks):
    print(f"{name} is not installed here. The lesson goes on without it.")
settings = {**check.settings(RANKS), "optimizer": "sgd"}
for name in frameworks:
    run = launch(name, RANKS, device=DEVICE, quiet=True, **settings)
    display(check.same_training(run, check.baseline(**settings)))
if why := simulated_hosts.why_not():
    print(f"There are no two hosts here: {why}")
elif "lightning" in frameworks:
    settings, over_two = settings | check.settings(2), {"hosts": 2, "quiet": True}
    run = launch("lightning", 2, **over_two, **settings)
    display(check.same_training(run, check.baseline(**settings)))
    nodes = "num_nodes=environment.world_size() // environment.local_world_size(),"
    forgot = variant("lightning", "lightning_one_node", {nodes: ""})
    print(launch(forgot, 2, raises=False, **over_two, **settings).summary["error"]["message"])

# %% [markdown]
# Only the product is compared: `devices=2` alone would pass, too (with GPUs, each host needs two).
# Under plain `python`, `num_nodes=2` starts this host's ranks and waits half an hour for the others
# (lesson 13b): each host needs the command, with `NODE_RANK`, `MASTER_ADDR` and `MASTER_PORT`.
#
# What a framework adds to a step is a fixed time of Python, so it weighs more the smaller the model
# is. You get what it does *besides*: mixed precision, logging, checkpoints, other strategies by one
# argument. In return the averaging, the wrapping and the order of the calls are out of sight: up to
# version 1.9, Lightning's `strategy="horovod"` also multiplied the learning rate by the number of
# ranks (lesson 05), and `"ddp"`, which replaced it, does not.

# %% [markdown]
# ## Break it
#
# ### Unused parameters
#
# A bucket is sent when all its gradients are in it. A parameter that the forward pass did not use
# gets no gradient, and its bucket never fills. Here one block is taken out of the forward pass.
# Which of the three programs end well?

# %%
import textwrap

wrap = "model = DistributedDataParallel(model)"
skip = "model[3].forward = lambda x: x  # the block's parameters take no part"
few = {"device": DEVICE, "steps": 4, "global_batch": BATCH, "quiet": True, "raises": False}
for n, option in enumerate(("", ", find_unused_parameters=True", ", static_graph=True")):
    change = {wrap: f"{skip}\nmodel = DistributedDataParallel(model{option})"}
    skipping = launch(variant("ddp", f"ddp_skips_{n}", change), RANKS, **few)
    assert (skipping.status == "failed") == (option == ""), f"{option}: {skipping.status}"
    print(f"DistributedDataParallel(model{option}): {skipping.status}")
    if error := skipping.summary.get("error"):
        print(textwrap.fill(error["message"].partition("In addition")[0], 96))

# %% [markdown]
# The numbers after "did not receive grad" count the parameters in their order in the model.
#
# - `find_unused_parameters=True` searches the graph of operations after every forward pass and
#   marks the missing parameters as ready. So each step may take a different path. (Sharded models:
#   lesson 08.)
# - `static_graph=True` looks once, in the first step, and relies on it. It allows what DDP
#   otherwise refuses, such as a parameter used twice under activation checkpointing.
#
# If a parameter is unused by mistake, use neither: fix the model.

# %% [markdown]
# ## Exercise
#
# ### First: a hook of your own
#
# The options script without its hook: write a communication hook that averages exactly.

# %%
print(exercise.start("own_hook"))

# %% [markdown]
# Edit the file, save it, and check it. The checker trains with *your* hook on two ranks, with both
# optimizers. Torch has such a hook ready; write it with `dist.all_reduce` first.
# `exercise.solution("own_hook")` shows the solution as a diff. To go further: what does the checker
# find in a hook that sends only the largest 1 % of the numbers?

# %%
print(exercise.check("own_hook"))

# %% [markdown]
# ### Second: the statistics of all ranks
#
# Each rank has a number of images of its own, and knows their mean and their variance (the mean of
# the squared distances from the mean). What are mean and variance of all images? The solution:
# `exercise.solution("batch_statistics")`.


# %%
def batch_statistics(ranks):
    """(mean, variance) of the images of all ranks.

    ranks: for each rank (number of images, their mean, their variance).
    """
    ...


print(exercise.check("batch_statistics", batch_statistics))

# %% [markdown]
# ## When to use it and when not
#
# - **Bucket size**: leave it, unless a trace of *your* model on *your* machine shows that
#   communication is not hidden. Then measure several, several times.
# - **`gradient_as_bucket_view=True`**: yes, unless something in your program fails with it.
# - **`static_graph=True`**: when every step is the same. **`find_unused_parameters=True`**: only
#   when steps differ.
# - **bf16 hook**: on a slow link. **PowerSGD**: on a very slow one, with a comparison of what is
#   learned. Prove the training equal without a hook first.
# - **`join`**: when the data can't be made even.
# - **BatchNorm**: per rank if a rank has many images, synchronised if it has few.
#
# ## Sources
#
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   arXiv:2006.15704.
# - Vogels, Karimireddy and Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for
#   Distributed Optimization*, NeurIPS 2019, arXiv:1905.13727.
# - Stich, *Local SGD Converges Fast and Communicates Little*, ICLR 2019, arXiv:1805.09767.
#   Douillard et al., *DiLoCo*, 2023, arXiv:2311.08105: local steps with an outer optimizer.
# - Ioffe and Szegedy, *Batch Normalization*, 2015, arXiv:1502.03167. Goyal et al., 2017,
#   arXiv:1706.02677, on BatchNorm per worker.
# - PyTorch documentation: *DistributedDataParallel*, *DDP Communication Hooks*. Lightning 1.9,
#   `HorovodStrategy.setup` (the learning rate). Accelerate documentation, *Launching scripts*.
