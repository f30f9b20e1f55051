"""Kernel stamps land on the monotonic clock, or are refused, counted and replaced by the user's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phasemeter.metrics.receive_clock import UNCERTAINTY_NS, ReceiveClock
from phasemeter.records.capture import ClockPair, Read

OFFSET = 1_790_000_000 * 10**9
TENTH = 10**8
ODD = st.sampled_from([-20 * TENTH, -2 * 10**5, -(10**5) - 60_000, -1, 1, 40_000, 60_000, TENTH // 3, 20 * TENTH, None])


def pairs(count: int = 20, slew: float = 0.0, step_at: int | None = None, step: int = 0) -> list[ClockPair]:
    made = []
    for number in range(count):
        at = number * TENTH
        jump = step if step_at is not None and number >= step_at else 0
        made.append(ClockPair(at, OFFSET + at + round(at * slew) + jump))
    return made


@given(st.integers(0, 19 * TENTH), st.floats(-5e-4, 5e-4))
def test_a_slewed_clock_is_followed_to_the_nanosecond_or_so(at: int, slew: float) -> None:
    clock = ReceiveClock(pairs(slew=slew))
    mapped = clock.monotonic_ns(OFFSET + at + round(at * slew))
    assert mapped is not None and abs(mapped - at) <= 2 and clock.steps == []


@given(st.lists(st.tuples(st.integers(0, 19 * TENTH), st.integers(0, 10**7)), max_size=20))
def test_reads_take_the_kernels_time_and_the_lag_is_the_largest(stamps: list[tuple[int, int]]) -> None:
    ordered = sorted(stamps)
    reads = [Read(at + lag, OFFSET + at, b"") for at, lag in ordered]
    clock = ReceiveClock(pairs())
    found = clock.times(reads, 0)
    assert found.times_ns == [at for at, _ in ordered]
    assert found.observer_lag_ns == max((lag for _, lag in ordered), default=None)
    assert (clock.mapped, clock.user_stamped) == (len(ordered), 0)


def test_without_kernel_stamps_the_users_are_used_and_there_is_no_lag_to_tell() -> None:
    clock = ReceiveClock(pairs())
    found = clock.times([Read(5, None, b""), Read(9, None, b"")], 0)
    assert found == ([5, 9], None) and (clock.mapped, clock.user_stamped, clock.refused) == (0, 2, 0)


def test_a_step_of_the_wall_clock_is_found_and_its_interval_is_not_mapped() -> None:
    clock = ReceiveClock(pairs(step_at=10, step=-3 * 10**9))
    assert [(step.after_monotonic_ns, step.before_monotonic_ns, step.step_ns) for step in clock.steps] == [
        (9 * TENTH, 10 * TENTH, -3 * 10**9)
    ]
    inside = 9 * TENTH + TENTH // 2
    found = clock.times([Read(inside + 50, OFFSET + inside, b"")], 0)
    assert found.times_ns == [inside + 50] and clock.refused == 1


def test_reads_on_both_sides_of_a_step_are_mapped_by_their_own_side() -> None:
    step = 3 * 10**9
    clock = ReceiveClock(pairs(step_at=10, step=step))
    before, after = 8 * TENTH + 7, 12 * TENTH + 7
    reads = [Read(before + 9, OFFSET + before, b""), Read(after + 9, OFFSET + after + step, b"")]
    assert clock.times(reads, 0).times_ns == [before, after]


@given(st.integers(-5 * 10**8, 5 * 10**8), st.lists(st.integers(1, 18 * TENTH), max_size=30))
def test_a_request_that_lives_through_a_step_is_never_mapped_to_the_wrong_side(step: int, instants: list[int]) -> None:
    """The oracle knows the true instant of each read; each is returned 1 ms later."""
    clock = ReceiveClock(pairs(step_at=10, step=step))
    late = 10**6
    reads = [
        Read(at + late, OFFSET + at + (step if at >= 9 * TENTH + TENTH // 2 else 0), b"") for at in sorted(instants)
    ]
    found = clock.times(reads, 0).times_ns
    for at, read in zip(found, reads, strict=True):
        assert read.user_ns - late - 1 <= at <= read.user_ns or abs(step) <= 2 * 10**6


def test_a_stamp_after_the_read_or_before_the_send_is_refused() -> None:
    clock = ReceiveClock(pairs())
    late = Read(TENTH, OFFSET + TENTH + UNCERTAINTY_NS + 2, b"")
    early = Read(3 * TENTH, OFFSET + TENTH, b"")
    assert clock.times([late], 0).times_ns == [TENTH]
    assert clock.times([early], 2 * TENTH).times_ns == [3 * TENTH]
    assert clock.refused == 2


def test_a_stamp_within_the_pairs_uncertainty_is_held_to_the_read() -> None:
    clock = ReceiveClock(pairs())
    assert clock.times([Read(TENTH, OFFSET + TENTH + 100, b"")], 0).times_ns == [TENTH]
    assert clock.refused == 0


def test_times_never_go_back() -> None:
    clock = ReceiveClock(pairs())
    reads = [Read(TENTH, None, b""), Read(TENTH + 10, OFFSET + TENTH - 500, b"")]
    assert clock.times(reads, 0).times_ns == [TENTH, TENTH]


def test_stamps_just_outside_the_pairs_are_mapped_and_far_ones_are_not() -> None:
    clock = ReceiveClock(pairs(3))
    assert clock.monotonic_ns(OFFSET + 4 * TENTH) == 4 * TENTH
    assert clock.monotonic_ns(OFFSET - TENTH) == -TENTH
    assert clock.monotonic_ns(OFFSET + 10**12) is None and clock.monotonic_ns(0) is None
    assert ReceiveClock().monotonic_ns(OFFSET) is None


def plainly(clock: ReceiveClock, reads: list[Read], send_start_ns: int | None) -> tuple[list[int], int | None, int]:
    """The rules read by read, without a shortcut: (instants, lag, how many were mapped)."""
    found: list[int] = []
    lags: list[int] = []
    earliest = (send_start_ns or 0) - UNCERTAINTY_NS
    for read in reads:
        at, stamp = read.user_ns, read.kernel_realtime_ns
        mapped = None if stamp is None else clock.monotonic_ns(stamp, earliest, read.user_ns + UNCERTAINTY_NS)
        if mapped is not None:
            at = min(at, mapped)
            earliest = max(earliest, at - UNCERTAINTY_NS)
            lags.append(read.user_ns - at)
        found.append(max([at, *found[-1:], 0]))
    return found, max(lags, default=None), len(lags)


@given(
    st.lists(st.tuples(st.integers(0, 31 * TENTH), st.integers(0, 10**5)), min_size=16, max_size=40),
    st.lists(st.tuples(st.integers(0, 39), ODD), max_size=2),
    st.one_of(st.none(), st.integers(-60_000, 60_000)),
    st.floats(-5e-4, 5e-4),
    st.sampled_from([0, 0, 0, 3 * TENTH]),
)
def test_many_reads_at_once_say_what_each_alone_says(
    stamps: list[tuple[int, int]],
    odd: list[tuple[int, int | None]],
    send: int | None,
    slew: float,
    step: int,
) -> None:
    """Odd reads: returned before their stamp, out of order, no stamp. `send`: against the first read. Beyond 29: far outside."""
    known = pairs(slew=slew, step_at=10, step=step)
    ordered = sorted(stamps)
    reads = [Read(at + late, OFFSET + at + round(at * slew), b"") for at, late in ordered]
    for place, moved in odd:
        at, late = ordered[place % len(ordered)]
        stamp = None if moved is None else OFFSET + at + round(at * slew) - moved
        reads[place % len(ordered)] = Read(at + late, stamp, b"")
    sent = None if send is None else ordered[0][0] + send
    clock = ReceiveClock(known)
    found = clock.times(reads, sent)
    times, lag, mapped = plainly(ReceiveClock(known), reads, sent)
    assert (found.times_ns, found.observer_lag_ns, clock.mapped) == (times, lag, mapped)
    assert all(type(at) is int for at in found.times_ns)
