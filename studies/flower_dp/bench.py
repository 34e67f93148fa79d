"""The test bench: small Flower trainings in this process, audited as any Flower training is."""

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

import coalmine as cm  # names are looked up when used: replays need no torch, which takes seconds to import
from coalmine.integrations.flower import CanaryGrid, FrozenRounds, LocalGrid
from coalmine.integrations.flower.arrays import Layout
from coalmine.methods.canife.canaries import GivenUpdates

Arrays = Mapping[str, npt.NDArray[Any]]

CLIP = 0.5
"""The clip norm of all settings."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training to audit.

    Args:
        model: The first model, arrays by key.
        honest: What each client sends in every round: its update as arrays by key.
        mods: Mods of the ClientApp, which canaries go through as well.
        canary_mods: Mods for canaries only, which make their replies unusual.
        metrics: Metrics that canaries report.
        silent: Whether the client of a partition never replies.
        length: Norm of canaries before clipping, in clip norms.
    """

    model: Arrays
    honest: Sequence[Arrays]
    mods: Sequence[Any] = ()
    canary_mods: Sequence[Any] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    silent: Callable[[int], bool] = lambda partition: False
    length: float = 2.0

    def grid(self) -> LocalGrid:
        """Return a grid of the honest clients."""
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
        """Return the first model as a record."""
        return ArrayRecord({key: Array(np.asarray(value)) for key, value in self.model.items()})


def audit_training(
    setting: Setting, strategy: Strategy, *, rounds: int, canaries: int, delta: float, confidence: float, seed: int = 0
) -> cm.Result:
    """Audit a whole training, with random canaries in every round and an adversary who sees every round."""
    audit = cm.OneShot(
        Layout.of(setting.record()).dim,
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


def audit_round(
    setting: Setting,
    strategy: Strategy,
    *,
    canary: npt.ArrayLike,
    trials: int,
    delta: float,
    confidence: float,
    seed: int = 0,
) -> cm.Result:
    """Audit the first round by repeating it; a coin decides each time whether the given canary takes part."""
    audit = cm.Canife(canaries=GivenUpdates(canary), rounds=1, every=1, trials=trials, seed=seed)
    grid = _canary_grid(setting, audit, strategy)
    frozen = FrozenRounds(strategy, grid)
    with seeded(seed):
        frozen.start(grid=grid, initial_arrays=setting.record(), num_rounds=grid.rounds, evaluate_fn=grid.recorder())
    return audit.result(delta=delta, confidence=confidence)


def run_rounds(setting: Setting, strategy: Strategy, *, canary: npt.ArrayLike, rounds: int) -> None:
    """Run a few rounds, some of them with the canary, to see what the strategy does."""
    audit = cm.Canife(canaries=GivenUpdates(canary), rounds=rounds, every=rounds, trials=rounds, mode="running")
    grid = _canary_grid(setting, audit, strategy)
    with seeded(0):
        strategy.start(grid=grid, initial_arrays=setting.record(), num_rounds=rounds, evaluate_fn=grid.recorder())


def _canary_grid(setting: Setting, audit: cm.Audit, strategy: Strategy) -> CanaryGrid:
    return CanaryGrid(
        setting.grid(),
        audit,
        clip_norm=lambda: float(getattr(strategy, "clipping_norm", CLIP)),
        length=setting.length,
        mods=[*setting.mods, *setting.canary_mods],
        metrics=setting.metrics,
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators that Flower draws from, and silence its log, for a while."""
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
    """Return a strategy that samples all nodes, waits for none, and evaluates nothing."""
    return kind(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **settings)


def random_updates(model: Arrays, count: int, norm: float, seed: int = 1) -> list[Arrays]:
    """Return updates of ``count`` clients in random directions, each with the given norm."""
    rng = np.random.default_rng(seed)
    updates: list[Arrays] = []
    for _ in range(count):
        update = {key: rng.normal(size=value.shape) for key, value in model.items() if value.dtype.kind == "f"}
        length = np.sqrt(sum(float(np.sum(part**2)) for part in update.values()))
        updates.append({key: part * (norm / length) for key, part in update.items()})
    return updates
