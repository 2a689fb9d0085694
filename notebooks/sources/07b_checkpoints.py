# %% [markdown]
# # 07b Checkpoints that outlive their strategy
#
# **49 minutes** for the core, on any machine, after lessons 04 and 07 (two runs use 06b and 06c).
# All ranks here are CPU ranks, so that the lesson runs everywhere.
#
# After this lesson you can say what a training has to save and how many bytes that is, resume on
# another number of ranks with another strategy, save so that a kill at any moment leaves a good
# checkpoint, and compute how often to save.
#
# ## The question
#
# Machines fail, jobs are preempted, and the next time slot may have another number of ranks. What
# must be kept so that a run **continues as if it had never stopped**? And who writes it when no
# rank has the complete model?

# %%
import tempfile
from pathlib import Path

from IPython.display import display

from bootcamp import launch, warm_up
from bootcamp.paths import LOGS

warm_up()
LOGS.mkdir(parents=True, exist_ok=True)
holder = tempfile.TemporaryDirectory(prefix="checkpoints-", dir=LOGS)  # ends with the notebook
PLACE = Path(holder.name)
SAME = {"device": "cpu", "global_batch": 16}
QUIET = {**SAME, "quiet": True}

# %% [markdown]
# ## The idea
#
# ### The state of a training
#
# One optimizer step is a function from one state to the next. Whatever it reads and cannot
# recompute belongs to the state:
#
# - the **parameters**;
# - the **optimizer's state**: for AdamW two numbers for each parameter (running means of the
#   gradient and of its square) and a count of steps; for SGD with momentum one number;
# - the **step**, from which schedules and data continue.
#
# In the course's scripts this is all. Real programs also save the position of the data loader, the
# random number generators of every rank if there is dropout (a program below does both), the
# learning-rate schedule, and the scale of a gradient scaler (lesson 02b). Forget one, and the run
# continues as a *different* run.
#
# ### One file, or parts
#
# With DDP rank 0 can write **one file**. With sharded ranks it would have to *gather* everything:
# one machine needs memory for it, one disk writes it, and all others wait. Or **every rank writes
# its own part** at the same time, plus an index that says where in the full tensors each piece
# belongs. With it a checkpoint outlives its strategy: a reader asks for the pieces that *it* needs.
#
# ### Good at every moment
#
# A process can die while it writes. Look for the moment at which nothing good is left.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import saved_checkpoints as diagrams

plots.show(diagrams.two_ways_to_save())

# %% [markdown]
# - **Beside:** the new state goes to another name *in the same folder*: between file systems there
#   is no rename, only a copy.
# - **Sync:** `os.fsync` waits until the bytes are on the disk. Without it, killing the process
#   loses nothing, but a power cut may lose the file.
# - **Rename:** POSIX promises that it is atomic: a reader finds the old file or the new one. The
#   folder is synced too. General-purpose buckets of object stores such as S3 have no rename. There
#   an object that is written *last* marks a complete checkpoint.
#
# ## Predict
#
# 1. The tiny GPT is trained with AdamW, in float32.
# 2. A process makes a state of 4 MiB, saves it with `torch.save` straight to the file's place,
#    makes the next one, and so on, until it is killed at a random moment. We do that 20 times.
# 3. In 54 days, Llama 3's training on some 16,000 GPUs had 419 unexpected interruptions
#    (Grattafiori et al., 2024, section 3.3.4), one every 3.1 hours. Assume that training waits 60
#    seconds for each save, and needs 10 minutes to run again after a failure. (With saves every *t*
#    seconds a failure costs half of *t* on average, too.)

# %%
from bootcamp import check, predict
from bootcamp_lessons import checkpoints

