# %% [markdown]
# # 03 DataParallel: one process, several devices
#
# **22 minutes** for the core, on any machine; parts marked *(optional)* come on top.
# `nn.DataParallel` itself needs two GPUs. The lesson rebuilds it from threads on CPU cores, so that
# you can look inside without any.
#
# After this lesson you can name the five phases of its step, say what they cost and why PyTorch
# advises against it, prove that replicas train the same model, and recognise the faults that only
# DataParallel has. You need this when you meet old code.

# %% [markdown]
# ## The question
#
# You have a script that trains on one GPU, and a machine with several. PyTorch has had a class for
# that since its first versions, and it asks for one line: `model = DataParallel(model)`. Why does
# its own documentation advise against it? That line on this machine:

# %%
from bootcamp import gpu_count, launch, warm_up

warm_up()
tried = launch("dp", 1, steps=10, global_batch=32)
print(tried.output(0) or f"It splits the batch over {gpu_count()} GPUs.")

# %% [markdown]
# With fewer than two GPUs DataParallel raises nothing and splits nothing: the script trains on as
# if the line were not there. The library is silent about it; the sentence is the course's. So the
# lesson works with two **replicas** (copies of the model) on CPU cores.
#
# ## The idea
#
# A **process** is a running program with memory of its own. A **thread** is one of several flows
# of control within a process; threads share its memory. DataParallel uses *one process* with *one
# thread for each device*. Only device 0 holds the model that is trained. Orange arrows show
# what crosses between devices.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import dataparallel

plots.show(dataparallel.five_phases())

# %% [markdown]
# 1. **Scatter**: the batch is cut, and each device gets a share.
# 2. **Replicate**: the model is copied to each other device, in *every* step.
# 3. **Parallel forward**: each thread runs its replica on its share.
# 4. **Gather**: all outputs go to device 0, which computes the loss of the full batch.
# 5. **Reduce**: the backward pass leaves gradients on each replica (and sends each one the gradient
#    of its outputs first). They are added up on device 0. Its optimizer changes its parameters, and
#    the replicas are thrown away.
#
# ## Predict
#
# **DDP** (DistributedDataParallel, lesson 04) uses one *process* for each device, each with a model
# and an optimizer of its own. Only gradients are exchanged and averaged, by an *all-reduce*: with
# two ranks each sends as many bytes as its gradients have.

# %%
from bootcamp import predict

guess_bytes = predict(
    "data_parallel_bytes",
    "Two devices. DataParallel sends the parameters out and the gradients back, DDP averages only "
    "the gradients. How many times the bytes of DDP (all ranks together) does DataParallel send? "
    "Leave out inputs and outputs.",
    unit="times",
)
guess_bytes

# %% [markdown]
# This lesson's model: 1.34 MB of parameters; 54 MB of activations and 2.1 MB of outputs for all 32
# samples. A device keeps its share of the activations. Device 0 alone keeps AdamW's state, and the
# outputs of all samples, twice.

# %%
guess_device_0 = predict(
    "data_parallel_device_0",
    "Four devices, 32 samples, a vocabulary of 256 bytes, trained with AdamW: how many times as "
    "much memory as any other device does device 0 need in a step?",
    unit="times",
)
guess_device_0

# %% [markdown]
# ## What changes

# %%
from bootcamp import script_diff

script_diff("dp")

# %% [markdown]
# (The `if` is the course's.) The training loop stays as it is: all five phases hide in
# `model(inputs)` and `loss.backward()`. The same by hand, where `record_function` gives each phase
# a name for torch's profiler:

# %%
script_diff("dp_by_hand")

# %% [markdown]
# `inputs.chunk` cuts the batch, but only the inputs: the targets stay where the loss is computed.
# `copy.deepcopy` replicates. `threads.map` runs each replica in a thread. After `torch.cat` there
# is one loss, as in one process.
#
# The reduce is a *sum*, where ranks need a *mean*: the loss is a mean over the **full** batch, so
# each replica holds its part of that mean's gradient, and parts add up.

# %% [markdown]
# ## Run it
#
# Two replicas, and two ranks of DDP beside them, on two cores if there are two. In step 5 the
# profiler notes when each operation ran.

# %%
from bootcamp import machine

same = {"steps": 15, "global_batch": 32, "trace_step": 5}
alone = launch("cpu", 1, **same)
threads = {"replicas": 2, "cores_per_rank": min(2, len(machine.cores())), "device": "cpu"}
by_hand = launch("dp_by_hand", 1, **threads, **same)
ddp = launch("ddp", 2, device="cpu", **same)
plots.show(plots.throughput(alone, by_hand, ddp))
plots.show(dataparallel.phases(by_hand))

