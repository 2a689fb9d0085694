# %% [markdown]
# # 03 DataParallel: one process, several devices
#
# **45 minutes**, on any machine. `nn.DataParallel` itself needs two GPUs. The lesson takes it apart
# and builds it again from threads on CPU cores, so you can see inside it without any.
#
# After this lesson you can name the five phases of a step, time them, say why one process with
# threads loses to one process for each device, prove that replicas train the same model, and
# recognise the faults that only DataParallel has. You will need this when you meet old code.

# %% [markdown]
# ## The question
#
# You have a script that trains on one GPU, and a machine with several. PyTorch has had a class for
# that since its first versions, and it asks for one line: `model = DataParallel(model)`. Why does
# its own documentation advise against it today?
#
# The next cell starts to load PyTorch in the background.

# %%
from bootcamp import gpu_count, launch, run_command, warm_up

warm_up()

# %% [markdown]
# The next cell tries that line here: it runs the script that has it, and prints what the script
# says.

# %%
tried = launch("dp", 1, steps=10, global_batch=32)
print(tried.output(0) or f"It splits the batch over {gpu_count()} GPUs.")

# %% [markdown]
# With fewer than two GPUs DataParallel raises nothing and splits nothing: the script trains on as
# if the line were not there. The library is silent about it. It is the course's script that prints
# the sentence.
#
# So that you can watch it work on every machine, this lesson uses two **replicas** (copies of the
# model) on CPU cores. The next cell finds out how many cores they get.

# %%
from bootcamp import machine

REPLICAS = 2
CORES = min(REPLICAS, len(machine.cores()))
print(f"{REPLICAS} replicas, {CORES} core(s).")
if CORES < REPLICAS:
    print("The replicas share one core in turns: expect the extra work to show, and no speed-up.")

# %% [markdown]
# ## The idea
#
# A **process** is a running program with memory of its own. A **thread** is one of several flows
# of control within a process; threads share its memory. DataParallel uses *one process* with *one
# thread for each device*. Only device 0 holds the model that is trained. The next cell draws one
# step. Count what crosses between the devices (red).

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import dataparallel

plots.show(dataparallel.five_phases())

# %% [markdown]
# 1. **Scatter**: the batch is cut, and each device gets a share.
# 2. **Replicate**: the model is copied to each other device, in *every* step.
# 3. **Parallel forward**: each thread runs its replica on its share.
# 4. **Gather**: all outputs go to device 0, which computes the loss of the whole batch.
# 5. **Reduce**: the backward leaves gradients on each replica. They are added up on device 0. Its
#    optimizer changes its parameters, and the replicas are thrown away.
#
# (Within the backward one more thing is sent: each device gets the gradient of its outputs.)

# %% [markdown]
# ## Predict
#
# The next cell trains on one core, without replicas. How fast will two replicas on your cores be?
# Write a number after `answer=`.

# %%
from bootcamp import predict

same = {"steps": 15, "global_batch": 32, "trace_step": 5}
alone = launch("cpu", 1, **same)
guess_speed = predict(
    "data_parallel_speed",
    f"One core trains {alone.samples_per_second:,.0f} samples/s. "
    f"How many do {REPLICAS} replicas on {CORES} core(s) train?",
    unit="samples/s",
    answer=None,
)
guess_speed

# %% [markdown]
# The next cell asks a second question, about the phases in which nothing is computed.

# %%
guess_copies = predict(
    "data_parallel_copies",
    "How many percent of the step go into scatter, replicate, gather and reduce together?",
    unit="%",
    answer=None,
)
guess_copies

# %% [markdown]
# ## What changes
#
# The next cell shows what the library needs. (The lines after it are the course's: they say aloud
# when it does nothing.)

# %%
from bootcamp import script_diff

script_diff("dp")

# %% [markdown]
# The training loop stays as it is: all five phases hide in `model(inputs)` and `loss.backward()`.
# The next cell shows the same by hand. Find the five phases; `record_function` gives each a name
# in the profiler's trace.

# %%
script_diff("dp_by_hand")

