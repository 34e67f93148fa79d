import tracemalloc

import numpy as np
import pytest
from scipy import stats as scipy_stats

from coalmine import OneShot, ScheduledParticipation
from coalmine.accounting import claimed
from coalmine.accounting.sampling import AtMost, EveryRound, Poisson
from coalmine.errors import InputError
from coalmine.methods.one_shot.views import parse_view
from coalmine.protocol import Release, View
from coalmine.simulation import SGD, AdaptiveClipping, FixedClipping, LocalTraining, Mechanism, PoissonCohorts, Training
from coalmine.simulation.flat import parameter_vector
from coalmine.stats import CosineNull, LargestOfNull, LikelihoodRatioNull, estimate
from federations import federation, mlp

ROUNDS, CLIP, CLIENTS = 6, 0.5, 10


def run(audits, *, noise=1.0, seed=0, rounds=ROUNDS, clips=None, drift=0.0, rate=0.7):
    """A federated training in ten lines: a client with a fixed direction, noise, a server. Returns what it released."""
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
                audit.observe(Release(t, view.kind, vector, divisor=divisor))
        models.append(model)
        updates.append(update)
    return models, updates


def matrix(audit):
    """All canaries, planted and held out, as rows."""
    return np.stack([audit._updates.canary(i) for i in range(2 * audit.canaries)]).astype(np.float64)


def split(audit, scores):
    return scores[audit.members], scores[~audit.members]


@pytest.mark.parametrize("family", ["gaussian", "hadamard"])
@pytest.mark.parametrize("view", ["final", "final-change", "updates", "every:2", "rounds:1,3"])
def test_scores_are_the_cosines_that_stored_canaries_give(family, view):
    initial = None if view in ("final", "updates") else np.ones(700)
    score = "max" if view == "updates" else None
    audit = OneShot(dim=700, rounds=ROUNDS, canaries=20, view=view, score=score, family=family, initial=initial, seed=3)
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
    canaries, found = matrix(audit), []
    for release in releases:
        cosines = []
        for i, canary in enumerate(canaries):
            left = release.astype(np.float64)
            if family == "hadamard":  # the other planted canaries are kept out
                others = canaries[[j for j in np.flatnonzero(audit.members) if j != i]]
                left = left - others.T @ (others @ left)
            cosines.append(canary @ left / np.linalg.norm(left))
        found.append(cosines)
    for side, expected in zip(audit.scores(), split(audit, np.max(found, axis=0)), strict=True):
        np.testing.assert_allclose(side, expected, atol=2e-6)


@pytest.mark.parametrize("participation", ["epochs:2", "poisson:0.4", "last:2"])
def test_sums_and_likelihood_ratios_are_those_of_the_textbook(participation):
    audit = OneShot(
        dim=400, rounds=ROUNDS, canaries=15, view="updates", score="likelihood-ratio", participation=participation,
        family="gaussian", seed=1,
    )  # fmt: skip
    _, updates = run([audit], noise=0.4)
    canaries = matrix(audit)
    rule = audit.participation
    present = np.zeros((ROUNDS, 30), dtype=bool)
    ratios, cosines, weighted = [], [], 0.0
    for t, update in enumerate(updates):
        present[t, rule.present(30, ROUNDS, 1, t)] = True
        divisor = CLIENTS + rule.rate(30, ROUNDS, t) * 15
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
        there = present.sum(axis=0)
        expected = np.where(there > 0, (cosines * present).sum(axis=0) / np.sqrt(np.maximum(there, 1)), np.nan)
        wanted = [side[~np.isnan(side)] for side in split(audit, expected)]
        for side, scores in zip(audit.scores("sum"), wanted, strict=True):
            np.testing.assert_allclose(side, scores, atol=1e-6)


def test_for_shared_rounds_the_ratio_ranks_canaries_as_the_sum_of_their_log_ratios():
    audit = OneShot(
        dim=5000, rounds=ROUNDS, canaries=50, view="updates", score="likelihood-ratio", participation="every-round",
        family="gaussian",
    )  # fmt: skip
    run([audit], noise=0.5)
    members, nonmembers = audit.scores()
    summed = audit._evidence.ratio
    order = np.argsort(np.concatenate([summed[audit.members], summed[~audit.members]]))
    assert scipy_stats.spearmanr(order, np.argsort(np.concatenate([members, nonmembers]))).statistic > 0.999


