"""The lines of the live view: how far a run is, what was asked and achieved, how it stands so far.

Lives here: what is shown and how often. Must not live here: what is counted (io/workers.py, runs/so_far.py). The capture's own
processes are asked for nothing: their counters are read from shared memory, their files from the page cache, in at most
1.5 % of a core.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import TextIO

import msgspec

from phasemeter.io.workers import Progress
from phasemeter.report.plain import plain
from phasemeter.report.words import number
from phasemeter.runs.measure import Going
from phasemeter.runs.so_far import SoFar, Standing

EVERY_S = 0.2
OVER_S = 3.0  # the rates shown are of this long
BAR = 24
NARROW = 60  # columns: below, one line
PLAIN, DIM, RED, YELLOW, GREEN = "", "2", "31", "33", "32"

Part = tuple[str, str]  # words and their colour


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second, over the last few seconds; None before there is a stretch to speak of."""

    sent: float | None = None
    done: float | None = None
    bytes: float | None = None


def head(going: Going, progress: Progress, rates: Rates) -> list[Part]:
    """How far it is, what was asked, what was achieved."""
    elapsed_s = max(0.0, progress.elapsed_s)
    parts: list[Part] = [(f"{going.phase} {elapsed_s:.1f} s", PLAIN)]
    ended = progress.done + progress.failed + progress.cancelled
    share = None
    if going.requests:
        share = ended / going.requests
        parts.append((f"{ended:,} of {going.requests:,} requests ended", PLAIN))
    else:
        parts.append((f"{ended:,} requests ended", PLAIN))
    if going.duration_s:
        share = max(share or 0.0, elapsed_s / going.duration_s)
        parts[0] = (f"{going.phase} {elapsed_s:.1f} of {going.duration_s:g} s", PLAIN)
    if share is not None:
        full = round(min(1.0, share) * BAR)
        parts.insert(1, ("█" * full + "░" * (BAR - full), PLAIN))
    if going.rate_per_s:
        parts.append((f"asked {number(going.rate_per_s)} req/s", PLAIN))
    elif going.concurrency:
        parts.append((f"asked {going.concurrency} at a time", PLAIN))
    if going.requests and progress.sent >= going.requests:
        parts.append(("all sent, waiting for answers", PLAIN))
    elif rates.sent is not None:
        parts.append((f"sent {number(rates.sent, 3)}/s", PLAIN))
    if rates.done is not None:
        parts.append((f"served {number(rates.done, 3)}/s", PLAIN))
    return parts


def state(progress: Progress, rates: Rates, first_read_s: float | None) -> list[Part]:
    """What is out, what failed, the wait for a first read, and how late we are ourselves."""
    parts: list[Part] = [(f"in flight {progress.in_flight}", PLAIN)]
    if progress.waiting:
        parts.append((f"waiting for a slot {progress.waiting}", YELLOW))
    parts.append((f"failed {progress.failed}", RED if progress.failed else PLAIN))
    if first_read_s is not None:
        factor, unit = (1.0, "s") if first_read_s >= 10 else (1e3, "ms")
        parts.append((f"first read after {number(first_read_s * factor, 3)} {unit} (median)", PLAIN))
    parts.append((f"our sends late {number(progress.late_ns / 1e6, 2)} ms", DIM))
    parts.append((f"observer lag {number(progress.observer_lag_ns / 1e6, 2)} ms", DIM))
    if rates.bytes is not None:
        parts.append((f"{number(rates.bytes / 1e3, 3)} kB/s", DIM))
    return parts


def standing(found: Sequence[Standing], every: int, given_up: bool) -> list[Part]:
    """The promises so far, marked as provisional."""
    if given_up:
        return [("so far: more comes than may be read along; the verdict comes at the end", DIM)]
    seen = max((one.of for one in found), default=0)
    if not seen:
        return [("so far: no request has ended yet", DIM)] if found else []
    parts: list[Part] = [("so far (provisional)", DIM)]
    for one in found:
        limit = "" if one.limit_s is None else f" ≤ {number(one.limit_s * 1e3)} ms"
        if not one.of:
            words = f"{one.name}{limit}: nothing to judge yet"
        elif one.needs is None:
            words = f"{one.name}{limit}: {number((one.mean_s or 0.0) * 1e3)} ms"
        else:
            words = f"{one.name}{limit}: {100 * one.kept / one.of:.4g} % of {one.of:,} keep it, {100 * one.needs:g} % needed"
        parts.append((words, DIM if not one.of else GREEN if one.well else YELLOW))
    if every > 1:
        parts.append((f"1 request in {every} read", DIM))
    return parts


def fitted(parts: Sequence[Part], columns: int, colour: bool) -> list[str]:
    """The parts on as few lines as they need, none longer than `columns`; a part is cut only where it alone is too long."""
    lines: list[list[Part]] = [[]]
    width = 0
    for words, style in parts:
        words = words if len(words) <= columns else words[: max(1, columns - 1)] + "…"
        gap = 3 if lines[-1] else 0
        if width + gap + len(words) > columns:
            lines.append([])
            width = gap = 0
        lines[-1].append((words, style))
        width += gap + len(words)
    return [" · ".join(_coloured(*part) if colour else part[0] for part in line) for line in lines if line]


