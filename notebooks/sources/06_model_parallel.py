# %% [markdown]
# # 06 Model parallelism: layers over devices
#
# **37 minutes** for the core, on any machine. With two GPUs the model is really cut over them.
# Elsewhere the cut runs between CPU ranks, and the lesson says what that shows and what it cannot
# show.
#
# After this lesson you can compute the size beyond which a model no longer fits on a device, cut it
# over two devices, predict what each holds and what crosses the cut, choose the place of the cut,
# and say what the cut does to the speed. You also get a map of all the ways to divide a training.
# Lesson 06b cuts the batch as well (pipelines), lesson 06c cuts inside the layers (tensor
# parallelism).

# %% [markdown]
# ## The question
#
# In all lessons so far every device held the complete model. What if it does not fit?

# %%
from bootcamp import gpu_count, launch, warm_up

warm_up()
print(f"PyTorch finds {gpu_count()} GPU(s) here.")

# %% [markdown]
# ### How many bytes does a parameter need?
#
# The **state** of a training is always in memory: parameters, gradients, and what the optimizer
# keeps (lesson 01). Mixed precision (products in 16 bits) does not shrink it as long as a float32
# copy of the parameters is kept; the last row, 16-bit parameters and gradients beside that copy, is
# how papers on large models count (see Sources).

# %% tags=["nbval-check-output"]
from bootcamp import Table

kinds = {
    "SGD, float32": {"parameter": 4, "gradient": 4, "optimizer": 0},
    "SGD with momentum, float32": {"parameter": 4, "gradient": 4, "optimizer": 4},
    "AdamW, float32": {"parameter": 4, "gradient": 4, "optimizer": 8},
    "AdamW, 16-bit with a float32 copy": {"parameter": 2, "gradient": 2, "optimizer": 4 + 8},
}
rows = [{"training": name, **kind, "together": sum(kind.values())} for name, kind in kinds.items()]
Table(rows, "Bytes for one parameter")

# %% [markdown]
# So memory divided by 16 bytes is a limit that no batch size can change: 5 billion parameters on 80
# GB. Activations come on top. 16 is no law: with 16-bit parameters Megatron adds up gradients in
# float32 (18 bytes), DeepSeek-V3 keeps the two moments in bf16, and Muon has one moment. The curves
# are this course's GPTs in float32 with AdamW, by formula, with nothing recomputed.

# %%
from bootcamp import plots
from bootcamp.costs import memory
from bootcamp_lessons.diagrams import pipelines as diagrams

plots.show(diagrams.memory_needs(memory.course_gpt_needs(), memory.gpu_memory()))

# %% [markdown]
# Remember how to compute it: **16 bytes a parameter, plus activations**.
#
# Cutting the model is not the first thing to try. Smaller micro-batches (parts of a batch, one
# after the other) and checkpointing (activations are computed again; lesson 02b) shrink these. But
# nothing there shrinks the state. For that, other devices have to hold parts of it.

# %% [markdown]
# ## The idea
#
# Cut the model in the middle: the first half of its layers is on one device, the second half on
# another of the same kind. The batch stays the same.

# %%
from bootcamp import predict

guess_speed = predict(
    "model_parallel_speed",
    "A model whose layers are split over two devices: how many times as fast as on one?",
    "times",
)
guess_speed

# %% [markdown]
# Three ways to cut one model over two devices. The lower half shows which device works when.

# %%
plots.show(diagrams.three_cuts())

