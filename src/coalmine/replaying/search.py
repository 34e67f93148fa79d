"""The runs of a replay: with and without one client, in all the rounds that it is tried in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.layers import Layers
from coalmine.replaying.absent import find_absent, near_zero
from coalmine.replaying.atoms import shortened
from coalmine.replaying.clients import precision
from coalmine.replaying.extras import Extra, Extras, Setting
from coalmine.replaying.judge import Judge, Observation
from coalmine.replaying.movement import Movement, Scale
from coalmine.replaying.quiet_places import quiet_places
from coalmine.replaying.result import Moved, Replay, unit_name
from coalmine.replaying.rounds import Round
from coalmine.replaying.running import Runner
from coalmine.replaying.shrinking import shrunk
from coalmine.replaying.state_search import FEW_DRAWS, STATE_DRAWS, StateSearch
from coalmine.results.finding import Check

# Random draws that measure the noise: as many as it takes for this many residuals, within limits.
_RESIDUALS, _MOST_DRAWS = 8000, 128

LEAST_DRAWS = 6

# Residuals that a part of an array is judged by, and draws for them at most.
_PART_RESIDUALS, _PART_DRAWS = 300, 64

# Draws per comparison where the randomness cannot be repeated.
_UNREPEATABLE_DRAWS = 200

_MOST_REMOVED = 8

# Standard errors beyond which the noise of two rounds seems to be correlated, so that it is measured.
_CORRELATED = 2.5

# How near to a whole number a measured divisor must be. Repeated randomness leaves only rounding.
_WHOLE = 1e-3


def always(client: Any, _: float) -> Any:
    """Return a client that has no magnitude to change."""
    return client


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed of an aggregation, and what is known of it.

    Args:
        noise_multiplier: The claimed noise multiplier.
        adjacency: ``"zero-out"`` or ``"add-remove"``.
        divisor: What the sum is divided by; None if it is to be measured.
        hostile: Whether findings about replies that no honest client sends refute the claim.
        size_released: Whether the size of the noise follows from what is released.
        who: What a client is called.
    """

    noise_multiplier: float
    adjacency: str
    divisor: float | None
    hostile: bool
    size_released: bool
    who: str


