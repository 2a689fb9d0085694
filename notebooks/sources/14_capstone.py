# %% [markdown]
# # 14 Capstone: compose a strategy
#
# **95 minutes**, after lessons 04, 06b, 07 and 08, on Linux with network namespaces; elsewhere
# without the slow link.
#
# After this lesson you can choose a strategy for given hardware: by what a rank holds, what crosses
# which link, and how long a step takes, measured or, where you don't have the hardware, predicted
# by the planner. There is more than one answer.

# %% [markdown]
# ## The question
#
# A model, four CPU ranks on two hosts, a slow link between them, and less memory on each rank than
# DDP needs: **which plan trains the same model, fits, and is the fastest?**

# %%
from bootcamp import Table, capstone, launch, warm_up
from bootcamp.launcher import simulated_hosts

warm_up()
missing = simulated_hosts.why_not()
print(f"No hosts can be made here: {missing}." if missing else "Two hosts can be made here.")
Table([{"given": name, "value": value} for name, value in capstone.TASK.items()])

# %% [markdown]
# ## The idea
#
# A **plan** is a script of the course, or the path of yours, with its flags, such as
# `{"script": "ddp_options", "hook": "fp16"}`. The checker runs it on the slow link, counts what the
# fullest rank holds (states: parameters, gradients, optimizer; *and* activations), and proves with
# both optimizers that it trains what one process trains.
#
# | Strategy | states | activations | over the link |
# |---|---|---|---|
# | DDP | all | share of the batch | gradients, once a step |
# | FSDP | share | share of the batch | parameters twice, gradients: per micro-batch |
# | HSDP | share of a host | share of the batch | a part's gradients, once a step |
# | tensor parallel | share | three quarters split | activations, four times a block |
# | pipeline | own layers | own layers' micro-batches in flight | activations at one cut |
#
# Count bytes, not numbers: bf16 has 2, fp32 has 4.

# %% [markdown]
# ## Predict
#
# A *model*, as a unit, is the size of all parameters.

# %%
from IPython.display import display

from bootcamp import predict

states = predict(
    "capstone_states",
    "DDP: how many MB of activations does a rank hold for each MB of parameters, gradients and "
    "AdamW's state?",
    unit="MB",
)
cut = predict(
    "capstone_cut",
    "A GPipe pipeline, batch of 32 in 4 micro-batches. Each rank has two of the model's 8 parts "
    "(embedding, six blocks, head). What percentage of DDP's activations does the fullest hold?",
    unit="%",
)
link = predict(
    "capstone_link",
    "DDP sends 1.5 models over the link in a step. Tensor parallelism over all four ranks: how "
    "many?",
    unit="models",
)
display(states, cut, link)

# %% [markdown]
# ## Run it
#
# A few steps of each, without the limit on the link's rate: that does not change the bytes.

# %%
from bootcamp import claim

PLANS = {"ddp": {}, "pp": {"schedule": "gpipe", "micro_batches": 4}, "tp": {}}
where = {**capstone.choose_hosts(), "quiet": True} | ({} if missing else {"link": None})
runs = {
    name: launch(name, capstone.RANKS, steps=3, **capstone.MODEL, **flags, **where)
    for name, flags in PLANS.items()
}
held = {name: capstone.count_states_and_activations(run) for name, run in runs.items()}
print(states.score(held["ddp"]["activations"] / held["ddp"]["states"]))
print(cut.score(100 * held["pp"]["activations"] / held["ddp"]["activations"]))
claim.larger(
    "capstone_activations_exceed_states",
    "On a rank of DDP activations take more memory than parameters, gradients and optimizer state.",
    held["ddp"]["activations"],
    held["ddp"]["states"],
    kind="memory",
)

# %% [markdown]
# Whether "FSDP saves memory" is true depends on what fills it. And a pipeline does not save
# activations by itself: DDP takes a share of the batch through all layers, a pipeline the complete
# batch through a share of them. To save memory, have few micro-batches in flight.

# %%
crossed = {name: capstone.count_models_sent(run) for name, run in runs.items()}
print("No link here." if crossed["tp"] is None else link.score(crossed["tp"]))
claim.larger(
    "capstone_tensor_crosses_more",
    "Tensor parallelism across hosts sends more than 3 times as much over the link as DDP.",
    crossed["tp"],
    crossed["ddp"],
    by=3,
    kind="count",
    supported="Activations grow with the tokens of a step, gradients with the parameters.",
)

# %% [markdown]
# ## The board
#
# DDP is entered first. It is measured and refused, with the reason.

