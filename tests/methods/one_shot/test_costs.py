"""What canaries cost a training, and the warnings before it."""

import math
import warnings

import numpy as np
import pytest

from coalmine import OneShot
from coalmine.cli import console
from coalmine.errors import CanaryWarning
from coalmine.methods.one_shot.canaries import extra_noise, warn_if_crowded
from coalmine.protocol import Audit, View
from coalmine.simulation.settings import TrainingSettings


class Recorder(Audit):
    """Keeps every update."""

    views = (View("update"),)

    def __init__(self):
        self.updates = []

    def record(self, release):
        self.updates.append(np.array(release.vector, dtype=np.float64))


def trained(*audits):
    client = {"epochs": 1, "batch_size": "all"}
    settings = TrainingSettings(rounds=1, partition="iid:20", cohort="fixed:20", model="logistic", client=client)
    splits = settings.splits()
    training = settings.training(splits, settings.module(splits), audits)
    training.run()
    return training.dim


def test_beside_canaries_a_round_is_shorter_by_their_share_and_otherwise_the_same():
    alone, beside = Recorder(), Recorder()
    dim = trained(alone)
    audit = OneShot(dim, rounds=1, canaries=10, participation="every-round", design="fixed")
    trained(audit, beside)
    canaries = np.sum(list(audit._canaries.each(np.flatnonzero(audit.members))), axis=0)  # clip norm 1
    expected = (alone.updates[0] * 20 + canaries) / 30
    np.testing.assert_allclose(beside.updates[0], expected, atol=1e-6)


def test_canaries_add_noise_of_their_number_over_the_dimensions():
    audit = OneShot(8192, rounds=1, canaries=500, participation="every-round", design="fixed")
    total = audit.plant(0, clip_norm=0.5).total
    noise = np.random.default_rng(0).normal(0, 0.2 * 0.5, 8192)  # noise multiplier 0.2
    measured = np.std(total + noise) / np.std(noise) - 1
    # The canaries are orthogonal, so only the dot product with the noise is random: standard error 0.006.
    assert measured == pytest.approx(extra_noise(500, dim=8192, noise_multiplier=0.2), abs=0.02)
    assert extra_noise(500, dim=8192, noise_multiplier=0.2) == pytest.approx(math.sqrt(1 + 500 / (8192 * 0.04)) - 1)


def test_without_noise_any_canary_adds_infinitely_more():
    assert extra_noise(1, dim=100, noise_multiplier=0.0) == np.inf
    assert extra_noise(0, dim=100, noise_multiplier=0.0) == 0.0


@pytest.mark.parametrize(("canaries", "clients"), [(25, 25), (0, 0), (1, 50)])
def test_as_many_canaries_as_clients_are_no_reason_to_warn(canaries, clients):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_crowded(canaries, clients)


def test_more_canaries_than_clients_cause_a_warning_that_says_what_to_do():
    with pytest.warns(CanaryWarning, match=r"1,000 canaries beside 50 clients.*0\.048.*learning rate by 21"):
        warn_if_crowded(1000, 50)
    with pytest.warns(CanaryWarning, match="3 canaries beside 0 clients"):
        warn_if_crowded(3, 0)


def test_more_noise_from_canaries_than_from_the_mechanism_causes_a_warning():
    audit = OneShot(1000, rounds=1, canaries=250, participation="every-round")
    with pytest.warns(CanaryWarning, match=r"250 canaries in 1,000 dimensions.*1\.5 times"):
        audit.joins(clients=None, noise_multiplier=0.45)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit.joins(clients=None, noise_multiplier=0.5)
        audit.joins(clients=None, noise_multiplier=0.0)


def test_the_audit_counts_the_canaries_of_its_fullest_round_and_only_those_it_inserts():
    audit = OneShot(5000, rounds=10, canaries=100, participation="last:2", view="updates")
    with pytest.warns(CanaryWarning, match="100 canaries beside 99 clients"):
        audit.joins(clients=99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit.seen_by("final").joins(clients=1)
        audit.joins(clients=100, noise_multiplier=1.0)
        audit.joins(clients=None, noise_multiplier=1.0)
        OneShot(5000, rounds=10, canaries=100, participation="poisson:0.1").joins(clients=10)


def test_the_simulator_warns_before_the_first_round():
    settings = TrainingSettings(rounds=2, partition="iid:20", cohort="poisson:0.5")
    splits = settings.splits()
    module = settings.module(splits)
    audit = OneShot(9610, rounds=2, canaries=100, participation="poisson:0.5")
    with pytest.warns(CanaryWarning, match="50 canaries beside 10 clients"):
        settings.training(splits, module, [audit])


def test_the_command_line_prints_the_warning_as_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", console.show_warning)
    console.warned.clear()
    warnings.showwarning(CanaryWarning("too many"), CanaryWarning, "file.py", 1)
    assert capsys.readouterr().err == "coalmine: too many\n"
