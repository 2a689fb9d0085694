# %% [markdown]
# # 08 HSDP: sharded inside a host, copied between hosts
#
# **75 minutes**, on any machine, after lessons 04 and 07. In the lab the ranks are CPU cores, even
# where there are GPUs.
#
# After this lesson you can make two hosts with a slow link out of one machine; say for DDP, FSDP
# and HSDP how many bytes of a step cross that link, and check it against the kernel's counters;
# explain why the ranking of the three changes with the link; lay out a mesh for hybrid sharding,
# prove that it trains the same model, and see that its rows stand where they should; and recognise
# three ways of getting it wrong that raise no clear error, or none.

# %% [markdown]
# ## The question
#
# A cluster is made of **hosts**, computers with a few GPUs each. Inside a host the GPUs have a fast
# connection. Between hosts there is a network, the **link**, and it is slower, often by a lot.
#
# DDP (lesson 04) keeps the whole model on every rank. FSDP (lesson 07) keeps a part on each, and
# has to gather the parts in every step. Which of them suits a slow link? Or a third: **HSDP**,
# hybrid sharded data parallelism, which shards inside a host and copies between hosts?
#
# To try it one needs two hosts. The next cell starts to load PyTorch in the background, and asks
# whether this machine can pretend to be two.

# %%
from bootcamp import launch, recorded, warm_up

warm_up()
lab = recorded.Experiments("hosts", "08_hsdp")
lab

# %% [markdown]
# If it can't, each run of the lab is replaced by a recorded one, and says so. Everything else in
# this lesson works without hosts.

# %% [markdown]
# ## The idea
#
# ### Two hosts out of one machine
#
# What makes a computer a host of its own, as far as a network is concerned? Its interfaces, its
# addresses, its routes. The Linux kernel can keep several sets of these. Each set is a **network
# namespace**. A process belongs to one namespace and sees only the interfaces in it. Containers are
# made of such namespaces. The next cell draws what this course makes of them.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import hsdp as diagrams

LINK = "200mbit"
plots.show(diagrams.two_hosts(LINK))

# %% [markdown]
# The ranks share this machine's cores and memory, as always. Only their ways to each other differ:
# ranks of one host meet over the loopback `lo`, ranks of two hosts have to go through `eth0`.
#
# `launch(..., hosts=2, link="200mbit")` does it, for one run. It needs the commands `ip` and `tc`,
# and these few of their lines (`src/bootcamp/launcher/simulated_hosts.py`):
#
# - `ip link add switch type bridge`: a switch, in software.
# - `ip link add port0 type veth peer name eth0 ...`: a cable with two ends. `port0` is plugged into
#   the switch, `eth0` is in the host.
# - `ip addr add 10.77.0.1/24 dev eth0`: the address of the host. Nobody outside can reach it.
# - `tc qdisc add dev eth0 root tbf rate 200mbit ...`: a filter at the exit, a **token bucket**. To
#   send a byte costs a token, and tokens come at 200 million bits a second. Who has none waits.
#
# Root may do this. Anybody else may where the system allows **user namespaces**, in which one is
# root over nothing but what was made inside. Nothing of all this has a name in the file system, and
# your own network is left alone. When the last process inside has ended, the kernel takes the
# namespaces away, whatever ended the run.
#
# First a prediction. Eight bits are a byte.

# %%
from bootcamp import predict

guess_ms = predict(
    "hsdp_ms",
    f"How long do 5 MB take over a link of {LINK}, in milliseconds?",
    unit="ms",
    answer=None,
)
guess_ms

# %% [markdown]
# The next cell starts four ranks on two hosts. Rank 0 sends 5 MB to each other rank, and notes the
# time, and by how much the kernel's counters of `lo` and `eth0` have grown.

# %%
import json

from bootcamp import Table
from bootcamp.paths import SRC

SNIPPETS = SRC / "snippets"
quiet = {"device": "cpu", "quiet": True}
two = lab.launch("two-hosts", SNIPPETS / "two_hosts.py", 4, hosts=2, link=LINK, **quiet)
rows = []
for line in [json.loads(line) for line in two.output(0).splitlines() if line.startswith("{")]:
    row = {"from rank 0 to": line["to rank"], "on": line["to host"], "ms": line["seconds"] * 1e3}
    rows.append(row | {f"MB over {name}": line["sent"][name] / 1e6 for name in ("lo", "eth0")})
