# %% [markdown]
# # 04d DDP in real programs: the code around it, and what goes wrong
#
# **40 minutes**, on any machine, after lessons 04 and 04b.
#
# After this lesson you can write the lines that choose a rank's device, evaluate over ranks
# exactly, save and load, clip, accumulate, use a scaler and a compiler with DDP, say what a module
# may return, and find the rank that makes all others slow.

# %% [markdown]
# ## The question
#
# Lesson 04 wrapped a model and trained it. The programs that people bring have more in them. Which
# of these lines change what is trained, and which only look harmless?

# %%
from IPython.display import display

from bootcamp import (
    Table,
    check,
    claim,
    default_ranks,
    exercise,
    gpu_count,
    launch,
    plots,
    predict,
    script_diff,
    variant,
    warm_up,
)
from bootcamp_lessons import ddp_depth, ddp_practice
from bootcamp_lessons.excerpts import SNIPPETS, parse_printed, piece, show_snippet

warm_up()  # loads PyTorch in the background
RANKS = max(2, min(8, default_ranks()))
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
two = {"ranks": 2, "quiet": True}

# %% [markdown]
# ## The idea
#
# DDP averages gradients within `backward()`. Everything else follows from *when* and *where* that
# happens:
#
# | What people add | Where it belongs | Why |
# |---|---|---|
# | a device for each rank | before the process group | or several ranks share GPU 0 |
# | clipping | after `backward()` | then all ranks hold the same averaged gradient |
# | accumulation | `no_sync()` for all but the last part | only the sum needs to travel |
# | `GradScaler` | `scaler.step` after `backward()` | an infinity is averaged: all ranks see it |
# | `torch.compile` | on a model with a forward of its own | the compiler skips torch's own |
# | evaluation | `model.module`, sums and counts | ranks may have unequally many batches |
# | a checkpoint | `model.module` on rank 0, then a barrier | no `module.` in names, no half file |
#
# What DDP does *not* see is the rank's own time. All ranks leave `backward()` together, so each of
# them looks as slow as the slowest.

# %% [markdown]
# ## Predict
#
# 1. 41 held-out samples, in five batches of 8 and a last one of 1. Somebody takes the mean of each
#    batch, and the mean of the six means.
# 2. A module returns a tuple, a dictionary, or an object of a class of its own. DDP gets no option,
#    `find_unused_parameters=True`, or `static_graph=True`. That makes nine programs. All parameters
#    are used in all of them.
# 3. Several ranks. Before each forward pass rank 1 waits 100 ms for its data. You profile *rank 0*.

# %%
guess_weight = predict(
    "ddp_in_practice_weight",
    "1. How many times as much as any of the first 40 samples does the last one count?",
    unit="times",
)
guess_outputs = predict(
    "ddp_in_practice_outputs",
    "2. In how many of the nine do the ranks average their gradients?",
    unit="programs",
)
guess_late = predict(
    "ddp_in_practice_late",
    "3. How much more time than without the delay does rank 0 spend in collectives, in each step?",
    unit="ms",
)
display(guess_weight, guess_outputs, guess_late)

# %% [markdown]
# ## What changes
#
# ### The boilerplate
#
# The course's scripts get their device from `config.parse()`. Without the course it is written out:

# %%
show_snippet("ddp_boilerplate.py")

# %% [markdown]
# - `LOCAL_RANK` counts within a host. `rank % torch.cuda.device_count()`, in many older programs,
#   is the same only while every host has as many ranks as GPUs and the launcher fills them in
#   order.
# - `set_device` decides what "cuda" without a number means. Without it every rank's `.cuda()` goes
#   to GPU 0, which holds all the models.
# - `device_id=` ties the group to the GPU: NCCL connects at once, so that a fault shows here and
#   not in the first step, and `barrier()` need not guess a device.
# - `device_ids=[local_rank]` is the device of the wrapped module; DDP moves inputs there. On a CPU
#   module it raises. `None` is right for CPU ranks, and for a module on several devices.
# - In the wrapper's `state_dict()` names begin with `module.`, in the model's they do not.

# %% [markdown]
# ### In the loop
#
# A module that returns a tuple with a dictionary in it, a compiler, and clipping:

# %%
script_diff("ddp_in_practice")

# %% [markdown]
# `model.compile()` compiles in place, so the parameters keep their names. The default backend,
# inductor, writes and builds C++ or Triton code, which takes a minute on CPU ranks; `aot_eager`
# cuts the graph in the same places and builds nothing.

# %% [markdown]
# ## Run it
#
# The boilerplate on two CPU ranks.

# %%
boilerplate = parse_printed(launch(SNIPPETS / "ddp_boilerplate.py", **two))
assert all(row["loads rank 0's parameters"] and row["prefix removed"] for row in boilerplate)
for name, value in boilerplate[1].items():
    print(f"{name}: {value}")

