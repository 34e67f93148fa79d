import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from torch import nn

from coalmine import OneShot
from coalmine.claims import Claim, EveryRound, Poisson
from coalmine.claims.sampling import AtMost
from coalmine.errors import InputError
from coalmine.methods.one_shot.scores import LikelihoodRatio
from coalmine.results.result import Result
from coalmine.results.verdict import USER
from coalmine.simulation import SGD, LocalTraining, Mechanism, Training
from coalmine.simulation.flat import parameter_vector
from coalmine.stats import CosineNull, Scores, estimate, gaussian_shift
from coalmine.stats.nulls import LargestOfNull, LikelihoodRatioNull, OrthogonalCosineNull
from federations import federation, mlp

ROUNDS, CLIP, CLIENTS = 6, 0.5, 10


def run(audits, *, noise=1.0, seed=0, rounds=ROUNDS, clips=None, drift=0.0, rate=0.7):
    """Run a federated training in ten lines (a client with a fixed direction, noise, a server); return its releases."""
    rng = np.random.default_rng(seed)
    dim = audits[0].dim
    pull = rng.standard_normal(dim).astype(np.float32)
    pull *= drift / np.linalg.norm(pull)
    model = np.ones(dim, dtype=np.float32)
    models, updates = [model], []
    for t in range(rounds):
        clip = CLIP if clips is None else clips[t]
        planted = [p for audit in audits if (p := audit.plant(t, clip_norm=clip)) is not None]
        divisor = CLIENTS + sum(p.clients for p in planted)
        total = clip * pull + sum(p.total for p in planted)
        update = (total + noise * clip * rng.standard_normal(dim)).astype(np.float32) / np.float32(divisor)
        model = model + np.float32(rate) * update
        for audit in audits:
            view = audit.views[0]
            if view.shows(t, rounds):
                vector = update if view.kind == "update" else model
                audit.observe(t, **{view.kind: vector}, divisor=divisor)
        models.append(model)
        updates.append(update)
    return models, updates


def matrix(audit):
    """Return all canaries, inserted and held out, as rows."""
    return np.stack(list(audit._canaries.each(range(2 * audit.canaries)))).astype(np.float64)


def split(audit, scores):
    return scores[audit.members], scores[~audit.members]


@pytest.mark.parametrize("family", ["gaussian", "hadamard"])
@pytest.mark.parametrize("view", ["final", "final-change", "updates", "every:2", "rounds:1,3"])
def test_scores_are_the_cosines_of_stored_canaries(family, view):
    initial = None if view in ("final", "updates") else np.ones(700)
    score = "max" if view == "updates" else None
    audit = OneShot(700, rounds=ROUNDS, canaries=20, view=view, score=score, family=family, initial=initial, seed=3)
    models, updates = run([audit], noise=0.3)
    match view:
        case "final":
            releases = [models[-1]]
        case "final-change":
            releases = [models[-1] - models[0]]
        case "updates":
            releases = updates
        case "every:2":
            releases = [models[t + 2] - models[t] for t in (0, 2, 4)]
        case _:
            releases = [models[2] - models[0], models[4] - models[2], models[6] - models[4]]
    canaries, expected = matrix(audit), []
    for release in releases:
        cosines = []
        for i, canary in enumerate(canaries):
            left = release.astype(np.float64)
            if family == "hadamard":  # without the other canaries
                others = np.delete(canaries, i, axis=0)
                left = left - others.T @ (others @ left)
            cosines.append(canary @ left / np.linalg.norm(left))
        expected.append(cosines)
    for side, wanted in zip(audit.scores(), split(audit, np.max(expected, axis=0)), strict=True):
        np.testing.assert_allclose(side, wanted, atol=2e-6)


