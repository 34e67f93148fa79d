"""Anytime-valid bounds: the wealth is a supermartingale under every true claim, and false alarms stay below α, ever."""

import copy
import itertools
import math

import numpy as np
import pytest
from scipy import optimize, special

from coalmine.errors import InputError
from coalmine.stats.scores import Estimate
from coalmine.stats.sequential import (
    EProcess,
    SequentialBound,
    _kelly,
    _log_gains,
    _past_events,
)

ALPHA = 0.05


def process(epsilon, delta=0.0):
    return EProcess(np.array([epsilon], dtype=float), delta)


def hockey_stick(p, q, epsilon):
    """The smallest δ for which two distributions are (ε, δ)-close in both directions."""
    return max(np.maximum(p - np.exp(epsilon) * q, 0).sum(), np.maximum(q - np.exp(epsilon) * p, 0).sum())


def mean_factor(gambler, p, q):
    """E[factor of the next trial | past] for scores 0, 1, … with probabilities p with the canary and q without."""
    mean = 0.0
    for coin, probabilities in ((True, p), (False, q)):
        for score, probability in enumerate(probabilities):
            after = copy.deepcopy(gambler)
            after.update(coin, float(score))
            mean += probability / 2 * math.exp(after.log_wealth[0] - gambler.log_wealth[0])
    return mean


def randomized_response(epsilon):
    right = special.expit(epsilon)
    return np.array([1 - right, right]), np.array([right, 1 - right])


def leaky_response(epsilon, delta):
    """(ε, δ)-DP with equality: reveals the coin with probability δ, else randomized response."""
    p, q = randomized_response(epsilon)
    return np.array([0, *(1 - delta) * p, delta]), np.array([delta, *(1 - delta) * q, 0])


MECHANISMS = {
    "nothing": (np.array([0.5, 0.5]), np.array([0.5, 0.5]), 0.0, 0.0),
    "randomized response": (*randomized_response(1.0), 1.0, 0.0),
    "one-sided": (np.array([0.1, 0.4, 0.5]), np.array([0.3, 0.4, 0.3]), math.log(3), 0.0),
    "leaky response": (*leaky_response(0.5, 0.1), 0.5, 0.1),
    "delta only": (*leaky_response(0.0, 0.05), 0.0, 0.05),
}


def draw(p, q, trials, rng):
    coins = rng.random(trials) < 0.5
    cumulated = np.where(coins[:, None], np.cumsum(p), np.cumsum(q))
    return coins, (rng.random(trials)[:, None] > cumulated[:, :-1]).sum(axis=1).astype(float)


