"""The launcher's supervisor as a fork of the warm Python, and its fork server as a fork of it.

`python -IS tests/warm_supervisor.py FOLDER KERNEL` asks the server in FOLDER for this, by the
shim of a simulated cluster; `python tests/warm_supervisor.py KERNEL` is what the fork runs.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def ask(folder: str, kernel: str) -> None:
    """Be the shim of the supervisor: it does not end with the thread that started it."""
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "src", "bootcamp", "launcher"))
    import python_shim

    sys.argv = [os.path.join(folder, "python"), os.path.abspath(__file__), kernel]
    python_shim.main(ends_with_parent=False)


def supervise(kernel: int) -> None:
    """Supervise with a fork server that is a fork of this process."""
    import asyncio
    import socket

    from bootcamp.launcher import forkserver, spawn, supervisor

    sys.path.remove(HERE)

    class Forked:
        """A fork server that is a fork of this process."""

        async def wait(self) -> None:
            await asyncio.to_thread(os.waitpid, self.pid, 0)

    async def start(end: socket.socket) -> Forked:
        server = Forked()
        server.pid = os.fork()
        if server.pid == 0:
            become_server(end)
        return server

    def become_server(end: socket.socket) -> None:
        try:
            os.dup2(end.fileno(), 3)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))  # the kernel must see the supervisor's end
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for name in [name for name in sys.modules if name.partition(".")[0] == "bootcamp"]:
                del sys.modules[name]
            asyncio.set_event_loop_policy(None)  # or the supervisor's loop runs on here
            sys.argv[1:] = ["3"]
            forkserver.main()
        finally:
            os._exit(1)

    spawn.start_server = start
    supervisor.serve(kernel)


if __name__ == "__main__":
    supervise(int(sys.argv[1])) if len(sys.argv) == 2 else ask(*sys.argv[1:])