# %% [markdown]
# Each rank began with parameters of its own and loaded those of rank 0. A file that somebody saved
# with the prefix is repaired by `nn.modules.utils.consume_prefix_in_state_dict_if_present`. On GPUs
# load with `map_location=device`: otherwise every rank loads the tensors onto rank 0's GPU.

# %% [markdown]
# ## Read the measurement
#
# ### Evaluation over ranks
#
# Three ways to evaluate the same model on the same 41 samples, on one, two and three ranks:
#
# - **mean of means**: a `DistributedSampler` deals out the samples, each rank takes the mean of its
#   batches' means, and the ranks' means are averaged;
# - **padded sums**: sums and counts, but of what that sampler deals out;
# - **sums**: each sample dealt once, sums and counts.

# %%
evaluated = [launch(SNIPPETS / "ddp_evaluate.py", n, quiet=True) for n in (1, 2, 3)]
table = ddp_practice.compare_evaluations(evaluated)
table

# %%
by_way = {(row["way"], row["ranks"]): row for row in table.rows}
weights = [1 / (6 * size) for size in (8, 1)]  # of a sample, in a mean of six means
print(guess_weight.score(weights[1] / weights[0], within=0, how="By formula"))
assert by_way["sums", 3]["accuracy"] == by_way["sums", 1]["accuracy"]
claim.equal(
    "ddp_sums_evaluate_exactly",
    "With sums and counts, three ranks have the loss of one process, to the last bit.",
    by_way["sums", 3]["loss"],
    by_way["sums", 1]["loss"],
    kind="count",
)

# %%
claim.larger(
    "ddp_mean_of_means_is_off",
    "The mean of means has another accuracy than one process, by more than one in 1,000.",
    abs(by_way["mean of means", 2]["accuracy"] - by_way["sums", 1]["accuracy"]),
    1 / 1000,
    kind="count",
)

# %% [markdown]
# The sampler makes the shares equal by dealing a sample twice: 42 are evaluated. Counts are whole
# numbers, so their sum is exact in any order. A sum of losses is not: floating-point addition
# depends on the order. Here each *batch* has a place of its own in a vector, the other ranks have
# 0 there, and every rank adds the places up in one order. If 1e-7 does not matter, two numbers
# are enough: `all_reduce` the sum, in float64, and the count.
#
# Evaluate `model.module`: the wrapper's forward pass may send buffers, such as BatchNorm's
# statistics, and a rank with one batch more would wait for the others. Perplexity, F1 and the like
# are *functions* of sums: reduce the sums, then apply the function.

# %% [markdown]
# ### What a module may return

# %%
outputs = parse_printed(launch(SNIPPETS / "ddp_outputs.py", **two))
print(guess_outputs.score(sum(row["gradients"] == "averaged" for row in outputs), within=0))
Table(outputs, "The gradients of two ranks after three steps")

# %%
claim.equal(
    "ddp_hidden_outputs_go_wrong",
    "Both options fail on an output that DDP can't look into, and on no other.",
    [row["returns"] for row in outputs if row["gradients"] != "averaged"].count("own class"),
    sum(row["gradients"] != "averaged" for row in outputs),
    kind="count",
)

# %% [markdown]
# Without an option DDP waits for every parameter and need not look at outputs. With
# `find_unused_parameters` it searches the graph behind the outputs that it finds, in tuples,
# lists, dictionaries and dataclasses. Behind an object of your own it finds nothing and takes all
# parameters for unused: an error. `static_graph` relies on those outputs too, and here **there is
# no error and nothing is averaged**. Only a proof, or a look at the ranks' parameters, shows it.

# %% [markdown]
# ### GradScaler
#
# In 16-bit training (lesson 02b) the scaler skips a step if a gradient is infinite. It looks at the
# gradients of *its* rank. In step 1 one gradient of rank 1 is infinite:

# %%
scaled = parse_printed(launch(SNIPPETS / "ddp_scaler.py", **two))
display(Table(scaled, "Two ranks after two steps"))
apart = {
    way: len({row["weight"] for row in scaled if row["averaged"] == way})
    for way in ("by DDP", "after the scaler looked")
}
assert apart["after the scaler looked"] == 2, "ranks that decide alone stayed together"
claim.equal(
    "ddp_scalers_decide_alike",
    "Averaged by DDP, an infinity reaches all ranks, and all leave the step out.",
    apart["by DDP"],
    1,
    kind="count",
)

# %% [markdown]
# The mean of an infinity and anything is infinite, so no rank has to tell the others. The second
# way averages by hand after `unscale_`, and to be safe puts zeros in place of infinities first
# (`nan_to_num`). Then each rank decides alone: rank 1 has seen an infinity and leaves the step out,
# rank 0 makes it, and the models diverge. Shards (lesson 07) need a scaler that asks all ranks.
# `autocast` goes around the forward pass as on one device. With clipping:
# `scaler.unscale_(optimizer)`, clip, `scaler.step(optimizer)`.

