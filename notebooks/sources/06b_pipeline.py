# %% [markdown]
# # 06b Pipelines: all devices at work on one model
#
# **75 minutes**, on any machine. The ranks of this lesson are CPU ranks everywhere, and the cells
# say what that means.
#
# After this lesson you can cut a model over several ranks and keep them busy with micro-batches,
# predict how long ranks wait under five schedules and how many activations they hold, measure both,
# prove that a pipeline trains the same model, combine it with data parallelism, and say when a
# pipeline pays.

# %% [markdown]
# ## The question
#
# A model that is cut over two devices fits where one device is too small. But with one batch at a
# time only one device works, and the other waits for it. Can all of them work at the same time, on
# one model, and still train *exactly* what one process trains?
#
# The next cell starts to load PyTorch in the background.

# %%
from bootcamp import launch, warm_up

warm_up()

# %% [markdown]
# ## The idea
#
# A **stage** is a part of the model: some consecutive layers. Each rank holds a stage, with its
# parameters, their gradients and their optimizer state, and nothing of the others. The next cell
# draws four ranks with a stage each.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import pipeline_gantt as diagrams

plots.show(diagrams.cut_model())

# %% [markdown]
# Cut the batch into **micro-batches**. When rank 0 has done the first one's forward, it sends the
# stage's output to rank 1 and goes on with the second one. So after a while all ranks compute, each
# on another micro-batch. At the end the gradients of all micro-batches have been added up, and each
# rank's optimizer changes its own stage. The sum over micro-batches is the gradient of the batch,
# as in gradient accumulation: nothing is approximated.
#
# The order in which each rank computes forwards and backwards is called a **schedule**. The next
# cell draws when each rank computes what, with the time from left to right, first without
# micro-batches and then with eight. A backward takes twice as long as a forward, since it computes
# two gradients: that of the stage's input, which the rank before waits for, and that of its
# weights.

# %%
from bootcamp.theory import pipeline_orders, pipeline_schedules


def theory(schedule, ranks, micro_batches):
    stages = pipeline_schedules.CHUNKS[schedule]  # of a rank, which share its time
    orders = pipeline_schedules.plan(schedule, ranks, micro_batches)
    return pipeline_schedules.simulate(
        orders, forward_seconds=1 / stages, backward_seconds=2 / stages
    )


whole = pipeline_schedules.simulate(
    pipeline_schedules.plan("gpipe", 4, 1), forward_seconds=8, backward_seconds=16
)
charts = {"the whole batch": whole, "8 micro-batches": theory("gpipe", 4, 8)}
plots.show(diagrams.gantt(charts, "The same batch on four ranks: whole, and cut into eight"))

# %% [markdown]
# Above is the plain cut: three of four ranks wait at any time. Below, ranks wait only while the
# pipeline fills and empties. This schedule is **GPipe**: all forwards, then all backwards.
#
# The grey time is called the **bubble**. Here the number is what the papers use: the time that
# ranks wait, divided by the time that they compute. With *p* ranks and *m* micro-batches each rank
# waits for *p*-1 micro-batches' time and computes for *m*, so GPipe's bubble is **(p-1)/m**. (As a
# share of the whole step it is less: a bubble of 1 means that ranks wait half of the time.)
#
# More micro-batches make it smaller. The price is memory: the activations of a micro-batch are held
# from its forward to its backward, and GPipe's ranks hold those of *all* micro-batches when the
# first backward begins. "In flight at most" counts them for each rank.
#
# ### Better schedules
#
# The next cell draws five schedules on the same scale. Look first at how long they are, then at
# what is in flight.

# %%
charts = {name: theory(name, 4, 8) for name in pipeline_schedules.SCHEDULES}
plots.show(diagrams.gantt(charts, "Five schedules: 4 ranks, 8 micro-batches, the same work"))

