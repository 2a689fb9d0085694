# %% [markdown]
# # 02b Memory and precision: one device, well used
#
# **41 minutes**, on any machine; bytes are the same on a CPU and on a GPU.
#
# After this lesson you can say what fills a device's memory, train a batch that does not fit, in
# parts or by computing activations again, compute in 16 bits and say how far off that may be, and
# read an out-of-memory error.
#
# ## The question
#
# A step needs more memory than the device has. What can you do before you need a second device, and
# what does each way cost?
#
# ## The idea
#
# Lesson 01 had the formulas: 16 bytes a parameter with AdamW in float32, and activations for each
# token. For the GPT in five sizes:

# %%
from bootcamp_lessons import one_device

one_device.training_memory()

# %% [markdown]
# The table leaves a tenth of the memory free, for what libraries and the allocator need. These
# models have 256 outputs: with GPT-2's 50,257 tokens, the scores of 16 samples and their gradients
# take 2 × 16 × 1,024 × 50,257 × 4 bytes more, 6.6 GB; losses that are computed in chunks never have
# them all.
#
# If it does not fit, three ways are usual on one device:
#
# 1. **Gradient accumulation**: the batch goes through in parts, **micro-batches**, with one
#    backward pass for each and one optimizer step for all. Only one part's activations are alive at
#    a time.
# 2. **Mixed precision** (`torch.autocast`): matrix products in 16 bits, as **bf16** (bfloat16), so
#    their inputs take half the bytes.
# 3. **Activation checkpointing**: each block keeps only its input. In the backward pass its
#    forward pass runs once more, and the activations live until its own backward pass is done.
#
# None of the three shrinks parameters, gradients or optimizer state. These do, at a price (lesson
# 07 splits the state over several devices instead):
#
# | On one device | shrinks | and pays with |
# |---|---|---|
# | the optimizer's step in the backward pass | gradients | no accumulation, no clipping by norm |
# | 8-bit moments; factored (Adafactor); one (Muon) | optimizer state | a different training |
# | 16-bit parameters, stochastic rounding | parameters, state | noise |
# | offloading to main memory | state or activations | time on the bus |
# | LoRA: small matrices beside frozen ones | gradients, optimizer state | fewer parameters learn |
#
# The first is measured below. The figure shows checkpointing: how high do the curves get, and when
# do they end?

# %%
from bootcamp import plots, warm_up
from bootcamp.costs.model_shapes import GPT
from bootcamp_lessons.diagrams import single_device

warm_up()
SAMPLES, LAYERS = 12, GPT["tiny"]["layers"]
tokens, width = SAMPLES * GPT["tiny"]["context"], GPT["tiny"]["width"]
plots.show(
    single_device.activations_in_step(LAYERS, 4 * tokens * (16 * width + 8), 4 * tokens * width)
)

# %% [markdown]
# ## Predict
#
# In float32, a block of the tiny GPT keeps 16 vectors of `width` numbers for each token. The runs
# below have 6 blocks of width 64, 12 samples of 64 tokens, and outside the blocks 386 numbers for
# each token.

# %%
from IPython.display import display

from bootcamp import predict

guess_sum = predict(
    "memory_bfloat16_sum",
    "bfloat16 keeps 8 binary digits of a number. Start at 1 and add 0.001 a thousand times, one "
    "after the other. The result?",
)
guess_autocast = predict(
    "memory_autocast",
    "Activation bytes with bf16 autocast: how many times those in float32?",
    unit="times",
)
guess_off = predict(
    "memory_autocast_off",
    "4 steps with bf16 autocast, losses of about 5: by how much is the furthest one off?",
)
guess_kept = predict(
    "memory_inputs_kept",
    "Activations in float32 at the end of the forward pass, if each block keeps its input only: "
    "how many MB?",
    unit="MB",
)
display(guess_sum, guess_autocast, guess_off, guess_kept)

# %% [markdown]
# ## What changes
#
# ### A batch in parts
#
# `loss.backward()` *adds* to the gradients that are there, so parts add up by themselves. We want
# the gradient of the mean over the batch, while `models.loss` is the mean over a part. So each part
# is weighted by its share of the samples: look at the factor after the loss.

# %%
from bootcamp import script_diff

script_diff("accumulate")

