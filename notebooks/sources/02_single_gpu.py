# %% [markdown]
# # 02 Single GPU: move the model, move the batch
#
# **30 minutes**, on any machine. With a GPU you measure it; without one you rehearse the move, and
# the lesson says what it cannot show.
#
# After this lesson you can bring a training script to a GPU, prove that nothing was left behind,
# say why a GPU is faster and when it is not, time it without being fooled, and read an
# out-of-memory error.

# %% [markdown]
# ## The question
#
# A GPU computes much faster than a CPU core. What has to change in the script to use it, and what
# happens if you change only half of it?
#
# The next cell gets ready and looks for GPUs.

# %%
from bootcamp.launch import gpu_count, launch, run_command, warm_up

warm_up()
if gpu_count():
    print(f"PyTorch finds {gpu_count()} GPU(s) here: the runs below use one.")
else:
    print("PyTorch finds no GPU here: this notebook cannot measure one. Its runs stay on the CPU.")

# %% [markdown]
# ## The idea
#
# A GPU is a computer of its own: thousands of arithmetic units, and a memory of its own. In
# PyTorch's words it is a **device**, named `cuda`; the CPU with the main memory is the **host**.
# The Python script always runs on the host. It orders **kernels**, functions that run on the GPU,
# and a kernel reads and writes the GPU's memory. What lies in main memory has to be copied there
# first, over a bus. The next cell draws it. Look at what crosses the bus once, and what in every
# step.

# %%
from bootcamp import plots
from bootcamp.pictures import basics

plots.show(basics.host_and_device())

# %% [markdown]
# So two things have to be moved: **the model once, the batch in every step**. Gradients and
# optimizer state are created where the parameters are, activations where the inputs are. How much
# is it? The next cell counts the bytes.

# %%
from argparse import Namespace

from bootcamp import data, models

flags = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=32)
model = models.build(flags)
inputs, targets = data.Batches(flags, rank=0, world=1)(0)
model_bytes = sum(parameter.nbytes for parameter in model.parameters())
print(f"once: {model_bytes / 1e6:.2f} MB of parameters")
print(f"each step: {(inputs.nbytes + targets.nbytes) / 1e6:.2f} MB of inputs and targets")

# %% [markdown]
# ### Why it is faster
#
# Two numbers describe a device: how many operations it does in a second, and how many bytes it
# reads and writes in a second. Large matrix products are limited by the first, for they use each
# number many times. Everything that touches a number once or twice (adding, norms, the optimizer)
# is limited by the second. The next cell measures both for one core of this machine.

# %%
import time

import torch

from bootcamp import peak

core_flops = peak.matmul_flops_per_second("cpu", "float32", cores=1)
torch.set_num_threads(1)
here, there = torch.ones(2**25), torch.ones(2**25)
seconds = []
for _ in range(9):
    began = time.perf_counter()
    there.copy_(here)
    seconds.append(time.perf_counter() - began)
