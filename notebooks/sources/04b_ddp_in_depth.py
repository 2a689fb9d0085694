# %% [markdown]
# # 04b DDP in depth: its options, its limits, and what is built on it
#
# **90 minutes**, on any machine, after lesson 04. Each section stands alone: read those you need.
#
# After this lesson you can choose DDP's bucket size and its options by measuring, compress what it
# sends and say what that does to the result, train with ranks that have unequally much to do, tell
# local SGD from DDP, keep BatchNorm from changing the training, survive the death of a rank, say
# what NCCL does, and read a Lightning or Accelerate program as the DDP script that it is.

# %% [markdown]
# ## The question
#
# Lesson 04 wrapped a model in `DistributedDataParallel` and was done. What can be set there, and
# what is it worth? Where does "the same training as one process" stop to hold?
#
# The next cell starts to load PyTorch in the background.

# %%
from bootcamp import Options, available, default_ranks, gpu_count, launch, run_command, warm_up

warm_up()

# %% [markdown]
# The next cell chooses what this lesson works with, as in lesson 04: a rank for every GPU if there
# are several, else for every core (at least two, at most eight). A rank on a CPU core says so.

# %%
RANKS = max(2, min(8, default_ranks()))
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
BATCH = 16 * RANKS
print(f"{RANKS} ranks on {'GPUs' if DEVICE == 'cuda' else 'CPU cores'}, {BATCH} samples a step.")

# %% [markdown]
# ## The idea
#
# DDP averages gradients while the backward goes on. A gradient that is ready is copied into a
# **bucket**, a piece of memory that holds many gradients side by side. A full bucket goes to a
# **communication hook**: a function that gets the bucket and returns it averaged over the ranks.
# The usual hook is one all-reduce. The next cell draws the way. Look at where each option takes
# hold.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import ddp_options

plots.show(ddp_options.way_of_a_bucket())

# %% [markdown]
# ## Predict
#
# Three predictions. The first: **PowerSGD** is a hook that sends two thin matrices instead of a
# gradient matrix. A gradient of *n* × *m* numbers is replaced by a product of *n* × *r* and *r* ×
# *m* numbers that comes near it; *r* is called the rank (of a matrix; it has nothing to do with
# ranks that are processes). With *r* = 1 that is one column and one row. The model will be the toy
# MLP at size small, whose largest layers have 1024 × 1024 weights. The next cell asks.

# %%
from bootcamp import predict

guess_powersgd = predict(
    "ddp_in_depth_powersgd",
    "PowerSGD with r = 1 instead of whole gradients: by what factor does a rank send less?",
    unit="times",
    answer=None,
)
guess_powersgd

# %% [markdown]
# The second: a checkpoint is written after every 5 steps (after steps 4, 9, and so on, for steps
# count from 0). A rank is killed as it begins step 8, and all ranks start again from the
# checkpoint.

# %%
guess_again = predict(
    "ddp_in_depth_again", "How many steps are trained a second time?", unit="steps", answer=None
)
guess_again

# %% [markdown]
# The third: Lightning is a framework that takes the training loop out of your hands.

# %%
guess_lightning = predict(
    "ddp_in_depth_lightning",
    "The same training in Lightning: at what percentage of the bare DDP script's speed?",
    unit="%",
    answer=None,
)
guess_lightning

# %% [markdown]
# ## What changes
#
# One script has the options of DDP as flags. The next cell shows what it adds to the DDP script of
# lesson 04.

# %%
from bootcamp import script_diff

script_diff("ddp_options")

# %% [markdown]
# - `bucket_cap_mb` is the size in MiB at which a bucket counts as full.
# - `gradient_as_bucket_view` lets the gradients lie in the buckets.
# - `static_graph` promises that every step uses the same parameters in the same way.
# - `register_comm_hook(state, hook)` sets the hook. `bf16_compress` shows how one is made: halve
#   the numbers' size, start an all-reduce, and return a **future**, a promise of the result, so
#   that the backward goes on meanwhile. The `then` part runs when the sum is there.
#
# None of this averages parameters. DDP averages gradients, in whatever form they travel.

# %% [markdown]
# ## Run it
#
# First the buckets. The next cell trains with four bucket sizes, three times each, in turns: so a
# slow moment of this machine does not meet one size alone.

# %%
sweep_flags = {"device": DEVICE, "steps": 10, "global_batch": BATCH, "trace_step": 7}
bucket_runs = [
    launch("ddp_options", RANKS, bucket_mb=size, quiet=True, **sweep_flags)
    for _ in range(3)
    for size in (25, 1, 0.25, 0.05)
]
bucket_gradients = bucket_runs[0].ranks[0]["gradient_bytes"]
print(f"{len(bucket_runs)} runs; the gradients are {bucket_gradients / 2**20:.2f} MiB in all.")

# %% [markdown]
# ## Read the measurement
#
# ### Bucket size
#
# The next cell draws the runs by the number of buckets that the traced step really had. Look at how
# far circles of one setting lie apart, before you compare settings.

# %%
plots.show(ddp_options.bucket_sweep(bucket_runs))

# %% [markdown]
# Read it in this order.
#
# - **The right panel.** A single bucket is full only when the backward is nearly over, so little
#   can overlap. With more buckets communication begins earlier, and more of it runs beside the
#   computation. It also tends to take longer in total: each all-reduce has a fixed cost, and
#   waiting for the others counts too.
# - **The left panel.** Is one setting clearly better than the spread of the circles? Here the model
#   is small, so the difference may be noise. On CPU ranks, moreover, the threads that communicate
#   need the core that computes.
#
# So: for a model with less than 25 MiB of gradients there is rarely much to gain. For a large one
# on GPUs, measure sizes from some MiB to some hundred. A slow start of each all-reduce (many ranks,
# a network) asks for larger buckets, a long backward allows smaller ones. A parameter is never cut:
# one that is larger than the cap makes its bucket larger than the cap.
#
# ### Gradients that lie in the buckets
#
# By default a gradient exists twice: in `parameter.grad`, and in its bucket. The next cell shows a
# script that counts the memory behind both; memory that is shared counts once.

