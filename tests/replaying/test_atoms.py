"""Numbers of few values are judged by probabilities: the limits are right, and hold as often as they say."""

import math

import numpy as np
import pytest
from scipy import special

from coalmine.replaying.atoms import alone, largest_chance, proportional, shortened
from coalmine.replaying.noise import factors, measure
from coalmine.replaying.state import covered, has_noise, innovations, is_prepared, period


def _divergence(p, q):
    return special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q)


@pytest.mark.parametrize("z", [0.4, 0.7, 1.0, 3.0])
def test_the_largest_chance_is_that_of_all_pairs_of_probabilities(z):
    grid = np.linspace(0.0005, 0.9995, 1000)
    p, q = np.meshgrid(grid, grid)
    allowed = (_divergence(p, q) <= 0.5 / z**2) & (_divergence(q, p) <= 0.5 / z**2)
    assert largest_chance(z) == pytest.approx(float(np.minimum(p, 1 - q)[allowed].max()), abs=2e-3)


@pytest.mark.parametrize("z", [0.3, 0.5, 1.0, 2.0])
def test_no_noise_of_the_claim_exceeds_the_largest_chance(z):
    """A sign of Gaussian noise, and discrete Gaussian noise on a grid as wide as the clip norm."""
    sign = special.ndtr(0.5 / z)
    weights = np.exp(-(np.arange(-60, 61) ** 2) / (2 * z**2))
    at_zero, at_one = weights[60] / weights.sum(), weights[61] / weights.sum()
    assert sign < largest_chance(z)
    assert min(at_zero, 1 - at_one) < largest_chance(z)


@pytest.mark.parametrize("kind", ["sign", "discrete"])
@pytest.mark.parametrize("z", [0.4, 1.0])
def test_numbers_that_keep_the_claim_are_seldom_called_alone(kind, z):
    """At a rate of 20% with 5 numbers, in 300 cases; 4 binomial errors: once in 30,000."""
    rng, alarms = np.random.default_rng(6), 0
    values = np.arange(-30, 31)
    weights = np.exp(-(values**2) / (2 * z**2))
    for _ in range(300):

        def run(_):
            if kind == "sign":
                noise = rng.normal(0, z, 5)
                return np.sign(noise + 0.5), np.sign(noise - 0.5)
            noise = rng.choice(values, 5, p=weights / weights.sum()).astype(float)
            return noise + 1, noise

        usual = (np.ones(5), -np.ones(5)) if kind == "sign" else (np.ones(5), np.zeros(5))
        suspects = np.ones(5, dtype=bool)
        found = alone(run, usual, (suspects, suspects), noise_multiplier=z, rate=0.2, first_draw=0)
        assert found.decided
        alarms += bool(found.places.any())
    assert alarms / 300 < 0.2 + 4 * math.sqrt(0.2 * 0.8 / 300)
    assert found.p_value <= 0.2


def test_numbers_without_noise_are_alone_and_those_on_a_wide_grid_are_not_told_apart():
    sides = np.array([1.0, 0.0]), np.array([0.0, 0.0])
    suspects = np.array([True, True])
    found = alone(lambda _: sides, sides, (suspects, ~suspects), noise_multiplier=1.0, rate=1e-6, first_draw=0)
    assert found.places.tolist() == [True, False]
    assert not alone(lambda _: sides, sides, (suspects,) * 2, noise_multiplier=0.1, rate=1e-6, first_draw=0).decided
    shorter = 1 - shortened(1.0)
    assert proportional(np.array([1.0, 1.0, 2.0]), np.array([shorter, 1.0, 1.0]), 1.0).tolist() == [True, False, False]


# Movements along noise that depends on other noise, and out of its span


def test_noise_that_is_larger_along_a_movement_is_seldom_taken_for_less():
    """Noise that is larger along the movement by its own limit, at a rate of 5%, in 400 cases: 4 errors, 1 in 30,000.

    The movement is as long as that noise allows, and few draws may call it longer than `plain_excess` says.
    """
    rng, dim, runs, alarms = np.random.default_rng(1), 60, 12, 0
    along = np.ones(dim) / np.sqrt(dim)
    larger = math.sqrt(1 + 3 * math.sqrt(2 / (runs - 1))) * float(factors(np.array([runs - 1.0]), 0.05)[0])
    for _ in range(400):
        white = rng.standard_normal((runs, dim))
        noise = measure((white + (larger - 1) * np.outer(white @ along, along))[:, None], [dim])
        length = noise.length(larger * along[None])
        alarms += length.measured > larger and length.degrees.sum() > runs  # not judged by the noise along it
    assert alarms / 400 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("precision", [1.2e-7, 2.2e-16])
def test_only_what_noise_does_not_reach_leaves_its_span(precision):
    """300 cases: noise of rank 5, and movements inside its span but for rounding, or beyond it by ten times that."""
    rng, dim = np.random.default_rng(2), 40
    for _ in range(300):
        basis = np.linalg.qr(rng.standard_normal((dim, 5)))[0]
        runs = rng.standard_normal((20, 5)) @ basis.T
        noise = measure((runs * (1 + precision * rng.uniform(-1, 1, runs.shape)))[:, None], [dim])
        inside, rounding = basis @ rng.standard_normal(5), np.full(dim, 2 * precision)
        outside = rng.standard_normal(dim)
        outside -= basis @ (basis.T @ outside)
        outside *= 1e-4 / np.linalg.norm(outside)
        assert not noise.misses(inside + precision * rng.uniform(-1, 1, dim), rounding, 1.0)
        assert noise.misses(inside + outside, rounding, 1.0)


