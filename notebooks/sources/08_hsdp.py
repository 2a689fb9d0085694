# %% [markdown]
# # 08 HSDP: sharded inside a host, replicated between hosts
#
# **62 minutes** for the core, on any machine, after lessons 04, 06c and 07. In the lab the ranks
# are CPU cores, even where there are GPUs.
#
# After this lesson you can make two hosts with a slow link out of one machine; say for DDP, FSDP
# and HSDP how many bytes of a step cross it; explain why the ranking of the three changes with the
# link; lay out a mesh for hybrid sharding; and say which models need more than wrapping.
#
# ## The question
#
# A cluster is made of **hosts**, computers with a few GPUs each. Inside a host the GPUs have a fast
# connection. The network between hosts, the **link**, is slower, often by a lot. (In a rack such as
# NVL72 the GPUs that NVLink joins, an **NVLink domain**, are 72 on 18 hosts. What this lesson says
# of a host holds for the domain.)
#
# DDP (lesson 04) keeps the complete model on every rank. FSDP (lesson 07) keeps a part on each, and
# gathers the parts in every step. Which suits a slow link? Or **HSDP**, hybrid sharded data
# parallelism, which shards inside a host and replicates between hosts?

# %%
from bootcamp import launch, warm_up
from bootcamp_lessons import excerpts, sharding_tables
from bootcamp_lessons.labs import hsdp_lab

warm_up()
lab = hsdp_lab.Lab()
lab

# %% [markdown]
# ## The idea
#
# ### Two hosts out of one machine
#
# For a network, a host is its interfaces, its addresses and its routes. The Linux kernel can keep
# several sets of these, each a **network namespace**. Containers are made of them.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import hsdp as diagrams

plots.show(diagrams.two_hosts("200mbit"))

# %% [markdown]
# Only the paths between ranks differ: ranks of one host talk over the loopback `lo`, ranks of two
# hosts have to go through `eth0`. There a **token bucket** (`tc qdisc ... tbf rate 200mbit`) limits
# what may leave: sending a byte costs a token, and 25 million tokens come in a second.
# `launch(..., hosts=2, link="200mbit")` sets all of this up for one run, as root or in a user
# namespace, and does not touch your own network.

# %%
lab.five_megabytes("200mbit")

# %% [markdown]
# Rank 1 is on the same host, and nothing went over `eth0`. The others were reached through it, in
# the time that the rate allows: 40 million bits at 200 million a second.
#
# ### What crosses the link
#
# Collectives over all ranks run along a **ring** (lesson 04). Wherever the ring leaves a host, all
# that it carries crosses the link. HSDP arranges the ranks as a **mesh**, a table of rows and
# columns.

# %%
plots.show(diagrams.rings())

# %% [markdown]
# - A **row** of the mesh, the axis `shard`, holds one copy of the model together, as FSDP does.
#   Each of its ranks keeps one part.
# - A **column**, the axis `replicate`, has the ranks that hold the *same* part. They average its
#   gradients, as DDP does.
# - If a row is a host, all gathering stays inside. Only gradients cross the link, and each rank
#   sends only those of its own part.
#
# With NCCL, *N* ranks and *H* hosts, a host sends over the link 3*P*(*N*-1)/*N* in a step with FSDP
# (two gathers, one reduction), 2*P*(*N*-1)/*N* with DDP, 2*P*(*H*-1)/*H* with HSDP, for a row as
# long as a host. *P* stands for the bytes of the model. `fp16` is DDP with a hook
# that sends gradients in 16 bits (lesson 04d); `keep` is FSDP that keeps what it has gathered from
# the forward pass to the backward pass. A reduce-scatter sends twice as much with gloo as with NCCL
# (lesson 06c).

# %% tags=["nbval-check-output"]
from bootcamp import Table
from bootcamp.costs import sharding as theory

rows = []
for name in hsdp_lab.THEORY:
    (nccl, nccl_inside), (gloo, inside) = (
        hsdp_lab.sent_bytes(name, factors=factors) for factors in (theory.RING, theory.GLOO)
    )
    row = {"strategy": name, "link (NCCL)": nccl, "link (gloo)": gloo}
    rows.append(row | {"inside (NCCL)": nccl_inside, "inside (gloo)": inside})
