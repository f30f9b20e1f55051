"""When requests are due: every pattern as absolute offsets in integer ns from the run's start.

Lives here: what an arrival pattern is, how it is written, and its offsets. Must not live here: sending, waiting, a clock.

Gap i of a random pattern depends on (seed, i) only (streams.py), and offsets are running sums of gaps rounded to whole
ns. A mean is never
rescaled to fit: what was drawn is what is offered. The first request is due at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.units import count, duration_s, rate_per_s
from phasemeter.workload.streams import Stream
from phasemeter.workload.think_time import ThinkTime, sample_ns, think_time_of_contract

KINDS = ("poisson", "constant", "gamma", "burst", "ramp", "steps", "inf", "closed", "trace")


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pattern. Which fields count depends on `kind`; `rate_per_s` is the long-run mean of the open-loop ones.

    `cv` is the coefficient of variation of the gaps (gamma): 1 is Poisson, more is burstier. `steps` are (rate per s, seconds)
    pairs played in turn, the last one held on. `ramp_s` None: over the run's duration.
    """

    kind: str
    rate_per_s: float | None = None
    cv: float | None = None
    burst: int | None = None
    ramp_from_per_s: float | None = None
    ramp_to_per_s: float | None = None
    ramp_s: float | None = None
    steps: tuple[tuple[float, float], ...] = ()
    smooth: bool = False  # ramp and steps: evenly spaced at the changing rate, not Poisson
    think: ThinkTime = (
        ThinkTime()
    )  # closed loop: pause of a slot before it sends again; else: before a conversation's next turn
    rate_scale: float = 1.0  # trace: gaps are divided by it
    max_idle_s: float | None = None  # trace: a longer gap becomes this long
    notes: tuple[str, ...] = ()

    @property
    def open_loop(self) -> bool:
        return self.kind != "closed"

    def words(self) -> str:
        """The pattern in a few words, for the manifest and the person."""
        rate = f"{self.rate_per_s:g}/s" if self.rate_per_s else ""
        think = f", think time {self.think.words()}" if self.think.words() else ""
        pattern = {
            "poisson": f"poisson {rate}",
            "constant": f"constant {rate}",
            "gamma": f"gamma {rate}, CV {self.cv}",
            "burst": f"bursts of {self.burst}, mean {rate}",
            "ramp": f"ramp from {self.ramp_from_per_s or 0:g}/s to {self.ramp_to_per_s or 0:g}/s",
            "steps": "steps " + ", ".join(f"{r:g}/s for {s:g} s" for r, s in self.steps),
            "inf": "all at once (rate inf)",
            "closed": "closed loop",
            "trace": "trace" + (f", {self.rate_scale:g} times as fast" if self.rate_scale != 1.0 else ""),
        }[self.kind]
        return pattern + think


def cv_of_burstiness(burstiness: float) -> float:
    """The CV that vLLM's `--burstiness` means: it is the *shape* of a gamma distribution, so lower is burstier: CV = 1/sqrt(shape).

    Raises UserError for 0 or less. Source: vllm `bench serve`, vllm-project/vllm#10105.
    """
    if not (burstiness > 0 and math.isfinite(burstiness)):
        raise UserError(
            f"burstiness {burstiness:g}: it is a gamma shape, greater than 0 (1 is Poisson, less is burstier)"
        )
    return 1.0 / math.sqrt(burstiness)


def _positive(value: object, what: str) -> float:
    try:
        number = float(str(value).strip())
    except ValueError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise UserError(f"{what}: {value!r} has to be a number greater than 0")
    return number


def _finite_rate(text: str | float) -> float:
    rate = rate_per_s(text)
    if math.isinf(rate):
        raise UserError(f'{text!r}: this pattern needs a finite rate ("inf" stands alone: all at once)')
    return rate


def parse_arrivals(pattern: str | None, rate: str | float | None) -> Arrivals:
    """`--arrivals` beside `--rate`: poisson (default), constant, gamma:CV, burstiness:B, burst:N, ramp:FROM:TO[:OVER],
    steps:RATE:TIME:...

    Raises UserError with what to write.
    """
    name, *args = (pattern or "poisson").strip().split(":")
    name = name.strip().lower()
    if name in {"ramp", "steps"}:
        return _changing(name, args)
    if rate is None:
        raise UserError(f"arrivals {pattern or 'poisson'!r} need a rate, like --rate 4/s")
    per_s = rate_per_s(rate)
    if math.isinf(per_s):
        ignored = (f"rate inf sends all at once: `{pattern}` is ignored",) if pattern else ()
        return Arrivals(kind="inf", notes=ignored)
    if name in {"poisson", "constant"} and not args:
        return Arrivals(kind=name, rate_per_s=per_s)
    if name == "gamma" and len(args) == 1:
        return Arrivals(kind="gamma", rate_per_s=per_s, cv=_positive(args[0].removeprefix("cv="), "gamma:CV"))
    if name == "burstiness" and len(args) == 1:
        return _burstiness(per_s, args[0])
    if name == "burst" and len(args) == 1:
        return Arrivals(kind="burst", rate_per_s=per_s, burst=count(args[0]))
    raise UserError(
        f"arrivals {pattern!r}: write poisson, constant, gamma:CV, burst:N, ramp:1/s:8/s or steps:1/s:30s:4/s:30s"
    )


