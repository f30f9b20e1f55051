"""Pages of an engine read in our words: one page is its lifetime, several in order are a window.

Lives here: choosing series, differences per full label set, adding them up. Must not live here: text (exposition.py),
names (engines.py), bucket arithmetic (histograms.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from phasemeter.server.engines import ENGINES, IDENTITY_LABELS, MODEL_LABELS, RAY_WRAPS, SHARD_LABELS, UNPREFIXED, Row
from phasemeter.server.ensembles import steps
from phasemeter.server.exposition import Labels, Page, Sample
from phasemeter.server.growth import RESTART_TOLERANCE_S, Series, growth
from phasemeter.server.histograms import Histogram, Rejected, mean, sum_range, together
from phasemeter.server.shards import repeated

Status = Literal["present", "absent", "empty", "rejected", "implausible", "server_reported_only"]
MEANT_ZERO_S = 1e-5  # no forward pass is over in ten microseconds: rounding left this of a zero


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of one engine over a window or a lifetime; in `row.unit`. `parts`: the same per label set."""

    row: Row
    status: Status
    metric: str | None = None  # as spelt on the page
    reason: str | None = None
    n: float | None = None
    total: float | None = None
    hist: Histogram | None = None
    value: float | None = None  # a counter's growth (window) or value (lifetime); a gauge's newest value or mean
    parts: dict[str, float] = msgspec.field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def mean(self) -> float | None:
        if self.status == "implausible" or self.total is None or not self.n:
            return None
        return self.total / self.n


class EngineReading(msgspec.Struct, frozen=True, kw_only=True):
    engine: str
    window: bool
    readings: dict[str, Reading]
    models: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


_SUFFIXES = ("_bucket", "_count", "_sum", "_created", "_total")


def known_name(name: str) -> str:
    """A metric's name as the tables spell it: `_` for `:`, without the prefix that Ray puts before an engine's own names."""
    spelt = name.replace(":", "_")
    bare = spelt.removeprefix("ray_")
    return bare if bare.startswith(RAY_WRAPS) else spelt