@pytest.mark.parametrize("participation", ["epochs:2", "poisson:0.4", "last:2"])
def test_sums_and_likelihood_ratios_follow_their_definitions(participation):
    audit = OneShot(
        400, rounds=ROUNDS, canaries=15, view="updates", score="likelihood-ratio", participation=participation,
        family="gaussian", seed=1,
    )  # fmt: skip
    summed = audit.seen_by("updates", score="sum")
    _, updates = run([audit, summed], noise=0.4)
    canaries = matrix(audit)
    rule = audit.participation
    present = np.zeros((ROUNDS, 30), dtype=bool)
    ratios, cosines, weighted = [], [], 0.0
    for t, update in enumerate(updates):
        present[t, rule.draw(30, ROUNDS, seed=1, round=t, purpose="participation")] = True
        divisor = CLIENTS + rule.expected(30, ROUNDS, t) / 2
        x = canaries @ update * divisor / CLIP
        variance = (np.linalg.norm(update) * divisor / CLIP) ** 2 / 400
        # log of normal densities, by definition
        ratios.append(scipy_stats.norm.logpdf(x, 1, variance**0.5) - scipy_stats.norm.logpdf(x, 0, variance**0.5))
        cosines.append(canaries @ update / np.linalg.norm(update))
        weighted = weighted + present[t, 0] * update * (CLIP / divisor) / np.linalg.norm(update) ** 2
    ratios, cosines = np.array(ratios), np.array(cosines)
    likely = np.exp(ratios)
    match participation:
        case "epochs:2":
            expected = np.log(likely[:3].mean(axis=0)) + np.log(likely[3:].mean(axis=0))
        case "poisson:0.4":
            expected = np.log(0.6 + 0.4 * likely).sum(axis=0)
        case _:
            expected = canaries @ weighted / np.linalg.norm(weighted)
    for side, wanted in zip(audit.scores(), split(audit, expected), strict=True):
        np.testing.assert_allclose(side, wanted, rtol=2e-4, atol=2e-5)
    if participation != "last:2":
        times = present.sum(axis=0)
        expected = np.where(times > 0, (cosines * present).sum(axis=0) / np.sqrt(np.maximum(times, 1)), np.nan)
        wanted = [side[~np.isnan(side)] for side in split(audit, expected)]
        for side, scores in zip(summed.scores(), wanted, strict=True):
            np.testing.assert_allclose(side, scores, atol=1e-6)


def test_for_shared_rounds_the_ratio_ranks_canaries_as_the_sum_of_their_log_ratios(monkeypatch):
    orders = []
    for adds_up in (True, False):
        monkeypatch.setattr(LikelihoodRatio, "adds_up", adds_up)
        audit = OneShot(
            5000, rounds=ROUNDS, canaries=50, view="updates", score="likelihood-ratio",
            participation="every-round", family="gaussian",
        )  # fmt: skip
        run([audit], noise=0.5)
        orders.append(np.concatenate(audit.scores()))
    assert scipy_stats.spearmanr(*orders).statistic > 0.999


@pytest.mark.parametrize(
    ("family", "score", "participation"),
    [
        ("hadamard", "max", "epochs:1"),
        ("hadamard", "sum", "epochs:1"),
        ("hadamard", "sum", "every-round"),
        pytest.param("gaussian", "max", "epochs:1", marks=pytest.mark.slow),
        pytest.param("gaussian", "sum", "epochs:1", marks=pytest.mark.slow),
        ("gaussian", "sum", "every-round"),
    ],
)
def test_held_out_scores_follow_the_null_even_if_canaries_dominate_a_release(family, score, participation):
    scores, null = [], None
    for seed in range(8):
        audit = OneShot(
            4500, rounds=3, canaries=700, view="updates", score=score, participation=participation, family=family,
            seed=seed,
        )  # fmt: skip
        # Per round: 700 canaries of energy 1 each, noise of 0.05² · 4,500 = 11, one client of 3 clip norms.
        run([audit], noise=0.05, rounds=3, drift=3.0, seed=seed)
        scores.append(audit.scores()[1])
        null = audit.null()
    held_out = np.concatenate(scores)
    assert null is not None
    if isinstance(null, LargestOfNull):  # an upper bound at every threshold
        ranks = np.sort(held_out)
        above = 1 - np.arange(len(ranks)) / len(ranks)
        assert (above <= np.exp(null.log_sf(ranks)) + 1.95 / np.sqrt(len(ranks))).all()
        null = null.each
    else:
        free = null.dim
        assert free == 4500 if family == "gaussian" else free == 4500 - 1400 + 1
        # Gaussian canaries of one run disturb one another: their scores are not quite independent.
        assert scipy_stats.kstest(held_out * np.sqrt(free), "norm").pvalue > 0.002