Table(rows, "2 hosts of 2 ranks, all in one precision: what a host sends in a step, in P")

# %% [markdown]
# Of the strategies that send full precision, HSDP sends least over the link. Inside the host it
# sends *most*.
#
# ## Predict
#
# The third is about a mistake: the mesh is filled so that a row has ranks of both hosts.

# %%
from IPython.display import display

from bootcamp import predict

guess_factor = predict(
    "hsdp_factor",
    "Without a limit on the link: how many times as long as a step of DDP does one of HSDP take?",
    unit="times",
)
guess_wide = predict(
    "hsdp_wide",
    "7 billion parameters on 16 hosts of 8 GPUs, NCCL. Parameters are gathered in bf16, gradients "
    "reduced in fp32, a step is one micro-batch. How many times the bytes of HSDP does a host send "
    "with FSDP?",
    unit="times",
)
guess_across = predict(
    "hsdp_across",
    "2 hosts of 2 ranks: how many times as many bytes cross the link if HSDP's rows run across "
    "the hosts?",
    unit="times",
)
display(guess_factor, guess_wide, guess_across)

# %% [markdown]
# ## What changes

# %%
from bootcamp import script_diff

script_diff("hsdp")

# %% [markdown]
# One line matters: the mesh has two axes. `init_device_mesh` fills the rows with ranks one after
# another, 0 and 1, then 2 and 3, and launchers number the ranks host by host. So a row that is as
# long as a host *is* a host. `fully_shard` shards over the mesh's second axis and replicates over
# its first.
#
# `--shard` is the length of a row. What are `--shard 1` and `--shard 4`, with four ranks?
#
# <details><summary>Answer</summary>
#
# `--shard 1`: each rank has a copy of its own, and gradients are averaged over all: DDP's work.
# `--shard 4`: one copy, sharded over all ranks: FSDP. HSDP is everything between.
# </details>
#
# `reshard_after_forward=8` (lesson 07) keeps FSDP's second gather inside a host of eight, as ZeRO++
# does (07c). (MiCS, arXiv:2205.00119, is HSDP by another name.)
#
# ## Run it
#
# First the link is **open**, as fast as Linux can copy. Then each host sends at 20 million bits a
# second: the model is tiny, so the link is slow in proportion.

# %%
lab.trial("FSDP")()  # for the table below
slower = lab.claim_faster(
    "hsdp_is_slower_than_ddp_on_an_open_link",
    "With the link open, a step of DDP is faster than one of HSDP.",
    "DDP",
    "HSDP",
    supported="HSDP waits for many small collectives, here of four ranks on few cores.",
)
display(slower)
lab.trial("FSDP", hsdp_lab.LINK)()
lab.claim_faster(
    "hsdp_is_faster_than_ddp_on_a_slow_link",
    "With the slow link, a step of HSDP is faster than one of DDP.",
    "HSDP",
    "DDP",
    hsdp_lab.LINK,
    seconds=30,
    supported="Few of HSDP's bytes cross the link, and on a slow link only those matter.",
    otherwise="HSDP saves a third of the bytes on the link; its collectives inside may eat that.",
)

# %% [markdown]
# ## Read the measurement
#
# ### Bytes: theory and count
#
# Every rank asks Linux, for each of its TCP connections with the other host, how many bytes it has
# written. The sum over a host's ranks is what the theory describes. (FSDP sends a little less than
# 3 P: the head is gathered once.)

# %%
from bootcamp import claim

table = lab.wire()
display(table)
largest = max(table, key=lambda row: abs(row["counted MB"] / row["theory MB"] - 1))
claim.equal(
    "hsdp_bytes_on_the_link",
    "What each strategy sends over the link is what the formula says, open link or slow.",
    1e6 * largest["counted MB"],
    1e6 * largest["theory MB"],
    within=0.02,
    supported="This row is the furthest off. gloo adds a few bytes to each message.",
)

