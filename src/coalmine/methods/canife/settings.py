"""Settings of CANIFE: the table ``[canife]`` of ``audit.toml``."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from coalmine.config.settings import Settings, Several
from coalmine.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from coalmine.methods.canife.audit import Canife
    from coalmine.simulation.data import Splits
    from coalmine.simulation.settings import TrainingSettings

# Fewer mock clients say little about the other clients.
_LEAST_POOL = 16
# More would take hours to design, and interfere with one another.
_MOST_CANARIES = 1000


class CanaryDesignSettings(Settings):
    """How a canary is optimized."""

    iterations: Several[int] | None = Field(
        None,
        examples=[[200]],
        description="maximum number of Adam iterations, by default 200 (mode frozen) or 10 (mode running); one "
        "adversary per value",
    )
    loss: Literal["likelihood-ratio", "covariance", "mean"] = Field(
        "likelihood-ratio", description="likelihood-ratio, covariance (the paper's Loss 2) or mean (Loss 1)"
    )
    start: Literal["random", "pool", "last"] | None = Field(
        None,
        examples=["random"],
        description="what the optimization starts from: random (samples), pool (examples of the mock clients) or "
        "last (the previous canaries); by default random (mode frozen) or last (mode running)",
    )
    target: int | Literal["random"] = Field("random", description="the canary's class: random or a number")
    pixels: Literal["valid", "free"] = Field("valid", description="valid (within the data's range) or free (paper)")


class CanifeSettings(Settings):
    """Canaries crafted for the current model, looked for in single rounds."""

    mode: Literal["frozen", "running"] = Field(
        "frozen", description="frozen (extra rounds on a frozen model) or running (the training's own rounds)"
    )
    every: int | None = Field(
        None,
        examples=[10],
        ge=1,
        description="rounds between two designs of the canaries; mode frozen also estimates ε each time. By default "
        "10 (mode frozen) or 40 (mode running)",
    )
    trials: int | None = Field(
        None,
        examples=[100],
        ge=2,
        description="scores per estimate and canary, each from one frozen round or one round of the training; by "
        "default 100, or all rounds of a shorter training in mode running",
    )
    canaries: int = Field(1, ge=1, le=_MOST_CANARIES, description="canaries at once, each with its own coin flips")
    score: Literal["likelihood-ratio", "plain"] = Field(
        "likelihood-ratio",
        description="direction of the score: likelihood-ratio, or plain (the canary's own, as in the paper)",
    )
    pool_fraction: float = Field(0.2, gt=0, lt=1, description="share of the users set aside as mock clients")
    pool_clients: Several[int] | None = Field(
        None,
        examples=[[16]],
        description="number of mock clients, by default all (mode frozen) or the expected cohort size (mode running); "
        "one adversary per value",
    )
    design: CanaryDesignSettings = Field(default_factory=CanaryDesignSettings, description="how a canary is optimized")
    delta: float = Field(1e-5, ge=0, lt=1, description="δ of all estimates")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of bounds and intervals")

    def audits(self, training: TrainingSettings, splits: Splits, module: nn.Module) -> list[Canife]:
        """Return one audit per adversary: for each size of the pool and each number of iterations."""
        from coalmine.methods.canife.audit import Canife
        from coalmine.methods.canife.design import DesignSettings
        from coalmine.methods.canife.designed_canaries import DesignedCanaries

        assert splits.pool is not None  # pool_fraction is positive
        # Before the first round, the expected cohort is all that is known about who will take part.
        frozen, expected = self.mode == "frozen", training.sampling().expected(len(splits.train), training.rounds, 0)
        # The defaults, or less where the training is too short for them.
        every = self.every or min(10 if frozen else 40, training.rounds)
        trials = self.trials or (100 if frozen else min(100, training.rounds))
        # In mode running, mock clients should cost little compared with the training's own clients.
        most = len(splits.pool)
        pool_sizes = self.pool_clients or (most if frozen else min(most, max(_LEAST_POOL, math.ceil(expected))),)
        mechanism = training.mechanism()
        adversaries = list(itertools.product(pool_sizes, self.design.iterations or ((200,) if frozen else (10,))))
        audits = []
        for index, (size, iterations) in enumerate(adversaries):
            if not 1 <= size <= most:
                raise InputError(f"pool_clients must be between 1 and {most}, got {size}")
            canaries = DesignedCanaries(
                model=module,
                pool=splits.pool.subset(range(size)),
                client=training.client.local(splits.train),
                noise_multiplier=mechanism.update_noise(expected),
                cohort=expected,
                clients=splits.train,
                count=self.canaries,
                score=self.score,
                settings=DesignSettings(loss=self.design.loss, iterations=iterations),
                start=self.design.start or ("random" if frozen else "last"),
                target=self.design.target,
                valid="data" if self.design.pixels == "valid" else None,
                seed=training.seed + index,  # adversaries with the same coins would insert their canaries together
            )
            several = f"{self.mode}, pool {size}, {iterations} iterations"
            audits.append(
                Canife(
                    canaries=canaries,
                    rounds=training.rounds,
                    every=every,
                    trials=trials,
                    mode=self.mode,
                    name=several if len(adversaries) > 1 else None,
                    seed=training.seed + index,
                )
            )
        return audits
