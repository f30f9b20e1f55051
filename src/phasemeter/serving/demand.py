"""A plan's workload as requests: drawn once, the same under every rate and every deployment.

Lives here: drawing from workload/'s distributions and a trace's rows for a simulation. Must not live here: the distributions
themselves, files.
Common random numbers: what request i draws depends on (seed, i) alone, so two rates or two deployments with one seed see the
same requests, the gaps between them scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate, islice, repeat, takewhile

import msgspec

from phasemeter.errors import UserError
from phasemeter.serving.sequence import Request
from phasemeter.workload.arrivals import Arrivals, offsets_ns, span_of_requests_s, think_ns
from phasemeter.workload.lengths import Lengths, sample
from phasemeter.workload.many_streams import exponentials, samples
from phasemeter.workload.plan import TraceRow, WorkloadClass
from phasemeter.workload.streams import Stream, mix, stable_hash

DEFAULT_REQUESTS = 1000  # of a plan that gives neither requests nor a duration


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first `tokens` of each prompt are those of its group (a system prompt); groups are drawn evenly."""

    tokens: int
    groups: int = 1


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a deployment. `concurrency` belongs to closed arrivals: that many clients, one request each at a time.

    `rows`: a trace's, in order, each once; they end the run. `turns`: requests come in conversations of so many, each with
    all that was said before in its prompt. `named`: blocks of prompts get names, by which a prefix cache finds them.
    `speed`: a trace is played so many times as fast.
    """

    arrivals: Arrivals
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    requests: int | None = None
    duration_s: float | None = None
    concurrency: int | None = None
    prefix: SharedPrefix | None = None
    block_size: int = 16
    classes: tuple[WorkloadClass, ...] = ()
    turns: int = 1
    rows: tuple[TraceRow, ...] | None = None
    named: bool = False
    speed: float = 1.0

    def mean_rate_per_s(self) -> float | None:
        """The long-run rate; None where there is no single one (a ramp, a closed loop, all at once)."""
        if self.arrivals.kind != "trace":
            return self.arrivals.rate_per_s
        span = self.trace_span_s()
        return (len(self.rows or ()) - 1) / span if span else None

    def trace_span_s(self) -> float:
        """From a trace's first request to its last, in seconds as played."""
        offsets = [row.offset_ns or 0 for row in self.rows or ()]
        return (offsets[-1] - offsets[0]) / self.speed / 1e9 if offsets else 0.0

    def at_rate(self, rate_per_s: float) -> Demand:
        """The same requests offered at another rate.

        Raises UserError for arrivals that have no single rate.
        """
        own = self.mean_rate_per_s()
        if own is None:
            raise UserError(
                f"arrivals `{self.arrivals.words()}` have no rate to change: write poisson, constant or gamma"
            )
        if self.arrivals.kind == "trace":
            return msgspec.structs.replace(self, speed=self.speed * rate_per_s / own)
        return msgspec.structs.replace(self, arrivals=msgspec.structs.replace(self.arrivals, rate_per_s=rate_per_s))

    def most(self) -> int | None:
        """How many requests there are at most; None: the duration ends them."""
        asked = self.requests
        if asked is None and self.duration_s is None and self.rows is None:
            asked = DEFAULT_REQUESTS
        if self.rows is not None:
            return min(len(self.rows), asked or len(self.rows))
        return asked

    def open_loop(self, seed: int) -> Iterator[Request]:
        """Requests in order of arrival, a conversation's first turns only."""
        draws, most = Draws(self, seed), self.most()
        if most is not None:
            most = -(-most // self.turns)
        last_ns = math.inf if self.duration_s is None else self.duration_s * 1e9
        offsets = takewhile(lambda at_ns: at_ns <= last_ns, islice(self._offsets_ns(seed), most))
        if self.classes or self.rows is not None or self.turns > 1 or self.named:
            yield from (draws.request(number * self.turns, arrival_ns) for number, arrival_ns in enumerate(offsets))
            return
        inputs, outputs = (
            samples(lengths, seed, name) if lengths is not None else repeat(0)
            for lengths, name in ((self.input_tokens, "input_tokens"), (self.output_tokens, "output_tokens"))
        )
        for number, (arrival_ns, prompt, output) in enumerate(zip(offsets, inputs, outputs, strict=False)):
            yield Request(
                request_id=f"r{number}", prompt_tokens=prompt, output_tokens=output, arrival_ns=arrival_ns, max_tokens=output
            )  # fmt: skip

    def _offsets_ns(self, seed: int) -> Iterator[int]:
        if self.arrivals.kind == "poisson" and self.arrivals.rate_per_s is not None:
            rate = self.arrivals.rate_per_s
            gaps = islice(exponentials(seed, "arrivals"), 1, None)
            return accumulate((round(gap / rate * 1e9) for gap in gaps), initial=0)
        if self.arrivals.kind == "trace":
            return (round((row.offset_ns or 0) / self.speed) for row in self.rows or ())
        span = self.duration_s
        if span is None and self.requests is not None:
            span = span_of_requests_s(self.arrivals, self.requests)
        return offsets_ns(self.arrivals, seed, span)


class Draws:
    """One seed's requests of a demand."""

    def __init__(self, demand: Demand, seed: int) -> None:
        self.demand, self.seed = demand, seed
        self._inputs, self._outputs = Stream.family(seed, "input_tokens"), Stream.family(seed, "output_tokens")
        self._last = (demand.most() or 0) - 1

    def request(self, index: int, arrival_ns: int, said: int = 0) -> Request:
        """Request `index`; `said` tokens of its conversation come before what it adds."""
        demand = self.demand
        row = demand.rows[index] if demand.rows is not None else None
        inputs, outputs = demand.input_tokens, demand.output_tokens
        if demand.classes:
            chosen = self._class(index - index % demand.turns)
            inputs, outputs = chosen.input_tokens or inputs, chosen.output_tokens or outputs
        prompt = said + _length(inputs, self._inputs, index, row.input_tokens if row is not None else None)
        output = _length(outputs, self._outputs, index, row.output_tokens if row is not None else None)
        return Request(
            request_id=f"r{index}",
            prompt_tokens=prompt,
            output_tokens=output,
            arrival_ns=arrival_ns,
            max_tokens=output,
            block_hashes=self._hashes(index, prompt, output, row) if demand.named else (),
        )

    def following(self, ended: Request, finish_ns: int) -> Request | None:
        """The next turn of the conversation whose last turn has ended; None after its last."""
        index = int(ended.request_id[1:]) + 1
        if index % self.demand.turns == 0 or (self._last >= 0 and index > self._last):
            return None
        said = ended.prompt_tokens + ended.output_tokens
        return self.request(index, finish_ns + self.think_ns(index), said)

    def think_ns(self, index: int) -> int:
        return think_ns(self.demand.arrivals, self.seed, index)

    def class_name(self, index: int) -> str | None:
        """The kind of request `index` in a mix; None where there is one kind only."""
        return self._class(index - index % self.demand.turns).name if self.demand.classes else None

    def _class(self, index: int) -> WorkloadClass:
        classes = self.demand.classes
        at = Stream(self.seed, "class", index).random() * sum(one.weight for one in classes)
        for one in classes:
            at -= one.weight
            if at < 0:
                return one
        return classes[-1]

    def _hashes(self, index: int, prompt: int, output: int, row: TraceRow | None) -> tuple[int, ...]:
        """Names of the full blocks: the group's, a trace's, then its own (its conversation's, over turns and answers)."""
        demand, size = self.demand, self.demand.block_size
        number = index // demand.turns
        full = (prompt + output if demand.turns > 1 else prompt) // size
        names: list[int] = []
        if demand.prefix is not None:
            group = Stream(self.seed, "prefix_group", number).below(demand.prefix.groups)
            names = _chain(stable_hash("prefix", group), min(prompt, demand.prefix.tokens) // size)
        elif row is not None and row.hash_ids:
            each, joined = max(1, row.block_tokens // size), max(1, size // row.block_tokens)
            for position, block in enumerate(row.hash_ids[joined - 1 :: joined]):  # an id names all before it too
                names += _chain(stable_hash("trace", block), min(each, full - position * each))
        own = stable_hash("own", self.seed, number)
        return (*names[:full], *(mix(own + block) for block in range(len(names), full)))


def _chain(root: int, blocks: int) -> list[int]:
    return [mix(root + block) for block in range(blocks)]


def _length(lengths: Lengths | None, streams: Callable[[int], Stream], index: int, of_row: int | None) -> int:
    if of_row is not None:
        return max(1, of_row)
    if lengths is None:
        raise UserError(f"request {index}: neither the plan nor its trace says how long it is")
    return int(lengths.a) if lengths.kind == "fixed" else sample(lengths, streams(index))


def replication_seed(seed: int, replication: int) -> int:
    """The seed of a replication; the first is the run's own."""
    return seed if replication == 0 else stable_hash(seed, "replication", replication)
