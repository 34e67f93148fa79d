"""The audits' side of a Flower training: which round it is, which canaries are due, what was released."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord

from coalmine.claims.sampling import Observed
from coalmine.errors import InputError
from coalmine.integrations import finite_part
from coalmine.integrations.flower.arrays import Layout
from coalmine.protocol import Audit, Contribution, View, check_audits


@dataclass(frozen=True)
class PlannedRound:
    """One of Flower's rounds: round ``round`` of the training, or a frozen round before it, and whose audits act."""

    round: int
    trial: int | None
    acting: Mapping[int, Audit]

    def __str__(self) -> str:
        frozen = "" if self.trial is None else f"frozen round {self.trial} before "
        return f"{frozen}round {self.round}"


class AuditedRounds:
    """Leads audits through a Flower training, in which each round gets its canaries once and is recorded once."""

    def __init__(self, audits: Sequence[Audit]) -> None:
        check_audits(audits, least=1)
        rounds = {int(getattr(audit, "rounds", 0)) for audit in audits}
        if len(rounds) > 1:
            raise InputError(f"all audits of a training must have the same number of rounds, got {sorted(rounds)}")
        self.audits, self.rounds = tuple(audits), rounds.pop()
        self.plan: list[PlannedRound] = []
        # Frozen rounds are held on the model before the round that they are numbered by.
        for round in range(self.rounds):
            for index, audit in enumerate(audits):
                for trial in range(audit.frozen_rounds(round)):
                    self.plan.append(PlannedRound(round, trial, {index: audit}))
            self.plan.append(PlannedRound(round, None, dict(enumerate(audits))))
        self._layout: Layout | None = None
        self._before: npt.NDArray[Any] = np.zeros(0)
        self.position, self._planted = 0, False  # how many rounds are over, and whether the next one has its canaries
        self._divisor: float | None = None
        self._all_replied = self._adapts = False
        self.lost_numbers = 0  # parameters that were not finite, over all rounds

    @property
    def current(self) -> PlannedRound | None:
        """The next round to insert canaries into; None while one awaits recording, and after the last."""
        if self._planted or self.position >= len(self.plan):
            return None
        return self.plan[self.position]

    @property
    def layout(self) -> Layout:
        """The layout of the model, once it is known."""
        if self._layout is None:
            raise InputError("the first model was not recorded: pass evaluate_fn=grid.recorder() to start()")
        return self._layout

    def due(self) -> list[tuple[int, int]]:
        """Return (audit, seat) of all canaries that this round may have, inserted or held out.

        In a frozen round of one audit, canaries of the others are due as well and held out, so that every round has the
        same number of nodes.
        """
        current = self.current
        if current is None:
            return []
        due = list[tuple[int, int]]()
        for i, audit in enumerate(self.audits):
            trial = current.trial if i in current.acting else None
            due += itertools.product([i], audit.seats(current.round, trial))
        return due

    def sampled(self, nodes: Sequence[int], clients: int, model: ArrayRecord) -> None:
        """Record the nodes that the strategy sampled, and the model that they receive.

        Args:
            nodes: Ids of the nodes, negative ones of canaries.
            clients: How many other nodes there are.
            model: The model, which updates are relative to.
        """
        if self.position >= len(self.plan):
            raise InputError(f"the audits were made for {self.rounds} rounds, but the training has more")
        node, times = Counter(nodes).most_common(1)[0]
        if times > 1:
            raise InputError(f"node {node} was sampled {times} times in a round and counts as often: list each once")
        self._before = self.layout.vector(model)
        current, available = self.plan[self.position], clients + len(self.due())
        # Flower draws unsigned ids of 64 bits; audits keep signed ones.
        signed = np.array([node % 2**64 for node in nodes], dtype=np.uint64).astype(np.int64)
        real = signed[np.array(nodes, dtype=object) >= 0]
        for audit in self.audits:
            audit.sampled(current.round, len(nodes), available)
            if current.trial is not None or not len(real):
                continue
            if _drawn_by_training(audit):
                audit.cohort(current.round, signed.tolist(), available)
            else:
                audit.cohort(current.round, real.tolist(), clients)

    def plant(self, seats: Mapping[int, Sequence[int]], clip_norm: float) -> dict[int, Contribution]:
        """Return the contribution of each audit to this round, given the seats of each that were sampled."""
        current = self.current
        if current is None:
            raise InputError(
                "plant was already called for this round, or the training has too many rounds: pass "
                "evaluate_fn=grid.recorder() and num_rounds=grid.rounds to start()"
            )
        contributions = {}
        for i, audit in current.acting.items():
            audit.took_part(current.round, seats.get(i, ()), current.trial)
            planted = audit.plant(current.round, clip_norm=clip_norm, trial=current.trial)
            if planted is not None:
                contributions[i] = planted
        self._planted = True
        return contributions

    def answered(self, replies: int, missing: int, failed: int, reason: str) -> None:
        """Record how many nodes sent an update, sent nothing, or sent an error."""
        asked = replies + missing + failed
        if replies:
            self._divisor, self._all_replied = float(replies), replies == asked
        twice = "replied twice, which counts twice"
        for nodes, what in ((missing, "sent no reply"), (-missing, twice), (failed, f"failed ({reason:.80})")):
            if nodes > 0:
                self.note(f"{nodes} of {asked} nodes {what}")

    def begin(
        self,
        arrays: ArrayRecord,
        *,
        noise_multiplier: float | None = None,
        adapts_clip_norm: bool = False,
        stratify: bool = True,
    ) -> None:
        """Record the model before the first round, and what is known of the training."""
        self._layout = layout = Layout.of(arrays)
        self._adapts = adapts_clip_norm
        for audit in self.audits:
            dim = getattr(audit, "dim", layout.dim)
            if dim != layout.dim:
                raise InputError(f"the audit was made for {dim} parameters, but the model has {layout.dim}")
            audit.describe(
                layers=layout.shapes,
                noise_multiplier=noise_multiplier,
                stratify=stratify,
                even_noise=noise_multiplier is not None,
            )
        self._before = layout.vector(arrays)

    def record(self, arrays: ArrayRecord, private: ArrayRecord | None = None) -> PlannedRound:
        """Show the audits what a round released, as `release` does, and return the round."""
        current = self.plan[self.position]
        if current.trial is None:  # frozen rounds do not change the model
            self._before = self.release(arrays, private)
        self.position, self._planted, self._divisor = self.position + 1, False, None
        return current

    def release(self, arrays: ArrayRecord | None, private: ArrayRecord | None) -> npt.NDArray[Any]:
        """Show the acting audits what a round released, and return the parameters of the model.

        Args:
            arrays: The model that the round leads to; None if it was aborted.
            private: What a DP wrapper made of the model, if strategies around it may have processed that.
        """
        current, layout = self.plan[self.position], self.layout
        # Flower shows models, so the update is the difference of two.
        after = self._before if arrays is None else layout.vector(arrays)
        noisy = after if private is None else layout.vector(private)
        rounding = layout.rounding(self._before, noisy)
        with np.errstate(invalid="ignore", over="ignore"):
            change, model = (noisy - self._before).astype(np.float32), after.astype(np.float32)
            lost = int(np.count_nonzero(~np.isfinite(change + model)))
        if lost:
            self.lost_numbers += lost
            self.note(f"{lost} of {len(change)} parameters are not finite and count as unchanged")
            change, model, rounding = finite_part(change)[0], finite_part(model)[0], math.inf
        if change.any() and not self._planted and self.position == 0:
            raise InputError("the training does not use this grid: pass the CanaryGrid to start() as grid=")
        # A strategy that aborts a round returns the old model.
        aborted = not self._planted or not change.any()
        # The noise of Flower's wrapper is for all nodes. Wrappers that adapt the clip norm add it for the next one.
        unprocessed = private is not None and self._all_replied and not self._adapts
        if aborted:
            self.note("the model did not change, so the round counts as aborted")
        released = {"update": change, "model": model}
        for audit in current.acting.values():
            if aborted:
                audit.skip(current.round, current.trial)
            # A frozen round releases nothing but its update.
            views = [View("update")] if current.trial is not None else audit.views
            for view in views:
                if view.shows(current.round, self.rounds):
                    release: Any = {view.kind: np.array(released[view.kind])}
                    audit.observe(
                        current.round,
                        **release,
                        trial=current.trial,
                        divisor=self._divisor,
                        rounding=rounding,
                        unprocessed=unprocessed,
                    )
        return after

    def note(self, sentence: str) -> None:
        """Add a sentence about this round to the results' warnings."""
        current = self.plan[self.position]
        for audit in current.acting.values():
            audit.note(f"{current}: {sentence}")


def _drawn_by_training(audit: Audit) -> bool:
    """Return whether the strategy draws an audit's canaries from all nodes, so that they are drawn like clients."""
    return isinstance(getattr(audit, "participation", None), Observed)
