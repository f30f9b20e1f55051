"""Random numbers that depend on (seed, name, index) and on nothing else.

Lives here: a small counter-based generator. Every request draws from a stream of its own, so a schedule is the same however
many workers share it, in whatever order they draw, on any machine and Python. Must not live here: what is drawn.

The step is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014); a stream's start is
a hash of its name, so that neighbouring indices share nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def stable_hash(*parts: str | int) -> int:
    """64 bits from the parts: equal on every machine and in every process (unlike `hash`)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def mix(value: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit integers in which every input bit moves every output bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Stream:
    """Draws for one (seed, name, index). Two streams with different keys are unrelated."""

    __slots__ = ("_state",)

    def __init__(self, seed: int, name: str, index: int = 0) -> None:
        self._state = stable_hash(seed, name, index)

    @classmethod
    def family(cls, seed: int, name: str) -> Callable[[int], Stream]:
        """index -> Stream(seed, name, index), the part they share hashed once."""
        head = hashlib.blake2b(f"{seed}\x1f{name}\x1f".encode(), digest_size=8)

        def at(index: int) -> Stream:
            whole = head.copy()
            whole.update(b"%d" % index)
            stream = cls.__new__(cls)
            stream._state = int.from_bytes(whole.digest(), "big")
            return stream

        return at

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        return mix(self._state)

    def random(self) -> float:
        """Uniform in (0, 1), both ends excluded: its logarithm is finite and no gap is exactly zero.

        52 bits and a half: with 53 the largest draw would round to 1.
        """
        return ((self.bits() >> 12) + 0.5) * 2.0**-52

    def below(self, limit: int) -> int:
        """A whole number in [0, limit), each equally likely (up to limit/2^64)."""
        return (self.bits() * limit) >> 64

    def exponential(self) -> float:
        """Mean 1."""
        return -math.log(self.random())

    def normal(self) -> float:
        """Mean 0, standard deviation 1 (Box and Muller 1958)."""
        return math.sqrt(-2.0 * math.log(self.random())) * math.cos(2.0 * math.pi * self.random())

    def gamma(self, shape: float) -> float:
        """Mean `shape`, scale 1 (Marsaglia and Tsang, ACM TOMS 26(3), 2000; shapes below 1 by their remark in section 6)."""
        if shape < 1.0:
            boost: float = self.random() ** (1.0 / shape)
            return self.gamma(shape + 1.0) * boost
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            if v > 0.0 and math.log(self.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v
