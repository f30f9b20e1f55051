"""HTML that escapes by default: text is text unless it was made here.

Lives here: tags, attributes, data for scripts, and numbers that carry what they mean. Must not live here: what a page says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from phasemeter.metrics.document import strict


class Markup(str):
    """Text that is HTML already. Only `tag`, `join` and `data` make it, so that nobody's words become markup."""

    __slots__ = ()


VOID = frozenset({"br", "hr", "img", "input", "meta", "link", "rect", "line", "path", "circle"})
# what HTML can't hold even when escaped: control characters but tab and newlines, and lone surrogates
_UNPRINTABLE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(55296, 57344)), "�")
# letters that turn the reading order round, so that a name can't disguise its neighbours
_TURNING = {code: f"⟨{code:04x}⟩" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def clean(text: str) -> str:
    """`text` without characters that can't be shown or that reorder what stands beside them."""
    return text.translate(_UNPRINTABLE | _TURNING)


def html(child: Any) -> Markup:
    """Any child as HTML: Markup as it is, None as nothing, a list as its parts, everything else escaped."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return Markup(escape(clean(child), quote=True))
    if isinstance(child, Iterable):
        return Markup("".join(html(part) for part in child))
    return Markup(escape(clean(str(child)), quote=True))


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """`<name …>children</name>`. `class_` is class, `data_copy` data-copy; None and False leave an attribute out."""
    words = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        words.append(f" {plain}" if value is True else f' {plain}="{escape(clean(str(value)), quote=True)}"')
    if name in VOID:
        return Markup(f"<{name}{''.join(words)} />")  # the slash is what ends an element of SVG
    return Markup(f"<{name}{''.join(words)}>{html(children)}</{name}>")


def data(identifier: str, value: Any) -> Markup:
    """`value` as JSON that a script of ours reads. No text in it can end the element or open another."""
    text = json.dumps(strict(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" id="{escape(identifier, quote=True)}">{text}</script>')


def words(text: Any) -> Markup:
    """Text whose `backticked` parts are code."""
    parts = str(text or "").split("`")
    if len(parts) % 2 == 0:
        return html(str(text))
    return Markup("".join(tag("code", part) if i % 2 else html(part) for i, part in enumerate(parts)))


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]], caption: Any, class_: str = "") -> Markup:
    """A table in a region that scrolls sideways; the first cell of a row is its header."""
    body = [tag("tr", tag("th", first, scope="row"), [tag("td", cell) for cell in rest]) for first, *rest in rows]
    label = caption if isinstance(caption, str) and not isinstance(caption, Markup) else "table"
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", [tag("td") if cell == "" else tag("th", cell, scope="col") for cell in head])),
            tag("tbody", body),
            class_=class_ or None,
        ),
        class_="scroll", tabindex="0", role="region", aria_label=label,
    )  # fmt: skip


def figure(shown: str, copied: str, class_: str = "") -> Markup:
    """A number that can be pressed: `copied` goes to the clipboard, the number with its definition."""
    return tag("button", shown, type="button", class_=f"fig {class_}".strip(), data_copy=copied, title=copied)


def section(identifier: str, title: str, *children: Any) -> Markup:
    """A part of the page with a heading that the navigation points to."""
    return tag(
        "section",
        tag("h2", title, id=f"{identifier}-title"),
        *children,
        id=identifier, aria_labelledby=f"{identifier}-title",
    )  # fmt: skip


def chart(identifier: str, spec: dict[str, Any] | None) -> Markup | None:
    """A place for a chart and its data; the script draws it, the note says what was thinned."""
    if spec is None:
        return None
    return tag(
        "figure",
        tag("figcaption", tag("h3", spec["title"]), tag("p", spec["note"], class_="note") if spec.get("note") else None),
        tag("div", class_="chart", data_chart=identifier),
        data(identifier, spec),
        tag("noscript", "This chart is drawn by a script of this page; the tables hold its key numbers."),
        class_="plot",
    )  # fmt: skip
