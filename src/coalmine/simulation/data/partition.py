"""Partitions: other clients for the same examples, as an index over them and never a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coalmine.errors import InputError, check_count, check_positive
from coalmine.simulation.data.federated import FederatedData, Splits, consecutive_bounds, numbered_within

if TYPE_CHECKING:
    from coalmine.arrays import Floats, Ints

ACCEPTED = 'accepted: "natural", "iid:CLIENTS", "dirichlet:ALPHA/CLIENTS", "balanced:EXAMPLES"'


@dataclass(frozen=True)
class Natural:
    """The users of the data as clients.

    Example:
        >>> str(Natural())
        'natural'
    """

    def __str__(self) -> str:
        return "natural"

    def apply(self, data: FederatedData, seed: int = 0) -> FederatedData:
        """Return the data unchanged."""
        return data


@dataclass(frozen=True)
class Iid:
    """Examples assigned at random to clients whose sizes differ by at most one.

    Args:
        clients: Number of clients.

    Example:
        >>> from coalmine.simulation.data import load
        >>> len(Iid(20).apply(load("digits").train))
        20
    """

    clients: int

    def __post_init__(self) -> None:
        check_count("clients", self.clients)

    def __str__(self) -> str:
        return f"iid:{self.clients}"

    def apply(self, data: FederatedData, seed: int = 0) -> FederatedData:
        """Return the data with every example assigned to exactly one client."""
        rows = np.random.default_rng(seed).permutation(data.indices)
        return _equal_clients(data, rows, self.clients, "iid")


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Clients of equal size with skewed labels (Hsu, Qi, Brown 2019, "Measuring the effects of non-identical data").

    Each client draws its label distribution from a Dirichlet distribution with parameters α·p, where p is the label
    distribution of the data, and then its examples without replacement. A label that runs out is removed and the rest
    of the client's distribution is renormalized, so the last clients take what is left. Sizes are fixed beforehand and
    differ by at most one, so no client is empty.

    Args:
        alpha: Concentration; the smaller, the fewer labels per client. Because p sums to one, α = 1 with ten balanced
            labels is what other papers write as Dir(0.1).
        clients: Number of clients.

    Example:
        >>> import numpy as np
        >>> from coalmine.simulation.data import load
        >>> skewed = Dirichlet(alpha=1.0, clients=20).apply(load("digits").train)
        >>> np.bincount(skewed.client(0).targets, minlength=10)
        array([34,  2,  0,  0, 10, 31,  0,  0,  3,  0])
    """

    alpha: float
    clients: int

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_count("clients", self.clients)

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha:g}/{self.clients}"

    def apply(self, data: FederatedData, seed: int = 0) -> FederatedData:
        """Return the data with every example assigned to exactly one client."""
        if data.task.per_position:
            raise InputError(f"{self} needs one label per example, but this data has one per position")
        rng = np.random.default_rng(seed)
        rows = rng.permutation(data.indices)
        labels = data.targets[rows]
        rows = rows[np.argsort(labels, kind="stable")]
        left = np.unique(labels, return_counts=True)[1]
        distributions = rng.dirichlet(self.alpha * left / left.sum(), size=self.clients)
        first = np.cumsum(left) - left  # where the remaining examples of each label start in rows
        assigned: list[Ints] = []
        for size, distribution in zip(_equal_sizes(len(rows), self.clients), distributions, strict=True):
            taken = _draw_labels(rng, int(size), distribution, left)
            assigned.extend(rows[start : start + count] for start, count in zip(first, taken, strict=True) if count)
            first, left = first + taken, left - taken
        return _equal_clients(data, np.concatenate(assigned), self.clients, "dirichlet")


