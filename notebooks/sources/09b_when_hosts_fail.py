# %% [markdown]
# # 09b When hosts fail
#
# **75 minutes**, on Linux with network namespaces and Slurm, after lessons 07b and 09; elsewhere it
# shows recorded answers. All ranks are CPU ranks.
#
# After this lesson you can find an unfit host before the job, end a job in time and continue it,
# let a run go on when a host is lost, and find out from the logs of all ranks which one failed and
# what to do.
#
# ## The question
#
# Llama 3's training was interrupted unexpectedly once in 264 host-days, of eight GPUs a host
# (Grattafiori et al., 2024); on a cluster of Meta's such a host failed once in about 154 (Kokolis
# et al., 2024): with a thousand hosts four to seven times a day. And jobs end even without a
# failure: time limits run out, and others have priority. So a long training *will* be interrupted.
# What is lost then, how do you find the cause, and how does the training continue?

# %%
from bootcamp import warm_up
from bootcamp_lessons.labs import host_drills

warm_up()
lab = host_drills.Lab()
lab

# %% [markdown]
# ## The idea
#
# ### What the others hear
#
# Ranks wait for each other in every collective. Whether they *hear* that one of them is gone
# depends on how it went. If only a process dies, the kernel of its host closes its connections, and
# with gloo, over TCP, the others get an error at once. (NCCL's ranks wait in a kernel of their GPU:
# they may notice late, or only when torchrun ends them.) If the host itself is gone, nothing closes
# them. TCP is patient, and the others wait until their **timeout**: if the script sets none, 30
# minutes with gloo and 10 with NCCL.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import hosts

plots.show(hosts.signs_of_failure())

# %% [markdown]
# ### Four lines of defence
#
# 1. **Before the job**: check each host, and leave out the one that differs from the others.
# 2. **When the end is known**, such as a time limit: ask for a warning, save, and queue again.
# 3. **When it is not known**: save every now and then, and restart, on fewer hosts if need be.
# 4. **Afterwards**: find out which host it was, or it will be the same one again.
#
# ## Predict
#
# One rank of four, on the second of two hosts, is killed with `kill -9`.

# %%
from bootcamp import predict

guess_logs = predict(
    "failing_logs", "How many of the four ranks' logs end with an error?", unit="logs"
)
guess_logs

# %% [markdown]
# The link of a host is cut for two seconds, and comes back. The timeout is much longer.

# %%
guess_pause = predict("failing_pause", "How long does the training stand still?", unit="s")
guess_pause

# %% [markdown]
# A job has saved nothing so far. It gets USR1 in the middle of its training, and is queued again.

# %%
guess_again = predict("failing_again", "How many steps are computed twice?", unit="steps")
guess_again

# %% [markdown]
# ## What changes
#
# ### A job that is told of its end
#
# At its time limit Slurm ends a job: first it sends TERM, and KILL after `KillWait` seconds (30 by
# default). `#SBATCH --signal=B:USR1@60` asks for a warning, the signal USR1, 60 seconds before the
# limit. The **B** means that only the shell of the job file gets it. A signal to all processes
# would reach torchrun's agents too, and end them.

# %%
plots.show(hosts.requeued_job())

# %% [markdown]
# In the job file: the trap, and `requeue`. `--open-mode=append` keeps the first attempt's output;
# without it the second attempt overwrites the log of the first.

# %%
from bootcamp.paths import SRC

text = (SRC / "jobs" / "ddp_requeue.sbatch").read_text()
print(text[text.index("# B:USR1") :])

# %% [markdown]
# In the script, after each step: is the file there, for any rank? Then save now, and leave.

# %%
from bootcamp_lessons import excerpts

excerpts.piece(SRC / "snippets" / "ddp_stopped.py", "told = torch", "run.finish")

