"""The checks of a training that an audit makes beside scoring its canaries. docs/checks.md describes them all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.checks.cohorts import CohortRecord, cohort_findings
from coalmine.checks.update_noise import NOISE_CHECKS, ClaimedNoise, noise_findings
from coalmine.checks.update_record import THE_UPDATE, NoiseRecord, largest_roundings
from coalmine.claims import Claim
from coalmine.claims.sampling import AtMost, Epochs, EveryRound, FixedSize, Poisson, Sampling, parse_sampling
from coalmine.layers import Layers
from coalmine.protocol import Release, Vector
from coalmine.results.verdict import CHECK_RATE, Check, Finding
from coalmine.stats.exact_tests import LEAST_P_VALUE
from coalmine.vectors import dot, on, pieces

# Rounding beyond this share of the claimed noise says more about a release than the noise does.
_MOST_ROUNDING = 0.5
# Standard errors from 0 within which the canaries' share of the releases is none, and from 1 at which it would show.
_LOOKS_LIKE_NOTHING, _WOULD_SHOW = 3.0, 6.0
_SHARES_OF_NOISE = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
_WRONG_UNITS = 0.25  # difference of their share from 1 that a wrong divisor makes, but rounding and the like do not


class TrainingChecks:
    """What an audit remembers of a training in order to check it, and what the checks find.

    Args:
        dim: Number of parameters.
        rounds: Number of rounds.
        seed: Seed of the coordinates that are sampled.
        layers: The model's tensors, if known.
        noise_scale: Noise of each parameter, relative to the claimed one, (dim,); None if it is the same for all.

    Attributes:
        chances: How likely a held-out canary scores as high as each inserted one that lies in a single tensor, by the
            name of the tensor; None if no canaries lie in single tensors.
        participation_refutes: Whether the canaries' claim relies on how the clients were drawn.
    """

    def __init__(
        self, dim: int, rounds: int, seed: int, layers: Layers | None, noise_scale: Vector | None = None
    ) -> None:
        self.dim, self.rounds, self.seed, self.layers = dim, rounds, seed, layers
        self._noise_scale, self.even_noise = noise_scale, noise_scale is not None
        self.sampling: Sampling | None = None
        self.noise_multiplier: float | None = None
        self.chances: Mapping[str, Floats] | None = None
        self.participation_refutes = True
        self.facts: list[Finding] = []
        self._noise: NoiseRecord | None = None
        self._cohorts = CohortRecord()
        self.looked_at: list[str] = []  # checks that an integration made by itself
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
        divisor = release.divisor
        if divisor is None or not math.isfinite(clip_norm) or not math.isfinite(release.rounding):
            return
        update, record = release.vector, self._record()
        roundings = np.maximum(release.rounding, largest_roundings(update, record.layers.starts))
        if inserted is not None:
            inserted = on(update.device, inserted)
        if self._noise_scale is not None:
            # In units of its own noise, each parameter has the claimed noise.
            scale = on(update.device, self._noise_scale)
            update = update / scale
            inserted = None if inserted is None else inserted / scale
            roundings = roundings / self._noise_scale[record.layers.starts]
        record.add(release.round, update, clip_norm / divisor, float(roundings.max()), divisor)
        if inserted is None:
            return
        # How much of the canaries' sum the update contains: 1 if it was added, and about 0 if it was not. Given the
        # sizes of its numbers, the signs of the canaries' sum are random. So what else is in the update adds to their
        # product with a variance of Σ cᵢ²uᵢ², wherever canaries and update are large. Rounds are weighted by the
        # inverse of the variance of the share.
        length, product, variance = dot(inserted, inserted), 0.0, 0.0
        for piece in pieces(len(update), update.device):  # since all terms would need the memory of a third vector
            terms = inserted[piece] * update[piece]
            product += dot(inserted[piece], update[piece])
            variance += dot(terms, terms)
        if length > 0 and variance > 0:
            share, precision = product * divisor / length, length**2 / (variance * divisor**2)
            first = 1 if self._presence.any() else 0
            self._presence[first:] += [share * precision, precision]

    def cohort(self, clients: int | Sequence[int], available: int) -> None:
        """Record who took part in a round."""
        epoch = None
        if isinstance(self.sampling, Epochs):
            epoch = self.sampling.epoch(self.rounds, min(self._cohorts.rounds, self.rounds - 1))[1]
        self._cohorts.add(clients, available, epoch)

    # After the training

    def findings(self, claim: Claim | None) -> tuple[list[str], list[Finding]]:
        """Return the names of the checks that were made, and what they found.

        All statistical checks together have the false-alarm rate `CHECK_RATE`, of which each gets an equal share.
        """
        made, noise, record = list(self.looked_at), self._claimed_noise(claim), self._noise
        if noise is not None and record is not None:
            made += NOISE_CHECKS
        if self._cohorts.rounds:
            made.append(Check.PARTICIPATION)
        if self.chances is not None and claim is not None and math.isfinite(claim.epsilon):
            made.append(Check.CANARIES)
        level = CHECK_RATE / max(1, len(made))
        findings: list[Finding] = []
        share = self._canaries_share()
        # If all noise is too small, the divisor is in doubt already, and with it the share of the canaries.
        doubted = False
        if noise is not None and record is not None:
            claimed_noise = ClaimedNoise(record, noise, level, share, self.even_noise)
            findings += noise_findings(claimed_noise)
            doubted = claimed_noise.low_everywhere or any(finding.check == Check.UNITS for finding in findings)
        if record is not None and share is not None and not doubted:
            findings += _about_canaries(*share, float(record.divisor[0]))
        if self._cohorts.rounds:
            for finding in cohort_findings(self._cohorts, self.claimed_sampling(claim), level=level):
                findings.append(replace(finding, refutes=finding.refutes and self.participation_refutes))
        if self.chances is not None and claim is not None and Check.CANARIES in made:
            findings += tensor_findings(self.chances, claim, level)
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

    def _claimed_noise(self, claim: Claim | None) -> Floats | None:
        """Return the claimed noise multiplier of each round; None if the claim is not about Gaussian noise."""
        if claim is None:
            return None
        noise = np.full(self.rounds, claim.noise_multiplier or self.noise_multiplier or 0.0)
        schedule = np.array(claim.noise_schedule).reshape(-1, 2)
        if len(schedule):
            noise[:] = schedule[:, 0].min()  # of rounds beyond the schedule
            each = np.repeat(schedule[:, 0], schedule[:, 1].astype(int))[: self.rounds]
            noise[: len(each)] = each
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

    def _record(self) -> NoiseRecord:
        """Return the record of the noise, which is made once the layers are known."""
        if self._noise is None:
            self._noise = NoiseRecord(self.layers or Layers({THE_UPDATE: (self.dim,)}), self.rounds, self.seed)
        return self._noise

    # Stored with a result, so that the gate finds again what was found

    def stored(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return all that `findings` needs but the claim: terms, ready for JSON, and arrays."""
        sampling = self.sampling
        if sampling is not None and not isinstance(sampling, AtMost | Epochs | FixedSize | Poisson):
            sampling = EveryRound()  # whose clients are checked in the same way, and which has a text form
        terms = {
            "dim": self.dim,
            "rounds": self.rounds,
            "seed": self.seed,
            "layers": None if self.layers is None else list(self.layers.shapes.items()),
            "sampling": None if sampling is None else str(sampling),
            "participation_refutes": self.participation_refutes,
            "noise_multiplier": self.noise_multiplier,
            "even_noise": self.even_noise,
            "tensors": None if self.chances is None else list(self.chances),
            "looked_at": list(map(str, self.looked_at)),
            "facts": [fact.to_dict() for fact in self.facts],
        }
        # Who took part is nobody's business after the training: only how often clients did.
        arrays = self.state() | {"cohort_ids": np.zeros(0, dtype=np.int64)}
        for number, chances in enumerate((self.chances or {}).values()):
            arrays[f"chances_{number}"] = chances
        return terms, arrays

    @classmethod
    def from_stored(cls, terms: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the checks that `stored` describes."""
        layers = None if terms["layers"] is None else Layers({name: tuple(shape) for name, shape in terms["layers"]})
        checks = cls(terms["dim"], terms["rounds"], terms["seed"], layers)
        checks.restore(arrays)
        for name in ("participation_refutes", "noise_multiplier", "even_noise", "looked_at"):
            setattr(checks, name, terms[name])
        if terms["sampling"] is not None:
            checks.sampling = parse_sampling(terms["sampling"])
        if terms["tensors"] is not None:
            checks.chances = {name: arrays[f"chances_{number}"] for number, name in enumerate(terms["tensors"])}
        checks.facts = [Finding(**fact) for fact in terms["facts"]]
        return checks

    # Checkpoints

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        state = self._cohorts.state() | {"presence": np.array(self._presence)}
        if self._noise is not None:
            state |= self._noise.state()
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        self._cohorts.restore(state)
        self._presence = np.array(state["presence"])
        if "noise_energies" in state:
            self._record().restore(state)


def tensor_findings(chances: Mapping[str, Floats], claim: Claim, level: float) -> list[Finding]:
    """Return tensors whose canaries refute the claim. The p-values take all canaries of all tensors into account.

    Args:
        chances: How likely a held-out canary scores as high as each inserted one, by tensor.
        claim: The claim.
        level: Significance of all tensors together.
    """
    if not chances:
        return []
    tested, curve = sum(map(len, chances.values())), claim.curve()
    findings = []
    for name, likelihoods in chances.items():
        # Under the claim a member's score is so unlikely with probability at most curve.tpr(likelihoods): a valid
        # p-value of each canary by itself, and by the union bound of all of them.
        p_value = float(min(1.0, tested * curve.tpr(likelihoods).min()))
        if p_value > level:
            continue
        sentence = f"Canaries in {name} refute the claim"
        if claim.has_noise:
            # The smallest of a few shares of the noise whose curve these canaries refute as well.
            for share in _SHARES_OF_NOISE:
                if tested * float(claim.curve(share).tpr(likelihoods).min()) <= level:
                    sentence += f": at most {share:g} of the claimed noise is in effect there"
                    break
        findings.append(Finding(check=Check.CANARIES, sentence=sentence, p_value=max(p_value, LEAST_P_VALUE)))
    return findings


def _about_canaries(share: float, error: float, divisor: float) -> list[Finding]:
    """Warn if the releases contain nothing of the canaries, or so much or little that the divisor must be wrong.

    Args:
        share: How much of the canaries' sum the releases contain.
        error: Its standard error.
        divisor: What the sum of a round is said to be divided by.
    """
    if abs(share) <= _LOOKS_LIKE_NOTHING * error and 1 - share >= _WOULD_SHOW * error:
        sentence = (
            f"No canary shows up in any release: they contain {share:.2g} ± {error:.1g} of the canaries' sum. Did "
            "you add planted.total to the sum of the clients' updates?"
        )
        return [Finding(check=Check.CANARIES_SHOW, sentence=sentence, refutes=False)]
    if abs(share - 1) >= max(_WOULD_SHOW * error, _WRONG_UNITS) and share >= _WOULD_SHOW * error:
        sentence = (
            f"Canaries show up {share:.2g} ± {error:.1g} times as large as divisor = {divisor:g} says: perhaps the "
            f"sum was divided by {divisor / share:.3g}. Missing noise would not show."
        )
        return [Finding(check=Check.UNITS, sentence=sentence, refutes=False)]
    return []
