import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coalmine.errors import InputError
from coalmine.methods.one_shot.hadamard import HadamardCanaries, hadamard


def all_of(canaries):
    return np.stack([canaries.canary(i) for i in range(canaries.count)]).astype(np.float64)


@given(dim=st.integers(2, 600), share=st.floats(0.01, 1.0), seed=st.integers(0, 1000))
def test_canaries_have_norm_1_and_are_orthogonal(dim, share, seed):
    length = 1 << (dim.bit_length() - 1)
    canaries = HadamardCanaries(dim=dim, count=max(1, int(share * length)), seed=seed)
    vectors = all_of(canaries)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(canaries.count), atol=1e-5)


@given(dim=st.integers(2, 300), share=st.floats(0.01, 1.0), seed=st.integers(0, 1000))
def test_dot_products_and_sums_are_those_of_the_vectors(dim, share, seed):
    count = max(1, int(share * (1 << (dim.bit_length() - 1))))
    canaries = HadamardCanaries(dim=dim, count=count, seed=seed)
    vectors, draw = all_of(canaries), np.random.default_rng(seed)
    update, weights = draw.standard_normal(dim).astype(np.float32), draw.standard_normal(count)
    np.testing.assert_allclose(canaries.dots(update), vectors @ update, atol=1e-4)
    np.testing.assert_allclose(canaries.total(weights), weights @ vectors, atol=1e-4)
    indices = list(range(0, count, 3))
    np.testing.assert_allclose(list(canaries.each(indices)), vectors[indices], atol=1e-6)


def test_the_transform_multiplies_by_the_hadamard_matrix():
    from scipy.linalg import hadamard as matrix

    vector = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    np.testing.assert_allclose(hadamard(vector), matrix(512) @ vector / 512**0.5, atol=1e-5)
    np.testing.assert_allclose(hadamard(hadamard(vector)), vector, atol=1e-5)


SHAPES = {
    "even": lambda draw, dim: draw.standard_normal(dim),
    "heavy-tailed": lambda draw, dim: draw.standard_t(1.5, dim),
    "one spike": lambda draw, dim: np.eye(dim)[17] + 1e-3 * draw.standard_normal(dim),
    "sparse": lambda draw, dim: draw.standard_normal(dim) * (draw.random(dim) < 0.01),
    "rows": lambda draw, dim: np.repeat(draw.standard_normal(50) * (draw.random(50) < 0.3), dim // 50),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_null_scores_are_normal_whatever_the_update(shape):
    """Kolmogorov–Smirnov at 5% on 200 draws of 256 canaries: rejected in more than 11% with probability below 1e-3."""
    dim, rejected = 5000, 0
    draw = np.random.default_rng(1)
    for seed in range(200):
        update = SHAPES[shape](draw, dim).astype(np.float32)
        scores = HadamardCanaries(dim=dim, count=256, seed=seed).dots(update) * dim**0.5 / np.linalg.norm(update)
        rejected += stats.kstest(scores, "norm").pvalue < 0.05
    assert rejected <= 22


def test_another_seed_gives_other_canaries_and_the_same_gives_the_same():
    first, other = (HadamardCanaries(dim=1000, count=4, seed=seed).canary(2) for seed in (0, 1))
    assert abs(first @ other) < 0.2
    np.testing.assert_array_equal(first, HadamardCanaries(dim=1000, count=4, seed=0).canary(2))


def test_one_dimension_and_no_canaries_are_errors():
    with pytest.raises(InputError, match=r"dim .* at least 2, got 1"):
        HadamardCanaries(dim=1, count=3, seed=0)
    with pytest.raises(InputError, match=r"count .* at least 1, got 0"):
        HadamardCanaries(dim=5, count=0, seed=0)
    with pytest.raises(InputError, match=r"at most 512 .* 1000 dimensions, got 513"):
        HadamardCanaries(dim=1000, count=513, seed=0)
