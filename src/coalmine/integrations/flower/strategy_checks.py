"""Checks of a Flower strategy: what one client can do to the model, and whether any client does it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, Message

from coalmine.integrations.flower.probe import SENSITIVITY, Probe, Reply, calling_strategy, noise_multiplier_of
from coalmine.integrations.flower.rounds import AuditedRounds
from coalmine.results.finding import Finding

_EXAMPLES = "num-examples"


class StrategyChecks:
    """Probes the strategy once, and compares the replies of all rounds with what it does.

    Args:
        audited: The audits that findings go to.
        clips_here: Whether replies go through the mods of the ClientApp, which clip if the strategy does not.
    """

    def __init__(self, audited: AuditedRounds, *, clips_here: bool) -> None:
        self._audited, self._clips_here = audited, clips_here
        self._probe: Probe | None = None
        self._probed, self._weighs = False, False

    def probe(self, arrays: ArrayRecord, clip_norm: float, reply: Reply) -> None:
        """Ask a copy of the strategy, in the first round, how far one client moves the model.

        Args:
            arrays: The model that clients received.
            clip_norm: The clip norm.
            reply: How a client replies.
        """
        strategy = calling_strategy()
        if self._probed or strategy is None or noise_multiplier_of(strategy) is None or not math.isfinite(clip_norm):
            return
        self._probed = True
        self._probe = Probe(
            strategy=strategy,
            server_round=self._audited.server_round,
            arrays=arrays,
            reply=reply,
            clip_norm=clip_norm,
            clipped=self._clips_here or "ClientSide" not in type(strategy).__name__,
        )
        self._weighs = self._probe.weight_ratio() > 2
        self._report(self._probe.findings())

    def look_at(self, replies: Sequence[Message]) -> None:
        """Look for replies that the strategy does not treat as the claim assumes, each kind once."""
        contents = [reply.content for reply in replies if reply.has_content()]
        self._compare_weights([record for content in contents for record in content.metric_records.values()])
        probe = self._probe
        if probe is None or not probe.clipped:
            return
        keys = list(probe.arrays)
        reordered = any(list(record) != keys for content in contents for record in content.array_records.values())
        if reordered or self._audited.lost_numbers:
            self._probe = None
            finding = probe.order_finding() if reordered else probe.nan_finding()
            self._report([] if finding is None else [finding])

    def _compare_weights(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Compare the weights of clients, if the strategy weights them by their numbers of examples."""
        sizes = [float(record[_EXAMPLES]) for record in records if _EXAMPLES in record]
        if not self._weighs or len(sizes) < 2 or min(sizes) == max(sizes):
            return
        self._weighs = False
        ratio = max(sizes) * len(sizes) / sum(sizes)
        sentence = (
            f"The strategy weights clients by {_EXAMPLES}, which differ from {min(sizes):g} to {max(sizes):g}: the "
            f"largest client moved the average by {ratio:.3g} × clip norm / clients; the noise covers 1. Set "
            "weighted_by_key to a metric that is 1 for all."
        )
        self._report([Finding(check=SENSITIVITY, sentence=sentence)])

    def _report(self, findings: Sequence[Finding]) -> None:
        for audit in self._audited.audits:
            audit.add_findings(SENSITIVITY, findings)
