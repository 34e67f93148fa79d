"""From movements to findings: what exceeds the claim, which of it says something new, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from coalmine.results.result import from_json, in_json
from coalmine.results.summary import causes, factor, plural
from coalmine.results.verdict import Check, Finding

# A check must move the release by this much more than a plain update of the same size to say something new.
_NEW = 1.05
# Relative difference up to which a measured movement, or noise, is that of a sum or an average.
_ALIKE = 0.1


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A client that was tried, and how far it moved the release.

    Args:
        check: Name of the check.
        client: What was tried, in words.
        example: What the client sends, as code.
        length: Norm of its update, in clip norms.
        clip_norms: Movement in units of what a client at the clip norm may move it.
        excess: Movement over what the noise covers, as measured; the claim needs at most 1.
        lower: Lower limit on ``excess``, given the error of the measured noise.
        p_value: Probability of such a movement if the noise covers it; 0 where that needs no statistics.
        shown: Share of the random draws in which the client moved the release like this; 0 if these are averages.
        noise_ratio: Ratio of the noise with the client to that without.
        arrays: Arrays in which coordinates moved that carry no noise.
        bare: How many such coordinates there are.
        not_finite: How many coordinates became NaN or infinite.
        refusal: What was raised instead of a release.
        hostile: Whether no honest client sends this.
        plain: Whether this is a plain update: a finding of another check must move the release further.
    """

    check: str
    client: str
    example: str
    length: float = 1.0
    clip_norms: float = 0.0
    excess: float = 0.0
    lower: float = 0.0
    p_value: float = 0.0
    shown: float = 1.0
    noise_ratio: float = 1.0
    arrays: Sequence[str] = ()
    bare: int = 0
    not_finite: int = 0
    refusal: str = ""
    hostile: bool = False
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of `coalmine.replay`: what was measured, and the findings that follow from it.

    Args:
        moved: How far each client moved the release.
        clip_norm: The clip norm.
        noise_multiplier: The claimed noise multiplier; 0 if movements are compared with the clip norm.
        noise: Measured standard deviation of the noise.
        unit: Distance that a client at the clip norm moves the release.
        tolerance: Relative movement above the allowed one that is due to rounding.
        clients: How many other clients there are; 0 if unknown.
        calls: How often the aggregation ran.
        seed: Seed of the replay.
        who: What a client is called.
        hostile: Whether findings about what no honest client sends refute the claim.
        without_noise: Whether the release carried no noise although the claim has some.
        noise_in_state: Whether there is noise after all, in what the release keeps from round to round.
        reported: Names of checks in groups, if only the first refuting finding of each group counts.
        about: What was replayed, at the end of each sentence then; otherwise what to say of findings.
        complete: Whether all was replayed; a check that looked at a part only does not count as made.

    Attributes:
        findings: What is wrong; findings that refute the claim come before the others.
    """

    moved: Sequence[Moved]
    clip_norm: float
    noise_multiplier: float = 0.0
    noise: float = 0.0
    unit: float = 1.0
    tolerance: float = 0.0
    clients: int = 0
    calls: int = 0
    seed: int = 0
    who: str = "client"
    hostile: bool = False
    without_noise: bool = False
    noise_in_state: bool = False
    reported: Sequence[Sequence[str]] | None = None
    about: str = ""
    complete: bool = True

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
        measured = ", which is within the error of the measured noise" * (self.worst > 1.005)
        return (
            f"Not refuted: no honest {self.who} tried moves the release by more than {covers} (largest movement: "
            f"{self.worst:.3g} of that{measured}). This is not a proof of privacy."
        )

    def __str__(self) -> str:
        """A summary, the findings with their examples, and the noise that they were judged by."""
        lines = [self.summary]
        for cause in causes(self.findings):
            lines.append(f"- {cause}")
            if cause.finding.example and cause.finding.refutes:
                lines.append(f"  Example: {cause.finding.example}")
        if not self.ok:
            lines += [self.about] if self.about and self.reported is None else []
            lines.append(
                "Here C is the clip norm, v is rng.uniform(1, 1.2, d) * rng.choice([-1, 1], d) over its norm with "
                f"rng = default_rng({self.seed}), and e[i] is 1 in coordinate i."
            )
        noise = f"{self.noise:.4g}" if self.noise_multiplier else "not judged"
        lines.append(f"Noise: {noise}; {len(self.moved)} {self.who}s tried in {self.calls:,} calls, seed {self.seed}.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return all that was measured, ready for JSON: the findings follow from it."""
        moved = [{name: in_json(value) for name, value in vars(row).items()} for row in self.moved]
        measured = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return measured | {"moved": moved}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the replay that `to_dict` wrote."""
        rows = [Moved(**{name: from_json(value) for name, value in row.items()}) for row in content["moved"]]
        return cls(**{**content, "moved": rows})

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong; findings that refute the claim come before the others."""
        every = sorted([*self._about_noise(), *self._about_clients()], key=lambda finding: finding.rank)
        if self.reported is None:
            return tuple(every)
        chosen = []
        for group in self.reported:
            for finding in [f for check in group for f in every if f.refutes and f.check == check][:1]:
                chosen.append(replace(finding, sentence=f"{finding.sentence.rstrip('.')} ({self.about})."))
        return tuple(chosen)

    def _about_noise(self) -> list[Finding]:
        """Return a finding if the release carries no noise."""
        if not self.without_noise:
            return []
        sentence = (
            "The release carries no noise: it was the same in all runs, and the claim is a noise multiplier of "
            f"{self.noise_multiplier:g}. Noise from a fixed seed, or drawn only once, counts as none."
        )
        if self.noise_in_state:
            sentence = (
                "The noise comes from the state of the release, so that replay could not vary it and looked only for "
                "movements beyond the clip norm. It protects only if nobody knows that state, such as a seed"
            )
        return [Finding(check=Check.SIZE, sentence=sentence, refutes=not self.noise_in_state)]

    def _about_clients(self) -> list[Finding]:
        """Return one finding per check."""
        findings: list[Finding] = []
        named = set[str]()  # arrays that are known to lack noise
        for row in self._worst_of_each_check():
            refutes = self.hostile or not row.hostile
            # Whether a plain update moves the release no further than it may, and the noise is too small for that.
            allowed = row.clip_norms <= max(1 + self.tolerance, _NEW)
            little_noise = row.plain and row.shown == 1 and self.noise > 0 and allowed
            # An update of the clip norm needs no clipping, so what moves too far is something else.
            too_far = little_noise and self._too_far
            # A finding must say more than others: another array, or a movement beyond that of a plain update of about
            # this size.
            plain = [1.0]
            for other in self.moved:
                if other.plain and other.excess < math.inf and other.length <= max(row.length, 1.0):
                    plain.append(other.excess / (1 + self.tolerance))
            check, is_new = row.check, row.plain or row.lower > _NEW * max(plain)
            if row.arrays:
                check, is_new = Check.PLACES, not named.issuperset(row.arrays)
                named.update(row.arrays if refutes else ())
            elif too_far:
                check = Check.SENSITIVITY
            elif self._changes_noise(row):
                check = Check.SHAPE
            elif little_noise:
                check = Check.SIZE
            elif row.plain and row.length <= 1:  # such an update needs no clipping
                check = Check.SENSITIVITY
            if is_new:
                sentence, p_value = self._sentence(row, little_noise), min(row.p_value, 1.0)
                findings.append(
                    Finding(check=check, sentence=sentence, refutes=refutes, p_value=p_value, example=row.example)
                )
        known = {finding.check for finding in findings}
        spoilt = sorted((row for row in self.moved if row.not_finite), key=lambda row: row.hostile)
        for row in spoilt[:1] if Check.NOT_FINITE not in known else ():
            coordinates = plural(row.not_finite, "coordinate")
            sentence = f"{coordinates} became NaN or infinite when {row.client}{self._unless(row)}."
            refutes = self.hostile or not row.hostile
            findings.append(Finding(check=Check.NOT_FINITE, sentence=sentence, refutes=refutes, example=row.example))
        for row in [row for row in self.moved if row.refusal and not row.hostile][:1]:
            sentence = f"The aggregation failed ({row.refusal}) when {row.client}: one such {self.who} stops the round."
            findings.append(Finding(check=Check.REFUSED, sentence=sentence, refutes=False, example=row.example))
        return findings

    @cached_property
    def _too_far(self) -> str:
        """Say that a client at the clip norm moves the release further than the noise is made for; empty if not.

        Noise that is right for a sum or an average tells what is released. Otherwise the noise is what is wrong.
        """
        # A release that some clients do not move, such as a choice of one client, is no sum.
        is_sum = all(row.clip_norms > 0 for row in self.moved if row.check == Check.GIVEN)
        averages = {self.clients, self.clients + 1} - {0, 1} if self.clients else set[int]()
        moves_like = {count for count in averages | {1} if abs(count * self.unit / self.clip_norm - 1) <= _ALIKE}
        noise = self.noise / self.noise_multiplier
        noise_like = {count for count in averages | {1} if abs(count * noise / self.clip_norm - 1) <= _ALIKE}
        if not averages or not noise_like or moves_like - (set() if is_sum else {1}):
            return ""
        count = max(noise_like)
        release = "a sum" if count == 1 else f"an average over {count} {self.who}s"
        return (
            f"The noise is as claimed for {release}, but the output moved {factor(count * self.unit / self.clip_norm)} "
            f"times as far as the clip norm moves {release}"
        )

    @staticmethod
    def _changes_noise(row: Moved) -> bool:
        """Whether the noise depends on a client."""
        return not row.shown and not row.arrays and abs(math.log(row.noise_ratio)) > 1e-3

    def _unless(self, row: Moved) -> str:
        """Say that only a hostile client sends this, if these do not count as bugs."""
        return f": a bug if {self.who}s are hostile" if row.hostile > self.hostile else ""

    def _sentence(self, row: Moved, little_noise: bool) -> str:
        """Say what happened."""
        when = f"when {row.client}"
        if row.arrays:
            more = f" and {len(row.arrays) - 3:,} more arrays" if len(row.arrays) > 3 else ""
            names = ", ".join(map(repr, row.arrays[:3])) + more
            return f"{names}: {plural(row.bare, 'coordinate')} without noise moved {when}."
        if math.isinf(row.excess):
            why = "rounds share their noise" if row.check == Check.MEMORY else "the release changed its shape"
            return f"The {self.who} shows without any noise {when}: {why}."
        if little_noise and self._too_far:
            return f"{self._too_far} {when}."
        if little_noise:
            return (
                f"The noise is too small: it covers {1 / row.excess:.2g} of how far the output moved {when} "
                f"(noise multiplier {self.noise_multiplier:g})."
            )
        if self._changes_noise(row):
            return (
                f"The noise depends on the {self.who}s: its standard deviation changed by a factor of "
                f"{row.noise_ratio:.4g} {when}, which counts as {factor(row.excess)} times what the claim "
                f"allows{self._unless(row)}."
            )
        covers = "the noise covers" if self.noise_multiplier * self.noise else "the clip norm allows"
        least = "" if row.shown else "at least "
        draws = f" in {row.shown:.0%} of the draws" if 0 < row.shown < 1 else ""
        seen = "The outputs of all rounds together" if row.check == Check.MEMORY else "The output"
        return f"{seen} moved by {least}{factor(row.excess)} times what {covers}{draws} {when}{self._unless(row)}."

    def _worst_of_each_check(self) -> list[Moved]:
        """Return a movement of each check that went too far, those in coordinates without noise first."""
        groups: dict[tuple[str, bool], list[Moved]] = {}
        for row in self.moved:
            # Too far, beyond rounding and the error of the measured noise.
            if row.lower > 1 + self.tolerance:
                groups.setdefault((row.check, row.hostile), []).append(row)
        worst: list[Moved] = []
        for group in groups.values():
            # The first movement of a check that is nearly as bad as the worst, or bad enough for anyone.
            enough = min(0.95 * max(row.excess for row in group), 30.0)
            bare = [row for row in group if row.bare]
            worst += (bare or [row for row in group if row.excess >= enough])[:1]
        return sorted(worst, key=lambda row: not row.bare)
