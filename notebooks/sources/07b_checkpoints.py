# %% [markdown]
# # 07b Checkpoints that outlive their strategy
#
# **60 minutes**, on any machine, after lessons 04 and 07. All ranks here are CPU ranks, so that the
# lesson runs everywhere: four of them may be more than the machine has cores, and the figures say
# so.
#
# After this lesson you can say what a training has to save and how many bytes that is, read what
# lies in a checkpoint of many ranks, go on with another number of ranks and another strategy, save
# so that a kill at any moment leaves a good checkpoint, and compute how often to save.

# %% [markdown]
# ## The question
#
# A large training runs for weeks. Machines fail, jobs are preempted, and the next time slot may be
# on other machines, with another number of ranks. What must be kept so that a run **goes on as if
# it had never stopped**? And who writes it, when no rank has the whole model?
#
# The next cell starts to load PyTorch in the background.

# %%
from bootcamp import Options, available, launch, warm_up

warm_up()

# %% [markdown]
# The next cell makes a folder for this lesson's checkpoints, which goes when the kernel ends, and
# sets what all runs share.

# %%
import tempfile
from pathlib import Path

from bootcamp.paths import LOGS, SRC

LOGS.mkdir(parents=True, exist_ok=True)
holder = tempfile.TemporaryDirectory(prefix="checkpoints-", dir=LOGS)
PLACE = Path(holder.name)
SAME = {"device": "cpu", "global_batch": 16, "quiet": True}

# %% [markdown]
# ## The idea
#
# ### The state of a training
#
# One optimizer step is a function. It takes a state and gives the next one. Whatever it reads, and
# cannot compute anew, belongs to the state:
#
# - the **parameters**;
# - the **optimizer's state**: for AdamW two numbers for each parameter (running means of gradient
#   and squared gradient) and a count of steps, for SGD with momentum one number;
# - the **step**, by which schedules and data go on.
#
# Here the batch is a function of (seed, step), and no model draws random numbers while it trains.
# So that is all. Real trainings also save the position in their data, the random generators of
# every rank if there is dropout, the learning-rate schedule, and the scale of a gradient scaler
# (lesson 02). Forget one, and the run goes on, but as *another* run.
#
# ### A whole file, or parts
#
# With DDP every rank has the whole state, so rank 0 writes **one file**. When ranks hold parts,
# there are two ways. One may *gather* everything on rank 0: then one machine needs memory for the
# whole state, one disk writes it, and all others wait. Or **every rank writes its own part**, at
# the same time, together with a note that says where in the whole each piece belongs. That note is
# what makes a checkpoint outlive its strategy: whoever reads it asks for the pieces that *it*
# needs.
#
# ### Good at every moment
#
# Writing takes time, and a process can die while it writes. The next cell draws two ways to save.
# Look for the moment at which nothing good is left.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import saved_checkpoints as diagrams

plots.show(diagrams.two_ways_to_save())

# %% [markdown]
# - **Beside:** the new state goes to another name *in the same folder*. Between file systems there
#   is no rename, only a copy.
# - **Sync:** `os.fsync` waits until the bytes are on the disk. Without it the operating system
#   keeps them in memory for a while. A killed process loses nothing by that, a power cut does.
# - **Rename:** on POSIX systems this is atomic: every reader finds the old file or the new one.
#
# A checkpoint in parts is a *folder*. Its rule is the same: it gets its name after all ranks have
# written and synced their parts.

# %% [markdown]
# ## Predict
#
# The next cell asks for bytes. The tiny GPT is trained with AdamW, in float32.

# %%
from bootcamp import check, predict

baseline = check.baseline(steps=15, **{k: v for k, v in SAME.items() if k != "quiet"})
parameters = baseline.ranks[0]["parameter_bytes"] // 4
guess_bytes = predict(
    "checkpoints_bytes",
    f"The model has {parameters:,} parameters. How many MB does its whole training state have?",
    unit="MB",
    answer=None,
)
guess_bytes

# %% [markdown]
# The second question is about kills. A process does nothing but save, with `torch.save` straight to
# the file's place, and is killed at a random moment. We do that 20 times.

# %%
guess_torn = predict(
    "checkpoints_torn", "Of 20 kills, how many leave a file that can't be loaded?", answer=None
)
guess_torn

