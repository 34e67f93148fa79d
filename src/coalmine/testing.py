"""Privacy as a unit test: assert that a mechanism keeps its claimed guarantee.

Each function tests a claim and raises an AssertionError if it is refuted. A correct mechanism fails with at most the
probability ``false_alarm_rate``, one in a thousand by default, if its scores are independent (docs/ci.md says what
dependence at a large δ costs). A passing test is not a proof of privacy. A test
that could never fail, for lack of scores, is refused.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_delta, check_number
from coalmine.layers import Layers, LayerSpec
from coalmine.protocol import Vector
from coalmine.results import words
from coalmine.stats import Estimate, Scores, ceiling, sigma_gaussian, simultaneous
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.rank_tests import Design
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP

if TYPE_CHECKING:
    from coalmine.replaying import Replay

__all__ = ["assert_locally_private", "assert_private", "assert_private_scores", "assert_sensitivity"]

FALSE_ALARM_RATE = 1e-3
_FIRST_CALL = 0.1  # share of the rate for the bound from the first call of `assert_private`; the battery has the rest


def assert_private(
    mechanism: Callable[[Vector], object],
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    dim: int | None = None,
    layers: LayerSpec | None = None,
    canaries: int | None = None,
    calls: int | None = None,
    false_alarm_rate: float = FALSE_ALARM_RATE,
    seed: int = 0,
) -> Estimate:
    """Assert that a mechanism keeps its claim for adding or removing one update of norm 1.

    The mechanism is applied once to a sum of random unit vectors (see `coalmine.audit_mechanism`), then several hundred
    times to canaries of one coordinate each. A battery of attacks learns the noise from part of these calls and tests
    the claim on the others: is there enough noise everywhere, fresh in every call, independent, of the right shape? The
    first failing check names the bug. docs/mechanism.md describes the attacks and proves their tests.

    Where so few canaries could not tell half of the noise from all of it, a warning says which share they can.

    With probability δ an (ε, δ)-DP mechanism may reveal the whole sum at once, so no rate below δ can be guaranteed.

    Args:
        mechanism: Function from the sum of updates, a float32 array of shape ``(dim,)``, to the noisy sum.
        epsilon: Claimed ε; not needed with ``noise_multiplier``.
        delta: Claimed δ, at most ``false_alarm_rate``.
        noise_multiplier: Claimed standard deviation of Gaussian noise. The claim is then the whole trade-off curve of
            the Gaussian mechanism, which takes far less evidence to refute than a pair of ε and δ.
        dim: Number of coordinates; by default that of ``layers``, or else 10,000.
        layers: The tensors that make up the vector, to name them in messages: sizes or shapes by name, a list of sizes,
            a module or a state dict.
        canaries: Number of canaries in the sum of the first call. By default a fifth of ``dim``, at most 2,000.
        calls: Number of further calls, at least 16; by default 6,000 for up to 66 coordinates, 400 for 10,000, and
            16 for 10 million. A fifth as many, at least 16, follow in up to two million dimensions to look for
            directions with less noise.
        false_alarm_rate: Largest probability that a correct mechanism fails, if its noise is independent.
        seed: Seed of the canaries.

    Returns:
        The lower bound on ε from the first call.

    Raises:
        AssertionError: If the claim is refuted.
        InputError: If ``delta`` exceeds ``false_alarm_rate``, or a number is out of range.

    Example:
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
    """
    __tracebackhide__ = True
    from coalmine.methods.mechanism.audit import applied, audit_mechanism, checked_calls
    from coalmine.methods.mechanism.battery import check_noise
    from coalmine.methods.mechanism.calls import calls_along_waves, canaries_to_guess
    from coalmine.methods.mechanism.power import weakness

    if not callable(mechanism):
        raise InputError(
            f"mechanism must be a function from the sum of updates to the noisy sum, got {type(mechanism).__name__}"
        )
    curve, claim, sigma = _claim(epsilon, delta, noise_multiplier)
    _checked(claim, delta, false_alarm_rate)
    if delta > false_alarm_rate:
        raise InputError(
            f"delta must be at most the false-alarm rate, {false_alarm_rate:g}, got {delta:g}: a correct mechanism may "
            "reveal everything with probability delta, and would then fail; raise false_alarm_rate"
        )
    tensors = None if layers is None else Layers.of(layers)
    if dim is None:
        dim = 10_000 if tensors is None else tensors.dim
    if canaries is None:
        canaries = min(2000, max(1, check_count("dim", dim) // 5))
    number = checked_calls(calls, dim)
    first = audit_mechanism(
        mechanism, dim=dim, canaries=canaries, delta=delta, confidence=1 - _FIRST_CALL * false_alarm_rate, seed=seed
    )
    findings = check_noise(
        lambda total: applied(mechanism, total),
        dim=dim,
        claim=curve,
        calls=number,
        rate=(1 - _FIRST_CALL) * false_alarm_rate,
        noise_multiplier=sigma,
        layers=None if tensors is None else tensors.check(dim),
        seed=seed,
        before=1,
    )
    made = 1 + number + calls_along_waves(dim, number)
    for finding in findings:
        raise AssertionError(
            f"{finding}\nThe claim of ε = {claim:.4g} at δ = {delta:g} is refuted by the check "
            f'"{finding.check}" ({made:,} calls in {dim:,} dimensions, seed {seed}).\n'
            f"A correct mechanism fails this test in at most {_share(false_alarm_rate)}, if its noise is independent."
        )
    assert first.bound is not None
    bound = _judged(first.bound, claim, false_alarm_rate, f"{canaries:,} canaries in {dim:,} dimensions, seed {seed}")
    rate = (1 - _FIRST_CALL) * false_alarm_rate
    weak = weakness(curve, noise_multiplier=sigma, canaries=canaries_to_guess(dim, number), rate=rate)
    if weak:
        instead = "" if noise_multiplier is not None else ", or noise_multiplier= if the noise is Gaussian"
        warnings.warn(f"{weak}: pass more calls={instead}", stacklevel=2)
    return bound


def _claim(epsilon: float | None, delta: float, noise_multiplier: float | None) -> tuple[Curve, float, float | None]:
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
    from coalmine.accounting import EveryRound, theory
    from coalmine.methods.ldp.claim import LocalClaimTest
    from coalmine.methods.ldp.estimates import estimates, shared_bound
    from coalmine.methods.ldp.games import GAMES, play, until_refuted
    from coalmine.methods.ldp.trials import Trials
    from coalmine.simulation.mechanisms.user import OwnMechanism

    # Replacing a gradient by its opposite moves it by twice its norm.
    halved = None if noise_multiplier is None else check_number("noise_multiplier", noise_multiplier) / 2
    _, claim, _ = _claim(epsilon, delta, halved)
    claim, confidence = _checked(claim, delta, false_alarm_rate)
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
        most = until_refuted(perfect, sent, claim=claim, delta=delta, confidence=confidence).lower(confidence)
        _check_can_fail(most, claim, f"{trials:,} trials")
        scores = (float(randomized(gradient if first else -gradient) @ gradient) for first in sent)
        sequential = until_refuted(scores, sent, claim=claim, delta=delta, confidence=confidence)
        how = f"{sequential.trials:,} trials in {dim:,} dimensions, seed {seed}"
        return _judged(sequential.estimate(confidence), claim, false_alarm_rate, how)
    confidence = 1 - (1 - confidence) / len(GAMES)  # each game has its share of the rate
    most = shared_bound([Trials(perfect, sent)], delta=delta, confidence=confidence)
    if halved is None:  # a curve takes far fewer trials
        _check_can_fail(most, claim, f"{trials:,} trials")
    bounds = []
    for where, game in play(randomized, gradient, sent, rng=rng):
        how = f"{trials:,} trials along {where}, in {dim:,} dimensions, seed {seed}"
        bounds.append(_judged(estimates([game], delta=delta, confidence=confidence)[0], claim, false_alarm_rate, how))
        if halved is not None:
            stated = theory(noise_multiplier=halved, sampling=EveryRound(), rounds=1, delta=delta)
            p_value = LocalClaimTest([game], stated).p_value(1.0)
            if p_value <= 1 - confidence:
                raise AssertionError(
                    f"The claimed noise multiplier of {noise_multiplier:g} is refuted (p = {p_value:.2g}).\n"
                    f"A correct mechanism fails this test in at most {_share(false_alarm_rate)} ({how})."
                )
    return max(bounds, key=lambda bound: bound.epsilon)


def assert_private_scores(
    members: ArrayLike,
    nonmembers: ArrayLike,
    *,
    epsilon: float,
    delta: float = 1e-5,
    design: Design = "fixed",
    false_alarm_rate: float = FALSE_ALARM_RATE,
) -> Estimate:
    """Assert that scores do not refute (ε, δ)-DP.

    Valid if members were chosen at random among exchangeable canaries, and the scores are independent (see
    `coalmine.stats.simultaneous`). Scores of one release depend on each other through what it reveals to all of them: a
    mechanism that reveals everything with probability δ is (0, δ)-DP and fails with that probability.

    Args:
        members: Scores of inserted canaries; higher means more likely a member.
        nonmembers: Scores of held-out canaries.
        epsilon: Claimed ε.
        delta: Claimed δ.
        design: How members were chosen: ``"fixed"`` (a fixed number) or ``"coin-flips"`` (each by a fair coin).
        false_alarm_rate: Largest probability that correct scores fail.

    Returns:
        The lower bound that was compared with the claim.

    Raises:
        AssertionError: If the lower bound exceeds the claim.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> assert_private_scores(rng.normal(0.5, 1, 500), rng.normal(0, 1, 500), epsilon=3.0).valid
        True
    """
    __tracebackhide__ = True
    claim, confidence = _checked(epsilon, delta, false_alarm_rate)
    scores = Scores(members, nonmembers)  # type: ignore[arg-type]
    sizes = scores.members.size, scores.observed.size
    top = ceiling(*sizes, delta=delta, confidence=confidence, design=design)
    _check_can_fail(top, claim, f"{sizes[0]:,} members and {sizes[1]:,} non-members")
    bound = simultaneous(scores, delta=delta, confidence=confidence, design=design)
    return _judged(bound, claim, false_alarm_rate, f"{sizes[0]:,} members, {sizes[1]:,} non-members")


def assert_sensitivity(
    release: Callable[..., Any],
    clients: Sequence[Any],
    extra: Any = None,
    *,
    clip_norm: float,
    noise_multiplier: float | None,
    adjacency: str = "zero-out",
    hostile: bool = False,
    dropouts: bool = True,
    rounds: int = 3,
    divisor: float | None = None,
    draws: int | None = None,
    quick: bool = False,
    strict: bool = False,
    seed: int = 0,
) -> Replay:
    """Assert that no client moves a release by more than the noise covers.

    Runs the aggregation with and without one client, with the same randomness (`coalmine.replay`, docs/replay.md).

    Args:
        release: Function from a list of clients to what is released.
        clients: The clients of an ordinary round, at least one.
        extra: A client, or a list of clients, to try beside those that replay makes up.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier; 0 or None if the release is not meant to carry noise, so that
            movements are compared with the clip norm / divisor.
        adjacency: ``"zero-out"`` (the number of clients is public) or ``"add-remove"``.
        hostile: Whether clients may send what no honest client does, such as NaN.
        dropouts: Whether rounds with few clients happen, too.
        rounds: Number of rounds in which a client of the first one may still be seen.
        divisor: What the release divides the sum of updates by; measured by default.
        draws: Number of runs that measure the noise; more of them see a smaller excess in arrays of a few numbers.
        quick: Whether to try only the clients and rounds that find most, in about a third of the runs.
        strict: Whether warnings fail the test, too.
        seed: Seed of all randomness.

    Returns:
        The replay.

    Raises:
        AssertionError: If a client moves the release too far; the message has the findings.
        InputError: If the arguments do not fit, or the aggregation fails on the clients as they are.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> def noisy_sum(updates):
        ...     clipped = [update / max(1.0, np.linalg.norm(update)) for update in updates]
        ...     return sum(clipped) + rng.normal(0, 2.0, 1000)
        >>> assert_sensitivity(noisy_sum, [rng.normal(size=1000)] * 5, clip_norm=1.0, noise_multiplier=2.0).ok
        True
    """
    __tracebackhide__ = True
    from coalmine.replaying import replay

    result = replay(
        release, clients, extra, clip_norm=clip_norm, noise_multiplier=noise_multiplier, adjacency=adjacency,
        hostile=hostile, dropouts=dropouts, rounds=rounds, divisor=divisor, draws=draws, quick=quick, seed=seed,
    )  # fmt: skip
    if not result.ok or (strict and result.findings):
        raise AssertionError(str(result))
    return result


def _checked(epsilon: float, delta: float, false_alarm_rate: float) -> tuple[float, float]:
    check_delta(delta)
    if not 0 <= check_number("epsilon", epsilon) < math.inf:
        raise InputError(f"epsilon must be a number of at least 0, got {epsilon}")
    if not 0 < check_number("false_alarm_rate", false_alarm_rate) <= 0.5:
        raise InputError(f"false_alarm_rate must be in (0, 0.5], got {false_alarm_rate}")
    return float(epsilon), 1 - false_alarm_rate


def _check_can_fail(most: float, claim: float, scores: str) -> None:
    if most <= claim:
        raise InputError(
            f"this test could never fail: {scores} can show at most ε = {most:.3g}, and the claim is {claim:g}; use "
            "more"
        )


def _judged(bound: Estimate, claim: float, false_alarm_rate: float, how: str) -> Estimate:
    __tracebackhide__ = True
    if bound.epsilon <= claim:
        return bound
    shown = words.FLAGGING.format(times=words.times_at_least(bound.epsilon))
    raise AssertionError(
        f"The claim of ε = {claim:g} at δ = {bound.delta:g} is refuted: ε ≥ {bound.epsilon:.4g} with "
        f"{100 * (1 - false_alarm_rate):g}% confidence.\n"
        f"{shown[:1].upper()}{shown[1:]}; the claim allows {words.times(claim)}.\n"
        f"A correct mechanism fails this test in at most {_share(false_alarm_rate)} ({bound.method}, {how}), if "
        f"{bound.assumes}."
    )


def _share(rate: float) -> str:
    return f"1 of {1 / rate:,.0f} cases" if rate <= 0.1 else f"{100 * rate:g}% of cases"
