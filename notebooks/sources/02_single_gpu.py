# %% [markdown]
# # 02 Single GPU: move the model, move the batch
#
# **75 minutes**, on any machine. With a GPU you measure it; without one you rehearse the move, and
# the lesson says what it cannot show.
#
# After this lesson you can bring a training script to a GPU, prove that nothing was left behind,
# say why a GPU is faster and when it is not, time it without being fooled, and read an
# out-of-memory error. And you can use one device well: cut a batch into parts, compute in 16 bits,
# compute activations again instead of keeping them, tell which memory comes back and which does
# not, and say what limits an operation.

# %% [markdown]
# ## The question
#
# A GPU computes much faster than a CPU core. What has to change in the script to use it, and what
# happens if you change only half of it?
#
# The next cell gets ready and looks for GPUs.

# %%
from bootcamp import gpu_count, launch, run_command, warm_up

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
from bootcamp_lessons.diagrams import single_device

plots.show(single_device.host_and_device())

# %% [markdown]
# So two things have to be moved: **the model once, the batch in every step**. Gradients and
# optimizer state are created where the parameters are, activations where the inputs are. How much
# is it? The next cell counts the bytes.

# %%
from argparse import Namespace

from bootcamp.train import data, models

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
# is limited by the second. The next cell measures both for one core of this machine. It takes up to
# half a minute, once; the values are kept.

# %%
from bootcamp import roofline

core = roofline.measure("cpu", batch=2)
core_flops, core_bandwidth = core.peak_flops_per_second, core.bandwidth_bytes_per_second
core

# %% [markdown]
# Look at the first two numbers: operations and bytes in a second. (The third one comes back at the
# end of this lesson.)

# %% [markdown]
# The next cell puts published peak values of some GPUs beside it. Look at how far apart they are:
# the axes count in powers of ten.

# %%
from bootcamp import paths
from bootcamp.theory.published import table as published_table

published = published_table("hardware")
rows = [("one core here", core_flops, core_bandwidth, True)]
for gpu in published:
    flops, bandwidth = float(gpu["peak_bf16_or_fp16_tflops"]), float(gpu["hbm_tb_s"])
    rows.append((gpu["gpu"], flops * 1e12, bandwidth * 1e12, False))
names = ("device", "flops_per_second", "bytes_per_second", "measured")
speeds = [dict(zip(names, row, strict=True)) for row in rows]
plots.show(single_device.speeds(speeds, published[0]["source"]))

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
plots.show(single_device.queue())

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
# two agree, since there the call returns with the result. The records of this course are safe: on a
# GPU `with run.step(step):` puts a CUDA event at both ends of the step, and reads the time between
# them when the GPU has come so far. Nothing waits for it meanwhile.

# %% [markdown]
# ## Predict
#
# The next run is that of lesson 01 with the GPU script. On a machine without a GPU the same script
# stays on a CPU core. How many times the samples per second of the baseline will it reach?

# %%
from bootcamp import predict