class Search:
    """The runs of one replay.

    Args:
        runner: Runs the aggregation.
        extras: Makes up clients.
        claim: What is claimed.
        draws: Number of runs that measure the noise; from the size of the release if None.
        quick: Whether to try only the clients and rounds that find most.
    """

    def __init__(
        self, runner: Runner, extras: Extras, claim: Claim, *, draws: int | None = None, quick: bool = False
    ) -> None:
        self.runner, self.extras, self._claim, self._quick = runner, extras, claim, quick
        self._precision = max(precision(leaf) for leaf in extras.template.update.values())
        self._absent = find_absent(runner, extras, claim.who)
        members = self._without(extras.clients)
        outcome = runner.run([members])
        assert outcome.vector is not None
        if not np.isfinite(outcome.vector).all():
            raise InputError("release returned numbers that are not finite for the clients as they are")
        again = runner.run([members]).vector
        self.reproducible = again is not None and np.array_equal(outcome.vector, again)
        self._draws = draws or int(np.clip(math.ceil(_RESIDUALS / outcome.vector.size), FEW_DRAWS, _MOST_DRAWS))
        if runner.state_varies:
            self._draws = max(LEAST_DRAWS, min(self._draws, runner.most_draws, STATE_DRAWS))
        if self.reproducible:
            runner.remember()
        else:
            self._draws = max(self._draws, _UNREPEATABLE_DRAWS)
            if extras.order != 2:
                raise InputError(
                    'norm="l1" needs randomness that can be repeated: let the release draw from NumPy, torch or random'
                )
        self._names = outcome.names
        self.layers = Layers.of(dict(outcome.names))
        self.base = self._round([members])
        self._state = StateSearch(runner, extras, self.base, [size for _, size in outcome.names])
        measured = self._sensitivity() if claim.divisor is None else extras.clip / claim.divisor
        self.divisor = self._whole(extras.clip / measured) if claim.divisor is None else claim.divisor
        self.scale = Scale(
            noise_multiplier=claim.noise_multiplier, sensitivity=measured, size_released=claim.size_released,
            order=extras.order,
        )  # fmt: skip
        # What the client that stands for an absent one does itself, relative to one at the clip norm. A tiny update
        # does as much as any other if updates are scaled to the clip norm.
        self._absent_counts = 0.0
        if self._absent.magnitude:
            pair = [near_zero(extras, sign * self._absent.magnitude) for sign in (1, -1)]
            self._absent_counts = max(self._absent.magnitude, self._half_apart(pair) / measured)
        self.judge = Judge(
            hostile=claim.hostile, layers=self.layers, sensitivity=measured, noise_multiplier=claim.noise_multiplier,
            unit=unit_name(self.divisor, given=claim.divisor is not None), who=claim.who,
        )  # fmt: skip

    def steps(self, users_own: Sequence[Extra], *, dropouts: bool, rounds: int) -> list[Callable[[], object]]:
        """Look at the noise and a first client, and return what is left to try."""
        first, *others = self.extras.all()
        self.check_noise(first)
        exact = self.try_extra(first, doubt=0.0).exact  # whether the randomness is the same in all runs
        if few := self._quick or not exact:  # comparisons take many runs if it is not
            others = [e for e in others if e.essential and (self._claim.hostile or not e.hostile)]
        settings = [s for s in self.extras.settings(dropouts=dropouts) if s.essential or not few]
        steps: list[Callable[[], object]] = [partial(self.try_extra, extra) for extra in [*users_own, *others]]
        if exact and self.scale.noise_multiplier:
            steps.append(self.try_quiet_places)
        if rounds > 1:
            steps.append(partial(self.try_rounds, rounds))
        steps += [partial(self.try_setting, setting, probes=1 if few else 3) for setting in settings]
        if self.reproducible and not self._quick:
            steps.append(partial(self.try_removals, _MOST_REMOVED if exact else 1))
            if exact:
                steps.append(self.try_replacement)
            if self._claim.adjacency == "zero-out":
                steps.append(partial(self.try_presence, probes=3 if exact else 1))
        return steps

    def vary_state(self, rounds: int) -> bool:
        """If the release keeps noise in its state, let each draw begin with another state; return whether it does.

        Args:
            rounds: Number of rounds that later runs take at most.
        """
        if not self.reproducible or not self._claim.noise_multiplier:
            return False
        return self._state.vary(self._absent.client, rounds)

    def check_noise(self, first: Extra) -> None:
        """Look at the noise itself: is there any, and does it fill the space where a first client moves the release?"""
        if self._absent.refusal:
            self.judge.about_zero(self._absent.refusal)
        if self.runner.state_varies:
            self.scale = self._state.check(first, self.scale, self.judge)
        if not self.scale.noise_multiplier:
            return
        noise, members = self.base.noise, [[*self.extras.clients, first.build(first.magnitude)]]
        none = noise.level == 0 and bool(self._compared(first, doubt=0.0).unprotected)
        self.judge.about_noise(noise, none=none, outside=self.base.leaves_noise(members, self.scale))
        if none:  # movements are then compared with the clip norm
            self.scale = replace(self.scale, noise_multiplier=0.0)

    def try_extra(self, extra: Extra, doubt: float = 1.02) -> Movement:
        """Let a client join the given ones."""
        movement = self._compared(extra, doubt)
        self._observe(extra, movement, self.base, self.extras.clients)
        return movement

    def _compared(self, extra: Extra, doubt: float) -> Movement:
        """Return how far the release moves if a client joins the given ones."""
        client = extra.build(extra.magnitude)
        members = [[*self.extras.clients, client]]
        return self.base.compare(
            members, self.scale, doubt=doubt, hint=self._hint(client), similar=self._similar(extra, self.extras.clients)
        )

    def _similar(self, extra: Extra, others: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return two rounds that differ in a client, whose update is a little shorter in the second."""
        longer, shorter = min(extra.magnitude, 1.0), 1 - shortened(self.scale.noise_multiplier)
        return [*others, extra.build(longer)], [*others, extra.build(longer * shorter)]

    def try_quiet_places(self) -> None:
        """Let clients join who move only numbers whose noise looks small.

        The first half of the draws chooses them, and the other half, or more draws, measures their noise.
        """
        half = self._draws // 2
        sources = self.extras.template.positions([size for _, size in self._names])
        sets = [places[sources[places] >= 0] for places in quiet_places(self.base.noise_of(range(half)))]
        for places in (places for places in sets if places.size):
            extra = self.extras.at(sources[places], f"in {self.layers.name_of(places)[0].rstrip(',')}")
            draws = int(np.clip(1 + math.ceil(_PART_RESIDUALS / places.size), self._draws - half, _PART_DRAWS))
            draws = min(draws, self.runner.most_draws - half)
            around = Round(
                self.runner, self.base.members, draws=draws, first_draw=half, uneven=True,
                reproducible=self.reproducible, precision=self._precision,
            )  # fmt: skip
            joined = [*self.extras.clients, extra.build(extra.magnitude)]
            similar = self._similar(extra, self.extras.clients)
            self._observe(
                extra, around.compare([joined], self.scale, similar=similar), around, self.extras.clients
            )  # fmt: skip

    def try_setting(self, setting: Setting, probes: int) -> None:
        """Let so many simple clients join a round of other clients."""
        around = self._round([self._without(setting.others)], like=self.base)
        outcome = around.outcome(0)
        if outcome.vector is None or not np.isfinite(outcome.vector).all():
            self.judge.rows.append(
                Moved(check=setting.check, client=f"one {self._claim.who} {setting.does}", clip_norms=0.0,
                      deviations=0.0, excess=0.0, outcome=outcome.refusal or "not finite")
            )  # fmt: skip
            return
        if outcome.vector.size != sum(size for _, size in self._names):
            return
        for extra in setting.probes or self.extras.probes()[:probes]:
            client = extra.build(extra.magnitude)
            movement = around.compare(
                [[*setting.others, client]], self.scale, hint=self._hint(client),
                similar=self._similar(extra, setting.others),
            )  # fmt: skip
            named = replace(
                extra, check=setting.check, does=setting.does, may_refuse=setting.may_refuse, plain=False
            )  # fmt: skip
            self._observe(named, movement, around, setting.others)

    def try_removals(self, most: int) -> None:
        """Leave out the given clients, one at a time."""
        clients = list(self.extras.clients)
        for index in range(min(len(clients), most)):
            # As many clients as elsewhere, so that it is the client that counts and not their number.
            others = [*clients[:index], *clients[index + 1 :], *self._without([])]
            without = self._round([self._without(others)], like=self.base, trust=True)
            extra = Extra(
                check=Check.GIVEN, sends=f"({self._claim.who}s[{index}])", code=f"{self._claim.who}s[{index}]",
                build=partial(always, clients[index]), tolerance=self.extras.tolerance,
            )  # fmt: skip
            movement = without.compare([[*others, clients[index]]], self.scale)
            self._observe(extra, movement, without, others)

    def try_replacement(self) -> None:
        """Replace a client by its opposite, which may move the release twice as far."""
        half, double = self.scale.noise_multiplier / 2, 2 * self.scale.sensitivity
        twice = Scale(noise_multiplier=half, sensitivity=double, order=self.extras.order)
        for magnitude in (1.0, 1000.0):
            first, second = (self.extras.along(sign * self.extras.direction, magnitude) for sign in (1, -1))
            around = self._round([[*self.extras.clients, first]], like=self.base, trust=True)
            if around.outcome(0).vector is None:
                continue
            movement = around.compare([[*self.extras.clients, second]], twice)
            halved = replace(movement, deviations=movement.deviations / 2, length=movement.length / 2)
            extra = Extra(
                check=Check.REPLACED, sends=f"with an update of {magnitude:,.0f} × C", shrinks=False,
                does="was replaced by its opposite (half of the movement counts)", code="C * v instead of -C * v",
                build=partial(always, second), magnitude=magnitude, tolerance=self.extras.tolerance,
            )  # fmt: skip
            self._observe(extra, halved, around, self.extras.clients)

    def try_presence(self, probes: int) -> None:
        """Compare with a round that has one client less, instead of one whose update is zero."""
        around = self._round([list(self.extras.clients)], like=self.base)
        first = around.outcome(0)
        if first.vector is None or not np.isfinite(first.vector).all():
            return
        for extra in self.extras.probes()[:probes]:
            movement = around.compare([[*self.extras.clients, extra.build(extra.magnitude)]], self.scale)
            named = replace(
                extra, check=Check.PRESENCE, plain=False, shrinks=False,
                remark=f": a bug unless the number of {self._claim.who}s is public",
            )  # fmt: skip
            self._observe(named, movement, around, self.extras.clients)

    def try_rounds(self, rounds: int) -> None:
        """Look for a client of the first round in the releases of later ones.

        A long update is looked for too, since what clipping cut off may come back.
        """
        ordinary = self._without(self.extras.clients)
        around, rest = self._round([ordinary] * rounds), [ordinary] * (rounds - 1)
        plain = around.outcome(0).vector
        for extra in (probe for probe in self.extras.probes() if probe.essential):
            joined = [*self.extras.clients, extra.build(extra.magnitude)]
            moved = self.runner.run([joined, *rest]).vector
            if plain is None or moved is None or plain.size != moved.size:
                return
            later = slice(plain.size // rounds, None)
            left = np.abs(plain[later] - moved[later]) > 8 * self._precision * np.abs(plain[later])
            if self.reproducible and not left.any() and not self._shares_noise(around):
                continue  # nothing of the first round is left in later ones
            # Only one round: what several cost together depends on how the noise of rounds is meant to be shared.
            movement = around.compare([joined, *rest], self.scale)
            shared = "" if left.any() or not self.reproducible else ", whose noise is shared with later rounds in part"
            does = f"took part in the first of {rounds} rounds{shared}"
            named = replace(extra, check=Check.MEMORY, does=does, plain=False, shrinks=False)
            self._observe(named, movement, around, self.extras.clients)

    def _shares_noise(self, around: Round) -> bool:
        """Whether the noise of rounds seems to be correlated: that is how two draws of each round differ."""
        plain, again = (around.outcome(draw).vector for draw in (0, 1))
        if not self.scale.noise_multiplier or plain is None or again is None or again.size != plain.size:
            return False
        noise = (plain - again).reshape(len(around.members), -1)
        standard = noise / np.where(self.base.noise.bare, np.inf, self.base.noise.std)
        standard /= np.maximum(np.linalg.norm(standard, axis=1, keepdims=True), 1e-300)
        correlations = np.triu(standard @ standard.T, 1)
        return bool(np.abs(correlations).max() > _CORRELATED / math.sqrt(noise.shape[1]))

    def result(self, seed: int) -> Replay:
        """Return what was observed."""
        noise = self.base.noise if self.scale.noise_multiplier else None
        level = 0.0 if noise is None else noise.level
        return Replay(
            findings=tuple(self.judge.findings(self._example)), moved=tuple(self.judge.rows),
            clip_norm=self.extras.clip, noise_multiplier=self._claim.noise_multiplier, noise=level,
            noise_error=math.sqrt((2 + noise.excess) / (4 * noise.degrees)) if noise and level else 0.0,
            unit=self.scale.sensitivity, divisor=self.divisor, divisor_given=self._claim.divisor is not None,
            reproducible=self.reproducible, calls=self.runner.calls, seed=seed, who=self._claim.who,
        )  # fmt: skip

    def _hint(self, client: Any) -> Floats | None:
        """Return the direction of a client's update, if it has the form of the others'."""
        try:
            return self.extras.template.vector(client)
        except KeyError:
            return None

    def _observe(self, extra: Extra, movement: Movement, around: Round, others: Sequence[Any]) -> None:
        if extra.check != Check.REPLACED:  # which needs no absent client
            extra = replace(extra, tolerance=extra.tolerance + self._absent_counts)
        self.judge.observe(
            Observation(extra=extra, movement=movement, around=around, others=tuple(others), who=self._claim.who)
        )

    def _example(self, observation: Observation) -> str:
        """Return the smallest input that shows an observation."""
        matters = self._claim.hostile or not observation.extra.hostile
        extra = replace(observation.extra, shrinks=observation.extra.shrinks and matters and not self._quick)
        return shrunk(replace(observation, extra=extra), self._without, self._round, self.scale)

    def _round(self, members: Sequence[Sequence[Any]], like: Round | None = None, trust: bool = False) -> Round:
        draws = self._draws if len(members) == 1 else max(LEAST_DRAWS - 2, self._draws // 2)
        return Round(
            self.runner, members, draws=draws, reproducible=self.reproducible, precision=self._precision, like=like,
            trust=trust and self.reproducible,
        )  # fmt: skip

    def _without(self, others: Sequence[Any]) -> list[Any]:
        """Return a round without the client in question."""
        return list(others) if self._claim.adjacency == "add-remove" else [*others, self._absent.client]

    def _whole(self, divisor: float) -> float | None:
        """Return a measured divisor if it is a whole number, as that of a sum or an average is; otherwise None."""
        near = max(1, round(divisor))
        return float(near) if self.reproducible and abs(divisor - near) < _WHOLE * near else None

    def _sensitivity(self) -> float:
        """Return how far a client at the clip norm moves the release."""
        pair = [self.extras.along(sign * self.extras.direction, 1.0) for sign in (1, -1)]
        return self._half_apart(pair) or self.extras.clip

    def _half_apart(self, pair: Sequence[Any]) -> float:
        """Return half of how far the release moves if one client takes another's place; 0 if that is not known."""
        runs = [
            [self.runner.run([[*self.extras.clients, client]], draw).vector for client in pair]
            for draw in range(1 if self.reproducible else self._draws)
        ]
        vectors = [[vector for vector in sides if vector is not None] for sides in runs]
        if any(len(sides) < 2 or sides[0].shape != sides[1].shape for sides in vectors):
            return 0.0
        differences = np.nan_to_num([(sides[0] - sides[1]) / 2 for sides in vectors], posinf=0.0, neginf=0.0)
        if len(runs) == 1:
            return float(np.linalg.norm(differences[0], self.extras.order))
        square = float(np.sum(differences.mean(axis=0) ** 2))
        # Without what the average has by chance.
        square -= float(np.sum(differences.var(axis=0, ddof=1))) / len(runs)
        return math.sqrt(max(square, 0.0))
