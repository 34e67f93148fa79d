"""Settings of the one-shot audit."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from coalmine.claims.sampling import FORMS, parse_sampling
from coalmine.config import Settings
from coalmine.methods.one_shot.scores import SCORES
from coalmine.methods.one_shot.views import VIEWS, parse_view


def _split_views(value: object) -> object:
    # A comma before a letter starts another view; one before a digit belongs to rounds:3,9.
    return re.split(r",\s*(?=[a-z])", value) if isinstance(value, str) else value


class OneShotSettings(Settings):
    """Random updates as canaries, inserted as extra clients."""

    canaries: int | None = Field(
        None,
        examples=[100],
        ge=1,
        description="expected number of inserted canaries; the same number is held out. By default a quarter of a "
        "round's average, or more if half the noise would go undetected; from 20 to 1,000 (`coalmine plan`)",
    )
    view: Annotated[tuple[str, ...], BeforeValidator(_split_views)] = Field(
        ("final",), description=f"what the adversary sees, one or several: {', '.join(VIEWS)}"
    )
    participation: str = Field("clients", description=f"when canaries take part: clients (like the clients), {FORMS}")
    score: str | None = Field(
        None,
        examples=["cosine"],
        description=f"how canaries are scored: {', '.join(SCORES)}; by default the first that supports the view",
    )
    design: Literal["coin-flips", "fixed"] = Field(
        "coin-flips",
        description="coin-flips (each canary is inserted with probability 1/2) or fixed (exactly `canaries` are)",
    )
    family: Literal["hadamard", "orthogonal", "gaussian"] | None = Field(
        None,
        examples=["gaussian"],
        description="hadamard (orthogonal, fast), orthogonal (small models) or gaussian (independent); by default "
        "chosen by the model's size",
    )
    norm: float | None = Field(
        None,
        examples=[1.0],
        gt=0,
        description="norm of the canaries if nothing is clipped, an upper limit otherwise",
    )
    delta: float = Field(1e-5, ge=0, lt=1, description="δ at which ε is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of bounds and intervals")

    @field_validator("view")
    @classmethod
    def _check_views(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Check views where their line in the file is known."""
        for view in value:
            parse_view(view)
        return value

    @field_validator("participation")
    @classmethod
    def _check_participation(cls, value: str) -> str:
        """Check the participation where its line in the file is known."""
        if value != "clients":
            parse_sampling(value)
        return value
