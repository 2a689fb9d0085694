"""Stand for `python` and `torchrun` in a simulated cluster: hand their command to forkserver.py.

It is installed under these names, beside the server's socket. What the server does not take is run
by Python itself. It imports little, for each rank begins with it.
"""

import ctypes
import json
import os
import signal
import socket
import sys

SOCKET = "warm_python"  # in the folder of this file; forkserver.py listens there
PR_SET_PDEATHSIG = 1
NOT_PASSED_ON = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP}


def main(ends_with_parent: bool = True) -> None:
    """Become what the server's process becomes: pass signals on to it, end as it ends."""
    name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
    if arguments[:1] == ["-u"] and name != "torchrun":
        del arguments[0]
    script = bool(arguments) and arguments[0].endswith(".py") and os.path.isfile(arguments[0])
    if name != "torchrun" and not script:
        start_cold(name)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.connect(os.path.join(os.path.dirname(sys.argv[0]), SOCKET))
    except OSError:
        start_cold(name)
    if ends_with_parent:  # a killed torchrun ends no rank
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in signal.valid_signals() - NOT_PASSED_ON:
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    request = {"env": dict(os.environ), "folder": os.getcwd()}
    request["argv"] = [name, *arguments] if name == "torchrun" else arguments
    request["cores"] = sorted(os.sched_getaffinity(0))
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    if not server.recv(1000).isdigit():  # it could not load torch, or fork
        start_cold(name)
    code = int(server.recv(16) or b"1")
    if code < 0:
        signal.signal(signal.SIGTERM if code == -9 else -code, signal.SIG_DFL)  # no one handles 9
        os.kill(os.getpid(), -code)
    os._exit(code)


def start_cold(name: str) -> None:
    """Become the program itself. Never returns."""
    program = sys.executable
    if name == "torchrun":
        program = os.path.join(os.path.dirname(program), name)
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
