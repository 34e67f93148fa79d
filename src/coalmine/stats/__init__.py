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

from coalmine.stats.epsilon import Estimate
from coalmine.stats.estimators import CAVEATS, METHODS, estimate, estimates_from_counts, estimates_from_guesses
from coalmine.stats.gaussian import (
    AndersonDarling,
    anderson_darling,
    epsilon_gaussian,
    epsilon_gdp,
    gaussian_fit,
    gaussian_shift,
    moments,
    sigma_gaussian,
    threshold_epsilon,
)
from coalmine.stats.nulls import CosineNull, LargestOfNull, LikelihoodRatioNull, NormalNull, Null, OrthogonalCosineNull
from coalmine.stats.one_run import (
    Guesses,
    one_run,
    one_run_fdp,
    one_run_fdp_from_guesses,
    one_run_from_guesses,
    one_run_p_value,
)
from coalmine.stats.rank_tests import Design
from coalmine.stats.rates import (
    Counts,
    best_threshold,
    epsilon_from_counts,
    epsilon_from_log_rates,
    epsilon_from_rates,
    plug_in,
    rate_bounds,
)
from coalmine.stats.scores import Scores
from coalmine.stats.sequential import SequentialBound, SequentialTest
from coalmine.stats.simultaneous_bound import ceiling, gdp, p_value, refutes, simultaneous, split
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP, group_parameters

__all__ = [
    "CAVEATS",
    "METHODS",
    "AndersonDarling",
    "ApproximateDP",
    "CosineNull",
    "Counts",
    "Design",
    "Estimate",
    "GaussianDP",
    "Guesses",
    "LargestOfNull",
    "LikelihoodRatioNull",
    "NormalNull",
    "Null",
    "OrthogonalCosineNull",
    "Scores",
    "SequentialBound",
    "SequentialTest",
    "anderson_darling",
    "best_threshold",
    "ceiling",
    "epsilon_from_counts",
    "epsilon_from_log_rates",
    "epsilon_from_rates",
    "epsilon_gaussian",
    "epsilon_gdp",
    "estimate",
    "estimates_from_counts",
    "estimates_from_guesses",
    "gaussian_fit",
    "gaussian_shift",
    "gdp",
    "group_parameters",
    "moments",
    "one_run",
    "one_run_fdp",
    "one_run_fdp_from_guesses",
    "one_run_from_guesses",
    "one_run_p_value",
    "p_value",
    "plug_in",
    "rate_bounds",
    "refutes",
    "sigma_gaussian",
    "simultaneous",
    "split",
    "threshold_epsilon",
]
