"""Whether a proxy is used: only when asked, never for loopback or NO_PROXY hosts.

Lives here: reading `--proxy` and the environment. Must not live here: speaking to a proxy (connection.py, target.py).
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from phasemeter.errors import UserError
from phasemeter.io.target import Proxy, Target


def is_loopback(host: str) -> bool:
    found = _address(host)
    return found.is_loopback if found is not None else host == "localhost" or host.endswith(".localhost")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `host` is, one of IPv4 in an IPv6 coat without it; None for a name."""
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    return (isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped) or found


def excepted(host: str, port: int, no_proxy: str) -> bool:
    """Whether NO_PROXY names this host, as curl, Go and Python between them read it.

    Entries stand between commas or blanks: `*`, a name (itself and all below it; `.name` and `*.name` too), an address, a network;
    each may end in `:port`, which then has to be the port.
    """
    address, name = _address(host), host.lower().rstrip(".")
    for entry in no_proxy.lower().replace(",", " ").split():
        if entry == "*":
            return True
        bare, only = _without_port(entry)
        if only not in (None, port):
            continue
        if address is None:
            suffix = bare.removeprefix("*").strip(".")
            if suffix and (name == suffix or name.endswith("." + suffix)):
                return True
        elif _holds(bare, address):
            return True
    return False


def _without_port(entry: str) -> tuple[str, int | None]:
    """`host:80` in two; an IPv6 address has a port only behind brackets."""
    bare, colon, port = entry.rpartition(":")
    if not colon or not port.isdecimal() or (":" in bare and not bare.endswith("]")):
        return entry, None
    return bare, int(port)


def _holds(network: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(network.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        return False


def from_environment(https: bool, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """(variable, value) of the proxy that the environment names for this scheme, or None; small letters first, as curl and Python do."""
    names = ("https_proxy", "HTTPS_PROXY") if https else ("http_proxy", "HTTP_PROXY")
    for name in (*names, "all_proxy", "ALL_PROXY"):
        if environment.get(name, "").strip():
            return name, environment[name].strip()
    return None


def parsed(url: str, where: str = "--proxy") -> Proxy:
    """Raises UserError when `url`, given in `where`, names no http proxy."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as wrong:
        raise UserError(f"{where}: {wrong}: write it like http://proxy:3128") from wrong
    bare = "://" not in url and port is None  # a word alone is more likely a slip than a host's name
    if parts.scheme != "http" or not parts.hostname or bare or any(c.isspace() for c in url) or parts.path.strip("/"):
        raise UserError(f"{where}: only http proxies are spoken to: write it like http://proxy:3128")
    secret = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        secret = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(host=parts.hostname, port=port or 80, authorization=secret)


def proxy_for(target: Target, asked: str | None, environment: Mapping[str, str]) -> tuple[Proxy | None, str | None]:
    """The proxy to use, and a note for the user where the environment or the request is not followed.

    `asked` is None, a URL, "env" (follow the environment) or "none" (as None, without a note).
    """
    found = from_environment(target.tls is not None, environment)
    local = is_loopback(target.host)
    if asked is None:
        unused = found is not None and not local
        return None, f"{found[0]} is set but not used: --proxy env follows it" if unused and found else None
    if asked == "none":
        return None, None
    if local:
        return None, f"{target.host} is this machine: no proxy is used"
    no_proxy = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if excepted(target.host, target.port, no_proxy):
        return None, f"NO_PROXY names {target.host}: no proxy is used"
    if asked != "env":
        return parsed(asked), None
    return (parsed(found[1], found[0]), None) if found else (None, "--proxy env: the environment names no proxy")


def shown(proxy: Proxy | None) -> str | None:
    """The proxy as it may be recorded: without its user and password."""
    if proxy is None:
        return None
    host = f"[{proxy.host}]" if ":" in proxy.host else proxy.host
    return f"http://{host}:{proxy.port}"