# %% [markdown]
# ### Sixteen bits
#
# A floating-point number is a sign, an exponent and a fraction. The exponent gives the range, the
# fraction the digits. **TF32** is float32 in memory; a matrix product rounds it to 10 bits of
# fraction on its way in.

# %%
import torch

from bootcamp import Table

formats = {"float32": (8, 23), "TF32": (8, 10), "float16": (5, 10), "bfloat16": (8, 7)}
rows = []
for name, (exponent, fraction) in formats.items():
    row = {"format": name, "sign": 1, "exponent": exponent, "fraction": fraction}
    reaches = {"up to": f"{2.0**2 ** (exponent - 1):.0e}", "after 1": f"1 + {2.0**-fraction:.0e}"}
    rows.append(row | reaches)
display(Table(rows, "Bits of each part, how far the numbers reach, and the next one after 1"))
total = torch.tensor(1.0, dtype=torch.bfloat16)
for _ in range(1000):
    total += 0.001
guess_sum.score(total.item())

# %% [markdown]
# After 1 the next bfloat16 number is 1.0078, so each addition of 0.001 is rounded away. A parameter
# in bf16 loses small updates in the same way. **fp16** (float16) has more digits and little range:
# 70,000 is infinite in it. bf16 has float32's range.
#
# So in mixed precision parameters, gradients and optimizer state stay in float32, and the matrix
# products are computed in 16 bits. A GPU's units for them, the **tensor cores**, reach more FLOP/s
# with fewer bits: fp16 since Volta; bf16, TF32 and float64 since Ampere; 8-bit floats since Ada and
# Hopper; 4-bit floats since Blackwell. TF32 is one line, without any autocast:
# `torch.set_float32_matmul_precision("high")`. (For convolutions PyTorch allows it by default, for
# matrix products it does not.)

# %%
script_diff("amp")

# %% [markdown]
# - Within `torch.autocast` each operation runs in the format chosen for it, and parameters are
#   cast where they are used. Matrix products get 16 bits, the loss float32. On CUDA softmax and
#   norms run in float32 too; on a CPU they keep the format of their input.
# - The backward pass stays outside: it uses the formats of the forward pass by itself.
# - The **scaler** is for fp16. With bf16 it is off and passes everything on.
#
# ### Compute again
#
# `--keep inputs` keeps a block's input only. `--keep products` is **selective** checkpointing: it
# also keeps the results of the matrix products, and computes only the cheap rest again.

# %%
script_diff("activation_checkpointing")

# %% [markdown]
# ### A step as soon as there is a gradient
#
# Each parameter is updated when its gradient is complete, and the gradient is freed. Most are then
# gone before the next one comes.

# %%
from bootcamp import variant

build = "optimizer = optimizers.build(args, model.parameters())"
hooks = """
def step_now(parameter):
    optimizer.step()  # skips parameters without a gradient
    parameter.grad = None
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_now)"""
in_backward = variant("gpu", "step_in_backward", {build: build + hooks})

# %% [markdown]
# ## Run it

# %%
from bootcamp import check, launch

same = check.settings(ranks=1) | {"quiet": True}
plain = launch("gpu", **same)
found = {
    "float32": plain,
    "4 parts": launch("accumulate", micro_batches=4, **same),
    "mixed, bf16": launch("amp", autocast="bfloat16", **same),
    "mixed, fp16": launch("amp", autocast="float16", **same),
    "everything in bf16": launch("gpu", dtype="bfloat16", **same),
    "inputs kept": launch("activation_checkpointing", keep="inputs", **same),
    "products kept": launch("activation_checkpointing", keep="products", **same),
    "step in backward": launch(in_backward, 1, **same),
}
Table([one_device.memory_row(name, run, plain) for name, run in found.items()])

# %% [markdown]
# ## Read the measurement
#
# ### Bytes

# %%
from bootcamp import claim

kept = {name: run.ranks[0]["activation_bytes"] for name, run in found.items()}
print(guess_autocast.score(kept["mixed, bf16"] / kept["float32"]))
print(guess_kept.score(kept["inputs kept"] / 1e6))
print(
    claim.equal(
        "memory_parts_bytes",
        "A batch in four parts keeps a quarter of the activations.",
        kept["4 parts"],
        kept["float32"] / 4,
        within=0.05,
    )
)
claim.equal(
    "memory_inputs_bytes",
    "With the inputs kept, a block keeps 1 vector for each token in place of 16.",
    kept["inputs kept"],
    one_device.kept_bytes("inputs", SAMPLES),
    within=0.05,
)

