"""Claimed guarantees: sampling schemes, accountants over dp-accounting, and what they come to."""

from coalmine.accounting.guarantees import (
    ACCOUNTANTS,
    Theory,
    all_theories,
    claimed,
    compose_rounds,
    local_theory,
    noise_for,
    noise_from_round_epsilon,
    round_epsilon,
    scheduled_epsilon,
    theory,
)
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
