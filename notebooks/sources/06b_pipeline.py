# %% [markdown]
# # 06b Pipelines: all devices at work on one model
#
# **60 minutes**, on any machine. The ranks of this lesson are CPU ranks everywhere.
#
# After this lesson you can keep the ranks of a cut model busy with micro-batches, predict how long
# they wait and how many activations they hold under six schedules, measure both, combine a
# pipeline with data parallelism, choose the numbers of micro-batches and stages, and say when it
# pays.

# %% [markdown]
# ## The question
#
# A model that is cut over two devices fits where one device is too small. But with one batch at a
# time only one device works (lesson 06). Can all of them work at the same time, on one model, and
# still train *exactly* what one process trains?

# %%
from bootcamp import launch, warm_up

warm_up()

# %% [markdown]
# ## The idea
#
# A **stage** is a part of the model: some consecutive layers. Each rank holds a stage, with its
# parameters, their gradients and their optimizer state, and nothing of the others. Cut the batch
# into **micro-batches**. After the forward pass of the first one, rank 0 sends its output to rank 1
# and goes on with the second one. Soon all ranks compute, each on a different micro-batch. At the
# end of the step the gradients of all micro-batches have been added up, as in gradient
# accumulation, and each rank's optimizer updates its own stage. Nothing is approximated.
#
# Time runs from left to right; a number is a micro-batch. A backward pass takes twice as long as a
# forward pass, since it computes two gradients: that of the stage's input, which the rank before
# waits for, and that of its weights.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import pipelines as diagrams

plots.show(diagrams.whole_and_cut())

# %% [markdown]
# Above is the plain cut: three of four ranks wait at any time. Below, ranks wait only while the
# pipeline fills and empties. This order of the work, a **schedule**, is **GPipe**: all forward
# passes, then all backward passes.
#
# The grey time is the **bubble**. Like Narayanan et al., this lesson divides the time that ranks
# wait by the time that they compute; others, GPipe among them, give its share of the step. With *p*
# ranks and *m* micro-batches each rank waits for *p*-1 micro-batches' time and computes for *m*, so
# GPipe's bubble is **(p-1)/m**. (A bubble of 1 means that ranks wait half of the time.)
#
# More micro-batches make it smaller. But a micro-batch's activations are held from its forward to
# its backward pass, and GPipe's ranks hold those of *all* micro-batches when the first backward
# pass begins, unless they keep only the stage's inputs and compute the rest again, as the paper
# does. "In flight at most" counts them for each rank.
#
# ### 1F1B
#
# Five better schedules follow, one at a time. Look first at how long a step is, then at what is in
# flight.

# %%
from bootcamp.costs.pipeline_schedules import SCHEDULES

plots.show(diagrams.planned("gpipe", "1f1b"))

# %% [markdown]
# **1F1B**, one forward, one backward: a rank begins with backward passes as soon as it can. The
# bubble is GPipe's. But a rank never has more micro-batches in flight than there are ranks from it
# to the end, however many micro-batches there are.
#
# ### Interleaved 1F1B

# %%
plots.show(diagrams.planned("1f1b", "interleaved"))

# %% [markdown]
# **Interleaved 1F1B** gives each rank *v* = 2 stages that do not follow each other: of four ranks,
# rank 0 has stages 0 and 4. A micro-batch passes through each rank twice, for half the time. So the
# pipeline fills sooner, and the bubble is (p-1)/(vm). More is sent, and more is in flight (of half
# a stage, half a micro-batch).
#
# ### Zero bubble

# %%
plots.show(diagrams.planned("interleaved", "zero-bubble"))

# %% [markdown]
# **Zero bubble** cuts the backward pass in two: I, the gradient of the stage's input, which another
# rank waits for; and W, the gradient of the weights, which nobody waits for. (The first stage has
# no I.) W is done later, when a rank would have to wait. If forward pass, I and W take equally
# long, this leaves a third of the bubble: (p-1)/3m for the paper's ZB-H1, with one stage a rank,
# (p-1)/6m for torch's, drawn here, which interleaves two.
#
# ### Two that turn around

