"""The DP paths again, by replay: one client more, the same randomness. Seconds instead of trials.

Replay runs one round (or three) of each path with and without one client, and needs no canaries. One replay of a
strategy covers several rows of the study, which then differ in the check that finds them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
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

from coalmine.integrations.flower import replay_strategy
from coalmine.integrations.flower.replay import random_clients
from coalmine.replaying import Client, Replay, replay
from coalmine.results.finding import Finding

NODES, NOISE = 3, 2.0

HEADER = """\
| path | rows of the study | replay | what it found | seconds |
|---|---|---|---|---|"""


def _model(side: int = 40, **more: Any) -> ArrayRecord:
    rng = np.random.default_rng(0)
    arrays = {"weight": rng.normal(0, 0.1, (side, side)).astype(np.float32)}
    return ArrayRecord({key: Array(np.asarray(value)) for key, value in {**arrays, **more}.items()})


def _fixed(inner: Any = None, side: Any = DifferentialPrivacyServerSideFixedClipping, nodes: int = NODES) -> Strategy:
    return side(inner or fed_avg(), NOISE, CLIP, nodes)


def _plain(kind: Any, *, side: int = 40, nodes: int = NODES, rounds: int = 3, **settings: Any) -> Callable[[], Replay]:
    """Replay honest clients with equal weights, all of whom reply: what is left is the aggregation itself."""

    def run() -> Replay:
        model = _model(side)
        updates = [client.update for client in _clients(model, nodes)]
        strategy = _fixed(fed_avg(kind, **settings), nodes=nodes)
        return replay_strategy(strategy, model, updates, hostile=False, dropouts=False, rounds=rounds)

    return run


def _clients(model: ArrayRecord, nodes: int = NODES) -> list[Client]:
    return random_clients(model, nodes - 1, norm=2 * CLIP)


def _adaptive(kind: Any, mods: Sequence[Any] = (), **settings: Any) -> Callable[[], Replay]:
    def run() -> Replay:
        strategy = kind(fed_avg(), 1.0, NODES, CLIP, clipped_count_stddev=1.0, **settings)
        updates = [client.update for client in _clients(_model())]
        return replay_strategy(strategy, _model(), updates, mods=mods, hostile=False, dropouts=False)

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


def _with(model: Callable[[], ArrayRecord], mods: Sequence[Any] = (), side: Any = None) -> Callable[[], Replay]:
    def run() -> Replay:
        strategy = _fixed(side=side or DifferentialPrivacyServerSideFixedClipping)
        updates = [client.update for client in _clients(model())]
        return replay_strategy(strategy, model(), updates, mods=mods, hostile=False, dropouts=False)

    return run


REPLAYS: dict[str, tuple[Callable[[], Replay], dict[str, str]]] = {
    "server-side fixed, FedAvg": (
        lambda: replay_strategy(_fixed(), _model(bias=np.zeros(40, dtype=np.float32))),
        {"weights": "examples", "dropouts": "dropouts", "nan": "not finite", "order": "order"},
    ),
    "server-side fixed, FedAvg, equal weights, all reply": (_plain(type(fed_avg())), {}),
    "client-side fixed, fixedclipping_mod": (
        _with(_model, [fixedclipping_mod], DifferentialPrivacyClientSideFixedClipping), {},
    ),
    "server-side fixed, FedProx": (_plain(FedProx, proximal_mu=0.1), {}),
    "server-side fixed, FedAvgM": (_plain(FedAvgM, server_momentum=0.9), {"FedAvgM": "memory"}),
    "server-side fixed, FedAdam": (_plain(FedAdam), {"FedAdam": "clipping"}),
    "server-side fixed, FedYogi": (_plain(FedYogi, side=64, nodes=5, rounds=5), {"FedYogi": "memory"}),
    "server-side fixed, FedAdagrad": (_plain(FedAdagrad), {"FedAdagrad": "clipping"}),
    "server-side fixed, FedMedian": (_plain(FedMedian, nodes=5), {"FedMedian": "other clients"}),
    "server-side fixed, FedTrimmedAvg": (_plain(FedTrimmedAvg, nodes=5, beta=0.4), {"FedTrimmedAvg": "other clients"}),
    "server-side fixed, Krum": (_plain(Krum, nodes=5, num_malicious_nodes=1), {"Krum": "other clients"}),
    "server-side adaptive (clip_norm_lr=1, target_clipped_quantile=0.1)": (
        _adaptive(DifferentialPrivacyServerSideAdaptiveClipping, clip_norm_lr=1.0, target_clipped_quantile=0.1),
        {"server-adaptive": "clipping"},
    ),
    "client-side adaptive (clip_norm_lr=1, target_clipped_quantile=0.1)": (
        _adaptive(
            DifferentialPrivacyClientSideAdaptiveClipping, [adaptiveclipping_mod], clip_norm_lr=1.0,
            target_clipped_quantile=0.1,
        ),
        {"client-adaptive": "clipping"},
    ),
    "client-side adaptive (target_clipped_quantile=1), and the clip norm that clients receive": (
        _adaptive(DifferentialPrivacyClientSideAdaptiveClipping, [adaptiveclipping_mod], target_clipped_quantile=1.0),
        {"adaptive-count": "clipping"},
    ),
    "LocalDpMod": (_local(scalar=False), {}),
    "LocalDpMod, a scalar parameter": (_local(scalar=True), {"local-scalar": "no noise"}),
    "server-side fixed, a scalar parameter": (
        _with(lambda: _model(scale=np.float32(0.3))), {"scalar": "one array"},
    ),
    "client-side fixed, a scalar parameter": (
        _with(lambda: _model(scale=np.float32(0.3)), [fixedclipping_mod], DifferentialPrivacyClientSideFixedClipping),
        {"client-scalar": "one array"},
    ),
    "server-side fixed, an empty array": (_with(lambda: _model(none=np.zeros((0, 3), dtype=np.float32))), {}),
    "server-side fixed, float16": (
        _with(lambda: ArrayRecord({"weight": Array(np.ones((40, 40), dtype=np.float16))})), {},
    ),
}  # fmt: skip
"""Each replay, and the rows of the study it covers with the check that should find them."""


def rows(chosen: Sequence[str] | None = None) -> list[str]:
    """Return the table, one line per replay and row of the study."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    lines, total = [], 0.0
    for path, (run, covered) in REPLAYS.items():
        if chosen and not set(chosen) & {path, *covered}:
            continue
        start = time.process_time()
        result = run()
        seconds = time.process_time() - start
        total += seconds
        lines += _lines(path, result, covered, seconds)
    return [*lines, f"\n{total:.1f} s in all"]


def found(result: Replay, check: str) -> Finding | None:
    """Return what a replay found with a check, and refutes the claim."""
    return next((f for f in result.findings if f.check == check and f.refutes), None)


def _lines(path: str, result: Replay, covered: dict[str, str], seconds: float) -> list[str]:
    if not covered:
        verdict = "not refuted" if result.ok else "**refuted**"
        return [f"| {path} |  | {verdict} | {'' if result.ok else result.findings[0]} | {seconds:.1f} |"]
    lines = []
    for row, check in covered.items():
        finding = found(result, check)
        verdict = "not refuted" if finding is None else "**refuted**"
        lines.append(f"| {path} | {row} | {verdict} | {finding or ''} | {seconds:.1f} |")
        path, seconds = "", 0.0
    return lines