baseline = check.baseline(steps=20, **SAME)
parameters = baseline.ranks[0]["parameter_bytes"] // 4
predict_bytes = predict(
    "checkpoints_bytes",
    f"1. It has {parameters:,} parameters. How many MB is its complete training state?",
    unit="MB",
)
spent = checkpoints.save_for_ever("in_place", kills=0)["seconds"]
predict_torn = predict(
    "checkpoints_torn",
    f"2. Making a state takes {1e3 * spent['making']:.1f} ms, saving it "
    f"{1e3 * spent['saving']:.1f} ms. Of 20 kills, how many leave a file that can't be loaded?",
)
FAILURES, SAVE, RESTART = 54 * 24 * 3600 / 419, 60, 600  # seconds
predict_lost = predict(
    "checkpoints_lost",
    "3. With the best interval between saves, what percentage of the time is lost?",
    unit="%",
)
display(predict_bytes, predict_torn, predict_lost)

# %% [markdown]
# ## What changes
#
# Every script of the course can save and resume, with these lines:

# %%
from bootcamp import strategies

for line in strategies.SCRIPTS["fsdp"].path.read_text().splitlines():
    if "checkpoint." in line or "for step in" in line:
        print(line)

# %% [markdown]
# `load` returns the step to begin with. `save` is called by **every rank** in every step, and
# decides whether a save is due.
#
# Behind it is `torch.distributed.checkpoint`, **DCP** for short. It takes a nested dictionary in
# which a rank's part of a tensor is a DTensor, a tensor that knows its place in the full one.

# %%
from bootcamp.train import sharded_checkpoint
from bootcamp_lessons import excerpts

excerpts.source(sharded_checkpoint.write, sharded_checkpoint._publish)

# %% [markdown]
# DCP syncs each rank's file and writes the index, `.metadata`, last, after all ranks have written.
# So **`.metadata` is the commit mark**: a folder without it is not a checkpoint, on any file
# system. That holds for a *new* folder. In one that is used again, the old index stays while ranks
# overwrite the files that it points to. So we write each save to a folder of its own, and rename
# that when it is complete.
#
# In a program of your own, `get_state_dict` and `set_state_dict` of
# `torch.distributed.checkpoint.state_dict` give model and optimizer the names of the plain model
# (`block0.down.weight`), whatever wrapper is around it. DCP takes any object that has `state_dict`
# and `load_state_dict` (it calls that `Stateful`). So one class holds everything:

# %%
excerpts.piece(checkpoints.STATEFUL, "class Training", "torch.manual_seed(0)\nlayers")

# %% [markdown]
# The loader's state, its generator at the beginning of the epoch and its position in it, is the
# same on all ranks. Each rank has its own generator for dropout, so that one's name has the rank's
# number.
#
# ## Run it
#
# A relay, five steps for each runner: FSDP on **4 ranks**, a pipeline on **2**, tensor parallelism
# on **2**, and **one process** without any of it. Each resumes what the one before has saved.

# %%
RUNNERS = {
    "FSDP, 4 ranks": ("fsdp", 4, {}),
    "pipeline, 2 ranks": ("pp", 2, {"micro_batches": 2}),
    "tensor parallel, 2 ranks": ("tp", 2, {}),
    "one process": ("cpu", 1, {}),
}
relay, resume = {}, {}
for number, (name, (script, ranks, flags)) in enumerate(RUNNERS.items(), start=1):
    save = {"save": PLACE / f"leg{number}"}
    relay[name] = launch(script, ranks, steps=5 * number, **save, **resume, **flags, **QUIET)
    resume = {"resume": save["save"]}
title = "Four runs, one training"
plots.show(diagrams.resumed_losses(baseline, [*relay.values()], [*relay], title))

# %% [markdown]
# The distance from the run that never stopped does not jump where the relay changes hands. It is
# rounding.
#
# Now the small program, with dropout and shuffled epochs, on 2 ranks with FSDP: eight steps in one
# run, and then three steps, followed by the other five in new processes. Will the losses be equal
# bit for bit?

# %%
(whole,) = checkpoints.run_legs([(2, {})], PLACE / "eight")
export = {"export": PLACE / "parameters.safetensors"}
again = checkpoints.run_legs([(2, {"steps": 3}), (2, export)], PLACE / "three_and_five")
assert again[1]["samples"] == whole["samples"][3:], "the loader stands elsewhere"
losses = sum((leg["losses"] for leg in again), [])
print("bit for bit:", losses == whole["losses"])

