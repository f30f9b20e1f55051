"""A page in either format gives its samples; what is wrong with it is named and bounded."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from phasemeter.errors import FileError
from phasemeter.server import exposition
from phasemeter.server.exposition import parse_page, sample_of


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=20), st.floats(), min_size=1, max_size=8))
def test_pages_read_as_prometheus_client_reads_them(values: dict[str, float]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:num_requests_running", "waiting\nor not", ["model_name"], registry=registry)
    for label, value in values.items():
        gauge.labels(label.encode("utf-8", "replace").decode()).set(value)
    text = generate_latest(registry).decode()
    theirs = {
        (s.name, tuple(sorted(s.labels.items()))): repr(s.value)
        for f in text_string_to_metric_families(text)
        for s in f.samples
    }
    ours = {(s.name, s.labels): repr(s.value) for s in parse_page(text.encode()).samples}
    assert ours == theirs


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 1", 1.0),
        ("a 1 1700000000000", 1.0),
        ('a{b="c",} 2', 2.0),
        ("a{} 3", 3.0),
        ('a { b = "c" } 4', 4.0),
        ('a_bucket{le="1"} 5 # {trace_id="x"} 0.4 1700000000.1', 5.0),
        ('a{b="} # 9"} 6', 6.0),
        ("a +Inf", float("inf")),
        ('{"a.b",c="d"} 7', 7.0),
        ("a 8e-3", 0.008),
    ],
)
def test_a_sample_line_gives_its_value(line: str, value: float) -> None:
    assert sample_of(line).value == value


@pytest.mark.parametrize(
    "line", ["a", "a{b=c} 1", 'a{b="c} 1', "a one", "1a 1", "a 1 2 3", 'a{b="1",b="2"} 1', "a 1_0"]
)
def test_a_bad_line_is_named_and_the_rest_is_kept(line: str) -> None:
    page = parse_page(f"good 1\n{line}\nalso 2\n".encode())
    assert [sample.value for sample in page.samples] == [1.0, 2.0]
    assert any("line 2" in warning for warning in page.warnings)


def test_escaped_labels_are_unescaped() -> None:
    assert sample_of('a{b="x\\"y\\\\z\\nw"} 1').labels == (("b", 'x"y\\z\nw'),)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"<!DOCTYPE html><html><title>Login</title></html>", 'HTML page \\(titled "Login"\\)'),
        (b"\n <html><body>404", "HTML"),
        (b"# HELP a b\n# TYPE a gauge\n", "no sample"),
        (b"not a page at all\n", "no sample"),
        (gzip.compress(b"a 1\n" * 100)[:-12], "cut off|unpack"),
    ],
)
def test_what_is_no_page_is_said_in_one_line(data: bytes, words: str) -> None:
    with pytest.raises(FileError, match=words) as caught:
        parse_page(data, "x.prom")
    assert str(caught.value).startswith("x.prom") and "\n" not in str(caught.value)


def test_a_gzipped_page_reads_as_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_page(gzip.compress(b"a 1\n")).samples == parse_page(b"a 1\n").samples
    monkeypatch.setattr(exposition, "MAX_PAGE_BYTES", 1000)
    with pytest.raises(FileError, match="too large"):
        parse_page(gzip.compress(b"a 1\n" * 10_000))


def test_too_many_series_and_too_long_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_SAMPLES", 10)
    with pytest.raises(FileError, match="more than 10 series"):
        parse_page(b"".join(b"a%d 1\n" % i for i in range(20)))
    page = parse_page(b'a{b="' + b"x" * 70_000 + b'"} 1\nb 2\n')
    assert len(page.samples) == 1 and "longer than" in page.warnings[0]


def test_nothing_after_eof_is_read_and_a_cut_off_page_is_noticed() -> None:
    assert len(parse_page(b"a 1\n# EOF\nb 2\n").samples) == 1
    assert any("unterminated" in w for w in parse_page(b"a 1\nb 2").warnings)
    assert any("missing_eof" in w for w in parse_page(b"# TYPE a unknown\na 1\n").warnings)


def test_a_series_that_stands_twice_counts_once() -> None:
    page = parse_page(b'a{b="1"} 1\na{b="1"} 2\n')
    assert [s.value for s in page.samples] == [2.0] and "duplicate" in page.warnings[0]
