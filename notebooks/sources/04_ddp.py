# %% [markdown]
# # 04 Distributed data parallel: one model, several ranks
#
# **48 minutes**, on any machine. Without two GPUs each rank is one CPU core, and the cells say so.
#
# After this lesson you can write data parallelism by hand and with `DistributedDataParallel`, prove
# that it trains the same model, say what it needs in memory and in bytes sent, and diagnose its
# usual faults. What more ranks and larger batches gain is lesson 04c.
#
# ## The question
#
# One process trains on one device, and you have several. Can they share the work, be faster, and
# still train *exactly* the same model?

# %%
from bootcamp import claim, default_ranks, gpu_count, launch, trial, warm_up

warm_up()
RANKS = max(2, min(8, default_ranks()))
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
ALONE = "gpu" if DEVICE == "cuda" else "cpu"
same = {"device": DEVICE, "steps": 8, "global_batch": 32 * RANKS}
print(f"{RANKS} ranks on {'GPUs' if DEVICE == 'cuda' else 'CPU cores'}, 32 samples each a step.")

# %% [markdown]
# ## The idea
#
# The loss of a step is a mean over the samples of the global batch, so its gradient is a mean over
# the samples too. Cut the batch into equal shares, one for each rank. Each rank computes the mean
# gradient of its share. The mean of these means is the gradient of the complete batch.
#
# So if all ranks begin with the same parameters, and average their **gradients** in every step,
# every rank's optimizer makes the same change, and the parameters stay equal without being sent.
# That is **data parallelism**. It averages gradients, not parameters.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import ddp as diagrams

plots.show(diagrams.one_step())

# %% [markdown]
# The terms:
#
# - A **process group** is a set of ranks that have found each other and can communicate.
# - A **collective** is an operation that *all* ranks of a group must call, in the same order.
#   **Broadcast** copies a tensor of one rank to all. **All-reduce** adds up one tensor of each
#   rank, and gives the sum to all of them.
# - A **backend** is the library that carries the bytes: *gloo* between CPU ranks, *NCCL* between
#   GPUs.
#
# ### Try the collectives
#
# **Live ranks** stay and wait for cells. A cell that begins with `%%ranks` runs on all of them and
# shows what each prints, and its last value. There, `rank`, `world_size`, `torch` and `dist`
# (`torch.distributed`) are given, and variables stay from cell to cell. Before you run it: which
# numbers will each rank have?

# %%
from bootcamp import live

live.start(ranks=4)

# %%
# %%ranks
mine = torch.tensor([10 * rank, 10 * rank + 1])
copied, summed = mine.clone(), mine.clone()
dist.broadcast(copied, src=2)
dist.all_reduce(summed)
f"mine {mine.tolist()}, broadcast from 2 {copied.tolist()}, all-reduced {summed.tolist()}"

# %% [markdown]
# Three more, for later lessons. **All-gather** brings the tensors of all ranks to every rank.
# **Reduce-scatter** adds up as all-reduce does, but each rank gets only its own piece of the sum.
# In **all-to-all** each rank has a different piece for every rank, and sends it there. The last
# line compares: what are a reduce-scatter and an all-gather together?

# %%
# %%ranks
pieces = [torch.tensor([100 * piece + rank]) for piece in range(world_size)]
piece_of_sum, gathered = torch.zeros_like(mine[:1]), [torch.zeros_like(mine[:1]) for _ in pieces]
dist.reduce_scatter(piece_of_sum, pieces)
dist.all_gather(gathered, piece_of_sum)
reduced, received = torch.cat(pieces), torch.zeros(world_size, dtype=torch.int64)
dist.all_to_all_single(received, torch.cat(pieces))
dist.all_reduce(reduced)
print(f"reduce-scatter {piece_of_sum.tolist()}, all-to-all {received.tolist()}")
torch.equal(torch.cat(gathered), reduced)

# %% [markdown]
# Now something broken on purpose: only rank 0 calls the collective. What do you expect?

# %% tags=["raises-exception"]
# %%ranks
if rank == 0:
    dist.all_reduce(mine)