assert all((row["MB over eth0"] > 5) == (row["on"] == "host1") for row in rows), "the wrong way"
Table(rows, "5 MB each, counted by the kernel of host0")

# %% [markdown]
# Rank 1 is on the same host, and nothing went over `eth0`. The others were reached through `eth0`,
# and it counts a little more than 5 MB: each packet has headers. The next cell scores your
# prediction.

# %%
guess_ms.score(rows[-1]["ms"])

# %% [markdown]
# ### What crosses the link
#
# Collectives over all ranks run along a **ring** (lesson 04). Wherever the ring leaves a host, all
# that it carries crosses the link. The next cell draws the ring of four ranks on two hosts, and
# beside it the **mesh** of HSDP, a table of ranks with rows and columns.

# %%
plots.show(diagrams.rings())

# %% [markdown]
# - A **row** of the mesh, the axis `shard`, holds one copy of the model together, as FSDP does.
#   Each of its ranks keeps one part.
# - A **column**, the axis `replicate`, are the ranks that hold the *same* part. They average its
#   gradients, as DDP does.
# - If a row is a host, all gathering stays inside. Only gradients cross the link, and each rank
#   sends only those of its own part.
#
# The next cell computes the bytes of a host by formula, with the number of parts and of collectives
# in a step. *P* stands for the bytes of the model. `fp16` is DDP with a hook that sends gradients
# in 16 bits (lesson 04b); `keep` is FSDP that keeps what it has gathered in the forward until the
# backward (lesson 07).

# %%
from bootcamp.theory import sharding as theory

HOW = {
    "DDP": {"strategy": "ddp"},
    "DDP fp16": {"strategy": "ddp", "number": 0.5},
    "FSDP": {"strategy": "fsdp"},
    "FSDP keep": {"strategy": "fsdp", "keep_gathered": True},
    "HSDP": {"strategy": "hsdp", "shard": 2},
}

# %% [markdown]
# The next cell adds up a strategy's collectives, once for the ring's edges that leave a host, once
# for all edges.


# %%
def sends(name, model=1.0, ranks=4, hosts=2, factors=theory.RING, shard=None):
    """Bytes in a step: what a host sends over its link, and what its ranks send inside it."""
    how = HOW[name] | ({"shard": shard} if name == "HSDP" and shard else {})
    given = (theory.collectives(**how), model, ranks)
    link = theory.link_bytes(*given, hosts, how.get("shard"), factors)
    everything = ranks // hosts * theory.sent_bytes(*given, how.get("shard"), factors)
    return link, everything - link


# %% [markdown]
# There is one more thing to know. A ring **reduce-scatter** sends (*n*-1)/*n* of a tensor. That is
# how NCCL, which connects GPUs, does it. **gloo**, which connects CPU ranks, reduces the whole
# tensor and throws away what is not needed: twice the bytes. The next cell has both.

# %% tags=["nbval-check-output"]
rows = []
for name in HOW:
    (nccl_link, nccl_inside), (link, inside) = sends(name), sends(name, factors=theory.GLOO)
    row = {"": name, "link (NCCL)": nccl_link, "link (gloo)": link}
    rows.append(row | {"inside (NCCL)": nccl_inside, "inside (gloo)": inside})
Table(rows, "2 hosts of 2 ranks: what a host sends in a step, in P")

# %% [markdown]
# Read the columns apart. Over the link HSDP sends least of those that send full numbers. Inside the
# host it sends *most*. So which is faster should depend on what a byte on the link costs, compared
# with a byte inside. Keep this table in mind.

# %% [markdown]
# ## Predict
#
# The lab trains the small MLP, on two hosts of two ranks each. The next cell computes its bytes.

# %%
from argparse import Namespace

from bootcamp.train import models

setting = {"model": "mlp", "size": "small", "global_batch": 16}
built = models.build(Namespace(**setting, seed=0, dtype="float32"))
P = sum(4 * parameter.numel() for parameter in built.parameters())
guess_mb = predict(
    "hsdp_mb",
    f"The model has {P / 1e6:.1f} MB. With FSDP and gloo, how many MB does a host send the other "
    "in a step?",
    unit="MB",
    answer=None,
)
guess_mb

# %% [markdown]
# The second: how long does one step of it take at least, if nothing counts but the link?

