"""What can be said about a server's clock against ours: an interval, never a guess.

Lives here: offset intervals from request/response pairs. Must not live here: shifting anything by them.
offset = server clock − client clock. A request sent at t0 and seen at t1 can't have come before it was sent, so
offset <= t1 − t0; a reply left at t2 and received at t3 gives offset >= t2 − t3. (RFC 5905 takes the middle; we keep both ends.)
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange, ns: client send and receive on the client's clock, server receive and (pre-flush) send on the server's."""

    client_sent_ns: int
    server_received_ns: int
    server_sent_ns: int
    client_received_ns: int


class OffsetBounds(msgspec.Struct, frozen=True, kw_only=True):
    """low <= server − client <= high, ns. `drifted`: the pairs contradict one another, so no one offset fits them all."""

    low_ns: int | None
    high_ns: int | None
    pairs: int
    drifted: bool = False
    impossible: int = 0  # pairs that contradict themselves: a clock stepped within them

    @property
    def width_ns(self) -> int | None:
        return None if self.low_ns is None or self.high_ns is None else self.high_ns - self.low_ns


def offset_of(pair: Pair) -> tuple[int, int]:
    """(low, high) of one pair; low > high when a clock stepped within it: reported as it is."""
    return pair.server_sent_ns - pair.client_received_ns, pair.server_received_ns - pair.client_sent_ns


def intersect(pairs: Sequence[Pair]) -> OffsetBounds:
    """The offsets that every pair allows. Empty: the clocks drifted or stepped between the pairs; window them, or fit a rate."""
    ranges = [offset_of(pair) for pair in pairs]
    possible = [(low, high) for low, high in ranges if low <= high]
    impossible = len(ranges) - len(possible)
    if not possible:
        return OffsetBounds(low_ns=None, high_ns=None, pairs=len(pairs), impossible=impossible)
    low, high = max(low for low, _ in possible), min(high for _, high in possible)
    if low > high:
        return OffsetBounds(low_ns=None, high_ns=None, pairs=len(pairs), drifted=True, impossible=impossible)
    return OffsetBounds(low_ns=low, high_ns=high, pairs=len(pairs), impossible=impossible)


def windowed(pairs: Sequence[Pair], window_ns: int) -> list[OffsetBounds]:
    """Offsets by windows of client time, for clocks that drift: each window is intersected on its own."""
    groups: dict[int, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.client_sent_ns // window_ns, []).append(pair)
    return [intersect(groups[key]) for key in sorted(groups)]


def on_client_clock(server_ns: int, offset: OffsetBounds) -> tuple[int, int] | None:
    """Where a server's instant lies on the client's clock: (earliest, latest), or None when the offset is not known."""
    if offset.low_ns is None or offset.high_ns is None:
        return None
    return server_ns - offset.high_ns, server_ns - offset.low_ns


def remainder_ns(client_ns: int, server_ns: int) -> tuple[int, str | None]:
    """A client's duration minus the server's share of it. Negative is a definition mismatch or a clock fault: said, not clamped."""
    rest = client_ns - server_ns
    return rest, None if rest >= 0 else "negative_remainder"