@pytest.mark.parametrize(("score", "participation"), [("max", "epochs:1"), ("sum", "epochs:1"), ("sum", "every-round")])
@pytest.mark.parametrize("family", ["gaussian", "hadamard"])
def test_held_out_scores_follow_the_null_also_where_canaries_make_up_most_of_a_release(family, score, participation):
    scores, null = [], None
    for seed in range(8):
        audit = OneShot(
            dim=4500, rounds=3, canaries=700, view="updates", score=score, participation=participation, family=family,
            seed=seed,
        )  # fmt: skip
        # 700 canaries of energy 1 each a round, noise of 0.05² · 4,500 = 11, one client that moves by 3 clip norms.
        run([audit], noise=0.05, rounds=3, drift=3.0, seed=seed)
        scores.append(audit.scores()[1])
        null = audit.null()
    held_out = np.concatenate(scores)
    assert null is not None
    if isinstance(null, LargestOfNull):  # an upper bound: whatever the threshold, no more lie above it
        ranks = np.sort(held_out)
        above = 1 - np.arange(len(ranks)) / len(ranks)
        assert (above <= np.exp(null.log_sf(ranks)) + 1.95 / np.sqrt(len(ranks))).all()
        null = null.each
    else:
        free = null.dim
        assert free == 4500 if family == "gaussian" else 3700 < free < 3900
        # Gaussian canaries of one run disturb one another: their scores are not quite independent.
        assert scipy_stats.kstest(held_out * np.sqrt(free), "norm").pvalue > 0.002


def test_a_gaussian_mechanism_in_every_round_is_measured_right():
    found, sigma, rounds = [], 4.0, 5
    for seed in range(20):
        audit = OneShot(
            dim=8000, rounds=rounds, canaries=400, view="updates", score="likelihood-ratio",
            participation="every-round", seed=seed,
        )  # fmt: skip
        run([audit], noise=sigma, rounds=rounds, seed=seed, drift=2.0)
        theory = audit.theory(noise_multiplier=sigma, delta=1e-5)
        result = audit.result(delta=1e-5, theory=theory)
        found.append(next(e.epsilon for e in result.estimates if e.method == "gaussian-shift"))
        assert not result.refuted
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert theory.epsilon == pytest.approx(2.26, abs=0.01)
    assert abs(np.mean(found) - theory.epsilon) < 4 * error + 0.05


def test_bounds_hold_in_nearly_all_audits_of_a_mechanism_that_is_tight():
    # δ = 0.1, where a bound comes close to the truth: one application of the Gaussian mechanism, sensitivity 1.
    sigma, delta, runs = 1.0, 0.1, 100
    truth = OneShot(dim=4100, rounds=1, canaries=300).theory(noise_multiplier=sigma, delta=delta).epsilon
    over = {}
    for seed in range(runs):
        audit = OneShot(dim=4100, rounds=1, canaries=300, view="updates", participation="every-round", seed=seed)
        run([audit], noise=sigma, rounds=1, seed=10_000 + seed)
        members, nonmembers = audit.scores()
        found = estimate(members, null=audit.null(), delta=delta, methods=["exact-null"])
        methods = ["one-run", "simultaneous"]
        found += estimate(members, nonmembers, delta=delta, design="coin-flips", methods=methods)
        for e in found:
            over[e.method] = over.get(e.method, 0) + (e.epsilon > truth)
    allowed = scipy_stats.binom.ppf(0.999, runs, 0.05)
    assert max(over.values()) <= allowed, over