@dataclass(frozen=True)
class Balanced:
    """Every user cut into clients of exactly ``size`` consecutive examples; a user's remaining examples are dropped.

    These are the "balanced users" of Thakkar et al. (2020), *Understanding unintended memorization in federated
    learning*.

    Args:
        size: Number of examples per client.

    Example:
        >>> from coalmine.simulation.data import load
        >>> text = load("generated-text").train
        >>> Balanced(10).apply(text).names[:3]
        ['user-1#0', 'user-1#1', 'user-1#2']
    """

    size: int

    def __post_init__(self) -> None:
        check_count("the size of a balanced client", self.size)

    def __str__(self) -> str:
        return f"balanced:{self.size}"

    def apply(self, data: FederatedData, seed: int = 0) -> FederatedData:
        """Return the data with each example in at most one client, and each client with examples of one user."""
        pieces = data.sizes // self.size
        if not pieces.any():
            raise InputError(f"{self} leaves no client: the largest has {data.sizes.max()} examples")
        owner = np.repeat(np.arange(len(data)), pieces)
        piece = numbered_within(pieces)
        start = data.bounds[owner, 0] + piece * self.size
        names = [f"{data.names[o]}#{p}" for o, p in zip(owner.tolist(), piece.tolist(), strict=True)]
        return data.regrouped(bounds=np.stack([start, start + self.size], axis=1), names=names, rows=data.rows)


Partition = Natural | Iid | Dirichlet | Balanced


def parse(text: str) -> Partition:
    """Return the partition that a string describes.

    Args:
        text: ``"natural"``, ``"iid:CLIENTS"``, ``"dirichlet:ALPHA/CLIENTS"`` or ``"balanced:EXAMPLES"``.

    Raises:
        InputError: If the string is none of these.

    Example:
        >>> parse("dirichlet:0.5/100")
        Dirichlet(alpha=0.5, clients=100)
    """
    kind, _, settings = text.strip().lower().partition(":")
    reason = ""
    try:
        match [kind, *settings.split("/")]:
            case ["natural", ""]:
                return Natural()
            case ["iid", clients]:
                return Iid(int(clients))
            case ["dirichlet", alpha, clients]:
                return Dirichlet(alpha=float(alpha), clients=int(clients))
            case ["balanced", size]:
                return Balanced(int(size))
    except InputError as error:
        reason = f" ({error})"
    except ValueError:
        pass
    raise InputError(f"unknown partition {text!r}{reason}; {ACCEPTED}")


def repartition(splits: Splits, partition: Partition, *, seed: int = 0) -> Splits:
    """Regroup the examples of each split into other clients.

    Examples stay in their split. Test and pool get clients of the same mean size as the training clients.

    Args:
        splits: Data to regroup.
        partition: The new clients.
        seed: Seed for the assignment of examples to clients.

    Returns:
        The same examples, split by split, as other clients.

    Raises:
        InputError: If there are more clients than examples, or if the partition needs labels that the data lacks.

    Example:
        >>> from coalmine.simulation.data import load
        >>> splits = repartition(load("digits"), Iid(10))
        >>> len(splits.train), len(splits.test)
        (10, 1)
    """
    train = partition.apply(splits.train, seed)
    mean = train.sizes.mean()

    def like_train(part: FederatedData, salt: int) -> FederatedData:
        clients = max(1, round(part.sizes.sum() / mean))
        match partition:
            case Iid():
                return Iid(clients).apply(part, seed + salt)
            case Dirichlet(alpha=alpha):
                return Dirichlet(alpha=alpha, clients=clients).apply(part, seed + salt)
            case _:
                return partition.apply(part, seed)

    pool = None if splits.pool is None else like_train(splits.pool, 2)
    return Splits(train=train, test=like_train(splits.test, 1), pool=pool)


def _equal_sizes(examples: int, clients: int) -> Ints:
    """Return sizes of clients that differ by at most one."""
    return np.diff(np.arange(clients + 1) * examples // clients)


def _equal_clients(data: FederatedData, rows: Ints, clients: int, name: str) -> FederatedData:
    """Return the data with ``rows`` cut into clients of equal size."""
    if clients > len(rows):
        raise InputError(f"{clients} clients cannot share {len(rows)} examples: use at most {len(rows)} clients")
    bounds = consecutive_bounds(_equal_sizes(len(rows), clients))
    return data.regrouped(bounds=bounds, names=[f"{name}-{i}" for i in range(clients)], rows=rows)


def _draw_labels(rng: np.random.Generator, size: int, distribution: Floats, left: Ints) -> Ints:
    """Return how many examples of each label a client takes: ``size`` draws, at most ``left`` of each label.

    Draws of a label that has run out are redrawn among the others, which is the same as drawing one by one.
    """
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        weight = np.where(taken < left, distribution, 0.0)
        if not weight.sum() > 0:
            # Tiny α: every label with a positive share has run out. Draw in proportion to what is left.
            weight = (left - taken).astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(missing, weight / weight.sum()), left)
    return taken