# %% [markdown]
# - `inputs.chunk` cuts the batch. Only the inputs: the targets stay where the loss is computed.
# - `copy.deepcopy` copies the model, once for each share.
# - `threads.map` calls the replicas, each in a thread of the pool.
# - `torch.cat` puts the outputs together again. After it there is one loss, as in one process.
# - The last loop adds up the replicas' gradients and gives the sum to the model.
#
# Why a *sum* here, when data parallelism over ranks needs a *mean*? The loss is a mean over the
# **whole** batch. Each replica's gradient is its part of the gradient of that mean, so the parts
# add up. A rank that computes the mean over its own share divides by fewer samples, and dividing
# the sum by the number of ranks mends that.

# %% [markdown]
# ## Run it
#
# The next cell runs the replicas. It records step 5 with torch's profiler.

# %%
threads = {"replicas": REPLICAS, "cores_per_rank": CORES, "device": "cpu"}
by_hand = launch("dp_by_hand", 1, **threads, **same)
guess_speed.score(by_hand.samples_per_second)

# %% [markdown]
# ## Read the measurement
#
# ### The phases
#
# The next cell reads the named phases from the trace and draws them. Which one is the longest?

# %%
plots.show(dataparallel.phases(by_hand))

# %% [markdown]
# The next cell scores your second prediction.

# %%
from bootcamp.records import trace

seconds = trace.phases(by_hand.folder / "ranks" / "0.trace.json")
copies = sum(seconds[name] for name in ("scatter", "replicate", "gather", "reduce"))
guess_copies.score(100 * copies / by_hand.timeline()["seconds"])

# %% [markdown]
# The replicas are made anew in every step. It costs this much although the model is tiny: a copy
# of many small tensors is mostly Python. Scatter costs next to nothing here, as `chunk` makes views
# of one memory; between GPUs it would copy.
#
# The backward is the longest phase, and here two things must be told apart. PyTorch's autograd uses
# **one thread for each device**. Our replicas live on *one* device, the CPU, so one thread walks
# through both, one after the other. On GPUs each would have a thread of its own. That is not
# DataParallel's fault, so the next cell gives the backward to the pool's threads as well: it cuts
# the gradient of the outputs and starts each replica's backward in a thread.

# %%
from bootcamp import variant

whole = "loss = models.loss(torch.cat(outputs), targets)"
start = "list(threads.map(lambda output, grad: output.backward(grad), outputs, shares))"
changes = {
    whole: "gathered = torch.cat(outputs).detach().requires_grad_()\n"
    "loss = models.loss(gathered, targets)",
    "loss.backward()": f"loss.backward()\nshares = gathered.grad.chunk(args.replicas)\n{start}",
}
threaded = variant("dp_by_hand", "dp_backward_in_threads", changes)
script_diff(threaded, parent="dp_by_hand")

# %% [markdown]
# The next cell runs it and draws both. Compare the backward.

# %%
in_threads = launch(threaded, 1, **threads, **same)
plots.show(dataparallel.phases(by_hand, in_threads))

# %% [markdown]
# ### Against one process for each device
#
# DistributedDataParallel, **DDP**, is the subject of the next lesson. In short: one *process* for
# each device, each with a model and an optimizer of its own, and only gradients are exchanged. The
# next cell runs it on two CPU ranks and compares. Mind that a run "on 1 rank" with replicas uses as
# many cores as the two ranks of DDP.

# %%
ranks = launch("ddp", REPLICAS, device="cpu", **same)
plots.show(plots.throughput(alone, by_hand, in_threads, ranks))

# %% [markdown]
# These are the bars of one machine at one moment. Other work on it can shift them, so run the cells
# again before you believe a small difference. The next sections look at the reasons one by one;
# they hold on every machine. First, the next cell does the comparison with the real library, where
# there are GPUs for it.

# %%
if gpu_count() > 1:
    flags = {"steps": 15, "global_batch": 16 * gpu_count(), "quiet": True}
    library = launch("dp", 1, device="cuda", **flags)
    plots.show(plots.throughput(library, launch("ddp", gpu_count(), device="cuda", **flags)))
else:
    print("Fewer than two GPUs here: DataParallel itself can't be measured on this machine.")

# %% [markdown]
# ### First reason: threads share one interpreter
#
# Python runs one thread at a time. A thread needs a lock to run Python code, the **GIL** (global
# interpreter lock). It gives the lock away while it is inside a long operation of PyTorch, so
# operations can run side by side. What is between them cannot. The next cell shows a small program
# that measures this: the same work in two threads and in two processes.