# %% [markdown]
# ### Seconds
#
# On the slow link a step takes about as long as its bytes need, or longer: bytes divided by rate,
# the black mark. (The bucket saves up 128 kB of tokens while nothing is sent. Hatched: ranks share
# cores. The figure is one run of each, the claims above are many.)

# %%
free, slow = lab.by_name(None), lab.by_name(hsdp_lab.LINK)
print(guess_factor.score(free["HSDP"].seconds_per_step / free["DDP"].seconds_per_step))
plots.show(diagrams.step_seconds(free, slow, hsdp_lab.predict_link_seconds(hsdp_lab.LINK)))

# %% [markdown]
# - FSDP's mark is about three times HSDP's, since it gathers every block across the link. Beyond
#   its mark an orange bar has computing, copying, and what is sent inside the host.
# - Blue bars have no mark: with the link open a byte is a copy in this machine's memory, and what
#   counts as much is how many collectives a step waits for, while ranks disturb each other.
#
# ### Memory
#
# DDP with the fp16 hook sends fewer bytes than HSDP. The reason for HSDP is memory: what each rank
# keeps of parameters, gradients and AdamW's two moments.

# %%
kept = {name: sharding_tables.state_bytes(run) for name, run in slow.items()}
assert round(kept["DDP"] / kept["FSDP"], 2) == 4, "FSDP does not divide by all ranks"
claim.equal(
    "hsdp_divides_memory_by_the_host",
    "HSDP divides the state by the ranks of a host, FSDP by all ranks.",
    kept["HSDP"],
    kept["DDP"] / 2,
    within=0.01,
    kind="memory",
)

# %% [markdown]
# ### One all-reduce for several micro-batches
#
# With gradient accumulation (lesson 02b) FSDP gathers and reduce-scatters for every micro-batch,
# across the link. HSDP does that inside the host, and its all-reduce over the link can wait for the
# last one: `set_requires_all_reduce(False)` until then.

# %%
from bootcamp import variant

WHOLE = "loss = models.loss(model(inputs), targets)"
PARTS = """loss = 0
for part in range(4):
    model.set_requires_all_reduce(part == 3)
    mine = models.loss(model(inputs.chunk(4)[part]), targets.chunk(4)[part]) / 4
    mine.backward()
    loss += mine.detach()"""
accumulating = variant("hsdp", "hsdp_accumulating", {WHOLE: PARTS, "loss.backward()": ""})
once = lab.train("accumulating", accumulating, shard=2)
assert abs(once.losses[-1] - slow["HSDP"].losses[-1]) < 1e-5, "another training"
claim.equal(
    "hsdp_accumulates_inside_the_host",
    "Four micro-batches send as much over the link as one.",
    hsdp_lab.crossing_bytes(once),
    hsdp_lab.MODEL_BYTES,
    within=0.02,
)

# %% [markdown]
# ### In a real cluster
#
# Precision is mixed there. FSDP2's `MixedPrecisionPolicy(param_dtype=torch.bfloat16,
# reduce_dtype=torch.float32)` gathers 2 bytes for each parameter, twice, and reduces 4; DDP
# all-reduces 4, which a ring sends twice.

# %%
from bootcamp.costs import published

CLUSTER = {"model_bytes": 2 * 7e9, "ranks": 128, "hosts": 16, "shard": 8}
CASES = {
    "gradients in bf16": {"number": 1},
    "gradients in fp32": {"number": 2},
    "in fp32, 4 micro-batches": {"number": 2, "micro_batches": 4},
}
rows = []
for name in hsdp_lab.SCRIPTS:
    sent = {case: hsdp_lab.sent_bytes(name, **CLUSTER, **how)[0] for case, how in CASES.items()}
    rows.append({"": name} | {case: nbytes / 1e9 for case, nbytes in sent.items()})
_, fsdp, hsdp = (row["gradients in fp32"] for row in rows)
print(guess_wide.score(fsdp / hsdp, within=0.1, how="By formula"))
(was,) = published.table("fsdp_7b")
step = int(was["batch_per_gpu"]) * int(was["seq_len"]) / float(was["tok_s_gpu"])
print(f"{was['model']}, {was['gpus']} {was['gpu']}, {was['network']}: {step:.1f} s a step")
for link in (row for row in published.table("network") if "IBM" in row["note"]):
    rate = int(link["gpus_per_host"]) * float(link["gb_s_per_gpu"])
    print(f"{fsdp / rate:.2f} s: {fsdp:.1f} GB over {link['link']} ({link['note']})")