# %% [markdown]
# Rank 0 waits for three ranks that have finished the cell. In a training script it would wait until
# the group's timeout. The notebook has noticed it and cut rank 0's connections, so its `all_reduce`
# raises; the ranks, and their variables, are still there.

# %%
live.stop()

# %% [markdown]
# ### Starting the ranks
#
# Something must start the processes and tell each one its rank, the world size, and where to meet.
# With `torchrun` the script is written as if for one rank; environment variables say which one it
# is, and `init_process_group` reads them.

# %%
from bootcamp_lessons.excerpts import run_with_torchrun, show_snippet

show_snippet("start_with_torchrun.py")
print(run_with_torchrun("start_with_torchrun.py", ranks=2))

# %% [markdown]
# `LOCAL_RANK` is the rank within its host (one computer, torchrun's *node*), and chooses the GPU;
# `RANK` counts over all hosts. `launch` sets the same variables, but (on Linux) forks each rank
# from a process that has loaded PyTorch, which saves the seconds that you have just waited.
#
# ## Predict

# %%
from IPython.display import display

from bootcamp import predict

alone = launch(ALONE, ranks=1, **same)
guess_speed = predict(
    "ddp_speed",
    f"One process trains {alone.samples_per_second:,.0f} samples/s. "
    f"How many do {RANKS} ranks train, all together?",
    unit="samples/s",
)
gradient_megabytes = alone.ranks[0]["gradient_bytes"] / 1e6
guess_bytes = predict(
    "ddp_bytes",
    f"The gradients are {gradient_megabytes:.2f} MB. Eight ranks average them. "
    "How many MB does each rank send in a step?",
    unit="MB",
)
display(guess_speed, guess_bytes)

# %% [markdown]
# A third one: in the script by hand somebody forgets to divide, so that the gradients of two ranks
# are *summed*, twice as large as they should be. The optimizer is AdamW.

# %%
guess_summed = predict(
    "ddp_summed_seen",
    "In how many of the first 4 steps is the loss off by more than 0.001?",
    unit="steps",
)
guess_summed

# %% [markdown]
# ## What changes
#
# ### By hand
#
# The idea needs no library. Find the four places: joining the group, equal parameters at the start,
# averaged gradients after the backward pass, and the loss.

# %%
from bootcamp import script_diff

script_diff("ddp_by_hand")

# %% [markdown]
# - `init_process_group` waits until all ranks have come. `timeout` is how long a collective may
#   wait for a rank.
# - `data.Batches(args, rank, world)` was there before: now each rank gets its share.
# - `all_reduce` *sums*; the line after it makes the mean.
# - `with run.step(step):` encloses what the record times, the training alone.
# - The last collective averages the loss, for the record only. `async_op=True` returns a handle at
#   once; the record waits on it after the next step, so that the step itself never waits.
#
# ### With the library
#
# `DistributedDataParallel`, DDP for short, broadcasts when it wraps the model, and averages within
# `loss.backward()`.

# %%
script_diff("ddp", parent="ddp_by_hand")

# %% [markdown]
# Inside, DDP attaches a **hook** to every parameter: a function that runs when the parameter's
# gradient is ready. It gathers gradients in **buckets**, and starts the all-reduce of a bucket when
# it is full, while the backward pass goes on. By default a bucket takes up to 25 MiB
# (`bucket_cap_mb`), the first one 1 MiB, so that communication begins early. The backward pass goes
# from the last layer to the first, and so do the buckets.

# %%
plots.show(diagrams.overlap())

# %% [markdown]
# On GPUs `config.parse()` and `launch` also give each rank a device of its own. Lesson 04b writes
# that out, and has what else people combine with DDP: saving, evaluation, gradient clipping,
# `GradScaler`, `torch.compile`.
#
# ## Run it
#
# `trace_step` records a step with torch's profiler, for a look at it below.

# %%
by_hand = launch("ddp_by_hand", ranks=RANKS, trace_step=6, **same)
library = launch("ddp", ranks=RANKS, trace_step=6, **same)
plots.show(plots.throughput(alone, by_hand, library))