# %% [markdown]
# - **1F1B**, one forward, one backward: a rank begins with backwards as soon as it can. The bubble
#   is GPipe's. But a rank never has more micro-batches in flight than there are ranks from it to
#   the end, however many micro-batches the batch is cut into.
# - **Interleaved 1F1B** gives each rank *v* = 2 stages that do not follow each other: with four
#   ranks, rank 0 has stages 0 and 4. A micro-batch passes each rank twice, for half the time. So
#   the pipeline fills sooner, and the bubble is (p-1)/(vm). More is sent, and more is in flight.
# - **Zero bubble** cuts the backward in two halves: I, the gradient of the stage's input, which
#   another rank waits for; and W, the gradient of the weights, which nobody waits for. W can be
#   done later, when a rank would have to wait. (Nobody wants the gradient of the first stage's
#   input, the text, so there all of the backward is in W.) If forward, I and W
#   take equally long, the bubble is a third of the interleaved one. (This is the paper's ZB1P. To
#   have none at all it needs more memory, and optimizers that do not wait for each other.)
# - **DualPipe**, in its form DualPipeV, lays a rank's two stages out like a V: rank 0 has the first
#   and the last. Micro-batches go down the V and up again at the same time. DeepSeek-V3 was trained
#   with its elder brother, which computes a forward and a backward side by side, so that the
#   communication of one hides behind the other; torch computes them one after the other.
#
# ### Explore them
#
# The next cell shows the same theory with controls. (Without a running kernel you see one choice.)
# On the right is what a rank holds at its peak, as a share of what the whole batch's activations
# would be; the number on a bar says how many micro-batches that is. Find out: how many does 1F1B
# need on 8 ranks for a bubble below 0.25? Which schedule holds least? What does each one refuse?

# %%
from bootcamp import simulators

controls = simulators.pipeline_schedule()

# %% [markdown]
# ## Predict
#
# Three questions before the runs; write a number after `answer=`. The next cell asks for the first.

# %%
from bootcamp import predict

guess_idle = predict(
    "pipeline_idle",
    "GPipe, 4 ranks, 8 micro-batches. What share of the step does a rank wait?",
    unit="%",
    answer=None,
)
guess_idle

# %% [markdown]
# The second is about memory: in 1F1B and in GPipe, what does rank 0 of two hold at its peak?

# %%
guess_held = predict(
    "pipeline_held",
    "2 ranks, 8 micro-batches. What share of GPipe's activations does 1F1B hold on rank 0?",
    unit="%",
    answer=None,
)
guess_held

# %% [markdown]
# The third is about the link. A micro-batch's output of a stage has one vector of `width` numbers
# for each token. The next cell takes these numbers from the tiny GPT and asks.

# %%
from bootcamp.train.models import gpt

layers, width, heads, context = gpt.SIZES["tiny"].values()
BATCH = 32
guess_sent = predict(
    "pipeline_sent",
    f"{BATCH} samples of {context} tokens, width {width}, 4 bytes a number, 2 ranks. "
    "How many MB does rank 0 send in a step?",
    unit="MB",
    answer=None,
)
guess_sent

# %% [markdown]
# ## What changes
#
# The next cell shows what a pipeline changes in the DDP script. Look for four things: which stages
# a rank takes, who passes inputs and targets, where `backward` has gone, and whose loss it is.

# %%
from bootcamp import script_diff

script_diff("pp")

# %% [markdown]
# - `pipeline_stages.cut` cuts the model into consecutive parts; a rank keeps those that the
#   schedule gives it. (Every rank builds the whole model here and drops the rest, which is fine
#   for a small one.)
# - `PipelineStage` knows its number and how many there are, so it knows whom to send to. The shapes
#   that travel are found out in the first step.
# - All ranks draw the *same* batch: `data.Batches(args, 0, 1)`. Only the first stage reads the
#   inputs, only the last one the targets.
# - `schedule.step` does all forwards and backwards of the step in the schedule's order, sends and
#   receives, and divides the gradients by the number of micro-batches. So there is no `backward`
#   left to see in the loop. (With `return_outputs=False` it throws the last stage's outputs away;
#   else they would be held until the step ends.)
# - Nothing averages gradients: each rank has other parameters.
# - Only the rank with the last stage has losses. The all-reduce hands their mean to all, for the
#   record.
#
# ## Run it
#
# The next cell trains the tiny GPT on two ranks with 1F1B and eight micro-batches, and shows what
# rank 0 did in its shortest step. (`record_actions` in the script leaves a line for every action.)

