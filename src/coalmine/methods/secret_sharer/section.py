"""What the secret sharer's section of the report shows besides its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coalmine.results.result import from_json

_SHOWN_PHRASES = 12


def section(memorization: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the cells of the heat map and the phrases with the highest exposure, from ``memorization.json``."""
    if not memorization:
        return {"memorization": None}
    cells = []
    for row in sorted(memorization["configurations"], key=lambda row: (-row["p_e"], row["p_u"])):
        details = f"{row['beam_search']} extracted · {row['median_exposure']:.1f} bits"
        count = f"{row['random_sampling']} of {row['canaries']}"
        share = row["random_sampling"] / max(1, row["canaries"])
        place = {"x": f"{row['p_u']:g}", "y": f"{row['p_e']:g}"}
        cells.append({**place, "share": share, "text": count, "details": details})
    inserted = [canary for canary in memorization.get("canaries", ()) if canary["planted"]]
    inserted.sort(key=lambda canary: -(from_json(canary["exposure"]) or 0.0))
    phrases = []
    for canary in inserted[:_SHOWN_PHRASES]:
        exposure = from_json(canary["exposure"])
        memorized = canary.get("rank") == 1 and canary.get("among") == memorization.get("references")
        phrases.append(
            [
                str(canary["phrase"]),
                f"{canary['p_u']:g}",
                f"{canary['p_e']:g}",
                str(canary.get("users", "–")),
                str(canary.get("copies", "–")),
                "–" if exposure is None else f"{exposure:.1f}",
                "yes" if memorized else "no",
                "yes" if canary.get("extracted") else "no",
            ]
        )
    return {"memorization": memorization, "cells": cells, "phrases": phrases, "inserted": len(inserted)}
