"""From movements to findings: what exceeds the claim, which of it says something new, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.checks.clients import Probe
from coalmine.checks.comparison import Movement
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
        for row in _worst_of_each_check(rows):
            movement, probe = row.movement, row.probe
            refutes = self.hostile or not probe.hostile
            holders = np.searchsorted(self.layers.ends, np.asarray(movement.bare, dtype=np.int64), side="right")
            arrays = [self.layers.names[i] for i in np.unique(holders)]
            # Whether a plain update moves the release no further than it may, and the noise is too small for that.
            allowed = row.clip_norms <= max(1 + row.tolerance, _NEW)
            little_noise = probe.plain and movement.exact and self.noise > 0 and allowed
            # A finding must say more than others: another array, or a movement beyond that of a plain update of about
            # this size.
            plain = [1.0]
            for other in rows if not probe.plain else ():
                if other.probe.plain and other.excess < math.inf and other.probe.length <= max(probe.length, 1.0):
                    plain.append(other.excess / (1 + other.tolerance))
            check, is_new = row.check, probe.plain or movement.excess > _NEW * max(plain)
            if arrays:
                check, is_new = Check.PLACES, not named.issuperset(arrays)
                named.update(arrays if refutes else ())
            elif little_noise:
                check = Check.SIZE
            if is_new:
                sentence = self._sentence(row, arrays, little_noise)
                p_value = min(movement.p_value, 1.0)
                findings.append(
                    Finding(check=check, sentence=sentence, refutes=refutes, p_value=p_value, example=probe.code)
                )
        known = {finding.check for finding in findings}
        spoilt = sorted((row for row in rows if row.movement.not_finite), key=lambda row: row.hostile)
        for row in spoilt[:1] if Check.NOT_FINITE not in known else ():
            coordinates = plural(row.movement.not_finite, "coordinate")
            sentence = f"{coordinates} became NaN or infinite when {row.client}{self._unless(row)}."
            refutes = self.hostile or not row.hostile
            findings.append(Finding(check=Check.NOT_FINITE, sentence=sentence, refutes=refutes, example=row.probe.code))
        refused = [row for row in rows if row.movement.refusal and not (row.hostile or row.probe.may_refuse)]
        for row in refused[:1]:
            findings.append(self.refused(row.movement.refusal, row.client, row.probe.code))
        return sorted(findings, key=lambda finding: not finding.refutes)

    def refused(self, refusal: str, clause: str, example: str) -> Finding:
        """Return a warning that the aggregation fails on a client that it should cope with."""
        sentence = f"The aggregation failed ({refusal}) when {clause}: one such {self.who} stops the round."
        return Finding(check=Check.REFUSED, sentence=sentence, refutes=False, example=example)

    def _unless(self, row: Moved) -> str:
        """Say that only a hostile client sends this, if these do not count as bugs."""
        return f": a bug if {self.who}s are hostile" if row.hostile > self.hostile else ""

    def _sentence(self, row: Moved, arrays: Sequence[str], little_noise: bool) -> str:
        """Say what happened."""
        movement, when = row.movement, f"when {row.client}"
        if arrays:
            more = f" and {len(arrays) - 3:,} more arrays" if len(arrays) > 3 else ""
            names = ", ".join(map(repr, arrays[:3])) + more
            return f"{names}: {plural(len(movement.bare), 'coordinate')} without noise moved {when}."
        if math.isinf(movement.excess):
            why = "rounds share their noise" if row.rounds > 1 else "the release changed its shape"
            return f"The {self.who} shows without any noise {when}: {why}."
        if little_noise:
            return (
                f"The noise is too small: it covers {1 / movement.excess:.2g} of how far the output moved {when} "
                f"(noise multiplier {self.noise_multiplier:g})."
            )
        if not movement.exact and abs(math.log(movement.noise_ratio)) > 1e-3:
            return (
                f"The noise depends on the {self.who}s: its standard deviation changed by a factor of "
                f"{movement.noise_ratio:.4g} {when}, which counts as {factor(movement.excess)} times what the claim "
                f"allows{self._unless(row)}."
            )
        covers = "the noise covers" if self.noise_multiplier * self.noise else "the clip norm allows"
        least = "" if movement.exact else "at least "
        seen = "The outputs of all rounds together" if row.rounds > 1 else "The output"
        return f"{seen} moved by {least}{factor(movement.excess)} times what {covers} {when}{self._unless(row)}."


def _worst_of_each_check(rows: Sequence[Moved]) -> list[Moved]:
    """Return a movement of each check that went too far, those in coordinates without noise first."""
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
        worst += (bare or [row for row in group if row.excess >= enough])[:1]
    return sorted(worst, key=lambda row: not row.movement.bare)
