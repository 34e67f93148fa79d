"""From movements to findings: what exceeds the claim, which of it says something new, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coalmine.replaying.extras import Extra
from coalmine.replaying.movement import Movement, Round
from coalmine.replaying.noise import Noise
from coalmine.replaying.result import Moved, count, unit_name
from coalmine.replaying.shrinking import detected
from coalmine.results.finding import Finding

# A check must move the release by this much more than a plain update of the same size to say something new.
_NEW = 1.05

# Checks whose clients any code may refuse.
_MAY_REFUSE = ("structure", "not finite", "integers", "precision", "order")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A client that was tried, and what it did.

    Args:
        extra: The client.
        movement: What it did to the release.
        around: The round without it.
        others: The other clients of that round.
    """

    extra: Extra
    movement: Movement
    around: Round
    others: tuple[Any, ...]

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
        names: Arrays of the release and their numbers of coordinates.
        clip_norm: The clip norm.
        sensitivity: How far a client at the clip norm moves the release.
        noise_multiplier: The claimed noise multiplier.
    """

    def __init__(
        self, *, hostile: bool, names: Sequence[tuple[str, int]], clip_norm: float, sensitivity: float,
        noise_multiplier: float,
    ) -> None:  # fmt: skip
        self._hostile, self._names, self._clip, self._unit = hostile, names, clip_norm, sensitivity
        self._noise_multiplier = noise_multiplier
        self.rows: list[Moved] = []
        self._general: list[Finding] = []
        self._observations: list[Observation] = []
        self._covers = 1.0

    def about_noise(self, noise: Noise) -> None:
        """Judge the noise by itself."""
        if not self._noise_multiplier:
            return
        self._covers = noise.level / (self._noise_multiplier * self._unit)
        if noise.level == 0:
            sentence = (
                f"The release carries no noise: it was the same in all runs, and the claim is a noise multiplier of "
                f"{self._noise_multiplier:g}. (Noise from a fixed seed, or from a vector drawn once, counts as none.)"
            )
            self._general.append(Finding(check="no noise", sentence=sentence))
        elif noise.rank is not None:
            sentence = (
                f"The noise is not independent across coordinates and calls: its vectors span only {noise.rank} "
                f"{'dimension' if noise.rank == 1 else 'dimensions'}. Whatever is orthogonal to them is released bare."
            )
            self._general.append(Finding(check="noise rank", sentence=sentence))

    def about_zero(self, refusal: str) -> None:
        """Judge an aggregation that fails on an update of zero."""
        sentence = f"An update of zero makes the aggregation fail ({refusal}): one such client stops the round."
        self._general.append(Finding(check="refused", sentence=sentence, refutes=False, example="0 * v"))

    def observe(self, observation: Observation) -> None:
        """Add an observation."""
        self._observations.append(observation)
        movement, extra = observation.movement, observation.extra
        outcome = movement.refusal or ("not finite" if movement.not_finite else "moved")
        self.rows.append(
            Moved(check=extra.check, client=f"one client {extra.words}", clip_norms=self._clip_norms(movement),
                  deviations=movement.deviations, excess=movement.excess, outcome=outcome, hostile=extra.hostile)
        )  # fmt: skip

    def findings(self, example: Callable[[Observation], str]) -> list[Finding]:
        """Return all findings, those that refute the claim first.

        Args:
            example: Function that shrinks an observation to its smallest example.
        """
        refuting, careful = self._movements(example)
        if not any(finding.check == "not finite" for finding in [*refuting, *careful]):
            careful += self._poisoned(example)
        careful += self._refused()
        general = [f for f in self._general if f.refutes]
        ordered = [*general, *refuting, *[f for f in self._general if not f.refutes], *careful]
        return sorted(ordered, key=lambda finding: not finding.refutes)

    def _movements(self, example: Callable[[Observation], str]) -> tuple[list[Finding], list[Finding]]:
        """Return findings about movements that the noise does not cover, one per check."""
        refuting: list[Finding] = []
        careful: list[Finding] = []
        unprotected = set[str]()
        for observation in _worst_per_check(self._observations):
            movement, extra = observation.movement, observation.extra
            if not detected(movement, extra.tolerance) or (extra.check == "memory" and not movement.exact):
                # Later rounds may depend on what earlier ones released, such as an adaptive clip norm, and that is no
                # leak of theirs: it only looks like a movement if it differs from draw to draw.
                continue
            refutes = (self._hostile or not extra.hostile) and extra.check != "number of clients"
            bare = set(self._arrays(movement.unprotected))
            if movement.unprotected:
                if bare <= unprotected:
                    continue
                unprotected |= bare if refutes else set()
            elif extra.check != "clipping" and movement.excess <= _NEW * self._plain(extra.magnitude):
                continue
            finding = Finding(
                check="no noise" if movement.unprotected else extra.check,
                sentence=self._sentence(observation),
                refutes=refutes,
                p_value=min(movement.p_value, 1.0),
                example=example(observation),
            )
            (refuting if refutes else careful).append(finding)
        refuting.sort(key=lambda finding: finding.check != "no noise")
        return refuting, careful

    def _plain(self, magnitude: float) -> float:
        """Return how far a plain update of about this size moved the release, over what is allowed; at least 1."""
        plain = [o for o in self._observations if o.extra.check == "clipping" and math.isfinite(o.movement.excess)]
        sizes = [o.movement.excess for o in plain if o.extra.magnitude <= max(magnitude, 1.0)]
        return max([1.0, *sizes])

    def _poisoned(self, example: Callable[[Observation], str]) -> list[Finding]:
        """Return a finding if a client makes the release NaN or infinite, which shows for certain that it was there."""
        poisoned = [o for o in self._observations if o.movement.not_finite and o.extra.check != "number of clients"]
        poisoned.sort(key=lambda o: o.extra.hostile)
        if not poisoned:
            return []
        first = poisoned[0]
        refutes = self._hostile or not first.extra.hostile
        sentence = (
            f"The release became NaN or infinite in {first.movement.not_finite:,} coordinates when one client "
            f"{_joined(first.extra.words)}: whoever sees it knows that the client took part, and the round is lost. "
            "Reject such updates."
        )
        return [Finding(check="not finite", sentence=sentence, refutes=refutes, example=example(first))]

    def _refused(self) -> list[Finding]:
        """Return a warning if the aggregation fails on a client that it should cope with."""
        refused = [o for o in self._observations if o.movement.refusal and o.extra.check not in _MAY_REFUSE]
        refused = [o for o in refused if not o.extra.hostile and o.extra.check != "dropouts"]
        if not refused or any(f.check == "refused" for f in self._general):
            return []
        first = refused[0]
        sentence = (
            f"The aggregation failed ({first.movement.refusal}) when one client {_joined(first.extra.words)}: one such "
            "client stops the round."
        )
        return [Finding(check="refused", sentence=sentence, refutes=False, example=first.extra.code)]

    def _sentence(self, observation: Observation) -> str:
        movement, extra = observation.movement, observation.extra
        how = f"when one client {_joined(extra.words)}"
        if movement.unprotected:
            arrays = self._arrays(movement.unprotected)
            number = len(movement.unprotected)
            return f"{_listed(arrays)}: {count(number, 'coordinate')} without noise moved {how}."
        if math.isinf(movement.excess):
            seen = (
                "rounds share their noise, so that their difference shows the client"
                if extra.check == "memory"
                else ("the release changed its shape")
            )
            return f"The client shows without any noise {how}: {seen}."
        moved, unit = self._clip_norms(movement), unit_name(self._unit / self._clip)
        covers = moved / movement.excess if movement.excess else self._covers
        public = (
            " That is fine if the number of clients is public, and a bug if it is not."
            if extra.check == "number of clients"
            else ""
        )
        if not movement.exact and abs(math.log(movement.scale)) > 1e-3 and moved < movement.excess:
            return (
                f"The noise depends on the clients: its standard deviation changed by a factor of {movement.scale:.4g} "
                f"{how}, which together with a movement of {moved:.3g} × {unit} counts as {movement.excess:.3g} times "
                f"what the claim allows.{public}"
            )
        later = " in all rounds together" if extra.check == "memory" else ""
        if extra.check == "memory":
            return f"The output moved by {movement.excess:.3g} times what the noise covers{later} {how}."
        finite = " where it is finite" if movement.not_finite else ""
        if not self._noise_multiplier or movement.deviations == 0:
            return f"The output moved by {moved:.3g} × {unit}{finite} {how}; the clip norm allows 1.{public}"
        return f"The output moved by {moved:.3g} × {unit}{finite} {how}; the noise covers {covers:.2g}.{public}"

    def _clip_norms(self, movement: Movement) -> float:
        return movement.length / self._unit if self._unit else 0.0

    def _arrays(self, coordinates: Sequence[int]) -> list[str]:
        """Return the names of the arrays that hold coordinates."""
        wanted, names, start = set(coordinates), [], 0
        for name, size in self._names:
            if wanted & set(range(start, start + size)):
                names.append(name)
            start += size
        return names


def _worst_per_check(observations: Sequence[Observation]) -> list[Observation]:
    """Return one observation for each check, and one more for its hostile clients; missing noise comes first."""
    groups: dict[tuple[str, bool], list[Observation]] = {}
    for observation in observations:
        groups.setdefault((observation.extra.check, observation.extra.hostile), []).append(observation)
    worst = [_plainest(group) for group in groups.values()]
    bare = [o for o in worst if o.movement.unprotected]
    return [*bare, *[o for o in worst if not o.movement.unprotected]]


def _plainest(group: Sequence[Observation]) -> Observation:
    """Return the first observation of a check that is nearly as bad as the worst, or bad enough for anyone."""
    enough = min(0.95 * max(observation.movement.excess for observation in group), 30.0)
    bare = [observation for observation in group if observation.movement.unprotected]
    return (bare or [observation for observation in group if observation.movement.excess >= enough])[0]


def _joined(words: str) -> str:
    """Complete what a client sends to a clause: it joined, unless the words say what it did."""
    return words if any(f" {verb} " in f" {words} " for verb in ("joined", "took", "replaced")) else f"{words} joined"


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3:,} more arrays" if len(names) > 3 else "")