# %%
from IPython.display import Markdown

from bootcamp.paths import SRC

program = SRC / "snippets" / "threads_and_processes.py"
Markdown(f"```python\n{program.read_text()}```")

# %% [markdown]
# The next cell runs it. In each panel, compare the two threads with the worker alone: 1.0× means
# side by side, 2.0× means one after the other.

# %%
import json

measured = json.loads(run_command(["python", str(program)]).splitlines()[0])
plots.show(dataparallel.workers(measured, cores=len(machine.cores())))

# %% [markdown]
# What to expect on a machine with two cores and nothing else to do:
#
# - **Python loop**: two threads take 2.0×, however many cores there are: each waits while the other
#   holds the lock. Two processes have two interpreters and two locks.
# - **Matrix products**: long operations without the lock. Threads do as well as processes.
# - **Replica step**: the forward and backward of this lesson's model, in between. In the forward,
#   Python calls hundreds of short operations. Each gives the lock away and has to get it back,
#   and the other thread wants it just as often. (PyTorch runs the backward without the lock.)
#
# On one core nothing runs side by side: expect about 2.0× everywhere. Other work on the machine
# takes cores too: if even the processes are far from 1.0×, run the cell again when it is quiet.
#
# On GPUs the threads compute nothing. They *order* the work, and ordering is Python. With eight
# GPUs one interpreter orders eight times as many operations as one GPU needs, one at a time, and
# the GPUs wait. The larger the operations, the less it shows. (Python can be built without the GIL
# since version 3.13, PEP 703, and supports that officially since 3.14, PEP 779. What follows
# remains.)

# %% [markdown]
# ### Second reason: what is copied, when, and through whom
#
# Now the bytes. The next cell computes what crosses between the devices in a step of this model,
# from the sizes of its parameters, inputs and outputs. DDP sends only gradients, by a *ring
# all-reduce*: each of *N* ranks sends 2(*N*-1)/*N* times their bytes (lesson 04 counts it).

# %% tags=["nbval-check-output"]
from bootcamp import Table
from bootcamp.train.models import gpt

size = alone.ranks[0]["parameter_bytes"]  # the gradients are as large
tokens = 32 * gpt.SIZES["tiny"]["context"]
inputs, outputs = 8 * tokens, 4 * tokens * gpt.VOCABULARY  # int64; float32
rows = []
for n in (2, 4, 8):
    row = {"devices": n, "replicate + reduce, MB": 2 * (n - 1) * size / 1e6}
    row["scatter + gather, MB"] = (n - 1) / n * (inputs + 2 * outputs) / 1e6
    rows.append(row | {"DDP, all ranks, MB": n * 2 * (n - 1) / n * size / 1e6})
Table(rows, "Computed: bytes that cross between devices in one step, 32 samples")

# %% [markdown]
# Look at the columns *replicate + reduce* and *DDP*: they are equal! (*N*-1) copies of the
# parameters go out and (*N*-1) sets of gradients come back; the ring sends as much in total. So the
# number of bytes is not the reason, apart from the outputs and their gradients, which DDP keeps at
# home. The reasons are:
#
# - **Through whom.** Everything begins or ends at device 0. In a ring each device carries an equal
#   share. The next cell compares the busiest device.
# - **When.** No replica can begin before its parameters have come, and the optimizer waits for the
#   last gradient. DDP sends gradients *while* the backward goes on, and parameters never.

# %% tags=["nbval-check-output"]
busiest = []
for row in rows:
    n = row["devices"]
    through_0 = row["replicate + reduce, MB"] + row["scatter + gather, MB"]
    row = {"devices": n, "DataParallel, device 0, MB": through_0}
    busiest.append(row | {"DDP, each rank, MB": 2 * 2 * (n - 1) / n * size / 1e6})
assert busiest[-1]["DDP, each rank, MB"] < busiest[-1]["DataParallel, device 0, MB"] / 4
Table(busiest, "Computed: bytes that one device sends and receives in one step")

