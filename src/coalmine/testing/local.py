"""`assert_locally_private`: a client's randomized report, as a unit test."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.errors import check_count, check_number
from coalmine.protocol import Vector
from coalmine.stats import Estimate, SequentialBound
from coalmine.testing.claims import (
    FALSE_ALARM_RATE,
    check_can_fail,
    checked_claim,
    claimed_curve,
    judged,
    share_of_cases,
)

if TYPE_CHECKING:
    from coalmine.methods.ldp.distinguishers import Trials

_LEAST_DIM = 16  # in fewer dimensions the length of a report is mostly the part that tells


def assert_locally_private(
    mechanism: Callable[[Vector], object],
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    noise_multiplier: float | None = None,
    dim: int = 100,
    norm: float = 1.0,
    trials: int = 2000,
    stop_when_refuted: bool = False,
    false_alarm_rate: float = FALSE_ALARM_RATE,
    seed: int = 0,
) -> Estimate:
    """Assert that a client's report is (ε, δ)-locally private.

    In each trial a fair coin decides which of two opposite gradients is randomized, and a distinguisher guesses from
    the report (the dummy-gradient adversary of Matsumoto et al. 2022). As many trials follow with gradients of the one
    coordinate that the reports gave away most.

    Args:
        mechanism: Function from a gradient, a float32 array of shape ``(dim,)`` and norm ``norm``, to a report of the
            same shape.
        epsilon: Claimed ε; not needed with ``noise_multiplier``.
        delta: Claimed δ.
        noise_multiplier: Claimed standard deviation of Gaussian noise over the clip norm. The claim is then the whole
            trade-off curve, which takes far less evidence to refute than a pair of ε and δ.
        dim: Number of coordinates.
        norm: Norm of the gradients. To test a mechanism that clips, pass more than its clip norm.
        trials: Number of trials.
        stop_when_refuted: Whether to stop as soon as the claim is refuted, for slow mechanisms. The claim is then
            judged by `coalmine.stats.SequentialBound`, which allows that and reports that depend on earlier ones. Only
            the first trials are made then, and the claim is ``epsilon`` and ``delta``.
        false_alarm_rate: Largest probability that a correct mechanism fails.
        seed: Seed of coins and gradients.

    Returns:
        The lower bound that was compared with the claim.

    Raises:
        AssertionError: If the claim is refuted.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> def report(gradient):
        ...     return gradient + 5.0 * rng.standard_normal(gradient.size)
        >>> assert_locally_private(report, epsilon=2.0, delta=1e-5).valid
        True
    """
    __tracebackhide__ = True
    from coalmine.claims import Claim, EveryRound
    from coalmine.methods.ldp.distinguishers import Trials
    from coalmine.methods.ldp.lower_bounds import estimates, local_p_value, shared_bound
    from coalmine.simulation.mechanisms.local import OwnMechanism

    # Replacing a gradient by its opposite moves it by twice its norm.
    halved = None if noise_multiplier is None else check_number("noise_multiplier", noise_multiplier) / 2
    _, claim, _ = claimed_curve(epsilon, delta, halved)
    claim, confidence = checked_claim(claim, delta, false_alarm_rate)
    rng = np.random.default_rng(check_count("seed", seed, least=0))
    sent = rng.random(check_count("trials", trials, least=2)) < 0.5

    @functools.wraps(mechanism)
    def reported(gradient: Vector, _: np.random.Generator) -> object:
        return mechanism(gradient)

    randomizer = OwnMechanism(function=reported, epsilon=max(claim, 1e-9), delta=delta, norm=norm)

    def randomized(gradient: Vector) -> Floats:
        return np.asarray(randomizer.randomize(gradient, rng)[0], dtype=np.float64)

    perfect = np.where(sent, 1.0, -1.0)  # scores that show the most that so many trials can show
    direction = rng.standard_normal(check_count("dim", dim))
    gradient = (norm / np.linalg.norm(direction) * direction).astype(np.float32)
    if stop_when_refuted:
        most = _until_refuted(perfect, sent, claim=claim, delta=delta, confidence=confidence).lower(confidence)
        check_can_fail(most, claim, f"{trials:,} trials")
        scores = (float(randomized(gradient if first else -gradient) @ gradient) for first in sent)
        sequential = _until_refuted(scores, sent, claim=claim, delta=delta, confidence=confidence)
        how = f"{sequential.trials:,} trials in {dim:,} dimensions, seed {seed}"
        return judged(sequential.estimate(confidence), claim, false_alarm_rate, how)
    confidence = 1 - (1 - confidence) / 2  # each of two games has its share of the rate
    most = shared_bound([Trials(perfect, sent)], delta=delta, confidence=confidence)
    if halved is None:  # a curve takes far fewer trials
        check_can_fail(most, claim, f"{trials:,} trials")
    bounds = []
    for where, game in two_games(randomized, gradient, sent, rng=rng):
        how = f"{trials:,} trials along {where}, in {dim:,} dimensions, seed {seed}"
        bounds.append(judged(estimates([game], delta=delta, confidence=confidence)[0], claim, false_alarm_rate, how))
        if halved is not None:
            stated = Claim(noise_multiplier=halved, sampling=EveryRound(), rounds=1, delta=delta)
            p_value = local_p_value([game], stated)
            if p_value <= 1 - confidence:
                raise AssertionError(
                    f"The claimed noise multiplier of {noise_multiplier:g} is refuted (p = {p_value:.2g}).\n"
                    f"A correct mechanism fails this test in at most {share_of_cases(false_alarm_rate)} ({how})."
                )
    return max(bounds, key=lambda bound: bound.epsilon)


def two_games(
    randomize: Callable[[Vector], Floats], gradient: Vector, sent: Bools, *, rng: np.random.Generator
) -> Iterator[tuple[str, Trials]]:
    """Yield where each game is played, and its trials; the second game has as many as the first.

    The first game is played along a random direction, the second along the coordinate that the reports of the first
    give away most. Given the first, the second has a fixed direction and coins of its own, so each has a valid bound.

    Args:
        randomize: The mechanism.
        gradient: What trials of the first game send, with the sign of their coin.
        sent: Whether each trial sends the gradient itself.
        rng: Source of the other coins.
    """
    from coalmine.methods.ldp.distinguishers import Trials

    reports, scores = _played(randomize, gradient, sent)
    yield "a random direction", Trials(scores, sent)
    first, second = reports[sent], reports[~sent]
    spread = np.sqrt(first.var(axis=0) + second.var(axis=0))
    difference = np.abs(first.mean(axis=0) - second.mean(axis=0))
    coordinate = int(np.argmax(difference / np.maximum(spread, 1e-12)))
    along = np.where(np.arange(gradient.size) == coordinate, np.linalg.norm(gradient), 0.0).astype(np.float32)
    coins = rng.random(sent.size) < 0.5
    _, scores = _played(randomize, along, coins)
    yield f"coordinate {coordinate}", Trials(scores, coins)


def _played(randomize: Callable[[Vector], Floats], gradient: Vector, sent: Bools) -> tuple[Floats, Floats]:
    """Return the report of each trial, ``(trials, dim)``, and its score."""
    reports = np.stack([randomize(gradient if first else -gradient) for first in sent]).astype(np.float64)
    scores = reports @ gradient.astype(np.float64)
    if gradient.size >= _LEAST_DIM:
        # Unlike products with the gradient, cosines are extreme where noise lacks.
        scores /= np.maximum(np.linalg.norm(reports, axis=1), 1e-300)
    return reports, scores


def _until_refuted(
    scores: Iterable[float], sent: Bools, *, claim: float, delta: float, confidence: float
) -> SequentialBound:
    """Return the bound when it first exceeds the claim, or after all trials."""
    bound = SequentialBound(delta=delta, claim=claim)
    for score, first in zip(scores, sent, strict=True):
        bound.update(bool(first), score)
        if bound.refuted(confidence):
            break
    return bound
