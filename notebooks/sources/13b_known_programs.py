# %% [markdown]
# # 13b Programs from elsewhere: what people bring, run and proved
#
# **40 minutes** for the core, on any machine, after lessons 03, 04d, 06b, 06c, 07 and 10. The
# ranks are CPU cores, even where there are GPUs.
#
# After this lesson you can read one plan in five tools' words, put a StripedLSTM on ranks, name the
# dimension that DataParallel has to cut, and say when ResNet-50 in parts is the same training. Two
# optional parts read Lightning's strategies, and find and end a rank that has lost its parent.
#
# ## The question
#
# Books, slides and colleagues bring programs, and configurations: a striped LSTM, ResNet-50 in
# DataParallel, DeepSpeed's JSON. Does such a program train here what one process trains, and what
# does it do silently?

# %%
import copy
import signal

import torch
from IPython.display import display

from bootcamp import Table, check, claim, launch, predict, script_diff, variant, warm_up
from bootcamp.costs import sharding as theory
from bootcamp_lessons import excerpts, sharding_tables
from bootcamp_lessons.labs import known_programs, orphan_lab

warm_up()
cpu = {"device": "cpu", "quiet": True}
small = {**cpu, **check.settings(2)}
LSTM = {"model": "striped-lstm", **small}
RESNET = {**known_programs.RESNET, **cpu}

# %% [markdown]
# ## One plan in five tools' words
#
# A plan (lesson 10) for 32 ranks: weights sharded over 8, each layer's matrices over 4, bfloat16,
# blocks recomputed. `python src/snippets/one_plan.py --data 8 --tensor 4` writes it, and five plans
# with other axes, for five tools; each tool's **own parser** reads them (PyTorch's lines are run,
# on imagined ranks with a small model). Then each name and each word loses its last letter in turn,
# and each number becomes 7.

# %%
plans = known_programs.read_plan()
for tool, row in plans.items():
    if tool != "torchtitan 0.3":  # has flags of the same names as 0.2's
        print(f"{tool} {row['version']}\n{row['text']}")
guess_typos = predict(
    "known_typos",
    "torchtitan 0.2 refuses each misspelled name. Of the "
    f"{plans['torchtitan 0.2']['values']} values in its six plans, how many does it accept when "
    "they are changed? (Not shown: the sizes of three axes and of a micro-batch, and a schedule's "
    "name.)",
    unit="values",
)
guess_typos

# %%
columns = ("tool", "where", "names", "names accepted", "values", "values accepted")
rows = [{name: row[name] for name in columns} for row in plans.values()]
swallowed = [
    {"tool": tool, "changed": each["wrong"], "understood": each["understood"]}
    for tool, row in plans.items()
    for each in row["swallowed"]
]
says = [
    {"plan": axis, "tool": tool, "its word": row["more"][axis]["words"]}
    for axis in plans["PyTorch"]["more"]
    for tool, row in plans.items()
]
display(Table(rows, "Six plans, each name and value changed in turn, as read before training"))
display(guess_typos.score(plans["torchtitan 0.2"]["values accepted"], within=0))
display(Table(swallowed, "Changed in the plan above, and accepted as another plan"))
display(Table(says, "The same ranks with other axes: the last line that a tool is told"))

# %% [markdown]
# - **What is missing** stands elsewhere: batches in your loop (PyTorch, Accelerate), recomputation
#   in Python (DeepSpeed; torchtitan 0.3, which reads no TOML any more), the cut of the matrices in
#   `parallelize_module` (PyTorch; 06c). Accelerate expects a model that is already cut: others it
#   skips, with a warning.
# - **Batches.** torchtitan and Megatron take samples, a rank's and a step's. DeepSpeed is given no
#   `train_batch_size`: its parser counts all 32 ranks as data ranks, expects 2 × 4 × 32 = 256, and
#   refuses 64.
# - **Swallowed names.** DeepSpeed skips unknown names in the outermost braces. Accelerate skips
#   them within `fsdp_config`: two of three, and the third fails only for want of a GPU.
# - **Swallowed values.** PyTorch makes a mesh of 28 of the 32 ranks, and DeepSpeed accepts a tensor
#   axis of 7. (A batch of 7 can be meant, a mesh of 28 hardly.) torchtitan 0.2 takes all four
#   misspelled words (0.3 refuses two of its three) and, of eight numbers, the three of batches: it
#   compares only axes with the 32 ranks. So ask a tool what it **understood**, not whether it
#   complained.
#
# PyTorch's lines run here, in float32, in a script that cuts the matrices: the same training on
# 2 × 2 ranks?

