"""How many tokens an answer holds, who says so, and in which chunks they came.

Lives here: the order of trust (server usage, logprobs, a local count of the whole text), tokens per chunk, impossible usage,
hidden reasoning. Must not live here: loading a tokenizer (runs/), latency.
Never max_tokens, never the number of chunks, never a sum over chunks tokenised one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import sub
from typing import Protocol

import msgspec

from phasemeter.wire.events import CONTENT, REASONING, REFUSAL, TOOL, Choice
from phasemeter.wire.exchange import Exchange

USAGE, LOGPROBS, LOCAL, USAGE_STEPS = "usage", "logprobs", "tokenizer_full_text", "usage_steps"
MANY_EVENTS = 8  # from this many events with text on, usage of less than half of them is worth a word
SHORTEST_PATTERN = 4  # this many growing steps before usage without a known maximum is called a sum of running counts


class Tokenizer(Protocol):
    """Counts tokens of a text, special tokens left out. `name` is printed beside each count it made."""

    name: str

    def count(self, text: str) -> int: ...


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`output_tokens` with its `source`, reasoning inside. Per choice and per output event where that is known.

    `trusted`: what stands in for impossible usage, None where there is none or no need.
    """

    output_tokens: int | None = None
    source: str | None = None
    server: int | None = None
    local: int | None = None
    trusted: int | None = None
    reasoning: int | None = None
    visible: int | None = None
    hidden_reasoning: bool = False
    per_choice: tuple[int | None, ...] = ()
    per_event: tuple[tuple[int, ...] | None, ...] = ()
    warnings: frozenset[str] = frozenset()


def count_tokens(exchange: Exchange, tokenizer: Tokenizer | None = None) -> TokenCounts:
    """The counts of one exchange."""
    warnings: set[str] = set()
    choices = exchange.choices
    server = _server_count(exchange, warnings)
    told = [_told(choice) for choice in choices if choice.reads or choice.logprob_tokens]
    by_choice = _local(choices, tokenizer)
    local = sum(by_choice) if by_choice is not None else None
    steps = _running_counts(choices[0]) if len(choices) == 1 else None
    trusted = None
    impossible = _impossible(exchange, server, steps)
    if impossible is not None:
        warnings.add(impossible)
        trusted = local if local is not None else (steps[-1] if steps else None)
    if _too_few(exchange, server):
        warnings.add("usage_below_chunks")
    output, source = _chosen(server, told, local)
    if trusted is not None:
        output, source = trusted, LOCAL if local is not None else USAGE_STEPS
    per_event = tuple(tokens_per_event(choice, steps if impossible else None, bool(impossible)) for choice in choices)
    hidden, visible = _hidden(exchange, output)
    if hidden:
        warnings.add("hidden_reasoning")
    if exchange.outcome == "ok" and exchange.asked.stream:
        if any(bundled_first(tokens) for tokens in per_event):
            warnings.add("first_chunk_bundled")
        if (
            single_arrival(exchange)
            and not _told_before(choices)
            and _several(exchange, visible if hidden and visible is not None else output)
        ):
            warnings.add("stream_not_incremental")
    return TokenCounts(
        output_tokens=output,
        source=source,
        server=server,
        local=local,
        trusted=trusted,
        reasoning=exchange.reasoning_tokens,
        visible=visible,
        hidden_reasoning=hidden,
        per_choice=_per_choice(choices, output, by_choice if source == LOCAL else None),
        per_event=per_event,
        warnings=frozenset(warnings),
    )


def _told(choice: Choice) -> int | None:
    """The tokens that a choice's logprobs (or ids) list, None where some of its text came without: then they are not all."""
    unlisted = len(choice.reads) - len(choice.token_counts)
    return None if unlisted > choice.silent_tokens else choice.logprob_tokens


def _too_few(exchange: Exchange, server: int | None) -> bool:
    """Whether far fewer tokens were counted than chunks of text came: a proxy that lost the count, or one that cuts text anew."""
    events = sum(len(choice.reads) for choice in exchange.choices)
    return server is not None and events >= MANY_EVENTS and 2 * server < events


def _chosen(server: int | None, told: Sequence[int | None], local: int | None) -> tuple[int | None, str | None]:
    if server is not None:
        return server, USAGE
    known = [count for count in told if count is not None]
    if known and len(known) == len(told):
        return sum(known), LOGPROBS
    return (local, LOCAL) if local is not None else (None, None)


def _server_count(exchange: Exchange, warnings: set[str]) -> int | None:
    """Completion tokens of all choices. Servers differ for n > 1: a total on its own chunk, a count on each choice's."""
    choices = [choice for choice in exchange.choices if choice.usage_now is not None]
    total = exchange.completion_tokens
    if len(choices) > 1 and not exchange.usage_alone:
        return sum(choice.usage_now or 0 for choice in choices)
    events = [len(choice.reads) for choice in exchange.choices]
    if total and len(events) > 1 and total < sum(events) and all(count == total for count in events):
        warnings.add("usage_counts_one_choice")  # llama.cpp
        return total * len(events)
    return None if total == 0 and any(events) else total  # text came: a count of zero was never filled in


