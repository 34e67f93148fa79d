"""From movements to findings: what exceeds the claim, which of it says something new, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.layers import Layers
from coalmine.replaying.extras import Extra
from coalmine.replaying.movement import Movement
from coalmine.replaying.noise import Noise
from coalmine.replaying.result import Moved
from coalmine.replaying.rounds import Round
from coalmine.replaying.shrinking import detected, limit
from coalmine.replaying.state import Covered
from coalmine.results.finding import Check, Finding
from coalmine.results.summary import factor, plural

# A check must move the release by this much more than a plain update of the same size to say something new.
_NEW = 1.05

_SAME = 0.99  # distances that are called the same differ by less


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A client that was tried, and what it did.

    Args:
        extra: The client.
        movement: What it did to the release.
        around: The round without it.
        others: The other clients of that round.
        who: What a client is called.
    """

    extra: Extra
    movement: Movement
    around: Round
    others: tuple[Any, ...]
    who: str = "client"

    @property
    def rounds(self) -> int:
        """Number of rounds that were seen."""
        return len(self.around.members)

    @property
    def clause(self) -> str:
        """What happened, after "when"."""
        return f"one {self.who} {self.extra.sends} {self.extra.does}".replace("  ", " ")

    def similar(self, movement: Movement) -> bool:
        """Whether another movement shows the same fault."""
        if self.movement.refusal:
            return bool(movement.refusal)
        if self.movement.unprotected:
            return bool(movement.unprotected)
        if detected(self.movement, self.extra.tolerance):
            return detected(movement, self.extra.tolerance)
        return movement.not_finite > 0


