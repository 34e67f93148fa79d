"""CANIFE in the report and the terminal, from the ``details`` and ``arrays`` of saved results."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from coalmine.arrays import Array
from coalmine.results.result import MethodResults, Result, from_json
from coalmine.results.tables import Table, fixed

_MOST_SAMPLES = 8  # crafted samples that the report shows

Row = dict[str, Any]


def rounds(result: Result) -> tuple[list[Row], list[Row]]:
    """Return ε of single rounds along the training, and the line of the claim for one round (Figures 1 and 4)."""
    rows = []
    for period in result.details["rounds"]:
        best, bound = _estimate(period, "best-threshold"), _bound(period)
        numbers = {"estimate": best.get("epsilon"), "low": best.get("lower"), "high": best.get("upper")}
        numbers["bound"] = bound.get("lower")
        rows.append({"x": period["round"], **{name: _finite(value) for name, value in numbers.items()}})
    claim = None if result.claim is None else _finite(result.claim.epsilon)
    ends = [] if claim is None else [{"x": row["x"], "claim": claim} for row in rows]
    return rows, ends


def composed(result: Result) -> dict[str, tuple[float | None, float | None]]:
    """Return ε of the whole training, exact and as in the paper, by the estimator of single rounds."""
    pairs: dict[str, list[float | None]] = {}
    for entry in result.details["composed"]:
        pair = pairs.setdefault(entry["method"], [None, None])
        pair[entry["inversion"] == "paper"] = from_json(entry["epsilon"])
    return {method: (exact, paper) for method, (exact, paper) in pairs.items()}


def samples(result: Result) -> list[Row]:
    """Return the last canaries that can be shown: a caption, and a picture or a text."""
    shown = []
    for i, canary in enumerate(result.details["canaries"][:_MOST_SAMPLES]):
        target, shape = canary["target"], canary.get("shape", ())
        caption = f"canary {i + 1}" if target is None else f"canary {i + 1}, labeled as class {target}"
        if canary["kind"] == "text":
            shown.append({"caption": caption, "png": None, "text": canary["text"]})
        elif len(shape) == 3 and shape[0] in (1, 3) and "inputs" in result.arrays:
            shown.append({"caption": caption, "png": png(result.arrays["inputs"][i], canary["range"])})
    return shown


def png(image: Array, span: tuple[float, float] | None = None) -> str:
    """Return an image of shape (1 or 3, height, width) as the ``data:`` URL of a PNG.

    Args:
        image: The image.
        span: The values shown as black and white, by default the smallest and the largest.
    """
    low, high = (image.min(), image.max()) if span is None else span
    scaled = (image.astype(np.float64) - low) / (high - low if high > low else 1.0)
    pixels = np.round(255 * np.clip(scaled, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    # Each row starts with the number of its filter; 0 means none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    content = b"\x89PNG\r\n\x1a\n"
    for name, part in ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")):
        content += struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


def tables(found: MethodResults) -> list[Table]:
    """Return what the terminal shows: each adversary's estimates along the training, and rounds composed."""
    shown = []
    for result in found.results:
        if not result.details.get("rounds"):
            continue
        rows = []
        for period in result.details["rounds"]:
            first, last = period["round"], period["round"] + period["rounds"] - 1
            accuracy = period["attack_accuracy"]
            rows.append(
                [
                    str(first) if first == last else f"{first}–{last}",
                    f"{_two(_bound(period), 'epsilon')} of {_two(period, 'ceiling')}",
                    f"{_two(_estimate(period, 'best-threshold'), 'epsilon')} of {_two(period, 'rate_ceiling')}",
                    _two(_estimate(period, "gdp"), "epsilon"),
                    _two(_estimate(period, "gaussian-shift"), "epsilon"),
                    f"{period['with_scores']} + {period['without_scores']}",
                    f"{fixed(period['with_std'], 3)}, {fixed(period['without_std'], 3)}",
                    "-" if accuracy is None else f"{accuracy:.1%}",
                ]
            )
        columns = ["rounds", "lower bound", "best threshold", "if Gaussian", "Gaussian shift"]
        columns += ["scores with + without", "std with, without", "accuracy"]
        title = f"canife, {result.label}: ε of one round, out of the most this many scores can show"
        shown.append(Table(title, columns, rows))
        training = [[name, *(fixed(value, 3) for value in values)] for name, values in composed(result).items()]
        if training:
            title = "all rounds composed: estimates of ε, not bounds"
            shown.append(Table(title, ["from ε̂ᵣ by", "exact", "as in the paper"], training))
    return shown


def _bound(period: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first lower bound of a period; empty if there is none."""
    return next((estimate for estimate in period["estimates"] if estimate["valid"]), {})


def _estimate(period: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """Return the estimate of a period by a method; empty if there is none."""
    return next((estimate for estimate in period["estimates"] if estimate["method"] == method), {})


def _two(numbers: Mapping[str, Any], name: str) -> str:
    return fixed(from_json(numbers.get(name)), 2)


def _finite(value: float | str | None) -> float | None:
    """Return a number of a result file, None if it is missing or infinite."""
    number = from_json(value)
    return number if number is not None and math.isfinite(number) else None
