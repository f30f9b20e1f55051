"""One answer on its way out: which bytes a token becomes, when they may be written, and when they were.

Lives here: a stream's state, its faults, its planned and written instants. Must not live here: the engine, other requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from phasemeter.io.emulator_api import TOKENS, Ask, Writer, frame
from phasemeter.io.emulator_http import Connection, HttpRequest, head

clock = time.monotonic_ns


class Stream:
    """An answer being given. `later(when_ns, stream)` asks to be called back by `flush` at that instant.

    `planned_ns` grows with each token of the engine, `written_ns` with each token handed to the kernel.
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
        self.planned_ns: list[int] = []
        self.written_ns: list[int] = []
        self.first_made_ns = self.last_made_ns = (
            0  # when the first and last token's steps were really over: what an engine stamps
        )
        self.outcome: str | None = None
        self.writer = Writer(ask, response_id, self.arrival_unix_ns // 10**9)
        self.later: Callable[[int, Stream], None] = lambda when_ns, stream: None
        faults = ask.faults
        self.plain = (
            ask.stream
            and faults.tokens_per_chunk == 1
            and not faults.reasoning_tokens
            and not faults.delay_s
            and faults.bytes_per_s is None
            and faults.stall_after_tokens is None
            and faults.truncate_after_tokens is None
            and faults.error_after_tokens is None
        )
        before, after = self.writer.content
        framed = frame(before + TOKENS[0] + after)
        self.before, _, self.after = framed.partition(TOKENS[0])
        self.unsent = 0  # tokens generated and not yet in a chunk
        self.queue: deque[tuple[int, bytes, int, bool]] = deque()  # (ready, bytes, tokens in them, the last)
        self.free_ns = 0  # a slow network is busy until then
        if ask.stream:
            self._open()

    def _open(self) -> None:
        request_id = self.request.headers.get("x-request-id")
        extra = {"x-request-id": request_id} if request_id else {}
        opening = head(200, "text/event-stream; charset=utf-8", keep_alive=self.request.keep_alive, extra=extra)
        self.connection.write(opening + (self.writer.role() if self.ask.faults.role_early else b""))

    def token(self, at_ns: int) -> None:
        """The engine made one more token, by plan at `at_ns`."""
        if self.outcome is not None:
            return
        done = len(self.planned_ns)
        self.planned_ns.append(at_ns)
        if self.plain and 0 < done < self.output_tokens - 1:
            self.written_ns.append(clock())
            self.connection.write(self.before + TOKENS[done & 63] + self.after)
            return
        if done == 0:
            self.first_made_ns = clock()
        if done + 1 == self.output_tokens:
            self.last_made_ns = clock()
        self.unsent += 1
        if not self.ask.stream:
            if done + 1 == self.output_tokens:
                self._whole()
            return
        if self.unsent >= self.ask.faults.tokens_per_chunk or done + 1 == self.output_tokens or self._cut(done + 1):
            self._chunk(done + 1)

    def _cut(self, tokens: int) -> bool:
        faults = self.ask.faults
        return tokens in {faults.truncate_after_tokens, faults.error_after_tokens, faults.stall_after_tokens}

    def _whole(self) -> None:
        """The answer to a request without a stream: one response once all is there."""
        now = clock()
        self.written_ns = [now] * self.output_tokens
        self.outcome = self.finish
        request_id = self.request.headers.get("x-request-id")
        extra = {"x-request-id": request_id} if request_id else {}
        self.connection.respond(200, self.writer.whole(self.output_tokens, self.finish, self._metrics()), **extra)

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
        data = self.writer.role() if start == 0 and not faults.role_early else b""
        if last:
            data += self.writer.last(start, self.unsent, self.finish, self._metrics())
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
            self.connection.request = None
            self.connection.server.drop(self.connection, reset=faults.reset)
            return
        self.outcome = "error" if len(self.written_ns) < self.output_tokens else self.finish
        self.connection.write(data)
        self.connection.done()