# %%
plots.show(diagrams.planned("zero-bubble", "zb-v", "dualpipe"))

# %% [markdown]
# **ZB-V** lays a rank's two stages out like a V: rank 0 has the first and the last. So a backward
# pass begins on the rank whose forward pass was the last. With 2p-1 micro-batches or more, no rank
# waits between its first and its last action of a step, and none has more in flight than rank 0 of
# 1F1B. Ranks only begin and end at different times: (p-1)/6m. (The paper fills that too: a rank
# begins its next step at once, and takes it back if the global gradient norm, known later, says
# so.)
#
# **DualPipe**, in its form DualPipeV, is a V too. Micro-batches go down and up the V at the same
# time. DeepSeek-V3 was trained with its predecessor, which hides the communication of a forward
# pass behind a backward pass and the other way round. Torch's schedule marks such pairs
# (`OVERLAP_F_B`) and computes them one after the other, unless you register a function that
# overlaps them.
#
# All of this is for equal stages. Where activations are computed again (lesson 02b), B takes three
# units in place of two: a step is a third longer, and GPipe's and 1F1B's bubbles stay.
#
# ### Explore them
#
# How many micro-batches does 1F1B need on 8 ranks for a bubble below 0.25? Which schedule holds
# least? What does each one refuse? (Without a running kernel you see one choice.)

# %%
from bootcamp import simulators

controls = simulators.pipeline_schedule(ranks=8)

# %% [markdown]
# ## Predict

# %%
from bootcamp import predict

guess_idle = predict(
    "pipeline_idle",
    "GPipe, 4 ranks, 8 micro-batches. For what share of the step does a rank wait?",
    unit="%",
)
guess_idle

# %%
guess_held = predict(
    "pipeline_held",
    "2 ranks, 8 micro-batches. What share of GPipe's activations does 1F1B hold on rank 0?",
    unit="%",
)
guess_held

# %%
guess_sent = predict(
    "pipeline_sent",
    "2 ranks. Interleaved 1F1B gives each two stages, half as large. How many times the bytes of "
    "1F1B does a rank send?",
    unit="times",
)
guess_sent

# %% [markdown]
# ## What changes
#
# Look for four things: which stages a rank takes, where inputs and targets go in, where `backward`
# is, and whose loss it is.

# %%
from bootcamp import script_diff

script_diff("pp")

# %% [markdown]
# - A rank keeps the stages that the schedule gives it. (It builds the complete model here and drops
#   the rest. A large model is built on the `meta` device, and each rank fills its own stages.)
# - `PipelineStage` knows its number and how many there are, so it knows its neighbours. The shapes
#   of what is sent are determined in the first step.
# - All ranks draw the *same* batch: `data.Batches(args, 0, 1)`. Only the first stage reads the
#   inputs, only the last one the targets.
# - `schedule.step` runs all forward and backward passes of the step in the schedule's order, sends
#   and receives, and divides the gradients by the number of micro-batches. That is a mean of
#   means (lesson 02b), wrong where padding leaves micro-batches different numbers of tokens; *Prove
#   it* has the remedy. (`schedule.eval` runs the forward passes alone, for validation.)
# - Nothing averages gradients: each rank has different parameters. For the same reason a gradient
#   norm for clipping has to sum squares over all stages: `clip_grad_norm_` sees its rank's.
# - Only the rank with the last stage has losses. The all-reduce passes their mean on, for the
#   record.
#
# ## Run it
#
# Each schedule trains the tiny GPT on two ranks. The script records every action: F0 is the forward
# pass of micro-batch 0, B0 its backward pass.

# %% tags=["nbval-check-output"]
from bootcamp.costs import pipeline_schedules as schedules

