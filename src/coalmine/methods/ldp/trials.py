"""Trials of the LDP audit: which of two gradients was randomized?

White-box trials, at the end of this module, see the report itself; black-box trials (`black_box`) see the model before
and after it was applied. Either view has the paper's test (Matsumoto et al. 2022, Equations 4 to 7) and a likelihood
ratio of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError
from coalmine.methods.ldp.crafters import Rule
from coalmine.methods.ldp.pair import Pair
from coalmine.protocol import Vector
from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian, LocalMechanism, Reports
from coalmine.simulation.mechanisms.privunit import PrivUnit2
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


@dataclass(frozen=True, eq=False)
class Plane:
    """g₁ and g₂ in an orthonormal basis of the plane they span.

    Reports depend on the gradient only through their coordinates in this plane, so r ≤ 2 numbers per report are all
    that a distinguisher needs.

    Args:
        basis: Orthonormal columns, ``(d, r)``.
        first: Coordinates of g₁, ``(r,)``.
        second: Coordinates of g₂, ``(r,)``.
    """

    basis: Floats
    first: Floats
    second: Floats

    @classmethod
    def of(cls, crafted: Crafted) -> Plane:
        """Return the plane of two gradients; r = 1 only in one dimension. If g₂ = −g₁, any second direction will do."""
        both = np.stack([crafted.first, crafted.second], axis=1).astype(np.float64)
        basis, triangle = np.linalg.qr(both)
        return cls(basis, triangle[:, 0], triangle[:, 1])

    @property
    def contrast(self) -> Floats:
        """g₁/‖g₁‖ − g₂/‖g₂‖: its product with a report is positive if the cosine with g₁ is the larger (Eq. 5)."""
        return self.first / np.linalg.norm(self.first) - self.second / np.linalg.norm(self.second)

    def log_ratio(self, total: Floats, mechanism: LocalMechanism, dim: int, clients: int) -> Floats:
        """Return the log-likelihood ratio of g₁ to g₂ for sums of reports ``(k, r)``."""
        log_first = mechanism.log_density(total, self.first, dim, clients)
        return log_first - mechanism.log_density(total, self.second, dim, clients)

    def thresholds(self, mechanism: LocalMechanism, dim: int, clients: int) -> tuple[float, float]:
        """Return where the likelihood ratio guesses g₁ and g₂: at half of the strongest possible evidence, up to ε."""
        contrast = self.contrast
        length = float(np.linalg.norm(contrast))
        # Among several clients strong evidence hardly ever occurs, and an unknown density makes the ratio a mere score:
        # then guess every trial.
        if clients > 1 or length < 1e-12 or not mechanism.density_is_known:
            return 0.0, 0.0
        strongest = contrast / length  # the report on the sphere that points most clearly to g₁
        most, least = self.log_ratio(np.stack([strongest, -strongest]), mechanism, dim, clients)
        return max(min(most, mechanism.epsilon) / 2, 1e-9), min(max(least, -mechanism.epsilon) / 2, -1e-9)


def is_memoryless(mechanism: LocalMechanism) -> bool:
    """Return whether reports are independent for certain, because only our own code draws them.

    A subclass does not count: it may keep state wherever it likes, even in ``chance`` or ``clipped``.
    """
    return type(mechanism) in (LDPSGD, LocalGaussian, PrivUnit2)


def toss_coins(mechanism: LocalMechanism, trials: int, rng: np.random.Generator) -> Bools:
    """Return which trials send g₁, by one fair coin per trial."""
    if is_memoryless(mechanism):
        # Independent trials may come in any order: all of g₁ first, so that each gradient is randomized in one call.
        return np.arange(trials) < rng.binomial(trials, 0.5)
    # Other code may change from call to call. If g₁ always came first, such a drift would look like a leak.
    return rng.random(trials) < 0.5


def batches_of_one_gradient(
    crafted: Crafted, mechanism: LocalMechanism, sent_first: Bools
) -> list[tuple[Vector, int, int]]:
    """Return the trials that are randomized in one call, in their order: the gradient, first trial, trial after it."""
    if is_memoryless(mechanism):
        boundary = int(sent_first.sum())
        return [(crafted.first, 0, boundary), (crafted.second, boundary, len(sent_first))]
    return [(crafted.first if first else crafted.second, i, i + 1) for i, first in enumerate(sent_first)]


def white_box(crafted: Crafted, mechanism: LocalMechanism, trials: int, rng: np.random.Generator) -> dict[str, Trials]:
    """Return trials of a distinguisher who sees the report itself, for both white-box views.

    ``white-box`` compares cosines (Eq. 5). ``likelihood-ratio`` compares likelihoods, and guesses only where the
    evidence is strong. Only the report's coordinates in the plane are drawn where the mechanism allows it.
    """
    plane, dim = Plane.of(crafted), crafted.dim
    sent_first = toss_coins(mechanism, trials, rng)
    batches = batches_of_one_gradient(crafted, mechanism, sent_first)
    reports = np.concatenate(
        [mechanism.coordinates(gradient, plane.basis, rng, stop - start) for gradient, start, stop in batches]
    )
    upper, lower = plane.thresholds(mechanism, dim, 1)
    return {
        "white-box": Trials(reports @ plane.contrast, sent_first),
        "likelihood-ratio": Trials(plane.log_ratio(reports, mechanism, dim, 1), sent_first, upper, lower),
    }
