"""Bytes that this process has sent over the network, as the kernel counts them."""

import os
import platform
import socket
import struct

from bootcamp.machine import HOST_INTERFACE
from bootcamp.train import environment

# offsets in struct tcp_info (linux/tcp.h)
BYTES_ACKED, NOT_SENT, BYTES_SENT, BYTES_RETRANS = 120, 144, 200, 208


def sent_bytes() -> dict[str, int]:
    """Count the bytes that were sent so far; nothing is known outside Linux.

    "all": written by this process to TCP connections (TCP_INFO, tcp(7)), without headers and
    retransmissions; NCCL's shared memory and NVLink are not in it. "other hosts": those that lead
    to another address. "host": by all processes of a simulated host, with headers.
    """
    if platform.system() != "Linux":
        return {}
    total = {"all": 0, "other hosts": 0}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                sent = _written(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
                away = connection.getsockname()[0] != connection.getpeername()[0]
        except OSError:
            continue  # closed meanwhile, or no TCP socket
        total["all"] += sent
        total["other hosts"] += sent * away
    if environment.link():
        import psutil

        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        total["host"] = counters[HOST_INTERFACE].bytes_sent
    return total


def _written(info: bytes) -> int:
    """Bytes written to a connection, from its struct tcp_info.

    Not those acknowledged: at the end of a step the last acknowledgement may still be on its way.
    """
    if len(info) < BYTES_RETRANS + 8:  # before Linux 4.19
        return struct.unpack_from("Q", info, BYTES_ACKED)[0]
    (not_sent,) = struct.unpack_from("I", info, NOT_SENT)
    sent, again = struct.unpack_from("QQ", info, BYTES_SENT)
    return sent - again + not_sent


class SentPerStep:
    """Count what steps send, from the end of the first to the end of the last but one.

    The first makes connections, and in the last a neighbour may leave before this rank counts.
    """

    def __init__(self, last_counted: int):
        self.last_counted = last_counted
        self._before, self._after = {}, {}

    def step_ended(self, steps_done: int) -> None:
        """Count, if this step is one of the two. steps_done: before this one."""
        if steps_done == 0:
            self._before = sent_bytes()
        elif steps_done == self.last_counted:
            self._after = sent_bytes()

    def per_step(self, way: str) -> float | None:
        """Bytes of one kind of `sent_bytes` per step; None where nothing was counted."""
        if way not in self._after:
            return None
        return (self._after[way] - self._before[way]) / self.last_counted
