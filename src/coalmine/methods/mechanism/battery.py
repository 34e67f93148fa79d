"""The battery: many attacks on the noise of a mechanism, each a valid test of its claim, at one false-alarm rate.

docs/mechanism.md describes the attacks and proves the tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from scipy import fft

from coalmine.arrays import Array, Floats
from coalmine.layers import Layers
from coalmine.methods.mechanism import attacks, twins
from coalmine.methods.mechanism.attacks import Attack
from coalmine.methods.mechanism.calls import LEAST, MOST, Calls, calls_along_waves, default_calls, make_calls
from coalmine.methods.mechanism.lags import lag_attack
from coalmine.methods.mechanism.places import call_attack, direction_attack, gain_attack, local_attack, place_attack
from coalmine.methods.mechanism.small_seeds import seed_attack
from coalmine.protocol import Vector
from coalmine.results.finding import CHECK_RATE, Check, Finding
from coalmine.stats.guess_tests import guess_p_value, value_p_value
from coalmine.stats.noise_tests import LEAST_P_VALUE
from coalmine.stats.tradeoff import Curve

_REACHES = (1e-8, 1e-6, 1e-4)  # how close a guess of a canary's value must come
_SPACING = 2.0**-24  # of the values, which are float32 below 1
_FEWEST_GUESSES = 4

# Shares of the false-alarm rate. Too little noise everywhere is the most common bug, and the one that takes the most
# evidence; others are plain at the right place.
SIZE_SHARE, SHAPE_SHARE, _DEFAULT_SHARE, _SMALL_SHARE = 0.4, 0.06, 0.06, 0.03

# In the order in which they name a bug most directly, each with its share of the false-alarm rate.
_ON_CALLS: tuple[tuple[Callable[[Calls], Attack | None], float], ...] = (
    (seed_attack, _SMALL_SHARE),
    (twins.shared_attack, _DEFAULT_SHARE),
    (twins.repeat_attack, _DEFAULT_SHARE),
    (twins.copy_attack, _DEFAULT_SHARE),
    (twins.neighbor_attack, _SMALL_SHARE),
    (call_attack, _SMALL_SHARE),
    (local_attack, _SMALL_SHARE),
    (attacks.value_attack, _DEFAULT_SHARE),
    (attacks.shape_attack, SHAPE_SHARE),
    (attacks.coordinate_attack, _SMALL_SHARE),
    (attacks.size_attack, SIZE_SHARE),
)

CHECKS = (
    Check.SIZE,
    Check.SHAPE,
    Check.VALUES,
    Check.PLACES,
    Check.CALLS,
    Check.FRESH,
    Check.INDEPENDENT,
    Check.DIRECTIONS,
)
"""Names of the checks."""


def check_noise(
    mechanism: Callable[[Vector], Array],
    *,
    dim: int,
    claim: Curve,
    calls: int | None = None,
    rate: float = CHECK_RATE,
    noise_multiplier: float | None = None,
    layers: Layers | None = None,
    seed: int = 0,
    before: int = 0,
    waves: bool = True,
) -> list[Finding]:
    """Attack the noise of a mechanism in every way that the battery knows.

    Args:
        mechanism: Function from a float32 vector, (dim,), to an array of ``dim`` finite numbers.
        dim: Number of coordinates.
        claim: The claimed trade-off curve of one call, for adding or removing one update of norm 1.
        calls: Number of calls, at least 16; by default enough for four million coordinates in all, and fewer for
            more than 100,000 coordinates. A fifth as many, at least 16, follow in up to two million dimensions to look
            for weak directions.
        rate: Largest probability that a mechanism with independent noise that keeps the claim gets a finding.
        noise_multiplier: Noise multiplier of Gaussian noise that would keep the claim, for sentences.
        layers: The tensors that make up the vector, for sentences.
        seed: Seed of canaries and coins.
        before: Number of calls of the mechanism before these, for sentences.
        waves: Whether to look for weak directions, whose updates have the same ℓ₂ norm as those of one coordinate.

    Returns:
        At most one finding: the failed check that names the bug most directly.

    Example:
        >>> from coalmine.stats.tradeoff import ApproximateDP
        >>> rng = np.random.default_rng(0)
        >>> def forgetful(total):
        ...     return total + np.r_[rng.normal(0, 4, total.size - 10), np.zeros(10)]
        >>> print(*check_noise(forgetful, dim=500, claim=ApproximateDP(1.0, 1e-5)))
        Coordinates 490–499 carry no noise (p < 1e-300).
    """
    layers, calls = layers or Layers({}), calls or default_calls(dim)
    named: tuple[Attack, Calls, float] | None = None
    weaker: Attack | None = None
    for attack, record, share in _attacks(mechanism, dim, calls, seed, layers, before, waves):
        weaker = weaker or (attack if attack.sentence and attack.elsewhere is not None else None)
        if named is not None and named[0].sentence and attack.rank >= named[0].rank:
            continue  # the bug has a better name already
        p_value = min(1.0, attack_p_value(attack, record, claim) / share)
        if p_value <= rate and (named is None or attack.sentence):
            named = attack, record, p_value
    if named is None:
        return []
    attack, record, p_value = named
    check, sentence = _explained(attack, weaker, record, claim, rate, noise_multiplier)
    # A p-value of 0 would stand for a certainty, which statistics never have.
    return [Finding(check=check, sentence=f"{sentence.rstrip('.')}.", p_value=max(p_value, LEAST_P_VALUE))]


def _explained(
    attack: Attack, weaker: Attack | None, calls: Calls, claim: Curve, rate: float, noise_multiplier: float | None
) -> tuple[str, str]:
    """Return the check that failed and what is wrong: the simplest explanation that accounts for the evidence.

    Noise that is too small everywhere also looks too small wherever an attack looks. So a set of coordinates or calls
    with less noise than the others is named alone only if the others keep the claim.

    Args:
        attack: The attack that refuted the claim and has the most to say.
        weaker: One that found such a set beyond chance, whether or not it refuted the claim by itself.
        calls: The calls that they were made on.
        claim: The claim.
        rate: Significance at which the others are compared with it.
        noise_multiplier: Noise multiplier of Gaussian noise that keeps the claim.
    """
    if attack.rank == attacks.SIZE_RANK or not attack.sentence:
        if weaker is None:
            return Check.SIZE, attacks.too_small(calls.size, noise_multiplier)
        attack = weaker
    if attack.elsewhere is None or not attack.elsewhere.any():
        return attack.name, attack.sentence
    scores = attacks.gaussian_scores(calls, 0.0, attack.usual, attack.elsewhere)
    if guess_p_value(scores, calls.coins[attack.elsewhere], claim) > rate:
        return attack.name, attack.sentence
    return Check.SIZE, f"{attacks.too_small(attack.usual, noise_multiplier)}. Besides: {attack.sentence}"


def _attacks(
    mechanism: Callable[[Vector], Array], dim: int, calls: int, seed: int, layers: Layers, before: int, waves: bool
) -> Iterator[tuple[Attack, Calls, float]]:
    """Yield each attack that finds something to exploit, with the calls it was made on and its share of the rate."""
    record = make_calls(mechanism, dim=dim, calls=calls, seed=seed, places=layers.starts, before=before)
    made = ((make(record), share) for make, share in _ON_CALLS)
    by_place = [(place_attack(record, layers), _SMALL_SHARE), (gain_attack(record, layers), _SMALL_SHARE)]
    for attack, share in itertools.chain(by_place, made):
        if attack is not None:
            yield attack, record, share
    if lagged := lag_attack(record):
        yield *lagged, _SMALL_SHARE
    several, before = calls_along_waves(dim, calls), before + calls
    if several and waves:
        record = make_calls(_along_waves(mechanism), dim=dim, calls=several, seed=seed + 1, before=before)
        attack = direction_attack(record)
        if attack is not None:
            yield attack, record, _DEFAULT_SHARE


def _along_waves(mechanism: Callable[[Vector], Array]) -> Callable[[Vector], Array]:
    """Return the mechanism in the orthonormal basis of cosines, in which updates keep their norm."""

    def transformed(total: Vector) -> Array:
        dense = fft.idct(total.astype(np.float64), norm="ortho").astype(np.float32)
        return np.asarray(fft.dct(np.asarray(mechanism(dense), dtype=np.float64), norm="ortho"))

    return transformed


def attack_p_value(attack: Attack, calls: Calls, claim: Curve) -> float:
    """Return the p-value of a claim from the scores of an attack, and from guessing the values of canaries."""
    pick: Array | slice = slice(None) if attack.chosen is None else attack.chosen
    coins = calls.coins[pick]
    scores = np.clip(attack.scores, -1e30, 1e30)
    p_value = guess_p_value(scores, coins, claim)
    if attack.scale is None:
        return p_value
    values = calls.values[calls.targets][pick]
    misses = np.abs(calls.released[calls.targets][pick] - attack.mean - values)
    return min(1.0, 2 * min(p_value, _value_p_value(misses, attack.scale, coins, claim)))


def _value_p_value(misses: Floats, scale: Floats, coins: Array, claim: Curve) -> float:
    """Return the p-value of guesses of values where the noise is predicted to within less than they vary."""
    p_values = [1.0]
    for reach in _REACHES:
        # Where to guess is settled without the coins; that only inserted canaries have a value to guess is not.
        guessed = (scale <= reach / 4) & coins
        if guessed.sum() >= _FEWEST_GUESSES:
            hits = int(np.sum(misses[guessed] <= reach))
            p_values.append(value_p_value(hits, int(guessed.sum()), (2 * reach + _SPACING) / (MOST - LEAST), claim))
    return min(1.0, len(_REACHES) * min(p_values))