where = "one GPU" if gpu_count() else "one CPU core"
guess = predict(
    "single_gpu_speed",
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
from bootcamp import script_diff

script_diff("gpu")

# %% [markdown]
# Two of these lines do the work: `.to(device)` on the model, `.to(device)` on each tensor of the
# batch. The others find out which device: `--device auto` (the default) takes a GPU if there is one
# for each rank, `cuda` and `cpu` insist. Which GPUs there are, the environment variable
# `CUDA_VISIBLE_DEVICES` can narrow down.
#
# The order matters too: the model moves *before* the optimizer is built. `Module.to` usually keeps
# its parameters and moves what is in them, so the other order often works. But tensor subclasses,
# and devices whose tensors are of another kind, get new parameters, which such an optimizer would
# never see; and state that an optimizer already has stays on the old device.

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
from bootcamp.experiments import matmul_peak

if gpu_count():
    big = launch("gpu", size="small", steps=10, global_batch=8)
    gpu_flops = matmul_peak.matmul_flops_per_second("cuda", "float32")
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

for proof in check.prove("gpu", 1):
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
from bootcamp import LaunchError, variant

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
import torch

from bootcamp import Table
from bootcamp.train.models import gpt

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
# 2. 16-bit numbers: up to half the bytes, but coarser rounding;
# 3. keep fewer activations and compute them again in the backward (activation checkpointing);
# 4. share the state among several GPUs.
#
# The next sections do the first three, each with its difference, run and proof. The fourth needs
# several devices, and so do the lessons that follow.

# %% [markdown]
# ## One device, well used: a batch in parts
#
# Activations grow with the batch. But `loss.backward()` *adds* to the gradients that are there. So
# a batch can go through in parts, **micro-batches**, with one backward for each and one optimizer
# step for all. This is **gradient accumulation**: only one part's activations are alive at a time.
#
# The next cell shows what it changes in the GPU script. Look at the factor after the loss.

# %%
script_diff("accumulate")

# %% [markdown]
# `models.loss` is the mean over a part, and what is wanted is the gradient of the mean over the
# batch. So each part counts with its share of the samples. `mean_loss` adds up the same shares, for
# the record. The next cell runs the whole batch at once, and in 2, 4 and 8 parts.

# %%
small = {"steps": 10, "global_batch": 24}
whole = launch("gpu", **small)
in_parts = {n: launch("accumulate", micro_batches=n, quiet=True, **small) for n in (2, 4, 8)}

# %% [markdown]
# The next cell compares them. Look at the bytes of the activations, and at what does not shrink.

# %%
rows = []
for parts, run in {1: whole, **in_parts}.items():
    rank = run.ranks[0]
    row = {"parts": parts, "activations MB": rank["activation_bytes"] / 1e6}
    row |= {"gradients MB": rank["gradient_bytes"] / 1e6, "samples/s": run.samples_per_second}
    rows.append(row)
    by_formula = rows[0]["activations MB"] / parts
    assert abs(row["activations MB"] / by_formula - 1) < 0.05, "a part kept more than its share"
Table(rows, "The same batch in parts, measured here")

# %% [markdown]
# *n* parts need an *n*-th of the activations. Parameters, gradients and optimizer state do not
# depend on the batch. The arithmetic is the same too, but in smaller pieces, with more orders from
# Python: a GPU that gets small pieces is idle in between. So take parts as large as memory allows.
#
# The next cell proves that the parts train the same model, with both optimizers.

# %%
for proof in check.prove("accumulate", 1, **small):
    assert not proof.failed, "the parts train something else than the batch"
print(proof)

# %% [markdown]
# **Break it.** Someone found the factor too long, and divides by the number of parts instead. With
# 2, 3 or 4 parts this passes the proof. The next cell takes 5.

# %%
line = "loss = models.loss(model(part_inputs), part_targets) * len(part_inputs) / len(inputs)"
shorter = line.replace("* len(part_inputs) / len(inputs)", "/ args.micro_batches")
mean_of_means = variant("accumulate", "mean_of_means", {line: shorter})
uneven = launch(mean_of_means, 1, micro_batches=5, quiet=True, **small)
proof = check.compare(uneven, whole)
assert proof.failed, "the wrong mean went unnoticed"
proof

# %% [markdown]
# The loss is only a little off, and would fall. What is wrong?
#
# <details><summary>Answer</summary>
#
# 24 samples in 5 parts are 5, 5, 5, 5 and 4. The mean of the parts' means is the mean of the batch
# only if all parts are equally large. In the last part each sample counted more than elsewhere.
#
# This is no made-up fault. In language models the parts differ in the number of tokens that count,
# and widely used training code took the mean of means until 2024 (see Sources). It has a twin among
# ranks: averaging the ranks' mean losses is right only if all have equally many samples.
# </details>

# %% [markdown]
# ## One device, well used: sixteen bits
#
# A floating-point number is a sign, an exponent and a fraction. The exponent decides how large and
# how small numbers can get, the fraction how many digits they have. The next cell asks PyTorch how
# many bits each format spends on them, and draws it.

# %%
import math

formats = {}
for name in ("float32", "float16", "bfloat16"):
    limits = torch.finfo(getattr(torch, name))
    fraction = round(-math.log2(limits.eps))
    formats[name] = (limits.bits - 1 - fraction, fraction)
plots.show(single_device.number_formats(formats))

# %% [markdown]
# Two 16-bit formats, two compromises. The next cell shows what follows: the largest number, the
# smallest with all its digits, and the distance from 1 to the next number.

# %% tags=["nbval-check-output"]
for name in formats:
    limits = torch.finfo(getattr(torch, name))
    print(f"{name:>8}: largest {limits.max:.1e}, smallest {limits.tiny:.1e}, step {limits.eps:.1e}")
one = torch.tensor(1.0, dtype=torch.bfloat16)
print("bfloat16: 1 + 0.001 =", (one + 0.001).item())

# %% [markdown]
# **fp16** (float16) has digits but little range: 70,000 is infinite in it. **bf16** (bfloat16) has
# float32's range but fewer than three decimal digits. The last line shows what that does to
# training: a parameter of 1 that should change by 0.001 does not change at all. Many small changes
# are all lost.
#
# So the usual way is **mixed precision**: the parameters, their gradients and the optimizer's state
# stay in float32, and only the matrix products are computed in 16 bits. That is where the time goes
# on a GPU. Its units for matrix products, the tensor cores, are faster the smaller the numbers: 16
# bits since Volta, TF32 since Ampere, 8-bit floats since Hopper, 4-bit floats since Blackwell.
# (TF32 is float32 in memory, rounded to 10 bits of mantissa on its way into a product;
# `torch.set_float32_matmul_precision("high")` allows it.)
#
# You will meet the names that NVIDIA's **Apex** gave to the choices, before PyTorch had its own:
#
# | Apex | matrix products | parameters | loss scale | today |
# |---|---|---|---|---|
# | O0 | float32 | float32 | none | `_train_gpu.py` |
# | O1 | fp16 | float32 | dynamic | `torch.autocast`, `GradScaler`: `_train_amp.py` |
# | O2 | fp16 | fp16 and float32 copies | dynamic | FSDP's `MixedPrecisionPolicy` |
# | O3 | fp16 | fp16 | none | `model.half()`; in bf16: `_train_gpu.py --dtype bfloat16` |
#
# O1 replaced PyTorch's functions by ones that cast their inputs; sums, softmax and losses stayed in
# float32. O2 cast the model itself, but for BatchNorm, and gave the optimizer float32 copies of the
# parameters to change. On one device there is no switch for this today; FSDP, which shards a model
# over ranks, does it: it keeps float32 parameters and computes with 16-bit copies. What a loss
# scale is comes below.
#
# The next cell shows O1 as it is written today.

# %%
script_diff("amp")

# %% [markdown]
# - Within `torch.autocast` each operation gets its format: matrix products 16 bits, the loss
#   float32. On a GPU softmax and norms are float32 too; on a CPU they keep the format of their
#   input. The parameters are cast where they are used.
# - The backward stays outside. It uses the formats of the forward by itself, and the gradients
#   arrive in the parameters' format.
# - The **scaler** is for fp16. With bf16 it is switched off and passes everything on unchanged.

# %% [markdown]
# Most activations are inputs or results of matrix products. How much do they shrink? The next cell
# takes your prediction: write a number after `answer=`.

# %%
guess_autocast = predict(
    "single_gpu_autocast",
    "Activation bytes with bf16 autocast: how many times those in float32?",
    unit="times",
    answer=None,
)
guess_autocast

# %% [markdown]
# The next cell runs float32, both kinds of mixed precision, and everything in bf16. (fp16 can take
# a while on a CPU.)

# %%
few = {"steps": 10, "global_batch": 8}
runs_of = {
    "float32 (O0)": launch("gpu", **few),
    "mixed, bf16 (O1)": launch("amp", autocast="bfloat16", **few),
    "mixed, fp16 (O1)": launch("amp", autocast="float16", **few),
    "all bf16 (O3)": launch("gpu", dtype="bfloat16", **few),
}

# %% [markdown]
# The next cell puts them side by side. Look at the losses first: how far is each from float32's, in
# its worst step?


# %%
def furthest(run, other):
    return max(abs(a - b) for a, b in zip(run.losses, other.losses, strict=True))


plain, rows = runs_of["float32 (O0)"], []
for name, run in runs_of.items():
    row = {"precision": name, "loss off by": furthest(run, plain)}
    for kind in ("activation", "parameter"):
        row[f"{kind}s MB"] = run.ranks[0][f"{kind}_bytes"] / 1e6
    rows.append({**row, "samples/s": run.samples_per_second})
Table(rows, "Measured here, 10 steps")

# %% [markdown]
# Mixed precision is close to float32, fp16 the closer one, for it has more digits. With everything
# in bf16 the difference is much larger. Even the loss is a bf16 number then: between 4 and 8 the
# numbers are four times as far apart as the step after 1 above.
#
# The parameters of mixed precision are as large as before. It saves time and activations, no state.
# The next cell scores your prediction.

# %%
mixed = runs_of["mixed, bf16 (O1)"].ranks[0]
guess_autocast.score(mixed["activation_bytes"] / plain.ranks[0]["activation_bytes"])

# %% [markdown]
# More than a half. The sum that runs through the blocks stays in float32, and so do the
# probabilities in the loss. And the norm's result, which query, key and value read, is cast three
# times: each product keeps a copy of its own.
#
# **Speed** is the reason for all this on a GPU, and only with a model that keeps it busy. A CPU may
# have instructions for bf16 (AVX512-BF16, AMX) or not. Where the instructions are missing, each
# number is cast there and back, and 16 bits are slower than 32, with fp16 often many times. Look at
# the samples per second above: which is it here?
#
# ### A bound, and the proof that it holds
#
# Mixed precision rounds, so it is not the same training to 1e-5. But how far off may it be? We
# state a bound for the loss of each of these 10 steps, 0.005: about a thousandth of the first loss.
# The next cell holds both formats against it, with two other seeds.

# %%
BOUND = 5e-3
for seed in (1, 2):
    exact = launch("gpu", quiet=True, seed=seed, **few)
    for form in ("bfloat16", "float16"):
        off = furthest(launch("amp", autocast=form, quiet=True, seed=seed, **few), exact)
        assert off < BOUND, f"{form} is {off} off"
        print(f"seed {seed}, {form}: off by {off:.5f}, the bound is {BOUND}")

# %% [markdown]
# A long training drifts further apart, as two runs with different seeds do. So for a real model the
# question is another one: is the loss as good at the end?
#
# ### What the scaler is for
#
# fp16 ends where gradients begin. The next cell trains the tiny model for 60 steps here in the
# kernel, in float32, so that it has learned something.

# %%
from bootcamp.train import optimizers

torch.set_num_threads(1)
own = Namespace(**{**vars(flags), "global_batch": 16, "optimizer": "adamw", "lr": 1e-3})
model, batches = models.build(own), data.Batches(own, rank=0, world=1)
optimizer = optimizers.build(own, model.parameters())
for step in range(60):
    inputs, targets = batches(step)
    optimizer.zero_grad()
    models.loss(model(inputs), targets).backward()
    optimizer.step()

# %% [markdown]
# The next cell computes two gradients of a batch of 128 samples: that of the scores, where the
# backward begins, and that of the parameters.

# %%
inputs, targets = data.Batches(Namespace(**{**vars(own), "global_batch": 128}), 0, 1)(0)
optimizer.zero_grad()
scores = model(inputs)
scores.retain_grad()  # PyTorch keeps no gradient of what is not a parameter, unless told so
models.loss(scores, targets).backward()
of_parameters = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
gradients = {"gradient of the scores": scores.grad, "gradient of the parameters": of_parameters}

# %% [markdown]
# What would fp16 make of them? Below its smallest number with all digits come numbers with fewer
# and fewer digits, then zero. The next cell casts a gradient, times a scale, and counts.


# %%
def in_fp16(gradient, scale):
    half = (gradient[gradient != 0] * scale).half().abs()
    zero, infinite = half == 0, half.isinf()
    few_digits = (half < torch.finfo(torch.float16).tiny) & ~zero
    fates = {"zero": zero, "few digits": few_digits, "infinite": infinite}
    fates["all digits"] = ~(zero | few_digits | infinite)
    return {fate: elements.float().mean().item() for fate, elements in fates.items()}


shares = in_fp16(scores.grad, 1)
assert shares["zero"] > 0.05, "fp16 holds this gradient without a scale"
print(f"Without a scale {shares['zero']:.0%} of the scores' gradient become zero in fp16.")

# %% [markdown]
# The loss is a mean over all bytes of the batch, so each score has a tiny share in it, and a tinier
# one where the model is already right. What is zero at the start of the backward is lost to every
# parameter. And of the rest only the first digits are left. The cure: multiply the loss by a
# number, the **loss scale**. Then every gradient is that many times as large, and is divided again,
# in float32, before the optimizer uses it. The next cell tries scales that are powers of two, which
# cost no digits. Read the rows from top to bottom: what goes away, and what comes?

# %%
exponents = list(range(0, 32, 4))
fates = {name: [in_fp16(g, 2.0**n) for n in exponents] for name, g in gradients.items()}
assert fates["gradient of the scores"][4]["zero"] == 0, "a scale of 2**16 is too small"
origin = "GPT tiny after 60 steps, a batch of 128 samples; cast to fp16 and counted here."
plots.show(single_device.fp16_fates(fates, exponents, origin))

# %% [markdown]
# Too small a scale, and the scores' gradient is lost. Too large a one, and the parameters' becomes
# infinite. One scale has to serve all gradients of a backward, and they change while the model
# learns. So `GradScaler` searches for it all the time:
#
# - It begins with 2**16.
# - Before each optimizer step it looks for gradients that are infinite or no number. If it finds
#   any, it **skips the step** and halves the scale.
# - After 2,000 good steps it doubles the scale.
#
# The next cell lets it begin far too high, and double after 4 good steps, so that both can be seen.

# %%
normal = 'scaler = torch.amp.GradScaler(device.type, enabled=args.autocast == "float16")'
high = "scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24, growth_interval=4)"
changes = {normal: high, "scaler.update()": "scaler.update()\nprint(scaler.get_scale())"}
search = variant("amp", "amp_high_scale", changes)
scaled = launch(search, 1, autocast="float16", steps=16, global_batch=4, quiet=True)
scales = [float(line) for line in scaled.output(0).splitlines() if line[:1].isdigit()]

# %% [markdown]
# The next cell lists scale and loss. Look at the loss while the scale is halved.

# %%
rows = []
for step, (before, after) in enumerate(zip([2.0**24, *scales], scales, strict=False)):
    did = "skipped" if after < before else "made; scale doubled" if after > before else "made"
    rows.append({"step": step, "scale": before, "loss": scaled.losses[step], "update": did})
assert rows[0]["update"] == "skipped", "a scale of 2**24 did not overflow"
Table(rows, "fp16 with a loss scale that begins too high, measured here")

# %% [markdown]
# While updates are skipped the model learns nothing; the loss differs from step to step only
# because the samples do. A few skipped steps at the start are normal. If they go on for ever, the
# gradients are infinite for another reason.
#
# bf16 has float32's range, so it needs no scale: the simpler choice where the device has it. With
# the scaler one thing must not be forgotten: whoever looks at gradients before the optimizer does,
# to clip them for example, calls `scaler.unscale_(optimizer)` first, or clips scaled gradients.

# %% [markdown]
# ## One device, well used: compute again instead of keeping
#
# A block keeps its activations from its forward until its backward. **Activation checkpointing**
# keeps only the block's input. In the backward the block's forward runs once more, and its
# activations live only until its own backward is done. The next cell draws what is held over one
# step of the tiny model. Its sizes are computed by the formula of lesson 01: for each token a block
# keeps 16 vectors of `width` numbers and a few single ones.

# %%
layers, width, heads, context = gpt.SIZES["tiny"].values()
tokens = small["global_batch"] * context
BLOCK = 16 * width + heads + 4  # numbers that a block keeps for each token
INPUT = width
plots.show(single_device.held_over_a_step(layers, 4 * tokens * BLOCK, 4 * tokens * INPUT))

# %% [markdown]
# Two things to see: how high the curves get, and when they end. The forward of all blocks is done
# twice, so a step costs 4 units of time instead of 3 for each block.
#
# There is a middle way, **selective** checkpointing: keep what is expensive to compute, the results
# of the matrix products, and compute only the cheap rest again. The next cell shows the script.
# `--keep inputs` is the first way, `--keep products` the second.

# %%
script_diff("activation_checkpointing")

# %% [markdown]
# The next cell takes your prediction of what is kept. Outside of the blocks nothing changes: the
# embedding's sum, the head's norm and the loss keep their numbers.

# %%
kept_plain = whole.ranks[0]["activation_bytes"] / 1e6
guess_kept = predict(
    "single_gpu_kept",
    f"All kept, the activations are {kept_plain:.1f} MB. With the inputs of the blocks only?",
    unit="MB",
    answer=None,
)
guess_kept

# %% [markdown]
# The next cell runs all three ways, one right after the other, since their times will be compared.

# %%
longer = {**small, "steps": 20}
all_kept = launch("gpu", **longer)
inputs_kept = launch("activation_checkpointing", keep="inputs", **longer)
products_kept = launch("activation_checkpointing", keep="products", **longer)
guess_kept.score(inputs_kept.ranks[0]["activation_bytes"] / 1e6)

# %% [markdown]
# Now the formula, for each token. A block's products are query, key, value and the attention's
# output (4 vectors), and the two of the MLP (4 + 1). The next cell writes the formula down for all
# three ways.

# %%
OUTSIDE = 2 * width + 2 + 256  # embedding's sum, head's norm, and the loss's 256 probabilities
numbers = {
    "all": layers * BLOCK + OUTSIDE,
    "inputs": layers * INPUT + OUTSIDE,
    "products": layers * (INPUT + (4 + 4 + 1) * width) + OUTSIDE,
}

# %% [markdown]
# The next cell holds it against the records, which count at the moment when the backward begins.

# %%
three = {"all": all_kept, "inputs": inputs_kept, "products": products_kept}
rows = []
for kept, run in three.items():
    counted, said = run.ranks[0]["activation_bytes"], 4 * tokens * numbers[kept]
    rows.append({"kept": kept, "by formula MB": said / 1e6, "counted MB": counted / 1e6})
    assert abs(counted / said - 1) < 0.05, f"the formula is off for {kept}"
Table(rows, "Activations when the backward begins")

# %% [markdown]
# The formula holds within a percent; what it leaves out is the batch itself. In the backward one
# block's activations come on top, as the picture shows. So the peak is that of all inputs and of
# *one* block: with more blocks the gain grows. (Checkpointing every block is not the only choice.
# The paper by Chen et al. takes groups of √*n* blocks, so that inputs and rest are balanced.)
#
# ### What it costs
#
# The next cell compares the time of the fastest step with the prediction: 4/3, if whole blocks are
# computed again. (The fastest, since what else the machine does makes steps only slower.)

# %%
fastest = {kept: min(row["seconds"] for row in run.steps) for kept, run in three.items()}
rows = [
    {"kept": kept, "ms": 1e3 * seconds, "times as long": seconds / fastest["all"]}
    for kept, seconds in fastest.items()
]
Table(rows, f"Measured here; predicted with the inputs kept: {4 / 3:.2f} times as long")

# %% [markdown]
# The prediction counts operations, and forgets the optimizer, which costs what it did, and the
# bookkeeping of checkpointing, which costs Python time. With a model as tiny as this one the
# bookkeeping counts, above all that of the selective way, which looks at every operation. With a
# large model it does not. (On a machine that is busy with other things even the fastest step is
# worth little: run the cells again.)
#
# ### Prove it
#
# The same operations on the same numbers give the same results. So here we do not ask for "equal up
# to rounding" but for a difference of exactly zero, in every loss.

# %%
for run in (inputs_kept, products_kept):
    assert furthest(run, all_kept) == 0.0, "checkpointing changed a loss"
for proof in check.prove("activation_checkpointing", 1, **small):
    assert not proof.failed, "checkpointing trains something else"
print("The losses differ by", furthest(inputs_kept, all_kept), "and the proof holds.")

# %% [markdown]
# For this the second forward must do what the first did. Dropout draws random numbers, so PyTorch
# stores the generator's state and puts it back. What it cannot undo is a forward that changes
# something: a BatchNorm in a checkpointed block updates its running means twice in each step.

# %% [markdown]
# ## One device, well used: which memory comes back
#
# You delete a model, and the memory is still full. Which part of it can a clean-up within the
# process give back? Three tools are meant: `del` takes a name away; a tensor's memory goes when
# nothing refers to it any more. `gc.collect()` finds objects that refer only to each other.
# `torch.cuda.empty_cache()` gives the GPU back what PyTorch had **reserved** in advance and does
# not use. (PyTorch asks the GPU for large pieces and **allocates** tensors within them.)
#
# The next cell runs a small program in a process of its own, which makes tensors and cleans up.
# "Resident" is the main memory that the process holds. Go through it row by row, and ask of each
# whether you expected it.

# %%
import json

lines = run_command(["python", str(paths.SRC / "snippets" / "clean_up.py")]).splitlines()
moments = [json.loads(line) for line in lines if line.startswith("{")]
held = [row.get("GPU: allocated MB", row["resident MB"]) for row in moments]
assert held[4] - held[0] > 300, "the kept exception did not hold its tensor"
Table(moments, "One process from its start to its end, measured here")

# %% [markdown]
# - **A tensor, and `del`.** It goes at once. Neither `gc.collect()` nor `empty_cache()` is needed
#   for that. On a GPU its memory remains reserved until `empty_cache()`. But PyTorch takes the next
#   tensor from there, and empties its cache itself before it reports that memory is out. So calling
#   it helps another process, not this one.
# - **An exception.** It refers to its traceback, the traceback to the frames of the functions that
#   failed, and these to their local variables. So while somebody keeps the exception, all tensors
#   of the failed step live on. In a notebook somebody does: IPython keeps the last one, as
#   `sys.last_value`. That is why, after an out-of-memory error, the next try may fail too, even
#   with a smaller batch. (IPython also keeps what a cell has shown, in `Out`.)
# - **A cycle.** A trainer that stores its own method as a callback refers to itself. `del` takes
#   the name, not the object. Python's collector finds it, some time or when you call it.
# - **Many small tensors.** On the CPU most of the memory may stay although all of them are gone:
#   the C library's allocator gives back what lies free at the end of its heap, and something may
#   lie there. On a GPU a reserved piece goes back only when no tensor is left in it, so deleting
#   every other one gives nothing back.
# - **The first row** never comes back either: the libraries themselves, and on a GPU the CUDA
#   context.
#
# Only the end of the process gives back everything, whatever went wrong in it. That is why this
# course runs each training in a process of its own: a cell that fails leaves nothing behind, and
# the next cell finds the memory empty. In a notebook that holds its model itself, restart the
# kernel.

# %% [markdown]
# ## One device, well used: what limits an operation
#
# At the start of this lesson two numbers described a device: operations per second, and bytes per
# second. Which of the two limits an operation? That depends on how many operations it does for each
# byte that it moves, its **arithmetic intensity**. If it is low, the operation waits for memory. It
# can reach intensity times bandwidth, and no more than the peak: this is the **roofline**. The
# intensity at which both limits are equal is its **ridge**.
#
# AdamW does 14 operations for each parameter, and moves 28 bytes: it reads the parameter, its
# gradient and its own two numbers, and writes three of these, with 4 bytes each. The next cell asks
# what that comes to. (On a GPU it first measures its roof.)

# %%
if gpu_count():
    device_roof = roofline.measure("cuda")
else:
    device_roof = core
guess_adamw = predict(
    "single_gpu_adamw",
    f"{device_roof}. What share of the peak does AdamW reach at best?",
    unit="%",
    answer=None,
)
guess_adamw

# %% [markdown]
# The next cell draws the roofline with the operations of a GPT of size small on it. (The lines of
# the roof are measured too.) Look at which operations lie on the left, under the slope, and which
# on the right.

# %%
plots.show(plots.roofline(device_roof))
reached = {row["name"]: row["achieved_flops_per_second"] for row in device_roof.operations}
guess_adamw.score(100 * reached["AdamW, fused"] / device_roof.peak_flops_per_second)

# %% [markdown]
# What to do follows from the side on which an operation lies:
#
# - **Left, limited by memory:** norms, additions, GELU, the optimizer. More operations per second
#   would not help. Fewer bytes do: 16-bit numbers; several operations in one, so that results in
#   between never reach memory (**fused**: compare the two AdamWs, which compute the same; and
#   `torch.compile` fuses what it can).
# - **Right, limited by arithmetic:** the matrix products. Here the 16-bit units of a GPU help. It
#   takes large matrices to get here: with few tokens a product reads its weights for little
#   arithmetic, and moves to the left.
# - **Far below the roof:** neither is the limit. The operation is too small to keep the device
#   busy, or it moves more than it would have to.
#
# The operations on the left do little of a training's arithmetic and often take much of its time.
# That is one reason why a training reaches only a part of the peak.

# %% [markdown]
# ## Exercise
#
# ### First: to the device
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
# ### Second: the sum that must be a mean
#
# Accumulate gradients. The next cell writes a script whose inner loop lacks two lines.

# %%
print(exercise.start("accumulate"))

# %% [markdown]
# Edit the file, save it, and run the next cell. The checker trains with both optimizers. (Before
# you look: if only the gradients came out too large, by a factor, which of the two would hardly
# notice? Lesson 01 told.) `exercise.solution("accumulate")` shows the solution as a diff.

# %%
print(exercise.check("accumulate"))

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
# - **Accumulate** when the batch that you want does not fit. It costs no arithmetic; do not make
#   the parts smaller than you must.
# - **Mixed precision**, with bf16 where the device has it, is the rule on GPUs. Leave it for the
#   first run of a new model, for a proof of equality, and on a CPU without 16-bit instructions.
# - **Checkpoint** activations when the batch does not fit even in small parts, or for long
#   sequences. It costs up to a third more arithmetic, so do not do it with memory to spare.
#
# ## Sources
#
# - PyTorch documentation: *CUDA semantics* (asynchronous execution, memory management), *Meta
#   device*, *Automatic Mixed Precision package*, *torch.utils.checkpoint*.
# - NVIDIA, architecture white papers of V100, A100, H100 and Blackwell: which numbers their tensor
#   cores multiply.
# - NVIDIA, *Apex* documentation, `apex.amp`: the levels O0 to O3 (nvidia.github.io/apex/amp.html).
# - Micikevicius et al., *Mixed Precision Training*, 2017, arXiv:1710.03740: float32 parameters and
#   the loss scale. Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training*, 2019,
#   arXiv:1905.12322.
# - Chen et al., *Training Deep Nets with Sublinear Memory Cost*, 2016, arXiv:1604.06174: activation
#   checkpointing. Korthikanti et al., *Reducing Activation Recomputation in Large Transformer
#   Models*, 2022, arXiv:2205.05198: choosing what to compute again.
# - Hugging Face, *Fixing Gradient Accumulation*, 2024 (huggingface.co/blog/gradient_accumulation).
# - Stas Bekman, *Machine Learning Engineering*, github.com/stas00/ml-engineering: the published
#   peak values, collected from the makers' data sheets
#   (`src/bootcamp/theory/published/hardware.csv`).
# - Williams, Waterman and Patterson, *Roofline: An Insightful Visual Performance Model for
#   Multicore Architectures*, Communications of the ACM 52(4), 2009: operations and bytes as the two
#   limits.
