"""What an Opacus training claims for one example: by Opacus's accountant, and by coalmine's for the same steps.

The two differ where the accountant assumes a sampling that the loader does not do. docs/opacus.md lists the cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from coalmine.claims import AtMost, Claim, Epochs, EveryRound, Poisson, Sampling
from coalmine.errors import InputError, check_kind

# Two accountants agree up to this difference. PRV's figures are up to 0.02 above the truth by construction.
_ABSOLUTE_GAP, _RELATIVE_GAP = 0.03, 0.02


class _CountedSampler(Sampler[Any]):
    """A sampler that counts the passes over it."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self.passes = sampler, 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


@dataclass(kw_only=True)
class Loading:
    """How the batches of a loader are made, and which passes over it the training has used.

    Args:
        rate: Probability that an example is in a batch, if batches are drawn by Poisson sampling; None otherwise.
        batches: Number of batches in a pass over the loader.
        counter: Counts passes, where each example occurs at most once in a pass; None where that is not certain.
        trained: Numbers of the passes that a step was taken in; 0 stands for batches of another loader.
        accumulated: Whether any step used several batches.
    """

    rate: float | None
    batches: int
    counter: _CountedSampler | None = None
    trained: set[int] = field(default_factory=set)
    accumulated: bool = False

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Loading:
        """Return how this loader makes its batches. Its passes are counted from now on."""
        check_kind("loader", loader, DataLoader, "the DataLoader that make_private returned")
        sampler: Any = loader.batch_sampler
        if isinstance(sampler, BatchSplittingSampler):  # of BatchMemoryManager: the logical batches are what counts
            sampler = sampler.sampler
        try:
            batches = len(sampler)
        except TypeError as error:
            raise InputError(f"the loader must have a length, so its data set needs one too ({error})") from None
        poisson = isinstance(sampler, UniformWithReplacementSampler)
        return cls(rate=float(sampler.sample_rate) if poisson else None, batches=batches, counter=_counted(sampler))

    def stepped(self, batches: int) -> None:
        """Record a step that used this number of batches."""
        self.trained.add(0 if self.counter is None else self.counter.passes)
        self.accumulated |= batches > 1

    @property
    def share(self) -> float:
        """The probability that an example is in a given batch."""
        return 1 / self.batches if self.rate is None else self.rate

    def participation(self, steps: int) -> Sampling:
        """Return the participation of canaries that are sampled like examples."""
        return Epochs(-(-steps // self.batches)) if self.rate is None else Poisson(self.rate)

    @property
    def sampling(self) -> Sampling | None:
        """How to account for an example: drawn at random, or at most once per pass; None if neither is certain."""
        if self.rate is not None:
            return Poisson(self.rate)
        if self.counter is None or self.accumulated or 0 in self.trained:
            return None
        return AtMost(len(self.trained))


@dataclass(frozen=True, kw_only=True)
class OpacusClaim:
    """What the training claims for one example.

    Args:
        opacus: The claim of Opacus's accountant.
        coalmine: The claim by coalmine's accountant for how examples really take part.
        warnings: Sentences on where the two differ.
    """

    opacus: Claim
    coalmine: Claim
    warnings: Sequence[str]


def claim_of(engine: PrivacyEngine, loading: Loading, *, delta: float) -> OpacusClaim:
    """Return the claim for the steps that the engine's accountant has recorded.

    Args:
        engine: The privacy engine of the training.
        loading: How its batches were made.
        delta: The δ to state ε at.
    """
    schedule, rates = _history(engine)
    accountant = str(engine.accountant.mechanism())
    rate = rates[0] if len(set(rates)) == 1 else None
    coalmine = Claim(noise_schedule=schedule, sampling=loading.sampling, delta=delta)
    epsilon, warnings = _epsilon_by_opacus(engine, schedule, delta), []
    if epsilon is None:
        epsilon = coalmine.epsilon
        warnings.append(f"Opacus's accountant {accountant} has no ε at δ = {delta:g}: the claim is coalmine's")
    opacus = Claim(
        epsilon=epsilon,
        delta=delta,
        accountant=f"opacus-{accountant}",
        noise_schedule=schedule,
        sampling=None if rate is None else Poisson(rate),
    )
    differences = _differences(opacus, coalmine, loading, rate)
    return OpacusClaim(opacus=opacus, coalmine=coalmine, warnings=[*warnings, *differences])


def note_on_claim(opacus: Claim, claim: Claim | None) -> str | None:
    """Return a sentence on Opacus's ε and the claim for canaries, or None if they are the same claim."""
    if claim is None or claim == opacus or math.isinf(claim.epsilon):
        return None
    theirs = f"their claim is ε = {claim.epsilon:.4g}"
    if claim.rounds == 1 and opacus.rounds != 1:
        canaries = f"this result is about a single step with a canary in it, so the claim is ε = {claim.epsilon:.4g}"
    elif claim.sampling == EveryRound():
        canaries = f"the canaries take part in every step, so {theirs}"
    elif isinstance(claim.sampling, AtMost):
        canaries = f"each canary takes part in {claim.sampling.times} known steps, so {theirs}"
    else:
        canaries = f"the canaries take part differently ({claim.sampling}), so {theirs}"
    return f"Opacus reports ε = {opacus.epsilon:.4g} for an example drawn at random; {canaries}."


def _counted(sampler: Any) -> _CountedSampler | None:
    """Make torch's BatchSampler count its passes, and return the counter; None if examples may repeat in a pass."""
    if type(sampler) is not BatchSampler:
        return None
    inner: Any = sampler.sampler
    if isinstance(inner, _CountedSampler):
        return inner
    if type(inner) is not SequentialSampler and not (type(inner) is RandomSampler and not inner.replacement):
        return None
    sampler.sampler = counter = _CountedSampler(inner)
    return counter


def _history(engine: PrivacyEngine) -> tuple[list[tuple[float, int]], list[float]]:
    """Return (noise multiplier, steps) and sampling rates, as the engine's accountant recorded them."""
    check_kind("engine", engine, PrivacyEngine, "an opacus.PrivacyEngine")
    history = list(engine.accountant.history)
    if not history:
        raise InputError("the privacy engine recorded no step: train with the optimizer that make_private returned")
    return [(float(noise), int(count)) for noise, _, count in history], [float(rate) for _, rate, _ in history]


def _epsilon_by_opacus(engine: PrivacyEngine, schedule: Sequence[tuple[float, int]], delta: float) -> float | None:
    """Return ε by Opacus: infinite without noise, None where its accountant fails."""
    if min(noise for noise, _ in schedule) <= 0:
        return math.inf
    try:
        epsilon = float(engine.get_epsilon(delta))
    except (ValueError, RuntimeError, ArithmeticError, MemoryError, IndexError):
        return None
    return epsilon if epsilon >= 0 else None


def _differences(opacus: Claim, coalmine: Claim, loading: Loading, rate: float | None) -> list[str]:
    """Return a sentence where Opacus's ε and coalmine's differ."""
    reported = f"Opacus's accountant ({opacus.accountant.removeprefix('opacus-')}) reports ε = {opacus.epsilon:.4g}"
    if loading.rate is None and loading.sampling is None:
        return [
            f"{reported} for examples drawn at random in each step, but nothing is proved for this loader: an example "
            "may occur several times in a step (custom samplers, sampling with replacement, accumulated batches, or "
            "batches of another loader)"
        ]
    if loading.rate is None:
        return [
            f"{reported} for examples drawn at random in each step, but this loader shuffles and goes through all of "
            f"them: what is proved is ε = {coalmine.epsilon:.4g}, without amplification by sampling "
            f"({coalmine.sampling}), for replacing an example by an empty one"
        ]
    if rate is None or not math.isclose(rate, loading.rate, rel_tol=1e-6):
        assumed = "rates that change" if rate is None else f"a sampling rate of {rate:.6g}"
        return [
            f"{reported} for {assumed}, but the loader samples at {loading.rate:.6g}, where coalmine's accountant "
            f"reports {coalmine.epsilon:.4g}"
        ]
    if math.isclose(opacus.epsilon, coalmine.epsilon, rel_tol=_RELATIVE_GAP, abs_tol=_ABSOLUTE_GAP):
        return []
    if opacus.epsilon > coalmine.epsilon:
        return [f"{reported}, coalmine's (pld) {coalmine.epsilon:.4g}: both are valid, the smaller one is tighter"]
    return [
        f"{reported}, below coalmine's {coalmine.epsilon:.4g} (pld), which is an upper bound: do not rely on the former"
    ]
