"""One run under supervision: its devices, its start, its watch, its end."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

from bootcamp.launcher import device_locks, first_failure, process_tree, simulated_hosts, spawn
from bootcamp.launcher.hang import Watchdog, beats
from bootcamp.launcher.job_hosts import JobHosts
from bootcamp.launcher.messages import COMMAND, Command, RunRequest
from bootcamp.launcher.spawn import ForkServer
from bootcamp.records import places, summary
from bootcamp.records.steps import read_steps

TICK_SECONDS = 0.25
START_SECONDS = 180
GRACE_SECONDS = 0.3  # how long other ranks may take to say what they saw, after the first failure
AGENTS_GRACE_SECONDS = 5  # the same for torchrun on other hosts, which ends its ranks first
END_SECONDS = 10
STORE_PORT = 29400  # on a simulated host nobody else can have taken it


class Job:
    """One run, from its start to the last process of it gone.

    tell: tells the kernel.
    """

    def __init__(self, request: RunRequest, server: ForkServer, tell=lambda event: None):
        self.request, self.server, self.tell = request, server, tell
        self.folder = Path(request.run)
        self.processes = {}  # rank, or name of a launcher -> what was started last
        self.pids: list[int] = []  # of all that were started, in order of rank
        self.sessions: set[int] = set()
        self.codes: dict[int | str, int] = {}  # as processes: exit codes, the first end first
        self.failure: dict | None = None
        self.stopped = asyncio.get_running_loop().create_future()
        self.devices = device_locks.DeviceLocks(request, self.stopped, tell)
        self.watchdog = Watchdog(request, [])
        self.hosts = JobHosts(request)
        self._exits: set[asyncio.Task] = set()
        self._seen: set[int] = set()  # every process of this run, to take their exit status

    def stop(self, why: str) -> None:
        """Let it end, unless that was said already."""
        if not self.stopped.done():
            self.stopped.set_result(why)

    async def run(self) -> dict | None:
        """Start, watch, end; what went wrong."""
        try:
            await self.devices.take()
            await self._start_unless_stopped()
            if not self.failure:
                await self._watch()
        except (device_locks.LeaseError, simulated_hosts.HostsError) as error:
            self.failure = summary.failure(None, "refused", str(error))
        except Exception as error:  # could not start: the kernel is told, so that it does not wait
            self.failure = summary.failure(None, "start", f"{type(error).__name__}: {error}")
        finally:
            try:
                await self._end_all()
            finally:
                self.devices.release()
        return self._conclude()

    async def _start_unless_stopped(self) -> None:
        if self.stopped.done():
            why = self.stopped.result()
            self.failure = summary.failure(None, why, "stopped while it waited for devices")
            return
        start = asyncio.create_task(self._start())
        done, _ = await asyncio.wait(
            {start, self.stopped}, timeout=START_SECONDS, return_when="FIRST_COMPLETED"
        )
        if start in done:
            start.result()
            return
        start.cancel()
        await asyncio.wait({start})
        if self.stopped in done:
            self.failure = summary.failure(None, self.stopped.result(), "stopped before it began")
        else:
            message = f"no rank had started after {START_SECONDS} s"
            self.failure = summary.failure(None, "start", message)

    async def _start(self) -> None:
        await self.hosts.make()
        if self.request.start == COMMAND:
            for host in range(len(self.request.agents)):
                if host not in self.request.absent:
                    await self._start_agent(host)
        else:
            await self._start_ranks()
        self.sessions |= {process_tree.session(pid) for pid in self.pids}
        self.sessions -= {None, os.getsid(0)}
        self.watchdog = Watchdog(self.request, self.pids)

    async def _start_ranks(self) -> None:
        """Start all ranks at once; on hosts, rank 0 makes the socket of the store itself."""
        ranks, port, store = self.request.ranks, STORE_PORT, None
        with contextlib.ExitStack() as stack:
            if not self.hosts.made:
                store = stack.enter_context(spawn.listen())
                port = store.getsockname()[1]
            for rank in ranks:
                rank.env |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            stores = [store, *(None for _ in ranks[1:])]
            await asyncio.gather(*map(self._start_rank, range(len(ranks)), ranks, stores))
        self.pids += [self.processes[number].pid for number in range(len(ranks))]
        self.hosts.note_ranks(self.pids)

    async def _start_rank(self, number: int, rank: Command, store) -> None:
        how = rank, self.folder / "ranks" / str(number), store, self.hosts.of_rank(rank)
        if self.request.start == "warm":
            self.processes[number] = await self.server.fork(*how, self.request.framework)
        else:
            self.processes[number] = await spawn.start_cold(*how)

    async def _start_agent(self, host: int) -> None:
        """Start the launcher of a run, or that of a host, by whose name it is known."""
        place = self.hosts.made[host] if self.hosts.made else None
        name = place["name"] if place else "launcher"
        self.processes[name] = started = await spawn.start_launcher(
            self.request.agents[host], self.folder / "ranks" / name, self.request.run, place
        )
        self.pids.append(started.pid)
        if place:
            self.hosts.note_agent(name, started.pid)

    async def join(self, host: int) -> None:
        """Start torchrun on a host on which there is none: it was absent, or has been lost."""
        name = self.hosts.made[host]["name"]
        if self._exits and (name not in self.processes or name in self.codes):
            self.codes.pop(name, None)
            await self._start_agent(host)
            self._await_exit(name)

    async def _watch(self) -> None:
        """Until every process has ended well, one has not, ranks hang, or the kernel says stop."""
        spare = max(0, len(self.request.agents) - self.request.fewest_hosts)
        for name in self.processes:
            self._await_exit(name)
        while self._exits and not self.failure:
            done, _ = await asyncio.wait(
                {*self._exits, self.stopped}, timeout=TICK_SECONDS, return_when="FIRST_COMPLETED"
            )
            self._exits -= done
            if self.stopped in done:
                self.failure = summary.failure(None, self.stopped.result(), "stopped from outside")
            elif not done:
                await self._look()
            elif sum(code != 0 for code in self.codes.values()) > spare:
                if self._exits:
                    patience = AGENTS_GRACE_SECONDS if self.hosts.agents else GRACE_SECONDS
                    await asyncio.wait(self._exits, timeout=patience)
                self.failure = first_failure.failed_process(self.folder, self.request, self.codes)
        for task in self._exits:
            task.cancel()

    def _await_exit(self, name: int | str) -> None:
        self._exits.add(asyncio.create_task(self._exit(name)))

    async def _exit(self, name: int | str) -> None:
        self.codes[name] = await self.processes[name].wait()

    async def _look(self) -> None:
        """What is looked at now and then: sharing, torchrun's workers, signs of life."""
        self.devices.look_for_sharing()
        self.hosts.look()
        workers = process_tree.below(set(self.pids))
        self.sessions |= {process_tree.session(pid) for pid in workers} - {None, os.getsid(0)}
        self.failure = await self.watchdog.failure(self.codes, workers)

    async def _end_all(self) -> None:
        """Kill whatever is left of the run and wait until nothing is."""
        deadline = time.monotonic() + END_SECONDS
        if self.hosts.holder:
            self.sessions.add(self.hosts.holder.pid)
        not_ended = self.processes.keys() - self.codes.keys()
        process_tree.end({self.processes[name].pid for name in not_ended})
        roots = {*self.pids, *(beat[0] for beat in beats(self.folder).values() if self.pids)}
        started = [*self.processes.values(), self.hosts.holder]  # asyncio takes their exit status
        awaited = {each.pid for each in started if isinstance(each, asyncio.subprocess.Process)}
        while time.monotonic() < deadline:
            below = roots & process_tree.below({os.getpid()})
            members = process_tree.of_run(self.request.run, below, self.sessions)
            members -= {os.getpid(), self.server.pid}
            self._seen |= members
            process_tree.end(members)
            process_tree.reap((self._seen | self.sessions) - awaited)
            if not members:
                break
            await asyncio.sleep(0.01)
        await self.hosts.end(END_SECONDS)

    def _conclude(self) -> dict | None:
        """Write the summary if the ranks have not; what went wrong."""
        with contextlib.suppress(OSError):  # a full disk
            self.hosts.collect()
        written = summary.read(self.folder)
        began = self.request.records or (self.folder / "config.json").exists()
        if not self.failure and began and written["status"] == "running":
            message = "the script ended without run.finish(): its record is not complete"
            self.failure = summary.failure(0, "raised", message)
        if self.failure and self._said_by_rank(written):
            self.failure |= written["error"]
            if host := places.host_of(self.folder, self.failure["rank"]):
                self.failure["host"] = host
                self._write(**{**written, "error": self.failure})
        elif self.failure:
            stopped = self.failure["kind"] in ("interrupted", "kernel died")
            steps = summary.measures(read_steps(self.folder))
            self._write("interrupted" if stopped else "failed", **steps, error=self.failure)
        elif written["status"] == "running":
            self._write("ok", steps=0)
        if self.devices.shared:
            self._write(**summary.read(self.folder), shared_cores=True)
        return self.failure

    def _said_by_rank(self, written: dict) -> bool:
        """Whether the rank that failed first has itself written what happened."""
        if written["status"] not in ("failed", "oom") or self.failure["kind"] != "raised":
            return False
        return self.failure["rank"] in (None, written["error"]["rank"])

    def _write(self, status: str, **content) -> None:
        with contextlib.suppress(OSError):  # a full disk: the kernel is told in any case
            summary.write(self.folder, status, **content)
