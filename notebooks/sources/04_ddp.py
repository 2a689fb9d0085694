# %% [markdown]
# # 04 Distributed data parallel: one model, several ranks
#
# **75 minutes**, on any machine. Without two GPUs each rank is one CPU core, and the cells say so.
#
# After this lesson you can start ranks in the ways that people use, write data parallelism by hand
# and with `DistributedDataParallel`, prove that it trains the same model, say what it costs in
# memory and in bytes sent, tell when it is slower than one process, and diagnose its usual faults.

# %% [markdown]
# ## The question
#
# One process trains on one device, and you have several. Can they share the work, be faster, and
# still train *exactly* the same model?
#
# The next cell starts to load PyTorch in the background.

# %%
from bootcamp import Options, default_ranks, gpu_count, launch, run_command, warm_up

warm_up()

# %% [markdown]
# The next cell chooses what this lesson works with: a rank for every GPU if there are several, else
# for every core (at least two, at most eight), and 16 samples for each rank in a step.

# %%
RANKS = max(2, min(8, default_ranks()))
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
BATCH = 16 * RANKS
print(f"{RANKS} ranks on {'GPUs' if DEVICE == 'cuda' else 'CPU cores'}, {BATCH} samples a step.")

# %% [markdown]
# The next cell trains in one process. Its samples per second are what there is to beat.

# %%
ALONE = "gpu" if DEVICE == "cuda" else "cpu"
alone = launch(ALONE, ranks=1, device=DEVICE, steps=20, global_batch=BATCH)

# %% [markdown]
# ## The idea
#
# The loss of a step is a mean over the samples of the global batch, so its gradient is a mean over
# the samples too. Cut the batch into equal shares, one for each rank. Each rank computes the mean
# gradient of its share. The mean of these means is the gradient of the whole batch.
#
# So if all ranks begin with the same parameters, and average their **gradients** in every step,
# then every rank's optimizer makes the same change, and the parameters stay equal without being
# sent. That is **data parallelism**. It averages gradients, not parameters.
#
# The next cell draws one step. Look for what is equal on both ranks and what differs.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import ddp_overview

plots.show(ddp_overview.who_holds_what())

# %% [markdown]
# You will try out how ranks communicate, on ranks that stay and wait for cells. The next cell
# starts four of them in the background. They are CPU ranks, so that all machines show the same.

# %%
from bootcamp import live

live.start(ranks=4, device="cpu")

# %% [markdown]
# The words for it:
#
# - A **rank** is one process; ranks are numbered from 0. The **world size** is how many there are.
# - A **process group** is a set of ranks that have found each other and can communicate.
# - A **collective** is an operation that *all* ranks of a group must call, in the same order. Two
#   are needed here. **Broadcast** copies a tensor of one rank to all. **All-reduce** adds up one
#   tensor of each rank, and gives the sum to all of them.
# - A **backend** is the library that carries the bytes: *gloo* between CPU ranks, *NCCL* between
#   GPUs.
#
# ### Try them on small tensors
#
# A cell that begins with `%%ranks` runs on all four ranks, and shows what each of them prints, and
# its last value. They have found each other already, as one process group. In their cells there are
# `torch`, `dist` (short for `torch.distributed`), `rank` and `world_size`, and what one cell leaves
# is there in the next. The next cell makes a tensor on each rank. Look at how the four differ.

# %%
# %%ranks
mine = torch.tensor([10 * rank, 10 * rank + 1])
mine

# %% [markdown]
# The next cell broadcasts from rank 2. Look at whose numbers everybody has afterwards.

# %%
# %%ranks
copied = mine.clone()
dist.broadcast(copied, src=2)
copied

# %% [markdown]
# The next cell all-reduces. The result takes the place of what was there. Add up the first numbers
# in your head: does every rank have their sum?

# %%
# %%ranks
summed = mine.clone()
dist.all_reduce(summed)
summed

# %% [markdown]
# Three more collectives, which later lessons need. **All-gather** brings the tensors of all ranks
# to every rank, in order of rank, and adds nothing up. The next cell shows it. How many times as
# large as `mine` is the result?

# %%
# %%ranks
gathered = [torch.zeros_like(mine) for _ in range(world_size)]
dist.all_gather(gathered, mine)
torch.cat(gathered)

# %% [markdown]
# **Reduce-scatter** adds up as all-reduce does, but each rank gets only its own piece of the sum.
# In the next cell each rank brings four pieces: its rank, and 100, 200 or 300 more. Look at which
# sum has come to which rank.

# %%
# %%ranks
pieces = [torch.tensor([100 * piece + rank]) for piece in range(world_size)]
piece_of_sum = torch.zeros_like(pieces[0])
dist.reduce_scatter(piece_of_sum, pieces)
piece_of_sum

# %% [markdown]
# In **all-to-all** each rank sends a different piece to each rank. In the next cell the piece from
# rank 1 to rank 3 is the number 13. Look at the four results as a square: what has happened to its
# rows?

# %%
# %%ranks
sent = torch.tensor([10 * rank + to for to in range(world_size)])
received = torch.zeros_like(sent)
dist.all_to_all_single(received, sent)
received

# %% [markdown]
# If each rank keeps its piece of a sum, and then all pieces are gathered, what is that? The next
# cell compares: reduce-scatter and all-gather on one side, all-reduce on the other.

# %%
# %%ranks
put_together = [torch.zeros_like(piece_of_sum) for _ in range(world_size)]
dist.all_gather(put_together, piece_of_sum)
reduced = torch.cat(pieces)
dist.all_reduce(reduced)
torch.equal(torch.cat(put_together), reduced)

# %% [markdown]
# So an all-reduce is a reduce-scatter and an all-gather. Sharding, in lesson 07, lives on that.
#
# Now something that is broken on purpose: in the next cell only rank 0 calls the collective. What
# do you expect? The cell ends with an error.

# %% tags=["raises-exception"]
# %%ranks
if rank == 0:
    dist.all_reduce(mine)