@pytest.mark.parametrize("trials", [3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_expected_wealth_after_all_possible_trials_is_at_most_one(name, trials):
    # Full enumeration: every sequence of coins and scores, with its probability.
    p, q, epsilon, delta = MECHANISMS[name]
    assert hockey_stick(p, q, epsilon) == pytest.approx(delta)
    outcomes = [(coin, float(s), side[s] / 2) for coin, side in ((True, p), (False, q)) for s in range(len(p))]
    outcomes = [outcome for outcome in outcomes if outcome[2] > 0]
    total, wealths = 0.0, set()
    for sequence in itertools.product(outcomes, repeat=trials):
        gambler = process(epsilon, delta)
        gambler.update(np.array([o[0] for o in sequence]), np.array([o[1] for o in sequence]))
        total += math.prod(o[2] for o in sequence) * math.exp(gambler.log_wealth[0])
        wealths.add(round(gambler.log_wealth[0], 9))
    assert total <= 1 + 1e-12
    assert len(wealths) > 3  # bets were made
    if name == "nothing":
        assert total == pytest.approx(1, abs=1e-12)  # all bets are fair


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("past", [3, 17, 200])
def test_no_bet_is_favorable_under_a_true_claim_whatever_the_past(name, past):
    p, q, epsilon, delta = MECHANISMS[name]
    rng = np.random.default_rng(past)
    for truth in (MECHANISMS[name][:2], leaky_response(4.0, 0.2)):  # the past may have been anything
        gambler = process(epsilon, delta)
        gambler.update(*draw(*truth, past, rng))
        assert mean_factor(gambler, p, q) <= 1 + 1e-12


def test_no_bet_is_favorable_for_any_distributions_and_their_exact_delta():
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(60):
        p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
        epsilon = rng.uniform(0, 1.5)
        gambler = process(epsilon, hockey_stick(p, q, epsilon))
        gambler.update(*draw(np.array([0.01, 0.09, 0.2, 0.7]), np.array([0.7, 0.2, 0.09, 0.01]), 50, rng))
        mean = mean_factor(gambler, p, q)
        assert mean <= 1 + 1e-12
        largest = max(largest, mean)
    assert largest > 0.97  # and the bets are not far from fair in the worst case


def test_a_smaller_delta_than_the_true_one_makes_bets_favorable():
    p, q = leaky_response(0.5, 0.1)
    gambler = process(0.5, 0.02)
    gambler.update(*draw(p, q, 200, np.random.default_rng(0)))
    assert mean_factor(gambler, p, q) > 1.001


def test_bets_are_the_ones_that_are_proved_fair():
    # Independent of the implementation: 1 + λ(1{in, A} − s·1{out, A} − d/2) + μ(1{out, C} − s·1{in, C} − d/2).
    s, d, stake_a, stake_c = 3.0, 0.2, 0.4, 0.3
    lam, mu = stake_a / (s + d / 2), stake_c / (s + d / 2)
    odds, fee = np.array([(1 - d / 2) / (s + d / 2)]), np.array([d / 2 / (s + d / 2)])
    gambler = process(math.log(s), d)
    assert (gambler._odds, gambler._fee) == (pytest.approx(odds), pytest.approx(fee))
    gambler._thresholds = np.array([[1.0], [-0.5]])  # A: ≥ 1, C: ≤ ½
    gambler._gains = _log_gains(np.array([[stake_a], [stake_c]]), odds, fee)
    for coin, score in itertools.product((True, False), (0.0, 0.5, 0.7, 1.0, 2.0)):
        in_a, in_c = score >= 1, score <= 0.5
        gain = lam * (in_a * (1 if coin else -s) - d / 2) + mu * (in_c * (-s if coin else 1) - d / 2)
        factor = math.exp(gambler._log_factors(np.array([[coin]]), np.array([[score]]))[0, 0])
        assert factor == pytest.approx(1 + gain)


@pytest.mark.parametrize("stakes", [(0.9, 0.9), (0.9, 0.5), (0.5, 0.9)])
@pytest.mark.parametrize("fee", [0.3, 0.4, 0.9])
def test_no_trial_can_cost_all_of_the_wealth(stakes, fee):
    gains = _log_gains(np.array(stakes)[:, None], np.array([0.2]), np.array([fee]))
    # A wrong bet at each end, with the other bet's fee.
    worst = max(stakes[0] + stakes[1] * fee, stakes[1] + stakes[0] * fee)
    assert np.exp(gains).min() == pytest.approx(1 - min(worst, 0.999))


@pytest.mark.parametrize("seed", [2, 3, 39, 43])
def test_events_are_the_ones_that_would_have_grown_fastest(seed):
    # Two claims; every event and stake is tried.
    rng = np.random.default_rng(seed)
    coins = rng.random(60) < 0.5
    scores = np.round(rng.normal(1.5 * coins, 1.0), 1)
    epsilons, d = np.array([0.0, 1.0]), 0.05
    gambler = EProcess(epsilons, d)
    gambler._past = [(coins, scores)]
    gambler._refit()
    thresholds, right, wrong = _past_events(coins, scores)
    stakes = np.linspace(0, 0.999, 2000)
    for claim, tail in itertools.product(range(2), range(2)):
        best = (-math.inf, 0.0, 0.0)
        s = math.exp(epsilons[claim])
        odds, fee = (1 - d / 2) / (s + d / 2), d / 2 / (s + d / 2)
        for event in range(thresholds.shape[1]):
            # Eight imagined trials with the event, in which the odds of a right bet are e^½ times the slope.
            imagined = 8 * math.exp(0.5) * s / (1 + math.exp(0.5) * s)
            r, w = right[tail, event] + imagined, wrong[tail, event] + 8 - imagined
            without = coins.size + 8 - r - w
            growth = r * np.log1p(odds * stakes) + w * np.log1p(-stakes) + without * np.log1p(-fee * stakes)
            at = int(np.argmax(growth))
            best = max(best, (growth[at], thresholds[tail, event], stakes[at]))
        _, threshold, stake = best
        assert gambler._thresholds[tail, claim] == threshold
        # Outcomes without the other tail's event differ by this tail's gain and by its fee.
        factors = np.exp(gambler._gains[:, claim])
        neither, event_alone = (4, 5) if tail == 0 else (0, 2)
        gain = factors[event_alone] - factors[neither]
        assert gain == pytest.approx(0.85 * stake * (odds + fee), abs=1e-3)


def test_stakes_are_the_ones_that_would_have_grown_fastest():
    rng = np.random.default_rng(0)
    for _ in range(50):
        right, wrong, without = rng.integers(0, 50, 3) + 0.5
        odds, fee = rng.uniform(0.05, 1), rng.uniform(0, 0.3)

        def loss(x, r=right, w=wrong, n=without, o=odds, f=fee):
            return -(r * np.log1p(o * x) + w * np.log1p(-x) + n * np.log1p(-f * x))

        best = optimize.minimize_scalar(loss, bounds=(0, 0.999), method="bounded", options={"xatol": 1e-10}).x
        assert _kelly(right, wrong, without, odds, fee) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_past_events_count_ties_together(seed):
    rng = np.random.default_rng(seed)
    coins, scores = rng.random(40) < 0.5, rng.integers(0, 6, 40).astype(float)
    thresholds, right, wrong = _past_events(coins, scores)
    for i in range(thresholds.shape[1]):
        top, bottom = scores >= thresholds[0, i], -scores >= thresholds[1, i]
        assert (right[0, i], wrong[0, i]) == (np.sum(top & coins), np.sum(top & ~coins))
        assert (right[1, i], wrong[1, i]) == (np.sum(bottom & ~coins), np.sum(bottom & coins))
    assert thresholds[0, -1] == 0
    assert thresholds[1, -1] == -5  # both tails reach as far as all scores


def test_bets_depend_on_the_past_only():
    rng = np.random.default_rng(0)
    coins, scores = draw(*randomized_response(2.0), 200, rng)
    bound, other = SequentialBound(), SequentialBound()
    bound.update(coins, scores)
    other.update(coins[:-1], scores[:-1])
    before = other.log_wealth
    other.update(bool(coins[-1]), float(scores[-1]))
    assert np.array_equal(bound.log_wealth, other.log_wealth)
    assert not np.array_equal(before, other.log_wealth)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_trials_may_come_one_by_one_or_in_batches(chunk):
    rng = np.random.default_rng(1)
    coins = rng.random(150) < 0.5
    scores = rng.normal(coins, 1.0)
    whole, parts = SequentialBound(delta=1e-5, claim=1.0), SequentialBound(delta=1e-5, claim=1.0)
    whole.update(coins, scores)
    for start in range(0, 150, chunk):
        parts.update(coins[start : start + chunk], scores[start : start + chunk])
    assert np.array_equal(whole.log_peak, parts.log_peak)
    assert parts.trials == 150
    assert whole.estimate() == parts.estimate()


def binary(epsilon, trials, rng):
    return draw(*randomized_response(epsilon), trials, rng)


def laplace(epsilon, trials, rng):
    coins = rng.random(trials) < 0.5
    return coins, coins + rng.laplace(0, 1 / epsilon, trials) if epsilon else rng.laplace(size=trials)


def gaussian(mu, trials, rng):
    coins = rng.random(trials) < 0.5
    return coins, rng.normal(mu * coins, 1.0)


def moody(epsilon, trials, rng):
    """Randomized response that leaks all it may while the last score was high, and nothing otherwise."""
    coins = rng.random(trials) < 0.5
    right, scores = rng.random(trials), np.empty(trials)
    for t in range(trials):
        leaks = t > 0 and scores[t - 1] > 0
        scores[t] = coins[t] == (right[t] < (special.expit(epsilon) if leaks else 0.5))
    return coins, scores


def false_alarms(new, sample, audits, trials, seed):
    """Share of audits in which a true claim is refuted at some time: what stopping at the worst moment would give."""
    rng = np.random.default_rng(seed)
    alarms = 0
    for _ in range(audits):
        gambler = new()
        gambler.update(*sample(trials, rng))
        alarms += bool(gambler.log_peak[0] >= math.log(1 / ALPHA))
    return alarms / audits


@pytest.mark.parametrize(
    ("new", "sample"),
    [
        (lambda: process(1.0), lambda n, rng: binary(1.0, n, rng)),
        pytest.param(lambda: process(1.0), lambda n, rng: laplace(1.0, n, rng), marks=pytest.mark.slow),
        pytest.param(lambda: process(0.0), lambda n, rng: laplace(0.0, n, rng), marks=pytest.mark.slow),
        (lambda: process(0.0), lambda n, rng: (rng.random(n) < 0.5, np.zeros(n))),
        # δ of the mechanism at ε = 1
        pytest.param(lambda: process(1.0, 0.1269), lambda n, rng: gaussian(1.0, n, rng), marks=pytest.mark.slow),
        (lambda: process(0.5, 0.1), lambda n, rng: draw(*leaky_response(0.5, 0.1), n, rng)),
        (lambda: process(1.0), lambda n, rng: moody(1.0, n, rng)),
    ],
    ids=["randomized response", "laplace", "null", "constant", "gaussian", "leaky", "depends on the past"],
)
def test_a_true_claim_is_refuted_ever_in_at_most_5_percent(new, sample):
    # At most 5% of 250 audits; more than 5% + 3 standard errors has a probability of at most 0.3% per mechanism.
    assert false_alarms(new, sample, 250, 400, seed=2) <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / 250)


@pytest.mark.parametrize(
    "epsilon", [pytest.param(0.0, marks=pytest.mark.slow), 0.62, pytest.param(2.0, marks=pytest.mark.slow)]
)
def test_the_bound_exceeds_the_true_epsilon_ever_in_at_most_5_percent(epsilon):
    # The bound never falls, so its last value is the one at the worst moment. Fails by chance with probability 0.3%.
    rng = np.random.default_rng(4)
    above = 0
    for _ in range(150):
        bound = SequentialBound()
        bound.update(*binary(epsilon, 100, rng))
        above += bound.lower(1 - ALPHA) > epsilon
    assert above / 150 <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / 150)


