"""CANIFE in the report and the terminal, drawn from the ``details`` and ``arrays`` of saved results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import BOUND, ESTIMATE, THEORY, Figure, unit
from coalmine.drawing.html import Html, table, tag
from coalmine.drawing.pictures import is_picture, png_uri
from coalmine.drawing.sections import Section, method_section, result_part
from coalmine.results.result import MethodResults, Result, from_json
from coalmine.results.tables import Table, fixed

if TYPE_CHECKING:
    from coalmine.methods.method import Method

_BOUND, _ESTIMATE = "lower bound", "estimate by best-threshold, with its interval"
_MOST_SAMPLES = 8


def section(method: type[Method], method_results: MethodResults) -> Section:
    """Return CANIFE's section of the report: ε along the rounds, composed rounds and crafted samples."""
    parts = []
    for place, result in enumerate(method_results.results):
        figures, more = [], []
        if result.details.get("rounds"):
            figures.append(rounds_figure(result, f"canife-{place + 1}-rounds"))
            more += [_composed_table(result), _crafted_samples(result)]
        parts.append(result_part(result, place, figures, more))
    return method_section(method, parts)


def rounds_figure(result: Result, name: str) -> Figure:
    """Return ε of single rounds along the training: estimate with interval, bound, and the claim for one round."""
    rows = [_round_row(period) for period in result.details["rounds"]]
    claim = round_claim(result)
    # The margins keep marks at the first and last round, and at ε = 0, from being cut off.
    margin = max(1, rows[-1]["round"] - rows[0]["round"]) / 12
    values = [claim, *(row[field] for row in rows for field in ("high", "estimate", "bound"))]
    top = max([1.0, *(value for value in values if value is not None)])
    x = {
        "field": "round",
        "type": "quantitative",
        "title": "round",
        "axis": {"values": [row["round"] for row in rows], "grid": False},
        "scale": {"domain": [rows[0]["round"] - margin, rows[-1]["round"] + margin], "nice": False},
    }
    y = {
        "type": "quantitative",
        "title": "ε of one round",
        "scale": {"domain": [-0.03 * top, 1.05 * top], "nice": False},
    }
    kinds = [_BOUND, _ESTIMATE]
    points = [
        {"round": row["round"], "kind": kind, "value": row[field]}
        for row in rows
        for kind, field in zip(kinds, ("bound", "estimate"), strict=True)
        if row[field] is not None
    ]
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [] if claim is None else [{"value": claim}]},
            "mark": {"type": "rule", "strokeDash": [6, 4], "color": THEORY, "strokeWidth": 2},
            "encoding": {"y": {**y, "field": "value"}},
        },
        {
            "mark": {"type": "rule", "color": ESTIMATE, "strokeWidth": 2},
            "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "data": {"values": points},
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {
                "x": x,
                "y": {**y, "field": "value"},
                "shape": _by_kind(kinds, ["triangle-up", "circle"]),
                "color": _by_kind(kinds, [BOUND, ESTIMATE]),
            },
        },
    ]
    values_in_words = "; ".join(
        f"from round {row['round']}: estimate {numbers.epsilon(row['estimate'])}, bound {numbers.epsilon(row['bound'])}"
        for row in rows[:12]
    )
    return Figure(
        name=name,
        title="ε of single rounds along the training.",
        caption="Intervals hold only for a threshold fixed in advance. Dashed: the claim for one round.",
        sentence=f"ε of one round along the training. {values_in_words}.",
        chart=unit(rows, layers, height=240),
    )


