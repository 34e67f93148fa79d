"""The simultaneous bound: its two theorems, its coverage, its invariances."""

import math
from itertools import pairwise

import jax_privacy.auditing as peer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from coalmine.errors import InputError
from coalmine.stats import CosineNull, NormalNull, Scores, ceiling, epsilon_gdp, simultaneous
from coalmine.stats.exposure import ranks, scores_from_ranks
from coalmine.stats.one_run import one_run_fdp
from coalmine.stats.rank_tests import (
    fixed_numbers_factor,
    guessing_scores,
    member_ranks,
    random_choice,
    tail_guesses,
)
from coalmine.stats.simultaneous_bound import JointBoundary, gdp, p_value
from coalmine.stats.tradeoff import ApproximateDP, BetaPair, GaussianDP
from mechanisms import gaussian, laplace, randomized_response


def refutes(scores, epsilon, *, delta=0.0, confidence=0.95, design="fixed"):
    """Whether the scores refute (ε, δ)-DP."""
    claim = ApproximateDP(epsilon, delta)
    return p_value(scores, claim, design=design, confidence=confidence) <= 1 - confidence


CURVES = [ApproximateDP(0.7, 0.05), ApproximateDP(3.0, 1e-3), ApproximateDP(0.0, 0.0), GaussianDP(1.2)]


def below(curve, *parameters):
    return float(BetaPair(*(np.array([float(p)]) for p in parameters)).probability_below(curve)[0])


def golden(n, mu):
    rng = np.random.default_rng([20230208, n, round(10 * mu)])
    return Scores(rng.normal(mu, 1, n), rng.normal(0, 1, n))


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("v", "m", "a", "n"), [(3, 10, 1, 12), (10, 10, 0, 10), (1, 4, 3, 5), (40, 60, 9, 30)])
def test_theorem_1_is_exact_for_the_least_favorable_scores(curve, v, m, a, n):
    # 200,000 audits; the estimate misses the exact value by more than 4.5 standard errors once in 10⁵.
    rng = np.random.default_rng([v, m, a, n])
    grid = np.linspace(0, 1, 200_001)
    tail1 = rng.random((200_000, m))
    # A member's tail probability under the null is where the curve reaches its tail probability under P₁.
    reached = np.interp(np.sort(tail1, axis=1)[:, v - 1], curve.tpr(grid), grid)
    above = np.count_nonzero(rng.random((200_000, n)) < reached[:, None], axis=1)
    # Members that the δ part gives away score above every non-member.
    above = np.where(np.sort(tail1, axis=1)[:, v - 1] <= curve.tpr(np.zeros(1)), 0, above)
    exact = below(curve, v, m - v + 1, a + 1, n - a)
    error = math.sqrt(max(exact * (1 - exact), 1e-6) / 200_000)
    assert np.mean(above <= a) == pytest.approx(exact, abs=4.5 * error + 1e-5)


@pytest.mark.parametrize("shape", [(3, 8, 2, 9), (500, 501, 20, 981), (5e5, 5e5, 3, 48), (2, 49, 1000, 999_001)])
def test_probabilities_below_a_curve_agree_with_adaptive_quadrature(shape):
    a1, b1, a0, b0 = shape
    curve = ApproximateDP(math.log(a1 / (a1 + b1) / (a0 / (a0 + b0))) if a1 / b1 > a0 / b0 else 0.3, 1e-4)
    members, nonmembers = stats.beta(a1, b1), stats.beta(a0, b0)
    points = [nonmembers.ppf(p) for p in (1e-12, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-12)]
    x = np.unique(np.concatenate([np.linspace(lo, hi, 40_001) for lo, hi in pairwise(points)]))
    y = nonmembers.pdf(x) * members.cdf(curve.tpr(x))
    expected = np.trapezoid(y, x)
    assert below(curve, a1, b1, a0, b0) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("parameters", "curve", "exact"),
    [
        # mpmath.quad of V's density times G's distribution function at the curve, 20 digits or more, cut densely where
        # the latter steps.
        ((10**6, 1, 50, 1), ApproximateDP(1.0, 0.0), 1.3589585e-4),
        ((10**6, 1, 50, 1), ApproximateDP(0.5, 1e-5), 5.8226646e-4),
        ((10**6, 1, 500, 1), ApproximateDP(0.0, 3e-5), 0.015380607),
        ((500, 501, 2, 999), ApproximateDP(0.0, 0.5), 0.56247071),
        ((6, 45, 2, 999_999), ApproximateDP(2.0, 0.1), 0.38401364),
    ],
)
def test_steps_far_narrower_than_the_integration_variable_are_not_missed(parameters, curve, exact):
    assert below(curve, *parameters) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.0, 0.05), (1.0, 0.0), (1.0, 0.02), (3.0, 0.01)])