def test_canaries_that_share_a_trial_raise_no_false_alarms_even_if_their_scores_agree():
    # Every canary has its own coin, but one noise term decides all scores. Fails by chance with probability 0.3%.
    def sample(trials, rng):
        coins = rng.random((trials, 5)) < 0.5
        return coins, coins + np.repeat(rng.laplace(0, 1, (trials, 1)), 5, axis=1)

    assert false_alarms(lambda: process(1.0), sample, 200, 100, 5) <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / 200)


def test_randomized_response_is_refuted_almost_as_fast_as_by_a_test_with_a_fixed_number_of_trials():
    def power(trials):  # of the exact binomial test that ε ≤ 1, if ε = 2
        right = np.arange(1, trials + 1)
        rejected = right[special.betainc(right, trials - right + 1, special.expit(1.0)) <= ALPHA]
        return special.betainc(rejected[0], trials - rejected[0] + 1, special.expit(2.0)) if rejected.size else 0.0

    needed = next(n for n in range(10, 200) if all(power(m) >= 0.8 for m in range(n, n + 5)))
    rng = np.random.default_rng(0)
    used = []
    for _ in range(100):
        gambler = process(1.0)
        coins, scores = binary(2.0, 600, rng)
        while gambler.log_peak[0] < math.log(1 / ALPHA) and gambler.trials < 600:
            gambler.update(bool(coins[gambler.trials]), float(scores[gambler.trials]))
        used.append(gambler.trials)
    assert needed == 51  # with the event known in advance, and a power of 80%
    assert max(used) < 600  # always refuted in the end
    assert 51 < np.mean(used) < 80  # 45 would be needed if event and best bet were known: ln 20 / KL divergence


