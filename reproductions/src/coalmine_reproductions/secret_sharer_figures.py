"""The figure of the secret sharer's tables: how much each training regime memorizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.errors import InputError
from coalmine_reproductions.figures import SERIES


def regimes(table: Mapping[str, Any]) -> Any:
    """Return how many canaries each training regime of a reproduced table memorizes; circles are the paper's counts.

    Args:
        table: Title, columns and rows, as ``coalmine reproduce secret-sharer-table-1 --out DIR`` writes them.

    Raises:
        InputError: If it is not one of the secret-sharer tables.
    """
    import altair as alt

    columns: Sequence[str] = table["columns"]
    if columns[1:2] != ["paper: RS"] or "ours: RS" not in columns:
        raise InputError(f"regimes are drawn from a table of the secret-sharer paper, got {table['title']!r}")
    ours = columns.index("ours: RS")
    data = [
        {"setting": row[0], "method": name, "ours": int(row[ours + shift]), "paper": int(row[1 + shift])}
        for row in table["rows"]
        for shift, name in ((0, "random sampling"), (2, "beam search"))
    ]
    methods = ["random sampling", "beam search"]
    base = alt.Chart(alt.InlineData(values=data)).encode(
        y=alt.Y("setting:N", sort=[row[0] for row in table["rows"]], title=None, axis=alt.Axis(labelLimit=260)),
        yOffset=alt.YOffset("method:N", sort=methods),
        color=alt.Color("method:N", title=None, scale=alt.Scale(domain=methods, range=list(SERIES[:2]))),
        tooltip=["setting:N", "method:N", "ours:Q", "paper:Q"],
    )
    bars = base.mark_bar().encode(x=alt.X("ours:Q", title="canaries memorized; circles: the paper's"))
    paper = base.mark_point(size=45, strokeWidth=2, fill="white", opacity=1).encode(
        x="paper:Q", color=alt.value("#222222")
    )
    return alt.layer(bars, paper).properties(width=420, height=alt.Step(14), title=table["title"])