# %% [markdown]
# ### The compiler, and the order of wrapping
#
# Torch's compiler turns a forward pass into a graph. If that were one graph, its backward pass
# would hand over all gradients at the end, and DDP could overlap nothing. So while DDP runs, the
# compiler cuts the graph where DDP's buckets end (`torch._dynamo.config.optimize_ddp`). Four layers
# of 1 MiB, buckets of 1 and then 2 MiB:

# %%
orders = parse_printed(launch(SNIPPETS / "ddp_compile.py", **two))
own = [row["graphs"] for row in orders if row["forward"] == "own"]
assert orders[-1]["graphs"] == 0, "the compiler has found something in torch's own forward"
display(Table(orders, "torch.compile and DDP"))
claim.larger(
    "ddp_compiler_cuts_at_buckets",
    "The compiler gets several graphs, in each order of wrapping.",
    min(own),
    1,
    kind="count",
)

# %% [markdown]
# - In this version of torch each order is cut. What differs are the names in the checkpoint:
#   `_orig_mod.` is the compiler's, `module.` DDP's. `model.compile()` adds none.
# - **The last row has no graph.** The compiler begins at a function of *yours*. A plain
#   `nn.Sequential` inside DDP has none, so nothing is compiled, and there is no warning. If it is
#   compiled before it is wrapped, it has graphs.
# - Caps below 1 MiB are refused: the compiler takes the first bucket to be the smallest.

# %% [markdown]
# BatchNorm and `convert_sync_batchnorm` are in lesson 04b.
#
# ## Prove it
#
# The baseline is one process that clips, too. First the script as above: compiled, clipped, with a
# tuple. The last line of its output counts the graphs, since a compiler that does nothing would
# pass as well. Then accumulation with `no_sync`, in three parts, clipped once.

# %%
settings = {name: value for name, value in ddp_practice.FLAGS.items() if name != "quiet"}
practice = (
    (ddp_practice.make_compiled_script(), {"backend": "aot_eager", "model": "mlp"}),
    (ddp_practice.make_accumulating_script(), {"micro_batches": 3, "model": "gpt"}),
)
for script, own in practice:
    for optimizer in ("sgd", "adamw"):
        flags = {**settings, "optimizer": optimizer}
        run = launch(script, 2, device="cpu", quiet=True, **own, **flags)
        print(run.output(0).strip())
        alone = ddp_practice.launch_baseline(model=own["model"], optimizer=optimizer)
        display(check.same_training(run, alone))

# %% [markdown]
# ## Break it
#
# ### First: one slow rank
#
# A **straggler** is a rank that comes late to every collective: its storage is slow, its GPU too
# hot, its core shared. The job is as slow as its slowest rank. Here rank 1 waits 100 ms for its
# data in each step. Where does it show?

# %%
read = "inputs, targets = (tensor.to(device) for tensor in batches(step))"
late = variant(
    "ddp",
    "ddp_late",
    {
        "import torch": "import time\n\nimport torch",
        read: f"time.sleep(0.1 * (rank == 1))  # slow storage\n{read}",
    },
)
short = {"device": DEVICE, "global_batch": 16 * RANKS, "quiet": True}
short |= {"model": "mlp", "steps": 5, "trace_step": 3}
claim.faster(
    "ddp_late_rank_shows_on_the_others",
    "Rank 0's collectives take less than half the time when rank 1 is not late.",
    lambda: launch("ddp", RANKS, **short).ranks[0]["communication_seconds"],
    lambda: launch(late, RANKS, **short).ranks[0]["communication_seconds"],
    by=2,
    seconds=30,
    names=("communication beside a rank in time", "beside a late one"),
    otherwise="Here the ranks wait for each other about as long without the delay.",
)

# %% [markdown]
# The healthy rank looks as if it had a slow network. Its collectives last until the last rank has
# come: **waiting is not communicating**. Put the traces of all ranks side by side: how long each
# computes, waits for others in collectives, sends (both counted only while it computes nothing),
# and does neither.

# %%
even, slow = launch("ddp", RANKS, **short), launch(late, RANKS, **short)
display(ddp_depth.split_step(even), ddp_depth.split_step(slow))
plots.show(plots.timeline(slow))
in_collectives = [run.ranks[0]["communication_seconds"] for run in (even, slow)]
guess_late.score(1e3 * (in_collectives[1] - in_collectives[0]))

