# %% [markdown]
# # 05 Horovod: a ring of ranks, and an optimizer that talks
#
# **60 minutes**, on any machine. In this lesson the ranks are CPU cores, even where there are GPUs.
#
# After this lesson you can say how a ring all-reduce works, step by step; read, write and start a
# Horovod script; prove that it trains the same model; read Horovod's own timeline and turn its two
# knobs; say what Horovod does *not* do for you; and judge whether a project should still use it.

# %% [markdown]
# ## The question
#
# `DistributedDataParallel` belongs to PyTorch. **Horovod** does not: it came from Uber in 2017, for
# TensorFlow first, and its idea of how to train on many GPUs shaped what followed. Many programs
# still use it, and one day you may have to run, repair or replace one of them. So: what does
# Horovod do, does it train the same model, and what does it leave to you?
#
# The next cell starts to load PyTorch in the background and looks for Horovod.

# %%
from bootcamp import launch, machine, recorded, warm_up

warm_up()
horovod = recorded.Experiments("horovod", "05_horovod")
horovod

# %% [markdown]
# Horovod is not a package that pip installs just so: it has to be compiled against the PyTorch that
# is installed. `make horovod` does it, in the folder of this course. It builds for CPU ranks and
# gloo. (For GPUs Horovod has to be built against CUDA and NCCL; nothing in this lesson needs that.)
# Where it is not built, each run below is replaced by a recorded one, and says so.
#
# The next cell chooses the number of ranks: one for each core, at least two, at most four.

# %%
RANKS = max(2, min(4, len(machine.cores()))) if horovod.ready else 2
BATCH = 16 * RANKS
same = {"device": "cpu", "steps": 12, "global_batch": BATCH, "quiet": True}
print(f"{RANKS} CPU ranks, {BATCH} samples a step.")

# %% [markdown]
# ## The idea
#
# ### One process for each device
#
# Horovod is data parallelism, as in lesson 04: every rank holds the whole model, takes its share of
# the batch, and the ranks average their gradients. One process stands for one device. The next cell
# shows a whole Horovod program.

# %%
from IPython.display import Markdown, display

from bootcamp.paths import SRC

SNIPPETS = SRC / "snippets"
Markdown(f"```python\n{(SNIPPETS / 'horovod_ranks.py').read_text()}```")

# %% [markdown]
# `hvd.init()` needs no address: `horovodrun` has started the processes and told them. (`-np 4` is
# four processes here; `-np 8 -H one:4,two:4` is four on each of two servers, which it reaches by
# ssh.) The next cell runs it.

# %%
quietly = {"device": "cpu", "quiet": True}
ranks = horovod.launch("ranks", SNIPPETS / "horovod_ranks.py", 2, start="horovodrun", **quietly)
print("\n".join(recorded.said(ranks)))

# %% [markdown]
# Look at three things. `local_rank` counts within one server; with GPUs it chooses the GPU.
# `hvd.allreduce` gives the *mean* if you do not ask for another operation, where torch's
# `all_reduce` gives the sum. And wrapping the optimizer has left the learning rate as it was. Keep
# that in mind.

# %% [markdown]
# ### The ring, step by step
#
# Horovod's name is that of a dance in a circle. In lesson 04 you saw the picture of a **ring
# all-reduce**: each rank sends only to the next one. Now real ranks shall do it. Each cuts its
# numbers into as many pieces as there are ranks, and in each step sends one piece and receives one.
# First your prediction.

# %%
from bootcamp import predict

guess_steps = predict(
    "horovod_steps",
    "3 ranks, and in each step every rank sends one of its 3 pieces to the next rank. "
    "After how many steps can every rank hold the sum of all pieces?",
    unit="steps",
    answer=None,
)
guess_steps

# %% [markdown]
# The next cell shows the program. It uses nothing but sending and receiving, so it needs no
# Horovod. Look at the loop: which piece is sent, which is received, when is it added?

# %%
Markdown(f"```python\n{(SNIPPETS / 'horovod_ring.py').read_text()}```")

