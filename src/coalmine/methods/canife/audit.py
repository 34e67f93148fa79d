"""`Canife`: canaries crafted for the current model, looked for in a single round's noisy sum (Maddock et al. 2023)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.claims import Claim
from coalmine.claims.sampling import Sampling
from coalmine.errors import InputError, NotApplicableError, check_confidence, check_count, check_positive
from coalmine.methods.canife.anytime import AnytimeEvidence
from coalmine.methods.canife.canaries import FACTS, CanaryMaker, CraftedUpdates, InsertedUpdates
from coalmine.methods.canife.result import CanifeResult, canife_result
from coalmine.methods.canife.round_estimates import Period
from coalmine.methods.canife.trials import Trials, described
from coalmine.protocol import Audit, Contribution, Release, Vector, View
from coalmine.results.result import common_delta
from coalmine.stats import gaussian_shift
from coalmine.vector_kind import VectorKind
from coalmine.vectors import flat, to_numpy

Mode = Literal["frozen", "running"]

LIVE_DELTA = 1e-5
"""The δ of the numbers beside the progress bar."""

_SIGMA = FACTS.index("effective_sigma")


class Canife(Audit):
    """Audits single rounds with canaries crafted for the current model (CANIFE, Maddock et al. 2023).

    A fair coin decides for each canary and each audited round whether it takes part as an extra client. Its score is
    read off the round's noisy sum: about 0 without it, 1 with it. A canary never counts in the divisor, whether present
    or not, so the divisor reveals nothing. The adversary reads nothing but noisy sums and the model that every client
    receives. Several audits of one training are several adversaries.

    Mode ``"frozen"``: before every ``every``-th round, from round 0 on, new canaries are made for the current model and
    ``trials`` rounds are run on it with fresh cohorts and fresh noise, as in the paper (which alternates instead of
    flipping coins). The training itself contains no canary and stays bit for bit the same.

    Mode ``"running"``: the training's own rounds give one score per canary each, and none is wasted (appendix F of the
    paper). Canaries are redesigned every ``every`` rounds, and once after the first fifth of that, since those made for
    an untrained model fade quickly. ``trials`` rounds make one estimate. Canaries that take part really change the
    model.

    Args:
        canaries: Makes the canaries: ``DesignedCanaries(...)`` or ``GivenUpdates(...)``.
        rounds: Number of training rounds.
        every: Rounds from one design to the next.
        trials: Scores per canary and estimate, at least 2.
        mode: ``"frozen"`` or ``"running"``.
        name: View of the result, which distinguishes several adversaries; the mode if not given.
        seed: Seed of the coin flips.
        stop_when_refuted: Whether to end the frozen rounds as soon as the claim for one round is refuted, at whatever
            moment (docs/anytime.md). Bounds that need a fixed number of trials then become estimates.
        claimed_noise: The claimed noise multiplier, which ``stop_when_refuted`` needs.
        confidence: Confidence of an early stop and of the bound beside the progress bar; that of the result should be
            the same.

    Raises:
        InputError: If a count is out of range, a running training has fewer than ``trials`` rounds, or an early stop is
            wanted in mode ``"running"`` or without ``claimed_noise``.

    Example:
        A perfect canary, which is orthogonal to everything clients send, measures the Gaussian mechanism itself.

        >>> import numpy as np
        >>> from coalmine.protocol import Release
        >>> from coalmine.methods.canife.canaries import GivenUpdates
        >>> audit = Canife(canaries=GivenUpdates(np.eye(1, 50)), rounds=1, every=1, trials=200)
        >>> noise = np.random.default_rng(1)
        >>> for trial in range(200):
        ...     planted = audit.plant(0, clip_norm=1.0, trial=trial)
        ...     total = noise.normal(0, 1, 50).astype(np.float32)
        ...     total += 0 if planted is None else planted.total
        ...     audit.observe(0, update=total, trial=trial, divisor=1.0)
        >>> result = audit.result(noise_multiplier=1.0)
        >>> result.verdict.value, round(result["gaussian-shift"].epsilon, 1), round(result.claim.epsilon, 1)
        ('not refuted', 4.4, 4.4)
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
        stop_when_refuted: bool = False,
        claimed_noise: float | None = None,
        confidence: float = 0.95,
    ) -> None:
        if not callable(getattr(canaries, "crafted", None)):
            raise InputError(f"canaries must be DesignedCanaries(...) or GivenUpdates(...), got {type(canaries)}")
        if mode not in get_args(Mode):
            raise InputError(f"mode must be frozen or running, got {mode!r}")
        self.canaries, self.mode, self.name = canaries, mode, name or mode
        self.rounds, self.every = check_count("rounds", rounds), check_count("every", every)
        self.trials, self.seed = check_count("trials", trials, least=2), check_count("seed", seed, least=0)
        if self.every > self.rounds:
            raise InputError(f"every must be at most the number of rounds, {self.rounds}, got {every}")
        if mode == "running" and self.trials > self.rounds:
            raise InputError(
                f"trials must be at most {self.rounds} in mode running, where each round gives one score, got {trials}"
            )
        if stop_when_refuted and (mode == "running" or not claimed_noise):
            raise InputError(
                f"stop_when_refuted needs mode frozen and claimed_noise, the noise multiplier to test, got mode {mode} "
                f"and claimed_noise {claimed_noise}"
            )
        self.stop_when_refuted, self.claimed_noise = stop_when_refuted, claimed_noise
        self.confidence = check_confidence(confidence)
        self._frozen = mode == "frozen"
        designs = set(range(0, self.rounds, self.every))
        self._designs = sorted(designs if self._frozen else designs | {min(self.every // 5, self.rounds - 1)})
        self._trials = Trials(
            self._designs,
            rounds=self.rounds,
            every=self.every,
            each=self.trials,
            frozen=self._frozen,
            canaries=canaries.count,
            seed=self.seed,
        )
        self._facts: Floats = np.full((len(self._designs), canaries.count, len(FACTS)), np.nan)
        self._model: Vector | None = None
        self._crafted: CraftedUpdates | None = None
        self._crafted_for, self._due = -1, -1
        self._before: tuple[int, Mapping[str, npt.NDArray[Any]]] = (-1, {})
        self._seconds = self._began = 0.0
        self._anytime, self._seen, self._stopped = self._no_evidence(), 0, False
        if self._frozen:
            self.views: Sequence[View] = (View("model", every=self.every),)
        else:
            self.views = (View("update"), View("model"))
            # Two adversaries with the same coins would always insert their canaries together.
            self.plants_as = f"CANIFE canaries by the coins of seed {self.seed}"

    # Called by the training

    def frozen_rounds(self, round: int) -> int:
        """Return ``trials`` before every ``every``-th round; 0 in mode running, and after an early stop."""
        return self.trials if self._frozen and round % self.every == 0 and not self._stopped else 0

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> Contribution | None:
        """Return the updates of the canaries whose coins came up, or None if there are none."""
        if self._frozen == (trial is None):
            return None
        start = time.perf_counter()
        number = self._trials.number(round, trial)
        if self._stopped:
            return None
        if self._crafted_for != round or trial == 0:
            self._craft(round, clip_norm)
        assert self._crafted is not None
        self._due = number
        present = self._trials.coins[number]
        inserted = None
        if present.any():
            members = tuple(np.flatnonzero(present).tolist())
            total = VectorKind().give(self._crafted.total(present))
            inserted = InsertedUpdates(total, 0.0, len(members), self._crafted, members)
        if self._frozen:
            self._began = start  # the whole round is held for the audit: its time counts until it is observed
        else:
            self._seconds += time.perf_counter() - start
        return inserted

    def _craft(self, round: int, clip_norm: float) -> None:
        """Compute what the canaries send in a round, and redesign them first if a design is due."""
        # A failed round is repeated with the canaries it first started with.
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

    def record(self, release: Release) -> None:
        """Score every canary, present or not, in a round's sum, or record the model."""
        if release.kind == "model":
            self._model = np.array(to_numpy(flat(release.vector)))
            return
        if self._frozen == (release.trial is None):
            return
        start = self._began if self._frozen else time.perf_counter()
        number = self._trials.number(release.round, release.trial)
        if self._trials.skipped[number]:  # aborted: there is nothing to score
            return
        if number != self._due or self._crafted is None:
            raise InputError(f"{described(release)} was observed before plant was called for it: call plant first")
        if release.divisor is None:
            raise InputError(f"CANIFE scores the sum of {described(release)}: pass divisor= to observe")
        vector = to_numpy(flat(release.vector))
        if vector.shape != self._crafted.directions.shape[1:]:
            raise InputError(
                f"the release of {described(release)} must have the shape {self._crafted.directions.shape[1:]} of the "
                f"canaries, got {vector.shape}"
            )
        scores = self._crafted.scores(vector) * check_positive("divisor", release.divisor)
        if not np.isfinite(scores).all():
            raise InputError(f"the release of {described(release)} must be finite, got NaN or infinity")
        self._trials.scores[number], self._trials.sigmas[number] = scores, self._crafted.effective_sigma
        self._due = -1
        if self.stop_when_refuted:
            self._look()
        self._seconds += time.perf_counter() - start

    def discard(self, round: int) -> None:
        """Forget what was inserted in a round that failed."""
        self._crafted_for, self._due = -1, -1

    def seats(self, round: int, trial: int | None = None) -> Sequence[int]:
        """Return all canaries, also in rounds where none sends anything, so that every round has as many nodes."""
        return range(self.canaries.count)

    def skip(self, round: int, trial: int | None = None) -> None:
        """Record an aborted round, which has no scores."""
        if self._frozen != (trial is None):
            self._trials.skipped[self._trials.number(round, trial)] = True
            self._due = -1

    # Findings

    @property
    def periods(self) -> list[Period]:
        """The scores behind each estimate along the training."""
        return self._trials.periods

    def _no_evidence(self) -> AnytimeEvidence:
        return AnytimeEvidence(delta=LIVE_DELTA, noise_multiplier=self.claimed_noise)

    def _look(self) -> None:
        """Bring the evidence up to date, and stop if it refutes the claim."""
        end = self._trials.finished
        self._anytime.update(*self._trials.between(self._seen, end))
        self._seen = end
        if self.stop_when_refuted and not self._stopped and self._anytime.refuted(self.confidence):
            self._stopped = True
            self._trials.skipped[end:] = True

    def live(self) -> str | None:
        """Return a lower bound on ε that holds at this moment, and ε̂ᵣ of the last period that has scores.

        ε̂ᵣ is by ``gaussian-shift`` at δ = 1e-5, as the result will have it.
        """
        lower, *estimates = self.figures().values()
        bound = f"ε ≥ {lower:.2f} ({100 * self.confidence:g}%), " if lower > 0 else ""
        return next((f"{bound}ε̂ᵣ {epsilon:.2f} (canife)" for epsilon in estimates), None)

    def figures(self) -> dict[str, float]:
        """Return the lower bound that holds at this moment, then ε̂ᵣ of the last period that has scores, if any."""
        self._look()
        figures = {f"canife/{self.name}/lower_bound": self._anytime.bound.lower(self.confidence)}
        for period in reversed(self.periods):
            scores = period.scored.pair
            if scores is None:
                continue
            try:
                epsilon = gaussian_shift(scores, delta=LIVE_DELTA).epsilon
                return figures | {f"canife/{self.name}/epsilon_estimate": epsilon}
            except NotApplicableError:  # too few different scores so far
                continue
        return figures

    @property
    def facts(self) -> dict[int, dict[str, list[float]]]:
        """By the round of a design, a number per canary for each of FACTS."""
        by_design = ({name: design[:, i].tolist() for i, name in enumerate(FACTS)} for design in self._facts)
        facts = dict(zip(self._designs, by_design, strict=True))
        # After an early stop, nothing was designed.
        made = {period.round for period in self.periods} if self._stopped else set(facts)
        return {round: design for round, design in facts.items() if round in made}

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All trials (trials, canaries): scores, presence, sigma; the round (trials,); and the last canaries."""
        state = self.canaries.state()
        last = {name: np.array(state[name]) for name in ("inputs", "targets") if name in state}
        return self._trials.arrays | last

    def result(
        self,
        *,
        delta: float | None = None,
        confidence: float = 0.95,
        noise_multiplier: float | None = None,
        sampling: Sampling | None = None,
        claim: Claim | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> CanifeResult:
        """Return ε of single rounds, and composed, after the training.

        Args:
            delta: The δ of all estimates; that of ``claim`` if not given.
            confidence: Confidence of bounds and intervals.
            noise_multiplier: Noise multiplier of the training, from which the claim for one round follows; by default
                the smallest that ``claim`` assumes.
            sampling: How clients take part, under which rounds are composed; by default as ``claim`` assumes. Rounds
                are not composed if neither says it.
            claim: The claim for the whole training, which the composed rounds are compared with.
            metrics: Numbers to keep with the result, such as the model's accuracy.

        Raises:
            InputError: If scores are missing, or ``delta`` differs from that of ``claim``.
        """
        delta = common_delta(delta, claim)
        if claim is not None:
            noise_multiplier = claim.least_noise if noise_multiplier is None else noise_multiplier
            if sampling is None and claim.least_noise is not None:
                # A bare ε says nothing about who takes part, so that its rounds are not composed.
                sampling = self.members_participation or claim.sampling
        self._trials.check_complete()
        result = canife_result(
            self.periods,
            independent=self._frozen and self.canaries.count == 1,
            view=self.name,
            seed=self.seed,
            delta=delta,
            confidence=confidence,
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            training_claim=claim,
            designs=self.facts,
            canaries=self.canaries.described(),
            stop_when_refuted=self.stop_when_refuted,
        )
        config = {name: getattr(self, name) for name in ("mode", "rounds", "every", "trials", "seed")}
        notes = list(self.notes)
        if self.stop_when_refuted:
            config["stop_when_refuted"] = True
        if self._stopped:
            played, planned = len(self.arrays["scores"]), len(self._trials.scores)
            notes.append(
                f"the audit stopped after {played:,} of {planned:,} frozen rounds, since they refute the claim"
            )
        return replace(
            result,
            warnings=[*result.warnings, *notes],
            metrics={**result.metrics, **(metrics or {})},
            timing={"audit_s": self._seconds},
            config=config | {"canaries": self.canaries.count, "maker": repr(self.canaries)},
            arrays=self.arrays,
        )

    # Checkpoints

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return scores, facts, the model last seen and the canaries."""
        model = np.zeros(0, dtype=np.float32) if self._model is None else self._model
        arrays = {"facts": self._facts, "model": model, "seconds": np.array(self._seconds)}
        arrays |= {f"canary_{name}": value for name, value in self.canaries.state().items()}
        return {name: np.array(value) for name, value in arrays.items()} | self._trials.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` returned."""
        self._trials.restore(state)
        self._facts = np.array(state["facts"])
        self._model = np.array(state["model"]) if len(state["model"]) else None
        self._seconds, self._crafted = float(state["seconds"]), None
        self._crafted_for, self._due, self._before = -1, -1, (-1, {})
        canaries = {name.removeprefix("canary_"): value for name, value in state.items() if name.startswith("canary_")}
        self.canaries.restore({name: np.array(value) for name, value in canaries.items()})
        self._anytime, self._seen, self._stopped = self._no_evidence(), 0, False
        self._look()

    def __repr__(self) -> str:
        """Return all settings, which must be the same for a checkpoint to be resumed."""
        names = ["mode", "rounds", "every", "trials", "seed", "canaries"]
        if self.stop_when_refuted:
            names += ["stop_when_refuted", "claimed_noise", "confidence"]
        return f"Canife({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
