"""Movements that depend on the draw, where randomness cannot be repeated: averages over draws, and limits on them."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats
from coalmine.replaying.movement import RATE, Movement, Scale
from coalmine.replaying.noise import Noise
from coalmine.results.finding import CHECK_RATE

_QUANTILE = float(-special.ndtri(RATE))


def average_movement(
    with_client: Floats, without: Floats, finite: Bools, scale: Scale, *, noise: tuple[Noise, Noise],
    hint: Floats | None = None,
) -> Movement:  # fmt: skip
    """Judge a movement by averages over draws: a lower limit on it.

    The average movement has a standard error. Its squared length, in standard deviations, exceeds the true one by the
    sum of squared errors on average, with the variance of a noncentral χ² variable.

    Args:
        with_client: Releases with the client, (draws, rounds, numbers).
        without: Releases without it.
        finite: Which numbers are finite in all of them, (numbers,).
        scale: What the claim allows.
        noise: The noise with the client, and without it.
        hint: Direction in which the movement is expected.
    """
    there, here = noise
    noisy = ~here.bare & ~there.bare
    # Each number in units of its own noise: arrays may have different units.
    ratio = float(np.sqrt(np.mean((there.std[noisy] / here.std[noisy]) ** 2))) if noisy.any() else 1.0
    smaller = here if ratio >= 1 else there
    difference = with_client - without
    mean, error = difference.mean(axis=0), difference.std(axis=0, ddof=1) / math.sqrt(len(difference))
    length, bad = scale.length(mean), int(np.sum(~finite))
    usable = finite & noisy
    if scale.noise_multiplier == 0 or not usable.any():
        # Numbers of few values have no scale: if the claim is about noise, only their probabilities count.
        size = 0.0 if scale.noise_multiplier or not scale.sensitivity else 1 / scale.sensitivity
        low = lower_limit(mean * size, error * size, _QUANTILE)
        return Movement(length=length, excess=low, exact=False, not_finite=bad)
    values, vectors = np.linalg.eigh(smaller.rounds)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # makes the noise of the rounds independent
    standard = root @ (mean[:, usable] / smaller.std[usable])
    errors = np.sqrt(root**2 @ (error[:, usable] / smaller.std[usable]) ** 2)
    low = max(lower_limit(standard, errors, _QUANTILE), lower_projection(standard, errors, _QUANTILE, hint, usable))
    dim = int(usable.sum())
    sides = ((side[:, 0] / np.where(usable, here.std, 1.0))[:, usable] for side in (with_client, without))
    spread = abs(math.log(ratio)) - _QUANTILE * ratio_error(*sides, degrees=here.degrees)
    # Two normal distributions of d coordinates whose scales differ by a factor e^s are as far apart as two that are
    # √(2d)·s standard deviations apart, for small s and many coordinates (both log-likelihood ratios are Gaussian).
    by_scale = 0.0 if scale.size_released else math.sqrt(2 * dim) * max(0.0, spread)
    excess = math.hypot(low * smaller.length(np.where(usable, mean, 0.0)).margin, by_scale) * scale.noise_multiplier
    return Movement(
        length=length, deviations=math.sqrt(max(float(np.sum(standard**2) - np.sum(errors**2)), 0.0)),
        excess=excess, exact=False, scale=1.0 if scale.size_released else ratio,
        not_finite=bad, p_value=CHECK_RATE if excess > 1 else 1.0,
    )  # fmt: skip


def ratio_error(with_client: Floats, without: Floats, *, degrees: int) -> float:
    """Return the standard error of the logarithm of the ratio of two noise levels, from draws (draws, numbers) of both.

    If the two noises are the same up to their scale, as with the same draws, their correlation is 1 and the error
    almost nothing: the variance of the logarithm is (1 − correlation²) / n.
    """
    one, two = (side - side.mean(axis=0) for side in (with_client, without))
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(two))
    correlation = float(np.sum(one * two)) / lengths if lengths else 0.0
    return math.sqrt(max(1 - correlation**2, 1e-12) / degrees)


def lower_limit(mean: Floats, error: Floats, quantile: float) -> float:
    """Return a lower limit on the length of a vector, from its estimate and the errors of its entries."""
    square = float(np.sum(mean**2) - np.sum(error**2))
    spread = math.sqrt(2 * float(np.sum(error**4)) + 4 * float(np.sum((mean * error) ** 2)))
    return math.sqrt(max(square - quantile * spread, 0.0))


def lower_projection(mean: Floats, error: Floats, quantile: float, hint: Floats | None, usable: Bools) -> float:
    """Return a lower limit on the length of a vector by its length in the direction where it is expected."""
    if hint is None or hint.size != usable.size or len(mean) > 1:
        return 0.0
    direction = np.where(np.isfinite(hint), hint, 0.0)[usable]
    length = float(np.linalg.norm(direction))
    if not length:
        return 0.0
    along = direction / length
    return max(0.0, float(mean[0] @ along) - quantile * math.sqrt(float(along**2 @ error[0] ** 2)))
