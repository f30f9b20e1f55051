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
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def excepted(host: str, no_proxy: str) -> bool:
    """Whether NO_PROXY names `host`: itself, a domain above it, a network that holds it, or `*`."""
    for entry in (e.strip().lower() for e in no_proxy.split(",")):
        if not entry:
            continue
        name = entry.lstrip(".")
        if entry == "*" or host.lower() == name or host.lower().endswith("." + name):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False


def from_environment(https: bool, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """(variable, value) of the proxy that the environment names for this scheme, or None."""
    names = ("HTTPS_PROXY", "https_proxy") if https else ("HTTP_PROXY", "http_proxy")
    for name in (*names, "ALL_PROXY", "all_proxy"):
        if environment.get(name):
            return name, environment[name]
    return None


def parsed(url: str) -> Proxy:
    """Raises UserError when `url` names no http proxy."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError as wrong:
        raise UserError(f"--proxy: {wrong}: write it like http://proxy:3128") from wrong
    bare = "://" not in url and port is None  # a word alone is more likely a slip than a host's name
    if parts.scheme != "http" or not parts.hostname or bare or any(c.isspace() for c in url) or parts.path.strip("/"):
        raise UserError("--proxy: only http proxies are spoken to: write it like http://proxy:3128")
    secret = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        secret = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(host=parts.hostname, port=port or 80, authorization=secret)


def proxy_for(target: Target, asked: str | None, environment: Mapping[str, str]) -> tuple[Proxy | None, str | None]:
    """The proxy to use, and a note for the user where the environment or the request is not followed.

    `asked` is None, a URL, or "env" (follow the environment).
    """
    found = from_environment(target.tls is not None, environment)
    local = is_loopback(target.host)
    if asked is None:
        unused = found is not None and not local
        return None, f"{found[0]} is set but not used: --proxy env follows it" if unused and found else None
    if local:
        return None, f"{target.host} is this machine: no proxy is used"
    no_proxy = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if excepted(target.host, no_proxy):
        return None, f"NO_PROXY names {target.host}: no proxy is used"
    if asked != "env":
        return parsed(asked), None
    return (parsed(found[1]), None) if found else (None, "--proxy env: the environment names no proxy")


def shown(proxy: Proxy | None) -> str | None:
    """The proxy as it may be recorded: without its user and password."""
    if proxy is None:
        return None
    host = f"[{proxy.host}]" if ":" in proxy.host else proxy.host
    return f"http://{host}:{proxy.port}"