@pytest.mark.parametrize("n", [8, 20, 64])
def test_theorem_2_holds_for_the_least_favorable_scores(epsilon, delta, n):
    # 20,000 audits; a true bound looks violated beyond 4.5 standard errors once in 10⁵ comparisons.
    rng = np.random.default_rng([n, round(10 * epsilon)])
    each, member = n // 2, np.repeat([True, False], n)
    # All audits at once: membership is revealed with probability δ, randomized response otherwise.
    truthful = rng.random((20_000, 2 * n)) < 1 / (1 + math.exp(-epsilon))
    outcome = np.where(truthful == member, 1.0, 0.0)
    outcome = np.where(rng.random(outcome.shape) < delta, np.where(member, 2.0, -1.0), outcome)
    labels = member[np.argsort(outcome + rng.random(outcome.shape) / 2, axis=1)]
    right = labels[:, -each:].sum(axis=1) + each - labels[:, :each].sum(axis=1)
    for w in range(each, 2 * each + 1):
        test = JointBoundary(np.zeros(1), np.array([2 * each]), np.array([w]), 2 * n, "fixed")
        bound = float(test.p_values(ApproximateDP(epsilon, delta))[0])
        error = math.sqrt(max(bound * (1 - bound), 1e-9) / right.size)
        assert np.mean(right >= w) <= bound + 4.5 * error + 1e-4


def test_theorem_2_is_tight_for_one_member_and_one_nonmember():
    few = 4 * stats.binom.cdf(0, 2, 0.5) / stats.binom.pmf(1, 2, 0.5)
    factor = fixed_numbers_factor(2, np.array([2.0]), np.zeros(1), 0.5, most=2.0)
    assert float(factor[0]) - few == pytest.approx(2)


def test_with_few_guesses_fixed_numbers_cost_next_to_nothing():
    factor = fixed_numbers_factor(2000, np.array([125.0]), np.zeros(1), 1 / (1 + math.exp(-2)), most=125.0)
    assert 1 < float(factor[0]) < 1.02


def allowed(audits):
    """Violations of a nominal 5% that chance explains: three binomial standard errors more."""
    return audits * 0.05 + 3 * math.sqrt(audits * 0.05 * 0.95)


COVERAGE = [
    *[(gaussian(mu), delta) for mu, delta in ((0.0, 1e-5), (0.0, 0.0), (1.0, 0.1), (1.0, 1e-5))],
    *[(laplace(epsilon), 0.0) for epsilon in (0.5, 1.5)],
    *[(randomized_response(eps, delta), delta) for eps, delta in ((0.5, 0.0), (2.0, 0.0), (1.0, 0.05))],
    (randomized_response(1.0, 0.0, ties=True), 0.0),
]


@pytest.mark.parametrize("case", range(len(COVERAGE)))
@pytest.mark.parametrize(
    ("m", "n"),
    [(50, 50), pytest.param(300, 300, marks=pytest.mark.slow), pytest.param(30, 200, marks=pytest.mark.slow)],
)
def test_the_bound_exceeds_the_truth_in_at_most_5_percent_of_audits(case, m, n):
    # 1,000 audits, 3 standard errors: a bound that fails in exactly 5% is called wrong once in 700 cases.
    (draw, truth), delta = COVERAGE[case]
    rng = np.random.default_rng([case, m, n])
    epsilon = truth(delta) + 1e-9
    assert sum(refutes(draw(rng, m, n), epsilon, delta=delta) for _ in range(1000)) <= allowed(1000)


@pytest.mark.parametrize("design", ["fixed", "coin-flips"])
def test_coin_flip_designs_are_covered_too(design):
    draw, truth = randomized_response(1.0, 0.0)
    rng = np.random.default_rng(3)
    members = rng.binomial(100, 0.5, 400)
    wrong = sum(refutes(draw(rng, m, 100 - m), truth(0.0) + 1e-9, design=design) for m in members)
    assert wrong <= allowed(400)


