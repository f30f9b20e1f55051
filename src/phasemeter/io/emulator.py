"""The serving engine on the wall clock, behind an OpenAI port.

Lives here: the loop that keeps the engine's instants, routes, and what is told about each request when it ends. Must not live
here: HTTP (emulator_http), bodies (emulator_api), what a token's bytes are (emulator_stream), schedulers (serving/).
"""

from __future__ import annotations

import gc
import heapq
import itertools
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from phasemeter.errors import UserError
from phasemeter.io.emulator_account import block_hashes, finished_of, span_of, truth_of
from phasemeter.io.emulator_api import ApiError, Ask, Faults, parse
from phasemeter.io.emulator_http import Connection, HttpRequest, HttpServer
from phasemeter.io.emulator_metrics import Metrics
from phasemeter.io.emulator_spans import SpanExporter
from phasemeter.io.emulator_stream import Stream
from phasemeter.io.emulator_truth import TruthFile
from phasemeter.serving.cluster import Split
from phasemeter.serving.events import Admitted, Event, Finished, Preempted, Tokens
from phasemeter.serving.sequence import Request

clock = time.monotonic_ns
LATE_STEP_NS = 1_000_000  # a step that starts later than this after its plan counts as late
LATE_WRITE_NS = 10_000_000
SPIN_NS = 250_000  # a sleep ends up to this late: the last stretch before a step is spent awake


class Serving(Protocol):
    """What the emulator drives: an engine, or a cluster of them, made to tell tokens."""

    def submit(self, now_ns: int, request: Request) -> None: ...
    def due_ns(self) -> int | None: ...
    def advance(self, now_ns: int) -> list[Event]: ...
    def abort(self, now_ns: int, request_id: str) -> bool: ...
    def load(self) -> tuple[int, int, float]:
        """(running, waiting, share of KV in use)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What stands besides the engine. `output_tokens(i)` is the plan's length for the i-th request that sets none."""

    models: tuple[str, ...]
    max_context_tokens: int
    output_tokens: Callable[[int], int]
    faults: Faults = Faults()
    prefix_cache: bool = False


class Lag:
    """How late steps started to be written, and ended: the emulator's own fidelity."""

    def __init__(self) -> None:
        self.steps = self.late_starts = self.late_ends = 0
        self.starts_ns: list[int] = []
        self.ends_ns: list[int] = []

    def note(self, planned_ns: int, started_ns: int, ended_ns: int) -> None:
        self.steps += 1
        self.late_starts += started_ns - planned_ns > LATE_STEP_NS
        self.late_ends += ended_ns - planned_ns > LATE_WRITE_NS
        if len(self.starts_ns) >= 100_000:
            del self.starts_ns[:50_000], self.ends_ns[:50_000]
        self.starts_ns.append(started_ns - planned_ns)
        self.ends_ns.append(ended_ns - planned_ns)

    def p99_s(self) -> tuple[float, float]:
        """p99 of (first write − plan, last write − plan) over the last steps, in seconds."""
        if not self.starts_ns:
            return 0.0, 0.0
        at = min(len(self.starts_ns) - 1, int(0.99 * len(self.starts_ns)))
        return sorted(self.starts_ns)[at] / 1e9, sorted(self.ends_ns)[at] / 1e9

    def complaint(self) -> str | None:
        """One line when it doesn't keep up: more than one step in a hundred is late."""
        if self.steps < 100 or max(self.late_starts, self.late_ends) <= self.steps / 100:
            return None
        start_s, end_s = self.p99_s()
        return (
            f"can't keep up: at p99 a step's first write is {start_s * 1e3:.1f} ms and its last {end_s * 1e3:.1f} ms "
            "after plan; hold clients against `written_ns`, or offer less"
        )


