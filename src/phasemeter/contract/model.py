"""The contract: what was promised, on which workload, and how sure one has to be.

Lives here: the sections of a contract file, its lines as data, and parsing it from text (never from a path). Must not live
here: whether a run keeps it (verdict.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from phasemeter import units
from phasemeter.contract import names
from phasemeter.contract.reading import Place, arrivals, guess, length, load
from phasemeter.metrics.definitions import BOUNDARIES, GAPS, HOUSE, PER_REQUEST
from phasemeter.wire.apis import ALIASES, APIS

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
KINDS = ("chat", "batch", "long-generation")
PHASES = ("ingress", "queue", "prefill", "first_token", "delivery", "decode")  # DESIGN section 11
SERVER_BOUNDARIES = (
    "arrival", "queue_enter", "prefill_start", "prefill_end", "first_token", "decode_end", "complete",
    "queue", "prefill", "decode", "ttft", "e2e",
)  # fmt: skip
SERVICE = (
    "model", "model_revision", "weights_hash", "engine", "engine_version", "accelerator", "accelerator_count", "topology",
    "dtype", "quantisation", "tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel", "batching",
    "scheduling", "kv_policy", "prefix_cache", "attention_backend", "speculative_decoding", "network_path",
)  # fmt: skip
NEEDS_STREAM = (
    {name for name, row in HOUSE.items() if "not_streamed" in row.excluded} | set(GAPS) | {"tpot", "ttft", "ttfo"}
)
LONGEST_S = 366 * 86400.0
NEEDS_TWO_TOKENS = {"tpot", "visible_tpot", "decode_per_token", "generation", "jitter", *GAPS}


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """One promise: `statistic` ("p95", "mean") of `metric` is at most `limit_s` seconds.

    `path` is where it stands in the file. `workload_class` None: all requests. `phase`: a server phase, not a metric.
    """

    path: str
    metric: str
    statistic: str
    limit_s: float
    workload_class: str | None = None
    phase: bool = False


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What each request has to keep, and how many have to. Rates per second, shares 0–1, None: not promised."""

    path: str = "capacity"
    objectives: dict[str, float] = {}  # metric: seconds, joint
    attainment: float | None = None
    goodput_per_s: float | None = None
    error_budget: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    workload_class: str | None = None

    def promises(self) -> bool:
        """Whether anything is promised: `objectives` alone say what the verb `goodput` counts."""
        return msgspec.structs.replace(self, path="", workload_class=None) != Capacity(path="")


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A stated price and a ceiling. `price_per_hour` is for the whole deployment, in `currency`."""

    price_per_hour: float
    currency: str = "USD"
    per_million_output_tokens: float | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One class of requests. Distributions are as written, with lengths in tokens and rates per second."""

    name: str | None = None
    share: float = 1.0
    api: str | None = None
    stream: bool = True
    input_tokens: Any = None
    output_tokens: Any = None
    arrivals: Any = None
    kind: str | None = None
    objective: str | None = None


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """A whole contract. `objectives` and `capacities` hold every class's lines; `confidence` is two-sided."""

    workload: Workload
    classes: tuple[Workload, ...] = ()
    objectives: tuple[Objective, ...] = ()
    capacities: tuple[Capacity, ...] = ()
    cost: Cost | None = None
    client_boundaries: tuple[str, ...] = ()
    server_boundaries: tuple[str, ...] = ()
    service: dict[str, Any] = {}
    confidence: float = 0.95


def parse(text: str, file: str = "contract.yaml") -> Contract:
    """The contract in a YAML text; `file` is how errors call it.

    Raises FileError, one line with the path, for what is unknown, impossible or contradictory.
    """
    root = load(text, file)
    if root.value is None:
        raise root.wrong("the file is empty: `phasemeter contract new` writes a starter")
    entries = root.section(TOP)
    version = entries.get("phasemeter")
    if version is None:
        raise root.wrong("lacks `phasemeter: 1` (the version of the contract's form): write it as the first line")
    if version.value != 1 or isinstance(version.value, bool):
        raise version.wrong(f"is {version.value!r}: this phasemeter reads version 1")
    workload, classes, objectives, capacities = _workloads(entries.get("workload"))
    own_objectives, own_capacity = _promises(entries, workload, None, "")
    contract = Contract(
        workload=workload,
        classes=classes,
        objectives=(*own_objectives, *objectives),
        capacities=(*own_capacity, *capacities),
        cost=_cost(entries["cost"]) if "cost" in entries else None,
        **_observability(entries.get("observability")),
        service=_service(entries.get("service")),
        confidence=_confidence(entries.get("confidence")),
    )
    if not _promises_something(contract):
        raise root.wrong("promises nothing: add latency_slo, phase_budget, capacity or cost.per_million_output_tokens")
    return contract