BATCH, M = 32, 8
same = {"device": "cpu", "global_batch": BATCH, "steps": 4, "optimizer": "sgd", "quiet": True}
real = {name: launch("pp", 2, schedule=name, micro_batches=M, **same) for name in SCHEDULES}
for name, run in real.items():
    done = schedules.list_orders(run.actions())
    assert done == schedules.plan(name, 2, M), f"{name} was not executed as planned"
    print(f"{name:>11}, rank 0:", *(f"{a.kind}{a.micro_batch}" for a in done[0][:12]), "...")

# %% [markdown]
# Do micro-batches pay off on a real model? The gain: both ranks compute at the same time. The cost:
# each action gets shorter, and its overhead (Python, a message, the start of each operation) stays.

# %%
from bootcamp import claim, trial

larger = {"device": "cpu", "global_batch": 64, "steps": 5}
pipeline = trial("pp", 2, schedule="1f1b", micro_batches=4, **larger)
plain_cut = trial("pp", 2, schedule="gpipe", micro_batches=1, **larger)
plots.show(plots.throughput(launch("cpu", 1, quiet=True, **larger), plain_cut(), pipeline()))
claim.faster(
    "pipeline_pays",
    "On two ranks 1F1B with four micro-batches is over 1.1 times as fast as the plain cut.",
    pipeline,
    plain_cut,
    by=1.1,
    otherwise="The actions' overhead, or ranks that share a core, may have cost the gain.",
)

# %% [markdown]
# ## Read the measurement
#
# ### The bubble, with stages that sleep
#
# To see the waiting alone, each rank needs a device of its own and stages of equal length. A
# machine with few cores can pretend: a stage that *sleeps* needs no core
# (`src/snippets/pipeline_sleep.py`). A rank's forward pass of one micro-batch sleeps 15 ms and its
# backward pass 30 ms, divided among its stages.

# %%
from bootcamp import Table, paths
from bootcamp_lessons import sharding_tables

program = paths.SRC / "snippets" / "pipeline_sleep.py"
sleeping = {"device": "cpu", "micro_batches": M, "milliseconds": 15, "steps": 2, "quiet": True}
slept = {name: launch(program, 4, schedule=name, **sleeping) for name in SCHEDULES}
waited = schedules.idle_share(slept["gpipe"].actions())
print(guess_idle.score(100 * sum(waited) / len(waited)))
Table(sharding_tables.compare_bubbles(slept, M), "Bubble (idle / busy), 4 ranks, stages that sleep")

# %% [markdown]
# "By plan" simulates the schedule, with equal stages and with the time that each took. It leaves
# out the hand-off, from the end of one rank's action to the start of the action that waits for it
# on another, and Python between the actions of one rank. Both weigh more where actions are shorter:
# with two stages a rank, and with halves. Real schedules have the same limit: a stage must have
# much more to compute than a message takes.

# %%
planned = schedules.simulate(schedules.plan("1f1b", 4, M), 15e-3, 30e-3)
both = {"planned": planned, "measured": slept["1f1b"].actions()}
plots.show(diagrams.gantt(both, "1F1B with stages that sleep", "milliseconds", scale=1e3))

# %% [markdown]
# With the same work, a schedule with a smaller bubble should end its step sooner. The difference is
# largest with few micro-batches.

# %%
few = {**sleeping, "micro_batches": 4, "milliseconds": 10, "steps": 12}
runs = [launch(program, 4, schedule=name, **few) for name in ("zero-bubble", "gpipe")]
claim.faster(
    "pipeline_zero_bubble",
    "With four micro-batches on four ranks, zero bubble is over 1.1 times as fast as GPipe.",
    *([schedules.makespan(run.actions(step)) for step in range(1, 12)] for run in runs),
    by=1.1,
    names=("zero bubble", "GPipe"),
    otherwise="A sleeping rank wakes late on busy cores, and each further sleep adds a delay.",
)

# %% [markdown]
# ### The bubble, with stages that compute
#
# The stages of a real model are not equally long: the last one also has the head, while the first
# one has only the embedding in addition. So the two predictions by plan differ.

# %%
Table(
    sharding_tables.compare_bubbles(real, M),
    f"Bubble (idle / busy), tiny GPT, {M} micro-batches. Not for choosing a schedule",
)

