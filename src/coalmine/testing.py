"""Privacy as a unit test: assert that a mechanism of one's own keeps its promise.

Each function takes a bound on ε that holds with confidence 1 − ``false_alarms``, and raises an AssertionError where it
exceeds the promise. A mechanism that keeps its promise fails in at most that share of tests: one of a thousand unless
asked otherwise. What passes is not proved private: a test shows leaks, never their absence. A test that could not fail,
having too few scores, is refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from coalmine.errors import InputError, check_count, check_delta, check_number
from coalmine.protocol import Vector
from coalmine.results import words
from coalmine.stats import Estimate, Scores, ceiling, simultaneous
from coalmine.stats.rank_tests import Design

__all__ = ["assert_locally_private", "assert_private", "assert_private_scores"]

FALSE_ALARMS = 1e-3


def assert_private(
    mechanism: Callable[[Vector], object],
    *,
    epsilon: float,
    delta: float = 1e-5,
    dim: int = 10_000,
    canaries: int | None = None,
    false_alarms: float = FALSE_ALARMS,
    seed: int = 0,
) -> Estimate:
    """Assert that a mechanism is (ε, δ)-private for adding or removing one update of norm 1; gives the bound it took.

    ``mechanism`` is a function from the sum of updates, a float32 vector of length ``dim``, to the noisy sum. It is
    applied once, to a sum of ``canaries`` random unit vectors (`coalmine.methods.mechanism.audit.audit_mechanism`):
    if not given, a fifth of ``dim`` and at most 2,000, which show half the noise of ε = 2 in 10,000 dimensions.
    """
    __tracebackhide__ = True
    from coalmine.methods.mechanism.audit import audit_mechanism

    promise, confidence = _checked(epsilon, delta, false_alarms)
    if canaries is None:
        canaries = min(2000, max(1, check_count("dim", dim) // 5))
    found = audit_mechanism(mechanism, dim=dim, canaries=canaries, delta=delta, confidence=confidence, seed=seed)
    assert found.bound is not None
    return _judged(found.bound, promise, false_alarms, f"{canaries:,} canaries in {dim:,} dimensions, seed {seed}")


def assert_locally_private(
    mechanism: Callable[[Vector], object],
    *,
    epsilon: float,
    delta: float = 0.0,
    dim: int = 100,
    norm: float = 1.0,
    trials: int = 2000,
    false_alarms: float = FALSE_ALARMS,
    seed: int = 0,
) -> Estimate:
    """Assert that a client's report is (ε, δ)-locally private; gives the bound it took.

    ``mechanism`` is a function from a gradient, a float32 vector of length ``dim`` and norm ``norm``, to a report of
    the same length. In each of ``trials`` trials a fair coin decides which of two opposite gradients it gets, and a
    distinguisher guesses from the report (Matsumoto et al. 2022, the dummy-gradient adversary).
    """
    __tracebackhide__ = True
    from coalmine.methods.ldp.estimates import estimates, shared_bound
    from coalmine.methods.ldp.trials import Trials
    from coalmine.simulation.mechanisms.user import OwnMechanism

    promise, confidence = _checked(epsilon, delta, false_alarms)
    rng = np.random.default_rng(check_count("seed", seed, least=0))
    sent = rng.random(check_count("trials", trials, least=2)) < 0.5
    most = shared_bound([Trials(np.where(sent, 1.0, -1.0), sent)], delta=delta, confidence=confidence)
    _check_can_fail(most, promise, f"{trials:,} trials")

    @functools.wraps(mechanism)
    def reported(gradient: Vector, _: np.random.Generator) -> object:
        return mechanism(gradient)

    own = OwnMechanism(function=reported, epsilon=max(promise, 1e-9), delta=delta, norm=norm)
    direction = rng.standard_normal(check_count("dim", dim))
    gradient = (norm / np.linalg.norm(direction) * direction).astype(np.float32)
    scores = [float(own.randomize(gradient if first else -gradient, rng)[0] @ gradient) for first in sent]
    bound = estimates([Trials(np.array(scores), sent)], delta=delta, confidence=confidence)[0]
    return _judged(bound, promise, false_alarms, f"{trials:,} trials in {dim:,} dimensions, seed {seed}")


def assert_private_scores(
    members: ArrayLike,
    nonmembers: ArrayLike,
    *,
    epsilon: float,
    delta: float = 1e-5,
    design: Design = "fixed",
    false_alarms: float = FALSE_ALARMS,
) -> Estimate:
    """Assert that scores (higher = more likely a member) do not refute (ε, δ)-privacy; gives the bound it took.

    Members must have been picked at random among like canaries, ``design`` says how, and scores be independent of one
    another (`coalmine.stats.simultaneous`).
    """
    __tracebackhide__ = True
    promise, confidence = _checked(epsilon, delta, false_alarms)
    scores = Scores(members, nonmembers)  # type: ignore[arg-type]
    sizes = scores.members.size, scores.observed.size
    top = ceiling(*sizes, delta=delta, confidence=confidence, design=design)
    _check_can_fail(top, promise, f"{sizes[0]:,} members and {sizes[1]:,} non-members")
    bound = simultaneous(scores, delta=delta, confidence=confidence, design=design)
    return _judged(bound, promise, false_alarms, f"{sizes[0]:,} members, {sizes[1]:,} non-members")


def _checked(epsilon: float, delta: float, false_alarms: float) -> tuple[float, float]:
    check_delta(delta)
    if not 0 <= check_number("epsilon", epsilon) < math.inf:
        raise InputError(f"epsilon must be a number of at least 0, got {epsilon}")
    if not 0 < check_number("false_alarms", false_alarms) <= 0.5:
        raise InputError(f"false_alarms must be in (0, 0.5], got {false_alarms}")
    return float(epsilon), 1 - false_alarms


def _check_can_fail(most: float, promise: float, what: str) -> None:
    if most <= promise:
        raise InputError(
            f"this test could never fail: {what} show an ε of {most:.3g} at most, and {promise:g} is promised; take "
            "more"
        )


def _judged(bound: Estimate, promise: float, false_alarms: float, how: str) -> Estimate:
    __tracebackhide__ = True
    if bound.epsilon <= promise:
        return bound
    said = words.MEMBERSHIP.format(words.times_at_least(bound.epsilon))
    raise AssertionError(
        f"the mechanism is not private as promised: ε = {promise:g} at δ = {bound.delta:g} is promised, and with "
        f"{100 * (1 - false_alarms):g}% confidence ε is at least {bound.epsilon:.4g}.\n"
        f"{said[:1].upper()}{said[1:]}; the promise allows {words.times(promise)}.\n"
        f"A mechanism that keeps its promise fails this test in at most {_share(false_alarms)} ({bound.method}, {how}),"
        f" if {bound.assumes}."
    )


def _share(rate: float) -> str:
    return f"1 case of {1 / rate:,.0f}" if rate <= 0.1 else f"{100 * rate:g}% of cases"
