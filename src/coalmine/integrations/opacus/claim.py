"""What an Opacus training promises one example: by Opacus's accountant, and by coalmine's for the same steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from coalmine import accounting
from coalmine.accounting import Theory
from coalmine.accounting.sampling import AtMost, EveryRound, Poisson, Sampling
from coalmine.errors import InputError, check_delta, check_kind

# PRV's figures are up to 0.02 above the truth by construction.
_ALIKE, _NEARLY = 0.03, 0.02


class _Passes(Sampler[Any]):
    """A sampler that counts how often it is gone through."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self.begun = sampler, 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


@dataclass(kw_only=True)
class Loading:
    """How a loader's batches come about: examples drawn with probability ``rate``; None: ``batches`` an epoch.

    Without a rate, ``passes`` counts how often the loader was gone through, where each example comes at most once in a
    pass, as with torch's own samplers without replacement.
    """

    rate: float | None
    batches: int
    passes: _Passes | None = None
    trained: set[int] = field(default_factory=set)
    accumulated: bool = False

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Loading:
        """What is iterated over in the training."""
        check_kind("loader", loader, DataLoader, "the DataLoader that make_private gives")
        sampler: Any = loader.batch_sampler
        if isinstance(sampler, BatchSplittingSampler):  # the logical batches are what counts
            sampler = sampler.sampler
        try:
            batches = len(sampler)
        except TypeError as error:
            raise InputError(f"the loader must have a length, which data without one has not: {error}") from None
        poisson = isinstance(sampler, UniformWithReplacementSampler)
        return cls(rate=float(sampler.sample_rate) if poisson else None, batches=batches, passes=_counted(sampler))

    def stepped(self, accumulated: int) -> None:
        """Take note of a step, of so many batches."""
        self.trained.add(0 if self.passes is None else self.passes.begun)
        self.accumulated |= accumulated > 1

    @property
    def share(self) -> float:
        """The probability that an example is in a given batch."""
        return 1 / self.batches if self.rate is None else self.rate

    def participation(self, steps: int) -> str:
        """How canaries take part as examples do."""
        return f"poisson:{self.rate!r}" if self.rate is not None else f"epochs:{self._epochs(steps)}"

    @property
    def sampling(self) -> Sampling | None:
        """How an example is to be accounted: drawn in secret, or at most once in each pass over the data.

        None where nothing is known of how often it comes in a step.
        """
        if self.rate is not None:
            return Poisson(self.rate)
        if self.passes is None or self.accumulated or 0 in self.trained:
            return None
        return AtMost(len(self.trained))

    def _epochs(self, steps: int) -> int:
        return -(-steps // self.batches)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Of one example: ``opacus`` as its accountant says, ``own`` by coalmine for how examples really come."""

    opacus: Theory
    own: Theory
    warnings: Sequence[str]


def promise(engine: PrivacyEngine, loading: Loading, *, delta: float) -> Promise:
    """The promise for the steps that ``engine`` has counted."""
    schedule, rates = _history(engine)
    steps, accountant = sum(count for _, count in schedule), str(engine.accountant.mechanism())
    rate = rates[0] if len(set(rates)) == 1 else None
    own = theory(schedule, loading.sampling, delta=delta)
    epsilon, warnings = _asked(engine, schedule, delta), []
    if epsilon is None:
        epsilon = own.epsilon
        warnings.append(f"Opacus's accountant {accountant} has no ε at δ = {delta:g} here: the promise is coalmine's")
    opacus = Theory(
        epsilon=epsilon,
        delta=check_delta(delta),
        accountant=f"opacus-{accountant}",
        noise_multiplier=schedule[0][0] if len(schedule) == 1 else None,
        sampling=f"poisson:{rate!r}" if rate is not None else "poisson, rates that change",
        q=rate,
        rounds=steps,
        adjacency="add-or-remove-one",
    )
    return Promise(opacus=opacus, own=own, warnings=[*warnings, *_differences(opacus, own, loading, rate)])


def theory(schedule: Sequence[tuple[float, int]], sampling: Sampling | None, *, delta: float) -> Theory:
    """What coalmine's accountant says of these steps for an example that takes part by ``sampling``; None: nothing."""
    steps, noises = sum(count for _, count in schedule), {noise for noise, _ in schedule}
    if sampling is None:
        epsilon, accountant = math.inf, "none"
    elif isinstance(sampling, EveryRound):
        # Gaussian steps compose to one of σ⁻² = Σ σₜ⁻², whose ε has a closed form.
        squares = math.fsum(count / noise**2 if noise > 0 else math.inf for noise, count in schedule)
        epsilon, accountant = accounting.round_epsilon(noise_multiplier=squares**-0.5, delta=delta), "exact"
    elif len(noises) == 1:  # a promise that is remembered, since it takes seconds to compute
        same = accounting.theory(noise_multiplier=schedule[0][0], sampling=sampling, rounds=steps, delta=delta)
        epsilon, accountant = same.epsilon, same.accountant
    else:
        epsilon, accountant = accounting.scheduled_epsilon(schedule, sampling=sampling, delta=delta), "pld"
    return Theory(
        epsilon=epsilon,
        delta=check_delta(delta),
        accountant=accountant,
        noise_multiplier=noises.pop() if len(noises) == 1 else None,
        sampling="unknown" if sampling is None else str(sampling),
        q=None if sampling is None else sampling.rate,
        rounds=steps,
        adjacency=Sampling.adjacency if sampling is None else sampling.adjacency,
    )


def _counted(sampler: Any) -> _Passes | None:
    """The sampler of a torch BatchSampler, which counts its passes from now on; None where examples may come again."""
    if type(sampler) is not BatchSampler:
        return None
    inner: Any = sampler.sampler
    if isinstance(inner, _Passes):
        return inner
    if type(inner) is not SequentialSampler and not (type(inner) is RandomSampler and not inner.replacement):
        return None
    sampler.sampler = found = _Passes(inner)
    return found


def noise_schedule(engine: PrivacyEngine) -> list[tuple[float, int]]:
    """(noise multiplier, steps with it), as the engine's accountant counted them."""
    return _history(engine)[0]


def _history(engine: PrivacyEngine) -> tuple[list[tuple[float, int]], list[float]]:
    check_kind("engine", engine, PrivacyEngine, "an opacus.PrivacyEngine")
    history = list(engine.accountant.history)
    if not history:
        raise InputError("the privacy engine has counted no step: train with the optimizer that make_private gave")
    return [(float(noise), int(count)) for noise, _, count in history], [float(rate) for _, rate, _ in history]


def _asked(engine: PrivacyEngine, schedule: Sequence[tuple[float, int]], delta: float) -> float | None:
    """ε by Opacus; infinite without noise, None where its accountant has no number."""
    if min(noise for noise, _ in schedule) <= 0:
        return math.inf
    try:
        epsilon = float(engine.get_epsilon(delta))
    except (ValueError, RuntimeError, ArithmeticError, MemoryError, IndexError):
        return None
    return epsilon if epsilon >= 0 else None


def _differences(opacus: Theory, own: Theory, loading: Loading, rate: float | None) -> list[str]:
    said = f"Opacus's accountant ({opacus.accountant.removeprefix('opacus-')}) says ε = {opacus.epsilon:.4g}"
    if loading.rate is None and loading.sampling is None:
        return [
            f"{said} for examples drawn at random in each step, but of this loader nothing is known: where an example "
            "may come several times in a step (samplers of one's own or with replacement, batches that are "
            "accumulated, another loader than the one given), nothing is proved"
        ]
    if loading.rate is None:
        return [
            f"{said} for examples drawn at random in each step, but this loader goes through all of them in order: "
            f"what is proved is ε = {own.epsilon:.4g}, without amplification ({own.sampling}), for an example that "
            "is replaced by an empty one, so that the others stay in their batches"
        ]
    if rate is None or not math.isclose(rate, loading.rate, rel_tol=1e-6):
        told = "rates that change" if rate is None else f"a rate of {rate:.6g}"
        return [f"{said} for {told}, but the loader draws at {loading.rate:.6g}, where coalmine says {own.epsilon:.4g}"]
    gap = opacus.epsilon - own.epsilon
    if math.isclose(opacus.epsilon, own.epsilon, rel_tol=_NEARLY, abs_tol=_ALIKE):
        return []
    if gap > 0:
        return [f"{said}, coalmine's (pld) {own.epsilon:.4g}: both hold, the smaller is the tighter one"]
    return [f"{said}, less than coalmine's {own.epsilon:.4g} (pld), which is a bound: do not rely on the former"]
