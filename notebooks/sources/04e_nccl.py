# %% [markdown]
# # 04e Between the ranks: the network, NCCL, and ranks that are late or dead
#
# **29 minutes**, on any machine, after lesson 04. Sections marked (optional) are not included.
#
# After this lesson you can say how long an all-reduce takes and why, what NCCL does on GPUs and
# which variables change it, find the rank that makes all others slow, survive the death of a rank,
# and read a flight recorder.

# %% [markdown]
# ## The question
#
# In every step the ranks of DDP wait for the network, and for each other. How long does an
# all-reduce take? And if a job is slow, stuck or dead: was it the network, or which rank?

# %%
from IPython.display import display

from bootcamp import (
    Options,
    claim,
    default_ranks,
    exercise,
    gpu_count,
    launch,
    plots,
    predict,
    run_command,
    variant,
    warm_up,
)
from bootcamp.costs import published
from bootcamp_lessons import allreduce_sweep, ddp_depth, ddp_practice
from bootcamp_lessons.diagrams import ddp as diagrams
from bootcamp_lessons.excerpts import SNIPPETS, piece

warm_up()  # loads PyTorch in the background
RANKS = max(2, min(8, default_ranks()))
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"

# %% [markdown]
# ## The idea
#
# CPU ranks communicate through **gloo**, GPUs through **NCCL**, NVIDIA's library of collectives.
# The calls are the same. What NCCL does that gloo does not:
#
# - It runs *on the GPU*: an all-reduce is a GPU kernel, queued on a **stream**, a list of work that
#   the GPU does in order. The call returns before anything has happened. While it runs it takes
#   some of the GPU's processors and memory bandwidth.
# - It looks at the **topology**. Inside a host GPUs read and write each other's memory (**P2P**),
#   over **NVLink**, NVIDIA's fast links between GPUs, or over the slower **PCIe** bus; between
#   hosts the network card can fetch from GPU memory itself (**GPUDirect RDMA**, where hardware and
#   drivers have it).
# - It builds several rings and trees at the same time, called channels, and chooses algorithm and
#   protocol by size. Where the hardware can add on the way, a rank sends its numbers only once: in
#   the NVLink switches of a host (**NVLS**), in the switches of an InfiniBand network (**SHARP**).
#   For all-gathers and reduce-scatters over hosts of one rank each it has PAT, another tree.

# %%
plots.show(diagrams.two_hosts())

# %% [markdown]
# *One* ring over two hosts crosses the slow link once in each direction, however many GPUs a host
# has. NCCL makes several rings and gives each a network card of its own: with eight cards, eight
# times the rate. Clusters wire card *k* of each host to the same switch, a **rail**.
#
# `nvidia-smi topo -m` prints how a host's parts are connected, as a matrix: `NV#` is NVLink, `PIX`
# and `PXB` are PCIe bridges, `PHB` the CPU's own PCIe, `NODE` stays inside and `SYS` crosses
# between **NUMA nodes**, each a CPU with the memory next to it. It also lists the cores near each
# GPU. A rank on the wrong NUMA node reads all its data across the link between the CPUs: bind it to
# cores near its GPU (`numactl --cpunodebind`), or let Slurm choose the GPU near its cores
# (`--gpu-bind=closest`).
#
# A ring takes 2(*N*-1) steps, one after another. In a **tree** all ranks together send as much, the
# busiest rank sends more, and the number of steps grows with the logarithm of *N*.

# %%
plots.show(diagrams.ring_and_tree())

# %% [markdown]
# For a small message the number of steps decides: with 1,024 ranks 2,046 in a ring, 20 in a tree.
# With much data the bytes decide. NCCL uses two trees at once, in which each host is a leaf of one
# and an inner node of the other.
#
# ## Predict
#
# 1. An all-reduce of 4 bytes takes some time. Now one of 4,096 bytes.
# 2. Several ranks. Before each forward pass rank 1 waits 100 ms for its data. You profile *rank 0*.
# 3. A checkpoint, a file with all that a run needs to continue, is written after every 5 steps
#    (after steps 4, 9, and so on: steps count from 0). A rank is killed as it begins step 8, and
#    all ranks start again from the checkpoint.

# %%
guess_small = predict(
    "nccl_small_message",
    "1. How many times as long does the all-reduce of 1,024 times as many bytes take?",
    unit="times",
)
guess_late = predict(
    "nccl_late_rank",
    "2. How much more time than without the delay does rank 0 spend in collectives, in each step?",
    unit="ms",
)
guess_again = predict("nccl_again", "3. How many steps are trained a second time?", unit="steps")
display(guess_small, guess_late, guess_again)

