"""Offset intervals hold the true offset, whatever the path's asymmetry; drift empties them and is said."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.server.clock_bounds import Pair, intersect, on_client_clock, remainder_ns, windowed

way = st.integers(0, 10**8)


@settings(max_examples=150, deadline=None)
@given(st.integers(-(10**12), 10**12), st.lists(st.tuples(way, way, way, way), min_size=1, max_size=20))
def test_the_true_offset_is_never_excluded(offset: int, trips: list[tuple[int, int, int, int]]) -> None:
    pairs = [
        Pair(client_sent_ns=t, server_received_ns=t + out + offset, server_sent_ns=t + out + work + offset,
             client_received_ns=t + out + work + back)
        for t, out, work, back in trips
    ]  # fmt: skip
    found = intersect(pairs)
    assert found.low_ns is not None and found.high_ns is not None and found.low_ns <= offset <= found.high_ns
    assert not found.drifted and found.impossible == 0
    at = on_client_clock(12345 + offset, found)
    assert at is not None and at[0] <= 12345 <= at[1]
    assert found.width_ns == min(p.server_received_ns - p.client_sent_ns for p in pairs) - max(
        p.server_sent_ns - p.client_received_ns for p in pairs
    )


def test_drift_empties_the_intersection_and_windows_mend_it() -> None:
    near = Pair(client_sent_ns=0, server_received_ns=10, server_sent_ns=11, client_received_ns=21)
    far = Pair(client_sent_ns=1000, server_received_ns=1510, server_sent_ns=1511, client_received_ns=1021)
    assert intersect([near, far]).drifted and on_client_clock(0, intersect([near, far])) is None
    assert [w.drifted for w in windowed([near, far], 500)] == [False, False]


def test_a_pair_that_contradicts_itself_is_counted_and_left_out() -> None:
    stepped = Pair(client_sent_ns=0, server_received_ns=10, server_sent_ns=900, client_received_ns=21)
    assert intersect([stepped]).impossible == 1 and intersect([stepped]).low_ns is None


def test_a_negative_remainder_is_said_and_kept() -> None:
    assert remainder_ns(5, 9) == (-4, "negative_remainder") and remainder_ns(9, 5) == (4, None)
