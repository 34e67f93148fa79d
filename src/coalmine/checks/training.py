"""The checks of a training that an audit makes beside scoring its canaries. docs/checks.md describes them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.checks.cohorts import CohortRecord, cohort_findings
from coalmine.checks.update_noise import NOISE_CHECKS, ClaimedNoise, noise_findings
from coalmine.checks.update_record import THE_UPDATE, NoiseRecord, largest_roundings
from coalmine.claims import Claim
from coalmine.claims.sampling import Epochs, FixedSize, Poisson, Sampling
from coalmine.layers import Layers
from coalmine.protocol import Release, Vector
from coalmine.results.finding import CHECK_RATE, Check, Finding
from coalmine.vectors import dot, like, product_sums

# Rounding beyond this share of the claimed noise says more about a release than the noise does.
_MOST_ROUNDING = 0.5
# Standard errors from 0 within which the canaries' share of the releases is none, and from 1 at which it would show.
_LOOKS_LIKE_NOTHING, _WOULD_SHOW = 3.0, 6.0
_WRONG_UNITS = 0.25  # difference of their share from 1 that a wrong divisor makes, but rounding and the like do not


class TrainingChecks:
    """What an audit remembers of a training in order to check it, and what the checks find.

    Args:
        dim: Number of parameters.
        rounds: Number of rounds.
        seed: Seed of the coordinates that are sampled.
        layers: The model's tensors, if known.
        noise_scale: Noise of each parameter, relative to the claimed one, (dim,); None if it is the same for all.
    """

    def __init__(
        self, dim: int, rounds: int, seed: int, layers: Layers | None, noise_scale: Vector | None = None
    ) -> None:
        self.dim, self.rounds, self.seed, self.layers = dim, rounds, seed, layers
        self._noise_scale, self.even_noise = noise_scale, noise_scale is not None
        self.sampling: Sampling | None = None
        self.noise_multiplier: float | None = None
        self.noise_schedule: Sequence[tuple[float, int]] = ()
        self.facts: list[Finding] = []
        self._noise: NoiseRecord | None = None
        self._cohorts = CohortRecord()
        self._looked_at: list[str] = []
        # Of the canaries, in their first round and in all rounds: sum of share times precision, and of the precision.
        self._presence = np.zeros((2, 2))

    # During the training

    def record(self, release: Release, clip_norm: float, inserted: Vector | None = None) -> None:
        """Record the update of a round, if claimed noise would have a known size in it.

        Args:
            release: The update, whose vector is flat.
            clip_norm: Clip norm of the round.
            inserted: Sum of the canaries that were to be inserted, (dim,).
        """
        if release.divisor is None or not (release.divisor > 0 and math.isfinite(clip_norm)):
            return
        if math.isfinite(release.rounding):
            update = release.vector
            roundings = np.maximum(release.rounding, largest_roundings(update, self._record.layers.starts))
            if inserted is not None:
                inserted = like(inserted, update)
            if self._noise_scale is not None:
                # In units of its own noise, each parameter has the claimed noise.
                scale = like(self._noise_scale, update)
                update = update / scale
                inserted = None if inserted is None else inserted / scale
                roundings = roundings / self._noise_scale[self._record.layers.starts]
            unit, rounding = clip_norm / release.divisor, float(roundings.max())
            self._record.add(release.round, update, unit, rounding, release.divisor)
            if inserted is not None:
                self._look_for(inserted, update, release.divisor)

    def _look_for(self, inserted: Vector, update: Vector, divisor: float) -> None:
        """Record how much of the canaries' sum an update contains: 1 if it was added, and about 0 if it was not.

        Given the sizes of its numbers, the signs of the canaries' sum are random. So what else is in the update adds to
        their product with a variance of Σ cᵢ²uᵢ², wherever canaries and update are large. Rounds are weighted by the
        inverse of the variance of the share.
        """
        length, (product, variance) = dot(inserted, inserted), product_sums(inserted, update)
        if length > 0 and variance > 0:
            share = product * divisor / length
            precision = length**2 / (variance * divisor**2)
            rows = slice(None) if not self._presence.any() else slice(1, None)
            self._presence[rows] += [share * precision, precision]

    def cohort(self, clients: int | Sequence[int], available: int) -> None:
        """Record who took part in a round."""
        epoch = None
        if isinstance(self.sampling, Epochs):
            epoch = self.sampling.epoch(self.rounds, min(self._cohorts.rounds, self.rounds - 1))[1]
        self._cohorts.add(clients, available, epoch)

    def looked_at(self, check: str) -> None:
        """Record that an integration made a check of its own."""
        if check not in self._looked_at:
            self._looked_at.append(check)

    # After the training

    def findings(
        self, claim: Claim | None, in_tensors: Callable[[Claim, float], list[Finding]] | None = None
    ) -> tuple[list[str], list[Finding]]:
        """Return the names of the checks that were made, and what they found.

        All statistical checks together have the false-alarm rate `CHECK_RATE`, of which each gets an equal share.

        Args:
            claim: The claim.
            in_tensors: What canaries in single tensors find against the claim, at a level; None if there are none.
        """
        made, noise, sampling = list(self._looked_at), self._claimed_noise(claim), self.claimed_sampling(claim)
        if noise is not None and self._noise is not None:
            made += NOISE_CHECKS
        if self._cohorts.rounds:
            made.append(Check.PARTICIPATION)
        claim = claim if claim is not None and math.isfinite(claim.epsilon) else None
        if in_tensors is not None and claim is not None:
            made.append(Check.CANARIES)
        level = CHECK_RATE / max(1, len(made))
        findings: list[Finding] = []
        low_everywhere = False
        if noise is not None and self._noise is not None:
            claimed_noise = ClaimedNoise(self._noise, noise, level, self._canaries_share(), self.even_noise)
            findings += noise_findings(claimed_noise)
            low_everywhere = claimed_noise.is_low_everywhere
        # If all noise is too small, the divisor is in doubt already, and with it the share of the canaries.
        if not low_everywhere and all(finding.check != Check.UNITS for finding in findings):
            findings += self._about_canaries()
        findings += cohort_findings(self._cohorts, sampling, level=level)
        if in_tensors is not None and claim is not None:
            findings += in_tensors(claim, level)
        adjusted = [replace(finding, p_value=min(1.0, len(made) * finding.p_value)) for finding in findings]
        return list(map(str, made)), [*self.facts, *adjusted]

    def _canaries_share(self) -> tuple[float, float] | None:
        """Return how much of the canaries' sum the releases contain, and its standard error; None if it is unknown.

        Clients who train on a model that contains canaries push back, so in later rounds the share may be below 1.
        It is known only if the canaries' first round agrees that it is below, or above, or the same.
        """
        if not self._presence[:, 1].all():
            return None
        first, share = self._presence[:, 0] / self._presence[:, 1]
        first_error, error = (float(precision) for precision in self._presence[:, 1] ** -0.5)
        differs = abs(share - 1) > _LOOKS_LIKE_NOTHING * error
        if differs and (1 - first) * np.sign(1 - share) < _LOOKS_LIKE_NOTHING * first_error:
            return None
        return float(share), error

    def _about_canaries(self) -> list[Finding]:
        """Warn if the releases contain nothing of the canaries, or so much or little that the divisor must be wrong."""
        measured = self._canaries_share()
        if measured is None or self._noise is None:
            return []
        share, error = measured
        if abs(share) <= _LOOKS_LIKE_NOTHING * error and 1 - share >= _WOULD_SHOW * error:
            sentence = (
                f"No canary shows up in any release: they contain {share:.2g} ± {error:.1g} of the canaries' sum. Did "
                "you add planted.total to the sum of the clients' updates?"
            )
            return [Finding(check=Check.CANARIES_SHOW, sentence=sentence, refutes=False)]
        if abs(share - 1) >= max(_WOULD_SHOW * error, _WRONG_UNITS) and share >= _WOULD_SHOW * error:
            divisor = float(self._noise.divisor[0])
            sentence = (
                f"Canaries show up {share:.2g} ± {error:.1g} times as large as divisor = {divisor:g} says: perhaps the "
                f"sum was divided by {divisor / share:.3g}. Missing noise would not show."
            )
            return [Finding(check=Check.UNITS, sentence=sentence, refutes=False)]
        return []

    def _claimed_noise(self, claim: Claim | None) -> Floats | None:
        """Return the claimed noise multiplier of each round; None if the claim is not about Gaussian noise."""
        if claim is None:
            return None
        schedule = claim.noise_schedule or self.noise_schedule
        noise = np.full(self.rounds, claim.noise_multiplier or self.noise_multiplier or 0.0)
        if schedule:
            each = np.repeat([z for z, _ in schedule], [count for _, count in schedule])[: self.rounds]
            noise = np.concatenate([each, np.full(self.rounds - len(each), min(z for z, _ in schedule))])
        if not (noise > 0).all() or not np.isfinite(noise).all():
            return None
        if self._noise is not None and float((self._noise.rounding.max()) / noise.min()) > _MOST_ROUNDING:
            return None
        return noise

    def claimed_sampling(self, claim: Claim | None) -> Sampling | None:
        """Return the sampling of clients that the claim assumes, as far as it is known to be about clients."""
        if self.sampling is not None or claim is None:
            return self.sampling
        return claim.sampling if isinstance(claim.sampling, Poisson | FixedSize) else None

    @property
    def _record(self) -> NoiseRecord:
        if self._noise is None:
            layers = self.layers or Layers({THE_UPDATE: (self.dim,)})
            self._noise = NoiseRecord(layers, self.rounds, self.seed)
        return self._noise

    # Checkpoints

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        presence = {"presence": np.array(self._presence)}
        return {**self._cohorts.state(), **presence, **({} if self._noise is None else self._noise.state())}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        self._cohorts.restore(state)
        self._presence = np.array(state["presence"])
        if "noise_energies" in state:
            self._record.restore(state)