def _promises_something(contract: Contract) -> bool:
    cost = contract.cost is not None and contract.cost.per_million_output_tokens is not None
    boundaries = contract.client_boundaries or contract.server_boundaries
    return bool(contract.objectives or cost or boundaries) or any(one.promises() for one in contract.capacities)


TOP = (
    "phasemeter", "workload", "latency_slo", "phase_budget", "capacity", "cost", "observability", "service", "confidence",
)  # fmt: skip
OF_THE_WHOLE = {"api", "stream", "arrivals"}  # one service, one schedule: a class is a share of it
_OF_A_CLASS = ("input_tokens", "output_tokens", "kind", "objective")
_WORKLOAD = ("api", "stream", "arrivals", *_OF_A_CLASS)
_PROMISES = ("latency_slo", "phase_budget", "capacity")


def _workloads(
    place: Place | None,
) -> tuple[Workload, tuple[Workload, ...], tuple[Objective, ...], tuple[Capacity, ...]]:
    if place is None:
        return Workload(), (), (), ()
    entries = place.section((*_WORKLOAD, "classes"))
    whole = _workload(entries, None)
    if "classes" not in entries:
        return whole, (), (), ()
    classes, objectives, capacities = [], [], []
    for name, inner in entries["classes"].section().items():
        for shared in OF_THE_WHOLE & set(inner.section()):
            raise inner.section()[shared].wrong(f"stands in a class: classes share `workload.{shared}`, write it there")
        own = inner.section((*_OF_A_CLASS, *_PROMISES, "share"))
        workload = _workload(own, name, whole)
        if "share" not in own:
            raise inner.wrong('lacks `share`: write how much of the load it is, like "70 %"')
        share = own["share"].read(units.share)
        if not share:
            raise own["share"].wrong("is 0: a class that is never sent has nothing to keep: leave it out")
        classes.append(msgspec.structs.replace(workload, share=share))
        lines, capacity = _promises(own, classes[-1], name, inner.path + ".")
        objectives += lines
        capacities += capacity
    total = sum(each.share for each in classes)
    if abs(total - 1) > 1e-6:
        raise entries["classes"].wrong(f"has shares that add up to {100 * total:g} %: make them 100 %")
    return whole, tuple(classes), tuple(objectives), tuple(capacities)


def _workload(entries: dict[str, Place], name: str | None, whole: Workload | None = None) -> Workload:
    whole = whole or Workload()
    got: dict[str, Any] = {"name": name}
    for key in ("api", "stream", "input_tokens", "output_tokens", "arrivals", "kind", "objective"):
        place = entries.get(key)
        got[key] = getattr(whole, key) if place is None else _WORKLOAD_READERS[key](place)
    return Workload(**got)


def _objective(place: Place) -> str:
    metric, dot, statistic = place.text().rpartition(".")
    if not dot or metric.replace("throughput", "ttft") not in (*PER_REQUEST, *GAPS, "goodput") or not statistic:
        raise place.wrong(f"{place.value!r} names no metric and statistic: write it like ttft.p99")
    if statistic not in (*PERCENTILES, "mean"):
        raise place.wrong(f"{place.value!r} names no percentile I know: write p50, p90, p95, p99 or p99.9 (or mean)")
    return place.text()


_WORKLOAD_READERS: dict[str, Any] = {
    "api": lambda place: place.text((*APIS, *ALIASES)),
    "stream": lambda place: place.truth(),
    "input_tokens": length,
    "output_tokens": length,
    "arrivals": arrivals,
    "kind": lambda place: place.text(KINDS),
    "objective": _objective,
}


