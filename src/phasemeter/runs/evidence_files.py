"""Files of server evidence, recognised by what is in them, as one document in our boundaries.

Lives here: which reader a file goes to, and the document's shape. Must not live here: any engine's meaning (server/).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.errors import NOT_JSON, FileError
from phasemeter.runs.evidence_document import RANK_RULE, Asked, engine_block, phases_of, wanted_value
from phasemeter.server.exposition import MAX_PAGE_BYTES, Page, parse_page, unpacked
from phasemeter.server.headers import timings_in_headers
from phasemeter.server.joins import without_copies
from phasemeter.server.otlp import Span, decode, spans_of_json, timings_of
from phasemeter.server.prometheus import read_pages
from phasemeter.server.timings import Timings, found_in


class Gathered(msgspec.Struct):
    """What the files held, by kind."""

    pages: list[Page] = msgspec.field(default_factory=list)
    timings: list[Timings] = msgspec.field(default_factory=list)
    unknown_spans: int = 0
    seen_spans: dict[tuple[str, str], Span] = msgspec.field(default_factory=dict)
    copies: int = 0  # of spans that were there already
    warnings: list[str] = msgspec.field(default_factory=list)
    files: list[dict[str, str]] = msgspec.field(default_factory=list)


def document(paths: Sequence[Path], asked: Asked | None = None) -> dict[str, Any]:
    """The evidence document of these files: `engines.<engine>.<quantity>`. Pages in order: before, after.

    Raises FileError for a file that is none of the known kinds; the message says what it looks like.
    """
    asked = asked or Asked()
    gathered = Gathered()
    for path in paths:
        _gather(path, gathered)
    readings = read_pages(gathered.pages, asked.model)
    if gathered.pages and not readings and not gathered.timings and not asked.want:
        names = sorted({sample.name.split("_")[0] for page in gathered.pages for sample in page.samples})
        raise FileError(f"{gathered.pages[0].name}: no engine I know on the page (metrics of: {', '.join(names[:8])})")
    engines: dict[str, dict[str, Any]] = {name: engine_block(reading, asked) for name, reading in readings.items()}
    for timing_engine, phases in phases_of(gathered.timings).items():
        into = engines.setdefault(timing_engine, {})
        for phase, block in phases.items():
            present = into.get(phase)
            if isinstance(present, dict) and present.get("status") in {"present", "implausible", "rejected", "empty"}:
                present.setdefault("also", []).append(block)
            else:
                into[phase] = block
    for timing in gathered.timings:
        if timing.notes:
            known = engines.setdefault(timing.engine, {}).setdefault("warnings", [])
            known += [note for note in timing.notes if note not in known]
    answer: dict[str, Any] = {"phasemeter": 1, "files": gathered.files, "rank_rule": RANK_RULE, "engines": engines}
    if gathered.unknown_spans:
        answer["unknown_spans"] = gathered.unknown_spans
    if asked.want:
        answer["wanted"] = {name: wanted_value(name, gathered.pages) for name in asked.want}
    if gathered.copies:
        gathered.warnings.append(f"duplicate_span: {gathered.copies} spans came more than once and count once")
    answer["warnings"] = gathered.warnings + [
        text for page in gathered.pages for text in (f"{page.name}: {w}" for w in page.warnings)
    ]
    return answer


def _gather(path: Path, gathered: Gathered) -> None:
    try:
        size = path.stat().st_size
        if size > MAX_PAGE_BYTES:
            raise FileError(
                f"{path}: {size / 1e6:.0f} MB, more than {MAX_PAGE_BYTES // 1_000_000} MB: split or filter it"
            )
        data = path.read_bytes()
    except OSError as fault:
        raise FileError(f"{path}: can't be read ({fault.strerror or fault})") from fault
    name = str(path)
    headers, body, start_s = _without_head(unpacked(data, name), name)
    kind = _kind_of(body)
    if headers:
        gathered.timings += timings_in_headers(headers)
    if kind == "json":
        kind = _gather_json(body, name, gathered, headers)
    elif kind == "otlp_protobuf":
        _gather_spans(decode(body, name), gathered)
    elif kind == "headers":
        found = timings_in_headers(_header_lines(body))
        if not found:
            raise FileError(f"{name}: response headers without a timing that I know")
        gathered.timings += found
    elif kind == "event_stream":
        _gather_stream(body, name, gathered, headers)
    else:
        gathered.pages.append(parse_page(body, name, start_s=start_s))
    gathered.files.append({"file": name, "kind": kind})


def page_of(path: Path) -> Page:
    """One saved metrics page, with or without its HTTP head."""
    _, body, start_s = _without_head(unpacked(path.read_bytes(), str(path)), str(path))
    return parse_page(body, str(path), start_s=start_s)


def _kind_of(body: bytes) -> str:
    start = body[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in {b"{", b"["}:
        return "json"
    if start.startswith((b"data:", b"event:", b": ", b"id:")):
        return "event_stream"
    if body[:1] == b"\n" and any(byte < 9 or 13 < byte < 32 for byte in body[:200]):
        return "otlp_protobuf"
    lines = [line for line in body[:8192].splitlines() if line.strip()]
    if lines and all(_looks_like_header(line) for line in lines):
        return "headers"
    return "metrics_page"


def _looks_like_header(line: bytes) -> bool:
    name, colon, rest = line.partition(b":")
    return bool(colon and rest[:1] in {b" ", b"\t", b""} and name) and all(c in _TOKEN for c in name)


NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]*)?")
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _header_lines(data: bytes) -> list[tuple[str, str]]:
    pairs = (line.decode("latin-1").partition(":") for line in data.splitlines() if b":" in line)
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _without_head(data: bytes, name: str) -> tuple[list[tuple[str, str]], bytes, float | None]:
    """A saved HTTP response without its head and framing; the process's start, where a header tells it."""
    if not data.startswith(b"HTTP/"):
        return [], data, None
    end = data.find(b"\r\n\r\n")
    gap = 4
    if end < 0:
        end, gap = data.find(b"\n\n"), 2
    if end < 0:
        return _header_lines(data.split(b"\n", 1)[1] if b"\n" in data else b""), b"", None
    head, body = data[:end], data[end + gap :]
    status = head.split(b"\n", 1)[0].split()
    headers = _header_lines(head.split(b"\n", 1)[1] if b"\n" in head else b"")
    found = {key.lower(): value for key, value in headers}
    if len(status) > 1 and status[1][:1] != b"2":
        raise FileError(f"{name}: the server answered {status[1].decode('latin-1')}, so there is no evidence in it")
    if "chunked" in found.get("transfer-encoding", "").lower():
        body = _dechunked(body)
    elif NUMBER.fullmatch(length := found.get("content-length", "")) and len(body) < float(length):
        raise FileError(f"{name}: cut off: {len(body)} of {length} bytes of the body are here: fetch the page again")
    start = found.get("process-start-time-unix", "")
    return headers, unpacked(body, name), float(start) if NUMBER.fullmatch(start) else None


