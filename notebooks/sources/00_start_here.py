# %% [markdown]
# # 00 Start here: a first run, and how to read it
#
# **20 minutes**, on any machine: with many GPUs, with one, with none.
#
# After this lesson you can start a training run from a cell, say what a *rank* is on this machine,
# find and read what a run recorded, stop a run, and clean up.
#
# Run a cell with <kbd>Shift</kbd>+<kbd>Enter</kbd>. Run them in order, from the top.

# %% [markdown]
# ## The question
#
# Can several processes train one model on this machine, and how would you know that they did?
#
# Run it first, the explanation follows. The next cell gets ready: it starts to load PyTorch in the
# background and returns at once.

# %%
from bootcamp import Options, launch, warm_up

warm_up()

# %% [markdown]
# The next cell starts two processes. Together they train a small language model for 20 steps on
# source code of Python's standard library. The first run of a notebook waits some seconds until
# PyTorch is loaded; every later one starts at once.

# %%
first = launch("ddp", ranks=2, steps=20, global_batch=32)

# %% [markdown]
# Look at the line above the bar: it does the same in a terminal. Look at the **loss** beside the
# bar: it says how wrong the model's predictions are, and training makes it smaller. The next cell
# checks that it did.

# %%
assert first.status == "ok", "the run did not end well"
assert first.losses[-1] < first.losses[0], "the model has learnt nothing"
print(f"In {len(first.steps)} steps the loss fell by {first.losses[0] - first.losses[-1]:.2f}.")

# %% [markdown]
# ## The idea
#
# A few words that the whole course needs:
#
# - A **step** is one round of training: take some samples, compute the loss, change the model's
#   parameters a little.
# - The **global batch** is the number of samples in one step, all processes together.
# - A **rank** is one process of a training run, and the number that tells it from the others: rank
#   0, rank 1, and so on. How many there are is the **world size**.
# - **DDP**, distributed data parallel, is the strategy of the run above: each rank holds the whole
#   model and computes gradients on its share of the global batch, then the ranks average the
#   gradients. Lesson 04 takes it apart.
#
# The next cell draws what happened when you ran the cell above.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import basics

plots.show(basics.run_path())

# %% [markdown]
# The ranks are separate processes, not threads of this notebook. So a rank that crashes cannot take
# the notebook down, and if the notebook dies, the supervisor ends the ranks. Everything that you
# will see in a table or a plot was written into the run's folder first.
#
# What is a rank made of on *this* machine? The next cell describes the machine as each run's record
# does.

# %%
from bootcamp import Table, machine

about = machine.describe()
about["memory"] = f"{about.pop('memory_bytes') / 1e9:.1f} GB"
about["gpus"] = ", ".join(about["gpus"]) or "none"
Table([{"what": what, "on this machine": value} for what, value in about.items()])

# %% [markdown]
# `cores` counts the CPU cores that a run may use: physical ones, within the limit that a container
# may set. The next cell says what that means for ranks.

# %%
from bootcamp import default_ranks, gpu_count

if gpu_count() > 1:
    print(f"A rank here is one GPU. A cell that names no number takes all {default_ranks()}.")
elif gpu_count() == 1:
    print("A script of one process trains on the GPU here. Several ranks become CPU cores.")
else:
    print(f"A rank here is one CPU core. A cell that names no number takes all {default_ranks()}.")

# %% [markdown]
# On CPU cores everything is real except the scale: the same scripts, separate processes, data that
# they really send each other (through the library *gloo*; GPUs use *NCCL*). A rank computes with
# one core, alone as among many, so that two ranks may be compared with one. What does not carry
# over to GPUs are the speeds, and how computing and sending compare. If you start more ranks than
# there are cores, they share cores: results stay right, speeds mean nothing, and figures say so.
#
# The ranks of a run end with it. There are also **live ranks**, which stay and wait for cells. The
# next cell starts two in the background.

# %%
from bootcamp import live

live.start(ranks=2, device="cpu")

