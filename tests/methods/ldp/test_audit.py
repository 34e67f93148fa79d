"""The LDP audit as a whole: bugs that are caught, correct claims that are not refuted, what results say."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from coalmine.errors import InputError
from coalmine.methods.ldp.audit import Ldp
from coalmine.methods.ldp.crafters import (
    CRAFTERS,
    Benign,
    DummyGradient,
    GradientFlip,
    InputPerturbation,
    crafter_named,
)
from coalmine.methods.ldp.settings import VIEWS
from coalmine.results.verdict import REPORT, Verdict
from coalmine.simulation import models
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.mechanisms.local import LDPSGD, LDPServer, LocalGaussian, OwnMechanism, PrivUnit2
from ldp_games import DoubledEpsilon, Unclipped, WithoutNormProjection, digits_audit


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_doubled_epsilon_is_caught(epsilon):
    (result,) = digits_audit(
        crafters=[DummyGradient()], mechanisms=[DoubledEpsilon(epsilon=epsilon)], views=["white-box"], trials=2000
    ).run()
    assert result.refuted
    assert epsilon < result.bound.lower <= 2 * epsilon
    assert "Refuted" in result.summary


def test_a_gaussian_mechanism_that_does_not_clip_is_caught():
    settings = {"crafters": [DummyGradient(norm=8.0)], "views": ["likelihood-ratio"], "trials": 5000}
    (bug,) = digits_audit(mechanisms=[Unclipped(epsilon=1.0)], **settings).run()
    (right,) = digits_audit(mechanisms=[LocalGaussian(epsilon=1.0)], **settings).run()
    assert bug.refuted
    assert not right.refuted


def test_ldp_sgd_without_norm_projection_keeps_its_claim_but_short_gradients_leak_more():
    # A report depends only on the gradient's side: ε-LDP holds without line 2, which makes the mean unbiased. So no
    # audit may refute it; the dummy gradient of norm 0.5 leaks all of ε = 2 instead of 0.80.
    settings = {"crafters": [DummyGradient(norm=0.5)], "views": ["white-box"], "trials": 8000}
    (skipped,) = digits_audit(mechanisms=[WithoutNormProjection(epsilon=2.0)], **settings).run()
    (right,) = digits_audit(mechanisms=[LDPSGD(epsilon=2.0)], **settings).run()
    assert 1.8 < skipped.bound.lower <= 2
    assert right.metrics["empirical"] == pytest.approx(0.802, abs=0.1)


def test_extreme_reports_show_the_epsilon_of_privunit():
    (result,) = digits_audit(
        crafters=[DummyGradient()], mechanisms=[PrivUnit2(epsilon=4.0)], views=["white-box"], trials=30_000
    ).run()
    assert result.metrics["empirical"] < 2.5
    assert 3.5 < result.bound.lower <= 4


def test_every_adversary_and_view_has_a_result_and_none_refutes_a_correct_claim():
    audit = digits_audit(
        crafters=[crafter_named(name) for name in CRAFTERS],
        mechanisms=[LDPSGD(epsilon=4.0)],
        measurements=2,
    )
    results = audit.run()
    keys = [(r.config["crafter"], r.config["epsilon"], r.view) for r in results]
    assert keys == [(c, e, v) for c in CRAFTERS for e in (4.0,) for v in VIEWS]
    excess = [r.bound.lower - r.config["epsilon"] for r in results]
    assert sum(e > 0 for e in excess) <= 3  # of 24, each with probability 5% at most; they are not independent
    by_key = dict(zip(keys, results, strict=True))
    assert by_key["gradient-flip", 4.0, "white-box"].metrics["empirical"] > 3
    assert by_key["benign", 4.0, "white-box"].metrics["empirical"] < 1.5
    for crafter in CRAFTERS:
        assert by_key[crafter, 4.0, "likelihood-ratio"].bound.lower > 2.5
        assert by_key[crafter, 4.0, "parameter-change"].bound.lower > 2.5
    assert by_key["benign", 4.0, "black-box"].bound.lower < 0.5
    first = results[0]
    assert first.bound is first.estimates[0]
    assert [e.method for e in first.estimates] == ["ldp", "one-run", "clopper-pearson", "ranks", "plug-in", "empirical"]
    assert [e.valid for e in first.estimates] == [True] * 4 + [False] * 2
    assert first["empirical"].epsilon == first.metrics["empirical"]
    assert all(e.epsilon == e.lower for r in results for e in r.estimates if e.valid)
    assert first.to_dict()["config"]["crafter"] == "benign"
    assert (first.variant, first.unit, first.side_names) == ("benign, ε = 4", REPORT, ("g₁ sent", "g₂ sent"))
    assert len({r.label for r in results}) == len(results)


def test_small_steps_show_the_black_box_all_that_the_white_box_sees():
    results = digits_audit(
        crafters=[GradientFlip()], mechanisms=[LDPSGD(epsilon=4.0)], views=["black-box"], trials=8000,
        server=LDPServer(scaling="printed", learning_rate=1.0),
    ).run()  # fmt: skip
    assert results[0].bound.lower > 3.3


def test_other_clients_hide_a_report_in_part_from_the_parameter_change():
    bounds = []
    for clients in (1, 4):
        (result,) = digits_audit(
            crafters=[GradientFlip()], mechanisms=[LDPSGD(epsilon=4.0)], views=["parameter-change"], clients=clients,
            trials=1500,
        ).run()  # fmt: skip
        bounds.append(result.bound.lower)
    assert bounds[0] > 2.7
    assert 0.2 < bounds[1] < bounds[0] - 1


def test_the_same_seed_gives_the_same_scores_and_another_does_not():
    def scores(seed):
        return digits_audit(mechanisms=[LDPSGD(epsilon=1.0)], trials=200, seed=seed).run()

    for first, again, other in zip(scores(1), scores(1), scores(2), strict=True):
        np.testing.assert_array_equal(first.scores.members, again.scores.members)
        assert not np.array_equal(first.scores.members[:50], other.scores.members[:50])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 1}, "trials .*at least 2, got 1"),
        ({"trials": 2.5}, "trials .*got 2.5"),
        ({"measurements": 0}, "measurements .*at least 1, got 0"),
        ({"clients": 0}, "clients .*at least 1, got 0"),
        ({"crafters": []}, "crafters .*empty"),
        ({"views": ["gray-box"]}, 'unknown view "gray-box".*black-box'),
        ({"confidence": 1.0}, "confidence .*got 1.0"),
        ({"clients": 10**6}, "1000001 examples"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        digits_audit(**settings)


def test_a_users_crafter_is_a_function_and_its_faults_are_named():
    def difference(model, pair):
        first, second = Benign()(model, pair)
        return first - second, second - first

    results = digits_audit(crafters=[difference], mechanisms=[LDPSGD(epsilon=2.0)], views=["white-box"]).run()
    assert results[0].config["crafter"] == "difference"
    assert results[0].bound.lower > 1.5

    def lazy(model, pair):
        return (Benign()(model, pair)[0],) * 2

    with pytest.raises(InputError, match="crafter lazy returned the same gradient twice"):
        digits_audit(crafters=[lazy]).run()


def test_data_of_one_class_is_refused_for_collusion():
    inputs = np.random.default_rng(0).random((20, 4)).astype(np.float32)
    task = Task(input_shape=(4,), classes=2)
    data = FederatedData(inputs=inputs, targets=np.zeros(20, int), bounds=np.array([[0, 20]]), names=["a"], task=task)
    audit = Ldp(
        data=data, model=lambda seed: models.build("logistic", task, seed=seed), crafters=[crafter_named("collusion")]
    )
    with pytest.raises(InputError, match="at least two classes"):
        audit.run()


def test_a_language_model_is_audited_as_well():
    data = load("generated-text", positions=8, vocabulary_size=50).train
    audit = Ldp(
        data=data, model=lambda seed: models.build("word-lstm", data.task, seed=seed, embedding=8, units=8),
        crafters=[GradientFlip()],
        mechanisms=[LDPSGD(epsilon=2.0)], trials=60, views=["black-box", "parameter-change"],
    )  # fmt: skip
    assert [r.view for r in audit.run()] == ["black-box", "parameter-change"]


def test_a_mechanism_whose_density_is_not_known_is_guessed_in_every_trial():
    # Unit reports in 4,810 dimensions: products with a gradient stay far below the thresholds of a known density.
    def sphere(gradient, rng):
        direction = rng.standard_normal(gradient.size)
        side = 1 if direction @ gradient >= 0 else -1
        return (side if rng.random() < special.expit(2.0) else -side) * direction / np.linalg.norm(direction)

    (result,) = digits_audit(
        crafters=[GradientFlip()], mechanisms=[OwnMechanism(function=sphere, epsilon=2.0)], trials=500,
        views=["likelihood-ratio"],
    ).run()  # fmt: skip
    assert result.metrics["guessed"] == 1
    assert 0.8 < result.metrics["accuracy"] < 0.95


def test_a_subclass_is_audited_by_its_own_reports():
    class NoNoise(LDPSGD):
        def reports(self, gradient, normals, uniforms, *, out):
            out[:] = np.asarray(gradient, np.float32)
            return out

    results = digits_audit(crafters=[DummyGradient()], mechanisms=[NoNoise(epsilon=1.0)], trials=200).run()
    assert [r.refuted for r in results] == [True] * 4


def test_the_claim_is_tested_with_the_joint_bound():
    (result,) = digits_audit(crafters=[DummyGradient()], views=["white-box"]).run()
    bound = result.estimates[0]
    lucky = replace(result, estimates=[replace(bound, epsilon=1.02, lower=1.02)], joint_bound=0.9, claim_test=None)
    assert lucky.verdict is Verdict.NOT_REFUTED
    assert "ε ≥ 0.9 at δ" in lucky.summary
    assert "holds together with the bounds of all other results" in lucky.summary
    assert replace(lucky, joint_bound=1.01, claim_test=None).verdict is Verdict.REFUTED


def test_joint_bounds_never_exceed_single_ones():
    results = digits_audit(crafters=[GradientFlip(), DummyGradient()], views=["white-box"], trials=500).run()
    assert all(r.joint_bound <= r.bound.lower for r in results)
    (alone,) = digits_audit(crafters=[DummyGradient()], views=["white-box"], trials=500).run()
    assert alone.joint_bound == alone.bound.lower


def test_results_speak_of_gradients_and_not_of_members():
    for result in digits_audit(crafters=[DummyGradient()], mechanisms=[LDPSGD(epsilon=2.0)], trials=300).run():
        assert "member" not in str(result.to_dict())
    assert "times likelier when g₁ was sent than when g₂ was" in result.summary


def test_variants_are_unique_by_crafter_norm_and_mechanism():
    crafters = [DummyGradient(norm=0.5), DummyGradient(), InputPerturbation(), InputPerturbation(alpha=0.5)]
    mechanisms = [LDPSGD(epsilon=1.0), PrivUnit2(epsilon=1.0)]
    results = digits_audit(crafters=crafters, mechanisms=mechanisms, views=["white-box"], trials=100).run()
    assert [r.variant for r in results] == [
        "dummy-gradient of norm 0.5, ldp-sgd, ε = 1",
        "dummy-gradient of norm 0.5, privunit, ε = 1",
        "dummy-gradient, ldp-sgd, ε = 1",
        "dummy-gradient, privunit, ε = 1",
        "input-perturbation, ldp-sgd, ε = 1",
        "input-perturbation, privunit, ε = 1",
        "input-perturbation, ldp-sgd #2, ε = 1",
        "input-perturbation, privunit #2, ε = 1",
    ]