# %% [markdown]
# Bit for bit, since nothing has changed but the processes. With another number of ranks there is no
# such thing as the same dropout: each rank draws its own. Without dropout the training is the same
# again, from 4 ranks with FSDP to 2 with DDP to 3 with FSDP.

# %%
(plain,) = checkpoints.run_legs([(2, {})], PLACE / "plain", dropout=0.0)
relay_of_three = [(4, {"steps": 3}), (2, {"steps": 5, "wrap": "ddp"}), (3, {})]
parts = checkpoints.run_legs(relay_of_three, PLACE / "relay", dropout=0.0)
losses = sum((leg["losses"] for leg in parts), [])
apart = [abs(a - b) for a, b in zip(losses, plain["losses"], strict=True)]
assert max(apart) < 1e-5, "the relay trains something else"
print(f"at most {max(apart):.1e} apart")

# %% [markdown]
# ## Read the measurement
#
# ### What is on the disk

# %%
import math

from torch.distributed import checkpoint as dcp

from bootcamp import claim

saved = sharded_checkpoint.find_newest(PLACE / "leg1")
display(checkpoints.list_files(saved))
index = dcp.FileSystemReader(saved).read_metadata().state_dict_metadata
counted = sum(math.prod(about.size) * 4 for about in index.values())
tensors = sum(key.startswith("model.") for key in index)
print(predict_bytes.score(counted / 1e6))
claim.equal(
    "checkpoints_state_is_12_bytes",
    "The state is 12 bytes for each parameter, and a count of steps for each tensor.",
    counted,
    12 * parameters + 4 * tensors,
    supported="4 for the parameter, 8 for AdamW's two moments. Gradients are used up by the step. "
    "In mixed precision it is 12 again: bf16 parameters are made from their float32 copy.",
)

# %% [markdown]
# One file for each rank: `__2_0.distcp` is the first file of rank 2. `settings.json` is ours: how
# many steps were done, and with which model. The index, `.metadata`, describes every tensor. The
# files are larger than the state: DCP gives every piece a header of more than a thousand bytes.
#
# ### Which piece is where
#
# One matrix, as three of the runners have saved it. Look at the direction of the cuts.

# %%
NAME = "model.block0.attention.out.weight"
folders = {name: PLACE / f"leg{number}" for number, name in enumerate(RUNNERS, start=1)}
del folders["one process"]
found = {
    name: checkpoints.pieces(sharded_checkpoint.find_newest(folder), NAME)
    for name, folder in folders.items()
}
plots.show(diagrams.pieces(NAME.removeprefix("model."), tuple(index[NAME].size), found))

# %% [markdown]
# FSDP cuts by rows. The pipeline leaves the matrix in one piece, on the rank of its stage. Tensor
# parallelism splits this one by its inputs, the columns of the stored weight (lesson 06c). Each
# reader had other cuts than the writer, and DCP put the pieces together.
#
# ### What a save costs
#
# `--save-async` *copies* the state, so that training may change it, and a thread writes the copy:
# training waits for the copy only. With GPUs it goes to main memory, and the host often has idle
# cores. **Here the thread shares the rank's one core with the training**, and may cost more than it
# saves. So count the total time. A step's own clock stops before the save; this copy of the script
# times that too.

# %%
from bootcamp import Table, variant

line = "checkpoint.save(context, step, model, optimizer)"
timed_line = f"""began = time.perf_counter()
{line}
print('{{"waits":', time.perf_counter() - began, "}}")"""
changes = {"import torch": "import time\n\nimport torch", line: timed_line}
timed = variant("fsdp", "fsdp_saves_timed", changes)
often = {**QUIET, "model": "mlp", "size": "small", "steps": 8, "save_every": 2}
ways = {"waits": {}, "--save-async": {"save_async": True}}
rows = []
for name, how in ways.items():
    run = launch(timed, 2, save=PLACE / name.strip("-"), **how, **often)
    waits = sum(each["waits"] for each in excerpts.parse_printed(run)[: len(run.steps)])
    steps = sum(row["seconds"] for row in run.steps[1:])
    rows.append({"a save": name, "steps, s": steps, "waiting for saves, s": waits})
    rows[-1]["together, s"] = steps + waits