# %% [markdown]
# Why a file between shell and ranks? All ranks must stop after the *same* step, or those that go on
# wait for those that have left. So they look for the file after each step, and an all-reduce tells
# all of them if one has seen it. (On GPUs reading its result makes the script wait for the GPU: do
# it every few steps, let rank 0 alone look, and remember that a file on NFS can be seen a minute
# late. Ask for a longer warning.)
#
# **Preemption**, where a job with priority takes the hosts, ends a job in much the same way. But
# Slurm sends TERM, to the tasks, and waits `GraceTime` seconds before KILL; the file's own signal
# comes only where the site has set `SlurmctldParameters=preempt_send_user_signal`, which
# `scontrol show config` shows. The jobs of an array are queued again one by one: each has a
# `SLURM_JOB_ID` of its own.
#
# ## Run it
#
# ### Before the job: is every host fit?
#
# A host that is slow, or whose disk is full, holds up all others. This job asks every host what it
# has, and times an all-reduce between each pair. Something is wrong with one of them.

# %%
lab.nodes()

# %% [markdown]
# Cores, memory and versions are compared with what *most* hosts have, clock and MB/s with the
# others', free disk with a limit. If one stands out, *all* tasks end with exit code 3. `sbatch
# --exclude=host1` leaves that host out. (128 hosts have 8,128 pairs:
# test disjoint ones in rounds.) On real nodes also read the errors
# that GPUs count (ECC, Xid). Slurm can run such a check before each job, as its **prolog**, and
# *drain* a host that fails it: give it no more jobs.
#
# torchrun's c10d rendezvous compares times of one host with those of another, so clocks that are
# far apart can make living hosts look dead. (Hosts of one machine share theirs.)
#
# ### The job that is told to end
#
# Slurm's own warning would come after a minute, so the cell sends the signal itself.
# (CANCELLED ... DUE TO JOB REQUEUE is what a requeue looks like.)

# %%
told = lab.requeued()

# %% [markdown]
# ## Read the measurement

# %%
from bootcamp import claim

print(guess_again.score(told["again"]))
claim.equal(
    "requeued_job_loses_no_step",
    "A job that saves when it is told computes no step twice.",
    told["again"],
    0,
    kind="count",
    supported=f"The second attempt began at step {told['first_step']}, where the first had ended.",
)

# %% [markdown]
# Nothing is computed twice because the save comes *after* the warning. Without one, the steps since
# the last save are lost (lesson 07b computes how often to save). Set the warning longer than your
# slowest step plus one save.
#
# ### A host is lost: the world shrinks
#
# `torchrun --nnodes 1:2` needs one host and takes up to two. When host1 is lost, the agent on host0
# ends its ranks, waits for others at the rendezvous, and starts again with those that came: a
# **world** of half as many ranks. The script resumes from its checkpoint. To keep the *global
# batch*, each rank takes more samples, in more micro-batches (lesson 02b).
#
# It matters which host is lost: the agents meet at a store on the host of `--rdzv-endpoint`, here
# host0. Without that one the run is over, as the second table below shows, and the job has to be
# queued again. And Slurm ends a job that has lost a host, unless `--no-kill` and two more options
# of srun forbid it:

# %%
from bootcamp_lessons.labs import hosts_lab

hosts_lab.show_file("src/jobs/ddp_elastic.sbatch", parent="src/jobs/ddp_torchrun.sbatch")

# %%
from IPython.display import display

from bootcamp import Table

elastic = lab.elastic()
for host, found in elastic.items():
    ending = "done" if found["status"] == "ok" else found["status"]
    display(Table(found["attempts"], f"{host} is lost: {ending} {found['seconds']:.0f} s later"))

# %% [markdown]
# Where does the time go? A silent host is given up after three missed heartbeats, one every 5
# seconds by default. Then the agents wait `last_call_timeout`, 30 seconds, for others that may
# still come. Then the ranks start, and import torch first. The cell above uses `--rdzv-conf` to
# wait less. And if the host returns and torchrun is started on it again, the agents restart all
# ranks, in the larger world.
#
# If the global batch is *not* kept, it shrinks with the world, and the learning rate has to follow
# (lesson 04c). Then the losses are no longer those of the original run.
#
# ## Prove it
#
# Neither the requeued job nor the run that lost a host may differ from one undisturbed process. The
# largest difference of any step's loss:

# %%
apart = elastic["host1"]["apart"]
print(f"requeued: {told['apart']:.1e}, elastic: {apart:.1e}")
assert max(told["apart"], apart) < 1e-5, "another training"

