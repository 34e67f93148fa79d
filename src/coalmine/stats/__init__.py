"""Statistics: from canary scores to lower bounds on ε, estimates and p-values. NumPy and SciPy only.

`estimate` runs every estimator that applies, and each is also available as a function. An `Estimate` says whether it is
a lower bound or only an estimate, and what it assumes.

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