# %% [markdown]
# The third is about time. A rank saves synchronously: it trains no further until everything is
# written.

# %%
guess_slow = predict(
    "checkpoints_slow",
    "A model of 15 MB, AdamW: a step with a save takes how many times as long as one without?",
    unit="times",
    answer=None,
)
guess_slow

# %% [markdown]
# ## What changes
#
# Every script of the course can save and resume. The next cell shows the lines, here of FSDP.

# %%
from bootcamp import family

for line in family.SCRIPTS["fsdp"].path.read_text().splitlines():
    if "checkpoint." in line or "for step in" in line:
        print(line)

# %% [markdown]
# `load` returns the step to begin with; `save` is called by **every rank** in every step, and
# decides whether a save is due. The flags are `--save PATH`, `--save-every N`, `--save-async` and
# `--resume PATH`.
#
# Behind it stands `torch.distributed.checkpoint`, **DCP** for short. It wants a nested dictionary
# in which a rank's part of a tensor is a DTensor (lesson 06c): a part that knows its whole. The
# next cell shows how little is ours: the call, and giving the folder its place.

# %%
import inspect

from IPython.display import Markdown

from bootcamp.train import sharded_checkpoint


def show(*functions):
    """The functions' code, as it stands in the course."""
    return Markdown("```python\n" + "\n\n".join(map(inspect.getsource, functions)) + "```")


show(sharded_checkpoint.write, sharded_checkpoint._give_place)

# %% [markdown]
# DCP syncs each rank's file, and writes its note `.metadata` as the last one, after all ranks have
# written. But a *folder* has many files, and nothing makes them appear together. So the whole
# folder is written under another name, and renamed. And names in a checkpoint are those of the
# plain model (`block0.down.weight`), whatever wrapper it was saved from.

# %% [markdown]
# ## Run it
#
# The next cell trains five steps with FSDP on **4 ranks**, goes on for five with FSDP on **2**, and
# for five more in **one process** without any FSDP. Each begins where the one before has stopped.

# %%
four = launch("fsdp", 4, steps=5, save=PLACE / "four", **SAME)
two = launch("fsdp", 2, steps=10, resume=PLACE / "four", save=PLACE / "two", **SAME)
one = launch("cpu", 1, steps=15, resume=PLACE / "two", save=PLACE / "one.pt", **SAME)
print([run.steps[0]["step"] for run in (four, two, one)], "are their first steps.")

# %% [markdown]
# The next cell draws their losses over those of a run that never stopped.

# %%
names = ["FSDP, 4 ranks", "FSDP, 2 ranks", "one process"]
chain = [four, two, one]
plots.show(diagrams.one_after_the_other(baseline, chain, names, "Three runs, one training"))

# %% [markdown]
# The distance does not jump where the run changes hands. It is the rounding of sums that are added
# in another order. The next cell asserts that: no step of any of the three is further from the
# baseline than 1e-5.

# %%


def furthest(run, whole):
    """The largest distance of any step's loss from the same step of a run that never stopped."""
    return max(abs(row["loss"] - whole.losses[row["step"]]) for row in run.steps)


for run in chain:
    assert furthest(run, baseline) < 1e-5, f"{run.label} does not go on as if never stopped"
print([f"{furthest(run, baseline):.1e}" for run in chain])

# %% [markdown]
# ## Read the measurement
#
# ### What lies on the disk
#
# The next cell lists the folder that the 4 ranks have written.

# %%
from bootcamp import Table


def files(folder):
    return [{"file": f.name, "bytes": f.stat().st_size} for f in sorted(folder.iterdir())]


saved = sharded_checkpoint.newest(PLACE / "four")
listing = files(saved)
assert sum(row["file"].endswith(".distcp") for row in listing) == 4, "one file for each rank"
Table(listing, f"{saved.parent.name}/{saved.name}")

# %% [markdown]
# One file for each rank, named by rank and by the rank's files: `__2_0.distcp` is the first of rank
# 2. `.metadata` is the note, and `settings.json` is ours: how many steps were done, with which
# model.
#
# By formula the state has 3 x 4 bytes for each parameter: itself and AdamW's two numbers. AdamW
# also keeps a count of steps for each parameter tensor, of 4 bytes. The next cell reads the note
# and counts the numbers it speaks of.

