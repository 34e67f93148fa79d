"""Checks of a Flower strategy: what one client can do to the model, and whether any client does it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import Strategy

from coalmine.errors import InputError
from coalmine.integrations.flower.replay import StrategyRelease, copied_strategy, template
from coalmine.integrations.flower.rounds import AuditedRounds
from coalmine.replaying import Client, replay
from coalmine.results.finding import Check, Finding

_EXAMPLES = "num-examples"
_CLIENTS = 5  # an odd number, so that one client decides a median

# What replay finds in any training, the most telling check first; one finding is enough.
_ALWAYS = (Check.INTEGERS, Check.ARRAY, Check.CLIPPING, Check.OTHERS, Check.MEMORY)


def calling_strategy() -> Strategy | None:
    """Return the strategy whose ``start`` is running, or None.

    Flower does not tell a grid which strategy uses it. It is on the call stack, where `Strategy.start` calls the grid.
    """
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Strategy):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def noise_multiplier_of(strategy: Strategy | None) -> float | None:
    """Return the noise multiplier of one of Flower's DP wrappers, None for any other strategy."""
    if strategy is None or not hasattr(strategy, "num_sampled_clients"):
        return None
    noise_multiplier = float(getattr(strategy, "noise_multiplier", 0.0))
    return noise_multiplier if noise_multiplier > 0 else None


class StrategyChecks:
    """Replays the strategy once, and compares the replies of all rounds with what it does.

    A copy of the strategy for five clients, without its noise, must not move the model by more than the clip norm /
    clients, which is what the noise is made for. No statistics are involved.

    Args:
        audited: The audits that findings go to.
        mods: Mods of the ClientApp, which clip if the strategy does not.
        metrics: Metrics of replies.
    """

    def __init__(self, audited: AuditedRounds, *, mods: Sequence[Any], metrics: Mapping[str, float]) -> None:
        self._audited, self._mods, self._metrics = audited, mods, metrics
        self._replayed, self._keys = False, list[str]()
        self._possible: dict[str, Finding] = {}

    def replay(self, asked: Message, model: ArrayRecord, clip_norm: float) -> None:
        """Find out, in the first round, how far one client can move the model.

        Args:
            asked: A message to a client.
            model: The model that it carries.
            clip_norm: The clip norm.
        """
        strategy = calling_strategy()
        if self._replayed or strategy is None or noise_multiplier_of(strategy) is None or not math.isfinite(clip_norm):
            return
        self._replayed, self._keys = True, list(model)
        inner = getattr(strategy, "strategy", strategy)
        place = f" ({type(strategy).__name__} around {type(inner).__name__})"
        for finding in self._findings(strategy, asked, model, clip_norm):
            if finding.refutes:
                sentence = f"{finding.sentence.rstrip('.')}{place}."
                self._possible.setdefault(
                    finding.check, Finding(check=Check.SENSITIVITY, sentence=sentence, example=finding.example)
                )
        self._report([self._possible[check] for check in _ALWAYS if check in self._possible][:1])

    def _findings(self, strategy: Strategy, asked: Message, model: ArrayRecord, clip_norm: float) -> Sequence[Finding]:
        silent = copied_strategy(strategy, num_sampled_clients=_CLIENTS, noise_multiplier=0.0, accountant=None)
        release: Any = StrategyRelease(
            silent, model, nodes=_CLIENTS, mods=self._mods, metrics=self._metrics, weighted_by=_EXAMPLES, asked=asked,
            number=self._audited.server_round - 1,
        )  # fmt: skip
        # With client-side clipping in mods that are not known here, clients are assumed to clip.
        trusted = not self._mods and "ClientSide" in type(strategy).__name__
        clients = template(model).random(_CLIENTS - 1, norm=2 * clip_norm, seed=0)
        try:
            return replay(
                _Clipped(release, clip_norm) if trusted else release, clients, clip_norm=clip_norm, divisor=_CLIENTS,
                noise_multiplier=None, hostile=not trusted, dropouts=False, rounds=2, quick=True,
            ).findings  # fmt: skip
        except InputError as error:  # the strategy needs metrics, say, that only the clients know
            for audit in self._audited.audits:
                audit.note(f"the strategy was not checked for its sensitivity: {error}")
            return []

    def look_at(self, replies: Sequence[Message]) -> None:
        """Look for replies that the strategy does not treat as the claim assumes, each kind once."""
        contents = [reply.content for reply in replies if reply.has_content()]
        self._compare_weights([record for content in contents for record in content.metric_records.values()])
        records = [record for content in contents for record in content.array_records.values()]
        if Check.ORDER in self._possible and any(list(record) != self._keys for record in records):
            self._report([self._possible.pop(Check.ORDER)])
        if Check.NOT_FINITE in self._possible and self._audited.lost_numbers:
            self._report([self._possible.pop(Check.NOT_FINITE)])

    def _compare_weights(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Compare the weights of clients, if the strategy weights them by their numbers of examples."""
        sizes = [float(record[_EXAMPLES]) for record in records if _EXAMPLES in record]
        if Check.EXAMPLES not in self._possible or len(sizes) < 2 or min(sizes) == max(sizes):
            return
        del self._possible[Check.EXAMPLES]
        ratio = max(sizes) * len(sizes) / sum(sizes)
        sentence = (
            f"The strategy weights clients by {_EXAMPLES}, which differ from {min(sizes):g} to {max(sizes):g}: the "
            f"largest client moved the average by {ratio:.3g} × clip norm / clients; the noise covers 1. Set "
            "weighted_by_key to a metric that is 1 for all."
        )
        self._report([Finding(check=Check.SENSITIVITY, sentence=sentence)])

    def _report(self, findings: Sequence[Finding]) -> None:
        for audit in self._audited.audits:
            audit.add_findings(Check.SENSITIVITY, findings)


class _Clipped:
    """A release whose clients clip their updates before they send them."""

    def __init__(self, release: StrategyRelease, clip_norm: float) -> None:
        self._release, self._clip_norm = release, clip_norm

    def __call__(self, clients: Sequence[Client]) -> dict[str, Any] | None:
        return self._release([Client(self._clipped(client.update), client.examples) for client in clients])

    def _clipped(self, update: Mapping[str, Any]) -> dict[str, Any]:
        norm = math.sqrt(sum(float(np.sum(np.square(part, dtype=np.float64))) for part in update.values()))
        factor = 1 / max(1.0, norm / self._clip_norm)
        return {key: np.asarray(part * factor).astype(part.dtype) for key, part in update.items()}