# %% [markdown]
# Autocast keeps more than half of the bytes: the sum that runs through the blocks (the residual
# stream) stays in float32, and so do the probabilities in the loss. And the norm's result is cast
# three times, for query, key and value, which are three layers here, and each product keeps its
# copy. The parameters are as large as before.
#
# Everything in bf16 halves parameters and state, too. But even the loss is a bf16 number then:
# between 4 and 8 these are 1/32 apart.
#
# With the inputs kept, one block's activations come on top in the backward pass. So the peak is
# that of all inputs and of *one* block: with more blocks the gain grows.
#
# ### Time
#
# Count a block's forward pass as one unit of arithmetic and its backward pass as two. Computing the
# forward pass again makes four units instead of three: by this count a step takes up to 4/3 times
# as long. The optimizer's part of the step does not grow. Bookkeeping in Python is extra; `--keep
# products` recomputes less, but has to look at every operation.
#
# Parts may fit into a cache, and small pieces leave a device idle: measure (lesson 02).

# %%
from bootcamp import trial

recomputed = claim.faster(
    "memory_recompute_time",
    "Computing the blocks' activations again makes a step slower.",
    trial("gpu", steps=6, global_batch=12),
    trial("activation_checkpointing", keep="inputs", steps=6, global_batch=12),
    otherwise="Memory that is not written costs no time either, which can hide the arithmetic.",
)
display(recomputed)
claim.faster(
    "memory_parts_time",
    "A batch of 24 at once is more than 1.2 times as fast as in 24 parts of one sample.",
    trial("gpu", steps=6, global_batch=24),
    trial("accumulate", micro_batches=24, steps=6, global_batch=24),
    by=1.2,
)

# %% [markdown]
# For 16 bits there is no such claim here: their speed comes from the device. A CPU needs
# instructions for them (AVX512-BF16, AMX), or each number is cast back and forth. A GPU needs
# tensor cores and a model that keeps them busy: on a Volta GPU, operations limited by arithmetic or
# memory became 2 to 6 times as fast (Micikevicius et al., 2017, section 5).
#
# GPT-2 small on one GPU, measured or expected by the planner of lesson 10:

# %%
one_device.variant_table()

# %% [markdown]
# ## Prove it
#
# Parts must train what the batch trains, up to rounding, with both optimizers. Checkpointing
# repeats the same operations on the same numbers, and the step in the backward pass makes the same
# updates earlier: on a CPU core every loss must agree in every digit.
# (Some GPU kernels add in an order that changes from run to run;
# `torch.use_deterministic_algorithms(True)` replaces or refuses them.) Mixed precision rounds, so
# it is not the same training to 1e-5. How far off is it?

# %%
sgd = same | {"optimizer": "sgd"}
in_parts = launch("accumulate", micro_batches=4, **sgd)
print(check.same_training(in_parts, launch("gpu", **sgd)), end="\n\n")
print(check.same_training(found["4 parts"], plain), end="\n\n")
for way in ("inputs kept", "products kept", "step in backward"):
    print(check.same_training(found[way], plain), end="\n\n")
    apart = one_device.furthest(found[way], plain)
    assert apart == 0 or plain.device == "cuda", f"{way}: a loss has changed"
guess_off.score(one_device.furthest(found["mixed, bf16"], plain), within=1)

# %% [markdown]
# For this the second forward pass must do what the first did. For dropout, PyTorch restores the
# state of the random generator. What it cannot undo is a forward pass that changes something: a
# BatchNorm in a checkpointed block updates its running means twice in each step.
#
# A long training in bf16 drifts further, as two runs with different seeds do. For a real model the
# question is whether the held-out loss is as good at the end.
#
# ## fp16 and its loss scale (optional)
#
# Many gradients are too small for fp16. Here are the gradients of a model that has trained for 60
# steps, multiplied by a power of two and cast to fp16: those of the scores (the model's outputs),
# where the backward pass begins, and those of the parameters. Read the rows from top to bottom:
# what disappears, and what appears?