# %% [markdown]
# ## What changes
#
# The more ranks, the sooner one dies, and the others can't go on without it. `torchrun
# --max-restarts` ends them and starts all ranks again. The script has to provide what they resume
# from: a **checkpoint** (lesson 07b). Here rank 1 kills itself with SIGKILL in step 8, in its first
# attempt. The command of "Prove it" gives the same file to `--save` and `--resume`, so one line
# serves the first start and every restart.

# %%
forward = "loss = models.loss(model(inputs), targets)"
kill = "os.kill(os.getpid(), signal.SIGKILL)"
tools = "from bootcamp.train import checkpoint, config, data, models, optimizers, record"
accident = f"if step == 8 and rank == 1 and environment.attempt() == 0:\n    {kill}\n{forward}"
changes = {tools: f"import os\nimport signal\nfrom bootcamp.train import environment\n{tools}"}
dies = variant("ddp", "ddp_rank_dies", changes | {forward: accident})

# %% [markdown]
# ## Run it
#
# A simple model of a collective's time is **alpha + beta × bytes**: a start-up cost, and a cost for
# each byte. It is fitted here to all-reduces from 4 bytes to 32 MiB, measured once on each machine,
# and tested on sizes that it has not seen. If the measured sizes require it, the line has a bend:
# beyond some size the rate is different.

# %%
sweep = allreduce_sweep.load(RANKS, DEVICE)
fitted = sweep.fit()
seconds = {row["bytes"]: row["seconds"] for row in sweep.rows}
print(guess_small.score(seconds[4096] / seconds[4]))
plots.show(plots.all_reduce_sweep(sweep, fitted))
off = fitted.errors(sweep.held_out)
print(f"held-out sizes: {off['median']:.0%} off in the median, {off['largest']:.0%} at most")
print(f"one bucket of 25 MiB: {1e3 * fitted.predict(25 * 2**20):.1f} ms, by the fit")
(nvlink,) = (row for row in published.table("network") if "H100" in row["link"])
ms = 1e3 * 7 / 4 * 25 * 2**20 / (1e9 * float(nvlink["gb_s_per_gpu"]))
print(f"eight GPUs and {nvlink['link']}: {ms:.2f} ms and alpha, by the ring's formula")

