"""A metrics page: text in, samples out. Prometheus text format 0.0.4 and OpenMetrics 1.0.

Lives here: lines, labels, values, what is wrong with which line. Must not live here: which engine means what (engines.py).
prometheus_client's parsers stop at the first bad line and lose the page; a scrape is evidence that can't be repeated, so a
bad line is named and the rest is kept. A sample line reads the same in both formats, so one grammar serves both.
"""

from __future__ import annotations

import math
import re
import zlib

import msgspec

from phasemeter.errors import FileError

MAX_PAGE_BYTES = 64_000_000
MAX_LINE_BYTES = 64_000
MAX_SAMPLES = 300_000
MAX_NAMED_BAD_LINES = 5

Labels = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_.]*|"(?:[^"\\]|\\.)*")\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
# what nearly all lines look like; any other goes the long way
_PLAIN = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*"(?:,|(?=\})))*)\})? +'
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|Inf|NaN))(?: -?[0-9.]+)?"
)
_PAIRS = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)"')
_ESCAPE = re.compile(r"\\(.)")
_TITLE = re.compile(r"<title>\s*([^<]{0,80})", re.IGNORECASE)
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One line: `name{labels} value`. Labels are sorted; the timestamp and the exemplar are read over."""

    name: str
    labels: Labels
    value: float


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What one scrape held, in the page's order. `start_s` is the process's start instant (Unix), where told."""

    name: str
    samples: tuple[Sample, ...]
    start_s: float | None = None
    warnings: tuple[str, ...] = ()


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), text) if "\\" in text else text


def _labels(line: str, at: int) -> tuple[Labels, int, str | None]:
    """Labels from just after the `{`; the position after the `}`; a quoted metric name (OpenMetrics UTF-8 form)."""
    found: list[tuple[str, str]] = []
    quoted: str | None = None
    bare = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))').match(line, at)
    if bare and not _LABEL.match(line, at):
        quoted, at = _unescape(bare[1]), bare.end()
    while match := _LABEL.match(line, at):
        found.append((match[1].strip('"'), _unescape(match[2])))
        at = match.end()
    rest = line[at:].lstrip()
    if not rest.startswith("}"):
        raise ValueError("its labels don't end in }")
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise ValueError("a label is named twice")
    return tuple(sorted(found)), len(line) - len(rest) + 1, quoted


def sample_of(line: str) -> Sample:
    """One sample line of either format. Raises ValueError saying what is wrong with it."""
    plain = _PLAIN.fullmatch(line)
    if plain is not None:
        pairs = _PAIRS.findall(plain[2]) if plain[2] else []
        if len(dict(pairs)) == len(pairs):
            return Sample(plain[1], tuple(sorted(pairs)), float(plain[3]))
    match = _NAME.match(line)
    name, at = (match[0], match.end()) if match else ("", 0)
    labels: Labels = ()
    quoted: str | None = None
    after_name = line[at:].lstrip()
    if after_name.startswith("{"):
        labels, at, quoted = _labels(line, len(line) - len(after_name) + 1)
    name = name or quoted or ""
    if not name:
        raise ValueError("it starts with no metric name")
    words = line[at:].split("#", 1)[0].split()  # `#` starts an exemplar
    if not words:
        raise ValueError("it has no value")
    if len(words) > 2:
        raise ValueError("it has more than a value and a timestamp")
    try:
        value = float(words[0])
        float(words[-1])
    except ValueError:
        raise ValueError(f"`{words[0][:20]}` is no number") from None
    if "_" in words[0]:  # Python's float takes 1_000, the formats don't
        raise ValueError(f"`{words[0][:20]}` is no number")
    return Sample(name, labels, value)


def _looks_like_html(text: str) -> bool:
    """No sample line starts with `<`, and label values may hold any markup."""
    return text[:2000].lstrip("\ufeff \t\r\n").startswith("<")


