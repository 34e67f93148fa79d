"""The audits' side of a Flower training: which round it is, who is due, what was released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord

from coalmine.errors import InputError, check_kind
from coalmine.integrations.flower.arrays import Layout
from coalmine.methods.one_shot.participation import ObservedParticipation
from coalmine.protocol import Audit, Contribution, Release


@dataclass(frozen=True)
class Place:
    """What one of Flower's rounds is to the audits: round ``round``, or the frozen round ``trial`` of one ``audit``."""

    round: int
    trial: int | None = None
    audit: int | None = None


class Course:
    """Leads ``audits`` through a Flower training, round by round: planted once, and recorded once."""

    def __init__(self, audits: Sequence[Audit]) -> None:
        if not audits:
            raise InputError("there is no audit: give OneShot(...) or Canife(...)")
        for audit in audits:
            check_kind("an audit", audit, Audit, "such as OneShot(...) or Canife(...)")
        rounds = {int(getattr(audit, "rounds", 0)) for audit in audits}
        if len(rounds) > 1:
            raise InputError(f"audits of one training have the same number of rounds, got {sorted(rounds)}")
        planting = [audit.plants_as for audit in audits if audit.plants_as is not None]
        if len(set(planting)) < len(planting):
            raise InputError(f"two audits plant the same ({planting[0]}): give them different seeds")
        self.audits, self.rounds = tuple(audits), rounds.pop()
        self.places = tuple(self._places())
        self.layout: Layout | None = None
        self._before: npt.NDArray[Any] | None = None
        self._at, self._planted, self._divisor = 0, False, 0.0

    def _places(self) -> list[Place]:
        found = []
        for round in range(self.rounds):
            for index, audit in enumerate(self.audits):
                found += [Place(round, trial, index) for trial in range(audit.frozen_rounds(round))]
            found.append(Place(round))
        return found

    @property
    def place(self) -> Place | None:
        """Where the training is: None between a round's training and its record, and when it is over."""
        return None if self._planted or self._at >= len(self.places) else self.places[self._at]

    def due(self) -> list[tuple[int, int]]:
        """(audit, seat) of all canaries that this round may have, planted and held out.

        In a frozen round of one audit those of the others are there too, and held out: a round has as many nodes.
        """
        place = self.place
        if place is None:
            return []
        trials = [place.trial if i in self._acting(place) else None for i in range(len(self.audits))]
        return [(i, seat) for i, trial in enumerate(trials) for seat in self.audits[i].seats(place.round, trial)]

    def drew(self, nodes: int, listed: int) -> None:
        """The strategy takes ``nodes`` of the ``listed``: a larger share than declared is accounted as it is."""
        for audit in self.audits:
            rule = getattr(audit, "participation", None)
            if isinstance(rule, ObservedParticipation) and rule.drew(nodes, listed):
                audit.note(
                    f"round {self.places[self._at].round}: {nodes} of {listed} nodes were drawn, a larger share than "
                    f"the {rule.size} of {rule.population} that was declared; the promise is for the former"
                )

    def plant(self, chosen: Mapping[int, Sequence[int]], clip_norm: float) -> dict[int, Contribution]:
        """What each audit plants, where the training chose these seats of each."""
        place = self.place
        if place is None:
            raise InputError("this round was planted already, or is one too many: give evaluate_fn=grid.recorder()")
        found = {}
        for i in self._acting(place):
            self.audits[i].took_part(place.round, chosen.get(i, ()), place.trial)
            planted = self.audits[i].plant(place.round, clip_norm=clip_norm, trial=place.trial)
            if planted is not None:
                found[i] = planted
        self._planted = True
        return found

    def answered(self, replies: int, missing: int, failed: int, reason: str) -> None:
        """``replies`` nodes sent an update, ``missing`` never answered, and ``failed`` sent an error."""
        self._divisor = float(replies)
        if missing:
            self._note(f"{missing} of {replies + missing + failed} nodes never answered")
        if failed:
            self._note(f"{failed} of {replies + missing + failed} nodes failed ({reason:.80})")

    def begin(self, arrays: ArrayRecord) -> None:
        """The model before the first round."""
        self.layout = Layout.of(arrays)
        for audit in self.audits:
            dim = getattr(audit, "dim", self.layout.dim)
            if dim != self.layout.dim:
                raise InputError(f"the audit is for {dim} parameters, the model has {self.layout.dim}")
        self._before = self.layout.vector(arrays)

    def record(self, arrays: ArrayRecord) -> Place:
        """The model after a round: show each audit what its views see of it. A frozen round moves nothing."""
        if self._at >= len(self.places):
            raise InputError(f"the audits were made for {self.rounds} rounds, and there are more")
        place = self.places[self._at]
        if place.trial is None:
            model = self._vector(arrays)
            self._release(place, model)
            self._before = model
        self._at, self._planted, self._divisor = self._at + 1, False, 0.0
        return place

    def record_frozen(self, arrays: ArrayRecord | None) -> None:
        """What a frozen round would have made of the model."""
        place = self.places[self._at]
        assert self._before is not None
        self._release(place, self._before if arrays is None else self._vector(arrays))

    def _vector(self, arrays: ArrayRecord) -> npt.NDArray[Any]:
        if self.layout is None:
            raise InputError("the first model was not recorded: give evaluate_fn=grid.recorder() to start()")
        return self.layout.vector(arrays)

    def _release(self, place: Place, model: npt.NDArray[Any]) -> None:
        assert self._before is not None
        with np.errstate(invalid="ignore", over="ignore"):
            change, model = (model - self._before).astype(np.float32), model.astype(np.float32)
        lost = int(np.count_nonzero(~(np.isfinite(change) & np.isfinite(model))))
        if lost:
            # What is done to a release after it is out is no more than an adversary may do: bounds hold.
            self._note(f"{lost} of {len(change)} numbers of the model are not finite, and count as not moved")
            change = np.where(np.isfinite(change), change, np.float32(0))
            model = np.where(np.isfinite(model), model, np.float32(0))
        nothing = not self._planted or not change.any()
        if nothing:
            self._note("the model did not move, so nothing of it can be seen")
        for i in self._acting(place):
            if nothing:
                self.audits[i].skip(place.round, place.trial)
            self._show(self.audits[i], place, change, model, moved=not nothing)

    def _show(self, audit: Audit, place: Place, change: Any, model: Any, *, moved: bool) -> None:
        if place.trial is not None:
            kinds = ["update"] if moved else []
        else:
            kinds = [view.kind for view in audit.views if view.shows(place.round, self.rounds)]
            if getattr(audit, "mode", None) == "running" and not moved:
                kinds = [kind for kind in kinds if kind == "model"]
        for kind in kinds:
            vector = change if kind == "update" else model
            audit.observe(
                Release(
                    round=place.round,
                    kind="update" if kind == "update" else "model",
                    vector=np.array(vector),
                    trial=place.trial,
                    divisor=self._divisor or None,
                )
            )

    def _acting(self, place: Place) -> list[int]:
        return list(range(len(self.audits))) if place.audit is None else [place.audit]

    def _note(self, sentence: str) -> None:
        place = self.places[self._at]
        where = f"round {place.round}" if place.trial is None else f"frozen round {place.trial} before {place.round}"
        for i in self._acting(place):
            self.audits[i].note(f"{where}: {sentence}")