# %%
from IPython.display import Markdown, display

from bootcamp.paths import LOGS, SRC

SNIPPETS = SRC / "snippets"
memory_script = SNIPPETS / "ddp_bucket_memory.py"
Markdown(f"```python\n{memory_script.read_text()}```")

# %% [markdown]
# The next cell runs it without the option and with it. Compare the last column.

# %% tags=["nbval-check-output"]
import json

from bootcamp import Table

small = {"ranks": 2, "device": "cpu", "quiet": True}
rows = []
for view in (False, True):
    counted = json.loads(launch(memory_script, bucket_view=view, **small).output(0))
    rows.append({"gradient_as_bucket_view": str(view), **counted})
assert rows[1]["together"] == rows[0]["together"] / 2, "the views did not save the second copy"
Table(rows, "MB (10^6 bytes) on rank 0, counted from storages")

# %% [markdown]
# The option saves one copy of all gradients, and the time to copy them back. It is off by default:
# a gradient is then a view of a bucket, and code that calls `.detach_()` on it fails. That is rare
# today; `optimizer.zero_grad()` is fine.
#
# ### Parameters that take no part, and the static graph
#
# DDP counts: a bucket is sent when all its gradients are there. A parameter that the forward did
# not use gets no gradient, its bucket never fills, and the step can't be completed. The next cell
# takes one block out of the forward and runs that in three ways. What does DDP say by default?

# %%
import textwrap

from bootcamp import variant

wrap = "model = DistributedDataParallel(model)"
skip = "model[3].forward = lambda x: x  # the block's parameters take no part"
options = {"default": "", "find": ", find_unused_parameters=True", "static": ", static_graph=True"}
few = {"device": DEVICE, "steps": 10, "global_batch": BATCH, "quiet": True}
skipping = {}
for name, option in options.items():
    change = {wrap: f"{skip}\nmodel = DistributedDataParallel(model{option})"}
    script = variant("ddp", f"ddp_skips_{name}", change)
    skipping[name] = launch(script, RANKS, raises=False, **few)
print(textwrap.fill(skipping["default"].summary["error"]["message"], 96))

# %% [markdown]
# Look at the numbers after "did not receive grad": they count the parameters in the order of
# `model.parameters()`. The next cell asks how the other two ended.

# %%
assert skipping["default"].status == "failed", "DDP did not notice the unused parameters"
for name in ("find", "static"):
    assert skipping[name].status == "ok", f"{options[name]} did not help"
    print(f"{options[name][2:]}: ok, {1e3 * skipping[name].seconds_per_step:.0f} ms per step")

# %% [markdown]
# - `find_unused_parameters=True` looks through the graph of operations after every forward and
#   marks what is missing as ready. It costs time in each step, and allows another path in every
#   step.
# - `static_graph=True` looks once, in the first step, and then relies on it: which parameters are
#   used, and how. It is cheaper, and it allows what DDP refuses otherwise, such as a parameter that
#   is used twice under activation checkpointing. If the graph does change later, the promise was
#   false, and nobody guarantees the result.
#
# If a parameter is unused by mistake, neither is the cure.

# %% [markdown]
# ### Communication hooks
#
# Now the form in which gradients travel: as they are (`none`), in 16 bits (`fp16`, `bf16`), or as
# two thin matrices (`powersgd`). The next cell runs all four on CPU ranks, where the bytes are
# counted; on a machine with several GPUs it runs them there too, for the time.

# %%
from bootcamp import check

HOOKS = ("none", "fp16", "bf16", "powersgd")
mlp = {"model": "mlp", "size": "small", "optimizer": "sgd", "steps": 12, "global_batch": BATCH}


def with_hooks(device):
    return [launch("ddp_options", RANKS, device=device, hook=h, quiet=True, **mlp) for h in HOOKS]


counted = with_hooks("cpu")
timed = with_hooks(DEVICE) if DEVICE == "cuda" else counted
exact = check.baseline(**mlp)

# %% [markdown]
# The next cell holds each against the baseline, which is one process with the same batches. SGD is
# used because its steps are as long as the gradients say. Parameters are compared as in every proof
# of this course: how far apart they end, as a share of the way that the baseline's went.

# %%
rows = []
sent = {hook: run.ranks[0]["sent_bytes_per_step"] for hook, run in zip(HOOKS, counted, strict=True)}
for hook, run, fast in zip(HOOKS, counted, timed, strict=True):
    loss, _, parameters = check.compare(run, exact).rows[-3:]
    row = {"hook": hook, "sent kB per step": sent[hook] and sent[hook] / 1e3}
    row |= {"ms per step": 1e3 * fast.seconds_per_step, "loss apart": loss["measured"]}
    rows.append(row | {"parameters apart": parameters["measured"]})
Table(rows, f"toy MLP, size small, {RANKS} ranks, {len(exact.steps)} steps")

# %% [markdown]
# - **Bytes.** The 16-bit hooks send half. PowerSGD sends far less. (Where the system does not
#   count, the column is empty.)
# - **The result.** `none` differs by rounding. fp16 keeps 11 significant bits and bf16 keeps 8, and
#   one sees it: bf16 is further off. PowerSGD is another training: it leaves a part of each
#   gradient out and adds it to the next one (error feedback).
# - **Time.** On one machine without a network, CPU ranks exchange bytes through memory, which is
#   fast, and compressing costs arithmetic. Do not expect compression to pay here.
#
# fp16 has a largest number, 65,504: the hook divides by the world size before it sends, so that the
# sum does not overflow, but small gradients may become zero. bf16 has the range of fp32. Torch's
# own `bf16_compress_hook` insists on NCCL; the script's runs on gloo too.
#
# When does it pay? When the link is slow. The next cell computes, by formula, how long the counted
# bytes take to leave a host over a link of 1 and of 25 Gbit/s.

# %%
rates = {"1 Gbit/s": 1e9 / 8, "25 Gbit/s": 25e9 / 8}  # in bytes per second
rows = []
for hook in HOOKS:
    times = {f"ms at {name}": 1e3 * (sent[hook] or 0) / rate for name, rate in rates.items()}
    rows.append({"hook": hook, **times})
