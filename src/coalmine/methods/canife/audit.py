"""CANIFE: canaries crafted for the current model, looked for in a single round's noisy sum (Maddock et al. 2023)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from coalmine.accounting import Theory
from coalmine.accounting.claims import TrainingClaim
from coalmine.accounting.sampling import Sampling
from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError, check_count, check_positive
from coalmine.methods.canife.crafted import FACTS, CanaryMaker, Crafted
from coalmine.methods.canife.result import CanifeResult, canife_result
from coalmine.methods.canife.rounds import Period
from coalmine.methods.estimates import rough_epsilon
from coalmine.protocol import Audit, Contribution, Release, Vector, View
from coalmine.results.result import common_delta
from coalmine.seeds import generator

Mode = Literal["frozen", "running"]

_SIGMA = FACTS.index("effective_sigma")


@dataclass(frozen=True)
class PlantedUpdates(Contribution):
    """What those canaries send whose coins say so: their sum, or one by one."""

    crafted: Crafted | None = None
    members: tuple[int, ...] = ()

    def one_by_one(self) -> Iterator[tuple[int, Vector]]:
        """The updates with their canaries' numbers."""
        assert self.crafted is not None
        return ((i, self.crafted.updates[i]) for i in self.members)


class Canife(Audit):
    """Canaries that ``canaries`` makes, planted by coin flips as extra clients of a training of ``rounds`` rounds.

    ``frozen``: before every ``every``-th round, from round 0 on, new canaries are made for the model as it is, and
    ``trials`` rounds are held on it with fresh cohorts and fresh noise: as in the paper, but for coins where that
    alternates. The training itself has no canary in it, and comes to the same bits as without the audit.

    ``running``: the training's own rounds give one score a canary each, and none is wasted (the paper's appendix F).
    Canaries are made anew every ``every`` rounds, and the first ones, made for an untrained model that soon changes,
    after a fifth of that. They send what their clients would from each round's model; ``trials`` rounds make one
    estimate. Canaries whose coin says so really take part. A round in which none does is as it would
    be without the audit.

    A canary counts as no client in the average, whether it is there or not, so the divisor does not tell. All that is
    ever read is the average (times the divisor, the sum) of a round that held canaries or might have, and the model
    that clients receive anyway. Several audits of one training are several adversaries; ``name`` tells them apart.
    """

    family = "crafted"

    def __init__(
        self,
        *,
        canaries: CanaryMaker,
        rounds: int,
        every: int,
        trials: int = 100,
        mode: Mode = "frozen",
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        if not callable(getattr(canaries, "crafted", None)):
            raise InputError(f"canaries must be DesignedCanaries(...) or GivenUpdates(...), got {type(canaries)}")
        if mode not in get_args(Mode):
            raise InputError(f"mode must be frozen or running, got {mode!r}")
        self.canaries, self.mode, self.name = canaries, mode, name or mode
        self.rounds, self.every = check_count("rounds", rounds), check_count("every", every)
        self.trials, self.seed = check_count("trials", trials, least=2), check_count("seed", seed, least=0)
        if self.every > self.rounds:
            raise InputError(f"every must be at most the {self.rounds} rounds that there are, got {every}")
        if mode == "running" and self.trials > self.rounds:
            raise InputError(
                f"running, each round gives one score: {self.rounds} rounds cannot give trials={trials} of them"
            )
        self._frozen = mode == "frozen"
        made = set(range(0, self.rounds, self.every))
        self._designs = sorted(made if self._frozen else made | {min(self.every // 5, self.rounds - 1)})
        slots = len(self._designs) * self.trials if self._frozen else self.rounds
        # Fair coins, one for each canary in each round that it might be in.
        self._coins: Bools = generator(self.seed, "coins").random((slots, canaries.count)) < 0.5
        self._scores: Floats = np.full((slots, canaries.count), np.nan)
        self._sigmas: Floats = np.full((slots, canaries.count), np.nan)
        self._facts: Floats = np.full((len(self._designs), canaries.count, len(FACTS)), np.nan)
        self._skipped: Bools = np.zeros(slots, dtype=bool)
        self._model: Vector | None = None
        self._crafted: Crafted | None = None
        self._crafted_for, self._due = -1, -1
        self._before: tuple[int, Mapping[str, npt.NDArray[Any]]] = (-1, {})
        self._seconds = 0.0
        if self._frozen:
            self.views: Sequence[View] = (View("model", every=self.every),)
        else:
            self.views = (View("update"), View("model"))
            # The same coins would plant two adversaries' canaries always together.
            self.plants_as = f"CANIFE canaries by the coins of seed {self.seed}"

    # What the training asks

    def frozen_rounds(self, round: int) -> int:
        """``trials`` before every ``every``-th round; none in the running mode."""
        return self.trials if self._frozen and round % self.every == 0 else 0

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> Contribution | None:
        """The canaries whose coins say so, as long as the clip norm allows; None where there are none."""
        if self._frozen == (trial is None):
            return None
        start = time.perf_counter()
        slot = self._slot(round, trial)
        if self._crafted_for != round or trial == 0:
            self._craft(round, clip_norm)
        assert self._crafted is not None
        self._due = slot
        present = self._coins[slot]
        planted = None
        if present.any():
            members = tuple(np.flatnonzero(present).tolist())
            planted = PlantedUpdates(self._crafted.total(present), 0.0, len(members), self._crafted, members)
        self._seconds += time.perf_counter() - start
        return planted

    def _craft(self, round: int, clip_norm: float) -> None:
        # A round that is held again, since it failed, begins with the canaries that it first began with.
        if self._before[0] == round:
            self.canaries.restore(self._before[1])
        self._before = round, self.canaries.state()
        number = self._designs.index(round) if round in self._designs else None
        if number is not None:
            self._facts[number] = self.canaries.design(self._model, clip_norm=clip_norm, round=round)
        self._crafted = self.canaries.crafted(self._model, clip_norm=clip_norm)
        self._crafted_for = round
        if number is not None:
            self._facts[number, :, _SIGMA] = self._crafted.effective_sigma

    def observe(self, release: Release) -> None:
        """Score every canary, present or not, in a round's sum; or take note of the model that is trained next."""
        if release.kind == "model":
            self._model = np.array(release.vector, dtype=np.float32)
            return
        if self._frozen == (release.trial is None):
            return
        start = time.perf_counter()
        slot = self._slot(release.round, release.trial)
        if self._skipped[slot]:  # aborted: there is nothing to score
            return
        if slot != self._due or self._crafted is None:
            raise InputError(f"{self._where(release)} was observed before it was planted: call plant first")
        if release.divisor is None:
            raise InputError(
                f"CANIFE scores the sum of {self._where(release)}: give Release(divisor=…), what it was divided by"
            )
        if release.vector.shape != self._crafted.directions.shape[1:]:
            raise InputError(
                f"the release of {self._where(release)} has the shape {release.vector.shape}, canaries have "
                f"{self._crafted.directions.shape[1:]}"
            )
        scores = self._crafted.scores(release.vector) * check_positive("divisor", release.divisor)
        if not np.isfinite(scores).all():
            raise InputError(f"what {self._where(release)} released must be finite, got NaN or infinity")
        self._scores[slot], self._sigmas[slot], self._due = scores, self._crafted.effective_sigma, -1
        self._seconds += time.perf_counter() - start

    def discard(self, round: int) -> None:
        """Round ``round`` does not count: what was planted in it is forgotten."""
        self._crafted_for, self._due = -1, -1

    def seats(self, round: int, trial: int | None = None) -> Sequence[int]:
        """All canaries; also in rounds between frozen ones, where none sends anything: as many nodes in every round."""
        return range(self.canaries.count)

    def skip(self, round: int, trial: int | None = None) -> None:
        """A round without scores."""
        if self._frozen != (trial is None):
            self._skipped[self._slot(round, trial)] = True
            self._due = -1

    # What it found

    @property
    def periods(self) -> list[Period]:
        """Each estimate's scores, whether each canary was there, and the rounds it stands for."""
        if self._frozen:
            starts = list(self._designs)
            bounds = [(e * self.trials, (e + 1) * self.trials) for e in range(len(starts))]
        else:
            starts = [p * self.trials for p in range(self.rounds // self.trials)]  # the last takes what is left
            bounds = list(zip(starts, [*starts[1:], self.rounds], strict=True))
        ends = [*starts[1:], self.rounds]
        held = [np.arange(low, high)[~self._skipped[low:high]] for low, high in bounds]
        return [
            Period(start, end - start, self._scores[slots], self._coins[slots], self._sigmas[slots])
            for start, end, slots in zip(starts, ends, held, strict=True)
            if len(slots)
        ]

    def live(self) -> str | None:
        """ε̂ᵣ by the last estimate that has scores."""
        for period in reversed(self.periods):
            told = ~np.isnan(period.scores)
            found = rough_epsilon(period.scores[told & period.present], period.scores[told & ~period.present])
            if found is not None:
                return f"ε̂ᵣ {found:.2f} (canife)"
        return None

    @property
    def facts(self) -> dict[int, dict[str, list[float]]]:
        """By the round of a design, with a number for each canary: health, norm, effective_sigma, iterations, …"""
        found = ({name: design[:, i].tolist() for i, name in enumerate(FACTS)} for design in self._facts)
        return dict(zip(self._designs, found, strict=True))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Of each trial (trials, canaries): scores, who was present, sigma; its round; and the last canaries."""
        periods = self.periods
        found: dict[str, npt.NDArray[Any]] = {
            name: np.concatenate([getattr(period, name) for period in periods])
            for name in ("scores", "present", "sigma", "comparable")
        }
        found["round"] = np.concatenate([np.full(len(period.scores), period.round) for period in periods])
        kept = self.canaries.state()
        return found | {name: np.array(kept[name]) for name in ("inputs", "targets") if name in kept}

    def result(
        self,
        *,
        delta: float | None = None,
        confidence: float = 0.95,
        noise_multiplier: float | None = None,
        sampling: Sampling | None = None,
        theory: Theory | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> CanifeResult:
        """ε of single rounds, and composed, once the training is over.

        ``noise_multiplier`` is that of the training: it gives what theory promises of one round. ``sampling`` is how
        clients take part, under which the rounds are composed; ``theory`` is the promise for the whole training.
        ``delta`` is that of ``theory`` if not given; there is one δ for all figures.
        """
        delta = common_delta(delta, theory)
        missing = np.flatnonzero(np.isnan(self._scores).any(axis=1) & ~self._skipped)
        if len(missing):
            raise InputError(
                f"{len(missing):,} of {len(self._scores):,} scores are missing: the training is not over, or observe "
                "was not called with what it released"
            )
        if self._skipped.all():
            raise InputError("every round that might have had a canary came to nothing: there are no scores")
        found = canife_result(
            self.periods,
            independent=self._frozen and self.canaries.count == 1,
            view=self.name,
            seed=self.seed,
            delta=delta,
            confidence=confidence,
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            training=theory,
            facts=self.facts,
            canaries=self.canaries.described(),
            arrays=self.arrays,
            metrics=metrics or {},
            timing={"audit_s": self._seconds},
            config={name: getattr(self, name) for name in ("mode", "rounds", "every", "trials", "seed")}
            | {"canaries": self.canaries.count, "maker": repr(self.canaries)},
        )
        return replace(found, warnings=[*found.warnings, *self.notes])

    def result_for(self, claim: TrainingClaim, *, confidence: float, metrics: Mapping[str, float]) -> CanifeResult:
        """Return the result beside the claim for one round with the smallest noise; for integrations."""
        return self.result(
            confidence=confidence,
            noise_multiplier=claim.least_noise,
            sampling=claim.sampling,
            theory=claim.theory,
            metrics=metrics,
        )

    # Checkpoints

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Scores, what is known of each design, the model last seen, the canaries."""
        model = np.zeros(0, dtype=np.float32) if self._model is None else self._model
        own: dict[str, npt.NDArray[Any]] = {"scores": self._scores, "sigmas": self._sigmas, "facts": self._facts}
        own |= {"skipped": self._skipped}
        own |= {"model": model, "seconds": np.array(self._seconds)}
        made = {f"canary_{name}": value for name, value in self.canaries.state().items()}
        return {name: np.array(value) for name, value in (own | made).items()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what ``state`` gave."""
        self._scores, self._sigmas = np.array(state["scores"]), np.array(state["sigmas"])
        self._facts, self._skipped = np.array(state["facts"]), np.array(state["skipped"])
        self._model = np.array(state["model"]) if len(state["model"]) else None
        self._seconds, self._crafted = float(state["seconds"]), None
        self._crafted_for, self._due, self._before = -1, -1, (-1, {})
        made = {name.removeprefix("canary_"): value for name, value in state.items() if name.startswith("canary_")}
        self.canaries.restore({name: np.array(value) for name, value in made.items()})

    def __repr__(self) -> str:
        """All settings."""
        names = ("mode", "rounds", "every", "trials", "seed", "canaries")
        return f"Canife({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def _slot(self, round: int, trial: int | None) -> int:
        if not 0 <= round < self.rounds:
            raise InputError(f"the audit was made for {self.rounds} rounds, counted from 0, got round {round}")
        if trial is None:
            return round
        if round % self.every or not 0 <= trial < self.trials:
            raise InputError(
                f"the audit has {self.trials} frozen rounds before every {self.every}th round, got number {trial} "
                f"before round {round}"
            )
        return round // self.every * self.trials + trial

    def _where(self, release: Release) -> str:
        trial = "" if release.trial is None else f"frozen round {release.trial} before "
        return f"{trial}round {release.round}"
