"""Which span belongs to which request: by traceparent first, then by request id. Ambiguity is no join.

Lives here: matching of identities. Must not live here: times: nothing is joined because it "looks close".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from phasemeter.server.otlp import Span, engine_of, request_id_of

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """How one request of ours can be known to a server."""

    request_id: str
    traceparent: str | None = None  # as sent
    response_id: str | None = None  # the server's own `id`
    sent_id: str | None = None  # what we sent as X-Request-Id


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """Spans by our request id; how each request was joined; what could not be joined, and why."""

    spans: dict[str, tuple[Span, ...]]
    by: dict[str, str]
    unjoined: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()


def trace_of(traceparent: str | None) -> tuple[str, str] | None:
    """(trace id, parent span id) of a W3C traceparent, or None when it is none."""
    match = _TRACEPARENT.fullmatch((traceparent or "").strip().lower())
    return (match[1], match[2]) if match else None


def _id_forms(identity: Identity) -> set[str]:
    """The ids a server may know it by: vLLM prefixes ours (`chatcmpl-`, `cmpl-`) and numbers completions (`-0`)."""
    forms = {identity.response_id, identity.sent_id} - {None}
    if identity.sent_id:
        forms |= {f"chatcmpl-{identity.sent_id}", f"cmpl-{identity.sent_id}"}
    forms |= {f"{form}-0" for form in forms if form and form.startswith("cmpl-")}
    return {form for form in forms if form}


class SpanIndex:
    """Spans by trace and by request id, asked for one request at a time, so that a run larger than memory joins too.

    `traceparents`: those of all requests, so that two of one trace join nothing. A request id that an earlier request was
    joined by joins no second one.
    """

    def __init__(self, spans: Iterable[Span], traceparents: Iterable[str | None] = ()) -> None:
        self.by_trace: dict[str, list[Span]] = {}
        self.by_id: dict[str, list[Span]] = {}
        for span in without_copies(spans):
            if not engine_of(span):
                continue
            self.by_trace.setdefault(span.trace_id, []).append(span)
            if request := request_id_of(span):
                self.by_id.setdefault(request, []).append(span)
        self._owners: dict[tuple[str, str], int] = {}
        for traceparent in traceparents:
            trace = trace_of(traceparent)
            if trace and trace[0] in self.by_trace:
                self._owners[trace] = self._owners.get(trace, 0) + 1
        self._traces = Counter(trace_id for trace_id, _ in self._owners)
        self._claimed: dict[str, str] = {}

    def of(self, identity: Identity) -> tuple[str, tuple[Span, ...], bool]:
        """(by what, its spans, whether it is ambiguous); nothing where nothing is its own."""
        trace = trace_of(identity.traceparent)
        if trace and trace[0] in self.by_trace:
            if self._owners.get(trace, 0) > 1:
                return "", (), True
            chosen = _children(self.by_trace[trace[0]], trace[1])
            if chosen:
                clash = _several_roots(chosen)
                return "traceparent", () if clash else tuple(chosen), clash
            alone = self.by_trace[trace[0]]
            if self._traces[trace[0]] == 1 and _roots(alone) == 1:
                return "trace_id", tuple(alone), False  # a gateway's own span stands between and was not exported
        forms = sorted(form for form in _id_forms(identity) if form in self.by_id)
        if not forms:
            return "", (), False
        if any(self._claimed.setdefault(form, identity.request_id) != identity.request_id for form in forms):
            return "", (), True
        chosen = [span for form in forms for span in self.by_id[form]]
        clash = _several_roots(chosen)
        return "request_id", () if clash else tuple(chosen), clash


def join(requests: Sequence[Identity], spans: Iterable[Span]) -> Joined:
    """Each request's spans. A span that two requests could claim, or two request spans of one id, join nothing."""
    index = SpanIndex(spans, [identity.traceparent for identity in requests])
    shared = _shared_ids(requests)
    found: dict[str, tuple[Span, ...]] = {}
    by: dict[str, str] = {}
    unjoined, ambiguous = [], []
    for identity in requests:
        how, chosen, clash = index.of(identity)
        if clash or (how == "request_id" and _id_forms(identity) & shared):
            ambiguous.append(identity.request_id)
        elif chosen:
            found[identity.request_id], by[identity.request_id] = chosen, how
        else:
            unjoined.append(identity.request_id)
    return Joined(spans=found, by=by, unjoined=tuple(unjoined), ambiguous=tuple(ambiguous))


def _shared_ids(requests: Sequence[Identity]) -> set[str]:
    counts: dict[str, int] = {}
    for identity in requests:
        for form in _id_forms(identity):
            counts[form] = counts.get(form, 0) + 1
    return {form for form, count in counts.items() if count > 1}


def _children(spans: Sequence[Span], parent: str) -> list[Span]:
    """Spans below `parent` in one trace, directly or through one another."""
    inside, grown = {parent}, True
    while grown:
        new = {span.span_id for span in spans if span.parent_id in inside and span.span_id} - inside
        grown = bool(new)
        inside |= new
    return [span for span in spans if span.parent_id in inside]


def _several_roots(spans: Sequence[Span]) -> bool:
    """Two request spans of one engine: a retry, or n > 1. Neither can be told apart, so neither is joined."""
    return sum(span.name == "llm_request" for span in spans) > 1


def _roots(spans: Sequence[Span]) -> int:
    """Spans that no other of these is the parent of."""
    inside = {span.span_id for span in spans if span.span_id}
    return sum(span.parent_id not in inside for span in spans)


def without_copies(spans: Iterable[Span], seen: dict[tuple[str, str], Span] | None = None) -> Iterator[Span]:
    """Each span once: an exporter that was not sure of its delivery sends again. Spans without ids are all kept.

    `seen` goes on from one call to the next. Two that differ under one id are no copies: who looks for one finds two.
    """
    seen = {} if seen is None else seen
    for span in spans:
        first = seen.setdefault((span.trace_id, span.span_id), span) if span.span_id else span
        if first is span or first != span:
            yield span
