"""Where the noise is missing or too small: sets of coordinates, and how to call them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from coalmine.arrays import Bools, Floats, Ints
from coalmine.methods.mechanism.attacks import NEGLIGIBLE, WEAK, Attack, gaussian_scores
from coalmine.methods.mechanism.calls import Calls

_BLOCKS = (8, 64, 512, 4096, 32_768, 262_144)
_STRIDES = (*range(2, 17), 32, 64, 128, 256)
_WEAKEST = (1, 4, 16, 64, 256, 1024)
_SHARES = (0.03, 0.3, 0.7)  # of the average noise; coordinates that had less in half of what is known of them
_MOST_RANGES = 3
_PLAIN = 20.0  # gain in log-likelihood that the best of thousands of sets hardly ever has by chance


@dataclass(frozen=True)
class Tensors:
    """Names of the stretches of a vector.

    Args:
        names: Name of each tensor.
        ends: Where each ends in the vector, ascending.
    """

    names: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Tensors:
        """Return the tensors of these sizes, one after the other.

        Example:
            >>> Tensors.of({"fc.weight": 20, "fc.bias": 2}).ends
            (20, 22)
        """
        return cls(tuple(sizes), tuple(np.cumsum(list(sizes.values())).tolist()))

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each starts."""
        return (0, *self.ends[:-1]) if self.ends else ()

    def called(self, first: int, last: int) -> str | None:
        """Return the name of the tensor from ``first`` to ``last``, if there is one."""
        for name, start, end in zip(self.names, self.starts, self.ends, strict=True):
            if (start, end - 1) == (first, last):
                return name
        return None


def place_attack(calls: Calls, tensors: Tensors, what: str = "coordinate") -> Attack | None:
    """Look only where the noise is the smallest: in a block, at every k-th coordinate, in a tensor, or at a few places.

    The set is chosen by the pilot and by coordinates without a canary, so it is one test however many sets there are.
    """
    power, count = np.sum(calls.noise**2, axis=0), np.sum(calls.known, axis=0).astype(np.float64)
    everywhere = power.sum() / count.sum()
    if everywhere == 0:
        return None
    best, columns = 0.0, None
    for group, group_power, group_count in _groups(calls, tensors, power, count):
        ratio = np.maximum(group_power / np.maximum(group_count, 1) / everywhere, 1e-12)
        # Gain in log-likelihood from a scale of its own, for normal noise.
        gain = np.where((ratio < 1) & (group_count > 0), group_count * (ratio - 1 - np.log(ratio)) / 2, 0.0)
        if gain.max() > best:
            best, columns = float(gain.max()), group(int(gain.argmax()))
    if columns is None:
        return None
    inside = power[columns].sum() / max(count[columns].sum(), 1.0)
    outside = (power.sum() - power[columns].sum()) / max(count.sum() - count[columns].sum(), 1.0)
    ratio = float(np.sqrt(inside / outside)) if outside > 0 else 1.0
    chosen = columns[calls.targets[1]]
    scale = np.full(int(chosen.sum()), np.sqrt(inside))
    return Attack(
        "noise at every coordinate",
        gaussian_scores(calls, 0.0, scale, chosen),
        _sentence(calls, columns, ratio, tensors, what) if ratio < WEAK and best > _PLAIN else "",
        chosen=chosen,
        scale=scale,
        rank=5,
    )


def direction_attack(calls: Calls) -> Attack | None:
    """Do the same for canaries along waves over all coordinates: the ``calls`` are in the basis of cosines."""
    if calls.size < NEGLIGIBLE:
        return None  # what rounding leaves of no noise at all has no directions
    attack = place_attack(calls, Tensors(), what="wave")
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
    return replace(attack, name="noise in every direction", sentence=about)


