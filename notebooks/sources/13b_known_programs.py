# %% [markdown]
# # 13b Programs from elsewhere: what people bring, run and proved
#
# **40 minutes**, on any machine, after lessons 03, 06 and 07. The ranks are CPU cores, even where
# there are GPUs: this lesson counts and compares.
#
# After this lesson you can put a StripedLSTM on ranks, name the dimension that DataParallel has to
# cut, say when ResNet-50 in parts is the same training, save with DeepSpeed so that others can
# load it, read a Lightning strategy as a bare script, and end a rank that has lost its parent.

# %% [markdown]
# ## The question
#
# Books, slides and colleagues bring programs: a striped LSTM, ResNet-50 in DataParallel, a Trainer
# with `strategy="fsdp"`, a DeepSpeed configuration. Each worked somewhere. Does it train here what
# one process trains, and what does it do without telling?

# %%
import copy
import signal

import torch
from IPython.display import display

from bootcamp import Table, available, check, claim, launch, predict, script_diff, variant, warm_up
from bootcamp.launcher.launch import HOW_TO_GET
from bootcamp_lessons import known_programs, orphan_lab, reading, sharded

warm_up()
DEEPSPEED = available("deepspeed")
missing = f"DeepSpeed is not installed here: its runs are left out. {HOW_TO_GET['deepspeed']}"
cpu = {"device": "cpu", "quiet": True}
small = {**cpu, **check.settings(2)}
LSTM = {"model": "striped-lstm", **small}

# %% [markdown]
# ## The idea
#
# A recurrent model computes one time step after the other: its state after step *t* needs the one
# after *t* - 1. In an ordinary LSTM every unit reads the state of *all* units. Divided over ranks,
# each rank has some units, and the ranks must exchange states at **every time step**.
#
# A **StripedLSTM** divides the hidden state into stripes. A stripe reads the layer's complete
# input, but in the recurrence only its own state. So the stripes of a layer can run side by side
# from the first time step to the last, and meet where the next layer begins.
#
# | | ordinary LSTM over ranks | StripedLSTM over ranks |
# |---|---|---|
# | a rank holds | some units of each layer | some stripes of each layer |
# | exchanged in the forward pass | states, at each time step | outputs, once for a layer |
# | exchanged in the backward pass | gradients, at each time step | the input's gradient, once |
#
# It is used as `nn.LSTM` is: the input is **(time, batch, features)**, and it returns a **tuple**,
# `output, (h_n, c_n)`. Both are traps for a wrapper that expects a tensor with the batch first.

# %%
from bootcamp.train.models.striped_lstm import StripedLSTM

reading.source(StripedLSTM.forward)

# %% [markdown]
# ## Predict

# %%
guess_exchanges = predict(
    "known_exchanges",
    "A StripedLSTM of 4 layers on two ranks reads 32 time steps. How many collectives does its "
    "forward pass call?",
    unit="collectives",
)
guess_exchanges

# %% [markdown]
# `nn.DataParallel(module)` cuts dimension 0 of what it is given, unless told otherwise. Two
# replicas get a tensor of 32 time steps, 6 samples and 8 features.

# %%
guess_steps = predict(
    "known_wrong_steps",
    "At how many of the 32 time steps is the joined output wrong?",
    unit="steps",
)
guess_steps

# %% [markdown]
# With AdamW in float32 DeepSpeed keeps 20 bytes for each parameter: 4 for it, 4 for its gradient,
# 12 for the optimizer, which works on a copy (lesson 07).

# %%
guess_bf16 = predict(
    "known_bf16", 'How many bytes are they with `"bf16": {"enabled": True}`?', unit="bytes"
)
guess_bf16

# %% [markdown]
# ## What changes
#
# From DDP to stripes. Two hooks stand around each layer's LSTM, and a **DTensor** (lesson 06c) says
# what each rank has, so that autograd knows what to exchange.

# %%
script_diff("striped")

