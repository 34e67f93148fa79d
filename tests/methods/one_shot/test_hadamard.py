from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coalmine.errors import InputError
from coalmine.methods.one_shot import families
from coalmine.methods.one_shot.canaries import draw_members
from coalmine.methods.one_shot.families import HadamardCanaries, transform
from coalmine.methods.one_shot.scores import compared
from coalmine.stats import Scores
from coalmine.stats.rank_tests import threshold_tests
from coalmine.stats.tradeoff import ApproximateDP


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


@pytest.mark.parametrize("dim", [100, 1000, 1009, 1023, 1025, 1945, 8191, 8192, 8193, 300_001])
def test_sums_are_the_transpose_of_dot_products_in_any_dimension(dim):
    draw = np.random.default_rng(dim)
    canaries = HadamardCanaries(dim=dim, count=dim // 2, seed=dim)
    update, weights = draw.standard_normal(dim).astype(np.float32), draw.standard_normal(dim // 2)
    products = canaries.dots(update) @ weights, update.astype(np.float64) @ canaries.total(weights)
    # Both products are of order √dim, and float32 has 24 bits.
    assert products[0] == pytest.approx(products[1], abs=1e-6 * dim**0.5 * 10)


def hartley(size):
    angles = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
    return (np.cos(angles) + np.sin(angles)) / size**0.5


@pytest.mark.parametrize(("length", "odd"), [(512, 1), (7, 7), (63, 63), (504, 63), (576, 36), (1184, 37)])
def test_the_transform_is_a_product_of_a_hartley_and_a_hadamard_matrix(length, odd):
    from scipy.linalg import hadamard

    vector = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    power = length // odd
    matrix = np.kron(hartley(odd), hadamard(power) / power**0.5)
    np.testing.assert_allclose(transform(vector.copy()), matrix @ vector, atol=2e-5)
    np.testing.assert_allclose(transform(transform(vector.copy())), vector, atol=1e-5)
    assert np.abs(matrix).max() <= (2 / length) ** 0.5 * (1 + 1e-12)


def test_the_transform_covers_nearly_all_coordinates():
    for dim in [*range(2, 3000), 8191, 8193, 10**6, 2**27 - 1]:
        length = HadamardCanaries(dim=dim, count=2, seed=0)._first.stop
        assert dim * 31 / 32 < length <= dim
        assert length // 64 < (length & -length) or length < 64  # q · 2ʲ with q < 64


def by_day(cases, *names):
    """These cases by day, and the others as slow ones."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in cases]


SHAPES = {
    "even": lambda draw, dim: draw.standard_normal(dim),
    "heavy-tailed": lambda draw, dim: draw.standard_t(1.5, dim),
    "one spike": lambda draw, dim: np.eye(1, dim, 17)[0] + 1e-3 * draw.standard_normal(dim),
    "sparse": lambda draw, dim: draw.standard_normal(dim) * (draw.random(dim) < 0.01),
    "rows": lambda draw, dim: np.repeat(draw.standard_normal(50) * (draw.random(50) < 0.3), dim // 50),
}


@pytest.mark.parametrize("shape", by_day(SHAPES, "one spike", "rows"))
def test_null_scores_are_normal_whatever_the_update(shape):
    """Kolmogorov–Smirnov at 5% on 200 draws of 256 canaries: rejected in more than 11% with probability below 1e-3."""
    dim, rejected = 5000, 0
    draw = np.random.default_rng(1)
    for seed in range(200):
        update = SHAPES[shape](draw, dim).astype(np.float32)
        scores = HadamardCanaries(dim=dim, count=256, seed=seed).dots(update) * dim**0.5 / np.linalg.norm(update)
        rejected += stats.kstest(scores, "norm").pvalue < 0.05
    assert rejected <= 22


RELEASES = {
    "half": lambda draw, dim: (np.arange(dim) < dim // 2).astype(float),
    "other half": lambda draw, dim: (np.arange(dim) >= dim - dim // 2).astype(float),
    "one coordinate": lambda draw, dim: np.eye(1, dim, draw.integers(dim))[0],
    "last coordinate": lambda draw, dim: np.eye(1, dim, dim - 1)[0],
    "sparse": lambda draw, dim: draw.standard_normal(dim) * (draw.random(dim) < 0.01) + np.eye(1, dim, 5)[0],
    "constant": lambda draw, dim: np.ones(dim),
    "embedding rows": lambda draw, dim: (
        draw.standard_normal(dim) * (np.arange(dim) // 16 % 50 == draw.integers(min(50, dim // 16)))
    ),
    "heavy-tailed": lambda draw, dim: draw.standard_t(1.2, dim),
}


# With 1 instead of 131,072, T₂ covers an eighth of the coordinates, as in a model with a million.
@pytest.mark.parametrize(
    ("dim", "canaries", "least_last"),
    [
        (100, 25, 1 << 17),
        pytest.param(1023, 64, 1 << 17, marks=pytest.mark.slow),
        pytest.param(8191, 1024, 1 << 17, marks=pytest.mark.slow),
        (8191, 64, 1),
    ],
)
@pytest.mark.parametrize("shape", by_day(RELEASES, "half", "one coordinate", "embedding rows"))
def test_the_exact_null_fits_releases_that_ignore_the_canaries_in_awkward_dimensions(
    shape, dim, canaries, least_last, monkeypatch
):
    """A bound above 0 in at most 5%: 42 of 400 or more have a probability of 6e-6, 2e-4 in all 32 cases.

    The tests leave out the floor that the random signs put on p-values: the null itself must fit.
    """
    monkeypatch.setattr(families, "_LEAST_LAST", least_last)
    alarms, draw = 0, np.random.default_rng(dim)
    for seed in range(400):
        update = RELEASES[shape](draw, dim).astype(np.float32)
        updates = HadamardCanaries(dim=dim, count=2 * canaries, seed=seed)
        members = draw_members(canaries, design="coin-flips" if seed % 2 else "fixed", seed=seed)
        dots, lengths, _ = compared(updates, update, float(np.linalg.norm(update)))
        scores = (dots / lengths)[members]
        tests = replace(threshold_tests(Scores(scores, null=updates.cosine_null)), floor=0.0)
        alarms += tests.p_values(ApproximateDP(0.0, 1e-5)).min() <= 0.05 / tests.rank.size
    assert alarms < 42


def test_two_numbers_side_by_side_do_not_give_pairs_of_canaries_the_same_magnitudes(monkeypatch):
    """Correlation of the squares of 3,200 pairs: 0.15 is eight standard errors, a false-alarm probability below 1e-6.

    After T₁ alone the energy lies in every other residue, which canaries 2i and 2i + 1 see alike.
    """
    monkeypatch.setattr(families, "_LEAST_LAST", 1)
    update = np.eye(1, 8191, 0, dtype=np.float32)[0] + np.eye(1, 8191, 1, dtype=np.float32)[0]
    dots = np.array([HadamardCanaries(dim=8191, count=64, seed=seed).dots(update) for seed in range(100)])
    assert abs(np.corrcoef(dots[:, ::2].ravel() ** 2, dots[:, 1::2].ravel() ** 2)[0, 1]) < 0.15


def test_null_scores_have_independent_fair_signs_whatever_the_update():
    """χ² of the 8 sign patterns of three canaries over 2,000 seeds: false-alarm probability 1e-4."""
    update = np.eye(1, 9, 4, dtype=np.float32)[0] + np.float32(0.1)
    dots = np.array([HadamardCanaries(dim=9, count=3, seed=seed).dots(update) for seed in range(2000)])
    # Given the magnitudes, too: those of canary 0 above and below their median.
    large = np.abs(dots[:, 0]) > np.median(np.abs(dots[:, 0]))
    for part in (dots[large], dots[~large]):
        patterns = np.bincount((part > 0) @ [1, 2, 4], minlength=8)
        assert stats.chisquare(patterns).pvalue > 5e-5


def test_scores_have_the_variance_of_a_uniform_direction_if_k_divides_the_dimension(monkeypatch):
    """Exactly, whatever the other signs: the mean square over all 2⁸ signs S₃."""
    update = np.eye(1, 8, 3, dtype=np.float32)[0]
    for seed in range(5):
        canaries, squares = HadamardCanaries(dim=8, count=4, seed=seed), []
        fixed = canaries._draw(0, 8) * np.int8(2) & 6  # the bits of S₁ and S₂
        for pattern in range(256):
            last = np.unpackbits(np.array([pattern], np.uint8)).astype(np.int8) << 3
            monkeypatch.setattr(canaries, "_bytes", {"cpu": fixed | last})
            squares.append(canaries.dots(update) ** 2)
        np.testing.assert_allclose(np.mean(squares, axis=0), 1 / 8, rtol=1e-6)


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