# %% [markdown]
# ## Break it
#
# Each of these cells trains on two hosts of two ranks, breaks something real, finds the fault in
# the records, and resumes from the last save on healthy hosts. `losses apart` compares all steps
# with those of an undisturbed run.
#
# ### First: a rank is killed
#
# On real clusters it is mostly the kernel that kills a process, because memory has run out.

# %%
killed = lab.drill("rank_killed")
print(guess_logs.score(killed.complaints))
host_drills.table([killed])

# %% [markdown]
# <details><summary>Which log is the culprit's?</summary>
#
# The one without an error. A killed process can't write. All others complain that *somebody else*
# closed a connection, and often name the address of a neighbour that had itself just ended for that
# reason. Look for the rank that is silent. If torchrun started it, the agent of its host names the
# signal as root cause. `sacct -j JOB` says whether memory (OUT_OF_MEMORY) or a host (NODE_FAIL) was
# lost; `dmesg` and the log of slurmd, Slurm's process on each host, know more.
# </details>
#
# ### Second: the link is cut for two seconds

# %%
stalled = lab.drill("link_stalls")
print(guess_pause.score(stalled.seconds))
host_drills.table([stalled])

# %% [markdown]
# <details><summary>Why longer than the cut?</summary>
#
# TCP sends a lost packet again after 0.2 seconds (Linux's minimum) or a little more, then after
# twice as long, and so on (RFC 6298): in all after 0.2, 0.6, 1.4, 3, 6.2 ... seconds, or after
# 0.27, 0.8, 1.9, 4 ... if the first wait is 0.27. The link is back after a little more than two
# seconds, but TCP does not try before the next of these times, or the one after it if that packet
# is lost too. No rank reports anything. The only trace is a counter: how often the interface lost
# its carrier.
# </details>
#
# ### Third: a disk is full

# %%
host_drills.table([lab.drill("disk_full")])

# %% [markdown]
# Here the first error is the right one: `No space left on device` is about this rank, `closed by
# peer` about another. The old checkpoint survives, because the new one is written beside it.
#
# ### Fourth: a hang
#
# Rank 3 waits for something that never comes, such as a file. Its process is alive, and its
# connections are open.

# %%
hung = lab.drill("hang")
host_drills.table([hung])

# %% [markdown]
# How is it found? torch's **flight recorder** keeps the last collectives of each rank, numbered
# within each process group. Side by side they show the first collective that not all ranks have
# entered. The rank that is absent there is the one to look at, and its stack shows where it waits.
# In a cluster, `srun --overlap --jobid JOB --ntasks-per-node 1 python -m bootcamp.launcher.hang
# FOLDER` asks all hosts; `torchfrtrace` reads the same files, and `py-spy dump` shows a stack
# without any preparation.
#
# ### All drills
#
# The others take longer: this is a record. The column *who is named* is what the tools found,
# without being told what was broken.

# %%
host_drills.all_drills()

# %% [markdown]
# Read a set of logs in this order:
#
# 1. **Errors of a rank's own**, earliest first: a full disk, a missing interface, another shape.
# 2. **Silence** among complaints: killed.
# 3. **Timeouts everywhere** (NCCL: `Watchdog caught collective operation timeout`): nobody has
#    closed anything. Ask the flight recorder who is absent. If nobody is, it is the network.
# 4. **Errors before the first step** with `Rendezvous` in them: compare the agents' command lines,
#    then try the port from each host.
#
# Clocks of hosts differ, so "earliest" is only as reliable as the clocks. `srun
# --output=%x-%j-%t.out` gives each task a log of its own; `run.log()` puts those of all ranks in
# order, first error first.
#
# ## Replicas that leave and come back (optional)
#
# So far a failure ended the run, for everybody. Data-parallel replicas could go on without the one
# that is lost, if no process group had to outlive it. In **DiLoCo** (Douillard et al., 2023)
# replicas train alone for some steps with an *inner* optimizer. Then they average how far each
# came, and an *outer* optimizer uses this mean as a gradient. So once a round those that are
# there can form a new group; a process that keeps the list tells them who that is (torchft calls it
# the lighthouse). A newcomer gets what the others have agreed on.

# %%
program = SRC / "snippets" / "replicas_that_leave.py"
display(excerpts.piece(program, "shared = [p.detach()", "momentum = [torch"))
display(excerpts.piece(program, "for parameter, change in zip(shared", "done = max"))
excerpts.piece(program, "def take_part", "if __name__ ==")

