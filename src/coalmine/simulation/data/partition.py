"""Other clients for the same examples: an index over them, never a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coalmine.errors import InputError, check_count, check_positive
from coalmine.simulation.data.federated import FederatedData, Splits, numbered_within

if TYPE_CHECKING:
    from coalmine.arrays import Floats, Ints

ACCEPTED = 'accepted are "natural", "iid:CLIENTS", "dirichlet:ALPHA/CLIENTS" and "balanced:EXAMPLES"'


@dataclass(frozen=True)
class Natural:
    """The users that the data has."""

    def __str__(self) -> str:
        return "natural"

    def apply(self, data: FederatedData, seed: int = 0) -> FederatedData:
        """The data as it is."""
        return data


@dataclass(frozen=True)
class Iid:
    """Examples dealt at random to ``clients`` clients whose sizes differ by at most one."""

    clients: int

    def __post_init__(self) -> None:
        check_count("clients", self.clients)

    def __str__(self) -> str:
        return f"iid:{self.clients}"

    def apply(self, data: FederatedData, seed: int = 0) -> FederatedData:
        """Every example goes to exactly one client."""
        rows = np.random.default_rng(seed).permutation(data.indices)
        return _equal(data, rows, self.clients, "iid")


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Clients of equal size with skewed labels (Hsu, Qi, Brown 2019, "Measuring the effects of non-identical data").

    Each client draws its shares of the labels from a Dirichlet distribution with the parameters α·p, where p are the
    shares in the whole data, and then its examples without replacement. A label that has run out leaves the client's
    shares, which are scaled up again. The last clients take what is left. Small α: few labels a client; as p sums to
    one, α = 1 with ten even labels is what others write as Dir(0.1) over the labels. No client is empty, because sizes
    are fixed beforehand and differ by at most one.
    """

    alpha: float
    clients: int

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_count("clients", self.clients)

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha:g}/{self.clients}"

    def apply(self, data: FederatedData, seed: int = 0) -> FederatedData:
        """Every example goes to exactly one client."""
        if data.task.per_position:
            raise InputError(f"{self} needs one label for each example, but this data has one for each position")
        rng = np.random.default_rng(seed)
        rows = rng.permutation(data.indices)
        labels = data.targets[rows]
        rows = rows[np.argsort(labels, kind="stable")]
        left = np.unique(labels, return_counts=True)[1]
        shares = rng.dirichlet(self.alpha * left / left.sum(), size=self.clients)
        first = np.cumsum(left) - left
        dealt: list[Ints] = []
        for size, share in zip(_equal_sizes(len(rows), self.clients), shares, strict=True):
            taken = _draw(rng, int(size), share, left)
            dealt.extend(rows[start : start + count] for start, count in zip(first, taken, strict=True) if count)
            first, left = first + taken, left - taken
        return _equal(data, np.concatenate(dealt), self.clients, "dirichlet")


@dataclass(frozen=True)
class Balanced:
    """Every user cut into clients of exactly ``size`` consecutive examples; what is left of a user is dropped.

    These are the "balanced users" of Thakkar et al. 2020, "Understanding unintended memorization in federated
    learning", and a finer split of natural users, such as several clients for each writer.
    """

    size: int

    def __post_init__(self) -> None:
        check_count("the examples of a balanced client", self.size)

    def __str__(self) -> str:
        return f"balanced:{self.size}"

    def apply(self, data: FederatedData, seed: int = 0) -> FederatedData:
        """No example goes to two clients, and no client has the examples of two users."""
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
    """The partition that a text such as "iid:100" or "dirichlet:0.1/100" names."""
    kind, _, settings = text.strip().lower().partition(":")
    why = ""
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
        why = f" ({error})"
    except ValueError:
        pass
    raise InputError(f"the partition {text!r} is not known{why}; {ACCEPTED}")


def repartition(splits: Splits, partition: Partition, *, seed: int = 0) -> Splits:
    """Train under ``partition``; test and pool under the same, with as many clients as keep the clients' mean size."""
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
    return np.diff(np.arange(clients + 1) * examples // clients)


def _equal(data: FederatedData, rows: Ints, clients: int, name: str) -> FederatedData:
    if clients > len(rows):
        raise InputError(f"{clients} clients cannot share {len(rows)} examples: some would have none")
    stops = np.cumsum(_equal_sizes(len(rows), clients))
    bounds = np.stack([np.append(0, stops[:-1]), stops], axis=1)
    return data.regrouped(bounds=bounds, names=[f"{name}-{i}" for i in range(clients)], rows=rows)


def _draw(rng: np.random.Generator, size: int, share: Floats, left: Ints) -> Ints:
    """How many examples of each label a client takes: ``size`` draws from ``share``, at most ``left`` of each.

    Draws of a label that has run out are drawn again among the others, which is the same as drawing one by one.
    """
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        weight = np.where(taken < left, share, 0.0)
        if not weight.sum() > 0:
            # Tiny α: all labels with any share have run out. What is left decides.
            weight = (left - taken).astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(missing, weight / weight.sum()), left)
    return taken
