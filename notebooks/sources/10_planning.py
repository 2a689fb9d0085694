# %% [markdown]
# # 10 Planning at scale: a thousand GPUs from a laptop
#
# **80 minutes**, on any machine, after lessons 06b, 07b, 08 and 08b; the *(optional)* part takes
# another 9. Two short runs on four CPU ranks; everything else is calculated.
#
# After this lesson you can say what each rank of a plan holds and sends before anybody pays for a
# GPU; explain why one plan is faster than another; predict what limits a training that grows from
# 8 GPUs to 16,384; say how wrong such predictions are; and find published claims that cannot be
# true.
#
# ## The question
#
# You get 256 H100s to train a model of 70 billion parameters. A host has 8 of them, and a network
# of 400 Gbit/s for each GPU. How do they share the model and the batch? You choose the mesh, the
# ZeRO stage, the micro-batch, and what is recomputed. Nobody tries all of that on 256 GPUs.

# %%
from bootcamp import warm_up
from bootcamp_lessons import forecasts

warm_up()
plans = forecasts.list_plans("Llama 3 70B", gpus=256)
print(plans.caption)

# %% [markdown]
# A **planner** has just predicted the memory and the seconds of a step for each of these plans.
# Which of them are fast, and why? And how far can you trust a prediction?
#
# ## The idea
#
# ### The axes
#
# A **plan** arranges the ranks in a mesh. Each **axis** of the mesh divides a different thing and
# sends a different thing. The product of their sizes is the number of GPUs.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import predicted, three_axes

plots.show(three_axes.axes_map())

# %% [markdown]
# The last axis is lesson 08b's: each rank has some of a layer's experts, and an all-to-all takes
# each token to its experts and back. Such a model has many parameters, and a token passes through
# few of them.
#
# ### What a planner calculates
#
# | part | calculated as | known from |
# |---|---|---|
# | states | 16 bytes for each parameter (AdamW, mixed precision), divided by stage | lesson 07 |
# | activations | bytes of a layer × layers × micro-batches in flight | lessons 02b, 06b, 06c |
# | computing | operations ÷ what a GPU reaches of its peak | lesson 02 |
# | collectives | latency + bytes ÷ bandwidth, for the links that a group uses | lessons 04, 08 |
# | bubble | stages that wait at the beginning and at the end of a step | lesson 06b |
#
# States and bytes on links can be calculated exactly. Seconds cannot: no data sheet gives the share
# of its peak that a GPU reaches in a real program. So a planner has **constants**, fitted to
# published runs. They differ between **stacks**: GPUs, network and software together, such as
# Megatron-LM on A100s. For a stack that it has never seen, the planner borrows the constants of
# others. These are the constants of one stack, and those of all:

# %%
forecasts.tabulate_constants("vtrain")

# %% [markdown]
# **MFU**, model FLOPs utilization, is the share of a GPU's peak that goes into operations that the
# model needs: about 6 for each parameter and token. Operations that are repeated by recomputation
# do not count; in **HFU**, hardware FLOPs utilization, they do.
#
# ## Predict
#
# Pencil and paper are enough for all but the second: guess that one. AdamW in mixed precision, GPUs
# of 80 GB.

# %%
from IPython.display import display

from bootcamp import predict

guess_gpus = predict(
    "planning_gpus",
    "Llama 3 405B: how many GPUs hold the parameters, gradients and optimizer state, at least?",
    unit="GPUs",
)
guess_network = predict(
    "planning_network",
    "The fastest plan for these 256 GPUs is started on a cluster where not each GPU but each host "
    "has 400 Gbit/s. How many times as long does it take as the plan that is best there?",
    unit="times",
)
guess_samples = predict(
    "planning_samples",
    "A step has 16.8 million tokens in sequences of 8,192. How many GPUs can FSDP alone use?",
    unit="GPUs",
)
guess_published = predict(
    "planning_published",
    "A model of 65 billion parameters, 256 H100s of 989 TFLOP/s each, FSDP, all layers "
    "recomputed. How many tokens per second did each GPU process?",
    unit="tokens/s",
)
guess_failures = predict(
    "planning_failures",
    "On 16,384 GPUs, Llama 3's training had 419 unexpected interruptions in 54 days. How many "
    "minutes are between two of them on 65,536 such GPUs?",
    unit="minutes",
)
display(guess_gpus, guess_network, guess_samples, guess_published, guess_failures)

