"""Group privacy in one run: curves of several copies, exact probabilities at small numbers, and coverage."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import special

from coalmine.errors import InputError
from coalmine.stats import Guesses, Scores, estimate
from coalmine.stats.one_run import guess_families, one_run, one_run_curve_p_value, one_run_p_value
from coalmine.stats.simultaneous_bound import significance_levels
from coalmine.stats.tradeoff import ApproximateDP, GroupCurve, group_parameters

RATES = np.concatenate([[0.0], np.geomspace(1e-9, 0.5, 40), 1 - np.geomspace(1e-9, 0.5, 40), [1.0]])


def rejected(families, claim, alpha=0.05):
    levels = significance_levels(families, alpha)
    return any(np.any(tests.margins(claim, level) <= 0) for tests, level in zip(families, levels, strict=True))


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01, 0.2])
@pytest.mark.parametrize("copies", [1, 2, 3, 24])
def test_the_curve_of_copies_is_at_most_that_of_their_pair(epsilon, delta, copies):
    curve = GroupCurve(ApproximateDP(epsilon, delta), copies)
    pair = ApproximateDP(*group_parameters(epsilon, delta, copies))
    assert np.all(curve.tpr(RATES) <= pair.tpr(RATES) + 1e-12)


def right_guess_distribution(canaries, guesses, copies, epsilon):
    """Return P(right = v) if each of a phrase's users answers by randomized response, by enumeration.

    A user says whether they hold the phrase, truthfully with probability e^ε/(1+e^ε), so ε is that of one user. The
    adversary guesses about the phrases with the most and the fewest answers "yes"; ties are decided against the guess.
    """
    q = float(special.expit(epsilon))
    phrase = [
        (inserted, yes, 0.5 * math.comb(copies, yes) * (q if inserted else 1 - q) ** yes
         * (1 - q if inserted else q) ** (copies - yes))
        for inserted in (False, True)
        for yes in range(copies + 1)
    ]  # fmt: skip
    law = np.zeros(guesses + 1)
    for state in product(phrase, repeat=canaries):
        top = sorted(state, key=lambda s: (-s[1], s[0]))[: guesses // 2]
        bottom = sorted(state, key=lambda s: (s[1], not s[0]))[: guesses // 2]
        right = sum(s[0] for s in top) + sum(not s[0] for s in bottom)
        law[right] += math.prod(s[2] for s in state)
    return law


@pytest.mark.parametrize(("canaries", "guesses", "copies"), [(4, 2, 2), (4, 4, 2), (3, 2, 3), (4, 2, 3)])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_no_p_value_is_below_the_exact_probability_of_randomized_response_by_every_user(
    canaries, guesses, copies, epsilon
):
    law = right_guess_distribution(canaries, guesses, copies, epsilon)
    assert law.sum() == pytest.approx(1)
    for right in range(1, guesses + 1):
        cells, exact = Guesses(canaries, guesses, right), law[right:].sum()
        assert one_run_p_value(cells, *group_parameters(epsilon, 0.0, copies)) >= exact - 1e-12
        assert one_run_curve_p_value(cells, GroupCurve(ApproximateDP(epsilon, 0.0), copies)) >= exact - 1e-12


def test_one_user_who_answers_as_well_as_allowed_reaches_the_p_value():
    # With one copy and as many guesses as canaries, randomized response is the worst case of pure DP.
    law = right_guess_distribution(1, 1, 1, 1.0)
    assert law.size == 2
    q = special.expit(1.0)
    assert one_run_p_value(Guesses(3, 3, 3), 1.0, 0.0) == pytest.approx(q**3)
    assert one_run_curve_p_value(Guesses(3, 3, 3), GroupCurve(ApproximateDP(1.0, 0.0), 1)) == pytest.approx(
        q**3, rel=0.0051
    )


def audits(copies, epsilon, delta, canaries, count, rng):
    """Yield scores of phrases whose users answer by randomized response, unless all memberships are shown at once."""
    q = special.expit(epsilon)
    for _ in range(count):
        coins = rng.random(canaries) < 0.5
        truthful = rng.binomial(copies, q, canaries)
        scores = np.where(coins, truthful, copies - truthful) + rng.random(canaries) / 2
        if rng.random() < delta:  # the same event for all phrases: (0, δ)-DP for each user, and far from independent
            scores = coins + rng.random(canaries) / 2
        yield Scores(scores[coins], scores[~coins])


@pytest.mark.parametrize(("copies", "epsilon", "delta"), [(2, 0.5, 0.0), (3, 0.3, 0.02), (6, 0.0, 0.0)])
def test_the_bound_for_one_copy_exceeds_the_truth_in_at_most_5_percent_of_audits(copies, epsilon, delta):
    """400 audits: 5% and 3.5 standard errors are 8.8%. The bound exceeds ε if one of both claims is rejected there."""
    rng = np.random.default_rng([9, copies])
    claims = ApproximateDP(*group_parameters(epsilon, delta, copies)), GroupCurve(ApproximateDP(epsilon, delta), copies)
    wrong = [
        any(rejected(guess_families(scores), claim) for claim in claims)
        for scores in audits(copies, epsilon, delta, 60, 400, rng)
    ]
    assert np.mean(wrong) <= 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 400)
    scores = next(audits(copies, epsilon, delta, 60, 1, rng))
    bound = one_run(scores, delta=delta, copies=copies).epsilon
    above = [
        ApproximateDP(*group_parameters(bound + 1e-6, delta, copies)),
        GroupCurve(ApproximateDP(bound + 1e-6, delta), copies),
    ]
    assert not any(rejected(guess_families(scores), claim) for claim in above)


def test_copies_divide_the_bound():
    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(4, 1, 100), rng.normal(0, 1, 100))
    one, six = (one_run(scores, delta=0.0, copies=copies).epsilon for copies in (1, 6))
    assert one / 6 <= six < one / 5  # the curve of six copies allows less than six times ε
    by_name = estimate(scores.members, scores.observed, design="coin-flips", copies=6, delta=0.0)
    assert [e.method for e in by_name] == ["simultaneous", "one-run"]
    assert by_name[1].epsilon == six
    with pytest.raises(InputError, match="copies"):
        one_run(scores, copies=0)