# %% [markdown]
# Rank 0 waits for three ranks that have ended the cell. In a training script it would wait until
# the group's time-out. The notebook has seen that nobody can come, and has cut rank 0's
# connections, so its `all_reduce` raises. A process group that was cut is of no use, so all ranks
# met in a new one. The next cell shows that they work again, and still have their variables.

# %%
# %%ranks
again = mine.clone()
dist.all_reduce(again)
again

# %% [markdown]
# Try what you like in cells of your own; `%%ranks 0,2` runs a cell on two of the ranks, and the
# button ■ interrupts all. The next cell ends them, to leave the cores to the runs below;
# `live.start` makes new ones.

# %%
live.stop()

# %% [markdown]
# ## Starting the ranks
#
# Before any training, somebody must start the processes and tell each one its rank, the world size,
# and where to meet. You will see two ways, and an old one.
#
# ### One program spawns its ranks
#
# `torch.multiprocessing.spawn` starts children of the program itself. It passes the rank as the
# first argument; everything else, the world size too, is passed on by hand. The next cell shows a
# whole program.

# %%
from IPython.display import Markdown, display

from bootcamp.paths import SRC

SNIPPETS = SRC / "snippets"
Markdown(f"```python\n{(SNIPPETS / 'start_with_spawn.py').read_text()}```")

# %% [markdown]
# The next cell runs it. Look at the sum: rank 0 and rank 1 each gave their number, and both know
# the result.

# %%
print(run_command(["python", str(SNIPPETS / "start_with_spawn.py"), "--ranks", "2"]))

# %% [markdown]
# Here the ranks meet at a file. Many programs let them meet at a fixed port instead
# (`MASTER_PORT="12355"`), and then two of them on one machine collide. `spawn` knows one machine
# only. Each child imports the program again, which is why the last lines stand under
# `if __name__ == "__main__"`.
#
# ### torchrun starts the whole script once for each rank
#
# With `torchrun` the script is written as if for one rank. Who it is stands in environment
# variables, and `init_process_group` reads them. The next cell shows such a script and runs it.

# %%
display(Markdown(f"```python\n{(SNIPPETS / 'start_with_torchrun.py').read_text()}```"))
TORCHRUN = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # what torchrun sets itself, with a warning
print(run_command([*TORCHRUN, str(SNIPPETS / "start_with_torchrun.py")], env=ONE_THREAD))

# %% [markdown]
# `torchrun` is short for `python -m torch.distributed.run`. Look at the variables: `LOCAL_RANK` is
# the rank within this machine and chooses the GPU. `RANK` counts over all machines: torchrun also
# starts ranks on several of them, and can restart them after a failure. The scripts of this course
# are written for it. `launch` sets the same variables, but (on Linux) forks each rank from a
# process that has PyTorch loaded, which saves the seconds that you have just waited.
#
# ### torch.distributed.launch, which torchrun replaced
#
# Older programs are started by `python -m torch.distributed.launch`. The next cell does so with the
# same script.

# %%
old = ["python", "-m", "torch.distributed.launch", *TORCHRUN[3:]]
try:
    print(run_command([*old, str(SNIPPETS / "start_with_torchrun.py")], env=ONE_THREAD))
except Exception as error:
    print(f"This version of torch no longer has it:\n{error}")

# %% [markdown]
# Look at the warning, and at the arguments: the old launcher adds `--local-rank` to the script's
# command line, and a script that does not know this flag fails. To move such a script to torchrun,
# read `os.environ["LOCAL_RANK"]` instead.

# %% [markdown]
# ## Predict
#
# Two questions before the run. First the speed: write a number after `answer=`.

# %%
from bootcamp import predict

guess_speed = predict(
    "ddp_speed",
    f"One process trains {alone.samples_per_second:,.0f} samples/s. "
    f"How many do {RANKS} ranks train, all together?",
    unit="samples/s",
    answer=None,
)
guess_speed

# %% [markdown]
# Now the communication. The gradients of the model are as large as its parameters, which the next
# cell takes from the record of the run above.

# %%
gradient_megabytes = alone.ranks[0]["gradient_bytes"] / 1e6
guess_bytes = predict(
    "ddp_bytes",
    f"The gradients are {gradient_megabytes:.2f} MB. "
    f"How many MB does each of {RANKS} ranks send in a step, to average them?",
    unit="MB",
    answer=None,
)
guess_bytes

# %% [markdown]
# ## What changes
#
# ### By hand
#
# The idea needs no library. The next cell shows what is added to the script of one process. Find
# the four places: joining the group, equal parameters at the start, averaged gradients after the
# backward, and the loss.

# %%
from bootcamp import script_diff

script_diff("ddp_by_hand")

# %% [markdown]
# - `init_process_group` waits until all ranks have come. `timeout` is how long a collective may
#   wait for a rank.
# - `data.Batches(args, rank, world)` already stood there: now the rank and the world size are real,
#   and each rank gets its share of the batch.
# - `broadcast` sends rank 0's parameters to all.
# - `all_reduce` *sums*. The line after it makes the mean.
# - `with run.step(step):` encloses what the record times, the training alone.
# - The last collective averages the loss, for the record only. Without it rank 0 would write down
#   the loss of its own share. `async_op=True` returns a handle instead of waiting; the record waits
#   on it after the next step.
#
# ### With the library
#
# `DistributedDataParallel`, DDP for short, does the broadcast when it wraps the model, and the
# averaging within `loss.backward()`. The next cell shows the difference to the script by hand.

# %%
script_diff("ddp", parent="ddp_by_hand")

# %% [markdown]
# Inside, DDP attaches a hook to every parameter, which runs when the parameter's gradient is ready.
# It gathers gradients in **buckets**, and starts the all-reduce of a bucket when it is full, while
# the backward goes on. (It also copies buffers, such as the running means of a BatchNorm, from rank
# 0 before each forward; this model has none.) The next cell draws the difference.

# %%
plots.show(ddp_overview.overlap())

# %% [markdown]
# The backward goes from the last layer to the first, so DDP fills its buckets in that order. By
# default a bucket takes up to 25 MiB (`bucket_cap_mb`), the first one 1 MiB, so that communication
# begins early.