Table(rows, "Rank 0 in eight steps with four saves, without the first step's own time")

# %% [markdown]
# With `--save-async` training waits for the copy, and for the last save if that still goes on. The
# copy needs memory: this rank's state once more.
#
# At scale the time follows from bytes and rates. The rate of one writer is an assumption: put in
# yours. 2 TB/s is what the storage of Llama 3's training sustained (section 3.3.1).

# %% tags=["nbval-check-output"]
ONE_WRITER, A_CLUSTER = 2e9, 2e12  # bytes per second
rows = []
for name, count in (("7.5 B", 7.5e9), ("70 B", 70e9), ("405 B", 405e9)):
    nbytes = 12 * count
    row = {"parameters": name, "GB": nbytes / 1e9}
    row["rank 0 alone, minutes"] = nbytes / ONE_WRITER / 60
    row["128 ranks, each its part, s"] = nbytes / ONE_WRITER / 128
    rows.append(row | {"at 2 TB/s, s": nbytes / A_CLUSTER})
Table(rows, "Time to write a training state, by formula")

# %% [markdown]
# ### How often?
#
# A failure loses on average half of the interval, and the **restart**: noticing it, getting the job
# running again, loading the checkpoint. With a save of *d* seconds, a restart of *R* and a mean
# time between failures *M*, an interval *t* loses the share *d/t + (t/2 + R)/M*. It is smallest at
# *t* = √(2 *d M*), whatever *R* is (Young, 1974; Daly, 2006, refines it for frequent failures).

# %%
best = diagrams.best_interval(SAVE, FAILURES)
share = diagrams.lost_share(best, SAVE, FAILURES, RESTART)
alone = f"restarting alone takes {RESTART / FAILURES:.1%} of the time"
print(f"A save every {best / 60:.0f} minutes; {alone}.")
print(predict_lost.score(100 * share, how="By formula"))
plots.show(diagrams.lost_time([1, 10, 60, 600], FAILURES, RESTART))

# %% [markdown]
# The curves are flat near their lowest point. A faster save pays twice: it costs less, *and* it may
# be done more often. The restart is a floor under all curves. The 60 seconds and 10 minutes are
# assumptions: Llama 3's own training lost less than 10 % of its time (section 3.3.4), which takes
# saves of seconds and quick restarts.
#
# ## Prove it
#
# The last step's update comes after the last loss, so the proof also compares final parameters.

# %%
check.same_training(relay["one process"], baseline)

# %% [markdown]
# ## Break it
#
# ### Kill a process that saves
#
# It saves 4 MiB as fast as it can and is killed by `kill -9`: first while it writes straight to the
# file's place, then with beside, sync, rename.

# %%
KILLS = 20
ways = ("in_place", "beside")
in_place, beside = (checkpoints.save_for_ever(way, KILLS)["found"] for way in ways)
print("in place:", {what: in_place.count(what) for what in ("whole", "torn", "missing")})
print(predict_torn.score(in_place.count("torn")))
assert "torn" in in_place, "20 kills while saving in place, and nothing was torn?"
claim.equal(
    "checkpoints_beside_survives_every_kill",
    "Beside, sync, rename: every kill leaves a file that can be loaded.",
    beside.count("whole"),
    KILLS,
    kind="count",
)

# %% [markdown]
# A kill tears the file if it comes during a save: nearly always where the machine is idle, since a
# state is made in the memory of the last one. A torn file is not a late checkpoint, it is **no
# checkpoint at all**: the good one was there before, and was overwritten.
#
# ### Kill a training
#
# FSDP on 2 ranks saves after *every* step, so it spends most of its time saving. All ranks are
# killed at a random moment after the sixth step. The same command then restarts it, since
# `--resume` names what `--save` writes.

# %%
import random

kept = PLACE / "killed"
forty = {"model": "mlp", "steps": 40, **SAME}
flags = {**forty, "save": kept, "resume": kept, "save_every": 1, "quiet": True}
killed = checkpoints.launch_and_kill(PLACE / "run", "fsdp", 2, 6, random.uniform(0, 0.06), **flags)
print(killed.summary["error"]["message"])
print("left:", *sorted(path.name for path in kept.glob("*step-*")))
good = sharded_checkpoint.find_newest(kept).name

