"""Where requests go: address, path, TLS, headers, proxy, limits.

Lives here: the target as data, its URL, and the head that is put in front of each body in memory at send time. Must not live here:
sockets, or anything that writes a header to a disk.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from phasemeter import __version__
from phasemeter.errors import UserError

HEARTBEAT_MOST = 4096  # bytes: a longer read says something


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; None is no limit. Long prefills and long generations are real, so only silence is limited by default.

    `last_word`: a pattern of a read after which nothing more is said; some servers leave the message open all the same, and
    `after_end_s` is how long such an answer may be silent before its connection is given up. `heartbeat`: a pattern of reads
    that only keep a connection open; an answer of nothing else has not begun, and `first_byte_s` goes on.
    """

    connect_s: float | None = 10.0
    first_byte_s: float | None = 600.0
    idle_s: float | None = 120.0
    total_s: float | None = None
    after_end_s: float = 1.0
    last_word: bytes | None = None
    heartbeat: bytes | None = None

    def is_heartbeat(self, read: bytes) -> bool:
        return (
            self.heartbeat is not None and len(read) < HEARTBEAT_MOST and re.fullmatch(self.heartbeat, read) is not None
        )

    def said_all(self, read: bytes) -> bool:
        """Whether an answer whose last read this is has said its last word, whatever its framing says."""
        return self.last_word is not None and re.search(self.last_word, read) is not None


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    insecure: bool = False
    ca_file: str | None = None


class Proxy(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    authorization: str | None = None  # secret: the Proxy-Authorization value


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """`secret_headers` (Authorization) are sent like `headers` but must never be recorded anywhere."""

    host: str
    port: int
    path: str = "/"
    tls: Tls | None = None
    headers: tuple[tuple[str, str], ...] = ()
    secret_headers: tuple[tuple[str, str], ...] = ()
    proxy: Proxy | None = None
    limits: Limits = Limits()

    @property
    def authority(self) -> str:
        """The Host header: brackets around an IPv6 address, without its zone, which is this machine's own; no default port."""
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def target_of(url: str, *, tls: Tls | None = None, limits: Limits | None = None) -> Target:
    """The target that an http or https URL names; `tls` says how to check an https server.

    Raises UserError when it is no such URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as wrong:
        raise UserError(f"{url}: {wrong}: write it like http://localhost:8000/v1") from wrong
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UserError(f"{url}: not an http or https URL: write it like http://localhost:8000/v1")
    if parts.username or parts.password:
        raise UserError("the URL holds a user name or password: give it as --header or --api-key instead")
    https = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(
        host=parts.hostname, port=port or (443 if https else 80), path=path,
        tls=(tls or Tls()) if https else None, limits=limits or Limits(),
    )  # fmt: skip


def head(target: Target, method: str = "POST", path: str | None = None) -> bytes:
    """Request line and headers, without Content-Length and the blank line: see `with_body`.

    What the user gave replaces our own of the same name. Raises UserError for a header that can't be sent.
    """
    where = path or target.path
    if target.proxy is not None and target.tls is None:
        where = f"http://{target.authority}{where}"  # absolute form, RFC 9112 section 3.2.2
    fields = {
        "host": ("Host", target.authority),
        "user-agent": ("User-Agent", f"phasemeter/{__version__}"),
        "accept": ("Accept", "text/event-stream, application/json, */*"),
        "accept-encoding": ("Accept-Encoding", "identity"),
    }
    if method == "POST":
        fields["content-type"] = ("Content-Type", "application/json")
    if target.proxy is not None and target.tls is None and target.proxy.authorization:
        fields["proxy-authorization"] = ("Proxy-Authorization", target.proxy.authorization)
    for name, value in (*target.headers, *target.secret_headers):
        if not name or any(c in name + value for c in "\r\n\0") or ":" in name or " " in name:
            raise UserError(f'header "{name}": a name without spaces and a value on one line is needed')
        fields[name.lower()] = (name, value)
    lines = [f"{method} {where} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.values())]
    try:
        return "".join(line + "\r\n" for line in lines).encode("latin-1")
    except UnicodeEncodeError as wrong:
        raise UserError("a header or the path holds a character that HTTP can't carry: use ASCII") from wrong


def with_body(prefix: bytes, body: bytes, traceparent: str | None = None, sent_id: str | None = None) -> bytes:
    """The whole request: `prefix` from `head`, what names this one, the length, the body."""
    trace = b"traceparent: %b\r\n" % traceparent.encode("ascii") if traceparent else b""
    name = b"x-request-id: %b\r\n" % sent_id.encode("ascii") if sent_id else b""
    return b"%b%b%bContent-Length: %d\r\n\r\n%b" % (prefix, trace, name, len(body), body)
