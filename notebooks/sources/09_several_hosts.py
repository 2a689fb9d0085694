# %% [markdown]
# # 09 Several hosts: launching
#
# **77 minutes**, after lessons 04 and 08. Needs Linux and Slurm's packages (`make cluster`);
# elsewhere the same cells show recorded runs.
#
# After this lesson you can start a training on several hosts by hand and under Slurm, read a job
# file and say what each line of it starts, choose the right GPU on any host, find out which network
# interface is used, and recognise job files that are wrong. What happens when a host fails is
# lesson 09b.

# %% [markdown]
# ## The question
#
# Two hosts, two GPUs each, and a script that already trains on the GPUs of one host. Who starts its
# ranks on the other one? How do they find each other? And which line of which file do you change?

# %%
from bootcamp import warm_up
from bootcamp_lessons.labs import hosts_lab

warm_up()
lab = hosts_lab.Lab()
print(lab)
lab.run("idle", "sinfo")

# %% [markdown]
# `sinfo` is a command of **Slurm**, the scheduler of many clusters: it lists their hosts by
# **partition**, a queue with rules of its own (`urgent` goes first, `spare` makes room); the star
# marks the default. Here Slurm runs on simulated hosts, the network namespaces of lesson 08. A
# request for some hosts, with the commands to run there, is a **job**. Slurm calls a host a *node*.
# The GPUs that it hands out here are made up, and ranks train on CPU cores.

# %% [markdown]
# ## The idea
#
# ### Who starts what
#
# Nobody logs in to each host. **srun** starts a command on all hosts of a job. Each process that it
# starts is a **task**. There are two ways to use tasks:

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import hosts as diagrams

plots.show(diagrams.rank_starters())

# %% [markdown]
# - **A task is a rank.** srun starts all ranks. Slurm numbers them, and your job file translates:
#   `SLURM_PROCID` is the rank, `SLURM_LOCALID` the rank within the host.
# - **A task is an agent.** srun starts one `torchrun` on each host. These agents meet at the
#   **rendezvous**, agree on who is who, and each starts the ranks of its host, watches them and can
#   restart them.
#
# In both cases the script is the one for a single host: it reads `RANK`, `LOCAL_RANK`,
# `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. The first way in one line, with a program that only
# prints its place. Then the list of the job's hosts, which Slurm abbreviates: `scontrol show
# hostnames` spells them out, and the first is where the ranks will meet.

# %%
WHO = "python src/snippets/who_am_i.py | sort"
lab.run("tasks", f"srun --nodes=2 --ntasks-per-node=2 {WHO}")
SPELT_OUT = "srun --nodes=2 printenv SLURM_JOB_NODELIST; scontrol show hostnames 'host[0-1]'"
lab.run("names", SPELT_OUT)

# %% [markdown]
# ## Predict
#
# The first question is about a line in a job file with four tasks: `srun echo task $SLURM_PROCID`.
# The second is about twelve hosts, `host1` to `host12`, with eight ranks each: torchrun numbers the
# ranks, and nobody has told it which host is first. The others are about the network, GPUs, cores,
# and `salloc`, which asks for hosts and gives you a shell.

# %%
from IPython.display import display

from bootcamp import predict

guess_early = predict(
    "hosts_early", "How many different numbers does that line print?", unit="numbers"
)
guess_order = predict("hosts_order", "Which is the first rank on host10?", unit="(rank)")
guess_link = predict(
    "hosts_link",
    f"How many times as long does an all-reduce of 1 MiB take over a link of {hosts_lab.LINK} as "
    "inside a host?",
    unit="times",
)
guess_cyclic = predict(
    "hosts_gpus",
    "2 hosts of 2 GPUs, and srun deals out 4 ranks in turn (--distribution=cyclic). Each takes GPU "
    "rank % device_count. How many of the 4 GPUs get a rank?",
    unit="GPUs",
)
guess_cores = predict(
    "hosts_cores",
    "#SBATCH --ntasks-per-node=1 and --cpus-per-task=2, on hosts that bind each task to its cores. "
    "In the job file: srun nproc. How many cores has the task?",
    unit="cores",
)
guess_salloc = predict(
    "hosts_salloc",
    "On host1 you type salloc --nodelist=host0 --ntasks=3, and in its shell hostname, then srun "
    "hostname. How many of the lines say host0?",
    unit="lines",
)
display(guess_early, guess_order, guess_link, guess_cyclic, guess_cores, guess_salloc)

