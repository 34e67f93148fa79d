"""A small run of every method, written as a real one is, without training anything."""

import numpy as np

from coalmine.claims import Claim
from coalmine.files import write_json, write_text
from coalmine.results import verdict as units
from coalmine.results.io import results_to_dict, write_manifest, write_scores
from coalmine.results.result import Result
from coalmine.stats import Estimate, Scores, estimate

DELTA = 1e-5
METHODS = ("one-shot", "canife", "secret-sharer", "ldp", "exposure")


def write_run(
    directory, *, title="A small run", view="final-change", phrase="one two three", claim=8.0, methods=METHODS
):
    """Write a run of these methods into ``directory``, and return it."""
    rng = np.random.default_rng(7)
    results = []

    def add(method, view, *, shift, claim, unit=units.USER, delta=DELTA, **more):
        sides = rng.normal(shift, 1, 60), rng.normal(0, 1, 50)
        more.setdefault("estimates", estimate(*sides, delta=delta))
        result = Result(
            method=method,
            view=view,
            unit=unit,
            adversary="sees the final model",
            score_name="cosine",
            seed=0,
            scores=Scores(*sides),
            claim=None if claim is None else Claim(epsilon=claim, delta=delta),
            training="" if unit is units.REPORT else "training",
            warnings=[f"beware of {phrase}"],
            **more,
        )
        write_scores([result], directory)
        results.append(result)
        return result

    if "one-shot" in methods:
        add("one-shot", view, shift=1.2, claim=claim)
    if "canife" in methods:
        estimates = [e.to_dict() for e in estimate(rng.normal(1.5, 1, 60), rng.normal(0, 1, 50), delta=DELTA)]
        details = {
            "rounds": [{"round": t, "rounds": 5, "estimates": estimates} for t in (0, 5)],
            "composed": [{"method": "best-threshold", "inversion": w, "epsilon": 9.5} for w in ("exact", "paper")],
            "canaries": [{"kind": "numbers", "target": 3, "shape": [1, 8, 8], "range": [0.0, 1.0]}] * 2,
        }
        arrays = {"inputs": rng.random((2, 1, 8, 8))}
        add("canife", "frozen", shift=1.2, claim=claim, unit=units.ROUND, details=details, arrays=arrays)
        results.append(
            Result(
                method="canife",
                view="frozen, composed",
                unit=units.USER,
                adversary="sees all rounds",
                training="training",
                score_name="projection",
                seed=0,
                estimates=[Estimate("composed", 9.5)],
                claim=Claim(epsilon=3 * claim, delta=DELTA),
            )
        )
    if "secret-sharer" in methods:
        add("secret-sharer", "loss:phrase", shift=0.5, claim=None, unit=units.PHRASE)
        add("secret-sharer", "loss:user", shift=0.5, claim=claim)
        write_json(directory / "memorization.json", _memorization(phrase))
    if "ldp" in methods:
        config = {"crafter": "benign", "epsilon": 1.0, "gradient_norm": None, "clip_norm": 1.0, "trials": 110}
        sides = rng.normal(0.5, 1, 60), rng.normal(0, 1, 50)
        estimates = [*estimate(*sides, delta=0.0, methods=["simultaneous"]), Estimate("empirical", 0.4, 0.3, 0.5)]
        metrics = {"empirical": 0.4, "empirical_std": 0.1}
        terms = {"unit": units.REPORT, "delta": 0.0, "variant": "benign, ε = 1", "joint_bound": 0.2}
        add("ldp", "white-box", shift=0.5, claim=1.0, config=config, metrics=metrics, estimates=estimates, **terms)
    if "exposure" in methods:
        row = {"summary": "mean", "canaries": 2.0, "random_guessing": 1.4, "low": None, "high": None}
        details = {"canaries": 60, "references": 50, "rows": [row], "exposures": [2.0] * 60}
        add("exposure", "ranks", shift=0.5, claim=None, unit=units.SCORES, details=details, recipe={"confidence": 0.95})
    history = [{"round": t, "train_loss": 2.0 - 0.1 * t, "accuracy": 0.5 + 0.05 * t} for t in range(5)]
    metrics = {"accuracy": 0.7, "accuracy without canaries": 0.72}
    training = {"clients": 20, "parameters": 100, "rounds": 5, "private": True, "metrics": metrics, "history": history}
    write_json(directory / "result.json", results_to_dict(results, title=title, training_runs={"training": training}))
    write_text(directory / "config.toml", f'[run]\ntitle = "{phrase}"\n')
    write_manifest(directory)
    return directory


def _memorization(phrase):
    kinds = [
        {"p_u": 0.01, "p_e": p_e, "canaries": 1, "random_sampling": 0, "beam_search": int(p_e), "median_exposure": 2.5}
        for p_e in (0.5, 1.0)
    ]
    books = {"p_u": 0.01, "p_e": 1.0, "users": 3, "copies": 9}
    canary = {"phrase": phrase, "planted": True, "rank": 2, "among": 10, "exposure": 2.5, "extracted": True, **books}
    counts = {"planted": 2, "references": 10, "random_sampling": 0, "beam_search": 1}
    return {**counts, "configurations": kinds, "canaries": [canary]}
