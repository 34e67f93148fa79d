"""The one-shot audit: random updates planted as extra clients of the training one does anyway (Andrew et al. 2023)."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine import accounting
from coalmine.accounting import Theory
from coalmine.accounting.sampling import AtMost, EveryRound, FixedSize, Sampling
from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError, check_count, check_kind, check_positive
from coalmine.methods.estimates import canary_estimates, normality, rough_epsilon
from coalmine.methods.one_shot.evidence import SCORES, Evidence, Score, Seen, add_matched, lengths
from coalmine.methods.one_shot.participation import (
    EpochParticipation,
    ObservedParticipation,
    Participation,
    parse_participation,
)
from coalmine.methods.one_shot.planted import PlantedCanaries
from coalmine.methods.one_shot.updates import check_room, family_for, update_canaries
from coalmine.methods.one_shot.views import parse_view
from coalmine.protocol import Audit, Release, Vector
from coalmine.results.result import AuditResult, common_delta
from coalmine.seeds import generator
from coalmine.stats import CosineNull, LargestOfNull, LikelihoodRatioNull, Null
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.rank_tests import Design

_MOST_CANARIES = 1_000_000


class OneShot(Audit):
    """``canaries`` random updates planted in a training of ``rounds`` rounds of a model with ``dim`` parameters.

    As many more are held out, so that there is something to compare with: each of twice as many is planted or not by a
    coin flip (``design="coin-flips"``, which bounds for a single run need), or exactly ``canaries`` of them are
    (``"fixed"``, as in the paper).

    ``view`` is what the adversary sees: ``final`` (the final model), ``final-change`` (the final model minus
    ``initial``), ``updates`` (each round's noisy average), ``every:5`` (the model after each fifth round) or
    ``rounds:3,9`` (after these, counted from 0, and the last). ``participation`` says when canaries take part:
    ``epochs:1`` (once, in a random round), ``poisson:0.1``, ``fixed:0.1``, ``last:3``, ``every-round``, or an object
    such as `ScheduledParticipation`. ``score`` is the statistic (see `coalmine.methods.one_shot.evidence`):
    ``cosine`` for views of one release, and if not given ``likelihood-ratio`` for ``updates`` and ``max`` for the
    others. ``family`` is ``hadamard`` or ``gaussian``, by the dimension if not given. ``norm`` is the canaries'
    length where nothing is clipped, and their largest where something is.
    """

    def __init__(
        self,
        *,
        dim: int,
        rounds: int,
        canaries: int = 1000,
        view: str = "final",
        participation: str | Participation = "epochs:1",
        score: str | None = None,
        design: Design = "coin-flips",
        family: str | None = None,
        initial: npt.ArrayLike | None = None,
        norm: float | None = None,
        seed: int = 0,
    ) -> None:
        self.dim, self.rounds = check_count("dim", dim, least=2), check_count("rounds", rounds)
        self.canaries = check_count("canaries", canaries)
        self.seed = check_count("seed", seed, least=0)
        self.design = _checked_design(design)
        self.norm = None if norm is None else check_positive("norm", norm)
        self.participation = parse_participation(participation) if isinstance(participation, str) else participation
        check_kind("participation", self.participation, Participation, "such as epochs:1 or a Participation")
        if self.canaries > _MOST_CANARIES:
            raise InputError(f"canaries must be at most {_MOST_CANARIES:,}, got {canaries}")
        self._count = 2 * self.canaries
        self.participation.check(self._count, self.rounds)
        self.family = family or family_for(self.dim, self._count)
        check_room(self.family, self.dim, self._count)
        self._updates = update_canaries(self.family, dim=self.dim, count=self._count, seed=self.seed)
        self.members = self._chosen()
        if self.members.all() or not self.members.any():
            raise InputError(
                f"coin flips planted {int(self.members.sum())} of {self._count} canaries, which leaves nothing to "
                "compare: take more canaries, or design=fixed"
            )
        # What the other planted canaries leave of the space.
        self._free = self.dim - (int(self.members.sum()) - 1 if self._updates.orthonormal else 0)
        self._shared = self._rounds_are_shared()
        self._plants = True
        self.plants_as = f"{self.family} canaries of seed {self.seed}"
        self._watch(view, score, initial)

    def _watch(self, view: str, score: str | None, initial: npt.ArrayLike | None) -> None:
        self.view, self.views = view, (parse_view(view),)
        self._check_view()
        self.score = self._checked_score(score)
        self._initial = self._checked_initial(initial)
        self._evidence = Evidence(self._count, self._free, self.participation.knowledge)
        self._direction = np.zeros(self.dim if self._shared else 0, dtype=np.float32)
        self._before = self._initial
        self._planted, self._observed = np.zeros(self.rounds, dtype=bool), np.zeros(self.rounds, dtype=bool)
        self._norms = np.full(self.rounds, np.nan)
        self._times = np.zeros(self._count, dtype=np.int64)
        self._seconds, self._finished = 0.0, False

    def seen_by(self, view: str, *, score: str | None = None, initial: npt.ArrayLike | None = None) -> OneShot:
        """Another adversary who looks at the same canaries: an audit that plants nothing itself.

        Give it to the same training, or call its ``plant`` and ``observe`` as those of this one.
        """
        other = copy.copy(self)
        other._plants, other.plants_as = False, None
        other._watch(view, score, initial)
        return other

    # What the training asks

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> PlantedCanaries | None:
        """This round's canaries, each as long as the clip norm; None where another audit plants them.

        They count as the number of clients that is expected, fixed in advance, so that the average does not tell how
        many there are.
        """
        if trial is not None:
            return None
        start = time.perf_counter()
        self._check_plantable(round)
        norm = self._length(round, clip_norm)
        present = self.participation.present(self._count, self.rounds, self.seed, round)
        self._planted[round], self._norms[round] = True, norm
        self._times[present] += 1
        planted = self._sum(round, present[self.members[present]], norm) if self._plants else None
        self._seconds += time.perf_counter() - start
        return planted

    def _sum(self, round: int, members: Ints, norm: float) -> PlantedCanaries:
        weights = np.zeros(self._count)
        weights[members] = norm
        total = self._updates.total(weights) if len(members) else np.zeros(self.dim, dtype=np.float32)
        clients = self.participation.rate(self._count, self.rounds, round) * self.canaries
        return PlantedCanaries(
            total, clients, len(members), canaries=self._updates, members=tuple(int(i) for i in members), norm=norm
        )

    def observe(self, release: Release) -> None:
        """Score all canaries, planted and held out, against a release."""
        if release.trial is not None:
            return
        start = time.perf_counter()
        vector = self._checked_release(release)
        change = vector if self._before is None else vector - self._before
        norm = _norm(change)
        if norm == 0 and not self._times.any():
            self._evidence.nothing(self._ends_epoch(release.round))
            self._observed[release.round] = True
            return
        if norm == 0:
            raise InputError(f"what round {release.round} released does not move: a zero update has no direction")
        shift = self._shift(release)
        dots = self._updates.dots(change)
        seen = Seen(dots, self._lengths(dots, norm), self._times, shift)
        rate = self.participation.rate(self._count, self.rounds, release.round)
        self._evidence.add(seen, rate, self._ends_epoch(release.round))
        if self._shared and self._times.any():
            # Without a known shift all releases weigh the same.
            add_matched(self._direction, change, norm, norm if shift is None else shift)
        self._observed[release.round] = True
        self._times = np.zeros_like(self._times)
        if self.view.startswith(("every", "rounds")):
            self._before = np.array(vector)
        self._seconds += time.perf_counter() - start

    def discard(self, round: int) -> None:
        """Forget that a round was planted which did not count."""
        if round < self.rounds and self._planted[round] and not self._observed[round]:
            self._planted[round] = False
            self._times[self.participation.present(self._count, self.rounds, self.seed, round)] -= 1

    def seats(self, round: int, trial: int | None = None) -> Sequence[int]:
        """The canaries of this round, planted and held out; all of them where the training chooses."""
        if trial is not None or not self._plants:
            return ()
        if isinstance(self.participation, ObservedParticipation):
            return range(self._count)
        return tuple(self.participation.present(self._count, self.rounds, self.seed, round).tolist())

    def took_part(self, round: int, seats: Sequence[int], trial: int | None = None) -> None:
        """Take note of it, or refuse what is not as it should be."""
        if trial is None and self._plants and isinstance(self.participation, ObservedParticipation):
            self.participation.saw(round, seats)
        else:
            super().took_part(round, seats, trial)

    def skip(self, round: int, trial: int | None = None) -> None:
        """The round counts as one that nobody took part in."""
        if trial is None:
            self.discard(round)
            self._planted[round] = True
            if isinstance(self.participation, ObservedParticipation):
                self.participation.missed(round)

    # What it found

    def scores(self, score: str | None = None) -> tuple[Floats, Floats]:
        """Scores of the planted and of the held-out canaries so far, by the audit's statistic or another."""
        which = self.score if score is None else self._checked_score(score)
        if not self._observed.any():
            raise InputError(f"the view {self.view} has seen no release yet: call observe after each round it sees")
        if self._silent:
            found = np.zeros(self._count)
        elif self._shared and which in ("sum", "likelihood-ratio"):
            dots = self._updates.dots(self._direction)
            found = dots / self._lengths(dots, _norm(self._direction))
        else:
            found = self._evidence.scores(which)
        told = ~np.isnan(found)
        return found[told & self.members], found[told & ~self.members]

    def live(self) -> str | None:
        """ε̂ by what was seen until now."""
        found = None if self._silent else rough_epsilon(*self.scores())
        return None if found is None else f"ε̂ {found:.2f} ({self.view})"

    def null(self, score: str | None = None) -> Null | None:
        """The law of a held-out canary's score where it is known, or an upper bound on its tails."""
        if self._silent:
            return None
        which, cosine = score or self.score, CosineNull(self._free)
        once = self._evidence.times.max() <= 1
        if which == "cosine" or (which == "sum" and (self._shared or once)):
            return cosine
        if which == "max":
            return LargestOfNull(cosine, self._evidence.releases) if self._evidence.releases > 1 else cosine
        if which == "likelihood-ratio" and not self._shared:
            return LikelihoodRatioNull() if self._one_of_all_rounds else None
        return cosine if which == "likelihood-ratio" else None

    def result(
        self,
        *,
        delta: float | None = None,
        confidence: float = 0.95,
        theory: Theory | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> AuditResult:
        """ε once the training is over: bounds that hold, estimates, and ``theory`` beside them.

        ``delta`` is that of ``theory`` if not given, and 1e-5 without either.
        """
        delta = common_delta(delta, theory)
        self._check_complete()
        members, nonmembers = self.scores()
        estimates, scores, ceiling = canary_estimates(
            members,
            nonmembers,
            null=self.null(),
            signs=self.family == "hadamard",
            design=self.design,
            delta=delta,
            confidence=confidence,
        )
        test, warnings = normality(members, "planted")
        self._finished = True
        return AuditResult(
            audit="one-shot",
            view=self.view,
            seed=self.seed,
            estimates=estimates,
            scores=scores,
            theory=theory,
            ceiling=ceiling,
            warnings=[*warnings, *self._warnings(theory), *self.notes],
            metrics={"planted": float(len(members)), "held_out": float(len(nonmembers)), **test, **(metrics or {})},
            timing={"audit_s": self._seconds},
            config=self._config(),
        )

    @property
    def knows_rounds(self) -> bool:
        """Whether the score uses the rounds in which a canary takes part."""
        return self.participation.knowledge == "surely" or self.score == "sum"

    @property
    def sampling(self) -> Sampling:
        """The sampling by which these canaries are accounted, for an adversary who knows what the score uses."""
        if not self.knows_rounds:
            return self.participation.sampling(self._count, self.rounds)
        times = np.zeros(self._count, dtype=np.int64)
        for round in range(self.rounds):
            times[self.participation.present(self._count, self.rounds, self.seed, round)] += 1
        most = max(1, int(times.max()))
        return EveryRound() if most == self.rounds else AtMost(most)

    def theory(self, *, noise_multiplier: float, delta: float, accountant: str | None = None) -> Theory:
        """What an accountant promises these canaries, whose part in the training may differ from the clients'.

        The analysis of cohorts of fixed size is loose for large shares: where taking part in every round has a smaller
        ε, that bound is taken.
        """

        def promise(sampling: Sampling) -> Theory:
            return accounting.theory(
                noise_multiplier=noise_multiplier,
                sampling=sampling,
                rounds=self.rounds,
                delta=delta,
                accountant=accountant,
            )

        found = promise(self.sampling)
        if isinstance(self.sampling, FixedSize):
            found = min(found, promise(EveryRound()), key=lambda theory: theory.epsilon)
        return found

    # Checkpoints

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """All that was seen."""
        before = np.zeros(0, dtype=np.float32) if self._before is None else self._before
        own = {"planted": self._planted, "observed": self._observed, "norms": self._norms, "due": self._times}
        own |= {"direction": self._direction, "before": before, "seconds": np.array(self._seconds)}
        return {name: np.array(value) for name, value in own.items()} | self._evidence.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what ``state`` gave."""
        self._planted, self._observed = np.array(state["planted"]), np.array(state["observed"])
        self._norms, self._times = np.array(state["norms"]), np.array(state["due"])
        self._direction = np.array(state["direction"])
        self._before = np.array(state["before"]) if len(state["before"]) else None
        self._evidence.restore(state)
        self._seconds, self._finished = float(state["seconds"]), False

    def __repr__(self) -> str:
        """All settings."""
        start = "" if self._initial is None else hashlib.blake2b(self._initial.tobytes(), digest_size=6).hexdigest()
        return f"OneShot({self._config()}, initial={start})"

    def _config(self) -> dict[str, Any]:
        names = ("dim", "rounds", "canaries", "view", "score", "design", "family", "norm", "seed")
        return {name: getattr(self, name) for name in names} | {"participation": str(self.participation)}

    # Checks

    def _check_view(self) -> None:
        shown = self.views[0]
        if shown.every is not None and shown.every > self.rounds:
            raise InputError(f"the view {self.view} sees nothing before the end: there are {self.rounds} rounds")
        for round in shown.at:
            if round >= self.rounds:
                raise InputError(f"the view {self.view} asks for round {round}: {self.rounds} are counted from 0")

    def _checked_initial(self, initial: npt.ArrayLike | None) -> Vector | None:
        compares = self.views[0].kind == "model" and self.view != "final"
        if initial is None:
            if compares:
                raise InputError(f"the view {self.view} looks at changes of the model: give initial=, the first model")
            return None
        if not compares:
            raise InputError(f"initial= goes with views of changes, not with {self.view}")
        return self._checked_vector(np.array(initial, dtype=np.float32), "the initial model")

    def _checked_score(self, score: str | None) -> Score:
        single = self.views[0].every is None and not self.views[0].at
        if score is None:
            return "cosine" if single else ("likelihood-ratio" if self.views[0].kind == "update" else "max")
        known = next((name for name in SCORES if name == score), None)
        if known is None:
            raise InputError(f"there is no score {score!r}; there are {', '.join(SCORES)}")
        if single != (known == "cosine"):
            other = "cosine" if single else "max, sum or likelihood-ratio"
            raise InputError(f"the score {score} does not go with the view {self.view}; {other} does")
        if known == "likelihood-ratio" and self.views[0].kind != "update":
            raise InputError("a likelihood ratio needs each round's update: it goes with the view updates")
        return known

    def _check_plantable(self, round: int) -> None:
        if self._finished:
            raise InputError("the result was taken already: nothing can be planted after it")
        number = check_count("round", round, least=0)
        if number >= self.rounds:
            raise InputError(f"the audit was made for {self.rounds} rounds, counted from 0, got round {round}")
        if self._planted[number]:
            raise InputError(f"round {round} was planted already: a canary takes part once in a round")

    def _length(self, round: int, clip_norm: float) -> float:
        if not clip_norm > 0:
            raise InputError(f"the clip norm must be above 0, got {clip_norm} in round {round}")
        if math.isinf(clip_norm) and self.norm is None:
            raise InputError(f"nothing is clipped in round {round}, so canaries have no length to take: give norm=")
        return min(clip_norm, math.inf if self.norm is None else self.norm)

    def _checked_release(self, release: Release) -> Vector:
        round, view = release.round, self.views[0]
        if release.kind != view.kind:
            raise InputError(f"the view {self.view} sees the {view.kind} of a round, got its {release.kind}")
        if not 0 <= round < self.rounds:
            raise InputError(f"the audit was made for {self.rounds} rounds, counted from 0, got a release of {round}")
        if not view.shows(round, self.rounds):
            raise InputError(f"the view {self.view} does not see round {round}")
        if self._observed[round]:
            raise InputError(f"the release of round {round} was observed already")
        if not self._planted[round]:
            raise InputError(f"round {round} was observed before it was planted: call plant first")
        return self._checked_vector(np.asarray(release.vector, dtype=np.float32), f"the release of round {round}")

    def _checked_vector(self, vector: Vector, name: str) -> Vector:
        if vector.shape != (self.dim,):
            raise InputError(f"{name} must have {self.dim} numbers in a row, got shape {vector.shape}")
        if not math.isfinite(float(vector.sum(dtype=np.float64))) and not np.isfinite(vector).all():
            raise InputError(f"{name} must be finite, got NaN or infinity")
        return vector

    def _check_complete(self) -> None:
        view = self.views[0]
        missing = [t for t in range(self.rounds) if view.shows(t, self.rounds) and not self._observed[t]]
        if missing:
            raise InputError(
                f"the view {self.view} sees {_some(missing)} of {self.rounds}, and nothing of that was observed: "
                "call observe with what was released"
            )
        forgotten = np.flatnonzero(~self._planted)
        if len(forgotten):
            raise InputError(f"canaries were never planted in {_some(forgotten.tolist())}: call plant in every round")

    # What follows from the settings

    def _chosen(self) -> Bools:
        draw = generator(self.seed, "insertion")
        if self.design == "coin-flips":
            return draw.random(self._count) < 0.5
        members = np.zeros(self._count, dtype=bool)
        members[draw.permutation(self._count)[: self.canaries]] = True
        return members

    def _lengths(self, dots: Floats, norm: float) -> Floats:
        return lengths(dots, norm, self.members, orthonormal=self._updates.orthonormal)

    def _rounds_are_shared(self) -> bool:
        """Whether all canaries have the same rounds."""
        if self.participation.knowledge != "surely":
            return False
        sizes = {len(self.participation.present(self._count, self.rounds, self.seed, t)) for t in range(self.rounds)}
        return sizes <= {0, self._count}

    @property
    def _silent(self) -> bool:
        """Whether no canary has had a round that counted: all score alike then, and no bound exceeds 0."""
        return not self._evidence.times.any()

    @property
    def _one_of_all_rounds(self) -> bool:
        """Whether each canary takes part in one round, which nobody knows: then the ratio is a mean of ratios."""
        return isinstance(self.participation, EpochParticipation) and self.participation.epochs == 1

    def _ends_epoch(self, round: int) -> bool:
        if not isinstance(self.participation, EpochParticipation):
            return False
        return round + 1 == self.participation.epoch(self.rounds, round)[2]

    def _shift(self, release: Release) -> float | None:
        if release.kind != "update" or release.divisor is None:
            if self.score == "likelihood-ratio":
                raise InputError(
                    f"a likelihood ratio needs to know what the sum of round {release.round} was divided by: "
                    "give Release(divisor=…), or take the score max"
                )
            return None
        return float(self._norms[release.round]) / check_positive("divisor", release.divisor)

    def _warnings(self, theory: Theory | None) -> list[str]:
        found = []
        if self._silent:
            found.append("no canary had a round that counted, so nothing could be seen of any")
        if theory is not None and self.knows_rounds and theory.sampling.startswith(("poisson", "fixed")):
            found.append(
                f"the score {self.score} knows the rounds of each canary, which a promise for {theory.sampling} keeps "
                f"secret: compare it with one for {self.sampling}"
            )
        return [*found, *self._about_crowding(theory)]

    def _about_crowding(self, theory: Theory | None) -> list[str]:
        """Canaries that are not orthogonal are one another's noise: all that come with one deviate by √(canaries/d)."""
        crowd = f"{self.canaries:,} canaries in {self.dim:,} dimensions disturb one another"
        if 4 * self.canaries > self.dim:
            return [f"{crowd}: fewer would show more"]
        if self._updates.orthonormal or not self._shared or theory is None:
            return []
        most = float(epsilon_gdp(math.sqrt(self.dim / self.canaries), theory.delta))
        if most > 2 * theory.epsilon:
            return []
        return [f"{crowd}: without any noise they could show about ε = {most:.3g}, and fewer would show more"]


def _checked_design(design: str) -> Design:
    if design == "coin-flips":
        return "coin-flips"
    if design == "fixed":
        return "fixed"
    raise InputError(f"the design must be coin-flips or fixed, got {design!r}")


def _norm(vector: Vector) -> float:
    return math.sqrt(float(np.einsum("i,i->", vector, vector, dtype=np.float64)))


def _some(rounds: Sequence[int]) -> str:
    shown = ", ".join(str(t) for t in rounds[:5])
    return f"round{'s' if len(rounds) > 1 else ''} {shown}{', …' if len(rounds) > 5 else ''}"
