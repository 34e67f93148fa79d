"""Statistics: from canary scores to lower bounds on ε, estimates and p-values. NumPy and SciPy only.

`estimate` runs every estimator that applies, and each is also available as a function. An `Estimate` says whether it is
a lower bound or only an estimate, and what it assumes.

A *claim test* asks whether scores contradict a claim, a *lower bound* is the largest claim that they contradict, and a
*null* is the known distribution of a held-out canary's score.

======================================================================  ======================  ======================
question                                                                module                  function
======================================================================  ======================  ======================
What goes in, what comes out, what do counts at one threshold show?     ``scores``              ``epsilon_from_counts``
Which estimators apply, and what are they worth?                        ``estimators``          ``estimate``
What does a claim allow?                                                ``tradeoff``            ``PrivacyProfile.tpr``
Do the scores contradict a claim, and would they if noise was missing?  ``claim_tests``         ``ClaimTests``
Which single tests is that made of, and the lower bound?                ``rank_tests``          ``threshold_tests``
How much ε do independent scores prove?                                 ``simultaneous_bound``  ``simultaneous``
How much ε do scores prove that influence one another?                  ``one_run``             ``one_run``
How much ε is proved so far, while trials come in?                      ``sequential``          ``SequentialBound``
What ε is likely, if scores are bell-shaped?                            ``gaussian``            ``gaussian_shift``
How does a held-out canary score?                                       ``nulls``               ``CosineNull``
Is the noise, seed or cohort that a check saw possible?                 ``exact_tests``         ``energy_p_value``
How far is a phrase memorized?                                          ``exposure``            ``exposures``
======================================================================  ======================  ======================

Example:
    >>> import numpy as np
    >>> from coalmine.stats import estimate
    >>> rng = np.random.default_rng(0)
    >>> best = estimate(rng.normal(1, 1, 500), rng.normal(0, 1, 500), delta=1e-5)[0]
    >>> best.method, best.valid
    ('simultaneous', True)
"""

from coalmine.stats.estimators import METHODS as METHODS
from coalmine.stats.estimators import estimate as estimate
from coalmine.stats.estimators import estimates_from_counts as estimates_from_counts
from coalmine.stats.estimators import estimates_from_guesses as estimates_from_guesses
from coalmine.stats.gaussian import epsilon_gdp as epsilon_gdp
from coalmine.stats.gaussian import gaussian_shift as gaussian_shift
from coalmine.stats.gaussian import sigma_gaussian as sigma_gaussian
from coalmine.stats.nulls import CosineNull as CosineNull
from coalmine.stats.nulls import NormalNull as NormalNull
from coalmine.stats.nulls import Null as Null
from coalmine.stats.one_run import Guesses as Guesses
from coalmine.stats.rank_tests import Design as Design
from coalmine.stats.scores import Counts as Counts
from coalmine.stats.scores import Estimate as Estimate
from coalmine.stats.scores import Scores as Scores
from coalmine.stats.sequential import SequentialBound as SequentialBound
from coalmine.stats.simultaneous_bound import ceiling as ceiling
from coalmine.stats.simultaneous_bound import simultaneous as simultaneous
