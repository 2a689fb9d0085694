# %% [markdown]
# # 10 Planning at scale: a thousand GPUs from a laptop
#
# **70 minutes**, on any machine, after lessons 06b, 07b, 08 and 08b. Two short runs on four CPU
# ranks; everything else is calculated.
#
# After this lesson you can say what each rank of a plan holds and sends before anybody pays for a
# GPU; explain why one plan is faster than another; predict what limits a training that grows from
# 8 GPUs to 16,384, what it costs, and how wrong that is; and find claims that cannot be true.
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
# How far can you trust it? Here are its errors on published runs left out of its fit, which had
# others of their source. (Its formulas were chosen with them in view.) Of a source never seen, as
# your cluster is, they are larger.

# %%
forecasts.errors_by_size()

# %% [markdown]
# ## The idea
#
# ### The axes
#
# A **plan** arranges the ranks in a mesh. Each **axis** divides and sends a different thing. Data,
# tensor, pipeline and context ranks multiply to the number of GPUs; shards and experts share the
# data ranks.

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
# | states | 16 bytes a parameter (AdamW, mixed precision), by ZeRO stage and mesh | lesson 07 |
# | activations | bytes of a layer × layers × micro-batches in flight | lessons 02b, 06b, 06c |
# | computing | operations ÷ what a GPU reaches of its peak | lesson 02 |
# | collectives | latency + bytes ÷ bandwidth, for the links that a group uses | lessons 04, 08 |
# | bubble | stages that wait at the beginning and at the end of a step | lesson 06b |
#
# States and bytes on links can be calculated exactly. Seconds cannot: no data sheet gives the share
# of its peak that a GPU reaches in a real program. So a planner has **constants**: a few fitted to
# published runs, the rest assumed. Some are of one **stack**: its GPUs, network and software. A
# stack never seen has those of all. Here are those fitted to one stack, and to all:

# %%
forecasts.tabulate_constants("vtrain")

# %% [markdown]
# **MFU**, model FLOPs utilization, is the share of a GPU's peak that goes into operations that the
# model needs: about 6 for each parameter and token. Operations that are repeated by recomputation
# do not count; in **HFU**, hardware FLOPs utilization, they do.
#
# ## Predict
#
# Pencil and paper are enough, but guess the second and, for the fourth, the share of the peak.
# AdamW in mixed precision, GPUs of 80 GB.

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
states = claim.equal(
    "planning_states_of_a_run",
    "A rank of FSDP holds the states that the planner predicts.",
    found["fsdp"]["states, counted"],
    found["fsdp"]["states, predicted"],
    within=0.001,
    kind="memory",
    supported="The few bytes more are AdamW's step counters.",
)
sent = claim.equal(
    "planning_bytes_of_a_run",
    "A rank of DDP sends what the planner predicts.",
    found["ddp"]["sent, counted"],
    found["ddp"]["sent, predicted"],
    within=0.01,
)
more = claim.larger(
    "planning_gloo_sends_more",
    "A rank of FSDP sends more than the planner predicts, by over a quarter.",
    found["fsdp"]["sent, counted"],
    found["fsdp"]["sent, predicted"],
    by=1.25,
    supported="The planner counts as NCCL does, and gloo sends a reduce-scatter twice (lesson 08). "
    "A formula holds for the library that it describes.",
)
display(states, sent, more)

# %% [markdown]
# ### Four models, part by part
#
# Now for models that no machine here can hold: each on one GPU, and on 64 in three ways. A
# **sample** is one sequence, as long as `models.csv` has it. *Buffers* are the scores from which
# the loss is computed (one for each token of the vocabulary), what ZeRO-3 has gathered, and the
# allocator's reserve.

# %%
import math

plots.show(predicted.memory_by_part(forecasts.memory_by_part()))
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
    kind="formula",
    unit="bytes",
    supported="ZeRO shards states only. A sample stays on one rank: to divide its activations you "
    "need tensor or context ranks, or you compute them again.",
)

# %% [markdown]
# ### A table of plans, from a shell
#
# The planner is a command too. It answers each row of a table in the same order; if it cannot, it
# gives the reason under `error`. The true seconds lie between `low` and `high` four times in five.
# One of these plans is impossible, another does not fit; which?

