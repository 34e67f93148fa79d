"""`assert_private`: a mechanism that adds noise, as a unit test."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from coalmine.errors import InputError, check_count
from coalmine.layers import Layers, LayerSpec
from coalmine.stats import Estimate
from coalmine.testing.claims import FALSE_ALARM_RATE, checked_claim, claimed_curve, judged, share_of_cases
from coalmine.testing.sensitivity import report

_FIRST_CALL = 0.1  # share of the rate for the bound from the first call; the battery has the rest


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

    The mechanism is applied once to a sum of random unit vectors (see `coalmine.audit_mechanism`), then several hundred
    times to canaries of one coordinate each. A battery of attacks learns the noise from part of these calls and tests
    the claim on the others: is there enough noise everywhere, fresh in every call, independent, of the right shape? The
    first failing check names the bug. docs/mechanism.md describes the attacks and proves their tests.

    Where so few canaries could not tell half of the noise from all of it, a warning says which share they can.

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
        canaries: Number of canaries in the sum of the first call. By default a fifth of ``dim``, at most 2,000.
        calls: Number of further calls, at least 16; by default 6,000 for up to 66 coordinates, 400 for 10,000, and
            16 for 10 million. A fifth as many, at least 16, follow in up to two million dimensions to look for
            directions with less noise.
        clients: The clients of an ordinary round, or how many, each an array of ``dim`` numbers. Their clipping must
            use one norm for all numbers.
        clip_norm: The claimed clip norm, with ``clients``.
        norm: Which norm of updates is limited: ``"l2"``, or ``"l1"`` as for Laplace noise. Canaries of one coordinate
            have the same norm in both; other directions are then not tested.
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
        AssertionError: Refuted: one client moves the release by more than the noise covers (1 bug).
        ...
    """
    __tracebackhide__ = True
    from coalmine.methods.mechanism.audit import applied, audit_mechanism, checked_calls
    from coalmine.methods.mechanism.battery import check_noise
    from coalmine.methods.mechanism.calls import calls_along_waves, canaries_to_guess
    from coalmine.methods.mechanism.power import weakness
    from coalmine.replaying.api import checked_order

    if not callable(mechanism):
        raise InputError(
            f"mechanism must be a function from the sum of updates to the noisy sum, got {type(mechanism).__name__}"
        )
    checked_order(norm)
    curve, claim, sigma = claimed_curve(epsilon, delta, noise_multiplier)
    checked_claim(claim, delta, false_alarm_rate)
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
    tensors = None if layers is None else Layers.of(layers)
    of_clients = None
    if clients is not None:
        from coalmine.methods.mechanism.clients import ClientMechanism  # replaying needs torch

        size = dim if dim is not None or tensors is None else tensors.dim
        of_clients = mechanism = ClientMechanism(
            mechanism, clients, dim=size, clip_norm=clip_norm, noise_multiplier=noise_multiplier, norm=norm, seed=seed
        )
        dim = of_clients.dim
        report(of_clients.replay)
    if dim is None:
        dim = 10_000 if tensors is None else tensors.dim
    if canaries is None:
        canaries = min(2000, max(1, check_count("dim", dim) // 5))
    number = checked_calls(calls, dim)
    first = audit_mechanism(
        mechanism,
        dim=dim,
        canaries=canaries,
        delta=delta,
        confidence=1 - _FIRST_CALL * false_alarm_rate,
        norm=norm,
        seed=seed,
    )
    findings = check_noise(
        lambda total: applied(mechanism, total),
        dim=dim,
        claim=curve,
        calls=number,
        rate=(1 - _FIRST_CALL) * false_alarm_rate,
        noise_multiplier=sigma if norm == "l2" else None,  # that of Gaussian noise, which ℓ₁ does not limit
        layers=None if tensors is None else tensors.check(dim),
        seed=seed,
        before=1,
        waves=norm == "l2",
    )
    made = 1 + number + (calls_along_waves(dim, number) if norm == "l2" else 0)
    share = share_of_cases(false_alarm_rate)
    if of_clients is not None and findings:
        of_clients.check_steady()
    for finding in findings:
        raise AssertionError(
            f"{finding}\nThe claim of ε = {claim:.4g} at δ = {delta:g} is refuted by the check "
            f'"{finding.check}" ({made:,} calls in {dim:,} dimensions, seed {seed}).\n'
            f"A correct mechanism fails this test in at most {share}, if its noise is independent."
        )
    assert first.bound is not None
    bound = judged(first.bound, claim, false_alarm_rate, f"{canaries:,} canaries in {dim:,} dimensions, seed {seed}")
    rate = (1 - _FIRST_CALL) * false_alarm_rate
    weak = weakness(curve, noise_multiplier=sigma, canaries=canaries_to_guess(dim, number), rate=rate)
    if weak:
        instead = "" if noise_multiplier is not None else ", or noise_multiplier= if the noise is Gaussian"
        warnings.warn(f"{weak}: pass more calls={instead}", stacklevel=2)
    return bound
