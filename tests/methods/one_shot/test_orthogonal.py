"""Orthogonal canaries: orthonormal, uniform, and with null scores of the stated law."""

import numpy as np
import pytest
from scipy import stats

from coalmine.errors import InputError
from coalmine.methods.one_shot.families import OrthogonalCanaries
from coalmine.methods.one_shot.scores import compared

LEVEL = 1e-4


@pytest.mark.parametrize(("dim", "count"), [(2, 1), (2, 2), (7, 3), (31, 15), (1001, 200)])
def test_they_are_orthonormal_and_agree_with_their_dots_and_sums(dim, count):
    canaries = OrthogonalCanaries(dim=dim, count=count, seed=3)
    rows = np.stack(list(canaries.each(range(count))))
    np.testing.assert_allclose(rows @ rows.T, np.eye(count), atol=1e-6)
    vector = np.random.default_rng(0).normal(size=dim).astype(np.float32)
    np.testing.assert_allclose(canaries.dots(vector), rows @ vector, atol=1e-5)
    weights = np.arange(count) - 1.5
    np.testing.assert_allclose(canaries.total(weights), weights @ rows, atol=1e-4)


def test_the_same_seed_gives_the_same_canaries_and_another_does_not():
    first, again, other = (OrthogonalCanaries(dim=50, count=4, seed=seed).canary(2) for seed in (0, 0, 1))
    assert (first == again).all()
    assert abs(first @ other) < 0.9


@pytest.mark.parametrize(
    ("dim", "release"),
    [
        (2, "one coordinate"),
        pytest.param(3, "one coordinate", marks=pytest.mark.slow),
        pytest.param(41, "one coordinate", marks=pytest.mark.slow),
        pytest.param(2, "heavy tails", marks=pytest.mark.slow),
        pytest.param(3, "heavy tails", marks=pytest.mark.slow),
        (41, "heavy tails"),
    ],
)
def test_null_scores_follow_their_null_exactly_in_any_dimension(dim, release):
    """One p-value of one canary for each of many seeds, so that they are independent."""
    draw = np.random.default_rng(dim)
    vector = np.eye(1, dim)[0] if release == "one coordinate" else draw.standard_t(1.5, dim)
    vector, count, p_values = vector.astype(np.float32), max(1, dim // 2), []
    for seed in range(300):
        canaries = OrthogonalCanaries(dim=dim, count=count, seed=seed)
        dots, lengths, _ = compared(canaries, vector, float(np.linalg.norm(vector)))
        scores = dots / lengths
        p_values.append(float(np.exp(canaries.cosine_null.log_sf(scores[-1:]))[0]))
    assert stats.kstest(p_values, "uniform").pvalue > LEVEL


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="at most 5, the number of dimensions"):
        OrthogonalCanaries(dim=5, count=6, seed=0)
    with pytest.raises(InputError, match="use family=hadamard"):
        OrthogonalCanaries(dim=10**6, count=10, seed=0)
