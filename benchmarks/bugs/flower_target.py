"""Target: Flower with its server-side DP wrapper, audited by `CanaryGrid` as in docs/flower.md.

Correct trainings include strategies that process what the wrapper releases (`OUTSIDE`), which is nobody's business.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from cases import Answer, Case, from_results
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedYogi,
    Strategy,
    dp_fixed_clipping,
)
from loop_target import LAYERS
from noise import CORRECT_NOISE, CORRELATED, NOISE_BUGS, Array, Noise, Place, noise_of

from coalmine import OneShot
from coalmine.claims import Claim, EveryRound
from coalmine.integrations.flower import CanaryGrid, LocalGrid
from coalmine.integrations.flower.arrays import Layout

CLIENTS, CANARIES, ROUNDS, CLIP, NOISE, DELTA, LENGTH = 20, 50, 10, 0.5, 1.0, 1e-5, 5.0
NODES = CLIENTS + 2 * CANARIES
TARGET = "flower"

Update = list[Array]
Reply = Callable[[int, dict[str, Array]], dict[str, Array] | None]
Step = Callable[[Array, Array, dict[str, Array], str], Array]


class Buggy(DifferentialPrivacyServerSideFixedClipping):
    """Flower's wrapper, with other noise."""

    draw: Noise | None = None
    drawn = 0

    def _add_noise_to_aggregated_arrays(self, aggregated_arrays: ArrayRecord) -> ArrayRecord:
        """Add the noise of the bug, unless the audit has switched off all noise for a probe."""
        if self.draw is None or not self.noise_multiplier:
            return super()._add_noise_to_aggregated_arrays(aggregated_arrays)
        noise = self.clipping_norm / self.num_sampled_clients * self.draw(self.drawn)
        self.drawn += 1
        arrays = {name: array.numpy() for name, array in aggregated_arrays.items()}
        parts = np.split(noise, np.cumsum([array.size for array in arrays.values()])[:-1])
        return ArrayRecord(
            {
                name: FlowerArray((array + part.reshape(array.shape)).astype(array.dtype))
                for (name, array), part in zip(arrays.items(), parts, strict=True)
            }
        )


class Around(FedAvg):
    """Calls another strategy, and turns the model before a round and its update into the next model."""

    def __init__(self, private: Strategy, step: Step) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.private, self.step, self.memory = private, step, dict[str, Array]()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure by the other strategy."""
        self.before = {key: array.numpy() for key, array in arrays.items()}
        return self.private.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Process what the other strategy releases."""
        arrays, metrics = self.private.aggregate_train(server_round, replies)
        if arrays is None:
            return None, metrics
        after = {}
        for key, before in self.before.items():
            after[key] = FlowerArray(
                np.asarray(self.step(before, arrays[key].numpy() - before, self.memory, key), dtype=np.float32)
            )
        return ArrayRecord(after), metrics


def _momentum(before: Array, update: Array, memory: dict[str, Array], key: str) -> Array:
    memory[key] = 0.9 * memory.get(key, np.zeros_like(update)) + update
    return before + memory[key]


def _average_of_models(before: Array, update: Array, memory: dict[str, Array], key: str) -> Array:
    memory[key] = 0.5 * memory.get(key, before) + 0.5 * (before + update)
    return memory[key]


class Optimized(Around):
    """Lets one of Flower's optimizers process the release of a strategy, as if it were the only reply."""

    def __init__(self, private: Strategy, server: FedAvg) -> None:
        super().__init__(private, lambda before, update, memory, key: before + update)
        self.server = server  # part of the strategy, so that copies of it have a state of their own

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Tell the optimizer the model, too."""
        self.server.configure_train(server_round, arrays, config, grid)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the optimizer aggregate what is released."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            return None, metrics
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
        reply = Message(content, reply_to=Message(RecordDict(), 1, "train"))
        return self.server.aggregate_train(server_round, [reply])[0], metrics


def _optimizer(optimizer: Callable[..., FedAvg], **settings: float) -> Callable[[Strategy], Strategy]:
    """Return what makes one of Flower's optimizers process the release of a strategy, as if it were the only reply."""

    def around(private: Strategy) -> Strategy:
        return Optimized(private, optimizer(fraction_evaluate=0.0, **settings))

    return around


def _stepping(step: Step) -> Callable[[Strategy], Strategy]:
    return lambda private: Around(private, step)


