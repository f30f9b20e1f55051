"""Whether the emulator keeps its plan: 500 streams of 20 tokens a second from one core, held against its own truth file.

Each round the bare loop of `sends_floor.py` does the same number of sends on the same core: what it misses the machine misses. The
emulator has one core to itself (both loops are bound to it), the clients have the others. Printed: from a step's plan to its first
write, and to its last, over the steps that all streams share; what the emulator says of itself; and the time a request's bytes wait.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from phasemeter.io.emulator_truth import Truth, read_truth

HERE = Path(__file__).parent
PLAN = """
workload: {{input_tokens: 8, output_tokens: {{fixed: 8}}, arrivals: {{poisson: 1/s}}}}
deployment:
  model: llama-3.1-8b
  hardware: H100
  max_num_seqs: 4096
  max_num_batched_tokens: 65536
  step_time: {{linear: {{prefill_s: [{gap_s}, 0, 0], decode_s: [{gap_s}, 0, 0]}}}}
"""
BODY = (
    b'{"model":"llama-3.1-8b","stream":true,"max_tokens":%d,"ignore_eos":true,'
    b'"messages":[{"role":"user","content":"a b c d e f g h"}]}'
)
Late = list[tuple[int, int]]  # a step each: ns from plan to first and to last write


def drain(sockets: list[socket.socket], until_s: float) -> int:
    """Reads all to their end and keeps nothing; how many bytes came."""
    poll = select.epoll()
    by_fd = {sock.fileno(): sock for sock in sockets}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    buffer, size, end = bytearray(1 << 16), 0, time.monotonic() + until_s
    while by_fd and time.monotonic() < end:
        for fd, _ in poll.poll(0.5, 64):
            got = by_fd[fd].recv_into(buffer)
            size += got
            if not got:
                poll.unregister(fd)
                by_fd.pop(fd).close()
    poll.close()
    if by_fd:
        raise SystemExit(f"{len(by_fd)} of {len(sockets)} streams did not end in {until_s:g} s")
    return size


def bound(core: int, command: list[str]) -> list[str]:
    """`command` on one core."""
    code = f"import os, sys; os.sched_setaffinity(0, {{{core}}}); os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", code, sys.executable, *command]


def floor(core: int, streams: int, steps: int, gap_ms: float) -> Late:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        command = [str(HERE / "sends_floor.py"), str(listener.getsockname()[1]), str(streams), str(steps), str(gap_ms)]
        with subprocess.Popen(bound(core, command), stdout=subprocess.PIPE, text=True) as loop:
            sockets = [listener.accept()[0] for _ in range(streams)]
            drain(sockets, steps * gap_ms / 1e3 + 30)
            out, _ = loop.communicate(timeout=30)
    return [(int(line.split()[0]), int(line.split()[1])) for line in out.splitlines()]


def ask(port: int, streams: int, tokens: int) -> list[socket.socket]:
    body = BODY % tokens
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    sockets = []
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(head % len(body) + body)
        sockets.append(sock)
    return sockets


def emulated(core: int, streams: int, steps: int, gap_ms: float) -> tuple[list[Truth], str, float]:
    """(truth of all requests, the emulator's last words, its CPU seconds)."""
    with tempfile.TemporaryDirectory() as folder:
        plan, truth = Path(folder) / "plan.yaml", Path(folder) / "truth.jsonl"
        plan.write_text(PLAN.format(gap_s=gap_ms / 1e3))
        command = ["-m", "phasemeter", "emulate", str(plan), "--port", "0", "--truth", str(truth)]
        with subprocess.Popen(bound(core, command), stderr=subprocess.PIPE, text=True) as server:
            words = server.stderr
            if words is None:
                raise SystemExit("no pipe to the emulator")
            port = int(words.readline().split(" at ")[1].rsplit(":", 1)[1].split("/")[0])
            drain(ask(port, streams, steps), (steps + 4) * gap_ms / 1e3 + 60)
            time.sleep(0.2)
            ticks = Path(f"/proc/{server.pid}/stat").read_text().rsplit(") ", 1)[1].split()
            cpu_s = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
            server.send_signal(signal.SIGTERM)
            last = words.read().strip()
        return read_truth(truth), last, cpu_s


def steps_of(truths: list[Truth], streams: int) -> Late:
    """The steps that all streams had a token in."""
    written: dict[int, list[int]] = defaultdict(list)
    for truth in truths:
        for planned, at in zip(truth.planned_ns, truth.written_ns, strict=True):
            if at is None:
                raise SystemExit(f"{truth.response_id}: a token was never written")
            written[planned].append(at)
    return [(min(at) - plan, max(at) - plan) for plan, at in sorted(written.items()) if len(at) == streams]


def told(name: str, late: Late) -> tuple[float, float]:
    firsts, lasts = sorted(first / 1e6 for first, _ in late), sorted(last / 1e6 for _, last in late)
    at = min(len(late) - 1, int(0.99 * len(late)))
    print(
        f"{name:9} {len(late)} steps  first write − plan p50 {firsts[len(late) // 2]:.3f} p99 {firsts[at]:.3f} max {firsts[-1]:.3f} ms"
        f"   last write − plan p50 {lasts[len(late) // 2]:.2f} p99 {lasts[at]:.2f} max {lasts[-1]:.2f} ms"
    )
    return firsts[at], lasts[at]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--gap-ms", type=float, default=50.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("not run: one core for the emulator and one for its clients are needed")
        return
    os.sched_setaffinity(0, set(cores[:-1]))
    core = cores[-1]
    print(
        f"{asked.streams} streams, a token every {asked.gap_ms:g} ms, core {core} of {len(cores)}; targets at p99: 1 ms and 10 ms"
    )
    bare: Late = []
    ours: Late = []
    for _ in range(asked.rounds):
        one = floor(core, asked.streams, asked.steps, asked.gap_ms)
        told("bare", one)
        truths, words, cpu_s = emulated(core, asked.streams, asked.steps, asked.gap_ms)
        steps = steps_of(truths, asked.streams)
        told("emulator", steps)
        tokens = sum(truth.output_tokens for truth in truths)
        print(f"          CPU {1e6 * cpu_s / tokens:.2f} µs a token, start-up included; it says: {words}")
        bare += one
        ours += steps
    print("all rounds")
    told("bare", bare)
    start, end = told("emulator", ours)
    print(
        f"p99 of the first write ≤ 1 ms: {'yes' if start <= 1 else 'NO'}; of the last ≤ 10 ms: {'yes' if end <= 10 else 'NO'}"
    )


if __name__ == "__main__":
    main()
