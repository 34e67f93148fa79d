"""Rank grids for the simultaneous tests, and the counts at those ranks.

A grid depends on the numbers of canaries only, never on the scores: that is what makes the tests valid.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from coalmine.arrays import Floats, Ints

Tails = tuple[Floats, Ints, Ints]
"""Thresholds, numbers of guesses, and numbers of right guesses."""

# With fewer, no test could reject anything at the significance that its share of the grid leaves it.
_MIN_GUESSES = 16
_MIN_MEMBERS = 8


@lru_cache(maxsize=256)
def _falling(top: int, least: int, ratio: float) -> Ints:
    """Return top, top/ratio, top/ratio², … down to ``least``, rounded; empty if ``top`` is below ``least``."""
    steps = np.arange(0 if top < least else int(np.log(top / least) / np.log(ratio)) + 1)
    return _read_only(np.unique(np.round(top * ratio ** -steps.astype(np.float64)).astype(np.int64)))


@lru_cache(maxsize=256)
def member_ranks(members: int) -> Ints:
    """Return ranks of members from the top, dense toward both ends: m/2ⁱ, m − m/2ⁱ, and m itself."""
    outer = _falling(members, _MIN_MEMBERS, 2)
    ranks = np.unique(np.concatenate([outer, members - outer, [members]]))
    return _read_only(ranks[ranks > 0])


def _read_only(grid: Ints) -> Ints:
    """Return a grid that is kept for further audits of the same size, protected from changes."""
    grid.flags.writeable = False
    return grid


def magnitude_ranks(scores: int) -> Ints:
    """Return how many of the largest magnitudes to look at: m, m/2, m/4, …"""
    return np.unique(np.append(_falling(scores, _MIN_MEMBERS, 2), scores))


def both_tails(members: Floats, nonmembers: Floats, most: int, ratio: float = 2) -> Tails:
    """Count right guesses of "member" for the top r scores and "non-member" for the bottom r, for a grid of 2r ≤ most.

    The scores must be sorted. Ties are resolved against the guesser.
    """
    each = np.unique(_falling(most, _MIN_GUESSES, ratio) // 2)
    top = _in_top(members, nonmembers, each)
    bottom = _in_top(-nonmembers[::-1], -members[::-1], each)
    return _kth_largest(members, nonmembers, each, top), 2 * each, top + bottom


def top_ranks(members: Floats, nonmembers: Floats, most: int, ratio: float = 2) -> Tails:
    """Count right guesses of "member" for the top r scores, abstaining on the rest, for a grid of r ≤ most."""
    guesses = _falling(most, _MIN_GUESSES, ratio)
    right = _in_top(members, nonmembers, guesses)
    return _kth_largest(members, nonmembers, guesses, right), guesses, right


def random_choice(members: Floats, nonmembers: Floats, seed: int = 0) -> np.random.Generator:
    """Return a generator for random choices among sorted scores, seeded by ``seed`` and by the order of the scores."""
    # A constant seed would pick the same ranks in every audit, so a "random subset" of sorted scores would be a fixed
    # set of order statistics and not a sample. Hashing the order of members among non-members avoids that, and keeps
    # results reproducible and invariant under monotone transformations of the scores.
    digest = hashlib.blake2b(digest_size=16)
    for side in ("left", "right"):
        digest.update(np.searchsorted(nonmembers, members, side=side).astype("<i8").tobytes())
    digest.update(np.array([members.size, nonmembers.size], dtype="<i8").tobytes())
    return np.random.default_rng([seed, int.from_bytes(digest.digest(), "little")])


def balanced(members: Floats, nonmembers: Floats) -> tuple[Floats, Floats]:
    """Return equally many scores of both sides, sorted; the larger side is reduced to a random subset."""
    size = min(members.size, nonmembers.size)
    if members.size == nonmembers.size:
        return members, nonmembers
    rng = random_choice(members, nonmembers)
    return _subset(members, size, rng), _subset(nonmembers, size, rng)


def halves(members: Floats, nonmembers: Floats, seed: int) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return two random halves of members and non-members; the second half gets the odd ones."""
    rng = random_choice(members, nonmembers, seed)
    m, n = members.size // 2, nonmembers.size // 2
    members, nonmembers = rng.permutation(members), rng.permutation(nonmembers)
    return (members[:m], nonmembers[:n]), (members[m:], nonmembers[n:])


def _subset(side: Floats, size: int, rng: np.random.Generator) -> Floats:
    """Return a sorted random subset of a sorted side."""
    if side.size == size:
        return side
    return side[np.sort(rng.choice(side.size, size, replace=False, shuffle=False))]


def _in_top(wanted: Floats, others: Floats, r: Ints) -> Ints:
    """Return how many of the r largest scores of both sides are ``wanted``, for each r; ties go to the others."""
    # Both sides are sorted, so only the place of each wanted score from the top is needed: how many others are at least
    # as large, and how many wanted ones come before it.
    ahead = others.size - np.searchsorted(others, wanted[::-1], side="left")
    places = ahead + np.arange(1, wanted.size + 1)
    return np.asarray(np.searchsorted(places, r, side="right"))


def _kth_largest(first: Floats, second: Floats, r: Ints, from_first: Ints) -> Floats:
    """Return the r-th largest score of both sides, if ``from_first`` of the r largest are in ``first``."""
    from_second = r - from_first
    a = np.where(from_first > 0, first[first.size - np.maximum(from_first, 1)], np.inf)
    b = np.where(from_second > 0, second[second.size - np.maximum(from_second, 1)], np.inf)
    return np.minimum(a, b)
