"""The noise of a release, measured: its limits hold as often as they say."""

import numpy as np
import pytest
from scipy import special

from coalmine.checks.comparison import largest_chance, measure
from coalmine.results.verdict import CHECK_RATE

SHAPES = {
    "gaussian": lambda rng, size: rng.standard_normal(size),
    "laplace": lambda rng, size: rng.laplace(0, np.sqrt(0.5), size),
    "discrete": lambda rng, size: np.rint(rng.normal(0, 2.0, size)) / np.sqrt(4 + 1 / 12),
    "binomial": lambda rng, size: (rng.binomial(16, 0.5, size) - 8) / 2,
}


def test_a_movement_of_few_numbers_is_judged_by_the_error_of_their_own_noise():
    runs = np.random.default_rng(0).normal(0, 1, (6, 1, 501))
    noise = measure(runs, [500, 1])
    large, small = np.zeros((1, 501)), np.zeros((1, 501))
    large[0, :500], small[0, 500] = 1 / np.sqrt(500), 1.0
    assert noise.length(large).lower() > 0.9
    assert noise.length(small).lower() < 0.3 * noise.length(small).measured
    assert noise.length(3 * large).p_value(1.0) < 1e-9
    assert noise.length(3 * small).p_value(1.0) > 1e-3
    assert noise.length(3 * (large + small)).p_value(1.0) < 1e-9


def test_the_p_value_agrees_with_the_limit_that_decides():
    """What is refuted has a p-value below half of the rate of a replay, and what is not has none."""
    for dims in ([500], [500, 1], [40, 3, 7]):
        noise = measure(np.random.default_rng(1).normal(0, 1, (12, 1, sum(dims))), dims)
        moved = np.random.default_rng(2).normal(0, 1, (1, sum(dims)))
        for size in np.geomspace(0.5, 5, 40):
            length = noise.length(size * moved / np.linalg.norm(moved))
            refuted = length.lower() > 1
            assert (length.p_value(1.0) < CHECK_RATE / 2 * (1 + 1e-6)) == refuted


def _sizes(name, dim, rng):
    """Return the sizes of independent noise."""
    part = np.arange(dim) < rng.integers(1, dim)
    return {
        "one size": np.ones(dim),
        "two layers": np.where(part, np.exp(rng.normal(0, 2)), 1.0),
        "every number its own": np.exp(rng.normal(0, rng.uniform(0, 2), dim)),
    }[name]


def _movement(sizes, rng):
    """Return a movement of exactly one standard deviation, of one of many forms."""
    form = rng.choice(["normal", "signs", "like the noise", "against the noise", "one number"])
    moved = {
        "normal": rng.standard_normal(sizes.size),
        "signs": np.sign(rng.standard_normal(sizes.size)),
        "like the noise": sizes * rng.standard_normal(sizes.size),
        "against the noise": 1 / sizes,
        "one number": np.eye(1, sizes.size, int(rng.integers(sizes.size)))[0],
    }[form]
    return moved / np.linalg.norm(moved / sizes)


@pytest.mark.parametrize(("shape", "rate"), [("gaussian", 0.05), ("gaussian", 0.5), ("laplace", 0.05)])
@pytest.mark.parametrize("sizes", ["one size", "two layers", "every number its own"])
def test_noise_of_any_sizes_seldom_makes_a_movement_longer_than_it_is(sizes, shape, rate):
    """700 cases of 2 to 60 numbers, 6,300 in all; 4 binomial errors, so that a test fails by chance once in 30,000.

    The limit is proved for Gaussian noise, and an approximation for Laplace noise.
    """
    rng, longer = np.random.default_rng(4), 0
    for _ in range(700):
        dim, runs = int(rng.integers(2, 60)), int(rng.integers(6, 40))
        std = _sizes(sizes, dim, rng)
        noise = measure((SHAPES[shape](rng, (runs, dim)) * std)[:, None], [dim])
        longer += noise._by_size(_movement(std, rng) / noise.std).lower(rate) > 1
    assert longer / 700 < rate + 4 * np.sqrt(rate * (1 - rate) / 700)
    if (sizes, rate) == ("one size", 0.5):
        assert longer > 35  # and it is not merely useless


