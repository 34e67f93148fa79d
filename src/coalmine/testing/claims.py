"""What all assertions share: the claim, its false-alarm rate, and how a refuted claim is worded."""

from __future__ import annotations

import math

from coalmine.errors import InputError, check_delta, check_number
from coalmine.results import summary as words
from coalmine.stats import Estimate, sigma_gaussian
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP

FALSE_ALARM_RATE = 1e-3
"""How often a correct mechanism fails an assertion, at most, by default."""


def claimed_curve(
    epsilon: float | None, delta: float, noise_multiplier: float | None
) -> tuple[Curve, float, float | None]:
    """Return the claimed curve, its ε at δ, and the noise multiplier of Gaussian noise that keeps it, if any does."""
    check_delta(delta)
    if noise_multiplier is not None:
        if not check_number("noise_multiplier", noise_multiplier) > 0:
            raise InputError(f"noise_multiplier must be positive, got {noise_multiplier}")
        gaussian = float(epsilon_gdp(1 / noise_multiplier, delta))
        if epsilon is not None and epsilon < gaussian * (1 - 1e-3):
            raise InputError(
                f"a noise multiplier of {noise_multiplier:g} gives ε = {gaussian:.4g} at δ = {delta:g}, more than the "
                f"claimed {epsilon:g}: state one of them"
            )
        return GaussianDP(1 / noise_multiplier), gaussian, noise_multiplier
    if epsilon is None:
        raise InputError("a claim is needed: epsilon and delta, or noise_multiplier")
    if not 0 <= check_number("epsilon", epsilon) < math.inf:
        raise InputError(f"epsilon must be a number of at least 0, got {epsilon}")
    sigma = sigma_gaussian(epsilon, delta) if epsilon > 0 and delta > 0 else None
    return ApproximateDP(float(epsilon), delta), float(epsilon), sigma


def checked_claim(epsilon: float, delta: float, false_alarm_rate: float) -> tuple[float, float]:
    """Return the claimed ε, and the confidence that goes with the false-alarm rate, if both are in range."""
    check_delta(delta)
    if not 0 <= check_number("epsilon", epsilon) < math.inf:
        raise InputError(f"epsilon must be a number of at least 0, got {epsilon}")
    if not 0 < check_number("false_alarm_rate", false_alarm_rate) <= 0.5:
        raise InputError(f"false_alarm_rate must be in (0, 0.5], got {false_alarm_rate}")
    return float(epsilon), 1 - false_alarm_rate


def check_can_fail(most: float, claim: float, scores: str) -> None:
    """Raise if so many scores can never refute the claim."""
    if most <= claim:
        raise InputError(
            f"this test could never fail: {scores} can show at most ε = {most:.3g}, and the claim is {claim:g}; use "
            "more"
        )


def judged(bound: Estimate, claim: float, false_alarm_rate: float, how: str) -> Estimate:
    """Return a bound that keeps the claim, and fail with any other."""
    __tracebackhide__ = True
    if bound.epsilon <= claim:
        return bound
    share = share_of_cases(false_alarm_rate)
    shown = words.FLAGGING.format(times=words.times_at_least(bound.epsilon))
    raise AssertionError(
        f"The claim of ε = {claim:g} at δ = {bound.delta:g} is refuted: ε ≥ {bound.epsilon:.4g} with "
        f"{100 * (1 - false_alarm_rate):g}% confidence.\n"
        f"{shown[:1].upper()}{shown[1:]}; the claim allows {words.times(claim)}.\n"
        f"A correct mechanism fails this test in at most {share} ({bound.method}, {how}), if {bound.assumes}."
    )


def share_of_cases(rate: float) -> str:
    """Return a false-alarm rate in words."""
    return f"1 of {1 / rate:,.0f} cases" if rate <= 0.1 else f"{100 * rate:g}% of cases"