def _coloured(words: str, style: str) -> str:
    return f"\x1b[{style}m{words}\x1b[0m" if style else words


class Screen:
    """A block of lines that is written over itself. Nothing is left of it after `clear`."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._lines = 0

    def show(self, lines: Sequence[str]) -> None:
        self._to.write(self._back() + "\n".join(f"\x1b[2K{line}" for line in lines) + "\x1b[J")
        self._to.flush()
        self._lines = len(lines)

    def clear(self) -> None:
        if self._lines:
            self._to.write(self._back() + "\x1b[J")
            self._to.flush()
            self._lines = 0

    def _back(self) -> str:
        return "\r" + (f"\x1b[{self._lines - 1}A" if self._lines > 1 else "")


class Simulating:
    """A simulation's one line."""

    def __init__(self, to: TextIO, *, columns: int) -> None:
        self._screen, self._columns = Screen(to), columns
        self._began_s = self._shown_s = time.monotonic()

    def tell(self, ended: int, of: float, at_ns: int, load: tuple[int, int, float]) -> None:
        """`ended` of about `of` requests are over at the virtual instant `at_ns`; `load`: running, waiting, share of KV."""
        now_s = time.monotonic()
        if now_s - self._shown_s < EVERY_S:
            return
        self._shown_s = now_s
        full = round(min(1.0, ended / of) * BAR) if of else 0
        running, waiting, kv = load
        parts: list[Part] = [
            (f"simulated {number(at_ns / 1e9)} s", PLAIN), ("█" * full + "░" * (BAR - full), PLAIN),
            (f"{ended:,} of {of:,.0f} requests ended", PLAIN), (f"running {running}", PLAIN), (f"waiting {waiting}", PLAIN),
            (f"KV {100 * kv:.0f} %", PLAIN), (f"{ended / (now_s - self._began_s):,.0f} requests a second", DIM),
        ]  # fmt: skip
        self._screen.show(fitted(parts, self._columns, colour=False))

    def close(self) -> None:
        self._screen.clear()


class Live:
    """Draws what a run tells of itself."""

    def __init__(self, to: TextIO, *, colour: bool, columns: int | None = None) -> None:
        self._to, self._colour, self._fixed = to, colour, columns
        self._screen = Screen(to)
        self._going = Going(phase="")
        self._so_far: SoFar | None = None
        self._shown_s = 0.0
        self._past: deque[tuple[float, Progress]] = deque()

    def begun(self, going: Going) -> None:
        """A part of the run begins."""
        self._leave()
        self._going = going
        if going.capture is not None:
            self._so_far = SoFar(going.capture, going.contract)
        else:
            self._screen.show(fitted([(going.phase + " …", DIM)], self._columns(), self._colour))

    def progress(self, phase: str, progress: Progress) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < EVERY_S:
            return
        self._shown_s = now_s
        self._past.append((now_s, progress))
        while len(self._past) > 2 and self._past[0][0] < now_s - OVER_S:
            self._past.popleft()
        if self._so_far is not None:
            self._so_far.look()
        self._screen.show(self._lines(progress))

    def _lines(self, progress: Progress) -> list[str]:
        rates, columns, so_far = self._rates(), self._columns(), self._so_far
        first = head(self._going, progress, rates)
        if columns < NARROW:
            short = [
                first[0],
                (f"{progress.done} done", PLAIN),
                (f"{progress.failed} failed", RED if progress.failed else PLAIN),
            ]
            return fitted(short, columns, self._colour)[:1]
        groups = [first, state(progress, rates, None if so_far is None else so_far.first_read_s)]
        if so_far is not None and self._going.contract is not None and self._going.judged:
            groups.append(standing(so_far.standings(), so_far.every, so_far.given_up))
        return [line for group in groups for line in fitted(group, columns, self._colour)]

    def _rates(self) -> Rates:
        (then_s, before), (now_s, now) = self._past[0], self._past[-1]
        long = now_s - then_s
        if long < 0.5:
            return Rates()
        ended = now.done + now.failed - before.done - before.failed
        return Rates(
            sent=(now.sent - before.sent) / long, done=ended / long,
            bytes=(now.received_bytes - before.received_bytes) / long,
        )  # fmt: skip

    def _columns(self) -> int:
        if self._fixed is not None:
            return self._fixed
        return max(10, os.get_terminal_size(self._to.fileno()).columns - 1)

    def _leave(self) -> None:
        if self._so_far is not None:
            self._so_far.close()
        self._so_far = None
        self._past.clear()

    def note(self, words: str) -> None:
        self._screen.clear()
        self._to.write(f"note: {plain(words)}\n")

    def close(self) -> None:
        self._leave()
        self._screen.clear()
