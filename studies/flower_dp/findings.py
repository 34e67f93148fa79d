"""What an audit of one path of Flower's differential privacy finds, beside what is promised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from coalmine.integrations.flower_bench import CLIP, Setting, fed_avg, one_round, one_shot, some_rounds
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

from coalmine import AuditResult
from coalmine.accounting import round_epsilon

CONFIDENCE, DELTA, LARGE_DELTA = 0.999, 1e-5, 0.05
ROUND_NOISE = 3.0


@dataclass(frozen=True)
class Finding:
    """What an audit of one path found: a valid lower ``bound`` on ε beside what was ``promised``, at ``delta``.

    ``accountant`` is what Flower's accounted mode does with the same path; ``remark`` what else was measured.
    """

    path: str
    promised: float
    bound: float
    estimate: float | None
    delta: float
    accountant: str
    remark: str = ""

    @property
    def refuted(self) -> bool:
        """Whether the promise is broken."""
        return self.bound > self.promised

    def row(self) -> str:
        """A row of the table."""
        estimate = "" if self.estimate is None else f"{self.estimate:.1f}"
        verdict = "**refuted**" if self.refuted else "not refuted"
        cells = [self.path, f"{self.delta:g}", f"{self.promised:.2f}", f"{self.bound:.2f}", estimate, verdict]
        return f"| {' | '.join([*cells, self.accountant, self.remark])} |"


HEADER = """\
| path | δ | promised ε | ε is at least | estimate | verdict | accounted mode | remark |
|---|---|---|---|---|---|---|---|"""


# Promises


def promised(noise: float, rounds: int, delta: float) -> float:
    """What Flower's accountant says; at a large δ, where that is loose, the Gaussian mechanism's own curve."""
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


def accounted(setting: Setting, inner: Callable[[], Any], canary: npt.ArrayLike, wrapper: Any) -> str:
    """What accounted mode does with a few rounds of it."""
    nodes = len(setting.honest) + 1
    try:
        strategy = wrapper(inner(), ROUND_NOISE, CLIP, nodes, accountant=_accountant(nodes))
        some_rounds(setting, strategy, canary=canary, rounds=3)
    except ValueError:
        return "refuses"
    return "goes along" if strategy.privacy_spent().num_releases else "skips the rounds"


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
    """An audit of a training with random canaries in every round."""
    nodes = len(setting.honest) + 2 * canaries
    found = one_shot(setting, strategy(nodes), rounds=rounds, canaries=canaries, delta=delta, confidence=CONFIDENCE)
    return finding_of(path, found, promised(noise, rounds, delta), accountant, remark)


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
    """An audit of one round, held again and again with one canary in it or not."""
    nodes = len(setting.honest) + 1
    strategy = wrapper(inner(), noise, CLIP, nodes)
    found = one_round(setting, strategy, canary=canary, trials=trials, delta=DELTA, confidence=CONFIDENCE)
    return finding_of(path, found, promised(noise, 1, DELTA), accounted(setting, inner, canary, wrapper), remark)


def finding_of(path: str, found: AuditResult, claim: float, accountant: str, remark: str) -> Finding:
    """A result, put beside the promise."""
    assert found.bound is not None
    fitted = next((e.epsilon for e in found.estimates if e.method == "gaussian-shift"), None)  # none without noise
    return Finding(path, claim, found.bound.epsilon, fitted, found.bound.delta, accountant, remark)