def unpacked(data: bytes, name: str) -> bytes:
    """The bytes themselves, or what a gzip or zlib stream holds, up to MAX_PAGE_BYTES.

    Raises FileError for a larger page and for a broken stream that gave nothing.
    """
    if data[:2] == b"\x1f\x8b" or data[:2] in {b"\x78\x9c", b"\x78\x01", b"\x78\xda"}:
        engine = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, by its header
        try:
            data = engine.decompress(data, MAX_PAGE_BYTES + 1)
        except zlib.error as broken:
            raise FileError(f"{name}: a gzip stream that doesn't unpack ({broken}): fetch the page again") from broken
        if not engine.eof and len(data) <= MAX_PAGE_BYTES:
            raise FileError(f"{name}: the gzip stream is cut off after {len(data)} bytes: fetch the page again")
    if len(data) > MAX_PAGE_BYTES:
        raise FileError(
            f"{name}: more than {MAX_PAGE_BYTES // 1_000_000} MB, too large for a metrics page: "
            "save a page of one server, or filter it by the engine's prefix"
        )
    return data


def parse_page(data: bytes, name: str = "page", *, start_s: float | None = None) -> Page:
    """A metrics page from its bytes.

    Raises FileError for HTML, an empty page, a page without one readable sample, or one beyond the stated bounds.
    Warnings: `bad_line`, `unterminated_last_line`, `not_utf8`, `duplicate_sample`, `missing_eof`.
    """
    data = unpacked(data, name)
    text = data.decode("utf-8", "replace")
    if not text.strip("\ufeff \t\r\n"):
        raise FileError(f"{name}: the page is empty: a metrics page has at least one sample (is the exporter on?)")
    if _looks_like_html(text):
        title = _TITLE.search(text[:4000])
        said = f' (titled "{title[1].strip()}")' if title else ""
        raise FileError(f"{name}: this is an HTML page{said}, not a metrics page: check the path, often /metrics")
    warnings = ["not_utf8: bytes that are no UTF-8 were replaced"] if "\ufffd" in text else []
    if not text.endswith("\n"):
        warnings.append("unterminated_last_line: the page may be cut off, its last value too")
    samples, kinds, bad, ended = _read_lines(text.lstrip("\ufeff"), name)
    if not samples:
        first = f" ({bad[0]})" if bad else ""
        raise FileError(f"{name}: no sample of a metrics page in it{first}")
    warnings += [f"bad_line: {text}" for text in bad[:MAX_NAMED_BAD_LINES]]
    if len(bad) > MAX_NAMED_BAD_LINES:
        warnings.append(f"bad_line: and {len(bad) - MAX_NAMED_BAD_LINES} more")
    if not ended and not kinds.isdisjoint({"unknown", "info", "stateset", "gaugehistogram"}):
        warnings.append("missing_eof: an OpenMetrics page ends in `# EOF`; this one may be cut off")
    unique = {(sample.name, sample.labels): sample for sample in samples}
    if len(unique) < len(samples):
        warnings.append(f"duplicate_sample: {len(samples) - len(unique)} series stand twice; the last one counts")
    if start_s is None:
        starts = [s.value for s in unique.values() if s.name == "process_start_time_seconds" and math.isfinite(s.value)]
        start_s = starts[0] if len(starts) == 1 else None
    return Page(name=name, samples=tuple(unique.values()), start_s=start_s, warnings=tuple(warnings))


def _read_lines(text: str, name: str) -> tuple[list[Sample], set[str], list[str], bool]:
    """(samples, kinds that `# TYPE` lines name, bad lines, whether `# EOF` stood there)."""
    samples: list[Sample] = []
    kinds: set[str] = set()
    bad: list[str] = []
    at, number = 0, 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        number += 1
        if end - at > MAX_LINE_BYTES:
            bad.append(f"line {number}: longer than {MAX_LINE_BYTES} bytes")
            at = end + 1
            continue
        line = text[at:end].strip()
        at = end + 1
        if line.startswith("# HELP"):
            continue
        if line.startswith("#"):
            words = line.split()
            if words[:2] == ["#", "EOF"]:
                return samples, kinds, bad, True
            if len(words) == 4 and words[1] == "TYPE":
                kinds.add(words[3])
            continue
        if not line:
            continue
        try:
            samples.append(sample_of(line))
        except ValueError as fault:
            bad.append(f"line {number}: {fault}: {line[:60]!r}")
        if len(samples) > MAX_SAMPLES:
            raise FileError(f"{name}:{number}: more than {MAX_SAMPLES} series: save a page of one server")
    return samples, kinds, bad, False
