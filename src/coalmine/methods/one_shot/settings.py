"""The one-shot audit, as settings."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, field_validator

from coalmine.config.settings import Settings
from coalmine.errors import InputError
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.one_shot.participation import ACCEPTED, parse_participation
from coalmine.methods.one_shot.views import VIEWS, parse_view
from coalmine.simulation.settings import TrainingSettings


def _views(value: object) -> object:
    # A comma before a letter begins another view; one before a digit belongs to rounds:3,9.
    return re.split(r",\s*(?=[a-z])", value) if isinstance(value, str) else value


class OneShotSettings(Settings):
    """Random updates planted as extra clients."""

    canaries: int | None = Field(
        None,
        examples=[100],
        ge=1,
        description="how many are planted and how many held out, each about so many where coins decide; a tenth of "
        "the clients, but 100 to 1,000, if not given",
    )
    view: Annotated[tuple[str, ...], BeforeValidator(_views)] = Field(
        ("final",), description=f"what adversaries see, one or several: {VIEWS}"
    )
    participation: str = Field("clients", description=f"when canaries take part: clients (as they do), {ACCEPTED}")
    score: str | None = Field(
        None,
        examples=["cosine"],
        description="cosine, max, sum or likelihood-ratio; for the view updates the last, else the first that fits",
    )
    design: Literal["coin-flips", "fixed"] = Field(
        "coin-flips", description="who is planted: coin-flips (a fair coin for each) or fixed (exactly `canaries`)"
    )
    family: Literal["hadamard", "gaussian"] | None = Field(
        None,
        examples=["gaussian"],
        description="how canaries are made: hadamard or gaussian; by the model's size if not given",
    )
    norm: float | None = Field(
        None,
        examples=[1.0],
        gt=0,
        description="their length where nothing is clipped, their largest where something is",
    )
    delta: float = Field(1e-5, ge=0, lt=1, description="the δ at which ε is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="of bounds and intervals")

    @field_validator("view")
    @classmethod
    def _views_there_are(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse here, where its line is known, what could not be read later."""
        for view in value:
            parse_view(view)
        return value

    @field_validator("participation")
    @classmethod
    def _participation_there_is(cls, value: str) -> str:
        """As above."""
        if value != "clients":
            parse_participation(value)
        return value

    def audits(self, training: TrainingSettings, initial: npt.ArrayLike, population: int) -> list[OneShot]:
        """The audits of such a training, one a view, whose model starts as ``initial``."""
        if training.clip_norm == "none" and self.norm is None:
            raise InputError("nothing is clipped, so canaries have no length to take: give norm=")
        start = np.asarray(initial, dtype=np.float32)
        first, *others = self.view
        audit = OneShot(
            dim=start.size,
            rounds=training.rounds,
            canaries=min(1000, max(100, population // 10)) if self.canaries is None else self.canaries,
            view=first,
            participation=self._participation(training, population),
            score=self._score(first),
            design=self.design,
            family=self.family,
            initial=start if _compares(first) else None,
            norm=self.norm,
            seed=training.seed,
        )
        return [audit] + [
            audit.seen_by(view, score=self._score(view), initial=start if _compares(view) else None) for view in others
        ]

    def _score(self, view: str) -> str | None:
        """Where there are several views, the score is for those that see several releases."""
        return None if len(self.view) > 1 and view.startswith("final") else self.score

    def _participation(self, training: TrainingSettings, population: int) -> str:
        training.cohorts()  # refuses what is no cohort
        if self.participation != "clients":
            return self.participation
        kind, _, rest = training.cohort.partition(":")
        match kind:
            case "poisson":
                return training.cohort
            case "fixed":
                return f"fixed:{int(rest) / population!r}"
            case "epoch" if training.rounds % int(rest) == 0:
                return f"epochs:{training.rounds // int(rest)}"
        raise InputError(
            f"canaries cannot take part as clients do where the cohort is {training.cohort} and there are "
            f"{training.rounds} rounds: choose participation={ACCEPTED}"
        )


def _compares(view: str) -> bool:
    return parse_view(view).kind == "model" and view != "final"