# %% [markdown]
# ## What changes
#
# Nothing in the script. What changes is the line that starts it.
#
# ### By hand, static
#
# With a terminal on each host, you type a line into each. Everything is fixed beforehand: how many
# hosts (`--nnodes`), which one this is (`--node-rank`), where rank 0 will be (`--master-addr`).

# %%
STATIC = "torchrun --nnodes 2 --node-rank {} --master-addr host0 --master-port 29400 "
STATIC += "--nproc-per-node 2 src/snippets/who_am_i.py"
lab.on_each("static", {f"host{number}": STATIC.format(number) for number in (0, 1)})

# %% [markdown]
# ### By hand, c10d
#
# With `--rdzv-backend c10d` every host gets the *same* line. The agents meet at `--rdzv-endpoint`:
# the agent on that host opens a small store there, and all agents register in it. `--rdzv-id` names
# the run: agents with another id at the same endpoint belong to another run.
#
# Two complications are built in below: each line also has a `--node-rank`, the wrong way round, and
# host1 comes late to the run `blue`, after one of its own, `green`, at the same endpoint.

# %%
C10D = "torchrun --nnodes {} --rdzv-backend c10d --rdzv-id {} --rdzv-endpoint host0:29401 "
C10D += "--nproc-per-node 1 --node-rank {} src/snippets/who_am_i.py"
green, blue = C10D.format(1, "green", 0), C10D.format(2, "blue", 0)
lab.on_each("c10d", {"host0": C10D.format(2, "blue", 1), "host1": f"{green}; {blue}"})

# %% [markdown]
# `blue` waited for its second host; by default it waits up to ten minutes. `green` was alone, with
# a WORLD_SIZE of 1. And `--node-rank` has no effect under c10d; torch 2.13 says so.
#
# The store lives in an agent of `blue`: when `blue` ends, it is gone for every run that meets
# there. So give each job a port of its own. And which host is first, if nothing sets the order?
# torchrun sorts them:

# %%
names = [f"host{number}" for number in range(1, 13)]
order = hosts_lab.sort_hosts(names)
print(guess_order.score(8 * order.index("host10"), within=0))
print(" ".join(order))

# %% [markdown]
# By name, as text. The ranks of a host stay together, so nothing is wrong. But rank 8 is on host10,
# not on host2: have each rank print its host, so that you know whose log to read.
#
# ### Under Slurm
#
# A job file is a shell script. `#SBATCH` lines are options of `sbatch`, and everything else runs
# **on the first host only**; `srun` runs a command on all of them. Read it line by line.

# %%
hosts_lab.show_file("src/jobs/ddp_srun.sbatch")

# %% [markdown]
# - `%x` is the job's name, `%j` its number, `--time` the minutes after which Slurm
#   kills it.
# - `set -eu` ends the job at the first error or unset variable. `"$@"` is what follows the file's
#   name in `sbatch`; `task` only names the inner shell.
# - `$SLURM_PROCID` is in single quotes: the shell of the *job file* must leave it alone. Each
#   task's own shell puts its number in.
# - `WORLD_SIZE` comes from Slurm. A number that is written in two places can disagree with itself.
#
# With torchrun less is left to translate. This file starts a rank for each CPU core of a task.
#
# `--cpus-per-task` stands in it twice: since Slurm 22.05 `srun` does not inherit it from `sbatch`
# or `salloc`. Below the file, hosts that bind each task to its cores: without it torchrun, its
# ranks and their DataLoader workers would share one. Nothing fails, everything is slow.

