"""python -P src/bootcamp/launcher/supervisor.py <process id of the kernel>

The process between a notebook's kernel and its ranks: starts them, watches them, ends them.

It adopts every orphan below it (Linux: child subreaper), so whatever starts whatever, nothing gets
away from it; and it holds a pipe to the kernel, so when the kernel dies, however it dies, it ends
every rank and itself. It speaks with the kernel in lines of JSON on standard input and output:

    <- {"do": "run", "run": folder, "start": "warm", "ranks": [...], ...}   see Job
    <- {"do": "stop", "run": folder, "why": "interrupted"}
    -> {"ready": true, "gpus": 0}
    -> {"run": folder, "event": "waiting", "message": why it has not begun}
    -> {"run": folder, "event": "ended", "error": null or what went wrong}

Standard library only, so that it is there before the fork server has loaded torch.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import machine
from bootcamp.launcher import device_locks, forkserver, process_tree, simulated_hosts, subreaper
from bootcamp.records import heartbeat, summary

PR_SET_CHILD_SUBREAPER = 36
TICK_SECONDS = 0.25
START_SECONDS = 180
GRACE_SECONDS = 0.3  # how long other ranks may take to say what they saw, after the first failure
FORKSERVER = Path(forkserver.__file__)
GUARD = Path(subreaper.__file__)
HOSTS = Path(simulated_hosts.__file__)
HOROVOD_EXIT = re.compile(r"^Process (\d+) exit with status code (\d+)\.", re.M)
HOROVOD_PREFIX = re.compile(r"^\[(\d+)\]<(?:stdout|stderr)>:", re.M)
TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.M)
ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.S)


class ForkServer:
    """The warm fork server: started at once, started again when it dies, asked for ranks."""

    def __init__(self):
        self.process = None
        self.ready = asyncio.Event()
        self.gave_up = False
        self._answers: dict[str, asyncio.Future] = {}

    async def keep_alive(self, tell) -> None:
        """Start the server and start it anew each time it ends, as long as this process lives."""
        failures = 0
        while failures < 3:
            command = [sys.executable, "-P", str(FORKSERVER)]
            self.process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            failures += 1
            async for line in self.process.stdout:
                answer = json.loads(line)
                if "ready" in answer:
                    failures = 0
                    self.ready.set()
                    tell(answer)
                elif (waiting := self._answers.pop(answer["run"], None)) and not waiting.done():
                    waiting.set_result(answer)
                else:  # the run was stopped before its ranks were there
                    process_tree.end(set(answer.get("pids", [])))
            self.ready.clear()
            await self.process.wait()
            for waiting in self._answers.values():
                if not waiting.done():
                    waiting.set_result({"died": True})
            self._answers.clear()
        self.gave_up = True
        self.ready.set()  # whoever waits shall hear it
        tell({"ready": False})

    async def fork(self, order: dict) -> list[int]:
        """Fork the ranks of a run; their process ids. Tries anew if the server dies meanwhile."""
        while True:
            await self.ready.wait()
            if self.gave_up:
                raise RuntimeError('the fork server does not start: launch with start="cold"')
            waiting = asyncio.get_running_loop().create_future()
            self._answers[order["run"]] = waiting
            request = {**order, "supervisor": os.getpid()}
            with contextlib.suppress(ConnectionError):
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                await self.process.stdin.drain()
            answer = await waiting
            if "error" in answer:
                raise RuntimeError(answer["error"])
            if "pids" in answer:
                return answer["pids"]


class Job:
    """One run under supervision, from its start to the last process of it gone.

    order: what the kernel asks for. `run`, the folder; `start`, one of warm, cold, command;
    `ranks`, what forkserver.become_rank wants of each; `command` and `env` for a launcher such as
    torchrun; `hang_seconds`, how long no rank may finish a step; `records`, whether the script
    has to leave a record; `port` for the rendezvous, 0 for any; `hosts`, how many to make on this
    machine and the rate of their links, None for none; `lease`, the devices to lease before the
    start, and the variable of the environment that names them to the ranks (lease.py); `cores`, the
    folder of their locks and how many each CPU rank computes with. `tell` tells the kernel.
    """

    def __init__(self, order: dict, server: ForkServer, tell=lambda event: None):
        self.order, self.server, self.tell = order, server, tell
        self.folder = Path(order["run"])
        self.pids: list[int] = []
        self.sessions: set[int] = set()
        self.codes: dict[int, int] = {}  # index of the process -> exit code, or minus its signal
        self.failure: dict | None = None
        self.stopped = asyncio.get_running_loop().create_future()
        self._seen: set[int] = set()  # every process of this run, to take their exit status
        self._holder: subprocess.Popen | None = None  # of the run's hosts
        self._leases: list[device_locks.Lease | device_locks.Cores] = []
        self._last_life, self._last_cpu_seconds = time.monotonic(), 0.0
        self._last_beats: dict = {}

    async def run(self) -> dict:
        """Start, watch, end; the last event for the kernel."""
        try:
            await self._take_devices()
            if not self.failure:
                await self._start_unless_stopped()
            if not self.failure:
                await self._watch()
        except Exception as error:  # could not start: the kernel shall hear it, not wait
            self.failure = summary.failure(None, "start", f"{type(error).__name__}: {error}")
        finally:
            try:
                await self._end_all()
            finally:
                for held in self._leases:
                    held.release()
        return self._conclude()

    async def _take_devices(self) -> None:
        """Wait for the run's turn and its devices; take cores that are free."""
        if wish := self.order.get("lease"):
            try:
                await self._wait_for(device_locks.Request(**wish["request"]), wish["variable"])
            except device_locks.LeaseError as error:
                self.failure = summary.failure(None, "refused", str(error))
        if (wish := self.order.get("cores")) and not self.failure:
            taken = device_locks.take_cores(
                cores=machine.cores(), ranks=len(self.order["ranks"]), **wish
            )
            self._leases.append(taken)
            if taken.place:
                self._set("BOOTCAMP_FIRST_CORE", str(taken.place))

    async def _wait_for(self, request: device_locks.Request, variable: str) -> None:
        """Ask until the devices are had, or the kernel says stop; the reader hears what it is."""
        said = before = ""
        try:
            while (granted := request.ask()) is None:
                stays, before = request.why == before, request.why
                if stays and before != said:  # not what is true for a moment, between two runs
                    said = before
                    self.tell({"run": self.order["run"], "event": "waiting", "message": said})
                if (await asyncio.wait({self.stopped}, timeout=device_locks.POLL_SECONDS))[0]:
                    why = self.stopped.result()
                    self.failure = summary.failure(None, why, "stopped while it waited for devices")
                    return
        finally:
            request.withdraw()
        self._leases.append(granted)
        self._set(variable, ",".join(device["value"] for device in granted.devices))

    def _set(self, variable: str, value: str) -> None:
        """Set a variable in the environment of all ranks, and of the launcher that starts them."""
        for settings in (self.order, *self.order["ranks"]):
            settings.setdefault("env", {})[variable] = value

    async def _start_unless_stopped(self) -> None:
        start = asyncio.create_task(self._start())
        done, _ = await asyncio.wait(
            {start, self.stopped}, timeout=START_SECONDS, return_when="FIRST_COMPLETED"
        )
        if start in done:
            start.result()
            return
        start.cancel()
        if self.stopped in done:
            self.failure = summary.failure(None, self.stopped.result(), "stopped before it began")
        else:
            self.failure = summary.failure(
                None, "start", f"no rank had started after {START_SECONDS} s"
            )

    async def _start(self) -> None:
        if self.order.get("hosts"):
            await self._make_hosts(**self.order["hosts"])
        if self.failure:
            return
        if self.order["start"] == "warm":
            self.pids = await self.server.fork(self.order)
        elif self.order["start"] == "cold":
            self.pids = self._start_cold()
        else:
            self.pids = [self._start_command()]
        for pid in self.pids:
            with contextlib.suppress(FileNotFoundError):
                self.sessions.add(process_tree.read(pid).session)
        self.sessions.discard(os.getsid(0))
        for held in self._leases:
            held.note(self.pids)
        self._last_life = time.monotonic()

    async def _make_hosts(self, count: int, link: str | None) -> None:
        """Start the process that holds the hosts of this run, and tell each rank its own."""
        process = subprocess.Popen(
            [sys.executable, "-P", str(HOSTS), str(count), *([link] if link else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "BOOTCAMP_RUN": self.order["run"]},
            start_new_session=True,
        )
        process.returncode = 0  # as with the ranks, this file waits for it
        self.sessions.add(process.pid)
        self._holder = process  # its standard input stays open as long as the run
        answer = json.loads(await asyncio.to_thread(process.stdout.readline) or "{}")
        if "hosts" not in answer:
            why = answer.get("error", "the process that makes them died")
            self.failure = summary.failure(None, "refused", f"hosts={count}: {why}")
            return
        for rank in self.order["ranks"]:
            rank["host"] = answer["hosts"][rank["host"]]

    def _start_cold(self) -> list[int]:
        store = forkserver.listen(self.order.get("port", 0))
        os.set_inheritable(store.fileno(), True)
        pids = []
        for rank in self.order["ranks"]:
            told = json.dumps({**rank, "env": None})  # any user can read a command line
            process = subprocess.Popen(
                [sys.executable, "-P", str(FORKSERVER), "rank", told, str(store.fileno())],
                pass_fds=[store.fileno()],
                stdout=subprocess.DEVNULL,
                env=rank["env"],
                start_new_session=True,
            )
            process.returncode = 0  # this file waits for it, not the Popen object
            pids.append(process.pid)
        store.close()
        return pids

    def _start_command(self) -> int:
        ranks = self.folder / "ranks"
        with open(ranks / "launcher.out", "ab") as out, open(ranks / "launcher.err", "ab") as err:
            process = subprocess.Popen(
                [sys.executable, "-P", str(GUARD), *self.order["command"]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **self.order["env"], "BOOTCAMP_RUN": self.order["run"]},
                start_new_session=True,
            )
        process.returncode = 0
        return process.pid

    async def _watch(self) -> None:
        """Until every process has ended well, one has not, ranks hang, or the kernel says stop."""
        exits = {asyncio.create_task(self._exit(i)) for i in range(len(self.pids))}
        while exits and not self.failure:
            done, _ = await asyncio.wait(
                {*exits, self.stopped}, timeout=TICK_SECONDS, return_when="FIRST_COMPLETED"
            )
            exits -= done
            if self.stopped in done:
                self.failure = summary.failure(None, self.stopped.result(), "stopped from outside")
            elif not done:
                self._note_sessions()
                self._check_for_hang()
            elif (failed := self._first_failure()) is not None:
                if exits:
                    await asyncio.wait(exits, timeout=GRACE_SECONDS)
                self.failure = self._describe(failed)
        for task in exits:
            task.cancel()

    async def _exit(self, index: int) -> None:
        try:
            status = await wait_for_exit(self.pids[index])
            self.codes[index] = os.waitstatus_to_exitcode(status)
        except OSError:  # never seen: an exit that nobody can tell is not a good one
            self.codes[index] = 1

    def _first_failure(self) -> int | None:
        """The process that failed first: codes keep the order in which the processes ended."""
        return next((index for index, code in self.codes.items() if code != 0), None)

    def _describe(self, index: int) -> dict:
        code, rank = self.codes[index], index
        said = self._error_output(None if self.order["start"] == "command" else rank)
        if self.order["start"] == "command":
            rank, code = _first_in_report(said) or (None, code)
            said = _said_by(said, rank)
        if code < 0:
            return summary.failure(rank, "killed", _signal_sentence(-code), said)
        if code == 2 and (refusal := self._refusal(said)):
            return summary.failure(rank, "refused", refusal)
        lines = [line for line in said.strip().splitlines() if re.match(r"\w", line)]
        message = lines[-1] if lines else f"ended with exit code {code}"
        return summary.failure(rank, "raised", message, said)

    def _refusal(self, said: str) -> str | None:
        """The one sentence of a script that refused its flags: it begins with the script's name."""
        name = Path(self.order["ranks"][0]["argv"][0]).name if self.order["ranks"] else None
        return next((line for line in said.splitlines() if line.startswith(f"{name}: ")), None)

    def _error_output(self, rank: int | None) -> str:
        """The end of what a rank wrote to standard error; of a launcher, of all that it wrote."""
        ends = ("launcher.out", "launcher.err") if rank is None else (f"{rank}.err",)
        paths = [self.folder / "ranks" / end for end in ends]
        texts = [path.read_text(errors="replace")[-20_000:] for path in paths if path.exists()]
        return TORCH_PREFIX.sub("", "".join(texts))

    def _note_sessions(self) -> None:
        """Sessions of torchrun's or horovodrun's workers, to find them when they are orphans."""
        table = process_tree.processes()
        below = process_tree.tree(set(self.pids), table)
        self.sessions |= {table[pid].session for pid in below if pid in table} - {os.getsid(0)}

    def _beats(self) -> dict[int, tuple]:
        found = {}
        for path in (self.folder / "ranks").glob("*.beat"):
            if beat := heartbeat.read(path):
                found[int(path.stem)] = beat
        return found

    def _check_for_hang(self) -> None:
        """No step for `hang_seconds` is a hang; ranks that compute get `busy_seconds`.

        A foreign launcher may take longer than that to start its ranks.
        """
        beats = self._beats()
        cpu_seconds = self._cpu_seconds(beats)
        if beats != self._last_beats:
            self._last_beats, self._last_cpu_seconds = beats, cpu_seconds
            self._last_life = time.monotonic()
        silent = time.monotonic() - self._last_life
        busy = cpu_seconds - self._last_cpu_seconds > 0.2 * silent
        patience = self.order["busy_seconds" if busy else "hang_seconds"]
        if self.order["start"] == "command" and self.order["ranks"] and not beats:
            patience = max(patience, START_SECONDS)
        if silent > patience:
            self.failure = self._describe_hang(beats, silent)

    def _cpu_seconds(self, beats: dict[int, tuple]) -> float:
        """Processor time of the ranks and what they have started, as far as it can be read."""
        pids = {*self.pids, *(beat[0] for beat in beats.values())}
        return sum(process_tree.cpu_seconds(pid) for pid in pids)

    def _describe_hang(self, beats: dict[int, tuple], silent: float) -> dict:
        """Ask every rank for its stack, then say who stands where."""
        pids = {rank: beat[0] for rank, beat in beats.items()}
        if self.order["start"] != "command":
            pids = {rank: pid for rank, pid in enumerate(self.pids) if rank not in self.codes}
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)  # faulthandler writes at once, but each rank must get a core
        stacks = {rank: self._stack(rank) for rank in sorted(pids)}
        waiting = {rank for rank, stack in stacks.items() if _waits_for_others(stack)}
        stuck = sorted(set(stacks) - waiting)
        steps = {rank: beats[rank][1] if rank in beats else 0 for rank in stacks}
        who = f"rank {stuck[0]} hangs" if len(stuck) == 1 and waiting else "the ranks hang"
        where = "\n".join(
            f"rank {rank}, {steps[rank]} steps done"
            f"{', waits for the others' if rank in waiting else ''}:\n{stack}"
            for rank, stack in stacks.items()
        )
        message = f"{who}: no rank has finished a step for {silent:.0f} s"
        message += ". If a step may take so long, launch with a larger hang_seconds="
        return summary.failure(stuck[0] if len(stuck) == 1 else None, "hang", message, where)

    def _stack(self, rank: int) -> str:
        """The main thread's part of the dump, innermost frame first."""
        path = self.folder / "ranks" / f"{rank}.stack"
        text = path.read_text(errors="replace") if path.exists() else ""
        own = text[text.rfind("most recent call first") :] if text else ""
        frames = [line for line in own.splitlines()[1:] if line.startswith("  File")]
        return "\n".join(frames[:12]) or "  (no answer: not in Python, or not started yet)"

    async def _end_all(self) -> None:
        """Kill whatever is left of the run and wait until nothing is."""
        deadline = time.monotonic() + 10
        mine = {pid for index, pid in enumerate(self.pids) if index not in self.codes}
        process_tree.end(mine)
        roots = {*self.pids, *(beat[0] for beat in self._beats().values() if self.pids)}
        spared = {os.getpid(), self.server.process.pid if self.server.process else 0}
        while time.monotonic() < deadline:
            below = roots & process_tree.tree({os.getpid()}, process_tree.processes())
            members = process_tree.of_run(self.order["run"], below, self.sessions) - spared
            self._seen |= members
            process_tree.end(members)
            _reap(mine | self._seen)
            if not members:
                return
            await asyncio.sleep(0.01)

    def _conclude(self) -> dict:
        """Write the summary if the ranks have not, and make the event that ends the run."""
        written = summary.read(self.folder)
        began = self.order["records"] or (self.folder / "config.json").exists()
        if not self.failure and began and written["status"] == "running":
            message = "the script ended without run.finish(): its record is not complete"
            self.failure = summary.failure(0, "raised", message)
        if self.failure and self._said_by_rank(written):
            self.failure |= written["error"]
        elif self.failure:
            stopped = self.failure["kind"] in ("interrupted", "kernel died")
            steps = summary.measures(summary.read_steps(self.folder))
            self._write("interrupted" if stopped else "failed", **steps, error=self.failure)
        elif written["status"] == "running":
            self._write("ok", steps=0)
        return {"run": self.order["run"], "event": "ended", "error": self.failure}

    def _said_by_rank(self, written: dict) -> bool:
        """Whether the rank that failed first has itself written what happened."""
        if written["status"] not in ("failed", "oom") or self.failure["kind"] != "raised":
            return False
        return self.failure["rank"] in (None, written["error"]["rank"])

    def _write(self, status: str, **content) -> None:
        with contextlib.suppress(OSError):  # a full disk: the kernel still hears of it
            summary.write(self.folder, status, **content)


