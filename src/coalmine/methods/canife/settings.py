"""Settings of CANIFE: the table ``[canife]`` of ``audit.toml``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from coalmine.config.settings import Settings, Several
from coalmine.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from coalmine.methods.canife.audit import Canife
    from coalmine.methods.canife.design import DesignSettings
    from coalmine.methods.canife.samples import Target
    from coalmine.simulation.data import FederatedData, Splits
    from coalmine.simulation.settings import TrainingSettings

# Fewer mock clients say little about the other clients.
_LEAST_POOL = 16
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
    norm_constant: float = Field(1.0, ge=0, description="norm that a canary's update should reach, in clip norms")
    learning_rate: float | None = Field(
        None, examples=[0.1], gt=0, description="learning rate of Adam; by default one that suits the kind of data"
    )
    schedule: Literal["cosine", "constant"] | None = Field(
        None,
        examples=["cosine"],
        description="learning-rate schedule: cosine or constant; by default cosine for numbers, constant for texts",
    )
    start: Literal["random", "pool", "last"] | None = Field(
        None,
        examples=["random"],
        description="what the optimization starts from: random (samples), pool (examples of the mock clients) or "
        "last (the previous canaries); by default random (mode frozen) or last (mode running)",
    )
    target: str = Field("random", description="the canary's class: random, best or a number")
    pixels: Literal["valid", "free"] = Field("valid", description="valid (within the data's range) or free (paper)")

    def settings(self, iterations: int) -> DesignSettings:
        """Return these settings as `DesignSettings`."""
        from coalmine.methods.canife.design import DesignSettings

        return DesignSettings(
            loss=self.loss,
            norm_constant=self.norm_constant,
            iterations=iterations,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
        )

    def target_class(self) -> Target:
        """Return the target as the design takes it."""
        match self.target:
            case "random":
                return "random"
            case "best":
                return "best"
        try:
            return int(self.target)
        except ValueError:
            raise InputError(
                f"design.target must be random, best or the number of a class, got {self.target!r}"
            ) from None


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
    canaries: int = Field(1, ge=1, description="canaries at once, each with its own coin flips")
    score: Literal["likelihood-ratio", "plain"] = Field(
        "likelihood-ratio",
        description="direction of the score: likelihood-ratio, or plain (the canary's own, as in the paper)",
    )
    pool_fraction: float = Field(0.2, gt=0, lt=1, description="share of the users set aside as mock clients")
    pool_data: Several[str] = Field(
        ("own",),
        description="data of the mock clients: own (users set aside), or other data by name or file; one adversary "
        "per value",
    )
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
        """Return one audit per adversary: for each pool, each size of it and each number of iterations."""
        from coalmine.methods.canife.audit import Canife
        from coalmine.methods.canife.designed_canaries import DesignedCanaries

        if self.canaries > _MOST_CANARIES:
            raise InputError(
                f"canaries must be at most {_MOST_CANARIES:,}, since each is designed by itself, got {self.canaries:,}"
            )
        frozen, expected = self.mode == "frozen", training.sampling().expected(len(splits.train), training.rounds, 0)
        # The defaults, or less where the training is too short for them.
        every = min(10 if frozen else 40, training.rounds) if self.every is None else self.every
        trials = (100 if frozen else min(100, training.rounds)) if self.trials is None else self.trials
        mechanism = training.mechanism()
        adversaries = [
            (f"pool {_pool_name(data)}{len(pool)}, {iterations} iterations", pool, iterations)
            for data in self.pool_data
            for pool in self._pools(data, splits, expected)
            for iterations in self.design.iterations or ((200,) if frozen else (10,))
        ]
        audits = []
        for index, (name, pool, iterations) in enumerate(adversaries):
            canaries = DesignedCanaries(
                model=module,
                pool=pool,
                client=training.client.local(splits.train),
                noise_multiplier=mechanism.update_noise(expected),
                cohort=expected,
                clients=splits.train,
                count=self.canaries,
                score=self.score,
                settings=self.design.settings(iterations),
                start=self.design.start or ("random" if frozen else "last"),
                target=self.design.target_class(),
                valid="data" if self.design.pixels == "valid" else None,
                seed=training.seed + index,
            )
            audits.append(
                Canife(
                    canaries=canaries,
                    rounds=training.rounds,
                    every=every,
                    trials=trials,
                    mode=self.mode,
                    name=f"{self.mode}, {name}" if len(adversaries) > 1 else None,
                    seed=training.seed + index,
                )
            )
        return audits

    def _pools(self, data: str, splits: Splits, expected: float) -> list[FederatedData]:
        """Return the mock clients with this data, in each of the requested numbers."""
        if data == "own":
            if splits.pool is None:
                raise InputError("no users are set aside as mock clients: raise pool_fraction")
            whole = splits.pool
        else:
            whole = _other_data(data, splits.train)
        # In mode running, mock clients should cost little compared with the training's own clients.
        default = len(whole) if self.mode == "frozen" else min(len(whole), max(_LEAST_POOL, math.ceil(expected)))
        sizes = [default] if self.pool_clients is None else list(self.pool_clients)
        for size in sizes:
            if not 1 <= size <= len(whole):
                raise InputError(f"pool_clients must be between 1 and {len(whole)}, got {size}")
        return [whole.subset(range(size)) for size in sizes]


def _pool_name(data: str) -> str:
    return "" if data == "own" else f"{Path(data).stem} "


def _other_data(name: str, clients: FederatedData) -> FederatedData:
    """Load data for mock clients; it must have the shape, classes and vocabulary of the training's."""
    from coalmine.simulation.data import load

    data = load(name).train
    if data.task != clients.task:
        raise InputError(f"pool_data {name} must have the task of the training's data, {clients.task}, got {data.task}")
    if clients.task.tokens is not None and data.vocabulary != clients.vocabulary:
        raise InputError(
            f"pool_data {name} must have the vocabulary of the training's data: otherwise tokens mean different words"
        )
    return data