# %% [markdown]
# ## Read the measurement
#
# ### Speed

# %%
found = claim.faster(
    "ddp_beats_one_process",
    f"DDP on {RANKS} ranks trains more samples a second than one process.",
    trial("ddp", ranks=RANKS, **same),
    trial(ALONE, ranks=1, **same),
    seconds=20,
    otherwise="Something else may use the cores, or there is only one. Repeat it on a quiet "
    "machine.",
)
print(guess_speed.score(alone.samples_per_second * found.effect))
found

# %% [markdown]
# The two scripts send the same gradients. When does each of them communicate?

# %%
plots.show(plots.timeline(by_hand))
plots.show(plots.timeline(library))

# %% [markdown]
# By hand, communication begins when the backward pass has ended, so nothing overlaps, and every
# parameter tensor is an all-reduce of its own. DDP has one for each bucket, and starts it as soon
# as the bucket is full. Each call has a fixed cost, however few bytes it carries, because the ranks
# must meet.

# %%
calls = {run.strategy: len(run.timeline()["calls"]) for run in (by_hand, library)}
claim.larger(
    "ddp_fewer_all_reduces",
    "By hand a step has more all-reduces than with DDP's buckets.",
    calls["ddp_by_hand"],
    calls["ddp"],
    kind="count",
)

# %%
claim.faster(
    "ddp_beats_by_hand",
    "DDP trains faster than the script by hand, which sends the same bytes.",
    trial("ddp", ranks=RANKS, **same),
    trial("ddp_by_hand", ranks=RANKS, **same),
    seconds=20,
)

# %% [markdown]
# On CPU ranks the gain is in fewer calls, hardly in overlap: the threads that communicate need the
# cores that compute. On GPUs communication runs beside computation, on a few of the GPU's
# processors, and overlap is what makes DDP scale.
#
# The simulator below predicts the time of a step if communication takes no computing power. Move
# the bucket cap to either end: what do small buckets gain on a slow link, and lose at a high
# latency (the fixed time of each message)?

# %%
from bootcamp import simulators

controls = simulators.ddp_step()

# %% [markdown]
# ### Bytes sent
#
# If every rank sent its gradients to every other, the bytes would grow with the number of ranks.
# The usual algorithm for large tensors is the **ring**. Move `step` to its end and follow one
# chunk. Then choose 8 ranks and the **tree**: does it take fewer steps than the ring, and which
# rank sends most?

# %%
controls = simulators.collective()

# %% [markdown]
# With *N* ranks, each sends *N*−1 pieces to add up and *N*−1 to pass on, and a piece is 1/*N* of
# the gradients: **2(*N*−1)/*N*** times the gradients' bytes, never more than twice, however many
# ranks there are: 1.75 times with 8, in 14 steps. (This tree takes 6 steps, and its ranks 0 and 4
# send 3 times the gradients' bytes. NCCL's two trees avoid that.) Linux counts what each connection
# has sent. (These are CPU ranks on every machine, because what NCCL sends past the network stack is
# not counted. More ranks than cores do no harm to counting.)

# %%
few = {"device": "cpu", "steps": 6, "global_batch": 24, "quiet": True}
counted = [launch("ddp", ranks=n, **few) for n in (2, 3, 4)]
print(guess_bytes.score(2 * 7 / 8 * gradient_megabytes, how="By formula"))
plots.show(plots.sent_bytes(*counted))
claim.equal(
    "ddp_ring_bytes",
    "Each of 4 ranks sends 2 · 3/4 times the bytes of the gradients in a step.",
    counted[-1].ranks[0]["sent_bytes_per_step"],
    counted[-1].predicted_sent_bytes_per_step,
    within=0.05,
    supported="The rest is the loss, and what the protocol adds.",
)

# %% [markdown]
# ### Memory

