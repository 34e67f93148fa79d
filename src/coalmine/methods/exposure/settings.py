"""The exposure audit, as settings."""

from __future__ import annotations

from pydantic import Field

from coalmine.config.settings import Settings


class ExposureSettings(Settings):
    """Losses or ranks of canaries: of a file, or those of the phrases planted in this run."""

    file: str | None = Field(
        None,
        examples=["losses.csv"],
        description="a .csv, .npz or .json with losses or ranks; the phrases of this run if not given",
    )
    references: int | None = Field(
        None, examples=[10_000], ge=1, description="number of references, where the file has ranks"
    )
    calibrate: bool = Field(False, description="subtract the file's column reference_loss")
    copies: int = Field(1, ge=1, description="how often each canary was planted")
    delta: float = Field(0.0, ge=0, lt=1, description="the δ at which the bound is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="of the bound")
