"""The seam between a training and its audits: what is planted, what is released.

Whatever trains (coalmine's simulator, Flower, Opacus, a loop of one's own) asks each audit for its contribution to a
round and hands it what its views release, and nothing else. NumPy only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Vector
from coalmine.errors import InputError, check_count, check_kind

__all__ = ["Audit", "Contribution", "Kind", "Release", "Vector", "View", "checked_contribution"]

Kind = Literal["model", "update"]
"""What a release is: the global model after a round, or the round's noisy average."""


@dataclass(frozen=True)
class Contribution:
    """What an audit adds to a round's sum: ``total``, the sum of planted updates, each no longer than the clip norm.

    ``clients`` is how many clients they count as in the average. Where an audit must not show by it whether a canary
    is there, it gives the same number either way; ``updates`` is then how many were really summed.
    """

    total: Vector
    clients: float = 1.0
    updates: int | None = None

    def one_by_one(self) -> Iterator[tuple[int, Vector]]:
        """What each client sends, with its seat (`Audit.seats`): for trainings that clip and sum by themselves."""
        raise InputError("this audit plants a sum: it cannot say what each client sends")


@dataclass(frozen=True)
class Release:
    """What an adversary sees after round ``round``, counted from 0.

    ``model`` is the global model after the round, ``update`` the round's noisy average before the server's optimizer.
    ``trial`` numbers the frozen rounds held before round ``round``; it is None where the training itself goes on.
    ``divisor`` is what the round's sum was divided by, where that is public.
    """

    round: int
    kind: Kind
    vector: Vector
    trial: int | None = None
    divisor: float | None = None


@dataclass(frozen=True)
class View:
    """What an adversary may see of a training: a ``kind`` of release after every ``every`` rounds, and the last.

    ``every=None`` is the last alone: the final model. ``at`` are rounds seen besides, counted from 0.
    """

    kind: Kind
    every: int | None = 1
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("model", "update"):
            raise InputError(f"a view shows model or update, got {self.kind!r}")
        if self.every is not None:
            check_count("every", self.every)
        for round in self.at:
            check_count("a round that is seen", round, least=0)

    def shows(self, round: int, rounds: int) -> bool:
        """Whether it sees what round ``round`` of ``rounds`` releases."""
        regular = self.every is not None and (round + 1) % self.every == 0
        return regular or round == rounds - 1 or round in self.at


class Audit:
    """What a training asks of an audit: subclass it and say what differs from an onlooker that sees nothing."""

    views: Sequence[View] = ()
    """What this adversary may see."""

    plants_as: str | None = None
    """What it plants, in words: two audits of one training that plant the same would double it, and are refused."""

    notes: Sequence[str] = ()
    """What happened during the training that whoever reads the result should know."""

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> Contribution | None:
        """What to add to the sum of round ``round``, or of its frozen round ``trial``; None for nothing.

        ``clip_norm`` bounds every client's update in this round; it is infinite where nothing is clipped.
        """
        return None

    def observe(self, release: Release) -> None:
        """Take in what was released."""

    def seats(self, round: int, trial: int | None = None) -> Sequence[int]:
        """The canaries that may be in a round, by number, whether each then sends something or nothing.

        A training whose clients are nodes of their own has as many more nodes. They are there for canaries that are
        held out too, so that nobody can tell by how many there are.
        """
        return ()

    def took_part(self, round: int, seats: Sequence[int], trial: int | None = None) -> None:
        """Told before ``plant`` which seats the training chose, where it chooses for itself."""
        due = list(self.seats(round, trial))
        if sorted(seats) != due:
            raise InputError(
                f"{len(seats)} of the {len(due)} canaries that are due in round {round} were chosen to take part: all "
                "must be (in Flower by fraction_train=1.0), or participation must be ObservedParticipation(...)"
            )

    def skip(self, round: int, trial: int | None = None) -> None:
        """Round ``round`` came to nothing: whatever was planted in it is lost, and it will not be held again."""

    def note(self, sentence: str) -> None:
        """Have the result say this among its warnings."""
        self.notes = (*self.notes, sentence)

    def discard(self, round: int) -> None:
        """Round ``round`` failed after it was planted, and does not count: it may be planted again."""

    def frozen_rounds(self, round: int) -> int:
        """How many rounds to hold before round ``round`` on the model as it is, with fresh cohorts and fresh noise.

        Their updates are released to this audit alone, and the model stays what it is.
        """
        return 0

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """What a checkpoint must keep of this audit, as arrays by name."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what ``state`` gave."""

    def live(self) -> str | None:
        """What it would say now, in a few words beside a progress bar; None where it cannot know yet."""
        return None

    def __repr__(self) -> str:
        """What it is, with all that must be the same for a checkpoint to be resumed."""
        return type(self).__name__


def checked_contribution(contribution: Contribution, *, dim: int, clip_norm: float, round: int) -> Contribution:
    """Return the contribution if it is a finite vector of ``dim`` numbers that so many clients could have sent.

    Whether each planted update is within the clip norm cannot be seen from their sum; that the sum is within as many
    times it as there are updates (one at least) can.
    """
    check_kind("what an audit plants", contribution, Contribution, "a Contribution or None")
    total, clients = contribution.total, contribution.clients
    if total.shape != (dim,):
        raise InputError(f"an audit planted a vector of shape {total.shape} in round {round}, the model has ({dim},)")
    if not (clients >= 0 and math.isfinite(clients)):
        raise InputError(f"a contribution counts as 0 clients or more, got {clients} in round {round}")
    norm = float(np.linalg.norm(total.astype(np.float64)))
    if not math.isfinite(norm):
        raise InputError(f"an audit planted a vector that is not finite in round {round}")
    updates = clients if contribution.updates is None else contribution.updates
    bound = clip_norm * max(1.0, updates)
    if norm > bound * (1 + 1e-5):
        raise InputError(
            f"an audit planted updates of norm {norm:.6g} in round {round}, where {updates:g} clients may send up to "
            f"{bound:.6g}"
        )
    return contribution
