"""The report's sections on trainings: how good the model is, with and without canaries, and how it got there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import INSERTED, Figure, layer, placed, quantitative, unit
from coalmine.drawing.html import joined, paragraphs, slug, table, tag
from coalmine.drawing.sections import Section
from coalmine.results.result import from_json

_WITHOUT = " without canaries"


def training_section(name: str, training: Mapping[str, Any], *, alone: bool) -> Section:
    """Return the section of one training, by the name of its table."""
    metrics = training.get("metrics") or {}
    figures = _training_curves(training.get("history") or [], name)
    facts = (
        f"{numbers.count(training['clients'])} clients, {numbers.count(training['parameters'])} parameters, "
        f"{numbers.count(training['rounds'])} rounds, "
        f"{'with' if training.get('private') else 'without'} a privacy mechanism."
    )
    names = [metric for metric in metrics if not str(metric).endswith(_WITHOUT)]
    baseline = any(str(metric).endswith(_WITHOUT) for metric in metrics)
    columns = ["on test data", "with canaries", *(["without canaries"] if baseline else [])]
    rows = [
        [metric, *(numbers.metric(metrics.get(f"{metric}{ending}", "–")) for ending in ("", _WITHOUT)[: 1 + baseline])]
        for metric in names
    ]
    note = (
        "The table shows what the canaries cost in quality."
        if baseline
        else "The cost of the canaries was not measured: set baseline = true in [run]."
    )
    body = joined(
        [
            paragraphs([note]),
            table("Quality of the model", columns, rows) if rows else "",
            tag("div", {"class": "panels"}, *map(placed, figures)),
        ]
    )
    title = "Model and training" if alone else f"Model and training: {name}"
    short = name.replace("-", " ")
    return Section(key=slug(name), title=title, short=short, lead=paragraphs([facts]), body=body, figures=figures)


def _training_curves(history: Sequence[Mapping[str, Any]], name: str) -> list[Figure]:
    """Return the clients' training loss and the model's quality by round."""
    quality = next((m for m in ("accuracy", "recall@1") if any(m in h for h in history)), None)
    curves = [("train_loss", "Clients' loss"), *([] if quality is None else [(quality, f"{quality} on test data")])]
    return [figure for field, title in curves if (figure := _curve(history, field, title, name)) is not None]


def _curve(history: Sequence[Mapping[str, Any]], field: str, title: str, name: str) -> Figure | None:
    points = [{"round": h["round"] + 1, "value": from_json(h[field])} for h in history if h.get(field) is not None]
    points = [point for point in points if math.isfinite(point["value"])]
    points = [point for point in points if math.isfinite(point["value"])]
    if len(points) < 2:  # a single point is no curve, and the table has it
        return None
    style = {"color": INSERTED, "strokeWidth": 2, "point": len(points) < 30 and {"color": INSERTED, "size": 30}}
    x = quantitative("round", "round", axis={"tickMinStep": 1})
    y = quantitative("value", title, scale={"zero": False})
    return Figure(
        name=f"{slug(name)}-{'loss' if field == 'train_loss' else 'quality'}",
        title=f"{title[:1].upper()}{title[1:]}.",
        caption="By round, with canaries.",
        sentence=f"{title} by round: {points[0]['value']:.4g} at first, {points[-1]['value']:.4g} at the end.",
        chart=unit(points, [layer("line", style, x=x, y=y)], height=180),
    )
