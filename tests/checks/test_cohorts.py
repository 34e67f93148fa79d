"""Checks of participation: bets that are fair under the claim, and win against every other way to choose clients."""

import math

import numpy as np
import pytest

from coalmine import OneShot
from coalmine.checks.training import TrainingChecks, cohort_findings
from coalmine.claims import Claim, EveryRound, Poisson
from coalmine.claims.sampling import AtMost, Epochs, FixedSize
from coalmine.errors import InputError
from coalmine.simulation import Mechanism, Training, models
from coalmine.simulation.data import load
from coalmine.stats.exact_tests import rate_p_value, repeated_size_gain

POPULATION, SIZE, LEVEL = 120, 30, 2e-4


def poisson(rng, t):
    return np.flatnonzero(rng.random(POPULATION) < SIZE / POPULATION)


def fixed(rng, t):
    return rng.choice(POPULATION, SIZE, replace=False)


def findings(choose, sampling, *, rounds=12, seed=0, level=LEVEL):
    rng, checks = np.random.default_rng(seed), TrainingChecks(1, rounds, 0, None)
    for t in range(rounds):
        checks.cohort(t, choose(rng, t).tolist(), POPULATION)
    return cohort_findings(checks.cohorts, sampling, level=level)


POISSON, FIXED = Poisson(SIZE / POPULATION), FixedSize(SIZE, POPULATION)