# %%
four = {"data": 2, "tensor": 2, "precision": "fp32", "tool": "PyTorch"}
lines = known_programs.read_plan(**four)["PyTorch"]["text"]
planned = check.prove(known_programs.write_plan(lines), 4, mesh="2x2", device="cpu")
sharding_tables.list_proofs([("the plan's lines", proof) for proof in planned])

# %% [markdown]
# ## The idea
#
# **The first program: a StripedLSTM.** In an ordinary LSTM every unit reads the state of *all*
# units at the step before. With the units divided over ranks, the ranks exchange states at **every
# time step**. A **StripedLSTM** divides the hidden state into stripes. A stripe reads the layer's
# complete input, but in the recurrence only its own state. So stripes run side by side from the
# first time step to the last, and meet where the next layer begins.
#
# | What is | ordinary LSTM over ranks | StripedLSTM over ranks |
# |---|---|---|
# | exchanged in the forward pass | states, at each time step | outputs, once for a layer |
# | exchanged in the backward pass | gradients, at each time step | the input's gradient, once |
#
# It is used as `nn.LSTM` is: the input is **(time, batch, features)**, and it returns a **tuple**,
# `output, (h_n, c_n)`. Both are traps for a wrapper that expects a tensor with the batch first.

# %%
from bootcamp.train.models.striped_lstm import StripedLSTM

excerpts.source(StripedLSTM.forward)

# %% [markdown]
# ## Predict

# %%
guess_exchanges = predict(
    "known_exchanges",
    "A StripedLSTM of 4 layers on two ranks reads 32 time steps. How many times the bytes of its "
    "forward pass does its backward pass send?",
    unit="times",
)
guess_steps = predict(
    "known_wrong_steps",
    "nn.DataParallel cuts dimension 0 of its input, unless told otherwise. Two replicas get a "
    "tensor of 32 time steps, 6 samples, 8 features. At how many steps is the output wrong?",
    unit="steps",
)
display(guess_exchanges, guess_steps)

# %% [markdown]
# ## What changes
#
# From DDP to stripes. Two hooks surround each layer's LSTM, and a **DTensor** (lesson 06c)
# describes what each rank has, so that autograd knows what to exchange.

# %%
script_diff("striped")

# %% [markdown]
# - **Going in**, all ranks have the same input, and nothing is sent. Coming back, each rank has the
#   gradient from *its* stripes: one part of a sum, which `Partial()` turns into an all-reduce.
# - **Coming out**, each rank has its stripes' part of the output, and `full_tensor()` gathers. In
#   the backward pass each takes its part of the gradient, which all of them hold.
# - The hook takes the **tuple** apart. The state stays on the rank whose stripes it belongs to.
#
# ## Run it

# %%
striped = launch("striped", 2, **LSTM)
calls = launch(sharding_tables.make_counting_script("striped"), 2, **LSTM).collectives()
display(Table(calls, "Collectives of one step on rank 0"))
sent = {c["phase"]: c["count"] * theory.ring_bytes(c["kind"], c["nbytes"], 2) for c in calls}
guess_exchanges.score(sent["backward"] / sent["forward"], within=0)