def _promises(
    entries: dict[str, Place], workload: Workload, name: str | None, prefix: str
) -> tuple[list[Objective], list[Capacity]]:
    lines: list[Objective] = []
    if "latency_slo" in entries:
        for metric, inner in entries["latency_slo"].section().items():
            possible(inner, metric, workload)
            lines += _statistics(inner, metric, name, phase=False)
    if "phase_budget" in entries:
        for phase, inner in entries["phase_budget"].section(PHASES).items():
            lines += _statistics(inner, phase, name, phase=True)
    if "capacity" not in entries:
        return lines, []
    return lines, [_capacity(entries["capacity"], workload, lines, prefix + "capacity")]


def known_metrics() -> list[str]:
    """Every name that an objective may use: the house's, and `dialect:name` for each other tool's."""
    return [*names.per_request(), *names.gaps()]


def possible(place: Place, metric: str, workload: Workload) -> None:
    """Raises FileError for a metric that is unknown, or that no run of this workload could have."""
    if metric not in known_metrics():
        known = known_metrics() if ":" in metric else [*PER_REQUEST, *GAPS]
        tool = metric.partition(":")[0] + ":"
        known = [name for name in known if name.startswith(tool)] or known
        raise place.wrong(f"is no metric I know{guess(metric, known)} (`phasemeter define` lists them)")
    bare = metric.partition(":")[2] or metric
    if not workload.stream and bare in NEEDS_STREAM:
        raise place.wrong("is a metric that no run could have: `workload.stream` is false; promise e2e instead")
    if _most_tokens(workload.output_tokens) == 1 and bare in NEEDS_TWO_TOKENS:
        raise place.wrong(
            "is a metric that no run could have: `workload.output_tokens` is 1, and it needs 2 tokens; promise ttft instead"
        )


def _most_tokens(length: Any) -> float:
    """The longest output that a declared distribution can give."""
    if not isinstance(length, dict):
        return float("inf")
    kind, inner = next(iter(length.items()))
    if kind == "fixed":
        return float(inner)
    if kind == "uniform":
        return float(inner["max"])
    return float(max(inner)) if kind == "empirical" else float("inf")


def _statistics(place: Place, metric: str, name: str | None, *, phase: bool) -> list[Objective]:
    found: list[Objective] = []
    if not isinstance(place.value, dict) or not place.value:
        raise place.wrong(f"should name a percentile, like {{p95: 450 ms}}, and is {place.value!r}")
    for statistic, inner in place.section().items():
        if statistic != "mean" and statistic not in PERCENTILES:
            raise inner.wrong("is no percentile I know: write p50, p90, p95, p99 or p99.9 (or mean)")
        limit = _limit(inner)
        _no_looser(inner, found, statistic, limit)
        found.append(
            Objective(
                path=inner.path, metric=metric, statistic=statistic, limit_s=limit, workload_class=name, phase=phase
            )
        )
    return found


def _limit(place: Place) -> float:
    limit = place.read(units.duration_s)
    if not limit > 0:
        raise place.wrong(f"is {place.value}: nothing takes no time: write more than 0")
    if limit > LONGEST_S:
        raise place.wrong(f"is {place.value}: longer than a year promises nothing")
    return limit


def _no_looser(place: Place, before: list[Objective], statistic: str, limit_s: float) -> None:
    """Raises FileError for a percentile that promises less than another of the same metric already does."""
    for other in before:
        if not {statistic, other.statistic} <= PERCENTILES.keys():
            continue
        rises = PERCENTILES[statistic] > PERCENTILES[other.statistic]
        if (limit_s < other.limit_s) if rises else (limit_s > other.limit_s):
            raise place.wrong(
                f"is {'shorter' if rises else 'longer'} than {other.statistic} allows: a percentile can't fall as it rises: swap them"
            )


def _rate_above(place: Place, name: str) -> float:
    """A rate that a promise can be held to. Raises FileError for none, or one without end."""
    rate = place.read(units.rate_per_s)
    if not 0 < rate < float("inf"):
        raise place.wrong(f"is {place.value}: a {name} is a finite rate above 0")
    return rate


