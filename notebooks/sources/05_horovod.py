# %% [markdown]
# # 05 Horovod: a ring of ranks, and an optimizer that talks
#
# **33 minutes** for the core, on any machine; parts marked *(optional)* come on top. The ranks are
# CPU cores, even where there are GPUs.
#
# After this lesson you can read and start a Horovod script, say what Horovod does *not* do for you,
# prove that it trains the same model, and port such a script to DDP without changing its training.

# %% [markdown]
# ## The question
#
# **Horovod** came from Uber in 2017, for TensorFlow first, and its idea of how to train on many
# GPUs shaped what followed. One day you may have to run, repair or replace a program that uses it.
# What does Horovod do, does it train the same model, and what does it leave to you?

# %%
from bootcamp import launch, machine, replay, warm_up

warm_up()
horovod = replay.RecordedRuns("05_horovod", needs="horovod")
horovod

# %% [markdown]
# Horovod has to be compiled against the installed PyTorch. `make horovod` does it in the folder of
# this course, for CPU ranks, with gloo and any MPI that it finds. (For GPUs it has to be built
# against CUDA and NCCL.) Where it is not built, recorded runs replace its runs, and are marked as
# recorded.

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
# Horovod is data parallelism, as in lesson 04: every rank holds the model, takes its share of the
# batch, and the ranks average their gradients. `hvd.init()` (`import horovod.torch as hvd`) needs
# no address: `horovodrun`, which starts the processes, tells them where to meet. (`-np 4` starts
# four here; `-np 8 -H one:4,two:4` starts four on each of two hosts, which it reaches by ssh.)
#
# Some people say that Horovod takes care of the learning rate. Does it?

# %%
from bootcamp import predict

guess_rate = predict(
    "horovod_rate",
    "SGD has the learning rate 0.05. What is it after hvd.DistributedOptimizer has wrapped the "
    "optimizer on two ranks?",
)
guess_rate

# %%
import re

from IPython.display import display

from bootcamp_lessons.excerpts import SNIPPETS, parse_printed, show_snippet

show_snippet("horovod_ranks.py")
quietly = {"device": "cpu", "quiet": True}
ranks = horovod.launch("ranks", SNIPPETS / "horovod_ranks.py", 2, **quietly)
lines = "\n".join(replay.read_printed_lines(ranks))
print(lines)
guess_rate.score(float(re.search(r"wrapped ([\d.]+)", lines)[1]))

# %% [markdown]
# `local_rank` counts within one host; with GPUs it chooses the GPU. `hvd.allreduce` gives the
# *mean* unless you ask for another operation; torch's `all_reduce` gives the sum. And wrapping the
# optimizer leaves the learning rate alone.
#
# ### The ring, step by step
#
# Horovod was built on the **ring all-reduce**, which lesson 04 pictured. Here real ranks do it with
# nothing but sending and receiving ([horovod_ring.py](../src/snippets/horovod_ring.py)). Each rank
# cuts its numbers into as many pieces as there are ranks. In each step it sends one piece to the
# next rank and receives one.

# %%
guess_steps = predict(
    "horovod_steps",
    "3 ranks, and in each step every rank sends one of its 3 pieces to the next rank. "
    "After how many steps can every rank hold the sum of all pieces?",
    unit="steps",
)
guess_steps

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import horovod as diagrams

circle = launch(SNIPPETS / "horovod_ring.py", 3, **quietly)
each = parse_printed(circle)
assert all(sum(rank["held"][-1], []) == rank["total"] for rank in each), "not the sum"
plots.show(diagrams.ring(each))
guess_steps.score(len(each[0]["sent"]))

