"""At which ranks to look: grids fixed by the numbers of canaries alone, and what is found there."""

from __future__ import annotations

import hashlib

import numpy as np

from coalmine.arrays import Floats, Ints

# thresholds, numbers of guesses, numbers of right guesses
Tails = tuple[Floats, Ints, Ints]

# With fewer than this, nothing can be rejected at the significance that one test of a grid gets.
_FEWEST_GUESSES = 16
_FEWEST_MEMBERS = 8


def _falling(top: int, least: int, ratio: float) -> Ints:
    """top, top/ratio, top/ratio², … down to ``least``, rounded; empty where ``top`` is below ``least``."""
    steps = np.arange(0 if top < least else int(np.log(top / least) / np.log(ratio)) + 1)
    return np.unique(np.round(top * ratio ** -steps.astype(np.float64)).astype(np.int64))


def member_ranks(members: int) -> Ints:
    """Ranks of members from the top, dense towards both ends: m/2ⁱ and m − m/2ⁱ, and m itself."""
    outer = _falling(members, _FEWEST_MEMBERS, 2)
    ranks = np.unique(np.concatenate([outer, members - outer, [members]]))
    return ranks[ranks > 0]


def both_tails(members: Floats, nonmembers: Floats, most: int, ratio: float = 2) -> Tails:
    """Guess "member" for the top and "non-member" for the bottom r of all canaries, for a grid of 2r ≤ ``most``.

    Sorted scores. Ties count as wrong guesses wherever they can.
    """
    each = np.unique(_falling(most, _FEWEST_GUESSES, ratio) // 2)
    top = _in_top(members, nonmembers, each)
    bottom = _in_top(nonmembers[::-1], members[::-1], each, sign=-1)
    return _kth_largest(members, nonmembers, each, top), 2 * each, top + bottom


def top_ranks(members: Floats, nonmembers: Floats, most: int, ratio: float = 2) -> Tails:
    """Guess "member" for the top r of all canaries and abstain from the rest, for a grid of r ≤ ``most``."""
    guesses = _falling(most, _FEWEST_GUESSES, ratio)
    right = _in_top(members, nonmembers, guesses)
    return _kth_largest(members, nonmembers, guesses, right), guesses, right


def random_choice(members: Floats, nonmembers: Floats, seed: int = 0) -> np.random.Generator:
    """A generator for random choices among sorted scores, seeded by ``seed`` and by who ranks where.

    A seed alone would not do. On sorted scores it would pick the same ranks in every audit, and what is meant to be a
    random subset would be a fixed set of order statistics: no sample at all. So the order of members among non-members
    is hashed into it. The same scores then give the same choices, and so do scores in the same order.
    """
    digest = hashlib.blake2b(digest_size=16)
    for side in ("left", "right"):
        digest.update(np.searchsorted(nonmembers, members, side=side).astype("<i8").tobytes())
    digest.update(np.array([members.size, nonmembers.size], dtype="<i8").tobytes())
    return np.random.default_rng([seed, int.from_bytes(digest.digest(), "little")])


def balanced(members: Floats, nonmembers: Floats) -> tuple[Floats, Floats]:
    """Equally many of both, sorted: of the larger side a random subset."""
    size = min(members.size, nonmembers.size)
    if members.size == nonmembers.size:
        return members, nonmembers
    rng = random_choice(members, nonmembers)
    return _subset(members, size, rng), _subset(nonmembers, size, rng)


def halves(members: Floats, nonmembers: Floats, seed: int) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Two random halves of members and non-members; the second has the odd ones."""
    rng = random_choice(members, nonmembers, seed)
    m, n = members.size // 2, nonmembers.size // 2
    members, nonmembers = rng.permutation(members), rng.permutation(nonmembers)
    return (members[:m], nonmembers[:n]), (members[m:], nonmembers[n:])


def _subset(side: Floats, size: int, rng: np.random.Generator) -> Floats:
    if side.size == size:
        return side
    return side[np.sort(rng.choice(side.size, size, replace=False, shuffle=False))]


def _in_top(wanted: Floats, others: Floats, r: Ints, sign: int = 1) -> Ints:
    """How many of the r largest among both are ``wanted``, where of equals the others are larger.

    Both are sorted in ascending order of ``sign`` times the score. a of them are wanted if the a-th largest wanted
    exceeds the (r−a+1)-th largest other: bisection over a, for all r at once, without merging the two.
    """
    low = np.maximum(0, r - others.size)
    high = np.minimum(r, wanted.size)
    while np.any(searching := low < high):
        a = np.where(searching, (low + high + 1) // 2, 1)
        beats = sign * wanted[wanted.size - a] > sign * others[others.size - np.where(searching, r - a + 1, 1)]
        low = np.where(searching & beats, a, low)
        high = np.where(searching & ~beats, a - 1, high)
    return low


def _kth_largest(first: Floats, second: Floats, r: Ints, from_first: Ints) -> Floats:
    """The r-th largest of both, where ``from_first`` of the r largest are in ``first``."""
    from_second = r - from_first
    a = np.where(from_first > 0, first[first.size - np.maximum(from_first, 1)], np.inf)
    b = np.where(from_second > 0, second[second.size - np.maximum(from_second, 1)], np.inf)
    return np.minimum(a, b)
