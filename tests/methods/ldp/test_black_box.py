"""Black-box trials of the LDP audit: the fast way against the plain one, and both against the paper's algorithms."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special, stats
from torch import nn

from coalmine.methods.ldp.crafters import DummyGradient, Pair
from coalmine.methods.ldp.distinguishers import BlackBox, play, white_box
from coalmine.methods.ldp.lower_bounds import estimates
from coalmine.simulation.data.federated import Task
from coalmine.simulation.mechanisms.local import LDPSGD, LDPServer, OwnMechanism, PrivUnit2
from ldp_games import benign_images, crafted, dummy


def test_signs_of_the_parameter_change_find_the_dummy_gradient_as_often_as_theory_says():
    # Σ sgn and Σ of normal coordinates have correlation √(2/π): they agree in sign with probability ½ + asin(√(2/π))/π.
    module = nn.Linear(40, 50)
    task = Task(input_shape=(40,), classes=50)
    pair = Pair(torch.zeros(2, 40), torch.zeros(2, dtype=torch.long), task)
    gradients = crafted(*DummyGradient()(module, pair), rule="signs", module=module, pair=pair)
    game = BlackBox(gradients, LDPSGD(epsilon=4.0), LDPServer(), np.random.default_rng(0))
    play([game], 20_000, 0)
    guesses = game.trials()["black-box"].guesses
    expected = 0.5 + (2 * special.expit(4.0) - 1) * math.asin(math.sqrt(2 / math.pi)) / math.pi
    assert guesses.correct / guesses.guesses == pytest.approx(expected, abs=4 * 0.003)


@pytest.mark.parametrize("rule", [pytest.param("larger-change", marks=pytest.mark.slow), "loss-falls", "signs"])
def test_trials_on_lines_are_the_plain_trials(rule):
    gradients = benign_images(rule)
    played = []
    for plain in (True, False):
        games = [BlackBox(gradients, LDPSGD(epsilon=e), LDPServer(), np.random.default_rng(7)) for e in (1.0, 4.0)]
        play(games, 300, seed=3, plain=plain)
        played.append([game.trials() for game in games])
    for slow, fast in zip(*played, strict=True):
        for view, trials in fast.items():
            np.testing.assert_array_equal(trials.sent_first, slow[view].sent_first)
            np.testing.assert_allclose(trials.scores, slow[view].scores, atol=1e-3)


def test_trials_have_the_error_rates_of_algorithm_3_written_out():
    # An independent loop in float64; two-sample tests of both rates at 1e-4.
    gradients, epsilon, step = benign_images("loss-falls"), 2.0, 1.5
    server = LDPServer(learning_rate=step / LDPSGD(epsilon=epsilon).server_factor(gradients.dim))
    game = BlackBox(gradients, LDPSGD(epsilon=epsilon), server, np.random.default_rng(0))
    play([game], 2000, 0)
    ours = game.trials()["black-box"].counts
    rng, module = np.random.default_rng(1), gradients.model
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    x, y = gradients.pair.inputs[:1], gradients.pair.targets[:1]
    theirs = np.zeros((2, 2), dtype=int)
    with torch.no_grad():
        before = float(F.cross_entropy(module(x), y))
        for _ in range(800):
            second = int(rng.random() < 0.5)
            gradient = (gradients.second if second else gradients.first).astype(float)
            gradient *= min(1, 1 / np.linalg.norm(gradient))
            norm = np.linalg.norm(gradient)
            z = gradient / norm * (1 if rng.random() < 0.5 + norm / 2 else -1)
            v = rng.standard_normal(gradients.dim)
            v /= np.linalg.norm(v)
            side = np.sign(z @ v) * (1 if rng.random() < math.exp(epsilon) / (1 + math.exp(epsilon)) else -1)
            moved = base - torch.from_numpy((step * side * v).astype(np.float32))
            nn.utils.vector_to_parameters(moved, module.parameters())
            theirs[second, int(float(F.cross_entropy(module(x), y)) > before)] += 1
    nn.utils.vector_to_parameters(base, module.parameters())
    assert stats.fisher_exact([[ours.tp, ours.fn], theirs[0].tolist()]).pvalue > 1e-4
    assert stats.fisher_exact([[ours.fp, ours.tn], theirs[1].tolist()]).pvalue > 1e-4


def test_parameters_among_three_clients_reveal_what_an_independent_sum_of_reports_does():
    # Algorithm 1 written out for all trials at once. Four Kolmogorov–Smirnov tests at 1e-4 each.
    rng, epsilon, dim, count = np.random.default_rng(5), 3.0, 12, 6000
    first, second, *others = rng.standard_normal((4, dim)) * np.array([0.2, 0.1, 0.4, 0.1])[:, None]
    gradients = crafted(first, second, others=np.array(others, np.float32), module=nn.Linear(2, 4))

    def report(gradients):
        lengths = np.linalg.norm(gradients, axis=1)
        towards = np.where(rng.random(count) < 0.5 + np.minimum(1, lengths) / 2, 1, -1)
        v = rng.standard_normal((count, dim))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        honest = np.where(rng.random(count) < math.exp(epsilon) / (1 + math.exp(epsilon)), 1, -1)
        return (np.sign(np.sum(v * gradients, axis=1)) * towards * honest)[:, None] * v

    members, mechanism = rng.random(count) < 0.5, LDPSGD(epsilon=epsilon)
    total = report(np.where(members[:, None], first, second))
    total += sum(report(np.repeat(other[None], count, axis=0)) for other in others)
    expected = gradients.log_ratio(total @ gradients.plane[0], mechanism, 3)
    for server in (LDPServer(), LDPServer(scaling="printed", learning_rate=1.0)):
        game = BlackBox(gradients, mechanism, server, np.random.default_rng(1), ["parameter-change"])
        play([game], count, 2)
        trials = game.trials()["parameter-change"]
        for first_sent in (True, False):
            ours, theirs = trials.scores[trials.sent_first == first_sent], expected[members == first_sent]
            assert stats.ks_2samp(ours, theirs).pvalue > 1e-4


def test_a_model_with_dropout_has_a_parameter_change_but_no_loss():
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(576, 3))
    game = BlackBox(
        benign_images(module=module),
        PrivUnit2(epsilon=2.0),
        LDPServer(),
        np.random.default_rng(0),
        ["parameter-change"],
    )
    play([game], 50, 0)
    assert list(game.trials()) == ["parameter-change"]


def drifting():
    """Reports that change from call to call but not with the gradient: ε = 0."""
    calls = itertools.count()
    return lambda gradient, rng: -0.001 * next(calls) + rng.standard_normal(gradient.size)


def test_a_mechanism_that_drifts_from_call_to_call_leaks_nothing():
    gradients = dummy(4)
    white = white_box(gradients, OwnMechanism(function=drifting(), epsilon=0.1), 4000, np.random.default_rng(0))
    module, task = nn.Linear(1, 2), Task(input_shape=(1,), classes=2)
    gradients = crafted(
        gradients.first, gradients.second, rule="signs", module=module,
        pair=Pair(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), task),
    )  # fmt: skip
    game = BlackBox(gradients, OwnMechanism(function=drifting(), epsilon=0.1), LDPServer(), np.random.default_rng(1))
    play([game], 4000, 0)
    for trials in [*white.values(), *game.trials().values()]:
        assert estimates([trials], delta=0.0, confidence=0.95)[0].lower < 0.05
