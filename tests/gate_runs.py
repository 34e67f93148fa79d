"""Run directories written by hand, for whatever reads them."""

import json

import numpy as np

from coalmine.results.files import SCHEMA
from coalmine.stats import Scores, gaussian_shift, simultaneous


def result(audit="one-shot", view="updates", *, bound=1.0, promise=8.0, stricter=None, estimate=None, **more):
    """A result as a run writes it; its bound at 95%, and lower ones at higher confidences."""
    levels = [[1 - 0.05 / 2**k, round(max(0.0, bound - 0.1 * k), 9)] for k in range(1, 11)]
    found = {
        "method": "simultaneous",
        "epsilon": bound,
        "lower": bound,
        "upper": None,
        "confidence": 0.95,
        "delta": 1e-5,
    }
    found |= {"valid": True, "threshold": None, "assumes": "", "stricter": levels if stricter is None else stricter}
    estimates = [found] + ([estimate] if estimate else [])
    return {
        "audit": audit, "view": view, "seed": 0, "estimates": estimates, "meaning": "", "metrics": {}, "config": {},
        "warnings": [], "refuted": promise is not None and bound > promise,
        "theory": None if promise is None else {"epsilon": promise, "delta": 1e-5},
    } | more  # fmt: skip


def directory(path, *results, config='[one-shot]\nview = "updates"\n', scores=None, state="done"):
    """A run's directory with such results; ``scores`` by view."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").write_text(json.dumps({"format": 1, "coalmine": "0.1.0", "state": state, "changed": "now"}))
    (path / "config.toml").write_text(config)
    (path / "result.json").write_text(json.dumps({"schema": SCHEMA, "coalmine": "0.1.0", "results": list(results)}))
    for view, (members, nonmembers) in (scores or {}).items():
        np.savez(path / f"scores-{view}.npz", members=members, nonmembers=nonmembers)
    return path


def measured(view, members, nonmembers):
    """A result of real scores."""
    scores = Scores(members, nonmembers)
    bound = simultaneous(scores, delta=1e-5, confidence=0.95).lower
    return result(view=view, bound=bound, estimate=gaussian_shift(scores, delta=1e-5).to_dict())