# %%
exponents, gradients = list(range(0, 32, 4)), one_device.gradients()
fates = {
    name: [one_device.convert_to_fp16(gradient, 2.0**exponent) for exponent in exponents]
    for name, gradient in gradients.items()
}
origin = "GPT tiny after 60 steps, a batch of 128 samples; cast to fp16 and counted here."
plots.show(single_device.fp16_fates(fates, exponents, origin))

# %% [markdown]
# The loss is a mean over all bytes of the batch, so each score has a tiny share in it. What is
# zero at the start of the backward pass is lost to every parameter. So the loss is multiplied by
# a **loss scale**, and the gradients are divided by it in float32 before the optimizer uses them.
# If it is too large, gradients become infinite. `GradScaler` searches for it: it begins with
# 2**16. If a gradient is infinite or NaN, it **skips the step** and halves the scale; after 2,000
# good steps it doubles it. Here it begins far too high, and doubles after 4 good steps:

# %%
normal = 'scaler = torch.amp.GradScaler(device.type, enabled=args.autocast == "float16")'
high = "scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24, growth_interval=4)"
changes = {normal: high, "scaler.update()": "scaler.update()\nprint(scaler.get_scale())"}
search = variant("amp", "amp_high_scale", changes)
scaled = launch(search, 1, autocast="float16", steps=16, global_batch=4, quiet=True)
one_device.scale_table(scaled, first_scale=2.0**24)

# %% [markdown]
# A few skipped steps at the start are normal. If they go on, the gradients are infinite for another
# reason. bf16 has float32's range and needs no scale: the simpler choice where the device has it.
# With a scaler, call `scaler.unscale_(optimizer)` before you clip gradients.
#
# How far off is fp16 with its scale? The proof allows SGD and AdamW different amounts.

# %%
rows = []
for optimizer, allowed in (("sgd", 1e-3), ("adamw", 2e-2)):
    flags = same | {"optimizer": optimizer}
    rounded = launch("amp", autocast="float16", **flags)
    proof = check.same_training(rounded, launch("gpu", **flags), allowed)
    loss, _, end = (row["measured"] for row in proof.rows if row["allowed"] == allowed)
    rows.append({"optimizer": optimizer, "loss": loss, "parameters": end, "allowed": allowed})
Table(rows, "fp16 against float32: how far losses are off, and parameters, of the way they moved")

# %% [markdown]
# AdamW amplifies rounding: where a gradient is little more than that, its step still has full
# length.
#
# ## Eight bits (optional)
#
# 8-bit floats, **FP8**, are **e4m3**, with 4 bits of exponent and 3 of fraction, and **e5m2**. One
# function rounds to all formats of this lesson, and agrees with PyTorch's own types to the bit.
# What becomes of 465, and of infinity?

# %%
from bootcamp.costs import hardware, published
from bootcamp_lessons import excerpts
from bootcamp_lessons.labs import faster_step

FP8 = {"e4m3": (torch.float8_e4m3fn, 3, 4, 448), "e5m2": (torch.float8_e5m2, 2, 5)}
numbers = torch.tensor([465, 61_440, torch.inf, -0.0, 1.0625, 2**-9, 2**-10, 2**-16, 2**-17])
rows = [{"number": f"{number:.6g}"} for number in numbers]
for name, (dtype, *bits) in FP8.items():
    rounded = faster_step.round_bits(numbers, *bits)
    assert torch.equal(rounded, numbers.to(dtype).float()), name
    for row, result in zip(rows, rounded, strict=True):
        row[name] = f"{result:.6g}"
guess_outlier = predict(
    "memory_fp8_outlier",
    "Two 256 × 256 matrices of standard normal numbers are multiplied in e4m3, each scaled so that "
    "its largest number just fits. Then one number of the first becomes 1,000. How many times as "
    "far off are the rows of the result that it does not affect?",
    unit="times",
)
guess_width = predict(
    "memory_fp8_width",
    "On an H100, from which width on is a product of square matrices faster in FP8 than in bf16, "
    "casts included?",
)
display(excerpts.source(faster_step.round_bits), Table(rows), guess_outlier, guess_width)

# %% [markdown]
# e4m3 has no infinity: PyTorch 2.13 stops at its largest number. (The standard allows NaN, too.) So
# **a scale** moves numbers to where the format is: one for each tensor, each row or, in **MXFP8**,
# each block of 32, where it is a power of two in 8 bits (e8m0).

