"""A plan's workload as requests: drawn once, the same under every rate and every deployment.

Lives here: drawing from workload/'s distributions for a simulation. Must not live here: the distributions themselves.
Common random numbers: what request i draws depends on (seed, i) alone, so two rates or two deployments with one seed see the
same requests, the gaps between them scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from phasemeter.errors import UserError
from phasemeter.serving.sequence import Request
from phasemeter.workload.arrivals import Arrivals, offsets_ns, span_of_requests_s, think_ns
from phasemeter.workload.lengths import Lengths, sample
from phasemeter.workload.streams import Stream, stable_hash


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first `tokens` of each prompt are those of its group (a system prompt); groups are drawn evenly."""

    tokens: int
    groups: int = 1


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a deployment. `concurrency` belongs to closed arrivals: that many clients, one request each at a time."""

    arrivals: Arrivals
    input_tokens: Lengths
    output_tokens: Lengths
    requests: int | None = None
    duration_s: float | None = None
    concurrency: int | None = None
    prefix: SharedPrefix | None = None
    block_size: int = 16

    def at_rate(self, rate_per_s: float) -> Demand:
        """The same requests offered at another rate.

        Raises UserError for arrivals that have no single rate.
        """
        if self.arrivals.rate_per_s is None:
            raise UserError(
                f"arrivals `{self.arrivals.words()}` have no rate to change: write poisson, constant or gamma"
            )
        return msgspec.structs.replace(self, arrivals=msgspec.structs.replace(self.arrivals, rate_per_s=rate_per_s))

    def request(self, seed: int, index: int, arrival_ns: int) -> Request:
        prompt = sample(self.input_tokens, Stream(seed, "input_tokens", index))
        output = sample(self.output_tokens, Stream(seed, "output_tokens", index))
        return Request(
            request_id=f"r{index}",
            prompt_tokens=prompt,
            output_tokens=output,
            arrival_ns=arrival_ns,
            max_tokens=output,
            block_hashes=self._hashes(seed, index, prompt) if self.prefix is not None else (),
        )

    def _hashes(self, seed: int, index: int, prompt: int) -> tuple[int, ...]:
        if self.prefix is None:
            return ()
        group = Stream(seed, "prefix_group", index).below(self.prefix.groups)
        shared = min(prompt, self.prefix.tokens) // self.block_size
        mine = (stable_hash("prefix", group, block) for block in range(shared))
        rest = (stable_hash("own", seed, index, block) for block in range(shared, prompt // self.block_size))
        return (*mine, *rest)

    def open_loop(self, seed: int) -> Iterator[Request]:
        """Requests in order of arrival, ended by the number asked or the duration (1,000 when neither is given)."""
        span = self.duration_s
        if span is None and self.requests is not None:
            span = span_of_requests_s(self.arrivals, self.requests)
        most = self.requests if self.requests is not None or self.duration_s is not None else 1000
        for index, arrival_ns in enumerate(islice(offsets_ns(self.arrivals, seed, span), most)):
            if self.duration_s is not None and arrival_ns > self.duration_s * 1e9:
                return
            yield self.request(seed, index, arrival_ns)

    def think_ns(self, seed: int, index: int) -> int:
        return think_ns(self.arrivals, seed, index)


def replication_seed(seed: int, replication: int) -> int:
    """The seed of a replication; the first is the run's own."""
    return seed if replication == 0 else stable_hash(seed, "replication", replication)
