"""Where an integration stands at the noise itself, the stated divisor tells what is missing: a few canaries do."""

import numpy as np
import pytest

import coalmine as cm

DIM, ROUNDS, CLIENTS = 4000, 10, 30


def verdict(noise, *, after=1.0, unprocessed=True, seed=0):
    """Return the findings about updates with a share of the claimed noise that are scaled after it."""
    rng = np.random.default_rng([seed, 5])
    audit = cm.OneShot(DIM, rounds=ROUNDS, canaries=20, view="updates", participation="every-round", seed=seed)
    audit.describe(even_noise=unprocessed)
    for t in range(ROUNDS):
        planted = audit.plant(t, clip_norm=1.0)
        divisor = planted.clients + CLIENTS
        update = after * (planted.total + noise(rng)) / divisor
        audit.observe(t, update=update.astype(np.float32), divisor=divisor)
    return audit.result(claim=cm.Claim(noise_multiplier=2.0, delta=1e-5)).bugs


def normal(share):
    return lambda rng: rng.normal(0, share * 2.0, DIM)


def test_noise_is_compared_with_the_stated_divisor():
    [bug] = verdict(normal(0.8))
    assert bug.check == "noise on every tensor"
    assert verdict(normal(0.8), unprocessed=False) == []  # 20 canaries alone cannot tell


def test_what_follows_the_noise_in_an_own_loop_is_no_finding():
    assert verdict(normal(1.0), after=0.5, unprocessed=False) == []


@pytest.mark.parametrize("share", [1.0, 0.95])
def test_noise_that_is_right_but_for_a_few_dropouts_is_no_finding(share):
    """20 audits, each with a false alarm with a probability of at most 0.1%."""
    assert [verdict(normal(share), seed=seed) for seed in range(10)] == [[]] * 10
