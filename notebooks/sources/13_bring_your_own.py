# %% [markdown]
# # 13 Bring your own model: your script on several ranks, and the proof
#
# **60 minutes**, on any machine, after lesson 04; the part "To shards" after lesson 07. Optional
# parts, and the port of your own script, come on top.
#
# After this lesson you can take a training script that knows nothing of ranks, give it a seam where
# ranks fit in, move it to DDP and to shards, prove that it trains what one process trains, and
# evaluate it correctly.

# %% [markdown]
# ## The question
#
# The course's scripts were written to be moved to ranks. Yours was not. What has to be done to it,
# in which order, and how do you know that the ranks train what one process trains?
#
# Here is a script as people bring it. What would go wrong if two copies of it ran side by side?

# %%
from IPython.display import Code, display

from bootcamp import check, claim, exercise, launch, predict, warm_up
from bootcamp.paths import LOGS, SRC
from bootcamp.scripts.diff import ScriptDiff

warm_up()
BRING = SRC / "snippets" / "bring"
Code(BRING / "as_it_came.py", language="python")

# %% [markdown]
# ## The idea
#
# Three steps:
#
# 1. **A seam.** Still one process, but the script has a rank and a world size (0 of 1), deals out
#    its samples by them, and writes a record. The order of the samples changes here, so its losses
#    fall as before, but are not equal. From now on this script is the baseline.
# 2. **Ranks.** The seam is filled: a process group, DDP, sums over the ranks. It must train as in
#    step 1, and that is proved.
# 3. **What you came for.** Shards, a pipeline, mixed precision. Prove it against step 1 too, or say
#    why it can't be equal.
#
# Do not skip the first: if you change the order of samples *and* the number of ranks in one step,
# you cannot tell which of the two changed the loss.

# %% [markdown]
# ## Predict

# %%
guess_copies = predict(
    "bring_your_own_copies",
    "Two copies of the script run side by side, started by torchrun. By how many percent do their "
    "validation losses differ at the end?",
    unit="%",
)
guess_counted = predict(
    "bring_your_own_counted",
    "41 validation samples, and a DistributedSampler for each of 4 ranks, without drop_last. How "
    "many samples do the ranks evaluate together?",
    unit="samples",
)
guess_steps = predict(
    "bring_your_own_batchnorm",
    "No dropout, no augmentation, but BatchNorm as it is. In how many of 16 steps does the loss of "
    "two ranks with DDP differ from that of one process?",
    unit="steps",
)
for guess in (guess_copies, guess_counted, guess_steps):
    display(guess)

# %% [markdown]
# ## What changes
#
# ### Nothing: two copies

# %%
copies = launch(BRING / "as_it_came.py", ranks=2, best=LOGS / "best.pt")
first, second = (float(copies.output(rank).split()[-1]) for rank in (0, 1))
guess_copies.score(100 * abs(first - second) / first)

# %% [markdown]
# Both set seed 0, so they have the same model, split, batches, masks and flips: twice the work for
# one result. Both also wrote one file, at the same moment.
#
# ### The seam

# %%
ScriptDiff(BRING / "recorded.py", BRING / "as_it_came.py")

# %% [markdown]
# - **The order.** `shuffle=True` was an order that only the DataLoader knew. A `DistributedSampler`
#   computes one from its seed and the epoch, and deals it out: rank 0 gets positions 0, N, 2N and
#   so on. So **the samples of a step are the same for any number of ranks**, if a rank's batch is
#   `batch_size // world`. `set_epoch` gives each epoch another order.
# - **The seeds.** Split and model are made with the same seed on all ranks. Then each rank gets a
#   seed of its own, for dropout masks and flips. (Ranks that hold one model together, as in tensor
#   parallelism, keep the same seed.)
# - **BatchNorm** is frozen for the proof, in each epoch, since `model.train()` undoes it.
# - **The validation** takes every `world`-th sample and divides by the number of all.
# - `own_script` writes the course's record for a script of your own. `Run` notes which samples the
#   DataLoader deals out, and refuses a DataLoader whose batches can't be cut into equal shares;
#   `loss` and `note` take what must be equal on any number of ranks. If you accumulate gradients,
#   `batches=4` says that a step takes four batches. A loop without a DataLoader gives the number of
#   samples of a step on this rank instead, and calls `run.samples(ids, inputs, targets)` in each.
#
# ### The ranks

# %%
ScriptDiff(BRING / "with_ddp.py", BRING / "recorded.py")

