import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from coalmine.errors import InputError
from coalmine.methods.one_shot import gaussian
from coalmine.methods.one_shot.canaries import FAMILIES, update_canaries
from coalmine.methods.one_shot.gaussian import GaussianCanaries
from coalmine.stats import CosineNull

# False-alarm probability of a whole test, shared among its comparisons. Seeds are fixed: what passes keeps passing.
LEVEL = 1e-4


def all_of(canaries):
    return np.stack([canaries.canary(i) for i in range(canaries.count)]).astype(np.float64)


@settings(max_examples=15)
@given(dim=st.integers(2, 300), count=st.integers(1, 40), seed=st.integers(0, 1000))
def test_dot_products_and_sums_are_those_of_the_vectors(dim, count, seed):
    canaries = GaussianCanaries(dim=dim, count=count, seed=seed)
    vectors, draw = all_of(canaries), np.random.default_rng(seed)
    updates, weights = draw.standard_normal((3, dim)).astype(np.float32), draw.standard_normal(count)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    atol = 1e-6 * np.linalg.norm(updates, axis=1).max()
    np.testing.assert_allclose(canaries.dots(updates[1]), vectors @ updates[1].astype(np.float64), atol=atol, rtol=0)
    np.testing.assert_allclose(canaries.total(weights), weights @ vectors, atol=1e-6 * np.abs(weights).sum(), rtol=0)


LENGTHS = [2, 3, 2 * gaussian._TILE - 1, 2 * gaussian._TILE, 2 * gaussian._TILE + 1, 200_003]


@pytest.mark.parametrize("dim", LENGTHS)
def test_canaries_of_one_tile_or_several_are_the_same_in_dots_and_totals(dim):
    canaries, draw = GaussianCanaries(dim=dim, count=20, seed=5), np.random.default_rng(dim)
    vectors = all_of(canaries)
    updates, weights = draw.standard_normal((2, dim)).astype(np.float32), draw.standard_normal(20)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    dots = np.stack([canaries.dots(update) for update in updates], axis=1)
    size = float(np.linalg.norm(updates))
    np.testing.assert_allclose(dots, vectors @ updates.T.astype(np.float64), atol=1e-6 * size, rtol=0)
    total = canaries.total(weights).astype(np.float64)
    np.testing.assert_allclose(total, weights @ vectors, atol=1e-6 * np.abs(weights).sum(), rtol=0)
    assert updates[0] @ total == pytest.approx(weights @ dots[:, 0], abs=1e-5 * size)


@pytest.mark.parametrize("dim", [7, 1000, 2 * gaussian._TILE + 6])
def test_canaries_are_the_same_whatever_was_asked_before_and_however_many_there_are(dim):
    update = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    first, other = (GaussianCanaries(dim=dim, count=30, seed=9) for _ in range(2))
    total, dots = first.total(np.arange(30)), first.dots(update)
    np.testing.assert_array_equal(dots, other.dots(update))
    np.testing.assert_array_equal(dots, other.dots(update))
    np.testing.assert_array_equal(total, other.total(np.arange(30)))
    np.testing.assert_array_equal(first.canary(17), GaussianCanaries(dim=dim, count=18, seed=9).canary(17))


def test_the_size_of_a_tile_does_not_change_long_canaries(monkeypatch):
    before = GaussianCanaries(dim=200_001, count=2, seed=4).canary(1)
    monkeypatch.setattr(gaussian, "_TILE", 1 << 12)
    after = GaussianCanaries(dim=200_001, count=2, seed=4).canary(1)
    # Pairs of coordinates are rotated: a small one has the rounding error of the other one, up to 0.01.
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=0.01 * 2**-24)


def test_a_weight_of_0_makes_no_canary(monkeypatch):
    made = []
    monkeypatch.setattr(gaussian, "_Stream", lambda *args, kind=gaussian._Stream: made.append(args[1]) or kind(*args))
    canaries = GaussianCanaries(dim=2 * gaussian._TILE, count=100, seed=0)
    canaries.total(np.isin(np.arange(100), [3, 71]))
    assert set(made) == {3, 71}


def test_canaries_of_other_numbers_and_other_seeds_are_independent():
    """Squared dot products of 60 vectors: their mean and the largest as uniform directions have them."""
    vectors = np.concatenate([all_of(GaussianCanaries(dim=2001, count=20, seed=seed)) for seed in (0, 1, 2)])
    cosines = (vectors @ vectors.T)[np.triu_indices(60, 1)]
    assert stats.kstest(cosines, lambda t: np.exp(CosineNull(2001).log_cdf(t))).pvalue > LEVEL
    assert np.abs(cosines).max() < 6 / math.sqrt(2001)