# %% [markdown]
# Rank 0 began with 1 to 6, rank 1 with 10 to 60, rank 2 with 100 to 600, so the digits tell whose
# numbers are in a sum. With *N* ranks there are *N*-1 steps that add and *N*-1 that pass on. In
# every step each rank sends 1/*N* of the numbers: 2(*N*-1)/*N* times its data in total, less than
# twice, however many ranks there are. But the number of *steps* grows with *N*, and each waits for
# a message to arrive, so small tensors are slow on a long ring.
#
# The ring is older than Horovod: Patarasuk and Yuan showed in 2009 that no all-reduce among ranks
# alone can do with fewer bytes per rank. Baidu brought the ring to deep learning.
#
# ### Names, and a coordinator
#
# In lesson 04 collectives were matched by their order, each rank's first with the others' first,
# and ranks that called them in a different order added apples to oranges. Horovod's collectives
# have **names**. Here two ranks add up a loss of 1 and a count of 1000, in opposite orders.
# (`allreduce_async` returns at once; `synchronize` waits for the result.)

# %%
show_snippet("horovod_names.py")
names = horovod.launch("names", SNIPPETS / "horovod_names.py", 2, **quietly)
answers = replay.read_printed_lines(names)
assert sum("{'loss': 2.0, 'tokens': 2000.0}" in line for line in answers) == 2
print("\n".join(answers))

# %% [markdown]
# With names each number found its partner. Without, Horovod numbers the operations itself, on each
# rank in its own order, and loss met count. For names to work, Horovod has to find out what is
# ready *everywhere*: each rank has a **background thread** for it, and rank 0's is also the
# **coordinator**. One **cycle** of them:

# %%
plots.show(diagrams.one_cycle())

# %% [markdown]
# The script hands over a gradient as soon as the backward pass has it, and goes on. The background
# threads agree on what to reduce, copy small tensors into one large buffer (**tensor fusion**),
# reduce that over the ring, and copy the means back.
#
# ## Predict
#
# Rank 0 may have loaded a checkpoint. So Horovod's examples call `broadcast_optimizer_state` before
# they train: it gives all ranks the state of rank 0's optimizer.

# %%
guess_taken = predict(
    "horovod_steps_taken",
    "A new AdamW, not a single batch seen. How many steps has it taken after "
    "hvd.broadcast_optimizer_state?",
    unit="steps",
)
guess_taken

# %% [markdown]
# ## What changes
#
# From DDP to Horovod:

# %%
from bootcamp import script_diff

script_diff("horovod")

# %% [markdown]
# - `hvd.init()` joins the ranks. No backend and no timeout: Horovod has none to set here. (The
#   argument of `config.parse` is the course's: a Horovod without NCCL takes no tensors on GPUs.)
# - The *model* is left alone, and the **optimizer** is wrapped: `DistributedOptimizer` puts a hook
#   on each parameter that hands its gradient over under the parameter's name. `optimizer.step()`
#   waits for the means. (DDP waits within `loss.backward()`.)
# - `broadcast_parameters` gives all ranks rank 0's parameters. DDP does this by itself when it
#   wraps the model; with Horovod it is your line, and your mistake if it is missing.
# - `broadcast_optimizer_state` is under an `if`. Without the `if`:

# %%
from bootcamp import check, variant

broadcast = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)"
taken = "print(next(iter(optimizer.state.values()))['step'].item())"
changes = {
    "if optimizer.state:": "if True:",
    broadcast: f"{broadcast}\n{taken}",
}
always = variant("horovod", "horovod_fresh_state", changes)
base = horovod.launch("baseline-adamw", "cpu", 1, optimizer="adamw", **same)
fresh = horovod.launch("fresh-state", always, RANKS, **same)
trap = check.compare(fresh, base)
assert trap.failed, "the trap is gone from this version of Horovod"
display(trap)
guess_taken.score(float(replay.read_printed_lines(fresh)[0]))

# %% [markdown]
# A new AdamW has no state, nothing to send. So Horovod sets all gradients to zero and takes a step,
# to make some. That step is not nothing: AdamW's **weight decay** makes all parameters a little
# smaller, and its step counter begins at 1. So this is not the baseline's training, and yet the
# loss falls. (With SGD without weight decay nothing would happen: a proof needs both optimizers.)
#
# ### The learning rate is yours
#
# Bare Horovod averages the gradients and does not touch the learning rate. Its documentation tells
# *you* to "scale the learning rate by the number of workers": the **linear scaling rule** (Goyal et
# al., 2017; lesson 04c tries it), for a fixed batch *per rank*, where more ranks make a larger
# global batch. It has nothing to do with the averaging: with the same global batch, as in our
# proofs, the rate must not change.
#
# What people remember is true of a wrapper: Lightning's `strategy="horovod"` multiplied the rate by
# the number of ranks (lesson 04d). So before you port a program, look for `hvd.size()` beside the
# rate, and for such a wrapper.

