"""The fast path: most events of a stream differ from one another in nothing but a piece of text.

Lives here: learning the constant bytes around that text from an event that was read in full, and recognising them again.
Must not live here: any meaning of its own. A template is used only if reading its bytes around another text was seen to give
the same document but for that text, and it reads only text that cannot end a string or a line; all else is read in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import msgspec

PROBE = "\u2042probe"  # a text that no document holds by chance
TEMPLATES = 4  # kept at a time: the choices of one answer take turns
LONGEST = 16 * 1024  # an event longer than this is read in full

_read_string = msgspec.json.Decoder(str)
_read_strings = msgspec.json.Decoder(list[str])
_read_any = msgspec.json.Decoder()


class Template:
    """One read = one event: `starts[n]` is what a read of n bytes begins with (chunk size included; (): no text would fit),
    `spans[n]` where its text stands, `suffix` its end."""

    __slots__ = ("channel", "choice", "chunked", "prefix", "spans", "starts", "suffix", "suffix_length", "upper")

    def __init__(self, prefix: bytes, suffix: bytes, choice: int, channel: str) -> None:
        self.prefix = prefix
        self.suffix = suffix
        self.suffix_length = len(suffix)
        self.choice = choice
        self.channel = channel
        self.chunked = False
        self.upper = False
        self.starts: dict[int, bytes | tuple[()]] = {}
        self.spans: dict[int, slice] = {}

    def start(self, length: int) -> bytes | tuple[()]:
        """What a read of that many bytes has to begin with, in the form of `bytes.startswith`: () for nothing fits."""
        if length in self.starts:
            return self.starts[length]
        found: bytes | tuple[()] = ()
        if not self.chunked:
            found = self.prefix
        elif line := _size_line(length, self.upper):
            found = line + self.prefix
        if length <= len(found) + self.suffix_length or length > LONGEST:
            found = ()
        self.starts[length] = found
        self.spans[length] = slice(len(found), -self.suffix_length)
        return found

    def text(self, data: bytes) -> str | None:
        """The text that the read `data` adds, if it is this template around a plain piece of text; else None."""
        start = self.starts.get(len(data)) or self.start(len(data))
        if not data.startswith(start) or not data.endswith(self.suffix):
            return None
        return _string(data[len(start) : -self.suffix_length])

    def texts(self, reads: Sequence[bytes]) -> list[str]:
        """What `text` would find in the first reads, up to the first that is not this template.

        Step by step for all of them, not read by read: the loops run in C, at half the cost.
        """
        lengths = list(map(len, reads))
        for length in set(lengths).difference(self.starts):
            self.start(length)
        begin = list(map(bytes.startswith, reads, map(self.starts.__getitem__, lengths)))
        reads = reads[: _leading(begin)]
        reads = reads[: _leading(list(map(bytes.endswith, reads, repeat(self.suffix))))]
        return _strings([data[span] for data, span in zip(reads, map(self.spans.__getitem__, lengths), strict=False)])


@lru_cache(maxsize=4096)
def _size_line(length: int, upper: bool) -> bytes | None:
    """The size line of the one chunk that a read of that many bytes holds; None where there is no such chunk."""
    found = None
    for digits in range(1, 6):
        size = length - digits - 4  # size line, its end, the chunk's end
        text = b"%X" % size if upper else b"%x" % size
        if size > 0 and len(text) == digits:
            found = text + b"\r\n"
    return found


def _leading(flags: list[bool]) -> int:
    """How many of them are true before the first that is not."""
    return flags.index(False) if False in flags else len(flags)


def _string(raw: bytes) -> str | None:
    """The text of a JSON string without its quotes, None where it is none: a raw quote, a control character, half a surrogate."""
    try:
        return _read_string.decode(b'"' + raw + b'"')
    except msgspec.DecodeError:
        return None


def _strings(raw: list[bytes]) -> list[str]:
    """The texts of JSON strings without their quotes, up to the first that is none.

    They are read as one list, a line each. No string holds a line end, so each line begins outside of any, with a quote:
    each gives an element at least, and as many elements as lines can only be these texts, however hostile.
    """
    try:
        found = _read_strings.decode(b'["' + b'",\n"'.join(raw) + b'"]')
    except msgspec.DecodeError:
        found = []
    if len(found) == len(raw):
        return found
    alone = [_string(text) for text in raw]
    return [text for text in alone[: _leading([text is not None for text in alone])] if text is not None]


def learn(data: bytes, body: bytes, document: bytes, plain: tuple[tuple[str | int, ...], int, str]) -> Template | None:
    """The template of an event that one read held whole, or None if its text cannot be told from what stands around it.

    `data`: the read; `body`: its body bytes; `document`: the JSON in it; `plain`: where in the document the one text
    stands, its choice and its channel.
    """
    path, choice, channel = plain
    try:
        original = _read_any.decode(document)
    except msgspec.DecodeError:
        return None  # half surrogates, NaN: readable, but no model for others
    holder = _holder(original, path)
    if holder is None:
        return None
    text = holder[path[-1]]
    quoted = b'"' + text.encode("utf-8", "replace") + b'"'
    if body.count(document) != 1 or document.count(quoted) != 1 or body.count(b"\ndata:") > 1:
        return None
    before, _, after = document.partition(quoted)
    probe = _read_any.decode(before + b'"' + PROBE.encode() + b'"' + after)
    place = _holder(probe, path)
    if place is None or place.get(path[-1]) != PROBE:
        return None
    place[path[-1]] = text
    if probe != original:
        return None
    head, _, tail = body.partition(document)
    template = Template(head + before + b'"', b'"' + after + tail, choice, channel)
    if data != body:
        template.chunked = True
        size = data.partition(b"\r\n")[0]
        template.upper = size != size.lower()
        template.suffix += b"\r\n"
        template.suffix_length += 2
    return template if template.text(data) == text else None


def _holder(document: Any, path: tuple[str | int, ...]) -> Any:
    """The object that holds the last key of `path`, None where the path does not lead to one."""
    for step in path[:-1]:
        if isinstance(step, int):
            if not isinstance(document, list) or len(document) <= step:
                return None
            document = document[step]
        else:
            document = document.get(step) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else None