# %% [markdown]
# **Only the sleeping stages can confirm the theory.** Stages of different length have a bubble of
# their own: all wait for the slowest. So the cut matters as much as the schedule. The rest is in no
# plan: the loss, messages and Python between the actions, and actions that take longer for one
# micro-batch than for another, because ranks share memory, caches, or even cores. With a model as
# tiny as this one an action takes a few milliseconds, and all that is a large part of it. On large
# stages it is not.
#
# These times come from the CPU's clock. On a GPU they would show when work was *queued*; use
# torch's profiler there.
#
# ### What is held
#
# A small program counts what a rank holds for its backward passes, from the memory behind the
# tensors that are alive. The formula follows each rank's plan: what a layer keeps (lesson 02b) from
# F to B, the gradients that wait from I to W, and what torch keeps of sent tensors until the step
# ends (`src/bootcamp/costs/memory.py`).

# %%
program = paths.SRC / "snippets" / "pipeline_memory.py"
counted = {"device": "cpu", "micro_batches": M, "global_batch": BATCH, "quiet": True}
runs = {name: launch(program, 2, schedule=name, **counted) for name in SCHEDULES}
held = {name: sharding_tables.read_peak_bytes(run, ranks=2) for name, run in runs.items()}
rows = sharding_tables.compare_peaks(held, BATCH, M)
plots.show(diagrams.peak_memory(rows, "2 CPU ranks, tiny GPT, 8 micro-batches, counted here."))

# %%
print(guess_held.score(100 * held["1f1b"][0] / held["gpipe"][0]))
claim.larger(
    "pipeline_held",
    "GPipe's first rank holds more than three times the activations of 1F1B's.",
    held["gpipe"][0],
    held["1f1b"][0],
    by=3,
    kind="memory",
)

# %% [markdown]
# GPipe holds the complete batch. 1F1B has two micro-batches in flight on rank 0 and one on rank 1,
# and would have no more in flight with a hundred. Each of the other four has a rank that holds more
# than 1F1B's rank 0: more is in flight, torch keeps what was sent until the step ends, or gradients
# wait from I to W.
#
# ### What goes over the link
#
# Each micro-batch's output goes one way, its gradient the other. Together that is *samples ×
# context × width × 4 bytes* each way, for each border between stages on different ranks. It does
# not depend on the number of micro-batches. With two stages on each of two ranks there are three
# borders instead of one. (ZB-V and DualPipeV have three too, but at the turn of the V the next
# stage is on the same rank.)

# %%
from bootcamp.costs.model_shapes import GPT

border = 4 * BATCH * GPT["tiny"]["context"] * GPT["tiny"]["width"]
borders = schedules.count_borders("interleaved", 0, 2)
sent = real["interleaved"].ranks[0]["sent_bytes_per_step"]
print(guess_sent.score((sent or borders * border) / border))
claim.equal(
    "pipeline_sent",
    "Interleaved 1F1B on two ranks sends three borders' bytes, where 1F1B sends one border's.",
    sent,
    borders * border,
    within=0.05,
)

# %% [markdown]
# Below 12 × layers × width tokens a step this is less than data parallelism sends (lesson 06). And
# the messages go to neighbours only, while there is something else to compute. So pipelines are
# often put on the slower links, between hosts.

# %% [markdown]
# ## Prove it
#
# The six runs above trained with SGD. Each step's loss and all parameters must be those of one
# process. With AdamW the proof takes 1F1B.

# %%
from bootcamp import check

one_process = check.baseline(steps=4, global_batch=BATCH, optimizer="sgd")
print(*(check.same_training(run, one_process) for run in real.values()), sep="\n")
adamw = launch("pp", 2, **{**same, "optimizer": "adamw"})
check.same_training(adamw, check.baseline(steps=4, global_batch=BATCH))

# %% [markdown]
# Can this proof fail? `scale_grads=False` leaves the gradients summed over the micro-batches. That
# is right if each loss counts with its share of the *global* batch: of samples here, of tokens
# where texts are padded. So first the sum with shares, which must hold, then the bare sum.