Table(rows, "7 billion parameters, 16 hosts of 8 GPUs, NCCL: GB that a host sends in a step")

# %% [markdown]
# With gradients in fp32 saving bytes is no reason for HSDP. What remains:
#
# - **Accumulation**: FSDP pays for every micro-batch, HSDP once, as DDP does with
#   `no_sync`. (FSDP can keep gradients and parameters gathered between micro-batches, if
#   memory allows.)
# - **Latency.** A flat ring of 128 ranks passes each piece on 127 times for every gather, one of
#   eight 7 times, inside the host. (NCCL has trees for all-reduces; PAT, for gathers, wants one
#   rank in a host.)
# - **When** the bytes are needed. A gather holds up the block that waits for it; an all-reduce of
#   gradients can run behind the rest of the backward pass.
#
# Does it matter? The step and both networks are IBM's, with A100s. On the slower one FSDP's bytes
# alone take longer than the step. On the other they must hide behind the computation.
#
# ## Prove it

# %%
from bootcamp import check

for shard in (1, 2, 4):
    proofs = check.prove("hsdp", 4, shard=shard, model="mlp")
    run, baseline = proofs[0].run, proofs[0].baseline
    share = run.ranks[0]["parameter_bytes"] / baseline.ranks[0]["parameter_bytes"]
    print(f"--shard {shard}: the same training; a rank holds {share:.0%} of the parameters")
proofs[-1]

# %% [markdown]
# ## Tensor parallelism inside the domain, FSDP across
#
# Tensor parallelism (lesson 06c) splits the matrices and exchanges activations four times in every
# block. FSDP gathers parameters. Large models use both: each rank is in two groups.

# %%
from bootcamp_lessons.diagrams import tensor_parallel

plots.show(tensor_parallel.mesh())

# %% [markdown]
# Along `tensor` the ranks of a host split matrices, and train the *same* samples. Along `data` they
# are FSDP2: each keeps a shard of its part of the parameters.
# Open the proof: there are two "shares of the batch" for four ranks.

# %%
display(script_diff("fsdp_tp"))
proofs = check.prove("fsdp_tp", 4, mesh="2x2")
proofs[-1]

# %% [markdown]
# ### Which bytes on which link
#
# Why is a row of this mesh a host? What a rank sends in a step along each axis, for this course's
# `large` and for GPT-3's published shape (Brown et al., 2020): two bytes a number, eight samples
# for each row, eight rows.

# %% tags=["nbval-check-output"]
from bootcamp.costs import model_shapes

GPT3 = {"layers": 96, "width": 12288, "context": 2048}
rows = []
for name, shape, tensor in (("large", model_shapes.GPT["large"], 4), ("GPT-3", GPT3, 8)):
    layers, each = shape["layers"], 2 * 8 * shape["context"] * shape["width"]  # bytes of s b h
    along_tensor = 4 * layers * 2 * (tensor - 1) / tensor * each
    along_data = 3 * 7 / 8 * 2 * 12 * layers * shape["width"] ** 2 / tensor
    row = {"model": name, "tensor ranks": tensor, "GB along tensor": along_tensor / 1e9}
    row |= {"GB along data": along_data / 1e9, "tensor / data": along_tensor / along_data}
    rows.append(row | {"all-reduces in a step": 4 * layers, "MB each": each / 1e6})
Table(rows, "Sent by one rank in one step, by formula, blocks only")

# %% [markdown]
# More important than how much is *when*: each all-reduce is in the middle of the computation, and
# what follows needs its result. FSDP gathers the next block's parameters while this one is
# computed. So the tensor axis gets the fastest link, and the data axis may cross the network.
# Lesson 08d computes when a link decides.
#
# ## Gathered in eight bits (optional)
#
# FP8 (lesson 02b) has half of bf16's bytes. FSDP2 asks each parameter for two methods: what is to
# travel, and what comes of it. Here each row of the blocks' matrices gets a scale, and travels as
# bytes, since gloo refuses FP8 ("Invalid scalar type"). Gradients stay in float32.

