"""Settings of the exposure method."""

from __future__ import annotations

from pydantic import Field

from coalmine.config.settings import Settings


class ExposureSettings(Settings):
    """Losses or ranks of canaries from a file, or the losses of the phrases inserted in this run."""

    file: str | None = Field(
        None,
        examples=["losses.csv"],
        description="a .csv, .npz or .json file with losses or ranks; the phrases of [secret-sharer] if not given",
    )
    references: int | None = Field(
        None, examples=[10_000], ge=1, description="number of references, if the file has ranks"
    )
    calibrate: bool = Field(False, description="subtract the file's column reference_loss")
    copies: int = Field(1, ge=1, description="number of times that each canary was inserted")
    delta: float = Field(0.0, ge=0, lt=1, description="the δ at which the lower bound is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of the lower bound")