# %%
import math

from torch.distributed import checkpoint as dcp

note = dcp.FileSystemReader(saved).read_metadata()
entries = note.state_dict_metadata
counted = sum(math.prod(about.size) * 4 for about in entries.values())
tensors = sum(key.startswith("model.") for key in entries)
assert counted == 3 * 4 * parameters + 4 * tensors, "the formula is off"
print(f"{counted:,} bytes: 12 x {parameters:,}, and 4 x {tensors} counts of steps.")
guess_bytes.score(counted / 1e6)

# %% [markdown]
# Not one byte off: the note has every number once, also the counts of steps, which every rank had.
# And yet the files have more. The next cell compares that for three checkpoints: the 4 ranks', the
# 2 ranks', and the one file.

# %%
rows = []
for name, place in (("4 ranks", saved), ("2 ranks", sharded_checkpoint.newest(PLACE / "two"))):
    found, pieces = files(place), dcp.FileSystemReader(place).read_metadata().storage_data
    written = sum(row["bytes"] for row in found if row["file"].endswith(".distcp"))
    rows.append({"saved by": name, "numbers": counted, "in the parts": written})
    rows[-1]["pieces"] = len(pieces)
    rows[-1]["more, for each piece"] = (written - counted) / len(pieces)
    rows[-1]["note"] = (place / ".metadata").stat().st_size
alone = {"saved by": "one process", "numbers": counted}
rows.append(alone | {"in the parts": (PLACE / "one.pt").stat().st_size})
Table(rows, "Bytes on disk, the tiny GPT")

# %% [markdown]
# DCP stores every piece as a small file of its own inside a rank's file, with a head of more than a
# thousand bytes: the same for each piece, whoever saved it. This model's pieces are tiny, some have
# 16 numbers, so the heads weigh much. A head stays as large as it is when the piece grows: for a
# layer of 100 MB it is nothing.

# %% [markdown]
# ### Which piece lies where
#
# The note says for every tensor into which pieces it was cut, and in which file each lies. The next
# cell prints that for one parameter, a matrix of 64 x 64.

# %%
NAME = "model.block0.attention.out.weight"


def pieces(folder, key):
    """The pieces of one tensor of a checkpoint: file, first row and column, rows and columns."""
    about = dcp.FileSystemReader(sharded_checkpoint.newest(folder)).read_metadata()
    where = {tuple(i.offset): s for i, s in about.storage_data.items() if i.fqn == key}
    cut = about.state_dict_metadata[key].chunks
    rows = [{"offsets": tuple(c.offsets), "sizes": tuple(c.sizes)} for c in cut]
    return [{"file": where[row["offsets"]].relative_path, **row} for row in rows]


Table(pieces(PLACE / "four", NAME), NAME)

# %% [markdown]
# FSDP cuts by rows. A rank that wants rows 0 to 31 reads two of these pieces; a process that is
# alone reads all four. Nobody had to know, when it was saved, who would read it.

# %% [markdown]
# ### From strategy to strategy
#
# If names and places are all that counts, any strategy can go on where any other has stopped. The
# next cell tries a relay with SGD and momentum, three steps each: DDP, FSDP, a pipeline, tensor
# parallelism, ZeRO stage 3, and a single process. (Without DeepSpeed, ZeRO's leg is left out.)

# %%
LEGS = {"ddp": {}, "fsdp": {}, "pp": {"schedule": "1f1b", "micro_batches": 2}, "tp": {}}
LEGS |= {"zero": {"stage": 3}} if available("deepspeed") else {}
relay, before = [], {}
for number, (script, own) in enumerate([*LEGS.items(), ("cpu", {})], start=1):
    place = PLACE / f"leg{number}"
    leg = launch(
        script,
        1 if script == "cpu" else 2,
        steps=3 * number,
        save=place,
        optimizer="sgd",
        **{**SAME, **own, **before},
    )
    relay, before = [*relay, leg], {"resume": place}

# %% [markdown]
# The next cell draws the relay over a run that never stopped, and asserts what it shows.