# %% [markdown]
# - Training calls `wrapped`, so gradients are averaged before they are clipped. Everything else
#   uses `model`: the names in `best.pt` have no `module.` in front, and the validation does not
#   wait for other ranks, which may have fewer batches. (On GPUs the device is that of `LOCAL_RANK`,
#   as in lesson 04.)
# - DDP copies rank 0's **buffers**, BatchNorm's statistics, at the beginning of a step. After an
#   epoch they differ; the `broadcast` makes all ranks evaluate what rank 0 saves.
# - All ranks have the same `valid_loss`, so they agree on `best`. One rank writes.
# - The schedule is as it was: one step of it for each step of the optimizer.
#
# ## Prove it
#
# Dropout and flips are switched off and BatchNorm is frozen, for both.

# %%
proven = {"dropout": 0.0, "flip": 0.0, "freeze": True}
alone = launch(BRING / "recorded.py", ranks=1, **proven)
together = launch(BRING / "with_ddp.py", ranks=2, **proven)
check.same_training(together, alone)

# %% [markdown]
# If your optimizer is Adam or AdamW, prove with SGD too: Adam divides a gradient by its own size,
# so it hides gradients that are twice too large (lesson 04). And prove on 4 ranks besides 2: with
# two, `rank` and "not rank 0" are one and the same, and some faults cancel.
#
# ### A loop without a DataLoader (optional)
#
# `nano.py` draws its batches with `get_batch`, has `--max_iters` and other flags with underscores
# (`launch` takes the spelling of the script), accumulates, clips, ties two layers and trains with
# AdamW. Its port, and the proof in two types of number:

# %%
display(ScriptDiff(BRING / "nano_ddp.py", BRING / "nano.py"))
for dtype in ("float32", "float64"):
    nano = {"dtype": dtype, "max_iters": 8, "quiet": True}
    alone_nano = launch(BRING / "nano.py", ranks=1, **nano)
    display(check.compare(launch(BRING / "nano_ddp.py", ranks=2, **nano), alone_nano))

# %% [markdown]
# In float32 all losses agree, and still the parameters end apart; in float64 nothing is left of
# it. So it was rounding, and most of it is in one place: in exact arithmetic the bias of
# attention's keys has no gradient, and AdamW divides the rounding by its own size.
#
# ### A class without flags, a loss over tokens (optional)
#
# `trainer.py` is a class with a configuration in place of flags, so `launch` can pass it none. Its
# texts have different lengths, and padding does not count in the loss. Why is the port's `loss` no
# longer one line?

# %%
display(ScriptDiff(BRING / "trainer_ddp.py", BRING / "trainer.py"))
alone_trainer = launch(BRING / "trainer.py", ranks=1, quiet=True)
check.same_training(launch(BRING / "trainer_ddp.py", ranks=2, quiet=True), alone_trainer)

# %% [markdown]
# A rank whose texts are short has few tokens. In a mean of the ranks' means, each of them would
# count more than one of another rank.
#
# ## Read the measurement
#
# The bytes can be predicted before you buy a second device. Whether it pays in time, measure with
# *your* model (`claim.faster`).

# %%
claim.equal(
    "bring_sends_its_gradients",
    "A rank sends what the formula of a ring says for the gradients, 2 (N - 1) / N times their "
    "bytes; the loss and BatchNorm's buffers add little.",
    together.ranks[0]["sent_bytes_per_step"],
    together.predicted_sent_bytes_per_step,
    within=0.2,
)

# %% [markdown]
# Why does the validation not use a `DistributedSampler`, as training does?

# %%
from torch.utils.data.distributed import DistributedSampler

counted = sum(len(DistributedSampler(range(41), 4, rank)) for rank in range(4))
print(guess_counted.score(counted, within=0))
claim.larger(
    "bring_samples_counted_twice",
    "A DistributedSampler makes shares equal by dealing some samples out twice.",
    counted,
    41,
    kind="count",
)

# %% [markdown]
# With `drop_last=True` it leaves some out instead. Training can live with that, a metric can't.
#
# ## Break it
#
# The same port, and BatchNorm as it came: each rank normalises by its own share of the batch.

# %%
unfrozen = {**proven, "freeze": False, "quiet": True}
broken = check.compare(
    launch(BRING / "with_ddp.py", ranks=2, **unfrozen),
    launch(BRING / "recorded.py", ranks=1, **unfrozen),
)
display(broken)
print(guess_steps.score(len(broken.pair.wrong_steps), within=0))
claim.equal(
    "bring_batchnorm_is_another_training",
    "BatchNorm over a share changes every loss, the first one included.",
    len(broken.pair.wrong_steps),
    len(broken.pair.losses),
    kind="count",
)