# %%
hosts_lab.show_file("src/jobs/ddp_torchrun.sbatch")
TWICE = "unset OMP_NUM_THREADS; srun nproc; srun --cpus-per-task=2 nproc"  # nproc minds that, too
cores = lab.bound.run("cores", f"salloc --quiet --cpus-per-task=2 sh -c '{TWICE}'").output.split()
lab.bound.stop()
guess_cores.score(int(cores[0]), within=0)

# %% [markdown]
# And for GPUs? These lines differ. Slurm says how many GPUs of a host the job has, and each gets a
# rank. `--exclusive` keeps other jobs off the hosts, and `--mem=0` asks for all of their memory;
# without it a job gets what the site gives by default. Account and partition are your site's. With
# an image in place of an environment, `srun` stays outside of it. (Pyxis adds options to `srun`;
# where it is missing, as here, `srun` says "unrecognized option '--container-image'".)
#
# `sbatch --test-only` has Slurm read a file without running it; options in the command override
# the file's. It runs no line, and accepts what you did not *mean*: see the table.

# %%
hosts_lab.show_file("src/jobs/ddp_gpus.sbatch", parent="src/jobs/ddp_torchrun.sbatch")
hosts_lab.show_file("src/jobs/ddp_container.sbatch", parent="src/jobs/ddp_gpus.sbatch")
ASK = "sbatch --test-only{} src/jobs/ddp_gpus.sbatch"
HERE = " --partition=main", " --partition=main --gpus-per-node=2 --cpus-per-task=2"
lab.run("test-only", "; ".join(map(ASK.format, ("", *HERE))))
hosts_lab.misread_table()

# %% [markdown]
# ### Interactively
#
# `--gres=gpu:2` is the older way to say `--gpus-per-node=2`. Each host here has two.

# %%
shell = lab.run("salloc", "salloc --nodelist=host0 -n3 sh -c 'hostname; srun hostname'", on="host1")
print(guess_salloc.score(shell.output.split().count("host0"), within=0))
lab.run("too-many", "salloc --nodes=2 --gres=gpu:3 true", on="host1")

# %% [markdown]
# The shell runs where you typed `salloc`, usually on a login host. What you start in it without
# `srun` runs there too: without your GPUs, and in everybody's way. (With the site's option
# `use_interactive_step` that shell is on the job's first host.) `srun --pty bash` opens one there;
# in it another `srun` waits until you add `--overlap`, because the first has everything. And more
# GPUs than a host has, or GPUs where there are none, Slurm refuses at once.
#
# For a training, `srun` starts a script on each host, with torchrun in it: see below.

# %% [markdown]
# ## Run it
#
# The same training three ways. `sbatch` submits a job and returns immediately; Slurm starts it when
# its hosts are free.

# %%
FLAGS = ("--steps", 6, "--global-batch", 12, "--optimizer", "sgd")
jobs = {name: lab.sbatch(name, f"src/jobs/{name}.sbatch", *FLAGS) for name in hosts_lab.JOBS}
ended = {name: job.wait() for name, job in jobs.items()}
hosts_lab.show_file("src/jobs/torchrun_script.sh")
BY_HAND = "salloc --nodes=2 --gres=gpu:2 srun --ntasks-per-node=1 src/jobs/torchrun_script.sh"
ended["by hand"] = lab.train("by-hand", f"{BY_HAND} {' '.join(map(str, FLAGS))}")
ended

# %% [markdown]
# **An array** is many jobs from one file: here one learning rate each, two at a time
# (`--array=0-2%2`). Each finds its number in `SLURM_ARRAY_TASK_ID`.

# %%
array = lab.sbatch("array", "src/jobs/array.sbatch", "--steps", 6).wait()
hosts_lab.learning_rate_table(array.runs)

# %% [markdown]
# If the folder of `#SBATCH --output` does not exist, the job fails and *nothing* says why.
# Jobs with a shorter limit
# often start sooner. Lesson 09b shows how to get a warning in time.

# %% [markdown]
# ## Read the measurement
#
# ### What a network changes
#
# Two ranks in one host, then one on each of two hosts with a link. The same all-reduce, at all
# sizes.

# %%
inside = lab.faster_inside(
    "hosts_large_all_reduce_is_faster_inside",
    "An all-reduce of 1 MiB is faster inside a host than over the link.",
    supported="The bytes of a large message set its time, and each takes longer on the link.",
)
inside