def test_random_choices_are_not_the_same_ranks_in_every_audit():
    rng = np.random.default_rng(0)
    references = np.arange(40.0)
    picks = [random_choice(np.sort(rng.normal(20, 9, 50)), references).permutation(50)[0] for _ in range(20)]
    assert len(set(picks)) > 5


@pytest.mark.parametrize(("m", "n"), [(50, 246), (16, 144)])
def test_canaries_ranked_among_the_same_references_are_covered(m, n):
    # The references' scores are −1 … −n in every audit: a choice that looked at them alone would never change.
    rng = np.random.default_rng(12)

    def null():
        return Scores(*scores_from_ranks(ranks(rng.normal(size=m), rng.normal(size=n), ties="worst"), n))

    assert sum(refutes(null(), 1e-9) for _ in range(300)) <= allowed(300)


def test_the_exact_null_bound_exceeds_the_truth_in_at_most_5_percent_of_audits():
    # Members' tail probabilities under the null follow the (ε, δ) curve exactly: the least favorable case.
    curve = ApproximateDP(1.0, 0.01)
    grid = np.linspace(0, 1, 100_001)
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(1000):
        tails = np.interp(rng.random(60), curve.tpr(grid), grid)
        scores = Scores(-stats.norm.ppf(np.clip(tails, 1e-300, 1)), null=NormalNull())
        wrong += refutes(scores, 1.0 + 1e-9, delta=0.01)
    assert wrong <= allowed(1000)


def test_the_gdp_bound_exceeds_the_truth_in_at_most_5_percent_of_gaussian_audits():
    rng = np.random.default_rng(6)
    truth = float(epsilon_gdp(1.0, 1e-5))
    wrong = sum(gdp(Scores(rng.normal(1, 1, 80), rng.normal(0, 1, 80)), delta=1e-5).lower > truth for _ in range(100))
    assert wrong <= allowed(100)


@pytest.mark.parametrize("mu", [pytest.param(0.5, marks=pytest.mark.slow), 1.7])
def test_a_true_gaussian_claim_has_small_p_values_as_rarely_as_they_say(mu):
    # 500 audits, 3 standard errors: a test at exactly its level is called wrong once in 700 cases.
    rng = np.random.default_rng([14, round(10 * mu)])
    p_values = []
    for members in rng.binomial(120, 0.5, 500):
        scores = Scores(rng.normal(mu, 1, members), rng.normal(0, 1, 120 - members))
        p_values.append(p_value(scores, GaussianDP(mu), design="coin-flips"))
    for level in (0.01, 0.05, 0.2):
        assert np.sum(np.array(p_values) <= level) <= 500 * level + 3 * math.sqrt(500 * level * (1 - level))


@pytest.mark.parametrize("design", ["fixed", "coin-flips"])
def test_the_p_value_is_the_significance_at_which_a_claim_is_refuted(design):
    for seed in range(10):
        rng = np.random.default_rng([15, seed])
        scores = Scores(rng.normal(1.5, 1, 60), rng.normal(0, 1, 60))
        for epsilon in (0.5, 1.0, 1.5):
            p = p_value(scores, ApproximateDP(epsilon, 1e-3), design=design, confidence=0.9)
            assert refutes(scores, epsilon, delta=1e-3, confidence=0.9, design=design) == (p <= 1 - 0.9)


def test_guesses_in_both_tails_refute_curves_that_thresholds_do_not():
    # 0.8 of the claimed noise. Both powers are known to 0.05 (one standard error of their difference is smaller).
    rng = np.random.default_rng(16)
    both, thresholds = 0, 0
    for _ in range(100):
        scores = Scores(rng.normal(1.666 / 0.8, 1, 100), rng.normal(0, 1, 100))
        both += p_value(scores, GaussianDP(1.666), design="coin-flips") <= 0.05
        thresholds += p_value(scores, GaussianDP(1.666)) <= 0.05
    assert both > thresholds + 3


