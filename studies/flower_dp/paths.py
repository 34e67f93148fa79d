"""The DP paths of Flower: strategies, wrappers and mods, with the clients and models that put each to the test.

The claimed ε is what Flower's accountant reports for the noise multiplier (RDP, no amplification, adding or removing
one client). At the large δ, where RDP is loose, it is the Gaussian mechanism's own curve: a Gaussian mechanism has a
whole curve of (ε, δ), and slightly too little noise shows best at a large δ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from bench import CLIP, Arrays, Setting, audit_round, fed_avg, random_updates
from findings import (
    CONFIDENCE,
    DELTA,
    LARGE_DELTA,
    Finding,
    accounted_mode,
    claimed_epsilon,
    finding_of,
    repeated_round,
    whole_training,
)
from flwr.app import Array, ArrayRecord, Message
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
from trials import count_trials, noise_ratio

from coalmine.stats import estimate

# Models and clients


@lru_cache(maxsize=1)
def _wide() -> Arrays:
    rng = np.random.default_rng(0)
    return {"weight": rng.normal(0, 0.1, (64, 64)).astype(np.float32), "bias": np.zeros(64, dtype=np.float32)}


@lru_cache(maxsize=1)
def _small() -> Arrays:
    rng = np.random.default_rng(0)
    return {"weight": rng.normal(0, 0.1, (4, 8)).astype(np.float32), "bias": rng.normal(0, 0.1, 8).astype(np.float32)}


def _along(model: Arrays, key: str) -> npt.NDArray[np.float64]:
    """Return a canary along the first number of one parameter."""
    parts = [
        np.where(np.arange(v.size) == 0, float(k == key), 0.0)
        for k, v in model.items()
        if v.dtype.kind == "f" and v.size
    ]
    return np.concatenate(parts)


def _split(model: Arrays) -> list[Arrays]:
    """Return updates of twelve clients, half of which pull one way and half the other."""
    side = np.zeros_like(model["weight"], dtype=np.float64)
    side.flat[0] = CLIP
    return [{"weight": side * sign} for sign in [1] * 6 + [-1] * 6]


def _small_setting(**more: Any) -> Setting:
    return Setting(model=_small(), honest=random_updates(_small(), 4, 2 * CLIP), **more)


def _accounted(
    inner: Callable[[], Any], wrapper: Any = DifferentialPrivacyServerSideFixedClipping, mods: Sequence[Any] = ()
) -> str:
    """Return what accounted mode does with a strategy."""
    return accounted_mode(_small_setting(mods=mods), inner, _along(_small(), "weight"), wrapper)


# The paths


def _server(nodes: int, inner: Any = None, noise: float = 2.0) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(inner or fed_avg(), noise, CLIP, nodes)


def _plain() -> Setting:
    return Setting(model=_wide(), honest=random_updates(_wide(), 20, 2 * CLIP))


def _optimizer(kind: Any, **settings: Any) -> Callable[[], Finding]:
    def inner() -> Any:
        return fed_avg(kind, **settings)

    def run() -> Finding:
        accountant = _accounted(inner)
        name = f"server-side fixed, {kind.__name__}" + "".join(f" ({k}={v})" for k, v in settings.items())
        if kind is FedAvgM:  # momentum leaks a little more per round, which takes many canaries and a large δ
            return whole_training(
                name, lambda n: _server(n, inner()), _plain(), accountant=accountant,
                rounds=3, canaries=1000, delta=LARGE_DELTA,
            )  # fmt: skip
        return whole_training(name, lambda n: _server(n, inner()), _plain(), accountant=accountant)

    return run


def _server_fixed() -> Finding:
    return whole_training("server-side fixed, FedAvg", _server, _plain(), accountant=_accounted(fed_avg))


def _control() -> Finding:
    """The more sensitive instrument, on a path without a fault."""
    name = "server-side fixed, FedAvg: control for the rows at this δ"
    return whole_training(name, _server, _plain(), rounds=3, canaries=1000, delta=LARGE_DELTA, accountant="as above")


def _client_fixed() -> Finding:
    wrapper = DifferentialPrivacyClientSideFixedClipping
    accountant = _accounted(fed_avg, wrapper, mods=[fixedclipping_mod])
    setting = Setting(model=_wide(), honest=random_updates(_wide(), 20, 2 * CLIP), mods=[fixedclipping_mod])
    name = "client-side fixed, fixedclipping_mod"
    return whole_training(name, lambda n: wrapper(fed_avg(), 2.0, CLIP, n), setting, accountant=accountant)


def _weights() -> Finding:
    setting = Setting(model=_small(), honest=random_updates(_small(), 9, 2 * CLIP), metrics={"num-examples": 9})
    return repeated_round("server-side fixed, a client with 9 times the examples", setting, _along(_small(), "weight"))


def _dropouts() -> Finding:
    setting = Setting(model=_small(), honest=random_updates(_small(), 15, 2 * CLIP), silent=lambda p: p < 14)
    remark = "14 of 16 nodes never reply; Flower logs a warning"
    return repeated_round(
        "server-side fixed, nodes that never reply", setting, _along(_small(), "weight"), remark=remark
    )


def _robust(kind: Any, trials: int = 240, **settings: Any) -> Callable[[], Finding]:
    def run() -> Finding:
        setting = Setting(model=_small(), honest=_split(_small()), length=1.0)
        name = f"server-side fixed, {kind.__name__}"
        return repeated_round(
            name, setting, _along(_small(), "weight"), lambda: fed_avg(kind, **settings), trials=trials
        )

    return run


def _scalar() -> Finding:
    model = {**_small(), "scale": np.array(0.3, dtype=np.float32)}
    setting = Setting(model=model, honest=random_updates(_small(), 4, 2 * CLIP), length=20.0)
    remark = "scalars are not clipped"
    return repeated_round("server-side fixed, a scalar parameter", setting, _along(model, "scale"), remark=remark)


def _client_scalar() -> Finding:
    model = {**_small(), "scale": np.array(0.3, dtype=np.float32)}
    honest = random_updates(_small(), 4, 2 * CLIP)
    setting = Setting(model=model, honest=honest, length=20.0, mods=[fixedclipping_mod])
    wrapper = DifferentialPrivacyClientSideFixedClipping
    return repeated_round(
        "client-side fixed, a scalar parameter", setting, _along(model, "scale"), wrapper=wrapper,
        remark="scalars are not clipped",
    )  # fmt: skip


def _empty() -> Finding:
    model = {**_small(), "none": np.zeros((0, 3), dtype=np.float32)}
    setting = Setting(model=model, honest=random_updates(_small(), 4, 2 * CLIP))
    return repeated_round("server-side fixed, an empty array", setting, _along(model, "weight"))


def _half() -> Finding:
    model = {"weight": np.ones((16, 16), dtype=np.float16)}
    setting = Setting(model=model, honest=random_updates(model, 4, CLIP), length=1.0)
    return repeated_round("server-side fixed, float16", setting, np.ones(256))


def _inserted(before: ArrayRecord, after: ArrayRecord) -> bool:
    """Return whether a reply comes from an inserted canary."""
    return any(np.max(np.abs(after[key].numpy() - before[key].numpy()), initial=0.0) > 1e-3 for key in before)


def _with_nan(message: Message, context: Any, call_next: Any) -> Message:
    before = next(iter(message.content.array_records.values()))
    reply = call_next(message, context)
    name, after = next(iter(reply.content.array_records.items()))
    if _inserted(before, after):
        bias = np.array(after["bias"].numpy())
        bias[0] = np.nan
        reply.content[name] = ArrayRecord({**after, "bias": Array(bias)})
    return reply


def _nan() -> Finding:
    setting = _small_setting(canary_mods=[_with_nan], length=20.0)
    remark = "with one NaN, the rest of the update is not clipped"
    return repeated_round(
        "server-side fixed, a client that sends a NaN", setting, _along(_small(), "weight"), remark=remark
    )


def _reordered(message: Message, context: Any, call_next: Any) -> Message:
    before = next(iter(message.content.array_records.values()))
    reply = call_next(message, context)
    name, after = next(iter(reply.content.array_records.items()))
    if _inserted(before, after):
        reply.content[name] = ArrayRecord(dict(reversed(after.items())))
    return reply


def _order() -> Finding:
    rng = np.random.default_rng(0)
    model = {key: (rng.normal(0, 0.1, 8) + mean).astype(np.float32) for key, mean in (("first", 1.0), ("second", -1.0))}
    setting = Setting(model=model, honest=random_updates(model, 4, 2 * CLIP), canary_mods=[_reordered], length=1.0)
    remark = "replies are compared with the model by position, not by name"
    canary = np.concatenate([-np.ones(8), np.ones(8)])
    return repeated_round("server-side fixed, a client that reorders its arrays", setting, canary, remark=remark)


def _adaptive(side: str) -> Callable[[], Finding]:
    server = side == "server"
    wrapper = DifferentialPrivacyServerSideAdaptiveClipping if server else DifferentialPrivacyClientSideAdaptiveClipping
    mods = () if server else (adaptiveclipping_mod,)

    def run() -> Finding:
        setting = Setting(model=_wide(), honest=random_updates(_wide(), 500, 2 * CLIP), mods=mods)
        default = noise_ratio(lambda n: wrapper(fed_avg(), 1.0, n, CLIP), mods=mods, noise=1.0)
        return whole_training(
            f"{side}-side adaptive (clip_norm_lr=1, target_clipped_quantile=0.1)",
            lambda n: wrapper(fed_avg(), 1.0, n, CLIP, target_clipped_quantile=0.1, clip_norm_lr=1.0),
            setting,
            noise=1.0,
            rounds=1,
            canaries=500,
            delta=LARGE_DELTA,
            accountant="has none",
            remark=f"with default settings the noise was {default:.2f} of the claim when all updates are clipped",
        )

    return run


def _count() -> Finding:
    noise, members, nonmembers = count_trials(trials=1500)
    bound = estimate(members, nonmembers, delta=LARGE_DELTA, confidence=CONFIDENCE, methods=["simultaneous"])[0]
    return Finding(
        "client-side adaptive, and the clip norm that clients receive",
        claimed_epsilon(noise, 1, LARGE_DELTA), bound.epsilon, None, LARGE_DELTA, "has none",
        "the count of clipped updates has sensitivity 1, its noise is for ½",
    )  # fmt: skip


def _local(key: str) -> Callable[[], Finding]:
    def run() -> Finding:
        model = {**_small(), "scale": np.array(0.3, dtype=np.float32)}
        mod = LocalDpMod(clipping_norm=CLIP, sensitivity=CLIP, epsilon=1.0, delta=DELTA)
        setting = Setting(model=model, honest=random_updates(_small(), 1, CLIP), canary_mods=[mod])
        result = audit_round(
            setting, fed_avg(), canary=_along(model, key), trials=240, delta=DELTA, confidence=CONFIDENCE
        )
        scalar = key == "scale"
        name = "LocalDpMod" + (", a scalar parameter" if scalar else "")
        remark = "scalars are neither clipped nor noised" if scalar else ""
        return finding_of(name, result, 1.0, "has none", remark)

    return run


PATHS: dict[str, Callable[[], Finding]] = {
    "server-fixed": _server_fixed,
    "control": _control,
    "client-fixed": _client_fixed,
    "FedProx": _optimizer(FedProx, proximal_mu=0.1),
    "weights": _weights,
    "dropouts": _dropouts,
    "FedAvgM": _optimizer(FedAvgM, server_momentum=0.9),
    "FedAdam": _optimizer(FedAdam),
    "FedYogi": _optimizer(FedYogi),
    "FedAdagrad": _optimizer(FedAdagrad),
    "FedMedian": _robust(FedMedian),
    "FedTrimmedAvg": _robust(FedTrimmedAvg, trials=480, beta=0.4),
    "Krum": _robust(Krum, num_malicious_nodes=1),
    "server-adaptive": _adaptive("server"),
    "client-adaptive": _adaptive("client"),
    "adaptive-count": _count,
    "local": _local("weight"),
    "local-scalar": _local("scale"),
    "scalar": _scalar,
    "client-scalar": _client_scalar,
    "empty": _empty,
    "float16": _half,
    "nan": _nan,
    "order": _order,
}
