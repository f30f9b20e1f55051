"""The frozen bare loop: the least that a Python client can do and still have stamps and bytes on disk.

epoll, `recvmsg_into` a kept buffer, the kernel's stamp, httptools for the end of the message, a raw log appended a thousand
reads at a time. No schedule, no limits, no pool, no accounts. Don't improve it: it is what `io/load.py` is measured against.

`python bench/bare_loop.py PORT STREAMS TOKENS LOG` prints its CPU seconds and its number of reads.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import struct
import sys
import time

import httptools

STAMP, SPACE, UNPACK = 35, socket.CMSG_SPACE(16), struct.Struct("@qq").unpack
PACK = struct.Struct("<iqqi").pack


class End:
    done = False

    def on_message_complete(self) -> None:
        self.done = True


def main() -> None:
    port, streams, tokens, log_path = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    body = b'{"model":"truth","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}]}' % tokens
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    gc.freeze()
    poll = select.epoll()
    by_fd = {}
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, STAMP, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = End()
        by_fd[sock.fileno()] = (sock.recvmsg_into, httptools.HttpResponseParser(end).feed_data, end, sock)
        poll.register(sock.fileno(), select.EPOLLIN)
    for _, _, _, sock in by_fd.values():
        sock.send(request)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    buffer = memoryview(bytearray(1 << 18))
    buffers = [buffer]
    gathered: list[bytes] = []
    clock, reads, left = time.monotonic_ns, 0, streams
    while left:
        for fd, _ in poll.poll(1, 32):
            receive, feed, end, _ = by_fd[fd]
            count, control, _, _ = receive(buffers, SPACE)
            now = clock()
            kernel = 0
            if control:
                seconds, nanoseconds = UNPACK(control[0][2])
                kernel = seconds * 1_000_000_000 + nanoseconds
            data = bytes(buffer[:count])
            gathered.append(PACK(fd, now, kernel, count) + data)
            feed(data)
            reads += 1
            if end.done:
                end.done = False
                left -= 1
        if len(gathered) >= 1000:
            os.write(log, b"".join(gathered))
            gathered.clear()
    os.write(log, b"".join(gathered))
    print(time.process_time(), reads)


if __name__ == "__main__":
    main()