# %%
from functools import partial

from bootcamp_lessons import one_device

guess_eight = predict(
    "hsdp_fp8_bytes",
    "Seven eighths of all numbers are gathered in 8 bits in place of 32. How many times as many "
    "bytes does a step gather in float32?",
    unit="times",
)
guess_after = predict(
    "hsdp_fp8_after",
    "Another program (the last two changes) gathers float32, and rounds in the same way after the "
    "gather. How far are its losses from FP8's at most?",
)
display(guess_eight, guess_after, script_diff("fsdp_fp8"))
later = {
    "return to_fp8(self), None": "return (self + 0,), None",
    "rows, scales = gathered": "rows, scales = to_fp8(*gathered)",
}
rounded_later = variant("fsdp_fp8", "fsdp_fp8_later", later)

# %%
same = {"device": "cpu", "optimizer": "adamw", "quiet": True, **check.settings(4)}
bf16 = {"gather_dtype": "bfloat16", "reduce_dtype": "float32", "micro_batches": 1, "clip": 1e9}
few, counting = same | {"steps": 3}, sharding_tables.make_counting_script
runs = {
    "float32": launch(counting("fsdp"), 2, **few),
    "bf16": launch(counting("fsdp_in_practice"), 2, **few, **bf16),
    "FP8": launch(counting("fsdp_fp8"), 2, **few),
    "FP8 after the gather": launch(counting(rounded_later, {}, "later_counted"), 2, **few),
}
gathered, columns = {}, {"MB in a step": lambda run: gathered[run] / 1e6}
for run in runs.values():
    gathered[run] = 4 * sharding_tables.communication_volume(run, 1)["all-gather"]
for name in ("float32", "FP8"):
    columns[f"loss off {name}"] = partial(one_device.furthest, baseline=runs[name])
table = Table.of(runs, columns, "FSDP on two ranks: full size of what is gathered")
print(guess_eight.score(gathered[runs["float32"]] / gathered[runs["FP8"]], within=0.1))
print(guess_after.score(table[3]["loss off FP8"], within=0))
table

# %% [markdown]
# FP8 looks more exact than bf16. But here it only travels, and float32 computes. `param_dtype` also
# computes in bf16, and rounds the loss itself, near 5 to multiples of 1/32.
#
# Only bytes tell the last program from FP8: rounded *after* the gather, the training is the same in
# every digit. torchao's `Float8Linear` does so without `enable_fsdp_float8_all_gather=True`.
# **Where a flag promises fewer bytes, count them.** And compare with one process that rounds alike
# (in float64, since float32's rounding decides near the middle of two numbers):

# %%
for optimizer in ("sgd", "adamw"):
    both = same | {"optimizer": optimizer, "dtype": "float64"}
    alone = launch(excerpts.SNIPPETS / "fp8_alone.py", 1, **both)
    print(check.same_training(launch("fsdp_fp8", 4, **both), alone))
blocks = model_shapes.layers("gpt", "tiny")[1:-1]
matrices = [shape for block in blocks for shape in block.shapes if len(shape) == 2]
claim.equal(
    "hsdp_fp8_gathers_the_formula",
    "Twice in a step, each number of a matrix saves 3 bytes, and each row has a scale of 4.",
    gathered[runs["FP8"]],
    gathered[runs["float32"]] - 2 * sum(3 * tall * wide - 4 * tall for tall, wide in matrices),
    within=0.01,
    kind="count",
)

# %% [markdown]
# A scale for a whole matrix would take an all-reduce, or depend on the ranks.
#
# ## Break it
#
# ### First: rows across hosts
#
# Fill the mesh column by column: its rows are then ranks 0 and 2, and ranks 1 and 3. What goes
# wrong: the losses, the memory, something else?

