"""Phrases put into users' data: who shares what, and how often, to the last example."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coalmine.arrays import Bools, Ints
from coalmine.errors import InputError
from coalmine.methods.secret_sharer.phrases import Language, PhraseCanaries
from coalmine.seeds import generator
from coalmine.simulation.data.federated import Examples, FederatedData
from coalmine.simulation.data.partition import Iid


@dataclass(frozen=True, kw_only=True, eq=False)
class Insertion:
    """Data in which clients hold canaries: its rows from ``first_row`` on are the phrases, one a row.

    ``sharers`` are the clients whom the coin of some canary made share it, also where none of their examples became
    it: who is among them does not depend on what they hold.
    """

    data: FederatedData
    phrases: PhraseCanaries
    first_row: int
    sharers: Ints

    @cached_property
    def books(self) -> Ints:
        """Who holds what, and how often: a row (canary, client, copies) for each pair with a copy, in this order."""
        rows = self.data.indices
        held = np.flatnonzero(rows >= self.first_row)
        owners = np.searchsorted(np.cumsum(self.data.sizes), held, side="right")
        pairs = (rows[held] - self.first_row) * len(self.data) + owners
        keys, copies = np.unique(pairs, return_counts=True)
        return np.stack([keys // len(self.data), keys % len(self.data), copies], axis=1)

    @property
    def users(self) -> Ints:
        """How many clients hold each canary, (canaries,)."""
        return np.bincount(self.books[:, 0], minlength=len(self.phrases))

    @property
    def copies(self) -> Ints:
        """How many examples are each canary, (canaries,)."""
        found = np.bincount(self.books[:, 0], weights=self.books[:, 2], minlength=len(self.phrases))
        return found.astype(np.int64)

    def shuffled(self, seed: int = 0) -> Insertion:
        """All examples, canaries and others, dealt at random to as many synthetic clients: the paper's IID data.

        Nobody's coin says who holds what there: all count as sharers.
        """
        dealt = Iid(len(self.data)).apply(self.data, seed)
        return replace(self, data=dealt, sharers=np.arange(len(self.data)))


def insert(data: FederatedData, phrases: PhraseCanaries, *, seed: int | None = None) -> Insertion:
    """Select each planted canary's users and replace their examples; the data itself is neither changed nor copied.

    Every user shares a canary with its p_u, and each of a sharer's examples becomes the canary with its p_e, all
    independently (Poisson sampling, both). An example that several canaries claim goes to one of them at random. The
    draws of a canary do not depend on the others. ``seed`` is the phrases' own if not given.
    """
    own = Language.of(data)
    if own.size != phrases.language.size:
        raise InputError(
            f"the canaries are for a vocabulary of {phrases.language.size} entries, but the data has {own.size}"
        )
    seed = phrases.seed if seed is None else seed
    sizes = data.sizes
    stops = np.cumsum(sizes)
    starts = stops - sizes
    inputs, targets = own.rows(phrases.phrases, data.task.input_shape[0])
    rows = data.indices.copy()
    strength = np.zeros(len(rows))
    shared = np.zeros(len(data), dtype=bool)
    for canary in np.flatnonzero(phrases.planted).tolist():
        configuration = phrases.configuration(canary)
        sharers = _chosen(generator(seed, "sharers", canary), len(data), configuration.p_u)
        shared |= sharers
        for user in np.flatnonzero(sharers).tolist():
            draw = generator(seed, "sharers", canary, user + 1)
            claimed = starts[user] + np.flatnonzero(_chosen(draw, int(sizes[user]), configuration.p_e))
            claims = draw.random(len(claimed))
            wins = claims > strength[claimed]
            rows[claimed[wins]] = len(data.inputs) + canary
            strength[claimed[wins]] = claims[wins]
    extended = data.extended(
        Examples(inputs, targets), bounds=np.stack([starts, stops], axis=1), names=data.names, rows=rows
    )
    return Insertion(data=extended, phrases=phrases, first_row=len(data.inputs), sharers=np.flatnonzero(shared))


def _chosen(draw: np.random.Generator, count: int, probability: float) -> Bools:
    return np.asarray(draw.random(count) < probability)
