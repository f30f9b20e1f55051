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

from phasemeter import __version__
from phasemeter.errors import InternalError, UserError
from phasemeter.io.emulator_account import block_hashes, finished_of, span_of, truth_of
from phasemeter.io.emulator_api import ApiError, Ask, Faults, parse
from phasemeter.io.emulator_http import Connection, HttpRequest, HttpServer
from phasemeter.io.emulator_lag import Lag
from phasemeter.io.emulator_metrics import Metrics
from phasemeter.io.emulator_spans import SpanExporter
from phasemeter.io.emulator_stream import Step, Stream
from phasemeter.io.emulator_truth import TruthFile
from phasemeter.io.precedence import Precedence
from phasemeter.io.worker_main import finer_timer
from phasemeter.serving.cluster import Split
from phasemeter.serving.events import Aborted, Admitted, Event, Finished, Preempted, Tokens
from phasemeter.serving.sequence import Request

clock = time.monotonic_ns
SPIN_NS = 250_000  # a sleep ends up to this late: the last stretch before a step is spent awake
LOOK_NS = 1_200  # and this much more for each stream, to look up who is in the step


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
        self.precedence: Precedence | None = None  # a place before other processes, looked after while it serves
        self.streams: dict[str, Stream] = {}
        self.of_connection: dict[int, str] = {}
        self.timers: list[tuple[int, int, Stream]] = []
        self.order = itertools.count()
        self.served = self.moves_told = 0
        self.stepping = self.complained = self.stopping = self.closed = False
        self.left: list[Stream] = []  # whose clients left while a step was being written
        self.leaving: set[str] = set()  # called off, but still in the engine
        self.look: Callable[[], tuple[int, tuple[str, ...], tuple[str, ...]] | None] = lambda: None
        self.ahead: Step | None = None
        self.complain: Callable[[str], None] = lambda words: None  # told once, when it can't keep up

    def stop(self) -> None:
        """End `run` soon; may be called from a signal handler or another thread."""
        self.stopping = True
        self.server.wake()

    def run(self) -> None:
        """Serve. The collector of reference circles runs only while nothing is streaming: a pause would be a late step."""
        finer_timer()
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
        awake_ns = SPIN_NS + LOOK_NS * len(self.streams)
        self.server.poll(None if due is None else due - awake_ns)
        now = clock()
        if due is not None and due - awake_ns <= now < due:
            self._look_ahead()
            while now < due:
                now = clock()
        elif self.precedence is not None:
            self.precedence.look(now)
        self._advance(now)
        while self.timers and self.timers[0][0] <= now:
            stream = heapq.heappop(self.timers)[2]
            stream.flush(now)
            self._settle(stream)

    def _look_ahead(self) -> None:
        """Just before a step's end: who gets its tokens, so that its first write waits for nothing."""
        found = None if self.settings.prefix_cache else self.look()
        self.ahead = None if found is None else Step(*found, *self._streams_of(found[1], found[2]))

    def _streams_of(self, first: tuple[str, ...], more: tuple[str, ...]) -> tuple[list[Stream], list[Stream]]:
        get = self.streams.get
        return [s for one in first if (s := get(one)) is not None], [s for one in more if (s := get(one)) is not None]

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
        """Everything that the engine has up to now. A client found gone meanwhile waits for the end of it."""
        due = self.engine.due_ns()
        if due is None or due > now_ns or self.stepping:
            return
        self.stepping = True
        if self.ahead is not None and self.ahead.at_ns == due:
            self._write(self.ahead)
        else:
            self.ahead = None
        events = self.engine.advance(now_ns)
        if self.settings.prefix_cache:
            self._note_cached(events)
        for event in events:
            if isinstance(event, Tokens):
                self._tokens(event)
            else:
                self._happened(event)
        self.stepping = False
        left, self.left = self.left, []
        for stream in left:
            self._leave(stream)

    def _note_cached(self, events: list[Event]) -> None:
        """Before the last token is written: its usage tells what came from the cache."""
        for event in events:
            if isinstance(event, Finished) and (stream := self.streams.get(event.request_id)) is not None:
                stream.told_cached = event.truth.cached_tokens

    def _happened(self, event: Event) -> None:
        stream = self.streams.get(event.request_id) if not isinstance(event, Tokens) else None
        if isinstance(event, Preempted):
            self.metrics.counters["num_preemptions"] += 1
        if isinstance(event, Finished | Aborted):
            self.leaving.discard(event.request_id)
        if stream is None:
            return
        if isinstance(event, Admitted):
            stream.scheduled_ns = event.at_ns if stream.scheduled_ns is None else stream.scheduled_ns
        elif isinstance(event, Preempted):
            stream.preemptions += 1
        elif isinstance(event, Finished):
            self.metrics.counters["prefix_cache_hits"] += event.truth.cached_tokens
            stream.cached_tokens = event.truth.cached_tokens
            stream.finished = True
            self._settle(stream)

    def _tokens(self, event: Tokens) -> None:
        """Write one step, if it was not written ahead of being told, then account for it."""
        step, self.ahead = self.ahead, None
        if step is None:
            step = Step(event.at_ns, event.first, event.more, *self._streams_of(event.first, event.more))
            self._write(step)
        elif (step.at_ns, step.first, step.more) != (event.at_ns, event.first, event.more):
            raise InternalError(f"the engine told of another step at {event.at_ns} ns than was coming")
        self._account(step)
        if not self.complained and self.lag.steps % 100 == 0 and (words := self.lag.complaint()) is not None:
            self.complained = True
            self.complain(words)

    def _write(self, step: Step) -> None:
        self.lag.note(step.at_ns, *step.write())

    def _account(self, step: Step) -> None:
        """After a step's last write: its counts, and the next step's bytes."""
        gaps: Counter[int] = Counter()
        made, computed, at_ns = 0, 0, step.at_ns
        for stream in step.more_streams:
            planned, choices = stream.planned_ns, stream.ask.n
            if stream.ready is not None:
                planned.append(at_ns)
            if len(planned) > 1:
                gaps[at_ns - planned[-2]] += choices
            made += choices
            self._after_step(stream)
        for stream in step.first_streams:
            made += stream.ask.n
            computed += len(stream.ask.prompt)
            for _ in range(stream.ask.n):  # vLLM observes each sample
                self.metrics.observe("time_to_first_token_seconds", (step.ended_ns - stream.arrival_ns) / 1e9)
            self._after_step(stream)
        for gap, times in gaps.items():
            self.metrics.histograms["inter_token_latency_seconds"].observe(gap / 1e9, times)
        self.metrics.counters["prompt_tokens"] += computed
        self.metrics.counters["generation_tokens"] += made
        self.metrics.observe("iteration_tokens_total", made + computed)

    def _after_step(self, stream: Stream) -> None:
        if stream.outcome is not None and len(stream.planned_ns) < stream.output_tokens:
            self._settle(stream)  # a fault ended it early
        else:
            stream.prepare()

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
            root = {"root": self.settings.models[0], "parent": None}
            context = {"max_model_len": self.settings.max_context_tokens, "permission": []}
            data = [{"id": name, **about, **root, **context} for name in self.settings.models]
            connection.respond(200, json.dumps({"object": "list", "data": data}).encode())
        elif path == "/version":
            connection.respond(200, json.dumps({"version": f"phasemeter-emulator {__version__}"}).encode())
        elif path in {"/health", "/ping"}:
            connection.respond(200, b"")
        elif path == "/metrics":
            self._gauges()
            connection.respond(200, self.metrics.page() + self.lag.page(), "text/plain; version=0.0.4; charset=utf-8")
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
        while (
            response_id in self.streams or response_id in self.leaving
        ):  # two requests in flight under one name: vLLM tells them apart likewise
            response_id += f"-{next(self.order)}"
        self.served += 1
        arrival = Request(
            request_id=response_id,
            prompt_tokens=len(ask.prompt),
            output_tokens=output,
            arrival_ns=request.arrived_ns,
            max_tokens=ask.max_tokens,
            block_hashes=block_hashes(ask.prompt) if self.settings.prefix_cache else (),
            samples=ask.n,
        )
        now = clock()
        self._advance(now)
        try:
            self.engine.submit(now, arrival)
        except UserError as error:
            raise ApiError(400, str(error)) from error
        stream = Stream(connection, request, ask, response_id, output)
        stream.later = self._later
        stream.told_cached = 0 if self.settings.prefix_cache else None
        stream.steps_before, stream.late_before = self.lag.steps, self.lag.late
        stream.prepare()
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
        """Tell about a stream whose answer is out. One that a fault ended early is called off in the engine."""
        if stream.outcome is None or stream.response_id not in self.streams:
            return
        self._forget(stream)
        stream.connection.done()
        if not stream.finished and len(stream.planned_ns) < stream.output_tokens:
            self._abort(stream)

    def _gone(self, connection: Connection) -> None:
        response_id = self.of_connection.get(connection.fd)
        stream = self.streams.get(response_id) if response_id is not None else None
        if stream is None:
            return
        stream.outcome = "client_gone"
        if self.stepping:
            self.left.append(stream)
        else:
            self._leave(stream)

    def _leave(self, stream: Stream) -> None:
        if stream.response_id not in self.streams:
            return
        self._forget(stream)
        if not stream.finished and not self.closed:
            self._advance(clock())
            self._abort(stream)

    def _abort(self, stream: Stream) -> None:
        """Its sequence and its blocks are free from the next step on."""
        if self.engine.abort(clock(), stream.response_id):
            self.leaving.add(stream.response_id)

    def _forget(self, stream: Stream) -> None:
        end = clock()
        del self.streams[stream.response_id]
        if self.of_connection.get(stream.connection.fd) == stream.response_id:
            del self.of_connection[stream.connection.fd]
        finished = finished_of(stream, end)
        for _ in range(stream.ask.n):
            if finished is None:
                self.metrics.success["abort"] += 1
            else:
                self.metrics.finish(finished)
        if finished is not None and self.spans is not None:
            self.spans.send(span_of(stream, finished, end))
        if self.truth is not None:
            self.truth.write(truth_of(stream, end, self.lag))
            if not self.streams:
                self.truth.flush()