# %% [markdown]
# ## What changes
#
# Nothing runs. A plan is a few numbers, and the planner's functions are short. These give the
# number of micro-batches whose activations a pipeline's rank holds, what a rank sends in a
# collective, and the seconds that this takes:

# %%
from bootcamp.costs import memory, sharding, step
from bootcamp_lessons import excerpts

excerpts.source(memory.in_flight, sharding.split_by_link, step.collective_seconds)

# %% [markdown]
# `ring_bytes` has the bytes of lesson 08. `between` and `sharing` are new: a ring leaves a host
# over one edge, and all ranks of a host share its network. With 8 GPUs in a host and tensor ranks
# in groups of 4, four rings of `data` leave the host side by side, one for each tensor rank.
#
# ## Run it
#
# ### What this machine can check
#
# First the prediction, then the run: DDP and FSDP on four CPU ranks, with the course's tiny GPT in
# float32.

# %%
from bootcamp import Table, check, claim, launch
from bootcamp.costs import model_shapes
from bootcamp.costs.plans import Plan

RANKS = 4
SETTINGS = {"optimizer": "adamw", "device": "cpu", "quiet": True, **check.settings(RANKS)}
numbers = model_shapes.parameters("gpt", "tiny")
found = {}
for name, stage in {"ddp": 0, "fsdp": 3}.items():
    states = memory.states(numbers, Plan(data=RANKS, stage=stage, precision="fp32"))
    sent = sharding.sent_bytes(name, 4 * numbers, RANKS)
    run = launch(name, RANKS, **SETTINGS)
    found[name] = forecasts.compare_counted(run, sum(states.values()), sent)
Table(list(found.values()), "Bytes of rank 0: states, and what it sends in a step")

# %%
claim.equal(
    "planning_states_of_a_run",
    "A rank of FSDP holds the states that the planner predicts.",
    found["fsdp"]["states, counted"],
    found["fsdp"]["states, predicted"],
    within=0.001,
    kind="memory",
    supported="The few bytes more are AdamW's step counters.",
)

# %%
claim.equal(
    "planning_bytes_of_a_run",
    "A rank of DDP sends what the planner predicts.",
    found["ddp"]["sent, counted"],
    found["ddp"]["sent, predicted"],
    within=0.01,
)

# %%
claim.larger(
    "planning_gloo_sends_more",
    "A rank of FSDP sends more than the planner predicts, by over a quarter.",
    found["fsdp"]["sent, counted"],
    found["fsdp"]["sent, predicted"],
    by=1.25,
    supported="The planner counts as NCCL does, and gloo sends a reduce-scatter twice (lesson 08). "
    "A formula holds for the library that it describes.",
)

# %% [markdown]
# ### Four models, part by part
#
# Now for models that no machine here can hold: each on one GPU, and on 64 in three ways. A
# **sample** is one sequence of the model's full length. *Buffers* are the scores from which the
# loss is computed (one for each token of the vocabulary), what ZeRO-3 has gathered, and the
# allocator's reserve.

# %%
plots.show(predicted.memory_by_part(forecasts.memory_by_part()))

# %%
import math

sizes = forecasts.tabulate_sizes(forecasts.MODELS)
by_name = {row["model"]: row for row in sizes}
needed = math.ceil(by_name["Llama 3 405B"]["states, TB"] * 1e12 / 80e9)
print(guess_gpus.score(needed, within=0.05, how="By formula"))
sizes