# %%
print(guess_link.score(inside.effect or lab.times_as_long()))
plots.show(lab.figure())
lab.costs()

# %% [markdown]
# Lesson 04e's model: seconds = *alpha* + *beta* · bytes; the table gives beta as a rate. Here the
# link changes little but beta, so small messages take about as long in both places, and larger ones
# too while `tc` lets a first burst through at full speed. A real network changes both: its alpha is
# several times that of shared memory or NVLink. So over a network *many* messages are expensive
# (FSDP gathers each block) as well as *large* ones (DDP's gradients).
#
# ### Which interface?
#
# Each rank tells the others its address, and they connect to it. A host has several interfaces.

# %%
WHICH = "ip -brief -4 address; getent ahostsv4 $(hostname) | head -n 1"
lab.run("interfaces", f"srun --nodes=2 --label sh -c '{WHICH}' | sort")

# %% [markdown]
# - **gloo** takes the address that the host's *own name* has, or the interface in
#   `GLOO_SOCKET_IFNAME`.
# - **NCCL** looks for InfiniBand first, then for interfaces other than the loopback and Docker's.
#   `NCCL_SOCKET_IFNAME=^docker0,lo` leaves some out, `NCCL_DEBUG=INFO` prints what it chose:
#   `NET/IB` or `NET/Socket` (`NET/OFI` on AWS), with which interface, and `GDRDMA` where the card
#   reads the GPU's memory itself. If a training is ten times too slow, it often uses the wrong one.
#   Over InfiniBand, too, the ranks first meet at the interface of `NCCL_SOCKET_IFNAME`. NCCL also
#   finds out which GPU is near which network card; `NCCL_DEBUG_SUBSYS=GRAPH` prints it.
# - Ranks reach the store at `MASTER_ADDR` by the host's ordinary routes.

# %% [markdown]
# ## Prove it
#
# All three train what one process trains, over two hosts:

# %%
from bootcamp import check

baseline, proofs = check.baseline(steps=6, global_batch=12, optimizer="sgd"), []
for job in ended.values():
    assert job.end in ("COMPLETED", 0), job.output
    (run,) = job.runs
    proofs.append(check.same_training(run, baseline))
display(*proofs)

# %% [markdown]
# ## Which GPU is mine, and how large is the batch?
#
# `torch.cuda.set_device(rank % torch.cuda.device_count())` is found in many scripts. It is right as
# long as ranks are numbered host by host, with one for each GPU. Slurm can number them in turn:

# %%
lab.run("cyclic", f"srun --nodes=2 --ntasks-per-node=2 --distribution=cyclic {WHO}")
table = hosts_lab.device_table([2, 2], cyclic=True)
used = {(row["host"], row["rank % device_count"]) for row in table}
print(guess_cyclic.score(len(used), within=0))
table

# %% [markdown]
# Two ranks share one GPU on each host, and the other GPU is idle. NCCL refuses ("Duplicate GPU
# detected"); gloo trains at half the speed. And `rank % 4`, with the number of GPUs typed in, fails
# on hosts of another size. Here host 1 has GPUs 0 and 1, and its ranks ask for 2 and 3:

# %% tags=["nbval-check-output"]
hosts_lab.device_table([2, 2])

# %% [markdown]
# **Take `LOCAL_RANK`.** One exception: with `--gpus-per-task=1` each task sees one GPU only. Torch
# calls it `cuda:0` there, whatever its number on the host.

# %%
SEES = "sh -c 'echo LOCALID $SLURM_LOCALID sees GPU $CUDA_VISIBLE_DEVICES' | sort"
lab.run("all-visible", f"srun --nodes=1 --ntasks-per-node=2 --gres=gpu:2 {SEES}")
lab.run("one-visible", f"srun --nodes=1 --ntasks-per-node=2 --gpus-per-task=1 {SEES}")