# %%
from bootcamp import variant

line = "schedule = schedule_class(stage_or_stages, args.micro_batches, loss_fn=models.loss)"
summed_line = line[:-1] + ", scale_grads=False)"
share = "lambda out, part: models.loss(out, part) * len(part) / args.global_batch"
mean = "mean_loss = sum(losses, zero).detach() / args.micro_batches"
shares = {line: summed_line.replace("models.loss", share)}
shares[mean] = mean.replace(" / args.micro_batches", ".clone()")
weighted = variant("pp", "pp_weighted", shares)
print(check.same_training(launch(weighted, 2, **same), one_process))
summed = variant("pp", "pp_summed", {line: summed_line})
proof = check.compare(launch(summed, 2, **same), one_process)
assert proof.failed, "the proof did not notice summed gradients"
proof

# %% [markdown]
# ## Data parallel × pipeline
#
# Two pipelines side by side, each with its half of the batch: four ranks as a **mesh** of 2 × 2.
# Along one axis ranks hold different stages of one model, along the other the same stage of another
# copy.

# %%
script_diff("ddp_pp")

# %% [markdown]
# Each stage's gradients are averaged with those of the same stage in the other pipeline. The
# backward pass of one micro-batch *adds* its gradients; they are complete only after
# `schedule.step`. Averaging after every micro-batch would send *m* times as much.

# %%
grid = {"steps": 4, "device": "cpu", "global_batch": BATCH, "mesh": "2x2"}
proof = check.prove("ddp_pp", 4, **grid)[-1]
proof

# %% [markdown]
# There are two shares of the batch, one for each pipeline. So a rank sends half of what it would
# send in one pipeline, and the gradients of its stages on top.

# %%
rank = proof.run.ranks[0]
claim.equal(
    "pipeline_grid",
    "In a 2 x 2 mesh a rank sends half of a pipeline's border, and its own stage's gradients once.",
    rank["sent_bytes_per_step"],
    border / 2 + rank["gradient_bytes"],
    within=0.05,
)

# %% [markdown]
# ## Break it
#
# ### First: data parallelism inside the stages
#
# Why average by hand? `PipelineStage` knows torch's own wrappers, and lets them average with the
# last micro-batch only. Here each stage is wrapped in DDP, or sharded with FSDP's `fully_shard`
# (lesson 07; `_train_fsdp_pp.py`), and the script averages nothing.

# %%
from bootcamp_lessons import excerpts

stage = "PipelineStage(parts[i].to(device), i, count, device, group=pipe.get_group()) for i in mine"
wrapped = "DistributedDataParallel(parts[i].to(device), process_group=copies.get_group())"
pipelining = "from torch.distributed.pipelining import PipelineStage"
changes = {
    pipelining: f"{pipelining}\nfrom torch.nn.parallel import DistributedDataParallel",
    stage: stage.replace("parts[i].to(device)", wrapped),
    "for parameter in model.parameters():": "",
    "dist.all_reduce(parameter.grad, group=copies.get_group())": "",
    "parameter.grad /= copies.size()": "",
}
in_ddp = variant("ddp_pp", "ddp_in_stages", changes)
in_ddp = launch(in_ddp, 4, schedule="gpipe", quiet=True, raises=False, **grid)
print("DDP:", in_ddp.status if in_ddp.status == "ok" else excerpts.first_error(in_ddp))
sharded = launch("fsdp_pp", 4, schedule="gpipe", quiet=True, **grid)
check.same_training(sharded, proof.baseline)
share = sharded.ranks[0]["parameter_bytes"] / proof.run.ranks[0]["parameter_bytes"]
print(f"fully_shard: the same training, and a rank holds {share:.0%} of its stage")