def test_canaries_that_are_exposed_together_break_tests_for_independent_scores_but_not_one_run():
    # With probability 15% the mechanism answers a randomized response with ε = 3 about every canary, else it says
    # nothing. Each canary's curve lies below that of a Gaussian mechanism with this μ:
    q = 1 / (1 + math.exp(-3))
    mu = float(stats.norm.ppf(0.15 * q) - stats.norm.ppf(0.15 * (1 - q)))
    fpr = np.linspace(1e-6, 1 - 1e-6, 10_001)
    one = np.minimum(np.exp(3) * fpr, 0.15 * (2 * q - 1) + fpr)
    curve = np.minimum(one, 1 - np.exp(-3) * (1 - fpr))
    assert np.all(curve <= GaussianDP(mu).tpr(fpr) + 1e-12)
    rng = np.random.default_rng(17)
    refuted, exceeded = 0, 0
    for _ in range(200):
        member = rng.random(200) < 0.5
        answer = np.where(rng.random(200) < q, member, ~member) if rng.random() < 0.15 else np.zeros(200)
        shown = answer + rng.random(200) / 2
        scores = Scores(shown[member], shown[~member])
        refuted += p_value(scores, GaussianDP(mu), design="coin-flips") <= 0.05
        exceeded += one_run_fdp(scores, delta=1e-5).lower > float(epsilon_gdp(mu, 1e-5))
    # 15% of the audits are refuted: below 9% once in a hundred times. One-run bounds allow for such dependence.
    assert refuted > 0.09 * 200
    assert exceeded <= allowed(200)


def test_the_bound_accounts_for_copies():
    # Each member was inserted three times into a mechanism that is 0.5-DP for one copy: 1.5-DP for the three.
    draw, _ = randomized_response(1.5, 0.0)
    rng = np.random.default_rng(7)
    wrong = sum(simultaneous(draw(rng, 100, 100), copies=3).lower > 0.5 for _ in range(100))
    assert wrong <= allowed(100)


def test_at_delta_0_copies_divide_the_bound():
    scores = golden(1000, 2.0)
    assert simultaneous(scores, copies=4).lower == pytest.approx(simultaneous(scores).lower / 4, rel=1e-8)