# %% [markdown]
# - **Going in.** All ranks have the same input, so nothing is sent. Coming back, each rank has the
#   gradient that *its* stripes say: one part of a sum, and `Partial()` makes an all-reduce of it.
# - **Coming out.** Each rank has its stripes' part of the output: `Shard(-1)`. `full_tensor()`
#   gathers. Coming back, all ranks hold the same gradient, and each takes its part of it: nothing
#   is sent.
# - The hook takes the **tuple** apart. The state stays on the rank whose stripes it belongs to.
# - All ranks read all samples, and the embedding and the head are on every rank.

# %% [markdown]
# ## Run it
#
# The same run once more, with its collectives counted:

# %%
from bootcamp.train import collective_counter

striped = launch("striped", 2, **LSTM)
counted = launch(sharded.counted("striped"), 2, **LSTM)
calls = collective_counter.read(counted)
display(Table(calls, "Collectives of one step on rank 0"))
forward = sum(row["count"] for row in calls if row["phase"] == "forward")
guess_exchanges.score(forward, within=0)

# %% [markdown]
# One for a layer, whatever the number of time steps. An ordinary LSTM would send the same bytes in
# 32 times as many messages, each of which the next time step waits for.
#
# ### What DataParallel does to the wrong dimension
#
# `nn.DataParallel` refuses CPU tensors, so here are its scatter, replicas and gather by hand. It
# treats every tensor of a tuple the same way: it joins outputs *and* states along `dim`.

# %%
torch.manual_seed(0)
lstm = StripedLSTM(input_size=8, hidden_size=16, num_layers=1, num_stripes=4)
x = torch.randn(32, 6, 8)  # (time, batch, features)


@torch.no_grad()
def data_parallel(module, x, dim, replicas=2):
    """What nn.DataParallel(module, dim=dim)(x) returns on so many GPUs."""
    results = [copy.deepcopy(module)(share) for share in x.chunk(replicas, dim)]
    outputs, states = zip(*results, strict=True)
    h_n, c_n = (torch.cat(state, dim) for state in zip(*states, strict=True))
    return torch.cat(outputs, dim), (h_n, c_n)


def wrong_steps(dim):
    apart = data_parallel(lstm, x, dim)[0] - lstm(x)[0].detach()
    return int((apart.abs().amax((1, 2)) > 1e-6).sum())


shapes = (lstm(x)[1][0].shape, data_parallel(lstm, x, dim=0)[1][0].shape)
print("(layers, batch, units) of h_n, in one process and in two replicas:", *map(tuple, shapes))
assert wrong_steps(dim=1) == 0, "dimension 1 is the batch"
display(guess_steps.score(wrong_steps(dim=0), within=0))
claim.equal(
    "known_time_was_cut",
    "Cut along dimension 0, the second replica begins half of the sequence with an empty state.",
    wrong_steps(dim=0),
    len(x) / 2,
    kind="count",
    supported="No error: shapes fit, and h_n looks like that of a model with two layers.",
)

# %% [markdown]
# `nn.DataParallel(module, dim=1)` is right. So is a batch that comes first, as between this
# course's stages. Training goes on with time cut in two, too (*Break it*).

# %% [markdown]
# ## Read the measurement
#
# What do stripes send? A layer's activations once in each direction: a gather, and an all-reduce,
# which counts twice. A GPT block under tensor parallelism (lesson 06c) has four all-reduces of
# such a tensor, and more parameters.

# %%
gpt, ddp = launch("tp", 2, **small), launch("ddp", 2, **LSTM)
display(known_programs.exchanged({"stripes": striped, "GPT, tensors": gpt, "stripes, DDP": ddp}))
claim.equal(
    "known_stripes_send_three_activations",
    "Stripes send 3 (N - 1) / N times a layer's activations for each layer.",
    striped.ranks[0]["sent_bytes_per_step"],
    known_programs.formula_bytes(striped),
    within=0.02,
)

