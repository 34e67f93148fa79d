"""What a replay found: how far each client moved the release, and the findings."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from coalmine.results.finding import Finding
from coalmine.results.words import finding_sentence


@dataclass(frozen=True, kw_only=True)
class Moved:
    """How far one client moved the release.

    Args:
        check: Name of the check.
        client: What was tried, in words.
        clip_norms: Movement in units of what a client at the clip norm may move it: C, or C/m for an average over m.
        deviations: Movement in standard deviations of the noise.
        excess: Movement over what the noise covers; the claim needs at most 1.
        outcome: ``"moved"``, ``"not finite"``, or what was raised.
        hostile: Whether no honest client sends this.
    """

    check: str
    client: str
    clip_norms: float
    deviations: float
    excess: float
    outcome: str = "moved"
    hostile: bool = False


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of `coalmine.replay`.

    Args:
        findings: What is wrong, worst first; those that refute the claim come before the others.
        moved: How far each client moved the release.
        clip_norm: The clip norm.
        noise_multiplier: The claimed noise multiplier.
        noise: Measured standard deviation of the noise.
        noise_error: Relative standard error of ``noise``.
        unit: Distance that a client at the clip norm moves the release.
        reproducible: Whether all randomness could be repeated.
        calls: How often the aggregation ran.
        seed: Seed of the replay.
    """

    findings: tuple[Finding, ...]
    moved: tuple[Moved, ...]
    clip_norm: float
    noise_multiplier: float
    noise: float
    noise_error: float
    unit: float
    reproducible: bool
    calls: int
    seed: int

    @property
    def ok(self) -> bool:
        """Whether no finding refutes the claim. That is no proof: only so many clients were tried."""
        return not any(finding.refutes for finding in self.findings)

    @property
    def worst(self) -> float:
        """Largest movement over what the noise covers, among the honest clients tried."""
        rows = [row for row in self.moved if not row.hostile and row.check != "number of clients"]
        return max((row.excess for row in rows), default=0.0)

    def __str__(self) -> str:
        """A summary, the findings with their examples, and the noise that they were judged by."""
        lines = [self.summary]
        for finding in self.findings:
            lines.append(f"- {finding_sentence(finding)}")
            if finding.example:
                lines.append(f"  Smallest example: {finding.example}")
        noise = f"{self.noise:.4g} ± {100 * self.noise_error:.1g}%" if self.noise else "none"
        lines.append(f"Noise: {noise}; {len(self.moved)} clients tried in {self.calls:,} calls, seed {self.seed}.")
        if not self.reproducible:
            lines.append("The randomness could not be repeated: movements are averages over draws.")
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """The outcome in a sentence."""
        refuting = sum(finding.refutes for finding in self.findings)
        if refuting:
            return f"Refuted: one client moves the release by more than its noise covers ({count(refuting, 'bug')})."
        if not self.noise_multiplier:
            return f"Not refuted: no client moved the release by more than {self.worst:.3g} × {unit_text(self)}."
        return (
            f"Not refuted: the noise covers every honest client tried (largest movement: {self.worst:.3g} of what it "
            "covers). This is not a proof of privacy."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON; numbers that are not finite become None."""
        content = {name: value for name, value in vars(self).items() if name not in ("findings", "moved")}
        rows = [{k: _plain(v) for k, v in asdict(row).items()} for row in self.moved]
        return {"ok": self.ok, **content, "findings": [f.to_dict() for f in self.findings], "moved": rows}


def unit_text(replay: Replay) -> str:
    """Name the unit of movements: C for sums, C/m for averages."""
    return unit_name(replay.unit / replay.clip_norm)


def unit_name(slope: float) -> str:
    """Name the unit of movements, from how far a client moves the release per clip norm."""
    if not slope or not math.isfinite(slope) or abs(slope - 1) < 0.01:
        return "C"
    size = 1 / slope
    whole = abs(size - round(size)) < 0.02 * size and round(size) > 1
    return f"C/m (m = {round(size):,})" if whole else f"C/{size:.3g}"


def count(number: int, noun: str) -> str:
    """Return ``1 bug`` or ``2 bugs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