# %%
held = {(row["model"], row["plan"]): row for row in forecasts.memory_by_part()}
sharded = held["Llama 3 405B", "ZeRO-3 over 64"]
claim.larger(
    "planning_activations_exceed_shards",
    "405 billion parameters, ZeRO-3 over 64 GPUs: a GPU holds more activations of one sample than "
    "states.",
    1e9 * sharded["activations_gb"],
    1e9 * sum(sharded[f"{kind}_gb"] for kind in ("parameters", "gradients", "optimizer")),
    kind="memory",
    supported="ZeRO shards states only. A sample stays on one rank: to divide its activations you "
    "need tensor or context ranks, or you compute them again.",
)

# %% [markdown]
# Mixtral has over three times as many parameters as a token passes through: it needs the memory of
# a large model, and computes as much as a small one.
#
# ### A table of plans, from a shell
#
# The planner is a command too. It reads a table of plans and answers each row in the same order. If
# it cannot answer a row, it gives the reason under `error` and goes on with the others. One of
# these ten plans is impossible; which?

# %%
PLANS = """\
gpu,gpus,model,tp,pp,dp,stage,batch,micro_batch,recompute,sequence_parallel,compile,host_gb_s
H100,8,Llama 3 8B,1,1,8,3,64,1,none,no,yes,400
H100,8,Llama 3 8B,8,1,1,0,64,1,none,yes,yes,400
A100,64,Llama 3 70B,1,1,64,3,128,1,full,no,yes,200
A100,64,Llama 3 70B,3,1,16,3,128,1,full,yes,yes,200
H100,64,Llama 3 70B,8,2,4,1,128,1,none,yes,yes,50
H100,64,Llama 3 70B,8,8,1,1,128,1,none,yes,yes,50
H200,512,Llama 3 405B,8,8,8,1,512,1,none,yes,yes,400
B200,512,Llama 3 405B,8,8,8,1,512,1,none,yes,yes,400
H100,128,Mixtral 8x7B,1,1,128,3,256,2,none,no,yes,400
H100,16384,Llama 3 405B,8,16,128,1,2048,1,none,yes,yes,400
"""
columns = {name: name for name in ("gpus", "model", "mfu", "limit", "error")}
columns |= {"tokens_per_second_per_gpu": "tokens/s of a GPU", "peak_gb": "GB at the peak"}
forecasts.ask_in_shell(PLANS, columns)

# %% [markdown]
# ## Read the measurement
#
# ### All plans in one picture

# %%
plots.show(predicted.feasible_plans(plans))

# %%
fitting = [plan for plan in plans if plan["fits"]]
fastest, slowest = fitting[0], fitting[-1]
too_large = min(plans, key=lambda plan: plan["seconds_per_step"])
forecasts.explain_plans([too_large, *fitting[:6], slowest])

# %% [markdown]
# The first row is the fastest of all plans, and holds more than an H100 can: it splits no matrix
# and computes nothing twice. (*selective op* keeps every second matrix product and computes the
# rest again.) Every plan that fits pays for memory with something else: computing again, waiting
# for a collective, or a bubble. The fastest of them pays least. The last row is the slowest that
# fits: it has many stages and few micro-batches, and loses more in its bubble than by computing.

# %%
lost = {name: slowest["seconds"][name] - seconds for name, seconds in fastest["seconds"].items()}
assert too_large["peak_gb"] > too_large["gpu_gb"]
assert lost["bubble"] > lost["compute"]
times = slowest["seconds_per_step"] / fastest["seconds_per_step"]
print(f"By the planner, the slowest plan that fits takes {times:.1f} times as long as the fastest.")

# %% [markdown]
# The sliders start at the fastest plan. Move away from it and see what that costs. Then take the
# slowest links, or another model.

# %%
from bootcamp import simulators

controls = simulators.planner(tensor=4)