def _dechunked(body: bytes) -> bytes:
    parts, at = [], 0
    while (end := body.find(b"\n", at)) >= 0:
        try:
            size = int(body[at:end].split(b";")[0].strip() or b"0", 16)
        except ValueError:
            break
        if size == 0 and body[at:end].strip():
            break
        parts.append(body[end + 1 : end + 1 + size])
        at = end + 1 + size + (2 if body[end + 1 + size : end + 3 + size] == b"\r\n" else 1 if size else 0)
    return b"".join(parts)


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except NOT_JSON:
        return None


def _gather_json(body: bytes, name: str, gathered: Gathered, headers: list[tuple[str, str]]) -> str:
    body = body.lstrip(b"\xef\xbb\xbf")
    whole = _json(body)
    if whole is not None:
        documents = whole if isinstance(whole, list) else [whole]
    else:
        documents = _json_lines(body, name, gathered)
    spans = [span for doc in documents if isinstance(doc, dict) for span in _spans_in(doc)]
    if spans:
        _gather_spans(spans, gathered)
        return "otlp_json"
    _gather_bodies(documents, name, gathered, headers)
    return "timings"


def _json_lines(body: bytes, name: str, gathered: Gathered) -> list[Any]:
    """A document a line. A last line without its end is what a writer was still at: said, and left out."""
    documents = []
    lines = body.splitlines()
    for number, line in enumerate(lines, 1):
        parsed = _json(line) if line.strip() else None
        if parsed is not None:
            documents.append(parsed)
        elif line.strip() and number == len(lines) and documents and not body.endswith(b"\n"):
            gathered.warnings.append(f"unterminated_last_line: {name}:{number} is cut off and left out")
        elif line.strip():
            raise FileError(f"{name}:{number}: no JSON: a file that starts with {{ or [ has JSON throughout")
    return documents