# %% [markdown]
# ## Run it
#
# The next cell runs both scripts. Each records step 10 with torch's profiler, for a look at it
# later.

# %%
same = {"device": DEVICE, "steps": 20, "global_batch": BATCH, "trace_step": 10}
by_hand = launch("ddp_by_hand", ranks=RANKS, **same)
library = launch("ddp", ranks=RANKS, **same)

# %% [markdown]
# The next cell compares the three runs and scores your first prediction. Look at `samples/s`.

# %%
from bootcamp import runs

display(runs.table(alone, by_hand, library))
guess_speed.score(library.samples_per_second)

# %% [markdown]
# ## Read the measurement
#
# ### Loss
#
# The next cell draws the loss of the three runs. Look at the lower panel: it shows the differences,
# which are rounding.

# %%
plots.show(plots.loss_curves(alone, by_hand, library))

# %% [markdown]
# ### Speed
#
# The next cell draws the speeds. Compare the two scripts that use several ranks: they send the same
# gradients.

# %%
plots.show(plots.throughput(alone, by_hand, library))

# %% [markdown]
# On CPU cores the script by hand is clearly the slower one, often slower than one process. Why?
# Look at when it communicates: the next cell draws the traced step of both.

# %%
plots.show(plots.timeline(by_hand))
plots.show(plots.timeline(library))

# %% [markdown]
# By hand, communication begins when the backward has ended, and nothing overlaps. And it is cut
# into many small pieces. The next cell counts the all-reduces that rank 0 called in that step.

# %%
import json


def all_reduces(run):
    trace = json.loads((run.folder / "ranks" / "0.trace.json").read_text())
    return sum(event["name"] == "c10d::allreduce_" for event in trace["traceEvents"])


counts = {run.strategy: all_reduces(run) for run in (by_hand, library)}
assert counts["ddp"] < counts["ddp_by_hand"], "DDP's buckets did not gather any gradients"
counts

# %% [markdown]
# By hand there is one all-reduce for each parameter tensor, in DDP one for each bucket. Each call
# has a fixed cost, however few bytes it carries: the ranks must meet. Many small calls pay it many
# times.
#
# Would more, smaller buckets overlap better? The next cell caps buckets at 0.2 MiB. Look for the
# black bars, where both go on at once, and then at the speeds.

# %%
from bootcamp import variant

wrap = "model = DistributedDataParallel(model)"
smaller = {wrap: "model = DistributedDataParallel(model, bucket_cap_mb=0.2)"}
small_buckets = launch(variant("ddp", "ddp_small_buckets", smaller), ranks=RANKS, **same)
plots.show(plots.timeline(small_buckets))
runs.table(library, small_buckets)

# %% [markdown]
# More overlap is not always more speed. On CPU ranks the threads that communicate need the same
# core as the backward, so overlapping saves little, and each bucket pays the fixed cost. (A small
# difference between two runs is mere chance: run the cell again.) On GPUs the communication runs
# beside the computation. It takes some of the GPU's multiprocessors and of its memory bandwidth,
# far less than it hides; there overlap is what makes DDP scale. Large models fill many buckets of
# the default size.
#
# And what does the record cost? Its clock runs only for what `with run.step(step):` encloses. The
# loss is averaged behind it: with `async_op=True` the call returns at once, and the record waits
# for the result when the next step has ended. The next cell runs the loop without that all-reduce,
# so that rank 0 records the loss of its own share. Compare the speeds.

# %%
average = "run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))"
bare = {"mean_loss = loss.detach() / world": "", average: "run.loss(loss.detach())"}
no_average = launch(variant("ddp", "ddp_no_average", bare), ranks=RANKS, **same)
runs.table(library, no_average)

# %% [markdown]
# The two differ by chance only. A blocking `dist.all_reduce(mean_loss)` and an `.item()` within the
# step would not be free: every rank would wait for the slowest one twice in each step, and a GPU
# could not be given the next step's work before this one's has ended.
#
# The next cell predicts a step of a large model, where communication takes nothing away. Move the
# bucket cap to either end: with one bucket nothing overlaps; what do small ones gain on a slower
# link, and what do they cost at a high latency? Choose GPT tiny to hold the model against the
# measured time lines above.

# %%
from bootcamp import simulators

controls = simulators.ddp_step()

# %% [markdown]
# ### Bytes sent
#
# How does an all-reduce work? If every rank sent its gradients to every other, the bytes would grow
# with the number of ranks. The usual algorithm for large tensors is the **ring**. The next cell
# simulates one and draws it. Follow one piece from left to right.

# %%
plots.show(ddp_overview.ring(ranks=3))

# %% [markdown]
# The next cell has the same simulation one step at a time, and other collectives too. Move `step`
# to its end and follow one chunk, which is such a piece. Then choose 8 ranks and the **tree**, in
# which sums go up from rank to rank and the result comes down again: does it take fewer steps than
# the ring, and which rank has to send most?

# %%
controls = simulators.collective()

# %% [markdown]
# With *N* ranks, each sends *N*-1 pieces to add up and *N*-1 to pass on, and a piece is 1/*N* of
# the gradients. So a rank sends **2(*N*-1)/*N*** times the gradients' bytes. The next cell computes
# that for some *N*.

# %% tags=["nbval-check-output"]
from bootcamp import Table

Table([{"ranks": n, "sent by a rank / gradients": 2 * (n - 1) / n} for n in (1, 2, 3, 4, 8, 64)])

# %% [markdown]
# It never reaches 2, however many ranks there are: the bytes of a rank hardly grow. The number of
# steps of the ring does grow; lesson 04b shows what that costs.
#
# Is it true? The next cell counts. Linux keeps count of what each connection has sent, and each
# rank's record holds the sum. CPU ranks are used for it on every machine, since NCCL's way past
# the network is not in that count; more ranks than cores do no harm to counting.

# %%
few = {"device": "cpu", "steps": 6, "global_batch": 24, "quiet": True}
counted = [launch("ddp", ranks=n, **few) for n in (2, 3, 4)]
for run in counted:
    sent = run.ranks[0]["sent_bytes_per_step"]  # None where the system does not count
    assert sent is None or abs(sent / run.predicted_sent_bytes_per_step - 1) < 0.05, "not a ring"