# %%
run = launch("pp", ranks=2, device="cpu", steps=8, global_batch=BATCH, micro_batches=8)
rows = pipeline_schedules.by_rank(pipeline_schedules.recorded(run))[0]
print(" ".join(f"{span.action.kind}{span.action.micro_batch}" for span in rows))

# %% [markdown]
# F0 is the forward of micro-batch 0, B0 its backward. Is it what the theory says? The next cell
# runs all five schedules on two ranks, and compares every rank's order with the plan.

# %% tags=["nbval-check-output"]
flags = {"device": "cpu", "steps": 4, "global_batch": BATCH, "quiet": True}
real = {}
for name in pipeline_schedules.SCHEDULES:
    for m in (4, 8):
        real[name, m] = launch("pp", ranks=2, schedule=name, micro_batches=m, **flags)
        done = pipeline_schedules.orders(pipeline_schedules.recorded(real[name, m]))
        assert done == pipeline_schedules.plan(name, 2, m), f"{name} was not carried out as planned"
print(f"{len(real)} runs, each executed in exactly the order of its plan.")

# %% [markdown]
# ## Read the measurement
#
# ### The bubble, with stages that sleep
#
# To see waiting, each rank needs a device of its own. A machine with few cores can pretend: a stage
# that *sleeps* for a fixed time needs no core. The next cell shows the heart of a small program
# whose stages sleep in the forward, and in each half of the backward.

# %%
from IPython.display import Markdown, display

from bootcamp.paths import SRC

SLEEP, MEMORY = (SRC / "snippets" / f"pipeline_{name}.py" for name in ("sleep", "memory"))
code = SLEEP.read_text()
Markdown(f"```python\n{code[code.index('class Sleep') : code.index('dist.init_process')]}```")

# %% [markdown]
# The next cell runs it on four ranks under each schedule. A rank's forward of one micro-batch
# sleeps 15 ms, its backward 30 ms; a rank with two stages has half of it in each.

# %%
slept = {}
for name in pipeline_schedules.SCHEDULES:
    for m in (4, 8):
        if m >= pipeline_orders.least_micro_batches(name, 4):
            choices = {"schedule": name, "micro_batches": m, "milliseconds": 15, "steps": 3}
            done = launch(SLEEP, 4, device="cpu", quiet=True, **choices)
            slept[name, m] = pipeline_schedules.recorded(done)
            assert pipeline_schedules.orders(slept[name, m]) == pipeline_schedules.plan(name, 4, m)
waited = pipeline_schedules.idle_share(slept["gpipe", 8])
guess_idle.score(100 * sum(waited) / len(waited))

# %% [markdown]
# The table in the next cell holds measured bubbles against predicted ones. "By formula" is the
# papers', where they have one for equal stages; "by plan" simulates the schedule.

# %%
from bootcamp import Table

rows = []
for (name, m), spans in slept.items():
    said, found = pipeline_schedules.bubble(theory(name, 4, m)), pipeline_schedules.bubble(spans)
    row = {"schedule": name, "micro-batches": m}
    row |= {"by formula": pipeline_schedules.bubble_by_formula(name, 4, m), "by plan": said}
    rows.append(row | {"measured": found, "error": found - said})
Table(rows, "Bubble (idle / busy), 4 ranks, stages that sleep, measured here")

# %% [markdown]
# Real ranks wait longer than planned ones, since a plan has no time for handing over. The next cell
# measures how long that takes, from the end of one rank's action to the begin of the action that
# waits for it on another, and predicts again.

# %%
spans, orders = slept["1f1b", 8], pipeline_schedules.plan("1f1b", 4, 8)
hand_over = pipeline_schedules.hand_over_seconds(spans)
again = pipeline_schedules.simulate(orders, 15e-3, 30e-3, transfer_seconds=hand_over)
predicted, found = pipeline_schedules.bubble(again), pipeline_schedules.bubble(spans)
print(f"Handing over takes {1e3 * hand_over:.2f} ms.")
print(f"Predicted with it: a bubble of {predicted:.3f}, measured: {found:.3f}.")

