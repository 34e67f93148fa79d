"""ε of two normal distributions fitted to the scores: the one-shot paper's ε_est. Estimates, never bounds."""

from __future__ import annotations

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import NotApplicableError, check_confidence, check_delta
from coalmine.stats.epsilon import Estimate
from coalmine.stats.gaussian import epsilon_gdp, threshold_epsilon_between_gaussians
from coalmine.stats.scores import Scores

_RESAMPLES = 400


def gaussian_fit(scores: Scores, *, delta: float, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """ε_est: normal distributions with the mean and standard deviation of either side, best single threshold.

    Andrew et al. (2023), Algorithms 1 (closed-form null) and 2 (observed non-members). Biased upwards for finite
    samples, since an error in the fitted standard deviation is paid for far in the tail. ``lower`` and ``upper`` are
    the ends of a parametric bootstrap interval of the estimate, not bounds on the true ε.
    """
    (mu0, std0), (mu1, std1) = moments(scores)
    draws0, draws1 = _resampled(scores, seed)
    epsilon = float(threshold_epsilon_between_gaussians(mu0, std0, mu1, std1, check_delta(delta)))
    resampled = threshold_epsilon_between_gaussians(*draws0, *draws1, delta)
    return _estimate("gaussian-fit", epsilon, resampled, delta, confidence, "the scores of either side are normal")


def gaussian_shift(scores: Scores, *, delta: float, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """ε of two normal distributions that differ in their mean only, with the non-members' standard deviation.

    For cosines of random canaries this is Section 3 of Andrew et al. (2023): σ̂ = 1/(μ̂√d), then the exact calibration
    of the Gaussian mechanism. Nearly unbiased where the mechanism is Gaussian. The interval is as in `gaussian_fit`.
    """
    (mu0, std0), (mu1, _) = moments(scores)
    draws0, draws1 = _resampled(scores, seed)
    epsilon = float(epsilon_gdp(max(0.0, (mu1 - mu0) / std0), check_delta(delta)))
    resampled = epsilon_gdp(np.maximum(0.0, (draws1[0] - draws0[0]) / draws0[1]), delta)
    assumes = "the scores of either side are normal with the same standard deviation"
    return _estimate("gaussian-shift", epsilon, resampled, delta, confidence, assumes)


def moments(scores: Scores) -> tuple[tuple[float, float], tuple[float, float]]:
    """Mean and standard deviation of non-members (exact where the null is known) and of members."""
    members = float(np.mean(scores.members)), _std("members", scores.members)
    if scores.null is not None:
        return (scores.null.mean, scores.null.std), members
    return (float(np.mean(scores.observed)), _std("nonmembers", scores.observed)), members


def _std(name: str, side: Floats) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        std = float(np.std(side, ddof=1)) if side.size > 1 else 0.0
    if not 0 < std < np.inf:
        raise NotApplicableError(f"a Gaussian fit needs at least two different scores of {name} of moderate size")
    return std


def _resampled(scores: Scores, seed: int) -> list[tuple[Floats, Floats]]:
    """Means and standard deviations of normal samples like the ones observed, for non-members and members."""
    rng = np.random.default_rng(seed)
    draws = []
    sizes = (None if scores.null is not None else scores.observed.size, scores.members.size)
    for (mu, std), size in zip(moments(scores), sizes, strict=True):
        if size is None:
            draws.append((np.full(_RESAMPLES, mu), np.full(_RESAMPLES, std)))
        else:
            means = rng.normal(mu, std / np.sqrt(size), _RESAMPLES)
            draws.append((means, std * np.sqrt(rng.chisquare(size - 1, _RESAMPLES) / (size - 1))))
    return draws


def _estimate(
    method: str, epsilon: float, resampled: Floats, delta: float, confidence: float, assumes: str
) -> Estimate:
    tail = (1 - check_confidence(confidence)) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], method="closest_observation")
    return Estimate(
        method=method,
        epsilon=epsilon,
        lower=float(low),
        upper=float(high),
        confidence=confidence,
        delta=delta,
        valid=False,
        assumes=assumes,
    )