# %% [markdown]
# A cell that begins with `%%ranks` runs on all live ranks. In the next one each says hello. Look at
# the two process numbers: neither is this notebook's.

# %%
# %%ranks
import os

print(f"Hello from rank {rank} of {world_size}, process {os.getpid()}.")

# %% [markdown]
# In lesson 04 such ranks send each other tensors. The next cell ends these two.

# %%
live.stop()

# %% [markdown]
# ## Predict
#
# Every lesson asks you for a number before it measures it. The next run is the first one again with
# **twice the global batch**, 64 samples in a step. Write your prediction after `answer=` in place
# of `None`. (You may leave it; nothing breaks.)

# %%
from bootcamp import predict

guess = predict(
    "start_here_64_samples",
    f"With 32 samples a step took {1e3 * first.seconds_per_step:.0f} ms. How long with 64?",
    unit="ms",
    answer=None,
)
guess

# %% [markdown]
# ## What changes
#
# From run to run only a flag changes here: `global_batch`. From lesson to lesson the *script*
# changes. There is one short script for each strategy, and each one is its parent plus a few lines.
# The next cell counts these lines in the files and draws the family.

# %%
plots.show(basics.family_tree())

# %% [markdown]
# Which lines are they? The next cell shows those of a script; choose another above it, or what it
# is compared with. Beside each line stands why it is there. You need not understand them yet.

# %%
from bootcamp import diff_viewer

viewer = diff_viewer.show("ddp")

# %% [markdown]
# The lessons go along this tree. The next cell lists those that you have, in order: open them from
# the file browser on the left.

# %%
import json

from bootcamp.paths import NOTEBOOKS

lessons = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
texts = ["".join(json.loads(lesson.read_text())["cells"][0]["source"]) for lesson in lessons]
titles = [text.splitlines()[0].lstrip("# ") for text in texts]
Table([{"file": f.name, "lesson": title} for f, title in zip(lessons, titles, strict=True)])

# %% [markdown]
# Lessons 01 to 08 have the same parts: the question, the idea, a prediction, what changes in the
# script, the run, how to read the measurement, the proof that the result is still right, something
# broken to diagnose, exercises, when to use it, and sources.

# %% [markdown]
# ## Run it
#
# The next cell starts the run with twice the batch. It begins at once: PyTorch is loaded now.

# %%
second = launch("ddp", ranks=2, steps=20, global_batch=64)

# %% [markdown]
# The next cell holds your prediction against the measurement.

# %%
guess.score(1e3 * second.seconds_per_step)

# %% [markdown]
# Twice the samples are twice the arithmetic. Still, on CPU cores the time usually grows by less
# than that: part of a step is the same for any batch, such as averaging the gradients and changing
# the parameters, and larger matrices keep a core better busy. On a GPU this small model leaves most
# of the device idle, and both batches may take about the same time.

# %% [markdown]
# ## Read the measurement
#
# Each run has a folder of its own in `logs/`. The next cell lists what lies in that of the first.

# %%
meaning = {
    "config.json": "what was asked for: flags, command, machine, versions",
    "steps.jsonl": "one line for each step, written by rank 0",
    "summary.json": "how it ended and what it came to",
    ".json": "one rank's memory, samples, and a fingerprint of its parameters",
    ".out": "what the rank printed",
    ".err": "its errors and warnings",
}
rows = []
for path in sorted(first.folder.rglob("*.*")):
    if holds := meaning.get(path.name) or meaning.get(path.suffix):
        rows.append({"file": str(path.relative_to(first.folder)), "what it holds": holds})
Table(rows, first.folder.name)

# %% [markdown]
# The files are plain text; open one from the file browser. The next cell shows the last line of
# `steps.jsonl`.

# %%
first.steps[-1]

# %% [markdown]
# `loss` is the mean over the global batch, all ranks together. `seconds` is what this step took on
# rank 0. `tokens` are the bytes of text that were predicted: a sample is a piece of text, not one
# byte. The next cell reads both runs back into a table.

# %%
from bootcamp import runs

runs.table(first, second, caption="First row: 32 samples a step. Second row: 64.")