# %% [markdown]
# In the last column both have a width of 64: for the same parameters and tokens stripes send
# somewhat less than the GPT, 3 / 5 against 8 / 12. The weights of a layer grow with the square of
# its width, what is sent grows with the width: wide layers pay, narrow ones do not. DDP sends
# gradients instead, whose bytes do not depend on the number of tokens.

# %% [markdown]
# ## Prove it
#
# ### Stripes

# %%
stripes = check.prove("striped", 2, model="striped-lstm", device="cpu")
stripes[0]

# %% [markdown]
# ### ResNet-50
#
# **BatchNorm** takes mean and variance over the samples that it sees (lesson 04b). So it depends on
# how the work is divided:
#
# | divided | a BatchNorm layer sees | the same training as one process? |
# |---|---|---|
# | layers over devices (`mp`) | all samples | yes |
# | replicas (`dp_by_hand`) | a replica's share | with frozen statistics |
# | shards (`fsdp`) | a rank's share | with frozen or synchronised statistics |
#
# **Frozen** is `model.eval()`: the layer uses its running statistics, and the baseline must do so
# too. **Synchronised** takes the sums over all ranks, and stays equal to the baseline as it is.
# Replicas can't do that: each is at another place of the model, in one process. The proof is in
# float64, since BatchNorm magnifies the rounding of sums in another order.

# %%
small_images = {**known_programs.RESNET, **cpu}
proofs = [("stripes", proof) for proof in stripes]
for optimizer in ("sgd", "adamw"):
    own = {**small_images, "optimizer": optimizer}
    base = check.baseline(**known_programs.RESNET, optimizer=optimizer)
    still = launch(known_programs.frozen("cpu"), 1, **own)
    for name, script, ranks, alone in (
        ("ResNet-50, layers", "mp", 1, base),
        ("ResNet-50, replicas, frozen", known_programs.frozen("dp_by_hand"), 1, still),
        ("ResNet-50, shards, synchronised", known_programs.synchronised("fsdp"), 2, base),
    ):
        proofs.append((name, check.same_training(launch(script, ranks, **own), alone)))
sharded.proof_table(proofs)

# %% [markdown]
# ## DeepSpeed as people use it
#
# ### A checkpoint
#
# `engine.save_checkpoint(folder)` has to be called **on all ranks**: each writes the part that it
# holds. (On rank 0 alone it would wait for the others.) Nobody but DeepSpeed reads these files, so
# it comes with a converter, in the folder as the program `zero_to_fp32.py` and in Python as
# `get_fp32_state_dict_from_zero_checkpoint`.

# %%
MLP = {"model": "mlp", **small}
reading.code(known_programs.SAVING["run.finish()"])

# %%
if DEEPSPEED:
    saved = launch(known_programs.saving(), 2, stage=3, **MLP)
    files = sorted((saved.folder / "deepspeed").rglob("*.pt"))
    display(Table([{"file": path.name, "bytes": path.stat().st_size} for path in files]))
    (converted,) = reading.printed(saved)
    claim.equal(
        "known_converted_checkpoint",
        "The state dict that the converter makes of two ranks' parts is the model, bit for bit.",
        converted["apart"] + converted["other names"],
        0,
        kind="count",
    )
else:
    print(missing)

# %% [markdown]
# ### Bucket size, and bf16
#
# `reduce_bucket_size` is what is reduced at once, in numbers. This model has 119,552 of them in 11
# tensors. How many all-reduces are there with buckets of 8,192 numbers?

# %%
if DEEPSPEED:
    reduced = {size: known_programs.reductions(size, **MLP) for size in (2**13, 2**16, 2**20)}
    rows = [
        {"reduce_bucket_size": size, "all-reduces": len(each), "largest, bytes": max(each)}
        for size, each in reduced.items()
    ]
    display(Table(rows, "The gradients of one step of ZeRO-1, two ranks"))
    claim.equal(
        "known_bucket_cuts_no_tensor",
        "With buckets smaller than its matrices, each tensor is an all-reduce of its own.",
        len(reduced[2**13]),
        len(sharded.shapes("mlp")),
        kind="count",
    )

