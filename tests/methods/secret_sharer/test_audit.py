"""The audit of a trained model: memorization and ε of phrases and users."""

import json
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.secret_sharer.audit import Memorization, SecretSharer, measure_memorization
from coalmine.methods.secret_sharer.evaluation import SampledRanks
from coalmine.methods.secret_sharer.phrases import Configuration, Language, draw_phrases, grid, insert
from coalmine.results.verdict import PHRASE, USER
from coalmine.simulation import SGD, CentralTraining, models
from coalmine.simulation.data import generated_text
from coalmine.stats import estimate
from federations import texts


@pytest.fixture(scope="module")
def splits():
    return generated_text(users=60, sentences=10, vocabulary_size=150, positions=8)


@pytest.fixture(scope="module")
def trained(splits):
    """A model that has seen some phrases often and others never."""
    canaries = draw_phrases(
        Language.of(splits.train), configurations=grid([0.05, 0.15], [0.05, 1.0]), each=4, twins=3, seed=1
    )
    insertion = insert(splits.train, canaries)
    audit = SecretSharer(small(splits), canaries=canaries, users=insertion.users, references=5000)
    training = CentralTraining(
        model=small(splits), data=insertion.data, rounds=8, steps=50, batch_size=32,
        optimizer=SGD(learning_rate=1.0, momentum=0.5), audits=[audit],
    )  # fmt: skip
    training.run()
    return insertion, audit, training


def small(splits, seed=0):
    return models.build("word-lstm", splits.train.task, embedding=16, units=48, seed=seed)


def test_phrases_inserted_often_are_memorized_and_held_out_ones_are_not(trained):
    insertion, audit, _ = trained
    memorization = audit.memorization()
    often = insertion.copies > 30
    assert often.sum() >= 4
    assert memorization.memorized[often].all()
    assert memorization.extracted[often].all()
    assert not memorization.sampled.memorized[~insertion.phrases.inserted].any()
    assert np.median(memorization.sampled.exposures[~insertion.phrases.inserted]) < 3


def test_what_beam_search_extracts_is_first_among_random_phrases(trained):
    memorization = trained[1].memorization()
    assert np.all(memorization.sampled.ranks[memorization.beam_hits] == 1)


def test_the_audit_sees_the_final_model_and_leaves_its_module_alone(trained):
    _, audit, training = trained
    audit.memorization()
    assert np.array_equal(audit._final, training.state.model.numpy())
    again = measure_memorization(training.module(), audit.canaries, references=5000)
    np.testing.assert_allclose(again.losses, audit.memorization().losses, rtol=1e-5)
    fresh = SecretSharer(audit._module, canaries=audit.canaries)
    fresh.restore(audit.state())
    assert np.array_equal(fresh._final, audit._final)


def test_a_final_model_must_be_observed(trained):
    audit = SecretSharer(trained[1]._module, canaries=trained[1].canaries)
    with pytest.raises(InputError, match="never observed"):
        audit.result()
    audit.observe(0, model=np.zeros(5, dtype=np.float32))
    with pytest.raises(InputError, match="5 parameters"):
        audit.result()


def test_the_phrase_bound_is_large_and_that_of_one_user_is_shared_among_all_who_hold_it(trained):
    _, audit, _ = trained
    phrase, user = audit.result(unit="phrase"), audit.result(unit="user")
    assert phrase.bound.epsilon > 0.5
    assert user.bound.epsilon < phrase.bound.epsilon
    assert user.bound.valid
    assert (user.unit, phrase.unit) == (USER, PHRASE)
    assert (user.view, phrase.view) == ("exposure:user", "exposure:phrase")
    assert user.metrics["inserted"] == audit.canaries.inserted.sum()
    assert f"no phrase could be shared by more than {audit.users.max()} users" in user.bound.assumes
    assert all(not e.valid for e in user.estimates if e.method == "median-exposure")
    assert phrase.metrics["memorized"] == audit.memorization().memorized.sum()


def test_scores_calibrated_by_a_reference_model_separate_better(splits, trained):
    insertion, _, training = trained
    reference = CentralTraining(
        model=small(splits), data=splits.train, rounds=4, steps=50, optimizer=SGD(learning_rate=1.0)
    )
    reference.run()
    memorization = measure_memorization(
        training.module(), insertion.phrases, references=500, reference=reference.module()
    )
    assert list(memorization.values) == ["exposure", "loss", "calibrated"]

    def separation(score):
        members, others = memorization.scores(score)
        return (members.mean() - others.mean()) / others.std()

    assert separation("calibrated") > separation("loss") > 0