# Noise in the state


def _rounds(name, rng, calls=12, dim=30):
    fresh, t = rng.standard_normal((calls, dim)), np.arange(calls)[:, None]
    momentum = np.zeros_like(fresh)
    for i in range(calls):
        momentum[i] = fresh[i] + (0.9 * momentum[i - 1] if i else 0)
    ones = np.array([bin(i + 1).count("1") for i in range(calls)])[:, None]
    return {
        "noise": fresh,
        "a model with noise": np.cumsum(fresh, axis=0),
        "a momentum with noise": momentum,
        "nothing": fresh[:1] + 0 * t,
        "a model that moves": fresh[:1] * t,
        "a momentum": fresh[:1] * (1 - 0.9 ** (t + 1)),
        "an adaptive step": fresh[:1] * (1 - 0.9 ** (t + 1)) / np.sqrt(1e-3 + fresh[:1] ** 2 * (1 - 0.99 ** (t + 1))),
        "a tree": fresh[:1] * ones,
    }[name]


@pytest.mark.parametrize("dim", [2, 30])
@pytest.mark.parametrize(
    ("name", "noisy"),
    [("noise", True), ("a model with noise", True), ("a momentum with noise", True), ("nothing", False),
     ("a model that moves", False), ("a momentum", False), ("an adaptive step", False), ("a tree", False)],
)  # fmt: skip
def test_noise_in_the_state_is_told_from_what_a_state_does_anyway(name, noisy, dim):
    """100 cases each; a tree of two numbers has too few of them to show that all rounds are multiples of one."""
    rng = np.random.default_rng(4)
    for _ in range(100):
        rounds = _rounds(name, rng, dim=dim)
        if (name, dim) != ("a tree", 2):
            assert has_noise(rounds, rounds, [dim]) == noisy
        assert not has_noise(rounds, _rounds("noise", rng, dim=dim), [dim])  # random numbers change it


@pytest.mark.parametrize("name", ["noise", "a model with noise", "a momentum with noise"])
def test_what_a_round_adds_is_measured(name):
    """Within 8%: the change of a momentum of 0.9 has √(2 / 1.9) of its noise, and the error is 1 / √(2 · 39 · 200)."""
    runs = innovations(_rounds(name, np.random.default_rng(5), calls=40, dim=200)[:, None], [200])
    assert measure(runs, [200]).level == pytest.approx(1.0, rel=0.08)


@pytest.mark.parametrize("dim", [2, 30])
@pytest.mark.parametrize(("model", "momentum"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.9), (1.0, 0.9)])
def test_noise_that_waits_is_told_from_noise_that_was_released(model, momentum, dim):
    """100 cases each, of noise that is drawn one round ahead or when it is needed."""
    rng = np.random.default_rng(6)
    for _ in range(100):
        for ahead in (0, 1):
            fresh, last = rng.standard_normal((13, dim)), rng.standard_normal(dim)
            step, total, rounds, reset = np.zeros(dim), np.zeros(dim), [], []
            for number in range(12):
                before = total, step
                for noise, releases in ((fresh[number] if ahead else last, reset), (fresh[number], rounds)):
                    step = momentum * before[1] + noise
                    total = model * before[0] + step
                    releases.append(total)
            spread = np.full(dim, 0.0 if ahead else 1.0)
            assert is_prepared(np.stack(rounds), np.stack(reset), spread, [dim]) == bool(ahead)


@pytest.mark.parametrize("kind", ["white", "correlated", "model", "laplace"])
@pytest.mark.parametrize("dim", [1, 20])
def test_noise_that_just_covers_each_round_is_hardly_ever_called_too_little(kind, dim):
    """Of 2,000 cases with rounds of other sizes and signs, p is at most 5% in at most 5% and five standard errors."""
    rng, alarms = np.random.default_rng(8), 0
    root = np.linalg.qr(rng.standard_normal((dim, dim)))[0] * np.geomspace(0.2, 5, dim)
    root = root if kind == "correlated" else np.eye(dim)
    moved = rng.choice([-1.0, 1.0], (40, dim)) * 0.97 ** np.arange(40)[:, None]
    needed = np.sqrt(np.sum(np.linalg.solve(root, moved.T) ** 2, axis=0))  # at z = 1
    for _ in range(2000):
        white = rng.laplace(0, np.sqrt(0.5), (40, dim)) if kind == "laplace" else rng.standard_normal((40, dim))
        noise = needed[:, None] * (white @ root.T)
        p_value = covered(np.cumsum(noise, axis=0) if kind == "model" else noise, moved, 1.0).p_value
        alarms += p_value <= 0.05
    assert alarms / 2000 <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / 2000)
    if kind in ("white", "model"):
        assert covered(0.3 * noise, moved, 1.0).too_little


def test_only_noise_that_starts_again_has_a_period():
    rng = np.random.default_rng(9)
    for _ in range(4):
        gaussian, signs = rng.standard_normal((300, 5)), rng.choice([-1.0, 1.0], (300, 1))
        sparse = np.where(rng.random((300, 3)) < 0.02, 1.0, 0.0)
        for noise in (gaussian, gaussian[:, :1], signs, np.repeat(signs, 10, axis=1), sparse, np.cumsum(signs, axis=0)):
            assert period(noise) is None
        assert period(np.tile(gaussian[:29], (11, 1))) == 29
        assert period(np.cumsum(np.tile(gaussian[:100], (3, 1)), axis=0)) == 100
