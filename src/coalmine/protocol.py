"""What a training and an audit say to each other.

A training (coalmine's simulator, Flower, Opacus or your own loop) makes three calls: `Audit.plant` for what to add to a
round's sum, `Audit.observe` with what the audit's views release, and finally the audit's ``result``. Vectors may be
NumPy arrays or torch tensors of any device and float type (`coalmine.vectors`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from coalmine.arrays import Vector
from coalmine.errors import InputError, check_count, check_kind, check_nonnegative, check_positive
from coalmine.vectors import AnyVector, dot, flat

if TYPE_CHECKING:
    from coalmine.checks import Replay
    from coalmine.claims import Claim, Sampling
    from coalmine.results.result import Result

__all__ = ["Audit", "Contribution", "Kind", "Release", "Vector", "View", "check_audits", "checked_contribution"]

Kind = Literal["model", "update"]
"""What is released: the global model after a round, or the round's noisy average."""


@dataclass(frozen=True)
class Contribution:
    """What an audit adds to a round's sum.

    Args:
        total: Sum of the canaries' updates, shape ``(dim,)``: a NumPy array or a tensor, or a list of them that has as
            many numbers together. Each update has at most the clip norm.
        clients: How many clients the canaries count as in the average. It is the same whether a canary is inserted or
            not, where the number itself would give that away.
        updates: How many updates were summed, if that differs from ``clients``.

    Example:
        >>> import numpy as np
        >>> updates = np.eye(2, 5, dtype=np.float32)  # two canaries of norm 1
        >>> contribution = Contribution(updates.sum(axis=0), clients=2.0)
        >>> contribution.total
        array([1., 1., 0., 0., 0.], dtype=float32)
    """

    total: AnyVector
    clients: float = 1.0
    updates: int | None = None

    def one_by_one(self, length: float = 1.0) -> Iterator[tuple[int, AnyVector]]:
        """Yield each canary's update, so many times as long, with its seat (see `Audit.seats`), to be clipped."""
        raise InputError("this audit contributes a sum and cannot list single updates")


@dataclass(frozen=True)
class Release:
    """What an adversary sees after a round.

    Args:
        round: Number of the round, from 0.
        kind: ``"model"`` for the global model after the round, ``"update"`` for the round's noisy average before the
            server's optimizer.
        vector: The parameters or the update, shape ``(dim,)``: a NumPy array, a tensor of any device and float type, or
            a list or state dict of them in the order of the parameters.
        trial: Number of a frozen round held before round ``round``, or None for a round of the training itself.
        divisor: What the round's sum was divided by, if that is public.
        rounding: How far rounding may have moved each number of the vector, where that is not negligible beside the
            noise, such as on a grid: half precision, bfloat16 and one fine grid are recognized.
            Infinite if numbers were replaced.
        unprocessed: Whether the vector is the noisy sum over the divisor, to which nothing has happened since.

    Example:
        >>> import numpy as np
        >>> release = Release(round=3, kind="update", vector=np.zeros(10, dtype=np.float32), divisor=50.0)
        >>> View("update").shows(release.round, rounds=5)
        True
    """

    round: int
    kind: Kind
    vector: AnyVector
    trial: int | None = None
    divisor: float | None = None
    rounding: float = 0.0
    unprocessed: bool = False


@dataclass(frozen=True)
class View:
    """Which releases an adversary sees.

    Args:
        kind: ``"model"`` or ``"update"``.
        every: Sees the release of every ``every``-th round and of the last. None means the last round only.
        at: Further rounds that are seen, from 0.

    Example:
        >>> [round for round in range(10) if View("model", every=4).shows(round, 10)]
        [3, 7, 9]
    """

    kind: Kind
    every: int | None = 1
    at: tuple[int, ...] = ()

    def shows(self, round: int, rounds: int) -> bool:
        """Whether the view sees the release of round ``round`` of ``rounds``."""
        # Counted from the first round's release, so that every=4 sees the model after 4, 8, ... rounds.
        regular = self.every is not None and (round + 1) % self.every == 0
        return regular or round == rounds - 1 or round in self.at