# %% [markdown]
# ### From 8 GPUs to 16,384
#
# Llama 3 405B with its published batch of 16.8 million tokens, and at each number of GPUs the
# fastest plan that fits. What breaks first?

# %%
growth = forecasts.grow("Llama 3 405B")
plots.show(predicted.what_breaks(growth))

# %%
cases = {"Llama 3 405B": growth}
for model, batch in (("Llama 3 8B", 2**22), ("GPT-2 124M", 2**19)):
    cases[model] = forecasts.grow(model, batch=batch)
fsdp = forecasts.grow("Llama 3 8B", tensor=1, pipeline=1, context=1)
most = max(row["GPUs"] for row in fsdp if row["mfu"])
print(guess_samples.score(most, within=0.01, how="By the planner"))
assert growth[0]["mfu"] is None, "405 billion parameters fit 8 GPUs"
assert not any("bubble" in row["marks"] for rows in cases.values() for row in rows), "a bubble"
forecasts.find_limits(cases)

# %% [markdown]
# - **Memory**: on few GPUs nothing fits.
# - **Links**: ranks that split matrices wait for each other in every layer, and gathered parameters
#   must arrive in time.
# - **Bubble**: more GPUs with the same batch mean fewer micro-batches for each pipeline. In these
#   three cases the planner gives up the pipeline before the bubble takes a tenth of a step.
# - **Batch**: there are more GPUs than sequences in a step, so several GPUs must share one. FSDP
#   alone cannot do that; tensor and context ranks can. A larger batch would help, but beyond some
#   size a step learns hardly more (lesson 04c).
# - **Launches and latency**: the host needs time to start a kernel, however little the kernel
#   computes, and a collective needs time, however few bytes it sends. Their share grows where
#   pieces get small: with a small model on many GPUs.

# %%
speed = {row["GPUs"]: row["tokens_per_second_per_gpu"] for row in growth}
less = 100 * (1 - speed[16384] / speed[1024])
print(f"By the planner, a GPU among 16,384 trains {less:.0f} % fewer tokens/s than among 1,024.")

# %% [markdown]
# What do 16,384 ranks hold and send? All ranks of one stage do the same, so there are as many kinds
# of rank as stages. This is the mesh of Llama 3's training (arXiv:2407.21783, table 4): tensor 8,
# pipeline 16, data 128.

# %%
from bootcamp.costs import traffic

shape, cluster = forecasts.find_model("Llama 3 405B"), forecasts.make_cluster(16384)
mesh = {"tensor": 8, "pipeline": 16, "data": 128}
plan = Plan(**mesh, stage=1, batch=2048, sequence_parallel=True, compile=True)
forecasts.tabulate_stages(traffic.kinds(shape, plan, cluster), (0, 1, 2, 7, 8, 14, 15))

# %% [markdown]
# Why do the first stages hold most? And why does the very first hold less than the second?
#
# <details><summary>Answer</summary>
#
# The first stage has as many micro-batches under way as there are stages, the last has one (1F1B,
# lesson 06b). But 126 is not divisible by 16: the first and the last stage have one layer fewer,
# and the embedding or the head instead.
# </details>
#
# ## Prove it
#
# ### You, the planner, and a published run
#
# MPT 70B on 256 H100s, from the benchmarks of MosaicML's llm-foundry. The planner made its
# prediction with constants that were fitted *without this run*.

# %%
run = forecasts.find_published("mosaic_002")
case = forecasts.read_published_row("mosaicml_mpt", "mosaic_002")
tokens = case.plan.batch * case.shape.sequence / case.cluster.gpus
print(guess_published.score(tokens / run["seconds"]))
Table(
    [
        {"": who, "seconds of a step": run[key], "tokens/s of a GPU": tokens / run[key]}
        for who, key in {"the planner": "predicted", "published": "seconds"}.items()
    ],
    "MPT 70B, 256 H100s, FSDP, full recomputation, 2,048 sequences of 2,048 tokens",
)