# %% [markdown]
# One gather for each layer, whatever the number of time steps, and an all-reduce, which sends twice
# as much. An ordinary LSTM's forward pass sends as many bytes in 32 times as many messages, and
# each time step waits for the one before.
#
# ### What DataParallel does to the wrong dimension
#
# `nn.DataParallel` splits nothing without two GPUs, so here are its scatter, replicas and gather by
# hand. It joins every tensor of a tuple along `dim`: outputs *and* states.

# %%
torch.manual_seed(0)
lstm = StripedLSTM(input_size=8, hidden_size=16, num_layers=1, num_stripes=4).requires_grad_(False)
x = torch.randn(32, 6, 8)  # (time, batch, features)
output, (h_n, _) = lstm(x)


def data_parallel(module, x, dim, replicas=2):
    """The output and the h_n that nn.DataParallel(module, dim=dim)(x) returns on so many GPUs."""
    results = [copy.deepcopy(module)(share) for share in x.chunk(replicas, dim)]
    outputs, states = zip(*results, strict=True)
    return torch.cat(outputs, dim), torch.cat([h_n for h_n, _ in states], dim)


joined, h_of_joined = data_parallel(lstm, x, dim=0)
wrong = int(((joined - output).abs().amax((1, 2)) > 1e-6).sum())
print("h_n, (layers, batch, units):", tuple(h_n.shape), "and joined:", tuple(h_of_joined.shape))
torch.testing.assert_close(data_parallel(lstm, x, dim=1), (output, h_n))
display(guess_steps.score(wrong, within=0))
claim.equal(
    "known_time_was_cut",
    "If the input is cut along dimension 0, half of the sequence begins with an empty state.",
    wrong,
    len(x) / 2,
    kind="count",
    supported="No error: shapes fit, and h_n looks like that of two layers. dim=1 is right.",
)

# %% [markdown]
# ## Read the measurement
#
# A GPT block under tensor parallelism (lesson 06c) has four all-reduces of such a tensor, where
# stripes have one and a gather.

# %%
gpt, ddp = launch("tp", 2, **small), launch("ddp", 2, **LSTM)
display(known_programs.sent_table({"stripes": striped, "GPT, tensors": gpt, "stripes, DDP": ddp}))
claim.equal(
    "known_stripes_send_three_activations",
    "Stripes send 3 (N - 1) / N times a layer's activations for each layer.",
    striped.ranks[0]["sent_bytes_per_step"],
    known_programs.predict_sent_bytes(striped),
    within=0.02,
)

# %% [markdown]
# Last column: for the same parameters and tokens stripes send less than the GPT of the same width,
# 3 activations for 5 width² parameters against 8 for 12 (and 2 more, once, for the head). DDP sends
# gradients instead: the same bytes for any number of tokens.
#
# ## Prove it

# %%
stripes = check.prove("striped", 2, model="striped-lstm", device="cpu")
stripes[0]

# %% [markdown]
# ### ResNet-50
#
# **BatchNorm** takes mean and variance over the samples that it sees (lesson 04d):
#
# | divided | a BatchNorm layer sees | the same training as one process? |
# |---|---|---|
# | layers over devices (`mp`) | all samples | yes |
# | replicas (`dp_by_hand`) | a replica's share | with frozen statistics |
# | shards (`fsdp`) | a rank's share | with frozen or synchronised statistics |
#
# **Frozen** is `model.eval()`: the layer uses its running statistics, and so must the baseline.
# **Synchronised** takes the sums over all ranks, and equals the baseline as it is.
# The proof is in float64, since BatchNorm magnifies the rounding of sums in another order. On CPUs
# both parts of *layers* lie on one device: this proves the cut, not the copies.

# %%
proofs = []
for optimizer in ("sgd", "adamw"):
    base = check.baseline(**known_programs.RESNET, optimizer=optimizer)
    still = launch(known_programs.freeze_batch_norm("cpu"), 1, **RESNET, optimizer=optimizer)
    for name, script, ranks, alone in (
        ("layers", "mp", 1, base),
        ("replicas, frozen", known_programs.freeze_batch_norm("dp_by_hand"), 1, still),
        ("shards, synchronised", known_programs.add_sync_batch_norm("fsdp"), 2, base),
    ):
        run = launch(script, ranks, **RESNET, optimizer=optimizer)
        proofs.append((f"ResNet-50, {name}", check.same_training(run, alone)))