# %%
MESH = 'mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))'
TURNED = """ranks = torch.arange(world).view(args.shard, -1).T
mesh = DeviceMesh(device.type, ranks, mesh_dim_names=("replicate", "shard"))"""
imported = "from torch.distributed.device_mesh import "
changes = {MESH: TURNED, f"{imported}init_device_mesh": f"{imported}DeviceMesh"}
print_hosts = """
names = [None] * world
dist.all_gather_object(names, socket.gethostname())
if rank == 0:
    print([[names[each] for each in row] for row in mesh.mesh.tolist()])"""
changes[MESH] += print_hosts
changes["import torch"] = "import socket\n\nimport torch"
across = lab.train("rows-across", variant("hsdp", "hsdp_rows_across", changes), shard=2)
right = free["HSDP"]
assert abs(across.losses[-1] - right.losses[-1]) < 1e-5, "another training"
assert across.ranks[0]["parameter_bytes"] == right.ranks[0]["parameter_bytes"], "other shares"
assert hsdp_lab.crossing_bytes(across) > hsdp_lab.crossing_bytes(free["FSDP"]), "less than FSDP"
print(guess_across.score(hsdp_lab.crossing_bytes(across) / hsdp_lab.crossing_bytes(right)))
print("the mesh by host:", across.output(0).split("\n")[0] if lab.ready else "not recorded")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the bytes: there are more than FSDP's. No proof finds this. All gathering goes over the link
# now, and only the averaging of parts stays inside the host. On real clusters this happens when
# ranks are not numbered host by host, or when a row is longer than a host. When hybrid sharding is
# slow, print the mesh by host, as here: each row of it should name one host.
# </details>
#
# ### Second: layers that depend on each other
#
# Sharding takes a model apart, layer by layer. In these three a layer does not stand alone: one
# calls a layer twice; one is **tied**, the head uses the embedding's matrix; one has two branches,
# for low words and for high ones, and each rank gets words of one kind.

# %%
dependent = excerpts.SNIPPETS / "layer_dependencies.py"
display(excerpts.piece(dependent, "class UsedTwice", "class Unused"))
guess_cases = predict(
    "hsdp_dependent_layers",
    "Three models, each under DDP, FSDP2 and HSDP, where every layer is a unit. In how many of the "
    "nine cases do four ranks train what one process trains?",
    unit="cases",
)
guess_cases

# %%
found = excerpts.parse_printed(launch(dependent, 4, device="cpu", quiet=True))
table = sharding_tables.compare_dependencies(found)
nine = [row[way] for row in table[:3] for way in ("DDP", "FSDP2", "HSDP")]
print(guess_cases.score(nine.count("equal"), within=0))
said = {". ".join(case["error"].split(". ")[:2]): case for case in found[::-1] if case["error"]}
print(*(f"{case['strategy']}: {words}" for words, case in said.items()), sep="\n")
display(table, excerpts.piece(dependent, "def wrap", "def give_memory"))

# %% [markdown]
# - **Used twice:** the layer is gathered for each call, and its gradients add up.
# - **Tied:** two units cannot share a matrix, one unit of both layers can.
# - **Branches:** DDP notices that gradients are missing. FSDP2 does not. While two ranks gather
#   `low`, the others gather `high`; the sizes fit, so all get half of one and half of the other.
#   With HSDP gradients alone are mixed, between the rows. As one unit both branches are gathered by
#   all, and `set_reduce_scatter_unused_params` sends zeros for one that a rank did not use.
# - **Zeros are not nothing:** a branch that no rank uses gets zeros then, and AdamW's weight decay
#   shrinks it. With SGD, or DDP, the training is equal.
# - **On `meta`**, `to_empty` makes a parameter for each *name*. The tie is gone, whatever wraps the
#   model then, and loading both names from a checkpoint does not restore it. Tie again, then wrap.
#
# The last message is DDP's when it is wrapped around HSDP. It begins by sending rank 0's parameters
# to all; with parts, half of the model would be gone. Hybrid sharding averages over the replicas
# **by itself**. (And if you pass no mesh, `fully_shard` shards over all ranks: FSDP, and no error.)
#
# ## Exercises
#
# ### First: who is in my row?
#
# `row_and_column(rank, ranks, shard)` returns two lists: the ranks of this rank's row, with which
# it holds one copy of the model, and those of its column, with which it averages gradients. A row
# has `shard` ranks, and rows are filled one after another. Both lists have the rank itself.

