"""Is the noise of a mechanism there everywhere, fresh, independent and of a shape that protects?

Each attack learns from the pilot of a `Transcript`, and from coordinates without a canary, where the noise could be
predicted or is weak, and guesses the coins of the test calls. Under the claim no attack guesses better than its
trade-off curve allows, so each is a valid test whatever it learned, and a union bound covers all of them
(docs/checks.md). For independent noise that keeps the claim the false-alarm rate is at most ``rate``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from scipy import special

from coalmine.arrays import Array, Bools, Floats, Ints
from coalmine.checks.transcript import LEAST, MOST, Transcript, call_often, turned, weakest_directions
from coalmine.layers import Layers
from coalmine.protocol import Vector
from coalmine.results.verdict import CHECK_RATE, Check, Finding
from coalmine.seeds import default_rng, generator
from coalmine.stats.exact_tests import (
    LEAST_P_VALUE,
    NUMBERS,
    CoinGuesses,
    SeedGuess,
    best_seed,
    highest_accuracy,
    near_zero_p_value,
    value_p_value,
)
from coalmine.stats.tradeoff import Curve

CHECKS = (
    Check.SIZE, Check.SHAPE, Check.VALUES, Check.PLACES, Check.CALLS, Check.FRESH, Check.INDEPENDENT,
)  # fmt: skip
"""Names of the checks."""

# Below this size noise hides no update, whatever else is wrong with it.
_NEGLIGIBLE = 0.02
# Smaller than elsewhere by this factor, and by this gain in log-likelihood, which noise of one size shows with a
# probability of about 1e-6, counts as weak.
_WEAK, _PLAIN = 0.9, 14.0
_ENOUGH = 0.98  # of the noise that Gaussian noise takes
_BY_CHANCE = 1e-6  # probability below which normal noise does not look like this by chance
# Shares of the false-alarm rate. Too little noise everywhere is the most common bug, and takes the most evidence. So it
# has the largest one; the others are plain at the right place.
_LATER_SHARES = _SIZE_SHARE, _LONE_SHARE, _DIRECTIONS_SHARE = 0.3, 0.04, 0.12
_BEYOND = 0.05  # standard deviations beyond the largest noise of the pilot, which others may exceed a little
_MOST_LONE, _MOST_DRAWN = 50_000, 1e9  # calls, and their coordinates, that refute a claim by such noise
_REACHES = (1e-8, 1e-6, 1e-4)  # how near the value of a canary a guess must come
_FEWEST = 9  # values that two calls must share to be compared
_DEPENDS = "The noise depends on the data: its standard deviation is"
_CORRELATED = 0.5  # correlation from which on noise is said to follow other noise


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What an attack guessed right: all that its p-value, and a finding, follow from.

    Args:
        check: Name of the check.
        sentence: What is wrong with the noise if the attack succeeds; empty if it is too small.
        guesses: Guesses about the coins of the targets that it chose.
        hits: Values of inserted canaries that were hit, and how many were guessed, for each of the `_REACHES`; None if
            none were guessed.
        usual: Standard deviation of the noise at the other targets, if the sentence compares with it, or of all noise.
        rest: Guesses about these.
        share: Its share of the false-alarm rate.
    """

    check: str
    sentence: str
    guesses: CoinGuesses
    hits: Sequence[tuple[int, int]] | None = None
    usual: float = 0.0
    rest: CoinGuesses | None = None
    share: float = 1.0

    def p_value(self, claim: Curve) -> float:
        """Return the p-value of a claim, all attacks taken into account."""
        p_value = self.guesses.p_value(claim)
        if self.hits is not None:
            for (hits, guesses), reach in zip(self.hits, _REACHES, strict=True):
                chance = (2 * reach + 2.0**-24) / (MOST - LEAST)  # values are float32 numbers
                if guesses >= 4:
                    p_value = min(p_value, len(_REACHES) * value_p_value(hits, guesses, chance, claim))
            p_value *= 2
        # A p-value of 0 would stand for a certainty, which statistics never have.
        return max(min(1.0, p_value) / self.share, LEAST_P_VALUE)


