"""Where the noise is missing or too small: sets of coordinates, waves or calls, and how to call them.

Noise of one size everywhere is the simplest explanation of a failed test. A set of coordinates or calls is named
only if its noise is smaller than the rest beyond what chance makes of noise of one size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.layers import Layers
from coalmine.methods.mechanism.attacks import (
    NEGLIGIBLE,
    PLAIN,
    WEAK,
    Attack,
    gaussian_scores,
    scale_gain,
)
from coalmine.methods.mechanism.calls import Calls
from coalmine.results.finding import Check
from coalmine.stats.noise_tests import energy_p_value

_BLOCKS = (8, 64, 512, 4096, 32_768, 262_144)
_STRIDES = (*range(2, 17), 32, 64, 128, 256)
_WEAKEST = (1, 4, 16, 64, 256, 1024)
_SHARES = (0.03, 0.3, 0.7)  # of the average noise; members that had less in what they were picked by
_BY_CHANCE = 1e-6
_MORE, _MORE_SURE = 1.5, 6.0  # how many times as much updates count where they count for more, and standard errors
_LOCAL = 64  # coordinates that share a local estimate of the noise
_LEAST_SEEN = 12  # values of the noise that show whether a single coordinate or call belongs to a set
_INTERVAL_RATIOS = (0.01, 0.25, 0.64)  # shares of the usual variance for which the best stretch is looked for
_NO_LAYERS = Layers({})

_Family = tuple[Floats, Floats, float, int, Callable[[int], Bools]]


@dataclass(frozen=True, eq=False)
class NoiseAlong:
    """What is known of the noise at each coordinate, or in each call.

    Args:
        what: What the members of the axis are called: ``"coordinate"``, ``"wave"`` or ``"call"``.
        numbers: Number of each member, ascending, shape (n,).
        power: Sum of squares of its known noise, shape (n,).
        count: How many values of its noise are known, shape (n,).
        picked: Mean square in a part of them, by which sets of the weakest members are picked, shape (n,).
        rest: Sum of squares and number of the other values, by which those sets are judged, shape (2, n).
        spread: See `Calls.spread`.
        layers: Names of stretches of members.
    """

    what: str
    numbers: Ints
    power: Floats
    count: Floats
    picked: Floats
    rest: Floats
    spread: float
    layers: Layers = _NO_LAYERS

    @classmethod
    def coordinates(cls, calls: Calls, layers: Layers = _NO_LAYERS, what: str = "coordinate") -> NoiseAlong:
        """Return the noise at each coordinate; the weakest are picked by every second call of the pilot."""
        picking = np.zeros(calls.pilot.size, dtype=bool)
        picking[np.flatnonzero(calls.pilot)[::2]] = True
        by = calls.known & picking[:, None] & (calls.first == 0)
        # Coordinates that the pilot pointed to were picked for their small noise.
        return cls._along(calls, 0, by, unknown=0.0, what=what, numbers=calls.coordinates, layers=layers)

    @classmethod
    def calls(cls, calls: Calls) -> NoiseAlong:
        """Return the noise in each call; the weakest are picked by every second coordinate."""
        by = calls.known & (np.arange(calls.coordinates.size) % 2 == 0)
        numbers = calls.number(0) + np.arange(calls.pilot.size)
        return cls._along(calls, 1, by, unknown=np.inf, what="call", numbers=numbers)

    @classmethod
    def _along(
        cls,
        calls: Calls,
        axis: int,
        by: Bools,
        *,
        unknown: float,
        what: str,
        numbers: Ints,
        layers: Layers = _NO_LAYERS,
    ) -> NoiseAlong:
        power, count = calls.squares.sum(axis=axis), calls.known.sum(axis=axis).astype(np.float64)
        picked, tries = np.sum(calls.squares, axis=axis, where=by), by.sum(axis=axis)
        mean = np.where(tries > 0, picked / np.maximum(tries, 1), unknown)
        rest = np.stack([power - picked, count - tries])
        return cls(what, numbers, power, count, mean, rest, calls.spread, layers)

    @property
    def usual(self) -> float:
        """Mean square of all values."""
        return float(self.power.sum() / max(self.count.sum(), 1.0))

    def weakest(self) -> WeakSet | None:
        """Return the set of members whose noise is most plainly smaller than on average; None without any noise."""
        if self.usual == 0:
            return None
        best, members = 0.0, None
        for power, count, usual, choices, members_of in self._sets():
            gain = scale_gain(power, count, usual, self.spread) * (power < usual * count) - np.log(choices)
            if gain.max() > best:
                best, members = float(gain.max()), members_of(int(gain.argmax()))
        return None if members is None else WeakSet(self, members, best)

    def _sets(self) -> Iterator[_Family]:
        """Yield families of sets.

        Each with power and count of every set, the usual mean square, the number of sets that it was chosen from, and a
        function from the index of a set to its members.
        """
        n = self.numbers.size
        place = self.numbers - self.numbers[0] if self.what == "call" else self.numbers
        labels = [np.arange(n), *(place // size for size in _BLOCKS if size < place[-1] + 1)]
        labels += [place % stride for stride in _STRIDES if 2 * stride <= n]
        if self.layers.names:
            labels.append(np.searchsorted(self.layers.ends, self.numbers, side="right"))
        for label in labels:
            power, count = (np.bincount(label, weights).astype(np.float64) for weights in (self.power, self.count))
            yield power, count, self.usual, power.size, partial(np.equal, label)
        for ratio in _INTERVAL_RATIOS:
            members = self._interval(ratio)
            power, count = (values[members].sum(keepdims=True) for values in (self.power, self.count))
            yield power, count, self.usual, n * (n + 1) // 2, partial(_same, members)
        yield from self._picked_sets()

    def _interval(self, ratio: float) -> Bools:
        """Return the stretch of members that gains the most by noise of this share of the usual variance."""
        each = -self.count * np.log(ratio) / 2 - self.power / self.usual * (1 / ratio - 1) / 2
        sums = np.concatenate([[0.0], np.cumsum(each)])
        last = int(np.argmax(sums - np.minimum.accumulate(sums)))
        first = int(np.argmin(sums[: last + 1]))
        places = np.arange(self.numbers.size)
        return np.asarray((places >= first) & (places < last))

    def _picked_sets(self) -> Iterator[_Family]:
        """Yield sets that were picked for their small noise, judged by what is known of it otherwise."""
        n, order = self.numbers.size, np.argsort(self.picked, kind="stable")
        ranks = np.empty(n, dtype=np.int64)
        ranks[order] = np.arange(n)
        sets = [ranks < k for k in _WEAKEST if k < n]
        sets += [self.picked < share**2 * self.usual for share in _SHARES]
        power, count = self.rest
        usual = float(power.sum() / max(count.sum(), 1.0))
        for members in sets:
            if members.any() and not members.all() and usual > 0:
                inside = [values[members].sum(keepdims=True) for values in (power, count)]
                yield inside[0], inside[1], usual, len(sets), partial(_same, members)


def _same(members: Bools, _: int) -> Bools:
    return members


@dataclass(frozen=True, eq=False)
class WeakSet:
    """Members of an axis whose noise is smaller than that of the others.

    Args:
        noise: The axis.
        members: Which of its members, shape (n,).
        gain: Log-likelihood that a scale of its own gains over noise of one size everywhere, less the logarithm of the
            number of sets that it was chosen from.
    """

    noise: NoiseAlong
    members: Bools
    gain: float

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the noise of its members."""
        return float(np.sqrt(self.noise.power[self.members].sum() / max(self.noise.count[self.members].sum(), 1.0)))

    @cached_property
    def usual(self) -> float:
        """Standard deviation of the noise of the others."""
        return float(np.sqrt(self.noise.power[~self.members].sum() / max(self.noise.count[~self.members].sum(), 1.0)))

    @property
    def sentence(self) -> str:
        """Where the noise is too small; empty if it is not plainly smaller than elsewhere."""
        ratio = self.scale / self.usual if self.usual > 0 else 1.0
        if ratio >= WEAK or self.gain <= PLAIN:
            return ""
        where, several = self.noise.layers.name_of(
            self.noise.numbers[self._exact(ratio)], self.noise.numbers, self.noise.what
        )
        amount = "no noise" if ratio < 1e-3 else f"{ratio:.2g} of the noise of the others"
        if where.startswith((self.noise.what, "every")):  # but not the name of a tensor
            where = f"{where[:1].upper()}{where[1:]}"
        return f"{where} {'carry' if several else 'carries'} {amount}."

    def _exact(self, ratio: float) -> Bools:
        """Return the set, made exact by the noise that each single coordinate or call shows."""
        each = np.sqrt(self.noise.power / np.maximum(self.noise.count, 1))
        ratio = max(ratio, 1e-3)
        # Values that put a member on its side of the geometric mean of both scales, by three standard errors. With
        # fewer the set itself is more reliable than its members.
        needed = max(_LEAST_SEEN, 18 * self.noise.spread / np.log(ratio) ** 2)
        weak, seen = each < np.sqrt(ratio) * self.usual, self.noise.count >= needed
        if seen.mean() <= 0.9 or not np.any(weak & seen & self.members):
            return self.members
        exact = weak & seen
        alike = np.sum(exact & self.members) > 0.9 * np.sum(exact | self.members)
        plainer = _parts(self.noise.numbers, self.members) < _parts(self.noise.numbers, exact)
        return self.members if alike and plainer else exact  # one or two on the wrong side are due to chance