# %% [markdown]
# In the second case `cuda:1` does not exist: `CUDA error: invalid device ordinal`. And a task that
# sees one GPU only may be unable to send to its neighbours directly (CUDA peer-to-peer). Ask for
# GPUs per node. Where you can't, add `--gpu-bind=none`, or write `LOCAL_RANK % device_count`, which
# is right in both.
#
# ### The batch
#
# A script that trains 8 samples *on each rank* trains another model on another number of hosts: the
# global batch changes, and with it the right learning rate (lesson 04c). This course's scripts take
# `--global-batch` and divide. What if fewer hosts are free today?

# %% tags=["nbval-check-output"]
hosts_lab.batch_table(8, [16, 8, 4, 12])

# %% [markdown]
# Gradient accumulation (lesson 02b) keeps the batch if it can be cut into equal micro-batches,
# which 12 ranks can't do. Then choose another number of ranks, such as 8.

# %% [markdown]
# ## Break it
#
# ### First: a variable that is expanded too early

# %%
early = lab.run(
    "early",
    "sbatch --wait --job-name=early --nodes=2 --ntasks-per-node=2 "
    "--wrap='srun echo task $SLURM_PROCID'; cat $BOOTCAMP_LOGS/early-*.out",
)
guess_early.score(len({s for s in early.output.splitlines() if s.startswith("task")}), within=0)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The shell of the job file replaces `$SLURM_PROCID` before srun starts. That shell has the number
# of the job's first task, 0. So every task gets a 0. As `RANK` that would be four ranks 0.
# </details>
#
# ### Second: a host that calls itself 127.0.1.1
#
# Debian and Ubuntu write the host's own name into `/etc/hosts` with a loopback address. Nobody
# notices on one host. (The long part of the line shows such a file to the ranks only, and
# `--kill-on-bad-exit` ends all tasks when one fails.)

# %%
MEET = "python src/snippets/meet.py 2>&1 | grep -v '^\\['"
loopback = lab.run(
    "loopback",
    f"MASTER_ADDR=host0 MASTER_PORT=29402 srun --nodes=2 --kill-on-bad-exit=1 "
    f"{hosts_lab.LOOPBACK_NAME} {MEET}",
)
assert "remote=[127.0.1.1]" in loopback.output, "they have met"
loopback

# %% [markdown]
# They did find the store: its address was given. Then each rank published its own address,
# 127.0.1.1, and its peer tried to connect there. On every host that is the host itself, where
# nobody was waiting. `remote=[127.0.1.1]` in the error says it all. And srun failed, yet the exit
# code is 0, that of `grep`: in job files with pipes, write `set -o pipefail`. The fix is one
# variable:

# %%
lab.run(
    "interface",
    f"MASTER_ADDR=host0 MASTER_PORT=29403 GLOO_SOCKET_IFNAME=eth0 srun --nodes=2 "
    f"--kill-on-bad-exit=1 {hosts_lab.LOOPBACK_NAME} {MEET}",
)

# %% [markdown]
# ## Exercises
#
# ### First: from a rank to its place
#
# `place_of_rank(rank, gpus)` returns the host, counted from 0, and the LOCAL_RANK of a rank. `gpus`
# lists how many GPUs each host has; each GPU has one rank, and ranks are numbered host by host.

# %%
from bootcamp import exercise


def place_of_rank(rank, gpus):
    # your turn: return (host, local_rank)
    ...


print(exercise.check("place_of_rank", place_of_rank))

# %% [markdown]
# ### Second: where there is no scontrol
#
# In many containers Slurm's commands are missing, and only the variable is there. Write
# `hosts_of(nodelist)`, which returns the list of names: `"gpu[08-09,12]"` stands for gpu08, gpu09
# and gpu12. A list can have several such groups, with commas between them: `"login1,gpu[08-09]"`.


# %%
def hosts_of(nodelist):
    # your turn: return a list of names
    ...


print(exercise.check("hosts_of", hosts_of))

