# %% [markdown]
# # 00 Start here: a first run, and how to read it
#
# **21 minutes**, on any machine: with many GPUs, with one, with none. Headings that end in
# *(optional)* may be skipped.
#
# After this lesson you can start a training run from a cell, say what a *rank* is on this machine,
# find and read what a run recorded, and stop a run.
#
# Run a cell with <kbd>Shift</kbd>+<kbd>Enter</kbd>, in order, from the top.

# %% [markdown]
# ## The question
#
# Can several processes train one model on this machine, and how would you know that they did?
#
# Run it first; the explanation follows. `warm_up` reports how quiet this machine is, which matters
# for every speed that you will measure, and starts to load PyTorch in the background.

# %%
from bootcamp import launch, warm_up

warm_up()

# %% [markdown]
# Now two processes train a small language model on the text and the code of this course, for 8
# steps of 64 samples each. A sample is a piece of the text. The first run of a notebook waits some
# seconds until PyTorch is loaded; later ones start at once.

# %%
batch = {"steps": 8, "global_batch": 64}
first = launch("ddp", ranks=2, **batch)

# %% [markdown]
# The command above the bar starts the same run in a terminal. The **loss** beside the bar shows
# how wrong the model's predictions are; training makes it smaller.

# %% [markdown]
# ## The idea
#
# The terms that all lessons need:
#
# - A **step** is one round of training: take some samples, compute the loss, compute its
#   **gradient** (how the loss would change with each parameter), and change the parameters a little
#   against it.
# - The **global batch** is the set of samples of one step, all processes together.
# - A **rank** is one process of a training run, and the number that tells it from the others: rank
#   0, rank 1, and so on. Their number is the **world size**.
# - **DDP**, distributed data parallel, is the strategy of the run above: each rank holds a complete
#   model, computes gradients on its share of the global batch, and the ranks average the gradients.
#   Lesson 04 takes it apart.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import basics

plots.show(basics.run_path())

# %% [markdown]
# The ranks are separate processes, not threads of this notebook. A rank that crashes cannot take
# the notebook down; if the notebook dies, a supervisor process ends the ranks. All tables and plots
# are made from what the run wrote into its folder.

# %%
from bootcamp import default_ranks, machine

print(f"A cell that names no number of ranks starts {default_ranks()} here.")
machine.table()

# %% [markdown]
# With several GPUs, each rank uses one GPU. Without them, it uses one CPU core, and everything is
# real except the scale: the same scripts, separate processes, data that they send each other
# (through the library *gloo*; GPUs use *NCCL*). A rank always computes with one core, however many
# ranks there are, so that two ranks may be compared with one. Speeds, and the ratio of computation
# to communication, do not carry over to GPUs. (Only NVIDIA's GPUs are used: a Mac's is not.) If you
# start more ranks than there are cores, results stay right, speeds mean nothing, and figures say
# so.

# %% [markdown]
# ## Predict
#
# Every lesson asks for numbers before it measures them. Type yours into the field. (You may leave
# it empty; nothing breaks.)

# %%
from bootcamp import predict

guess_alone = predict(
    "start_here_alone",
    f"Two ranks took {1e3 * first.seconds_per_step:.0f} ms for a step of 64 samples. "
    "How long does one process on one core take for the same 64?",
    unit="ms",
)
guess_alone

# %% [markdown]
# The model predicts the text byte by byte, and there are 256 different bytes. An untrained model
# gives each of them about the same probability. The loss is −ln *p*, where *p* is the probability
# that it gave to the byte that comes next in the text.

# %%
guess_first_loss = predict("start_here_first_loss", "What is the loss of the very first step?")
guess_first_loss

# %% [markdown]
# Two ranks compute half of the batch each and average; one process computes all of it. The loss is
# a number such as 4.1234.

# %%
guess_digits = predict(
    "start_here_digits",
    "In how many of the 8 steps do both runs agree on four digits after the point?",
    unit="steps",
)
guess_digits

# %% [markdown]
# ## What changes
#
# From lesson to lesson the *script* changes. There is one short script for each strategy, and each
# is its parent plus a few lines, counted here from the files. These are five of them.

# %%
plots.show(basics.family_tree())

# %% [markdown]
# The viewer shows the lines that differ, with the reason beside each. You need not understand them
# yet.

# %%
from bootcamp import diff_viewer

viewer = diff_viewer.show("ddp")

# %% [markdown]
# ## Run it
#
# The same training in one process on one core: the **baseline** with which every strategy is
# compared.

# %%
alone = launch("cpu", **batch)
guess_alone.score(1e3 * alone.seconds_per_step)

# %% [markdown]
# One run each is an anecdote: other programs use the machine too. So the course tests what it
# says about speed. A **claim** keeps two runs on the same cores and lets them take turns, some
# steps of one, then of the other. From such pairs it finds *supported*, *not distinguishable* or
# *contradicted*, here and now; of two equally fast runs it calls one faster in less than 1 of 100
# cases. The numbers behind *between* are the interval that the pairs leave.

# %%
from bootcamp import claim, trial

claim.faster(
    "start_here_two_ranks",
    "Two ranks train more samples a second than one process on one core.",
    trial("ddp", ranks=2, device="cpu", **batch),
    trial("cpu", **batch),
    seconds=20,
    otherwise="Two ranks need two cores for themselves; look at what warm_up said of this machine.",
)

# %% [markdown]
# Expect less than twice the speed: in each step the ranks also average their gradients. Lesson 04c
# measures what that takes.

# %% [markdown]
# ## Read the measurement
#
# Each run has a folder of its own in `logs/`.

# %%
from bootcamp import runs

runs.list_files(first)