# %% [markdown]
# Rank 0 has the numbers 1 to 6, rank 1 has 10 to 60, rank 2 has 100 to 600. So the digits of a sum
# tell whose numbers are in it. The next cell runs three ranks and prints what they end with.

# %% tags=["nbval-check-output"]
import json

circle = launch(SNIPPETS / "horovod_ring.py", 3, **quietly)
printed = [json.loads(circle.output(rank)) for rank in range(3)]
total = printed[0]["total"]
for rank, what in enumerate(printed):
    ends = sum(what["held"][-1], [])
    assert ends == total == [111 * number for number in range(1, 7)], "not the sum"
    print(f"rank {rank} after {len(what['sent'])} steps: {ends}")

# %% [markdown]
# All ranks hold the sum, and `all_reduce` of the library gave the same. The next cell draws what
# the ranks printed. Follow one piece: where is it complete for the first time?

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import horovod as diagrams

plots.show(diagrams.ring(printed))
guess_steps.score(len(printed[0]["sent"]))

# %% [markdown]
# With *N* ranks there are *N*-1 steps that add and *N*-1 that pass on. In every step each rank
# sends 1/*N* of the numbers, all at the same time, and every connection of the ring is busy. So a
# rank sends 2(*N*-1)/*N* times its data, hardly more for many ranks than for few. But the number of
# *steps* grows with *N*, and each step waits for a message to arrive: on many servers, small
# tensors are slow on a ring. Remember this when tensor fusion comes.
#
# The ring is older than Horovod: Patarasuk and Yuan showed in 2009 that no all-reduce among ranks
# alone can do with fewer bytes per rank. (A network that adds on the way can: with NVIDIA's SHARP a
# rank sends its numbers once, about half as many bytes.) Baidu brought the ring to deep learning,
# Horovod into a few lines of Python.

# %% [markdown]
# ### Names, and a coordinator
#
# In lesson 04 the ranks' first, second, third collectives belonged together, and a rank with
# another order added apples to pears. Horovod's collectives have **names**. The next cell shows a
# program in which two ranks add up a loss of 1 and a count of 1000, each in another order: first
# without names, then with names. What should the sums be?

# %%
Markdown(f"```python\n{(SNIPPETS / 'horovod_names.py').read_text()}```")

# %% [markdown]
# `allreduce_async` hands a tensor over and returns at once; `synchronize` waits for the result. The
# next cell runs the program. Compare the two lines of each rank.

# %%
names = horovod.launch("names", SNIPPETS / "horovod_names.py", 2, **quietly)
answers = recorded.said(names)
assert sum("{'loss': 2.0, 'tokens': 2000.0}" in line for line in answers) == 2
print("\n".join(answers))

# %% [markdown]
# With names each number found its partner. Without, Horovod numbers the operations itself, on each
# rank in its own order, and loss met count. How can names work? Somebody has to find out what is
# ready *everywhere*. Each rank has a **background thread** for it, and rank 0's also is the
# **coordinator**. The next cell draws one **cycle** of them.

# %%
plots.show(diagrams.inside())

# %% [markdown]
# So the script hands over a gradient as soon as the backward has it, and goes on. The background
# threads agree on what to reduce, copy small tensors into one large buffer (**tensor fusion**),
# reduce that over the ring, and copy the means back. (After the first steps the coordinator need
# not be asked anew: the ranks remember its answers and exchange a few bits.)

# %% [markdown]
# ## Predict
#
# Two questions before the training. The next cell runs DDP, to compare with, and asks how fast
# Horovod will be: the same model, the same ranks, the same gradients, gloo below both.

# %%
from bootcamp import Table

ddp = horovod.launch("ddp", "ddp", RANKS, **same)
guess_speed = predict(
    "horovod_speed",
    f"DDP: {ddp.samples_per_second:,.0f} samples/s. How many does Horovod train?",
    unit="samples/s",
    answer=None,
)
guess_speed

# %% [markdown]
# The second: the next cell counts the tensors. How many all-reduces will Horovod make of them?

