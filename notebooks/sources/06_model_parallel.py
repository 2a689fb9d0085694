# %% [markdown]
# # 06 Model parallelism: layers over devices
#
# **60 minutes**, on any machine. With two GPUs the model is really cut over them. Without, the cut
# runs between CPU ranks, and the lesson says what that shows and what it cannot show.
#
# After this lesson you can compute from which size on a model does not fit on a device, cut it over
# two devices, predict what each device holds and what crosses the cut, say why this makes nothing
# faster, choose the place of the cut, and combine the cut with data parallelism. Lesson 06b cures
# the waiting (pipelines), lesson 06c cuts inside the layers (tensor parallelism).

# %% [markdown]
# ## The question
#
# All lessons so far gave every device the whole model. What if it does not fit?
#
# The next cell gets ready.

# %%
from bootcamp import gpu_count, launch, warm_up

warm_up()
print(f"PyTorch finds {gpu_count()} GPU(s) here.")

# %% [markdown]
# ### How many bytes does a parameter need?
#
# While a model is trained, its **state** is always in memory: the parameters, one gradient for each
# of them, and what the optimizer keeps. All of that grows with the number of parameters alone. The
# next cell adds up the bytes for one parameter. Look at which part the optimizer has.

# %% tags=["nbval-check-output"]
from bootcamp import Table

AdamW = {"parameter": 4, "gradient": 4, "optimizer": 8}  # two running means
kinds = {
    "SGD, float32": {"parameter": 4, "gradient": 4, "optimizer": 0},
    "SGD with momentum, float32": {"parameter": 4, "gradient": 4, "optimizer": 4},
    "AdamW, float32": AdamW,
    "AdamW, 16-bit with a float32 copy": {"parameter": 2, "gradient": 2, "optimizer": 4 + 8},
}
rows = [{"training": name, **kind, "together": sum(kind.values())} for name, kind in kinds.items()]
Table(rows, "Bytes for one parameter")

# %% [markdown]
# The last row counts as the ZeRO paper does (see Sources): 16-bit numbers for the arithmetic do not
# shrink the state, as long as a float32 copy of the parameters is kept.
#
# So memory divided by 16 is a limit that no batch size can move. The next cell computes it for
# devices of several sizes.

# %% tags=["nbval-check-output"]
state = sum(AdamW.values())
rows = [{"GB": gb, "million parameters": round(gb * 1e9 / state / 1e6)} for gb in (8, 16, 40, 80)]
Table(rows, f"Parameters whose state alone fills a device, at {state} bytes each")

# %% [markdown]
# ### "From about 500 million parameters"
#
# You hear that from about 500 million parameters on a model must be cut. Is that so? The next cell
# computes what the GPT sizes of this course need, with no batch at all, with one sample and with 8.
# (The formula for activations is that of lesson 01, in float32, with nothing computed again.)

# %%
from argparse import Namespace

import torch

from bootcamp.train import models
from bootcamp.train.models import gpt

flags = {"model": "gpt", "size": "tiny", "seed": 0, "dtype": "float32"}
needs = {"state alone": [], "state and 1 sample": [], "state and 8 samples": []}
for size in ("small", "medium", "large", "xl"):
    layers, width, heads, context = gpt.SIZES[size].values()
    with torch.device("meta"):  # shapes without memory
        whole = models.build(Namespace(**{**flags, "size": size}))
    count = sum(parameter.numel() for parameter in whole.parameters())
    for samples, points in zip((0, 1, 8), needs.values(), strict=True):
        numbers = context * (layers * (16 * width + heads + 4) + 2 * width + 2 + 256)
        points.append((count, (state * count + 4 * samples * numbers) / 1e9))

# %% [markdown]
# The next cell draws it, beside the memory of some GPUs. Where does the dotted line meet the
# curves?

# %%
from bootcamp import paths, plots
from bootcamp.theory.published import table as published_table
from bootcamp_lessons.diagrams import model_parallel as diagrams

