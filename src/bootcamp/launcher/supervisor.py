"""python -P src/bootcamp/launcher/supervisor.py <process id of the kernel>

Start, watch and end a notebook's ranks, in a process between them and the kernel.

It adopts every orphan below it, so nothing that a run starts gets away; and it holds a pipe to the
kernel, so when the kernel dies, however it dies, it ends every rank and itself. It speaks with the
kernel in lines of JSON on standard input and output:

    <- {"do": "run", "run": folder, "request": a RunRequest as JSON}
    <- {"do": "stop", "run": folder, "why": "interrupted"}
    <- {"do": "join", "run": folder, "host": 1}     torchrun on a host that was absent or lost
    -> {"ready": true, "gpus": 0}
    -> {"run": folder, "event": "waiting", "message": why it has not begun}
    -> {"run": folder, "event": "ended", "error": null or what went wrong}

Imports no torch, so that it is there before the fork server has loaded it.
"""

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import files, linux
from bootcamp.launcher import first_failure, process_tree, simulated_hosts, spawn, subreaper
from bootcamp.launcher.device_locks import DeviceLocks, LeaseError
from bootcamp.launcher.hang import Watchdog
from bootcamp.launcher.run_request import Command, RunRequest
from bootcamp.launcher.simulated_hosts import HostsError
from bootcamp.records import heartbeat, rank_errors, summary

POLL_SECONDS = 0.5
TICK_SECONDS = 0.25
START_SECONDS = 180
GRACE_SECONDS = 0.3  # how long other ranks may take to say what they saw, after the first failure
AGENTS_GRACE_SECONDS = 5  # the same for torchrun on other hosts, which ends its ranks first
END_SECONDS = 10  # for the processes of a run to be gone
LAST_SECONDS = 15  # for all runs to be, when the kernel is gone
STORE = "store"  # of the ranks' rendezvous, a process beside them
STORE_PORT = 29400  # on a simulated host nobody else can have taken it


class RunHosts:
    """The simulated hosts of one run, and which rank is on which. With hosts=1 it does nothing.

    `hosts.json` in the run's folder has a row for each rank, and one more when it starts anew:

        {"hosts": [as simulated_hosts.make returns them],
         "agents": {"host0": process id of its torchrun, ...},
         "ranks": [{"rank": 0, "host": "host0", "local_rank": 0, "attempt": 0, "pid": ...}, ...]}
    """

    def __init__(self, request: RunRequest):
        self.request, self.folder = request, Path(request.run)
        self.entries: list[dict] = []  # as simulated_hosts.make returns them
        self.keeper: asyncio.subprocess.Process | None = None  # which keeps them
        self.agents: dict[str, int] = {}  # host -> process of its torchrun
        self._ranks: dict[int, dict] = {}  # by process id, in the order in which they were seen

    async def make(self) -> None:
        """Start the process that makes the hosts and keeps them. Raises HostsError."""
        command = simulated_hosts.make_command(self.request.hosts, self.request.link)
        # stdin stays open while this process lives; the hosts end when it closes
        how: dict = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        how |= {"env": {**os.environ, "BOOTCAMP_RUN": self.request.run}, "start_new_session": True}
        self.keeper = await asyncio.create_subprocess_exec(*command, **how)
        printed = await self.keeper.stdout.readline() or await self.keeper.stderr.read()
        try:
            self.entries = simulated_hosts.read_hosts(printed.decode())
        except HostsError as error:
            raise HostsError(f"hosts={self.request.hosts}: {error}") from None

    def find_host(self, rank: Command) -> dict | None:
        return self.entries[int(rank.env["GROUP_RANK"])] if self.entries else None

    def record_started_ranks(self, pids: list[int]) -> None:
        """Record ranks that the launcher itself started, in order of rank."""
        if self.entries:
            for pid, rank in zip(pids, self.request.ranks, strict=True):
                self._record(pid, self.find_host(rank)["name"], rank.env)
            self.write()

    def record_torchrun_ranks(self) -> None:
        """Record the ranks that torchrun has started, recognised by their environment."""
        before = len(self._ranks)
        for host, agent in self.agents.items():
            for pid in process_tree.find_below({agent}) - set(self._ranks):
                env = process_tree.read_environment(pid)
                if env.get("RANK", "").isdigit() and "GROUP_RANK" in env:
                    self._record(pid, host, env)
        if len(self._ranks) > before:
            self.write()

    def _record(self, pid: int, host: str, env: dict[str, str]) -> None:
        row = {"rank": int(env["RANK"]), "host": host, "local_rank": int(env["LOCAL_RANK"])}
        row |= {"attempt": int(env.get("TORCHELASTIC_RESTART_COUNT", 0)), "pid": pid}
        self._ranks[pid] = row

    def write(self) -> None:
        ranks = list(self._ranks.values())
        content = {"hosts": self.entries, "agents": self.agents, "ranks": ranks}
        files.write_json(self.folder / rank_errors.HOSTS_FILE, content)

    def link_outputs(self) -> None:
        """Hard-link the outputs of each rank's last attempt to ranks/<rank>.out and <rank>.err."""
        ranks = self.folder / "ranks"
        for row in self._ranks.values():
            attempt = f"{row['host']}/*/attempt_{row['attempt']}/{row['local_rank']}"
            for path in ranks.glob(f"{attempt}/std*.log"):
                link = ranks / f"{row['rank']}.{path.stem.removeprefix('std')}"
                link.unlink(missing_ok=True)
                link.hardlink_to(path)


