"""The DP paths again, by replay: one client more, the same randomness. Seconds instead of trials.

Replay runs one round (or three) of each path with and without one client, and needs no canaries. One replay of FedAvg
covers several rows of the study, which then differ in the check that finds them. Paths that are expected to pass get
all clients and rounds, the others those that find most (``quick=True``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from bench import CLIP, fed_avg
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    Strategy,
)
from table import Outcome, Path

from coalmine.checks import Client, Replay, ReplayOptions, replay
from coalmine.integrations.flower import replay_strategy
from coalmine.integrations.flower.replay import template

NODES, NOISE = 3, 2.0


def _model(side: int = 40, **more: Any) -> ArrayRecord:
    rng = np.random.default_rng(0)
    arrays = {"weight": rng.normal(0, 0.1, (side, side)).astype(np.float32)}
    return ArrayRecord({key: Array(np.asarray(value)) for key, value in {**arrays, **more}.items()})


def _fixed(inner: Any = None, side: Any = DifferentialPrivacyServerSideFixedClipping, nodes: int = NODES) -> Strategy:
    return side(inner or fed_avg(), NOISE, CLIP, nodes)


def _plain(
    kind: Any, *, side: int = 40, nodes: int = NODES, rounds: int = 3, quick: bool = True, **settings: Any
) -> Callable[[], Replay]:
    """Replay honest clients with equal weights, all of whom reply: what is left is the aggregation itself."""

    def run() -> Replay:
        model = _model(side)
        updates = [client.update for client in _clients(model, nodes)]
        strategy = _fixed(fed_avg(kind, **settings), nodes=nodes)
        options = ReplayOptions(dropouts=False, rounds=rounds, quick=quick)
        return replay_strategy(strategy, model, updates, options=options)

    return run


def _clients(model: ArrayRecord, nodes: int = NODES) -> list[Client]:
    return template(model).random(nodes - 1, norm=2 * CLIP, seed=0)


def _adaptive(kind: Any, mods: Sequence[Any] = (), *, side: int = 40, **settings: Any) -> Callable[[], Replay]:
    def run() -> Replay:
        model = _model(side)
        strategy = kind(fed_avg(), 1.0, NODES, CLIP, clipped_count_stddev=1.0, **settings)
        updates = [client.update for client in _clients(model)]
        return replay_strategy(strategy, model, updates, mods=mods, options=ReplayOptions(dropouts=False, quick=True))

    return run


def _local(scalar: bool) -> Callable[[], Replay]:
    """Replay what one client sends through LocalDpMod: the release is its message."""

    def run() -> Replay:
        model = _model(**({"scale": np.float32(0.3)} if scalar else {}))
        mod = LocalDpMod(clipping_norm=CLIP, sensitivity=CLIP, epsilon=1.0, delta=1e-5)

        def report(clients: Sequence[dict[str, Any]]) -> dict[str, Any]:
            asked = Message(RecordDict({"arrays": model, "config": ConfigRecord()}), 1, "train")

            def train(message: Message, _: Context) -> Message:
                arrays = {key: Array(np.asarray(model[key].numpy() + clients[-1][key])) for key in clients[-1]}
                content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
                return Message(RecordDict(content), reply_to=message)

            sent = mod(asked, Context(1, 1, {}, RecordDict(), {}), train).content["arrays"]
            return {key: array.numpy() for key, array in sent.items()}

        claimed = math.sqrt(2 * math.log(1.25 / 1e-5))  # the mod's formula: noise over sensitivity, at ε = 1
        updates = [client.update for client in _clients(model)][:1]
        return replay(report, updates, clip_norm=CLIP, noise_multiplier=claimed)

    return run


def _with(
    model: Callable[[], ArrayRecord], mods: Sequence[Any] = (), side: Any = None, quick: bool = False
) -> Callable[[], Replay]:
    def run() -> Replay:
        strategy = _fixed(side=side or DifferentialPrivacyServerSideFixedClipping)
        updates = [client.update for client in _clients(model())]
        return replay_strategy(
            strategy, model(), updates, mods=mods, options=ReplayOptions(dropouts=False, quick=quick)
        )

    return run


@functools.cache
def _fed_avg() -> Replay:
    """Replay FedAvg with all kinds of clients, once for all rows about it."""
    options = ReplayOptions(hostile=True, quick=True)
    return replay_strategy(_fixed(), _model(bias=np.zeros(40, dtype=np.float32)), options=options)


def _count() -> Outcome:
    """Compare what replay measures with the closed form, for a noise multiplier z = 1 and a count with noise σ = 1.

    The noise of the count is for ½, and one client moves it by 1: z_updates⁻² + σ⁻² = 1 + ¾, instead of 1.
    """
    kind, mods = DifferentialPrivacyClientSideAdaptiveClipping, [adaptiveclipping_mod]
    # Few parameters make for many draws, which the clip norm needs: it is one number.
    result = _adaptive(kind, mods, side=8, target_clipped_quantile=1.0)()
    outcome = _outcome(result, "clipping")
    moved = max(row.excess for row in result.moved if row.check == "clipping")  # times z, which is 1
    closed = math.sqrt(1 + 0.75)
    return replace(outcome, sentence=f"{outcome.sentence} Measured: {moved:.2f}; by the closed form: {closed:.2f}.")


def _outcome(result: Replay, check: str = "") -> Outcome:
    """Return what a replay found with a check, or with any."""
    findings = [f for f in result.findings if f.refutes and check in ("", f.check)]
    if findings:
        return Outcome(f"replay: {findings[0].check}", True, str(findings[0]))
    return Outcome("replay", False, f"largest movement {result.worst:.2f} of what the noise covers")


def _path(title: str, run: Callable[[], Replay], check: str = "") -> Path:
    return Path(title, lambda: _outcome(run(), check))


FIXED = "server-side fixed, "
SCALAR = "a scalar parameter"

REPLAYS: dict[str, Path] = {
    "server-fixed": _path(f"{FIXED}FedAvg, equal weights, all reply", _plain(type(fed_avg()), quick=False)),
    "client-fixed": _path(
        "client-side fixed, fixedclipping_mod",
        _with(_model, [fixedclipping_mod], DifferentialPrivacyClientSideFixedClipping),
    ),
    "FedProx": _path(f"{FIXED}FedProx", _plain(FedProx, proximal_mu=0.1, quick=False)),
    "weights": _path(f"{FIXED}FedAvg, a client with more examples", _fed_avg, "examples"),
    "dropouts": _path(f"{FIXED}FedAvg, nodes that never reply", _fed_avg, "dropouts"),
    "nan": _path(f"{FIXED}FedAvg, a client that sends a NaN", _fed_avg, "not finite"),
    "order": _path(f"{FIXED}FedAvg, a client that reorders its arrays", _fed_avg, "order"),
    "FedAvgM": _path(f"{FIXED}FedAvgM", _plain(FedAvgM, server_momentum=0.9), "memory"),
    "FedAdam": _path(f"{FIXED}FedAdam", _plain(FedAdam), "clipping"),
    "FedYogi": _path(f"{FIXED}FedYogi", _plain(FedYogi, side=64, nodes=5, rounds=5), "memory"),
    "FedAdagrad": _path(f"{FIXED}FedAdagrad", _plain(FedAdagrad), "clipping"),
    "FedMedian": _path(f"{FIXED}FedMedian", _plain(FedMedian, nodes=5), "other clients"),
    "FedTrimmedAvg": _path(f"{FIXED}FedTrimmedAvg", _plain(FedTrimmedAvg, nodes=5, beta=0.4), "other clients"),
    "Krum": _path(f"{FIXED}Krum", _plain(Krum, nodes=5, num_malicious_nodes=1, quick=False), "other clients"),
    "server-adaptive": _path(
        "server-side adaptive (clip_norm_lr=1, target_clipped_quantile=0.1)",
        _adaptive(DifferentialPrivacyServerSideAdaptiveClipping, clip_norm_lr=1.0, target_clipped_quantile=0.1),
    ),
    "client-adaptive": _path(
        "client-side adaptive (clip_norm_lr=1, target_clipped_quantile=0.1)",
        _adaptive(
            DifferentialPrivacyClientSideAdaptiveClipping, [adaptiveclipping_mod], clip_norm_lr=1.0,
            target_clipped_quantile=0.1,
        ),
    ),
    "adaptive-count": Path("client-side adaptive (target_clipped_quantile=1), clip norm included", _count),
    "local": _path("LocalDpMod", _local(scalar=False)),
    "local-scalar": _path(f"LocalDpMod, {SCALAR}", _local(scalar=True), "noise on every tensor"),
    "scalar": _path(f"{FIXED}{SCALAR}", _with(lambda: _model(scale=np.float32(0.3)), quick=True), "one array"),
    "client-scalar": _path(
        f"client-side fixed, {SCALAR}",
        _with(
            lambda: _model(scale=np.float32(0.3)), [fixedclipping_mod], DifferentialPrivacyClientSideFixedClipping,
            quick=True,
        ),
        "one array",
    ),
    "empty": _path(f"{FIXED}an empty array", _with(lambda: _model(none=np.zeros((0, 3), dtype=np.float32)))),
    "float16": _path(
        f"{FIXED}float16", _with(lambda: ArrayRecord({"weight": Array(np.ones((40, 40), dtype=np.float16))}))
    ),
}  # fmt: skip
"""Replays by the names of the study's rows."""