# %%
guess_seconds = predict(
    "hsdp_seconds", f"FSDP, link {LINK}: how many seconds does a step take?", unit="s", answer=None
)
guess_seconds

# %% [markdown]
# The third is about the ranking: HSDP against FSDP, with the slow link.

# %%
guess_factor = predict(
    "hsdp_factor",
    f"Link {LINK}: how many times as long as a step of HSDP does one of FSDP take?",
    unit="times",
    answer=None,
)
guess_factor

# %% [markdown]
# ## What changes
#
# The next cell shows what makes the FSDP script an HSDP script.

# %%
from bootcamp import script_diff

script_diff("hsdp")

# %% [markdown]
# One line: the mesh has two axes. `init_device_mesh` fills the rows with ranks one after another,
# 0 and 1, then 2 and 3, and launchers number the ranks host by host. So a row that is as long as a
# host *is* a host. `fully_shard` shards over the mesh's second axis and copies over its first. (The
# names do not decide that. They are for readers, and for taking out one axis:
# `mesh["replicate"]`.)
#
# `--shard` is the length of a row. Left out, it is the number of ranks of a host. What are
# `--shard 1` and `--shard 4`, with four ranks?
#
# <details><summary>Answer</summary>
#
# `--shard 1`: each rank has a copy of its own, and gradients are averaged over all: that is DDP's
# work. `--shard 4`: one copy, sharded over all ranks: FSDP. HSDP is everything between.
# </details>

# %% [markdown]
# ## Run it
#
# The next cell runs the five strategies with the link **open**: as fast as the kernel can.

# %%
SCRIPTS = {
    "DDP": ("ddp", {}),
    "DDP fp16": ("ddp_options", {"hook": "fp16"}),
    "FSDP": ("fsdp", {}),
    "FSDP keep": ("fsdp", {"keep_gathered": True}),
    "HSDP": ("hsdp", {"shard": 2}),
}


def train(link, steps):
    """The five runs over this link."""
    how = {"hosts": 2, "link": link, "steps": steps, "quiet": True, **setting}
    word = "slow" if link else "open"
    return {
        name: lab.launch(f"{name.lower().replace(' ', '-')}-{word}", script, 4, **flags, **how)
        for name, (script, flags) in SCRIPTS.items()
    }


free = train(None, steps=5)

# %% [markdown]
# The next cell runs them again, each host now sending at 200 million bits a second at most. This
# takes most of a minute. The first steps, in which buffers are made and connections find their
# speed, are not counted.

# %%
slow = train(LINK, steps=6)

# %% [markdown]
# ## Read the measurement
#
# ### Bytes: theory and count
#
# Every rank asks the kernel, for each of its TCP connections that lead to the other host, how many
# bytes it has written. The sum over a host's ranks is what the theory speaks of. Beside it is the
# counter of `eth0`, which counts packets, headers and acknowledgements included. The next cell
# compares all ten runs.

# %%
rows = []
for runs in (free, slow):
    for name, run in runs.items():
        link, _ = sends(name, P, factors=theory.GLOO)
        counted = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in run.ranks[:2])
        eth0 = run.ranks[0]["host_sent_bytes_per_step"]
        row = {"link": run.config["link"], "": name, "theory MB": link / 1e6}
        row |= {"counted MB": counted / 1e6, "off %": 100 * (counted / link - 1)}
        rows.append(row | {"eth0 MB": eth0 / 1e6, "eth0 off %": 100 * (eth0 / link - 1)})
        assert abs(counted / link - 1) < 0.01, f"{run.label} sends something else"
        # its headers weigh more when a busy machine sends small packets
        assert abs(eth0 / link - 1) < 0.04, f"{run.label}: eth0 counts something else"
Table(rows, "Sent by host0 to host1 in a step")

# %% [markdown]
# Within one percent, in all runs, and the same whether the link is fast or slow. A link's speed
# does not change what is sent. (`eth0` counts a little more: headers and confirmations.) The next
# cell scores your first prediction.

# %%
guess_mb.score(next(row["counted MB"] for row in rows if row[""] == "FSDP"))

# %% [markdown]
# ### Seconds
#
# How long must a step take on the slow link? At least as long as its bytes need, which is bytes
# divided by rate. The next cell computes that, and draws it as a black mark into the bars of what
# was measured.