# %%
sgd = {"optimizer": "sgd", "steps": 3 * len(relay), "device": "cpu", "global_batch": 16}
never = check.baseline(**sgd)
legs = [f"{number}. {run.label}" for number, run in enumerate(relay, start=1)]
for run in relay:
    assert furthest(run, never) < 1e-5, f"{run.label} has not taken over all of the state"
plots.show(diagrams.one_after_the_other(never, relay, legs, "A relay of strategies"))

# %% [markdown]
# The next cell draws one matrix as three of the legs have saved it. Look at the direction of the
# cuts.

# %%
matrix = {
    "FSDP, 4 ranks": pieces(PLACE / "four", NAME),
    "pipeline, 2 ranks": pieces(PLACE / "leg3", NAME),
    "tensor parallel, 2 ranks": pieces(PLACE / "leg4", NAME),
}
shape = tuple(entries[NAME].size)
assert all(sum(math.prod(p["sizes"]) for p in f) == math.prod(shape) for f in matrix.values())
plots.show(diagrams.pieces(NAME.removeprefix("model."), shape, matrix))

# %% [markdown]
# FSDP has rows. The pipeline leaves the matrix whole, on the rank of its stage. Tensor parallelism
# splits this one by its input, which are the columns of the stored weight (lesson 06c). The reader
# of each was another strategy with other cuts, and DCP put the pieces together.

# %% [markdown]
# ### What a save costs
#
# The next cell trains an MLP of 15 MB on 2 ranks, and saves after every fourth step: first so that
# training waits for the disk, then with `--save-async`.

# %%
EVERY = 4
timed = {**SAME, "model": "mlp", "size": "small", "steps": 14, "save_every": EVERY}
waiting = launch("fsdp", 2, save=PLACE / "waiting", **timed)
behind = launch("fsdp", 2, save=PLACE / "behind", save_async=True, **timed)
plots.show(diagrams.step_times({"waits": waiting, "--save-async": behind}, EVERY))

# %% [markdown]
# A step's time ends with its loss, and a save comes after that. So the step *after* a save bears
# its time. The next cell puts numbers to it, and scores your third prediction.

# %%
from statistics import median

rows = []
for name, run in (("waits", waiting), ("--save-async", behind)):
    bearing, others = map(median, diagrams.bearing_a_save(run, EVERY))
    rows.append({"save": name, "steps after a save, s": bearing, "other steps, s": others})
    rows[-1]["a save costs, s"] = bearing - others
print(Table(rows, "Medians, measured here"))
guess_slow.score(rows[0]["steps after a save, s"] / rows[0]["other steps, s"], within=0.5)

# %% [markdown]
# `--save-async` first *copies* the state, so that training may change it, and a thread writes the
# copy. Training waits for the copy only. But somebody has to do the writing: **on CPU ranks the
# thread shares the rank's one core with the training**, so it wins only what would have been
# waiting for the disk, and the steps behind it may become slower. (The first asynchronous save also
# sets up a process group of its own, so that its messages do not mix with the training's.) On a GPU
# the copy goes to main memory, and the CPU that writes has little else to do.
#
# Two more things to know. Two saves must not overlap, so the next one waits for the last. And the
# copy needs memory: once more the state of this rank.
#
# At scale the time follows from bytes and rates. The next cell computes it by formula: 12 bytes for
# each parameter (float32 parameters and Adam's two numbers). The rate of one writer is an
# assumption: put in what your disk does. 2 TB/s is what the storage of Llama 3's training sustained
# (Grattafiori et al., 2024, section 3.3.1).

# %% tags=["nbval-check-output"]
ONE_WRITER, A_CLUSTER = 2e9, 2e12  # bytes per second
rows = []
for name, count in (("7.5 B", 7.5e9), ("70 B", 70e9), ("405 B", 405e9)):
    nbytes = 12 * count
    rows.append({"parameters": name, "GB": nbytes / 1e9})
    rows[-1]["rank 0 alone, minutes"] = nbytes / ONE_WRITER / 60
    rows[-1]["128 ranks, each its part, s"] = nbytes / ONE_WRITER / 128
    rows[-1]["at 2 TB/s, s"] = nbytes / A_CLUSTER
Table(rows, "Time to write a training state, by formula")