SHAPES = {
    "dense": lambda draw, dim: draw.standard_normal(dim),
    "heavy-tailed": lambda draw, dim: draw.standard_t(1.5, dim),
    "one spike": lambda draw, dim: np.eye(1, dim, dim // 3)[0],
    "rows": lambda draw, dim: np.repeat(draw.standard_normal(10) * (np.arange(10) % 3 == 0), dim // 10),
    "ramp": lambda draw, dim: np.arange(1.0, dim + 1),
}


@pytest.mark.parametrize("dim", [10, 300, 5000])
@pytest.mark.parametrize("shape", SHAPES)
def test_null_scores_follow_the_exact_law_whatever_the_update(shape, dim):
    update = SHAPES[shape](np.random.default_rng(dim), dim).astype(np.float32)
    scores = GaussianCanaries(dim=dim, count=4000, seed=11).dots(update) / np.linalg.norm(update.astype(np.float64))
    assert stats.kstest(scores, lambda t: np.exp(CosineNull(dim).log_cdf(t))).pvalue > LEVEL / (3 * len(SHAPES))


def test_null_scores_of_a_spike_follow_the_exact_law_far_out():
    """200,000 canaries: beyond 4.2 standard deviations the normal law has 3.7 times what there is in 64 dimensions."""
    null, places = CosineNull(64), [0, 17, 63]
    canaries = GaussianCanaries(dim=64, count=200_000, seed=1)
    scores = np.stack([canaries.dots(axis) for axis in np.eye(64, dtype=np.float32)[places]], axis=1)
    for column in scores.T:
        assert stats.kstest(column, lambda t: np.exp(null.log_cdf(t))).pvalue > LEVEL / 30
        for threshold in np.array([2.5, 3.2, 3.7, 4.2]) / 8:
            beyond, rate = int((np.abs(column) > threshold).sum()), 2 * math.exp(null.log_sf(threshold))
            assert stats.binomtest(beyond, len(column), rate).pvalue > LEVEL / 30


def test_coordinates_of_a_long_canary_are_normal_far_out():
    dim = 4_000_000
    numbers = np.abs(GaussianCanaries(dim=dim, count=1, seed=2).canary(0)) * math.sqrt(dim)
    for threshold in (0.5, 1, 2, 3, 3.5, 3.7, 3.8, 4, 4.5):
        rate = 2 * special.ndtr(-threshold)
        assert stats.binomtest(int((numbers > threshold).sum()), dim, rate).pvalue > LEVEL / 9


def test_the_law_of_a_coordinate_is_normal_to_6_in_a_million_and_its_tails_to_5_in_a_thousand():
    """Computed, not drawn: a point of radius r lies beyond x after a uniform turn with probability arccos(x/r)/π."""
    far, steps = gaussian._FAR, (np.arange(20_000) + 0.5) / 500
    near = np.abs(gaussian._near()[: gaussian._CELLS // 4]).astype(float)
    beyond = np.sqrt(2 * (steps - math.log(far)))
    for x in np.concatenate([near[:20], near[-20:], np.linspace(0, 8, 400)]):  # worst at the ends of the table
        core, tail = (np.arccos(np.minimum(1, x / radii)) / math.pi for radii in (near, beyond))
        law = (1 - far) * core.mean() + far * (np.exp(-steps) * tail).sum() / 500
        assert law == pytest.approx(special.ndtr(-x), abs=6e-6, rel=0)
        assert law == pytest.approx(special.ndtr(-x), rel=5e-3, abs=0)


def test_points_of_the_table_have_no_mean_and_no_direction():
    points = gaussian._near().astype(np.complex128)
    assert abs(points.mean()) < 1e-12
    assert abs((points**2).mean()) < 1e-12


def test_all_families_give_null_and_member_scores_of_one_law():
    """Sums of 40 canaries with noise of norm √dim, which all families see alike."""
    dim, members = 4096, 40
    null, member = {}, {}
    for name in FAMILIES:
        draw = np.random.default_rng(6)
        update = draw.standard_t(2.5, dim).astype(np.float32)
        null[name] = update_canaries(name, dim=dim, count=500, seed=8).dots(update / np.linalg.norm(update))
        scores = []
        for seed in range(10):
            canaries = update_canaries(name, dim=dim, count=2 * members, seed=seed)
            planted = canaries.total(np.arange(2 * members) < members)
            scores.append(canaries.dots(planted + draw.standard_normal(dim).astype(np.float32))[:members])
        member[name] = np.concatenate(scores)
        assert member[name].mean() == pytest.approx(1, abs=5 / math.sqrt(len(member[name])))
    for name in ("hadamard", "orthogonal"):
        assert stats.ks_2samp(null[name], null["gaussian"]).pvalue > LEVEL / 4
        assert stats.ks_2samp(member[name], member["gaussian"]).pvalue > LEVEL / 4


def test_memory_does_not_grow_with_the_number_of_canaries_and_stays_small():
    dim = 10**6
    updates, megabyte = np.ones(dim, dtype=np.float32), 1 << 20
    for work, output in ((lambda c: c.dots(updates), 0), (lambda c: c.total(np.arange(18) > 15), 4 * dim)):
        canaries = GaussianCanaries(dim=dim, count=18, seed=0)
        tracemalloc.start()
        work(canaries)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak - output < 8 * megabyte


def test_bad_input_is_an_error():
    with pytest.raises(InputError, match=r"dim .* at least 2, got 1"):
        GaussianCanaries(dim=1, count=3, seed=0)
    with pytest.raises(InputError, match=r"count .* at least 1, got 0"):
        GaussianCanaries(dim=5, count=0, seed=0)
    with pytest.raises(InputError, match=r"seed .* at least 0, got -1"):
        GaussianCanaries(dim=5, count=1, seed=-1)
    with pytest.raises(InputError, match=r'unknown family "uniform".* hadamard, orthogonal, gaussian'):
        update_canaries("uniform", dim=5, count=3, seed=0)