def test_a_gaussian_mechanism_in_every_round_is_estimated_correctly():
    epsilons, sigma, rounds = [], 4.0, 5
    for seed in range(20):
        audit = OneShot(
            8000, rounds=rounds, canaries=400, view="updates", score="likelihood-ratio",
            participation="every-round", seed=seed,
        )  # fmt: skip
        run([audit], noise=sigma, rounds=rounds, seed=seed, drift=2.0)
        epsilons.append(gaussian_shift(Scores(audit.scores()[0], null=audit.null()), delta=1e-5).epsilon)
    claim = Claim(noise_multiplier=sigma, delta=1e-5)
    result = audit.result(delta=1e-5, claim=claim)
    assert result["gaussian-shift"].epsilon == epsilons[-1]
    assert not result.refuted
    error = np.std(epsilons, ddof=1) / np.sqrt(len(epsilons))
    assert result.claim.epsilon == pytest.approx(2.26, abs=0.01)
    assert abs(np.mean(epsilons) - result.claim.epsilon) < 4 * error + 0.05


def test_bounds_hold_at_their_confidence_for_a_tight_mechanism():
    # At δ = 0.1 bounds come close to the truth: one application of the Gaussian mechanism, sensitivity 1.
    sigma, delta, runs = 1.0, 0.1, 50
    truth = Claim(noise_multiplier=sigma, rounds=1, delta=delta).epsilon
    over = {}
    for seed in range(runs):
        audit = OneShot(4100, rounds=1, canaries=300, view="updates", participation="every-round", seed=seed)
        run([audit], noise=sigma, rounds=1, seed=10_000 + seed)
        members, nonmembers = audit.scores()
        bounds = estimate(members, null=audit.null(), delta=delta, methods=["exact-null"])
        methods = ["one-run", "simultaneous"]
        bounds += estimate(members, nonmembers, delta=delta, design="coin-flips", methods=methods)
        for e in bounds:
            over[e.method] = over.get(e.method, 0) + (e.epsilon > truth)
    allowed = scipy_stats.binom.ppf(0.999, runs, 0.05)
    assert max(over.values()) <= allowed, over


def test_another_adversary_sees_the_same_canaries():
    audit = OneShot(600, rounds=ROUNDS, canaries=30, view="updates", seed=5)
    final, change = audit.seen_by("final"), audit.seen_by("final-change", initial=np.ones(600))
    alone = OneShot(600, rounds=ROUNDS, canaries=30, view="final", seed=5)
    run([audit, final, change])
    run([alone])
    for shared, separate in zip(final.scores(), alone.scores(), strict=True):
        np.testing.assert_array_equal(shared, separate)
    assert np.mean(change.scores()[0]) > np.mean(change.scores()[1])


def test_canaries_have_the_clip_norm_and_count_as_the_expected_number_of_clients():
    audit = OneShot(5000, rounds=4, canaries=40, participation="epochs:2")
    lengths, clients = [], []
    for t, clip in enumerate((1.0, 0.25, 3.0, 2.0)):
        planted = audit.plant(t, clip_norm=clip)
        lengths.append(np.linalg.norm(planted.total) / np.sqrt(planted.updates) / clip)
        clients.append(planted.clients)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    assert clients == [20.0] * 4


def test_canaries_one_by_one_sum_to_the_total():
    audit = OneShot(5000, rounds=1, canaries=10, participation="every-round")
    planted = audit.plant(0, clip_norm=2.0)
    each = list(planted.each(norm=2.0))
    assert len(each) == planted.updates
    np.testing.assert_allclose(np.sum(each, axis=0), planted.total, atol=1e-5)


def test_coin_flips_and_fixed_designs_insert_the_right_number():
    fixed = [OneShot(50, rounds=1, canaries=25, design="fixed", seed=s).members.sum() for s in range(5)]
    flipped = [OneShot(50, rounds=1, canaries=25, seed=s).members.sum() for s in range(40)]
    assert fixed == [25] * 5
    assert len(set(flipped)) > 5
    assert abs(np.mean(flipped) - 25) < 5 * np.sqrt(50) / 2 / np.sqrt(40)