Table(rows, "Predicted: counted bytes / rate of the link, nothing else")

# %% [markdown]
# Compare it with the measured time of a step above: where sending takes longer than computing, half
# the bytes are nearly half the step.
#
# The script lets PowerSGD send the first two steps whole: trainings are sensitive at their start,
# and DDP rearranges its buckets after the first step. One of the two is in the mean above, since
# counting begins after the first step. The next cell takes it out. It also computes what a rank
# should send, for each matrix one column and one row, biases whole, and scores your first
# prediction.

# %%
from argparse import Namespace

from bootcamp.train import models

model = models.build(Namespace(model="mlp", size="small", seed=0, dtype="float32"))
numbers = sum(sum(p.shape) if p.dim() > 1 else p.numel() for p in model.parameters())
measured = thin = 2 * (RANKS - 1) / RANKS * 4 * numbers  # a ring, 4 bytes a number
steps = len(exact.steps)
if sent["none"]:
    measured = (sent["powersgd"] * (steps - 2) - sent["none"]) / (steps - 3)
    print(f"counted {measured / 1e3:.1f} kB a step, by formula {thin / 1e3:.1f} kB")
    assert abs(measured / thin - 1) < 0.25, "PowerSGD sends something else"
guess_powersgd.score(counted[0].predicted_sent_bytes_per_step / measured)

# %% [markdown]
# ## Prove it
#
# Bucket size, views and static graph must change nothing but time and memory. The next cell proves
# it for all three at once, with both optimizers.

# %%
options = {"bucket_mb": 0.2, "bucket_view": True, "static_graph": True}
for optimizer in ("adamw", "sgd"):
    same = {"steps": 10, "global_batch": BATCH, "optimizer": optimizer}
    run = launch("ddp_options", RANKS, device=DEVICE, quiet=True, **options, **same)
    display(check.same_training(run, check.baseline(**same)))

# %% [markdown]
# And the hooks? The next cell asks the same proof about the four runs from above. It must accept
# the first and reject all that compress.

# %%
for hook, run in zip(HOOKS, counted, strict=True):
    proof = check.compare(run, exact)
    assert bool(proof.failed) == (hook != "none"), f"{hook}: the proof says {proof}"
    print(f"{hook}: {'NOT ' if proof.failed else ''}the baseline's training")

# %% [markdown]
# "Not the same" does not mean "worse": whether a compressed run learns as well is a question for
# longer trainings and for the loss on other data. It means that you have chosen another algorithm,
# and that equality can no longer be used to find mistakes. Find those first, without a hook.

# %% [markdown]
# ## Uneven inputs: `join`
#
# Every rank must call the same collectives. What if one has more batches than another, because the
# data did not divide? In the next script rank 0 has one batch more than rank 1. Each rank's own
# gradient is 1 in every batch.

# %%
join_script = SNIPPETS / "ddp_join.py"
Markdown(f"```python\n{join_script.read_text()}```")

# %% [markdown]
# The next cell runs it without `join` and lets the launcher give it 4 seconds. Who waits where?


# %%
def where_ranks_stand(run, script):
    """Print the line of the script that each rank was in when the launcher asked."""
    lines = script.read_text().splitlines()
    for said in run.summary["error"]["traceback"].splitlines():
        if said.startswith("rank"):
            print(said.partition(",")[0])
        elif script.name in said:
            number = int(said.split("line ")[1].split()[0])
            print(f"    line {number}: {lines[number - 1].strip()}")


impatient = Options(hang_seconds=4)
alone = launch(join_script, without_join=True, options=impatient, raises=False, **small)
assert alone.status == "failed", "ranks with unequally many batches did not hang"
print(alone.summary["error"]["message"].partition(". ")[0])
where_ranks_stand(alone, join_script)

# %% [markdown]
# Rank 0 waits within the backward of its last batch, for rank 1's gradients. Rank 1 has none left:
# it waits at the end of the epoch. Without a launcher that watches, both wait until the process
# group's time-out. The next cell runs the script with `join`, in two ways.

# %% tags=["nbval-check-output"]
for divide_by_present in (False, True):
    joined = launch(join_script, divide_by_present=divide_by_present, **small)
    last = joined.output(0).strip().splitlines()[-1]
    print(f"divide_by_initial_world_size={not divide_by_present}: {last}")
    assert last.endswith("1" if divide_by_present else "0.5"), "join averaged otherwise"

# %% [markdown]
# Within `join` a rank that has ended answers the others' collectives with zeros until all have
# ended; then the parameters of a rank that trained to the end are sent to all. So the last gradient
# is (1 + 0) / 2: by default `join` divides by all ranks, present or not, and each *sample* keeps
# its weight. With `divide_by_initial_world_size=False` it divides by those that still train, and
# each *step* keeps its size.
#
# What `join` answers are DDP's own collectives only. One of yours in the loop, such as the mean of
# the loss in this course's scripts, hangs as before. Often it is simpler to give all ranks equally
# many batches, as `DistributedSampler` does.

# %% [markdown]
# ## Averaging weights is something else: local SGD
#
# Some texts say that DDP "averages the models". It does not: it averages **gradients**, in every
# step, before the optimizer. There is a method that averages parameters, and it is another one.
# **Local SGD**: each rank trains alone, and every *p* steps the ranks average their parameters. The
# next cell draws both. Look at what the ranks' parameters do between two red lines.

# %%
plots.show(ddp_options.averages())

# %% [markdown]
# The next cell shows the script, against data parallelism by hand from lesson 04.

# %%
script_diff("local_sgd")

# %% [markdown]
# With *p* = 1 both average in every step, one the gradients, the other the parameters after the
# step. Is that the same? The next cell trains with SGD and with AdamW, for several *p*.

# %%
toy = {"model": "mlp", "steps": 20, "global_batch": BATCH}
settings = [("sgd", 1), ("sgd", 2), ("sgd", 4), ("sgd", 8), ("adamw", 1)]
local = [
    launch("local_sgd", RANKS, device="cpu", optimizer=o, average_every=p, quiet=True, **toy)
    for o, p in settings
]
gradients = launch("ddp", RANKS, device="cpu", optimizer="sgd", quiet=True, **toy)