plots.show(plots.sent_bytes(*counted))

# %% [markdown]
# Counted and formula agree within a few percent; the rest is the loss, and what the protocol adds.
# The next cell scores your second prediction: by the count where there is one, else by the formula.

# %%
sent = library.ranks[0]["sent_bytes_per_step"] if DEVICE == "cpu" else None
guess_bytes.score((sent or library.predicted_sent_bytes_per_step) / 1e6)

# %% [markdown]
# ### Memory
#
# The next cell draws what fills the memory of one process and of each rank. Look for the one part
# that gets smaller.

# %%
plots.show(plots.memory(alone, library))

# %% [markdown]
# Every rank holds *all* parameters, *all* gradients and the *whole* optimizer state: a full
# **replica**. Only the activations shrink, because each rank has fewer samples. So DDP does not
# help with a model that is too large for one device. (Not counted in the figure: DDP's buckets,
# another copy of the gradients, unless it is told `gradient_as_bucket_view=True`.)

# %% [markdown]
# ## Prove it
#
# The next cell holds DDP, and the script by hand, against the **baseline**: the same training in
# one process on one CPU core. It does so with two optimizers, and compares every step's loss, the
# final parameters, and which samples each rank trained on.

# %%
from bootcamp import check

proofs = [
    proof
    for script in ("ddp", "ddp_by_hand")
    for proof in check.prove(script, RANKS, device=DEVICE)
]
for proof in proofs:
    assert not proof.failed, f"{proof.run.strategy} trained something else"
display(proofs[0])
print(f"{len(proofs)} proofs, each with rows like these, none failed.")

# %% [markdown]
# The ranks never send parameters after the start. The next cell compares them at the end of DDP's
# run: how far is each rank's model from rank 0's?

# %%
ends = [rank["fingerprint_final"] for rank in library.ranks]
apart = [check.distance(ends[0], end) for end in ends]
assert max(apart) == 0, "the ranks' parameters have drifted apart"
apart

# %% [markdown]
# Zero, to the last bit: all ranks got the same averaged gradients and did the same arithmetic.
#
# ### A proof that can't fail proves nothing
#
# Why two optimizers? Forget the division: the gradients are now *summed*, so they are as many times
# too large as there are ranks. The next cell takes that line out and trains with AdamW.

# %%
summed = variant("ddp_by_hand", "ddp_summed", {"parameter.grad /= world": ""})
kept = check.settings(RANKS)
baselines = {name: check.baseline(optimizer=name, **kept) for name in ("adamw", "sgd")}
wrong = {
    name: launch(summed, RANKS, device=DEVICE, optimizer=name, quiet=True, **kept)
    for name in baselines
}
plots.show(plots.loss_curves(baselines["adamw"], wrong["adamw"]))

# %% [markdown]
# In the upper panel the curves lie on each other: who looks at a loss curve sees nothing wrong. The
# next cell shows the same with SGD.

# %%
plots.show(plots.loss_curves(baselines["sgd"], wrong["sgd"]))

# %% [markdown]
# AdamW divides a running mean of the gradient by the root of a running mean of its square. So a
# constant factor cancels, but for a small constant in the denominator. SGD takes steps as large as
# the gradient says. The next cell puts numbers on it.

# %%
rows = []
for name, run in wrong.items():
    proof = check.compare(run, baselines[name])
    assert proof.failed, f"the proof did not notice summed gradients with {name}"
    rows += [{"optimizer": name, **row} for row in proof.failed]
columns = ("optimizer", "compared", "measured", "allowed")
Table([{column: row[column] for column in columns} for row in rows], "What the proof rejects")

# %% [markdown]
# The tolerance is tight enough to reject both. But compare the losses' differences: with AdamW it
# is so small that a somewhat looser tolerance would let it pass, and the eye does. With SGD nobody
# can miss it.

# %% [markdown]
# ## Talk less: gradient accumulation and `no_sync`
#
# If the activations of a rank's share do not fit into memory, cut the share into **micro-batches**:
# forward and backward for each, gradients add up, one optimizer step at the end. Under plain DDP
# every backward averages, though only the sum matters. `model.no_sync()` switches that off for all
# but the last micro-batch. The next cell shows a script that does it.

# %%
accumulate = SNIPPETS / "ddp_accumulate.py"
script_diff(accumulate, parent="ddp")

# %% [markdown]
# Two details matter. Each micro-batch's loss is divided by their number, so that the sum of the
# gradients is the mean over the share. And the *forward* stands within `no_sync` too: DDP decides
# there. The next cell runs it with and without `no_sync`, on two CPU ranks, where bytes are
# counted.

# %%
line = "synchronise = nullcontext() if last else model.no_sync()"
each_time = variant(accumulate, "ddp_accumulate_each", {line: "synchronise = nullcontext()"})
two = {"ranks": 2, "device": "cpu", "steps": 6, "global_batch": 32, "micro_batches": 4}
accumulated = [launch(script, quiet=True, **two) for script in (accumulate, each_time)]
plots.show(plots.sent_bytes(*accumulated))

# %% [markdown]
# Compare the counted bytes of the two: without `no_sync` there is one all-reduce of all gradients
# for each micro-batch. The next cell proves that the result is the same both times, and that the
# bytes differ by the number of micro-batches.

# %%
for run in accumulated:
    print(check.same_training(run, check.baseline(steps=6, global_batch=32)), "\n")
once, often = (run.ranks[0]["sent_bytes_per_step"] for run in accumulated)
if once:
    assert abs(often / once - 4) < 0.2, "no_sync did not save the all-reduces that it should"
    print(f"Without no_sync a rank sends {often / once:.2f} times as much.")

# %% [markdown]
# ## When it is slower than one process
#
# Averaging costs time in every step, however little there is to compute. So a small model with a
# small batch may be *slower* on several ranks. The toy MLP is such a model. The next cell trains it
# in one process, then asks for your prediction.

