"""Plans of an audit: the power against simulated audits and closed forms, and the default number of canaries."""

import json
import math

import numpy as np
import pytest
from scipy import special, stats

import coalmine
from audits_of import audits_of
from coalmine import OneShot
from coalmine.claims import Claim, EveryRound, Poisson
from coalmine.claims.sampling import AtMost, Epochs, FixedSize
from coalmine.errors import InputError
from coalmine.methods.one_shot.method import OneShotSettings
from coalmine.methods.one_shot.planning import AuditPower, default_canaries, participation_rate, plan
from coalmine.simulation.settings import TrainingSettings
from coalmine.stats import NormalNull, Scores
from coalmine.stats.claim_tests import ClaimTests


def power_of(noise_multiplier, sampling, rounds, view="updates", accountant=None):
    claim = Claim(
        noise_multiplier=noise_multiplier, sampling=sampling, rounds=rounds, delta=1e-5, accountant=accountant
    )
    return AuditPower(claim=claim, view=view, rate=participation_rate(sampling, rounds))


@pytest.fixture(scope="module")
def every_round():
    return power_of(3.0, EveryRound(), 10)


def area(curve):
    """Return the area under the ROC curve."""
    return 1 - float(np.mean(curve.fpr((np.arange(4000) + 0.5) / 4000)))


def likelihood_ratios(rng, members, nonmembers, sigma, q, rounds):
    """Return scores of canaries in secret rounds, written out independently of the project."""

    def side(count, inserted):
        seen = rng.normal(0, sigma, (count, rounds)) + inserted * rng.binomial(1, q, (count, rounds))
        densities = [stats.norm.pdf(seen, mean, sigma) for mean in (0, 1)]
        return np.log((1 - q) + q * densities[1] / densities[0]).sum(axis=1)

    return side(members, 1), side(nonmembers, 0)


def share_refuted(audits, scores, claim, **design):
    """Return how many simulated audits refute the claim."""
    return np.mean([ClaimTests(scores(), **design).p_value(claim) <= 0.05 for _ in range(audits)])


# The power is a lower limit of the share of refutations: 100 audits fall 3 standard errors (0.12) below 0.8 in 0.1%.


def test_the_planned_number_detects_half_the_noise_with_an_exact_null(every_round):
    canaries = every_round.needed(0.5, 0.8)
    rng, mu = np.random.default_rng(0), math.sqrt(10) / 1.5
    refuted = share_refuted(
        100, lambda: Scores(rng.normal(mu, 1, canaries), None, NormalNull()), every_round.claim.curve()
    )
    assert refuted > 0.8 - 0.12


def test_the_power_of_secret_rounds_is_that_of_simulated_audits():
    power = power_of(1.0, Poisson(0.05), 60)
    claim, rng = power.claim.curve(), np.random.default_rng(2)
    canaries = power.needed(0.5, 0.8)
    scores = lambda: Scores(*likelihood_ratios(rng, canaries, canaries, 0.5, 0.05, 60))  # noqa: E731
    assert power.test == "counted"
    assert share_refuted(40, scores, claim) > 0.8 - 0.19  # three standard errors of 40 audits


def test_a_true_claim_is_hardly_ever_refuted(every_round):
    # 1,999 simulated audits at a level of 5%, or of 2.5% for the rank-sum alone: the estimates exceed 7% and 4% with
    # probability below 1e-4.
    for power in (every_round, power_of(2.0, Poisson(0.5), 40), power_of(2.0, Poisson(0.5), 40, "final-change")):
        assert power.power(1.0, 100) < 0.07
        assert power.test == "exact-null" or power.power(1.0, 100) < 0.04