gpus = published_table("hardware")
memory = {}
for gpu in gpus:  # "16/32 GB" and "180-192 GB": the first number
    memory[gpu["gpu"]] = float(gpu["memory"].replace("/", "-").split("-")[0].split()[0])
by_size = {gb: ", ".join(g.split()[0] for g in memory if memory[g] == gb) for gb in memory.values()}
plots.show(diagrams.what_fits(needs, {name: gb for gb, name in by_size.items()}))
print("Published:", gpus[0]["source"])

# %% [markdown]
# The next cell reads the curves at 500 million parameters.

# %% tags=["nbval-check-output"]
import numpy as np

for words, points in needs.items():
    counts, gigabytes = np.log(np.array(points)).T
    print(f"{words:>19}: {np.exp(np.interp(np.log(500e6), counts, gigabytes)):5.1f} GB")

# %% [markdown]
# The number has a kernel of truth: the state of 500 million parameters fills a device of 8 GB, and
# with 8 samples at once 16 GB do not suffice either. On a device of 80 GB the limit lies several
# times higher. So do not remember the number, remember how to compute it: **16 bytes a parameter,
# plus activations**.
#
# And cutting the model is not the first resort. Smaller micro-batches and activation checkpointing
# (lesson 02) shrink the activations. But nothing there shrinks the state. For that, somebody else
# has to hold a part of it.

# %% [markdown]
# ## The idea
#
# The next cell draws three ways to cut one model over two devices. Look at the lower half: who
# works when?

# %%
plots.show(diagrams.three_cuts())

# %% [markdown]
# - **Layers** (this lesson): the first half of the layers lies on one device, the second half on
#   another. The output of the first half, its **activations**, is moved to the second device, and
#   in the backward the gradient of these activations comes back.
# - **Pipeline** (06b): the same cut, but the batch comes in parts.
# - **Matrices** (06c, tensor parallelism): every layer is cut, and each device computes a part of
#   its result.
#
# In all three a device holds only a part of the parameters, and so only a part of the gradients and
# of the optimizer's state. That is what they have in common, and what data parallelism does not
# give.
#
# Two words: a **stage** is a piece of the model that lies on one device as a whole. (This course's
# models are written as a sequence of small stages: embedding, blocks, head. A device gets several.)
# The **cut** is the place between two devices.

# %% [markdown]
# ## Predict
#
# We cut the model in the middle, over two devices of the same kind, and train with the same batch.
# How many times as many samples per second will that be?

# %%
from bootcamp import predict

guess_speed = predict(
    "model_parallel_speed", "Two devices: how many times as fast as one?", unit="times", answer=None
)
guess_speed

# %% [markdown]
# And what crosses the cut? A block gives `width` numbers for each byte of text. The next cell asks
# for the megabytes that the first device sends to the second in one step.

# %%
BATCH = 32
layers, width, heads, context = gpt.SIZES["tiny"].values()
guess_bytes = predict(
    "model_parallel_bytes",
    f"{BATCH} samples of {context} bytes, width {width}, float32: how much crosses the cut?",
    unit="MB",
    answer=None,
)
guess_bytes

# %% [markdown]
# ## What changes
#
# The next cell compares the script for one device with the one for two. Find the three places where
# something is moved.

# %%
from bootcamp import script_diff

script_diff("mp")

# %% [markdown]
# - `context.devices` has two names: two GPUs; or a GPU and the CPU; or twice the CPU.
# - `model[:half]` is a slice of the sequence. It refers to the same layers, so `.to(device)` moves
#   the model's own first half.
# - **The hook** is called before the first stage behind the cut. What it gets are that stage's
#   inputs, what it returns takes their place: the activations, on the second device. There is no
#   such line for the backward. Autograd has recorded the move, and moves the gradient back.
# - **The targets** go to the second device, since the loss is computed there.
#
# Everything else stays: one process, one optimizer over all parameters, one loss. The optimizer's
# state is created where each parameter lies.

