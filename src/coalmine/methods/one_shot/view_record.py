"""What one view has shown of a training so far: its releases, and how much of each canary they contain."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np

from coalmine.arrays import Array, Floats, Ints
from coalmine.claims.sampling import Epochs, Sampling
from coalmine.errors import InputError, check_positive
from coalmine.methods.one_shot.arguments import check_initial, check_view
from coalmine.methods.one_shot.canary_set import CanarySet
from coalmine.methods.one_shot.evidence import Evidence
from coalmine.methods.one_shot.round_log import RoundLog
from coalmine.methods.one_shot.scores import SCORES, find_score
from coalmine.methods.one_shot.strata import StrataEvidence
from coalmine.methods.one_shot.views import parse_view, shows_one_release
from coalmine.protocol import Release, Vector
from coalmine.stats import Null
from coalmine.vectors import AnyVector, like, norm, to_numpy


class ViewRecord:
    """The releases that a view has shown, as far as the scores of canaries need them.

    Args:
        name: The view, such as ``"updates"``.
        canaries: The canaries, inserted and held out.
        participation: When they take part.
        rounds: Number of rounds of the training.
        score: Name of the score; the view's default if None.
        initial: The model before the first round, (dim,), for views that compare models.
        drawn: Canaries of each round, where the training draws them itself.
        weights: What releases are multiplied by before canaries are compared with them, (dim,); None for 1.
    """

    def __init__(
        self,
        name: str,
        canaries: CanarySet,
        participation: Sampling,
        *,
        rounds: int,
        score: str | None,
        initial: AnyVector | None,
        drawn: Mapping[int, Ints],
        weights: Vector | None = None,
    ) -> None:
        self.name, self.view = name, parse_view(name)
        check_view(name, self.view, rounds)
        self.score = find_score(score, self.view, name)
        names = () if canaries.layers is None else canaries.layers.names
        self.initial = check_initial(initial, name, canaries.dim, names)
        self.log = RoundLog(rounds)
        self._canaries, self._participation, self._rounds = canaries, participation, rounds
        self._weights, self._drawn = weights, drawn
        self._previous = self.initial  # the model that the next release is compared with
        self._due = np.zeros(canaries.count, dtype=np.int64)  # how often each canary was due since the last release
        shared = self._all_share_rounds()
        self.evidence = Evidence(SCORES[self.score], canaries.dense, participation=participation, shared_rounds=shared)
        self.in_tensors: StrataEvidence | None = None
        if canaries.strata:
            self.in_tensors = StrataEvidence(
                canaries.strata, self.view, participation=participation, shared_rounds=shared
            )

    # During the training

    def present(self, round: int) -> Ints:
        """Return the canaries due in a round, inserted and held out."""
        if round in self._drawn:
            return self._drawn[round]
        return self._participation.draw(
            self._canaries.count, self._rounds, seed=self._canaries.seed, round=round, purpose="participation"
        )

    def rate(self, round: int) -> float:
        """Return the expected share of the canaries that take part in a round."""
        return self._participation.expected(self._canaries.count, self._rounds, round) / self._canaries.count

    def plant(self, round: int, *, norm: float, clip_norm: float) -> Ints:
        """Record that canaries of length ``norm`` are inserted into a round, and return those that are due in it."""
        present = self.present(round)
        self.log.planted[round], self.log.norms[round], self.log.clip_norms[round] = True, norm, clip_norm
        self._due[present] += 1
        return present

    def discard(self, round: int) -> None:
        """Take back the canaries of a round that was not observed."""
        if self.log.awaits_release(round):
            self.log.planted[round] = False
            self._due[self.present(round)] -= 1

    def skip(self, round: int) -> None:
        """Record an aborted round, which counts as one without canaries."""
        self.discard(round)
        self.log.planted[round] = self.log.aborted[round] = True

    def record(self, release: Release) -> None:
        """Score all canaries against a release, whose vector is flat; see `OneShot.observe` for the errors."""
        round, vector = release.round, release.vector
        self.log.check_release(release, self.view, self.name)
        change = vector if self._previous is None else vector - like(self._previous, vector)
        change = change if self._weights is None else change * like(self._weights, change)
        length, ends_epoch = norm(change), self._ends_epoch(round)
        if length > 0:
            rate, shift, dense = self.rate(round), self._shift(release), self._due[: self._canaries.dense.count]
            self.evidence.add(change, length, due=dense, shift=shift, rate=rate, ends_epoch=ends_epoch)
            if self.in_tensors is not None:
                self.in_tensors.add(change, due=self._due, shift=shift, rate=rate, ends_epoch=ends_epoch)
        elif self._due.any():
            raise InputError(
                f"round {round} released a zero update although canaries took part: call skip if it was aborted"
            )
        else:
            self.evidence.add_nothing(ends_epoch=ends_epoch)
        self.log.observed[round] = True
        self._due = np.zeros_like(self._due)
        if self._previous is not None and not shows_one_release(self.view):
            self._previous = deepcopy(vector)

    def _ends_epoch(self, round: int) -> bool:
        """Return whether an epoch of the participation ends with this round."""
        participation = self._participation
        return isinstance(participation, Epochs) and round + 1 == participation.epoch(self._rounds, round)[2]

    def _shift(self, release: Release) -> float | None:
        """Return what an inserted canary adds to its dot product with a release, or None if it is unknown."""
        if release.kind == "update" and release.divisor is not None:
            return float(self.log.norms[release.round]) / check_positive("divisor", release.divisor)
        if SCORES[self.score].needs_divisor:
            raise InputError(
                f"the score {self.score} needs the number that the sum of round {release.round} was divided by: give "
                "observe(divisor=…), or use the score max"
            )
        return None

    # After the training

    def scores(self) -> tuple[Floats, Floats]:
        """Return the scores of the inserted and of the held-out canaries that took part in a visible release."""
        if not self.log.observed.any():
            raise InputError(f"the view {self.name} has not observed any release yet: call observe after each round")
        values = self.evidence.scores()
        scored, members = ~np.isnan(values), self._canaries.members[: len(values)]
        return values[scored & members], values[scored & ~members]

    def null(self) -> Null | None:
        """Return the null distribution of a held-out canary's score, or an upper bound on its tails, or None."""
        return self.evidence.null()

    def canaries_by_score(self) -> dict[str, Ints]:
        """Return the numbers of the inserted and of the held-out canaries, in the ascending order of their scores."""
        values = self.evidence.scores()
        order = np.argsort(values, kind="stable")
        ranked = order[~np.isnan(values[order])]
        inserted = self._canaries.members[ranked]
        return {"inserted_canaries": ranked[inserted], "held_out_canaries": ranked[~inserted]}

    @property
    def knows_rounds(self) -> bool:
        """Whether the score uses the rounds in which a canary takes part."""
        return self._participation.knowledge == "rounds" or SCORES[self.score].knows_rounds

    def _all_share_rounds(self) -> bool:
        """Return whether all canaries take part in the same rounds, known to the adversary."""
        if self._participation.knowledge != "rounds":
            return False
        return {len(self.present(t)) for t in range(self._rounds)} <= {0, self._canaries.count}

    # Checkpoints

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint keeps."""
        previous = np.zeros(0, dtype=np.float32) if self._previous is None else to_numpy(self._previous)
        strata: dict[str, Array] = {} if self.in_tensors is None else self.in_tensors.state()
        copies: dict[str, Array] = {"due": np.array(self._due), "before": np.array(previous)}
        return {**self.log.state(), **copies, **self.evidence.state(), **strata}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a saved state."""
        self.log.restore(state)
        self._due = np.array(state["due"])
        self._previous = np.array(state["before"]) if len(state["before"]) else None
        self.evidence.restore(state)
        if self.in_tensors is not None:
            self.in_tensors.restore(state)