# %% [markdown]
# Device 0 has more to carry with every device that is added. A rank of DDP never carries more than
# four times the gradients' bytes. (Between GPUs torch uses NCCL, where it can, to send the
# parameters and to add up the gradients. NCCL passes them on from device to device, which relieves
# device 0. The waiting remains, and so does the way of the outputs.)
#
# Our replicas on CPU cores all live in one memory, so there nothing crosses. What `deepcopy` costs
# is Python, and a copy from memory to memory.

# %% [markdown]
# ### Third reason: device 0 is full first
#
# Device 0 alone holds the optimizer's state. It also holds the outputs of the whole batch. The next
# cell adds up what a step puts on each device (not all of it at the same moment), from the bytes
# that the run in one process has recorded. The activations are divided by the number of devices.
# The outputs count twice: their log-softmax, which the loss keeps, and their gradient. The other
# devices get the gradient of their own share.


# %%
def held(rank, n, outputs):
    """Bytes by kind: on n devices of DataParallel, and on each of n ranks of DDP."""
    model = {"parameters": rank["parameter_bytes"], "gradients": rank["gradient_bytes"]}
    state = {"optimizer state": rank["optimizer_bytes"]}
    share = {"activations": (rank["activation_bytes"] - outputs) / n}  # the log-softmax is in it
    first = model | state | share | {"outputs": 2 * outputs}
    other = model | share | {"outputs": outputs / n}
    ddp = model | state | share | {"outputs": 2 * outputs / n}
    names = "DataParallel,\ndevice 0", "DataParallel,\neach other", "DDP,\neach rank"
    return dict(zip(names, (first, other, ddp), strict=True))


# %% [markdown]
# Your third prediction: how much more does device 0 hold than its neighbours?

# %%
guess_device_0 = predict(
    "data_parallel_device_0",
    "Four devices, 32 samples: how many times what each other device holds does device 0 hold?",
    unit="times",
    answer=None,
)
guess_device_0

# %% [markdown]
# The next cell draws it and scores your prediction. Which parts make the difference?

# %%
devices = held(alone.ranks[0], 4, outputs)
totals = [sum(kinds.values()) for kinds in devices.values()]
assert totals[0] == max(totals), "device 0 should hold the most"
note = "Four devices, 32 samples: by formula from the record of one process."
plots.show(dataparallel.memory_by_device(devices, note))
guess_device_0.score(totals[0] / totals[1])

# %% [markdown]
# The batch can grow only until *device 0* is full; on the others memory lies idle. This model tells
# 256 bytes apart. For a model of words, the outputs are far larger. The next cell computes them for
# the 50,257 tokens of GPT-2 (Radford et al., 2019).

# %% tags=["nbval-check-output"]
vocabulary, samples, context = 50_257, 32, 1024
gigabytes = 2 * 4 * samples * context * vocabulary / 1e9
print(f"{samples} samples of {context} tokens: {gigabytes:.1f} GB of outputs on device 0,")
print(f"with DDP on 4 ranks: {gigabytes / 4:.1f} GB on each.")

# %% [markdown]
# ### A published figure
#
# The documentation of Hugging Face Transformers has compared the two on two GPUs. The next cell
# shows what the course has of it, beside the two runs from above. Mind the column `from`: another
# model on other devices, so only ratios can be compared.

# %%
from bootcamp.theory.published import table as published_table

published = published_table("hf_dp_vs_ddp")
rows = [("threads on CPU cores", in_threads.samples_per_second, "measured here")]
rows.append(("DDP on CPU ranks", ranks.samples_per_second, "measured here"))
for row in published:
    link = "with" if row["nvlink"] == "Y" else "without"
    name = f"{row['mode']} on {row['gpus']} GPUs {link} NVLink"
    rows.append((name, float(row["samples_per_s"]), f"{row['source']}: {row['workload']}"))
speeds = {row["mode"]: float(row["samples_per_s"]) for row in published if row["nvlink"] == "Y"}
Table([dict(zip(("what", "samples/s", "from"), row, strict=True)) for row in rows])

# %% [markdown]
# The next cell prints the ratios.

# %%
ratio = ranks.samples_per_second / in_threads.samples_per_second
print(f"Here: DDP has {ratio:.2f} times the speed of replicas in threads.")
ratio = speeds["DDP"] / speeds["DP"]
print(f"Published: DDP has {ratio:.2f} times DataParallel's speed, on two GPUs with NVLink.")

