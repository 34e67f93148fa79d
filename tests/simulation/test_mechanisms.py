import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coalmine.claims import Poisson
from coalmine.claims.sampling import FixedSize, Scheduled
from coalmine.errors import InputError
from coalmine.protocol import Audit, View
from coalmine.seeds import generator
from coalmine.simulation import (
    SGD,
    LocalTraining,
    Mechanism,
    Training,
    flat,
)
from coalmine.simulation.kernels.kernel import LeanLoop, Stacked
from coalmine.simulation.kernels.layerwise import Layerwise
from federations import federation, mlp, parts


@given(
    clip_norm=st.floats(1e-6, 1e3),
    rate=st.floats(1e-3, 1e3),
    kernel=st.sampled_from([LeanLoop, Layerwise, Stacked]),
    seed=st.integers(0, 1000),
)
def test_one_clients_part_of_the_sum_never_exceeds_the_clip_norm(clip_norm, rate, kernel, seed):
    data = federation([4], seed=seed)
    built = kernel(mlp(seed=seed), data.task, LocalTraining(optimizer=SGD(learning_rate=rate)))
    weights = flat.parameter_vector(mlp(seed=seed))
    clipped = built.clipped_sum(weights, parts(data), clip_norm, torch.empty_like(weights))
    assert float(clipped.total.double().norm()) <= clip_norm


@given(
    clip_norm=st.floats(1e-4, 1e2), seed=st.integers(0, 100), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9)
)
def test_a_sum_never_exceeds_the_clip_norm_times_the_clients(clip_norm, seed, sizes):
    data = federation(sizes, seed=seed)
    built = Layerwise(mlp(), data.task, LocalTraining(optimizer=SGD(learning_rate=10.0)))
    weights = flat.parameter_vector(mlp())
    clipped = built.clipped_sum(weights, parts(data), clip_norm, torch.empty_like(weights))
    assert float(clipped.total.double().norm()) <= clip_norm * len(sizes)


def test_a_clip_norm_is_kept_in_ten_million_dimensions():
    from torch import nn

    data = federation([1], shape=(3000,), classes=3000)
    module = nn.Linear(3000, 3000, bias=False)
    weights = flat.parameter_vector(module)
    clipped = LeanLoop(module, data.task, LocalTraining(optimizer=SGD(learning_rate=1e4))).clipped_sum(
        weights, parts(data), 1.0, torch.empty_like(weights)
    )
    norm = float(clipped.total.double().norm())
    assert 1 - 2e-5 < norm <= 1


class Watcher(Audit):
    """Observes every update, inserts nothing."""

    def __init__(self, *views):
        self.views = views
        self.seen = []

    def record(self, release):
        self.seen.append(release)


@pytest.mark.parametrize("cohorts", [Poisson(0.5), FixedSize(4)])
def test_the_noise_on_an_update_has_the_variance_it_should(cohorts):
    """The same training with and without noise differs by the noise alone, in its first round."""
    data, updates = federation([3] * 8), []
    for noise in (1e-12, 0.7):
        watcher = Watcher(View("update"))
        Training(
            model=mlp(),
            data=data,
            rounds=1,
            sampling=cohorts,
            mechanism=Mechanism(clip_norm=0.3, noise_multiplier=noise),
            audits=[watcher],
        ).run()
        updates.append(watcher.seen[0].vector)
    divisor = cohorts.expected(8, 1, 0)
    noise = (updates[1] - updates[0]).astype(np.float64) * divisor / (0.7 * 0.3)
    # false alarm: 1e-4 for the variance, 1e-4 for the shape
    squares = float(np.sum(noise**2))
    assert 5e-5 < stats.chi2.cdf(squares, len(noise)) < 1 - 5e-5
    assert stats.kstest(noise, "norm").pvalue > 1e-4


def test_long_noise_is_drawn_from_several_streams():
    mechanism, dim = Mechanism(clip_norm=2.0, noise_multiplier=1.5), (1 << 22) + 1000
    drawn = mechanism.noise(dim, 7, 2.0, 5, 3, 1)
    first = generator(7, "noise", 3, 1).standard_normal(1 << 21, dtype=np.float32)
    np.testing.assert_array_equal(drawn[: 1 << 21], 3 * first)
    pieces = [drawn[start : start + 1000] for start in (0, 1 << 21, 1 << 22)]
    assert np.abs(np.corrcoef(pieces) - np.eye(3)).max() < 0.15
    assert 5e-5 < stats.chi2.cdf(float(np.sum(np.square(drawn / 3, dtype=np.float64))), dim) < 1 - 5e-5


