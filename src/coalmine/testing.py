"""Privacy as a unit test: assert that a mechanism keeps its claimed guarantee.

Each function tests a claim and raises an AssertionError if it is refuted. A correct mechanism fails with at most the
probability ``false_alarm_rate``, one in a thousand by default, if its scores are independent (docs/checks.md says what
dependence at a large δ costs). A passing test is not a proof of privacy. A test that could never fail, for lack of
scores, is refused.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_positive, check_probability
from coalmine.layers import LayerSpec
from coalmine.protocol import Vector
from coalmine.results import summary
from coalmine.seeds import default_rng
from coalmine.stats import Estimate
from coalmine.stats.gaussian import epsilon_gdp

if TYPE_CHECKING:
    from coalmine.checks import Replay, ReplayOptions
    from coalmine.claims import Claim

__all__ = ["assert_locally_private", "assert_private", "assert_sensitivity"]

FALSE_ALARM_RATE = 1e-3
"""How often a correct mechanism fails an assertion, at most, by default."""

_FIRST_CALL = 0.1  # share of the rate for the bound from the first call; the attacks on the noise have the rest


def assert_private(
    mechanism: Callable[[Any], object],
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    dim: int | None = None,
    layers: LayerSpec | None = None,
    canaries: int | None = None,
    calls: int | None = None,
    clients: int | Sequence[Any] | None = None,
    clip_norm: float = 1.0,
    norm: str = "l2",
    false_alarm_rate: float = FALSE_ALARM_RATE,
    seed: int = 0,
) -> Estimate:
    """Assert that a mechanism keeps its claim for adding or removing one update of norm 1.

    This is `coalmine.check_mechanism` as a unit test: it calls the mechanism several hundred times, and the first
    failing check names the bug. If half of the noise might pass, a warning says so.

    With ``clients`` the mechanism takes a list of clients instead of their sum. It is then first replayed with and
    without one client (`assert_sensitivity`), which finds bugs of clipping, weighting and the number of clients.

    With probability δ an (ε, δ)-DP mechanism may reveal the whole sum at once, so no rate below δ can be guaranteed.

    Args:
        mechanism: Function from the sum of updates, a float32 array of shape ``(dim,)``, to the noisy sum; or from
            a list of clients to their noisy sum or average, with ``clients``.
        epsilon: Claimed ε; not needed with ``noise_multiplier``.
        delta: Claimed δ, at most ``false_alarm_rate``.
        noise_multiplier: Claimed standard deviation of Gaussian noise. The claim is then the whole trade-off curve of
            the Gaussian mechanism, which takes far less evidence to refute than a pair of ε and δ.
        dim: Number of coordinates; by default that of ``layers``, or else 10,000.
        layers: The tensors that make up the vector, to name them in messages: sizes or shapes by name, a list of sizes,
            a module or a state dict.
        canaries: Number of canaries in the sum of the first call. By default a fifth of ``dim``, at most 1,000.
        calls: Number of further calls, at least 16; by default 6,000 for up to 66 coordinates, 400 for 10,000, and
            16 for 10 million.
        clients: The clients of an ordinary round, or how many, each an array of ``dim`` numbers. Their clipping must
            use one norm for all numbers.
        clip_norm: The claimed clip norm, with ``clients``.
        norm: Which norm of updates is limited: ``"l2"``, or ``"l1"`` as for Laplace noise.
        false_alarm_rate: Largest probability that a correct mechanism fails, if its noise is independent. The replay
            with ``clients`` has a rate of 1 in 1,000 of its own.
        seed: Seed of the canaries.

    Returns:
        The lower bound on ε from the first call.

    Raises:
        AssertionError: If the claim is refuted.
        InputError: If ``delta`` exceeds ``false_alarm_rate``, a number is out of range, or the clients do not fit.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> def noisy_sum(total):
        ...     return total + 2.0 * rng.standard_normal(total.size)
        >>> assert_private(noisy_sum, noise_multiplier=2.0, dim=2_000).valid
        True
        >>> def forgetful(total):
        ...     return total + 2.0 * rng.standard_normal(total.size) * (np.arange(total.size) != 7)
        >>> assert_private(forgetful, noise_multiplier=2.0, dim=2_000)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        AssertionError: Coordinate 7 carries no noise (p < 1e-300).
        ...
        >>> def unclipped_mean(updates):
        ...     return np.mean(updates, axis=0) + 2.0 / len(updates) * rng.standard_normal(500)
        >>> assert_private(unclipped_mean, noise_multiplier=2.0, dim=500, clients=20)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        AssertionError: The output moved by 1,000 times what the noise covers when one client with an update of 1,000...
        ...
    """
    __tracebackhide__ = True
    from coalmine.methods.mechanism.audit import check_mechanism

    claim, limit = _claim(epsilon, delta, noise_multiplier, false_alarm_rate)
    if delta > false_alarm_rate:
        raise InputError(
            f"delta must be at most the false-alarm rate, {false_alarm_rate:g}, got {delta:g}: a correct mechanism may "
            "reveal everything with probability delta, and would then fail; raise false_alarm_rate"
        )
    if clients is None and clip_norm != 1.0:
        raise InputError(
            f"clip_norm={clip_norm:g} goes with clients=: a function of a sum is tested with updates of norm 1, so "
            "divide by the clip norm before it and multiply after"
        )
    # The bound and the attacks share the rate, so that a correct mechanism fails either with at most that probability.
    result = check_mechanism(
        mechanism, dim=dim, claim=claim, confidence=1 - _FIRST_CALL * false_alarm_rate, canaries=canaries, calls=calls,
        layers=layers, clients=clients, clip_norm=clip_norm, norm=norm,
        false_alarm_rate=(1 - _FIRST_CALL) * false_alarm_rate, seed=seed,
    )  # fmt: skip
    dimensions = f"{result.config['dim']:,} dimensions, seed {seed}"
    bugs = summary.causes(finding for finding in result.findings if finding.refutes)
    if bugs:
        raise AssertionError(
            "\n".join(bug.sentence for bug in bugs)
            + f"\nThe claim of ε = {limit:.4g} at δ = {delta:g} is refuted by the check "
            f'"{bugs[0].finding.check}" ({dimensions}).\n'
            f"A correct mechanism fails this test in at most 1 of {1 / false_alarm_rate:,.0f} cases, if its noise is "
            "independent."
        )
    how = f"{result.config['canaries']:,} canaries in {dimensions}"
    # The null distribution of the scores is known, so its bound comes first.
    bound = _judged(result.estimates[0], limit, false_alarm_rate, how)
    for warning in result.warnings:
        warnings.warn(warning, stacklevel=2)
    return bound


def assert_sensitivity(
    release: Callable[..., Any],
    clients: Sequence[Any],
    *,
    clip_norm: float,
    noise_multiplier: float | None,
    options: ReplayOptions | None = None,
    strict: bool = False,
) -> Replay:
    """Assert that no client moves a release by more than the noise covers.

    This is `coalmine.replay` as a unit test: it runs the aggregation with and without one client, with the same
    randomness (docs/checks.md).

    Args:
        release: Function from a list of clients to what is released.
        clients: The clients of an ordinary round, at least one.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier; 0 or None if the release is not meant to carry noise, so that
            movements are compared with the clip norm / divisor.
        options: What is tried, and what counts as a bug; see `coalmine.checks.ReplayOptions`.
        strict: Whether warnings fail the test, too.

    Returns:
        The replay.

    Raises:
        AssertionError: If a client moves the release too far; the message has the findings.
        InputError: If the arguments do not fit, or the aggregation fails on the clients as they are.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> def noisy_sum(updates):
        ...     clipped = [update / max(1.0, np.linalg.norm(update)) for update in updates]
        ...     return sum(clipped) + rng.normal(0, 2.0, 1000)
        >>> assert_sensitivity(noisy_sum, [rng.normal(size=1000)] * 5, clip_norm=1.0, noise_multiplier=2.0).ok
        True
    """
    __tracebackhide__ = True
    from coalmine.checks import ReplayOptions, replay

    result = replay(
        release, clients, clip_norm=clip_norm, noise_multiplier=noise_multiplier,
        options=options or ReplayOptions(),
    )  # fmt: skip
    if not result.ok or (strict and result.findings):
        raise AssertionError(str(result))
    return result


def assert_locally_private(
    mechanism: Callable[[Vector], object],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    dim: int = 100,
    norm: float = 1.0,
    trials: int = 2000,
    false_alarm_rate: float = FALSE_ALARM_RATE,
    seed: int = 0,
) -> Estimate:
    """Assert that a client's report is (ε, δ)-locally private.

    In each trial a fair coin decides which of two gradients is randomized, and a distinguisher guesses from the report
    (the dummy-gradient adversary of Matsumoto et al. 2022). Games are played with opposite gradients in a random
    direction and in the coordinate that gave away most, and with a gradient and zero, a tenth of it, or an orthogonal
    one. Half of the trials also teach a discriminant of all coordinates, and of the report before, which guesses about
    the other half. Small seeds of the usual generators are tried. If the claim is refuted, the message names the
    likeliest fault.

    Args:
        mechanism: Function from a gradient, a float32 array of shape ``(dim,)`` and norm ``norm``, to a report of the
            same shape.
        epsilon: Claimed ε; not needed with ``noise_multiplier``.
        delta: Claimed δ; by default 0, or 1e-5 with ``noise_multiplier``.
        noise_multiplier: Claimed standard deviation of Gaussian noise over the clip norm. The claim is then the whole
            trade-off curve, which takes far less evidence to refute than a pair of ε and δ.
        dim: Number of coordinates.
        norm: Norm of the gradients. To test a mechanism that clips, pass more than its clip norm.
        trials: Number of trials of each game; the first has five times as many.
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
    from coalmine.methods.ldp.distinguishers import Trials
    from coalmine.methods.ldp.games import GAMES, games, likely_fault, small_seed
    from coalmine.methods.ldp.lower_bounds import estimates, every_guess, local_p_value, shared_bound
    from coalmine.simulation.mechanisms.local import OwnMechanism

    if delta is None:  # Gaussian noise has no finite ε at δ = 0
        delta = 0.0 if noise_multiplier is None else 1e-5

    # Replacing a gradient by its opposite moves it by twice its norm.
    halved = None if noise_multiplier is None else noise_multiplier / 2
    stated, limit = _claim(epsilon, delta, halved, false_alarm_rate)
    confidence = 1 - false_alarm_rate / GAMES  # each game has its share of the rate
    rng = default_rng(check_count("seed", seed, least=0))
    check_count("trials", trials, least=4)

    @functools.wraps(mechanism)
    def reported(gradient: Vector, _: np.random.Generator) -> object:
        return mechanism(gradient)

    randomizer = OwnMechanism(function=reported, epsilon=max(limit, 1e-9), delta=delta, norm=norm)

    def randomized(gradient: Vector) -> Floats:
        return np.asarray(randomizer.randomize(gradient, rng)[0], dtype=np.float64)

    direction = rng.standard_normal(check_count("dim", dim))
    gradient = (norm / np.linalg.norm(direction) * direction).astype(np.float32)
    if noise_multiplier is None:  # a curve takes far fewer trials
        sent = rng.random(trials) < 0.5
        perfect = np.where(sent, 1.0, -1.0)  # scores that show the most that so many trials can show
        most = shared_bound([Trials(perfect, sent)], delta=delta, confidence=confidence)
        _check_can_fail(most, limit, f"{trials:,} trials")
    generator = small_seed(randomized, (norm * np.eye(1, dim)[0]).astype(np.float32))
    if generator:
        raise AssertionError(
            f"A report has the noise of {generator}, and others have small seeds, too: trying them removes the noise."
        )
    bounds = []
    for where, game, pair in games(randomized, gradient, trials, rng):
        bounds.append(estimates([game], delta=delta, confidence=confidence)[0])
        p_value = 1.0 if noise_multiplier is None else local_p_value([game], stated)
        if bounds[-1].epsilon <= limit and p_value > 1 - confidence:
            continue
        how = f"{game.scores.size:,} trials along {where}, in {dim:,} dimensions, seed {seed}"
        fault = likely_fault(randomized, pair, stated.curve(), every_guess([game]), overlong=norm)
        likely = f"Likely fault: {fault.fault}. {fault}\n"
        _judged(bounds[-1], limit, false_alarm_rate, how, likely)
        raise AssertionError(
            f"The claimed noise multiplier of {noise_multiplier:g} is refuted (p = {p_value:.2g}).\n{likely}"
            f"A correct mechanism fails this test in at most 1 of {1 / false_alarm_rate:,.0f} cases ({how})."
        )
    return max(bounds, key=lambda bound: bound.epsilon)