def shuffled(rng, t):
    order = np.random.default_rng(t // 4).permutation(POPULATION)
    return order[t % 4 * SIZE : (t % 4 + 1) * SIZE]


def favorites(rng, t):
    weights = np.where(np.arange(POPULATION) < 40, 15.0, 1.0)
    return rng.choice(POPULATION, SIZE, replace=False, p=weights / weights.sum())


@pytest.mark.parametrize(
    ("choose", "sampling", "words"),
    [
        (lambda rng, t: np.arange(SIZE), FIXED, "The same 30 of 120 clients took part in all 12 rounds"),
        (lambda rng, t: np.arange(SIZE), POISSON, "The same 30 of 120 clients took part in all 12 rounds"),
        (lambda rng, t: np.arange(SIZE) + t % 4 * SIZE, FIXED, "less often"),
        (lambda rng, t: np.arange(SIZE) + t % 2 * SIZE, POISSON, "more often"),
        (shuffled, FIXED, "less often"),
        (shuffled, POISSON, "varies too little"),
        (fixed, POISSON, "varies too little for poisson:0.25 (always 30)"),
        (favorites, FIXED, "more often"),
        (lambda rng, t: rng.choice(POPULATION, 45, replace=False), POISSON, "45 clients took part per round"),
        (lambda rng, t: rng.choice(POPULATION, 31, replace=False), FIXED, "31 of 120 clients took part in round 0"),
        (fixed, AtMost(2), "but the claim is for at-most:2"),
    ],
)
def test_wrong_participation_is_named(choose, sampling, words):
    named = [finding for finding in findings(choose, sampling, rounds=12) if words in finding.sentence]
    assert [finding.refutes for finding in named] == [words != "less often"] * max(1, len(named))


def comes_and_goes(rng, t):
    """Two populations of 60 that alternate every 5 rounds, of which each client comes with probability 0.25."""
    return t // 5 % 2 * 60 + np.flatnonzero(rng.random(60) < 0.25)


def drops_out(rng, t):
    """A fifth of the clients that were drawn."""
    return np.flatnonzero(rng.random(POPULATION) < 0.2)


def seldom(rng, t):
    return np.flatnonzero(rng.random(POPULATION) < 0.01)


@pytest.mark.parametrize(("choose", "available"), [(comes_and_goes, 60), (drops_out, POPULATION), (seldom, POPULATION)])
def test_clients_that_leave_or_come_seldom_never_refute_a_rate(choose, available):
    """40 trainings each, at level 2e-4: false-alarm probability at most 0.8% each."""
    for seed in range(40):
        rng, checks = np.random.default_rng(seed), TrainingChecks(1, 50, 0, None)
        for t in range(50):
            checks.cohort(t, choose(rng, t), available)
        reported = cohort_findings(checks.cohorts, POISSON, level=2e-4)
        assert not any(finding.refutes for finding in reported)
        if choose is not comes_and_goes:
            assert reported == []


def test_more_rounds_than_epochs_are_a_fact():
    [finding] = findings(fixed, Epochs(3))
    assert finding.p_value == 0
    assert findings(shuffled, Epochs(3)) == []


def test_it_does_not_matter_where_epochs_end():
    # Ten rounds in epochs of four, four and two: nobody takes part more than three times.
    orders = [np.random.default_rng(epoch).permutation(POPULATION) for epoch in range(3)]
    parts = [part for order, rounds in zip(orders, (4, 4, 2), strict=True) for part in np.array_split(order, rounds)]
    assert findings(lambda rng, t: parts[t], Epochs(3), rounds=10) == []


# 400 trainings at level 2e-4: false-alarm probability at most 0.08 in all, far less in fact, since bets lose a lot.
@pytest.mark.parametrize(("choose", "sampling"), [(poisson, POISSON), (fixed, FIXED)])
def test_correct_participation_has_no_findings(choose, sampling):
    for seed in range(200):
        assert findings(choose, sampling, rounds=8, seed=seed) == []


@pytest.mark.parametrize("numbers", [False, True])
def test_rounds_that_were_repeated_or_released_nothing_make_nobody_take_part_more_often(numbers):
    # Nobody takes part more than twice in 8 rounds: the clients of an aborted round are asked again in the next.
    audit = OneShot(100, rounds=9, canaries=4, view="updates", participation="every-round")
    checks = audit._checks
    for t in range(9):
        part = np.arange(SIZE) + (t if t < 3 else t - 1) % 4 * SIZE
        for _ in range(3):  # the first two times fail
            audit.cohort(t, len(part) if numbers else part.tolist(), POPULATION)
        if t == 3:
            audit.skip(t)
    assert checks.cohorts.sizes.tolist() == [SIZE] * 9
    assert cohort_findings(checks.cohorts, AtMost(2), level=LEVEL) == []
    assert cohort_findings(checks.cohorts, AtMost(1), level=LEVEL) != []


def aborted_if_few(rng, t, checks):
    """An aborted round draws clients like any other, also if it was aborted for their number."""
    if checks.cohorts.sizes[-1] < 28:
        checks.skip(t)


def repeated(rng, t, checks):
    """Some rounds fail and are repeated, with the same clients."""
    while rng.random() < 0.3:
        ids = np.flatnonzero(checks.cohorts.last == t)
        checks.cohort(t, ids.tolist(), POPULATION)


@pytest.mark.parametrize("afterwards", [aborted_if_few, repeated])
@pytest.mark.parametrize(("choose", "sampling"), [(poisson, POISSON), (fixed, FIXED)])
def test_aborted_and_repeated_rounds_refute_no_sampling(choose, sampling, afterwards):
    """40 trainings each at level 0.05, of which bets alarm in less than 0.2% (2,000 simulated)."""
    for seed in range(40):
        rng, checks = np.random.default_rng(seed), TrainingChecks(1, 20, 0, None)
        for t in range(20):
            checks.cohort(t, choose(rng, t).tolist(), POPULATION)
            afterwards(rng, t, checks)
        assert cohort_findings(checks.cohorts, sampling, level=0.05) == []


def test_always_the_same_clients_are_only_a_warning_where_the_claim_does_not_rely_on_sampling():
    [finding] = findings(lambda rng, t: np.arange(SIZE), EveryRound())
    assert not finding.refutes


@pytest.mark.parametrize("rate", [0.05, 0.25, 0.7])
def test_bets_on_rates_are_fair_by_enumeration(rate):
    """The expected capital is 1 for binomial hits, and at most 1 for hypergeometric ones (Hoeffding, 1963)."""
    trials = 12
    gains = np.array([1 / rate_p_value(hits, trials, rate) for hits in range(trials + 1)])
    # p-values are capped at 1, so compare the probability of each p-value instead of the capital.
    chances = np.array([math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(trials + 1)])
    for p_value in np.unique(1 / gains):
        assert chances[1 / gains <= p_value].sum() <= p_value * (1 + 1e-9)
    population, drawn = 40, round(40 * rate)
    ways = [math.comb(trials, k) * math.comb(population - trials, drawn - k) for k in range(min(trials, drawn) + 1)]
    shares = np.array(ways) / math.comb(population, drawn)
    exact = np.array([1 / rate_p_value(k, trials, drawn / population) for k in range(len(shares))])
    for p_value in np.unique(1 / exact):
        assert shares[1 / exact <= p_value].sum() <= p_value * (1 + 1e-9)


def test_the_bet_on_equal_sizes_is_fair_by_enumeration():
    rate, population, before = 0.3, 25, 8
    chances = [math.comb(population, k) * rate**k * (1 - rate) ** (population - k) for k in range(population + 1)]
    factors = [math.exp(repeated_size_gain(k, before, population, rate)) for k in range(population + 1)]
    assert np.dot(chances, factors) <= 1


def test_impossible_cohorts_are_rejected():
    with pytest.raises(InputError, match="twice"):
        TrainingChecks(1, 5, 0, None).cohort(0, [1, 1], available=5)
    with pytest.raises(InputError, match="only 5"):
        TrainingChecks(1, 5, 0, None).cohort(0, 6, available=5)


class AlwaysTheSame(Poisson):
    """Claims Poisson sampling, and takes the same clients in every round."""

    def draw(self, count, rounds, **_):
        return np.arange(int(self.q * count))


@pytest.mark.parametrize(("cohorts", "refuted"), [(Poisson(0.25), False), (AlwaysTheSame(0.25), True)])
def test_the_simulator_reports_its_cohorts(cohorts, refuted):
    data = load("digits").train
    model = models.build("logistic", data.task)
    dim = sum(p.numel() for p in model.parameters())
    audit = OneShot(dim, rounds=6, canaries=10, view="updates", participation="poisson:0.25")
    mechanism = Mechanism(clip_norm=1.0, noise_multiplier=1.0)
    Training(model=model, data=data, rounds=6, sampling=cohorts, mechanism=mechanism, audits=[audit]).run()
    result = audit.result(claim=Claim(noise_multiplier=1.0, sampling="poisson:0.25", delta=1e-5, accountant="rdp"))
    assert [finding.check for finding in result.bugs] == ["participation"] * refuted


def audited_loop(sampling, choose, *, participation="every-round", rounds=12, seed=0):
    """Audit correct noise with clients chosen by a function and canaries of any participation; return the result."""
    rng, dim = np.random.default_rng(seed), 2_000
    audit = OneShot(dim, rounds=rounds, canaries=20, view="updates", participation=participation, seed=seed)
    for t in range(rounds):
        audit.cohort(t, choose(rng, t).tolist(), POPULATION)
        planted = audit.plant(t, clip_norm=1.0)
        update = (planted.total + rng.normal(0, 2.0, dim)) / (SIZE + planted.clients)
        audit.observe(t, update=update.astype(np.float32), divisor=SIZE + planted.clients)
    return audit.result(claim=Claim(noise_multiplier=2.0, sampling=sampling, delta=1e-5))


EVERYBODY = lambda rng, t: np.arange(POPULATION)  # noqa: E731


@pytest.mark.parametrize("sampling", [Poisson(0.1), FixedSize(12, POPULATION), AtMost(5), Epochs(2)])
@pytest.mark.parametrize("participation", ["every-round", "last:3"])
def test_a_claim_about_clients_is_refuted_by_clients_however_canaries_take_part(sampling, participation):
    result = audited_loop(sampling, EVERYBODY, participation=participation)
    assert [finding.check for finding in result.bugs] == ["participation"]
    assert result.refuted
    assert not result.claim_test.refuted  # the noise is there
    assert result.claim.sampling == sampling
    assert not result.about_claim


# 8 results with a false-alarm rate of at most 0.002 for all checks and 0.05 for the claim's test: about 1 in 3 would
# have one false alarm of the test, which the fixed seeds do not.
@pytest.mark.parametrize(
    ("choose", "sampling"),
    [(poisson, POISSON), (fixed, FIXED), (shuffled, Epochs(3)), (EVERYBODY, EveryRound())],
)
@pytest.mark.parametrize("participation", ["every-round", "epochs:2"])
def test_clients_who_take_part_as_claimed_are_not_accused(choose, sampling, participation):
    result = audited_loop(sampling, choose, participation=participation)
    assert result.bugs == []
    assert not result.refuted


def test_the_result_says_that_canaries_take_part_otherwise():
    result = audited_loop(POISSON, poisson)
    stated = Claim(noise_multiplier=2.0, sampling=POISSON, rounds=12, delta=1e-5)
    assert result.claim.epsilon == stated.epsilon
    assert "canaries in all 12 rounds, for which the same noise gives ε = 8.39" in str(result)
    assert audited_loop(EveryRound(), EVERYBODY).about_claim