# %%
from argparse import Namespace

from bootcamp.train import models

flags = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=BATCH)
tensors = 1 + len(list(models.build(flags).parameters()))
guess_fused = predict(
    "horovod_fused",
    f"A step has {tensors} tensors to average: {tensors - 1} gradients and the loss. "
    "In how many all-reduces does Horovod do it?",
    unit="all-reduces a step",
    answer=None,
)
guess_fused

# %% [markdown]
# ## What changes
#
# The next cell compares the Horovod script with the DDP script. What takes the place of the wrapped
# model?

# %%
from bootcamp import script_diff

script_diff("horovod")

# %% [markdown]
# - `hvd.init()` joins the ranks. No back end, no time-out: Horovod has none to set here. (The
#   argument of `config.parse` is this course's affair: a Horovod without NCCL takes no tensors on
#   GPUs, so the script offers only the CPU then.)
# - The *model* is left alone. The **optimizer** is wrapped: `DistributedOptimizer` puts a hook on
#   each parameter that hands its gradient over under the parameter's name. `optimizer.step()` waits
#   for the means, then does what it always did. (DDP waits within `loss.backward()`. So to clip
#   gradients under Horovod, call `optimizer.synchronize()` first, and after it `optimizer.step()`
#   within `with optimizer.skip_synchronize():`, or they are averaged twice.)
# - `broadcast_parameters` gives all ranks rank 0's parameters. DDP does this by itself when it
#   wraps the model; with Horovod it is your line, and your mistake if it is missing.
# - `broadcast_optimizer_state` does the same for what the optimizer remembers, which matters after
#   a checkpoint was loaded. It stands under an `if`. Why?

# %% [markdown]
# ### A trap: the state of an optimizer that has none
#
# Most Horovod programs call `broadcast_optimizer_state` without the `if`. A new AdamW has no state
# yet, nothing to send. So Horovod sets all gradients to zero and takes a step, to make some. The
# next cell trains without the `if`, and compares with the baseline, one process on one core.

# %%
from bootcamp import check, variant

base = horovod.launch("baseline-adamw", "cpu", 1, optimizer="adamw", **same)
script = (SRC / "_train_horovod.py").read_text().splitlines()
(condition,) = [line for line in script if line.startswith("if optimizer.state:")]
always = variant("horovod", "horovod_fresh_state", {condition: "if True:"})
fresh = horovod.launch("fresh-state", always, RANKS, **same)
trap = check.compare(fresh, base)
assert trap.failed, "the trap is gone from this version of Horovod"
trap

# %% [markdown]
# The step with zero gradients is not nothing: AdamW's **weight decay** makes all parameters a
# little smaller, and its step counter begins at 1. Nobody would see it in a loss curve, and yet it
# is another training. With SGD without weight decay nothing would happen: a proof needs both
# optimizers.

# %% [markdown]
# ### The learning rate is yours
#
# Horovod averages the gradients, and it does not touch the learning rate: you saw it above. Its
# documentation tells you to *"scale the learning rate by the number of workers"*, and its examples
# write `lr * hvd.size()`. That is the **linear scaling rule** (Goyal et al., 2017; lesson 04 tries
# it). It is meant for a fixed batch *per rank*, where more ranks make a larger global batch. It is
# not part of the averaging: with the same global batch, as in our proofs, the rate must stay.
#
# So when you read a Horovod script, look for `hvd.size()` beside the rate. When you move it to
# DDP, take the factor along; when you change the number of ranks, know that the rate changes too.

# %% [markdown]
# ## Run it
#
# The next cell runs the script. Look at the command: another program starts the ranks.
#
# `horovodrun` starts a Python for each rank, and each of them imports torch first. To save you that
# wait, the course forks the ranks of the other runs from a process that has torch loaded, and tells
# them what `horovodrun` would: `HOROVOD_RANK`, `HOROVOD_SIZE` and the address where they find each
# other. This run is started by `horovodrun` itself.

