# %% [markdown]
# # 13 Bring your own model: your script on several ranks, and the proof
#
# **60 minutes**, on any machine, after lesson 04; the part "To shards" after lesson 07. Longer if
# you port a script of your own right away.
#
# After this lesson you can take a training script that knows nothing of ranks, give it a seam where
# ranks fit in, hold its losses, samples and parameters against one process, move it to DDP and to
# shards, and tell what in a script makes equal training impossible.

# %% [markdown]
# ## The question
#
# The scripts of this course were written to be moved to ranks. Yours was not. What has to be done
# to it, in which order, and how do you know that the ranks train what one process trains?
#
# The next cell starts to load PyTorch in the background.

# %%
from bootcamp import launch, run_command, warm_up

warm_up()

# %% [markdown]
# Here is a script as people bring it: its own model, data, flags and loop. The next cell shows it.
# Look for what would go wrong if two copies of it ran side by side.

# %%
from IPython.display import Markdown, display

from bootcamp.paths import SRC

BRING = SRC / "snippets" / "bring"
Markdown(f"```python\n{(BRING / 'as_it_came.py').read_text()}```")

# %% [markdown]
# The next cell runs it, as its owner does.

# %%
print(run_command(["python", str(BRING / "as_it_came.py"), "--epochs", "2"]))

# %% [markdown]
# <details><summary>What would go wrong with two copies?</summary>
#
# - Each would shuffle for itself, and both would train on every sample: twice the work, the same
#   result.
# - Nothing is sent: they are two trainings, not one.
# - `--batch-size` would mean the batch of one copy, so the batch of a step would grow with the
#   number of copies.
# - Dropout would draw the same masks in both copies, since both set seed 0, for other samples. One
#   process with the whole batch would draw others.
# </details>

# %% [markdown]
# ## The idea
#
# Three steps:
#
# 1. **A seam.** Still one process, but the script now has a rank and a world size (0 of 1), deals
#    out its samples by them, and writes a record. The order of the samples changes here, and an
#    incomplete last batch is left out. So look at the losses of both: they must fall alike, but
#    they can't be equal number by number. From now on this script is the baseline.
# 2. **Ranks.** The seam is filled: a process group, DDP, the mean of the loss. It must train as in
#    step 1, and that is proved.
# 3. **What you came for.** Shards, a pipeline, mixed precision: whatever the lessons before had.
#    Prove it against step 1 too, or say why it can't be equal.
#
# Do not skip the first. If a script changes its order of samples *and* gets ranks at once, nobody
# can tell which of the two changed the loss.

# %% [markdown]
# ## Predict
#
# Three numbers before you look. They are scored below.

# %%
from bootcamp import predict

guess_lines = predict(
    "bring_your_own_lines",
    "How many code lines does the move from one process to DDP add, once there is a seam?",
    unit="lines",
    answer=None,
)
guess_bytes = predict(
    "bring_your_own_bytes",
    "The layers are 2 x 256, 256 x 256 and 256 x 2, with biases, in float32. "
    "How many kB does each of 2 ranks send in a step?",
    unit="kB",
    answer=None,
)
guess_speed = predict(
    "bring_your_own_speed",
    "Two ranks of one core each: how many times as fast as one, for this small model?",
    unit="times",
    answer=None,
)
for guess in (guess_lines, guess_bytes, guess_speed):
    print(guess)

# %% [markdown]
# ## What changes
#
# ### The seam
#
# The next cell shows what the first step changes. Look at the sampler.

# %%
from bootcamp.scripts.diff import ScriptDiff

ScriptDiff(BRING / "recorded.py", BRING / "as_it_came.py")

# %% [markdown]
# - `rank, world = 0, 1` is the seam. Everything below asks these two, and nothing else.
# - `shuffle=True` was a random order that only the DataLoader knew. A `DistributedSampler` draws an
#   order from its seed and the epoch, and deals it out: rank 0 gets places 0, N, 2N and so on. With
#   one rank that is the whole order. So **the samples of a step are the same for any number of
#   ranks**, if a rank's batch is `batch_size // world`.
# - `set_epoch` gives every epoch an order of its own. Without it each epoch has the same.
# - `drop_last=True`, twice: ranks must have equally many batches of equal size.
# - `external` is this course's record for foreign scripts. `begin` says in which folder: the
#   launcher's, or a new one. `Noted` notes which samples were dealt out. `Run` writes the record:
#   it times what `with run.step():` encloses, and `run.loss` hands over the loss.
#
# ### The ranks
#
# The next cell shows the second step. You know every line of it from lesson 04.

# %%
ported = ScriptDiff(BRING / "with_ddp.py", BRING / "recorded.py")
display(ported)
guess_lines.score(ported.added)

# %% [markdown]
# ## Run it
#
# The next cell trains with the seam in one process, and with DDP on two ranks. Dropout is switched
# off: "Break it" will show why.

# %%
alone = launch(BRING / "recorded.py", ranks=1, dropout=0.0, epochs=4)
together = launch(BRING / "with_ddp.py", ranks=2, dropout=0.0, epochs=4)

# %% [markdown]
# ## Read the measurement
#
# The next cell draws the losses of both. Look at the lower panel: how far are they apart?

# %%
from bootcamp import plots

plots.show(plots.loss_curves(alone, together))

# %% [markdown]
# The next cell scores your second prediction: by the kernel's count of sent bytes where there is
# one, else by the formula of a ring.

# %%
sent = together.ranks[0]["sent_bytes_per_step"] or together.predicted_sent_bytes_per_step
guess_bytes.score(sent / 1e3)

# %% [markdown]
# And the speed. The next cell scores your third.

