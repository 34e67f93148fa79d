"""The games of `coalmine.testing.assert_locally_private`: which of two opposite gradients was randomized?

The first game is played along a random direction, the second along the coordinate that the reports of the first give
away most. Given the first, the second has a fixed direction and coins of its own, so each has a valid bound.
`until_refuted` judges a game while it is played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.methods.ldp.trials import Trials
from coalmine.protocol import Vector
from coalmine.stats import SequentialBound

GAMES = ("a random direction", "the weakest coordinate")
_LEAST_DIM = 16  # in fewer dimensions the length of a report is mostly the part that tells


def play(
    randomize: Callable[[Vector], Floats], gradient: Vector, sent: Bools, *, rng: np.random.Generator
) -> Iterator[tuple[str, Trials]]:
    """Yield where each game is played, and its trials; the second game has as many as the first.

    Args:
        randomize: The mechanism.
        gradient: What trials of the first game send, with the sign of their coin.
        sent: Whether each trial sends the gradient itself.
        rng: Source of the other coins.
    """
    reports = _reports(randomize, gradient, sent)
    yield "a random direction", Trials(_scores(reports, gradient), sent)
    coordinate = _weakest(reports, sent)
    along = np.where(np.arange(gradient.size) == coordinate, np.linalg.norm(gradient), 0.0).astype(np.float32)
    coins = rng.random(sent.size) < 0.5
    yield f"coordinate {coordinate}", Trials(_scores(_reports(randomize, along, coins), along), coins)


def _reports(randomize: Callable[[Vector], Floats], gradient: Vector, sent: Bools) -> Floats:
    """Return the report of each trial, (trials, dim)."""
    return np.stack([randomize(gradient if first else -gradient) for first in sent]).astype(np.float64)


def _scores(reports: Floats, gradient: Vector) -> Floats:
    """Return the cosine of each report with the gradient: unlike dot products, they are extreme where noise lacks."""
    dots: Floats = reports @ gradient.astype(np.float64)
    if gradient.size < _LEAST_DIM:
        return dots
    cosines: Floats = dots / np.maximum(np.linalg.norm(reports, axis=1), 1e-300)
    return cosines


def _weakest(reports: Floats, sent: Bools) -> int:
    """Return the coordinate of reports that differs most between the two gradients, in units of its spread."""
    first, second = reports[sent], reports[~sent]
    spread = np.sqrt(first.var(axis=0) + second.var(axis=0))
    return int(np.argmax(np.abs(first.mean(axis=0) - second.mean(axis=0)) / np.maximum(spread, 1e-12)))


def until_refuted(
    scores: Iterable[float], sent: Bools, *, claim: float, delta: float, confidence: float
) -> SequentialBound:
    """Return the bound when it first exceeds the claim, or after all trials."""
    bound = SequentialBound(delta=delta, claim=claim)
    for score, first in zip(scores, sent, strict=True):
        bound.update(bool(first), score)
        if bound.refuted(confidence):
            break
    return bound