def test_another_adversary_looks_at_the_same_canaries():
    audit = OneShot(dim=600, rounds=ROUNDS, canaries=30, view="updates", seed=5)
    final, change = audit.seen_by("final"), audit.seen_by("final-change", initial=np.ones(600))
    alone = OneShot(dim=600, rounds=ROUNDS, canaries=30, view="final", seed=5)
    run([audit, final, change])
    run([alone])
    for one, other in zip(final.scores(), alone.scores(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.mean(change.scores()[0]) > np.mean(change.scores()[1])


def test_canaries_are_as_long_as_the_clip_norm_of_their_round_and_count_as_expected():
    audit = OneShot(dim=5000, rounds=4, canaries=40, participation="epochs:2")
    lengths, clients = [], []
    for t, clip in enumerate((1.0, 0.25, 3.0, 2.0)):
        planted = audit.plant(t, clip_norm=clip)
        lengths.append(np.linalg.norm(planted.total) / np.sqrt(planted.updates) / clip)
        clients.append(planted.clients)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    assert clients == [20.0] * 4


def test_canaries_one_by_one_are_what_is_planted_together():
    audit = OneShot(dim=5000, rounds=1, canaries=10, participation="every-round")
    planted = audit.plant(0, clip_norm=2.0)
    each = list(planted.each(norm=2.0))
    assert len(each) == planted.updates
    np.testing.assert_allclose(np.sum(each, axis=0), planted.total, atol=1e-5)


def test_coin_flips_and_fixed_numbers_plant_as_they_say():
    fixed = [OneShot(dim=50, rounds=1, canaries=25, design="fixed", seed=s).members.sum() for s in range(5)]
    flipped = [OneShot(dim=50, rounds=1, canaries=25, seed=s).members.sum() for s in range(40)]
    assert fixed == [25] * 5
    assert len(set(flipped)) > 5
    assert abs(np.mean(flipped) - 25) < 5 * np.sqrt(50) / 2 / np.sqrt(40)


def test_a_promise_fits_what_the_score_knows():
    def audit(score, participation):
        return OneShot(dim=50, rounds=10, canaries=25, view="updates", score=score, participation=participation)

    assert audit("max", "poisson:0.3").sampling == Poisson(0.3)
    assert audit("likelihood-ratio", "poisson:0.3").sampling == Poisson(0.3)
    known = audit("sum", "poisson:0.3").sampling
    assert isinstance(known, AtMost)
    assert 3 < known.times <= 10
    assert audit("sum", "epochs:2").sampling == AtMost(2)
    assert audit("sum", "every-round").sampling == EveryRound()
    assert audit("sum", "last:4").sampling == AtMost(4)


def test_a_promise_that_hides_the_rounds_is_not_compared_in_silence():
    audit = OneShot(dim=100, rounds=ROUNDS, canaries=25, view="updates", score="sum", participation="poisson:0.5")
    run([audit])
    hidden = OneShot(dim=100, rounds=ROUNDS, canaries=25, participation="poisson:0.5")
    secret = hidden.theory(noise_multiplier=1.0, delta=1e-5)
    assert any("knows the rounds" in warning for warning in audit.result(theory=secret).warnings)
    assert audit.result(theory=audit.theory(noise_multiplier=1.0, delta=1e-5)).warnings == []


def training(audits, **changes):
    settings = {
        "model": mlp(),
        "data": federation([4] * 20),
        "rounds": ROUNDS,
        "cohorts": PoissonCohorts(0.5),
        "client": LocalTraining(optimizer=SGD(learning_rate=0.1)),
        "mechanism": Mechanism(clipping=FixedClipping(0.5), noise_multiplier=0.5),
        "audits": audits,
    }
    return Training(**settings | changes)


def audits_of(model, **changes):
    start = parameter_vector(model).numpy()
    settings = {"dim": start.size, "rounds": ROUNDS, "canaries": 30, "view": "updates"} | changes
    first = OneShot(**settings)
    return [first, first.seen_by("final"), first.seen_by("every:2", initial=start)]


@pytest.mark.parametrize("participation", ["epochs:2", "every-round"])
def test_a_resumed_training_gives_the_same_scores_to_the_bit(tmp_path, participation):
    whole = audits_of(mlp(), participation=participation, score="likelihood-ratio")
    training(whole).run()
    training(audits_of(mlp(), participation=participation, score="likelihood-ratio")).run(until=3, checkpoints=tmp_path)
    resumed = audits_of(mlp(), participation=participation, score="likelihood-ratio")
    training(resumed, workers=2).run(checkpoints=tmp_path)
    for one, other in zip(whole, resumed, strict=True):
        for mine, theirs in zip(one.scores(), other.scores(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert one.result().estimates == other.result().estimates


def test_a_checkpoint_of_other_canaries_is_refused(tmp_path):
    training(audits_of(mlp())).run(until=2, checkpoints=tmp_path)
    with pytest.raises(InputError, match="there audits is"):
        training(audits_of(mlp(), seed=9)).run(checkpoints=tmp_path)


def test_canaries_follow_an_adaptive_clip_norm():
    audit = OneShot(dim=parameter_vector(mlp()).numel(), rounds=ROUNDS, canaries=200, participation="every-round")
    run = training([audit], mechanism=Mechanism(clipping=AdaptiveClipping(initial=5.0), noise_multiplier=0.1))
    run.run()
    clips = [round["clip_norm"] for round in run.history]
    assert clips[0] != clips[-1]
    np.testing.assert_allclose(audit._norms, clips)


def test_a_round_that_failed_may_be_planted_again():
    data = federation([4] * 20)
    audit = OneShot(dim=parameter_vector(mlp()).numel(), rounds=ROUNDS, canaries=30, view="updates")
    bad = training([audit], data=data, server=SGD(learning_rate=1e30))
    with pytest.raises(InputError, match="aborted"):
        bad.run()
    failed = bad.state.round
    assert audit.plant(failed, clip_norm=0.5) is not None


def test_extra_memory_is_bounded():
    dim = 4_000_000
    audit = OneShot(dim=dim, rounds=2, canaries=1000, view="updates")
    release = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    tracemalloc.start()
    audit.plant(0, clip_norm=1.0)
    audit.observe(Release(0, "update", release, divisor=10.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


def test_views_have_names():
    assert parse_view("final") == parse_view("final-change") == View("model", every=None)
    assert parse_view("updates") == View("update")
    assert parse_view("every:5") == View("model", every=5)
    assert parse_view("rounds:3,9") == View("model", every=None, at=(3, 9))
    for wrong in ("", "end", "every", "every:x", "rounds:", "final:3", "updates:1"):
        with pytest.raises(InputError, match="there is no view"):
            parse_view(wrong)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 1}, "dim must be a whole number of at least 2"),
        ({"canaries": 0}, "canaries must be a whole number of at least 1"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"view": "last"}, "there is no view 'last'"),
        ({"view": "every:0"}, "every must be a whole number"),
        ({"view": "every:2"}, "give initial="),
        ({"initial": np.ones(50)}, "initial= goes with views of changes"),
        ({"view": "final-change", "initial": np.ones(49)}, "must have 50 numbers"),
        ({"view": "final-change", "initial": np.full(50, np.nan)}, "must be finite"),
        ({"score": "max"}, "the score max does not go with the view final"),
        ({"score": "rank"}, "there is no score 'rank'"),
        ({"view": "updates", "score": "cosine"}, "max, sum or likelihood-ratio does"),
        ({"view": "every:2", "initial": np.ones(50), "score": "likelihood-ratio"}, "needs each round's update"),
        ({"design": "random"}, "the design must be coin-flips or fixed"),
        ({"family": "cauchy"}, "a family of update canaries is hadamard or gaussian"),
        ({"participation": "epochs:9"}, "cannot be cut into 9 epochs"),
        ({"participation": 3}, "participation must be"),
        ({"participation": ScheduledParticipation([[0, 0]] * 6)}, "plants a canary twice"),
        ({"norm": 0.0}, "norm must be a positive number"),
        ({"view": "every:7", "initial": np.ones(50)}, "sees nothing before the end: there are 6 rounds"),
        ({"view": "rounds:1,6", "initial": np.ones(50)}, "asks for round 6: 6 are counted from 0"),
        ({"view": ["final", "updates"]}, "view must be a text"),
        (
            {"family": "hadamard", "canaries": 13},
            "26 hadamard canaries, planted and held out, need at least 52 dimensions",
        ),
        ({"canaries": 10**7}, "canaries must be at most 1,000,000"),
        ({"canaries": 1, "seed": 1}, "leaves nothing to compare"),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        OneShot(**{"dim": 50, "rounds": ROUNDS, "canaries": 5} | changes)


def ready(view="updates", **changes):
    audit = OneShot(**{"dim": 50, "rounds": 3, "canaries": 5, "view": view} | changes)
    audit.plant(0, clip_norm=1.0)
    return audit


@pytest.mark.parametrize(
    ("release", "message"),
    [
        (Release(0, "update", np.ones(49, dtype=np.float32)), "the release of round 0 must have 50 numbers"),
        (Release(0, "update", np.full(50, np.nan, dtype=np.float32)), "the release of round 0 must be finite"),
        (Release(0, "update", np.full(50, np.inf, dtype=np.float32)), "the release of round 0 must be finite"),
        (Release(0, "update", np.zeros(50, dtype=np.float32)), "a zero update has no direction"),
        (Release(0, "model", np.ones(50, dtype=np.float32)), "sees the update of a round, got its model"),
        (Release(1, "update", np.ones(50, dtype=np.float32)), "round 1 was observed before it was planted"),
        (Release(7, "update", np.ones(50, dtype=np.float32)), "made for 3 rounds"),
    ],
)
def test_wrong_releases_are_refused_by_their_round(release, message):
    audit = ready()
    with pytest.raises(InputError, match=message):
        audit.observe(release)
    audit.observe(Release(0, "update", np.ones(50, dtype=np.float32), divisor=1.0))


def test_what_a_view_does_not_see_is_refused():
    audit = ready("final")
    with pytest.raises(InputError, match="the view final does not see round 0"):
        audit.observe(Release(0, "model", np.ones(50, dtype=np.float32)))


def test_a_round_is_planted_once_and_observed_once():
    audit = ready()
    with pytest.raises(InputError, match="round 0 was planted already"):
        audit.plant(0, clip_norm=1.0)
    audit.observe(Release(0, "update", np.ones(50, dtype=np.float32), divisor=1.0))
    with pytest.raises(InputError, match="round 0 was observed already"):
        audit.observe(Release(0, "update", np.ones(50, dtype=np.float32), divisor=1.0))
    with pytest.raises(InputError, match="made for 3 rounds"):
        audit.plant(3, clip_norm=1.0)


def test_a_result_needs_what_the_view_sees_and_ends_the_planting():
    audit = ready()
    with pytest.raises(InputError, match="has seen no release yet"):
        audit.scores()
    with pytest.raises(InputError, match="the view updates sees rounds 0, 1, 2 of 3, and nothing of that was observed"):
        audit.result()
    done = OneShot(dim=50, rounds=ROUNDS, canaries=20)
    run([done])
    done.result()
    with pytest.raises(InputError, match="nothing can be planted after it"):
        done.plant(0, clip_norm=1.0)
    skipped = OneShot(dim=50, rounds=2, canaries=20)
    skipped.plant(1, clip_norm=1.0)
    skipped.observe(Release(1, "model", np.ones(50, dtype=np.float32)))
    with pytest.raises(InputError, match="canaries were never planted in round 0"):
        skipped.result()


def test_where_nothing_is_clipped_canaries_need_a_length():
    with pytest.raises(InputError, match="give norm="):
        ready().plant(1, clip_norm=np.inf)
    planted = ready(norm=2.0, participation="every-round", dim=5000).plant(1, clip_norm=np.inf)
    assert np.linalg.norm(planted.total) == pytest.approx(2.0 * np.sqrt(planted.updates), rel=1e-5)
    with pytest.raises(InputError, match="the clip norm must be above 0"):
        ready().plant(1, clip_norm=0.0)


def test_two_audits_that_would_plant_the_same_canaries_are_refused():
    first, second = (OneShot(dim=1091, rounds=ROUNDS, canaries=30, view=view) for view in ("final", "updates"))
    with pytest.raises(InputError, match="gaussian canaries of seed 0"):
        training([first, second])
    training([first, first.seen_by("updates"), OneShot(dim=1091, rounds=ROUNDS, canaries=30, seed=1)])


def test_a_result_and_its_promise_are_for_the_same_delta():
    audit = OneShot(dim=500, rounds=ROUNDS, canaries=20)
    run([audit])
    theory = audit.theory(noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(InputError, match=r"asked for at delta = 1e-05, but the theory is for 0\.001"):
        audit.result(delta=1e-5, theory=theory)
    with pytest.raises(InputError, match="theory must be a Theory"):
        audit.result(theory=4.0)
    assert audit.result(theory=theory).estimates[0].delta == 1e-3
    assert audit.result()["gaussian-fit"].delta == 1e-5
    with pytest.raises(InputError, match="there is no figure 'median'"):
        audit.result()["median"]


def test_a_training_longer_than_its_audit_says_so():
    audit = OneShot(dim=parameter_vector(mlp()).numel(), rounds=2, canaries=20)
    with pytest.raises(InputError, match="the audit was made for 2 rounds"):
        training([audit], rounds=3).run()


def test_a_state_is_a_snapshot():
    first, second = (np.random.default_rng(s).standard_normal(50).astype(np.float32) for s in (0, 1))
    audit = ready(score="max", participation="every-round")
    state = audit.state()
    audit.observe(Release(0, "update", first))
    expected = audit.scores()
    audit.plant(1, clip_norm=1.0)
    audit.observe(Release(1, "update", second))
    audit.restore(state)
    audit.observe(Release(0, "update", first))
    for found, before in zip(audit.scores(), expected, strict=True):
        np.testing.assert_array_equal(found, before)


def test_without_any_noise_cosines_stay_cosines():
    for seed in range(10):
        for dim, canaries, family in ((64, 1, "hadamard"), (64, 10, "hadamard"), (3, 1, "gaussian")):
            audit = OneShot(
                dim=dim, rounds=1, canaries=canaries, design="fixed", view="updates", score="max",
                participation="every-round", family=family, seed=seed,
            )  # fmt: skip
            run([audit], noise=0.0, rounds=1)
            assert np.abs(np.concatenate(audit.scores())).max() <= 1
            assert audit.result().bound is not None


def test_a_fixed_share_is_never_promised_less_than_taking_part_always():
    def promised(participation):
        audit = OneShot(dim=50, rounds=40, canaries=100, participation=participation)
        return audit.theory(noise_multiplier=2.0, delta=1e-5).epsilon

    assert promised("fixed:0.95") == promised("every-round")
    assert promised("fixed:0.05") < promised("every-round")


def test_weights_of_shared_rounds_do_not_look_at_single_canaries():
    # Nothing is planted that could be seen (noise of 1000 clip norms): members' scores are null scores too.
    scores = []
    for seed in range(300):
        audit = OneShot(
            dim=128, rounds=10, canaries=32, view="updates", participation="every-round", family="hadamard",
            design="fixed", seed=seed,
        )  # fmt: skip
        run([audit], noise=1000.0, rounds=10, seed=seed)
        scores.append(audit.scores()[0])
    p_values = np.exp(CosineNull(97).log_sf(np.concatenate(scores)))
    for level in (0.1, 0.01):
        for tail in (p_values <= level, p_values >= 1 - level):
            # 9,600 scores, dependent in each run: five binomial standard errors.
            assert abs(tail.mean() - level) < 5 * np.sqrt(level / len(p_values))


def test_a_canary_in_one_unknown_round_has_a_ratio_with_a_mean_of_at_most_1_if_it_was_held_out():
    ratios = []
    for seed in range(60):
        audit = OneShot(dim=300, rounds=5, canaries=100, view="updates", family="gaussian", seed=seed)
        run([audit], noise=2.0, rounds=5, seed=seed, drift=4.0)
        ratios.append(audit.scores()[1])
    found = np.concatenate(ratios)
    assert isinstance(audit.null(), LikelihoodRatioNull)
    likely = np.exp(found)
    assert likely.mean() < 1 + 4 * likely.std() / np.sqrt(len(likely))
    for t in (0.1, 0.5, 1.0):
        assert np.mean(found >= t) <= np.exp(-t)


def test_a_likelihood_ratio_needs_the_divisor():
    with pytest.raises(InputError, match=r"give Release\(divisor"):
        ready(score="likelihood-ratio").observe(Release(0, "update", np.ones(50, dtype=np.float32)))


def test_a_poor_fit_is_warned_of():
    audit = OneShot(dim=3000, rounds=40, canaries=500, view="updates", score="max", participation="epochs:1")
    run([audit], noise=1.0, rounds=40)
    result = audit.result()
    assert result.metrics["anderson_darling_p"] < 0.01
    assert "not normal" in result.warnings[0]


def test_the_null_of_a_sum_over_several_own_rounds_is_not_claimed_to_be_known():
    audit = OneShot(dim=300, rounds=ROUNDS, canaries=20, view="updates", score="sum", participation="epochs:2")
    run([audit])
    assert audit.null() is None
    assert audit.null("max") == LargestOfNull(CosineNull(300), ROUNDS)
    assert "exact-null" not in {e.method for e in audit.result().estimates}


@pytest.mark.parametrize("participation", ["last:1", "every-round"])
def test_nothing_is_shown_where_no_canary_had_a_round_that_counted(participation):
    audit = OneShot(dim=500, rounds=3, canaries=200, view="updates", participation=participation)
    draw = np.random.default_rng(0)
    for round in range(3):
        audit.plant(round, clip_norm=1.0)
        seen = draw.normal(size=500)
        if participation == "every-round" or round == 2:
            audit.skip(round)
            seen = np.zeros(500)
        audit.observe(Release(round, "update", seen.astype(np.float32), divisor=1.0))
    result = audit.result()
    assert result.bound.epsilon == 0
    assert "no canary had a round that counted" in " ".join(result.warnings)


def test_canaries_that_hide_one_another_are_warned_of():
    def warned(canaries):
        audit = OneShot(
            dim=4000, rounds=2, canaries=canaries, view="updates", family="gaussian", participation="every-round"
        )
        run([audit], noise=1.0, rounds=2)
        promise = claimed(17.9, 1e-5)
        return "without any noise they could show about ε = 21.6" in " ".join(audit.result(theory=promise).warnings)

    assert warned(300)
    assert not warned(20)