def _offers_enough(place: Place, needed: float, workload: Workload) -> None:
    """Raises FileError where the declared load is less than the goodput that is promised of it."""
    offered = workload.arrivals
    if not isinstance(offered, dict):
        return
    kind, inner = next(iter(offered.items()))
    rate = inner if kind in ("poisson", "constant") else inner.get("rate") if kind == "gamma" else None
    if isinstance(rate, int | float) and rate * workload.share < needed:
        raise place.wrong(
            f"is {needed:g} good requests a second, and `workload.arrivals` offers {rate * workload.share:g}: raise the one or"
            " lower the other"
        )


def _capacity(place: Place, workload: Workload, lines: list[Objective], path: str) -> Capacity:
    known = ("objectives", "attainment", "goodput", "error_budget", "requests_per_s", "output_tokens_per_s")
    entries = place.section(known)
    if "objectives" in entries:
        inner = entries["objectives"].section()
        for metric, where in inner.items():
            possible(where, metric, workload)
            if metric in names.gaps():
                raise where.wrong("has many values a request, so one request can't be held to it: write jitter or tpot")
        objectives = {metric: _limit(where) for metric, where in inner.items()}
    else:  # the tightest limit of each promised metric stands for each request
        objectives = {}
        for line in lines:
            if not line.phase and line.metric not in names.gaps():
                objectives[line.metric] = min(line.limit_s, objectives.get(line.metric, line.limit_s))
    if not objectives and ("attainment" in entries or "goodput" in entries):
        raise place.wrong("promises a share of good requests and says not what good is: add `objectives`")
    rates = {key: _rate_above(entries[key], key) for key in ("goodput", "requests_per_s", "output_tokens_per_s")
             if key in entries}  # fmt: skip
    if "goodput" in rates:
        _offers_enough(entries["goodput"], rates["goodput"], workload)
    return Capacity(
        path=path,
        objectives=objectives,
        attainment=_attainment(entries["attainment"]) if "attainment" in entries else None,
        goodput_per_s=rates.get("goodput"),
        error_budget=_error_budget(entries["error_budget"]) if "error_budget" in entries else None,
        requests_per_s=rates.get("requests_per_s"),
        output_tokens_per_s=rates.get("output_tokens_per_s"),
        workload_class=workload.name,
    )


def _attainment(place: Place) -> float:
    found = place.read(units.share)
    if not found:
        raise place.wrong("is 0: that promises nothing: write a share like 95 %")
    return found


def _error_budget(place: Place) -> float:
    found = place.read(units.share)
    if found == 1:
        raise place.wrong("is 100 %: that allows every request to fail: write a share like 1 %")
    return found


def _cost(place: Place) -> Cost:
    entries = place.section(("price_per_hour", "currency", "per_million_output_tokens"))
    if "price_per_hour" not in entries:
        raise place.wrong("lacks `price_per_hour`: what an hour of the whole deployment costs, as a number")
    ceiling = entries.get("per_million_output_tokens")
    return Cost(
        price_per_hour=entries["price_per_hour"].number(above=0),
        currency=entries["currency"].text() if "currency" in entries else "USD",
        per_million_output_tokens=ceiling.number(above=0) if ceiling else None,
    )


def _observability(place: Place | None) -> dict[str, Any]:
    if place is None:
        return {}
    entries = place.section(("client", "server"))
    found: dict[str, Any] = {}
    if "client" in entries:
        found["client_boundaries"] = entries["client"].texts(tuple(BOUNDARIES))
    if "server" in entries:
        found["server_boundaries"] = entries["server"].texts(SERVER_BOUNDARIES)
    return found


def _service(place: Place | None) -> dict[str, Any]:
    return {} if place is None else {name: inner.scalar() for name, inner in place.section(SERVICE).items()}


def _confidence(place: Place | None) -> float:
    if place is None:
        return 0.95
    value = place.read(units.share)
    if not 0.5 <= value <= 0.9999:
        raise place.wrong(f"is {100 * value:g} %: write 50 % to 99.99 %, usually 95 %")
    return value