# %%
loud = {**same, "quiet": False, "start": "horovodrun"}
run = horovod.launch("horovod", "horovod", RANKS, **loud)

# %% [markdown]
# The next cell puts one process, DDP and Horovod side by side, and scores your first prediction.

# %%
from bootcamp import runs

display(runs.table(base, ddp, run))
guess_speed.score(run.samples_per_second)

# %% [markdown]
# ## Read the measurement
#
# ### Loss, speed, bytes
#
# The next cell draws loss and speed. Look at the lower panel of the first figure.

# %%
plots.show(plots.loss_curves(base, ddp, run))
plots.show(plots.throughput(base, ddp, run))

# %% [markdown]
# The losses differ by rounding. For the speeds it matters how a rank waits: under Horovod it asks
# again and again whether its tensor is there, and so keeps its core busy. Here that is also the
# core on which its background thread has to work. (On a GPU machine the core has little else to
# do.)
#
# The next cell compares the bytes that a rank sends in a step.

# %%
sent = {each.strategy: each.ranks[0]["sent_bytes_per_step"] for each in (ddp, run)}
if all(sent.values()):  # counted on Linux
    assert abs(sent["horovod"] / sent["ddp"] - 1) < 0.1, "Horovod sends something else"
plots.show(plots.sent_bytes(ddp, run))

# %% [markdown]
# Nearly the same bytes: both use gloo's ring. What Horovod sends beyond them is the talk about
# names.

# %% [markdown]
# ### The timeline
#
# The environment variable `HOROVOD_TIMELINE` names a file in which Horovod notes what it does with
# each tensor (`horovodrun --timeline-filename` is the same). You can open it in `chrome://tracing`
# or Perfetto. The next cell makes one and checks what is in it.

# %%
noted = {"HOROVOD_TIMELINE": "{run}/timeline.json"}
traced = horovod.launch("timeline", "horovod", RANKS, env=noted, **same)
steps = diagrams.read_timeline(traced.folder / "timeline.json")
activities = {activity for step in steps for _, activity, _, _ in step["spans"]}
assert {"NEGOTIATE_ALLREDUCE", "GLOO_ALLREDUCE"} <= activities, "not Horovod's timeline"
print(len(steps), "steps with", ", ".join(sorted(activities)))

# %% [markdown]
# The next cell draws one step, and scores your second prediction. Each line is a tensor. How many
# orange blocks are there, and how many tensors does each hold?

# %%
plots.show(diagrams.timeline(steps[-1], traced))
guess_fused.score(steps[-1]["all_reduces"])

# %% [markdown]
# Grey: a rank has reported the tensor ready, and it waits: for the other ranks, or because the
# background thread is busy with an all-reduce and does one at a time. Orange: it is reduced,
# together with the others of its block. Tensors are grouped as they happen to become ready, so the
# groups differ from step to step, where DDP's buckets stay.

# %% [markdown]
# ### Tensor fusion and cycle time
#
# Two knobs decide about the groups. **`HOROVOD_FUSION_THRESHOLD`** is the size of the buffer in
# bytes (128 MiB by default); 0 switches fusion off. **`HOROVOD_CYCLE_TIME`** is how long a cycle
# lasts at least, in milliseconds (1 by default): the longer, the more tensors are ready at its end,
# and the later the first of them starts. The next cell runs with fusion off, and with long cycles.

# %%
knobs = {
    "no-fusion": {"HOROVOD_FUSION_THRESHOLD": 0},
    "cycle-of-50-ms": {"HOROVOD_CYCLE_TIME": 50},
}
tried = {"default": traced}
for name, setting in knobs.items():
    tried[name] = horovod.launch(name, "horovod", RANKS, env={**noted, **setting}, **same)

# %% [markdown]
# The next cell counts the all-reduces in the timelines and sets the time of a step beside them.
# Which setting has the most, which the fewest? Is the fewest the fastest?

# %%
from statistics import median