class SupervisedRun:
    """One run, until its last process is gone. tell: sends the kernel an event."""

    def __init__(self, request: RunRequest, server: spawn.ForkServer, tell):
        self.request, self.server, self.tell = request, server, tell
        self.folder = Path(request.run)
        self.processes = {}  # rank, or name of a launcher -> what was started last; and the store
        self.pids: list[int] = []  # of all that were started, in order of rank
        self.sessions: set[int] = set()
        self.codes: dict[int | str, int] = {}  # as processes: exit codes, the first end first
        self.devices = DeviceLocks(request, tell)
        self.hosts = RunHosts(request)
        self._exits: set[asyncio.Task] = set()
        self._why_stopped = ""
        self._write = functools.partial(summary.write, self.folder)
        self._work = asyncio.create_task(self._start_and_watch())

    def stop(self, why: str) -> None:
        """Let the run end for this reason, unless there is one already."""
        if not self._why_stopped:
            self._why_stopped = why
            self._work.cancel()

    async def run(self) -> dict | None:
        """Start, watch and end the run; return what went wrong, None if nothing did."""
        try:
            failure = await self._work
        except asyncio.CancelledError:
            failure = summary.failure(None, self._why_stopped, "stopped from outside")
        except (LeaseError, HostsError) as error:
            failure = summary.failure(None, "refused", str(error))
        except Exception as error:  # the kernel is told, so that it does not wait
            failure = summary.failure(None, "start", f"{type(error).__name__}: {error}")
        finally:
            try:
                await self._end_all()
            finally:
                self.devices.release()
        return self._conclude(failure)

    async def _start_and_watch(self) -> dict | None:
        await self.devices.take()
        try:
            async with asyncio.timeout(START_SECONDS):
                if self.request.hosts > 1:
                    await self.hosts.make()
                if self.request.agents:
                    for host in range(len(self.request.agents)):
                        if host not in self.request.absent:
                            await self._start_agent(host)
                else:
                    await self._start_ranks()
        except TimeoutError:
            return summary.failure(None, "start", f"no rank had started after {START_SECONDS} s")
        self._note_sessions({each.pid for each in self.processes.values()})
        return await self._watch()

    async def _start_ranks(self) -> None:
        """Start the store and all ranks at once; on a host, the store makes its socket itself."""
        ranks, port, listening = self.request.ranks, STORE_PORT, None
        with contextlib.ExitStack() as stack:
            if not self.hosts.entries:  # bound now, so that no other run can take its port
                listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
                port = listening.getsockname()[1]
            for rank in ranks:
                rank.env |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            starts = [self._start_rank(number, rank) for number, rank in enumerate(ranks)]
            store = Command([], ranks[0].env)
            await asyncio.gather(self._start_rank(STORE, store, listening), *starts)
        self.pids += [self.processes[number].pid for number in range(len(ranks))]
        self.hosts.record_started_ranks(self.pids)

    async def _start_rank(self, name: int | str, command: Command, listening=None) -> None:
        """Start a rank, or the store, which writes into the files of rank 0."""
        kind = STORE if name == STORE else "rank"
        output = self.folder / "ranks" / command.env["RANK"]
        how = kind, command, output, self.hosts.find_host(command), listening
        if self.request.start == "warm":
            self.processes[name] = await self.server.fork(*how, self.request.framework)
        else:
            self.processes[name] = await spawn.start_cold(*how)

    async def _start_agent(self, host: int) -> None:
        """Start the launcher of a run, or that of a host, by whose name it is known."""
        place = self.hosts.entries[host] if self.hosts.entries else None
        name = place["name"] if place else "launcher"
        agent, output = self.request.agents[host], self.folder / "ranks" / name
        how = [subreaper.__file__, *agent.argv], agent.env, output, place
        self.processes[name] = started = await spawn.start_program(*how)
        self.pids.append(started.pid)
        if place:
            self.hosts.agents[name] = started.pid
            self.hosts.write()

    async def join(self, host: int) -> None:
        """Start torchrun on a host on which there is none: it was absent, or has been lost."""
        name = self.hosts.entries[host]["name"]
        if self._exits and (name not in self.processes or name in self.codes):
            self.codes.pop(name, None)
            await self._start_agent(host)
            self._await_exit(name)

    async def _watch(self) -> dict | None:
        """Wait until all processes have ended well; return what failed or hangs before, if any."""
        watchdog = Watchdog(self.request, self.pids)
        spare = max(0, len(self.request.agents) - self.request.fewest_hosts)
        for name in self.processes:
            if name != STORE:  # which ends with the run
                self._await_exit(name)
        while self._exits:
            tick = {"timeout": TICK_SECONDS, "return_when": "FIRST_COMPLETED"}
            done, _ = await asyncio.wait(self._exits, **tick)
            self._exits -= done
            if not done:
                workers = self._look()
                if failure := await watchdog.find_failure(self.codes, workers):
                    return failure
            elif sum(code != 0 for code in self.codes.values()) > spare:
                if self._exits:
                    patience = AGENTS_GRACE_SECONDS if self.hosts.agents else GRACE_SECONDS
                    await asyncio.wait(self._exits, timeout=patience)
                return first_failure.describe_failure(self.folder, self.request, self.codes)
        return None

    def _await_exit(self, name: int | str) -> None:
        async def note_exit() -> None:
            self.codes[name] = await self.processes[name].wait()

        self._exits.add(asyncio.create_task(note_exit()))

    def _look(self) -> set[int]:
        """Look for runs on the same cores and for new ranks; return all processes below."""
        self.devices.look_for_sharing()
        self.hosts.record_torchrun_ranks()
        workers = process_tree.find_below(set(self.pids))
        self._note_sessions(workers)
        return workers

    def _note_sessions(self, pids: set[int]) -> None:
        self.sessions |= {process_tree.read_session(pid) for pid in pids} - {None, os.getsid(0)}

    async def _end_all(self) -> None:
        """Kill whatever is left of the run and wait until nothing is."""
        deadline = time.monotonic() + END_SECONDS
        for task in self._exits:
            task.cancel()
        left = [self.processes[name] for name in self.processes.keys() - self.codes.keys()]
        if self.hosts.keeper:
            left.append(self.hosts.keeper)
            self.sessions.add(self.hosts.keeper.pid)
        process_tree.kill({each.pid for each in left})
        if ends := [asyncio.create_task(each.wait()) for each in left]:
            await asyncio.wait(ends, timeout=END_SECONDS / 2)
        beats = heartbeat.read_all(self.folder).values() if self.pids else ()
        roots = {*self.pids, *(beat[0] for beat in beats)}
        started = [*self.processes.values(), self.hosts.keeper]  # asyncio takes their exit status
        awaited = {each.pid for each in started if isinstance(each, asyncio.subprocess.Process)}
        seen = set(self.sessions)  # every process of this run, to take their exit status
        while time.monotonic() < deadline:
            below = roots & process_tree.find_below({os.getpid()})
            members = process_tree.find_members(self.request.run, below, self.sessions)
            members -= {os.getpid(), self.server.pid}
            seen |= members
            process_tree.kill(members)
            process_tree.reap(seen - awaited)
            if not members:
                break
            await asyncio.sleep(0.01)

    def _conclude(self, failure: dict | None) -> dict | None:
        """Write the summary if the ranks have not; return what went wrong."""
        with contextlib.suppress(OSError):  # a full disk
            self.hosts.link_outputs()
        written = summary.read(self.folder)
        began = self.request.records or (self.folder / "config.json").exists()
        if not failure and began and written["status"] == "running":
            message = "the script ended without run.finish(): its record is not complete"
            failure = summary.failure(0, "raised", message)
        raised = failure and failure["kind"] == "raised" and written["status"] in ("failed", "oom")
        if raised and failure["rank"] in (None, written["error"]["rank"]):
            failure |= written["error"]  # the rank that failed first has written what happened
            if host := rank_errors.find_host(self.folder, failure["rank"]):
                failure["host"] = host
                self._write(**{**written, "error": failure})
        elif failure:
            stopped = failure["kind"] in ("interrupted", "kernel died")
            self._write("interrupted" if stopped else "failed", error=failure)
        elif written["status"] == "running":
            self._write("ok")
        if self.devices.shared:
            self._write(**summary.read(self.folder), shared_cores=True)
        return failure