class Emulator:
    """A server. `run` blocks until `stop()`; every request ends as one line of truth, one span and vLLM's metrics."""

    def __init__(self, engine: Serving, settings: Settings, host: str, port: int) -> None:
        self.engine = engine
        self.settings = settings
        self.server = HttpServer(host, port, self.handle)
        self.server.gone = self._gone
        self.metrics = Metrics(settings.models[0], time.time())
        self.truth: TruthFile | None = None
        self.spans: SpanExporter | None = None
        self.lag = Lag()
        self.streams: dict[str, Stream] = {}
        self.of_connection: dict[int, str] = {}
        self.timers: list[tuple[int, int, Stream]] = []
        self.order = itertools.count()
        self.served = self.moves_told = 0
        self.stopping = self.closed = False

    def stop(self) -> None:
        """End `run` soon; may be called from a signal handler or another thread."""
        self.stopping = True
        self.server.wake()

    def run(self) -> None:
        """Serve. The collector of reference circles runs only while nothing is streaming: a pause would be a late step."""
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            while not self.stopping:
                self.turn()
                if not self.streams and gc.get_count()[0] > 10_000:
                    gc.collect()
        finally:
            gc.enable()
            gc.unfreeze()
            self.close()

    def turn(self) -> None:
        """One round: wait for traffic, a step or a timer, whichever is first."""
        due = self.engine.due_ns()
        if self.timers and (due is None or self.timers[0][0] < due):
            due = self.timers[0][0]
        self.server.poll(None if due is None else due - SPIN_NS)
        now = clock()
        while due is not None and due - SPIN_NS <= now < due:
            now = clock()
        self._advance(now)
        while self.timers and self.timers[0][0] <= now:
            stream = heapq.heappop(self.timers)[2]
            stream.flush(now)
            self._settle(stream)

    def close(self) -> None:
        self.closed = True
        for stream in list(self.streams.values()):
            self._gone(stream.connection)
        self.server.close()
        if self.spans is not None:
            self.spans.close()
        if self.truth is not None:
            self.truth.close()

    def _advance(self, now_ns: int) -> None:
        due = self.engine.due_ns()
        if due is None or due > now_ns:
            return
        for event in self.engine.advance(now_ns):
            if isinstance(event, Tokens):
                self._tokens(event)
            elif isinstance(event, Admitted):
                if (stream := self.streams.get(event.request_id)) is not None and stream.scheduled_ns is None:
                    stream.scheduled_ns = event.at_ns
            elif isinstance(event, Preempted):
                self.metrics.counters["num_preemptions"] += 1
                if (stream := self.streams.get(event.request_id)) is not None:
                    stream.preemptions += 1
            elif isinstance(event, Finished) and (stream := self.streams.get(event.request_id)) is not None:
                self.metrics.counters["prefix_cache_hits"] += event.truth.cached_tokens
                stream.cached_tokens = event.truth.cached_tokens
                self._settle(stream)

    def _tokens(self, event: Tokens) -> None:
        """Write one step. Nothing but writing happens before its last write."""
        started, at_ns, streams = clock(), event.at_ns, self.streams
        for request_id in event.more:
            if (stream := streams.get(request_id)) is not None:
                stream.token(at_ns)
        for request_id in event.first:
            if (stream := streams.get(request_id)) is not None:
                stream.token(at_ns)
        ended = clock()
        self.lag.note(at_ns, started, ended)
        gaps: Counter[int] = Counter()
        for request_id in event.more:
            if (stream := streams.get(request_id)) is not None:
                planned = stream.planned_ns
                gaps[planned[-1] - planned[-2]] += 1
                if stream.outcome is not None and len(planned) < stream.output_tokens:
                    self._settle(stream)  # a fault ended it early
        for request_id in event.first:
            if (stream := streams.get(request_id)) is not None:
                if stream.outcome is not None and len(stream.planned_ns) < stream.output_tokens:
                    self._settle(stream)
                self.metrics.observe("time_to_first_token_seconds", (ended - stream.arrival_ns) / 1e9)
                self.metrics.counters["prompt_tokens"] += len(stream.ask.prompt)
        for gap, times in gaps.items():
            self.metrics.histograms["inter_token_latency_seconds"].observe(gap / 1e9, times)
        made = len(event.more) + len(event.first)
        self.metrics.counters["generation_tokens"] += made
        computed = sum(len(streams[one].ask.prompt) for one in event.first if one in streams)
        self.metrics.observe("iteration_tokens_total", made + computed)

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Route one request."""
        try:
            self._route(connection, request)
        except ApiError as error:
            connection.respond(error.status, error.document())

    def _route(self, connection: Connection, request: HttpRequest) -> None:
        path = request.path.rstrip("/")
        chat = path == "/v1/chat/completions"
        if chat or path == "/v1/completions":
            if request.method != "POST":
                raise ApiError(405, "Method Not Allowed", kind="MethodNotAllowedError")
            self._generate(connection, request, chat)
            return
        if request.method not in {"GET", "HEAD"}:
            raise ApiError(404, f"{request.path} is not served here", kind="NotFoundError")
        if path == "/v1/models":
            about = {"object": "model", "created": int(self.metrics.started_s), "owned_by": "phasemeter"}
            context = {"max_model_len": self.settings.max_context_tokens}
            data = [{"id": name, **about, **context} for name in self.settings.models]
            connection.respond(200, json.dumps({"object": "list", "data": data}).encode())
        elif path in {"/health", "/ping"}:
            connection.respond(200, b"")
        elif path == "/metrics":
            self._gauges()
            connection.respond(200, self.metrics.page(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            raise ApiError(404, f"{request.path} is not served here", kind="NotFoundError")

    def _gauges(self) -> None:
        running, waiting, kv_share = self.engine.load()
        gauges = self.metrics.gauges
        gauges["num_requests_running"], gauges["num_requests_waiting"] = running, waiting
        gauges["kv_cache_usage_perc"] = kv_share
        if isinstance(self.engine, Split):
            for moved in self.engine.handovers[self.moves_told :]:
                self.metrics.kv_moved((moved.delivered_ns - moved.pull_ns) / 1e9)
            self.moves_told = len(self.engine.handovers)

    def _generate(self, connection: Connection, request: HttpRequest, chat: bool) -> None:
        if request.body is None:
            raise ApiError(413, "the body is too large")
        fault_header = request.headers.get("x-emulate")
        models, default = self.settings.models, self.settings.faults
        ask = parse(request.body, chat=chat, models=models, fault_header=fault_header, default=default)
        if ask.faults.error_status is not None:
            status = ask.faults.error_status
            raise ApiError(status, "the emulator was asked to fail", kind="InternalServerError")
        output = self._length(ask)
        named = request.headers.get("x-request-id") or secrets.token_hex(16)
        response_id = f"{'chatcmpl' if chat else 'cmpl'}-{named}"
        while response_id in self.streams:  # two requests in flight under one name: vLLM tells them apart likewise
            response_id += f"-{next(self.order)}"
        self.served += 1
        arrival = Request(
            request_id=response_id,
            prompt_tokens=len(ask.prompt),
            output_tokens=output,
            arrival_ns=request.arrived_ns,
            max_tokens=ask.max_tokens,
            block_hashes=block_hashes(ask.prompt) if self.settings.prefix_cache else (),
        )
        now = clock()
        self._advance(now)
        try:
            self.engine.submit(now, arrival)
        except UserError as error:
            raise ApiError(400, str(error)) from error
        stream = Stream(connection, request, ask, response_id, output)
        stream.later = self._later
        self.streams[response_id] = stream
        self.of_connection[connection.fd] = response_id
        self.metrics.counters["prefix_cache_queries"] += len(ask.prompt)

    def _length(self, ask: Ask) -> int:
        """How many tokens the answer gets: the plan's, cut by max_tokens; all of max_tokens under ignore_eos."""
        room = self.settings.max_context_tokens - len(ask.prompt)
        if room < 1 or (ask.max_tokens or 0) > room:
            raise ApiError(
                400,
                f"This model's maximum context length is {self.settings.max_context_tokens} tokens. However, you requested "
                f"{len(ask.prompt)} prompt tokens and {ask.max_tokens or 1} output tokens.",
                "messages" if ask.chat else "prompt",
            )
        if ask.ignore_eos and ask.max_tokens is not None:
            return ask.max_tokens
        return min(self.settings.output_tokens(self.served), ask.max_tokens or room, room)

    def _later(self, when_ns: int, stream: Stream) -> None:
        heapq.heappush(self.timers, (when_ns, next(self.order), stream))

    def _settle(self, stream: Stream) -> None:
        """Tell about a stream whose answer is out. With faults it may end before its sequence, which then runs on unheard."""
        if stream.outcome is None or stream.response_id not in self.streams:
            return
        self._forget(stream)

    def _gone(self, connection: Connection) -> None:
        response_id = self.of_connection.get(connection.fd)
        stream = self.streams.get(response_id) if response_id is not None else None
        if stream is None:
            return
        stream.outcome = "client_gone"
        self._forget(stream)
        if not self.closed:
            now = clock()
            self._advance(now)
            self.engine.abort(now, stream.response_id)  # its sequence and its blocks are free from the next step on

    def _forget(self, stream: Stream) -> None:
        end = clock()
        del self.streams[stream.response_id]
        self.of_connection.pop(stream.connection.fd, None)
        finished = finished_of(stream, end)
        if finished is None:
            self.metrics.success["abort"] += 1
        else:
            self.metrics.finish(finished)
            if self.spans is not None:
                self.spans.send(span_of(stream, finished, end))
        if self.truth is not None:
            self.truth.write(truth_of(stream, end))
            if not self.streams:
                self.truth.flush()