@pytest.mark.parametrize("n", [100, 1000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_mean_bound_beats_every_valid_method_of_jax_privacy(n, mu):
    rng = np.random.default_rng([n, round(10 * mu)])
    ours, theirs = [], []
    for seed in range(10 if n < 10_000 else 4):
        members, nonmembers = rng.normal(mu, 1, n), rng.normal(0, 1, n)
        ours.append(simultaneous(Scores(members, nonmembers), delta=1e-5).lower)
        auditor = peer.CanaryScoreAuditor(members, nonmembers)
        theirs.append(
            [
                auditor.epsilon_clopper_pearson(0.05, 1e-5),
                auditor.epsilon_clopper_pearson(0.05, 1e-5, threshold_strategy=peer.Split(seed=seed)),
                auditor.epsilon_one_run(0.05, 1e-5, threshold_strategy=peer.Split(seed=seed)),
            ]
        )
    assert np.mean(ours) >= np.max(np.mean(theirs, axis=0))


def test_on_the_example_scores_the_bound_is_above_the_peers_and_the_readme_says_by_how_much():
    rng = np.random.default_rng([20230208, 1000, 10])
    members, nonmembers = rng.normal(1, 1, 1000), rng.normal(0, 1, 1000)
    auditor = peer.CanaryScoreAuditor(members, nonmembers)
    splits = [auditor.epsilon_one_run(0.05, 1e-5, threshold_strategy=peer.Split(seed=seed)) for seed in range(200)]
    assert np.mean(splits) == pytest.approx(1.50, abs=0.005)
    assert auditor.epsilon_clopper_pearson(0.05, 1e-5) == pytest.approx(1.243, abs=5e-4)
    assert simultaneous(Scores(members, nonmembers), delta=1e-5).lower > 1.8


def test_refutes_agrees_with_the_bound():
    scores = golden(200, 1.0)
    bound = simultaneous(scores, delta=1e-5).lower
    assert refutes(scores, bound * (1 - 1e-6), delta=1e-5)
    assert not refutes(scores, bound * (1 + 1e-6), delta=1e-5)


def test_scores_that_separate_perfectly_reach_the_ceiling():
    apart = Scores(np.arange(50, 100.0), np.arange(50.0))
    assert simultaneous(apart).lower == pytest.approx(ceiling(50, 50))
    assert ceiling(50, 50) < ceiling(500, 500) < ceiling(5000, 5000)


def test_a_known_null_shows_epsilons_that_no_sample_could():
    # A cosine of 0.5 in 10⁶ dimensions has a null probability of e^−143843.
    scores = Scores(np.full(1000, 0.5), null=CosineNull(10**6))
    bound = simultaneous(scores, delta=1e-6)
    assert (bound.method, bound.valid) == ("exact-null", True)
    assert 143_000 < bound.lower < 144_000


ties = hnp.arrays(np.int64, st.integers(1, 60), elements=st.integers(-3, 3))


@given(ties, ties, st.floats(0, 0.3))
def test_the_bound_depends_on_the_order_of_the_scores_alone(members, nonmembers, delta):
    bound = simultaneous(Scores(members, nonmembers), delta=delta).lower
    rng = np.random.default_rng(0)
    shuffled = Scores(rng.permutation(members), rng.permutation(nonmembers))
    assert simultaneous(shuffled, delta=delta).lower == bound
    stretched = Scores(np.exp(members) * 7, np.exp(nonmembers) * 7)
    assert simultaneous(stretched, delta=delta).lower == bound


@given(ties, ties)
def test_equal_scores_on_both_sides_show_nothing(members, nonmembers):
    constant = Scores(np.zeros_like(members), np.zeros_like(nonmembers))
    assert simultaneous(constant).lower == 0


@given(st.integers(1, 80), st.floats(-2, 6), st.integers(0, 99))
def test_the_bound_grows_with_confidence_given_up_and_falls_with_delta(n, mu, seed):
    rng = np.random.default_rng(seed)
    scores = Scores(rng.normal(mu, 1, n), rng.normal(0, 1, n))
    bound = simultaneous(scores, delta=1e-3).lower
    assert simultaneous(scores, delta=1e-2).lower <= bound
    assert simultaneous(scores, delta=1e-3, confidence=0.99).lower <= bound


@given(ties, ties)
def test_guesses_in_the_tails_are_those_of_sorting(members, nonmembers):
    members, nonmembers = np.sort(members.astype(float)), np.sort(nonmembers.astype(float))
    # Ties go against the guess: non-members come first among equals at the top, members at the bottom.
    high = sorted([(-s, 1) for s in members] + [(-s, 0) for s in nonmembers])
    low = sorted([(s, 0) for s in members] + [(s, 1) for s in nonmembers])
    for thresholds, guesses, right in (tail_guesses(members, nonmembers, members.size + nonmembers.size, 2),):
        for t, g, w in zip(thresholds, guesses, right, strict=True):
            top, bottom = high[: g // 2], low[: g // 2]
            assert w == sum(member for _, member in top) + sum(out for _, out in bottom)
            assert t == -top[-1][0]
    for _, g, w in zip(
        *tail_guesses(members, nonmembers, members.size + nonmembers.size, 2, top_only=True), strict=True
    ):
        assert w == sum(member for _, member in high[:g])


@pytest.mark.parametrize("n", [1, 2, 7, 8, 100, 12345])
def test_member_ranks_are_ranks(n):
    grid = member_ranks(n)
    assert grid[0] >= 1
    assert grid[-1] == n
    assert grid.size <= 2 * math.log2(n) + 1


def test_subsets_are_sorted_repeatable_and_free_of_the_scores_scale():
    rng = np.random.default_rng(0)
    members, nonmembers = np.sort(rng.normal(size=100)), np.sort(rng.normal(size=30))
    kept, others, share = guessing_scores(Scores(members, nonmembers), "fixed")
    assert share == 60 / 130
    assert kept.size == others.size == 30
    assert np.all(np.diff(kept) > 0)
    assert np.isin(kept, members).all()
    scaled = guessing_scores(Scores(np.exp(members), np.exp(nonmembers)), "fixed")
    np.testing.assert_array_equal(scaled[0], np.exp(kept))
    np.testing.assert_array_equal(guessing_scores(Scores(nonmembers, members), "fixed")[0], nonmembers)


def test_an_unknown_design_raises():
    with pytest.raises(InputError, match="coin-flips"):
        simultaneous(golden(100, 1.0), design="coins")