# %% [markdown]
# The files are plain text; open one from the file browser. This is the first line of `steps.jsonl`:

# %%
print(first.steps[0])
guess_first_loss.score(first.losses[0], within=0.05)

# %% [markdown]
# The first loss is ln 256 = 5.545 and a little more, which lesson 01 calculates. `loss` is the mean
# over the global batch, all ranks together. `seconds` is what the step took on rank 0. `tokens`
# counts the bytes that were predicted. `attempt` counts restarts (lesson 04e).

# %%
runs.table(first, alone)

# %% [markdown]
# `samples/s` is the **throughput**, the speed of training: the median over the steps after the
# first few, which are slower. Look at the foot of the next figure: each figure names the machine,
# and says whether it was measured here.

# %%
plots.show(plots.loss_curves(alone, first))

# %% [markdown]
# Each run stays on the disk, so an earlier one can be compared at any time. The last three of this
# machine:

# %%
ended_well = [run for run in runs.all_runs() if run.status == "ok" and run.steps]
runs.table(*ended_well[-3:])

# %% [markdown]
# ## Prove it
#
# The loss of two ranks fell. Is it the *same* training as in one process? That is the promise of
# this course: a strategy may change speed and memory; one that changes the result is named as such.
# The proof compares all that was recorded: which samples each rank trained on, every loss, and a
# **fingerprint** of the parameters, a few numbers that change when any parameter does.

# %%
from bootcamp import check

agreeing = sum(abs(a - b) < 5e-5 for a, b in zip(first.losses, alone.losses, strict=True))
print(guess_digits.score(agreeing))
check.same_training(first, alone)

# %% [markdown]
# The differences that remain are rounding: the same numbers added in a different order give sums
# that differ in the last digits.

# %% [markdown]
# ## Break it
#
# What if 65 samples are to be shared by two ranks? `launch` raises an error if a run does not end
# well; here it is caught, to be read.

# %% tags=["nbval-check-output"]
from bootcamp import LaunchError

try:
    launch("ddp", ranks=2, steps=8, global_batch=65, quiet=True)
except LaunchError as error:
    print(error)

# %% [markdown]
# Who refused, and when?
#
# <details><summary>Answer</summary>
#
# The script did, before any training. Every rank must get the same number of samples: DDP averages
# the ranks' gradients with equal weight, so in a smaller share each sample would count more.
# </details>
#
# To interrupt a run, press the button ■ above the notebook. So that this notebook also runs through
# by itself, the next run is interrupted after three seconds.

# %%
from bootcamp import orphans
from bootcamp_lessons.interruption import interrupt_after

try:
    with interrupt_after(seconds=3):
        launch("ddp", ranks=2, steps=100_000)
except KeyboardInterrupt as interruption:
    print(interruption)
orphans()

# %% [markdown]
# The record keeps the steps until then. A rank that trains on with nobody watching would keep its
# core or its GPU memory: `orphans()` lists such processes. The launcher leaves none. If you start
# `torchrun` by hand and lose the terminal, one can be left; `orphans(end=[its number])` ends it.

# %% [markdown]
# ## Exercise
#
# ### First: one line is missing
#
# This cell writes a script: it reads data and computes a loss, but the model learns nothing.

# %%
from bootcamp import exercise

print(exercise.start("first_run"))

# %% [markdown]
# Open the file, repair it, save it, and run the checker. It runs *your* script and compares it with
# the baseline. `exercise.solution("first_run")` shows the solution as a diff.

# %%
exercise.check("first_run")

# %% [markdown]
# ### Second: the throughput
#
# Write the function in place of the three dots: from the seconds of each step, without the first
# `warm_up` steps, the **median** speed, the one in the middle when they are sorted
# (`statistics.median`). The solution: `exercise.solution("throughput")`.


# %%
def throughput(seconds, samples, warm_up):
    """Samples per second: the median over the steps after the first `warm_up`.

    seconds: what each step took, a list. samples: how many there are in each step.
    """
    ...


exercise.check("throughput", throughput)

# %% [markdown]
# ## When to use it and when not
#
# Use `launch` in a cell for runs that you want to watch: it starts fast, shows progress, and ends
# with the cell. For a run of hours use a terminal, since shutting down the notebook's kernel ends
# its runs. This is the command for it, in the project's folder:

# %%
print(first.config["command"])

# %% [markdown]
# A **monitor** shows any run while it goes on, from its folder alone. With a run in a terminal,
# `monitor.watch()` finds the newest one.

# %%
from bootcamp import monitor

watched = monitor.watch()
last = launch("ddp", ranks=2, quiet=True, **batch)

# %% [markdown]
# **To stop:** the button ■ ends the run and its ranks. *Kernel > Shut Down Kernel* ends them too,
# and frees the memory of the PyTorch that waits for your next run. Closing the browser's tab ends
# nothing: what cells print meanwhile is lost, the records are not. **To clean up:** each folder in
# `logs/` whose name begins with a date is one run; delete what you like. `logs/reference` belongs
# to the course.
#
# Every prediction that you score and every exercise that you check is noted (`journal.progress()`
# has all lessons). Lesson 14 shows how far off the predictions were (in any lesson:
# `from bootcamp import predictions`, `predictions.show()`).

# %%
from bootcamp import Table, journal

Table([row for row in journal.progress() if row["lesson"].startswith("00")], "What you have done")

# %% [markdown]
# **Next:** lesson 01, the baseline.
#
# ## Sources
#
# - PyTorch documentation: *torchrun (Elastic Launch)* and *Distributed communication package,
#   torch.distributed*.
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, 2020,
#   arXiv:2006.15704.
# - Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019 (GPT-2): the kind of
#   model that is trained here, much smaller.
