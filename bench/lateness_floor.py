"""The machine's own floor for lateness: a bare loop that waits with `select` and sends one request at each due instant.

It keeps nothing, reads into a bin, and has no other work, so what it is late by is the machine: other processes, the scheduler,
the price of a wake-up. It takes the same place before other processes as a worker. `python bench/lateness_floor.py PORT < OFFSETS`
(ns, one a line) prints one lateness a line, in ns.
"""

from __future__ import annotations

import gc
import select
import socket
import sys
import time

from phasemeter.io.precedence import Precedence
from phasemeter.io.worker_main import finer_timer

SOCKETS = 256
SPIN_NS = 100_000


def main() -> None:
    port, offsets = int(sys.argv[1]), [int(line) for line in sys.stdin]
    body = b'{"model":"truth","stream":true,"max_tokens":4,"messages":[{"role":"user","content":"hi"}]}'
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    finer_timer()
    Precedence(1, True)
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(SOCKETS)]
    poll = select.epoll()
    for sock in sockets:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock.fileno(), select.EPOLLIN)
    by_fd = {sock.fileno(): sock for sock in sockets}
    gc.disable()
    start, late = time.monotonic_ns() + 50_000_000, []
    for i, offset in enumerate(offsets):
        due = start + offset
        while (left := due - time.monotonic_ns()) > 0:
            if left > SPIN_NS:
                select.select([poll], (), (), (left - SPIN_NS) / 1e9)
                if due - time.monotonic_ns() < SPIN_NS:
                    continue
                for fd, _ in poll.poll(0, 4):
                    by_fd[fd].recv(1 << 16)
        late.append(time.monotonic_ns() - due)
        sockets[i % SOCKETS].send(request)
    print("\n".join(map(str, late)))


if __name__ == "__main__":
    main()