def place_attack(calls: Calls, layers: Layers, what: str = "coordinate") -> Attack | None:
    """Look only where the noise is the smallest: in a block, at every k-th coordinate, in a tensor, or at a few places.

    The set is chosen by the pilot and by coordinates without a canary, so it is one test however many sets there are.
    """
    weak = NoiseAlong.coordinates(calls, layers, what).weakest()
    if weak is None:
        return None
    chosen = weak.members[calls.targets[1]]
    scale = np.full(int(chosen.sum()), weak.scale)
    scores = gaussian_scores(calls, 0.0, scale, chosen)
    return Attack(
        Check.PLACES, scores, weak.sentence, chosen=chosen, scale=scale, elsewhere=~chosen, usual=weak.usual, rank=5
    )


def direction_attack(calls: Calls) -> Attack | None:
    """Do the same for canaries along waves over all coordinates: the ``calls`` are in the basis of cosines."""
    if calls.size < NEGLIGIBLE:
        return None  # what rounding leaves of no noise at all has no directions
    attack = place_attack(calls, _NO_LAYERS, what="wave")
    # Only where some waves carry less noise than others: noise that is measured in the norm L1, as Laplace noise is,
    # protects single coordinates better than waves, and that would be no bug.
    if attack is None or not attack.sentence:
        return None
    about = (
        "The noise is weaker in some directions than in others. Of the cosine waves over all coordinates, "
        f"{attack.sentence[:1].lower()}{attack.sentence[1:]}"
    )
    if attack.sentence.startswith("Wave 0 carries no"):
        about = "The noise adds up to zero over all coordinates."
    return replace(attack, name=Check.DIRECTIONS, sentence=about, elsewhere=None, rank=7)