# %%
from bootcamp import exercise


def row_and_column(rank, ranks, shard):
    # your turn: return two lists of ranks, each in order
    ...


print(exercise.check("row_and_column", row_and_column))

# %% [markdown]
# `exercise.solution("row_and_column")` shows a solution.
#
# ### Second: the mesh
#
# Your starting point is the HSDP script without its mesh. Edit the file and save it.

# %%
print(exercise.start("two_axes"))

# %% [markdown]
# The check proves your training, looks at what a rank holds with rows of one, two and four, and, if
# hosts can be made here, counts what crosses the link. `exercise.solution("two_axes")` shows the
# solution as a diff.

# %%
print(exercise.check("two_axes"))

# %% [markdown]
# ### Third: how long should a row be?
#
# For pencil and paper. A model of 13 billion parameters is trained with AdamW in mixed precision,
# which takes 16 bytes for each parameter (lesson 07). There are 16 hosts with 8 GPUs of 80 GB. Half
# of a GPU's memory should be left for activations.

# %%
guess_row = predict(
    "hsdp_row",
    "What is the shortest row (it divides 128) with which the model's state fits in 40 GB?",
    unit="ranks",
)
guess_row

# %%
large = {"model_bytes": 2 * 13e9, "ranks": 128, "hosts": 16, "number": 2}
rows = []
for shard in (1, 2, 4, 8, 16, 32, 64, 128):
    gigabytes = sum(theory.rank_bytes(13e9, shard, stage=3).values()) / 1e9
    row = {"ranks in a row": shard, "GB on a rank": gigabytes}
    row["fits"] = "yes" if gigabytes <= 40 else "no"
    crosses = hsdp_lab.sent_bytes("HSDP", **large, shard=shard)[0] / 1e9
    rows.append(row | {"GB on a host's link": crosses})
shortest = next(row["ranks in a row"] for row in rows if row["fits"] == "yes")
print(guess_row.score(shortest, how="By formula"))
Table(rows, "13 billion parameters, 128 GPUs on 16 hosts, gradients reduced in fp32")

# %% [markdown]
# Up to eight, the bytes on the link hardly change. A row of two hosts sends most of all: the
# gathering crosses the link, *and* the averaging. With 128 there is one copy: FSDP. So take an
# NVLink domain as a row. If the model needs more, compare with FSDP before you take two.
#
# ## When to use it and when not
#
# **Use HSDP** when
# - the model states fit into the GPUs of one host together, but not on one GPU, and there are
#   several hosts; **and**
# - FSDP's gathering does not hide behind computing: the link is slow, the ranks are many, the batch
#   per GPU is small or accumulated.
#
# **Use DDP** when the model states fit on one GPU, **FSDP** when memory is what you lack, or when
# its traffic hides behind computing anyway. **Add tensor parallelism** inside the domain when one
# block with its activations is too large, or when more data-parallel ranks would make the batch
# larger than useful.
#
# **Before you run** divide the bytes on your link by its rate.
#
# ## Sources
#
# - Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, 2023,
#   arXiv:2304.11277. Hybrid sharding (section 3.2.2) and its traffic between hosts.
# - Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
#   2019, arXiv:1910.02054. 16 bytes a parameter.
# - Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
#   Journal of Parallel and Distributed Computing 69, 2009. Bytes of a ring.
# - Narayanan et al., arXiv:2104.04473. Tensor parallelism inside a host. Brown et al.,
#   arXiv:2005.14165. GPT-3's shape.
# - PyTorch documentation: *torch.distributed.fsdp.fully_shard*, *DeviceMesh*,
#   *torch.distributed.tensor.parallel*; PyTorch blog, *Maximizing training throughput using PyTorch
#   FSDP*, 13 March 2024.
# - Linux manual pages: network_namespaces(7), user_namespaces(7), veth(4), tc-tbf(8), tcp(7).
