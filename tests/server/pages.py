"""Small pages of our own making."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasemeter.server.exposition import Page, parse_page
from phasemeter.server.prometheus import EngineReading, read_pages

INF = float("inf")


def hist(
    name: str, buckets: Mapping[float, float], total: float, labels: str = 'engine="0",model_name="m"', tail: str = ""
) -> str:
    lines = [f"# TYPE {name} histogram"]
    for edge, count in buckets.items():
        lines.append(f'{name}_bucket{{{labels},le="{"+Inf" if edge == INF else edge}"}} {count}{tail}')
    return "\n".join([*lines, f"{name}_count{{{labels}}} {buckets[INF]}", f"{name}_sum{{{labels}}} {total}", ""])


def page(*texts: str, name: str = "page") -> Page:
    return parse_page("".join(texts).encode(), name)


def read(*pages: Page, engine: str = "vllm", model: str | None = None) -> EngineReading:
    return read_pages(list(pages), model)[engine]


def windows(before: Sequence[str], after: Sequence[str]) -> EngineReading:
    return read(page(*before, name="before"), page(*after, name="after"))
