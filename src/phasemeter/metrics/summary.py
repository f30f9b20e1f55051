"""Rows in, one result out: a streaming accumulator in bounded memory.

Lives here: what enters which statistic, and the assembly of a Result. Failed, cancelled and unsent requests enter no latency
statistic and always appear in the outcomes; warm-up rows stand apart. Must not live here: formulas (definitions), windows
(throughput), thresholds (validity).
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from phasemeter.metrics import distribution, gaps, realised, throughput
from phasemeter.metrics.columns import Columns
from phasemeter.metrics.definitions import DIALECT, HOUSE, VALUE_OR_REASON
from phasemeter.metrics.timeline import ONE_EACH, SEVERAL, Timeline
from phasemeter.metrics.validity import RunFacts, judge
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Metric, Outcomes, Result
from phasemeter.stats.quantiles import ordered_quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# computed from the gap columns at the end, for all requests at once
FROM_GAPS = ("inter_chunk", "itl", "itl_spread", "stall", "jitter")
STEADY_LEAST = 0.25  # a closed loop's steady window below this share of the run is shown, but is no headline
_TELLERS = tuple((name, tell) for name, tell in VALUE_OR_REASON.items() if name not in FROM_GAPS)


class Summary:
    """`add` every row of a run in any order, then `result` once."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.timeline = Timeline()
        self.counts = realised.Counts()
        self._values = {name: array("d") for name, _ in _TELLERS}
        self._numbers = {name: array("q") for name, _ in _TELLERS}
        self._excluded: dict[str, Counter[str]] = {name: Counter() for name in HOUSE}

    def add(self, row: RequestRow) -> None:
        """Take in one request. A row of 200 events costs some tens of µs."""
        number = len(self.columns)
        measured = row.phase == "measured"
        usable = measured and row.outcome == "ok"
        self.columns.add(row)
        self.timeline.add(number, row, usable)
        self.counts.add(row)
        if not usable:
            return
        for name, tell in _TELLERS:
            value = tell(row)
            if isinstance(value, str):
                self._excluded[name][value] += 1
            else:
                self._values[name].append(value)
                self._numbers[name].append(number)
        self.note_gaps(row)

    def take(self, name: str, values: Floats, numbers: Ints) -> None:
        """A metric's values of the rows of these numbers (alike.py)."""
        self._values[name].frombytes(values.tobytes())
        self._numbers[name].frombytes(numbers.tobytes())

    def leave_out(self, name: str, reason: str, many: int) -> None:
        """That many requests have no value of a metric, for that reason."""
        self._excluded[name][reason] += many

    def note_gaps(self, row: RequestRow, many: int = 1) -> None:
        """Why a row, or `many` like it, gives no gaps."""
        excluded = self._excluded
        reason = gaps.no_gaps_reason(row)
        if reason is None and all(len(choice.times_ns) < 2 for choice in row.choices):
            reason = "single_chunk"
        if reason is not None:
            for name in FROM_GAPS:
                excluded[name][reason] += many
            return
        no_itl = gaps.no_itl_reason(row)
        if no_itl is not None:
            excluded["itl"][no_itl] += many
            if no_itl == "unknown_tokens":
                excluded["itl_spread"][no_itl] += many

    def result(self, manifest: Manifest | None = None, facts: RunFacts | None = None) -> Result:
        """The whole run as one record. `manifest` tells how the load was driven; `facts` what rows can't tell."""
        told = facts or RunFacts(stamps=None if manifest is None else manifest.stamps)
        run = Manifest() if manifest is None else manifest
        load = msgspec.structs.replace(
            realised.load_of(run, self.columns),
            template_tokens=realised.template_tokens(run),
            replay=str(run.arrivals).startswith("trace"),
        )
        outcomes = self.counts.outcomes("measured", told.planned_requests)
        metrics = self._metrics(outcomes)
        windows = self._throughput(load, told)
        late = realised.look(self, load, metrics)
        return Result(
            run=msgspec.to_builtins(run),
            partial=told.partial,
            validity=judge(late.seen, told),
            outcomes=outcomes,
            errors=self.counts.errors(),
            definitions=DIALECT,
            metrics=metrics,
            throughput=windows,
            workload=late.workload,
            warnings=dict(self.counts.warnings),
            reason=None if outcomes.ok else "no_successful_requests",
        )

    # ---- metrics

    def in_order(self, name: str) -> Floats:
        """A per-request metric's values, in the order the requests were due."""
        numbers = np.array(self._numbers[name], dtype=np.int64)
        order = np.argsort(self.columns.ints("due")[numbers], kind="stable")
        values: Floats = np.array(self._values[name], dtype=np.float64)[order]
        return values

    def numbers(self, name: str) -> Ints:
        """The row numbers of `in_order(name)`."""
        numbers = np.array(self._numbers[name], dtype=np.int64)
        ordered: Ints = numbers[np.argsort(self.columns.ints("due")[numbers], kind="stable")]
        return ordered

    def _metrics(self, outcomes: Outcomes) -> dict[str, Metric]:
        found: dict[str, Metric] = {}
        told: list[tuple[Floats, Metric]] = []
        for name, _ in _TELLERS:
            values = self.in_order(name)
            same = next((metric for others, metric in told if np.array_equal(values, others)), None)
            found[name] = self._per_request(name, values) if same is None else self._renamed(same, name)
            if same is None and len(values):
                told.append((values, found[name]))
        found |= self._gap_metrics()
        if not outcomes.ok:
            found = {
                name: msgspec.structs.replace(metric, reason="no_successful_requests") for name, metric in found.items()
            }
        return {name: found[name] for name in HOUSE}

    def _per_request(self, name: str, values: Floats) -> Metric:
        row = HOUSE[name]
        if not len(values):
            return self._null(name)
        return distribution.of_requests(values, row.line(), row.unit, self._excluded[name])

    def _renamed(self, metric: Metric, name: str) -> Metric:
        """The same numbers as another metric: without reasoning `ttfo` is `ttft`, and most runs send when a request is due."""
        row = HOUSE[name]
        return msgspec.structs.replace(
            metric, definition=row.line(), unit=row.unit, excluded=dict(self._excluded[name])
        )

    def _null(self, name: str) -> Metric:
        excluded = self._excluded[name]
        reason = excluded.most_common(1)[0][0] if excluded else "no_values"
        return distribution.empty(HOUSE[name].line(), HOUSE[name].unit, reason, excluded)

    def _gap_metrics(self) -> dict[str, Metric]:
        if self.timeline.let_go:
            for name in FROM_GAPS:
                self._excluded[name]["sampled_out"] += self.timeline.let_go
        values, owners, kinds = self.timeline.gap_columns()
        found = {"inter_chunk": self._of_gaps("inter_chunk", values, owners)}
        others = np.unique(owners[kinds != ONE_EACH])
        whole = (
            ~np.isin(owners, others) if len(others) else np.ones(len(owners), dtype=bool)
        )  # every choice must be known
        if whole.all():
            found["itl"] = msgspec.structs.replace(
                found["inter_chunk"], definition=HOUSE["itl"].line(), excluded=dict(self._excluded["itl"])
            )
        else:
            found["itl"] = self._of_gaps("itl", values[whole], owners[whole])
        if whole.all() and not (kinds == SEVERAL).any():
            found["itl_spread"] = msgspec.structs.replace(
                found["inter_chunk"], definition=HOUSE["itl_spread"].line(), excluded=dict(self._excluded["itl_spread"])
            )
        else:
            found["itl_spread"] = self._of_gaps("itl_spread", *self.timeline.spread_columns())
        stalls, whose, jitter = self._stalls_and_jitter(values, owners)
        found["stall"] = self._of_gaps("stall", stalls, whose)
        found["jitter"] = self._per_request("jitter", jitter)
        self.counts.see_gaps(values, stalls, whose)
        return found

    def _of_gaps(self, name: str, values: Floats, owners: distribution.Owners) -> Metric:
        if not len(values):
            return distribution.empty(HOUSE[name].line(), "s", self._no_gaps(name), self._excluded[name])
        return distribution.of_gaps(values, owners, HOUSE[name].line(), "s", self._excluded[name])

    def _no_gaps(self, name: str) -> str:
        if self._excluded[name]:
            return self._excluded[name].most_common(1)[0][0]
        return "no_stalls" if name == "stall" else "no_values"

    def _stalls_and_jitter(self, values: Floats, owners: distribution.Owners) -> tuple[Floats, Ints, Floats]:
        """(stalls, their owners, jitter a request in order of due); each request held to its own median gap."""
        edges = np.flatnonzero(owners[1:] != owners[:-1]) + 1
        starts = [0, *edges.tolist()] if len(owners) else []
        due = self.columns.ints("due")
        long: list[Floats] = []
        whose: list[distribution.Owners] = []
        spreads: list[tuple[int, float]] = []
        for start, end in zip(starts, [*starts[1:], len(owners)], strict=False):
            own = values[start:end]
            ordered = np.sort(own)
            middle = ordered_quantile(ordered, 0.5)
            if middle <= 0:
                self._excluded["stall"]["coalesced"] += 1
            elif ordered[-1] > gaps.STALL_FACTOR * middle:
                over = own > gaps.STALL_FACTOR * middle
                long.append(own[over])
                whose.append(owners[start:end][over])
            if len(own) < 2:
                self._excluded["jitter"]["fewer_than_2_gaps"] += 1
            else:
                spreads.append((int(due[owners[start]]), ordered_quantile(ordered, 0.99) - middle))
        jitter = np.array([value for _, value in sorted(spreads)], dtype=np.float64)
        empty = np.empty(0)
        return (
            np.concatenate(long) if long else empty,
            np.concatenate(whose, dtype=np.int64) if whose else empty.astype(np.int64),
            jitter,
        )

    # ---- throughput

    def received(self) -> throughput.Received:
        """What came from every request, whatever became of it and whichever phase it was in."""
        columns = self.columns
        every = np.ones(len(columns), dtype=bool)
        weights, estimated = self.timeline.weights()
        tokens = columns.floats("output_tokens")
        bare = columns.eventless() & ~np.isnan(tokens) & ~np.isnan(columns.floats("last_token"))
        first, last = columns.ints("first_token")[bare], columns.ints("last_token")[bare]
        prompted = ~np.isnan(columns.floats("first_token"))
        prompts = _filled(columns.floats("input_tokens")[prompted])
        some_tokens = self.timeline.tokens_per_event_known() is not None or bool(bare.any())
        nothing_came = not len(weights) and not bare.any()
        return throughput.Received(
            completed_ns=columns.present("end", columns.outcome("ok")),
            event_ns=self.timeline.instants(),
            event_tokens=np.multiply(weights, self.timeline.step, out=weights),
            spread_start_ns=np.minimum(first, last),
            spread_end_ns=last,
            spread_tokens=tokens[bare],
            prompts_ns=columns.present("first_token", every),
            prompts=prompts,
            tokens_known=some_tokens or nothing_came,
            estimated=estimated,
        )

    def _throughput(self, load: realised.Load, facts: RunFacts) -> dict[str, Any]:
        columns, measured = self.columns, self.columns.phase("measured")
        starts, ends = columns.present("send_start", measured), columns.present("end", measured)
        whole = throughput.whole_run(starts, ends)
        if whole is None and facts.started_ns is not None and facts.ended_ns is not None:
            whole = throughput.Window(
                kind="whole_run", start_ns=facts.started_ns, end_ns=facts.ended_ns, rule="start to end of the run"
            )
        if load.mode == "open":
            steady = throughput.steady_open(columns.present("due", measured & ~columns.outcome("unsent")))
        else:
            sent = measured & ~np.isnan(columns.floats("send_start"))
            steady = throughput.steady_closed(starts, columns.ints("end")[sent])
        received = self.received()
        own = {"whole_run": throughput.rates(received, whole), "steady": throughput.rates(received, steady)}
        long_enough = load.mode == "open" or (
            steady is not None and whole is not None and steady.length_s >= STEADY_LEAST * whole.length_s
        )
        headline = "steady" if long_enough and own["steady"]["requests_per_s"] is not None else "whole_run"
        return {
            **own[headline],
            **own,
            "peak": throughput.peak(received, whole),
            "estimated_tokens": received.estimated,
        }


def _filled(prompts: Floats) -> Floats | None:
    """Input tokens with the unknown ones (a cut-off reply tells no usage) at the mean of the known; None if none is known."""
    unknown = np.isnan(prompts)
    if unknown.all() and len(prompts):
        return None
    return np.where(unknown, prompts[~unknown].mean(), prompts) if unknown.any() else prompts