# %% [markdown]
# ## Run it
#
# `horovodrun` starts the ranks, and tells them `HOROVOD_RANK`, `HOROVOD_SIZE` and the address where
# they find each other.

# %%
loud = {**same, "quiet": False, "start": "horovodrun"}
run = horovod.launch("horovod", "horovod", RANKS, **loud)
ddp = horovod.launch("ddp", "ddp", RANKS, **same)
plots.show(plots.throughput(base, ddp, run))

# %% [markdown]
# ## Read the measurement
#
# Do not read the speeds as Horovod's. Each rank has a background thread beside the one that trains,
# and no core for it; a step is about ten all-reduces, each begun at a cycle's end. For so small a
# model that can cost more than a second rank brings. On GPUs the main thread only launches. The
# bytes say more:

# %%
from bootcamp import claim

claim.equal(
    "horovod_bytes",
    "A rank of Horovod sends 2(N-1)/N times the bytes of its gradients in a step: DDP's formula.",
    run.ranks[0]["sent_bytes_per_step"],
    ddp.predicted_sent_bytes_per_step,
    within=0.1,
    supported="Both use gloo's ring. What goes beyond the formula is the talk about names.",
)

# %% [markdown]
# ### Several backward passes, one all-reduce
#
# Lesson 04b accumulated gradients with `no_sync`. In Horovod `backward_passes_per_step` says after
# how many backward passes to average. Look for the division.

# %%
accumulate = SNIPPETS / "horovod_accumulate.py"
script_diff(accumulate, parent="horovod")

# %% [markdown]
# Horovod averages over the *ranks* and sums over the *passes*. With SGD, which shows a wrong scale
# at once, with the division and without:

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
# ## Timeline, fusion, compression (optional)
#
# ### The timeline
#
# The environment variable `HOROVOD_TIMELINE` names a file in which Horovod notes what it does with
# each tensor. You can open it in `chrome://tracing` or Perfetto. One step of it, a line for each
# tensor:

# %%
noted = {"HOROVOD_TIMELINE": "{run}/timeline.json"}
traced = horovod.launch("timeline", "horovod", RANKS, env=noted, **same)
steps = diagrams.read_timeline(traced.folder / "timeline.json")
plots.show(diagrams.timeline(steps[-1], traced))

# %% [markdown]
# Grey: a rank has reported the tensor ready, and it waits, for the other ranks or for the
# all-reduce before it. Orange: it is reduced, together with the others of its block. Tensors are
# grouped as they happen to become ready, so the groups differ from step to step. DDP's buckets stay
# the same.
#
# ### Tensor fusion and cycle time
#
# **`HOROVOD_FUSION_THRESHOLD`** is the size of the buffer in bytes (128 MiB by default); 0 switches
# fusion off. **`HOROVOD_CYCLE_TIME`** is how long a cycle lasts at least, in milliseconds (1 by
# default): the longer it is, the more tensors are ready at its end, and the longer the first of
# them has waited.

# %%
knobs = {
    "no-fusion": {"HOROVOD_FUSION_THRESHOLD": 0},
    "cycle-of-50-ms": {"HOROVOD_CYCLE_TIME": 50},
}
counts = {"default": diagrams.count_all_reduces(traced)}
for name, setting in knobs.items():
    tried = horovod.launch(name, "horovod", RANKS, env={**noted, **setting}, **same)
    counts[name] = diagrams.count_all_reduces(tried)
print("all-reduces a step:", counts)
assert counts["cycle-of-50-ms"] < counts["no-fusion"] / 2, "long cycles should fuse many tensors"
claim.equal(
    "horovod_unfused",
    "Without fusion every gradient, and the loss, is an all-reduce of its own.",
    counts["no-fusion"],
    diagrams.count_tensors(traced),
    kind="count",
)