# %% [markdown]
# ## Prove it
#
# The next cell proves that the library's script, and the replicas by hand, train what the CPU
# baseline trains: with both optimizers, every step's loss, the final parameters, the samples.

# %%
from bootcamp import check

DEVICE = "cuda" if gpu_count() else "cpu"  # DataParallel takes a GPU wherever there is one
proofs = check.prove("dp", 1, device=DEVICE)
proofs += check.prove("dp_by_hand", 1, device="cpu") + check.prove(threaded, 1)
for proof in proofs:
    assert not proof.failed, f"{proof.run.strategy} trained something else"
    print(f"{proof.run.strategy}, {proof.run.config['optimizer']}: the same training")

# %% [markdown]
# On fewer than two GPUs the proof of `dp` says only that the bare module trains well; the replicas
# by hand are what was proved. Two replicas cut a batch into equal shares. What about three? The
# next cell tries shares of 11, 11 and 10.

# %%
short = {"steps": 10, "global_batch": 32}
three = launch("dp_by_hand", 1, device="cpu", replicas=3, quiet=True, **short)
proof = check.same_training(three, check.baseline(optimizer="adamw", **short))
assert not proof.failed, "unequal shares changed the training"
proof

# %% [markdown]
# Unequal shares are no problem, because there is one loss over all outputs. (With DDP the mean of
# the ranks' means would be wrong; there every rank needs equally many samples.)
#
# ### Could the proof fail?
#
# Take only the first replica's gradients, and forget the others. The next cell trains that with
# AdamW. Would you see it in the curve?

# %%
add = "parameter.grad = sum(replica.grad for replica in copies)"
forgetful = variant("dp_by_hand", "dp_one_replica", {add: "parameter.grad = copies[0].grad"})
half = launch(forgetful, 1, quiet=True, **short)
baseline = check.baseline(optimizer="adamw", **short)
plots.show(plots.loss_curves(baseline, half))

# %% [markdown]
# The loss falls: half of the batch is a good batch too. The lower panel and the proof see it; the
# next cell prints what the proof rejects.

# %%
rejected = check.compare(half, baseline).failed
assert rejected, "the proof did not notice that a replica was forgotten"
Table([{key: row[key] for key in ("compared", "measured", "allowed")} for row in rejected])

# %% [markdown]
# ## Break it
#
# ### First: a saving that costs everything
#
# "The replicas are equal to the model anyway", thought somebody, "so I make them once." The next
# cell keeps the replicas of the first step and saves the phase. Look at the loss. What happens?

# %%
anew = "replicas = [copy.deepcopy(model) for _ in shards]"
once = variant("dp_by_hand", "dp_replicas_once", {anew: f"if step == 0:\n    {anew}"})
stale = launch(once, 1, quiet=True, **short)
assert check.compare(stale, baseline).failed, "replicas that are never renewed should not train"
plots.show(plots.loss_curves(baseline, stale))

# %% [markdown]
# <details><summary>What happened?</summary>
#
# The optimizer changes the parameters of *the model*. The kept replicas never hear of it: the
# forward runs with the parameters of the first step for ever, so the loss only follows the batches
# and never falls. Their gradients are not set to zero either, for `optimizer.zero_grad()` knows
# only the model. Nothing fails.
#
# DataParallel has to replicate in every step because only device 0 has an optimizer. DDP saves the
# phase in the right way: every rank has an optimizer, all apply the same averaged gradients, and so
# the copies stay equal without being sent.
# </details>
#
# ### Second: a model that forgets
#
# This model has a warm-up inside: it counts its forwards, and fades its outputs in over the first
# ten. The next cell writes down the lines.

# %%
build, finish = "model = models.build(args).to(device)", "run.finish()"
counting = f"""{build}
model.calls = 0
def fade_in(module, inputs, outputs):
    module.calls += 1
    return outputs * min(1, module.calls / 10)
model.register_forward_hook(fade_in)"""
counted = {build: counting, finish: f"print('calls:', model.calls)\n{finish}"}

# %% [markdown]
# The next cell adds them to the script of one process and to the one with replicas, and runs both.
# At the end they print the counter. What do you expect after 15 steps?

