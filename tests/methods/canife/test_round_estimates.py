"""ε of one round: which estimates are valid, how trials are weighted, and the ceiling of rates."""

import math
from dataclasses import replace

import numpy as np
import pytest

from coalmine.methods.canife.round_estimates import Period, rate_ceiling, round_estimate


def test_only_the_one_run_bound_is_valid_when_scores_share_rounds():
    draw = np.random.default_rng(0)
    present = draw.random((60, 1)) < 0.5
    period = Period(0, 5, present + draw.normal(0, 0.3, present.shape), present, np.full(present.shape, 0.3))
    alone = round_estimate(period, independent=True, delta=1e-5, confidence=0.95)
    shared = round_estimate(period, independent=False, delta=1e-5, confidence=0.95)
    assert [e.method for e in alone.estimates if e.valid] == ["simultaneous", "one-run"]
    assert [e.method for e in shared.estimates if e.valid] == ["one-run"]
    for method in ("simultaneous", "gdp"):
        assert "does not hold here" in next(e.assumes for e in shared.estimates if e.method == method)
        assert "does not hold here" not in next(e.assumes for e in alone.estimates if e.method == method)


def test_noisy_trials_do_not_drown_informative_ones():
    draw = np.random.default_rng(0)
    present, sigma = draw.random((200, 1)) < 0.5, np.where(np.arange(200) < 60, 0.3, 20.0)[:, None]
    period = Period(0, 5, present + sigma * draw.standard_normal((200, 1)), present, sigma)
    weighed = round_estimate(period, independent=False, delta=1e-5, confidence=0.95)
    raw = round_estimate(replace(period, sigma=np.ones((200, 1))), independent=False, delta=1e-5, confidence=0.95)
    assert weighed.bound.epsilon > 1 > 3 * raw.bound.epsilon
    assert period.faded
    same = replace(period, sigma=np.full((200, 1), 0.3))
    assert np.allclose(same.comparable, same.scores)
    certain = replace(period, sigma=np.where(np.arange(200) < 60, 0.0, 1.0)[:, None])
    assert np.array_equal(certain.comparable, certain.scores)
    assert not same.faded


def test_rates_cannot_exceed_the_papers_ceiling():
    assert rate_ceiling(50, 50, 0.01) == pytest.approx(3.902, abs=1e-3)
    assert rate_ceiling(50, 50, 0.0) == pytest.approx(math.log(50))