# %% [markdown]
# Without fusion each all-reduce has its 2(*N*-1) steps. With long cycles there are few, but the
# optimizer waits for the last gradient, and that one for its cycle's end. The best setting depends
# on model, ranks and network; `horovodrun --autotune` searches for it.
#
# ### Half the bytes: fp16 compression
#
# `compression=hvd.Compression.fp16` casts the gradients to 16 bits before they are sent and back
# after.

# %%
wrap = "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())"
half = wrap[:-1] + ", compression=hvd.Compression.fp16)"
fp16 = variant("horovod", "horovod_fp16", {wrap: half})
compressed = horovod.launch("fp16", fp16, RANKS, **same)
rounded = check.compare(compressed, base).failed[-1]
print(f"{rounded['compared']}: {rounded['measured']:.0e}, allowed {rounded['allowed']:.0e}")
full = run.ranks[0]["sent_bytes_per_step"]
claim.equal(
    "horovod_fp16_bytes",
    "With fp16 compression a rank sends half as many bytes.",
    compressed.ranks[0]["sent_bytes_per_step"],
    (full or 0) / 2,
    within=0.1,
)

# %% [markdown]
# Half the bytes, and rounding that a proof does not allow. Very small gradients become zero in
# fp16, and large sums overflow. Whether it saves *time* depends on the network. (bfloat16 has the
# range of float32, but Horovod 0.28.1 cannot reduce it.)
#
# ### What else you may meet
#
# - **Adasum** (`op=hvd.Adasum`; Maleki et al., 2020) is neither mean nor sum: for two gradients
#   that point the same way it gives their mean, for two at a right angle their sum.
# - **Process sets** are Horovod's sub-groups of ranks: `evens = hvd.ProcessSet([0, 2])`, announced
#   with `hvd.init(process_sets=[evens])`; collectives and the optimizer take `process_set=evens`.
# - **Elastic Horovod** (`hvd.elastic.run`) goes on when a rank dies, from the last
#   `state.commit()`. The number of ranks changes, and with it the global batch.

# %% [markdown]
# ## Prove it
#
# The run from above with AdamW and another one with SGD: samples, losses and final parameters of
# all ranks against the CPU baseline. Equality alone does not say that Horovod was at work, so the
# records also say who started the ranks, and what `hvd.size()` was.
#
# On clusters ranks are often started by **MPI**, an older standard for programs of many processes:
# `mpirun -np 2 python src/_train_horovod.py`. The script stays as it is. Horovod asks MPI who is
# who, and reduces with MPI's all-reduce in place of gloo's. Where it was built with MPI, two such
# ranks train here, too ([horovod_mpi.py](../src/snippets/horovod_mpi.py)).

# %%
import time

from bootcamp import Run, run_command
from bootcamp.paths import LOGS

sgd = horovod.launch("horovod-sgd", "horovod", RANKS, optimizer="sgd", **same)
for proof in (check.same_training(run, base), check.same_training(sgd, base_sgd)):
    display(proof)
assert run.summary["launcher"] == "horovodrun"
assert run.summary["world_size"] == len(run.ranks) == run.world
print(f"started by {run.summary['launcher']}, hvd.size() is {run.summary['world_size']}")
if horovod.ready:
    over_mpi = LOGS / f"mpirun-{time.time_ns()}"
    flags = ["--global-batch", str(BATCH), "--optimizer", "sgd", "--run-dir", str(over_mpi)]
    mpi = ["python", str(SNIPPETS / "horovod_mpi.py"), "--device", "cpu", "--steps", "12", *flags]
    print(run_command(mpi), end="")
    if over_mpi.exists():
        print("started by", Run(over_mpi).summary["launcher"])
        display(check.same_training(Run(over_mpi), base_sgd))

# %% [markdown]
# ### A script as you will meet it
#
# Many older programs look like this one: the rate is multiplied by `hvd.size()`, and gradients are
# clipped. Clipping needs the means, so `optimizer.synchronize()` comes first. Then
# `optimizer.step()` runs within `optimizer.skip_synchronize()`, or it averages a second time.

# %%
script_diff(SNIPPETS / "horovod_scaled.py", parent="horovod")

