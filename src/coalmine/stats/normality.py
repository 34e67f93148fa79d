"""The Anderson–Darling test of normality with unknown mean and variance.

The Gaussian estimators extrapolate far into the tails, so audits check with it whether scores look normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import finite_list
from coalmine.errors import NotApplicableError

_MIN_VALUES = 8


@dataclass(frozen=True)
class AndersonDarling:
    """Outcome of the Anderson–Darling test.

    Attributes:
        statistic: A², the weighted squared distance between the empirical and the fitted normal distribution.
        p_value: Probability of a statistic at least as large for normal values.
    """

    statistic: float
    p_value: float


def anderson_darling(values: ArrayLike) -> AndersonDarling:
    """Test whether values are normal, with their mean and standard deviation estimated from the values themselves.

    The p-value follows D'Agostino and Stephens (1986, table 4.9) with the correction 1 + 0.75/n + 2.25/n². It is
    accurate to a few percent between 0.001 and 0.5, and to the order of magnitude below.

    Args:
        values: At least 8 finite numbers, shape (n,).

    Returns:
        The statistic A² and its p-value.

    Raises:
        NotApplicableError: If there are fewer than 8 values, or all are equal.

    Example:
        >>> values = np.random.default_rng(0).normal(3.0, 2.0, 500)
        >>> anderson_darling(values).p_value > 0.05
        True
        >>> anderson_darling(np.exp(values)).p_value < 1e-6
        True
    """
    data = np.sort(finite_list("values", values))
    n = data.size
    std = float(np.std(data, ddof=1)) if n >= _MIN_VALUES else 0.0
    if not 0 < std < np.inf:
        raise NotApplicableError(f"a test of normality needs at least {_MIN_VALUES} values that are not all equal")
    z = (data - data.mean()) / std
    odd = 2 * np.arange(1, n + 1) - 1
    statistic = -n - float(np.mean(odd * (special.log_ndtr(z) + special.log_ndtr(-z[::-1]))))
    return AndersonDarling(statistic, _p_value(statistic * (1 + 0.75 / n + 2.25 / n**2)))


def _p_value(a: float) -> float:
    """Return the p-value of a corrected statistic."""
    if a >= 0.6:
        # The fitted parabola would rise again for far larger statistics.
        return math.exp(1.2937 - 5.709 * a + 0.0186 * a**2) if a < 13 else 0.0
    if a >= 0.34:
        return math.exp(0.9177 - 4.279 * a - 1.38 * a**2)
    if a >= 0.2:
        return 1 - math.exp(-8.318 + 42.796 * a - 59.938 * a**2)
    return 1 - math.exp(-13.436 + 101.14 * a - 223.73 * a**2)
