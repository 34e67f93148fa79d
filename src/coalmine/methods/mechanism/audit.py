"""One application of a mechanism as a black box (Andrew et al., 2023, Section 3).

The sum of k random unit vectors goes through the mechanism once. The score of a canary is its cosine with the output.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Array
from coalmine.claims import Claim
from coalmine.errors import InputError, check_count
from coalmine.layers import Layers, LayerSpec
from coalmine.methods.estimates import canary_evidence, normality
from coalmine.methods.mechanism.battery import CHECKS, check_noise
from coalmine.methods.mechanism.calls import LEAST_CALLS, canaries_to_guess, default_calls
from coalmine.methods.mechanism.power import weakness
from coalmine.methods.one_shot.canaries import check_room, draw_members, family_for, update_canaries
from coalmine.methods.one_shot.scores import cosine_null, cosines
from coalmine.protocol import Vector
from coalmine.results.claim_test import HALF_THE_NOISE
from coalmine.results.finding import CHECK_RATE, Check, Finding
from coalmine.results.result import Result, common_delta
from coalmine.results.verdict import APPLICATION
from coalmine.seeds import generator
from coalmine.stats import epsilon_gaussian, sigma_gaussian
from coalmine.usercode import errors_of

_LARGEST = 1e15

MechanismFunction = Callable[[Any], object]
"""A function from the sum of updates, each of norm at most 1, or from a list of clients, to what is released."""

_MOST_CALLS = 10_000_000


def gaussian_mechanism(noise_multiplier: float, seed: int) -> MechanismFunction:
    """Return a mechanism that adds Gaussian noise to each coordinate, fresh in every call.

    Args:
        noise_multiplier: Standard deviation of the noise; the updates have norm 1.
        seed: Seed of the noise.

    Raises:
        InputError: If the noise multiplier is negative.

    Example:
        >>> gaussian_mechanism(0.0, seed=0)(np.ones(3, dtype=np.float32))
        array([1., 1., 1.], dtype=float32)
    """
    if not noise_multiplier >= 0:
        raise InputError(f"noise_multiplier must be at least 0, got {noise_multiplier}")

    calls = itertools.count()

    def noisy(total: Vector) -> Vector:
        noise = generator(seed, "noise", next(calls)).standard_normal(total.size, dtype=np.float32)
        return total + np.float32(noise_multiplier) * noise

    return noisy


def audit_mechanism(
    mechanism: MechanismFunction,
    *,
    dim: int,
    canaries: int = 1000,
    family: str | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    claim: Claim | None = None,
    calls: int | None = None,
    layers: LayerSpec | None = None,
    clients: int | Sequence[Any] | None = None,
    clip_norm: float = 1.0,
    norm: str = "l2",
    seed: int = 0,
) -> Result:
    """Audit a mechanism by applying it once to a sum of random unit vectors, and test its claim in further calls.

    The lower bound is valid if the mechanism treats the updates in the sum alike. ε is about adding or removing one
    update of norm 1 in one application. If a guarantee is claimed, a battery of attacks then looks for bugs of the
    noise: too little, missing somewhere, repeated, shared between coordinates, of the wrong shape. Its false-alarm rate
    is `coalmine.results.finding.CHECK_RATE` for noise that is independent, and docs/mechanism.md says what else.

    Args:
        mechanism: Function from a float32 vector, (dim,), to one of the same length.
        dim: Number of coordinates.
        canaries: Number of canaries in the sum. The same number is held out.
        family: ``"hadamard"``, ``"orthogonal"`` or ``"gaussian"`` canaries; chosen by the dimension if None.
        delta: The δ at which ε is stated: that of ``claim`` by default, else 1e-5.
        confidence: Confidence of bounds and intervals.
        claim: The claimed guarantee, such as ``coalmine.Claim(epsilon=2.0, delta=1e-5)``.
        calls: Number of further calls for the battery, at least 16, or 0 for none; by default chosen by ``dim``.
        layers: The tensors that make up the vector, for the sentences of findings: sizes or shapes by name, a list of
            sizes, a module or a state dict.
        clients: If the mechanism takes a list of clients instead of their sum: the clients of an ordinary round, or how
            many, each an array of ``dim`` numbers. It is then also replayed with and without one client, which finds
            bugs of clipping and weighting and has a false-alarm rate of `CHECK_RATE` of its own.
        clip_norm: The claimed clip norm, with ``clients``.
        norm: Which norm of updates is limited: ``"l2"``, or ``"l1"`` as for Laplace noise. Canaries of one coordinate
            have the same norm in both; other directions are then not tested, and the canaries of the first call are
            shortened.
        seed: Seed for the canaries and for which of them are inserted.

    Returns:
        The lower bound and estimates of ε, compared with ``claim`` if that is passed.

    Raises:
        InputError: If the mechanism fails or returns something else than ``dim`` finite numbers, or if the canaries do
            not fit the dimension.

    Example:
        >>> result = audit_mechanism(gaussian_mechanism(1.0, seed=0), dim=10_000, canaries=500)
        >>> 0 < result.bound.epsilon < 4.38  # the true ε at δ = 1e-5
        True
    """
    start = time.perf_counter()
    if norm not in ("l1", "l2"):
        raise InputError(f'norm must be "l1" or "l2", got {norm!r}')
    delta = common_delta(delta, claim)
    findings: list[Finding] = []
    of_clients = None
    if clients is not None:
        from coalmine.methods.mechanism.clients import ClientMechanism  # replaying needs torch

        noise = None if claim is None else claim.noise_multiplier
        of_clients = mechanism = ClientMechanism(
            mechanism, clients, dim=dim, clip_norm=clip_norm, noise_multiplier=noise, norm=norm, seed=seed
        )
        dim = of_clients.dim
        findings += of_clients.replay.findings
    count = 2 * check_count("canaries", canaries)
    family = family or family_for(check_count("dim", dim, least=2), count)
    check_room(family, dim, count)
    updates = update_canaries(family, dim=dim, count=count, seed=seed)
    members = draw_members(canaries, design="fixed", seed=seed)
    released: Array = applied(mechanism if norm == "l2" else _for_l1(mechanism), updates.total(members))
    is_silent = not released.any()
    if is_silent:
        # An output of zeros has no direction. Any other vector that ignores the sum will do: bounds hold for whatever
        # an adversary makes of a release.
        released = generator(seed, "noise").standard_normal(dim)
    largest = float(np.abs(released).max())
    if largest > _LARGEST:  # a cosine has no units, and squares must stay finite
        released = released / largest
    length = float(np.linalg.norm(released.astype(np.float64)))
    scores = cosines(updates, released.astype(np.float32), length)
    null = cosine_null(updates)
    battery = claim is not None and claim.epsilon < math.inf and calls != 0
    test, warnings = normality(scores[members], "inserted")
    detects: float | None = None
    if battery and claim is not None:
        tensors = None if layers is None else Layers.of(layers).check(dim)
        noise_findings, weak, detects = _battery(
            mechanism, claim, dim=dim, calls=checked_calls(calls, dim), layers=tensors, norm=norm, seed=seed
        )
        if of_clients is not None and noise_findings:
            of_clients.check_steady()
        findings += noise_findings
        warnings += weak
    evidence = canary_evidence(
        scores[members],
        scores[~members],
        null=null,
        signs=family == "hadamard",
        design="fixed",
        delta=delta,
        confidence=confidence,
        claim=claim,
        checks_detect=detects,
    )
    warnings += ["the mechanism returned only zeros, which reveal nothing"] * is_silent
    return Result(
        method="mechanism",
        view="release",
        unit=APPLICATION,
        adversary="sees the mechanism's output",
        score_name="cosine",
        seed=seed,
        estimates=evidence.estimates,
        scores=evidence.scores,
        null=f"cosine:{null.dim}",
        claim=claim,
        claim_test=evidence.claim_test,
        recipe=evidence.recipe,
        checks=tuple(map(str, ([] if clients is None else [Check.SENSITIVITY]) + (list(CHECKS) if battery else []))),
        findings=findings,
        ceiling=evidence.ceiling,
        warnings=warnings,
        metrics={"inserted": float(canaries), "held_out": float(canaries), **test},
        timing={"audit_s": time.perf_counter() - start},
        config={"dim": dim, "canaries": canaries, "family": family, "score": "cosine", "norm": norm},
    )


def _battery(
    mechanism: MechanismFunction, claim: Claim, *, dim: int, calls: int, layers: Layers | None, norm: str, seed: int
) -> tuple[list[Finding], list[str], float | None]:
    """Return what the battery found; if nothing, a warning if half of the noise would pass, or else what to state.

    That is the detectable share of the noise, or for a claim without a noise multiplier the claimed ε over the
    detectable one.
    """
    curve, noise = claim.curve(), claim.noise_multiplier or _gaussian(claim)
    findings = check_noise(
        lambda total: applied(mechanism, total),
        dim=dim,
        claim=curve,
        calls=calls,
        noise_multiplier=noise if norm == "l2" else None,  # that of Gaussian noise, which ℓ₁ does not limit
        layers=layers,
        seed=seed,
        before=1,
        waves=norm == "l2",
    )
    canaries = canaries_to_guess(dim, calls)
    weak = "" if findings else weakness(curve, noise_multiplier=noise, canaries=canaries, rate=CHECK_RATE)
    if findings or weak or noise is None or norm == "l1":  # what would be stated is about Gaussian noise
        return findings, [f"{weak}: use more calls"] if weak else [], None
    if claim.noise_multiplier is not None:
        return findings, [], HALF_THE_NOISE
    return findings, [], claim.epsilon / float(epsilon_gaussian(HALF_THE_NOISE * noise, claim.delta))


def _for_l1(mechanism: MechanismFunction) -> MechanismFunction:
    """Return a mechanism for updates of ℓ₂ norm 1 from one for ℓ₁ norm 1: over √dim, they are no longer than that."""
    return lambda total: np.asarray(mechanism(total / total.size**0.5)) * total.size**0.5


def applied(mechanism: MechanismFunction, total: Vector) -> npt.NDArray[np.generic]:
    """Return what the mechanism makes of a sum.

    Raises:
        InputError: If it fails, or returns something else than one finite number per coordinate.
    """
    dim = total.size
    with errors_of("the mechanism failed"):
        released = np.asarray(mechanism(total))
    if released.shape != (dim,) or released.dtype.kind not in "fiu":
        raise InputError(
            f"the mechanism must return numbers of shape ({dim},), got {released.dtype} of shape {released.shape}"
        )
    if not np.isfinite(released).all():
        wrong = released[~np.isfinite(released)][0]
        raise InputError(f"the mechanism must return finite numbers, got {wrong}")
    return released


def _gaussian(claim: Claim) -> float | None:
    """Return the noise multiplier of one Gaussian mechanism that keeps a claim, if any does."""
    return sigma_gaussian(claim.epsilon, claim.delta) if claim.epsilon > 0 and claim.delta > 0 else None


def checked_calls(calls: int | None, dim: int) -> int:
    """Return the number of calls for the battery: by default as many as the dimension suggests.

    Raises:
        InputError: If there are too few to learn from.
    """
    if calls is not None and calls > _MOST_CALLS:
        raise InputError(f"calls must be at most {_MOST_CALLS:,}, got {calls:,}")
    return default_calls(dim) if calls is None else check_count("calls", calls, least=LEAST_CALLS)