# %% [markdown]
# The rank that waits least is the late one. Its column `neither` says that it neither computed nor
# communicated: look at its input. Had `computes` been longer, look at its clock, its temperature
# and at who else uses its core. If all ranks wait alike, it is the network after all, or ranks that
# take turns in being late.
#
# ### Second: one that is a little late
#
# A trace is one step, and 100 ms are easy to see. A smaller delay needs many steps, and a
# measurement that can stay on. A communication hook (lesson 04b) that notes the time is one: a
# rank's **own work** lasts from the beginning of the step until its last bucket is full. No clocks
# of different hosts are compared.

# %%
display(piece(ddp_practice.STRAGGLERS, "def all_reduce_and_note", "print(json"))
paced = launch(ddp_practice.STRAGGLERS, 2, late=1, by=0.3, quiet=True)
print(f"the late rank: {ddp_practice.find_straggler(paced)}")
ddp_practice.table_paces(paced)

# %% [markdown]
# The late rank sleeps for 30 % of what its own work took in the first steps. Nobody waits for *it*,
# yet its last column is not zero: until the gradients are averaged they also have to be sent. What
# the others have above that is their waiting. The tool names a rank whose own work takes at least
# 1.15 times as long as that of the next slowest. It compares lowest deciles: what else the machine
# does makes single steps longer, never shorter. So it finds a rank that is *always* late. One that
# is late now and then shows in the upper quartile.
#
# ### Third: a rank that never comes
#
# Rank 1 of three sleeps before a backward pass. The others wait in an all-reduce, and their stacks
# look alike. Torch's flight recorder keeps each rank's last collectives; the launcher has asked all
# ranks for theirs before it ended them.

# %%
from bootcamp.launcher import hang

hung = hang.read(ddp_practice.launch_stuck(1))
assert (hung.kind, hung.ranks) == ("missing", (1,)), hung.sentence
hung

# %% [markdown]
# Lesson 04b reads such a dump after a timeout without a launcher, with `torchfrtrace`; lesson 09b
# does so on several hosts. A rank that is alive shows more: `py-spy dump --pid`.

# %% [markdown]
# ## Exercise
#
# ### First: evaluate over ranks
#
# Write the evaluation so that each sample counts once, whatever the sampler did. The solution:
# `exercise.solution("evaluate_over_ranks")`.


# %%
def evaluate_over_ranks(ranks):
    """The mean loss of the held-out samples, each of which counts once.

    ranks: for each rank its batches, and for each batch {id of a sample: its loss}. A sampler may
    have dealt a sample to several ranks.
    """
    ...


print(exercise.check("evaluate_over_ranks", evaluate_over_ranks))

# %% [markdown]
# ### Second: clip over ranks
#
# Which gradient does an optimizer get under DDP with clipping? The solution:
# `exercise.solution("clip_over_ranks")`.


# %%
def clip_over_ranks(gradients, most):
    """The gradient with which every rank's optimizer takes its step, of a norm of at most `most`.

    gradients: each rank's own, a list of numbers, as the backward of its share gives it.
    """
    ...


print(exercise.check("clip_over_ranks", clip_over_ranks))

# %% [markdown]
# ### Third: who is late?
#
# Write the diagnosis of "one slow rank" as a function of the table of traces: a dictionary for each
# rank, in milliseconds. The solution: `exercise.solution("late_rank")`.


# %%
def late_rank(ranks):
    """(rank that the others wait for, "computes" or "neither", milliseconds to be gained).

    ranks: [{"computes": 110.0, "waits": 80.0, "neither": 10.0}, ...], the parts of one step. The
    part is the one that is too long. Gained: if that rank were as fast as the next slowest.
    """
    ...


print(exercise.check("late_rank", late_rank))

# %% [markdown]
# Then give it the measured table: `late_rank(ddp_depth.split_step(slow).rows)`.

# %% [markdown]
# ## When to use it and when not
#
# - **`find_unused_parameters`, `static_graph`**: only with outputs that DDP can look into.
# - **Clipping**: after `backward()`, and after the last micro-batch. Sharded models need the norm
#   of all shards (lesson 13).
# - **Evaluation**: sums and counts; a `DistributedSampler` without `drop_last` deals samples twice.
# - **`torch.compile`**: count the graphs once; in place, if checkpoints go to other programs.
# - **A slow job**: each rank's own time first, the network afterwards.
#
# **Do not** trust that a program which ends is right: four of the faults above raise nothing.
#
# ## Sources
#
# - PyTorch documentation: *DistributedDataParallel*, *torch.compile*, *Automatic Mixed Precision
#   examples* (gradient clipping, several GPUs), *torch.distributed*. The search for tensors in
#   outputs, and the cut at buckets, were read in `torch/nn/parallel/distributed.py` and
#   `torch/_dynamo/backends/distributed.py` of torch 2.13.
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   arXiv:2006.15704.
# - Pascanu, Mikolov and Bengio, *On the difficulty of training recurrent neural networks*, ICML
#   2013, arXiv:1211.5063: clipping by norm.