# %% [markdown]
# Compare the two rows. `samples/s` is the **throughput**, the speed of training. It is the median
# over the steps after the first few, which are slower (lesson 01 shows why). Do not compare the two
# final losses: the second run has seen twice as many samples.
#
# The next cell draws the loss of each step in the first run. Look at its foot: each figure of this
# course names the machine, and says whether it was measured here.

# %%
plots.show(plots.loss_curves(first))

# %% [markdown]
# Every run of this machine stands on a board, and so do recorded runs of the course, marked as
# such. The next cell opens it. Choose two runs in the list (with Ctrl or Shift), then what to
# compare. Where runs can't be compared, the board says why.

# %%
from bootcamp import board

chooser = board.show()

# %% [markdown]
# ## Prove it
#
# Two processes trained, and a loss went down. Is it the *same* training as in one process? That is
# the promise of this course: a strategy may change speed and memory, never the result. What to
# compare with is one process, on one CPU core, that trains the same batches. Your second
# prediction: how long does a step take there?

# %%
guess_alone = predict(
    "start_here_alone",
    f"Two ranks took {1e3 * first.seconds_per_step:.0f} ms for a step of 32 samples. "
    "How long does one process on one core take?",
    unit="ms",
    answer=None,
)
guess_alone

# %% [markdown]
# The next cell trains in one process and scores your prediction.

# %%
alone = launch("cpu", steps=20, global_batch=32)
guess_alone.score(1e3 * alone.seconds_per_step)

# %% [markdown]
# On CPU ranks: if two are less than twice as fast as one, you see the price of working together.
# (Two GPUs against one CPU core say nothing about that.) Lesson 04 measures it. The next cell
# compares everything that was recorded.

# %%
from bootcamp import check

proof = check.same_training(first, alone)
assert not proof.failed, "two ranks trained something else"
proof

# %% [markdown]
# Each row is one comparison: how many ranks worked together, whether any sample was trained twice
# or left out, how far the losses and the parameters are apart. The small differences that you see
# are rounding: adding the same numbers in another order changes the last digits.

# %% [markdown]
# ## Break it
#
# What if 33 samples are to be shared by two ranks? The next cell tries it. `launch` raises an error
# if a run does not end well; here we catch it to read it.

# %% tags=["nbval-check-output"]
from bootcamp import LaunchError

try:
    launch("ddp", ranks=2, steps=20, global_batch=33, quiet=True)
except LaunchError as error:
    print(error)

# %% [markdown]
# Who refused, and when? Think first, then open the answer.
#
# <details><summary>Answer</summary>
#
# The script did, on rank 0, before any training. Every rank must get the same number of samples:
# DDP averages the ranks' gradients with equal weight, so a rank with fewer samples would make each
# of its samples count more. The sentence names what was given, what was expected, and what to do.
# </details>
#
# Now interrupt a run. Usually you press the square button ■ above the notebook. So that this
# notebook also runs through by itself, the run below interrupts itself after three seconds. Your
# third prediction: how many steps will its record have? (Starting the ranks takes a part of the
# time.)

# %%
guess_steps = predict(
    "start_here_steps",
    "A step of 32 samples, again and again, interrupted after 3 seconds: how many are recorded?",
    unit="steps",
    answer=None,
)
guess_steps

# %% [markdown]
# The next cell starts the run, and a timer that interrupts it.

# %%
import _thread
import threading
import time

from bootcamp.paths import LOGS

folder = LOGS / time.strftime("%Y%m%d-%H%M%S-interrupted")
threading.Timer(3, _thread.interrupt_main).start()
try:
    launch("ddp", ranks=2, steps=100_000, options=Options(run_dir=folder))
except KeyboardInterrupt:
    print("Interrupted. The record says:", runs.load(folder).status)

# %% [markdown]
# The record of the steps until then is kept. The next cell counts them and scores your prediction,
# generously: within a half counts as right.

# %%
guess_steps.score(len(runs.load(folder).steps), within=0.5)

