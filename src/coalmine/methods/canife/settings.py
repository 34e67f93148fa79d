"""CANIFE, as settings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from coalmine.config.settings import Settings, Several
from coalmine.errors import InputError, check_probability
from coalmine.simulation.settings import TrainingSettings

if TYPE_CHECKING:
    from torch import nn

    from coalmine.methods.canife.audit import Canife
    from coalmine.methods.canife.design import DesignSettings
    from coalmine.methods.canife.design_loss import Loss
    from coalmine.methods.canife.design_samples import Target
    from coalmine.simulation.data import FederatedData, Splits
    from coalmine.simulation.mechanisms.central import Weighting


# Fewer mock clients say little about the others.
_LEAST_POOL = 16
_MOST_CANARIES = 1000


class CanaryDesignSettings(Settings):
    """How a canary is optimized."""

    iterations: Several[int] | None = Field(
        None,
        examples=[[200]],
        description="of Adam, at most; 200 if not given, 10 if running; several make several adversaries",
    )
    loss: Literal["likelihood-ratio", "covariance", "mean"] = Field(
        "likelihood-ratio", description="likelihood-ratio, covariance (the paper's Loss 2) or mean (Loss 1)"
    )
    norm_constant: float = Field(1.0, ge=0, description="length that a canary's update should reach, in clip norms")
    learning_rate: float | None = Field(
        None, examples=[0.1], gt=0, description="of Adam; what suits images or texts if not given"
    )
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of the learning rate: cosine or constant")
    start: Literal["random", "pool", "last"] | None = Field(
        None,
        examples=["random"],
        description="random, pool (its examples) or last (canaries); random if not given, last if running",
    )
    target: str = Field("random", description="the canary's class: random, best or a number")
    pixels: Literal["valid", "free"] = Field("valid", description="within the data's range, or free as in the paper")

    def settings(self, iterations: int) -> DesignSettings:
        """As the designer takes them."""
        from coalmine.methods.canife.design import DesignSettings

        return DesignSettings(
            loss=self._loss(),
            norm_constant=self.norm_constant,
            iterations=iterations,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
        )

    def _loss(self) -> Loss:
        from coalmine.methods.canife.design_loss import CovarianceLoss, LikelihoodRatioLoss, MeanLoss

        match self.loss:
            case "mean":
                return MeanLoss()
            case "covariance":
                return CovarianceLoss()
        return LikelihoodRatioLoss()

    def class_of(self) -> Target:
        """The target, read."""
        match self.target:
            case "random":
                return "random"
            case "best":
                return "best"
        try:
            return int(self.target)
        except ValueError:
            raise InputError(f"design.target must be random, best or a class's number, got {self.target!r}") from None


class CanifeSettings(Settings):
    """Canaries crafted for the current model, looked for in single rounds."""

    mode: Literal["frozen", "running"] = Field(
        "frozen", description="frozen (rounds held on a frozen model) or running (the training's own rounds)"
    )
    every: int | None = Field(
        None,
        examples=[10],
        ge=1,
        description="rounds from one design (frozen: and estimate) to the next; 10 if not given, 40 if running",
    )
    trials: int | None = Field(
        None,
        examples=[100],
        ge=2,
        description="scores an estimate and canary: frozen rounds, or rounds of the training; 100 if not given",
    )
    canaries: int = Field(1, ge=1, description="how many at once, each with its own coin")
    score: Literal["likelihood-ratio", "plain"] = Field(
        "likelihood-ratio", description="direction: likelihood-ratio, or plain (the canary's own, as in the paper)"
    )
    pool_fraction: float = Field(0.2, ge=0, lt=1, description="share of the users set aside as mock clients")
    pool_data: Several[str] = Field(
        ("own",),
        description="whose data mock clients have: own (users set aside), or others', by name or file; "
        "several make several adversaries",
    )
    pool_clients: Several[int] | None = Field(
        None,
        examples=[[16]],
        description="only so many mock clients; all if not given, if running as many as a round expects; several "
        "numbers make several adversaries",
    )
    design: CanaryDesignSettings = Field(default_factory=CanaryDesignSettings, description="how a canary is optimized")
    delta: float = Field(1e-5, ge=0, lt=1, description="the δ of all figures")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="of bounds and intervals")

    def check_pool(self) -> None:
        """Refuse a share of users that is none."""
        check_probability("pool_fraction", self.pool_fraction)

    def audits(self, training: TrainingSettings, splits: Splits, module: nn.Module) -> list[Canife]:
        """One audit for each adversary: for each pool, each size of it and each number of iterations."""
        from coalmine.methods.canife.audit import Canife
        from coalmine.methods.canife.designed import DesignedCanaries

        if self.canaries > _MOST_CANARIES:
            raise InputError(
                f"canaries must be at most {_MOST_CANARIES:,}, since each is designed by itself, got {self.canaries:,}"
            )
        frozen, expected = self.mode == "frozen", training.cohorts().expected(len(splits.train), 0)
        # Not given, they are what is usual, or what so short a training has room for.
        every = min(10 if frozen else 40, training.rounds) if self.every is None else self.every
        trials = (100 if frozen else min(100, training.rounds)) if self.trials is None else self.trials
        mechanism = training.mechanism()
        adversaries = [
            (
                f"pool {'' if name == 'own' else f'{Path(name).stem} '}{len(pool)}, {iterations} iterations",
                pool,
                iterations,
            )
            for name in self.pool_data
            for pool in self._pools(name, splits, expected)
            for iterations in self.design.iterations or ((200,) if frozen else (10,))
        ]
        found = []
        for index, (named, pool, iterations) in enumerate(adversaries):
            maker = DesignedCanaries(
                model=module,
                pool=pool,
                client=training.client.local(),
                noise_multiplier=mechanism.update_noise(expected),
                cohort=expected,
                clients=splits.train,
                count=self.canaries,
                score=self.score,
                settings=self.design.settings(iterations),
                start=self.design.start or ("random" if frozen else "last"),
                target=self.design.class_of(),
                valid="data" if self.design.pixels == "valid" else None,
                weighting=_capped(mechanism.weighting, splits.train),
                seed=training.seed + index,
            )
            found.append(
                Canife(
                    canaries=maker,
                    rounds=training.rounds,
                    every=every,
                    trials=trials,
                    mode=self.mode,
                    name=f"{self.mode}, {named}" if len(adversaries) > 1 else None,
                    seed=training.seed + index,
                )
            )
        return found

    def _pools(self, name: str, splits: Splits, expected: float) -> list[FederatedData]:
        """The mock clients of ``pool_data`` ``name``, in each of the numbers asked for."""
        if name == "own":
            if splits.pool is None:
                raise InputError("there are no users set aside as mock clients: raise pool_fraction")
            whole = splits.pool
        else:
            whole = _others(name, splits.train)
        # Running, mock clients' updates shall cost little beside those of the training's own clients.
        few = len(whole) if self.mode == "frozen" else min(len(whole), max(_LEAST_POOL, math.ceil(expected)))
        sizes = [few] if self.pool_clients is None else list(self.pool_clients)
        for size in sizes:
            if not 1 <= size <= len(whole):
                raise InputError(f"pool_clients must be between 1 and {len(whole)}, got {size}")
        return [whole.subset(range(size)) for size in sizes]


def _others(name: str, clients: FederatedData) -> FederatedData:
    """Other people's data for mock clients, of the same shape and with the same classes."""
    from coalmine.simulation.data import load

    found = load(name).train
    if found.task != clients.task:
        raise InputError(
            f"pool_data {name} must have the task of the training's data, {clients.task}, got {found.task}"
        )
    if clients.task.tokens is not None and found.vocabulary != clients.vocabulary:
        raise InputError(
            f"pool_data {name} has another vocabulary than the training's data: its tokens mean other words"
        )
    return found


def _capped(weighting: Weighting, clients: FederatedData) -> Weighting:
    """The weighting with the cap that it has for ``clients``, which mock clients are weighed by as well."""
    from coalmine.simulation import WeightsBySize

    return WeightsBySize(int(clients.sizes.max())) if weighting == WeightsBySize(None) else weighting
