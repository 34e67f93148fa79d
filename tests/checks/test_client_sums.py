"""Mechanisms that take a list of clients: replayed with and without one, then their noise is attacked."""

import numpy as np
import pytest

from coalmine import InputError, check_mechanism
from coalmine.checks import Client
from coalmine.claims import Claim
from coalmine.stats import sigma_gaussian
from coalmine.testing import assert_private

DIM, NOISE = 200, 2.0


def clipped(update, norm=1.0):
    return update * min(1.0, norm / max(float(np.linalg.norm(update)), 1e-12))


def noise(rng):
    return rng.normal(0, NOISE, DIM)


def mean(updates, rng):
    return (sum(map(clipped, updates)) + noise(rng)) / len(updates)


def sum_in_place(updates, rng):
    total = updates[0]
    total *= min(1.0, 1.0 / max(float(np.linalg.norm(total)), 1e-12))
    for update in updates[1:]:
        total += clipped(update)
    return total + noise(rng)


def clips_at_twice_the_norm(updates, rng):
    return sum(clipped(update, 2.0) for update in updates) + noise(rng)


def clips_halves(updates, rng):
    return sum(np.concatenate([clipped(u[:100]), clipped(u[100:])]) for u in updates) + noise(rng)


def noise_for_another_number_of_clients(updates, rng):
    return np.mean([clipped(update) for update in updates], axis=0) + noise(rng) / 40


def bare_bias(updates, rng):
    return sum(map(clipped, updates)) + noise(rng) * (np.arange(DIM) < 190)


def bound(aggregate, seed=0):
    """An aggregation with a generator of its own."""
    rng = np.random.default_rng(seed)
    return lambda updates: aggregate(updates, rng)


def every_seventh_round_without_noise():
    rng, rounds = np.random.default_rng(0), iter(range(10**9))
    return lambda updates: sum(map(clipped, updates)) + noise(rng) * ((next(rounds) + 1) % 7 > 0)


def sum_on_a_grid(updates, rng):
    """As with secure aggregation: everything is rounded before it leaves."""
    return np.rint(64 * (sum(map(clipped, updates)) + noise(rng))) / 64


def half_precision(updates, rng):
    return mean(updates, rng).astype(np.float16)


@pytest.mark.parametrize("aggregate", [mean, sum_in_place, sum_on_a_grid, half_precision])
def test_right_aggregations_of_clients_pass(aggregate):
    # False-alarm probability: at most 0.2%, half of it replay's.
    assert assert_private(bound(aggregate), noise_multiplier=NOISE, dim=DIM, clients=10, calls=200).valid


@pytest.mark.parametrize(
    ("aggregate", "check"),
    [
        (clips_at_twice_the_norm, "clipping"),
        (clips_halves, "clipping"),
        (noise_for_another_number_of_clients, "size of the noise"),
        (bare_bias, "noise on every tensor"),
    ],
)
def test_bugs_that_one_client_shows_are_found_by_replay(aggregate, check):
    with pytest.raises(AssertionError, match=check):
        assert_private(bound(aggregate), noise_multiplier=NOISE, dim=DIM, clients=10, calls=200)


def test_bugs_of_the_noise_are_found_by_the_battery():
    with pytest.raises(AssertionError, match="Every 7th call"):
        assert_private(every_seventh_round_without_noise(), noise_multiplier=NOISE, dim=DIM, clients=10, calls=200)


def test_an_average_is_compared_with_the_noise_of_as_many_clients():
    """With 3 clients, noise for 4 is 25% too small: far beyond what an error of one client in the count could hide."""
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError, match=r"0\.7\d|0\.8\d?"):
        assert_private(
            lambda updates: sum(map(clipped, updates)) / len(updates) + 0.75 * noise(rng) / len(updates),
            noise_multiplier=NOISE,
            dim=DIM,
            clients=3,
        )


def test_a_claim_of_epsilon_needs_no_gaussian_noise():
    rng = np.random.default_rng(0)
    # Two numbers of norm 1 together have an ℓ₁ norm of at most √2: ε = √2 for Laplace noise of scale 1.
    assert assert_private(
        lambda updates: sum(map(clipped, updates)) + rng.laplace(0, 1, 2),
        epsilon=2.0, delta=0.0, dim=2, clients=5, clip_norm=1.0, calls=500,
    ).valid  # fmt: skip


def test_a_mechanism_that_adapts_is_refused_with_a_sentence():
    """Its noise follows a clip norm that the battery's clients drive away, which is no bug."""
    rng, state = np.random.default_rng(0), {"clip": 1.0}

    def adaptive(updates):
        norm = state["clip"]
        total = sum(clipped(update, norm) for update in updates)
        below = np.mean([np.linalg.norm(update) <= norm for update in updates])
        state["clip"] *= np.exp(-0.2 * (below - 0.5))
        return (total + norm * noise(rng)) / len(updates)

    with pytest.raises(InputError, match="adaptive clipping"):
        assert_private(adaptive, noise_multiplier=NOISE, dim=DIM, clients=10, calls=200)


def normalized_sum(updates, rng):
    return sum(update / max(float(np.linalg.norm(update)), 1e-12) for update in updates) + noise(rng)