class CountsTwice(FedAvg):
    """Counts the last reply twice."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate with a reply too many."""
        every = list(replies)
        return super().aggregate_train(server_round, [*every, every[-1]])


def _thrown_away(private: Strategy) -> Strategy:
    class ThrownAway(Around):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            every = list(replies)
            super().aggregate_train(server_round, every)
            assert isinstance(self.private, Buggy)
            return self.private.strategy.aggregate_train(server_round, every)

    return ThrownAway(private, lambda before, update, memory, key: before + update)


OUTSIDE: dict[str, Callable[[Strategy], Strategy]] = {
    "server learning rate 0.5 after the noise": _stepping(lambda before, update, memory, key: before + 0.5 * update),
    "momentum 0.9 after the noise": _stepping(_momentum),
    "top 10% after the noise": _stepping(
        lambda before, update, memory, key: before + update * (abs(update) >= np.quantile(abs(update), 0.9))
    ),
    "average of models after the noise": _stepping(_average_of_models),
    "weight decay 0.98 after the noise": _stepping(lambda before, update, memory, key: 0.98 * (before + update)),
    "signs after the noise": _stepping(lambda before, update, memory, key: before + 0.01 * np.sign(update)),
    "FedAdam after the noise": _optimizer(FedAdam),
    "FedYogi after the noise": _optimizer(FedYogi),
    "FedAvgM after the noise": _optimizer(FedAvgM, server_momentum=0.9),
}
"""Strategies around the DP wrapper."""


