# %% [markdown]
# # 02 Single GPU: move and time
#
# **33 minutes**, on any machine. With a GPU you move the training and time it; without one you
# rehearse the move, and the lesson says what that cannot show.
#
# After this lesson you can bring a training script to a GPU, prove that nothing was left behind,
# time a GPU correctly, choose a batch by its throughput, and say what limits an operation.

# %% [markdown]
# ## The question
#
# A GPU computes much faster than a CPU core. What has to change in the script to use it, what
# happens if only half of it changes, and what keeps a GPU from its speed?

# %% [markdown]
# ## The idea
#
# A GPU is a computer of its own: thousands of arithmetic units, and a memory of its own. In
# PyTorch's terms it is a **device**, named `cuda`; the CPU with the main memory is the **host**.
# The Python script always runs on the host. It launches **GPU kernels**, functions that run on
# the GPU and read and write the GPU's memory. What is in main memory has to be copied there
# first, over a bus (usually PCIe): **the model once, the batch in every step**. Gradients and
# optimizer state are created where the parameters are, activations where the inputs are.

# %%
from bootcamp import gpu_count, launch, plots, run_command, warm_up
from bootcamp_lessons.diagrams import single_device

warm_up()
print(f"PyTorch finds {gpu_count()} GPU(s) here. Without one, the runs below stay on a CPU core.")
plots.show(single_device.host_and_device())

# %% [markdown]
# ### Launch now, result later
#
# The CPU does not wait for a GPU kernel: it launches the next one at once. This is called
# **asynchronous**. It keeps the GPU busy although Python is slow, and it is why a clock on the CPU
# misleads: it may measure launches only.

# %%
plots.show(single_device.queue())

# %% [markdown]
# What needs a result waits for it: `loss.item()`, `print(loss)`, `.cpu()`. So each of them in a
# training loop costs time. `torch.cuda.synchronize()` waits without fetching anything: call it
# before you read a clock. On a CPU a call returns with its result, so the two times below agree
# there.

# %%
from IPython.display import display

from bootcamp_lessons.excerpts import SNIPPETS, piece

timed = SNIPPETS / "time_on_device.py"
display(piece(timed, "began = time.perf_counter()\ntotal", "print"))
print(run_command(["python", str(timed)]))

# %% [markdown]
# On a GPU they differ. A step of GPT-2 small, measured or, as the caption says, expected by the
# planner of lesson 10:

# %%
from bootcamp_lessons import one_device

one_device.timing_table()

# %% [markdown]
# A **CUDA event** is a time stamp that the GPU itself takes, between the kernels around it. This is
# how a GPU is timed, and how `with run.step(step):` times the steps of this course:
#
# ```python
# begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
# begin.record()
# loss = step()
# end.record()
# torch.cuda.synchronize()  # both must be there
# begin.elapsed_time(end)  # milliseconds
# ```
#
# **Pinned memory** is main memory that the operating system may not move or swap out. A GPU can
# copy from it directly, without the driver's intermediate copy, and only such a copy can overlap
# with computing: `DataLoader(pin_memory=True)`, then `.to(device, non_blocking=True)`.

# %% [markdown]
# ## Predict

# %%
from IPython.display import display

from bootcamp import predict

guess_bytes = predict(
    "single_gpu_batch_bytes",
    "32 samples of 64 bytes of text, inputs and targets, as the indices that an embedding takes: "
    "how many kB cross the bus in each step?",
    unit="kB",
)
guess_batch = predict(
    "single_gpu_batch_speed",
    f"On one {'GPU' if gpu_count() else 'CPU core'}, a batch of 64 in place of 16: how many times "
    "the samples per second?",
    unit="times",
)
display(guess_bytes, guess_batch)

# %% [markdown]
# ## What changes

# %%
from bootcamp import script_diff

script_diff("gpu")

# %% [markdown]
# Two of these lines do the work: `.to(device)` on the model, `.to(device)` on each tensor of the
# batch. The others find out which device: `--device auto` (the default) takes a GPU if there is
# one; `cuda` and `cpu` force the choice. `CUDA_VISIBLE_DEVICES` limits which GPUs a process can
# see.
#
# The model moves *before* the optimizer is built. `Module.to` usually keeps its parameter objects,
# so the other order often works. But a move to some devices, such as `meta`, makes new parameters,
# which such an optimizer never sees, and state that it already has stays behind.

# %% [markdown]
# ## Run it

# %%
from argparse import Namespace

from bootcamp import runs
from bootcamp.train import data

base = launch("cpu", steps=20, global_batch=32)
run = launch("gpu", steps=20, global_batch=32)
flags = Namespace(model="gpt", size="tiny", seed=0, global_batch=32)
batch = data.Batches(flags, rank=0, world=1)(0)
print(guess_bytes.score(sum(tensor.nbytes for tensor in batch) / 1e3))
runs.table(base, run)

