"""From movements to findings: what exceeds the claim, which of it says something new, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coalmine.checks.comparison import Movement
from coalmine.checks.probe_clients import Probe
from coalmine.layers import Layers
from coalmine.results.finding import Check, Finding
from coalmine.results.summary import factor, finding_sentence, plural

# A check must move the release by this much more than a plain update of the same size to say something new.
_NEW = 1.05


@dataclass(frozen=True, kw_only=True)
class Moved:
    """How far one client moved the release.

    Args:
        check: Name of the check.
        client: What was tried, in words.
        clip_norms: Movement in units of what a client at the clip norm may move it.
        deviations: Movement in standard deviations of the noise.
        excess: Movement over what the noise covers, as measured; the claim needs at most 1.
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
        content = {name: value for name, value in vars(self).items() if name not in ("findings", "moved")}
        rows = [asdict(row) for row in self.moved]
        for row in rows:
            row.update({k: None for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)})
        return {"ok": self.ok, **content, "findings": [f.to_dict() for f in self.findings], "moved": rows}


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A client that was tried, and what it did.

    Args:
        probe: The client.
        movement: What it did to the release.
        rounds: Number of rounds that were seen.
        tolerance: Relative movement above the allowed one that is due to rounding.
    """

    probe: Probe
    movement: Movement
    rounds: int
    tolerance: float

    @property
    def is_too_far(self) -> bool:
        """Whether it moved the release too far, beyond rounding and the error of the measured noise."""
        return self.movement.lower > 1 + self.tolerance


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Turns observations into findings.

    Args:
        noise_multiplier: The claimed noise multiplier.
        noise: Measured standard deviation of the noise; 0 if there is none.
        layers: Arrays of the release.
        unit: How far a client at the clip norm moves the release.
        hostile: Whether findings about replies that no honest client sends refute the claim.
        who: What a client is called.
    """

    noise_multiplier: float
    noise: float
    layers: Layers
    unit: float
    hostile: bool
    who: str

    def row(self, observation: Observation) -> Moved:
        """Return an observation as a row of the result."""
        movement, probe = observation.movement, observation.probe
        return Moved(
            check=probe.check, client=self._clause(probe), clip_norms=movement.length / self.unit,
            deviations=movement.deviations, excess=movement.excess, hostile=probe.hostile,
            outcome=movement.refusal or ("not finite" if movement.not_finite else "moved"),
        )  # fmt: skip

    def findings(self, observations: Sequence[Observation]) -> list[Finding]:
        """Return one finding per check, those that refute the claim first."""
        findings: list[Finding] = []
        named = set[str]()  # arrays that are known to lack noise
        groups: dict[tuple[str, bool], list[Observation]] = {}
        for observation in observations:
            if observation.is_too_far:
                groups.setdefault((observation.probe.check, observation.probe.hostile), []).append(observation)
        worst = [_plainest(group) for group in groups.values()]
        for observation in sorted(worst, key=lambda o: not o.movement.bare):
            movement, probe = observation.movement, observation.probe
            refutes = self.hostile or not probe.hostile
            arrays = self._arrays(movement.bare)
            if movement.bare and set(arrays) <= named:
                continue
            named |= set(arrays) if refutes else set()
            if not movement.bare and not probe.plain and movement.excess <= _NEW * self._plain(observations, probe):
                continue
            findings.append(
                Finding(check=self._check(observation), sentence=self._sentence(observation, arrays), refutes=refutes,
                        p_value=min(movement.p_value, 1.0), example=probe.code)
            )  # fmt: skip
        findings += self._not_finite(observations, findings)
        for observation in observations:
            probe = observation.probe
            if observation.movement.refusal and not probe.hostile and not probe.may_refuse:
                findings.append(self.refused(observation.movement.refusal, self._clause(probe), probe.code))
                break
        return sorted(findings, key=lambda finding: not finding.refutes)

    def refused(self, refusal: str, clause: str, example: str) -> Finding:
        """Return a warning that the aggregation fails on a client that it should cope with."""
        sentence = f"The aggregation failed ({refusal}) when {clause}: one such {self.who} stops the round."
        return Finding(check=Check.REFUSED, sentence=sentence, refutes=False, example=example)

    def _not_finite(self, observations: Sequence[Observation], others: Sequence[Finding]) -> list[Finding]:
        """Return a finding if a client makes the release NaN or infinite, unless there is one that says as much."""
        spoilt = [o for o in observations if o.movement.not_finite]
        spoilt.sort(key=lambda o: o.probe.hostile)
        if not spoilt or any(f.check == Check.NOT_FINITE for f in others):
            return []
        movement, probe = spoilt[0].movement, spoilt[0].probe
        refutes = self.hostile or not probe.hostile
        unless = "" if refutes else f": a bug if {self.who}s are hostile"
        sentence = (
            f"{plural(movement.not_finite, 'coordinate')} became NaN or infinite when {self._clause(probe)}{unless}."
        )
        return [Finding(check=Check.NOT_FINITE, sentence=sentence, refutes=refutes, example=probe.code)]

    def _clause(self, probe: Probe) -> str:
        """Say what happened, after "when"."""
        return f"one {self.who} {probe.sends} {probe.does}"

    def _plain(self, observations: Sequence[Observation], probe: Probe) -> float:
        """Return how far a plain update of about this size moved the release, over what is allowed; at least 1."""
        sizes = [
            o.movement.excess / (1 + o.tolerance)
            for o in observations
            if o.probe.plain and math.isfinite(o.movement.excess) and o.probe.length <= max(probe.length, 1.0)
        ]
        return max([1.0, *sizes])

    def _check(self, observation: Observation) -> str:
        """Return the name of the check that an excessive movement belongs to."""
        if observation.movement.bare:
            return Check.PLACES
        return Check.SIZE if self._too_little_noise(observation) else observation.probe.check

    def _too_little_noise(self, observation: Observation) -> bool:
        """Whether a plain update moves the release no further than it may, and the noise is too small for that."""
        allowed = observation.movement.length / self.unit <= max(1 + observation.tolerance, _NEW)
        return observation.probe.plain and observation.movement.exact and self.noise > 0 and allowed

    def _sentence(self, observation: Observation, arrays: Sequence[str]) -> str:
        """Say what happened."""
        movement, probe = observation.movement, observation.probe
        when = f"when {self._clause(probe)}"
        if movement.bare:
            more = f" and {len(arrays) - 3:,} more arrays" if len(arrays) > 3 else ""
            names = ", ".join(repr(name) for name in arrays[:3]) + more
            return f"{names}: {plural(len(movement.bare), 'coordinate')} without noise moved {when}."
        if math.isinf(movement.excess):
            why = "rounds share their noise" if observation.rounds > 1 else "the release changed its shape"
            return f"The {self.who} shows without any noise {when}: {why}."
        if self._too_little_noise(observation):
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
        seen = "The outputs of all rounds together" if observation.rounds > 1 else "The output"
        return f"{seen} moved by {least}{factor(movement.excess)} times what {covers} {when}{unless}."

    def _arrays(self, coordinates: Sequence[int]) -> list[str]:
        """Return the names of the arrays that hold coordinates."""
        indices = np.searchsorted(self.layers.ends, np.asarray(coordinates, dtype=np.int64), side="right")
        return [self.layers.names[i] for i in np.unique(indices)]


def _plainest(group: Sequence[Observation]) -> Observation:
    """Return the first observation of a check that is nearly as bad as the worst, or bad enough for anyone."""
    bare = [observation for observation in group if observation.movement.bare]
    enough = min(0.95 * max(observation.movement.excess for observation in group), 30.0)
    return (bare or [observation for observation in group if observation.movement.excess >= enough])[0]