# %% [markdown]
# <details><summary>With a pencil</summary>
#
# 65 billion parameters take 6 × 65 = 390 billion operations for each token, and a third more with
# recomputation: 520. At the peak that is 989,000 / 520 = 1,900 tokens a second. A good program
# reaches about half of a GPU's peak: 950.
# </details>
#
# ### All of them
#
# Each published run was left out of the fit once, and then predicted.

# %%
plots.show(predicted.predicted_and_published(forecasts.published_beside_predicted()))

# %%
forecasts.errors_by_table()

# %% [markdown]
# *Pairs ranked correctly*: of two runs in a table, how often the planner names the faster one. The
# last two columns are rivals. *One constant* is the usual estimate: operations divided by a fitted
# share of the peak. *mlsysim* is a simulator from PyPI.

# %%
errors = forecasts.mean_errors()
assert min(errors["one constant"], errors["mlsysim"]) > 2 * errors["planner"]
mean = ", ".join(f"{name} {error:.1f} %" for name, error in errors.items())
right, pairs = forecasts.count_ranked_pairs()
print(f"Mean error over the rows that all three predict: {mean}.")
print(f"The planner ranks {right:,.0f} of {pairs:,} pairs correctly.")

# %% [markdown]
# One constant knows no bubbles, no waiting for links and no small matrices. mlsysim was not fitted
# to these tables, so the comparison is unfair to it; in some of them it is the better one all the
# same. To choose a plan, the ranking matters more than the seconds.
#
# ### Where it is wrong

# %%
forecasts.worst_errors()

# %% [markdown]
# With a minus, the real step took longer than predicted. (The names are those of the rows in
# `src/bootcamp/costs/published/`.) Most of them are of one of these kinds:
#
# - **Small models whose matrices are split over the GPUs of one host.** Their steps take a fraction
#   of a second, of which launches and short messages are a large part. These differ from machine to
#   machine, and no constant of a stack catches that: the errors have both signs.
# - **Nothing else like it in its stack**: the single row of its table (`mtnlg`, a production run),
#   and ZeRO-3 over hundreds of GPUs (`ptdp_t2`).
#
#
# ## Break it
#
# ### Gigabits for gigabytes
#
# "400 gigabit Ethernet." Per GPU, or per host? Bits, or bytes? With 400 Gbit/s for *each GPU*, a
# host of 8 sends 400 GB/s. With 400 Gbit/s for *each host* it sends 50.

# %%
SAME = ("tensor", "pipeline", "data", "ZeRO", "micro-batch", "recompute")
slow = forecasts.list_plans("Llama 3 70B", gpus=256, host_gb_s=50)
taken = next(plan for plan in slow if all(plan[key] == fastest[key] for key in SAME))
times = taken["seconds_per_step"] / slow[0]["seconds_per_step"]
print(guess_network.score(times, how="By the planner"))
forecasts.explain_plans([slow[0], taken])

# %% [markdown]
# The plan for the fast network gathers all parameters for each micro-batch, and this network has an
# eighth of the bandwidth.
#
# ### GPUs fail
#
# Any GPU's failure stops all of them. So *N* times as many GPUs fail *N* times as often. Here a
# save takes one minute and a restart ten, and the GPUs are as reliable as Llama 3's.

# %%
from bootcamp.costs import failures

print(guess_failures.score(failures.mtbf_seconds(65536) / 60, how="By formula"))
plots.show(plots.checkpoint_interval(forecasts.checkpoint_intervals()))

# %% [markdown]
# Lesson 07b chose the interval between saves by Young's formula, √(2 *d M*), with *d* the seconds
# of a save and *M* those between failures. It assumes that failures are rare: at most one in an
# interval, none in a save or a restart. On 65,536 GPUs that is no longer so. **Daly's model**
# (2006) allows failures at any time, even in the restart after the last one. Is it right? Simulate
# a training with failures drawn at random. The time that *counts* is spent on steps that are never
# computed again; Llama 3's paper calls it effective training time.

