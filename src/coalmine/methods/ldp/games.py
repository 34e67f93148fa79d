"""Games against any local randomizer, as `coalmine.testing.assert_locally_private` plays them, and what may be wrong.

All that a randomizer promises is that one of two gradients, told by a fair coin, shows no better in its report than the
claim allows, whatever the gradients are and however the reports are scored. So each score may be learned from other
trials, and each game has a bound of its own (docs/ldp.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError
from coalmine.methods.ldp.distinguishers import Trials
from coalmine.protocol import Vector
from coalmine.results.summary import plural
from coalmine.results.verdict import Check, Finding
from coalmine.stats.exact_tests import TrialGuesses, best_seed, highest_accuracy
from coalmine.stats.tradeoff import Curve

_LEAST_DIM = 16  # in fewer dimensions the length of a report is mostly the part that tells
_LOOKS = 200  # reports of each gradient that are looked at for a fault
_LEVELS = 8  # numbers with as many values do not repeat all together by chance

Randomize = Callable[[Vector], Floats]


GAMES = 5
"""How many games `games` yields."""


def games(
    randomize: Randomize, gradient: Vector, trials: int, rng: np.random.Generator
) -> Iterator[tuple[str, Trials]]:
    """Yield what is told how in each game against a randomizer, and its trials, which have a valid bound of their own.

    They are played along a random direction and the coordinate that gave away most, and between a gradient and zero.
    Some trials are told again by what reports before them showed.

    Args:
        randomize: The randomizer.
        gradient: The random direction.
        trials: Trials of each game.
        rng: Source of the coins.
    """
    coins, others, more = rng.random((3, trials)) < 0.5
    reports = _reports(randomize, gradient, -gradient, coins)
    yield "a random direction", Trials(_cosines(reports, gradient), coins)
    yield "a random direction, compared with earlier reports", Trials(_compared(reports, gradient, coins), coins)
    # Given the first game, the second has a fixed coordinate and coins of its own.
    first, second = reports[coins], reports[~coins]
    spread = np.sqrt(first.var(axis=0) + second.var(axis=0))
    # A coordinate without any noise has no spread, and is the one to find.
    difference = np.abs(first.mean(axis=0) - second.mean(axis=0)) / np.maximum(spread, 1e-12)
    coordinate = int(np.argmax(difference))
    along = np.where(np.arange(gradient.size) == coordinate, np.linalg.norm(gradient), 0.0).astype(np.float32)
    yield f"coordinate {coordinate}", Trials(_cosines(_reports(randomize, along, -along, others), along), others)
    yield "a random direction, as half of the trials taught", _learned(reports, coins)
    try:
        against_zero = _reports(randomize, gradient, 0 * gradient, more)
    except InputError:  # a randomizer that divides by the norm has no report of zero
        return
    yield "a random direction and zero, as half of the trials taught", _learned(against_zero, more)


def _reports(randomize: Randomize, first: Vector, second: Vector, coins: Bools) -> Floats:
    """Return the report of each trial, (trials, dim)."""
    return np.stack([randomize(first if coin else second) for coin in coins]).astype(np.float64)


def _cosines(reports: Floats, gradient: Vector) -> Floats:
    """Return the score of each report."""
    scores: Floats = reports @ gradient.astype(np.float64)
    if gradient.size >= _LEAST_DIM:
        # Unlike products with the gradient, cosines are extreme where noise lacks.
        scores /= np.maximum(np.linalg.norm(reports, axis=1), 1e-300)
    return scores


def _compared(reports: Floats, gradient: Vector, coins: Bools) -> Floats:
    """Return the score of each report less the noise that the most similar report before it had.

    Its coin is known by then, and with it its noise. If a report repeats noise, little is left beside the gradient.
    """
    unit = gradient.astype(np.float64) / np.linalg.norm(gradient)
    along = reports @ unit
    across = reports - np.outer(along, unit)
    moved = (along[coins].mean() - along[~coins].mean()) / 2  # by the gradient
    noise = along - np.where(coins, moved, -moved)
    energies, scores = np.maximum(np.sum(across**2, axis=1), 1e-300), along.copy()
    for trial in range(1, len(along)):
        likeness = across[:trial] @ across[trial] / energies[:trial]  # the factor that fits best
        best = int(np.argmax(likeness**2 * energies[:trial]))
        rest = energies[trial] - likeness[best] ** 2 * energies[best]
        scores[trial] -= likeness[best] * noise[best]
        scores[trial] /= np.sqrt(max(rest, 1e-12 * energies[trial]))
    return scores


def _learned(reports: Floats, coins: Bools) -> Trials:
    """Return the second half of trials, scored by a linear discriminant of the first half.

    It sees all coordinates together, and their sizes.
    """
    half, side = len(coins) // 2, np.where(coins, 1.0, -1.0)
    features = np.concatenate([reports, np.abs(reports)], axis=1)
    features = (features - features[:half].mean(axis=0)) / np.maximum(features[:half].std(axis=0), 1e-12)
    # More weights than a third of the trials would fit their noise: those that tell most by themselves stay.
    telling = np.argsort(-np.abs(side[:half] @ features[:half]))[: max(1, half // 3)]
    seen, scored = features[:half, telling], features[half:, telling]
    weights = np.linalg.lstsq(seen, side[:half] - side[:half].mean(), rcond=1e-9)[0]
    return Trials(scored @ weights, coins[half:])


# What may be wrong


def small_seed(randomize: Randomize, gradient: Vector) -> str:
    """Return a generator that gave the noise of a report, if those of several have small seeds; else nothing.

    The gradient must be zero but for one coordinate, whose report is left out: noise is what the others show.
    """
    places = np.flatnonzero(gradient == 0)
    guesses = [best_seed(randomize(gradient)[places].astype(np.float64), places) for _ in range(4)]
    names = {guess.name for guess in guesses if guess is not None and guess.is_equal}
    # A generator seeded once, as in tests, gives the numbers of its seed only once.
    return min(names) if len(names) > 1 else ""


def likely_fault(
    randomize: Randomize, gradient: Vector, claim: Curve, told: TrialGuesses | None = None, *, overlong: bool = False
) -> Finding:
    """Return the likeliest fault of a randomizer that was refuted, from new reports.

    Args:
        randomize: The randomizer.
        gradient: A gradient that it was refuted with.
        claim: What it claims for this gradient and its opposite.
        told: Guesses of which of them was sent; by default those of the new reports.
        overlong: Whether the gradient may be longer than the clip norm.

    Example:
        >>> from coalmine.stats.tradeoff import GaussianDP
        >>> noise, draw = np.random.default_rng(0).normal(0, 5, (16, 100)), np.random.default_rng(1)
        >>> def pooled(gradient):
        ...     return gradient + noise[draw.integers(16)]
        >>> print(likely_fault(pooled, np.ones(100, np.float32), GaussianDP(0.4)))
        200 reports of one gradient have only 16 values.
    """
    unit = gradient / np.linalg.norm(gradient)
    same, opposite, longer = (
        np.stack([randomize((factor * gradient).astype(np.float32)) for _ in range(_LOOKS)]).astype(np.float64)
        for factor in (1, -1, 10)
    )
    noise, moved = same - same.mean(axis=0), np.abs(same.mean(axis=0) - opposite.mean(axis=0))
    values, counts = np.unique(same, axis=0, return_counts=True)
    if len(values) == 1 and abs(same[0] @ unit) < 0.999 * np.linalg.norm(same[0]):
        return _fault(Check.FRESH, "Equal gradients get equal reports")
    bare = np.flatnonzero((noise.std(axis=0) <= 1e-6 * np.abs(same).max()) & (moved > 1e-6 * moved.max()))
    if bare.size:
        return _fault(Check.PLACES, f"{plural(bare.size, 'coordinate')} without noise, such as {bare[0]}")
    # Reports of a few values, such as signs, repeat by chance, and all together.
    if np.median([np.unique(column).size for column in same.T]) >= _LEVELS:
        if np.sum(counts > 1) == 1:
            share = counts.max() / _LOOKS
            return _fault(Check.CALLS, f"{share:.0%} of the reports of a gradient are equal, as if without noise")
        if len(values) < _LOOKS:
            return _fault(Check.FRESH, f"{_LOOKS} reports of one gradient have only {len(values)} values")
        rank = np.linalg.matrix_rank(noise, rtol=1e-5)
        if rank < min(len(unit), _LOOKS - 1):
            return _fault(
                Check.INDEPENDENT, f"The noise of {len(unit)} coordinates has only {plural(rank, 'dimension')}"
            )
        directions = noise / np.linalg.norm(noise, axis=1, keepdims=True)
        if len(unit) >= _LEVELS and np.mean(np.abs(np.sum(directions[1:] * directions[:-1], axis=1)) > 0.9) > 0.1:
            return _fault(Check.FRESH, "The noise of a report is that of the report before, up to its size")
    along, far = same @ unit, longer @ unit
    told = told or TrialGuesses(2 * _LOOKS, int(np.sum(along > 0) + np.sum(opposite @ unit < 0)))
    most = highest_accuracy(claim)
    beyond = (told.right / told.guesses - most) / (most * (1 - most) / told.guesses) ** 0.5  # in standard errors
    if far.mean() - 2 * along.mean() > 6 * far.std() / _LOOKS**0.5 and (overlong or beyond < 1):
        times = far.mean() / along.mean()
        return _fault(Check.CLIPPING, f"A gradient ten times as long moves reports {times:.2g} times as far")
    if beyond < 1:
        return _fault(Check.SHAPE, "Most reports show no more than claimed, so a few show far more")
    sides = f"{told.right / told.guesses:.0%} of guesses are right, and the claim allows {most:.0%}"
    return _fault(Check.SIZE, f"{sides}: the truth is too likely, or the noise too small for gradients of this length")


def _fault(check: Check, sentence: str) -> Finding:
    # A hint, not evidence: the games have refuted the claim.
    return Finding(check=str(check), sentence=sentence, refutes=False)