# %% [markdown]
# The next cell compares each with the baseline. The last column is the distance between rank 0's
# and rank 1's parameters at the end.

# %%
rows = []
for (optimizer, p), run in zip([("sgd", None), *settings], [gradients, *local], strict=True):
    proof = check.compare(run, check.baseline(optimizer=optimizer, **toy))
    loss, _, parameters = proof.rows[-3:]
    ends = [rank["fingerprint_final"] for rank in run.ranks[:2]]
    row = {"averaged": f"parameters, every {p}" if p else "gradients", "optimizer": optimizer}
    row |= {"sent kB per step": (run.ranks[0]["sent_bytes_per_step"] or 0) / 1e3}
    row |= {"loss apart": loss["measured"], "parameters apart": parameters["measured"]}
    rows.append(row | {"equal": "no" if proof.failed else "yes", "ranks": check.distance(*ends)})
assert [row["equal"] for row in rows] == ["yes", "yes", "no", "no", "no", "no"]
Table(rows, "Against the baseline: gradients averaged, or parameters")

# %% [markdown]
# - **SGD, *p* = 1** is the baseline, within rounding. SGD with momentum is linear: the new
#   parameters are old ones plus a weighted sum of gradients. The mean of the ranks' new parameters
#   is then what the mean gradient would have given.
# - **AdamW, *p* = 1** is not. AdamW divides by the root of squared gradients, and the mean of such
#   quotients is not the quotient of the means. Each rank also keeps a second moment of its own
#   gradients, which nobody averages.
# - ***p* > 1** drifts: from its second step on, a rank's gradient is taken at parameters that only
#   that rank has. What it buys is in the column of bytes.
# - **The last column** is 0 where the last step was averaged. With *p* = 8 the last averaging came
#   after step 16 of 20, so the ranks ended with different models. Which one would you save?
#
# Local SGD is used where the link is very slow. It needs care: a plan for *p*, and often an outer
# optimizer that treats the averaged change as a gradient. If a program of yours sends parameters,
# you know now that its result can't be compared with DDP's to the last digits.

# %% [markdown]
# ## A layer that looks across the batch: BatchNorm
#
# Cutting a batch over ranks changes nothing as long as each sample is computed by itself. One
# common layer breaks that: **BatchNorm** subtracts the mean and divides by the standard deviation
# *of the batch*, for each channel. On a rank that is the rank's share. So DDP with BatchNorm trains
# something else than one process does, and no gradient is wrong.
#
# The model is ResNet-50, thin and on small synthetic images. The next cell shows a script that
# takes the sums over all ranks. (`torch.nn.SyncBatchNorm` does so on GPUs; it does not run on a
# CPU.)

# %%
script_diff("ddp_sync_batchnorm")

# %% [markdown]
# `all_reduce` from `torch.distributed.nn.functional` is differentiable: its backward is an
# all-reduce too. The mean depends on every rank's images, so the gradient must come back from every
# rank. The next cell trains both scripts, and the baseline, in float64.

# %%
images = {"model": "resnet50", "global_batch": 16, "optimizer": "sgd", "steps": 8}
double = {"dtype": "float64", **images}
one_process = check.baseline(**double)
own = launch("ddp", 2, device="cpu", quiet=True, **double)
synced = launch("ddp_sync_batchnorm", 2, device="cpu", quiet=True, **double)

# %% [markdown]
# The next cell compares, and asserts that the synchronised one is the baseline's training to 1e-6.

# %%
rows = []
for statistics, run in (("of each rank's share", own), ("of the whole batch", synced)):
    proof = check.compare(run, one_process, tolerance=1e-6)
    loss, _, parameters = proof.rows[-3:]
    row = {"mean and variance": statistics, "loss apart": loss["measured"]}
    row |= {"parameters apart": parameters["measured"]}
    rows.append(row | {"within 1e-6": "no" if proof.failed else "yes"})
assert [row["within 1e-6"] for row in rows] == ["no", "yes"], "BatchNorm was not mended"
Table(rows, "ResNet-50, float64, 2 ranks, against one process")

# %% [markdown]
# Is it wrong to normalise per rank? Most people do it: with 32 images on a rank the statistics are
# good enough, and Goyal et al. (2017) define it so on purpose, since the loss then does not depend
# on the number of ranks. It hurts when a rank has few images, as in detection or segmentation. Then
# synchronise, or use a norm that does not look across the batch.
#
# ### Why float64?
#
# The next cell trains the *same* batches in one process with the images in reverse order. In exact
# arithmetic nothing changes. Compare the two columns, step by step.

# %%
take = "inputs, targets = batches(step)"
flipped = "inputs, targets = (tensor.flip(0) for tensor in batches(step))"
reordered = variant("cpu", "cpu_reordered", {take: flipped})
columns = {}
for dtype in ("float32", "float64"):
    backwards = launch(reordered, 1, dtype=dtype, quiet=True, **images)
    pairs = zip(backwards.losses, check.baseline(dtype=dtype, **images).losses, strict=True)
    columns[dtype] = [abs(a - b) for a, b in pairs]
assert max(columns["float64"]) < 1e-6, "even in float64 the order matters"
names = [{"step": step} for step in range(images["steps"])]
Table([n | {d: c[n["step"]] for d, c in columns.items()} for n in names], "Loss, reordered - not")

# %% [markdown]
# Sums in another order are rounded otherwise, by about one part in ten million in float32. Fresh
# ResNets with BatchNorm on few images magnify such a difference from step to step. So in float32 a
# correct run may look wrong here, and a proof needs float64, where the same growth starts nine
# digits lower. The GPT of this course does not magnify it, which is why its proofs use float32.

# %% [markdown]
# ## When a rank dies: elastic training
#
# The more ranks, the sooner one of them dies: a GPU fails, the system runs out of memory, somebody
# reboots a host. The others can't go on without it. `torchrun --max-restarts` ends them and starts
# all ranks anew. What they resume from is the script's business: a **checkpoint**.
#
# The next cell shows how the course's scripts write one: not into its place but *beside* it,
# **synced** to the disk, then **renamed**. A rename replaces the old file whole or not at all.