# %% [markdown]
# ## Read the measurement
#
# ### First reason: overhead in every step
#
# The longest phase is unfair to DataParallel. Autograd uses **one thread for each device**, and our
# replicas live on *one*, the CPU: a single thread walks back through both. The next script gives
# the backward pass to the pool's threads too, so that the comparison with DDP is about the rest.
#
# That is the copying of the replicas in every step: `copy.deepcopy` of many small tensors is mostly
# Python. (`nn.DataParallel` joins the parameters and broadcasts them in C++, which is faster, but
# in every step too.) Scatter costs next to nothing here, since `chunk` makes views of the same
# memory; between GPUs it copies.

# %%
from bootcamp import claim, trial, variant

changes = {
    "loss = models.loss(torch.cat(outputs), targets)": """\
gathered = torch.cat(outputs).detach().requires_grad_()
loss = models.loss(gathered, targets)""",
    "loss.backward()": """\
loss.backward()
shares = gathered.grad.chunk(args.replicas)
list(threads.map(lambda output, grad: output.backward(grad), outputs, shares))""",
}
threaded = variant("dp_by_hand", "dp_backward_in_threads", changes)
small = {"steps": 15, "global_batch": 8}
claim.faster(
    "dp_ranks_beat_threads",
    "With 8 samples a step, two ranks of DDP are over 1.1 times as fast as two replica threads.",
    trial("ddp", 2, device="cpu", **small),
    trial(threaded, 1, **threads, **small),
    by=1.1,
    supported="In so small a step fixed overhead weighs much: replicas are made anew each time.",
    otherwise="DDP's overhead is an exchange between processes. On a busy machine, or on one core, "
    "it can cost as much as the replicas do.",
)

# %% [markdown]
# ### And the interpreter's lock?
#
# A thread needs a lock to run Python code, the **GIL** (global interpreter lock). PyTorch releases
# it while it computes an operation, so operations can run side by side; the Python code between
# them cannot. Does that matter? A small program
# ([threads_and_processes.py](../src/snippets/threads_and_processes.py)) gives the same task to
# two threads and to two processes, in several rounds. 1.0× means side by side, 2.0× one after the
# other.

# %%
from bootcamp import run_command
from bootcamp.paths import SRC
from bootcamp_lessons import excerpts

program = SRC / "snippets" / "threads_and_processes.py"
loop, products, step = excerpts.parse_printed(run_command(["python", str(program)]))
plots.show(dataparallel.workers([loop, products, step], cores=len(machine.cores())))

# %%
claim.faster(
    "dp_gil",
    "Two processes run a Python loop each more than 1.1 times as fast as two threads do.",
    loop["processes"],
    loop["threads"],
    names=("two processes", "two threads"),
    by=1.1,
    supported="Two processes have two interpreters, and two locks.",
    otherwise="Two processes need two free cores: on one, or beside other work, they take turns "
    "as well.",
)

# %% [markdown]
# The loop is all Python, and no training is. *Matrix products* are long operations without the
# lock. The *replica step*, the forward and backward pass of this lesson's model, is nearer to the
# products than to the loop: two CPU cores compute, and the lock hardly matters.
#
# On GPUs the threads compute nothing: they *launch* kernels, in the forward pass from Python. With
# eight GPUs one interpreter launches eight times as many kernels as one GPU needs, one at a time,
# and the GPUs may have to wait; the longer each kernel runs, the less. (From Python 3.14 on builds
# without the lock are supported, PEP 779. The other reasons remain.)

# %% [markdown]
# ### Second reason: what waits for what
#
# DataParallel sends (*N*-1) copies of the parameters out and (*N*-1) sets of gradients back. In a
# step DDP sends only gradients (and buffers, where a model has them). The kernel of the operating
# system counted what our two ranks sent:

# %%
from bootcamp.costs import memory

sent = [rank["sent_bytes_per_step"] for rank in ddp.ranks]
copied = 2 * (2 - 1) * alone.ranks[0]["parameter_bytes"]  # out, and gradients back
claim.equal(
    "dp_bytes",
    "Two ranks of DDP send as many bytes in a step as DataParallel, by formula, copies between two "
    "devices.",
    sum(sent) if all(sent) else None,
    copied,
    within=0.1,
)

# %%
guess_bytes.score(copied / (2 * ddp.predicted_sent_bytes_per_step), how="By formula")

