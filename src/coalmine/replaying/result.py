"""What a replay found: how far each client moved the release, and the findings."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from coalmine.results.finding import Finding
from coalmine.results.summary import factor, finding_sentence, plural

# Patterns of what examples name, and what it means.
_SYMBOLS = {
    r"C\b": "C is the clip norm",
    r"C/m\b": "m is what the sum of updates is divided by",
    r"v\b": "v is rng.uniform(1, 1.2, d) * rng.choice([-1, 1], d) over its norm, with rng = default_rng({seed})",
    r"s\b": "s is geomspace(1, 0.001, d) over its norm",
    r"e\[": "e[i] is 1 in coordinate i and 0 elsewhere",
    r"mean\b": "mean is the average of the given clients over its norm",
}


@dataclass(frozen=True, kw_only=True)
class Moved:
    """How far one client moved the release.

    Args:
        check: Name of the check.
        client: What was tried, in words.
        clip_norms: Movement in units of what a client at the clip norm may move it: C, or C/m for an average over m.
        deviations: Movement in standard deviations of the noise.
        excess: Movement over what the noise covers, as measured; the claim needs at most 1.
        limit: What ``excess`` may come to by rounding and by the error of the measured noise.
        outcome: ``"moved"``, ``"not finite"``, or what was raised.
        hostile: Whether no honest client sends this.
        warns: Whether it is only a warning if the release moves too far, as with the number of clients.
    """

    check: str
    client: str
    clip_norms: float
    deviations: float
    excess: float
    limit: float = 1.0
    outcome: str = "moved"
    hostile: bool = False
    warns: bool = False


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
        divisor: What the sum of updates is divided by: as given, or as measured; None if a client at the clip norm
            does not move the release by the clip norm over a whole number.
        divisor_given: Whether ``divisor`` was given.
        reproducible: Whether all randomness could be repeated.
        calls: How often the aggregation ran.
        seed: Seed of the replay.
        who: What a client is called.
    """

    findings: tuple[Finding, ...]
    moved: tuple[Moved, ...]
    clip_norm: float
    noise_multiplier: float
    noise: float
    noise_error: float
    unit: float
    divisor: float | None
    divisor_given: bool
    reproducible: bool
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
        return max((row.excess for row in self._honest), default=0.0)

    def __str__(self) -> str:
        """A summary, the findings with their examples, and the noise that they were judged by."""
        lines = [self.summary]
        for finding in self.findings:
            lines.append(f"- {finding_sentence(finding)}")
            if finding.example and finding.refutes:
                lines.append(f"  Smallest example: {finding.example}")
        lines += self._legend
        noise = f"{self.noise:.4g} ± {100 * self.noise_error:.1g}%" if self.noise else "none"
        if not self.noise_multiplier:
            noise = "not judged"
        lines.append(f"Noise: {noise}; {len(self.moved)} {self.who}s tried in {self.calls:,} calls, seed {self.seed}.")
        if not self.reproducible:
            lines.append("The randomness could not be repeated: movements are averages over draws.")
        return "\n".join(lines)

    @property
    def _legend(self) -> list[str]:
        """A line that says what letters in sentences and in the examples of bugs mean."""
        units = re.findall(r"× (C\b(?:/m)?)", " ".join([self.summary, *map(str, self.findings)]))
        text = " ".join([*units, *(finding.example for finding in self.findings if finding.refutes)])
        meanings = [
            meaning.format(seed=self.seed) for symbol, meaning in _SYMBOLS.items() if re.search(rf"\b{symbol}", text)
        ]
        return [f"Here {'; '.join(meanings)}."] if meanings else []

    @property
    def summary(self) -> str:
        """The outcome in a sentence."""
        refuting = sum(finding.refutes for finding in self.findings)
        if refuting:
            more = "the noise covers" if self.noise_multiplier else "the clip norm allows"
            return f"Refuted: one {self.who} moves the release by more than {more} ({plural(refuting, 'bug')})."
        row = max(self._honest, key=lambda row: row.excess, default=None)
        limit = 1.0 if row is None else row.limit
        error = f"; up to {limit:.3g} may be an error of measurement" if round(self.worst, 2) > 1 else ""
        if not self.noise_multiplier:
            unit = unit_name(self.divisor, given=self.divisor_given) or "what a plain update of the clip norm does"
            return f"Not refuted: no {self.who} moved the release by more than {factor(self.worst)} × {unit}{error}."
        return (
            f"Not refuted: the noise covers every honest {self.who} tried (largest movement: {self.worst:.3g} of what "
            f"it covers{error}). This is not a proof of privacy."
        )

    @property
    def _honest(self) -> list[Moved]:
        return [row for row in self.moved if not row.hostile and not row.warns]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON; numbers that are not finite become None."""
        content = {name: value for name, value in vars(self).items() if name not in ("findings", "moved")}
        rows = [{k: _plain(v) for k, v in asdict(row).items()} for row in self.moved]
        return {"ok": self.ok, **content, "findings": [f.to_dict() for f in self.findings], "moved": rows}


def unit_name(divisor: float | None, *, given: bool) -> str:
    """Name the unit of movements, C for sums and C/m for averages; empty if it is not known."""
    if divisor is None or divisor == 1:
        return "" if divisor is None else "C"
    return f"C/m (m = {divisor:,.6g}{'' if given else ', measured'})"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