def _burstiness(per_s: float, text: str) -> Arrivals:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"burstiness:{text}: write a number greater than 0") from None
    cv = cv_of_burstiness(value)
    note = f"burstiness {value:g} is vLLM's gamma shape: CV {cv:g} (lower burstiness is burstier)"
    return Arrivals(kind="gamma", rate_per_s=per_s, cv=cv, notes=(note,))


def _changing(name: str, args: list[str]) -> Arrivals:
    smooth = bool(args) and args[-1] == "constant"
    args = args[:-1] if smooth else args
    if name == "ramp" and len(args) in {2, 3}:
        return Arrivals(
            kind="ramp",
            ramp_from_per_s=0.0 if args[0].strip() in {"0", "0.0", "0/s"} else _finite_rate(args[0]),
            ramp_to_per_s=_finite_rate(args[1]),
            ramp_s=_stretch(args[2]) if len(args) == 3 else None,
            smooth=smooth,
        )
    if name == "steps" and args and len(args) % 2 == 0:
        pairs = tuple((_finite_rate(r), _stretch(s)) for r, s in zip(args[::2], args[1::2], strict=True))
        return Arrivals(kind="steps", steps=pairs, smooth=smooth)
    example = "ramp:1/s:8/s or ramp:1/s:8/s:60s" if name == "ramp" else "steps:1/s:30s:4/s:30s"
    raise UserError(f"arrivals `{':'.join([name, *args])}`: write {example}")


def _stretch(text: str) -> float:
    seconds = duration_s(text)
    if not seconds > 0:
        raise UserError(f"{text!r}: a stretch of a ramp or step is longer than 0")
    return seconds


def arrivals_of_contract(value: Mapping[str, Any] | str, path: str = "workload.arrivals") -> Arrivals:
    """A contract's form: `{poisson: 4 req/s}`, `{gamma: {rate: 4/s, cv: 2}}`, `{ramp: {from, to, over}}`, `{concurrency: 8}`.

    `{concurrency: N}` gives kind "closed" (the number is the caller's to read). Raises UserError with the path.
    """
    if isinstance(value, str):
        value = {value: None}
    if "think_time" in value and {"concurrency", "closed"} & set(value):
        ((kind, given),) = ((name, under) for name, under in value.items() if name != "think_time")
        value = {kind: {"clients": given, "think_time": value["think_time"]}}
    if len(value) != 1:
        raise UserError(f"{path}: name one pattern, like {{poisson: 4 req/s}}, not {sorted(value)}")
    ((kind, given),) = value.items()
    try:
        return _of_contract(kind, given)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _of_contract(kind: str, given: Any) -> Arrivals:
    if kind in {"poisson", "constant"}:
        return parse_arrivals(kind, given)
    if kind == "trace":
        return Arrivals(kind="trace")
    fields = dict(given) if isinstance(given, Mapping) else {"": given}
    if kind in {"concurrency", "closed"}:
        think = fields.get("think_time")
        return Arrivals(kind="closed", think=ThinkTime() if think is None else think_time_of_contract(think))
    if kind == "gamma" and {"rate"} < set(fields) <= {"rate", "cv", "burstiness"} and len(fields) == 2:
        name = "gamma" if "cv" in fields else "burstiness"
        return parse_arrivals(f"{name}:{fields.get('cv', fields.get('burstiness'))}", fields["rate"])
    if kind == "burst" and set(fields) == {"rate", "size"}:
        return parse_arrivals(f"burst:{fields['size']}", fields["rate"])
    if kind == "ramp" and {"from", "to"} <= set(fields) <= {"from", "to", "over"}:
        return _changing("ramp", [str(fields[k]) for k in ("from", "to", "over") if k in fields])
    if kind == "steps" and isinstance(given, list):
        return _changing("steps", [str(part) for step in given for part in (step["rate"], step["for"])])
    raise UserError(
        f"`{kind}: {given}`: write poisson, constant, gamma {{rate, cv}}, burst {{rate, size}}, ramp {{from, to, over}}, "
        "concurrency or trace"
    )


def gap_s(arrivals: Arrivals, seed: int, index: int) -> float:
    """The gap before request `index` in seconds (random and constant patterns): from (seed, index) alone."""
    return _gap_s(arrivals, Stream(seed, "arrivals", index))


