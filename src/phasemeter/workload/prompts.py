"""Prompts of an asked token length, made from a seed: no download, no tokenizer needed.

Lives here: generated text, token ids, shared prefixes, and the length model that the server's own counts correct. Must
not live here: the request
around a prompt (bodies.py), prompts read from a file (prompt_files.py).

Text is unique by default: its first words spell the request's number (so that no prefix cache helps), the rest comes from a hash of
(seed, salt, request). What a request's text is depends on nothing else: not on a worker, not on the order of making.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from phasemeter.errors import UserError
from phasemeter.records.request import PlannedRequest
from phasemeter.workload.length_model import LengthModel
from phasemeter.workload.streams import stable_hash
from phasemeter.workload.words import WORDS

HEAD = 4  # words that spell the request's number
STRIDE = 0x9E3779B1  # the golden ratio's share of 2^32, odd (Knuth, The Art of Computer Programming 3, section 6.4)
PHASE_BITS = {"measured": 0, "warmup": 1 << 31, "probe": 1 << 30}


class Tokenizer(Protocol):
    """What is asked of a tokenizer, special tokens left out."""

    def encode(self, text: str) -> Sequence[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class PromptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How prompts are made. `salt` sets repeated runs of one seed apart, so that the second finds no warm prefix cache."""

    seed: int = 0
    salt: str = ""
    block_tokens: int = 512  # what one of a trace's hash_ids stands for (Mooncake: 512)
    token_ids: bool = False
    token_id_range: tuple[int, int] = (200, 30_000)  # drawn ids; inside nearly every vocabulary, above its special ids


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt: text, or token ids. `asked_tokens` includes the shared prefix; `text_tokens` is a tokenizer's count,
    where one was given."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    asked_tokens: int | None = None
    words: int | None = None
    text_tokens: int | None = None


def _bytes(n: int, *key: str | int) -> bytes:
    """n bytes from a key; the first m of them are the same for every n >= m (an extendable-output function)."""
    return hashlib.shake_128("\x1f".join(map(str, key)).encode()).digest(n)


def _text(data: bytes) -> str:
    return " ".join(map(WORDS.__getitem__, data))


def _head(options: PromptOptions, name: str, number: int) -> bytes:
    """The number, lowest byte first, under a mask of the run: two numbers differ within 4 words, neighbours in the first.

    Times an odd number, which keeps numbers apart and makes all four words change: words that stay the same over a run would put
    their own cost in tokens on each of its prompts.
    """
    mask = stable_hash(options.seed, options.salt, name) & 0xFFFFFFFF
    return ((number * STRIDE ^ mask) & 0xFFFFFFFF).to_bytes(HEAD, "little")


def _number(planned: PlannedRequest) -> int:
    return planned.index | PHASE_BITS[planned.phase]


def unique_words(options: PromptOptions, number: int, words: int) -> bytes:
    """The words of request `number` as bytes (one a word): its number first, then what (seed, salt, number) gives."""
    rest = _bytes(max(0, words - HEAD), options.seed, options.salt, "text", number)
    return (_head(options, "text", number) + rest)[:words]


def group_words(options: PromptOptions, group: str, words: int) -> bytes:
    """The words that the requests of a prefix group share."""
    return _bytes(words, options.seed, options.salt, "prefix", group)


def block_words(options: PromptOptions, hash_id: int, words: int) -> bytes:
    """The words of one block of a trace: equal ids, equal text; all 64 bits of an id count."""
    return _bytes(words, options.seed, options.salt, "block", hash_id)


def balanced_text(options: PromptOptions, words: int) -> str:
    """`words` different words (at most 256), drawn without replacement: their mean cost in tokens is near that of all of them."""
    data = _bytes(4 * len(WORDS), options.seed, options.salt, "balanced")
    order = sorted(range(len(WORDS)), key=lambda word: data[4 * word : 4 * word + 4])
    return _text(bytes(order[:words]))


def prompt_for(
    planned: PlannedRequest, options: PromptOptions, model: LengthModel, tokenizer: Tokenizer | None = None
) -> Prompt:
    """The prompt of one planned request: `input_tokens` long, its shared prefix (group or blocks) included.

    With a tokenizer the text is adjusted until it encodes to that length, and what it really encodes to is recorded.
    Without one, words are
    counted by `model`. Raises UserError when the plan says no length.
    """
    if planned.input_tokens is None:
        raise UserError(f"request {planned.request_id}: no input length: give --input-tokens, --prompts or --trace")
    if options.token_ids:
        return _id_prompt(planned, options)
    if tokenizer is not None:
        return _fitted_prompt(planned, options, tokenizer)
    words = _words_of(planned, options, model)
    return Prompt(text=_text(words), asked_tokens=planned.input_tokens, words=len(words))


def _words_of(planned: PlannedRequest, options: PromptOptions, model: LengthModel) -> bytes:
    total = model.words_for(planned.input_tokens or 1)
    if planned.hash_ids:
        return _block_prompt(planned, options, total, model)
    shared = 0
    if planned.prefix_group is not None and planned.prefix_tokens:
        shared = min(model.words_for(planned.prefix_tokens, template=False), total)
    prefix = group_words(options, planned.prefix_group or "", shared)
    return prefix + unique_words(options, _number(planned), total - shared)