# %% [markdown]
# What still is missing are the Python lines between two actions of one rank, and what else this
# machine does. All of that weighs more where actions are shorter: with two stages a rank, and with
# halves. Real schedules have the same limit: a stage must have much more to compute than a message
# takes.
#
# The next cell draws theory and measurement of one schedule on one axis.

# %%
both = {"planned": pipeline_schedules.simulate(orders, 15e-3, 30e-3), "measured": spans}
plots.show(diagrams.gantt(both, "1F1B with stages that sleep", "milliseconds", scale=1e3))

# %% [markdown]
# ### The bubble, with stages that compute
#
# The runs on two ranks above trained a real model. Its stages are not equally long: the last one
# has the head, the first one only an embedding more. So here are two predictions: for equal stages,
# and by simulating with each stage's own measured times.

# %%
rows = []
for (name, m), each in real.items():
    spans, orders = pipeline_schedules.recorded(each), pipeline_schedules.plan(name, 2, m)
    with_own = pipeline_schedules.simulate(orders, **pipeline_schedules.measured_seconds(spans))
    row = {"schedule": name, "micro-batches": m}
    row |= {"equal stages": pipeline_schedules.bubble(theory(name, 2, m))}
    row |= {
        "stages' own times": pipeline_schedules.bubble(with_own),
        "measured": pipeline_schedules.bubble(spans),
    }
    rows.append(row | {"error": row["measured"] - row["stages' own times"]})
Table(rows, f"Bubble (idle / busy) of {real['1f1b', 8].label}, tiny GPT, measured here")

# %% [markdown]
# Stages of different length have a bubble of their own: all wait for the slowest. So the cut
# matters as much as the schedule, and large models give the first and last rank fewer layers. The
# error is what stands in no action: the loss, the messages, Python. An action of a model as tiny as
# this one takes a few milliseconds, so all that is a good part of it, and these numbers vary from
# run to run. (Ranks that have to share cores also disturb each other: the caption says if they do.)
#
# One warning: these times are taken by the host. On a GPU a forward only *starts* kernels and
# returns, so there a record like this one shows when work was started. That is why these are CPU
# ranks on every machine; on GPUs use torch's profiler.
#
# The next cell shows these controls again, now with the measured runs. Choose one under "measured":
# it is drawn below the theory, which takes over the times of that run's stages.

# %%
measured = {f"slept: {name}, m={m}": spans for (name, m), spans in slept.items()}
measured |= {
    f"tiny GPT: {n}, m={m}": pipeline_schedules.recorded(each) for (n, m), each in real.items()
}
controls = simulators.pipeline_schedule(measured, run="slept: interleaved, m=8")

# %% [markdown]
# ### What is held
#
# The next cell counts what a rank holds for its backwards, before and after each action, from the
# memory behind the tensors that are alive. The micro-batches are equally large under all schedules.

# %%
import json

held = {}
for name in pipeline_schedules.SCHEDULES:
    choices = {"schedule": name, "micro_batches": 8, "global_batch": BATCH}
    done = launch(MEMORY, 2, device="cpu", quiet=True, **choices)
    for rank in range(2):
        seen = json.loads(done.output(rank).splitlines()[-1])
        held[name, rank] = max(max(before, after) for *_, before, after in seen)
guess_held.score(100 * held["1f1b", 0] / held["gpipe", 0])

# %% [markdown]
# Now the formula. For each token a block keeps 16 vectors of `width` numbers and a few single ones
# (lesson 02 counts them); the embedding its sum, the head a normed vector, 256 scores and 256
# probabilities. After a half backward I, a block keeps 11 vectors more for its half W: the
# gradients behind its six matrix products and two norms. The next cell writes this down by stage.

# %%
KEPT = {"embedding": width, "block": 16 * width + heads + 4, "head": width + 2 + 2 * 256}
FOR_W = {"embedding": 0, "block": 11 * width, "head": 2 * width}
TOKEN = 4 * context * BATCH // 8  # bytes of a number for each token of a micro-batch
names = ["embedding", *["block"] * layers, "head"]


