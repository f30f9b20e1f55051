"""A request trace, ready to be replayed: sorted, rebased to 0, its faults named by line, and what each option did.

Lives here: the rules. Must not live here: file formats (trace_rows.py, trace_columns.py, trace_stamps.py), opening files, printing.

Rules, in this order: a row with a missing, impossible or unreadable value is an error with its line (all stamps
missing: a file without a schedule) · zero-output rows are dropped and counted · unsorted rows are sorted stably · the earliest
stamp becomes 0 · slice · sample · spread within the second · longest idle · rate scale. Gaps are scaled, never stamps.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from phasemeter.errors import FileError, UserError
from phasemeter.units import duration_s, share
from phasemeter.workload.plan import TraceRow
from phasemeter.workload.streams import Stream, stable_hash
from phasemeter.workload.trace_columns import Columns, parse_columns
from phasemeter.workload.trace_rows import Fault, Faults, RawRows, read_rows
from phasemeter.workload.trace_stamps import MISSING

SECOND = 10**9
QUIET_GAP_S = 60.0
BLOCK_TOKENS = 512  # of prompt, that one hash id stands for (Mooncake)
BAILIAN_BLOCK_TOKENS = 16


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with a trace. `slice`: "60s:5min" (time from its start) or "100:200" (rows); either end may be left out."""

    slice: str | None = None
    rate_scale: float = 1.0
    sample: str | None = None  # "100" rows, or "10 %" / "0.1" of them
    max_idle_s: float | None = None
    spread_same_second: bool = False
    keep_zero_output: bool = False
    block_tokens: int | None = None  # None: what the format says (block_size_of)
    lenient: bool = False
    columns: str | None = None
    seed: int = 0


class Trace(msgspec.Struct, kw_only=True):
    """Rows in the order in which they are due. Columns that the file lacks are None. `errors` hold what would be refused."""

    name: str
    columns: Columns
    rows_read: int
    lines: array[int]
    offsets_ns: array[int] | None
    input_tokens: array[int] | None
    output_tokens: array[int] | None
    sessions: list[str] | None = None
    hash_ids: array[int] | None = None
    hash_spans: list[tuple[int, int]] | None = None  # a row's ids are hash_ids[a:b]
    block_tokens: int = BLOCK_TOKENS
    client_queue_ns: array[int] | None = None
    warnings: list[Fault]
    errors: list[Fault]
    error_count: int
    dropped_zero_output: int = 0
    kept_zero_output: int = 0
    invalid_lines: list[int] = []
    whole_seconds: bool = False
    lenient: bool = False
    did: list[str]

    @property
    def accepted(self) -> bool:
        """Fit to be replayed: rows there are, and none is in doubt (lenient: the doubtful ones are left out)."""
        return len(self.lines) > 0 and (self.lenient or not self.error_count)

    def ids_of(self, row: int) -> tuple[int, ...]:
        """The prompt blocks of a row, () where the file has none."""
        if self.hash_ids is None or self.hash_spans is None:
            return ()
        start, end = self.hash_spans[row]
        return tuple(self.hash_ids[start:end])

    def rows(self) -> Iterator[TraceRow]:
        """The rows for a plan, each once, in order."""
        for row in range(len(self.lines)):
            yield TraceRow(
                offset_ns=self.offsets_ns[row] if self.offsets_ns is not None else None,
                input_tokens=self.input_tokens[row] if self.input_tokens is not None else None,
                output_tokens=self.output_tokens[row] if self.output_tokens is not None else None,
                hash_ids=self.ids_of(row),
                block_tokens=self.block_tokens,
            )


def load_trace(lines: Iterable[str], name: str, options: TraceOptions | None = None) -> Trace:
    """The trace in a file's lines.

    Raises FileError for what is no trace at all (empty, no known columns), UserError for impossible options. Faults of single rows are in
    `errors`; whoever replays refuses a trace that is not `accepted`.
    """
    options = options or TraceOptions()
    block, idle = options.block_tokens, options.max_idle_s
    if not options.rate_scale > 0 or (block is not None and block < 1) or (idle is not None and idle < 0):
        raise UserError("rate scale has to be above 0, block size 1 or more, longest idle 0 or more")
    raw = read_rows(lines, name, parse_columns(options.columns))
    if not raw.rows_read:
        raise FileError(f"{name}:1: has a header and no request under it")
    return _Finish(raw, name, options).trace()