@pytest.mark.parametrize("sampling", [Poisson(0.3), FixedSize(30, 100)])
def test_the_curve_of_secret_rounds_is_that_of_likelihood_ratios(sampling):
    power, rng = power_of(1.0, sampling, 20), np.random.default_rng(3)
    for noise in (1.0, 0.5):
        members, others = likelihood_ratios(rng, 10_000, 10_000, noise, 0.3, 20)
        for fpr in (0.02, 0.2, 0.6):
            reached = np.mean(members > np.quantile(others, 1 - fpr))
            # Four standard errors of both rates are below 0.04 where the curve is steepest.
            assert float(power.truth(noise).tpr(np.array(fpr))) == pytest.approx(reached, abs=0.04)


def test_views_of_models_show_a_canary_in_the_noise_of_all_rounds():
    q, rounds, sigma = 0.3, 50, 1.0
    curve = power_of(sigma, Poisson(q), rounds, "final-change").truth(1.0)
    times = np.arange(rounds + 1)
    exact = np.sum(stats.binom.pmf(times, rounds, q) * special.ndtr(times / (sigma * np.sqrt(2 * rounds))))
    assert area(curve) == pytest.approx(exact, abs=0.002)
    known = power_of(sigma, EveryRound(), rounds, "final-change").truth(1.0)
    assert known.mu == pytest.approx(math.sqrt(rounds) / sigma)


@pytest.mark.parametrize(
    ("sampling", "view", "test"),
    [
        (EveryRound(), "updates", "exact-null"),
        (AtMost(3), "updates", "exact-null"),
        (Epochs(1), "updates", "exact-null"),
        (Epochs(4), "updates", "counted"),
        (Poisson(0.1), "updates", "counted"),
        (FixedSize(5, 50), "updates", "counted"),
        (Poisson(0.1), "final-change", "exact-null"),
        (FixedSize(5, 50), "final", "exact-null"),
    ],
)
def test_the_test_is_the_one_that_the_audit_uses(sampling, view, test):
    assert power_of(1.0, sampling, 20, view, "rdp").test == test


@pytest.mark.parametrize(
    ("sampling", "rate"), [(EveryRound(), 1), (AtMost(5), 0.25), (AtMost(50), 1), (Epochs(5), 0.25),
                           (Epochs(1), 0.05), (Poisson(0.1), 0.1), (FixedSize(5, 50), 0.1)]
)  # fmt: skip
def test_the_share_of_the_rounds(sampling, rate):
    assert participation_rate(sampling, 20) == rate


def test_a_plan_grows_with_what_it_asks_for():
    planned = plan(noise_multiplier=3.0, rounds=10, clients=50, dim=1_000_000)
    assert planned.test == "exact-null"
    assert [(row.noise, row.power) for row in planned.rows[:2]] == [(0.9, 0.8), (0.9, 0.95)]
    needed = [row.canaries for row in planned.rows]
    assert needed[0] > needed[2] > needed[4]
    assert all(needed[i] < needed[i + 1] for i in (0, 2, 4))
    row = planned.rows[4]
    assert row.per_round == row.canaries
    assert row.share == pytest.approx(row.canaries / (row.canaries + 50))
    assert row.extra_noise == pytest.approx(math.sqrt(1 + row.canaries / 9_000_000) - 1)
    assert f"{row.canaries} canaries detect half" in planned.summary
    table, sentences = str(planned).splitlines()[:7], " ".join(str(planned).splitlines()[7:])
    assert len({len(line) for line in table}) == 1
    assert sentences == planned.summary


def test_costs_are_unknown_without_clients_and_dimensions():
    planned = plan(noise_multiplier=3.0, rounds=10)
    assert planned.default is None
    assert all(row.share is None and row.extra_noise is None for row in planned.rows)
    assert "average" not in planned.summary


def test_shared_rounds_have_all_canaries_at_once():
    power = power_of(1.0, AtMost(4), 100)
    assert power.rate == 0.04
    assert power.due == 1.0