class Judge:
    """Collects observations and turns them into findings.

    Args:
        hostile: Whether findings about replies that no honest client sends refute the claim.
        layers: Arrays of the release.
        sensitivity: How far a client at the clip norm moves the release.
        unit: Name of that distance; empty if there is none.
        noise_multiplier: The claimed noise multiplier.
        who: What a client is called.
    """

    def __init__(
        self, *, hostile: bool, layers: Layers, sensitivity: float, unit: str,
        noise_multiplier: float, who: str,
    ) -> None:  # fmt: skip
        self._hostile, self._layers, self._length, self._unit = hostile, layers, sensitivity, unit
        self._noise_multiplier, self._who = noise_multiplier, who
        self.rows: list[Moved] = []
        self._general: list[Finding] = []
        self._observations: list[Observation] = []
        self._noise_level = 0.0

    def about_noise(self, noise: Noise, *, none: bool, outside: bool) -> None:
        """Judge the noise by itself.

        Args:
            noise: The noise.
            none: Whether it is certain that there is none.
            outside: Whether a client moved the release to where the noise vectors do not reach.
        """
        self._noise_level = noise.level
        if noise.level and np.ptp(noise.std[~noise.bare]):
            self._unit = ""  # arrays have noise of different sizes, so that no distance means the same in all of them
        if none:
            sentence = (
                f"The release carries no noise: it was the same in all runs, and the claim is a noise multiplier of "
                f"{self._noise_multiplier:g}. Noise from a fixed seed, or from a vector drawn once, counts as none."
            )
            self._general.append(Finding(check=Check.SIZE, sentence=sentence))
        elif noise.rank is not None and outside:
            sentence = (
                f"The noise is not independent across coordinates and calls: its vectors span only "
                f"{plural(noise.rank, 'dimension')}. Whatever is orthogonal to them is released bare."
            )
            self._general.append(Finding(check=Check.INDEPENDENT, sentence=sentence))

    def about_state(self, *, varied: bool, compared: bool) -> None:
        """Warn that noise comes from the state of the release.

        Args:
            varied: Whether the state could be varied.
            compared: Whether movements can be compared with the clip norm.
        """
        looked_for = "movements beyond the clip norm and " if compared else ""
        sentence = (
            "Noise comes from the state of the release, which replay varied by running more rounds ahead. It protects "
            "only if nobody knows that state, such as a seed"
            if varied
            else "Replay could not vary the noise, which comes from the state of the release, without changing what a "
            f"{self._who} does, so that only {looked_for}less than about half of the noise were looked for: check "
            f"{'its size' if compared else 'clipping and the size of the noise'} in another way"
        )
        self._general.append(Finding(check=Check.SIZE, sentence=sentence, refutes=False))

    def about_repeats(self, rounds: int) -> None:
        """Judge noise in the state that starts again after so many rounds."""
        sentence = (
            f"The noise repeats: that of round {rounds + 1} equals that of round 1, and so on, so that the difference "
            "of two releases carries none."
        )
        self._general.append(Finding(check=Check.FRESH, sentence=sentence))

    def about_seed(self, generator: str) -> None:
        """Judge noise in the state whose seed anyone would guess."""
        sentence = (
            f"The noise of a round is that of {generator}, and other rounds have small seeds, too: whoever tries them "
            "removes it."
        )
        self._general.append(Finding(check=Check.FRESH, sentence=sentence))

    def about_size(self, places: Sequence[int], noise: Covered, extra: Extra) -> None:
        """Judge an array that has too little noise for what a client does in each round."""
        when = f"when one {self._who} {extra.sends} {extra.does}".replace("  ", " ")
        arrays = _listed(self._arrays(places))
        sentence = (
            f"{arrays}: noise in the state covers {noise.share:.2g} of how far the output moved {when} (noise "
            f"multiplier {self._noise_multiplier:g})."
            if noise.share
            else f"{arrays}: {plural(len(places), 'coordinate')} without noise moved {when}."
        )
        check = Check.SIZE if noise.share else Check.PLACES
        self._general.append(Finding(check=check, sentence=sentence, p_value=noise.p_value, example=extra.code))

    def about_zero(self, refusal: str) -> None:
        """Judge an aggregation that fails on an update of zero."""
        sentence = f"An update of zero makes the aggregation fail ({refusal}): one such {self._who} stops the round."
        self._general.append(Finding(check=Check.REFUSED, sentence=sentence, refutes=False, example="0 * v"))

    def observe(self, observation: Observation) -> None:
        """Add an observation."""
        self._observations.append(observation)
        movement, extra = observation.movement, observation.extra
        outcome = movement.refusal or ("not finite" if movement.not_finite else "moved")
        self.rows.append(
            Moved(check=extra.check, client=observation.clause, clip_norms=self._clip_norms(movement),
                  deviations=movement.deviations, excess=movement.excess, limit=limit(movement, extra.tolerance),
                  outcome=outcome, hostile=extra.hostile, warns=bool(extra.remark))
        )  # fmt: skip

    def findings(self, example: Callable[[Observation], str]) -> list[Finding]:
        """Return all findings, those that refute the claim first.

        Args:
            example: Function that shrinks an observation to its smallest example.
        """
        findings = [*self._general, *self._movements(example)]
        same = [finding.refutes for finding in findings if finding.check == Check.NOT_FINITE]
        findings += [finding for finding in self._poisoned(example) if not same or finding.refutes > max(same)]
        return sorted([*findings, *self._undecided(), *self._refused()], key=lambda finding: not finding.refutes)

    def _movements(self, example: Callable[[Observation], str]) -> list[Finding]:
        """Return findings about movements that the noise does not cover, one per check."""
        findings: list[Finding] = []
        unprotected = set[str]()
        for observation in _worst_per_check(self._observations):
            movement, extra = observation.movement, observation.extra
            if not detected(movement, extra.tolerance) or (observation.rounds > 1 and not movement.exact):
                # Later rounds may depend on what earlier ones released, such as an adaptive clip norm, and that is no
                # leak of theirs: it only looks like a movement if it differs from draw to draw.
                continue
            refutes = (self._hostile or not extra.hostile) and not extra.remark
            bare = set(self._arrays(movement.unprotected))
            if movement.unprotected:
                if bare <= unprotected:
                    continue
                unprotected |= bare if refutes else set()
            elif not extra.plain and movement.excess <= _NEW * self._plain(extra.magnitude):
                continue
            findings.append(
                Finding(check=self._check(observation), sentence=self._sentence(observation), refutes=refutes,
                        p_value=min(movement.p_value, 1.0), example=example(observation))
            )  # fmt: skip
        return findings

    def _plain(self, magnitude: float) -> float:
        """Return how far a plain update of about this size moved the release, over what is allowed; at least 1."""
        plain = [o for o in self._observations if o.extra.plain and math.isfinite(o.movement.excess)]
        sizes = [o.movement.excess / (1 + o.extra.tolerance) for o in plain if o.extra.magnitude <= max(magnitude, 1.0)]
        return max([1.0, *sizes])

    def _poisoned(self, example: Callable[[Observation], str]) -> list[Finding]:
        """Return a finding if a client makes the release NaN or infinite, which shows for certain that it was there."""
        poisoned = [o for o in self._observations if o.movement.not_finite and not o.extra.remark]
        poisoned.sort(key=lambda o: o.extra.hostile)
        if not poisoned:
            return []
        first = poisoned[0]
        refutes = self._hostile or not first.extra.hostile
        sentence = (
            f"The release became NaN or infinite when {first.clause}, which shows for certain that it took part. "
            "Reject such updates."
        )
        return [Finding(check=Check.NOT_FINITE, sentence=sentence, refutes=refutes, example=example(first))]

    def _undecided(self) -> list[Finding]:
        """Return a warning if numbers moved of which replay cannot tell whether they carry noise."""
        undecided = [o for o in self._observations if o.movement.undecided]
        if not undecided:
            return []
        worst = max(undecided, key=lambda o: o.movement.undecided)
        sentence = (
            f"Replay could not vary {plural(worst.movement.undecided, 'coordinate')} that moved when {worst.clause}, "
            f"and noise of few values may look like that at a noise multiplier of {self._noise_multiplier:g}: check "
            "that noise is added there"
        )
        return [Finding(check=Check.PLACES, sentence=sentence, refutes=False, example=worst.extra.code)]

    def _refused(self) -> list[Finding]:
        """Return a warning if the aggregation fails on a client that it should cope with."""
        refused = [o for o in self._observations if o.movement.refusal]
        refused = [o for o in refused if not o.extra.hostile and not o.extra.may_refuse]
        if not refused or any(f.check == Check.REFUSED for f in self._general):
            return []
        first = refused[0]
        sentence = (
            f"The aggregation failed ({first.movement.refusal}) when {first.clause}: one such {self._who} stops the "
            "round."
        )
        return [Finding(check=Check.REFUSED, sentence=sentence, refutes=False, example=first.extra.code)]

    def _check(self, observation: Observation) -> str:
        """Return the name of the check that an excessive movement belongs to."""
        if observation.movement.unprotected:
            return Check.PLACES
        everywhere = observation.extra.plain and self._too_little_noise(observation)
        return Check.SIZE if everywhere else observation.extra.check

    def _too_little_noise(self, observation: Observation) -> bool:
        """Whether a plain update moves the release no further than it may, and the noise is too small for that."""
        extra, movement = observation.extra, observation.movement
        allowed = self._clip_norms(movement) <= 1 + max(extra.tolerance, _NEW - 1)
        ordinary = extra.plain or extra.check == Check.PLACES
        return ordinary and movement.exact and self._noise_level > 0 and allowed

    def _sentence(self, observation: Observation) -> str:
        """Say what happened. Distances are in clip norms, or in what the noise covers if nothing else is known."""
        movement, extra, how = observation.movement, observation.extra, f"when {observation.clause}"
        if movement.unprotected:
            arrays = _listed(self._arrays(movement.unprotected))
            return f"{arrays}: {plural(len(movement.unprotected), 'coordinate')} without noise moved {how}."
        if math.isinf(movement.excess):
            shows = (
                f"rounds share their noise, so that their difference shows the {self._who}"
                if observation.rounds > 1
                else "the release changed its shape"
            )
            return f"The {self._who} shows without any noise {how}: {shows}."
        covers = "the noise covers" if self._noise_multiplier and self._noise_level else "the clip norm allows"
        times = f"{'' if movement.exact else 'at least '}{factor(movement.excess)} times what {covers}"
        if observation.rounds > 1:
            return f"The outputs of all rounds together moved by {times} {how}."
        if self._too_little_noise(observation):
            return (
                f"The noise is too small: it covers {1 / movement.excess:.2g} of how far the output moved {how} (noise "
                f"multiplier {self._noise_multiplier:g})."
            )
        moved = self._clip_norms(movement)
        if not movement.exact and abs(math.log(movement.scale)) > 1e-3 and moved < movement.excess:
            excess = factor(movement.excess)
            counts = f"; with the movement of the output that counts as {excess} times what the claim allows"
            return (
                f"The noise depends on the {self._who}s: its standard deviation changed by a factor of "
                f"{movement.scale:.4g} {how}{self._unless(extra) or counts}."
            )
        finite = " where it is finite" if movement.not_finite else ""
        how = f"{finite} {how}{'' if extra.hostile else self._as_if(movement)}"
        if not self._unit or not movement.exact:
            return f"The output moved by {times}{how}{self._unless(extra)}."
        covered = self._unless(extra) or f"; {covers} {moved / movement.excess:.2g}"
        return f"The output moved by {factor(moved)} × {self._unit}{how}{covered}."

    def _unless(self, extra: Extra) -> str:
        """Say when a movement is a bug, for what is only a warning."""
        return extra.remark or ("" if self._hostile or not extra.hostile else f": a bug if {self._who}s are hostile")

    def _as_if(self, movement: Movement) -> str:
        """Say what clips an update by parts: all arrays, or all coordinates, moved by what one clip norm allows."""
        parts = {"arrays": movement.by_array, "coordinates": (movement.each_number,) * 2}
        for name, lengths in parts.items():
            if len(lengths) > 1 and all(_SAME < length / self._length < 1 / _SAME for length in lengths):
                each = f"each of {len(lengths):,} arrays" if name == "arrays" else "each coordinate"
                return f", as if {each} were clipped by itself"
        return ""

    def _clip_norms(self, movement: Movement) -> float:
        return movement.length / self._length if self._length else 0.0

    def _arrays(self, coordinates: Sequence[int]) -> list[str]:
        """Return the names of the arrays that hold coordinates."""
        indices = np.searchsorted(self._layers.ends, np.asarray(coordinates, dtype=np.int64), side="right")
        return [self._layers.names[i] for i in np.unique(indices)]


def _worst_per_check(observations: Sequence[Observation]) -> list[Observation]:
    """Return one observation for each check, and one more for its hostile clients; missing noise comes first."""
    groups: dict[tuple[str, bool], list[Observation]] = {}
    for observation in observations:
        groups.setdefault((observation.extra.check, observation.extra.hostile), []).append(observation)
    worst = [
        _plainest([o for o in group if detected(o.movement, o.extra.tolerance)] or group) for group in groups.values()
    ]
    bare = [o for o in worst if o.movement.unprotected]
    return [*bare, *[o for o in worst if not o.movement.unprotected]]


def _plainest(group: Sequence[Observation]) -> Observation:
    """Return the first observation of a check that is nearly as bad as the worst, or bad enough for anyone."""
    enough = min(0.95 * max(observation.movement.excess for observation in group), 30.0)
    bare = [observation for observation in group if observation.movement.unprotected]
    return (bare or [observation for observation in group if observation.movement.excess >= enough])[0]


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3:,} more arrays" if len(names) > 3 else "")