# %% [markdown]
# <details><summary>What happened?</summary>
#
# With torch 2.13 and GPipe, DDP ends in an assertion of its own: it notes in which order gradients
# become ready, once for each parameter, and has noted twice as many. `PipelineStage` reaches into
# DDP's internals, which torch's source calls a hack. `fully_shard` on each stage is what large
# trainings use: between steps the state of a stage is sharded over its copies; during a step its
# parameters and gradients are complete, from the first micro-batch to the last. Averaging by hand
# is correct for every schedule too. It gives up the overlap with the backward pass. (Torch's
# `replicate`, built on `fully_shard`, keeps it and shards nothing; `PipelineStage` knows it too.)
# </details>

# %% [markdown]
# ### Second: too few micro-batches
#
# Four ranks need four micro-batches to fill the pipeline once. Torch's 1F1B insists.

# %% tags=["nbval-check-output"]
from bootcamp import LaunchError

try:
    launch("pp", 4, schedule="1f1b", micro_batches=2, **same)
except LaunchError as error:
    print(error)
else:
    raise AssertionError("1F1B ran with fewer micro-batches than ranks")

# %% [markdown]
# ## Exercises
#
# ### First: the order of a rank
#
# Write 1F1B yourself. `order_of_rank(rank, ranks, micro_batches)` returns what a rank does in one
# step, in order, as a list: `"F0"` is the forward pass of micro-batch 0, `"B0"` its backward pass.
# Each rank has one stage, and there are at least as many micro-batches as ranks.

# %%
from bootcamp import exercise


def order_of_rank(rank, ranks, micro_batches):
    # your turn: return a list such as ["F0", "B0", "F1", "B1"]
    ...


print(exercise.check("order_of_rank", order_of_rank))

# %% [markdown]
# `exercise.solution("order_of_rank")` shows a solution. To go further, compare your list with rank
# 0's under *Run it*.
#
# ### Second: the loop (optional)
#
# Write the heart of the pipeline's loop: which rank calls the schedule with what?

# %%
print(exercise.start("pipeline"))

# %% [markdown]
# Edit the file, save it, and check it: it runs on two ranks with both optimizers.
# `exercise.solution("pipeline")` shows the solution as a diff.

# %%
print(exercise.check("pipeline"))

# %% [markdown]
# ## When to use it and when not
#
# **Use a pipeline** when the model with its state does not fit on one device, and the link is too
# slow for strategies that send more. In very large trainings it is combined with data parallelism,
# and with tensor parallelism inside each host.
#
# **Do not** when
# - the model fits: data parallelism is simpler, and has no bubble.
# - the layers cannot be cut into stages of about equal times: all wait for the slowest.
# - the model normalises over the batch (BatchNorm): then micro-batches change the training.
#
# **How many micro-batches?** The training gives the global batch: *m* × micro-batch × number of
# pipelines. Make the micro-batch as small as possible while it still keeps a device busy; that
# gives the largest *m*. A bubble of at most a tenth needs *m* ≥ 10 (p-1) under 1F1B. If *m* is too
# small, take fewer ranks in a pipeline. Under GPipe memory limits *m*, under 1F1B it does not.
#
# **How many stages a rank?** *v* = 1 first: it sends and holds least. A larger *v*, or halves of
# the backward pass, pay where *m* cannot grow and an action is long compared with a message.
#
# ## Sources
#
# - Huang et al., *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*,
#   2018, arXiv:1811.06965.
# - Harlap et al., *PipeDream: Fast and Efficient Pipeline Parallel DNN Training*, 2018,
#   arXiv:1806.03377. The idea of one forward, one backward.
# - Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM*, 2021, arXiv:2104.04473. 1F1B with a flush, interleaved stages, (p-1)/m and
#   (p-1)/(vm), and which parallelism goes where.
# - Qi et al., *Zero Bubble Pipeline Parallelism*, 2023, arXiv:2401.10241. ZB-H1 and ZB-V.
# - DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, arXiv:2412.19437, and the repository
#   github.com/deepseek-ai/DualPipe. DualPipe and DualPipeV.
# - PyTorch documentation: *torch.distributed.pipelining*. Its schedules are what runs here.