# %% [markdown]
# - **Layers** (this lesson): the output of the first half, its **activations**, moves to the second
#   device; in the backward pass the gradient of these activations comes back.
# - **Pipeline** (06b): the same cut, but the batch comes in parts.
# - **Matrices** (06c, tensor parallelism): every layer is cut, and each device computes a part of
#   its result.
#
# In all three, a device holds only a part of the parameters, and so of the gradients and of the
# optimizer's state. Data parallelism does not give you that. The place between two devices is the
# **cut**; here, a **layer** is one element of the `nn.Sequential`: the embedding, a block, the
# head.
#
# ### A map of all axes
#
# Large runs combine several of these. Each divides a different thing. Most names are new: the last
# column names the lesson that explains them.
#
# | Axis | divides | a device sends in a step | link | lesson |
# |---|---|---|---|---|
# | data: DDP | the batch | its gradients, about twice | slow, if the backward pass hides it | 04 |
# | ZeRO, FSDP, HSDP | batch, state | parameters twice, gradients | fast, or many tokens | 07, 08 |
# | pipeline | the layers | activations and their gradients, to neighbours | may be slow | 06b |
# | tensor | each matrix | activations, several times in each block | the fastest: NVLink | 06c |
# | sequence, with tensor | activations between matrices | as much as tensor alone | NVLink | 06c |
# | context | the tokens of each sample | keys and values, in each attention | fast | 06d |
# | expert | experts of a mixture layer | tokens to experts and back, in each layer | fast | 08b |
#
# ## Predict
#
# A block outputs `width` numbers for each byte of text.

# %%
from bootcamp.costs.model_shapes import GPT

BATCH = 32
layers, width, heads, context = GPT["tiny"].values()
guess_bytes = predict(
    "model_parallel_bytes",
    f"{BATCH} samples of {context} bytes, width {width}, float32: how much does the first device "
    "send to the second in a step?",
    unit="MB",
)
guess_bytes

# %% [markdown]
# ## What changes
#
# Three things move. Find them.

# %%
from bootcamp import script_diff

script_diff("mp")

# %% [markdown]
# - `context.devices` has two names: two GPUs, or a GPU and the CPU, or twice the CPU.
# - `model[:half]` is a slice with the same layers, so `.to(device)` moves the model's own first
#   half.
# - **The hook** runs before the first layer behind the cut. It gets that layer's inputs and returns
#   what takes their place: the activations, on the second device. There is no such line for the
#   backward pass. Autograd has recorded the move, and moves the gradient back.
# - **The targets** go to the second device, since the loss is computed there.
#
# The script builds the whole model in main memory first, 4 bytes a parameter: 20 GB for those 5
# billion. Where that is too much, build it on `meta` and fill each half on its device (lesson 07).
#
# One process, one optimizer and one loss remain. The optimizer's state is created where each
# parameter is. Keep the order **model, move, optimizer**: a move that makes *new* parameters (a
# copy, a move to `meta`, sharding) leaves an earlier optimizer with the old ones. What has moved
# would not learn. If that is half of the model, the loss still falls.

# %% [markdown]
# ## Run it

# %%
two = launch("mp", steps=6, global_batch=BATCH)
print(two.output(0) or "Two different devices.")

# %% [markdown]
# **Without a GPU** this run shows that the wiring is right, and nothing else: both halves are in
# the same memory and `.to()` copies nothing. **With one GPU** the second half is in main memory,
# and the CPU computes it: larger models fit, at the CPU's speed. **With two GPUs** each holds its
# half.
#
# To measure a real cut on any machine, each device becomes a CPU rank with a core and memory of its
# own. The script is that of lesson 06b; with one micro-batch it does what the layer split does.

# %%
on_cores = {"device": "cpu", "steps": 6, "global_batch": BATCH}
one_piece = {"schedule": "gpipe", "micro_batches": 1, **on_cores}
one_core = launch("cpu", 1, **on_cores)
split = launch("pp", 2, **one_piece)

# %% [markdown]
# ## Read the measurement
#
# ### One device works, the other waits
#
# Each rank has recorded when its forward and backward passes began and ended. (On a GPU such a
# clock shows when work was queued, not when it was done; CPU ranks are exact.)

# %%
plots.show(diagrams.one_step(split))

# %% [markdown]
# Rank 1 cannot begin without rank 0's activations, and rank 0 cannot begin its backward pass
# without the gradient from rank 1. The loss ties both together, so there is nothing else to do
# meanwhile.

# %%
from bootcamp import claim, trial

