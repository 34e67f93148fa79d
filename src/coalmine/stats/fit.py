"""ε of normal distributions fitted to the scores: estimates, never bounds (Andrew et al., 2023, Sections 3 and 4)."""

from __future__ import annotations

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import NotApplicableError, check_confidence, check_delta
from coalmine.stats.epsilon import Estimate
from coalmine.stats.gaussian import epsilon_gdp, threshold_epsilon_between_gaussians
from coalmine.stats.scores import Scores

_DRAWS = 2000


def gaussian_fit(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Compute ε_est: fit a normal distribution to each side, and take the best single threshold between the two.

    Andrew et al. (2023), Algorithm 1 (known null) and Algorithm 2 (observed non-members). An estimate, and biased
    upward: ε at a small δ is decided far in the tail, where a small error in a fitted standard deviation costs a lot.

    It has no interval. For a Gaussian mechanism both standard deviations are equal, and there ε is smallest: it grows
    if either exceeds the other. Nearly all draws around the fit then lie above the true ε, and their quantiles would
    hold it in about 70% of audits at a nominal 95%, however many scores there are (docs/estimators.md).

    Args:
        scores: Scores of members and of non-members, or with a known null.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Not used, since there is no interval; in [0.5, 1).

    Returns:
        The estimate, without an interval.

    Raises:
        NotApplicableError: If a side has fewer than two distinct scores, or the null has no known moments.
        InputError: If ``delta`` or ``confidence`` is out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000))
        >>> round(gaussian_fit(scores, delta=1e-5).epsilon, 1)  # the true ε is 4.4
        5.2
    """
    check_confidence(confidence)
    (mu0, std0), (mu1, std1) = moments(scores)
    return Estimate(
        "gaussian-fit",
        float(threshold_epsilon_between_gaussians(mu0, std0, mu1, std1, check_delta(delta))),
        delta=delta,
        assumes="the scores of either side are normal",
        few_scores=scores.few,
    )


def gaussian_shift(scores: Scores, *, delta: float, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Compute the ε of two normal distributions that differ only in their means.

    The standard deviation is the non-members'. For cosines of random canaries this is Section 3 of Andrew et al.
    (2023): σ̂ = 1/(μ̂√d), then the exact ε of the Gaussian mechanism with that noise. An estimate, nearly unbiased for
    Gaussian mechanisms and meaningless if the scores are not bell-shaped.

    Its interval is a generalized confidence interval (Weerahandi 1993): quantiles of the shift for means and standard
    deviations that are drawn around the observed ones. For normal scores it covers as often as it says from 10 scores
    on, also if the two standard deviations differ.

    Args:
        scores: Scores of members and of non-members, or with a known null.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of the two-sided interval, in [0.5, 1).
        seed: Seed of the draws behind the interval.

    Returns:
        The estimate; ``lower`` and ``upper`` show its sampling error and do not bound the true ε.

    Raises:
        NotApplicableError: If a side has fewer than two distinct scores, or the null has no known moments.
        InputError: If ``delta`` or ``confidence`` is out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000))
        >>> round(gaussian_shift(scores, delta=1e-5).epsilon, 1)  # the true ε is 4.4
        4.1
    """
    tail = (1 - check_confidence(confidence)) / 2
    (mu0, std0), (mu1, _) = moments(scores)
    draws0, draws1 = _drawn_moments(scores, seed)
    low, high = np.quantile((draws1[0] - draws0[0]) / draws0[1], [tail, 1 - tail])
    # ε of the Gaussian mechanism grows with the shift, so the quantiles of one are those of the other.
    epsilon, lower, upper = epsilon_gdp(np.maximum(0.0, [(mu1 - mu0) / std0, low, high]), check_delta(delta)).tolist()
    return Estimate(
        "gaussian-shift",
        epsilon,
        lower,
        upper,
        confidence,
        delta,
        assumes="the scores of either side are normal with the same standard deviation",
        few_scores=scores.few,
    )


def moments(scores: Scores) -> tuple[tuple[float, float], tuple[float, float]]:
    """Compute mean and standard deviation of both sides.

    Args:
        scores: Scores of members and of non-members, or with a known null.

    Returns:
        (mean, standard deviation) of the non-members, exact for a known null, and of the members.

    Raises:
        NotApplicableError: If a side has fewer than two distinct scores, or the null has no known moments.

    Example:
        >>> moments(Scores([1.0, 3.0], [-1.0, 0.0, 1.0]))
        ((0.0, 1.0), (2.0, 1.4142135623730951))
    """
    members = float(np.mean(scores.members)), _std("members", scores.members)
    if scores.null is not None:
        return (scores.null.mean, scores.null.std), members
    return (float(np.mean(scores.observed)), _std("nonmembers", scores.observed)), members


def _std(name: str, side: Floats) -> float:
    """Return the standard deviation of one side, unless it is 0 or overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        std = float(np.std(side, ddof=1)) if side.size > 1 else 0.0
    if not 0 < std < np.inf:
        raise NotApplicableError(f"a Gaussian fit needs {name} with at least two distinct scores of moderate size")
    return std


def _drawn_moments(scores: Scores, seed: int) -> list[tuple[Floats, Floats]]:
    """Return means and standard deviations that could be behind the observed ones, of non-members and members.

    Each has shape (draws,). These are generalized pivotal quantities: with the observed mean m and standard deviation s
    of n normal scores, σ* = s √((n − 1) / χ²) and μ* = m + σ* z / √n. A parametric bootstrap would draw s* = s √(χ² /
    (n − 1)) instead, which repeats the bias of s: its lower end exceeds the true ε in up to 9% of audits instead of
    2.5%.
    """
    rng = np.random.default_rng(seed)
    draws = []
    sizes = (None if scores.null is not None else scores.observed.size, scores.members.size)
    for (mu, std), size in zip(moments(scores), sizes, strict=True):
        if size is None:  # exact
            draws.append((np.full(_DRAWS, mu), np.full(_DRAWS, std)))
        else:
            stds = std * np.sqrt((size - 1) / rng.chisquare(size - 1, _DRAWS))
            draws.append((mu + stds * rng.standard_normal(_DRAWS) / np.sqrt(size), stds))
    return draws