# %%
entered = capstone.enter("the course", "ddp")
assert entered.wrong, "DDP fits: the task has lost its point"
entered

# %% [markdown]
# Now yours. The board ranks valid plans by tokens per second on this machine. Plans that are close
# may change places: enter yours twice before you claim the first.

# %%
MY_PLAN = None  # such as {"script": "ddp_options", "hook": "fp16"}

if MY_PLAN:
    print(capstone.enter("me", **MY_PLAN))
capstone.board()

# %% [markdown]
# ## Prove it
#
# `enter` proves every plan. Here is one that is fast because no gradient crosses the link: the
# forward pass calls the model inside DDP, so DDP's hooks never learn that a backward pass is
# coming.

# %%
from bootcamp import variant

loss = "loss = models.loss(model(inputs), targets)"
shortcut = variant("ddp", "capstone_shortcut", {loss: loss.replace("model(", "model.module(")})
caught = capstone.enter("a shortcut", shortcut)
assert caught.wrong, "ranks that average nothing passed for the same training"
caught

# %% [markdown]
# The samples are right, and every rank's loss falls. The second step's loss gives it away.

# %% [markdown]
# ## A cluster that is not here
#
# The same question for 256 GPUs. Nobody rents 256 GPUs to try every plan: the planner of lesson 10
# **predicts** a step from its bytes, its floating-point operations and the links. Nothing on these
# boards is measured. The planner has errors, which lesson 10 shows, so any plan within 5 % of the
# fastest is as good as the fastest.
#
# Three tasks with the same model, the same GPUs and the same number of tokens in a step:

# %%
from bootcamp import plan_contest

Table([task.description for task in plan_contest.TASKS.values()], "Three tasks")

# %% [markdown]
# A plan has these knobs. Each has a default: 1, 0 or `"none"`.
#
# | knob | meaning |
# |---|---|
# | `tensor`, `context`, `data`, `pipeline` | ranks along each axis; their product is all GPUs |
# | `stage` | of ZeRO over the data and context ranks: 0 to 3, and 3 is FSDP |
# | `shard` | HSDP: data ranks of a row (with stage 3) |
# | `keep_gathered` | FSDP keeps parameters gathered until the backward pass |
# | `micro_batch` | samples of a forward pass of a rank |
# | `virtual` | stages of each pipeline rank (interleaved 1F1B) |
# | `recompute` | `"none"`, `"selective"` (attention), `"selective op"` (half of all), `"full"` |
#
# `context` ranks share each sequence: a rank has a part of its tokens and gets the keys and values
# of the others (lesson 06c). Sequence parallelism comes with `tensor`.
#
# Two plans that people recommend, on hosts of 8 GPUs. **A**: matrices split inside a host, FSDP
# between hosts, 4 sequences at a time. **B**: matrices split inside a host, a pipeline over 4
# hosts, ZeRO-1. (With long sequences A takes one at a time, for there are only two for each rank.)

# %%
PLANS_OF_OTHERS = {
    "A": {"tensor": 8, "data": 32, "stage": 3, "micro_batch": 4},
    "B": {"tensor": 8, "pipeline": 4, "data": 8, "stage": 1},
}
fast = {
    name: plan_contest.judge(knobs, plan_contest.TASKS["fast"])
    for name, knobs in PLANS_OF_OTHERS.items()
}
slower_a = predict(
    "capstone_slow_a",
    "The network of a host gets 32 times slower. How many times as long is a step of plan A?",
    unit="times",
)
slower_b = predict(
    "capstone_slow_b",
    "The network of a host gets 32 times slower. How many times as long is a step of plan B?",
    unit="times",
)
longer = predict(
    "capstone_longer",
    f"A rank of plan A holds {fast['A'].peak_bytes / 1e9:.0f} GB with 4 sequences of 4,096 tokens "
    "at a time. How many GB with one of 65,536?",
    unit="GB",
)
display(slower_a, slower_b, longer)

# %%
said = {
    (name, task): plan_contest.enter(
        f"plan {name}", task, **knobs | ({"micro_batch": 1} if task == "long" else {})
    )
    for name, knobs in PLANS_OF_OTHERS.items()
    for task in plan_contest.TASKS
}
times = {name: said[name, "slow"].seconds / fast[name].seconds for name in PLANS_OF_OTHERS}
print("A:", slower_a.score(times["A"], how="The planner says"))
print("B:", slower_b.score(times["B"], how="The planner says"))
print("A:", longer.score(said["A", "long"].peak_bytes / 1e9, how="The planner says"))
claim.larger(
    "capstone_planned_micro_batches",
    "The slow network makes plan A slower by a factor that is more than 10 times plan B's.",
    times["A"],
    times["B"],
    by=10,
    kind="count",
    supported="FSDP gathers parameters for each of its 8 micro-batches, ZeRO-1 once in a step.",
)