# %% [markdown]
# Nothing is wrong with the port; it is another training. Leave it so, as is common where shares are
# not small. Or, on GPUs, call `nn.SyncBatchNorm.convert_sync_batchnorm(model)` before the model is
# wrapped. Its layers take the statistics over all ranks, and train what one process does, up to
# rounding (which BatchNorm may magnify: lesson 04d). On CPU ranks torch refuses them;
# `src/_train_ddp_sync_batchnorm.py` has a layer that works there.
#
# What else makes the training unequal:
#
# | In the script | Why it differs | What to do |
# |---|---|---|
# | dropout, augmentation | other random numbers | off for the proof, then `seed + rank` |
# | a loss that sums or skips padding | its mean over ranks is wrong | divide by all ranks' count |
# | clipping in shards | the norm must be that of all shards | `clip_grad_norm_` does so (FSDP2) |
# | more samples a step | fewer steps, another schedule | keep the global batch for the proof |
#
# ## Exercise
#
# ### A correct evaluation
#
# The first script trains correctly; its validation loss is wrong. The second script is for "To
# shards". `exercise.solution("bring_evaluation")` shows the solution as a diff.

# %%
print(exercise.start("bring_evaluation"))
print(exercise.start("bring_fsdp"))

# %%
print(exercise.check("bring_evaluation"))

# %% [markdown]
# ### To shards
#
# After lesson 07: shard the DDP script. Clipping stays as it is; saving does not. (Each forward
# pass gathers now, so all ranks need equally many validation batches.)
# `exercise.solution("bring_fsdp")` shows the solution as a diff.

# %%
print(exercise.check("bring_fsdp"))

# %% [markdown]
# ### Yours
#
# An hour or so for a script of a few hundred lines:
#
# 1. **Ten quick steps** (10 minutes). Copy the script to `notebooks/work/`, and switch off by
#    flags what is drawn at random. `random` and numpy have seeds of their own; in a DataLoader's
#    workers torch sets them.
# 2. **The seam and the record** (15 minutes), in one process. Run it twice: it must equal itself.
#
#    ```python
#    from bootcamp.train import own_script
#    run_dir = own_script.begin()     # before its own flags are parsed
#    run = own_script.Run(run_dir, model, optimizer, loader, world, steps)
#    with run.step():                 # around each step of the optimizer
#    run.loss(mean_loss)              # behind that block
#    run.finish()
#    ```
#
# 3. **The ranks** (20 minutes), in another file. Prove on 2 ranks, then on 4.
# 4. **Take the record out**: those six lines. The seam stays.
#
# Three rows say "NO" most often. *Samples that two ranks trained on*: the loader has no sampler. *A
# step's loss*, from the first on: something random is left, or a mean of means. *Final parameters*,
# with all losses equal: rounding under AdamW, or clipping before averaging.
#
# Name both files below, with the flags that switch randomness off, if they have any. Left empty,
# the cell takes the course's example.

# %%
MINE_ALONE, MINE_ON_RANKS = None, None  # such as "work/mine.py", "work/mine_ddp.py"
FLAGS = {} if MINE_ALONE else proven

baseline = launch(MINE_ALONE or BRING / "recorded.py", ranks=1, quiet=True, **FLAGS)
on_ranks = launch(MINE_ON_RANKS or BRING / "with_fsdp.py", ranks=2, quiet=True, **FLAGS)
check.compare(on_ranks, baseline)

# %% [markdown]
# Begin with the first row that says "NO", and its hint: it makes those below it wrong.
#
# ## When to use it and when not
#
# **Prove a port** when you change how a model is trained and mean to keep what it learns: wrapper,
# number of ranks, version of a library. Ten steps are enough.
#
# **Do not** expect equality when you change the arithmetic on purpose: bfloat16, compressed
# gradients, another batch. Then compare what you care about, such as the loss after a day, over
# several seeds.
#
# **Leave the seam in.** `rank, world = 0, 1` costs nothing, and the next strategy needs it again.
# Scripts on Lightning or Accelerate (lesson 04d) need the proof too.
#
# ## Sources
#
# - PyTorch documentation: *torch.utils.data.distributed.DistributedSampler*, *Reproducibility*,
#   *SyncBatchNorm*, *torch.distributed.checkpoint.state_dict*.
# - Goyal et al., *Accurate, Large Minibatch SGD*, 2017, arXiv:1706.02677, section 3: pitfalls of
#   distributed implementations (weight decay and loss scaling, momentum, aggregation, shuffling).