def attack_with(
    transcript: Transcript, check: Check, sentence: str, *, mean: Floats | float = 0.0, scale: Floats | None = None,
    scores: Floats | None = None, chosen: Bools | None = None, usual: float = 0.0,
) -> Attack:  # fmt: skip
    """Guess coins, and values of canaries where the noise is predicted, and count what is right.

    Args:
        transcript: The calls.
        check: Name of the check.
        sentence: What is wrong with the noise if the attack succeeds.
        mean: Predicted noise of each chosen target.
        scale: Predicted standard deviation of what the prediction misses, shape (k,), or None without a prediction.
        scores: Log-likelihood ratio of each chosen target, shape (k,); by default for normal noise as predicted, or as
            large everywhere as in the pilot.
        chosen: Which targets, or None for all.
        usual: Standard deviation of the noise at the targets that were not chosen, if the sentence compares with it.
    """
    targets = slice(None) if chosen is None else chosen
    coins, hits, rest = transcript.coins[targets], None, None
    if scores is None:
        scores = _gaussian_scores(transcript, mean, transcript.size if scale is None else scale, chosen)
    if scale is not None:
        # Where the noise is predicted to within less than canaries differ, their values are guessed as well: a few
        # exact guesses refute any ε. Where to guess is settled without the coins; only inserted canaries have a value.
        misses, hits = np.abs(transcript.target_outputs[targets] - mean - transcript.target_values[targets]), []
        for reach in _REACHES:
            guessed = (scale <= reach / 4) & coins
            hits.append((int(np.sum(misses[guessed] <= reach)), int(guessed.sum())))
    if usual and chosen is not None:
        rest = CoinGuesses.count(_gaussian_scores(transcript, 0.0, usual, ~chosen), transcript.coins[~chosen])
    guesses = CoinGuesses.count(scores, coins)
    return Attack(check=str(check), sentence=sentence, guesses=guesses, hits=hits, usual=usual, rest=rest)