# %%
small = {**same, "global_batch": RANKS, "quiet": True}  # else activations hide the rest
lone, replicas = launch(ALONE, ranks=1, **small), launch("ddp", ranks=RANKS, **small)
plots.show(plots.memory(lone, replicas))
claim.equal(
    "ddp_replicates",
    "A rank of DDP holds as many bytes of parameters and optimizer state as one process.",
    sum(replicas.ranks[0][kind] for kind in ("parameter_bytes", "optimizer_bytes")),
    sum(lone.ranks[0][kind] for kind in ("parameter_bytes", "optimizer_bytes")),
    kind="memory",
)

# %% [markdown]
# Every rank is a complete **replica**. Only the activations shrink (what the forward pass keeps for
# the backward pass), because each rank has fewer samples. So DDP does not help with a model that is
# too large for one device. (Not counted: DDP's buckets, another copy of the gradients.)
#
# ## Prove it
#
# DDP, and the script by hand, against the **baseline**, the same training in one process on one CPU
# core: every loss, the final parameters, which samples each rank trained on, with two optimizers.

# %%
from bootcamp import check

proofs = [*check.prove("ddp_by_hand", RANKS, device=DEVICE), *check.prove("ddp", RANKS)]
assert not any(proof.failed for proof in proofs), "a script trained something else"
proofs[-1]

# %% [markdown]
# ### A proof that can't fail proves nothing
#
# Why two optimizers? Take out the division, so that gradients are *summed*, and train with both.

# %%
from bootcamp import variant

summed = variant("ddp_by_hand", "ddp_summed", {"parameter.grad /= world": ""})
wrong = check.prove(summed, 2, device=DEVICE, raises=False)
sgd, adamw = wrong
off = [abs(a - b) > 1e-3 for a, b in zip(adamw.run.losses, adamw.baseline.losses, strict=True)]
print(guess_summed.score(sum(off)))
for name, proof in (("AdamW", adamw), ("SGD", sgd)):
    print(f"With {name}:")
    plots.show(plots.loss_curves(proof.baseline, proof.run))

# %% [markdown]
# AdamW divides a running mean of the gradient by the root of a running mean of its square, so a
# constant factor cancels, apart from the effect of a small constant in the denominator. SGD's steps
# are proportional to the gradient. The proof's tolerance is tight enough to reject both runs; the
# eye sees one.
#
# ## Break it
#
# ### First: the ranks disagree
#
# "Only rank 0 writes the loss, so only rank 0 needs its mean", thought somebody, and put an `if`
# before the last collective. The launcher notices after 5 seconds without a step, and asks every
# rank where it stands. (torch's own timeout is 10 minutes with NCCL, 30 minutes with gloo; the
# scripts here take `--timeout`.) Which rank waits for what?

# %%
from bootcamp import Options
from bootcamp.paths import SRC
from bootcamp_lessons.excerpts import find_waiting_lines

average = "run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))"
broken = "if rank == 0:\n    dist.all_reduce(mean_loss)\nrun.loss(mean_loss)"
why = "# Adds up the ranks' parts for the record, while training goes on (`async_op`)."
changes = {why: "# Only rank 0 writes the loss.", average: broken}
only_0 = variant("ddp", "ddp_only_rank_0", changes)
six = {"device": "cpu", "steps": 6, "global_batch": 32, "quiet": True}
hung = launch(only_0, 2, options=Options(hang_seconds=5), timeout=100, raises=False, **six)
print(find_waiting_lines(hung, only_0))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 waits in the all-reduce of the loss. Rank 1 has skipped it, is one step ahead, and waits
# for rank 0 in the forward pass (before the second one DDP rearranges the buckets, and the ranks
# agree on that). Collectives have no names: the ranks' first, second, third calls belong
# together, whatever they were meant for. So **every rank must call the same collectives in the
# same order**; only what comes *after* them, such as printing, may be for rank 0 alone.
#
# Without a launcher that looks for hangs, the run ends with two different messages: a timeout on
# the rank that gives up first, and on the others its consequence, "Connection closed by peer".
# </details>
#
# A hang is the *good* case. Two ranks add up two numbers each, a loss of 1 and a count of 1000, but
# in different order. What should the sums be?

