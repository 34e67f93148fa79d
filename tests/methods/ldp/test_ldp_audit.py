"""The LDP audit: closed forms of its tests, two ways to play a trial, bounds that hold, bugs that are caught."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special, stats
from torch import nn

from coalmine.errors import InputError
from coalmine.methods.ldp.audit import VIEWS, LDPAudit
from coalmine.methods.ldp.black_box import BlackBox, play_together
from coalmine.methods.ldp.crafters import (
    CRAFTERS,
    Benign,
    DummyGradient,
    GradientFlip,
    Pair,
    craft,
    crafter_named,
    load_vector,
)
from coalmine.methods.ldp.estimates import blind_epsilon, estimates
from coalmine.methods.ldp.lines import LineLosses
from coalmine.methods.ldp.many_models import ManyModels
from coalmine.methods.ldp.trials import Crafted, Plane, Trials, is_memoryless, tossed, white_box
from coalmine.simulation import models
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian, Server
from coalmine.simulation.mechanisms.privunit import PrivUnit2
from coalmine.simulation.mechanisms.user import OwnMechanism
from coalmine.stats import Counts

EPSILONS = (0.5, 1.0, 2.0, 4.0)
TASK = Task(input_shape=(1, 24, 24), classes=3)


def crafted(first, second, *, rule="loss-falls", module=None, pair=None, others=None):
    """A crafted pair; the model and the examples matter to black-box trials alone."""
    first, second = np.asarray(first, np.float32), np.asarray(second, np.float32)
    module = module or nn.Linear(1, 1)
    pair = pair or Pair(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), Task(input_shape=(1,), classes=2))
    others = np.empty((0, first.size), np.float32) if others is None else others
    return Crafted(first, second, module, pair, rule, others)


def at_angle(angle, lengths=(1.0, 1.0), dim=200):
    """Two gradients of these lengths at this angle."""
    first, second = np.zeros((2, dim))
    first[0], second[:2] = lengths[0], (lengths[1] * math.cos(angle), lengths[1] * math.sin(angle))
    return crafted(first, second)


def dummy(dim=1000):
    vector = np.full(dim, 1 / math.sqrt(dim))
    return crafted(vector, -vector)


def image_games(rule="larger-change", module=None):
    """A small network, two images and their gradients."""
    rng = np.random.default_rng(0)
    module = module or models.build("ldp-cnn", TASK)
    pair = Pair.of(Examples(rng.random((2, 1, 24, 24)).astype(np.float32), np.array([0, 2])), TASK)
    return crafted(*craft(Benign(), module, pair), rule=rule, module=module, pair=pair)


def digits_audit(**settings):
    data = load("digits").train
    defaults = {"data": data, "model": lambda seed: models.build("mlp", data.task, seed=seed), "trials": 2000}
    return LDPAudit(**(defaults | settings))


def test_the_papers_example_of_equation_3_is_ln_8():
    assert Counts(tp=80, fn=20, fp=10, tn=90).plug_in(0.0) == pytest.approx(math.log(8))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_worst_case_is_right_as_often_as_epsilon_allows(epsilon):
    trials = white_box(dummy(), LDPSGD(epsilon=epsilon), 200_000, np.random.default_rng(0))["white-box"]
    right = float(special.expit(epsilon))
    error = math.sqrt(right * (1 - right) / 200_000)
    assert trials.guesses.correct / 200_000 == pytest.approx(right, abs=4 * error)


@pytest.mark.parametrize("angle", [0.3, math.pi / 2, 2.5])
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (0.5, 3.0)])
def test_cosines_tell_two_gradients_apart_by_their_angle_and_norms(angle, lengths):
    # P(guess g1 | g1) = 1/2 + ‖x1‖/L · (2p − 1) · φ/2π, and likewise for g2: the angle between the gradient and the
    # boundary of the test is (π − φ)/2.
    trials = white_box(at_angle(angle, lengths), LDPSGD(epsilon=2.0), 200_000, np.random.default_rng(1))["white-box"]
    counts, gain = trials.counts, (2 * special.expit(2.0) - 1) * angle / (2 * math.pi)
    assert counts.tp / counts.members == pytest.approx(0.5 + min(1, lengths[0]) * gain, abs=0.007)
    assert counts.tn / counts.nonmembers == pytest.approx(0.5 + min(1, lengths[1]) * gain, abs=0.007)


def test_the_likelihood_ratio_shows_all_of_epsilon_where_cosines_show_a_quarter():
    seen = white_box(at_angle(math.pi / 2), LDPSGD(epsilon=4.0), 50_000, np.random.default_rng(2))
    assert seen["white-box"].counts.plug_in(0.0) < 1.2
    bound = estimates([seen["likelihood-ratio"]], delta=0.0, confidence=0.95)[0]
    assert 0.93 * 4 < bound.lower <= 4


@pytest.mark.parametrize("mechanism", [LDPSGD(epsilon=1.0), PrivUnit2(epsilon=1.0), LocalGaussian(epsilon=1.0)])
def test_likelihood_ratios_of_one_report_are_exact(mechanism):
    # The mean of exp(−log ratio) under g1 is 1 for the true ratio; ours has one where both densities are positive.
    given = at_angle(1.0, (0.7, 2.0))
    plane = Plane.of(given)
    total = mechanism.projections(plane.first, given.dim, np.random.default_rng(0), 200_000)
    inverse = np.exp(-plane.log_ratio(total, mechanism, given.dim, 1))
    assert inverse.mean() == pytest.approx(1, abs=5 * inverse.std() / math.sqrt(200_000))


def test_likelihood_ratios_among_several_clients_are_calibrated_in_many_dimensions():
    given, mechanism, rng = at_angle(2.0, dim=3000), LDPSGD(epsilon=2.0), np.random.default_rng(0)
    plane = Plane.of(given)
    total = mechanism.projections(plane.first, 3000, rng, 100_000)
    for _ in range(3):
        others = rng.standard_normal(total.shape)
        total += others / np.sqrt(rng.chisquare(2998, 100_000) + (others**2).sum(axis=1))[:, None]
    inverse = np.exp(-plane.log_ratio(total, mechanism, 3000, 4))
    assert inverse.mean() == pytest.approx(1, abs=5 * inverse.std() / math.sqrt(100_000))


def test_signs_of_the_parameter_change_find_the_dummy_gradient_as_often_as_theory_says():
    # Σ sgn and Σ of normal coordinates have correlation √(2/π): they agree in sign with probability ½ + asin(√(2/π))/π.
    module = nn.Linear(40, 50)
    task = Task(input_shape=(40,), classes=50)
    pair = Pair(torch.zeros(2, 40), torch.zeros(2, dtype=torch.long), task)
    given = crafted(*craft(DummyGradient(), module, pair), rule="signs", module=module, pair=pair)
    game = BlackBox(given, LDPSGD(epsilon=4.0), Server(), np.random.default_rng(0))
    play_together([game], 20_000, 0)
    guesses = game.trials()["black-box"].guesses
    expected = 0.5 + (2 * special.expit(4.0) - 1) * math.asin(math.sqrt(2 / math.pi)) / math.pi
    assert guesses.correct / guesses.guesses == pytest.approx(expected, abs=4 * 0.003)


class Other(nn.Module):
    """A network that is no plain sequence of layers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(576, 3)

    def forward(self, images):
        return torch.tanh(self.inner(images.flatten(1))) * 2


