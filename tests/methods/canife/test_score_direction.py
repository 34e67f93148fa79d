"""The likelihood ratio's direction is what the definition says, and sees what the plain one cannot."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.methods.canife.designed_canaries import likelihood_ratio_direction, plain_direction
from coalmine.methods.canife.pool import Pool


def pool_of(rows, clip_norm=2.0):
    return Pool(rows=torch.as_tensor(rows, dtype=torch.float32), clip_norm=clip_norm)


def clients(count, dim=40, rank=3, seed=0, clip_norm=2.0):
    """Updates near a few common directions, of norm below the clip norm."""
    draw = np.random.default_rng(seed)
    common = np.random.default_rng(99).standard_normal((rank, dim))
    rows = draw.standard_normal((count, rank)) @ common + 0.3 * draw.standard_normal((count, dim))
    return rows * (0.9 * clip_norm / np.linalg.norm(rows, axis=1, keepdims=True))


def held_out_sigma(direction, held_out, *, noise_multiplier, cohort):
    """The effective σ of scores along a direction in rounds of clients like ``held_out``, by its definition."""
    vector = torch.from_numpy(direction.vector).double()
    variance = cohort * float(held_out.dots(vector[None]).square().mean())
    variance += (noise_multiplier * held_out.clip_norm) ** 2 * float(vector @ vector)
    return math.sqrt(variance) / direction.signal


def canary(dim=40, clip_norm=2.0, seed=5):
    vector = np.random.default_rng(seed).standard_normal(dim) + clients(1, dim)[0]
    return (vector * clip_norm / np.linalg.norm(vector)).astype(np.float32)


@given(noise=st.floats(0.05, 3), cohort=st.integers(1, 500), count=st.integers(1, 30))
def test_woodbury_gives_the_inverse_covariance_times_the_update(noise, cohort, count):
    rows, update = clients(count), canary()
    direction = likelihood_ratio_direction(update, pool_of(rows), noise_multiplier=noise, cohort=cohort)
    rows = rows.astype(np.float32).astype(float)
    covariance = cohort / count * rows.T @ rows + (2.0 * noise) ** 2 * np.eye(40)
    expected = np.linalg.solve(covariance, update.astype(float))
    np.testing.assert_allclose(direction.vector, expected / np.linalg.norm(expected), atol=1e-5)
    assert direction.signal == pytest.approx(float(direction.vector @ update), rel=1e-5)


def test_its_expected_sigma_is_that_of_leaving_out_each_client():
    rows, update = clients(25), canary()
    direction = likelihood_ratio_direction(update, pool_of(rows), noise_multiplier=0.2, cohort=50)
    ridge = 25 * 0.2**2 / 50
    unit = update.astype(float) / np.linalg.norm(update)
    scaled, products = rows.astype(np.float32).astype(float) / 2.0, []
    for i in range(25):
        others = np.delete(scaled, i, axis=0)
        inner = ridge * np.eye(24) + others @ others.T
        products.append((unit - others.T @ np.linalg.solve(inner, others @ unit)) @ scaled[i])
    w = unit - scaled.T @ np.linalg.solve(ridge * np.eye(25) + scaled @ scaled.T, scaled @ unit)
    sigma = math.sqrt(50 * np.mean(np.square(products)) + 0.2**2 * w @ w) / (w @ unit)
    assert direction.effective_sigma == pytest.approx(sigma, rel=1e-4)


def test_the_expected_sigma_is_that_of_simulated_rounds():
    # 4,000 rounds: the deviation has a standard error of 1.1%, the bound is six of them and what 300 clients tell less
    draw, update = np.random.default_rng(1), canary()
    population, pool = clients(300, seed=2), pool_of(clients(200, seed=3))
    for direction in (
        plain_direction(update, pool, noise_multiplier=0.3, cohort=20),
        likelihood_ratio_direction(update, pool, noise_multiplier=0.3, cohort=20),
    ):
        scores = []
        for _ in range(4000):
            total = population[draw.random(300) < 20 / 300].sum(0) + draw.normal(0, 0.3 * 2.0, 40)
            scores.append(total @ direction.vector)
        measured = np.std(scores) / direction.signal
        held_out = held_out_sigma(direction, pool_of(population), noise_multiplier=0.3, cohort=20)
        assert measured == pytest.approx(held_out, rel=0.1)
        assert direction.effective_sigma == pytest.approx(held_out, rel=0.15)


def test_it_beats_the_plain_direction_on_clients_it_has_not_seen():
    update, pool, others = canary(), pool_of(clients(100, seed=3)), pool_of(clients(300, seed=2))
    for noise in (0.01, 0.3):
        made = {"noise_multiplier": noise, "cohort": 100}
        plain = held_out_sigma(plain_direction(update, pool, **made), others, **made)
        ratio = held_out_sigma(likelihood_ratio_direction(update, pool, **made), others, **made)
        assert ratio < 0.6 * plain


@given(noise=st.floats(0, 5), scale=st.floats(0.05, 1))
def test_no_direction_beats_the_noise_alone(noise, scale):
    update, pool = canary() * np.float32(scale), pool_of(clients(12))
    for make in (plain_direction, likelihood_ratio_direction):
        direction = make(update, pool, noise_multiplier=noise, cohort=10)
        assert direction.effective_sigma >= noise / scale * (1 - 1e-5)
        assert np.linalg.norm(direction.vector) == pytest.approx(1, rel=1e-5)


def test_an_update_orthogonal_to_the_pool_is_its_own_direction():
    rows = np.zeros((4, 6))
    rows[:, :3] = clients(4, 3, seed=1)[:, :3]
    update = np.array([0, 0, 0, 2.0, 0, 0], dtype=np.float32)
    for make in (plain_direction, likelihood_ratio_direction):
        direction = make(update, pool_of(rows), noise_multiplier=0.5, cohort=100)
        np.testing.assert_allclose(direction.vector, update / 2.0, atol=1e-12)
        assert direction.effective_sigma == pytest.approx(0.5)


def test_without_noise_it_leaves_the_span_of_the_pool():
    rows, update = clients(10), canary()
    direction = likelihood_ratio_direction(update, pool_of(rows), noise_multiplier=0, cohort=10)
    assert np.abs(rows @ direction.vector).max() < 1e-5


def test_copies_in_the_pool_do_no_harm():
    rows, update = clients(10), canary()
    twice = np.concatenate([rows, rows])
    made = {"noise_multiplier": 0.1, "cohort": 10}
    once, both = (likelihood_ratio_direction(update, pool_of(r), **made) for r in (rows, twice))
    np.testing.assert_allclose(once.vector, both.vector, atol=1e-6)
    likelihood_ratio_direction(update, pool_of(twice), noise_multiplier=0, cohort=10)


def test_bad_updates_are_refused():
    pool = pool_of(clients(20))
    made = {"noise_multiplier": 0.1, "cohort": 10}
    for make in (plain_direction, likelihood_ratio_direction):
        with pytest.raises(InputError, match="not zero"):
            make(np.zeros(40, np.float32), pool, **made)
        with pytest.raises(InputError, match="finite"):
            make(np.full(40, np.nan, np.float32), pool, **made)


def test_a_canary_that_a_pool_client_sends_as_well_cannot_be_seen_without_noise():
    rows = clients(5)
    with pytest.raises(InputError, match="span"):
        likelihood_ratio_direction(rows[0].astype(np.float32), pool_of(rows), noise_multiplier=0, cohort=10)