# %%
RATE = float(LINK.removesuffix("mbit")) * 1e6 / 8  # bytes per second
formula = {name: sends(name, P, factors=theory.GLOO)[0] / RATE for name in SCRIPTS}
plots.show(diagrams.ranking(free, slow, formula))

# %% [markdown]
# Look at three things.
#
# - Orange bars follow the black marks: on the slow link the bytes that cross it decide. FSDP is
#   last, HSDP is ahead of DDP, and the fp16 hook, which sends the fewest bytes, needs least time.
#   (If neighbours have changed places, something else keeps this machine busy: run the cell
#   again.)
# - What an orange bar has beyond its mark is the rest: computing, copying, and what is sent inside
#   the host.
# - Blue bars: there is no black mark to explain them. With the link open a byte costs the same on
#   either way, a copy in this machine's memory. (The differences are small, and four ranks on few
#   cores disturb each other. Your order may differ from that of another run.)
#
# The next cell puts beside the seconds what could explain them: for the open link *all* the bytes
# that a host's ranks send, for the slow link those that cross it.

# %%
rows = []
for name in SCRIPTS:
    link, inside = sends(name, P, factors=theory.GLOO)
    row = {"": name, "MB link and inside": (link + inside) / 1e6}
    row |= {"s, open": free[name].seconds_per_step, "MB link": link / 1e6}
    rows.append(row | {"s by formula": formula[name], "s, slow": slow[name].seconds_per_step})
Table(rows, f"A step with the link open, and at {LINK}")

# %% [markdown]
# That is the flip. HSDP sends far more than DDP in all, and has more collectives to wait for, since
# it gathers every block. Open, nothing repays that. On the slow link it is repaid: of all these
# bytes few cross. And FSDP pays twice: it gathers every block, *and* across the link.
#
# The next cell scores your other predictions.

# %%
print(guess_seconds.score(slow["FSDP"].seconds_per_step))
print(guess_factor.score(slow["FSDP"].seconds_per_step / slow["HSDP"].seconds_per_step))

# %% [markdown]
# Is HSDP then there to save bytes? Look again: DDP with the fp16 hook sends fewer. The reason for
# HSDP is memory. The next cell shows what each rank keeps of parameters, gradients and AdamW's two
# averages, counted from live storages.

# %%
KINDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
rows = []
for name in ("DDP", "HSDP", "FSDP"):
    rank = slow[name].ranks[0]
    kept = sum(rank[kind] for kind in KINDS)
    rows.append({"": name, "MB on a rank": kept / 1e6, "share of DDP's": kept})
for row in rows:
    row["share of DDP's"] /= rows[0]["MB on a rank"] * 1e6
assert [round(row["share of DDP's"], 2) for row in rows] == [1, 0.5, 0.25], "not the shares"
Table(rows, "Parameters, gradients, optimizer state")

# %% [markdown]
# So HSDP stands between the two. It divides memory by the ranks of a *host*, FSDP by *all* ranks;
# and it spares the link what FSDP sends over it.

# %% [markdown]
# ### In a real cluster
#
# NCCL's bytes, fast networks, eight GPUs in a host: does it still matter? The next cell takes a
# model of 7 billion parameters in 16 bits on 16 hosts, and divides the bytes that a host sends by
# the published rate of its links. (`src/bootcamp/theory/published/network.csv` names the sources.)

# %% tags=["nbval-check-output"]
from bootcamp.theory.published import table as published_table

links = published_table("network")
big = {"model": 2 * 7e9, "ranks": 128, "hosts": 16, "shard": 8}
rows = []
for each in [link for link in links if "NVLink" not in link["link"]]:
    rate = int(each["gpus_per_host"]) * float(each["gb_s_per_gpu"]) * 1e9
    row = {"network": each["link"], "of": each["note"]}
    rows.append(row | {f"{name} s": sends(name, **big)[0] / rate for name in ("FSDP", "HSDP")})
Table(rows, "7 billion parameters, 128 GPUs: a step's bytes on the link / rate")

# %% [markdown]
# (A host's links together carry what its GPUs send. NCCL uses all of them at once, by several
# rings.)
#
# A step is not over when the link is done, nor need it wait for the link: FSDP gathers the next
# block while one is computed. What does not fit behind the computing costs time. The next cell
# takes the published speed of such a training, and asks how long one step of it was.