# %% [markdown]
# And the ranks? A process that trains on with nobody
# watching keeps its core or its GPU memory. The next cell looks for such ghosts.

# %%
from bootcamp import ghosts

assert runs.load(folder).status == "interrupted", "the record does not say what happened"
print(ghosts())

# %% [markdown]
# The launcher leaves none. If you start `torchrun` by hand and lose the terminal, a rank can stay
# behind. It would stand in this table, and `ghosts(end=[its process number])` would end it. On a
# machine with GPUs the table also lists every process that holds GPU memory.

# %% [markdown]
# ## Exercise
#
# ### First: one line is missing
#
# A script of yours: it reads data and computes a loss, but the model learns nothing, for one line
# is missing. The next cell writes the script and says where it is.

# %%
from bootcamp import exercise

print(exercise.start("first_run"))

# %% [markdown]
# Open the file, mend it, save it, and run the next cell. It runs *your* script and compares it with
# the **baseline**, the same training in one process on one CPU core.
# `exercise.solution("first_run")` shows the solution as a diff.

# %%
print(exercise.check("first_run"))

# %% [markdown]
# ### Second: how fast was it?
#
# A function of yours: the throughput of a run, from the seconds that each step took. It leaves out
# the first `warm_up` steps. Of the speeds of the others it returns the **median**, the one in the
# middle when they are sorted (Python's `statistics.median` finds it). Write it in place of the
# three dots, run the cell, and read what the checker says. The solution is one step away:
# `exercise.solution("throughput")`.


# %%
def throughput(seconds, samples, warm_up):
    """Samples per second: the median over the steps after the first `warm_up`.

    seconds: what each step took, a list. samples: how many there are in each step.
    """
    ...


print(exercise.check("throughput", throughput))

# %% [markdown]
# The next cell gives your function the steps of the first run, and prints the throughput of the
# record beside it. (`None`: not written yet.)

# %%
seconds = [row["seconds"] for row in first.steps]
print("your function:", throughput(seconds, samples=32, warm_up=3))
print("the record:   ", first.samples_per_second)

# %% [markdown]
# ## When to use it and when not
#
# Use `launch` in a cell for runs that you want to watch: it starts fast, shows progress, and ends
# with the cell. For a run of hours use a terminal, since shutting the notebook's kernel down ends
# its runs. The next cell prints the line for a terminal in the project's folder; its record lands
# in `logs/` too.

# %%
print(first.config["command"])

# %% [markdown]
# A **monitor** shows any run while it goes, from its folder alone. The next cell opens one and then
# starts a run. Look at the curves, and at each rank's last sign of life. With a run in a terminal
# (*File > New > Terminal*), `monitor.watch()` in a cell is enough: it finds the newest one.

# %%
from bootcamp import monitor

watched = monitor.watch()
last = launch("ddp", ranks=2, steps=60, global_batch=32, quiet=True)

# %% [markdown]
# **To stop:** the button ■ ends the run and its ranks. *Kernel > Shut Down Kernel* ends them too,
# and gives back the memory of the PyTorch that waits for your next run. Closing the browser's tab
# ends nothing.
#
# **To clean up:** each folder in `logs/` whose name begins with a date is one run, and you may
# delete any of them. `logs/reference` belongs to the course: leave it. The next cell deletes the
# interrupted run and says how many are left.

# %%
import shutil

shutil.rmtree(folder)
print(len(runs.all_runs()), "runs are left in logs/.")

# %% [markdown]
# **To see what you have done:** every prediction that you score and every exercise that you check
# is noted in a file beside your scripts. The next cell shows it, a row for each lesson. These two
# lines work in every notebook; a prediction that was left at `None` does not count.

# %%
from bootcamp.classroom.journal import progress

progress()

# %% [markdown]
# **Next:** lesson 01, the baseline that everything else is held against.
#
# ## Sources
#
# - PyTorch documentation: *torchrun (Elastic Launch)* and *Distributed communication package,
#   torch.distributed*.
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, 2020,
#   arXiv:2006.15704.
# - Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019 (GPT-2): the kind of
#   model that is trained here, in small.
