"""A finding: the lower bound that an audit of one DP path gives, beside the claimed ε."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from bench import CLIP, Setting, audit_round, audit_training, fed_avg, run_rounds
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

from coalmine import Result
from coalmine.claims import round_epsilon

CONFIDENCE, DELTA, LARGE_DELTA = 0.999, 1e-5, 0.05
ROUND_NOISE = 3.0


@dataclass(frozen=True)
class Finding:
    """The outcome of one path: a valid lower bound on ε beside the claimed ε.

    Args:
        path: What was audited.
        claimed: The claimed ε at ``delta``.
        bound: Lower bound on ε, with 99.9% confidence.
        estimate: Estimate of ε, or None if there is no noise to fit.
        delta: The δ of all three.
        accountant: What the same path does in Flower's accounted mode.
        remark: What else was measured.
    """

    path: str
    claimed: float
    bound: float
    estimate: float | None
    delta: float
    accountant: str
    remark: str = ""

    @property
    def refuted(self) -> bool:
        """Whether the bound exceeds the claim."""
        return self.bound > self.claimed

    def row(self) -> str:
        """Return a row of the Markdown table."""
        estimate = "" if self.estimate is None else f"{self.estimate:.1f}"
        verdict = "**refuted**" if self.refuted else "not refuted"
        cells = [self.path, f"{self.delta:g}", f"{self.claimed:.2f}", f"{self.bound:.2f}", estimate, verdict]
        return f"| {' | '.join([*cells, self.accountant, self.remark])} |"


HEADER = """\
| path | δ | claimed ε | lower bound | estimate | verdict | accounted mode | remark |
|---|---|---|---|---|---|---|---|"""


# Claims


def claimed_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Return ε by Flower's accountant; at the large δ, where RDP is loose, by the Gaussian mechanism's own curve."""
    if delta == LARGE_DELTA:
        return round_epsilon(noise_multiplier=noise / math.sqrt(rounds), delta=delta)
    accountant = _accountant(1)
    accountant.compose(GaussianPrivacyEvent(noise, 1, 1), rounds)
    return float(accountant.get_epsilon(delta))


def _accountant(nodes: int) -> Any:
    config = PrivacyConfig(
        target_delta=DELTA,
        population_size=nodes,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )
    return RdpAccountant(config)


def accounted_mode(setting: Setting, inner: Callable[[], Any], canary: npt.ArrayLike, wrapper: Any) -> str:
    """Return what Flower does with a few rounds of this path if an accountant is given."""
    nodes = len(setting.honest) + 1
    try:
        strategy = wrapper(inner(), ROUND_NOISE, CLIP, nodes, accountant=_accountant(nodes))
        run_rounds(setting, strategy, canary=canary, rounds=3)
    except ValueError:
        return "refuses"
    return "accepts" if strategy.privacy_spent().num_releases else "skips the rounds"


# The two instruments


def whole_training(
    path: str,
    strategy: Callable[[int], Strategy],
    setting: Setting,
    *,
    noise: float = 2.0,
    rounds: int = 5,
    canaries: int = 100,
    delta: float = DELTA,
    accountant: str = "",
    remark: str = "",
) -> Finding:
    """Audit a training with random canaries in every round."""
    nodes = len(setting.honest) + 2 * canaries
    result = audit_training(
        setting, strategy(nodes), rounds=rounds, canaries=canaries, delta=delta, confidence=CONFIDENCE
    )
    return finding_of(path, result, claimed_epsilon(noise, rounds, delta), accountant, remark)


def repeated_round(
    path: str,
    setting: Setting,
    canary: npt.ArrayLike,
    inner: Callable[[], Any] = fed_avg,
    *,
    wrapper: Any = DifferentialPrivacyServerSideFixedClipping,
    noise: float = ROUND_NOISE,
    trials: int = 240,
    remark: str = "",
) -> Finding:
    """Audit one round, repeated with and without a given canary."""
    strategy = wrapper(inner(), noise, CLIP, len(setting.honest) + 1)
    result = audit_round(setting, strategy, canary=canary, trials=trials, delta=DELTA, confidence=CONFIDENCE)
    accountant = accounted_mode(setting, inner, canary, wrapper)
    return finding_of(path, result, claimed_epsilon(noise, 1, DELTA), accountant, remark)


def finding_of(path: str, result: Result, claimed: float, accountant: str, remark: str) -> Finding:
    """Return a result as a finding."""
    assert result.bound is not None
    estimate = next((e.epsilon for e in result.estimates if e.method == "gaussian-shift"), None)
    return Finding(path, claimed, result.bound.epsilon, estimate, result.bound.delta, accountant, remark)