# %%
guess_speed.score(together.samples_per_second / alone.samples_per_second)

# %% [markdown]
# A step of this model takes about a millisecond, and averaging its gradients takes as long or
# longer. That is no failure of the port: it is what lesson 04 said of small models. Measure it with
# *your* model before you buy a second device.

# %% [markdown]
# ## Prove it
#
# The next cell compares everything that was recorded: every loss, which samples each rank had, the
# parameters before and after.

# %%
from bootcamp import check

proof = check.same_training(together, alone)
assert not proof.failed, "the port trains something else"
proof

# %% [markdown]
# The optimizer here is SGD with momentum. If yours is Adam or AdamW, prove with SGD too: Adam
# divides a gradient by its own size, so gradients that are twice too large leave its losses where
# they were (lesson 04).

# %% [markdown]
# ## Break it
#
# Now with dropout, as the script came. The next cell trains on one and on two ranks. What will the
# proof say?

# %%
with_dropout = [
    launch(BRING / script, ranks=ranks, epochs=4, quiet=True)
    for script, ranks in (("with_ddp.py", 2), ("recorded.py", 1))
]
broken = check.compare(*with_dropout)
assert broken.failed, "dropout made no difference"
broken

# %% [markdown]
# <details><summary>Answer</summary>
#
# The losses differ, and so do the parameters. Nothing is wrong with the port: a rank draws a mask
# for its share of the batch, and one process draws one for the whole batch, so the masks differ.
# Both are right trainings, but they can't be compared number by number. So **prove without
# randomness, then train with it**. (Here both ranks have seed 0, and draw equal masks. In real
# training they should differ: seed with `seed + rank` after the model has been built.)
# </details>
#
# What else makes equal training impossible, and what to do for the proof:
#
# | In the script | Why it differs | What to do |
# |---|---|---|
# | dropout, augmentation | other random numbers | off for the proof, `seed + rank` after it |
# | batch norm | statistics of a share | freeze it for the proof; on GPUs, `SyncBatchNorm` |
# | loss is a sum | averaged gradients are N times too small | take the mean |
# | padded tokens | ranks have different numbers of them | weigh by the tokens of all ranks |
# | gradient clipping | the norm must be that of all shards | `clip_grad_norm_` knows FSDP2's |
# | learning rate by epoch | fewer steps if the batch grows | keep the global batch for the proof |
# | metrics on one rank | a share's metric, not the batch's | all-reduce them |
# | saving, printing | N times to the same place | rank 0 only |
#
# Three of these in code: the next cell shows a script of the usual kind. `model.train()` undoes a
# freeze, so BatchNorm is frozen again in each epoch. The validation on rank 0 calls `model` rather
# than the wrapper, whose forward would wait for the other ranks (lesson 12). And `best.pt` is
# written by one rank, from `model`: so no name in it begins with `module.`.

# %%
from IPython.display import Code

Code(BRING / "usual_kind.py", language="python")

# %% [markdown]
# ## Exercise
#
# ### To DDP
#
# Port it yourself. The next cell writes the script with the seam.

# %%
from bootcamp import exercise

print(exercise.start("bring_ddp"))

# %% [markdown]
# Edit the file, save it, and run the next cell. It runs your script on two ranks and holds it
# against one process. `exercise.solution("bring_ddp")` shows the solution as a diff.

# %%
print(exercise.check("bring_ddp"))

# %% [markdown]
# ### To shards
#
# The next cell writes the DDP script. Make it fully sharded (lesson 07).

# %%
print(exercise.start("bring_fsdp"))

# %% [markdown]
# The next cell checks it: the same training, and each rank holds its part only.
# `exercise.solution("bring_fsdp")` shows the solution.

# %%
print(exercise.check("bring_fsdp"))

# %% [markdown]
# ### Yours
#
# Now your own script. Copy it to `notebooks/work/`, put in the seam and the six lines that
# `bootcamp/train/external.py` lists at its top, save that as one file, and the port to ranks as
# another. Write both names into the next cell, with the flags that switch randomness off. Left
# empty, the cell takes the course's example.

# %%
MINE_ALONE, MINE_ON_RANKS = None, None  # such as "work/mine.py", "work/mine_ddp.py"
FLAGS = {"dropout": 0.0}

mine = (MINE_ALONE or BRING / "recorded.py", MINE_ON_RANKS or BRING / "with_fsdp.py")
baseline = launch(mine[0], ranks=1, quiet=True, **FLAGS)
on_ranks = launch(mine[1], ranks=2, quiet=True, **FLAGS)
check.compare(on_ranks, baseline)

# %% [markdown]
# A row that says "no" has a hint under the table, and the order of the rows is the order in which
# to look: first the steps, then who took part, then the samples, the losses, the parameters. A
# wrong row makes all below it wrong.

# %% [markdown]
# ## When to use it and when not
#
# **Prove a port** when you change how a model is trained and mean to keep what it learns: another
# wrapper, another number of ranks, another version of a library. Ten steps are enough.
#
# **Do not** expect equality when you change the arithmetic on purpose: bfloat16, compressed
# gradients, another batch. Then compare what you care about (the loss after a day, over several
# seeds), and say that the training is another one.
#
# **Leave the seam in.** `rank, world = 0, 1` costs nothing, and the next strategy needs it again.
#
# ## Sources
#
# - PyTorch documentation: *torch.utils.data.distributed.DistributedSampler*, *Reproducibility*,
#   *SyncBatchNorm*.
# - Goyal et al., *Accurate, Large Minibatch SGD*, 2017, arXiv:1706.02677, section 3: pitfalls of
#   distributed implementations (weight decay and loss scaling, momentum, aggregation, shuffling).
