"""The audit of a single application of a mechanism in a run. It needs no training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from coalmine.claims import Claim
from coalmine.claims.sampling import EveryRound
from coalmine.config import SettingError, Settings
from coalmine.errors import InputError
from coalmine.methods.mechanism.audit import check_mechanism, gaussian_mechanism, judged
from coalmine.methods.method import Method
from coalmine.results.result import MethodResults, Result
from coalmine.results.verdict import APPLICATION, Finding
from coalmine.usercode import load_function

if TYPE_CHECKING:
    from coalmine.simulation.rounds import Rounds


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

    def check_choice(self) -> None:
        """Raise if no mechanism is named, or a function has two claims."""
        # Without a function, noise_multiplier is the mechanism itself; with one, it is what the function claims.
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


class MechanismMethod(Method):
    """Applies a mechanism to canaries and returns one result."""

    name = "mechanism"
    title = "One application of a mechanism"
    question = "Does a mechanism satisfy its claimed ε when applied once, as a black box?"
    description = (
        "Random unit vectors were summed and the sum went through the mechanism once; others were held out. In high "
        "dimensions random directions are nearly orthogonal, so the cosine of a canary with the output shows how much "
        "of it the noise leaves visible. ε is about one update of norm 1 in one application, not a whole training."
    )
    reference = "Andrew et al. 2023, Section 3"
    unit = APPLICATION
    settings_type = MechanismSettings
    options = tuple(MechanismSettings.model_fields)
    init: ClassVar[Mapping[str, Any]] = {"noise_multiplier": 1.0, "dim": 100_000}

    settings: MechanismSettings

    def prepare(self) -> None:
        """Load the mechanism."""
        settings = self.settings
        settings.check_choice()
        # A function that cannot be loaded is refused before other methods of the run train.
        if settings.function is None:
            self._mechanism = gaussian_mechanism(settings.noise_multiplier or 0.0, settings.seed)
        else:
            self._mechanism = load_function(settings.function, "mechanism")

    @classmethod
    def check(cls, run: Any) -> None:
        """Raise if no mechanism is named, or a function has two claims."""
        run.methods["mechanism"].check_choice()

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return the result."""
        settings = self.settings
        claim = None
        if settings.claim is not None:
            claim = Claim(epsilon=settings.claim, delta=settings.delta)
        elif settings.noise_multiplier:
            # One application of Gaussian noise, whose whole privacy curve is then tested instead of one (ε, δ).
            sigma = settings.noise_multiplier
            claim = Claim(noise_multiplier=sigma, sampling=EveryRound(), rounds=1, delta=settings.delta)
        result = check_mechanism(
            self._mechanism,
            dim=settings.dim,
            canaries=settings.canaries,
            delta=settings.delta,
            confidence=settings.confidence,
            claim=claim,
            calls=settings.calls,
            clients=settings.clients,
            clip_norm=settings.clip_norm,
            norm=settings.norm,
            seed=settings.seed,
        )
        return MethodResults(method=self.name, results=[replace(result, config=self.config | dict(result.config))])

    @classmethod
    def judged(cls, result: Result, statistics: Any) -> tuple[Sequence[str], Sequence[Finding]]:
        """Return the checks of a mechanism and what they found."""
        if statistics is None:
            raise InputError("what its checks counted is not stored")
        return judged(statistics, result.claim)