# %% [markdown]
# A bucket is no limit: a larger tensor goes alone, and is not cut. The size says how many small
# tensors share an all-reduce, as with DDP (lesson 04b), which counts MiB instead.

# %%
if DEEPSPEED:
    scripts = {"float32": "zero", "bf16": known_programs.in_bfloat16()}
    runs = {name: launch(script, 2, stage=3, **MLP) for name, script in scripts.items()}
    numbers = sum(torch.Size(shape).numel() for shape in sharded.shapes("mlp")) / 2  # of a rank
    rows = [
        {"": name, **{kind: sharded.held(run)[kind] / numbers for kind in sharded.STATE}}
        for name, run in runs.items()
    ]
    display(Table(rows, "Bytes for each parameter of its part on rank 0, ZeRO-3"))
    display(guess_bf16.score(sharded.state(runs["bf16"]) / numbers))
    claim.equal(
        "known_bf16_is_2_2_12",
        "In bf16 DeepSpeed keeps 2 + 2 + 12 = 16 bytes for each parameter.",
        sharded.state(runs["bf16"]),
        16 * numbers,
        within=0.001,
        kind="memory",
    )

# %% [markdown]
# Half of the bytes is what the name promises, and a fifth is what it saves: the optimizer keeps its
# float32 copy and two averages. 16 bytes is also what plain AdamW in float32 needs. What does
# become half: activations, and what is gathered and reduced. (bf16 runs on CPUs, more slowly.)

# %% [markdown]
# ## Lightning's strategies
#
# A strategy is a name, and behind most names is a script of this course. `make` none of them to
# find out: the table is recorded by `python tools/strategies.py`, since each start imports
# Lightning, 10 to 20 s. What ran followed `_train_ddp.py` step by step; what did not is quoted.

# %%
known_programs.strategies()

# %% [markdown]
# - A Trainer that is started by plain `python` starts its own ranks. *ddp* runs the command line
#   again, so code above the Trainer runs in each rank. *ddp_spawn* imports the file again and needs
#   the `if __name__ == "__main__"`. *ddp_fork* works in a notebook, and not once CUDA is in use.
# - *fsdp* and *deepspeed* ask for GPUs, though both libraries train on CPU ranks: the bare scripts
#   do (lesson 07).
# - *horovod* averaged gradients and multiplied the learning rate by the number of ranks. Write the
#   factor into the rate when you move such a program (lesson 04b proves it).

# %% [markdown]
# ## A rank without a parent
#
# This course's launcher ends its ranks whatever happens. Other starters can be killed, and a rank
# that lost its parent, an **orphan**, goes on: it is adopted by the system's first process. Two
# ranks are started here without the launcher. Each holds memory, a port, and a file in shared
# memory, as NCCL and data loaders do. One tidies up at `TERM`, the other one ignores it.

# %%
with orphan_lab.Orphans() as orphans:
    rows = orphans.look("both run")
    orphans.lose_their_parent()
    rows += orphans.look("parent killed")
    found = orphans.found_by()
    orphans.end(signal.SIGTERM)
    rows += orphans.look("after TERM")
    orphans.end(signal.SIGKILL)
    rows += orphans.look("after KILL")
display(found, Table(rows, "What two orphans hold"))
claim.equal(
    "known_orphans_are_gone",
    "After TERM and KILL no rank and no port is left, and one file of two is.",
    sum(row["process"] == "gone" and row["port"] == "free" for row in rows[-2:]),
    1 + sum(row["file"] == "there" for row in rows[-2:]),
    kind="count",
)

# %% [markdown]
# - **Find.** `ps -eo pid,ppid,args`: parent 1 and your script. `nvitop` lists who holds GPU memory,
#   with owner and command; without a GPU it still lists the host's processes, as here.
#   `ghosts()` knows the scripts of this course.
# - **End.** `TERM` first: it is a request, and the program can remove its files. Wait some seconds.
#   Then `KILL`, which a process does not hear: the kernel takes its memory, its ports and, by the
#   driver, its GPU memory. (Not seen here: no GPU.)
# - **Look.** A file in `/dev/shm` belongs to nobody and takes main memory until it is deleted.