def test_noise_of_any_sizes_loses_nothing_for_a_movement_like_it():
    """As after a server's optimizer, which scales numbers after the noise. Within 4 errors of 1 / √(2 · 39 · 500)."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.normal(0, 0.7, 500))
    noise = measure((rng.standard_normal((40, 500)) * sizes)[:, None], [500])
    assert noise.independent
    length = noise.length((sizes / np.sqrt(500))[None])
    assert length.measured == pytest.approx(1.0, abs=4 / np.sqrt(2 * 39 * 500))


def _after(name, dim, rng):
    """Return a linear map that is applied after the noise."""
    scales = np.exp(rng.normal(0, 0.7, dim))
    return np.diag(scales) if name == "uneven" else np.linalg.qr(rng.standard_normal((dim, dim)))[0] * scales


@pytest.mark.parametrize("name", ["uneven", "dependent"])
def test_noise_that_is_mapped_after_it_was_added_covers_what_it_covered_before(name):
    """A movement of exactly one standard deviation, 100 cases with limits that fail once in 400,000 each.

    Judged as if all numbers had noise of one size, many of them would be called longer than they are.
    """
    rng, longer, simple = np.random.default_rng(2), 0, 0
    for _ in range(100):
        dim, runs = int(rng.integers(20, 120)), int(rng.integers(40, 120))
        matrix, direction = _after(name, dim, rng), rng.standard_normal(dim)
        moved = (matrix @ (direction / np.linalg.norm(direction)))[None]
        noise = measure(rng.standard_normal((runs, dim))[:, None] @ matrix.T, [dim])
        length, even = noise.length(moved), float(np.linalg.norm(moved / noise.std))
        longer += length.lower() > 1
        simple += even > 1.15
    assert longer == 0
    assert simple > 5


@pytest.mark.parametrize(("runs", "dim"), [(12, 1500), (40, 200), (128, 40)])
def test_white_noise_seldom_seems_dependent(runs, dim):
    """At most 0.5% of the time: then 9 of 300 or more have a probability of 1 in 10,000."""
    rng = np.random.default_rng([runs, dim])
    noises = [measure(rng.standard_normal((runs, 1, dim)), [dim]) for _ in range(300)]
    assert sum(not noise.independent for noise in noises) < 9


def test_noise_of_different_sizes_seldom_seems_dependent_and_a_rotation_does():
    """Uneven noise at most 2% of the time, for which 12 of 200 or more have a probability of 1 in 1,000."""
    rng, dependent = np.random.default_rng(8), {"uneven": 0, "dependent": 0}
    for name in dependent:
        for _ in range(200):
            runs = rng.standard_normal((24, 100)) @ _after(name, 100, rng).T
            dependent[name] += not measure(runs[:, None], [100]).independent
    assert dependent["uneven"] < 12
    assert dependent["dependent"] > 180


@pytest.mark.parametrize("excess", [0.0, 3.0])
def test_the_kurtosis_of_residuals_is_corrected(excess):
    """0 of Gaussian and 3 of Laplace noise. The mean of x⁴ has the standard error √(8!/16 − 36) / √300,000 = 0.09."""
    draw = SHAPES["laplace" if excess else "gaussian"]
    noise = measure(draw(np.random.default_rng(0), (6, 1, 50_000)), [50_000])
    assert noise.excess == pytest.approx(excess, abs=0.6)


def _divergence(p, q):
    return special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q)


@pytest.mark.parametrize("z", [0.4, 1.0, 3.0])
def test_the_largest_chance_is_that_of_all_pairs_of_probabilities(z):
    grid = np.linspace(0.0005, 0.9995, 1000)
    p, q = np.meshgrid(grid, grid)
    allowed = (_divergence(p, q) <= 0.5 / z**2) & (_divergence(q, p) <= 0.5 / z**2)
    assert largest_chance(z) == pytest.approx(float(np.minimum(p, 1 - q)[allowed].max()), abs=2e-3)


@pytest.mark.parametrize("z", [0.3, 0.5, 1.0, 2.0])
def test_no_noise_of_the_claim_exceeds_the_largest_chance(z):
    """A sign of Gaussian noise, and discrete Gaussian noise on a grid as wide as the clip norm."""
    weights = np.exp(-(np.arange(-60, 61) ** 2) / (2 * z**2))
    at_zero, at_one = weights[60] / weights.sum(), weights[61] / weights.sum()
    assert special.ndtr(0.5 / z) < largest_chance(z)
    assert min(at_zero, 1 - at_one) < largest_chance(z)
