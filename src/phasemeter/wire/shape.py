"""Events that differ in more than one text: a running usage, logprobs, timings, an id or a time of each chunk's own.

Lives here: which places of a document may differ without changing what is read but for text and a token count, and the pattern
around them. Must not live here: what is done with a match (follow). As in `template`, a pattern fits only documents that
reading in full would take in the same way; all else is read in full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from phasemeter.wire.events import TIMING_KEYS, Told

Path = tuple[str | int, ...]

TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][-+0-9.eE]*|true|false|null|[{}\[\],:]', re.DOTALL)
NUMBER: Final = rb"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,2})?"
COUNT: Final = rb"([1-9][0-9]{0,14})"
STRING: Final = rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
TEXT: Final = rb'"([^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*)"'
BYTE: Final = rb"(?:0|[1-9][0-9]{0,6})"
BYTES: Final = BYTE + rb"(?:, ?" + BYTE + rb")*"
IDLE: Final = frozenset({"id", "created", "created_at", "obfuscation", "sequence_number"})  # read once, or never
RUNNING: Final = frozenset({"total_tokens", "reasoning_tokens"})  # of a usage: the last one told counts
LONGEST: Final = 16 * 1024

_read_string = msgspec.json.Decoder(str)


class Leaf(NamedTuple):
    """A scalar of a document, or (`key`) the name of one: where it stands, and its bytes' span."""

    path: Path
    start: int
    end: int
    key: bool


class Shape:
    """One read = one event that a pattern matches whole. `told` is what each such event says beside its text.

    `last_wins`: the last event of a row has more to say (timings, the whole usage). `size`, `text`, `count`, `document` are
    groups of the pattern (0: none), `fixed` are groups whose bytes have to stay what they are (`held`).
    """

    __slots__ = ("channel", "choice", "count", "document", "fixed", "fullmatch", "held", "last_wins", "named", "place", "size", "text",
                 "told")  # fmt: skip

    def __init__(self, place: Path, choice: int, channel: str, told: Told) -> None:
        self.place = place
        self.choice = choice
        self.channel = channel
        self.told = told
        self.fullmatch = re.compile(b"").fullmatch
        self.size = self.text = self.count = self.document = 0
        self.fixed: tuple[int, ...] = ()
        self.held: bytes | tuple[bytes, ...] | None = None  # as `Match.group` gives one group, or several
        self.last_wins = False
        self.named = False  # it holds the response's id: fit for use once that is known

    def take(self, reads: Sequence[bytes], number: int) -> tuple[list[str], list[int], re.Match[bytes] | None]:
        """The texts, and the counts, of the reads from `number` on that each hold one such event, up to the first that does
        not; and the match of the last one."""
        fullmatch, size, count, text_group = self.fullmatch, self.size, self.count, self.text
        fixed, held = self.fixed, self.held
        texts: list[str] = []
        counts: list[int] = []
        last = None
        for data in reads[number:]:
            found = fullmatch(data)
            if found is None or len(data) > LONGEST:
                break
            if size and int(found[1], 16) != len(data) - len(found[1]) - 4:
                break
            if fixed and found.group(*fixed) != held:
                break
            text = text_in(data, found[text_group])
            if text is None:
                break
            if count:
                counts.append(int(found[count]))
            texts.append(text)
            last = found
        return texts, counts, last

    def of(self, data: bytes) -> Shape | None:
        """This shape for another stream, of which `data` is an event; None where it does not fit."""
        found = self.fullmatch(data)
        if found is None:
            return None
        other = Shape(self.place, self.choice, self.channel, self.told)
        for name in ("fullmatch", "size", "text", "count", "document", "fixed", "last_wins", "named"):
            setattr(other, name, getattr(self, name))
        other.hold(found)
        return other if fits(other, data) else None

    def hold(self, found: re.Match[bytes]) -> None:
        """Take what stands in the fixed groups for what has to stand there."""
        self.held = found.group(*self.fixed) if self.fixed else None


def text_in(data: bytes, raw: bytes) -> str | None:
    """The text of a match, None where it needs to be read in full (or is empty, or `data` is no UTF-8)."""
    try:
        if not data.isascii():
            data.decode()
        text = raw.decode()
        if "\\" in text:
            text = _read_string.decode(f'"{text}"')
        elif not text.isprintable():
            return None
    except (UnicodeDecodeError, msgspec.DecodeError):
        return None
    return text or None


def fits(shape: Shape, data: bytes) -> bool:
    return bool(shape.take([data], 0)[0])


