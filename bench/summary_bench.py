"""How much rows to a result adds per event, as a ratio to `json.loads` over one chat chunk.

Reading may take 1.0 in all (reading_bench); what follows it should stay below 0.25. Timed in turns, median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from phasemeter.metrics.summary import Summary
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import ChoiceTimes, RequestRow

CHUNK = (
    b'{"id":"chatcmpl-9b358767f89e4627","object":"chat.completion.chunk","created":1795962369,"model":"smollm2","choices":['
    b'{"index":0,"delta":{"content":" sea"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
)
MS = 1_000_000


def made(requests: int, events: int) -> list[RequestRow]:
    """Streams that differ in every gap, so that no sort is a gift."""
    rows = []
    for number in range(requests):
        start = number * 37 * MS
        times = tuple(start + 200 * MS + k * 20 * MS + (number * 7919 + k * 104_729) % (3 * MS) for k in range(events))
        rows.append(
            RequestRow(
                request_id=str(number), outcome="ok", due_ns=start, send_start_ns=start + 9_000, sent_ns=start + 20_000,
                first_token_ns=times[0], first_output_ns=times[0], last_token_ns=times[-1], stream_end_ns=times[-1] + 9,
                input_tokens=64, output_tokens=events, output_tokens_source="usage", observer_lag_ns=30_000,
                choices=(ChoiceTimes(times_ns=times, reads=tuple(range(events))),),
            )
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows, total = made(options.requests, options.events), options.requests * options.events
    ratios, ours, theirs = [], [], []
    for _ in range(options.rounds):
        begun = time.perf_counter()
        for _event in range(total):
            json.loads(CHUNK)
        between = time.perf_counter()
        summary = Summary()
        for row in rows:
            summary.add(row)
        summary.result(Manifest(rate_per_s=27.0))
        done = time.perf_counter()
        theirs.append((between - begun) / total * 1e6)
        ours.append((done - between) / total * 1e6)
        ratios.append(ours[-1] / theirs[-1])
    print(
        f"rows to a result: {statistics.median(ratios):.2f}x json.loads (limit 0.25)"
        f"  [{statistics.median(ours):.2f} µs against {statistics.median(theirs):.2f} µs an event]"
    )


if __name__ == "__main__":
    main()
