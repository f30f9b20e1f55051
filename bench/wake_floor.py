"""The machine's own floor for one exchange: a byte there and back between two processes that sleep in between, at random instants.

What a client's wait holds beyond its server's own account is at least this: two wake-ups, two writes and two reads.
`python bench/wake_floor.py SECONDS PER_SECOND` prints one round trip a line, in ns. Don't improve it.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import sys
import time

from phasemeter.io.worker_main import finer_timer


def main() -> None:
    seconds, per_s = float(sys.argv[1]), float(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0))
    finer_timer()
    if os.fork() == 0:
        echo, _ = listener.accept()
        echo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := echo.recv(4096):
            echo.send(data)
        os._exit(0)
    client = socket.create_connection(listener.getsockname())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    gc.disable()
    clock, draw = time.monotonic_ns, random.Random(1)
    end = clock() + round(seconds * 1e9)
    while clock() < end:
        time.sleep(draw.expovariate(per_s))
        sent = clock()
        client.send(b"x")
        client.recv(16)
        print(clock() - sent)
    client.close()
    os.wait()


if __name__ == "__main__":
    main()
