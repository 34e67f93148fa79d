"""Accounting against closed forms: Gaussian compositions, Rényi conversions, merged rounds. Nothing here is slow."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy import stats

from coalmine.claims import Claim, EveryRound, Poisson, compose_rounds, noise_for, parse_sampling, round_epsilon
from coalmine.claims.accountants import check_accountant, deltas_of, extent_of, new_accountant, pld_step, sampled_losses
from coalmine.claims.claim import _grouped, _local_curve, _rounds_curve, noise_from_round_epsilon
from coalmine.claims.sampling import AtMost, Epochs, FixedSize
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP


def gaussian_delta(epsilon, mu):
    """δ(ε) of the Gaussian mechanism (Balle & Wang, 2018)."""
    above, below = stats.norm.logcdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
    return math.exp(above) - math.exp(epsilon + below)


def mironov_epsilon(mu, delta):
    """The least ε over the Rényi orders a, whose divergence is a·μ²/2 (Mironov, 2017)."""
    orders = np.array(dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, dtype=float)
    return np.min(orders * mu**2 / 2 - math.log(delta) / (orders - 1))


@pytest.mark.parametrize("accountant", ["pld", "exact", "opacus-prv"])
@pytest.mark.parametrize(
    ("sampling", "schedule", "mu_squared"),
    [
        (EveryRound(), [(2.0, 3), (4.0, 5)], 3 / 4 + 5 / 16),
        (AtMost(4), [(4.0, 9), (2.0, 3)], 3 / 4 + 1 / 16),
        (Epochs(3), [(3.0, 6), (2.0, 4)], 1 / 9 + 1 / 9 + 1 / 4),
        (Poisson(1.0), [(2.0, 2)], 2 / 4),
    ],
)
def test_gaussian_rounds_compose_to_one(sampling, schedule, mu_squared, accountant):
    curve = _rounds_curve(tuple(schedule), sampling, accountant)
    assert isinstance(curve, GaussianDP)
    assert curve.mu == pytest.approx(math.sqrt(mu_squared), rel=1e-12)


def test_training_curves_at_the_extremes():
    assert _rounds_curve(((1.0, 0),), EveryRound(), "pld") == ApproximateDP(0.0, 0.0)
    assert _rounds_curve(((math.inf, 5),), EveryRound(), "rdp") == ApproximateDP(0.0, 0.0)
    assert _rounds_curve(((1.0, 5),), Poisson(0.0), "pld") == ApproximateDP(0.0, 0.0)
    assert _rounds_curve(((0.0, 5),), EveryRound(), "pld") is None
    # An accountant that is not ours, or not for this sampling, stands for the tightest that is.
    assert _rounds_curve(((1.0, 5),), EveryRound(), "other") == _rounds_curve(((1.0, 5),), EveryRound(), "pld")
    by_rdp = _rounds_curve(((1.0, 5),), FixedSize(1, 10), "rdp")
    assert np.array_equal(_rounds_curve(((1.0, 5),), FixedSize(1, 10), "pld").deltas, by_rdp.deltas)
    assert _rounds_curve(((1.0, 5),), None, "pld") is _rounds_curve((), EveryRound(), "pld") is None


@pytest.mark.parametrize(("accountant", "improved"), [("rdp", True), ("rdp-mironov", False), ("opacus-rdp", True)])
def test_curves_of_renyi_accountants_are_conversions_of_the_closed_form(accountant, improved):
    # Rényi divergence of order a between normal distributions at distance μ: a·μ²/2.
    curve = _rounds_curve(((2.0, 3),), EveryRound(), accountant)
    orders = np.array(dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, dtype=float)
    for epsilon, delta in zip(curve.epsilons[::40], curve.deltas[::40], strict=True):
        log_deltas = (orders - 1) * (orders * 0.375 - epsilon)
        if improved:
            log_deltas = log_deltas + (orders - 1) * np.log(1 - 1 / orders) - np.log(orders)
        assert delta == pytest.approx(min(1.0, math.exp(log_deltas.min())), rel=1e-9)
        # Both conversions are upper limits on the exact δ.
        assert delta >= gaussian_delta(epsilon, math.sqrt(0.75)) * (1 - 1e-9)


@pytest.mark.parametrize(("epsilon", "reports"), [(0.5, 2), (0.5, 3), (1.3, 5)])
def test_local_curves_are_those_of_the_sum_of_reports(epsilon, reports):
    curve = _local_curve(epsilon, reports)
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    # All numbers of reports that speak for a member, with their probabilities with and without it.
    p = stats.binom.pmf(np.arange(reports + 1), reports, q)
    for total in (0.0, 0.4, epsilon, 2.1 * epsilon, (reports - 1) * epsilon):
        exact = np.maximum(p - np.exp(total) * p[::-1], 0).sum()
        # The curve promises TPR ≤ e^ε·FPR + δ for every ε, with equality at one of its corners.
        fpr = np.concatenate([[0.0], np.cumsum(p)])
        assert np.max(curve.tpr(fpr) - np.exp(total) * fpr) == pytest.approx(exact, abs=1e-9)


def test_local_curves_at_the_extremes():
    assert _local_curve(0.7, 1) == ApproximateDP(0.7, 0.0)
    assert _local_curve(0.0, 5) == ApproximateDP(0.0, 0.0)
    assert _local_curve(700.0, 2) == ApproximateDP(1400.0, 0.0)


# Rounds


@pytest.mark.parametrize(("noise", "delta"), [(1.0, 0.01), (0.6, 1e-5), (3.0, 1e-4)])
def test_a_round_has_the_epsilon_of_the_gaussian_mechanism_and_back(noise, delta):
    epsilon = round_epsilon(noise_multiplier=noise, delta=delta)
    assert gaussian_delta(epsilon, 1 / noise) == pytest.approx(delta, rel=1e-6)
    assert noise_from_round_epsilon(epsilon, delta) == pytest.approx(noise, rel=1e-6)


@pytest.mark.parametrize("sensitivity", [1.0, 2.0])
def test_composed_rounds_add_their_inverse_variances(sensitivity):
    # ε̂ of two kinds of rounds, composed without sampling: one Gaussian mechanism.
    noises = [noise_from_round_epsilon(epsilon, 1e-3) / sensitivity for epsilon in (0.5, 1.0)]
    mu = math.sqrt(4 / noises[0] ** 2 + 2 / noises[1] ** 2)
    rounds = [(0.5, 3), (1.0, 2), (0.5, 1)]
    composed = compose_rounds(
        rounds,
        sampling=EveryRound(),
        delta=1e-5,
        round_delta=1e-3,
        sensitivity=sensitivity,
        accountant="rdp-mironov",
    )
    assert composed == pytest.approx(mironov_epsilon(mu, 1e-5), rel=1e-9)


def test_few_noise_levels_are_kept_and_many_are_merged_by_their_inverse_variances():
    few = [(2.0, 3), (1.0, 0), (2.0, 4), (math.inf, 2)]
    assert sorted(_grouped(few)) == [(1.0, 0), (2.0, 7), (math.inf, 2)]
    many = [(1.0 + i / 10, i + 1) for i in range(40)]
    merged = _grouped([*many, (9.0, 0), (math.inf, 3), (0.0, 2)])
    assert sorted(merged)[0] == (0.0, 2)
    assert sorted(merged)[-1] == (math.inf, 3)
    groups = sorted(merged)[1:-1]
    # 40 levels in groups of 3, the last with one.
    assert len(groups) == 14
    assert sum(count for _, count in groups) == sum(count for _, count in many)
    for i, (noise, count) in enumerate(groups):
        group = many[3 * i : 3 * i + 3]
        assert count == sum(c for _, c in group)
        assert count / noise**2 == pytest.approx(sum(c / n**2 for n, c in group), rel=1e-12)
    assert len(_grouped([(1.0 + i, 1) for i in range(16)])) == 16
    assert len(_grouped([(1.0 + i, 1) for i in range(17)])) == 9


# Sampling


def test_rates_are_probabilities_of_taking_part():
    assert EveryRound().rate == 1
    assert FixedSize(3, 12).rate == 0.25
    assert Poisson(0.3).rate == 0.3
    assert (AtMost(3).rate, Epochs(3).rate) == (None, None)


@pytest.mark.parametrize("text", ["poisson:0.25", "fixed:3/12", "epochs:4", "at-most:5", "every-round"])
def test_sampling_schemes_are_read_as_they_are_written(text):
    assert str(parse_sampling(text)) == text
    assert parse_sampling("poisson:3/12") == Poisson(0.25)


@pytest.mark.parametrize(
    ("sampling", "rounds", "kind", "count"),
    [
        (Poisson(0.3), 7, dp.PoissonSampledDpEvent, 7),
        (Poisson(1.0), 7, dp.GaussianDpEvent, 7),
        (FixedSize(2, 8), 7, dp.SampledWithoutReplacementDpEvent, 7),
        (Epochs(3), 7, dp.GaussianDpEvent, 3),
        (AtMost(5), 7, dp.GaussianDpEvent, 5),
        (AtMost(9), 7, dp.GaussianDpEvent, 7),
        (EveryRound(), 7, dp.GaussianDpEvent, 7),
    ],
)
def test_events_are_those_of_the_most_exposed_client(sampling, rounds, kind, count):
    event, neighbors = sampling.event([(1.5, rounds)])
    (part,) = event.events
    assert isinstance(part.event, kind)
    assert part.count == count
    replaced = isinstance(sampling, FixedSize)
    relation = dp.NeighboringRelation
    assert neighbors == (relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE)


def test_the_default_accountant_is_the_tightest_that_applies():
    assert check_accountant(None, FixedSize(1, 10)) == "rdp"
    assert check_accountant(None, Poisson(0.1)) == "pld"
    assert check_accountant("rdp-mironov", Poisson(0.1)) == "rdp-mironov"


# Accountants


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp-mironov"])
def test_claims_of_gaussian_rounds_are_at_least_the_exact_epsilon(accountant):
    mu = math.sqrt(6) / 3
    claim = Claim(noise_multiplier=3.0, sampling=EveryRound(), rounds=6, delta=1e-5, accountant=accountant)
    slack = gaussian_delta(claim.epsilon, mu) / 1e-5
    assert slack <= 1 + 1e-6
    if accountant == "pld":
        assert slack == pytest.approx(1, rel=0.01)
    if accountant == "rdp-mironov":
        assert claim.epsilon == pytest.approx(mironov_epsilon(mu, 1e-5), rel=1e-9)


@pytest.mark.parametrize("accountant", ["rdp", "rdp-mironov"])
@pytest.mark.parametrize("epsilon", [0.7, 6.0])
def test_the_least_noise_just_reaches_epsilon(accountant, epsilon):
    noise = noise_for(epsilon=epsilon, sampling=EveryRound(), rounds=4, delta=1e-5, accountant=accountant)

    def claimed(noise):
        return Claim(noise_multiplier=noise, sampling=EveryRound(), rounds=4, delta=1e-5, accountant=accountant).epsilon

    assert claimed(noise) <= epsilon < claimed(noise * 0.9995)


def test_no_noise_is_needed_for_no_rounds_or_an_infinite_epsilon():
    assert noise_for(epsilon=1.0, sampling=EveryRound(), rounds=0, delta=1e-5) == 0
    assert noise_for(epsilon=math.inf, sampling=EveryRound(), rounds=3, delta=1e-5) == 0


@pytest.mark.parametrize("noise", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("rounds", [1, 500])
def test_grids_of_privacy_losses_reach_far_enough_and_are_fine_enough(noise, rounds):
    event, neighbors = EveryRound().event([(noise, rounds)])
    extent, mu = extent_of(event, neighbors), math.sqrt(rounds) / noise
    assert gaussian_delta(extent, mu) <= 1e-15
    assert extent <= extent_of(event, neighbors, quickly=True) <= 2 * extent
    step = pld_step(event, extent, 1)
    assert extent / 2e6 <= step <= max(math.sqrt(2e-3 * extent / rounds), extent / 1e6)
    assert math.log2(step / 1e-4) == round(math.log2(step / 1e-4))
    assert step <= pld_step(event, extent, 8) <= 16 * step


@pytest.mark.parametrize("share", [0.5, 0.8, 2.0])
def test_a_share_of_local_noise_divides_epsilon(share):
    """Two reports of ε each compose to four outcomes: privacy loss 2ε, 0 twice, and −2ε."""
    claim, epsilon = Claim(local_epsilon=1.0, rounds=2, delta=1e-3), 1.0 / share
    right = 1 / (1 + np.exp(-epsilon))
    members = np.array([right**2, 2 * right * (1 - right), (1 - right) ** 2])
    others = members[::-1]
    fpr, tpr = np.append(0.0, np.cumsum(others)), np.append(0.0, np.cumsum(members))
    grid = np.linspace(0, 1, 11)
    np.testing.assert_allclose(claim.curve(share).tpr(grid), np.interp(grid, fpr, tpr), atol=2e-3)


@pytest.mark.parametrize("noise", [0.3, 1.0, 8.0, 100.0])
def test_the_extent_is_the_least_epsilon_of_all_orders(noise):
    event, neighbors = Poisson(0.2).event([(noise, 30)])
    orders = [1.02, 1.05, *dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS]
    every = dp.rdp.RdpAccountant(orders, neighbors).compose(event)
    assert extent_of(event, neighbors) == every.get_epsilon(1e-15)


@pytest.mark.parametrize("accountant", ["rdp", "rdp-mironov"])
@pytest.mark.parametrize(("q", "noise", "rounds"), [(0.01, 0.5, 1), (0.2, 1.0, 100), (0.9, 20.0, 3), (1e-7, 30.0, 1)])
def test_the_best_order_is_that_of_all_orders(accountant, q, noise, rounds):
    sampling = Poisson(q)
    event, neighbors = sampling.event([(noise, rounds)])
    every = new_accountant(accountant, neighbors).compose(event).get_epsilon(1e-5)
    terms = {"noise_multiplier": noise, "rounds": rounds, "sampling": sampling, "delta": 1e-5}
    assert Claim(**terms, accountant=accountant).epsilon == every


@pytest.mark.parametrize("q", [0.001, 0.3, 0.97])
def test_sampled_losses_are_those_of_dp_accounting(q):
    event, neighbors = Poisson(q).event([(0.7, 3), (2.0, 20)])
    step = pld_step(event, extent_of(event, neighbors), 16)
    expected = dp.pld.PLDAccountant(neighbors, value_discretization_interval=step).compose(event).get_epsilon(1e-5)
    assert sampled_losses(event, step).get_epsilon_for_delta(1e-5) == pytest.approx(expected, rel=1e-8)
    losses, epsilons = sampled_losses(event, step), np.linspace(0, 20, 50)
    assert np.max(deltas_of(losses, epsilons), axis=0) == pytest.approx(
        losses.get_delta_for_epsilon(epsilons), rel=1e-12, abs=1e-18
    )