def _first_in_report(said: str) -> tuple[int | None, int] | None:
    """(rank, exit code) of the rank that failed first, by torchrun's or horovodrun's own report.

    horovodrun reports in the order in which the ranks ended, and the survivors of a dead rank raise
    at once: so a rank that a signal killed is the first, and of several that raised none is.
    """
    if found := ROOT_CAUSE.search(said):
        return int(found[1]), int(found[2])
    ends = [(int(rank), int(code)) for rank, code in HOROVOD_EXIT.findall(said) if code != "0"]
    killed = [(rank, 128 - code) for rank, code in ends if 128 < code != 128 + signal.SIGTERM]
    refused = [(rank, code) for rank, code in ends if code == 2]
    if killed or refused:
        return [*killed, *refused][0]
    return (None, ends[0][1]) if ends else None


def _said_by(said: str, rank: int | None) -> str:
    """What horovodrun passed on from a rank, without its prefixes; the text of others as it is."""
    lines = said.splitlines(keepends=True)
    if not any(HOROVOD_PREFIX.match(line) for line in lines):
        return said
    marked = [(HOROVOD_PREFIX.match(line), line) for line in lines]
    wanted = [(mark, line) for mark, line in marked if mark and rank in (None, int(mark[1]))]
    return "".join(line[mark.end() :] for mark, line in wanted)