@pytest.mark.parametrize(
    ("sampling", "view", "words"),
    [
        (Epochs(1), "updates", '"sum"'),
        (EveryRound(), "every:2", "largest cosine"),
        (EveryRound(), "final", "initial weights"),
    ],
)
def test_notes_say_what_the_numbers_do_not_cover(sampling, view, words):
    (note,) = power_of(1.0, sampling, 20, view, "rdp").notes
    assert words in note


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "clients": 0}, "clients"),
        ({"noise_multiplier": 1.0, "dim": 1}, "dim"),
        ({"noise_multiplier": 1.0, "rounds": 0}, "rounds"),
        ({"noise_multiplier": 1.0, "view": "update"}, "updates"),
        ({"noise_multiplier": 1.0, "sampling": "poisson"}, "poisson"),
        ({"noise_multiplier": 1.0, "sampling": 3}, "sampling"),
        ({"noise_multiplier": 1.0, "confidence": 2}, "confidence"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        coalmine.plan(**arguments)


# The default


def test_the_default_is_a_quarter_of_the_average_between_20_and_1000():
    assert default_canaries(None, clients=90, rate=0.5) == 60
    assert default_canaries(None, clients=9, rate=1.0) == 20
    assert default_canaries(None, clients=1e6, rate=0.01) == 1000
    assert default_canaries(None, clients=1e6, rate=0.01, dim=500) == 125


def test_canaries_that_disturb_each_other_detect_less():
    claim = Claim(noise_multiplier=0.5, sampling=EveryRound(), rounds=9, delta=1e-5)  # μ = 6
    alone, crowded = (AuditPower(claim=claim, view="updates", rate=1.0, dim=dim) for dim in (None, 5000))
    # 40 of 200 canaries lie in single tensors: the variance 1/6² grows by 40/5000, to 1/5.28².
    assert crowded.power(1.0, 200) == 0.0
    assert crowded.power(0.9, 200) < 0.05
    assert alone.power(0.9, 200) > 0.95
    needed = crowded.needed(0.8, 0.8)
    assert crowded.power(0.8, needed) >= 0.8
    assert crowded.needed(0.95, 0.8) is None


def test_too_few_canaries_refute_nothing_by_the_signs_of_their_scores():
    power = power_of(0.5, EveryRound(), 20)
    # 0.5⁴ > 0.05: five must be inserted, by as many of 2n fair coins.
    for canaries in (5, 6, 8):
        enough = stats.binom.sf(4, 2 * canaries, 0.5)
        assert power.power(0.5, canaries) == pytest.approx(enough, abs=1 / 11)
    assert power.needed(0.5, 0.8) > 5


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"layers": {"w": 900, "b": 100}}, {"family": "gaussian"}])
def test_audits_whose_canaries_disturb_each_other_have_the_power_that_they_state(settings):
    """60 audits at the share of the noise that each states: four standard errors below 80% are 59%."""
    claim = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=4, delta=1e-5)

    def audited(seed, share):
        audit = OneShot(1000, rounds=4, canaries=40, view="updates", participation="every-round", seed=seed, **settings)
        rng = np.random.default_rng([seed, int(1e6 * share)])
        for t in range(4):
            total = audit.plant(t, clip_norm=1.0).total + rng.normal(0, share, 1000)
            audit.observe(t, update=total.astype(np.float32), divisor=1)
        return audit

    shares = [audited(seed, 1.0).result(claim=claim).claim_test.detectable_noise for seed in range(6)]
    assert all(0.3 < share < 0.95 for share in shares)
    refuted = [
        ClaimTests(Scores(audit.scores()[0], None, audit.null())).p_value(claim.curve()) <= 0.05
        for seed, share in enumerate(shares)
        for audit in (audited(seed, share * (1 - repeat * 1e-5)) for repeat in range(10))
    ]
    assert np.mean(refuted) >= 0.8 - 4 * math.sqrt(0.8 * 0.2 / 60)


def test_the_default_detects_half_the_noise_if_the_clients_are_enough():
    power = power_of(10.0, EveryRound(), 1)  # ε = 0.34
    needed = power.needed(0.5, 0.8)
    assert needed > 500
    assert default_canaries(power, clients=needed, rate=1.0) == needed
    assert default_canaries(power, clients=needed - 1, rate=1.0) == int((needed - 1) / 3)