# %% [markdown]
# Three replicas, eight rounds of five steps. Replica 2 is killed in the middle of round 2, and
# another process takes its place in round 5.

# %%
guess_lost = predict(
    "hosts_diloco",
    "By how many percent does the last loss differ from that of a training without a failure?",
    unit="%",
)
guess_lost

# %%
from bootcamp import run_command

rows = excerpts.parse_printed(run_command(["python", str(program)]))
assert all(row["replicas agree"] for row in rows)
calm, struck = rows[:9], rows[9:]
table = [{"round": one["round"], "nobody is killed": one["loss"]} for one in calm]
for row, other in zip(table, struck, strict=True):
    row |= {"replica 2 is killed": other["loss"], "replicas that finish it": other["replicas"]}
display(Table(table, "Held-out loss as each round begins"))
guess_lost.score(100 * abs(struck[-1]["loss"] / calm[-1]["loss"] - 1))

# %% [markdown]
# Nobody repeated a step, and nobody waited for the new process except in the meeting at which it
# joined; for three rounds the samples of replica 2 were missing. That is a different training, and
# here not a worse one. A round sends as many bytes as each *step* of DDP. But the method is not
# equal to the baseline, so no proof is possible: compare its losses over a complete training
# (lesson 04d).
#
# ## Exercises
#
# ### First: whom to ask
#
# `look_first(logs)` returns the rank to look at first. `logs` has a dictionary for each rank, with
# the `"seconds"` at which it wrote its last line, and the `"error"` in it; both are `None` for a
# rank that wrote nothing. If there is nothing to go by, return -1.

# %%
from bootcamp import exercise


def look_first(logs):
    # your turn: return the number of a rank, or -1
    ...


print(exercise.check("look_first", look_first))

# %% [markdown]
# ### Second: write the trap
#
# This job asks for a warning, and nothing in its file answers. Write what is missing, without
# looking above. The check sends USR1 on the way: the job must save, be queued again, go on, and
# have the losses of one process.

# %%
print(exercise.start("job_trap"))

# %%
print(exercise.check("job_trap"))

# %% [markdown]
# `exercise.solution("look_first")` and `exercise.solution("job_trap")` show solutions. At the end,
# the cluster is stopped.

# %%
lab.stop()

# %% [markdown]
# ## When to use it and when not
#
# **Always**: a timeout that fits your steps, in `init_process_group`; saves; a log for each rank.
#
# **Warning and requeue** wherever jobs have a time limit or can be preempted.
#
# **Restarts** (`--max-restarts`) where failures are rare and resuming is tested. A fault that
# recurs immediately only uses up the attempts.
#
# **Elastic** when half of the hosts are better than none. Not when the job needs the memory of all
# of them, as with shards, or when a spare host is cheaper: ask Slurm for one more than you need.
# torchrun with `--nnodes 2` lets a third agent wait until one of the two is lost.
#
# **On many hosts**: torchft lets other replicas go on, also with a group in each step; NVIDIA's
# Resiliency Extension starts ranks anew inside their processes, and looks for slow ones. Before
# long jobs `dcgmi diag -r 3` tests the GPUs; one that computes wrongly reports nothing.
#
# ## Sources
#
# - Grattafiori et al., *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783, section 3.3.4: what
#   fails in a large training.
# - Kokolis et al., *Revisiting Reliability in Large-Scale Machine Learning Research Clusters*,
#   2024, arXiv:2410.21680: days between failures of a host.
# - Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023,
#   arXiv:2311.08105.
# - Paxson et al., *Computing TCP's Retransmission Timer*, RFC 6298, 2011.
# - Slurm documentation: sbatch (`--signal`, `--requeue`, `--open-mode`), scancel, preemption,
#   slurm.conf (`KillWait`, `Prolog`, `HealthCheckProgram`).
# - PyTorch documentation: *torchrun (Elastic Launch)*, *Rendezvous*, *Flight Recorder*; *torchft*.
#   NVIDIA, *Resiliency Extension*; *DCGM*.
# - Linux manual pages: signal(7), tcp(7), network_namespaces(7).
