"""`check_mechanism`: does a mechanism do what it claims, when applied once, as a black box?

The sum of k random unit vectors goes through the mechanism once, and the score of a canary is its cosine with the
output (Andrew et al., 2023, Section 3). If a guarantee is claimed, further calls test the noise, and a mechanism of
clients is replayed with one client more (`coalmine.checks`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coalmine.arrays import Array, Floats
from coalmine.checks.noise_attacks import CHECKS, NoiseStatistics, check_noise, half_would_pass
from coalmine.checks.transcript import LEAST_CALLS, canaries_to_guess, default_calls
from coalmine.claims import Claim
from coalmine.errors import InputError, check_count, check_nonnegative
from coalmine.layers import Layers, LayerSpec
from coalmine.methods.estimates import canary_evidence, normality
from coalmine.methods.one_shot.canaries import FAMILIES, choose_family, draw_members
from coalmine.methods.one_shot.families import UpdateCanaries
from coalmine.methods.one_shot.scores import compared
from coalmine.protocol import Vector
from coalmine.results.claim_test import HALF_THE_NOISE
from coalmine.results.result import Result, common_delta
from coalmine.results.verdict import APPLICATION, CHECK_RATE, Check, Finding
from coalmine.seeds import generator
from coalmine.stats import sigma_gaussian
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.usercode import errors_of

MechanismFunction = Callable[[Any], object]
"""A function from the sum of updates, each of norm at most 1, or from a list of clients, to what is released."""


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
    check_nonnegative("noise_multiplier", noise_multiplier)
    calls = itertools.count()  # a stream per call, so that noise is fresh and a run can be repeated

    def noisy(total: Vector) -> Vector:
        noise = generator(seed, "noise", next(calls)).standard_normal(total.size, dtype=np.float32)
        return total + np.float32(noise_multiplier) * noise

    return noisy


def judged(statistics: Mapping[str, Any], claim: Claim | None) -> tuple[list[str], list[Finding]]:
    """Return the names of the checks that were made, and what they found, from what the checks counted and measured."""
    checks, findings = list[str](), list[Finding]()
    if "replay" in statistics:
        from coalmine.checks.findings import Replay  # replay needs torch

        checks.append(Check.SENSITIVITY)
        findings += Replay.from_dict(statistics["replay"]).findings
    if "noise" in statistics and claim is not None:
        checks += CHECKS
        findings += NoiseStatistics.from_dict(statistics["noise"]).findings(claim.curve())
    return list(map(str, checks)), findings


def check_mechanism(
    mechanism: MechanismFunction,
    *,
    dim: int | None = None,
    claim: Claim | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    canaries: int | None = None,
    calls: int | None = None,
    layers: LayerSpec | None = None,
    clients: int | Sequence[Any] | None = None,
    clip_norm: float = 1.0,
    norm: str = "l2",
    false_alarm_rate: float = CHECK_RATE,
    seed: int = 0,
) -> Result:
    """Check whether a mechanism keeps its claim for adding or removing one update of norm 1.

    The mechanism is applied once to a sum of random unit vectors. The lower bound on ε is valid if it treats the
    updates in the sum alike. If a guarantee is claimed, several hundred calls with canaries of one coordinate each
    follow. Attacks learn the noise from part of these calls and test the claim on the others: is there enough noise
    everywhere, fresh in every call, independent, of the right shape? docs/checks.md describes the attacks and proves
    their tests.

    Args:
        mechanism: Function from the sum of updates, a float32 vector, (dim,), to one of the same length; or from a list
            of clients to their noisy sum or average, with ``clients``.
        dim: Number of coordinates; by default that of ``layers`` or ``clients``, or else 10,000.
        claim: The claimed guarantee, such as ``coalmine.Claim(epsilon=2.0, delta=1e-5)``.
        delta: The δ at which ε is stated: that of ``claim`` by default, else 1e-5.
        confidence: Confidence of bounds and intervals.
        canaries: Number of canaries in the sum of the first call; as many are held out. By default a fifth of ``dim``,
            at most 1,000.
        calls: Number of further calls, at least 16, or 0 for none; by default chosen by ``dim``.
        layers: The tensors that make up the vector, to name them in findings: sizes or shapes by name, a list of sizes,
            a module or a state dict.
        clients: If the mechanism takes a list of clients instead of their sum: the clients of an ordinary round, or how
            many, each an array of ``dim`` numbers. It is then also replayed with and without one client, which finds
            bugs of clipping and weighting and has a false-alarm rate of `CHECK_RATE` of its own.
        clip_norm: The claimed clip norm, with ``clients``.
        norm: Which norm of updates is limited: ``"l2"``, or ``"l1"`` as for Laplace noise. Canaries of one coordinate
            have the same norm in both; the canaries of the first call are shortened.
        false_alarm_rate: Largest probability that attacks refute a correct mechanism, if its noise is independent.
        seed: Seed for the canaries and for which of them are inserted.

    Returns:
        The lower bound and estimates of ε, and what the checks found.

    Raises:
        InputError: If the mechanism fails or returns something else than ``dim`` finite numbers, or if the canaries do
            not fit the dimension.

    Example:
        >>> result = check_mechanism(gaussian_mechanism(1.0, seed=0), dim=10_000, canaries=500)
        >>> 0 < result.bound.epsilon < 4.38  # the true ε at δ = 1e-5
        True
    """
    delta = common_delta(delta, claim)
    if not callable(mechanism):
        raise InputError(f"mechanism must be a function, got {type(mechanism).__name__}")
    if norm not in ("l1", "l2"):
        raise InputError(f'norm must be "l1" or "l2", got {norm!r}')
    tensors = None if layers is None else Layers.of(layers)
    if dim is None and tensors is not None:
        dim = tensors.dim
    statistics, sums = dict[str, Any](), None
    if clients is not None:
        from coalmine.checks.sensitivity import ClientSums  # replay needs torch

        noise = None if claim is None else claim.noise_multiplier
        sums = mechanism = ClientSums(
            mechanism, clients, dim=dim, clip_norm=clip_norm, noise_multiplier=noise, norm=norm, seed=seed
        )
        statistics["replay"], dim = sums.replay.to_dict(), sums.dim
    dim = check_count("dim", 10_000 if dim is None else dim, least=2)
    # Inserted and held-out canaries fill two fifths of the dimensions, so all of them can be orthogonal.
    canaries = min(1000, max(1, dim // 5)) if canaries is None else check_count("canaries", canaries)
    applied = partial(_applied, mechanism, dim)
    family = choose_family(None, dim, 2 * canaries)
    updates = FAMILIES[family](dim=dim, count=2 * canaries, seed=seed)
    inserted = draw_members(canaries, design="fixed", seed=seed)
    # Over √dim, updates of ℓ₂ norm 1 have an ℓ₁ norm of 1 at most.
    length = {"l2": 1.0, "l1": dim**-0.5}[norm]
    scores, only_zeros = _first_scores(applied, updates, (updates.total(inserted) * length).astype(np.float32), seed)
    warnings = ["the mechanism returned only zeros, which reveal nothing"] if only_zeros else []
    detects: float | None = None  # share of the noise, or of ε, that the attacks on the noise would have detected
    if claim is not None and claim.epsilon < math.inf and calls != 0:
        number = default_calls(dim) if calls is None else check_count("calls", calls, least=LEAST_CALLS)
        sigma = _gaussian_noise(claim) if norm == "l2" else None  # what is said of it is about Gaussian noise
        attacked = check_noise(
            applied, dim=dim, claim=claim.curve(), calls=number, rate=false_alarm_rate, noise_multiplier=sigma,
            layers=None if tensors is None else tensors.check(dim), norm=norm, seed=seed,
        )  # fmt: skip
        statistics["noise"], of_noise = attacked.to_dict(), attacked.findings(claim.curve())
        # A sum that changes between equal calls would look like wrong noise.
        if sums is not None and of_noise:
            sums.check_steady()
        guessed = canaries_to_guess(dim, number)
        if sigma is not None and not of_noise:
            if half_would_pass(claim.curve(), noise_multiplier=sigma, canaries=guessed, rate=false_alarm_rate):
                warnings.append(f"{guessed:,} canaries are too few: half of the noise might pass. Use more calls")
            else:  # in terms of ε if no noise is claimed
                half = float(epsilon_gdp(1 / (HALF_THE_NOISE * sigma), claim.delta))
                detects = claim.epsilon / half if claim.noise_multiplier is None else HALF_THE_NOISE
    checks, findings = judged(statistics, claim)
    members, null = scores[inserted], updates.cosine_null
    evidence = canary_evidence(
        members, scores[~inserted], null=null, signs=family == "hadamard", design="fixed", delta=delta,
        confidence=confidence, claim=claim, checks_detect=detects,
    )  # fmt: skip
    # Estimates that assume normal scores are marked as doubtful where these are not, so no warning repeats that.
    normal, _ = normality(members, "inserted")
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
        recipe={**evidence.recipe, "checks": statistics},  # with which the gate finds the same again
        checks=checks,
        findings=findings,
        ceiling=evidence.ceiling,
        warnings=warnings,
        metrics={"inserted": float(members.size), "held_out": float(scores.size - members.size), **normal},
        config={"dim": dim, "canaries": members.size, "family": family, "score": "cosine", "norm": norm},
    )


def _first_scores(
    applied: Callable[[Vector], Array], updates: UpdateCanaries, total: Vector, seed: int
) -> tuple[Floats, bool]:
    """Return each canary's cosine with the release of a sum, and whether that was all zeros (Section 3)."""
    released = applied(total)
    largest = float(np.abs(released).max())
    if largest == 0:
        # An output of zeros has no direction. Any other vector that ignores the sum will do: bounds hold for whatever
        # an adversary makes of a release.
        released = generator(seed, "noise").standard_normal(len(released))
    elif largest > 1e15:  # a cosine has no units, and squares must stay finite
        released = released / largest
    length = float(np.linalg.norm(released.astype(np.float64)))
    dots, lengths, _ = compared(updates, released.astype(np.float32), length)
    return dots / lengths, largest == 0


def _applied(mechanism: MechanismFunction, dim: int, total: Vector) -> Array:
    """Return what the mechanism makes of a sum, if that is one finite number per coordinate."""
    with errors_of("the mechanism failed"):
        released = np.asarray(mechanism(total))
    if released.shape != (dim,) or released.dtype.kind not in "fiu":
        raise InputError(
            f"the mechanism must return numbers of shape ({dim},), got {released.dtype} of shape {released.shape}"
        )
    if not np.isfinite(released).all():
        raise InputError(f"the mechanism must return finite numbers, got {released[~np.isfinite(released)][0]}")
    return released


def _gaussian_noise(claim: Claim) -> float | None:
    """Return the noise multiplier of Gaussian noise that keeps a claim, if any does."""
    if claim.noise_multiplier is not None:
        return claim.noise_multiplier
    return sigma_gaussian(claim.epsilon, claim.delta) if claim.epsilon > 0 and claim.delta > 0 else None
