"""A small run, written as a real one writes itself, without training anything."""

import numpy as np

from coalmine.accounting import claimed
from coalmine.files import write_arrays, write_json, write_text
from coalmine.results.files import merged, write_result, write_scores
from coalmine.results.result import AuditResult
from coalmine.stats import Scores, estimate

DELTA = 1e-5


def write_run(directory, *, title="A small run", view="final-change", phrase="one two three", promise=4.0, audits=None):
    """Write a run of these audits (all five if none are named) into ``directory``, and return it."""
    rng = np.random.default_rng(7)
    wanted = audits or ("one-shot", "canife", "secret-sharer", "ldp", "exposure")
    results = []

    def audited(audit, view, *, shift, promised, config=None, metrics=None, delta=DELTA):
        scores = rng.normal(shift, 1, 60), rng.normal(0, 1, 50)
        found = AuditResult(
            audit=audit,
            view=view,
            seed=0,
            estimates=estimate(*scores, delta=delta),
            scores=Scores(*scores),
            theory=None if promised is None else claimed(promised, delta),
            warnings=[f"beware of {phrase}"],
            metrics={"planted": 60.0, "held_out": 50.0, **(metrics or {})},
            config={"score": "cosine", **(config or {})},
        )
        return found, found.to_dict()

    def kept(found, content):
        write_scores(found, directory)
        results.append(content)

    if "one-shot" in wanted:
        kept(*audited("one-shot", view, shift=2.0, promised=promise))
    if "canife" in wanted:
        found, content = audited("canife", "frozen", shift=1.5, promised=promise)
        rounds = [{"round": t, "rounds": 5, "estimates": content["estimates"]} for t in (0, 5)]
        composed = [{"method": "best-threshold", "inversion": way, "epsilon": 9.5} for way in ("exact", "paper")]
        theory = content["theory"] | {"epsilon": 3 * promise}
        canaries = [{"kind": "numbers", "target": 3, "shape": [1, 8, 8], "range": [0.0, 1.0]}] * 2
        kept(found, content | {"rounds": rounds, "composed": composed, "training_theory": theory, "canaries": canaries})
        write_arrays(directory / "trials-frozen.npz", {"inputs": rng.random((2, 1, 8, 8))})
    if "secret-sharer" in wanted:
        kept(*audited("secret-sharer", "loss:phrase", shift=0.5, promised=None))
        kept(*audited("secret-sharer", "loss:user", shift=0.5, promised=promise))
        write_json(directory / "memorization.json", _memorization(phrase))
    if "ldp" in wanted:
        config = {"crafter": "benign", "epsilon": 1.0, "gradient_norm": None, "norm": 1.0, "trials": 110}
        metrics = {"empirical": 0.4, "empirical_std": 0.1, "bound_of_all": 0.2}
        results.append(
            audited("ldp", "white-box", shift=0.5, promised=1.0, config=config, metrics=metrics, delta=0.0)[1]
        )
    if "exposure" in wanted:
        kept(*audited("exposure", "ranks", shift=0.5, promised=None))
    history = [{"round": t, "train_loss": 2.0 - 0.1 * t, "accuracy": 0.5 + 0.05 * t} for t in range(5)]
    metrics = {"accuracy": 0.7, "accuracy without canaries": 0.72}
    training = {"clients": 20, "parameters": 100, "rounds": 5, "private": True, "metrics": metrics, "history": history}
    write_result({**merged(results), "title": title, "training": training}, directory)
    write_text(directory / "config.toml", f'[run]\ntitle = "{phrase}"\n')
    return directory


def _memorization(phrase):
    kinds = [
        {"p_u": 0.01, "p_e": p_e, "canaries": 1, "random_sampling": 0, "beam_search": int(p_e), "median_exposure": 2.5}
        for p_e in (0.5, 1.0)
    ]
    books = {"p_u": 0.01, "p_e": 1.0, "users": 3, "copies": 9}
    canaries = [{"phrase": phrase, "planted": True, "exposure": 2.5, "extracted": True, **books}]
    return {"configurations": kinds, "canaries": canaries}