def test_an_audit_without_a_number_gets_the_default():
    def canaries(cohort, number=None):
        training = TrainingSettings(rounds=4, cohort=cohort)
        return audits_of(OneShotSettings(canaries=number), training, dim=5000, population=60)[0].canaries

    power = power_of(2.0, Poisson(0.5), 4, "final")
    needed = power.needed(0.5, 0.8)
    assert 20 < needed <= 60
    assert canaries("poisson:0.5") == needed
    assert canaries("fixed:30") == 20  # a quarter of the average; half the noise cannot be detected
    assert canaries("poisson:0.5", 33) == 33


def test_the_default_needs_no_claim():
    training = TrainingSettings(rounds=4, cohort="poisson:0.1", noise_multiplier=0.0)
    assert audits_of(OneShotSettings(), training, dim=50_000, population=9000)[0].canaries == 1000
    weak = TrainingSettings(rounds=4000, cohort="poisson:0.5", noise_multiplier=0.001)  # no accountant computes its ε
    assert audits_of(OneShotSettings(), weak, dim=50_000, population=90)[0].canaries == 30


# What audits advise and conclude


def audited(canaries, *, noise, participation, rounds, seed=0, dim=4000):
    rng = np.random.default_rng(seed)
    audit = OneShot(dim, rounds=rounds, canaries=canaries, view="updates", participation=participation, seed=seed)
    for t in range(rounds):
        total = audit.plant(t, clip_norm=1.0).total + rng.normal(0, noise, dim)
        audit.observe(t, update=(total / 50).astype(np.float32), divisor=50.0)
    return audit.result(claim=Claim(noise_multiplier=noise, sampling=participation, delta=1e-5))


def test_who_follows_the_advice_on_canaries_gets_none_again():
    """The advice is the plan's, whatever the number so far. Coins of 4 audits: false in about 1% by the plan's 95%."""
    terms = {"noise": 3.0, "participation": "every-round", "rounds": 10}
    planned = plan(noise_multiplier=3.0, rounds=10, dim=4000)
    expected = next(row.canaries for row in planned.rows if (row.noise, row.power) == (0.5, 0.95))
    assert [audited(few, **terms).claim_test.canaries_needed for few in (2, 3)] == [expected, expected]
    for seed in range(2, 6):
        followed = audited(expected, **terms, seed=seed)
        assert followed.verdict != "too weak"
        assert "would detect half" not in followed.summary


def test_audits_of_one_design_agree_on_whether_they_are_too_weak():
    """Where rounds are secret, too: the power follows from the releases, not from the luck of the scores."""
    terms = {"noise": 1.0, "participation": "poisson:0.1", "rounds": 20}
    tests = [audited(200, **terms, seed=seed).claim_test for seed in range(4)]
    assert not any(test.verdict == "too weak" for test in tests)
    shares = [test.detectable_noise for test in tests]
    assert max(shares) - min(shares) < 0.05
    assert min(shares) > 0.6


# The command


def test_the_command_prints_a_table_or_json(run):
    arguments = ("plan", "--noise-multiplier", "3", "--rounds", "10", "--clients", "50")
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert "80%" in out
    code, in_json, _ = run(*arguments, "--json")
    content = json.loads(in_json)
    assert code == 0
    assert content["results"] == []
    assert content["claims"][0]["rounds"] == 10
    assert [row["noise"] for row in content["plan"]["rows"]] == [0.9, 0.9, 0.8, 0.8, 0.5, 0.5]
    assert content["summary"] in " ".join(out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--noise-multiplier", "0"),
        ("--noise-multiplier", "1", "--view", "x"),
        (),
    ],
)
def test_bad_input_to_the_command_is_a_sentence(run, arguments):
    code, out, err = run("plan", *arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