def leaves(document: bytes) -> Iterator[Leaf]:
    """Every scalar and every name of a JSON document, in the order of its bytes. The document is known to be well formed."""
    frames: list[
        list[str | int | None]
    ] = []  # the name or number of the current element, one a container; None: name next
    objects: list[bool] = []
    for token in TOKEN.finditer(document):
        first = token.group()[0]
        if first in b"{[":
            objects.append(first == ord("{"))
            frames.append([None if objects[-1] else 0])
        elif first in b"}]":
            objects.pop()
            frames.pop()
        elif first == ord(","):
            frames[-1][0] = None if objects[-1] else int(frames[-1][0] or 0) + 1
        elif first != ord(":"):
            key = bool(objects) and objects[-1] and frames[-1][0] is None
            if key:
                frames[-1][0] = _read_string.decode(token.group())
            path = tuple(frame[0] for frame in frames if frame[0] is not None)
            yield Leaf(path, token.start(), token.end(), key)


def shape_of(data: bytes, body: bytes, document: bytes, place: tuple[Path, int, str], told: Told) -> Shape | None:
    """The shape of the event that the read `data` held whole, None where one would not be safe.

    `place`: where its text stands, the choice, the channel.
    """
    if len(data) > LONGEST or body.count(document) != 1 or body.count(b"\ndata:") > 1:
        return None
    shape = Shape(*place, told)
    head, _, tail = body.partition(document)
    parts: list[bytes] = []
    groups = 0
    if data != body:
        groups = shape.size = 1
        parts.append(rb"([0-9a-fA-F]{1,5})\r\n")
        tail += b"\r\n"
    groups += 1
    shape.document = groups
    parts += [re.escape(head), b"("]
    at = 0
    seen: set[Path] = set()
    try:
        for leaf in leaves(document):
            if leaf.key and leaf.path in seen:
                return None  # a name given twice
            if leaf.key:
                seen.add(leaf.path)
            hole = _hole(shape, leaf, document)
            if hole is None:
                continue
            if hole == b"" or leaf.start < at:  # inside a list of bytes that one hole stands for
                at = max(at, leaf.end)
                continue
            parts += [re.escape(document[at : leaf.start]), hole]
            groups = _number_groups(shape, hole, groups)
            at = leaf.end
    except msgspec.DecodeError:
        return None
    parts += [re.escape(document[at:]), b")", re.escape(tail)]
    if not shape.text or bool(shape.count) != told.counts:
        return None
    shape.fullmatch = re.compile(b"".join(parts)).fullmatch
    found = shape.fullmatch(data)
    if found is None:
        return None
    shape.hold(found)
    return shape if fits(shape, data) else None


def _number_groups(shape: Shape, hole: bytes, groups: int) -> int:
    """Notes which group of the pattern the hole is, if it is one."""
    if hole is TEXT:
        shape.text = groups + 1
    elif hole is COUNT:
        shape.count = groups + 1
    elif hole.startswith(b"(") and not hole.startswith(b"(?"):
        shape.fixed += (groups + 1,)
    else:
        return groups
    return groups + 1


def _hole(shape: Shape, leaf: Leaf, document: bytes) -> bytes | None:
    """The pattern that stands for a scalar which may differ, None for what has to stay as it is; b"": a hole before covers it."""
    path, first = leaf.path, document[leaf.start]
    text, number = first == ord('"'), first in b"-0123456789"
    if leaf.key:
        dynamic = path[:2] == ("choices", 0) and path[2:4] == ("logprobs", "top_logprobs") and len(path) == 6
        return STRING if dynamic else None
    if path == shape.place:
        return TEXT if text else None
    if not text and not number:
        return None
    if path[0] in IDLE and len(path) == 1:
        shape.named = shape.named or path[0] == "id"
        return STRING if text else NUMBER
    if path[0] in TIMING_KEYS and number:
        shape.last_wins = True
        return NUMBER
    if path[0] == "usage" and number:
        shape.last_wins = True
        if path == ("usage", "completion_tokens"):
            return COUNT
        return NUMBER if path[-1] in RUNNING else b"(" + NUMBER + b")"
    if path[:3] == ("choices", 0, "logprobs") or path[0] == "logprobs":
        if path[-2:-1] == ("bytes",) and number:
            return BYTES if path[-1] == 0 else b""
        return STRING if text else NUMBER
    if path[:3] == ("choices", 0, "token_ids") and number:
        return NUMBER
    return None