def test_bounds_approach_the_true_epsilon():
    rng = np.random.default_rng(0)
    for epsilon in (0.5, 2.0, 4.0):
        bound = SequentialBound()
        bound.update(*binary(epsilon, 10_000, rng))
        assert 0.65 * epsilon <= bound.lower() <= epsilon
    bound = SequentialBound(delta=1e-5)
    bound.update(*gaussian(1.0, 10_000, rng))
    assert 1.5 < bound.lower() < 4.377


def test_estimate_refutation_and_p_value_agree():
    bound = SequentialBound(claim=1.0)
    assert (bound.lower(), bound.p_value, bound.refuted(), bound.trials) == (0.0, 1.0, False, 0)
    bound.update(*binary(2.0, 100, np.random.default_rng(0)))
    estimate = bound.estimate(0.9)
    assert isinstance(estimate, Estimate)
    assert (estimate.method, estimate.valid, estimate.delta, estimate.confidence) == ("anytime", True, 0.0, 0.9)
    assert estimate.epsilon == bound.lower(0.9)
    lowers = [estimate.lower, *(lower for _, lower in estimate.stricter)]
    assert lowers == sorted(lowers, reverse=True)
    for level, lower in estimate.stricter:
        assert (lower > 1.0) == bound.refuted(level) == (bound.p_value <= 1 - level)


def test_a_claim_beyond_the_grid_and_no_claim_are_never_refuted():
    coins = np.arange(400) % 2 == 0
    for claim in (1e4, math.inf):
        bound = SequentialBound(claim=claim)
        bound.update(coins, coins.astype(float))
        assert not bound.refuted()
        assert bound.p_value == 1.0
        assert 3 < bound.lower() < 6
    assert SequentialBound(claim=20.0).epsilons[-1] == np.nextafter(20.0, np.inf)


@pytest.mark.parametrize(
    ("coins", "scores", "message"),
    [
        ([1, 0], [0.1, 0.2], "booleans"),
        ([True], [0.1, 0.2], "shape"),
        ([True, False], [0.1, math.nan], "finite"),
        (np.ones((1, 1, 1), dtype=bool), np.ones((1, 1, 1)), "dimensions"),
    ],
)
def test_wrong_trials_are_refused(coins, scores, message):
    with pytest.raises(InputError, match=message):
        SequentialBound().update(coins, scores)


@pytest.mark.parametrize("wrong", [{"delta": 1.0}, {"delta": -0.1}, {"claim": -1.0}])
def test_wrong_claims_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SequentialBound(**wrong)
