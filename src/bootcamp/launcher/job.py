"""One run under supervision: its devices, its start, its watch, its end."""

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bootcamp.launcher import (
    children,
    device_locks,
    diagnose,
    forkserver,
    process_tree,
    simulated_hosts,
)
from bootcamp.launcher.hang import Watchdog, beats
from bootcamp.launcher.job_hosts import JobHosts, start_command
from bootcamp.launcher.requests import COMMAND, RunRequest
from bootcamp.launcher.warm_ranks import ForkServer
from bootcamp.records import places, summary
from bootcamp.records.steps import read_steps

TICK_SECONDS = 0.25
START_SECONDS = 180
GRACE_SECONDS = 0.3  # how long other ranks may take to say what they saw, after the first failure
AGENTS_GRACE_SECONDS = 5  # the same for torchrun on other hosts, which ends its ranks first
END_SECONDS = 10


class Job:
    """One run, from its start to the last process of it gone.

    tell: tells the kernel.
    """

    def __init__(self, request: RunRequest, server: ForkServer, tell=lambda event: None):
        self.request, self.server, self.tell = request, server, tell
        self.folder = Path(request.run)
        self.pids: list[int] = []
        self.sessions: set[int] = set()
        self.codes: dict[int, int] = {}  # index of the process -> exit code, or minus its signal
        self.failure: dict | None = None
        self.stopped = asyncio.get_running_loop().create_future()
        self.devices = device_locks.DeviceLocks(request, self.stopped, tell)
        self.watchdog = Watchdog(request, [])
        self.hosts = JobHosts(request)
        self._exits: set[asyncio.Task] = set()
        self._seen: set[int] = set()  # every process of this run, to take their exit status

    async def run(self) -> dict:
        """Start, watch, end; the last event for the kernel."""
        try:
            await self.devices.take()
            await self._start_unless_stopped()
            if not self.failure:
                await self._watch()
        except device_locks.LeaseError as error:
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
        if self.stopped in done:
            self.failure = summary.failure(None, self.stopped.result(), "stopped before it began")
        else:
            message = f"no rank had started after {START_SECONDS} s"
            self.failure = summary.failure(None, "start", message)

    async def _start(self) -> None:
        await self._make_hosts()
        if self.failure:
            return
        if self.request.start == "warm":
            self.pids = await self.server.fork(self.request)
        elif self.request.start == "cold":
            self.pids = start_cold(self.request)
        elif self.request.hosts > 1:
            for host in range(len(self.request.agents)):
                if host not in self.request.absent:
                    self.pids.append(self.hosts.start_agent(host, len(self.pids)))
        else:
            agent = self.request.agents[0]
            self.pids = [start_command(self.folder, agent.command, agent.env)]
        if self.request.start != COMMAND:
            self.hosts.ranks_are(self.pids)
        self.sessions |= {process_tree.session(pid) for pid in self.pids}
        self.sessions -= {None, os.getsid(0)}
        self.watchdog = Watchdog(self.request, self.pids)

    async def _make_hosts(self) -> None:
        try:
            await self.hosts.make()
        except simulated_hosts.HostsError as error:
            message = f"hosts={self.request.hosts}: {error}"
            self.failure = summary.failure(None, "refused", message)
        finally:
            if self.hosts.holder:
                self.sessions.add(self.hosts.holder.pid)

    def join(self, host: int) -> None:
        """Start torchrun on a host on which there is none: it was absent, or has been lost."""
        if self._exits and self.hosts.may_join(host, self.codes):
            self.pids.append(self.hosts.start_agent(host, len(self.pids)))
            self._await_exit(len(self.pids) - 1)

    async def _watch(self) -> None:
        """Until every process has ended well, one has not, ranks hang, or the kernel says stop."""
        for index in range(len(self.pids)):
            self._await_exit(index)
        while self._exits and not self.failure:
            done, _ = await asyncio.wait(
                {*self._exits, self.stopped}, timeout=TICK_SECONDS, return_when="FIRST_COMPLETED"
            )
            self._exits -= done
            codes = self.hosts.codes(self.codes)
            if self.stopped in done:
                self.failure = summary.failure(None, self.stopped.result(), "stopped from outside")
            elif not done:
                await self._look()
            elif sum(code != 0 for code in codes.values()) > self.hosts.spare:
                if self._exits:
                    patience = AGENTS_GRACE_SECONDS if self.hosts.agents else GRACE_SECONDS
                    await asyncio.wait(self._exits, timeout=patience)
                codes = self.hosts.codes(self.codes)
                self.failure = diagnose.failed_process(self.folder, self.request, codes)
        for task in self._exits:
            task.cancel()

    def _await_exit(self, index: int) -> None:
        self._exits.add(asyncio.create_task(self._exit(index)))

    async def _exit(self, index: int) -> None:
        """Note the code of a process; codes keep the order in which the processes ended."""
        self.codes[index] = await children.wait_for_exit(self.pids[index])

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
        mine = {pid for index, pid in enumerate(self.pids) if index not in self.codes}
        process_tree.end(mine)
        roots = {*self.pids, *(beat[0] for beat in beats(self.folder).values() if self.pids)}
        spared, holder = {os.getpid(), self.server.pid}, self.hosts.holder
        while time.monotonic() < deadline:
            below = roots & process_tree.below({os.getpid()})
            members = process_tree.of_run(self.request.run, below, self.sessions) - spared
            self._seen |= members
            process_tree.end(members)
            children.reap((mine | self._seen) - {holder.pid if holder else None})
            if not members:
                break
            await asyncio.sleep(0.01)
        await self.hosts.end(END_SECONDS)

    def _conclude(self) -> dict:
        """Write the summary if the ranks have not, and make the event that ends the run."""
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
        return {"run": self.request.run, "event": "ended", "error": self.failure}

    def _said_by_rank(self, written: dict) -> bool:
        """Whether the rank that failed first has itself written what happened."""
        if written["status"] not in ("failed", "oom") or self.failure["kind"] != "raised":
            return False
        return self.failure["rank"] in (None, written["error"]["rank"])

    def _write(self, status: str, **content) -> None:
        with contextlib.suppress(OSError):  # a full disk: the kernel is told in any case
            summary.write(self.folder, status, **content)


def start_cold(request: RunRequest) -> list[int]:
    """Start a Python for each rank; their process ids."""
    store = forkserver.listen(request.port)
    pids = []
    for rank in request.ranks:
        told = json.dumps({**asdict(rank), "env": None})  # any user can read a command line
        command = [sys.executable, "-P", forkserver.__file__, "rank", told, str(store.fileno())]
        pids.append(children.spawn(command, rank.env, keep=store.fileno()))
    store.close()
    return pids
