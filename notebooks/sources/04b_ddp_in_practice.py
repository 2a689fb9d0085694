# %% [markdown]
# # 04b DDP in real programs: the code around it, and what goes wrong
#
# **34 minutes**, on any machine, after lesson 04.
#
# After this lesson you can write the lines that choose a rank's device, deal out a dataset,
# evaluate over ranks exactly, save and load, clip, accumulate, use a scaler and a compiler with
# DDP, and say what a module may return.
#
# ## The question
#
# Lesson 04 wrapped a model and trained it. The programs that people bring have more in them. Which
# of these lines are harmless, and which only look it?

# %%
from IPython.display import display

from bootcamp import Table, check, claim, exercise, launch, predict, script_diff, variant, warm_up
from bootcamp_lessons import ddp_practice
from bootcamp_lessons.excerpts import SNIPPETS, list_epochs, parse_printed, piece, show_snippet

warm_up()  # loads PyTorch in the background
two = {"ranks": 2, "quiet": True}

# %% [markdown]
# ## The idea
#
# DDP averages gradients within `backward()`. Much of what people add depends on *when* and *where*
# that happens:
#
# | What people add | Where it belongs | Why |
# |---|---|---|
# | a device for each rank | before the process group | or several ranks share GPU 0 |
# | clipping | after `backward()` | then all ranks hold the same averaged gradient |
# | accumulation | `no_sync()` for all but the last part | only the sum needs to travel |
# | `GradScaler` | `scaler.step` after `backward()` | an infinity is averaged: all ranks see it |
# | `torch.compile` | on a model with a forward of its own | the compiler skips torch's own |
# | a loss over padding | one division by all tokens | means of means weigh tokens unequally |
# | evaluation | `model.module`, sums and counts | ranks may have unequally many batches, or none |
# | a checkpoint | `model.module` on rank 0, then a barrier | no `module.` in names, no half file |
#
# ## Predict
#
# 1. One process evaluates 41 held-out samples, in five batches of 8 and a last one of 1. Somebody
#    takes the mean loss of each batch, and the mean of the six means. The last sample is hard: its
#    loss is 8.9, the mean of the others 3.3.
# 2. A module returns a tuple, a dictionary, a dataclass or a plain object. DDP gets no option,
#    `find_unused_parameters=True` (it searches for unused parameters) or `static_graph=True` (all
#    steps are alike). All twelve programs use all parameters.
# 3. Two ranks pass three times through 127 samples (each pass is an **epoch**) with a
#    `DistributedSampler` that shuffles. Somebody forgot `sampler.set_epoch(epoch)`, which tells the
#    sampler which pass begins.
# 4. Sixteen texts, 149 tokens on rank 0 and 97 on rank 1. Each rank takes the mean over its own
#    tokens, and AdamW makes three steps.

# %%
guess_mean = predict(
    "ddp_in_practice_mean",
    "1. By how many percent is that loss off the mean over all samples?",
    unit="%",
)
guess_outputs = predict(
    "ddp_in_practice_outputs",
    "2. In how many of the twelve do the ranks average their gradients?",
    unit="programs",
)
guess_seen = predict(
    "ddp_in_practice_seen", "3. How many different samples does rank 0 train on?", unit="samples"
)
guess_tokens = predict(
    "ddp_in_practice_tokens",
    "4. How far from those of one process are the parameters, in percent of the way they moved?",
    unit="%",
)
display(guess_mean, guess_outputs, guess_seen, guess_tokens)

# %% [markdown]
# ## What changes
#
# ### The boilerplate
#
# The course's scripts get their device from `config.parse()`. Written out:

# %%
show_snippet("ddp_boilerplate.py")