@dataclass(frozen=True, kw_only=True)
class NoiseStatistics:
    """What the attacks on the noise of a mechanism guessed right.

    Args:
        rate: False-alarm rate of all attacks together.
        noise_multiplier: Noise multiplier of Gaussian noise that would keep the claim, for sentences.
        attacks: The attacks that found something to exploit, the most telling first.
    """

    rate: float
    noise_multiplier: float | None
    attacks: Sequence[Attack]

    def findings(self, claim: Curve) -> list[Finding]:
        """Return at most one finding: the first attack that refutes the claim."""
        for attack in self.attacks:
            p_value = attack.p_value(claim)
            if p_value > self.rate:
                continue
            check, sentence, needed = attack.check, attack.sentence, self.noise_multiplier
            is_shape = check == Check.SHAPE and (not attack.usual or (needed and attack.usual >= _ENOUGH * needed))
            if check == Check.SIZE or (check == Check.SHAPE and not is_shape):
                check, sentence = Check.SIZE, _too_small(attack.usual, needed)
            # Noise that is too small everywhere also looks too small wherever an attack looks. So a part of it is named
            # alone only if the rest keeps the claim.
            elif attack.rest is not None and attack.rest.p_value(claim) <= self.rate:
                check, sentence = Check.SIZE, f"{_too_small(attack.usual, needed)} Besides: {sentence}"
            return [Finding(check=check, sentence=sentence, p_value=min(1.0, p_value))]
        return []

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the statistics that `to_dict` wrote."""
        attacks = []
        for attack in content["attacks"]:
            rest = None if attack["rest"] is None else CoinGuesses(**attack["rest"])
            attacks.append(Attack(**{**attack, "guesses": CoinGuesses(**attack["guesses"]), "rest": rest}))
        return cls(**{**content, "attacks": attacks})


def check_noise(
    mechanism: Callable[[Vector], Array],
    *,
    dim: int,
    claim: Curve,
    calls: int,
    rate: float = CHECK_RATE,
    noise_multiplier: float | None = None,
    layers: Layers | None = None,
    norm: str = "l2",
    seed: int = 0,
) -> NoiseStatistics:
    """Attack the noise of a mechanism, until an attack refutes the claim.

    Args:
        mechanism: Function from a float32 vector, (dim,), to an array of ``dim`` finite numbers.
        dim: Number of coordinates.
        claim: The claimed trade-off curve of one call, for adding or removing one update of norm 1.
        calls: Number of calls, at least 16.
        rate: Largest probability that a mechanism with independent noise that keeps the claim gets a finding.
        noise_multiplier: Noise multiplier of Gaussian noise that would keep the claim, for sentences.
        layers: The tensors that make up the vector, for sentences.
        norm: Which norm of updates is limited: ``"l2"`` or ``"l1"``, for which canaries have one coordinate each.
        seed: Seed of canaries and coins.

    Example:
        >>> from coalmine.stats.tradeoff import ApproximateDP
        >>> rng = np.random.default_rng(0)
        >>> def forgetful(total):
        ...     return total + np.r_[rng.normal(0, 4, total.size - 10), np.zeros(10)]
        >>> claim = ApproximateDP(1.0, 1e-5)
        >>> print(*check_noise(forgetful, dim=500, claim=claim, calls=400).findings(claim))
        Coordinates 490–499 carry no noise (p < 1e-300).
    """
    layers = layers or Layers({})
    first = call_often(mechanism, dim=dim, calls=calls, seed=seed, starts=layers.starts)

    def attacks() -> Iterator[tuple[Attack | None, float]]:
        """Yield attacks with their shares of the rate; some make calls of their own."""
        noisy = first.size >= _NEGLIGIBLE
        if noisy:
            yield from ((attack(first, layers), share) for attack, share in _STRUCTURE)
        quiet, lone = _lone_calls(mechanism, dim, first, seed, claim, _LONE_SHARE * rate)
        yield lone, _LONE_SHARE
        weak, missing = None, 0
        if norm == "l2":  # along any direction, since canaries of one coordinate are not longer in other norms
            directions, missing = weakest_directions(first, dim)
            turned_calls = call_often(turned(mechanism, directions), dim=dim, calls=max(16, calls // 2), seed=seed + 1)
            what = "The sum" if abs(directions[:, 0].sum()) > 0.99 * math.sqrt(dim) else "A weighted sum"
            if missing > 0:
                what = f"The noise lacks {missing:,} of its dimensions: a weighted sum"
            weak = _low_noise(turned_calls, Layers({}), axis=0, called=f"{what} of coordinates")
            # Where dimensions are missing, it does not matter how much noise the others have.
            weak = weak and replace(weak, check=str(Check.INDEPENDENT), rest=None if missing > 0 else weak.rest)
        if missing > 0:
            yield weak, _DIRECTIONS_SHARE
        if noisy:
            yield from ((attack(first, layers), share) for attack, share in _ATTACKS)
        size = attack_with(first, Check.SIZE, "", usual=first.size)
        if first.size < quiet and _differ(first, quiet, first.size):
            sentence = f"{_DEPENDS} {quiet:.3g} where the sum is zero, and {first.size:.3g} in sums of many updates."
            size = replace(size, check=str(Check.SHAPE), sentence=sentence, usual=0.0)
        yield size, _SIZE_SHARE
        if missing <= 0:
            yield weak, _DIRECTIONS_SHARE

    made: list[Attack] = []
    for attack, share in attacks():
        if attack is None:  # nothing to exploit
            continue
        made.append(replace(attack, share=share))
        if made[-1].p_value(claim) <= rate:
            break
    return NoiseStatistics(rate=rate, noise_multiplier=noise_multiplier, attacks=made)


def half_would_pass(claim: Curve, *, noise_multiplier: float, canaries: int, rate: float = CHECK_RATE) -> bool:
    """Whether a mechanism with half of the claimed Gaussian noise may pass, by one simulation of its size attack.

    Args:
        claim: The claimed trade-off curve.
        noise_multiplier: Noise multiplier of Gaussian noise that keeps the claim.
        canaries: Number of canaries that are guessed.
        rate: False-alarm rate of all attacks together.

    Example:
        >>> from coalmine.stats.tradeoff import ApproximateDP, GaussianDP
        >>> half_would_pass(GaussianDP(1.0), noise_multiplier=1.0, canaries=3_000)
        False
        >>> half_would_pass(ApproximateDP(2.0, 1e-5), noise_multiplier=2.0, canaries=3_000)
        True
    """
    # More canaries refute what fewer do, so that large numbers need not be simulated.
    count, size, rng = min(canaries, 100_000), noise_multiplier / 2, default_rng(0)
    coins, values = rng.random(count) < 0.5, rng.uniform(LEAST, MOST, count)
    outputs = np.where(coins, values, 0.0) + size * rng.standard_normal(count)
    p_value = CoinGuesses.count(values * (outputs - values / 2) / size**2, coins).p_value(claim)
    return p_value > 0.1 * _SIZE_SHARE * rate  # a tenth, so that other samples refute it as well, but for a few


def _gaussian_scores(
    transcript: Transcript, mean: Floats | float, scale: Floats | float, chosen: Bools | None = None
) -> Floats:
    """Return the log-likelihood ratios of targets for normal noise of this mean and scale, shape (k,)."""
    pick = slice(None) if chosen is None else chosen
    values, outputs = transcript.target_values[pick], transcript.target_outputs[pick]
    floor = max(1e-6 * transcript.size, transcript.tolerance, 1e-12)
    scores: Floats = values * (outputs - values / 2 - mean) / np.maximum(scale, floor) ** 2
    return scores


def _gain(variance: Array | float, count: Array | float) -> Floats:
    """Return the log-likelihood that so many normal numbers gain by a variance of their own, over one of 1."""
    ratio = np.clip(variance, 1e-12, None)
    return np.asarray(count * (ratio - 1 - np.log(ratio)) / 2)


def _too_small(size: float, needed: float | None) -> str:
    """Say that noise is too small, from its size and that of Gaussian noise that keeps the claim."""
    if size == 0:
        return "There is no noise."
    if needed is not None and size >= _ENOUGH * needed:
        return (
            f"The noise hides updates of one coordinate less than claimed, although its standard deviation of "
            f"{size:.3g} is large enough for Gaussian noise."
        )
    sentence = f"The noise is too small everywhere: its standard deviation is {size:.3g} for updates of norm 1"
    if needed is None:
        return f"{sentence}."
    return f"{sentence}, {size / needed:.2g} times the {needed:.3g} that Gaussian noise needs to keep the claim."


# Is it fresh?


def _small_seeds(transcript: Transcript, layers: Layers) -> Attack | None:
    """Predict the first numbers of the noise by trying small seeds of the usual generators."""
    shown = transcript.known & (transcript.inputs == 0) & (transcript.coordinates < NUMBERS)

    def guess(call: int) -> SeedGuess | None:
        columns = np.flatnonzero(shown[call])
        best = best_seed(transcript.noise[call, columns], transcript.coordinates[columns])
        return best if best is not None and best.is_equal else None

    # A generator that is seeded once, as in tests, gives the numbers of its seed in its first call alone, and one seed
    # for all calls repeats its noise, which has a check of its own: several seeds must be found.
    tried = [guess(int(call)) for call in np.flatnonzero(transcript.pilot)[:8]]
    names = {guessed.name for guessed in tried if guessed is not None}
    if len(names) < 2:
        return None
    mean, scale = np.zeros(transcript.noise.shape), np.full(transcript.noise.shape, transcript.size)
    columns = transcript.coordinates < NUMBERS
    for call in np.flatnonzero(~transcript.pilot):
        guessed = guess(int(call))
        if guessed is not None:
            mean[call, columns], scale[call, columns] = guessed.noise[transcript.coordinates[columns]], 0.0
    mean, scale = mean[transcript.targets], scale[transcript.targets]
    sentence = f"The noise of a call is that of {min(names)}, and others have small seeds, too: trying them removes it."
    return attack_with(transcript, Check.FRESH, sentence, mean=mean, scale=scale)


# Is it independent?


def _shared_noise(transcript: Transcript, layers: Layers, *, axis: int) -> Attack | None:
    """Predict the noise of a call (axis 1), or at a coordinate (axis 0), from that of the one most like it."""
    noise, known, number = transcript.noise, transcript.known, np.arange(1, transcript.pilot.size + 1)
    # Values are bounded, so that no two large ones decide about a correlation.
    typical = np.median(np.abs(noise[transcript.pilot]), axis=0)
    bounded = np.clip(noise / np.where(typical > 0, typical, np.inf), -3, 3).astype(np.float32)
    seen = known & (bounded != 0)  # calls or coordinates without noise have checks of their own
    if axis == 0:
        # Compared in the pilot, where all noise is known, and centered, since noise that is the same in every call is
        # found there.
        bounded, seen = bounded[transcript.pilot].T, seen[transcript.pilot].T
        bounded = bounded - np.sum(bounded, axis=1, keepdims=True) / np.maximum(seen.sum(axis=1, keepdims=True), 1)
        noise, known, number = noise.T, known.T, transcript.coordinates
    partner, likeness, linked = _most_alike(np.where(seen, bounded, 0), seen)
    if not linked.any():
        return None
    both = known & known[partner]
    mine, theirs = np.where(both, noise, 0.0), np.where(both, noise[partner], 0.0)
    slope = np.sum(mine * theirs, axis=1) / np.maximum(np.sum(theirs**2, axis=1), 1e-300)
    slope = np.where(np.abs(slope - np.round(slope)) < 1e-3, np.round(slope), slope)  # copies are exact
    rest = np.sqrt(np.sum((mine - slope[:, None] * theirs) ** 2, axis=1) / np.maximum(both.sum(axis=1) - 1, 1))
    row, column = transcript.targets if axis else transcript.targets[::-1]
    chosen = linked[row] & known[partner[row], column]
    row, column = row[chosen], column[chosen]
    j = int(np.argmax(np.where(linked, likeness, 0.0)))
    what, share = ("calls", "repeat the noise of") if axis else ("coordinates", "share their noise with")
    sentence = (
        f"{linked.sum():,} of {linked.size:,} {what} {share} another one, such as {what} {number[j]:,} and "
        f"{number[partner[j]]:,} (correlation {math.copysign(math.sqrt(likeness[j]), slope[j]):.3g})."
    )
    # Noise that is too small everywhere shows in all targets, and must not be named after the few that share theirs.
    usual = transcript.size if linked.mean() < 0.05 else 0.0
    return attack_with(
        transcript, Check.FRESH if axis else Check.INDEPENDENT, sentence, mean=slope[row] * noise[partner[row], column],
        scale=rest[row], chosen=chosen, usual=usual,
    )  # fmt: skip


def _most_alike(rows: Array, seen: Bools) -> tuple[Ints, Floats, Bools]:
    """Return for each row the one most like it, their squared correlation, and whether that is no chance.

    Args:
        rows: Numbers of each row, 0 where they are not known, (n, numbers).
        seen: Where they are known, (n, numbers).
    """
    n, known, partner = len(rows), seen.astype(np.float32), np.zeros(len(rows), dtype=np.int64)
    rows = rows / np.sqrt(np.maximum(np.sum(rows**2, axis=1) / np.maximum(known.sum(axis=1), 1), 1e-12))[:, None]
    for start in range(0, n, 256):
        block = np.arange(start, min(start + 256, n))
        # About χ² for independent rows, whatever the number of values that both show.
        likeness = (rows[block] @ rows.T) ** 2 / np.maximum(known[block] @ known.T, 1)
        likeness[block - start, block] = 0
        partner[block] = likeness.argmax(axis=1)
    both = seen & seen[partner]
    mine, theirs, shared = np.where(both, rows, 0), np.where(both, rows[partner], 0), both.sum(axis=1)
    powers = np.sum(mine**2, axis=1) * np.sum(theirs**2, axis=1)
    squared = np.minimum(np.sum(mine * theirs, axis=1) ** 2 / np.maximum(powers, 1e-30), 1 - 1e-7)
    # Squares of correlations of independent normal values are beta variables; all pairs share the error. Few values of
    # a coarse grid are alike by chance, too.
    chance = np.maximum(shared - 2, 1) / 2 * np.log1p(-squared)
    linked = (squared > _CORRELATED**2) & (shared >= _FEWEST) & (chance < math.log(_BY_CHANCE / n**2))
    return partner, squared, linked


# Is it everywhere?


def _weakest_set(transcript: Transcript, layers: Layers, *, axis: int) -> Bools | None:
    """Return the coordinates, or the calls, whose noise is most plainly smaller than that of the others, if any.

    Sets are single members, every k-th member, tensors and stretches. One is chosen by the pilot and by coordinates
    without a canary, so it is one test however many sets there are.

    Args:
        transcript: The calls.
        layers: The tensors.
        axis: The axis to sum over: 0 for sets of coordinates, 1 for sets of calls.
    """
    place = transcript.coordinates if axis == 0 else np.arange(transcript.pilot.size)
    n = place.size
    power, count = transcript.squares.sum(axis=axis), transcript.known.sum(axis=axis).astype(np.float64)
    usual = max(float(power.sum() / max(count.sum(), 1.0)), 1e-300)
    best, members = _PLAIN, None

    def gains(power: Array, count: Array, usual: float) -> Floats:
        """Log-likelihood that sets gain by a smaller scale of their own, over one scale for all."""
        return _gain(np.minimum(power / np.maximum(count, 1) / usual, 1.0), count) / transcript.spread

    # Single members, every k-th member, and tensors.
    labels = [np.arange(n)]
    labels += [place % stride for stride in (*range(2, 17), 32, 64, 128, 256) if 2 * stride <= n]
    if axis == 0 and layers.names:
        labels.append(np.searchsorted(layers.ends, place, side="right"))
    for label in labels:
        gain = gains(np.bincount(label, power), np.bincount(label, count), usual)
        if gain.max() - np.log(gain.size) > best:
            best, members = float(gain.max() - np.log(gain.size)), label == gain.argmax()
    # The best stretch for noise of a few shares of the usual variance, by the largest sum of neighbors (Kadane).
    for ratio in (0.01, 0.25, 0.64):
        each = -count * np.log(ratio) / 2 - power / usual * (1 / ratio - 1) / 2
        sums = np.concatenate([[0.0], np.cumsum(each)])
        last = int(np.argmax(sums - np.minimum.accumulate(sums)))
        first = int(np.argmin(sums[: last + 1]))
        stretch = (np.arange(n) >= first) & (np.arange(n) < last)
        gain = float(gains(power[stretch].sum(), count[stretch].sum(), usual)) - np.log(n * (n + 1) / 2)
        if gain > best:
            best, members = gain, stretch
    return members


def _low_noise(transcript: Transcript, layers: Layers, *, axis: int, called: str = "") -> Attack | None:
    """Attack the set of coordinates, or of calls, with the least noise; ``axis`` is that of `_weakest_set`."""
    members = _weakest_set(transcript, layers, axis=axis)
    if members is None or members.all():
        return None
    power, count = transcript.squares.sum(axis=axis), transcript.known.sum(axis=axis).astype(np.float64)
    scale, others = (float(np.sqrt(power[m].sum() / max(count[m].sum(), 1.0))) for m in (members, ~members))
    if scale >= _WEAK * others:
        return None
    # The name is made exact by single members whose values put them on one side of the geometric mean of both scales.
    each = np.sqrt(power / np.maximum(count, 1))
    ratio = max(scale / others, 1e-3)
    exact = each < np.sqrt(ratio) * others
    plain = count.min() >= max(12, 18 * transcript.spread / np.log(ratio) ** 2)
    if plain and not 0.9 < exact.sum() / members.sum() < 1.1:
        members = exact
    if axis == 0:
        name, several = layers.name_of(transcript.coordinates[members], transcript.coordinates)
    else:
        calls = np.arange(1, transcript.pilot.size + 1)
        name, several = Layers({}).name_of(calls[members], calls, "call")
    if name.startswith(("call", "coordinate", "every")):
        name = f"{name[:1].upper()}{name[1:]}"
    amount = "no noise" if scale < 1e-3 * others else f"{scale / others:.2g} of the noise of the others"
    sentence = f"{called or name} {'carry' if several and not called else 'carries'} {amount}."
    chosen = members[transcript.targets[1 - axis]]
    scales = np.full(int(chosen.sum()), scale)
    check = Check.CALLS if axis else Check.PLACES
    return attack_with(transcript, check, sentence, scale=scales, chosen=chosen, usual=others)


# Has it a shape that protects?


def _odd_shape(transcript: Transcript, layers: Layers, *, beside: bool) -> Attack | None:
    """Look for noise that differs `beside` updates; or that is bounded, of one sign, mostly tiny or heavy-tailed."""
    noise, size, inserted = transcript.pilot_noise, transcript.size, transcript.pilot_inserted
    if inserted.all() or not inserted.any():  # few calls of few coordinates leave nothing to compare
        return None
    sides = noise[inserted], noise[~inserted]
    there, elsewhere = sizes = np.array([side.std() for side in sides])
    gain = _gain((sizes / size) ** 2, np.array([side.size for side in sides])).sum() / transcript.spread
    low, high = noise.min() - _BEYOND * size, noise.max() + _BEYOND * size
    within = special.ndtr(high / size) - special.ndtr(low / size)
    near = int(np.sum(np.abs(noise) < 0.1 * size))
    kurtosis, usual = 1 + 2 * transcript.spread, 0.0
    if beside:
        if sizes.min() >= _WEAK * sizes.max() or gain <= _PLAIN:
            return None
        sentence = f"The noise depends on the input: {there:.3g} where there is an update, {elsewhere:.3g} where not."
    elif noise.min() >= 0 or noise.max() <= 0:
        sentence = f"The noise is never {'negative' if noise.min() >= 0 else 'positive'}."
    elif noise.size * np.log(within) < np.log(_BY_CHANCE):
        sentence = f"The noise never exceeds {np.abs(noise).max() / size:.2g} standard deviations."
    # 0.08 of normal noise and 0.13 of Laplace noise are that small.
    elif near > 0.16 * noise.size and float(near_zero_p_value(near, noise.size, 0.1)) < _BY_CHANCE:
        sentence = f"{near / noise.size:.2g} of the noise is smaller than a tenth of its standard deviation."
    elif kurtosis > 3 + 5 * math.sqrt(24 / noise.size):
        usual = size  # a standard deviation that would be too small for Gaussian noise, too, is the plainer fault
        sentence = (
            f"The noise is not Gaussian: it has heavy tails (kurtosis {kurtosis:.3g}; Gaussian noise has 3), and hides "
            f"single coordinates less than claimed although its standard deviation of {size:.3g} is large enough."
        )
    else:
        return None
    return attack_with(transcript, Check.SHAPE, sentence, scores=_density_scores(transcript), usual=usual)


def _density_scores(transcript: Transcript) -> Floats:
    """Compare outputs with histograms of the pilot's noise, with and without a canary."""
    noise, inserted = transcript.pilot_noise, transcript.pilot_inserted

    def log_density(values: Floats, points: Floats) -> Floats:
        """Return the logarithm of a histogram whose bins hold equally many values; nearly nothing lies outside."""
        edges = np.unique(np.quantile(values, np.linspace(0, 1, max(3, min(401, values.size // 50)))))
        if edges.size == 1:  # a single value, as of no noise: a narrow bin of its own
            edges = edges + np.array([-1e-9, 1e-9])
        counts = np.histogram(values, edges)[0]
        outside = -np.log((values.size + 1) * max(float(np.ptp(edges)), 1e-9))
        inside = np.log((counts + 0.5) / (values.size + 1) / np.diff(edges))
        logs = np.concatenate([[outside], inside, [outside]])
        return np.asarray(logs[np.searchsorted(edges, points, side="right")])

    outputs = transcript.target_outputs
    scores = log_density(noise[inserted], outputs - transcript.target_values) - log_density(noise[~inserted], outputs)
    # A histogram is coarse: a little of the smooth score orders the targets within its bins.
    return np.asarray(scores + 0.01 * np.tanh(_gaussian_scores(transcript, 0.0, transcript.size)))


def _repeated_values(transcript: Transcript, layers: Layers) -> Attack | None:
    """Look for exact values of the noise that occurred in the first half of the pilot: point masses, tables, grids."""
    pilot, tolerance = transcript.pilot_noise, 4 * transcript.tolerance
    half = len(pilot) // 2
    seen, counts = np.unique(np.round(pilot[:half].ravel() / tolerance), return_counts=True)
    # The most frequent values; the rest of a continuous distribution would only cost time.
    table = np.sort(seen[np.argsort(-counts, kind="stable")[:20_000]]) * tolerance

    def occurred(points: Floats) -> Bools:
        after = np.searchsorted(table, points)
        below = np.abs(points - table[np.maximum(after - 1, 0)])
        above = np.abs(table[np.minimum(after, table.size - 1)] - points)
        return np.asarray(np.minimum(below, above) <= tolerance)

    later, shift = pilot[half:], transcript.values[transcript.pilot][:, transcript.first == 0][half:]
    rate, chance = float(occurred(later).mean()), float(occurred(later + shift).mean())
    if rate < 3 * chance + 50 / later.size:
        return None
    weight = np.log(rate / max(chance, 1 / later.size))
    outputs = transcript.target_outputs
    signs = occurred(outputs - transcript.target_values).astype(np.float64) - occurred(outputs)
    scores = weight * signs + 0.01 * np.tanh(_gaussian_scores(transcript, 0.0, transcript.size))
    most = int(np.argmax(counts))
    sentence = f"The noise repeats itself: {100 * rate:.3g}% of its values occurred in other calls, to the last digit."
    if seen.size < min(1000, later.size / 20):
        sentence = f"The noise takes only {seen.size:,} different values."
    elif counts[most] > 0.001 * counts.sum():
        share = 100 * counts[most] / counts.sum()
        sentence = f"In {share:.3g}% of the places the noise is exactly {seen[most] * tolerance:.3g}."
    return attack_with(transcript, Check.VALUES, sentence, scores=scores)


def _differ(calls: Transcript, one: float, other: float) -> bool:
    """Whether two sizes of noise, of four calls each, differ by more than they do by chance, or than matters."""
    low, high = sorted((one, other))
    if low >= _WEAK * high:
        return False
    return bool(_gain((low / high) ** 2, 4 * (calls.coordinates.size - 1)) > _PLAIN * calls.spread)


def _lone_calls(
    mechanism: Callable[[Vector], Array], dim: int, calls: Transcript, seed: int, claim: Curve, rate: float
) -> tuple[float, Attack | None]:
    """Return the size of the noise where the sum is zero, and guess by it whether there is a client who is alone."""
    rng = generator(seed, "aside", 1)

    def size(coin: int) -> float:
        """Return the size of what a call releases at the coordinates where nobody sends anything."""
        place, total = int(rng.integers(dim)), np.zeros(dim, dtype=np.float32)
        total[place] = coin * MOST
        released = np.delete(mechanism(total).astype(np.float64) / calls.gain, place)
        return float(np.sqrt(np.mean(np.square(np.clip(released, -1e60, 1e60)))))

    coins = rng.permutation(np.arange(8) % 2)
    sizes = np.array([size(coin) for coin in coins])
    quiet, beside = (float(np.sqrt(np.mean(sizes[coins == coin] ** 2))) for coin in (0, 1))
    # If all guesses are right, so many refute the claim; a tenth of the rate is for how the tests share it.
    number = math.ceil(1.2 * math.log(rate / 10) / math.log(highest_accuracy(claim)))
    if not _differ(calls, quiet, beside) or number > min(_MOST_LONE, _MOST_DRAWN / dim):
        return quiet, None
    coins = rng.random(number) < 0.5
    between = max(quiet, 1e-9 * beside) * max(beside, 1e-9 * quiet)
    scores = np.sign([(size(coin) ** 2 - between) * (beside - quiet) for coin in coins])
    sentence = f"{_DEPENDS} {quiet:.3g} where the sum is zero, and {beside:.3g} beside a single update."
    return quiet, Attack(check=str(Check.SHAPE), sentence=sentence, guesses=CoinGuesses.count(scores, coins))


_Attacks = Sequence[tuple[Callable[[Transcript, Layers], Attack | None], float]]

_STRUCTURE: _Attacks = (
    (_small_seeds, 0.04),
    (partial(_shared_noise, axis=0), 0.08),
    (partial(_shared_noise, axis=1), 0.08),
)
_ATTACKS: _Attacks = (
    (partial(_odd_shape, beside=True), 0.06),
    (partial(_low_noise, axis=0), 0.08),
    (partial(_low_noise, axis=1), 0.06),
    (_repeated_values, 0.06),
    (partial(_odd_shape, beside=False), 0.08),
)
"""The attacks that need no further calls, each with its share of the false-alarm rate, the most telling first."""