class Index:
    """A page's samples by normalised name (`:` is `_`), each spelling apart."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.by_name: dict[str, list[Sample]] = {}
        self.spellings: dict[str, list[str]] = {}
        for sample in page.samples:
            if sample.name not in self.by_name:
                self.by_name[sample.name] = []
                self.spellings.setdefault(known_name(sample.name), []).append(sample.name)
            self.by_name[sample.name].append(sample)

    def engines(self) -> list[str]:
        """The engines that have at least one known series here."""
        return [
            engine
            for engine, rows in ENGINES.items()
            if any(self.spelt(row) for row in rows if engine not in UNPREFIXED or row.kind == "histogram")
        ]

    def spelt(self, row: Row) -> str | None:
        """The one family that counts: the first alias that is here, with `:` before `_`; other spellings are its copies."""
        for alias in row.aliases:
            bare = alias.removesuffix("_total")
            endings = ("_bucket", "_count", "_sum") if row.kind == "histogram" else ("", "_total")
            for ending in endings:
                found = self.spellings.get((alias if row.kind == "histogram" else bare) + ending)
                if found:
                    return (
                        sorted(found, key=lambda name: ":" not in name)[0].removesuffix(ending) if ending else found[0]
                    )
        return None

    def family(self, spelt: str, row: Row, model: str | None) -> dict[Labels, Series]:
        """The series of one family by label set (`le` and `quantile` left out)."""
        grouped: dict[Labels, dict[str, object]] = {}
        names = {spelt: "value", spelt + "_total": "value", spelt + "_created": "created_s"}
        if row.kind == "histogram":
            names = {spelt + "_bucket": "buckets", spelt + "_count": "count", spelt + "_sum": "total"} | names
        for name, field in names.items():
            for sample in self.by_name.get(name, ()):
                labels = tuple(pair for pair in sample.labels if pair[0] not in {"le", "quantile"})
                if model is not None and _model(labels) not in {None, model}:
                    continue
                if row.kind == "histogram" and field == "value":
                    continue  # a summary's own quantiles: another definition, not ours to mix
                into = grouped.setdefault(labels, {"buckets": {}})
                if field == "buckets":
                    _add_bucket(into["buckets"], sample)
                else:
                    into[field] = sample.value
        wanted = "value" if row.kind != "histogram" else None
        found = {
            labels: Series(**fields)  # type: ignore[arg-type]
            for labels, fields in grouped.items()
            if (wanted in fields if wanted else fields.get("buckets") or "count" in fields or "total" in fields)
        }
        copies = repeated(found)
        return {labels: series for labels, series in found.items() if labels not in copies}


def _add_bucket(buckets: object, sample: Sample) -> None:
    edge = dict(sample.labels).get("le")
    if isinstance(buckets, dict) and edge is not None:
        try:
            buckets[float(edge)] = sample.value
        except ValueError:
            return


def _model(labels: Labels) -> str | None:
    found = dict(labels)
    return next((found[name] for name in MODEL_LABELS if name in found), None)


def _label_text(labels: Labels) -> str:
    return ",".join(f"{name}={value}" for name, value in labels) or "all"


class Reader:
    """Reads one engine from pages in order: the last minus the first, every step between them checked."""

    def __init__(self, engine: str, pages: Sequence[Index], model: str | None) -> None:
        self.engine, self.pages, self.model = engine, pages, model
        self.restart = _restart(pages)
        self.identities = {
            pair for sample in pages[0].page.samples for pair in sample.labels if pair[0] in IDENTITY_LABELS
        }
        self.up_before = any(pages[0].spelt(row) for row in ENGINES[engine])
        # the process was there and had counted nothing yet: its first series began at 0
        self.young = not self.up_before and pages[0].page.start_s is not None and not self.restart
        self.steps = self._steps() if model is None else set()

    def _steps(self) -> set[str]:
        """The models whose requests another model of the last page counts too."""
        served: dict[str, float] = {}
        for row in ENGINES[self.engine]:
            if row.kind == "counter" and (spelt := self.pages[-1].spelt(row)) and self.engine == "triton":
                for labels, series in self.pages[-1].family(spelt, row, None).items():
                    served[_model(labels) or ""] = served.get(_model(labels) or "", 0.0) + (series.value or 0.0)
        return steps(served)

    def read(self) -> EngineReading:
        readings: dict[str, Reading] = {}
        for row in ENGINES[self.engine]:
            readings |= self._quantity(row)
        models = sorted({m for p in self.pages for m in _models(p, self.engine)})
        warnings = [f"{p.page.name}: {text}" for p in self.pages for text in p.page.warnings]
        if self.steps:
            gone = ", ".join(sorted(self.steps))
            models = [model for model in models if model not in self.steps]
            warnings.append(f"steps_left_out: {gone} serve {', '.join(models)}, which counts the same requests")
        if len(models) > 1 and self.model is None:
            warnings.append(f"several_models: {', '.join(models)} are added up: choose one with --model")
        if self.restart:
            warnings.append(f"restart: {self.restart}")
        if self._sharded():
            warnings.append(f"shards: series that differ in {', '.join(sorted(SHARD_LABELS))} alone count once")
        return EngineReading(
            engine=self.engine,
            window=len(self.pages) > 1,
            readings=readings,
            models=tuple(models),
            warnings=tuple(warnings),
        )

    def _sharded(self) -> bool:
        """Whether any family of the last page has a series for each shard."""
        page = self.pages[-1]
        names = {spelt + end for row in ENGINES[self.engine] if (spelt := page.spelt(row)) for end in ("", *_SUFFIXES)}
        return any(repeated([sample.labels for sample in page.by_name.get(name, ())]) for name in names)

    def _quantity(self, row: Row) -> dict[str, Reading]:
        spelt = [page.spelt(row) for page in self.pages]
        if spelt[-1] is None:
            reason = "gone: it was on an earlier page" if any(spelt) else "not on the page"
            return {row.key: Reading(row=row, status="absent", reason=reason)}
        families = [
            page.family(name, row, self.model) if name else {} for page, name in zip(self.pages, spelt, strict=True)
        ]
        if self.steps:
            families = [{k: s for k, s in family.items() if _model(k) not in self.steps} for family in families]
        if row.kind in {"summed_gauge", "share_gauge", "refused_gauge"}:
            return {row.key: _gauge(row, spelt[-1], families[-1])}
        if row.split is None:
            return {row.key: self._windowed(row, spelt[-1], families)}
        values = sorted({dict(labels).get(row.split, "") for family in families for labels in family})
        found = {}
        for value in values:
            chosen = [{k: s for k, s in f.items() if dict(k).get(row.split, "") == value} for f in families]
            found[_split_key(row, value)] = self._windowed(row, spelt[-1], chosen)
        return found

    def _windowed(self, row: Row, metric: str, families: Sequence[Mapping[Labels, Series]]) -> Reading:
        try:
            return self._added_up(row, metric, families)
        except Rejected as rejected:
            return Reading(row=row, status="rejected", metric=metric, reason=rejected.reason)

    def _added_up(self, row: Row, metric: str, families: Sequence[Mapping[Labels, Series]]) -> Reading:
        if len(families) > 1 and self.restart:
            raise Rejected(f"restart: {self.restart}")
        parts: dict[Labels, Histogram | Series] = {}
        warnings: list[str] = []
        for labels in dict.fromkeys(labels for family in families for labels in family):
            line = [family.get(labels) for family in families]
            warnings += self._appearance(labels, line)
            parts[labels] = growth(row, line)
        if not parts:
            raise Rejected("no series of the chosen model")
        if row.kind == "counter":
            return _counted(row, metric, parts, warnings)
        if row.kind == "sum_and_count":
            return self._summed(row, metric, parts, warnings)
        return _distribution(row, metric, parts, warnings)

    def _appearance(self, labels: Labels, line: Sequence[Series | None]) -> list[str]:
        if line[-1] is None or any(a is not None and b is None for a, b in pairwise(line)):
            raise Rejected(f"labels changed: {_label_text(labels)} is gone from a later page")
        if line[0] is not None:
            return []
        strange = [f"{k}={v}" for k, v in labels if k in IDENTITY_LABELS and (k, v) not in self.identities]
        if not self.young and (strange or not self.up_before):
            raise Rejected(
                f"labels changed: {', '.join(strange) or 'the engine'} is new, so its start can't be told from 0"
            )
        return [f"new_series: {_label_text(labels)} was absent before and counts from 0"]

    def _summed(self, row: Row, metric: str, parts: Mapping[Labels, object], warnings: list[str]) -> Reading:
        values = {
            _label_text(k): s.value * row.factor
            for k, s in parts.items()
            if isinstance(s, Series) and s.value is not None
        }
        n = None
        if row.count:
            counter = Row(key="n", aliases=(row.count,), kind="counter", definition="")
            n = self._quantity(counter)["n"].value
        reason = None if n is not None else "no_count: a sum without a count of requests has no mean"
        status: Status = "present" if n is None or n > 0 else "empty"
        total = math.fsum(values.values())
        return Reading(
            row=row,
            status=status,
            metric=metric,
            reason=reason,
            n=n,
            total=total,
            parts=values,
            warnings=tuple(warnings),
        )


def _split_key(row: Row, value: str) -> str:
    if row.split == "is_streaming":
        return row.key + ("_non_streaming" if value.lower() == "false" else "")
    return f"{row.key}.{value}" if value else row.key


def _models(index: Index, engine: str) -> set[str]:
    names = {index.spelt(row) for row in ENGINES[engine]}
    found = {_model(s.labels) for n in names if n for end in ("", *_SUFFIXES) for s in index.by_name.get(n + end, ())}
    return {model for model in found if model is not None}


def _restart(pages: Sequence[Index]) -> str | None:
    starts = [index.page.start_s for index in pages]
    for a, b in pairwise(starts):
        if a is not None and b is not None and abs(b - a) > RESTART_TOLERANCE_S:
            return f"the process started anew between the pages ({a:.1f}, then {b:.1f})"
    return None


def _same_process(one: Index, other: Index) -> bool:
    starts = one.page.start_s, other.page.start_s
    return starts[0] is not None and starts[1] is not None and abs(starts[1] - starts[0]) <= RESTART_TOLERANCE_S


def _counted(row: Row, metric: str, parts: Mapping[Labels, object], warnings: list[str]) -> Reading:
    values = {_label_text(k): s.value for k, s in parts.items() if isinstance(s, Series) and s.value is not None}
    total = math.fsum(values.values())
    return Reading(row=row, status="present", metric=metric, value=total, parts=values, warnings=tuple(warnings))


def _distribution(row: Row, metric: str, parts: Mapping[Labels, Histogram | Series], warnings: list[str]) -> Reading:
    """Label sets added up. A part without buckets (a summary) leaves n and sum, and no bounds."""
    hists = {labels: part for labels, part in parts.items() if isinstance(part, Histogram)}
    counts = {_label_text(k): p.n if isinstance(p, Histogram) else p.count or 0.0 for k, p in parts.items()}
    n = math.fsum(counts.values())
    totals = [part.total for part in parts.values()]
    total = None if any(t is None for t in totals) else math.fsum(t for t in totals if t is not None)
    if len(hists) < len(parts):
        scale = None if total is None else total * row.factor
        reason = "no_buckets: count and sum only, so nothing is known of quantiles"
        return Reading(
            row=row, status="present" if n else "empty", metric=metric, reason=reason, n=n, total=scale, parts=counts,
            warnings=tuple(warnings),
        )  # fmt: skip
    whole = together(list(hists.values()))
    warnings += list(whole.warnings)
    if not n:
        return Reading(row=row, status="empty", metric=metric, reason="no_observations", n=0, total=whole.total, parts=counts,
                       warnings=tuple(warnings))  # fmt: skip
    fault = implausible(row, whole)
    if fault is None and whole.total is not None:
        low, high = sum_range(whole, 0.0)
        if not low * (1 - 1e-6) - 1e-9 <= whole.total <= high * (1 + 1e-6) + 1e-9:
            warnings.append(f"sum_outside_buckets: the sum {whole.total:g} can't come from these buckets")
    return Reading(
        row=row, status="implausible" if fault else "present", metric=metric, reason=fault, n=n, total=whole.total,
        hist=whole, parts=counts, warnings=tuple(dict.fromkeys(warnings)),
    )  # fmt: skip


def implausible(row: Row, whole: Histogram) -> str | None:
    """Why a distribution can't be what its name says, or None: all zeros where nothing takes no time; a negative sum."""
    if whole.total is not None and whole.total < 0:
        return f"negative_sum: {whole.total:g}: a wall clock stepped"
    average = mean(whole)
    if not row.zeros and row.unit == "s" and average is not None and average <= MEANT_ZERO_S:
        return f"all_zero: {whole.n:g} observations with the sum {whole.total:g}: this build doesn't fill the metric"
    return None