rows, counts = [], {}
for name, each in tried.items():
    steps = diagrams.read_timeline(each.folder / "timeline.json")[1:]
    counts[name] = median(step["all_reduces"] for step in steps)
    row = {"setting": name, "all-reduces a step": counts[name]}
    rows.append(row | {"ms per step": 1e3 * each.seconds_per_step})
assert counts["no-fusion"] == tensors, "without fusion each tensor should be reduced alone"
assert counts["cycle-of-50-ms"] < tensors / 2, "long cycles should fuse many tensors"
Table(rows, f"{tensors} tensors a step, {RANKS} ranks")

# %% [markdown]
# Without fusion every tensor pays for a ring of its own, all 2(*N*-1) steps of it. With long cycles
# there are few rings, but the last gradients, and then the loss, wait for the end of their cycle.
# Where the best lies depends on the model, the ranks and the network, so it has to be measured
# where it matters (and more than once: small differences are chance). Horovod can search by itself:
# `horovodrun --autotune`.

# %% [markdown]
# ### Half the bytes: fp16 compression
#
# `compression=hvd.Compression.fp16` casts the gradients to 16 bits before they are sent and back
# after. The next cell runs it.

# %%
wrap = "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())"
half = wrap[:-1] + ", compression=hvd.Compression.fp16)"
fp16 = variant("horovod", "horovod_fp16", {wrap: half})
compressed = horovod.launch("fp16", fp16, RANKS, **same)

# %% [markdown]
# The next cell compares both with the baseline. What is the price?

# %%
rows = []
for each in (run, compressed):
    *_, loss, _, final = check.compare(each, base).rows
    row = {"run": each.strategy, "bytes a rank sends": each.ranks[0]["sent_bytes_per_step"]}
    row |= {"ms per step": 1e3 * each.seconds_per_step, "loss differs": loss["measured"]}
    rows.append(row | {"parameters apart, share of the way": final["measured"]})
full, halved = (row["bytes a rank sends"] for row in rows)
assert full is None or 0.45 < halved / full < 0.55, "fp16 should send half of the bytes"
Table(rows, "Against one process in float32")

# %% [markdown]
# Half the bytes, and parameters that end further apart than the 1e-5 of a proof: a slightly
# different training, which usually does no harm. But very small gradients become zero in fp16, and
# large sums overflow. Whether it saves *time* depends on the network: between the cores of one
# machine there is little to save, and a CPU has to compute the casts. (bfloat16 reaches as far as
# float32, but Horovod 0.28.1 cannot reduce it.)

# %% [markdown]
# ### Adasum
#
# Mean and sum are two answers to "what is the gradient of all?". **Adasum** (Maleki et al., 2020)
# is a third: for two gradients that point the same way it gives their mean, for two at a right
# angle their sum. The next cell computes it for small vectors.

# %% tags=["nbval-check-output"]
import torch


def adasum(a, b):
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


