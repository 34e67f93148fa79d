"""A comparison as a small HTML page: opens offline, light or dark, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources

from coalmine import __version__
from coalmine.runs.comparison import COLUMNS, DIFFERS, SETTINGS_COLUMNS, Comparison

STYLE = "\n" + (resources.files("coalmine.runs") / "page.css").read_text(encoding="utf-8")


def page(title: str, body: str) -> str:
    """Return a whole page around ``body``, which is HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<footer>coalmine {escape(__version__)}</footer>\n</body>\n</html>\n"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """Return a table of texts with the ``numeric`` columns aligned to the right."""

    def cells(tag: str, texts: Sequence[str], scope: str = "") -> str:
        return "".join(f"<{tag}{scope}{_class(i, text)}>{escape(text)}</{tag}>" for i, text in enumerate(texts))

    def _class(i: int, text: str) -> str:
        names = ["number"] * (i in numeric) + ["marked"] * (text == DIFFERS)
        return f' class="{" ".join(names)}"' if names else ""

    head = cells("th", columns, ' scope="col"')
    lines = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'


def comparison_page(comparison: Comparison) -> str:
    """Return the tables that the terminal shows, as a page."""
    settings = (
        table([*SETTINGS_COLUMNS, *comparison.runs], comparison.settings)
        if comparison.settings
        else "<p>The runs have the same settings.</p>"
    )
    body = (
        f"<h1>{len(comparison.runs)} runs side by side</h1>\n<p>{escape(comparison.sentence)}</p>\n<h2>Results</h2>\n"
        f"{table(COLUMNS, [row.cells() for row in comparison.rows], (3, 4, 5))}\n<h2>Settings that "
        f"differ</h2>\n{settings}"
    )
    return page(f"coalmine: {', '.join(comparison.runs)}", body)
