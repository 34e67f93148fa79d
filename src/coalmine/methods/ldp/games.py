"""Games against any local randomizer, as `coalmine.testing.assert_locally_private` plays them, and what may be wrong.

All that a randomizer promises is that one of two gradients, told by a fair coin, shows no better in its report than the
claim allows, whatever the gradients are and however the reports are scored. So each score may be learned from other
trials, and each game has a bound of its own (docs/ldp.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError
from coalmine.methods.ldp.distinguishers import Trials
from coalmine.protocol import Vector
from coalmine.results.summary import plural
from coalmine.results.verdict import Check, Finding
from coalmine.stats.exact_tests import TrialGuesses, best_seed, highest_accuracy
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.tradeoff import ApproximateDP, Curve

_LEAST_DIM = 16  # in fewer dimensions the length of a report is mostly the part that tells
_LOOKS = 200  # reports of each gradient that are looked at for a fault
_LEVELS = 8  # numbers with as many values do not repeat all together by chance

Randomize = Callable[[Vector], Floats]


GAMES = 7
"""How many games `games` yields, at most."""

_BATCHES = 4  # further trials along the random direction, over those of a game


class Game(NamedTuple):
    """A game that was played.

    Args:
        about: What is told how.
        trials: The trials, which have a valid bound of their own.
        pair: The two gradients.
    """

    about: str
    trials: Trials
    pair: tuple[Vector, Vector]


def games(randomize: Randomize, gradient: Vector, trials: int, rng: np.random.Generator) -> Iterator[Game]:
    """Yield games against a randomizer.

    They are played along a random direction and the coordinate that gave away most, and between a gradient and zero, a
    shorter or an orthogonal one. Some trials are told again by what reports before them showed.

    Args:
        randomize: The randomizer.
        gradient: The random direction.
        trials: Trials of each game.
        rng: Source of the coins.
    """
    coins, others, *more = rng.random((2 + _BATCHES, trials)) < 0.5
    opposite = gradient, -gradient
    reports = _reports(randomize, opposite, coins)
    # A little less noise than claimed takes many trials, whose reports need not be kept.
    scores = [_cosines(batch, gradient) for batch in (reports, *(_reports(randomize, opposite, c) for c in more))]
    many = Trials(np.concatenate(scores), np.concatenate([coins, *more]))
    yield Game("a random direction", many, opposite)
    compared = Trials(_compared(reports, gradient, coins), coins)
    yield Game("a random direction, compared with earlier reports", compared, opposite)
    # Given the first game, the second has a fixed coordinate and coins of its own.
    first, second = reports[coins], reports[~coins]
    spread = np.sqrt(first.var(axis=0) + second.var(axis=0))
    # A coordinate without any noise has no spread, and is the one to find.
    difference = np.abs(first.mean(axis=0) - second.mean(axis=0)) / np.maximum(spread, 1e-12)
    coordinate = int(np.argmax(difference))
    along = np.where(np.arange(gradient.size) == coordinate, np.linalg.norm(gradient), 0.0).astype(np.float32)
    scored = Trials(_cosines(_reports(randomize, (along, -along), others), along), others)
    yield Game(f"coordinate {coordinate}", scored, (along, -along))
    yield Game("a random direction, as half of the trials taught", _learned(reports, coins), opposite)
    beside = rng.standard_normal(gradient.size)
    beside -= (beside @ gradient) / (gradient @ gradient) * gradient
    beside *= np.linalg.norm(gradient) / max(float(np.linalg.norm(beside)), 1e-12)
    seconds: dict[str, Vector] = {
        "zero": 0 * gradient,
        "a tenth of it": (gradient / 10).astype(np.float32),
        "an orthogonal one": beside.astype(np.float32),
    }
    for name, second in seconds.items():
        coins = rng.random(trials) < 0.5
        try:
            played = _reports(randomize, (gradient, second), coins)
        except InputError:  # a randomizer that divides by the norm has no report of zero
            continue
        yield Game(
            f"a random direction and {name}, as half of the trials taught", _learned(played, coins), (gradient, second)
        )


def _reports(randomize: Randomize, pair: tuple[Vector, Vector], coins: Bools) -> Floats:
    """Return the report of each trial, (trials, dim)."""
    return np.stack([randomize(pair[0] if coin else pair[1]) for coin in coins]).astype(np.float64)


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
    randomize: Randomize, pair: tuple[Vector, Vector], claim: Curve, guessed: TrialGuesses | None = None, *,
    overlong: float = 1.0,
) -> Finding:  # fmt: skip
    """Return the likeliest fault of a randomizer that was refuted, from new reports.

    Args:
        randomize: The randomizer.
        pair: The gradients that it was refuted with.
        claim: What it claims for the first of them, at the clip norm, and its opposite.
        guessed: Guesses of which of them was sent; by default those of the new reports.
        overlong: Length of the first one over the clip norm.

    Example:
        >>> from coalmine.stats.tradeoff import GaussianDP
        >>> noise, draw = np.random.default_rng(0).normal(0, 5, (16, 100)), np.random.default_rng(1)
        >>> def pooled(gradient):
        ...     return gradient + noise[draw.integers(16)]
        >>> print(likely_fault(pooled, (np.ones(100, np.float32), -np.ones(100, np.float32)), GaussianDP(0.4)))
        200 reports of one gradient have only 16 values.
    """
    gradient, unit = pair[0], pair[0] / np.linalg.norm(pair[0])
    same, other, longer = (
        _reports(randomize, (sent.astype(np.float32),) * 2, np.ones(_LOOKS, dtype=bool))
        for sent in (*pair, 10 * gradient)
    )
    noise, moved = same - same.mean(axis=0), np.abs(same.mean(axis=0) - other.mean(axis=0))
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
    sizes = noise.std(), (other - other.mean(axis=0)).std()
    if min(sizes) < 0.8 * max(sizes):
        return _fault(
            Check.SHAPE,
            f"The noise depends on the gradient: its standard deviation is {sizes[0]:.3g} with one of norm "
            f"{np.linalg.norm(gradient):.3g}, and {sizes[1]:.3g} with one of norm {np.linalg.norm(pair[1]):.3g}",
        )
    along, far = same @ unit, longer @ unit
    guessed = guessed or TrialGuesses(2 * _LOOKS, int(np.sum(along > 0) + np.sum(other @ unit < 0)))
    most = highest_accuracy(claim)
    standard_errors = (guessed.right / guessed.guesses - most) / (most * (1 - most) / guessed.guesses) ** 0.5
    if far.mean() - 2 * along.mean() > 6 * far.std() / _LOOKS**0.5 and (overlong > 1 or standard_errors < 1):
        times = far.mean() / along.mean()
        return _fault(Check.CLIPPING, f"A gradient ten times as long moves reports {times:.2g} times as far")
    if overlong > 1 and np.array_equal(pair[1], -gradient):
        clipped = ((gradient / overlong).astype(np.float32), (-gradient / overlong).astype(np.float32))
        coins = np.arange(guessed.guesses) % 2 == 0
        right = np.mean((_reports(randomize, clipped, coins) @ unit > 0) == coins)
        if guessed.right / guessed.guesses - right > 4 * (0.5 / guessed.guesses) ** 0.5:
            sides = f"{guessed.right / guessed.guesses:.0%} of guesses are right, and {right:.0%} at the clip norm"
            return _fault(Check.CLIPPING, f"Of gradients of {overlong:.3g} clip norms {sides}")
    if standard_errors < 1:
        # Where δ is small, Gaussian noise that is too small lets an attacker guess no better than ε allows.
        scores = np.concatenate([along - along.mean(), other @ unit - (other @ unit).mean()])
        kurtosis, accuracy = np.mean(scores**4) / np.mean(scores**2) ** 2, guessed.right / guessed.guesses
        is_normal = abs(kurtosis - 3) < 4 * (24 / scores.size) ** 0.5
        least = 2 * special.ndtri(accuracy - (0.25 / guessed.guesses) ** 0.5)  # μ of Gaussian noise, at least
        if isinstance(claim, ApproximateDP) and claim.delta and is_normal and least > 0:
            shown = float(epsilon_gdp(least, claim.delta))
            if shown > claim.epsilon:
                return _fault(
                    Check.SIZE, f"The noise is too small: {accuracy:.0%} of guesses are right, as at ε = {shown:.3g}"
                )
        return _fault(Check.SHAPE, "Most reports show no more than claimed, so a few show far more")
    sides = f"{guessed.right / guessed.guesses:.0%} of guesses are right, and the claim allows {most:.0%}"
    return _fault(Check.SIZE, f"{sides}: the truth is too likely, or the noise too small for gradients of this length")


def _fault(check: Check, sentence: str) -> Finding:
    # A hint, not evidence: the games have refuted the claim.
    return Finding(check=str(check), sentence=sentence, refutes=False)