# %% [markdown]
# A byte of text becomes an int64 of eight bytes, once as input and once as target. If the bus is
# what limits you, copy `uint8` and convert on the device.
#
# **Without a GPU** both runs do the same arithmetic on a core, so what differs is this machine's
# noise. **On a GPU** this tiny model may disappoint: launching a GPU kernel takes longer than
# computing it, so the GPU waits for Python. More work in each launch hides that; CUDA graphs
# (lesson 02c) remove it.

# %% [markdown]
# ## Read the measurement
#
# ### Full memory does not mean a busy device
#
# A larger batch gives each launch more work. The fixed cost of a step, launches and the optimizer,
# is spread over more samples, until the arithmetic units are busy. From there on, more samples take
# proportionally more time, and memory still grows.

# %%
sizes = (1, 4, 16, 64, 256, 1024) if gpu_count() else (1, 4, 16, 64)
curve = {size: launch("gpu", steps=6, global_batch=size, quiet=True) for size in sizes}
plots.show(single_device.batch_curve(list(curve.values())))
guess_batch.score(curve[64].samples_per_second / curve[16].samples_per_second)

# %%
from bootcamp import claim, trial

claim.faster(
    "single_gpu_larger_batch",
    "A batch of 16 trains more than 1.3 times as many samples per second as a batch of 1.",
    trial("gpu", steps=6, global_batch=16),
    trial("gpu", steps=6, global_batch=1),
    by=1.3,
    otherwise="A machine that is busy with other work may hide it.",
)

# %% [markdown]
# So raise the batch until throughput stops growing, not until memory is full. A larger batch than
# that trains no more samples per second, and changes the training: fewer updates for the same data.
# (The utilisation in `nvidia-smi` is no guide either: it is the share of time in which any GPU
# kernel ran, however small.)
#
# A larger batch on one GPU, GPT-2 small in 16 bits up to the end of its memory, recorded or
# expected as above:

# %%
one_device.batch_table()

# %% [markdown]
# ### What limits an operation
#
# Two numbers describe a device: how many operations it does in a second, its peak, and how many
# bytes it reads and writes in a second, its bandwidth. Which one limits an operation depends on
# how many FLOP it does for each byte that it moves, its **arithmetic intensity**. It can reach
# intensity times bandwidth, and no more than the peak: this is the **roofline**. The intensity at
# which both limits meet is its ridge.
#
# AdamW does 14 FLOP for each parameter, and moves 28 bytes: it reads the parameter, its gradient
# and its own two numbers, and writes three of these, with 4 bytes each. (The first measurement of
# the roof takes up to half a minute.)

# %%
from bootcamp import roofline

roof = roofline.measure("cuda") if gpu_count() else roofline.measure("cpu", batch=2)
guess_adamw = predict(
    "single_gpu_adamw",
    f"{roof}. What share of the peak can AdamW reach at best?",
    unit="%",
)
guess_adamw

# %%
plots.show(plots.roofline(roof))
guess_adamw.score(100 * roof.roof(14 / 28) / roof.peak_flops_per_second, how="From the roof")

# %% [markdown]
# That share is AdamW's limit, however well it is written, as long as its numbers come from
# memory. (A point above the roof had them in a cache.) What to do follows from an operation's
# position:
#
# - **Left, limited by memory:** norms, additions, GELU, the optimizer. More FLOP/s would not help,
#   fewer bytes do: 16-bit numbers, or **fusion**, several operations in one pass over memory.
# - **Right, limited by arithmetic:** the matrix products. Here number formats with fewer bits
#   help (lesson 02b). With few tokens a product reads its weights for little arithmetic, and
#   moves left.
# - **Far below the roof:** too small to keep the device busy, or moving more than it would have to.
#
# Two versions of AdamW that compute the same, one of them in a single pass:

# %%
claim.faster(
    "single_gpu_fused_adamw",
    "`AdamW(fused=True)` takes a step in less time than `AdamW(fused=False)`.",
    lambda: one_device.adamw_seconds(fused=True),
    lambda: one_device.adamw_seconds(fused=False),
    names=("fused", "not fused"),
    supported="The arithmetic is the same; passes over memory and calls are saved.",
    otherwise="Where the state fits into a cache, or memory is busy, passes may cost the same.",
)

# %% [markdown]
# With how many tokens does a product move to the right of the ridge? A linear layer reads its
# weights once for all tokens of the batch, 2 bytes each in 16 bits, and does 2 FLOP with each
# weight for each token. (Its inputs and outputs are far smaller, if it is wide.)

# %%
from bootcamp.costs import hardware

h100 = hardware.gpu("H100")
guess_ridge = predict(
    "single_gpu_ridge",
    f"An H100 does {h100.peak / 1e12:.0f} TFLOP/s in 16 bits and reads {h100.hbm / 1e12} TB/s. "
    "From how many tokens on is a wide linear layer limited by arithmetic?",
    unit="tokens",
)
guess_ridge