# %%
import inspect

from bootcamp.train import checkpoint

Markdown(f"```python\n{inspect.getsource(checkpoint.write_whole)}```")

# %% [markdown]
# So a kill at any moment leaves the old checkpoint or the new one. Now the accident: the next cell
# makes a DDP script in which rank 1 kills itself with SIGKILL in step 8, in its first attempt. No
# exception, no farewell.

# %%
forward = "loss = models.loss(model(inputs), targets)"
kill = "os.kill(os.getpid(), signal.SIGKILL)"
tools = "from bootcamp.train import checkpoint, config, data, models, optimizers, record"
accident = f"if step == 8 and rank == 1 and environment.attempt() == 0:\n    {kill}\n{forward}"
changes = {tools: f"import os\nimport signal\nfrom bootcamp.train import environment\n{tools}"}
dies = variant("ddp", "ddp_rank_dies", changes | {forward: accident})

# %% [markdown]
# The next cell trains undisturbed, then with the accident under torchrun. Look at the command: it
# gives the same file to `--save` and `--resume`, so one line serves the first start (no file yet)
# and every restart. It takes some seconds, since every start of a rank loads PyTorch.

# %%
import tempfile
from pathlib import Path

kept = tempfile.TemporaryDirectory()
file = Path(kept.name) / "checkpoint.pt"
elastic = {"device": "cpu", "steps": 14, "global_batch": 32}
undisturbed = launch("ddp", 2, quiet=True, **elastic)
restarts = {"start": "torchrun", "options": Options(max_restarts=2)}
saves = {"save": file, "resume": file, "save_every": 5}
restarted = launch(dies, 2, **restarts, **saves, **elastic)

# %% [markdown]
# The next cell draws which steps each attempt recorded, and scores your second prediction.

# %%
plots.show(ddp_options.attempts(restarted, saved_every=5))
records = (restarted.folder / "steps.jsonl").read_text().splitlines()
trained_twice = len(records) - len({json.loads(line)["step"] for line in records})
guess_again.score(trained_twice)

# %% [markdown]
# Is it the same training? The next cell compares all losses and the final parameters, and asks for
# *equal*, not for nearly equal.

# %%
assert restarted.summary["restarts"] == 1, "there was no restart"
assert restarted.losses == undisturbed.losses, "the restart has changed a loss"
ends = [run.ranks[0]["fingerprint_final"] for run in (restarted, undisturbed)]
assert ends[0] == ends[1], "the restart has changed the parameters"
print(f"{len(restarted.losses)} losses and the final parameters are equal to the last bit.")

# %% [markdown]
# Nothing was lost because the checkpoint holds everything that the next step depends on. The next
# cell looks into the file.

# %%
import torch

saved = torch.load(file, weights_only=True)
print("steps done:", saved["steps_done"], " saved with:", saved["settings"])
print("model:", len(saved["model"]), "tensors")
moments = next(iter(saved["optimizer"].values()))
print("optimizer, for each parameter:", ", ".join(moments))

# %% [markdown]
# Leave the optimizer's state out, and training goes on with a jump. This course's batches depend on
# the seed and the step, and no model draws random numbers; where yours do, the states of the
# sampler and of the random generators belong into the file as well. And only rank 0 writes: under
# DDP all ranks hold the same. Other strategies shard what is saved.
#
# How often? Saving costs time, and a failure costs half an interval on average, plus the restart.

# %% [markdown]
# ## NCCL
#
# CPU ranks communicate through **gloo**, GPUs through **NCCL**, NVIDIA's library of collectives.
# The calls are the same. What it does that gloo does not:
#
# - It runs *on the GPU*: an all-reduce is a kernel, queued on a stream like any other. The call
#   returns before anything has happened, and no copy through the CPU's memory is needed.
# - It looks at the **topology**: which GPUs are joined by NVLink, which by PCIe, which network card
#   is near which GPU. Inside a host GPUs read and write each other's memory (**P2P**); between
#   hosts the network card can fetch from GPU memory itself (**GPUDirect RDMA**, where hardware and
#   drivers have it).
# - It lays several rings and trees through the machine at once, called channels, so that all links
#   are used, and chooses algorithm and protocol by size.
#
# The next cell draws one ring over two hosts. Look at how often it uses the slow link.

# %%
plots.show(ddp_options.two_hosts())

# %% [markdown]
# Once in each direction, however many GPUs a host has. And each GPU sends little, 2(*N*-1)/*N* of
# the data. But a ring takes 2(*N*-1) steps, one after another. A **tree** sends about as much and
# takes steps in proportion to the logarithm of *N*. The next cell draws both.

# %%
plots.show(ddp_options.ring_and_tree())

# %% [markdown]
# In a plain tree the leaves only send and the inner ranks work twice; NCCL uses two trees at once,
# in which each rank is a leaf in one and inner in the other (Sanders, Speck and Träff, 2009). What
# is it worth? A simple model of the time of a collective is **alpha + beta × bytes**: a start-up
# cost, and a cost for each byte. The next cell measures it here: all-reduces from 4 bytes to 32
# MiB, with this machine's back end. The record is kept, so it is measured only once.

# %%
from bootcamp.experiments import allreduce_sweep

sweep = allreduce_sweep.load(RANKS, DEVICE)
fitted = sweep.fit()
plots.show(plots.all_reduce_sweep(sweep, fitted))

# %% [markdown]
# Left: below some size the time hardly depends on the bytes. That is alpha. Then it grows in
# proportion. Right: **bus bandwidth** as the nccl-tests define it. The *algorithm* bandwidth is the
# data's size divided by the time. Multiplied by 2(*N*-1)/*N* it says how much each rank's link
# really carried, so it can be held against the hardware's figure for any number of ranks.
#
# The line was fitted to the powers of two. Does it predict the sizes between them, which it has not
# seen? The next cell says how far off it is there, and what it says about a bucket of 25 MiB.