def _gap_s(arrivals: Arrivals, stream: Stream) -> float:
    rate = arrivals.rate_per_s or math.nan
    if arrivals.kind == "poisson":
        return stream.exponential() / rate
    if arrivals.kind == "gamma":
        shape = 1.0 / ((arrivals.cv or 1.0) ** 2)
        return stream.gamma(shape) / (shape * rate)  # scale 1/(rate·shape): the mean stays 1/rate whatever the CV
    raise UserError(f"`{arrivals.kind}` has no independent gaps")


def offsets_ns(arrivals: Arrivals, seed: int, span_s: float | None = None) -> Iterator[int]:
    """Due offsets, without end, in order. `span_s`: what a ramp without a length of its own spreads over.

    Raises UserError for a closed loop or a trace (they have no offsets of their own) and for a ramp without any length.
    """
    if arrivals.kind in {"poisson", "gamma"}:
        yield from _random_gaps(arrivals, seed)
    elif arrivals.kind in {"constant", "burst"}:
        size, rate, index = arrivals.burst or 1, arrivals.rate_per_s or math.nan, 0
        while True:  # from the index, not from the last offset: rounding can't add up
            yield round(index // size * size * 1e9 / rate)
            index += 1
    elif arrivals.kind == "inf":
        while True:
            yield 0
    elif arrivals.kind in {"ramp", "steps"}:
        yield from _warped(arrivals, seed, span_s)
    else:
        raise UserError(f"arrivals `{arrivals.kind}` have no schedule of their own")


def _random_gaps(arrivals: Arrivals, seed: int) -> Iterator[int]:
    due, index, streams = 0, 0, Stream.family(seed, "arrivals")
    while True:
        yield due
        index += 1
        due += round(_gap_s(arrivals, streams(index)) * 1e9)


def _warped(arrivals: Arrivals, seed: int, span_s: float | None) -> Iterator[int]:
    """A changing rate: arrivals of a unit-rate process through the inverse of the expected count (Lewis and Shedler 1979)."""
    segments = _segments(arrivals, span_s)
    expected, index = 0.0, 0
    while True:
        instant = _instant_s(segments, expected)
        if instant is None:
            return
        yield round(instant * 1e9)
        index += 1
        expected = float(index) if arrivals.smooth else expected + Stream(seed, "arrivals", index).exponential()


def _segments(arrivals: Arrivals, span_s: float | None) -> list[tuple[float, float, float]]:
    """(rate at start, rate at end, seconds) in turn; the last goes on for ever at its final rate."""
    if arrivals.kind == "steps":
        parts = [(rate, rate, seconds) for rate, seconds in arrivals.steps]
    else:
        first, last = arrivals.ramp_from_per_s or 0.0, arrivals.ramp_to_per_s or 0.0
        length = arrivals.ramp_s or span_s
        if length is None:
            raise UserError("a ramp needs a length: ramp:1/s:8/s:60s, or --duration, or --requests")
        parts = [(first, last, length)]
    return [*parts, (parts[-1][1], parts[-1][1], math.inf)]


def _instant_s(segments: list[tuple[float, float, float]], expected: float) -> float | None:
    """When the expected number of arrivals reaches `expected`: inverts first·t + (last − first)·t²/(2·length) in each segment."""
    start = 0.0
    for first, last, length in segments:
        if not first and not last:
            return None  # nothing more is ever due
        arrivals = (first + last) / 2 * length
        if expected >= arrivals:
            expected, start = expected - arrivals, start + length
            continue
        slope = (last - first) / length
        root = math.sqrt(max(0.0, first * first + 2 * slope * expected))
        return start + (2 * expected / (first + root) if expected else 0.0)
    return None


def span_of_requests_s(arrivals: Arrivals, requests: int) -> float | None:
    """How long a ramp without a length takes to bring `requests`: 2·N/(from + to). None where that isn't needed."""
    if arrivals.kind != "ramp" or arrivals.ramp_s is not None:
        return None
    return 2 * requests / ((arrivals.ramp_from_per_s or 0.0) + (arrivals.ramp_to_per_s or 0.0))


def think_ns(arrivals: Arrivals, seed: int, index: int) -> int:
    """How long a slot pauses before request `index`."""
    return sample_ns(arrivals.think, Stream(seed, "think", index))


def warnings_of(arrivals: Arrivals, concurrency: int | None) -> tuple[str, ...]:
    """What to tell a person before the run: `unlimited_burst` for rate inf without a cap, and the pattern's own notes."""
    if arrivals.kind == "inf" and concurrency is None:
        text = "unlimited_burst: rate inf without --concurrency opens every connection at once; cap it with --concurrency N"
        return (*arrivals.notes, text)
    return arrivals.notes
