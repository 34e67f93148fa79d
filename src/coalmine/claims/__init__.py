"""Claims: what a training promises, and who takes part in it.

`Claim` (``claim.py``) is a guarantee with its terms; its ε and its trade-off curve come from the accountants of
dp-accounting (``accountants.py``). `Sampling` (``sampling.py``) says who takes part in which round: claims account for
it, canaries and the simulator draw by it. `noise_for` (``calibration.py``) finds the noise that an ε needs, and
``rounds.py`` composes CANIFE's estimates of single rounds (Maddock et al. 2023, Algorithm 2).

Example:
    >>> from coalmine.claims import Claim, EveryRound, noise_for
    >>> noise = noise_for(epsilon=2.0, sampling=EveryRound(), rounds=10, delta=1e-5, accountant="rdp")
    >>> round(Claim(noise_multiplier=noise, rounds=10, delta=1e-5, accountant="rdp").epsilon, 2)
    2.0
"""

from coalmine.claims.accountants import ACCOUNTANTS
from coalmine.claims.calibration import noise_for
from coalmine.claims.claim import Claim, parse_claim
from coalmine.claims.rounds import compose_rounds, noise_from_round_epsilon, round_epsilon
from coalmine.claims.sampling import (
    AtMost,
    Epochs,
    EveryRound,
    FixedSize,
    Last,
    Observed,
    Poisson,
    Sampling,
    Scheduled,
    parse_sampling,
)

__all__ = [
    "ACCOUNTANTS",
    "AtMost",
    "Claim",
    "Epochs",
    "EveryRound",
    "FixedSize",
    "Last",
    "Observed",
    "Poisson",
    "Sampling",
    "Scheduled",
    "compose_rounds",
    "noise_for",
    "noise_from_round_epsilon",
    "parse_claim",
    "parse_sampling",
    "round_epsilon",
]