# %% tags=["nbval-check-output"]
(was,) = published_table("fsdp_7b")
step_seconds = int(was["batch_per_gpu"]) * int(was["seq_len"]) / float(was["tok_s_gpu"])
nvlink = float(links[0]["gb_s_per_gpu"]) * 1e9
inside = sends("HSDP", **big)[1] / 8 / nvlink
print(
    f"{was['model']} on {was['gpus']} {was['gpu']}, {was['network']}: {step_seconds:.1f} s a step"
)
print(f"HSDP inside the host, over {links[0]['link']}: {inside:.2f} s")
print(f"Sources: {was['source']}; {links[0]['source']}")

# %% [markdown]
# Compare with the table. With 400 Gbit/s for each GPU either is a small part of such a step, and
# hides behind it. With 400 Gbit/s for each *host* FSDP's link is busy for more than a third of the
# step, HSDP's for about a quarter. With 120 Gbit/s FSDP's link alone needs longer than the step
# was; HSDP's still fits. Inside the host, HSDP's gathering costs little.
#
# Two things that bytes do not show. A ring of 128 ranks passes each piece on 127 times, one after
# another, for every collective; a row of eight has 7 such steps, a column of 16 has 15 or, for the
# all-reduce, 30. And a smaller batch makes the step shorter, but not its bytes: then all of this
# counts more.

# %% [markdown]
# ## Prove it
#
# The next cell holds HSDP against the CPU baseline, for each length of a row that four ranks allow,
# with two optimizers. (These run without hosts: on GPUs, if this machine has four.)

# %%
from bootcamp import check

for shard in (1, 2, 4):
    proofs = check.prove("hsdp", 4, shard=shard)
    assert not any(proof.failed for proof in proofs), f"--shard {shard} trains something else"
    share = (
        proofs[0].run.ranks[0]["parameter_bytes"] / proofs[0].baseline.ranks[0]["parameter_bytes"]
    )
    print(f"--shard {shard}: the same training; a rank holds {share:.0%} of the parameters")
proofs[-1]

# %% [markdown]
# ## Break it
#
# ### First: rows across hosts
#
# The mesh is a table of ranks. The next cell fills it column by column: its rows are then the ranks
# 0 and 2, and 1 and 3. What will be wrong: the losses, the memory, something else?

# %%
from bootcamp import variant

MESH = 'mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))'
TURNED = """ranks = torch.arange(world).view(args.shard, -1).T
mesh = DeviceMesh(device.type, ranks, mesh_dim_names=("replicate", "shard"))"""
imported = "from torch.distributed.device_mesh import "
changes = {MESH: TURNED, f"{imported}init_device_mesh": f"{imported}DeviceMesh"}
turned = variant("hsdp", "hsdp_rows_across", changes)
how = {"hosts": 2, "steps": 5, "quiet": True, **setting}
across = lab.launch("rows-across", turned, 4, shard=2, **how)

# %% [markdown]
# The next cell compares it with the run before.

# %%
rows = []
for name, run in (("rows are hosts", free["HSDP"]), ("rows across hosts", across)):
    row = {"": name, "loss of step 4": run.losses[4]}
    row |= {"parameter MB": run.ranks[0]["parameter_bytes"] / 1e6}
    sent = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in run.ranks[:2])
    rows.append(row | {"MB on the link": sent / 1e6})
expected = 2 * theory.sent_bytes(theory.collectives("fsdp"), P, 2, factors=theory.GLOO)
assert abs(across.losses[4] - free["HSDP"].losses[4]) < 1e-5, "another training"
assert abs(sent / expected - 1) < 0.01, "not what theory says"
Table(rows, "HSDP with --shard 2")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Nothing is wrong but the bytes. The loss is right, and so is the memory: no proof and no profile
# of one rank finds this. But all gathering goes over the link now, and only the averaging of parts
# stays inside the host. It sends more than FSDP did. On real clusters this happens when ranks are
# not numbered host by host, or when a row is longer than a host. So when hybrid sharding is slow,
# print the mesh, and the host name of each rank.
# </details>
#
# ### Second: wrapped once more
#
# "HSDP is FSDP inside and DDP between hosts. So I wrap the model in both." The next cell does it
# with the course's script.

# %%
wrap = "optimizer = optimizers.build(args, model.parameters())"
in_ddp = {wrap: f"model = torch.nn.parallel.DistributedDataParallel(model)\n{wrap}"}
twice = variant("hsdp", "hsdp_in_ddp", in_ddp)
refused = launch(twice, 4, device="cpu", steps=3, quiet=True, raises=False)
assert refused.status == "failed", "DDP took parts for a model"
print(refused.summary["error"]["message"])

