"""What a method does in a run: what it changes in the data, which audits it adds, what it finds in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coalmine.config import Settings
from coalmine.protocol import Audit
from coalmine.results.result import MethodResults

if TYPE_CHECKING:
    from torch import nn

    from coalmine.simulation.data import Splits
    from coalmine.simulation.rounds import Rounds
    from coalmine.simulation.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What a method is given to build its job from.

    Args:
        settings: The method's own settings.
        training: Settings of the training it audits, or None if it needs none.
        directory: The run directory, or None if nothing is to be kept.
        jobs: Jobs of the run's earlier methods, by name.
    """

    settings: Any
    training: TrainingSettings | None = None
    directory: Path | None = None
    jobs: Mapping[str, Job] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """Settings of training and method, as results record them."""
        tables: tuple[Settings | None, ...] = (self.training, self.settings)
        return {key: value for table in tables if table is not None for key, value in table.to_dict().items()}


class Job(ABC):
    """One method's part in a run. The calls below are made in this order."""

    pool_fraction: float = 0.0
    """Share of the users to set aside from the training, as a pool."""

    needs_training: bool = True
    """Whether the training has to be run; False where a finished model is audited."""

    reads: Sequence[str] = ()
    """Names of earlier methods of the run whose jobs this one reads from."""

    def insert(self, splits: Splits) -> Splits:
        """Return the data with the canaries that live in it."""
        return splits

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """Return the audits that take part in the training."""
        return ()

    def build_training(self, splits: Splits, module: nn.Module, audits: Sequence[Audit] = ()) -> Rounds | None:
        """Return the training, if the method needs one that differs from what the training's settings describe."""
        return None

    @abstractmethod
    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return the results after the training.

        Args:
            trained: The finished training, or None if the method needs none.
            metrics: Quality of the final model, to be kept with the results.
        """

    def write(self, directory: Path) -> None:  # noqa: B027 (most methods need nothing more)
        """Write files that the results do not cover, such as weights needed to ask the model again."""