# %%
mlp = {"model": "mlp", "device": DEVICE, "steps": 30, "quiet": True}
mlp_alone = launch(ALONE, ranks=1, global_batch=BATCH, **mlp)
guess_mlp = predict(
    "ddp_mlp",
    f"In one process: {mlp_alone.samples_per_second:,.0f} samples/s. With {RANKS} ranks?",
    unit="samples/s",
    answer=None,
)
guess_mlp

# %% [markdown]
# The next cell runs it on all ranks, scores, and draws a step. Look at how the time is divided.

# %%
mlp_ranks = launch("ddp", ranks=RANKS, global_batch=BATCH, trace_step=20, **mlp)
print(guess_mlp.score(mlp_ranks.samples_per_second))
plots.show(plots.timeline(mlp_ranks))

# %% [markdown]
# The last block of communication averages one number, the loss. On CPU ranks it takes about as long
# as the gradients do: what a small exchange costs is the meeting, not the bytes.
#
# The larger the batch, the more there is to compute for the same gradients. The next cell repeats
# both runs with larger batches. Look for where the curve crosses 1, or comes near it.

# %%
pairs = [(mlp_alone, mlp_ranks)]
for samples in (64, 256, 1024):
    batch = {"global_batch": samples * RANKS, **mlp}
    pairs.append((launch(ALONE, ranks=1, **batch), launch("ddp", ranks=RANKS, **batch)))
plots.show(ddp_overview.speed_up_by_batch(pairs))

# %% [markdown]
# The next cell shows why. If the arithmetic divides perfectly, a step on *N* ranks takes 1/*N* of
# one process's time. What is measured beyond that is the price of working together.

# %%
rows = []
for one, many in pairs:
    milliseconds = 1e3 * one.seconds_per_step, 1e3 * many.seconds_per_step
    row = {"global batch": one.config["global_batch"], "one process, ms": milliseconds[0]}
    row |= {"of that 1/N": milliseconds[0] / RANKS, f"{RANKS} ranks, ms": milliseconds[1]}
    rows.append(row | {"price, ms": milliseconds[1] - milliseconds[0] / RANKS})
Table(rows)

# %% [markdown]
# Compare the columns. The arithmetic grows with the batch. The price does not, apart from what
# other programs on this machine and its caches add: the gradients are equally large for any batch.
# So data parallelism pays off when each rank computes much for each byte of gradient.
#
# ### More ranks, or more threads, than cores
#
# More CPU ranks than cores take turns, so they can't be faster. More threads than cores are worse:
# if each rank's library starts a thread for every core, the threads of one rank keep those of
# another waiting. That is why torchrun sets `OMP_NUM_THREADS=1`. The next cell runs ranks with one
# core each, then twice as many, then two ranks that use all cores of this machine. The labels say
# where there are more than cores.

# %%
from bootcamp import machine

cores = len(machine.cores())
cpu = {"device": "cpu", "steps": 5, "global_batch": BATCH, "quiet": True}
polite = launch("ddp", ranks=RANKS, **cpu)
crowded = launch("ddp", ranks=2 * RANKS, **cpu)
greedy = launch("ddp", ranks=2, cores_per_rank=cores, **cpu)
table = runs.table(polite, crowded, greedy)
for row, run in zip(table.rows, (polite, crowded, greedy), strict=True):
    row["run"] += f", threads per rank: {run.config['cores_per_rank']}"
table

# %% [markdown]
# ## Does it scale?
#
# Two questions hide in this one. **Strong scaling**: the same global batch on more ranks; is it
# done sooner? **Weak scaling**: the same batch *per rank*; are more samples done in the same time?
# **Speed-up** is the samples per second of *N* ranks divided by those of one. **Efficiency** is the
# speed-up divided by *N*.
#
# The next cell measures strong scaling. Look at the efficiency on the right.

# %%
numbers = [n for n in range(1, RANKS + 1) if RANKS % n == 0]
run_on = {"device": DEVICE, "steps": 20, "quiet": True}
strong = [
    launch(ALONE if n == 1 else "ddp", ranks=n, global_batch=BATCH, **run_on) for n in numbers
]
plots.show(plots.scaling(*strong, kind="strong"))

# %% [markdown]
# The next cell measures weak scaling: 16 samples for each rank. With all ranks that is the run from
# above.

# %%
fewer = numbers[:-1]
weak = [launch(ALONE if n == 1 else "ddp", ranks=n, global_batch=16 * n, **run_on) for n in fewer]
plots.show(plots.scaling(*weak, strong[-1], kind="weak"))

# %% [markdown]
# With strong scaling each rank has less to compute, and the price stays, so efficiency falls with
# the number of ranks. With weak scaling the work of a rank stays the same, and efficiency holds
# longer. On CPU ranks the cores also share caches and memory bandwidth, and whatever else runs on
# the machine disturbs the measurement: if a figure looks odd, run its cell again. With one core
# there is nothing to measure, and the figure says which run it left out.
#
# Be fair when you compare. Ranks that have one core each have a rival: one process that computes
# with all cores. The next cell measures it.

# %%
threads = launch("cpu", cores_per_rank=cores, global_batch=BATCH, steps=8, quiet=True)
kind = "GPUs" if DEVICE == "cuda" else "CPU cores"
print(f"One process on all {cores} CPU cores: {threads.samples_per_second:,.0f} samples/s.")
print(f"{RANKS} ranks on {RANKS} {kind}: {strong[-1].samples_per_second:,.0f} samples/s.")

# %% [markdown]
# ## The data: DataLoader, DistributedSampler, and its epoch
#
# The course's scripts draw batches that depend on the seed and the step alone, which makes proofs
# easy. Most programs read a dataset with a `DataLoader`. Then a `DistributedSampler` gives each
# rank its share of every **epoch**, one pass through the dataset. The next cell shows how that
# changes the DDP script.

# %%
loading = SNIPPETS / "ddp_with_dataloader.py"
script_diff(loading, parent="ddp")

