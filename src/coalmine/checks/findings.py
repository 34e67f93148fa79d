"""From movements to findings: what exceeds the claim, which of it says something new, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.checks.comparison import Movement
from coalmine.checks.probe_clients import Probe
from coalmine.layers import Layers
from coalmine.results.summary import factor, finding_sentence, plural
from coalmine.results.verdict import Check, Finding

# A check must move the release by this much more than a plain update of the same size to say something new.
_NEW = 1.05


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A client that was tried, and how far it moved the release.

    Args:
        check: Name of the check.
        client: What was tried, in words.
        clip_norms: Movement in units of what a client at the clip norm may move it.
        deviations: Movement in standard deviations of the noise.
        excess: Movement over what the noise covers, as measured; the claim needs at most 1.
        outcome: ``"moved"``, ``"not finite"``, or what was raised.
        hostile: Whether no honest client sends this.
        probe: The client.
        movement: What it did to the release.
        rounds: Number of rounds that were seen.
        tolerance: Relative movement above the allowed one that is due to rounding.
    """

    check: str
    client: str
    clip_norms: float
    deviations: float
    excess: float
    outcome: str
    hostile: bool
    probe: Probe
    movement: Movement
    rounds: int = 1
    tolerance: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return what was tried and how far it moved the release, for JSON; numbers that are not finite become None."""
        row: dict[str, Any] = {"check": self.check, "client": self.client}
        for name in ("clip_norms", "deviations", "excess"):
            number = getattr(self, name)
            row[name] = number if math.isfinite(number) else None
        return row | {"outcome": self.outcome, "hostile": self.hostile}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of `coalmine.replay`.

    Args:
        findings: What is wrong; findings that refute the claim come before the others.
        moved: How far each client moved the release.
        clip_norm: The clip norm.
        noise_multiplier: The claimed noise multiplier.
        noise: Measured standard deviation of the noise.
        unit: Distance that a client at the clip norm moves the release.
        calls: How often the aggregation ran.
        seed: Seed of the replay.
        who: What a client is called.
    """

    findings: tuple[Finding, ...]
    moved: tuple[Moved, ...]
    clip_norm: float
    noise_multiplier: float
    noise: float
    unit: float
    calls: int
    seed: int
    who: str = "client"

    @property
    def ok(self) -> bool:
        """Whether no finding refutes the claim. That is no proof: only so many clients were tried."""
        return not any(finding.refutes for finding in self.findings)

    @property
    def worst(self) -> float:
        """Largest movement over what the noise covers, among the honest clients tried."""
        return max((row.excess for row in self.moved if not row.hostile), default=0.0)

    @property
    def summary(self) -> str:
        """The outcome in a sentence."""
        covers = "the noise covers" if self.noise_multiplier else "the clip norm allows"
        refuting = sum(finding.refutes for finding in self.findings)
        if refuting:
            return f"Refuted: one {self.who} moves the release by more than {covers} ({plural(refuting, 'bug')})."
        return (
            f"Not refuted: no honest {self.who} tried moves the release by more than {covers} (largest movement: "
            f"{self.worst:.3g} of that). This is not a proof of privacy."
        )

    def __str__(self) -> str:
        """A summary, the findings with their examples, and the noise that they were judged by."""
        lines = [self.summary]
        for finding in self.findings:
            lines.append(f"- {finding_sentence(finding)}")
            if finding.example and finding.refutes:
                lines.append(f"  Example: {finding.example}")
        if not self.ok:
            lines.append(
                "Here C is the clip norm, v is rng.uniform(1, 1.2, d) * rng.choice([-1, 1], d) over its norm with "
                f"rng = default_rng({self.seed}), and e[i] is 1 in coordinate i."
            )
        noise = f"{self.noise:.4g}" if self.noise_multiplier else "not judged"
        lines.append(f"Noise: {noise}; {len(self.moved)} {self.who}s tried in {self.calls:,} calls, seed {self.seed}.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON; numbers that are not finite become None."""
        lists = {"findings": [f.to_dict() for f in self.findings], "moved": [row.to_dict() for row in self.moved]}
        return {"ok": self.ok, **vars(self), **lists}


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Turns movements into findings.

    Args:
        noise_multiplier: The claimed noise multiplier.
        noise: Measured standard deviation of the noise; 0 if there is none.
        layers: Arrays of the release.
        hostile: Whether findings about replies that no honest client sends refute the claim.
        who: What a client is called.
    """

    noise_multiplier: float
    noise: float
    layers: Layers
    hostile: bool
    who: str

    def findings(self, rows: Sequence[Moved]) -> list[Finding]:
        """Return one finding per check, those that refute the claim first."""
        findings: list[Finding] = []
        named = set[str]()  # arrays that are known to lack noise
        groups: dict[tuple[str, bool], list[Moved]] = {}
        for row in rows:
            # Too far, beyond rounding and the error of the measured noise.
            if row.movement.lower > 1 + row.tolerance:
                groups.setdefault((row.check, row.hostile), []).append(row)
        worst: list[Moved] = []
        for group in groups.values():
            # The first movement of a check that is nearly as bad as the worst, or bad enough for anyone.
            enough = min(0.95 * max(row.excess for row in group), 30.0)
            bare = [row for row in group if row.movement.bare]
            worst.append((bare or [row for row in group if row.excess >= enough])[0])
        for row in sorted(worst, key=lambda row: not row.movement.bare):
            movement, probe = row.movement, row.probe
            refutes = self.hostile or not probe.hostile
            check = row.check
            arrays: list[str] = []
            # Whether a plain update moves the release no further than it may, and the noise is too small for that.
            allowed = row.clip_norms <= max(1 + row.tolerance, _NEW)
            little_noise = probe.plain and movement.exact and self.noise > 0 and allowed
            if movement.bare:
                check = Check.PLACES
                holders = np.searchsorted(self.layers.ends, np.asarray(movement.bare), side="right")
                arrays = [self.layers.names[i] for i in np.unique(holders)]
                if named.issuperset(arrays):
                    continue
                if refutes:
                    named.update(arrays)
            elif little_noise:
                check = Check.SIZE
            elif not probe.plain and movement.excess <= _NEW * self._plain(rows, probe):
                continue
            findings.append(
                Finding(check=check, sentence=self._sentence(row, arrays, little_noise), refutes=refutes,
                        p_value=min(movement.p_value, 1.0), example=probe.code)
            )  # fmt: skip
        findings += self._not_finite(rows, findings)
        for row in rows:
            probe = row.probe
            if row.movement.refusal and not probe.hostile and not probe.may_refuse:
                findings.append(self.refused(row.movement.refusal, row.client, probe.code))
                break
        return sorted(findings, key=lambda finding: not finding.refutes)

    def refused(self, refusal: str, clause: str, example: str) -> Finding:
        """Return a warning that the aggregation fails on a client that it should cope with."""
        sentence = f"The aggregation failed ({refusal}) when {clause}: one such {self.who} stops the round."
        return Finding(check=Check.REFUSED, sentence=sentence, refutes=False, example=example)

    def _not_finite(self, rows: Sequence[Moved], others: Sequence[Finding]) -> list[Finding]:
        """Return a finding if a client makes the release NaN or infinite, unless there is one that says as much."""
        spoilt = sorted((row for row in rows if row.movement.not_finite), key=lambda row: row.hostile)
        if not spoilt or any(f.check == Check.NOT_FINITE for f in others):
            return []
        movement, probe = spoilt[0].movement, spoilt[0].probe
        refutes = self.hostile or not probe.hostile
        unless = "" if refutes else f": a bug if {self.who}s are hostile"
        sentence = (
            f"{plural(movement.not_finite, 'coordinate')} became NaN or infinite when {spoilt[0].client}{unless}."
        )
        return [Finding(check=Check.NOT_FINITE, sentence=sentence, refutes=refutes, example=probe.code)]

    def _plain(self, rows: Sequence[Moved], probe: Probe) -> float:
        """Return how far a plain update of about this size moved the release, over what is allowed; at least 1."""
        largest = 1.0
        for row in rows:
            if row.probe.plain and row.excess < math.inf and row.probe.length <= max(probe.length, 1.0):
                largest = max(largest, row.excess / (1 + row.tolerance))
        return largest

    def _sentence(self, row: Moved, arrays: Sequence[str], little_noise: bool) -> str:
        """Say what happened."""
        movement, probe = row.movement, row.probe
        when = f"when {row.client}"
        if movement.bare:
            more = f" and {len(arrays) - 3:,} more arrays" if len(arrays) > 3 else ""
            names = ", ".join(repr(name) for name in arrays[:3]) + more
            return f"{names}: {plural(len(movement.bare), 'coordinate')} without noise moved {when}."
        if math.isinf(movement.excess):
            why = "rounds share their noise" if row.rounds > 1 else "the release changed its shape"
            return f"The {self.who} shows without any noise {when}: {why}."
        if little_noise:
            return (
                f"The noise is too small: it covers {1 / movement.excess:.2g} of how far the output moved {when} "
                f"(noise multiplier {self.noise_multiplier:g})."
            )
        covers = "the noise covers" if self.noise_multiplier and self.noise else "the clip norm allows"
        unless = "" if self.hostile or not probe.hostile else f": a bug if {self.who}s are hostile"
        if not movement.exact and abs(math.log(movement.noise_ratio)) > 1e-3:
            return (
                f"The noise depends on the {self.who}s: its standard deviation changed by a factor of "
                f"{movement.noise_ratio:.4g} {when}, which counts as {factor(movement.excess)} times what the claim "
                f"allows{unless}."
            )
        least = "" if movement.exact else "at least "
        seen = "The outputs of all rounds together" if row.rounds > 1 else "The output"
        return f"{seen} moved by {least}{factor(movement.excess)} times what {covers} {when}{unless}."
