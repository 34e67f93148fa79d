"""Users for training, users for testing, users set aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coalmine.errors import InputError, check_count, check_probability
from coalmine.simulation.data.federated import FederatedData, Splits

if TYPE_CHECKING:
    from coalmine.arrays import Ints

TEST_FRACTION = 0.1


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How users are divided: fractions of the users, the same users for the same seed.

    ``test_fraction`` None takes the test users that the data brings, and a tenth of the users where it brings none.
    Users with fewer than ``min_examples`` examples are left out of all splits.
    """

    test_fraction: float | None = None
    pool_fraction: float = 0.0
    min_examples: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.test_fraction is not None:
            check_probability("test_fraction", self.test_fraction)
        if isinstance(self.pool_fraction, str) or not 0 <= self.pool_fraction < 1:
            raise InputError(f"pool_fraction must be in [0, 1), got {self.pool_fraction}")
        if (self.test_fraction or 0.0) + self.pool_fraction >= 1:
            raise InputError(
                f"test_fraction and pool_fraction must leave users to train on, got {self.test_fraction} and"
                f" {self.pool_fraction}"
            )
        check_count("min_examples", self.min_examples)
        check_count("seed", self.seed, least=0)

    def kept(self, sizes: Ints) -> Ints:
        """The users with enough examples, as indices."""
        users = np.flatnonzero(sizes >= self.min_examples)
        if not users.size:
            raise InputError(f"no user has {self.min_examples} examples: the largest of {len(sizes)} has {sizes.max()}")
        return users

    def divided(self, sizes: Ints, *, test_users: Ints | None = None) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
        """The users kept, and which of these train, test and are set aside: indices in ascending order.

        Every fraction above 0 gives at least one user. ``test_users`` are those that the data itself sets apart.
        """
        users = self.kept(sizes)
        rng = np.random.default_rng(self.seed)
        if test_users is None:
            order = rng.permutation(len(users))
            fraction = TEST_FRACTION if self.test_fraction is None else self.test_fraction
            tested = max(1, round(fraction * len(users)))
            test, others = order[:tested], order[tested:]
        else:
            if self.test_fraction is not None:
                raise InputError("this data brings test users of its own: leave test_fraction out")
            mine = np.isin(users, test_users)
            test, others = np.flatnonzero(mine), rng.permutation(np.flatnonzero(~mine))
        aside = max(1, round(self.pool_fraction * len(users))) if self.pool_fraction else 0
        if not test.size or aside >= len(others):
            raise InputError(
                f"{len(users)} users (with {self.min_examples} examples or more) are too few to have some in train, in"
                f" test{' and in the pool' if aside else ''}"
            )
        return users, (np.sort(others[aside:]), np.sort(test), np.sort(others[:aside]))


def split_by_user(data: FederatedData, cut: Cut, *, test: FederatedData | None = None) -> Splits:
    """Splits of disjoint users; ``test`` are test users that the data brings."""
    if test is None:
        users, (train, tested, pool) = cut.divided(data.sizes)
        aside = data.subset(users[tested])
    else:
        sizes = np.concatenate([data.sizes, test.sizes])
        users, (train, tested, pool) = cut.divided(sizes, test_users=np.arange(len(data), len(sizes)))
        aside = test.subset(users[tested] - len(data))
    return Splits(train=data.subset(users[train]), test=aside, pool=data.subset(users[pool]) if pool.size else None)