WAITING_FRAMES = (
    "distributed_c10d.py",
    "torch/autograd/graph.py",
    "torch/distributed/",
    "torch/nn/parallel/distributed.py",
    "horovod/torch/mpi_ops.py",
    "bootcamp/train/record.py",  # loss.item(): on a GPU the wait for a collective ends up here
)


def _waits_for_others(stack: str) -> bool:
    """Whether a stack's innermost frames are in a collective, or a backward that has one."""
    innermost = stack.splitlines()[:2]
    return any(frame in line for line in innermost for frame in WAITING_FRAMES)


def _signal_sentence(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "a real-time signal"
    sentence = f"was killed by signal {number} ({name})"
    if number == signal.SIGKILL:
        sentence += ", by somebody or by the system for lack of memory"
    return sentence


def _reap(pids: set[int]) -> None:
    """Take the exit status of these processes, as far as they are dead children of this one."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def has_pidfd() -> bool:
    """Whether the kernel tells of a process's end through a file (Linux 5.3, and not forbidden)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = has_pidfd()


async def wait_for_exit(pid: int) -> int:
    """The wait status of a child, without blocking the other runs."""
    if HAS_PIDFD:
        await _end_of(pid)
        return os.waitpid(pid, 0)[1]
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        await asyncio.sleep(0.05)


async def _end_of(pid: int) -> None:
    """Wait until a process has ended, a child or not."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    handle = os.pidfd_open(pid)
    loop.add_reader(handle, lambda: ended.done() or ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(handle)
        os.close(handle)


class Supervisor:
    """Takes the kernel's orders until the kernel is gone."""

    def __init__(self, kernel: int):
        self.kernel = kernel
        self.events = os.dup(1)
        os.dup2(2, 1)  # what anybody prints must not end up among the events
        self.server = ForkServer()
        self.jobs: dict[str, Job] = {}
        self.tasks: set[asyncio.Task] = set()
        self._kept_alive: asyncio.Task | None = None

    def tell(self, event: dict) -> None:
        with contextlib.suppress(OSError):  # the kernel may be gone
            os.write(self.events, json.dumps(event).encode() + b"\n")

    async def main(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
            self._kept_alive = self._spawn(self.server.keep_alive(self.tell))
        else:
            self.tell({"ready": True, "gpus": None})
        orders = self._spawn(self._take_orders())
        gone = self._spawn(self._kernel_gone())
        await asyncio.wait({orders, gone}, return_when="FIRST_COMPLETED")
        await self._shut_down()

    def _spawn(self, coroutine) -> asyncio.Task:
        task = asyncio.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _take_orders(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            order = json.loads(line)
            if order["do"] == "run":  # known at once: the next line may be its stop
                job = self.jobs[order["run"]] = Job(order, self.server, self.tell)
                self._spawn(self._run(job))
            elif (job := self.jobs.get(order["run"])) and not job.stopped.done():
                job.stopped.set_result(order["why"])

    async def _run(self, job: Job) -> None:
        run = job.order["run"]
        try:
            event = await job.run()
        except Exception as error:
            failure = summary.failure(None, "start", f"{type(error).__name__}: {error}")
            event = {"run": run, "event": "ended", "error": failure}
        finally:
            del self.jobs[run]
        self.tell(event)

    async def _kernel_gone(self) -> None:
        """The kernel's death, also when a child of it still holds the other end of the pipe."""
        with contextlib.suppress(ProcessLookupError):
            if HAS_PIDFD:
                await _end_of(self.kernel)
            while True:
                os.kill(self.kernel, 0)
                await asyncio.sleep(1)

    async def _shut_down(self) -> None:
        running = [task for task in self.tasks if task.get_coro().__name__ == "_run"]
        for job in self.jobs.values():
            if not job.stopped.done():
                job.stopped.set_result("kernel died")
        if running:
            await asyncio.wait(running, timeout=15)
        if self._kept_alive:
            self._kept_alive.cancel()
        below = process_tree.tree({os.getpid()}, process_tree.processes())
        process_tree.end(below - {os.getpid()})


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(Supervisor(int(sys.argv[1])).main())
