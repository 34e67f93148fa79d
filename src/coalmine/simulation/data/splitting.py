"""Which user is in which split, and which clients share the examples of a split.

Users are split first. A partition then regroups the examples of each split into other clients, as an index over them
and never a copy, so no example of a training user ends up in test or pool.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from coalmine.errors import InputError, check_count, check_positive, check_probability, parse_kind
from coalmine.seeds import default_rng
from coalmine.simulation.data.federated import FederatedData, Splits

if TYPE_CHECKING:
    from coalmine.arrays import Ints

_TEST_FRACTION = 0.1  # of the users, if the data has no test users of its own


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How users are split. The same seed gives the same split.

    Args:
        test_fraction: Fraction of users to test on, in (0, 1). None uses the test users that the data comes with, or a
            tenth of the users if it has none.
        pool_fraction: Fraction of users set aside for designing canaries, in [0, 1).
        min_examples: Users with fewer examples are dropped.
        seed: Seed for which user is in which split.
        test_names: Names of the test users that the data comes with.

    Example:
        >>> SplitOptions(test_fraction=0.2, seed=1).test_fraction
        0.2
    """

    test_fraction: float | None = None
    pool_fraction: float = 0.0
    min_examples: int = 1
    seed: int = 0
    test_names: Set[str] = frozenset()

    def split(self, names: Sequence[str], sizes: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the numbers of the training, test and pool users, each in ascending order.

        Every fraction above 0 gets at least one user.

        Args:
            names: Name of each user.
            sizes: Number of examples of each user, (users,).

        Raises:
            InputError: If a fraction is out of range, or if no users are left to train on.
        """
        if self.test_fraction is not None:
            check_probability("test_fraction", self.test_fraction)
        users = np.flatnonzero(sizes >= self.min_examples)
        if not users.size:
            raise InputError(
                f"no user has min_examples={self.min_examples} examples: the largest of {len(sizes)} has {sizes.max()}"
            )
        rng = default_rng(self.seed)
        if not self.test_names:
            order = rng.permutation(len(users))
            test_count = max(1, round((self.test_fraction or _TEST_FRACTION) * len(users)))
            test, others = order[:test_count], order[test_count:]
        elif self.test_fraction is not None:
            raise InputError(f"this data comes with test users: leave out test_fraction={self.test_fraction}")
        else:
            is_test = np.array([names[user] in self.test_names for user in users.tolist()])
            test, others = np.flatnonzero(is_test), rng.permutation(np.flatnonzero(~is_test))
        # The pool comes out of the training users: test users stay the same with and without one.
        pool_count = 0
        if self.pool_fraction:
            check_probability("pool_fraction", self.pool_fraction)
            pool_count = max(1, round(self.pool_fraction * len(users)))
        if pool_count >= len(others):
            raise InputError(
                f"{len(users)} users (with {self.min_examples} examples or more) are too few for a test fraction of "
                f"{self.test_fraction or _TEST_FRACTION} and a pool of {self.pool_fraction}"
            )
        # Sorted, so that consecutive users stay views of consecutive examples.
        return users[np.sort(others[pool_count:])], users[np.sort(test)], users[np.sort(others[:pool_count])]


def split_by_user(data: FederatedData, options: SplitOptions) -> Splits:
    """Split data into disjoint sets of users.

    Args:
        data: All users.
        options: Fractions and seed.

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
    train, test, pool = options.split(data.names, data.sizes)
    return Splits(train=data.subset(train), test=data.subset(test), pool=data.subset(pool) if pool.size else None)


def parse_partition(text: str) -> tuple[str, float, int]:
    """Return the kind of a partition, the concentration α (of Dirichlet) and the number of clients (or of examples).

    Raises:
        InputError: If the text is none of ``"natural"``, ``"iid:CLIENTS"``, ``"dirichlet:ALPHA/CLIENTS"`` and
            ``"balanced:EXAMPLES"``.

    Example:
        >>> parse_partition("dirichlet:0.5/100")
        ('dirichlet', 0.5, 100)
    """

    def dirichlet(numbers: str) -> tuple[str, float, int]:
        alpha, clients = numbers.split("/")
        return "dirichlet", check_positive("alpha", float(alpha)), check_count("clients", int(clients))

    return parse_kind(
        str(text),
        {
            "natural": lambda _: ("natural", 0.0, 0),
            "iid:": lambda clients: ("iid", 0.0, check_count("clients", int(clients))),
            "dirichlet:": dirichlet,
            "balanced:": lambda size: ("balanced", 0.0, check_count("the size of a client", int(size))),
        },
        f"unknown partition {text!r:.40}; accepted: natural, iid:CLIENTS, dirichlet:ALPHA/CLIENTS, balanced:EXAMPLES",
    )


def repartition(splits: Splits, partition: str, *, seed: int = 0) -> Splits:
    """Regroup the examples of each split into other clients.

    Examples stay in their split. Test and pool get clients of the same mean size as the training clients.

    Args:
        splits: Data to regroup.
        partition: ``"natural"`` (the users as they are), ``"iid:CLIENTS"`` (`iid`), ``"dirichlet:ALPHA/CLIENTS"``
            (`dirichlet`) or ``"balanced:EXAMPLES"`` (`balanced`).
        seed: Seed for the assignment of examples to clients.

    Returns:
        The same examples, split by split, as other clients.

    Raises:
        InputError: If there are more clients than examples, or if the partition needs labels that the data lacks.

    Example:
        >>> from coalmine.simulation.data import load
        >>> splits = repartition(load("digits"), "iid:10")
        >>> len(splits.train), len(splits.test)
        (10, 1)
    """
    kind, alpha, number = parse_partition(partition)
    if kind == "natural":
        return splits
    regrouped: dict[str, FederatedData] = {}
    for i, name in enumerate(("train", "test", "pool")):
        data: FederatedData | None = getattr(splits, name)
        if data is None:
            continue
        clients = number
        if name != "train":
            clients = max(1, round(data.sizes.sum() / regrouped["train"].sizes.mean()))
        # A seed of its own for each split, so that their permutations are not copies of each other.
        match kind:
            case "balanced":
                regrouped[name] = balanced(data, number)
            case "iid":
                regrouped[name] = iid(data, clients, seed + i)
            case _:
                regrouped[name] = dirichlet(data, alpha, clients, seed + i)
    return Splits(**regrouped)


def iid(data: FederatedData, clients: int, seed: int = 0) -> FederatedData:
    """Assign examples at random to clients whose sizes differ by at most one."""
    rows = default_rng(seed).permutation(data.indices)
    return _equal_clients(data, rows, clients, "iid")


def dirichlet(data: FederatedData, alpha: float, clients: int, seed: int = 0) -> FederatedData:
    """Make clients of equal size with skewed labels (Hsu, Qi and Brown, 2019).

    Each client draws its label distribution from a Dirichlet distribution with parameters α·p, where p is the label
    distribution of the data, and then its examples without replacement. A label that runs out is removed and the rest
    of the client's distribution is renormalized, so the last clients take what is left. Sizes are fixed beforehand, so
    no client is empty. Because p sums to one, α = 1 with ten balanced labels is what other papers write as Dir(0.1).
    """
    if data.task.per_position:
        raise InputError("a Dirichlet partition needs one label per example, but this data has one per position")
    rng = default_rng(seed)
    rows = rng.permutation(data.indices)
    labels = data.targets[rows]
    # Grouped by label, and in random order within: taking the next examples of a label draws without replacement.
    rows = rows[np.argsort(labels, kind="stable")]
    left = np.unique(labels, return_counts=True)[1]
    distributions = rng.dirichlet(alpha * left / left.sum(), size=clients)
    first = np.cumsum(left) - left  # where the remaining examples of each label start in rows
    assigned: list[Ints] = []
    sizes = np.diff(np.arange(clients + 1) * len(rows) // clients)
    for size, distribution in zip(sizes.tolist(), distributions, strict=True):
        taken = np.zeros_like(left)
        # Draws of a label that has run out are redrawn among the others, which is the same as drawing one by one.
        while (missing := size - int(taken.sum())) > 0:
            weight = np.where(taken < left, distribution, 0.0)
            if not weight.sum() > 0:
                # Tiny α: every label with a positive share has run out. Draw in proportion to what is left.
                weight = (left - taken).astype(np.float64)
            taken = np.minimum(taken + rng.multinomial(missing, weight / weight.sum()), left)
        for start, count in zip(first, taken, strict=True):
            assigned.append(rows[start : start + count])
        first, left = first + taken, left - taken
    return _equal_clients(data, np.concatenate(assigned), clients, "dirichlet")


def balanced(data: FederatedData, size: int) -> FederatedData:
    """Cut every user into clients of exactly ``size`` consecutive examples; a user's remaining examples are dropped.

    These are the "balanced users" of Thakkar et al. (2020), *Understanding unintended memorization in federated
    learning*.
    """
    pieces = data.sizes // size
    if not pieces.any():
        raise InputError(f"balanced:{size} leaves no client: the largest has {data.sizes.max()} examples")
    owner = np.repeat(np.arange(len(data)), pieces)
    piece = numbered_within(pieces)
    # Consecutive pieces of each user: another view of the same arrays.
    start = data.bounds[owner, 0] + piece * size
    names = [f"{data.names[o]}#{p}" for o, p in zip(owner.tolist(), piece.tolist(), strict=True)]
    return replace(data, bounds=np.stack([start, start + size], axis=1), names=names)


def _equal_clients(data: FederatedData, rows: Ints, clients: int, name: str) -> FederatedData:
    """Return the data with ``rows`` cut into clients of equal size."""
    if clients > len(rows):
        raise InputError(f"{clients} clients cannot share {len(rows)} examples: use at most {len(rows)} clients")
    # Multiples of n / clients, rounded down, are at most one example apart from equal sizes.
    ends = np.arange(clients + 1) * len(rows) // clients
    return replace(
        data, bounds=np.stack([ends[:-1], ends[1:]], axis=1), names=[f"{name}-{i}" for i in range(clients)], rows=rows
    )


def numbered_within(sizes: Ints) -> Ints:
    """Return 0, 1, … for each of several consecutive groups of these sizes."""
    return np.asarray(np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes))