def _gather_stream(body: bytes, name: str, gathered: Gathered, headers: list[tuple[str, str]]) -> None:
    """Answers as they were streamed, one after the other. Timings that come again within one are its newest word, not more."""
    answers: dict[tuple[int, object], dict[tuple[str, ...], Timings]] = {}
    ended = 0
    for line in body.splitlines():
        text = line[5:].strip() if line.startswith(b"data:") else b""
        ended += text == b"[DONE]"
        doc = _json(text) if text else None
        told = answers.setdefault((ended, doc.get("id") if isinstance(doc, dict) else None), {})
        for timing in _nested(doc, "", 0):
            told[timing.engine, *sorted(value.phase for value in timing.values)] = timing
    found = [timing for told in answers.values() for timing in _newest(list(told.values()))]
    if not found and not headers:
        raise FileError(f"{name}: a stream without timings that I know: were they asked for?")
    gathered.timings += found


def _newest(timings: Sequence[Timings]) -> list[Timings]:
    """Of one answer: what a later chunk tells of a phase replaces what an earlier one told under the same source."""
    told: dict[tuple[str, str, str], None] = {}
    kept = []
    for timing in reversed(timings):
        values = tuple(v for v in timing.values if (timing.engine, v.phase, v.source) not in told)
        told |= {(timing.engine, v.phase, v.source): None for v in values}
        kept.append(msgspec.structs.replace(timing, values=values))
    return [timing for timing in reversed(kept) if timing.values or timing.notes]


def _spans_in(doc: dict[str, Any]) -> list[Span]:
    inner = doc.get("body", doc)
    return spans_of_json(inner) if isinstance(inner, dict) else []


def _gather_spans(spans: Sequence[Span], gathered: Gathered) -> None:
    once = list(without_copies(spans, gathered.seen_spans))
    gathered.copies += len(spans) - len(once)
    for span in once:
        timing = timings_of(span)
        if timing is None:
            gathered.unknown_spans += 1
        else:
            gathered.timings.append(timing)


def _gather_bodies(documents: Sequence[Any], name: str, gathered: Gathered, headers: list[tuple[str, str]]) -> None:
    found = [timing for doc in documents for timing in _nested(doc, "", 0)]
    if not found and not headers:
        known = [words for doc in documents if isinstance(doc, dict) for key, words in _OTHERS.items() if key in doc]
        raise FileError(
            f"{name}: {known[0]}"
            if known
            else f"{name}: JSON without spans or timings that I know: expected OTLP, timing fields or headers"
        )
    gathered.timings += found


# what is met besides, by a key at its top: what it is, and what to bring instead
_OTHERS = {
    "resourceMetrics": "metrics as OTLP, which I don't read: give the engine's own /metrics page",
    "resourceLogs": "logs as OTLP, which hold no times that I know: give spans or a metrics page",
    "data": "the answer of a Prometheus or Jaeger API: give the engine's own /metrics page, or spans as OTLP",
    "resourceSpans": "OTLP without one span in it: was the trace sampled away?",
}
_BARE = {"groq": "usage", "cerebras": "time_info", "time_info": "time_info", "usage": "usage", "metrics": "metrics"}


def _nested(doc: Any, key: str, depth: int) -> list[Timings]:
    """Timings anywhere down to a few levels: files of collected samples nest them under names of their own."""
    if depth > 6:
        return []
    if isinstance(doc, list):
        return [timing for item in doc[:100_000] for timing in _nested(item, key, depth + 1)]
    if not isinstance(doc, dict):
        return []
    found = found_in(doc)
    if not found:
        for word, field in _BARE.items():
            found = found or (found_in({field: doc}) if word in key.lower() else [])
    if not found:
        found = found_in({"timings": doc}) or found_in({"metrics": doc}) or found_in({"nvext": {"timing": doc}})
    flat = {k: str(v) for k, v in doc.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    found += timings_in_headers(flat) if not found else []
    if found:
        return found
    return [timing for name, value in doc.items() for timing in _nested(value, str(name), depth + 1)]