# %%
PLANS = """\
gpu,gpus,model,tp,pp,vp,dp,stage,batch,micro_batch,recompute,sequence_parallel,compile,host_gb_s
H100,8,Llama 3 8B,1,1,1,8,3,64,1,none,no,yes,400
H100,8,Llama 3 8B,8,1,1,1,0,64,1,none,yes,yes,400
A100,64,Llama 3 70B,1,1,1,64,3,128,1,full,no,yes,200
A100,64,Llama 3 70B,3,1,1,16,3,128,1,full,yes,yes,200
H100,64,Llama 3 70B,8,2,1,4,1,128,1,none,yes,yes,50
H200,512,Llama 3 405B,8,8,1,8,1,512,1,none,yes,yes,400
B200,512,Llama 3 405B,8,8,1,8,1,512,1,none,yes,yes,400
H100,128,Mixtral 8x7B,1,1,1,128,3,256,2,none,no,yes,400
H100,16384,Llama 3 405B,8,16,8,128,1,2048,1,none,yes,yes,400
"""
columns = {name: name for name in ("gpus", "model", "seconds_per_step", "low", "high", "mfu")}
columns |= {"peak_gb": "GB at the peak", "limit": "limit", "error": "error"}
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
lost = {name: slowest["seconds"][name] - seconds for name, seconds in fastest["seconds"].items()}
assert too_large["peak_gb"] > too_large["gpu_gb"]
assert lost["bubble"] > lost["compute"]
times = slowest["seconds_per_step"] / fastest["seconds_per_step"]
print(f"By the planner, the slowest plan that fits takes {times:.1f} times as long as the fastest.")
forecasts.explain_plans([too_large, *fitting[:6], slowest])

# %% [markdown]
# The first row is the fastest of all plans, and holds more than an H100 can: it splits no matrix
# and computes nothing twice. (*selective op* keeps every second matrix product and computes the
# rest again.) Every plan that fits pays for memory with something else: computing again, waiting
# for a collective, or a bubble. The last row is the slowest that fits: it has many stages and few
# micro-batches, and loses more in its bubble than by computing.
#
# The sliders start at the fastest plan. Move away from it and see what that costs. Then take the
# slowest links, or another model.

# %%
from bootcamp import simulators

controls = simulators.planner(tensor=4)

# %% [markdown]
# ### From 8 GPUs to 16,384
#
# Llama 3 405B with its published batch of 16.8 million tokens, and at each number of GPUs the
# fastest plan that fits: tensor ranks in a host, context ranks, pipelines of one or more stages a
# rank, and ZeRO. What breaks first?

# %%
growth = forecasts.grow("Llama 3 405B")
plots.show(predicted.what_breaks(growth))

# %%
fsdp = forecasts.grow("Llama 3 8B", tensor=1, pipeline=1, context=1)
most = max(row["GPUs"] for row in fsdp if row["mfu"])
print(guess_samples.score(most, within=0.01, how="By the planner"))
plots.show(predicted.what_breaks(fsdp))

# %% [markdown]
# - **Memory**: on few GPUs nothing fits.
# - **Links**: ranks that split matrices wait for each other in every layer, and gathered parameters
#   must arrive in time.
# - **Bubble**: more GPUs with the same batch mean fewer micro-batches for each pipeline. Several
#   stages on a rank shorten it (lesson 06b).
# - **Batch**: there are more GPUs than sequences in a step, so several GPUs must share one. FSDP
#   alone cannot do that; tensor and context ranks can. A larger batch would help, but beyond some
#   size a step learns hardly more (lesson 04c).
# - **Launches and latency**: a kernel takes time to start and a collective to begin, however small
#   they are. Their share grows with a small model on many GPUs.
#
# ### Beside what was reached
#
# Llama 3's paper says what 8,192 and 16,384 GPUs reached, with tensor 8 and pipeline 16. Is the
# planner's growth the real one?

# %%
large = forecasts.runs_at_scale()
plots.show(predicted.planned_and_published(growth, large))
large

# %% [markdown]
# *best* is what the search finds for the same GPUs and batch. With a minus, the real step took
# longer than predicted: most of all MT-NLG's, the oldest. The planner does not know the one slow
# GPU that slows thousands.
#
# ## Prove it
#
# ### You, the planner, and a published run
#
# MPT 70B on 256 H100s, from the benchmarks of MosaicML's llm-foundry. The planner made its
# prediction with constants that were fitted *without this run*.