sharding_tables.list_proofs(proofs)

# %% [markdown]
# ## Lightning's strategies (optional)
#
# Behind most names is a script of this course. `src/snippets/lightning_strategies.py` gives each
# name to a Trainer without GPUs. (*ddp_spawn*, a record, takes 10 to 20 s.) The last column says
# how far SGD's and AdamW's losses were from the baseline's, or why nothing was trained.

# %%
known_programs.strategies(here=True)

# %% [markdown]
# - Started by plain `python`, a Trainer starts the other ranks. With *ddp*, code above the Trainer
#   runs in each rank. *ddp_spawn* needs `if __name__ == "__main__"`. *ddp_fork* works in a
#   notebook, as long as CUDA is not in use.
# - *fsdp* and *deepspeed* ask for GPUs, though both libraries train on CPU ranks (07, 07c).
# - `num_nodes=2` waited for a second host: here for seconds, by default for half an hour.
#
# ## A rank without a parent (optional)
#
# This course's launcher ends its ranks whatever happens to it. If `torchrun` is killed, each of its
# ranks goes on as an **orphan**: a process whose parent is gone, adopted by the system's first
# process or the user's `systemd`. (On Linux the ranks of `torch.multiprocessing` get an interrupt
# when their parent dies.) Two are made here. Each holds memory, a port, and a file in shared
# memory. One handles `TERM`, the other ignores it; only `KILL` ends it.
#
# `nvitop` draws a machine's GPUs and their processes, in a terminal every 2 s, or once (`--once`).
# The cell starts it here, and then on two **simulated** GPUs, as if the orphan on GPU 0 were
# stuck in Python, and that on GPU 1 waited for it in NCCL's all-reduce. Which GPU is at 100 %?

# %%
guess_files = predict("known_files_left", "How many of the two files are left?", unit="files")
guess_files

# %%
with orphan_lab.Orphans() as orphans:
    orphans.lose_their_parent()
    found, rows = orphans.find_with_tools(), orphans.look("parent killed")
    print(orphans.draw_with_nvitop())
    orphans.end(signal.SIGTERM)
    rows += orphans.look("after TERM")
    orphans.end(signal.SIGKILL)
    rows += orphans.look("after KILL")
left = sum(row[what] == "there" for row in rows[-2:] for what in row)
display(found, Table(rows, "What two orphans hold"), guess_files.score(left, within=0))
claim.equal(
    "known_kill_leaves_the_file",
    "After TERM and KILL no rank and no port is left, and one file of two is.",
    sum(row[what] in ("alive", "taken", "there") for row in rows[-2:] for what in row),
    1,
    kind="count",
)

# %% [markdown]
# nvitop asks **NVML**, a library of NVIDIA's driver, and says if there is none (no driver, or a
# container without it). The second panel is nvitop's own too, but `nvitop_simulated.py` answers in
# NVML's place: the orphan's main memory as GPU memory, mostly `N/A`.
#
# - `Memory-Usage`: all that the driver has given out: tensors, PyTorch's reserve, CUDA's contexts.
# - `GPU-Util`: the share of time in which any kernel ran (lesson 02). An all-reduce that waits is
#   one: GPU 1 has the 100 %, and GPU 0, whose rank is stuck, none.
# - A process: `C` computes, `G` draws. `No Such Process`: ask on the container's host.
# - **Find.** In `ps -ww -eo pid,ppid,args` (`-ww`: whole commands; nvitop cuts them off) look for
#   your script with the parent 1 or `systemd`. `orphans()` finds scripts of this course.
# - **End.** `TERM` is a request: the program can remove its files. Wait some seconds, then `KILL`,
#   which a process cannot catch. The kernel takes back memory and ports, the driver GPU memory (not
#   seen here). A file in `/dev/shm` is no process's, and takes memory until it is deleted.
#
# ## Break it
#
# Three programs run to their end and train something else. *Time cut in two*: DataParallel by hand
# cuts the course's batches, (batch, time), along dimension 1. *No sum of gradients*: the diff
# below. *Each rank's own statistics*: `fsdp` with ResNet-50 as it is. Which is the hardest to find
# without a proof?