# %% [markdown]
# `exercise.solution("place_of_rank")` and `exercise.solution("hosts_of")` show solutions. In a
# program of your own use a library for lists of hosts, such as python-hostlist.
#
# ### Third: job files with a fault
#
# Eight job files, each with one fault that is found on real clusters. They should train on four
# ranks over two hosts, the last one on two.
#
# | file | how it ends |
# |---|---|
# | `job_space` | COMPLETED, on two ranks of one host |
# | `job_path` | FAILED, "can't open file" |
# | `job_address`, `job_localhost` | FAILED: others never come, or refuse the connection |
# | `job_early` | FAILED: the folder "may hold another run", or an address is in use |
# | `job_alone` | FAILED, "1/4 clients joined" |
# | `job_twice` | FAILED, an error of the rendezvous |
# | `job_agents` | told to save and queue again (lesson 09b), it dies of the signal |
#
# Choose two or more: start them by name, edit the files, and have them checked on two hosts.
# `exercise.solution("job_...")` shows what was wrong.

# %%
print(exercise.start("job_space"))  # or another name

# %%
print(exercise.check("job_space"))
print(exercise.check("job_path"))
print(exercise.check("job_address"))
print(exercise.check("job_early"))
print(exercise.check("job_alone"))
print(exercise.check("job_twice"))
print(exercise.check("job_localhost"))
print(exercise.check("job_agents"))

# %% [markdown]
# ## When to use it and when not
#
# **Use several hosts** when one host is full: in memory (lesson 08), or because the training takes
# too long and its batch may grow (lesson 04c). One host with eight GPUs is faster, and breaks less
# often, than two with four. (With NVL72 the border that matters is the rack's.)
#
# **srun with a task for each rank**: the fewest programs between Slurm and the ranks; with
# `--kill-on-bad-exit`, all end when one fails. **srun with torchrun**: the same line on any
# cluster, restarts and elastic training (lesson 09b). **static** where somebody numbers the hosts
# for you; **c10d** elsewhere.
#
# **All hosts need the same** script, Python environment and data, each at the same path. That is a
# *shared disk*, or a container image. A shared disk is slow for many small files: keep the
# environment in an image and copy the data to each host's own disk. Only rank 0 writes the record;
# checkpoints go to the shared disk. *Containers* need the host's network (Docker's `--network
# host`; Slurm's Pyxis and Apptainer have it anyway), enough shared memory (`--shm-size`), and the
# devices of InfiniBand. They often lack `scontrol`: list the hosts before the container starts. How
# to install on a cluster is in [machines for a class](../slides/kit/machines.md).
#
# **Before you run**: print host, RANK, LOCAL_RANK and GPU of each rank; let the first job be short;
# measure one all-reduce between hosts, and compare it with the network's nominal rate: NVIDIA's
# nccl-tests do (`all_reduce_perf -b 8 -e 8G -f 2`, column `busbw`; a card's 400 Gbit/s are 50 GB/s,
# and a ring uses all cards).

# %% [markdown]
# ### Without Slurm
#
# Kubernetes, rented machines and Ray start ranks too, and the script is the same. Each of these
# files trains on two hosts with two ranks each. "Run" means that the tool has started the course's
# script on one machine, "read" that its own parser has accepted the file and no more: running it
# takes a cluster of that kind.

# %% tags=["nbval-check-output"]
hosts_lab.scheduler_table()

# %%
lab.stop()

# %% [markdown]
# ## Sources
#
# - Slurm 22.05 release notes (`srun` and SLURM_CPUS_PER_TASK), documentation and manual pages:
#   *srun*, *sbatch*, *salloc*, *scontrol*, *slurm.conf*, *Generic resource (GRES) scheduling*, *Job
#   array support*.
# - PyTorch documentation: *torchrun (Elastic Launch)*, *Rendezvous*; the order of hosts is that of
#   torch/distributed/elastic/rendezvous/dynamic_rendezvous.py in torch 2.13.
# - NVIDIA, *NCCL user guide*: environment variables. *GB200 NVL72*: 18 hosts in one NVLink domain.
# - Debian Reference, section 5.1.1: the host's name and 127.0.1.1.
# - Hockney, *The communication challenge for MPP*, Parallel Computing 20, 1994. Alpha and beta.
# - Linux manual pages: unshare(1), hosts(5), tc-tbf(8).
