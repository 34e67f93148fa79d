"""What a canary cannot show: how much noise there is, and what the clip norm itself tells."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from coalmine.integrations.flower_bench import CLIP, Setting, fed_avg, seeded
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping, Strategy

from coalmine.arrays import Floats


def noise_ratio(strategy: Callable[[int], Strategy], *, mods: Any, noise: float, clients: int = 100) -> float:
    """The noise of a round over that of ``noise`` clip norms, where all ``clients`` send the same and are clipped.

    The average is then known without the noise. Of 4,096 numbers the ratio is good to 1%.
    """
    dim, same = 4096, {"weight": np.full(4096, 2 * CLIP / math.sqrt(4096))}
    setting = Setting(model={"weight": np.zeros(dim, dtype=np.float32)}, honest=[same] * clients, mods=mods)
    made, grid = strategy(clients), setting.grid()
    with seeded(0):
        result = made.start(grid=grid, initial_arrays=setting.record(), num_rounds=1)
    left = result.arrays["weight"].numpy() - same["weight"] / 2
    return float(left.std()) / (noise * CLIP / clients)


def count_trials(*, trials: int, clients: int = 20, noise: float = 1.5, seed: int = 0) -> tuple[float, Floats, Floats]:
    """Scores of an adversary who sees a round's model and the next clip norm, with one more clipped client or without.

    The others' updates are zero and not clipped, which is a training like any other to differential privacy. Returns
    the noise multiplier, scores with the client and scores without it: log-likelihood ratios.
    """
    with seeded(seed):
        found = [[_count_trial(present, clients, noise) for _ in range(trials)] for present in (True, False)]
    return noise, np.array(found[0]), np.array(found[1])


def _count_trial(present: bool, clients: int, noise: float) -> float:
    strategy = DifferentialPrivacyClientSideAdaptiveClipping(fed_avg(), noise, clients, CLIP)
    asked = Message(RecordDict({"config": ConfigRecord()}), 1, "train")
    replies = [_reply(asked, CLIP, 1) if present else _reply(asked, 0.0, 0), *[_reply(asked, 0.0, 0)] * (clients - 1)]
    arrays, _ = strategy.aggregate_train(1, replies)
    share = strategy.target_clipped_quantile - math.log(strategy.clipping_norm / CLIP) / strategy.clip_norm_lr
    update = float(arrays["weight"].numpy()[0]) * clients / CLIP
    spread = strategy.noise_multiplier * strategy.clipping_norm / CLIP
    return share * clients / strategy.clipped_count_stddev**2 + update / spread**2


def _reply(asked: Message, value: float, bit: int) -> Message:
    """What a client with adaptiveclipping_mod sends."""
    arrays = ArrayRecord({"weight": Array(np.array([value], dtype=np.float32))})
    return Message(
        RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, "norm_bit": bit})}), reply_to=asked
    )