again = launch("fsdp", 2, **{**flags, "save_every": 20})
assert f"step-{again.steps[0]['step']}" == good, "it did not begin at the newest good checkpoint"
undisturbed = check.baseline(**forty)
check.same_training(again, undisturbed)

# %% [markdown]
# A name such as `.step-7.4711.part` would be an interrupted save. Steps that were
# not yet saved were done again, with the same result.
#
# ### Common mistakes
#
# **Saving the model and not the optimizer.** Take a good file, remove the optimizer's state, and
# continue with it:

# %%
import torch

launch("gpu", 1, steps=8, save=PLACE / "good.pt", **QUIET)
state = torch.load(PLACE / "good.pt", weights_only=True)
torch.save({**state, "optimizer": {}}, PLACE / "model_only.pt")
forgot = launch("gpu", 1, steps=20, resume=PLACE / "model_only.pt", **QUIET)
plots.show(
    diagrams.resumed_losses(
        baseline, [forgot], ["model only"], "Resumed without the optimizer's state"
    )
)
claim.larger(
    "checkpoints_the_optimizer_matters",
    "Without AdamW's state a loss is over 100 times as far off as any of the relay's.",
    checkpoints.furthest(forgot, baseline),
    checkpoints.furthest(relay["one process"], baseline),
    by=100,
    kind="count",
)

# %% [markdown]
# The first loss is right: it is computed before the first update. With fresh means that update
# moves each number by nearly the learning rate. With kept ones, in which changing gradients cancel,
# it is far less. So this early the curve even lies *below* the other, and nobody notices.
#
# **A part is missing.** Each rank saved to its *local* disk, and the next job ran on other
# machines. **Forgetting the loader, or the generators.** The small program again, with one line
# left out.

# %%
import shutil

shutil.copytree(saved, PLACE / "missing" / saved.name)
(PLACE / "missing" / saved.name / "__2_0.distcp").unlink()
refused = launch("cpu", 1, steps=20, resume=PLACE / "missing", raises=False, **QUIET)
assert refused.status == "failed", "this should not have been resumed"
print(excerpts.first_error(refused).replace(str(PLACE), "..."))
rows = []
for forgotten in checkpoints.FORGET:
    legs = checkpoints.run_legs([(2, {"steps": 3}), (2, {})], PLACE / forgotten, forgotten)
    row = {"forgotten": forgotten, "same samples": legs[1]["samples"] == whole["samples"][3:]}
    row["first loss apart"] = abs(legs[1]["losses"][0] - whole["losses"][3])
    rows.append(row | {"last loss apart": abs(legs[1]["losses"][-1] - whole["losses"][-1])})
    assert row["first loss apart"] > 1e-3, "nothing was forgotten"
Table(rows, "Resumed after three of eight steps, without one part of the state")

# %% [markdown]
# Without the loader's position every restart begins with the same samples: these are trained on
# again and again, and others never. Both runs learn. The missing part stops the run before any
# training, and that is right: all ranks must write to storage that all ranks can read later.
#
# **Every rank saves to one file.** The ranks overwrite each other. If they hold parts, the file has
# one rank's part at best. If each holds the complete model, it may be right for months, until two
# of them write at the same moment.
#
# ## Exercises
#
# ### First: how often?
#
# `steps_between_saves(parameters, bytes_per_second, hosts, days_between_failures, step_seconds)`
# returns after how many steps to save again, by Young's formula. The model is trained with AdamW in
# float32. All ranks together write `bytes_per_second`, and the training waits for that. A *single*
# host fails every `days_between_failures` on average, and then all of them stop.

# %%
from bootcamp import exercise


def steps_between_saves(parameters, bytes_per_second, hosts, days_between_failures, step_seconds):
    # your turn: return a number of steps
    ...


print(exercise.check("steps_between_saves", steps_between_saves))

