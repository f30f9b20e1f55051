"""The draws of many streams together, bit by bit those of `Stream`: a simulator's millions of requests.

Lives here: the first two uniforms of stream 0, 1, 2, … and what needs no more of them. Must not live here: what a single request
draws (streams.py); this module needs numpy, which load workers do without.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from itertools import count, repeat

import numpy as np
from numpy.typing import NDArray

from phasemeter.workload.lengths import Z95, Lengths, sample
from phasemeter.workload.streams import Stream

FIRST, MOST = 16, 4096  # streams drawn together: few at first, for short runs
_GOLDEN = 0x9E3779B97F4A7C15
_STEPS = (np.uint64(_GOLDEN), np.uint64(2 * _GOLDEN & (1 << 64) - 1))


def uniforms(seed: int, name: str) -> Iterator[tuple[float, float]]:
    """The first two `random()` of Stream(seed, name, index), for index 0, 1, …"""
    head, first, many = hashlib.blake2b(f"{seed}\x1f{name}\x1f".encode(), digest_size=8), 0, FIRST
    while True:
        digests = []
        for index in range(first, first + many):
            whole = head.copy()
            whole.update(b"%d" % index)
            digests.append(whole.digest())
        states = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)
        yield from zip(_random(states + _STEPS[0]), _random(states + _STEPS[1]), strict=True)
        first += many
        many = min(2 * many, MOST)


def normals(seed: int, name: str) -> Iterator[float]:
    """`Stream.normal` of stream 0, 1, …"""
    log, sqrt, cos, turn = (
        math.log,
        math.sqrt,
        math.cos,
        2.0 * math.pi,
    )  # not numpy's: their last bit depends on the machine
    for first, second in uniforms(seed, name):
        yield sqrt(-2.0 * log(first)) * cos(turn * second)


def samples(lengths: Lengths, seed: int, name: str) -> Iterator[int]:
    """`lengths.sample` of stream 0, 1, …"""
    a, b = lengths.a, lengths.b
    if lengths.kind == "fixed":
        return repeat(int(a))
    if lengths.kind == "normal":
        return (max(1, round(a + b * drawn)) for drawn in normals(seed, name))
    if lengths.kind == "lognormal":
        sigma, exp = math.log(b / a) / Z95, math.exp
        return (max(1, round(a * exp(sigma * drawn))) for drawn in normals(seed, name))
    streams = Stream.family(seed, name)
    return (sample(lengths, streams(index)) for index in count())


def exponentials(seed: int, name: str) -> Iterator[float]:
    """`Stream.exponential` of stream 0, 1, …"""
    for first, _ in uniforms(seed, name):
        yield -math.log(first)


def _random(value: NDArray[np.uint64]) -> list[float]:
    """`mix`, and what `random` makes of it."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = value ^ (value >> np.uint64(31))
    found: list[float] = (((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52).tolist()
    return found