# %%
off = fitted.errors(sweep.held_out)
print(f"held-out sizes: {off['median']:.0%} off in the median, {off['largest']:.0%} at most")
print(f"alpha: {1e6 * fitted.alpha_seconds:.0f} µs, {sweep.backend}, {RANKS} ranks")
print(f"one bucket of 25 MiB: {1e3 * fitted.predict(25 * 2**20):.1f} ms, by the fitted line")

# %% [markdown]
# Where a tree pays: the next cell counts the steps that one small message takes.

# %% tags=["nbval-check-output"]
import math

Table(
    [
        {"ranks": n, "ring: 2(N-1)": 2 * (n - 1), "tree: 2 log2(N)": 2 * int(math.log2(n))}
        for n in (8, 64, 1024)
    ],
    "Steps one after another, by formula",
)

# %% [markdown]
# With many ranks and small data, the number of steps decides, and trees win. With much data, bytes
# decide, and rings use the links fully. NCCL chooses by a model much like the one above.
#
# ### The environment variables that people need
#
# - `NCCL_DEBUG=INFO` prints version, topology, chosen interfaces, rings and trees. The first thing
#   to set when something hangs or is slow. `WARN` prints errors only, and
#   `NCCL_DEBUG_SUBSYS=INIT,NET` narrows `INFO` down to parts of NCCL.
# - `NCCL_SOCKET_IFNAME=eth0` says which network interfaces to use: a list of name prefixes; `=eth0`
#   means exactly that name, `^docker` excludes. For several hosts, when NCCL picks an interface
#   that does not lead to the others.
# - `NCCL_IB_HCA=mlx5_0` says which InfiniBand or RoCE cards to use, when some are not meant for it.
# - `NCCL_IB_DISABLE=1`: no InfiniBand or RoCE, sockets instead. To find out whether they are the
#   cause.
# - `NCCL_P2P_DISABLE=1`: no direct access between the GPUs of a host. For hangs inside one host; if
#   it helps, the fault is below NCCL (often PCIe settings or virtualisation).
# - `NCCL_ALGO=Ring` (or `Tree`), `NCCL_PROTO=Simple` force an algorithm and a protocol, to compare.
#
# NVIDIA's documentation warns of the last three: they are for finding faults, and should not stay
# in scripts. A forgotten `NCCL_P2P_DISABLE=1` makes every later run slow, and nothing says so but
# `NCCL_DEBUG=INFO`. gloo has `GLOO_SOCKET_IFNAME` for the same purpose as `NCCL_SOCKET_IFNAME`.
#
# Torch adds its own. `TORCH_DISTRIBUTED_DEBUG=DETAIL` checks collectives on any back end.
# `TORCH_FR_BUFFER_SIZE` (`TORCH_NCCL_TRACE_BUFFER_SIZE` in older versions) says how many
# collectives the flight recorder keeps with NCCL: 2000 if you do not say, where older versions kept
# none. `TORCH_NCCL_DUMP_ON_TIMEOUT=1` writes it down when one times out.
#
# The next cell shows what NCCL says about itself, where there are GPUs to ask.

# %%
if DEVICE == "cuda":
    talkative = {"options": Options(env={"NCCL_DEBUG": "INFO"}), "quiet": True}
    told = launch("ddp", RANKS, steps=2, global_batch=BATCH, **talkative)
    words = ("NCCL version", "Channel 00", "Trees", "Using network")
    lines = [line for line in told.output(0).splitlines() if any(word in line for word in words)]
    print("\n".join(lines[:12]))
else:
    print("Without two GPUs there is no NCCL to ask: these ranks talk through gloo.")

# %% [markdown]
# ## The frameworks on top: Lightning and Accelerate
#
# Many programs that you will meet are not bare scripts. **Accelerate** prepares model and optimizer
# and leaves the loop to you. **Lightning** takes the loop: you write what a step is, its Trainer
# does the rest. Below both is the same DDP. The next cell shows the step in Accelerate.

# %%
script_diff("accelerate")

# %% [markdown]
# `Accelerator()` joins the process group, and knows rank and world size from the same environment
# variables. `prepare(model)` moves it to a device and wraps it in DDP, `prepare(optimizer)` wraps
# it (for mixed precision and accumulation), `accelerator.backward` is `loss.backward()` here. What
# is hidden: the back end, the time-out (default: torch's own), DDP's options.
#
# The next cell shows Lightning.

# %%
script_diff("lightning")

# %% [markdown]
# The loop is gone: moving the batch, `zero_grad`, `backward`, `step`. The Trainer does them, in an
# order that you look up rather than read, and asks your class for the rest: the step's loss, the
# optimizer, what to do after a batch. What is hidden besides: the wrapping, the sampler (Lightning
# puts in a `DistributedSampler` unless told otherwise; here it is told), and a lot that
# `barebones=True` switches off: logging, checkpoints, progress bar, checks.
#
# The next cell trains the same in all of them, as far as they are installed, and proves it.

# %%
frameworks = [name for name in ("accelerate", "lightning") if available(name)]
for name in ("accelerate", "lightning"):
    if name not in frameworks:
        print(f"{name} is not installed here: pip install {name}. The lesson goes on without it.")
shared_flags = {"device": DEVICE, "steps": 12, "global_batch": BATCH, "quiet": True}
trained = [launch(name, RANKS, **shared_flags) for name in ("ddp", *frameworks)]
bare = check.baseline(steps=12, global_batch=BATCH)
for run in trained:
    check.same_training(run, bare)
print(f"Proved: {', '.join(run.strategy for run in trained)} train the same.")

# %% [markdown]
# The next cell puts lines and speed side by side, and scores your third prediction.

# %%
from bootcamp import family
from bootcamp.scripts.diff import code_lines

rows = []
for run in trained:
    lines = len(code_lines(family.SCRIPTS[run.strategy].path))
    row = {"script": run.strategy, "code lines": lines, "samples/s": run.samples_per_second}
    rows.append(row | {"% of bare": 100 * run.samples_per_second / trained[0].samples_per_second})
display(Table(rows, trained[0].origin))
if "lightning" in frameworks:
    print(guess_lightning.score(rows[-1]["% of bare"]))