# %% [markdown]
# `exercise.solution("steps_between_saves")` shows a solution.
#
# ### Second: a save that can be killed (optional)
#
# Write `save(state, path)` so that 20 kills leave 20 loadable files, and a power cut would too.
# Your script saves in place: edit it and save it. The check kills a process that saves with your
# function, and looks at what your function did to files, since a kill cannot show a missing sync.

# %%
print(exercise.start("save_for_good"))

# %%
print(exercise.check("save_for_good"))

# %% [markdown]
# `exercise.solution("save_for_good")` shows a solution. What does your function leave behind when
# it is killed, and who should remove it?
#
# ## What if the data is a stream? (optional)
#
# Data too large to index lies in **shards**, files read from front to back. A `DataLoader` gives
# each worker a copy of the `IterableDataset` and takes batches from them in turn: each batch is
# *one* worker's. Here eight shards of unequal length are one stream:

# %%
stream = excerpts.SNIPPETS / "streaming_data.py"
predict_readers = predict(
    "streams_readers",
    "Four ranks with two workers each; `is_mine` is `number % (world * workers) == rank * workers "
    "+ worker`. After 5 of 12 batches `state_dict()` is saved, and two ranks with one worker each "
    "read the other 7. How many of the 144 samples are never trained on?",
    unit="samples",
)
predict_yielded = predict(
    "streams_yielded",
    "Now `is_mine` is right, but `position` is counted in `__iter__`, after each sample. How many?",
    unit="samples",
)
display(excerpts.piece(stream, "def seed", "class Workers"), predict_readers, predict_yielded)

# %%
*found, dealt = excerpts.parse_printed(
    launch(stream, 4, folder=PLACE / "stream", device="cpu", quiet=True)
)
rows = []
for run in found:
    steps, row = len(run["losses"]), {"stream": run["about"], "never": run["never"]}
    row |= {"again": run["again"], "right batches": f"{run['same']} of {steps}"}
    row |= {"first loss": run["losses"][0], "last three": sum(run["losses"][-3:]) / 3}
    row["in one process"] = sum(run["alone"][-3:]) / 3
    rows.append(row | {"parameters apart": max(run["apart"])})
display(Table(rows, "Two epochs on 4, 2, 3, 1 and 4 ranks; with each mistake one, on 4 and 2"))
never = {run["case"]: run["never"] for run in found}
display(predict_readers.score(never["Readers"], within=0))
display(predict_yielded.score(never["Yielded"], within=0))
assert max(rows[0]["never"], rows[0]["again"], rows[0]["parameters apart"]) < 1e-5
assert all(run["never"] for run in found[1:]), "a mistake reads everything"
claim.equal(
    "streams_are_read_once",
    "While ranks and workers change, each batch is that of a process that nobody interrupted.",
    found[0]["same"],
    len(found[0]["losses"]),
    kind="count",
)

# %% [markdown]
# All end without an error, and losses fall. With **every n-th sample** all are read once, but
# in other batches: no position says what was trained on. What the stream **has yielded** is counted
# in a worker's copy, so the main process saves 0. Workers *read* ahead of the training. A **rank's
# own count** is right while the number of ranks stays.
#
# - torchdata's `StatefulDataLoader` saves each worker's state. With other numbers of workers it
#   raises a bare `AssertionError`, with fewer ranks it silently skips and repeats (tried).
# - Hugging Face's `split_dataset_by_node` deals whole shards if ranks divide their number, else
#   single samples.
# - MosaicML Streaming saves how many samples all ranks have seen.
#
# Whole shards spare reading, but some ranks have fewer batches (printed below): one with none left
# keeps the others waiting.
#
# Write `is_mine`, so that batches stay the same. `number` counts from where training resumed,
# `batch` is that of all ranks. `exercise.solution("is_mine")` shows a solution.

# %%
print(dealt["batches of each rank"])


def is_mine(number, batch, rank, ranks, worker, workers):
    # your turn: return True or False
    ...


print(exercise.check("is_mine", is_mine))

# %% [markdown]
# ## What does LoRA send, and who loads its base? (optional)
#
# Fine-tuning begins with a checkpoint of somebody else. **LoRA** (Hu et al., 2021) freezes that
# **base**, and trains an update of low rank beside some of its matrices: *x W* + *x A B* (times
# a scale α/r, here 1). Only the **adapters** *A* and *B* have gradients and optimizer state.