# %% [markdown]
# What does it train? Not what the baseline trains, but what one process trains with `RANKS` times
# the rate and the same clipping:

# %%
from bootcamp_lessons.exercises import ports

scaled = horovod.launch("scaled", SNIPPETS / "horovod_scaled.py", RANKS, optimizer="sgd", **same)
counterpart = ports.write_one_process_script(RANKS)
alone = horovod.launch("scaled-alone", counterpart, 1, optimizer="sgd", **same)
assert check.compare(scaled, base_sgd).failed, "the factor at the rate was not noticed"
display(script_diff(counterpart, parent="gpu"))
check.same_training(scaled, alone)

# %% [markdown]
# ## Break it
#
# ### First: everything ran, nothing failed
#
# Two programs that look right. In the first, `broadcast_parameters` is missing and each rank draws
# its initial parameters with a seed of its own. In the second, the data line is still that of one
# process. What do you expect their losses to look like?

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
# Which of the two do you see in the curves? The checker:

# %%
for each in (apart, whole):
    proof = check.compare(each, base)
    assert proof.failed, f"the checker did not notice {each.strategy}"
    display(proof)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Without the broadcast each rank trains a model of its own, and the mean is over gradients of
# different models. The loss falls all the same. As long as all ranks draw their parameters with the
# same seed the mistake hides, until one loads a checkpoint that the others do not see.
#
# With the full batch on every rank the curve *is* the baseline's. All ranks do the same work, the
# mean of equal gradients is the gradient, and you pay for several devices to get the speed of one.
# Only the ids of the samples show it.
# </details>
#
# ### Second: a program that hangs (optional)
#
# "Only rank 0 writes the loss, so only rank 0 needs its mean." Horovod has an alarm for that, the
# stall check: after 60 seconds, here 2, it should name the tensor and the ranks that are missing.
# In case it does not, Python's `faulthandler` prints the stack of each rank after 6 seconds, and
# ends it. Which rank waits for what?

# %%
begun = 'average = hvd.allreduce_async_(mean_loss, name="mean_loss")'
ended = "run.loss(mean_loss, partial(hvd.synchronize, average))"
mean = 'mean_loss = hvd.allreduce(mean_loss, name="mean_loss")'
changes = {begun: f"if rank == 0:\n    {mean}", ended: "run.loss(mean_loss)"}
alarm = "import faulthandler\nfaulthandler.dump_traceback_later(6, exit=True)"
begins = "run = record.Run(context, model, optimizer, batches, world)"
changes[begins] = f"{begins}\n{alarm}"
only_0 = variant("horovod", "horovod_only_rank_0", changes)
stall = {"env": {"HOROVOD_STALL_CHECK_TIME_SECONDS": 2}, "raises": False, **same}
stall["start"] = "horovodrun"
hung = horovod.launch("only-rank-0", only_0, 2, **stall)
assert hung.status == "failed", "ranks that disagree should not train on"
alarms = (hung.folder / "ranks" / "launcher.err").read_text()
print("\n".join(diagrams.find_last_lines(alarms, only_0)))
print("The stall check named the missing ranks:", "Missing ranks" in alarms)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 waits in the all-reduce of the loss. Rank 1 never joins it: it is one step further and
# waits in `optimizer.step()` for the gradients of rank 0. Names do not help here: a tensor that one
# rank never hands over is never ready everywhere. **Every rank must hand over every name.**
#
# And the alarm? With the build of this course it stays silent. The source shows why: the gloo
# controller of Horovod 0.28.1 reserves room for its list of ranks and never gives the list a
# length, so the stall check walks over an empty list and finds no rank missing. With gloo there is
# no timeout for this either. So a Horovod program with gloo can wait forever in silence: set an
# alarm of your own.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: from Horovod to DDP
#
# | Horovod | DDP |
# |---|---|
# | `horovodrun -np 4 python x.py` | `torchrun --nproc-per-node 4 x.py` |
# | `hvd.init()` | `dist.init_process_group(...)` |
# | `hvd.rank()`, `hvd.size()` | `dist.get_rank()`, `dist.get_world_size()` |
# | `hvd.local_rank()` | `int(os.environ["LOCAL_RANK"])` |
# | `hvd.DistributedOptimizer(optimizer, ...)` | `DistributedDataParallel(model)`, optimizer bare |
# | `hvd.broadcast_parameters(...)` | nothing: DDP does it |
# | `hvd.broadcast_optimizer_state(...)` | nothing, if every rank loads the checkpoint |
# | `lr * hvd.size()` | `lr * world`: the factor stays |
# | `hvd.allreduce(x, name=...)`: a mean | `dist.all_reduce(x)`, a sum in place: `x /= world` |
# | `synchronize()`, clip, `skip_synchronize()` | clip after `backward()` |
# | `backward_passes_per_step=k` | `model.no_sync()` for the first k-1 passes; both add them up |
# | `compression=hvd.Compression.fp16` | `model.register_comm_hook(None, fp16_compress_hook)` |
# | `hvd.ProcessSet([0, 2])` | `dist.new_group([0, 2])` |
#
# Port the script from the section above. It must go on training what it trains now. (You need no
# Horovod for it.) Edit the file that this cell writes, and save it.