# %%
run = next(row for row in forecasts.list_predicted_rows() if row["row"] == "mosaic_002")
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

# %%
plots.show(predicted.predicted_and_published(forecasts.published_beside_predicted()))
right, pairs = forecasts.count_ranked_pairs()
print(f"The planner ranks {right:,.0f} of {pairs:,} pairs of a table correctly.")

# %% [markdown]
# To choose a plan, the ranking matters more than the seconds. Bad rows are often **small models
# whose matrices are split over the GPUs of a host**, mostly launches and short messages, or **alone
# in their stack**. That does not explain all three circled rows.
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
plots.show(predicted.chosen_plan(slow, taken))

# %% [markdown]
# The plan for the fast network gathers all parameters for each of several micro-batches, and this
# network has an eighth of the bandwidth. The best one here has a single micro-batch.
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
# Lesson 07b chose the interval between saves by Young's formula, which assumes that failures are
# rare: at most one in an interval, none in a save or a restart. On 65,536 GPUs that is no longer
# so. **Daly's model** (2006) allows failures at any time. Is it right? Simulate a training with
# failures drawn at random. The time that *counts* is spent on steps that are never computed again.

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
    supported="The first number is the simulation's, the other the model's.",
)

# %%
forecasts.tabulate_effective_time()

# %% [markdown]
# The last column is what Young's formula predicts: too low, most of all where a failure costs
# most. Llama 3's training reports more than 90 % effective time on its 16,384 GPUs (section 3.3.4):
# which rows reach that? Faster saves and faster restarts are both worth work (lessons 07b, 09b).
#
# ### What a manager asks
#
# How many days, and how much? Llama 3 405B was trained on 15.6 trillion tokens. An hour of a GPU is
# taken as 2 dollars, and energy at the rated power and a tenth more for the data centre.

# %%
forecasts.price_trainings("Llama 3 405B", 15.6e12, (2048, 4096, 8192, 16384))

# %% [markdown]
# Twice the GPUs take more than half of the days, and cost more: less of their time is computing,
# and they fail twice as often. The model card of Llama 3.1 says 30.84 million GPU hours.
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
# ### Second: this claim cannot be true
#
# These claims are made up.

# %%
from bootcamp_lessons.exercises.planning import MADE_UP, claims_table

display(claims_table())
MADE_UP["A"]

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
# A claim is a dictionary, such as A above. The checker also gives your function three published
# runs, which did take place: MPT 70B on 64 A100s, Llama 2 7B and 70B on 128.


# %%
def cannot_be(claim):
    # your turn: return "memory", "compute", "network" or "none"
    ...


print(exercise.check("cannot_be", cannot_be))

# %% [markdown]
# `exercise.solution("cannot_be")` shows a solution. A claim that passes may still be false: nothing
# can break these limits, and real programs stay well below them.
#
# ### Third: how many GPUs do we rent?
#
# Your manager wants Llama 3 70B on 2 trillion tokens, at the lowest price, and in 60 days at most:
# late one time in ten is accepted.

# %%
offers = forecasts.price_trainings("Llama 3 70B", 2e12, (128, 256, 512, 1024), batch=2**22)
offers

# %% [markdown]
# Write `rent(offers, deadline_days)`: it returns the row to choose, or `"none"`.


# %%
def rent(offers, deadline_days):
    # your turn: the columns are those above
    ...


print(exercise.check("rent", rent))

# %% [markdown]
# `exercise.solution("rent")` shows a solution. What would you measure first?
# Lesson 14's page answers that for a plan.
#
# ## When to use it and when not
#
# - **Plan** before you ask for GPUs: whether it fits, and which few plans are worth a try.
# - **Measure** those few, some steps each, and scale the predictions by one of them. If two plans
#   differ by less than the planner's error, take the simpler one.
# - **Do not plan** what you can run in a minute. Up to a host or two, measure.
# - **Write down** what was assumed: bits or bytes, per GPU or per host, GB or GiB (7 % apart),
#   dense peaks (those with sparsity are twice as high), and whether recomputed operations count.
# - Below a few thousand GPUs a plan is about memory, links and bubbles. Beyond, it is about
#   failures too.
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
# - Hours and power: model card of Llama 3.1; price: DeepSeek-V3, arXiv:2412.19437, table 1; data
#   centre: LLaMA, arXiv:2302.13971, section 6. Who recorded the errors: `logs/README.md`.