# %% [markdown]
# ## Read the measurement
#
# Left: below some size the time hardly depends on the bytes. That is alpha. Right: **bus
# bandwidth** as the nccl-tests define it. The *algorithm* bandwidth is the data's size divided by
# the time. Multiplied by 2(*N*-1)/*N* it is the rate on each rank's link, which can be compared
# with the hardware's figure for any number of ranks.
#
# ### The environment variables that people need (optional)
#
# - `NCCL_DEBUG=INFO` prints version, topology, chosen interfaces, rings and trees. Set it first
#   when something hangs or is slow. `NCCL_DEBUG_SUBSYS=INIT,NET` narrows it down.
# - `NCCL_SOCKET_IFNAME=eth0` selects network interfaces, by prefix; `NCCL_SOCKET_IFNAME==eth0`
#   means exactly that name, `^docker` excludes. gloo has `GLOO_SOCKET_IFNAME`.
# - `NCCL_IB_HCA=mlx5_0` selects InfiniBand or RoCE cards. `NCCL_IB_DISABLE=1`: none, sockets
#   instead, to see whether they are the cause.
# - `NCCL_P2P_DISABLE=1`: no direct access between the GPUs of a host. If it helps against a hang,
#   the fault is below NCCL (often PCIe settings or virtualisation).
# - `NCCL_ALGO=Ring` (`Tree`, `NVLS`, ...), `NCCL_PROTO=Simple` force an algorithm and a protocol,
#   to compare.
#
# Those from `NCCL_IB_DISABLE` on are for finding faults: a forgotten `NCCL_P2P_DISABLE=1` slows
# every later run down.
#
# CUDA's `CUDA_LAUNCH_BLOCKING=1` makes a GPU's error show in its own line (lesson 02). Torch's own:
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` checks collectives on any backend; `TORCH_FR_BUFFER_SIZE` is the
# number of collectives that torch's flight recorder (see *a job that has died*, below) keeps, 2000
# by default.

# %%
if DEVICE == "cuda":
    talkative = {"options": Options(env={"NCCL_DEBUG": "INFO"}), "quiet": True}
    told = launch("ddp", RANKS, steps=2, global_batch=16 * RANKS, **talkative).output(0)
    words = ("NCCL version", "Channel 00", "Trees", "Using network")
    print(
        *[line for line in told.splitlines() if any(word in line for word in words)][:12], sep="\n"
    )
    print(run_command(["nvidia-smi", "topo", "-m"]))
else:
    print("Without two GPUs there is no NCCL to ask: these ranks talk through gloo.")

# %% [markdown]
# ## Prove it
#
# All losses and the final parameters of the killed run must *equal* those of an undisturbed one.

# %%
import tempfile
from pathlib import Path

kept = tempfile.TemporaryDirectory()
file = Path(kept.name) / "checkpoint.pt"
elastic = {"device": "cpu", "steps": 12, "global_batch": 16}
restarts = {"start": "torchrun", "options": Options(max_restarts=2)}
saves = {"save": file, "resume": file, "save_every": 5}
restarted = launch(dies, 2, **restarts, **saves, **elastic)

# %%
undisturbed = launch("ddp", 2, quiet=True, **elastic)
assert restarted.summary["restarts"] == 1, "there was no restart"
assert restarted.losses == undisturbed.losses, "the restart has changed a loss"
ends = [run.ranks[0]["fingerprint_final"] for run in (restarted, undisturbed)]
assert ends[0] == ends[1], "the restart has changed the parameters"
plots.show(diagrams.attempts(restarted, saved_every=5))
guess_again.score(8 - restarted.ranks[0]["first_step"])  # of the last attempt

# %% [markdown]
# (A killed attempt may lack the row of its last step, whose loss had not been read yet.) Nothing
# was lost because the checkpoint holds everything that the next step depends on: parameters, the
# optimizer's state, the number of steps. If model or data use random numbers, the states of sampler
# and generators belong in it too. Under DDP all ranks hold the same, so only rank 0 writes.
#
# The command has `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`. Ranks publish their addresses in a
# **store**, a small key-value server. By default torchrun lends them its own, which outlives a
# restart, and with gloo a new rank may find the address of a dead one there ("Connection refused").
# With the variable each attempt has a store of its own.

# %% [markdown]
# ## Break it
#
# ### First: one slow rank
#
# A **straggler** is a rank that comes late to every collective: its storage is slow, its GPU too
# hot, its core shared. The job is as slow as its slowest rank. Here rank 1 waits 100 ms for its
# data in each step. Where does it show?

# %%
read = "inputs, targets = (tensor.to(device) for tensor in batches(step))"
late = variant(
    "ddp",
    "ddp_late",
    {
        "import torch": "import time\n\nimport torch",
        read: f"time.sleep(0.1 * (rank == 1))  # slow storage\n{read}",
    },
)
short = {"device": DEVICE, "global_batch": 16 * RANKS, "quiet": True}
short |= {"model": "mlp", "steps": 5, "trace_step": 3}
claim.faster(
    "ddp_late_rank_shows_on_the_others",
    "Rank 0's collectives take less than half the time when rank 1 is not late.",
    lambda: launch("ddp", RANKS, **short).ranks[0]["communication_seconds"],
    lambda: launch(late, RANKS, **short).ranks[0]["communication_seconds"],
    by=2,
    seconds=30,
    names=("communication with rank 1 on time", "with rank 1 late"),
    otherwise="Here the ranks wait for each other about as long without the delay.",
)

# %% [markdown]
# The healthy rank looks as if it had a slow network. Its collectives last until the last rank has
# come: **waiting is not communicating**. Put the traces of all ranks side by side: how long each
# computes, waits for others in collectives, sends (both counted only while it computes nothing),
# and does neither.

# %%
even, slow = launch("ddp", RANKS, **short), launch(late, RANKS, **short)
display(ddp_depth.split_step(even), ddp_depth.split_step(slow))
plots.show(plots.timeline(slow))
in_collectives = [run.ranks[0]["communication_seconds"] for run in (even, slow)]
guess_late.score(1e3 * (in_collectives[1] - in_collectives[0]))

# %% [markdown]
# The rank that waits least is the late one. Its column `neither` says that it neither computed nor
# communicated: look at its input. Had `computes` been longer, look at its clock, its temperature
# and who else uses its core. If all ranks wait alike, it is the network after all, or ranks that
# take turns in being late.
#
# ### Second: one that is a little late
#
# A trace is one step, and 100 ms are easy to see. A smaller delay needs many steps, and a
# measurement that can stay on. DDP can call a function of yours for each full bucket, a
# communication hook (lesson 04d), and that can note the time: a rank's **own work** lasts from the
# beginning of the step until its last bucket is full. No clocks of different hosts are compared.

# %%
display(piece(ddp_practice.STRAGGLERS, "def all_reduce_and_note", "print(json"))
paced = launch(ddp_practice.STRAGGLERS, 2, late=1, by=0.3, quiet=True)
print(f"the late rank: {ddp_practice.find_straggler(paced)}")
ddp_practice.table_paces(paced)

# %% [markdown]
# The late rank sleeps for 30 % of what its own work took in the first steps. Its last column is not
# zero, since gradients also have to be sent; what the others have above that is their waiting. A
# rank is named if its own work takes at least 1.15 times as long as that of the next slowest, by
# lowest deciles: what else the machine does makes single steps longer, never shorter. A rank that
# is late now and then shows in the upper quartile instead.
#
# ### Third: a rank that never comes
#
# Rank 1 of three sleeps before a backward pass. The others wait in an all-reduce, and their stacks
# look alike. Torch's **flight recorder** keeps the last collectives of each rank: which, of what
# size, called in which line. The launcher has asked all ranks for theirs before it ended them.

# %%
from bootcamp.launcher import hang

hung = hang.read(ddp_practice.launch_stuck(1))
assert (hung.kind, hung.ranks) == ("missing", (1,)), hung.sentence
hung

# %% [markdown]
# A rank that is alive shows more: `py-spy dump --pid` prints its stack. For all ranks at once,
# `torch.distributed.debug.start_debug_server()` (experimental; it needs aiohttp and Jinja2) serves
# stacks and flight recorders as a page, on port 25999 of rank 0's host.
#
# ### Fourth: a job that has died
#
# After a timeout there is no process left to ask. With NCCL the flight recorder is on by default,
# and torch's watchdog writes a file for each rank when a collective times out
# (`TORCH_NCCL_DUMP_ON_TIMEOUT`, `TORCH_FR_DUMP_TEMP_FILE`). With gloo it records too, but not
# whether a collective has ended, and the script has to write the files. `torchfrtrace FOLDER`,
# which comes with torch, compares them.

# %%
recorder = SNIPPETS / "ddp_flight_recorder.py"
crashed = launch(recorder, 2, device="cpu", quiet=True)
display(piece(recorder, "for step", "except"))
print(crashed.output(0))
print(ddp_depth.read_flight_recorder(crashed.folder / "flight_recorder"))

# %% [markdown]
# gloo's message only shows that a rank waited. The flight recorder shows where the ranks diverged:
# rank 0 called an all-reduce, rank 1 a broadcast, and the last line of the stack is the all-reduce
# under the `if`.

# %% [markdown]
# ## Exercise
#
# ### First: how long will an all-reduce take?
#
# What would the averaging take on more GPUs, or on a faster network? A ring takes 2(*N*-1) steps
# one after another, in each of them a rank sends one piece of 1/*N* of the data, and each step has
# a start-up cost of its own. The solution: `exercise.solution("ring_seconds")`.


# %%
def ring_seconds(data_bytes, ranks, alpha_seconds, bytes_per_second):
    """Time of a ring all-reduce in seconds.

    alpha_seconds: start-up cost of one step. bytes_per_second: what a rank can send.
    """
    ...


print(exercise.check("ring_seconds", ring_seconds))

# %% [markdown]
# ### Second: who is late?
#
# Write the diagnosis of "one slow rank" as a function of the table of traces: a dictionary for each
# rank, in milliseconds. The solution: `exercise.solution("late_rank")`.


# %%
def late_rank(ranks):
    """(rank that the others wait for, "computes" or "neither", milliseconds to be gained).

    ranks: [{"computes": 110.0, "waits": 80.0, "neither": 10.0}, ...], the parts of one step. The
    part is the one that is too long. Gained: if that rank were as fast as the next slowest.
    """
    ...


print(exercise.check("late_rank", late_rank))

# %% [markdown]
# Then give it the measured table: `late_rank(ddp_depth.split_step(slow).rows)`.
#
# ## When to use it and when not
#
# - **A slow job**: first look for the late rank, by each rank's own time, then at the network.
# - **A hang**: the launcher's report or the flight recorder names the rank that did not come.
# - **Checkpoints and `--max-restarts`**: for everything that you would not like to repeat;
#   rehearse the restart, more than once.
#
# ## Sources
#
# - Hockney, *The communication challenge for MPP*, Parallel Computing 20, 1994: alpha and beta.
# - Sanders, Speck and Träff, *Two-tree algorithms for full bandwidth broadcast, reduction and
#   scan*, Parallel Computing 35, 2009.
# - NVIDIA, *NCCL documentation* (Environment Variables), and *nccl-tests*, `doc/PERFORMANCE.md`,
#   for algorithm and bus bandwidth. NVLink: `src/bootcamp/costs/published/network.csv`.
# - PyTorch documentation: *torchrun (Elastic Launch)*, *Flight Recorder for Debugging Stuck Jobs*.