# %%
from bootcamp import exercise

print(exercise.start("from_horovod"))

# %% [markdown]
# The check runs *your* script on two ranks with SGD, against one process with twice the rate.
# `exercise.solution("from_horovod")` shows the solution as a diff.

# %%
print(exercise.check("from_horovod"))

# %% [markdown]
# ### Second: the same steps in one process (optional)
#
# Another script says `SGD(lr=rate * hvd.size())` and `backward_passes_per_step=passes`. Each
# backward pass takes the mean loss of `batch` samples, and the script does not divide it by
# `passes`. With how many samples in a step, and which learning rate, does one process make the same
# steps? Write the function in place of the three dots. The solution:
# `exercise.solution("in_one_process")`.


# %%
def in_one_process(rate, batch, ranks, passes):
    """Samples in a step, and the learning rate, of one process that makes the same steps.

    batch: samples in one backward pass of one rank. Returns both: samples, learning rate.
    """
    ...


print(exercise.check("in_one_process", in_one_process))

# %% [markdown]
# ## When to use it and when not
#
# **Use Horovod** to run a program that was written for it and works, or where it comes with the
# platform: it runs on MPI clusters, on Spark and on Ray, for TensorFlow and PyTorch alike.
#
# **Do not start a new PyTorch project with it.**
# - *Maintenance*: the latest release, 0.28.1, dates from 12 June 2023 (PyPI). It has to be compiled
#   against each new PyTorch, and with the present one only by a workaround (`tools/horovod.py` says
#   which). Lightning deprecated its Horovod strategy in 1.9 and removed it in 2.0.
# - PyTorch's own DDP does the same training, as the proof shows. It is installed with PyTorch and
#   tested with each release. What needs more than data parallelism (sharded models, tensor and
#   pipeline parallelism) builds on the same process groups.
#
# ## Sources
#
# - Sergeev and Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow*, 2018,
#   arXiv:1802.05799. Tensor fusion, the timeline.
# - Horovod 0.28.1, source package (12 June 2023): README.rst (the advice on the learning rate),
#   `horovod/torch/functions.py` (the zero step), `horovod/torch/optimizer.py`
#   (`skip_synchronize`), `horovod/common/operations.cc` (cycle, fusion and their defaults),
#   `horovod/common/gloo/gloo_controller.cc` and `stall_inspector.cc` (the silent alarm).
# - PyTorch Lightning 1.9.5, `pytorch_lightning/strategies/horovod.py`: `HorovodStrategy.setup`
#   multiplies the rates; deprecated since 1.9.0.
# - Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
#   Journal of Parallel and Distributed Computing 69, 2009. The ring.
# - Gibiansky, *Bringing HPC Techniques to Deep Learning*, Baidu Research, 2017. The ring for
#   gradients.
# - Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017,
#   arXiv:1706.02677. The linear scaling rule.
# - Maleki et al., *Scaling Distributed Training with Adaptive Summation*, 2020, arXiv:2006.02924.
#   Adasum.
