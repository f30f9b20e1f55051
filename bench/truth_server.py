"""A streaming server that knows when it wrote each token: the truth that stamps are held against.

One process, one thread, epoll and a heap of due writes; every chunk is prepared beforehand, so that a write costs a clock
reading and a system call. `python bench/truth_server.py --log FILE [--ttft-ms 200] [--gap-ms 20] [--spread]` prints its port,
serves POST requests (max_tokens tokens each), and writes its log when its standard input ends. With `--spread` first tokens come up
to a gap later, evenly over the streams: writes are paced, however close together the requests came.

The log is text, a line a request: client port, then CLOCK_MONOTONIC ns of the request's arrival and just before each write.
The arrival is the kernel's (SO_TIMESTAMPNS): of a thousand requests at once, a reader in Python sees the last tens of ms late.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import re
import select
import socket
import struct
import sys
import time

from phasemeter.io import descriptor_limit

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1764374400,"model":"truth",'
    b'"choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"length"') + b"data: [DONE]\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST)
STAMP, SPACE, UNPACK = 35, socket.CMSG_SPACE(16), struct.Struct("@qq").unpack
TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
GOLDEN = (5**0.5 - 1) / 2
LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)


class Stream:
    __slots__ = ("data", "left", "port", "send", "sock", "times")

    def __init__(self, sock: socket.socket, port: int) -> None:
        self.sock, self.port, self.send = sock, port, sock.send
        self.data = b""
        self.left = 0
        self.times: list[int] = []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--gap-ms", type=float, default=20)
    parser.add_argument("--spread", action="store_true")
    options = parser.parse_args()
    descriptor_limit.require(
        0
    )  # raises the soft limit as far as it goes: ten thousand streams need as many descriptors
    gc.disable()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    with open(options.log, "w", encoding="ascii") as log:
        pace = Pace(round(options.ttft_ms * 1e6), round(options.gap_ms * 1e6), options.spread)
        serve(listener, log, pace)


class Pace:
    """When the tokens of a stream are due."""

    def __init__(self, ttft_ns: int, gap_ns: int, spread: bool) -> None:
        self._ttft_ns, self.gap_ns, self._spread = ttft_ns, gap_ns, spread
        self._streams = 0

    def first_ns(self, arrival_ns: int) -> int:
        """Spread: multiples of the golden ratio lie evenly on a circle, however many there are."""
        self._streams += 1
        phase = self._streams * GOLDEN % 1 if self._spread else 0
        return arrival_ns + self._ttft_ns + round(phase * self.gap_ns)


def serve(listener: socket.socket, log: object, pace: Pace) -> None:
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    streams: dict[int, Stream] = {}
    due: list[tuple[int, int]] = []
    lines: list[str] = []
    clock = time.monotonic_ns
    while True:
        now = clock()
        while due and due[0][0] <= now:
            at, fd = due[0]
            stream = streams.get(fd)
            if stream is None or not stream.left:
                heapq.heappop(due)
                continue
            stream.left -= 1
            first = len(stream.times) == 1
            data = (HEAD if first else b"") + (CHUNK if stream.left else LAST_CHUNK)
            stream.times.append(clock())
            try:
                stream.send(data)
            except OSError:
                stream.left = 0
            if stream.left:
                heapq.heapreplace(due, (at + pace.gap_ns, fd))
            else:
                heapq.heappop(due)
                lines.append(f"{stream.port} " + " ".join(map(str, stream.times)) + "\n")
        wait = (due[0][0] - clock()) / 1e9 if due else 1.0
        if wait > 0:
            select.select([poll], (), (), wait)
        for fd, _ in poll.poll(0, 64):
            if fd == listener.fileno():
                accept(listener, streams, poll)
            elif fd == 0:
                log.writelines(lines)  # type: ignore[attr-defined]
                return
            else:
                take(streams, streams[fd], fd, due, pace)


def accept(listener: socket.socket, streams: dict[int, Stream], poll: select.epoll) -> None:
    """All that wait, up to a bound: one a turn would let the queue of a busy server overflow, and a SYN dropped costs a second."""
    for _ in range(64):
        try:
            sock, peer = listener.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, STAMP, 1)
        streams[sock.fileno()] = Stream(sock, peer[1])
        poll.register(sock.fileno(), select.EPOLLIN)


def take(streams: dict[int, Stream], stream: Stream, fd: int, due: list[tuple[int, int]], pace: Pace) -> None:
    try:
        data, control, _, _ = stream.sock.recvmsg(1 << 18, SPACE)
    except OSError:
        data, control = b"", []
    if not data:
        del streams[fd]
        stream.sock.close()
        return
    stream.data += data
    head, mark, body = stream.data.partition(b"\r\n\r\n")
    length = LENGTH.search(head)
    if mark and length and len(body) >= int(length[1]):
        stream.data = b""
        tokens = TOKENS.search(body)
        stream.left = int(tokens[1]) if tokens else 1
        now = time.monotonic_ns()
        stream.times = [arrival_ns(control, now)]
        heapq.heappush(due, (pace.first_ns(now), fd))


def arrival_ns(control: list[tuple[int, int, bytes]], now: int) -> int:
    """When the kernel had what was just read, on the monotonic clock."""
    if not control:
        return now
    seconds, nanoseconds = UNPACK(control[0][2])
    return now - (time.time_ns() - seconds * 1_000_000_000 - nanoseconds)


if __name__ == "__main__":
    main()
