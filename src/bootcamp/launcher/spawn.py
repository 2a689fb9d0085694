"""Start the processes of a run, for its supervisor. Each has `pid`, and `wait` for its end."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bootcamp.launcher import forkserver, simulated_hosts
from bootcamp.launcher.run_request import Command

FAILURES = 3  # of the fork server, one after the other: then ranks start cold


async def start_program(
    program: list[str], env: dict[str, str], output: Path, host: dict | None, keep: tuple = ()
) -> asyncio.subprocess.Process:
    """Start a Python program in a session of its own. It writes into output.out and output.err.

    host: where, see simulated_hosts.make; None is this machine. keep: open files that it inherits.
    """
    command = [sys.executable, "-P", *program]
    if host:
        command = simulated_hosts.enter_command(host, command)
    with open(f"{output}.out", "ab") as out, open(f"{output}.err", "ab") as err:
        how = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "pass_fds": keep}
        return await asyncio.create_subprocess_exec(
            *command, env=env, start_new_session=True, **how
        )


async def start_cold(kind: str, command: Command, output: Path, host: dict | None, listening=None):
    """Start a Python for a rank or a store; see ForkServer.fork."""
    keep = (listening.fileno(),) if listening else ()
    program = [forkserver.__file__, kind, *map(str, keep), *command.argv]
    return await start_program(program, command.env, output, host, keep)


@dataclass
class WarmProcess:
    """A process that the fork server forks. It ends when its connection is closed."""

    pid: int
    connection: socket.socket

    async def wait(self) -> int:
        """Return its exit code, or minus the signal that killed it."""
        code = await asyncio.get_running_loop().sock_recv(self.connection, 16)
        self.connection.close()
        return int(code or -signal.SIGKILL)


async def start_server(end: socket.socket) -> asyncio.subprocess.Process:
    """Start a fork server that is asked over the other end of this socket."""
    command = [sys.executable, "-P", forkserver.__file__, str(end.fileno())]
    how = {"stdin": subprocess.DEVNULL, "pass_fds": [end.fileno()]}
    return await asyncio.create_subprocess_exec(*command, **how)


class ForkServer:
    """The warm fork server: started at once, started again when it dies, asked for ranks."""

    def __init__(self):
        self.pid: int | None = None
        self.ready = asyncio.Event()
        self.gave_up = False
        self._control: socket.socket | None = None

    async def keep_alive(self, tell) -> None:
        """Start the server, and start it anew each time it ends."""
        failures = 0 if sys.platform == "linux" else FAILURES
        while failures < FAILURES:
            failures += 1
            self._control, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.setblocking(False)
            with end:
                process = await start_server(end)
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
        self, kind: str, command: Command, output: Path, host: dict | None, listening, framework
    ) -> "WarmProcess | asyncio.subprocess.Process":
        """Fork a process; tries anew if the server dies meanwhile. Where there is none, it is cold.

        kind: "rank", or "store", which may be given a listening socket. host: see start_program.
        """
        request: dict = {"kind": kind, "argv": command.argv, "env": command.env}
        request |= {"folder": os.getcwd(), "host": host and host["pid"]}
        with contextlib.ExitStack() as stack:
            paths = os.devnull, f"{output}.out", f"{output}.err"
            opened: list = [stack.enter_context(open(path, "ab")) for path in paths]
            files = [each.fileno() for each in (*opened, listening) if each]
            while True:
                await self.ready.wait()
                if self.gave_up:
                    return await start_cold(kind, command, output, host, listening)
                request["cores"] = sorted(os.sched_getaffinity(0))
                connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.setblocking(False)
                with connection, contextlib.suppress(ConnectionError):  # the server may die
                    with theirs:
                        socket.send_fds(connection, [json.dumps(request).encode()], files)
                        name = (framework or "-").encode()
                        socket.send_fds(self._control, [name], [theirs.fileno()])
                    answer = await asyncio.get_running_loop().sock_recv(connection, 4096)
                    if answer.isdigit():
                        return WarmProcess(int(answer), connection.dup())
                    if answer:
                        raise RuntimeError(answer.decode())
                await asyncio.sleep(0.01)