def test_the_claim_fits_what_the_score_knows():
    def audit(score, participation):
        return OneShot(50, rounds=10, canaries=25, view="updates", score=score, participation=participation)

    assert audit("max", "poisson:0.3").sampling == Poisson(0.3)
    assert audit("likelihood-ratio", "poisson:0.3").sampling == Poisson(0.3)
    sampling = audit("sum", "poisson:0.3").sampling
    assert isinstance(sampling, AtMost)
    assert 3 < sampling.times <= 10
    assert audit("sum", "epochs:2").sampling == AtMost(2)
    assert audit("sum", "every-round").sampling == EveryRound()
    assert audit("sum", "last:4").sampling == AtMost(4)


def test_a_claim_that_assumes_secret_rounds_is_tested_without_them_or_not_at_all():
    audit = OneShot(100, rounds=ROUNDS, canaries=25, view="updates", score="sum", participation="poisson:0.2")
    run([audit])
    secret = Claim(noise_multiplier=1.0, sampling="poisson:0.2", delta=1e-5)
    assert isinstance(audit.tested_claim(secret).sampling, AtMost)
    stated = Claim(epsilon=3.0, sampling="poisson:0.2", rounds=ROUNDS, delta=1e-5)
    assert "canaries in 3 rounds are promised nothing" in str(audit.result(claim=stated))
    assert not audit.result(claim=stated).about_claim


def training(audits, **changes):
    settings = {
        "model": mlp(),
        "data": federation([4] * 20),
        "rounds": ROUNDS,
        "sampling": Poisson(0.5),
        "client": LocalTraining(optimizer=SGD(learning_rate=0.1)),
        "mechanism": Mechanism(clip_norm=0.5, noise_multiplier=0.5),
        "audits": audits,
    }
    return Training(**settings | changes)


def audits_of(model, **changes):
    start = parameter_vector(model).numpy()
    settings = {"model": start.size, "rounds": ROUNDS, "canaries": 30, "view": "updates"} | changes
    first = OneShot(**settings)
    return [first, first.seen_by("final"), first.seen_by("every:2", initial=start)]


@pytest.mark.parametrize("participation", ["epochs:2", "every-round"])
def test_a_resumed_training_has_the_same_scores_to_the_bit(tmp_path, participation):
    whole = audits_of(mlp(), participation=participation, score="likelihood-ratio")
    training(whole).run()
    training(audits_of(mlp(), participation=participation, score="likelihood-ratio")).run(until=3, checkpoints=tmp_path)
    resumed = audits_of(mlp(), participation=participation, score="likelihood-ratio")
    training(resumed, workers=2).run(checkpoints=tmp_path)
    for before, after in zip(whole, resumed, strict=True):
        for expected, scores in zip(before.scores(), after.scores(), strict=True):
            np.testing.assert_array_equal(expected, scores)
        assert before.result().estimates == after.result().estimates


def test_a_checkpoint_of_other_canaries_is_an_error(tmp_path):
    training(audits_of(mlp())).run(until=2, checkpoints=tmp_path)
    with pytest.raises(InputError, match="audits"):
        training(audits_of(mlp(), seed=9)).run(checkpoints=tmp_path)


def test_canaries_follow_an_adaptive_clip_norm():
    audit = OneShot(parameter_vector(mlp()).numel(), rounds=ROUNDS, canaries=200, participation="every-round")
    run = training([audit], mechanism=Mechanism(clip_norm=5.0, quantile=0.5, noise_multiplier=0.1))
    run.run()
    clips = [round["clip_norm"] for round in run.history]
    assert clips[0] != clips[-1]
    np.testing.assert_allclose(audit._norms, clips)


def test_a_failed_round_can_be_planted_again():
    data = federation([4] * 20)
    audit = OneShot(parameter_vector(mlp()).numel(), rounds=ROUNDS, canaries=30, view="updates")
    bad = training([audit], data=data, server=SGD(learning_rate=1e30))
    with pytest.raises(InputError, match="round"):
        bad.run()
    failed = bad.state.round
    assert audit.plant(failed, clip_norm=0.5) is not None