def _claim(
    epsilon: float | None, delta: float, noise_multiplier: float | None, false_alarm_rate: float
) -> tuple[Claim, float]:
    """Return the claim of one call, and its ε at δ, if all numbers are in range and do not contradict each other."""
    from coalmine.claims import Claim

    check_probability("false_alarm_rate", false_alarm_rate)
    if noise_multiplier is None:
        return Claim(epsilon=epsilon, delta=delta), float(epsilon or 0.0)
    check_positive("noise_multiplier", noise_multiplier)
    gaussian = float(epsilon_gdp(1 / noise_multiplier, delta))
    # A user's ε is often rounded, so it may be a little less than that of its noise.
    if epsilon is not None and epsilon < gaussian * (1 - 1e-3):
        raise InputError(
            f"a noise multiplier of {noise_multiplier:g} gives ε = {gaussian:.4g} at δ = {delta:g}, more than the "
            f"claimed {epsilon:g}: state one of them"
        )
    return Claim(noise_multiplier=noise_multiplier, rounds=1, delta=delta), gaussian


def _check_can_fail(most: float, claim: float, scores: str) -> None:
    """Raise if so many scores can never refute the claim."""
    if most <= claim:
        raise InputError(
            f"this test could never fail: {scores} can show at most ε = {most:.3g}, and the claim is {claim:g}; use "
            "more"
        )


def _judged(bound: Estimate, claim: float, false_alarm_rate: float, how: str, likely: str = "") -> Estimate:
    """Return a bound that keeps the claim, and fail with any other; ``likely`` says what may be wrong."""
    __tracebackhide__ = True
    if bound.epsilon <= claim:
        return bound
    shown = summary.FLAGGING.format(times=summary.times(bound.epsilon, "at least "))
    raise AssertionError(
        f"The claim of ε = {claim:g} at δ = {bound.delta:g} is refuted: ε ≥ {bound.epsilon:.4g} with "
        f"{100 * (1 - false_alarm_rate):g}% confidence.\n"
        f"{shown[:1].upper()}{shown[1:]}; the claim allows {summary.times(claim)}.\n{likely}"
        f"A correct mechanism fails this test in at most 1 of {1 / false_alarm_rate:,.0f} cases "
        f"({bound.method}, {how}), if {bound.assumes}."
    )