def client_app(reply: Reply, examples: Callable[[int], int]) -> ClientApp:
    """Return clients whose updates are random, of norm 1."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: object) -> Message | None:
        number = int(context.node_config["partition-id"])
        rng = np.random.default_rng(number)
        name, before = next(iter(message.content.array_records.items()))
        arrays = {key: np.array(array.numpy()) for key, array in before.items()}
        steps = {key: rng.normal(size=array.shape) for key, array in arrays.items() if array.ndim}
        norm = np.sqrt(sum(np.sum(step**2) for step in steps.values()))
        after = reply(
            number, arrays | {key: (arrays[key] + step / norm).astype(np.float32) for key, step in steps.items()}
        )
        if after is None:
            return None
        record = ArrayRecord({key: FlowerArray(np.asarray(array)) for key, array in after.items()})
        metrics = MetricRecord({"num-examples": examples(number)})
        return Message(RecordDict({name: record, "metrics": metrics}), reply_to=message)

    return app


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training with Flower, with bugs to switch on.

    Args:
        noise: Name of the noise, or that of Flower if empty.
        clip: Replacement of Flower's clipping of an update, in place.
        inner: The wrapped strategy.
        examples: Number of examples of a client.
        reply: What a client sends, from its number and trained arrays.
        more: Further arrays of the model.
        around: What makes a strategy around the DP wrapper.
        counted: Number of sampled clients that the wrapper hears, over the number there is.
        claimed_rounds: Number of rounds that the claim is for.
        claimed_noise: Noise multiplier of the claim, over that of the wrapper.
    """

    noise: str = ""
    clip: Callable[[Update], None] | None = None
    inner: Callable[..., FedAvg] = FedAvg
    examples: Callable[[int], int] = lambda number: 10
    reply: Reply = lambda number, arrays: arrays
    more: dict[str, Array] = field(default_factory=dict)
    around: Callable[[Strategy], Strategy] = lambda private: private
    counted: float = 1.0
    claimed_rounds: int = ROUNDS
    claimed_noise: float = 1.0

    def audited(self, seed: int) -> Answer:
        """Train, and return what the audit says."""
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        rng = np.random.default_rng([seed, 7])
        arrays = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in LAYERS.items()} | self.more
        first = ArrayRecord({name: FlowerArray(np.asarray(array)) for name, array in arrays.items()})
        dim = Layout.of(first).dim
        audit = OneShot(dim, rounds=ROUNDS, canaries=CANARIES, view="updates", participation="every-round", seed=seed)
        clients = LocalGrid(client_app(self.reply, self.examples), nodes=CLIENTS)
        grid = CanaryGrid(clients, audit, clip_norm=CLIP, length=LENGTH)
        settings = {"fraction_train": 1.0, "fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
        strategy = Buggy(self.inner(**settings), NOISE, CLIP, round(NODES * self.counted))
        if self.noise:
            strategy.draw = noise_of(self.noise, Place(dim, NOISE, ROUNDS, rng))
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - Flower draws from it
        original = dp_fixed_clipping.compute_clip_model_update
        try:
            if self.clip is not None:
                dp_fixed_clipping.compute_clip_model_update = self._clip
            self.around(strategy).start(
                grid=grid, initial_arrays=first, num_rounds=grid.rounds, evaluate_fn=grid.recorder()
            )
        finally:
            dp_fixed_clipping.compute_clip_model_update = original
        claim = Claim(
            noise_multiplier=NOISE * self.claimed_noise, sampling=EveryRound(), rounds=self.claimed_rounds, delta=DELTA
        )
        return from_results([audit.result(claim=claim)])

    def _clip(self, param1: Update, param2: Update, clipping_norm: float) -> None:
        """Clip in place of Flower."""
        assert self.clip is not None
        update = [after - before for after, before in zip(param1, param2, strict=True)]
        self.clip(update)
        for i, before in enumerate(param2):
            param1[i] = before + update[i]


def _scale(update: Update, clip: float = CLIP, places: range | None = None) -> None:
    chosen = range(len(update)) if places is None else places
    norm = np.sqrt(sum(float(np.sum(update[i] ** 2)) for i in chosen))
    for i in chosen:
        update[i] *= min(1.0, clip / max(norm, 1e-12))


def _each_tensor(update: Update) -> None:
    for i in range(len(update)):
        _scale(update, places=range(i, i + 1))


def _without_bias(update: Update) -> None:
    bias = update[1].copy()
    _scale(update)
    update[1][:] = bias


def _by_value(update: Update) -> None:
    for part in update:
        np.clip(part, -CLIP, CLIP, out=part)


def _with_nan(number: int, arrays: dict[str, Array]) -> dict[str, Array]:
    if number == 0:
        arrays["fc1.bias"][0] = np.nan
    return arrays


BUGS: dict[str, tuple[str, Training]] = {
    "no clipping": ("clipping", Training(clip=lambda update: None)),
    "clips at twice the clip norm": ("clipping", Training(clip=lambda update: _scale(update, 2 * CLIP))),
    "clips each tensor by itself": ("clipping", Training(clip=_each_tensor)),
    "leaves out a bias": ("clipping", Training(clip=_without_bias)),
    "clips each number (L∞)": ("clipping", Training(clip=_by_value)),
    "scalars are not clipped": ("clipping", Training(more={"scale": np.array(0.3, dtype=np.float32)})),
    "NaN is not clipped": ("clipping", Training(reply=_with_nan)),
    "weights by examples": ("weighting", Training(examples=lambda number: 90 if number == 0 else 10)),
    "median in place of the mean": ("weighting", Training(inner=FedMedian)),
    "Adam between average and noise": ("weighting", Training(inner=FedAdam)),
    "Adam before, momentum after the noise": (
        "weighting", Training(inner=FedAdam, around=OUTSIDE["momentum 0.9 after the noise"])
    ),
    "one reply counts twice": ("weighting", Training(inner=CountsTwice)),
    "the noisy average is thrown away": ("schedule", Training(around=_thrown_away)),
    "momentum before the noise": (
        "schedule", Training(inner=lambda **settings: FedAvgM(server_momentum=0.9, **settings))
    ),
    "noise for twice the clients": ("accounting", Training(counted=2.0)),
    "most clients drop out": (
        "accounting", Training(reply=lambda number, arrays: arrays if number < 2 else None)
    ),
    "ε of a quarter of the rounds": ("accounting", Training(claimed_rounds=ROUNDS // 4)),
    "ε of a single round": ("accounting", Training(claimed_rounds=1)),
    "ε for the squared noise multiplier": ("accounting", Training(claimed_noise=1.5)),
}  # fmt: skip


def _correct() -> dict[str, Training]:
    trainings = {name: Training(noise=name) for name in CORRECT_NOISE if name not in CORRELATED}
    outside = {name: Training(around=around) for name, around in OUTSIDE.items()}
    return trainings | {"Flower itself": Training()} | outside


def cases() -> list[Case]:
    """Return all bugs of this target, and correct trainings."""
    # With a noise multiplier of 1, σ and √σ are the same.
    trainings = [
        (kind, name, Training(noise=name)) for name, (kind, _) in NOISE_BUGS.items() if not name.startswith("√σ")
    ]
    trainings += [(kind, name, training) for name, (kind, training) in BUGS.items()]
    trainings += [("correct", name, training) for name, training in _correct().items()]
    return [Case(target=TARGET, kind=kind, name=name, run=run.audited) for kind, name, run in trainings]
