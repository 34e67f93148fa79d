"""Run directories written by hand, for whatever reads them."""

import json

import numpy as np

from coalmine.claims import Claim
from coalmine.results import verdict as units
from coalmine.results.directory import FORMAT
from coalmine.results.io import results_to_dict, write_manifest
from coalmine.results.result import Result
from coalmine.stats import Estimate, Scores, gaussian_shift, simultaneous


def result(method="one-shot", view="updates", *, bound=1.0, claim=8.0, stricter=None, estimate=None, **more):
    """Return a result as a run writes it: a bound at 95%, smaller ones at higher confidences, maybe an estimate."""
    levels = tuple((1 - 0.05 / 2**k, round(max(0.0, bound - 0.1 * k), 9)) for k in range(1, 11))
    lower = Estimate(
        "simultaneous", bound, bound, None, 0.95, 1e-5, True, stricter=levels if stricter is None else stricter
    )
    settings = {"unit": units.USER, "adversary": "sees the release", "score_name": "score", "seed": 0} | more
    return Result(
        method=method,
        view=view,
        estimates=[lower, *([] if estimate is None else [estimate])],
        claim=None if claim is None else Claim(epsilon=claim, delta=1e-5),
        **settings,
    )


def directory(path, *results, config=None, scores=None):
    """Write a directory with these results (or their JSON), of a run if there are settings; ``scores`` by name."""
    path.mkdir(parents=True, exist_ok=True)
    if config is not None:
        about = {"format": FORMAT, "coalmine": "0.1.0", "state": "done", "changed": "now"}
        (path / "run.json").write_text(json.dumps(about))
        (path / "config.toml").write_text(config)
    contents = [r.to_dict() if isinstance(r, Result) else r for r in results]
    content = results_to_dict([]) | {"results": contents}
    (path / "result.json").write_text(json.dumps(content))
    for name, (members, nonmembers) in (scores or {}).items():
        np.savez(path / f"scores-{name}.npz", members=members, nonmembers=nonmembers)
    write_manifest(path)
    return path


def measured(view, members, nonmembers):
    """Return a result of real scores."""
    scores = Scores(members, nonmembers)
    bound = simultaneous(scores, delta=1e-5, confidence=0.95).lower
    return result(view=view, bound=bound, estimate=gaussian_shift(scores, delta=1e-5))
