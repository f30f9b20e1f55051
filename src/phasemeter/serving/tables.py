"""Step times from measured kernels: tables of a layer's times, interpolated between their knots.

Lives here: the tables and the reading of their CSV text. Must not live here: files (the caller hands over text).
Form: LLMServingSim's layer profiles (casys-kaist/LLMServingSim, MIT): `dense.csv` (layer, tokens), `per_sequence.csv` (layer,
sequences), `attention.csv` (prefill_chunk, kv_prefill, n_decode, kv_decode), microseconds of one layer.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from phasemeter.errors import FileError
from phasemeter.serving.analytic import Parts
from phasemeter.serving.step_time import Chunks, CostLine

# once a step; everything else in dense.csv is once a layer (the two norms of a layer share one row)
ONCE = {"embedding", "final_layernorm"}
TWICE = {"layernorm"}


class Curve(msgspec.Struct, frozen=True):
    """A function through knots: linear between them, the outer segments carried on."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def segment(self, x: float) -> int:
        """The index of the segment's left knot."""
        return min(max(bisect_right(self.xs, x) - 1, 0), max(len(self.xs) - 2, 0))

    def line(self, x: float) -> tuple[float, float]:
        """(value at 0, slope) of the line that holds at x."""
        if len(self.xs) == 1:
            return self.ys[0], 0.0
        i = self.segment(x)
        slope = (self.ys[i + 1] - self.ys[i]) / (self.xs[i + 1] - self.xs[i])
        return self.ys[i] - slope * self.xs[i], slope

    def __call__(self, x: float) -> float:
        start, slope = self.line(x)
        return start + slope * x


class LayerTables(msgspec.Struct, frozen=True):
    """One model on one accelerator, in seconds of a whole step's layers."""

    dense: Curve  # by tokens
    head: Curve  # by sequences
    decode_attention: dict[int, Curve]  # by sequences: by context tokens a sequence
    prefill_attention: dict[int, Curve]  # by chunk: by cached tokens


def _rows(text: str, name: str, columns: Sequence[str]) -> list[list[str]]:
    reader = csv.DictReader(text.splitlines())
    missing = [one for one in columns if one not in (reader.fieldnames or ())]
    if missing:
        raise FileError(f"{name}: no column `{missing[0]}`: it needs {', '.join(columns)}")
    return [[row[one] for one in columns] for row in reader]


def _number(value: str, name: str, line: int) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise FileError(f"{name} line {line}: `{value}` is no number") from error


def _curve(points: dict[float, float]) -> Curve:
    xs = tuple(sorted(points))
    return Curve(xs, tuple(points[x] for x in xs))


def _by_layer(text: str, name: str, size: str, layers: int) -> Curve:
    """All layers' times added up at each size."""
    sums: dict[float, float] = defaultdict(float)
    for line, (layer, x, time) in enumerate(_rows(text, name, ("layer", size, "time_us")), 2):
        times = 1 if layer in ONCE or size == "sequences" else layers * (2 if layer in TWICE else 1)
        sums[_number(x, name, line)] += times * _number(time, name, line) * 1e-6
    return _curve(sums)


def read_tables(dense: str, per_sequence: str, attention: str, layers: int) -> LayerTables:
    """The tables of a model with `layers` layers from the three files' text.

    Raises FileError naming the file, and the line or column, that isn't what it should be.
    """
    decode: dict[int, dict[float, float]] = defaultdict(dict)
    prefill: dict[int, dict[float, float]] = defaultdict(dict)
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    for line, row in enumerate(_rows(attention, "attention.csv", columns), 2):
        chunk, cached, decodes, context, time = (_number(value, "attention.csv", line) for value in row)
        if chunk == 0 and decodes:
            decode[int(decodes)][context] = layers * time * 1e-6
        elif chunk and decodes == 0:
            prefill[int(chunk)][cached] = layers * time * 1e-6
    if not decode or not prefill:
        raise FileError("attention.csv: it needs rows of decodes alone and of prefill alone")
    return LayerTables(
        _by_layer(dense, "dense.csv", "tokens", layers),
        _by_layer(per_sequence, "per_sequence.csv", "sequences", layers),
        {n: _curve(points) for n, points in sorted(decode.items())},
        {n: _curve(points) for n, points in sorted(prefill.items())},
    )


def _between(keys: Sequence[int], x: float) -> tuple[int, int, float]:
    """The keys around x and x's place between them (0 … 1, beyond for the outer ones); a single key stands alone."""
    i = min(max(bisect_right(keys, x) - 1, 0), max(len(keys) - 2, 0))
    low, high = keys[i], keys[min(i + 1, len(keys) - 1)]
    return low, high, (x - low) / (high - low) if high > low else 0.0


class TableCost:
    """A CostModel on measured tables. Chunks and decodes of one step pay their attention one after the other.

    `step_overhead_s` and `sequence_overhead_s` are the host's: kernels' tables don't hold it.
    """

    def __init__(self, tables: LayerTables, step_overhead_s: float = 0.0, sequence_overhead_s: float = 0.0) -> None:
        self.tables = tables
        self.step_overhead_s = step_overhead_s
        self.sequence_overhead_s = sequence_overhead_s
        self._decode_keys = list(tables.decode_attention)
        self._prefill_keys = list(tables.prefill_attention)

    def _attention_line(self, decodes: int, context_tokens: float) -> tuple[float, float, float, float]:
        """(time at 0, slope a context token, first, last context tokens it holds for), all decodes together."""
        each = context_tokens / decodes
        low, high, place = _between(self._decode_keys, decodes)
        left, right = self.tables.decode_attention[low], self.tables.decode_attention[high]
        (a, b), (c, d) = left.line(each), right.line(each)
        base, slope = a + place * (c - a), (b + place * (d - b)) / decodes
        knots = sorted({*left.xs[1:-1], *right.xs[1:-1]})
        i = bisect_right(knots, each)
        start = knots[i - 1] * decodes if i else 0.0
        return base, slope, start, knots[i] * decodes if i < len(knots) else float("inf")

    def _chunk_attention_s(self, cached: int, new: int) -> float:
        low, high, place = _between(self._prefill_keys, new)
        left, right = self.tables.prefill_attention[low](cached), self.tables.prefill_attention[high](cached)
        return max(0.0, left + place * (right - left))

    def cost_line(self, decodes: int, context_tokens: int) -> CostLine:
        base, slope, start, end = self._attention_line(decodes, context_tokens)
        fixed = self.tables.dense(decodes) + self.tables.head(decodes)
        fixed += self.step_overhead_s + self.sequence_overhead_s * decodes
        return CostLine(base + fixed, slope, start, end)

    def step_s(self, decodes: int, context_tokens: int, chunks: Chunks) -> float:
        return self.parts(decodes, context_tokens, chunks).total_s

    def parts(self, decodes: int, context_tokens: int, chunks: Chunks) -> Parts:
        """The one-token time of the matrices is the reading of weights (memory bandwidth); what is above it is compute."""
        new_tokens = sum(new for new, _ in chunks)
        linear = self.tables.dense(decodes + new_tokens) + self.tables.head(decodes + len(chunks))
        reading = min(linear, self.tables.dense(1) + self.tables.head(1))
        compute = linear - reading + sum(self._chunk_attention_s(cached, new) for new, cached in chunks)
        kv = 0.0
        if decodes:
            base, slope, _, _ = self._attention_line(decodes, context_tokens)
            kv = base + slope * context_tokens
        host = self.step_overhead_s + self.sequence_overhead_s * (decodes + len(chunks))
        return Parts(compute, reading, kv, 0.0, host)
