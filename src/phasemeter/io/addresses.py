"""Names to addresses, and a first connection over whichever answers.

Lives here: one look-up a run, IPv6 and IPv4 interleaved, and the race for the first connection (RFC 8305). Must not live
here: what is said on a connection.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Any

import msgspec

from phasemeter.errors import NetworkError

STAGGER_S = 0.25  # RFC 8305 section 5: the recommended Connection Attempt Delay
LONGEST_MS = 2**31 - 1  # a poll takes no more: 24 days


class Address(msgspec.Struct, frozen=True):
    family: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host = f"[{self.sockaddr[0]}]" if ":" in self.sockaddr[0] else self.sockaddr[0]
        return f"{host}:{self.sockaddr[1]}"


class Resolved(msgspec.Struct, frozen=True):
    """What a name stood for when the run began, best first, and how long the look-up took (monotonic ns; None: an address was
    given, there was nothing to look up)."""

    addresses: tuple[Address, ...]
    dns_start_ns: int | None
    dns_done_ns: int | None


def resolve(host: str, port: int) -> Resolved:
    """All stream addresses of `host`, families taking turns, the system's preferred one first.

    Raises NetworkError when the name stands for nothing.
    """
    began = time.monotonic_ns()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as failed:
        raise NetworkError(f"{host}: no address found ({failed}): check the name in the URL") from failed
    done = time.monotonic_ns()
    if host.lower() == "localhost":  # RFC 6761 section 6.3: both loopback addresses, whatever a hosts file leaves out
        found += [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", port, 0, 0))]
        found += [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]
    known = list(
        dict.fromkeys(
            (int(f), (str(sa[0]), *sa[1:])) for f, _, _, _, sa in found if f in (socket.AF_INET, socket.AF_INET6)
        )
    )
    first = [a for a in known if a[0] == known[0][0]]
    other = [a for a in known if a[0] != known[0][0]]
    mixed = [a for pair in zip(first, other, strict=False) for a in pair]
    mixed += first[len(other) :] + other[len(first) :]
    addresses = tuple(Address(f, sa) for f, sa in mixed)
    return Resolved(addresses, None, None) if is_address(host) else Resolved(addresses, began, done)


def is_address(host: str) -> bool:
    """Whether `host` is an IPv4 or IPv6 address and no name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue
        return True
    return False


def answering_first(resolved: Resolved, limit_s: float | None) -> Resolved:
    """The same addresses, the one first that took a connection soonest; unchanged when there is nothing to choose.

    None answers: unchanged too, the caller's own connections will say why. The probing connections are closed.
    """
    if len(resolved.addresses) < 2:
        return resolved
    open_: dict[int, tuple[socket.socket, Address]] = {}
    todo = list(resolved.addresses)
    deadline = time.monotonic() + min(limit_s or 10.0, 10.0)
    winner: Address | None = None
    try:
        while winner is None and (todo or open_) and time.monotonic() < deadline:
            if todo:
                winner = _attempt(todo.pop(0), open_)
            if winner is None and open_:
                winner = _await_one(open_, STAGGER_S if todo else max(0.0, deadline - time.monotonic()))
    finally:
        for sock, _ in open_.values():
            sock.close()
    if winner is None:
        return resolved
    rest = tuple(a for a in resolved.addresses if a != winner)
    return Resolved((winner, *rest), resolved.dns_start_ns, resolved.dns_done_ns)


def _attempt(address: Address, open_: dict[int, tuple[socket.socket, Address]]) -> Address | None:
    try:
        sock = socket.socket(address.family, socket.SOCK_STREAM)
    except OSError:
        return None  # the family is not available here
    sock.setblocking(False)
    code = sock.connect_ex(address.sockaddr)
    if code in (0, errno.EINPROGRESS):
        open_[sock.fileno()] = (sock, address)
        return address if code == 0 else None
    sock.close()
    return None


def _await_one(open_: dict[int, tuple[socket.socket, Address]], wait_s: float) -> Address | None:
    poll = select.poll()
    for fd in open_:
        poll.register(fd, select.POLLOUT)
    for fd, _ in poll.poll(min(wait_s * 1000, LONGEST_MS)):
        sock, address = open_[fd]
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            return address
        del open_[fd]
        sock.close()
    return None


def error_text(error: OSError) -> str:
    """An error's class and words, as a capture keeps it."""
    own = type(error).__module__.startswith("ssl")
    if own or error.errno is None or error.errno not in errno.errorcode:
        return f"{type(error).__name__}: {error.strerror or error}"
    said, usual = error.strerror or "", os.strerror(error.errno)
    words = usual if said in ("", "connect", usual) else said
    return f"{type(error).__name__}: {errno.errorcode[error.errno]}: {words}"