# %%
SAVE, RESTART = 60, 600
between = failures.mtbf_seconds(65536)
interval = failures.daly_interval(SAVE, between)
played = failures.simulate_share(interval, SAVE, between, RESTART, saves=20_000)
claim.equal(
    "planning_share_is_played",
    "The share of the time that counts is as Daly's model predicts.",
    played,
    failures.effective_share(interval, SAVE, between, RESTART),
    within=0.02,
    kind="count",
)

# %%
forecasts.tabulate_effective_time()

# %% [markdown]
# The last column is what Young's formula predicts: too little, most of all where a failure costs
# most. Llama 3's training reports more than 90 % effective time on its 16,384 GPUs (section 3.3.4):
# which rows reach that? Faster saves and faster restarts are both worth work: asynchronous saves
# (lesson 07b), spare hosts that are ready, and a job that notices a dead rank in seconds instead of
# waiting for a timeout (lesson 09b).
#
# ## Harder tests (optional)
#
# ### More rows held out
#
# Leaving out one row is the easiest test. What if a half is held out, drawn by a seed before
# anything was fitted? Or the complete stack?

# %%
forecasts.errors_left_out()

# %% [markdown]
# The last column is closest to your case: a stack that the planner does not know. One run of it is
# your **anchor**, to scale the predictions by.
#
# ### The scripts of this course
#
# Other people chose the published runs. In a recorded trial a machine was measured (products of
# matrices, collectives, the overhead of each operation), twenty settings were drawn at random, a
# prediction was written down for each, and only then did they run.

# %%
from statistics import median

trial = forecasts.errors_unseen()
off = [abs(row["error %"]) for row in trial]
print(f"Half of the errors are below {median(off):.0f} %, the largest is {max(off):.0f} %.")
trial

# %% [markdown]
# Predictions for one process are the best. Most runs of several ranks took longer than predicted:
# the times of single operations do not tell how long ranks wait for each other.
#
# ### Memory

# %%
forecasts.compare_peaks()

# %% [markdown]
# And a failure. Llama 3 405B was trained on GPUs of 80 GB, with tensor 8 and pipeline 16. What does
# the planner say? The paper leaves open how many stages a rank of its interleaved pipeline has.

# %%
forecasts.llama_peaks()

# %% [markdown]
# Several stages on a rank shorten the bubble, and keep more activations than one. The paper
# (section 3.3.2) explains why it fits all the same: its pipeline frees tensors as soon as they are
# no longer needed. The planner does not model that.
#
# ## Exercises
#
# ### First: a plan for a slow network
#
# Llama 3 70B on 256 H100s, 512 sequences a step, on a slow network: 100 Gbit/s for each host, 12.5
# GB/s. Find a plan that fits and takes at most 5 % longer than the fastest. Replace `None` with a
# dictionary, such as `{"tensor": 8, "pipeline": 2, "stage": 1}`, with some of these fields:
#
# - `tensor`, `pipeline`, `context`: ranks along each axis, 1 if left out; data ranks are what is
#   left of 256,
# - `stage` of ZeRO, 0 to 3, over the data ranks, 0 if left out; 3 is FSDP, which in a pipeline
#   gathers once a step,
# - `micro_batch`: samples of one forward pass, and `virtual`: stages on each rank of a pipeline,
# - `recompute`: `"none"`, `"full"`, or `"selective op"`, which keeps every second matrix product.

# %%
from bootcamp import exercise

print(exercise.check("plan_for_256", None))

# %% [markdown]
# Any plan within 5 % is right, and the checker shows what limits the others.
# `exercise.solution("plan_for_256")` shows one.
#
# ### Second: which knob?
#
# On 64 H100s with 50 GB/s between hosts somebody starts Llama 3 70B with 8 tensor ranks, 8 data
# ranks, ZeRO-1, micro-batches of 2 samples and no recomputation: out of memory. "Take FSDP", says
# one colleague; "recompute everything", says the other.