# %% [markdown]
# ## Run it
#
# The next cell trains on one device and on two. Read what the second run says about its devices.

# %%
one = launch("gpu", 1, steps=12, global_batch=BATCH)
two = launch("mp", steps=12, global_batch=BATCH)
print(two.output(0) or "Two different devices.")

# %% [markdown]
# **Without a GPU** this run shows that the wiring is right, and nothing else: both halves lie in
# the same memory, `.to()` copies nothing, and one core does all the work. **With one GPU** the
# second half really lies in main memory, and the CPU computes it: larger models fit, at the CPU's
# speed. **With two GPUs** each holds its half. (The record's peak memory is that of the first
# device.) The next cell puts both runs side by side.

# %%
from bootcamp import runs

runs.table(one, two)

# %% [markdown]
# So that every machine can measure a real cut, the next cell makes each device a CPU rank, with a
# core and a memory of its own. The script is that of lesson 06b; with one micro-batch it does what
# the layer split does. It runs on 2 ranks and on 4. (More ranks than cores are no problem here. You
# will see why.)

# %%
on_cores = {"device": "cpu", "steps": 12, "global_batch": BATCH}
one_core = launch("cpu", 1, **on_cores)
split = {
    ranks: launch("pp", ranks, schedule="gpipe", micro_batches=1, **on_cores) for ranks in (2, 4)
}

# %% [markdown]
# The next cell holds your first prediction against the ratio of the samples per second.

# %%
guess_speed.score(split[2].samples_per_second / one_core.samples_per_second)

# %% [markdown]
# ## Read the measurement
#
# ### Only one device works at a time
#
# Each rank has written down when each of its forwards and backwards began and ended. (On CPU ranks
# this is when the work was done. On a GPU it would be when the work was ordered, so we stay on CPU
# ranks.) The next cell draws one step. Read it along the time: what is rank 0 doing while rank 1 is
# busy?

# %%
plots.show(diagrams.who_works(split[2], step=8))

# %% [markdown]
# Rank 1 cannot begin before it has rank 0's activations, and rank 0 cannot begin its backward
# before it has rank 1's gradient. The loss ties both together, so there is nothing else to do
# meanwhile. At most one of *p* ranks works at any moment, so together they use at most 1/*p* of
# their time. Passing the activations on takes the rest. The next cell counts both.

# %%
rows = []
for ranks, run in split.items():
    done = diagrams.actions(run)
    most, share = diagrams.at_once(done), diagrams.median_utilisation(done)
    assert most == 1, "two ranks worked at the same time"
    rows.append({"ranks": ranks, "at work at once": most, "by formula, at most": 1 / ranks})
    rows[-1]["share of time at work"] = share
Table(rows, "Layers over ranks, measured here")

# %% [markdown]
# **So a layer split makes nothing faster.** A step takes the sum of all stages' times, plus the way
# over the cuts. That is also why 4 ranks do not disturb each other on 2 cores: only one of them
# computes. What you get for another device is its memory.

# %% [markdown]
# ### What each device holds
#
# The formula, for each rank: 4 bytes a parameter, the same for its gradient, 8 for AdamW, and 4
# more for each parameter tensor (AdamW counts its steps there). The next cell cuts the model as the
# script does, and computes this for both halves.

# %%
model = models.build(Namespace(**flags))
half = len(model) // 2
rows = []
for rank, part in zip(split[2].ranks, (model[:half], model[half:]), strict=True):
    tensors = list(part.parameters())
    held = sum(tensor.numel() for tensor in tensors)
    formula = {"parameter": 4 * held, "gradient": 4 * held}
    formula["optimizer"] = 8 * held + 4 * len(tensors)
    for kind, said in formula.items():
        row = {"rank": rank["rank"], "bytes of": kind, "by formula": said}
        rows.append(row | {"counted": rank[f"{kind}_bytes"]})
        assert rows[-1]["counted"] == said, f"the formula for the {kind} is off"