ODD = [
    nn.Sequential(nn.Conv2d(1, 3, 5, padding=1), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(),
                  nn.Linear(147, 3, bias=False)),
    nn.Sequential(nn.Conv2d(1, 2, 4, stride=3, bias=False), nn.ReLU(), nn.Conv2d(2, 4, 3, padding=2), nn.Flatten(),
                  nn.Linear(324, 3)),
    nn.Sequential(nn.Flatten(), nn.Linear(576, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 3)),
]  # fmt: skip
UNKNOWN = [
    Other(),
    nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), nn.Linear(800, 3)),
    nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(144, 3)),
    nn.Sequential(nn.Flatten(), nn.Linear(576, 8), nn.Tanh(), nn.Linear(8, 3)),
]


@pytest.mark.parametrize(
    "module", [models.build("ldp-cnn", TASK), *ODD, *UNKNOWN], ids=lambda m: str(len(list(m.modules())))
)
def test_losses_on_lines_are_those_of_the_module_itself(module):
    rng = np.random.default_rng(0)
    image, target = torch.rand(1, 1, 24, 24), torch.tensor([1])
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    directions = torch.from_numpy(rng.standard_normal((5, len(base)), dtype=np.float32))
    steps = rng.normal(scale=0.05, size=(5, 3))
    line = LineLosses(module, TASK, image, target)
    assert line.structured == (module not in UNKNOWN)
    found = line.losses(directions, steps)
    many = ManyModels(module, TASK, image, target)
    for i in range(5):
        for j in range(3):
            vector = base + float(steps[i, j]) * directions[i]
            nn.utils.vector_to_parameters(vector, module.parameters())
            with torch.no_grad():
                alone = float(F.cross_entropy(module(image), target))
            nn.utils.vector_to_parameters(base, module.parameters())
            assert found[i, j] == pytest.approx(alone, rel=1e-4, abs=1e-5)
            assert many.losses(vector[None])[0, 0] == pytest.approx(alone, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("rule", ["larger-change", "loss-falls", "signs"])
def test_trials_on_lines_are_the_trials_with_whole_vectors(rule):
    given = image_games(rule)
    played = []
    for on_lines in (True, False):
        games = [BlackBox(given, LDPSGD(epsilon=e), Server(), np.random.default_rng(7)) for e in (1.0, 4.0)]
        play_together(games, 300, seed=3, on_lines=on_lines)
        played.append([game.trials() for game in games])
    for fast, slow in zip(*played, strict=True):
        for view, one in fast.items():
            np.testing.assert_array_equal(one.members, slow[view].members)
            np.testing.assert_allclose(one.scores, slow[view].scores, atol=1e-3)


def test_trials_have_the_error_rates_of_algorithm_3_written_out():
    # An independent loop in float64; two-sample tests of both rates at 1e-4.
    given, epsilon, step = image_games("loss-falls"), 2.0, 1.5
    server = Server(learning_rate=step / LDPSGD(epsilon=epsilon).server_factor(given.dim))
    game = BlackBox(given, LDPSGD(epsilon=epsilon), server, np.random.default_rng(0))
    play_together([game], 4000, 0)
    ours = game.trials()["black-box"].counts
    rng, module = np.random.default_rng(1), given.model
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    x, y = given.pair.inputs[:1], given.pair.targets[:1]
    theirs = np.zeros((2, 2), dtype=int)
    with torch.no_grad():
        before = float(F.cross_entropy(module(x), y))
        for _ in range(1500):
            which = int(rng.random() < 0.5)
            gradient = (given.first if which == 0 else given.second).astype(float)
            gradient *= min(1, 1 / np.linalg.norm(gradient))
            norm = np.linalg.norm(gradient)
            z = gradient / norm * (1 if rng.random() < 0.5 + norm / 2 else -1)
            v = rng.standard_normal(given.dim)
            v /= np.linalg.norm(v)
            side = np.sign(z @ v) * (1 if rng.random() < math.exp(epsilon) / (1 + math.exp(epsilon)) else -1)
            moved = base - torch.from_numpy((step * side * v).astype(np.float32))
            nn.utils.vector_to_parameters(moved, module.parameters())
            theirs[which, int(float(F.cross_entropy(module(x), y)) > before)] += 1
    nn.utils.vector_to_parameters(base, module.parameters())
    assert stats.fisher_exact([[ours.tp, ours.fn], theirs[0].tolist()]).pvalue > 1e-4
    assert stats.fisher_exact([[ours.fp, ours.tn], theirs[1].tolist()]).pvalue > 1e-4


def test_parameters_among_three_clients_betray_what_an_independent_sum_of_reports_does():
    # Algorithm 1 written out for all trials at once. Four Kolmogorov–Smirnov tests at 1e-4 each.
    rng, epsilon, dim, count = np.random.default_rng(5), 3.0, 12, 6000
    first, second, *others = rng.standard_normal((4, dim)) * np.array([0.2, 0.1, 0.4, 0.1])[:, None]
    given = crafted(first, second, others=np.array(others, np.float32), module=nn.Linear(2, 4))

    def report(gradients):
        lengths = np.linalg.norm(gradients, axis=1)
        towards = np.where(rng.random(count) < 0.5 + np.minimum(1, lengths) / 2, 1, -1)
        v = rng.standard_normal((count, dim))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        told = np.where(rng.random(count) < math.exp(epsilon) / (1 + math.exp(epsilon)), 1, -1)
        return (np.sign(np.sum(v * gradients, axis=1)) * towards * told)[:, None] * v

    members, plane, mechanism = rng.random(count) < 0.5, Plane.of(given), LDPSGD(epsilon=epsilon)
    total = report(np.where(members[:, None], first, second))
    total += sum(report(np.repeat(other[None], count, axis=0)) for other in others)
    expected = plane.log_ratio(total @ plane.basis, mechanism, dim, 3)
    for server in (Server(), Server(scaling="printed", learning_rate=1.0)):
        game = BlackBox(given, mechanism, server, np.random.default_rng(1), ["parameter-change"])
        play_together([game], count, 2)
        seen = game.trials()["parameter-change"]
        for sent in (True, False):
            assert stats.ks_2samp(seen.scores[seen.members == sent], expected[members == sent]).pvalue > 1e-4


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_bound_is_within_five_percent_of_epsilon_in_the_worst_case(epsilon):
    trials = white_box(dummy(), LDPSGD(epsilon=epsilon), 100_000, np.random.default_rng(3))["white-box"]
    bound = estimates([trials], delta=0.0, confidence=0.95)[0]
    assert bound.valid
    assert 0.95 * epsilon < bound.lower <= epsilon


@pytest.mark.parametrize(("mechanism", "view"), [(LDPSGD, "white-box"), (PrivUnit2, "likelihood-ratio")])
@pytest.mark.parametrize("measurements", [1, 3])
def test_bounds_exceed_epsilon_in_at_most_five_percent_of_audits(mechanism, view, measurements):
    # 150 audits: a bound that fails in 5% has more than 16 failures in one of 690 runs with other seeds.
    exceeded = 0
    for seed in range(150):
        rng = np.random.default_rng([seed, measurements])
        seen = [white_box(dummy(50), mechanism(epsilon=1.0), 400, rng)[view] for _ in range(measurements)]
        found = estimates(seen, delta=0.0, confidence=0.95)
        exceeded += found[0].lower > 1.0
    assert exceeded <= 16


def test_bounds_of_a_mechanism_that_hides_all_stay_at_zero():
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        trials = Trials(rng.standard_normal(1000), np.arange(1000) < rng.binomial(1000, 0.5))
        found.append(estimates([trials], delta=0.0, confidence=0.95)[0].lower)
    # A bound that fails in 5% has more than 20 failures of 200 in one of 860 runs.
    assert np.sum(np.array(found) > 0) <= 20


class Doubled(LDPSGD):
    """The planted bug: e^2ε where e^ε is promised."""

    @property
    def chance(self):
        return float(special.expit(2 * self.epsilon))


class Unclipped(LocalGaussian):
    """The planted bug: gradients are not projected onto the ball that the noise is made for."""

    def clipped(self, gradient):
        return np.asarray(gradient, dtype=float)


class NormUnseen(LDPSGD):
    """Line 2 of Algorithm 1 left out: short gradients are sent as if they were long."""

    def length(self, gradient):
        return 1.0


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_epsilon_taken_twice_is_caught(epsilon):
    (result,) = digits_audit(
        crafters=[DummyGradient()], mechanisms=[Doubled(epsilon=epsilon)], views=["white-box"], trials=4000
    ).run()
    assert result.refuted
    assert epsilon < result.bound.lower <= 2 * epsilon
    assert "has a bug" in result.meaning


def test_a_gaussian_mechanism_that_does_not_project_is_caught():
    settings = {"crafters": [DummyGradient(norm=8.0)], "views": ["likelihood-ratio"], "trials": 10_000}
    (bug,) = digits_audit(mechanisms=[Unclipped(epsilon=1.0)], **settings).run()
    (right,) = digits_audit(mechanisms=[LocalGaussian(epsilon=1.0)], **settings).run()
    assert bug.refuted
    assert not right.refuted


def test_leaving_out_the_norm_projection_of_ldp_sgd_breaks_no_promise_but_shows_in_short_gradients():
    # A report depends on the gradient's side alone: ε-LDP holds without line 2, which is there for the mean. So no
    # audit may refute it; the dummy gradient of norm 0.5 leaks all of ε = 2 instead of 0.80.
    settings = {"crafters": [DummyGradient(norm=0.5)], "views": ["white-box"], "trials": 8000}
    (skipped,) = digits_audit(mechanisms=[NormUnseen(epsilon=2.0)], **settings).run()
    (right,) = digits_audit(mechanisms=[LDPSGD(epsilon=2.0)], **settings).run()
    assert 1.8 < skipped.bound.lower <= 2
    assert right.metrics["empirical"] == pytest.approx(0.802, abs=0.1)


def test_extreme_reports_show_the_epsilon_of_privunit():
    (result,) = digits_audit(
        crafters=[DummyGradient()], mechanisms=[PrivUnit2(epsilon=4.0)], views=["white-box"], trials=30_000
    ).run()
    assert result.metrics["empirical"] < 2.5
    assert 3.5 < result.bound.lower <= 4


def test_every_adversary_and_view_has_a_result_and_none_refutes_what_is_kept():
    audit = digits_audit(
        crafters=[crafter_named(name) for name in CRAFTERS],
        mechanisms=[LDPSGD(epsilon=e) for e in (1.0, 4.0)],
        measurements=2,
    )
    results = audit.run()
    keys = [(r.config["crafter"], r.config["epsilon"], r.view) for r in results]
    assert keys == [(c, e, v) for c in CRAFTERS for e in (1.0, 4.0) for v in VIEWS]
    excess = [r.bound.lower - r.config["epsilon"] for r in results]
    assert sum(e > 0 for e in excess) <= 5  # of 48, each with probability 5% at most; they are not independent
    by_key = dict(zip(keys, results, strict=True))
    assert by_key["gradient-flip", 4.0, "white-box"].metrics["empirical"] > 3
    assert by_key["benign", 4.0, "white-box"].metrics["empirical"] < 1.5
    for crafter in CRAFTERS:
        assert by_key[crafter, 4.0, "likelihood-ratio"].bound.lower > 2.5
        assert by_key[crafter, 4.0, "parameter-change"].bound.lower > 2.5
    assert by_key["benign", 4.0, "black-box"].bound.lower < 0.5
    first = results[0]
    assert first.bound is first.estimates[0]
    assert [e.method for e in first.estimates] == ["ldp", "one-run", "clopper-pearson", "ranks", "plug-in"]
    assert [e.valid for e in first.estimates] == [True] * 4 + [False]
    assert all(e.epsilon == e.lower for r in results for e in r.estimates if e.valid)
    assert first.to_dict()["config"]["crafter"] == "benign"


def test_small_steps_give_the_black_box_all_that_the_white_box_has():
    results = digits_audit(
        crafters=[GradientFlip()], mechanisms=[LDPSGD(epsilon=4.0)], views=["black-box"], trials=20_000,
        server=Server(scaling="printed", learning_rate=1.0),
    ).run()  # fmt: skip
    assert results[0].bound.lower > 3.5


def test_other_clients_hide_a_report_and_a_change_of_parameters_still_shows_something():
    shown = []
    for clients in (1, 4):
        (result,) = digits_audit(
            crafters=[GradientFlip()], mechanisms=[LDPSGD(epsilon=4.0)], views=["parameter-change"], clients=clients,
            trials=3000,
        ).run()  # fmt: skip
        shown.append(result.bound.lower)
    assert shown[0] > 3
    assert 0.3 < shown[1] < shown[0] - 1


def test_the_same_seed_gives_the_same_scores_and_another_does_not():
    def scores(seed):
        return digits_audit(mechanisms=[LDPSGD(epsilon=1.0)], trials=200, seed=seed).run()

    for first, again, other in zip(scores(1), scores(1), scores(2), strict=True):
        np.testing.assert_array_equal(first.scores.members, again.scores.members)
        assert not np.array_equal(first.scores.members[:50], other.scores.members[:50])


def test_blind_guesses_have_an_empirical_epsilon_above_zero():
    rng = np.random.default_rng(0)
    rare = Trials((rng.random(10_000) < 0.02) - 0.5, np.arange(10_000) < 5000)
    even = Trials(rng.random(10_000) - 0.5, np.arange(10_000) < 5000)
    assert 0.005 < blind_epsilon([even], 0.0) < 0.03
    assert 0.05 < blind_epsilon([rare], 0.0) < 0.12


def test_a_projection_onto_a_small_ball_hides_nothing_that_is_not_checked_by_the_bound():
    results = digits_audit(
        crafters=[GradientFlip()], mechanisms=[LDPSGD(epsilon=1.0)], server=Server(learning_rate=0.01, radius=2.0)
    ).run()
    assert all(r.bound.lower <= 1.1 for r in results)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 1}, "trials must be a whole number of at least 2, got 1"),
        ({"trials": 2.5}, "trials must be a whole number"),
        ({"measurements": 0}, "measurements must be a whole number of at least 1"),
        ({"clients": 0}, "clients must be a whole number of at least 1"),
        ({"crafters": []}, "at least one of its crafters"),
        ({"views": ["gray-box"]}, "no view 'gray-box'"),
        ({"confidence": 1.0}, "confidence must be in"),
        ({"clients": 10**6}, "needs 1000001 examples"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        digits_audit(**settings)


def test_trials_of_one_gradient_alone_cannot_tell_and_say_so():
    with pytest.raises(InputError, match="all of 2 trials sent the same gradient by chance: give more trials"):
        Trials(np.zeros(2), np.ones(2, dtype=bool))


def test_a_crafter_of_ones_own_is_a_function_and_its_faults_are_named():
    def own(model, pair):
        first, second = Benign()(model, pair)
        return first - second, second - first

    results = digits_audit(crafters=[own], mechanisms=[LDPSGD(epsilon=2.0)], views=["white-box"]).run()
    assert results[0].config["crafter"] == "own"
    assert results[0].bound.lower > 1.5

    def lazy(model, pair):
        return (Benign()(model, pair)[0],) * 2

    with pytest.raises(InputError, match="the crafter lazy gave the same gradient twice"):
        digits_audit(crafters=[lazy]).run()


def test_data_of_one_class_is_refused_for_collusion():
    inputs = np.random.default_rng(0).random((20, 4)).astype(np.float32)
    task = Task(input_shape=(4,), classes=2)
    data = FederatedData(inputs=inputs, targets=np.zeros(20, int), bounds=np.array([[0, 20]]), names=["a"], task=task)
    audit = LDPAudit(
        data=data, model=lambda seed: models.build("logistic", task, seed=seed), crafters=[crafter_named("collusion")]
    )
    with pytest.raises(InputError, match="at least two classes"):
        audit.run()


def test_a_language_model_is_audited_as_well():
    data = load("generated-text", positions=8, vocabulary_size=50).train
    audit = LDPAudit(
        data=data, model=lambda seed: models.build("transformer", data.task, seed=seed), crafters=[GradientFlip()],
        mechanisms=[LDPSGD(epsilon=2.0)], trials=60, views=["black-box", "parameter-change"],
    )  # fmt: skip
    assert [r.view for r in audit.run()] == ["black-box", "parameter-change"]


class Recurrent(nn.Module):
    """torch's own LSTM, which vmap does not take."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(50, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 50)

    def forward(self, tokens):
        return self.out(self.lstm(self.embedding(tokens))[0])


def test_a_model_that_cannot_be_batched_is_evaluated_one_vector_at_a_time():
    data = load("generated-text", positions=8, vocabulary_size=50).train
    examples, module = data.pooled(), Recurrent()
    pair = Pair.of(Examples(examples.inputs[:2], examples.targets[:2]), data.task)
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    vectors = base + 0.1 * torch.from_numpy(np.random.default_rng(0).standard_normal((3, len(base)), dtype=np.float32))
    found = ManyModels(module, data.task, pair.inputs, pair.targets).losses(vectors)
    for vector, losses in zip(vectors, found, strict=True):
        other = Recurrent()
        load_vector(other, vector.numpy())
        assert [pair.loss(other, which).item() for which in (0, 1)] == pytest.approx(losses.tolist(), rel=1e-5)
    audit = LDPAudit(
        data=data, model=lambda seed: Recurrent(), crafters=[Benign()], mechanisms=[LDPSGD(epsilon=2.0)], trials=60
    )
    assert [r.view for r in audit.run()] == list(VIEWS)


def test_a_model_that_fails_at_other_parameters_is_refused_with_the_views_that_need_none():
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(576, 3)

        def forward(self, images):
            if self.inner.bias.abs().max() > 1:
                raise RuntimeError("too large")
            return self.inner(images.flatten(1))

    many = ManyModels(Fragile(), TASK, torch.zeros(1, 1, 24, 24), torch.zeros(1, dtype=torch.long))
    with pytest.raises(InputError, match="too large; white-box and likelihood-ratio views"):
        many.losses(torch.full((1, 3 * 577), 2.0))


def test_a_model_with_dropout_has_a_parameter_change_though_no_loss():
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(576, 3))
    game = BlackBox(
        image_games(module=module), PrivUnit2(epsilon=2.0), Server(), np.random.default_rng(0), ["parameter-change"]
    )
    play_together([game], 50, 0)
    assert list(game.trials()) == ["parameter-change"]


def test_a_perfect_attack_has_an_infinite_estimate_and_a_finite_bound_and_both_go_to_json_and_figures(tmp_path):
    import json

    from coalmine.drawing import files as figures
    from coalmine.methods.ldp import figures as ldp_figures
    from coalmine.methods.ldp import tables as ldp_report

    results = digits_audit(
        crafters=[DummyGradient()], mechanisms=[LDPSGD(epsilon=30.0)], views=["white-box"], trials=100, measurements=2
    ).run()
    assert results[0].metrics["empirical"] == results[0].metrics["empirical_std"] == math.inf
    assert 2 < results[0].bound.lower < 30
    text = json.dumps(ldp_report.to_dict(results, {"data": "digits"}), allow_nan=False)
    assert json.loads(text)["results"][0]["metrics"]["empirical"] == "inf"
    assert json.loads(text)["results"][0]["estimates"][-1]["epsilon"] == "inf"
    assert ldp_report.tables(results)[0][2] == [["dummy-gradient", "30", "∞ ± ∞"]]
    drawn = ldp_figures.charts(json.loads(text)["results"])
    assert "infinite" in drawn["ldp-adversaries"].to_dict()["title"]["subtitle"][-1]
    assert figures.save(drawn["ldp-adversaries"], tmp_path / "x.svg").is_file()


def test_a_mechanism_whose_density_is_not_known_is_guessed_in_every_trial():
    # Reports of length 1 in 4,810 dimensions: no product with a gradient comes near a threshold made for known ones.
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


def test_results_without_a_guess_or_a_leak_say_so():
    from coalmine.methods.ldp import tables as ldp_report

    results = digits_audit(crafters=[DummyGradient()], views=["white-box", "likelihood-ratio"], trials=200).run()
    metrics = {name: value for name, value in results[0].metrics.items() if name != "accuracy"}
    metrics |= {"guessed": 0.0, "bound_of_all": 0.0}
    silent = [replace(r, metrics=metrics, estimates=[replace(r.estimates[0], epsilon=0.0, lower=0.0)]) for r in results]
    assert ldp_report.tables(silent)[2][2] == [["dummy-gradient", "1", "no guesses", "no guesses"]]
    assert ldp_report.sentence(silent) == (
        "With 95% confidence for all 2 bounds together no leak is shown: all of them are 0."
    )


def test_results_speak_of_gradients_and_not_of_members():
    for result in digits_audit(crafters=[DummyGradient()], mechanisms=[LDPSGD(epsilon=2.0)], trials=300).run():
        assert "member" not in str(result.to_dict())
    assert "times as likely where g₁ rather than g₂ was sent, or the other way round" in result.meaning


def test_many_bounds_are_judged_together_and_a_bug_is_still_found():
    from coalmine.methods.ldp.tables import sentence

    settings = {"crafters": [GradientFlip(), DummyGradient()], "views": ["white-box"], "trials": 5000}
    kept = digits_audit(mechanisms=[LDPSGD(epsilon=e) for e in EPSILONS], **settings).run()
    assert all(r.metrics["bound_of_all"] <= min(r.bound.lower, r.config["epsilon"]) for r in kept)
    largest = max(kept, key=lambda r: r.metrics["bound_of_all"] / r.config["epsilon"])
    told = f"is {largest.metrics['bound_of_all']:.3g} of ε = {largest.config['epsilon']:g}"
    assert f"for all 8 bounds together the largest beside its promise {told}" in sentence(kept)
    assert sentence(kept).endswith("No promise is refuted.")
    broken = digits_audit(mechanisms=[Doubled(epsilon=e) for e in EPSILONS], **settings | {"trials": 1000}).run()
    assert "8 exceed what was promised" in sentence(broken)
    assert "the mechanism has a bug" in sentence(broken)


def drifting():
    """Reports that change with the call and not with the gradient: ε = 0."""
    calls = itertools.count()
    return lambda gradient, rng: -0.001 * next(calls) + rng.standard_normal(gradient.size)


def test_a_mechanism_that_drifts_from_call_to_call_leaks_nothing():
    given = dummy(4)
    seen = white_box(given, OwnMechanism(function=drifting(), epsilon=0.1), 4000, np.random.default_rng(0))
    module, task = nn.Linear(1, 2), Task(input_shape=(1,), classes=2)
    given = crafted(
        given.first, given.second, rule="signs", module=module,
        pair=Pair(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), task),
    )  # fmt: skip
    game = BlackBox(given, OwnMechanism(function=drifting(), epsilon=0.1), Server(), np.random.default_rng(1))
    play_together([game], 4000, 0)
    for trials in [*seen.values(), *game.trials().values()]:
        assert estimates([trials], delta=0.0, confidence=0.95)[0].lower < 0.05


@pytest.mark.parametrize("where", ["chance", "length", "clipped"])
def test_a_subclass_that_keeps_its_state_in_a_small_part_leaks_nothing_by_it(where):
    # The first half of all reports is of one kind and the second of another, whichever gradient they are made of.
    calls = itertools.count()

    class Drifting(LDPSGD):
        @property
        def chance(self):
            return 1.0 if where == "chance" and next(calls) < 500 else 0.5

        def length(self, gradient):
            return 1.0 if where == "length" and next(calls) < 500 else 0.0

        def clipped(self, gradient):
            kept = where != "clipped" or next(calls) < 500
            return super().clipped(gradient) * (1.0 if kept else 1e-3)

    assert not is_memoryless(Drifting(epsilon=1.0))
    members = tossed(Drifting(epsilon=1.0), 1000, np.random.default_rng(0))
    assert 200 < members[:500].sum() < 300  # were g₁ first, the first 500 would all be its own


def test_a_subclass_that_randomizes_otherwise_is_audited_by_that():
    class Naked(LDPSGD):
        def randomize(self, gradient, rng, count=1):
            return np.repeat(np.asarray(gradient, np.float32)[None], count, axis=0)

    results = digits_audit(crafters=[DummyGradient()], mechanisms=[Naked(epsilon=1.0)], trials=200).run()
    assert [r.refuted for r in results] == [True] * 4


def test_a_bound_that_exceeds_a_promise_by_chance_refutes_nothing():
    (result,) = digits_audit(crafters=[DummyGradient()], views=["white-box"]).run()
    bound = result.estimates[0]
    lucky = replace(result, estimates=[replace(bound, epsilon=1.02, lower=1.02)], metrics={"bound_of_all": 0.9})
    assert not lucky.refuted
    assert lucky.to_dict()["refuted"] is False
    assert "ε is at least 0.9 at δ" in lucky.meaning
    assert "together with the bounds of all other results. That does not contradict the promise" in lucky.meaning
    assert replace(lucky, metrics={"bound_of_all": 1.01}).refuted


def test_results_that_would_overwrite_each_other_are_not_reported():
    from coalmine.methods.ldp import tables as ldp_report

    results = digits_audit(
        crafters=[DummyGradient()], mechanisms=[LDPSGD(epsilon=1.0), PrivUnit2(epsilon=1.0)], views=["white-box"]
    ).run()
    with pytest.raises(InputError, match="two results of dummy-gradient at ε = 1, white-box"):
        ldp_report.tables(results)
    with pytest.raises(InputError, match="two results of dummy-gradient"):
        ldp_report.arrays(results)


@pytest.mark.parametrize("part", [nn.Dropout(0.5), nn.BatchNorm2d(1)])
def test_black_box_trials_refuse_models_whose_loss_is_random_or_of_a_batch(part):
    module = nn.Sequential(part, nn.Flatten(), nn.Linear(576, 3))
    image, target = torch.zeros(1, 1, 24, 24), torch.zeros(1, dtype=torch.long)
    with pytest.raises(InputError, match=f"a model with {type(part).__name__}"):
        ManyModels(module, TASK, image, target)
    many = ManyModels(module.eval(), TASK, image, target)
    assert many.losses(nn.utils.parameters_to_vector(module.parameters()).detach()[None]).shape == (1, 1)
