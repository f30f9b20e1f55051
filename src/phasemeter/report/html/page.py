"""One self-contained page: our style and scripts inside, nothing fetched, nothing of others run.

Lives here: the frame around sections. Must not live here: what sections say.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from phasemeter import __version__
from phasemeter.report.html.markup import Markup, tag

CORE = ("core.js", "chart.js")


@cache
def asset(name: str) -> str:
    """A file of this package's assets/."""
    return files("phasemeter.report.html").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Only these very scripts run, by their hash: not one that a server's words might smuggle in. Nothing is fetched."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )


def page(title: str, header: Markup, sections: Sequence[tuple[str, str, Markup]], scripts: Sequence[str] = ()) -> str:
    """The document. `sections`: (anchor, its name in the navigation, markup); `scripts`: names of assets beyond the core."""
    texts = [asset(name) for name in (*CORE, *scripts)]
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in sections]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(texts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"phasemeter {__version__}"),
        tag("title", title),
        Markup(f"<style>{asset('page.css')}</style>"),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#main", class_="skip"),
        header,
        tag("nav", tag("ul", links), aria_label="Sections") if len(links) > 1 else None,
        tag("main", [markup for _, _, markup in sections], id="main"),
        tag(
            "footer",
            tag("p", f"Written by phasemeter {__version__}. This file is whole: it asks no network for anything."),
        ),
        tag("div", id="said", role="status", aria_live="polite", class_="toast"),
        [Markup(f"<script>{text}</script>") for text in texts],
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def banner(kind: str, title: str, *children: Markup | str | None) -> Markup:
    """The page's head: what it is, of what, and the light switch."""
    return tag(
        "header",
        tag(
            "div",
            tag("p", kind, class_="kind"),
            tag("button", "Theme: auto", type="button", id="theme", class_="quiet"),
            class_="topline",
        ),
        tag("h1", title),
        *children,
        class_="banner",
    )
