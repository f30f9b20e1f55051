"""The machine's own floor for a step of many streams: at each instant of a plan, one `send` on every socket, and nothing else.

It draws nothing, parses nothing and keeps two numbers a step. What it is late by is the machine: the price of a wake-up, of a send,
and of whatever else runs there. `python bench/sends_floor.py PORT STREAMS STEPS GAP_MS` connects to a sink and prints a line a step:
ns from the plan to just before the first send, and to just before the last. Don't improve it: it is what others are measured against.
"""

from __future__ import annotations

import gc
import select
import socket
import sys
import time

from phasemeter.io.worker_main import finer_timer

SPIN_NS = 250_000
PAYLOAD = (
    b'c4\r\ndata: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1764374400,'
    b'"model":"llama-3.1-8b","choices":[{"index":0,"delta":{"content":" able"},"logprobs":null,"finish_reason":null}]}\n\n\r\n'
)


def main() -> None:
    port, streams, steps, gap_ns = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), round(float(sys.argv[4]) * 1e6)
    finer_timer()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(streams)]
    for sock in sockets:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sends = [sock.send for sock in sockets]
    poll = select.epoll()
    gc.disable()
    clock, late = time.monotonic_ns, []
    due = clock() + 200_000_000
    for _ in range(steps):
        while (left := due - clock()) > 0:
            if left > SPIN_NS:
                select.select([poll], (), (), (left - SPIN_NS) / 1e9)
        first = last = clock()
        for send in sends:
            last = clock()
            send(PAYLOAD)
        late.append((first - due, last - due))
        due += gap_ns
    print("\n".join(f"{first} {last}" for first, last in late))


if __name__ == "__main__":
    main()
