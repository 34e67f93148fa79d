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

from coalmine.stats.epsilon import Estimate as Estimate
from coalmine.stats.estimators import CAVEATS as CAVEATS
from coalmine.stats.estimators import METHODS as METHODS
from coalmine.stats.estimators import estimate as estimate
from coalmine.stats.estimators import estimates_from_counts as estimates_from_counts
from coalmine.stats.estimators import estimates_from_guesses as estimates_from_guesses
from coalmine.stats.gaussian import anderson_darling as anderson_darling
from coalmine.stats.gaussian import epsilon_gaussian as epsilon_gaussian
from coalmine.stats.gaussian import epsilon_gdp as epsilon_gdp
from coalmine.stats.gaussian import gaussian_fit as gaussian_fit
from coalmine.stats.gaussian import gaussian_shift as gaussian_shift
from coalmine.stats.gaussian import sigma_gaussian as sigma_gaussian
from coalmine.stats.nulls import CosineNull as CosineNull
from coalmine.stats.nulls import LargestOfNull as LargestOfNull
from coalmine.stats.nulls import LikelihoodRatioNull as LikelihoodRatioNull
from coalmine.stats.nulls import NormalNull as NormalNull
from coalmine.stats.nulls import Null as Null
from coalmine.stats.nulls import OrthogonalCosineNull as OrthogonalCosineNull
from coalmine.stats.one_run import Guesses as Guesses
from coalmine.stats.one_run import one_run as one_run
from coalmine.stats.one_run import one_run_fdp as one_run_fdp
from coalmine.stats.one_run import one_run_fdp_from_guesses as one_run_fdp_from_guesses
from coalmine.stats.one_run import one_run_from_guesses as one_run_from_guesses
from coalmine.stats.rank_tests import Design as Design
from coalmine.stats.scores import Counts as Counts
from coalmine.stats.scores import Scores as Scores
from coalmine.stats.scores import best_threshold as best_threshold
from coalmine.stats.scores import epsilon_from_counts as epsilon_from_counts
from coalmine.stats.scores import epsilon_from_rates as epsilon_from_rates
from coalmine.stats.scores import plug_in as plug_in
from coalmine.stats.sequential import SequentialBound as SequentialBound
from coalmine.stats.simultaneous_bound import ceiling as ceiling
from coalmine.stats.simultaneous_bound import gdp as gdp
from coalmine.stats.simultaneous_bound import p_value as p_value
from coalmine.stats.simultaneous_bound import simultaneous as simultaneous
from coalmine.stats.simultaneous_bound import split as split
from coalmine.stats.tradeoff import ApproximateDP as ApproximateDP
from coalmine.stats.tradeoff import GaussianDP as GaussianDP