claim.equal(
    "model_parallel_one_works",
    "In a layer split at most one rank is in a forward or backward pass at any moment.",
    diagrams.most_active_ranks(split),
    1,
    kind="count",
)

# %% [markdown]
# So a step takes the sum of all layers' times, plus the time to cross the cut: **a layer split
# makes nothing faster**. (Only the optimizer's part runs on both ranks at once.) Of *p* devices at
# most 1/*p* is used. What a further device gives you is its memory.

# %%
halves = trial("pp", 2, **one_piece)
found = claim.faster(
    "model_parallel_no_gain",
    "Cutting the model over two ranks makes its training at most 15 % faster.",
    trial("cpu", 1, **on_cores),
    halves,
    by=1 / 1.15,
    otherwise="Two ranks also have two cores' caches, and two optimizers that run at once.",
)
print(guess_speed.score(1 / found.effect))
found

# %% [markdown]
# Data parallelism puts the same two devices to work at the same time. In the cut, `pp`, one of its
# two cores waits.

# %%
data_parallel = trial("ddp", 2, **on_cores)
plots.show(plots.throughput(one_core, split, data_parallel()))
claim.faster(
    "model_parallel_or_data",
    "Two data-parallel ranks are over 1.1 times as fast as two ranks with half the layers each.",
    data_parallel,
    halves,
    by=1.1,
    otherwise="Averaging gradients, or ranks that share a core, may have cost the gain.",
)

# %% [markdown]
# ### What each device holds
#
# Gradients and optimizer state live where the parameters are, and a device keeps the activations of
# its own layers. No line of code was needed for that.

# %%
plots.show(plots.memory(one_core, split))

# %% [markdown]
# If each byte of the state is on exactly one rank, the ranks together hold what one process holds.

# %%
KINDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
held = [sum(rank[kind] for kind in KINDS) for rank in (*one_core.ranks, *split.ranks)]
claim.equal(
    "model_parallel_state",
    "Both ranks together hold the state of one process: no byte twice.",
    sum(held[1:]),
    held[0],
    kind="memory",
)

# %% [markdown]
# ### What crosses the cut
#
# By formula: samples × context × width × 4 bytes forward (2 with bf16 activations), and the same
# back. Linux counts what each rank sends. The few bytes more are the mean of the loss and the
# protocol.

# %%
crossing = BATCH * context * width * 4
sent = split.ranks[0]["sent_bytes_per_step"]
print(guess_bytes.score((sent or crossing) / 1e6))
claim.equal(
    "model_parallel_crossing",
    "A rank sends the activations at the cut, or their gradient, and less than 2 % besides.",
    sent,
    crossing,
    within=0.02,
)

# %% [markdown]
# Is that much? In data parallelism each of two devices sends as many bytes in a step as its
# gradients have (lesson 04), whatever the batch. What crosses a cut grows with the batch and the
# width, and not with the depth.

# %% tags=["nbval-check-output"]
from bootcamp.costs import layer_cut
from bootcamp_lessons import sharding_tables

caption = "What each of two devices sends in a step of 8 samples, MB"
Table(sharding_tables.cut_traffic(samples=8), caption)

# %% [markdown]
# With few samples a cut sends far less than data parallelism, with many it sends more. The two are
# equal when tokens × width = parameters. A GPT has about 12 × layers × width² parameters, so the
# crossover is at **12 × layers × width tokens a step**. For the shape of GPT-3 (96 layers of width
# 12,288) that is 14 million tokens; its batches had 3.2 million (Brown et al., 2020).
#
# A cut between layers may therefore cross a slow link, such as the one between hosts. But in a
# plain layer split no device computes while these bytes are on their way.

# %% [markdown]
# ### Where to cut
#
# "Half of the layers" is not half of everything.

# %%
from bootcamp_lessons import excerpts

