"""Splitting users into training users, test users and a pool set aside for designing canaries."""

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
class SplitOptions:
    """How users are split. The same seed gives the same split.

    Args:
        test_fraction: Fraction of users to test on, in (0, 1). None uses the test users that the data comes with, or a
            tenth of the users if it has none.
        pool_fraction: Fraction of users set aside for designing canaries, in [0, 1).
        min_examples: Users with fewer examples are dropped.
        seed: Seed for which user is in which split.

    Raises:
        InputError: If a fraction is out of range, or if no users are left to train on.

    Example:
        >>> SplitOptions(test_fraction=0.2, seed=1).test_fraction
        0.2
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

    def keep(self, sizes: Ints) -> Ints:
        """Return the indices of users with enough examples."""
        users = np.flatnonzero(sizes >= self.min_examples)
        if not users.size:
            raise InputError(
                f"no user has min_examples={self.min_examples} examples: the largest of {len(sizes)} has {sizes.max()}"
            )
        return users

    def split(self, sizes: Ints, *, test_users: Ints | None = None) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
        """Return the users kept, and the indices among them of train, test and pool, each in ascending order.

        Every fraction above 0 gets at least one user. ``test_users`` are the test users that the data comes with.
        """
        users = self.keep(sizes)
        rng = np.random.default_rng(self.seed)
        if test_users is None:
            order = rng.permutation(len(users))
            fraction = TEST_FRACTION if self.test_fraction is None else self.test_fraction
            test_count = max(1, round(fraction * len(users)))
            test, others = order[:test_count], order[test_count:]
        else:
            if self.test_fraction is not None:
                raise InputError(f"this data comes with test users: leave out test_fraction={self.test_fraction}")
            is_test = np.isin(users, test_users)
            test, others = np.flatnonzero(is_test), rng.permutation(np.flatnonzero(~is_test))
        pool_count = max(1, round(self.pool_fraction * len(users))) if self.pool_fraction else 0
        if not test.size or pool_count >= len(others):
            raise InputError(
                f"{len(users)} users (with {self.min_examples} examples or more) are too few for train, test"
                f"{' and pool' if pool_count else ''}"
            )
        return users, (np.sort(others[pool_count:]), np.sort(test), np.sort(others[:pool_count]))


def split_by_user(data: FederatedData, options: SplitOptions, *, test: FederatedData | None = None) -> Splits:
    """Split data into disjoint sets of users.

    Args:
        data: All users, or all but the test users if ``test`` is given.
        options: Fractions and seed.
        test: Test users that the data comes with.

    Returns:
        Training and test users, and a pool if the options set one aside.

    Raises:
        InputError: If there are too few users.

    Example:
        >>> import numpy as np
        >>> from coalmine.simulation.data import Task
        >>> data = FederatedData.from_users(
        ...     inputs=np.zeros((40, 3), dtype=np.float32),
        ...     targets=np.arange(40) % 2,
        ...     users=np.arange(40) // 4,
        ...     task=Task(input_shape=(3,), classes=2),
        ... )
        >>> splits = split_by_user(data, SplitOptions(test_fraction=0.2))
        >>> len(splits.train), splits.test.names
        (8, ['4', '6'])
    """
    if test is None:
        users, (train, tested, pool) = options.split(data.sizes)
        test_data = data.subset(users[tested])
    else:
        sizes = np.concatenate([data.sizes, test.sizes])
        users, (train, tested, pool) = options.split(sizes, test_users=np.arange(len(data), len(sizes)))
        test_data = test.subset(users[tested] - len(data))
    return Splits(train=data.subset(users[train]), test=test_data, pool=data.subset(users[pool]) if pool.size else None)
