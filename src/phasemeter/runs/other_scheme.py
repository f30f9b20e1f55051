"""http said to an https port, or https to an http one: asked, not guessed.

Lives here: one more request in the other scheme, where the first one came to nothing. Must not live here: any other mistake.
"""

from __future__ import annotations

import msgspec

from phasemeter.io.fetch import fetch
from phasemeter.io.target import Target, Tls
from phasemeter.records.capture import Capture
from phasemeter.runs.identify import PATIENCE, answer
from phasemeter.runs.settings import Settings

NO_ANSWER = ("eof", "reset", "malformed", "stale", "refused", "timeout_connect")


def other_scheme(settings: Settings, first: Capture, status: int | None) -> str | None:
    """What to write instead, where the server speaks the other scheme; None where it doesn't, or where a proxy speaks for it.

    Some https servers answer plain HTTP with a 400 that says so; most close or reset.
    """
    target, endpoint = settings.target, settings.endpoint
    if target.proxy is not None or not (status == 400 or (status is None and first.close in NO_ANSWER)):
        return None
    if target.tls is None:
        if first.connected_ns is None:
            return None
        if _asked(target, Tls(insecure=True)).connected_ns is None:
            return None
        return f"it speaks TLS, not plain HTTP: write https://{endpoint.authority}"
    if first.connected_ns is not None or answer(_asked(target, None))[0] is None:
        return None
    return f"it answers plain HTTP, not TLS: write http://{endpoint.authority}"


def _asked(target: Target, tls: Tls | None) -> Capture:
    return fetch(msgspec.structs.replace(target, tls=tls, limits=PATIENCE, secret_headers=()), "GET", "/")
