"""From trials to ε: lower bounds, and the paper's ε_empirical next to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.methods.ldp.trials import Trials
from coalmine.stats import (
    Counts,
    Estimate,
    Guesses,
    Scores,
    epsilon_from_counts,
    epsilon_from_rates,
    one_run,
    one_run_from_guesses,
    plug_in,
    simultaneous,
)

SHARES = {"one-run": 0.5, "clopper-pearson": 0.25, "ranks": 0.25}
"""How the tests of a bound, and of the claim, share the significance."""

ASSUMES = "a fair coin chose the gradient of each trial, and the guessing thresholds were fixed before the first trial"
_SIMULATIONS = 400  # of guesses at random
_SINGLE_THRESHOLD = "a guess at a single threshold shows all that the adversary learns"


def estimates(trials: Sequence[Trials], *, delta: float, confidence: float) -> list[Estimate]:
    """Return lower bounds on ε from trials of one or several measurements, then the estimates.

    * ``ldp``, the bound to quote: the largest of the next three, which share the significance. The guesses get half of
      it, the rates and the ranks a quarter each.
    * ``one-run``: from the number of right guesses (Steinke, Nasr and Jagielski 2023). Under ε-LDP a guess is right
      with probability at most e^ε/(1+e^ε), whatever the other trials showed. Best if both errors are about equal.
    * ``clopper-pearson``: exact bounds on both error rates; best if they are unequal. Where measurements differ, the
      rates are means over them, and the bounds still hold: among all sums of independent trials with the same mean the
      binomial has the widest tails (Hoeffding 1956).
    * ``ranks``: the highest and lowest scores, at numbers of guesses fixed in advance, for mechanisms whose extreme
      reports reveal more. `stats.one_run`; for a single measurement at δ > 0 `stats.simultaneous`, which is sharper
      there but needs identically distributed trials.
    * ``plug-in``, not a bound: ε_empirical (Eq. 3) of all trials together.
    * ``empirical``, not a bound: the mean ε_empirical of the measurements, as the paper reports it, ± their standard
      deviation. It is marked as doubtful where the quoted bound exceeds it, since one threshold then shows too little.

    Args:
        trials: One per measurement, with thresholds fixed before it.
        delta: δ at which ε is stated.
        confidence: Confidence of each bound by itself.
    """
    quoted = Estimate.bound(
        "ldp",
        shared_bound(trials, delta=delta, confidence=confidence),
        delta=delta,
        confidence=confidence,
        assumes=ASSUMES,
    ).with_stricter(lambda level: shared_bound(trials, delta=delta, confidence=level))
    bounds = _bounds(trials, delta, dict.fromkeys(SHARES, 1 - confidence))
    together = replace(plug_in(total_counts(trials), delta=delta), assumes=ASSUMES)
    return [quoted, *bounds, together, _mean_empirical(trials, delta, quoted.epsilon)]


def shared_bound(trials: Sequence[Trials], *, delta: float, confidence: float) -> float:
    """Return the bound to quote: the largest of three that share the significance."""
    shared = {name: (1 - confidence) * share for name, share in SHARES.items()}
    return max(estimate.lower or 0.0 for estimate in _bounds(trials, delta, shared))


def empirical_epsilons(trials: Sequence[Trials], delta: float) -> Floats:
    """Return the paper's ε_empirical (Eq. 3) of each measurement."""
    return np.array([measurement.counts.plug_in(delta) for measurement in trials])


def spread(epsilons: Floats) -> float:
    """Return the standard deviation over measurements: 0 for a single one, infinite if one of them is."""
    if not np.isfinite(epsilons).all():
        return math.inf
    return float(epsilons.std(ddof=1)) if len(epsilons) > 1 else 0.0


def blind_epsilon(trials: Sequence[Trials], delta: float) -> float:
    """Return the mean ε_empirical of guessing g₁ equally often but at random: what it shows without any leak.

    ε_empirical is the larger of two log-ratios of counts, and so above 0 by chance alone.
    """
    rng = np.random.default_rng(0)
    means: list[float] = []
    for measurement in trials:
        counts = measurement.counts
        share = (counts.tp + counts.fp) / (counts.members + counts.nonmembers)
        tpr = rng.binomial(counts.members, share, _SIMULATIONS) / counts.members
        fpr = rng.binomial(counts.nonmembers, share, _SIMULATIONS) / counts.nonmembers
        epsilons = epsilon_from_rates(tpr, fpr, delta)
        finite = epsilons[np.isfinite(epsilons)]
        means.append(float(np.mean(finite)) if finite.size else 0.0)
    return float(np.mean(means))


def _mean_empirical(trials: Sequence[Trials], delta: float, bound: float) -> Estimate:
    """Return the mean ε_empirical as an estimate, with its spread where there are several measurements."""
    epsilons = empirical_epsilons(trials, delta)
    mean, deviation = float(epsilons.mean()), spread(epsilons)
    lower, upper = None, None
    if len(trials) > 1 and math.isfinite(deviation):
        lower, upper = max(0.0, mean - deviation), mean + deviation
    return Estimate(
        "empirical", mean, lower=lower, upper=upper, delta=delta, assumes=_SINGLE_THRESHOLD, doubtful=mean < bound
    )


def _bounds(trials: Sequence[Trials], delta: float, significance: dict[str, float]) -> list[Estimate]:
    """Return the three bounds, each at its own significance."""
    guesses = one_run_from_guesses(total_guesses(trials), delta=delta, confidence=1 - significance["one-run"])
    rates = epsilon_from_counts(total_counts(trials), delta=delta, confidence=1 - significance["clopper-pearson"])
    bounds = [replace(guesses, assumes=ASSUMES), replace(rates, assumes=ASSUMES)]
    try:
        ranks = _ranks(trials, delta, 1 - significance["ranks"])
        bounds.append(replace(ranks, method="ranks", assumes=ASSUMES, threshold=None))
    except InputError:
        pass  # too few trials for any rank, or too uneven coins
    return bounds


def _ranks(trials: Sequence[Trials], delta: float, confidence: float) -> Estimate:
    """Return the bound from the highest and lowest scores."""
    scores = split_scores(trials)
    if delta > 0 and len(trials) == 1:
        return simultaneous(scores, delta=delta, confidence=confidence, design="coin-flips")
    return one_run(scores, delta=delta, confidence=confidence)


def split_scores(trials: Sequence[Trials]) -> Scores:
    """Return the scores of all trials that sent g₁, and of all that sent g₂."""
    return Scores(
        np.concatenate([measurement.scores[measurement.sent_first] for measurement in trials]),
        np.concatenate([measurement.scores[~measurement.sent_first] for measurement in trials]),
    )


def total_counts(trials: Sequence[Trials]) -> Counts:
    """Return the confusion matrix of all measurements together."""
    counts = [measurement.counts for measurement in trials]
    return Counts(*(sum(getattr(c, name) for c in counts) for name in ("tp", "fn", "fp", "tn")))


def total_guesses(trials: Sequence[Trials]) -> Guesses:
    """Return the guesses of all measurements together."""
    guesses = [measurement.guesses for measurement in trials]
    return Guesses(*(sum(getattr(g, name) for g in guesses) for name in ("canaries", "guesses", "correct")))