def by_stage(numbers, stages):
    edges = [len(names) * stage // stages for stage in range(stages + 1)]
    parts = [names[begin:end] for begin, end in zip(edges, edges[1:], strict=False)]
    return {i: TOKEN * sum(numbers[name] for name in part) for i, part in enumerate(parts)}


# %% [markdown]
# Two things are held longer than a micro-batch is in flight: except for 1F1B, torch keeps what a
# rank has sent, outputs and gradients, until the step ends. The next cell follows each rank's plan
# with these numbers.


# %%
def formula(name, rank, ranks=2, m=8):
    stages = ranks * pipeline_schedules.CHUNKS[name]
    stays = 0 if name == "1f1b" else TOKEN * width
    outputs = dict.fromkeys(range(stages - 1), stays) | {stages - 1: 0}
    gradients = dict.fromkeys(range(1, stages), stays) | {0: 0}
    between = by_stage(FOR_W, stages) | {0: 0}  # stage 0 has no half I
    order = pipeline_schedules.plan(name, ranks, m)[rank]
    return pipeline_schedules.most_held(order, by_stage(KEPT, stages), between, outputs, gradients)


# %% [markdown]
# The next cell compares, asserts that the formula is right within 5 %, and draws it.

# %%
rows = []
for (name, rank), found in held.items():
    said = formula(name, rank)
    assert abs(found / said - 1) < 0.05, f"the formula is off for {name} on rank {rank}"
    flight = (
        pipeline_schedules.most_in_flight(theory(name, 2, 8))[rank]
        / pipeline_schedules.CHUNKS[name]
    )
    row = {"schedule": name, "rank": rank, "micro-batches in flight": flight}
    rows.append(row | {"formula": said / 1e6, "measured": found / 1e6})
plots.show(diagrams.held_by_schedule(rows, "2 CPU ranks, tiny GPT, 8 micro-batches, counted here."))
Table(rows, "MB held for the backward at the peak")

# %% [markdown]
# GPipe holds the whole batch. 1F1B has two micro-batches in flight on rank 0 and one on rank 1, and
# would have no more of a hundred. The others have smaller bubbles than 1F1B and hold more, zero
# bubble also the gradients that wait for W.
#
# (Beyond that, torch allocates a buffer for every micro-batch's input and for every gradient that a
# stage receives, and keeps them from step to step.)
#
# ### Parameters, gradients, optimizer
#
# A rank holds these of its own stages only. A block has 12 width² + 9 width parameters, the
# embedding (256 + context) width, the head 258 width. AdamW keeps two numbers for each of them. The
# next cell compares with the records.

# %%
PARAMETERS = {"embedding": (256 + context) * width, "block": 12 * width**2 + 9 * width}
PARAMETERS |= {"head": 258 * width}
rows = []
for rank, record in enumerate(run.ranks):
    bytes_of_one = 4 * sum(PARAMETERS[name.rstrip("0123456789")] for name in record["stages"])
    for kind, times in {"parameter": 1, "gradient": 1, "optimizer": 2}.items():
        said, counted = times * bytes_of_one, record[f"{kind}_bytes"]
        assert abs(counted / said - 1) < 0.05, f"{kind} bytes of rank {rank} are off"
        row = {"rank": rank, "what": kind, "formula": said / 1e6, "counted": counted / 1e6}
        rows.append(row)
Table(rows, f"MB on each of {run.world} ranks")

# %% [markdown]
# ### What goes over the link
#
# Each micro-batch's output goes one way, its gradient the other. Together that is *samples x
# context x width x 4 bytes* each way, for each border between stages that lie on different ranks.
# It does not depend on the number of micro-batches. The next cell counts borders by the plan, and
# compares with what the kernel has counted.


# %%
def borders_sent(name, rank, ranks=2):
    where = {s: r for r in range(ranks) for s in pipeline_orders.stages_of_rank(name, r, ranks)}
    pairs = [(a, b) for a in where for b in (a - 1, a + 1) if where[a] == rank]
    return sum(where.get(b, rank) != rank for a, b in pairs)


border = 4 * BATCH * context * width
rows = []
for (name, m), each in real.items():
    sent, said = each.ranks[0]["sent_bytes_per_step"], borders_sent(name, 0) * border
    assert sent is None or abs(sent / said - 1) < 0.05, f"{name} sent something else"
    sent = None if sent is None else sent / 1e6  # None where the system does not count
    rows.append({"schedule": name, "micro-batches": m, "formula": said / 1e6, "counted": sent})
display(Table(rows, "MB that rank 0 sends in a step"))
guess_sent.score(border / 1e6)

# %% [markdown]
# Interleaved and zero bubble send three times as much: with two stages on each of two ranks there
# are three borders instead of one. DualPipeV has three borders too, but at the turn of the V the
# next stage lies on the same rank.
#
# Compare with data parallelism, where each rank sends nearly twice its gradients, however small its
# batch. The next cell computes both for a large model by formula: GPT-2 XL's sizes on 8 ranks.

# %% tags=["nbval-check-output"]
xl_layers, xl_width, _, xl_context = gpt.SIZES["xl"].values()
parameters = xl_layers * (12 * xl_width**2 + 9 * xl_width) + (514 + xl_context) * xl_width
ring = 2 * 7 / 8 * 4 * parameters / 1e9
rows = []
for samples in (8, 64, 1024):
    pipe = 2 * 4 * samples * xl_context * xl_width / 1e9  # a rank in the middle: both ways
    rows.append({"samples a step": samples, "pipeline": pipe, "data parallel": ring})
Table(rows, f"{parameters / 1e9:.2f} billion parameters, float32: GB that a rank sends in a step")

# %% [markdown]
# With few samples the pipeline sends far less, with very many it sends more. And its messages go to
# neighbours only, while there is something else to compute. That is why pipelines are what people
# put on the slower links, between hosts.

# %% [markdown]
# ## Prove it
#
# The runs above trained with AdamW, under five schedules and with two numbers of micro-batches. The
# next cell trains each schedule with SGD too, and holds all of these runs against what one process
# trains: every step's loss, and all parameters. The parts of the two ranks together must be the
# model.

# %%
from bootcamp import check

settings = {"steps": 4, "global_batch": BATCH}
proofs = [check.same_training(each, check.baseline(**settings)) for each in real.values()]
settings |= {"optimizer": "sgd"}
for name in pipeline_schedules.SCHEDULES:
    each = launch("pp", 2, device="cpu", quiet=True, schedule=name, **settings)
    proofs.append(check.same_training(each, check.baseline(**settings)))
display(proofs[-1])
print(f"{len(proofs)} proofs, each with rows like these. A difference would have been an error.")

# %% [markdown]
# Could it fail? The next cell forgets that the loss is a mean: `scale_grads=False` leaves the
# gradients summed over the micro-batches.

# %%
from bootcamp import variant

line = "schedule = schedule_class(whole, args.micro_batches, loss_fn=models.loss)"
summed = variant("pp", "pp_summed", {line: line[:-1] + ", scale_grads=False)"})
wrong = launch(summed, 2, device="cpu", quiet=True, **settings)
proof = check.compare(wrong, check.baseline(**settings))
assert proof.failed, "the proof did not notice summed gradients"
proof

# %% [markdown]
# ## Data parallel x pipeline
#
# Two pipelines side by side, each with its half of the batch: four ranks as a **mesh** of 2 x 2.
# Along one axis ranks hold other stages of one model, along the other the same stage of another
# copy. The next cell shows what it adds to the pipeline's script.

# %%
script_diff("ddp_pp")

# %% [markdown]
# Each stage's gradients are averaged with those of the same stage in the other pipeline. The place
# of these lines matters. A backward of one micro-batch *adds* its gradients. They are whole only
# after the last micro-batch, that is after `schedule.step`. Averaging after every micro-batch would
# send *m* times as much. The next cell proves that 2 x 2 trains what one process trains.

# %%
grid = {"steps": 4, "device": "cpu", "global_batch": BATCH, "mesh": "2x2"}
for proof in check.prove("ddp_pp", 4, **grid):
    assert not proof.failed, "2 x 2 trained something else"
proof

# %% [markdown]
# Look at the rows about the batch: there are two shares of it, the two ranks of a pipeline have the
# same one, and the pipelines have different ones.
#
# The next cell looks at what the ranks hold and send. A rank sends half as much to its neighbour as
# in one pipeline, since each pipeline has half of the batch; the gradients of its stages come on
# top.

# %%
rows = []
for record in proof.run.ranks:
    sent = record["sent_bytes_per_step"]
    half = border / 2  # of the batch's outputs, or of their gradients: each pipeline has half
    ring = 2 * (2 - 1) / 2 * record["gradient_bytes"]
    assert sent is None or abs(sent / (half + ring) - 1) < 0.05, "2 x 2 sent something else"
    row = {"rank": record["rank"], "share of the batch": record["data_share"]}
    row |= {"stages": ", ".join(record["stages"]), "gradient MB": record["gradient_bytes"] / 1e6}
    sent = None if sent is None else sent / 1e6
    rows.append(row | {"sent MB by formula": (half + ring) / 1e6, "counted": sent})
Table(rows, "A mesh of 2 x 2, counted here")

# %% [markdown]
# ## Break it
#
# ### First: why not DistributedDataParallel?
#
# Why by hand? DDP averages within the backward, and its `no_sync` does exactly what is needed here.
# The next cell makes a script that wraps each stage in DDP and averages nothing itself.

# %%
tools = "checkpoint, config, data, models, optimizers, pipeline_stages, record"
imports = f"from bootcamp.train import {tools}"
stage = "PipelineStage(parts[i].to(device), i, count, device, group=pipe.get_group())"
wrapped = "DistributedDataParallel(parts[i].to(device), process_group=copies.get_group())"
average = "for parameter in model.parameters():  # whole only now, after the last micro-batch"
changes = {imports: f"from torch.nn.parallel import DistributedDataParallel\n{imports}"}
changes[f"{stage} for i in mine"] = f"{stage.replace('parts[i].to(device)', wrapped)} for i in mine"
changes[average] = "for parameter in ():"
script = variant("ddp_pp", "ddp_around_stages", changes)

# %% [markdown]
# The next cell tries it with two schedules, and prints what became of each.

# %%
for name in ("1f1b", "gpipe"):
    tried = launch(script, 4, schedule=name, quiet=True, raises=False, **grid)
    if tried.status == "ok":
        same = not check.compare(tried, check.baseline(steps=4, global_batch=BATCH)).failed
        print(f"{name}: trained {'the same' if same else 'something else'}")
    else:
        lines = tried.summary["error"]["traceback"].splitlines()
        print(f"{name}: {next((t for t in lines if 'ASSERT' in t), lines[-1])}")

# %% [markdown]
# <details><summary>What happened?</summary>
#
# With torch 2.13 and GPipe this ends in an assertion inside DDP. DDP notes in which order gradients
# become ready, to sort its buckets by it. It expects to note each parameter once, and has noted
# twice as many as there are. `PipelineStage` knows DDP, and runs all micro-batches but the last
# under `no_sync`. But to switch the averaging on for the last one it has to reach into DDP's
# inside, which torch's own source calls a hack. With 1F1B it works, and the proof holds; what works
# for one schedule and fails for another is no foundation. So the averaging stands in the script: it
# is correct for every schedule, and sends no more bytes. What it gives up is DDP's overlap with the
# backward.
# </details>
#
# ### Second: too few micro-batches
#
# 1F1B on four ranks needs four micro-batches to fill the pipeline once. The next cell gives two.

# %% tags=["nbval-check-output"]
from bootcamp import LaunchError

try:
    launch("pp", 4, device="cpu", schedule="1f1b", micro_batches=2, global_batch=BATCH, quiet=True)
except LaunchError as error:
    print(error)
else:
    raise AssertionError("1F1B ran with fewer micro-batches than ranks")

# %% [markdown]
# The script says so before any rank trains. GPipe would run, with one micro-batch too: that is the
# plain cut of the first picture.
#
# ### Third: a rank fails in the middle
#
# In the next cell rank 1 raises an error in one of its forwards. Rank 0 then needs a gradient that
# will never come. How long will it wait?

# %%
record = "pipeline_stages.record_actions(context.run_dir, rank, stages)"
fails = """calls = []
def fails(inputs, whole=model[0].forward):
    calls.append(inputs)
    if rank == 1 and len(calls) == 3:
        raise ValueError("a broken layer")
    return whole(inputs)
model[0].forward = fails"""
script = variant("pp", "pp_fails", {record: f"{fails}\n{record}"})

# %% [markdown]
# The next cell runs it, and prints which rank failed, when and why.

# %%
import time

began = time.monotonic()
broken = launch(script, 2, device="cpu", global_batch=BATCH, quiet=True, raises=False)
assert broken.status == "failed", "a broken layer did not end the run"
print(f"rank {broken.summary['error']['rank']}, after {time.monotonic() - began:.0f} s:")
print(*[t for t in broken.summary["error"]["traceback"].splitlines() if "ValueError:" in t])

# %% [markdown]
# The launcher ended both ranks, and shows the error of the one that raised. In a pipeline everybody
# waits for everybody, so one broken rank stops all. Had rank 1 not ended but hung, rank 0 would
# have waited until the time-out of its process group.

# %% [markdown]
# ## Exercises
#
# ### First: the order of a rank
#
# Write 1F1B yourself. `order_of_rank(rank, ranks, micro_batches)` returns what a rank does in one
# step, in order, as a list: `"F0"` is the forward of micro-batch 0, `"B0"` its backward. Each rank
# has one stage, and there are at least as many micro-batches as ranks. The next cell has the
# function's first line, and checks it.

# %%
from bootcamp import exercise


def order_of_rank(rank, ranks, micro_batches):
    # your turn: return a list such as ["F0", "B0", "F1", "B1"]
    ...


print(exercise.check("order_of_rank", order_of_rank))

# %% [markdown]
# `exercise.solution("order_of_rank")` shows a solution. For more: compare your list with what rank
# 0 did in the section *Run it*.
#
# ### Second: the loop
#
# Write the heart of the pipeline's loop: who calls the schedule with what? The next cell writes
# your starting point.

# %%
print(exercise.start("pipeline"))

# %% [markdown]
# Edit the file, save it, and run the next cell. It runs your script on two ranks with both
# optimizers, and holds it against the baseline. `exercise.solution("pipeline")` shows the solution
# as a diff.

# %%
print(exercise.check("pipeline"))

# %% [markdown]
# ## When to use it and when not
#
# **Use a pipeline** when the model with its optimizer state does not fit on one device, and the
# link between devices is too slow for more talkative strategies: a pipeline sends only what passes
# a border, to one neighbour. It is the usual choice between hosts. In very large trainings it is
# combined with data parallelism, and with tensor parallelism inside each host.
#
# **Do not** when
# - the model fits: data parallelism is simpler, and has no bubble.
# - the batch gives only few micro-batches. For a bubble of at most a tenth, 1F1B wants ten times as
#   many micro-batches as it has other ranks, and each must still be large enough to keep a device
#   busy.
# - the layers cannot be cut into stages of about equal times: all wait for the slowest.
# - the model normalises over the batch (BatchNorm): then micro-batches change the training.
#
# **Which schedule?** 1F1B first: it holds little and sends little. Interleaved where the bubble
# hurts and the link is fast. Zero bubble and DualPipe where their memory is there and actions are
# long enough for halves of them to be worth a message.
#
# ## Sources
#
# - Huang et al., *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*,
#   2019, arXiv:1811.06965.
# - Narayanan et al., *PipeDream: Generalized Pipeline Parallelism for DNN Training*, SOSP 2019,
#   arXiv:1806.03377. The idea of one forward, one backward.
# - Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM*, 2021, arXiv:2104.04473. 1F1B with a flush, interleaved stages, (p-1)/m and
#   (p-1)/(vm), and which parallelism goes where.
# - Qi et al., *Zero Bubble Pipeline Parallelism*, 2023, arXiv:2401.10241.
# - DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, arXiv:2412.19437, and the repository
#   github.com/deepseek-ai/DualPipe. DualPipe and DualPipeV.
# - PyTorch documentation: *torch.distributed.pipelining*. Its schedules are what runs here.