# %% [markdown]
# It fails at once: DDP wants to send all ranks the parameters of rank 0, and PyTorch knows no such
# thing for a **DTensor**, a tensor that knows to be one part of a whole.
#
# Much code still uses the class before `fully_shard`, `FullyShardedDataParallel`, with
# `ShardingStrategy.HYBRID_SHARD`. There a part is an ordinary tensor. The next cell shows how a
# program shards with that class.

# %%
from IPython.display import Markdown

hybrid = SNIPPETS / "hybrid_shard.py"
text = hybrid.read_text()
end = text.index('found["warnings"]')
Markdown(f"```python\n{text[text.index('how = {') : end]}```")


# %% [markdown]
# The next cell runs it on four ranks, in rows of two: first as it is, then with
# `DistributedDataParallel` around it.


# %%
def tell(**flags):
    """What each of four ranks of the program printed."""
    run = launch(hybrid, 4, **flags, **quiet)
    printed = [line for rank in range(4) for line in run.output(rank).splitlines()]
    return [json.loads(line) for line in printed if line.startswith("{")]


right, wrapped = tell(), tell(in_ddp=True)
assert all(rank["apart_from_rank_0"] == 0 for rank in right), "hybrid sharding itself is broken"
columns = ("rank", "numbers", "changed", "equals_rank_0s", "error")
Table([{name: rank[name] for name in columns} for rank in wrapped], "After DDP had wrapped it")

# %% [markdown]
# Two things happened, and only the second was loud. `numbers` is how many a rank holds, `changed`
# how many of them had other values after `DistributedDataParallel(...)`. What happened?
#
# <details><summary>Answer</summary>
#
# DDP begins by giving every rank the parameters of rank 0, since they must be equal. But ranks 1
# and 3 hold *another part* of the model. DDP has overwritten it: half of the model is gone, and the
# other half is there twice. No warning.
#
# The error in the backward comes from elsewhere. DDP hangs a hook on each parameter when it wraps,
# which fixes the gradient's size as that of the part. In the backward the gradient of the gathered
# parameter arrives, which is larger. This saves you here. But do not count on an error: the code
# was wrong before it. Hybrid sharding averages over the replicas **by itself**. Nothing has to be
# wrapped around it.
# </details>
#
# ### Third: without a mesh
#
# The next cell runs the same program without `device_mesh=`. PyTorch then finds out by itself how
# long a row is: as many ranks as the host has devices of this kind. It shows the loss of the last
# step on each rank, and how far its parameters are from those of rank 0. Read the warning, too.

# %%
alone = tell(without_mesh=True)
assert all(rank["apart_from_rank_0"] > 0 for rank in alone[1:]), "they were synchronised"
rows = []
for kind, ranks in (("with mesh", right), ("without", alone)):
    for rank in ranks:
        row = {"": kind, "rank": rank["rank"], "ranks of a copy": rank["ranks_of_a_copy"]}
        row |= {"last loss": rank["losses"][-1], "apart": rank["apart_from_rank_0"]}
        rows.append(row | {"bytes sent": rank.get("sent_bytes")})
print(*alone[0]["warnings"])
Table(rows, "Ten steps, four CPU ranks")

# %% [markdown]
# <details><summary>Answer</summary>
#
# To PyTorch, a machine has **one** CPU device. So a row has one rank, each rank is a whole replica,
# and the class switches to `NO_SHARD`, as the warning says. What it does not say: with `NO_SHARD`
# it averages over the row, and the row is one rank. The averaging over replicas is left out.
# Nothing is sent. Four ranks train four models, each on a quarter of the batch, and every loss
# curve looks like training. (They fall more slowly, since the class still divides gradients by the
# number of all ranks, as if it had added them up. With AdamW you would not even see that.)
#
# (On GPUs a host has as many devices as GPUs, and the guess is right if every rank has one, and
# every host has equally many.) Give the mesh, always. And prove: `check.prove` finds this at once,
# by the parameters.
# </details>

# %% [markdown]
# ## Exercises
#
# ### First: who is in my row?
#
# `row_and_column(rank, ranks, shard)` returns two lists: the ranks of this rank's row, with which
# it holds one copy of the model, and those of its column, with which it averages gradients. A row
# has `shard` ranks, and rows are filled one after another. Both lists have the rank itself. The
# next cell has the function's first line, and checks it.