core_bandwidth = 2 * here.nbytes / sorted(seconds)[len(seconds) // 2]  # read once, written once

# %% [markdown]
# The next cell puts published peak values of some GPUs beside it. Look at how far apart they are:
# the axes count in powers of ten.

# %%
import csv

from bootcamp import paths

with open(paths.SRC / "bootcamp" / "published" / "hardware.csv") as file:
    published = list(csv.DictReader(file))
rows = [("one core here", core_flops, core_bandwidth, True)]
for gpu in published:
    flops, bandwidth = float(gpu["peak_bf16_or_fp16_tflops"]), float(gpu["hbm_tb_s"])
    rows.append((gpu["gpu"], flops * 1e12, bandwidth * 1e12, False))
names = ("device", "flops_per_second", "bytes_per_second", "measured")
speeds = [dict(zip(names, row, strict=True)) for row in rows]
plots.show(basics.speeds(speeds, published[0]["source"]))

# %% [markdown]
# Read it with care: the published values are peaks in 16-bit numbers (bf16, fp16), which these GPUs
# multiply in special units. The core was measured in 32-bit numbers, which this course's scripts
# use unless told otherwise. No training reaches a peak. Still, the order of magnitude is real.
#
# ### Orders now, results later
#
# The CPU does not wait for a kernel: it orders the next one at once. This is called
# **asynchronous**, and it is why the GPU is kept busy although Python is slow. It is also why a
# clock on the CPU tells little. The next cell draws it.

# %%
plots.show(basics.queue())

# %% [markdown]
# What needs a result waits for it: `loss.item()`, `print(loss)`, `.cpu()`. To wait without fetching
# anything there is `torch.cuda.synchronize()`. The next cell times a matrix product twice, in a
# process of its own: when the call has returned, and when the result is there.

# %%
snippet = """
import time, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
a = torch.randn(2048, 2048, device=device)
(a @ a).sum().item()                # warm-up
began = time.perf_counter()
total = (a @ a).sum()
returned = time.perf_counter() - began
total.item()                        # waits for the device
print(f"{device}: returned after {1e3 * returned:.2f} ms,", end=" ")
print(f"result after {1e3 * (time.perf_counter() - began):.2f} ms")
"""
print(run_command(["python", "-c", snippet]))

# %% [markdown]
# On a GPU the first time is a small part of the second: it measures only the ordering. On a CPU the
# two agree, since there the call returns with the result. The records of this course are safe:
# `run.step` calls `loss.item()` before it reads the clock.

# %% [markdown]
# ## Predict
#
# The next run is that of lesson 01 with the GPU script. On a machine without a GPU the same script
# stays on a CPU core. How many times the samples per second of the baseline will it reach?

# %%
from bootcamp.predict import predict

where = "one GPU" if gpu_count() else "one CPU core"
guess = predict(
    f"The gpu script on {where}: how many times as fast as the baseline on one core?",
    unit="times",
    answer=None,
)
guess

# %% [markdown]
# ## What changes
#
# The next cell compares the two scripts. Lines with + are new, lines with − are gone.

# %%
from bootcamp import compare

compare.script_diff("gpu")

# %% [markdown]
# Two of these lines do the work: `.to(device)` on the model, `.to(device)` on each tensor of the
# batch. The others find out which device: `--device auto` (the default) takes a GPU if there is one
# for each rank, `cuda` and `cpu` insist. Which GPUs there are, the environment variable
# `CUDA_VISIBLE_DEVICES` can narrow down.
#
# The order matters too: the model moves *before* the optimizer is built, so that the optimizer gets
# the parameters that are trained.

# %% [markdown]
# ## Run it
#
# The next cell runs baseline and GPU script with the same flags. Look at the command lines: the
# second one names its device.

# %%
base = launch("cpu", steps=20, global_batch=32)
run = launch("gpu", steps=20, global_batch=32)

# %% [markdown]
# The next cell holds your prediction against the ratio of the two throughputs.

# %%
guess.score(run.samples_per_second / base.samples_per_second)

# %% [markdown]
# ## Read the measurement
#
# The next cell shows both runs. Look at the device in the first column.

# %%
from bootcamp import runs

runs.table(base, run)

# %% [markdown]
# **On a GPU** you may be disappointed: this model is so tiny that ordering its kernels takes longer
# than computing them. The GPU waits for Python. The next cell gives it more to do.
#
# **On a CPU core** both runs do the same work, so they should be about equally fast. The rest is
# what else the machine was doing meanwhile.

# %%
if gpu_count():
    big = launch("gpu", size="small", steps=10, global_batch=8)
    gpu_flops = peak.matmul_flops_per_second("cuda", "float32")
    plots.show(plots.achieved(big, peak_flops_per_second=gpu_flops))
else:
    print("No GPU here: GPT-2 small in this course's size, 1024 bytes a sample, is left out.")

# %% [markdown]
# The course also carries recorded runs of machines that you may not have. The next cell looks for
# one of this script on a GPU.

# %%
recorded = runs.reference("gpu", device="cuda")
if recorded:
    plots.show(plots.throughput(base, recorded))
else:
    print("There is no recorded GPU run of this script yet: no figure here, rather than a guess.")

# %% [markdown]
# What would change on a GPU: the samples per second, the memory (the record then counts what
# PyTorch held on the GPU), and the last digits of the losses, since a GPU adds in another order.
# What would not change: the samples, the steps, and the losses as far as rounding goes. That can be
# proved.

# %% [markdown]
# ## Prove it
#
# **The same training.** The next cell runs the GPU script and the baseline with both optimizers and
# compares samples, losses and parameters. (Lesson 01 showed why one optimizer is not enough.)

# %%
from bootcamp import check

for proof in check.prove("gpu", 1, steps=10, global_batch=32):
    assert not proof.failed, "the script trains something else than the baseline"
    print(proof, end="\n\n")

# %% [markdown]
# **Everything was moved.** Without a GPU the proof above shows nothing about moving: host and
# device are the same. But PyTorch has a device that every machine has: `meta`. Its tensors have a
# shape and a type, but no numbers. Nearly every operation refuses a `meta` tensor together with one
# on the CPU, as it refuses a GPU's together with one on the CPU. So a step on `meta` is a rehearsal
# of the move. The next cell runs one.

# %% tags=["nbval-check-output"]
rehearsal = launch("gpu", device="meta", steps=1, quiet=True)
assert rehearsal.status == "ok", "something was left on the CPU"
print("Rehearsal:", rehearsal.status)
print("The parameters were on:", rehearsal.ranks[0]["parameter_device"])

# %% [markdown]
# There is no loss, for there are no numbers. But the model is on the device, and the step went
# through: forward, loss, backward, optimizer. One gap is known: looking up an embedding on `meta`
# accepts indices on the CPU without an error. So here it is `targets` that gives a forgotten batch
# away, where on a GPU `inputs` does so first. To close the gap, the record notes the devices of all
# that the step kept for its backward. The next cell shows them; `meta` should stand there alone.

# %% tags=["nbval-check-output"]
rehearsal.ranks[0]["activation_devices"]

# %% [markdown]
# ## Break it
#
# **Half moved.** Someone moved the model and forgot the batch. The next cell makes that script,
# rehearses it, and prints the beginning of the error (the rest is PyTorch's inside). Read the first
# line, then look for the line of *the script*.

# %%
from bootcamp.launch import LaunchError
from bootcamp.variant import variant

moved = "inputs, targets = (tensor.to(device) for tensor in batches(step))"
broken = variant("gpu", "batch_left_behind", {moved: "inputs, targets = batches(step)"})
try:
    launch(broken, 1, device="meta", steps=1, quiet=True)
except LaunchError as error:
    print("\n".join(str(error).splitlines()[:10]))

# %% [markdown]
# Which tensor is where, and which line of the script has to change? Then open the answer.
#
# <details><summary>Answer</summary>
#
# The model's outputs are on the device, `targets` are still on the CPU, and the loss meets both.
# The trace names that line of the script, but the line to change stands above it: the one that
# takes the batch. On a GPU the embedding refuses already, since its table is on the GPU and
# `inputs` are on the CPU. The words differ a little there (`cuda:0` instead of `meta`), the reading
# is the same: the message names two devices, the trace the place where they met.
# </details>
#
# **Out of memory.** A GPU's memory is fixed, and a step that needs more ends with an error. The
# next cell orders far more than any machine has, so that it fails at once and harms nothing.

# %%
huge = variant("gpu", "too_large", {"loss.backward()": "torch.empty(2**50, device=device)"})
run_out = launch(
    huge, 1, device="cuda" if gpu_count() else "cpu", steps=1, raises=False, quiet=True
)
assert run_out.status == "oom", "the record does not say that memory ran out"
print(run_out.status, "|", run_out.summary["error"]["message"])

# %% [markdown]
# The record's status is `oom`. On a GPU the error is a `torch.OutOfMemoryError`, on the CPU it
# comes from the allocator. (On the CPU you may also see a rank that "was killed by signal 9": main
# memory is handed out more freely than there is, and when it really runs out, the operating system
# kills.)
#
# How much is too much? Lesson 01 had the formulas: 16 bytes a parameter with AdamW, and activations
# for each token. A model on the `meta` device has sizes without taking memory, so the next cell can
# count models that would not fit here. All of these numbers are predictions.

# %%
from bootcamp.models import gpt
from bootcamp.table import Table

rows, batch = [], 8
for name, (layers, width, heads, context) in ((n, s.values()) for n, s in gpt.SIZES.items()):
    with torch.device("meta"):
        whole = models.build(Namespace(**{**vars(flags), "size": name}))
    state = 16 * sum(parameter.numel() for parameter in whole.parameters())
    per_token = layers * (16 * width + heads + 4) + 2 * width + 2 + 256
    activations = 4 * batch * context * per_token
    rows.append({"size": name, "state GB": state / 1e9, "activations GB": activations / 1e9})
Table(rows, f"Predicted by formula: float32, AdamW, {batch} samples")

# %% [markdown]
# The next cell lists what some GPUs have.

# %%
Table(
    [{"GPU": gpu["gpu"], "memory": gpu["memory"]} for gpu in published],
    f"Published: {published[0]['source']}",
)

# %% [markdown]
# Which sizes fit on which GPU? What to do when one does not, the simplest first:
#
# 1. a smaller batch; several small batches before each optimizer step give the same global batch;
# 2. 16-bit numbers (`--dtype bfloat16`): half the bytes, but coarser rounding;
# 3. keep fewer activations and compute them again in the backward (activation checkpointing);
# 4. share the state among several GPUs.

# %% [markdown]
# ## Exercise
#
# Bring the baseline to whatever device `--device` names. The next cell writes the starting point.

# %%
from bootcamp import exercise

print(exercise.start("to_the_gpu"))

# %% [markdown]
# Edit the file, save it, and run the next cell. It rehearses your script on `meta`, then compares
# it with the baseline. `exercise.solution("to_the_gpu")` shows the solution as a diff.

# %%
print(exercise.check("to_the_gpu"))

# %% [markdown]
# ## When to use it and when not
#
# - **Use a GPU** when the model's matrix products are large enough to keep it busy. It is the first
#   thing to do when training is too slow: five lines, and one process as before.
# - **Do not expect much** when the model is tiny, when the data comes too slowly, or when the
#   script asks for a result after every operation: each `.item()` makes CPU and GPU wait for each
#   other.
# - **Stay on the CPU** to debug: its errors come from the line that made them. On a GPU an error
#   can show up later than the kernel that caused it.
#
# ## Sources
#
# - PyTorch documentation: *CUDA semantics* (asynchronous execution, memory management), *Meta
#   device*.
# - Stas Bekman, *Machine Learning Engineering*, github.com/stas00/ml-engineering: the published
#   peak values, collected from the makers' data sheets (`src/bootcamp/published/hardware.csv`).
# - Williams, Waterman and Patterson, *Roofline: An Insightful Visual Performance Model for
#   Multicore Architectures*, Communications of the ACM 52(4), 2009: operations and bytes as the two
#   limits.
