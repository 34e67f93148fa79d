"""HTML that is escaped by construction: everything that `tag` did not make is text."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_VOID = {"img", "input", "meta"}


class Html(str):
    """Finished HTML, which is not escaped again."""

    __slots__ = ()


NOTHING = Html("")
"""No HTML at all."""


def tag(name: str, attributes: Mapping[str, str] | None = None, *children: str) -> Html:
    """Return an element. Attributes are escaped, and so are children that are not `Html`."""
    written = "".join(f' {key}="{html.escape(value)}"' for key, value in (attributes or {}).items())
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(children)}</{name}>")


def joined(parts: Sequence[str]) -> Html:
    """Concatenate parts, escaping text."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def paragraphs(texts: Sequence[str]) -> Html:
    """Return one paragraph per text, without empty ones."""
    return joined([tag("p", None, text) for text in texts if text])


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Return a table: the first column names the row, numbers are right-aligned, wide tables scroll."""
    numeric = [
        i > 0 and any(row[i] for row in rows) and all(_is_number(row[i]) for row in rows) for i in range(len(columns))
    ]
    head = [
        tag("th", {"scope": "col"} | ({"class": "number"} if numeric[i] else {}), column)
        for i, column in enumerate(columns)
    ]
    body = [
        tag(
            "tr",
            None,
            tag("th", {"scope": "row"}, row[0]),
            *(tag("td", {"class": "number"} if numeric[i] else None, row[i]) for i in range(1, len(columns))),
        )
        for row in rows
    ]
    return framed(caption, tag("thead", None, tag("tr", None, *head)), tag("tbody", None, *body))


def framed(caption: str, *parts: Html) -> Html:
    """Return a table of these parts in a frame that scrolls if it is too wide."""
    return tag(
        "div",
        {"class": "scroll", "role": "group", "tabindex": "0", "aria-label": caption},
        tag("table", None, tag("caption", None, caption), *parts),
    )


def definitions(pairs: Sequence[tuple[str, str]]) -> Html:
    """Return a list of terms with their meanings."""
    return tag("dl", None, *(part for term, words in pairs for part in (tag("dt", None, term), tag("dd", None, words))))


def folded(summary: str, *children: str) -> Html:
    """Return a collapsed block; print shows it as the reader left it."""
    return tag("details", None, tag("summary", None, summary), *children)


def slug(name: str) -> str:
    """Return a name as letters, digits and hyphens, for identifiers and file names."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "unnamed"


def data(identifier: str, content: Any) -> Html:
    """Return JSON for a script to read, without any ``<``, so that nothing in it can end the element."""
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Html(f'<script type="application/json" id="{html.escape(identifier)}">{safe}</script>')


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[≥≤≈ –-]*([\d.,]+(e[+-]?\d+)?|∞)?%?( \(≈ [^)]*\))?", cell) is not None