# %% [markdown]
# That is the reason for parts: not elegance, but minutes against seconds, in which a whole cluster
# waits.

# %% [markdown]
# ### How often?
#
# Save too often, and you lose time in saving. Save too seldom, and a failure throws away much work:
# on average half of the interval. With a save of *d* seconds and a mean time between failures *M*,
# an interval *t* loses the share *d/t + t/(2M)*. It is smallest at *t* = √(2 *d M*) (Young, 1974;
# Daly, 2006, refines it for failures that are frequent).
#
# How often do machines fail? In 54 days, Llama 3's training on some 16,000 GPUs had 419 unexpected
# interruptions (Grattafiori et al., 2024, section 3.3.4). The next cell computes with that, and
# with two kinder worlds.

# %% tags=["nbval-check-output"]
LLAMA = 54 * 24 / 419  # hours between unexpected interruptions
rows = []
for hours in (LLAMA, 24, 30 * 24):
    for save in (1, 10, 60, 600):
        interval = diagrams.best_interval(save, hours * 3600)
        rows.append({"failure every, hours": hours, "a save takes, s": save})
        rows[-1]["save every, minutes"] = interval / 60
        rows[-1]["time lost, %"] = 100 * diagrams.lost_share(interval, save, hours * 3600)
Table(rows, "The best interval and what is lost at it, by formula")

# %% [markdown]
# The next cell draws the lost time for the first of these worlds. Look how flat the curves are at
# their lowest point: a factor of two beside the best interval costs little.

# %%
plots.show(diagrams.how_often([1, 10, 60, 600], LLAMA * 3600))

# %% [markdown]
# So a faster save pays twice: it costs less, *and* it may be done more often, so less is thrown
# away.

# %% [markdown]
# ## Prove it
#
# Equal losses say little about the last step's update. The next cell proves the ends of the chain
# and of the relay, with both optimizers: losses, samples, and the final parameters' fingerprint,
# after three and six owners.

# %%
from IPython.display import display

for run, whole in ((one, baseline), (relay[-1], never)):
    display(check.same_training(run, whole))

# %% [markdown]
# ## Break it
#
# ### Kill a process that saves
#
# The next cell runs the test of your second prediction: a process that does nothing but save 4 MiB,
# killed 20 times by `kill -9`. First it saves straight to the file's place.

# %%
import json

KILLS = 20
program = SRC / "snippets" / "save_for_ever.py"


def kill_it(way):
    """What the file was after each kill."""
    run = launch(program, 1, quiet=True, way=way, kills=KILLS)
    return json.loads(run.output(0).splitlines()[-1])["found"]


naive = kill_it("in_place")
print({what: naive.count(what) for what in ("whole", "torn", "missing")})
guess_torn.score(naive.count("torn"))

# %% [markdown]
# A torn file is not a late checkpoint, it is **none**: the good one was there before, and was
# overwritten. The next cell does the same with beside, sync, rename.

# %%
careful = kill_it("beside")
print({what: careful.count(what) for what in ("whole", "torn", "missing")})
assert "torn" in naive, "20 kills while saving in place, and nothing was torn?"
assert careful == ["whole"] * KILLS, "a kill has left no good file"

# %% [markdown]
# ### Kill a training, five times
#
# Now a real one. FSDP on 2 ranks saves after *every* step, so it spends most of its time saving. A
# thread of this notebook waits until the ranks have done some steps, and a random moment longer.
# Then it kills all of them at once. The next cell defines that. (Each rank writes its process id
# and the steps that it has done into `ranks/<k>.beat`.)

# %%
import contextlib
import os
import random
import signal
import threading

from bootcamp.records import heartbeat


def kill_ranks(folder, steps, seconds, over):
    """kill -9 of both ranks, some seconds after they have done so many steps."""
    beats = [folder / "ranks" / f"{rank}.beat" for rank in range(2)]
    while not all((beat := heartbeat.read(path)) and beat[1] >= steps for path in beats):
        if over.wait(0.002):
            return  # the run has ended by itself
    over.wait(seconds)
    for path in beats if not over.is_set() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(heartbeat.read(path)[0], signal.SIGKILL)