def gain_attack(calls: Calls, layers: Layers) -> Attack | None:
    """Look where updates count for more than elsewhere, as if a tensor was multiplied before the noise is added."""
    put_in, came_out = calls.inputs[calls.pilot], calls.released[calls.pilot]
    centered = put_in - put_in.mean(axis=0)
    power = np.sum(centered**2, axis=0)
    safe = np.where(power > 0, power, 1.0)
    gain = np.sum(centered * came_out, axis=0) / safe
    scale = np.sqrt(np.mean((came_out - came_out.mean(axis=0) - gain * centered) ** 2, axis=0))
    plain = (calls.first == 0) & (power > 0) & (gain - 1 > _MORE_SURE * scale / np.sqrt(safe)) & (gain > _MORE)
    if not plain.any():
        return None
    chosen = plain[calls.targets[1]]
    call, column = (index[chosen] for index in calls.targets)
    shift = gain[column] * calls.values[call, column]
    size = np.maximum(scale[column], max(1e-6 * calls.size, calls.tolerance, 1e-12))
    scores = shift * (calls.released[call, column] - shift / 2) / size**2
    where, _ = layers.name_of(calls.coordinates[plain], calls.coordinates)
    times = float(np.sum(gain[plain] * power[plain]) / np.sum(power[plain]))
    sentence = (
        f"Updates count about {times:.2g} times as much as on the whole at {where.rstrip(',')}, and the noise does not."
    )
    return Attack(Check.PLACES, scores, sentence, chosen=chosen, rank=4)