def _round_row(period: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is drawn of a period; None for what is missing or infinite."""
    best = estimate_of(period, "best-threshold") or {}
    bound = bound_of(period) or {}
    return {
        "round": period["round"],
        "estimate": finite(best.get("epsilon")),
        "low": finite(best.get("lower")),
        "high": finite(best.get("upper")),
        "bound": finite(bound.get("lower")),
    }


def _by_kind(kinds: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    scale = {"domain": list(kinds), "range": list(values)}
    return {"field": "kind", "type": "nominal", "scale": scale, "legend": {"title": None}}


def _composed_table(result: Result) -> Html:
    """Return ε of the whole training by every way of composing rounds, or nothing."""
    rows = [
        [
            "ceiling: the most that rates of this many trials can compose to" if name == "ceiling" else f"from {name}",
            *(numbers.epsilon(value) for value in values),
        ]
        for name, values in composed_by_method(result).items()
    ]
    if not rows:
        return Html("")
    caption = "All rounds composed to ε of the training: estimates, not bounds"
    return table(caption, ["estimator of single rounds", "exact", "as in the paper"], rows)


def composed_by_method(result: Result) -> dict[str, tuple[float | None, float | None]]:
    """Return the composed ε, exact and as in the paper, by the estimator of single rounds."""
    values = {(c["method"], c["inversion"]): from_json(c["epsilon"]) for c in result.details["composed"]}
    methods = dict.fromkeys(method for method, _ in values)
    return {method: (values.get((method, "exact")), values.get((method, "paper"))) for method in methods}


def crafted_samples(result: Result) -> list[dict[str, Any]]:
    """Return the last canaries of a result for display.

    Returns:
        Dictionaries with ``kind`` (``"image"`` with ``png``, a ``data:`` URI; ``"text"`` with ``text``; or
        ``"numbers"``), ``target`` (None in language models) and ``caption``.
    """
    samples = []
    for i, canary in enumerate(result.details["canaries"]):
        target = canary["target"]
        sample: dict[str, Any] = {
            "kind": canary["kind"],
            "target": target,
            "caption": f"canary {i + 1}" if target is None else f"canary {i + 1}, labeled as class {target}",
        }
        if canary["kind"] == "text":
            sample["text"] = canary["text"]
        elif is_picture(tuple(canary["shape"])) and "inputs" in result.arrays:
            span = None if canary["range"] is None else (float(canary["range"][0]), float(canary["range"][1]))
            sample |= {"kind": "image", "png": png_uri(result.arrays["inputs"][i], span)}
        samples.append(sample)
    return samples


def _crafted_samples(result: Result) -> Html:
    """Return the last canaries as pictures or texts, or nothing."""
    shown = []
    for sample in crafted_samples(result)[:_MOST_SAMPLES]:
        if sample["kind"] == "image":
            attributes = {"src": sample["png"], "alt": f"Crafted {sample['caption']}", "width": "112", "height": "112"}
            shown.append(tag("figure", None, tag("img", attributes), tag("figcaption", None, sample["caption"])))
        elif sample["kind"] == "text":
            shown.append(tag("p", None, tag("code", None, str(sample["text"])), f" ({sample['caption']})"))
    if not shown:
        return Html("")
    return tag("div", {"class": "canaries"}, tag("p", None, "The last crafted samples:"), *shown)


def tables(method_results: MethodResults) -> list[Table]:
    """Return what the terminal shows: each adversary's estimates along the training, their scores, and composition."""
    return [
        table
        for result in method_results.results
        if result.details.get("rounds")
        for table in (_estimates_table(result), _scores_table(result), *_composition_table(result))
    ]


def _estimates_table(result: Result) -> Table:
    rows = []
    for period in result.details["rounds"]:
        bound, best = bound_of(period), estimate_of(period, "best-threshold")
        rows.append(
            [
                _rounds(period),
                "-" if bound is None else f"{_two_digits(bound['epsilon'])} of {_two_digits(period['ceiling'])}",
                "-" if best is None else f"{_two_digits(best['epsilon'])} of {_two_digits(period['rate_ceiling'])}",
                *(_two_digits((estimate_of(period, name) or {}).get("epsilon")) for name in ("gdp", "gaussian-shift")),
            ]
        )
    columns = ["rounds", "lower bound", "best threshold", "if Gaussian", "Gaussian shift"]
    return Table(f"canife, {result.label}: ε of one round, out of the most this many scores can show", columns, rows)


def _scores_table(result: Result) -> Table:
    rows = []
    for period in result.details["rounds"]:
        best, accuracy = estimate_of(period, "best-threshold"), period["attack_accuracy"]
        rows.append(
            [
                _rounds(period),
                f"{period['with_scores']} + {period['without_scores']}",
                f"{fixed(period['with_std'], 3)}, {fixed(period['without_std'], 3)}",
                "-" if accuracy is None else f"{accuracy:.1%}",
                "-" if best is None else f"{_two_digits(best['lower'])} to {_two_digits(best['upper'])}",
            ]
        )
    columns = ["rounds", "with + without", "std with, without", "accuracy", "interval"]
    return Table("their scores with and without the canary, and the best threshold's interval", columns, rows)


def _composition_table(result: Result) -> list[Table]:
    rows = [[name, *(fixed(value, 3) for value in values)] for name, values in composed_by_method(result).items()]
    title = "all rounds composed: estimates of ε, not bounds"
    return [Table(title, ["from ε̂ᵣ by", "exact", "as in the paper"], rows)] if rows else []


def _rounds(period: Mapping[str, Any]) -> str:
    first, count = period["round"], period["rounds"]
    return str(first) if count == 1 else f"{first}–{first + count - 1}"


def bound_of(period: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first lower bound of a period."""
    return next((e for e in period["estimates"] if e["valid"]), None)


def estimate_of(period: Mapping[str, Any], method: str) -> Mapping[str, Any] | None:
    """Return the estimate of a period by a method."""
    return next((e for e in period["estimates"] if e["method"] == method), None)


def _two_digits(value: float | str | None) -> str:
    return fixed(from_json(value), 2)


def round_claim(result: Result) -> float | None:
    """Return the claimed ε of one round, None if it is missing or infinite."""
    return None if result.claim is None else finite(result.claim.epsilon)


def finite(value: float | str | None) -> float | None:
    """Return a number of a result file, None if it is missing or infinite."""
    number = from_json(value)
    return number if number is not None and math.isfinite(number) else None