# %% [markdown]
# ## Break it
#
# Three programs that run to their end, and whose loss falls. Which of them is the same training?
# Time cut in two; stripes without the sum of gradients; ResNet-50 in shards as it came.

# %%
partial = "return same.to_local(grad_placements=[Partial()])"
unsummed = variant("striped", "striped_unsummed", {partial: "return same.to_local()"})
sgd = {"optimizer": "sgd"}
lstm_alone = stripes[0].baseline
images_alone = check.baseline(**known_programs.RESNET, **sgd)
broken = {
    "time cut in two": (launch(known_programs.along_time(), 1, **LSTM, **sgd), lstm_alone),
    "no sum of gradients": (launch(unsummed, 2, **LSTM, **sgd), lstm_alone),
    "each rank's own statistics": (launch("fsdp", 2, **small_images, **sgd), images_alone),
}
rows = []
for name, (run, alone) in broken.items():
    failed = check.compare(run, alone).failed
    assert failed, f"the proof did not notice: {name}"
    said = {"loss falls": run.losses[-1] < run.losses[0], "hint": failed[0]["hint"]}
    rows.append({"": name, "wrong": failed[0]["compared"]} | said)
Table(rows, "None of them")

# %% [markdown]
# <details><summary>Which is the hardest to find without a proof?</summary>
#
# The stripes. Time cut in two changes the first loss; each rank's statistics are another training
# that works. Without the sum, the first loss is exact, and the ranks' embeddings drift apart: each
# is trained by its own stripes. Nothing fails, and a checkpoint of rank 0 looks fine.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: the right dimension
#
# Deal out the shares of a batch that has time first. The solution:
# `exercise.solution("batch_dimension")`.

# %%
from bootcamp import exercise


def batch_dimension(sequences, replicas):
    """The shares of (time, batch) data: lists of time steps, each with some neighbouring samples.

    As torch.chunk: the number of samples over replicas, rounded up; the last may be smaller.
    """
    ...


print(exercise.check("batch_dimension", batch_dimension))

# %% [markdown]
# ### Second: the missing exchange
#
# The stripes' script, without what goes in. Write the two lines of `enter`.

# %%
print(exercise.start("stripes"))

# %% [markdown]
# The check trains with your script on two ranks, with both optimizers.
# `exercise.solution("stripes")` shows the solution as a diff.

# %%
print(exercise.check("stripes"))

# %% [markdown]
# ## When to use it and when not
#
# - **Stripes over ranks**: when a recurrent layer is too large for one device; else DDP is simpler.
#   Stripes are another model than an LSTM of the same width: compare what they learn.
# - **DataParallel**: in old code. Look for the dimension, and for tuples.
# - **A framework's strategy**: once you can name the bare script, and have proved one run.
# - **DeepSpeed's checkpoint**: to go on with DeepSpeed. For everybody else, the converted one.
#
# ### What ran where
#
# Every program that this course's sources name, where it runs now, and what proves it:

# %%
known_programs.programs()

# %% [markdown]
# ## Sources
#
# - Kuchaiev and Ginsburg, *Factorization tricks for LSTM networks*, 2017, arXiv:1703.10722: the
#   group LSTM. Here a stripe reads all of a layer's input.
# - He et al., *Deep Residual Learning for Image Recognition*, 2015, arXiv:1512.03385.
# - Rajbhandari et al., *ZeRO*, 2019, arXiv:1910.02054: 2 + 2 + 12 bytes.
# - PyTorch documentation: *torch.nn.DataParallel* (`dim`), *torch.nn.LSTM* (`batch_first`),
#   *torch.distributed.tensor*. DeepSpeed documentation: *Model Checkpointing*, *ZeRO*.
# - Lightning documentation, *Strategy*; release notes of 2.0 (what was removed). nvitop
#   documentation, `nvitop.host`. Linux manual, `signal(7)`, `shm_overview(7)`.