# %% [markdown]
# `batch_size` is a *rank's* batch: the global batch divided by the world size. The sampler shuffles
# by a seed and the epoch, the same on all ranks, and each rank takes every *N*-th of the order.
# `set_epoch` tells it which epoch it is. The dataset is short here, 128 samples, so that a few
# steps make an epoch. The next cell defines how to read from the record which samples a run trained
# on.


# %%
def epochs_of(run, steps=4):
    """For each epoch a list for each rank: the ids of its samples."""
    starts = range(0, len(run.steps), steps)
    return [[sum(rank["sample_ids"][i : i + steps], []) for rank in run.ranks] for i in starts]


# %% [markdown]
# The next cell trains three epochs on two ranks. Look at how each epoch begins.

# %% tags=["nbval-check-output"]
data_flags = {"ranks": 2, "device": "cpu", "steps": 12, "global_batch": 32, "quiet": True}
loaded = epochs_of(launch(loading, samples=128, **data_flags))
for epoch, (first, second) in enumerate(loaded):
    assert set(first) | set(second) == set(range(128)), "a sample was left out"
    assert not set(first) & set(second), "two ranks trained on the same sample"
    print(f"epoch {epoch}: rank 0 begins with {first[:5]}, rank 1 with {second[:5]}")

# %% [markdown]
# Each epoch has another order, and together the ranks see each sample once. What if the dataset
# does not divide by the ranks? The next cell takes one sample away.

# %% tags=["nbval-check-output"]
uneven = epochs_of(launch(loading, samples=127, **data_flags))
for epoch, ranks in enumerate(uneven):
    ids = sum(ranks, [])
    twice = [i for i in set(ids) if ids.count(i) > 1]
    print(f"epoch {epoch}: {len(ids)} samples trained, {len(set(ids))} different, twice: {twice}")

# %% [markdown]
# The sampler repeats samples until all ranks have equally many, for each must take part in every
# collective. (`drop_last=True` leaves some out instead.) When you *evaluate* with it, the repeated
# samples count twice.
#
# ### Workers
#
# With `num_workers=0` the training process reads each batch itself, and nothing is computed
# meanwhile. Workers are processes that read ahead. The next cell measures how long a step waits for
# its batch if reading takes a while (reading and training are sleeps here, so that the effect is
# the same on every machine).

# %%
waits = []
alone_quietly = {"ranks": 1, "device": "cpu", "quiet": True}
for workers in (0, 1, 2):
    run = launch(SNIPPETS / "loader_workers.py", workers=workers, **alone_quietly)
    waits.append(json.loads(run.output().splitlines()[0]))
assert waits[2]["waited_seconds_per_batch"] < waits[0]["waited_seconds_per_batch"] / 2
Table([{"workers": w["workers"], "waits, ms": 1e3 * w["waited_seconds_per_batch"]} for w in waits])

# %% [markdown]
# Reading a batch takes twice as long as training on it here: one worker reads during the training
# and still leaves a wait, two keep up. Mind that `num_workers` is *per rank*: with 8 ranks and 4
# workers, 40 processes run on the machine. If reading is computing (decoding, augmenting), workers
# need cores of their own, and on CPU ranks they take them from the training.
#
# ### Pinned memory
#
# Memory that is **pinned** is never moved or swapped out by the operating system, so a GPU can
# fetch from it while the CPU goes on. `pin_memory=True` makes the loader put batches there, and
# `.to(device, non_blocking=True)` makes use of it. Without a GPU there is nothing to gain, so the
# script pins only where one is.

# %% [markdown]
# ## A larger batch, and the learning rate
#
# DDP is often used with a fixed batch *per rank*: more ranks, larger global batch, fewer steps for
# the same samples. The proof above says that *N* ranks train just as one process with the whole
# batch does. So the question is not about DDP: what does a larger batch do to the training?
#
# The **linear scaling rule** (Goyal et al., 2017): when the batch is *k* times as large, multiply
# the learning rate by *k*. Where the gradient changes little, one step of *k* times the rate goes
# where *k* steps went. At the very start the gradient changes fast, so they begin with a small rate
# and raise it step by step: **warm-up**.
#
# The next cell prepares the experiment: the toy MLP in one process with SGD, the same number of
# samples for each setting, two seeds.

# %%
zero_grad = "optimizer.zero_grad()"
warm_up_rate = "optimizer.param_groups[0]['lr'] = args.lr * min(1, (step + 1) / 20)"
warm = variant("cpu", "cpu_warm_up", {zero_grad: f"{warm_up_rate}\n{zero_grad}"})