# %%
PARTS = {"matrix": (1, -1), "row": (256, -1), "block of 32": (-1, 32)}


def round_parts(matrix, parts, integers=False):
    part = matrix.reshape(PARTS[parts])
    top = part.abs().amax(1, keepdim=True)
    if integers:
        return ((part / top * 127).round() / 127 * top).reshape(matrix.shape)
    scale = top / 448 if "block" not in parts else 2.0 ** (top.frexp().exponent - 1 - 8)
    return (faster_step.round_bits(part / scale, *FP8["e4m3"][1:]) * scale).reshape(matrix.shape)


a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
rows = [{"scale for each": f"{parts}, e4m3", "parts": parts} for parts in PARTS]
rows.append({"scale for each": "matrix, 8-bit integers", "parts": "matrix", "integers": True})
for row in rows:
    how = row.pop("parts"), row.pop("integers", False)
    for outlier in (None, 1e3, 1e5):
        a[0, 0] = outlier or 1
        c, exact = round_parts(a, *how) @ round_parts(b.T, *how).T, a @ b
        named = f"% off, with {outlier:,.0f}" if outlier else "% off"
        row[named] = 100 * ((c - exact)[1:].norm() / exact[1:].norm()).item()
print(guess_outlier.score(rows[0]["% off, with 1,000"] / rows[0]["% off"], within=0.1))
Table(rows, "Error of the rows without the outlier")

# %% [markdown]
# An outlier moves the others to smaller exponents, where they have as many digits until they fall
# below 2**-6. Integers lose them at once. Parts with scales of their own confine it. (A block's
# power of two is rounded down, and its largest numbers may be cut to 448: hence the larger error.)
#
# A scale needs the largest number. **Dynamic** scaling reads the tensor once more for it;
# **delayed** scaling takes it from the steps before, with a *margin*: the factor by which the scale
# leaves room above it. Below, which numbers of a gradient become zero, and which are cut off if it
# grows 16-fold?
#
# And when do eight bits bring nothing? The casts of two *n* × *n* matrices read each twice in 16
# bits and write it in 8, 10*n*² bytes. The product saves 2*n*³ FLOP at the difference of the rates.

# %%
gradient = gradients["gradient of the parameters"]
rows = []
for margin in (1, 16, 256, 4096):
    row = {"margin": margin}
    for name, (dtype, *_) in FP8.items():
        scale = torch.finfo(dtype).max / margin / gradient.abs().max()
        row[name] = ((gradient * scale).to(dtype).float().eq(0) & gradient.ne(0)).sum().item()
    cut_off = 16 * gradient.abs() > margin * gradient.abs().max()
    row["cut off if 16-fold"] = cut_off.sum().item()
    rows.append(row)
h100 = hardware.gpu("H100")
saved = 2 * (1 / h100.peak - 1 / h100.peak_fp8)
print(guess_width.score(10 / h100.hbm / saved, how="By formula"))
runs = {row["row_id"]: row for row in published.table("torchtitan")}
with_fp8, without = (
    float(runs[f"tt_repo_8b_8_FSDP+compile{end}"]["published_tokens_per_second_per_gpu"])
    for end in ("+float8", "")
)
print(f"Llama 3.1 8B on 8 H100, torchtitan: {with_fp8 / without:.2f} times the tokens of bf16")
Table(rows, f"{gradient.count_nonzero():,} gradients: zeros in each format, and cut off")

# %% [markdown]
# Without a margin, delayed scaling cuts off a gradient that has grown; with one, e4m3 loses its
# small numbers. So with one scale for a tensor, gradients take e5m2 and the rest e4m3; sums and the
# optimizer stay in float32. Small layers gain nothing. By its source (0.18) torchao swaps a model's
# linear layers on a GPU: `torchao.float8.convert_to_float8_training(model, config=config)`, for a
# scale in each row with `config = Float8LinearConfig.from_recipe_name("rowwise")`, then
# `torch.compile`. For MXFP8 on B200s its README reports up to 1.28 times bf16's speed. Lesson 08
# gathers FP8.
#
# ## Break it
#
# **A mean of means.** Someone found the factor too long, and divides by the number of parts. With
# 2, 3 or 4 parts of 24 samples this passes the proof. With 5:

