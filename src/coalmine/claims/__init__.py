"""Claims: what a training promises, and who takes part in it.

`Claim` (``claim.py``) is a guarantee with its terms; its ε and its trade-off curve come from the accountants of
dp-accounting (``accountants.py``), and `noise_for` finds the noise that an ε needs. `Sampling` (``sampling.py``) says
who takes part in which round: claims account for it, canaries and the simulator draw by it. `compose_rounds` composes
CANIFE's estimates of single rounds (Maddock et al. 2023, Algorithm 2).

Example:
    >>> from coalmine.claims import Claim, EveryRound, noise_for
    >>> noise = noise_for(epsilon=2.0, sampling=EveryRound(), rounds=10, delta=1e-5, accountant="rdp")
    >>> round(Claim(noise_multiplier=noise, rounds=10, delta=1e-5, accountant="rdp").epsilon, 2)
    2.0
"""

from coalmine.claims.accountants import noise_for as noise_for
from coalmine.claims.claim import Claim as Claim
from coalmine.claims.claim import compose_rounds as compose_rounds
from coalmine.claims.claim import round_epsilon as round_epsilon
from coalmine.claims.sampling import EveryRound as EveryRound
from coalmine.claims.sampling import Poisson as Poisson
from coalmine.claims.sampling import Sampling as Sampling
from coalmine.claims.sampling import parse_sampling as parse_sampling