# %% tags=["nbval-check-output"]
outcome = {}
for script in ("gpu", "dp_by_hand"):
    fading = variant(script, f"{script}_fades_in", counted)
    outcome[script] = launch(fading, 1, device="cpu", steps=15, global_batch=32, quiet=True)
    print(script, outcome[script].output(0).splitlines()[-1])

# %% [markdown]
# Nothing failed here either. The next cell draws the two losses.

# %%
assert outcome["dp_by_hand"].losses[-1] > outcome["gpu"].losses[-1], "nothing was forgotten"
plots.show(plots.loss_curves(*outcome.values()))

# %% [markdown]
# <details><summary>What happened?</summary>
#
# A forward changes an attribute of the *replica*, and the replica is thrown away after the step.
# Every new replica counts from 0 to 1, so the model stays in the first tenth of its warm-up.
# `nn.DataParallel` does the same, and its documentation says so: "any updates to the running module
# in `forward` will be lost."
#
# With one exception. In the library the replica on device 0 shares parameters and **buffers** with
# the model, so what is changed *in place* there stays. This is how a BatchNorm keeps its running
# means under DataParallel: from device 0's share of the batch only. By hand we copy all replicas,
# so even those would be lost. In DDP each rank keeps its model, and nothing is lost.
#
# The cure, if it must be DataParallel: change state outside of `forward`.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: the missing reduce
#
# The replicas have computed, and the model learns nothing: the reduce is missing. The next cell
# writes your starting point.

# %%
from bootcamp import exercise

print(exercise.start("thread_replicas"))

# %% [markdown]
# Edit the file, save it, run the next cell. It runs *your* script with both optimizers and holds it
# against the baseline. `exercise.solution("thread_replicas")` shows the solution as a diff. For
# more: put the parallel backward in as well.

# %%
print(exercise.check("thread_replicas"))

# %% [markdown]
# ### Second: until device 0 is full
#
# With how many samples in the global batch is device 0 just not too full? The section "device 0 is
# full first" says what it holds: the state (parameters, gradients, optimizer state), its share of
# the activations, and the outputs of the *whole* batch, twice. Write the function in place of the
# three dots and run the cell. The solution is one step away: `exercise.solution("largest_batch")`.


# %%
def largest_batch(devices, memory, state, activations, outputs):
    """Samples in the largest global batch that fits with DataParallel; all sizes are in MB.

    memory: of each device. state: parameters, gradients and optimizer state together.
    activations, outputs: of one sample (the activations without the outputs).
    """
    ...


print(exercise.check("largest_batch", largest_batch))

# %% [markdown]
# For more: how large could the global batch be with DDP, where each rank has the outputs of its own
# share only?

# %% [markdown]
# ## When to use it and when not
#
# **Use DDP instead**, also on one machine: it is what PyTorch's documentation advises. It needs a
# launcher and a few more lines. The next cell shows which, for the day you move old code.

# %%
script_diff("ddp", parent="dp")

# %% [markdown]
# **DataParallel may do** for a quick look in a notebook, where starting processes is a nuisance:
# few GPUs, large operations, inference rather than training.
#
# **When you meet it in old code**
#
# - Is it doing anything? `len(model.device_ids)`, and the memory of *every* GPU, tell.
# - The model is in `model.module`, and a saved `state_dict` has `module.` before each name (as with
#   DDP). A bare model does not load it unless the prefix is removed.
# - The batch size is that of all devices together. In DDP each process has its own.
# - State that `forward` changes, and BatchNorm, behave as above.
# - If GPU 0 runs out of memory first, now you know why.
#
# ## Sources
#
# - PyTorch documentation: *torch.nn.DataParallel* (its warnings are the traps of this lesson),
#   *Use DistributedDataParallel instead of multiprocessing or DataParallel* (CUDA semantics).
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   arXiv:2006.15704.
# - Hugging Face Transformers documentation, page `perf_train_gpu_many`: the published figure
#   (`src/bootcamp/theory/published/hf_dp_vs_ddp.csv`).
# - Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019: the size of GPT-2's
#   vocabulary.
# - Gross, *PEP 703: Making the Global Interpreter Lock Optional in CPython*, 2023.