class _Finish:
    """From raw rows to a trace: one method a rule, in the order of the module's head."""

    def __init__(self, raw: RawRows, name: str, options: TraceOptions) -> None:
        self.raw, self.name, self.options = raw, name, options
        self.errors, self.warnings = raw.errors, Faults()
        self.did: list[str] = []
        self.dropped = self.zero_kept = 0
        self.invalid: list[int] = []
        self.keep: list[int] = list(range(len(raw.lines)))
        self.offsets: array[int] | None = None
        self.cut: dict[int, int] = {}
        of_format = BAILIAN_BLOCK_TOKENS if raw.columns.format == "bailian" else BLOCK_TOKENS
        self.block_tokens = options.block_tokens or of_format

    def trace(self) -> Trace:
        self._stamps_all_or_none()
        self._empty_lengths()
        self._blocks()
        if not self.keep and not self.errors.count:
            self.errors.add(1, "no_rows", f"none of {self.raw.rows_read} rows can be sent")
        if self.options.lenient and self.errors.count:
            self.did.append(f"lenient: {self.errors.count} faulty rows left out")
        self._order()
        whole = self.offsets is not None and _same_whole_second(self.offsets)
        self._pick()
        self._spread(whole)
        self._idle()
        self._scale()
        self._notice(whole)
        return self._built(whole)

    def _stamps_all_or_none(self) -> None:
        """A missing stamp is an error, unless no row has one: then the file has lengths and no schedule."""
        for column, name in ((self.raw.stamps, self.raw.stamp_name), (self.raw.arrivals, self.raw.arrival_name)):
            if column is None or MISSING not in column:
                continue
            missing = [row for row in self.keep if column[row] == MISSING]
            if len(missing) == len(column):
                self.raw.stamps = None
                return
            gone = set(missing)
            for row in missing:
                self.errors.add(self.raw.lines[row], "stamp", f"`{name}` is missing")
            self.keep = [row for row in self.keep if row not in gone]

    def _empty_lengths(self) -> None:
        inputs, outputs = self.raw.inputs, self.raw.outputs
        if inputs is not None and 0 in inputs:
            empty = {row for row in self.keep if inputs[row] == 0}
            for row in sorted(empty):
                self.errors.add(self.raw.lines[row], "input", "has 0 input tokens: there is nothing to send")
            self.keep = [row for row in self.keep if row not in empty]
        if outputs is None or 0 not in outputs:
            return
        zero = {row for row in self.keep if outputs[row] == 0}
        if not zero:
            return
        total, line = len(self.keep), self.raw.lines[min(zero)]
        if self.options.keep_zero_output:
            self.zero_kept = len(zero)
            for row in zero:
                outputs[row] = 1
            text = f"{len(zero)} of {total} rows have no output: replayed with 1 output token"
        else:
            self.dropped = len(zero)
            self.keep = [row for row in self.keep if row not in zero]
            text = f"{len(zero)} of {total} rows have no output (failures): left out"
        self.warnings.add(line, "zero_output", text)
        self.did.append(text)

    def _blocks(self) -> None:
        """Hash ids have to fit the input length: ceil(input / block) of them. Lenient: the length wins."""
        if self.raw.hash_ids is None or self.raw.inputs is None:
            return
        size, start = self.block_tokens, 0
        kept = set(self.keep)
        for row, end in enumerate(self.raw.hash_ends):
            have, need = end - start, -(-self.raw.inputs[row] // size)
            start = end
            if have == need or not have or row not in kept:
                continue
            line = self.raw.lines[row]
            self.invalid.append(row)
            self.cut[row] = min(have, need)
            text = f"{self.raw.inputs[row]} input tokens need {need} blocks of {size}, but hash_ids has {have}"
            place = self.warnings if self.options.lenient else self.errors
            place.add(
                line, "hash_ids", text + (": the length wins" if self.options.lenient else ": is --block-size right?")
            )

    def _order(self) -> None:
        if self.raw.seconds_after_all():
            text = "stamps have fractions and are too close for ms: read as seconds (--columns unit=ms if they are ms)"
            self.warnings.add(self.raw.lines[0], "unit_guessed", text)
        stamps = self.raw.stamps
        if stamps is None or not self.keep:
            return
        late = next((b for a, b in pairwise(self.keep) if stamps[b] < stamps[a]), None)
        if late is not None:
            self.keep.sort(key=stamps.__getitem__)
            self.warnings.add(
                self.raw.lines[late],
                "unsorted",
                "is earlier than the row before it: sorted, equal stamps in file order",
            )
        first = stamps[self.keep[0]]
        self.offsets = array("q", (stamps[row] - first for row in self.keep))

    def _pick(self) -> None:
        total = len(self.keep)
        places = range(total)
        if self.options.slice is not None:
            places = _sliced(self.options.slice, self.offsets, total)
            self.did.append(f"slice {self.options.slice}: {len(places)} of {total} rows, its first one now at 0")
        picked: Iterable[int] = places
        if self.options.sample is not None:
            picked = _sampled(self.options.sample, self.options.seed, places)
            self.did.append(
                f"sample {self.options.sample}: {len(picked)} of {len(places)} rows, in order, their stamps kept"
            )
        if picked is places and len(places) == total:
            return
        chosen = list(picked)
        if not chosen and total:
            raise UserError(f"{self.name}: slice and sample leave none of {total} rows")
        self.keep = [self.keep[place] for place in chosen]
        if self.offsets is not None:
            first = self.offsets[chosen[0]] if chosen else 0
            self.offsets = array("q", (self.offsets[place] - first for place in chosen))

    def _spread(self, whole: bool) -> None:
        if not self.options.spread_same_second or self.offsets is None:
            return
        if whole:
            self.offsets = spread_ns(self.offsets)
        self.did.append(
            "rows of one second: spread evenly over it"
            if whole
            else "spread: stamps are finer than a second, unchanged"
        )

    def _idle(self) -> None:
        limit = self.options.max_idle_s
        if limit is None or self.offsets is None:
            return
        longest = round(limit * SECOND)
        cut, number, squeezed = 0, 0, array("q", self.offsets[:1])
        for before, after in pairwise(self.offsets):
            if after - before > longest:
                cut += after - before - longest
                number += 1
            squeezed.append(after - cut)
        self.offsets = squeezed
        self.did.append(f"longest idle {limit:g} s: {number} gaps squeezed, {cut / SECOND:g} s taken out")

    def _scale(self) -> None:
        factor = self.options.rate_scale
        if factor == 1.0 or self.offsets is None:
            return
        if max(self.offsets, default=0) / factor >= 2**63:
            raise UserError(f"rate scale {factor:g}: the trace would last more than 290 years: give a larger one")
        self.offsets = array("q", (round(offset / factor) for offset in self.offsets))
        self.did.append(f"rate scale {factor:g}: every gap is divided by it")

    def _notice(self, whole: bool) -> None:
        lines = self.raw.lines
        if self.raw.stamps is None:
            self.warnings.add(
                1,
                "no_timestamps",
                "no time stamps: lengths only, in file order; give --rate or --concurrency to replay",
            )
        readers = (self.raw.stamp_reader, self.raw.arrival_reader)
        if any(reader.guessed for reader in readers):
            self.warnings.add(
                1, "epoch_unit_guessed", "stamps say no unit: their size is that of dates in ms, us or ns"
            )
        if self.raw.columns.text is not None:
            self.warnings.add(1, "no_lengths", f"`{self.raw.columns.text}` is text without a length: it is not sent")
        if self.raw.float_counts:
            self.warnings.add(1, "float_counts", f"{self.raw.float_counts} token counts are written as floats")
        if self.offsets is None:
            return
        if whole and not self.options.spread_same_second:
            text = (
                "stamps are whole seconds and some are equal: sent at one instant (--spread-same-second spreads them)"
            )
            self.warnings.add(lines[self.keep[0]] if self.keep else 1, "same_second", text)
        gap, at = max(((b - a, i) for i, (a, b) in enumerate(pairwise(self.offsets), 1)), default=(0, 0))
        if gap >= QUIET_GAP_S * SECOND:
            self.warnings.add(
                lines[self.keep[at]], "quiet_gap", f"comes after {gap / SECOND:g} s of silence (--max-idle shortens it)"
            )

    def _built(self, whole: bool) -> Trace:
        raw = self.raw
        return Trace(
            name=self.name,
            columns=raw.columns,
            rows_read=raw.rows_read,
            lines=array("q", (raw.lines[row] for row in self.keep)),
            offsets_ns=self.offsets,
            input_tokens=self._column(raw.inputs),
            output_tokens=self._column(raw.outputs),
            sessions=None if raw.sessions is None else [raw.sessions[row] for row in self.keep],
            hash_ids=raw.hash_ids,
            hash_spans=None if raw.hash_ids is None else [self._span(row) for row in self.keep],
            client_queue_ns=self._queue(),
            block_tokens=self.block_tokens,
            warnings=self.warnings.listed,
            errors=sorted(self.errors.listed, key=lambda fault: fault.line),
            error_count=self.errors.count,
            dropped_zero_output=self.dropped,
            kept_zero_output=self.zero_kept,
            invalid_lines=[raw.lines[row] for row in self.invalid],
            whole_seconds=whole,
            lenient=self.options.lenient,
            did=self.did,
        )

    def _column(self, values: array[int] | None) -> array[int] | None:
        return None if values is None else array("q", (values[row] for row in self.keep))

    def _span(self, row: int) -> tuple[int, int]:
        start = self.raw.hash_ends[row - 1] if row else 0
        end = self.raw.hash_ends[row]
        return start, min(end, start + self.cut.get(row, end - start)) if self.options.lenient else end

    def _queue(self) -> array[int] | None:
        """send − arrival, where a file has both. Different origins (over 1e9 s apart) are rebased to the first arrival's row."""
        stamps, arrivals = self.raw.stamps, self.raw.arrivals
        if arrivals is None or stamps is None or not self.keep:
            return None
        names = f"`{self.raw.arrival_name}` and `{self.raw.stamp_name}`"
        first = min(self.keep, key=arrivals.__getitem__)
        apart = stamps[first] - arrivals[first]
        shift = apart if abs(apart) > 10**9 * SECOND else 0
        if shift:
            said = f"{names} count from different origins: both rebased to this row"
            self.warnings.add(self.raw.lines[first], "origins_differ", said)
        queue = array("q", (stamps[row] - arrivals[row] - shift for row in self.keep))
        if (least := min(queue)) < 0:
            line = self.raw.lines[self.keep[queue.index(least)]]
            self.warnings.add(line, "sent_before_arrival", f"sent before it arrived: are {names} of one clock?")
        return queue


def _same_whole_second(offsets: array[int]) -> bool:
    """All stamps are whole seconds (from the first), and at least two are equal."""
    return not any(offset % SECOND for offset in offsets) and any(a == b for a, b in pairwise(offsets))


def spread_ns(offsets: array[int]) -> array[int]:
    """Rows of one second, evenly over it, in order: four at 0 become 0, 0.25, 0.5, 0.75 s."""
    spread = array("q")
    start = 0
    while start < len(offsets):
        end = start
        while end < len(offsets) and offsets[end] == offsets[start]:
            end += 1
        spread.extend(offsets[start] + SECOND * place // (end - start) for place in range(end - start))
        start = end
    return spread


def _sliced(text: str, offsets: array[int] | None, total: int) -> range:
    """The places of a slice A:B: times from the start (with units) or rows; A included, B not. Raises UserError."""
    first, mark, last = (part.strip() for part in text.partition(":"))
    ends = [part for part in (first, last) if part]
    if not mark or not ends:
        raise UserError(f"slice {text!r}: write A:B, like 60s:5min (time) or 100:200 (rows)")
    if all(part.isdecimal() for part in ends):
        return range(*slice(int(first or 0), int(last or total)).indices(total))
    if offsets is None:
        raise UserError(f"slice {text!r}: this trace has no time stamps: slice it by rows, like 100:200")
    start = round(duration_s(first) * SECOND) if first else 0
    stop = round(duration_s(last) * SECOND) if last else None
    low = sum(offset < start for offset in offsets)
    return range(low, max(low, total if stop is None else sum(offset < stop for offset in offsets)))


def _sampled(text: str, seed: int, places: range) -> list[int]:
    """N places, or each with the probability of a share; the choice depends on the seed and the place alone. Raises UserError."""
    if text.isdecimal() and int(text) >= 1:
        wanted = sorted(places, key=lambda place: stable_hash(seed, "sample", place))[: int(text)]
        return sorted(wanted)
    part = share(text)
    return [place for place in places if Stream(seed, "sample", place).random() < part]