# %%
start = exercise.find("which_knob").row({})
print(f"{start['peak_gb']:.1f} GB on a GPU of {start['gpu_gb']:.0f} GB")
Table([start["gb"]], "of which, GB")

# %% [markdown]
# Change *one* field so that it fits, and so that the step takes at most 5 % longer than after the
# best such change. The answer is a dictionary with one of the fields above, such as `{"stage": 3}`;
# data ranks follow.

# %%
print(exercise.check("which_knob", None))

# %% [markdown]
# `exercise.solution("which_knob")` shows one answer.
#
# ### Third: this claim cannot be true
#
# These claims are made up. Some of them cannot be true.

# %%
from bootcamp_lessons.exercises.planning import MADE_UP, claims_table

claims_table()

# %% [markdown]
# Write `cannot_be(claim)`. It returns which limit the claim breaks, the first of
#
# - `"memory"`: all GPUs together cannot hold the states,
# - `"compute"`: more operations than the peak, even without recomputation,
# - `"network"`: a step of one micro-batch is over before a host could have sent its share. FSDP
#   gathers the parameters twice and reduces the gradients once, in 2 bytes each; take the bytes of
#   all parameters each time, which is nearly what a host sends when there are many,
# - `"none"`.
#
# A claim is a dictionary with the keys below. The checker also gives your function three published
# runs, which did take place: MPT 70B on 64 A100s, Llama 2 7B and 70B on 128.

# %%
MADE_UP["A"]


# %%
def cannot_be(claim):
    # your turn: return "memory", "compute", "network" or "none"
    ...


print(exercise.check("cannot_be", cannot_be))

# %% [markdown]
# `exercise.solution("cannot_be")` shows a solution. A claim that passes may still be false: nothing
# can break these limits, and real programs stay well below them.
#
# ## When to use it and when not
#
# - **Plan** before you ask for GPUs: whether it fits, and which few plans are worth a try. The
#   ranking is right more often than the seconds.
# - **Measure** those few, some steps each, and scale the predictions by one of them. If two plans
#   differ by less than the planner's error, take the simpler one.
# - **Do not plan** what you can run in a minute. Up to a host or two, measure.
# - **Write down** what was assumed: bits or bytes, per GPU or per host, GB or GiB (7 % apart),
#   dense peaks (those with sparsity are twice as high), and whether recomputed operations count.
# - Below some thousand GPUs a plan is about memory, links and bubbles. Beyond, it is about failures
#   too.
#
# ## Sources
#
# - Rajbhandari et al., *ZeRO*, arXiv:1910.02054: states. Korthikanti et al., arXiv:2205.05198:
#   activations and recomputation. Narayanan et al., arXiv:2104.04473: meshes, bubbles, FLOPs.
# - Chowdhery et al., *PaLM*, arXiv:2204.02311, appendix B: MFU and HFU.
# - Grattafiori et al., *The Llama 3 Herd of Models*, arXiv:2407.21783, sections 3.3.2 and 3.3.4.
#   Jiang et al., *Mixtral of Experts*, arXiv:2401.04088.
# - Published runs: Bang et al., *vTrain*, arXiv:2312.12391; MosaicML, llm-foundry's
#   `scripts/train/benchmarking`; pytorch/torchtitan; *MegaScale*, arXiv:2402.15627; Smith et al.,
#   *MT-NLG*, arXiv:2201.11990; PyTorch blog, *Maximizing training throughput using PyTorch FSDP*,
#   13 March 2024. `src/bootcamp/costs/published/` has every row with its source.
# - J. W. Young, Communications of the ACM 17(9), 1974. J. T. Daly, *A higher order estimate of the
#   optimum checkpoint interval for restart dumps*, Future Generation Computer Systems 22, 2006.
# - Rivals: `mlsysim` on PyPI. Who recorded the errors: `logs/README.md`.