def _gauge(row: Row, metric: str, family: Mapping[Labels, Series]) -> Reading:
    values = {_label_text(k): series.value for k, series in family.items() if series.value is not None}
    bad = [f"{k}: {v:g}" for k, v in values.items() if not math.isfinite(v) or v < 0]
    good = {k: v for k, v in values.items() if math.isfinite(v) and v >= 0}
    warnings = (f"implausible_gauge: {', '.join(bad)} is left out: no count or share",) if bad else ()
    if not good:
        return Reading(
            row=row, status="implausible" if bad else "absent", metric=metric, reason="no_value", warnings=warnings
        )
    value = math.fsum(good.values())
    if row.kind == "share_gauge":
        value /= len(good)
        if max(good.values()) > 1:
            warnings = (*warnings, "over_one: a share above 1 (percent, or an overcommitted pool)")
    status: Status = "server_reported_only" if row.kind == "refused_gauge" else "present"
    return Reading(
        row=row, status=status, metric=metric, reason=row.definition if row.kind == "refused_gauge" else None,
        value=value, parts=good, warnings=warnings,
    )  # fmt: skip


def read_pages(pages: Iterable[Page], model: str | None = None) -> dict[str, EngineReading]:
    """Every known engine on the pages. One page with it: its lifetime. Several: the window from the first to the last.

    An engine that is on only one of several pages has no window: its lifetime is given, and a warning says so.
    """
    indexes = [Index(page) for page in pages]
    found: dict[str, list[Index]] = {}
    for at, index in enumerate(indexes):
        for engine in index.engines():
            before = indexes[at - 1] if at else None
            if engine not in found and before is not None and _same_process(before, index):
                found[engine] = [before]
            found.setdefault(engine, []).append(index)
    readings = {engine: Reader(engine, chosen, model).read() for engine, chosen in found.items()}
    for engine, chosen in found.items():
        if len(chosen) == 1 < len(indexes):
            warning = f"lifetime_only: {engine} is on {chosen[0].page.name} only, so there is no window"
            reading = readings[engine]
            readings[engine] = msgspec.structs.replace(reading, warnings=(*reading.warnings, warning))
    return readings
