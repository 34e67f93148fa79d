"""Insertion of phrases into users' data: who shares which canary, and in how many examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coalmine.arrays import Bools, Ints
from coalmine.errors import InputError
from coalmine.methods.secret_sharer.phrases import Language, PhraseCanaries
from coalmine.seeds import generator
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.data.splitting import iid


@dataclass(frozen=True, kw_only=True, eq=False)
class Insertion:
    """Data in which clients hold canaries.

    Args:
        data: The data; its rows from ``first_row`` on are the phrases, one row each.
        phrases: The canaries.
        first_row: Row of the first phrase.
        sharers: Clients selected as secret sharers of some canary, even if none of their examples was replaced. This
            depends on coins only, not on what they hold.
        claims: Rows (canary, example) of all examples that a canary replaces, or would replace if it were inserted; the
            example is its place in ``data.indices``.
    """

    data: FederatedData
    phrases: PhraseCanaries
    first_row: int
    sharers: Ints
    claims: Ints

    @cached_property
    def holdings(self) -> Ints:
        """Sorted rows (canary, client, copies), one for each client that holds a copy of a canary."""
        rows = self.data.indices
        held = np.flatnonzero(rows >= self.first_row)
        owners = np.searchsorted(np.cumsum(self.data.sizes), held, side="right")
        pairs = (rows[held] - self.first_row) * len(self.data) + owners
        keys, copies = np.unique(pairs, return_counts=True)
        return np.stack([keys // len(self.data), keys % len(self.data), copies], axis=1)

    @property
    def users(self) -> Ints:
        """Number of clients that hold each canary, shape (canaries,)."""
        return np.bincount(self.holdings[:, 0], minlength=len(self.phrases))

    @property
    def copies(self) -> Ints:
        """Number of examples that were replaced by each canary, shape (canaries,)."""
        counts = np.bincount(self.holdings[:, 0], weights=self.holdings[:, 2], minlength=len(self.phrases))
        return counts.astype(np.int64)

    @property
    def most_users(self) -> int:
        """Largest number of clients that could hold one canary, whichever of the canaries had been inserted."""
        clients = np.searchsorted(np.cumsum(self.data.sizes), self.claims[:, 1], side="right")
        pairs = np.unique(self.claims[:, 0] * len(self.data) + clients)
        return int(np.bincount(pairs // len(self.data), minlength=1).max())

    def shuffled(self, seed: int = 0) -> Insertion:
        """Return all examples dealt at random to the same number of synthetic clients: the paper's IID data.

        Coins no longer decide who holds a canary, so all clients count as sharers.
        """
        data = iid(self.data, len(self.data), seed)
        places = np.argsort(np.random.default_rng(seed).permutation(len(self.data.indices)))  # as `iid` deals them
        claims = np.stack([self.claims[:, 0], places[self.claims[:, 1]]], axis=1)
        return replace(self, data=data, sharers=np.arange(len(self.data)), claims=claims)


def insert(data: FederatedData, phrases: PhraseCanaries, *, seed: int | None = None) -> Insertion:
    """Insert canaries: select each one's users with probability p_u and replace their examples with probability p_e.

    All selections are independent (Poisson sampling, as in the paper). An example claimed by several canaries goes
    to one of them at random. A canary's draws do not depend on the other canaries.

    Args:
        data: Federated text data. It is not changed.
        phrases: The canaries. Held-out ones replace nothing; what they would replace is drawn all the same.
        seed: Seed for the selections; that of the phrases if not given.

    Raises:
        InputError: If the vocabularies differ or the phrases do not fit into an example.

    Example:
        >>> from coalmine.methods.secret_sharer.phrases import draw_phrases, grid
        >>> from coalmine.simulation.data import generated_text
        >>> data = generated_text(users=20, sentences=10, vocabulary_size=100, positions=8).train
        >>> canaries = draw_phrases(Language.of(data), configurations=grid([0.5], [0.5]), each=2)
        >>> insertion = insert(data, canaries)
        >>> bool((insertion.copies[~canaries.inserted] == 0).all())
        True
    """
    language = Language.of(data)
    if language.size != phrases.language.size:
        raise InputError(
            f"the canaries are for a vocabulary of {phrases.language.size} entries, but the data has {language.size}"
        )
    seed = phrases.seed if seed is None else seed
    sizes = data.sizes
    stops = np.cumsum(sizes)
    starts = stops - sizes
    inputs, targets = language.rows(phrases.phrases, data.task.input_shape[0])
    rows = data.indices.copy()
    # The highest bid wins an example, which is a uniform choice among the canaries that claim it.
    highest_bids = np.zeros(len(rows))
    is_sharer = np.zeros(len(data), dtype=bool)
    claims = [np.empty((0, 2), dtype=np.int64)]
    for canary, inserted in enumerate(phrases.inserted.tolist()):
        configuration = phrases.configuration(canary)
        sharers = _chosen(generator(seed, "sharers", canary), len(data), configuration.p_u)
        is_sharer |= sharers & inserted
        for user in np.flatnonzero(sharers).tolist():
            rng = generator(seed, "sharers", canary, user + 1)
            claimed = starts[user] + np.flatnonzero(_chosen(rng, int(sizes[user]), configuration.p_e))
            claims.append(np.stack([np.full(len(claimed), canary), claimed], axis=1))
            if not inserted:
                continue
            bids = rng.random(len(claimed))
            wins = bids > highest_bids[claimed]
            rows[claimed[wins]] = len(data.inputs) + canary
            highest_bids[claimed[wins]] = bids[wins]
    extended = replace(
        data,
        inputs=np.concatenate([data.inputs, inputs.astype(data.inputs.dtype)]),
        targets=np.concatenate([data.targets, targets.astype(data.targets.dtype)]),
        bounds=np.stack([starts, stops], axis=1),
        rows=rows,
    )
    return Insertion(
        data=extended,
        phrases=phrases,
        first_row=len(data.inputs),
        sharers=np.flatnonzero(is_sharer),
        claims=np.concatenate(claims),
    )


def _chosen(rng: np.random.Generator, count: int, probability: float) -> Bools:
    """Return independent coin flips, shape (count,)."""
    return np.asarray(rng.random(count) < probability)