# %% [markdown]
# So the number of bytes is not the reason, and with more devices both still send equally much in
# all. What differs:
#
# - **When.** No replica can begin before its parameters have arrived, and the optimizer waits for
#   the last gradient. DDP sends gradients *while* the backward pass goes on, and parameters only
#   once, when it wraps the model.
# - **What else.** The outputs of all devices go to device 0, and their gradients back.
# - **Through whom.** With plain copies everything passes through device 0, which carries (*N*-1)
#   times the model each way. Between GPUs torch uses NCCL where it can, which passes parameters and
#   gradients on from GPU to GPU; then device 0 sends about as much as the others. Inputs and
#   outputs are still copied to and from device 0.

# %% [markdown]
# ### Third reason: device 0 is full first
#
# Device 0 alone holds the optimizer's state, and the outputs of the full batch. From the record of
# one process a formula (`src/bootcamp/costs/memory.py`) gives what a step puts on each of
# four devices. The outputs count twice: their log-softmax, which the loss keeps, and their
# gradient.

# %%
outputs = 4 * alone.steps[0]["tokens"] * 256  # a float32 for each of 256 bytes
held = memory.data_parallel(alone.ranks[0], 4, outputs)
note = "Four devices, 32 samples: by formula from the record of one process."
plots.show(dataparallel.memory_by_device(held, note))
first, other, _ = (sum(kinds.values()) for kinds in held.values())
guess_device_0.score(first / other, how="By formula")

# %% [markdown]
# The batch can grow only until *device 0* is full; on the others memory lies idle. With GPT-2's
# vocabulary of 50,257 tokens the outputs alone of 32 samples of 1,024 tokens fill 2 × 4 × 32 ×
# 1,024 × 50,257 bytes = 13.2 GB of device 0. With DDP on four ranks it is 3.3 GB on each.

# %% [markdown]
# ### The library itself (optional)
#
# [dp_with_dataloader.py](../src/snippets/dp_with_dataloader.py) is a program as tutorials print it:
# `device_ids`, batches of 512 from a DataLoader with `pin_memory=True`, Adam. It splits the same
# batches over two replicas by hand, and once with a mean for each replica. To see the library
# itself split them takes two GPUs; there it is timed against DDP.

# %%
from IPython.display import display

from bootcamp import Table

program = SRC / "snippets" / "dp_with_dataloader.py"
held, said, *ends = excerpts.parse_printed(launch(program, 1, quiet=True))
print(held, *said["said"], sep="\n")
display(Table(ends, "Apart from one process, relative to its gradient and its update"))
found = claim.at_most(
    "dp_dataloader_by_hand",
    "Two replicas share a DataLoader's batches, and end where one process ends, to 1e-5.",
    max(row["update apart"] for row in ends if row["way"] == "two replicas"),
    1e-5,
    kind="count",
    supported="With the wrong mean gradients are doubled. Adam all but hides it, SGD does not.",
)
display(found)
flags = {"steps": 15, "global_batch": 16 * max(2, gpu_count()), "device": "cuda"}
claim.faster(
    "dp_on_gpus",
    "One rank of DDP for each GPU trains this small model faster than nn.DataParallel on all.",
    trial("ddp", gpu_count(), **flags),
    trial("dp", 1, **flags),
) if gpu_count() > 1 else print("Fewer than two GPUs here: nn.DataParallel can't be measured.")

# %% [markdown]
# ## Prove it
#
# Both versions by hand, and the library's script where there are GPUs for it, must train what the
# CPU baseline trains: with both optimizers, every step's loss, the final parameters, the samples.

# %%
from bootcamp import check

proofs = check.prove("dp_by_hand", 1, device="cpu") + check.prove(threaded, 1)
if gpu_count() > 1:
    proofs += check.prove("dp", 1, device="cuda")
print(*proofs, sep="\n")

# %% [markdown]
# (Unequal shares train the same too: there is one loss over all outputs. Under DDP they do not.)

# %% [markdown]
# ## Break it
#
# ### First: a saving
#
# "The replicas are equal to the model anyway, so I make them once." The copies of the first step
# are kept, and the phase is saved. What happens to the loss?

# %%
anew = "replicas = [copy.deepcopy(model) for _ in shards]"
once = variant("dp_by_hand", "dp_replicas_once", {anew: f"if step == 0:\n    {anew}"})
stale = launch(once, 1, quiet=True, optimizer="adamw", **check.settings(1))
baseline = proofs[1].baseline
assert check.compare(stale, baseline).failed, "replicas that are never renewed should not train"
plots.show(plots.loss_curves(baseline, stale))