def test_extra_memory_is_bounded():
    dim = 4_000_000
    audit = OneShot(dim, rounds=2, canaries=1000, view="updates")
    release = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    tracemalloc.start()
    audit.plant(0, clip_norm=1.0)
    audit.observe(0, update=release, divisor=10.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": 1}, "parameters .* at least 2"),
        ({"canaries": 0}, "canaries .* at least 1"),
        ({"rounds": 0}, "rounds .* at least 1"),
        ({"view": "last"}, 'unknown view "last"'),
        ({"view": "every:0"}, "every .* whole number"),
        ({"view": "every:2"}, "every:2 .* initial="),
        ({"initial": np.ones(50)}, "view final .* initial="),
        ({"view": "final-change", "initial": np.ones(49)}, r"initial model .* \(50,\), got \(49,\)"),
        ({"view": "final-change", "initial": np.full(50, np.nan)}, "initial model .* finite"),
        ({"score": "max"}, "score max .* view final: use cosine"),
        ({"score": "rank"}, 'unknown score "rank".* cosine, likelihood-ratio, max, sum'),
        ({"view": "updates", "score": "cosine"}, "view updates: use likelihood-ratio or max or sum"),
        (
            {"view": "every:2", "initial": np.ones(50), "score": "likelihood-ratio"},
            "likelihood-ratio .* every:2: use max or sum",
        ),
        ({"design": "random"}, "design .* coin-flips or fixed, got 'random'"),
        ({"family": "cauchy"}, 'unknown family "cauchy"'),
        ({"participation": "epochs:9"}, "epochs = 9"),
        ({"participation": 3}, "participation .* int"),
        ({"norm": 0.0}, "norm .* positive"),
        ({"view": "every:7", "initial": np.ones(50)}, "every:7 .* 6 rounds"),
        ({"view": "rounds:1,6", "initial": np.ones(50)}, "round 6, .* 0 to 5"),
        ({"view": ["final", "updates"]}, "view .* text"),
        (
            {"family": "hadamard", "canaries": 13},
            "26 hadamard canaries.* 52 dimensions, got 50",
        ),
        ({"canaries": 1, "seed": 1}, "nothing to compare"),
    ],
)
def test_wrong_settings_are_errors(changes, message):
    with pytest.raises(InputError, match=message):
        OneShot(**{"model": 50, "rounds": ROUNDS, "canaries": 5} | changes)


def ready(view="updates", **changes):
    audit = OneShot(**{"model": 50, "rounds": 3, "canaries": 5, "view": view} | changes)
    audit.plant(0, clip_norm=1.0)
    return audit


@pytest.mark.parametrize(
    ("round", "release", "message"),
    [
        (0, {"update": np.ones(49, dtype=np.float32)}, r"round 0 .* \(50,\), got \(49,\)"),
        (0, {"update": np.full(50, np.nan, dtype=np.float32)}, "round 0 .* finite"),
        (0, {"update": np.full(50, np.inf, dtype=np.float32)}, "round 0 .* finite"),
        (0, {"update": np.zeros(50, dtype=np.float32)}, "round 0 .* zero update"),
        (0, {"model": np.ones(50, dtype=np.float32)}, '"update", got "model"'),
        (1, {"update": np.ones(50, dtype=np.float32)}, "plant .* round 1"),
        (7, {"update": np.ones(50, dtype=np.float32)}, "round 7 .* 3 rounds"),
    ],
)
def test_wrong_releases_are_errors_that_name_the_round(round, release, message):
    audit = ready()
    with pytest.raises(InputError, match=message):
        audit.observe(round, **release)
    audit.observe(0, update=np.ones(50, dtype=np.float32), divisor=1.0)


def test_a_release_outside_the_view_is_an_error():
    audit = ready("final")
    with pytest.raises(InputError, match=r"view final .* round 0"):
        audit.observe(0, model=np.ones(50, dtype=np.float32))


def test_a_round_is_planted_once_and_observed_once():
    audit = ready()
    with pytest.raises(InputError, match=r"plant .* round 0"):
        audit.plant(0, clip_norm=1.0)
    audit.observe(0, update=np.ones(50, dtype=np.float32), divisor=1.0)
    with pytest.raises(InputError, match="round 0 was already observed"):
        audit.observe(0, update=np.ones(50, dtype=np.float32), divisor=1.0)
    with pytest.raises(InputError, match=r"round 3 .* 3 rounds"):
        audit.plant(3, clip_norm=1.0)


