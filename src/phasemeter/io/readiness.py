"""Which sockets are ready: epoll where there is one, else what `selectors` finds (kqueue on macOS), spoken to like epoll.

Lives here: the poller and the waits that the sender and the emulator need. Must not live here: what is done with a ready socket.

Instants are waited for more finely than `epoll.poll` can, which rounds up to a millisecond: `select` on its descriptor does not.
kqueue takes nanoseconds by itself.
"""

from __future__ import annotations

import select
import selectors
from typing import Protocol

READ, WRITE = 1, 4  # as EPOLLIN and EPOLLOUT
HAVE_EPOLL = hasattr(select, "epoll")

Events = list[tuple[int, int]]


class Poller(Protocol):
    def register(self, fd: int, eventmask: int = ..., /) -> None: ...
    def modify(self, fd: int, eventmask: int, /) -> None: ...
    def poll(self, timeout: float | None = ..., maxevents: int = ..., /) -> Events: ...
    def close(self) -> None: ...


class Selected:
    """`selectors.DefaultSelector` with epoll's words: masks of READ and WRITE, (descriptor, mask) pairs, seconds."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, eventmask: int = READ, /) -> None:
        self._selector.register(fd, _words(eventmask))

    def modify(self, fd: int, eventmask: int, /) -> None:
        self._selector.modify(fd, _words(eventmask))

    def forget(self, fd: int) -> None:
        """Take a descriptor out before it is closed: `selectors` does not notice by itself, as epoll does."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def poll(self, timeout: float | None = None, maxevents: int = -1, /) -> Events:
        """At most `maxevents` of what is ready (-1: all); the rest is told of next time."""
        found = self._selector.select(timeout)
        ready = [(key.fd, _mask(events)) for key, events in found]
        return ready if maxevents < 0 else ready[:maxevents]

    def close(self) -> None:
        self._selector.close()


def _words(mask: int) -> int:
    return (selectors.EVENT_READ if mask & READ else 0) | (selectors.EVENT_WRITE if mask & WRITE else 0)


def _mask(events: int) -> int:
    return (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0)


def poller() -> Poller:
    return select.epoll() if HAVE_EPOLL else Selected()


def forget(poll: Poller, fd: int) -> None:
    """To be called before a registered descriptor is closed."""
    if fd >= 0 and isinstance(poll, Selected):
        poll.forget(fd)


def ready_within(poll: Poller, seconds: float) -> bool:
    """Whether something is ready within `seconds`, waited for as exactly as the system can."""
    if isinstance(poll, Selected):
        return bool(poll.poll(seconds))
    return bool(select.select([poll], (), (), seconds)[0])  # type: ignore[type-var]  # epoll has a fileno


def wait_finely(poll: Poller, seconds: float, most: int) -> Events:
    """What is ready within `seconds`, as exactly as the system can wait; perhaps nothing although something is: poll again."""
    if isinstance(poll, Selected):
        return poll.poll(seconds, most)
    select.select([poll], (), (), seconds)  # type: ignore[type-var]  # epoll has a fileno
    return []