class Supervisor:
    """The runs of one kernel, until it is gone."""

    def __init__(self, kernel: int):
        self.kernel = kernel
        self.events = os.dup(1)
        os.dup2(2, 1)  # what anybody prints must not end up among the events
        self.server = spawn.ForkServer()
        self.runs: dict[str, SupervisedRun] = {}  # by folder
        self._tasks: set[asyncio.Task] = set()

    def tell(self, event: dict) -> None:
        with contextlib.suppress(OSError):  # the kernel may be gone
            os.write(self.events, json.dumps(event).encode() + b"\n")

    async def main(self) -> None:
        linux.adopt_orphans()
        kept_alive = asyncio.create_task(self.server.keep_alive(self.tell))
        requests = asyncio.create_task(self._take_requests())
        gone = asyncio.create_task(self._wait_for_kernels_end())
        await asyncio.wait({requests, gone}, return_when="FIRST_COMPLETED")
        for run in self.runs.values():
            run.stop("kernel died")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_SECONDS)
        kept_alive.cancel()
        process_tree.kill(process_tree.find_below({os.getpid()}))

    async def _take_requests(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            request = json.loads(line)
            if request["do"] == "run":  # known at once: the next line may be its stop
                wanted = RunRequest.from_json(request["request"])
                self.runs[wanted.run] = SupervisedRun(wanted, self.server, self.tell)
                self._begin(self._run(wanted.run))
            elif run := self.runs.get(request["run"]):
                if request["do"] == "join":
                    self._begin(run.join(request["host"]))
                else:
                    run.stop(request["why"])

    def _begin(self, coroutine) -> None:
        self._tasks.add(task := asyncio.create_task(coroutine))
        task.add_done_callback(self._tasks.discard)

    async def _run(self, folder: str) -> None:
        try:
            failure = await self.runs[folder].run()
        except Exception as error:
            failure = summary.failure(None, "start", f"{type(error).__name__}: {error}")
        del self.runs[folder]
        self.tell({"run": folder, "event": "ended", "error": failure})

    async def _wait_for_kernels_end(self) -> None:
        """Wait without the pipe: a child of the kernel may still hold its other end."""
        while process_tree.is_alive(self.kernel):
            await asyncio.sleep(POLL_SECONDS)


def serve(kernel: int) -> None:
    """Supervise the runs of this kernel until it is gone. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(Supervisor(kernel).main())
    os._exit(0)  # Python 3.12 closes the pipes of a dead fork server here, on a loop that is gone


if __name__ == "__main__":
    serve(int(sys.argv[1]))