# %% [markdown]
# - `torch.accelerator` is `torch.cuda` for whatever this torch was built for: NVIDIA's, AMD's,
#   Intel's GPUs.
# - `LOCAL_RANK` counts within a host. `rank % torch.cuda.device_count()`, in many older programs,
#   is sure to be the same only if every host has as many ranks as GPUs and the launcher fills hosts
#   in order.
# - `set_device_index` (or `torch.cuda.set_device`) decides what "cuda" without a number means.
#   Without it every rank's `.cuda()` goes to GPU 0, which holds all the models.
# - `device_id=` ties the group to the GPU: NCCL connects at once, so that a fault shows here and
#   not in the first step, and `barrier()` need not guess a device.
# - `device_ids=[local_rank]` is the device of the wrapped module; DDP moves inputs there. On a CPU
#   module it raises. `None` is right for CPU ranks, and for a module on several devices.
#   (`src/snippets/ddp_device_ids.py` tries each, one device on `meta`.)
# - In the wrapper's `state_dict()` names begin with `module.`, in the model's they do not. A file
#   with the prefix is repaired by `nn.modules.utils.consume_prefix_in_state_dict_if_present`.
#
# ### The data
#
# Most programs read a dataset with a `DataLoader`; a `DistributedSampler` gives each rank its share
# of every epoch:
#
# ```python
# sampler = DistributedSampler(dataset, world, rank, shuffle=True)
# loader = DataLoader(dataset, batch_size=global_batch // world, sampler=sampler)
# for epoch in range(epochs):
#     sampler.set_epoch(epoch)
#     for inputs, targets in loader:
#         ...
# ```
#
# `batch_size` is a *rank's* batch. The sampler shuffles by a seed and the epoch, the same on all
# ranks, and each rank takes every *N*-th of the result.
#
# ### In the loop
#
# A module that returns a tuple with a dictionary in it, a compiler, and clipping:

# %%
script_diff("ddp_in_practice")

# %% [markdown]
# `model.compile()` compiles in place, so the parameters keep their names. The default backend,
# inductor, writes and builds C++ or Triton code, which can take a minute on CPU ranks; `aot_eager`
# cuts the graph in the same places and builds nothing.
#
# ## Run it
#
# The boilerplate on two CPU ranks.

# %%
boilerplate = launch(SNIPPETS / "ddp_boilerplate.py", **two)
print(boilerplate.output(0) + boilerplate.output(1))

# %% [markdown]
# Each rank loaded rank 0's parameters. On GPUs load with `map_location=device`: otherwise every
# rank loads the tensors onto rank 0's GPU.
#
# ## Read the measurement
#
# ### Evaluation over ranks
#
# Three ways to evaluate one model on 41 samples, on one, two and three ranks:
#
# - **mean of means**: a `DistributedSampler` deals out the samples, each rank takes the mean of its
#   batches' means, and the ranks' means are averaged;
# - **padded sums**: sums and counts, but of what that sampler deals out;
# - **sums**: each sample dealt once, sums and counts.

# %%
evaluated = [launch(SNIPPETS / "ddp_evaluate.py", n, quiet=True) for n in (1, 2, 3)]
table = ddp_practice.compare_evaluations(evaluated)
display(piece(SNIPPETS / "ddp_evaluate.py", "places = torch.zeros", "in_order"), table)

# %%
by_way = {(row["way"], row["ranks"]): row for row in table.rows}
means, sums = (by_way[way, 1]["loss"] for way in ("mean of means", "sums"))
print(guess_mean.score(100 * abs(means / sums - 1)))
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
    "On two ranks the mean of means is more than 0.1 off the loss of one process.",
    abs(by_way["mean of means", 2]["loss"] - sums),
    0.1,
    kind="count",
)

# %% [markdown]
# In one process the last sample is a sixth of the mean of means, each other a 48th. And the sampler
# makes the shares equal by dealing samples twice (`drop_last=True` leaves some out instead): here
# 42 are evaluated. Sums of counts are exact in any order, sums of losses may depend on it. So each
# *batch* has a place of its own in a vector, the other ranks have 0 there, and every rank adds the
# places up in one order. If the last digits do not matter, two numbers are enough: `all_reduce` the
# sum, in float64, and the count. (With the same batches that gives the same bits here, since
# float64 adds a few float32 losses exactly; other batches are about 1e-7 off.)
#
# Evaluate `model.module`: the wrapper's first forward pass after a training step sends buffers
# (BatchNorm's statistics), and a rank without any batch leaves the others waiting. Perplexity, F1
# and the like are *functions* of sums: reduce the sums, then apply the function.
#
# ### Ranks with unequally many tokens
#
# The same mean of means can be in the *training*. Texts differ in length, the rest is padding, and
# each rank takes the mean over its own tokens, as `cross_entropy` does; then DDP averages. Instead
# divide the *sum* of the losses by the tokens of the complete batch, and multiply by the number of
# ranks, by which DDP divides:
#
# ```python
# tokens = (targets != -100).sum()  # -100: the padding, which cross_entropy leaves out
# dist.all_reduce(tokens)
# loss = cross_entropy(scores, targets, reduction="sum") * world / tokens
# ```
#
# What a small GPT learns in three steps, divided by all tokens or by something else:

# %%
means = parse_printed(launch(SNIPPETS / "token_means.py", **two))
for row in means:
    equal = max(row["sgd: apart"], row["adamw: apart"]) < 1e-9
    assert equal == (row["divided by"] == "all tokens"), row
shown = [row for row in means if row["way"] in ("DDP", "accumulation")]
display(
    Table(
        shown, "Parameters against one process, relative to how far these moved; the reported loss"
    )
)
guess_tokens.score(100 * shown[1]["adamw: apart"])

# %% [markdown]
# A token of rank 1 counts 149/97 of one of rank 0, and the loss hardly tells. Whoever divides by
# all positions, padding included, sees a far better loss: the gradients are too small by the same
# factor, which slows SGD down and hardly changes AdamW's steps. With micro-batches, count the
# tokens of all of them first. Lesson 08c does it for FSDP and a pipeline.
#
# ### What a module may return

# %%
outputs = parse_printed(launch(SNIPPETS / "ddp_outputs.py", **two))
print(guess_outputs.score(sum(row["gradients"] == "averaged" for row in outputs), within=0))
Table(outputs, "The gradients of two ranks after three steps")

# %%
failed = [row["option"] for row in outputs if row["gradients"] != "averaged"]
assert failed.count("find_unused_parameters") == 1, failed
claim.equal(
    "ddp_hidden_outputs_go_wrong",
    "find_unused_parameters fails on one kind of output, static_graph on two.",
    failed.count("static_graph"),
    2,
    kind="count",
)

# %% [markdown]
# Without an option DDP waits for every parameter and need not look at outputs. With
# `find_unused_parameters` it searches the graph behind the outputs that it finds, in tuples, lists,
# dictionaries and dataclasses. In a plain object it finds nothing and takes all parameters for
# unused: an error. `static_graph` finds what `torch.utils._pytree` can flatten: tuples, lists and
# dictionaries, but dataclasses only once registered (`register_dataclass`). If it finds nothing,
# **there is no error and nothing is averaged**.
#
# ### GradScaler
#
# In fp16 training (lesson 02b) the scaler skips a step if a gradient is infinite or NaN. It looks
# at the gradients of *its* rank. In step 1 one gradient of rank 1 is infinite. In one program DDP
# averages, in `backward()`. The other averages by hand, after `unscale_`, in which the scaler
# looks, and to be safe puts zeros in place of infinities:

# %%
scaled = parse_printed(launch(SNIPPETS / "ddp_scaler.py", **two))
display(piece(SNIPPETS / "ddp_scaler.py", "scaler.unscale_", "        scaler.step"))
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
# A mean with an infinity is infinite or NaN, so no rank has to tell the others. By hand each rank
# decides alone: rank 1 has seen an infinity and leaves the step out, rank 0 makes it, and the
# models diverge. With FSDP2's shards (lesson 07) the scaler asks all ranks. With clipping:
# `scaler.unscale_(optimizer)`, clip, `scaler.step(optimizer)`.
#
# ### The compiler, and the order of wrapping
#
# Torch's compiler turns a forward pass into a graph. If that were one graph, its backward pass
# would hand over all gradients at the end, and DDP could overlap nothing. So while DDP runs, the
# compiler cuts the graph where DDP's buckets end (`torch._dynamo.config.optimize_ddp = False`
# switches that off). Four layers of 1 MiB, a cap of 2 MiB (for the first bucket the compiler always
# takes 1 MiB, DDP only by default):

# %%
orders = parse_printed(launch(SNIPPETS / "ddp_compile.py", **two))
own = [row["graphs"] for row in orders if row["forward"] == "own"]
assert orders[-1]["graphs"] == 0, "the compiler has found something in torch's own forward"
display(Table(orders, "torch.compile and DDP"))
claim.larger(
    "ddp_compiler_cuts_at_buckets",
    "With a forward of its own, each order of wrapping gives several graphs.",
    min(own),
    1,
    kind="count",
)

