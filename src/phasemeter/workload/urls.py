"""From the URL a person gives to the address of one API's endpoint.

Lives here: which path each API has, and the rule: `/v1` is added only when the URL has no path; a full endpoint and
other version segments are
kept; nothing is ever doubled, no slash either. Must not live here: connecting.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

import msgspec

from phasemeter.errors import UserError

# api: (path below the version segment, whether it has a version segment)
PATHS: dict[str, tuple[str, bool]] = {
    "openai.chat": ("/chat/completions", True),
    "openai.completions": ("/completions", True),
    "openai.responses": ("/responses", True),
    "anthropic.messages": ("/messages", True),
    "ollama.chat": ("/api/chat", False),
    "ollama.generate": ("/api/generate", False),
    "llamacpp.completion": ("/completion", False),
    "tgi.generate_stream": ("/generate_stream", False),
    "sglang.generate": ("/generate", False),
}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go. `user` and `password` come from the URL and are in neither `url` nor `base`."""

    scheme: str
    host: str  # no brackets around IPv6
    port: int
    path: str  # with the query, as it goes into the request line
    base: str  # the path before the endpoint, for /models, /version and the like beside it
    api: str
    user: str | None = None
    password: str | None = None

    @property
    def authority(self) -> str:
        """host:port as a URL spells it (the default port left out)."""
        host = f"[{self.host.replace('%', '%25')}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"

    @property
    def root(self) -> str:
        """`base` without a trailing version segment: where /metrics and /version live."""
        head, _, last = self.base.rpartition("/")
        return head if is_version(last) else self.base

    @property
    def url(self) -> str:
        """The whole address, without credentials: fit for printing."""
        return f"{self.scheme}://{self.authority}{self.path}"


def is_version(segment: str) -> bool:
    """`v1`, `v4`, `v1beta`: a version segment of a path."""
    return segment[:1] == "v" and segment[1:2].isdigit()


def _tail(api: str) -> tuple[str, bool]:
    if api not in PATHS:
        raise UserError(f"`{api}` is no API I know: {', '.join(PATHS)}")
    return PATHS[api]


def redacted(url: str) -> str:
    """A URL for people and files: user and password become `***`."""
    scheme, mark, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if not mark or "@" not in authority:
        return url
    return f"{scheme}://***@{authority.rpartition('@')[2]}{slash}{path}"


def endpoint(url: str, api: str = "openai.chat") -> Endpoint:
    """The endpoint of `api` at `url`, with or without `/v1`.

    Raises UserError, in one line and without the password, for what is no http or https URL, or for a full endpoint of another API.
    """
    shown = redacted(url)
    if "://" not in url and url.lower().startswith(("http:", "https:")):
        raise UserError(f"{shown}: has one slash too few: write it like http://127.0.0.1:8000/v1")
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UserError(f"{shown}: is no URL: {error}: write it like http://127.0.0.1:8000/v1") from None
    if parts.scheme not in {"http", "https"}:
        raise UserError(f"{shown}: `{parts.scheme}` is no scheme I can send to: write http:// or https://")
    if not parts.hostname or any(character.isspace() for character in text):
        raise UserError(f"{shown}: has no host (or holds a space): write it like http://127.0.0.1:8000/v1")
    if parts.fragment:
        raise UserError(f"{shown}: the part after # never reaches a server: leave it out")
    plain = re.sub("/{2,}", "/", parts.path).rstrip("/").removesuffix("/models")  # joined twice; the list of models
    base, path = _paths(plain, api, shown)
    return Endpoint(
        scheme=parts.scheme,
        host=unquote(parts.hostname),  # %25 before the zone of a link-local address (RFC 6874)
        port=port if port is not None else {"http": 80, "https": 443}[parts.scheme],
        path=path + (f"?{parts.query}" if parts.query else ""),
        base=base,
        api=api,
        user=unquote(parts.username) if parts.username is not None else None,
        password=unquote(parts.password) if parts.password is not None else None,
    )


def _paths(given: str, api: str, shown: str) -> tuple[str, str]:
    """(base, endpoint path) for the path of a URL without its trailing slash."""
    tail, versioned = _tail(api)
    if given.endswith(tail):
        return given[: -len(tail)], given
    other = api_of_path(given)
    if other is not None:
        raise UserError(f"{shown}: is the endpoint of {other}, not of {api}: say --api {other} or give the base URL")
    if versioned:
        base = given or "/v1"
    else:
        head, _, last = given.rpartition("/")
        base = head if is_version(last) else given
    return base, base + tail


def api_of_path(path: str) -> str | None:
    """Which API a full endpoint path belongs to: the longest of the known tails; None for a base path."""
    found = [api for api, (tail, _) in PATHS.items() if path.endswith(tail)]
    return max(found, key=lambda api: len(PATHS[api][0]), default=None)
