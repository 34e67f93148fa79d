"""The trials of the LDP audit: which of two gradients was randomized?

White-box trials, here, see the report; black-box trials see the model before and after it. Each has the paper's test
(Matsumoto et al. 2022, Eqs. 4 to 7) and a likelihood ratio of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError
from coalmine.methods.ldp.crafters import Pair, Rule
from coalmine.protocol import Vector
from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian, LocalMechanism, Reports
from coalmine.simulation.mechanisms.privunit import PrivUnit2
from coalmine.stats import Counts, Guesses


@dataclass(frozen=True, eq=False)
class Trials:
    """Scores of trials (higher = rather g₁), who really sent g₁, and where to guess.

    The guess is g₁ at scores of at least ``accuse`` and g₂ below ``clear``; in between there is none. Both were fixed
    before the scores were seen.
    """

    scores: Floats
    members: Bools
    accuse: float = 0.0
    clear: float = 0.0

    def __post_init__(self) -> None:
        if self.members.all() or not self.members.any():
            raise InputError(f"all of {self.members.size} trials sent the same gradient by chance: give more trials")

    @property
    def counts(self) -> Counts:
        """What the guess g₁ gets right and wrong."""
        accused = self.scores >= self.accuse
        tp, fp = int(np.sum(accused & self.members)), int(np.sum(accused & ~self.members))
        return Counts(tp, int(self.members.sum()) - tp, fp, int((~self.members).sum()) - fp)

    @property
    def guesses(self) -> Guesses:
        """How many guesses there are, of g₁ or of g₂, and how many are right."""
        accused, cleared = self.scores >= self.accuse, self.scores < self.clear
        right = int(np.sum(accused & self.members) + np.sum(cleared & ~self.members))
        return Guesses(self.scores.size, int(np.sum(accused) + np.sum(cleared)), right)


@dataclass(frozen=True, eq=False)
class Crafted:
    """What a crafter made, and what its distinguisher knows: the model sent, the pair of examples, the test to take.

    ``others`` are the gradients of further clients whose reports are averaged with this one's, (n − 1, d).
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
        """How many reports are averaged."""
        return 1 + len(self.others)


@dataclass(frozen=True, eq=False)
class Plane:
    """g₁ and g₂ in an orthonormal basis of the plane they span: ``basis`` (d, r), coordinates (r,) each."""

    basis: Floats
    first: Floats
    second: Floats

    @classmethod
    def of(cls, crafted: Crafted) -> Plane:
        """r is 2, or 1 where there is one dimension only. Where g₂ = −g₁ the second direction does not matter."""
        both = np.stack([crafted.first, crafted.second], axis=1).astype(np.float64)
        basis, triangle = np.linalg.qr(both)
        return cls(basis, triangle[:, 0], triangle[:, 1])

    @property
    def contrast(self) -> Floats:
        """g₁/‖g₁‖ − g₂/‖g₂‖: a report's product with it is positive where its cosine with g₁ is the larger."""
        return self.first / np.linalg.norm(self.first) - self.second / np.linalg.norm(self.second)

    def log_ratio(self, total: Floats, mechanism: LocalMechanism, dim: int, clients: int) -> Floats:
        """How much likelier g₁ makes a sum of reports than g₂, as a logarithm."""
        of_first = mechanism.log_density(total, self.first, dim, clients)
        return of_first - mechanism.log_density(total, self.second, dim, clients)

    def thresholds(self, mechanism: LocalMechanism, dim: int, clients: int) -> tuple[float, float]:
        """Where the likelihood ratio accuses and clears: at half of the strongest evidence there can be, up to ε.

        The strongest evidence of a report on a sphere is along the contrast. Among several clients it hardly ever
        comes, and every trial is guessed; so it is where the ratio is no more than a score.
        """
        contrast = self.contrast
        length = float(np.linalg.norm(contrast))
        if clients > 1 or length < 1e-12 or not mechanism.density_is_known:
            return 0.0, 0.0
        far = contrast / length
        most, least = self.log_ratio(np.stack([far, -far]), mechanism, dim, clients)
        return max(min(most, mechanism.epsilon) / 2, 1e-9), min(max(least, -mechanism.epsilon) / 2, -1e-9)


def is_memoryless(mechanism: LocalMechanism) -> bool:
    """Whether its reports are drawn by code of ours alone, which keeps nothing from one report to the next.

    A class that derives from ours may keep a state wherever it likes, be it in ``chance`` or ``clipped``.
    """
    return type(mechanism) in (LDPSGD, LocalGaussian, PrivUnit2)


def tossed(mechanism: LocalMechanism, trials: int, rng: np.random.Generator) -> Bools:
    """Which trials send g₁: a fair coin for each."""
    if is_memoryless(mechanism):
        # Independent trials may be put in any order: those of g₁ first, so that each gradient is drawn in one go.
        return np.arange(trials) < rng.binomial(trials, 0.5)
    # Code of others may change with every call. Were g₁ always first, such a drift would pass for a leak.
    return rng.random(trials) < 0.5


def white_box(crafted: Crafted, mechanism: LocalMechanism, trials: int, rng: np.random.Generator) -> dict[str, Trials]:
    """Trials of a distinguisher who sees the report itself; only its coordinates in the plane are drawn, if possible.

    ``white-box`` compares cosines (Eq. 5); ``likelihood-ratio`` asks how much likelier g₁ makes the report than g₂, and
    guesses only where that is clear.
    """
    plane, dim = Plane.of(crafted), crafted.dim
    members = tossed(mechanism, trials, rng)
    ones = int(members.sum())
    if is_memoryless(mechanism):
        sent = [(crafted.first, ones), (crafted.second, trials - ones)]
    else:
        sent = [(crafted.first if member else crafted.second, 1) for member in members]
    total = np.concatenate([mechanism.coordinates(gradient, plane.basis, rng, count) for gradient, count in sent])
    accuse, clear = plane.thresholds(mechanism, dim, 1)
    return {
        "white-box": Trials(total @ plane.contrast, members),
        "likelihood-ratio": Trials(plane.log_ratio(total, mechanism, dim, 1), members, accuse, clear),
    }
