"""Two measurements without canaries: how much noise a round has, and what the adaptive clip norm reveals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from bench import CLIP, Setting, fed_avg, seeded
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping, Strategy

from coalmine.arrays import Floats


def noise_ratio(strategy: Callable[[int], Strategy], *, mods: Any, noise: float, clients: int = 100) -> float:
    """Return the noise of a round as a share of what the noise multiplier claims.

    All clients send the same update and are clipped, so the average without noise is known. With 4,096 parameters the
    ratio has a standard error of 1%.
    """
    dim, same = 4096, {"weight": np.full(4096, 2 * CLIP / math.sqrt(4096))}
    setting = Setting(model={"weight": np.zeros(dim, dtype=np.float32)}, honest=[same] * clients, mods=mods)
    with seeded(0):
        result = strategy(clients).start(grid=setting.grid(), initial_arrays=setting.record(), num_rounds=1)
    residual = result.arrays["weight"].numpy() - same["weight"] / 2
    return float(residual.std()) / (noise * CLIP / clients)


def count_trials(*, trials: int, clients: int = 20, noise: float = 1.5, seed: int = 0) -> tuple[float, Floats, Floats]:
    """Return scores of an adversary who sees a round's model and the next clip norm.

    One more client is clipped or not; the others' updates are zero, which differential privacy must cover as well.

    Returns:
        The noise multiplier, and the log-likelihood ratios with and without the client, (trials,) each.
    """
    with seeded(seed):
        scores = [[_count_trial(present, clients, noise) for _ in range(trials)] for present in (True, False)]
    return noise, np.array(scores[0]), np.array(scores[1])


def _count_trial(present: bool, clients: int, noise: float) -> float:
    """Return the log-likelihood ratio (up to a constant) of one round's model and noisy count."""
    strategy = DifferentialPrivacyClientSideAdaptiveClipping(fed_avg(), noise, clients, CLIP)
    asked = Message(RecordDict({"config": ConfigRecord()}), 1, "train")
    replies = [_reply(asked, CLIP, 1) if present else _reply(asked, 0.0, 0), *[_reply(asked, 0.0, 0)] * (clients - 1)]
    arrays, _ = strategy.aggregate_train(1, replies)
    # The new clip norm is the old one times exp(−lr · (share − target)): solved for the noisy share of clipped updates.
    share = strategy.target_clipped_quantile - math.log(strategy.clipping_norm / CLIP) / strategy.clip_norm_lr
    update = float(arrays["weight"].numpy()[0]) * clients / CLIP
    update_std = strategy.noise_multiplier * strategy.clipping_norm / CLIP
    return share * clients / strategy.clipped_count_stddev**2 + update / update_std**2


def _reply(asked: Message, value: float, clipped: int) -> Message:
    """Return what a client with adaptiveclipping_mod sends."""
    arrays = ArrayRecord({"weight": Array(np.array([value], dtype=np.float32))})
    metrics = MetricRecord({"num-examples": 1, "norm_bit": clipped})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=asked)