# %%
line = "loss = models.loss(model(part_inputs), part_targets) * len(part_inputs) / len(inputs)"
shorter = line.replace("* len(part_inputs) / len(inputs)", "/ args.micro_batches")
mean_of_means = variant("accumulate", "mean_of_means", {line: shorter})
small = {"steps": 6, "global_batch": 24, "quiet": True}
uneven = launch(mean_of_means, 1, micro_batches=5, **small)
proof = check.compare(uneven, launch("gpu", **small))
assert proof.failed, "the wrong mean went unnoticed"
proof

# %% [markdown]
# The loss is only a little off, and would fall. What is wrong?
#
# <details><summary>Answer</summary>
#
# 24 samples in 5 parts are 5, 5, 5, 5 and 4. The mean of the parts' means is the mean of the batch
# only if all parts are equally large. In language models the parts differ in the number of tokens
# that count, and widely used training code took the mean of means until 2024 (see Sources). The
# same holds among ranks: averaging their mean losses is right only for equally many samples.
# </details>
#
# **Out of memory.** This script requests far more than any machine has, so it fails at once and
# harms nothing.

# %%
from bootcamp import gpu_count

huge = variant("gpu", "too_large", {"loss.backward()": "torch.empty(2**50, device=device)"})
device = "cuda" if gpu_count() else "cpu"
run_out = launch(huge, 1, device=device, steps=1, raises=False, quiet=True)
assert run_out.status == "oom", "the record does not say that memory ran out"
print(run_out.status, "|", run_out.summary["error"]["message"])

# %% [markdown]
# The operating system promises more main memory than there is: when it really runs out, the system
# kills a process, and you see a rank that "was killed by signal 9". A GPU's message says more. This
# is torch 2.13's, with numbers made up. Which remedy does it call for?
#
# ```
# torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity
# of 79.15 GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.12
# GiB memory in use. Of the allocated memory 62.40 GiB is allocated by PyTorch, and 14.90 GiB is
# reserved by PyTorch but unallocated. [...]
# ```
#
# <details><summary>Answer</summary>
#
# 14.90 GiB are free inside PyTorch, and no single piece is as large as 2 GiB: fragmentation.
# `PYTORCH_ALLOC_CONF=expandable_segments:True` costs little, so it comes first (lesson 02c). If
# nearly all were *allocated*, the ways of this lesson would be the remedy; if the process used far
# less than the capacity, another process has the rest (`nvidia-smi`). To see what holds it:
# `torch.cuda.memory._record_memory_history()` and `_dump_snapshot()`, drawn by
# pytorch.org/memory_viz. </details>
#
# **No gradient comes back.** `use_reentrant=True` is the older implementation of checkpointing,
# and still the default in some libraries. Here it meets a model whose embedding is frozen, as in
# fine-tuning.

# %%
frozen = {"# 3. Data": "model[0].requires_grad_(False)\n\n# 3. Data"}
newer = "recompute, block.forward, use_reentrant=False, context_fn=KEEP[args.keep]"
older = {newer: "recompute, block.forward, use_reentrant=True"}
mlp = {"model": "mlp", "steps": 4, "global_batch": 12, "quiet": True}
ways = {
    name: launch(variant("activation_checkpointing", name, frozen | change), 1, **mlp)
    for name, change in {"not_reentrant": {}, "reentrant": older}.items()
}
for name, run in ways.items():
    print(f"{name}: gradients {run.ranks[0]['gradient_bytes']:,} bytes, losses {run.losses}")
claim.larger(
    "memory_reentrant_gradients",
    "With use_reentrant=True behind a frozen embedding, most gradients are missing.",
    ways["not_reentrant"].ranks[0]["gradient_bytes"],
    ways["reentrant"].ranks[0]["gradient_bytes"],
    by=2,
)

# %% [markdown]
# Which layers still learn, and why does nothing raise? Then open the answer.
#
# <details><summary>Answer</summary>
#
# The reentrant implementation is one autograd function around the block, and autograd asks whether
# any *input* requires a gradient. The embedding's output does not, since it is frozen. So the
# block's output does not either, nor that of the next block, and only the head learns: enough for
# `backward()`. stderr warns. With `use_reentrant=False` autograd sees the block's parameters
# themselves. </details>
#
# ## What gives memory back (optional)
#
# A small program makes tensors, cleans up, and asserts what its tensors still hold. "Resident" is
# the main memory of the process.