# %%
from bootcamp.train.models import gpt

lora, RANK = excerpts.SNIPPETS / "lora_sharded.py", 16
of_tiny = gpt.SIZES["tiny"]
adapters = of_tiny["layers"] * 2 * 2 * RANK * of_tiny["width"]  # two matrices beside two
share = adapters / (parameters + adapters)
predict_lora = predict(
    "checkpoints_lora",
    f"The tiny GPT with adapters of rank {RANK} beside queries and values trains {share:.1%} of "
    "its parameters. How many times fewer bytes does a rank of FSDP2 send in a step with NCCL?",
    unit="times",
)
display(excerpts.piece(lora, "class Adapted", "def wrap"), predict_lora)

# %%
from bootcamp.costs import sharding
from bootcamp_lessons import sharding_tables

found = excerpts.parse_printed(launch(lora, 4, device="cpu", quiet=True))
rows, mistakes = found[:4], found[4:]
assert max(row["from one process"] for row in rows) < 1e-5, "not what one process trains"
whole, base, trained = (8 * n for n in (parameters, parameters + adapters, adapters))  # float64
theory = {  # arguments of sharding.sent_bytes
    "DDP": {"strategy": "ddp", "model_bytes": whole},
    "DDP, LoRA": {"strategy": "ddp", "model_bytes": trained},
    "FSDP2": {"strategy": "fsdp", "model_bytes": whole},
    "FSDP2, LoRA": {"strategy": "fsdp", "model_bytes": base, "number": trained / base},
}
for row in rows:
    for name, factors in (("sent kB, formula", sharding.GLOO), ("NCCL, formula", sharding.RING)):
        row[name] = sharding.sent_bytes(ranks=4, factors=factors, **theory[row["run"]]) / 1e3
table = Table(rows, "What one rank of four holds, and sends in a step")
*_, adapted, full = table.column("NCCL, formula")
what = "Two mistakes: how far the adapters of rank 3 end, in distances that they have moved"
display(predict_lora.score(full / adapted, how="By formula"), table, Table(mistakes, what))
claim.equal(
    "lora_sends",
    "A rank sends the formula's bytes in a step, within 1 %.",
    *sharding_tables.find_largest_difference(table, "sent"),
    within=0.01,
    kind="count",
    supported="This is the one furthest off. All four train what one process trains.",
)

# %% [markdown]
# DDP sends the adapters' gradients alone. FSDP2 does too, but gathers the frozen base as before,
# twice: the gradient passes through it. (gloo's reduce-scatter sends twice as much as
# NCCL's.) So if the base fits, replicate it: with DDP, or HSDP
# between hosts. `reshard_after_forward=False` gathers once. FSDP2 takes units that are partly
# frozen; FSDP1 takes them with `use_orig_params=True` only.
#
# Neither mistake raised an error. **Adapters made after wrapping** are in no collective, and
# each rank trains its own. **A base that each rank has drawn** (or that rank 0 alone has loaded)
# is fixed by DDP, which begins by broadcasting rank 0's. FSDP2 sends nothing then: its ranks agree
# on a patchwork of four models. Compare with one process.
#
# So who loads it? Every rank reads the file and keeps its part, or rank 0 reads and broadcasts
# tensor by tensor (`broadcast_from_rank0`). The file has the names of Hugging Face's GPT-2:
# queries, keys and values are one matrix, and a block's four matrices are stored transposed.

# %%
loading = excerpts.SNIPPETS / "load_pretrained.py"
predict_grown = predict(
    "checkpoints_grown",
    "FSDP2 on four ranks, of four blocks; rank 0 broadcasts. By what percentage of the model's "
    "bytes does the memory of another rank grow at most while it loads?",
    unit="%",
)
predict_silent = predict(
    "checkpoints_silent",
    "The program forgets to transpose one of those four kinds. How many of the four mistakes "
    "raise no error?",
    unit="mistakes",
)
display(excerpts.piece(loading, "OF_BLOCK = (", "AROUND ="), predict_grown, predict_silent)