# %%
guess_ridge.score(h100.peak / h100.hbm, how="By formula, at 1 FLOP a byte for each token")

# %% [markdown]
# Training has thousands of tokens in a step. Generating text has one for each request, so a GPU
# that serves (lesson 11) reads weights most of the time.
#
# A device waits for data too. Lesson 02c measures what worker processes and compiling bring.
#
# The two numbers that make a roof, for several GPUs (both axes are logarithmic; no training
# reaches a peak):

# %%
plots.show(single_device.speeds(None if gpu_count() else roof))

# %% [markdown]
# ## Prove it
#
# **The same training.** Samples, losses and parameters against the baseline, with both optimizers:

# %%
from bootcamp import check

for proof in check.prove("gpu", 1):
    display(proof)

# %% [markdown]
# **Everything was moved.** Without a GPU the proof above shows nothing about moving: host and
# device are the same. But every machine has PyTorch's device `meta`. Its tensors have a shape and
# a type, but no data, and nearly every operation refuses a `meta` tensor together with one on the
# CPU, as it refuses a GPU's. So a step on `meta` rehearses the move. One gap is known: an
# embedding on `meta` accepts indices on the CPU. So the record also notes the devices of all
# activations; `meta` should be the only one.

# %% tags=["nbval-check-output"]
rehearsal = launch("gpu", device="meta", steps=1, quiet=True)
assert rehearsal.status == "ok", "something was left on the CPU"
print("Parameters on:", rehearsal.ranks[0]["parameter_device"])
print("Activations on:", rehearsal.ranks[0]["activation_devices"])

# %% [markdown]
# ## Break it
#
# **Half moved.** This script moves the model and forgets the batch. Read the first line of the
# error, then find the line of *the script*.

# %%
from bootcamp import LaunchError, variant

moved = "inputs, targets = (tensor.to(device) for tensor in batches(step))"
broken = variant("gpu", "batch_left_behind", {moved: "inputs, targets = batches(step)"})
try:
    launch(broken, 1, device="meta", steps=1, quiet=True)
except LaunchError as error:
    print("\n".join(str(error).splitlines()[:10]))

# %% [markdown]
# Which tensor is where, and which line has to change? Then open the answer.
#
# <details><summary>Answer</summary>
#
# The model's outputs are on the device, `targets` are still on the CPU, and the loss meets both.
# The trace names that line, but the line to change is above it: the one that takes the batch. On a
# GPU the embedding refuses already, since its table is on the GPU and `inputs` are not. The message
# names two devices (there `cuda:0` instead of `meta`), the trace the place where they met.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: to the device
#
# Bring the baseline to whatever device `--device` names.

# %%
from bootcamp import exercise

print(exercise.start("to_the_gpu"))

# %% [markdown]
# Edit the file, save it, and check it. The checker compares your script with the baseline, then
# rehearses it on `meta`. `exercise.solution("to_the_gpu")` shows the solution as a diff.

# %%
print(exercise.check("to_the_gpu"))

# %% [markdown]
# ### Second: which batch?
#
# A colleague takes the largest batch that fits and calls the GPU busy. Somebody measured a curve as
# above: `(samples in a step, samples per second, GB)` for each size. Write the function that
# chooses the *smallest* batch that fits into the memory and reaches at least 95 % of the best
# throughput among those that fit. The solution: `exercise.solution("best_batch")`.


# %%
def best_batch(curve, memory):
    """The batch to take. curve: (samples in a step, samples per second, GB) of each size."""
    ...


print(exercise.check("best_batch", best_batch))

# %% [markdown]
# ## When to use it and when not
#
# - **Use a GPU** when the model's matrix products are large enough to keep it busy. It is the first
#   thing to do when training is too slow: a few lines, and one process as before.
# - **Do not expect much** when the model is tiny, when the data comes too slowly, or when the
#   script asks for a result after every operation.
# - **Stay on the CPU** to debug: its errors come from the line that made them. On a GPU an error
#   can show up later than the GPU kernel that caused it; with `CUDA_LAUNCH_BLOCKING=1` in the
#   environment each launch waits for its end, and the trace names the right line.
#
# ## Sources
#
# - PyTorch documentation: *CUDA semantics* (asynchronous execution, pinned memory, CUDA graphs),
#   *Meta device*, *torch.compile*, *torch.utils.data*.
# - Williams, Waterman and Patterson, *Roofline: An Insightful Visual Performance Model for
#   Multicore Architectures*, Communications of the ACM 52(4), 2009.
# - Stas Bekman, *Machine Learning Engineering*, github.com/stas00/ml-engineering, and NVIDIA's data
#   sheets of these GPUs: the published peaks (`src/bootcamp/costs/published/gpus.csv`).