# %% [markdown]
# The same command line serves the first start and every restart, since `--resume` names what
# `--save` writes. The next cell starts it and kills it, five times; every second start saves
# asynchronously. After each kill it looks at what is left.

# %%
moments, kept, attempts, rows = random.Random(7), PLACE / "killed", [], []
FLAGS = {**SAME, "model": "mlp", "steps": 40, "save": kept, "resume": kept, "save_every": 1}
for number in range(5):
    folder, over = PLACE / f"start{number}", threading.Event()
    moment = (moments.randint(2, 7), moments.uniform(0, 0.06))
    thread = threading.Thread(target=kill_ranks, args=(folder, *moment, over))
    thread.start()
    here = {"options": Options(run_dir=folder), "raises": False}
    run = launch("fsdp", 2, save_async=number % 2 == 1, **here, **FLAGS)
    over.set()
    thread.join()
    left = sorted(path.name for path in kept.glob("*step-*"))
    newest = sharded_checkpoint.newest(kept)
    attempts.append(run)
    rows.append({"ended": run.status, "left": ", ".join(left), "newest": newest and newest.name})

# %% [markdown]
# The next cell shows what each kill has left. A name that begins with a dot and ends in `.part` is
# a save that was cut in the middle.

# %%
for run, row in zip(attempts, rows, strict=True):
    row["its first and last step"] = f"{run.steps[0]['step']}, {run.steps[-1]['step']}"
print(attempts[0].summary["error"]["message"])
Table(rows, "After each kill")

# %% [markdown]
# Now nobody disturbs it any more. The next cell starts it once more, lets it end, and holds all six
# starts against a run that was never killed. Each must have begun where the newest good checkpoint
# had ended.

# %%
attempts.append(launch("fsdp", 2, **{**FLAGS, "save_every": 20}))
undisturbed = check.baseline(model="mlp", steps=40, device="cpu", global_batch=16)
for row, run in zip(rows, attempts[1:], strict=True):
    assert f"step-{run.steps[0]['step']}" == (row["newest"] or "step-0"), "the newest was not good"
    assert furthest(run, undisturbed) < 1e-5, f"{run.folder.name} is another training"
starts = [f"start {number}, {run.status}" for number, run in enumerate(attempts, start=1)]
plots.show(diagrams.one_after_the_other(undisturbed, attempts, starts, "Killed five times"))

# %% [markdown]
# Where one start overlaps the one before, steps that were done but not yet saved were done once
# more, with the same result. The next cell proves the last start.

# %%
check.same_training(attempts[-1], undisturbed)

# %% [markdown]
# ### Common mistakes
#
# **Saving the model and not the optimizer.** The next cell takes a good file, throws the
# optimizer's state away, and goes on with it.

# %%
import torch

launch("gpu", 1, steps=8, save=PLACE / "good.pt", **SAME)
state = torch.load(PLACE / "good.pt", weights_only=True)
torch.save({**state, "optimizer": {}}, PLACE / "model_only.pt")
forgot = launch("gpu", 1, steps=15, resume=PLACE / "model_only.pt", **SAME)
assert furthest(forgot, baseline) > 1e-3, "AdamW did not miss its state"
title = "Resumed without the optimizer's state"
plots.show(diagrams.one_after_the_other(baseline, [forgot], ["model only"], title))

# %% [markdown]
# The first loss is right: it is computed before the first update. Then AdamW has forgotten how
# large gradients usually are. It begins anew, with updates of full size for every parameter. The
# run does learn on, so nobody notices. That is what makes this mistake so common.
#
# **A part is missing.** Each rank saved to its *local* disk, and the next job ran on other
# machines. The next cell copies the checkpoint without one rank's file, and tries. What should
# happen?

# %%
import shutil

from bootcamp import LaunchError

shutil.copytree(saved, PLACE / "missing" / saved.name)
(PLACE / "missing" / saved.name / "__2_0.distcp").unlink()


def refused(**flags):
    try:
        launch("cpu", 1, steps=15, **SAME, **flags)
    except LaunchError as error:
        return str(error).strip().splitlines()[-1].replace(str(PLACE), "...")
    raise AssertionError("this should not have been resumed")


print(refused(resume=PLACE / "missing"))