# %%
partial = "return same.to_local(grad_placements=[Partial()])"
unsummed = variant("striped", "striped_unsummed", {partial: "return same.to_local()"})
sgd, (lstm_alone, images_alone) = {"optimizer": "sgd"}, (stripes[0].baseline, proofs[0][1].baseline)
broken = {
    "time cut in two": (launch(known_programs.cut_along_time(), 1, **LSTM, **sgd), lstm_alone),
    "no sum of gradients": (launch(unsummed, 2, **LSTM, **sgd), lstm_alone),
    "each rank's own statistics": (launch("fsdp", 2, **RESNET, **sgd), images_alone),
}
failed = {name: check.compare(*pair).failed for name, pair in broken.items()}
assert all(failed.values()), "a proof did not notice"
hints = {name: rows[0]["hint"].partition(":")[0] for name, rows in failed.items()}
Table([{"": name, "hint of the proof begins": hint} for name, hint in hints.items()])

# %% [markdown]
# <details><summary>Answer</summary>
#
# The missing sum. The other two change the first loss; here the first loss is exact, and the loss
# falls. The ranks' embeddings drift apart, each trained by its own stripes, and a
# checkpoint of rank 0 looks fine.
# </details>
#
# ## Exercise
#
# ### First: Megatron's flags as a mesh
#
# A GPT of 39 billion parameters ran on 512 GPUs with `--tensor-model-parallel-size 8
# --pipeline-model-parallel-size 2 --global-batch-size 1536` (Narayanan et al., arXiv:2104.04473,
# Table 1). Which mesh would `fully_shard` get, and how many micro-batches of 4 samples has each
# pipeline in a step? Solution: `exercise.solution("megatron_axes")`.

# %%
from bootcamp import exercise


def megatron_axes(ranks, tensor, pipeline, batch, micro_batch):
    """The size of fully_shard's mesh, and the micro-batches of a pipeline's step, as a tuple."""
    ...


print(exercise.check("megatron_axes", megatron_axes))

# %% [markdown]
# ### Second: the missing exchange (optional)
#
# The stripes' script without the two lines of `enter`. The check trains with yours, on two ranks
# with both optimizers. Solution: `exercise.solution("stripes")`.

# %%
print(exercise.start("stripes"))

# %%
print(exercise.check("stripes"))

# %% [markdown]
# ## When to use it and when not
#
# - **Stripes over ranks**: when a recurrent layer is too large for one device; else DDP is simpler.
#   Stripes are a different model from an LSTM of the same width: compare what they learn.
# - **DataParallel**: in old code. Look for the dimension, and for tuples.
# - **A framework's strategy**: once you can name the bare script, and have proved one run.
#
# All programs from elsewhere that this course covers, and what proves each, are listed in
# `src/bootcamp_lessons/labs/known_programs.csv`.
#
# ## Sources
#
# - Kuchaiev and Ginsburg, *Factorization tricks for LSTM networks*, 2017, arXiv:1703.10722: the
#   group LSTM. Here a stripe reads all of a layer's input.
# - He et al., *Deep Residual Learning for Image Recognition*, 2015, arXiv:1512.03385.
# - PyTorch documentation: *torch.nn.DataParallel* (`dim`), *torch.nn.LSTM*,
#   *torch.distributed.tensor*. Lightning documentation: *Strategy*, and the release notes of 2.0.
#   nvitop 1.7's README; NVIDIA, *NVML API Reference*: `nvmlUtilization_t`. Linux manual:
#   `signal(7)`, `shm_overview(7)`.
# - The plan's names: the parsers of the versions shown.
