"""`Canife`: canaries crafted for the current model, looked for in a single round's noisy sum (Maddock et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Array, Bools, Floats
from coalmine.claims import Claim
from coalmine.errors import InputError, NotApplicableError, check_count, check_positive
from coalmine.methods.canife.canaries import FACTS, CanaryMaker, CraftedUpdates, InsertedUpdates
from coalmine.methods.canife.epsilon import Period, anytime_bound
from coalmine.methods.canife.result import CanifeResult, canife_result
from coalmine.protocol import Audit, Contribution, Release, Vector, View
from coalmine.results.result import common_delta
from coalmine.seeds import generator
from coalmine.stats import gaussian_shift
from coalmine.vectors import CPU, VectorKind, flat, on

Mode = Literal["frozen", "running"]

# δ and confidence of the numbers beside the progress bar.
_LIVE_DELTA, _LIVE_CONFIDENCE = 1e-5, 0.95

_SIGMA = FACTS.index("effective_sigma")


class Canife(Audit):
    """Audits single rounds with canaries crafted for the current model (CANIFE, Maddock et al. 2023).

    A fair coin decides for each canary and each audited round whether it takes part as an extra client. Its score is
    read off the round's noisy sum: about 0 without it, 1 with it. A canary never counts in the divisor, whether present
    or not, so the divisor reveals nothing. The adversary reads nothing but noisy sums and the model that every client
    receives. Several audits of one training are several adversaries.

    Mode ``"frozen"``: before every ``every``-th round, from round 0 on, new canaries are made for the current model and
    ``trials`` rounds are run on it with fresh cohorts and fresh noise, as in the paper (whose code alternates
    instead of flipping coins). The training itself contains no canary and stays bit for bit the same.

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

    Raises:
        InputError: If a count is out of range, or a running training has fewer than ``trials`` rounds.

    Example:
        A perfect canary, which is orthogonal to everything clients send, measures the Gaussian mechanism itself.

        >>> import numpy as np
        >>> from coalmine.methods.canife.canaries import GivenUpdates
        >>> audit = Canife(canaries=GivenUpdates(np.eye(1, 50)), rounds=1, every=1, trials=200)
        >>> noise = np.random.default_rng(1)
        >>> for trial in range(200):
        ...     planted = audit.plant(0, clip_norm=1.0, trial=trial)
        ...     total = noise.normal(0, 1, 50).astype(np.float32)
        ...     total += 0 if planted is None else planted.total
        ...     audit.observe(0, update=total, trial=trial, divisor=1.0)
        >>> result = audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5))
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
    ) -> None:
        if mode not in get_args(Mode):
            raise InputError(f"mode must be frozen or running, got {mode!r}")
        self.canaries, self.mode, self.name = canaries, mode, name or mode
        self.rounds, self.every = check_count("rounds", rounds), check_count("every", every)
        self.trials, self.seed = check_count("trials", trials, least=2), check_count("seed", seed, least=0)
        if mode == "running" and self.trials > self.rounds:
            raise InputError(
                f"trials must be at most {self.rounds} in mode running, where each round gives one score, got {trials}"
            )
        self._frozen = mode == "frozen"
        designs = set(range(0, self.rounds, self.every))
        if self._frozen:
            count = len(designs) * self.trials
            self.views: Sequence[View] = (View("model", every=self.every),)
        else:
            count = self.rounds
            designs.add(min(self.every // 5, self.rounds - 1))
            self.views = (View("update"), View("model"))
            # Two adversaries with the same coins would always insert their canaries together.
            self.plants_as = f"CANIFE canaries by the coins of seed {self.seed}"
        self._designs = sorted(designs)  # the rounds before which canaries are made
        # The periods that estimates stand for: first round, number of rounds, and the first and last of their trials.
        if self._frozen:
            starts, rows = np.array(self._designs), self.trials * np.arange(len(designs) + 1)
        else:
            starts = rows = self.trials * np.arange(self.rounds // self.trials)
            rows = np.append(rows, self.rounds)  # the last period of a running audit takes the rest
        lengths = np.diff(starts, append=self.rounds)
        self._periods = np.stack([starts, lengths, rows[:-1], rows[1:]], axis=1).tolist()
        self._facts: Floats = np.full((len(designs), canaries.count, len(FACTS)), np.nan)
        # One row per trial: a frozen round, or a round of the training itself.
        self._coins: Bools = generator(self.seed, "coins").random((count, canaries.count)) < 0.5
        self._scores: Floats = np.full((count, canaries.count), np.nan)
        self._sigmas: Floats = np.full((count, canaries.count), np.nan)
        self._skipped: Bools = np.zeros(count, dtype=bool)
        self._model: Vector | None = None  # the last one released, which every client has
        # What the canaries send, the round it was crafted for, and the trial that is to be observed next (−1: none).
        self._crafted: CraftedUpdates | None = None
        self._crafted_for, self._due = -1, -1
        self._before: tuple[int, Mapping[str, npt.NDArray[Any]]] = (-1, {})

    # Called by the training

    def frozen_rounds(self, round: int) -> int:
        """Return ``trials`` before every ``every``-th round in mode frozen, else 0."""
        return self.trials if self._frozen and round % self.every == 0 else 0

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> Contribution | None:
        """Return the updates of the canaries whose coins came up, or None if there are none."""
        if self._frozen == (trial is None):
            return None
        self._due = self._row(round, trial)
        # The model stands still between frozen rounds, so what the canaries send is computed once for all of them.
        if self._crafted is None or self._crafted_for != round or trial == 0:
            # A failed round is repeated with the canaries it first started with.
            if self._before[0] == round:
                self.canaries.restore(self._before[1])
            self._before = round, self.canaries.state()
            number = self._designs.index(round) if round in self._designs else None
            if number is not None:
                self._facts[number] = self.canaries.design(self._model, clip_norm=clip_norm, round=round)
            self._crafted, self._crafted_for = self.canaries.crafted(self._model, clip_norm=clip_norm), round
            if number is not None:
                self._facts[number, :, _SIGMA] = self._crafted.effective_sigma
        present = self._coins[self._due]
        if not present.any():
            return None
        members = tuple(np.flatnonzero(present).tolist())
        # Summed in float64: scores must not depend on the order of the canaries.
        total = self._crafted.updates[present].sum(axis=0, dtype=np.float64).astype(np.float32)
        return InsertedUpdates(VectorKind().give(total), 0.0, len(members), self._crafted, members)

    def record(self, release: Release) -> None:
        """Score every canary, present or not, in a round's sum, or record the model."""
        if release.kind == "model":
            self._model = np.array(on(CPU, flat(release.vector)))
            return
        if self._frozen == (release.trial is None):
            return
        row = self._row(release.round, release.trial)
        if self._skipped[row]:  # aborted: there is nothing to score
            return
        where = f"round {release.round}" if self._frozen is False else f"frozen round {release.trial}"
        if row != self._due or self._crafted is None:
            raise InputError(f"{where} was observed before plant was called for it: call plant first")
        if release.divisor is None:
            raise InputError(f"CANIFE scores the sum of {where}: pass divisor=, what it was divided by")
        # Scores are linear in the sum, which is the released mean times its divisor.
        scores = self._crafted.scores(on(CPU, flat(release.vector))) * check_positive("divisor", release.divisor)
        if not np.isfinite(scores).all():
            raise InputError(f"the update of {where} must be finite, got NaN or infinity")
        self._scores[row], self._sigmas[row] = scores, self._crafted.effective_sigma
        self._due = -1

    def discard(self, round: int) -> None:
        """Forget what was inserted in a round that failed."""
        self._crafted_for, self._due = -1, -1

    def seats(self, round: int, trial: int | None = None) -> Sequence[int]:
        """Return all canaries, also in rounds where none sends anything, so that every round has as many nodes."""
        return range(self.canaries.count)

    def skip(self, round: int, trial: int | None = None) -> None:
        """Record an aborted round, which has no scores."""
        if self._frozen != (trial is None):
            self._skipped[self._row(round, trial)] = True
            self._due = -1

    def _row(self, round: int, trial: int | None) -> int:
        """Return the number of the trial that is a round, or the frozen round ``trial`` before it."""
        row = round if trial is None else round // self.every * self.trials + trial
        planned = trial is None or (round % self.every == 0 and 0 <= trial < self.trials)
        if not (0 <= round < self.rounds and planned):
            raise InputError(
                f"the audit has {self.rounds} rounds, and {self.trials} frozen rounds before every {self.every}th, got "
                f"round {round} and frozen round {trial}"
            )
        return row

    # Findings

    @property
    def periods(self) -> list[Period]:
        """The scores so far behind each estimate along the training; periods without scores are left out."""
        scored = ~self._skipped & ~np.isnan(self._scores).any(axis=1)
        periods = []
        for start, length, first, last in self._periods:
            rows = np.arange(first, last)[scored[first:last]]
            if len(rows):
                periods.append(Period(start, length, self._scores[rows], self._coins[rows], self._sigmas[rows]))
        return periods

    def figures(self) -> dict[str, float]:
        """Return the lower bound that holds at this moment, then ε̂ᵣ of the last period that has scores, if any.

        ε̂ᵣ is by ``gaussian-shift`` at δ = 1e-5, as the result will have it.
        """
        periods = self.periods
        # Watched after every round, so it must hold at every moment (docs/proofs.md).
        figures = {f"canife/{self.name}/lower_bound": anytime_bound(periods, _LIVE_DELTA).lower(_LIVE_CONFIDENCE)}
        for period in reversed(periods):
            with suppress(NotApplicableError):  # too few different scores so far
                if period.pair is not None:
                    epsilon = gaussian_shift(period.pair, delta=_LIVE_DELTA).epsilon
                    return figures | {f"canife/{self.name}/epsilon_estimate": epsilon}
        return figures

    @property
    def facts(self) -> dict[int, dict[str, list[float]]]:
        """By the round of a design, a number per canary for each of FACTS."""
        facts = {}
        for round, design in zip(self._designs, self._facts, strict=True):
            facts[round] = {name: design[:, i].tolist() for i, name in enumerate(FACTS)}
        return facts

    def result(
        self,
        *,
        claim: Claim | None = None,
        delta: float | None = None,
        confidence: float = 0.95,
        metrics: Mapping[str, float] | None = None,
    ) -> CanifeResult:
        """Return ε of single rounds, and composed, after the training.

        Args:
            claim: The claim for the whole training. Its smallest noise multiplier gives the claim for one round, and
                rounds are composed under its sampling.
            delta: The δ of all estimates: that of ``claim`` by default, else 1e-5.
            confidence: Confidence of bounds and intervals.
            metrics: Numbers to keep with the result, such as the model's accuracy.

        Raises:
            InputError: If scores are missing, or ``delta`` differs from that of ``claim``.
        """
        delta = common_delta(delta, claim)
        noise_multiplier = sampling = None
        if claim is not None:
            if claim.rounds is None:
                claim = claim.replace(rounds=self.rounds)
            # An ε that is merely stated does not say how clients take part.
            if claim.least_noise is not None:
                noise_multiplier = claim.least_noise * claim.sensitivity
                sampling = self.members_participation or claim.sampling
        missing = np.isnan(self._scores).any(axis=1) & ~self._skipped
        if missing.any():
            raise InputError(
                f"{missing.sum():,} of {len(missing):,} scores are missing: finish the training, and call observe with "
                "everything it releases"
            )
        if self._skipped.all():
            raise InputError("every audited round was aborted, so there are no scores: repeat the training")
        # All trials (trials, canaries), the round of each (trials,), and the last canaries.
        periods, state = self.periods, self.canaries.state()
        arrays: dict[str, Array] = {}
        for name in ("scores", "present", "sigma", "comparable"):
            arrays[name] = np.concatenate([getattr(period, name) for period in periods])
        arrays["round"] = np.repeat([p.round for p in periods], [len(p.scores) for p in periods])
        arrays |= {name: np.array(state[name]) for name in ("inputs", "targets") if name in state}
        result = canife_result(
            periods,
            # Canaries that share a round share its noise, and rounds of a running training share what it learned.
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
        )
        config = {name: getattr(self, name) for name in ("mode", "rounds", "every", "trials", "seed")}
        return replace(
            result,
            warnings=[*result.warnings, *self.notes],
            metrics={**result.metrics, **(metrics or {})},
            config=config | {"canaries": self.canaries.count, "maker": repr(self.canaries)},
            arrays=arrays,
        )

    # Checkpoints

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return scores, facts, the model last seen and the canaries; the coins follow from the seed."""
        model = np.zeros(0, dtype=np.float32) if self._model is None else self._model
        arrays = {"facts": self._facts, "model": model}
        arrays |= {"scores": self._scores, "sigmas": self._sigmas, "skipped": self._skipped}
        arrays |= {f"canary_{name}": value for name, value in self.canaries.state().items()}
        return {name: np.array(value) for name, value in arrays.items()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` returned."""
        arrays = {name: np.array(value) for name, value in state.items()}
        self._scores, self._sigmas, self._skipped = (arrays[name] for name in ("scores", "sigmas", "skipped"))
        self._facts = arrays["facts"]
        self._model = arrays["model"] if len(arrays["model"]) else None
        self._crafted = None
        self._crafted_for, self._due, self._before = -1, -1, (-1, {})
        prefix = "canary_"
        self.canaries.restore({n.removeprefix(prefix): value for n, value in arrays.items() if n.startswith(prefix)})

    def __repr__(self) -> str:
        """Return all settings, which must be the same for a checkpoint to be resumed."""
        names = ("mode", "rounds", "every", "trials", "seed", "canaries")
        return f"Canife({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