# %%
ranks = excerpts.parse_printed(launch(loading, 4, folder=PLACE / "gpt2", device="cpu", quiet=True))
first, *others = sorted(ranks, key=lambda said: said["rank"])
assert first["saved_back"], "what is saved back is another file"
grown = {f"rank {said['rank']}": said["grown"] for said in (first, others[-1])}
rows = [
    {"memory grows by, MB": name} | {k: v and v / 1e6 for k, v in ways.items()}
    for name, ways in grown.items()
]
display(Table(rows, f"A model of {first['model'] / 1e6:.1f} MB"))
outcome = [{"loaded": how, "outputs": far} for how, far in first["apart"].items()]
display(Table(outcome, "How far outputs are from the original's, in their size; or the error"))
counted = others[-1]["grown"]["rank 0 broadcasts"]
display(predict_grown.score(counted and 100 * counted / first["model"]))
silent = sum(isinstance(far, float) for how, far in first["apart"].items() if "transposed" in how)
display(predict_silent.score(silent, within=0))
claim.equal(
    "loading_grows_by_a_part_and_a_tensor",
    "Where rank 0 broadcasts, another rank grows by its part and the largest tensor, within 10 %.",
    counted and counted / (first["model"] / 4 + first["largest"]),
    1.0,
    within=0.1,
    kind="count",
)

# %% [markdown]
# A rank that reads holds the file's pages, a transposed copy and its part: more than two models.
# The silent mistake's matrix is square. Right outputs, and the file saved back, are equal bit for
# bit. Transformers 5.24 read that folder with `from_pretrained`, with the same outputs (tried, no
# part of the course). Lesson 11 has the commands for Transformers and vLLM; torchtitan's are from
# its documentation (0.3.0), not run here:
#
# ```
# MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --checkpoint.enable \
#     --checkpoint.initial_load_in_hf --checkpoint.last_save_in_hf
# ```
#
# **Exercise.** To give a tuned model away, add the updates to its base. `merge_adapters(c_attn,
# query, value)` returns GPT-2's matrix of queries, keys and values, (width, 3 × width), with those
# of queries and values. Both are pairs `down, up`, weights of `torch.nn.Linear`.
# `exercise.solution("merge_adapters")` shows a solution.

# %%


def merge_adapters(c_attn, query, value):
    # your turn: return a matrix of the same shape
    ...


print(exercise.check("merge_adapters", merge_adapters))

# %% [markdown]
# ## When to use it and when not
#
# - **One file, written by rank 0:** while ranks hold complete models and the state is small. It is
#   simple, and a single file can be copied and given away.
# - **Parts:** as soon as ranks hold parts, or one writer would be too slow. All ranks need the same
#   storage.
# - **Asynchronous:** if there is memory for the copy (DCP can keep it pinned), and a core to write
#   it, or a process (`AsyncCheckpointerType.PROCESS`). Some programs also keep a copy in another
#   host's memory.
# - **How often:** by √(2 *d M*), with *your* save time and *your* failures. Keep more than one
#   checkpoint: a good file can hold a training that has already diverged.
# - **To give a model away**, save the parameters alone, with plain names, as `safetensors`, the
#   format that others read without running your pickles. Lesson 11 makes such a file of a
#   checkpoint in parts.
# - Always **test the resume**, by killing. A checkpoint that nobody has ever resumed is only a
#   hope.
#
# ## Sources
#
# - J. W. Young: *A first order approximation to the optimum checkpoint interval.* Communications of
#   the ACM 17(9), 1974.
# - J. T. Daly: *A higher order estimate of the optimum checkpoint interval for restart dumps.*
#   Future Generation Computer Systems 22(3), 2006.
# - E. Hu et al.: *LoRA: Low-Rank Adaptation of Large Language Models*, 2021, arXiv:2106.09685.
# - A. Grattafiori et al.: *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783.
# - PyTorch documentation: *torch.distributed.checkpoint* and its module *state_dict*.
# - The code of torchdata 0.11, datasets 5.2 and mosaicml-streaming 0.13.
# - The manual pages of `rename(2)` and `fsync(2)`.
