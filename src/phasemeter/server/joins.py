"""Which span belongs to which request: by traceparent first, then by request id. Ambiguity is no join.

Lives here: matching of identities. Must not live here: times: nothing is joined because it "looks close".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

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


def join(requests: Sequence[Identity], spans: Iterable[Span]) -> Joined:
    """Each request's spans. A span that two requests could claim, or two request spans of one id, join nothing."""
    known = [span for span in spans if engine_of(span)]
    by_trace: dict[str, list[Span]] = {}
    by_id: dict[str, list[Span]] = {}
    for span in known:
        by_trace.setdefault(span.trace_id, []).append(span)
        if request := request_id_of(span):
            by_id.setdefault(request, []).append(span)
    owners = _owners(requests)
    found: dict[str, tuple[Span, ...]] = {}
    by: dict[str, str] = {}
    unjoined, ambiguous = [], []
    for identity in requests:
        how, chosen, clash = _match(identity, by_trace, by_id, owners)
        if clash:
            ambiguous.append(identity.request_id)
        elif chosen:
            found[identity.request_id], by[identity.request_id] = tuple(chosen), how
        else:
            unjoined.append(identity.request_id)
    return Joined(spans=found, by=by, unjoined=tuple(unjoined), ambiguous=tuple(ambiguous))


def _owners(requests: Sequence[Identity]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for identity in requests:
        trace = trace_of(identity.traceparent)
        for key in ({"trace:" + trace[0] + trace[1]} if trace else set()) | _id_forms(identity):
            counts[key] = counts.get(key, 0) + 1
    return counts


def _match(
    identity: Identity, by_trace: Mapping[str, list[Span]], by_id: Mapping[str, list[Span]], owners: Mapping[str, int]
) -> tuple[str, list[Span], bool]:
    trace = trace_of(identity.traceparent)
    if trace and trace[0] in by_trace:
        if owners["trace:" + trace[0] + trace[1]] > 1:
            return "", [], True
        chosen = _children(by_trace[trace[0]], trace[1])
        if chosen:
            return "traceparent", chosen, _several_roots(chosen)
    forms = sorted(form for form in _id_forms(identity) if form in by_id)
    if not forms:
        return "", [], False
    if any(owners[form] > 1 for form in forms):
        return "", [], True
    chosen = [span for form in forms for span in by_id[form]]
    return "request_id", chosen, _several_roots(chosen)


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