# %% [markdown]
# The speeds are of single runs: differences of some percent are noise. What a framework adds to a
# step is a fixed time of Python, so it weighs more the smaller the model is, and this one is tiny.
# Fewer lines are no argument either, as you see. What you get is what they do *besides*: mixed
# precision, logging, checkpoints, other strategies by one argument. What you pay is that the
# averaging, the wrapping and the order of things stand elsewhere. Whoever knows the bare script
# knows what to look for there.
#
# ### Why Lightning's `strategy="horovod"` is gone
#
# Older programs say `Trainer(strategy="horovod")`. The next cell tries it.

# %%
if "lightning" in frameworks:
    quiet = {"steps": 2, "global_batch": 32, "quiet": True, "raises": False}
    old = launch("lightning", 1, device="cpu", strategy="horovod", **quiet)
    print(textwrap.fill(old.summary["error"]["message"], 96))
else:
    print("Lightning is not installed here.")

# %% [markdown]
# Lightning 1.9 said that it "will be removed in v2.0.0. You can try using the
# `Trainer(strategy='ddp')` instead", and 2.0 removed it. A package of its own was to take its
# place, `lightning-horovod`; PyPI has one version of that, 0.1.0.dev0 of March 2023. Horovod and
# DDP average the same gradients. But Lightning's Horovod strategy also multiplied the learning rate
# by the number of ranks, and `strategy="ddp"` does not: to keep the same training, write the factor
# into the rate. Lesson 05 uses Horovod without Lightning, where nothing touches the rate.

# %% [markdown]
# ## Break it
#
# ### First: PowerSGD with several buckets
#
# Above, PowerSGD had one bucket: the model's gradients are smaller than 25 MiB. The next cell gives
# it several, on CPU ranks. What happens?

# %%
powersgd = {"hook": "powersgd", "bucket_mb": 0.1, "optimizer": "sgd", "options": impatient}
broken = {"device": "cpu", "steps": 20, "global_batch": 32, "quiet": True, "raises": False}
stuck = launch("ddp_options", 2, timeout=60, **powersgd, **broken)
print(f"{stuck.status} after {len(stuck.steps)} steps of {broken['steps']}")
error = stuck.summary.get("error") or {"kind": None}
if error["kind"] == "hang":
    where_ranks_stand(stuck, family.find("ddp_options"))
elif error["kind"]:
    print(error["message"], error["traceback"], sep="\n")

# %% [markdown]
# It ends after the two steps that PowerSGD sends whole, in one of two ways. Either the ranks
# **hang**: each stands in the backward and waits. Or gloo ends the process: "Received data size
# doesn't match expected size". Run the cell again, a few times, to see the other. Waiting in the
# backward says only that buckets do not come back. Which collectives were called, in which order?
# The next cell makes each rank print the size of everything that it all-reduces.

# %%
device_line = "device = torch.device(context.device)"
tell = """
plain_all_reduce = dist.all_reduce
def telling(tensor, *more, **names):
    print(tensor.numel(), flush=True)
    return plain_all_reduce(tensor, *more, **names)
dist.all_reduce = telling
"""
telling = variant("ddp_options", "ddp_powersgd_tells", {device_line: device_line + tell})
told = launch(telling, 2, timeout=60, **powersgd, **broken)

# %% [markdown]
# The next cell lays the two ranks' lists side by side and looks for the first line that differs.

# %%
said = [(told.folder / "ranks" / f"{rank}.out").read_text().split() for rank in (0, 1)]
sizes = [[int(word) for word in words if word.isdigit()] for words in said]
differ = [i for i, pair in enumerate(zip(*sizes, strict=False)) if pair[0] != pair[1]]
if differ:
    around = range(max(0, differ[0] - 2), min(differ[0] + 4, *map(len, sizes)))
    rows = [{"call": i, "rank 0": sizes[0][i], "rank 1": sizes[1][i]} for i in around]
    display(Table(rows, "Numbers in each all-reduce, from shortly before the lists part"))