class Audit:
    """Base class of audits: everything a training may call, with defaults for an audit that inserts and sees nothing.

    Example:
        >>> import numpy as np
        >>> class LargestUpdate(Audit):
        ...     views = (View("update"),)
        ...     largest = 0.0
        ...     def record(self, release):
        ...         self.largest = max(self.largest, float(np.abs(release.vector).max()))
        >>> audit = LargestUpdate()
        >>> audit.observe(0, update=np.array([0.5, -2.0], dtype=np.float32))
        >>> audit.largest
        2.0
    """

    views: Sequence[View] = ()
    """What the adversary sees."""

    plants_as: str | None = None
    """What the audit inserts, in words. Two audits of one training that insert the same canaries are refused."""

    family: str | None = None
    """Distribution of the updates that the audit inserts, such as ``"gaussian"``; None if it inserts none."""

    members_participation: Sampling | None = None
    """How clients take part in fact, where a training knows that it may differ from what its claim assumes."""

    notes: Sequence[str] = ()
    """Sentences about the training that the result repeats as warnings."""

    def joins(self, *, clients: float | None, noise_multiplier: float = 0.0) -> None:
        """Warn, before the first round, if the canaries outweigh the training that they join.

        Args:
            clients: Expected number of clients in a round, or None if canaries do not count in the divisor.
            noise_multiplier: Noise standard deviation on the sum over the clip norm, if known.
        """

    def describe(
        self,
        *,
        layers: Mapping[str, Sequence[int]] | None = None,
        noise_multiplier: float | None = None,
        stratify: bool = True,
        clip_norms: Mapping[str, float] | None = None,
        even_noise: bool = False,
    ) -> None:
        """Learn about the training before its first round, for checks.

        Args:
            layers: Shape of each tensor by name, in the order of the flat vector.
            noise_multiplier: Noise multiplier of independent Gaussian noise in every round, if that is what it claims.
            stratify: Whether canaries may lie in single tensors.
            clip_norms: Clip norm of each tensor of ``layers``, where each has its own. ``clip_norm`` of `plant` is then
                the norm of all of them together.
            even_noise: Whether the claim states the same noise for all tensors. If not, a clip norm per tensor may be
                why some have less.
        """

    def cohort(self, round: int, clients: int | Sequence[int], available: int) -> None:
        """Record the clients, or the number of clients, that took part in a round, of ``available`` ones."""

    def add_replay(self, check: str, replay: Replay) -> None:
        """Record a replay that the training made by itself as a check of this name, in place of an earlier one."""

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> Contribution | None:
        """Return what to add to a round's sum, or None.

        Args:
            round: Number of the round, from 0.
            clip_norm: Clip norm of this round, infinite if nothing is clipped.
            trial: Number of the frozen round, or None for a round of the training itself.
        """
        return None

    def observe(
        self,
        round: int,
        *,
        update: AnyVector | None = None,
        model: AnyVector | None = None,
        divisor: float | None = None,
        trial: int | None = None,
        rounding: float = 0.0,
        unprocessed: bool = False,
    ) -> None:
        """Show the audit what a round releases: its noisy update, or the model after it.

        Args:
            round: Number of the round, from 0.
            update: The noisy average of the round, or what the server makes of it, (dim,): a NumPy array, a tensor of
                any device and float type, or a list or state dict of them in the order of the parameters.
            model: The model after whatever the server does with the update, instead of ``update``.
            divisor: What the sum was divided by to get ``update``, if that is public. It sharpens scores and the causes
                of findings; no check relies on it unless the update is ``unprocessed``.
            trial: Number of a frozen round held before round ``round``, or None for a round of the training itself.
            rounding: How far rounding may have moved each number, where that is not negligible beside the noise. Half
                precision, bfloat16 and one fine grid are recognized. Infinite if numbers were replaced.
            unprocessed: Whether ``update`` is the noisy sum over ``divisor``, to which nothing has happened since.
                Checks of the noise then see more, since they need not allow for what a server does after the noise.
                Integrations say so where they stand at the mechanism itself.

        Raises:
            InputError: If not exactly one of ``update`` and ``model`` is given, a number is out of range, or the audit
                did not expect this release.
        """
        if (update is None) == (model is None):
            raise InputError("observe takes either update=, the round's noisy average, or model=, the model after it")
        check_count("round", round, least=0)
        if divisor is not None:
            check_positive("divisor", divisor)
        elif unprocessed:
            raise InputError("an unprocessed update needs divisor=, what the noisy sum was divided by: 1 if by nothing")
        # Both are vectors of one length, so nothing but the argument's name can tell them apart.
        kind: Kind = "model" if update is None else "update"
        vector = model if update is None else update
        self.record(Release(round, kind, vector, trial, divisor, rounding, unprocessed))

    def record(self, release: Release) -> None:
        """Record a release; a subclass overrides this, and callers use `observe`."""

    def seats(self, round: int, trial: int | None = None) -> Sequence[int]:
        """Return the numbers of the canaries that may take part in a round, inserted or held out.

        A training whose clients are separate nodes adds one node for each. Held-out canaries have nodes too, so that
        the number of nodes does not reveal which canaries are inserted.
        """
        return ()

    def sampled(self, round: int, nodes: int, available: int) -> None:
        """Record that the training, if it samples by itself, drew ``nodes`` of the ``available`` nodes for a round."""

    def took_part(self, round: int, seats: Sequence[int], trial: int | None = None) -> None:
        """Record, before `plant`, the seats that the training sampled, if it samples by itself."""
        # Canaries that miss a round contribute less than their null distribution or claim assumes.
        due = list(self.seats(round, trial))
        if sorted(seats) != due:
            raise InputError(
                f"{len(seats)} of the {len(due)} canaries due in round {round} were sampled: sample all of them (in "
                "Flower, fraction_train=1.0), or set participation to Observed(...)"
            )

    def skip(self, round: int, trial: int | None = None) -> None:
        """Record that a round was aborted: its canaries are lost, and it will not be repeated."""

    def note(self, sentence: str) -> None:
        """Add a sentence to the warnings of the result."""
        self.notes = (*self.notes, sentence)

    def discard(self, round: int) -> None:
        """Forget the canaries inserted into a round that failed and will be repeated."""

    def frozen_rounds(self, round: int) -> int:
        """Return how many rounds to hold on the frozen model before round ``round``.

        Frozen rounds have fresh cohorts and noise. Their updates are released to this audit only, and the model does
        not change. The simulation asks again before each of them, so that an audit can stop early by returning 0.
        """
        return 0

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return what a checkpoint must keep, as arrays by name."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` returned."""

    def result(
        self,
        *,
        claim: Claim | None = None,
        delta: float | None = None,
        confidence: float = 0.95,
        metrics: Mapping[str, float] | None = None,
    ) -> Result:
        """Return the evidence about ε after the training, beside what the training claims.

        Args:
            claim: What the training claims. The audit compares its canaries with what that promises to them.
            delta: The δ at which ε is stated: that of ``claim`` by default, else 1e-5.
            confidence: Confidence of bounds and intervals.
            metrics: Numbers to keep with ε, such as the model's accuracy.
        """
        raise InputError(f"{type(self).__name__} has no result: define result")

    def figures(self) -> Mapping[str, float]:
        """Return numbers about what was seen so far, for whoever draws them along the training.

        They are named METHOD/VIEW/NUMBER. ``epsilon_estimate`` is an estimate, and ``lower_bound`` a bound that holds
        at every moment.
        """
        return {}

    def __repr__(self) -> str:
        """Return all settings that must be the same to resume from a checkpoint."""
        return type(self).__name__