def _local(choices: Sequence[Choice], tokenizer: Tokenizer | None) -> list[int] | None:
    if tokenizer is None:
        return None
    channels = (REASONING, CONTENT, REFUSAL, TOOL)
    texts = [[choice.text_of(channel) for channel in channels] for choice in choices]
    return [sum(tokenizer.count(text) for text in of_choice if text) for of_choice in texts]


def _running_counts(choice: Choice) -> list[int] | None:
    """If the usage told with each chunk is a sum of running counts, those counts (its steps), else None.

    A count that grows by 1, 2, 3, … per chunk is such a sum: its steps are the count that was meant.
    """
    if len(choice.cumulative) < 2 or len(choice.cumulative) != len(choice.reads):
        return None
    told = list(choice.cumulative.values())  # events are told in their order
    steps = list(map(sub, told, [0, *told[:-1]]))
    growing = all(later > earlier for earlier, later in itertools.pairwise(steps))
    return steps if steps[0] >= 1 and growing else None


def _impossible(exchange: Exchange, server: int | None, steps: list[int] | None) -> str | None:
    """The name of what is wrong with the usage, None if it can be."""
    if server is None:
        return None
    maximum = exchange.asked.max_tokens
    limited = server - (exchange.reasoning_tokens or 0) if exchange.reasoning_apart else server
    if maximum is not None and limited > maximum * max(exchange.asked.n, len(exchange.choices), 1):
        return "usage_exceeds_max_tokens"
    regular = steps is not None and steps == list(range(1, len(steps) + 1))
    if regular and steps is not None and len(steps) >= SHORTEST_PATTERN:
        return "usage_cumulative_sum"
    return None


def tokens_per_event(
    choice: Choice, steps: list[int] | None = None, impossible: bool = False
) -> tuple[int, ...] | None:
    """How many tokens each output event held: by logprobs or token ids, else by usage told with each chunk; else None.

    `steps`: the running counts behind usage that sums them up. `impossible`: the usage itself is not to be believed.
    """
    events = len(choice.reads)
    if not events:
        return None
    if len(choice.token_counts) == events:
        return tuple(choice.token_counts.values())
    if len(choice.cumulative) != events:
        return None
    if steps is None and impossible:
        return None
    counts = steps if steps is not None else list(choice.cumulative.values())
    before = [choice.usage_before or 0 if steps is None else 0, *counts[:-1]]
    held = tuple(map(sub, counts, before))
    if min(held) < 0 or held[0] < 1 or (events > 1 and not any(held[1:])):
        return None
    return held


def bundled_first(tokens: Sequence[int] | None) -> bool:
    """Whether the first chunk held more tokens than any later one: its tokens cost no time that could be seen."""
    return tokens is not None and len(tokens) > 1 and tokens[0] > max(tokens[1:])


def single_arrival(exchange: Exchange) -> bool:
    """Whether all output came in one read."""
    reads = {read for choice in exchange.choices if choice.reads for read in (choice.reads[0], choice.reads[-1])}
    return len(reads) == 1


def _told_before(choices: Sequence[Choice]) -> bool:
    """Whether tokens were counted before any text came: the stream moved, only its text was held back."""
    return any(choice.reads and choice.usage_before for choice in choices)


def _several(exchange: Exchange, output: int | None) -> bool:
    """Whether the answer is known to hold more than one token a choice."""
    choices = [choice for choice in exchange.choices if choice.reads]
    events = sum(len(choice.reads) for choice in choices)
    return (events if output is None else output) > len(choices)


def _hidden(exchange: Exchange, output: int | None) -> tuple[bool, int | None]:
    """Whether reasoning was counted but not streamed, and how many tokens were streamed then (None: not known).

    More events than visible tokens: the reasoning was streamed after all, inside the content. A summary of it is none of the
    tokens counted. Sealed reasoning that no count tells of is somewhere in the output tokens.
    """
    reasoning = exchange.reasoning_tokens
    seen = any(choice.has(REASONING) for choice in exchange.choices) and not exchange.summarised_reasoning
    if output is None or seen or reasoning == 0:
        return False, None
    if reasoning is None:
        return exchange.sealed_reasoning, None
    visible = output - reasoning
    events = sum(_outside_reasoning(choice) for choice in exchange.choices)
    if visible < 0 or events > visible:
        return False, None
    return True, visible


def _outside_reasoning(choice: Choice) -> int:
    """How many output events hold something else than reasoning."""
    if not choice.has(REASONING):
        return len(choice.reads)
    return sum(choice.channel_at(event) != REASONING for event in range(len(choice.reads)))


def _per_choice(choices: Sequence[Choice], output: int | None, local: list[int] | None) -> tuple[int | None, ...]:
    """Each choice's own count: told (logprobs, its usage), counted, or the total where the events show how it divides."""
    if len(choices) == 1:
        return (output,)
    if local is not None:
        return tuple(local)
    if choices and all(_told(choice) is not None for choice in choices):
        return tuple(_told(choice) for choice in choices)
    if choices and all(choice.usage_now is not None for choice in choices):
        return tuple(choice.usage_now for choice in choices)
    events = [len(choice.reads) for choice in choices]
    if output is not None and output == sum(events):
        return tuple(events)
    if output is not None and len(set(events)) == 1 and output % len(events) == 0:
        return tuple(output // len(events) for _ in events)
    return tuple(None for _ in choices)
