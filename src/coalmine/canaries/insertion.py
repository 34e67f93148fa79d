"""Phrases put into users' data: who shares what, and how often, to the last example."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coalmine.canaries.phrases import Language, PhraseCanaries
from coalmine.data.federated import Examples, FederatedData
from coalmine.errors import InputError
from coalmine.seeds import generator
from coalmine.stats.arrays import Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Insertion:
    """Data in which users share canaries, and the books: user ``users[i]`` has ``times[i]`` copies of ``canaries[i]``.

    A user who was selected and in the end has no copy is in the books with 0.
    """

    data: FederatedData
    phrases: PhraseCanaries
    canaries: Ints
    users: Ints
    times: Ints

    @property
    def sharers(self) -> Ints:
        """How many users have a copy of each canary, (canaries,)."""
        return np.bincount(self.canaries[self.times > 0], minlength=len(self.phrases))

    @property
    def copies(self) -> Ints:
        """How many examples each canary has, (canaries,)."""
        found = np.bincount(self.canaries, weights=self.times, minlength=len(self.phrases))
        return found.astype(np.int64)

    def shared_by(self, user: int) -> dict[int, int]:
        """The canaries of a user, and how many copies of each."""
        own = (self.users == user) & (self.times > 0)
        return dict(zip(self.canaries[own].tolist(), self.times[own].tolist(), strict=True))


def insert(data: FederatedData, phrases: PhraseCanaries, *, seed: int | None = None) -> Insertion:
    """Select each canary's sharers and replace their examples; the data itself is neither changed nor copied.

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
    rows = data.indices.copy()
    holder = np.full(len(rows), -1, dtype=np.int64)
    strength = np.zeros(len(rows))
    pairs: list[tuple[int, int]] = []
    for canary in np.flatnonzero(phrases.planted).tolist():
        configuration = phrases.configuration(canary)
        users = np.flatnonzero(generator(seed, "sharers", canary).random(len(data)) < configuration.p_u)
        for user in users.tolist():
            pairs.append((canary, user))
            draw = generator(seed, "sharers", canary, user + 1)
            taken = np.flatnonzero(draw.random(int(sizes[user])) < configuration.p_e) + starts[user]
            claim = draw.random(len(taken))
            wins = claim > strength[taken]
            holder[taken[wins]] = canary
            strength[taken[wins]] = claim[wins]
    held = np.flatnonzero(holder >= 0)
    owners = np.searchsorted(stops, held, side="right")
    books = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    count = len(data)
    keys, copies = np.unique(holder[held] * count + owners, return_counts=True)
    wanted = books[:, 0] * count + books[:, 1]
    times = np.zeros(len(books), dtype=np.int64)
    if len(keys):
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        times = np.where(keys[place] == wanted, copies[place], 0)
    inputs, targets = own.rows(phrases.phrases, data.task.input_shape[0])
    rows[held] = len(data.inputs) + holder[held]
    return Insertion(
        data=data.extended(
            Examples(inputs, targets), bounds=np.stack([starts, stops], axis=1), names=data.names, rows=rows
        ),
        phrases=phrases,
        canaries=books[:, 0],
        users=books[:, 1],
        times=times,
    )
