"""From the LDP audit's trials to ε: bounds that hold, and the paper's plug-in figure beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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

_SHARES = {"one-run": 0.5, "clopper-pearson": 0.25, "ranks": 0.25}
_ASSUMES = "which gradient was sent was decided by a fair coin for each trial, and where to guess before any of them"


def estimates(trials: Sequence[Trials], *, delta: float, confidence: float) -> list[Estimate]:
    """ε from trials in one or several measurements, each with thresholds fixed before it; valid bounds first.

    * ``ldp``, the one to quote: the largest of the three that follow, which share the significance: a half for the
      guesses, a quarter each for the rates and the ranks.
    * ``one-run``: from how many guesses are right (Steinke, Nasr and Jagielski 2023). Under ε-LDP a guess of which
      gradient was sent is right with probability at most e^ε/(1+e^ε) whatever the other trials gave; best where both
      errors are alike.
    * ``clopper-pearson``: exact bounds on both error rates; best where they are not. Where measurements differ, rates
      are their means, for which the bounds hold as well (Hoeffding 1956: the binomial has the widest tails of all sums
      of independent trials of that mean).
    * ``ranks``: the highest and lowest scores, at numbers of guesses fixed in advance, for mechanisms whose extreme
      reports tell more: `stats.one_run`, and for a single measurement at δ > 0 `stats.simultaneous`, which is sharper
      there but takes the trials to be alike.
    * ``plug-in``, no bound: the paper's ε_empirical (Eq. 3) of all trials together.
    """
    best = shared_bound(trials, delta=delta, confidence=confidence)
    quoted = Estimate.bound("ldp", best, delta=delta, confidence=confidence, assumes=_ASSUMES)
    quoted = quoted.judged(lambda level: shared_bound(trials, delta=delta, confidence=level))
    seen = replace(plug_in(_total_counts(trials), delta=delta), assumes=_ASSUMES)
    return [quoted, *_bounds(trials, delta, dict.fromkeys(_SHARES, 1 - confidence)), seen]


def shared_bound(trials: Sequence[Trials], *, delta: float, confidence: float) -> float:
    """The bound to quote: the largest of three that share the significance."""
    shared = {name: (1 - confidence) * share for name, share in _SHARES.items()}
    return max(estimate.lower or 0.0 for estimate in _bounds(trials, delta, shared))


def _bounds(trials: Sequence[Trials], delta: float, significance: dict[str, float]) -> list[Estimate]:
    counts, guesses = _total_counts(trials), _total_guesses(trials)
    right = one_run_from_guesses(guesses, delta=delta, confidence=1 - significance["one-run"])
    rates = epsilon_from_counts(counts, delta=delta, confidence=1 - significance["clopper-pearson"])
    found = [replace(right, assumes=_ASSUMES), replace(rates, assumes=_ASSUMES)]
    try:
        ranks = _ranks(trials, delta, 1 - significance["ranks"])
        found.append(replace(ranks, method="ranks", assumes=_ASSUMES, threshold=None))
    except InputError:
        pass  # too few trials for any rank, or coins that fell too unevenly for it
    return found


def blind_epsilon(trials: Sequence[Trials], delta: float, simulations: int = 400) -> float:
    """The mean ε_empirical of guessing g₁ as often, but blindly: what the plug-in figure shows where there is nothing.

    ε_empirical is the larger of two logarithms of ratios of counts, and so above 0 by chance alone.
    """
    rng = np.random.default_rng(0)
    means: list[float] = []
    for one in trials:
        counts = one.counts
        share = (counts.tp + counts.fp) / (counts.members + counts.nonmembers)
        tpr = rng.binomial(counts.members, share, simulations) / counts.members
        fpr = rng.binomial(counts.nonmembers, share, simulations) / counts.nonmembers
        found = epsilon_from_rates(tpr, fpr, delta)
        means.append(float(np.mean(found[np.isfinite(found)])) if np.isfinite(found).any() else 0.0)
    return float(np.mean(means))


def _ranks(trials: Sequence[Trials], delta: float, confidence: float) -> Estimate:
    scores = Scores(
        np.concatenate([one.scores[one.members] for one in trials]),
        np.concatenate([one.scores[~one.members] for one in trials]),
    )
    if delta > 0 and len(trials) == 1:
        return simultaneous(scores, delta=delta, confidence=confidence, design="coin-flips")
    return one_run(scores, delta=delta, confidence=confidence)


def _total_counts(trials: Sequence[Trials]) -> Counts:
    each = [one.counts for one in trials]
    return Counts(*(sum(getattr(counts, name) for counts in each) for name in ("tp", "fn", "fp", "tn")))


def _total_guesses(trials: Sequence[Trials]) -> Guesses:
    each = [one.guesses for one in trials]
    return Guesses(*(sum(getattr(guesses, name) for guesses in each) for name in ("canaries", "guesses", "correct")))