# %% [markdown]
# - In this version of torch each order is cut. What differs are the names in the checkpoint:
#   `_orig_mod.` is the compiler's, `module.` DDP's. `model.compile()` adds none.
# - **The last row has no graph.** The compiler begins at a function of *yours*. A plain
#   `nn.Sequential` inside DDP has none, so nothing is compiled, and there is no warning.
#
# ### Accumulation and `no_sync`
#
# With gradient accumulation a share is cut into micro-batches, whose gradients add up (lesson 02b).
# Under plain DDP each backward pass averages, though only the sum matters. `model.no_sync()`
# switches that off for all but the last micro-batch. The *forward pass* must be inside it too: that
# is where DDP decides.

# %%
display(piece(ddp_practice.ACCUMULATE, "for micro in range", "loss +="))

# %%
line = "synchronise = nullcontext() if last else model.no_sync()"
each_time = variant(
    ddp_practice.ACCUMULATE, "ddp_accumulate_each", {line: "synchronise = nullcontext()"}
)
four = {**two, "device": "cpu", **check.settings(2), "global_batch": 16, "micro_batches": 4}
once, often = (launch(script, **four) for script in (ddp_practice.ACCUMULATE, each_time))
for run in (once, often):
    check.same_training(run, check.baseline(steps=four["steps"], global_batch=16))
claim.equal(
    "ddp_no_sync_bytes",
    "With 4 micro-batches, no_sync saves three quarters of the bytes.",
    once.ranks[0]["sent_bytes_per_step"],
    (often.ranks[0]["sent_bytes_per_step"] or 0) / 4,
    within=0.05,
)

# %% [markdown]
# ## Prove it
#
# The baseline is one process that clips, too. First the script as above: compiled, clipped, with a
# tuple. It prints how many graphs the backend got, since a compiler that does nothing, or cuts
# nothing, would pass as well. Then accumulation with `no_sync`, in three parts, clipped once.

# %%
settings = {name: value for name, value in ddp_practice.FLAGS.items() if name != "quiet"}
practice = (
    (ddp_practice.make_compiled_script(), {"backend": "aot_eager"}),
    (ddp_practice.make_accumulating_script(), {"micro_batches": 3}),
)
for script, own in practice:
    for optimizer in ("sgd", "adamw"):
        flags = {**settings, "model": "gpt", "optimizer": optimizer}
        run = launch(script, 2, device="cpu", quiet=True, **own, **flags)
        if "backend" in own:
            said = run.output(0).strip()
            assert int(said.removeprefix("graphs: ")) > 1, "the compiler has cut nothing"
            print(said)
        alone = ddp_practice.launch_baseline(model="gpt", optimizer=optimizer)
        display(check.same_training(run, alone))

# %% [markdown]
# ## Break it
#
# ### A sampler that is not told the epoch
#
# Two ranks train three epochs on 127 samples, which cannot be shared equally; then the same without
# `set_epoch`. What harm does that do?

# %% tags=["nbval-check-output"]
loading = SNIPPETS / "ddp_with_dataloader.py"
forgot = variant(loading, "ddp_forgot_set_epoch", {"sampler.set_epoch(epoch)": "pass"})
epochs = {"device": "cpu", "steps": 12, "global_batch": 32, "samples": 127, **two}
told, forgotten = (launch(script, **epochs) for script in (loading, forgot))
print(list_epochs(told, caption="with set_epoch"), "\n")
print(list_epochs(forgotten, caption="without set_epoch"))

# %%
guess_seen.score(len({i for ids in forgotten.ranks[0]["sample_ids"] for i in ids}), within=0)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The sampler shuffles with the same seed in every epoch: the same batches in the same order, and
# each rank sees only its own half of the data, always. The model still learns from all 127, since
# gradients are averaged; what is lost is the new order, and the new mixture of each batch. Nothing
# fails and the loss falls. It shows only in the ids, so look at them once in each new program.
# </details>
#
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

    gradients: each rank's own, a list of numbers, as `backward()` on its share gives it.
    """
    ...


print(exercise.check("clip_over_ranks", clip_over_ranks))

# %% [markdown]
# ## When to use it and when not
#
# - **`find_unused_parameters`, `static_graph`**: only with outputs that the option looks into.
# - **Clipping**: after `backward()`, and after the last micro-batch. Sharded models need the norm
#   of all shards (lesson 07).
# - **Means**: divide once, over ranks too: tokens in training, samples in evaluation.
# - **`torch.compile`**: count the graphs once; in place, if checkpoints go to other programs.
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