# %%
from bootcamp import run_command
from bootcamp_lessons import excerpts

moments = excerpts.parse_printed(run_command(["python", str(excerpts.SNIPPETS / "clean_up.py")]))
Table(moments, "One process from its start to its end, measured here")

# %% [markdown]
# - `del` removes a name; a tensor's memory is freed when nothing refers to it any more. On a GPU
#   PyTorch keeps it **reserved** for the next tensor, and `torch.cuda.empty_cache()` gives it to
#   other processes. It frees no tensor, and on a CPU it does nothing.
# - **An exception** refers to the frames that failed, and these to their tensors. IPython keeps the
#   last one (`sys.last_value`), so after an out-of-memory error even a smaller batch may fail.
# - **A cycle** (an object that stores its own method) waits for `gc.collect()`.
# - **Many small tensors** leave pieces. On a GPU a piece stays reserved while one tensor is in it.
#   On a CPU the C library keeps most for later, even when all are gone, until it is told to trim.
#
# Only the end of a process is certain to give everything back: so this course runs each training in
# one of its own.
#
# ## Exercise
#
# ### First: the sum that must be a mean
#
# Accumulate gradients: two lines of the inner loop are missing.

# %%
from bootcamp import exercise

print(exercise.start("accumulate"))

# %% [markdown]
# Edit the file, save it, and check it. The checker trains with both optimizers.
# `exercise.solution("accumulate")` shows the solution as a diff.

# %%
print(exercise.check("accumulate"))

# %% [markdown]
# ### Second: a product in eight bits (optional)
#
# `multiply_in_fp8(a, b)` returns a product in float32, for which both matrices are rounded to e4m3.
# Their scales bring the largest number of each row, or of each column, to 448. Which is it in
# `a`, which in `b`, so that they can be taken out again?
# (`exercise.solution("multiply_in_fp8")`)

# %%


def multiply_in_fp8(a, b):
    # your turn: x.to(torch.float8_e4m3fn).float() rounds
    ...


print(exercise.check("multiply_in_fp8", multiply_in_fp8))

# %% [markdown]
# ### Third: a program that still uses Apex (optional)
#
# Lesson 15 is about Apex. Port its level O1 to `torch.autocast` in fp16 and `GradScaler`; gradients
# stay clipped. Edit the file, save it, run the cell again (`exercise.solution("from_apex")`).

# %%
print(exercise.start("from_apex"))
print(exercise.check("from_apex"))

# %% [markdown]
# ## When to use it and when not
#
# - **Accumulate** when the batch that you want does not fit. It adds no arithmetic; do not make the
#   parts smaller than you must.
# - **Mixed precision** with bf16 is the rule on GPUs that have it, TF32 the smallest change. Stay
#   with float32 for the first run of a new model, for a proof of equality, and on a CPU without
#   16-bit instructions.
# - **Checkpoint** activations when the batch does not fit even in small parts, or for long
#   sequences. It adds up to a third more arithmetic, so do not use it when there is memory to
#   spare.
#
# ## Sources
#
# - PyTorch documentation: *Automatic Mixed Precision package*, *torch.utils.checkpoint*, *CUDA
#   semantics* (TF32, memory management), *Understanding CUDA Memory Usage*.
# - NVIDIA, architecture white papers of V100, A100, H100 and Blackwell: number formats.
# - Micikevicius et al., *Mixed Precision Training*, 2017, arXiv:1710.03740. Kalamkar et al., *A
#   Study of BFLOAT16 for Deep Learning Training*, 2019, arXiv:1905.12322.
# - Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, arXiv:2209.05433. *OCP Microscaling
#   Formats (MX) Specification*, v1.0, 2023. `gpus.csv` and `torchtitan.csv` in
#   `src/bootcamp/costs/published`. torchao 0.18: README, `torchao/float8`.
# - Chen et al., *Training Deep Nets with Sublinear Memory Cost*, 2016, arXiv:1604.06174.
#   Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022,
#   arXiv:2205.05198.
# - Hugging Face, *Fixing Gradient Accumulation*, 2024 (huggingface.co/blog/gradient_accumulation).
