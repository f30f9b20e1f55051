"""What a dialect is: another tool's rows, rules and known distortions, as data of one shape.

Lives here: the shape. Must not live here: any tool's facts (one file each) or the computing (reading).
"""

from __future__ import annotations

import msgspec

from phasemeter.metrics.definitions import Definition


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity that a tool prints.

    `key` is its own name without the statistic; `printed` is how it writes a statistic of it ("{stat}_ttft_ms"), `unit` its own
    unit. `weight`: a key of DIVISORS for token-weighted rows. `word` says which of our words people would take it for.
    """

    key: str
    printed: str
    unit: str
    word: str
    definition: Definition
    weight: str | None = None
    inverse: bool = False  # prints 1 / value (tokens a second a user)
    note: str = ""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's rules, read from its released code.

    `counted_failures`: kinds of failure that this tool takes for successes once a token came. `percentiles`: its own label and
    level. `rule`: "linear" (on n − 1) or "step" (the first value whose cumulative share reaches the level). `window`: a key of
    WINDOWS in reading. `distortions`: what its own numbers carry that a capture of ours can't re-create.
    """

    name: str
    version: str
    title: str
    rows: tuple[Row, ...]
    first_token: str
    tokens: str
    counted: str
    counted_failures: frozenset[str] = frozenset()
    without_usage: str = (
        "ours"  # what it counts where the server told no usage: ours | chunks | asked (the maximum asked for)
    )
    percentiles: tuple[tuple[str, float], ...]
    statistics: tuple[tuple[str, str], ...]  # (mean | median | std | min | max, the tool's label)
    rule: str = "linear"
    throughput: tuple[tuple[str, str], ...]  # (requests | output | input | total | duration, the tool's label)
    window: str
    window_words: str
    aggregation: str
    goodput: str
    distortions: tuple[str, ...] = ()
    source: str

    @property
    def id(self) -> str:
        """`vllm@0.33`: what stands as `definitions` in a result."""
        return f"{self.name}@{self.version}"


def difference(
    name: str, start: str, end: str, *, divisor: str | None = None, excluded: tuple[str, ...] = (), words: str = ""
) -> Definition:
    """A plain (end − start) / divisor, in seconds."""
    return Definition(name=name, start=start, end=end, divisor=divisor, excluded=excluded, words=words, source="")


def per_chunk(name: str, words: str, gaps: str = "inter_chunk") -> Definition:
    """The gaps between output events, as the GAP_FUNCTIONS key `gaps` takes them."""
    return Definition(name=name, kind="gap", special=gaps, words=words, source="")


CADENCE = (
    "not_streamed",
    "no_output",
    "unknown_tokens",
    "fewer_than_2_tokens",
)  # what most leave out of a time per token