def test_noise_differs_between_rounds_and_trials_and_seeds():
    mechanism = Mechanism(clip_norm=1.0, noise_multiplier=1.0)
    drawn = [
        mechanism.noise(100, *arguments)
        for arguments in [(0, 1.0, 5, 0), (0, 1.0, 5, 1), (1, 1.0, 5, 0), (0, 1.0, 5, 0, 1)]
    ]
    for i, noise in enumerate(drawn):
        for other in drawn[:i]:
            assert abs(np.corrcoef(noise, other)[0, 1]) < 0.5
    np.testing.assert_array_equal(drawn[0], mechanism.noise(100, 0, 1.0, 5, 0))


@pytest.mark.parametrize("initial", [0.01, 100.0])
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_adaptive_clipping_finds_a_quantile_from_far_above_and_below(initial, quantile, noise):
    """Norms are lognormal around 1: their quantiles are known."""
    mechanism = Mechanism(clip_norm=initial, quantile=quantile, noise_multiplier=noise)
    norm, path = initial, []
    for round in range(800):
        norms = np.random.default_rng(round).lognormal(0.0, 0.5, 200)
        norm = mechanism.next_clip_norm(norm, norms, 200, 0, round)
        path.append(norm)
    true_quantile = math.exp(0.5 * stats.norm.ppf(quantile))
    assert np.exp(np.mean(np.log(path[400:]))) == pytest.approx(true_quantile, rel=0.05)


def test_the_noise_on_counts_is_paid_for_by_the_noise_on_updates():
    mechanism = Mechanism(clip_norm=1.0, quantile=0.5, noise_multiplier=1.0)
    assert mechanism.noise_on_count(100) == 5.0
    assert mechanism.update_noise(100) ** -2 + (2 * 5.0) ** -2 == pytest.approx(1.0)
    assert Mechanism(clip_norm=1.0, noise_multiplier=1.0).update_noise(100) == 1.0
    assert Mechanism(clip_norm=1.0, quantile=0.5).update_noise(100) == 0.0


def test_without_noise_the_update_is_the_mean_of_those_who_came():
    data, watcher = federation([2, 6, 4]), Watcher(View("update"))
    cohorts = Scheduled([[0, 2]])
    Training(model=mlp(), data=data, rounds=1, sampling=cohorts, audits=[watcher]).run()
    kernel = LeanLoop(mlp(), data.task, LocalTraining())
    start = flat.parameter_vector(mlp())
    each = [kernel.clipped_sum(start, [part], math.inf, torch.empty_like(start)).total for part in parts(data)]
    released = torch.from_numpy(watcher.seen[0].vector.copy())
    torch.testing.assert_close(released, (each[0] + each[2]) / 2, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("norm", [0, -1.0, math.nan])
def test_a_clip_norm_must_be_positive(norm):
    with pytest.raises(InputError, match="clip norm must be"):
        Mechanism(clip_norm=norm)


def test_noise_without_clipping_or_below_zero_raises():
    with pytest.raises(InputError, match=r"noise_multiplier is 1.0.*clip norm"):
        Mechanism(noise_multiplier=1.0)
    with pytest.raises(InputError, match="noise_multiplier must be at least 0, got -1"):
        Mechanism(clip_norm=1.0, noise_multiplier=-1)


def test_adaptive_clipping_is_accounted_with_the_multiplier_it_was_given():
    mechanism = Mechanism(clip_norm=1.0, quantile=0.5, noise_multiplier=1.1)
    training = Training(model=mlp(), data=federation([3] * 8), rounds=5, sampling=Poisson(0.5), mechanism=mechanism)
    claim = training.claim(1e-5)
    assert (claim.noise_multiplier, claim.sampling) == (1.1, Poisson(0.5))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_clip_norm_moves_by_the_published_step(share):
    mechanism = Mechanism(clip_norm=1.0, quantile=0.3, rate=0.5)
    norms = np.where(np.arange(10) < 10 * share, 1.5, 2.5)
    following = mechanism.next_clip_norm(2.0, norms, 10, seed=0, round=0)
    assert math.log(following / 2.0) == pytest.approx(-0.5 * (share - 0.3), abs=1e-12)