# %%
from bootcamp import exercise


def row_and_column(rank, ranks, shard):
    # your turn: return two lists of ranks, each in order
    ...


print(exercise.check("row_and_column", row_and_column))

# %% [markdown]
# `exercise.solution("row_and_column")` shows a solution. For more: with eight ranks on two hosts,
# for which `shard` does every row stay inside a host?
#
# ### Second: the mesh
#
# Write the mesh. The next cell writes your starting point: the HSDP script without it.

# %%
print(exercise.start("two_axes"))

# %% [markdown]
# Edit the file, save it, and run the next cell. It proves your training, looks at what a rank holds
# with rows of one, two and four, and, if hosts can be made here, counts what crosses the link.
# `exercise.solution("two_axes")` shows the solution as a diff.

# %%
print(exercise.check("two_axes"))

# %% [markdown]
# ### Third: how long should a row be?
#
# This one is for pencil and paper. A model of 13 billion parameters is trained with AdamW
# in mixed precision, which takes 16 bytes for each parameter (lesson 07). There are 16 hosts with 8
# GPUs of 80 GB. Half of a GPU's memory is to be left for activations.

# %%
guess_row = predict(
    "hsdp_row",
    "What is the shortest row with which parameters, gradients and optimizer fit in 40 GB?",
    unit="ranks",
    answer=None,
)
guess_row

# %% [markdown]
# The next cell computes memory, and NCCL's bytes on the link, for each length of a row.

# %% tags=["nbval-check-output"]
cluster = {"model": 2 * 13e9, "ranks": 128, "hosts": 16}
rows = []
for shard in (1, 2, 4, 8, 16, 32, 64, 128):
    gigabytes = sum(theory.rank_bytes(13e9, shard, stage=3).values()) / 1e9
    row = {"ranks in a row": shard, "GB on a rank": gigabytes, "fits": gigabytes <= 40}
    rows.append(row | {"GB on a host's link": sends("HSDP", **cluster, shard=shard)[0] / 1e9})
fitting = [row["ranks in a row"] for row in rows if row["fits"]]
Table(rows, "13 billion parameters, 128 GPUs on 16 hosts")

# %%
guess_row.score(fitting[0])

# %% [markdown]
# Up to eight, the bytes on the link hardly change: the row is inside a host, and each host sends
# the gradients of one whole model, to be averaged. With rows of two hosts they double: now the
# gathering crosses the link. (With rows of 128 there is one copy only, and nothing to average
# between copies: FSDP.) So take a whole host as a row, unless the model needs more.

# %% [markdown]
# ## When to use it and when not
#
# **Use HSDP** when
# - the model states fit into the GPUs of one host together, but not on one GPU, and there are
#   several hosts.
# - FSDP's gathering does not hide behind computing: the link is slow, the batch small, or the ranks
#   are many.
#
# **Use DDP** when the model states fit on one GPU. It sends less inside the host, and about as much
# over the link; with a compressing hook, less.
#
# **Use FSDP** when memory is what you lack, or when its traffic hides behind computing anyway.
#
# **Before you run**: print the mesh and each rank's host; let a row be a host; wrap nothing around
# it; compute the bytes on your link, and divide by its rate.

# %% [markdown]
# ## Sources
#
# - Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, 2023,
#   arXiv:2304.11277. Hybrid sharding (section 3.2.2) and its traffic between hosts.
# - Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
#   2019, arXiv:1910.02054. 16 bytes a parameter.
# - Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
#   Journal of Parallel and Distributed Computing 69, 2009. Bytes of a ring.
# - PyTorch documentation: *torch.distributed.fsdp.fully_shard*, *FullyShardedDataParallel*,
#   *DeviceMesh*.
# - Linux manual pages: network_namespaces(7), user_namespaces(7), veth(4), tc-tbf(8), tcp(7).
# - Published rates and speeds: Stas Bekman, *Machine Learning Engineering*,
#   github.com/stas00/ml-engineering; Grattafiori et al., *The Llama 3 Herd of Models*,
#   arXiv:2407.21783; Narayanan et al., arXiv:2104.04473; PyTorch blog, *Maximizing training
#   throughput using PyTorch FSDP*, 13 March 2024, and on training over Ethernet on IBM Cloud.
