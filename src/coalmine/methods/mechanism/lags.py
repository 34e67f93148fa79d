"""An attack on noise that calls share in part: it predicts the noise of a call from the calls before and after it.

`twins.repeat_attack` finds calls with nearly the same noise. Noise that overlaps with that of the last call, nₜ + nₜ₋₁,
has no such twin. Predicting it takes the known noise of several calls on both sides. docs/mechanism.md lists the attack
beside the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import fft

from coalmine.arrays import Bools, Floats
from coalmine.methods.mechanism.attacks import WEAK, Attack, column_scales, gaussian_scores
from coalmine.methods.mechanism.calls import Calls
from coalmine.results.finding import Check

_SURE = 8.0  # standard errors of the largest correlation beyond which the attack is tried
_SIDE = 3  # revealed calls on each side of a hidden one, in steps of the lag: every fourth call stays hidden
_PLAIN = 4.0  # standard errors beyond which a correlation is used for the prediction
_RIDGE = 1e-5  # keeps the equations solvable
_LEAST_EIGENVALUE = 0.01  # of the correlations of successive calls, below which they are made smaller
_COLUMNS = 512  # columns that are transformed at a time, to bound the memory


def lag_attack(calls: Calls) -> tuple[Attack, Calls] | None:
    """Predict the noise of a call from calls at multiples of a lag, on both sides, whose coins the attacker knows.

    The lag is the one whose correlation is furthest beyond chance where the noise is known anyway. The coins of three
    in four calls are then revealed, which makes these calls part of the pilot, and the claim is tested on the fourth.

    Returns:
        The attack, and the calls with that larger pilot; None if the calls look independent.
    """
    scales = column_scales(calls)
    known = calls.known & (scales > 0)
    correlations, errors = _correlations(np.where(known, calls.noise / np.where(scales > 0, scales, 1), 0.0), known)
    lag = 1 + int(np.argmax(np.abs(correlations[1:]) / errors[1:]))
    if abs(correlations[lag]) < _SURE * errors[lag]:
        return None
    number = np.arange(calls.pilot.size) // lag
    every = min(_SIDE, int(number[-1])) + 1  # fewer where the lag leaves room for fewer calls
    hidden = ~calls.pilot & (number % every == every - 1)
    if not hidden.any():
        return None
    revealed = replace(calls, pilot=~hidden)
    mean = _predicted(revealed, np.where(np.abs(correlations) > _PLAIN * errors, correlations, 0.0), lag)
    # The error of the prediction is measured where the hidden calls hold no canary.
    shown = revealed.known & hidden[:, None] & (scales > 0)
    size = np.broadcast_to(scales, shown.shape)[shown]
    missed = np.sum(((revealed.noise - mean)[shown] / size) ** 2)
    unexplained = missed / max(float(np.sum((revealed.noise[shown] / size) ** 2)), 1e-300)
    if unexplained >= 1:
        return None
    scale = np.sqrt(missed / size.size) * scales[revealed.targets[1]]
    apart = "successive calls" if lag == 1 else f"calls {lag} apart"
    sentence = f"The noise of {apart} has a correlation of {correlations[lag]:.2g}."
    attack = Attack(
        Check.FRESH, gaussian_scores(revealed, mean[revealed.targets], scale),
        sentence if unexplained < WEAK else "", mean=mean[revealed.targets], scale=scale, rank=3,
    )  # fmt: skip
    return attack, revealed


def _correlations(standard: Floats, known: Bools) -> tuple[Floats, Floats]:
    """Return the correlation of noise over calls by lag, and its standard error for independent calls, shapes (t,).

    Products of independent noise are uncorrelated, so their mean square is their variance, whatever the distribution.

    Args:
        standard: The noise in units of its size, and 0 where it is not known, shape (t, n).
        known: Where it is known, shape (t, n).
    """
    calls = len(standard)
    size = fft.next_fast_len(2 * calls, real=True)

    def sums(rows: Floats) -> Floats:
        """Return Σ rows[s] · rows[s + lag] over all calls s and columns, by lag."""
        power = np.zeros(size // 2 + 1)
        for start in range(0, rows.shape[1], _COLUMNS):
            power += np.sum(np.abs(fft.rfft(rows[:, start : start + _COLUMNS], size, axis=0)) ** 2, axis=1)
        return np.asarray(fft.irfft(power, size)[:calls])

    count = np.maximum(np.round(sums(known.astype(np.float64))), 1.0)
    # At least 1, so that a lag with hardly any known products never looks correlated beyond chance.
    error = np.sqrt(np.maximum(sums(standard**2), 1.0)) / count
    return sums(standard) / count, error


def _predicted(calls: Calls, correlations: Floats, lag: int) -> Floats:
    """Return the best linear prediction of the noise in test calls, (t, n), from pilot calls at multiples of a lag."""
    steps = np.array([step for step in range(-_SIDE, _SIDE + 1) if step])
    by_step = np.append(correlations, np.zeros(2 * _SIDE * lag + 1))[::lag]
    # Estimates may contradict each other, where some calls have less noise: no noise has a correlation of 0.7 with the
    # next call and none with the one after. Smaller ones, for which there is such noise, predict in the same direction.
    together = np.abs(np.subtract.outer(np.arange(2 * _SIDE + 1), np.arange(2 * _SIDE + 1)))
    weakest = float(np.linalg.eigvalsh(by_step[together])[0])
    if weakest < _LEAST_EIGENVALUE:
        by_step[1:] *= (1 - _LEAST_EIGENVALUE) / (1 - weakest)
    between = by_step[np.abs(steps[:, None] - steps)] + _RIDGE * np.eye(steps.size)
    mean = np.zeros(calls.noise.shape)
    for call in np.flatnonzero(~calls.pilot):
        others = call + steps * lag
        used = np.array([0 <= other < calls.pilot.size and bool(calls.pilot[other]) for other in others])
        if used.any():
            weights = np.linalg.lstsq(between[np.ix_(used, used)], by_step[np.abs(steps[used])], rcond=None)[0]
            mean[call] = weights @ calls.noise[others[used]]
    return mean