stages = excerpts.parse_printed(
    launch(excerpts.SNIPPETS / "stage_costs.py", 1, device="cpu", quiet=True)
)
plots.show(diagrams.stage_costs(stages, len(stages) // 2))

# %% [markdown]
# The embedding has parameters and needs little time: it only looks up. The head computes, and has
# fewer parameters than a block. In between, all blocks are alike. To find the best cut, try every
# place and take the one whose most expensive part is cheapest.
#
# Here the middle is right, because a vocabulary of 256 bytes is tiny. GPT-2's has 50,257 entries
# (Radford et al., 2019): the head's arithmetic is that of 4.5 blocks of GPT-2 small. Cut its 14
# layers into 4 parts of about equal number, and the last device gets three blocks and the head.

# %%
guess_last = predict(
    "model_parallel_last",
    "12 blocks and a head worth 4.5 blocks over 4 devices, cut for equal times. How many blocks "
    "does the last device get beside the head?",
    unit="blocks",
)
guess_last

# %%
rows = layer_cut.compare(layer_cut.gpt2("small"), parts=4)
beside = int(rows[1]["stages"].split()[-1]) - 1
print(guess_last.score(beside, how="By formula", within=0))
Table(rows, "GPT-2 small over 4 devices, by formula (1 is balance)")

# %% [markdown]
# A cut that balances time does not balance memory, and the other way round. (GPT-2 uses one table
# in embedding and head. When they are on different devices, both need it, and its two gradients
# must be added up.)
#
# In a plain layer split choose **memory**: the time is the sum of all layers, wherever the cut is.
# In a pipeline (06b) **time** counts too, since all wait for the slowest. In Llama 3 the first and
# the last part of the pipeline have one layer fewer than the others: the first for memory, since it
# holds the embedding and most activations, the last for the arithmetic of the head.

# %% [markdown]
# ## With data parallelism: each rank has two devices (optional)
#
# A model that needs two devices can be trained on four: two processes with two devices each average
# their gradients.

# %%
script_diff("ddp_mp")

# %% [markdown]
# `device_ids=None` says that the model has several devices and moves its inputs itself. A rank is a
# complete copy of the model, on however many devices. So lesson 04's formula for the traffic holds
# with the number of *ranks*.

# %% [markdown]
# ## Prove it
#
# Moving changes no number. The proof takes one process with two devices, and two processes with two
# devices each, with both optimizers.

# %%
from bootcamp import check

print(*check.prove("mp", 1), *check.prove("ddp_mp", 2), sep="\n")

# %% [markdown]
# In the split over ranks no rank has the complete model, so the proof adds up what the ranks hold.

# %%
check.same_training(split, one_core)

# %% [markdown]
# ## Break it
#
# Without two devices a forgotten move shows nothing: everything is in one memory. The device `meta`
# (lesson 02: shapes without numbers) helps: with the first half on the CPU and the second half on
# `meta`, a forward pass is a rehearsal with two different devices. (Only the forward pass: a
# gradient without numbers cannot come back to the CPU.)

# %%
from bootcamp import variant

devices = "device, second_device = (torch.device(name) for name in context.devices)"
cpu_and_meta = 'device, second_device = torch.device("cpu"), torch.device("meta")'
rehearsal = variant("mp", "mp_rehearsal", {devices: cpu_and_meta, "loss.backward()": ""})


def rehearse(script):
    return launch(script, 1, device="cpu", steps=1, quiet=True, raises=False)


print(rehearse(rehearsal).status)

# %% [markdown]
# Each of these three scripts has one wrong line. Would its error alone tell you which? Read which
# two devices met, and in which lines of the course's code.

# %%
hook = "model[half].register_forward_pre_hook(lambda stage, inputs: inputs[0].to(second_device))"
loss = "loss = models.loss(model(inputs), targets.to(second_device))"
broken = {
    "A": {hook: ""},
    "B": {loss: loss.replace(".to(second_device)", "")},
    "C": {hook: hook.replace("[half]", "[half - 1]")},
}
for name, change in broken.items():
    script = variant(rehearsal, f"mp_broken_{name}", change)
    print(f"{name}:", excerpts.trace_error(rehearse(script)))

# %% [markdown]
# <details><summary>Answer</summary>
#
# All three messages name two devices; `meta` is the second one here.
#
# - **A:** a block's norm. Its inputs are on the CPU, its weights on the second device: the
#   activations did not cross. The hook is missing.
# - **B:** no block at all, but the cross-entropy: the outputs are on the second device, the targets
#   are not.
# - **C:** a block again, but the other way round: the *inputs* are on the second device already and
#   the weights still on the first. The hook is registered one layer too early.
#
# On two GPUs the messages say `cuda:0` and `cuda:1`. All of these are the good case: they fail in
# the first step.
# </details>

# %% [markdown]
# ## Exercises
#
# ### First: where to cut
#
# Find the best cut for memory. `where_to_cut(parameters, activation_bytes)` is given two lists with
# a number for each layer: its parameters, and the bytes that it keeps for the backward pass. It
# returns the place of the first layer of device 1, so that the *fuller* of the two devices holds as
# few bytes as possible: state (AdamW, float32) and activations.

# %%
from bootcamp import exercise


def where_to_cut(parameters, activation_bytes):
    # your turn: return the place of the cut, counted as in model[:cut] and model[cut:]
    ...


print(exercise.check("where_to_cut", where_to_cut))

# %% [markdown]
# `exercise.solution("where_to_cut")` shows a solution. To go further, give your function the
# measured layers in `stages`.
#
# ### Second: two ranks of two devices (optional)
#
# Bring the script of this lesson to two ranks, each with its model on two devices.

# %%
print(exercise.start("ranks_of_two_devices"))

# %% [markdown]
# Edit the file, save it, and check it: it runs on two ranks with both optimizers.
# `exercise.solution("ranks_of_two_devices")` shows the solution as a diff. To go further, cut the
# model into three parts (`devices_per_rank=3`), and prove it.

# %%
print(exercise.check("ranks_of_two_devices"))

# %% [markdown]
# ## When to use it and when not
#
# - **Use a layer split to make a model fit**, not to make it fast. It takes a few lines, and the
#   link between the devices may be slow.
# - **For inference it is common.** Hugging Face's `device_map="auto"` (Accelerate) places layers on
#   GPUs, then in main memory, then on disk, and moves activations and weights with hooks. With all
#   layers on GPUs one user waits hardly longer than on one large GPU. With layers in main memory or
#   on disk, each token waits until their weights have come over PCIe or from the disk: divide their
#   bytes by that bandwidth.
# - **Do not train on many devices this way:** of *p* devices that you pay for, one works. If only
#   the state is too large, sharded data parallelism (07) keeps all devices busy.
# - **Where the model is not a sequence** (the output of an early layer is used again much later),
#   more than one tensor crosses the cut, and all of them have to be moved. (Sharded: lesson 08.)
# - **Cut by bytes if only memory counts, by time if it will become a pipeline.** Look at embedding
#   and head first.
#
# ## Sources
#
# - PyTorch documentation: *DistributedDataParallel* (`device_ids`), *torch.nn.Module*
#   (`register_forward_pre_hook`), *torch.optim*; tutorial *Getting Started with Distributed Data
#   Parallel*, section on combining it with model parallelism.
# - Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
#   2019, arXiv:1910.02054: the 16 bytes for each parameter. Megatron-LM's documentation of its
#   distributed optimizer: 18. DeepSeek-AI, *DeepSeek-V3 Technical Report*, arXiv:2412.19437,
#   section 3.3.3: moments in bf16. Liu et al., *Muon is Scalable for LLM Training*,
#   arXiv:2502.16982.
# - Huang et al., *GPipe*, 2018, arXiv:1811.06965: the layer split whose waiting a pipeline fills.
# - Llama Team, *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783, section 3.3: a balanced
#   pipeline; tensor, context, pipeline and data parallelism combined.
# - Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019: GPT-2. Brown et
#   al., *Language Models are Few-Shot Learners*, 2020, arXiv:2005.14165, table 2.1: GPT-3.
# - Hugging Face, *Accelerate* documentation: *Big Model Inference*.
# - Memory of GPUs: `src/bootcamp/costs/published/gpu_memory.csv`, each row with its source.