def test_updates_that_are_made_longer_are_not_judged_by_sums():
    # Private, but many short updates count for more than one that is as long as their sum.
    with pytest.raises(InputError, match="short updates are made longer"):
        assert_private(bound(normalized_sum), noise_multiplier=NOISE, dim=DIM, clients=10, calls=200)


def softly_clipped_sum(updates, rng):
    return sum(update / (1 + float(np.linalg.norm(update))) for update in updates) + noise(rng)


def sum_clipped_in_l1(updates, rng):
    return sum(update * min(1.0, 1 / max(float(np.abs(update).sum()), 1e-12)) for update in updates) + noise(rng)


def sum_of_8_bits(updates, rng):
    return sum(clipped(np.round(127 * clipped(update)) / 127) for update in updates) + noise(rng)


@pytest.mark.parametrize("aggregate", [softly_clipped_sum, sum_clipped_in_l1, sum_of_8_bits])
def test_updates_that_are_made_shorter_or_rounded_are_judged(aggregate):
    assert assert_private(bound(aggregate), noise_multiplier=NOISE, dim=DIM, clients=10, calls=200).valid


def test_clients_may_be_given_with_weights_and_several_arrays():
    rng = np.random.default_rng(0)

    def weighted(clients):
        total = sum(client.examples * clipped(np.concatenate(client.update)) for client in clients)
        noisy = (total + noise(rng)) / sum(client.examples for client in clients)
        return [noisy[:150], noisy[150:]]

    clients = [Client([rng.normal(size=150), rng.normal(size=50)], examples=20) for _ in range(5)]
    with pytest.raises(AssertionError, match="examples"):
        assert_private(weighted, noise_multiplier=NOISE, clients=clients, calls=100)


def test_the_audit_has_the_findings_of_both():
    rng, scale, rounds = np.random.default_rng(0), sigma_gaussian(2.0, 1e-5), iter(range(10**9))

    def two_bugs(updates):  # no clipping, and no noise in every seventh round
        return np.sum(updates, axis=0) + 0.5 * scale * rng.standard_normal(DIM) * ((next(rounds) + 1) % 7 > 0)

    result = check_mechanism(
        two_bugs, dim=DIM, canaries=20, claim=Claim(epsilon=2.0, delta=1e-5), clients=5, clip_norm=0.5, calls=200
    )
    assert result.verdict.value == "refuted"
    assert {"clipping", "noise in every call"} <= {finding.check for finding in result.findings}
    assert "sensitivity" in result.checks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": 2.0, "dim": 100_001}, "100,000 coordinates"),
        ({"noise_multiplier": 2.0, "clip_norm": 0.0}, "clip_norm"),
        ({"noise_multiplier": 2.0, "clients": 0}, "clients"),
    ],
)
def test_claims_and_clients_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        assert_private(bound(mean), **{"dim": DIM, "clients": 5, **arguments})


def test_a_release_of_another_size_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="201 numbers"):
        assert_private(
            lambda updates: np.append(mean(updates, rng), rng.normal(0, NOISE)),
            noise_multiplier=NOISE,
            dim=DIM,
            clients=5,
        )


@pytest.mark.parametrize("average", [False, True])
def test_a_claim_of_epsilon_leaves_rounds_with_few_clients_to_their_noise(average):
    """The noise of an average over those present grows with what one client does."""
    rng, sigma = np.random.default_rng(0), sigma_gaussian(4.0, 1e-5)

    def release(updates):
        return (sum(map(clipped, updates)) + rng.normal(0, sigma, 50)) / (len(updates) if average else 1)

    assert assert_private(release, epsilon=4.0, dim=50, clients=10, calls=100).valid


def laplace_sum(scale=1.0, order=1, average=False):
    rng = np.random.default_rng(0)

    def release(updates):
        clipped = [update / max(1.0, np.linalg.norm(update, order)) for update in updates]
        return (sum(clipped) + rng.laplace(0, scale, updates[0].size)) / (len(updates) if average else 1)

    return release


@pytest.mark.parametrize("average", [False, True])
def test_laplace_noise_for_updates_with_an_l1_clip_norm_passes(average):
    # False-alarm probability: at most 0.1%; replay compares movements with the clip norm alone.
    release = laplace_sum(average=average)
    assert assert_private(release, epsilon=1.0, delta=0.0, dim=40, clients=5, calls=300, norm="l1").valid


@pytest.mark.parametrize(("options", "words"), [({"order": 2}, "clipping"), ({"scale": 0.4}, "too small everywhere")])
def test_bugs_of_l1_clipping_and_its_noise_are_found(options, words):
    with pytest.raises(AssertionError, match=words):
        assert_private(laplace_sum(**options), epsilon=1.0, delta=0.0, dim=40, clients=5, calls=300, norm="l1")


def test_an_l1_clip_norm_is_refuted_as_an_l2_one():
    """One coordinate moves the output further than an update in all of them, which is clipped to less."""
    with pytest.raises(AssertionError, match=r"clipping|coordinate"):
        assert_private(laplace_sum(), epsilon=1.0, delta=0.0, dim=40, clients=5, calls=300)


def test_norms_are_checked():
    with pytest.raises(InputError, match="l3"):
        assert_private(laplace_sum(), epsilon=1.0, dim=40, clients=5, norm="l3")
    with pytest.raises(InputError, match="3,000"):
        assert_private(laplace_sum(), epsilon=1.0, dim=4000, clients=5, norm="l1")
