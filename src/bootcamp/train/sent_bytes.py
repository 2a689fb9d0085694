"""Count the bytes that this process has sent over the network, by the kernel's counters."""

import os
import platform
import socket
import struct

from bootcamp.machine import HOST_INTERFACE
from bootcamp.train import environment

# offsets in struct tcp_info (linux/tcp.h)
BYTES_ACKED, NOT_SENT, BYTES_SENT, BYTES_RETRANS = 120, 144, 200, 208


def count_sent_bytes() -> dict[str, int]:
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
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                is_remote = connection.getsockname()[0] != connection.getpeername()[0]
        except OSError:
            continue  # closed meanwhile, or no TCP socket
        total["all"] += _read_written_bytes(info)
        total["other hosts"] += _read_written_bytes(info) * is_remote
    if environment.link_rate():
        import psutil

        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        total["host"] = counters[HOST_INTERFACE].bytes_sent
    return total


def _read_written_bytes(info: bytes) -> int:
    """Read the bytes written, from struct tcp_info; an acknowledgement may still be on its way."""
    if len(info) < BYTES_RETRANS + 8:  # before Linux 4.19
        return struct.unpack_from("Q", info, BYTES_ACKED)[0]
    (not_sent,) = struct.unpack_from("I", info, NOT_SENT)
    sent, again = struct.unpack_from("QQ", info, BYTES_SENT)
    return sent - again + not_sent