def train(script, batch, rate, samples=25_600):
    flags = {"model": "mlp", "optimizer": "sgd", "global_batch": batch, "lr": rate}
    flags |= {"device": "cpu", "steps": samples // batch, "quiet": True}
    return [launch(script, ranks=1, seed=seed, **flags) for seed in (0, 1)]


# %% [markdown]
# The next cell trains with a batch of 32, and in three ways with one of 256. Compare the curves at
# the same number of samples.

# %%
curves = {
    "batch 32, rate 0.05": train("cpu", 32, 0.05),
    "batch 256, rate 0.05": train("cpu", 256, 0.05),
    "batch 256, rate 0.05 × 8": train("cpu", 256, 0.05 * 8),
    "batch 256, rate 0.05 × 8, warm-up": train(warm, 256, 0.05 * 8),
}
plots.show(ddp_overview.loss_by_samples(curves))

# %% [markdown]
# The next cell gives the numbers: the mean loss of the last steps, and the highest loss of any
# step. A model that knows nothing gives all 256 possible bytes the same probability: its loss is
# ln 256. A loss that is clearly higher means that a step went too far.

# %%
import math
from statistics import mean

rows = []
for name, seeds in curves.items():
    last = len(seeds[0].steps) // 16
    row = {"setting": name, "optimizer steps": len(seeds[0].steps)}
    row |= {f"loss, seed {seed}": mean(run.losses[-last:]) for seed, run in enumerate(seeds)}
    rows.append(row | {"highest": max(max(run.losses) for run in seeds)})
assert rows[0]["loss, seed 0"] < rows[1]["loss, seed 0"], "here the small batch should be ahead"
Table(rows, f"ln 256 = {math.log(256):.3f}")

# %% [markdown]
# With the same rate the large batch lags behind: it has made an eighth of the steps, each of about
# the same length. The scaled rate makes up for much of that early on. Does the column `highest`
# tell you what the warm-up is for?
#
# The rule is a rule of thumb. Goyal et al. found it to hold for ResNet-50 up to batches of 8,192
# images, and to fail beyond. For Adam, theory suggests a factor of √*k* (Malladi et al., 2022). How
# large a useful batch is depends on the data and on how far the training has come (McCandlish et
# al., 2018). So measure: loss against *samples*, and against *seconds*.

# %% [markdown]
# ## The end of a run: why scripts hang when all is done
#
# A process group should be ended by `destroy_process_group()`. If an object that uses the group,
# such as a DDP model, is still alive then and is freed later, the process may wait for ever: while
# Python frees the group, it waits for a thread of gloo to end, and that thread waits for Python.
# This is a race, so it happens only sometimes. The next cell shows a script that runs it up to 20
# times.

# %%
Markdown(f"```python\n{(SNIPPETS / 'teardown.py').read_text()}```")

# %% [markdown]
# The next cell defines how to read where each rank stood: the launcher asks all ranks for their
# stacks when a run hangs, and keeps the answers.


# %%
def where_ranks_stand(run, script):
    """Print the line of the script that each rank was in when the launcher asked."""
    lines = script.read_text().splitlines()
    for said in run.summary["error"]["traceback"].splitlines():
        if said.startswith("rank"):
            print(said)
        elif script.name in said:
            number = int(said.split("line ")[1].split()[0])
            print(f"    line {number}: {lines[number - 1].strip()}")


# %% [markdown]
# The next cell starts the script and gives it 6 seconds; without a hang it needs less than one. In
# which line does a rank stand?

# %%
teardown = SNIPPETS / "teardown.py"
ends = {"ranks": 2, "device": "cpu", "quiet": True}
stuck = launch(teardown, options=Options(hang_seconds=6), raises=False, **ends)
print(stuck.output(0).count("destroyed"), "process groups were made and destroyed.")
if stuck.status == "ok":
    print("No rank was unlucky this time. Run the cell again.")
else:
    where_ranks_stand(stuck, teardown)

# %% [markdown]
# A `del` should take no time at all. (The other rank waits for it in the next `new_group`.) The
# cure is to free what uses the group before the group is destroyed. The next cell does that.

# %%
destroy = "dist.destroy_process_group(group)"
in_order = variant(teardown, "teardown_in_order", {destroy: f"model = loss = None\n{destroy}"})
ended = launch(in_order, **ends)
assert ended.status == "ok", "freeing the model first did not help"
print(ended.output(0).splitlines()[-1])

# %% [markdown]
# In a training script the model is a global variable, and Python frees it at the very end, after
# `destroy_process_group()`. The course's scripts do not run into this: after `run.finish()` a
# process leaves by `os._exit` as soon as its script ends, and frees nothing. In a script of your
# own, `del model` (and whatever refers to it) before `destroy_process_group()`.

# %% [markdown]
# ## Break it
#
# ### First: the ranks disagree
#
# "Only rank 0 writes the loss, so only rank 0 needs its mean", thought somebody, and put an `if`
# before the last collective. The next cell runs that, with a time-out of 3 seconds. (The default of
# torch is 10 minutes with NCCL, 30 minutes with other backends.) We use CPU ranks, so that the
# messages are the same on all machines.

# %%
broken = "if rank == 0:\n    dist.all_reduce(mean_loss)\nrun.loss(mean_loss)"
only_0 = variant("ddp", "ddp_only_rank_0", {average: broken})
short = {"device": "cpu", "steps": 6, "global_batch": 32, "quiet": True, "raises": False}
late = launch(only_0, ranks=2, timeout=3, **short)
assert late.status == "failed", "ranks that disagree should not train on"
print(late.summary["error"]["message"])

# %% [markdown]
# This is nearly all that torch says: somebody waited too long. For whom, and in which collective?
# The next cell runs it again with a long time-out, so that the launcher notices first: after 5
# seconds without a step. Which rank waits for what?

# %%
hung = launch(only_0, ranks=2, timeout=100, options=Options(hang_seconds=5), **short)
assert hung.summary["error"]["kind"] == "hang", "the launcher did not notice the hang"
where_ranks_stand(hung, only_0)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 waits in the all-reduce of the loss. Rank 1 has skipped it: it has done one step more, and
# waits for rank 0 in the forward of the next (before its second forward DDP rearranges the buckets,
# and the ranks agree on that). Both wait, each in another collective, for ever. Collectives have no
# names: the ranks' first, second, third calls belong together, whatever they were meant for. So
# **every rank must call the same collectives in the same order**; only what comes *after* them,
# such as printing, may be for rank 0 alone.
#
# With NCCL a rank waits too, until torch's watchdog ends the process after the time-out. Where no
# launcher looks for hangs, the time-out is the only alarm. So choose it yourself, as the scripts
# here do with `--timeout`: long enough for the slowest step, and short enough to pay for.
# </details>
#
# A time-out is the *good* case. In the next cell two ranks add up two numbers each, a loss of 1 and
# a count of 1000, but in different order. What should the sums be?

# %% tags=["nbval-check-output"]
swapped = launch(SNIPPETS / "collective_order.py", 2, device="cpu", quiet=True)
print(swapped.output(0) + swapped.output(1))
assert swapped.status == "ok"

# %% [markdown]
# <details><summary>Answer</summary>
#
# The sums should be 2 and 2000. The first call of rank 0 (its loss) met the first call of rank 1
# (its count): same shape, same type, so nothing failed, and the numbers are wrong. If the sizes
# differ, gloo may end the process with "Is there a distributed collective mismatch in your code?",
# or wait. `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes torch compare kind, shape and type of each
# collective before it runs; it would not notice this one.
# </details>
#
# ### Second: a run that looks well shuffled
#
# The next cell trains with the `DataLoader` script from above, with one line taken out. Look at the
# epochs. What harm does it do?

# %% tags=["nbval-check-output"]
forgot = variant(loading, "ddp_forgot_set_epoch", {"sampler.set_epoch(epoch)": "pass"})
repeated = epochs_of(launch(forgot, samples=128, **data_flags))
for epoch, (first, second) in enumerate(repeated):
    print(f"epoch {epoch}: rank 0 begins with {first[:5]}, rank 1 with {second[:5]}")
assert repeated[0] == repeated[1] == repeated[2], "the order changed although set_epoch is missing"

# %% [markdown]
# <details><summary>Answer</summary>
#
# `sampler.set_epoch(epoch)` is missing, so the sampler shuffles with the same seed in every epoch:
# the same batches in the same order, and each rank sees only its own half of the data, always.
# Nothing fails and the loss falls. It shows in the ids only, so look at them once in each new
# program. (Without a `DistributedSampler`, a `DataLoader` with `shuffle=True` draws a new order by
# itself; that is why people forget.)
# </details>
#
# ### Third: ranks that do not begin alike
#
# The script by hand again. Now each rank draws its initial parameters with a seed of its own, and
# the broadcast is gone. The gradients are averaged as before. The next cell draws the loss.

# %%
build = "model = models.build(args).to(device)"
changes = {build: f"args.seed += rank\n{build}\nargs.seed -= rank"}
changes["dist.broadcast(parameter.data, src=0)"] = "pass"
unequal = variant("ddp_by_hand", "ddp_unequal_start", changes)
apart = launch(unequal, ranks=2, device="cpu", steps=20, global_batch=32, quiet=True)
plots.show(plots.loss_curves(check.baseline(steps=20, global_batch=32), apart))

# %% [markdown]
# The loss falls nearly as it should. Would you have noticed? The next cell asks the records: how
# far are the two ranks' models from each other, and how far did the baseline's training move its
# own?

# %%
base = check.baseline(steps=20, global_batch=32).ranks[0]
moved = check.distance(base["fingerprint_initial"], base["fingerprint_final"])
rows = [{"what": "the baseline's end from its start", "distance": moved}]
for moment in ("initial", "final"):
    prints = [rank[f"fingerprint_{moment}"] for rank in apart.ranks]
    rows.append({"what": f"rank 0 from rank 1, {moment}", "distance": check.distance(*prints)})
assert rows[-1]["distance"] > moved, "the ranks' models came together"
Table(rows, "Distance of all parameters")

# %% [markdown]
# <details><summary>What happened?</summary>
#
# Each rank trains a model of its own, with gradients of which a half was computed for another
# model. Averaging *gradients* never brings *parameters* together: the ranks end as far apart as
# they began. The distance is estimated from the fingerprints in the records (eight random
# projections of all parameters), and a proof of equality compares exactly these.
#
# DDP copies rank 0's parameters to all when it wraps the model, so there the fault comes in later:
# rank 0 loads a checkpoint into a model that is wrapped already, or a rank changes parameters
# outside the optimizer. Then nobody copies again.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: from one process to several ranks
#
# Take the script of one process and make it train on several ranks. The next cell writes your
# starting point.

# %%
from bootcamp import exercise

print(exercise.start("data_parallel"))

# %% [markdown]
# Edit the file, save it, run the next cell. It runs *your* script on two ranks, with both
# optimizers, and holds it against the baseline. `exercise.solution("data_parallel")` shows the
# solution as a diff. For more: make it pass by hand, without `DistributedDataParallel`.

# %%
print(exercise.check("data_parallel"))

# %% [markdown]
# ### Second: deal out the samples
#
# What does a `DistributedSampler` do? `order` is the shuffled list of all samples of an epoch, the
# same on every rank. Each rank takes every `world`-th of them, beginning at the place of its rank.
# If they do not divide, samples from the beginning of the order are repeated until they do. Write
# the function in place of the three dots and run the cell. The solution is one step away:
# `exercise.solution("samples_of_rank")`.


# %%
def samples_of_rank(order, rank, world):
    """The list of samples that this rank trains on in an epoch.

    order: the shuffled ids of all samples, the same list on every rank.
    """
    ...


print(exercise.check("samples_of_rank", samples_of_rank))

# %% [markdown]
# ## When to use it and when not
#
# **Use DDP** when the model with its optimizer state and the activations of a useful batch fits on
# one device, and you want more samples per second. It is the simplest strategy, and the first to
# try.
#
# **Do not** when
# - the model does not fit: DDP replicates it. Later lessons shard it.
# - a rank would compute for a shorter time than the averaging takes: a small model, a small share
#   of the batch, a slow network. Raise the batch per rank, accumulate with `no_sync`, or stay with
#   one device.
# - your training gains nothing from a larger batch, and the present one is too small to cut.
#
# **Before you trust a run:** equal parameters at the start, samples that are disjoint and change
# with the epoch, gradients averaged and not summed (prove it with SGD), a learning rate that fits
# the global batch, a time-out that you chose, and everything that uses the group freed before it is
# destroyed.
#
# **To compare runs of your own,** use the board of lesson 00: `from bootcamp import board`, then
# `board.show()`. *More ranks, same batch* draws the speed-up of the runs that you choose.
#
# **Lesson 04b** goes on from here: bucket size and compression, ranks with unequally much to do,
# the death of a rank, NCCL, and the frameworks that are built on DDP.
#
# ## Sources
#
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   arXiv:2006.15704. Buckets, overlap, `no_sync`.
# - Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
#   Journal of Parallel and Distributed Computing 69, 2009. The ring, and 2(N-1)/N.
# - Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017,
#   arXiv:1706.02677. The linear scaling rule and warm-up.
# - Malladi et al., *On the SDEs and Scaling Rules for Adaptive Gradient Algorithms*, 2022,
#   arXiv:2205.10287.
# - McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, arXiv:1812.06162.
# - PyTorch documentation: *DistributedDataParallel*, the note *Distributed Data Parallel*,
#   *torchrun (Elastic Launch)*, *Distributed communication package*, *torch.utils.data*.