def test_a_result_needs_every_release_and_ends_the_audit():
    audit = ready()
    with pytest.raises(InputError, match="not observed any release"):
        audit.scores()
    with pytest.raises(InputError, match=r"view updates .* rounds 0, 1, 2 of 3"):
        audit.result()
    done = OneShot(50, rounds=ROUNDS, canaries=20)
    run([done])
    done.result()
    with pytest.raises(InputError, match=r"round 0 .* result"):
        done.plant(0, clip_norm=1.0)
    skipped = OneShot(50, rounds=2, canaries=20)
    with pytest.raises(InputError, match=r"plant .* round 1 before round 0"):
        skipped.plant(1, clip_norm=1.0)


def test_canaries_need_a_norm_if_nothing_is_clipped():
    with pytest.raises(InputError, match=r"round 1 clips nothing.* norm="):
        ready().plant(1, clip_norm=np.inf)
    planted = ready(norm=2.0, participation="every-round", model=5000).plant(1, clip_norm=np.inf)
    assert np.linalg.norm(planted.total) == pytest.approx(2.0 * np.sqrt(planted.updates), rel=1e-5)
    with pytest.raises(InputError, match=r"clip_norm .* positive, got 0.0"):
        ready().plant(1, clip_norm=0.0)


def test_two_audits_with_the_same_canaries_are_an_error():
    first, second = (OneShot(1091, rounds=ROUNDS, canaries=30, view=view) for view in ("final", "updates"))
    with pytest.raises(InputError, match="orthogonal canaries of seed 0"):
        training([first, second])
    training([first, first.seen_by("updates"), OneShot(1091, rounds=ROUNDS, canaries=30, seed=1)])


