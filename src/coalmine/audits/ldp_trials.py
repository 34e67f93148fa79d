"""The trials of the LDP audit: which of two gradients was randomised, as four distinguishers guess it.

White-box trials see the report; black-box trials see the model before and after it. Each has the paper's test
(Matsumoto et al. 2022, Eqs. 4 to 7) and a likelihood ratio of ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from coalmine.canaries.gradients import Pair, Rule
from coalmine.fl.flat import parameter_vector
from coalmine.fl.local_mechanisms import UNIFORMS, LocalMechanism, Normals, Reports, Server
from coalmine.fl.many_models import ManyModels
from coalmine.seam import Vector
from coalmine.stats import Counts, Guesses
from coalmine.stats.arrays import Bools, Floats

_CHUNK = 1 << 20  # numbers in the reports that are worked on together: some megabytes, near the processor


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

        The strongest evidence of a report on a sphere is along the contrast.
        """
        contrast = self.contrast
        length = float(np.linalg.norm(contrast))
        if length < 1e-12:
            return math.inf, -math.inf
        far = contrast / length * clients
        most, least = self.log_ratio(np.stack([far, -far]), mechanism, dim, clients)
        return max(min(most, mechanism.epsilon) / 2, 1e-9), min(max(least, -mechanism.epsilon) / 2, -1e-9)


def white_box(crafted: Crafted, mechanism: LocalMechanism, trials: int, rng: np.random.Generator) -> dict[str, Trials]:
    """Trials of a distinguisher who sees the report itself; only its coordinates in the plane are ever drawn.

    ``white-box`` compares cosines (Eq. 5); ``likelihood-ratio`` asks how much likelier g₁ makes the report than g₂, and
    guesses only where that is clear.
    """
    plane, dim = Plane.of(crafted), crafted.dim
    members = np.arange(trials) < rng.binomial(trials, 0.5)
    ones = int(members.sum())
    total = np.concatenate(
        [
            mechanism.projections(plane.first, dim, rng, ones),
            mechanism.projections(plane.second, dim, rng, trials - ones),
        ]
    )
    accuse, clear = plane.thresholds(mechanism, dim, 1)
    return {
        "white-box": Trials(total @ plane.contrast, members),
        "likelihood-ratio": Trials(plane.log_ratio(total, mechanism, dim, 1), members, accuse, clear),
    }


class BlackBox:
    """Trials of a distinguisher who sees the model before and after the report.

    ``black-box`` is the paper's test for the crafter; ``parameter-change`` undoes the server's step and takes the
    likelihood ratio of what it finds, for which the distinguisher must compute g₁ and g₂ as the white-box one does.
    """

    def __init__(self, crafted: Crafted, mechanism: LocalMechanism, server: Server, rng: np.random.Generator) -> None:
        self._crafted, self._mechanism, self._server, self._rng = crafted, mechanism, server, rng
        self._model: Vector = parameter_vector(crafted.model).numpy()
        self._plane = Plane.of(crafted)
        pair, needed = crafted.pair, 2 if crafted.rule == "larger-change" else 1
        self._evaluated = ManyModels(crafted.model, pair.task, pair.inputs[:needed], pair.targets[:needed])
        self._before = self._evaluated.losses(torch.from_numpy(self._model[None]))
        self._scores: dict[str, list[Floats]] = {"black-box": [], "parameter-change": []}
        self._members: list[Bools] = []

    def play(self, normals: Sequence[Normals], scratch: Sequence[Reports]) -> None:
        """A trial for each row: ``normals`` has one array a client, ``scratch`` two arrays of their shape."""
        crafted, mechanism, count = self._crafted, self._mechanism, len(normals[0].values)
        means, other = scratch
        ones = int(self._rng.binomial(count, 0.5))
        uniforms = self._rng.random((len(normals), UNIFORMS, count))
        for gradient, start, stop in ((crafted.first, 0, ones), (crafted.second, ones, count)):
            drawn = normals[0].rows(start, stop)
            mechanism.reports(gradient, drawn, uniforms[0][:, start:stop], out=means[start:stop])
        for gradient, drawn, own in zip(crafted.others, normals[1:], uniforms[1:], strict=True):
            means += mechanism.reports(gradient, drawn, own, out=other)
        if crafted.clients > 1:
            means /= np.float32(crafted.clients)
        models = self._server.move(self._model, means, mechanism)
        np.subtract(self._model, models, out=other)
        self._scores["parameter-change"].append(self._log_ratio(other))
        self._scores["black-box"].append(self._paper_scores(models, other))
        self._members.append(np.arange(count) < ones)

    def trials(self) -> dict[str, Trials]:
        """All that were played."""
        members = np.concatenate(self._members)
        accuse, clear = self._plane.thresholds(self._mechanism, self._crafted.dim, self._crafted.clients)
        return {
            "black-box": Trials(np.concatenate(self._scores["black-box"]), members),
            "parameter-change": Trials(np.concatenate(self._scores["parameter-change"]), members, accuse, clear),
        }

    def _log_ratio(self, changes: Reports) -> Floats:
        clients, dim = self._crafted.clients, self._crafted.dim
        along = (changes @ self._plane.basis.astype(np.float32)).astype(np.float64)
        total = along * clients / self._server.step(self._mechanism, dim)
        return self._plane.log_ratio(total, self._mechanism, dim, clients)

    def _paper_scores(self, models: Reports, changes: Reports) -> Floats:
        if self._crafted.rule == "signs":
            # Eq. 7 has the change's sign; under θ − η·g a positive gradient makes it negative.
            return np.sign(changes).sum(axis=1, dtype=np.float64)
        moved = self._evaluated.losses(torch.from_numpy(models)) - self._before
        if self._crafted.rule == "larger-change":
            found: Floats = np.abs(moved[:, 0]) - np.abs(moved[:, 1])
            return found
        return -moved[:, 0]


def play_together(games: Sequence[BlackBox], dim: int, clients: int, trials: int, seed: int) -> Iterator[int]:
    """Let all games have their trials, on the same random directions; yields how many each has had.

    The directions are shared between games, not between the trials of one: each game by itself is as if it had its own.
    """
    generator = torch.Generator().manual_seed(seed % 2**32)
    rows = max(1, min(trials, _CHUNK // dim))
    drawn = torch.empty((clients, rows, dim))
    scratch = [np.empty((rows, dim), dtype=np.float32) for _ in range(2)]
    for start in range(0, trials, rows):
        count = min(rows, trials - start)
        drawn.normal_(generator=generator)
        normals = [Normals(array[:count].numpy()) for array in drawn]
        for game in games:
            game.play(normals, [array[:count] for array in scratch])
        yield start + count