def _block_prompt(planned: PlannedRequest, options: PromptOptions, total: int, model: LengthModel) -> bytes:
    """A trace's blocks in turn: a full block holds the same words wherever it stands, the last one is cut to the length."""
    per_block = model.words_for(options.block_tokens, template=False)
    text = bytearray()
    for hash_id in planned.hash_ids:
        text += block_words(options, hash_id, min(per_block, max(0, total - len(text))))
    if len(text) < total:  # fewer ids than the length needs: the rest is the request's own
        text += unique_words(options, _number(planned), total - len(text))
    return bytes(text)


def _id_prompt(planned: PlannedRequest, options: PromptOptions) -> Prompt:
    """Token ids: each draws 8 bytes of the words' sources, so that prefixes are shared exactly as in text."""
    low, high = options.token_id_range
    wanted = planned.input_tokens or 1
    wide = PromptOptions(seed=options.seed, salt=options.salt + "/ids", block_tokens=options.block_tokens)
    shared = min(planned.prefix_tokens or 0, wanted) if planned.prefix_group is not None else 0
    ids: list[int] = []
    if planned.hash_ids:
        for hash_id in planned.hash_ids:
            take = min(options.block_tokens, wanted - len(ids))
            ids += _ids(_bytes(4 * take, wide.seed, wide.salt, "block", hash_id), low, high)
    elif shared:
        ids = _ids(_bytes(4 * shared, wide.seed, wide.salt, "prefix", planned.prefix_group or ""), low, high)
    own = _bytes(4 * (wanted - len(ids)), wide.seed, wide.salt, "text", _number(planned))
    ids += [*_number_ids(wide, _number(planned), low, high), *_ids(own, low, high)][: wanted - len(ids)]
    return Prompt(token_ids=tuple(ids), asked_tokens=wanted)


def _ids(data: bytes, low: int, high: int) -> list[int]:
    return [low + int.from_bytes(data[at : at + 4], "little") * (high - low) // 2**32 for at in range(0, len(data), 4)]


def _number_ids(options: PromptOptions, number: int, low: int, high: int) -> list[int]:
    """The request's number in base (high − low), lowest digit first: distinct requests differ within these ids."""
    width, value, digits = high - low, int.from_bytes(_head(options, "text", number), "little"), []
    for _ in range(8):
        value, digit = divmod(value, width)
        digits.append(low + digit)
        if not value:
            break
    return digits


def _fitted_prompt(planned: PlannedRequest, options: PromptOptions, tokenizer: Tokenizer) -> Prompt:
    wanted, number, prefix = planned.input_tokens or 1, _number(planned), ""
    if planned.hash_ids:
        blocks = _words_of(planned, options, LengthModel())
        text = fit(_text(blocks), wanted, tokenizer, lambda missing: _filler(options, number, missing))
        return _recorded(text, wanted, tokenizer)
    if planned.prefix_group is not None and planned.prefix_tokens:
        group, shared = planned.prefix_group, min(planned.prefix_tokens, wanted)
        more = _text(group_words(options, group, 2 * shared))
        prefix = fit(
            _text(group_words(options, group, shared)), shared, tokenizer, lambda missing: more[-4 * missing :]
        )
    own = max(0, wanted - (planned.prefix_tokens or 0 if prefix else 0))
    text = prefix + (" " if prefix and own else "") + _text(unique_words(options, number, own))
    return _recorded(fit(text, wanted, tokenizer, lambda missing: _filler(options, number, missing)), wanted, tokenizer)


def _filler(options: PromptOptions, number: int, missing: int) -> str:
    return "".join(" " + WORDS[byte] for byte in _bytes(missing, options.seed, options.salt, "filler", number))


def _recorded(text: str, wanted: int, tokenizer: Tokenizer) -> Prompt:
    return Prompt(text=text, asked_tokens=wanted, words=text.count(" ") + 1, text_tokens=len(tokenizer.encode(text)))


def fit(text: str, wanted: int, tokenizer: Tokenizer, more: Callable[[int], str]) -> str:
    """`text` changed at its end until it encodes to `wanted` tokens; the nearest seen where none does.

    Decoding drawn ids and encoding the text again gives other ids and another count (vllm-project/vllm#24937), so what
    counts is the encoding
    of the text that is sent. `more(n)` gives text worth about n tokens.
    """
    best, best_miss, cut = text, None, 0
    for _ in range(24):
        ids = tokenizer.encode(text)
        miss = abs(len(ids) - wanted)
        if best_miss is None or miss < best_miss:
            best, best_miss = text, miss
        if miss == 0:
            return text
        if len(ids) < wanted:
            text += more(wanted - len(ids))
            continue
        shorter = tokenizer.decode(ids[: wanted - cut])
        cut += shorter == text or cut > 0  # cutting there changes nothing or grew again: cut one more
        text = shorter
    return best