Table(rows, "State of each rank's stages, counted from live tensors")

# %% [markdown]
# Not one byte off: gradients and optimizer state follow the parameters, without a line of code. The
# rows of rank 0 and rank 1 are not equal, although both have the same number of stages. We come
# back to that.
#
# The activations are cut too: each device keeps what its own stages need for their backward. To
# count them stage by stage, the next cell runs a small program. It takes one stage after the other,
# on one CPU core, and prints bytes and times.

# %%
import json

program = paths.SRC / "snippets" / "stage_costs.py"
printed = launch(program, 1, device="cpu", quiet=True).output(0)
stages = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
Table(stages, "The tiny GPT, stage by stage, measured here")

# %% [markdown]
# The next cell adds them up for both sides of the cut, and holds them against the formula. The
# first side has the embedding's sum, the second the head's norm and the loss.

# %%
tokens, rows = BATCH * context, []
for device, side in enumerate((stages[:half], stages[half:])):
    blocks = sum(row["stage"].startswith("block") for row in side)
    numbers = blocks * (16 * width + heads + 4) + (width if device == 0 else width + 2 + 256)
    counted = sum(row["activation_bytes"] for row in side)
    said = 4 * tokens * numbers
    rows.append({"device": device, "by formula MB": said / 1e6, "counted MB": counted / 1e6})
    assert abs(counted / said - 1) < 0.05, "the formula for activations is off"
Table(rows, "Activations on each side of the cut")

# %% [markdown]
# ### What crosses the cut
#
# By formula: samples × context × width × 4 bytes forward, and the same back. A rank in the middle
# passes on both. The next cell compares this with what the kernel of the operating system counted
# on the ranks' connections. (It counts on Linux only.)

# %%
crossing = BATCH * context * width * 4
rows = []
for ranks, run in split.items():
    for rank in run.ranks:
        ways = (rank["rank"] > 0) + (rank["rank"] < ranks - 1)
        row = {"ranks": ranks, "rank": rank["rank"], "by formula": ways * crossing}
        rows.append(row | {"counted": rank["sent_bytes_per_step"]})
        counted = row["by formula"] if rows[-1]["counted"] is None else rows[-1]["counted"]
        assert abs(counted / row["by formula"] - 1) < 0.02, "something else crossed the cut"
Table(rows, "Bytes that a rank sends in a step")

# %% [markdown]
# The few hundred bytes more are the mean of the loss, and the protocol. The next cell scores your
# second prediction.

# %%
counted = split[2].ranks[0]["sent_bytes_per_step"] or crossing
guess_bytes.score(counted / 1e6)

# %% [markdown]
# Is that much? For data parallelism each of two devices sends as many bytes in a step as the
# gradients have (lesson 04). The next cell compares both for the larger sizes, by formula, with 8
# samples.

# %% tags=["nbval-check-output"]
rows = []
for size, (count, _) in zip(("small", "medium", "large", "xl"), needs["state alone"], strict=True):
    once = 8 * gpt.SIZES[size]["context"] * gpt.SIZES[size]["width"] * 4
    row = {"size": size, "over the cut, MB": once / 1e6}
    rows.append(row | {"to average gradients, MB": 4 * count * 2 * (2 - 1) / 2 / 1e6})
Table(rows, "What each of two devices sends in a step of 8 samples, by formula")

# %% [markdown]
# What crosses a cut grows with the batch and the width, but not with the depth of the model. For
# large models it is far less than what data parallelism sends. So a cut between layers can lie on a
# slow link, such as the one between two hosts. But in a plain layer split nobody computes while
# these bytes are on their way.

# %% [markdown]
# ### Where to cut
#
# "Half of the layers" is not half of everything. The next cell draws each stage's share of the
# parameters, of the activations, and of the time. Look at the two ends.