def test_a_result_and_its_claim_have_the_same_delta():
    audit = OneShot(500, rounds=ROUNDS, canaries=20)
    run([audit])
    claim = Claim(noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(InputError, match=r"delta = 1e-05 .* delta = 0\.001"):
        audit.result(delta=1e-5, claim=claim)
    with pytest.raises(InputError, match=r"claim must be a coalmine.Claim, got float"):
        audit.result(claim=4.0)
    assert audit.result(claim=claim).estimates[0].delta == 1e-3
    assert audit.result()["gaussian-shift"].delta == 1e-5
    with pytest.raises(InputError, match="median"):
        audit.result()["median"]


def test_a_training_longer_than_its_audit_is_an_error():
    audit = OneShot(parameter_vector(mlp()).numel(), rounds=2, canaries=20)
    with pytest.raises(InputError, match="2 rounds"):
        training([audit], rounds=3).run()


def test_a_state_is_a_snapshot():
    first, second = (np.random.default_rng(s).standard_normal(50).astype(np.float32) for s in (0, 1))
    audit = ready(score="max", participation="every-round")
    state = audit.state()
    audit.observe(0, update=first)
    expected = audit.scores()
    audit.plant(1, clip_norm=1.0)
    audit.observe(1, update=second)
    audit.restore(state)
    audit.observe(0, update=first)
    for again, before in zip(audit.scores(), expected, strict=True):
        np.testing.assert_array_equal(again, before)


def test_without_noise_cosines_stay_within_1():
    for seed in range(10):
        for dim, canaries, family in ((64, 1, "hadamard"), (64, 10, "hadamard"), (3, 1, "gaussian")):
            audit = OneShot(
                dim, rounds=1, canaries=canaries, design="fixed", view="updates", score="max",
                participation="every-round", family=family, seed=seed,
            )  # fmt: skip
            run([audit], noise=0.0, rounds=1)
            assert np.abs(np.concatenate(audit.scores())).max() <= 1
            [bound] = estimate(audit.scores()[0], null=audit.null(), delta=1e-5, methods=["exact-null"])
            assert not np.isnan(bound.epsilon)
            if seed == 0:  # the other estimates of a result take longer, and do not use the null's tail
                assert audit.result().bound is not None


def test_a_fixed_share_never_has_a_larger_claim_than_every_round():
    def claimed_epsilon(participation):
        audit = OneShot(50, rounds=40, canaries=100, participation=participation)
        return audit.tested_claim(Claim(noise_multiplier=2.0, delta=1e-5)).epsilon

    assert claimed_epsilon("fixed:95/100") == claimed_epsilon("every-round")
    assert claimed_epsilon("fixed:5/100") < claimed_epsilon("every-round")


def test_weights_of_shared_rounds_do_not_depend_on_single_canaries():
    # The noise of 1000 clip norms hides the canaries, so that the inserted ones have null scores too.
    scores = []
    for seed in range(100):
        audit = OneShot(
            128, rounds=10, canaries=32, view="updates", participation="every-round", family="hadamard",
            design="fixed", seed=seed,
        )  # fmt: skip
        run([audit], noise=1000.0, rounds=10, seed=seed)
        scores.append(audit.scores()[0])
    p_values = np.exp(CosineNull(128 - 64 + 1).log_sf(np.concatenate(scores)))
    for level in (0.1, 0.01):
        for tail in (p_values <= level, p_values >= 1 - level):
            # 3,200 scores, dependent in each run: five binomial standard errors.
            assert abs(tail.mean() - level) < 5 * np.sqrt(level / len(p_values))


def test_the_ratio_of_a_held_out_canary_with_one_secret_round_has_a_mean_of_at_most_1():
    ratios = []
    for seed in range(60):
        audit = OneShot(300, rounds=5, canaries=100, view="updates", family="gaussian", seed=seed)
        run([audit], noise=2.0, rounds=5, seed=seed, drift=4.0)
        ratios.append(audit.scores()[1])
    log_ratios = np.concatenate(ratios)
    assert isinstance(audit.null(), LikelihoodRatioNull)
    likely = np.exp(log_ratios)
    assert likely.mean() < 1 + 4 * likely.std() / np.sqrt(len(likely))
    for t in (0.1, 0.5, 1.0):
        assert np.mean(log_ratios >= t) <= np.exp(-t)


@pytest.mark.parametrize("participation", ["poisson:0.5", "epochs:1", "epochs:4", "every-round"])
def test_a_likelihood_ratio_without_divisors_estimates_what_a_canary_adds(participation):
    """It ranks canaries nearly as well, and their distribution is known where they share their rounds alone."""
    ranks = []
    for divisor in (50.0, None):
        settings = {"rounds": 20, "canaries": 200, "view": "updates", "participation": participation}
        audit, rng = OneShot(4000, **settings), np.random.default_rng(0)
        for t in range(20):
            total = audit.plant(t, clip_norm=1.0).total + 0.3 * rng.standard_normal(4000)
            audit.observe(t, update=(total / 50).astype(np.float32), divisor=divisor)
        inserted, held_out = audit.scores()
        ranks.append(np.mean(inserted[:, None] > held_out))
    assert (audit.null() is not None) == (participation == "every-round")
    assert ranks[1] > ranks[0] - 0.03
    assert ranks[1] > 0.6


def test_a_poor_fit_is_warned_of():
    audit = OneShot(3000, rounds=40, canaries=500, view="updates", score="max", participation="epochs:1")
    run([audit], noise=1.0, rounds=40)
    result = audit.result()
    assert result.metrics["anderson_darling_p"] < 0.01
    assert "not normal" in result.warnings[0]


def test_the_null_of_a_sum_over_several_rounds_is_unknown():
    audit = OneShot(300, rounds=ROUNDS, canaries=20, view="updates", score="sum", participation="epochs:2")
    largest = audit.seen_by("updates", score="max")
    run([audit, largest])
    assert audit.null() is None
    assert largest.null() == LargestOfNull(OrthogonalCosineNull(300 - 39), ROUNDS)
    assert "exact-null" not in {e.method for e in audit.result().estimates}


@pytest.mark.parametrize("participation", ["last:1", "every-round"])
def test_nothing_is_shown_if_every_round_with_canaries_was_aborted(participation):
    audit = OneShot(500, rounds=3, canaries=200, view="updates", participation=participation)
    draw = np.random.default_rng(0)
    for round in range(3):
        audit.plant(round, clip_norm=1.0)
        seen = draw.normal(size=500)
        if participation == "every-round" or round == 2:
            audit.skip(round)
            seen = np.zeros(500)
        audit.observe(round, update=seen.astype(np.float32), divisor=1.0)
    result = audit.result()
    assert result.bound.epsilon == 0
    assert "no canary took part" in " ".join(result.warnings)
    assert result.null is None


@pytest.mark.parametrize("participation", ["every-round", "epochs:2"])
def test_a_skipped_round_need_not_be_observed_where_updates_are_seen(participation):
    def run_with(shown):
        audit = OneShot(500, rounds=4, canaries=50, view="updates", participation=participation)
        draw = np.random.default_rng(0)
        for round in range(4):
            total = audit.plant(round, clip_norm=1.0).total + draw.normal(size=500)
            if round % 2:
                audit.skip(round)
                total = np.zeros(500)
            if round % 2 == 0 or shown:
                audit.observe(round, update=total.astype(np.float32), divisor=1.0)
        return audit.result()

    shown, skipped = run_with(True), run_with(False)
    assert np.array_equal(shown.scores.members, skipped.scores.members)
    assert shown.bound == skipped.bound


def test_a_skipped_round_still_shows_its_model():
    audit = OneShot(500, rounds=1, canaries=50, view="final")
    audit.skip(0)
    with pytest.raises(InputError, match="model=, the model after it, aborted or not"):
        audit.result()


def test_canaries_that_hide_each_other_are_warned_of():
    def warned(canaries):
        audit = OneShot(
            4000, rounds=2, canaries=canaries, view="updates", family="gaussian", participation="every-round"
        )
        run([audit], noise=1.0, rounds=2)
        warnings = audit.result(claim=Claim(epsilon=17.9, delta=1e-5)).warnings
        return "without noise they would show only about ε = 21.6" in " ".join(warnings)

    assert warned(300)
    assert not warned(20)


@pytest.mark.parametrize(
    ("view", "score", "participation", "null"),
    [
        ("final", "cosine", "epochs:1", "cosine:211"),
        ("updates", "sum", "epochs:1", "cosine:211"),
        ("updates", "likelihood-ratio", "every-round", "cosine:211"),
        ("updates", "likelihood-ratio", "epochs:1", None),
        ("updates", "max", "epochs:1", None),
        ("updates", "sum", "epochs:2", None),
    ],
)
def test_a_result_says_what_it_is_about(view, score, participation, null):
    audit = OneShot(250, rounds=ROUNDS, canaries=20, view=view, score=score, participation=participation)
    run([audit])
    result = audit.result(metrics={"accuracy": 0.5})
    assert (result.method, result.view, result.unit, result.score_name) == ("one-shot", view, USER, score)
    assert result.side_names == ("inserted", "held out")
    assert result.adversary.startswith("sees")
    assert result.null == null
    assert result.metrics["inserted"] + result.metrics["held_out"] == 40
    assert result.metrics["accuracy"] == 0.5
    stored = Result.from_dict(result.to_dict())
    assert replace(stored, scores=result.scores).to_dict() == result.to_dict()  # scores have a file of their own


@pytest.mark.parametrize("family", ["hadamard", "orthogonal", "gaussian"])
def test_orthogonal_canaries_leave_fewer_dimensions_to_the_null(family):
    audit = OneShot(250, rounds=1, canaries=20, family=family, participation="every-round")
    run([audit], rounds=1)
    assert audit.result().null == f"cosine:{250 if family == 'gaussian' else 250 - (40 - 1)}"


def test_the_sum_of_canaries_comes_in_the_shapes_of_the_model():
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    planted = OneShot(model, rounds=1, canaries=10).plant(0, clip_norm=1.0)
    assert {name: part.shape for name, part in planted.tensors.items()} == {
        name: part.shape for name, part in model.named_parameters()
    }
    assert torch.equal(torch.cat([part.flatten() for part in planted.tensors.values()]), planted.total)
    with pytest.raises(InputError, match="give it the module"):
        _ = OneShot(940, rounds=1, canaries=10).plant(0, clip_norm=1.0).tensors