# %% [markdown]
# <details><summary>What happened?</summary>
#
# The optimizer changes the parameters of *the model*. The kept replicas do not see the change:
# the forward pass keeps using the parameters of the first step. Their gradients are not set to
# zero either, since `optimizer.zero_grad()` knows only the model. Nothing fails.
#
# DataParallel has to replicate in every step because only device 0 has an optimizer. DDP needs no
# such phase: every rank has an optimizer, all apply the same averaged gradients, and so the
# copies stay equal without being sent.
# </details>
#
# ### Second: a model that counts
#
# This model has a warm-up inside: it counts its forward passes in `model.calls`, and fades its
# outputs in over the first ten.

# %%
guess_calls = predict(
    "data_parallel_calls",
    "After 15 steps with replicas, what is model.calls?",
    unit="calls",
)
guess_calls

# %%
build, finish = "model = models.build(args).to(device)", "run.finish()"
counting = f"""{build}
model.calls = 0
def fade_in(module, inputs, outputs):
    module.calls += 1
    return outputs * min(1, module.calls / 10)
model.register_forward_hook(fade_in)"""
counted = {build: counting, finish: f"print(model.calls)\n{finish}"}
fading = [variant(name, f"{name}_fades_in", counted) for name in ("gpu", "dp_by_hand")]
faded = [launch(each, 1, device="cpu", steps=15, global_batch=32, quiet=True) for each in fading]
calls = [int(each.output(0).splitlines()[-1]) for each in faded]
print("one process:", calls[0], "calls; with replicas:", calls[1])
plots.show(plots.loss_curves(*faded))
guess_calls.score(calls[1])

# %% [markdown]
# <details><summary>What happened?</summary>
#
# A forward pass changes an attribute of the *replica*, and the replica is thrown away after the
# step. Every new replica counts from 0 to 1, so the model stays in the first tenth of its warm-up.
# `nn.DataParallel` does the same, and its documentation says so: "any updates to the running module
# in `forward` will be lost."
#
# With one exception. In the library the replica on device 0 shares parameters and **buffers** with
# the model, so what is changed *in place* there stays. This is how a BatchNorm keeps its running
# means under DataParallel: from device 0's share of the batch only. By hand we copy all replicas,
# so even those would be lost. In DDP each rank keeps its model, and nothing is lost.
#
# If it has to be DataParallel, change state outside of `forward`.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: the missing reduce
#
# The replicas have computed, and the model learns nothing: the reduce is missing. Edit the file
# that this cell writes, and save it.

# %%
from bootcamp import exercise

print(exercise.start("thread_replicas"))

# %% [markdown]
# The check runs *your* script with both optimizers against the baseline.
# `exercise.solution("thread_replicas")` shows the solution as a diff.

# %%
print(exercise.check("thread_replicas"))

# %% [markdown]
# ### Second: until device 0 is full (optional)
#
# What is the largest global batch that fits on device 0? It holds the state (parameters, gradients,
# optimizer state), its share of the activations, and the outputs of the *full* batch, twice. Write
# the function in place of the three dots. The solution: `exercise.solution("largest_batch")`.


# %%
def largest_batch(devices, memory, state, activations, outputs):
    """Samples in the largest global batch that fits with DataParallel; all sizes are in MB.

    memory: of each device. state: parameters, gradients and optimizer state together.
    activations, outputs: of one sample (the activations without the outputs).
    """
    ...


print(exercise.check("largest_batch", largest_batch))

# %% [markdown]
# ## When to use it and when not
#
# **Use DDP instead**, also on one machine: it is what PyTorch's documentation advises. When you
# move old code to DDP, this is what changes:

# %%
script_diff("ddp", parent="dp")

# %% [markdown]
# **DataParallel may do** for a quick look in a notebook, where starting processes is a nuisance:
# few GPUs, large operations, inference rather than training.
#
# **When you meet it in old code**
#
# - Is it doing anything? `len(model.device_ids)`, and the memory of *every* GPU, show it.
# - The model is in `model.module`, and saved names begin with `module.` (lesson 04).
# - The batch size is that of all devices together. In DDP each process has its own.
# - State that `forward` changes, and BatchNorm, behave as above.
#
# ## Sources
#
# - PyTorch documentation: *torch.nn.DataParallel* (its warnings are the traps of this lesson),
#   *Use DistributedDataParallel instead of multiprocessing or DataParallel* (CUDA semantics);
#   `torch/nn/parallel/comm.py` and `torch/csrc/cuda/comm.cpp` (where it uses NCCL).
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   arXiv:2006.15704.
# - Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019: the size of GPT-2's
#   vocabulary.
# - Wouters et al., *PEP 779: Criteria for supported status for free-threaded Python*, 2025.