# %%
plots.show(diagrams.stage_costs(stages, half))

# %% [markdown]
# The embedding has parameters and takes almost no time: it only looks up. The head has its share of
# the time, but fewer parameters than a block. In between all blocks are alike. To find the best
# cut, try every place, and take the one whose most expensive part is the cheapest. The next cell
# defines that.


# %%
from itertools import combinations, pairwise


def part_costs(costs, edges):
    return [sum(costs[begin:end]) for begin, end in pairwise(edges)]


def best_cut(costs, parts):
    """The edges of the cut whose most expensive part is the cheapest."""
    inner = combinations(range(1, len(costs)), parts - 1)
    cuts = [(0, *edges, len(costs)) for edges in inner]
    return min(cuts, key=lambda edges: max(part_costs(costs, edges)))


# %% [markdown]
# The next cell asks where to cut this model in two, for time and for memory.

# %%
seconds = [row["forward_seconds"] + row["backward_seconds"] for row in stages]
parameters = [row["parameter_bytes"] for row in stages]
for words, costs in (("time", seconds), ("parameters", parameters)):
    print(f"best for {words}: device 1 begins with {stages[best_cut(costs, 2)[1]]['stage']}")

# %% [markdown]
# Here the middle is right, because a vocabulary of 256 bytes is tiny. Real ones are large: GPT-2's
# has 50,257 entries (Radford et al., 2019). The next cell computes what each stage of GPT-2 small
# costs with this vocabulary: floating-point operations for a token, and parameters. (GPT-2 itself
# has one table for embedding and head. Here they are two.)

# %%
vocabulary = 50_257
deep, wide, _, long = gpt.SIZES["small"].values()
flops = [0, *[24 * wide**2 + 4 * long * wide] * deep, 2 * wide * vocabulary]
weights = [(vocabulary + long) * wide, *[12 * wide**2 + 9 * wide] * deep, (vocabulary + 2) * wide]
print(f"The head's arithmetic is that of {flops[-1] / flops[1]:.1f} blocks.")

# %% [markdown]
# The last of 4 devices gets three blocks and the head, if all have about the same number of stages.
# The next cell asks you how much more than its share of the arithmetic that is. (The embedding has
# none, and the twelve blocks are equal.)

# %%
guess_last = predict(
    "model_parallel_last",
    "12 blocks and a head over 4 devices: 3 blocks and the head on the last one. How many times "
    "the mean of the devices' arithmetic does it get?",
    unit="times",
    answer=None,
)
guess_last

# %% [markdown]
# The next cell cuts it over 4 devices in three ways. Look at the largest part: 1 would be balance.

