"""The audits' side of a Flower training: which round it is, which canaries are due, what was released."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord

from coalmine.claims.sampling import EveryRound, Observed
from coalmine.errors import InputError
from coalmine.integrations.finite import finite_part
from coalmine.integrations.flower.arrays import Layout
from coalmine.protocol import Audit, Contribution, Kind, Vector, check_audits


@dataclass(frozen=True)
class PlannedRound:
    """One of Flower's rounds: round ``round`` of the training, or frozen round ``trial`` of audit ``audit``."""

    round: int
    trial: int | None = None
    audit: int | None = None


class AuditedRounds:
    """Leads audits through a Flower training, in which each round gets its canaries once and is recorded once."""

    def __init__(self, audits: Sequence[Audit]) -> None:
        check_audits(audits, least=1)
        rounds = {int(getattr(audit, "rounds", 0)) for audit in audits}
        if len(rounds) > 1:
            raise InputError(f"all audits of a training must have the same number of rounds, got {sorted(rounds)}")
        self.audits, self.rounds = tuple(audits), rounds.pop()
        self.plan = tuple(self._planned())
        self.layout: Layout | None = None
        self._before: npt.NDArray[Any] | None = None
        self._at, self._planted, self._divisor = 0, False, 0.0
        self.lost_numbers = 0  # parameters that were not finite, over all rounds

    def _planned(self) -> list[PlannedRound]:
        plan = []
        for round in range(self.rounds):
            for index, audit in enumerate(self.audits):
                plan += [PlannedRound(round, trial, index) for trial in range(audit.frozen_rounds(round))]
            plan.append(PlannedRound(round))
        return plan

    @property
    def current(self) -> PlannedRound | None:
        """The next round to insert canaries into; None while one awaits recording, and after the last."""
        return None if self._planted or self._at >= len(self.plan) else self.plan[self._at]

    def due(self) -> list[tuple[int, int]]:
        """Return (audit, seat) of all canaries that this round may have, inserted or held out.

        In a frozen round of one audit, canaries of the others are due as well and held out, so that every round has the
        same number of nodes.
        """
        current = self.current
        if current is None:
            return []
        trials = [current.trial if i in self._acting(current) else None for i in range(len(self.audits))]
        return [(i, seat) for i, trial in enumerate(trials) for seat in self.audits[i].seats(current.round, trial)]

    @property
    def server_round(self) -> int:
        """Flower's number of the next round, from 1."""
        return self._at + 1

    def sampled(self, nodes: Sequence[int], clients: int) -> None:
        """Record the nodes that the strategy sampled; canaries' ids are negative, and there are ``clients`` others."""
        current, available = self.plan[self._at], clients + len(self.due())
        real = [_signed(node) for node in nodes if node >= 0]
        for audit in self.audits:
            audit.sampled(current.round, len(nodes), available)
            if current.trial is not None or not real:
                continue
            if _drawn_by_training(audit):
                audit.cohort(current.round, [_signed(node) for node in nodes], available)
            else:
                audit.cohort(current.round, real, clients)

    def plant(self, sampled: Mapping[int, Sequence[int]], clip_norm: float) -> dict[int, Contribution]:
        """Return the contribution of each audit to this round, given the seats of each that were sampled."""
        current = self.current
        if current is None:
            raise InputError(
                "plant was already called for this round, or the training has too many rounds: pass "
                "evaluate_fn=grid.recorder() and num_rounds=grid.rounds to start()"
            )
        contributions = {}
        for i in self._acting(current):
            self.audits[i].took_part(current.round, sampled.get(i, ()), current.trial)
            planted = self.audits[i].plant(current.round, clip_norm=clip_norm, trial=current.trial)
            if planted is not None:
                contributions[i] = planted
        self._planted = True
        return contributions

    def answered(self, replies: int, missing: int, failed: int, reason: str) -> None:
        """Record how many nodes sent an update, sent nothing, or sent an error."""
        self._divisor = float(replies)
        if missing:
            self._note(f"{missing} of {replies + missing + failed} nodes sent no reply")
        if failed:
            self._note(f"{failed} of {replies + missing + failed} nodes failed ({reason:.80})")

    def begin(self, arrays: ArrayRecord, *, noise_multiplier: float | None = None, stratify: bool = True) -> None:
        """Record the model before the first round, and what is known of the training."""
        self.layout = Layout.of(arrays)
        for audit in self.audits:
            dim = getattr(audit, "dim", self.layout.dim)
            if dim != self.layout.dim:
                raise InputError(f"the audit was made for {dim} parameters, but the model has {self.layout.dim}")
        for audit in self.audits:
            audit.describe(
                layers=self.layout.shapes,
                # A claim about canaries that follow a schedule of their own says nothing about how clients are drawn.
                sampling=None if _drawn_by_training(audit) else EveryRound(),
                noise_multiplier=noise_multiplier,
                stratify=stratify,
                even_noise=noise_multiplier is not None,
            )
        self._before = self.layout.vector(arrays)

    def record(self, arrays: ArrayRecord) -> PlannedRound:
        """Show the audits the model after a round, and return the round. Frozen rounds do not change the model."""
        if self._at >= len(self.plan):
            raise InputError(f"the audits were made for {self.rounds} rounds, but the training has more")
        current = self.plan[self._at]
        if current.trial is None:
            model = self.checked_layout.vector(arrays)
            self._release(current, model)
            self._before = model
        self._at, self._planted, self._divisor = self._at + 1, False, 0.0
        return current

    def record_frozen(self, arrays: ArrayRecord | None) -> None:
        """Show the acting audit the model that a frozen round leads to, None if the round was aborted."""
        assert self._before is not None
        model = self._before if arrays is None else self.checked_layout.vector(arrays)
        self._release(self.plan[self._at], model)

    @property
    def checked_layout(self) -> Layout:
        """The layout of the model, once it is known."""
        if self.layout is None:
            raise InputError("the first model was not recorded: pass evaluate_fn=grid.recorder() to start()")
        return self.layout

    def _release(self, current: PlannedRound, model: npt.NDArray[Any]) -> None:
        assert self._before is not None
        rounding = self.checked_layout.rounding(self._before, model)
        with np.errstate(invalid="ignore", over="ignore"):
            change, model = (model - self._before).astype(np.float32), model.astype(np.float32)
        lost = int(np.count_nonzero(~(np.isfinite(change) & np.isfinite(model))))
        self.lost_numbers += lost
        if lost:
            self._note(f"{lost} of {len(change)} parameters are not finite and count as unchanged")
            change, model = finite_part(change)[0], finite_part(model)[0]
            rounding = math.inf
        aborted = not self._planted or not change.any()
        if aborted:
            self._note("the model did not change, so the round counts as aborted")
        for i in self._acting(current):
            if aborted:
                self.audits[i].skip(current.round, current.trial)
            self._show(self.audits[i], current, change, model, rounding)

    def _show(self, audit: Audit, current: PlannedRound, change: Vector, model: Vector, rounding: float) -> None:
        kinds: list[Kind] = ["update"]
        if current.trial is None:
            kinds = [view.kind for view in audit.views if view.shows(current.round, self.rounds)]
        for kind in kinds:
            audit.observe(
                current.round,
                **{kind: np.array(change if kind == "update" else model)},
                trial=current.trial,
                divisor=self._divisor or None,
                rounding=rounding,
            )

    def _acting(self, current: PlannedRound) -> list[int]:
        """Return which audits take part in a round: all, or the one that a frozen round is for."""
        return list(range(len(self.audits))) if current.audit is None else [current.audit]

    def _note(self, sentence: str) -> None:
        current = self.plan[self._at]
        where = f"round {current.round}"
        if current.trial is not None:
            where = f"frozen round {current.trial} before {where}"
        for i in self._acting(current):
            self.audits[i].note(f"{where}: {sentence}")


def _signed(node: int) -> int:
    """Return the id of a node as a signed number: Flower draws unsigned ones of 64 bits, audits keep signed ones."""
    return node - 2**64 if node >= 2**63 else node


def _drawn_by_training(audit: Audit) -> bool:
    """Return whether the strategy draws an audit's canaries from all nodes, so that they are drawn like clients."""
    return isinstance(getattr(audit, "participation", None), Observed)