first, rows = torch.tensor([2.0, 0.0]), []
for second in ([2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [1.0, 1.0]):
    b = torch.tensor(second)
    row = {"gradients": f"{first.tolist()} and {second}", "mean": ((first + b) / 2).tolist()}
    rows.append(row | {"sum": (first + b).tolist(), "Adasum": adasum(first, b).tolist()})
Table(rows)

# %% [markdown]
# The thought behind it: if the ranks agree, one step is enough; if they have learned different
# things, both steps may be made. So many ranks shall learn more in one step than their mean would.
# One argument asks for it, `op=hvd.Adasum`. The next cell asks.

# %%
asks = variant("horovod", "horovod_adasum", {wrap: wrap[:-1] + ", op=hvd.Adasum)"})
once_only = {**same, "steps": 1, "raises": False}
refused = horovod.launch("adasum", asks, 2, **once_only)
answer = refused.summary["error"]["message"] if refused.status == "failed" else refused.status
print(answer)

# %% [markdown]
# On CPU ranks Adasum needs a Horovod built with MPI; with gloo alone the wrapping is accepted, and
# the first step fails. An option that exists is not yet an option that your build has:
# `horovodrun --check-build` lists the parts.

# %% [markdown]
# ### Several backwards, one all-reduce
#
# Lesson 04 accumulated gradients with `no_sync`. In Horovod an argument says after how many
# backwards to average: `backward_passes_per_step`. The next cell shows it. Look for the division.

# %%
accumulate = SNIPPETS / "horovod_accumulate.py"
script_diff(accumulate, parent="horovod")

# %% [markdown]
# Horovod averages over the *ranks* and sums over the *passes*. The next cell runs this script, then
# one without the division. It uses SGD, which shows a wrong scale at once.

# %%
micro = {**same, "optimizer": "sgd", "micro_batches": 4}
divided = "(micro_loss / args.micro_batches).backward()"
forgot = variant(accumulate, "horovod_undivided", {divided: "micro_loss.backward()"})
right = horovod.launch("accumulate", accumulate, RANKS, **micro)
wrong = horovod.launch("undivided", forgot, RANKS, **micro)
base_sgd = horovod.launch("baseline-sgd", "cpu", 1, optimizer="sgd", **same)
assert not check.compare(right, base_sgd).failed, "accumulation changed the training"
assert check.compare(wrong, base_sgd).failed, "the sum over passes was not noticed"
plots.show(plots.loss_curves(base_sgd, right, wrong))

# %% [markdown]
# The first lies on the baseline. In the second all gradients are four times too large.

# %% [markdown]
# ### How far does it scale?
#
# A few cores tell nothing about many servers. The next cell shows what Horovod's authors published.

# %%
from bootcamp.theory.published import table as published_table

published = published_table("horovod")
plots.show(diagrams.published_scaling(published))

# %% [markdown]
# Same machines, same network, same library: why is one model so much worse? VGG-16 has huge fully
# connected layers: many parameters, so many bytes of gradient, for the time that its forward and
# backward take. What decides is the ratio of computing to communicating, not the library.

# %% [markdown]
# ## Prove it
#
# The next cell proves Horovod's run from above, with AdamW, and another one with SGD: samples,
# losses and final parameters of all ranks against the CPU baseline. (`check.prove("horovod", 2)`
# makes all these runs in one line.)

# %%
sgd = horovod.launch("horovod-sgd", "horovod", RANKS, optimizer="sgd", **same)
proofs = [check.compare(run, base), check.compare(sgd, base_sgd)]
for proof in proofs:
    assert not proof.failed, "Horovod trained something else"
    display(proof)

# %% [markdown]
# Equality alone does not say that Horovod was at work: the script could have trained in one
# process. The next cell asks the records: who started the ranks, and how many there are in the eyes
# of `hvd.size()`.

# %%
assert run.summary["launcher"] == "horovodrun"
assert run.summary["world_size"] == len(run.ranks) == run.world
print(f"started by {run.summary['launcher']}, hvd.size() is {run.summary['world_size']}")

# %% [markdown]
# ## Break it
#
# ### First: everything ran, nothing failed
#
# Two programs that look right. In the first, `broadcast_parameters` is missing and each rank draws
# its initial parameters with a seed of its own. In the second, the data line is still that of one
# process. The next cell runs both. What do you expect their losses to look like?

# %%
build = "model = models.build(args).to(device)"
changes = {build: f"args.seed += rank\n{build}\nargs.seed -= rank"}
changes["hvd.broadcast_parameters(model.state_dict(), root_rank=0)"] = ""
own_start = variant("horovod", "horovod_own_start", changes)
shares = {"batches = data.Batches(args, rank, world)": "batches = data.Batches(args, 0, 1)"}
whole_batch = variant("horovod", "horovod_whole_batch", shares)
apart = horovod.launch("own-start", own_start, RANKS, **same)
whole = horovod.launch("whole-batch", whole_batch, RANKS, **same)
plots.show(plots.loss_curves(base, apart, whole))

# %% [markdown]
# Which of the two do you see in the curves? The next cell asks the checker.

# %%
for each in (apart, whole):
    failed = check.compare(each, base).failed
    assert failed, f"the checker did not notice {each.strategy}"
    columns = ("compared", "measured", "allowed", "hint")
    rows = [{column: row[column] for column in columns} for row in failed]
    display(Table(rows, each.strategy))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Without the broadcast each rank trains a model of its own, with gradients that belong to no one
# model. The loss falls all the same. The mistake hides easily: as long as all ranks draw their
# parameters with the same seed nothing happens, until one loads a checkpoint that the others do not
# see.
#
# With the whole batch on every rank the curve *is* the baseline's. All ranks do the same work, the
# mean of equal gradients is the gradient, and you pay for several devices to get the
# speed of one. Only the ids of the samples tell.
# </details>
#
# ### Second: a program that stands still
#
# "Only rank 0 writes the loss, so only rank 0 needs its mean." The next cell runs that. Horovod has
# an alarm for it, the stall check: after 60 seconds, here 2, it shall name the tensor and the ranks
# that are missing. In case it does not, we set an alarm clock of Python's own: after 8 seconds
# `faulthandler` prints where each rank stands, and ends it.

# %%
begun = 'average = hvd.allreduce_async_(mean_loss, name="mean_loss")'
ended = "run.loss(mean_loss, partial(hvd.synchronize, average))"
mean = 'mean_loss = hvd.allreduce(mean_loss, name="mean_loss")'
changes = {begun: f"if rank == 0:\n    {mean}", ended: "run.loss(mean_loss)"}
alarm = "import faulthandler\nfaulthandler.dump_traceback_later(8, exit=True)"
begins = "run = record.Run(context, model, optimizer, batches, world)"
changes[begins] = f"{begins}\n{alarm}"
only_0 = variant("horovod", "horovod_only_rank_0", changes)
stall = {"env": {"HOROVOD_STALL_CHECK_TIME_SECONDS": 2}, "raises": False, **same}
stall["start"] = "horovodrun"
hung = horovod.launch("only-rank-0", only_0, 2, **stall)
assert hung.status == "failed", "ranks that disagree should not train on"
print((hung.folder / "ranks" / "launcher.err").read_text().partition("Traceback")[0])

# %% [markdown]
# The lines begin with the rank that said them. Find, for each rank, the last line that stands in
# the script; the next cell prints these lines of the script. Who waits for whom? And did the stall
# check say anything?

# %%
import re

alarms = (hung.folder / "ranks" / "launcher.err").read_text()
script = only_0.read_text().splitlines()
for rank, number in re.findall(rf"\[(\d)\].*{only_0.name}\", line (\d+)", alarms):
    print(f"rank {rank} stands in line {number}: {script[int(number) - 1].strip()}")
print("The stall check named the missing ranks:", "Missing ranks" in alarms)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 waits in the all-reduce of the loss. Rank 1 never joins it: it is one step further and
# waits in `optimizer.step()` for the gradients of rank 0. Names do not help here: a tensor that one
# rank never hands over is never ready everywhere. **Every rank must hand over every name.**
# (Without `name=` it gets worse: the ranks number such operations themselves, so one that only rank
# 0 calls shifts its numbers, and later ones meet the wrong partner.)
#
# And the alarm? With the build of this course it stays silent. The source shows why: the gloo
# controller of Horovod 0.28.1 reserves room for its list of ranks and never gives the list a
# length, so the stall check walks over an empty list and finds nobody missing. (The MPI controller
# does it right.) With gloo there is no time-out for this either. So a Horovod program with gloo can
# wait for ever in silence: set an alarm clock.
# </details>

# %% [markdown]
# ## When ranks come and go: elastic Horovod
#
# Horovod can go on when a rank dies, and take in new ones while it runs. The script wraps its
# training function in `hvd.elastic.run`, keeps model, optimizer and step in a `TorchState`, and
# calls `state.commit()` now and then; `horovodrun` gets `--min-np`, `--max-np` and a script that
# lists the hosts that are there. If a rank is lost, the others go back to the last commit and go on
# with fewer. It works with the build of this course too (gloo: a killed worker, and a second one
# that joins later). Note what it means for the training: the number of ranks changes, and with it
# the global batch, unless your script keeps it.

# %% [markdown]
# ## Exercise
#
# ### First: from DDP to Horovod
#
# Turn the DDP script into a Horovod script. The next cell writes your starting point.

# %%
from bootcamp import exercise

print(exercise.start("with_horovod"))

# %% [markdown]
# Edit the file, save it, run the next cell. It runs *your* script with Horovod on two ranks,
# with both optimizers, and holds it against the baseline. `exercise.solution("with_horovod")` shows
# the solution as a diff. (Never name a script `horovod.py`: `import horovod` would find that.)

# %%
print(exercise.check("with_horovod"))

# %% [markdown]
# ### Second: the same steps in one process
#
# To prove that a Horovod script trains right, you need the run in one process that makes the same
# steps. The script says `SGD(lr=rate * hvd.size())` and `backward_passes_per_step=passes`. Each
# backward takes the mean loss of `batch` samples, and divides it by nothing. How many samples does
# one process have to train on in a step, and with which learning rate? The sections "The learning
# rate is yours" and "Several backwards, one all-reduce" say what is averaged and what is added up.
# Write the function in place of the three dots and run the cell. (It needs no Horovod.) The
# solution is one step away: `exercise.solution("in_one_process")`.


# %%
def in_one_process(rate, batch, ranks, passes):
    """Samples in a step, and the learning rate, of one process that makes the same steps.

    batch: samples in one backward of one rank. Returns both: samples, learning rate.
    """
    ...


print(exercise.check("in_one_process", in_one_process))

# %% [markdown]
# ## When to use it and when not
#
# **Use Horovod**
# - when you have to run a program that was written for it, and it works. You can now read it, prove
#   it and find its faults.
# - when one way of working shall serve TensorFlow and PyTorch alike, or when it comes with the
#   platform: it runs on MPI clusters, on Spark and on Ray.
#
# **Do not start a new PyTorch project with it.**
# - The last release, 0.28.1, is of June 2023. It has to be compiled against each new PyTorch, and
#   with the present one it only compiles after a nudge (`tools/horovod.py` says which).
# - PyTorch's own DDP does the same training, as the proof shows. It is installed with PyTorch,
#   tested with each release, and the ways of training that need more than data parallelism (sharded
#   models, tensor and pipeline parallelism) build on the same process groups. Horovod has
#   data parallelism and bare collectives.
# - Frameworks have left it: Lightning 2 has no `horovod` strategy any more.
#
# **If you move a program from Horovod to DDP:** `hvd.rank()` and `hvd.size()` become those of
# `torch.distributed`; wrap the model instead of the optimizer; the broadcast lines go; an
# all-reduce is a sum now, so divide; keep the factor at the learning rate if there was one; and
# prove it.
#
# Lessons 03 to 05 were about data parallelism. The next cell shows which predictions and exercises
# you have done so far, and which exercises are left.

# %%
from bootcamp.classroom.journal import progress

progress()

# %% [markdown]
# ## Sources
#
# - Sergeev and Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow*, 2018,
#   arXiv:1802.05799. Tensor fusion, the timeline.
# - Horovod 0.28.1, source package (12 June 2023): README.rst (the published scaling, the advice on
#   the learning rate), `horovod/torch/functions.py` (the zero step), `horovod/common/operations.cc`
#   (cycle, fusion and their defaults), `horovod/common/gloo/gloo_controller.cc` and
#   `stall_inspector.cc` (the silent alarm).
# - Graham et al., *Scalable Hierarchical Aggregation Protocol (SHArP)*, COM-HPC 2016: a network
#   that adds on the way.
# - Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
#   Journal of Parallel and Distributed Computing 69, 2009. The ring.
# - Gibiansky, *Bringing HPC Techniques to Deep Learning*, Baidu Research, 2017. The ring for
#   gradients.
# - Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017,
#   arXiv:1706.02677. The linear scaling rule.
# - Maleki et al., *Scaling Distributed Training with Adaptive Summation*, 2020, arXiv:2006.02924.
#   Adasum.