# %%
claim.equal(
    "capstone_planned_none_wins",
    "Neither plan is within 5 % of the fastest in any of the three tasks.",
    sum(verdict.accepted for verdict in said.values()),
    0,
    kind="count",
)

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import predicted

plots.show(predicted.steps("slow"))
print(said["B", "slow"])

# %% [markdown]
# The verdict says what limits a plan, and which one change would help most. After that change
# something else is the limit. Now yours, for each task:

# %%
MY_PLANS = {  # such as "fast": {"tensor": 8, "data": 32, "stage": 3}
    "fast": None,
    "slow": None,
    "long": None,
}

for task, knobs in MY_PLANS.items():
    if knobs:
        print(f"{task}: {plan_contest.enter('me', task, **knobs)}")
    display(plan_contest.board(task))

# %% [markdown]
# ## Exercise
#
# ### It fits, and you know why
#
# A plan within the limit, with your own estimate for its fullest rank, to within 10 %. For example,
# `{"script": "ddp", "states_mb": 5.4, "activations_mb": 13.5}` is a right estimate, but the plan
# needs too much. Put yours in place of `None`. `exercise.solution("capstone_fits")` shows one that
# fits; there are others.

# %%
from bootcamp import exercise

print(exercise.check("capstone_fits", None))

# %% [markdown]
# ### It fits into 10 MB
#
# Sharding the states is not enough now. A plan alone will do. One that fits:
# `exercise.solution("capstone_small")`.

# %%
print(exercise.check("capstone_small", None))

# %% [markdown]
# ### 256 GPUs on a fast network
#
# A plan for the task `fast` at most 5 % slower than the fastest. A wrong one is told what limits
# it. One that is right: `exercise.solution("planned_fast")`; there are others.

# %%
print(exercise.check("planned_fast", None))

# %% [markdown]
# ### The same on a slow network
#
# One that is right: `exercise.solution("planned_slow")`.

# %%
print(exercise.check("planned_slow", None))

# %% [markdown]
# ### The same with long sequences
#
# One that is right: `exercise.solution("planned_long")`.

# %%
print(exercise.check("planned_long", None))

# %% [markdown]
# ### The first place (optional)
#
# Combine what the family has: `"mesh": "2x2"` for `ddp_pp` means two pipelines of two ranks,
# `"micro_batches"` and `"schedule"` change a pipeline, `"keep_gathered"` changes FSDP, `"hook"` of
# `ddp_options` compresses. (Is that still the same training?) Or start from `src/_train_fsdp.py`,
# and accumulate, or recompute activations.

# %% [markdown]
# ## Your predictions
#
# All that you predicted in this course, and how far off it was. The numbers are those of your own
# machine's journal, and nothing leaves it; `predictions.show()` works in every lesson. What kind
# of question are you worst at? Measure those before you decide.

# %%
from bootcamp import predictions

predictions.show()

# %% [markdown]
# ## When to use it and when not
#
# 1. **Does it fit on one device with the batch that you want?** Then DDP, and stop.
# 2. **What fills the memory?** States: shard them. Activations: smaller micro-batches, recompute
#    them, or cut the layers. One huge layer: tensor parallelism.
# 3. **What crosses the slowest link?** From the mesh's innermost axis to the outermost: tensor,
#    shards, then replicas or pipeline stages.
# 4. **Does the batch allow it?** It grows with the data-parallel ranks, and beyond some size learns
#    no faster per sample. Then more ranks must split the model instead.
# 5. **What does it cost?** About 6 floating-point operations for each parameter and token, at what
#    your GPUs achieve: often less than half of their peak.
# 6. **Is it still the same training?** Prove it in ten steps.
# 7. **Measure** where you will train.
#
# ## Sources
#
# - Roziere et al., *Code Llama*, 2023, arXiv:2308.12950: the model of the planned tasks.
# - Narayanan et al., 2021, arXiv:2104.04473: tensor, pipeline and data parallelism combined.
# - Rajbhandari et al., *ZeRO*, 2019, arXiv:1910.02054: states.
# - Korthikanti et al., 2022, arXiv:2205.05198: activations.
# - McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, arXiv:1812.06162.
