"""One path of Flower's differential privacy at a time, put to the test by the audits as they are."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy

from coalmine import AuditResult, Canife, OneShot
from coalmine.integrations.flower.arrays import Layout
from coalmine.integrations.flower.frozen import FrozenRounds
from coalmine.integrations.flower.grid import CanaryGrid
from coalmine.integrations.flower.local import LocalGrid
from coalmine.methods.canife.canaries import GivenUpdates

Arrays = Mapping[str, npt.NDArray[Any]]

CLIP = 0.5
"""The clip norm of all settings."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training to audit: ``model``, what each of its clients sends (``updates``), and how canaries come to it.

    ``honest`` are the clients' updates as arrays by key, one mapping a client; ``mods`` are the ClientApp's,
    through which canaries pass too; ``odd`` is a mod for canaries alone, which makes their replies unlike others.
    """

    model: Arrays
    honest: Sequence[Arrays]
    mods: Sequence[Any] = ()
    odd: Sequence[Any] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    silent: Callable[[int], bool] = lambda partition: False
    length: float = 2.0

    def grid(self) -> LocalGrid:
        """Its real nodes."""
        app = ClientApp(mods=list(self.mods))

        @app.train()
        def train(message: Message, context: Any) -> Message | None:
            partition = int(context.node_config["partition-id"])
            if self.silent(partition):
                return None
            name, before = next(iter(message.content.array_records.items()))
            update = self.honest[partition]
            after = {
                key: Array(np.asarray((array.numpy() + update[key]).astype(array.dtype))) if key in update else array
                for key, array in before.items()
            }
            metrics = MetricRecord({"num-examples": 1})
            return Message(RecordDict({name: ArrayRecord(after), "metrics": metrics}), reply_to=message)

        return LocalGrid(app, nodes=len(self.honest))

    def record(self) -> ArrayRecord:
        """The first model."""
        return ArrayRecord({key: Array(np.asarray(value)) for key, value in self.model.items()})


def one_shot(
    setting: Setting, strategy: Strategy, *, rounds: int, canaries: int, delta: float, confidence: float, seed: int = 0
) -> AuditResult:
    """A whole training, with random canaries in every round, seen round by round."""
    audit = OneShot(
        dim=Layout.of(setting.record()).dim,
        rounds=rounds,
        canaries=canaries,
        view="updates",
        participation="every-round",
        design="fixed",
        seed=seed,
    )
    grid = _canary_grid(setting, audit, strategy)
    with seeded(seed):
        strategy.start(grid=grid, initial_arrays=setting.record(), num_rounds=grid.rounds, evaluate_fn=grid.recorder())
    return audit.result(delta=delta, confidence=confidence)


def one_round(
    setting: Setting,
    strategy: Strategy,
    *,
    canary: npt.ArrayLike,
    trials: int,
    delta: float,
    confidence: float,
    seed: int = 0,
) -> AuditResult:
    """The first round again and again, with one given canary in it or not, by a coin."""
    audit = Canife(canaries=GivenUpdates(canary), rounds=1, every=1, trials=trials, seed=seed)
    grid = _canary_grid(setting, audit, strategy)
    frozen = FrozenRounds(strategy, grid)
    with seeded(seed):
        frozen.start(grid=grid, initial_arrays=setting.record(), num_rounds=grid.rounds, evaluate_fn=grid.recorder())
    return audit.result(delta=delta, confidence=confidence)


def some_rounds(setting: Setting, strategy: Strategy, *, canary: npt.ArrayLike, rounds: int) -> None:
    """A few rounds with the canary in some of them, to see what the strategy does."""
    audit = Canife(canaries=GivenUpdates(canary), rounds=rounds, every=rounds, trials=rounds, mode="running")
    grid = _canary_grid(setting, audit, strategy)
    with seeded(0):
        strategy.start(grid=grid, initial_arrays=setting.record(), num_rounds=rounds, evaluate_fn=grid.recorder())


def _canary_grid(setting: Setting, audit: Any, strategy: Strategy) -> CanaryGrid:
    return CanaryGrid(
        setting.grid(),
        audit,
        clip_norm=lambda: float(getattr(strategy, "clipping_norm", CLIP)),
        length=setting.length,
        mods=[*setting.mods, *setting.odd],
        metrics=setting.metrics,
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Flower draws from global generators, and logs every clipped reply: seeded and quiet while this lasts."""
    logger, level = logging.getLogger("flwr"), logging.getLogger("flwr").level
    states = random.getstate(), np.random.get_state()
    logger.setLevel(logging.CRITICAL)
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        logger.setLevel(level)
        random.setstate(states[0])
        np.random.set_state(states[1])


def fed_avg(kind: Any = FedAvg, **settings: Any) -> Any:
    """A strategy of Flower's that takes all nodes it finds, waits for none, and evaluates nothing."""
    return kind(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **settings)


def random_updates(model: Arrays, count: int, norm: float, seed: int = 1) -> list[Arrays]:
    """Updates of ``count`` clients, each of length ``norm`` in a direction of its own."""
    rng = np.random.default_rng(seed)
    found: list[Arrays] = []
    for _ in range(count):
        update = {key: rng.normal(size=value.shape) for key, value in model.items() if value.dtype.kind == "f"}
        length = np.sqrt(sum(float(np.sum(part**2)) for part in update.values()))
        found.append({key: part * (norm / length) for key, part in update.items()})
    return found
