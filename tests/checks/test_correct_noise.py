"""Correct releases whose noise looks unusual: replay must not refute them, and must still refute what is wrong."""

import numpy as np
import pytest

import coalmine as cm


def clipped(update):
    return update / max(1.0, float(np.linalg.norm(update)))


def replayed(release, *, dim, seed, noise_multiplier=1.0):
    clients = [np.random.default_rng(i).normal(size=dim) for i in range(5)]
    return cm.replay(
        release, clients, clip_norm=1.0, noise_multiplier=noise_multiplier, options=cm.checks.ReplayOptions(seed=seed)
    )


def released_twice(noise, dim=1000):
    rng = np.random.default_rng(7)

    def release(clients):
        total = sum(map(clipped, clients)) + rng.normal(0, noise, dim)
        return {"model": -0.1 * total, "momentum": total}

    return release


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_noisy_sum_may_be_released_twice(seed):
    assert replayed(released_twice(1.0), dim=1000, seed=seed).ok


def test_too_little_noise_is_found_although_it_is_released_twice():
    assert not replayed(released_twice(0.6), dim=1000, seed=0).ok


@pytest.mark.parametrize("noise", [1.5, 0.5])
def test_arrays_may_have_different_units_where_random_numbers_are_not_in_step(noise):
    rng, dim = np.random.default_rng(11), 1000

    def release(clients):
        for client in clients:
            rng.random(1 + int(np.linalg.norm(client) > 1))  # how many are drawn depends on the clients
        total = sum(map(clipped, clients)) + rng.normal(0, noise, dim)
        return {"update": total / 100, "count": len(clients) + rng.normal(0, noise)}

    clients = [np.random.default_rng(i).normal(size=dim) for i in range(5)]
    options = [cm.checks.ReplayOptions(seed=seed, quick=True) for seed in range(4)]
    results = [cm.replay(release, clients, clip_norm=1.0, noise_multiplier=1.0, options=o) for o in options]
    assert [result.ok for result in results] == [noise > 1] * 4


def projected(after, dim=100, rank=20):
    rng = np.random.default_rng(3)
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, rank)))

    def release(clients):
        total, noise = sum(map(clipped, clients)), rng.normal(0, 1, dim)
        return basis @ (basis.T @ (total + noise)) if after else total + basis @ (basis.T @ noise)

    return release


@pytest.mark.parametrize("after", [True, False])
def test_a_release_may_be_projected_but_not_its_noise_alone(after):
    assert replayed(projected(after), dim=100, seed=0).ok == after
