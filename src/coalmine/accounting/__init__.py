"""Claimed guarantees: sampling schemes, accountants over dp-accounting, and the ε that they prove.

`theory` computes the guarantee of a training, `noise_for` the noise that a guarantee needs. docs/theory.md explains the
schemes and the accountants.

Example:
    >>> from coalmine.accounting import EveryRound, noise_for, theory
    >>> noise = noise_for(epsilon=2.0, sampling=EveryRound(), rounds=10, delta=1e-5, accountant="rdp")
    >>> claim = theory(noise_multiplier=noise, sampling=EveryRound(), rounds=10, delta=1e-5, accountant="rdp")
    >>> round(claim.epsilon, 2)
    2.0
"""

from coalmine.accounting.accountants import ACCOUNTANTS
from coalmine.accounting.calibration import noise_for
from coalmine.accounting.guarantees import (
    Theory,
    all_theories,
    claimed,
    local_theory,
    scheduled_epsilon,
    theory,
)
from coalmine.accounting.rounds import compose_rounds, noise_from_round_epsilon, round_epsilon
from coalmine.accounting.sampling import (
    AtMost,
    EveryRound,
    FixedSize,
    OncePerEpoch,
    Poisson,
    Sampling,
    parse_sampling,
)

__all__ = [
    "ACCOUNTANTS",
    "AtMost",
    "EveryRound",
    "FixedSize",
    "OncePerEpoch",
    "Poisson",
    "Sampling",
    "Theory",
    "all_theories",
    "claimed",
    "compose_rounds",
    "local_theory",
    "noise_for",
    "noise_from_round_epsilon",
    "parse_sampling",
    "round_epsilon",
    "scheduled_epsilon",
    "theory",
]