def words_for(figures: Mapping[str, float]) -> str:
    """Return what `Audit.figures` are in the words of a progress bar.

    Example:
        >>> words_for({"canife/frozen/lower_bound": 0.5, "canife/frozen/epsilon_estimate": 2.0})
        'ε ≥ 0.50 (canife/frozen); ε̂ 2.00 (canife/frozen)'
    """
    words = []
    for name, value in figures.items():
        audit, _, number = name.rpartition("/")
        words.append(f"{'ε ≥' if number == 'lower_bound' else 'ε̂'} {value:.2f} ({audit})")
    return "; ".join(words)


def check_audits(audits: Sequence[Audit], *, least: int = 0) -> None:
    """Raise `InputError` for anything that is not an audit, and for audits that would insert the same canaries."""
    check_kind("audits", audits, (list, tuple), "a list of audits")
    if len(audits) < least:
        raise InputError("at least one audit is needed, such as OneShot(...), got none")
    for audit in audits:
        check_kind("an audit", audit, Audit, "an object of a subclass of coalmine.protocol.Audit")
    # Equal canaries would count twice in the sum, beyond the clip norm that either audit assumes.
    inserted = [audit.plants_as for audit in audits if audit.plants_as is not None]
    if len(set(inserted)) < len(inserted):
        raise InputError(
            f"two audits would insert the same {inserted[0]}: give them different seeds, or let one observe the "
            "other's canaries"
        )


def checked_contribution(contribution: Contribution, *, dim: int, clip_norm: float, round: int) -> Contribution:
    """Return the contribution if it is a finite vector of ``dim`` numbers that its clients could have sent.

    The sum does not show whether each update is within the clip norm. What is checked is that the norm of the sum is at
    most the clip norm times the number of updates.

    Raises:
        InputError: If it is not.
    """
    total = flat(contribution.total)
    if tuple(total.shape) != (dim,):
        raise InputError(
            f"an audit contributed shape {tuple(total.shape)} in round {round}, but the model has shape ({dim},)"
        )
    clients = check_nonnegative("the number of clients of a contribution", contribution.clients)
    updates = clients if contribution.updates is None else contribution.updates
    bound = clip_norm * max(1.0, updates)
    length = math.sqrt(dot(total, total))
    # Each update was rounded to float32; a sum with NaN is within no bound.
    if not length <= bound * (1 + 1e-5):
        raise InputError(
            f"an audit contributed a sum of norm {length:.6g} in round {round}, but {updates:g} clients can reach only "
            f"{bound:.6g}"
        )
    return contribution