# %% [markdown]
# It ends before any training, and that is right: a model with a quarter missing is no model. So all
# ranks must write to storage that all ranks can read later.
#
# **Every rank saves to one file.** `torch.save` on every rank, to one path: then the ranks write
# over each other. If they hold parts, the file has one rank's part at best. If each holds the whole
# model, it may be right for months, until two of them write at the same moment. Let rank 0 write
# it, or DCP.
#
# **Another model.** `--resume` needs the model, its size and the optimizer that were saved. The
# next cell forgets a flag.

# %%
print(refused(resume=PLACE / "two", model="mlp"))

# %% [markdown]
# A checkpoint should say what it is of. Without the check, names that fit by chance would be
# loaded, and the rest would stay as it was initialised.

# %% [markdown]
# ## Exercises
#
# ### First: which one is good?
#
# A run was killed, and left a folder with checkpoints in parts. Some are half-written, and some
# have lost a file since. `resume_from(folders, ranks)` returns the name of the one to go on from:
# the newest that is whole. `folders` has for each name the list of its files, as in the listing
# above; `ranks` is how many ranks the run had. One of them at least is whole. The next cell has the
# function's first line, and checks it.

# %%
from bootcamp import exercise


def resume_from(folders, ranks):
    # your turn: return a name such as "step-40"
    ...


print(exercise.check("resume_from", resume_from))

# %% [markdown]
# `exercise.solution("resume_from")` shows a solution.
#
# ### Second: how often?
#
# `steps_between_saves(parameters, bytes_per_second, hosts, days_between_failures, step_seconds)`
# returns after how many steps to save again, by Young's formula. The model is trained with AdamW in
# float32. All ranks together write `bytes_per_second`, and the training waits for that. A *single*
# host fails every `days_between_failures` on average, and then all of them stop. The next cell has
# the function's first line, and checks it.

# %%


def steps_between_saves(parameters, bytes_per_second, hosts, days_between_failures, step_seconds):
    # your turn: return a number of steps
    ...


print(exercise.check("steps_between_saves", steps_between_saves))

# %% [markdown]
# `exercise.solution("steps_between_saves")` shows a solution. For more: what is lost at that
# interval, in percent?
#
# ### Third: a save that can be killed
#
# Write `save(state, path)` so that 20 kills leave 20 loadable files, and a power cut would too. The
# next cell writes your script: as it stands, it saves in place. Edit it and save it.

# %%
print(exercise.start("save_for_good"))

# %% [markdown]
# The next cell tests it: it kills a process that saves with your function, and looks at what your
# function did to files, since a kill cannot show a missing sync.

# %%
print(exercise.check("save_for_good"))

# %% [markdown]
# `exercise.solution("save_for_good")` shows a solution as a difference to your script. The question
# after it: *your function leaves something behind when it is killed. What, and who should remove
# it? (Look at the start of `checkpoint.write_whole`.)*

# %% [markdown]
# ## When to use it and when not
#
# - **One file, written by rank 0:** while ranks hold whole models, and the state is small. It is
#   simple, and a single file can be copied and given away.
# - **Parts:** as soon as ranks hold parts, and where one writer would be too slow. All ranks need
#   the same storage.
# - **Asynchronous:** when the time that training waits matters and there is memory for the copy.
# - **How often:** by √(2 *d M*), with *your* time of a save and *your* failures. Keep more than one
#   checkpoint: a good file can hold a training that has already gone wrong.
# - **Not for everything:** to give a model away, save the parameters alone, without the optimizer.
#   To read one years later, keep to plain tensors with plain names, and say what model they are of.
# - Always **test the resume**, by killing. A checkpoint that nobody has ever resumed is a hope.

# %% [markdown]
# ## Sources
#
# - J. W. Young: *A first order approximation to the optimum checkpoint interval.* Communications of
#   the ACM 17(9), 1974.
# - J. T. Daly: *A higher order estimate of the optimum checkpoint interval for restart dumps.*
#   Future Generation Computer Systems 22(3), 2006.
# - A. Grattafiori et al.: *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783.
# - S. Rajbhandari et al.: *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
#   2019, arXiv:1910.02054.
# - PyTorch documentation: *torch.distributed.checkpoint*.
# - The manual pages of `rename(2)` and `fsync(2)`.
