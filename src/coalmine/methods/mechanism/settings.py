"""Settings of the audit of a single mechanism."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coalmine import claims
from coalmine.claims.sampling import EveryRound
from coalmine.config import SettingError, Settings
from coalmine.methods.mechanism.audit import MechanismFunction, gaussian_mechanism
from coalmine.usercode import load_function


class MechanismSettings(Settings):
    """One application of a mechanism to a sum of canaries."""

    noise_multiplier: float | None = Field(
        None,
        examples=[1.0],
        ge=0,
        description="audit the Gaussian mechanism with this noise multiplier; with function, its claimed noise "
        "multiplier, which takes far less evidence to refute than claim",
    )
    function: str | None = Field(
        None,
        examples=["mine.py:noisy_sum"],
        description="audit your own mechanism instead: path.py:function, from a sum of updates of norm at most 1 to "
        "what is released",
    )
    dim: int = Field(1_000_000, ge=2, description="number of coordinates")
    canaries: int = Field(1000, ge=1, description="number of canaries in the sum; the same number is held out")
    claim: float | None = Field(
        None, examples=[2.0], ge=0, description="claimed ε at delta; by default that of noise_multiplier"
    )
    calls: int | None = Field(
        None,
        examples=[400],
        ge=0,
        description="number of further calls that look for bugs of the noise; 0 for none, by default chosen by dim",
    )
    clients: int | None = Field(
        None,
        examples=[20],
        ge=1,
        description="the function takes a list of so many clients, each an array of dim numbers, instead of their sum; "
        "it is also replayed with and without one client",
    )
    clip_norm: float = Field(1.0, gt=0, description="claimed clip norm, with clients")
    norm: Literal["l2", "l1"] = Field(
        "l2", description="which norm of updates is limited: l2, or l1 as for Laplace noise"
    )
    delta: float = Field(1e-5, ge=0, lt=1, description="δ at which ε is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of bounds and intervals")
    seed: int = Field(0, ge=0, lt=2**63, description="seed for canaries and noise")

    def mechanism(self) -> MechanismFunction:
        """Return the mechanism to audit.

        Raises:
            SettingError: If neither ``noise_multiplier`` nor ``function`` is set.
        """
        self.check_choice()
        if self.function is not None:
            return load_function(self.function, "mechanism")
        assert self.noise_multiplier is not None
        return gaussian_mechanism(self.noise_multiplier, self.seed)

    def check_choice(self) -> None:
        """Raise if no mechanism is named, or a function has two claims."""
        if self.noise_multiplier is None and self.function is None:
            raise SettingError(
                "noise_multiplier or function (path.py:function) must be set: there is nothing to audit",
                ["mechanism", "noise_multiplier"],
            )
        if self.function is not None and self.noise_multiplier is not None and self.claim is not None:
            raise SettingError(
                f"the function is claimed to have ε = {self.claim:g} and a noise multiplier of "
                f"{self.noise_multiplier:g}: set claim or noise_multiplier",
                ["mechanism", "claim"],
            )
        if self.clients is not None and self.function is None:
            raise SettingError("clients go with function, your own mechanism", ["mechanism", "clients"])

    def stated_claim(self) -> claims.Claim | None:
        """Return the claimed guarantee, or None if there is none."""
        if self.claim is not None:
            return claims.Claim(epsilon=self.claim, delta=self.delta)
        if not self.noise_multiplier:
            return None
        return claims.Claim(noise_multiplier=self.noise_multiplier, sampling=EveryRound(), rounds=1, delta=self.delta)