# %% tags=["nbval-check-output"]
ways = {
    "equal numbers of stages": tuple(len(flops) * part // 4 for part in range(5)),
    "balanced for time": best_cut(flops, 4),
    "balanced for parameters": best_cut(weights, 4),
}
rows = []
for words, edges in ways.items():
    row = {"cut": words, "stages": " + ".join(str(b - a) for a, b in pairwise(edges))}
    for name, costs in (("time", flops), ("parameters", weights)):
        row[f"{name}, largest / mean"] = max(part_costs(costs, edges)) / (sum(costs) / 4)
    rows.append(row)
Table(rows, "GPT-2 small with its vocabulary over 4 devices, by formula")

# %% [markdown]
# The next cell scores your prediction against the first row of the table.

# %%
guess_last.score(rows[0]["time, largest / mean"])

# %% [markdown]
# With equal numbers of stages the last device gets almost twice its share of the arithmetic, for
# the head alone is worth more than four blocks. A cut that balances time does not balance memory,
# and the other way round. Which of the two do you want? In a plain layer split **memory**: the time
# is the sum of all stages, wherever the cut lies. In a pipeline (06b) **time** counts too, for
# there everybody waits for the slowest. The makers of Llama 3 took one layer off the first and off
# the last stage of their pipeline for this reason (see Sources).

# %% [markdown]
# ## With data parallelism: each rank has two devices
#
# A model that needs two devices can be trained on four: two processes, each with its own two
# devices, average their gradients. The next cell shows what data parallelism adds to the script.

# %%
script_diff("ddp_mp")

# %% [markdown]
# One argument deserves a look: `device_ids=None`. Elsewhere you may see `device_ids=[rank]`, which
# tells DDP where to put the inputs. This model has two devices and moves everything itself, so
# there is nothing to tell.
#
# Older texts give *several* ids to one process: `device_ids=[0, 1]`. Then one process held a copy
# of the model on each device, and threads ran them, as in lesson 03's `DataParallel`. Today's
# PyTorch has one process for each copy of the model. The next cell asks DDP what it takes.

# %%
program = paths.SRC / "snippets" / "ddp_device_ids.py"
answers = launch(program, 2, device="cpu", quiet=True).output(0)
assert "accepted" in answers.splitlines()[-1], "DDP refused device_ids=None"
print(answers)

# %% [markdown]
# - Two ids: refused, whatever the model.
# - One id, but the model is not on one GPU: refused. A model over two GPUs gets the same answer.
# - Two *kinds* of devices: refused even with `None`. So a rank may have two GPUs, but not a GPU and
#   the CPU. (Here `meta`, a device without memory, plays the second kind.)
#
# The next cell runs two ranks. Without four GPUs all of their devices are CPU cores.

# %%
both = launch("ddp_mp", 2, steps=12, global_batch=BATCH)
rank = both.ranks[0]
sent = rank["sent_bytes_per_step"] if both.device == "cpu" else None
row = {"ranks": both.world, "parameters of a rank": rank["parameter_bytes"]}
row |= {"sent, by formula": both.predicted_sent_bytes_per_step, "sent, counted": sent}
Table([row], "Data parallel ranks of two devices each, bytes")

# %% [markdown]
# A rank is a whole copy of the model, on however many devices. So the formula of lesson 04 holds
# with the number of *ranks*: the gradients once, for two ranks. Each half is averaged with the same
# half of the other rank. (The bytes are counted on CPU ranks.)

# %% [markdown]
# ## Prove it
#
# Moving changes no number. The next cell proves it for one process with two devices, and for two
# processes with two devices each, with both optimizers.

# %%
from bootcamp import check

for script, ranks in (("mp", 1), ("ddp_mp", 2)):
    for proof in check.prove(script, ranks):
        assert not proof.failed, f"{script} trains something else than the baseline"
    print(proof, end="\n\n")

# %% [markdown]
# And the layer split over ranks: no rank has the whole model here, so the proof adds up what the
# ranks hold.

# %%
baseline = check.baseline(steps=12, global_batch=BATCH)
for run in split.values():
    assert not check.compare(run, baseline).failed, "the cut model trains something else"
check.compare(split[4], baseline)

# %% [markdown]
# ## Break it
#
# ### First: something was not moved
#
# Without two devices a forgotten move shows nothing: everything is in one memory. But lesson 02 has
# the device `meta`, which every machine has. Put the first half on the CPU and the second half on
# `meta`, and a forward is a rehearsal with two different devices. (Only the forward: a gradient
# without numbers cannot come back to the CPU.) The next cell rehearses the script as it is.

# %%
from bootcamp import variant

devices = "device, second_device = (torch.device(name) for name in context.devices)"
cpu_and_meta = 'device, second_device = torch.device("cpu"), torch.device("meta")'
two_kinds = {devices: cpu_and_meta, "loss.backward()": ""}


def rehearse(name, **changes):
    script = variant("mp", name, {**two_kinds, **changes})
    return launch(script, 1, device="cpu", steps=1, quiet=True, raises=False)


print(rehearse("mp_rehearsal").status)

# %% [markdown]
# The next cell rehearses three scripts in which somebody changed one line. For each it prints the
# error, and the last lines of the course's code that the error came through. Which line was changed
# in each?

# %%
hook = "model[half].register_forward_pre_hook(lambda stage, inputs: inputs[0].to(second_device))"
loss = "loss = models.loss(model(inputs), targets.to(second_device))"
broken = {
    "A": {hook: ""},
    "B": {loss: loss.replace(".to(second_device)", "")},
    "C": {hook: hook.replace("[half]", "[half - 1]")},
}
for name, change in broken.items():
    error = rehearse(f"mp_broken_{name}", **change).summary["error"]
    places = [line.strip() for line in error["traceback"].splitlines()]
    print(f"{name}: {error['message']}")
    for number, line in enumerate(places):
        if line.startswith("File") and ("variants" in line or "bootcamp/train/models" in line):
            print("      ", places[number + 1])

# %% [markdown]
# <details><summary>Answer</summary>
#
# All three messages name two devices, and `meta` is the second one here. The lines tell who met.
#
# - **A:** a block's norm. Its inputs are on the CPU, its weights are on the second device: the
#   activations did not cross. The hook is missing.
# - **B:** no block at all, but the cross-entropy: the outputs are on the second device, the targets
#   are not.
# - **C:** a block again, but the other way round: the *inputs* are on the second device already and
#   the weights are still on the first. Compare the message with A's. The hook stands one stage too
#   early.
#
# On two GPUs the messages say `cuda:0` and `cuda:1`. All of these are the good case: they fail in
# the first step.
# </details>

# %% [markdown]
# ### Second: a list of parameters, made too early
#
# The next script makes the second half anew on its device, by copying each stage. It had made the
# list of parameters for the optimizer before that. The next cell runs it on the CPU: it raises
# nothing. Look at the losses.

# %%
second_half = "model[half:].to(second_device)"
copies = """early = list(model.parameters())
for place in range(half, len(model)):
    model[place] = __import__("copy").deepcopy(model[place]).to(second_device)"""
build = "optimizer = optimizers.build(args, model.parameters())"
too_early = build.replace("model.parameters()", "early")
early = variant("mp", "mp_early", {second_half: copies, build: too_early})
odd = launch(early, 1, quiet=True, **on_cores)
plots.show(plots.loss_curves(baseline, odd))

# %% [markdown]
# The loss falls, if slowly. The next cell asks the record, and the proof. What do the bytes tell
# you?

# %%
proof = check.compare(odd, baseline)
assert proof.failed, "the early list went unnoticed"
rank = odd.ranks[0]
for kind in ("parameter", "gradient", "optimizer"):
    print(f"{kind} bytes: {rank[f'{kind}_bytes']:,}")
proof

# %% [markdown]
# <details><summary>What happened?</summary>
#
# The optimizer should hold twice the parameters' bytes, and holds about once. The second half's
# parameters that it knows are the old ones, which no forward uses, so they get no gradient and no
# state. The new ones get gradients that nobody applies, and nobody sets to zero either. Half of the
# model learns, and that is enough for a falling loss.
# </details>
#
# So is it wrong to build the optimizer before the move? That depends on whether the move makes new
# parameters. The next cell looks: is the parameter in an early list still the model's own?

# %% tags=["nbval-check-output"]
from copy import deepcopy

moves = {
    ".to(another dtype)": lambda layer: layer.to(torch.float64),
    ".to(the meta device)": lambda layer: layer.to("meta"),
    "deepcopy": deepcopy,
}
for name, move in moves.items():
    layer = torch.nn.Linear(4, 4)
    listed = list(layer.parameters())
    same = all(a is b for a, b in zip(listed, move(layer).parameters(), strict=True))
    print(f"{name}: {'the same objects' if same else 'new objects'}")

# %% [markdown]
# Where it can, `.to()` changes what is inside a parameter and keeps the object, also from the CPU
# to a GPU. There an early optimizer survives, as long as it has no state yet: the state would stay
# behind. To `meta` it makes new objects, and so do copies and the functions that shard parameters
# (lesson 06c has one). Nothing of this has to be remembered if you keep the order of the scripts:
# **model, move, then optimizer**.

# %% [markdown]
# ## Exercises
#
# ### First: where to cut
#
# Find the best cut for memory. `where_to_cut(parameters, activation_bytes)` is given two lists with
# a number for each stage: how many parameters it has, and how many bytes it keeps for the backward.
# It returns the place of the first stage of device 1, so that the *fuller* of the two devices holds
# as few bytes as possible: state, for AdamW in float32, and activations. The next cell has the
# function's first line, and checks it.

# %%
from bootcamp import exercise


def where_to_cut(parameters, activation_bytes):
    # your turn: return the place of the cut, counted as in model[:cut] and model[cut:]
    ...


print(exercise.check("where_to_cut", where_to_cut))

# %% [markdown]
# `exercise.solution("where_to_cut")` shows a solution. For more: give your function the rows of the
# table "The tiny GPT, stage by stage", which are in `stages`.
#
# ### Second: two ranks of two devices
#
# Bring the script of this lesson to two ranks, each with its model on two devices. The next cell
# writes the starting point.

# %%
print(exercise.start("ranks_of_two_devices"))

# %% [markdown]
# Edit the file, save it, run the next cell. It runs your script on two ranks with both optimizers.
# `exercise.solution("ranks_of_two_devices")` shows the solution as a diff. For more: cut the model
# of the starting point at another place, or into three parts (`devices_per_rank=3`), and prove it.

# %%
print(exercise.check("ranks_of_two_devices"))

# %% [markdown]
# ## When to use it and when not
#
# - **Use a layer split to make a model fit**, not to make it fast. It is a few lines, it needs
#   nothing of the model but an order of its layers, and the link between the devices may be slow.
# - **For inference it is common.** Hugging Face's `device_map="auto"` (Accelerate) places layers on
#   GPUs, then main memory, then disk, and moves the activations with hooks, as this lesson does.
#   One user waits a little longer, and the model runs at all.
# - **Do not train on many devices this way:** of *p* devices that you pay for, one works. If the
#   model fits when each device holds a part of the state only, sharded data parallelism keeps all
#   devices busy; a later lesson has it.
# - **Lesson 06b** keeps the cut and fills the waiting with other parts of the batch. **Lesson 06c**
#   cuts the matrices, so that all devices work on the same layer.
# - **Where the model is no sequence** (an output of an early layer used again far behind), more
#   than one tensor crosses the cut, and all of them have to be moved.
# - **Cut by bytes if only memory counts, by time if it will become a pipeline.** Look at embedding
#   and head first.
#
# ## Sources
#
# - PyTorch documentation: *DistributedDataParallel* (`device_ids`), *torch.nn.Module*
#   (`register_forward_pre_hook`), *torch.optim*; tutorial *Getting Started with Distributed Data
#   Parallel*, section on combining it with model parallelism.
# - Krizhevsky, *One weird trick for parallelizing convolutional neural networks*, 2014,
#   arXiv:1404.5997: data and model parallelism told apart.
# - Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
#   2019, arXiv:1910.02054: the 16 bytes for each parameter.
# - Huang et al., *GPipe*, 2018, arXiv:1811.06965: the layer split whose waiting a pipeline fills.
# - Llama Team, *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783, section 3.3: stages that are
#   balanced by hand.
# - Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019: GPT-2.
# - Hugging Face, *Accelerate* documentation: *Big Model Inference*.
# - Stas Bekman, *Machine Learning Engineering*, github.com/stas00/ml-engineering: the published
#   memory of GPUs (`src/bootcamp/theory/published/hardware.csv`).
