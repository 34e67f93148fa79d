"""Distinguishers: which of two gradients was randomized? (Matsumoto et al. 2022, Section 3.3)

White-box trials, at the end of this module, see the report itself (Algorithm 4); those of `black_box` see the model
before and after it was applied (Algorithm 3). Either view has the paper's test and a likelihood ratio of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError
from coalmine.methods.ldp.crafters import Pair, Rule
from coalmine.protocol import Vector
from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian, LocalMechanism, PrivUnit2, Reports
from coalmine.stats import Counts, Guesses


@dataclass(frozen=True, eq=False)
class Trials:
    """Scores of trials, what each one really sent, and where to guess.

    Args:
        scores: One score per trial; higher means rather g₁.
        sent_first: Whether each trial sent g₁.
        upper: Guess g₁ at this score and above. Fixed before the scores were seen.
        lower: Guess g₂ below this score. There is no guess between the two.
    """

    scores: Floats
    sent_first: Bools
    upper: float = 0.0
    lower: float = 0.0

    def __post_init__(self) -> None:
        if self.sent_first.all() or not self.sent_first.any():
            raise InputError(f"all {self.sent_first.size} trials sent the same gradient by chance: use more trials")

    @property
    def counts(self) -> Counts:
        """Right and wrong guesses of g₁; every trial below ``upper`` counts as a guess of g₂."""
        guessed_first = self.scores >= self.upper
        tp, fp = int(np.sum(guessed_first & self.sent_first)), int(np.sum(guessed_first & ~self.sent_first))
        return Counts(tp, int(self.sent_first.sum()) - tp, fp, int((~self.sent_first).sum()) - fp)

    @property
    def guesses(self) -> Guesses:
        """The number of guesses, of g₁ or of g₂, and how many of them are right."""
        guessed_first, guessed_second = self.scores >= self.upper, self.scores < self.lower
        right = int(np.sum(guessed_first & self.sent_first) + np.sum(guessed_second & ~self.sent_first))
        return Guesses(self.scores.size, int(np.sum(guessed_first) + np.sum(guessed_second)), right)


@dataclass(frozen=True, eq=False)
class Crafted:
    """What a crafter made, and what its distinguisher knows.

    Reports depend on the gradient only through their coordinates in the plane of g₁ and g₂, so r ≤ 2 numbers per report
    are all that a distinguisher needs.

    Args:
        first: g₁, ``(d,)``.
        second: g₂, ``(d,)``.
        model: The model that the server sent.
        pair: The examples x₁ and x₂.
        rule: The paper's black-box test for this crafter.
        others: Gradients of further clients whose reports are averaged with this one's, ``(n - 1, d)``.
    """

    first: Vector
    second: Vector
    model: nn.Module
    pair: Pair
    rule: Rule
    others: Reports

    @property
    def dim(self) -> int:
        """The length of a gradient."""
        return int(self.first.size)

    @property
    def clients(self) -> int:
        """The number of reports that are averaged."""
        return 1 + len(self.others)

    @cached_property
    def plane(self) -> tuple[Floats, Floats, Floats]:
        """An orthonormal basis ``(d, r)`` of the plane, and the coordinates ``(r,)`` of g₁ and of g₂ in it."""
        # r = 1 only in one dimension. If g₂ = −g₁, any second direction will do.
        basis, triangle = np.linalg.qr(np.stack([self.first, self.second], axis=1).astype(np.float64))
        return basis, triangle[:, 0], triangle[:, 1]

    @property
    def contrast(self) -> Floats:
        """g₁/‖g₁‖ − g₂/‖g₂‖: its product with a report is positive if the cosine with g₁ is the larger (Eq. 5)."""
        _, first, second = self.plane
        return first / np.linalg.norm(first) - second / np.linalg.norm(second)

    def log_ratio(self, total: Floats, mechanism: LocalMechanism, clients: int) -> Floats:
        """Return the log-likelihood ratio of g₁ to g₂ for sums ``(k, r)`` of the reports of so many clients."""
        _, first, second = self.plane
        log_first = mechanism.log_density(total, first, self.dim, clients)
        return log_first - mechanism.log_density(total, second, self.dim, clients)

    def thresholds(self, mechanism: LocalMechanism, clients: int) -> tuple[float, float]:
        """Return where the likelihood ratio guesses g₁ and g₂: at half of the strongest possible evidence, up to ε."""
        length = float(np.linalg.norm(self.contrast))
        # Among several clients strong evidence hardly ever occurs, and an unknown density makes the ratio a mere score:
        # then guess every trial.
        if clients > 1 or length < 1e-12 or not mechanism.density_is_known:
            return 0.0, 0.0
        strongest = self.contrast / length  # the report on the sphere that points most clearly to g₁
        most, least = self.log_ratio(np.stack([strongest, -strongest]), mechanism, clients)
        return max(min(most, mechanism.epsilon) / 2, 1e-9), min(max(least, -mechanism.epsilon) / 2, -1e-9)


# A gradient, and the trials that send it in one call of the mechanism.
Batch = tuple[Vector, slice]


def toss_coins(
    crafted: Crafted, mechanism: LocalMechanism, trials: int, rng: np.random.Generator
) -> tuple[Bools, list[Batch]]:
    """Return which trials send g₁, by one fair coin per trial, and what to randomize in which order."""
    # Reports are independent for certain only if our own code draws them. A subclass does not count: it may keep state
    # wherever it likes, even in ``chance`` or ``clipped``.
    if type(mechanism) in (LDPSGD, LocalGaussian, PrivUnit2):
        # Independent trials may come in any order: all of g₁ first, so that each gradient is randomized in one call.
        boundary = int(rng.binomial(trials, 0.5))
        batches = [(crafted.first, slice(0, boundary)), (crafted.second, slice(boundary, trials))]
        return np.arange(trials) < boundary, batches
    # Other code may change from call to call. If g₁ always came first, such a drift would look like a leak.
    sent_first = rng.random(trials) < 0.5
    batches = []
    for i, first in enumerate(sent_first):
        batches.append((crafted.first if first else crafted.second, slice(i, i + 1)))
    return sent_first, batches


def white_box(crafted: Crafted, mechanism: LocalMechanism, trials: int, rng: np.random.Generator) -> dict[str, Trials]:
    """Return trials of a distinguisher who sees the report itself, for both white-box views (Algorithm 4).

    ``white-box`` compares cosines (Eq. 5). ``likelihood-ratio`` compares likelihoods, and guesses only where the
    evidence is strong. Only the report's coordinates in the plane are drawn where the mechanism allows it.
    """
    basis, _, _ = crafted.plane
    sent_first, batches = toss_coins(crafted, mechanism, trials, rng)
    reports = np.empty((trials, basis.shape[1]))
    for gradient, rows in batches:
        reports[rows] = mechanism.coordinates(gradient, basis, rng, rows.stop - rows.start)
    upper, lower = crafted.thresholds(mechanism, 1)
    return {
        "white-box": Trials(reports @ crafted.contrast, sent_first),
        "likelihood-ratio": Trials(crafted.log_ratio(reports, mechanism, 1), sent_first, upper, lower),
    }
