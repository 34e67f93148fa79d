"""What an Opacus training claims for one example: by Opacus's accountant, and by coalmine's for the same steps.

The two differ where the accountant assumes a sampling that the loader does not do. docs/opacus.md lists the cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from coalmine.claims import Claim, EveryRound, Poisson, Sampling
from coalmine.claims.sampling import AtMost, Epochs
from coalmine.errors import InputError, check_kind

# Two accountants agree up to this difference: both round, and in different places.
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
        if isinstance(sampler, UniformWithReplacementSampler):
            return cls(rate=float(sampler.sample_rate), batches=len(sampler))
        counter = None
        if type(sampler) is BatchSampler:
            # Only torch's own samplers without replacement are known to give each example at most once per pass.
            inner: Any = sampler.sampler
            if type(inner) in (SequentialSampler, RandomSampler) and not getattr(inner, "replacement", False):
                sampler.sampler = inner = _CountedSampler(inner)
            if isinstance(inner, _CountedSampler):
                counter = inner
        return cls(rate=None, batches=len(sampler), counter=counter)

    def participation(self, steps: int) -> Sampling:
        """Return the participation of canaries that are sampled like examples."""
        if self.rate is not None:
            return Poisson(self.rate)
        return Epochs(math.ceil(steps / self.batches))

    @property
    def sampling(self) -> Sampling | None:
        """How to account for an example: drawn at random, or at most once per pass; None if neither is certain."""
        if self.rate is not None:
            return Poisson(self.rate)
        # Batches that were added up, or came from elsewhere, may hold an example twice in one step.
        if self.counter is None or self.accumulated or 0 in self.trained:
            return None
        return AtMost(len(self.trained))


def claims_of(engine: PrivacyEngine, loading: Loading, *, delta: float) -> tuple[Claim, Claim, list[str]]:
    """Return two claims for one example in the steps that the engine's accountant has recorded.

    Args:
        engine: The privacy engine of the training.
        loading: How its batches were made.
        delta: The δ to state ε at.

    Returns:
        The claim of Opacus's accountant, that of coalmine's for how examples really take part, and sentences on where
        the two differ.
    """
    history = list(engine.accountant.history)
    if not history:
        raise InputError("the privacy engine recorded no step: train with the optimizer that make_private returned")
    schedule, rates = list[tuple[float, int]](), set[float]()
    for noise, sampled, count in history:
        schedule.append((float(noise), int(count)))
        rates.add(float(sampled))
    # Opacus assumes Poisson sampling at the rate that it recorded, whatever the loader does.
    rate = rates.pop() if len(rates) == 1 else None
    name, warnings = str(engine.accountant.mechanism()), list[str]()
    coalmine = Claim(noise_schedule=schedule, sampling=loading.sampling, delta=delta)
    epsilon = math.inf  # without noise, for which Opacus's accountants fail
    if all(noise > 0 for noise, _ in schedule):
        try:
            epsilon = max(0.0, float(engine.get_epsilon(delta)))
        except (ValueError, RuntimeError, ArithmeticError, MemoryError, IndexError):
            epsilon = coalmine.epsilon
            warnings.append(f"Opacus's accountant {name} has no ε at δ = {delta:g}: the claim is coalmine's")
    sampling = None if rate is None else Poisson(rate)
    opacus = Claim(
        epsilon=epsilon, delta=delta, accountant=f"opacus-{name}", noise_schedule=schedule, sampling=sampling
    )
    reported = f"Opacus's accountant ({name}) reports ε = {epsilon:.4g}"
    if loading.rate is None and loading.sampling is None:
        warnings.append(
            f"{reported} for examples drawn at random in each step, but nothing is proved for this loader: an example "
            "may occur several times in a step (custom samplers, sampling with replacement, accumulated batches, or "
            "batches of another loader)"
        )
    elif loading.rate is None:
        warnings.append(
            f"{reported} for examples drawn at random in each step, but this loader shuffles and goes through all of "
            f"them: what is proved is ε = {coalmine.epsilon:.4g}, without amplification by sampling "
            f"({coalmine.sampling}), for replacing an example by an empty one"
        )
    elif rate is None or not math.isclose(rate, loading.rate, rel_tol=1e-6):
        assumed = "rates that change" if rate is None else f"a sampling rate of {rate:.6g}"
        warnings.append(
            f"{reported} for {assumed}, but the loader samples at {loading.rate:.6g}, where coalmine's accountant "
            f"reports {coalmine.epsilon:.4g}"
        )
    elif epsilon < coalmine.epsilon - max(_ABSOLUTE_GAP, _RELATIVE_GAP * coalmine.epsilon):
        # A larger ε is only less tight; a smaller one than an upper bound may still be right, but nobody has shown it.
        warnings.append(f"{reported}, below coalmine's {coalmine.epsilon:.4g} (pld): do not rely on the former")
    return opacus, coalmine, warnings


def note_on_claim(opacus: Claim, claim: Claim | None) -> dict[str, str]:
    """Return a ``note`` on Opacus's ε and the claim for canaries; nothing if they are the same claim."""
    # Canaries that are sampled like examples have Opacus's own claim, which needs no explanation.
    if claim is None or claim == opacus or math.isinf(claim.epsilon):
        return {}
    canaries = f"the canaries take part differently ({claim.sampling})"
    if claim.rounds == 1 and opacus.rounds != 1:
        canaries = "this result is about a single step with a canary in it"
    elif claim.sampling == EveryRound():
        canaries = "the canaries take part in every step"
    elif isinstance(claim.sampling, AtMost):
        canaries = f"each canary takes part in {claim.sampling.times} known steps"
    reported = f"Opacus reports ε = {opacus.epsilon:.4g} for an example drawn at random"
    return {"note": f"{reported}; {canaries}, so their claim is ε = {claim.epsilon:.4g}."}