def made_up(values, inserted, references=1000):
    """What a model could have said: scores without a model."""
    data = texts([5], positions=6, tokens=300)
    drawn = draw_phrases(Language.of(data), configurations=[Configuration(0.1, 0.1)], each=int(inserted.sum()), twins=1)
    ranks = np.argsort(np.argsort(values)) + 1
    return Memorization(
        canaries=drawn,
        losses=values,
        sampled=SampledRanks(ranks, np.full(len(values), references), references),
        beam_hits=np.zeros(len(values), dtype=bool),
    )


def phrase_result(memorization, *, users, **arguments):
    """The result of an audit whose model said this."""
    audit = SecretSharer(nn.Identity(), canaries=memorization.canaries, users=users)
    audit._memorization = memorization
    return audit.result(**arguments)


@pytest.mark.slow
def test_bounds_hold_when_nothing_was_memorized():
    inserted = np.arange(80) < 40
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        memorization = made_up(rng.normal(40, 5, 80), inserted)
        wrong += phrase_result(memorization, users=np.ones(80), score="loss", delta=0.0).bound.epsilon > 0
    # nominal 5%: more than 21 of 200 would be seen once in 1,000 times at exactly 5%
    assert wrong <= 21


def test_held_out_phrases_against_held_out_phrases_show_nothing(trained):
    memorization = trained[1].memorization()
    twins = memorization.scores("loss")[1]
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        order = rng.permutation(len(twins))
        half = len(twins) // 2
        first = estimate(twins[order[:half]], twins[order[half:]], delta=0.0)[0]
        assert first.valid
        wrong += first.epsilon > 0
    assert wrong <= 13  # once in 1,000 at exactly 5%


def test_group_privacy_doubles_where_theory_adds_and_removes():
    memorization = made_up(np.where(np.arange(80) < 40, 5.0, 40.0) + np.arange(80) / 100, np.arange(80) < 40)
    users = np.full(80, 3)
    claim = Claim(epsilon=8.0, delta=1e-5)
    alone = phrase_result(memorization, users=users)
    compared = phrase_result(memorization, users=users, claim=claim)
    whole = phrase_result(memorization, users=users, unit="phrase")
    assert alone.bound.epsilon == pytest.approx(whole["simultaneous"].epsilon / 3, rel=1e-3)
    assert compared.bound.epsilon == pytest.approx(alone.bound.epsilon / 2, rel=1e-3)
    with pytest.raises(InputError, match="number of users"):
        phrase_result(memorization, users=None)
    with pytest.raises(InputError, match="user or phrase"):
        phrase_result(memorization, users=users, unit="word")
    with pytest.raises(InputError, match=r"score .* exposure, loss"):
        phrase_result(memorization, users=users, score="calibrated")


def test_coin_flips_give_a_bound_for_one_user_that_needs_no_independence():
    rng = np.random.default_rng(4)
    memorization = made_up(np.where(np.arange(80) < 40, 5.0, 40.0) + np.arange(80) / 100, np.arange(80) < 40)
    coins = rng.permutation(np.arange(80) < 40)
    canaries = replace(memorization.canaries, design="coin-flips", inserted=coins)
    memorization = replace(memorization, canaries=canaries, losses=np.where(coins, 5.0, 40.0) + np.arange(80) / 100)
    users = np.where(coins, 2, 0)
    claim = Claim(epsilon=8.0, delta=1e-5)

    def result(most_users, claim=None):
        audit = SecretSharer(nn.Identity(), canaries=canaries, users=users, most_users=most_users)
        audit._memorization = memorization
        return audit.result(score="loss", claim=claim)

    few, many = result(2), result(3)
    assert [e.method for e in few.estimates] == ["one-run", "simultaneous", "median-exposure"]
    assert (
        few.bound.assumes == "each canary was inserted by its own fair coin flip; no phrase could be shared by "
        "more than 2 users"
    )
    # A held-out phrase could have been shared by more users than any inserted one.
    assert many.bound.epsilon == pytest.approx(few.bound.epsilon * 2 / 3, rel=0.05)
    assert result(3, claim).claim_test.assumes == "each canary was inserted by its own fair coin flip"


def test_the_lowest_configuration_is_the_rarest_with_a_canary(trained):
    memorization = trained[1].memorization()
    canaries = memorization.canaries
    content = memorization.to_dict()
    assert json.loads(json.dumps(content))["planted"] == canaries.inserted.sum()
    assert sum(row["canaries"] for row in content["configurations"]) == canaries.inserted.sum()
    rarest = min(np.flatnonzero(memorization.memorized), key=lambda i: canaries.configuration(i).frequency)
    assert content["random_sampling_lowest"] == [canaries.configuration(rarest).p_u, canaries.configuration(rarest).p_e]
    nothing = replace(memorization, beam_hits=np.zeros(len(canaries), dtype=bool)).to_dict()
    assert (nothing["beam_search"], nothing["beam_search_lowest"]) == (0, None)
