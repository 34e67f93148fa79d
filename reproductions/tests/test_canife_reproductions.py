"""The figures of the CANIFE paper at a tiny size: the rounds they are made of, and that all rows are complete."""

import os
from dataclasses import replace

import numpy as np
import pytest

from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.design import DesignSettings
from coalmine.methods.canife.pool import MockClients
from coalmine.methods.canife.samples import design_samples
from coalmine_reproductions import (
    canife_ablations,
    canife_attack,
    canife_claims,
    canife_histograms,
    canife_monitoring,
    canife_resnet,
    canife_sizes,
    canife_training,
)
from coalmine_reproductions.canife_attack import (
    PAPER,
    REFERENCE,
    AttackRounds,
    Crafting,
    perfect_update,
    real_rounds,
    summed_rounds,
)
from coalmine_reproductions.canife_scenes import Scene, at_most, divided, frozen, users
from coalmine_reproductions.catalog import find
from coalmine_reproductions.claims import Agreement
from coalmine_reproductions.table import Context

pytestmark = pytest.mark.slow

SCENE = Scene(
    data="digits",
    model="mlp",
    steps=20,
    client_rate=0.5,
    options=(("partition", "iid:60"), ("pool_fraction", 0.3)),
    sizes=(("hidden", 8),),
    batch_size=8,
    clients=40,
)
SIZE = canife_sizes.CanifeSize(
    single=SCENE,
    several=SCENE,
    texts=SCENE,
    resnet=replace(SCENE, clients=12),
    resnet_pool=6,
    resnet_iterations=3,
    resnet_reference_iterations=3,
    resnet_trials=20,
    reference_iterations=3,
    constant_iterations=3,
    canaries=2,
    cohort=8,
    pool=6,
    cohorts=(4, 8),
    pools=(6,),
    private_rounds=2,
    perfect_trials=30,
    perfect_clients=20,
    users=8,
    user_pool=6,
    user_pools=(3, 6),
    iterations=(0, 3),
    text_steps=(5,),
    constants=(1, 5),
)
MONITORED = canife_training.MonitoringSize(
    scenes=(canife_training.AttackedScene(scene=replace(SCENE, steps=8, split=5), every=4, iterations=3),),
    epsilons=(50,),
    without_noise=("digits",),
    cohorts=(8,),
    trials=30,
    more_trials=40,
    pool=6,
    attacked=30,
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(canife_sizes.SIZES, "quick", SIZE)
    monkeypatch.setitem(canife_training.SIZES, "quick", MONITORED)
    ablations = [(canife_ablations, name) for name in ("PAPER", "OURS", "PUBLISHED")]
    others = [(module, name) for module in (canife_histograms, canife_training) for name in ("PAPER", "OURS")]
    for module, name in ablations + others:
        monkeypatch.setattr(module, name, getattr(canife_attack, name).with_design(iterations=3))


def complete(table):
    assert table.rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    return table


def not_tried(table):
    return [claim.text for claim in table.judged() if claim.agreement is Agreement.NOT_TRIED]


def column(table, name):
    return [row[table.columns.index(name)] for row in table.rows]


def test_rounds_summed_from_precomputed_updates_have_the_scores_of_real_rounds():
    target = frozen(SCENE)
    canary = GivenUpdates(np.arange(1.0, target.updates.shape[1] + 1))
    rounds = AttackRounds(cohort=8, noise_multiplier=0.3, trials=12, score="plain")
    summed, real = (hold(canary, target, rounds, seed=5) for hold in (summed_rounds, real_rounds))
    assert np.array_equal(summed.present, real.present)
    assert np.allclose(summed.scores, real.scores, atol=1e-5)
    assert summed.scores.std() > 0.1


def test_a_perfect_canary_is_orthogonal_to_the_updates_of_all_clients():
    target = frozen(SCENE)
    update = perfect_update(target)
    assert np.linalg.norm(update) == pytest.approx(1, abs=1e-6)
    assert np.abs(target.updates.numpy() @ update).max() < 1e-6
    rounds = AttackRounds(cohort=8, trials=20, score="plain")
    period = summed_rounds(GivenUpdates(update), target, rounds, seed=0)
    assert np.allclose(period.scores, period.present, atol=1e-5)


def test_a_canary_with_a_rate_of_its_own_is_as_long_as_its_gradient():
    target = frozen(replace(SCENE, client_rate=0.01))
    lengths = {}
    for adversary in (PAPER, REFERENCE):
        crafting = Crafting(adversary=adversary.with_design(iterations=0), pool=6)
        rounds = [AttackRounds(cohort=8, trials=20, score="plain")]
        ((canary,),) = canife_attack.attacked(target, crafting, rounds)
        lengths[adversary.name] = canary["norm"]
    assert lengths["reference"] == pytest.approx(100 * lengths["paper"], rel=1e-5)


def test_users_keep_their_first_examples():
    everything, first = users(SCENE).train, at_most(3, users(SCENE).train)
    assert first.sizes.max() == 3
    assert np.array_equal(first.client(1).inputs, everything.client(1).inputs[:3])


def test_figure_3_shows_a_perfect_canary_that_measures_the_mechanism(tiny):
    table = complete(canife_histograms.figure_3(Context()))
    assert column(table, "figure").count("c") == 2
    assert not_tried(table) == []
    assert "a; conventions of the published code" in column(table, "figure")
    perfect = table.rows[column(table, "figure").index("a perfect canary")]
    assert 0.3 < float(perfect[8]) < 0.55  # the noise is 0.423
    assert 7 < table.numbers["perfect epsilon"][0] < 20  # the Gaussian mechanism has 12.31


def test_resnet18_is_attacked_in_real_rounds(tiny):
    table = complete(canife_resnet.resnet18(Context()))
    assert column(table, "canary") == ["Loss 2", "coalmine", *["Loss 2, conventions of the published code"] * 2]
    assert column(table, "scored along") == ["the canary", "the likelihood ratio"] * 2
    assert not_tried(table) == []


def test_ablations_share_what_they_have_in_common(tiny, tmp_path):
    context = Context(directory=tmp_path)
    table = complete(canife_ablations.figure_5(context))
    assert [row[0] for row in table.rows] == ["a"] * 4 + ["b"] * 3 + ["c"]
    assert not_tried(table) == ["accuracy after 1,000 iterations"]
    before = {file.name for file in tmp_path.iterdir()}
    complete(canife_ablations.figure_8a(context))
    added = {file.name for file in tmp_path.iterdir()} - before
    assert len(added) == 2  # those of Loss 1; Loss 2 is shared
    complete(canife_ablations.figure_9(context))
    assert len(list(tmp_path.iterdir())) == len(before) + 3


def test_trainings_are_attacked_along_the_way_and_shared_by_figures(tiny, tmp_path):
    context = Context(directory=tmp_path)
    table = complete(canife_monitoring.figure_4(context))
    assert column(table, "canary") == ["Loss 2", "coalmine", "coalmine", "perfect", "Loss 2"]
    assert column(table, "trials") == ["30", "30", "40", "30", "30"]
    assert column(table, "ε") == ["50"] * 4 + ["∞"]
    assert all(float(gap) > 1 for gap in column(table, "ε / ε̂")[:-1])
    assert set(table.draw()) == {"canife-figure-1", "canife-figure-4", "canife-figure-7"}
    before = (tmp_path / "quick-0-canife-digits-50-clients-8.json").stat().st_mtime_ns
    cohorts = complete(canife_monitoring.figure_8(context))
    assert cohorts.rows[-1][0] == "b, c"
    assert not_tried(cohorts) == []
    assert (tmp_path / "quick-0-canife-digits-50-clients-8.json").stat().st_mtime_ns == before
    assert not_tried(canife_monitoring.table_1(context))  # digits are no texts


def test_stability_is_judged_over_seeds_only():
    claim = next(c for c in canife_claims.figure_4((50,), ["mnist"]) if "stable over runs" in c.text)
    assert claim.judged({"composed mnist 50": [5.0]}).agreement is Agreement.NOT_TRIED
    assert claim.judged({"composed mnist 50": [5.0, 5.5, 4.5]}).agreement is Agreement.AGREES  # 10%
    assert claim.judged({"composed mnist 50": [5.0, 9.0, 1.0]}).agreement is Agreement.NOT


@pytest.mark.skipif("COALMINE_DATA" not in os.environ, reason="COALMINE_DATA names no directory of data")
def test_texts_of_training_users_are_designed_and_shown_beside_their_start():
    text = Scene(
        data="shakespeare",
        model="shakespeare-lstm",
        steps=1,
        client_rate=3.0,
        options=(("pool_fraction", 0.15), ("min_examples", 4), ("positions", 8)),
        sizes=(("hidden", 4),),
        most=2,
        clients=4,
    )
    target = frozen(text)
    rows = canife_training.designed_texts(target, replace(MONITORED, texts=2), 3)
    vocabulary = target.clients.vocabulary
    assert [row["before"] for row in rows] == [vocabulary.decode(target.clients.client(i).inputs[0]) for i in (0, 1)]
    assert all(row["after"] and row["health"] >= 0 for row in rows)


def test_users_are_divided_into_clients_of_few_examples():
    everyone = users(SCENE).train
    parts = divided(4, everyone, seed=1)
    assert parts.sizes.max() == 4
    assert sorted(row for bounds in parts.bounds for row in range(*bounds)) == sorted(
        row for bounds in everyone.bounds for row in range(*bounds)
    )
    assert divided(None, everyone, seed=1) is everyone


def test_figures_of_canife_are_found_by_their_short_names():
    for number in (3, 4, 5, 8, 9):
        assert find(f"canife-fig{number}") == f"canife-figure-{number}"


@pytest.mark.skipif("COALMINE_DATA" not in os.environ, reason="COALMINE_DATA names no directory of data")
def test_designs_on_real_texts_are_healthy():
    scene = replace(canife_sizes.SIZES["quick"].texts, steps=90)
    target = frozen(scene)
    pool = MockClients(target.model, target.mock.subset(range(100)), target.client).pool(target.clip_norm)
    healths = {}
    for name, settings in (("default", {}), ("fast", {"learning_rate": 1.0, "schedule": "cosine"})):
        design = design_samples(
            target.model, pool, task=target.mock.task, client=target.client, count=2,
            settings=DesignSettings(loss="covariance", iterations=100, **settings),
        )  # fmt: skip
        healths[name] = [canary.health for canary in design.canaries]
    assert min(healths["default"]) > 0.8
    assert min(healths["default"]) > max(healths["fast"])
