"""The processes of a run, as its supervisor starts them. Each has `pid`, and `wait` for its end."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from bootcamp.launcher import forkserver, simulated_hosts, subreaper
from bootcamp.launcher.messages import Command

FAILURES = 3  # of the fork server, one after the other: then ranks start cold


async def start(
    command: list[str],
    env: dict[str, str],
    output: Path,
    host: dict | None,
    keep: list[int] = (),
) -> asyncio.subprocess.Process:
    """Start a program in a session of its own. It writes into output.out and output.err.

    host: where, see simulated_hosts.make; None is this machine. keep: open files that it inherits.
    """
    if host:
        command = simulated_hosts.enter_command(host, command)
    with open(f"{output}.out", "ab") as out, open(f"{output}.err", "ab") as err:
        return await asyncio.create_subprocess_exec(
            *command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            pass_fds=keep,
        )


async def start_launcher(agent: Command, output: Path, run: str, host: dict | None):
    """Start a launcher such as torchrun, or any command, under a subreaper.

    host: the simulated one to start it on, if there are any.
    """
    command = [sys.executable, "-P", subreaper.__file__, *agent.argv]
    return await start(command, {**os.environ, **agent.env, "BOOTCAMP_RUN": run}, output, host)


async def start_cold(rank: Command, output: Path, store: socket.socket | None, host: dict | None):
    """Start a Python for a rank; see ForkServer.fork."""
    keep = [store.fileno()] if store else []
    given = "".join(map(str, keep))
    command = [sys.executable, "-P", forkserver.__file__, "rank", given, *rank.argv]
    return await start(command, rank.env, output, host, keep)


def listen() -> socket.socket:
    """A listening socket for a run's store: bound now, so that no other run can take its port."""
    store = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.bind(("127.0.0.1", 0))
    store.listen(128)
    return store


class WarmRank:
    """A rank that the fork server forks. It ends when its connection is closed."""

    def __init__(self, pid: int, connection: socket.socket):
        self.pid, self.connection = pid, connection

    async def wait(self) -> int:
        """Return its exit code, or minus the signal that killed it."""
        code = await asyncio.get_running_loop().sock_recv(self.connection, 16)
        self.connection.close()
        return int(code or -signal.SIGKILL)


async def start_server(end: socket.socket) -> asyncio.subprocess.Process:
    """Start a fork server that is asked over the other end of this socket."""
    command = [sys.executable, "-P", forkserver.__file__, str(end.fileno())]
    return await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, pass_fds=[end.fileno()]
    )


class ForkServer:
    """The warm fork server: started at once, started again when it dies, asked for ranks.

    start: a coroutine function that starts one, see start_server: `pid` and `wait` of its process.
    """

    def __init__(self, start=start_server):
        self.start = start
        self.pid: int | None = None
        self.ready = asyncio.Event()
        self.gave_up = False
        self._control: socket.socket | None = None

    async def keep_alive(self, tell) -> None:
        """Start the server and start it anew each time it ends, as long as this process lives."""
        failures = 0 if sys.platform == "linux" else FAILURES
        while failures < FAILURES:
            failures += 1
            self._control, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.setblocking(False)
            with end:
                process = await self.start(end)
            self.pid = process.pid
            if gpus := await asyncio.get_running_loop().sock_recv(self._control, 16):
                failures = 0
                self.ready.set()
                tell({"ready": True, "gpus": int(gpus)})
            await process.wait()
            self.ready.clear()
        self.gave_up = True
        self.ready.set()
        tell({"ready": True, "gpus": None})

    async def fork(
        self,
        rank: Command,
        output: Path,
        store: socket.socket | None,
        host: dict | None,
        framework: str | None,
    ) -> "WarmRank | asyncio.subprocess.Process":
        """Fork a rank; tries anew if the server dies meanwhile. Where there is none, it is cold.

        store: for rank 0, see forkserver.run_rank. host: see start.
        """
        message = {"argv": rank.argv, "env": rank.env, "rank": True, "host": host and host["pid"]}
        message |= {"folder": os.getcwd(), "cores": sorted(os.sched_getaffinity(0))}
        with contextlib.ExitStack() as stack:
            paths = os.devnull, f"{output}.out", f"{output}.err"
            files = [stack.enter_context(open(path, "ab")) for path in paths]
            files = [file.fileno() for file in (*files, store) if file]
            while True:
                await self.ready.wait()
                if self.gave_up:
                    return await start_cold(rank, output, store, host)
                connection = self._connect(json.dumps(message).encode(), files, framework or "-")
                try:
                    answer = await asyncio.get_running_loop().sock_recv(connection, 4096)
                except ConnectionError:
                    answer = b""
                except BaseException:
                    connection.close()
                    raise
                if answer.isdigit():
                    return WarmRank(int(answer), connection)
                connection.close()
                if answer:
                    raise RuntimeError(answer.decode())
                await asyncio.sleep(0.01)

    def _connect(self, message: bytes, files: list[int], framework: str) -> socket.socket:
        """Send the server a connection with a request; one that is closed if the server died."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, contextlib.suppress(ConnectionError):
            socket.send_fds(ours, [message], files)
            socket.send_fds(self._control, [framework.encode()], [theirs.fileno()])
        return ours