def _groups(calls: Calls, tensors: Tensors, power: Floats, count: Floats) -> Iterator[tuple[_Members, Floats, Floats]]:
    """Yield sets of coordinates, with the power of the noise in each and how often it was observed."""
    kept = calls.coordinates
    labels = [kept // size for size in _BLOCKS if size < kept[-1] + 1]
    labels += [kept % stride for stride in _STRIDES if 2 * stride <= kept.size]
    if tensors.ends:
        labels.append(np.searchsorted(np.array(tensors.ends), kept, side="right"))
    for label in labels:
        group_power, group_count = (np.bincount(label, weights).astype(np.float64) for weights in (power, count))
        yield _Members(label), group_power, group_count
    # Sets that were picked for their small noise are judged by what is known of it otherwise.
    picking = np.zeros(calls.pilot.size, dtype=bool)
    picking[np.flatnonzero(calls.pilot)[::2]] = True
    tries = np.maximum(np.sum(calls.known[picking], axis=0), 1)
    picked = np.where(calls.first == 0, np.sum(calls.noise[picking] ** 2, axis=0) / tries, 0.0)
    rest_power, rest_count = power - picked * tries * (calls.first == 0), count - tries * (calls.first == 0)
    order = np.argsort(picked, kind="stable")
    sets = [np.isin(np.arange(kept.size), order[:k]) for k in _WEAKEST if k < kept.size]
    sets += [picked < (share * calls.size) ** 2 for share in _SHARES]
    for members in sets:
        if members.any() and not members.all():
            label = members.astype(np.int64) - 1  # 0 for members, -1 for the others
            yield _Members(label), rest_power[members].sum(keepdims=True), rest_count[members].sum(keepdims=True)


@dataclass(frozen=True, eq=False)
class _Members:
    """Which coordinates belong to a set: those with its number as their label."""

    labels: Ints

    def __call__(self, index: int) -> Bools:
        """Return which coordinates have this label."""
        return np.asarray(self.labels == index)


def _sentence(calls: Calls, columns: Bools, ratio: float, tensors: Tensors, what: str) -> str:
    """Say where the noise is too small; the set is made exact by the noise that each coordinate shows."""
    power, count = np.sum(calls.noise**2, axis=0), np.maximum(np.sum(calls.known, axis=0), 1)
    weak = np.sqrt(power / count) < np.sqrt(max(ratio, 1e-3)) * calls.size
    seen = np.sum(calls.known, axis=0) >= 12
    # With few observations per coordinate the set itself is more reliable than its coordinates.
    exact = weak & seen if np.any(weak & seen & columns) and seen.mean() > 0.9 else columns
    alike = np.sum(exact & columns) > 0.9 * np.sum(exact | columns)
    if alike and _parts(calls.coordinates, columns) < _parts(calls.coordinates, exact):
        exact = columns  # a coordinate or two on the wrong side are due to chance
    where, several = describe(calls.coordinates, exact, tensors, what)
    verb = "carry" if several else "carries"
    amount = "no noise" if ratio < 1e-3 else f"{ratio:.2g} of the noise of the others"
    if where.startswith((what, "every")):  # but not the name of a tensor
        where = f"{where[:1].upper()}{where[1:]}"
    return f"{where} {verb} {amount}."


def _parts(kept: Ints, chosen: Bools) -> int:
    """Return the number of stretches of coordinates; 1 for every k-th coordinate too."""
    steps = np.diff(kept[chosen])
    return 1 if np.unique(steps).size == 1 else 1 + int(np.sum(steps > 1))


def describe(kept: Ints, chosen: Bools, tensors: Tensors, what: str = "coordinate") -> tuple[str, bool]:
    """Return a description of coordinates in words, and whether it is a plural.

    Example:
        >>> kept = np.arange(100)
        >>> describe(kept, (kept >= 64) & (kept < 80), Tensors())[0]
        'coordinates 64–79'
        >>> describe(kept, kept % 3 == 1, Tensors())[0]
        'every 3rd coordinate, from coordinate 1 on,'
    """
    columns = np.flatnonzero(chosen)
    breaks = np.flatnonzero(np.diff(columns) > 1)
    firsts, lasts = kept[columns[np.r_[0, breaks + 1]]], kept[columns[np.r_[breaks, columns.size - 1]]]
    if columns.size == 1:
        return f"{what} {firsts[0]:,}", False
    steps = np.unique(np.diff(kept[columns]))
    if firsts.size <= _MOST_RANGES:
        named = [
            tensors.called(int(a), int(b)) or (f"{a:,}–{b:,}" if a < b else f"{a:,}")
            for a, b in zip(firsts, lasts, strict=True)
        ]
        if all(tensors.called(int(a), int(b)) for a, b in zip(firsts, lasts, strict=True)):
            return " and ".join(named), len(named) > 1
        return f"{what}s {' and '.join(named)}", True
    if steps.size == 1:
        nth = {2: "second", 3: "3rd"}.get(int(steps[0]), f"{steps[0]}th")
        return f"every {nth} {what}, from {what} {firsts[0]:,} on,", False
    examples = ", ".join(f"{j:,}" for j in kept[columns[:3]])
    return f"{columns.size:,} of {kept.size:,} {what}s, such as {examples},", True
