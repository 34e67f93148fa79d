"""What a training claims for its members, and the claim that follows for canaries that take part differently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from coalmine.accounting.accountants import check_accountant
from coalmine.accounting.guarantees import Theory, claimed, scheduled_epsilon, theory
from coalmine.accounting.rounds import round_epsilon
from coalmine.accounting.sampling import EveryRound, Poisson, Sampling, parse_sampling
from coalmine.errors import InputError, check_count, check_delta


@dataclass(frozen=True, kw_only=True)
class TrainingClaim:
    """The claim of a training whose accountant is not ours, as an audit's ``result_for`` takes it.

    Args:
        theory: What the training's accountant claims for an example or user that is sampled like all others.
        participation: How canaries take part if they are sampled like these, as `OneShot` takes it.
        sampling: How examples or users take part, or None if nothing is known about it.
        noise_schedule: Noise multipliers, each with the number of steps it was used for.

    Example:
        >>> from coalmine.accounting import Poisson, theory
        >>> claim = TrainingClaim(
        ...     theory=theory(noise_multiplier=2.0, sampling=Poisson(0.1), rounds=10, delta=1e-5),
        ...     participation="poisson:0.1",
        ...     sampling=Poisson(0.1),
        ...     noise_schedule=[(2.0, 10)],
        ... )
        >>> claim.theory.epsilon < 1 < claim.for_sampling(EveryRound()).epsilon
        True
    """

    theory: Theory
    participation: str
    sampling: Sampling | None
    noise_schedule: Sequence[tuple[float, int]]

    @property
    def secret(self) -> bool:
        """Whether the claim relies on nobody knowing the steps that a member takes part in."""
        return isinstance(self.sampling, Poisson)

    @property
    def least_noise(self) -> float:
        """The smallest noise multiplier of all steps."""
        return min(noise_multiplier for noise_multiplier, _ in self.noise_schedule)

    def for_sampling(self, sampling: Sampling | None) -> Theory:
        """Return the claim for canaries that take part in the same steps by ``sampling``."""
        return scheduled_theory(self.noise_schedule, sampling, delta=self.theory.delta)


def scheduled_theory(noise_schedule: Sequence[tuple[float, int]], sampling: Sampling | None, *, delta: float) -> Theory:
    """Return the guarantee of Gaussian steps whose noise may change.

    Args:
        noise_schedule: Noise multipliers, each with the number of steps it was used for.
        sampling: How a member takes part, or None if nothing is known: nothing is guaranteed then (ε = ∞).
        delta: The δ to state ε at.
    """
    steps = sum(count for _, count in noise_schedule)
    constant_noise = len({noise_multiplier for noise_multiplier, _ in noise_schedule}) == 1
    if sampling is None:
        epsilon, accountant = math.inf, "none"
    elif isinstance(sampling, EveryRound):
        # Gaussian steps compose to a single one with σ⁻² = Σ σₜ⁻², whose ε has a closed form.
        precision = math.fsum(count / noise**2 if noise > 0 else math.inf for noise, count in noise_schedule)
        noise = precision**-0.5 if precision > 0 else math.inf
        epsilon, accountant = round_epsilon(noise_multiplier=noise, delta=delta), "exact"
    elif constant_noise:
        # `theory` remembers what it has computed, which takes seconds; a schedule is composed anew each time.
        constant = theory(noise_multiplier=noise_schedule[0][0], sampling=sampling, rounds=steps, delta=delta)
        epsilon, accountant = constant.epsilon, constant.accountant
    else:
        accountant = check_accountant(None, sampling)
        epsilon = scheduled_epsilon(noise_schedule, sampling=sampling, delta=delta, accountant=accountant)
    return Theory(
        epsilon=epsilon,
        delta=check_delta(delta),
        accountant=accountant,
        noise_multiplier=noise_schedule[0][0] if constant_noise else None,
        sampling="unknown" if sampling is None else str(sampling),
        q=None if sampling is None else sampling.rate,
        rounds=steps,
        adjacency=Sampling.adjacency if sampling is None else sampling.adjacency,
        noise_schedule=() if constant_noise else tuple(noise_schedule),
    )


def parse_claim(text: str, *, delta: float) -> Theory:
    """Read a claimed guarantee from text.

    Args:
        text: The terms of a training, ``"noise=1.0,sampling=poisson:0.01,rounds=800"``, optionally with
            ``accountant=rdp``; or just an ε, ``"epsilon=8"`` or ``"8"``. Sampling is ``every-round`` and rounds 1
            unless stated.
        delta: The δ at which ε is claimed.

    Returns:
        The claim.

    Raises:
        InputError: If the text is neither of these.

    Example:
        >>> parse_claim("noise=1.0,sampling=poisson:0.01,rounds=800", delta=1e-5).rounds
        800
        >>> parse_claim("epsilon=8", delta=1e-5).epsilon
        8.0
    """
    pairs = [part.strip().partition("=")[::2] for part in text.split(",")]
    with suppress(ValueError):
        pairs = [("epsilon", str(float(text)))]
    terms = dict(pairs)
    repeated = next((name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1), None)
    if repeated is not None:
        raise InputError(f"a claim must state {repeated} once, got {text!r}")
    known = ({"epsilon"}, {"noise", "sampling", "rounds", "accountant"})
    if not (terms.keys() == known[0] or ("noise" in terms and terms.keys() <= known[1])):
        raise InputError(
            f"a claim must look like noise=1.0,sampling=poisson:0.01,rounds=800 or epsilon=8, got {text!r}"
        )
    try:
        if "epsilon" in terms:
            epsilon, noise_multiplier, rounds = float(terms["epsilon"]), 1.0, 1
        else:
            epsilon, noise_multiplier, rounds = 0.0, float(terms["noise"]), int(terms.get("rounds", "1"))
    except ValueError:
        raise InputError(f"epsilon, noise and rounds of a claim must be numbers, got {text!r}") from None
    if not (math.isfinite(epsilon) and math.isfinite(noise_multiplier)):
        raise InputError(f"epsilon and noise of a claim must be finite, got {text!r}")
    if "epsilon" in terms:
        return claimed(epsilon, delta)
    check_count("rounds of a claim", rounds)
    return theory(
        noise_multiplier=noise_multiplier,
        sampling=parse_sampling(terms.get("sampling", EveryRound.name)),
        rounds=rounds,
        delta=delta,
        accountant=terms.get("accountant"),
    )