else:
    print(f"This time the sizes agree ({told.status}): run the two cells again.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The ranks called the same all-reduces in **different order**. PowerSGD needs several of them for a
# bucket, one after another: the second one sends what is computed from the first one's result. It
# starts the later ones in a `then`, so whenever a result arrives. With gloo that is in gloo's own
# threads, and if two buckets are under way, it is chance which comes first, on each rank anew. Then
# one rank's all-reduce for bucket 1 meets the other's for bucket 2. Different sizes: the process is
# ended, or waits. *Equal* sizes: nothing is noticed, and the numbers are wrong (lesson 04, "The
# ranks disagree").
#
# With NCCL a future counts as done as soon as its all-reduce is queued on the GPU, so a `then` runs
# at once, and the order is that of the buckets on every rank. On gloo: one bucket (a large
# `bucket_cap_mb`, given explicitly, for by default the first bucket is small), or no PowerSGD. And
# in a hook of your own: one collective for each bucket, started by the hook itself.
# </details>
#
# ### Second: two processes that are one
#
# "My job runs on two processes, I said so." The next cell starts the Accelerate script with
# Accelerate's own launcher and asks for two. How many samples per second do you expect, compared
# with the run above?

# %%
import time

from bootcamp import runs

if available("accelerate"):
    folder = LOGS / f"accelerate-launch-{time.time_ns()}"
    start = ["python", "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    what = [str(family.find("accelerate")), "--device", "cpu", "--steps", "5"]
    print(run_command([*start, *what, "--run-dir", str(folder)], env={"OMP_NUM_THREADS": "1"}))
    believed = runs.load(folder)
    print(f"{believed}\nworld size: {believed.ranks[0]['world_size']}")
else:
    print("Accelerate is not installed here.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# One process, and no word about it. With `--cpu` this launcher starts the script once, unless MPI
# is set up; `--num_processes` is not used. Nothing fails: one process is a correct training of the
# whole batch, only not on two. For CPU ranks use torchrun: `torchrun --nproc-per-node 2
# src/_train_accelerate.py`. (This script says `Accelerator(cpu=True)` there. One that says plain
# `Accelerator()` is told by the variable `ACCELERATE_USE_CPU=true`.)
#
# Lightning has a trap in the other direction. Started by plain `python`, a Trainer with `devices=2`
# starts the missing process itself, by running the same command line again. So everything above the
# Trainer runs in both, but at different times. Where `LOCAL_RANK` is set, as under torchrun, it
# starts none. The script here names what it expects: `plugins=TorchElasticEnvironment()`.
#
# The defence is the same in both: **let the program say how many ranks it really has**, from the
# process group, as every record of this course does (`world_size`).
# </details>
#
# ### Third: a restart that meets the dead
#
# The elastic run above was started with an environment variable:
# `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`. The next cell leaves it out, allows one restart, and gives
# it 40 seconds.

# %%
import re

from bootcamp import LaunchError
from bootcamp.launcher.run_request import to_arguments

again = {"device": "cpu", "steps": 10, "timeout": 15}
again |= {"save": f"{file}2", "resume": f"{file}2", "run_dir": LOGS / f"restart-{time.time_ns()}"}
torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
command = [*torchrun, "--max-restarts", "1", str(dies), *to_arguments(again)]
try:
    run_command(command, seconds=40, env={"OMP_NUM_THREADS": "1"})
    print("This time the restart went well.")
except LaunchError as failed:
    last = [str(failed)[:300], *re.findall(r"RuntimeError: .*", str(failed))][-1]
    waits = failed.error["kind"] == "hang"
    print("After 40 seconds the ranks still wait." if waits else textwrap.fill(last, 96))

# %% [markdown]
# <details><summary>What happened?</summary>
#
# It is a matter of chance: run the cell again. Either the restarted ranks meet; or "Connection
# refused", because they look for each other at addresses where nobody listens any more; or they
# wait for each other until somebody loses patience. Ranks publish their addresses in a **store**, a
# small key-value server. By default torchrun lets the ranks use its own store, which outlives a
# restart. A new rank that looks before its neighbour has published its new address finds that of
# the dead one. With the variable set, each attempt gets a store of its own. `launch` with
# `Options(max_restarts=...)` sets it for you.
#
# A restart that works only sometimes is found out on the day of the failure. So rehearse it: kill a
# rank, more than once, before the long run.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: a hook of your own
#
# Write a communication hook. The next cell gives you the options script with one hook missing: the
# one that averages exactly.

# %%
from bootcamp import exercise

print(exercise.start("own_hook"))

# %% [markdown]
# Edit the file, save it, run the next cell. It trains with *your* hook on two ranks, with both
# optimizers, and holds it against the baseline. Torch has such a hook ready, which
# `exercise.solution("own_hook")` shows; write it with `dist.all_reduce` first. For more: a hook
# that sends only the 1 % of numbers that are largest. What does the checker say to it?

# %%
print(exercise.check("own_hook"))

# %% [markdown]
# ### Second: how long will an all-reduce take?
#
# Somebody offers you more GPUs, or a faster network. What would the averaging take there? Use the
# model of the section on NCCL, step by step: a ring takes 2(*N*-1) steps one after another, in each
# of them a rank sends one piece of 1/*N* of the data, and each step has a start-up cost of its own.
# Write the function in place of the three dots and run the cell. The solution is one step away:
# `exercise.solution("ring_seconds")`.


# %%
def ring_seconds(data_bytes, ranks, alpha_seconds, bytes_per_second):
    """Time of a ring all-reduce in seconds.

    alpha_seconds: start-up cost of one step. bytes_per_second: what a rank can send.
    """
    ...


print(exercise.check("ring_seconds", ring_seconds))

# %% [markdown]
# For more: with 64 ranks, 20 µs for a step and 10 GB/s, from which size on do the bytes cost more
# than the start-up? Compare it with the 25 MiB of a bucket.

# %% [markdown]
# ## When to use it and when not
#
# - **Bucket size**: leave it, unless a trace of *your* model on *your* machine shows that
#   communication is not hidden. Then measure several, several times.
# - **`gradient_as_bucket_view=True`**: yes, unless something in your program fails with it.
# - **`static_graph=True`**: when every step is the same. **`find_unused_parameters=True`**: only
#   when steps differ, it costs time.
# - **bf16 hook**: on a slow link. **PowerSGD**: on a very slow one, with a comparison of the
#   learned result, and with NCCL or one bucket. Prove the training equal without a hook first.
# - **`join`**: when the data can't be made even.
# - **Local SGD**: when even compressed gradients are too many bytes. It is not DDP.
# - **BatchNorm**: per rank with many images on a rank, synchronised with few.
# - **Checkpoints and `--max-restarts`**: for everything that runs longer than you like to repeat,
#   and rehearsed.
# - **Lightning, Accelerate**: for what they bring besides, once you can say which lines of the bare
#   script they replace.
#
# ## Sources
#
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   arXiv:2006.15704.
# - Vogels, Karimireddy and Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for
#   Distributed Optimization*, NeurIPS 2019, arXiv:1905.13727.
# - Stich, *Local SGD Converges Fast and Communicates Little*, ICLR 2019, arXiv:1805.09767.
#   Douillard et al., *DiLoCo*, 2023, arXiv:2311.08105: local steps with an outer optimizer.
# - Ioffe and Szegedy, *Batch Normalization*, 2015, arXiv:1502.03167. Goyal et al., 2017,
#   arXiv:1706.02677, on BatchNorm per worker.
# - Hockney, *The communication challenge for MPP*, Parallel Computing 20, 1994: alpha and beta.
# - Sanders, Speck and Träff, *Two-tree algorithms for full bandwidth broadcast, reduction and
#   scan*, Parallel Computing 35, 2009.
# - NVIDIA, *NCCL documentation* (Environment Variables), and *nccl-tests*, `doc/PERFORMANCE.md`,
#   for algorithm and bus bandwidth.
# - PyTorch documentation: *DistributedDataParallel*, *DDP Communication Hooks*, *torchrun (Elastic
#   Launch)*. Lightning 2.0 migration guide; Lightning 1.9, `HorovodStrategy.setup` (the learning
#   rate). Accelerate documentation, *Launching scripts*.