def call_attack(calls: Calls) -> Attack | None:
    """Look only at the calls with the smallest noise, which coordinates without a canary show.

    Among many calls a single weak one is lost, however plain it is by itself.
    """
    weak = NoiseAlong.calls(calls).weakest()
    if weak is None or not weak.sentence:
        return None
    chosen = weak.members[calls.targets[0]]
    scale = np.full(int(chosen.sum()), weak.scale)
    return Attack(
        Check.CALLS,
        gaussian_scores(calls, 0.0, scale, chosen),
        weak.sentence,
        chosen=chosen,
        scale=scale,
        elsewhere=~chosen,
        usual=weak.usual,
        rank=6,
    )


def local_attack(calls: Calls) -> Attack:
    """Use the size of the noise in each call, and in each stretch of coordinates of a call."""
    stretches, count = _stretches(calls.squares, calls.known)
    scale = stretches[calls.targets[0], calls.targets[1] // _LOCAL]
    attack = Attack(Check.CALLS, gaussian_scores(calls, 0.0, scale), "", scale=scale, rank=6)
    if _some_are_weak(calls, stretches, count):
        changing = "Stretches of coordinates carry less noise than others, in changing places."
        return replace(attack, sentence=changing, rank=8)
    return attack


def _stretches(squares: Floats, known: Bools) -> tuple[Floats, Floats]:
    """Return the size of the noise in each stretch of coordinates of each call, and how many values of it are known."""
    starts = np.arange(0, known.shape[1], _LOCAL)
    power = np.add.reduceat(squares, starts, axis=1)
    count = np.add.reduceat(known.astype(np.float64), starts, axis=1)
    per_call = power.sum(axis=1, keepdims=True) / np.maximum(count.sum(axis=1, keepdims=True), 1)
    return np.where(power == 0, 0.0, np.sqrt((power + 2 * per_call) / (count + 2))), count


def _some_are_weak(calls: Calls, stretches: Floats, count: Floats) -> bool:
    """Whether more stretches have half of the usual noise than normal noise has by chance, or this one in any order."""
    seen = count >= _LEAST_SEEN
    if not seen.any():
        return False
    limit = 0.5 * np.median(stretches[seen])
    weak = int(np.sum(stretches[seen] < limit))
    if weak <= 0.002 * seen.sum():
        return False
    # Heavy tails make stretches weak wherever the values are.
    shuffled = np.zeros_like(calls.squares)
    shuffled[calls.known] = np.random.default_rng(0).permutation(calls.squares[calls.known])
    in_any_order = int(np.sum(_stretches(shuffled, calls.known)[0][seen] < limit))
    chance = max(5 * float(np.sum(energy_p_value((count[seen] + 2) / 4, count[seen]))), 2 * in_any_order)
    return float(special.gammainc(weak, chance)) < _BY_CHANCE


def _parts(kept: Ints, chosen: Bools) -> int:
    """Return the number of stretches of coordinates; 1 for every k-th coordinate too."""
    steps = np.diff(kept[chosen])
    return 1 if np.unique(steps).size == 1 else 1 + int(np.sum(steps > 1))