# %% tags=["nbval-check-output"]
swapped = launch(SRC / "snippets" / "collective_order.py", 2, device="cpu", quiet=True)
print(swapped.output(0) + swapped.output(1))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2 and 2000. The first call of rank 0 (its loss) met the first call of rank 1 (its count): same
# shape, same type, so nothing failed, and the numbers are wrong. If the sizes differ, gloo may end
# the process with "Is there a distributed collective mismatch in your code?", or wait.
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares kind, shape and type of each collective before it runs;
# it would not notice this one.
# </details>
#
# ### Second: ranks that do not begin alike
#
# The script by hand, where each rank draws its initial parameters with a seed of its own, and the
# broadcast is gone. The gradients are averaged as before.

# %%
build = "model = models.build(args).to(device)"
changes = {build: f"args.seed += rank\n{build}\nargs.seed -= rank"}
changes["dist.broadcast(parameter.data, src=0)"] = "pass"
apart = launch(variant("ddp_by_hand", "ddp_unequal_start", changes), 2, **six)
plots.show(plots.loss_curves(check.baseline(steps=6, global_batch=32), apart))
check.compare(apart, check.baseline(steps=6, global_batch=32))

# %% [markdown]
# <details><summary>What happened?</summary>
#
# Each rank trains a model of its own, with gradients that were computed in part for another model.
# Averaging *gradients* never brings *parameters* together. DDP copies rank 0's parameters when it
# wraps the model, so there the fault comes in later: rank 0 loads saved parameters into a model
# that is wrapped already, or a rank changes parameters outside the optimizer.
# </details>
#
# ## Exercise
#
# ### First: from one process to several ranks
#
# Take the script of one process and make it train on several ranks.

# %%
from bootcamp import exercise

print(exercise.start("data_parallel"))

# %% [markdown]
# The checker runs *your* script on two ranks, with both optimizers, against the baseline.
# `exercise.solution("data_parallel")` shows the solution as a diff. To go further, make it pass by
# hand, without `DistributedDataParallel`.

# %%
exercise.check("data_parallel")

# %% [markdown]
# ### Second: deal out the samples
#
# What does a `DistributedSampler` do? `order` is the shuffled list of all samples of an epoch, the
# same on every rank. Each rank takes every `world`-th of them, beginning at the position of its
# rank. If they do not divide, samples from the beginning are repeated until they do. The solution:
# `exercise.solution("samples_of_rank")`.


# %%
def samples_of_rank(order, rank, world):
    """The list of samples that this rank trains on in an epoch.

    order: the shuffled ids of all samples, the same list on every rank.
    """
    ...


exercise.check("samples_of_rank", samples_of_rank)

# %% [markdown]
# ## When to use it and when not
#
# **Use DDP** when the model with its optimizer state and the activations of a useful batch fits on
# one device, and you want more samples per second. It is the simplest strategy, and the first to
# try.
#
# **Do not** when
# - the model does not fit: DDP replicates it. Lessons 06 to 08 divide it.
# - a rank would compute for a shorter time than the averaging takes (lesson 04c).
# - your training gains nothing from a larger batch, and the present one is too small to cut.
#
# **Before you trust a run:** equal parameters at the start, samples that are disjoint and change
# with the epoch, gradients averaged and not summed (prove it with SGD), a learning rate that fits
# the global batch, a timeout that you chose.
#
# **Lesson 04b** goes on from here: what people write around DDP, `DataLoader` and sampler first.
# **04d** has DDP's options, and the frameworks that are built on it; **04e** the network, NCCL, and
# ranks that are late or dead.
#
# ## Sources
#
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   arXiv:2006.15704. Buckets and overlap.
# - Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
#   Journal of Parallel and Distributed Computing 69, 2009. The ring, and 2(N−1)/N.
# - PyTorch documentation: *DistributedDataParallel*, the note *Distributed Data Parallel*,
#   *torchrun (Elastic Launch)*, *Distributed communication package*, *torch.utils.data*.
