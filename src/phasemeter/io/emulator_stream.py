"""One answer on its way out: which bytes a token becomes, when they may be written, and when they were.

Lives here: a stream's state, its faults, its planned and written instants. Must not live here: the engine, other requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

from phasemeter.io.emulator_api import Ask, Faults
from phasemeter.io.emulator_http import Connection, HttpRequest, head
from phasemeter.io.emulator_writer import Writer

clock = time.monotonic_ns


def _undisturbed(faults: Faults) -> bool:
    """Whether each token is written as it comes, one a chunk."""
    return (
        faults.tokens_per_chunk == 1
        and not faults.reasoning_tokens
        and not faults.delay_s
        and faults.bytes_per_s is None
        and faults.stall_after_tokens is None
        and faults.truncate_after_tokens is None
        and faults.error_after_tokens is None
    )


class Stream:
    """An answer being given. `later(when_ns, stream)` asks to be called back by `flush` at that instant.

    `planned_ns` grows with each token of the engine (one of every choice), `written_ns` with each token handed to the kernel.
    `ready` is the next token's chunk where there is nothing to do but to write it; else it goes through `token`.
    """

    def __init__(
        self, connection: Connection, request: HttpRequest, ask: Ask, response_id: str, output_tokens: int
    ) -> None:
        self.connection = connection
        self.ask = ask
        self.response_id = response_id
        self.output_tokens = output_tokens
        self.finish = "length" if ask.max_tokens is not None and output_tokens >= ask.max_tokens else "stop"
        self.request = request
        self.arrival_ns = request.arrived_ns
        self.arrival_unix_ns = time.time_ns() - (clock() - self.arrival_ns)
        self.scheduled_ns: int | None = None
        self.preemptions = 0
        self.cached_tokens = 0
        self.finished = False  # the engine has no more for it
        self.told_cached: int | None = None  # what usage says of the prefix cache; None: there is none to tell of
        self.steps_before = self.late_before = 0  # the emulator's account when it came
        self.planned_ns: list[int] = []
        self.written_ns: list[int] = []
        # when the first and last token's steps were really over: what an engine stamps
        self.first_made_ns = self.last_made_ns = 0
        self.outcome: str | None = None
        self.writer = Writer(ask, response_id, self.arrival_unix_ns // 10**9)
        self.later: Callable[[int, Stream], None] = lambda when_ns, stream: None
        self.undisturbed = ask.stream and _undisturbed(ask.faults)
        self.ready: bytes | None = None
        self.final = b""  # the last token's chunk, made beforehand
        self.unsent = 0  # tokens generated and not yet in a chunk
        self.queue: deque[tuple[int, bytes, int, bool]] = deque()  # (ready, bytes, tokens in them, the last)
        self.free_ns = 0  # a slow network is busy until then
        if ask.stream:
            self._open()

    def _open(self) -> None:
        opening = head(200, "text/event-stream; charset=utf-8", keep_alive=self.request.keep_alive, extra=self._echo())
        self.connection.write(opening + (self.writer.role if self.ask.faults.role_early else b""))

    def _echo(self) -> dict[str, str]:
        request_id = self.request.headers.get("x-request-id")
        return {"x-request-id": request_id} if request_id else {}

    def prepare(self) -> None:
        """Between steps: what the next token's step will write."""
        done = len(self.planned_ns)
        self.ready = None
        if not self.undisturbed or self.outcome is not None:
            return
        if done + 1 == self.output_tokens:
            self.final = self.writer.tokens(done, 1, self.finish)
        elif done and self.writer.prepared:
            self.ready = self.writer.one(done)
        elif done:
            self.ready = self.writer.tokens(done, 1)

    def token(self, at_ns: int) -> None:
        """The engine made one more token, by plan at `at_ns`."""
        if self.outcome is not None:
            return
        self.planned_ns.append(at_ns)
        done = len(self.planned_ns)
        if done == 1:
            self.first_made_ns = clock()
        if done == self.output_tokens:
            self.last_made_ns = clock()
        self.unsent += 1
        if not self.ask.stream:
            if done == self.output_tokens:
                self._whole()
            return
        if self.unsent >= self.ask.faults.tokens_per_chunk or done == self.output_tokens or self._cut(done):
            self._chunk(done)

    def _cut(self, tokens: int) -> bool:
        faults = self.ask.faults
        return tokens in {faults.truncate_after_tokens, faults.error_after_tokens, faults.stall_after_tokens}

    def _whole(self) -> None:
        """The answer to a request without a stream: one response once all is there."""
        now = clock()
        self.written_ns = [now] * self.output_tokens
        self.outcome = self.finish
        body = self.writer.whole(self.output_tokens, self.finish, self._metrics(), self.told_cached)
        self.connection.answer(200, body, **self._echo())

    def _metrics(self) -> dict[str, float] | None:
        """What vLLM tells of a request with --enable-per-request-metrics: its "TTFT" counts from scheduling."""
        if self.scheduled_ns is None or not self.planned_ns:
            return None
        first, last, tokens = self.first_made_ns, self.last_made_ns or clock(), len(self.planned_ns)
        generation_ms, inference_ms = (last - first) / 1e6, (last - self.scheduled_ns) / 1e6
        return {
            "time_to_first_token_ms": (first - self.scheduled_ns) / 1e6,
            "generation_time_ms": generation_ms,
            "queue_time_ms": (self.scheduled_ns - self.arrival_ns) / 1e6,
            "mean_itl_ms": generation_ms / (tokens - 1) if tokens > 1 else 0.0,
            "tokens_per_second": tokens / inference_ms * 1e3 if inference_ms > 0 else 0.0,
        }

    def _chunk(self, tokens: int) -> None:
        """Write, or put in line, what has been generated up to `tokens`."""
        faults, start, last = self.ask.faults, tokens - self.unsent, tokens == self.output_tokens
        data = self.writer.role if start == 0 and not faults.role_early else b""
        if last:
            data += self.final or self.writer.tokens(start, self.unsent, self.finish)
            data += self.writer.end(tokens, self._metrics(), self.told_cached)
        else:
            data += self.writer.tokens(start, self.unsent)
        if tokens == faults.error_after_tokens and not last:
            data += self.writer.error("the emulator was asked to fail here")
        self._send(data, self.unsent, last or tokens == faults.error_after_tokens)
        self.unsent = 0
        if tokens == faults.stall_after_tokens:
            self.free_ns = max(self.free_ns, clock()) + round(faults.stall_s * 1e9)
        if not last and tokens == faults.truncate_after_tokens:
            self._send(b"", 0, True)

    def _send(self, data: bytes, tokens: int, last: bool) -> None:
        faults, now = self.ask.faults, clock()
        ready = max(now + round(faults.delay_s * 1e9), self.free_ns)
        if faults.bytes_per_s is not None:
            ready = self.free_ns = ready + round(len(data) / faults.bytes_per_s * 1e9)
        if ready <= now and not self.queue:
            self._write(data, tokens, last)
            return
        self.queue.append((ready, data, tokens, last))
        self.later(ready, self)

    def flush(self, now_ns: int) -> None:
        """Write what is ready by now."""
        while self.queue and self.queue[0][0] <= now_ns and self.outcome is None:
            _, data, tokens, last = self.queue.popleft()
            self._write(data, tokens, last)

    def _write(self, data: bytes, tokens: int, last: bool) -> None:
        self.written_ns += [clock()] * tokens
        faults = self.ask.faults
        if not last:
            self.connection.write(data)
            return
        if not data:
            self.outcome = "truncated"
            self.connection.request = None  # so that nobody takes it for a client that left
            self.connection.server.drop(self.connection, reset=faults.reset)
            return
        self.outcome = "error" if len(self.written_ns) < self.output_tokens else self.finish
        self.connection.write(data)


class Step(msgspec.Struct):
    """Tokens of one instant: who gets them, by name and as streams, and when they had been written."""

    at_ns: int
    first: tuple[str, ...]
    more: tuple[str, ...]
    first_streams: list[Stream]
    more_streams: list[Stream]
    ended_ns: int = 0  # 0: not written yet

    def write(self) -> tuple[int, int]:
        """Nothing but writing: (just before the first write, just after the last)."""
        at_ns, started = self.at_ns, clock()
        for stream in self.more_streams:
            if (data := stream.ready) is not None:
                stream.written_ns.append(clock())
                stream.connection.write(data)
            else:
                stream.token(at_ns)
        for stream in self.first_streams:
            stream.token(at_ns)
        self.ended_ns = clock()
        return started, self.ended_ns
