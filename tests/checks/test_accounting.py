"""Claims that are wrong whatever the training did: their ε, their rounds, their δ."""

import numpy as np
import pytest

from coalmine import Claim, OneShot
from coalmine.checks.accounting import accounting_findings
from coalmine.claims import Poisson
from coalmine.report.page import report
from coalmine.results.io import unsaved

TERMS = {"noise_multiplier": 1.0, "sampling": Poisson(0.25), "delta": 1e-5}
ROUNDS, DIM, USERS = 8, 2_000, 200


def audited(claim, rounds=ROUNDS, aborted=(), users=USERS, numbers=False):
    """Audit correct noise of a training that samples a quarter of its clients."""
    rng = np.random.default_rng(0)
    audit = OneShot(DIM, rounds=rounds, canaries=50, view="updates", participation="poisson:0.25")
    for t in range(rounds):
        if t in aborted:
            audit.skip(t)
            audit.observe(t, update=np.zeros(DIM, np.float32), divisor=50)
            continue
        clients = np.flatnonzero(rng.random(users) < 0.25)
        audit.cohort(t, len(clients) if numbers else clients.tolist(), users)
        planted = audit.plant(t, clip_norm=1.0)
        update = (planted.total + rng.normal(0, 1.0, DIM)) / 50
        audit.observe(t, update=update.astype(np.float32), divisor=50)
    return audit.result(claim=claim)


def sentences(result):
    return [(finding.refutes, finding.sentence) for finding in result.findings if finding.check == "accounting"]


def test_a_claimed_epsilon_is_compared_with_what_noise_sampling_and_rounds_give():
    computed = Claim(**TERMS, rounds=ROUNDS).epsilon
    wrong = audited(Claim(**TERMS, epsilon=0.95))
    ((refutes, sentence),) = sentences(wrong)
    assert refutes
    assert f"The claimed ε = 0.95 is below what this mechanism gives: {computed:.3g} at δ = 1e-05" in sentence
    assert "Look at the sampling rate" in sentence
    assert wrong.refuted
    # The noise is tested as if the ε had been computed, and nothing is wrong with it.
    assert (wrong.claim.epsilon, wrong.claim_test.refuted) == (0.95, False)
    assert (f"the lower bound ε ≥ {wrong.bound.epsilon:.3g} exceeds it" in str(wrong)) == (wrong.bound.epsilon > 0.95)
    assert wrong.claim_test.p_value == audited(Claim(**TERMS)).claim_test.p_value
    assert "noise on every tensor" in wrong.checks


@pytest.mark.parametrize("factor", [0.995, 1.0, 1.3])
def test_accountants_that_differ_slightly_or_are_less_tight_are_not_accused(factor):
    computed = Claim(**TERMS, rounds=ROUNDS).epsilon
    rdp = Claim(**TERMS, rounds=ROUNDS, accountant="rdp").epsilon
    for epsilon in (factor * computed, rdp):
        assert list(accounting_findings(Claim(**TERMS, rounds=ROUNDS, epsilon=epsilon))) == []
    assert list(accounting_findings(Claim(**TERMS, rounds=ROUNDS, epsilon=0.98 * computed))) != []


def test_no_epsilon_follows_without_noise():
    claim = Claim(**TERMS | {"noise_multiplier": 0.0}, rounds=ROUNDS, epsilon=3.0)
    (finding,) = accounting_findings(claim)
    assert finding.refutes
    assert "∞" in finding.sentence


def test_an_epsilon_below_that_of_renyi_accounting_alone_is_only_warned_of():
    claim = Claim(noise_multiplier=1.0, sampling="fixed:10/100", rounds=10, delta=1e-5, epsilon=1.0)
    assert [finding.refutes for finding in accounting_findings(claim)] == [False]


def test_a_claim_for_other_rounds_is_named():
    too_few, too_many = audited(Claim(**TERMS, rounds=3)), audited(Claim(**TERMS, rounds=100))
    assert sentences(too_few) == [(True, "The claim is for 3 rounds, but the training had 8")]
    assert sentences(too_many) == [(False, "The claim is for 100 rounds, but the training had 8")]
    assert too_few.refuted
    assert not too_many.refuted
    # Both are tested with the rounds that there were.
    assert too_few.tested.rounds == too_many.tested.rounds == 8
    assert not too_few.about_claim


def test_aborted_rounds_may_be_claimed_or_not():
    for rounds in (None, 7, 8):
        assert sentences(audited(Claim(**TERMS, rounds=rounds), aborted=(2,))) == []
    assert sentences(audited(Claim(**TERMS, rounds=6), aborted=(2,))) != []


@pytest.mark.parametrize("numbers", [False, True])
def test_nobody_takes_part_more_often_than_claimed_even_if_only_numbers_are_known(numbers):
    result = audited(Claim(noise_multiplier=1.0, sampling="at-most:1", delta=1e-5), rounds=12, numbers=numbers)
    assert [finding.check for finding in result.bugs] == ["participation"]


def test_a_delta_above_one_over_the_users_is_warned_of():
    expected = "The claimed δ = 0.01 is larger than 1/200"
    result = audited(Claim(**TERMS | {"delta": 0.01}))
    ((refutes, sentence),) = sentences(result)
    assert (refutes, sentence.partition(":")[0]) == (False, expected)
    assert sentences(audited(Claim(**TERMS))) == []
    # Those who know the users only as a fact are told by the report.
    alone = OneShot(DIM, rounds=1, canaries=20, view="updates", participation="every-round")
    planted = alone.plant(0, clip_norm=1.0)
    noise = np.random.default_rng(0).normal(0, 1.0, DIM)
    alone.observe(0, update=(planted.total + noise).astype(np.float32), divisor=1)
    result = alone.result(claim=Claim(noise_multiplier=1.0, delta=0.01))
    assert expected in report(unsaved([result], "mine", {"users": "200 nurses"}))
    assert expected not in report(unsaved([result], "mine", {"users": 50}))


def test_an_epsilon_without_noise_says_nothing_about_canaries_that_take_part_otherwise():
    rng = np.random.default_rng(0)
    audit = OneShot(DIM, rounds=ROUNDS, canaries=50, view="updates", participation="every-round")
    for t in range(ROUNDS):
        planted = audit.plant(t, clip_norm=1.0)
        update = planted.total + rng.normal(0, 1.0, DIM)
        audit.observe(t, update=update.astype(np.float32), divisor=1)
    result = audit.result(claim=Claim(epsilon=3.0, sampling="poisson:0.05", delta=1e-5))
    assert result.bound.epsilon > result.claim.epsilon
    assert (result.verdict.value, result.about_claim) == ("too weak", False)
    assert "canaries in all 8 rounds are promised nothing" in str(result)
